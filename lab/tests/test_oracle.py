"""The load generator against a small one in C (oracle.c), which shares no code with it: both must find the same of a server.

They take turns on one server, in alternating order. What is compared is the ratio of their figures within a round: the rate, the
server's CPU time per message, and the median latency. A machine that others use moves single rounds by half; the median of
several rounds is held against a bound that no mistake in units, in the window or in what is counted would keep.
"""

import json
import os
import statistics as averages
import subprocess
from pathlib import Path
from typing import Any

import pytest

from conftest import patient
from ringlab import generator, manifest, preflight, process
from ringlab.process import Server

CONNECTIONS, SIZE_BYTES = 20, 1024
WINDOW_S, WARM_UP_S = 0.5, 0.1
ROUNDS_MIN, ROUNDS_MAX = 5, 25
BOUND = 2.0
"""A busy machine moves the median of several rounds by less."""
TIMEOUT_S = 120
SOURCE = Path(__file__).with_name("oracle.c")
FIGURES = ("operations_per_s", "server_cpu_us", "latency_ns_p50")

pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("patient_probes")]


def by_oracle(program: Path, server: Server, cpus: list[int]) -> dict[str, float]:
    """Load a server by the program in C."""
    port = server.address.rpartition(":")[2]
    words = [port, server.pid, CONNECTIONS, SIZE_BYTES, WINDOW_S]
    taskset = ["taskset", "--cpu-list", ",".join(map(str, cpus))] if cpus else []
    command = [*taskset, str(program), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, float] = json.loads(done.stdout)
    return found


def by_generator(program: Path, server: Server, cpus: list[int]) -> dict[str, float]:
    """Load a server by the lab's generator, which sleeps at once when it has nothing to do, as the other one."""
    words = ["echo", "--connections", CONNECTIONS, "--size", SIZE_BYTES, "--address", server.address]
    words += ["--account", server.pid, "--seed", 1, "--spin-us", 0, "--ramp", 0]
    words += ["--window", WINDOW_S, "--warm-up", WARM_UP_S]
    words += ["--cpu", str(cpus[0])] if cpus else []
    event: dict[str, Any] = generator.run(program, [str(word) for word in words], TIMEOUT_S)
    assert not event.get("void"), event
    return {
        "operations_per_s": event["operations_per_s"],
        "server_cpu_us": event["server"]["cpu_ns"] / event["operations"] / 1000,
        "latency_ns_p50": event["latency"]["service"]["p50_ns"],
    }


def test_the_generator_and_the_oracle_find_the_same(tmp_path: Path) -> None:
    oracle = tmp_path / "oracle"
    compiler = os.environ.get("CC", "cc")
    subprocess.run([compiler, "-O2", "-o", str(oracle), str(SOURCE)], check=True, timeout=TIMEOUT_S)
    arm = patient(next(arm for arm in manifest.discover() if arm.name == "c-epoll"))
    manifest.build(arm)
    program, placement = generator.find(), preflight.place()
    ratios: dict[str, list[float]] = {name: [] for name in FIGURES}
    with Server(arm, "echo", 1) as server:
        process.verify(server)
        for pid in server.tree():
            process.pin(pid, placement.server)
        for number in range(ROUNDS_MAX):
            tools = [(by_generator, program), (by_oracle, oracle)]
            found = {
                tool: tool(path, server, placement.client) for tool, path in (tools if number % 2 else tools[::-1])
            }
            for name in FIGURES:
                ratios[name].append(found[by_generator][name] / found[by_oracle][name])
            medians = {name: averages.median(values) for name, values in ratios.items()}
            agree = all(1 / BOUND < median < BOUND for median in medians.values())
            # A machine that stood still in some rounds gets more of them.
            if agree and number + 1 >= ROUNDS_MIN:
                break
    assert agree, {name: [round(value, 2) for value in values] for name, values in ratios.items()}
