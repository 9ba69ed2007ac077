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
import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, get_args

from ringlab import Refused, analysis, figures, nearest, statistics, workloads
from ringlab.manifest import ManifestError, Table, check_numbers
from ringlab.results import Cell, GoalKind, GoalVerdict, Metric, Result
from ringlab.workloads import CellPlan

KINDS: tuple[GoalKind, ...] = get_args(GoalKind)
WITH_RIVAL = ("better_by", "times_at_most", "points_at_most", "never_worse_by")
"""The kinds that compare with other arms."""
AT_LEAST = ("better_by", "never_worse_by")
"""The kinds whose limit is the least ratio; that of the others is the most."""
DIFFERENCE_MAX = 1e9
"""No interval of a difference reaches further: JSON has no infinity."""
EXIT_REACHED, EXIT_MISSED, EXIT_CANNOT_TELL = 0, 1, 3


class GoalsError(Refused):
    """A goals file can't be used; the message says where, and what would be right."""


@dataclass(frozen=True)
class Goal:
    """One goal."""

    name: str
    arms: tuple[str, ...]
    cells: tuple[str, ...]
    """Names of cells."""
    figures: tuple[str, ...]
    """Of several, the one in which the arm does best counts; none: the figure that ranks a cell's arms."""
    against: tuple[str, ...]
    """Of several, each counts in each cell."""
    kind: GoalKind
    limit: float
    line: int


# --- reading ---


class GoalTable(Table):
    """A table of a goals file, whose errors name the line."""

    def __init__(self, path: Path, where: str, content: object, lines: Sequence[str], begin: int) -> None:
        """Take the table that begins in a line, counted from 0."""
        super().__init__(path, where, content)
        self.lines = lines
        self.begin = begin

    def line(self, key: str) -> int:
        """Return the line of a key, counted from 1, or that of the table, where it has no such key."""
        for number in range(self.begin + 1, len(self.lines)):
            if re.match(r"\s*\[", self.lines[number]) and "=" not in self.lines[number]:
                break
            if re.match(rf"\s*{re.escape(key)}\s*=", self.lines[number]):
                return number + 1
        return self.begin + 1

    def fail(self, key: str, text: str) -> ManifestError:
        """Return an error about a key."""
        return ManifestError(f"{self.path}, line {self.line(key)}: {self.where}.{key} {text}")


def read(path: Path) -> list[Goal]:
    """Return the goals in a file; raise GoalsError."""
    try:
        text = path.read_text(encoding="utf-8")
        content = tomllib.loads(text)
        check_numbers(content)
    except OSError as error:
        raise GoalsError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # Also of int(), and of too many brackets.
        raise GoalsError(f"{path} is not valid TOML: {error}") from None
    others = sorted(set(content) - {"goals"})
    if others:
        raise GoalsError(f"{path}: {others[0]} is not known; the file has only tables that begin with [[goals]]")
    tables = content.get("goals", [])
    if not isinstance(tables, list) or not tables:
        raise GoalsError(f"{path} has no goal: each is a table that begins with [[goals]]")
    lines = text.splitlines()
    begins = [number for number, line in enumerate(lines) if re.match(r"\s*\[\[\s*goals\s*\]\]", line)]
    try:
        return [
            read_goal(GoalTable(path, f"goals[{index}]", table, lines, begins[index] if index < len(begins) else 0))
            for index, table in enumerate(tables)
        ]
    except ManifestError as error:
        raise GoalsError(str(error)) from None


def read_goal(table: GoalTable) -> Goal:
    """Read one table; raise ManifestError."""
    name = table.text("name")
    arms = table.texts("arms")
    if not arms:
        raise table.fail("arms", 'is missing: add arms = ["ringloop"], the arms that the goal is for')
    plans = read_cells(table)
    kind, limit = read_limit(table)
    against = table.texts("against")
    if against and kind not in WITH_RIVAL:
        raise table.fail("against", f"makes no sense with {kind}, which is about the figure itself")
    if not against and kind in WITH_RIVAL:
        raise table.fail("against", f'is missing: {kind} compares with an arm; add against = ["asyncio"]')
    keys = table.texts("figures")
    for key in keys:
        for plan in plans:
            known = [metric.key for metric in plan.metrics]
            if key not in known:
                raise table.fail("figures", f"has {key!r}, which {plan.name} doesn't have; it has {', '.join(known)}")
    table.done()
    return Goal(name, arms, tuple(plan.name for plan in plans), keys, against, kind, limit, table.begin + 1)


def read_cells(table: GoalTable) -> list[CellPlan]:
    """Return the cells that a goal is about."""
    patterns, without = table.texts("cells"), table.texts("without")
    if not patterns:
        raise table.fail("cells", 'is missing: add cells = ["loops/echo/*"], names of cells or globs')
    for key, each in (("cells", patterns), ("without", without)):
        for pattern in each:
            if not any(fnmatch.fnmatchcase(name, pattern) for name in workloads.BY_NAME):
                near = nearest.suggest(pattern, list(workloads.BY_NAME))
                raise table.fail(
                    key, f"has {pattern!r}, which no cell is called; {near or ''} `ringlab targets --cells` lists them"
                )

    def matches(name: str, globs: Iterable[str]) -> bool:
        return any(fnmatch.fnmatchcase(name, glob) for glob in globs)

    return [plan for plan in workloads.CELLS if matches(plan.name, patterns) and not matches(plan.name, without)]


def read_limit(table: GoalTable) -> tuple[GoalKind, float]:
    """Return the one key that says what must be, and its value."""
    given: list[GoalKind] = [kind for kind in KINDS if kind in table.content]
    if len(given) != 1:
        found = f"and {' and '.join(given)} are both there" if given else "and there is none"
        raise table.fail(given[-1] if given else "name", f"needs exactly one of {', '.join(KINDS)} beside it, {found}")
    limit = table.get(given[0], float, None, "a number")
    if not math.isfinite(limit) or limit <= 0:
        raise table.fail(given[0], f"must be a number above 0, not {limit!r}")
    if given[0] == "never_worse_by" and limit >= 1:
        raise table.fail(given[0], f"must be a share below 1, as 0.02 for 2%, not {limit!r}")
    return given[0], limit


def check_arms(goals: Sequence[Goal], path: Path, known: Sequence[str]) -> None:
    """Raise GoalsError for names of arms that there aren't."""
    for goal in goals:
        for name in (*goal.arms, *goal.against):
            if name not in known:
                near = nearest.suggest(name, known)
                raise GoalsError(
                    f"{path}, line {goal.line}: the goal {goal.name!r} names the arm {name!r}, which there isn't; {near or ''}"
                    " `ringlab targets` lists the arms"
                )


# --- judging ---


class Estimated(Protocol):
    """A figure with its uncertainty."""

    @property
    def rounds(self) -> int:
        """In how many rounds it was measured."""

    @property
    def ratio(self) -> float:
        """Its estimate."""

    def within(self, outside: float) -> tuple[float, float]:
        """Return the values between which the true one lies, but for this probability."""


@dataclass(frozen=True)
class Difference:
    """A difference of two figures, round by round."""

    values: tuple[float, ...]

    @property
    def rounds(self) -> int:
        """In how many rounds both were measured."""
        return len(self.values)

    @property
    def ratio(self) -> float:
        """The mean."""
        return math.fsum(self.values) / len(self.values)

    def within(self, outside: float) -> tuple[float, float]:
        """Return the differences between which the true one lies, but for this probability."""
        rounds, mean = self.rounds, self.ratio
        if rounds < 2:
            return -DIFFERENCE_MAX, DIFFERENCE_MAX
        error = math.sqrt(math.fsum((each - mean) ** 2 for each in self.values) / (rounds * (rounds - 1)))
        reach = statistics.student_quantile(1 - outside / 2, rounds - 1) * error
        return mean - reach, mean + reach


@dataclass(frozen=True)
class Finding:
    """One cell and rival: the figure that the limit is held against."""

    cell: str
    figure: str
    unit: str
    against: str
    found: Estimated
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
        finding for cell in result.cells if cell.name in goal.cells for finding in find(goal, arm, cell, copies)
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
    found: Estimated | None
    if goal.kind == "points_at_most":
        pairs = zip(cell.series(arm, metric.key), cell.series(rival, metric.key), strict=True)
        values = tuple(one - two for one, two in pairs if one is not None and two is not None)
        found = Difference(values) if values else None
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
    elif verdict.kind == "points_at_most":
        write = [f"{each:.2f}" for each in (value, low, high)]
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
