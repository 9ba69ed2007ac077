"""The service around the requests: deadlines, ends, memory, other kinds of connections. uvicorn has none of this, or another way."""

import asyncio
import collections
import contextlib
import gc
import inspect
import re
import socket
import ssl
import sys
import time
import types
import weakref

import pytest

import support
from ringloop import _core
from serving import LOGGER, Client, Server, answer, body_of, make_service, run, text
from test_http1 import CHUNKED, GET, LAST, SIZED
from tls_support import tls_contexts

pytestmark = pytest.mark.ringloop_only


# -- receive and send -------------------------------------------------------------------------------------------------


def within_request(arm, loop, body, request=GET):
    """Run `body(receive, send)` within a request."""
    outcome = []

    async def application(scope, receive, send):
        try:
            outcome.append(await body(receive, send))
        except BaseException as error:
            outcome.append(error)
        await answer(send)

    async def test():
        async with Server(arm, application) as server, server.client() as client:
            client.write(request)
            await client.response()

    run(loop, test())
    (result,) = outcome
    if isinstance(result, BaseException):
        raise result
    return result


MESSAGE = {"type": "http.request", "body": b"hello world", "more_body": False}


@pytest.mark.parametrize(
    "way",
    [
        lambda receive: receive(),
        lambda receive: asyncio.create_task(receive()),
        lambda receive: asyncio.ensure_future(receive()),
        lambda receive: asyncio.wait_for(receive(), support.PATIENCE_S),
        lambda receive: asyncio.shield(receive()),
    ],
)
def test_awaiting_receive(arm, loop, way):
    async def body(receive, send):
        return await way(receive)

    assert within_request(arm, loop, body, SIZED) == MESSAGE


@pytest.mark.exact
@pytest.mark.parametrize("back", ["close", "send"])
def test_a_future_that_comes_back_to_receive_finds_it_running(arm, loop, back):
    """It could end the call in the middle of a step."""
    found, armed = [], []

    class Future(asyncio.Future):
        def done(self):
            if armed:
                call = armed.pop()
                with pytest.raises(ValueError, match="already executing"):
                    getattr(call, back)(*([None] if back == "send" else []))
                found.append(back)
            return super().done()

    async def body(receive, send):
        await receive()
        base = type(loop)
        loop.__class__ = type("Derived", (base,), {"create_future": lambda self: Future(loop=self)})
        call = receive()
        future = call.send(None)
        loop.__class__ = base
        assert type(future) is Future
        future.set_result(None)
        armed.append(call)
        call.send(None)
        call.close()
        return found

    assert within_request(arm, loop, body) == [back]


def test_groups_of_receive_and_send(arm, loop):
    async def body(receive, send):
        first, second = await asyncio.gather(receive(), asyncio.sleep(0))
        async with asyncio.TaskGroup() as group:
            task = group.create_task(receive())
            await asyncio.sleep(0)
            assert "receive" in repr(task)
            assert task.get_stack() == []
            task.cancel()
        assert task.cancelled()
        done, _ = await asyncio.wait({asyncio.ensure_future(asyncio.sleep(0))})
        assert done
        return first, second

    assert within_request(arm, loop, body, SIZED) == (MESSAGE, None)


@pytest.mark.parametrize("status", [200, 204, 404])
def test_connect_opens_no_tunnel(arm, loop, status, caplog):
    async def application(scope, receive, send):
        assert scope["method"] == "CONNECT"
        await answer(send, b"", status)

    async def test():
        async with Server(arm, application) as server:
            return await server.ask(b"CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\nConnection: close\r\n\r\n")

    expected = status if status == 404 else 500
    assert run(loop, test()).startswith(b"HTTP/1.1 %d " % expected)
    assert ("invalid status" in caplog.text) == (status != 404)


def test_a_task_that_is_cancelled_before_it_starts_takes_no_message(arm, loop):
    async def body(receive, send):
        task = asyncio.create_task(receive())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await receive()

    assert within_request(arm, loop, body, SIZED) == MESSAGE


def test_a_wait_that_is_cancelled(arm, loop):
    async def body(receive, send):
        assert await receive() == MESSAGE
        waiting = receive()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(waiting, 0.01)
        with pytest.raises(RuntimeError, match="cannot reuse already awaited coroutine"):
            await waiting
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await receive()
        return "over"

    assert within_request(arm, loop, body, SIZED) == "over"


def test_one_that_is_awaited_already(arm, loop):
    async def body(receive, send):
        await receive()
        waiting = receive()
        future = waiting.send(None)
        with pytest.raises(RuntimeError, match="coroutine is being awaited already"):
            await waiting
        with pytest.raises(RuntimeError, match="coroutine is being awaited already"):
            waiting.send(None)
        waiting.close()
        with pytest.raises(RuntimeError, match="cannot reuse already awaited coroutine"):
            waiting.throw(ValueError())
        return future.done()

    assert within_request(arm, loop, body) is False


def test_several_wait_for_the_same_message(arm, loop):
    seen = []

    async def application(scope, receive, send):
        tasks = [asyncio.create_task(receive()) for _ in range(3)]
        await asyncio.sleep(0)
        begun.set()
        seen.extend(await asyncio.gather(*tasks))
        await answer(send)

    begun = asyncio.Event()

    async def test():
        async with Server(arm, application) as server:
            async with server.client() as client:
                client.write(SIZED[:-11])
                await begun.wait()
                client.write(b"hello world")
                while server.service.active and not seen:
                    await asyncio.sleep(0)
                    if server.service.requests:
                        break
            while not seen:
                await asyncio.sleep(0)

    run(loop, test())
    assert sorted(message["type"] for message in seen) == ["http.disconnect", "http.disconnect", "http.request"]


def test_several_who_send_are_served_in_order(arm, loop):
    """Also when `send` gives way, which it does once in `SENT_MAX` messages. A task that is cancelled there has sent its message."""
    count = 3000

    async def application(scope, receive, send):
        def part(number):
            return send({"type": "http.response.body", "body": b"%04d" % number, "more_body": number + 1 < count})

        await send({"type": "http.response.start", "status": 200})
        tasks = [asyncio.create_task(part(number)) for number in range(count)]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        done.append(sum(map(bool, await asyncio.gather(*tasks, return_exceptions=True))))

    done = []

    async def test():
        async with Server(arm, application) as server, server.client() as client:
            client.write(GET)
            assert (await client.response())[2] == b"".join(b"%04d" % number for number in range(count))

    run(loop, test())
    assert 0 < sum(done) < 10


def test_what_receive_and_send_are(arm, loop):
    async def body(receive, send):
        for channel, call in ((receive, receive()), (send, send({"type": "none"}))):
            assert inspect.isawaitable(call)
            assert asyncio.iscoroutine(call)
            assert inspect.iscoroutinefunction(channel) == (sys.version_info >= (3, 12))
            if sys.version_info < (3, 14):
                assert asyncio.iscoroutinefunction(channel)
            assert call.__name__ == call.__qualname__ == channel.__name__
            assert inspect.getcoroutinestate(call) in (inspect.CORO_CREATED, inspect.CORO_CLOSED)
            assert repr(call).startswith(f"<coroutine object {channel.__name__} at 0x")
            with pytest.raises(ZeroDivisionError):
                call.throw(ZeroDivisionError)
            with pytest.raises(RuntimeError, match="cannot reuse"):
                call.send(None)
            call.close()
            with pytest.raises(RuntimeError, match="cannot reuse"):
                await call
            with pytest.raises(TypeError):
                channel(1, 2)
            with pytest.raises(TypeError):
                channel(other=1)
            with pytest.raises(TypeError):
                type(channel)()
            with pytest.raises(TypeError):
                type(call)()
        with pytest.raises(TypeError, match="exceptions must be"):
            receive().throw(1)
        call = receive()
        with pytest.raises(TypeError):
            call.throw()
        call.close()
        named = send(message={"type": "none"})
        with pytest.raises(RuntimeError, match=r"Expected ASGI message 'http\.response\.start', but got 'none'"):
            await named
        stepped = receive()
        with pytest.raises(StopIteration) as stop:
            stepped.send(None)
        return stop.value.value

    assert within_request(arm, loop, body, SIZED) == MESSAGE


def test_one_that_is_never_awaited_warns(arm, loop):
    async def body(receive, send):
        with pytest.warns(RuntimeWarning, match="coroutine 'receive' was never awaited"):
            receive()
        with pytest.warns(RuntimeWarning, match="coroutine 'send' was never awaited"):
            send({})

    within_request(arm, loop, body)


def test_the_coroutine_of_a_requests_task(arm, loop):
    seen = []

    async def application(scope, receive, send):
        task = asyncio.current_task()
        coroutine = task.get_coro()
        assert asyncio.iscoroutine(coroutine)
        assert inspect.getcoroutinestate(coroutine) == inspect.CORO_RUNNING
        with pytest.raises(ValueError, match="already executing"):
            coroutine.send(None)
        with pytest.raises(ValueError, match="already executing"):
            coroutine.close()
        loop.call_soon(look, task)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await answer(send)
        task.add_done_callback(lambda task: seen.append(task.result()))
        loop.call_soon(ended, coroutine)

    def look(task):
        (frame,) = task.get_stack()
        seen.append(frame.f_code.co_name)
        coroutine = task.get_coro()
        seen.append(inspect.getcoroutinestate(coroutine))
        with pytest.raises(AttributeError):
            coroutine.nothing  # noqa: B018

    def ended(coroutine):
        with pytest.raises(RuntimeError, match="cannot reuse"):
            coroutine.send(None)
        coroutine.close()
        seen.append(inspect.getcoroutinestate(coroutine))

    async def test():
        async with Server(arm, application) as server, server.client() as client:
            client.write(GET)
            await client.response()
            while len(seen) < 4:
                await asyncio.sleep(0)

    run(loop, test())
    assert seen[:2] == ["application", inspect.CORO_SUSPENDED]
    assert sorted(map(str, seen[2:])) == [inspect.CORO_CLOSED, "None"]


def test_applications_that_are_no_coroutine_functions(arm, loop):
    class Awaitable:
        def __init__(self, coroutine):
            self.coroutine = coroutine

        def __await__(self):
            return self.coroutine.__await__()

    def application(scope, receive, send):
        assert asyncio.current_task() is not None
        return Awaitable(text(b"ok")(scope, receive, send))

    async def test():
        async with Server(arm, application) as server:
            assert (await server.ask(LAST)).endswith(b"ok")
        async with Server(arm, lambda scope, receive, send: 1) as server:
            assert (await server.ask(LAST)).startswith(b"HTTP/1.1 500")

    run(loop, test())


def test_a_task_factory(arm, loop):
    made = []

    def factory(loop, coroutine, **options):
        made.append(asyncio.Task(coroutine, loop=loop, **options))
        return made[-1]

    async def test():
        async with Server(arm, text(b"ok")) as server, server.client() as client:
            loop.set_task_factory(factory)
            client.write(GET + GET)
            assert (await client.response())[2] == (await client.response())[2] == b"ok"
            loop.set_task_factory(None)

    run(loop, test())
    assert len(made) == 2


def test_a_task_that_is_cancelled_before_its_first_step(arm, loop, caplog):
    def factory(loop, coroutine, **options):
        task = asyncio.Task(coroutine, loop=loop, **options)
        task.cancel()
        return task

    async def test():
        async with Server(arm, text(b"never")) as server, server.client() as client:
            loop.set_task_factory(factory)
            client.write(GET)
            answer = await client.rest()
            loop.set_task_factory(None)
            assert answer.startswith(b"HTTP/1.1 500")

    run(loop, test())
    assert [record.getMessage() for record in caplog.records if record.name == LOGGER] == [
        "Exception in ASGI application\n"
    ]


def test_the_end_of_an_application_whose_client_was_refused_is_not_reported(arm, loop, caplog):
    """A bad chunk ends the connection while something is unsent."""

    async def application(scope, receive, send):
        await send({"type": "http.response.start", "status": 200})
        begun.set()
        for _ in range(2):
            await send({"type": "http.response.body", "body": bytes(10_000_000), "more_body": True})
        over.set()

    begun = asyncio.Event()
    over = asyncio.Event()

    async def test():
        async with Server(arm, application) as server, server.client() as client:
            client.writer.transport.pause_reading()
            client.write(CHUNKED.split(b"5\r\n")[0])
            await begun.wait()
            client.write(b"bad chunk\r\n")
            await over.wait()
            client.reset()

    run(loop, test())
    (message,) = [record.getMessage() for record in caplog.records if record.name == LOGGER]
    assert re.fullmatch(
        r"Invalid HTTP request received\. Client 127\.0\.0\.1:\d+ gets 400: invalid chunk size", message
    )


@pytest.mark.parametrize("may_start", [False, True])
def test_a_task_factory_that_wraps_the_coroutine(arm, loop, caplog, may_start):
    """As Sentry's: what is cancelled before its first step never steps the request."""

    def factory(loop, coroutine, **options):
        async def wrap():
            return await coroutine

        task = asyncio.Task(wrap(), loop=loop, **options)
        if not may_start:
            task.cancel()
        return task

    async def test():
        async with Server(arm, text(b"ok", (b"connection", b"close"))) as server, server.client() as client:
            loop.set_task_factory(factory)
            client.write(GET)
            answer = await client.rest()
            loop.set_task_factory(None)
            assert answer.startswith(b"HTTP/1.1 200" if may_start else b"HTTP/1.1 500")
            assert server.service.active == 0
            await until_closed(server)

    run(loop, test())
    assert len([record for record in caplog.records if record.name == LOGGER]) == (not may_start)


class RaisingLogger:
    """A logger with a filter that raises."""

    def error(self, *_, **__):
        raise ValueError("log")

    warning = error


@pytest.mark.parametrize(
    ("request_bytes", "settings", "status"),
    [
        (GET, {}, b"500"),
        (b"nonsense\r\n\r\n", {}, b"400"),
        (GET, {"limit_concurrency": 0}, b"503"),
    ],
)
def test_a_logger_that_raises(arm, loop, request_bytes, settings, status):
    """The client gets its answer, and the connection ends."""

    async def application(scope, receive, send):
        raise ValueError("application")

    async def test():
        loop.set_exception_handler(lambda _, context: failures.append(context["exception"]))
        async with Server(arm, application, logger=RaisingLogger(), **settings) as server:
            assert (await server.ask(request_bytes)).startswith(b"HTTP/1.1 " + status)
            await until_closed(server)
            gc.collect()
            await asyncio.sleep(0)

    failures = []
    run(loop, test())
    assert [str(error) for error in failures] == ["log"]


def test_default_fields_that_a_response_has(arm, loop):
    """They are sent as well, unless there can be only one."""

    async def test():
        names = (b"X-A", b"Server", b"Date")
        headers = [(name, b"default") for name in (*names, b"x-b")]
        own = text(b"ok", *((name.title(), b"own") for name in names))
        async with Server(arm, own, headers=headers) as server, server.client() as client:
            client.write(GET)
            head = (await client.reader.readuntil(b"\r\n\r\n")).lower()
            lines = [line for line in head.split(b"\r\n") if line.startswith((b"x-", b"server", b"date"))]
            assert lines == [b"x-a: default", b"x-b: default", b"x-a: own", b"server: own", b"date: own"]
        for name in (b"Content-Length", b"transfer-encoding"):
            with pytest.raises(ValueError, match="length"):
                make_service(loop, text(b"ok"), headers=[(name, b"1")])

    run(loop, test())


def test_refusals_have_the_default_fields(arm, loop):
    async def broken(scope, receive, send):
        raise RuntimeError

    async def test():
        async with Server(arm, broken, headers=[(b"x-a", b"default"), (b"server", b"me")]) as server:
            for request, status in (
                (b"nonsense\r\n\r\n", 400),
                (GET.replace(b"/", b"/" + 70_000 * b"x", 1), 431),
                (GET, 500),
            ):
                answer = (await server.ask(request)).lower()
                assert answer.startswith(b"http/1.1 %d" % status)
                assert b"\r\nx-a: default\r\n" in answer
                assert b"\r\nserver: me\r\n" in answer

    run(loop, test())


def test_a_long_request_line_and_many_fields(arm, loop):
    async def test():
        async with Server(arm, text(b"ok"), limit_head=100_000) as server:
            target = b"/?" + 90_000 * b"q"
            assert (await server.ask(LAST.replace(b"/", target, 1))).startswith(b"HTTP/1.1 200")
            fields = b"".join(b"x-%d: 1\r\n" % number for number in range(250))
            assert (await server.ask(LAST[:-2] + fields + b"\r\n")).startswith(b"HTTP/1.1 200")

    run(loop, test())


# -- Deadlines --------------------------------------------------------------------------------------------------------


async def forever(scope, receive, send):
    while (await receive())["type"] != "http.disconnect":
        pass


@pytest.mark.parametrize(
    ("settings", "request_bytes", "status"),
    [
        ({"timeout_keep_alive": 0.05}, GET, b"HTTP/1.1 200"),
        ({"timeout_head": 0.05}, GET[:-2], b"HTTP/1.1 408"),
        ({"timeout_head": 0.05}, b"", b""),
        ({"timeout_body": 0.05}, SIZED[:-3], b"HTTP/1.1 408"),
    ],
)
def test_clients_that_are_too_slow(arm, loop, settings, request_bytes, status):
    async def application(scope, receive, send):
        if scope["method"] == "POST":
            await forever(scope, receive, send)
        await answer(send)

    async def test():
        settings_off = dict.fromkeys(("timeout_keep_alive", "timeout_head", "timeout_body", "timeout_write"))
        async with Server(arm, application, **{**settings_off, **settings}) as server, server.client() as client:
            client.write(request_bytes)
            response = await client.rest()
            assert response.startswith(status)
            assert bool(response) == bool(status)

    run(loop, test())


def test_a_deadline_is_that_of_the_last_request(arm, loop):
    """However late this process runs, the connection ends only when the last request is older than the deadline."""
    timeout = 0.3
    answered = []

    async def application(scope, receive, send):
        answered.append(loop.time())
        await answer(send, b"ok")

    async def requests_in_time(server):
        """Return whether ten requests were in time; this process may have stood still."""
        async with server.client() as client:
            try:
                for _ in range(10):
                    client.write(GET)
                    assert (await client.response())[2] == b"ok"
                    await asyncio.sleep(timeout / 5)
                assert await client.rest() == b""
                return True
            except (asyncio.IncompleteReadError, ConnectionError):
                return False
            finally:
                assert loop.time() - answered[-1] >= timeout - 0.01

    async def test():
        async with Server(arm, application, timeout_keep_alive=timeout, timeout_head=timeout) as server:
            while not await requests_in_time(server):
                pass

    run(loop, test())


def test_a_deadline_for_a_body_ends_with_the_wait_for_it(arm, loop):
    """The next connection's deadline is later: when it has expired, the first one's would have."""

    async def application(scope, receive, send):
        if scope["path"] == "/patient":
            await forever(scope, receive, send)
        waiting = receive()
        waiting.send(None)
        waiting.close()
        given_up.set()
        await may_answer.wait()
        await answer(send, b"ok")

    given_up = asyncio.Event()
    may_answer = asyncio.Event()

    async def test():
        async with (
            Server(arm, application, timeout_body=0.2) as server,
            server.client() as client,
            server.client() as later,
        ):
            client.write(SIZED[:-11])
            await given_up.wait()
            later.write(SIZED[:-11].replace(b"/", b"/patient", 1))
            assert (await later.rest()).startswith(b"HTTP/1.1 408")
            may_answer.set()
            assert (await client.response())[2] == b"ok"

    run(loop, test())


def test_an_application_may_take_its_time(arm, loop):
    timeout = 0.1

    async def application(scope, receive, send):
        await asyncio.sleep(3 * timeout)
        assert (await body_of(receive))[0] == b"hello world"
        await answer(send, b"ok")

    async def attempt(server):
        """Return whether the request was in time; this process may have stood still before it was sent."""
        begun = loop.time()
        async with server.client() as client:
            client.write(SIZED)
            took = loop.time() - begun
            answered = (await client.rest()).endswith(b"ok")
        assert answered or took > timeout / 2
        return answered

    async def test():
        settings = dict.fromkeys(("timeout_keep_alive", "timeout_head", "timeout_body"), timeout)
        async with Server(arm, application, **settings) as server:
            while not await attempt(server):
                pass

    run(loop, test())


@pytest.mark.parametrize("ends", [False, True])
def test_a_peer_that_does_not_read(arm, loop, ends):
    async def application(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"connection", b"close")]})
        await send({"type": "http.response.body", "body": bytes(50_000_000), "more_body": not ends})
        if not ends:
            await forever(scope, receive, send)
        over.set()

    over = asyncio.Event()

    async def test():
        async with Server(arm, application, timeout_write=0.1) as server, server.client() as client:
            client.writer.transport.pause_reading()
            client.write(GET)
            await over.wait()
            await support.until(lambda: not server.service.connections)

    run(loop, test())


@pytest.mark.parametrize("way", ["close", "reset"])
def test_a_client_that_leaves_after_more_requests_than_are_kept(arm, loop, way):
    """While reading is paused nobody sees the peer's end; the application waits for it."""

    async def application(scope, receive, send):
        await receive()
        begun.set()
        seen.append((await receive())["type"])

    begun = asyncio.Event()
    seen = []

    async def test():
        async with Server(arm, application, timeout_body=0.05) as server:
            async with server.client() as client:
                client.write(GET * 8000)
                await begun.wait()
                if way == "reset":
                    client.reset()
            await until_closed(server)

    run(loop, test())
    assert seen == ["http.disconnect"]


def small_buffers(server):
    """Let connections to a server keep little in the kernel."""
    for listener in server.listener.sockets:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)


async def small_client(server):
    """Return a connection whose peer's bytes soon stay unsent, because nobody reads them."""
    small_buffers(server)
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, (support.HOST, server.port))
    return sock


def test_a_pipelined_request_that_cannot_be_started_ends_its_connection(arm, loop):
    """It is started in a callback of the loop, whose error would leave the client waiting."""
    errors = []

    def factory(loop, coroutine, **options):
        loop.set_task_factory(refuse)
        return asyncio.Task(coroutine, loop=loop, **options)

    def refuse(loop, coroutine, **options):
        raise ZeroDivisionError("no more tasks")

    async def slow(scope, receive, send):
        await asyncio.sleep(0)
        await text(b"ok")(scope, receive, send)

    async def test():
        async with Server(arm, slow) as server, server.client() as client:
            loop.set_task_factory(factory)
            client.write(GET + GET)
            answers = await client.rest()
            loop.set_task_factory(None)
            assert answers.count(b"HTTP/1.1 ") == 1
            await until_closed(server)

    loop.set_exception_handler(lambda _, context: errors.append(type(context["exception"])))
    run(loop, test())
    assert errors == [ZeroDivisionError]


async def until_closed(server):
    await support.until(lambda: not server.service.connections and not server.service.active)


@pytest.mark.parametrize("shuts_down", [False, True])
def test_a_peer_that_does_not_read_the_little_that_is_unsent(arm, loop, shuts_down):
    """Less than the high-water mark is unsent, so that the transport never asks to pause."""
    heard = []

    async def application(scope, receive, send):
        await receive()
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body", "body": bytes(60_000), "more_body": True})
        begun.set()
        heard.append((await receive())["type"])

    begun = asyncio.Event()

    async def test():
        async with Server(arm, application, timeout_write=0.1) as server:
            with await small_client(server) as sock:
                await loop.sock_sendall(sock, GET)
                await begun.wait()
                if shuts_down:
                    sock.shutdown(socket.SHUT_WR)
                await until_closed(server)

    run(loop, test())
    assert heard == ["http.disconnect"]


def test_a_peer_that_stops_reading_the_end_of_a_response(arm, loop):
    """The transport says that the protocol may write again: there is still something unsent, and a deadline."""

    async def test():
        async with Server(arm, text(bytes(500_000), (b"connection", b"close")), timeout_write=0.1) as server:
            with await small_client(server) as sock:
                await loop.sock_sendall(sock, GET)
                received = 0
                while received < 470_000:
                    received += len(await loop.sock_recv(sock, 4096))
                await until_closed(server)

    run(loop, test())


# -- Clients that go on sending after their last response --------------------------------------------------------------


def small_window():
    """Return a socket that is to be connected, and takes little before it is read."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    sock.setblocking(False)
    return sock


async def read_all(loop, sock):
    received = b""
    while piece := await loop.sock_recv(sock, 65536):
        received += piece
    return received


@pytest.mark.parametrize("length", [1000, 200_000])
@pytest.mark.parametrize(
    ("request_bytes", "fails"), [(GET, False), (LAST, False), (b"GET / HTTP/1.0\r\n\r\n", False), (GET, True)]
)
def test_who_goes_on_sending_gets_all_of_the_last_response(arm, loop, errors, length, request_bytes, fails):
    """If data met a closed socket, the kernel would reset the connection, and drop what it has yet to send."""
    answered = asyncio.Event()

    async def application(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"connection", b"close")]})
        await send({"type": "http.response.body", "body": length * b"x", "more_body": fails})
        answered.set()
        assert not fails, "as the test asks for"

    async def test():
        settings = {"timeout_linger": 10.0 * support.PATIENCE_S, "timeout_write": None}
        async with Server(arm, application, **settings) as server:
            with small_window() as sock:
                await loop.sock_connect(sock, (support.HOST, server.port))
                await loop.sock_sendall(sock, request_bytes)
                await answered.wait()
                for _ in range(10):
                    await loop.sock_sendall(sock, 100_000 * b"y")
                received = await read_all(loop, sock)
                assert received.count(b"x") == length
                # It may go on, and what it sends is dropped.
                await loop.sock_sendall(sock, 100_000 * b"y")
                assert server.service.connections == 1
            await until_closed(server)
            assert server.service.requests == 1

    run(loop, test())
    assert len(errors()) == fails


@pytest.mark.parametrize("sends", [False, True])
@pytest.mark.parametrize("settings", [{}, {"limit_concurrency": 1}])
def test_who_never_leaves_after_the_last_response_is_cut_off(arm, loop, caplog, settings, sends):
    async def test():
        async with Server(arm, text(b"ok"), timeout_linger=0.1, **settings) as server, server.client() as client:
            client.write(LAST)
            assert (await client.rest()).endswith(b"Service Unavailable" if settings else b"ok")
            while server.service.connections:
                if sends:
                    client.write(100_000 * b"y")
                    try:
                        await client.writer.drain()
                    except ConnectionError:
                        break
                await asyncio.sleep(0)
            await until_closed(server)

    run(loop, test())


def test_the_time_to_leave_begins_when_all_is_sent(arm, loop):
    async def test():
        settings = {"timeout_linger": 0.05, "timeout_write": None}
        async with Server(arm, text(bytes(500_000)), **settings) as server:
            with await small_client(server) as sock:
                await loop.sock_sendall(sock, LAST)
                # The time is over before the client has read: its data is taken all the same.
                await asyncio.sleep(0.3)
                for _ in range(100):
                    await loop.sock_sendall(sock, 100_000 * b"y")
                assert server.service.connections == 1
                support.reset(sock)
            await until_closed(server)

    run(loop, test())


def test_who_does_not_leave_does_not_count_as_a_client(arm, loop):
    """A server that shuts down does not wait for it, either."""

    async def test():
        settings = {"timeout_linger": 10.0 * support.PATIENCE_S, "limit_concurrency": 2}
        server = Server(arm, text(b"ok"), **settings)
        async with contextlib.AsyncExitStack() as stack, server:
            for _ in range(3):
                client = await stack.enter_async_context(server.client())
                client.write(LAST)
                assert (await client.rest()).startswith(b"HTTP/1.1 200 ")
            assert server.service.connections == 3
            async with server.client() as one, server.client() as other:
                one.write(GET)
                assert (await one.response())[0] == "HTTP/1.1 503 Service Unavailable"
                other.write(GET)
                await other.response()

    run(loop, test())


# -- The end ----------------------------------------------------------------------------------------------------------


def test_shutting_down(arm, loop):
    may_end = asyncio.Event()
    begun = asyncio.Event()

    async def application(scope, receive, send):
        if scope["path"] == "/slow":
            begun.set()
            await may_end.wait()
        await answer(send, b"ok")

    async def test():
        async with (
            Server(arm, application) as server,
            server.client() as idle,
            server.client() as busy,
            server.client() as fresh,
        ):
            idle.write(GET)
            await idle.response()
            busy.write(GET.replace(b"/ ", b"/slow ", 1) + GET)
            await begun.wait()
            while server.service.connections < 3:
                await asyncio.sleep(0)
            closed = server.service.wait_closed()
            server.service.shut_down()
            assert await idle.rest() == b""
            assert not closed.done()
            # Those who have just connected get time for a request.
            fresh.write(GET)
            assert (await fresh.response())[1]["connection"] == "close"
            assert await server.ask(b"") == b""
            may_end.set()
            line, fields, body = await busy.response()
            assert (line, fields["connection"], body) == ("HTTP/1.1 200 OK", "close", b"ok")
            assert await busy.rest() == b""
            await closed
            await server.service.wait_closed()
            assert server.service.requests == 3

    run(loop, test())


@pytest.mark.parametrize("begun", [b"", b"GET / HT", GET + b"GET / HT"])
def test_shutting_down_does_not_wait_for_the_rest_of_a_head(arm, loop, begun):
    async def test():
        off = dict.fromkeys(("timeout_keep_alive", "timeout_head"))
        async with Server(arm, text(b"ok"), **off) as server, server.client() as client:
            client.write(begun)
            while server.service.connections == 0 or server.service.metrics()["bytes_received"] < len(begun):
                await asyncio.sleep(0)
            server.service.shut_down()
            await server.service.wait_closed()

    run(loop, test())


def test_protocols_are_awaited_until_they_have_connections_or_never_will(arm, loop):
    server_context, _ = tls_contexts()

    class Secure(Server):
        def listening(self):
            return {"ssl": server_context}

    async def test():
        async with Server(arm, text(b"ok")) as server:
            assert server.service.awaited == 0
            made = [server.service.protocol(), server.service.protocol()]
            assert server.service.awaited == 2
            made.pop()
            assert server.service.awaited == 1
            made.pop().connection_lost(None)
            assert server.service.awaited == 0
            async with server.client():
                await support.until(lambda: server.service.connections == 1)
                assert server.service.awaited == 0
        async with Secure(arm, text(b"ok")) as server, server.client() as client:
            await support.until(lambda: server.service.awaited == 1)
            client.write(GET)
            # Nobody has to look for cycles first.
            gc.disable()
            try:
                await support.until(lambda: server.service.awaited == 0)
            finally:
                gc.enable()
            assert server.service.connections == 0

    run(loop, test())


def test_shutting_down_while_the_body_of_an_answered_request_is_discarded(arm, loop):
    async def test():
        off = dict.fromkeys(("timeout_keep_alive", "timeout_body"))
        async with Server(arm, text(b"ok"), **off) as server, server.client() as client:
            client.write(SIZED[:-3])
            assert (await client.response())[2] == b"ok"
            server.service.shut_down()
            await server.service.wait_closed()

    run(loop, test())


def test_disconnecting(arm, loop):
    seen = []
    begun = asyncio.Event()

    async def application(scope, receive, send):
        await send({"type": "http.response.start", "status": 200})
        seen.append((await receive())["type"])
        begun.set()
        seen.append((await receive())["type"])
        await send({"type": "http.response.body", "body": b"bye"})

    async def test():
        async with Server(arm, application) as server, server.client() as client:
            client.write(GET)
            await begun.wait()
            server.service.disconnect()
            assert (await client.response())[2] == b"bye"

    run(loop, test())
    assert seen == ["http.request", "http.disconnect"]


def test_aborting(arm, loop, caplog):
    begun = asyncio.Event()
    cancelled = []

    async def application(scope, receive, send):
        begun.set()
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            cancelled.append(1)
            raise

    async def test():
        async with Server(arm, application) as server, server.client() as client:
            client.write(GET)
            await begun.wait()
            closed = [server.service.wait_closed(), server.service.wait_closed()]
            closed[0].cancel()
            server.service.abort()
            await closed[1]
            with pytest.raises(ConnectionError):
                assert await client.rest() == b""
                raise ConnectionError

    run(loop, test())
    assert cancelled == [1]


# -- Memory -----------------------------------------------------------------------------------------------------------


def count_natives():
    gc.collect()
    gc.collect()
    classes = (
        _core.HttpService,
        _core.HttpConnection,
        _core.HttpRequest,
        _core.HttpReceive,
        _core.HttpSend,
        _core.HttpExchange,
    )
    counts = collections.Counter(map(type, gc.get_objects()))
    return {kind.__name__: counts[kind] for kind in classes}


@pytest.mark.exact
@pytest.mark.parametrize("kept", ["scope", "receive", "send", "exchange", "task"])
def test_cycles_are_collected(arm, new_loop, kept):
    """Whatever an application keeps in a cycle, all is gone when it is unreachable."""
    before = count_natives()

    class Thing:
        pass

    def serve():
        loop = new_loop()
        thing = Thing()

        async def application(scope, receive, send):
            call = receive()
            await call
            kinds = {"scope": scope, "receive": receive, "send": send, "exchange": call, "task": asyncio.current_task()}
            thing.kept = kinds[kept]
            scope["thing"] = thing
            thing.application = application
            await answer(send)

        async def test():
            async with Server(arm, application) as server, server.client() as client:
                client.write(GET + GET)
                await client.response()
                await client.response()

        run(loop, test())
        support.finish(loop)
        return weakref.ref(thing)

    thing = serve()
    after = count_natives()
    assert thing() is None
    assert after == before


@pytest.mark.exact
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_requests_in_flight_are_collected_with_their_loop(arm, new_loop):
    before = count_natives()

    def serve():
        loop = new_loop()
        begun = asyncio.Event()

        async def application(scope, receive, send):
            scope["service"] = service
            begun.set()
            await asyncio.Event().wait()

        async def test():
            nonlocal service
            service = make_service(loop, application)
            listener = await loop.create_server(service.protocol, support.HOST, 0)
            _, writer = await asyncio.open_connection(*listener.sockets[0].getsockname())
            writer.write(GET)
            await begun.wait()
            writer.close()
            listener.close()

        service = None
        loop.run_until_complete(test())
        loop.close()

    serve()
    assert count_natives() == before


@pytest.mark.exact
def test_waits_that_are_given_up_leave_nothing(arm, loop):
    """Starlette's `is_disconnected` asks `receive` and gives up at once, for each part of a stream."""

    async def body(receive, send):
        await receive()
        count_futures = support.count_objects_from_here(asyncio.Future)
        for _ in range(200):
            task = asyncio.create_task(receive())
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait({task})
        del task
        return count_futures()

    assert within_request(arm, loop, body) < 10


@pytest.mark.parametrize("way", ["cancelled", "closed"])
def test_a_wait_that_is_given_up_is_forgotten(arm, loop, way):
    async def body(receive, send):
        await receive()
        for _ in range(20):
            waiting = receive()
            future = waiting.send(None)
            if way == "closed":
                waiting.close()
            else:
                with pytest.raises(asyncio.CancelledError):
                    waiting.throw(asyncio.CancelledError())
            futures.append(weakref.ref(future))
            del future, waiting
        return sum(future() is not None for future in futures)

    futures = []
    assert within_request(arm, loop, body) == 0


def test_a_sender_that_is_given_up_is_forgotten(arm, loop):
    async def application(scope, receive, send):
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body", "body": bytes(50_000_000), "more_body": True})
        waiting = send({"type": "http.response.body", "body": b"more", "more_body": True})
        future = weakref.ref(waiting.send(None))
        waiting.close()
        seen.append(future() is None)
        over.set()
        await forever(scope, receive, send)

    seen = []
    over = asyncio.Event()

    async def test():
        async with Server(arm, application) as server, server.client() as client:
            client.writer.transport.pause_reading()
            client.write(GET)
            await over.wait()

    run(loop, test())
    assert seen == [True]


def test_who_fails_to_be_woken_does_not_stop_the_others(arm, loop, new_loop):
    """A future of the user's own class may raise, or run anything, when it is asked whether it is done."""

    class Failing(asyncio.Future):
        def set_result(self, value):
            raise ValueError("set_result")

    async def application(scope, receive, send):
        await receive()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loop, "create_future", lambda: Failing(loop=loop), raising=False)
            first = receive()
            first.send(None)
        other = asyncio.create_task(receive())
        await asyncio.sleep(0)
        begun.set()
        seen.append((await other)["type"])
        first.close()

    begun = asyncio.Event()
    seen = []

    async def test():
        async with Server(arm, application) as server:
            loop.set_exception_handler(lambda _, context: failures.append(context["exception"]))
            async with server.client() as client:
                client.write(GET)
                await begun.wait()
            while server.service.active:
                await asyncio.sleep(0)

    failures = []
    run(loop, test())
    assert seen == ["http.disconnect"]
    assert [str(error) for error in failures] == ["set_result"]


@pytest.mark.exact
def test_nothing_grows_with_requests(arm, loop):
    counts = []

    async def application(scope, receive, send):
        if scope["path"] == "/slow":
            await asyncio.sleep(0)
        await answer(send)

    async def test():
        async with Server(arm, application) as server, server.client() as client:
            count = support.count_objects_from_here()
            for _ in range(3):
                for number in range(100):
                    path = b"/slow" if number % 2 else b"/%d" % number
                    client.write(GET.replace(b"/ ", path + b" ", 1))
                    await client.response()
                await asyncio.sleep(0)
                counts.append(count())

    run(loop, test())
    assert counts[2] - counts[1] < 20


# -- Other transports -------------------------------------------------------------------------------------------------


def test_tls(arm, loop, contexts):
    server_context, client_context = contexts
    schemes = []

    async def application(scope, receive, send):
        schemes.append((scope["scheme"], scope["server"][1], scope["client"]))
        body, _ = await body_of(receive)
        await answer(send, body * 1000)

    class Secure(Server):
        def listening(self):
            return {"ssl": server_context}

    async def test():
        async with Secure(arm, application) as server:
            reader, writer = await asyncio.open_connection(
                support.HOST, server.port, ssl=client_context, server_hostname="localhost"
            )
            address = writer.get_extra_info("sockname")
            client = Client(reader, writer)
            for _ in range(3):
                client.write(SIZED + SIZED)
                for _ in range(2):
                    assert (await client.response())[2] == b"hello world" * 1000
            await client.close()
            assert schemes == 6 * [("https", server.port, address)]

    assert isinstance(server_context, ssl.SSLContext)
    run(loop, test())


def test_shutting_down_with_connections_that_close(arm, loop, contexts):
    """asyncio's TLS transports can't be asked for what is unsent once they were closed twice."""
    server_context, client_context = contexts

    class Secure(Server):
        def listening(self):
            return {"ssl": server_context}

    async def test():
        async with Secure(arm, text(b"ok", (b"connection", b"close"))) as server:
            reader, writer = await asyncio.open_connection(support.HOST, server.port, ssl=client_context)
            writer.write(GET)
            assert (await Client(reader, writer).response())[2] == b"ok"
            for _ in range(3):
                server.service.shut_down()
            writer.close()
            await until_closed(server)

    run(loop, test())


def test_unix_sockets(arm, loop, tmp_path):
    seen = []
    path = str(tmp_path / "socket")

    async def application(scope, receive, send):
        seen.append((scope["server"], scope["client"]))
        await answer(send, b"ok")

    async def test():
        service = make_service(loop, application, access_log=lambda *arguments: seen.append(arguments))
        listener = await loop.create_unix_server(service.protocol, path)
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(LAST)
        assert (await reader.read()).endswith(b"ok")
        writer.close()
        await writer.wait_closed()
        listener.close()
        await service.wait_closed()

    run(loop, test())
    assert seen == [((path, None), None), ("", "GET", "/", "1.1", 200)]


def test_transports_that_are_not_ours(arm, loop):
    """The protocol works with any transport: a test's, for one."""

    class Transport(asyncio.Transport):
        written = b""
        closed = False

        def write(self, data):
            self.written += data

        def close(self):
            self.closed = True

        def get_write_buffer_size(self):
            return 0

    async def test():
        service = make_service(loop, text(b"ok"))
        protocol, transport = service.protocol(), Transport({"peername": ("a", 1), "sockname": ("b", 2)})
        protocol.connection_made(transport)
        assert service.connections == 1
        protocol.data_received(bytearray(GET[:10]))
        protocol.data_received(memoryview(LAST)[10:])
        while not transport.closed:
            await asyncio.sleep(0)
        assert transport.written.endswith(b"ok")
        protocol.connection_lost(None)
        protocol.connection_lost(None)
        protocol.data_received(GET)
        assert (service.connections, service.active) == (0, 0)

    run(loop, test())


class FailingTransport(asyncio.Transport):
    """Raises whatever is done to it."""

    def __init__(self, calls):
        super().__init__({"peername": ("a", 1), "sockname": ("b", 2)})
        self.calls = calls

    def write(self, data):
        pass

    def get_write_buffer_size(self):
        return 0

    def close(self):
        self.calls.append("close")
        raise ZeroDivisionError

    def abort(self):
        self.calls.append("abort")
        raise ZeroDivisionError


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("way", ["shut_down", "abort"])
def test_a_connection_that_fails_to_end_holds_up_no_other(arm, loop, way):
    calls = []

    async def test():
        service = make_service(loop, text(b"ok"))
        protocols = [service.protocol() for _ in range(3)]
        for protocol in protocols:
            protocol.connection_made(FailingTransport(calls))
            protocol.data_received(GET)
        await asyncio.sleep(0)
        with pytest.raises(ZeroDivisionError):
            getattr(service, way)()
        assert len(calls) == 3
        for protocol in protocols:
            protocol.connection_lost(None)
        assert service.connections == 0

    run(loop, test())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_deadline_that_fails_holds_up_no_other(arm, loop):
    calls, reported = [], []

    async def test():
        loop.set_exception_handler(lambda loop, context: reported.append(context["exception"]))
        service = make_service(loop, text(b"ok"), timeout_head=0.01)
        protocols = [service.protocol() for _ in range(3)]
        for protocol in protocols:
            protocol.connection_made(FailingTransport(calls))
        await support.until(lambda: len(calls) >= 3)
        later = service.protocol()
        later.connection_made(FailingTransport(calls))
        await support.until(lambda: len(calls) >= 4)
        for protocol in (*protocols, later):
            protocol.connection_lost(None)

    run(loop, test())
    assert {type(error) for error in reported} == {ZeroDivisionError}


def test_it_tells_when_it_has_served_enough(arm, loop):
    """Once, when the request begins; refused ones count, too."""
    told = []

    async def test():
        enough = asyncio.Event()

        def tell():
            told.append(server.service.requests)
            enough.set()

        settings = {"limit_max_requests": 2, "on_max_requests": tell}
        async with Server(arm, text(b"ok"), **settings) as server, server.client() as client:
            for _ in range(3):
                assert (await ask_again(client))[2] == b"ok"
            await enough.wait()
        enough.clear()
        async with Server(arm, text(b"ok"), **settings, limit_concurrency=1) as server:
            for _ in range(2):
                assert (await server.ask(GET)).startswith(b"HTTP/1.1 503")
            await enough.wait()

    async def ask_again(client):
        client.write(GET)
        return await client.response()

    run(loop, test())
    assert len(told) == 2


def test_what_the_callback_after_enough_requests_raises_is_reported(arm, loop):
    seen = []
    loop.set_exception_handler(lambda _, context: seen.append(context["exception"]))

    def fail():
        raise ZeroDivisionError

    async def test():
        async with Server(arm, text(b"ok"), limit_max_requests=1, on_max_requests=fail) as server:
            assert (await server.ask(GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))).endswith(b"ok")

    run(loop, test())
    assert [type(error) for error in seen] == [ZeroDivisionError]


@pytest.mark.parametrize(("limit", "status"), [(256, 431), (300, 200), (299, 431), (1 << 40, 200)])
def test_the_number_of_fields_is_limited(arm, loop, limit, status):
    async def test():
        request = GET[:-2] + b"Connection: close\r\n" + 298 * b"x: y\r\n" + b"\r\n"
        assert request.count(b"\r\n") == 302
        async with Server(arm, text(b"ok"), limit_fields=limit) as server:
            assert (await server.ask(request)).startswith(b"HTTP/1.1 %d " % status)

    run(loop, test())


def test_a_path_that_is_not_logged(arm, loop):
    async def test():
        pages = types.SimpleNamespace(paths=[], prefixes=[], unlogged=["/no t"])
        settings = {"log_access": True, "pages": pages}
        async with Server(arm, text(b"ok"), **settings) as server, server.client() as client:
            for target in (b"/no%20t", b"/", b"/no%20t?x=1", b"/no%20t/"):
                client.write(GET.replace(b" / ", b" %s " % target))
                assert (await client.response())[2] == b"ok"
            assert [path for _, _, path, _, _ in server.access] == ["/", "/no%20t/"]

    run(loop, test())


@pytest.mark.parametrize(
    ("request_line", "fields", "host"),
    [
        (b"GET http://b.example/x HTTP/1.1", b"Host: a.example\r\n", b"b.example"),
        (b"GET http://b.example:81 HTTP/1.1", b"X: y\r\nHost: a.example\r\n", b"b.example:81"),
        (b"GET https://A.example/x HTTP/1.1", b"Host: a.example\r\n", b"A.example"),
        (b"GET http://b.example/x HTTP/1.0", b"", b"b.example"),
        (b"GET /x HTTP/1.1", b"Host: a.example\r\n", b"a.example"),
    ],
)
def test_a_target_in_absolute_form_says_which_server_is_asked(arm, loop, request_line, fields, host):
    """Host is ignored then (RFC 9112, section 3.2.2). uvicorn passes Host on."""
    seen = []

    async def application(scope, receive, send):
        seen.append([value for name, value in scope["headers"] if name == b"host"])
        await answer(send)

    async def test():
        async with Server(arm, application) as server, server.client() as client:
            # The second request has the same head.
            for _ in range(2):
                client.write(request_line + b"\r\nConnection: keep-alive\r\n" + fields + b"\r\n")
                await client.response()

    run(loop, test())
    assert seen == 2 * [[host]]


@pytest.mark.parametrize("fields", [b"", b"Host: a b\r\n", b"Host: a\r\nHost: b\r\n"])
def test_a_target_in_absolute_form_is_no_excuse_for_a_bad_host(arm, loop, fields):
    async def test():
        async with Server(arm, text(b"ok")) as server:
            assert (await server.ask(b"GET http://a/ HTTP/1.1\r\n" + fields + b"\r\n")).startswith(b"HTTP/1.1 400 ")

    run(loop, test())


@pytest.mark.ringloop_only
def test_refused_clients_cannot_fill_the_log(arm, loop, caplog):
    """The lines that are left out are counted, and the next one says how many there were."""

    class Transport(asyncio.Transport):
        def write(self, data):
            pass

        def abort(self):
            pass

        def close(self):
            pass

    async def test():
        service = make_service(asyncio.get_running_loop(), None)
        began = time.monotonic()
        count, found = 0, None
        # A machine that is slow enough may log all of them.
        while found is None and time.monotonic() - began < 10:
            connection = service.protocol()
            connection.connection_made(Transport())
            connection.data_received(b"nonsense\r\n\r\n")
            connection.connection_lost(None)
            count += 1
            found = MORE.search(caplog.records[-1].getMessage())
        assert len(caplog.records) <= 100 * (int(time.monotonic() - began) + 2)
        assert len(caplog.records) + int(found[1] if found else 0) == count

    loop.run_until_complete(test())


MORE = re.compile(r"The client gets 400: invalid request line \(and (\d+) more that were not logged\)$")
