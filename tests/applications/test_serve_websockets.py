"""WebSockets of Starlette served by `ringloop.http`, with the client of the package websockets."""

import asyncio
import contextlib
import random

import pytest

import support

websockets = pytest.importorskip("websockets", reason="make test-applications installs it")
pytest.importorskip("starlette", reason="make test-applications installs it")
from starlette.applications import Starlette  # noqa: E402
from starlette.responses import JSONResponse  # noqa: E402
from starlette.routing import WebSocketRoute  # noqa: E402
from starlette.websockets import WebSocketDisconnect  # noqa: E402
from websockets.asyncio.client import connect  # noqa: E402

from ringloop.http import Config, Server  # noqa: E402
from starlette_application import application  # noqa: E402

pytestmark = pytest.mark.ringloop_only


@contextlib.asynccontextmanager
async def serving(app, path="/echo", *, context=None, **settings):
    """Serve an application; yield a function that connects to a path."""
    if context is not None:
        settings["ssl_context_factory"] = lambda *_: context[0]
    server = Server(Config(app, port=0, log_config=None, install_signal_handlers=False, **settings))
    task = asyncio.ensure_future(server.serve())
    while not server.started:
        await asyncio.sleep(0.001)
        assert not task.done() or task.result()
    port = server.servers[0].sockets[0].getsockname()[1]

    def client(path=path, **options):
        if context is None:
            return connect(f"ws://{support.HOST}:{port}{path}", max_size=None, **options)
        return connect(f"wss://localhost:{port}{path}", max_size=None, ssl=context[1], host=support.HOST, **options)

    client.server = server
    try:
        yield client
    finally:
        server.should_exit = True
        await task


def run(loop, test):
    return loop.run_until_complete(asyncio.wait_for(test, 10 * support.PATIENCE_S))


@pytest.mark.parametrize("compression", ["deflate", None])
def test_echo(loop, compression):
    randomness = random.Random(3)
    sizes = (0, 1, 63, 64, 125, 126, 1000, 65535, 65536, 300_000)
    messages = [randomness.choice(("ab" * (size // 2), randomness.randbytes(size))) for size in sizes * 3]

    async def test():
        async with serving(application) as client, client(compression=compression) as one:
            assert bool(one.protocol.extensions) is (compression is not None)
            for message in messages:
                await one.send(message)
                assert await one.recv() == message
            await one.send(["in ", "many ", "parts"])
            assert await one.recv() == "in many parts"
            await (await one.ping())

    run(loop, test())


def test_many_at_once_and_over_tls(loop, contexts):
    async def test():
        async with serving(application, context=contexts) as client:

            async def one(number):
                async with client() as connection:
                    for text in (f"{number} {turn}" * 50 for turn in range(20)):
                        await connection.send(text)
                        assert await connection.recv() == text

            await asyncio.gather(*(one(number) for number in range(20)))

    run(loop, test())


def test_closing(loop):
    async def test():
        async with serving(application) as client:
            async with client() as one:
                await one.send("close")
                with pytest.raises(websockets.ConnectionClosed):
                    await one.recv()
                assert (one.close_code, one.close_reason) == (4001, "as you asked")
            async with client() as one:
                await one.close(4002, "mine")
            assert one.close_code == 4002

    run(loop, test())


def test_what_starlette_makes_of_it(loop):
    seen = []

    async def deny(websocket):
        await websocket.send_denial_response(JSONResponse({"why": "not today"}, status_code=402))

    async def refuse(websocket):
        await websocket.close(1008)

    async def choose(websocket):
        await websocket.accept(websocket.scope["subprotocols"][-1], headers=[(b"x-key", b"value")])
        try:
            async for data in websocket.iter_json():
                await websocket.send_json(data, mode="binary")
        finally:
            seen.append("over")

    async def leave(websocket):
        await websocket.accept()
        with pytest.raises(WebSocketDisconnect) as caught:
            while True:
                await websocket.send_text("x" * 100_000)
        seen.append(caught.value.code)

    app = Starlette(routes=[WebSocketRoute(f"/{view.__name__}", view) for view in (deny, refuse, choose, leave)])

    async def test():
        async with serving(app) as client:
            with pytest.raises(websockets.InvalidStatus) as caught:
                await client("/deny")
            response = caught.value.response
            assert (response.status_code, response.body) == (402, b'{"why":"not today"}')
            with pytest.raises(websockets.InvalidStatus) as caught:
                await client("/refuse")
            assert caught.value.response.status_code == 403
            async with client("/choose", subprotocols=["one", "two"]) as one:
                assert one.subprotocol == "two"
                assert one.response.headers["x-key"] == "value"
                await one.send('{"a": 1}')
                assert await one.recv() == b'{"a":1}'
            async with client("/leave") as one:
                await one.recv()
                one.transport.abort()
            while len(seen) < 2:
                await asyncio.sleep(0.001)

    run(loop, test())
    assert sorted(map(str, seen)) == ["1006", "over"]


def test_a_shutdown(loop):
    async def test():
        async with serving(application) as client, client() as one:
            client.server.should_exit = True
            with pytest.raises(websockets.ConnectionClosed):
                await one.recv()
            assert one.close_code == 1012

    run(loop, test())
