"""Programs that measure one thing themselves, and the runs that presets stand for."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from conftest import FAKES, SilentProgress, command_of
from ringlab import Refused, cli, manifest, presets, results, runner, selection, session, sources, subjects, workloads

CHAIN, TLS = "loops/schedule/chain", "loops/tls/protocol/1KB/50"
TARGET = '''
name = "{name}"
language = "Python"
title = "a fake"
[run]
loops = """{{python}} {program} --cost {cost} --fault '{fault}' --window {{window}} --warm-up {{warm_up}}
  --server-cpus={{server_cpus}} --load-cpus={{load_cpus}} --load={{load}}"""
[declares]
lacks = {lacks}
'''
MakeTargets = Callable[..., Path]
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def make_subjects(tmp_path: Path) -> MakeTargets:
    """Return a function that makes a folder of targets: `make_subjects(asyncio=4.0, ringloop=1.0, faults={"ringloop": "crash"})`."""

    def make(faults: dict[str, str] | None = None, lacks: dict[str, list[str]] | None = None, **costs: float) -> Path:
        folder = tmp_path / "targets"
        for name, cost in costs.items():
            (folder / name).mkdir(parents=True)
            text = TARGET.format(
                name=name, program=FAKES / "subject.py", cost=cost, fault=(faults or {}).get(name, ""),
                lacks=json.dumps((lacks or {}).get(name, [])),
            )  # fmt: skip
            (folder / name / manifest.FILE_NAME).write_text(text)
        return folder

    return make


def race(folder: Path, tmp_path: Path, *cells: str, rounds: int = 3) -> runner.Race:
    scale = results.Scale(name="normal", rounds=rounds, window_s=0.2, warm_up_s=0.0, ramp_s=0.0)
    run = results.Run(command=["ringlab", "run"], begun="2026-11-21T15:00:00+00:00", seed=1, scale=scale)
    made = runner.Race(
        results.Result(run=run),
        {arm.name: arm for arm in manifest.discover(folder)},
        workloads.choose(cells, "normal"),
        None,
        tmp_path / "out" / "result.json",
        SilentProgress(),
    )
    made.run()
    return made


def test_a_subject_is_measured_ranked_and_held_against_asyncio(make_subjects: MakeTargets, tmp_path: Path) -> None:
    (cell,) = race(make_subjects(asyncio=4.0, ringloop=1.0, uvloop=2.0), tmp_path, CHAIN, rounds=5).result.cells
    assert set(cell.arms) == {"asyncio", "ringloop", "uvloop", "asyncio (again)"}
    assert [sample.status for sample in cell.samples] == ["measured"] * 20
    (group,) = cell.analysis.groups
    assert (group.baseline, group.verdict.kind, group.verdict.arms) == ("asyncio", "winner", ["ringloop"])
    by_arm = {each.arm: each.ratio for each in group.comparisons if each.metric == "operation_ns"}
    assert by_arm["ringloop"] == pytest.approx(0.25, rel=0.01)
    assert cell.samples[0].figures["window_s"] == pytest.approx(0.03), "the share of the window that was asked for"
    assert "odd" not in cell.samples[0].figures


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("crash", "WrongBehaviour: not so: callbacks run in order"),
        ("none", "it printed no figure 'operation_ns': {'figures': {}}"),
    ],
)
def test_a_subject_that_fails_is_told(fault: str, reason: str, make_subjects: MakeTargets, tmp_path: Path) -> None:
    folder = make_subjects(asyncio=4.0, ringloop=1.0, faults={"ringloop": fault})
    (cell,) = race(folder, tmp_path, CHAIN).result.cells
    failed = [sample for sample in cell.samples if sample.arm == "ringloop"]
    assert [sample.status for sample in failed] == ["failed"] * runner.FAILURES_MAX
    assert failed[0].reasons == [reason]


def test_an_arm_takes_no_part_where_it_lacks_the_feature(make_subjects: MakeTargets, tmp_path: Path) -> None:
    folder = make_subjects(asyncio=4.0, rloop=1.0, floor=1.0, lacks={"rloop": ["tls"], "floor": ["loop"]})
    chain, tls = race(folder, tmp_path, CHAIN, TLS).result.cells
    assert set(chain.arms) == {"asyncio", "rloop", "asyncio (again)"}
    assert set(tls.arms) == {"asyncio", "floor", "asyncio (again)"}


def test_a_cell_that_this_machine_cannot_measure_is_left_out(make_subjects: MakeTargets, tmp_path: Path) -> None:
    folder = make_subjects(asyncio=4.0, ringloop=1.0, faults={"asyncio": "without-tls", "ringloop": "without-tls"})
    chain, tls = race(folder, tmp_path, CHAIN, TLS).result.cells
    assert chain.samples
    assert (tls.samples, tls.left_out) == ([], "no floor under TLS: apt-get install libssl-dev")


def test_a_subject_that_loads_a_server_is_given_the_load_generator(
    make_subjects: MakeTargets, tmp_path: Path, fake_load: Path
) -> None:
    plans = {plan.name: plan for plan in workloads.CELLS}
    assert [plans[name].loaded for name in (CHAIN, TLS, "files/stat", "loops/wait/idle")] == [False, True, False, True]
    words = ("--rounds", "3", "--seconds", "0.05", "--targets-folder", make_subjects(asyncio=1.0))
    done = subprocess.run(
        command_of("run", CHAIN, TLS, *words, "--output", tmp_path / "out"), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = results.Result.read(tmp_path / "out" / "result.json")
    assert "ringlab-load 9.9" in result.environment.generator
    assert {sample.figures["has_load"] for cell in result.cells for sample in cell.samples} == {1.0}


def test_without_a_load_generator_no_server_can_be_loaded(
    make_subjects: MakeTargets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RINGLAB_LOAD", "/nonexistent")
    words = ("--rounds", "3", "--seconds", "0.05", "--targets-folder", make_subjects(asyncio=1.0))
    command = command_of("run", TLS, *words, "--output", tmp_path / "out")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "RINGLAB_LOAD is /nonexistent, which can't be run; unset it" in done.stdout + done.stderr


def test_loops_and_files_are_measured_only_where_they_are_asked_for() -> None:
    for scale in workloads.SCALES:
        assert not {plan.workload for plan in workloads.choose([], scale)}.intersection(manifest.SUBJECTS)
    assert {plan.workload for plan in workloads.choose(["loops"], "quick")} == {"loops"}


def test_cells_of_subjects_have_names_of_their_own_and_one_figure_that_ranks() -> None:
    names = [each.name for each in subjects.SUBJECTS]
    assert len(names) == len(set(names))
    assert set(names) >= subjects.QUICK_ECHO
    assert all(sum(metric.primary for metric in each.metrics) == 1 for each in subjects.SUBJECTS)


def test_a_name_means_the_arm_that_serves_what_is_asked_for() -> None:
    arms = manifest.discover()
    of_loops = selection.choose(arms, ["ringloop"], wanted={"loops"})
    assert [arm.target for arm in of_loops] == ["loops"]
    of_echo = selection.choose(arms, ["ringloop"], wanted={"echo"})
    assert {arm.target for arm in of_echo} == {"ringloop"}
    assert len(of_echo) > 1


def test_every_preset_has_cells_arms_and_goals_about_them() -> None:
    arms = manifest.discover()
    for preset in presets.all_presets().values():
        plans = workloads.choose(preset.cells, "quick" if preset.options.get("quick") else "normal")
        chosen = selection.choose(arms, preset.targets, wanted={plan.workload for plan in plans})
        assert all(any(plan.served_by(arm) for arm in chosen) for plan in plans), preset.title
        assert preset.goals is None or preset.goals.exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[a]\ntitle = 'x'\n", r"presets.toml: a.cells is missing; needed here: title, cells"),
        ("[a]\ntitle = 'x'\ncells = ['echo']\ncell = 'y'\n", r"a.cell is not known; did you mean cells"),
        ("a = 1\n", "a must be a table, not 1"),
        ("[a]\ntitle = 'x'\ncells = 'echo'\n", "a.cells must be a list, not 'echo'"),
        ("[a]\ntitle = 'x'\ncells = ['echo']\ntargets = 'go'\n", "a.targets must be a list, not 'go'"),
        ("[a\n", "presets.toml is not valid TOML"),
    ],
)
def test_wrong_presets_are_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / presets.FILE_NAME).write_text(text)
    with pytest.raises(Refused, match=message):
        presets.read(tmp_path / presets.FILE_NAME)


def test_a_preset_with_an_option_that_there_is_not_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / presets.FILE_NAME).write_text("[a]\ntitle = 'x'\ncells = ['echo']\noptions = { quik = true }\n")
    monkeypatch.setattr(sources, "folder", lambda: tmp_path)
    found = CliRunner().invoke(cli.main, ["run", "--preset", "a"])
    assert (found.exit_code, "'x' in presets.toml has no option of `ringlab run`: quik" in found.output) == (2, True)


def test_an_unknown_preset_is_refused() -> None:
    with pytest.raises(Refused, match=r"there is no preset 'loop'; did you mean loops"):
        presets.named("loop")


@pytest.mark.parametrize(("preset", "minutes"), [("loops", 9), ("native", 8)])
def test_a_preset_fits_its_time(preset: str, minutes: float, tmp_path: Path) -> None:
    """With every arm that there is, the fewest rounds, and the windows that a run without time has."""
    plans = workloads.choose(presets.named(preset).cells, "quick")
    arms = selection.choose(
        manifest.discover(), presets.named(preset).targets, wanted={plan.workload for plan in plans}
    )
    scale = session.with_window(
        workloads.SCALES["quick"], session.QUICK_WINDOW_MIN * workloads.SCALES["quick"].window_s
    )
    run = results.Run(command=[], begun="", seed=1, scale=scale)
    made = runner.Race(
        results.Result(run=run),
        {arm.name: arm for arm in arms},
        plans,
        None,
        tmp_path / "result.json",
        SilentProgress(),
    )
    assert 3 * sum(made.round_s(plan) for plan in plans) < 60 * minutes


def test_goals_decide_the_exit_status_and_are_in_the_result(make_subjects: MakeTargets, tmp_path: Path) -> None:
    folder = make_subjects(asyncio=40.0, ringloop=1.0)
    goals = tmp_path / "goals.toml"
    text = '[[goals]]\nname = "fast"\narms = ["ringloop"]\ncells = ["loops/schedule/*"]\nagainst = ["asyncio"]\nbetter_by = {}\n'

    def run(*words: object, limit: float = 10) -> "subprocess.CompletedProcess[str]":
        goals.write_text(text.format(limit))
        options = ("--rounds", "3", "--seconds", "0.05", "--targets-folder", folder)
        return subprocess.run(command_of("run", *words, *options), capture_output=True, text=True, check=False)

    done = run(CHAIN, "--goals", goals, "--output", tmp_path / "reached")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "reached" in done.stdout
    (verdict,) = results.Result.read(tmp_path / "reached" / "result.json").goals
    assert (verdict.goal, verdict.arm, verdict.verdict) == ("fast", "ringloop", "reached")
    assert "| fast | ringloop | reached |" in (tmp_path / "reached" / "report.md").read_text()
    done = run(CHAIN, "--goals", goals, "--output", tmp_path / "missed", limit=100)
    assert done.returncode == 1, done.stdout + done.stderr
    done = run("loops/fairness/flood", "--goals", goals, "--output", tmp_path / "none")
    assert done.returncode == 2
    assert "is about a cell of this run" in done.stderr
    # Those of a preset are told, and decide nothing.
    done = run(CHAIN, "--preset", "loops", "--output", tmp_path / "preset")
    assert done.returncode == 0, done.stdout + done.stderr
    found = results.Result.read(tmp_path / "preset" / "result.json")
    assert {each.verdict for each in found.goals} >= {"reached", "not measured"}
    assert found.run.scale.name == "quick"
