"""A lab on several machines: what needs no network, and a cluster of network namespaces whose machines die, vanish and disagree."""

import contextlib
import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner
from hdrh.histogram import HdrHistogram

from conftest import FAKES, TARGET, SilentProgress, command_of, wait_until_gone, write_fake_load
from ringlab import (
    Refused,
    cli,
    execution,
    generator,
    instruments,
    manifest,
    results,
    runner,
    session,
    trend,
    workloads,
)
from ringlab.cluster import Encryption, coordinator, merging, namespaces, seat, worker
from ringlab.cluster.command import Elsewhere

needs_dask = pytest.mark.skipif(
    importlib.util.find_spec("distributed") is None, reason="Dask isn't installed: pip install 'ringlab[cluster]'"
)
ECHO = "echo/framed/1KB/100"


# --- results of several generators as one ---


def latencies(values: list[int]) -> dict[str, Any]:
    """Return latencies as the load generator prints them."""
    histogram = HdrHistogram(1, merging.LONGEST_NS, 3)
    for value in values:
        histogram.record_value(value)
    count = len(values)
    return {
        "count": count,
        "mean_ns": sum(values) / count if count else None,
        "min_ns": min(values, default=None),
        **{
            f"{name}_ns": merging.quantile(histogram, share) if count else None
            for name, share in merging.QUANTILES.items()
        },
        "max_ns": int(histogram.get_max_value()) if count else None,
        "hdr": histogram.encode().decode(),
    }


def event_of(values: list[int], **changes: Any) -> dict[str, Any]:
    event: dict[str, Any] = {
        "event": "result", "void": None, "ended_early": None, "window_s": 2.0, "operations": len(values),
        "operations_per_s": len(values) / 2, "bytes_in": 10 * len(values), "bytes_out": 10 * len(values),
        "latency": {"service": latencies(values), "corrected": None}, "open_loop": None, "errors": {},
        "connections": {"asked": 5, "opened": 5, "reopened": 0, "alive_at_end": 5, "opening_s": 0.1, "connect": latencies([7])},
        "streams": None, "fairness": {"min": 1, "p5": 1, "median": 1, "p95": 1, "max": 1, "jain": 1.0},
        "littles_law": {"in_flight_average": 4.0, "expected": 5.0, "ratio": 0.8},
        "client": {"cpu_ns": 10, "cpu_fraction": 0.1, "busy_ns": 10, "busy_fraction": 0.1, "threads": 1, "max_loop_ns": 3},
        "server": None,
    }  # fmt: skip
    return event | changes


def test_merged_histograms_are_those_of_one_generator_that_did_everything() -> None:
    dice = random.Random(5)
    values = [round(dice.lognormvariate(11, 2)) + 1 for _ in range(20_000)]
    # Unequal parts: averages of their percentiles would be far from the truth.
    parts = {"a": values[:200], "b": values[200:9000], "c": sorted(values[9000:])}
    whole = event_of(values)
    merged = merging.merge({name: event_of(part) for name, part in parts.items()}, {"cpu_ns": 5})
    one, all_of_them = (HdrHistogram.decode(each["latency"]["service"]["hdr"]) for each in (whole, merged))
    counts = [[each.get_count_at_index(index) for index in range(each.counts_len)] for each in (one, all_of_them)]
    assert counts[0] == counts[1]
    for name in (*merging.QUANTILES, "min", "max"):
        assert merged["latency"]["service"][f"{name}_ns"] == whole["latency"]["service"][f"{name}_ns"], name
    assert merged["latency"]["service"]["mean_ns"] == pytest.approx(whole["latency"]["service"]["mean_ns"])
    assert merged["latency"]["corrected"] is None
    for key in ("operations", "bytes_in", "bytes_out", "operations_per_s", "window_s"):
        assert merged[key] == pytest.approx(whole[key])
    assert merged["connections"]["opened"] == 15
    assert merged["connections"]["connect"]["count"] == 3
    assert merged["littles_law"] == {"in_flight_average": 12.0, "expected": 15.0, "ratio": 0.8}
    assert merged["server"] == {"cpu_ns": 5}


def test_quantiles_are_those_that_the_generator_prints() -> None:
    program = generator.find()
    words = ["ceiling", "echo", "--warm-up", "0", "--window", "0.3", "--hdr", "--connections", "7"]
    found = generator.run(program, words, 60.0)["latency"]["service"]
    histogram = HdrHistogram.decode(found["hdr"])
    assert histogram.total_count == found["count"] > 0
    for name, share in merging.QUANTILES.items():
        assert merging.quantile(histogram, share) == found[f"{name}_ns"], name


def test_what_voids_one_generator_voids_all() -> None:
    void = event_of([5], void="wrong byte", ended_early="void", errors={"mismatch": {"count": 1, "first": "byte 3"}})
    late = event_of([5], errors={"timeout": {"count": 2, "first": "5 s"}, "mismatch": {"count": 4, "first": "byte 9"}})
    merged = merging.merge({"one": event_of([5]), "two": void, "three": late}, None)
    assert merged["void"] == "two: wrong byte"
    assert merged["ended_early"] == "two: void"
    assert merged["errors"]["mismatch"] == {"count": 5, "first": "two: byte 3"}
    assert merged["errors"]["timeout"] == {"count": 2, "first": "three: 5 s"}


def test_fairness_is_that_of_all_connections() -> None:
    def of(counts: list[int]) -> dict[str, Any]:
        jain = sum(counts) ** 2 / (len(counts) * sum(count**2 for count in counts))
        fairness = {"min": min(counts), "max": max(counts), "p5": 0, "median": 0, "p95": 0, "jain": jain}
        connections = event_of([])["connections"] | {"opened": len(counts)}
        return event_of([], operations=sum(counts), fairness=fairness, connections=connections)

    merged = merging.merge({"a": of([1, 2, 3]), "b": of([10])}, None)["fairness"]
    whole = of([1, 2, 3, 10])["fairness"]
    assert merged["jain"] == pytest.approx(whole["jain"])
    assert (merged["min"], merged["max"]) == (1, 10)


def test_the_busiest_generator_says_whether_the_rate_was_theirs() -> None:
    busy = event_of([5])["client"] | {"busy_fraction": 0.9}
    merged = merging.merge({"a": event_of([5]), "b": event_of([5], client=busy)}, None)
    assert merged["client"]["busy_fraction"] == 0.9
    assert merged["client"]["threads"] == 2


def test_a_load_is_shared_among_generators() -> None:
    words = ["http", "--connections", "50", "--rate", "1000.0", "--warm-up", "1"]
    shares = merging.share(words, 3)
    assert [each[each.index("--connections") + 1] for each in shares] == ["17", "17", "16"]
    assert sum(float(each[each.index("--rate") + 1]) for each in shares) == pytest.approx(1000.0, abs=0.01)
    assert all(each[-2:] == ["--warm-up", "1"] for each in shares)
    assert len(merging.share(["echo", "--connections", "2"], 5)) == 2
    assert merging.share(["rtt", "--size", "64"], 5) == [["rtt", "--size", "64"]]


# --- versions, addresses, seats ---


def machine(name: str = "lab2", **changes: Any) -> Any:
    record = results.Machine(
        name=name, role="load", host="10.0.0.2", ringlab=seat.package_version(), generator="x, protocol 1"
    )
    return coordinator.Machine("tcp://10.0.0.2:4000", replace(record, **changes))


def test_other_versions_are_named_with_what_to_do() -> None:
    assert coordinator.check_versions([machine()]) == []
    (other,) = coordinator.check_versions([machine(ringlab="0.0.9 (1234)")])
    assert other.startswith(
        f"lab2 (10.0.0.2) has ringlab 0.0.9 (1234), and this machine has {seat.package_version()}: install"
    )
    (old,) = coordinator.check_versions([machine(generator="ringlab-load 0.1.0 (release)")])
    assert "lab2 (10.0.0.2) has ringlab-load 0.1.0 (release), and this lab speaks protocol 1: build it there" in old


@pytest.mark.parametrize("wrong", ["", "http://host:1", "tcp://", "tcp://host:99999", "tcp://host:1/path"])
def test_a_wrong_address_of_a_scheduler_is_refused(wrong: str) -> None:
    with pytest.raises(Refused, match="is no address of a scheduler"):
        worker.check_address(wrong)


def test_an_address_of_a_scheduler_is_completed() -> None:
    assert worker.check_address("host") == "tcp://host:8786"
    assert worker.check_address("tls://host:1") == "tls://host:1"


def test_a_task_that_nobody_looks_at_ends() -> None:
    with seat.seated("a") as mine:
        mine.seen -= seat.LEASE_S + 1
        with pytest.raises(seat.Abandoned):
            mine.next()
        seat.look("a")
        seat.tell("a", {"do": "stop"})
        assert mine.next() == {"do": "stop"}
        seat.abandon("a")
        with pytest.raises(seat.Abandoned):
            mine.next()
    assert seat.look("a") == {}


def refused(*words: object) -> str:
    found = CliRunner().invoke(cli.main, list(map(str, words)))
    assert found.exit_code == 2, found.output
    return found.output


def test_what_can_not_be_asked_of_other_machines_is_refused(fake_load: Path) -> None:
    assert "say what the server at --address serves" in refused("run", "--address", "127.0.0.1:1")
    assert "is no address of a server" in refused("run", "echo", "--address", "8080")
    assert "is named twice" in refused("run", "echo", *["--address", "127.0.0.1:1"] * 2)
    assert "use one of them" in refused("run", "echo", "--address", "127.0.0.1:1", "--targets", "go")
    assert "or name targets instead of --address" in refused(
        "run", "echo", "--address", "127.0.0.1:1", "--system-calls"
    )
    assert "can't be measured from outside" not in refused("run", "bind", "--address", "8080")
    assert "add --cluster" in refused("run", "echo", "--generators", "2")
    assert "no server is loaded in them" in refused("run", "bind", "--cluster", "tcp://127.0.0.1:1")
    assert "is no address of a scheduler" in refused("run", "echo", "--cluster", "http://x")


@needs_dask
def test_a_scheduler_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "ANSWER_S", 1.0)
    with pytest.raises(
        Refused, match=r"no scheduler answers at tcp://127\.0\.0\.1:1 .* start one with `dask scheduler`"
    ):
        coordinator.Cluster("tcp://127.0.0.1:1", Encryption(), serves=True).__enter__()


# --- a server that runs already ---


@contextlib.contextmanager
def running_server(cost: float = 1.0) -> Iterator[str]:
    words = [sys.executable, str(FAKES / "server.py"), "http", "--cost", str(cost)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().split()[-1]
        finally:
            server.kill()


def test_a_server_that_runs_already_is_measured_by_its_rate(fake_load: Path, tmp_path: Path) -> None:
    with running_server() as address:
        words = [
            "run",
            "http/50/closed",
            "--address",
            address,
            "--rounds",
            "3",
            "--seconds",
            "0.1",
            "--output",
            tmp_path / "out",
        ]
        found = CliRunner().invoke(cli.main, list(map(str, words)))
        assert found.exit_code == 0, found.output
        assert "not started by the lab, so its CPU, its memory and its settings are unknown" in found.output
        result = results.Result.read(tmp_path / "out" / "result.json")
    (cell,) = result.cells
    assert cell.primary.key == "operations_per_s"
    assert [sample.status for sample in cell.samples] == ["measured"] * 6
    assert {sample.arm for sample in cell.samples} == {address, f"{address} (again)"}
    assert f"--address {address}" in " ".join(result.run.command)
    again = refused("run", "--resume", tmp_path / "out" / "result.json")
    assert "there is nothing to resume" in again


def test_cells_from_outside_have_another_figure() -> None:
    for name, key in (
        ("http/50/closed", "operations_per_s"),
        ("http/50/open-50", "latency_ns_p99"),
        ("echo/stream/100", "megabytes_per_s"),
    ):
        plan = workloads.BY_NAME[name].without_processes
        assert plan is not None
        assert [each.key for each in plan.metrics if each.primary] == [key]
    assert workloads.BY_NAME[f"http/idle/{workloads.IDLE_CONNECTIONS}"].without_processes is None


# --- three machines in network namespaces ---


def why_no_namespaces() -> str:
    try:
        namespaces.check_rights()
        name = f"ringlab-{os.getpid()}-0-trial"
        try:
            namespaces.ip("netns", "add", name)
            namespaces.ip("-n", name, "link", "add", "name", "left", "type", "veth", "peer", "name", "right")
            namespaces.ip("-n", name, "link", "add", "name", "middle", "type", "bridge")
        finally:
            namespaces.remove(name)
    except Refused as why:
        return str(why)
    return ""


needs_namespaces = pytest.mark.skipif(bool(why := why_no_namespaces()), reason=f"no network namespaces: {why}")


class Three:
    """A server and two loads, in namespaces, with fakes."""

    def __init__(self, folder: Path, made: namespaces.Namespaces) -> None:
        self.folder = folder
        self.made = made
        self.pause = folder / "pause"

    def joined(self, **options: Any) -> coordinator.Cluster:
        return coordinator.Cluster(self.made.scheduler, Encryption(), serves=True, **options)

    def race(self, cluster: Any, rounds: int = 1) -> runner.Race:
        arms = {arm.name: arm for arm in manifest.discover(self.folder / "targets")}
        scale = results.Scale(name="normal", rounds=rounds, window_s=1.0, warm_up_s=0.0, ramp_s=0.0)
        run = results.Run(command=["ringlab", "run"], begun="2026-11-21T15:00:00+00:00", seed=1, scale=scale)
        plans = workloads.choose([ECHO], "normal")
        race = runner.Race(results.Result(run=run), arms, plans, None, self.folder / "result.json", SilentProgress())
        race.options = runner.Options(ceilings=False)
        race.elsewhere = cluster
        return race

    def paused(self) -> int:
        """Wait until a load is in the middle; return the process of the worker that runs it."""
        taken = self.pause.with_suffix(".taken")
        while not taken.exists():
            time.sleep(0.02)
        pid = int(taken.read_text())
        taken.unlink()
        return pid

    def servers(self) -> list[int]:
        """Return the processes of the measured server."""
        found = []
        for pid in namespaces.pids_in(self.made.path("server")):
            with contextlib.suppress(psutil.Error):
                if str(FAKES / "server.py") in psutil.Process(pid).cmdline():
                    found.append(pid)
        return found

    def link(self, name: str, state: str) -> None:
        namespaces.ip("-n", self.made.path(namespaces.SWITCH).name, "link", "set", name, state)

    @contextlib.contextmanager
    def worker(self, name: str, *before: str, **environment: str) -> Iterator[None]:
        """Yield another worker with the role load, in the namespace of load2."""
        where = self.made.path("load2").name
        words = ["ip", "netns", "exec", where, *before, *command_of("worker", "--role", "load", "--name", name)]
        words += ["--scheduler", self.made.scheduler, "--host", "10.199.0.22"]
        with subprocess.Popen(words, env=os.environ | environment, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            try:
                assert "connected to" in process.stdout.readline()
                yield
            finally:
                # unshare(1) heeds no other signal; what the worker has started ends with it.
                process.kill()
                process.wait()


@pytest.fixture(scope="module")
def fake_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cluster")
    program = write_fake_load(folder / "fake-load")
    for name, cost in (("fast", 1.0), ("slow", 2.0)):
        (folder / "targets" / name).mkdir(parents=True)
        text = TARGET.format(name=name, server=FAKES / "server.py", cost=cost, fault="", stop_s=60.0, connect="false")
        (folder / "targets" / name / manifest.FILE_NAME).write_text(text)
    return program


@pytest.fixture(scope="module")
def three(fake_program: Path) -> Iterator[Three]:
    folder = fake_program.parent
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RINGLAB_LOAD", str(fake_program))
        patch.setenv("FAKE_LOAD_PAUSE", str(folder / "pause"))
        # A test machine may be so busy that clocks are hard to compare.
        patch.setattr(coordinator, "UNCERTAINTY_S_MAX", 5.0)
        patch.setattr(coordinator, "MISALIGNED_MAX", 100.0)
        with namespaces.Namespaces(results.Placement(), folder / "targets") as made:
            yield Three(folder, made)
    assert not list(namespaces.FOLDER.glob(f"{made.prefix}-*"))


@needs_dask
@needs_namespaces
def test_a_race_on_three_machines(three: Three) -> None:
    with three.joined() as cluster:
        present, records = cluster.make_ready(list(manifest.discover(three.folder / "targets")), lambda text: None)
        assert list(present) == ["fast", "slow"]
        assert not [each.skipped for each in records if each.skipped]
        with pytest.raises(Refused, match="another lab measures on the cluster"):
            three.joined().__enter__()
        race = three.race(cluster, rounds=2)
        race.run()
    result = results.Result.read(three.folder / "result.json")
    (cell,) = result.cells
    assert [(sample.status, sample.reasons) for sample in cell.samples] == [("measured", [])] * 6
    assert [each.name for each in result.machines] == ["server", "load1", "load2"]
    assert all(each.clock_uncertainty_s > 0 for each in result.machines)
    sample = cell.measured("slow")[0]
    # Each generator did as much as one does alone.
    assert sample.figures["operations"] == 2 * 20_000
    assert sample.figures["server_cpu_us"] == pytest.approx(10.0, rel=0.01)
    assert HdrHistogram.decode(sample.histograms["service"]).total_count == 200
    assert cell.arms == ["fast", "slow", "fast (again)"]
    assert three.servers() == []
    assert trend.find_runs(three.folder)[0]


@needs_dask
@needs_namespaces
def test_a_trial_whose_worker_is_killed_is_repeated(three: Three) -> None:
    three.pause.touch()
    killed: list[int] = []

    def kill() -> None:
        killed.append(three.paused())
        os.kill(killed[0], signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    with three.joined() as cluster:
        race = three.race(cluster)
        race.run()
    thread.join()
    (repeat,) = race.result.run.repeats
    assert repeat.machine in ("load1", "load2")
    assert f"{repeat.machine} " in repeat.reason
    assert {sample.status for sample in race.result.cells[0].samples} == {"measured"}
    assert sorted(each.name for each in race.result.machines) == ["load1", "load2", "server"]
    wait_until_gone(killed[0])
    assert three.servers() == []


@needs_dask
@needs_namespaces
def test_a_server_that_is_cut_off_is_ended_and_its_trial_repeated(three: Three) -> None:
    three.pause.touch()

    def cut() -> None:
        three.paused()
        server = three.servers()
        three.link("server", "down")
        # Its own machine ends it, which nobody else reaches.
        for pid in server:
            wait_until_gone(pid)
        three.link("server", "up")

    thread = threading.Thread(target=cut)
    thread.start()
    with three.joined() as cluster:
        race = three.race(cluster)
        race.run()
    thread.join()
    assert {each.machine for each in race.result.run.repeats} == {"server"}
    assert {sample.status for sample in race.result.cells[0].samples} == {"measured"}


@needs_dask
@needs_namespaces
def test_a_machine_that_does_not_come_back_ends_the_run(three: Three, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "RETURN_S", 0.0)
    monkeypatch.setattr(coordinator, "ANSWER_S", 3.0)
    with three.joined() as cluster:
        race = three.race(cluster)
        three.link("load2", "down")
        try:
            race.run()
        finally:
            three.link("load2", "up")
    assert race.stopped.startswith("load2 (10.199.0.22) hasn't come back within 0 s: see that the machine runs")
    assert race.result.run.interrupted
    assert not race.result.run.complete


@needs_dask
@needs_namespaces
def test_a_clock_that_is_wrong_is_refused(three: Three) -> None:
    with (
        three.worker("late", RINGLAB_CLOCK_OFFSET_S="-7"),
        pytest.raises(
            Refused, match=r"the clock of late \(10\.199\.0\.22\) is -[67]\.\d+ s off this machine's.*chrony"
        ),
    ):
        three.joined().__enter__()


@needs_dask
@needs_namespaces
def test_clocks_need_not_count_from_the_same_instant(three: Three) -> None:
    elsewhen = ["unshare", "--time", "--fork", "--kill-child", "--monotonic", "1000"]
    if subprocess.run([*elsewhen, "true"], capture_output=True, check=False).returncode:
        pytest.skip("unshare(1) can't make a time namespace here")
    with three.worker("a-machine-that-began-earlier", *elsewhen), three.joined(generators=1) as cluster:
        (load,) = cluster.loads
        assert load.name == "a-machine-that-began-earlier"
        race = three.race(cluster)
        race.run()
        assert 999 < load.ahead_ns / 1e9 < 1001
    assert {sample.status for sample in race.result.cells[0].samples} == {"measured"}


@needs_dask
@needs_namespaces
def test_another_generator_is_refused(three: Three) -> None:
    with (
        three.worker("old", FAKE_LOAD_VERSION="ringlab-load 0.0.1 (release)"),
        pytest.raises(
            Refused,
            match=r"old \(10\.199\.0\.22\) has ringlab-load 0\.0\.1 \(release\), and this lab speaks protocol 1",
        ),
    ):
        three.joined().__enter__()


@needs_dask
@needs_namespaces
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_of_a_local_cluster(fake_program: Path, tmp_path: Path, end: signal.Signals) -> None:
    if end == signal.SIGKILL and not execution.process.die_with_parent():
        pytest.skip(
            "setpriv(1) of util-linux isn't installed, and without it nothing ends processes when the lab is killed"
        )
    folder, pause = fake_program.parent, tmp_path / "pause"
    pause.touch()
    words = command_of(
        "run", ECHO, "--cluster", "local", "--rounds", 2, "--seconds", 1, "--targets-folder", folder / "targets"
    )
    words += ["--output", str(tmp_path / "out")]
    environment = os.environ | {"RINGLAB_LOAD": str(fake_program), "FAKE_LOAD_PAUSE": str(pause)}
    log = tmp_path / "log"
    with log.open("w") as output, subprocess.Popen(words, env=environment, stdout=output, stderr=output) as lab:
        taken = pause.with_suffix(".taken")
        while not taken.exists():
            assert lab.poll() is None, log.read_text()
            time.sleep(0.05)
        made = sorted(namespaces.FOLDER.glob(f"ringlab-{lab.pid}-*"))
        running = [pid for path in made for pid in namespaces.pids_in(path)]
        lab.send_signal(end)
        code = lab.wait()
    assert len(made) == 4
    assert len(running) >= 8
    for pid in running:
        wait_until_gone(pid)
    if end == signal.SIGINT:
        assert code == session.EXIT_INTERRUPTED, log.read_text()
        assert json.loads((tmp_path / "out" / "result.json").read_text())["run"]["interrupted"]
    else:
        assert set(namespaces.remove_stale()) >= {path.name for path in made}
    assert not list(namespaces.FOLDER.glob(f"ringlab-{lab.pid}-*"))


@needs_dask
@needs_namespaces
def test_the_ceiling_is_that_of_all_generators_together(three: Three) -> None:
    with three.joined() as cluster:
        race = three.race(cluster, rounds=2)
        race.options.ceilings, race.options.again = True, False
        race.run()
    (cell,) = race.result.cells
    assert cell.ceiling is not None
    # The fake does five times as much as a server that costs 1.0, and there are two.
    assert cell.ceiling.rates == [2 * 5 * 20_000.0] * 2
    assert cell.ceiling.operations_per_s == 200_000.0
    assert not any(sample.client_limited for sample in cell.samples)


def test_a_busy_generator_limits_several_whatever_their_ceiling() -> None:
    sample = results.Sample(arm="a", round=1, position=1, begun_s=0.0, duration_s=1.0, status="measured",
                            figures={"operations_per_s": 100.0, "client_busy_fraction": 0.9})  # fmt: skip
    cell = results.Cell(name=ECHO, workload="echo", title="", operation="message", arms=["a"], samples=[sample])
    cell.ceiling = results.Ceiling(operations_per_s=1000.0, client_cpu_fraction=1.0, rates=[1000.0])
    for several in (False, True):
        runner.limit_by_ceiling(cell, several=several)
        assert sample.client_limited == several


@needs_dask
@needs_namespaces
def test_a_server_that_is_loaded_again_and_again_is_accounted_for_each_time(three: Three) -> None:
    with three.joined() as cluster:
        race = three.race(cluster)
        arm = next(iter(race.arms.values()))
        with cluster.serve(execution.Order(arm=arm, kind="echo", workers=1)) as serving:
            words = ["echo", "--connections", "4", "--seed", "1", "--warm-up", "0", "--window"]
            loads = [serving.load([*words, window], 5.0) for window in ("0.1", "0.4")]
    # As in a sweep, nobody has asked for histograms, and percentiles are those of all operations.
    assert all(loaded.event["latency"]["service"]["p99_ns"] for loaded in loads)
    first, second = (loaded.event["server"]["cpu_ns"] for loaded in loads)
    assert second == pytest.approx(4 * first, rel=0.01)


def on_local_cluster(*words: object, environment: dict[str, str] | None = None) -> str:
    command = command_of(*words)
    done = subprocess.run(
        command, env=os.environ | (environment or {}), capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@needs_dask
@needs_namespaces
@pytest.mark.timeout(300)
def test_system_calls_and_flame_graphs_are_those_of_the_server_s_machine(
    fake_program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the real load generator: a fake one gives perf no time."""
    monkeypatch.delenv("RINGLAB_LOAD", raising=False)
    found = instruments.find()
    words = ("run", ECHO, "--cluster", "local", "--rounds", 1, "--seconds", 2, "--no-again", "--if-busy", "wait")
    words += ("--targets-folder", fake_program.parent / "targets", "--output", tmp_path / "out")
    output = on_local_cluster(*words, "--system-calls", "--profile")
    result = results.Result.read(tmp_path / "out" / "result.json")
    (cell,) = result.cells
    assert cell.ceiling is not None
    assert cell.ceiling.operations_per_s > 0
    assert [each.arm for each in cell.system_calls] == ["fast", "slow"]
    for each in cell.system_calls:
        assert each.tool == found.tool
        # A message takes two: it is received, and sent back.
        assert 1.5 < (each.per_operation or 0) < 10 if found.tool else found.why_no_tool in each.text
        assert bool(each.instructions) == bool(found.instructions)
    if not found.instructions:
        assert f"instructions weren't counted: {found.why_no_instructions}" in result.run.notes
    graphs = sorted(path.name for path in (tmp_path / "out" / "profiles").glob("*.folded"))
    if found.why_no_stacks:
        assert found.why_no_stacks in " ".join(output.split())
    else:
        assert graphs == [f"echo-framed-1KB-100-{arm}.folded" for arm in ("fast", "slow")]


@needs_dask
@needs_namespaces
@pytest.mark.timeout(300)
def test_a_run_on_a_local_cluster_is_resumed(fake_program: Path, tmp_path: Path) -> None:
    pause, out, log = tmp_path / "pause", tmp_path / "out", tmp_path / "log"
    environment = {"RINGLAB_LOAD": str(fake_program), "FAKE_LOAD_PAUSE": str(pause)}
    words = command_of("run", ECHO, "--cluster", "local", "--rounds", 3, "--seconds", 0.2, "--no-system-calls")
    words += ["--targets-folder", str(fake_program.parent / "targets"), "--output", str(out), "--if-busy", "wait"]
    with log.open("w") as output:
        lab = subprocess.Popen(words, env=os.environ | environment, stdout=output, stderr=output)
    with lab:
        pause.touch()
        while not pause.with_suffix(".taken").exists():
            assert lab.poll() is None, log.read_text()
            time.sleep(0.02)
        lab.send_signal(signal.SIGINT)
        assert lab.wait() == session.EXIT_INTERRUPTED, log.read_text()
    assert f"ringlab run --resume {out / 'result.json'}" in " ".join(log.read_text().split())
    kept = results.Result.read(out / "result.json")
    assert not kept.run.complete
    assert [machine.name for machine in kept.machines] == ["server", "load1", "load2"]
    on_local_cluster("run", "--resume", out / "result.json", "--if-busy", "wait", environment=environment)
    result = results.Result.read(out / "result.json")
    assert result.run.complete
    (cell,) = result.cells
    # On a machine that stood still meanwhile, a sample is void.
    statuses = [sample.status for sample in cell.samples]
    assert len(statuses) == 9
    assert "measured" in statuses
    assert set(statuses) <= {"measured", "void"}
    assert any("was interrupted and resumed" in note for note in result.run.notes)


def test_a_run_is_not_resumed_on_other_machines() -> None:
    before = [machine("server", role="server").record, machine("load1").record]
    session.check_machines(Path("r"), before, list(reversed(before)))
    for now, words in (
        (
            [machine("server", role="server").record, machine("load1", kernel="7.0").record],
            r"there is load1, 0 CPUs, 7.0 \(load\)",
        ),
        ([machine("server", role="server").record], "load1, 0 CPUs"),
        ([*before, machine("load2").record], "load2, 0 CPUs"),
    ):
        with pytest.raises(Refused, match=f"^the machines aren't those of r: .*{words}.*with the same --name"):
            session.check_machines(Path("r"), before, now)


def test_a_local_cluster_needs_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(Refused, match="only root may do: run it with sudo, or start `dask scheduler`"):
        namespaces.check_rights()


def test_options_of_other_machines_are_kept() -> None:
    elsewhere = Elsewhere("tls://a:1", ("b:2",), 3, Encryption("ca", "cert", "key"))
    words = " ".join(elsewhere.words())
    assert words == "--address b:2 --cluster tls://a:1 --generators 3 --tls-ca-file ca --tls-cert cert --tls-key key"
    assert Elsewhere.of(["ringlab", "run", ECHO, *elsewhere.words(), "--rounds", "3"]) == elsewhere
    assert Elsewhere.of(["ringlab", "run", ECHO, "--rounds", "3"]) == Elsewhere()
