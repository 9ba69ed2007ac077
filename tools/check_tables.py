"""The tables of CONTRIBUTING.md that say what a check takes: each step, each folder of tests, and the slowest tests.

tools/check.py --table writes them, from its report and the records of the tests.
"""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import test_records

DOCUMENT = Path(__file__).resolve().parent.parent / "CONTRIBUTING.md"
BEGIN, END = "<!-- begin: tools/check_tables.py -->", "<!-- end: tools/check_tables.py -->"
NUMBERS = {"tests", "minutes", "seconds"}
SLOWEST = 50
"""How many of the slowest tests are listed."""


def minutes(seconds: float) -> str:
    """Return a duration in minutes, as the tables show it."""
    return f"{seconds / 60:.1f}"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown. Columns with these words in their header hold numbers."""
    lines = [" | ".join(header), " | ".join("---:" if NUMBERS & {*name.split()} else "---" for name in header)]
    return "\n".join(f"| {line} |" for line in [*lines, *(" | ".join(row) for row in rows)])


def read_records() -> dict[str, list[test_records.Record]]:
    """Return the records by the names of their files. Those of the lab's Python tests have names within its folder."""
    records = {path.stem: test_records.read(path) for path in sorted(test_records.FOLDER.glob("*.jsonl"))}
    for kind, tests in records.items():
        if kind.startswith("lab-") and kind != "lab-rust":
            records[kind] = [dataclasses.replace(test, name=f"lab/{test.name}") for test in tests]
    return records


def folder_of(name: str) -> str:
    """Return the folder of a Python test, or the program of a Rust test."""
    path, _, _ = name.partition("::")
    return path.rpartition("/")[0] or f"Rust: {path}"


def steps_table(report: dict[str, Any]) -> str:
    """Return a table of what each step took."""
    rows = [[step["name"], minutes(step["wall_s"]), minutes(step["cpu_s"])] for step in report["steps"]]
    total = ["together", minutes(report["wall_s"]), minutes(sum(step["cpu_s"] for step in report["steps"]))]
    return table(["step", "minutes", "minutes of CPU"], [*rows, total])


def folders_table(records: dict[str, list[test_records.Record]]) -> str:
    """Return a table of what the tests of each folder took, on each interpreter."""
    groups: dict[tuple[str, str], list[test_records.Record]] = collections.defaultdict(list)
    for kind, tests in records.items():
        for test in tests:
            groups[folder_of(test.name), kind].append(test)
    rows = [
        [
            folder,
            kind,
            str(len(tests)),
            minutes(sum(test.wall_s for test in tests)),
            minutes(sum(test.cpu_s for test in tests)),
        ]
        for (folder, kind), tests in groups.items()
    ]
    rows = [row for row in rows if row[3:] != ["0.0", "0.0"]]
    rows.sort(key=lambda row: -float(row[3]))
    return table(["folder", "record", "tests", "minutes", "minutes of CPU"], rows)


def slowest_table(records: dict[str, list[test_records.Record]]) -> str:
    """Return the slowest tests of all."""
    tests = [(test, kind) for kind, tests in records.items() for test in tests]
    tests.sort(key=lambda pair: -pair[0].wall_s)
    rows = [
        [
            f"`{test.name.replace('|', chr(92) + '|')}`",
            kind,
            f"{test.wall_s:.1f}",
            f"{test.cpu_s:.1f}" if "rust" not in kind else "",
        ]
        for test, kind in tests[:SLOWEST]
    ]
    return table(["test", "record", "seconds", "seconds of CPU"], rows)


def write(report: dict[str, Any]) -> None:
    """Put the tables between their marks."""
    records = read_records()
    text = "\n\n".join(
        [
            BEGIN,
            f"Measured on {report['date']}, at revision {report['commit'][:12]}: {report['machine']}.",
            steps_table(report),
            "The times of tests overlap, because several run at once. Those of Python include the processes\n"
            "that they start. Of Rust's, only each program as a whole has a CPU time.",
            folders_table(records),
            f"The {SLOWEST} slowest tests:",
            slowest_table(records),
            END,
        ]
    )
    document = DOCUMENT.read_text()
    pattern = re.compile(re.escape(BEGIN) + ".*" + re.escape(END), re.DOTALL)
    DOCUMENT.write_text(pattern.sub(lambda _: text, document))
