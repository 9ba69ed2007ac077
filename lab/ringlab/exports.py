"""Results for other programs: as CSV, and when a comparison fails."""

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ringlab import Refused
from ringlab.results import Result
from ringlab.unpaired import Comparison, Judged

POINT_FIGURES = ("achieved_per_s", "latency_ns_p50", "latency_ns_p99", "latency_ns_p999")
"""Of each trial of a sweep."""


@dataclass(frozen=True)
class Condition:
    """When a comparison fails: `slower:3%` is a verdict of worse, by more than 3%."""

    kind: str
    percent: float = 0.0

    @classmethod
    def parse(cls, text: str) -> "Condition":
        """Read it; raise Refused."""
        match = re.fullmatch(r"(cannot-tell|missing)|(slower|faster)(?::(\d+(?:\.\d+)?)\s*%?)?", text.strip())
        if not match:
            raise Refused(
                f"--fail-if {text!r} isn't understood; write slower, faster, cannot-tell or missing, and slower or faster"
                " also with a limit: slower:3%"
            )
        return cls(match[1] or match[2], float(match[3] or 0.0))

    def meets(self, judged: Judged) -> bool:
        """Return whether a verdict fulfils it."""
        if self.kind == "cannot-tell":
            return judged.kind == "cannot tell"
        if self.kind == "slower":
            return judged.kind == "worse" and judged.worse_by > self.percent / 100
        return self.kind == "faster" and judged.kind == "better" and 1 / (1 + judged.worse_by) - 1 > self.percent / 100


def failures(comparison: Comparison, conditions: Sequence[Condition]) -> list[Judged]:
    """Return the verdicts that fulfil one of the conditions."""
    return [judged for judged in comparison.judged if any(condition.meets(judged) for condition in conditions)]


def comparison_csv(comparison: Comparison) -> str:
    """Return the verdicts as CSV (RFC 4180)."""
    rows = [
        [
            judged.cell, judged.arm, judged.metric.key, judged.metric.unit, judged.kind, f"{judged.ratio:.6g}", f"{judged.low:.6g}",
            f"{judged.high:.6g}", f"{judged.p_adjusted:.3g}", judged.rounds[0], judged.rounds[1], judged.control,
        ]
        for judged in comparison.judged
    ]  # fmt: skip
    headings = [
        "cell", "arm", "metric", "unit", "verdict", "ratio", "low", "high", "p_adjusted", "rounds_a", "rounds_b", "control",
    ]  # fmt: skip
    return write_csv(headings, rows)


def result_csv(result: Result) -> str:
    """Return every figure of every sample as CSV, in long form: a row for each. A trial of a sweep has its outcome as status."""
    rows = [
        [cell.name, sample.arm, sample.round, sample.position, sample.status, key, repr(value)]
        for cell in result.cells
        for sample in cell.samples
        for key, value in (sample.figures or {"": 0.0}).items()
    ]
    rows += [
        [cell.name, sample.arm, sample.round, sample.position, point.outcome, f"{key} at {point.offered_per_s:.1f}/s", repr(value)]
        for cell in result.cells
        for sample in cell.samples
        for point in sample.points
        for key, value in vars(point).items()
        if key in POINT_FIGURES
    ]  # fmt: skip
    return write_csv(["cell", "arm", "round", "position", "status", "figure", "value"], rows)


def write_csv(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table as CSV."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(headings)
    writer.writerows(rows)
    return text.getvalue()
