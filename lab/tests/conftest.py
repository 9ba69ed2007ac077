"""Targets and a load generator for the tests, which measure nothing and take no time."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import hypothesis
import psutil
import pytest

from ringlab import manifest, neighbours, preflight, process, results, runner, workloads

FAKES = Path(__file__).parent / "fakes"
FAST = ("--rounds", "3", "--seconds", "0.05")
MakeTargets = Callable[..., Path]
CALL_SOON = "loops/schedule/call_soon"
"""A cell that is measured without a load."""
PATIENCE = 10
"""How many times longer than when they are measured the arms may take to begin, to answer at first and to end: others may have the CPU."""

TARGET = """
name = "{name}"
language = "Python"
title = "a fake"
[run]
echo = "{{python}} -IS {server} echo --host {{host}} --port {{port}} --workers {{workers}} --cost {cost} --fault '{fault}'"
http = "{{python}} -IS {server} http --host {{host}} --port {{port}} --workers {{workers}} --cost {cost} --fault '{fault}'"
discard = "{{python}} -IS {server} discard --host {{host}} --port {{port}} --cost {cost} --fault '{fault}'"
bind = "{{python}} -IS {server} bind --count {{count}} --cost {cost} --fault '{fault}'"
asgi = "{{python}} -IS {server} asgi --host {{host}} --port {{port}} --feature {{feature}} --cost {cost} --fault '{fault}'"
wsgi = "{{python}} -IS {server} wsgi --host {{host}} --port {{port}} --feature {{feature}} --cost {cost} --fault '{fault}'"
loops = "{{python}} -IS FAKES/subject.py --cost {cost} --fault '{fault}'"
[ready]
timeout_s = 60
connect = {connect}
[stop]
timeout_s = {stop_s}
[declares]
nodelay = true
backlog = 1024
parser = "canned"
""".replace("FAKES", str(FAKES))


def patient(arm: manifest.Arm) -> manifest.Arm:
    ready = replace(arm.ready, timeout_s=PATIENCE * arm.ready.timeout_s)
    return replace(arm, ready=ready, stop=replace(arm.stop, timeout_s=PATIENCE * arm.stop.timeout_s))


@pytest.fixture(scope="module")
def patient_probes() -> Iterator[None]:
    """Let servers take longer for their first answer."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "PROBE_TIMEOUT_S", PATIENCE * process.PROBE_TIMEOUT_S)
        yield


# How fast examples are made says something about the machine only.
hypothesis.settings.register_profile("ours", suppress_health_check=[hypothesis.HealthCheck.too_slow], deadline=None)
hypothesis.settings.load_profile("ours")

# A shell starts background jobs with SIGINT ignored, nohup with SIGHUP, and children inherit that. Those of the tests are ended so.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep tests that run at the same time from seeing each other as labs."""
    monkeypatch.setenv(neighbours.FOLDER_VARIABLE, str(tmp_path / "locks"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def write_fake_load(program: Path) -> Path:
    """Make a program of the fake load generator, which begins soon: without Python's site module."""
    program.write_text(f"#!{sys.executable} -IS\n" + (FAKES / "load.py").read_text())
    program.chmod(0o755)
    return program


@pytest.fixture
def fake_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patient_probes: None) -> Path:
    """Return the fake load generator, which is found instead of the real one."""
    program = write_fake_load(tmp_path / "fake-load")
    monkeypatch.setenv("RINGLAB_LOAD", str(program))
    for name in preflight.DEBUG_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    # The fakes bind nothing: what other tests have left in TIME_WAIT, for a minute, isn't waited for.
    monkeypatch.setattr(preflight, "drain_time_wait", lambda: True)
    return program


@pytest.fixture
def make_targets(tmp_path: Path) -> MakeTargets:
    """Return a function that makes a folder of targets: `make_targets(fast=1.0, slow=2.0, faults={"slow": "crash"})`."""

    def make(faults: dict[str, str] | None = None, stop_s: float = 60.0, connect: bool = False, **costs: float) -> Path:
        folder = tmp_path / "targets"
        for name, cost in costs.items():
            (folder / name).mkdir(parents=True)
            fault = (faults or {}).get(name, "")
            text = TARGET.format(
                name=name,
                server=FAKES / "server.py",
                cost=cost,
                fault=fault,
                stop_s=stop_s,
                connect=str(connect).lower(),
            )
            (folder / name / manifest.FILE_NAME).write_text(text)
        return folder

    return make


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Start a worker that no server has started, and return its PID."""
    path = tmp_path / "worker"
    monkeypatch.setenv("FAKE_OUTSIDE", str(path))
    words = [sys.executable, "-IS", str(FAKES / "worker.py"), str(path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        worker.stdout.readline()
        yield worker.pid
        worker.kill()


class SilentProgress:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.cells: list[str] = []
        self.done_s = 0.0

    def step(self, text: str) -> None:
        self.steps.append(text)

    def advance(self, expected_s: float) -> None:
        self.done_s += expected_s

    def warn(self, text: str) -> None:
        self.steps.append(text)

    def cell_done(self, cell: results.Cell) -> None:
        self.cells.append(cell.name)


@pytest.fixture
def make_race(make_targets: MakeTargets, tmp_path: Path, fake_load: Path) -> Callable[..., runner.Race]:
    """Return a function that makes a race of fakes over the given cells."""

    def make(cells: list[str], rounds: int = 3, **targets: object) -> runner.Race:
        arms = manifest.discover(make_targets(**targets))
        scale = results.Scale(name="normal", rounds=rounds, window_s=0.2, warm_up_s=0.0, ramp_s=0.0)
        run = results.Run(command=["ringlab", "run"], begun="2026-11-21T15:00:00+00:00", seed=1, scale=scale)
        return runner.Race(
            results.Result(run=run),
            {arm.name: arm for arm in arms},
            workloads.choose(cells, "normal"),
            fake_load,
            tmp_path / "out" / "result.json",
            SilentProgress(),
        )

    return make


def command_of(*words: object) -> list[str]:
    """Return the command as a process of its own."""
    return [sys.executable, "-m", "ringlab", *map(str, words)]


def lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until_gone(pid: int) -> None:
    """Wait until the processes are gone; a test that waits in vain ends by its time limit."""
    while lives(pid):
        time.sleep(0.01)


def children() -> set[int]:
    """Return the live children of this process."""
    found = set()
    for task in os.listdir("/proc/self/task"):
        found |= set(map(int, Path(f"/proc/self/task/{task}/children").read_text().split()))
    return found


def worker_of(server: process.Server) -> int:
    """Return the only other process of a server, which has answered: the one between them may yet have to end."""
    while len(tree := server.tree()) != 2:
        time.sleep(0.01)
    assert tree[0] == server.pid
    return tree[1]
