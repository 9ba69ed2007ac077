"""Two results against each other: what changed is found, what didn't isn't, and the report says so."""

import csv
import io
import random
import re
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from click.testing import CliRunner, Result

from ringlab import Refused, cli, exports, results, statistics, unpaired
from runs import COPY, make_run, write_run


def ringlab(*words: object) -> Result:
    return CliRunner().invoke(cli.main, [str(word) for word in words])


def kinds(comparison: unpaired.Comparison) -> dict[str, str]:
    return {judged.arm: judged.kind for judged in comparison.judged}


def test_a_change_is_found_and_a_slower_machine_is_none() -> None:
    before = make_run({"red": 5.0, "blue": 6.0, "green": 7.0})
    after = make_run({"red": 5.5, "blue": 6.0, "green": 6.3}, number=2, machine=1.4)
    comparison = unpaired.compare(before, after)
    assert kinds(comparison) == {"red": "worse", "blue": "tie", "green": "better"}
    red = comparison.judged[0]
    assert red.ratio == pytest.approx(1.1, rel=0.03)
    assert red.low < 1.1 < red.high
    assert red.worse_by == pytest.approx(0.1, abs=0.03)
    assert "relative to c-epoll" in red.sentence


def test_groups_of_http_servers_have_one_control_and_it_is_the_one_with_the_copy() -> None:
    def run(red: float, number: int, machine: float) -> results.Result:
        costs = {"asyncio-uvicorn": 30.0, "uvicorn": 35.0, "red": red}
        parsing = ("asyncio-uvicorn", "uvicorn")
        return make_run(costs, number=number, machine=machine, cells=["http/50/closed"], parsing=parsing)

    before, after = run(5.0, 1, 1.0), run(5.5, 2, 1.2)
    assert [group.baseline for group in before.cells[0].analysis.groups] == ["c-epoll", "asyncio-uvicorn"]
    comparison = unpaired.compare(before, after)
    assert {judged.control for judged in comparison.judged} == {"c-epoll"}
    assert kinds(comparison) == {"asyncio-uvicorn": "tie", "uvicorn": "tie", "red": "worse"}
    assert [judged.arm for judged in exports.failures(comparison, [exports.Condition("slower", 3)])] == ["red"]
    # Where the copies are of another arm, that one is the control.
    for result in (before, after):
        result.arms[-1].repeats = "asyncio-uvicorn"
    assert {judged.control for judged in unpaired.compare(before, after).judged} == {"asyncio-uvicorn"}
    # Without copies, a floor is.
    for result in (before, after):
        result.cells[0].samples = [sample for sample in result.cells[0].samples if sample.arm != COPY]
    assert {judged.control for judged in unpaired.compare(before, after).judged} == {"c-epoll"}


def test_without_a_control_the_machine_is_part_of_it() -> None:
    before, after = make_run({"red": 5.0}), make_run({"red": 5.0}, number=2, machine=1.4)
    comparison = unpaired.compare(before, after, control="none")
    assert kinds(comparison)["red"] == "worse"
    assert "as measured, the machine's drift included" in comparison.judged[0].sentence


def test_a_higher_rate_is_better() -> None:
    comparison = unpaired.compare(make_run({"red": 5.0}), make_run({"red": 4.0}, number=2), every_metric=True)
    rate = next(judged for judged in comparison.judged if judged.metric.key == "operations_per_s")
    assert rate.ratio > 1
    assert rate.kind == "better"


def test_between_equals_hardly_ever_a_change_is_reported() -> None:
    dice = random.Random(5)
    wrong = 0
    for _ in range(300):
        noise = dice.choice([0.005, 0.02, 0.05])
        before = np.array([dice.gauss(0, noise) for _ in range(9)])
        after = np.array([dice.gauss(0, noise) for _ in range(9)])
        found = unpaired.estimate(before, after)
        assert found is not None
        wrong += statistics.judge(found, found.p, statistics.MARGIN) in ("below", "above")
    assert wrong <= 15


@pytest.mark.parametrize("sizes", [(5, 6), (9, 15), (15, 9)])
def test_the_test_is_that_of_welch_and_yuen(sizes: tuple[int, int]) -> None:
    random_numbers = np.random.default_rng(3)
    first, second = random_numbers.normal(0, 1, sizes[0]), random_numbers.normal(0.5, 2, sizes[1])
    found = unpaired.estimate(first, second)
    assert found is not None
    trim = statistics.TRIM if min(sizes) >= statistics.TRIMMED_FROM else 0.0
    expected = scipy.stats.ttest_ind(second, first, equal_var=False, trim=trim)
    assert found.p == pytest.approx(expected.pvalue, rel=1e-6)


def test_how_far_the_copy_moved_is_no_change() -> None:
    before, after = make_run({"red": 5.0}), make_run({"red": 5.35}, number=2)
    assert kinds(unpaired.compare(before, after)) == {"red": "worse"}
    for sample in after.cells[0].samples:
        if sample.arm.endswith("(again)"):
            sample.figures["server_cpu_us"] *= 1.08
    assert kinds(unpaired.compare(before, after)) == {"red": "cannot tell"}


def test_each_figure_has_the_noise_of_its_own_copies() -> None:
    before, after = make_run({"red": 5.0}), make_run({"red": 5.35}, number=2)
    for result in (before, after):
        for sample in result.cells[0].measured(COPY):
            sample.figures["operations_per_s"] *= 1.08
    comparison = unpaired.compare(before, after, every_metric=True)
    assert {judged.metric.key: judged.kind for judged in comparison.judged} == {
        "server_cpu_us": "worse", "operations_per_s": "cannot tell",
    }  # fmt: skip


def test_what_is_missing_and_what_differs_is_told() -> None:
    before = make_run({"red": 5.0, "blue": 6.0}, cells=("echo/framed/1KB/100", "rtt/1KB"))
    after = make_run({"red": 5.0}, number=2)
    after.environment.kernel = "Linux 7.0"
    comparison = unpaired.compare(before, after)
    assert set(comparison.missing) == {
        ("echo/framed/1KB/100", "blue"), ("rtt/1KB", "c-epoll"), ("rtt/1KB", "red"), ("rtt/1KB", "blue"),
    }  # fmt: skip
    assert comparison.notes == ["the kernel was Linux 6.18, and is Linux 7.0"]


def test_cells_of_other_parameters_are_not_compared() -> None:
    before, after = make_run({"red": 5.0}), make_run({"red": 5.0}, number=2)
    after.cells[0].parameters["connections"] = 50
    with pytest.raises(results.ResultError, match="no arm and cell in common"):
        unpaired.compare(before, after)


def test_an_unknown_control_is_refused() -> None:
    with pytest.raises(results.ResultError, match="no arm is called 'nobody'"):
        unpaired.compare(make_run({"red": 5.0}), make_run({"red": 5.0}), control="nobody")


# --- exports ---


@pytest.mark.parametrize("text", ["slower:x", "slower:", "better", "missing:3%", "", "slower:-1%"])
def test_a_condition_that_is_not_understood_is_refused(text: str) -> None:
    with pytest.raises(Refused, match="isn't understood; write slower, faster, cannot-tell or missing"):
        exports.Condition.parse(text)


def test_conditions_have_limits() -> None:
    comparison = unpaired.compare(make_run({"red": 5.0}), make_run({"red": 5.5}, number=2))
    fails = {
        text: bool(exports.failures(comparison, [exports.Condition.parse(text)]))
        for text in ("slower", "slower:5%", "slower:5", "slower:20%", "faster", "cannot-tell")
    }
    assert fails == {
        "slower": True, "slower:5%": True, "slower:5": True, "slower:20%": False, "faster": False, "cannot-tell": False,
    }  # fmt: skip


def test_csv_has_every_figure() -> None:
    result = make_run({'red, the "first"': 5.0}, rounds=3)
    rows = list(csv.DictReader(io.StringIO(exports.result_csv(result))))
    assert len(rows) == 3 * 3 * 2
    assert {row["arm"] for row in rows} == {"c-epoll", "c-epoll (again)", 'red, the "first"'}
    assert float(rows[0]["value"]) == next(iter(result.cells[0].samples[0].figures.values()))


# --- the command ---


def test_the_command_compares_files(tmp_path: Path) -> None:
    before, after = write_run(tmp_path, make_run({"red": 5.0})), write_run(tmp_path, make_run({"red": 5.6}, number=2))
    table = tmp_path / "table.csv"
    words = ("compare", before, after.parent, "--csv", table)
    assert ringlab(*words).exit_code == 0
    found = ringlab(*words, "--fail-if", "slower:3%")
    assert found.exit_code == 1, found.output
    assert re.search(r"red in server CPU per operation: worse: 1\d%(25)? more \(", found.output)
    assert "--fail-if slower:3% is met by 1 verdict" in found.output
    assert table.read_text().splitlines()[1].startswith("echo/framed/1KB/100,red,server_cpu_us,us,worse,1.")


def test_options_for_other_things_are_refused(tmp_path: Path) -> None:
    before, after = write_run(tmp_path, make_run({"red": 5.0})), write_run(tmp_path, make_run({"red": 5.6}, number=2))
    found = ringlab("compare", before, after, "--rounds", "3")
    assert found.exit_code == 2
    assert "--rounds is for arms, not for result files" in found.output
    found = ringlab("compare", "go", "tokio", "--csv", tmp_path / "x.csv")
    assert found.exit_code == 2
    assert "--csv is for two result files" in found.output


def test_what_is_no_result_is_refused(tmp_path: Path) -> None:
    before = write_run(tmp_path, make_run({"red": 5.0}))
    wrong = tmp_path / "wrong.json"
    wrong.write_text("{}")
    found = ringlab("compare", before, wrong)
    assert found.exit_code == 2
    assert "wrong.json is not a result of ringlab" in found.output


def test_report_writes_csv(tmp_path: Path) -> None:
    path = write_run(tmp_path, make_run({"red": 5.0}))
    assert ringlab("report", path, "--format", "csv").output.startswith("cell,arm,round,")
