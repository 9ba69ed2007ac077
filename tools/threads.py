#!/usr/bin/env python3
"""Compare event loops in one thread and in two on a free-threaded CPython.

    tools/threads.py --output FILE [--rounds 5] [--seconds 0.4] [--loops ringloop,uvloop] [CELL...]

In each round every loop has a process of its own for each cell, in random order. That process measures one thread with a loop, then two
threads with a loop each, then both again in reverse order. What counts is the CPU time of these threads per operation, and operations
per second of both threads together. Setting up and ending are not measured. Both ends of a connection are in the same loop. FILE gets
all samples as JSON. `make figures TABLE=threads` makes the tables of docs/decisions/free-threading.md from them.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import datetime
import importlib
import json
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

LOOPS = {
    "ringloop": ("ringloop", {"RINGLOOP_BACKEND": "io_uring"}),
    "ringloop-epoll": ("ringloop", {"RINGLOOP_BACKEND": "epoll"}),
    "uvloop": ("uvloop", {}),
    "rloop": ("rloop", {}),
    "asyncio": ("asyncio", {}),
}
PAIRS = 8
"""Connections of a loop."""
MESSAGE = b"x" * 1024
BATCH = 2000
WARM_UP_S = 0.05
BARRIER_TIMEOUT_S = 20
PROCESS_TIMEOUT_S = 120


class Meter:
    """The clocks of one thread: the threads begin together, once each has set up what it needs and has warmed up."""

    def __init__(self, barrier: threading.Barrier, seconds: float) -> None:
        self.barrier = barrier
        self.seconds = seconds
        self.end = 0.0
        self.wall_s = self.cpu_s = 0.0

    def begin(self) -> None:
        """Wait for the other threads, and read the clocks."""
        self.barrier.wait(BARRIER_TIMEOUT_S)
        self.wall_s, self.cpu_s = time.perf_counter(), time.thread_time()
        self.end = self.wall_s + self.seconds

    def finish(self) -> None:
        """Read the clocks again."""
        self.wall_s, self.cpu_s = time.perf_counter() - self.wall_s, time.thread_time() - self.cpu_s


Work = Callable[[Meter], Awaitable[int]]
"""Warms up, does something from begin() to finish() of a meter, and returns how often."""


async def repeat(meter: Meter, once: Callable[[], Awaitable[None]], operations: int) -> int:
    """Do something again and again; return how many operations that were."""
    warm = time.perf_counter() + WARM_UP_S
    while time.perf_counter() < warm:
        await once()
    count = 0
    meter.begin()
    while time.perf_counter() < meter.end:
        await once()
        count += operations
    meter.finish()
    return count


async def callbacks(meter: Meter) -> int:
    """Run 2,000 callbacks at once, again and again."""
    loop = asyncio.get_running_loop()

    def nothing() -> None:
        pass

    async def once() -> None:
        done = loop.create_future()
        for _ in range(BATCH):
            loop.call_soon(nothing)
        loop.call_soon(done.set_result, None)
        await done

    return await repeat(meter, once, BATCH)


async def chain(meter: Meter) -> int:
    """Run a callback that schedules itself."""
    loop = asyncio.get_running_loop()

    async def once() -> None:
        left = BATCH
        done = loop.create_future()

        def again() -> None:
            nonlocal left
            left -= 1
            if left:
                loop.call_soon(again)
            else:
                done.set_result(None)

        loop.call_soon(again)
        await done

    return await repeat(meter, once, BATCH)


async def sleep(meter: Meter) -> int:
    """Await sleep(0)."""

    async def once() -> None:
        for _ in range(BATCH):
            await asyncio.sleep(0)

    return await repeat(meter, once, BATCH)


async def tasks(meter: Meter) -> int:
    """Make a task and await it."""

    async def nothing() -> None:
        pass

    async def once() -> None:
        for _ in range(64):
            await asyncio.create_task(nothing())

    return await repeat(meter, once, 64)


class Echo(asyncio.Protocol):
    """Sends back what it receives, and counts it."""

    def __init__(self) -> None:
        self.count = 0
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Send it back."""
        self.count += 1
        self.transport.write(data)


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    """Return both ends of a connection over loopback."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
    return client, accepted


async def echoes(meter: Meter, pair: Callable[[], tuple[socket.socket, socket.socket]]) -> int:
    """Let 1 KB go to and fro on each of the connections; one operation is there and back."""
    loop = asyncio.get_running_loop()
    protocols = []
    for _ in range(PAIRS):
        for end in pair():
            end.setblocking(False)
            _, protocol = await loop.create_connection(Echo, sock=end)
            protocols.append(protocol)
    first = protocols[::2]
    for protocol in first:
        protocol.transport.write(MESSAGE)
    await asyncio.sleep(WARM_UP_S)
    before = sum(protocol.count for protocol in first)
    meter.begin()
    await asyncio.sleep(meter.seconds)
    meter.finish()
    count = sum(protocol.count for protocol in first) - before
    for protocol in protocols:
        protocol.transport.abort()
    await asyncio.sleep(0)
    return count


async def echo_tcp(meter: Meter) -> int:
    """Echo over TCP."""
    return await echoes(meter, tcp_pair)


async def echo_pairs(meter: Meter) -> int:
    """Echo over Unix socket pairs."""
    return await echoes(meter, socket.socketpair)


async def streams(meter: Meter) -> int:
    """Echo 1 KB over TCP, with streams at both ends."""
    count, ended = 0, False

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(4096):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def ask() -> None:
        nonlocal count
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        while not ended:
            writer.write(MESSAGE)
            await reader.readexactly(len(MESSAGE))
            count += 1
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        clients = [asyncio.create_task(ask()) for _ in range(PAIRS)]
        await asyncio.sleep(WARM_UP_S)
        before = count
        meter.begin()
        await asyncio.sleep(meter.seconds)
        meter.finish()
        operations, ended = count - before, True
        await asyncio.gather(*clients)
        return operations


CELLS: dict[str, Work] = {
    "callbacks": callbacks,
    "chain": chain,
    "sleep": sleep,
    "tasks": tasks,
    "echo_tcp": echo_tcp,
    "echo_pairs": echo_pairs,
    "streams": streams,
}


def in_threads(
    new_loop: Callable[[], asyncio.AbstractEventLoop], cell: str, count: int, seconds: float
) -> dict[str, float]:
    """Return operations per second of all threads together, and the CPU time of an operation in us."""
    barrier = threading.Barrier(count)
    meters: list[tuple[Meter, int]] = []
    failures: list[BaseException] = []

    def work() -> None:
        meter = Meter(barrier, seconds)
        try:
            # Not with asyncio.Runner, which rloop 0.5 can't be closed by.
            with contextlib.closing(new_loop()) as loop:
                meters.append((meter, loop.run_until_complete(CELLS[cell](meter))))
        except BaseException as error:
            failures.append(error)
            barrier.abort()

    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    operations = sum(done for _, done in meters)
    return {
        "rate": sum(done / meter.wall_s for meter, done in meters),
        "cpu_us": sum(meter.cpu_s for meter, _ in meters) / operations * 1e6,
    }


def probe(loop: str) -> str:
    """Return why a loop can't be measured here, or nothing."""
    text = f"import {LOOPS[loop][0]} as m, sys; m.new_event_loop().close(); sys.exit(sys._is_gil_enabled())"
    words = [sys.executable, "-W", "ignore", "-c", text]
    done = subprocess.run(words, env=os.environ | LOOPS[loop][1], capture_output=True, text=True, check=False)
    if done.stderr:
        return done.stderr.strip().splitlines()[-1]
    return "it turns the GIL on" if done.returncode else ""


def measure_here(loop: str, cell: str, seconds: float) -> None:
    """Print the samples of one loop in one cell, as JSON."""
    module = importlib.import_module(LOOPS[loop][0])
    new_loop = getattr(module, "new_event_loop")  # noqa: B009 - mypy knows no such attribute of a module
    # Either number of threads is first once.
    samples = [{"threads": count, **in_threads(new_loop, cell, count, seconds)} for count in (1, 2, 2, 1)]
    print(json.dumps(samples))


def measure(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the samples of all loops and cells, from fresh processes."""
    samples: list[dict[str, Any]] = []
    for number in range(1, arguments.rounds + 1):
        for cell in arguments.cells:
            print(f"threads: round {number} of {arguments.rounds}, {cell}", file=sys.stderr)
            for loop in random.sample(arguments.loops, len(arguments.loops)):
                words = [sys.executable, __file__, "--here", loop, "--seconds", str(arguments.seconds), cell]
                try:
                    done = subprocess.run(
                        words,
                        env=os.environ | LOOPS[loop][1],
                        capture_output=True,
                        text=True,
                        timeout=PROCESS_TIMEOUT_S,
                        check=False,
                    )
                except subprocess.TimeoutExpired:
                    sys.exit(f"threads: {loop} did not end within {PROCESS_TIMEOUT_S} s in {cell}")
                if done.returncode != 0:
                    sys.exit(f"threads: {loop} failed in {cell}:\n{done.stderr}")
                samples += [{"round": number, "cell": cell, "loop": loop, **each} for each in json.loads(done.stdout)]
    return samples


def main() -> None:
    """Do what the module's docstring says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cells", nargs="*", metavar="CELL", help=f"of {', '.join(CELLS)} (default: all)")
    parser.add_argument("--output", type=Path, metavar="FILE", help="where the samples go")
    parser.add_argument("--rounds", type=int, default=5, help="processes of each loop and cell (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=0.4, help="of each sample (default: %(default)s)")
    parser.add_argument("--loops", default=",".join(LOOPS), help="default: %(default)s")
    parser.add_argument("--here", choices=LOOPS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.cells = arguments.cells or list(CELLS)
    arguments.loops = arguments.loops.split(",")
    for given, known in ((arguments.cells, CELLS), (arguments.loops, LOOPS)):
        for name in given:
            if name not in known:
                parser.error(f"there is no {name!r}; there are {', '.join(known)}")
    if arguments.here:
        return measure_here(arguments.here, arguments.cells[0], arguments.seconds)
    if not arguments.output:
        parser.error("--output is missing")
    from ringlab import preflight  # It is in the environment that measures, and loops need not import it.

    if getattr(sys, "_is_gil_enabled", lambda: True)():
        remedy = "make figures TABLE=threads PYTHON=python3.14t VENV=.venv-3.14t"
        sys.exit(f"threads: {sys.executable} has a GIL, and this measures free-threaded CPython: {remedy}")
    for loop in arguments.loops:
        if problem := probe(loop):
            sys.exit(f"threads: {loop} can't be measured: {problem}; to leave it out, name the others with --loops")
    begun = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    here = dataclasses.asdict(preflight.environment(None))
    here["python"] += "t"
    found = {"environment": here, "run": {"begun": begun, "rounds": arguments.rounds}, "samples": measure(arguments)}
    here["load_average_end"] = list(os.getloadavg())
    arguments.output.write_text(json.dumps(found))
    return None


if __name__ == "__main__":
    main()
