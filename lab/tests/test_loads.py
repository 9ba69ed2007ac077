"""Sweep, churn, idle and stream, against fake targets: what is measured, what is void, and how it is reported."""

import io
from collections.abc import Callable

import pytest
from rich.console import Console

from ringlab import exports, generator, results, runner, sweep, workloads
from ringlab.report import html, markdown, terminal

MakeRace = Callable[..., runner.Race]
SWEEP, SWEEP_HTTP = "sweep/echo/1KB/50", "sweep/http/50"
# Each starts dozens of processes, which takes its time where a machine has much to do.
pytestmark = pytest.mark.timeout(300)


def first_sample(race: runner.Race, arm: str = "one") -> results.Sample:
    return next(sample for sample in race.result.cells[0].samples if sample.arm == arm)


def printed(cell: results.Cell) -> str:
    text = io.StringIO()
    terminal.print_cell(Console(file=text, width=200), cell)
    return text.getvalue()


# --- sweep ---


def test_a_sweep_finds_knees_and_everything_that_is_written_shows_them(make_race: MakeRace) -> None:
    race = make_race([SWEEP], rounds=1, fast=0.5, slow=1.0)
    race.run()
    (cell,) = race.result.cells
    assert cell.parameters["protocol"] == "echo"
    assert cell.ceiling is None
    knees = {each.arm: each for each in cell.analysis.sweeps}
    assert set(knees) == {"fast", "slow", "fast (again)"}
    # The fake's p99 jumps at 20,000/s, divided by its cost.
    assert knees["fast"].knee_per_s == pytest.approx(40_000, rel=0.1)
    assert knees["slow"].knee_per_s == pytest.approx(20_000, rel=0.1)
    for sample in cell.samples:
        assert (sample.status, sample.bound) == ("measured", "")
        assert sample.points[0].offered_per_s == sweep.FLOOR_PER_S
        assert {point.outcome for point in sample.points} == {"floor", "below", "above"}
        assert len(sample.points) <= 16
    assert results.Result.read(race.output) == race.result
    text = printed(cell)
    assert "rate at the knee" in text
    page = html.render("a run", race.result)
    assert "p99 over the offered rate, of all arms" in page
    assert page.count("every rate</summary>") == 3
    paper = markdown.render(race.result)
    assert "fast, over the offered rate:" in paper
    assert "| 2,000 | 2,000 |" in paper
    table = exports.result_csv(race.result)
    assert f"{SWEEP},fast,1," in table
    assert "latency_ns_p999 at 2000.0/s" in table

    # A later round begins at the knee of the one before.
    first = {sample.arm: sample for sample in cell.samples}
    race.result.run.scale.rounds = 2
    race.run()
    later = {sample.arm: sample for sample in race.result.cells[0].samples if sample.round == 2}
    assert set(later) == set(first)
    for arm, sample in later.items():
        assert sample.points[sweep.FLOOR_TRIALS].offered_per_s == first[arm].figures["knee_per_s"]
        assert len(sample.points) < len(first[arm].points)


@pytest.mark.parametrize("trouble", ["mismatch", "mismatch-from-9000"])
def test_a_server_that_lies_at_any_rate_is_void(
    trouble: str, make_race: MakeRace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_LOAD_TROUBLE", trouble)
    race = make_race([SWEEP], rounds=1, one=1.0)
    race.options.again = False
    race.run()
    sample = first_sample(race)
    assert sample.status == "void"
    words = {
        "mismatch": "at 2,000/s: connection 3, frame 7: byte 12 is 0x00 and should be 0x41",
        "mismatch-from-9000": "at 10,000/s: wrong echo",
    }
    assert sample.reasons == [words[trouble]]
    assert race.result.cells[0].analysis.sweeps == []


def test_a_knee_beyond_the_load_generator_or_below_the_low_rate_is_a_bound(
    make_race: MakeRace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_LOAD_LIMIT", "30000")
    race = make_race([SWEEP], rounds=1, fast=0.5, slow=1.0, crawling=12.0)
    race.options.again = False
    race.options.baseline = "slow"
    race.run()
    (cell,) = race.result.cells
    found = {each.arm: (each.bound, each.knee_per_s) for each in cell.analysis.sweeps}
    assert found["slow"][0] == ""
    assert found["crawling"] == ("at most", pytest.approx(sweep.FLOOR_PER_S))
    assert found["fast"][0] == "at least"
    assert first_sample(race, "fast").client_limited
    notes = "\n".join(cell.analysis.notes)
    assert "fast: its knee is at least " in notes
    assert "the load generator was busy for 99% of the time" in notes
    assert "crawling: its knee is at most 2,000/s, the low rate, which it didn't keep up with" in notes
    assert "client-limited" not in notes
    for text in (printed(cell), markdown.render(race.result), html.render("a run", race.result)):
        assert "at least" in text
        assert "at most" in text


def test_errors_end_a_sweep_at_a_high_rate_and_void_it_at_the_low_one(
    make_race: MakeRace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_LOAD_FAILS_FROM", "12000")
    race = make_race([SWEEP], rounds=1, one=1.0)
    race.options.again = False
    race.run()
    sample = first_sample(race)
    assert (sample.status, sample.bound) == ("measured", "")
    assert sample.figures["knee_per_s"] == pytest.approx(12_000, rel=0.1)
    assert any(
        "errors: " in note and "the server reset connection 3" in note for note in race.result.cells[0].analysis.notes
    )
    monkeypatch.setenv("FAKE_LOAD_FAILS_FROM", "100")
    race.result.cells.clear()
    race.run()
    sample = first_sample(race)
    assert sample.status == "void"
    assert sample.reasons[0].startswith("at 2,000/s: errors: ")


def test_a_server_that_dies_in_a_sweep_has_failed(make_race: MakeRace) -> None:
    race = make_race([SWEEP], rounds=1, one=1.0, faults={"one": "crash"})
    race.options.again = False
    race.run()
    sample = first_sample(race)
    assert sample.status == "failed"
    assert "ended with code 3" in sample.reasons[0]


# --- churn, idle, stream ---


def test_a_churn_is_ranked_by_cpu_per_connection_and_http_servers_by_how_they_answer(make_race: MakeRace) -> None:
    race = make_race(["churn/echo/64B/50", "churn/http/50"], rounds=3, one=1.0, two=2.0)
    race.plans, plans = race.plans[:1], race.plans
    race.run()
    race.plans = plans[1:]
    race.result.run.scale.rounds = 1
    race.run()
    echo, http = race.result.cells
    for cell, samples in ((echo, 9), (http, 3)):
        assert (cell.primary.key, cell.operation) == ("server_cpu_us", "connection")
        assert cell.ceiling is None
        assert [sample.status for sample in cell.samples] == ["measured"] * samples
    assert [group.name for group in echo.analysis.groups] == ["all"]
    assert {probe.arm for probe in http.probes} == {"one", "two"}
    assert all(group.name in ("canned", "real") for group in http.analysis.groups)
    (group,) = echo.analysis.groups
    assert group.verdict.arms == ["one"]
    assert group.control is not None
    assert group.control.status == "passed"


def test_an_idle_connection_costs_what_the_memory_grows_by(make_race: MakeRace) -> None:
    race = make_race(["idle/echo/1000"], rounds=3, one=1.0, two=2.0)
    race.run()
    (cell,) = race.result.cells
    assert cell.primary.key == "pss_slope_bytes"
    assert cell.series("one", "pss_slope_bytes") == [pytest.approx(200.0)] * 3
    assert cell.series("two", "rss_slope_bytes") == [pytest.approx(600.0)] * 3
    assert cell.analysis.groups[0].verdict.sentence.startswith("smallest: one")


def test_a_slope_needs_two_levels_and_is_never_negative() -> None:
    def levels(*sizes: int) -> list[dict[str, float]]:
        return [{"connections": 100 * step, "pss_bytes": size} for step, size in enumerate(sizes, 1)]

    assert workloads.slope(levels(1000), "pss_bytes") is None
    assert workloads.slope([], "pss_bytes") is None
    # A process was gone when its memory was read.
    assert workloads.slope(levels(1000, 0), "pss_bytes") is None
    assert workloads.slope(levels(1000, 3000, 5000), "pss_bytes") == pytest.approx(20.0)
    assert workloads.slope(levels(5000, 3000), "pss_bytes") == 0.0


@pytest.mark.parametrize("cell", ["churn/echo/64B/50", "idle/echo/1000", "stream/100", "stream/discard/100"])
def test_a_lying_server_is_void_in_every_load(cell: str, make_race: MakeRace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_LOAD_TROUBLE", "mismatch")
    race = make_race([cell], rounds=1, one=1.0)
    race.options.again = False
    race.run()
    assert first_sample(race).status == "void"
    assert "should be 0x41" in first_sample(race).reasons[0]


def test_a_stream_in_one_direction_is_ranked_by_cpu_per_megabyte_that_was_taken(make_race: MakeRace) -> None:
    race = make_race(["stream/discard/100"], rounds=3, one=1.0, two=2.0)
    race.run()
    (cell,) = race.result.cells
    assert (cell.primary.key, cell.operation) == ("server_cpu_us", "MB")
    assert [metric.title for metric in cell.metrics] == [
        "server CPU per MB received", "throughput", "bandwidth per connection"
    ]  # fmt: skip
    figures = next(sample.figures for sample in cell.measured("one"))
    sent, window_s = figures["bytes_sent"], figures["window_s"]
    assert (figures["bytes_received"], sent) == (0, 64 * figures["operations"])
    assert figures["megabytes_per_s"] == pytest.approx(sent / 1e6 / window_s)
    assert figures["channel_mbps"] == pytest.approx(8e-6 * sent / window_s / 100)
    # The fake's server takes 5 us of CPU for each of its operations.
    assert figures["server_cpu_us"] == pytest.approx(5 / 64e-6, rel=0.01)
    (group,) = cell.analysis.groups
    assert group.verdict.arms == ["one"]


def test_a_server_that_miscounts_is_caught_at_its_first_connection(make_race: MakeRace) -> None:
    race = make_race(["stream/discard/100"], rounds=1, one=1.0, faults={"one": "miscounts"})
    race.options.again = False
    race.run()
    sample = first_sample(race)
    assert sample.status == "failed"
    assert "the server has counted b'1000\\n' of a first 32 bytes" in sample.reasons[0]


def test_a_server_that_miscounts_is_void_by_the_real_load_generator(
    make_race: MakeRace, monkeypatch: pytest.MonkeyPatch
) -> None:
    race = make_race(["stream/discard/1"], rounds=1, honest=1.0, liar=1.0, faults={"liar": "miscounts-later"})
    race.options.again = False
    monkeypatch.delenv("RINGLAB_LOAD")
    race.program = generator.find()
    race.result.run.scale.window_s, race.result.run.scale.warm_up_s = 0.05, 0.02
    race.run()
    honest, liar = first_sample(race, "honest"), first_sample(race, "liar")
    assert (honest.status, honest.reasons) == ("measured", [])
    assert honest.figures["bytes_sent"] > 0
    assert liar.status == "void"
    assert liar.reasons[0].startswith(
        'wrong count on connection 0: the server says that it has received "1000" bytes, and '
    )


# --- which cells, and how long they take ---


def test_a_quick_run_has_these_loads_only_if_they_are_asked_for() -> None:
    def chosen(asked: list[str], scale: workloads.ScaleName) -> set[str]:
        return {cell.workload for cell in workloads.choose(asked, scale)}

    assert chosen([], "quick").isdisjoint(workloads.LOADS)
    assert chosen([], "normal").issuperset(workloads.LOADS)
    for name in workloads.LOADS:
        assert chosen([name], "quick") == {name}


@pytest.mark.parametrize("name", [SWEEP, "churn/http/50", "idle/echo/10000", "stream/100", "stream/discard/1"])
def test_the_time_that_a_sample_takes_is_estimated(name: str) -> None:
    plan = workloads.BY_NAME[name]
    for scale in workloads.SCALES.values():
        measured_s = plan.window_s(scale) * (workloads.SWEEP_TRIALS if plan.sweeps else 1)
        estimate_s = plan.sample_s(scale)
        assert measured_s < estimate_s < 3 * measured_s + 10
        assert plan.sample_s(scale, 3.0) == pytest.approx(estimate_s, abs=4.0)
