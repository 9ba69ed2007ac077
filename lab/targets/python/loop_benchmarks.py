"""What ringlab times on an event loop of Python. Each benchmark checks that the loop does the work before it is timed.

A benchmark is a context manager: it prepares what it needs, and gives a function that does the work once and returns how
many operations that were and how many nanoseconds they took. No two of them time the same code, and where a loop could
look good by not looking at its sockets, one is open and must be served.
"""

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

Loop = asyncio.AbstractEventLoop
Round = tuple[int, int]
"""Operations, and the nanoseconds that they took together."""
Figures = dict[str, list[float]]
"""What a benchmark tells besides, a value for each round; the median is reported."""
Benchmark = Callable[[Loop, Figures], contextlib.AbstractContextManager[Callable[[], Round]]]

now_ns = time.perf_counter_ns


class WrongBehaviour(Exception):
    """A loop didn't do what the benchmark is about; its time would mean nothing."""


def require(condition: bool, expectation: str) -> None:
    """Raise WrongBehaviour unless `condition` holds."""
    if not condition:
        raise WrongBehaviour(f"not so: {expectation}")


def nothing() -> None:
    """The callback that costs the least."""


def run_once(loop: Loop) -> None:
    """Run what is scheduled now, and stop."""
    loop.call_soon(loop.stop)
    loop.run_forever()


# --- callbacks ---


@contextlib.contextmanager
def call_soon(loop: Loop, _: Figures) -> Iterator[Callable[[], Round]]:
    """Schedule 1,000 callbacks, and run them, all in one iteration: so many that iterations count little, and that caches hold them.

    Of 50,000 at once, which no program has, memory is measured: the same loop took 190 to 300 ns each, depending on the second.
    """
    batches, count = 50, 1000
    ran: list[int] = []
    for number in range(1000):
        loop.call_soon(ran.append, number)
    run_once(loop)
    require(ran == list(range(1000)), "callbacks run once each, in the order of their scheduling")

    def measure() -> Round:
        begin_ns = now_ns()
        for _ in range(batches):
            for _ in range(count):
                loop.call_soon(nothing)
            run_once(loop)
        return batches * count, now_ns() - begin_ns

    yield measure


@contextlib.contextmanager
def call_soon_chain(loop: Loop, _: Figures) -> Iterator[Callable[[], Round]]:
    """100 chains of callbacks that schedule their successor, side by side, 500 links long: 100 callbacks an iteration."""
    chains, links = 100, 500

    def measure() -> Round:
        left = chains * links

        def link() -> None:
            nonlocal left
            left -= 1
            if left >= chains:
                loop.call_soon(link)
            elif not left:
                loop.stop()

        begin_ns = now_ns()
        for _ in range(chains):
            loop.call_soon(link)
        loop.run_forever()
        taken_ns = now_ns() - begin_ns
        require(left == 0, "every link runs once before the loop stops")
        return chains * links, taken_ns

    measure()
    yield measure


@contextlib.contextmanager
def iteration(loop: Loop, figures: Figures) -> Iterator[Callable[[], Round]]:
    """10,000 iterations of one callback each, while a socket is watched, becomes readable now and then, and is served.

    A loop that runs callbacks without looking at its sockets is found out: `iterations_until_served` says after how many
    iterations a byte that had arrived was read (the worst of the round).
    """
    count, every = 10_000, 2_000
    reading, writing = socket.socketpair()
    reading.setblocking(False)
    sent_at = -1  # The iteration in which a byte was sent that hasn't been read.
    passed = served = worst = 0

    def serve() -> None:
        nonlocal sent_at, served, worst
        reading.recv(1)
        served += 1
        worst = max(worst, passed - sent_at)
        sent_at = -1

    def measure() -> Round:
        nonlocal passed, served, worst
        passed, served, worst = 0, 0, 0

        def step() -> None:
            nonlocal sent_at, passed
            passed += 1
            if passed % every == 0 and passed < count and sent_at < 0:
                sent_at = passed
                writing.send(b"x")
            if passed < count:
                loop.call_soon(step)
            else:
                loop.stop()

        begin_ns = now_ns()
        loop.call_soon(step)
        loop.run_forever()
        taken_ns = now_ns() - begin_ns
        require(served > 0, "a watched socket is served while callbacks keep the loop busy")
        figures.setdefault("iterations_until_served", []).append(worst)
        while sent_at >= 0:  # What this round sent isn't left to the next one.
            run_once(loop)
        return count, taken_ns

    with reading, writing:
        loop.add_reader(reading.fileno(), serve)
        measure()
        yield measure
        loop.remove_reader(reading.fileno())


@contextlib.contextmanager
def call_soon_threadsafe(loop: Loop, _: Figures) -> Iterator[Callable[[], Round]]:
    """10,000 call_soon_threadsafe from another thread while the loop runs, to the run of the last callback."""
    count = 10_000

    def measure() -> Round:
        ran = 0
        begin_ns = 0

        def callback() -> None:
            nonlocal ran
            ran += 1

        def feed() -> None:
            for _ in range(count):
                loop.call_soon_threadsafe(callback)
            loop.call_soon_threadsafe(loop.stop)

        def start() -> None:
            nonlocal begin_ns
            begin_ns = now_ns()
            thread.start()

        thread = threading.Thread(target=feed)
        loop.call_soon(start)
        loop.run_forever()
        taken_ns = now_ns() - begin_ns
        thread.join()
        require(ran == count, "every call_soon_threadsafe runs once")
        return count, taken_ns

    measure()
    yield measure


# --- timers ---


def delays_s(count: int) -> list[float]:
    """0 to 9 ms, mixed, the same for every loop."""
    return [index * 7 % 10 / 1000 for index in range(count)]


def check_timers(loop: Loop) -> None:
    """Each timer fires once, not before its time, those far apart in their order; a cancelled one doesn't fire."""
    ran: list[int] = []
    for number, delay in enumerate(delays_s(100)):
        loop.call_later(delay, ran.append, number)
    loop.call_later(0.005, ran.append, -1).cancel()
    # Far apart, because uvloop counts in milliseconds and this process may lose its CPU.
    for delay_ms in (120, 40, 80):
        loop.call_later(delay_ms / 1000, ran.append, 1000 + delay_ms)
    loop.call_later(0.16, loop.stop)
    loop.run_forever()
    require(sorted(ran[:-3]) == list(range(100)), "each timer fires once, and a cancelled one doesn't")
    require(ran[-3:] == [1040, 1080, 1120], "timers fire in the order of their times")


@contextlib.contextmanager
def timer_insert(loop: Loop, _: Figures) -> Iterator[Callable[[], Round]]:
    """5,000 call_later of 0 to 9 ms: the calls alone, without what runs later."""
    count = 5_000
    delays = delays_s(count)
    check_timers(loop)

    def measure() -> Round:
        begin_ns = now_ns()
        handles = [loop.call_later(delay, nothing) for delay in delays]
        taken_ns = now_ns() - begin_ns
        for handle in handles:
            handle.cancel()
        run_once(loop)
        return count, taken_ns

    yield measure


@contextlib.contextmanager
def timer_fire(loop: Loop, _: Figures) -> Iterator[Callable[[], Round]]:
    """5,000 timers of 0 to 9 ms that are all due: to run them, without waiting for anything."""
    count = 5_000
    delays = delays_s(count)
    check_timers(loop)

    def measure() -> Round:
        for delay in delays:
            loop.call_later(delay, nothing)
        loop.call_later(0.0095, loop.stop)
        time.sleep(0.012)
        begin_ns = now_ns()
        loop.run_forever()
        return count, now_ns() - begin_ns

    yield measure


@contextlib.contextmanager
def timer_lateness(loop: Loop, figures: Figures) -> Iterator[Callable[[], Round]]:
    """1,000 timers of 0 to 9 ms: how long after its time each runs. The time of an operation is the mean lateness."""
    count = 1_000
    delays = delays_s(count)
    check_timers(loop)

    def measure() -> Round:
        lateness_ns: list[int] = []

        def fire(due_ns: int) -> None:
            lateness_ns.append(now_ns() - due_ns)

        for delay in delays:
            loop.call_later(delay, fire, now_ns() + int(delay * 1e9))
        loop.call_later(0.03, loop.stop)
        loop.run_forever()
        require(len(lateness_ns) == count, "each timer fires once")
        lateness_ns.sort()
        figures.setdefault("lateness_ns_p50", []).append(lateness_ns[count // 2])
        figures.setdefault("lateness_ns_p99", []).append(lateness_ns[count * 99 // 100])
        # Below 0 where a loop counts in milliseconds.
        figures.setdefault("lateness_ns_min", []).append(lateness_ns[0])
        return count, sum(abs(lateness) for lateness in lateness_ns)

    yield measure


@contextlib.contextmanager
def timer_cancel(loop: Loop, _: Figures) -> Iterator[Callable[[], Round]]:
    """10,000 times call_later and cancel, and one iteration of the loop, which gets to clean up."""
    count = 10_000
    check_timers(loop)

    def measure() -> Round:
        begin_ns = now_ns()
        for index in range(count):
            loop.call_later(60 + index % 10, nothing).cancel()
        run_once(loop)
        return count, now_ns() - begin_ns

    yield measure


# --- tasks, futures, executor ---


@contextlib.contextmanager
def tasks(loop: Loop, _: Figures) -> Iterator[Callable[[], Round]]:
    """asyncio.gather of 1,000 tasks that each sleep(0) once."""
    count = 1_000

    async def once(number: int) -> int:
        await asyncio.sleep(0)
        return number

    async def everything() -> list[int]:
        return await asyncio.gather(*[once(number) for number in range(count)])

    require(loop.run_until_complete(everything()) == list(range(count)), "gather returns the results in order")

    def measure() -> Round:
        begin_ns = now_ns()
        loop.run_until_complete(everything())
        return count, now_ns() - begin_ns

    yield measure


@contextlib.contextmanager
def futures(loop: Loop, _: Figures) -> Iterator[Callable[[], Round]]:
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

    def measure() -> Round:
        begin_ns = now_ns()
        loop.run_until_complete(many())
        return count, now_ns() - begin_ns

    yield measure


@contextlib.contextmanager
def executor(loop: Loop, _: Figures) -> Iterator[Callable[[], Round]]:
    """run_in_executor of a function that returns at once, awaited: 200 times one after the other."""
    count = 200
    require(
        loop.run_until_complete(loop.run_in_executor(None, threading.get_ident)) != threading.get_ident(),
        "run_in_executor runs in another thread",
    )

    async def many() -> None:
        for _ in range(count):
            await loop.run_in_executor(None, nothing)

    def measure() -> Round:
        begin_ns = now_ns()
        loop.run_until_complete(many())
        return count, now_ns() - begin_ns

    yield measure
    loop.run_until_complete(loop.shutdown_default_executor())


# --- sockets ---


@contextlib.contextmanager
def socket_ping_pong(loop: Loop, _: Figures) -> Iterator[Callable[[], Round]]:
    """64 bytes there and back over loopback TCP between two protocols of one loop: 1,000 round trips."""
    count, message = 1_000, bytes(range(64))
    left = 0
    done: asyncio.Future[None]
    accepted: list[asyncio.Transport] = []

    class Pong(asyncio.Protocol):
        transport: asyncio.Transport

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport = transport  # type: ignore[assignment]
            accepted.append(self.transport)

        def data_received(self, data: bytes) -> None:
            self.transport.write(data)

    class Ping(asyncio.Protocol):
        transport: asyncio.Transport
        received = b""

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport = transport  # type: ignore[assignment]

        def data_received(self, data: bytes) -> None:
            nonlocal left
            self.received += data
            if len(self.received) < len(message):
                return
            if self.received != message:
                done.set_exception(WrongBehaviour("not so: what comes back is what was sent"))
                return
            self.received = b""
            left -= 1
            if left:
                self.transport.write(message)
            else:
                done.set_result(None)

    async def connect() -> tuple[asyncio.AbstractServer, Ping]:
        server = await loop.create_server(Pong, "127.0.0.1", 0)
        _, ping = await loop.create_connection(Ping, *server.sockets[0].getsockname())
        return server, ping

    server, ping = loop.run_until_complete(connect())

    async def many() -> None:
        nonlocal done, left
        done, left = loop.create_future(), count
        ping.transport.write(message)
        await done

    def measure() -> Round:
        begin_ns = now_ns()
        loop.run_until_complete(many())
        return count, now_ns() - begin_ns

    yield measure
    ping.transport.close()
    for transport in accepted:
        transport.close()
    server.close()
    loop.run_until_complete(asyncio.sleep(0.01))


BENCHMARKS: dict[str, Benchmark] = {
    function.__name__: function
    for function in (
        call_soon, call_soon_chain, iteration, call_soon_threadsafe, timer_insert, timer_fire, timer_lateness,
        timer_cancel, tasks, futures, executor, socket_ping_pong,
    )
}  # fmt: skip


def measure(new_event_loop: Callable[[], Loop], name: str | None, window_s: float) -> dict[str, object]:
    """Time the benchmark `name` for `window_s`, at least three rounds and after one that warms up.

    Returns the operations and nanoseconds in all, the nanoseconds of an operation for each round, and under `figures`
    medians: of the CPU time of an operation, and of what the benchmark tells besides.
    """
    if name not in BENCHMARKS:
        raise SystemExit(f"there is no benchmark {name!r}: use --benchmark with one of {', '.join(BENCHMARKS)}")
    loop = new_event_loop()
    asyncio.set_event_loop(loop)  # As under asyncio.Runner.
    figures: Figures = {}
    rounds: list[Round] = []
    with BENCHMARKS[name](loop, figures) as once:
        once()
        figures.clear()
        begin = time.perf_counter()
        while len(rounds) < 3 or time.perf_counter() - begin < window_s:
            cpu_begin_ns = time.process_time_ns()
            rounds.append(once())
            # Of the whole round, so also of what it does outside of what is timed.
            figures.setdefault("cpu_ns", []).append((time.process_time_ns() - cpu_begin_ns) / rounds[-1][0])
    asyncio.set_event_loop(None)
    loop.close()
    return {
        "operations": sum(count for count, _ in rounds),
        "ns": sum(taken_ns for _, taken_ns in rounds),
        "samples_ns": [taken_ns / count for count, taken_ns in rounds],
        "figures": {figure: sorted(values)[len(values) // 2] for figure, values in figures.items()},
    }
