"""`--health`: the page for load balancers."""

import asyncio

import pytest

import http2
from ringloop.http import Config, _pages
from ringloop.http import Server as WholeServer
from serve_process import fails, serving
from serving import Client, Server, answer, run, text
from test_http1 import GET

pytestmark = pytest.mark.ringloop_only

HEALTH = GET.replace(b" / ", b" /health ")


def pages_of(is_draining=lambda: False, *, is_logged=False):
    pages = _pages.Pages("")
    pages.add_page("/health", _pages.health(is_draining), is_logged=is_logged)
    return pages


def test_the_page(arm, loop):
    draining = []

    async def test():
        pages = pages_of(lambda: draining)
        async with Server(arm, text(b"application"), pages=pages) as server, server.client() as client:
            client.write(HEALTH)
            line, fields, body = await client.response()
            assert (line, body) == ("HTTP/1.1 200 OK", b"ok")
            assert (fields["content-type"], fields["cache-control"]) == ("text/plain; charset=utf-8", "no-store")
            client.write(HEALTH.replace(b"GET", b"HEAD"))
            line, fields, _ = await client.response(is_head=True)
            assert (line, fields["content-length"]) == ("HTTP/1.1 200 OK", "2")
            client.write(HEALTH.replace(b"GET", b"POST"))
            line, fields, _ = await client.response()
            assert (line, fields["allow"]) == ("HTTP/1.1 405 Method Not Allowed", "GET, HEAD")
            for target in (b" / ", b" /health/ ", b" /healthy "):
                client.write(GET.replace(b" / ", target))
                assert (await client.response())[2] == b"application"
            draining.append(True)
            client.write(HEALTH)
            line, _, body = await client.response()
            assert (line, body) == ("HTTP/1.1 503 Service Unavailable", b"draining")

    run(loop, test())


def test_over_http2(arm, loop):
    async def test():
        async with http2.Server(arm, text(b"application"), pages=pages_of()) as server, server.http2() as client:
            assert (await client.get("/health")).body == b"ok"
            assert (await client.get("/")).body == b"application"

    run(loop, test())


@pytest.mark.parametrize("version", [1, 2])
def test_a_server_that_has_enough_to_do_still_says_so(arm, loop, errors, version):
    ended = asyncio.Event()

    async def application(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"6")]})
        await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        await ended.wait()
        await send({"type": "http.response.body", "body": b"."})

    async def status(server, path):
        if version == 2:
            async with server.http2() as client:
                return (await client.get(path)).status
        async with server.client() as client:
            client.write(GET.replace(b" / ", b" %s " % path.encode()))
            return int((await client.response())[0].split()[1])

    async def test():
        kind = http2.Server if version == 2 else Server
        async with kind(arm, application, pages=pages_of(), limit_concurrency=2) as server, server.client() as busy:
            busy.write(GET)
            await busy.reader.readuntil(b"begun")
            assert await status(server, "/") == 503
            assert await status(server, "/health") == 200
            ended.set()
            assert await busy.reader.readexactly(1) == b"."

    run(loop, test())
    assert errors() == ["Exceeded concurrency limit."]


def test_a_server_that_ends(arm, loop):
    """A connection that was open before gets 503."""

    async def application(scope, receive, send):
        await answer(send, b"application")

    async def test():
        server = WholeServer(
            Config(
                application, port=0, health="/health", lifespan="off", log_config=None, install_signal_handlers=False
            )
        )
        serving = asyncio.ensure_future(server.serve())
        while not server.started:
            await asyncio.sleep(0)
        reader, writer = await asyncio.open_connection(*server.servers[0].sockets[0].getsockname())
        client = Client(reader, writer)
        while not server.service.connections:
            await asyncio.sleep(0)
        server.should_exit = True
        client.write(HEALTH)
        line, _, body = await client.response()
        assert (line, body) == ("HTTP/1.1 503 Service Unavailable", b"draining")
        await client.close()
        await serving

    run(loop, test())


@pytest.mark.parametrize("is_logged", [False, True])
def test_the_access_log(arm, loop, is_logged):
    async def test():
        pages = pages_of(is_logged=is_logged)
        async with Server(arm, text(b"ok"), pages=pages, log_access=True) as server, server.client() as client:
            for target in (b" /health ", b" /health?x ", b" / "):
                client.write(GET.replace(b" / ", target))
                await client.response()
            logged = [path for _, _, path, _, _ in server.access]
            assert logged == (["/health", "/health?x", "/"] if is_logged else ["/"])

    run(loop, test())


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.any_backend
def test_served(arm, workers):
    options = ("--health", "/health", "--root-path", "/api", "--workers", workers, "--log-health")
    with serving(arm, "applications:app", *options) as program:
        assert program.get("/health")[::2] == (200, b"ok")
        assert program.get("/")[2] == b"hello"
        program.wait_for('"GET /api/health HTTP/1.1" 200')


@pytest.mark.any_backend
def test_paths_that_are_none(arm):
    with pytest.raises(ValueError, match="must begin with a slash: 'health'"):
        Config("applications:app", health="health")
    with pytest.raises(ValueError, match="can't have the same path: '/x'"):
        Config("applications:app", health="/x", metrics="/x")
    status, output = fails(arm, "applications:app", "--health", "health")
    assert status == 2
    assert "Invalid value for '--health': the path must begin with a slash" in output


def test_a_websocket_is_the_applications(arm, loop):
    """Only HTTP is answered without it."""
    seen = []

    async def application(scope, receive, send):
        seen.append(scope["type"])
        await send({"type": "websocket.close"})

    async def test():
        async with Server(arm, application, pages=pages_of()) as server:
            fields = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
            key = b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
            assert (await server.ask(HEALTH[:-2] + fields + key)).startswith(b"HTTP/1.1 403 ")

    run(loop, test())
    assert seen == ["websocket"]
