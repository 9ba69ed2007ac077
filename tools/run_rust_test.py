"""Run one program of Rust tests as cargo's runner, and run what failed again, alone.

`CARGO_TARGET_<TRIPLE>_RUNNER` names it, and cargo calls it with the program and its arguments. The record of each test is appended to the
file that RINGLOOP_RECORD names, if it names one. tools/test_records.py has the rules; which tests are exact, and which are long, is in
Cargo.toml, under `[workspace.metadata.tests]`. RINGLOOP_TEST_PART=short leaves the long ones out, and =long runs only these.
"""

from __future__ import annotations

import fnmatch
import os
import re
import resource
import subprocess
import sys
import tomllib
from pathlib import Path

import test_records

REPOSITORY = Path(__file__).resolve().parent.parent
RESULT = re.compile(
    r"^test (?P<name>.+?)(?: - should panic)? \.\.\. (?P<outcome>ok|FAILED|ignored)[^<\n]*(?:<(?P<wall_s>[\d.]+)s>)?$",
    re.MULTILINE,
)
TESTS_FAILED = 101
"""The exit status of Rust's test harness if tests failed."""
OUTCOMES = {"ok": "passed", "FAILED": "failed", "ignored": "skipped"}


def patterns_of(kind: str) -> list[str]:
    """Return patterns of the tests that are exact or long, as `program::path::of::test`."""
    with open(REPOSITORY / "Cargo.toml", "rb") as file:
        patterns: list[str] = tomllib.load(file)["workspace"]["metadata"]["tests"][kind]
    return patterns


def matches(name: str, patterns: list[str]) -> bool:
    """Say whether one of the patterns is that of a test."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def arguments_of(part: str, program: str, short: str) -> list[str] | None:
    """Return the arguments that choose a part of a program's tests, or None if that has none.

    The harness looks for these names within the names of tests, whether it runs or skips them: what one part skips, the other runs.
    """
    patterns = [pattern for pattern in patterns_of("long") if pattern.startswith(f"{short}::")]
    if not patterns:
        # It may be a program without the harness, which would not list its tests, but run.
        return None if part == "long" else []
    listed = subprocess.run([program, "--list", "--format", "terse"], stdout=subprocess.PIPE, text=True, check=True)
    names = [line.removesuffix(": test") for line in listed.stdout.splitlines() if line.endswith(": test")]
    long = [name for name in names if matches(f"{short}::{name}", patterns)]
    if part == "long":
        return long or None
    return [word for name in long for word in ("--skip", name)]


def run(command: list[str]) -> tuple[int, str]:
    """Run a test program, show its output, and return its exit status and its output."""
    # Rust's harness reports times only to those who say that they know that this may change.
    environment = {**os.environ, "RUSTC_BOOTSTRAP": "1"}
    lines = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True, errors="replace") as process:
        assert process.stdout is not None
        for line in process.stdout:
            sys.stdout.write(line)
            lines.append(line)
        sys.stdout.flush()
    return process.returncode, "".join(lines)


def main() -> int:
    """Run the program, and judge what failed."""
    program, arguments = sys.argv[1], sys.argv[2:]
    record_path = os.environ.get("RINGLOOP_RECORD")
    # Test programs are in cargo's folder deps. Examples and blocks of documentation are elsewhere.
    if record_path is None or Path(program).parent.name != "deps":
        os.execv(program, [program, *arguments])
    short = Path(program).name.rsplit("-", 1)[0]
    part = os.environ.get("RINGLOOP_TEST_PART")
    if part is not None:
        chosen = arguments_of(part, program, short)
        if chosen is None:
            return 0
        arguments = [*chosen, *arguments]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    status, output = run([program, "-Zunstable-options", "--report-time", *arguments])
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    patterns = patterns_of("exact")
    records = []
    for match in RESULT.finditer(output):
        name = f"{short}::{match['name']}"
        exact = matches(name, patterns)
        records.append(test_records.Record(name, OUTCOMES[match["outcome"]], exact, float(match["wall_s"] or 0)))
    if records:
        # The harness doesn't tell how much CPU time one test took. The first record has that of all of them.
        records[0].cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    if status == TESTS_FAILED:
        for record in records:
            record.output = output if record.outcome == "failed" else ""

        def run_alone(name: str) -> bool:
            return run([program, "--exact", name.removeprefix(f"{short}::"), "--test-threads=1"])[0] == 0

        if test_records.judge(records, run_alone) and any(record.outcome == "flaky" for record in records):
            status = 0
    test_records.write(Path(record_path), records, mode="a")
    # A negative status says which signal ended the program.
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main())
