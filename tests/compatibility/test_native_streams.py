"""Streams with native methods behave as asyncio's own: the same random programs give the same results, states and calls."""

import _thread
import asyncio
import contextlib
import contextvars
import copy
import gc
import inspect
import math
import operator
import pickle
import socket
import subprocess
import sys
import warnings
import weakref
from collections.abc import Coroutine
from unittest import mock

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ringloop import _streams
from support import HOST, PATIENCE_S, examples, noop, same_as_asyncio, turns, until

COMMON = {
    "deadline": None,
    "database": None,
    "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
}

pytestmark = [pytest.mark.ringloop_only, pytest.mark.without_debug_mode]


# Random programs


class Transport:
    """Writes down what a stream calls."""

    def __init__(self, trace):
        self.trace = trace
        self.closing = False

    def pause_reading(self):
        self.trace.append("pause_reading")

    def resume_reading(self):
        self.trace.append("resume_reading")

    def is_closing(self):
        return self.closing

    def write(self, data):
        self.trace.append(("write", bytes(data)))

    def get_extra_info(self, name, default=None):
        return default

    def close(self):
        self.closing = True


# Few letters, so that separators are found at all places.
DATA = st.text("ab\n", max_size=12).map(str.encode)
COUNTS = st.integers(-1, 9)

ACTIONS = st.one_of(
    st.tuples(st.just("feed"), DATA),
    st.tuples(st.just("feed"), DATA),
    st.tuples(st.sampled_from(["read", "readexactly"]), COUNTS),
    st.tuples(st.just("readuntil"), st.sampled_from([b"\n", b"ab", b"aab", b"b", b"", "b", bytearray(b"a")])),
    st.tuples(
        st.sampled_from(
            ["readline", "drain", "feed_eof", "set_exception", "wake", "drop", "next", "exception", "at_eof"]
        )
    ),
    st.tuples(st.sampled_from(["cancel", "close", "throw", "cancel soon"])),
    st.tuples(st.sampled_from(["pause_writing", "resume_writing", "connection_lost", "closing"])),
    st.tuples(st.just("turns"), st.integers(1, 4)),
    st.tuples(st.just("turns"), st.integers(1, 4)),
)


def outcome(task):
    if not task.done():
        return "pending"
    if task.cancelled():
        return "cancelled"
    if (error := task.exception()) is not None:
        return (
            type(error),
            str(error),
            getattr(error, "partial", None),
            getattr(error, "consumed", None),
            type(error.__context__),
        )
    result = task.result()
    return (type(result), result)


async def run(program, kind, limit):
    """Return what a program does to a reader and a writer, step by step."""
    loop = asyncio.get_running_loop()
    trace, tasks, calls = [], [], []
    transport = Transport(trace)
    if kind == "server's":
        reader = _streams.ServerReader(limit=limit, loop=loop)
        protocol = _streams.ServerProtocol(reader, lambda *streams: made.append(streams), loop=loop)
        made = []
        protocol.connection_made(transport)
        [(_, writer)] = made
    else:
        reader = asyncio.StreamReader(limit=limit, loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        protocol.connection_made(transport)
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
    if kind == "adopted":
        reader.__class__, writer.__class__ = _streams.StreamReader, _streams.StreamWriter

    def start(call):
        tasks.append(loop.create_task(call))

    def perform(action):
        match action:
            case ("feed", data):
                reader.feed_data(data)
            case ("read" | "readexactly" | "readuntil" as name, argument):
                start(getattr(reader, name)(argument))
            case ("readline",):
                start(reader.readline())
            case ("next",):
                start(anext(reader))
            case ("drain",):
                writer.write(b"data")
                start(writer.drain())
            case ("feed_eof",):
                reader.feed_eof()
            case ("set_exception",):
                reader.set_exception(ValueError("set"))
            case ("wake",):
                reader._wakeup_waiter()
            case ("exception",):
                trace.append(repr(reader.exception()))
            case ("at_eof",):
                trace.append(reader.at_eof())
            case ("cancel",) if tasks:
                tasks[-1].cancel()
            case ("cancel soon",) if tasks:
                loop.call_soon(tasks[-1].cancel)
            case ("drop",):
                call = reader.read(4)
                with contextlib.suppress(StopIteration, RuntimeError, ValueError):
                    trace.append(asyncio.isfuture(call.send(None)))
                del call
                gc.collect()
            case ("close",):
                call = reader.readexactly(4)
                with contextlib.suppress(StopIteration, EOFError, RuntimeError, ValueError):
                    call.send(None)
                call.close()
                calls.append(call)
            case ("throw",):
                call = reader.readline()
                try:
                    call.send(None)
                    call.throw(KeyError("thrown"))
                except BaseException as error:
                    trace.append((type(error), str(error)))
                calls.append(call)
            case ("pause_writing",) if not protocol._paused:
                protocol.pause_writing()
            case ("resume_writing",) if protocol._paused:
                protocol.resume_writing()
            case ("connection_lost",) if not protocol._connection_lost:
                protocol.connection_lost(None)
            case ("closing",):
                transport.closing = True

    for action in program:
        if action[0] == "turns":
            await turns(action[1])
        try:
            perform(action)
        except Exception as error:
            trace.append((type(error), str(error)))
        state = (bytes(reader._buffer), reader._eof, reader._paused, reader._waiter is None, repr(reader._exception))
        trace.append((action, state, [outcome(task) for task in tasks]))
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    trace.append([outcome(task) for task in tasks])
    transport.closing = True
    return trace


@pytest.mark.examples
@settings(max_examples=examples(400), **COMMON)
@given(program=st.lists(ACTIONS, max_size=25), limit=st.sampled_from([1, 2, 5, 2**16]))
@example(program=[("read", 4), ("turns", 1), ("feed", b"abc"), ("set_exception",), ("turns", 2)], limit=5)
@example(program=[("readexactly", 9), ("turns", 1), ("feed", b"ab"), ("feed_eof",), ("turns", 2)], limit=5)
@example(
    program=[
        ("readexactly", 9),
        ("turns", 1),
        ("feed", b"ab"),
        ("turns", 2),
        ("feed_eof",),
        ("set_exception",),
        ("turns", 2),
    ],
    limit=5,
)
@example(program=[("feed", b"aaaaaaaaaaab\n"), ("readuntil", b"b"), ("readline",), ("turns", 2)], limit=2)
@example(program=[("read", 4), ("turns", 1), ("read", 4), ("turns", 1), ("feed", b"a"), ("turns", 3)], limit=2)
@example(program=[("read", 4), ("turns", 1), ("feed", b"a"), ("cancel",), ("turns", 3)], limit=2)
@example(program=[("feed", b"ab"), ("read", -1), ("turns", 2), ("feed", b"cd"), ("turns", 2), ("feed_eof",)], limit=1)
@example(program=[("read", -1), ("turns", 1), ("feed", b"ab"), ("set_exception",), ("turns", 2)], limit=5)
@example(program=[("read", -1), ("turns", 1), ("wake",), ("turns", 2), ("feed", b"a"), ("turns", 2)], limit=5)
@example(program=[("pause_writing",), ("drain",), ("turns", 2), ("resume_writing",), ("turns", 3)], limit=2)
@example(
    program=[
        ("feed", b"a"),
        ("readuntil", b"\n"),
        ("readuntil", bytearray(b"a")),
        ("turns", 1),
        ("feed", b"\na"),
        ("turns", 1),
    ],
    limit=1,
)
@example(
    program=[("feed", b"a"), ("readline",), ("readexactly", 1), ("turns", 1), ("feed", b"\na"), ("turns", 1)], limit=1
)
def test_random_programs(loop, program, limit):
    with warnings.catch_warnings():
        # Whatever is never awaited, here and there.
        warnings.simplefilter("ignore")
        theirs = loop.run_until_complete(run(program, "asyncio's", limit))
        adopted = loop.run_until_complete(run(program, "adopted", limit))
        of_a_server = loop.run_until_complete(run(program, "server's", limit))
    assert adopted == theirs
    assert of_a_server == theirs


# What a program sees of the classes


@contextlib.asynccontextmanager
async def connected(callback=None, **options):
    """Yield a server's streams and a client's, of one connection: (reader, writer), (reader, writer)."""
    accepted = asyncio.get_running_loop().create_future()
    done = asyncio.Event()

    async def serve(reader, writer):
        accepted.set_result((reader, writer))
        await done.wait()

    server = await asyncio.start_server(callback or serve, HOST, 0, **options)
    client = await asyncio.open_connection(*server.sockets[0].getsockname()[:2], **options)
    try:
        yield (await accepted) if callback is None else None, client
    finally:
        done.set()
        client[1].close()
        with contextlib.suppress(ConnectionError):
            await client[1].wait_closed()
        if callback is None:
            accepted.result()[1].close()
        server.close()
        await turns(3)


def test_streams_are_asyncio_s_and_native(loop):
    async def main():
        async with connected() as ((reader, writer), (client_reader, _)):
            for stream, native, original in (
                (reader, _streams.ServerReader, asyncio.StreamReader),
                (client_reader, _streams.StreamReader, asyncio.StreamReader),
                (writer, _streams.ServerWriter, asyncio.StreamWriter),
            ):
                assert type(stream) is native
                assert isinstance(stream, original)
                assert native.__name__ == original.__name__
                assert repr(stream).startswith(f"<{original.__name__} ")
            plain = asyncio.StreamReader(loop=loop)
            assert vars(client_reader).keys() == vars(plain).keys()
            assert vars(reader) == {} and all(hasattr(reader, name) for name in vars(plain))
            with pytest.raises(TypeError, match="cannot pickle"):
                pickle.dumps(reader)
            callback = writer._protocol._client_connected_cb
            assert inspect.iscoroutinefunction(callback)

    loop.run_until_complete(main())


def test_a_factory_that_is_not_as_known_is_left_as_it_is(monkeypatch):
    client_connected_cb, limit, loop, other = print, 10, None, None

    def factory():
        return client_connected_cb, limit, loop

    def changed():
        return client_connected_cb, limit, other

    monkeypatch.setattr(_streams, "_FACTORIES", [factory.__code__, changed.__code__])
    assert _streams.for_server(factory) is not factory
    assert _streams.for_server(changed) is changed
    monkeypatch.setattr(_streams, "_IS_KNOWN", False)
    assert _streams.for_server(factory) is factory


def test_debug_mode_keeps_asyncio_s_classes(loop):
    loop.set_debug(True)

    async def main():
        async with connected() as ((reader, writer), _):
            assert (type(reader), type(writer)) == (asyncio.StreamReader, asyncio.StreamWriter)
            call = reader.read(1)
            assert inspect.iscoroutine(call)
            call.close()

    loop.run_until_complete(main())


def test_subclasses_stay_what_they_are(loop):
    class Reader(asyncio.StreamReader):
        pass

    class Writer(asyncio.StreamWriter):
        pass

    async def main():
        with (
            mock.patch.object(asyncio.streams, "StreamReader", Reader),
            mock.patch.object(asyncio.streams, "StreamWriter", Writer),
        ):
            async with connected() as ((reader, writer), (client_reader, client_writer)):
                assert {type(reader), type(client_reader)} == {Reader}
                assert {type(writer), type(client_writer)} == {Writer}
                client_writer.write(b"data")
                assert await reader.read(4) == b"data"

    loop.run_until_complete(main())


@pytest.mark.parametrize("where", ["class", "instance"])
def test_methods_may_be_replaced_at_any_time(loop, where):
    async def replaced(*arguments):
        return ("replaced", arguments[-1])

    async def main():
        async with connected() as ((reader, writer), _):
            for name, argument in (
                ("read", 4),
                ("readexactly", 4),
                ("readuntil", b"x"),
                ("readline", None),
                ("drain", None),
            ):
                stream = writer if name == "drain" else reader
                given = () if argument is None else (argument,)
                target = stream
                if where == "class":
                    target = asyncio.StreamWriter if name == "drain" else asyncio.StreamReader
                with mock.patch.object(
                    target, name, replaced if where == "class" else lambda *given: replaced(None, *given)
                ):
                    result = await getattr(stream, name)(*given)
                    assert result[0] == "replaced"
                    assert argument is None or result[1] == argument
            with mock.patch.object(asyncio.StreamWriter, "write") as write:
                writer.write(b"data")
            write.assert_called_once_with(writer, b"data")
            with mock.patch.object(writer.transport, "write") as write:
                writer.write(b"data")
            write.assert_called_once_with(b"data")

    loop.run_until_complete(main())


@pytest.mark.parametrize("where", ["class", "instance"])
def test_what_feeds_a_reader_may_be_replaced_at_any_time(loop, where):
    fed = []

    async def main():
        async with connected() as ((reader, _), (_, client)):
            client.write(b"first")
            assert await reader.read(100) == b"first"
            target = asyncio.StreamReader if where == "class" else reader
            with mock.patch.object(target, "feed_data", lambda *arguments: fed.append(arguments[-1])):
                client.write(b"second")
                await until(lambda: fed == [b"second"])
            client.write(b"third")
            assert await reader.read(100) == b"third"

    loop.run_until_complete(main())


def test_calls_act_like_coroutines(loop):
    async def main():
        async with connected() as ((reader, writer), (_, client)):
            for method, arguments in (
                (reader.read, (1,)),
                (reader.readexactly, (1,)),
                (reader.readuntil, (b"x",)),
                (reader.readline, ()),
                (writer.drain, ()),
            ):
                call = method(*arguments)
                assert isinstance(call, Coroutine) and asyncio.iscoroutine(call) and inspect.isawaitable(call)
                name = f"{type(method.__self__).__name__}.{method.__name__}"
                assert (call.__qualname__, call.__name__) == (name, method.__name__)
                assert repr(call).startswith(f"<coroutine object {name} at 0x")
                with pytest.warns(RuntimeWarning, match=f"^coroutine '{name}' was never awaited$"):
                    del call
            task = loop.create_task(reader.read(4))
            await turns(2)
            assert task.get_stack() == [] and not task.done()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reader.read(4), 0)
            client.write(b"data")
            assert await task == b"data"
            call = reader.read(1)
            client.write(b"x")
            assert await call == b"x"
            with pytest.raises(RuntimeError, match="^cannot reuse already awaited coroutine$"):
                await call

    loop.run_until_complete(main())


def test_wrong_arguments_give_asyncio_s_errors(loop):
    async def main():
        async with connected() as ((reader, writer), _):
            for call in (
                lambda: reader.read(1, 2),
                lambda: reader.read(m=1),
                lambda: reader.readexactly(),
                lambda: reader.readuntil(b"x", b"y"),
                lambda: reader.readline(1),
                lambda: writer.drain(1),
                lambda: writer.write(),
                lambda: writer.write(b"", b""),
            ):
                with pytest.raises(TypeError, match="positional argument|keyword argument"):
                    call()
            with pytest.raises(TypeError, match="not supported between instances"):
                await reader.read("1")
            with pytest.raises(TypeError):
                await reader.readuntil(1)
            with pytest.raises(TypeError, match=r"^data: expecting a bytes-like instance, got <class 'str'>$|'str'"):
                writer.write("text")

    loop.run_until_complete(main())


def test_keyword_arguments(loop):
    async def main():
        async with connected() as ((reader, _), (_, client)):
            client.write(data=b"one two;three")
            assert await reader.read(n=4) == b"one "
            assert await reader.readuntil(separator=b";") == b"two;"
            assert await reader.readexactly(n=5) == b"three"

    loop.run_until_complete(main())


def test_a_call_that_waits_is_collected_with_its_connection(loop):
    async def main():
        async with connected() as ((reader, _), _):
            task = loop.create_task(reader.read(4))
            await turns(2)
            reference = weakref.ref(reader)
            task.cancel()
            await turns(2)
        return reference

    reference = loop.run_until_complete(main())
    loop.run_until_complete(turns(3))
    gc.collect()
    assert reference() is None


def test_a_plain_callback_gets_a_native_writer(loop):
    got = []

    def callback(reader, writer):
        got.append((reader, writer))

    async def main():
        async with connected(callback):
            await until(lambda: got)
            reader, writer = got.pop()
            assert type(writer) is _streams.ServerWriter
            assert writer._protocol._client_connected_cb is callback
            writer.close()

    loop.run_until_complete(main())


def test_a_server_s_streams_have_attributes_of_their_users(loop):
    fed = []

    async def main():
        async with connected() as ((reader, writer), (_, client)):
            for stream in (reader, writer, writer._protocol):
                stream.mine = "mine"
                assert vars(stream) == {"mine": "mine"}
                del stream.mine
                stream.__dict__ = {"other": 1}
                assert stream.other == 1 and not hasattr(stream, "mine")
                assert weakref.ref(stream)() is stream
                with pytest.raises(AttributeError):
                    del stream.unknown
            # Not by setattr, and not through the class's own descriptors.
            vars(reader)["feed_data"] = fed.append
            client.write(b"one")
            await until(lambda: fed == [b"one"])
            del vars(reader)["feed_data"]
            client.write(b"two")
            assert await reader.read(10) == b"two"

    loop.run_until_complete(main())


def test_a_server_s_streams_can_be_copied(loop):
    async def main():
        async with connected() as ((reader, writer), (_, client)):
            client.write(b"data")
            await until(lambda: reader._buffer)
            copies = []
            for stream in (reader, writer, writer._protocol):
                stream.mine = "mine"
                copied = copy.copy(stream)
                # The end of a writer closes its transport.
                copies.append(copied)
                assert type(copied) is type(stream) and copied.mine == "mine"
                assert copied._loop is loop and copied._transport is stream._transport
            assert copies[0]._buffer is reader._buffer
            writer.close()
            await until(lambda: writer.get_extra_info("socket").fileno() == -1)

    loop.run_until_complete(main())


def test_a_server_s_reader_may_be_given_another_class(loop):
    calls = []

    async def main():
        async with connected() as ((reader, _), (_, client)):

            class Derived(type(reader)):
                __slots__ = ()

                def feed_data(self, data):
                    calls.append(data)
                    super().feed_data(data)

            reader.__class__ = Derived
            task = loop.create_task(reader.read(10))
            await turns(2)
            assert reader._buffer == b"" and reader._waiter is not None
            client.write(b"data")
            assert await task == b"data"
            assert calls == [b"data"] and reader._waiter is None

    loop.run_until_complete(main())


def test_slots_may_be_set_and_deleted(loop):
    reader = _streams.ServerReader(limit=5, loop=loop)
    reader._limit = 7
    assert reader._limit == 7
    waiter, reader._waiter = reader._waiter, 5
    assert (waiter, reader._waiter) == (None, 5)
    for name in ("_waiter", "_buffer", "_limit"):
        delattr(reader, name)
        with pytest.raises(AttributeError):
            getattr(reader, name)
        with pytest.raises(AttributeError):
            delattr(reader, name)
    with pytest.raises(AttributeError):
        reader.read(1).send(None)
    bare = _streams.ServerReader.__new__(_streams.ServerReader)
    with pytest.raises(AttributeError):
        bare.read(1).send(None)


def test_a_server_s_streams_are_collected_with_their_cycles(loop):
    async def main():
        async with connected() as ((reader, writer), _):
            protocol = writer._protocol
            reader.cycle, writer.cycle, protocol.cycle = writer, protocol, reader
            return [weakref.ref(it) for it in (reader, writer, protocol)]

    references = loop.run_until_complete(main())
    loop.run_until_complete(turns(3))
    gc.collect()
    assert [reference() for reference in references] == [None] * 3


def test_what_a_server_s_protocol_makes_late(loop):
    async def main():
        async with connected() as ((_, writer), _):
            protocol = writer._protocol
            assert protocol._whether_closed is None and protocol._waiters is None
            closed = protocol._closed
            assert type(closed) is asyncio.Future and closed is protocol._closed and not closed.done()
            own = protocol._closed = loop.create_future()
            assert protocol._closed is own
            protocol.pause_writing()
            draining = [loop.create_task(writer.drain()) for _ in range(2)]
            await turns(2)
            assert len(protocol._drain_waiters) == 2
            protocol.resume_writing()
            await asyncio.gather(*draining)
            assert not protocol._drain_waiters
            writer.close()
            await writer.wait_closed()
            assert own.done() and own.result() is None

    loop.run_until_complete(main())


@pytest.mark.parametrize("ends_with", ["return", "error", "cancel"])
def test_a_server_s_task_ends_as_asyncio_s(loop_factory, ends_with):
    """Its callback, what is reported, and what becomes of the connection."""

    def body(loop):
        told, tasks = [], []

        async def serve(reader, writer):
            tasks.append((asyncio.current_task(), writer))
            await reader.read(1)
            if ends_with == "error":
                raise ZeroDivisionError("served")
            if ends_with == "cancel":
                asyncio.current_task().cancel()
                await asyncio.sleep(0)

        def handle(_, context):
            error = context.get("exception")
            told.append((sorted(context), repr(error), getattr(context.get("transport"), "is_closing", bool)()))
            told.append(context["message"].partition(" at ")[0])

        async def main():
            loop.set_exception_handler(handle)
            async with connected(serve) as (_, (reader, writer)):
                await until(lambda: tasks)
                task, server_writer = tasks[0]
                shown = "StreamReaderProtocol.connection_made.<locals>.callback()" in repr(task)
                writer.write(b"x")
                await until(task.done)
                await turns(3)
                closing = server_writer.is_closing()
                server_writer.close()
                assert await reader.read() == b""
                return told, shown, closing, server_writer._protocol._task is None

        return loop.run_until_complete(main())

    same_as_asyncio(body, loop_factory)


PATCHED_BEFORE = """
import asyncio, asyncio.streams

seen = []

def patch(owner, name, is_async=True):
    original = getattr(owner, name)
    async def asynchronous(*arguments):
        seen.append(name)
        return await original(*arguments)
    def plain(*arguments):
        seen.append(name)
        return original(*arguments)
    setattr(owner, name, asynchronous if is_async else plain)

def patch_all():
    patch(asyncio.StreamReader, "read")
    patch(asyncio.StreamReader, "feed_data", is_async=False)
    patch(asyncio.streams.FlowControlMixin, "_drain_helper")

if {before_import}:
    patch_all()
import ringloop
if not {before_import}:
    patch_all()

async def main():
    async def serve(reader, writer):
        writer.write(await reader.read(10))
        await writer.drain()
        writer.close()
        done.set()
    done = asyncio.Event()
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        _, client = await asyncio.open_connection(*server.sockets[0].getsockname())
        client.write(b"data")
        await done.wait()
        client.close()

loop = ringloop.new_event_loop()
loop.run_until_complete(main())
loop.close()
assert set(seen) == {{"read", "feed_data", "_drain_helper"}}, seen
"""


@pytest.mark.parametrize("before_import", [True, False])
def test_methods_may_be_replaced_before_the_first_connection(before_import):
    program = PATCHED_BEFORE.format(before_import=before_import)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_what_methods_call_may_be_replaced_in_the_instance(loop):
    async def readuntil(separator):
        return separator

    called = []

    async def main():
        async with connected() as ((reader, writer), (_, client)):
            with mock.patch.object(reader, "readuntil", readuntil):
                assert await reader.readline() == b"\n"
            wait, helper = reader._wait_for_data, writer._protocol._drain_helper

            async def wait_for_data(name):
                called.append(name)
                await wait(name)

            async def drain_helper():
                called.append("drain")
                await helper()

            reader._wait_for_data, writer._protocol._drain_helper = wait_for_data, drain_helper
            task = loop.create_task(reader.readexactly(4))
            await turns(2)
            client.write(b"data")
            assert await task == b"data"
            await writer.drain()
        assert called == ["readexactly", "drain"]

    loop.run_until_complete(main())


@pytest.mark.parametrize("limit", [math.inf, 2.5, 2**70])
def test_a_limit_may_be_any_number(loop, limit):
    async def main():
        async with connected(limit=limit) as ((reader, _), (_, client)):
            client.write(b"a\nb\n")
            assert [await reader.readline(), await reader.readuntil()] == [b"a\n", b"b\n"]

    loop.run_until_complete(main())


def test_reading_all_resumes_the_transport_even_if_nothing_is_left(loop_factory):
    def body(loop):
        async def main():
            transport = mock.Mock(["pause_reading", "resume_reading"])
            reader = asyncio.StreamReader(limit=1, loop=loop)
            reader.__class__ = _streams.StreamReader if hasattr(loop, "backend") else asyncio.StreamReader
            reader.set_transport(transport)
            reader.feed_data(b"more than twice the limit")
            reader.feed_eof()
            with pytest.raises(asyncio.IncompleteReadError):
                await reader.readexactly(100)
            called = [transport.mock_calls.copy(), await reader.read(), transport.mock_calls]
            return [*called, reader._paused]

        return loop.run_until_complete(main())

    before = [mock.call.pause_reading()]
    assert same_as_asyncio(body, loop_factory) == [before, b"", [*before, mock.call.resume_reading()], False]


@pytest.mark.parametrize("limit", [2**63, 2**64, 2**70])
def test_reading_all_with_a_limit_beyond_any_length_loses_nothing(loop_factory, limit):
    def body(loop):
        async def main():
            reader = asyncio.StreamReader(limit=limit, loop=loop)
            reader.__class__ = _streams.StreamReader if hasattr(loop, "backend") else asyncio.StreamReader
            reader.feed_data(b"one")
            task = loop.create_task(reader.read())
            await turns(2)
            reader.feed_data(b"two")
            reader.feed_eof()
            return await task

        return loop.run_until_complete(main())

    assert same_as_asyncio(body, loop_factory) == b"onetwo"


def test_reading_all_with_an_infinite_limit_takes_nothing_that_it_does_not_return(loop_factory):
    """Before 3.15 infinity is no index, as asyncio notices before it takes anything."""

    def body(loop):
        async def main():
            reader = asyncio.StreamReader(limit=math.inf, loop=loop)
            reader.__class__ = _streams.StreamReader if hasattr(loop, "backend") else asyncio.StreamReader
            reader.feed_data(b"data")
            reader.feed_eof()
            try:
                return await reader.read(), bytes(reader._buffer)
            except TypeError:
                return TypeError, bytes(reader._buffer)

        return loop.run_until_complete(main())

    wanted = (b"data", b"") if sys.version_info >= (3, 15) else (TypeError, b"data")
    assert same_as_asyncio(body, loop_factory) == wanted


def test_a_reader_may_be_anything_that_is_fed(loop):
    class Reader:
        __slots__ = ("__weakref__", "fed")
        _source_traceback = None

        def __init__(self):
            self.fed = []

        def set_transport(self, transport):
            pass

        def feed_data(self, data):
            self.fed.append(bytes(data))

        def feed_eof(self):
            self.fed.append(None)

    async def main():
        reader = Reader()
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        async with await asyncio.start_server(
            lambda _, writer: (writer.write(b"x"), writer.close()), HOST, 0
        ) as server:
            transport, _ = await loop.create_connection(lambda: protocol, *server.sockets[0].getsockname()[:2])
            await until(lambda: None in reader.fed)
            transport.close()
        assert reader.fed[:2] == [b"x", None]

    loop.run_until_complete(main())


def test_errors_have_the_context_in_which_they_are_raised(loop):
    async def main():
        for limit, call, contexts in (
            (2**16, lambda reader: reader.readexactly(9), [KeyError]),
            (2**16, lambda reader: reader.readuntil(b"x"), [KeyError]),
            (1, lambda reader: reader.readuntil(b"x"), [KeyError]),
            (1, lambda reader: reader.readline(), [asyncio.LimitOverrunError, KeyError]),
        ):
            for class_ in (asyncio.StreamReader, _streams.StreamReader):
                reader = asyncio.StreamReader(limit=limit, loop=loop)
                reader.__class__ = class_
                reader.feed_data(b"data")
                reader.feed_eof()
                with pytest.raises(Exception, match=".") as caught:
                    try:
                        raise KeyError
                    except KeyError:
                        await call(reader)
                error, found = caught.value, []
                while (error := error.__context__) is not None:
                    found.append(type(error))
                assert found == contexts, class_

    loop.run_until_complete(main())


def test_a_call_in_a_cycle_ends_its_wait(loop):
    reader = asyncio.StreamReader(loop=loop)
    reader.__class__ = _streams.StreamReader
    for starts in (True, False):
        call = reader.read(4)
        if starts:
            call.send(None)
            assert reader._waiter is not None
        cycle = [call]
        cycle.append(cycle)
        del call, cycle
        expected = (
            contextlib.nullcontext()
            if starts
            else pytest.warns(RuntimeWarning, match=r"'StreamReader.read' was never awaited$")
        )
        with expected:
            gc.collect()
        assert reader._waiter is None


@pytest.mark.parametrize("by_task", [True, False])
def test_a_call_is_collected_in_a_cycle_with_its_reader(loop, monkeypatch, by_task):
    raised, told = [], []
    monkeypatch.setattr(sys, "unraisablehook", lambda it: raised.append(repr(it.exc_value)))
    loop.set_exception_handler(lambda _, context: told.append(context["message"]))
    reader = asyncio.StreamReader(loop=loop)
    reader.__class__ = _streams.StreamReader
    call = reader.read(4)
    if by_task:
        reader.task = loop.create_task(call)
        loop.run_until_complete(turns(2))
    else:
        call.send(None)
        reader.call = call
    reference = weakref.ref(reader)
    del reader, call
    gc.collect()
    assert reference() is None
    assert raised == []
    assert told == (["Task was destroyed but it is pending!"] if by_task else [])


def test_a_thread_that_begins_with_native_code_may_ask_for_the_exception(loop, monkeypatch):
    raised, found = [], []
    monkeypatch.setattr(sys, "unraisablehook", lambda it: raised.append(repr(it.exc_value)))
    reader = asyncio.StreamReader(loop=loop)
    reader.__class__ = _streams.StreamReader
    asked = map(operator.methodcaller("exception"), [reader])
    _thread.start_new_thread(found.extend, (asked,))
    loop.run_until_complete(until(lambda: found or raised))
    assert (found, raised) == ([None], [])


def test_who_resumes_without_the_exception_gets_it(loop):
    reader = asyncio.StreamReader(loop=loop)
    reader.__class__ = _streams.StreamReader
    call = reader.read(4)
    call.send(None)
    reader.set_exception(ValueError("set"))
    with pytest.raises(ValueError, match="^set$"):
        call.send(None)
    assert reader._waiter is None


# Between the wake of a read and its step


def add_to_buffer(reader, task):
    reader._buffer.extend(b"more")


def set_buffer(reader, task):
    reader._buffer = bytearray(b"set")


BETWEEN = {
    "nothing": lambda reader, task: None,
    "a look at the buffer": lambda reader, task: bytes(reader._buffer),
    "a look at the end": lambda reader, task: (reader.feed_eof(), reader.at_eof())[1],
    "repr": lambda reader, task: repr(reader).partition(" transport=")[0],
    "more in the buffer": add_to_buffer,
    "another buffer": set_buffer,
    "more data": lambda reader, task: reader.feed_data(b"more"),
    "an exception": lambda reader, task: reader.set_exception(ValueError("set")),
    "cancelling": lambda reader, task: task.cancel("message"),
    "cancelling and more data": lambda reader, task: (task.cancel(), reader.feed_data(b"more"))[0],
    "another read": lambda reader, task: reader._loop.create_task(reader.read(2)) and None,
    "another read that steps first": lambda reader, task: send_once(reader.read(2)),
    "waking again": lambda reader, task: reader._wakeup_waiter(),
    "a step by hand": lambda reader, task: send_once(task.get_coro()),
    "closing the call": lambda reader, task: task.get_coro().close(),
}


def send_once(call):
    try:
        return type(call.send(None)) is None
    except StopIteration as stop:
        return stop.value
    except (RuntimeError, ValueError) as error:
        return type(error)


@pytest.mark.parametrize("between", BETWEEN)
@pytest.mark.parametrize("kind", [("read", 100), ("readexactly", 4), ("readline",), ("readuntil", b"c\n"), ("read", 2)])
def test_whatever_happens_between_wake_and_step(loop_factory, kind, between):
    def body(loop):
        async def main():
            ours, peer = socket.socketpair()
            ours.setblocking(False)
            reader, writer = await asyncio.open_unix_connection(sock=ours, limit=50)
            task = loop.create_task(getattr(reader, kind[0])(*kind[1:]))
            await turns(3)
            assert reader._waiter is not None
            peer.send(b"abc\n")
            for _ in range(1000):
                if reader._waiter is None:
                    break
                await asyncio.sleep(0)
            assert reader._waiter is None and not task.done()
            shown = BETWEEN[between](reader, task)
            await turns(5)
            left = outcome(task), bytes(reader._buffer), reader._waiter is None
            if not task.done():
                task.cancel()
                await turns(3)
            writer.transport.abort()
            peer.close()
            await turns(5)
            return shown, left

        return loop.run_until_complete(main())

    same_as_asyncio(body, loop_factory)


# Streams on connections, and asyncio's


SEPARATORS = [b"\n", b"ab", b"aab", b"b"]
if sys.version_info >= (3, 13):
    SEPARATORS += [(b"ab", b"b"), (b"\n", b"aab", b"a")]

ON_A_CONNECTION = st.one_of(
    st.tuples(st.just("send"), st.text("ab\n", min_size=1, max_size=12).map(str.encode)),
    st.tuples(st.just("send"), st.text("ab\n", min_size=1, max_size=12).map(str.encode)),
    st.tuples(st.sampled_from(["read", "readexactly"]), st.integers(-1, 9)),
    st.tuples(st.just("readuntil"), st.sampled_from(SEPARATORS)),
    st.tuples(st.sampled_from(["readline", "next", "drain", "cancel", "at_eof"])),
    st.tuples(st.just("write"), DATA),
    st.tuples(st.just("feed"), DATA),
    st.tuples(st.sampled_from(["end", "set_exception", "close"])),
)


async def converse(program, limit, server_side):
    """Return what batches of actions on one end of a connection come to."""
    loop = asyncio.get_running_loop()
    ours, peer = socket.socketpair()
    ours.setblocking(False)
    peer.setblocking(False)
    trace, tasks = [], []
    if server_side:
        accepted = loop.create_future()
        reader = asyncio.StreamReader(limit=limit, loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, lambda *streams: accepted.set_result(streams), loop=loop)
        await loop.create_unix_connection(lambda: protocol, sock=ours)
        reader, writer = await accepted
    else:
        reader, writer = await asyncio.open_unix_connection(sock=ours, limit=limit)
    actions = {
        "send": peer.send,
        "feed": reader.feed_data,
        "write": writer.write,
        "end": lambda: peer.shutdown(socket.SHUT_WR),
        "set_exception": lambda: reader.set_exception(ValueError("set")),
        "close": writer.close,
        "at_eof": lambda: trace.append(reader.at_eof()),
        "cancel": lambda: tasks and tasks[-1].cancel(),
    }
    calls = {
        "read": reader.read,
        "readexactly": reader.readexactly,
        "readuntil": reader.readuntil,
        "readline": reader.readline,
        "next": lambda: anext(reader),
        "drain": writer.drain,
    }
    for batch in program:
        for name, *arguments in batch:
            try:
                if name in calls:
                    tasks.append(loop.create_task(calls[name](*arguments)))
                else:
                    actions[name](*arguments)
            except Exception as error:
                trace.append((name, type(error), str(error)))
        for _ in range(2):
            # A loop with nothing to do but to wait looks at the kernel, where everything has arrived.
            await asyncio.sleep(0.0001)
            await turns(5)
        with contextlib.suppress(OSError):
            trace.append(peer.recv(1000))
        state = bytes(reader._buffer), reader._eof, reader._paused, reader._waiter is None, repr(reader.exception())
        trace.append((batch, state, [outcome(task) for task in tasks]))
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    trace.append([outcome(task) for task in tasks])
    peer.close()
    writer.close()
    with contextlib.suppress(Exception):
        await writer.wait_closed()
    return trace


@pytest.mark.examples
@settings(max_examples=examples(60), **COMMON)
@given(
    program=st.lists(st.lists(ON_A_CONNECTION, min_size=1, max_size=3), max_size=12),
    limit=st.sampled_from([1, 2, 5, 2**16]),
    server_side=st.booleans(),
)
@example(program=[[("readline",)], [("send", b"ab\n")], [("read", 9), ("send", b"ab")]], limit=5, server_side=True)
@example(program=[[("readexactly", 2)], [("send", b"ab"), ("cancel",)], [("read", 9)]], limit=5, server_side=False)
@example(program=[[("read", 9)], [("send", b"ab"), ("end",)], [("at_eof",), ("next",)]], limit=5, server_side=False)
def test_connections(loop_factory, program, limit, server_side):
    same_as_asyncio(lambda loop: loop.run_until_complete(converse(program, limit, server_side)), loop_factory)


# Coroutines by hand


def test_a_new_call_is_one_that_has_not_started(loop):
    reader = asyncio.StreamReader(loop=loop)
    reader.__class__ = _streams.StreamReader
    call = reader.read(4)
    assert inspect.getcoroutinestate(call) == inspect.CORO_CREATED
    assert asyncio.iscoroutine(call) and not asyncio.isfuture(call)
    with pytest.raises(TypeError, match="^can't send non-None value to a just-started coroutine$"):
        call.send(3)
    waiter = call.send(None)
    assert inspect.getcoroutinestate(call) == inspect.CORO_SUSPENDED
    assert call.cr_frame is None and reader._waiter is waiter
    with pytest.raises(RuntimeError, match="^await wasn't used with future$"):
        call.send(None)
    assert inspect.getcoroutinestate(call) == inspect.CORO_CLOSED
    assert reader._waiter is None


def reading(loop):
    """Return a native reader, a task that reads 4 bytes from it, and what that task waits for."""
    reader = asyncio.StreamReader(loop=loop)
    reader.__class__ = _streams.StreamReader
    task = loop.create_task(reader.read(4))
    loop.run_until_complete(turns(2))
    return reader, task, reader._waiter


def test_a_wait_that_ends_while_its_exception_is_made_stays_as_it_ended(loop):
    reader, task, waiter = reading(loop)

    class Ending(Exception):
        def __init__(self):
            reader.feed_data(b"data")

    with pytest.raises(asyncio.InvalidStateError):
        waiter.set_exception(Ending)
    assert loop.run_until_complete(task) == b"data"


class Compared:
    """A callback that is compared with others, which runs code."""

    def __init__(self, compare):
        self.compare = compare

    def __eq__(self, other):
        return self.compare()

    __hash__ = None


def test_a_wait_that_ends_while_its_callbacks_are_compared_wakes_its_task(loop):
    reader, task, waiter = reading(loop)
    assert waiter.remove_done_callback(Compared(lambda: bool(reader.feed_data(b"data")))) == 0
    assert loop.run_until_complete(asyncio.wait_for(task, PATIENCE_S)) == b"data"


def test_a_comparison_of_callbacks_that_fails_removes_none(loop):
    reader, task, waiter = reading(loop)
    called = []
    waiter.add_done_callback(called.append)
    answers = [lambda: True, lambda: 1 / 0]
    with pytest.raises(ZeroDivisionError):
        waiter.remove_done_callback(Compared(lambda: answers.pop(0)()))
    reader.feed_data(b"data")
    assert loop.run_until_complete(asyncio.wait_for(task, PATIENCE_S)) == b"data"
    assert len(called) == 1


def test_callbacks_that_change_while_they_are_compared_are_as_in_asyncio(loop):
    """One is added, one is removed by another comparison, and the order stays."""

    def change(future, waiter):
        called = []

        def first(_):
            called.append("first")

        def second(_):
            called.append("second")

        def third(_):
            called.append("third")

        def compare():
            if not changed:
                changed.append(True)
                waiter.add_done_callback(third)
                assert waiter.remove_done_callback(second) == 1
            return False

        changed = []
        waiter.add_done_callback(first)
        waiter.add_done_callback(second)
        removed = waiter.remove_done_callback(Compared(compare))
        future()
        loop.run_until_complete(turns(3))
        return removed, called

    reader, task, waiter = reading(loop)
    ours = change(lambda: reader.feed_data(b"data"), waiter)
    asyncios = asyncio.Future(loop=loop)
    asyncios.add_done_callback(lambda _: None)
    assert ours == change(lambda: asyncios.set_result(None), asyncios) == (0, ["first", "third"])
    assert loop.run_until_complete(task) == b"data"


def test_throwing_nothing_is_a_mistake(loop):
    reader = asyncio.StreamReader(loop=loop)
    reader.__class__ = _streams.StreamReader
    ours, peer = socket.socketpair()
    with ours, peer:
        ours.setblocking(False)
        for call in (reader.read(4), loop.sock_recv(ours, 4), loop.sock_sendall(ours, b"data")):
            with pytest.raises(TypeError, match="^throw expected at least 1 argument, got 0$"):
                call.throw()
            with pytest.raises(TypeError, match="^can't send non-None value to a just-started coroutine$"):
                call.send(3)
            call.close()


def test_the_waiter_is_a_future(loop):
    reader = asyncio.StreamReader(loop=loop)
    reader.__class__ = _streams.StreamReader
    told = []

    def wait():
        call = reader.read(4)
        return call, call.send(None)

    call, waiter = wait()
    assert asyncio.isfuture(waiter) and waiter._asyncio_future_blocking is True
    assert (waiter.done(), waiter.cancelled(), repr(waiter)) == (False, False, "<Future pending>")
    for ask in (waiter.result, waiter.exception):
        with pytest.raises(asyncio.InvalidStateError):
            ask()
    context = contextvars.copy_context()
    waiter.add_done_callback(lambda it: told.append((it is waiter, "first")))
    waiter.add_done_callback(told.append, context=context)
    assert waiter.remove_done_callback(told.append) == 1
    waiter.add_done_callback(lambda it: told.append((it is waiter, "second")))
    with pytest.raises(TypeError):
        waiter.add_done_callback()
    reader.feed_data(b"data")
    assert (waiter.done(), waiter.result(), waiter.exception()) == (True, None, None)
    with pytest.raises(asyncio.InvalidStateError):
        waiter.set_result(None)
    loop.run_until_complete(turns(2))
    assert told == [(True, "first"), (True, "second")]
    with pytest.raises(StopIteration):
        call.send(None)

    call, waiter = wait()
    assert waiter.cancel(msg="message") is True and waiter.cancel() is False
    with pytest.raises(asyncio.CancelledError, match="^message$"):
        call.send(None)
    assert repr(waiter) == "<Future cancelled>"

    call, waiter = wait()
    with pytest.raises(TypeError):
        waiter.set_exception(3)
    reader.set_exception(ValueError("set"))
    assert isinstance(waiter.exception(), ValueError)
    with pytest.raises(ValueError, match="^set$"):
        call.send(None)


def test_an_exception_that_nobody_asked_for_is_reported(loop):
    told = []
    loop.set_exception_handler(lambda _, context: told.append((context["message"], str(context["exception"]))))
    reader = asyncio.StreamReader(loop=loop)
    reader.__class__ = _streams.StreamReader
    call = reader.read(4)
    call.send(None)
    reader.set_exception(ValueError("set"))
    call.close()
    del call, reader
    gc.collect()
    assert told == [("Future exception was never retrieved", "set")]


def test_a_waiter_that_somebody_keeps_is_not_used_again(loop):
    async def main():
        async with connected() as ((reader, _), (_, client)):
            kept = []
            for text in (b"one", b"two"):
                task = loop.create_task(reader.read(9))
                await turns(2)
                kept.append(reader._waiter)
                client.write(text)
                assert await task == text
            assert kept[0] is not kept[1] and all(waiter.done() for waiter in kept)

    loop.run_until_complete(main())


def test_a_read_in_the_end_of_what_the_last_wait_left_is_a_second_one(loop):
    """The message of a cancellation goes when the waiter is used again, and may be any object."""
    told = []

    class Reads:
        def __del__(self):
            call = reader.read(5)
            try:
                call.send(None)
            except RuntimeError as error:
                told.append(str(error))
            finally:
                call.close()

    async def main():
        nonlocal reader
        async with connected() as ((reader, _), (_, client)):
            task = loop.create_task(reader.read(5))
            await turns(2)
            task.cancel(Reads())
            with contextlib.suppress(asyncio.CancelledError):
                await task
            del task
            task = loop.create_task(reader.read(5))
            await turns(2)
            assert told == ["read() called while another coroutine is already waiting for incoming data"]
            client.write(b"data")
            assert await task == b"data"

    reader = None
    loop.run_until_complete(main())


@pytest.mark.parametrize("call", [("read", 20), ("readexactly", 12), ("readline",)])
def test_what_is_put_into_a_buffer_that_somebody_keeps_comes_first(loop, call):
    async def main():
        async with connected() as ((reader, _), (_, client)):
            buffer = reader._buffer
            task = loop.create_task(getattr(reader, call[0])(*call[1:]))
            await turns(2)
            buffer.extend(b"first ")
            client.write(b"secon\n")
            assert await task == b"first secon\n"

    loop.run_until_complete(main())


def test_a_client_s_writer_is_native_from_its_first_drain_on(loop):
    class Writer(asyncio.StreamWriter):
        pass

    async def main():
        async with connected() as ((reader, _), (client_reader, client)):
            client.write(b"one ")
            await client.drain()
            assert type(client) is _streams.StreamWriter
            client.write(b"two")
            await client.drain()
            assert await reader.readexactly(7) == b"one two"
            other = Writer(client.transport, client._protocol, client_reader, loop)
            await other.drain()
            assert type(other) is Writer
            client_reader.set_exception(ValueError("set"))
            for writer in (client, other):
                with pytest.raises(ValueError, match="^set$"):
                    await writer.drain()

    loop.run_until_complete(main())


def test_what_a_read_and_a_drain_call_may_be_replaced_in_the_instance(loop):
    async def main():
        async with connected() as ((reader, writer), (_, client)):
            called = []
            reader._maybe_resume_transport = lambda: called.append("resume")
            task = loop.create_task(reader.read(9))
            await turns(2)
            client.write(b"data")
            assert await task == b"data"
            client.write(b"more")
            await until(lambda: reader._buffer)
            assert await reader.readexactly(4) == b"more"
            assert called == ["resume", "resume"]
            transport = mock.Mock(wraps=writer.transport)
            transport.is_closing.return_value = True
            writer._transport = transport
            await writer.drain()
            assert transport.is_closing.call_count == 1

    loop.run_until_complete(main())


@pytest.mark.parametrize("name", ["create_future", "call_soon"])
def test_a_loop_with_methods_of_its_own_is_asked(new_loop, name):
    called = []

    def derive(cls):
        def method(self, *arguments, **options):
            called.append(name)
            return getattr(cls, name)(self, *arguments, **options)

        return type("Derived", (cls,), {name: method})

    loop = new_loop()
    base = type(loop)
    loop.__class__ = derive(base)
    reader = asyncio.StreamReader(loop=loop)
    reader.__class__ = _streams.StreamReader
    call = reader.read(4)
    waiter = call.send(None)
    assert type(waiter) is asyncio.Future
    called.clear()
    waiter.add_done_callback(noop)
    reader.feed_data(b"data")
    assert called == (["call_soon"] if name == "call_soon" else [])
    call.close()
    loop.__class__ = base


def wait_for_data(new_loop, future_class):
    """Return a reader, and a read that waits for a future of that class, which the loop makes."""
    loop = new_loop()
    base = type(loop)
    loop.__class__ = type("Derived", (base,), {"create_future": lambda self: future_class(loop=self)})
    reader = asyncio.StreamReader(loop=loop)
    reader.__class__ = _streams.StreamReader
    call = reader.read(4)
    assert type(call.send(None)) is future_class
    loop.__class__ = base
    return reader, call


@pytest.mark.exact
@pytest.mark.parametrize("back", ["close", "send", "throw"])
def test_a_future_that_comes_back_to_its_call_finds_it_running(new_loop, back):
    """It could end the call in the middle of a step, which then had no stream."""
    found = []

    class Future(asyncio.Future):
        def done(self):
            if armed:
                armed.clear()
                arguments = {"close": (), "send": (None,), "throw": (KeyError,)}[back]
                with pytest.raises(ValueError, match="already executing"):
                    getattr(call, back)(*arguments)
                found.append(back)
            return super().done()

    armed = []
    reader, call = wait_for_data(new_loop, Future)
    reader.feed_data(b"data")
    armed.append(True)
    with pytest.raises(StopIteration) as stopped:
        call.send(None)
    assert stopped.value.value == b"data"
    assert found == [back]


@pytest.mark.exact
def test_a_future_whose_done_raises_ends_its_call(new_loop):
    class Future(asyncio.Future):
        def done(self):
            raise KeyError("done")

    _, call = wait_for_data(new_loop, Future)
    with pytest.raises(KeyError, match="done"):
        call.send(None)
    with pytest.raises(RuntimeError, match="cannot reuse already awaited"):
        call.send(None)


def test_a_transport_that_cannot_be_paused_is_read_on(loop_factory):
    """The connection ended with the error of `pause_reading`."""

    def body(loop):
        async def main():
            reports = []
            loop.set_exception_handler(lambda _, context: reports.append(context["message"]))
            ours, peer = socket.socketpair()
            reader, writer = await asyncio.open_connection(sock=ours, limit=10)

            def refuse():
                reports.append("pause_reading")
                raise NotImplementedError

            writer.transport.pause_reading = refuse
            with peer:
                peer.send(b"x" * 100)
                await until(lambda: len(reader._buffer) == 100)
                forgotten = reader._transport is None
                peer.send(b"y" * 100)
                await until(lambda: len(reader._buffer) == 200)
            received = await reader.read()
            writer.close()
            await turns(3)
            return reports, forgotten, received, reader._paused

        return loop.run_until_complete(main())

    result = same_as_asyncio(body, loop_factory)
    assert result == (["pause_reading"], True, b"x" * 100 + b"y" * 100, False)


def test_a_server_s_protocol_has_asyncio_s_name_in_reports(loop):
    protocol = _streams.ServerProtocol(asyncio.StreamReader(loop=loop), noop, loop=loop)
    handle = loop.call_soon(protocol.connection_made, 5)
    assert "ServerProtocol" not in repr(handle) + repr(protocol)
    assert "StreamReaderProtocol.connection_made(" in repr(handle)
    handle.cancel()


def test_a_class_of_loops_that_changes_while_it_is_looked_at_is_looked_at_again(loop):
    made = []
    changes = ["create_future"]

    def create_future(self):
        made.append(self)
        return asyncio.Future(loop=self)

    class Changing(type):
        def __getattribute__(cls, name):
            # `create_future` has been looked at by now.
            if name == "call_soon" and changes:
                type.__setattr__(cls, changes.pop(), create_future)
            return super().__getattribute__(name)

    class Loop(type(loop), metaclass=Changing):
        pass

    loop.__class__ = Loop

    async def read():
        near, far = socket.socketpair()
        with far:
            reader, writer = await asyncio.open_connection(sock=near)
            del made[:]
            task = asyncio.ensure_future(reader.read(10))
            await turns(2)
            count = len(made)
            far.send(b"x")
            assert await task == b"x"
            writer.close()
            await writer.wait_closed()
        return count

    async def main():
        await read()
        assert not changes
        return await read()

    assert loop.run_until_complete(main()) == 1
