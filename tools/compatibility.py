"""Write docs/frameworks.md, the page of what other projects' tests come to on ringloop, from docs/compatibility-results.json.

usage: tools/compatibility.py [--check | --applications]

`make suites` and `make conformance ARGS="--results FILE"` put what they find into that file, one entry for each suite and minor
version of Python; a later run replaces the entry. `--applications` runs tests/applications and adds an entry for it.
Nothing on the page is written by hand: figures, versions and dates are those of the entries; the explanations are
those of suites.toml and conformance.toml. `--check` only compares: it exits with 1 if the page is not what would be written.
"""

from __future__ import annotations

import argparse
import fcntl
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
import tomllib
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
RESULTS = REPOSITORY / "docs" / "compatibility-results.json"
PAGE = REPOSITORY / "docs" / "frameworks.md"
TOOLS = Path(__file__).resolve().parent
FORMAT = 1
CONTROL = "asyncio"
LOOPS = (CONTROL, "epoll", "io_uring")
# Entries that are not suites of suites.toml.
CPYTHON, APPLICATIONS = "CPython", "applications"
COUNTS = ("passed", "failed", "skipped")
WIDTH = 100


# The file of results.


def read(path: Path) -> list[dict[str, Any]]:
    """Return the entries of the file; none if there is no file yet."""
    if not path.exists():
        return []
    contents = json.loads(path.read_text())
    if contents["format"] != FORMAT:
        raise SystemExit(f"compatibility: {path} has format {contents['format']}, not {FORMAT}")
    entries: list[dict[str, Any]] = contents["entries"]
    return entries


def subject(entry: dict[str, Any]) -> tuple[str, tuple[int, ...]]:
    """Return what an entry is about: the suite, and the minor version of Python."""
    return entry["suite"], tuple(map(int, entry["python"].split(".")[:2]))


def record(path: Path, found: dict[str, Any]) -> None:
    """Put what a suite came to into the file, in the place of an older entry for the same minor version of Python."""
    entry = {
        "suite": found.pop("suite"),
        "version": found.pop("version"),
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "kernel": platform.release(),
        "root": os.geteuid() == 0,
        **found,
    }
    # Several runs may share the file. Its folder is locked, because the file itself is replaced: no reader sees half of it.
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        entries = [other for other in read(path) if subject(other) != subject(entry)]
        contents = {"format": FORMAT, "entries": sorted([*entries, entry], key=subject)}
        temporary = path.with_name(f".{path.name}")
        temporary.write_text(f"{json.dumps(contents, indent=1)}\n")
        temporary.replace(path)
    finally:
        os.close(folder)


# The project's own tests with applications.


def run_applications(path: Path) -> int:
    """Run tests/applications on all loops, record the result, and return pytest's exit status."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "tests/applications", f"--junitxml={report}", "--dist", "loadfile"]
        status = subprocess.run([*command, "--numprocesses", "2"], cwd=REPOSITORY, check=False).returncode
        tests = read_applications(report)
    loops = {
        loop: dict(zip(COUNTS, map(sum, zip(*(counts[loop] for counts in tests.values()), strict=True)), strict=True))
        for loop in LOOPS
    }
    packages = [package for _, packages, _ in integrations() for package in packages]
    versions = {package: importlib.metadata.version(package) for package in packages}
    version = importlib.metadata.version("ringloop")
    record(path, {"suite": APPLICATIONS, "version": version, "loops": loops, "versions": versions, "tests": tests})
    return status


def read_applications(report: Path) -> dict[str, dict[str, list[int]]]:
    """Return how often each test function passed, failed and was skipped on each loop, from pytest's report."""
    tests: dict[str, dict[str, list[int]]] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        function, _, parameters = case.get("name", "").rstrip("]").partition("[")
        loops = [loop for loop in LOOPS if loop in parameters.split("-")]
        if not loops:
            continue  # it needs no loop
        name = f"{case.get('classname', '').rpartition('.')[2]}::{function}"
        counts = tests.setdefault(name, {loop: [0, 0, 0] for loop in LOOPS})[loops[0]]
        failed = case.find("failure") is not None or case.find("error") is not None
        counts[1 if failed else 2 if case.find("skipped") is not None else 0] += 1
    return dict(sorted(tests.items()))


def integrations() -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield the rows of the table in docs/integrations.md: what it is, its packages, and the tests that check it."""
    section = (REPOSITORY / "docs" / "integrations.md").read_text().split("## Tried and works\n")[1].split("\n## ")[0]
    for line in [line for line in section.splitlines() if line.startswith("|")][2:]:
        what, versions, _, checked = (cell.strip() for cell in line.strip("|").split("|"))
        yield what, re.findall(r"`([a-z_-]+) [\w.]+`", versions), re.findall(r"`(test_\w+)`", checked)


# The page.

INTRODUCTION = """\
<!-- Written by `make compatibility-page` from compatibility-results.json: edit neither by hand. -->

# Other projects' tests on ringloop

This page shows how other projects' test suites do on ringloop, on both backends, and on stock
asyncio as the control. [compatibility.md](compatibility.md#how-it-is-checked) says how they are run
and judged.

The column "only on ringloop" counts the tests that fail on ringloop and pass on the control. Each
of them is explained below its table, and so are failures on the control."""


def render(entries: Sequence[dict[str, Any]]) -> str:
    """Return the page."""
    with open(TOOLS / "suites.toml", "rb") as file:
        suites: dict[str, dict[str, Any]] = tomllib.load(file)
    blocks = [INTRODUCTION]
    for suite, settings in suites.items():
        of_suite = [entry for entry in entries if entry["suite"] == suite]
        if of_suite:
            blocks += render_suite(settings, of_suite)
    blocks += render_cpython([entry for entry in entries if entry["suite"] == CPYTHON])
    for entry in entries:
        if entry["suite"] == APPLICATIONS:
            blocks += render_applications(entry)
    return "\n\n".join(blocks) + "\n"


def table(header: Sequence[str], rows: Sequence[Sequence[object]], figures: set[str]) -> str:
    """Return a table of Markdown."""
    lines = [header, ["---:" if name in figures else "---" for name in header], *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def render_suite(settings: dict[str, Any], entries: Sequence[dict[str, Any]]) -> list[str]:
    """Return the section of a suite: its figures, and an explanation of each difference."""
    rows = []
    for entry in entries:
        for loop in LOOPS:
            found = entry["loops"][loop]
            only = str(len(found.get("verdicts", {}))) if loop != CONTROL else ""
            name = settings.get("control", CONTROL) if loop == CONTROL else loop
            counts = [found["passed"], len(found["failed"]), found["skipped"], only]
            rows.append([entry["version"], entry["python"], name, *counts, entry["date"]])
    header = ["version", "Python", "on", *COUNTS, "only on ringloop", "date"]
    blocks = [f"## {settings['title']}", table(header, rows, {*COUNTS, "only on ringloop"})]
    if settings.get("about"):
        blocks.insert(1, filled(settings["about"]))
    return blocks + bullets(differences(settings, entries))


def differences(settings: dict[str, Any], entries: Sequence[dict[str, Any]]) -> dict[str, list[str]]:
    """Return explanations, each with the names of the tests that it is about."""
    explained, everywhere = settings.get("explained", {}), settings.get("everywhere", {})
    name = settings.get("control", CONTROL)
    texts: dict[str, dict[str, None]] = {}

    def add(text: str, test: str) -> None:
        texts.setdefault(text, {})[re.split(r"::|\.", test.partition("[")[0])[-1]] = None

    for entry in entries:
        control = entry["loops"][CONTROL]["failed"]
        for loop in LOOPS[1:]:
            for test, verdict in entry["loops"][loop].get("verdicts", {}).items():
                text = explained.get(test) or explained.get(test.partition("[")[0])
                if verdict == "explained" and text:
                    add(f"{text}.", test)
                elif verdict == "not again":
                    add("passed when repeated alone.", test)
                elif verdict == "not ours":
                    add(f"failed on {name} as well when repeated alone.", test)
                else:
                    add(f"**not explained** (on {loop}).", test)
        for test in control:
            text = everywhere.get(test.partition("[")[0]) or everywhere.get(test.partition("::")[0])
            on_ringloop = any(test in entry["loops"][loop]["failed"] for loop in LOOPS[1:])
            where = f"failed on {name}, too" if on_ringloop else f"failed only on {name}"
            add(f"{where}: {text}." if text else f"{where}.", test)
    return {text: list(tests) for text, tests in texts.items()}


def render_cpython(entries: Sequence[dict[str, Any]]) -> list[str]:
    """Return the section of CPython's own tests."""
    if not entries:
        return []
    names = {"passed": "passed", "skipped": "skipped", "left_out": "left out", "no_loop": "no loop"}
    rows = []
    for entry in entries:
        for loop in LOOPS:
            found = entry["loops"][loop]
            rows.append([entry["version"], loop, *(found[name] for name in names), len(found["failed"]), entry["date"]])
    header = ["Python", "on", *names.values(), "failed", "date"]
    about = (
        "These are the interpreter's own asyncio tests, `test.test_asyncio` (`make conformance`). Tests that depend on"
        " asyncio's private state are left out. A test that creates no loop says nothing about ringloop, and counts as"
        ' "no loop". The control has more of these, because there the tests of the base class use that class itself.'
    )
    blocks = ["## CPython", filled(about), table(header, rows, {*names.values(), "failed"})]
    with open(TOOLS / "conformance.toml", "rb") as file:
        settings = tomllib.load(file)
    reasons: dict[str, list[str]] = {}
    for module, reason in settings["modules_left_out"].items():
        reasons.setdefault(f"left out: {reason}.", []).append(module)
    for section in settings["left_out"]:
        reasons.setdefault(f"left out: {section['reason']}.", []).extend(section["tests"])
    return blocks + bullets(differences({}, entries) | reasons)


def render_applications(entry: dict[str, Any]) -> list[str]:
    """Return the section of tests/applications: a row for each framework of docs/integrations.md."""
    rows = []
    for what, packages, names in integrations():
        versions = ", ".join(f"{package} {entry['versions'].get(package, '?')}" for package in packages)
        counts = [[0, 0, 0] for _ in LOOPS]
        for test, found in entry["tests"].items():
            if set(test.split("::")) & set(names):
                for sums, loop in zip(counts, LOOPS, strict=True):
                    sums[:] = map(sum, zip(sums, found[loop], strict=True))
        rows.append([what, versions, *("/".join(map(str, of_loop)) for of_loop in counts)])
    about = (
        f"ringloop's own tests with each framework (`make test-applications`), on Python {entry['python']},"
        f" {entry['date']}. Each cell has the numbers of tests that passed, failed and were skipped. Tests that need"
        " ringloop's own functions do not run on asyncio. [integrations.md](integrations.md) says how to use each on ringloop."
    )
    return ["## Frameworks and tools", filled(about), table(["what", "versions", *LOOPS], rows, set(LOOPS))]


def filled(text: str, first: str = "", rest: str = "") -> str:
    """Break a text into lines, but never inside of code or a link."""
    lines, line = [], first
    for word in re.findall(r"(?:`[^`]*`|\[[^]]*\]\([^)]*\)|\S)+", text):
        if line.strip() and line != first and len(line) + len(word) > WIDTH:
            lines.append(line.rstrip())
            line = rest
        line += f"{word} "
    return "\n".join([*lines, line.rstrip()])


def bullets(texts: dict[str, list[str]]) -> list[str]:
    """Return a list of explanations, each with its tests."""
    items = []
    for text, tests in texts.items():
        items.append(filled(f"{', '.join(f'`{test}`' for test in tests)}: {text}", "- ", "  "))
    return ["\n".join(items)] if items else []


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0], allow_abbrev=False)
    parser.add_argument("--check", action="store_true", help="only compare the page with what would be written")
    parser.add_argument(
        "--applications", action="store_true", help="run tests/applications, and record the result first"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FILE", help="the file of results")
    options = parser.parse_args(arguments)
    status = run_applications(options.results) if options.applications else 0
    page = render(read(options.results))
    if options.check:
        if PAGE.read_text() != page:
            print(f"{PAGE.relative_to(REPOSITORY)} is out of date: make compatibility-page", file=sys.stderr)
            return 1
        return 0
    PAGE.write_text(page)
    return status


if __name__ == "__main__":
    sys.exit(main())
