#!/usr/bin/env bash
# Run a Python program, or the tests of threads, on ringloop with ThreadSanitizer in Python and in the extension.
# usage: tools/tsan_python.sh PYTHON [ARGUMENT OF PYTHON...]
#   PYTHON    a CPython configured with --disable-gil --with-thread-sanitizer, 3.14 or later
# Without further arguments it runs the tests in tests/threads on ringloop's loops, which takes hours; the packages that they need must
# be importable (PYTHONPATH).
# Paths of programs are relative to the repository. Reports go to target/tsan-python/report.*, and the last line on stdout counts
# them. Exits with 1 if the extension is among the three innermost frames of a stack in a report, with 77 if PYTHON is not such a
# CPython, and otherwise as the program does.
#
# The extension is built by the stable compiler (RUSTC_BOOTSTRAP=1), and its standard library is not instrumented: where a
# thread has waited for a std::sync::Mutex, ThreadSanitizer does not see that it now holds the lock. tools/sanitizers/threads.txt
# leaves out what such a Mutex guards.
set -euo pipefail
python=$(realpath "$(command -v "${1:?usage: tools/tsan_python.sh PYTHON [ARGUMENT OF PYTHON...]}")")
shift
cd "$(dirname "${BASH_SOURCE[0]}")/.."

folder=$PWD/target/tsan-python
# Random addresses leave ThreadSanitizer no room on kernels from 6.6 on.
fixed=(setarch --addr-no-randomize)

lacks() {
    echo "tsan_python: left out: $*" >&2
    exit 77
}

config() { "${fixed[@]}" "$python" -c "import sysconfig; print(sysconfig.get_config_var('$1') or '')"; }

[[ $(config CONFIG_ARGS) == *thread-sanitizer* ]] || lacks "$python was not configured with --with-thread-sanitizer"
[ "$(config Py_GIL_DISABLED)" = 1 ] || lacks "$python was not configured with --disable-gil"

rm -rf "$folder/package"
mkdir -p "$folder/package"
rm -f "$folder"/report.*
target=$(rustc -vV | sed -n 's/^host: //p')
env RUSTC_BOOTSTRAP=1 RUSTFLAGS='-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer' TSAN_OPTIONS=report_bugs=0 \
    PYO3_BUILD_EXTENSION_MODULE=1 PYO3_PYTHON="$python" CARGO_PROFILE_RELEASE_LTO=off \
    "${fixed[@]}" cargo build --release --locked --target "$target" --target-dir "$folder" -p ringloop-python
cp -r python/ringloop "$folder/package"
rm -f "$folder"/package/ringloop/_core.*.so
cp "$folder/$target/release/lib_core.so" "$folder/package/ringloop/_core$(config EXT_SUFFIX)"

# GCC's runtime library has no names of its own for the functions that the compiler of Rust calls to copy and fill memory.
if [[ $(ldd "$python") == *libtsan* ]]; then
    cc -O1 -fno-builtin -fPIC -shared -x c -o "$folder/memory.so" - <<'C'
#include <string.h>

void *__tsan_memcpy(void *to, const void *from, size_t length) { return memcpy(to, from, length); }
void *__tsan_memmove(void *to, const void *from, size_t length) { return memmove(to, from, length); }
void *__tsan_memset(void *at, int byte, size_t length) { return memset(at, byte, length); }
C
    export LD_PRELOAD=$folder/memory.so
fi

# CPython's own reports are left out by its suppressions, if its source is beside it.
cat tools/sanitizers/threads.txt "$(dirname "$python")"/Tools/tsan/suppressions_free_threading.txt >"$folder/suppressions.txt" 2>/dev/null || true
export PYTHONPATH=$folder/package${PYTHONPATH:+:$PYTHONPATH} PYTHONDONTWRITEBYTECODE=1
export TSAN_OPTIONS="suppressions=$folder/suppressions.txt log_path=$folder/report exitcode=0 history_size=4"
if [ $# = 0 ]; then
    export RINGLOOP_TEST_EXAMPLES=${RINGLOOP_TEST_EXAMPLES:-1}
    set -- -m pytest -p no:cacheprovider --timeout 3600 tests/threads -k 'not asyncio'
fi
status=0
"${fixed[@]}" "$python" "$@" || status=$?

reports=0 ours=0
for file in "$folder"/report.*; do
    [ -e "$file" ] || continue
    reports=$((reports + $(grep -c '^WARNING: ThreadSanitizer' "$file" || true)))
    ours=$((ours + $(awk '/^WARNING: ThreadSanitizer/ { named = 0 } /_core\.[^ ]*\.so/ && / #[0-2] / { named = 1 } /^SUMMARY/ { found += named } END { print found + 0 }' "$file")))
done
echo "ThreadSanitizer: $reports reports, $ours of them of ringloop's extension; in $folder/report.*"
[ "$ours" = 0 ] || exit 1
exit "$status"
