"""The load generator against wrk: both find the same throughput of a server, and the same order of servers.

Short rounds take turns on servers of different speed, with both tools in alternating order; what counts is the ratio within a round.
A local server pays for waking a client that sleeps, so both must wait alike: wrk sleeps at once when it has nothing to do, and so
does the generator here (`--spin-us 0`). A closed loop shows the throughput of a server only where the server has its CPU for
itself and uses it, and the tool doesn't use up its own: other rounds say nothing of the throughput.
"""

import itertools
import os
import re
import shutil
import statistics as averages
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from conftest import patient
from ringlab import generator, manifest, preflight, statistics
from ringlab.process import Server, pin, verify

ARMS = ("c-epoll", "hyper", "go-net-http", "node-http", "threaded-python", "asyncio-uvicorn", "uvloop-uvicorn")
CONNECTIONS = 50
SECONDS = 1
ROUNDS_MIN, ROUNDS_MAX = 5, 15
TOLERANCE = 0.05
SERVER_BUSY_MIN = 0.9
"""The share of its CPU that a server has had where it is measured, and not its neighbours."""
TOOL_BUSY_MAX = 0.9
"""The share of its CPU from which on a tool may be the limit."""

pytestmark = pytest.mark.timeout(1800)


@dataclass
class Measured:
    """The findings of a tool in a round."""

    requests_per_s: float
    tool_busy: float
    """The share of a CPU that the tool used."""
    server_busy: float

    @property
    def counts(self) -> bool:
        """Whether this is the server's throughput."""
        return self.server_busy >= SERVER_BUSY_MIN and self.tool_busy <= TOOL_BUSY_MAX


@dataclass
class Contest:
    """The findings of both tools on a server, round by round."""

    arm: str
    generator: list[Measured] = field(default_factory=list)
    wrk: list[Measured] = field(default_factory=list)

    @property
    def pairs(self) -> list[tuple[float, float]]:
        """The throughput by the generator and by wrk, in the rounds that count."""
        both = zip(self.generator, self.wrk, strict=True)
        return [(one.requests_per_s, other.requests_per_s) for one, other in both if one.counts and other.counts]

    @property
    def is_judged(self) -> bool:
        """Whether enough rounds count."""
        return len(self.pairs) >= ROUNDS_MIN

    @property
    def estimate(self) -> statistics.Estimate:
        """The generator's throughput as a ratio to wrk's."""
        found = statistics.estimate(statistics.log_ratios(*zip(*self.pairs, strict=True)))
        assert found is not None
        return found

    @property
    def agrees(self) -> bool:
        """Whether the true ratio is certainly near 1."""
        low, high = self.estimate.inner
        return low >= 1 / (1 + TOLERANCE) and high <= 1 + TOLERANCE

    @property
    def disagrees(self) -> bool:
        """Whether the true ratio is certainly not."""
        low, high = self.estimate.interval
        return high < 1 / (1 + TOLERANCE) or low > 1 + TOLERANCE

    def __str__(self) -> str:
        """Return a text for whoever reads a failure."""
        text = f"{self.arm}: {len(self.pairs)} of {len(self.wrk)} rounds count"
        for name, found in (("the generator", self.generator), ("wrk", self.wrk)):
            text += (
                f"; {name} {median(found, 'requests_per_s'):,.0f}/s with {median(found, 'tool_busy'):.0%} of its CPU"
            )
            text += f" and {median(found, 'server_busy'):.0%} of the server's"
        if self.is_judged:
            (low, high), ratio = self.estimate.interval, self.estimate.ratio
            text += f"; ratio {ratio:.3f} ({low:.3f} to {high:.3f})"
        return text


def median(found: list[Measured], name: str) -> float:
    return averages.median(getattr(each, name) for each in found)


def order(one: list[Measured], other: list[Measured]) -> int:
    """Say by a tool's rounds whether a server is certainly faster than another (1) or slower (-1); about as fast have no order (0)."""
    pairs = [(a.requests_per_s, b.requests_per_s) for a, b in zip(one, other, strict=True)]
    pairs = [pair for pair in pairs if all(pair)]
    found = statistics.estimate(statistics.log_ratios(*zip(*pairs, strict=True))) if len(pairs) >= ROUNDS_MIN else None
    if found is None:
        return 0
    low, high = found.interval
    return int(low > 1 + TOLERANCE) - int(high < 1 / (1 + TOLERANCE))


@pytest.fixture(scope="module")
def program() -> Path:
    """Return the load generator, looked for, and built, once: cargo would run beside every measurement."""
    return generator.find()


@pytest.fixture(scope="module")
def servers(patient_probes: None) -> Iterator[list[Server]]:
    """Yield the servers that this machine has, all running, on a CPU that the tools don't use."""
    if shutil.which("wrk") is None:
        pytest.skip("wrk is not installed: apt-get install -y wrk")
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("server and load need a CPU each, and there is one")
    cpus = preflight.place().server
    with ExitStack() as stack:
        found = []
        for arm in map(patient, manifest.discover()):
            if arm.name in ARMS and not manifest.detect_all(arm).skipped:
                manifest.build(arm, set())
                found.append(stack.enter_context(Server(arm, "http", 1)))
                verify(found[-1])
                pin(found[-1].pid, cpus)
        yield found


def by_wrk(server: Server, cpus: str) -> float:
    words = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{SECONDS}", f"http://{server.address}/"]
    output = subprocess.run(["taskset", "-c", cpus, *words], check=True, capture_output=True, text=True).stdout
    # Where others have the CPU, an answer may take the 2 s after which wrk counts a timeout: then the round doesn't count either.
    errors = re.search(r"Socket errors: connect (\d+), read (\d+), write (\d+), timeout \d+", output)
    assert errors is None or set(errors.groups()) == {"0"}, output
    assert "Non-2xx" not in output, output
    rate = re.search(r"Requests/sec:\s+([\d.]+)", output)
    assert rate is not None, output
    return float(rate[1])


def by_generator(program: Path, server: Server, cpus: str) -> float:
    words = ["http", "--address", server.address, "--connections", str(CONNECTIONS), "--cpu", cpus.split(",")[0]]
    words += ["--warm-up", "0", "--window", str(SECONDS), "--spin-us", "0", "--timeout", "60"]
    event = generator.run(program, words, SECONDS + 60)
    assert event["void"] in (None, "nothing was answered in the window"), event["void"]
    assert not event["errors"], event["errors"]
    return float(event["operations_per_s"])


def measure(tool: Callable[[Server, str], float], server: Server, cpus: str) -> Measured:
    """Let a tool load a server."""
    clock = (~server.pid << 3) | 2  # All threads of the process: clock_getcpuclockid(3).
    server_s, tool_s = time.clock_gettime(clock), os.times()
    rate = tool(server, cpus)
    after = os.times()
    tool_cpu_s = after.children_user + after.children_system - tool_s.children_user - tool_s.children_system
    return Measured(rate, tool_cpu_s / SECONDS, (time.clock_gettime(clock) - server_s) / SECONDS)


def test_throughput_and_order_are_those_of_wrk(servers: list[Server], program: Path) -> None:
    cpus = ",".join(map(str, preflight.place().client))
    contests = [Contest(server.arm.name) for server in servers]
    for number in range(1, ROUNDS_MAX + 1):
        for server, contest in zip(servers, contests, strict=True):
            tools = [(partial(by_generator, program), contest.generator), (by_wrk, contest.wrk)]
            for tool, found in tools if number % 2 else reversed(tools):
                found.append(measure(tool, server, cpus))
        judged = [contest for contest in contests if contest.is_judged]
        enough = len(judged) >= 2 and all(contest.agrees for contest in judged)
        in_vain = not any(contest.pairs for contest in contests)
        if number >= ROUNDS_MIN and (enough or in_vain):
            break
    report = "\n".join(map(str, contests))
    print(report)
    if len(judged) < 2:
        pytest.skip(f"others run on this machine, or all servers are too fast for a tool:\n{report}")
    assert not any(contest.disagrees for contest in judged), report
    for one, other in itertools.combinations(contests, 2):
        orders = {order(one.generator, other.generator), order(one.wrk, other.wrk)}
        assert orders != {-1, 1}, f"{one.arm} and {other.arm} are in another order by wrk:\n{report}"
    if not all(contest.agrees for contest in judged):
        pytest.skip(f"{ROUNDS_MAX} rounds don't tell whether they agree within 5%:\n{report}")


def test_agreement_is_judged_by_its_interval() -> None:
    def contest(*ratios: float) -> Contest:
        found = Contest("a")
        for ratio in ratios:
            for server_busy, tool_busy, spoilt in ((0.99, 0.5, 1), (0.5, 0.5, 2), (0.99, 0.99, 2)):
                found.wrk.append(Measured(1000.0, 0.5, 0.99))
                found.generator.append(Measured(1000.0 * ratio * spoilt, tool_busy, server_busy))
        return found

    steady = (1.0, 1.004, 0.997, 1.002, 0.998)
    for factor, agrees, disagrees in ((1.0, True, False), (1.03, True, False), (1.1, False, True), (0.9, False, True)):
        judged = contest(*(each * factor for each in steady))
        assert judged.is_judged
        assert (judged.agrees, judged.disagrees) == (agrees, disagrees)
    fast, slow = ([Measured(rate * each, 0.5, 0.99) for each in steady] for rate in (1000.0, 900.0))
    assert (order(fast, slow), order(slow, fast), order(fast, fast)) == (1, -1, 0)
    assert order(fast, [Measured(0.0, 0.5, 0.1)] * len(fast)) == 0
    noisy = contest(0.8, 1.3, 1.0, 0.7, 1.2)
    assert (noisy.agrees, noisy.disagrees) == (False, False)
    assert not contest(*steady[1:]).is_judged
