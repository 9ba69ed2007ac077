"""ASGI's extensions of responses: early hints, and trailers."""

import asyncio

import pytest

import http2
from serving import Server, answer, run

pytestmark = pytest.mark.ringloop_only

LINKS = [b"</style.css>; rel=preload; as=style", b"</a.js>; rel=preload"]
HINT = {"type": "http.response.early_hint", "links": LINKS}
TRAILERS = {"type": "http.response.trailers", "headers": [(b"x-sum", b"1"), (b"X-Two", b"2")]}


def request(version="1.1", *fields, method="GET", path="/"):
    return "\r\n".join((f"{method} {path} HTTP/{version}", "Host: a", *fields, "", "")).encode()


# -- Early hints ------------------------------------------------------------------------------------------------------


async def hinting(scope, receive, send):
    if "http.response.early_hint" in scope["extensions"] or scope["path"] == "/anyway":
        await send(HINT)
        await send({"type": "http.response.early_hint", "links": (link for link in [b"</b>"])})
        await send({"type": "http.response.early_hint", "links": []})
    await answer(send, b"x")
    with pytest.raises(RuntimeError, match="after response already completed"):
        await send(HINT)


def test_hints_come_before_the_response(arm, loop):
    head = b"HTTP/1.1 103 Early Hints\r\n%s\r\n"
    first = head % b"".join(b"link: %s\r\n" % link for link in LINKS)

    async def test():
        async with Server(arm, hinting) as server, server.client() as client:
            # Also behind another request, and one with the same head.
            client.write(2 * request())
            for _ in range(2):
                for expected in (first, head % b"link: </b>\r\n"):
                    assert await client.reader.readuntil(b"\r\n\r\n") == expected
                assert await client.response() == ("HTTP/1.1 200 OK", {"content-length": "1"}, b"x")

    run(loop, test())


def test_a_hint_goes_out_at_once(arm, loop):
    has_come = asyncio.Event()

    async def application(scope, receive, send):
        await send(HINT)
        await has_come.wait()
        await answer(send, b"x")

    async def test():
        async with Server(arm, application) as server, server.client() as client:
            client.write(request())
            assert (await client.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 103 ")
            has_come.set()
            assert (await client.response())[2] == b"x"
        async with http2.Server(arm, application) as server, server.http2() as client:
            has_come.clear()
            stream = client.ask()
            await client.until(lambda: client.streams[stream].informed)
            has_come.set()
            assert (await client.response(stream)).body == b"x"

    run(loop, test())


@pytest.mark.parametrize("path", ["/", "/anyway"])
def test_clients_of_http_1_0_get_no_hints(arm, loop, path):
    async def test():
        async with Server(arm, hinting) as server:
            assert (await server.ask(request("1.0", path=path))).startswith(b"HTTP/1.1 200 OK\r\n")

    run(loop, test())


def test_hints_on_http2(arm, loop):
    async def test():
        async with http2.Server(arm, hinting) as server, server.http2() as client:
            for stream in [client.ask() for _ in range(2)]:
                found = await client.response(stream)
                assert (found.informed, found.status, found.body) == (["103", "103"], 200, b"x")
                assert found.hints == [[("link", link.decode()) for link in LINKS], [("link", "</b>")]]

    run(loop, test())


@pytest.mark.parametrize("links", [[b"a\r\nb: c"], [b"a", "b"], [b"a", 1], 1, None])
def test_links_that_are_none(arm, loop, links):
    async def application(scope, receive, send):
        with pytest.raises((RuntimeError, TypeError, KeyError)):
            await send({"type": "http.response.early_hint", **({} if links is None else {"links": links})})
        await answer(send, b"x")

    async def test():
        async with Server(arm, application) as server, server.client() as client:
            client.write(request())
            assert await client.response() == ("HTTP/1.1 200 OK", {"content-length": "1"}, b"x")
        async with http2.Server(arm, application) as server, server.http2() as client:
            found = await client.get()
            assert (found.informed, found.body) == ([], b"x")

    run(loop, test())


def test_no_hint_after_the_start(arm, loop):
    async def application(scope, receive, send):
        await send({"type": "http.response.start", "status": 200})
        with pytest.raises(RuntimeError, match=r"Expected ASGI message 'http.response.body', but got"):
            await send(HINT)
        await send({"type": "http.response.body", "body": b"x"})

    async def test():
        async with Server(arm, application) as server, server.client() as client:
            client.write(request())
            assert await client.response() == ("HTTP/1.1 200 OK", {"content-length": "1"}, b"x")

    run(loop, test())


def test_many_hints_wait_for_a_client_that_does_not_read(arm, loop):
    """The application is held up before they fill the memory."""
    sent = []

    async def application(scope, receive, send):
        for _ in range(2000):
            await send({"type": "http.response.early_hint", "links": [bytes(b"x" * 8192)]})
            sent.append(1)
        await answer(send, b"x")

    async def test():
        async with Server(arm, application) as server, server.client() as client:
            client.writer.transport.pause_reading()
            client.write(request())
            for _ in range(200):
                await asyncio.sleep(0)
            while len(sent) != (count := len(sent)) or not sent:
                await asyncio.sleep(0.01)
            assert count < 2000
            client.writer.transport.resume_reading()
            for _ in range(2000):
                assert (await client.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 103 ")
            assert (await client.response())[2] == b"x"

    run(loop, test())


# -- Trailers of HTTP/1 -----------------------------------------------------------------------------------------------


async def trailing(scope, receive, send):
    is_offered = "http.response.trailers" in scope["extensions"]
    assert is_offered == any(name == b"te" and b"trailers" in value.lower() for name, value in scope["headers"])
    path = scope["path"]
    status = 204 if path == "/nothing" else 200
    headers = [(b"content-length", b"2")] if path == "/length" else []
    await send({"type": "http.response.start", "status": status, "headers": headers, "trailers": True})
    if path == "/parts":
        await send({"type": "http.response.body", "body": b"a", "more_body": True})
        await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b"b"})
    else:
        await send({"type": "http.response.body", "body": b"" if path in ("/empty", "/nothing") else b"ab"})
    if path == "/split":
        await send({"type": "http.response.trailers", "headers": [(b"x-sum", b"1")], "more_trailers": True})
        await send({"type": "http.response.trailers", "headers": [[b"X-Two", b"2"]]})
    else:
        await send(TRAILERS)
    with pytest.raises(RuntimeError, match="after response already completed"):
        await send(TRAILERS)


PLAIN = b"HTTP/1.1 200 OK\r\n%s\r\n\r\n"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/", b"2\r\nab\r\n"),
        ("/parts", b"1\r\na\r\n1\r\nb\r\n"),
        ("/split", b"2\r\nab\r\n"),
        ("/empty", b""),
    ],
)
@pytest.mark.parametrize("te", ["trailers", "gzip;q=0.5, Trailers"])
def test_trailers_follow_chunks(arm, loop, te, path, body):
    expected = PLAIN % b"transfer-encoding: chunked" + body + b"0\r\nx-sum: 1\r\nX-Two: 2\r\n\r\n"

    async def test():
        async with Server(arm, trailing, date_header=False) as server, server.client() as client:
            for _ in range(2):
                client.write(request("1.1", f"TE: {te}", path=path))
                assert await client.reader.readexactly(len(expected)) == expected

    run(loop, test())


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        # The client doesn't want them: the response is as without them.
        (request(), PLAIN % b"content-length: 2" + b"ab"),
        (request("1.1", "TE: gzip"), PLAIN % b"content-length: 2" + b"ab"),
        (request("1.1", path="/split"), PLAIN % b"content-length: 2" + b"ab"),
        (request("1.1", path="/parts"), PLAIN % b"transfer-encoding: chunked" + b"1\r\na\r\n1\r\nb\r\n0\r\n\r\n"),
        # There are no chunks that they could follow.
        (request("1.1", "TE: trailers", path="/length"), PLAIN % b"content-length: 2" + b"ab"),
        (request("1.1", "TE: trailers", path="/nothing"), b"HTTP/1.1 204 No Content\r\n\r\n"),
        (request("1.1", "TE: trailers", method="HEAD"), b"HTTP/1.1 200 OK\r\n\r\n"),
    ],
)
def test_trailers_that_are_dropped(arm, loop, asked, expected):
    async def test():
        async with Server(arm, trailing, date_header=False) as server, server.client() as client:
            for _ in range(2):
                client.write(asked)
                assert await client.reader.readexactly(len(expected)) == expected

    run(loop, test())


def test_clients_of_http_1_0_get_no_trailers(arm, loop):
    async def application(scope, receive, send):
        assert "http.response.trailers" not in scope["extensions"]
        await send({"type": "http.response.start", "status": 200, "trailers": True})
        await send({"type": "http.response.body", "body": b"ab"})
        await send(TRAILERS)

    async def test():
        async with Server(arm, application, date_header=False) as server:
            answer = await server.ask(request("1.0", "TE: trailers"))
            assert answer == b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nab"

    run(loop, test())


@pytest.mark.parametrize("field", [(b"content-length", b"1"), (b"Host", b"a"), (b"set-cookie", b"a=b"), (b"a b", b"")])
def test_trailers_that_are_not_allowed(arm, loop, errors, field):
    async def application(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "trailers": True})
        await send({"type": "http.response.body", "body": b"x"})
        with pytest.raises(RuntimeError, match="Invalid HTTP header name"):
            await send({"type": "http.response.trailers", "headers": [(b"x-one", b"1"), field]})
        if scope["path"] == "/others":
            await send(TRAILERS)

    async def test():
        async with Server(arm, application) as server, server.client() as client:
            client.write(request("1.1", "TE: trailers", path="/others"))
            # Nothing was sent: other trailers can be.
            assert (await client.reader.readuntil(b"x-sum: 1\r\nX-Two: 2\r\n\r\n")).endswith(
                b"x\r\n0\r\n" + b"x-sum: 1\r\nX-Two: 2\r\n\r\n"
            )
            client.write(request("1.1", "TE: trailers"))
            # The client can tell that the response is incomplete.
            assert (await client.rest()).endswith(b"1\r\nx\r\n")

    run(loop, test())
    assert errors() == ["ASGI callable returned without completing response."]
