"""The counters of a service: `HttpService.metrics()`."""

import asyncio
import math

import pytest

from serving import Server, answer, make_service, run
from test_http1 import GET, SIZED
from websocket_client import HANDSHAKE

pytestmark = pytest.mark.ringloop_only


def metrics_of(arm, loop, application, talk, **settings):
    """Return the metrics after `talk(server)`, while its connections may still be open."""

    async def test():
        async with Server(arm, application, **settings) as server:
            return await talk(server)

    return run(loop, test())


async def echo(scope, receive, send):
    message = await receive()
    status = int(scope["path"][1:] or 200)
    await answer(send, message["body"], status=status)


def request(path="/", method="GET"):
    return f"{method} {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode()


def test_nothing_yet(arm, loop):
    service = make_service(loop, echo)
    metrics = service.metrics()
    bounds = [bound for bound, _ in metrics.pop("durations")]
    assert bounds == sorted(bounds)
    assert (bounds[0], bounds[-1]) == (0.0005, math.inf)
    assert metrics == {
        "requests": {},
        "duration_sum": 0.0,
        "bytes_received": 0,
        "bytes_sent": 0,
        "connections_open": 0,
        "connections_total": 0,
        "requests_active": 0,
    }


def test_requests_and_bytes(arm, loop):
    async def talk(server):
        sent = [request(), request(), request("/404"), request("/404", "POST"), request("/", "BREW"), SIZED]
        received = 0
        async with server.client() as client, server.client():
            for each in sent:
                client.write(each)
                head = await client.reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                received += len(head) + len(await client.reader.readexactly(length))
            while server.service.connections < 2:
                await asyncio.sleep(0)
            return server.service.metrics(), sum(map(len, sent)), received

    metrics, sent, received = metrics_of(arm, loop, echo, talk)
    method = SIZED.split()[0].decode()
    assert metrics["requests"] == {
        ("GET", 200): 2,
        ("GET", 404): 1,
        ("POST", 404): 1,
        ("OTHER", 200): 1,
        (method, 200): 1,
    }
    assert (metrics["bytes_received"], metrics["bytes_sent"]) == (sent, received)
    assert (metrics["connections_open"], metrics["connections_total"]) == (2, 2)
    assert metrics["requests_active"] == 0
    assert metrics["durations"][-1] == (math.inf, 6)
    assert metrics["duration_sum"] > 0


def test_durations_are_those_of_responses(arm, loop):
    """The work of an application after its response does not count, and the counts are cumulative."""

    async def application(scope, receive, send):
        await asyncio.sleep(0.003)
        await answer(send)
        await may_end.wait()
        await asyncio.sleep(0.003)
        ended.set()

    may_end, ended = asyncio.Event(), asyncio.Event()

    async def talk(server):
        async with server.client() as client:
            client.write(GET)
            await client.response()
            before = server.service.metrics()
            may_end.set()
            await ended.wait()
            return before, server.service.metrics()

    before, after = metrics_of(arm, loop, application, talk)
    assert before["requests_active"] == 1
    assert before["requests"] == after["requests"] == {("GET", 200): 1}
    assert before["duration_sum"] == after["duration_sum"] >= 0.0025
    counts = [count for _, count in after["durations"]]
    assert counts == sorted(counts)
    assert set(counts) <= {0, 1}
    assert dict(after["durations"])[0.001] == 0
    assert counts[-1] == 1


@pytest.mark.parametrize(
    ("sent", "status", "method"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 400, ""),
        (b"GET / HTTP/1.1\r\nHost: a\r\nx: " + 70_000 * b"y", 431, ""),
        (b"PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nwrong\r\n", 400, "PUT"),
    ],
)
def test_refusals(arm, loop, sent, status, method):
    async def talk(server):
        assert (await server.ask(sent)).startswith(b"HTTP/1.1 %d " % status)
        while server.service.active:
            await asyncio.sleep(0)
        return server.service.metrics()

    async def application(scope, receive, send):
        while (await receive())["type"] != "http.disconnect":
            pass

    metrics = metrics_of(arm, loop, application, talk)
    assert metrics["requests"] == {(method, status): 1}
    assert metrics["durations"][-1][1] == (1 if method else 0)


def test_errors_and_503(arm, loop):
    async def application(scope, receive, send):
        raise RuntimeError

    async def talk(server):
        await server.ask(GET)
        return server.service.metrics()["requests"]

    assert metrics_of(arm, loop, application, talk) == {("GET", 500): 1}
    assert metrics_of(arm, loop, application, talk, limit_concurrency=1) == {("GET", 503): 1}


def test_a_response_that_is_not_finished_counts_and_one_that_never_began_does_not(arm, loop):
    async def application(scope, receive, send):
        if scope["path"] == "/begin":
            await send({"type": "http.response.start", "status": 201})
            await send({"type": "http.response.body", "body": b"part", "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass

    async def talk(server):
        for path in ("/begin", "/wait"):
            async with server.client() as client:
                client.write(request(path))
                while not server.service.active:
                    await asyncio.sleep(0)
                if path == "/begin":
                    await client.reader.readuntil(b"part")
            while server.service.active:
                await asyncio.sleep(0)
        return server.service.metrics()["requests"]

    assert metrics_of(arm, loop, application, talk) == {("GET", 201): 1}


@pytest.mark.parametrize("begins_body", [False, True])
def test_an_unfinished_response_instead_of_a_websocket_counts(arm, loop, begins_body):
    async def application(scope, receive, send):
        await receive()
        await send({"type": "websocket.http.response.start", "status": 404})
        if begins_body:
            await send({"type": "websocket.http.response.body", "body": b"a part", "more_body": True})

    async def talk(server):
        await server.ask(HANDSHAKE % b"/" + b"\r\n")
        return server.service.metrics()

    assert metrics_of(arm, loop, application, talk)["requests"] == {("GET", 404): 1}
