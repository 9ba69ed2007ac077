"""The verdicts on a cell follow from its samples: who wins, who is the baseline, what is no difference, and who was left out."""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest

from ringlab import analysis, report, results, statistics
from ringlab.report import markdown

CPU = results.Metric(key="server_cpu_us", title="server CPU", unit="us", better="lower", primary=True)
P99 = results.Metric(key="latency_ns_p99", title="p99", unit="ns", better="lower")
Figures = Sequence[float | None]


def make_cell(cpu: Mapping[str, Figures], p99: Mapping[str, Figures] | None = None) -> results.Cell:
    """Return a cell with these figures of each arm by round; None is a void sample."""
    rounds = max(map(len, cpu.values()))
    samples = [
        results.Sample(
            arm=arm,
            round=number,
            position=1,
            begun_s=0,
            duration_s=1,
            status="void" if value is None else "measured",
            reasons=["a frame came back changed"] if value is None else [],
            figures={}
            if value is None
            else {CPU.key: value} | ({P99.key: other} if p99 and (other := p99[arm][number - 1]) is not None else {}),
        )
        for arm, values in cpu.items()
        for number, value in enumerate(values, 1)
    ]
    return results.Cell(
        name="echo/framed/1KB/100",
        workload="echo",
        title="echo",
        operation="message",
        metrics=[CPU, P99] if p99 else [CPU],
        arms=list(cpu),
        orders=[list(cpu)] * rounds,
        samples=samples,
    )


def make_arms(names: Sequence[str]) -> list[results.Arm]:
    """Return the arms; 'x (again)' is the second copy of x."""
    return [
        results.Arm(
            name=name, target=name, language="C", title=name, repeats=name.removesuffix(" (again)") * ("again" in name)
        )
        for name in names
    ]


def analyse(cell: results.Cell, baseline: str = "") -> results.Analysis:
    cell.analysis = analysis.analyse(cell, make_arms(cell.arms), baseline)
    return cell.analysis


def only_group(cell: results.Cell, baseline: str = "") -> results.Group:
    (group,) = analyse(cell, baseline).groups
    return group


def noise(random: np.random.Generator, rounds: int, within: float = 0.015) -> Callable[[float], list[float]]:
    """Return what measures a cost in some rounds of a machine that drifts by more from round to round than within one."""
    drift = random.normal(0, 0.15, rounds)
    return lambda cost: [float(each) for each in cost * np.exp(drift + random.normal(0, within, rounds))]


def row_of(cell: results.Cell, arm: str) -> list[str]:
    """Return an arm's row of the table in the Markdown report."""
    (line,) = (line for line in markdown.render_cell(cell) if line.startswith(f"| {arm} |"))
    return [each.strip() for each in line.strip("|").split("|")]


@pytest.mark.parametrize(("difference", "rounds"), [(1.0, 5), (1.0, 9), (1.05, 9)])
def test_a_thousand_races_of_equals_have_few_winners_and_those_of_others_many(difference: float, rounds: int) -> None:
    random = np.random.default_rng(1)
    kinds, sides = [], []
    for _ in range(1000):
        measure = noise(random, rounds)
        cell = make_cell({"b": measure(5), "b (again)": measure(5), "a": measure(5 * difference)})
        group = only_group(cell, "b")
        kinds.append(group.verdict.kind)
        sides += group.verdict.arms if group.verdict.kind == "winner" else []
    if difference == 1:
        assert kinds.count("winner") < 50
        assert kinds.count("tie") > (950 if rounds >= 9 else 800)
    else:
        assert kinds.count("winner") > 900
        assert set(sides) == {"b"}


def test_a_hundred_races_of_twelve_equals_have_no_winner_and_seldom_a_difference() -> None:
    """The family is all arms of a group, and the best of them is chosen after the race."""
    random = np.random.default_rng(9)
    differing = 0
    for _ in range(100):
        measure = noise(random, 5)
        names = [f"a{index}" for index in range(12)]
        group = only_group(make_cell({"a0 (again)": measure(5)} | {name: measure(5) for name in names}), "a0")
        assert group.verdict.kind != "winner"
        differing += any(each.verdict in ("better", "worse") for each in group.comparisons if "again" not in each.arm)
    assert differing < 10


@pytest.mark.parametrize(("rounds", "within"), [(5, 0.015), (9, 0.018), (15, 0.025)])
def test_an_arm_against_itself_ties_in_19_of_20_races(rounds: int, within: float) -> None:
    """As `ringlab compare A A` says it: the two copies are the only ones there, and the verdict is about them.

    How much samples may scatter within a round for that is in docs/lab.md.
    """
    random = np.random.default_rng(4)
    verdicts = []
    for _ in range(400):
        measure = noise(random, rounds, within)
        verdicts.append(only_group(make_cell({"a": measure(5), "a (again)": measure(5)})).verdict)
    assert sum(verdict.kind == "tie" for verdict in verdicts) >= 380
    assert any(verdict.sentence == "no difference: a and a (again) are equal within 5%" for verdict in verdicts)


def test_the_best_is_who_costs_least_in_the_same_rounds_not_who_missed_the_slow_ones() -> None:
    """Rounds 1 to 5 were slow for all; 'absent' has no sample of them, so its median is the lowest."""
    speed = [2.0, 2.01, 1.99, 2.02, 2.0, 1.0, 1.01, 0.99, 1.0]
    jitter = [0.001, -0.002, 0.0, 0.002, -0.001, 0.001, 0.0, -0.001, 0.002]
    good = [5 * each for each in speed]
    absent = [None if each > 1.5 else 6 * each * (1 + off) for each, off in zip(speed, jitter, strict=True)]
    poor = [7 * each * (1 - off) for each, off in zip(speed, jitter, strict=True)]
    cell = make_cell({"good": good, "absent": absent, "poor": poor})
    for baseline in ("good", "absent", "poor"):
        group = only_group(cell, baseline)
        assert (group.verdict.kind, group.verdict.arms) == ("winner", ["good"]), group.verdict.sentence
        assert (
            group.verdict.sentence
            == "fastest: good; absent costs 20.1% more (19.8 to 20.4%); poor, the last, costs 40.0% more"
        )
        assert [row[0] for row in report.table_of(cell, group)] == ["arm", "good", "absent", "poor"]


def test_an_arm_with_too_few_rounds_hides_no_winner() -> None:
    good = [5.0, 5.01, 4.99, 5.0, 5.02]
    poor = [6.0, 6.02, 5.99, 6.01, 6.0]
    lucky = [None, None, None, None, 1.0]
    verdict = only_group(make_cell({"good": good, "poor": poor, "lucky": lucky}), "poor").verdict
    assert (verdict.kind, verdict.arms) == ("winner", ["good"])
    assert "not ranked: lucky, measured in fewer than 3 rounds" in verdict.sentence


def test_a_baseline_that_was_mostly_void_is_none() -> None:
    """A floor with one sample left would leave every arm without an interval."""
    good, poor = [5.0, 5.01, 4.99, 5.0, 5.02], [6.0, 6.02, 5.99, 6.01, 6.0]
    broken = [4.0, None, None, None, None]
    assert only_group(make_cell({"good": good, "poor": poor, "c-epoll": broken})).baseline == "good"
    assert only_group(make_cell({"good": good, "poor": poor, "c-epoll": broken}), "c-epoll").baseline == "c-epoll"


def test_only_the_baseline_is_called_so() -> None:
    """Arms without a common round have no ratio; a table that says 1 of them would say that they are equal."""
    cell = make_cell(
        {"base": [5.0, None, 5.0, None, 5.0], "other": [6.0, 6.0, 6.1, 6.1, 6.0], "apart": [None, 9.0, None, 9.1, None]}
    )
    assert only_group(cell, "base").baseline == "base"
    assert row_of(cell, "base")[2:4] == ["-", "the baseline"]
    assert row_of(cell, "other")[3] == "worse"
    assert row_of(cell, "apart")[1:4] == ["9.05", "", "never measured in the same round"]


def test_the_second_copy_of_an_arm_that_takes_no_part_is_left_out() -> None:
    """`ringlab compare B C --in RESULT`, and an arm that was void in every round while its second copy wasn't."""
    cell = make_cell({"a": [None] * 5, "a (again)": [5.0] * 5, "b": [6.0] * 5, "c": [7.0] * 5})
    group = only_group(cell, "b")
    assert (group.arms, group.baseline) == (["b", "c"], "b")
    assert "no A/A arm" in group.noise_text
    cell = make_cell({"a": [5.0] * 5, "a (again)": [5.2] * 5, "b": [6.0] * 5, "c": [6.1] * 5})
    (group,) = analysis.analyse(cell, make_arms(["b", "c", "a (again)"]), "b").groups
    assert (group.arms, group.noise_floor) == (["b", "c"], pytest.approx(0.04)), (
        "but what it says of the machine is kept"
    )
    cell = make_cell({"a": [5.0] * 5, "a (again)": [5.1] * 5, "b": [6.0] * 5, "c": [7.0] * 5})
    group = only_group(cell, "b")
    assert group.arms == ["a", "b", "c"]
    assert group.control is not None
    assert (group.control.arm, group.control.of) == ("a (again)", "a")


def test_each_figure_has_the_noise_floor_of_its_own() -> None:
    """Two copies of one arm differ by a quarter in latency, so nothing is told apart by less; in CPU they don't."""
    off = [0.001, -0.001, 0.002, -0.002, 0.0]
    cpu = {name: [cost * (1 + each) for each in off] for name, cost in {"b": 5.0, "b (again)": 5.01, "a": 6.0}.items()}
    p99 = {
        name: [cost * (1 - each) for each in off] for name, cost in {"b": 900, "b (again)": 1125, "a": 1080.0}.items()
    }
    found = {(each.arm, each.metric): each.verdict for each in only_group(make_cell(cpu, p99), "b").comparisons}
    assert found["a", CPU.key] == "worse"
    assert found["a", P99.key] == "cannot tell"
    assert ("b (again)", P99.key) not in found, "a control isn't ranked"


def test_no_tie_is_claimed_where_two_copies_of_one_arm_do_not() -> None:
    group = only_group(
        make_cell({"b": [5.0] * 5, "b (again)": [6.0, 6.01, 6.0, 5.99, 6.0], "a": [5.0, 5.01, 4.99, 5.0, 5.01]}), "b"
    )
    assert group.verdict.kind == "cannot tell"


def test_what_cannot_be_told_says_why() -> None:
    """The interval is the one that the verdict rests on. Where it has no 1, two copies of one arm differ as much."""
    base = [5.0, 5.2, 4.9, 5.1, 5.0]
    slower = [value * factor for value, factor in zip(base, (1.02, 1.10, 1.05, 1.12, 1.04), strict=True)]
    rough = [value * factor for value, factor in zip(base, (1.2, 0.8, 1.1, 0.9, 1.02), strict=True)]
    many = {"b": base, "a": slower} | {f"c{index}": rough[index:] + rough[:index] for index in range(5)}
    found = {each.arm: each for each in only_group(make_cell(many), "b").comparisons}["a"]
    assert (found.verdict, found.low < 1 < found.high, found.p_adjusted > 0.05) == ("cannot tell", True, True)
    assert found.confidence == pytest.approx(1 - 0.05 / 6)
    copy = [value * 1.2 for value in base]
    lone = only_group(make_cell({"b": base, "b (again)": copy, "a": [each * 1.2 for each in slower]}), "b").comparisons
    assert (lone[0].verdict, lone[0].low > 1) == ("cannot tell", True)
    assert " is within the noise; " in lone[0].sentence


def test_a_copy_is_a_control_that_passed_or_failed() -> None:
    off = [0.001, -0.001, 0.002, -0.002, 0.0]
    equal = {
        name: [5.0 * (1 + each) for each in off[turn:] + off[:turn]] for turn, name in enumerate(("b", "b (again)"))
    }
    other = [6.0 * (1 + each) for each in off]
    group = only_group(make_cell(equal | {"a": other}), "b")
    assert group.control is not None
    assert group.control.status == "passed"
    assert [rank.arm for rank in group.ranks] == group.arms == ["b", "a"]
    unequal = equal | {"b (again)": [value * 1.1 for value in equal["b"]]}
    group = only_group(make_cell(unequal | {"a": other}), "b")
    assert group.control is not None
    assert group.control.status == "failed"
    assert group.control.low > 1


def test_a_control_that_hides_large_differences_has_not_passed() -> None:
    """The ratio's interval, 0.23 to 1.35, is compatible with no difference, and with a large one."""
    base = [5.0] * 5
    copy = [5.0 * math.exp(-0.598 + 0.713 * each) for each in (-1, 1, 0, -1, 1)]
    group = only_group(make_cell({"b": base, "b (again)": copy, "a": base}), "b")
    assert group.control is not None
    assert group.control.status == "too noisy"
    assert (group.control.low, group.control.high) == (pytest.approx(0.2, abs=0.05), pytest.approx(1.6, abs=0.3))
    hidden = round(100 * (math.sqrt(group.control.high / group.control.low) - 1), -1)
    text = report.noise_of(group)
    assert text.startswith("too noisy: two copies of one arm differ, the second has 45% less (")
    assert text.endswith(f": differences below {hidden:.0f}% don't show here")


def test_others_that_had_the_cpus_are_told() -> None:
    cell = make_cell({"a": [5.0] * 3, "b": [6.0] * 3})
    assert not [note for note in analysis.notes(cell, []) if "had no CPU" in note]
    for sample in cell.samples:
        waited = 0.3 if sample.round == 1 else 0.2
        sample.figures |= {"run_delay_share": waited, "pressure_share": 0.4}
    (note,) = (note for note in analysis.notes(cell, []) if "had no CPU" in note)
    assert "for 20% of the time in the median sample, and for 30% in the worst, of the arm that waited least" in note
    assert "; something on the machine did for 40%: other programs run on their CPUs" in note
    # A server with more threads than CPUs waits for its own.
    for sample in cell.measured("b"):
        sample.figures["run_delay_share"] = 0.0
    assert not [note for note in analysis.notes(cell, []) if "had no CPU" in note]


def test_arms_are_compared_with_both_copies_of_the_baseline() -> None:
    """Their geometric mean scatters less than either."""
    cell = make_cell({"b": [4.0] * 4 + [None], "b (again)": [9.0] * 5, "a": [12.0] * 5})
    (found,) = only_group(cell, "b").comparisons
    assert found.ratios == [2.0] * 4 + [None]


def test_a_headline_is_groups_with_ranks() -> None:
    off = [0.01, -0.01, 0.02, -0.02, 0.0]
    costs = {"a": 5.0, "b": 5.05, "c": 5.1, "d": 6.5, "e": 9.2}
    cell = make_cell(
        {
            arm: [cost * (1 + 2 * each) for each in off[turn:] + off[:turn]]
            for turn, (arm, cost) in enumerate(costs.items())
        }
    )
    group = only_group(cell, "d")
    assert (group.verdict.kind, group.verdict.arms) == ("groups", ["a", "b", "c"])
    start, _, rest = group.verdict.sentence.partition("% is possible; ")
    assert start.startswith("fastest: a, b and c, no difference shown between them, but one of up to ")
    assert rest.startswith("d costs 30% more (")
    assert "%); e, the last, costs 84% more; " in rest
    assert {rank.arm: (rank.best, rank.worst) for rank in group.ranks} == {
        "a": (1, 3), "b": (1, 3), "c": (1, 3), "d": (4, 4), "e": (5, 5),
    }  # fmt: skip


def test_noise_that_no_rounds_would_overcome_asks_for_a_quieter_machine() -> None:
    off = [0.3, -0.3, 0.1, -0.2, 0.05]
    cell = make_cell({"a": [5.0 * (1 + each) for each in off], "b": [5.01 * (1 + each) for each in reversed(off)]})
    verdict = only_group(cell, "a").verdict
    assert (verdict.kind, verdict.rounds_needed) == ("cannot tell", None)
    assert verdict.sentence.endswith("; inside the noise: a quieter machine may tell, more rounds won't")


def test_arms_that_are_equal_to_the_digit_do_not_differ_by_less_than_nothing() -> None:
    (found,) = only_group(make_cell({"b": [5.0] * 5, "a": [5.0] * 5}), "b").comparisons
    assert found.sentence == "a and b tie in server CPU: they differ by less than 0.10%"


def test_the_rounds_that_it_would_take_are_said_for_those_that_they_would_tell() -> None:
    """One that differs by less than two copies of the baseline doesn't hide when another would be told."""
    off = [0.03, -0.03, 0.02, -0.02, 0.0]
    cell = make_cell(
        {
            "b": [5.0] * 5,
            "b (again)": [6.0] * 5,
            "near": [5.0 * 1.1 * (1 + each) for each in off],
            "far": [5.0 * 1.5 * (1 + 15 * each) for each in off],
        }
    )
    group = only_group(cell, "b")
    needed = {each.arm: each.rounds_needed for each in group.comparisons}
    assert needed["near"] is None
    assert needed["far"] is not None
    assert group.verdict.rounds_needed is None
    assert "rounds would tell" in group.verdict.sentence or "inside the noise" in group.verdict.sentence


def test_zeros_and_what_is_no_number_give_no_ratio() -> None:
    cell = make_cell({"b": [0.0, 5.0, 5.0, 5.0, 5.0], "a": [5.0, 0.0, math.nan, 10.0, 10.0]})
    (found,) = only_group(cell, "b").comparisons
    assert found.rounds == 2
    assert found.ratios == [None, None, None, 2.0, 2.0]
    cell = make_cell({"b": [0.0] * 5, "a": [5.0] * 5})
    group = only_group(cell, "b")
    assert group.comparisons == []
    assert group.verdict.kind == "cannot tell"
    assert row_of(cell, "a")[2:4] == ["", "never measured in the same round"]


def test_figures_that_repeat_exactly_are_analysed() -> None:
    """Latencies from a histogram do: resamples without any variance must not give an interval without end."""
    logs = np.array([0.1] * 5 + [0.4, 0.5])
    found = statistics.estimate(logs)
    assert found is not None
    assert 0.5 < found.interval[0] < found.ratio < found.interval[1] < 2.5
    assert statistics.judge(found, found.p, 0.02) == "cannot tell"


def test_a_sentence_is_about_the_ratio_that_the_table_shows() -> None:
    cell = make_cell(
        {"b": [5.0, 5.1, 4.9, 5.0, 5.1], "a": [6.0, 6.1, 5.9, 6.0, 6.2], "c": [15.1, 15.0, 14.8, 15.0, 15.2]}
    )
    group = only_group(cell, "b")
    assert row_of(cell, "a")[2] == "20.3% more (19.4 to 21.3%)"
    assert group.comparisons[0].sentence == "a is worse than b in server CPU: 20.3% more (19.4 to 21.3%)"
    assert group.comparisons[1].sentence.startswith("c is worse than b in server CPU: 2.99 times (")
    expected = "fastest: b; a costs 20.3% more (19.3 to 21.3%); c, the last, costs 2.99 times as much"
    assert group.verdict.sentence == expected


def test_an_open_loop_says_who_fell_behind_and_who_was_behind_from_the_start() -> None:
    cell = make_cell({"steady": [5.0] * 3, "slow": [5.0] * 3, "late": [5.0] * 3})
    cell.parameters["offered_rate_per_s"] = 20000.0
    for sample in cell.samples:
        sample.figures["operations_per_s"] = {"steady": 20010.0, "slow": 12000.0, "late": 30200.0}[sample.arm]
    assert analyse(cell).notes == [
        "slow didn't keep up: it answered 12,000 of 20,000 requests/s",
        "late was behind when the window began: it answered 30,200 requests/s, and 20,000 were offered",
    ]


def test_system_calls_that_were_not_counted_are_noted_with_the_reason() -> None:
    cell = make_cell({"a": [5.0] * 3, "b": [6.0] * 3, "c": [7.0] * 3, "d": [7.0] * 3})
    cell.system_calls = [
        results.SystemCalls(arm="a", tool="perf", per_operation=2.0, operations=100),
        results.SystemCalls(arm="b", tool="perf", text="the server ended"),
        results.SystemCalls(arm="c", tool="perf", text="nothing was counted"),
        results.SystemCalls(arm="d", tool="perf", text="nothing was counted"),
    ]
    assert analyse(cell).notes == [
        "the system calls of b weren't counted: the server ended",
        "the system calls of c and d weren't counted: nothing was counted",
    ]


def test_a_server_of_streams_that_had_to_be_waited_for_is_named() -> None:
    cell = make_cell({"prompt": [5.0] * 3, "lags": [5.0] * 3})
    for sample in cell.samples:
        behind = sample.arm == "lags" and sample.round > 1
        sample.figures["streams_held_back"] = 7.0 if behind else 0.0
        sample.figures["stream_outstanding_bytes"] = 268.3e6 * (sample.round / 3) if behind else 9e6
    assert analyse(cell).notes == [
        "lags lagged 268 MB behind on a connection: sending was held back until half of that had come back"
    ]


def test_the_growth_of_a_server_of_streams_is_told_by_the_megabyte() -> None:
    cell = make_cell({"leaks": [5.0] * 3})
    cell.operation = "MB"
    for sample in cell.samples:
        sample.figures |= {"rss_rest_bytes": 20e6, "rss_end_bytes": 20e6}
    cell.samples[-1].figures |= {"rss_end_bytes": 220e6, "operations": 9e9, "megabytes_per_s": 1000.0, "window_s": 2.0}
    (note,) = analyse(cell).notes
    assert "from 20.0 to 220 MB while it was measured, 100,000 bytes for each MB" in note


def test_a_server_whose_memory_grows_is_named_with_the_figures() -> None:
    cell = make_cell({"steady": [5.0] * 3, "leaks": [5.0] * 3})
    cell.parameters["connections"] = 100
    for sample in cell.samples:
        grown = 1.4e9 if sample.arm == "leaks" and sample.round == 2 else 30e6
        sample.figures |= {
            "rss_rest_bytes": 20e6,
            "rss_per_connection_bytes": 10e3,
            "rss_end_bytes": grown,
            "operations": 1e6,
        }
    assert analyse(cell).notes == [
        "leaks may leak: in round 2 its memory grew from 21.0 to 1,400 MB while it was measured, 1,380 bytes for each message"
    ]


def test_errors_that_void_nothing_are_noted() -> None:
    cell = make_cell({"a": [5.0] * 3, "b": [6.0] * 3})
    cell.samples[0].errors = {"reset": results.ErrorCount(count=2, first="connection reset by peer")}
    cell.samples[1].errors = {"reset": results.ErrorCount(count=1, first="later")}
    assert "a: 3 errors of the kind 'reset' in measured rounds, first: connection reset by peer" in analyse(cell).notes
