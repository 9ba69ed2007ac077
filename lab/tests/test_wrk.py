"""The load generator against wrk: both find the same throughput of a server, and the same order of servers.

Short rounds take turns on servers of different speed, with both tools in alternating order; what counts is the ratio within a round.
A local server pays for waking a client that sleeps, so both must wait alike: wrk sleeps at once when it has nothing to do, and so
does the generator here (`--spin-us 0`). A closed loop shows the throughput of a server only where the server has its CPU for
itself and uses it: rounds in which it hadn't, and servers that are too fast for a tool, say nothing and aren't judged.
"""

import itertools
import math
import os
import re
import shutil
import statistics as averages
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest

from ringlab import generator, manifest, preflight, statistics
from ringlab.process import Server, pin

ARMS = ("c-epoll", "hyper", "go-net-http", "asyncio-protocol", "asyncio-uvicorn")
CONNECTIONS = 50
SECONDS = 1
ROUNDS_LEAST, ROUNDS_MOST = 5, 15
TOLERANCE = 0.05
SATURATED = 0.9
"""The share of its CPU that a server has had which is measured, and not its client or its neighbours."""

pytestmark = pytest.mark.timeout(600)


@dataclass
class Contest:
    """What both tools found of a server, in the rounds that count."""

    arm: str
    wrk: list[float] = field(default_factory=list)
    generator: list[float] = field(default_factory=list)
    server_busy: list[float] = field(default_factory=list)
    """The share of its CPU that the server has had, in all rounds."""

    def add(self, wrk: tuple[float, float], load: tuple[float, float]) -> None:
        """Take a round: requests per second, and the server's share of its CPU, by either tool."""
        self.server_busy.append(min(wrk[1], load[1]))
        if self.server_busy[-1] >= SATURATED:
            self.wrk.append(wrk[0])
            self.generator.append(load[0])

    @property
    def estimate(self) -> statistics.Estimate:
        """The generator's throughput as a ratio to wrk's."""
        found = statistics.estimate(statistics.log_ratios(self.generator, self.wrk))
        assert found is not None
        return found

    @property
    def agrees(self) -> bool:
        """Whether the true ratio is certainly near 1."""
        low, high = self.estimate.interval_inner
        return low >= 1 / (1 + TOLERANCE) and high <= 1 + TOLERANCE

    @property
    def disagrees(self) -> bool:
        """Whether the true ratio is certainly not."""
        low, high = self.estimate.interval
        return high < 1 / (1 + TOLERANCE) or low > 1 + TOLERANCE

    def __str__(self) -> str:
        """For whoever reads a failure."""
        text = f"{self.arm}: {len(self.wrk)} of {len(self.server_busy)} rounds, in which it had"
        text += f" {averages.median(self.server_busy):.0%} of its CPU"
        if len(self.wrk) >= ROUNDS_LEAST:
            (low, high), ratio = self.estimate.interval, self.estimate.ratio
            rates = (
                f"{averages.median(self.generator):,.0f}/s by the generator, {averages.median(self.wrk):,.0f}/s by wrk"
            )
            text += f"; {rates}, ratio {ratio:.3f} ({low:.3f} to {high:.3f})"
        return text


@pytest.fixture(scope="module")
def servers() -> Iterator[list[Server]]:
    """Those that this machine has, all running, on a CPU that the tools don't use."""
    if shutil.which("wrk") is None:
        pytest.skip("wrk is not installed: apt-get install -y wrk")
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("server and load need a CPU each, and there is one")
    with ExitStack() as stack:
        found = []
        for arm in manifest.discover():
            if arm.name in ARMS and not manifest.detect_all(arm).skipped:
                manifest.build(arm, set())
                found.append(stack.enter_context(Server(arm, "http", 1)))
                pin(found[-1].pid, preflight.place().server)
        yield found


def by_wrk(server: Server, cpus: str) -> float:
    words = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{SECONDS}", f"http://{server.address}/"]
    output = subprocess.run(["taskset", "-c", cpus, *words], check=True, capture_output=True, text=True).stdout
    assert "errors" not in output, output
    assert "Non-2xx" not in output, output
    rate = re.search(r"Requests/sec:\s+([\d.]+)", output)
    assert rate is not None, output
    return float(rate[1])


def by_generator(server: Server, cpus: str) -> float:
    words = ["http", "--address", server.address, "--connections", str(CONNECTIONS), "--cpu", cpus]
    words += ["--warm-up", "0", "--window", str(SECONDS), "--spin-us", "0"]
    event = generator.run(generator.find(), words, SECONDS)
    assert not event["void"], event["void"]
    assert not event["errors"], event["errors"]
    return float(event["operations_per_s"])


def measure(tool: Callable[[Server, str], float], server: Server, cpus: str) -> tuple[float, float]:
    """Return the rate that a tool finds, and the share of a CPU that the server had."""
    clock = (~server.pid << 3) | 2  # All threads of the process: clock_getcpuclockid(3).
    cpu_s = -time.clock_gettime(clock)
    rate = tool(server, cpus)
    cpu_s += time.clock_gettime(clock)
    return rate, cpu_s / SECONDS


def test_throughput_and_order_are_those_of_wrk(servers: list[Server]) -> None:
    cpus = ",".join(map(str, preflight.place().client))
    contests = [Contest(server.arm.name) for server in servers]
    for number in range(1, ROUNDS_MOST + 1):
        for server, contest in zip(servers, contests, strict=True):
            tools = [by_wrk, by_generator]
            found = {tool: measure(tool, server, cpus) for tool in (tools if number % 2 else reversed(tools))}
            contest.add(found[by_wrk], found[by_generator])
        judged = [contest for contest in contests if len(contest.wrk) >= ROUNDS_LEAST]
        if len(judged) > 1 and all(contest.agrees for contest in judged):
            break
        if number == ROUNDS_LEAST and not judged:
            break
    report = "\n".join(map(str, contests))
    print(report)
    if len(judged) < 2:
        pytest.skip(f"others run on this machine, or all servers are too fast for a tool:\n{report}")
    assert not any(contest.disagrees for contest in judged), report
    for one, other in itertools.combinations(judged, 2):
        logs = [
            math.log(averages.median(by(one)) / averages.median(by(other)))
            for by in (lambda c: c.wrk, lambda c: c.generator)
        ]
        # Servers that are about as fast have no order.
        flipped = min(logs) < -math.log1p(TOLERANCE) and max(logs) > math.log1p(TOLERANCE)
        assert not flipped, report
    if not all(contest.agrees for contest in judged):
        pytest.skip(f"{ROUNDS_MOST} rounds don't tell whether they agree within 5%:\n{report}")


def test_agreement_is_judged_by_its_interval() -> None:
    def contest(*ratios: float) -> Contest:
        found = Contest("a")
        for ratio in ratios:
            found.add((1000.0, 0.99), (1000.0 * ratio, 0.98))
            found.add((1000.0, 0.99), (2000.0, 0.5))
        return found

    steady = (1.0, 1.004, 0.997, 1.002, 0.998)
    for factor, agrees, disagrees in ((1.0, True, False), (1.03, True, False), (1.1, False, True), (0.9, False, True)):
        judged = contest(*(each * factor for each in steady))
        assert (judged.agrees, judged.disagrees) == (agrees, disagrees)
    noisy = contest(0.8, 1.3, 1.0, 0.7, 1.2)
    assert (noisy.agrees, noisy.disagrees) == (False, False)
