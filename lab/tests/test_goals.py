"""Goals: how a file is read, and what follows from figures."""

import subprocess
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from conftest import command_of
from ringlab import Refused, goals, manifest, results, sources, workloads
from ringlab.goals import Goal
from ringlab.results import Cell, GoalVerdict, Result
from ringlab.tables import WrongFile
from runs import make_run

FOLDER = Path(__file__).resolve().parents[1] / "goals"
CHAIN, ECHO, STREAMS = "loops/schedule/chain", "loops/echo/protocol/1KB/50", "loops/echo/streams/1KB/50"
NEAR = (0.99, 1.0, 1.01, 1.0, 0.995)
"""How a figure scatters from round to round."""


def cell_of(name: str, metric: str = "", **means: float | Sequence[float]) -> Cell:
    """Return a measured cell with these means, or with these series, of its primary figure or another."""
    plan = workloads.BY_NAME[name]
    cell = plan.record(results.Scale(name="quick", rounds=5, window_s=0.5, warm_up_s=0.1, ramp_s=0.0))
    key = metric or cell.primary.key
    cell.arms = [arm.replace("_", "-") for arm in means]
    for turn, (arm, mean) in enumerate(zip(cell.arms, means.values(), strict=True)):
        series = [mean * factor for factor in (*NEAR[turn:], *NEAR[:turn])] if isinstance(mean, float | int) else mean
        cell.orders = [cell.arms] * max(len(series), len(cell.orders))
        cell.samples += [
            results.Sample(
                arm=arm, round=number, position=1, begun_s=0.0, duration_s=1.0, status="measured", figures={key: value}
            )
            for number, value in enumerate(series, 1)
        ]  # fmt: skip
    return cell


def result_of(*cells: Cell) -> Result:
    made = make_run({"uvloop": 1.0})
    names = sorted({name for cell in cells for name in cell.arms})
    made.arms = [results.Arm(name=name, target=name, language="Python", title=name) for name in names]
    made.cells = list(cells)
    return made


def goal_of(
    kind: results.GoalKind, limit: float, *cells: str, against: Sequence[str] = (), figures: Sequence[str] = ()
) -> Goal:
    limits: dict[str, Any] = {kind: limit}
    return Goal(
        name="a goal", arms=("ringloop",), cells=cells, figures=tuple(figures), against=tuple(against), **limits
    )


def verdict_of(goal: Goal, *cells: Cell) -> GoalVerdict:
    (verdict,) = goals.judge([goal], result_of(*cells))
    return verdict


def test_a_goal_is_reached_missed_or_cannot_be_told() -> None:
    goal = goal_of("better_by", 10, CHAIN, against=["asyncio"])
    reached = verdict_of(goal, cell_of(CHAIN, asyncio=1600, ringloop=100))
    assert reached.verdict == "reached"
    assert reached.low < reached.value < reached.high
    assert reached.value == pytest.approx(16)
    assert reached.sentence.startswith("16.0 times (")
    assert reached.sentence.endswith(f"in {CHAIN} against asyncio, at least 10 times better")
    assert verdict_of(goal, cell_of(CHAIN, asyncio=800, ringloop=100)).verdict == "missed"
    noisy = cell_of(CHAIN, asyncio=[1000.0] * 5, ringloop=[60.0, 140.0, 90.0, 130.0, 80.0])
    assert verdict_of(goal, noisy).verdict == "cannot tell"


def test_two_rounds_tell_nothing() -> None:
    goal = goal_of("better_by", 10, CHAIN, against=["asyncio"])
    verdict = verdict_of(goal, cell_of(CHAIN, asyncio=[1600.0] * 2, ringloop=[100.0] * 2))
    assert verdict.verdict == "cannot tell"
    assert verdict.sentence.endswith("2 rounds of at least 3")


@pytest.mark.parametrize(
    ("goal", "cell"),
    [
        (goal_of("points_at_most", 2, "loops/wait/idle", against=["uvloop"]), "loops/wait/idle"),
        (goal_of("better_by", 2, CHAIN, against=["uvloop"]), CHAIN),
        (goal_of("at_most", 2, CHAIN), CHAIN),
    ],
)
def test_one_round_is_no_verdict_and_can_be_written(goal: Goal, cell: str, tmp_path: Path) -> None:
    made = result_of(cell_of(cell, uvloop=[3.0], ringloop=[1.0]))
    made.goals = goals.judge([goal], made)
    assert made.goals[0].verdict == "cannot tell"
    assert "(one round)" in made.goals[0].sentence
    made.write(tmp_path / "result.json")
    assert Result.read(tmp_path / "result.json") == made


def test_the_worst_cell_and_the_best_rival_decide() -> None:
    goal = goal_of("better_by", 1.1, ECHO, STREAMS, against=["asyncio", "uvloop"])
    cells = [cell_of(ECHO, asyncio=9, uvloop=6, ringloop=4), cell_of(STREAMS, asyncio=20, uvloop=50, ringloop=19)]
    verdict = verdict_of(goal, *cells)
    assert (verdict.verdict, verdict.cell, verdict.against) == ("missed", STREAMS, "asyncio")
    assert (verdict.cells, verdict.cells_beyond) == (2, 1)
    assert verdict_of(goal, cells[0]).verdict == "reached"
    assert verdict_of(goal, cells[0]).against == "uvloop"


def test_rivals_are_compared_in_the_rounds_that_they_share_with_the_arm() -> None:
    """The machine became slower after three rounds, which are all that one rival has."""
    goal = goal_of("better_by", 1.05, ECHO, against=["asyncio", "uvloop"])
    drift = [1.0, 1.001, 0.999, *(1.3 * factor for factor in NEAR)]
    cell = cell_of(
        ECHO,
        asyncio=[10.0 * each for each in drift],
        uvloop=[11.6 * each for each in drift[:3]],
        ringloop=[11.0 * each * factor for each, factor in zip(drift, (*NEAR, *NEAR[:3]), strict=True)],
    )
    verdict = verdict_of(goal, cell)
    assert (verdict.verdict, verdict.against) == ("missed", "asyncio")
    assert verdict.value == pytest.approx(10 / 11, rel=0.01)


def test_a_rival_that_scatters_is_not_passed_over_for_a_nearer_one() -> None:
    goal = goal_of("better_by", 1.05, ECHO, against=["asyncio", "uvloop"])
    cell = cell_of(ECHO, asyncio=12, uvloop=[6.0, 20.0, 12.5, 24.0, 9.0], ringloop=10)
    verdict = verdict_of(goal, cell)
    assert (verdict.verdict, verdict.against) == ("cannot tell", "uvloop")
    assert verdict.low < 1.05 < verdict.value
    assert verdict_of(goal, cell_of(ECHO, asyncio=12, uvloop=[13.0, 12.9], ringloop=10)).verdict == "reached"


def test_more_is_better_where_a_figure_says_so() -> None:
    goal = goal_of("better_by", 1.5, ECHO, against=["uvloop"], figures=["operations_per_s"])
    assert verdict_of(goal, cell_of(ECHO, "operations_per_s", uvloop=100, ringloop=200)).verdict == "reached"
    assert verdict_of(goal, cell_of(ECHO, "operations_per_s", uvloop=200, ringloop=100)).verdict == "missed"


def test_of_several_figures_the_better_one_counts() -> None:
    cell = cell_of(ECHO, uvloop=10, ringloop=10)
    for sample in cell.samples:
        sample.figures["operations_per_s"] = 125.0 if sample.arm == "ringloop" else 100.0
    either = goal_of("better_by", 1.2, ECHO, against=["uvloop"], figures=["server_cpu_us", "operations_per_s"])
    verdict = verdict_of(either, cell)
    assert (verdict.verdict, verdict.figure) == ("reached", "operations_per_s")
    one = goal_of("better_by", 1.2, ECHO, against=["uvloop"], figures=["server_cpu_us"])
    assert verdict_of(one, cell).verdict == "missed"


def test_a_limit_may_be_a_multiple_a_difference_or_the_figure_itself() -> None:
    floor = goal_of("times_at_most", 1.15, ECHO, against=["floor"])
    assert verdict_of(floor, cell_of(ECHO, floor=10, ringloop=11)).verdict == "reached"
    assert verdict_of(floor, cell_of(ECHO, floor=10, ringloop=13)).verdict == "missed"
    idle = goal_of("points_at_most", 2, "loops/wait/idle", against=["uvloop"])
    rests = cell_of("loops/wait/idle", uvloop=[0.0] * 5, ringloop=[1.5, 1.6, 1.5, 1.4, 1.5])
    assert verdict_of(idle, rests).verdict == "reached"
    assert verdict_of(idle, cell_of("loops/wait/idle", uvloop=[0.0] * 5, ringloop=4)).verdict == "missed"
    itself = goal_of("at_most", 2000, "loops/setup/getaddrinfo")
    verdict = verdict_of(itself, cell_of("loops/setup/getaddrinfo", ringloop=840))
    assert verdict.verdict == "reached"
    assert "839 ns (" in verdict.sentence
    assert verdict.sentence.endswith("at most 2.00 us")


@pytest.mark.parametrize(
    ("ringloop", "rival", "bounds", "verdict"),
    [
        (100, 80, {}, "reached"),
        (100, 80, {"asyncio": "at least"}, "cannot tell"),
        (100, 80, {"asyncio": "at most"}, "reached"),
        (100, 80, {"ringloop": "at least"}, "reached"),
        (100, 80, {"ringloop": "at most"}, "cannot tell"),
        (70, 80, {}, "missed"),
        (70, 80, {"asyncio": "at least"}, "missed"),
        (70, 80, {"ringloop": "at least"}, "cannot tell"),
    ],
)
def test_a_bound_is_not_taken_for_the_figure(
    ringloop: float, rival: float, bounds: dict[str, results.Bound], verdict: str
) -> None:
    cell = cell_of("sweep/echo/1KB/50", asyncio=rival, ringloop=ringloop)
    for sample in cell.samples:
        sample.bound = bounds.get(sample.arm, "")
    found = verdict_of(goal_of("better_by", 1.05, cell.name, against=["asyncio"]), cell)
    assert found.verdict == verdict
    assert found.sentence.endswith(f"; only bounds are known of {next(iter(bounds), '')}") == bool(bounds)
    # The same limit, the other way round: the figure itself, or its share of the rival's, is at most this.
    turned = {"missed": "reached", "reached": "missed"}
    expected = turned.get(verdict, verdict)
    assert verdict_of(goal_of("times_at_most", 1.05, cell.name, against=["asyncio"]), cell).verdict == expected
    if "asyncio" not in bounds:
        assert verdict_of(goal_of("at_most", 84, cell.name), cell).verdict == expected


def test_never_worse_is_missed_by_one_certain_cell_only() -> None:
    goal = goal_of("never_worse_by", 0.02, ECHO, STREAMS, against=["uvloop"])
    level = cell_of(STREAMS, uvloop=100, ringloop=100)
    assert verdict_of(goal, cell_of(ECHO, uvloop=100, ringloop=101), level).verdict == "reached"
    worse = verdict_of(goal, cell_of(ECHO, uvloop=100, ringloop=110), level)
    assert (worse.verdict, worse.cell) == ("missed", ECHO)
    few = cell_of(ECHO, uvloop=[100.0] * 2, ringloop=[100.0] * 2)
    assert verdict_of(goal, few).verdict == "cannot tell"
    assert verdict_of(goal, few, level).verdict == "reached"


def test_what_was_not_measured_is_said_and_arms_without_figures_are_left_out() -> None:
    goal = goal_of("better_by", 10, CHAIN, against=["asyncio"])
    assert verdict_of(goal, cell_of(ECHO, asyncio=2, ringloop=1)).verdict == "not measured"
    assert verdict_of(goal, cell_of(CHAIN, uvloop=2, ringloop=1)).verdict == "not measured"
    assert goals.judge([goal], result_of(cell_of(CHAIN, asyncio=2, uvloop=1))) == []


def test_noise_among_many_equal_cells_misses_no_goal() -> None:
    """Ten cells at the limit: each has an interval beyond it now and then, but not at the confidence of all together."""
    names = [name for name in workloads.BY_NAME if name.startswith("loops/echo/")][:10]
    goal = goal_of("better_by", 1.0, *names, against=["uvloop"])
    scattered = cell_of(names[0], uvloop=[100.0] * 5, ringloop=[101.0, 103.0, 102.0, 104.0, 100.5])
    alone = verdict_of(goal, scattered)
    together = verdict_of(goal, scattered, *(cell_of(name, uvloop=100, ringloop=100) for name in names[1:]))
    assert (alone.verdict, together.verdict) == ("missed", "cannot tell")


@pytest.mark.parametrize(
    ("kinds", "status"),
    [
        (("reached", "not measured"), 0),
        (("reached", "missed", "cannot tell"), 1),
        (("reached", "cannot tell"), 3),
        (("not measured",), 3),
        ((), 3),
    ],
)
def test_the_exit_status_is_that_of_the_worst(kinds: Sequence[results.GoalStatus], status: int) -> None:
    verdicts = [GoalVerdict(goal="a", arm="b", verdict=kind, kind="better_by", limit=1) for kind in kinds]
    assert goals.status_of(verdicts) == status


GOOD = """
# A comment.
[[goals]]
name = "first"
arms = ["ringloop"]
cells = ["loops/schedule/chain"]
against = ["asyncio"]
better_by = 10

[[goals]]
name = "second"
arms = ["ringloop"]
cells = ["loops/echo/*"]
without = ["loops/echo/*/500"]
figures = ["latency_ns_p50"]
against = ["uvloop"]
times_at_most = 0.5
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "goals.toml"
    path.write_text(textwrap.dedent(text))
    return path


def test_a_file_is_read(tmp_path: Path) -> None:
    first, second = goals.read(written(tmp_path, GOOD))
    assert (first.kind, first.limit, first.cell_names) == ("better_by", 10, {"loops/schedule/chain"})
    assert second.kind == "times_at_most"
    assert "loops/echo/streams/1KB/50" in second.cell_names
    assert "loops/echo/streams/1KB/500" not in second.cell_names


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("better_by = 10", "better = 10", r"goals\['first'\].better is not known; did you mean better_by\?"),
        ("better_by = 10", "", r"goals\['first'\].name needs exactly one of better_by, .* beside it, and there is none"),
        ("better_by = 10", 'better_by = "10"', r"goals\['first'\].better_by must be a number, not '10'"),
        ("better_by = 10", "better_by = -1", r"goals\['first'\].better_by must be a number above 0, not -1.0"),
        ("better_by = 10", "better_by = nan", r"goals\['first'\].better_by must be a number above 0, not nan"),
        ("better_by = 10", "better_by = 10\nat_most = 2", r"goals\['first'\].name needs .* and better_by and at_most are both there"),
        ("better_by = 10", "never_worse_by = 2", r"goals\['first'\].never_worse_by must be a share below 1"),
        ("better_by = 10", "at_most = 10", r"goals\['first'\].against makes no sense with at_most"),
        ('against = ["asyncio"]', "", r"goals\['first'\].against is missing: better_by compares with an arm"),
        ('name = "first"', "", r"goals\[0\].name is missing; needed here: name, arms, cells"),
        ('arms = ["ringloop"]', "arms = []", r"goals\['first'\].arms is empty"),
        ('cells = ["loops/schedule/chain"]', "", r"goals\['first'\].cells is missing"),
        ("schedule/chain", "schedule/chian", r"goals\['first'\].cells has 'loops/schedule/chian', .* did you mean loops/schedule/chain"),
        ("latency_ns_p50", "latency_p50", r"goals\['second'\].figures has 'latency_p50', which loops/echo/.* doesn't have; it has"),
        ("[[goals]]\nname = \"second\"", "[other]\nname = \"second\"", r"goals.toml: other is not known; known here: goals"),
        ("better_by = 10", "better_by = ", r"is not valid TOML: .*line 8"),
        ("better_by = 10", f"better_by = {'1' * 400}", "is not valid TOML: int too large"),
        ('name = "first"', f"name = 0x{'f' * 5000}", "is not valid TOML: Exceeds the limit"),
        ("better_by = 10", f"better_by = {'[' * 20_000}", "is not valid TOML: "),
        (GOOD, "", "goals is missing"),
        (GOOD, "goals = []", "goals is empty"),
    ],
)  # fmt: skip
def test_an_error_names_the_goal_and_what_would_be_right(old: str, new: str, message: str, tmp_path: Path) -> None:
    assert old in GOOD
    with pytest.raises(WrongFile, match=message):
        goals.read(written(tmp_path, GOOD.replace(old, new, 1)))


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(WrongFile, match="cannot read .*none.toml: No such file or directory"):
        goals.read(tmp_path / "none.toml")


def test_an_unknown_arm_is_told(tmp_path: Path) -> None:
    found = goals.read(written(tmp_path, GOOD.replace('against = ["uvloop"]', 'against = ["uvlop"]')))
    with pytest.raises(Refused, match=r"the goal 'second' names the arm 'uvlop', .* did you mean uvloop\?"):
        goals.check_arms(found, tmp_path, ["ringloop", "asyncio", "uvloop"])


@pytest.mark.parametrize("name", ["loops", "native"])
def test_the_goals_of_the_repository_can_be_read(name: str) -> None:
    found = goals.read(FOLDER / f"{name}.toml")
    assert sources.folder() == FOLDER.parent
    goals.check_arms(found, FOLDER, [arm.name for arm in manifest.discover()])


def test_verdicts_are_kept_and_reported(tmp_path: Path) -> None:
    goal = goal_of("better_by", 10, CHAIN, against=["asyncio"])
    made = result_of(cell_of(CHAIN, asyncio=1600, ringloop=100))
    made.goals = goals.judge([goal], made)
    path = tmp_path / "result.json"
    made.write(path)
    assert Result.read(path) == made
    for kind in ("terminal", "markdown", "html"):
        done = subprocess.run(command_of("report", path, "--format", kind), capture_output=True, text=True, check=True)
        assert "16.0 times (" in done.stdout, kind
        assert "reached" in done.stdout, kind
