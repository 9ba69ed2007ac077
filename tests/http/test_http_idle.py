"""Connections without a request: what they hold, and how they end."""

import asyncio
import gc
import time

import pytest

import support
from serving import Server, answer, run, text
from test_http1 import GET
from test_pathsend import FileServer

pytestmark = pytest.mark.ringloop_only


def lists_with(marker):
    """Return the lists of header fields that have this value."""
    return [each for each in gc.get_objects() if type(each) is list and (b"x-marker", marker) in each]


def marked(marker):
    return b"GET / HTTP/1.1\r\nHost: a\r\nX-Marker: " + marker + b"\r\n\r\n"


@pytest.mark.exact
@pytest.mark.parametrize("keep_alive", [30.0, None])
def test_an_idle_connection_forgets_its_last_head_and_is_served_all_the_same(arm, loop, keep_alive):
    async def application(scope, receive, send):
        assert lists_with(b"idle")
        await answer(send, b"hello")

    async def test():
        async with Server(arm, application, timeout_keep_alive=keep_alive) as server, server.client() as client:
            for _ in range(2):
                client.write(2 * marked(b"idle"))
                assert [(await client.response())[2] for _ in range(2)] == [b"hello", b"hello"]
                await support.until(lambda: not lists_with(b"idle"))
                assert server.service.connections == 1

    run(loop, test())


@pytest.mark.exact
def test_a_connection_that_is_used_keeps_its_last_head(arm, loop):
    """Also one that waits for the rest of a head, or for its application."""

    async def application(scope, receive, send):
        await asyncio.sleep(0.5)  # Twice as long as an idle connection keeps its head.
        answered.append(loop.time())
        await answer(send)

    answered = []

    async def test():
        async with Server(arm, application, timeout_keep_alive=None) as server, server.client() as client:
            checks = 0
            while checks < 2:
                client.write(marked(b"used")[:-1])
                await asyncio.sleep(0)
                client.write(marked(b"used")[-1:])
                await client.response()
                # Unless this process stood still: then the connection has been idle.
                if loop.time() - answered[-1] < 0.2:
                    assert len(lists_with(b"used")) == 1
                    checks += 1

    run(loop, test())


@pytest.mark.parametrize("timeout", [0.0, 0.1, 0.5])
def test_an_idle_connection_ends_after_its_time(arm, loop, timeout):
    answered = []

    async def application(scope, receive, send):
        answered.append(loop.time())
        await answer(send)

    async def test():
        async with Server(arm, application, timeout_keep_alive=timeout) as server, server.client() as client:
            client.write(GET)
            await client.response()
            assert await client.rest() == b""
            assert loop.time() - answered[0] >= timeout - 0.01

    run(loop, test())


def test_addresses_are_known_on_each_request(arm, loop):
    seen = []

    async def application(scope, receive, send):
        seen.append((scope["client"], scope["server"], scope["scheme"]))
        await answer(send)

    async def test():
        async with Server(arm, application) as server, server.client() as client:
            for target in (b"/", b"/other", b"/"):
                client.write(GET.replace(b" / ", b" %s " % target))
                await client.response()
            ours = client.writer.get_extra_info("sockname")
            assert seen == 3 * [(ours, client.writer.get_extra_info("peername"), "http")]

    run(loop, test())


def test_a_request_that_has_arrived_when_its_time_is_over_is_served(arm, loop):
    async def test():
        async with Server(arm, text(b"hello"), timeout_keep_alive=0.0) as server, server.client() as client:
            client.write(GET)
            await client.response()
            # From here to the loop's next look the request arrives, and the deadline expires.
            sock = client.writer.get_extra_info("socket")._sock
            sock.send(GET)
            time.sleep(0.01)  # Until it has expired: the loop must meet both at once.
            assert (await client.response())[2] == b"hello"
            assert await client.rest() == b""

    run(loop, test())


def test_each_head_has_its_own_time(arm, loop):
    """Each segment carries the end of one head and the beginning of the next."""
    timeout = 0.3

    async def test():
        async with Server(arm, text(b"hello"), timeout_head=timeout) as server, server.client() as client:
            begin, end = GET[:20], GET[20:]
            began = loop.time()
            client.write(begin)
            while loop.time() < began + 4 * timeout:
                head_began = loop.time()
                await asyncio.sleep(timeout / 10)
                client.write(end + begin)
                line, *_ = await client.response()
                # This process may have been paused.
                took = loop.time() - head_began
                assert line == "HTTP/1.1 200 OK" or took > timeout / 2, took
                if line != "HTTP/1.1 200 OK":
                    return
            # And it has this time only.
            line, *_ = await client.response()
            assert line == "HTTP/1.1 408 Request Timeout"

    run(loop, test())


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("kind", ["http", "websocket"])
def test_an_application_that_only_sends_lets_others_run(arm, loop, contexts, tls, kind):
    """Even when its client is gone: it waits for nothing then."""

    async def application(scope, receive, send):
        if scope["path"] == "/other":
            await answer(send, b"other")
            return
        if kind == "websocket":
            await receive()
            await send({"type": "websocket.accept"})
        else:
            await send({"type": "http.response.start", "status": 200})
        message = {
            "http": {"type": "http.response.body", "body": b"x", "more_body": True},
            "websocket": {"type": "websocket.send", "text": "x"},
        }[kind]
        while not is_over:
            try:
                await send(message)
            except OSError:  # uvicorn's error for a WebSocket whose client is gone
                sent.append(1)
                if len(sent) > 5000:
                    break

    is_over = False
    sent = []

    async def test():
        nonlocal is_over
        async with FileServer(arm, application, contexts if tls else None) as server:
            async with server.client() as client:
                upgrade = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n"
                upgrade += b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
                client.write(GET if kind == "http" else upgrade)
                await client.reader.read(1)
                client.reset()
                async with server.client() as other:
                    other.write(GET.replace(b"/ ", b"/other "))
                    assert (await other.response())[2] == b"other"
            is_over = True

    run(loop, test())


TOO_MUCH = 4 << 20


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nx: " + 70_000 * b"x", 431),
        (b"POST /late HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % (2 * TOO_MUCH), 500),
        (b"POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % (2 * TOO_MUCH), 200),
    ],
)
def test_a_client_that_sends_on_gets_its_response(arm, loop, head, status):
    """A socket that is closed while data arrives resets the connection, and the response is lost."""

    async def application(scope, receive, send):
        if scope["path"] == "/late":
            raise RuntimeError
        await answer(send)

    async def test():
        async with Server(arm, application) as server, server.client() as client:
            client.write(head)
            client.write(TOO_MUCH * b"x")
            await client.writer.drain()
            assert (await client.rest()).startswith(b"HTTP/1.1 %d " % status)

    run(loop, test())


def test_a_client_that_never_stops_is_ended(arm, loop):
    async def test():
        async with Server(arm, text(b"")) as server, server.client() as client:
            client.write(b"nonsense\r\n\r\n")
            assert (await client.rest()).startswith(b"HTTP/1.1 400 ")
            with pytest.raises(ConnectionError):
                while True:
                    client.write(1000 * b"x")
                    await client.writer.drain()
                    await asyncio.sleep(0.01)
            await support.until(lambda: server.service.connections == 0)

    run(loop, test())


def test_shutting_down_does_not_wait_for_clients_that_were_refused(arm, loop):
    async def test():
        async with Server(arm, text(b""), timeout_keep_alive=None) as server, server.client() as client:
            client.write(b"nonsense\r\n\r\n")
            await client.rest()
            assert server.service.connections == 1
            server.service.shut_down()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert server.service.connections == 0

    run(loop, test())
