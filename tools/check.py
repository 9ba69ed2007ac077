"""Run the whole check of a commit, or all that can be checked, and say what each step took.

    tools/check.py                         what .ci/run runs: 17 to 33 minutes on two CPUs; the goal is 30
    tools/check.py --all                   everything, on each of CPython 3.11 to 3.15: hours
    tools/check.py --list                  the steps, and what each covers
    tools/check.py 'make lint' 'make docs' these steps, and what they need
    tools/check.py --table                 write the tables of CONTRIBUTING.md from the last run

Steps run in two lanes, because tests wait about as much as they compute: what runs on the main interpreter, and what runs on others
beside it. A lane that has nothing else to do takes the next of the steps that can run in either. The output of a step is printed when
it ends. A step that fails doesn't stop the others. CPython 3.14 and 3.15 come from a Debian tree (tools/pythons.sh) where this machine
has none. A free-threaded CPython comes from no package source: `--all` uses the one that RINGLOOP_FREE_THREADED_PYTHON names, or
python3.14t and later of the PATH or of pyenv, and says so where there is none. Of the interpreters between the oldest and the newest,
one takes part in each run, on one backend; the commit's hash decides which one.

A test that fails once and then passes twice alone is flaky (tools/test_records.py). The summary lists it, and the check passes
with up to five of these. Exits with 0 if everything passed, with 1 if something failed, with 2 if the check could not begin.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import check_tables
import test_records

REPOSITORY = Path(__file__).resolve().parent.parent
REPORT = REPOSITORY / "target" / "check" / "report.json"
OLDEST, NEWEST = 11, 15
"""The minor versions of CPython that are supported."""
OLDEST_FREE_THREADED = 14
"""The oldest minor version that is supported without the GIL."""
TREE = "tools/pythons.sh"
"""The command that runs others in a tree of Debian's packages, and makes it first where it is missing."""
IN_TREE = {14, 15}
"""The minor versions that the tree has."""
BACKENDS = ("io_uring", "epoll")
ABSENT = 77
"""The exit status of tools that can't do their work on this machine."""
ERRORS = re.compile(
    r"^(FAILED|FLAKY|ERROR) |^test .* FAILED|^thread .* panicked at|^error|^make.*\*\*\*|Segmentation|Aborted",
    re.MULTILINE,
)
"""The part that the summary repeats of the output of a step that failed."""
Lane = Literal["main", "beside", "either"]
"""Steps of the third kind are run by whichever of the two lanes has nothing else left."""


class CannotBegin(Exception):
    """A reason why nothing can be checked."""


@dataclasses.dataclass(frozen=True)
class Step:
    """One part of the check: a command, and what must have ended before it begins."""

    name: str
    covers: str
    command: Sequence[str]
    lane: Lane
    needs: tuple[str, ...] = ()
    in_quick: bool = True


@dataclasses.dataclass
class Outcome:
    """How a step ended (passed, FAILED or absent), and what it took."""

    name: str
    outcome: str
    wall_s: float
    cpu_s: float
    details: list[str] = dataclasses.field(default_factory=list)


def run_quietly(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a command in the repository, and return what it printed."""
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, errors="replace", check=False)


# The interpreters.


@dataclasses.dataclass(frozen=True)
class Interpreter:
    """A CPython 3.`minor`: where it is, and the command that goes into the tree that has it, if it isn't this machine's."""

    minor: int
    path: str
    inside: tuple[str, ...] = ()

    @property
    def venv(self) -> str:
        """The folder of its virtual environment."""
        return f".venv-3.{self.minor}{'-debian' if self.inside else ''}"

    @property
    def python(self) -> str:
        """The interpreter of that environment."""
        return f"{self.venv}/bin/python"

    def make(self, *words: str) -> list[str]:
        """Return the command that makes targets with this interpreter."""
        return [*self.inside, "make", "--keep-going", *words, f"PYTHON={self.path}", f"VENV={self.venv}"]


def find_on_machine(minor: int) -> Interpreter | None:
    """Return a CPython 3.`minor` of this machine that can build ringloop."""
    # pyenv's shims are on the PATH for versions that are not selected, too, and don't run. So its folder is searched as well.
    name = f"python3.{minor}"
    candidates = [shutil.which(name), *map(str, sorted(Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/{name}")))]
    for candidate in candidates:
        if candidate is None or run_quietly(candidate, "-c", "").returncode != 0:
            continue
        probe = run_quietly(candidate, "tools/probe_python.py")
        if probe.returncode == 0:
            return Interpreter(minor, probe.stdout.split()[-1])
    return None


@dataclasses.dataclass(frozen=True)
class Interpreters:
    """The CPythons of a check: the main one, which all tests run on, and the others by their minor version."""

    main: Interpreter
    others: dict[int, Interpreter]
    missing: list[str]
    free_threaded: str | None = None
    """The path of one without the GIL, which takes part only in the whole check."""

    @property
    def newest(self) -> Interpreter:
        """The newest of all."""
        return max([self.main, *self.others.values()], key=lambda python: python.minor)

    @property
    def oldest(self) -> Interpreter:
        """The oldest of all."""
        return min([self.main, *self.others.values()], key=lambda python: python.minor)

    @property
    def in_the_middle(self) -> list[Interpreter]:
        """The others, without the newest."""
        return [python for python in self.others.values() if python != self.newest]


def find_free_threaded() -> str | None:
    """Return the free-threaded CPython that the environment names, or else the newest of this machine that ringloop supports."""
    candidates = [os.environ.get("RINGLOOP_FREE_THREADED_PYTHON")]
    for minor in range(NEWEST, OLDEST_FREE_THREADED - 1, -1):
        name = f"python3.{minor}t"
        candidates += [shutil.which(name), *map(str, Path.home().glob(f".pyenv/versions/3.{minor}.*t/bin/{name}"))]
    for candidate in candidates:
        if (
            candidate
            and shutil.which(candidate)
            and run_quietly(candidate, "tools/free_threading.py", "--named").returncode == 0
        ):
            return candidate
    return None


def find_interpreters() -> Interpreters:
    """Return this machine's CPythons, and those of Debian's tree, which need not exist yet, for what this machine lacks.

    The main one is what users get by `python3`, or else the newest of this machine that is suitable.
    """
    found = {minor: python for minor in range(OLDEST, NEWEST + 1) if (python := find_on_machine(minor)) is not None}
    if not found:
        raise CannotBegin(f"no CPython from 3.{OLDEST} to 3.{NEWEST} with headers is on this machine")
    probe = run_quietly("python3", "tools/probe_python.py")
    main = found[max(found)]
    if probe.returncode == 0:
        main = Interpreter(int(probe.stdout.split(".")[1]), probe.stdout.split()[-1])
    for minor in sorted(IN_TREE - found.keys()):
        found[minor] = Interpreter(minor, f"/usr/bin/python3.{minor}", (TREE,))
    missing = [
        f"Python 3.{minor}: no such interpreter with headers here"
        for minor in range(OLDEST, NEWEST)
        if minor not in found
    ]
    others = {minor: python for minor, python in found.items() if minor != main.minor}
    return Interpreters(main, others, missing, find_free_threaded())


@dataclasses.dataclass(frozen=True)
class Turn:
    """Which of the interpreters in the middle takes part in the check of a commit, and on which backend."""

    python: Interpreter
    backend: str


def turn_of(commit: str, candidates: Sequence[Interpreter]) -> Turn | None:
    """Return the turn of a commit, or None where there is only an oldest and a newest interpreter."""
    if not candidates:
        return None
    round_, index = divmod(int(commit[:8], 16), len(candidates))
    return Turn(candidates[index], BACKENDS[round_ % len(BACKENDS)])


# The steps.


def plan(pythons: Interpreters, commit: str, *, quick: bool = False) -> list[Step]:
    """Return all steps, in the order in which their lanes begin them.

    `quick` steps do less on interpreters other than the main one: they try fewer examples, and leave out `LEFT_OUT`.
    """
    main, turn = pythons.main, turn_of(commit, pythons.in_the_middle)
    steps = [
        Step("compile the Rust tests", "they compile", main.make("test-rust", "ARGS=--no-run"), "beside"),
        Step(
            "debian tree", "CPython 3.14 and 3.15 from Debian, where this machine lacks them", ["env", TREE], "beside"
        ),
        Step(
            "make build",
            "the README's first command, and what it built reports its backend",
            ["sh", "-c", f'"$@" && {main.python} -m ringloop', "sh", *main.make("build")],
            "main",
        ),
        Step(
            "environment",
            "what all further steps install from PyPI",
            main.make("environment"),
            "main",
            ("make build",),
        ),
        Step(
            "make test",
            f"the Rust tests; on CPython 3.{main.minor} the Python tests on asyncio, io_uring and epoll, applications; not the long ones",
            main.make("test"),
            "main",
            ("environment",),
        ),
        Step("lab", "the lab's own check", main.make("lab"), "main", ("environment",)),
    ]
    for python in sorted(pythons.others.values(), key=lambda python: -python.minor):
        if python == pythons.newest:
            steps += newest_interpreter(python, quick=quick)
        else:
            backend = turn.backend if turn and turn.python == python else None
            steps += interpreter_in_the_middle(python, backend, quick=quick)
    steps.append(
        Step(
            "make test-long",
            "the tests that make test leaves out, and all random examples",
            main.make("test-long"),
            "either",
            ("environment", "compile the Rust tests"),
        )
    )
    for python in (main, *pythons.others.values()):
        steps.append(conformance(python, in_quick=python in (pythons.oldest, pythons.newest)))
    return [
        *steps,
        Step(
            "make lint",
            "layers, rustfmt, clippy, rustdoc, ruff, mypy, stubtest",
            main.make("lint"),
            "either",
            ("environment",),
        ),
        Step("make docs", "the site, every link", main.make("docs"), "either", ("environment",)),
        *long_steps(main, pythons.newest),
        free_threaded_step(pythons.free_threaded),
    ]


FAST = ("FAST=1", "CARGO_PROFILE_RELEASE_OPT_LEVEL=1", "extension_target=$(CARGO_TARGET_DIR)/further-pythons")
"""How the extension is compiled for other interpreters than the main one: with little optimisation, and for all of them in one folder,
so that its dependencies are compiled once. The main one has the optimised extension."""


def build_for(python: Interpreter, *, in_quick: bool) -> Step:
    """Return the step that compiles the extension for another interpreter than the main one."""
    needs = ("debian tree",) if python.inside else ()
    covers, command = f"the extension compiles for CPython 3.{python.minor}", python.make("extension", *FAST)
    return Step(f"build on 3.{python.minor}", covers, command, "beside", needs, in_quick)


EXAMPLES = 0.1
"""The share of examples (random programs, failing allocations) that the quick check tries on interpreters other than the main one, as
`make test` does on that. `make check-all` tries all of them on each."""
LEFT_OUT = (
    "tests/examples",
    "tests/http/test_access_log.py",
    "tests/http/test_access_log_json.py",
    "tests/http/test_draining.py",
    "tests/http/test_guides.py",
    "tests/http/test_health.py",
    "tests/http/test_http2_floods.py",
    "tests/http/test_http_idle.py",
    "tests/http/test_serve.py",
    "tests/http/test_static.py",
    "tests/http/test_tls_leaving.py",
)
"""The tests that the quick check leaves out on interpreters other than the main one: what they are about is nearly all in Rust, or in
what starts the server. `make check-all` runs them on each."""


def tests_of(
    python: Interpreter,
    name: str,
    covers: str,
    loops: str,
    *more: str,
    ignored: Sequence[str] = (),
    quick: bool = False,
    in_quick: bool = False,
) -> Step:
    """Return the step of the Python tests that depend on the interpreter, on these loops. Its record has its name."""
    record, variables = f"record={name.replace(' ', '-')}", [f"RINGLOOP_TEST_LOOPS={loops}"]
    if quick:
        variables.append(f"RINGLOOP_TEST_EXAMPLES={EXAMPLES}")
        covers += f", {EXAMPLES:.0%} of the random examples, without what is the same on each interpreter"
        ignored = (*ignored, *LEFT_OUT)
    if ignored:
        more = (*more, "ARGS=" + " ".join(f"--ignore {path}" for path in ignored))
    tests = ["env", *variables, *python.make("test-interpreter", *FAST, record, *more)]
    return Step(name, covers, tests, "beside", (f"build on 3.{python.minor}",), in_quick)


def newest_interpreter(python: Interpreter, *, quick: bool) -> Iterator[Step]:
    """Yield the steps of the Python tests that depend on the interpreter, on both backends.

    asyncio as the control runs in a step of its own, because its result changes only when CPython does.
    """
    minor, covers = python.minor, "the Python tests that depend on the interpreter"
    yield build_for(python, in_quick=True)
    yield tests_of(
        python,
        f"python 3.{minor}",
        f"{covers}, on both backends",
        ",".join(BACKENDS),
        quick=quick,
        in_quick=True,
    )
    yield tests_of(python, f"control 3.{minor}", "the same on asyncio", "asyncio")


def interpreter_in_the_middle(python: Interpreter, backend: str | None, *, quick: bool) -> Iterator[Step]:
    """Yield the steps of the same tests on one of the others. `backend` is the one on which it takes part in the quick check.

    The quick check tests HTTP on the newest interpreter only.
    """
    minor, covers = python.minor, "the Python tests that depend on the interpreter, without HTTP, on"
    yield build_for(python, in_quick=backend is not None)
    for loops in BACKENDS:
        name, http = f"python 3.{minor} {loops}", ("tests/http",)
        yield tests_of(python, name, f"{covers} {loops}", loops, ignored=http, quick=quick, in_quick=loops == backend)
    yield tests_of(python, f"control 3.{minor}", "the same on asyncio, with HTTP", "asyncio")
    yield tests_of(
        python, f"http 3.{minor}", "the tests of HTTP, on both backends", ",".join(BACKENDS), "ARGS=tests/http"
    )


def conformance(python: Interpreter, *, in_quick: bool) -> Step:
    """Return the step of CPython's own tests of asyncio on both backends."""
    command = [*python.inside, python.python, "tools/conformance.py", "--record", f"conformance-3.{python.minor}"]
    covers = "CPython's own tests of asyncio on both backends"
    needs = ("make build", f"build on 3.{python.minor}")
    return Step(f"conformance 3.{python.minor}", covers, command, "either", needs, in_quick)


WITH_KIO = f"""
[ -z "$RINGLAB_KIO_SOURCE" ] || [ -n "$RINGLAB_DEBIAN" ] || {{ {TREE} --clang && export RINGLAB_DEBIAN="$PWD/target/pythons"; }}
exec "$@"
"""
"""How a shell runs the lab's long tests: where somebody has the sources of kio, it is a target, built with clang of the Debian tree."""


def long_steps(main: Interpreter, newest: Interpreter) -> Iterator[Step]:
    """Yield the steps that take too long for each commit. The workflow in .github runs these as jobs of their own."""
    wheels = "target/test-package"
    for name, covers, command in (
        (
            "applications on the newest",
            "real applications on the newest CPython",
            newest.make("test-applications", "FAST=1"),
        ),
        ("make test-modes", "the Python tests in the development mode and in debug mode", main.make("test-modes")),
        ("make test-loom", "threads that wake each other, in all interleavings", main.make("test-loom")),
        ("make test-minimal", "the oldest dependencies and the oldest Rust", main.make("test-minimal")),
        ("make test-ecosystem", "reqwest, tonic and sqlx beside the Rust runtime", main.make("test-ecosystem")),
        (
            "make test-sanitizers",
            "the Rust tests under AddressSanitizer and ThreadSanitizer",
            main.make("test-sanitizers"),
        ),
        ("make test-package", "this machine's wheels and the source distribution", main.make("test-package")),
        (
            "packages on 3.14 and 3.15",
            "the same packages, installed there",
            [TREE, "python3.15", "tools/try_wheels.py", wheels, "--required", "--python", "3.14", "3.15"],
        ),
        (
            "the lab's long tests",
            "every target and cell can be measured, kio too if RINGLAB_KIO_SOURCE names its sources; simulated verdicts",
            ["sh", "-c", WITH_KIO, "sh", *main.make("lab", "ARGS=test-long")],
        ),
    ):
        needs = ("make test-package",) if wheels in command else ("make build",)
        yield Step(name, covers, command, "main", (*needs, "debian tree"), in_quick=False)


def free_threaded_step(python: str | None) -> Step:
    """Return the step of all Python tests without the GIL. Where there is no such interpreter, it says so, and is absent."""
    command = ["make", "test-free-threaded", f"PYTHON={python}"]
    if python is None:
        reason = (
            f"left out: no free-threaded CPython 3.{OLDEST_FREE_THREADED} or later is on this machine; "
            "RINGLOOP_FREE_THREADED_PYTHON names one"
        )
        command = ["sh", "-c", f"echo {shlex.quote(reason)}; exit {ABSENT}"]
    covers = "the Python tests on a free-threaded CPython, with long tests of threads"
    return Step("make test-free-threaded", covers, command, "main", ("make build",), in_quick=False)


# Running them.


class Run:
    """Steps that run in two lanes, and how they ended. Each lane takes its own steps first, and then what can run in either."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = steps
        self.outcomes: dict[str, Outcome] = {}
        self._left = list(steps)
        self._began = time.monotonic()
        self._changed = threading.Condition()
        self._failure: BaseException | None = None

    def finish(self) -> None:
        """Run all steps."""
        lanes: tuple[Lane, Lane] = ("main", "beside")
        threads = [threading.Thread(target=self._run_lane, args=[lane], daemon=True) for lane in lanes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._failure is not None:
            raise self._failure

    def _run_lane(self, lane: Lane) -> None:
        try:
            while (step := self._take(lane)) is not None:
                self._wait_for(step.needs)
                outcome = self._run(step)
                with self._changed:
                    self.outcomes[step.name] = outcome
                    self._changed.notify_all()
        except BaseException as error:
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def _take(self, lane: Lane) -> Step | None:
        """Return the next step of a lane, if there is one."""
        with self._changed:
            for kind in (lane, "either"):
                for step in self._left:
                    if step.lane == kind:
                        self._left.remove(step)
                        return step
        return None

    def _wait_for(self, names: Sequence[str]) -> None:
        wanted = {step.name for step in self.steps} & set(names)
        with self._changed:
            self._changed.wait_for(lambda: self._failure is not None or wanted <= self.outcomes.keys())
        if self._failure is not None:
            raise SystemExit(1)

    def _run(self, step: Step) -> Outcome:
        log = REPORT.parent / f"{step.name.replace(' ', '-')}.log"
        self._print(f"\n##### {step.name}: begins after {time.monotonic() - self._began:.0f} s\n")
        began = time.monotonic()
        with open(log, "wb") as file:
            process = subprocess.Popen(
                step.command, cwd=REPOSITORY, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT
            )
            # The usage is that of the process and of all below it that were waited for.
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        code, text = process.returncode, log.read_text(errors="replace")
        outcome = Outcome(step.name, "passed", time.monotonic() - began, usage.ru_utime + usage.ru_stime)
        if code == ABSENT:
            outcome.outcome, outcome.details = "absent", [text.strip().splitlines()[-1]] if text.strip() else []
        elif code != 0:
            found = [line[:300] for line in text.splitlines() if ERRORS.search(line)][:20]
            outcome.outcome, outcome.details = "FAILED", [*found, f"exit status {code}; the whole output is in {log}"]
        self._print(f"\n##### {step.name}: {outcome.outcome} in {outcome.wall_s:.0f} s; its output:\n{text}")
        return outcome

    def _print(self, text: str) -> None:
        with self._changed:
            print(text, flush=True)


def changes_of_asyncio(interpreters: Sequence[Interpreter]) -> Iterator[str]:
    """Yield what has changed in asyncio since somebody read it. It fails no test, because a maintainer must read it."""
    for python in interpreters:
        report = run_quietly(*python.inside, python.python, "tools/asyncio_sources.py")
        if report.returncode == 1:
            yield report.stdout.strip()


# The output.


def flaky_tests() -> list[test_records.Record]:
    """Return the flaky tests of all records."""
    records = (record for path in sorted(test_records.FOLDER.glob("*.jsonl")) for record in test_records.read(path))
    return [record for record in records if record.outcome == "flaky"]


def print_summary(outcomes: Sequence[Outcome], notes: Sequence[str], flaky: Sequence[test_records.Record]) -> bool:
    """Print how everything ended, and return whether the check passes."""
    print("\n##### summary")
    for outcome in outcomes:
        print(f"{outcome.outcome}  {outcome.name} ({outcome.wall_s:.0f} s, {outcome.cpu_s:.0f} s of CPU)")
        print("".join(f"            {line}\n" for line in outcome.details), end="")
    print("".join(f"note    {note}\n" for note in notes), end="")
    if flaky:
        print(
            f"\n##### flaky: {len(flaky)} tests failed once, and passed when they ran alone; add them to tests/flaky.md"
        )
        for record in flaky:
            print(
                f"flaky   {record.name}\n" + "".join(f"        {line}\n" for line in record.output.splitlines()[-40:])
            )
    failed = [outcome.name for outcome in outcomes if outcome.outcome == "FAILED"]
    too_flaky = len(flaky) > test_records.FLAKY_MAX
    if failed:
        print(f"FAILED: {', '.join(failed)}")
    elif too_flaky:
        print(f"FAILED: {len(flaky)} tests are flaky; a check passes with at most {test_records.FLAKY_MAX}")
    else:
        print("all passed")
    return not failed and not too_flaky


def describe_machine() -> str:
    """Return what a reader of the times must know."""
    load = ", ".join(f"{average:.1f}" for average in os.getloadavg())
    return f"{os.cpu_count()} CPUs, Linux {platform.release().partition('-')[0]}, load average {load} at the start"


def write_table() -> None:
    """Write the tables of CONTRIBUTING.md from the last run."""
    if not REPORT.exists():
        raise CannotBegin(f"there is no {REPORT.relative_to(REPOSITORY)}; run make check first")
    check_tables.write(json.loads(REPORT.read_text()))


def choose(steps: Sequence[Step], names: Sequence[str], everything: bool) -> list[Step]:
    """Return the steps that the command line asks for, and all that these need."""
    unknown = set(names) - {step.name for step in steps}
    if unknown:
        raise CannotBegin(f"there is no step {', '.join(sorted(map(repr, unknown)))}; --list names them")
    wanted = set(names) or {step.name for step in steps if everything or step.in_quick}
    for step in reversed(steps):
        if step.name in wanted:
            wanted.update(step.needs)
    if not any(TREE in step.command for step in steps if step.name in wanted - {"debian tree"}):
        wanted.discard("debian tree")
    return [step for step in steps if step.name in wanted]


def main() -> int:
    """Run the program and return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", nargs="*", metavar="STEP", help="only these, and what they need")
    parser.add_argument("--all", action="store_true", help="every step, on every interpreter")
    parser.add_argument("--list", action="store_true", help="print the steps and what they cover")
    parser.add_argument("--table", action="store_true", help="write the tables of CONTRIBUTING.md from the last run")
    arguments = parser.parse_args()
    try:
        if arguments.table:
            write_table()
            return 0
        return check(arguments)
    except CannotBegin as error:
        print(f"check: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("check: interrupted", file=sys.stderr)
        return 130


def check(arguments: argparse.Namespace) -> int:
    """Choose the steps, and run them."""
    commit = run_quietly("git", "rev-parse", "HEAD").stdout.strip() or "0"
    pythons = find_interpreters()
    quick = not arguments.all and not arguments.steps
    steps = choose(plan(pythons, commit, quick=quick), arguments.steps, arguments.all)
    if arguments.list:
        for step in steps:
            print(f"{step.name:28} {step.covers}")
        return 0
    machine, began = describe_machine(), time.monotonic()
    print(f"checking {commit[:12]} on {machine}")
    shutil.rmtree(test_records.FOLDER, ignore_errors=True)
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    run = Run(steps)
    run.finish()
    outcomes = [run.outcomes[step.name] for step in steps]
    report = {
        "commit": commit,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": machine,
        "wall_s": time.monotonic() - began,
        "steps": [dataclasses.asdict(outcome) for outcome in outcomes],
    }
    REPORT.write_text(json.dumps(report, indent=1))
    names = {step.name for step in steps}
    used = [pythons.main, *(python for python in pythons.others.values() if f"build on 3.{python.minor}" in names)]
    turn = turn_of(commit, pythons.in_the_middle)
    notes = [*pythons.missing, *changes_of_asyncio(used)]
    if turn is not None and quick:
        notes.append(
            f"of {', '.join(f'3.{python.minor}' for python in pythons.in_the_middle)}, "
            f"it was the turn of 3.{turn.python.minor} on {turn.backend}"
        )
    return 0 if print_summary(outcomes, notes, flaky_tests()) else 1


if __name__ == "__main__":
    sys.exit(main())
