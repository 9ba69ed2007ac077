#!/usr/bin/env bash
# Run a command in a Debian tree that has CPython 3.14 and 3.15; `tools/pythons.sh --help` explains it.
set -euo pipefail

usage() {
    cat <<'END'
usage: tools/pythons.sh [--dir DIR] [--rust] [--clang] [COMMAND [WORD...]]
       tools/pythons.sh [--dir DIR] --remove

Run COMMAND in a Debian tree that has CPython 3.14 and 3.15 with their headers and their own tests, a C compiler, the
servers that tests/applications starts, and this machine's Rust. The repository is at the same place in it:

    tools/pythons.sh make test-python PYTHON=python3.15 VENV=.venv-3.15-debian

The first call creates the tree, which takes about two minutes and 1 GB and downloads Debian's packages. Later calls reuse
it. Without a COMMAND the tree is created, and the versions are printed.

    --dir DIR   where the tree is; the default is target/pythons
    --rust      use Debian's Rust instead of this machine's, and install its standard library's source and clang, which
                the sanitizers need. This takes another 2 GB the first time
    --clang     install clang, a C++ library and liburing, with which the lab builds kio
    --remove    remove the tree
    --help      print this help

RINGLOOP_DEBIAN_MIRROR   where Debian's packages come from; the default is this machine's own mirror, if it runs Debian, or
                         http://deb.debian.org/debian

Compiled files go to target/debian, because programs linked in the tree may not run outside of it. Virtual environments
need separate folders for the same reason, as in the example.

This needs root and the right to mount, and exits with 77 without them. All mounts are in a separate namespace: they end
with the command, no other process sees them, and removing the tree removes nothing outside of it.
END
}

fail() {
    echo "pythons.sh: $*" >&2
    exit "${status:-1}"
}

# Install those of the packages that the tree does not have yet.
install_packages() {
    local package missing=()
    for package in "$@"; do
        grep -qxF "$package" "$tree/etc/ringloop-packages" 2>/dev/null || missing+=("$package")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    echo "pythons.sh: installing ${missing[*]}"
    # A mirror may be a snapshot that is days old; its signature is still checked.
    echo "deb [check-valid-until=no] $mirror sid main" >"$tree/etc/apt/sources.list"
    # Start no services, create no database, and do not sync each file to disk.
    printf '#!/bin/sh\nexit 101\n' >"$tree/usr/sbin/policy-rc.d"
    chmod +x "$tree/usr/sbin/policy-rc.d"
    mkdir -p "$tree/etc/postgresql-common"
    echo 'create_main_cluster = false' >"$tree/etc/postgresql-common/createcluster.conf"
    echo force-unsafe-io >"$tree/etc/dpkg/dpkg.cfg.d/ringloop"
    quietly chroot "$tree" env DEBIAN_FRONTEND=noninteractive LC_ALL=C sh -c \
        'dpkg --configure -a && apt-get update && apt-get install -y --no-install-recommends "$@" && apt-get clean' \
        sh "${missing[@]}" ||
        fail "Debian's packages cannot be installed from $mirror; RINGLOOP_DEBIAN_MIRROR names another mirror"
    printf '%s\n' "${missing[@]}" >>"$tree/etc/ringloop-packages"
}

# Create the tree, or complete it. A tree that was interrupted halfway has another name, and is created again.
make_tree() {
    local mirror packages file
    mirror=${RINGLOOP_DEBIAN_MIRROR:-$(debian_mirror)}
    if [ ! -d "$tree" ]; then
        install_debootstrap
        echo "pythons.sh: making a Debian tree in $tree, from $mirror"
        rm -rf --one-file-system "$tree.unfinished"
        quietly debootstrap --variant=minbase --include=ca-certificates sid "$tree.unfinished" "$mirror" ||
            fail "debootstrap failed; is $mirror a mirror of Debian that this machine can reach? RINGLOOP_DEBIAN_MIRROR names another"
        mv "$tree.unfinished" "$tree"
    fi
    share /proc /sys /dev
    # Use this machine's network settings, and the certificates that it trusts, such as a proxy's.
    for file in /etc/resolv.conf /etc/hosts /etc/ssl/certs/ca-certificates.crt; do
        [ ! -e "$file" ] || cp -L "$file" "$tree$file"
    done
    packages=(
        python3.14 python3.14-venv python3.14-dev libpython3.14-testsuite
        python3.15 python3.15-venv python3.15-dev libpython3.15-testsuite
        gcc libc6-dev make git procps openssl postgresql redis-server
    )
    [ -n "$sysroot" ] || packages+=(cargo)
    [ -z "$rust" ] || packages+=(rust-src clang libclang-rt-dev)
    [ -z "$clang" ] || packages+=(clang g++ liburing-dev)
    install_packages "${packages[@]}"
}

# Run a command that prints a lot, and show its output only if it fails.
quietly() {
    local log
    log=$(mktemp)
    if "$@" >"$log" 2>&1 </dev/null; then
        rm "$log"
    else
        tail -n 30 "$log" >&2
        rm "$log"
        return 1
    fi
}

install_debootstrap() {
    ! command -v debootstrap >/dev/null || return 0
    command -v apt-get >/dev/null ||
        fail 'debootstrap is missing; install it with the package manager of this machine'
    echo 'pythons.sh: installing debootstrap'
    quietly sh -c 'apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        debootstrap debian-archive-keyring' || fail 'debootstrap is missing and cannot be installed'
}

# The mirror that this machine itself is installed from, if it runs Debian.
debian_mirror() {
    local mirror=
    if grep -qx 'ID=debian' /etc/os-release 2>/dev/null; then
        mirror=$(sed -n 's/^URIs: *\([^ ]*\).*/\1/p; s/^deb \(\[[^]]*\] \)\?\([^ ]*\) .*/\2/p' \
            /etc/apt/sources.list.d/debian.sources /etc/apt/sources.list 2>/dev/null | head -n 1) || true
    fi
    echo "${mirror:-http://deb.debian.org/debian}"
}

# Put folders of this machine at the same place in the tree.
share() {
    local folder
    for folder in "$@"; do
        mkdir -p "$tree$folder"
        mount --rbind "$folder" "$tree$folder"
    done
}

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
tree=$repository/target/pythons
remove=
rust=
clang=
arguments=("$@")
while [ $# -gt 0 ]; do
    case $1 in
    --help | -h) usage && exit ;;
    --dir)
        [ -n "${2:-}" ] || fail '--dir needs a folder; see --help'
        tree=$(realpath -m "$2")
        shift 2
        ;;
    --rust) rust=1 && shift ;;
    --clang) clang=1 && shift ;;
    --remove) remove=1 && shift ;;
    --) shift && break ;;
    -*) fail "unknown option $1; see --help" ;;
    *) break ;;
    esac
done
here=$(pwd -P)
case $here/ in
"$repository"/*) ;;
*) fail "the current folder, $here, is not in the repository, $repository" ;;
esac
[ -z "$remove" ] || [ $# = 0 ] || fail '--remove takes no command; see --help'
[ "$(id -u)" = 0 ] || status=77 fail 'this needs root, to make a Debian tree and to mount folders in it'
if [ -z "${RINGLOOP_PYTHONS_MOUNTS:-}" ]; then
    unshare --mount true 2>/dev/null ||
        status=77 fail 'this machine does not let root mount anything (a container without CAP_SYS_ADMIN?)'
    RINGLOOP_PYTHONS_MOUNTS=private exec unshare --mount --propagation private -- \
        bash "${BASH_SOURCE[0]}" ${arguments[@]+"${arguments[@]}"}
fi
unset RINGLOOP_PYTHONS_MOUNTS

mkdir -p "$(dirname "$tree")"
# If several calls run at once, only one creates the tree.
exec 9>"$tree.lock"
flock 9
if [ -n "$remove" ]; then
    rm -rf --one-file-system "$tree" "$tree.unfinished" "$tree.lock"
    exit
fi
# This machine's Rust and cargo's downloads, at the same paths. Debian's own Rust can't be shared: it is spread over
# /usr.
sysroot=$(rustc --print sysroot 2>/dev/null || true)
[ "$sysroot" != /usr ] && [ -z "$rust" ] || sysroot=
make_tree
exec 9>&-
cargo_home=${CARGO_HOME:-$HOME/.cargo}
mkdir -p "$cargo_home"
share "$repository" "$cargo_home" ${sysroot:+"$sysroot"}
# The folders for compiled C programs; the environment sets cargo's folder.
for folder in lab/targets/.build; do
    mkdir -p "$repository/$folder" "$repository/target/debian/$folder"
    mount --bind "$repository/target/debian/$folder" "$tree$repository/$folder"
done
[ $# -gt 0 ] || set -- sh -c 'python3.14 -V && python3.15 -V'
exec chroot "$tree" env -u VIRTUAL_ENV -u CONDA_PREFIX -u PIP_FIND_LINKS HOME=/root LC_ALL=C.UTF-8 CARGO_HOME="$cargo_home" \
    CARGO_TARGET_DIR=target/debian PATH="${sysroot:+$sysroot/bin:}/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" \
    sh -c 'cd "$1" && shift && exec "$@"' sh "$here" "$@"
