"""The race against fake targets: what works is measured, and what doesn't is told, with its reason."""

import re
import signal
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conftest import CALL_SOON, MakeTargets, SilentProgress, children, wait_until_gone
from ringlab import (
    execution,
    generator,
    manifest,
    preflight,
    process,
    report,
    results,
    runner,
    system_calls,
    workloads,
)

MakeRace = Callable[..., runner.Race]
ECHO = "echo/framed/1KB/100"
# Each starts dozens of processes, which takes its time where a machine has much to do.
pytestmark = pytest.mark.timeout(300)


def samples_of(race: runner.Race, arm: str, cell: int = 0) -> list[results.Sample]:
    return [sample for sample in race.result.cells[cell].samples if sample.arm == arm]


def the_sample(race: runner.Race, arm: str = "one") -> results.Sample:
    return samples_of(race, arm)[0]


def test_a_race_ranks_the_arms_and_is_written(make_race: MakeRace) -> None:
    race = make_race([ECHO], rounds=5, cheap=1.0, dear=1.5)
    race.run()
    (cell,) = race.result.cells
    assert cell.arms == ["cheap", "dear", "cheap (again)"]
    assert all(sorted(order) == sorted(cell.arms) for order in cell.orders)
    assert len({tuple(order) for order in cell.orders}) > 1, "the order is drawn anew for each round"
    assert [sample.status for sample in cell.samples] == ["measured"] * 15
    (group,) = cell.analysis.groups
    assert group.verdict.kind == "winner"
    assert group.verdict.arms == ["cheap"]
    by_arm = {each.arm: each for each in group.comparisons if each.metric == "server_cpu_us"}
    assert by_arm["dear"].verdict == "worse"
    assert by_arm["dear"].ratio == pytest.approx(1.5, rel=0.01)
    assert group.control is not None
    assert (group.control.arm, group.control.status) == ("cheap (again)", "passed")
    assert {curve.arm for curve in cell.analysis.curves} == set(cell.arms)
    assert cell.ceiling is not None
    assert cell.ceiling.operations_per_s == 100_000
    assert race.result.run.complete
    assert results.Result.read(race.output) == race.result
    assert children() == set(), "every process that was started has ended"


def test_arms_take_turns_to_and_fro(make_race: MakeRace, monkeypatch: pytest.MonkeyPatch) -> None:
    """All servers of a round live at the same time, and each sample has a figure of each of its windows."""
    race = make_race([ECHO], rounds=2, one=1.0, two=2.0)
    race.result.run.scale = replace(race.scale, window_s=1.2)
    turns: list[tuple[int, int]] = []
    measure = generator.Load.measure

    def seen(load: generator.Load, window_s: float) -> bool:
        assert window_s == pytest.approx(0.3)
        turns.append((load.process.pid, len(children())))
        return measure(load, window_s)

    monkeypatch.setattr(generator.Load, "measure", seen)
    race.run()
    (cell,) = race.result.cells
    for number in (1, 2):
        *passes, pids = ([pid for pid, _ in turns[at : at + 3]] for at in [*range(0, 12, 3), 0])
        assert passes == [pids, pids[::-1]] * 2
        assert len(set(pids)) == 3
        assert [alive for _, alive in turns[:12]] == [6] * 12, "a server and a load for each arm"
        del turns[:12]
        samples = [sample for sample in cell.samples if sample.round == number]
        assert [sample.status for sample in samples] == ["measured"] * 3
        for sample in samples:
            assert len(sample.windows["server_cpu_us"]) == len(sample.windows["operations_per_s"]) == 4
            assert sample.figures["window_s"] == pytest.approx(1.2)
    assert turns == []
    assert children() == set()


def test_an_arm_that_fails_in_its_turn_leaves_the_others_theirs(make_race: MakeRace) -> None:
    race = make_race([ECHO], rounds=2, good=1.0, other=1.0, bad=1.0, faults={"bad": "crash"})
    race.options.baseline = "good"
    race.run()
    assert {sample.status for sample in samples_of(race, "bad")} == {"failed"}
    assert [sample.status for arm in ("good", "other") for sample in samples_of(race, arm)] == ["measured"] * 4
    assert children() == set()


def test_a_server_that_works_while_others_are_measured_is_named(
    make_race: MakeRace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_LOAD_REST_CPU", "0.07")
    race = make_race([ECHO], rounds=2, one=1.0)
    race.run()
    note = "one used 7.0% as much CPU between its windows as in them: that isn't counted, and it may have slowed other arms"
    assert note in race.result.cells[0].analysis.notes


def test_what_an_arm_declares_is_looked_up_on_its_process(make_race: MakeRace) -> None:
    race = make_race([ECHO], rounds=1, one=1.0)
    race.run()
    record = next(arm for arm in race.result.arms if arm.name == "one")
    allowed = int(Path("/proc/sys/net/core/somaxconn").read_text())
    assert {(check.name, check.status, check.found) for check in record.checks} == {
        ("nodelay", "ok", "true"),
        ("backlog", "ok", str(min(1024, allowed))),
        ("workers", "ok", "1 thread"),
    }


def test_a_server_of_streams_that_lags_is_named(make_race: MakeRace) -> None:
    race = make_race(["echo/stream/1"], rounds=2, one=1.0)
    race.run()
    sample = the_sample(race)
    assert (sample.status, sample.figures["streams_held_back"], sample.figures["stream_outstanding_bytes"]) == (
        "measured", 2.0, 256e6,
    )  # fmt: skip
    assert any(note.startswith("one lagged 256 MB behind") for note in race.result.cells[0].analysis.notes)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("nagle", "nodelay isn't as declared: TCP_NODELAY is off on accepted sockets (declared: true)"),
        ("backlog", "backlog isn't as declared: it listens with a backlog of 5 (declared: 1024)"),
    ],
)
def test_a_lie_about_socket_options_voids_the_sample(fault: str, reason: str, make_race: MakeRace) -> None:
    race = make_race([ECHO], rounds=2, one=1.0, faults={"one": fault})
    race.run()
    assert {sample.status for sample in race.result.cells[0].samples} == {"void"}
    assert the_sample(race).reasons == [reason]
    assert race.result.cells[0].analysis.groups == []
    assert any(reason in note for note in race.result.cells[0].analysis.notes)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (
            "no-start",
            "the server ended with code 1 before it listened; its last line: cannot load its library: libnone.so.1",
        ),
        ("never-ready", "it didn't print a line with 'listening on ' within 0.5 s"),
        ("crash", "the server ended with code 3 while it was measured; its last line: Segmentation fault, or so"),
    ],
)
def test_a_server_that_fails_is_told_and_given_up(fault: str, reason: str, make_race: MakeRace) -> None:
    race = make_race([ECHO], rounds=4, one=1.0, other=1.0, faults={"one": fault})
    if fault == "never-ready":
        race.arms["one"] = replace(race.arms["one"], ready=replace(race.arms["one"].ready, timeout_s=0.5))
    race.options.again = False
    race.options.baseline = "other"
    race.run()
    found = samples_of(race, "one")
    assert [sample.status for sample in found] == ["failed"] * runner.FAILURES_MAX
    assert found[0].reasons == [reason]
    assert len(samples_of(race, "other")) == 4
    assert race.result.cells[0].analysis.groups[0].verdict.kind == "nothing to compare"
    assert race.result.run.complete
    assert children() == set()


def test_a_server_that_does_not_answer_is_told(make_race: MakeRace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "PROBE_TIMEOUT_S", 0.3)
    race = make_race([ECHO], rounds=1, one=1.0, faults={"one": "silent"})
    race.run()
    assert the_sample(race).reasons == ["the server didn't answer within 0.3 s at a first echo message"]


def test_a_server_that_ignores_sigterm_is_killed_and_noted(make_race: MakeRace) -> None:
    race = make_race([ECHO], rounds=1, stop_s=0.5, one=1.0, faults={"one": "stubborn"})
    race.run()
    assert the_sample(race).status == "measured"
    assert "one: it didn't end within 0.5 s of SIGTERM and was killed" in race.result.run.notes
    assert children() == set()


def test_a_server_that_ends_badly_is_noted(make_race: MakeRace) -> None:
    race = make_race([ECHO], rounds=1, one=1.0, faults={"one": "fails-late"})
    race.run()
    assert "one: it ended with code 7 on SIGTERM" in race.result.run.notes


def test_children_of_a_server_are_accounted_for_and_ended(make_targets: MakeTargets) -> None:
    (arm,) = manifest.discover(make_targets(one=1.0, faults={"one": "child"}))
    with process.Server(arm, "echo", 1) as server:
        tree = server.tree()
        assert len(tree) == 2
        assert server.threads() >= 2
        child = int(next(line for line in server.lines if line.startswith("child")).split()[1])
        assert child in tree
    wait_until_gone(child)


def test_a_server_may_be_ready_when_it_accepts(make_targets: MakeTargets) -> None:
    (arm,) = manifest.discover(make_targets(one=1.0, connect=True, faults={"one": "quiet"}))
    with process.Server(arm, "echo", 1) as server:
        with socket.create_connection(("127.0.0.1", server.port), 5) as client:
            client.sendall(b"hello")
            assert client.recv(5) == b"hello"
        assert server.stop().complaint == ""


def test_more_workers_than_threads_are_a_lie(make_targets: MakeTargets) -> None:
    (arm,) = manifest.discover(make_targets(one=1.0))
    with process.Server(arm, "echo", 4) as server:
        workers = next(check for check in process.verify(server) if check.name == "workers")
    assert (workers.status, workers.text) == ("violated", "4 workers were asked for, but it has only 1 threads")


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        ("mismatch", "connection 3, frame 7: byte 12 is 0x00 and should be 0x41"),
        (
            "stall",
            "Little's law: 10.0 operations were in flight on average, and 100 should have been: answers stopped coming for a part of"
            " the window",
        ),
        ("resets", "errors: 4000 x reset (connection reset by peer)"),
        ("short", "0.1 s were measured instead of 0.2 s"),
        ("early", "all connections are lost"),
        ("nothing", "nothing was answered in the window"),
        ("few", "3 operations in 0.2 s tell nothing: at least 50 must end"),
        ("unconnected", "only 99 of 100 connections were opened"),
    ],
)
def test_implausible_samples_are_void(
    trouble: str, reason: str, make_race: MakeRace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_LOAD_TROUBLE", trouble)
    race = make_race([ECHO], rounds=1, one=1.0)
    race.run()
    assert the_sample(race).status == "void"
    assert the_sample(race).reasons == [reason]
    assert results.Result.read(race.output) == race.result


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        ("refuses", "the load generator: no descriptors: raise the limit with ulimit -n"),
        ("babbles", "the load generator printed a line that is not an event: this is no JSON"),
        (
            "foreign",
            "the load generator's result isn't as expected (KeyError('operations')): build both from one revision",
        ),
    ],
)
def test_trouble_of_the_load_generator_is_told(
    trouble: str, reason: str, make_race: MakeRace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_LOAD_TROUBLE", trouble)
    race = make_race([ECHO], rounds=1, one=1.0)
    race.options.ceilings = False
    race.run()
    assert the_sample(race).status == "failed"
    assert the_sample(race).reasons == [reason]


def test_an_open_loop_runs_at_a_share_of_the_slowest(make_race: MakeRace) -> None:
    race = make_race(["http/50/open-50"], rounds=3, fast=1.0, slow=2.0)
    race.run()
    closed, opened = race.result.cells
    assert closed.name == "http/50/closed"
    assert opened.parameters["of"] == "slow"
    assert opened.parameters["offered_rate_per_s"] == pytest.approx(5000, rel=0.01)
    assert {sample.figures["operations_per_s"] for sample in opened.samples} == {5000}
    assert {curve.kind for curve in opened.analysis.curves} == {"service", "corrected"}
    assert {probe.arm for probe in closed.probes} == {"fast", "slow"}


def test_real_parsers_and_canned_answers_are_not_ranked_together(make_race: MakeRace) -> None:
    race = make_race(["http/50/closed"], rounds=3, one=1.0, two=1.0)
    race.run()
    (cell,) = race.result.cells
    cell.probes = [
        results.Probe(arm="one", parser="real"),
        results.Probe(arm="two", parser="canned"),
    ]
    race.conclude(cell)
    groups = {group.name: group for group in cell.analysis.groups}
    assert set(groups) == {"real", "canned"}
    assert groups["real"].arms == ["one", "one (again)"]
    assert (
        "one declares a canned parser, but behaves like a real one, so it is ranked with those" in cell.analysis.notes
    )


def test_binding_is_repeated_until_it_takes_long_enough(make_race: MakeRace) -> None:
    race = make_race(["bind/listen/1", "bind/listen/50"], rounds=3, one=1.0, other=2.0)
    race.run()
    for cell in race.result.cells:
        for sample in cell.samples:
            assert sample.status == "measured", sample.reasons
            assert sample.figures["window_s"] >= 0.1
            assert sample.figures["operations"] % cell.parameters["concurrent"] == 0
        assert cell.analysis.groups[0].verdict.arms == ["one"]


def test_binding_that_takes_no_time_is_void(make_race: MakeRace) -> None:
    race = make_race(["bind/listen/1"], rounds=1, one=1.0, faults={"one": "instant"})
    race.run()
    assert the_sample(race).status == "void"
    assert the_sample(race).reasons == ["0 ms were measured, and at least 100 ms must be"]


def test_what_a_program_prints_that_is_no_number_is_kept_out_of_the_result(make_race: MakeRace) -> None:
    """Python reads and writes NaN and Infinity, and nobody else can read such a file."""
    race = make_race([CALL_SOON], rounds=3, one=1.0, odd=1.0, faults={"odd": "nan"})
    race.run()
    (cell,) = results.Result.read(race.output).cells
    assert "odd" not in cell.measured("one")[0].figures
    assert any(
        note.startswith("failed: odd in round 1, 2: it printed no figure 'operation_ns'")
        for note in cell.analysis.notes
    )


def test_idle_connections_are_ranked_by_their_memory(make_race: MakeRace) -> None:
    race = make_race(["http/idle/10000"], rounds=3, one=1.0)
    race.options.system_calls = True
    race.run()
    (cell,) = race.result.cells
    assert (cell.primary.key, cell.ceiling, cell.system_calls) == ("rss_per_connection_bytes", None, [])
    assert cell.series("one", cell.primary.key) == [100.0] * 3


def test_the_load_generators_limit_is_told(make_race: MakeRace, monkeypatch: pytest.MonkeyPatch) -> None:
    race = make_race([ECHO], rounds=1, one=1.0)
    monkeypatch.setattr(workloads, "CEILING_FACTOR", 6)
    race.run()
    assert the_sample(race).client_limited
    assert any(note.startswith("client-limited: one") for note in race.result.cells[0].analysis.notes)


def test_the_ceiling_is_measured_in_every_round_and_never_below_what_a_server_reached(
    make_race: MakeRace, monkeypatch: pytest.MonkeyPatch
) -> None:
    race = make_race([ECHO], rounds=3, fast=0.1, slow=1.0)
    race.run()
    (cell,) = race.result.cells
    assert cell.ceiling is not None
    assert cell.ceiling.rates == [100_000.0] * 3
    # The load generator's own CPU would have allowed 100,000 only, and 200,000 were reached.
    assert cell.ceiling.operations_per_s == pytest.approx(200_000, rel=0.01)
    assert {sample.arm for sample in cell.samples if sample.client_limited} == {"fast", "fast (again)"}
    steps = [step for step in race.progress.steps if ", round " in step]  # type: ignore[attr-defined]
    assert len({index % 4 for index, step in enumerate(steps) if "own ceiling" in step}) > 1, "its turn is drawn"


def test_a_server_that_takes_too_much_memory_is_ended(make_race: MakeRace) -> None:
    race = make_race([ECHO], rounds=1, one=1.0, faults={"one": "leaks"})
    race.options.memory_bytes = 150e6
    race.run()
    assert the_sample(race).status == "failed"
    assert re.match(
        r"the server's memory grew from \d\S* MB to \d\S* MB, and it may have 150 MB \(--memory\)",
        the_sample(race).reasons[0],
    )
    assert children() == set()


@pytest.mark.parametrize(("percent", "limited"), [(40, False), (60, True)])
def test_latencies_that_are_the_load_generators_are_told(
    make_race: MakeRace, monkeypatch: pytest.MonkeyPatch, percent: int, limited: bool
) -> None:
    monkeypatch.setenv("FAKE_LOAD_TROUBLE", f"late{percent}")
    race = make_race(["http/50/open-50"], rounds=1, one=1.0)
    race.run()
    # The closed loop, which the rate follows from, sends when it has an answer, and never late.
    told = {cell.name: [sample.client_limited for sample in cell.samples] for cell in race.result.cells}
    assert not any(told["http/50/closed"])
    assert told["http/50/open-50"] == [limited] * len(told["http/50/open-50"])


class InterruptedProgress(SilentProgress):
    """Interrupts at the given step."""

    def __init__(self, at: str) -> None:
        super().__init__()
        self.at = at

    def step(self, text: str) -> None:
        super().step(text)
        if self.at in text:
            raise KeyboardInterrupt


def test_an_interrupted_race_is_kept_and_goes_on(make_race: MakeRace) -> None:
    race = make_race([ECHO, "bind/listen/1"], rounds=4, one=1.0, two=1.3)
    race.progress = InterruptedProgress(f"{ECHO}, round 3")
    race.run()
    kept = results.Result.read(race.output)
    assert kept.run.interrupted
    assert not kept.run.complete
    # The cell of bind comes first, as the workloads are ordered.
    binding, echo = kept.cells
    assert len(binding.samples) == 12
    assert len(echo.samples) == 6
    assert echo.analysis.groups, "what was measured is analysed"

    before = [sample.begun_s for sample in echo.samples]
    again = runner.Race(kept, race.arms, race.plans, race.program, race.output, SilentProgress())
    again.run()
    assert kept.run.complete
    assert [sample.begun_s for sample in kept.cells[1].samples[:6]] == before, "what was measured isn't measured again"
    assert len(kept.cells[0].samples) == 12
    assert len(kept.cells[1].samples) == 12
    assert len(kept.cells[1].orders) == 4

    whole = runner.Race(
        results.Result(run=race.result.run), race.arms, race.plans, race.program, race.output, SilentProgress()
    )
    whole.run()
    assert [cell.orders for cell in whole.result.cells] == [cell.orders for cell in kept.cells], (
        "the orders are those of one run"
    )


def test_an_unfinished_round_is_measured_anew(make_race: MakeRace) -> None:
    race = make_race([ECHO], rounds=2, one=1.0, two=1.0)
    race.progress = InterruptedProgress("round 2 of 2, two")
    race.run()
    kept = results.Result.read(race.output)
    assert runner.finished_rounds(kept.cells[0]) == 1
    again = runner.Race(kept, race.arms, race.plans, race.program, race.output, SilentProgress())
    again.run()
    assert len(kept.cells[0].samples) == 6
    assert sorted({(sample.arm, sample.round) for sample in kept.cells[0].samples}) == sorted(
        (arm, number) for arm in kept.cells[0].arms for number in (1, 2)
    )


def test_system_calls_are_read_from_perf_and_strace() -> None:
    lines = "\n".join(f"     {index / 10:.9f},{count},,raw_syscalls:sys_enter,{count},100.00,," for index, count in
                      enumerate([7, 1000, 1000, 1000, 3], 1))  # fmt: skip
    assert system_calls.events_per_s(lines) == pytest.approx(10_000)
    both = lines + "\n" + lines.replace("raw_syscalls:sys_enter", "instructions").replace(",1000,", ",5000000,")
    assert system_calls.events_per_s(both) == pytest.approx(10_000)
    assert system_calls.events_per_s(both, "instructions") == pytest.approx(50_000_000)
    table = """% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 75.00    0.000110           3        20           read
 25.00    0.000030           3         9         1 openat
------ ----------- ----------- --------- --------- ----------------
100.00    0.000140                    29         1 total
"""
    assert system_calls.calls_in_all(table) == 29
    with pytest.raises(process.SampleFailed, match="perf counted for too short a time; use a longer window"):
        system_calls.events_per_s("")
    with pytest.raises(process.SampleFailed, match="strace counted nothing"):
        system_calls.calls_in_all("")


def test_the_time_left_adds_up(make_race: MakeRace) -> None:
    race = make_race([ECHO, CALL_SOON], rounds=2, one=1.0)
    expected_s = sum(race.expected_s(plan) for plan in race.plans)
    race.run()
    assert isinstance(race.progress, SilentProgress)
    assert race.progress.done_s == pytest.approx(expected_s)


def test_a_race_without_time_ends_cells_early_but_not_too_early(make_race: MakeRace) -> None:
    race = make_race([CALL_SOON, "loops/schedule/chain"], rounds=5, one=1.0)
    race.options.limit_s = 1e-9
    expected_s = sum(race.expected_s(plan) for plan in race.plans)
    race.run()
    assert [len(cell.orders) for cell in race.result.cells] == [3, 3]
    assert race.result.run.complete
    assert (
        "loops/schedule/chain ended after 3 of 5 rounds, because a quick run has no time for more"
        in race.result.run.notes
    )
    assert isinstance(race.progress, SilentProgress)
    assert race.progress.done_s == pytest.approx(expected_s)


def test_an_arm_that_compiles_meanwhile_is_warmed_up_longer(
    make_race: MakeRace, monkeypatch: pytest.MonkeyPatch
) -> None:
    race = make_race([ECHO], rounds=1, one=1.0, jit=1.0)
    race.arms["jit"] = replace(race.arms["jit"], warm_up_s=3.0)
    race.options.baseline = "one"
    loads: list[list[str]] = []

    def windows(serving: execution.Serving, words: list[str], *more: object) -> execution.Windows:
        loads.append(words)
        raise process.SampleFailed("not now")

    monkeypatch.setattr(execution.Serving, "windows", windows)
    race.run()
    warm_ups = sorted(words[words.index("--warm-up") + 1] for words in loads if words[0] == "echo")
    assert warm_ups == ["0", "0", "3"]


def test_servers_die_with_the_lab(make_targets: MakeTargets) -> None:
    if not process.die_with_parent():
        pytest.skip(
            "setpriv(1) of util-linux isn't installed, and without it nothing ends a server when the lab is killed"
        )
    (arm,) = manifest.discover(make_targets(one=1.0))
    import multiprocessing

    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()

    def lab() -> None:
        server = process.Server(arm, "echo", 1)
        server.__enter__()
        theirs.send(server.pid)
        signal.pause()

    parent = context.Process(target=lab)
    parent.start()
    pid = ours.recv()
    parent.kill()
    parent.join()
    wait_until_gone(pid)


class CounterOfSeven:
    """Counts system calls, in a way."""

    def __init__(self, tool: str, pids: list[int], events: tuple[str, ...]) -> None:
        # The fake load does 20,000 operations per second, in a window of a second.
        self.counted = {event: 20_000 * (7.0 if event == system_calls.SYSTEM_CALLS else 70_000.0) for event in events}

    def __enter__(self) -> "CounterOfSeven":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def see(self, event: dict[str, object]) -> None:
        pass


def count_seven(race: runner.Race, tool: str, monkeypatch: pytest.MonkeyPatch, instructions: str = "") -> runner.Race:
    """Let a race count system calls, as if by a tool."""
    monkeypatch.setattr(preflight, "system_call_tool", lambda: (tool, ""))
    monkeypatch.setattr(preflight, "instruction_event", lambda: (instructions, "" if instructions else "no counters"))
    monkeypatch.setattr(system_calls, "Counter", CounterOfSeven)
    race.options.system_calls = True
    return race


@pytest.mark.parametrize(("tool", "event"), [("perf", "instructions"), ("strace", "instructions:u")])
def test_instructions_are_counted_where_the_machine_counts_them(
    tool: str, event: str, make_race: MakeRace, monkeypatch: pytest.MonkeyPatch
) -> None:
    race = count_seven(make_race([ECHO], rounds=3, one=1.0, two=1.0), tool, monkeypatch, event)
    race.run()
    (cell,) = results.Result.read(race.output).cells
    assert {(each.per_operation, each.instructions, each.instructions_of) for each in cell.system_calls} == {
        (7.0, 70_000.0, event)
    }
    kernel = "" if event == "instructions" else " outside of the kernel"
    assert [heading for heading, _ in report.counted(cell)] == [
        f"instructions{kernel} per message",
        "system calls per message",
    ]


def test_a_machine_that_counts_no_instructions_is_told_of(make_race: MakeRace, monkeypatch: pytest.MonkeyPatch) -> None:
    race = count_seven(make_race([ECHO], rounds=1, one=1.0), "strace", monkeypatch)
    race.run()
    assert "instructions weren't counted: no counters" in race.result.run.notes
    assert [heading for heading, _ in report.counted(race.result.cells[0])] == ["system calls per message"]


def test_system_calls_that_an_interrupt_left_out_are_counted(
    make_race: MakeRace, monkeypatch: pytest.MonkeyPatch
) -> None:
    race = count_seven(make_race([ECHO], rounds=1, one=1.0, two=1.0), "strace", monkeypatch)
    race.progress = InterruptedProgress("system calls of two")
    race.run()
    kept = results.Result.read(race.output)
    assert [each.arm for each in kept.cells[0].system_calls] == ["one"]
    again = runner.Race(kept, race.arms, race.plans, race.program, race.output, SilentProgress(), race.options)
    again.run()
    assert [(each.arm, each.per_operation) for each in kept.cells[0].system_calls] == [("one", 7.0), ("two", 7.0)]
    assert len(kept.cells[0].samples) == 3, "no round is measured again"


def test_system_calls_are_counted_for_long_enough_however_short_the_samples_are(
    make_race: MakeRace, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows = []
    load = generator.Load
    monkeypatch.setattr(
        generator,
        "Load",
        lambda program, words, *more: (
            windows.append(float(words[words.index("--window") + 1])) or load(program, words, *more)
        ),
    )
    race = count_seven(make_race([ECHO], rounds=1, one=1.0), "perf", monkeypatch)
    race.options.again, race.options.ceilings = False, False
    race.run()
    # The sample is taken in two windows.
    assert windows == [0.1, system_calls.WINDOW_S_MIN]


def test_every_server_has_let_a_client_go_before_it_is_measured(
    make_race: MakeRace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever reads into fresh memory does so at another cost before (see process.verify)."""
    done = []
    verify, load = process.verify, generator.Load
    monkeypatch.setattr(process, "verify", lambda server: done.append("verified") or verify(server))
    monkeypatch.setattr(generator, "Load", lambda *words: done.append("loaded") or load(*words))
    race = count_seven(make_race([ECHO], rounds=1, one=1.0), "perf", monkeypatch)
    race.options.again, race.options.ceilings = False, False
    race.run()
    assert done == ["verified", "loaded"] * 2
    assert the_sample(race).status == "measured"
    assert [each.per_operation for each in race.result.cells[0].system_calls] == [7.0]


def test_trouble_of_the_machine_fails_the_sample_and_not_the_run(
    make_race: MakeRace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def verify(server: process.Server) -> list[results.Check]:
        raise OSError(24, "Too many open files")

    race = make_race([ECHO, CALL_SOON], rounds=1, one=1.0)
    monkeypatch.setattr(process, "verify", verify)
    race.run()
    echo, loop = race.result.cells
    assert race.result.run.complete
    assert {sample.status for sample in loop.samples} == {"measured"}
    assert {sample.reasons[0] for sample in echo.samples} == {"[Errno 24] Too many open files"}


def test_binding_is_held_against_what_was_asked_for_last(make_race: MakeRace) -> None:
    race = make_race(["bind/listen/1"], rounds=1, one=1.0, faults={"one": "constant"})
    race.result.run.scale = replace(race.scale, window_s=2.0)
    race.run()
    assert the_sample(race).status == "measured", the_sample(race).reasons


def test_an_arm_that_cannot_do_what_a_cell_is_about_is_left_out_of_it(make_race: MakeRace) -> None:
    race = make_race(
        ["asgi/hello-log/50", "asgi/hello/50"], rounds=2, one=1.0, two=1.2, faults={"one": "without-hello-log"}
    )
    race.run()
    by_name = {cell.name: cell for cell in race.result.cells}
    log = by_name["asgi/hello-log/50"]
    # Also the A/A arm is one that can do it.
    assert log.arms == ["two", "two (again)"]
    assert list(log.unable) == ["one"]
    assert log.unable["one"].endswith("its last line: it has no hello-log")
    assert any(note.startswith("one took no part: ") for note in log.analysis.notes)
    assert {sample.status for sample in log.samples} == {"measured"}
    hello = by_name["asgi/hello/50"]
    assert hello.arms == ["one", "two", "one (again)"]
    assert not hello.unable
    assert {arm.name for arm in race.result.arms} >= {"two (again)", "one (again)"}
    assert results.Result.read(race.output) == race.result


@pytest.mark.parametrize(("name", "feature"), [("asgi/tls/50", "tls"), ("wsgi/file/1MB/50", "file")])
def test_a_cell_that_no_arm_can_do_is_left_out(name: str, feature: str, make_race: MakeRace) -> None:
    race = make_race([name], rounds=2, one=1.0, faults={"one": f"without-{feature}"})
    race.run()
    (cell,) = race.result.cells
    assert cell.left_out == "no arm that can run here can do it"
    assert cell.samples == []
    assert race.result.run.complete


def test_idle_connections_are_measured_by_their_memory(make_race: MakeRace) -> None:
    race = make_race(["asgi/idle-tls/2000"], rounds=2, one=1.0)
    race.run()
    sample = the_sample(race)
    assert sample.status == "measured"
    assert sample.figures["rss_per_connection_bytes"] == 100
    assert race.result.cells[0].primary.key == "rss_per_connection_bytes"


@pytest.mark.parametrize(
    ("floor", "whose"), [("c-epoll", "the kernel alone takes 3.7"), ("other", "generator needs 4.00 us")]
)
def test_a_server_that_uses_less_than_the_kernel_must_is_void(floor: str, whose: str, make_race: MakeRace) -> None:
    """Where no floor in C takes part, the load generator's end of the connections says what the kernel takes."""
    race = make_race([ECHO], rounds=5, **{floor: 1.0}, good=0.5, hidden=0.05)
    race.result.run.scale.window_s = 2.0
    race.run()
    (cell,) = race.result.cells
    found = samples_of(race, "hidden")
    assert [sample.status for sample in found] == ["void"] * runner.FAILURES_MAX, "and then it is given up"
    (reason,) = found[0].reasons
    assert reason.startswith("its processes used 0.25")
    assert whose in reason
    assert {sample.status for arm in (floor, "good") for sample in samples_of(race, arm)} == {"measured"}
    assert "hidden" not in [arm for group in cell.analysis.groups for arm in group.arms]


def test_what_is_too_short_to_tell_the_kernels_part_voids_nothing(make_race: MakeRace) -> None:
    race = make_race([ECHO], rounds=2, **{"c-epoll": 1.0}, hidden=0.05)
    race.options.ceilings = False
    race.run()
    assert {sample.status for sample in race.result.cells[0].samples} == {"measured"}


def test_a_worker_outside_of_the_server_that_takes_later_connections_voids_the_sample(
    make_race: MakeRace, outside: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first connection, on which is looked up what the arm declares, the server keeps."""
    monkeypatch.setenv("FAKE_OUTSIDE_FROM", "2")
    race = make_race([ECHO], rounds=1, one=1.0, faults={"one": "hands-outside"})
    race.options.again = False
    race.run()
    sample = the_sample(race)
    assert sample.status == "void"
    (reason,) = sample.reasons
    assert re.match(rf"process {outside} \(.*\) has connections to the server and isn't below it", reason)


def test_what_others_take_of_a_window_is_in_each_sample(make_race: MakeRace) -> None:
    race = make_race([ECHO], rounds=1, one=1.0)
    race.run()
    for sample in race.result.cells[0].samples:
        assert sample.figures["run_delay_share"] >= 0
        assert ("pressure_share" in sample.figures) == Path("/proc/pressure/cpu").exists()


def test_a_void_arm_is_given_up_and_a_run_that_goes_on_does_not_try_it_again(make_race: MakeRace) -> None:
    race = make_race([ECHO], rounds=4, one=1.0, other=1.0, faults={"one": "nagle"})
    race.options.baseline = "other"
    race.run()
    (cell,) = race.result.cells
    assert [sample.round for sample in samples_of(race, "one")] == [1, 2]
    assert len(samples_of(race, "other")) == 4
    assert runner.finished_rounds(cell) == 4
    assert report.has_void(race.result)
    (text,) = report.not_counted(race.result)
    assert text.startswith(f"one does not count in {ECHO}: nodelay isn't as declared")


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ("measured void void", True),
        ("void measured void", False),
        ("failed measured failed measured", True),
        ("failed void", True),
        ("void", False),
    ],
)
def test_an_arm_is_given_up_after_two_failures_or_two_in_a_row_that_do_not_count(statuses: str, expected: bool) -> None:
    cell = workloads.BY_NAME[ECHO].record(workloads.SCALES["quick"])
    for number, status in enumerate(statuses.split(), 1):
        sample: dict[str, Any] = {"arm": "one", "round": number, "position": 1, "begun_s": 0.0, "duration_s": 1.0}
        cell.samples.append(results.Sample(status=status, **sample))
    assert runner.given_up(cell, "one") == expected
    assert not runner.given_up(cell, "one", before=2)


@pytest.mark.parametrize("scale", ["quick", "normal"])
def test_a_quick_run_sends_each_echo_server_large_messages_once(
    scale: Any, make_race: MakeRace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here every answer is wrong to whoever isn't measured."""
    monkeypatch.setenv("FAKE_LOAD_TROUBLE", "first-mismatch")
    race = make_race([ECHO, "rtt/1KB"], rounds=2, one=1.0)
    race.result.run.scale.name = scale
    race.run()
    steps = [step for step in race.progress.steps if "large" in step]  # type: ignore[attr-defined]
    assert steps == (["rtt/1KB: whether one echoes large messages"] if scale == "quick" else [])
    found = [sample for cell in race.result.cells for sample in cell.samples]
    assert {sample.status for sample in found} == ({"void"} if scale == "quick" else {"measured"})
    if scale == "quick":
        assert found[0].reasons == [
            "of one message of 16,384 bytes, before anything was measured: mismatch: wrong body"
        ]


@pytest.mark.parametrize("name", ["asgi/hello/50", "wsgi/hello/50"])
@pytest.mark.parametrize(
    ("trouble", "reason"),
    [("early-mismatch", "wrong body"), ("first-mismatch", "its first client: mismatch: wrong body")],
)
def test_a_wrong_byte_before_the_window_voids_the_sample(
    trouble: str, reason: str, name: str, make_race: MakeRace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_LOAD_TROUBLE", trouble)
    race = make_race([name], rounds=2, one=1.0)
    race.options.again = False
    race.run()
    assert [sample.status for sample in race.result.cells[0].samples] == ["void", "void"]
    assert the_sample(race).reasons[0] == reason
