"""Loops and threads. test_run.py has loops in one thread after another, several at once, and races with close."""

import asyncio
import collections
import concurrent.futures
import contextvars
import gc
import importlib.util
import socket
import sys
import threading
import time
import weakref

import pytest

import support
from thread_support import running_in_a_thread

pytestmark = pytest.mark.exact


def test_coroutines_from_many_threads(loop):
    async def double(number):
        assert threading.get_ident() == loop._thread_id
        await asyncio.sleep(0)
        return number * 2

    def submit(first):
        futures = [asyncio.run_coroutine_threadsafe(double(number), loop) for number in range(first, first + 50)]
        return [future.result(support.PATIENCE_S) for future in futures]

    with running_in_a_thread(loop):
        threads = [support.BackgroundThread(submit, first) for first in (0, 1000, 2000, 3000)]
        for first, thread in zip((0, 1000, 2000, 3000), threads, strict=True):
            assert thread.result() == [number * 2 for number in range(first, first + 50)]


def test_a_coroutine_from_another_thread_that_fails_or_is_cancelled(loop):
    begun, ended = threading.Event(), threading.Event()

    async def fail():
        raise LookupError("not here")

    async def wait():
        begun.set()
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()

    with running_in_a_thread(loop):
        with pytest.raises(LookupError, match="not here"):
            asyncio.run_coroutine_threadsafe(fail(), loop).result(support.PATIENCE_S)
        future = asyncio.run_coroutine_threadsafe(wait(), loop)
        assert begun.wait(support.PATIENCE_S)
        with pytest.raises(concurrent.futures.TimeoutError):
            future.result(0.001)
        assert future.cancel()
        assert ended.wait(support.PATIENCE_S)
        with pytest.raises(concurrent.futures.CancelledError):
            future.result(0)


def test_callbacks_of_each_thread_run_in_its_order(loop):
    ran = []

    def schedule(name):
        for number in range(300):
            loop.call_soon_threadsafe(ran.append, (name, number))

    async def main():
        threads = [support.BackgroundThread(schedule, name) for name in "abc"]
        await support.until(lambda: len(ran) == 900)
        for thread in threads:
            thread.result()

    loop.run_until_complete(main())
    for name in "abc":
        assert [number for who, number in ran if who == name] == list(range(300))


def test_a_callback_from_another_thread_ends_a_long_wait(loop):
    """Whether the loop sleeps already or is about to."""
    loop.call_later(3600, lambda: None)

    async def once(delay_s):
        future = loop.create_future()

        def schedule():
            time.sleep(delay_s)
            loop.call_soon_threadsafe(future.set_result, None)

        thread = support.BackgroundThread(schedule)
        await asyncio.wait_for(future, support.PATIENCE_S)
        thread.result()

    for _ in range(50):
        loop.run_until_complete(once(0))
        loop.run_until_complete(once(0.0005))


def test_a_handle_cancelled_in_another_thread_does_not_run(loop):
    ran = []

    def schedule_and_cancel():
        for number in range(100):
            handle = loop.call_soon_threadsafe(ran.append, number)
            handle.cancel()
        loop.call_soon_threadsafe(ran.append, "end")

    async def main():
        # The turn in which these are queued is this task's own: it holds the loop up until they are cancelled.
        support.BackgroundThread(schedule_and_cancel).result()
        await support.until(lambda: ran)

    loop.run_until_complete(main())
    assert ran == ["end"]


def test_a_server_and_its_clients_on_loops_of_two_threads(new_loop):
    serving, connecting = new_loop(), new_loop()

    async def serve():
        async def echo(reader, writer):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
            writer.close()

        return await asyncio.start_server(echo, support.HOST, 0)

    async def exchange(address):
        async def one(number):
            reader, writer = await asyncio.open_connection(*address)
            data = bytes([number]) * 100_000
            writer.write(data)
            assert await reader.readexactly(len(data)) == data
            writer.close()
            await writer.wait_closed()

        await asyncio.gather(*map(one, range(10)))

    async def stop(server):
        server.close()
        await server.wait_closed()

    with running_in_a_thread(serving):
        server = asyncio.run_coroutine_threadsafe(serve(), serving).result(support.PATIENCE_S)
        connecting.run_until_complete(exchange(server.sockets[0].getsockname()))
        asyncio.run_coroutine_threadsafe(stop(server), serving).result(support.PATIENCE_S)


def test_connections_made_in_one_thread_live_on_in_another(loop):
    async def connect():
        protocol = support.Recorder()
        transport, peer = await support.attach(loop, protocol)
        return protocol, transport, peer

    async def use(protocol, transport, peer):
        peer.send(b"heard")
        await support.until(lambda: protocol.data == b"heard")
        transport.write(b"said")
        assert await loop.sock_recv(peer, 100) == b"said"
        transport.close()
        await support.until(lambda: protocol.lost)
        peer.close()

    made = support.BackgroundThread(loop.run_until_complete, connect()).result()
    support.BackgroundThread(loop.run_until_complete, use(*made)).result()
    made = loop.run_until_complete(connect())
    support.BackgroundThread(loop.run_until_complete, use(*made)).result()


def test_a_transport_that_dies_in_another_thread_while_the_loop_waits(loop):
    """Its socket is closed there and then, and its descriptor's number may be used again at once."""

    async def pause():
        protocol = support.Recorder()
        transport, peer = await support.attach(loop, protocol)
        transport.pause_reading()
        return transport, peer

    async def talk(number):
        protocol = support.Recorder()
        transport, peer = await support.attach(loop, protocol)
        peer.send(b"%d" % number)
        await support.until(lambda: protocol.data == b"%d" % number)
        transport.close()
        peer.close()
        await support.until(lambda: protocol.lost)

    with support.resource_warnings() as warned, running_in_a_thread(loop):
        for number in range(20):
            transport, peer = asyncio.run_coroutine_threadsafe(pause(), loop).result(support.PATIENCE_S)
            reference = weakref.ref(transport)
            del transport
            # The loop's thread may still hold what it has handed over; after another turn it does not.
            asyncio.run_coroutine_threadsafe(support.turns(1), loop).result(support.PATIENCE_S)
            support.BackgroundThread(gc.collect).result()
            assert reference() is None
            peer.close()
            asyncio.run_coroutine_threadsafe(talk(number), loop).result(support.PATIENCE_S)
    assert sum(text.startswith("unclosed transport") for text in warned) == 20


def test_callbacks_that_run_no_python_let_other_threads_run(loop):
    """The descriptor is ready in each turn, and its callback is a C function, which never offers the GIL."""

    async def main():
        calls = collections.deque(maxlen=1)
        first, second = socket.socketpair()
        with first, second:
            loop.add_writer(first, calls.append, "writable")
            for _ in range(10):
                await asyncio.to_thread(time.sleep, 0.001)
            assert loop.remove_writer(first)
        assert calls

    loop.run_until_complete(main())


def test_the_executor_keeps_the_context_of_to_thread(loop):
    variable = contextvars.ContextVar("variable", default="unset")

    async def main():
        variable.set("set")
        seen = [await asyncio.to_thread(variable.get), await loop.run_in_executor(None, variable.get)]
        assert threading.get_ident() != await asyncio.to_thread(threading.get_ident)
        return seen

    # Free-threaded Pythons let new threads inherit the context of who starts them.
    inherited = "set" if getattr(sys.flags, "thread_inherit_context", False) else "unset"
    assert loop.run_until_complete(main()) == ["set", inherited]
    loop.run_until_complete(loop.shutdown_default_executor())


def test_a_thread_that_computes_does_not_starve_the_loop(loop):
    stop = threading.Event()

    def compute():
        while not stop.is_set():
            sum(range(1000))

    async def main():
        first, second = socket.socketpair()
        with first, second:
            first.setblocking(False)
            second.setblocking(False)
            for number in range(20):
                await loop.sock_sendall(first, bytes([number]))
                assert await loop.sock_recv(second, 10) == bytes([number])
                await asyncio.sleep(0.0001)

    thread = support.BackgroundThread(compute)
    try:
        loop.run_until_complete(main())
    finally:
        stop.set()
        thread.result()


def test_a_loop_may_be_run_and_closed_by_whoever_has_it(loop_factory):
    """Each step in a thread of its own."""
    trace = []
    loop = support.BackgroundThread(loop_factory).result()
    support.BackgroundThread(loop.call_soon, trace.append, "queued").result()
    support.BackgroundThread(loop.run_until_complete, asyncio.sleep(0.001)).result()
    support.BackgroundThread(loop.run_until_complete, loop.shutdown_default_executor()).result()
    support.BackgroundThread(loop.close).result()
    assert trace == ["queued"]
    assert loop.is_closed()


def test_only_the_main_thread_handles_signals(loop):
    def attempt():
        with pytest.raises((ValueError, RuntimeError)) as caught:
            loop.add_signal_handler(10, print)
        return type(caught.value).__name__, str(caught.value)

    def body(loop):
        with pytest.raises((ValueError, RuntimeError)) as caught:
            loop.add_signal_handler(10, print)
        return type(caught.value), str(caught.value)

    expected = support.BackgroundThread(support.outcome, body, support.loop_factory("asyncio")).result()
    assert support.BackgroundThread(body, loop).result() == expected
    assert support.BackgroundThread(attempt).result()[1] == expected[1]


@pytest.mark.ringloop_only
def test_subinterpreters_are_refused(arm):
    module = "_interpreters" if importlib.util.find_spec("_interpreters") else "_xxsubinterpreters"
    child = support.run_child(
        f"""
        import {module} as interpreters
        import ringloop
        source = '''
        import sys
        try:
            import ringloop
        except ImportError as error:
            print(error)
        else:
            print("imported")
        import asyncio
        async def main():
            return 5
        print(asyncio.run(main()), flush=True)
        '''
        import textwrap
        interpreter = interpreters.create({'"legacy"' if module == "_interpreters" else "isolated=False"})
        print(interpreters.run_string(interpreter, textwrap.dedent(source)), flush=True)
        interpreters.destroy(interpreter)
        print(ringloop.run(asyncio.sleep(0.001, 7)))
        """,
        arm,
    )
    assert child.stdout.splitlines() == [
        "ringloop does not support subinterpreters; use asyncio's own event loop here",
        "5",
        "None",
        "7",
    ], (child, sys.version)
