#!/usr/bin/env bash
# Run the Rust tests of the driver, the reactor and the runtime under a sanitizer, or the parts that need no kernel under Miri or Valgrind.
# usage: tools/sanitize.sh address|thread|miri|memcheck [--threads] [ARGUMENT OF CARGO TEST...]
# With --threads, the unit tests run, and the tests in which threads interact. Without it, and without --lib or --test among the
# arguments, all tests run. Exits with 0 if they passed, and with 77 if something is missing; a message on stderr says what.
#
# AddressSanitizer needs a toolchain of rustup's, nightly or stable. ThreadSanitizer needs a nightly one with its
# standard library's source; if the library is not instrumented, it does not recognise a mutex that a thread had to wait
# for. Another toolchain with that source, such as Debian's rustc and rust-src, works for both with RUSTC_BOOTSTRAP=1.
# ThreadSanitizer does not see the order that the kernel guarantees. The contract tests check that an operation's buffer
# is written before its completion is read.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

kind=${1:?usage: tools/sanitize.sh address|thread|miri|memcheck}
shift
if [ "${1:-}" = --threads ]; then
    shift
    set -- --lib --test contract --test processes --test reactor --test runtime --test pool "$@"
fi
target=$(rustc -vV | sed -n 's/^host: //p')
folder=${CARGO_TARGET_DIR:-target}/$kind

lacks() {
    echo "$kind: left out: $*" >&2
    exit 77
}

# The parts that need no kernel: timers, tokens, the bits of an event, a task's state.
without_kernel=(timers:: token:: event:: task::)

case $kind in
miri)
    cargo +nightly miri --version >/dev/null 2>&1 || lacks 'Miri is not installed (rustup +nightly component add miri)'
    exec env MIRIFLAGS=-Zmiri-disable-isolation cargo +nightly miri test --locked --target-dir "$folder" \
        -p ringloop-driver -p ringloop-reactor -p ringloop --lib "$@" -- "${without_kernel[@]}"
    ;;
memcheck)
    command -v valgrind >/dev/null || lacks 'Valgrind is not installed'
    runner=CARGO_TARGET_$(tr 'a-z-' 'A-Z_' <<<"$target")_RUNNER
    # The test harness leaves memory that is reported as possibly lost.
    export "$runner=valgrind --quiet --error-exitcode=1 --leak-check=full --show-leak-kinds=definite --errors-for-leak-kinds=definite"
    exec env PROPTEST_CASES=8 cargo test --locked -p ringloop-driver -p ringloop-reactor -p ringloop --all-features --lib "$@" -- "${without_kernel[@]}"
    ;;
address | thread) ;;
*) echo "unknown: $kind" >&2; exit 1 ;;
esac

short=${kind:0:1}san
# Stable toolchains have the sanitizers' runtime libraries, too; only the compiler's flag needs nightly.
if [ "$kind" = address ] && ! rustc +nightly --version >/dev/null 2>&1 &&
    compgen -G "$(rustc --print sysroot)/lib/rustlib/$target/lib/librustc*_rt.$short.a" >/dev/null; then
    export RUSTC_BOOTSTRAP=1
fi
if [ "${RUSTC_BOOTSTRAP:-}" = 1 ]; then
    cargo=(cargo) rustc=(rustc)
elif rustc +nightly --version >/dev/null 2>&1; then
    cargo=(cargo +nightly) rustc=(rustc +nightly)
else
    lacks 'there is no nightly Rust (rustup toolchain install nightly)'
fi
libraries=$("${rustc[@]}" --print sysroot)/lib/rustlib
flags=(-Zsanitizer="$kind")
cargo_flags=()
if [ -e "$libraries/src/rust/library/Cargo.lock" ]; then
    cargo_flags+=(-Zbuild-std)
elif [ "$kind" = thread ]; then
    lacks "the standard library's source is not installed (rustup +nightly component add rust-src)"
fi
if ! compgen -G "$libraries/$target/lib/librustc*_rt.$short.a" >/dev/null; then
    clang -print-file-name="libclang_rt.$short-${target%%-*}.a" 2>/dev/null | grep -q / ||
        lacks "neither Rust nor clang has the sanitizer's runtime library"
    flags+=(-Zexternal-clangrt -Clinker=clang "-Clink-arg=-fsanitize=$kind")
fi

# Check that the sanitizer reports an error that is really there.
mkdir -p "$folder"
cat >"$folder/control.rs" <<'RUST'
use std::hint::black_box;

static mut SHARED: u64 = 0;

fn race() {
    let add = || (0..100_000).for_each(|_| unsafe { SHARED = black_box(SHARED + 1) });
    let thread = std::thread::spawn(add);
    add();
    thread.join().unwrap();
}

fn main() {
    race();
    let freed = black_box(Box::into_raw(Box::new(7_u64)));
    drop(unsafe { Box::from_raw(freed) });
    black_box(unsafe { freed.read_volatile() });
}
RUST
control_flags=("${flags[@]}")
[ "$kind" = address ] || control_flags+=(-Cunsafe-allow-abi-mismatch=sanitizer)
"${rustc[@]}" --edition 2024 --target "$target" "${control_flags[@]}" -o "$folder/control" "$folder/control.rs"
if findings=$("$folder/control" 2>&1) || ! grep -qE 'SUMMARY: .*(heap-use-after-free|data race)' <<<"$findings"; then
    echo "$kind: the sanitizer did not report a deliberate error" >&2
    exit 1
fi

skipped=()
# ThreadSanitizer defers signals until a system call that it knows to block; it does not know io_uring_enter.
[ "$kind" = address ] || skipped=(--skip no_signal_is_lost_however_they_are_timed)
export RUSTFLAGS="${flags[*]}" LSAN_OPTIONS="suppressions=$PWD/tools/sanitizers/leaks.txt:print_suppressions=0"
# Tests fork, and their children start threads.
export TSAN_OPTIONS=die_after_fork=0
export PROPTEST_CASES=${PROPTEST_CASES:-32}
# Tests that measure the memory and time of idle connections make no sense under a sanitizer.
export RINGLOOP_TEST_SANITIZER=$kind
built=(--locked "${cargo_flags[@]}" --target "$target" --target-dir "$folder" -p ringloop-driver -p ringloop-reactor -p ringloop --all-features)
if [[ " $* " != *' --lib '* && " $* " != *' --test '* ]]; then
    set -- --tests "$@"
    # With --tests cargo builds no examples, but one of the tests runs them.
    "${cargo[@]}" build "${built[@]}" --examples
fi
exec "${cargo[@]}" test "${built[@]}" --no-fail-fast "$@" -- "${skipped[@]}"
