"""The goals of the native race, and what reads other programs' output."""

import dataclasses
import sys

import pytest

from bench import cells, measure, native, run

WRK = """Running 1s test @ http://127.0.0.1:7000/
  1 threads and 50 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency   512.30us  120.11us   9.01ms   91.02%
    Req/Sec   101.33k     2.51k  104.20k    80.00%
  Latency Distribution
     50%  498.00us
     75%  520.00us
     90%  560.00us
     99%    1.25ms
  110000 requests in 1.10s, 9.55MB read
Requests/sec: 100000.00
Transfer/sec:      8.68MB
"""


def cell_result(name, metric="server_cpu_us", **samples):
    """A measured cell with these series."""
    cell = next(cell for cell in native.CELLS if cell.name == name)
    by_arm = {arm.replace("__", "-"): [{metric: value} for value in series] for arm, series in samples.items()}
    return run.results.CellResult(cell, by_arm, control=native.CONTROL, floors=native.FLOORS)


def verdict(found, beginning):
    """The verdict on the goal of io_uring's arm that begins so."""
    (match,) = [each for each in native.judge(found) if each.arm == "ringloop" and each.goal.startswith(beginning)]
    return match


def test_the_better_floor_of_each_cell_counts():
    found = {
        "echo/1KB/1": cell_result("echo/1KB/1", ringloop=[104], c__epoll=[100], c__io_uring=[120]),
        "echo/1KB/50": cell_result("echo/1KB/50", ringloop=[110], c__epoll=[150], c__io_uring=[100]),
    }
    short = verdict(found, "echo: at most 1.05x")
    assert short.reached is False
    assert short.measured == "1.10 in echo/1KB/50 over c-io_uring; 1 of 2 cells are above"
    del found["echo/1KB/50"]
    assert verdict(found, "echo: at most 1.05x").reached is True


def test_two_workers_may_be_ahead_in_either_figure():
    cell = next(cell for cell in native.CELLS if cell.name == "echo-2/1KB/50")
    samples = {
        "ringloop": [{"server_cpu_us": 10.0, "messages_per_s": 125.0, "latency_us_p99": 9.0}],
        "tokio": [{"server_cpu_us": 10.0, "messages_per_s": 100.0, "latency_us_p99": 8.0}],
    }
    found = {cell.name: run.results.CellResult(cell, samples)}
    assert verdict(found, "two workers").measured == "1.25 in echo-2/1KB/50"
    assert verdict(found, "two workers").reached is True
    assert verdict(found, "... and the p99").reached is False
    assert verdict(found, "http_raw: ").word() == "not measured"


def test_cells_have_names_of_their_own():
    names = [cell.name for cell in native.CELLS]
    assert len(names) == len(set(names))
    assert set(names) >= native.QUICK
    assert {cell.workload for cell in native.CELLS} <= {workload for arm in native.ARMS for workload in arm.programs}


def test_subset_with_every_arm_stays_under_eight_minutes():
    chosen = native.choose([], full=False, quick=False)
    plan = [(cell, [arm for arm in native.ARMS if run.takes_part(arm, cell)]) for cell in chosen]
    assert run.ROUNDS_LEAST * run.expect_s(plan, native.CONTEST.subset) < 480


def test_wrk_is_understood():
    assert measure.figures_of_wrk(WRK, 550_000_000) == {
        "server_cpu_us": 5.0,
        "messages_per_s": 100000.0,
        "latency_us_p50": 498.0,
        "latency_us_p99": 1250.0,
    }


@pytest.mark.parametrize(
    "trouble", ["  Socket errors: connect 0, read 3, write 0, timeout 0", "  Non-2xx or 3xx responses: 7"]
)
def test_errors_of_wrk_are_no_result(trouble):
    with pytest.raises(measure.SampleFailed, match=trouble.strip()):
        measure.figures_of_wrk(WRK + trouble, 1)
    with pytest.raises(measure.SampleFailed, match="isn't understood"):
        measure.figures_of_wrk("unable to connect", 1)


def test_servers_say_their_port_in_either_way():
    assert measure.port_in('{"port": 7000}\n') == 7000
    assert measure.port_in("listening on 127.0.0.1:7001, Ctrl-C ends it\n") == 7001


def test_cpu_time_of_another_process_is_that_of_its_clock():
    spin = "import time\nwhile time.process_time() < 0.2: pass\nprint('spun', flush=True)\ninput()"
    with measure.subprocess.Popen([sys.executable, "-c", spin], stdin=-1, stdout=-1) as process:
        assert process.stdout.readline() == b"spun\n"
        assert 0.2e9 <= measure.cpu_time_ns(process.pid) < 20e9
        process.kill()


def test_floor_is_the_median_best():
    result = cell_result("echo/1KB/50", c__epoll=[1, 9, 9], c__io_uring=[5, 5, 5], ringloop=[6, 6, 6])
    assert result.floor == "c-io_uring"
    assert dataclasses.replace(result, floors=()).floor is None
    assert cells.choose([], full=False, quick=False)[0] not in native.CELLS
