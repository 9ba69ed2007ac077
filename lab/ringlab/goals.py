"""Goals: what figures must be, from a TOML file, and whether a result reaches them.

A goal is judged for each of its arms over all cells that it names and that were measured, against each rival in the rounds that have
both:

- reached, if the 95% intervals of all are on the good side of the limit;
- missed, if one interval is on the bad side: that at a confidence which allows for their number;
- cannot tell otherwise, with fewer than statistics.ROUNDS_MIN rounds, and where a figure is only a bound and its true value could
  make the verdict another one.

never_worse_by is reached unless it is missed, and cannot be told only where no cell has enough rounds.

docs/lab.md describes the keys.
"""

import fnmatch
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, get_args

from ringlab import Refused, analysis, figures, nearest, statistics, tables, workloads
from ringlab.deferred import np
from ringlab.results import Cell, GoalKind, GoalVerdict, Metric, Result

KINDS: tuple[GoalKind, ...] = get_args(GoalKind)
AT_LEAST = ("better_by", "never_worse_by")
"""The kinds whose limit is the least ratio; that of the others is the most."""
DIFFERENCE_MAX = 1e9
"""No interval of a difference reaches further: JSON has no infinity."""
EXIT_REACHED, EXIT_MISSED, EXIT_CANNOT_TELL = 0, 1, 3


def check_some(names: Sequence[str]) -> None:
    """Raise ValueError for an empty list."""
    if not names:
        raise ValueError("is empty")


def check_limit(limit: float) -> None:
    """Raise ValueError for what is no limit."""
    if not 0 < limit < math.inf:
        raise ValueError(f"must be a number above 0, not {limit!r}")


Names = Annotated[tuple[str, ...], check_some]
Limit = Annotated[float, check_limit]


@dataclass(frozen=True, kw_only=True)
class Goal:
    """One goal, as a file has it."""

    name: str
    arms: Names
    cells: Names
    """Names or globs."""
    without: tuple[str, ...] = ()
    figures: tuple[str, ...] = ()
    """Of several, the one in which the arm does best counts; none: the figure that ranks a cell's arms."""
    against: tuple[str, ...] = ()
    """Of several, each counts in each cell."""
    better_by: Limit | None = None
    times_at_most: Limit | None = None
    points_at_most: Limit | None = None
    at_most: Limit | None = None
    never_worse_by: Limit | None = None

    def __post_init__(self) -> None:
        """Raise ValueError for what makes no sense together, or has no cell."""
        given = [kind for kind in KINDS if getattr(self, kind) is not None]
        if len(given) != 1:
            found = f"{' and '.join(given)} are both there" if given else "there is none"
            raise ValueError(f"name needs exactly one of {', '.join(KINDS)} beside it, and {found}")
        if self.kind == "never_worse_by" and self.limit >= 1:
            raise ValueError(f"never_worse_by must be a share below 1, as 0.02 for 2%, not {self.limit!r}")
        if self.against and self.kind == "at_most":
            raise ValueError("against makes no sense with at_most, which is about the figure itself")
        if not self.against and self.kind != "at_most":
            raise ValueError(f'against is missing: {self.kind} compares with an arm; add against = ["asyncio"]')
        for key, patterns in (("cells", self.cells), ("without", self.without)):
            for pattern in patterns:
                if not fnmatch.filter(workloads.BY_NAME, pattern):
                    near = nearest.suggest(pattern, workloads.BY_NAME)
                    raise ValueError(
                        f"{key} has {pattern!r}, which no cell is called; {near} `ringlab targets --cells` lists them"
                    )
        for name in self.cell_names:
            known = [metric.key for metric in workloads.BY_NAME[name].metrics]
            for key in self.figures:
                if key not in known:
                    raise ValueError(f"figures has {key!r}, which {name} doesn't have; it has {', '.join(known)}")

    @property
    def kind(self) -> GoalKind:
        """Which of the keys says what must be."""
        return next(kind for kind in KINDS if getattr(self, kind) is not None)

    @property
    def limit(self) -> float:
        """The value of that key."""
        return float(getattr(self, self.kind))

    @property
    def cell_names(self) -> set[str]:
        """The cells that it is about."""
        named, left_out = (
            {name for pattern in patterns for name in fnmatch.filter(workloads.BY_NAME, pattern)}
            for patterns in (self.cells, self.without)
        )
        return named - left_out


@dataclass(frozen=True)
class File:
    """The contents of a file of goals."""

    goals: Annotated[tuple[Goal, ...], check_some]


def read(path: Path) -> tuple[Goal, ...]:
    """Return the goals in a file; raise tables.WrongFile."""
    with tables.reading(path) as content:
        file: File = tables.read(File, content)
    return file.goals


def check_arms(goals: Sequence[Goal], path: Path, known: Sequence[str]) -> None:
    """Raise Refused for names of arms that there aren't."""
    for goal in goals:
        for name in (*goal.arms, *goal.against):
            if name not in known:
                near = nearest.suggest(name, known)
                raise Refused(
                    f"{path}: the goal {goal.name!r} names the arm {name!r}, which there isn't; {near} `ringlab targets` lists the arms"
                )


# --- judging ---


class Difference(statistics.Estimate):
    """A difference of two figures, which has the place of a ratio's logarithm."""

    @property
    def ratio(self) -> float:
        """The (trimmed) mean."""
        return self.log_ratio

    def within(self, outside: float = 1 - statistics.CONFIDENCE) -> statistics.Interval:
        """Return the differences between which the true one lies, but for this probability."""
        if self.freedom <= 0:
            return -DIFFERENCE_MAX, DIFFERENCE_MAX
        reach = statistics.student_quantile(1 - outside / 2, self.freedom) * self.standard_error
        return self.log_ratio - reach, self.log_ratio + reach


@dataclass(frozen=True)
class Finding:
    """One cell and rival: the figure that the limit is held against."""

    cell: str
    figure: str
    unit: str
    against: str
    found: statistics.Estimate
    may_be_more: bool
    """The true one may be above the interval, because a figure in it is only a bound."""
    may_be_less: bool
    bounded: tuple[str, ...]
    """The arms of which only bounds are known."""


def judge(goals: Sequence[Goal], result: Result) -> list[GoalVerdict]:
    """Judge every goal for each of its arms that took part."""
    took_part = {arm for cell in result.cells for arm in cell.arms if cell.measured(arm)}
    copies = {arm.repeats: arm.name for arm in result.arms if arm.repeats}
    return [judge_goal(goal, arm, result, copies) for goal in goals for arm in goal.arms if arm in took_part]


def judge_goal(goal: Goal, arm: str, result: Result, copies: dict[str, str]) -> GoalVerdict:
    """Judge one goal for one arm."""
    findings = [
        finding for cell in result.cells if cell.name in goal.cell_names for finding in find(goal, arm, cell, copies)
    ]
    verdict = GoalVerdict(goal=goal.name, arm=arm, verdict="not measured", kind=goal.kind, limit=goal.limit)
    if not findings:
        return verdict
    outside = 1 - statistics.CONFIDENCE
    at_least = goal.kind in AT_LEAST
    limit = 1 - goal.limit if goal.kind == "never_worse_by" else goal.limit
    enough = [each for each in findings if each.found.rounds >= statistics.ROUNDS_MIN]
    strict = outside / len(findings)

    def short(each: Finding) -> bool:
        low, high = each.found.within(strict)
        return high < limit and not each.may_be_more if at_least else low > limit and not each.may_be_less

    def good(each: Finding) -> bool:
        low, high = each.found.within(outside)
        return low >= limit and not each.may_be_less if at_least else high <= limit and not each.may_be_more

    failed = [each for each in enough if short(each)]
    if goal.kind == "never_worse_by":
        undecided = [] if enough else findings
    else:
        undecided = [each for each in findings if each not in enough or not good(each)]
    verdict.verdict = "missed" if failed else "cannot tell" if undecided else "reached"
    worst = worst_of(goal, failed or undecided or findings)
    verdict.low, verdict.high = worst.found.within(strict if failed else outside)
    verdict.value, verdict.cell, verdict.figure = worst.found.ratio, worst.cell, worst.figure
    verdict.unit, verdict.against, verdict.cells = worst.unit, worst.against, len({each.cell for each in findings})
    beyond = {each.cell for each in findings if (each.found.ratio < limit) == at_least and each.found.ratio != limit}
    verdict.cells_beyond = len(beyond)
    verdict.sentence = sentence_of(verdict, worst.found.rounds)
    if worst.bounded:
        verdict.sentence += f"; only bounds are known of {analysis.some_of(worst.bounded)}"
    return verdict


def worst_of(goal: Goal, findings: Sequence[Finding]) -> Finding:
    """Return the finding in which the arm does worst."""
    worst = min if goal.kind in AT_LEAST else max
    return worst(findings, key=lambda each: each.found.ratio)


def find(goal: Goal, arm: str, cell: Cell, copies: dict[str, str]) -> list[Finding]:
    """Return what a goal's limit is held against in a cell, rival by rival, in the figure in which the arm does best."""
    metrics = [metric for metric in cell.metrics if metric.key in goal.figures] if goal.figures else [cell.primary]
    found = [each for metric in metrics if (each := find_figure(goal, arm, cell, metric, copies))]
    best = max if goal.kind in AT_LEAST else min
    return best(found, key=lambda each: worst_of(goal, each).found.ratio, default=[])


def find_figure(goal: Goal, arm: str, cell: Cell, metric: Metric, copies: dict[str, str]) -> list[Finding]:
    """Return the same for one figure."""
    rivals = goal.against or ("",)
    found = [each for rival in rivals if (each := against(goal, arm, rival, cell, metric, copies)) is not None]
    # As in the headline of a cell, a rival with few rounds counts only if no other has enough.
    return [each for each in found if each.found.rounds >= statistics.ROUNDS_MIN] or found


def against(goal: Goal, arm: str, rival: str, cell: Cell, metric: Metric, copies: dict[str, str]) -> Finding | None:
    """Return the same against one rival, or against none, where the goal is about the figure itself."""
    own = analysis.series_of(cell, arm, metric, copies)
    other: statistics.Series = analysis.series_of(cell, rival, metric, copies) if rival else [1.0] * len(own)
    bounds = [analysis.bounds_of(cell, each, metric, copies) for each in (arm, rival)]
    found: statistics.Estimate | None
    if goal.kind == "points_at_most":
        pairs = zip(cell.series(arm, metric.key), cell.series(rival, metric.key), strict=True)
        found = statistics.estimate(np.array([one - two for one, two in pairs if one is not None and two is not None]))
        found = found and Difference(**vars(found))
    elif goal.kind in AT_LEAST and metric.better == "lower":
        bounds.reverse()
        found = statistics.estimate(statistics.log_ratios(other, own))
    else:
        found = statistics.estimate(statistics.log_ratios(own, other))
    if found is None:
        return None
    bounded = tuple(each for each in (arm, rival) if analysis.bounds_of(cell, each, metric, copies))
    return Finding(cell.name, metric.key, metric.unit, rival, found, *analysis.may_be(*bounds), bounded)


def asked_for(verdict: GoalVerdict) -> str:
    """Say what a goal asks for."""
    limit = figures.plain(verdict.limit)
    unit = "" if verdict.unit.startswith("%") else verdict.unit
    return {
        "better_by": f"at least {limit} times {'better' if verdict.limit > 1 else 'as good'}",
        "times_at_most": f"at most {limit} times as much",
        "points_at_most": f"at most {limit} more",
        "at_most": f"at most {figures.in_unit(verdict.limit, unit)}",
        "never_worse_by": f"never certainly worse by {figures.percent(verdict.limit)}",
    }[verdict.kind]


def sentence_of(verdict: GoalVerdict, rounds: int) -> str:
    """Say what was measured, with its interval."""
    value, low, high = verdict.value, verdict.low, verdict.high
    if verdict.kind == "at_most":
        write = [figures.in_unit(each, verdict.unit) for each in (value, low, high)]
    else:
        write = [f"{each:.2f}" if abs(each) < 10 else f"{each:.1f}" for each in (value, low, high)]
    times = " times" if verdict.kind in ("better_by", "times_at_most", "never_worse_by") else ""
    text = f"{write[0]}{times} ({f'{write[1]} to {write[2]}' if rounds > 1 else 'one round'}) in {verdict.cell}"
    text += f" against {verdict.against}" if verdict.against else ""
    text += f", {asked_for(verdict)}"
    if verdict.cells_beyond and verdict.cells > 1:
        text += f"; {verdict.cells_beyond} of {verdict.cells} cells are beyond the limit"
    if rounds < statistics.ROUNDS_MIN:
        text += f"; {figures.counted(rounds, 'round')} of at least {statistics.ROUNDS_MIN}"
    return text


def status_of(verdicts: Sequence[GoalVerdict]) -> int:
    """Return the exit status: 1 where a goal is missed, 3 where none is but one can't be told, or nothing was judged."""
    kinds = {each.verdict for each in verdicts}
    if "missed" in kinds:
        return EXIT_MISSED
    return EXIT_REACHED if kinds <= {"reached", "not measured"} and "reached" in kinds else EXIT_CANNOT_TELL
