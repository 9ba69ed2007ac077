"""aiohttp's server and client on one loop: HTTP, WebSocket, TLS, files, time limits, and clients that leave early."""

import asyncio
import contextlib
import hashlib
import io
import random

import pytest

import support

aiohttp = pytest.importorskip("aiohttp", reason="make test-applications installs it")
from aiohttp import web  # noqa: E402

PIECE = bytes(range(256)) * 64


@pytest.fixture(params=["http", "tls"])
def contexts(request, certificate):
    """Return the SSL contexts of the server and of its clients; None twice for plain HTTP."""
    if request.param == "http":
        return None, None
    return certificate.server_context(), certificate.client_context()


@contextlib.asynccontextmanager
async def serving(application, contexts=(None, None), **options):
    """Serve an application on a free port; yield a client's session for it."""
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=1, **options)
    await runner.setup()
    server_context, client_context = contexts
    try:
        await web.TCPSite(runner, support.HOST, 0, ssl_context=server_context).start()
        scheme = "http" if server_context is None else "https"
        base = f"{scheme}://localhost:{runner.addresses[0][1]}"
        connector = aiohttp.TCPConnector(ssl=client_context or True, limit=50)
        async with aiohttp.ClientSession(base, connector=connector) as session:
            yield session
    finally:
        await runner.cleanup()


def application(*routes):
    app = web.Application(client_max_size=1 << 30)
    app.add_routes(routes)
    return app


async def hello(request):
    return web.json_response({"client": request.transport.get_extra_info("peername"), "query": request.query_string})


def test_many_requests_on_few_connections(loop, contexts):
    async def main():
        async with serving(application(web.get("/", hello)), contexts) as session:

            async def client(number):
                answers = []
                for step in range(5):
                    async with session.get(f"/?{number}.{step}") as response:
                        assert response.status == 200
                        answers.append(await response.json())
                return answers

            answers = await asyncio.gather(*map(client, range(100)))
        assert [[one["query"] for one in five] for five in answers] == [
            [f"{number}.{step}" for step in range(5)] for number in range(100)
        ]
        assert len({tuple(one["client"]) for five in answers for one in five}) <= 50

    loop.run_until_complete(main())


def test_streams_up_and_down(loop, contexts):
    pieces = [bytes([number]) * (1 + 5003 * number) for number in range(50)]
    whole = b"".join(pieces)

    async def digest(request):
        seen = hashlib.sha256()
        async for piece in request.content.iter_any():
            seen.update(piece)
        return web.Response(text=seen.hexdigest())

    async def mirror(request):
        response = web.StreamResponse()
        await response.prepare(request)
        async for piece in request.content.iter_any():
            await response.write(piece)
        return response

    async def upload():
        for piece in pieces:
            yield piece
            await asyncio.sleep(0)

    async def main():
        routes = web.post("/digest", digest), web.post("/mirror", mirror)
        async with serving(application(*routes), contexts) as session:
            for body in (upload(), io.BytesIO(whole)):
                async with session.post("/digest", data=body) as response:
                    assert await response.text() == hashlib.sha256(whole).hexdigest()
            async with session.post("/mirror", data=upload()) as response:
                assert await response.read() == whole

    loop.run_until_complete(main())


def test_a_slow_reader_holds_the_server_back(loop, contexts):
    """The handler waits in `write` until the client reads: what is in between stays bounded."""
    written = 0

    async def flood(request):
        nonlocal written
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(4000):
            await response.write(PIECE)
            written += len(PIECE)
        return response

    async def main():
        async with serving(application(web.get("/", flood)), contexts) as session, session.get("/") as response:
            await support.until(lambda: written)
            assert await support.standstill(lambda: written) < 4000 * len(PIECE)
            read = 0
            async for piece in response.content.iter_any():
                read += len(piece)
            assert read == written == 4000 * len(PIECE)

    loop.run_until_complete(main())


def test_websockets(loop, contexts):
    closed = []

    async def echo(request):
        socket = web.WebSocketResponse(max_msg_size=0)
        await socket.prepare(request)
        async for message in socket:
            if message.data == "close":
                await socket.close(code=4001, message=b"as you asked")
            elif message.type == aiohttp.WSMsgType.TEXT:
                await socket.send_str(message.data)
            else:
                await socket.send_bytes(message.data)
        closed.append(socket.close_code)
        return socket

    async def main():
        async with serving(application(web.get("/", echo)), contexts) as session:
            async with session.ws_connect("/", max_msg_size=0) as client:
                for message in ("", "grüße", b"", PIECE * 64):
                    await (client.send_str if isinstance(message, str) else client.send_bytes)(message)
                    assert (await client.receive()).data == message
                await client.close(code=4002)
            async with session.ws_connect("/", autoping=False) as client:
                await client.ping(b"there?")
                answer = await client.receive()
                assert (answer.type, answer.data) == (aiohttp.WSMsgType.PONG, b"there?")
                await client.send_str("close")
                answer = await client.receive()
                assert (answer.type, answer.data, answer.extra) == (aiohttp.WSMsgType.CLOSE, 4001, "as you asked")
            await support.until(lambda: len(closed) == 2, "the end of both handlers")
        # The client answers a close with its own code.
        assert closed == [4002, 1000]

    loop.run_until_complete(main())


def test_static_files(loop, contexts, tmp_path):
    """Sent by `loop.sendfile`, whole and in ranges."""
    content = random.Random(3).randbytes(1_500_000)
    (tmp_path / "file.bin").write_bytes(content)
    (tmp_path / "empty.bin").write_bytes(b"")

    async def main():
        async with serving(application(web.static("/files", tmp_path)), contexts) as session:
            for _ in range(3):
                async with session.get("/files/file.bin") as response:
                    assert await response.read() == content
            for first, last in ((0, 0), (1, 70_000), (1_400_000, 1_499_999)):
                async with session.get("/files/file.bin", headers={"range": f"bytes={first}-{last}"}) as response:
                    assert response.status == 206
                    assert await response.read() == content[first : last + 1]
            async with session.get("/files/empty.bin") as response:
                assert (response.status, await response.read()) == (200, b"")
            async with session.get("/files/missing") as response:
                assert response.status == 404

    loop.run_until_complete(main())


def test_a_client_that_leaves_while_a_file_is_sent(loop, contexts, tmp_path):
    (tmp_path / "file.bin").write_bytes(PIECE * 1000)

    async def main():
        async with serving(application(web.static("/files", tmp_path), web.get("/", hello)), contexts) as session:
            for _ in range(5):
                response = await session.get("/files/file.bin")
                assert await response.content.read(10) == PIECE[:10]
                response.close()
            async with session.get("/?still") as response:
                assert (await response.json())["query"] == "still"

    loop.run_until_complete(main())


def test_time_limits(loop, contexts):
    async def stall(request):
        response = web.StreamResponse()
        if "head" in request.query:
            await response.prepare(request)
            await response.write(b"begun")
        await asyncio.Event().wait()

    async def main():
        routes = web.get("/stall", stall), web.get("/", hello)
        async with serving(application(*routes), contexts, handler_cancellation=True) as session:
            with pytest.raises(asyncio.TimeoutError):
                await session.get("/stall", timeout=aiohttp.ClientTimeout(total=0.05))
            with pytest.raises(aiohttp.SocketTimeoutError, match="Timeout on reading data from socket"):
                await session.get("/stall", timeout=aiohttp.ClientTimeout(sock_read=0.05))
            # Long enough for the head and what comes with it.
            async with session.get("/stall?head", timeout=aiohttp.ClientTimeout(sock_read=2)) as response:
                assert await response.content.readexactly(5) == b"begun"
                with pytest.raises(aiohttp.SocketTimeoutError):
                    await response.content.read()
            async with session.get("/?still") as response:
                assert response.status == 200

    loop.run_until_complete(main())


def test_cancelled_requests(loop, contexts):
    """A request that is cancelled ends its handler on the server, and no other."""
    trace, stalled = [], asyncio.Event()

    async def stall(request):
        stalled.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            trace.append("handler cancelled")
            raise

    async def main():
        routes = web.get("/stall", stall), web.get("/", hello)
        async with serving(application(*routes), contexts, handler_cancellation=True) as session:
            bystander = await session.get("/?before")
            for _ in range(10):
                stalled.clear()
                task = loop.create_task(session.get("/stall"))
                await stalled.wait()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            await support.until(lambda: len(trace) == 10, "the cancelling of the handlers")
            assert (await bystander.json())["query"] == "before"
            async with session.get("/?after") as response:
                assert (await response.json())["query"] == "after"

    loop.run_until_complete(main())


def test_requests_cancelled_at_any_moment(loop, contexts):
    """Whatever a request was doing in the n-th turn of the loop, the session and the server go on."""

    async def main():
        async with serving(application(web.get("/", hello)), contexts) as session:
            outcomes = set()
            for turn in range(40):
                task = loop.create_task(session.get(f"/?{turn}"))
                await support.turns(turn)
                task.cancel()
                try:
                    async with await task as response:
                        assert (await response.json())["query"] == str(turn)
                        outcomes.add("answered")
                except asyncio.CancelledError:
                    outcomes.add("cancelled")
            assert "cancelled" in outcomes
            async with session.get("/?after") as response:
                assert (await response.json())["query"] == "after"

    loop.run_until_complete(main())


def test_servers_that_hang_up(loop, refused_port):
    async def half(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf")
        await writer.drain()
        writer.close()

    async def nothing(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.abort()

    async def main():
        async with aiohttp.ClientSession() as session:
            for handler, error in ((half, aiohttp.ClientPayloadError), (nothing, aiohttp.ClientConnectionError)):
                async with await asyncio.start_server(handler, support.HOST, 0) as server:
                    port = server.sockets[0].getsockname()[1]
                    with pytest.raises(error):
                        async with session.get(f"http://{support.HOST}:{port}/") as response:
                            await response.read()
            with pytest.raises(aiohttp.ClientConnectorError, match="Connect call failed") as caught:
                await session.get(f"http://{support.HOST}:{refused_port}/")
            assert isinstance(caught.value.os_error, ConnectionRefusedError)

    loop.run_until_complete(main())


def test_a_certificate_that_nobody_vouches_for(loop, certificate):
    async def main():
        contexts = certificate.server_context(), None
        async with serving(application(web.get("/", hello)), contexts) as session:
            with pytest.raises(aiohttp.ClientConnectorCertificateError, match="CERTIFICATE_VERIFY_FAILED"):
                await session.get("/")
            async with session.get("/?unchecked", ssl=False) as response:
                assert (await response.json())["query"] == "unchecked"

    loop.run_until_complete(main())


def test_unix_sockets(loop, tmp_path):
    path = str(tmp_path / "socket")

    async def mirror(request):
        return web.Response(body=await request.read())

    async def main():
        runner = web.AppRunner(application(web.post("/", mirror)))
        await runner.setup()
        try:
            await web.UnixSite(runner, path).start()
            async with (
                aiohttp.ClientSession(connector=aiohttp.UnixConnector(path)) as session,
                session.post("http://localhost/", data=io.BytesIO(PIECE * 20)) as response,
            ):
                assert await response.read() == PIECE * 20
        finally:
            await runner.cleanup()

    loop.run_until_complete(main())
