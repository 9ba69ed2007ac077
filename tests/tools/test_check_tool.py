"""tools/check.py: what it plans, and how it judges steps that are small programs."""

import os
import subprocess
import sys

import pytest

from support import load_tool

check = load_tool("check")
test_records = check.test_records


def pythons(main, *others):
    found = {minor: check.Interpreter(minor, f"/usr/bin/python3.{minor}") for minor in (main, *others)}
    return check.Interpreters(found.pop(main), found, [])


ALL = pythons(11, 12, 13, 14, 15)


def names(steps):
    return [step.name for step in steps]


def test_everything_that_decides_is_also_in_the_whole():
    steps = check.plan(ALL, "0" * 40)
    decides = names(check.choose(steps, [], everything=False))
    assert set(decides) < set(names(check.choose(steps, [], everything=True)))
    assert {"make build", "make test", "make test-long", "make lint", "make docs"} < set(decides)
    assert {"python 3.15", "conformance 3.11", "conformance 3.15"} < set(decides)
    assert not {"conformance 3.12", "make test-loom", "make test-package"} & set(decides)


def test_interpreters_in_the_middle_take_turns():
    turns = {f"python 3.{minor} {backend}" for minor in (12, 13, 14) for backend in check.BACKENDS}
    taken = set()
    for number in range(6):
        steps = names(check.choose(check.plan(ALL, f"{number:08x}" + "0" * 32), [], everything=False))
        (python,) = turns & set(steps)
        taken.add(python)
    assert taken == turns
    assert turns < set(names(check.choose(check.plan(ALL, "0" * 40), [], everything=True)))


def test_only_the_quick_check_tries_fewer_examples_and_never_on_the_main_interpreter():
    def with_fewer(steps):
        return {step.name for step in steps if any("RINGLOOP_TEST_EXAMPLES" in word for word in step.command)}

    quick = check.choose(check.plan(ALL, "0" * 40, quick=True), [], everything=False)
    assert with_fewer(quick) == {step.name for step in quick if step.name.startswith("python 3.")}
    assert with_fewer(quick)
    assert with_fewer(check.plan(ALL, "0" * 40)) == set()


def test_what_the_quick_check_leaves_out_exists_and_is_in_the_whole_one():
    for path in check.LEFT_OUT:
        assert (check.REPOSITORY / path).exists(), path
        for quick in (True, False):
            steps = [step for step in check.plan(ALL, "0" * 40, quick=quick) if step.name.startswith("python 3.")]
            assert {any(path in word for word in step.command) for step in steps} == {quick}, path


@pytest.mark.parametrize("found", [ALL, pythons(12), pythons(15, 11), pythons(13, 14, 15)], ids=str)
def test_no_step_waits_for_a_later_one_of_its_lane_or_for_itself(found):
    steps = check.plan(found, "0" * 40)
    assert len(set(names(steps))) == len(steps)
    ended = set()
    either = [step for step in steps if step.lane == "either"]
    lanes = [[step for step in steps if step.lane == lane] for lane in ("main", "beside")]
    while any(lanes) or either:
        for lane in lanes:
            if not lane and either:
                lane.append(either.pop(0))
        ready = [lane for lane in lanes if lane and {*lane[0].needs} & {*names(steps)} <= ended]
        assert ready, f"{[lane[0].name for lane in lanes if lane]} wait for each other"
        ended |= {lane.pop(0).name for lane in ready}


def test_one_step_brings_what_it_needs():
    steps = check.choose(check.plan(ALL, "0" * 40), ["python 3.13 epoll"], everything=False)
    assert names(steps) == ["build on 3.13", "python 3.13 epoll"]
    with pytest.raises(check.CannotBegin, match="no step 'lint'; --list"):
        check.choose(steps, ["lint"], everything=False)


def test_a_free_threaded_interpreter_takes_part_in_the_whole_check(monkeypatch):
    found = check.dataclasses.replace(ALL, free_threaded="/opt/python3.14t")
    (step,) = check.choose(check.plan(found, "0" * 40), ["make test-free-threaded"], everything=False)[-1:]
    assert step.command == ["make", "test-free-threaded", "PYTHON=/opt/python3.14t"]
    assert not step.in_quick


def test_without_a_free_threaded_interpreter_its_step_says_why_it_is_absent(tmp_path, monkeypatch):
    monkeypatch.setattr(check, "REPORT", tmp_path / "report.json")
    run = check.Run([check.free_threaded_step(None)])
    run.finish()
    outcome = run.outcomes["make test-free-threaded"]
    assert outcome.outcome == "absent"
    assert outcome.details == [
        "left out: no free-threaded CPython 3.14 or later is on this machine; RINGLOOP_FREE_THREADED_PYTHON names one"
    ]


def test_the_free_threaded_interpreter_that_is_named_comes_first(tmp_path, monkeypatch):
    named, other = tmp_path / "named", tmp_path / "python3.14t"
    for path in (named, other):
        path.write_text("#!/bin/sh\nexit 0\n")
        path.chmod(0o755)
    monkeypatch.setattr(check.Path, "home", lambda: tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("RINGLOOP_FREE_THREADED_PYTHON", raising=False)
    assert check.find_free_threaded() == str(other)
    monkeypatch.setenv("RINGLOOP_FREE_THREADED_PYTHON", str(named))
    assert check.find_free_threaded() == str(named)
    # One that can't be used is passed over.
    named.write_text("#!/bin/sh\nexit 1\n")
    assert check.find_free_threaded() == str(other)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Return a function that runs shell commands as steps of both lanes, and returns the outcome of each."""
    monkeypatch.setattr(check, "REPORT", tmp_path / "report.json")

    def run_commands(**commands):
        steps = [
            check.Step(name, "", ["sh", "-c", command], ("main", "beside")[index % 2])
            for index, (name, command) in enumerate(commands.items())
        ]
        run = check.Run(steps)
        run.finish()
        return [run.outcomes[step.name] for step in steps]

    return run_commands


def test_a_failure_stops_nothing_and_fails_the_check(run, capsys):
    outcomes = run(
        first="echo 'FAILED tests/test_one.py::test_it'; exit 3", second="true", third="true", fourth="exit 77"
    )
    assert [outcome.outcome for outcome in outcomes] == ["FAILED", "passed", "passed", "absent"]
    assert not check.print_summary(outcomes, [], [])
    printed = capsys.readouterr().out
    assert "FAILED tests/test_one.py::test_it" in printed.partition("##### summary")[2]
    assert printed.endswith("FAILED: first\n")


def test_a_lane_without_steps_of_its_own_takes_those_that_can_run_in_either(tmp_path, monkeypatch):
    monkeypatch.setattr(check, "REPORT", tmp_path / "report.json")
    began = tmp_path / "began"
    # The first step of the lane "main" ends when the other lane has run the second of those that can run in either.
    steps = [
        check.Step("waits", "", ["sh", "-c", f"until [ -e {began} ]; do sleep 0.01; done"], "main"),
        check.Step("first", "", ["true"], "either"),
        check.Step("second", "", ["touch", str(began)], "either", ("first",)),
    ]
    run = check.Run(steps)
    run.finish()
    assert {outcome.outcome for outcome in run.outcomes.values()} == {"passed"}
    assert set(run.outcomes) == {"waits", "first", "second"}


def test_the_cpu_time_of_children_counts(run):
    (outcome,) = run(only=f"{sys.executable} -c 'sum(range(5_000_000))'")
    assert outcome.cpu_s > 0


@pytest.mark.parametrize("count", [0, test_records.FLAKY_MAX, test_records.FLAKY_MAX + 1])
def test_up_to_five_tests_may_be_flaky(count, capsys):
    flaky = [test_records.Record(f"test_{number}", "flaky", output="what was seen") for number in range(count)]
    passes = check.print_summary([check.Outcome("make test", "passed", 1.0, 1.0)], [], flaky)
    assert passes == (count <= 5)
    assert ("what was seen" in capsys.readouterr().out) == (count > 0)


def test_a_flaky_test_passes_each_time_alone():
    passes = {"first": iter([True, True]), "second": iter([True, False])}
    records = [test_records.Record(name, "failed") for name in passes]
    assert not test_records.judge(records, lambda name: next(passes[name]))
    assert [record.outcome for record in records] == ["flaky", "failed"]


@pytest.mark.parametrize("failed", [test_records.FLAKY_MAX, test_records.FLAKY_MAX + 1])
def test_more_failures_than_may_be_flaky_are_not_run_again(failed):
    again = []
    records = [test_records.Record(str(number), "failed") for number in range(failed)]
    assert test_records.judge(records, lambda name: again.append(name) or True) == (failed <= 5)
    assert len(again) == (2 * failed if failed <= 5 else 0)


def test_the_tables_of_a_check(tmp_path, monkeypatch):
    import check_tables

    monkeypatch.setattr(check_tables, "DOCUMENT", tmp_path / "CONTRIBUTING.md")
    monkeypatch.setattr(test_records, "FOLDER", tmp_path / "records")
    check_tables.DOCUMENT.write_text(f"before\n{check_tables.BEGIN}\nyesterday\n{check_tables.END}\nafter\n")
    slow = test_records.Record("tests/tcp/test_a.py::test_slow[a|b]", "passed", wall_s=90.0, cpu_s=30.0)
    quick = test_records.Record("tests/tcp/test_a.py::test_quick", "passed", wall_s=6.0, cpu_s=6.0)
    test_records.write(test_records.FOLDER / "python-3.11.jsonl", [quick, slow])
    steps = [{"name": "make test", "wall_s": 120.0, "cpu_s": 180.0}]
    check_tables.write({"date": "2026-11-27", "commit": "0" * 40, "machine": "2 CPUs", "wall_s": 126.0, "steps": steps})
    text = check_tables.DOCUMENT.read_text()
    assert text.startswith(f"before\n{check_tables.BEGIN}")
    assert text.endswith(f"{check_tables.END}\nafter\n")
    assert "yesterday" not in text
    assert "| make test | 2.0 | 3.0 |" in text
    assert "| together | 2.1 | 3.0 |" in text
    assert "| tests/tcp | python-3.11 | 2 | 1.6 | 0.6 |" in text
    assert text.index("test_slow[a\\|b]") < text.index("test_quick")


@pytest.mark.parametrize(
    ("variables", "status", "printed"),
    [
        ({}, 0, "lab ARGS=test-long, no tree"),
        ({"RINGLAB_KIO_SOURCE": "/kio"}, 0, "tree --clang\nlab ARGS=test-long, {here}/target/pythons"),
        ({"RINGLAB_KIO_SOURCE": "/kio"}, 77, "tree --clang\nlab ARGS=test-long, no tree"),
        ({"RINGLAB_KIO_SOURCE": "/kio", "RINGLAB_DEBIAN": "/mine"}, 0, "lab ARGS=test-long, /mine"),
    ],
)
def test_the_lab_has_a_tree_with_clang_where_kios_sources_are(variables, status, printed, tmp_path):
    (step,) = check.choose(check.plan(ALL, "0" * 40), ["the lab's long tests"], everything=False)[-1:]
    programs = {
        check.TREE: f'echo tree "$@"; exit {status}',
        "bin/make": 'echo "$2 $3, ${RINGLAB_DEBIAN:-no tree}"',
    }
    for name, script in programs.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("RINGLAB_")}
    environment = inherited | {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"} | variables
    found = subprocess.run(step.command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout.strip()) == (0, printed.format(here=tmp_path))
