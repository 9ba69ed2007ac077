"""Clients that cost an HTTP/2 server more than themselves. Each is cut off, and nobody else suffers."""

import asyncio
import contextlib
import tracemalloc

import pytest

import support
from http2 import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Server,
    frame,
    get,
)
from serving import answer, body_of, run, text

pytestmark = pytest.mark.ringloop_only

START = PREFACE + frame(SETTINGS)
POST = b"\x83\x86\x41\x01a\x84"


def forever(piece):
    while True:
        yield 100 * piece


def rapid_resets():
    stream = 1
    while True:
        yield get(stream) + frame(RST_STREAM, 0, stream, bytes((0, 0, 0, 8)))
        stream += 2


def headers_that_never_end():
    yield frame(HEADERS, 0, 1, b"\x82\x86\x41\x01a\x84")
    yield from forever(frame(CONTINUATION, 0, 1, b"\x40\x01a\x01b"))


def pings():
    yield from forever(frame(PING, 0, 0, bytes(8)))


def settings():
    yield from forever(frame(SETTINGS, 0, 0, b"\0\3\0\0\0\1"))


def window_updates():
    yield from forever(frame(WINDOW_UPDATE, 0, 0, b"\0\0\0\1"))


def tiny_data():
    yield frame(HEADERS, END_HEADERS, 1, POST)
    yield from forever(frame(DATA, 0, 1, b""))


def unknown_frames():
    yield from forever(frame(99, 0, 0, b""))


def wrong_requests():
    stream = 1
    while True:
        # No path.
        yield frame(HEADERS, END_STREAM | END_HEADERS, stream, b"\x82\x86\x41\x01a")
        stream += 2


async def pour(client, pieces):
    """Send until the server ends the connection. Read nothing."""
    with contextlib.suppress(ConnectionError):
        for piece in pieces:
            client.write(piece)
            await client.writer.drain()
            if client.writer.is_closing() or client.reader.at_eof():
                break
            await asyncio.sleep(0)


@pytest.mark.parametrize(
    "flood",
    [
        rapid_resets, headers_that_never_end, pings, settings, window_updates, tiny_data, unknown_frames,
        wrong_requests,
    ],
)  # fmt: skip
def test_a_flood_ends_its_connection(arm, loop, flood):
    async def application(scope, receive, send):
        await body_of(receive)
        await answer(send, b"ok")

    async def test():
        async with Server(arm, application) as server:
            async with server.client() as client:
                client.write(START)
                await pour(client, flood())
                await support.until(lambda: not server.service.connections)
                assert server.service.requests <= 1
            async with server.http2() as other:
                assert (await other.get(method="POST", body=b"x")).body == b"ok"

    run(loop, test())


@pytest.mark.parametrize("reads", [True, False])
def test_resets_after_the_start(arm, loop, reads):
    """Requests that have started are counted, too."""

    async def test():
        started = 0

        async def application(scope, receive, send):
            nonlocal started
            started += 1
            while (await receive())["type"] != "http.disconnect":
                pass

        async def resets(client):
            for stream in range(1, 1 << 20, 2):
                yield get(stream)
                while started < (stream + 1) // 2 and server.service.connections:
                    await asyncio.sleep(0)
                yield frame(RST_STREAM, 0, stream, bytes((0, 0, 0, 8)))

        async with Server(arm, application) as server, server.client() as client:
            client.write(START)
            reading = asyncio.ensure_future(client.rest()) if reads else None
            with contextlib.suppress(ConnectionError):
                async for piece in resets(client):
                    client.write(piece)
                    await client.writer.drain()
                    if not server.service.connections:
                        break
            await support.until(lambda: not (server.service.connections or server.service.active))
            if reading is not None:
                await asyncio.wait([reading])
                reading.exception()
            # The burst, what time has added to it, and the streams that were open.
            assert 200 <= started < 5000

    run(loop, test())


@pytest.mark.exact
def test_answers_that_are_not_read_are_bounded(arm, loop):
    """A client that asks for much, gives room for it and doesn't read."""

    sent = 0

    async def application(scope, receive, send):
        nonlocal sent
        await send({"type": "http.response.start", "status": 200})
        for _ in range(1000):
            await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
            sent += 1

    async def test():
        async with Server(arm, application) as server, server.client() as client:
            client.reader._transport.pause_reading()
            client.write(PREFACE + frame(SETTINGS, 0, 0, b"\0\4\x7f\xff\xff\xff"))
            client.write(frame(WINDOW_UPDATE, 0, 0, b"\x7f\xff\0\0"))
            for stream in range(1, 201, 2):
                client.write(get(stream))
            await support.until(lambda: server.service.requests >= 100)
            tracemalloc.start()
            try:
                await support.standstill(lambda: sent)
                messages = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, __file__)])
            finally:
                tracemalloc.stop()
            # One message for each stream at most.
            assert sum(trace.size for trace in messages.traces) < 100 * 65536 * 2
            client.reset()

    run(loop, test())


def test_a_window_of_one_byte_at_a_time(arm, loop):
    """Each byte is asked for by itself: that ends, too."""

    async def test():
        async with Server(arm, text(b"x" * 100_000)) as server, server.client() as client:
            client.write(PREFACE + frame(SETTINGS, 0, 0, b"\0\4\0\0\0\1") + get(1))
            reading = asyncio.ensure_future(client.rest())
            await pour(client, forever(frame(WINDOW_UPDATE, 0, 1, b"\0\0\0\1")))
            await support.until(lambda: not server.service.connections)
            await asyncio.wait([reading])
            reading.exception()

    run(loop, test())


def test_a_client_that_gives_room_for_each_little_that_it_reads(arm, loop):
    """As Go's does: two frames for each 4 KiB, for the stream and for the connection."""
    length = 64 << 20

    async def test():
        async with Server(arm, text(length * b"x")) as server, server.client() as client:
            client.write(START + get(1))
            received = given = 0
            while received < length:
                piece = await client.reader.read(65536)
                assert piece, received
                received += len(piece)
                for _ in range((received - given) // 4096):
                    given += 4096
                    client.write(b"".join(frame(WINDOW_UPDATE, 0, stream, b"\0\0\x10\0") for stream in (0, 1)))
            client.reset()

    run(loop, test())


def test_a_client_that_gives_room_for_each_small_piece(arm, loop):
    """As haproxy does: two frames for what it has read, for the stream and for the connection."""
    count, piece = 20_000, 20 * b"x"

    async def application(scope, receive, send):
        await send({"type": "http.response.start", "status": 200})
        for number in range(count):
            await send({"type": "http.response.body", "body": piece, "more_body": number < count - 1})

    async def test():
        async with Server(arm, application) as server, server.client() as client:
            client.write(START + get(1))
            received = given = 0
            while received < count * len(piece):
                data = await client.reader.read(65536)
                assert data, received
                received += len(data)
                for _ in range((received - given) // len(piece)):
                    given += len(piece)
                    client.write(b"".join(frame(WINDOW_UPDATE, 0, stream, b"\0\0\0\x14") for stream in (0, 1)))
            client.reset()

    run(loop, test())


def test_a_body_in_many_small_frames(arm, loop):
    """A program that writes line by line makes them."""
    count = 60_000

    async def application(scope, receive, send):
        await answer(send, str(len((await body_of(receive))[0])).encode())

    async def test():
        async with Server(arm, application) as server, server.client() as client:
            client.write(START + frame(HEADERS, END_HEADERS, 1, POST))
            for _ in range(count // 1000):
                client.write(frame(DATA, 0, 1, b"x") * 1000)
                await client.writer.drain()
            client.write(frame(DATA, END_STREAM, 1, b""))
            assert str(count).encode() in await client.reader.readuntil(str(count).encode())
            client.reset()

    run(loop, test())


def test_a_head_that_is_too_large(arm, loop):
    async def test():
        async with Server(arm, text(b""), limit_head=4096) as server, server.http2() as client:
            assert (await client.get("/", ("x-large", 5000 * "x"))).status == 431
            many = [(f"x-{number}", "") for number in range(300)]
            async with server.http2() as other:
                assert (await other.get("/", *many)).status == 431
            assert (await client.get("/")).status == 200

    run(loop, test())
