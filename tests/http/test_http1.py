"""HTTP/1.1 from the socket to the application and back. On asyncio the server is uvicorn: the control."""

import asyncio
import contextvars
import re

import pytest

import support
from serving import LOGGER, Server, answer, body_of, run, text

GET = b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n"
LAST = b"GET / HTTP/1.1\r\nHost: example.org\r\nConnection: close\r\n\r\n"


# -- What an application is told --------------------------------------------------------------------------------------

SCOPE = {
    "type": "http",
    "asgi": {"version": "3.0", "spec_version": "2.3"},
    "http_version": "1.1",
    "scheme": "http",
    "root_path": "",
    "headers": [(b"host", b"a")],
    "state": {},
    "method": "GET",
    "path": "/",
    "raw_path": b"/",
    "query_string": b"",
}


@pytest.mark.parametrize(
    ("request_line", "fields", "expected"),
    [
        ("GET / HTTP/1.1", "", {}),
        ("POST /a/b?x=1&y=%20?z HTTP/1.1", "", {
            "method": "POST", "path": "/a/b", "raw_path": b"/a/b", "query_string": b"x=1&y=%20?z",
        }),
        ("GET /%C3%A9%20%2F%zz HTTP/1.1", "", {"path": "/\u00e9 /%zz", "raw_path": b"/%C3%A9%20%2F%zz"}),
        ("GET /%ff%E2%82x HTTP/1.1", "", {"path": "/\ufffd\ufffdx", "raw_path": b"/%ff%E2%82x"}),
        ("GET //two?? HTTP/1.1", "", {"path": "//two", "raw_path": b"//two", "query_string": b"?"}),
        ("OPTIONS /x HTTP/1.0", "", {"method": "OPTIONS", "http_version": "1.0", "path": "/x", "raw_path": b"/x"}),
        ("PROPFIND / HTTP/1.1", "", {"method": "PROPFIND"}),
        ("GET http://a/b?c HTTP/1.1", "", {"path": "/b", "raw_path": b"/b", "query_string": b"c"}),
        ("GET / HTTP/1.1", "X-One: 1\r\nCOOKIE:  a=b\r\nx-one:\t2\r\n", {
            "headers": [(b"host", b"a"), (b"x-one", b"1"), (b"cookie", b"a=b"), (b"x-one", b"2")],
        }),
        ("GET / HTTP/1.1", "X-Bytes: \xff\xfe\r\n", {"headers": [(b"host", b"a"), (b"x-bytes", b"\xff\xfe")]}),
    ],
)  # fmt: skip
def test_scope(arm, loop, request_line, fields, expected):
    seen = []

    async def application(scope, receive, send):
        seen.append(scope)
        await answer(send)

    async def test():
        async with Server(arm, application, state={}) as server, server.client() as client:
            client.write(f"{request_line}\r\nHost: a\r\n{fields}\r\n".encode("latin-1"))
            await client.response()
            address = client.writer.get_extra_info("sockname")
            hints = {} if request_line.endswith("1.0") else {"http.response.early_hint": {}}
            ours = {} if arm == "asyncio" else {"extensions": {"http.response.pathsend": {}, **hints}}
            assert seen == [{**SCOPE, "server": (support.HOST, server.port), "client": address, **ours, **expected}]

    run(loop, test())


def test_order_of_keys_in_scopes(arm, loop):
    seen = []

    async def application(scope, receive, send):
        seen.append(list(scope))
        await answer(send)

    async def test():
        async with Server(arm, application, state={}) as server, server.client() as client:
            for _ in range(2):
                client.write(GET)
                await client.response()

    run(loop, test())
    # fmt: off
    assert seen == 2 * [[
        "type", "asgi", "http_version", "server", "client", "scheme", "root_path", "headers", "state", "method", "path",
        "raw_path", "query_string", *([] if arm == "asyncio" else ["extensions"]),
    ]]
    # fmt: on


def test_root_path(arm, loop):
    seen = []

    async def application(scope, receive, send):
        seen.append((scope["root_path"], scope["path"], scope["raw_path"]))
        await answer(send)

    async def test():
        async with Server(arm, application, root_path="/api") as server:
            await server.ask(LAST.replace(b"/ ", b"/a%20b?c ", 1))

    run(loop, test())
    assert seen == [("/api", "/api/a b", b"/api/a%20b")]


def test_applications_may_change_what_they_are_given(arm, loop):
    state = {"shared": [], "number": 1}
    seen = []

    async def application(scope, receive, send):
        seen.append((list(scope["headers"]), dict(scope["asgi"]), dict(scope["state"]), scope["path"], "own" in scope))
        assert scope["state"]["shared"] is state["shared"]
        scope["headers"].clear()
        scope["asgi"]["version"] = "changed"
        scope["state"]["number"] = 2
        scope["path"] = "/changed"
        scope["own"] = 1
        await answer(send)

    async def test():
        async with Server(arm, application, state=state) as server, server.client() as client:
            for _ in range(3):
                client.write(GET)
                await client.response()

    run(loop, test())
    assert seen == 3 * [
        (
            [(b"host", b"example.org")],
            {"version": "3.0", "spec_version": "2.3"},
            {"shared": [], "number": 1},
            "/",
            False,
        )
    ]


def test_each_request_gets_the_state_as_it_is_then(arm, loop):
    """Requests see what the lifespan's task adds after the start."""
    state = {"number": 1}
    seen = []

    async def application(scope, receive, send):
        seen.append(dict(scope["state"]))
        scope["state"]["mine"] = 1
        await answer(send)

    async def test():
        async with Server(arm, application, state=state) as server, server.client() as client:
            for number in range(1, 4):
                state["number"] = number
                client.write(GET)
                await client.response()

    run(loop, test())
    assert seen == [{"number": 1}, {"number": 2}, {"number": 3}]


def test_heads_that_differ_little(arm, loop):
    """A connection knows its last head: the next one must be compared to the last byte."""
    seen = []

    async def application(scope, receive, send):
        seen.append((scope["path"], scope["query_string"], scope["headers"]))
        await answer(send)

    async def test():
        async with Server(arm, application) as server, server.client() as client:
            for path in ("/a?b", "/a?b", "/a?c", "/a?b", "/a?bb", "/a?bb"):
                for value in ("1", "2"):
                    client.write(f"GET {path} HTTP/1.1\r\nHost: a\r\nX: {value}\r\n\r\n".encode())
                    await client.response()

    run(loop, test())
    expected = []
    for query in (b"b", b"b", b"c", b"b", b"bb", b"bb"):
        expected += [("/a", query, [(b"host", b"a"), (b"x", value)]) for value in (b"1", b"2")]
    assert seen == expected


# -- Bodies of requests -----------------------------------------------------------------------------------------------

SIZED = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 11\r\n\r\nhello world"
CHUNKED = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6;x=y\r\n world\r\n0\r\nT: v\r\n\r\n"


@pytest.mark.parametrize("request_bytes", [SIZED, CHUNKED])
@pytest.mark.parametrize("at_once", [True, False])
def test_bodies(arm, loop, request_bytes, at_once):
    async def application(scope, receive, send):
        body, _ = await body_of(receive)
        await answer(send, body)

    async def test():
        async with Server(arm, application) as server, server.client() as client:
            for _ in range(2):
                pieces = [request_bytes] if at_once else [request_bytes[i : i + 1] for i in range(len(request_bytes))]
                for piece in pieces:
                    client.write(piece)
                    await asyncio.sleep(0)
                assert (await client.response())[2] == b"hello world"

    run(loop, test())


def test_no_body(arm, loop):
    seen = []

    async def application(scope, receive, send):
        seen.append(await receive())
        await answer(send)
        seen.append(await receive())

    async def test():
        async with Server(arm, application) as server, server.client() as client:
            client.write(GET)
            await client.response()

    run(loop, test())
    assert seen == [{"type": "http.request", "body": b"", "more_body": False}, {"type": "http.disconnect"}]


def test_a_body_that_nobody_reads_does_not_hide_the_next_request(arm, loop):
    async def test():
        async with Server(arm, text(b"ok")) as server, server.client() as client:
            client.write(SIZED + CHUNKED + SIZED[:-5])
            for _ in range(3):
                assert (await client.response())[2] == b"ok"
            client.write(SIZED[-5:] + GET)
            assert (await client.response())[2] == b"ok"

    run(loop, test())


def test_a_large_body_waits_for_its_reader(arm, loop):
    size = 20_000_000
    begun, may_read = asyncio.Event(), asyncio.Event()

    async def application(scope, receive, send):
        begun.set()
        await may_read.wait()
        body, count = await body_of(receive)
        await answer(send, f"{len(body)} {count > 1}".encode())

    async def test():
        async with Server(arm, application) as server, server.client() as client:
            client.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % size)
            client.write(bytes(size))
            await begun.wait()
            draining = asyncio.ensure_future(client.writer.drain())
            await support.standstill(client.writer.transport.get_write_buffer_size)
            assert not draining.done()
            # What the kernel's buffers hold is far less.
            assert client.writer.transport.get_write_buffer_size() > size // 4
            may_read.set()
            assert (await client.response())[2] == b"20000000 True"
            await draining

    run(loop, test())


def test_continue_is_sent_when_the_body_is_wanted(arm, loop):
    wanted = asyncio.Event()

    async def application(scope, receive, send):
        await wanted.wait()
        body, _ = await body_of(receive)
        await answer(send, body)

    async def test():
        async with Server(arm, application) as server, server.client() as client:
            client.write(SIZED[:-15] + b"\r\nExpect: 100-continue\r\n\r\n")
            reading = asyncio.ensure_future(client.reader.readuntil(b"\r\n\r\n"))
            await support.looks(10)
            assert not reading.done()
            wanted.set()
            assert await reading == b"HTTP/1.1 100 Continue\r\n\r\n"
            client.write(b"hello world")
            assert (await client.response())[2] == b"hello world"

    run(loop, test())


# -- Responses --------------------------------------------------------------------------------------------------------


def test_responses(arm, loop):
    fields = [(b"content-type", b"text/plain"), (b"set-cookie", b"a"), (b"x-\xc3"[:2], b"\xff")]

    async def test():
        async with Server(arm, text(b"hello", *fields, (b"content-length", b"5"))) as server, server.client() as client:
            client.write(GET)
            line, found, body = await client.response()
            assert (line, body) == ("HTTP/1.1 200 OK", b"hello")
            expected = {"content-type": "text/plain", "set-cookie": "a", "x-": "\xff", "content-length": "5"}
            found.pop("server", None)
            assert found == expected
            client.write(b"HEAD" + GET[3:])
            line, found, body = await client.response(is_head=True)
            assert (line, found["content-length"]) == ("HTTP/1.1 200 OK", "5")
            client.write(LAST)
            line, found, body = await client.response()
            assert (found["connection"], body, await client.rest()) == ("close", b"hello", b"")

    run(loop, test())


@pytest.mark.parametrize(
    ("status", "line"), [(204, "204 No Content"), (304, "304 Not Modified"), (418, "418 "), (599, "599 ")]
)
def test_statuses(arm, loop, status, line):
    async def test():
        async with Server(arm, text(b"", status=status)) as server, server.client() as client:
            for _ in range(2):
                client.write(GET)
                found, _, body = await client.response()
                assert found.startswith(f"HTTP/1.1 {line}")
                assert body == b""

    if arm == "asyncio" and status == 599:
        pytest.skip("uvicorn knows registered statuses only")
    run(loop, test())


@pytest.mark.ringloop_only
@pytest.mark.parametrize("method", [b"GET", b"HEAD"])
@pytest.mark.parametrize("status", [204, 205, 304])
def test_a_body_is_dropped_where_the_status_has_none(arm, loop, errors, method, status):
    """uvicorn raises an exception, and closes the connection."""

    async def application(scope, receive, send):
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"5")]})
        for part in (b"", b"he", b"llo"):
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"!"})

    async def test():
        async with Server(arm, application) as server, server.client() as client:
            for request in (GET, GET, LAST):
                client.write(method + request[3:])
                line, fields, _ = await client.response(is_head=True)
                assert line.startswith(f"HTTP/1.1 {status} ")
                assert ("connection" in fields) == (request is LAST)
            assert await client.rest() == b""

    run(loop, test())
    warning = f"A response with status {status} has no body. What was sent of one is dropped."
    # To a request for the head alone, an application may answer as to any other.
    assert errors() == (3 * [warning] if method == b"GET" else [])


def test_parts_of_a_body_are_chunks(arm, loop):
    async def application(scope, receive, send):
        await send({"type": "http.response.start", "status": 200})
        for part in (b"one", b"", bytearray(b"two"), memoryview(b"three") if arm != "asyncio" else b"three"):
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body"})

    async def test():
        async with Server(arm, application) as server, server.client() as client:
            for _ in range(2):
                client.write(GET)
                _, fields, body = await client.response()
                assert (fields["transfer-encoding"], body) == ("chunked", b"onetwothree")
            client.write(GET.replace(b"1.1", b"1.0"))
            response = await client.rest()
            assert response.endswith(b"onetwothree")

    if arm == "asyncio":
        pytest.skip("uvicorn sends chunks to HTTP/1.0")
    run(loop, test())


def test_each_part_is_sent_at_once(arm, loop):
    part = asyncio.Event()

    async def application(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"x", b"y")]})
        await part.wait()
        part.clear()
        await send({"type": "http.response.body", "body": b"1", "more_body": True})
        await part.wait()
        await send({"type": "http.response.body", "body": b"2"})

    async def test():
        async with Server(arm, application) as server, server.client() as client:
            client.write(GET)
            # The head, while the application takes its time.
            assert b"x: y" in await client.reader.readuntil(b"\r\n\r\n")
            part.set()
            assert await client.reader.readexactly(6) == b"1\r\n1\r\n"
            part.set()
            assert await client.reader.readexactly(11) == b"1\r\n2\r\n0\r\n\r\n"

    run(loop, test())


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_head_that_another_task_sends_is_sent_when_that_one_waits(arm, loop, goes_on):
    """As Starlette's StreamingResponse, whose clients wait for the head before the first event."""

    async def application(scope, receive, send):
        async def respond():
            await send({"type": "http.response.start", "status": 200})
            if not goes_on:
                await has_head.wait()
            await send({"type": "http.response.body", "body": b"event"})

        async with asyncio.TaskGroup() as group:
            group.create_task(respond())

    has_head = asyncio.Event()

    async def test():
        async with Server(arm, application) as server, server.client() as client:
            client.write(LAST)
            head = await client.reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200")
            has_head.set()
            assert b"event" in await client.rest()

    run(loop, test())


@pytest.mark.parametrize("size", [0, 1, 8192, 8193, 3_000_000])
@pytest.mark.parametrize("parts", [1, 3])
def test_sizes(arm, loop, size, parts):
    body = bytes(range(251)) * (size // 251 + 1)

    async def application(scope, receive, send):
        await send({"type": "http.response.start", "status": 200})
        for number in range(parts):
            more = number + 1 < parts
            await send({"type": "http.response.body", "body": body[:size], "more_body": more})

    async def test():
        async with Server(arm, application) as server, server.client() as client:
            for _ in range(2):
                client.write(GET)
                assert (await client.response())[2] == body[:size] * parts

    run(loop, test())


def test_sending_waits_for_the_reader(arm, loop):
    sent = []

    async def application(scope, receive, send):
        await send({"type": "http.response.start", "status": 200})
        for _ in range(200):
            await send({"type": "http.response.body", "body": bytes(100_000), "more_body": True})
            sent.append(1)
        await send({"type": "http.response.body"})

    async def test():
        async with Server(arm, application) as server, server.client() as client:
            client.writer.transport.pause_reading()
            client.write(GET)
            await support.until(lambda: sent)
            assert await support.standstill(lambda: len(sent)) < 200
            client.writer.transport.resume_reading()
            assert len((await client.response())[2]) == 20_000_000

    run(loop, test())


def test_own_date_and_server(arm, loop):
    async def test():
        async with Server(arm, text(b"", (b"Date", b"today"), (b"Server", b"me"))) as server:
            response = await server.ask(LAST)
            assert response.lower().count(b"date:") == response.lower().count(b"server:") == 1
            assert b"today" in response
            assert b"me" in response

    if arm == "asyncio":
        pytest.skip("uvicorn adds them where it is run by its own server only")
    run(loop, test())


@pytest.mark.parametrize("kind", [list, tuple, iter])
@pytest.mark.parametrize("pair", [list, tuple])
@pytest.mark.parametrize("part", [bytes, bytearray])
def test_kinds_of_headers(arm, loop, kind, pair, part):
    async def application(scope, receive, send):
        fields = kind([pair([part(b"x-a"), part(b"1")]), pair([b"x-b", b"2"])])
        await send({"type": "http.response.start", "status": 200, "headers": fields})
        await send({"type": "http.response.body"})

    async def test():
        async with Server(arm, application) as server:
            assert b"x-a: 1\r\nx-b: 2\r\n" in await server.ask(LAST)

    run(loop, test())


def test_a_response_has_the_default_fields_and_its_own(arm, loop):
    async def test():
        own = ((b"Vary", b"accept-encoding"), (b"Set-Cookie", b"session=1"))
        headers = [(b"vary", b"origin"), (b"set-cookie", b"lb=7")]
        async with Server(arm, text(b"", *own), headers=headers) as server:
            lines = (await server.ask(LAST)).lower().split(b"\r\n")
            assert [line for line in lines if line.startswith((b"vary", b"set-cookie"))] == [
                b"vary: origin",
                b"set-cookie: lb=7",
                b"vary: accept-encoding",
                b"set-cookie: session=1",
            ]

    run(loop, test())


@pytest.mark.ringloop_only
def test_default_fields(arm, loop):
    headers = [(b"Server", b"name"), (b"X-One", b"1"), (b"x-one", b"2")]

    async def test():
        async with Server(arm, text(b""), headers=headers) as server:
            response = (await server.ask(LAST)).lower()
            assert (b"server: name\r\n" in response, b"x-one: 1\r\nx-one: 2\r\n" in response) == (True, True)
            assert response.count(b"\r\ndate: ") == 1
        async with Server(arm, text(b""), headers=[(b"server", b"one"), (b"Server", b"two")]) as server:
            assert b"server: one\r\nserver: two\r\n" in (await server.ask(LAST)).lower()
        async with Server(arm, text(b""), date_header=False) as server:
            response = (await server.ask(LAST)).lower()
            assert (b"date" in response, b"server" in response) == (False, False)
        for wrong in [(b"a b", b"c"), (b"a", b"b\r\n"), (b"", b"c")]:
            with pytest.raises(ValueError, match="invalid HTTP header"):
                Server(arm, text(b""), headers=[wrong]).make_service()

    run(loop, test())


# -- Order ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_slow", [False, True])
def test_pipelined_requests_are_answered_one_after_the_other(arm, loop, is_slow):
    running = []

    async def application(scope, receive, send):
        running.append(1)
        assert len(running) == 1
        if is_slow:
            await asyncio.sleep(0)
        running.pop()
        await answer(send, scope["path"].encode())

    async def test():
        async with Server(arm, application) as server, server.client() as client:
            paths = [b"/%d" % number for number in range(100)]
            client.write(b"".join(b"GET %b HTTP/1.1\r\nHost: a\r\n\r\n" % path for path in paths))
            for path in paths:
                assert (await client.response())[2] == path

    run(loop, test())


def test_the_next_request_does_not_wait_for_what_is_done_after_the_response(arm, loop):
    may_end = asyncio.Event()
    ended = []

    async def application(scope, receive, send):
        await answer(send, scope["path"].encode())
        if scope["path"] == "/1":
            await may_end.wait()
            assert await receive() == {"type": "http.disconnect"}
            with pytest.raises(RuntimeError, match="after response already completed"):
                await send({"type": "http.response.body"})
            ended.append(1)

    async def test():
        async with Server(arm, application) as server, server.client() as client:
            client.write(GET.replace(b"/ ", b"/1 ", 1) + GET)
            assert (await client.response())[2] == b"/1"
            assert (await client.response())[2] == b"/"
            may_end.set()
            while not ended:
                await asyncio.sleep(0)

    run(loop, test())


def test_contexts_do_not_leak(arm, loop):
    """uvicorn #2167, #3158: a request must not see what another one has set."""
    variable = contextvars.ContextVar("variable", default="nothing")
    seen = []

    async def application(scope, receive, send):
        seen.append(variable.get())
        variable.set(scope["path"])
        await body_of(receive)
        await answer(send)
        await asyncio.sleep(0)

    async def test():
        variable.set("server")
        async with Server(arm, application) as server, server.client() as client:
            variable.set("later")
            client.write(GET + GET + SIZED[:-5])
            await client.response()
            await client.response()
            await asyncio.sleep(0)
            client.write(SIZED[-5:] + GET + SIZED)
            for _ in range(3):
                await client.response()

    if arm == "asyncio":
        pytest.skip("uvicorn has both defects")
    run(loop, test())
    assert seen == ["server"] * 5


@pytest.mark.ringloop_only
def test_each_request_has_a_task_of_its_own(arm, loop):
    tasks = []

    async def application(scope, receive, send):
        tasks.append(asyncio.current_task())
        async with asyncio.timeout(support.PATIENCE_S):
            await asyncio.sleep(0)
        async with asyncio.TaskGroup() as group:
            group.create_task(answer(send))

    async def test():
        async with Server(arm, application) as server, server.client() as client:
            client.write(GET + GET)
            await client.response()
            await client.response()
            await asyncio.sleep(0)

    run(loop, test())
    assert len(set(tasks)) == 2
    assert all(isinstance(task, asyncio.Task) and task.done() for task in tasks)


@pytest.mark.ringloop_only
@pytest.mark.without_debug_mode
def test_the_first_step_runs_at_once(arm, loop):
    """A request that an application can answer without waiting takes one turn."""
    order = []

    async def application(scope, receive, send):
        order.append(scope["path"])
        await answer(send)

    async def test():
        async with Server(arm, application) as server, server.client() as client:
            client.write(GET)
            await client.response()
            assert server.service.active == 0
            loop.set_task_factory(lambda loop, coroutine, **options: asyncio.Task(coroutine, loop=loop, **options))
            client.write(GET)
            await client.response()
            loop.set_task_factory(None)

    run(loop, test())
    assert order == ["/", "/"]


# -- Errors -----------------------------------------------------------------------------------------------------------


def failing(*messages, error=None):
    """Return an application that sends these messages and then fails, or just ends."""

    async def application(scope, receive, send):
        for message in messages:
            await send(message)
        if error is not None:
            raise error

    return application


START = {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]}
EXCEPTION = "Exception in ASGI application\n"


@pytest.mark.parametrize(
    ("application", "status", "message"),
    [
        (failing(error=ValueError("no")), b"500", EXCEPTION),
        (failing(error=asyncio.CancelledError()), b"500", EXCEPTION),
        (failing(), b"500", "ASGI callable returned without starting response."),
        (failing(START), b"200", "ASGI callable returned without completing response."),
        (failing(START, error=ValueError("no")), b"200", EXCEPTION),
        (failing({"type": "http.response.body"}), b"500", EXCEPTION),
        (failing({"type": "other"}), b"500", EXCEPTION),
        (failing(START, START), b"200", EXCEPTION),
        (failing(START, {"type": "http.response.body", "body": b"123456"}), b"200", EXCEPTION),
        (failing(START, {"type": "http.response.body", "body": b"1234"}), b"200", EXCEPTION),
    ],
)
def test_applications_that_fail(arm, loop, errors, application, status, message):
    async def test():
        async with Server(arm, application) as server:
            response = await server.ask(GET)
            assert response.startswith(b"HTTP/1.1 " + status)
            assert response.endswith(b"\r\n\r\nInternal Server Error") == (status == b"500")

    run(loop, test())
    assert errors() == [message]


@pytest.mark.parametrize("parts", [(b"1234",), (b"1", b"234"), (b"", b"1234"), (b"1234", b"")])
def test_a_body_that_is_too_short_is_sent_as_far_as_it_goes(arm, loop, errors, parts):
    bodies = [{"type": "http.response.body", "body": part, "more_body": True} for part in parts]
    del bodies[-1]["more_body"]

    async def test():
        async with Server(arm, failing(START, *bodies)) as server:
            assert (await server.ask(GET)).endswith(b"\r\n\r\n1234")

    run(loop, test())
    assert errors() == [EXCEPTION]


@pytest.mark.parametrize(
    ("headers", "error"),
    [
        ([(b"a b", b"c")], "Invalid HTTP header name."),
        ([(b"a\r\nb", b"c")], "Invalid HTTP header name."),
        ([(b"a", b"b\r\nc: d")], "Invalid HTTP header value."),
        ([(b"a", b"b\0")], "Invalid HTTP header value."),
    ],
)
def test_invalid_headers_are_refused(arm, loop, errors, headers, error):
    caught = []

    async def application(scope, receive, send):
        try:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
        except RuntimeError as found:
            caught.append(str(found))
            raise

    async def test():
        async with Server(arm, application) as server:
            assert b"c" not in (await server.ask(GET)).partition(b"\r\n\r\n")[0].split(b"\r\n")[1:2]

    run(loop, test())
    assert caught == [error]
    assert errors() == [EXCEPTION]


@pytest.mark.ringloop_only
@pytest.mark.parametrize(
    "message",
    [
        {"type": "http.response.start", "status": 200, "headers": [("a", "b")]},
        {"type": "http.response.start", "status": 200, "headers": [(b"a",)]},
        {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"-1")]},
        {"type": "http.response.start", "status": 200, "headers": 5},
        {"type": "http.response.start", "status": "200"},
        {"type": "http.response.start", "status": 99},
        {"type": "http.response.start", "status": 1 << 40},
        {"type": "http.response.start"},
        {"status": 200},
        None,
    ],
)
def test_messages_that_make_no_sense(arm, loop, errors, message):
    async def test():
        async with Server(arm, failing(message)) as server:
            assert (await server.ask(GET)).startswith(b"HTTP/1.1 500")
        async with Server(arm, text("a text")) as server:
            assert (await server.ask(GET)).startswith(b"HTTP/1.1 200")

    run(loop, test())
    assert errors() == [EXCEPTION, EXCEPTION]


def test_an_error_after_the_response_is_logged(arm, loop, errors):
    async def application(scope, receive, send):
        await answer(send, b"ok")
        raise ValueError("late")

    async def test():
        async with Server(arm, application) as server, server.client() as client:
            client.write(GET)
            assert (await client.response())[2] == b"ok"

    run(loop, test())
    assert errors() == [EXCEPTION]


# Only ringloop says which client it was, and what was wrong.
INVALID = re.compile(r"Invalid HTTP request received\.( Client 127\.0\.0\.1:\d+ gets 4\d\d: [a-zA-Z -]+)?")


def test_the_traceback_is_logged(arm, loop, errors, caplog):
    async def test():
        async with Server(arm, failing(error=ValueError("no"))) as server:
            await server.ask(GET)

    run(loop, test())
    (record,) = (record for record in caplog.records if record.name == LOGGER)
    frames = []
    traceback = record.exc_info[2]
    while traceback is not None:
        frames.append(traceback.tb_frame.f_code.co_name)
        traceback = traceback.tb_next
    assert frames[-1] == "application"
    del record, traceback
    assert errors() == [EXCEPTION]


@pytest.mark.parametrize(
    "request_bytes",
    [b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n", b"\x16\x03\x01" + bytes(100)],
)
def test_bad_requests(arm, loop, errors, request_bytes):
    async def test():
        async with Server(arm, text(b"never")) as server:
            response = await server.ask(request_bytes)
            assert response.startswith(b"HTTP/1.1 400 Bad Request\r\n")
            assert b"never" not in response

    run(loop, test())
    (error,) = errors()
    assert INVALID.fullmatch(error)


def test_a_bad_chunk_ends_the_connection(arm, loop, errors):
    bodies = []
    over = asyncio.Event()

    async def application(scope, receive, send):
        while (message := await receive())["type"] != "http.disconnect":
            bodies.append(message["body"])
        over.set()

    async def test():
        async with Server(arm, application) as server, server.client() as client:
            client.write(CHUNKED.partition(b"6;x")[0])
            while not bodies:
                await asyncio.sleep(0)
            client.write(b"xyz\r\n")
            assert (await client.rest()).startswith(b"HTTP/1.1 400")
            await over.wait()

    run(loop, test())
    assert b"".join(bodies) == b"hello"
    (error,) = errors()
    assert INVALID.fullmatch(error)


@pytest.mark.ringloop_only
def test_large_heads_are_refused(arm, loop, errors):
    async def test():
        async with Server(arm, text(b""), limit_head=1000) as server:
            request = b"GET / HTTP/1.1\r\nHost: a\r\nX: %b\r\n\r\n" % bytes(b"a" * 1000)
            assert (await server.ask(request)).startswith(b"HTTP/1.1 431")
            assert (await server.ask(LAST)).startswith(b"HTTP/1.1 200")

    run(loop, test())
    (error,) = errors()
    assert INVALID.fullmatch(error)


def test_too_many_connections(arm, loop, errors):
    async def test():
        async with Server(arm, text(b"ok"), limit_concurrency=2) as server, server.client() as one:
            one.write(GET)
            assert (await one.response())[2] == b"ok"
            assert (await server.ask(GET)).startswith(b"HTTP/1.1 503 Service Unavailable")
            while True:
                await asyncio.sleep(0)
                one.write(GET)
                line, _, _ = await one.response()
                if line == "HTTP/1.1 200 OK":
                    break

    if arm == "asyncio":
        run(loop, test())
        errors()
        return
    run(loop, test())
    assert set(errors()) == {"Exceeded concurrency limit."}


def test_upgrades_are_declined(arm, loop, errors):
    async def test():
        async with Server(arm, text(b"plain"), ws=False) as server, server.client() as client:
            for protocol in (b"websocket", b"other", b"websocket"):
                upgrade = b"\r\nConnection: upgrade\r\nUpgrade: " + protocol
                client.write(GET.replace(b"\r\n", upgrade + b"\r\n", 1))
                assert (await client.response())[2] == b"plain"

    run(loop, test())
    warnings = errors()
    assert "Unsupported upgrade request." in warnings
    # A client can't fill the log.
    assert arm == "asyncio" or len(warnings) == 1


# -- Clients that leave -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["close", "reset"])
def test_applications_hear_of_a_client_that_leaves(arm, loop, way):
    seen = []
    begun, over = asyncio.Event(), asyncio.Event()

    async def application(scope, receive, send):
        seen.append((await receive())["type"])
        await send({"type": "http.response.start", "status": 200})
        begun.set()
        seen.append((await receive())["type"])
        seen.append((await receive())["type"])
        # As in uvicorn, what is sent then goes nowhere.
        await send({"type": "http.response.body", "body": b"lost"})
        over.set()

    async def test():
        async with Server(arm, application) as server:
            async with server.client() as client:
                client.write(GET)
                await begun.wait()
                if way == "reset":
                    client.reset()
            await over.wait()

    run(loop, test())
    assert seen == ["http.request", "http.disconnect", "http.disconnect"]


def test_a_client_that_leaves_within_its_body(arm, loop):
    seen = []
    over = asyncio.Event()

    async def application(scope, receive, send):
        while (message := await receive())["type"] != "http.disconnect":
            seen.append(message["more_body"])
        over.set()

    async def test():
        async with Server(arm, application) as server:
            async with server.client() as client:
                client.write(SIZED[:-5])
                while not seen:
                    await asyncio.sleep(0)
            await over.wait()

    run(loop, test())
    assert set(seen) == {True}


def test_a_sender_that_waits_hears_of_a_client_that_leaves(arm, loop):
    over = asyncio.Event()

    async def sender(scope, receive, send):
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body", "body": bytes(50_000_000), "more_body": True})
        blocked.set()
        await send({"type": "http.response.body", "body": b"", "more_body": True})
        over.set()

    blocked = asyncio.Event()

    async def test():
        async with Server(arm, sender) as server:
            async with server.client() as client:
                client.writer.transport.pause_reading()
                client.write(GET)
                await blocked.wait()
                assert not over.is_set()
                client.reset()
            await over.wait()

    run(loop, test())


# -- Access log and proxies -------------------------------------------------------------------------------------------


def test_access_log(arm, loop):
    async def test():
        async with Server(arm, text(b"", status=404), log_access=True) as server, server.client() as client:
            host, port = client.writer.get_extra_info("sockname")
            for target in (b"/a%20b%C3%A9?c=d", b"/"):
                client.write(GET.replace(b"/ ", target + b" ", 1))
                await client.response()
            address = f"{host}:{port}"
            assert server.access == [
                (address, "GET", "/a%20b%C3%A9?c=d", "1.1", 404),
                (address, "GET", "/", "1.1", 404),
            ]

    run(loop, test())


@pytest.mark.parametrize(("settings", "status"), [({}, 500), ({"limit_concurrency": 0}, 503)])
def test_the_access_log_has_what_the_server_answers(arm, loop, caplog, settings, status):
    async def application(scope, receive, send):
        raise ValueError

    async def test():
        async with Server(arm, application, log_access=True, **settings) as server:
            assert str(status).encode() in (await server.ask(GET)).split(b"\r\n")[0]
            (entry,) = server.access
            assert entry[1:] == ("GET", "/", "1.1", status)

    run(loop, test())


@pytest.mark.ringloop_only
def test_proxies(arm, loop):
    seen = []

    def forwarded(scope):
        scope["client"] = ("1.2.3.4", 0)
        scope["scheme"] = "https"

    async def application(scope, receive, send):
        seen.append((scope["client"], scope["scheme"]))
        await answer(send)

    async def test():
        settings = {"forwarded": forwarded, "log_access": True}
        async with Server(arm, application, **settings) as server, server.client() as client:
            address = client.writer.get_extra_info("sockname")
            for field in (b"", b"X-Forwarded-For: x\r\n", b"x-forwarded-PROTO: x\r\n", b""):
                client.write(GET[:-2] + field + b"\r\n")
                await client.response()
            there, here = (("1.2.3.4", 0), "https"), (address, "http")
            assert seen == [here, there, there, here]
            assert [row[0] for row in server.access][1] == "1.2.3.4:0"

    run(loop, test())
