"""Compares the load generator with wrk: do both find the same throughput, and the same order of servers?

    python lab/tests/wrk_agreement.py --generator target/release/ringlab-load 'SERVER ...' 'SERVER ...'

Each SERVER is a command that serves HTTP, answers 13 bytes ("Hello, World!") and prints "listening on HOST:PORT" once it
does, as all targets of the lab do. Short rounds take turns on all servers, with wrk and the generator in alternating order,
because single figures of a busy machine differ by more than the tools do; what counts is the median of the ratios of each
round's pairs.

Both wait alike here (--spin-us 0). By default the generator looks for events for a while before it sleeps, because a local
server pays for waking its client; wrk doesn't, and is dearer for each server that finds it asleep. That is also why a server
is not judged for which wrk is more than WRK_BUSY busy: there it depends on wrk's own work whether it ever sleeps. Servers
that take 20 us and more per request are suitable.

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
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

TOLERANCE = 0.05
WRK_BUSY = 0.6


@contextmanager
def running(command: str, cpu: str) -> Iterator[str]:
    """Starts a server on a CPU, yields its address, and ends it."""
    arguments = ["taskset", "-c", cpu, *shlex.split(command)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.search(r"listening on ([\w.]+:\d+)", line)
            if found is None:
                sys.exit(f"{command}: it said {line!r} instead of 'listening on HOST:PORT'")
            yield found[1]
        finally:
            process.send_signal(signal.SIGTERM)


@dataclass
class Measured:
    """One measurement by one tool."""

    requests_per_s: float
    cpu_fraction: float
    """How much of its CPU the tool used."""


def by_wrk(address: str, connections: int, seconds: int, cpu: str) -> Measured:
    """Measures with wrk."""
    command = ["taskset", "-c", cpu, "wrk", "-t1", f"-c{connections}", f"-d{seconds}", f"http://{address}/"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        output = process.stdout.read()
        _, process.returncode, usage = os.wait4(process.pid, 0)
    if process.returncode or "errors" in output or "Non-2xx" in output:
        sys.exit(f"wrk met errors:\n{output}")
    found = re.search(r"Requests/sec:\s+([\d.]+)", output)
    assert found is not None, output
    return Measured(float(found[1]), (usage.ru_utime + usage.ru_stime) / seconds)


def by_generator(generator: str, address: str, connections: int, seconds: int, cpu: str) -> Measured:
    """Measures with the generator."""
    load = ["--connections", str(connections), "--warm-up", "0", "--window", str(seconds), "--spin-us", "0"]
    load += ["--cpu", cpu]
    command = [generator, "http", "--address", address, *load]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    result = json.loads(output.splitlines()[-1])
    if result["void"] or result["errors"]:
        sys.exit(f"the generator met errors: {result['void']} {result['errors']}")
    return Measured(float(result["operations_per_s"]), float(result["client"]["cpu_fraction"]))


@dataclass
class Rounds:
    """What both tools measured of one server."""

    wrk: list[Measured] = field(default_factory=list)
    generator: list[Measured] = field(default_factory=list)

    def ratio(self) -> float:
        """The median over the rounds of the generator's rate to wrk's."""
        pairs = zip(self.generator, self.wrk, strict=True)
        return statistics.median(ours.requests_per_s / theirs.requests_per_s for ours, theirs in pairs)


def median(measured: list[Measured], figure: str) -> float:
    """The median of a figure over the rounds."""
    return statistics.median(getattr(one, figure) for one in measured)


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

    servers = {server: Rounds() for server in arguments.servers}
    with ExitStack() as stack:
        addresses = {server: stack.enter_context(running(server, arguments.server_cpu)) for server in servers}
        load = (arguments.connections, arguments.seconds, arguments.client_cpu)
        for number in range(arguments.rounds):
            for server, rounds in servers.items():
                for tool in ("wrk", "generator") if number % 2 else ("generator", "wrk"):
                    if tool == "wrk":
                        rounds.wrk.append(by_wrk(addresses[server], *load))
                    else:
                        rounds.generator.append(by_generator(arguments.generator, addresses[server], *load))

    agree = True
    judged = []
    for server, rounds in servers.items():
        for tool, measured in ("generator", rounds.generator), ("wrk", rounds.wrk):
            rate, busy = median(measured, "requests_per_s"), median(measured, "cpu_fraction")
            print(f"{server}: {tool} {rate:.0f}/s with {busy:.0%} of its CPU")
        if median(rounds.wrk, "cpu_fraction") > WRK_BUSY:
            print(f"{server}: not judged, for wrk is too busy; ratio of pairs {rounds.ratio():.3f}")
            continue
        print(f"{server}: ratio of pairs {rounds.ratio():.3f}")
        judged.append(rounds)
        agree &= abs(rounds.ratio() - 1) <= TOLERANCE
    if not judged:
        print("nothing was judged: the servers are too fast for wrk")
        return 1
    for first, second in itertools.combinations(judged, 2):
        by_tool = [
            median(getattr(first, tool), "requests_per_s") / median(getattr(second, tool), "requests_per_s")
            for tool in ("wrk", "generator")
        ]
        flipped = min(by_tool) < 1 - TOLERANCE and max(by_tool) > 1 + TOLERANCE
        agree &= not flipped
    print("they agree within 5%, and on the order" if agree else "they do NOT agree")
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
