"""Requests that other threads use: of ASGI, where `send` and `receive` belong to the thread of their loop."""

import asyncio

import pytest

import support
from http2 import Server as Http2Server
from serving import Server, run
from websocket_client import WebSocketServer, application
from wsgi_support import GET, post

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
