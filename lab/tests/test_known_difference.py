"""A server that costs 3% more is found to cost 3% more, by the real load generator and on real processes.

A measuring test: `make test-long` runs it. How long that takes to be decided depends on the machine, so no verdict is asked for: what is
measured must agree with the truth, at a confidence at which the test fails in one of hundreds of runs where nothing is wrong.
"""

from pathlib import Path

import pytest

from conftest import FAKES, SilentProgress
from ringlab import analysis, generator, manifest, preflight, results, runner, statistics, workloads

CELL = "echo/framed/1KB/1"
WORK_BYTES = 1_000_000
"""Hashing them takes half a millisecond or more, and all else that a message costs some 20 us."""
BESIDE = 0.06
"""The share of a message's cost that isn't work, at most."""
TARGET = """
name = "{name}"
language = "Python"
title = "it works for each message"
[run]
echo = "{{python}} -IS {server} {{host}} {{port}} {work}"
"""
pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("patient_probes")]


@pytest.mark.parametrize("more", [0.03, 0.10])
def test_a_server_that_costs_more_is_found_to_cost_as_much_more(more: float, tmp_path: Path) -> None:
    for name, work in (("plain", WORK_BYTES), ("dearer", round((1 + more) * WORK_BYTES))):
        folder = tmp_path / "targets" / name
        folder.mkdir(parents=True)
        text = TARGET.format(name=name, server=FAKES / "burning.py", work=work)
        (folder / manifest.FILE_NAME).write_text(text)
    scale = results.Scale(name="normal", rounds=7, window_s=1.2, warm_up_s=0.2, ramp_s=0.0)
    placement = preflight.place(1)
    run = results.Run(command=[], begun="2026-11-21T15:00:00+00:00", seed=1, scale=scale, placement=placement)
    race = runner.Race(
        results.Result(run=run),
        {arm.name: arm for arm in manifest.discover(tmp_path / "targets")},
        workloads.choose([CELL], "normal"),
        generator.find(),
        tmp_path / "result.json",
        SilentProgress(),
        runner.Options(baseline="plain", ceilings=False),
    )
    race.run()
    (cell,) = race.result.cells
    assert {sample.status for sample in cell.samples} == {"measured"}, [sample.reasons for sample in cell.samples]
    (group,) = cell.analysis.groups
    (comparison,) = (each for each in group.comparisons if each.metric == "server_cpu_us")
    allowed = {"worse", "cannot tell"} | ({"tie"} if more < statistics.TIE_MARGIN else set())
    assert comparison.verdict in allowed, comparison.sentence
    copies = {"plain": "plain (again)"}
    own, other = (analysis.series_of(cell, arm, cell.primary, copies) for arm in ("dearer", "plain"))
    found = statistics.estimate(statistics.log_ratios(own, other))
    assert found is not None
    low, high = found.within(0.002)
    print(
        f"{100 * more:g}% more: {found.ratio:.4f} ({low:.4f} to {high:.4f}); {comparison.sentence}; {group.noise_text}"
    )
    assert low <= 1 + more
    assert high >= 1 + (1 - BESIDE) * more
    again = analysis.again(cell, cell.primary, copies)
    assert again is not None
    low, high = again.within(0.002)
    assert low <= 1 <= high
