"""`--access-log-format json`: records with fields, when responses have ended."""

import asyncio
import json
import logging

import pytest

import http2
import support
from ringloop.http import Config
from ringloop.http import logging as http_logging
from serve_process import serving
from serving import Client, Server, answer, run
from test_http1 import GET
from test_logging import app, loggers_as_before
from test_pathsend import LARGE, make, serving_file
from wsgi_support import serve

__all__ = ["loggers_as_before"]

pytestmark = pytest.mark.ringloop_only

ACCESS = "uvicorn.access"


@pytest.fixture
def records():
    """Return what the access log is told."""
    Config(app, log_config=None)
    found = []
    handler = logging.Handler()
    handler.emit = found.append
    logger = logging.getLogger(ACCESS)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    return found


def logging_server(kind=Server):
    class LoggingServer(kind):
        def make_service(self):
            self.settings["access_log"] = http_logging.access_log("json")
            return super().make_service()

    return LoggingServer


def fields_of(record):
    return {name: getattr(record, name) for name in http_logging.FIELDS}


def test_a_request(arm, loop, records):
    async def application(scope, receive, send):
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b"123", "more_body": True})
        # It is logged when it has ended.
        assert not records
        await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b"45"})

    async def test():
        async with logging_server()(arm, application) as server, server.client() as client:
            fields = b"X-Request-ID: 7\r\ntraceparent: 00-a-b-01\r\nTRACEPARENT: second\r\n\r\n"
            client.write(b"POST /a%20b%22?c=%22 HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n" + fields)
            await client.response()
            return client.writer.get_extra_info("sockname")

    host, port = run(loop, test())
    (record,) = records
    assert record.args == (f"{host}:{port}", "POST", "/a%20b%22?c=%22", "1.1", 201)
    found = fields_of(record)
    assert found.pop("duration") >= 0
    assert found == {
        "client": host,
        "client_port": port,
        "method": "POST",
        "path": '/a b"',
        "query": "c=%22",
        "status": 201,
        "http_version": "1.1",
        "bytes": 5,
        "request_id": "7",
        "traceparent": "00-a-b-01",
    }
    line = json.loads(http_logging.JsonAccessFormatter().format(record))
    assert list(line) == ["time", "level", "logger", *http_logging.FIELDS]
    assert (line["level"], line["logger"], line["path"]) == ("INFO", ACCESS, '/a b"')


@pytest.mark.parametrize("kind", [Server, http2.Server])
def test_lengths(arm, loop, records, tmp_path, kind):
    """Bytes of the body as the client gets it; nothing where there must not be one; null if nobody knows."""
    path, _ = make(tmp_path, LARGE)
    small, _ = make(tmp_path, 100, "small")

    async def application(scope, receive, send):
        match scope["path"]:
            case "/file":
                await serving_file(path)(scope, receive, send)
            case "/small":
                await serving_file(small)(scope, receive, send)
            case "/204":
                await answer(send, b"dropped", 204)
            case "/error":
                raise ZeroDivisionError
            case _:
                await answer(send, b"12345")

    async def test():
        async with logging_server(kind)(arm, application) as server:
            for method, target in [
                *(("GET", "/"), ("HEAD", "/"), ("GET", "/file"), ("HEAD", "/file"), ("GET", "/small")),
                *(("GET", "/204"), ("GET", "/error")),
            ]:
                if kind is Server:
                    async with server.client() as client:
                        client.write(f"{method} {target} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
                        await client.response(is_head=method == "HEAD")
                else:
                    async with server.http2() as client:
                        await client.get(target, method=method)

    run(loop, test())
    assert [(each.method, each.path, each.status, each.bytes) for each in records] == [
        ("GET", "/", 200, 5),
        ("HEAD", "/", 200, 0),
        ("GET", "/file", 200, LARGE),
        ("HEAD", "/file", 200, 0),
        ("GET", "/small", 200, 100),
        ("GET", "/204", 204, 0),
        ("GET", "/error", 500, 21),
    ]
    assert all(each.duration is not None for each in records)
    assert {each.http_version for each in records} == {"1.1" if kind is Server else "2"}


def test_responses_that_do_not_end(arm, loop, records, tmp_path):
    path, _ = make(tmp_path, 40 << 20)
    gone = []

    async def application(scope, receive, send):
        if scope["path"] == "/file":
            await serving_file(path)(scope, receive, send)
        else:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"begun", "more_body": True})
            while (await receive())["type"] != "http.disconnect":
                pass
        gone.append(scope["path"])

    async def test():
        async with logging_server()(arm, application) as server:
            for target in ("/", "/file"):
                async with server.client() as client:
                    client.write(GET.replace(b" / ", b" %s " % target.encode()))
                    await client.reader.readuntil(b"\r\n\r\n")
                    client.reset()
                    while target not in gone:
                        await asyncio.sleep(0)

    run(loop, test())
    assert [(each.path, each.status, each.bytes) for each in records] == [("/", 200, 5), ("/file", 200, None)]


def test_a_request_that_is_refused(arm, loop, records, errors):
    async def application(scope, receive, send):
        await answer(send)

    async def test():
        async with logging_server()(arm, application, limit_concurrency=1) as server, server.client() as client:
            client.write(GET)
            await client.response()

    run(loop, test())
    assert [(each.status, each.bytes) for each in records] == [(503, len("Service Unavailable"))]
    assert errors() == ["Exceeded concurrency limit."]


def test_a_client_without_an_address(arm, loop, records, tmp_path):
    """That of a Unix socket."""

    async def application(scope, receive, send):
        await answer(send)

    async def test():
        log = logging_server()(arm, application)
        server = await asyncio.get_running_loop().create_unix_server(log.make_service(), tmp_path / "socket")
        async with server:
            reader, writer = await asyncio.open_unix_connection(tmp_path / "socket")
            client = Client(reader, writer)
            client.write(GET)
            await client.response()
            await client.close()
            log.service.abort()
            await log.service.wait_closed()

    run(loop, test())
    (record,) = records
    assert (record.client, record.client_port, record.args[0]) == (None, None, "")


def test_the_formatter_with_other_records():
    record = logging.LogRecord(ACCESS, logging.INFO, __file__, 0, "text", (), None)
    line = json.loads(http_logging.JsonAccessFormatter().format(record))
    assert line["status"] is None


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.any_backend
def test_served(arm, workers):
    options = ("--access-log-format", "json", "--workers", workers, "--no-use-colors")
    with serving(arm, "applications:app", *options) as program:
        program.get("/a?b", headers={"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"})
        line = json.loads(program.wait_for(r"\{.*\}")[0])
        assert (line["method"], line["path"], line["query"], line["status"], line["bytes"]) == (
            "GET",
            "/a",
            "b",
            200,
            5,
        )
        assert line["traceparent"] == "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        # The server's own messages stay as they are.
        assert "Application startup complete." in program.output


def test_a_wsgi_response_that_breaks(arm, loop, records):
    def application(environ, start_response):
        start_response("200 OK", [])
        yield b"123"
        raise ValueError

    async def test():
        server = serve(arm, application)
        server.__class__ = logging_server()
        async with server:
            await server.ask(GET)
            await support.until(lambda: server.service.active == 0)

    run(loop, test())
    (record,) = records
    assert fields_of(record)["status"] == 200
