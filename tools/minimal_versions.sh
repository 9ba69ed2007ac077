#!/usr/bin/env bash
# Run the Rust tests of the published crates, and of ringloop-http, with the oldest versions of their dependencies that
# Cargo.toml allows.
# usage: tools/minimal_versions.sh [ARGUMENT OF CARGO TEST...]
# It works on a copy, because cargo chooses versions by writing Cargo.lock. To choose the oldest is an option of nightly cargo's;
# RUSTC_BOOTSTRAP=1 lets a stable one have it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

folder=${CARGO_TARGET_DIR:-target}/minimal-versions
rm -rf "$folder/copy"
mkdir -p "$folder/copy/crates"
cp -r crates/ringloop-driver crates/ringloop crates/ringloop-http "$folder/copy/crates"
# A file that the tests of ringloop-http include.
cp --parents crates/ringloop-python/src/tls/records.rs "$folder/copy"
# The guide is tested as documentation of a crate.
cp -r docs "$folder/copy"
sed 's|^members = .*|members = ["crates/ringloop-driver", "crates/ringloop", "crates/ringloop-http"]|' Cargo.toml >"$folder/copy/Cargo.toml"
cd "$folder/copy"
RUSTC_BOOTSTRAP=1 cargo update --quiet -Z direct-minimal-versions
CARGO_TARGET_DIR=$PWD/../build exec cargo test --locked --all-features --no-fail-fast "$@"
