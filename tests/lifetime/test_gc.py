"""Garbage collection: cycles are collected, reference counts return, nothing leaks."""

import asyncio
import contextlib
import contextvars
import gc
import socket
import sys
import threading
import time
import weakref

import pytest

from ringloop import files
from support import (
    HOST,
    PATIENCE_S,
    BufferedRecorder,
    Recorder,
    attach,
    count_objects_from_here,
    finish,
    looks,
    needs_gil,
    noop,
    open_descriptors,
    resource_warnings,
    run_child,
    run_turns,
    skip_unless,
    tcp_pair,
    turns,
    until,
)

pytestmark = pytest.mark.exact


class Thing:
    """Something that weak references can follow, and that can hold on to others."""

    def method(self, *_arguments):
        pass


@contextlib.contextmanager
def collector_off():
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


# What takes part in garbage collection


def test_everything_that_holds_objects_is_tracked_by_the_collector(loop):
    async def main():
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)
        objects = [loop, loop.call_soon(noop), loop.call_later(0, noop), loop.call_soon_threadsafe(noop), transport]
        await turns(3)  # What only a queue holds, the queue may answer for.
        untracked = [thing for thing in objects if not gc.is_tracked(thing)]
        peer.close()
        await until(lambda: protocol.lost)
        return untracked

    assert loop.run_until_complete(main()) == []


def test_a_cycle_through_the_loop(loop_factory):
    loop = loop_factory()
    thing = Thing()
    thing.loop, loop.thing = loop, thing
    loop.set_exception_handler(thing.method)
    loop.call_soon(thing.method, loop)
    loop.call_later(3600, thing.method, loop)
    run_turns(loop)
    loop.call_soon(thing.method, loop)
    reference, loop_reference = weakref.ref(thing), weakref.ref(loop)
    loop.close()
    del thing, loop
    gc.collect()
    assert reference() is None and loop_reference() is None


def test_a_cycle_through_an_unclosed_loop(loop_factory):
    loop = loop_factory()
    thing = Thing()
    thing.loop = loop
    first, second = socket.socketpair()
    with first, second:
        loop.call_soon(thing.method, loop)
        loop.call_later(3600, thing.method, loop)
        loop.add_reader(first, thing.method, loop)
        reference = weakref.ref(thing)
        with pytest.warns(ResourceWarning, match="^unclosed event loop"):
            del thing, loop
            gc.collect()
        assert reference() is None


@pytest.mark.ringloop_only  # asyncio's loop fails to close then.
def test_a_cycle_through_an_unclosed_loop_whose_sockets_are_collected_first(loop_factory, monkeypatch):
    make = socket.socketpair

    def make_later():
        # The loop is of another generation of the collector's than its sockets.
        gc.collect(0)
        return make()

    with collector_off():
        monkeypatch.setattr(socket, "socketpair", make_later)
        loop = loop_factory()
        monkeypatch.undo()
        loop.itself = loop
        reference, released = weakref.ref(loop), weakref.ref(loop.itself._ssock)
        with resource_warnings() as messages:
            del loop
    assert reference() is None
    assert released() is None
    assert any("unclosed event loop" in message for message in messages)


def insert_another_timer(loop):
    loop.call_later(3600, noop)


def wait_once(loop):
    """Run the loop until it has waited for another thread: for at least 10 ms, in nearly every attempt."""
    timer = threading.Timer(0.01, loop.call_soon_threadsafe, (loop.stop,))
    loop.call_soon(timer.start)
    loop.run_forever()
    timer.join()


@pytest.mark.parametrize("then", [insert_another_timer, wait_once])
def test_a_cycle_through_an_unclosed_loop_and_the_handle_of_its_timer(loop_factory, then):
    loop = loop_factory()
    thing = Thing()
    thing.loop = loop
    thing.handle = loop.call_later(3600, thing.method, loop)
    deadline = time.monotonic() + PATIENCE_S
    then(loop)
    while not gc.is_tracked(thing.handle):
        assert time.monotonic() < deadline
        then(loop)
    reference = weakref.ref(thing)
    with pytest.warns(ResourceWarning, match="^unclosed event loop"):
        del thing, loop
        gc.collect()
    assert reference() is None


@pytest.mark.parametrize("schedule", ["call_soon", "call_later", "call_soon_threadsafe"])
def test_a_cycle_through_an_unclosed_loop_and_a_cancelled_handle(loop_factory, schedule):
    loop = loop_factory()
    thing = Thing()
    thing.loop = loop
    arguments = (3600,) if schedule == "call_later" else ()
    thing.handle = getattr(loop, schedule)(*arguments, thing.method, thing)
    thing.handle.cancel()
    run_turns(loop)
    reference = weakref.ref(thing)
    with pytest.warns(ResourceWarning, match="^unclosed event loop"):
        del thing, loop
        gc.collect()
    assert reference() is None


@pytest.mark.without_debug_mode
@pytest.mark.ringloop_only  # asyncio's handles are always tracked
@pytest.mark.parametrize("schedule", ["call_soon", "call_later", "call_soon_threadsafe"])
def test_the_collector_visits_no_handle_that_only_waits(loop, schedule):
    """It would visit tens of thousands of them again and again. (Not so without the GIL: that collector has no young objects.)"""
    needs_gil()
    arguments = (3600,) if schedule == "call_later" else ()
    count_objects = count_objects_from_here()
    for _ in range(1000):
        getattr(loop, schedule)(*arguments, noop)
    assert count_objects() < 100


def test_a_cycle_through_a_task_factory(loop_factory):
    loop = loop_factory()
    thing = Thing()
    thing.loop = loop
    loop.set_task_factory(lambda loop, coroutine, thing=thing, **options: asyncio.Task(coroutine, loop=loop, **options))
    reference = weakref.ref(thing)
    loop.close()
    del thing, loop
    gc.collect()
    assert reference() is None


@pytest.mark.parametrize("schedule", ["call_soon", "call_later", "call_soon_threadsafe"])
def test_a_cycle_through_a_handle(new_loop, schedule):
    loop = new_loop()
    thing = Thing()
    arguments = (3600,) if schedule == "call_later" else ()
    thing.handle = getattr(loop, schedule)(*arguments, thing.method, thing)
    reference = weakref.ref(thing)
    del thing
    gc.collect()
    assert reference() is not None, "the loop will call it"
    loop.close()
    gc.collect()
    assert reference() is None


def test_a_cycle_through_a_handle_that_ran(loop):
    thing = Thing()
    thing.handles = [loop.call_soon(thing.method, thing), loop.call_later(0, thing.method, thing)]
    reference = weakref.ref(thing)
    del thing
    run_turns(loop, 2)
    gc.collect()
    assert reference() is None


def test_a_cancelled_handle_breaks_the_cycle_by_itself(loop):
    with collector_off():
        thing = Thing()
        thing.handle = loop.call_later(3600, thing.method, thing)
        reference = weakref.ref(thing)
        thing.handle.cancel()
        del thing
        assert reference() is None


def test_a_cycle_through_a_context(loop):
    variable = contextvars.ContextVar("variable")
    context = contextvars.copy_context()
    thing = Thing()
    context.run(variable.set, thing)
    thing.handle = loop.call_soon(noop, context=context)
    reference = weakref.ref(thing)
    del thing, context
    run_turns(loop)
    gc.collect()
    assert reference() is None


VARIABLE = contextvars.ContextVar("VARIABLE")

SCHEDULE = {
    "call_soon": lambda loop, callback: loop.call_soon(callback),
    "call_later": lambda loop, callback: loop.call_later(3600, callback),
    "call_soon_threadsafe": lambda loop, callback: loop.call_soon_threadsafe(callback),
}
every_way_to_schedule = pytest.mark.parametrize("schedule", SCHEDULE.values(), ids=SCHEDULE)


@every_way_to_schedule
@pytest.mark.parametrize("kept", [False, True], ids=["dropped", "kept"])
def test_a_cycle_through_the_context_that_a_handle_copies(loop_factory, schedule, kept):
    """The loop, unclosed, or the closed loop and its handle, are in the context that the handle holds."""
    loop = loop_factory()
    thing = Thing()
    thing.loop = loop
    context = contextvars.copy_context()
    context.run(VARIABLE.set, thing)
    handle = context.run(schedule, loop, noop)
    reference = weakref.ref(thing)
    if kept:
        thing.handle = handle
        gc.collect()
        assert reference() is not None
        loop.close()
        unclosed = contextlib.nullcontext()
    else:
        unclosed = pytest.warns(ResourceWarning, match="^unclosed event loop")
    with unclosed:
        del thing, context, loop, handle
        gc.collect()
        assert reference() is None


@every_way_to_schedule
def test_a_handle_that_never_runs_drops_the_context_that_it_copied(new_loop, schedule):
    loop = new_loop()
    thing = Thing()
    context = contextvars.copy_context()
    context.run(VARIABLE.set, thing)
    handles = [context.run(schedule, loop, noop) for _ in range(3)]
    reference = weakref.ref(thing)
    del thing, context
    gc.collect()
    assert reference() is not None, "the handles have it"
    handles[0].cancel()
    run_turns(loop)
    loop.close()
    handles.clear()
    gc.collect()
    assert reference() is None


@every_way_to_schedule
def test_a_context_that_a_handle_gives_away_is_tracked(loop, schedule):
    handle = schedule(loop, noop)
    context = handle._context
    assert gc.is_tracked(context)
    assert context is handle._context
    thing = Thing()
    thing.context = context
    context.run(VARIABLE.set, thing)
    reference = weakref.ref(thing)
    handle.cancel()
    run_turns(loop)
    del thing, context, handle
    gc.collect()
    assert reference() is None


def test_a_cycle_through_a_context_in_which_a_callback_has_run(loop):
    """A token refers to the context that it was made in."""
    reference = None

    def run():
        nonlocal reference
        thing = Thing()
        thing.token = VARIABLE.set(thing)
        reference = weakref.ref(thing)

    with collector_off():
        loop.call_soon(run)
        run_turns(loop)
        assert reference() is not None
        gc.collect()
        assert reference() is None


def test_a_cycle_through_a_watched_descriptor(new_loop):
    loop = new_loop()
    thing = Thing()
    thing.loop = loop
    first, second = socket.socketpair()
    with first, second:
        loop.add_reader(first, thing.method, thing)
        loop.add_writer(first, thing.method, thing)
        run_turns(loop, 2)
        reference = weakref.ref(thing)
        del thing
        gc.collect()
        assert reference() is not None
        loop.remove_reader(first)
        loop.remove_writer(first)
        run_turns(loop)
        gc.collect()
        assert reference() is None


# Connections


def needs_acyclic_transports(arm):
    if arm == "asyncio":
        skip_unless(
            "close" in vars(asyncio.selector_events._SelectorSocketTransport), "transports that are free of cycles"
        )


@pytest.mark.parametrize("kind", [Recorder, BufferedRecorder], ids=["Protocol", "BufferedProtocol"])
def test_a_finished_connection_needs_no_collector(loop, arm, kind):
    needs_acyclic_transports(arm)

    async def session():
        protocol = kind()
        transport, peer = await attach(loop, protocol)
        with peer:
            peer.send(b"x")
            transport.write(b"y")
            await until(lambda: protocol.data)
            transport.close()
            await until(lambda: protocol.lost)
        protocol.transport = None
        return weakref.ref(protocol), weakref.ref(transport)

    async def main():
        references = await session()
        await turns(3)
        return [reference() for reference in references]

    with collector_off():
        assert loop.run_until_complete(main()) == [None, None]


def test_a_finished_server_connection_needs_no_collector(loop, arm):
    needs_acyclic_transports(arm)
    references = []

    class Protocol(asyncio.Protocol):
        def connection_made(self, transport):
            references.extend([weakref.ref(self), weakref.ref(transport)])
            self.transport = transport

    async def main():
        server = await loop.create_server(Protocol, HOST, 0)
        with socket.create_connection(server.sockets[0].getsockname()):
            await until(lambda: references)
        await until(lambda: references[0]() is None)
        await turns(3)
        server.close()
        await server.wait_closed()
        return [reference() for reference in references]

    with collector_off():
        assert loop.run_until_complete(main()) == [None, None]


@pytest.mark.parametrize("ending", ["open", "close", "abort"])
def test_a_connection_abandoned_with_its_closed_loop_is_collected(loop_factory, ending):
    def session():
        loop = loop_factory()

        async def main():
            protocol = Recorder()
            transport, peer = await attach(loop, protocol)
            transport.write(bytes(8 << 20))
            return peer, protocol, transport

        peer, protocol, transport = loop.run_until_complete(main())
        if ending != "open":
            getattr(transport, ending)()
        loop.close()
        return peer, weakref.ref(protocol), weakref.ref(transport)

    with resource_warnings() as messages:
        peer, *references = session()
    peer.close()
    assert any(text.startswith("unclosed transport <") for text in messages)
    assert [reference() for reference in references] == [None, None]


def test_an_unclosed_transport_warns_with_its_text(loop_factory):
    loop = loop_factory()
    ours, peer = tcp_pair()
    transport, _ = loop.run_until_complete(loop.create_connection(asyncio.Protocol, sock=ours))
    loop.close()
    text = repr(transport)
    with peer, resource_warnings() as messages:
        del transport, loop
    assert f"unclosed transport {text}" in messages


def test_a_live_connection_that_nobody_holds_is_not_collected(loop):
    async def main():
        received = []

        class Protocol(asyncio.Protocol):
            def data_received(self, data):
                received.append(data)

        async def connect():
            _, peer = await attach(loop, Protocol())
            return peer

        peer = await connect()
        for _ in range(3):
            gc.collect()
            await turns(2)
        peer.send(b"still here")
        await until(lambda: received)
        peer.close()
        await looks()
        return received

    assert loop.run_until_complete(main()) == [b"still here"]


def test_a_paused_connection_that_nobody_holds_is_collected_with_a_warning(loop):
    """As in asyncio: what is not watched is held by nobody."""

    async def connect():
        transport, peer = await attach(loop, asyncio.Protocol())
        await turns(2)
        transport.pause_reading()
        await turns(2)
        return weakref.ref(transport), peer

    with resource_warnings() as messages:
        reference, peer = loop.run_until_complete(connect())
        run_turns(loop, 2)
    assert any(text.startswith("unclosed transport <") for text in messages)
    assert reference() is None
    peer.setblocking(True)
    peer.settimeout(PATIENCE_S)
    assert peer.recv(1) == b""
    peer.close()


@pytest.mark.parametrize("stops", [False, True], ids=["running", "between two runs"])
def test_a_connection_that_ends_in_another_thread_takes_nothing_from_the_loop(loop, tmp_path, stops):
    """That thread submitted what the loop had queued on io_uring, and the loop could not wait any more."""
    held = []

    class Accepted(asyncio.Protocol):
        def connection_made(self, transport):
            held.append(transport)

    def end_elsewhere():
        thread = threading.Thread(target=lambda: (held.clear(), gc.collect()))
        thread.start()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()

    async def connect():
        # The driver keeps only sockets that nobody but the loop has.
        server = await loop.create_server(Accepted, HOST, 0)
        peer = socket.create_connection(server.sockets[0].getsockname())
        await until(lambda: held)
        server.close()
        await turns(2)
        held[0].pause_reading()
        await turns(2)
        return peer

    with resource_warnings() as messages:
        peer = loop.run_until_complete(connect())
        status = loop.create_task(files.os.stat(tmp_path))
        # In the turn in which the task has asked the kernel, and before the next one submits it.
        loop.call_soon(loop.stop if stops else end_elsewhere)
        if stops:
            loop.run_forever()
            end_elsewhere()
        found = loop.run_until_complete(status)
        run_turns(loop, 2)
    assert found.st_ino == tmp_path.stat().st_ino
    assert any(text.startswith("unclosed transport <") for text in messages)
    with peer:
        peer.settimeout(PATIENCE_S)
        assert peer.recv(1) == b""


# References come back


def test_reference_counts_of_callbacks_and_arguments_return(loop):
    callback, argument, context = Thing().method, object(), contextvars.copy_context()
    things = (callback, callback.__self__, argument, context)
    before = [sys.getrefcount(thing) for thing in things]
    for _ in range(100):
        loop.call_soon(callback, argument, context=context)
        loop.call_later(0, callback, argument, context=context)
        loop.call_soon_threadsafe(callback, argument, context=context)
        loop.call_later(3600, callback, argument, context=context).cancel()
        run_turns(loop)
    run_turns(loop, 3)
    assert [sys.getrefcount(thing) for thing in things] == before


def test_reference_counts_return_after_exceptions(loop):
    loop.set_exception_handler(noop)
    error, argument = ZeroDivisionError("shared"), object()

    def fail(_argument):
        raise error.with_traceback(None)

    for _ in range(2):
        run_failing(loop, fail, argument)
    gc.collect()
    before = sys.getrefcount(error), sys.getrefcount(argument), sys.getrefcount(fail)
    for _ in range(50):
        run_failing(loop, fail, argument)
    gc.collect()
    assert (sys.getrefcount(error), sys.getrefcount(argument), sys.getrefcount(fail)) == before


def run_failing(loop, fail, argument):
    loop.call_soon(fail, argument)
    loop.call_later(0, fail, argument)
    run_turns(loop, 2)


@pytest.mark.parametrize("kind", [Recorder, BufferedRecorder], ids=["Protocol", "BufferedProtocol"])
def test_the_reference_count_of_a_protocol_does_not_grow_with_traffic(loop, kind):
    async def main():
        protocol = kind()
        transport, peer = await attach(loop, protocol)
        buffer = getattr(protocol, "buffer", None)
        payload = b"payload"
        with peer:
            counts = []
            for number in range(1, 101):
                peer.send(b"x")
                transport.write(payload)
                await until(lambda number=number: len(protocol.data) == number)
                if number in (50, 100):
                    await turns(2)
                    counts.append([sys.getrefcount(thing) for thing in (protocol, transport, buffer, payload)])
            transport.close()
            await until(lambda: protocol.lost)
        return counts

    first, second = loop.run_until_complete(main())
    if kind is Recorder:
        first[2] = second[2] = 0  # None is everybody's.
    assert first == second


def test_the_reference_count_of_the_loop_returns(loop):
    async def session():
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)
        peer.close()
        await until(lambda: protocol.lost)
        await looks(1)

    for _ in range(2):
        loop.run_until_complete(session())
    gc.collect()
    before = sys.getrefcount(loop)
    for _ in range(20):
        loop.run_until_complete(session())
    gc.collect()
    assert sys.getrefcount(loop) <= before


# Leaks


@pytest.mark.parametrize("style", ["protocol", "streams", "sockets"])
def test_five_hundred_connections_leave_nothing_behind(loop, style):
    class Echo(asyncio.Protocol):
        def connection_made(self, transport):
            self.transport = transport

        def data_received(self, data):
            self.transport.write(data)

    async def by_protocol(address):
        protocol = Recorder()
        transport, _ = await loop.create_connection(lambda: protocol, *address)
        transport.write(b"x" * 100)
        while len(protocol.data) < 100:
            await asyncio.sleep(0)
        transport.close()
        while not protocol.lost:
            await asyncio.sleep(0)

    async def by_streams(address):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"x" * 100)
        await reader.readexactly(100)
        writer.close()
        await writer.wait_closed()

    async def by_sockets(address):
        with socket.socket() as sock:
            sock.setblocking(False)
            await loop.sock_connect(sock, address)
            await loop.sock_sendall(sock, b"x" * 100)
            received = 0
            while received < 100:
                received += len(await loop.sock_recv(sock, 100))

    connect = {"protocol": by_protocol, "streams": by_streams, "sockets": by_sockets}[style]

    async def cycles(count):
        server = await loop.create_server(Echo, HOST, 0)
        for _ in range(count):
            await connect(server.sockets[0].getsockname())
        server.close()
        await server.wait_closed()
        await looks()

    count_objects = count_objects_from_here()
    loop.run_until_complete(cycles(20))
    descriptors, objects = open_descriptors(), count_objects()
    loop.run_until_complete(cycles(500))
    assert count_objects() - objects < 100
    assert not open_descriptors() - descriptors


@pytest.mark.without_debug_mode
def test_a_hundred_thousand_callbacks_and_timers_leave_nothing_behind(loop):
    def round_of(count):
        for _ in range(count):
            loop.call_soon(noop, 1)
            loop.call_later(0, noop, 2)
            loop.call_later(3600, noop, 3).cancel()
        run_turns(loop, 3)

    count_objects = count_objects_from_here()
    round_of(1000)
    objects, blocks = count_objects(), sys.getallocatedblocks()
    for _ in range(10):
        round_of(10_000)
    assert count_objects() - objects < 50
    assert sys.getallocatedblocks() - blocks < 5000, "free lists may keep some"


def test_failing_connections_leave_nothing_behind(loop, refused_port):
    async def attempt():
        with pytest.raises(ConnectionRefusedError):
            await loop.create_connection(Recorder, HOST, refused_port)
        with socket.socket() as sock:
            sock.setblocking(False)
            with pytest.raises(ConnectionRefusedError):
                await loop.sock_connect(sock, (HOST, refused_port))

    count_objects = count_objects_from_here()
    for _ in range(5):
        loop.run_until_complete(attempt())
    descriptors, objects = open_descriptors(), count_objects()
    for _ in range(50):
        loop.run_until_complete(attempt())
    assert count_objects() - objects < 50
    assert not open_descriptors() - descriptors


def test_loops_leave_nothing_behind(loop_factory):
    def use():
        loop = loop_factory()
        loop.run_until_complete(asyncio.sleep(0.0001))
        loop.call_later(3600, noop)
        loop.call_soon(noop)
        finish(loop)

    count_objects = count_objects_from_here()
    for _ in range(3):
        use()
    descriptors, objects = open_descriptors(), count_objects()
    for _ in range(20):
        use()
    assert count_objects() - objects < 50
    assert not open_descriptors() - descriptors


# What an awaitable of a socket holds


def receive_into(loop, sock, thing):
    buffer = Buffer(10)
    buffer.thing = thing
    return loop.sock_recv_into(sock, buffer)


def send(loop, sock, thing):
    buffer = Buffer(10)
    buffer.thing = thing
    return loop.sock_sendall(sock, buffer)


class Buffer(bytearray):
    """A buffer that can hold on to others."""


def fill(sock):
    with contextlib.suppress(BlockingIOError):
        while True:
            sock.send(bytes(65536))


@pytest.mark.ringloop_only
@pytest.mark.without_debug_mode
@pytest.mark.parametrize("start", [receive_into, send])
@pytest.mark.parametrize("end", ["close", "throw", "fail"])
def test_it_goes_at_once_when_the_awaitable_ends(loop, start, end):
    """Not when the extension is entered next. asyncio's coroutines keep it until the loop has turned once more."""
    first, second = socket.socketpair()
    with first, second:
        first.setblocking(False)
        fill(first)
        thing = Thing()
        reference = weakref.ref(thing)
        awaitable = start(loop, first, thing)
        del thing
        future = awaitable.send(None)
        future_reference = weakref.ref(future)
        del future
        if end == "close":
            awaitable.close()
        elif end == "throw":
            with pytest.raises(KeyError):
                awaitable.throw(KeyError)
        else:
            second.close()
            run_turns(loop, 2)
            with pytest.raises((ConnectionError, StopIteration)):
                awaitable.send(None)
        assert future_reference() is None
        del awaitable
        assert reference() is None


@pytest.mark.ringloop_only
@pytest.mark.without_debug_mode
def test_an_exception_that_nobody_took_goes_with_the_awaitable(loop):
    class Failure(Exception):
        pass

    class Port:
        looks = 0

        def __index__(self):
            self.looks += 1
            if self.looks > 1:
                raise failures.pop()
            return 9

    failures = [Failure()]
    reference = weakref.ref(failures[0])
    first, second = tcp_pair()
    with first, second:
        first.setblocking(False)
        fill(first)
        awaitable = loop.sock_sendto(first, b"data", (HOST, Port()))
        awaitable.send(None)
        second.close()
        run_turns(loop, 2)
        assert not failures and reference() is not None
        del awaitable
        assert reference() is None


# Chains

CHAIN = """
import contextvars, functools, gc, socket, threading, warnings

gc.disable()  # It would visit the whole chain again and again while that is made.
warnings.simplefilter("ignore")
ended = 0
variable = contextvars.ContextVar("variable")
ours, peer = socket.socketpair()
ours.setblocking(False)


class Thing:
    def __init__(self, previous):
        self.previous = previous

    def method(self):
        pass

    def __del__(self):
        global ended
        ended += 1


def noop(*arguments):
    pass


def in_context(loop, previous):
    context = contextvars.copy_context()
    context.run(variable.set, previous)
    return loop.call_soon(noop, context=context)


links = {
    "call_soon": lambda loop, previous: loop.call_soon(noop, previous),
    "call_later": lambda loop, previous: loop.call_later(3600, noop, previous),
    "many arguments": lambda loop, previous: loop.call_soon(noop, 1, 2, 3, previous),
    "partial": lambda loop, previous: loop.call_soon(functools.partial(noop, previous)),
    "method": lambda loop, previous: loop.call_soon(Thing(previous).method),
    "context": in_context,
    "awaitable": lambda loop, previous: loop.sock_sendall(ours, previous),
    "awaitable and handle": lambda loop, previous: loop.call_soon(noop, loop.sock_sendall(ours, previous)),
}


def make(count):
    loop = new_loop()
    last = None
    for number in range(count):
        link = links[sys.argv[1]](loop, last)
        # Each goes on with an object whose end is counted.
        last = Thing(link)
    loop.close()
    return last


def drop(chain):
    global ended
    ended = 0
    chain.clear()
    print(ended - (count if sys.argv[1] == "method" else 0) == count)


count = 150_000
threading.stack_size(8 << 20)
# One thread makes and drops it: without the GIL, an object that another thread drops ends when its maker comes to it.
thread = threading.Thread(target=lambda: drop([make(count)]))
thread.start()
thread.join()
"""

LINKS = ("call_soon", "call_later", "many arguments", "partial", "method", "context")


def assert_a_long_chain_can_end(arm, link):
    child = run_child(CHAIN, arm, link, env={"PYTHONASYNCIODEBUG": None})
    assert (child.returncode, child.stdout, child.stderr) == (0, "True\n", "")


@pytest.mark.parametrize("link", LINKS)
def test_a_chain_of_handles_may_be_long(arm, link):
    assert_a_long_chain_can_end(arm, link)


@pytest.mark.ringloop_only
@pytest.mark.parametrize("link", ["awaitable", "awaitable and handle"])
def test_a_chain_of_awaitables_may_be_long(arm, link):
    """CPython's own coroutines cannot end so."""
    assert_a_long_chain_can_end(arm, link)
