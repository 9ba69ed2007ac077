#!/usr/bin/env bash
# Provide Pythons for another machine and for musl, on which wheels can be tried. `tools/foreign_pythons.sh --help` explains it.
set -euo pipefail

usage() {
    cat <<'END'
usage: make foreign-pythons ARGS="[--dir DIR] [VERSION...]"

Put Pythons that `make try-wheels` uses into DIR, which is target/foreign by default:

    DIR/glibc-aarch64/python3.11 ...   Debian's packages for arm64
    DIR/musl-x86_64/python3.11 ...     CPython compiled for musl, with OpenSSL, zlib and libffi, from Debian's sources
    DIR/musl-aarch64/python3.11 ...    the same for aarch64

VERSION is 3.11, 3.13, 3.14 or 3.15; the default is all of them. No release of Debian has 3.12.

They are scripts; the first argument is the first one for Python. Those for another machine run under qemu-user. A Python for musl
takes about three minutes of CPU time to compile, and what they share takes ten.

This needs a Debian machine with apt-get. qemu-user and perl are installed if they are missing and it runs as root. Nothing else
outside of DIR changes. Packages are verified with Debian's keys. zig, from the Python environment of the repository, compiles.
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

# Make FOLDER/musl-MACHINE/base: a compiler for musl, the static libraries that CPython links (OpenSSL, zlib and libffi), and musl
# itself from Debian, with its loader.
make_base() { # make_base MACHINE
    local machine=$1 base=$folder/musl-$1/base state=$folder/base-$1 tool package
    [ ! -e "$base/complete" ] || return 0
    rm -rf "$state"
    mkdir -p "$state/root" "$base/bin" "$base/lib" "$base/include"
    apt_in "$state" "${debian_name[$machine]}" trixie update
    apt_in "$state" "${debian_name[$machine]}" trixie install -y --download-only musl
    dpkg-deb --fsys-tarfile "$state/archives"/musl_*.deb | tar --extract --directory "$state/root"
    # musl is one file, a library and its own loader.
    cp "$(find "$state/root" -name libc.so -type f)" "$base/lib/ld-musl-$machine.so.1"
    for tool in ar ranlib; do
        printf '#!/bin/sh\nexec %s -m ziglang %s "$@"\n' "$zig_python" $tool >"$base/bin/$tool"
    done
    # By musl's own stdarg.h, CPython's configure recognizes musl. zig prefers clang's.
    cp "$("$zig_python" -c 'import pathlib, ziglang; print(pathlib.Path(ziglang.__file__).parent)')/lib/libc/include/generic-musl/stdarg.h" \
        "$base/include"
    # CPython asks for the multiarch name. zig looks for undefined behaviour and for build times, which is not for other people's programs.
    # A Python for this machine must also start without a script, so it names its loader. setup.py of 3.11 adds the headers of this machine.
    cat >"$base/bin/cc" <<END
#!/bin/sh
case "\$*" in *-print-multiarch) echo $machine-linux-musl && exit ;; esac
for each; do
    shift
    case \$each in -I/usr/include | -I/usr/local/include) ;; *) set -- "\$@" "\$each" ;; esac
done
exec $zig_python -m ziglang cc -target $machine-linux-musl -dynamic -fno-sanitize=undefined -Wno-date-time -I$base/include "\$@"
END
    chmod +x "$base/bin"/*
    apt_in "$state" "${debian_name[$machine]}" bookworm update
    for package in openssl zlib libffi; do
        [ ! -e "$base/has-$package" ] || continue
        echo "compiling $package for $machine-linux-musl"
        source_of "$state" bookworm "$package" "$state/build/$package"
        (cd "$state/build/$package" && "make_$package" "$machine" "$base") >"$folder/$package-$machine.log" 2>&1 ||
            fail "the compilation failed; see $folder/$package-$machine.log"
        touch "$base/has-$package"
    done
    touch "$base/complete"
    rm -rf "$state"
}

make_openssl() { # make_openssl MACHINE BASE
    ./Configure "linux-$1" CC="$2/bin/cc" AR="$2/bin/ar" RANLIB="$2/bin/ranlib" --prefix="$2" --libdir=lib --openssldir=/etc/ssl \
        no-shared no-tests no-legacy no-module no-engine &&
        make -j "$(nproc)" build_libs &&
        make install_dev
}

make_zlib() { # make_zlib MACHINE BASE
    CC="$2/bin/cc" AR="$2/bin/ar" RANLIB="$2/bin/ranlib" CFLAGS='-O2 -fPIC' ./configure --prefix="$2" --static &&
        make libz.a &&
        cp libz.a "$2/lib" &&
        cp zlib.h zconf.h "$2/include"
}

make_libffi() { # make_libffi MACHINE BASE
    ./configure CC="$2/bin/cc" AR="$2/bin/ar" RANLIB="$2/bin/ranlib" --host="$1-linux-musl" --prefix="$2" --libdir="$2/lib" \
        --disable-shared --with-pic --disable-multi-os-directory --disable-docs --disable-exec-static-tramp &&
        make &&
        make install
}

# The source of a Debian package, unpacked.
source_of() { # source_of STATE RELEASE PACKAGE FOLDER
    (cd "$1" && apt_in "$1" "$(dpkg --print-architecture)" "$2" source --download-only "$3")
    mkdir -p "$4"
    find "$1" -maxdepth 1 -name "$3_*.orig.tar.*" ! -name '*.asc' \
        -exec tar --extract --file {} --strip-components=1 --directory "$4" ';'
}

make_musl() { # make_musl MACHINE VERSION
    local machine=$1 version=$2 tree=$folder/musl-$1 state=$folder/source-$1-$2 command cross=()
    make_base "$machine"
    command=$tree/$version/bin/python$version
    if [ "$machine" != "$here" ]; then
        command="qemu-$machine -L $tree/base $command"
        # The one for this machine compiles what CPython freezes. readelf can read other machines' files, but configure accepts
        # it only by another name.
        cross=(--host="$machine-linux-musl" --build="$here-linux-musl" --with-build-python="$folder/musl-$here/python$version"
            READELF="$(command -v readelf)"
            ac_cv_file__dev_ptmx=yes ac_cv_file__dev_ptc=no ac_cv_buggy_getaddrinfo=no)
    fi
    if [ ! -e "$tree/python$version" ]; then
        rm -rf "$state" "${tree:?}/$version"
        mkdir -p "$state"
        apt_in "$state" "$(dpkg --print-architecture)" "$(release_of "$version")" update
        source_of "$state" "$(release_of "$version")" "python$version" "$state/build"
        echo "compiling Python $version for $machine-linux-musl"
        (
            cd "$state/build" &&
                ./configure --prefix="$tree/$version" "${cross[@]}" --with-openssl="$tree/base" --disable-test-modules \
                CC="$tree/base/bin/cc" AR="$tree/base/bin/ar" RANLIB="$tree/base/bin/ranlib" OPT='-O1 -DNDEBUG' PKG_CONFIG=false \
                CPPFLAGS="-I$tree/base/include" LDFLAGS="-L$tree/base/lib -Wl,--dynamic-linker=$tree/base/lib/ld-musl-$machine.so.1" \
                ZLIB_CFLAGS=' ' ZLIB_LIBS="-L$tree/base/lib -lz" \
                LIBFFI_CFLAGS=' ' LIBFFI_LIBS="-L$tree/base/lib -lffi" &&
                make -j "$(nproc)" &&
                make install
        ) >"$folder/musl-$machine-$version.log" 2>&1 || fail "the compilation failed; see $folder/musl-$machine-$version.log"
        rm -rf "$state"
    fi
    write_script "$tree/python$version" "$command"
    "$tree/python$version" -c '
import ctypes, platform, ssl, sysconfig, zlib
abi = sysconfig.get_config_var("SOABI")
assert abi.endswith(f"-{platform.machine()}-linux-musl"), f"configure did not recognize musl: {abi}"
print(platform.machine(), abi, platform.python_version())'
}

declare -A debian_name=([x86_64]=amd64 [aarch64]=arm64)
here=$(uname -m)
[ -n "${debian_name[$here]:-}" ] || fail "the wheels are for x86_64 and aarch64, and this machine is $here"
zig_python=${RINGLOOP_ZIG_PYTHON:-$repository/.venv/bin/python}
"$zig_python" -m ziglang version >/dev/null 2>&1 || fail 'zig is missing; run this as: make foreign-pythons'
mkdir -p "$folder"
need perl perl
if [ "$here" != aarch64 ]; then
    need qemu-aarch64 qemu-user
    for version in "${versions[@]}"; do make_aarch64 "$version"; done
fi
for version in "${versions[@]}"; do
    make_musl "$here" "$version"
    [ "$here" = aarch64 ] || make_musl aarch64 "$version"
done
