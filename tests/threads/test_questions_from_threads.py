"""Questions of other threads to a running loop and its transports: they get answers, and disturb nobody."""

import asyncio
import gc
import socket

import pytest

import support
from thread_support import repeating, rounds

pytestmark = pytest.mark.examples

INFO = ("peername", "sockname", "socket", "sslcontext", "nothing")


class Echo(asyncio.Protocol):
    """Sends back what it gets. The first of the two begins."""

    def __init__(self, transports, begins):
        self.transports, self.begins = transports, begins
        self.received = 0

    def connection_made(self, transport):
        self.transport = transport
        self.transports.append(transport)
        if self.begins:
            transport.write(b"x" * 1000)

    def data_received(self, data):
        self.received += len(data)
        self.transport.write(data)


async def connect(loop, transports, pairs=3):
    """Let this many pairs send each other the same thousand bytes again and again; return their protocols."""
    protocols = []
    for _ in range(pairs):
        for begins, sock in zip((False, True), socket.socketpair(), strict=True):
            sock.setblocking(False)
            _, protocol = await loop.create_connection(lambda begins=begins: Echo(transports, begins), sock=sock)
            protocols.append(protocol)
    return protocols


async def until_all_have(protocols, count):
    """Wait until each has received this many bytes more."""
    wanted = [protocol.received + count for protocol in protocols]
    await support.until(lambda: all(each.received >= count for each, count in zip(protocols, wanted, strict=True)))


def ask_transport(transport):
    """Ask a transport everything that doesn't change it."""
    for name in INFO:
        transport.get_extra_info(name)
    if type(transport).__module__.startswith("ringloop"):
        repr(transport)  # asyncio's may lose its loop between two of its looks at it.
    assert transport.is_closing() in (True, False)
    assert transport.is_reading() in (True, False)
    assert transport.get_write_buffer_size() >= 0
    assert len(transport.get_write_buffer_limits()) == 2
    transport.get_protocol()
    assert transport.can_write_eof() is True


def ask_loop(loop):
    """Ask a loop everything that doesn't change it."""
    assert loop.is_running() in (True, False)
    assert loop.is_closed() is False
    assert loop.time() > 0
    assert loop.get_debug() in (True, False)
    loop.get_exception_handler()
    loop.get_task_factory()
    repr(loop)
    asyncio.all_tasks(loop)
    gc.get_referents(loop)
    if hasattr(loop, "metrics"):
        metrics = loop.metrics()
        assert metrics.callbacks >= 0
        assert metrics.turns >= 0
        assert loop.backend in ("io_uring", "epoll")
        assert loop.backend_reason


def leave(protocols):
    for protocol in protocols:
        protocol.transport.abort()


def test_transports_answer_any_thread_while_they_work(loop):
    transports = []

    def ask():
        for transport in list(transports):
            ask_transport(transport)

    async def main():
        protocols = await connect(loop, transports)
        await until_all_have(protocols, 1000 * rounds(1000))
        leave(protocols)
        await support.turns(3)

    with repeating(ask, ask):
        loop.run_until_complete(main())
    assert all(transport.is_closing() for transport in transports)


@pytest.mark.ringloop_only
def test_transports_answer_while_connections_come_and_go(loop):
    """The `repr` of asyncio's transports may raise AttributeError while they are closed."""
    transports = []

    def ask():
        for transport in list(transports[-6:]):
            ask_transport(transport)

    async def main():
        for _ in range(rounds(200)):
            protocols = await connect(loop, transports, pairs=1)
            await until_all_have(protocols, 1000)
            for protocol in protocols:
                protocol.transport.close()
            await support.turns(2)

    with repeating(ask, ask):
        loop.run_until_complete(main())


def test_a_loop_answers_any_thread_while_it_runs(loop):
    async def main():
        protocols = await connect(loop, [])
        await until_all_have(protocols, 1000 * rounds(1000))
        for _ in range(rounds(200)):
            await asyncio.gather(*(asyncio.sleep(0) for _ in range(20)))
            await asyncio.sleep(0.0001)
        leave(protocols)
        await support.turns(3)

    def ask():
        ask_loop(loop)

    with repeating(ask, ask):
        loop.run_until_complete(main())
    assert not loop.is_running()


@pytest.mark.ringloop_only
def test_metrics_that_several_threads_read_never_run_backwards(loop):
    """Each of them, in each thread: what was counted once stays counted."""
    count = rounds(300)

    def read():
        names = ("turns", "callbacks", "system_calls", "waits", "events", "busy_seconds", "idle_seconds", "gil_seconds")
        last = dict.fromkeys(names, 0)

        def once():
            metrics = loop.metrics()
            for name in names:
                value = getattr(metrics, name)
                assert last[name] <= value <= 2**40, name
                last[name] = value

        return once

    async def main():
        await asyncio.gather(*(asyncio.sleep(0) for _ in range(50)))
        await asyncio.sleep(0.0001)

    async def wait():
        await main()
        await main()

    with repeating(read(), read()):
        # A run that begins or ends counts at once, too.
        for _ in range(count):
            loop.run_until_complete(wait())
        callbacks = loop.metrics().callbacks
        loop.close()
    assert loop.metrics().callbacks == callbacks > 50 * count


@pytest.mark.ringloop_only
def test_transports_that_other_threads_write_to_and_pause_do_not_break(loop):
    """asyncio leaves open what happens. Here nothing crashes, what was written arrives, and the connection goes on."""
    transports, count = [], rounds(300)

    async def main():
        received = [0, 0]

        class Count(asyncio.Protocol):
            def __init__(self, place):
                self.place = place

            def data_received(self, data):
                received[self.place] += len(data)

        ends = []
        for place, sock in enumerate(socket.socketpair()):
            sock.setblocking(False)
            transport, _ = await loop.create_connection(lambda place=place: Count(place), sock=sock)
            ends.append(transport)
        transports.extend(ends)

        def write(transport):
            written = 0
            for number in range(count):
                size = (1, 100, 70_000)[number % 3]
                transport.write(b"y" * size)
                written += size
            return written

        def pause(transport):
            for _ in range(count):
                transport.pause_reading()
                transport.resume_reading()

        calls = (write, ends[0]), (write, ends[0]), (write, ends[1]), (pause, ends[1]), (pause, ends[0])
        threads = [support.BackgroundThread(*call) for call in calls]
        await support.until(lambda: not any(thread.is_alive() for thread in threads))
        first, second, other, *_ = [thread.result() for thread in threads]
        await support.until(lambda: received == [other, first + second], "what was written")
        for transport in ends:
            transport.close()
        await support.turns(3)

    loop.run_until_complete(main())
