#!/usr/bin/env bash
# Compile the published crates, ringloop-http and their tests with the oldest versions of their dependencies that Cargo.toml allows,
# and run the tests of the driver and of ringloop-http, whose dependencies decide what they do. Then check that the whole workspace,
# and the lab's, compile with the oldest Rust that they allow, if rustup has that one.
# usage: tools/minimal_versions.sh [ARGUMENT OF CARGO TEST...]
# It works on a copy, because cargo chooses versions by writing Cargo.lock. To choose the oldest is an option of nightly cargo's;
# RUSTC_BOOTSTRAP=1 lets a stable one have it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

repository=$PWD
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
folder=$target/minimal-versions
rm -rf "$folder/copy"
mkdir -p "$folder/copy/crates"
cp -r crates/ringloop-driver crates/ringloop-reactor crates/ringloop crates/ringloop-http "$folder/copy/crates"
# Files that the tests of ringloop-http include.
cp --parents crates/ringloop-python/src/{reserve,tls/records}.rs "$folder/copy"
# The guide is tested as documentation of a crate.
cp -r docs "$folder/copy"
sed 's|^members = .*|members = ["crates/ringloop-driver", "crates/ringloop-reactor", "crates/ringloop", "crates/ringloop-http"]|' Cargo.toml >"$folder/copy/Cargo.toml"
cd "$folder/copy"
RUSTC_BOOTSTRAP=1 cargo update --quiet -Z direct-minimal-versions
export CARGO_TARGET_DIR=$folder/build
cargo check --locked --all-features --all-targets
cargo test --locked -p ringloop-driver -p ringloop-http --all-features --no-fail-fast "$@"

cd "$repository"
oldest=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
if rustup run "$oldest" true 2>/dev/null; then
    CARGO_TARGET_DIR=$target/oldest-rust rustup run "$oldest" cargo check --locked --workspace --all-features
    (cd lab && CARGO_TARGET_DIR=$target/oldest-rust rustup run "$oldest" cargo check --locked --workspace)
else
    echo "minimal_versions.sh: left out: Rust $oldest, because rustup does not have it (rustup toolchain install $oldest)"
fi
