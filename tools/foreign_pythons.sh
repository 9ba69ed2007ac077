#!/usr/bin/env bash
# Provide Pythons for another machine and for musl, on which wheels can be tried. `tools/foreign_pythons.sh --help` explains it.
set -euo pipefail

usage() {
    cat <<'END'
usage: tools/foreign_pythons.sh [--dir DIR] [VERSION...]

Put Pythons that `make try-wheels` uses into DIR, which is target/foreign by default:

    DIR/glibc-aarch64/python3.11 ...   Debian's packages for arm64. They run under qemu-user
    DIR/musl-x86_64/python3.11 ...     CPython compiled for musl from Debian's source, in three minutes of CPU time each

VERSION is 3.11, 3.13, 3.14 or 3.15; the default is all of them. No release of Debian has 3.12.

They are scripts; the first argument is the first one for Python. This needs a Debian machine with apt-get, qemu-user and
musl-tools, which are installed if it runs as root. Nothing else outside of DIR changes. Packages are verified with Debian's keys.

The Pythons for musl have no TLS, no zlib and no ctypes, because Debian has no such libraries for musl. `ringloop serve` needs
Python's ssl, and is not tried on them.
END
}

fail() {
    echo "foreign_pythons.sh: $*" >&2
    exit 1
}

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
folder=$repository/target/foreign
versions=()
while [ $# -gt 0 ]; do
    case $1 in
    --help | -h) usage && exit ;;
    --dir)
        [ -n "${2:-}" ] || fail '--dir needs a folder; see --help'
        folder=$(realpath -m "$2")
        shift
        ;;
    3.11 | 3.13 | 3.14 | 3.15) versions+=("$1") ;;
    *) fail "$1 is neither an option nor a version that Debian has; see --help" ;;
    esac
    shift
done
[ ${#versions[@]} -gt 0 ] || versions=(3.11 3.13 3.14 3.15)
mirror=${RINGLOOP_DEBIAN_MIRROR:-http://deb.debian.org/debian}
command -v apt-get >/dev/null || fail 'this needs apt-get'

need() { # need COMMAND PACKAGE
    command -v "$1" >/dev/null && return
    [ "$(id -u)" = 0 ] || fail "$1 is missing; install it with: apt-get install $2"
    echo "installing $2"
    { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$2"; } >/dev/null ||
        fail "$2 cannot be installed"
}

# apt-get for another release and machine, with all of its state in a folder of its own. To it, nothing is installed.
apt_in() { # apt_in FOLDER ARCHITECTURE RELEASE WORD...
    local state=$1 architecture=$2 release=$3
    shift 3
    mkdir -p "$state"/{lists/partial,archives/partial}
    : >"$state/status"
    printf 'Types: deb deb-src\nURIs: %s\nSuites: %s\nComponents: main\nCheck-Valid-Until: no\nSigned-By: %s\n' \
        "$mirror" "$release" /usr/share/keyrings/debian-archive-keyring.gpg >"$state/debian.sources"
    cat >"$state/apt.conf" <<END
APT::Architecture "$architecture";
APT::Architectures { "$architecture"; };
APT::Install-Recommends "false";
APT::Sandbox::User "root";
Acquire::Languages "none";
Dir::State "$state";
Dir::State::status "$state/status";
Dir::Cache "$state";
Dir::Etc::sourcelist "$state/debian.sources";
Dir::Etc::sourceparts "-";
END
    APT_CONFIG=$state/apt.conf apt-get -qq "$@"
}

write_script() { # write_script FILE COMMAND
    printf '#!/bin/sh\nexec %s "$@"\n' "$2" >"$1.new"
    chmod +x "$1.new"
    mv "$1.new" "$1"
}

# The release of Debian that has a version of Python.
release_of() { # release_of VERSION
    case $1 in
    3.11) echo bookworm ;;
    3.13) echo trixie ;;
    *) echo sid ;;
    esac
}

make_aarch64() { # make_aarch64 VERSION
    local version=$1 release tree=$folder/glibc-aarch64/$1 state=$folder/arm64-$1 archive
    release=$(release_of "$version")
    if [ ! -d "$tree" ]; then
        apt_in "$state" arm64 "$release" update
        apt_in "$state" arm64 "$release" install -y --download-only "python$version-minimal" "libpython$version-stdlib"
        rm -rf "$tree.new"
        mkdir -p "$tree.new/usr/bin" "$tree.new/usr/lib"
        # In older packages these are folders of their own.
        ln -s usr/bin "$tree.new/bin"
        ln -s usr/lib "$tree.new/lib"
        for archive in "$state/archives"/*.deb; do
            dpkg-deb --fsys-tarfile "$archive" | tar --extract --keep-directory-symlink --directory "$tree.new"
        done
        mv "$tree.new" "$tree"
        rm -rf "$state"
    fi
    write_script "$folder/glibc-aarch64/python$version" "qemu-aarch64 -L $tree $tree/usr/bin/python$version"
    "$folder/glibc-aarch64/python$version" -c 'import platform as p; print(p.machine(), *p.libc_ver(), p.python_version())'
}

# What is compiled for musl runs here, so CPython needs no other Python to compile itself.
make_musl() { # make_musl VERSION
    local version=$1 machine tree source state=$folder/source-$1
    machine=$(uname -m)
    tree=$folder/musl-$machine
    if [ ! -d "$tree/$version" ]; then
        mkdir -p "$state/headers" "$state/build"
        apt_in "$state" "$(dpkg --print-architecture)" "$(release_of "$version")" update
        (cd "$state" && apt_in "$state" "$(dpkg --print-architecture)" "$(release_of "$version")" \
            source --download-only "python$version")
        for source in "$state/python$version"_*.orig.tar.[gx]z; do
            tar --extract --file "$source" --strip-components=1 --directory "$state/build"
        done
        # musl-tools has no headers of the kernel, and takes its multiarch folder from gcc.
        ln -sfn /usr/include/linux "$state/headers/linux"
        ln -sfn /usr/include/asm-generic "$state/headers/asm-generic"
        ln -sfn "/usr/include/$machine-linux-gnu/asm" "$state/headers/asm"
        printf '#!/bin/sh\ncase "$*" in *-print-multiarch) echo %s && exit ;; esac\nexec musl-gcc -isystem %s "$@"\n' \
            "$machine-linux-musl" "$state/headers" >"$state/cc"
        chmod +x "$state/cc"
        echo "compiling Python $version for musl"
        (
            cd "$state/build"
            ./configure --prefix="$tree/$version" --without-ensurepip --disable-test-modules \
                CC="$state/cc" OPT='-O1 -DNDEBUG' PKG_CONFIG=false
            make -j "$(nproc)" && make install
        ) >"$folder/musl-$version.log" 2>&1 || fail "the compilation failed; see $folder/musl-$version.log"
        rm -rf "$state"
    fi
    write_script "$tree/python$version" "$tree/$version/bin/python$version"
    "$tree/python$version" -c 'import platform as p, sysconfig as s; print(p.machine(), s.get_config_var("SOABI"), p.python_version())'
}

mkdir -p "$folder"
if [ "$(uname -m)" != aarch64 ]; then
    need qemu-aarch64 qemu-user
    for version in "${versions[@]}"; do make_aarch64 "$version"; done
fi
need musl-gcc musl-tools
for version in "${versions[@]}"; do make_musl "$version"; done
