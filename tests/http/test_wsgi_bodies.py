"""WSGI applications: large bodies, which are received as a whole where it is known how much a view wants."""

import asyncio
import os
import threading
import time

import pytest

import support
from serving import run
from wsgi_support import GET, post, releasing, serve, until, wait

pytestmark = pytest.mark.ringloop_only

READS = 6
"""Views in a row that read their bodies. After a few the server expects that of the next one, too."""


def echo_length(environ, start_response):
    """Read all of the body, and answer with its length."""
    body = b"%d" % len(environ["wsgi.input"].read())
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body]


async def read_some(client, size=100_000):
    """Have views read bodies, so that the server expects that of the next one, too."""
    for _ in range(READS):
        client.write(post(bytes(size)))
        assert (await client.response())[2] == b"%d" % size


async def send_at_once(client, request):
    client.write(request)
    await client.writer.drain()


async def send_head_first(client, request):
    end = request.index(b"\r\n\r\n") + 4
    client.write(request[:end])
    await asyncio.sleep(0)
    client.write(request[end:])
    await client.writer.drain()


async def send_in_pieces(client, request):
    for at in range(0, len(request), 50_000):
        client.write(request[at : at + 50_000])
        await client.writer.drain()
        await asyncio.sleep(0)


async def send_with_pauses(client, request):
    """Pause for longer than the server waits before it starts the view."""
    third = len(request) // 3
    for piece in (request[:third], request[third : 2 * third], request[2 * third :]):
        client.write(piece)
        await client.writer.drain()
        await asyncio.sleep(0.005)


async def turns_until(condition):
    """Wait for what is so for a moment only: look in each turn of the loop."""
    async with asyncio.timeout(support.PATIENCE_S):
        while not condition():
            await asyncio.sleep(0)


def in_parts(stream, size):
    return b"".join(iter(lambda: stream.read(size), b""))


def first_a_little(stream):
    return stream.read(10) + stream.readline() + stream.read(40_000) + stream.read()


@pytest.mark.parametrize("send", [send_at_once, send_head_first, send_in_pieces, send_with_pauses])
@pytest.mark.parametrize("size", [32_767, 32_768, 65_536, 300_000, 1 << 20, (1 << 20) + 1, 3_000_000])
@pytest.mark.parametrize(
    "read",
    [
        lambda stream: stream.read(),
        lambda stream: stream.read(1 << 20) + stream.read(),
        lambda stream: in_parts(stream, 65_536),
        lambda stream: in_parts(stream, 10_000),
        lambda stream: b"".join(stream),
        first_a_little,
    ],
    ids=["all", "a megabyte", "64 KB each", "10 KB each", "lines", "first a little"],
)
def test_reading(arm, loop, read, size, send):
    bodies = [os.urandom(size) for _ in range(READS)]
    found = []

    def application(environ, start_response):
        stream = environ["wsgi.input"]
        found.append(read(stream))
        assert stream.read() == b""
        start_response("200 OK", [])
        return [b""]

    async def test():
        async with serve(arm, application) as server, server.client() as client:
            for body in bodies:
                await send(client, post(body))
                assert (await client.response())[0] == "HTTP/1.1 200 OK"

    run(loop, test())
    assert [len(body) for body in found] == [len(body) for body in bodies]
    assert found == bodies


def test_many_clients_at_once(arm, loop):
    """More than there is memory for before their views read."""

    async def ask(server, number):
        size = (1 << 20) - number
        async with server.client() as client:
            for _ in range(3):
                await send_at_once(client, post(bytes(size)))
                assert (await client.response())[2] == b"%d" % size

    async def test():
        async with serve(arm, echo_length) as server:
            await asyncio.gather(*(ask(server, number) for number in range(60)))

    run(loop, test())


def test_a_client_that_pauses_gets_its_view(arm, loop):
    started, may_end = threading.Event(), threading.Event()

    def application(environ, start_response):
        if environ["PATH_INFO"] == "/slow":
            started.set()
            wait(may_end)
        return echo_length(environ, start_response)

    async def test():
        async with serve(arm, application) as server, server.client() as client:
            await read_some(client)
            request = post(bytes(200_000)).replace(b"/ ", b"/slow ", 1)
            client.write(request[:-100_000])
            await until(loop, started)
            client.write(request[-100_000:])
            may_end.set()
            assert (await client.response())[2] == b"200000"
            await read_some(client)

    with releasing(may_end):
        run(loop, test())


def test_views_that_do_not_read(arm, loop):
    kept = []

    def application(environ, start_response):
        if environ["PATH_INFO"] == "/unread":
            kept.append(environ)
            start_response("200 OK", [("Content-Length", "6")])
            return [b"unread"]
        return echo_length(environ, start_response)

    async def test():
        async with serve(arm, application) as server, server.client() as client:
            for _ in range(40):
                await read_some(client)
                client.write(post(bytes(1 << 20)).replace(b"/ ", b"/unread ", 1))
                assert (await client.response())[2] == b"unread"

    run(loop, test())
    assert len(kept) == 40


def test_a_request_behind_a_large_body(arm, loop):
    def application(environ, start_response):
        return echo_length(environ, start_response)

    async def test():
        async with serve(arm, application) as server, server.client() as client:
            await read_some(client)
            client.write((post(bytes(100_000)) + GET) * 3)
            found = [(await client.response())[2] for _ in range(6)]
            assert found == [b"100000", b"0"] * 3

    run(loop, test())


@pytest.mark.parametrize("is_expected", [False, True])
@pytest.mark.parametrize("leaves", ["by a reset", "by its end"])
def test_a_client_that_leaves_within_a_large_body(arm, loop, errors, is_expected, leaves):
    async def test():
        async with serve(arm, echo_length) as server:
            for _ in range(3):
                async with server.client() as client:
                    if is_expected:
                        await read_some(client)
                    client.write(post(bytes(500_000))[:-100_000])
                    await client.writer.drain()
                    if leaves == "by a reset":
                        client.reset()
            async with server.client() as client:
                await read_some(client)

    run(loop, test())


@pytest.mark.parametrize("announced", [1 << 30, 1 << 40, (1 << 63) - 1])
def test_a_client_that_announces_more_than_there_is_memory_for(arm, loop, announced):
    found = []
    over = threading.Event()

    def application(environ, start_response):
        if environ["PATH_INFO"] != "/large":
            return echo_length(environ, start_response)
        try:
            environ["wsgi.input"].read()
        except OSError as error:
            found.append(str(error))
        finally:
            over.set()
        start_response("200 OK", [])
        return [b""]

    async def test():
        async with serve(arm, application) as server:
            async with server.client() as client:
                await read_some(client)
                client.write(
                    b"POST /large HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % announced + bytes(100_000)
                )
                await client.writer.drain()
                await asyncio.sleep(0.01)
            await until(loop, over)

    run(loop, test())
    assert found == ["the client is gone"]


@pytest.mark.parametrize("has_begun", [False, True])
def test_the_end_comes_within_a_large_body(arm, loop, has_begun):
    async def test():
        async with serve(arm, echo_length) as server, server.client() as client:
            await read_some(client)
            client.write(post(bytes(500_000))[:-100_000])
            await client.writer.drain()
            if has_begun:
                await turns_until(lambda: server.service._bytes_ahead == 500_000 or server.service.active == 1)
            server.service.shut_down()
            server.service.disconnect()
            await server.service.wait_closed()

    run(loop, test())


def test_room_is_kept_only_for_bodies_that_nobody_has_asked_for(arm, loop):
    kept = []

    def application(environ, start_response):
        kept.append(environ)
        if environ["PATH_INFO"] == "/raise":
            raise ValueError("before it reads")
        if environ["PATH_INFO"] == "/ignore":
            start_response("200 OK", [("Content-Length", "0")])
            return []
        return echo_length(environ, start_response)

    async def test():
        async with serve(arm, application) as server:
            for path in (b"/ignore", b"/raise", b"/leave"):
                async with server.client() as client:
                    await read_some(client)
                    request = post(bytes(1_000_000)).replace(b"/", path, 1)
                    if path == b"/leave":
                        client.write(request[:500_000])
                        await turns_until(lambda: server.service._bytes_ahead or server.service.active)
                        client.reset()
                    else:
                        client.write(request)
                        await client.response()
                    await support.until(lambda: server.service._bytes_ahead == 0)

    run(loop, test())


def test_a_body_is_received_ahead_if_others_were_read(arm, loop):
    async def is_received_ahead(server, client):
        request = post(bytes(500_000))
        client.write(request[:250_000])
        await turns_until(lambda: server.service._bytes_ahead or server.service.active)
        is_ahead = server.service._bytes_ahead == 500_000
        client.write(request[250_000:])
        assert (await client.response())[2] == b"500000"
        assert server.service._bytes_ahead == 0
        return is_ahead

    async def test():
        async with serve(arm, echo_length) as server, server.client() as client:
            assert not await is_received_ahead(server, client)
            await read_some(client)
            # A process that stands still looks too late: the view is started after 2 ms.
            for _ in range(100):
                if await is_received_ahead(server, client):
                    return
            raise AssertionError("no body was received ahead")

    run(loop, test())


def test_threads_that_read_one_body_get_each_line_once(arm, loop):
    lines = [b"%07d\n" % number for number in range(30_000)]
    taken = []

    def application(environ, start_response):
        stream = environ["wsgi.input"]

        def read(take):
            while line := take(8):
                taken.append(line)

        threads = [support.BackgroundThread(read, take) for take in (stream.read, stream.readline) * 2]
        for thread in threads:
            thread.result()
        start_response("200 OK", [("Content-Length", "0")])
        return []

    async def test():
        async with serve(arm, application) as server, server.client() as client:
            client.write(post(b"".join(lines)))
            await client.response()

    run(loop, test())
    assert sorted(taken) == lines


def test_threads_of_a_view_may_want_more_than_the_first_of_them(arm, loop):
    begun, done = threading.Event(), threading.Event()
    lengths = []

    def application(environ, start_response):
        stream = environ["wsgi.input"]

        def read_a_little():
            begun.set()
            lengths.append(len(stream.read(40_000)))

        thread = threading.Thread(target=read_a_little)
        thread.start()
        wait(begun)
        time.sleep(0.02)  # Probably it waits now. The order doesn't matter, but this one is the harder one.
        lengths.append(len(stream.read(1_000_000)))
        thread.join()
        done.set()
        lengths.append(len(stream.read()))
        start_response("200 OK", [("Content-Length", "0")])
        return []

    async def test():
        async with serve(arm, application) as server, server.client() as client:
            request = post(bytes(3_000_000))
            end = request.index(b"\r\n\r\n") + 4
            client.write(request[:end])
            await until(loop, begun)
            client.write(request[end:-1_000_000])
            await until(loop, done)
            client.write(request[-1_000_000:])
            await client.response()

    with releasing(begun, done):
        run(loop, test())
    assert sorted(lengths[:2]) == [40_000, 1_000_000]
    assert lengths[2] == 3_000_000 - 1_040_000
