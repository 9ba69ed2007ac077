"""Fairness: callbacks, timers and descriptors get their turn, whatever the others do. Orders and numbers of turns are asserted.

A long turn takes a millisecond here: on epoll, turns of microseconds may skip a look at the kernel.
"""

import asyncio
import contextlib
import resource
import signal
import socket
import time

import pytest

import support

LONG_TURN_S = 0.001
QUICK_TURNS = 100
"""More than the turns in a row that look at the kernel however short they are."""


@contextlib.contextmanager
def busy(loop, callback=lambda: None):
    """Keep a callback ready at all times, one per turn, while the context lasts."""

    def again():
        nonlocal handle
        handle = loop.call_soon(again)
        callback()

    handle = loop.call_soon(again)
    try:
        yield
    finally:
        handle.cancel()


@contextlib.contextmanager
def watched_pair(loop, callback):
    """Watch a socket whose peer's bytes are read and then announced by `callback()`; yield the peer."""
    ours, peer = socket.socketpair()

    def read():
        ours.recv(100)
        callback()

    with ours, peer:
        ours.setblocking(False)
        loop.add_reader(ours, read)
        try:
            yield peer
        finally:
            loop.remove_reader(ours)


def test_a_descriptor_waits_for_one_long_turn_at_most(loop):
    async def main():
        heard = 0

        def hear():
            nonlocal heard
            heard += 1

        with watched_pair(loop, hear) as peer, busy(loop):
            await support.turns(QUICK_TURNS)
            with busy(loop, lambda: time.sleep(LONG_TURN_S)):
                # From here on each turn is long.
                await asyncio.sleep(0)
                for number in range(1, 50):
                    peer.send(b"x")
                    # The turn after this one looks, and runs what it finds.
                    await support.turns(2)
                    assert heard == number

    loop.run_until_complete(main())


def test_what_is_ready_runs_before_a_timer_that_is_due(loop):
    async def main():
        trace = []
        with watched_pair(loop, lambda: trace.append("ready")) as peer, busy(loop):
            for _ in range(5):
                trace.clear()
                await support.turns(QUICK_TURNS)
                peer.send(b"x")
                loop.call_later(0, trace.append, "timer")
                await support.turns(2)
                assert trace == ["ready", "timer"]

    loop.run_until_complete(main())


def test_what_arrives_makes_the_next_turns_look(loop):
    """A program that passes messages between quick turns is not kept waiting for each."""

    async def main():
        heard = 0

        def hear():
            nonlocal heard
            heard += 1

        with watched_pair(loop, hear) as peer, busy(loop):
            await support.turns(QUICK_TURNS)
            peer.send(b"x")
            while not heard:
                await asyncio.sleep(0)
            for number in range(2, 100):
                peer.send(b"x")
                await support.turns(2)
                assert heard == number

    loop.run_until_complete(main())


@pytest.fixture
def many_descriptors():
    """Let this process have 8,000 descriptors open for the length of the test."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 8000:
        pytest.skip(f"this process may have {hard} descriptors open, and the test needs some 6,000")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 8000), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("clients_kept", [0, 300, 3000])
@pytest.mark.usefixtures("many_descriptors")
def test_a_server_keeps_up_with_its_clients_while_callbacks_are_ready(loop, clients_kept):
    """Clients that come a hundred a turn, and leave at once or stay: none waits for more than a few turns."""
    made = ended = 0

    class Count(asyncio.Protocol):
        def connection_made(self, transport):
            nonlocal made
            made += 1

        def connection_lost(self, error):
            nonlocal ended
            ended += 1

    async def main():
        server = await loop.create_server(Count, support.HOST, 0, backlog=4000)
        address = server.sockets[0].getsockname()
        clients, behind = [], []
        with contextlib.ExitStack() as stack, busy(loop):
            stack.callback(lambda: [client.close() for client in clients])
            for number in range(30):
                for _ in range(100):
                    clients.append(socket.create_connection(address, support.PATIENCE_S))
                while len(clients) > clients_kept:
                    clients.pop(0).close()
                await asyncio.sleep(0)
                behind.append(100 * (number + 1) - made)
            await support.until(lambda: made == 3000)
        await support.until(lambda: ended == 3000)
        server.close()
        await server.wait_closed()
        return behind

    behind = loop.run_until_complete(main())
    # asyncio takes three turns to accept, to make the transport, and to call connection_made.
    assert max(behind) <= 600, behind


# Long turns


def run_one_turn(loop):
    loop.stop()
    loop.run_forever()


def test_a_turn_runs_all_that_was_queued_in_order_however_much_it_is(loop):
    trace = []

    def outer(number):
        trace.append(number)
        loop.call_soon(trace.append, -number)

    for number in range(1, 5001):
        loop.call_soon(outer, number)
    run_one_turn(loop)
    assert trace == list(range(1, 5001))
    run_one_turn(loop)
    assert trace[5000:] == [-number for number in range(1, 5001)]


def test_what_a_long_turn_finds_waits_for_what_was_queued_before(loop):
    """Ready callbacks and timers that are due when a turn begins come after what was queued by then, and before what is queued later."""
    trace = []
    with watched_pair(loop, lambda: trace.append("ready")) as peer:
        peer.send(b"x")
        loop.call_later(0, trace.append, "timer")
        for number in range(3000):
            loop.call_soon(trace.append, number)
        loop.call_soon(loop.call_soon, trace.append, "queued by the turn")
        run_one_turn(loop)
        run_one_turn(loop)
    assert trace == [*range(3000), "ready", "timer", "queued by the turn"]


@pytest.mark.ringloop_only
def test_a_long_turn_looks_at_timers_and_descriptors_on_its_way(loop):
    """After each 1,024 callbacks; what it finds is queued behind all the rest, and waits for its turn."""
    trace = []
    with watched_pair(loop, lambda: trace.append("ready")) as peer:

        def arrange():
            peer.send(b"x")
            loop.call_later(0, trace.append, "timer")
            loop.call_soon(trace.append, "queued before")

        loop.call_soon(arrange)
        for _ in range(1022):
            loop.call_soon(trace.append, "in the turn")
        loop.call_soon(loop.call_soon, trace.append, "queued by the last one before the look")
        loop.call_soon(loop.call_soon, trace.append, "queued by the first one after it")
        run_one_turn(loop)
        assert trace == ["in the turn"] * 1022
        trace.clear()
        run_one_turn(loop)
    assert trace == [
        "queued before",
        "queued by the last one before the look",
        "ready",
        "timer",
        "queued by the first one after it",
    ]


@pytest.mark.parametrize("length", [1, 1100, 5000])
def test_a_descriptor_s_callback_runs_once_in_a_turn_however_long_that_is(loop, length):
    """Else one that reads once for each call would find nothing, or block."""
    trace = []
    ours, peer = socket.socketpair()
    with ours, peer:
        loop.add_reader(ours, trace.append, "readable")
        loop.add_writer(peer, trace.append, "writable")
        run_one_turn(loop)
        assert trace == ["writable"]
        # It becomes readable in the middle of the first turn.
        loop.call_soon(peer.send, b"x")
        for _ in range(5):
            for _ in range(length):
                loop.call_soon(int)
            trace.clear()
            run_one_turn(loop)
            assert sorted(trace) in (["writable"], ["readable", "writable"])
        assert sorted(trace) == ["readable", "writable"]
        loop.remove_reader(ours)
        loop.remove_writer(peer)


def test_a_callback_that_takes_the_place_of_one_that_is_queued_runs_soon(loop):
    trace = []
    ours, peer = socket.socketpair()
    with ours, peer:
        peer.send(b"x")
        loop.add_reader(ours, trace.append, "first")
        for _ in range(2000):
            loop.call_soon(int)
        loop.call_soon(loop.add_reader, ours, trace.append, "second")
        run_one_turn(loop)
        assert trace == []
        run_one_turn(loop)
        assert trace == ["second"]
        loop.remove_reader(ours)


def test_a_callback_that_stops_the_loop_lets_a_long_turn_end(loop):
    trace = []
    loop.call_soon(loop.stop)
    for number in range(3000):
        loop.call_soon(trace.append, number)
    loop.run_forever()
    assert trace == list(range(3000))


# Transports that read on without a new report from the kernel


class Trace:
    """A protocol for streams or datagrams that writes down when it is given data."""

    def __init__(self, trace):
        self.trace = trace

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.trace.append("data")

    def datagram_received(self, data, address):
        self.trace.append("data")

    def connection_lost(self, error):
        pass


class TraceByte(Trace, asyncio.BufferedProtocol):
    """Takes one byte at a time."""

    def get_buffer(self, sizehint):
        return bytearray(1)

    def buffer_updated(self, count):
        self.trace.append("data")


@contextlib.contextmanager
def connected(loop, protocol, kind=socket.SOCK_STREAM):
    """Make a transport of `protocol`, over one end of a pair of sockets; yield the other end."""
    ours, peer = socket.socketpair(type=kind)
    with peer:
        ours.setblocking(False)
        if kind == socket.SOCK_STREAM:
            made = loop.create_connection(lambda: protocol, sock=ours)
        else:
            made = loop.create_datagram_endpoint(lambda: protocol, sock=ours)
        transport, _ = loop.run_until_complete(made)
        try:
            yield peer
        finally:
            transport.abort()
            loop.run_until_complete(support.turns(3))


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM], ids=["stream", "datagram"])
def test_reading_that_is_resumed_comes_after_what_was_queued_in_that_turn(loop, kind):
    trace = []
    protocol = Trace(trace)
    with connected(loop, protocol, kind) as peer:
        protocol.transport.pause_reading()
        peer.send(b"x")
        loop.run_until_complete(support.turns(5))
        protocol.transport.resume_reading()
        loop.call_soon(trace.append, "queued")
        run_one_turn(loop)
        assert trace == ["queued", "data"]


def test_a_transport_that_reads_on_comes_after_what_was_queued_in_that_turn(loop):
    trace = []
    protocol = TraceByte(trace)
    with connected(loop, protocol) as peer:
        peer.send(b"xxx")
        # One more reader of the same turn, which queues something after the transport has read its first byte.
        other, there = socket.socketpair()
        with other, there:
            there.send(b"x")
            loop.add_reader(other, lambda: loop.call_soon(trace.append, "queued"))
            for _ in range(4):
                run_one_turn(loop)
            loop.remove_reader(other)
    assert trace[:6] == ["data", "queued"] * 3


# Callbacks from other threads


@pytest.mark.parametrize("situation", ["wakes", "returns"])
def test_threads_that_post_give_the_gil_away(arm, situation):
    """The interpreter doesn't take it from them here. The loop needs it after a wait, and after a callback has released it."""
    child = support.run_child(
        """
        import threading, time
        loop = new_loop()
        done = []

        def post():
            while not done:
                loop.call_soon_threadsafe(support.noop)

        def begin():
            threads.extend(support.BackgroundThread(post) for _ in range(2))
            if sys.argv[1] == "returns":
                time.sleep(0.001)
                done.append(True)
                loop.stop()

        def end():
            done.append(True)
            loop.stop()

        threads = []
        sys.setswitchinterval(3600)
        loop.call_soon(begin)
        if sys.argv[1] == "wakes":
            loop.call_later(0.01, end)
        loop.run_forever()
        for thread in threads:
            thread.result()
        loop.close()
        print("done")
        """,
        arm,
        situation,
    )
    assert (child.returncode, child.stdout) == (0, "done\n"), child


@pytest.mark.many_cases(short=1)
@pytest.mark.parametrize("situation", ["stopped", "waited for", "locked out", "control"])
def test_a_thread_that_posts_stays_awake_if_the_loop_does_not_need_the_gil(arm, situation):
    """The loop doesn't run, or its callback waits for the thread, or for a lock that the thread holds."""
    support.needs_gil()
    support.needs_seccomp()
    child = support.run_child(
        """
        import threading, time
        situation = sys.argv[1]
        loop = new_loop()
        lock, begun, posted = threading.Lock(), threading.Event(), threading.Event()
        ran = 0

        def run():
            global ran
            ran += 1

        def post():
            support.forbid_sleep()
            if situation == "control":
                time.sleep(0.001)
            with lock:
                begun.set()
                for _ in range(100_000):
                    loop.call_soon_threadsafe(run)
            posted.set()

        def wait():
            thread = support.BackgroundThread(post)
            begun.wait()
            if situation == "locked out":
                with lock:
                    pass
            else:
                posted.wait()
            thread.result()

        if situation == "stopped":
            wait()
        else:
            loop.call_soon(wait)
        loop.call_soon(lambda: loop.call_soon(loop.stop))
        loop.run_forever()
        loop.close()
        print(ran)
        """,
        arm,
        situation,
    )
    if situation == "control":
        assert child.returncode == -signal.SIGSYS, child
    else:
        assert (child.returncode, child.stdout) == (0, "100000\n"), child


def test_timers_run_while_threads_do_nothing_but_post(loop):
    ticks, done = 0, False
    threads = []

    def post():
        posted = ran = 0

        def run():
            nonlocal ran
            ran += 1

        while not done:
            # Without the GIL, threads can post more than any loop can run.
            if support.has_gil() or posted - ran < 1000:
                loop.call_soon_threadsafe(run)
                posted += 1

    def tick():
        nonlocal ticks, done
        ticks += 1
        if ticks == 10:
            done = True
            loop.stop()
        else:
            loop.call_later(0.001, tick)

    def begin():
        threads.extend(support.BackgroundThread(post) for _ in range(4))
        tick()

    loop.call_soon(begin)
    loop.run_forever()
    for thread in threads:
        thread.result()
    assert ticks == 10


@pytest.mark.exact
def test_a_callback_may_wait_for_a_thread_that_posts(loop):
    """Callbacks that the thread has posted run before those that the callback queues then."""
    trace = []

    def post():
        for number in range(5000):
            loop.call_soon_threadsafe(trace.append, number)

    def wait():
        support.BackgroundThread(post).result()
        loop.call_soon(trace.append, "after")
        loop.call_soon(loop.stop)

    for _ in range(3):
        trace.clear()
        loop.call_soon(wait)
        loop.run_forever()
        assert trace == [*range(5000), "after"]


@pytest.mark.exact
@pytest.mark.parametrize("elsewhere", [False, True])
def test_callbacks_may_be_posted_to_a_loop_that_does_not_run(loop, elsewhere):
    trace = []

    def post():
        for number in range(5000):
            loop.call_soon_threadsafe(trace.append, number)

    if elsewhere:
        support.BackgroundThread(post).result()
    else:
        post()
    run_one_turn(loop)
    assert trace == list(range(5000))


def test_a_callback_may_post_to_its_own_loop(loop):
    trace = []

    def post():
        for number in range(5000):
            loop.call_soon_threadsafe(trace.append, number)
        loop.call_soon(loop.stop)

    loop.call_soon(post)
    loop.run_forever()
    assert trace == list(range(5000))


@pytest.mark.exact
def test_two_loops_post_to_each_other(new_loop):
    """Neither waits for the other in vain."""
    first, second = new_loop(), new_loop()
    received = {first: 0, second: 0}

    def receive(loop):
        received[loop] += 1

    def post(target):
        for _ in range(5000):
            target.call_soon_threadsafe(receive, target)

    async def exchange(target):
        for _ in range(5):
            post(target)
            await asyncio.sleep(0)
        await support.until(lambda: list(received.values()) == [25_000, 25_000])

    other = support.BackgroundThread(second.run_until_complete, exchange(first))
    first.run_until_complete(exchange(second))
    other.result()


@pytest.mark.exact
def test_a_loop_closes_under_a_flood(loop_factory):
    """Threads that post learn of it from the error, and none of them is left asleep."""
    for _ in range(3):
        loop = loop_factory()

        def post(loop=loop):
            with pytest.raises(RuntimeError, match="Event loop is closed"):
                while True:
                    loop.call_soon_threadsafe(int)

        threads = [support.BackgroundThread(post) for _ in range(4)]
        loop.call_later(0.005, loop.stop)
        loop.run_forever()
        loop.close()
        for thread in threads:
            thread.result()


def test_the_interpreter_exits_while_daemon_threads_post(arm):
    child = support.run_child(
        """
        import threading
        loop = new_loop()

        def post():
            while True:
                loop.call_soon_threadsafe(int)

        loop.run_until_complete(asyncio.sleep(0))
        for _ in range(4):
            threading.Thread(target=post, daemon=True).start()
        loop.call_later(0.05, loop.stop)
        loop.run_forever()
        print("done", flush=True)
        """,
        arm,
    )
    assert (child.returncode, child.stdout) == (0, "done\n"), child
