"""The subjects of the measurements: the programs that run on an event loop, each in a fresh process of its own.

    subject.py LOOP probe                             say what the loop is
    subject.py LOOP micro NAME SECONDS SURROUNDINGS   time one operation again and again; SURROUNDINGS is a JSON object
                                                      of what the harness has made ready for it
    subject.py LOOP echo API [TRANSPORT ...]          serve echo until stdin ends; TRANSPORT is `tcp`, `unix PATH`,
                                                      `tls CERTIFICATE KEY` or `udp`
    subject.py LOOP http FRAMEWORK BODY               serve BODY with `uvicorn` or `aiohttp` until stdin ends

LOOP is `module:function`, whose result is a new event loop. Answers are JSON objects on stdout, one a line. This file
imports nothing of the harness, and of the loops only the one that it is asked for: what is in the process is what a
user would have. The garbage collector runs as Python has set it up, for the same reason.
"""

import asyncio
import collections
import contextlib
import functools
import importlib
import json
import os
import socket
import ssl
import statistics
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any

HOST = "127.0.0.1"
BACKLOG = 1024
# One whole message of the largest size in one call, and still below 128 KB, from where glibc maps and unmaps each
# object: an arm is measured, not malloc.
RECEIVE_BYTES = 102_400

Loop = asyncio.AbstractEventLoop
Figures = dict[str, float]
Measurement = Callable[[], Figures]


@dataclass(frozen=True)
class Surroundings:
    """The things that the harness has made ready for a cell that needs them."""

    port: int = 0
    """Of a server in C."""
    cpus: list[int] = field(default_factory=list)
    """The CPUs to stay on meanwhile."""
    certificate: str = ""
    key: str = ""


def nothing() -> None:
    """Do nothing, as the callback of the scheduling benchmarks."""


class WrongBehaviour(Exception):
    """A loop didn't do what the benchmark is about; its time would mean nothing."""


def require(condition: bool, expectation: str) -> None:
    """Raise WrongBehaviour unless `condition` holds."""
    if not condition:
        raise WrongBehaviour(f"not so: {expectation}")


def stay_on(cpus: list[int]) -> None:
    """Stay on these CPUs from now on."""
    if cpus:
        os.sched_setaffinity(0, cpus)


class Connected(asyncio.BaseProtocol):
    """Keeps its transport."""

    transport: Any

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport


class Clock:
    """Time as it passes, less the time in which this thread wanted to run and had no CPU, because others had them all.

    Unlike CPU time it holds whatever a loop chooses to sleep. Where the kernel doesn't count the waiting (no
    CONFIG_SCHED_INFO, see its Documentation/scheduler/sched-stats.rst), it is plain time.
    """

    def __init__(self) -> None:
        try:
            self.schedstat = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self.schedstat = -1

    def ns(self) -> int:
        """Return the time now; only differences have a meaning."""
        waited_ns = int(os.pread(self.schedstat, 100, 0).split()[1]) if self.schedstat >= 0 else 0
        return time.perf_counter_ns() - waited_ns

    def close(self) -> None:
        """Give the descriptor back: only for a clock that another one follows."""
        if self.schedstat >= 0:
            os.close(self.schedstat)


def timed(loop: Loop, clock: Clock, operations: Coroutine[Any, Any, object], count: int = 1) -> Figures:
    """Run a coroutine of `count` operations; return the time of one, and this process's CPU time."""
    begin_ns, cpu_begin_ns = clock.ns(), time.process_time_ns()
    loop.run_until_complete(operations)
    cpu_ns = time.process_time_ns() - cpu_begin_ns
    return {"operation_ns": (clock.ns() - begin_ns) / count, "cpu_ns": cpu_ns / count}


def listen(*, blocking: bool) -> socket.socket:
    """Return a listening socket with the options that every arm gets; accepted sockets inherit TCP_NODELAY from it."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listener.bind((HOST, 0))
    listener.listen(BACKLOG)
    listener.setblocking(blocking)
    return listener


# --- one operation: each prepares what it needs, checks that the loop does the work, and yields the measurement ---


def batches(loop: Loop, clock: Clock, count: int) -> Iterator[Measurement]:
    """Schedule `count` callbacks, then run them."""
    ran: list[int] = []
    for number in range(1000):
        loop.call_soon(ran.append, number)
    loop.call_soon(loop.stop)
    loop.run_forever()
    require(ran == list(range(1000)), "callbacks run once each, in the order of their scheduling")

    def measure() -> Figures:
        begin_ns = clock.ns()
        for _ in range(count):
            loop.call_soon(nothing)
        loop.call_soon(loop.stop)
        loop.run_forever()
        return {"operation_ns": (clock.ns() - begin_ns) / count}

    yield measure


def call_soon(loop: Loop, clock: Clock, _: Surroundings) -> Iterator[Measurement]:
    """Measure batches of 1,000 callbacks, whose objects stay in the CPU's cache."""
    yield from batches(loop, clock, 1_000)


def call_soon_50000(loop: Loop, clock: Clock, _: Surroundings) -> Iterator[Measurement]:
    """Measure a batch of 50,000 callbacks, whose objects come from memory and go back to it."""
    yield from batches(loop, clock, 50_000)


def iterations_until_served(loop: Loop) -> int:
    """Return for how many iterations of a busy loop a byte lies in a socket that the loop watches: the worst of four."""
    count, every = 10_000, 2_000
    passed, worst = 0, -1
    sent_at = -1  # The iteration in which a byte was sent that hasn't been read.
    reading, writing = socket.socketpair()
    reading.setblocking(False)

    def serve() -> None:
        nonlocal sent_at, worst
        reading.recv(1)
        worst = max(worst, passed - sent_at)
        sent_at = -1

    def step() -> None:
        nonlocal sent_at, passed
        passed += 1
        if passed == count:
            loop.stop()
            return
        if passed % every == 0 and sent_at < 0:
            sent_at = passed
            writing.send(b"x")
        loop.call_soon(step)

    with reading, writing:
        loop.add_reader(reading.fileno(), serve)
        loop.call_soon(step)
        loop.run_forever()
        loop.remove_reader(reading.fileno())
    require(worst >= 0, "a watched socket is served while callbacks keep the loop busy")
    return worst


def chain(loop: Loop, clock: Clock, _: Surroundings) -> Iterator[Measurement]:
    """Measure 10,000 callbacks that reschedule themselves, one per iteration, beside an idle listening socket.

    The socket is no decoration: a connection that comes during the chain must be accepted during the chain.
    """
    count = 10_000
    served_after = iterations_until_served(loop)
    accepted: list[asyncio.BaseTransport] = []

    class Accept(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            accepted.append(transport)

    listener = listen(blocking=False)
    address = listener.getsockname()
    server = loop.run_until_complete(loop.create_server(Accept, sock=listener))

    def measure() -> Figures:
        left = count

        def step() -> None:
            nonlocal left
            left -= 1
            if left:
                loop.call_soon(step)
            else:
                loop.stop()

        begin_ns = clock.ns()
        loop.call_soon(step)
        loop.run_forever()
        return {"operation_ns": (clock.ns() - begin_ns) / count, "iterations_until_served": served_after}

    with socket.create_connection(address):
        measure()
        require(len(accepted) == 1, "a connection is accepted while a chain of callbacks runs")
        for transport in accepted:
            transport.close()
    yield measure
    server.close()


def chains(loop: Loop, clock: Clock, _: Surroundings) -> Iterator[Measurement]:
    """Measure 100 chains of callbacks that schedule their successor, side by side, 500 links long: 100 callbacks an iteration."""
    side_by_side, count = 100, 50_000

    def measure() -> Figures:
        left = count

        def link() -> None:
            nonlocal left
            left -= 1
            if left >= side_by_side:
                loop.call_soon(link)
            elif not left:
                loop.stop()

        begin_ns = clock.ns()
        for _ in range(side_by_side):
            loop.call_soon(link)
        loop.run_forever()
        end_ns = clock.ns()
        require(left == 0, "every link runs once before the loop stops")
        return {"operation_ns": (end_ns - begin_ns) / count}

    yield measure


def timer_delays_s(count: int) -> list[float]:
    """Return delays of 0 to 9 ms, mixed, the same for every arm."""
    return [index * 7 % 10 / 1000 for index in range(count)]


def timers(loop: Loop, clock: Clock, _: Surroundings) -> Iterator[Measurement]:
    """Measure 5,000 call_later of 0 to 9 ms: what it costs to insert them, and to run them once they are due; nothing waits."""
    count = 5_000
    delays = timer_delays_s(count)
    ran: list[int] = []
    for number in range(100):
        loop.call_later(delays[number], ran.append, number)
    # Far apart, because uvloop starts each timer at the millisecond of its insertion, and this process may lose its CPU.
    for delay_ms in (120, 40, 80):
        loop.call_later(delay_ms / 1000, ran.append, delay_ms * 1000)
    loop.call_later(0.16, loop.stop)
    loop.run_forever()
    require(sorted(ran[:-3]) == list(range(100)), "each timer fires once")
    require(ran[-3:] == [40_000, 80_000, 120_000], "timers fire in the order of their times")

    def measure() -> Figures:
        begin_ns = clock.ns()
        for delay in delays:
            loop.call_later(delay, nothing)
        inserted_ns = clock.ns()
        loop.call_later(0.0095, loop.stop)
        time.sleep(0.012)  # Everything is due when the loop runs next.
        due_ns = clock.ns()
        loop.run_forever()
        fired_ns = clock.ns()
        insert, fire = (inserted_ns - begin_ns) / count, (fired_ns - due_ns) / count
        return {"operation_ns": insert + fire, "insert_ns": insert, "fire_ns": fire}

    yield measure


def timer_lateness(loop: Loop, _clock: Clock, _: Surroundings) -> Iterator[Measurement]:
    """Measure 5,000 call_later of 0 to 9 ms: how long after its time each runs, and the CPU time in all."""
    count = 5_000
    delays = timer_delays_s(count)

    def measure() -> Figures:
        lateness_ns: list[int] = []

        def fire(due_ns: int) -> None:
            lateness_ns.append(time.perf_counter_ns() - due_ns)

        cpu_begin_ns = time.process_time_ns()
        for delay in delays:
            loop.call_later(delay, fire, time.perf_counter_ns() + int(delay * 1e9))
        loop.call_later(0.03, loop.stop)
        loop.run_forever()
        cpu_ns = time.process_time_ns() - cpu_begin_ns
        require(len(lateness_ns) == count, "each timer fires once")
        lateness_ns.sort()
        return {
            "lateness_us": lateness_ns[count // 2] / 1000,
            "lateness_us_p99": lateness_ns[count * 99 // 100] / 1000,
            "earliest_us": lateness_ns[0] / 1000,  # Below 0 where a loop counts in milliseconds.
            "cpu_ns": cpu_ns / count,
        }

    yield measure


def timers_cancel(loop: Loop, clock: Clock, _: Surroundings) -> Iterator[Measurement]:
    """Measure 10,000 times call_later and cancel, then one iteration of the loop, which gets to clean up."""
    count = 10_000
    ran: list[int] = []
    loop.call_later(0.001, ran.append, 1).cancel()
    loop.call_later(0.005, loop.stop)
    loop.run_forever()
    require(not ran, "a cancelled timer doesn't fire")

    def measure() -> Figures:
        begin_ns = clock.ns()
        for index in range(count):
            loop.call_later(60 + index % 10, nothing).cancel()
        loop.call_soon(loop.stop)
        loop.run_forever()
        return {"operation_ns": (clock.ns() - begin_ns) / count}

    yield measure


def threadsafe(loop: Loop, clock: Clock, _: Surroundings) -> Iterator[Measurement]:
    """Measure 10,000 call_soon_threadsafe from another thread, while the loop runs; to the last callback's run."""
    count = 10_000

    def race(callback: Callable[[], object]) -> Figures:
        begin_ns = cpu_begin_ns = 0

        def feed() -> None:
            for _ in range(count):
                loop.call_soon_threadsafe(callback)
            loop.call_soon_threadsafe(loop.stop)

        def start() -> None:
            nonlocal begin_ns, cpu_begin_ns
            begin_ns, cpu_begin_ns = clock.ns(), time.process_time_ns()
            thread.start()

        thread = threading.Thread(target=feed)
        loop.call_soon(start)
        loop.run_forever()
        end_ns, cpu_end_ns = clock.ns(), time.process_time_ns()
        thread.join()
        return {"operation_ns": (end_ns - begin_ns) / count, "cpu_ns": (cpu_end_ns - cpu_begin_ns) / count}

    ran: list[None] = []
    race(lambda: ran.append(None))
    require(len(ran) == count, "every call_soon_threadsafe runs once")
    yield lambda: race(nothing)


def flood(loop: Loop, _clock: Clock, _: Surroundings) -> Iterator[Measurement]:
    """Measure four threads that do nothing but post callbacks for 0.3 s: how late a tick of every 10 ms comes, how long a post takes, and
    how many callbacks run."""
    seconds, interval = 0.3, 0.01
    ran = 0

    def run() -> None:
        nonlocal ran
        ran += 1

    def post(posted: list[int], longest: list[float]) -> None:
        now = time.perf_counter()
        deadline = now + seconds
        count, longest_s = 0, 0.0
        while now < deadline:
            loop.call_soon_threadsafe(run)
            count += 1
            before, now = now, time.perf_counter()
            longest_s = max(longest_s, now - before)
        longest.append(longest_s)
        posted.append(count)

    def measure() -> Figures:
        nonlocal ran
        ran = 0
        lateness: list[float] = []
        posted: list[int] = []
        longest: list[float] = []
        threads = [threading.Thread(target=post, args=(posted, longest)) for _ in range(4)]

        def tick(due: float) -> None:
            now = time.perf_counter()
            lateness.append(now - due)
            if len(posted) < len(threads) or ran < sum(posted):
                loop.call_later(interval, tick, now + interval)
            else:
                loop.stop()

        def start() -> None:
            for thread in threads:
                thread.start()
            loop.call_later(interval, tick, time.perf_counter() + interval)

        begin = time.perf_counter()
        loop.call_soon(start)
        loop.run_forever()
        elapsed = time.perf_counter() - begin
        for thread in threads:
            thread.join()
        require(ran == sum(posted), "every call_soon_threadsafe runs once")
        lateness.sort()
        return {
            "late_ms_max": lateness[-1] * 1e3,
            "late_ms_p50": lateness[len(lateness) // 2] * 1e3,
            "post_ms_max": max(longest) * 1e3,
            "callbacks_per_s": ran / elapsed,
        }

    yield measure


def post_without_loop(loop: Loop, _clock: Clock, _: Surroundings) -> Iterator[Measurement]:
    """Measure a thread that posts 20,000 callbacks while a callback waits for it outside the GIL, and as many before the loop runs: the
    longest post, and the average one."""
    count = 20_000
    ran = 0

    def run() -> None:
        nonlocal ran
        ran += 1

    def post(begin: threading.Event, posted: threading.Event, figures: Figures, kind: str) -> None:
        begin.wait()
        clock = Clock()  # Of this thread.
        begin_ns, longest_ns = clock.ns(), 0
        now_ns = time.perf_counter_ns()
        for _ in range(count):
            loop.call_soon_threadsafe(run)
            before_ns, now_ns = now_ns, time.perf_counter_ns()
            longest_ns = max(longest_ns, now_ns - before_ns)
        figures[f"{kind}_ns"] = (clock.ns() - begin_ns) / count
        figures[f"{kind}_ms_max"] = longest_ns / 1e6
        clock.close()
        posted.set()

    def measure() -> Figures:
        nonlocal ran
        ran = 0
        figures: Figures = {}
        for kind in ("stopped", "waiting"):
            begin, posted = threading.Event(), threading.Event()
            thread = threading.Thread(target=post, args=(begin, posted, figures, kind))
            thread.start()
            if kind == "stopped":
                begin.set()
                thread.join()
            else:
                loop.call_soon(begin.set)
                loop.call_soon(posted.wait)
            loop.call_soon_threadsafe(loop.stop)
            loop.run_forever()
            # What was posted while the last callback waited.
            loop.call_soon(loop.stop)
            loop.run_forever()
            thread.join()
        require(ran == 2 * count, "every call_soon_threadsafe runs once")
        return figures

    yield measure


def accept_while_busy(loop: Loop, clock: Clock, _: Surroundings) -> Iterator[Measurement]:
    """Measure a hundred clients in each iteration of a loop that is never idle: how many of them wait, at most and on average."""
    iterations, clients_each, clients_kept = 30, 100, 300
    made = 0

    class Accepted(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            nonlocal made
            made += 1

    async def come(address: tuple[str, int]) -> list[int]:
        nonlocal made
        made = 0
        clients: collections.deque[socket.socket] = collections.deque()
        behind: list[int] = []
        for come in range(clients_each, (iterations + 1) * clients_each, clients_each):
            clients.extend(socket.create_connection(address, 10) for _ in range(clients_each))
            while len(clients) > clients_kept:
                clients.popleft().close()
            await asyncio.sleep(0)
            behind.append(come - made)
        while made < come:
            await asyncio.sleep(0)
        for client in clients:
            client.close()
        return behind

    # As many as ever come: none of them is refused, however many wait.
    serving = loop.create_server(Accepted, HOST, 0, backlog=iterations * clients_each)
    created = loop.run_until_complete(serving)
    address = created.sockets[0].getsockname()

    def measure() -> Figures:
        begin_ns = clock.ns()
        behind = loop.run_until_complete(come(address))
        each_ns = (clock.ns() - begin_ns) / (iterations * clients_each)
        return {"behind_max": max(behind), "behind_mean": sum(behind) / len(behind), "operation_ns": each_ns}

    yield measure
    created.close()


def gather(loop: Loop, clock: Clock, _: Surroundings) -> Iterator[Measurement]:
    """Measure asyncio.gather of 1,000 tasks that each sleep(0) once."""
    count = 1_000

    async def once(number: int) -> int:
        await asyncio.sleep(0)
        return number

    async def everything() -> list[int]:
        return await asyncio.gather(*[once(number) for number in range(count)])

    require(loop.run_until_complete(everything()) == list(range(count)), "gather returns the results in order")
    yield lambda: timed(loop, clock, everything(), count)


def futures(loop: Loop, clock: Clock, _: Surroundings) -> Iterator[Measurement]:
    """Make a future, have a callback set its result, and await it: 2,000 times one after the other."""
    count = 2_000

    async def many() -> int:
        total = 0
        for _ in range(count):
            future: asyncio.Future[int] = loop.create_future()
            loop.call_soon(future.set_result, 1)
            total += await future
        return total

    require(loop.run_until_complete(many()) == count, "a future gives the result that was set")
    yield lambda: timed(loop, clock, many(), count)


def executor(loop: Loop, clock: Clock, _: Surroundings) -> Iterator[Measurement]:
    """Measure run_in_executor of a function that returns at once, awaited: 200 times one after the other."""
    count = 200
    ran_in = loop.run_until_complete(loop.run_in_executor(None, threading.get_ident))
    require(ran_in != threading.get_ident(), "run_in_executor runs in another thread")

    async def many() -> None:
        for _ in range(count):
            await loop.run_in_executor(None, nothing)

    yield lambda: timed(loop, clock, many(), count)
    loop.run_until_complete(loop.shutdown_default_executor())


def server(loop: Loop, clock: Clock, _: Surroundings) -> Iterator[Measurement]:
    """Measure create_server on 127.0.0.1, port 0, which listens when it returns; then close."""
    count = 100

    async def once() -> None:
        created = await loop.create_server(asyncio.Protocol, HOST, 0, backlog=BACKLOG)
        created.close()
        await created.wait_closed()

    async def many() -> None:
        for _ in range(count):
            await once()

    async def check() -> None:
        created = await loop.create_server(asyncio.Protocol, HOST, 0, backlog=BACKLOG)
        address = created.sockets[0].getsockname()
        socket.create_connection(address).close()
        created.close()
        await created.wait_closed()
        await asyncio.sleep(0)
        try:
            socket.create_connection(address).close()
        except ConnectionRefusedError:
            return
        require(False, "a server listens when create_server returns, and no longer after close")

    loop.run_until_complete(check())
    yield lambda: timed(loop, clock, many(), count)


def connect(loop: Loop, clock: Clock, surroundings: Surroundings) -> Iterator[Measurement]:
    """Measure create_connection to a server in C in another process, close, wait for connection_lost: the client's cost."""
    port = surroundings.port
    lost: asyncio.Future[None]

    class Client(asyncio.Protocol):
        def connection_lost(self, error: Exception | None) -> None:
            lost.set_result(None)

    async def many(count: int) -> None:
        nonlocal lost
        for _ in range(count):
            lost = loop.create_future()
            transport, _ = await loop.create_connection(Client, HOST, port)
            transport.close()
            await lost

    loop.run_until_complete(many(1))
    # Only now that the loop has run: one that looks how many CPUs it may use must see them all.
    stay_on(surroundings.cpus)
    yield lambda: timed(loop, clock, many(100), 100)


def getaddrinfo(loop: Loop, clock: Clock, _: Surroundings) -> Iterator[Measurement]:
    """Measure getaddrinfo of an address literal, and the C library's own beside it."""
    count = 1_000
    arguments = ("127.0.0.1", 80)

    async def many() -> None:
        for _ in range(count):
            await loop.getaddrinfo(*arguments, type=socket.SOCK_STREAM)

    answered = loop.run_until_complete(loop.getaddrinfo(*arguments, type=socket.SOCK_STREAM))
    expected = socket.getaddrinfo(*arguments, type=socket.SOCK_STREAM)
    require(answered == expected, "getaddrinfo answers as the socket module's")

    def measure() -> Figures:
        begin_ns = clock.ns()
        loop.run_until_complete(many())
        end_ns = clock.ns()
        for _ in range(count):
            socket.getaddrinfo(*arguments, type=socket.SOCK_STREAM)
        return {"operation_ns": (end_ns - begin_ns) / count, "raw_ns": (clock.ns() - end_ns) / count}

    yield measure


def spawn(loop: Loop, clock: Clock, _: Surroundings) -> Iterator[Measurement]:
    """Measure create_subprocess_exec of /bin/true, and wait for it."""
    count = 20

    async def once(program: str) -> int:
        process = await asyncio.create_subprocess_exec(program)
        return await process.wait()

    async def many() -> None:
        for _ in range(count):
            await once("/bin/true")

    require(loop.run_until_complete(once("/bin/false")) == 1, "the status of a child is its own")

    yield lambda: timed(loop, clock, many(), count)


def read_child(loop: Loop, clock: Clock, _: Surroundings) -> Iterator[Measurement]:
    """Read 10 MB from a child's stdout."""
    size = 10_000_000

    async def once() -> None:
        process = await asyncio.create_subprocess_exec(
            "head", "-c", str(size), "/dev/zero", stdout=asyncio.subprocess.PIPE
        )
        output, _ = await process.communicate()
        require(len(output) == size and process.returncode == 0, "all of a child's output is read")

    yield lambda: timed(loop, clock, once())


def sendfile(loop: Loop, clock: Clock, surroundings: Surroundings) -> Iterator[Measurement]:
    """Measure loop.sendfile of 10 MB to a program in C that reads and forgets it."""
    size = 10_000_000
    with tempfile.TemporaryFile() as file:
        file.write(os.urandom(size))
        file.flush()
        transport, _ = loop.run_until_complete(loop.create_connection(asyncio.Protocol, HOST, surroundings.port))

        async def once() -> None:
            require(await loop.sendfile(transport, file) == size, "all of the file is sent")

        def measure() -> Figures:
            return timed(loop, clock, once())

        measure()
        stay_on(surroundings.cpus)
        yield measure
        transport.close()


def communicate(loop: Loop, clock: Clock, _: Surroundings) -> Iterator[Measurement]:
    """Give a child 10 MB and read them back from it, by communicate()."""
    data = os.urandom(10_000_000)

    async def once() -> None:
        process = await asyncio.create_subprocess_exec(
            "cat", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        output, _ = await process.communicate(data)
        require(output == data and process.returncode == 0, "all that a child is given comes back")

    yield lambda: timed(loop, clock, once())


def read_pipe(loop: Loop, clock: Clock, _: Surroundings) -> Iterator[Measurement]:
    """Measure connect_read_pipe: a message of 1 KB that the same thread writes into the pipe, until the protocol has it."""
    count, message = 500, os.urandom(1024)
    received = bytearray()
    arrived: asyncio.Future[None]

    class Reader(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            received.extend(data)
            if len(received) == len(message):
                arrived.set_result(None)

    reading, writing = os.pipe()
    transport, _protocol = loop.run_until_complete(loop.connect_read_pipe(Reader, os.fdopen(reading, "rb", 0)))

    async def many() -> None:
        nonlocal arrived
        for _ in range(count):
            received.clear()
            arrived = loop.create_future()
            os.write(writing, message)
            await arrived

    def measure() -> Figures:
        return timed(loop, clock, many(), count)

    measure()
    require(received == message, "what is written into a pipe is read from it")
    yield measure
    transport.close()
    os.close(writing)
    loop.run_until_complete(asyncio.sleep(0))


def write_pipe(loop: Loop, clock: Clock, _: Surroundings) -> Iterator[Measurement]:
    """Measure connect_write_pipe: a message of 1 KB, which the same thread reads from the pipe when the loop has had a turn."""
    count, message = 500, os.urandom(1024)
    reading, writing = os.pipe()
    transport, _protocol = loop.run_until_complete(
        loop.connect_write_pipe(asyncio.BaseProtocol, os.fdopen(writing, "wb", 0))
    )

    async def many() -> None:
        for _ in range(count):
            transport.write(message)
            await asyncio.sleep(0)
            require(os.read(reading, 2048) == message, "what is written to a pipe's transport is in the pipe")

    yield lambda: timed(loop, clock, many(), count)
    transport.close()
    loop.run_until_complete(asyncio.sleep(0))
    os.close(reading)


def sock_connect(loop: Loop, clock: Clock, surroundings: Surroundings) -> Iterator[Measurement]:
    """Measure sock_connect to a server in C in another process, and close."""
    count = 100
    address = (HOST, surroundings.port)

    async def many() -> None:
        for _ in range(count):
            client = socket.socket()
            client.setblocking(False)
            await loop.sock_connect(client, address)
            client.close()

    async def check() -> None:
        with socket.socket() as client:
            client.setblocking(False)
            await loop.sock_connect(client, address)
            require(client.getpeername() == address, "sock_connect returns when the socket is connected")

    loop.run_until_complete(check())
    stay_on(surroundings.cpus)
    yield lambda: timed(loop, clock, many(), count)


def sock_accept(loop: Loop, clock: Clock, _: Surroundings) -> Iterator[Measurement]:
    """Measure sock_accept of connections that the same thread makes before it waits, and close both ends."""
    count = 100
    listener = listen(blocking=False)
    address = listener.getsockname()

    async def many() -> None:
        for _ in range(count):
            client = socket.create_connection(address)
            # A reset leaves no TIME_WAIT behind, which would hold a port for a minute.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection, peer = await loop.sock_accept(listener)
            require(peer == client.getsockname(), "sock_accept returns who has connected")
            connection.close()
            client.close()

    yield lambda: timed(loop, clock, many(), count)
    listener.close()


def round_trips(
    loop: Loop, clock: Clock, count: int, message: bytes,
    server_context: ssl.SSLContext | None = None, client_context: ssl.SSLContext | None = None,
) -> Iterator[Measurement]:  # fmt: skip
    """Measure a message there and back between two protocols of one loop, `count` times."""
    received = bytearray()
    left = 0
    done: asyncio.Future[None]

    class Client(Connected, asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            nonlocal left
            received.extend(data)
            if len(received) < len(message):
                return
            if received != message:
                done.set_exception(WrongBehaviour("an echo differs from what was sent"))
                return
            received.clear()
            left -= 1
            if left:
                self.transport.write(message)
            else:
                done.set_result(None)

    async def many(client: Client) -> None:
        nonlocal done, left
        done, left = loop.create_future(), count
        client.transport.write(message)
        await done

    listener = listen(blocking=False)
    port = listener.getsockname()[1]
    server = loop.run_until_complete(loop.create_server(EchoProtocol, sock=listener, ssl=server_context))
    connecting = loop.create_connection(Client, HOST, port, ssl=client_context)
    transport, client = loop.run_until_complete(connecting)
    yield lambda: timed(loop, clock, many(client), count)
    transport.close()
    server.close()


def ping_pong(loop: Loop, clock: Clock, _: Surroundings) -> Iterator[Measurement]:
    """Measure 64 bytes there and back over TCP, client and server in one loop."""
    yield from round_trips(loop, clock, 1_000, bytes(range(64)))


def tls_one_loop(loop: Loop, clock: Clock, surroundings: Surroundings) -> Iterator[Measurement]:
    """Measure 1 KB there and back under TLS, client and server in one loop."""
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(surroundings.certificate, surroundings.key)
    client_context = ssl.create_default_context(cafile=surroundings.certificate)
    yield from round_trips(loop, clock, 200, os.urandom(1024), server_context, client_context)


def requests_over_streams(
    loop: Loop, clock: Clock, request: bytes, answer_one: Callable[[asyncio.StreamReader], Coroutine[Any, Any, bytes]]
) -> Iterator[Measurement]:
    """Measure requests to a server made of streams, on 20 connections. The clients are protocols in the same loop."""
    connections, count, response = 20, 2000, b"+OK\r\n"
    left = 0
    done: asyncio.Future[None]

    class Client(Connected, asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            nonlocal left
            if data != response:
                done.set_exception(WrongBehaviour("a response is wrong"))
                return
            left -= 1
            if left >= connections:
                self.transport.write(request)
            elif left == 0:
                done.set_result(None)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(EOFError):
            while await answer_one(reader) in request:
                writer.write(response)
                await writer.drain()
        writer.close()

    async def many() -> None:
        nonlocal done, left
        done, left = loop.create_future(), count
        for client in clients:
            client.transport.write(request)
        await done

    async def connect() -> list[Client]:
        return [(await loop.create_connection(Client, *address))[1] for _ in range(connections)]

    server = loop.run_until_complete(asyncio.start_server(serve, sock=listen(blocking=False)))
    address = server.sockets[0].getsockname()[:2]
    clients = loop.run_until_complete(connect())

    yield lambda: timed(loop, clock, many(), count)
    for client in clients:
        client.transport.close()
    server.close()


def read_lines(loop: Loop, clock: Clock, _: Surroundings) -> Iterator[Measurement]:
    """Measure a request of two lines, as those of Redis."""

    async def answer_one(reader: asyncio.StreamReader) -> bytes:
        if not await reader.readline():
            raise EOFError
        return await reader.readline()

    yield from requests_over_streams(loop, clock, b"$11\r\nhello world\r\n", answer_one)


def read_exactly(loop: Loop, clock: Clock, _: Surroundings) -> Iterator[Measurement]:
    """Measure a request of a length and as many bytes."""

    async def answer_one(reader: asyncio.StreamReader) -> bytes:
        length = int.from_bytes(await reader.readexactly(4), "big")
        return await reader.readexactly(length)

    yield from requests_over_streams(loop, clock, (100).to_bytes(4, "big") + bytes(100), answer_one)


MICRO = {
    function.__name__: contextlib.contextmanager(function)
    for function in (
        call_soon, call_soon_50000, chain, chains, timers, timer_lateness, timers_cancel, threadsafe, flood, post_without_loop,
        accept_while_busy, gather, futures, executor, server, connect, getaddrinfo, spawn, read_child, communicate, read_pipe,
        write_pipe, sock_connect, sock_accept, sendfile, tls_one_loop, ping_pong, read_lines, read_exactly,
    )
}  # fmt: skip


def repeat(measure: Measurement, seconds: float) -> Figures:
    """Measure for `seconds`, at least three times and after a warm-up, and return the median of each figure."""
    measure()
    samples: list[Figures] = []
    begin = time.perf_counter()
    while len(samples) < 3 or time.perf_counter() - begin < seconds:
        samples.append(measure())
    return {name: statistics.median(sample[name] for sample in samples) for name in samples[0]} | {
        "repetitions": len(samples)
    }


# --- echo servers: each is a coroutine that serves `listener` until it is cancelled ---


class EchoProtocol(Connected, asyncio.Protocol):
    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


class EchoBufferedProtocol(Connected, asyncio.BufferedProtocol):
    def __init__(self) -> None:
        self.buffer = memoryview(bytearray(RECEIVE_BYTES))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        # A copy: a transport may keep what the socket doesn't take at once, and the next bytes go into the same buffer.
        self.transport.write(bytes(self.buffer[:nbytes]))


async def keep(created: asyncio.AbstractServer) -> None:
    """Hold on to a server, which serves since it was made; serve_forever makes that of rloop 0.5.0 stop listening."""
    await asyncio.get_running_loop().create_future()
    created.close()


Options = dict[str, Any]
"""Arguments that go to create_server with the listener: under TLS, the context."""


async def serve_transports(factory: Callable[[], asyncio.BaseProtocol], listener: socket.socket, more: Options) -> None:
    loop = asyncio.get_running_loop()
    create = loop.create_unix_server if listener.family == socket.AF_UNIX else loop.create_server
    await keep(await create(factory, sock=listener, backlog=BACKLOG, **more))


async def serve_streams(listener: socket.socket, more: Options) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(RECEIVE_BYTES):
            writer.write(data)
            await writer.drain()
        writer.close()

    start = asyncio.start_unix_server if listener.family == socket.AF_UNIX else asyncio.start_server
    await keep(await start(echo, sock=listener, backlog=BACKLOG, **more))


async def serve_sock(listener: socket.socket, _: Options) -> None:
    loop = asyncio.get_running_loop()

    async def echo(connection: socket.socket) -> None:
        with connection:
            while data := await loop.sock_recv(connection, RECEIVE_BYTES):
                await loop.sock_sendall(connection, data)

    tasks: set[asyncio.Task[None]] = set()
    while True:
        connection, _ = await loop.sock_accept(listener)
        connection.setblocking(False)
        task = loop.create_task(echo(connection))
        tasks.add(task)
        task.add_done_callback(tasks.discard)


class EchoDatagrams(Connected, asyncio.DatagramProtocol):
    def datagram_received(self, data: bytes, address: Any) -> None:
        self.transport.sendto(data, address)


async def serve_datagrams(bound: socket.socket, _: Options) -> None:
    loop = asyncio.get_running_loop()
    transport, _protocol = await loop.create_datagram_endpoint(EchoDatagrams, sock=bound)
    await loop.create_future()
    transport.close()


ECHO: dict[str, Callable[[socket.socket, Options], Coroutine[Any, Any, None]]] = {
    "protocol": functools.partial(serve_transports, EchoProtocol),
    "buffered": functools.partial(serve_transports, EchoBufferedProtocol),
    "streams": serve_streams,
    "sock": serve_sock,
    "datagrams": serve_datagrams,
}


def prepare_echo(transport: list[str]) -> tuple[socket.socket, Options, int]:
    """Return the socket to serve, what create_server needs besides, and the port."""
    more: Options = {}
    match transport:
        case [] | ["tcp"]:
            listener = listen(blocking=False)
        case ["tls", certificate, key]:
            listener = listen(blocking=False)
            more["ssl"] = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            more["ssl"].load_cert_chain(certificate, key)
        case ["unix", path]:
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            listener.bind(path)
            listener.listen(BACKLOG)
            listener.setblocking(False)
            return listener, more, 0
        case ["udp"]:
            listener = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            listener.bind((HOST, 0))
            listener.setblocking(False)
        case _:
            sys.exit(f"subject.py: there is no transport {' '.join(transport)}")
    return listener, more, listener.getsockname()[1]


# --- HTTP servers: each serves `listener` with the same body for every request, until the process ends ---


def serve_uvicorn(specification: str, listener: socket.socket, body: bytes) -> None:
    import uvicorn

    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]

    async def application(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            answer({"port": listener.getsockname()[1]})
            await receive()
            return
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    config = uvicorn.Config(
        application, http="httptools", ws="none", loop=specification, lifespan="on", access_log=False,
        log_level="warning", backlog=BACKLOG,
    )  # fmt: skip
    uvicorn.Server(config).run(sockets=[listener])


def serve_aiohttp(specification: str, listener: socket.socket, body: bytes) -> None:
    from aiohttp import web

    async def hello(_: web.Request) -> web.Response:
        return web.Response(body=body, content_type="text/plain", charset="utf-8")

    async def serve() -> None:
        application = web.Application()
        application.router.add_get("/", hello)
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        await web.SockSite(runner, listener, backlog=BACKLOG).start()
        answer({"port": listener.getsockname()[1]})
        await asyncio.get_running_loop().create_future()

    with asyncio.Runner(loop_factory=lambda: new_loop(specification)) as runner:
        runner.run(serve())


HTTP: dict[str, Callable[[str, socket.socket, bytes], None]] = {"uvicorn": serve_uvicorn, "aiohttp": serve_aiohttp}


def end_with_stdin() -> None:
    """End the process when stdin does: whoever started it has gone, or wants it gone. Until then the thread sleeps."""

    def wait() -> None:
        while os.read(0, 4096):
            pass
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()


# --- the program ---


def import_loop(specification: str) -> Callable[[], Loop]:
    """Return the function that `module:function` names."""
    module, _, function = specification.partition(":")
    found: Callable[[], Loop] = getattr(importlib.import_module(module), function)
    return found


def new_loop(specification: str) -> Loop:
    """Call `module:function`."""
    return import_loop(specification)()


def probe(loop: Loop) -> dict[str, object]:
    """Return what there is to say about a loop, for the record."""
    kind = type(loop)
    return {
        "class": f"{kind.__module__}.{kind.__qualname__}",
        "backend": getattr(loop, "backend", None),
        "backend_reason": getattr(loop, "backend_reason", None),
    }


def answer(value: object) -> None:
    """Print one JSON object for the harness."""
    print(json.dumps(value), flush=True)


def main(arguments: list[str]) -> None:
    """Do what the module's docstring says."""
    match arguments:
        case [specification, "probe"]:
            loop = new_loop(specification)
            answer(probe(loop))
            loop.close()
        case [specification, "micro", name, seconds, surroundings]:
            loop = new_loop(specification)
            asyncio.set_event_loop(loop)  # As under asyncio.Runner.
            with MICRO[name](loop, Clock(), Surroundings(**json.loads(surroundings))) as measure:
                answer(repeat(measure, float(seconds)))
            loop.close()
        case [specification, "echo", api, *transport]:
            end_with_stdin()
            import_loop(specification)  # First, because rsloop must see a certificate being loaded.
            listener, more, port = prepare_echo(transport)
            with asyncio.Runner(loop_factory=lambda: new_loop(specification)) as runner:
                runner.get_loop().call_soon(answer, {"port": port})
                runner.run(ECHO[api](listener, more))
        case [specification, "http", framework, body]:
            end_with_stdin()
            HTTP[framework](specification, listen(blocking=False), body.encode())
        case _:
            sys.exit(
                "usage: subject.py MODULE:FUNCTION probe | micro NAME SECONDS SURROUNDINGS | echo API [TRANSPORT ...]"
                " | http FRAMEWORK BODY"
            )


if __name__ == "__main__":
    main(sys.argv[1:])
