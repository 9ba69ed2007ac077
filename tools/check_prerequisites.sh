#!/usr/bin/env bash
# Check what `make build` needs and cannot install by itself: Linux, a Python with headers, a Rust toolchain, a C
# linker. Prints one line for each thing that is missing, with the command that installs it, and exits with 1 if
# anything is missing.
# usage: check_prerequisites.sh PYTHON VENV
set -u
python=${1:?usage: check_prerequisites.sh PYTHON VENV}
venv=${2:?usage: check_prerequisites.sh PYTHON VENV}
repository=$(cd "$(dirname "$0")/.." && pwd)
missing=0

report() {
    echo "missing: $1" >&2
    missing=1
}

check_system() {
    [ "$(uname -s)" = Linux ] || report "Linux: ringloop drives io_uring and epoll, and this is $(uname -s)"
}

check_python() {
    if ! command -v "$python" >/dev/null; then
        report "Python 3.11 or later ($python is not on the PATH); install it with: apt-get install python3 python3-dev python3-venv"
        return
    fi
    # A pyenv shim exists for versions that are not selected, and an interpreter may lack its libraries. It must be
    # run to find out.
    if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 6))' >/dev/null 2>&1; then
        report "a Python 3.11 or later that works ($python does not run); choose one by its path: make build PYTHON=/usr/bin/python3"
        return
    fi
    local findings venv_findings
    if ! findings=$("$python" "$repository/tools/probe_python.py"); then
        while read -r problem; do report "$python: $problem"; done <<<"$findings"
    elif venv_findings=$("$venv/bin/python" "$repository/tools/probe_python.py" 2>/dev/null) && [ "$findings" != "$venv_findings" ]; then
        report "a folder for $python: $venv was made from ${venv_findings##* }; choose another one with: VENV=.venv-${findings%% *}"
    fi
}

check_rust() {
    local install="curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y && . ~/.cargo/env"
    local wanted found
    wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$repository/Cargo.toml")
    if ! command -v cargo >/dev/null || ! command -v rustc >/dev/null; then
        report "a Rust toolchain, $wanted or later; install it with: $install"
        return
    fi
    found=$(rustc --version 2>/dev/null | cut -d' ' -f2)
    if [ -z "$found" ] || ! cargo --version >/dev/null 2>&1; then
        report "a Rust toolchain (cargo is there but does not run); choose one with: rustup default stable"
    elif [ "$(printf '%s\n' "$wanted" "$found" | sort -V | head -n1)" != "$wanted" ]; then
        report "Rust $wanted or later (rustc is $found); update it with: rustup update stable"
    fi
}

check_linker() {
    local install="apt-get install gcc libc6-dev"
    if ! command -v cc >/dev/null; then
        report "a C linker (cc is not on the PATH); install it with: $install"
    elif ! echo 'int main(void) { return 0; }' | cc -x c - -o /dev/null 2>/dev/null; then
        # A compiler without the C library's development files is what a minimal container often has.
        report "a C linker that works (cc cannot link a program); install what it lacks with: $install"
    fi
}

check_system
check_python
check_rust
check_linker
exit $missing
