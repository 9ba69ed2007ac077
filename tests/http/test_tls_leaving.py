"""TLS clients that leave while reading is paused: they send close_notify, and the end of the stream.

asyncio does not tell the protocol of such an end before reading is resumed. The clients keep their sockets open, so the server
has to close the connection.
"""

import asyncio
import contextlib
import socket
import ssl

import pytest

import support
from serving import answer, run
from test_pathsend import FileServer, make, send_file
from test_service import until_closed
from tls_support import Peer, end_has_arrived
from websocket_client import BINARY, FIN, HANDSHAKE, TEXT, application, masked

pytestmark = pytest.mark.ringloop_only

# More than is read ahead.
BODY = 150_000
POST = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % BODY + b"b" * BODY
GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
OLD = b"POST / HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % BODY + b"b" * BODY


@contextlib.asynccontextmanager
async def left(server, data, says_goodbye=True):
    """Yield a client that has sent data and then ended its side. The server has read all of it."""
    loop = asyncio.get_running_loop()
    with socket.socket() as sock:
        sock.setblocking(False)
        await loop.sock_connect(sock, (support.HOST, server.port))
        peer = Peer(loop, sock, server.contexts[1], name="localhost")
        await peer.handshake()
        await peer.send(data)
        if says_goodbye:
            with contextlib.suppress(ssl.SSLWantReadError):
                peer.tls.unwrap()
            await peer.flush()
        sock.shutdown(socket.SHUT_WR)
        await support.until(lambda: end_has_arrived(sock), "the end")
        yield peer


async def raise_error(send):
    raise ValueError("the application fails")


async def fail_within_the_response(send):
    await send({"type": "http.response.start", "status": 200})
    await send({"type": "http.response.body", "body": b"begun", "more_body": True})
    raise ValueError("the application fails")


async def close(send):
    await answer(send, b"ok", headers=[(b"connection", b"close")])


async def succeed(send):
    await answer(send, b"ok")


async def do_nothing(send):
    pass


@pytest.mark.parametrize("says_goodbye", [True, False])
@pytest.mark.parametrize("finish", [raise_error, fail_within_the_response, close, succeed, do_nothing])
@pytest.mark.parametrize("data", [POST, OLD, GET + 4000 * GET])
def test_a_client_that_leaves_with_more_than_is_read_ahead(arm, loop, caplog, contexts, data, finish, says_goodbye):
    """Its connection once stayed open for ever. It has to end with the response."""
    gone = asyncio.Event()

    async def application(scope, receive, send):
        await gone.wait()
        await finish(send)

    async def test():
        async with FileServer(arm, application, contexts) as server, left(server, data, says_goodbye):
            await support.looks(10)
            gone.set()
            await until_closed(server)

    run(loop, test())


def test_a_body_is_complete_though_its_client_has_left(arm, loop, contexts):
    gone = asyncio.Event()
    received = []

    async def application(scope, receive, send):
        await gone.wait()
        while (message := await receive())["type"] == "http.request":
            received.append(message["body"])

    async def test():
        async with FileServer(arm, application, contexts) as server, left(server, POST):
            await support.looks(10)
            gone.set()
            await until_closed(server)

    run(loop, test())
    assert b"".join(received) == b"b" * BODY


def test_an_application_that_only_sends_hears_that_its_client_has_left(arm, loop, contexts):
    """Its messages were once dropped silently, and pings were not answered while reading was paused."""
    errors = []

    async def push(receive, send):
        try:
            while True:
                await send({"type": "websocket.send", "text": "tick"})
                await asyncio.sleep(0.001)
        except OSError as error:
            errors.append(error)

    async def test():
        data = HANDSHAKE % b"/" + b"\r\n" + 40 * masked(FIN | TEXT, b"hello")
        async with FileServer(arm, application(push), contexts) as server, left(server, data):
            await until_closed(server)

    run(loop, test())
    assert len(errors) == 1


def test_a_client_that_leaves_before_its_websocket_is_accepted(arm, loop, contexts):
    gone = asyncio.Event()
    received = []

    async def application(scope, receive, send):
        received.append(await receive())
        await gone.wait()
        received.append(await receive())

    async def test():
        data = HANDSHAKE % b"/" + b"\r\n" + masked(FIN | BINARY, bytes(BODY))
        async with FileServer(arm, application, contexts) as server, left(server, data):
            await support.looks(10)
            gone.set()
            await until_closed(server)

    run(loop, test())
    assert [message["type"] for message in received] == ["websocket.connect", "websocket.disconnect"]


def test_a_file_is_not_read_for_a_client_that_has_left(arm, loop, contexts, tmp_path, monkeypatch):
    """All of it was once read without a pause, and no other client was served meanwhile."""
    from ringloop import _http

    path, _ = make(tmp_path, 5_000_000)
    gone = asyncio.Event()
    reads = []
    read_soon = _http.OpenFile.read_soon

    async def counted(self, count, offset):
        reads.append(offset)
        return await read_soon(self, count, offset)

    monkeypatch.setattr(_http.OpenFile, "read_soon", counted)

    async def application(scope, receive, send):
        await gone.wait()
        await send_file(send, path)

    async def test():
        async with FileServer(arm, application, contexts) as server, left(server, POST):
            await support.looks(10)
            gone.set()
            await until_closed(server)

    run(loop, test())
    assert reads == []
