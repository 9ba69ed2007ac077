"""Figures over many runs: steps are found where there are any, and the pages show them."""

import math
import random
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from ringlab import cli, pages, steps, trend
from runs import make_run, write_run
from test_report_html import Balance, browse

pytestmark = pytest.mark.timeout(300)


def ringlab(*words: object) -> Result:
    return CliRunner().invoke(cli.main, [str(word) for word in words])


def fill(folder: Path, count: int = 14, step_at: int = 7, factor: float = 1.15) -> Path:
    """Write runs of which the later ones have a slower arm."""
    for number in range(1, count + 1):
        cost = 5.0 * (factor if number > step_at else 1.0)
        machine = random.Random(number).lognormvariate(0, 0.2)
        write_run(folder, make_run({"red": cost, "blue": 6.0}, number=number, machine=machine))
    return folder


# --- steps ---


def wander(random: np.random.Generator, count: int, correlation: float, scatter: float = 0.05) -> list[float]:
    """Return figures of which nothing has changed, each of which keeps a share of how far off the one before was."""
    logs = random.normal(0, scatter, count)
    for place in range(1, count):
        logs[place] = correlation * logs[place - 1] + math.sqrt(1 - correlation**2) * logs[place]
    return np.exp(logs).tolist()


@pytest.mark.parametrize("correlation", [0.0, 0.3, 0.5, 0.7, 0.9])
def test_without_a_change_a_step_is_found_in_at_most_one_of_twenty_series(correlation: float) -> None:
    """However much each run is like the one before it."""
    random = np.random.default_rng(1)
    runs = 600
    found = sum(bool(steps.find(wander(random, int(random.integers(6, 40)), correlation))) for _ in range(runs))
    # Two standard deviations of the simulation are 1.8%.
    assert found <= (0.05 + 0.018) * runs


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.8])
def test_a_step_of_ten_times_the_scatter_is_found_where_runs_are_alike(correlation: float) -> None:
    random = np.random.default_rng(2)
    found = 0
    for _ in range(100):
        values = np.array(wander(random, 20, correlation, 0.01)) * np.where(np.arange(20) < 10, 1.0, 1.1)
        found += 10 in [step.index for step in steps.find(values.tolist())]
    assert found >= 90


def test_a_spoilt_run_hides_no_step() -> None:
    dice = random.Random(4)
    values = [level * dice.lognormvariate(0, 0.01) for level in (1.0, 1.15) for _ in range(10)]
    values[5] *= 5
    assert [step.index for step in steps.find(values)] == [10]


@pytest.mark.parametrize("before", [5, 12, 20])
def test_a_step_is_found_where_it_is(before: int) -> None:
    dice = random.Random(2)
    values = [dice.lognormvariate(0, 0.01) for _ in range(before)] + [dice.lognormvariate(0.1, 0.01) for _ in range(9)]
    (step,) = steps.find(values)
    assert step.index == before
    assert step.ratio == pytest.approx(math.exp(0.1), rel=0.02)
    assert step.p <= steps.SIGNIFICANT


def test_several_steps_are_found() -> None:
    dice = random.Random(3)
    values = [level * dice.lognormvariate(0, 0.01) for level in (1.0, 1.3, 1.1) for _ in range(12)]
    assert [step.index for step in steps.find(values)] == [12, 24]


def test_one_spoilt_run_is_no_step() -> None:
    dice = random.Random(4)
    values = [dice.lognormvariate(0, 0.01) for _ in range(20)]
    values[10] *= 5
    assert steps.find(values) == []


def test_a_small_step_is_none() -> None:
    assert steps.find([1.0 + 1e-6 * index for index in range(10)] + [1.01 + 1e-6 * index for index in range(10)]) == []


@given(st.lists(st.floats(1e-9, 1e9), max_size=30))
@settings(max_examples=60, deadline=None)
def test_any_series_is_read(values: list[float]) -> None:
    found = steps.find(values)
    assert [step.index for step in found] == sorted(step.index for step in found)
    assert all(0 < step.index < len(values) for step in found)


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_a_series_must_be_above_0(value: float) -> None:
    with pytest.raises(ValueError, match="finite and above 0"):
        steps.find([1.0, value])


def again(spread: float, dice: random.Random, moved: float = 1.0) -> steps.Noise:
    return steps.Noise(again=moved * dice.lognormvariate(0, spread))


@pytest.mark.parametrize("spread", [0.0, 0.002, 0.15])
def test_a_step_within_what_copies_of_one_arm_differ_by_is_none(spread: float) -> None:
    dice = random.Random(5)
    values = [1.0 + 1e-6 * index for index in range(10)] + [1.04 + 1e-6 * index for index in range(10)]
    found = steps.find(values, [again(spread, dice) for _ in values])
    assert [step.index for step in found] == ([10] if spread < 0.1 else [])


def test_a_step_that_the_copy_makes_as_well_is_none() -> None:
    dice = random.Random(6)
    values = [1.0 + 1e-6 * index for index in range(10)] + [1.10 + 1e-6 * index for index in range(10)]
    noise = [again(0.002, dice, moved) for moved in (0.95, 1.06) for _ in range(10)]
    assert steps.find(values, noise) == []
    assert [step.index for step in steps.find(values)] == [10]


@pytest.mark.parametrize(("factor", "holds"), [(1.3, ["after"]), (1 / 1.3, ["before"])])
def test_a_step_between_bounds_is_told_where_no_true_figure_could_undo_it(factor: float, holds: list[str]) -> None:
    """Figures that are at least what they are may be as large as on the other side."""
    values = [1.0 + 1e-6 * index for index in range(10)] + [factor * (1 + 1e-6 * index) for index in range(10)]
    at_least, exact = [steps.Noise(may_be_more=True)] * 10, [steps.Noise()] * 10
    found = {"before": steps.find(values, at_least + exact), "after": steps.find(values, exact + at_least)}
    assert [side for side, each in found.items() if each] == holds
    # A few bounds among many figures leave the median where it is known to be.
    assert [step.index for step in steps.find(values, [*at_least[:2], *exact, *exact[2:]])] == [10]


# --- series ---


def test_series_are_relative_to_what_was_the_baseline_in_every_run(tmp_path: Path) -> None:
    runs, unread = trend.find_runs(fill(tmp_path))
    assert unread == []
    assert [run.result.run.begun for run in runs] == sorted(run.result.run.begun for run in runs)
    series = {(each.arm, each.metric.key): each for each in trend.all_series(runs)}
    red = series["red", "server_cpu_us"]
    assert red.control == "c-epoll"
    assert red.points[0].value == pytest.approx(1.25, rel=0.03)
    (step,) = red.steps
    assert step.index == 7
    assert series["blue", "server_cpu_us"].steps == []
    assert series["c-epoll", "server_cpu_us"].control == ""
    assert "c-epoll (again)" not in {arm for arm, _ in series}


def test_a_slower_machine_is_no_step_in_a_cell_with_two_groups(tmp_path: Path) -> None:
    for number in range(1, 15):
        costs = {"asyncio-uvicorn": 30.0, "red": 6.0 if number > 7 else 5.0}
        machine = 1.2 if number > 7 else 1.0
        result = make_run(costs, number=number, machine=machine, cells=["http/50/closed"], parsing=["asyncio-uvicorn"])
        write_run(tmp_path, result)
    runs, _ = trend.find_runs(tmp_path)
    series = {each.arm: each for each in trend.all_series(runs) if each.metric.primary}
    assert {arm: each.control for arm, each in series.items()} == {
        "c-epoll": "", "asyncio-uvicorn": "c-epoll", "red": "c-epoll",
    }  # fmt: skip
    assert series["asyncio-uvicorn"].steps == []
    (step,) = series["red"].steps
    assert step.ratio == pytest.approx(1.2, rel=0.03)


def test_runs_of_nothing_but_noise_show_hardly_any_step(tmp_path: Path) -> None:
    for number in range(1, 21):
        write_run(tmp_path, make_run({f"arm-{each}": 5.0 for each in range(6)}, number=number, noise=0.08))
    runs, _ = trend.find_runs(tmp_path)
    series = list(trend.all_series(runs))
    assert len(series) == 14
    assert sum(len(each.steps) for each in series) <= 1


@pytest.mark.parametrize(("noise", "expected"), [(0.01, [10]), (0.2, [])])
def test_a_planted_step_is_told_unless_it_is_within_the_noise_of_the_results(
    tmp_path: Path, noise: float, expected: list[int]
) -> None:
    for number in range(1, 21):
        result = make_run({"red": 5.0}, number=number, noise=noise)
        (cell,) = result.cells
        # The arm itself repeats well; the copies of the control differ by more than the step.
        for first, sample in zip(cell.measured("c-epoll"), cell.measured("red"), strict=True):
            level = 1.25 * (1.04 if number > 10 else 1.0) * (1 + 1e-6 * number)
            sample.figures["server_cpu_us"] = level * first.figures["server_cpu_us"]
        write_run(tmp_path, result)
    runs, _ = trend.find_runs(tmp_path)
    (red,) = (each for each in trend.all_series(runs) if (each.arm, each.metric.key) == ("red", "server_cpu_us"))
    assert [step.index for step in red.steps] == expected


def test_a_step_to_a_knee_that_is_only_known_to_be_at_least_so_high_is_told_upwards_alone(tmp_path: Path) -> None:
    for number in range(1, 21):
        late = number > 10
        result = make_run({"red": 5.0, "blue": 5.0}, number=number)
        (cell,) = result.cells
        for arm, factor in (("red", 0.7), ("blue", 1.4)):
            for sample in cell.measured(arm):
                sample.figures["server_cpu_us"] *= factor if late else 1.0
                sample.bound = "at least" if late else ""
        write_run(tmp_path, result)
    runs, _ = trend.find_runs(tmp_path)
    found = {each.arm: bool(each.steps) for each in trend.all_series(runs) if each.metric.key == "server_cpu_us"}
    assert found == {"red": False, "blue": True, "c-epoll": False}


def test_what_is_no_result_is_told(tmp_path: Path) -> None:
    fill(tmp_path, count=2)
    (tmp_path / "notes.json").write_text("[]")
    found = ringlab("trend", tmp_path)
    assert found.exit_code == 0, found.output
    assert "not read: " in found.output
    assert "notes.json is not a result of ringlab" in found.output


def test_a_folder_without_results_is_refused(tmp_path: Path) -> None:
    found = ringlab("trend", tmp_path)
    assert found.exit_code == 2
    assert "no result is in" in found.output
    fill(tmp_path, count=1)
    assert "a trend takes at least 2" in ringlab("trend", tmp_path).output


# --- pages ---


def test_the_page_tells_what_has_changed(tmp_path: Path) -> None:
    found = ringlab("trend", fill(tmp_path), "--output", tmp_path / "page.html")
    assert found.exit_code == 0, found.output
    assert "red, server CPU per operation: 15% more from " in found.output or "% more from " in found.output
    page = (tmp_path / "page.html").read_text()
    Balance().feed(page)
    assert 'class="bad">red, server CPU per operation: ' in page
    assert "(worse; p " in page
    chart = page[page.index("<svg") : page.index("</svg>")]
    # The axes have titles and marks: the labels of runs, and percent.
    for text in (
        ">run</text>",
        ">% of the arm's median</text>",
        ">100</text>",
        "<title>red, server CPU per operation: ",
    ):
        assert text in chart, text


@pytest.mark.parametrize("width", [1280, 500])
def test_a_browser_shows_the_page_without_scrolling_sideways(tmp_path: Path, width: int) -> None:
    runs, unread = trend.find_runs(fill(tmp_path / "runs"))
    found = browse(pages.render(runs, list(trend.all_series(runs)), unread), tmp_path, width)
    assert found["problems"] == []
    assert found["requests"] == []


def test_runs_lead_to_their_reports(tmp_path: Path) -> None:
    folder = fill(tmp_path / "50% of runs", count=3)
    for run in ("2026-11-01", "2026-11-03"):
        (folder / run / "report.html").write_text("a report")
    page = tmp_path / "pages" / "trend.html"
    page.parent.mkdir()
    found = ringlab("trend", folder, "--output", page)
    assert found.exit_code == 0, found.output
    links = [part.partition('"')[0] for part in page.read_text().split('href="')[1:]]
    reports = [unquote(link) for link in links if not link.startswith("#")]
    assert reports == [f"../50% of runs/{run}/report.html" for run in ("2026-11-01", "2026-11-03")]
    assert all((page.parent / link).exists() for link in reports)


def test_names_are_text(tmp_path: Path) -> None:
    for number in (1, 2):
        write_run(tmp_path, make_run({"<script>alert(1)</script>": 5.0}, number=number))
    runs, unread = trend.find_runs(tmp_path)
    page = pages.render(runs, list(trend.all_series(runs)), unread)
    assert "<script>" not in page
