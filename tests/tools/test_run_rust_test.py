"""tools/run_rust_test.py on programs that print what Rust's test harness prints."""

import json
import subprocess
import sys

import pytest

from support import PATIENCE_S, REPOSITORY

HARNESS = """#!{python}
import os, pathlib, sys
mark = pathlib.Path(__file__).with_name("mark")
again = mark.exists()
mark.touch()
if "--exact" in sys.argv:
    assert "--test-threads=1" in sys.argv
{body}
"""


@pytest.fixture
def run(tmp_path):
    """Return a function that runs a program as cargo does, and returns the exit status, the output, and the records by name."""

    def run_program(body, name="some_tests-0123456789abcdef", **variables):
        program = tmp_path / "deps" / name
        program.parent.mkdir()
        program.write_text(HARNESS.format(python=sys.executable, body=body))
        program.chmod(0o755)
        command = [sys.executable, REPOSITORY / "tools/run_rust_test.py", program]
        environment = {"RINGLOOP_RECORD": str(tmp_path / "record.jsonl"), **variables}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)
        record = tmp_path / "record.jsonl"
        records = [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []
        return done.returncode, done.stdout, {record["name"]: record for record in records}

    return run_program


def test_results_and_times_are_recorded(run):
    status, _, records = run(
        """
print("running 3 tests")
print("test module::passes ... ok <0.250s>")
print("test panics - should panic ... ok <0.001s>")
print("test waits ... ignored, a reason")
"""
    )
    assert status == 0
    assert {name: (record["outcome"], record["wall_s"]) for name, record in records.items()} == {
        "some_tests::module::passes": ("passed", 0.25),
        "some_tests::panics": ("passed", 0.001),
        "some_tests::waits": ("skipped", 0.0),
    }


def test_what_passes_twice_alone_is_flaky(run):
    status, output, records = run(
        """
print("test one ... ok <0.001s>" if again else "test one ... FAILED <0.001s>")
sys.exit(0 if again else 101)
"""
    )
    assert status == 0
    assert "FLAKY some_tests::one" in output
    assert records["some_tests::one"]["outcome"] == "flaky"


def test_a_failure_behind_a_test_that_is_ignored_for_a_reason_is_seen(run):
    status, output, records = run(
        """
print("test waits ... ignored, a reason")
print("test one ... ok <0.001s>" if again else "test one ... FAILED <0.001s>")
sys.exit(0 if again else 101)
"""
    )
    assert status == 0
    assert "FLAKY some_tests::one" in output
    assert {name: record["outcome"] for name, record in records.items()} == {
        "some_tests::waits": "skipped",
        "some_tests::one": "flaky",
    }


def test_what_fails_again_keeps_the_status(run):
    status, _, records = run("print('test one ... FAILED <0.001s>')\nsys.exit(101)")
    assert status == 101
    assert records["some_tests::one"]["outcome"] == "failed"


def test_exact_tests_are_never_run_again(run):
    body = "print('test dropping ... FAILED <0.001s>')\nsys.exit(0 if again else 101)"
    status, output, _ = run(body, name="cancellation-0123456789abcdef")
    assert status == 101
    assert "never run again" in output


PARTS = """
NAMES = ["panics::panics_are_counted_once_wherever_they_are_and_end_no_worker", "panics::one", "two"]
if "--list" in sys.argv:
    print("".join(f"{name}: test\\n" for name in NAMES))
    sys.exit()
words = sys.argv[1:]
skipped = [words[index + 1] for index, word in enumerate(words) if word == "--skip"]
wanted = [word for word in words if word in NAMES and word not in skipped]
for name in NAMES:
    if name in wanted or not wanted and name not in skipped:
        print(f"test {name} ... ok <0.001s>")
"""


def test_each_test_is_in_one_part(run):
    _, _, short = run(PARTS, name="server-0123456789abcdef", RINGLOOP_TEST_PART="short")
    assert set(short) == {"server::panics::one", "server::two"}


def test_long_tests_are_those_that_the_workspace_names(run):
    status, _, long = run(PARTS, name="server-0123456789abcdef", RINGLOOP_TEST_PART="long")
    assert status == 0
    assert set(long) == {"server::panics::panics_are_counted_once_wherever_they_are_and_end_no_worker"}


def test_a_program_without_long_tests_has_nothing_to_run_in_that_part(run):
    """It isn't asked for its tests either: without Rust's harness it would run."""
    body = "print('test it ... ok <0.001s>')\nassert '--list' not in sys.argv"
    assert run(body, RINGLOOP_TEST_PART="long") == (0, "", {})


def test_a_program_without_long_tests_is_run_whole_in_the_other_part(run):
    body = "print('test it ... ok <0.001s>')\nassert '--list' not in sys.argv"
    assert run(body, RINGLOOP_TEST_PART="short")[0] == 0


def test_a_crash_is_never_excused(run):
    status, _, _ = run("if not again:\n    sys.stdout.flush()\n    os.abort()")
    assert status == 128 + 6


def test_a_failure_without_a_failed_test_keeps_the_status(run):
    assert run("print('test one ... ok <0.001s>')\nsys.exit(101)")[0] == 101
