"""Run the test suites of uvicorn, aiohttp, AnyIO and Tornado on asyncio and on ringloop, and print what only ringloop fails.

The suite "serve" is uvicorn's, with `ringloop serve` in uvicorn's place, and "gunicorn" has gunicorn's tests of ASGI
servers, and its WSGI applications. There the control is uvicorn or gunicorn itself.

Each suite has an environment of its own below target/suites, with the versions that suites.toml names; packages come from
PyPI. Its tests run on asyncio, on epoll and on io_uring, with ringloop's loop wherever asyncio would make its own. What
fails on ringloop and not on asyncio is run again by itself, three times on both: it counts if it fails again on
ringloop alone. suites.toml also names the differences that are explained: those are listed and do not count.

The tests listen on free ports of the loopback interface. `localhost` should resolve to 127.0.0.1 and to ::1; what fails
without that fails on asyncio, too. Build ringloop first, for the Python that runs this program: `make suites` does.

Exits with 0 if ringloop fails nothing that asyncio passes, with 1 if it does, with 2 if a suite could not be run.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import tomllib
import urllib.request
import venv
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import compatibility

REPOSITORY = Path(__file__).resolve().parent.parent
SETTINGS = Path(__file__).with_suffix(".toml")
LOOPS = ("asyncio", "epoll", "io_uring")
CONTROL = "asyncio"
REPETITIONS = 3


class UsageError(Exception):
    """A reason why a suite cannot be run at all."""


@dataclasses.dataclass
class Suite:
    """The tests of a package, as suites.toml describes them."""

    name: str
    title: str
    version: str
    requirements: list[str]
    sources: list[str]
    command: list[str]
    about: str = ""
    control: str = CONTROL
    package: str = ""
    plugins: list[str] = dataclasses.field(default_factory=list)
    files: list[str] = dataclasses.field(default_factory=list)
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    explained: dict[str, str] = dataclasses.field(default_factory=dict)
    everywhere: dict[str, str] = dataclasses.field(default_factory=dict)
    archive: tuple[str, str] | None = None

    def __post_init__(self) -> None:
        self.package = self.package or self.name

    def explanation(self, test: str) -> str | None:
        """Return why this test fails on ringloop, if that is explained, for it or for all of its parameters."""
        return self.explained.get(test) or self.explained.get(test.partition("[")[0])


@dataclasses.dataclass
class Result:
    """The result of a suite on a loop: how many tests ended in which way, and the names of those that failed."""

    passed: int
    skipped: int
    failed: set[str]
    seconds: float = 0.0


def read_settings() -> dict[str, Suite]:
    """Read suites.toml."""
    with open(SETTINGS, "rb") as file:
        return {name: Suite(name=name, **settings) for name, settings in tomllib.load(file).items()}


@dataclasses.dataclass
class Runner:
    """Runs one suite, in its folder."""

    suite: Suite
    folder: Path
    workers: int
    limit_s: float

    @property
    def python(self) -> Path:
        return self.folder / "venv" / "bin" / "python"

    def install(self) -> None:
        """Create the environment and unpack the tests, unless that was already done with the same settings."""
        suite, stamp = self.suite, self.folder / "installed"
        wanted = "\n".join(
            [
                sys.version,
                f"{suite.package}=={suite.version}",
                *suite.requirements,
                *suite.sources,
                *(suite.archive or ()),
            ]
        )
        if not stamp.exists() or stamp.read_text() != wanted:
            print(f"installing {suite.name} {suite.version} in {self.folder}", flush=True)
            shutil.rmtree(self.folder, ignore_errors=True)
            venv.create(self.folder / "venv", with_pip=True)
            pip = [str(self.python), "-m", "pip", "--quiet", "--disable-pip-version-check"]
            pinned = f"{suite.package}=={suite.version}"
            prepare([*pip, "install", pinned, *suite.requirements])
            (self.folder / "tests").mkdir()
            if suite.archive:
                self.download(*suite.archive)
            elif suite.sources:
                # Only this package from source: its build dependencies may be wheels.
                prepare(
                    [*pip, "download", "--no-deps", "--no-binary", suite.package, "--dest", str(self.folder), pinned]
                )
            if suite.sources:
                self.unpack()
            stamp.write_text(wanted)
        for library in self.folder.glob("venv/lib/python3.*/site-packages"):
            # What `pip install --editable` would write, and the folder of the module that installs ringloop's loop.
            (library / "ringloop.pth").write_text(f"{REPOSITORY / 'python'}\n{REPOSITORY / 'tools'}\n")
        for name in suite.files:
            # Not a link: pytest would name its tests by where it leads to.
            shutil.copy(REPOSITORY / "tools" / name, self.folder / "tests")
        prepare([str(self.python), "-c", "import ringloop"])

    def download(self, url: str, sha256: str) -> None:
        try:
            with urllib.request.urlopen(url, timeout=60) as response:
                data: bytes = response.read()
        except OSError as error:
            raise UsageError(f"{url} cannot be downloaded: {error}") from None
        if hashlib.sha256(data).hexdigest() != sha256:
            raise UsageError(f"{url} is another file than the one that suites.toml names by its SHA-256")
        (self.folder / "tests.tar.gz").write_bytes(data)

    def unpack(self) -> None:
        (archive,) = self.folder.glob("*.tar.gz")
        with tarfile.open(archive) as tar:
            for member in tar.getmembers():
                member.name = member.name.partition("/")[2]
                if member.name.partition("/")[0] in self.suite.sources:
                    tar.extract(member, self.folder / "tests", filter="data")

    def run(self, loop: str, tests: Sequence[str] = ()) -> Result:
        """Run the named tests, one after the other in one process, or all tests."""
        command = [part.format(workers=0 if tests else self.workers) for part in self.suite.command]
        report, log = (self.folder / f"{loop}{'-again' if tests else ''}.{kind}" for kind in ("xml", "log"))
        report.unlink(missing_ok=True)
        if "pytest" in command:
            command += ["-p", "no:cacheprovider", f"--junitxml={report}", "-o", "junit_family=xunit1"]
        environment = os.environ | self.suite.environment
        environment |= {"RINGLOOP_SUITES_LOOP": loop, "PYTEST_PLUGINS": ",".join(["suite_loop", *self.suite.plugins])}
        if loop != CONTROL:
            environment["RINGLOOP_BACKEND"] = loop
        started = time.monotonic()
        with open(log, "wb") as output:
            process = subprocess.Popen(
                [self.python, *command, *tests],
                cwd=self.folder / "tests",
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                process.wait(self.limit_s)
            except subprocess.TimeoutExpired:
                raise UsageError(
                    f"{self.suite.name} on {loop} takes longer than {self.limit_s:.0f} s; see {log}"
                ) from None
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        try:
            result = read_junit(report) if "pytest" in command else read_unittest(log.read_text(errors="replace"))
        except (OSError, ElementTree.ParseError, ValueError) as error:
            raise UsageError(f"{self.suite.name} on {loop} ended without a result ({error}); see {log}") from None
        # pytest exits with 2 and more where it did not run all tests, for instance because a file cannot be imported.
        if process.returncode != bool(result.failed):
            raise UsageError(f"{self.suite.name} on {loop} exited with {process.returncode}; see {log}")
        result.seconds = time.monotonic() - started
        return result

    def fails_again(self, loop: str, tests: Sequence[str]) -> set[str]:
        """Return which of these tests fail at least once when each is repeated alone."""
        failed: set[str] = set()
        for _ in range(REPETITIONS if tests else 0):
            failed |= self.run(loop, tests).failed
        return failed


def prepare(command: Sequence[str]) -> None:
    """Run a command of the installation."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise UsageError(f"{' '.join(command)} failed:\n{done.stdout}")


def read_junit(path: Path) -> Result:
    """Read pytest's report. Tests are named so that pytest understands it."""
    outcomes: dict[str, str] = {}
    for case in ElementTree.parse(path).iter("testcase"):
        file, name = case.get("file"), case.get("name", "")
        if file:
            classes = case.get("classname", "").removeprefix(file.removesuffix(".py").replace("/", "."))
            name = "::".join([file, *filter(None, classes.split(".")), name])
        if case.find("failure") is not None or case.find("error") is not None:
            outcomes[name] = "failed"
        else:
            outcomes.setdefault(name, "skipped" if case.find("skipped") is not None else "passed")
    counted = list(outcomes.values())
    failed = {name for name, outcome in outcomes.items() if outcome == "failed"}
    return Result(counted.count("passed"), counted.count("skipped"), failed)


def read_unittest(text: str) -> Result:
    """Read the output of unittest. Tests are named so that unittest understands it."""
    ran = re.search(r"^Ran (\d+) tests? in ", text, re.MULTILINE)
    if ran is None:
        raise ValueError("it does not say how many tests ran")
    failed = set(re.findall(r"^(?:ERROR|FAIL): \S+ \(([\w.]+)\)", text, re.MULTILINE))
    skipped = re.search(r"^(?:OK|FAILED) \(.*skipped=(\d+)", text, re.MULTILINE)
    skips = int(skipped[1]) if skipped else 0
    return Result(int(ran[1]) - skips - len(failed), skips, failed)


def compare(runner: Runner, results: dict[str, Result]) -> dict[str, dict[str, str]]:
    """Print what fails on ringloop but not on asyncio. Return for each loop a verdict on each of these tests: `explained`,
    `not again`, `not ours` or `FAILED`."""
    suite, verdicts = runner.suite, {}
    control = results[CONTROL].failed if CONTROL in results else set()
    for loop, result in results.items():
        if loop == CONTROL:
            continue
        differing = result.failed - control
        explained = {test: text for test in sorted(differing) if (text := suite.explanation(test))}
        for test, text in explained.items():
            print(f"explained   {suite.name} on {loop}: {test}: {text}")
        verdicts[loop] = dict.fromkeys(explained, "explained")
        suspects = sorted(differing - explained.keys())
        again = runner.fails_again(loop, suspects)
        shared = runner.fails_again(CONTROL, sorted(again))
        for test in suspects:
            if test not in again:
                verdict, reason = "not again", f": passed {REPETITIONS} times by itself"
            elif test in shared:
                verdict, reason = "not ours", ": fails on asyncio, too"
            else:
                verdict, reason = "FAILED", ""
            print(f"{verdict:11} {suite.name} on {loop}: {test}{reason}")
            verdicts[loop][test] = verdict
    return verdicts


def describe(suite: Suite, results: dict[str, Result], verdicts: dict[str, dict[str, str]]) -> dict[str, Any]:
    """Return what compatibility.py records of a suite."""
    loops = {
        loop: {"passed": result.passed, "skipped": result.skipped, "failed": sorted(result.failed)}
        | ({"verdicts": verdicts[loop]} if loop in verdicts else {})
        for loop, result in results.items()
    }
    return {"suite": suite.name, "version": suite.version, "loops": loops}


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="tools/suites.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    suites = read_settings()
    parser.add_argument("--suite", action="append", choices=suites, help="only this suite; may be repeated")
    parser.add_argument("--loop", action="append", choices=LOOPS, help="only on this loop; may be repeated")
    parser.add_argument(
        "--workers", type=int, default=os.cpu_count(), help="processes of pytest (default: one for each CPU)"
    )
    parser.add_argument(
        "--limit", type=float, default=3600, help="seconds that a suite may take on a loop (default: 3600)"
    )
    parser.add_argument(
        "--folder", type=Path, default=REPOSITORY / "target" / "suites", help="where everything is installed and logged"
    )
    parser.add_argument(
        "--results",
        type=Path,
        metavar="FILE",
        help="put the results into this file as well, as compatibility.py reads it",
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the suites and return the exit status."""
    arguments = parse_arguments(argv)
    # This also ends the processes that are running.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    lines, unexplained, broken = [], 0, False
    for name, suite in read_settings().items():
        if arguments.suite and name not in arguments.suite:
            continue
        runner = Runner(suite, arguments.folder.resolve() / name, arguments.workers, arguments.limit)
        results: dict[str, Result] = {}
        try:
            runner.install()
            for loop in LOOPS:
                if arguments.loop and loop not in arguments.loop:
                    continue
                print(f"{name} {suite.version} on {loop}", flush=True)
                result = results[loop] = runner.run(loop)
                lines.append(
                    f"{name:8} {suite.version:8} {loop:8} {result.passed:7} {len(result.failed):7} {result.skipped:8}"
                    f" {result.seconds:8.0f}"
                )
            verdicts = compare(runner, results)
            unexplained += sum(list(of_loop.values()).count("FAILED") for of_loop in verdicts.values())
            if arguments.results and set(results) == set(LOOPS):
                compatibility.record(arguments.results, describe(suite, results, verdicts))
        except UsageError as error:
            print(f"suites: {error}", file=sys.stderr)
            broken = True
    print(f"\n{'suite':8} {'version':8} {'loop':8} {'passed':>7} {'failed':>7} {'skipped':>8} {'seconds':>8}")
    print("\n".join(lines))
    print(f"\n{unexplained} tests fail only on ringloop, without an explanation")
    return 2 if broken else 1 if unexplained else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("suites: interrupted", file=sys.stderr)
        sys.exit(130)
