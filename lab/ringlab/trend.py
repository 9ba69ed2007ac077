"""Figures over many runs: which results a folder has, each figure as a series, and where it changed for good."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean

from ringlab import Refused, analysis, results, steps, storage
from ringlab.results import Cell, Metric, Result

RUNS_MIN = 2


@dataclass(frozen=True)
class Run:
    """One result, and what to call it."""

    name: str
    path: Path
    result: Result

    @property
    def label(self) -> str:
        """Its commit, or when it began."""
        return self.result.environment.revision[:10] or self.result.run.begun[:16]


@dataclass(frozen=True)
class Point:
    """One figure in one run."""

    run: int
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Series:
    """One figure of one arm over the runs that have it."""

    cell: str
    arm: str
    metric: Metric
    control: str
    """The arm that it is relative to, in the same rounds; empty where it is the figure as measured."""
    points: list[Point]
    steps: list[steps.Step]
    """Their indices are those of points."""


def find_runs(folder: Path) -> tuple[list[Run], list[str]]:
    """Return the results in a folder, the oldest first, and what could not be read; raise Refused.

    A result is a `result.json` in any folder below it, or another *.json directly in it.
    """
    paths = sorted({*folder.rglob(storage.RESULT_FILE), *folder.glob("*.json")})
    runs, unread = [], []
    for path in paths:
        try:
            result = Result.read(path)
        except results.ResultError as error:
            unread.append(str(error))
            continue
        if any(cell.samples for cell in result.cells):
            name = path.parent.relative_to(folder).as_posix() if path.name == storage.RESULT_FILE else path.stem
            runs.append(Run(name if name != "." else folder.resolve().name, path, result))
    if not runs:
        raise Refused(
            f"no result is in {folder}: `ringlab run` writes one to {storage.FOLDER}/DATE"
            + (f"; {unread[0]}" if unread else "")
        )
    return sorted(runs, key=lambda run: run.result.run.begun), unread


def relative(cell: Cell, arm: str, metric: str, control: str) -> list[float]:
    """Return an arm's figure by round, divided by the control's if there is one."""
    series = cell.series(arm, metric)
    reference = cell.series(control, metric) if control else [1.0] * len(series)
    return [
        value / by
        for value, by in zip(series, reference, strict=True)
        if value is not None and by is not None and 0 < value < math.inf and 0 < by < math.inf
    ]


def all_series(runs: Sequence[Run], control: str = "") -> Iterator[Series]:
    """Yield the series of every cell, arm and metric that at least RUNS_MIN runs have."""
    names = list(dict.fromkeys(cell.name for run in runs for cell in run.result.cells if cell.samples))
    for name in names:
        cells = [
            (index, cell)
            for index, run in enumerate(runs)
            for cell in run.result.cells
            if cell.name == name and cell.samples
        ]
        again = {arm.name for run in runs for arm in run.result.arms if arm.repeats}
        copies = {index: analysis.copies_of(cell, runs[index].result.arms) for index, cell in cells}
        reference = analysis.common_control([cell for _, cell in cells], list(copies.values()), control)
        arms = [arm for arm in dict.fromkeys(arm for _, cell in cells for arm in cell.arms) if arm not in again]
        metrics = {metric.key: metric for _, cell in cells for metric in cell.metrics}
        for metric in metrics.values():
            for arm in arms:
                own = reference if arm != reference else ""
                points, noise = [], []
                for index, cell in cells:
                    values = sorted(relative(cell, arm, metric.key, own))
                    if values:
                        points.append(Point(index, geometric_mean(values), values[0], values[-1]))
                        noise.append(noise_of(cell, arm, metric, own, copies[index]))
                if len(points) >= RUNS_MIN:
                    found = steps.find([point.value for point in points], noise)
                    yield Series(name, arm, metric, own, points, found)


def noise_of(cell: Cell, arm: str, metric: Metric, control: str, copies: Mapping[str, str]) -> steps.Noise:
    """Return what a run knows of the noise of a figure: what the A/A arm shows, and in which direction the figure is only a bound."""
    again = analysis.again(cell, metric, copies)
    more, less = analysis.may_be(*(analysis.bounds_of(cell, each, metric, {}) for each in (arm, control)))
    return steps.Noise(again=again.ratio if again is not None else None, may_be_more=more, may_be_less=less)
