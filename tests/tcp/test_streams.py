"""asyncio's streams on top of the loop."""

import asyncio
import contextlib
import gc
import socket

import pytest

from support import (
    HOST,
    REPORTED_WITHOUT_GENERATIONS,
    Recorder,
    capture_contexts,
    has_gil,
    keep_receive_buffer_small,
    looks,
    receive_all,
    receive_exactly,
    reset,
    run_child,
    skip_unless,
    standstill,
    tcp_pair,
    turns,
    until,
)


@contextlib.asynccontextmanager
async def stream(loop, limit=2**16):
    """Yield a (reader, writer, peer): streams on one end of a TCP connection, a non-blocking socket on the other."""
    ours, peer = tcp_pair()
    reader, writer = await asyncio.open_connection(sock=ours, limit=limit)
    try:
        yield reader, writer, peer
    finally:
        if not writer.is_closing():
            writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        peer.close()


def streaming(body, **options):
    """Return a test function from `body(loop, reader, writer, peer)`."""

    def test(loop):
        async def main():
            async with stream(loop, **options) as (reader, writer, peer):
                await body(loop, reader, writer, peer)

        loop.run_until_complete(main())

    test.__doc__ = body.__doc__
    return test


# Reading


@streaming
async def test_read_returns_what_is_there(loop, reader, writer, peer):
    peer.send(b"hello")
    assert await reader.read(100) == b"hello"
    peer.send(b"abcdef")
    assert await reader.read(2) == b"ab"
    assert await reader.read(100) == b"cdef"
    assert await reader.read(0) == b""


@streaming
async def test_read_to_the_end(loop, reader, writer, peer):
    peer.send(b"one ")
    loop.call_later(0.005, lambda: (peer.send(b"two"), peer.shutdown(socket.SHUT_WR)))
    assert await reader.read() == b"one two"
    assert await reader.read() == b""
    assert await reader.read(-1) == b""
    assert await reader.read(10) == b""


@streaming
async def test_at_eof(loop, reader, writer, peer):
    assert not reader.at_eof()
    peer.send(b"x")
    peer.shutdown(socket.SHUT_WR)
    await until(lambda: reader._eof)
    assert not reader.at_eof(), "something is left to read"
    assert await reader.read(1) == b"x"
    assert reader.at_eof()


@streaming
async def test_readexactly(loop, reader, writer, peer):
    peer.send(b"12345")
    assert await reader.readexactly(3) == b"123"
    pending = asyncio.ensure_future(reader.readexactly(4))
    await turns(3)
    assert not pending.done()
    peer.send(b"67")
    assert await pending == b"4567"
    assert await reader.readexactly(0) == b""
    with pytest.raises(ValueError, match="^readexactly size can not be less than zero$"):
        await reader.readexactly(-1)


@streaming
async def test_readexactly_of_too_little(loop, reader, writer, peer):
    peer.send(b"abc")
    peer.shutdown(socket.SHUT_WR)
    with pytest.raises(asyncio.IncompleteReadError) as caught:
        await reader.readexactly(5)
    assert (caught.value.partial, caught.value.expected) == (b"abc", 5)
    assert str(caught.value) == "3 bytes read on a total of 5 expected bytes"


@streaming
async def test_readline(loop, reader, writer, peer):
    peer.send(b"one\ntwo\r\nthr")
    assert await reader.readline() == b"one\n"
    assert await reader.readline() == b"two\r\n"
    loop.call_later(0.005, peer.send, b"ee\nrest")
    assert await reader.readline() == b"three\n"
    peer.shutdown(socket.SHUT_WR)
    assert await reader.readline() == b"rest"
    assert await reader.readline() == b""


@streaming
async def test_lines_by_iteration(loop, reader, writer, peer):
    peer.send(b"a\nb\nc")
    peer.shutdown(socket.SHUT_WR)
    assert [line async for line in reader] == [b"a\n", b"b\n", b"c"]


@streaming
async def test_readuntil(loop, reader, writer, peer):
    peer.send(b"key=value;;next")
    assert await reader.readuntil(b"=") == b"key="
    assert await reader.readuntil(b";;") == b"value;;"
    peer.shutdown(socket.SHUT_WR)
    with pytest.raises(asyncio.IncompleteReadError) as caught:
        await reader.readuntil(b"=")
    assert (caught.value.partial, caught.value.expected) == (b"next", None)
    with pytest.raises(ValueError, match="^Separator should be at least one-byte string$"):
        await reader.readuntil(b"")


@streaming
async def test_a_separator_that_arrives_in_two_pieces(loop, reader, writer, peer):
    pending = asyncio.ensure_future(reader.readuntil(b"\r\n"))
    for piece in (b"head\r", b"er\r", b"\nrest"):
        peer.send(piece)
        await looks()
    assert await pending == b"head\rer\r\n"
    assert await reader.read(100) == b"rest"


def test_readuntil_beyond_the_limit(loop):
    async def main():
        async with stream(loop, limit=10) as (reader, writer, peer):
            peer.send(b"x" * 15 + b"\n")
            with pytest.raises(asyncio.LimitOverrunError) as found:
                await reader.readuntil(b"\n")
            assert (str(found.value), found.value.consumed) == (
                "Separator is found, but chunk is longer than limit",
                15,
            )
            assert await reader.readexactly(16) == b"x" * 15 + b"\n"
            peer.send(b"y" * 15)
            with pytest.raises(asyncio.LimitOverrunError) as missing:
                await reader.readuntil(b"\n")
            assert str(missing.value) == "Separator is not found, and chunk exceed the limit"
            assert await reader.readexactly(15) == b"y" * 15

    loop.run_until_complete(main())


def test_readline_beyond_the_limit(loop):
    async def main():
        async with stream(loop, limit=10) as (reader, writer, peer):
            peer.send(b"x" * 15 + b"\nnext\n")
            with pytest.raises(ValueError, match="chunk is longer than limit"):
                await reader.readline()
            assert await reader.readline() == b"next\n"

    loop.run_until_complete(main())


def test_the_reader_pauses_the_transport_above_twice_its_limit(loop):
    async def main():
        async with stream(loop, limit=1000) as (reader, writer, peer):
            await loop.sock_sendall(peer, bytes(1001))
            await until(lambda: len(reader._buffer) == 1001)
            assert writer.transport.is_reading()
            await loop.sock_sendall(peer, bytes(1000))
            await until(lambda: len(reader._buffer) == 2001)
            assert not writer.transport.is_reading()
            assert len(await reader.read(1000)) == 1000
            assert not writer.transport.is_reading()
            assert len(await reader.read(1)) == 1
            assert writer.transport.is_reading()

    loop.run_until_complete(main())


def test_a_slow_reader_holds_the_sender_back(loop):
    amount = 32 << 20

    async def main():
        async with stream(loop, limit=1 << 16) as (reader, writer, peer):
            sender = loop.create_task(loop.sock_sendall(peer, bytes(amount)))
            await standstill(lambda: len(reader._buffer))
            assert not sender.done()
            assert len(reader._buffer) < amount // 4
            received = 0
            while received < amount:
                received += len(await reader.read(1 << 20))
            await sender

    loop.run_until_complete(main())


@streaming
async def test_only_one_coroutine_may_read(loop, reader, writer, peer):
    pending = asyncio.ensure_future(reader.read(1))
    await turns(2)
    with pytest.raises(
        RuntimeError, match="^read\\(\\) called while another coroutine is already waiting for incoming data$"
    ):
        await reader.read(1)
    peer.send(b"x")
    assert await pending == b"x"


@streaming
async def test_a_cancelled_read_loses_nothing(loop, reader, writer, peer):
    for method in (lambda: reader.readexactly(10), lambda: reader.read(10), lambda: reader.readline(), reader.read):
        pending = asyncio.ensure_future(method())
        await turns(2)
        pending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pending
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.readexactly(10), 0.001)
    pending = asyncio.ensure_future(reader.readexactly(10))
    peer.send(b"12345")
    await until(lambda: reader._buffer == b"12345")
    pending.cancel()
    await turns(2)
    peer.send(b"67890")
    assert await reader.readexactly(10) == b"1234567890"


@streaming
async def test_a_read_that_is_cancelled_as_the_data_arrives(loop, reader, writer, peer):
    pending = asyncio.ensure_future(reader.read(10))
    await turns(2)
    peer.send(b"data")
    loop.call_soon(pending.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        assert await pending == b"data"
        return
    assert await reader.read(10) == b"data"


@streaming
async def test_data_before_a_reset_is_read_first(loop, reader, writer, peer):
    peer.send(b"before")
    assert await reader.read(100) == b"before"
    reset(peer)
    with pytest.raises(ConnectionResetError):
        await reader.read(100)
    assert isinstance(reader.exception(), ConnectionResetError)
    with pytest.raises(ConnectionResetError):
        await reader.readline()


@streaming
async def test_an_exception_set_on_the_reader_wakes_who_waits(loop, reader, writer, peer):
    pending = asyncio.ensure_future(reader.readline())
    await turns(2)
    reader.set_exception(ZeroDivisionError("set by hand"))
    with pytest.raises(ZeroDivisionError, match="set by hand"):
        await pending
    with pytest.raises(ZeroDivisionError):
        await reader.read(1)


@streaming
async def test_feeding_by_hand_mixes_with_the_network(loop, reader, writer, peer):
    reader.feed_data(b"by hand, ")
    peer.send(b"by wire\n")
    assert await reader.readline() == b"by hand, by wire\n"
    reader.feed_eof()
    assert await reader.read() == b""


def test_the_buffer_of_the_reader_is_asyncios(loop):
    """Libraries look into `_buffer`; it is a bytearray that holds exactly what has not been read."""

    async def main():
        async with stream(loop) as (reader, writer, peer):
            peer.send(b"abc")
            await until(lambda: reader._buffer)
            assert type(reader._buffer) is bytearray and reader._buffer == b"abc"
            assert await reader.read(1) == b"a"
            assert reader._buffer == b"bc"
            assert repr(reader).startswith("<StreamReader 2 bytes transport=<")

    loop.run_until_complete(main())


class CountingReader(asyncio.StreamReader):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.fed = []

    def feed_data(self, data):
        self.fed.append(bytes(data))
        super().feed_data(data)

    def feed_eof(self):
        self.fed.append("eof")
        super().feed_eof()


async def connect_with(loop, sock, reader, protocol_class=asyncio.StreamReaderProtocol):
    transport, protocol = await loop.create_connection(lambda: protocol_class(reader, loop=loop), sock=sock)
    return asyncio.StreamWriter(transport, protocol, reader, loop)


def test_a_subclassed_reader_is_fed_through_its_own_methods(loop):
    async def main():
        ours, peer = tcp_pair()
        reader = CountingReader(loop=loop)
        writer = await connect_with(loop, ours, reader)
        peer.send(b"one")
        assert await reader.read(10) == b"one"
        peer.send(b"two")
        peer.close()
        assert await reader.read() == b"two"
        writer.close()
        await writer.wait_closed()
        return reader.fed

    assert loop.run_until_complete(main()) == [b"one", b"two", "eof", "eof"], (
        "at the end of the data and at the end of the connection"
    )


def test_a_subclassed_protocol_is_called_through_its_own_methods(loop):
    received = []

    class Counting(asyncio.StreamReaderProtocol):
        def data_received(self, data):
            received.append(bytes(data))
            super().data_received(data)

        def eof_received(self):
            received.append("eof")
            return super().eof_received()

        def connection_lost(self, error):
            received.append(error)
            super().connection_lost(error)

    async def main():
        ours, peer = tcp_pair()
        reader = asyncio.StreamReader(loop=loop)
        writer = await connect_with(loop, ours, reader, Counting)
        peer.send(b"one")
        assert await reader.read(10) == b"one"
        peer.close()
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()

    loop.run_until_complete(main())
    assert received == [b"one", "eof", None]


@streaming
async def test_a_method_replaced_on_a_live_reader_is_honoured(loop, reader, writer, peer):
    fed, original = [], reader.feed_data
    peer.send(b"one")
    assert await reader.read(10) == b"one"
    reader.feed_data = lambda data: (fed.append(bytes(data)), original(data))
    peer.send(b"two")
    assert await reader.read(10) == b"two"
    assert fed == [b"two"]


@streaming
async def test_a_method_replaced_on_a_live_protocol_is_honoured(loop, reader, writer, peer):
    received = []
    peer.send(b"one")
    assert await reader.read(10) == b"one"
    writer.transport.get_protocol().data_received = lambda data: received.append(bytes(data))
    peer.send(b"two")
    await until(lambda: received)
    assert received == [b"two"]


@streaming
async def test_a_protocol_that_takes_a_stream_over_gets_the_rest(loop, reader, writer, peer):
    """As proxies and upgrades do: some of the bytes by the reader, the others by a protocol of one's own."""
    successor = Recorder()
    peer.send(b"head\n")
    assert await reader.readline() == b"head\n"
    writer.transport.set_protocol(successor)
    peer.send(b"body")
    await until(lambda: successor.data == b"body")
    peer.shutdown(socket.SHUT_WR)
    await until(lambda: successor.lost)
    assert not reader.at_eof()
    writer.transport.set_protocol(asyncio.StreamReaderProtocol(reader, loop=loop))
    writer._protocol.connection_lost(None)


# Writing


@streaming
async def test_write_and_drain(loop, reader, writer, peer):
    writer.write(b"one")
    await writer.drain()
    writer.writelines([b" two", b" three"])
    await writer.drain()
    assert await receive_exactly(loop, peer, 13) == b"one two three"
    assert writer.can_write_eof()
    writer.write_eof()
    assert await receive_all(loop, peer) == b""
    peer.send(b"back")
    assert await reader.read(10) == b"back"


@streaming
async def test_drain_waits_while_the_transport_is_full(loop, reader, writer, peer):
    amount = 16 << 20
    writer.write(bytes(amount))
    draining = asyncio.ensure_future(writer.drain())
    second = asyncio.ensure_future(writer.drain())
    await standstill(writer.transport.get_write_buffer_size)
    assert not draining.done() and not second.done()
    await receive_exactly(loop, peer, amount)
    await draining
    await second
    assert writer.transport.get_write_buffer_size() <= 16384


@streaming
async def test_a_cancelled_drain_harms_nobody(loop, reader, writer, peer):
    amount = 16 << 20
    writer.write(bytes(amount))
    draining = asyncio.ensure_future(writer.drain())
    await turns(2)
    draining.cancel()
    with pytest.raises(asyncio.CancelledError):
        await draining
    assert len(await receive_exactly(loop, peer, amount)) == amount
    await writer.drain()


@streaming
async def test_drain_after_a_reset(loop, reader, writer, peer):
    writer.write(bytes(16 << 20))
    draining = asyncio.ensure_future(writer.drain())
    await turns(2)
    reset(peer)
    with pytest.raises(ConnectionError):
        await draining
    with pytest.raises(ConnectionResetError):
        await writer.drain()


@streaming
async def test_drain_yields_when_the_transport_is_closing(loop, reader, writer, peer):
    writer.close()
    assert writer.is_closing()
    with contextlib.suppress(ConnectionResetError):
        await writer.drain()
    await writer.wait_closed()


@streaming
async def test_wait_closed(loop, reader, writer, peer):
    keep_receive_buffer_small(peer)
    writer.write(b"x" * (16 << 20))
    writer.close()
    waiting = asyncio.ensure_future(writer.wait_closed())
    await turns(3)
    assert not waiting.done()
    await receive_all(loop, peer)
    await waiting
    await writer.wait_closed()


@streaming
async def test_wait_closed_raises_what_ended_the_connection(loop, reader, writer, peer):
    writer.write(bytes(16 << 20))
    reset(peer)
    await until(writer.is_closing)
    with pytest.raises(ConnectionError):
        await writer.wait_closed()


@streaming
async def test_extra_info_and_transport_of_a_writer(loop, reader, writer, peer):
    assert writer.get_extra_info("peername") == peer.getsockname()
    assert writer.get_extra_info("nothing", 7) == 7
    assert isinstance(writer.transport, asyncio.Transport)
    assert repr(writer).startswith("<StreamWriter transport=<")


# Servers


def test_start_server_with_a_coroutine(loop):
    async def handle(reader, writer):
        writer.write(b"you said " + await reader.readline())
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    async def main():
        server = await asyncio.start_server(handle, HOST, 0)
        async with server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.write(b"hello\n")
            answer = await reader.read()
            writer.close()
            await writer.wait_closed()
        return answer

    assert loop.run_until_complete(main()) == b"you said hello\n"


@contextlib.asynccontextmanager
async def handled(handle):
    """Yield a socket whose other end a server has given to `handle`, and the task that runs it."""
    tasks = []

    async def note(reader, writer):
        tasks.append(asyncio.current_task())
        await handle(reader, writer)

    server = await asyncio.start_server(note, HOST, 0)
    peer = socket.create_connection(server.sockets[0].getsockname())
    try:
        await until(lambda: tasks)
        yield peer, tasks[0]
    finally:
        peer.close()
        await asyncio.wait(tasks)
        server.close()


@pytest.mark.parametrize("asked", ["never", "early", "late"])
def test_a_reset_that_the_handler_has_caught_is_not_reported(loop, asked):
    """Whoever of the connection's objects the collector finalizes first: it takes younger generations first."""
    if asked == "never" and type(loop).__module__.startswith("asyncio") and not has_gil():
        pytest.skip(REPORTED_WITHOUT_GENERATIONS)
    contexts = capture_contexts(loop)

    async def handle(reader, writer):
        waiting = None
        if asked == "early":
            waiting = asyncio.ensure_future(writer.wait_closed())
            await turns(2)
            waiting.cancel()
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()
        if asked == "late":
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
        cycle = [reader, writer, waiting]
        cycle.append(cycle)

    async def main():
        async with handled(handle) as (peer, task):
            await turns(3)
            # What there is now is of another generation than what comes.
            gc.collect(0)
            reset(peer)
            await asyncio.wait([task])
            await turns(3)

    gc.collect()
    gc.disable()
    try:
        loop.run_until_complete(main())
        gc.collect()
    finally:
        gc.enable()
    assert contexts == []


@pytest.mark.parametrize("ending", ["close", "reset"])
def test_wait_closed_may_be_asked_after_the_end(loop, ending):
    results = []

    async def handle(reader, writer):
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()
        await turns(3)
        for _ in range(2):
            try:
                results.append(await writer.wait_closed())
            except ConnectionResetError as error:
                results.append(type(error))

    async def main():
        async with handled(handle) as (peer, task):
            await turns(3)
            peer.close() if ending == "close" else reset(peer)
            await asyncio.wait([task])

    loop.run_until_complete(main())
    assert results == [None if ending == "close" else ConnectionResetError] * 2


def test_start_server_with_a_plain_function(loop):
    def handle(reader, writer):
        writer.write(b"bye")
        writer.close()

    async def main():
        server = await asyncio.start_server(handle, HOST, 0)
        async with server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            assert await reader.read() == b"bye"
            writer.close()
            await writer.wait_closed()

    loop.run_until_complete(main())


def test_a_handler_that_fails_is_reported_and_its_connection_closed(loop):
    skip_unless(
        "client_connected_cb" in str(asyncio.StreamReaderProtocol.connection_made.__code__.co_consts),
        "report about a failing client_connected_cb",
    )
    contexts = capture_contexts(loop)

    async def handle(reader, writer):
        raise ZeroDivisionError("handler")

    async def main():
        server = await asyncio.start_server(handle, HOST, 0)
        async with server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            assert await reader.read() == b""
            writer.close()
            await writer.wait_closed()

    loop.run_until_complete(main())
    [context] = contexts
    assert context["message"] == "Unhandled exception in client_connected_cb"
    assert isinstance(context["exception"], ZeroDivisionError)


def test_a_handler_whose_client_is_gone(loop):
    begun, ended = [], []

    async def handle(reader, writer):
        try:
            while data := await reader.read(100):
                begun.append(data)
        except ConnectionResetError as error:
            ended.append(type(error))
        else:
            ended.append("end")
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    async def main():
        server = await asyncio.start_server(handle, HOST, 0)
        async with server:
            for how in (socket.socket.close, reset):
                client = socket.create_connection(server.sockets[0].getsockname())
                client.send(b"x")
                await until(lambda how=how: len(begun) == 1 + (how is reset))
                how(client)
                await until(lambda how=how: len(ended) == 1 + (how is reset))

    loop.run_until_complete(main())
    assert ended == ["end", ConnectionResetError]


def test_a_conversation_of_many_messages(loop):
    async def handle(reader, writer):
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                writer.write(size.to_bytes(4, "big") + await reader.readexactly(size))
                await writer.drain()
        writer.close()

    async def client(address, number):
        reader, writer = await asyncio.open_connection(*address)
        for size in (0, 1, 100, 65_536, 200_000, 3):
            message = bytes([number]) * size
            writer.write(size.to_bytes(4, "big"))
            writer.write(message)
            await writer.drain()
            assert int.from_bytes(await reader.readexactly(4), "big") == size
            assert await reader.readexactly(size) == message
        writer.close()
        await writer.wait_closed()

    async def main():
        server = await asyncio.start_server(handle, HOST, 0)
        async with server:
            await asyncio.gather(*(client(server.sockets[0].getsockname(), number) for number in range(20)))

    loop.run_until_complete(main())


def test_open_connection_refused(loop, refused_port):
    with pytest.raises(ConnectionRefusedError):
        loop.run_until_complete(asyncio.open_connection(HOST, refused_port))


def test_assertions_that_python_leaves_out(arm):
    """With -O, asyncio's reader takes data after its end."""
    child = run_child(
        """
        import socket

        async def main():
            ours, peer = socket.socketpair()
            reader, writer = await asyncio.open_connection(sock=ours)
            reader.feed_eof()
            with peer:
                peer.send(b"data")
                for _ in range(1000):
                    if reader._buffer or writer.is_closing():
                        break
                    await asyncio.sleep(0.001)
                print(await reader.read())
            writer.close()
            await asyncio.sleep(0)

        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(main())
        """,
        arm,
        python_flags=("-O",),
    )
    assert (child.stdout, child.stderr) == ("b'data'\n", "")
