"""Streams with native methods behave as asyncio's own: the same random programs give the same results, states and calls."""

import asyncio
import contextlib
import gc
import inspect
import math
import pickle
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
from support import HOST, turns, until

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


async def run(program, native, limit):
    """What a program does to a reader and a writer, step by step."""
    loop = asyncio.get_running_loop()
    trace, tasks, calls = [], [], []
    transport = Transport(trace)
    reader = asyncio.StreamReader(limit=limit, loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    protocol.connection_made(transport)
    writer = asyncio.StreamWriter(transport, protocol, reader, loop)
    if native:
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
                    trace.append(type(call.send(None)).__name__)
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


@settings(max_examples=400, **COMMON)
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
        theirs = loop.run_until_complete(run(program, False, limit))
        ours = loop.run_until_complete(run(program, True, limit))
    assert ours == theirs


# What a program sees of the classes


@contextlib.asynccontextmanager
async def connected(callback=None, **options):
    """A server's streams and a client's, of one connection: (reader, writer), (reader, writer)."""
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
                (reader, _streams.StreamReader, asyncio.StreamReader),
                (client_reader, _streams.StreamReader, asyncio.StreamReader),
                (writer, _streams.StreamWriter, asyncio.StreamWriter),
            ):
                assert type(stream) is native
                assert isinstance(stream, original)
                assert repr(stream).startswith(f"<{original.__name__} ")
            assert vars(reader).keys() == vars(asyncio.StreamReader(loop=loop)).keys()
            with pytest.raises(TypeError, match="cannot pickle"):
                pickle.dumps(reader)
            callback = writer._protocol._client_connected_cb
            assert inspect.iscoroutinefunction(callback)

    loop.run_until_complete(main())


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
            assert type(writer) is _streams.StreamWriter
            assert writer._protocol._client_connected_cb is callback
            writer.close()

    loop.run_until_complete(main())


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


def test_who_resumes_without_the_exception_gets_it(loop):
    reader = asyncio.StreamReader(loop=loop)
    reader.__class__ = _streams.StreamReader
    call = reader.read(4)
    call.send(None)
    reader.set_exception(ValueError("set"))
    with pytest.raises(ValueError, match="^set$"):
        call.send(None)
    assert reader._waiter is None
