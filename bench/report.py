"""What people see: a block of rows per cell as soon as it is known, then the summary and the verdicts."""

import sys
import textwrap
import time

from bench.arms import Presence
from bench.goals import Verdict
from bench.ratios import show
from bench.results import CellResult, Results

ARM_WIDTH = 15
VALUE_WIDTH = 14
RATIO_WIDTH = 21


def say(text: str = "") -> None:
    """Print a line at once, over the progress line if there is one."""
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    print(text, flush=True)


def minutes(seconds: float) -> str:
    """A duration for people."""
    whole = max(1, round(seconds))
    return f"{whole // 60} min {whole % 60} s" if whole >= 60 else f"{whole} s"


class Progress:
    """The line at the bottom of a terminal; nothing where there is no terminal."""

    def __init__(self, expected_s: float) -> None:
        self.expected_s = expected_s
        self.planned_s = 0.0
        self.begin = time.monotonic()

    def show(self, text: str) -> None:
        """Say what is running."""
        if not sys.stderr.isatty():
            return
        spent = time.monotonic() - self.begin
        # The plan is corrected by how well it has fitted so far.
        pace = spent / self.planned_s if self.planned_s > 5 else 1.0
        left = (self.expected_s - self.planned_s) * pace
        percent = 100 * self.planned_s / self.expected_s
        line = f"{percent:3.0f}%, about {minutes(left)} left: {text}"
        print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)

    def advance(self, planned_s: float) -> None:
        """So much of the plan is done."""
        self.planned_s += planned_s


def print_setting(results: Results, expected_s: float, cells: int, control: str) -> None:
    """What will be measured, on what."""
    facts = results.environment
    say(f"Python {facts['python']}, Linux {facts['kernel']}, {facts['cpu_model']}, {facts['cpus_usable']} CPUs")
    for presence in results.presences:
        say(f"  {presence.describe()}")
    say(f"{facts['placement']}")
    load = facts["load_average_begin"][0]
    if load > 0.3 * facts["cpus_usable"]:
        say(f"note: the load average is {load:.2f}; whatever else runs here makes the figures less certain")
    say(f"{cells} cells, {results.scale.rounds} round{'s' * (results.scale.rounds > 1)}, about {minutes(expected_s)}")
    say(
        "ratios: the median over the rounds of the ratio within a round (and its range);"
        f" above 1 is better than {control}"
    )


def print_left_out(reasons: dict[str, str]) -> None:
    """Which cells can't be measured here; those with the same reason share a line."""
    for reason in dict.fromkeys(reasons.values()):
        names = [name for name, text in reasons.items() if text == reason]
        say(f"skipped: {', '.join(names)}: {reason}")


def print_cell(result: CellResult) -> None:
    """The rows of one cell: the first figure with its ratios, then the others."""
    first, *others = result.cell.metrics
    floor = result.floor if first.has_ratio else None
    with_ratio = result.control in result.samples and first.has_ratio
    say()
    say(f"{result.cell.name}: {result.cell.title}")
    head = f"  {'':{ARM_WIDTH}}{first.unit:>{VALUE_WIDTH}}"
    head += f"  {f'x {result.control}':{RATIO_WIDTH}}" if with_ratio else ""
    head += f"  {'of the floor':{RATIO_WIDTH}}" if floor else ""
    say((head + "".join(f"{metric.unit:>{VALUE_WIDTH}}" for metric in others)).rstrip())
    for arm in result.samples:
        value = result.median(arm, first.key)
        if value is None:
            reasons = result.failures.get(arm)
            say(f"  {arm:{ARM_WIDTH}}" + (f"failed in {reasons[0]}" if reasons else "not measured"))
            continue
        row = f"  {arm:{ARM_WIDTH}}{show(value):>{VALUE_WIDTH}}"
        if with_ratio:
            advantage = result.advantage(arm, result.control, first.key)
            row += f"  {'control' if arm == result.control else str(advantage or ''):{RATIO_WIDTH}}"
        if floor:
            row += f"  {'floor' if arm == floor else str(result.ratio(arm, floor, first.key) or ''):{RATIO_WIDTH}}"
        for metric in others:
            other = result.median(arm, metric.key)
            row += f"{'' if other is None else show(other):>{VALUE_WIDTH}}"
        say(row.rstrip())
        for reason in result.failures.get(arm, []):
            say(f"  {'':{ARM_WIDTH}}failed in {reason}")


def print_summary(results: Results, control: str) -> None:
    """How many times better than the control, all cells at a glance."""
    present = [presence.arm.name for presence in results.presences if not presence.problem]
    arms = [name for name in present if name != control]
    compared = [result for result in results.cells.values() if result.cell.metrics[0].has_ratio]
    if not compared or not arms or control not in present:
        return
    width = max(len(arm) for arm in arms) + 2
    say()
    say(f"How many times better than {control}, in the first figure of each cell:")
    say(f"  {'':26}" + "".join(f"{arm:>{width}}" for arm in arms))
    for result in compared:
        row = f"  {result.cell.name:26}"
        for arm in arms:
            advantage = result.advantage(arm, control, result.cell.metrics[0].key)
            text = show(advantage.median) if advantage else "failed" if result.failures.get(arm) else ""
            row += f"{text:>{width}}"
        say(row.rstrip())


def print_verdicts(verdicts: list[Verdict]) -> None:
    """Goal by goal."""
    for arm in dict.fromkeys(verdict.arm for verdict in verdicts):
        say()
        say(f"Goals of {arm}:")
        ours = [verdict for verdict in verdicts if verdict.arm == arm]
        for verdict in ours:
            if verdict.reached is None:
                continue
            say(f"  {verdict.word():18}{verdict.goal}")
            for line in textwrap.wrap(verdict.measured, 96):
                say(f"  {'':20}{line}")
        if unmeasured := sum(verdict.reached is None for verdict in ours):
            say(f"  {unmeasured} other{'s' * (unmeasured > 1)} not measured: the cells did not run")


def print_presences(presences: list[Presence]) -> None:
    """Which arms there are here."""
    for presence in presences:
        say(f"  {presence.describe()}")
