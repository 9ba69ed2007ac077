"""The search for a knee, against servers that are formulas: where it is found, in how few trials, and what isn't claimed."""

import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringlab import analysis, guard, results, sweep, unpaired, workloads
from ringlab.results import RatePoint

BASE_NS = 100_000.0


@dataclass
class Model:
    """A server whose p99 grows as a queue does, up to its capacity, and the load generator's limit."""

    capacity_per_s: float
    client_limit_per_s: float = math.inf
    fails_from_per_s: float = math.inf
    spikes: Callable[[], bool] = lambda: False
    """Whether something else spoils a trial."""

    def point(self, rate: float) -> RatePoint:
        """Return what a trial at a rate finds."""
        load = rate / min(self.capacity_per_s, self.client_limit_per_s)
        p99 = BASE_NS / (1 - load) if load < 1 else 1e9
        limited = rate > 0.9 * self.client_limit_per_s
        point = RatePoint(
            offered_per_s=rate,
            achieved_per_s=min(rate, self.capacity_per_s, self.client_limit_per_s),
            latency_ns_p50=p99 / 2,
            latency_ns_p99=p99 * (100 if self.spikes() else 1),
            latency_ns_p999=2 * p99,
            outcome="below",
            reasons=["the load generator was busy for 99% of the time"] if limited else [],
        )
        if rate >= self.fails_from_per_s:
            return replace(point, outcome="failed", reasons=["errors: 7 x reset (gone)"])
        return point


def run(model: Model, before_per_s: float = 0.0) -> sweep.Search:
    search = sweep.Search(before_per_s)
    while (rate := search.next_rate()) is not None:
        search.take(model.point(rate))
    return search


def knee_of(capacity: float) -> float:
    """Return where the p99 is KNEE_TIMES that of the low rate."""
    return capacity * (1 - (1 - sweep.FLOOR_PER_S / capacity) / sweep.KNEE_TIMES)


@pytest.mark.parametrize("capacity", [2_400, 3_000, 8_000, 20_000, 51_234, 170_000, 1_000_000])
def test_the_knee_is_found_in_few_trials(capacity: float) -> None:
    search = run(Model(capacity))
    knee = search.knee()
    assert knee.bound == ""
    assert knee.per_s == pytest.approx(knee_of(capacity), rel=0.05)
    assert knee.floor_p99_ns == pytest.approx(BASE_NS / (1 - sweep.FLOOR_PER_S / capacity))
    assert len(search.points) <= 20
    # A later round begins where the one before ended, or where that was wrong by a quarter.
    for before, most in ((knee.per_s, 10), (1.25 * knee.per_s, 12), (0.8 * knee.per_s, 12)):
        later = run(Model(capacity), before)
        assert later.knee().per_s == pytest.approx(knee_of(capacity), rel=0.05)
        assert len(later.points) <= most


def test_single_trials_that_are_spoilt_do_not_make_a_knee() -> None:
    found = []
    for seed in range(40):
        dice = random.Random(seed)
        model = Model(60_000, spikes=lambda dice=dice: dice.random() < 0.1)  # type: ignore[misc]
        found.append(run(model).knee().per_s / knee_of(60_000))
    assert sum(abs(ratio - 1) < 0.1 for ratio in found) >= 36


def test_where_the_tail_is_long_at_the_low_rate_already_there_is_no_knee() -> None:
    spoilt = run(Model(50_000, spikes=lambda: True))
    assert len(spoilt.points) == sweep.FLOOR_TRIALS
    assert spoilt.why_none().startswith("no knee: at 2,000/s the p99 is 10.4 ms, and the p50 52.1 us")
    once = iter([True])
    assert run(Model(50_000, spikes=lambda: next(once, False))).why_none() == ""


def test_a_knee_beyond_the_load_generator_is_a_lower_bound() -> None:
    knee = run(Model(1_000_000, client_limit_per_s=100_000)).knee()
    assert knee.bound == "at least"
    assert 70_000 < knee.per_s <= 100_000


def test_a_server_that_no_rate_is_too_much_for_ends_the_search_with_a_lower_bound() -> None:
    knee = run(Model(1e12)).knee()
    assert (knee.bound, knee.per_s <= sweep.RATE_PER_S_MAX) == ("at least", True)
    assert knee.per_s > sweep.RATE_PER_S_MAX / sweep.FIRST_FACTOR


def test_a_server_that_cannot_keep_up_with_the_low_rate_has_an_upper_bound() -> None:
    search = run(Model(1_500))
    knee = search.knee()
    assert (knee.bound, knee.per_s) == ("at most", sweep.FLOOR_PER_S)
    assert [point.outcome for point in search.points] == ["failed", "failed"]


def test_a_rate_at_which_a_server_fails_is_past_the_knee() -> None:
    search = run(Model(1_000_000, fails_from_per_s=30_000))
    knee = search.knee()
    assert knee.bound == ""
    assert knee.per_s == pytest.approx(30_000, rel=0.05)
    assert {point.outcome for point in search.points} == {"floor", "below", "failed"}


@pytest.mark.parametrize("p99", [1.0, 5e-324])
def test_the_p99_of_a_failed_trial_at_the_low_rate_says_nothing(p99: float) -> None:
    def knee(failed_p99: float) -> float:
        search, model = sweep.Search(), Model(1_000_000)
        search.take(model.point(sweep.FLOOR_PER_S))
        search.take(replace(model.point(sweep.FLOOR_PER_S), outcome="failed", latency_ns_p99=failed_p99))
        while (rate := search.next_rate()) is not None:
            search.take(replace(model.point(rate), latency_ns_p99=1e9))
        return search.knee().per_s

    assert knee(p99) == knee(BASE_NS)


def test_a_line_from_the_least_float_crosses_the_threshold() -> None:
    assert 10_000 < sweep.crossing(10_000, 5e-324, 20_000, 1e9, 3 * BASE_NS) < 20_000


points = st.builds(
    RatePoint,
    offered_per_s=st.just(0.0),
    achieved_per_s=st.just(0.0),
    latency_ns_p50=st.floats(0, 1e10),
    latency_ns_p99=st.floats(0, 1e10),
    latency_ns_p999=st.floats(0, 1e10),
    outcome=st.sampled_from(["below", "failed"]),
    reasons=st.sampled_from([[], ["late"]]),
)


@given(
    answers=st.lists(st.tuples(points, st.floats(0, 1.5)), min_size=sweep.TRIALS_MAX, max_size=sweep.TRIALS_MAX),
    before=st.sampled_from([0.0, 2_001.0, 50_000.0, 4e6]),
)
def test_whatever_the_trials_say_the_search_ends_with_a_rate(
    answers: list[tuple[RatePoint, float]], before: float
) -> None:
    search = sweep.Search(before)
    for point, share in answers:
        rate = search.next_rate()
        if rate is None:
            break
        assert sweep.FLOOR_PER_S <= rate <= sweep.RATE_PER_S_MAX
        search.take(replace(point, offered_per_s=rate, achieved_per_s=share * rate, reasons=list(point.reasons)))
    assert search.next_rate() is None
    knee = search.knee()
    assert sweep.FLOOR_PER_S <= knee.per_s <= sweep.RATE_PER_S_MAX
    if knee.bound == "at most":
        assert knee.per_s == sweep.FLOOR_PER_S


def event(**changes: Any) -> dict[str, Any]:
    """Return what the load generator says of a trial."""
    corrected = {"count": 1000, "p50_ns": 1000, "p99_ns": 5000, "p999_ns": 9000}
    return {
        "void": None, "operations": 1000, "operations_per_s": 10_000.0, "errors": {},
        "latency": {"corrected": corrected}, "client": {"cpu_fraction": 0.5, "busy_fraction": 0.4},
        "connections": {"asked": 50, "opened": 50, "alive_at_end": 50},
    } | changes  # fmt: skip


def test_what_the_load_generator_says_of_a_trial() -> None:
    right = sweep.point_of(event(), 10_000, late=False)
    assert (right.outcome, right.reasons, right.client_busy_fraction) == ("below", [], 0.4)
    lost = event(
        connections={"asked": 50, "opened": 50, "alive_at_end": 49},
        errors={"reset": {"count": 2, "first": "the server reset connection 3"}},
    )
    failed = sweep.point_of(lost, 10_000, late=True)
    assert failed.outcome == "failed"
    assert failed.reasons == [
        "errors: 2 x reset (the server reset connection 3)",
        "only 49 of 50 connections were alive at the end",
    ]
    assert sweep.point_of(event(), 10_000, late=True).reasons == [
        "the load generator sent late by a good part of the latencies"
    ]
    busy = event(client={"cpu_fraction": 1.0, "busy_fraction": 0.97})
    assert sweep.point_of(busy, 10_000, late=False).reasons == ["the load generator was busy for 97% of the time"]
    nothing = sweep.point_of(
        event(
            void="nothing was answered in the window",
            operations=0,
            operations_per_s=None,
            latency={"corrected": {"count": 0, "p50_ns": None, "p99_ns": None, "p999_ns": None}},
        ),
        10_000,
        late=False,
    )
    assert (nothing.outcome, nothing.achieved_per_s) == ("failed", 0.0)


def test_only_a_wrong_answer_is_a_lie() -> None:
    assert workloads.why_lying(event()) == ""
    assert workloads.why_lying(event(void="nothing was answered in the window", operations=0)) == ""
    lie = event(void="wrong body", operations=0, errors={"mismatch": {"count": 1, "first": "wrong body"}})
    assert workloads.why_lying(lie) == "wrong body"


def test_curves_of_rounds_are_merged_by_rate() -> None:
    rounds = [run(Model(50_000)).points, run(Model(51_000), 45_000).points]
    merged = sweep.merge(point for each in rounds for point in each)
    rates = [point.offered_per_s for point in merged]
    assert rates == sorted(rates)
    assert all(later > earlier * 1.02 for earlier, later in itertools.pairwise(rates))
    assert (merged[0].outcome, merged[0].trials) == ("floor", 4)
    assert sum(point.trials for point in merged) == sum(len(each) for each in rounds)


def sweep_cell(
    knees: dict[str, list[float]], bounds: dict[str, results.Bound]
) -> tuple[results.Cell, list[results.Arm]]:
    """Return a cell with these knees, one for each round, and its arms."""
    rounds = len(next(iter(knees.values())))
    point = Model(50_000).point(10_000)
    samples = [
        results.Sample(
            arm=arm, round=number, position=1, begun_s=0.0, duration_s=1.0, status="measured", points=[point],
            figures={"knee_per_s": values[number - 1], "floor_ns_p99": BASE_NS, "floor_ns_p50": BASE_NS / 2},
            bound=bounds.get(arm, ""),
        )
        for arm, values in knees.items()
        for number in range(1, rounds + 1)
    ]  # fmt: skip
    plan = workloads.BY_NAME["sweep/echo/1KB/50"]
    cell = plan.record(workloads.SCALES["quick"])
    cell.arms, cell.orders, cell.samples = list(knees), [list(knees)] * rounds, samples
    arms = [results.Arm(name=arm, target=arm, language="C", title=arm) for arm in knees]
    cell.analysis = analysis.analyse(cell, arms)
    return cell, arms


def rounds_around(rate: float) -> list[float]:
    return [rate * factor for factor in (0.99, 1.0, 1.01, 1.005, 0.995)]


@pytest.mark.parametrize(
    ("bounds", "verdict"),
    [
        ({}, "worse"),
        # It may be higher than what is known.
        ({"slow": "at least"}, "cannot tell"),
        # It may be lower still, and the other one higher still.
        ({"slow": "at most"}, "worse"),
        ({"fast": "at least"}, "worse"),
        ({"fast": "at most"}, "cannot tell"),
    ],
)
def test_a_bound_is_never_compared_as_if_it_were_the_figure(
    bounds: dict[str, results.Bound], verdict: results.ComparisonVerdict
) -> None:
    cell, _ = sweep_cell({"fast": rounds_around(90_000), "slow": rounds_around(60_000)}, bounds)
    (group,) = cell.analysis.groups
    (comparison,) = (each for each in group.comparisons if each.metric == "knee_per_s")
    assert comparison.verdict == verdict
    assert group.verdict.kind == ("winner" if verdict == "worse" else "cannot tell")
    if verdict == "cannot tell":
        assert comparison.rounds_needed is None
        assert comparison.sentence.endswith("are only known to be at least or at most what they are")
        assert "only bounds are known of" in group.verdict.sentence


def test_the_bound_of_a_copy_is_one_of_the_merged_figure() -> None:
    knees = {"fast": rounds_around(90_000), "slow": rounds_around(60_000), "slow (again)": rounds_around(60_000)}
    cell, arms = sweep_cell(knees, {"slow (again)": "at least"})
    arms[-1].repeats = "slow"
    (group,) = analysis.analyse(cell, arms).groups
    (comparison,) = (each for each in group.comparisons if each.metric == "knee_per_s")
    assert (comparison.verdict, group.verdict.kind) == ("cannot tell", "cannot tell")
    assert "only bounds are known of" in group.verdict.sentence


def test_equal_bounds_are_no_tie() -> None:
    knees = {"one": rounds_around(90_000), "two": rounds_around(90_000)}
    assert sweep_cell(knees, {})[0].analysis.groups[0].verdict.kind == "tie"
    cell, _ = sweep_cell(knees, {"one": "at least", "two": "at least"})
    assert cell.analysis.groups[0].verdict.kind == "cannot tell"
    assert [each.bound for each in cell.analysis.sweeps] == ["at least", "at least"]


def test_bounds_of_two_results_are_not_compared() -> None:
    def result(bounds: dict[str, results.Bound], slower: float = 1.0) -> results.Result:
        knees = {"control": rounds_around(90_000), "one": rounds_around(60_000), "two": rounds_around(30_000 / slower)}
        cell, arms = sweep_cell(knees, bounds)
        run = results.Run(command=[], begun="2026-11-23T06:00:00+00:00", seed=1, scale=workloads.SCALES["quick"])
        return results.Result(run=run, arms=arms, cells=[cell])

    found = unpaired.compare(result({}), result({"one": "at least"}, slower=1.5), control="control")
    assert [(each.arm, each.kind) for each in found.judged] == [("two", "worse")]
    assert any("of one isn't compared" in note for note in found.notes)
    with pytest.raises(results.ResultError, match="no arm and cell in common"):
        unpaired.compare(result({"control": "at least"}), result({}), control="control")


@pytest.mark.parametrize(
    ("head", "bounds", "word"),
    [
        (90_000, {}, "tie"),
        (90_000, {"one@base": "at least", "one@head": "at least"}, "cannot tell"),
        (80_000, {}, "worse"),
        # Head may be as good as base.
        (80_000, {"one@head": "at least"}, "cannot tell"),
        (80_000, {"one@base": "at least"}, "worse"),
        (100_000, {"one@head": "at least"}, "better"),
    ],
)
def test_guard_takes_no_bound_for_the_figure(head: float, bounds: dict[str, results.Bound], word: str) -> None:
    cell, arms = sweep_cell({"one@base": rounds_around(90_000), "one@head": rounds_around(head)}, bounds)
    run = results.Run(command=[], begun="2026-11-23T06:00:00+00:00", seed=1, scale=workloads.SCALES["quick"])
    found = guard.judge(results.Result(run=run, arms=arms, cells=[cell]), ["one"])
    assert [each.word for each in found] == [word]
    if word == "cannot tell":
        assert guard.exit_code(found) == guard.EXIT_UNDECIDED
        assert guard.conclusion(found) == "cannot tell: 1 of 1; only bounds are known of one in sweep/echo/1KB/50"


def test_a_baseline_that_is_only_a_bound_is_no_control_if_there_is_another() -> None:
    def result(bounds: dict[str, results.Bound], slower: float = 1.0) -> results.Result:
        costs = {"c-epoll": 90_000, "go": 70_000, "asyncio-uvicorn": 9_000, "uvicorn": 8_000}
        knees = {arm: rounds_around(rate / slower) for arm, rate in costs.items()}
        cell, arms = sweep_cell(knees, bounds)
        cell.parameters["protocol"] = "http"
        for arm in arms:
            arm.declares["parser"] = "real" if "uvicorn" in arm.name else "canned"
        cell.analysis = analysis.analyse(cell, arms)
        run = results.Run(command=[], begun="2026-11-23T06:00:00+00:00", seed=1, scale=workloads.SCALES["quick"])
        return results.Result(run=run, arms=arms, cells=[cell])

    known = unpaired.compare(result({}), result({}, slower=1.2))
    assert {each.control for each in known.judged} == {"c-epoll"}
    found = unpaired.compare(result({}), result({"c-epoll": "at least"}, slower=1.2))
    assert {(each.arm, each.control, each.kind) for each in found.judged} == {
        ("go", "asyncio-uvicorn", "tie"), ("uvicorn", "asyncio-uvicorn", "tie"),
    }  # fmt: skip


def test_a_knee_has_an_interval_of_its_own() -> None:
    cell, _ = sweep_cell({"one": rounds_around(90_000), "two": rounds_around(60_000)}, {})
    found = cell.analysis.sweeps[0]
    assert found.low is not None
    assert found.high is not None
    assert 88_000 < found.low < found.knee_per_s < found.high < 92_000
    (single,) = sweep_cell({"one": [90_000.0]}, {})[0].analysis.sweeps
    assert (single.knee_per_s, single.low, single.high) == (pytest.approx(90_000), None, None)
