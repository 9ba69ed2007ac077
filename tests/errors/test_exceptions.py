"""Exceptions from users' code: where they go, how they are reported, and what continues."""

import asyncio
import gc
import logging
import socket
import sys
import warnings
import weakref

import pytest

from support import (
    PATIENCE_S,
    BufferedRecorder,
    Oops,
    Recorder,
    Strange,
    attach,
    capture_contexts,
    receive_all,
    run_child,
    run_turns,
    same_as_asyncio,
    skip_unless,
    tcp_listener,
    tcp_pair,
    turns,
    until,
)

# The handler


def test_no_handler_is_set_at_first_and_none_restores_the_default(loop, caplog):
    def handler(loop, context):
        pass

    assert loop.get_exception_handler() is None
    assert loop.set_exception_handler(handler) is None
    assert loop.get_exception_handler() is handler
    loop.set_exception_handler(None)
    assert loop.get_exception_handler() is None
    loop.call_exception_handler({"message": "to the log"})
    assert [record.getMessage() for record in caplog.records] == ["to the log"]


@pytest.mark.parametrize("bad", [5, "text", []], ids=repr)
def test_a_handler_must_be_callable(loop, bad):
    with pytest.raises(TypeError) as caught:
        loop.set_exception_handler(bad)
    assert str(caught.value) == f"A callable object or None is expected, got {bad!r}"


def test_a_handler_gets_the_loop_and_the_very_context(loop):
    calls = []
    loop.set_exception_handler(lambda *arguments: calls.append(arguments))
    context = {"message": "m", "anything": object()}
    loop.call_exception_handler(context)
    assert len(calls) == 1
    assert calls[0][0] is loop and calls[0][1] is context


def test_the_default_handlers_log_text(loop, caplog):
    error = Oops("bad")
    loop.default_exception_handler({"message": "Title", "zeta": 1, "exception": error, "alpha": "a"})
    [record] = caplog.records
    assert (record.name, record.levelno) == ("asyncio", logging.ERROR)
    assert record.getMessage() == "Title\nalpha: 'a'\nzeta: 1"
    assert record.exc_info[:2] == (Oops, error)


def test_the_default_handler_without_message_or_exception(loop, caplog):
    loop.default_exception_handler({})
    loop.default_exception_handler({"message": ""})
    assert [record.getMessage() for record in caplog.records] == ["Unhandled exception in event loop"] * 2
    assert not caplog.records[0].exc_info


@pytest.mark.without_debug_mode
def test_a_failed_callback_in_the_log(loop, caplog):
    def fail():
        raise Oops("bad")

    loop.call_soon(fail)
    run_turns(loop)
    [record] = caplog.records
    location = f"{__file__}:{fail.__code__.co_firstlineno}"
    name = f"{fail.__qualname__}() at {location}"
    assert record.getMessage() == f"Exception in callback {name}\nhandle: <Handle {name}>"
    assert record.exc_info[0] is Oops


def test_a_handler_that_fails_is_reported_with_both_errors(loop, caplog):
    def handler(loop, context):
        raise Oops("handler failed")

    loop.set_exception_handler(handler)
    loop.call_exception_handler({"message": "the first problem"})
    [record] = caplog.records
    assert record.getMessage() == "Unhandled error in exception handler\ncontext: {'message': 'the first problem'}"
    assert str(record.exc_info[1]) == "handler failed"


def test_a_handler_that_fails_does_not_stop_the_loop(loop, caplog):
    trace = []

    def handler(loop, context):
        raise Strange

    def fail():
        raise Oops

    loop.set_exception_handler(handler)
    loop.call_soon(fail)
    loop.call_soon(trace.append, "after")
    run_turns(loop)
    assert trace == ["after"]
    assert len(caplog.records) == 1


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_a_handler_may_leave_the_loop(loop, kind):
    def handler(loop, context):
        raise kind("from the handler")

    def fail():
        raise Oops

    loop.set_exception_handler(handler)
    loop.call_soon(fail)
    with pytest.raises(kind, match="from the handler"):
        loop.run_forever()


def test_a_default_handler_that_fails_is_logged(loop, caplog):
    class Unprintable:
        def __repr__(self):
            raise Oops("no repr")

    loop.call_exception_handler({"message": "m", "thing": Unprintable()})
    [record] = caplog.records
    assert record.getMessage() == "Exception in default exception handler"
    assert record.exc_info[0] is Oops


def test_a_handler_runs_in_the_context_of_the_failed_task(loop):
    skip_unless(
        "thing" in asyncio.BaseEventLoop.call_exception_handler.__code__.co_varnames, "handler in the task's context"
    )
    import contextvars

    variable = contextvars.ContextVar("variable", default="outside")
    seen = []
    loop.set_exception_handler(lambda loop, context: seen.append(variable.get()))

    def fail():
        variable.set("inside")
        raise Oops

    async def fail_as_task():
        fail()

    async def main():
        loop.call_soon(fail)
        task = loop.create_task(fail_as_task())
        await turns(3)
        del task
        gc.collect()

    loop.run_until_complete(main())
    assert seen == ["inside", "inside"]


# Protocol callbacks that raise


def failing(base, name, error):
    """Return an instance of the recorder `base` whose callback `name` raises after it wrote itself down."""

    def method(self, *arguments):
        if name in ("get_buffer",):
            self.events.append((name, *arguments))
        else:
            getattr(base, name)(self, *arguments)
        raise error

    method.__qualname__ = f"Failing.{name}"
    return type("Failing", (base,), {name: method})()


async def hung_up(loop, peer):
    """Wait for the other side's end: an orderly one, or the RST that the kernel sends when data was left unread."""
    try:
        assert await receive_all(loop, peer) == b""
    except ConnectionResetError:
        pass


def converse(loop, protocol, data=b"x", hang_up=False):
    """Attach the protocol, send it data, wait for the end; return the contexts that the handler got."""
    contexts = capture_contexts(loop)

    async def main():
        transport, peer = await attach(loop, protocol)
        with peer:
            if data:
                peer.send(data)
            if hang_up:
                peer.shutdown(socket.SHUT_WR)
            await until(lambda: protocol.lost, "connection_lost")
            await hung_up(loop, peer)
        return transport

    transport = loop.run_until_complete(main())
    return contexts, transport


FATAL = {
    "data_received": (Recorder, False),
    "eof_received": (Recorder, True),
    "get_buffer": (BufferedRecorder, False),
    "buffer_updated": (BufferedRecorder, False),
}


@pytest.mark.parametrize("error", [Oops("bad"), Strange("odd"), asyncio.CancelledError()], ids=repr)
@pytest.mark.parametrize("name", FATAL)
def test_a_failing_callback_is_reported_and_ends_the_connection(loop, name, error):
    base, hang_up = FATAL[name]
    protocol = failing(base, name, error)
    contexts, transport = converse(loop, protocol, data=b"" if hang_up else b"x", hang_up=hang_up)
    [context] = contexts
    assert context == {
        "message": f"Fatal error: protocol.{name}() call failed.",
        "exception": error,
        "transport": transport,
        "protocol": protocol,
    }
    assert protocol.names.count(name) == 1
    assert protocol.names[-1] == "connection_lost"
    assert protocol.error is error


@pytest.mark.parametrize("name", FATAL)
def test_a_buffered_eof_or_data_callback_that_fails_with_os_error_is_quiet(loop, name, caplog):
    """asyncio takes an OSError from a callback for a connection error: no report, the connection ends with it."""
    error = ConnectionResetError(104, "made up")
    base, hang_up = FATAL[name]
    protocol = failing(base, name, error)
    contexts, _ = converse(loop, protocol, data=b"" if hang_up else b"x", hang_up=hang_up)
    assert contexts == []
    assert protocol.error is error


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize("name", FATAL)
def test_an_exit_from_a_protocol_callback_leaves_the_loop(loop, name, kind):
    base, hang_up = FATAL[name]
    protocol = failing(base, name, kind("out"))
    contexts = capture_contexts(loop)
    transports = []

    async def main():
        transport, peer = await attach(loop, protocol)
        transports.append((transport, peer))
        if not hang_up:
            peer.send(b"x")
        peer.shutdown(socket.SHUT_WR)
        await asyncio.sleep(PATIENCE_S)

    with pytest.raises(kind, match="out"):
        loop.run_until_complete(main())
    assert contexts == []
    assert not loop.is_running()
    transport, peer = transports.pop()
    transport.abort()
    peer.close()
    run_turns(loop, 2)
    assert protocol.lost


@pytest.mark.parametrize(
    "buffer, message, kind",
    [
        (bytearray(), "Fatal error: protocol.get_buffer() call failed.", RuntimeError),
        (memoryview(b""), "Fatal error: protocol.get_buffer() call failed.", RuntimeError),
        (None, "Fatal error: protocol.get_buffer() call failed.", TypeError),
        (5, "Fatal error: protocol.get_buffer() call failed.", TypeError),
        ([1, 2], "Fatal read error on socket transport", TypeError),
        (b"read only", "Fatal read error on socket transport", TypeError),
        ("text", "Fatal read error on socket transport", TypeError),
        (memoryview(bytearray(10))[::2], "Fatal read error on socket transport", (BufferError, TypeError)),
    ],
    ids=["empty", "empty view", "None", "int", "list", "bytes", "str", "strided"],
)
def test_a_wrong_buffer_is_reported_and_ends_the_connection(loop, buffer, message, kind):
    protocol = BufferedRecorder()
    protocol.buffer = buffer
    contexts, transport = converse(loop, protocol)
    [context] = contexts
    assert context["message"] == message
    assert isinstance(context["exception"], kind)
    assert context["transport"] is transport and context["protocol"] is protocol
    assert sorted(context) == ["exception", "message", "protocol", "transport"]
    assert protocol.error is context["exception"]
    assert "buffer_updated" not in protocol.names


def test_the_text_about_an_empty_buffer(loop):
    protocol = BufferedRecorder(size=0)
    contexts, _ = converse(loop, protocol)
    assert str(contexts[0]["exception"]) == "get_buffer() returned an empty buffer"


@pytest.mark.without_debug_mode
def test_connection_made_that_fails_is_reported_and_the_connection_goes_on(loop):
    error = Oops("bad")
    protocol = failing(Recorder, "connection_made", error)
    contexts, _ = converse(loop, protocol, hang_up=True)
    [context] = contexts
    assert sorted(context) == ["exception", "handle", "message"]
    assert context["message"].startswith("Exception in callback Failing.connection_made(")
    assert context["exception"] is error
    assert isinstance(context["handle"], asyncio.Handle)
    assert protocol.names == ["connection_made", "data_received", "eof_received", "connection_lost"]
    assert protocol.error is None


@pytest.mark.without_debug_mode
def test_connection_lost_that_fails_is_reported_and_the_socket_is_closed(loop):
    error = Oops("bad")
    protocol = failing(Recorder, "connection_lost", error)
    contexts, transport = converse(loop, protocol, hang_up=True)
    [context] = contexts
    assert sorted(context) == ["exception", "handle", "message"]
    assert context["message"].startswith("Exception in callback ") and "connection_lost" in context["message"]
    assert context["exception"] is error
    assert transport.is_closing()
    assert transport.get_extra_info("socket").fileno() == -1


@pytest.mark.parametrize("name", ["pause_writing", "resume_writing"])
def test_flow_control_callbacks_that_fail_are_reported_and_writing_goes_on(loop, name):
    error = Oops("bad")
    protocol = failing(Recorder, name, error)
    contexts = capture_contexts(loop)
    amount = 8 << 20

    async def main():
        transport, peer = await attach(loop, protocol)
        transport.set_write_buffer_limits(high=1000)
        transport.write(bytes(amount))
        transport.close()
        with peer:
            assert len(await receive_all(loop, peer)) == amount
        await until(lambda: protocol.lost)
        return transport

    transport = loop.run_until_complete(main())
    [context] = contexts
    assert context == {
        "message": f"protocol.{name}() failed",
        "exception": error,
        "transport": transport,
        "protocol": protocol,
    }
    assert protocol.names == ["connection_made", "pause_writing", "resume_writing", "connection_lost"]
    assert protocol.error is None


# Factories that raise


def test_a_factory_that_fails_makes_create_connection_fail(loop):
    accepted = []

    async def main():
        server = await loop.create_server(lambda: accepted.append(Recorder()) or accepted[-1], "127.0.0.1", 0)
        address = server.sockets[0].getsockname()
        error = Oops("no protocol")

        def factory():
            raise error

        with pytest.raises(Oops) as caught:
            await loop.create_connection(factory, *address)
        assert caught.value is error
        error.__traceback__ = None
        del caught, factory
        gc.collect()
        await until(lambda: accepted and accepted[0].lost, "the server sees the end")
        server.close()
        await server.wait_closed()

    with warnings.catch_warnings():
        # Before 3.14 asyncio leaves the unused socket to the garbage collector, which says so.
        warnings.simplefilter("ignore", ResourceWarning)
        loop.run_until_complete(main())


@pytest.mark.parametrize("debug", [False, True], ids=["plain", "debug"])
def test_a_factory_that_fails_on_the_server_drops_that_connection_alone(loop, debug):
    loop.set_debug(debug)
    contexts = capture_contexts(loop)
    protocols = []

    def factory():
        if not protocols:
            protocols.append(None)
            raise Oops("no protocol")
        protocols.append(Recorder())
        return protocols[-1]

    async def main():
        server = await loop.create_server(factory, "127.0.0.1", 0)
        address = server.sockets[0].getsockname()
        with socket.create_connection(address) as first:
            first.setblocking(False)
            await until(lambda: protocols)
            await turns(3)
            reports = [(context["message"], repr(context["exception"]), sorted(context)) for context in contexts]
            for context in contexts:
                context["exception"].__traceback__ = None
            contexts.clear()
            gc.collect()
            await hung_up(loop, first)
        with socket.create_connection(address) as second:
            second.send(b"hello")
            await until(lambda: len(protocols) == 2 and protocols[1].data == b"hello")
        await until(lambda: protocols[1].lost)
        server.close()
        await server.wait_closed()
        return reports

    with warnings.catch_warnings():
        # asyncio leaves the accepted socket to the garbage collector, which says so.
        warnings.simplefilter("ignore", ResourceWarning)
        reports = loop.run_until_complete(main())
    expected = ("Error on transport creation for incoming connection", "Oops('no protocol')", ["exception", "message"])
    assert reports == ([expected] if debug else [])


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_a_server_factory_that_exits_leaves_the_loop(loop, kind):
    # The task of the connection may be reported; a log record would keep its frames, and with them the socket.
    loop.set_exception_handler(lambda loop, context: None)
    protocols = []

    def factory():
        if not protocols:
            protocols.append(None)
            raise kind("out")
        return Recorder()

    async def main():
        server = await loop.create_server(factory, "127.0.0.1", 0)
        with socket.create_connection(server.sockets[0].getsockname()):
            try:
                await asyncio.sleep(PATIENCE_S)
            finally:
                server.close()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        with pytest.raises(kind, match="out") as caught:
            loop.run_until_complete(main())
        caught.value.__traceback__ = None
        del caught
        for task in asyncio.all_tasks(loop):
            task.cancel()
        run_turns(loop, 3)
        gc.collect()
    assert not loop.is_running()


def test_a_factory_that_returns_no_protocol(loop):
    ours, peer = tcp_pair()

    async def main():
        with pytest.raises(AttributeError, match="^'NoneType' object has no attribute 'connection_made'$"):
            await loop.connect_accepted_socket(lambda: None, ours)

    with warnings.catch_warnings(), peer:
        # asyncio leaves what it had made so far to the garbage collector, which says so.
        warnings.simplefilter("ignore", ResourceWarning)
        loop.run_until_complete(main())
        gc.collect()
        ours.close()


# Objects that die, and callbacks that pull the rug away


class Rug(Recorder):
    """Does `action(protocol)` in the callback `where`."""

    def __init__(self, where, action):
        super().__init__()
        self.where, self.action = where, action

    def _act(self, name):
        if name == self.where:
            self.action(self)

    def connection_made(self, transport):
        super().connection_made(transport)
        self._act("connection_made")

    def data_received(self, data):
        super().data_received(data)
        self._act("data_received")

    def eof_received(self):
        super().eof_received()
        self._act("eof_received")

    def connection_lost(self, error):
        super().connection_lost(error)
        self._act("connection_lost")


def forget(protocol):
    protocol.transport = None
    gc.collect()


ACTIONS = {
    "close": lambda protocol: protocol.transport.close(),
    "abort": lambda protocol: protocol.transport.abort(),
    "close then abort": lambda protocol: (protocol.transport.close(), protocol.transport.abort()),
    "forget": forget,
    "pause and resume": lambda protocol: (protocol.transport.pause_reading(), protocol.transport.resume_reading()),
    "write": lambda protocol: protocol.transport.write(b"y" * 100_000),
    "write and close": lambda protocol: (protocol.transport.write(b"y" * 100_000), protocol.transport.close()),
    "write_eof": lambda protocol: protocol.transport.write_eof(),
    "collect": lambda protocol: gc.collect(),
    "stop": lambda protocol: asyncio.get_running_loop().stop(),
    "cancel all": lambda protocol: asyncio.get_running_loop().call_soon(lambda: None).cancel(),
    "repr": lambda protocol: repr(protocol.transport),
}


@pytest.mark.parametrize("where", ["connection_made", "data_received", "eof_received", "connection_lost"])
@pytest.mark.parametrize("action", ACTIONS.values(), ids=ACTIONS)
def test_callbacks_may_do_anything_to_their_own_connection(loop_factory, where, action):
    """Every callback comes at most once, in order, and the connection ends without an error report."""

    def body(loop):
        contexts = capture_contexts(loop)
        protocol = Rug(where, action)

        async def main():
            ours, peer = tcp_pair()
            with peer:
                peer.send(b"x")
                peer.shutdown(socket.SHUT_WR)
                await loop.connect_accepted_socket(lambda: protocol, ours)
                await until(lambda: protocol.lost)

        task = loop.create_task(main())
        while not task.done():
            try:
                loop.run_until_complete(task)
            except RuntimeError as error:
                assert str(error) == "Event loop stopped before Future completed."
        task.result()
        return protocol.names, [context["message"] for context in contexts]

    names, messages = same_as_asyncio(body, loop_factory)
    assert messages == []
    assert names[0] == "connection_made" and names[-1] == "connection_lost"


@pytest.mark.parametrize("where", ["connection_made", "data_received", "eof_received"])
def test_a_protocol_may_replace_itself_anywhere(loop, where):
    successors = []

    def replace(protocol):
        successors.append(Recorder())
        protocol.transport.set_protocol(successors[-1])
        gc.collect()

    async def main():
        protocol = Rug(where, replace)
        reference = weakref.ref(protocol)
        _, peer = await attach(loop, protocol)
        with peer:
            peer.send(b"x")
            await until(lambda: (where == "eof_received" and protocol.data) or successors)
            peer.shutdown(socket.SHUT_WR)
            await until(lambda: successors and successors[0].lost)
        assert not protocol.lost
        return reference

    reference = loop.run_until_complete(main())
    gc.collect()
    assert reference() is None
    assert successors[0].names[-1] == "connection_lost"


def test_a_protocol_that_nobody_else_holds_lives_as_long_as_its_connection(loop):
    events = []

    class Lonely(asyncio.Protocol):
        def data_received(self, data):
            gc.collect()
            events.append(data)

        def connection_lost(self, error):
            gc.collect()
            events.append(error)

        def __del__(self):
            events.append("dead")

    async def main():
        await attach_and_forget()
        gc.collect()
        await until(lambda: "dead" in events)

    async def attach_and_forget():
        protocol = Lonely()
        _, peer = await attach(loop, protocol)
        peer.send(b"x")
        del protocol
        await until(lambda: events)
        peer.close()
        await until(lambda: None in events)

    loop.run_until_complete(main())
    assert events == [b"x", None, "dead"]


def test_a_buffer_may_be_resized_in_buffer_updated(loop):
    class Resizes(BufferedRecorder):
        def buffer_updated(self, count):
            super().buffer_updated(count)
            self.buffer.extend(b"grown")
            del self.buffer[:1]
            self.buffer = bytearray(len(self.buffer) + 1)

    async def main():
        protocol = Resizes(size=10)
        _, peer = await attach(loop, protocol)
        with peer:
            peer.send(bytes(range(256)) * 10)
            await until(lambda: len(protocol.data) == 2560)
        await until(lambda: protocol.lost)
        return bytes(protocol.data)

    assert loop.run_until_complete(main()) == bytes(range(256)) * 10


@pytest.mark.parametrize("how", ["close", "abort"])
def test_get_buffer_may_end_the_connection(loop, how):
    contexts = capture_contexts(loop)

    class Ends(BufferedRecorder):
        def get_buffer(self, sizehint):
            getattr(self.transport, how)()
            return super().get_buffer(sizehint)

    async def main():
        protocol = Ends()
        _, peer = await attach(loop, protocol)
        with peer:
            peer.send(b"x")
            await until(lambda: protocol.lost)
        return protocol.names

    names = loop.run_until_complete(main())
    assert contexts == []
    assert names.count("get_buffer") == 1 and names[-1] == "connection_lost"


@pytest.mark.parametrize("where", ["get_buffer", "buffer_updated"])
def test_a_buffered_protocol_may_replace_itself(loop, where):
    """The bytes of a read belong to the protocol that the transport has when they have arrived."""
    contexts = capture_contexts(loop)
    buffer = bytearray(100)
    received = []

    class Successor(asyncio.BufferedProtocol):
        def get_buffer(self, sizehint):
            return buffer

        def buffer_updated(self, count):
            received.append((type(self).__name__, bytes(buffer[:count])))

    class Leaves(Successor):
        def get_buffer(self, sizehint):
            if where == "get_buffer":
                transport.set_protocol(Successor())
            return super().get_buffer(sizehint)

        def buffer_updated(self, count):
            super().buffer_updated(count)
            transport.set_protocol(Successor())

    async def main():
        nonlocal transport
        transport, peer = await attach(loop, Leaves())
        with peer:
            for part in (b"first", b"second"):
                peer.send(part)
                await until(lambda part=part: received and received[-1][1] == part)
        transport.close()

    transport = None
    loop.run_until_complete(main())
    first = "Successor" if where == "get_buffer" else "Leaves"
    assert received == [(first, b"first"), ("Successor", b"second")]
    assert contexts == []


def test_a_repr_that_fails_does_not_take_the_loop_along(loop, caplog):
    class Broken(Recorder):
        def __repr__(self):
            raise Oops("no repr")

        def data_received(self, data):
            raise ValueError("bad data")

    async def main():
        protocol = Broken()
        _, peer = await attach(loop, protocol)
        with peer:
            peer.send(b"x")
            await until(lambda: protocol.lost)

    loop.run_until_complete(main())
    assert [record.getMessage() for record in caplog.records] == ["Exception in default exception handler"]


def test_a_destructor_that_raises_goes_to_the_unraisable_hook(loop, monkeypatch):
    seen = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: seen.append(type(unraisable.exc_value)))

    class Broken:
        def __del__(self):
            raise Oops("in a destructor")

        def __call__(self):
            pass

    loop.call_soon(Broken())
    loop.call_later(3600, Broken()).cancel()
    loop.call_soon(print, Broken()).cancel()
    run_turns(loop, 2)
    assert seen == [Oops] * 3


def test_an_exception_during_an_exception_handler_call_from_a_thread(loop):
    contexts = capture_contexts(loop)

    async def main():
        await loop.run_in_executor(None, loop.call_exception_handler, {"message": "from a thread"})

    loop.run_until_complete(main())
    assert contexts == [{"message": "from a thread"}]


def test_deep_recursion_in_a_callback_is_an_ordinary_error(loop):
    contexts = capture_contexts(loop)
    trace = []

    def deeper():
        deeper()

    loop.call_soon(deeper)
    loop.call_soon(trace.append, "after")
    run_turns(loop)
    assert isinstance(contexts[0]["exception"], RecursionError)
    assert trace == ["after"]


def test_memory_errors_and_odd_exceptions_do_not_abort_the_process(arm):
    child = run_child(
        """
        loop = new_loop()
        told = []
        loop.set_exception_handler(lambda loop, context: told.append(type(context["exception"]).__name__))

        class Protocol(asyncio.Protocol):
            def data_received(self, data):
                raise MemoryError
            def connection_lost(self, error):
                raise BaseException("odd")

        async def main():
            server = await loop.create_server(Protocol, "127.0.0.1", 0)
            for _ in range(5):
                reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
                writer.write(b"x")
                try:
                    await reader.read()
                except ConnectionResetError:
                    pass
                writer.close()
            server.close()
            await server.wait_closed()
            await support.until(lambda: len(told) == 10)

        loop.run_until_complete(main())
        loop.close()
        print(sorted(told))
        """,
        arm,
        python_flags=("-X", "dev", "-W", "error::RuntimeWarning"),
    )
    assert child.returncode == 0, child.stderr
    assert child.stdout.strip() == str(sorted(["MemoryError", "BaseException"] * 5))


# StopIteration, which stands for a coroutine's result


class NoBuffer:
    """An object that is asked for its bytes, from Python 3.12 on."""

    def __len__(self):
        return 3

    def __buffer__(self, flags):
        raise StopIteration("the buffer's")


def fail_at_stop(*_arguments):
    raise StopIteration("the factory's")


async def stop_in_a_factory(loop, stream, peer):
    with tcp_listener() as listener:
        await loop.create_connection(fail_at_stop, *listener.getsockname())


async def stop_in_drain(loop, stream, peer):
    reader, writer = stream
    await writer.drain()
    reader.set_exception(StopIteration("the reader's"))
    await writer.drain()


async def stop_in_drain_of_a_task(loop, stream, peer):
    reader, writer = stream
    await writer.drain()
    reader.set_exception(StopIteration("the reader's"))
    await loop.create_task(writer.drain())


async def stop_in_read(loop, stream, peer):
    stream[0].set_exception(StopIteration("the reader's"))
    await stream[0].read(1)


async def stop_in_sock_sendall(loop, stream, peer):
    await loop.sock_sendall(peer, NoBuffer())


STOPS = {
    "a protocol factory": stop_in_a_factory,
    "drain": stop_in_drain,
    "drain, in a task of its own": stop_in_drain_of_a_task,
    "read": stop_in_read,
    "sock_sendall": stop_in_sock_sendall,
}


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # asyncio leaves a socket to the collector
@pytest.mark.parametrize("what", STOPS)
def test_stop_iteration_is_no_result(loop_factory, what):
    """It used to be taken for what the coroutine returns, or to end its task's step, and with it all waiting."""
    if what == "sock_sendall":
        skip_unless(sys.version_info >= (3, 12), "__buffer__ in Python")

    def body(loop):
        async def main():
            ours, peer = tcp_pair()
            stream = await asyncio.open_connection(sock=ours)
            peer.setblocking(False)
            with peer, pytest.raises(RuntimeError) as caught:
                await STOPS[what](loop, stream, peer)
            stream[1].transport.abort()
            await turns(3)
            gc.collect()
            error, causes = caught.value, []
            while (error := error.__cause__) is not None:
                causes.append((type(error), error.args, error is caught.value.__context__))
            return str(caught.value), causes

        return loop.run_until_complete(main())

    text, causes = same_as_asyncio(body, loop_factory)
    assert text == "coroutine raised StopIteration"
    assert [cause[0] for cause in causes] == [StopIteration]
