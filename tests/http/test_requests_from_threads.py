"""Requests that other threads use: of ASGI, where `send` and `receive` belong to the thread of their loop, and of WSGI,
where a view may have threads of its own, which all write and read.
"""

import asyncio
import threading

import pytest

import support
from http2 import Server as Http2Server
from serving import Server, run
from thread_support import at_once, repeating, rounds
from websocket_client import WebSocketServer, application
from wsgi_support import GET, post, serve

pytestmark = [pytest.mark.ringloop_only, pytest.mark.exact]

ELSEWHERE = "in another thread than its request's: use asyncio.run_coroutine_threadsafe"

without_gil = pytest.mark.skipif(support.has_gil(), reason="with the GIL, send and receive are refused nowhere")

START = {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]}
BODY = {"type": "http.response.body", "body": b"hello"}


async def in_another_loop(call):
    """Await `call()` in a loop of another thread, while that of this thread runs."""

    async def body():
        return await call()

    return await asyncio.to_thread(lambda: asyncio.run(body()))


async def refuse(*calls):
    """Check that calls of `send` and `receive` are refused in another thread."""
    for call in calls:
        with pytest.raises(RuntimeError, match=ELSEWHERE):
            await in_another_loop(call)


async def hello(server):
    """Ask a server of either protocol; it answers with "hello"."""
    if isinstance(server, Http2Server):
        async with server.http2() as client:
            response = await client.get()
            assert (response.status, response.body) == (200, b"hello")
    else:
        async with server.client() as client:
            client.write(GET)
            line, _, body = await client.response()
            assert (line, body) == ("HTTP/1.1 200 OK", b"hello")


# -- ASGI -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Server, Http2Server])
def test_send_and_receive_in_another_thread(arm, loop, kind):
    """Without the GIL they are refused and leave no trace; with it they work, where they need not wait."""

    async def answer(scope, receive, send):
        if support.has_gil():
            message = await in_another_loop(receive)
            await in_another_loop(lambda: send(START))
        else:
            await refuse(receive, lambda: send(START))
            message = await receive()
            await send(START)
        assert message == {"type": "http.request", "body": b"", "more_body": False}
        await send(BODY)

    async def test():
        async with kind(arm, answer) as server:
            await hello(server)

    run(loop, test())


@without_gil
def test_a_websocket_in_another_thread(arm, loop):
    async def body(receive, send):
        await refuse(receive, lambda: send({"type": "websocket.send", "text": "no"}))
        await send({"type": "websocket.send", "text": (await receive())["text"]})

    async def test():
        async with WebSocketServer(arm, application(body)) as server, server.websocket() as client:
            client.send("hello")
            assert await client.message() == "hello"

    run(loop, test())


def test_what_the_error_says_to_do(arm, loop):
    async def answer(scope, receive, send):
        def work():
            for call in (receive(), send(START), send(BODY)):
                asyncio.run_coroutine_threadsafe(call, loop).result(support.PATIENCE_S)

        await asyncio.to_thread(work)

    async def test():
        async with Server(arm, answer) as server:
            await hello(server)

    run(loop, test())


@without_gil
def test_a_call_that_waits(arm, loop):
    """A step in another thread does not disturb it, and it may be closed there."""
    waits = asyncio.Event()

    async def answer(scope, receive, send):
        waiting, closed = receive(), receive()
        future = waiting.send(None)
        closed.send(None)

        def elsewhere():
            with pytest.raises(RuntimeError, match=ELSEWHERE):
                waiting.send(None)
            closed.close()

        await asyncio.to_thread(elsewhere)
        waits.set()
        # As the task that awaits it does.
        future._asyncio_future_blocking = False
        await future
        with pytest.raises(StopIteration) as end:
            waiting.send(None)
        await send(START)
        await send(BODY | {"body": end.value.value["body"]})

    async def test():
        async with Server(arm, answer) as server, server.client() as client:
            head = post(b"hello")[:-5]
            client.write(head)
            await waits.wait()
            client.write(b"hello")
            assert (await client.response())[2] == b"hello"

    run(loop, test())


def test_an_application_that_is_closed_in_another_thread(arm, loop):
    """As the collector may close one. Without the GIL, what its `finally` sends is refused."""

    async def begin(send):
        try:
            await asyncio.Event().wait()
        finally:
            await send(START)

    async def answer(scope, receive, send):
        coroutine = begin(send)
        coroutine.send(None)
        if support.has_gil():
            await asyncio.to_thread(coroutine.close)
        else:
            with pytest.raises(RuntimeError, match=ELSEWHERE):
                await asyncio.to_thread(coroutine.close)
            await send(START)
        await send(BODY)

    async def test():
        async with Server(arm, answer) as server:
            await hello(server)

    run(loop, test())


@pytest.mark.examples
@pytest.mark.parametrize("kind", [Server, Http2Server])
def test_headers_that_another_thread_changes(arm, loop, kind):
    headers = []

    async def answer(scope, receive, send):
        await send(START | {"headers": headers})
        await send(BODY)

    def change():
        headers.extend([b"a", b"%d" % number] for number in range(20))
        headers.extend((b"b", b"%d" % number) for number in range(20))
        headers.clear()

    async def test():
        async with kind(arm, answer) as server:
            for _ in range(rounds(100)):
                await hello(server)

    with repeating(change):
        run(loop, test())


# -- WSGI -------------------------------------------------------------------------------------------------------------


@pytest.mark.examples
def test_threads_that_write_one_response(arm, loop):
    """Each byte is sent and counted once, and what one thread writes keeps its order."""
    count = 200
    parts = [[b"%c%05d;" % (name, number) for number in range(count)] for name in b"ab"]
    length = sum(len(part) for half in parts for part in half)

    def view(environ, start_response):
        write = start_response("200 OK", [("Content-Length", str(length))])
        at_once(*(lambda half=half: [write(part) for part in half] for half in parts))
        return []

    async def test():
        async with serve(arm, view) as server, server.client() as client:
            for _ in range(rounds(20)):
                client.write(GET)
                _, _, body = await client.response()
                found = body.split(b";")[:-1]
                for half in parts:
                    assert [part + b";" for part in found if part[0] == half[0][0]] == half

    run(loop, test())


@pytest.mark.examples
def test_threads_that_start_one_response(arm, loop):
    outcomes = []

    def view(environ, start_response):
        def start(name):
            try:
                start_response("200 OK", [("Content-Length", "5"), ("Name", name)])
            except RuntimeError as error:
                assert str(error) == "start_response was already called"
                return None
            return name

        outcomes.append(at_once(lambda: start("a"), lambda: start("b")))
        return [b"hello"]

    async def test():
        async with serve(arm, view) as server, server.client() as client:
            for _ in range(rounds(50)):
                client.write(GET)
                _, fields, body = await client.response()
                assert body == b"hello"
                assert [name for name in outcomes[-1] if name] == [fields["name"]]

    run(loop, test())


def test_headers_that_start_the_response_themselves(arm, loop):
    """The code that reads them may call what they are given to."""

    class Headers:
        def __init__(self, start_response):
            self.start_response = start_response

        def __iter__(self):
            self.start_response("200 OK", [("Content-Length", "5")])
            return iter([("Content-Length", "7")])

    def view(environ, start_response):
        with pytest.raises(RuntimeError, match="start_response was already called"):
            start_response("200 OK", Headers(start_response))
        return [b"hello"]

    async def test():
        async with serve(arm, view) as server:
            await hello(server)

    run(loop, test())


SIZES = [16, 1000, 50_000]


@pytest.mark.examples
@pytest.mark.parametrize("size", [None, *SIZES])
def test_threads_that_read_one_body(arm, loop, size):
    """Each line, or each part, is read once and as a whole."""
    if size is None:
        pieces = [b"%d %s\n" % (number, b"x" * (number * 7 % 300)) for number in range(2000)]
    else:
        pieces = [b"%015d;" % number * (size // 16) for number in range(400_000 // size)]
        pieces = [piece.ljust(size, b"-") for piece in pieces]
    body = b"".join(pieces)
    found = []

    def view(environ, start_response):
        stream = environ["wsgi.input"]
        read = stream.readline if size is None else (lambda: stream.read(size))
        found[:] = at_once(*[lambda: list(iter(read, b""))] * 2)
        start_response("200 OK", [("Content-Length", "5")])
        return [b"hello"]

    async def test():
        async with serve(arm, view) as server, server.client() as client:
            for _ in range(rounds(10)):
                request = post(body)
                for at in range(0, len(request), 30_011):
                    client.write(request[at : at + 30_011])
                    await asyncio.sleep(0)
                assert (await client.response())[2] == b"hello"
                order = {piece: number for number, piece in enumerate(pieces)}
                for half in found:
                    numbers = [order[piece] for piece in half]
                    assert numbers == sorted(numbers)
                assert sorted(found[0] + found[1]) == sorted(pieces)

    run(loop, test())


@pytest.mark.parametrize("kind", ["http1", "http2"])
def test_parts_of_a_class_of_the_applications(arm, loop, kind):
    """Nothing of them is kept: what ends one is the view, and not the loop in the middle of something."""
    ends = []

    class Part(bytes):
        __slots__ = ()

        def __del__(self):
            ends.append(threading.get_ident())

    size = 100_000

    def view(environ, start_response):
        start_response("200 OK", [("Content-Length", str(2 * size))])
        yield Part(size)
        yield Part(size)

    async def test():
        async with serve(arm, view) as server:
            if kind == "http1":
                async with server.client() as client:
                    client.write(GET)
                    assert (await client.response())[2] == bytes(2 * size)
            else:
                async with Http2Server.http2(server) as client:
                    assert (await client.get()).body == bytes(2 * size)

    run(loop, test())
    assert len(ends) == 2
    assert threading.get_ident() not in ends


@pytest.mark.examples
@pytest.mark.parametrize("threads", [1, 2])
def test_requests_that_come_while_the_service_shuts_down(arm, loop, threads):
    """Each is answered, and no thread of the pool stays."""
    before = set(threading.enumerate())

    def view(environ, start_response):
        start_response("200 OK", [("Content-Length", "5")])
        return [b"hello"]

    async def once():
        async with serve(arm, view, wsgi_threads=threads) as server:
            await hello(server)
            async with server.client() as first, server.client() as second:
                clients = (first, second)
                for client in clients:
                    client.write(GET[:-2])
                while server.service.connections < 2:
                    await asyncio.sleep(0)
                await support.looks()
                # The threads wake and end while the requests come.
                server.service.shut_down()
                for client in clients:
                    client.write(GET[-2:])
                for client in clients:
                    assert (await client.response())[2] == b"hello"
                await server.service.wait_closed()
        await support.until(lambda: before.issuperset(threading.enumerate()), "the end of the pool's threads")

    async def test():
        for _ in range(rounds(100)):
            await once()

    run(loop, test())
