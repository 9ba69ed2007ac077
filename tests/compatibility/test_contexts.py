"""The context in which each callback of a connection runs: a table that must equal the running asyncio's.

From Python 3.15 on, all callbacks of a stream transport run in one context, which is copied before the protocol is made (gh-140947).
Before that, each takes a copy of the context in which it is scheduled. These tests name neither: asyncio decides.
"""

import asyncio
import contextvars
import functools
import gc
import socket
import warnings
import weakref

import pytest

from differential import demand_the_same
from support import HOST, PATIENCE_S, finish, nested_turns, tcp_pair, turns, until
from tls_support import NAME, tls_contexts

# Set by the coroutine of the test at each of its steps.
STEP = contextvars.ContextVar("STEP", default="none")
# Set by each callback to its own name, so that the next one in the same context sees it.
LAST = contextvars.ContextVar("LAST", default="none")

MUCH = 4 << 20  # More than the sockets hold.


class Witness:
    """Notes what the first call of each callback sees, and leaves its name in the context."""

    def __init__(self, loop, log):
        self.loop, self.log, self.lost = loop, log, loop.create_future()
        self.seen, self.count, self.transport = set(), 0, None
        self.witness("factory")

    def witness(self, callback):
        if callback not in self.seen:
            self.seen.add(callback)
            self.log.append((callback, STEP.get(), LAST.get()))
            LAST.set(callback)

    def connection_made(self, transport):
        self.transport = transport
        self.witness("connection_made")

    def received(self, data):
        self.witness("received")
        self.count += len(data)

    def pause_writing(self):
        self.witness("pause_writing")

    def resume_writing(self):
        self.witness("resume_writing")

    def eof_received(self):
        self.witness("eof_received")

    def connection_lost(self, error):
        self.witness("connection_lost")
        self.loop.call_soon(self.witness, "scheduled by connection_lost")
        self.lost.set_result(None)


class Plain(Witness, asyncio.Protocol):
    def data_received(self, data):
        self.received(data)


class Buffered(Witness, asyncio.BufferedProtocol):
    def __init__(self, loop, log):
        self.buffer = bytearray(1 << 16)
        super().__init__(loop, log)

    def get_buffer(self, sizehint):
        self.witness("get_buffer")
        return self.buffer

    def buffer_updated(self, count):
        self.received(self.buffer[:count])


class Answering:
    """The server's side: `MUCH` for the first bytes; for b"tls" it goes over to TLS; for b"raise" it raises."""

    def received(self, data):
        super().received(data)
        if data == b"tls":
            self.transport.pause_reading()
            self.upgrading = self.loop.create_task(self.upgrade())
        elif data == b"raise":
            raise ValueError("from a callback")
        else:
            self.loop.call_soon(self.witness, "scheduled by received")
            self.transport.set_write_buffer_limits(high=1000)
            self.transport.write(bytes(MUCH))

    async def upgrade(self):
        self.witness("task")
        self.transport = await self.loop.start_tls(self.transport, self, tls_contexts()[0], server_side=True)
        self.witness("start_tls")


class AnsweringPlain(Answering, Plain):
    pass


class AnsweringBuffered(Answering, Buffered):
    pass


async def connect(kind, loop, factory, server, path):
    """Connect in one of the ways there are; return (transport, protocol)."""
    if kind == "unix":
        return await loop.create_unix_connection(factory, path)
    port = server.sockets[0].getsockname()[1]
    if kind == "name":
        return await loop.create_connection(factory, "localhost", port, family=socket.AF_INET)
    if kind == "sock":
        return await loop.create_connection(factory, sock=socket.create_connection((HOST, port)))
    if kind == "tls":
        return await loop.create_connection(factory, HOST, port, ssl=tls_contexts()[1], server_hostname=NAME)
    return await loop.create_connection(factory, HOST, port)


async def converse(kind, loop, journal, path):
    """Run one connection of this kind from its beginning to its end; what both sides witnessed goes to the journal."""
    on_server, on_client, served = [], [], []
    LAST.set("main")
    STEP.set("server")

    def serve():
        served.append((AnsweringBuffered if kind == "buffered" else AnsweringPlain)(loop, on_server))
        return served[-1]

    def handle_exception(_loop, context):
        on_server.append(("exception handler", context["message"], STEP.get(), LAST.get()))
        LAST.set("exception handler")

    loop.set_exception_handler(handle_exception)
    if kind == "unix":
        server = await loop.create_unix_server(serve, path)
    else:
        server = await loop.create_server(serve, HOST, 0, ssl=tls_contexts()[0] if kind == "tls" else None)
    STEP.set("client")
    factory = functools.partial(Buffered if kind == "buffered" else Plain, loop, on_client)
    transport, protocol = await connect(kind, loop, factory, server, path)
    STEP.set("connected")
    if kind == "raise":
        transport.write(b"raise")
    else:
        if kind == "start_tls":
            transport.write(b"tls")
            await until(lambda: served and served[0].count == 3)
            STEP.set("start_tls")
            transport = await loop.start_tls(transport, protocol, tls_contexts()[1], server_hostname=NAME)
            await served[0].upgrading
            STEP.set("upgraded")
        transport.write(b"go")
        if kind in ("pause", "start_tls"):
            transport.pause_reading()
            await turns(3)
            STEP.set("resumer")
            contextvars.copy_context().run(transport.resume_reading)
        await until(lambda: protocol.count == MUCH)
        STEP.set("end")
        {"abort": transport.abort, "eof": transport.write_eof}.get(kind, transport.close)()
    await until(lambda: served)
    await asyncio.gather(protocol.lost, served[0].lost)
    transport.close()
    server.close()
    await server.wait_closed()
    await turns(2)
    journal.note("server", *on_server)
    journal.note("client", *on_client)
    journal.note("main", STEP.get(), LAST.get())


def converse_by_streams(loop, journal):
    on_server, on_client, handled = [], [], loop.create_future()

    def witness(log, what):
        log.append((what, STEP.get(), LAST.get()))
        LAST.set(what)

    async def handle(reader, writer):
        witness(on_server, "handler")
        writer.write(await reader.readexactly(5))
        witness(on_server, "read")
        await writer.drain()
        await reader.read()
        writer.close()
        await writer.wait_closed()
        witness(on_server, "closed")
        handled.set_result(None)

    async def main():
        STEP.set("server")
        async with await asyncio.start_server(handle, HOST, 0) as server:
            STEP.set("client")
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            STEP.set("connected")
            writer.write(b"hello")
            assert await reader.readexactly(5) == b"hello"
            witness(on_client, "read")
            writer.close()
            await writer.wait_closed()
            await handled
        journal.note("server", *on_server)
        journal.note("client", *on_client)

    loop.run_until_complete(asyncio.wait_for(main(), PATIENCE_S))


KINDS = (
    "address", "name", "sock", "unix", "tls", "start_tls", "buffered", "pause", "abort", "eof", "raise",
)  # fmt: skip


@pytest.mark.ringloop_only
@pytest.mark.parametrize("kind", KINDS)
def test_the_table_of_contexts(loop_factory, kind, tmp_path):
    def body(path, loop, journal):
        loop.run_until_complete(asyncio.wait_for(converse(kind, loop, journal, path), PATIENCE_S))

    # The path of a Unix socket can't be used twice.
    numbers = iter(range(100))
    demand_the_same(lambda loop, journal: body(str(tmp_path / str(next(numbers))), loop, journal), loop_factory)


@pytest.mark.ringloop_only
def test_the_contexts_of_streams(loop_factory):
    demand_the_same(converse_by_streams, loop_factory)


@pytest.mark.ringloop_only
def test_an_accepted_connection_has_a_context_of_its_own(loop_factory):
    """Callbacks of other connections don't see what a callback sets."""

    def body(loop, journal):
        async def main():
            logs = []

            def serve():
                logs.append([])
                return Plain(loop, logs[-1])

            server = await loop.create_server(serve, HOST, 0)
            for _ in range(2):
                with socket.create_connection(server.sockets[0].getsockname()) as sock:
                    sock.send(b"x")
                    await until(lambda: logs and "received" in dict.fromkeys(entry[0] for entry in logs[-1]))
                await until(lambda: logs[-1][-1][0] == "scheduled by connection_lost")
            server.close()
            await server.wait_closed()
            journal.note(*logs)

        loop.run_until_complete(main())

    demand_the_same(body, loop_factory)


@pytest.mark.ringloop_only
def test_the_contexts_of_watches_and_datagrams(loop_factory):
    """These take copies on every Python."""

    def body(loop, journal):
        log = []

        def witness(what):
            log.append((what, STEP.get(), LAST.get()))
            LAST.set(what)

        class Datagrams(asyncio.DatagramProtocol):
            def connection_made(self, transport):
                witness("connection_made")

            def datagram_received(self, data, address):
                witness("datagram_received")

            def connection_lost(self, error):
                witness("connection_lost")

        async def main():
            STEP.set("watch")
            ours, theirs = tcp_pair()
            with ours, theirs:
                loop.add_reader(ours, lambda: (witness("reader"), ours.recv(1)))
                loop.add_writer(theirs, lambda: (witness("writer"), loop.remove_writer(theirs)))
                STEP.set("later")
                theirs.send(b"ab")
                await until(lambda: [entry[0] for entry in log].count("reader") == 2)
                loop.remove_reader(ours)
                journal.note(*sorted(log))
            log.clear()
            STEP.set("endpoint")
            transport, _ = await loop.create_datagram_endpoint(Datagrams, local_addr=(HOST, 0))
            STEP.set("later")
            with socket.socket(type=socket.SOCK_DGRAM) as sock:
                for count in (2, 3):
                    sock.sendto(b"x", transport.get_extra_info("sockname"))
                    await until(lambda count=count: len(log) == count)
            transport.close()
            await until(lambda: len(log) == 4)
            journal.note(*log)

        loop.run_until_complete(main())

    demand_the_same(body, loop_factory)


@pytest.mark.parametrize("way", ["_add_reader", "_add_writer"])
def test_a_watch_in_a_context_that_is_given(loop, way):
    """asyncio's transports do this from Python 3.15 on; the native loop takes it on every Python."""
    if type(loop).__module__.startswith("asyncio") and "context" not in getattr(loop, way).__code__.co_varnames:
        pytest.skip("before Python 3.15 asyncio's takes no context")
    context, seen = contextvars.copy_context(), []
    context.run(STEP.set, "given")
    ours, theirs = tcp_pair()
    remove = getattr(loop, way.replace("add", "remove"))
    with ours, theirs:
        theirs.send(b"x")

        def callback():
            seen.append(STEP.get())
            remove(ours)
            loop.stop()

        handle = getattr(loop, way)(ours, callback, context=context)
        assert handle.get_context() is context if hasattr(handle, "get_context") else handle._context is context
        loop.run_forever()
    assert seen == ["given"]
    assert STEP.get() == "none"


# One context can't be entered twice


class _TurnsTheLoop(Plain):
    """Makes the loop turn in one of its callbacks, when the socket has news of the other kind."""

    def __init__(self, loop, callback):
        self.callback, self.far, self.taken = callback, None, 0
        super().__init__(loop, [])

    def witness(self, callback):
        if callback == self.callback and callback not in self.seen:
            self.seen.add(callback)
            self.far.send(b"news")
            self.take()
            nested_turns(self.loop, 3)

    def take(self):
        """Receive at the far end what there is, so that there is room for more; return how much that was so far."""
        try:
            while True:
                self.taken += len(self.far.recv(1 << 20))
        except BlockingIOError:
            return self.taken


@pytest.mark.ringloop_only
@pytest.mark.parametrize("callback", ["received", "resume_writing"])
def test_what_happens_in_a_nested_turn_is_not_lost(loop, callback):
    """asyncio's handler is told that the context can't be entered."""
    contexts = []
    loop.set_exception_handler(lambda _loop, context: contexts.append(context))

    async def main():
        near, far = tcp_pair()
        with far:
            transport, protocol = await loop.create_connection(
                functools.partial(_TurnsTheLoop, loop, callback), sock=near
            )
            protocol.far = far
            transport.set_write_buffer_limits(high=MUCH, low=0)
            transport.write(bytes(2 * MUCH))
            await turns(3)
            # Now there is more to send than the socket takes.
            far.send(b"first")
            if callback == "received":
                await until(lambda: protocol.seen)
            await until(lambda: protocol.take() == 2 * MUCH)
            # Nothing more happens at the socket; what happened in the nested turn must have been enough.
            await until(lambda: protocol.count == len(b"first" + b"news"))
            transport.abort()
            await protocol.lost

    loop.run_until_complete(asyncio.wait_for(main(), PATIENCE_S))
    finish(loop)
    assert contexts == []


# Memory


class _Value:
    pass


@pytest.mark.ringloop_only
@pytest.mark.parametrize("way", ["close", "abort"])
def test_a_closed_transport_lets_go_of_its_context(loop, way):
    async def connect():
        value = _Value()
        STEP.set(value)
        protocol = Plain(loop, [])
        near, far = tcp_pair()
        transport, _ = await loop.create_connection(lambda: protocol, sock=near)
        return transport, protocol, far, weakref.ref(value)

    transport, protocol, far, reference = loop.run_until_complete(connect())
    with far:
        assert reference() is not None, "the context for what arrives has it"
        getattr(transport, way)()
        loop.run_until_complete(protocol.lost)
        loop.run_until_complete(turns(2))
    del protocol
    gc.collect()
    assert reference() is None
    assert transport.is_closing()


@pytest.mark.ringloop_only
def test_a_transport_in_a_cycle_through_its_context_is_freed(new_loop):
    loop = new_loop()

    async def connect():
        value = _Value()
        STEP.set(value)
        near, far = tcp_pair()
        value.transport, _ = await loop.create_connection(asyncio.Protocol, sock=near)
        await turns(2)
        # So that the loop's table of watches doesn't hold it.
        value.transport.pause_reading()
        await turns(2)
        return weakref.ref(value), far

    reference, far = loop.run_until_complete(connect())
    with far, warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
        gc.collect()
        assert reference() is None
