"""tools/run_pytest.py on small files of tests: what passes alone is excused, but no test of a race, no crash and no large number."""

import json
import shutil
import subprocess
import sys

import pytest

from support import PATIENCE_S, REPOSITORY

HEAD = """
import os, pathlib, pytest

def fail_at_first(name):
    mark = pathlib.Path(__file__).with_name(name)
    if not mark.exists():
        mark.touch()
        print("what it printed")
        raise AssertionError("the message")
"""


@pytest.fixture
def run(tmp_path):
    """Return a function that runs a file of tests, and returns the exit status, the output, and the record of each test by its name."""
    shutil.copy(REPOSITORY / "conftest.py", tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --disable-plugin-autoload -p xdist\n")

    def run_tests(tests, *arguments):
        (tmp_path / "test_it.py").write_text(HEAD + tests)
        command = [sys.executable, REPOSITORY / "tools/run_pytest.py", "--record", tmp_path / "record", *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S)
        lines = (tmp_path / "record.jsonl").read_text().splitlines()
        records = {record["name"].partition("::")[2]: record for record in map(json.loads, lines)}
        return done.returncode, done.stdout, records

    return run_tests


def test_what_passes_twice_alone_is_flaky(run):
    tests = "def test_one(): fail_at_first('mark')\ndef test_two(): pass\n"
    status, output, records = run(tests, "--numprocesses", "2")
    assert status == 0, output
    assert "FLAKY test_it.py::test_one" in output
    assert records["test_one"]["outcome"] == "flaky"
    assert "the message" in records["test_one"]["output"]
    assert "what it printed" in records["test_one"]["output"]
    assert records["test_two"]["outcome"] == "passed"


@pytest.mark.long
def test_what_fails_again_alone_fails_the_run(run):
    status, output, records = run("def test_one(): assert False\n")
    assert status == 1
    assert "FAILED test_it.py::test_one: it failed again" in output
    assert records["test_one"]["outcome"] == "failed"


def test_the_record_says_how_each_test_ended_and_that_an_exact_one_counts(run):
    status, output, records = run(
        """
@pytest.fixture
def broken():
    yield
    assert False

def test_passes(): sum(range(3_000_000))
def test_skips(): pytest.skip("a reason")
def test_is_torn_down(broken): pass
@pytest.mark.exact
def test_is_exact(): fail_at_first("mark")
"""
    )
    assert status == 1
    assert "never run again, because a single failure is a defect: test_it.py::test_is_exact" in output
    assert {name: record["outcome"] for name, record in records.items()} == {
        "test_passes": "passed",
        "test_skips": "skipped",
        "test_is_torn_down": "failed",
        "test_is_exact": "failed",
    }
    assert records["test_passes"]["cpu_s"] > 0
    assert records["test_passes"]["wall_s"] > 0


@pytest.mark.long
def test_a_crash_is_never_excused(run):
    body = """
def test_one():
    mark = pathlib.Path("mark")
    if not mark.exists():
        mark.touch()
        os.abort()
"""
    status, output, _ = run(body, "--numprocesses", "1")
    assert status == 1
    assert "never run again" in output


def test_a_run_that_cannot_begin_keeps_pytests_status(run, tmp_path):
    (tmp_path / "record.jsonl").touch()
    status, _, records = run("import nothing_of_that_name\n")
    assert status == 2
    assert records == {}
