"""The program behind `make conformance`, on a package of tests that end in every possible way."""

import json
import os
import subprocess
import sys
import textwrap

import pytest

from support import PATIENCE_S, REPOSITORY

PROGRAM = REPOSITORY / "tools" / "conformance.py"
BACKENDS = ("io_uring", "epoll")

TESTS = """
    import asyncio, os, selectors, signal, sys, unittest

    STOCK = asyncio.unix_events._UnixSelectorEventLoop

    class Ends(unittest.TestCase):
        def create_event_loop(self):
            return asyncio.SelectorEventLoop(selectors.SelectSelector())

        def setUp(self):
            self.loop = self.create_event_loop()
            self.addCleanup(self.loop.close)

        def on_ringloop(self):
            return type(self.loop) is not STOCK

        def test_passes(self):
            print("noise")
            self.assertEqual(self.loop.run_until_complete(asyncio.sleep(0, 42)), 42)

        def test_fails(self):
            print("the output")
            self.assertFalse(self.on_ringloop(), "the message")

        def test_fails_on_asyncio_too(self):
            self.fail()

        def test_is_skipped(self):
            self.skipTest("the reason of CPython's")

        def test_fails_and_is_skipped_in_part(self):
            with self.subTest("one"):
                self.skipTest("in part")
            with self.subTest("two"):
                self.assertFalse(self.on_ringloop())

        @unittest.expectedFailure
        def test_passes_unexpectedly(self):
            self.assertTrue(self.on_ringloop())

        def test_crashes(self):
            if self.on_ringloop():
                os.kill(os.getpid(), signal.SIGSEGV)

        def test_ends_the_process(self):
            if self.on_ringloop():
                os._exit(0)

        def test_exits(self):
            if self.on_ringloop():
                sys.exit("out")

        def test_makes_asyncios_own_loop(self):
            STOCK().close()

        def test_is_left_out(self):
            self.fail("it was run")

    class NewLoop(unittest.TestCase):
        def test_new_event_loop(self):
            self.assertEqual(type(asyncio.new_event_loop()).__module__, "ringloop._loop")

    class Async(unittest.IsolatedAsyncioTestCase):
        async def test_async(self):
            self.assertIsNot(type(asyncio.get_running_loop()), STOCK)

    class NoLoop(unittest.TestCase):
        def test_nothing(self):
            pass

    class Hangs(unittest.TestCase):
        def test_hangs(self):
            loop = asyncio.new_event_loop()
            if type(loop) is not STOCK:
                os.posix_spawn("/bin/sleep", ["sleep", "3600"], {})
                loop.run_forever()
"""

SETTINGS = """
    [[left_out]]
    tests = ["test_ends.Ends.test_is_left_out"]
    reason = "the reason of ours"
"""


@pytest.fixture
def conformance(tmp_path):
    """Return a function that runs the program on the tests above.

    Its result is the CompletedProcess and, by (test, backend), the outcomes.
    """
    package = tmp_path / "endings"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "test_ends.py").write_text(textwrap.dedent(TESTS))
    (package / "test_absent.py").write_text("import unittest\nraise unittest.SkipTest('not on this system')\n")
    report = tmp_path / "report.json"

    def run(*arguments, settings=SETTINGS, package="endings"):
        (tmp_path / "settings.toml").write_text(textwrap.dedent(settings))
        command = [sys.executable, str(PROGRAM), "--package", package, "--settings", str(tmp_path / "settings.toml")]
        completed = subprocess.run(
            [*command, "--json", str(report), *arguments],
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S * 2,
        )
        outcomes = json.loads(report.read_text())["tests"] if report.exists() else []
        return completed, {
            (outcome["test"].removeprefix("test_ends."), outcome["backend"]): outcome for outcome in outcomes
        }

    return run


def test_each_test_ends_as_it_should(conformance):
    completed, outcomes = conformance(
        "--verbose", "test_absent", "test_ends.Ends", "test_ends.NoLoop", "test_ends.Async"
    )
    backends = [backend for backend in BACKENDS if ("Ends.test_passes", backend) in outcomes]
    assert "epoll" in backends, completed.stdout + completed.stderr
    expected = {
        "test_absent": ("skipped", "not on this system"),
        "Ends.test_passes": ("passed", ""),
        "Ends.test_fails": ("failed", "AssertionError: True is not false : the message\n--- output ---\nthe output"),
        "Ends.test_fails_on_asyncio_too": ("failed", "AssertionError: None"),
        "Ends.test_is_skipped": ("skipped", "the reason of CPython's"),
        "Ends.test_fails_and_is_skipped_in_part": ("failed", "AssertionError: True is not false"),
        "Ends.test_passes_unexpectedly": ("failed", "the test is marked as an expected failure, and passed"),
        "Ends.test_crashes": ("failed", "crashed: SIGSEGV"),
        "Ends.test_ends_the_process": ("failed", "the process ended with 0 before the test did"),
        "Ends.test_exits": ("failed", "SystemExit: out"),
        "Ends.test_makes_asyncios_own_loop": ("failed", "ringloop's was not plugged in everywhere"),
        "Ends.test_is_left_out": ("left out", "the reason of ours"),
        "Async.test_async": ("passed", ""),
        "NoLoop.test_nothing": ("no loop", ""),
    }
    assert set(outcomes) == {(test, backend) for test in expected for backend in backends}
    for (test, backend), outcome in outcomes.items():
        status, text = expected[test]
        assert (outcome["status"], text in outcome["detail"]) == (status, True), (test, backend, outcome)
        assert outcome["fails_on_asyncio"] == (test == "Ends.test_fails_on_asyncio_too")
    assert completed.returncode == 1
    failures = 7 * len(backends)
    assert f"{2 * len(backends)} passed, {failures} failed" in completed.stdout
    assert completed.stdout.count("\nFAILED ") == failures
    assert "Fail on stock asyncio too, here:\n  test_ends.Ends.test_fails_on_asyncio_too\n" in completed.stdout
    assert "  the reason of ours\n    test_ends.Ends.test_is_left_out\n" in completed.stdout
    assert "  the reason of CPython's\n    test_ends.Ends.test_is_skipped\n" in completed.stdout


def test_what_hangs_is_ended_with_a_traceback(conformance):
    completed, outcomes = conformance("--backend", "epoll", "--timeout", "0.5", "test_ends.Hangs")
    (outcome,) = outcomes.values()
    assert outcome["status"] == "failed"
    assert outcome["detail"].startswith("timed out after 0.5 s\n--- output ---\nFatal Python error: Aborted")
    assert "in test_hangs" in outcome["detail"]
    assert not outcome["fails_on_asyncio"]
    assert completed.returncode == 1


def test_all_is_well(conformance):
    completed, outcomes = conformance("--backend", "epoll", "-k", "NewLoop*event_loop")
    assert [outcome["status"] for outcome in outcomes.values()] == ["passed"]
    assert (completed.returncode, completed.stderr) == (0, "")


def test_the_control_runs_on_asyncio(conformance):
    completed, outcomes = conformance("--backend", "asyncio", "test_ends.NewLoop", "test_ends.Ends.test_crashes")
    assert {test: outcome["status"] for (test, _), outcome in outcomes.items()} == {
        "NewLoop.test_new_event_loop": "failed",
        "Ends.test_crashes": "passed",
    }
    assert completed.returncode == 1


def test_list(conformance):
    completed, _ = conformance("--list", "-k", "NoLoop")
    assert (completed.returncode, completed.stdout) == (0, "test_ends.NoLoop.test_nothing\n")


@pytest.mark.many_cases(short=1)
@pytest.mark.parametrize(
    "arguments, settings, problem",
    [
        ((), "[[left_out]]\ntests = ['test_ends.Ends.test_gone']\nreason = 'x'", "does not exist in this Python: test_ends.Ends.test_gone"),
        ((), "[modules_left_out]\ntest_gone = 'x'", "does not exist in this Python: test_gone"),
        ((), "[[left_out]]\ntests = ['test_ends.*']\nreason = ' '", "no reason is given"),
        (("test_ends.Ends.test_pass",), SETTINGS, "no test fits"),
        (("test_ends.NoLoop",), SETTINGS, "not one test ran on the loop"),
        (("--backend", "epoll", "--backend", "asyncio"), SETTINGS, "--backend asyncio cannot be combined"),
    ],
    ids=["stale test", "stale module", "no reason", "no such test", "no loop made", "both"],
)  # fmt: skip
def test_refusals(conformance, arguments, settings, problem):
    completed, _ = conformance(*arguments, settings=settings)
    assert completed.returncode == 2
    assert problem in completed.stderr
    assert completed.stderr.startswith("conformance: ")


def test_an_entry_for_another_python_is_not_stale(conformance):
    entry = "[[left_out]]\ntests = ['test_gone.*']\nreason = 'x'\n"
    assert conformance("--list", settings=entry + "python = ['3.10']")[0].returncode == 0


def test_an_entry_for_a_test_that_only_some_releases_have_is_not_stale(conformance):
    entry = "[[left_out]]\ntests = ['test_gone.*']\nreason = 'x'\n"
    assert conformance("--list", settings=entry + "may_be_absent = true")[0].returncode == 0


def test_a_python_without_its_tests(conformance):
    completed, _ = conformance(package="test.test_nothing_of_the_kind")
    assert completed.returncode == 2
    assert "libpython{}.{}-testsuite".format(*sys.version_info) in completed.stderr
