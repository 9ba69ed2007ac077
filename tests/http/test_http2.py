"""HTTP/2 from the socket to the application and back. On asyncio the server is hypercorn: the control."""

import asyncio
import contextvars
import gc
import re
import socket
import weakref

import pytest
from h2.settings import SettingCodes

import support
from http2 import PREFACE, SETTINGS, Server, frame, get
from serving import answer, body_of, run, text

OWN = pytest.mark.ringloop_only


INVALID = r"Invalid HTTP request received\. Client 127\.0\.0\.1:\d+"


class Recorder:
    """An application that notes what it receives, and answers when it is told to."""

    def __init__(self):
        self.received = []
        self.scopes = []
        self.may_answer = asyncio.Event()
        self.has_come = asyncio.Event()
        self.has_ended = asyncio.Event()

    async def __call__(self, scope, receive, send):
        self.scopes.append(scope)
        self.has_come.set()
        try:
            while True:
                message = await receive()
                self.received.append(message)
                if message["type"] == "http.disconnect" or not message["more_body"]:
                    break
            if message["type"] == "http.request":
                await self.may_answer.wait()
                await answer(send, b"done")
        finally:
            self.has_ended.set()


# -- What an application is told --------------------------------------------------------------------------------------


@OWN
@pytest.mark.parametrize(
    ("path", "fields", "expected"),
    [
        ("/", (), {}),
        ("/a%20b/%C3%A9?x=1&y", (), {"path": "/a b/\u00e9", "raw_path": b"/a%20b/%C3%A9", "query_string": b"x=1&y"}),
        ("//two??", (), {"path": "//two", "raw_path": b"//two", "query_string": b"?"}),
        ("/", (("x-one", "1"), ("cookie", "a=b"), ("x-two", "2"), ("cookie", "c=d")), {
            "headers": [(b"host", b"example.org"), (b"x-one", b"1"), (b"cookie", b"a=b; c=d"), (b"x-two", b"2")],
        }),
        ("/", (("host", "example.org"),), {"headers": [(b"host", b"example.org")]}),
        ("/", (("x-bytes", "\xff\xfe"),), {"headers": [(b"host", b"example.org"), (b"x-bytes", b"\xff\xfe")]}),
    ],
)  # fmt: skip
def test_scope(arm, loop, path, fields, expected):
    seen = []

    async def application(scope, receive, send):
        seen.append(scope)
        await answer(send)

    async def test():
        async with Server(arm, application, state={}) as server, server.http2() as client:
            for _ in range(2):
                assert (await client.get(path, *fields)).status == 200
            address = client.writer.get_extra_info("sockname")
            assert seen == 2 * [{
                "type": "http",
                "asgi": {"version": "3.0", "spec_version": "2.3"},
                "http_version": "2",
                "scheme": "http",
                "root_path": "",
                "headers": [(b"host", b"example.org")],
                "state": {},
                "method": "GET",
                "path": "/",
                "raw_path": b"/",
                "query_string": b"",
                "extensions": {
                    "http.response.pathsend": {}, "http.response.early_hint": {}, "http.response.trailers": {},
                },
                "server": (support.HOST, server.port),
                "client": address,
                **expected,
            }]  # fmt: skip
            assert seen[0]["headers"] is not seen[1]["headers"]
            assert seen[0]["extensions"] is not seen[1]["extensions"]
            for name, extension in seen[0]["extensions"].items():
                assert seen[1]["extensions"][name] is not extension

    run(loop, test())


def test_each_request_has_a_context_and_a_task_of_its_own(arm, loop):
    variable = contextvars.ContextVar("variable", default=None)
    seen = []

    async def application(scope, receive, send):
        seen.append((variable.get(), asyncio.current_task()))
        variable.set(scope["path"])
        await asyncio.sleep(0)
        assert variable.get() == scope["path"]
        await answer(send)

    async def test():
        async with Server(arm, application) as server, server.http2() as client:
            for stream in [client.ask(f"/{number}") for number in range(5)]:
                assert (await client.response(stream)).status == 200

    run(loop, test())
    assert [value for value, _ in seen] == 5 * [None]
    assert len({task for _, task in seen}) == 5


@OWN
def test_forwarded_requests(arm, loop):
    def forwarded(scope):
        scope["scheme"] = "https"

    async def application(scope, receive, send):
        await answer(send, scope["scheme"].encode())

    async def test():
        async with Server(arm, application, forwarded=forwarded) as server, server.http2() as client:
            assert (await client.get("/", ("x-forwarded-proto", "https"))).body == b"https"
            assert (await client.get("/")).body == b"http"

    run(loop, test())


@OWN
def test_the_access_log(arm, loop):
    async def test():
        async with Server(arm, text(b"", status=404), log_access=True) as server, server.http2() as client:
            await client.get("/a b?c".replace(" ", "%20"))
            host, port = client.writer.get_extra_info("sockname")
            assert server.access == [(f"{host}:{port}", "GET", "/a%20b?c", "2", 404)]

    run(loop, test())


# -- Responses --------------------------------------------------------------------------------------------------------


@OWN
@pytest.mark.parametrize(
    ("method", "status", "given", "body", "expected_fields", "expected_body"),
    [
        ("GET", 200, [], b"hello", [("content-length", "5")], b"hello"),
        ("GET", 200, [], b"", [("content-length", "0")], b""),
        ("HEAD", 200, [(b"content-length", b"5")], b"hello", [("content-length", "5")], b""),
        ("GET", 204, [], b"", [], b""),
        ("GET", 304, [(b"etag", b"x")], b"", [("etag", "x")], b""),
        ("GET", 200, [(b"Set-Cookie", b"a"), (b"set-cookie", b"b")], b"x",
            [("set-cookie", "a"), ("set-cookie", "b"), ("content-length", "1")], b"x"),
        ("GET", 200, [(b"connection", b"close"), (b"keep-alive", b"1"), (b"Transfer-Encoding", b"chunked"),
            (b"upgrade", b"x"), (b"proxy-connection", b"x")], b"x", [("content-length", "1")], b"x"),
        ("GET", 200, [(b"server", b"own")], b"x", [("server", "own"), ("content-length", "1")], b"x"),
    ],
)  # fmt: skip
def test_responses(arm, loop, method, status, given, body, expected_fields, expected_body):
    async def test():
        application = text(body, *given, status=status)
        settings = {"headers": [(b"x-default", b"1"), (b"server", b"default")]}
        async with Server(arm, application, **settings) as server, server.http2() as client:
            found = await client.get(method=method)
            assert (found.status, found.body, found.has_ended) == (status, expected_body, True)
            expected = [*expected_fields, ("x-default", "1")]
            if ("server", "own") not in expected:
                expected.append(("server", "default"))
            assert sorted(found.fields) == sorted(expected)

    run(loop, test())


@OWN
@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("status", [204, 205, 304])
@pytest.mark.parametrize("parts", [[b"hello"], [b"", b"he", b"llo"]])
def test_a_body_is_dropped_where_the_status_has_none(arm, loop, errors, method, status, parts):
    async def application(scope, receive, send):
        await send({"type": "http.response.start", "status": status})
        for part in parts:
            await send({"type": "http.response.body", "body": part, "more_body": part is not parts[-1]})

    async def test():
        async with Server(arm, application) as server, server.http2() as client:
            for _ in range(2):
                found = await client.get(method=method)
                assert (found.status, found.body, found.has_ended) == (status, b"", True)

    run(loop, test())
    warning = f"A response with status {status} has no body. What was sent of one is dropped."
    # To a request for the head alone, an application may answer as to any other.
    assert errors() == (2 * [warning] if method == "GET" else [])


@OWN
@pytest.mark.parametrize(("method", "status"), [("GET", 204), ("GET", 304), ("HEAD", 200)])
def test_a_failure_after_a_response_without_a_body(arm, loop, method, status, caplog):
    """The head was the whole response, as with HTTP/1.1."""

    async def application(scope, receive, send):
        await send({"type": "http.response.start", "status": status})
        await send({"type": "http.response.body", "body": b"", "more_body": True})
        raise RuntimeError("as the test asks for")

    async def test():
        async with Server(arm, application) as server, server.http2() as client:
            for _ in range(2):
                found = await client.get(method=method)
                assert (found.status, found.body, found.has_ended) == (status, b"", True)

    run(loop, test())
    assert "as the test asks for" in caplog.text


def test_a_body_in_parts(arm, loop):
    async def application(scope, receive, send):
        await send({"type": "http.response.start", "status": 200})
        for number in range(100):
            await send({"type": "http.response.body", "body": b"%d," % number, "more_body": True})
            if number % 10 == 0:
                await asyncio.sleep(0)
        await send({"type": "http.response.body"})

    async def test():
        async with Server(arm, application) as server, server.http2() as client:
            found = await client.get()
            assert found.body == b"".join(b"%d," % number for number in range(100))
            assert "content-length" not in dict(found.fields)

    run(loop, test())


def test_a_head_goes_out_before_its_body(arm, loop):
    async def test():
        ready = asyncio.Event()

        async def application(scope, receive, send):
            await send({"type": "http.response.start", "status": 201, "headers": []})
            await ready.wait()
            await send({"type": "http.response.body", "body": b"x"})

        async with Server(arm, application) as server, server.http2() as client:
            stream = client.ask()
            await client.until(lambda: client.streams[stream].status)
            assert client.streams[stream].status == 201
            ready.set()
            assert (await client.response(stream)).body == b"x"

    run(loop, test())


@OWN
def test_trailers(arm, loop):
    async def application(scope, receive, send):
        assert scope["extensions"]["http.response.trailers"] == {}
        headers = [(b"content-length", b"0")] if scope["path"] == "/length" else []
        await send({"type": "http.response.start", "status": 200, "headers": headers, "trailers": True})
        if scope["path"] == "/":
            await send({"type": "http.response.body", "body": b"x"})
        else:
            await send({"type": "http.response.body"})
        with pytest.raises(RuntimeError, match=r"Expected ASGI message 'http.response.trailers'"):
            await send({"type": "http.response.body", "body": b"more"})
        await send({"type": "http.response.trailers", "headers": [(b"x-one", b"1")], "more_trailers": True})
        await send({"type": "http.response.trailers", "headers": [[b"X-Two", b"2"]]})
        with pytest.raises(RuntimeError, match="after response already completed"):
            await send({"type": "http.response.trailers", "headers": []})

    async def test():
        async with Server(arm, application) as server, server.http2() as client:
            for path, body in (("/", b"x"), ("/empty", b""), ("/length", b"")):
                found = await client.get(path)
                assert (found.body, found.has_ended) == (body, True)
                assert found.trailers == [("x-one", "1"), ("x-two", "2")]

    run(loop, test())


@OWN
@pytest.mark.parametrize("fields", [[(b"content-length", b"1")], [(b"a b", b"")]])
def test_trailers_that_are_not_allowed(arm, loop, errors, fields):
    async def application(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [], "trailers": True})
        await send({"type": "http.response.body", "body": b"x"})
        await send({"type": "http.response.trailers", "headers": fields})

    async def test():
        async with Server(arm, application) as server, server.http2() as client:
            assert (await client.get()).code == 2
            assert errors() == ["Exception in ASGI application\n"]

    run(loop, test())


@OWN
@pytest.mark.parametrize(
    ("sent", "status", "code", "logged"),
    [
        ([], 500, None, "ASGI callable returned without starting response."),
        ([{"type": "http.response.start", "status": 200}], 200, 2,
            "ASGI callable returned without completing response."),
        ([{"type": "http.response.start", "status": 200, "headers": [(b"a b", b"")]}], 500, None,
            "Exception in ASGI application\n"),
        ([{"type": "http.response.start", "status": 200, "headers": [(b"a", b"b\nc")]}], 500, None,
            "Exception in ASGI application\n"),
        ([{"type": "http.response.start", "status": 101}], 500, None, "Exception in ASGI application\n"),
        ([{"type": "http.response.body"}], 500, None, "Exception in ASGI application\n"),
        ([{"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]},
            {"type": "http.response.body", "body": b"x"}], 200, 2, "Exception in ASGI application\n"),
        ([{"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"1")]},
            {"type": "http.response.body", "body": b"too long"}], 200, 2, "Exception in ASGI application\n"),
        (None, 500, None, "Exception in ASGI application\n"),
    ],
)  # fmt: skip
def test_applications_that_are_wrong(arm, loop, errors, sent, status, code, logged):
    async def application(scope, receive, send):
        if scope["path"] == "/good":
            return await answer(send, b"good")
        if sent is None:
            raise ValueError
        for message in sent:
            await send(message)

    async def test():
        async with Server(arm, application) as server, server.http2() as client:
            found = await client.get()
            # A reset drops what was not sent yet: the head, too.
            assert (found.status, found.code) in ((status, code), (None, 2 if code else status))
            assert errors() == [logged]
            assert (await client.get("/good")).body == b"good", "other streams go on"

    run(loop, test())


@OWN
def test_a_response_with_too_many_fields(arm, loop, errors):
    """As many as the application may give, so that there is no room for those that the server adds."""
    fields = [(b"x-%d" % number, b"") for number in range(24_576)]

    async def application(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": fields})
        with pytest.raises(RuntimeError):
            await send({"type": "http.response.body", "body": b"x"})

    async def test():
        async with Server(arm, application) as server, server.http2() as client:
            assert (await client.get()).code == 2
            assert errors() == ["ASGI callable returned without completing response."]
            assert not client.goaways, "the connection stays"

    run(loop, test())


def test_streams_do_not_wait_for_each_other(arm, loop):
    async def test():
        events = [asyncio.Event() for _ in range(5)]

        async def application(scope, receive, send):
            await events[int(scope["path"][1:])].wait()
            await answer(send, scope["path"].encode())

        async with Server(arm, application) as server, server.http2() as client:
            streams = [client.ask(f"/{number}") for number in range(5)]
            for number in (3, 1, 4, 0, 2):
                events[number].set()
                assert (await client.response(streams[number])).body == b"/%d" % number

    run(loop, test())


# -- Bodies of requests -----------------------------------------------------------------------------------------------


def test_bodies(arm, loop):
    async def application(scope, receive, send):
        body, _ = await body_of(receive)
        await answer(send, body)

    async def test():
        async with Server(arm, application) as server, server.http2() as client:
            assert (await client.get(method="POST", body=b"hello")).body == b"hello"
            assert (await client.get(method="POST", body=b"")).body == b""
            stream = client.ask(method="POST", ends=False)
            for part in (b"a", b"", b"bc"):
                client.data(stream, part)
                await asyncio.sleep(0)
            client.data(stream, b"", ends=True)
            assert (await client.response(stream)).body == b"abc"
            # Trailers end a body, too.
            stream = client.ask(method="POST", body=b"x", ends=False)
            client.h2.send_headers(stream, [("x-trailer", "1")], end_stream=True)
            client.flush()
            assert (await client.response(stream)).body == b"x"

    run(loop, test())


def test_an_upload_of_many_windows(arm, loop):
    async def application(scope, receive, send):
        size = 0
        while True:
            message = await receive()
            size += len(message["body"])
            if not message["more_body"]:
                break
        await answer(send, b"%d" % size)

    async def test():
        async with Server(arm, application) as server, server.http2() as client:
            stream = client.ask(method="POST", ends=False)
            left = 3_000_000
            while left:
                await client.until(lambda: client.h2.local_flow_control_window(stream) > 0)
                size = min(left, client.h2.local_flow_control_window(stream), 16384)
                left -= size
                client.data(stream, bytes(size), ends=not left)
            assert (await client.response(stream)).body == b"3000000"

    run(loop, test())


@OWN
def test_the_window_opens_when_the_application_receives(arm, loop):
    async def test():
        may_receive = asyncio.Event()

        async def application(scope, receive, send):
            if scope["path"] == "/":
                await may_receive.wait()
            body, _ = await body_of(receive)
            await answer(send, b"%d" % len(body))

        async with Server(arm, application, limit_body_ahead=1000) as server, server.http2() as client:
            await client.until(lambda: client.h2.remote_settings.initial_window_size == 1000)
            stream = client.ask(method="POST", ends=False)
            client.data(stream, bytes(1000))
            assert (await client.get("/other")).body == b"0"
            assert client.h2.local_flow_control_window(stream) == 0
            may_receive.set()
            await client.until(lambda: client.h2.local_flow_control_window(stream) == 1000)
            client.data(stream, bytes(500), ends=True)
            assert (await client.response(stream)).body == b"1500"

    run(loop, test())


@OWN
def test_the_connections_window_opens_for_what_is_received_of_ended_bodies(arm, loop):
    async def application(scope, receive, send):
        await body_of(receive)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x", "more_body": True})
        await receive()

    async def test():
        # All of these responses stay open.
        async with Server(arm, application) as server, server.http2() as client:
            await client.until(lambda: client.h2.outbound_flow_control_window > 65535)
            whole = client.h2.outbound_flow_control_window
            for _ in range(40):
                stream = client.ask(method="POST", ends=False)
                for last in (False, False, True):
                    client.data(stream, bytes(16384), ends=last)
                await client.until(lambda stream=stream: client.streams[stream].body)
            assert client.h2.outbound_flow_control_window > whole // 2

    run(loop, test())


@OWN
def test_100_continue(arm, loop):
    async def application(scope, receive, send):
        if scope["path"] == "/read":
            await body_of(receive)
        await answer(send, b"ok")

    async def test():
        async with Server(arm, application) as server, server.http2() as client:
            expects = ("expect", "100-continue")
            stream = client.ask("/read", expects, method="POST", ends=False)
            await client.until(lambda: client.streams[stream].informed)
            client.data(stream, b"x", ends=True)
            assert (await client.response(stream)).informed == ["100"]
            assert (await client.get("/", expects, method="POST", ends=False)).informed == []
            # Nobody waits any more.
            assert (await client.get("/read", expects, method="POST", body=b"x")).informed in ([], ["100"])

    run(loop, test())


@OWN
def test_a_response_before_the_end_of_the_body(arm, loop):
    async def test():
        async with Server(arm, text(b"early")) as server, server.http2() as client:
            stream = client.ask(method="POST", body=b"begun", ends=False)
            await client.until(lambda: client.streams[stream].code is not None)
            found = client.streams[stream]
            assert (found.body, found.has_ended, found.code) == (b"early", True, 0)
            # Parts of the body that were under way hurt nobody.
            client.write(b"\0\0\1\0\1" + stream.to_bytes(4) + b"x")
            assert (await client.get()).body == b"early"

    run(loop, test())


# -- Clients that leave -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("begins", ["without a body", "with a part", "in the body"])
def test_a_reset_while_the_application_receives(arm, loop, begins):
    async def test():
        recorder = Recorder()

        async def application(scope, receive, send):
            if begins == "without a body":
                await receive()
            await recorder(scope, receive, send)

        async with Server(arm, application) as server, server.http2() as client:
            body = {"without a body": None, "with a part": b"x", "in the body": b""}[begins]
            stream = client.ask(method="POST", body=body, ends=body is None)
            await recorder.has_come.wait()
            client.reset_stream(stream)
            await recorder.has_ended.wait()
            assert recorder.received[-1] == {"type": "http.disconnect"}
            assert not client.goaways

    run(loop, test())


@OWN  # hypercorn's applications wait for ever.
@pytest.mark.parametrize("way", ["reset", "close"])
def test_a_lost_connection(arm, loop, way):
    async def test():
        ended = []

        async def application(scope, receive, send):
            await receive()
            assert await receive() == {"type": "http.disconnect"}
            await answer(send, b"nobody hears this")
            ended.append(scope["path"])

        async with Server(arm, application) as server, server.http2() as client:
            for path in ("/1", "/2", "/3"):
                client.ask(path)
            await client.until(lambda: client.h2.remote_settings.initial_window_size)
            if way == "reset":
                client.reset()
            else:
                client.writer.close()
            await support.until(lambda: len(ended) >= 3)
            assert sorted(ended) == ["/1", "/2", "/3"]

    run(loop, test())


@OWN
def test_a_reset_before_the_start_of_the_application(arm, loop):
    """The head and the reset come at once: the application is not bothered."""
    seen = []

    async def application(scope, receive, send):
        seen.append(scope["path"])
        await answer(send)

    async def test():
        async with Server(arm, application) as server, server.http2() as client:
            await client.get("/first")
            stream = client.h2.get_next_available_stream_id()
            client.h2.send_headers(stream, [
                (":method", "GET"), (":scheme", "http"), (":authority", "a"), (":path", "/reset"),
            ], end_stream=True)  # fmt: skip
            client.reset_stream(stream)
            await client.get("/last")
            assert server.service.requests == len(seen)
            assert seen == ["/first", "/last"]

    run(loop, test())


# -- Flow control -----------------------------------------------------------------------------------------------------


@OWN  # hypercorn keeps what it has no room for.
@pytest.mark.parametrize("limit", ["stream", "connection"])
def test_send_waits_for_room(arm, loop, limit):
    async def test():
        sent = []

        async def application(scope, receive, send):
            await send({"type": "http.response.start", "status": 200})
            for number in range(40):
                await send({"type": "http.response.body", "body": bytes(16384), "more_body": True})
                sent.append(number)
            await send({"type": "http.response.body"})

        window = {SettingCodes.INITIAL_WINDOW_SIZE: 1 << 20 if limit == "connection" else 65535}
        async with Server(arm, application) as server, server.http2(window) as client:
            client.gives_room = False
            await client.settled()
            if limit == "stream":
                client.h2.increment_flow_control_window(1 << 20)
                client.flush()
            stream = client.ask()
            await client.until(lambda: len(client.streams[stream].body) == 65535)
            await support.standstill(lambda: len(sent))
            assert 3 <= len(sent) < 20
            client.gives_room = True
            client.h2.increment_flow_control_window(1 << 20, None if limit == "connection" else stream)
            client.flush()
            assert len((await client.response(stream)).body) == 40 * 16384

    run(loop, test())


def test_a_window_of_one_byte(arm, loop):
    async def test():
        settings = {SettingCodes.INITIAL_WINDOW_SIZE: 1}
        async with Server(arm, text(b"0123456789")) as server, server.http2(settings) as client:
            await client.settled()
            assert (await client.get()).body == b"0123456789"

    run(loop, test())


@OWN  # As above.
def test_send_waits_for_a_client_that_does_not_read(arm, loop):
    async def test():
        sent, goes_on = [], asyncio.Event()

        async def application(scope, receive, send):
            await send({"type": "http.response.start", "status": 200})
            for number in range(300):
                await send({"type": "http.response.body", "body": bytes(65536), "more_body": True})
                sent.append(number)
            await send({"type": "http.response.body"})
            goes_on.set()

        big = (1 << 31) - 1
        async with Server(arm, application) as server, server.http2({SettingCodes.INITIAL_WINDOW_SIZE: big}) as client:
            await client.settled()
            client.h2.increment_flow_control_window(big - 65535)
            client.gives_room = False
            stream = client.ask()
            assert await support.standstill(lambda: len(sent)) < 300
            assert len((await client.response(stream)).body) == 300 * 65536
            await goes_on.wait()

    run(loop, test())


# -- Time -------------------------------------------------------------------------------------------------------------


@OWN
@pytest.mark.parametrize("piece", ["nothing", "a part of the preface", "the preface", "a part of a head"])
def test_the_deadline_for_a_head(arm, loop, piece):
    start = PREFACE + frame(SETTINGS)
    sent = {"nothing": b"", "a part of the preface": PREFACE[:10], "the preface": start,
        "a part of a head": start + get(1)[:12]}[piece]  # fmt: skip

    async def test():
        async with Server(arm, text(b""), timeout_head=0.05) as server:
            await server.ask(sent)
            assert server.service.requests == 0

    run(loop, test())


@OWN
def test_each_head_has_a_deadline_of_its_own(arm, loop):
    """A stream is open, and each read ends inside the next head."""
    timeout, heads = 0.5, [get(stream) for stream in range(3, 43, 2)]

    async def application(scope, receive, send):
        if scope["path"] == "/waits":
            await receive()
            await receive()
        await answer(send, b"x")

    async def attempt():
        """Return whether all heads were sent in time."""
        async with Server(arm, application, timeout_head=timeout) as server, server.client() as client:
            client.write(PREFACE + frame(SETTINGS) + get(1, path=b"/waits") + heads[0][:12])
            rest = asyncio.ensure_future(client.rest())
            slowest = 0
            for head, following in zip(heads, [*heads[1:], b""], strict=True):
                begun = loop.time()
                await asyncio.sleep(timeout / 10)
                before = server.service.requests
                client.write(head[12:] + following[:12])
                while server.service.requests == before and not rest.done():
                    await asyncio.sleep(0.001)
                slowest = max(slowest, loop.time() - begun)
                if rest.done():
                    break
            assert slowest > timeout / 2 or server.service.requests == 1 + len(heads)
            client.reset()
            await asyncio.gather(rest, return_exceptions=True)
            return slowest <= timeout / 2

    async def test():
        # A machine that stands still makes the client late.
        while not await attempt():
            pass

    run(loop, test())


@OWN
def test_a_slow_head_after_others_is_ended(arm, loop):
    async def application(scope, receive, send):
        await receive()
        await receive()

    async def test():
        async with Server(arm, application, timeout_head=0.05) as server:
            await server.ask(PREFACE + frame(SETTINGS) + get(1) + get(3)[:12])
            assert server.service.requests == 1

    run(loop, test())


@OWN
def test_bodies_that_nobody_reads_leave_room_for_others(arm, loop):
    async def application(scope, receive, send):
        if scope["path"] == "/ignores":
            await asyncio.get_running_loop().create_future()
        await answer(send, str(len((await body_of(receive))[0])).encode())

    async def test():
        async with Server(arm, application, limit_body_ahead=65535) as server, server.http2() as client:
            await client.settled()
            for _ in range(100):
                stream = client.ask("/ignores", method="POST", ends=False)
                while room := client.h2.local_flow_control_window(stream):
                    client.data(stream, bytes(min(room, 16384)))
                await client.writer.drain()
            assert client.h2.outbound_flow_control_window > 1000
            assert (await client.get(method="POST", body=bytes(1000))).body == b"1000"
            client.reset()

    run(loop, test())


@OWN
def test_the_deadline_for_the_next_request(arm, loop):
    async def test():
        async with Server(arm, text(b"x"), timeout_keep_alive=0.05) as server, server.http2() as client:
            assert (await client.get()).body == b"x"
            await client.end()
            # First a warning, then the end.
            assert [code for code, _ in client.goaways] == [0, 0]
            assert client.goaways[-1] == (0, 1)

    run(loop, test())


@OWN
def test_pings_do_not_keep_a_connection(arm, loop):
    async def test():
        async with Server(arm, text(b"x"), timeout_keep_alive=0.1) as server, server.http2() as client:
            await client.get()

            async def ping():
                while not client.is_over:
                    client.h2.ping(b"12345678")
                    client.flush()
                    await asyncio.sleep(0.01)

            task = asyncio.ensure_future(ping())
            await client.end()
            task.cancel()

    run(loop, test())


@OWN
def test_a_body_that_does_not_come(arm, loop):
    async def application(scope, receive, send):
        if scope["path"] == "/begun":
            await send({"type": "http.response.start", "status": 200, "headers": []})
        while (await receive())["type"] != "http.disconnect":
            pass

    async def test():
        async with Server(arm, application, timeout_body=0.05) as server, server.http2() as client:
            assert (await client.get(method="POST", ends=False)).status == 408
            assert (await client.get("/begun", method="POST", ends=False)).code == 2
            assert not client.goaways, "the connection stays"

    run(loop, test())


@OWN
def test_a_client_that_gives_no_room(arm, loop):
    async def test():
        ended = asyncio.Event()

        async def application(scope, receive, send):
            if scope["path"] == "/":
                await send({"type": "http.response.start", "status": 200, "headers": []})
                for _ in range(100):
                    await send({"type": "http.response.body", "body": bytes(65536), "more_body": True})
                    ended.set()
                await send({"type": "http.response.body"})
            await answer(send, b"ok")

        async with Server(arm, application, timeout_write=0.05) as server, server.http2() as client:
            client.gives_room = False
            client.h2.increment_flow_control_window(1 << 20)
            client.flush()
            found = await client.get()
            assert (len(found.body), found.code) == (65535, 8)
            await ended.wait()
            assert (await client.get("/other")).body == b"ok"

    run(loop, test())


@OWN
@pytest.mark.parametrize("reason", ["concurrency", "exception"])
def test_an_error_that_a_client_gives_no_room_for(arm, loop, errors, reason):
    async def application(scope, receive, send):
        raise ValueError

    async def test():
        limit = {"limit_concurrency": 1} if reason == "concurrency" else {}
        window = {SettingCodes.INITIAL_WINDOW_SIZE: 0}
        async with Server(arm, application, timeout_write=0.05, **limit) as server, server.http2(window) as client:
            await client.settled()
            found = await client.get()
            assert (found.status, found.code) == (503 if limit else 500, 8)
            assert len(errors()) == 1

    run(loop, test())


@OWN
@pytest.mark.without_debug_mode
@pytest.mark.parametrize("end", ["idle", "shutdown"])
def test_a_client_that_reads_late_gets_all(arm, loop, end):
    """Responses that were given, and not written yet, are not dropped with an idle connection."""

    async def test():
        size, count = 60_000, 16
        timeout = {"timeout_keep_alive": 0.05} if end == "idle" else {}
        async with Server(arm, text(bytes(size)), **timeout) as server:
            server.listener.sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            async with server.http2({SettingCodes.INITIAL_WINDOW_SIZE: 1 << 20}) as client:
                await client.settled()
                client.h2.increment_flow_control_window(1 << 30)
                client.reader._transport.pause_reading()
                # They come in one piece, so that they are all answered before anything is written.
                pieces = []
                client.write = pieces.append
                streams = [client.ask() for _ in range(count)]
                del client.write
                client.write(b"".join(pieces))
                await support.until(lambda: server.service.requests >= count)
                assert server.service.active == 0
                if end == "shutdown":
                    server.service.shut_down()
                # Longer than its time: as an idle connection's, or as a client's for its first request in a shutdown (a second).
                await asyncio.sleep({"idle": 0.5, "shutdown": 1.5}[end])
                client.reader._transport.resume_reading()
                for stream in streams:
                    found = await client.response(stream)
                    assert (len(found.body), found.has_ended) == (size, True)

    run(loop, test())


@OWN
def test_each_response_has_the_default_fields(arm, loop, errors):
    """Also those that the server itself answers with."""
    headers = [(b"x-a", b"default"), (b"content-type", b"default"), (b"server", b"me")]

    async def application(scope, receive, send):
        if scope["method"] == "POST":
            await receive()
        if scope["path"] == "/":
            await answer(send, b"", 200, [(b"X-A", b"own"), (b"Server", b"own")])

    async def fields_of(client, stream):
        found = await client.response(stream)
        return found.status, [field for field in found.fields if field[0] in ("x-a", "server", "content-type")]

    async def test():
        kind = ("content-type", "text/plain; charset=utf-8")
        refused = [kind, ("x-a", "default"), ("server", "me")]
        settings = {"headers": headers, "limit_fields": 10, "timeout_body": 0.05}
        async with Server(arm, application, **settings) as server, server.http2() as client:
            own = [("x-a", "default"), ("x-a", "own"), ("content-type", "default"), ("server", "own")]
            assert await fields_of(client, client.ask()) == (200, own)
            for stream, status in (
                (client.ask("/none"), 500),
                (client.ask("/", ("expect", "tea")), 417),
                (client.ask("/", *[("x", "y")] * 11), 431),
                (client.ask(method="POST", ends=False), 408),
            ):
                assert await fields_of(client, stream) == (status, refused)
        async with Server(arm, application, headers=headers, limit_concurrency=0) as server, server.http2() as client:
            assert await fields_of(client, client.ask()) == (503, refused)
        assert errors()

    run(loop, test())


# -- Limits and ends --------------------------------------------------------------------------------------------------


@OWN
def test_the_limit_of_concurrency(arm, loop, errors):
    async def test():
        recorder = Recorder()
        async with Server(arm, recorder, limit_concurrency=2) as server, server.http2() as client:
            first, second = client.ask(), client.ask()
            third = await client.get()
            assert third.status == 503
            recorder.may_answer.set()
            for stream in (first, second):
                assert (await client.response(stream)).status == 200
            assert errors() == ["Exceeded concurrency limit."]
            assert server.service.requests == 3

    run(loop, test())


@OWN
def test_a_connection_ends_after_its_last_request(arm, loop):
    async def test():
        async with Server(arm, text(b"x"), limit_http2_requests=3) as server, server.http2() as client:
            for _ in range(3):
                assert (await client.get()).body == b"x"
            await client.end()
            assert client.goaways[-1] == (0, 5)

    run(loop, test())


@OWN
def test_many_requests_at_once(arm, loop):
    """More than are started in a turn."""

    async def test():
        async with Server(arm, text(b"x")) as server, server.http2() as client:
            streams = [client.ask() for _ in range(100)]
            for stream in streams:
                assert (await client.response(stream)).body == b"x"
            assert server.service.requests == 100

    run(loop, test())


@OWN
def test_shutting_down(arm, loop):
    async def test():
        recorder = Recorder()
        async with Server(arm, recorder) as server, server.http2() as client, server.http2() as idle:
            stream = client.ask()
            await recorder.has_come.wait()
            await idle.until(lambda: idle.h2.remote_settings.initial_window_size)
            server.service.shut_down()
            await idle.end()
            await client.until(lambda: client.goaways)
            recorder.may_answer.set()
            assert (await client.response(stream)).body == b"done"
            await client.end()
            await server.service.wait_closed()

    run(loop, test())


@OWN
def test_shutting_down_with_a_client_that_says_nothing(arm, loop):
    async def test():
        async with Server(arm, text(b"x")) as server, server.client() as client, server.client() as silent:
            client.write(PREFACE + frame(SETTINGS) + get(1))
            silent.write(PREFACE[:10])
            await support.until(lambda: server.service.requests >= 1 and server.service.connections >= 2)
            server.service.shut_down()
            # Neither acknowledges anything.
            await client.rest()
            await silent.rest()
            await server.service.wait_closed()

    run(loop, test())


@OWN
def test_a_connection_that_begins_while_the_server_shuts_down(arm, loop):
    async def test():
        async with Server(arm, text(b"x")) as server:
            protocol = server.service.protocol
            server.service.shut_down()
            assert protocol is not None
            async with server.http2() as client:
                assert (await client.get()).body == b"x"
                await client.end()
                assert client.goaways[-1][0] == 0

    run(loop, test())


@OWN
def test_disconnecting_and_aborting(arm, loop, errors):
    async def test():
        recorder = Recorder()

        async def application(scope, receive, send):
            await receive()
            if scope["path"] == "/stubborn":
                await asyncio.Event().wait()
            await recorder(scope, receive, send)

        async with Server(arm, application) as server, server.http2() as client:
            client.ask()
            stubborn = client.ask("/stubborn")
            await recorder.has_come.wait()
            server.service.disconnect()
            await recorder.has_ended.wait()
            assert recorder.received == [{"type": "http.disconnect"}]
            await client.until(lambda: client.streams[1].is_over)
            assert not client.streams[stubborn].is_over
            server.service.abort()
            await server.service.wait_closed()

    run(loop, test())


@OWN
def test_a_connection_that_chooses_http1_is_served(arm, loop):
    async def test():
        async with Server(arm, text(b"x")) as server:
            assert (await server.ask(b"GET / HTTP/1.0\r\n\r\n")).endswith(b"\r\n\r\nx")

    run(loop, test())


@OWN
def test_http2_can_be_off(arm, loop, errors):
    async def test():
        async with Server(arm, text(b"x"), http2=False) as server:
            data = await server.ask(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            assert data.startswith(b"HTTP/1.1 505 ")
            (error,) = errors()
            assert re.fullmatch(rf"{INVALID} gets 505: unsupported HTTP version", error)

    run(loop, test())


@OWN
def test_the_reason_of_an_end_reaches_its_client(arm, loop, errors):
    """The client sends on after its mistake."""

    async def test():
        async with Server(arm, text(b"x")) as server:
            for _ in range(50):
                async with server.client() as client:
                    client.write(PREFACE + frame(SETTINGS))
                    await client.reader.readexactly(9)
                    # DATA on stream 0.
                    client.write(frame(0, 0, 0, b"x"))
                    client.write(400 * frame(99))
                    await asyncio.sleep(0)
                    client.write(400 * frame(99))
                    goaway = (await client.rest())[-17:]
                    assert goaway[3:9] == b"\x07\0\0\0\0\0"
                    assert goaway[-4:] == b"\0\0\0\1"
            found = errors()
            assert len(found) == 50
            assert all(re.fullmatch(rf"{INVALID} is disconnected: .+", error) for error in found)

    run(loop, test())


@OWN
def test_the_preface_in_pieces(arm, loop):
    async def test():
        whole = PREFACE + frame(SETTINGS) + get(1)
        for size in (1, 7, 24, 25):
            async with Server(arm, text(b"hello")) as server, server.client() as client:
                for at in range(0, len(whole), size):
                    client.write(whole[at : at + size])
                    await asyncio.sleep(0)
                await client.reader.readuntil(b"hello")

    run(loop, test())


# -- Memory -----------------------------------------------------------------------------------------------------------


@OWN
@pytest.mark.parametrize("phase", ["receiving", "sending", "answered", "reset"])
def test_cycles_are_collected(arm, new_loop, phase):
    async def test():
        class Canary:
            pass

        seen = []

        async def application(scope, receive, send):
            canary = scope["canary"] = Canary()
            canary.all = (scope, receive, send, canary)
            seen.append(weakref.ref(canary))
            if phase == "receiving":
                while (await receive())["type"] != "http.disconnect":
                    pass
            elif phase == "sending":
                await send({"type": "http.response.start", "status": 200})
                for _ in range(10):
                    await send({"type": "http.response.body", "body": bytes(65536), "more_body": True})
            elif phase == "reset":
                await receive()
                await receive()
            else:
                await answer(send)

        async with Server(arm, application) as server:
            async with server.http2() as client:
                client.gives_room = False
                stream = client.ask(method="POST", body=b"x", ends=phase != "receiving")
                await support.until(lambda: seen)
                if phase == "reset":
                    client.reset_stream(stream)
                elif phase == "answered":
                    await client.response(stream)
                    # The connection remembers the last head, but no scope.
                if phase in ("answered", "reset"):
                    await support.until(lambda: not server.service.active)
                    gc.collect()
                    assert seen[0]() is None, "while the connection is open"
            await support.until(lambda: not (server.service.active or server.service.connections))
        gc.collect()
        assert not [ref for ref in seen if ref()]

    run(new_loop(), test())


@pytest.mark.exact
@OWN
def test_nothing_grows_with_requests(arm, loop):
    async def application(scope, receive, send):
        if scope["path"] == "/wait":
            await receive()
            await receive()
        await body_of(receive)
        await answer(send, b"x")

    async def test():
        async with Server(arm, application, limit_http2_requests=None) as server, server.http2() as client:

            async def round_of_requests():
                for _ in range(20):
                    await client.get(method="POST", body=b"x")
                    client.reset_stream(client.ask("/wait"))
                client.streams.clear()
                await support.until(lambda: not server.service.active)

            for _ in range(2):
                await round_of_requests()
            count = support.count_objects_from_here()
            before = count()
            for _ in range(4):
                await round_of_requests()
            assert count() - before < 100

    run(loop, test())
