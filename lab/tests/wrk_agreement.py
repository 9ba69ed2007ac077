"""Compares the load generator with wrk: do both find the same throughput, and the same order of servers?

    python lab/tests/wrk_agreement.py --generator target/release/ringlab-load 'SERVER ...' 'SERVER ...'

Each SERVER is a command that serves HTTP, answers 13 bytes ("Hello, World!") and prints "listening on HOST:PORT" once it
does, as all targets of the lab do. Short rounds take turns on all servers, with wrk and the generator in alternating order,
because single figures of a busy machine differ by more than the tools do; what counts is the median of the ratios of each
round's pairs. A server that is loaded fully answers as many requests as its CPU time allows: so requests per CPU second of the
server are judged, which other programs on its CPU hardly change.

A local server pays for waking a client that sleeps, about 12 us on some virtual machines, and how often a client sleeps
depends on how long its own work takes. By default the generator looks for events for a while before it sleeps; wrk doesn't.
So the generator runs with several of SPINS_US, and that run is compared in which it slept about as often per request as wrk
did. Where wrk is more than WRK_BUSY busy, it is a part of what it measures: such servers are shown and not judged.

Not a part of the tests that run everywhere: it measures, so it needs wrk (Debian's package) and some minutes of a machine
with two CPUs that has nothing else to do. Exit status: 0 if the tools agree, 1 if they don't.
"""

import argparse
import itertools
import json
import os
import re
import shlex
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

TOLERANCE = 0.05
WRK_BUSY = 0.9
SPINS_US = (0, 2, 4, 8)


@dataclass
class Server:
    """A server that runs."""

    address: str
    process: int

    def cpu_s(self) -> float:
        """The CPU time of all its threads so far, by its CPU clock, whose number follows from the process's (clock_getcpuclockid(3))."""
        return time.clock_gettime((~self.process << 3) | 2)


@contextmanager
def running(command: str, cpu: str) -> Iterator[Server]:
    """Starts a server on a CPU, yields it, and ends it."""
    arguments = ["taskset", "-c", cpu, *shlex.split(command)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.search(r"listening on ([\w.]+:\d+)", line)
            if found is None:
                sys.exit(f"{command}: it said {line!r} instead of 'listening on HOST:PORT'")
            yield Server(found[1], process.pid)
        finally:
            process.send_signal(signal.SIGTERM)


@dataclass
class Measured:
    """One measurement by one tool."""

    requests_per_s: float
    requests_per_server_cpu_s: float
    """The same, where the server has a CPU for itself and uses it fully; and what it would be, where it shares one."""
    cpu_fraction: float
    """How much of its CPU the tool used."""
    sleeps_per_request: float


def by_wrk(server: Server, connections: int, seconds: int, cpu: str) -> Measured:
    """Measures with wrk."""
    command = ["taskset", "-c", cpu, "wrk", "-t1", f"-c{connections}", f"-d{seconds}", f"http://{server.address}/"]
    before_s = server.cpu_s()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        output = process.stdout.read()
        _, process.returncode, usage = os.wait4(process.pid, 0)
    server_cpu_s = server.cpu_s() - before_s
    if process.returncode or "errors" in output or "Non-2xx" in output:
        sys.exit(f"wrk met errors:\n{output}")
    rate, requests = re.search(r"Requests/sec:\s+([\d.]+)", output), re.search(r"(\d+) requests in", output)
    assert rate is not None and requests is not None, output
    tool_cpu_s = usage.ru_utime + usage.ru_stime
    sleeps = usage.ru_nvcsw / int(requests[1])
    return Measured(float(rate[1]), int(requests[1]) / server_cpu_s, tool_cpu_s / seconds, sleeps)


def by_generator(generator: str, server: Server, connections: int, seconds: int, cpu: str, spin_us: int) -> Measured:
    """Measures with the generator."""
    load = ["--connections", str(connections), "--warm-up", "0", "--window", str(seconds), "--spin-us", str(spin_us)]
    load += ["--cpu", cpu]
    command = [generator, "http", "--address", server.address, *load]
    before_s = server.cpu_s()
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    server_cpu_s = server.cpu_s() - before_s
    result = json.loads(output.splitlines()[-1])
    if result["void"] or result["errors"]:
        sys.exit(f"the generator met errors: {result['void']} {result['errors']}")
    requests, client = int(result["operations"]), result["client"]
    sleeps = client["voluntary_switches"] / requests
    rate, busy = float(result["operations_per_s"]), float(client["cpu_fraction"])
    return Measured(rate, requests / server_cpu_s, busy, sleeps)


@dataclass
class Rounds:
    """What both tools measured of one server."""

    wrk: list[Measured] = field(default_factory=list)
    by_spin_us: dict[int, list[Measured]] = field(default_factory=lambda: {spin_us: [] for spin_us in SPINS_US})

    @property
    def generator(self) -> list[Measured]:
        """What the generator measured when it slept as wrk did."""
        sleeps = median(self.wrk, "sleeps_per_request")
        return min(self.by_spin_us.values(), key=lambda measured: abs(median(measured, "sleeps_per_request") - sleeps))

    def ratio(self, figure: str) -> float:
        """The median over the rounds of the generator's figure to wrk's."""
        pairs = zip(self.generator, self.wrk, strict=True)
        ratios: list[float] = [getattr(ours, figure) / getattr(theirs, figure) for ours, theirs in pairs]
        return statistics.median(ratios)


def median(measured: list[Measured], figure: str) -> float:
    """The median of a figure over the rounds."""
    figures: list[float] = [getattr(one, figure) for one in measured]
    return statistics.median(figures)


def main() -> int:
    """Runs the comparison and prints it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("servers", nargs="+", metavar="SERVER", help="command that starts a server")
    parser.add_argument("--generator", default="target/release/ringlab-load", help="the generator, built for release")
    parser.add_argument("--rounds", type=int, default=10, help="rounds of each server with both tools (default 10)")
    parser.add_argument("--seconds", type=int, default=3, help="seconds of each measurement (default 3)")
    parser.add_argument("--connections", type=int, default=50, help="connections (default 50)")
    parser.add_argument("--server-cpu", default="0", help="CPU of the servers (default 0)")
    parser.add_argument("--client-cpu", default="1", help="CPU of wrk and the generator (default 1)")
    arguments = parser.parse_args()

    servers = {command: Rounds() for command in arguments.servers}
    with ExitStack() as stack:
        started = {command: stack.enter_context(running(command, arguments.server_cpu)) for command in servers}
        load = (arguments.connections, arguments.seconds, arguments.client_cpu)
        for number in range(arguments.rounds):
            for command, rounds in servers.items():
                tools = [None, *SPINS_US]
                for spin_us in tools if number % 2 else reversed(tools):
                    if spin_us is None:
                        rounds.wrk.append(by_wrk(started[command], *load))
                    else:
                        one = by_generator(arguments.generator, started[command], *load, spin_us)
                        rounds.by_spin_us[spin_us].append(one)

    agree = True
    judged = []
    for command, rounds in servers.items():
        for tool, measured in (("generator", rounds.generator), ("wrk", rounds.wrk)):
            rate, busy = median(measured, "requests_per_s"), median(measured, "cpu_fraction")
            capacity = median(measured, "requests_per_server_cpu_s")
            sleeps = median(measured, "sleeps_per_request")
            print(
                f"{command}: {tool} {rate:.0f}/s, {capacity:.0f} per CPU second of the server, "
                f"{busy:.0%} of its own CPU, {sleeps:.3f} sleeps per request"
            )
        ratio = rounds.ratio("requests_per_server_cpu_s")
        print(
            f"{command}: ratios of pairs {rounds.ratio('requests_per_s'):.3f}, per CPU second of the server {ratio:.3f}"
        )
        if median(rounds.wrk, "cpu_fraction") > WRK_BUSY:
            print(f"{command}: not judged, for wrk is too busy")
            continue
        judged.append(rounds)
        agree &= abs(ratio - 1) <= TOLERANCE
    if not judged:
        print("nothing was judged: the servers are too fast for wrk")
        return 1
    for first, second in itertools.combinations(judged, 2):
        by_tool = [
            median(getattr(first, tool), "requests_per_server_cpu_s")
            / median(getattr(second, tool), "requests_per_server_cpu_s")
            for tool in ("wrk", "generator")
        ]
        flipped = min(by_tool) < 1 - TOLERANCE and max(by_tool) > 1 + TOLERANCE
        agree &= not flipped
    print("they agree within 5%, and on the order" if agree else "they do NOT agree")
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
