"""Clients that end their side after a request, as `nc -N` does: a WSGI application still answers them, as under gunicorn."""

import asyncio
import threading

import pytest

import support
from http2 import Client
from serving import run
from wsgi_support import GET, Closing, answering, post, serve, until, wait

pytestmark = pytest.mark.ringloop_only

HELLO = answering(b"hello", ("Content-Length", "5"))


async def ask(server, request):
    """Return all that a client gets that ends its side right after its request."""
    async with server.client() as client:
        client.write(request)
        client.writer.write_eof()
        async with asyncio.timeout(support.PATIENCE_S):
            return await client.rest()


def echo(environ, start_response):
    start_response("200 OK", [])
    return [environ["wsgi.input"].read()]


@pytest.mark.parametrize(
    ("application", "request_", "body"),
    [
        (HELLO, GET, b"hello"),
        (echo, post(b"a body"), b"a body"),
        (echo, post(b"x" * 300_000), b"x" * 300_000),
        (answering(b"x" * 3_000_000, ("Content-Length", "3000000")), GET, b"x" * 3_000_000),
    ],
    ids=["nothing", "a body", "a large body", "a large answer"],
)
def test_it_is_answered(arm, loop, application, request_, body):
    async def test():
        async with serve(arm, application) as server:
            answer = await ask(server, request_)
        head, _, rest = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        if b"content-length" in head.lower():
            assert rest == body
        else:
            # The only chunk, and the last one.
            assert rest == b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)

    run(loop, test())


def test_it_is_answered_after_it_has_ended(arm, loop):
    begun, go = threading.Event(), threading.Event()

    def application(environ, start_response):
        begun.set()
        wait(go)
        start_response("200 OK", [("Content-Length", "4")])
        return [b"late"]

    async def test():
        async with serve(arm, application) as server, server.client() as client:
            client.write(GET)
            await until(loop, begun)
            client.writer.write_eof()
            await asyncio.sleep(0.02)
            go.set()
            line, fields, body = await client.response()
            assert (line, body, fields["connection"]) == ("HTTP/1.1 200 OK", b"late", "close")
            assert await client.rest() == b""

    run(loop, test())


@pytest.mark.parametrize("rest", [b"", b"GET / HT"], ids=["nothing", "the beginning of another"])
def test_all_requests_are_answered(arm, loop, rest):
    paths = [b"/%d" % number for number in range(40)]

    def application(environ, start_response):
        start_response("200 OK", [])
        return [environ["PATH_INFO"].encode(), b";"]

    async def test():
        requests = b"".join(b"GET %b HTTP/1.1\r\nHost: a\r\n\r\n" % path for path in paths)
        async with serve(arm, application) as server:
            answer = await ask(server, requests + rest)
        assert answer.count(b"HTTP/1.1 200 OK\r\n") == len(paths)
        found = [answer.index(b"\r\n%b;" % path) for path in paths]
        assert found == sorted(found)

    run(loop, test())


def test_a_request_whose_rest_can_not_come_ends_the_connection(arm, loop, errors):
    async def test():
        async with serve(arm, echo, timeout_body=None) as server:
            for length in (6, 100_000):
                answer = await ask(server, GET + post(b"x" * length)[:-1])
                assert answer.count(b"HTTP/1.1 200 OK\r\n") == 1

    run(loop, test())
    errors()


def test_a_request_that_has_waited_for_long_is_given_up(arm, loop):
    begun, go, called = threading.Event(), threading.Event(), []

    def application(environ, start_response):
        called.append(environ["PATH_INFO"])
        begun.set()
        wait(go)
        return HELLO(environ, start_response)

    async def test():
        async with (
            serve(arm, application, wsgi_threads=1) as server,
            server.client() as first,
            server.client() as second,
            server.client() as third,
        ):
            first.write(GET)
            await until(loop, begun)
            second.write(GET.replace(b"/", b"/second", 1))
            second.writer.write_eof()
            third.write(GET.replace(b"/", b"/third", 1))
            await asyncio.sleep(1.1)
            go.set()
            assert (await first.response())[2] == b"hello"
            assert (await second.rest()).startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
            assert (await third.response())[2] == b"hello"

    run(loop, test())
    assert called == ["/", "/third"]


def test_a_file_is_sent_to_its_end(arm, loop, tmp_path):
    path, content = tmp_path / "file", bytes(range(256)) * 8_000
    path.write_bytes(content)

    def application(environ, start_response):
        start_response("200 OK", [("Content-Length", str(len(content)))])
        return environ["wsgi.file_wrapper"](open(path, "rb"))

    async def test():
        async with serve(arm, application) as server:
            assert (await ask(server, GET)).partition(b"\r\n\r\n")[2] == content

    run(loop, test())


def test_over_http2_it_is_gone(arm, loop):
    async def test():
        # Nothing else ends what waits for a body.
        async with serve(arm, echo, timeout_body=None) as server:
            reader, writer = await asyncio.open_connection(support.HOST, server.port)
            client = Client(reader, writer, {})
            # More than are started in two turns.
            for _ in range(60):
                client.ask("/", ("content-length", "6"), method="POST", ends=False)
            client.writer.write_eof()
            async with asyncio.timeout(support.PATIENCE_S):
                await reader.read()
            writer.close()

    run(loop, test())


def test_a_request_that_is_not_complete_is_not_answered(arm, loop, errors):
    async def test():
        async with serve(arm, echo) as server:
            for request in (GET[:-2], post(b"a body")[:-1]):
                assert b"200 OK" not in await ask(server, request)

    run(loop, test())
    errors()


def test_a_client_that_is_gone_ends_a_stream(arm, loop):
    iterable = Closing(b"x" * 1000 for _ in iter(int, 1))

    def application(environ, start_response):
        start_response("200 OK", [])
        return iterable

    async def test():
        async with serve(arm, application) as server:
            async with server.client() as client:
                client.write(GET)
                await client.reader.readuntil(b"\r\n\r\n")
                client.writer.write_eof()
                await client.reader.readexactly(1_000_000)
            await until(loop, iterable.has_closed)

    run(loop, test())
    assert len(iterable.closed) == 1


def test_the_server_shuts_down(arm, loop):
    begun, go = threading.Event(), threading.Event()

    def application(environ, start_response):
        begun.set()
        wait(go)
        return HELLO(environ, start_response)

    async def test():
        async with serve(arm, application) as server, server.client() as client:
            client.write(GET)
            client.writer.write_eof()
            await until(loop, begun)
            await asyncio.sleep(0.02)
            server.service.shut_down()
            go.set()
            assert (await client.rest()).endswith(b"\r\n\r\nhello")
            await server.service.wait_closed()

    run(loop, test())
