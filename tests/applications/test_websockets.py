"""The websockets package: its asyncio server and client on one loop."""

import asyncio
import contextlib

import pytest

import support

websockets = pytest.importorskip("websockets", reason="make test-applications installs it")
from websockets.asyncio.client import connect  # noqa: E402
from websockets.asyncio.server import serve  # noqa: E402

BULK = bytes(range(256)) * 4096


@pytest.fixture(params=["ws", "wss"])
def contexts(request, certificate):
    """Return the SSL contexts of the server and of its clients; None twice without TLS."""
    if request.param == "ws":
        return None, None
    return certificate.server_context(), certificate.client_context()


@contextlib.asynccontextmanager
async def serving(handler, contexts, **options):
    """Run a server; yield it and its URL."""
    async with serve(handler, support.HOST, 0, ssl=contexts[0], max_size=None, **options) as server:
        scheme = "ws" if contexts[0] is None else "wss"
        yield server, f"{scheme}://localhost:{server.sockets[0].getsockname()[1]}/"


async def echo(connection):
    async for message in connection:
        await connection.send(message)


def test_echoes_for_many(loop, contexts):
    async def client(url, number):
        async with connect(url, ssl=contexts[1], max_size=None) as connection:
            messages = [f"{number}", b"", f"{number}".encode() * 5000]
            for message in messages:
                await connection.send(message)
            assert [await connection.recv() for _ in messages] == messages
            await connection.send(["in ", "two"])
            assert await connection.recv() == "in two"

    async def main():
        async with serving(echo, contexts) as (_, url):
            await asyncio.gather(*(client(url, number) for number in range(20)))

    loop.run_until_complete(main())


def test_bulk_in_both_directions(loop, contexts):
    async def main():
        async with serving(echo, contexts) as (_, url), connect(url, ssl=contexts[1], max_size=None) as connection:

            async def send():
                for _ in range(10):
                    await connection.send(BULK)

            sender = loop.create_task(send())
            for _ in range(10):
                assert await connection.recv() == BULK
            await sender

    loop.run_until_complete(main())


def test_pings(loop, contexts):
    async def main():
        options = {"ping_interval": 0.01, "ping_timeout": support.PATIENCE_S}
        async with (
            serving(echo, contexts, **options) as (_, url),
            connect(url, ssl=contexts[1], **options) as connection,
        ):
            for _ in range(3):
                assert await (await connection.ping()) >= 0
            await support.until(lambda: connection.latency > 0, "a ping of the keep-alive")

    loop.run_until_complete(main())


def test_the_closing_handshake(loop, contexts):
    codes = []

    async def handler(connection):
        try:
            async for message in connection:
                if message == "close":
                    await connection.close(4001, "as you asked")
        finally:
            codes.append((connection.close_code, connection.close_reason))

    async def main():
        async with serving(handler, contexts) as (_, url):
            async with connect(url, ssl=contexts[1]) as connection:
                await connection.close(4002, "done")
            assert (connection.close_code, connection.close_reason) == (4002, "done")
            async with connect(url, ssl=contexts[1]) as connection:
                await connection.send("close")
                with pytest.raises(websockets.ConnectionClosedError) as caught:
                    await connection.recv()
                assert (caught.value.rcvd.code, caught.value.rcvd.reason) == (4001, "as you asked")
            await support.until(lambda: len(codes) == 2, "the end of both handlers")
        assert codes == [(4002, "done"), (4001, "as you asked")]

    loop.run_until_complete(main())


def test_a_server_that_closes_says_so_to_its_clients(loop, contexts):
    async def main():
        async with serving(echo, contexts) as (server, url):
            async with connect(url, ssl=contexts[1]) as connection:
                await connection.send("x")
                assert await connection.recv() == "x"
                server.close()
                with pytest.raises(websockets.ConnectionClosedOK) as caught:
                    await connection.recv()
                assert caught.value.rcvd.code == 1001
            await server.wait_closed()
            with pytest.raises(OSError, match="Connect call failed|Multiple exceptions"):
                await connect(url, ssl=contexts[1])

    loop.run_until_complete(main())


def test_peers_that_vanish(loop, contexts):
    ended = []

    async def handler(connection):
        try:
            await connection.recv()
        except websockets.ConnectionClosedError as error:
            ended.append(error.rcvd)
        if ended:
            return
        connection.transport.abort()

    async def main():
        async with serving(handler, contexts) as (_, url):
            async with connect(url, ssl=contexts[1]) as connection:
                await connection.send("go")
                with pytest.raises(websockets.ConnectionClosedError, match="no close frame received or sent"):
                    await connection.recv()
                assert connection.close_code == 1006
            async with connect(url, ssl=contexts[1]) as connection:
                connection.transport.abort()
            await support.until(lambda: ended, "the end of the handler")
        assert ended == [None]

    loop.run_until_complete(main())


def test_servers_that_say_nothing(loop, contexts):
    """The opening handshake times out, with TLS in the handshake of TLS."""

    async def main():
        accepted = []

        async def silent(reader, writer):
            accepted.append(writer)

        async with await asyncio.start_server(silent, support.HOST, 0) as server:
            scheme = "ws" if contexts[0] is None else "wss"
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(TimeoutError, match="timed out during opening handshake"):
                await connect(f"{scheme}://{support.HOST}:{port}/", ssl=contexts[1], open_timeout=0.1)
            await support.until(lambda: accepted, "the accepted connection")
            for writer in accepted:
                writer.close()
                await asyncio.gather(writer.wait_closed(), return_exceptions=True)

    loop.run_until_complete(main())


def test_cancelled_at_any_moment(loop, contexts):
    async def talk(url):
        async with connect(url, ssl=contexts[1]) as connection:
            await connection.send("x")
            await connection.recv()
            return "done"

    async def main():
        async with serving(echo, contexts) as (_, url):
            outcomes = []
            for turn in range(30):
                task = loop.create_task(talk(url))
                await support.turns(turn)
                task.cancel()
                outcomes.append((await asyncio.gather(task, return_exceptions=True))[0])
            assert isinstance(outcomes[0], asyncio.CancelledError)
            assert await talk(url) == "done"

    loop.run_until_complete(main())
