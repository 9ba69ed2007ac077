"""Two results against each other: the same arms, measured at different times.

Rounds of two runs have nothing in common, so they can't be paired, and a machine drifts from one run to the next by more than most
changes are worth. Two things make a comparison possible all the same:

- A control, an arm that took part in both runs and was not changed, such as a raw C server. What is compared is each arm's ratio
  to the control in the same round; drift acts on both and cancels. Without a control, figures are compared as they are, and the
  sentence says so.
- The second copy of an arm (A/A) was measured in both runs, too. How far its ratio moved from one run to the other is what moves
  by itself, and no smaller difference counts.

The test is Yuen's for two independent samples of unequal variance, which with nothing trimmed is Welch's (Biometrika 61, 1974). It
takes samples of different sizes, so two runs may have different numbers of rounds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ringlab import analysis, figures, results, statistics
from ringlab.deferred import np
from ringlab.results import Cell, Metric, Result

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Logs = NDArray[np.float64]

Kind = Literal["better", "worse", "tie", "cannot tell"]


@dataclass(frozen=True)
class Judged:
    """One arm in one cell and metric, the second result against the first."""

    cell: str
    arm: str
    metric: Metric
    kind: Kind
    ratio: float
    low: float
    high: float
    p_adjusted: float
    rounds: tuple[int, int]
    control: str
    """The arm to which both are relative; empty where figures are compared as they are."""
    sentence: str

    @property
    def worse_by(self) -> float:
        """How much worse it is, as a share: 0.03 is 3%; negative if it is better."""
        return (self.ratio if self.metric.better == "lower" else 1 / self.ratio) - 1


@dataclass(frozen=True)
class Comparison:
    """A comparison of two results."""

    judged: list[Judged]
    notes: list[str]
    """Reasons that make the comparison less certain, and what could not be compared."""
    missing: list[tuple[str, str]]
    """Cells and arms that only the first result has figures of."""


def estimate(first: Logs, second: Logs) -> statistics.Estimate | None:
    """Return the ratio of the second sample to the first, of logarithms, which are independent of each other."""
    if len(first) < 2 or len(second) < 2:
        return None
    (mean_first, error_first, rest_first), (mean_second, error_second, rest_second) = map(
        statistics.trimmed, (first, second)
    )
    variances = float(error_first) ** 2, float(error_second) ** 2
    error = math.sqrt(sum(variances))
    parts = [variance**2 / (rest - 1) for variance, rest in zip(variances, (rest_first, rest_second), strict=True)]
    # Welch and Satterthwaite's degrees of freedom.
    freedom = sum(variances) ** 2 / sum(parts) if sum(parts) > 0 else float(min(rest_first, rest_second) - 1)
    return statistics.Estimate(float(mean_second - mean_first), error, min(len(first), len(second)), freedom)


def logs_of(cell: Cell, arm: str, metric: Metric, control: str) -> Logs:
    """Return the logarithms of an arm's figures by round, relative to the control if there is one."""
    series = cell.windows(arm, metric.key)
    reference: statistics.Series = cell.windows(control, metric.key) if control else [1.0] * len(series)
    return statistics.log_ratios(series, reference)


def moved(first: Cell, second: Cell, metric: Metric, copies: Mapping[str, str]) -> float:
    """Return how far the A/A arm's ratio moved from one run to the other, as a share; `copies` are by what they are copies of."""
    for original, copy in copies.items():
        found = estimate(logs_of(first, copy, metric, original), logs_of(second, copy, metric, original))
        if found is not None:
            return math.expm1(abs(found.log_ratio))
    return 0.0


def compare(
    first: Result, second: Result, *, control: str = "", cells: Sequence[str] = (), every_metric: bool = False
) -> Comparison:
    """Compare the arms that both results have measured, in the cells that both have."""
    notes = differences(first, second)
    judged: list[Judged] = []
    missing: list[tuple[str, str]] = []
    others = {cell.name: cell for cell in second.cells}
    records = [*first.arms, *second.arms]
    again = {arm.name for arm in records if arm.repeats}
    if control not in ("", "none") and not any(arm.name == control for arm in records):
        raise results.ResultError(f"no arm is called {control!r}; --control takes one of the arms, or none")
    for cell in first.cells:
        arms = [arm for arm in cell.arms if cell.measured(arm) and arm not in again]
        if not arms or (cells and cell.name not in cells):
            continue
        other = others.get(cell.name)
        if other is None or not other.samples:
            missing += [(cell.name, arm) for arm in arms]
            continue
        changed = differing_parameters(cell, other)
        if changed:
            notes.append(f"{cell.name} isn't compared: {changed}")
            continue
        missing += [(cell.name, arm) for arm in arms if not other.measured(arm)]
        both = [arm for arm in arms if other.measured(arm)]
        copies = [analysis.copies_of(each, records) for each in (cell, other)]
        reference = analysis.common_control((cell, other), copies, control)
        known = [
            arm for arm in both if not any(is_bound(each, name) for each in (cell, other) for name in (arm, reference))
        ]
        if len(known) < len(both):
            names = ", ".join(arm for arm in both if arm not in known)
            notes.append(
                f"{cell.name}: {cell.primary.title} of {names} isn't compared, because it or the control's is only a bound"
            )
        for metric in cell.metrics if every_metric else [cell.primary]:
            judged += judge_cell(cell, other, metric, known if metric.primary else both, reference, copies)
    if not judged:
        raise results.ResultError("the two results have no arm and cell in common that both have measured")
    return Comparison(judged, notes, missing)


def is_bound(cell: Cell, arm: str) -> bool:
    """Return whether an arm's primary figure is only known to be at least, or at most, what it is."""
    return any(sample.bound for sample in cell.measured(arm))


def judge_cell(
    first: Cell, second: Cell, metric: Metric, arms: Sequence[str], control: str, copies: Sequence[Mapping[str, str]]
) -> list[Judged]:
    """Judge the arms of a cell in one metric, with Holm's correction for their number; `copies` are those of each of the two."""
    floors = [
        statistics.noise_floor(analysis.again(cell, metric, own))
        for cell, own in zip((first, second), copies, strict=True)
    ]
    floor = max(moved(first, second, metric, copies[0]), *floors)
    found = {}
    for arm in arms:
        if arm == control:
            continue
        logs = logs_of(first, arm, metric, control), logs_of(second, arm, metric, control)
        ratio = estimate(*logs)
        if ratio is not None:
            found[arm] = (ratio, (len(logs[0]), len(logs[1])))
    adjusted = statistics.holm([ratio.p for ratio, _ in found.values()])
    return [
        describe(first.name, arm, metric, ratio, rounds, p, floor, control)
        for (arm, (ratio, rounds)), p in zip(found.items(), adjusted, strict=True)
    ]


def describe(
    cell: str,
    arm: str,
    metric: Metric,
    found: statistics.Estimate,
    rounds: tuple[int, int],
    p: float,
    floor: float,
    control: str,
) -> Judged:
    """Return the verdict of an estimate, and put it into words."""
    standing = statistics.judge(found, p, floor)
    kind: Kind
    if standing in ("tie", "cannot tell"):
        kind = "tie" if standing == "tie" else "cannot tell"
    else:
        kind = "better" if (standing == "below") == (metric.better == "lower") else "worse"
    within = figures.compared(found.ratio, found.interval)
    basis = f"relative to {control}" if control else "as measured, the machine's drift included"
    if kind == "tie":
        said = f"no change beyond {figures.percent(statistics.TIE_MARGIN)}: {within}"
    elif kind == "cannot tell":
        said = f"no change shown: {within}; differences below {figures.percent(floor)} count as none"
    else:
        said = f"{kind}: {within}"
    sentence = f"{arm} in {metric.title}: {said} ({basis}; {rounds[0]} and {rounds[1]} rounds)"
    return Judged(cell, arm, metric, kind, found.ratio, *found.interval, p, rounds, control, sentence)


def differing_parameters(first: Cell, second: Cell) -> str:
    """Say in which respect two cells of one name aren't the same; nothing if they are."""
    # A rate is chosen by what the slowest arm does, and so differs from run to run.
    names = ("connections", "size_bytes", "mode", "concurrent", "feature", "framing", "request")
    for name in names:
        one, other = first.parameters.get(name), second.parameters.get(name)
        if one != other:
            return f"{name} was {one}, and is {other}"
    if first.metrics and second.metrics and first.primary.key != second.primary.key:
        return f"its figure was {first.primary.title}, and is {second.primary.title}"
    return ""


def differences(first: Result, second: Result) -> list[str]:
    """Return what differs between two runs that may explain a difference in their figures."""
    found = []
    for name, title in (
        ("host", "host"),
        ("machine", "architecture"),
        ("cpu_model", "CPU"),
        ("cpus_usable", "number of usable CPUs"),
        ("kernel", "kernel"),
        ("cpu_governor", "CPU governor"),
        ("libc", "C library"),
        ("python", "Python"),
        ("generator", "load generator"),
        ("mitigations", "mitigations"),
        ("variables", "environment variables"),
    ):
        one, other = getattr(first.environment, name), getattr(second.environment, name)
        if one != other:
            shown = f"{one or 'nothing'}, and is {other or 'nothing'}" if not isinstance(one, dict) else "others"
            found.append(f"the {title} was {shown}")
    if first.run.placement != second.run.placement:
        found.append("servers and load had other CPUs")
    versions = {arm.name: arm.version for arm in first.arms}
    for arm in second.arms:
        if arm.name in versions and not arm.skipped and versions[arm.name] not in ("", arm.version) and arm.version:
            found.append(f"{arm.name} was {versions[arm.name]}, and is {arm.version}")
    return found
