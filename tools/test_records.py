"""The times and outcomes of the tests of a run, and when a failed test may be run again.

A failed test is run again, alone, twice. If it passes both times, it is flaky: it is reported, and the run passes as long as no more
than FLAKY_MAX tests are. A test that is marked as exact, and one that ended its process, is never run again.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "target" / "records"
"""Where records are written, one file for each kind of tests and interpreter."""
RERUNS = 2
"""How many times a failed test must pass alone."""
FLAKY_MAX = 5
"""How many flaky tests a run may have."""


@dataclasses.dataclass
class Record:
    """One test: how it ended (passed, skipped, failed or flaky), and what it took."""

    name: str
    outcome: str
    exact: bool = False
    wall_s: float = 0.0
    cpu_s: float = 0.0
    output: str = ""


def read(path: Path) -> list[Record]:
    """Return the records of a file; none if there is no such file."""
    if not path.exists():
        return []
    with open(path, encoding="utf-8") as file:
        return [Record(**json.loads(line)) for line in file]


def write(path: Path, records: Iterable[Record], mode: str = "w") -> None:
    """Write the records to a file, or append them with mode "a"."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, mode, encoding="utf-8") as file:
        file.writelines(json.dumps(dataclasses.asdict(record)) + "\n" for record in records)


def judge(records: Sequence[Record], run_alone: Callable[[str], bool]) -> bool:
    """Run the failed tests again with `run_alone`, mark those that pass as flaky, and say whether the run passes.

    If more tests failed than may be flaky, or an exact one did, the verdict is known, and nothing is run again.
    """
    failed = [record for record in records if record.outcome == "failed"]
    exact = [record for record in failed if record.exact]
    if exact:
        names = ", ".join(record.name for record in exact)
        print(f"\nfailed, and never run again, because a single failure is a defect: {names}")
        return False
    if len(failed) > FLAKY_MAX:
        print(f"\n{len(failed)} tests failed. More than {FLAKY_MAX} can't all be flaky, so none is run again.")
        return False
    for record in failed:
        print(f"\nrunning {record.name} again, alone, {RERUNS} times")
        if all(run_alone(record.name) for _ in range(RERUNS)):
            record.outcome = "flaky"
    for record in failed:
        if record.outcome == "flaky":
            print(f"FLAKY {record.name}: it failed once, and passed {RERUNS} times alone; see tests/flaky.md")
        else:
            print(f"FAILED {record.name}: it failed again when it ran alone")
    return all(record.outcome == "flaky" for record in failed)
