#!/usr/bin/env bash
# Build what a release consists of twice, from two copies of the last commit in different folders, and compare the files byte for
# byte: a wheel for this machine and the given Python, ringlab's wheel for this machine, both source distributions, and the crates.
# usage: tools/reproducible.sh PYTHON [--fast]
# PYTHON is that of an environment with the group `wheels`. Without further arguments the wheels are those that are published;
# --fast takes a fraction of the time.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=$(realpath -s "${1:?usage: tools/reproducible.sh PYTHON [--fast]}")
shift
commit=$(git rev-parse HEAD)
folder=$(mktemp -d "${TMPDIR:-/tmp}/reproducible.XXXXXX")
trap 'rm -rf "$folder"' EXIT
[ -z "$(git status --porcelain)" ] || echo 'reproducible.sh: uncommitted changes are not built' >&2

build() { # build NAME
    local copy=$folder/$1 output=$folder/$1.output
    # With a repository, because ringlab's package has the files that git knows.
    git clone --quiet --shared --no-checkout . "$copy"
    git -C "$copy" checkout --quiet --detach "$commit"
    mkdir -p "$output"
    shift
    (
        cd "$copy"
        export CARGO_TARGET_DIR=$copy/target
        "$python" tools/wheels.py --here --output "$output" "$@"
        "$python" -m maturin sdist --out "$output"
        "$python" tools/ringlab_packages.py --here --output "$output" "$@"
        cargo package --quiet --locked --no-verify -p ringloop-driver -p ringloop-reactor -p ringloop
        cp target/package/*.crate "$output"
    )
}

build one "$@"
# Another length of the path, and another time of day.
build the-second-of-two "$@"
different=0
for file in "$folder"/one.output/*; do
    name=${file##*/}
    if cmp --silent "$file" "$folder/the-second-of-two.output/$name"; then
        echo "equal      $(sha256sum "$file" | cut -c1-16)  $name"
    else
        echo "DIFFERENT  $name"
        different=1
    fi
done
exit $different
