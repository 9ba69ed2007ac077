"""Run CPython's own tests of asyncio on ringloop, and print what passed.

The tests are those of the running interpreter, `test.test_asyncio`, with ringloop's loop where asyncio's would be: as
`asyncio.SelectorEventLoop` and `asyncio.EventLoop`, as the default of `asyncio.new_event_loop()`, and as what
`create_event_loop()` of the test classes returns. Each test has a process of its own, forked from one that has all of
them imported, with a time limit, an empty working directory, and a process group that is killed afterwards.

A test counts only if a loop of ringloop's was made in its process; the others say nothing about ringloop, and stand in a
column of their own. What is left out on purpose stands in conformance.toml, with the reasons. What fails is run again on
asyncio: where it fails there too, the machine is to blame, and it is listed but not counted. The rest is run again, alone,
twice: what passes then is flaky (tools/test_records.py), and is listed, but not counted either.

Exits with 0 if no test failed, with 1 if one did, with 2 if nothing ran or an entry of conformance.toml fits no test.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import dataclasses
import faulthandler
import fnmatch
import functools
import gc
import importlib
import json
import os
import pkgutil
import platform
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import traceback
import types
import unittest
import warnings
from asyncio import base_events, unix_events
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import compatibility
import test_records

BACKENDS = ("io_uring", "epoll")
CONTROL = "asyncio"
SETTINGS = Path(__file__).with_suffix(".toml")
GRACE_S = 5
"""How long a test that has timed out may take to write its tracebacks."""


class UsageError(Exception):
    """A reason why the tests cannot be run at all."""


@dataclasses.dataclass(frozen=True)
class LeftOut:
    """Tests that are not run, and why."""

    pattern: str
    reason: str
    versions: tuple[str, ...]
    may_be_absent: bool

    @property
    def applies(self) -> bool:
        """Whether the entry applies to the running Python."""
        return not self.versions or "{}.{}".format(*sys.version_info) in self.versions

    def fits(self, name: str) -> bool:
        """Return whether the entry is about this test."""
        return fnmatch.fnmatchcase(name, self.pattern)


@dataclasses.dataclass
class Outcome:
    """How a test ended: `passed`, `failed`, `skipped` (by CPython), `no loop` (made none of ringloop's) or `left out`."""

    module: str
    test: str
    backend: str
    status: str
    seconds: float = 0.0
    detail: str = ""
    fails_on_asyncio: bool = False
    crashed: bool = False

    @property
    def counts_as_failure(self) -> bool:
        """Whether ringloop is to blame."""
        return self.status == "failed" and not self.fails_on_asyncio


def read_settings(path: Path) -> tuple[dict[str, str], list[LeftOut]]:
    """Read from a TOML file which modules (name: reason) and which tests are left out."""
    with open(path, "rb") as file:
        settings = tomllib.load(file)
    modules: dict[str, str] = settings.get("modules_left_out", {})
    entries = []
    for section in settings.get("left_out", []):
        if not section["reason"].strip():
            raise UsageError(f"{path}: no reason is given for leaving out {section['tests']}")
        versions, may_be_absent = tuple(section.get("python", ())), section.get("may_be_absent", False)
        entries += [LeftOut(test, section["reason"], versions, may_be_absent) for test in section["tests"]]
    return modules, entries


# Before the tests are imported.


def plug_in(loop_class: type[asyncio.AbstractEventLoop]) -> None:
    """Make asyncio create loops of `loop_class` wherever it would create its own."""
    stock = unix_events._UnixSelectorEventLoop
    for module in (asyncio, unix_events):
        for name, value in list(vars(module).items()):
            if value is stock and name != stock.__name__:
                setattr(module, name, loop_class)
    # The tests of the base class, and those of the runners, create their loops from these.
    asyncio.BaseEventLoop = loop_class  # type: ignore[assignment, misc]
    for value in list(vars(unix_events).values()):
        # The policy has another name in each version.
        if isinstance(value, type) and vars(value).get("_loop_factory") is stock:
            value._loop_factory = loop_class  # type: ignore[attr-defined]


def record_loops() -> list[type]:
    """Return a list to which the type of every loop is appended when it is made."""
    made: list[type] = []
    original = base_events.BaseEventLoop.__init__

    def __init__(self: Any) -> None:
        made.append(type(self))
        original(self)

    base_events.BaseEventLoop.__init__ = __init__  # type: ignore[method-assign]
    return made


class View(types.ModuleType):
    """A view of a module in which some attributes are replaced."""

    def __init__(self, module: types.ModuleType, **instead: object) -> None:
        super().__init__(module.__name__, module.__doc__)
        vars(self).update(instead)
        vars(self)["_module"] = module

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["_module"], name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(vars(self)["_module"], name, value)

    def __delattr__(self, name: str) -> None:
        delattr(vars(self)["_module"], name)


def find_modules(package_name: str) -> list[str]:
    """Return the names of the test modules in a package, such as `test_events`."""
    try:
        package = importlib.import_module(package_name)
    except unittest.SkipTest as skip:
        raise UsageError(f"{package_name} refuses to run here: {skip}") from None
    except ImportError as error:
        version = "{}.{}".format(*sys.version_info)
        raise UsageError(
            f"this Python ({sys.executable}) has no {package_name} ({error}); Debian and Ubuntu have it in the package"
            f" libpython{version}-testsuite, Fedora in python{version}-test; a Python built from source or by pyenv has it"
        ) from None
    return sorted(module.name for module in pkgutil.iter_modules(package.__path__) if module.name.startswith("test_"))


def flatten(suite: unittest.TestSuite | unittest.TestCase) -> Iterator[unittest.TestCase]:
    """Yield the tests in a suite of suites."""
    if isinstance(suite, unittest.TestCase):
        yield suite
    else:
        for part in suite:
            yield from flatten(part)


def load_module(package: str, name: str, plugged: bool) -> dict[str, unittest.TestCase]:
    """Import a test module and return its tests by name, such as `test_events.SelectEventLoopTests.test_call_later`."""
    module = importlib.import_module(f"{package}.{name}")
    if plugged:
        if name == "test_base_events":
            # It makes its loops from the base class; elsewhere that stands for asyncio's own methods.
            module.base_events = View(base_events, BaseEventLoop=asyncio.BaseEventLoop)  # type: ignore[attr-defined]
        for value in list(vars(module).values()):
            if isinstance(value, type) and issubclass(value, unittest.TestCase) and "create_event_loop" in vars(value):
                # Most of these hand a selector to the loop. `SelectorEventLoop` is ringloop's by now.
                value.create_event_loop = lambda self: asyncio.SelectorEventLoop()  # type: ignore[attr-defined]
    tests = flatten(unittest.defaultTestLoader.loadTestsFromModule(module))
    return {test.id().removeprefix(f"{package}."): test for test in tests}


# In the process of one test.


def run_in_child(test: unittest.TestCase, loop_class: type, made: list[type]) -> tuple[str, str]:
    """Run one test and return its status and details."""
    made.clear()
    result = unittest.TestResult()
    unittest.TestSuite([test]).run(result)
    # Garbage collection of loops and transports that the test left behind must not fail.
    del test
    gc.collect()
    problems = [text for _, text in result.errors + result.failures]
    if result.unexpectedSuccesses:
        problems.append("the test is marked as an expected failure, and passed")
    if problems:
        return "failed", "\n".join(problems)
    if result.skipped:
        return "skipped", "; ".join(reason for _, reason in result.skipped)
    stock = unix_events._UnixSelectorEventLoop
    if loop_class is not stock and stock in made:
        return "failed", "the test made a loop of asyncio's own: ringloop's was not plugged in everywhere"
    if not any(issubclass(kind, loop_class) for kind in made):
        return "no loop", ""
    return "passed", ""


def become_child(folder: str, backend: str, output: int) -> None:
    """Set up the forked process: its own session, folder and signals, and its output in a file."""
    os.setsid()
    os.chdir(folder)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    # A shell that runs this in the background has it ignore interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # SIGABRT is how the parent asks for tracebacks.
    faulthandler.enable(2)
    os.environ["RINGLOOP_BACKEND"] = backend
    # asyncio's messages say "<Task ... at file:line>"; unittest shows each warning, as CPython's test runner does.
    warnings.simplefilter("default")


# In the process that starts them.


@dataclasses.dataclass
class Running:
    """A running test, in its own process."""

    name: str
    pid: int
    pidfd: int
    output: int
    report: int
    folder: str
    started: float
    limit: float
    timed_out: bool = False


def read_all(descriptor: int) -> str:
    """Return the contents of a file, as text."""
    os.lseek(descriptor, 0, os.SEEK_SET)
    with open(descriptor, "rb", closefd=False) as file:
        return file.read().decode(errors="replace")


class Runner:
    """Runs tests in forked processes, several at a time, on one backend."""

    def __init__(
        self, backend: str, *, loop_class: type, made: list[type], jobs: int, timeout_s: float, folder: str
    ) -> None:
        self._backend = backend
        self._loop_class = loop_class
        self._made = made
        self._jobs = jobs
        self._timeout_s = timeout_s
        self._folder = folder
        self._running: dict[int, Running] = {}
        self._poll = select.poll()

    def run(self, tests: dict[str, unittest.TestCase]) -> Iterator[Outcome]:
        """Run all of the tests; yield each outcome as it comes."""
        waiting = collections.deque(tests.items())
        try:
            while waiting or self._running:
                while waiting and len(self._running) < self._jobs:
                    self._start(*waiting.popleft())
                now = time.monotonic()
                first = min(running.limit for running in self._running.values())
                for pidfd, _ in self._poll.poll(max(0.0, first - now) * 1000 + 1):
                    yield self._finish(self._running[pidfd])
                for running in list(self._running.values()):
                    if running.limit <= time.monotonic():
                        self._stop(running)
        finally:
            for running in list(self._running.values()):
                os.killpg(running.pid, signal.SIGKILL)
                self._finish(running)

    def _start(self, name: str, test: unittest.TestCase) -> None:
        output = os.memfd_create("output")
        report = os.memfd_create("report")
        folder = tempfile.mkdtemp(dir=self._folder)
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            self._child(test, folder, output, report)
        now = time.monotonic()
        pidfd = os.pidfd_open(pid)
        self._running[pidfd] = Running(name, pid, pidfd, output, report, folder, now, now + self._timeout_s)
        self._poll.register(pidfd, select.POLLIN)

    def _child(self, test: unittest.TestCase, folder: str, output: int, report: int) -> NoReturn:
        status = 1
        try:
            become_child(folder, self._backend, output)
            os.write(report, json.dumps(run_in_child(test, self._loop_class, self._made)).encode())
            status = 0
        except BaseException:
            # No exception may reach the parent's code, not even SystemExit.
            traceback.print_exc()
        finally:
            with contextlib.suppress(BaseException):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status)

    def _stop(self, running: Running) -> None:
        if running.timed_out:
            os.killpg(running.pid, signal.SIGKILL)
        else:
            running.timed_out = True
            with contextlib.suppress(ProcessLookupError):  # it has just ended, or does not lead a session yet
                os.kill(running.pid, signal.SIGABRT)
        running.limit = time.monotonic() + GRACE_S

    def _finish(self, running: Running) -> Outcome:
        seconds = time.monotonic() - running.started
        self._poll.unregister(running.pidfd)
        del self._running[running.pidfd]
        # Until the process is reaped, its number cannot be reused.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        _, wait_status = os.waitpid(running.pid, 0)
        output, report = read_all(running.output), read_all(running.report)
        for descriptor in (running.pidfd, running.output, running.report):
            os.close(descriptor)
        shutil.rmtree(running.folder, ignore_errors=True)
        code = os.waitstatus_to_exitcode(wait_status)
        crashed = code < 0 and not running.timed_out
        if running.timed_out:
            status, detail = "failed", f"timed out after {self._timeout_s:g} s"
        elif crashed:
            status, detail = "failed", f"crashed: {signal.Signals(-code).name}"
        elif not report:
            status, detail = "failed", f"the process ended with {code} before the test did"
        else:
            status, detail = json.loads(report)
        if status == "failed" and output.strip():
            detail = f"{detail.rstrip()}\n--- output ---\n{output.rstrip()}"
        module = running.name.split(".")[0]
        return Outcome(module, running.name, self._backend, status, seconds, detail, crashed=crashed)


def run_on_asyncio(tests: Sequence[str], arguments: argparse.Namespace) -> dict[str, str]:
    """Run these tests on stock asyncio, or all that the command line asks for, and return the status of each."""
    with tempfile.NamedTemporaryFile("r", suffix=".json") as file:
        command = [sys.executable, __file__, "--backend", CONTROL, "--json", file.name, "--jobs", str(arguments.jobs)]
        command += ["--timeout", str(arguments.timeout), "--package", arguments.package]
        command += ["--settings", str(arguments.settings)]
        command += ["--exact", *tests] if tests else []
        completed = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if completed.returncode not in (0, 1):
            raise UsageError(f"the control run on asyncio failed:\n{completed.stdout}")
        return {outcome["test"]: outcome["status"] for outcome in json.load(file)["tests"]}


def run_failed_again(
    failed: Sequence[Outcome], tests: dict[str, unittest.TestCase], make_runner: Callable[..., Runner]
) -> list[test_records.Record]:
    """Run these tests again, alone, turn those that are flaky into passed ones, and return the record of all of them."""

    def run_alone(name: str) -> bool:
        test, _, backend = name.rpartition(" on ")
        with tempfile.TemporaryDirectory(prefix="conformance-") as folder:
            (outcome,) = make_runner(backend, jobs=1, folder=folder).run({test: tests[test]})
        return outcome.status == "passed"

    records = [
        test_records.Record(
            f"{outcome.test} on {outcome.backend}", "failed", outcome.crashed, outcome.seconds, output=outcome.detail
        )
        for outcome in failed
        if outcome.test in tests
    ]
    test_records.judge(records, run_alone)
    flaky = {record.name for record in records if record.outcome == "flaky"}
    for outcome in failed:
        if f"{outcome.test} on {outcome.backend}" in flaky:
            outcome.status = "passed"
    return records


def describe(outcomes: Sequence[Outcome], control: dict[str, str]) -> dict[str, Any]:
    """Return what compatibility.py records; `control` is the status of each test on asyncio. What is left out counts there neither."""
    left_out = {outcome.test for outcome in outcomes if outcome.status == "left out"}
    ended = {CONTROL: {test: "left out" if test in left_out else status for test, status in control.items()}}
    for outcome in outcomes:
        ended.setdefault(outcome.backend, {})[outcome.test] = outcome.status
    loops: dict[str, dict[str, Any]] = {
        loop: {
            **{name.replace(" ", "_"): list(of_tests.values()).count(name) for name in RECORDED},
            "failed": sorted(test for test, status in of_tests.items() if status == "failed"),
        }
        for loop, of_tests in ended.items()
    }
    for outcome in outcomes:
        if outcome.status == "failed" and control.get(outcome.test) != "failed":
            verdict = "not ours" if outcome.fails_on_asyncio else "FAILED"
            loops[outcome.backend].setdefault("verdicts", {})[outcome.test] = verdict
    return {"suite": "CPython", "version": platform.python_version(), "loops": loops}


# Output.

RECORDED = ("passed", "skipped", "left out", "no loop")
COLUMNS = ("passed", "failed", "as asyncio", "skipped", "left out", "no loop")


def column(outcome: Outcome) -> str:
    """Return the column of the table in which an outcome is counted."""
    return "as asyncio" if outcome.fails_on_asyncio else outcome.status


def print_table(outcomes: Sequence[Outcome]) -> None:
    """Print a table: for each module and backend, how many tests passed, failed and so on."""
    counts: dict[tuple[str, str], collections.Counter[str]] = {}
    seconds: collections.Counter[tuple[str, str]] = collections.Counter()
    for outcome in outcomes:
        for key in ((outcome.module, outcome.backend), ("in all", outcome.backend)):
            counts.setdefault(key, collections.Counter())[column(outcome)] += 1
            seconds[key] += outcome.seconds  # type: ignore[assignment]
    width = max(len(module) for module, _ in counts)
    print(f"\n{'':{width}} {'':8}" + "".join(f" {name:>10}" for name in COLUMNS) + f" {'seconds':>8}")
    for key in sorted(counts, key=lambda key: (key[0] == "in all", key)):
        numbers = "".join(f" {counts[key][name] or '-':>10}" for name in COLUMNS)
        print(f"{key[0]:{width}} {key[1]:8}{numbers} {seconds[key]:8.1f}")
    print(
        "\nas asyncio: fails on stock asyncio too. skipped: by CPython itself. left out: by conformance.toml."
        "\nno loop: made no loop of ringloop's, and so says nothing about it."
    )


def print_skipped(outcomes: Sequence[Outcome]) -> None:
    """Print each of CPython's reasons once, with the tests that it applies to."""
    by_reason: dict[str, dict[str, None]] = {}
    for outcome in outcomes:
        if outcome.status == "skipped":
            by_reason.setdefault(outcome.detail, {})[outcome.test] = None
    print("\nSkipped by CPython:")
    for reason, tests in by_reason.items():
        print(f"  {reason}")
        for test in tests:
            print(f"    {test}")


def print_left_out(modules: dict[str, str], entries: Sequence[LeftOut], outcomes: Sequence[Outcome]) -> None:
    """Print what conformance.toml leaves out, and why, and how many tests that is."""
    left_out = {outcome.test for outcome in outcomes if outcome.status == "left out"}
    print("\nLeft out by conformance.toml:")
    for module, reason in modules.items():
        print(f"  {reason}\n    {module}")
    for reason in dict.fromkeys(entry.reason for entry in entries):
        patterns = {entry.pattern: sum(map(entry.fits, left_out)) for entry in entries if entry.reason == reason}
        if any(patterns.values()):
            print(f"  {reason}")
        for pattern, count in patterns.items():
            if count:
                print(f"    {pattern}" + (f" ({count} tests)" if count > 1 else ""))


def print_failures(outcomes: Sequence[Outcome]) -> None:
    """Print each failure with its traceback and output; of those that also fail on asyncio, only the names."""
    shared = {outcome.test: None for outcome in outcomes if outcome.fails_on_asyncio}
    if shared:
        print("\nFail on stock asyncio too, here:")
        for test in shared:
            print(f"  {test}")
    for outcome in outcomes:
        if outcome.counts_as_failure:
            print(f"\nFAILED {outcome.test} on {outcome.backend}")
            print("".join(f"    {line}\n" for line in outcome.detail.splitlines()), end="")


class Progress:
    """A line that shows the progress, if the output is a terminal."""

    def __init__(self, verbose: bool) -> None:
        self._done = 0
        self._failed = 0
        self._verbose = verbose
        self._live = sys.stderr.isatty() and not verbose

    def advance(self, outcome: Outcome) -> None:
        """Note that another test has ended."""
        self._done += 1
        self._failed += outcome.status == "failed"
        if self._verbose:
            print(f"{outcome.status:8} {outcome.backend:8} {outcome.seconds:7.2f} s  {outcome.test}", flush=True)
        elif self._live:
            text = f"{outcome.backend}: {self._done} done, {self._failed} failed  {outcome.test}"
            columns = shutil.get_terminal_size().columns
            print(f"\r\x1b[K{text[: columns - 1]}", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Remove the line."""
        if self._live:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


# The whole program.


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="conformance.py",
        description="Run CPython's own tests of asyncio on ringloop: the tests of the Python that runs this file.",
        epilog="What is left out, and why, stands in tools/conformance.toml.",
    )
    parser.add_argument(
        "tests",
        nargs="*",
        metavar="TEST",
        help="test_module, test_module.Class or test_module.Class.test; default: all",
    )
    parser.add_argument(
        "--backend",
        action="append",
        choices=[*BACKENDS, CONTROL],
        help="the arm to run, may be given twice; asyncio is the control (default: io_uring and epoll)",
    )
    parser.add_argument("-k", dest="pattern", help="only tests with this in their names; may have wildcards")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="tests at a time (default: %(default)s)")
    parser.add_argument("--timeout", type=float, default=60, metavar="S", help="per test (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every outcome into FILE as well")
    parser.add_argument(
        "--results", type=Path, metavar="FILE", help="put the figures into FILE, for compatibility.py; needs all tests"
    )
    parser.add_argument("--record", metavar="NAME", help="record what had to run again in target/records/NAME.jsonl")
    parser.add_argument("--list", action="store_true", help="name the tests that would run, and run none")
    parser.add_argument("--verbose", action="store_true", help="a line for each test, and CPython's skips in the end")
    parser.add_argument("--run-left-out", action="store_true", help="run what conformance.toml leaves out, too")
    # For the tests of this program, and for itself.
    parser.add_argument("--package", default="test.test_asyncio", help=argparse.SUPPRESS)
    parser.add_argument("--settings", type=Path, default=SETTINGS, help=argparse.SUPPRESS)
    parser.add_argument("--exact", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def choose_backends(asked: Sequence[str] | None) -> list[str]:
    """Return the arms to run. io_uring is left out, with a message, if it is refused and was not asked for."""
    if asked and CONTROL in asked:
        if len(set(asked)) > 1:
            raise UsageError(
                f"--backend {CONTROL} cannot be combined: the tests are imported with one loop or the other"
            )
        return [CONTROL]
    import ringloop

    chosen = []
    for backend in BACKENDS:
        if asked and backend not in asked:
            continue
        try:
            ringloop.new_event_loop(backend=backend).close()
        except OSError as error:
            if asked:
                raise UsageError(f"{backend} cannot be used here: {error}") from None
            print(f"{backend} is left out, because it cannot be used here: {error}")
        else:
            chosen.append(backend)
    return chosen


def is_wanted(name: str, arguments: argparse.Namespace) -> bool:
    """Return whether the command line asks for this test."""
    if arguments.tests:
        if arguments.exact:
            return name in arguments.tests
        if not any(name == wanted or name.startswith(f"{wanted}.") for wanted in arguments.tests):
            return False
    return not arguments.pattern or fnmatch.fnmatchcase(name, f"*{arguments.pattern}*")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and return its exit status."""
    arguments = parse_arguments(argv)
    try:
        return conform(arguments)
    except UsageError as error:
        print(f"conformance: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("conformance: interrupted", file=sys.stderr)
        return 130


def conform(arguments: argparse.Namespace) -> int:
    """Find the tests, run them, print the result."""
    backends = choose_backends(arguments.backend)
    if arguments.results and (tuple(backends) != BACKENDS or arguments.tests or arguments.pattern):
        raise UsageError("--results is for a run of all tests on both backends")
    plugged = backends != [CONTROL]
    modules_left_out, entries = read_settings(arguments.settings)
    entries = [entry for entry in entries if entry.applies]
    modules = find_modules(arguments.package)
    loop_class: type = unix_events._UnixSelectorEventLoop
    if plugged:
        import ringloop

        loop_class = ringloop.EventLoop
        plug_in(ringloop.EventLoop)
    made = record_loops()

    tests: dict[str, unittest.TestCase] = {}
    without_loop: set[str] = set()
    outcomes: list[Outcome] = []
    for module in modules:
        if module in modules_left_out:
            continue
        try:
            tests |= load_module(arguments.package, module, plugged)
        except unittest.SkipTest as skip:
            outcomes += [Outcome(module, module, backend, "skipped", detail=str(skip)) for backend in backends]
        except Exception:
            detail = traceback.format_exc()
            outcomes += [Outcome(module, module, backend, "failed", detail=detail) for backend in backends]

    stale = [module for module in modules_left_out if module not in modules]
    stale += [
        entry.pattern for entry in entries if not entry.may_be_absent and not any(entry.fits(name) for name in tests)
    ]
    if stale:
        raise UsageError(f"{arguments.settings.name} leaves out what does not exist in this Python: {', '.join(stale)}")
    outcomes = [outcome for outcome in outcomes if is_wanted(outcome.module, arguments)]
    tests = {name: test for name, test in tests.items() if is_wanted(name, arguments)}
    if plugged and not arguments.run_left_out:
        reasons = {name: entry.reason for entry in entries for name in tests if entry.fits(name)}
        for name, reason in reasons.items():
            del tests[name]
            outcomes += [Outcome(name.split(".")[0], name, backend, "left out", detail=reason) for backend in backends]
    if arguments.list:
        print("\n".join(tests))
        return 0
    if not tests:
        raise UsageError("no test fits")

    make_runner = functools.partial(Runner, loop_class=loop_class, made=made, timeout_s=arguments.timeout)
    progress = Progress(arguments.verbose)
    # A garbage collection in a child would copy every page that the parent has filled by importing.
    gc.collect()
    gc.freeze()
    with tempfile.TemporaryDirectory(prefix="conformance-") as folder:
        for backend in backends:
            runner = make_runner(backend, jobs=arguments.jobs, folder=folder)
            for outcome in runner.run({name: test for name, test in tests.items() if name not in without_loop}):
                outcomes.append(outcome)
                progress.advance(outcome)
            # A test that creates no loop on one backend creates none on the other.
            outcomes += [Outcome(name.split(".")[0], name, backend, "no loop") for name in without_loop]
            without_loop |= {outcome.test for outcome in outcomes if outcome.status == "no loop"}
    progress.end()

    failed = sorted({outcome.test for outcome in outcomes if outcome.status == "failed"} & tests.keys())
    if failed and plugged:
        shared = run_on_asyncio(failed, arguments)
        for outcome in outcomes:
            outcome.fails_on_asyncio = outcome.status == "failed" and shared.get(outcome.test) == "failed"
        records = run_failed_again([outcome for outcome in outcomes if outcome.counts_as_failure], tests, make_runner)
        if arguments.record:
            test_records.write(test_records.FOLDER / f"{arguments.record}.jsonl", records)

    if arguments.json:
        report = {"python": sys.version, "tests": [dataclasses.asdict(outcome) for outcome in outcomes]}
        arguments.json.write_text(json.dumps(report, indent=1))
    if arguments.results:
        compatibility.record(arguments.results, describe(outcomes, run_on_asyncio([], arguments)))
    print_failures(outcomes)
    if arguments.verbose:
        print_skipped(outcomes)
    if plugged:
        print_left_out(modules_left_out, entries, outcomes)
    print_table(outcomes)
    passed = sum(outcome.status == "passed" for outcome in outcomes)
    failures = sum(outcome.counts_as_failure for outcome in outcomes)
    version = sys.version.split()[0]
    print(f"\nCPython {version}: {passed} passed, {failures} failed, on {' and '.join(backends)}")
    if not any(outcome.status in ("passed", "failed") for outcome in outcomes):
        raise UsageError("not one test ran on the loop")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
