"""Streams that other threads look at, write to and feed while the loop's thread reads them."""

import asyncio
import contextlib

import pytest

import support
from thread_support import collecting, echo, repeating, rounds

pytestmark = pytest.mark.examples


async def open_pair(loop, serve):
    """Return a server and the streams of a connection to it."""
    server = await asyncio.start_server(serve, support.HOST, 0)
    return server, *await asyncio.open_connection(*server.sockets[0].getsockname())


def look(reader, writer):
    # The private ones are asyncio's own attributes, which programs and debuggers look at.
    return (
        *(reader._waiter, reader._buffer, reader._eof, reader.exception(), reader.at_eof(), repr(reader)),
        *(writer.is_closing(), writer.get_extra_info("sockname"), writer.transport.get_write_buffer_size()),
    )


@pytest.mark.ringloop_only
def test_no_read_is_lost_because_others_look(loop):
    """A read ends with what was sent, whichever thread has looked at its waiter and its buffer meanwhile."""
    streams, count = [], rounds(1000)

    async def serve(reader, writer):
        streams.append((reader, writer))
        await echo(reader, writer)

    async def main():
        server, reader, writer = await open_pair(loop, serve)
        streams.append((reader, writer))
        for number in range(count):
            message = b"%d," % number * (1 + number % 50)
            writer.write(message)
            async with asyncio.timeout(support.PATIENCE_S):
                assert await reader.readexactly(len(message)) == message
        writer.close()
        await support.until(lambda: all(writer.is_closing() for _, writer in streams))
        server.close()
        return len(streams)

    def look_at_all():
        for stream in tuple(streams):
            look(*stream)

    with repeating(look_at_all, look_at_all), collecting():
        assert loop.run_until_complete(main()) == 2
    streams.clear()


@pytest.mark.ringloop_only
def test_what_other_threads_write_arrives_in_their_order(loop):
    if support.has_gil():
        pytest.skip("with the GIL, each thread acts itself")
    count, threads = rounds(300), 3

    def write(writer, name):
        for number in range(count):
            line = b"%d %d " % (name, number) + b"x" * (number * 37 % 2000) + b"\n"
            if number % 2:
                writer.write(line)
            else:
                writer.writelines([line[:3], line[3:]])

    async def main():
        server, reader, writer = await open_pair(loop, echo)
        writers = [support.BackgroundThread(write, writer, name) for name in range(threads)]
        numbers = [[] for _ in range(threads)]
        async with asyncio.timeout(support.PATIENCE_S):
            for _ in range(threads * count):
                name, number, rest = (await reader.readline()).split(b" ")
                assert rest == b"x" * (int(number) * 37 % 2000) + b"\n"
                numbers[int(name)].append(int(number))
        for thread in writers:
            thread.result()
        assert numbers == [list(range(count))] * threads
        writer.close()
        await writer.wait_closed()
        server.close()

    loop.run_until_complete(main())


@pytest.mark.ringloop_only
@pytest.mark.parametrize("read", ["read", "readline", "readexactly"])
def test_what_another_thread_feeds_is_read_once(loop, read):
    """asyncio leaves this open. Here nothing crashes, and a reader that is woken has all that was fed, in order.

    Feeding may fail while the loop's thread copies from the buffer, under asyncio as well.
    """
    count = rounds(500)
    lines = [b"%d\n" % number for number in range(count)]

    def feed(reader):
        for line in lines:
            while True:
                with contextlib.suppress(BufferError):
                    reader.feed_data(line)
                    break
            # What wakes a loop from another thread.
            loop.call_soon_threadsafe(support.noop)
        loop.call_soon_threadsafe(reader.feed_eof)

    async def serve(_reader, writer):
        await ended.wait()
        writer.close()

    async def main():
        server, reader, writer = await open_pair(loop, serve)
        thread = support.BackgroundThread(feed, reader)
        received = bytearray()
        async with asyncio.timeout(support.PATIENCE_S):
            try:
                while data := await {
                    "read": lambda: reader.read(100),
                    "readline": reader.readline,
                    "readexactly": lambda: reader.readexactly(3),
                }[read]():
                    received += data
            except asyncio.IncompleteReadError as error:
                received += error.partial
        await support.until(lambda: not thread.is_alive())
        thread.result()
        assert bytes(received) == b"".join(lines)
        ended.set()
        writer.close()
        server.close()

    ended = asyncio.Event()

    with collecting():
        loop.run_until_complete(main())


@pytest.mark.ringloop_only
@pytest.mark.parametrize("make", [bytes, bytearray], ids=["bytes", "bytearray"])
def test_a_reader_that_another_thread_fills_is_not_left_paused(loop, make):
    if support.has_gil():
        pytest.skip("with the GIL, each thread acts itself")
    count, piece, message = rounds(300), 200, b"q" * 64

    def fill(reader):
        for _ in range(count):
            data = make(b"f" * piece)
            if make is bytes:
                reader.feed_data(data)
            else:
                reader.feed_data(data=data)
                data[:] = b"changed"

    async def main():
        server = await asyncio.start_server(echo, support.HOST, 0)
        # The transport pauses at 128 bytes, and resumes at 64.
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname(), limit=64)
        thread = support.BackgroundThread(fill, reader)
        sent, received = 0, bytearray()
        async with asyncio.timeout(support.PATIENCE_S):
            while len(received) < count * (piece + len(message)):
                if sent < count:
                    writer.write(message)
                    sent += 1
                received += await reader.read(100)
        thread.result()
        assert (received.count(b"f"), received.count(b"q")) == (count * piece, count * len(message))
        writer.close()
        server.close()

    loop.run_until_complete(main())


@pytest.mark.ringloop_only
@pytest.mark.parametrize("error", [None, OSError("set by another thread")], ids=["end", "error"])
def test_another_thread_feeds_and_then_ends_a_reader(loop, error):
    if support.has_gil():
        pytest.skip("with the GIL, each thread acts itself")
    count = rounds(100)

    def feed(reader, pieces):
        for _ in range(pieces):
            reader.feed_data(b"x")
        if error is None:
            reader.feed_eof()
        else:
            reader.set_exception(exc=error)

    async def main():
        for number in range(count):
            ended = asyncio.Event()

            async def serve(_reader, writer, ended=ended):
                await ended.wait()
                writer.close()

            server, reader, writer = await open_pair(loop, serve)
            thread = support.BackgroundThread(feed, reader, number % 5)
            received, told = b"", None
            async with asyncio.timeout(support.PATIENCE_S):
                try:
                    while data := await reader.read(100):
                        received += data
                except OSError as raised:
                    told = raised
            assert told is error
            # As in asyncio, an error is raised before remaining data is read.
            assert received == b"x" * (number % 5) or error is not None
            thread.result()
            ended.set()
            writer.close()
            server.close()

    loop.run_until_complete(main())
