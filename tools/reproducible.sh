#!/usr/bin/env bash
# Build a part of a release again, from a copy of the last commit in another folder, and compare it with the first build byte for byte:
# ringloop's wheel for this machine, glibc and the given Python, ringlab's wheel for this machine, both source distributions, and the
# crates. The wheels for other machines, C libraries and Pythons are not built again.
# usage: tools/reproducible.sh PYTHON [--with DIR] [--fast]
# PYTHON is that of an environment with the group `wheels`. The first build is in DIR, a path relative to the repository; without --with,
# it is made, too. --fast takes a fraction of the time, and compares with files that were built with --fast.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage='usage: tools/reproducible.sh PYTHON [--with DIR] [--fast]'
python=$(realpath -s "${1:?$usage}")
shift
first=
options=()
while [ $# -gt 0 ]; do
    case $1 in
    --with)
        first=$(realpath -e "${2:?$usage}")
        shift
        ;;
    --fast) options=(--fast) ;;
    *) echo "$usage" >&2 && exit 2 ;;
    esac
    shift
done
commit=$(git rev-parse HEAD)
# The folder of compiled files is at the same place in each copy, because files that build scripts generate are named by it.
target=$(realpath -m --relative-to=. "${CARGO_TARGET_DIR:-target}")
case $target in ../*) target=target ;; esac
folder=$(mktemp -d "${TMPDIR:-/tmp}/reproducible.XXXXXX")
trap 'rm -rf "$folder"' EXIT
[ -z "$(git status --porcelain)" ] || echo 'reproducible.sh: uncommitted changes are not built' >&2

build() { # build NAME
    local copy=$folder/$1 output=$folder/$1.output
    # With a repository, because ringlab's package has the files that git knows.
    git clone --quiet --shared --no-checkout . "$copy"
    git -C "$copy" checkout --quiet --detach "$commit"
    mkdir -p "$output"
    (
        cd "$copy"
        export CARGO_TARGET_DIR=$copy/$target
        "$python" tools/wheels.py --here --output "$output" "${options[@]}"
        "$python" -m maturin sdist --out "$output"
        "$python" tools/ringlab_packages.py --here --output "$output" "${options[@]}"
        cargo package --quiet --locked --no-verify -p ringloop-driver -p ringloop-reactor -p ringloop
        cp "$CARGO_TARGET_DIR"/package/*.crate "$output"
    )
}

if [ -z "$first" ]; then
    build one
    first=$folder/one.output
fi
# Another length of the path, and another time of day.
build another-folder
different=0
for file in "$folder"/another-folder.output/*; do
    name=${file##*/}
    if [ ! -e "$first/$name" ]; then
        echo "MISSING    $name"
        different=1
    elif cmp --silent "$first/$name" "$file"; then
        echo "equal      $(sha256sum "$file" | cut -c1-16)  $name"
    else
        echo "DIFFERENT  $name"
        different=1
    fi
done
exit $different
