"""The arithmetic of the comparison, and the whole race in small."""

import dataclasses
import json
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench import arms, cells, goals, measure, ratios, report, results, run

RUN = Path(__file__).parents[1] / "run.py"
PATIENCE_S = 250


def cell_result(name, metric, **samples):
    """A measured cell with these series."""
    cell = next(cell for cell in cells.CELLS if cell.name == name)
    by_arm = {arm.replace("_", "-"): [{metric: value} for value in series] for arm, series in samples.items()}
    return results.CellResult(cell, by_arm)


def verdict(found, arm, beginning):
    """The verdict on the goal that begins so."""
    (match,) = [each for each in goals.judge(found) if each.arm == arm and each.goal.startswith(beginning)]
    return match


def test_ratios_are_taken_within_rounds():
    # The machine is three times slower in the last round. The ratio of the medians would be 4 / 2 = 2.
    assert ratios.paired([2, 4, 9], [1, 2, 6]) == ratios.Ratio(2, 1.5, 2, 3)
    assert ratios.paired([1, 10, 100], [1, 5, 25]).median == 2


def test_rounds_without_a_partner_do_not_count():
    assert ratios.paired([2, None, 6], [1, 1]) == ratios.Ratio(2, 2, 2, 1)
    assert ratios.paired([1], [None]) is None
    assert ratios.paired([1], [0]) is None
    assert ratios.paired_difference([5, 9], [4, 2]) == ratios.Ratio(4, 1, 7, 2)


def test_advantage_is_above_one_whichever_way_the_figure_goes():
    cost = cell_result("echo/protocol/1KB/50", "server_cpu_us", asyncio=[6.0], uvloop=[3.0])
    speed = cell_result("echo/protocol/1KB/50", "messages_per_s", asyncio=[100.0], uvloop=[200.0])
    assert cost.advantage("uvloop", "asyncio", "server_cpu_us").median == 2
    assert speed.advantage("uvloop", "asyncio", "messages_per_s").median == 2


def test_goal_is_judged_by_the_worst_cell_and_the_best_peer():
    found = {
        "echo/streams/1KB/50": cell_result(
            "echo/streams/1KB/50", "server_cpu_us", asyncio=[9, 9, 9], uvloop=[6, 6, 6], ringloop=[4, 4, 4]
        ),
        "echo/streams/100KB/50": cell_result(
            "echo/streams/100KB/50", "server_cpu_us", asyncio=[20, 20, 20], uvloop=[50, 50, 50], ringloop=[19, 19, 19]
        ),
    }
    short = verdict(found, "ringloop", "streams")
    assert short.reached is False
    assert short.within_noise is False
    assert "echo/streams/100KB/50 against asyncio" in short.measured
    assert "1 of 2 cells fall short" in short.measured
    del found["echo/streams/100KB/50"]
    assert verdict(found, "ringloop", "streams").reached is True
    assert verdict(found, "ringloop", "sock").reached is None


def test_goal_on_the_floor_is_an_upper_bound():
    series = {"floor": [10, 10, 10], "ringloop": [11, 11, 12], "ringloop_epoll": [12, 13, 12]}
    found = {"echo/protocol/1KB/50": cell_result("echo/protocol/1KB/50", "server_cpu_us", **series)}
    near = verdict(found, "ringloop", "Protocol")
    assert (near.reached, near.within_noise) == (True, True)
    assert verdict(found, "ringloop-epoll", "Protocol").reached is False


def test_slower_than_uvloop_needs_every_round():
    def judge(*series):
        found = {"schedule/chain": cell_result("schedule/chain", "operation_ns", uvloop=[100] * 3, ringloop=series)}
        return verdict(found, "ringloop", "no cell slower")

    assert judge(90, 95, 99).word() == "yes"
    assert judge(101, 101, 101).word() == "yes"
    assert judge(99, 110, 120).word() == "yes, within noise"
    slower = judge(110, 120, 130)
    assert slower.word() == "no"
    assert "schedule/chain" in slower.measured


def test_waiting_is_judged_by_the_difference():
    series = {"uvloop": [0.0, 0.1, 0.0], "ringloop": [1.5, 1.6, 1.5], "ringloop_epoll": [4.0, 4.0, 4.0]}
    found = {"wait/idle": cell_result("wait/idle", "server_cpu_percent", **series)}
    assert verdict(found, "ringloop", "waiting").reached is True
    assert verdict(found, "ringloop-epoll", "waiting").reached is False


def test_getaddrinfo_is_judged_by_its_own_time():
    series = {"asyncio": [60.0, 61.0, 62.0], "ringloop": [1.0, 1.5, 2.5], "ringloop_epoll": [2.1, 2.2, 2.3]}
    found = {"setup/getaddrinfo": cell_result("setup/getaddrinfo", "operation_us", **series)}
    assert verdict(found, "ringloop", "getaddrinfo").word() == "yes, within noise"
    assert verdict(found, "ringloop-epoll", "getaddrinfo").word() == "no"
    assert ratios.spread([None, 1.0, 4.0, 2.0]) == ratios.Ratio(2.0, 1.0, 4.0, 3)
    assert ratios.spread([None]) is None


def test_http_is_judged_against_uvloop_and_tls_against_the_best_peer():
    found = {
        "http/uvicorn/50": cell_result("http/uvicorn/50", "server_cpu_us", uvloop=[20], rloop=[1], ringloop=[18]),
        "http/aiohttp/500": cell_result("http/aiohttp/500", "server_cpu_us", uvloop=[20], ringloop=[22]),
        "tls/protocol/1KB/50": cell_result(
            "tls/protocol/1KB/50", "server_cpu_us", asyncio=[12], uvloop=[24], ringloop=[9]
        ),
        "tls/protocol/64KB/50": cell_result(
            "tls/protocol/64KB/50", "server_cpu_us", asyncio=[56], uvloop=[140], ringloop=[50]
        ),
    }
    assert verdict(found, "ringloop", "uvicorn").reached is True
    assert verdict(found, "ringloop", "aiohttp").reached is False
    short = verdict(found, "ringloop", "TLS")
    assert short.reached is False
    assert "tls/protocol/64KB/50 against asyncio" in short.measured
    del found["tls/protocol/64KB/50"]
    assert verdict(found, "ringloop", "TLS").reached is True


def test_goal_without_its_peers_is_not_measured():
    found = {"udp/1KB/50": cell_result("udp/1KB/50", "server_cpu_us", ringloop=[4])}
    assert verdict(found, "ringloop", "UDP").word() == "not measured"


def test_arm_takes_no_part_in_what_it_lacks():
    by_name = {arm.name: arm for arm in arms.ARMS}
    tls = next(cell for cell in cells.CELLS if cell.name == "tls/protocol/1KB/50")
    http = next(cell for cell in cells.CELLS if cell.name == "http/uvicorn/50")
    assert not run.takes_part(by_name["rloop"], tls)
    assert run.takes_part(by_name["uvloop"], tls)
    assert run.takes_part(by_name["floor"], tls)
    assert run.takes_part(by_name["rloop"], http)
    assert not run.takes_part(by_name["floor"], http)


def test_cell_whose_packages_are_missing_is_left_out_with_the_remedy(monkeypatch, capsys):
    here = cells.CELLS[0]
    there = dataclasses.replace(here, name="there", needs=("no-such-distribution",))
    assert run.leave_out([here, there]) == ([here], {"there": measure.missing("no-such-distribution")})
    report.print_left_out(run.leave_out([here, there])[1])
    assert "skipped: there: no-such-distribution is not installed; install it with: " in capsys.readouterr().out


def test_machine_without_openssl_is_told_what_to_install(monkeypatch, tmp_path):
    compiler = tmp_path / "cc"
    compiler.write_text('#!/bin/sh\necho "load.c: fatal error: openssl/err.h: No such file or directory" >&2\nexit 1\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    monkeypatch.setattr(measure, "binary", lambda name: tmp_path / "bin" / name)
    assert "apt-get install libssl-dev" in measure.missing.__wrapped__("libssl")
    compiler.write_text("#!/bin/sh\necho 'load.c: error: a mistake of ours' >&2\nexit 1\n")
    with pytest.raises(measure.SetupFailed, match="a mistake of ours"):
        measure.missing.__wrapped__("libssl")


def test_cells_have_names_of_their_own_and_subsets_that_exist():
    names = [cell.name for cell in cells.CELLS]
    assert len(names) == len(set(names))
    assert set(names) >= cells.SUBSET
    assert set(names) >= cells.QUICK
    assert {cell.name for cell in cells.choose([], full=False, quick=True)} <= set(names)
    assert cells.choose(["schedule/ch*"], full=False, quick=False)[0].name == "schedule/chain"


def test_subset_with_every_arm_stays_under_seven_minutes():
    chosen = cells.choose([], full=False, quick=False)
    plan = [(cell, [arm for arm in arms.ARMS if run.takes_part(arm, cell)]) for cell in chosen]
    assert run.ROUNDS_LEAST * run.expect_s(plan, run.SUBSET) < 420


def test_missing_peer_is_skipped_with_the_remedy():
    presence = arms.probe(arms.Arm("nowhere", "nowhere:new_event_loop", "no-such-distribution-of-a-loop"))
    assert not presence.broken
    assert "not installed; install it with: " in presence.describe()


def test_broken_arm_is_reported_with_its_last_line():
    presence = arms.probe(arms.Arm("broken", "json:no_such_function"))
    assert presence.broken
    assert "no_such_function" in presence.describe()


def test_failing_server_is_reported_with_its_last_line():
    measure.compile_programs()
    cell = next(cell for cell in cells.CELLS if cell.name == "echo/protocol/1KB/1")
    with pytest.raises(measure.SampleFailed, match="no_such_function"):
        measure.sample(arms.Arm("broken", "json:no_such_function"), cell, measure.Scale(1, 0.01, 0.01, 0, 0.01), FREE)


FREE = measure.Placement()


def test_arm_that_fails_again_and_again_is_left_alone(monkeypatch):
    tried = []

    def fail(*_):
        tried.append(1)
        raise measure.SampleFailed("as it must")

    monkeypatch.setattr(measure, "sample", fail)
    cell, arm, scale = cells.CELLS[0], arms.Arm("broken", "json:loads"), measure.Scale(9, 0.1, 0.1, 0.1, 0.1)
    result = results.CellResult(cell, {"broken": []})
    run.race(cell, [arm], scale, FREE, random.Random(1), report.Progress(1), result)
    assert len(tried) == run.FAILURES_MOST
    assert result.samples == {"broken": [None] * 9}
    assert result.failures == {"broken": ["round 1: as it must"] * run.FAILURES_MOST}


@pytest.mark.parametrize("failures", [1, run.FAILURES_MOST])
def test_what_fails_now_and_then_is_tried_again(monkeypatch, failures):
    """As where a machine stands still within a short window: only an arm that always fails fails the race."""
    outcomes = iter([measure.SampleFailed("stood still")] * failures + [{"cpu_us": 1.0}])

    def sample(*_):
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(measure, "sample", sample)
    cell, arm, scale = cells.CELLS[0], arms.Arm("ours", "json:loads", own=True), measure.Scale(1, 0.1, 0.1, 0.1, 0.1)
    result = results.CellResult(cell, {"ours": []})
    run.race(cell, [arm], scale, FREE, random.Random(1), report.Progress(1), result)
    always = failures == run.FAILURES_MOST
    assert result.samples == {"ours": [None if always else {"cpu_us": 1.0}]}
    found = SimpleNamespace(presences=[], cells={cell.name: result})
    contest = SimpleNamespace(contestants=[arm], control="", floors=())
    assert run.report_failures(found, contest) == always


def sample_of(monkeypatch, conversation, scale):
    """Sample a server that has one conversation after the other, of these lines of Python."""
    cell = next(cell for cell in cells.CELLS if cell.name == "echo/protocol/1KB/1")
    program = (
        "import json, socket, time\n"
        "listener = socket.create_server(('127.0.0.1', 0))\n"
        "print(json.dumps({'port': listener.getsockname()[1]}), flush=True)\n"
        "while True:\n"
        "    connection, _ = listener.accept()\n"
    ) + textwrap.indent(conversation, "    ")
    monkeypatch.setattr(arms.Arm, "command", lambda *_: [sys.executable, "-c", program])
    return measure.sample(arms.Arm("serial", "json:loads"), cell, scale, FREE)


def test_stall_is_no_result(monkeypatch, load_program):
    """A server that answers for a while and then takes a long break: its cost per message would look fine."""
    conversation = (
        "end = time.monotonic() + 0.3\n"
        "while data := connection.recv(65536):\n"
        "    time.sleep(1.0 if time.monotonic() > end else 0)\n"
        "    connection.sendall(data)\n"
    )
    # On a busy machine it may rest before the window begins.
    with pytest.raises(measure.SampleFailed, match=r"stalled: |no message came back"):
        sample_of(monkeypatch, conversation, measure.Scale(1, 0, 0.8, 0.1, 0))


def test_server_has_let_a_client_go_before_it_is_measured(monkeypatch, load_program, tmp_path):
    """This one notes who has gone: one of the rehearsal, and one that was measured."""
    conversation = (
        f"with connection, open({str(tmp_path / 'gone')!r}, 'a') as gone:\n"
        "    gone.write('served ')\n"
        "    gone.flush()\n"
        "    while data := connection.recv(65536):\n"
        "        connection.sendall(data)\n"
        "    gone.write('gone ')\n"
    )
    figures = sample_of(monkeypatch, conversation, measure.Scale(1, 0, 0.1, 0, 0, messages=10))
    assert figures["messages"] > 0
    assert (tmp_path / "gone").read_text().startswith("served gone served")


def run_quick(tmp_path, *options):
    """Run the race in small on stock asyncio and the floor; return its output and its JSON."""
    output = tmp_path / "quick.json"
    command = [sys.executable, str(RUN), "--quick", "--output", str(output), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, json.loads(output.read_text())


def test_quick_race_measures_every_cell(tmp_path):
    text, found = run_quick(tmp_path, "--arms", "asyncio,floor")
    quick = {cell.name for cell in cells.CELLS if cell.in_quick}
    assert set(found["cells"]) == quick - set(found["left_out"])
    assert all(reason in text for reason in found["left_out"].values())
    for name, cell in found["cells"].items():
        # A sample that failed once is tried again, and is there in the end.
        assert all(len(samples) == 1 and samples[0] for samples in cell["samples"].values()), (name, cell["failures"])
        first = next(each for each in cells.CELLS if each.name == name).metrics[0]
        assert cell["summary"]["asyncio"][first.key]["median"] >= 0
        assert name in text
    assert found["arms"]["asyncio"]["problem"] == ""
    assert found["environment"]["kernel"]
    assert found["interrupted"] is False


def test_order_within_rounds_follows_the_seed(tmp_path):
    options = ("--arms", "asyncio,floor", "--cells", "setup/server", "--rounds", "6", "--seed", "7")
    _, found = run_quick(tmp_path, *options)
    _, again = run_quick(tmp_path, *options)
    orders = found["cells"]["setup/server"]["orders"]
    assert orders == again["cells"]["setup/server"]["orders"]
    assert {tuple(order) for order in orders} == {("asyncio", "floor"), ("floor", "asyncio")}


def test_interrupt_keeps_what_was_measured(tmp_path):
    output = tmp_path / "cut.json"
    options = [
        "--arms",
        "asyncio",
        "--cells",
        "schedule/*",
        "--seconds",
        "0.2",
        "--rounds",
        "50",
        "--output",
        str(output),
    ]
    with subprocess.Popen(
        [sys.executable, str(RUN), *options],
        stdout=subprocess.PIPE,
        text=True,
        # A shell starts background jobs with SIGINT ignored, and a child inherits that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        for line in process.stdout:
            if line.startswith("ratios:"):
                break
        # Into the first sample; where exactly doesn't matter.
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        while not children.read_text():
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        text = process.stdout.read()
        assert process.wait(PATIENCE_S) == 130
    found = json.loads(output.read_text())
    assert found["interrupted"] is True
    assert "schedule/call_soon" in found["cells"]
    assert "interrupted: " in text


def test_unknown_names_are_refused():
    for options in (["--arms", "nonsense"], ["--cells", "nonsense"]):
        done = subprocess.run([sys.executable, str(RUN), *options], capture_output=True, text=True, timeout=PATIENCE_S)
        assert done.returncode == 2
        assert done.stderr.startswith("bench: ")


def test_goals_that_were_not_measured_are_only_counted(capsys):
    measured = goals.Verdict("a goal", "ringloop", "1.00 in somewhere", True)
    others = [goals.Verdict(f"goal {number}", "ringloop", "", None) for number in range(2)]
    report.print_verdicts([measured, *others])
    text = capsys.readouterr().out
    assert "yes               a goal\n" in text
    assert "goal 1" not in text
    assert "2 others not measured" in text
