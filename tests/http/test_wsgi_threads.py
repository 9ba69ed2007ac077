"""WSGI applications: reading, streaming, clients that leave, and the pool of threads."""

import asyncio
import contextlib
import contextvars
import gc
import os
import socket
import sys
import tempfile
import threading
import time
import weakref

import pytest

import support
from http2 import Server as Http2Server
from serving import LOGGER, run
from test_wsgi import answer_of
from wsgi_support import CLOSING, GET, Closing, answering, post, releasing, serve, until, wait

pytestmark = pytest.mark.ringloop_only

LARGE = 4 << 20


# -- Reading ----------------------------------------------------------------------------------------------------------

BODY = b"one\ntwo\n\nthree"


@pytest.mark.parametrize(
    ("read", "expected"),
    [
        (lambda stream: stream.read(), BODY),
        (lambda stream: stream.read(None), BODY),
        (lambda stream: stream.read(-1), BODY),
        (lambda stream: stream.read(100), BODY),
        (
            lambda stream: [
                stream.read(5),
                stream.read(0),
                stream.read(5),
                stream.read(),
                stream.read(),
                stream.read(1),
            ],
            [BODY[:5], b"", BODY[5:10], BODY[10:], b"", b""],
        ),
        (lambda stream: [stream.readline() for _ in range(6)], [b"one\n", b"two\n", b"\n", b"three", b"", b""]),
        (
            lambda stream: [
                stream.readline(2),
                stream.readline(2),
                stream.readline(9),
                stream.readline(0),
                stream.read(),
            ],
            [b"on", b"e\n", b"two\n", b"", b"\nthree"],
        ),
        (lambda stream: stream.readlines(), BODY.splitlines(keepends=True)),
        (
            lambda stream: [stream.readlines(1), stream.readlines(5), stream.readlines(0)],
            [[b"one\n"], [b"two\n", b"\n"], [b"three"]],
        ),
        (list, BODY.splitlines(keepends=True)),
        (lambda stream: [next(stream), stream.read()], [b"one\n", BODY[4:]]),
    ],
)
@pytest.mark.parametrize("way", ["at once", "in pieces", "in chunks"])
def test_reading(arm, loop, read, expected, way):
    found = []

    def application(environ, start_response):
        found.append(read(environ["wsgi.input"]))
        start_response("200 OK", [])
        return []

    async def test():
        async with serve(arm, application) as server, server.client() as client:
            if way == "in chunks":
                client.write(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
                for byte in BODY:
                    client.write(b"1\r\n%c\r\n" % byte)
                client.write(b"0\r\n\r\n")
            else:
                request = post(BODY)
                cuts = [request] if way == "at once" else [request[:-10], request[-10:-4], request[-4:]]
                for cut in cuts:
                    client.write(cut)
                    await asyncio.sleep(0)
            await client.response()

    run(loop, test())
    assert found == [expected]


@pytest.mark.parametrize("size", [None, 10_000, LARGE])
def test_reading_much(arm, loop, size):
    data = os.urandom(LARGE)
    found = []

    def application(environ, start_response):
        stream, parts = environ["wsgi.input"], []
        while part := stream.read(*[] if size is None else [size]):
            parts.append(part)
        found.append(b"".join(parts))
        start_response("200 OK", [])
        return [b""]

    async def test():
        async with serve(arm, application) as server, server.client() as client:
            client.write(post(data))
            await client.response()
            client.write(post(b"x"))
            await client.response()

    run(loop, test())
    assert found == [data, b"x"]


def test_what_was_read_is_not_kept(arm, loop):
    """The pieces that a view reads don't end where those end that the client sends."""
    sizes = []

    def application(environ, start_response):
        stream = environ["wsgi.input"]
        while stream.read(9_999):
            sizes.append(sys.getsizeof(stream))
        start_response("200 OK", [])
        return [b""]

    async def test():
        async with serve(arm, application) as server, server.client() as client:
            client.write(post(bytes(LARGE)))
            await client.response()

    run(loop, test())
    assert max(sizes) < LARGE / 2


def test_two_threads_read_one_body(arm, loop):
    """That is the application's mistake, but the second one doesn't wait for ever."""
    found = []

    def application(environ, start_response):
        stream = environ["wsgi.input"]
        readers = [support.BackgroundThread(lambda: b"".join(iter(lambda: stream.read(10), b""))) for _ in range(2)]
        found.append(sum(len(reader.result()) for reader in readers))
        start_response("200 OK", [])
        return [b""]

    async def test():
        async with serve(arm, application) as server, server.client() as client:
            request = post(bytes(1000))
            client.write(request[:-500])
            await asyncio.sleep(0)
            client.write(request[-500:])
            await client.response()

    run(loop, test())
    assert found == [1000]


def test_reading_much_on_http2(arm, loop):
    data = os.urandom(300_000)
    found = []

    def application(environ, start_response):
        found.append(environ["wsgi.input"].read())
        start_response("200 OK", [])
        return [b""]

    async def test():
        server = Http2Server(arm, application, wsgi=serve(arm, application).settings["wsgi"])
        async with server, server.http2() as client:
            await client.settled()
            stream = client.ask(method="POST", ends=False)
            rest = data
            while rest:
                room = min(client.h2.local_flow_control_window(stream), client.h2.max_outbound_frame_size, len(rest))
                if room:
                    client.data(stream, rest[:room], ends=room == len(rest))
                    rest = rest[room:]
                else:
                    before = client.h2.local_flow_control_window(stream)
                    await client.until(lambda: client.h2.local_flow_control_window(stream) > before)  # noqa: B023
            assert (await client.response(stream)).status == 200

    run(loop, test())
    assert found == [data]


def test_a_client_that_waits_for_100_continue_gets_it_at_the_first_read(arm, loop):
    may_read = threading.Event()

    def application(environ, start_response):
        if environ["PATH_INFO"] == "/read":
            wait(may_read)
            environ["wsgi.input"].read(1)
            environ["wsgi.input"].read()
        start_response("200 OK", [])
        return [b""]

    async def test():
        async with serve(arm, application) as server:
            async with server.client() as client:
                client.write(b"POST /read HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
                may_read.set()
                assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
                client.write(b"xy")
                assert (await client.response())[0] == "HTTP/1.1 200 OK"
            async with server.client() as client:
                client.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
                assert (await client.response())[0] == "HTTP/1.1 200 OK"

    with releasing(may_read):
        run(loop, test())


def test_a_body_that_nobody_reads(arm, loop):
    async def test():
        async with serve(arm, answering(b"hello")) as server, server.client() as client:
            for _ in range(3):
                client.write(post(b"x" * 1000))
                assert (await client.response())[2] == b"hello"

    run(loop, test())


def test_pipelining(arm, loop):
    def application(environ, start_response):
        start_response("200 OK", [])
        return [environ["PATH_INFO"].encode()]

    async def test():
        async with serve(arm, application) as server, server.client() as client:
            client.write(b"".join(GET.replace(b"/ ", b"/%d " % number) for number in range(50)))
            return [(await client.response())[2] for _ in range(50)]

    assert run(loop, test()) == [b"/%d" % number for number in range(50)]


def test_a_client_that_leaves_while_a_view_reads(arm, loop, errors):
    found, reads, over = [], threading.Event(), threading.Event()

    def application(environ, start_response):
        reads.set()
        try:
            environ["wsgi.input"].read()
        except OSError as error:
            found.append(error)
            raise
        finally:
            over.set()

    async def test():
        async with serve(arm, application) as server:
            async with server.client() as client:
                client.write(post(b"xy")[:-1])
                await until(loop, reads)
                client.reset()
            await until(loop, over)

    run(loop, test())
    assert len(found) == 1
    assert str(found[0]) == "the client is gone"


# -- Streaming --------------------------------------------------------------------------------------------------------


def test_parts_go_out_before_the_next_is_made(arm, loop):
    seen = threading.Event()

    def application(environ, start_response):
        start_response("200 OK", [])
        yield b"first"
        wait(seen)
        yield b"second"

    async def test():
        async with serve(arm, application) as server, server.client() as client:
            client.write(GET)
            await client.reader.readuntil(b"first\r\n")
            seen.set()
            await client.reader.readuntil(b"second\r\n0\r\n\r\n")

    with releasing(seen):
        run(loop, test())


def test_a_view_that_ends_while_its_first_part_is_sent(arm, loop):
    """The loop runs Python code while it sends: the access log's, or TLS's."""
    sending, made = threading.Event(), []

    def parts():
        yield b"one"
        wait(sending)
        yield b"two"

    def application(environ, start_response):
        start_response("200 OK", [("Content-Length", "6")])
        made.append(Closing(parts()))
        return made[0]

    def log(*_):
        sending.set()
        wait(made[0].has_closed)
        # The view is over when its thread runs no Python code any more but that which has begun it.
        while sys._current_frames()[made[0].closed[0]].f_code.co_name != "run":
            time.sleep(0)

    with releasing(sending):
        assert answer_of(arm, loop, application, access_log=log).endswith(b"\r\n\r\nonetwo")


@pytest.mark.parametrize("way", ["iterate", "write", "one"])
def test_a_view_waits_for_a_client_that_does_not_read(arm, loop, way):
    part, count = b"x" * 50_000, 400
    made = []

    def application(environ, start_response):
        write = start_response("200 OK", [("Content-Length", str(len(part) * count))])
        if way == "one":
            made.append(count)
            return [part * count]
        if way == "write":
            for number in range(count):
                made.append(number)
                write(part)
            return []
        return parts()

    def parts():
        for number in range(count):
            made.append(number)
            yield part

    async def test():
        async with serve(arm, application) as server, server.client() as client:
            client.write(GET)
            await client.reader.readuntil(b"\r\n\r\n")
            # Another request is answered meanwhile.
            if way != "one":
                assert len(made) < count
            body = await client.reader.readexactly(len(part) * count)
            assert body == part * count
            client.write(GET)
            await client.reader.readuntil(b"\r\n\r\n")

    run(loop, test())
    assert made


@pytest.mark.parametrize("way", ["iterate", "write"])
def test_a_client_that_leaves_while_a_view_writes(arm, loop, errors, way):
    made, over, found = [], threading.Event(), []

    def parts():
        while True:
            yield b"x" * 50_000

    def application(environ, start_response):
        write = start_response("200 OK", [])
        if way == "write":
            try:
                for part in parts():
                    write(part)
            except OSError as error:
                found.append(str(error))
                raise
            finally:
                over.set()
        made.append(Closing(parts()))
        return made[0]

    async def test():
        async with serve(arm, application) as server:
            async with server.client() as client:
                client.write(GET)
                await client.reader.readuntil(b"\r\n\r\n")
                client.reset()
            await until(loop, made[0].has_closed if made else over)

    run(loop, test())
    if way == "write":
        assert found == ["the client is gone"]
    else:
        assert len(made[0].closed) == 1


def test_a_generator_is_closed_when_its_client_leaves(arm, loop):
    begun, closed = threading.Event(), threading.Event()

    def application(environ, start_response):
        start_response("200 OK", [])
        try:
            yield b"begun"
            while True:
                yield b"x" * 100_000
        finally:
            closed.set()

    async def test():
        async with serve(arm, application) as server:
            async with server.client() as client:
                client.write(GET)
                await client.reader.readuntil(b"begun")
                client.reset()
            await until(loop, closed)

    with releasing(begun):
        run(loop, test())


# -- Threads ----------------------------------------------------------------------------------------------------------


def test_a_view_that_waits_delays_nobody(arm, loop):
    """As many views as there are threads but one wait for what the last request does."""
    threads = 5
    may_end, entered = threading.Event(), threading.Semaphore(0)

    def application(environ, start_response):
        if environ["PATH_INFO"] == "/wait":
            entered.release()
            wait(may_end)
        else:
            may_end.set()
        start_response("200 OK", [])
        return [b"hello"]

    async def test():
        async with serve(arm, application, wsgi_threads=threads) as server, contextlib.AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(server.client()) for _ in range(threads)]
            for client in clients[:-1]:
                client.write(GET.replace(b"/", b"/wait", 1))
            clients[-1].write(GET)
            for client in clients:
                assert (await client.response())[2] == b"hello"

    with releasing(may_end):
        run(loop, test())


def test_one_thread_answers_one_after_the_other(arm, loop):
    running, most = [], []

    def application(environ, start_response):
        running.append(threading.get_ident())
        most.append(len(running))
        os.sched_yield()
        running.pop()
        start_response("200 OK", [])
        return [b"hello"]

    async def test():
        async with serve(arm, application, wsgi_threads=1) as server, contextlib.AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(server.client()) for _ in range(20)]
            for client in clients:
                client.write(GET)
            for client in clients:
                assert (await client.response())[2] == b"hello"

    run(loop, test())
    assert most == [1] * 20


def test_a_full_queue(arm, loop, errors):
    may_end, entered = threading.Event(), threading.Event()

    def application(environ, start_response):
        entered.set()
        wait(may_end)
        start_response("200 OK", [])
        return [b"hello"]

    async def test():
        settings = {"wsgi_threads": 1, "wsgi_queue": 2}
        async with serve(arm, application, **settings) as server, contextlib.AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(server.client()) for _ in range(4)]
            clients[0].write(GET)
            await until(loop, entered)
            for number, client in enumerate(clients[1:3]):
                client.write(GET)
                await support.until(lambda: server.service.requests == number + 2)  # noqa: B023
            clients[3].write(GET)
            assert (await clients[3].rest()).startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
            may_end.set()
            for client in clients[:3]:
                assert (await client.response())[2] == b"hello"

    with releasing(may_end):
        run(loop, test())
    assert errors() == ["Exceeded the limit of requests that wait for a thread (--wsgi-queue)."]


def test_requests_that_come_at_once_wait_only_if_there_are_more_than_threads(arm, loop, errors):
    may_end = threading.Event()

    def application(environ, start_response):
        wait(may_end)
        start_response("200 OK", [])
        return [b"hello"]

    async def test():
        settings = {"wsgi_threads": 3, "wsgi_queue": 1}
        async with serve(arm, application, **settings) as server, contextlib.AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(server.client()) for _ in range(5)]
            for client in clients[:4]:
                client.write(GET)
            await support.until(lambda: server.service.requests == 4)
            clients[4].write(GET)
            assert (await clients[4].rest()).startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
            may_end.set()
            for client in clients[:4]:
                assert (await client.response())[2] == b"hello"

    with releasing(may_end):
        run(loop, test())
    assert errors() == ["Exceeded the limit of requests that wait for a thread (--wsgi-queue)."]


def test_a_request_whose_client_has_left_is_not_answered(arm, loop):
    seen, begun, may_end = [], threading.Event(), threading.Event()

    def application(environ, start_response):
        seen.append(environ["PATH_INFO"])
        begun.set()
        wait(may_end)
        start_response("200 OK", [])
        return [b""]

    async def test():
        async with serve(arm, application, wsgi_threads=1) as server, server.client() as first:
            first.write(GET)
            await until(loop, begun)
            async with server.client() as second:
                second.write(GET.replace(b"/", b"/second", 1))
                await support.until(lambda: server.service.active == 2)
                second.reset()
            await support.until(lambda: server.service.connections == 1)
            may_end.set()
            await first.response()
            await support.until(lambda: server.service.active == 0)

    with releasing(may_end):
        run(loop, test())
    assert seen == ["/"]


@pytest.mark.parametrize("reset", [False, True])
def test_a_view_runs_in_one_thread_and_one_context(arm, loop, reset):
    local, variable = threading.local(), contextvars.ContextVar("variable", default=None)
    found = []

    class Parts(Closing):
        def __iter__(self):
            for number in range(20):
                found.append((local.value, variable.get()))
                yield b"%d" % number * 10_000

        def close(self):
            found.append((local.value, variable.get()))

    def application(environ, start_response):
        # By default, it is the context of the thread.
        assert variable.get() == (None if reset else getattr(local, "value", None))
        path = environ["PATH_INFO"]
        local.value = path
        variable.set(path)
        start_response("200 OK", [])
        return Parts([])

    async def test():
        async with serve(arm, application, reset_contextvars=reset) as server:

            async def ask(number):
                request = CLOSING.replace(b"/", b"/%d" % number, 1)
                assert (await server.ask(request)).endswith(b"0\r\n\r\n")

            await asyncio.gather(*(ask(number) for number in range(10)))

    run(loop, test())
    assert len(found) == 10 * 21
    assert all(of_thread == of_context for of_thread, of_context in found)


@pytest.mark.parametrize("reset", [False, True])
def test_views_share_the_context_of_their_thread(arm, loop, errors, reset):
    variable, seen = contextvars.ContextVar("variable", default=None), []

    class Parts(Closing):
        def close(self):
            variable.set("closed")

    def generate():
        yield b"hello"
        variable.set("generated")

    def application(environ, start_response):
        action = environ["PATH_INFO"][1:]
        seen.append((action, variable.get()))
        variable.set(action)
        if action == "raise":
            raise RuntimeError("application")
        start_response("200 OK", [])
        return {"generate": generate, "close": lambda: Parts([b"hello"])}.get(action, lambda: [b"hello"])()

    async def test():
        async with serve(arm, application, wsgi_threads=1, reset_contextvars=reset) as server:
            for action in ("list", "raise", "generate", "close", "end"):
                await server.ask(CLOSING.replace(b"/", b"/" + action.encode(), 1))

    run(loop, test())
    assert errors() == ["Exception in WSGI application\n"]
    expected = [("list", None), ("raise", "list"), ("generate", "raise"), ("close", "generated"), ("end", "closed")]
    assert seen == [(action, None if reset else value) for action, value in expected]


class Local:
    """Attributes that each context has of its own, as asgiref's `Local`: Django keeps its caches' connections there."""

    def __init__(self):
        object.__setattr__(self, "variable", contextvars.ContextVar("attributes"))

    def __getattr__(self, name):
        try:
            return self.variable.get({})[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name, value):
        self.variable.set({**self.variable.get({}), name: value})


@pytest.mark.parametrize("reset", [False, True])
def test_what_is_kept_in_a_context_is_made_once_per_thread(arm, loop, reset):
    local, made, ran = Local(), [], []

    def application(environ, start_response):
        thread = threading.get_ident()
        ran.append(thread)
        if not hasattr(local, "cache"):
            local.cache = thread
            made.append(thread)
        assert local.cache == thread
        if environ["PATH_INFO"] == "/wait":
            time.sleep(0.002)  # Another thread takes the next request.
        start_response("200 OK", [("Content-Length", "5")])
        return [b"hello"]

    async def test():
        async with serve(arm, application, wsgi_threads=3, reset_contextvars=reset) as server:

            async def ask(path):
                async with server.client() as client:
                    for _ in range(10):
                        client.write(GET.replace(b"/", path, 1))
                        assert (await client.response())[2] == b"hello"

            await asyncio.gather(*(ask(path) for path in (b"/", b"/wait") * 3))

    run(loop, test())
    assert len(ran) == 60
    assert sorted(made) == sorted(ran if reset else set(ran))


def inheriting(start):
    """Return `Thread.start` where threads inherit the context of who starts them, as without the GIL."""

    def inherit(thread):
        context, work = contextvars.copy_context(), thread.run
        thread.run = lambda: context.run(work)
        start(thread)

    return inherit


@pytest.mark.parametrize("inherits", [False, True])
@pytest.mark.parametrize("reset", [False, True])
def test_views_and_the_loop_have_different_contexts(arm, loop, monkeypatch, reset, inherits):
    variable, seen, logged = contextvars.ContextVar("variable", default="nothing"), [], []
    if inherits:
        monkeypatch.setattr(threading.Thread, "start", inheriting(threading.Thread.start))

    def application(environ, start_response):
        seen.append(variable.get())
        start_response("200 OK", [("Content-Length", "5")])
        yield b"hello"
        variable.set("view")

    def log(*_):
        logged.append(variable.get())

    async def test():
        async with serve(arm, application, wsgi_threads=1, reset_contextvars=reset, access_log=log) as server:
            for _ in range(3):
                assert (await server.ask(CLOSING)).endswith(b"hello")
                assert variable.get() == "loop"
            loop.call_soon(log)
            await asyncio.sleep(0)

    context = contextvars.copy_context()
    context.run(variable.set, "loop")
    context.run(run, loop, test())
    assert context[variable] == "loop"
    assert seen == ["nothing", *(["nothing"] * 2 if reset else ["view"] * 2)]
    assert logged == [*["nothing" if reset else "loop"] * 3, "loop"]


def test_the_end_waits_for_a_view(arm, loop):
    may_end, entered = threading.Event(), threading.Event()

    def application(environ, start_response):
        entered.set()
        wait(may_end)
        start_response("200 OK", [])
        return [b"hello"]

    async def test():
        async with serve(arm, application) as server, server.client() as client:
            client.write(GET)
            await until(loop, entered)
            server.service.shut_down()
            closed = server.service.wait_closed()
            await asyncio.sleep(0)
            assert not closed.done()
            may_end.set()
            assert (await client.response())[2] == b"hello"
            await closed
            assert server.service.active == 0

    with releasing(may_end):
        run(loop, test())


def test_the_end_interrupts_a_view_that_reads(arm, loop):
    entered, found = threading.Event(), []

    def application(environ, start_response):
        entered.set()
        try:
            environ["wsgi.input"].read()
        except OSError as error:
            found.append(error)
        start_response("200 OK", [])
        return [b"hello"]

    async def test():
        async with serve(arm, application) as server, server.client() as client:
            client.write(post(b"xy")[:-1])
            await until(loop, entered)
            server.service.shut_down()
            server.service.disconnect()
            assert (await client.response())[2] == b"hello"
            await server.service.wait_closed()

    run(loop, test())
    assert len(found) == 1


def test_nothing_is_left(arm, loop):
    class Application:
        def __call__(self, environ, start_response):
            start_response("200 OK", [])
            return [b"hello"]

    async def test():
        application = Application()
        server = serve(arm, application)
        async with server:
            await server.ask(CLOSING)
        reference = weakref.ref(application)
        server.service = server.application = server.listener = None
        del application, server
        return reference

    before = set(threading.enumerate())
    reference = run(loop, test())
    for thread in set(threading.enumerate()) - before:
        thread.join(support.PATIENCE_S)
    loop.run_until_complete(asyncio.sleep(0))
    gc.collect()
    assert reference() is None


# -- Files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 10, 16 * 1024, 16 * 1024 + 1, LARGE])
@pytest.mark.parametrize("length", ["given", "not given", "less"])
def test_files(arm, loop, tmp_path, size, length):
    content = os.urandom(size)
    (tmp_path / "file").write_bytes(content)
    expected = content[: size // 2] if length == "less" else content
    opened = []

    def application(environ, start_response):
        headers = [] if length == "not given" else [("Content-Length", str(len(expected)))]
        start_response("200 OK", headers)
        opened.append((tmp_path / "file").open("rb"))
        return environ["wsgi.file_wrapper"](opened[-1], 8192)

    async def test():
        async with serve(arm, application) as server, server.client() as client:
            for _ in range(2):
                client.write(GET)
                assert (await client.response())[2] == expected

    run(loop, test())
    assert [file.closed for file in opened] == [True, True]


def test_a_part_of_a_file(arm, loop, tmp_path):
    content = os.urandom(LARGE)
    (tmp_path / "file").write_bytes(content)

    def application(environ, start_response):
        start_response("200 OK", [])
        file = (tmp_path / "file").open("rb")
        file.seek(1000)
        return environ["wsgi.file_wrapper"](file)

    assert answer_of(arm, loop, application).partition(b"\r\n\r\n")[2] == content[1000:]


@pytest.mark.parametrize("size", [10, LARGE])
def test_a_file_that_is_too_short(arm, loop, tmp_path, errors, size):
    (tmp_path / "file").write_bytes(b"x" * size)

    def application(environ, start_response):
        start_response("200 OK", [("Content-Length", str(size + 1))])
        return environ["wsgi.file_wrapper"]((tmp_path / "file").open("rb"))

    assert answer_of(arm, loop, application).partition(b"\r\n\r\n")[2] == b"x" * size
    assert len(errors()) == 1


def test_what_is_no_plain_file(arm, loop, tmp_path):
    class Source:
        def __init__(self):
            self.parts = [b"one", b"two", b""]

        def read(self, size):
            return self.parts.pop(0)

    def application(environ, start_response):
        start_response("200 OK", [("Content-Length", "6")])
        return environ["wsgi.file_wrapper"](Source())

    assert answer_of(arm, loop, application).endswith(b"\r\n\r\nonetwo")


def test_a_file_inside_of_another_object(arm, loop, tmp_path):
    """Such as one that decrypts: what its own `read` returns is sent."""
    (tmp_path / "file").write_bytes(b"x" * LARGE)

    class Decrypting:
        def __init__(self, file):
            self.file = file
            self.close = file.close

        def read(self, size):
            return self.file.read(size).replace(b"x", b"y")

    def application(environ, start_response):
        start_response("200 OK", [])
        return environ["wsgi.file_wrapper"](Decrypting((tmp_path / "file").open("rb")))

    answer = answer_of(arm, loop, application)
    assert b"x" not in answer.partition(b"\r\n\r\n")[2]
    assert answer.count(b"y") >= LARGE


def test_temporary_files(arm, loop):
    content = os.urandom(LARGE)

    def application(environ, start_response):
        start_response("200 OK", [])
        file = tempfile.NamedTemporaryFile()  # noqa: SIM115
        file.write(content)
        file.seek(0)
        return environ["wsgi.file_wrapper"](file)

    assert answer_of(arm, loop, application).partition(b"\r\n\r\n")[2] == content


def test_a_file_whose_head_fails(arm, loop, tmp_path, errors):
    """A 2xx response to CONNECT has no body. The request ends, and the client gets an answer."""
    (tmp_path / "file").write_bytes(b"x" * LARGE)
    opened = []

    def application(environ, start_response):
        start_response("200 OK", [])
        opened.append((tmp_path / "file").open("rb"))
        return environ["wsgi.file_wrapper"](opened[-1])

    async def test():
        async with serve(arm, application) as server:
            answer = await server.ask(b"CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 500 ")
            await support.until(lambda: server.service.active == 0)

    run(loop, test())
    assert len(errors()) == 1
    assert opened[0].closed


def test_head_of_a_file(arm, loop, tmp_path):
    (tmp_path / "file").write_bytes(b"x" * LARGE)

    def application(environ, start_response):
        start_response("200 OK", [("Content-Length", str(LARGE))])
        return environ["wsgi.file_wrapper"]((tmp_path / "file").open("rb"))

    async def test():
        async with serve(arm, application) as server, server.client() as client:
            for _ in range(2):
                client.write(GET.replace(b"GET", b"HEAD"))
                _, fields, _ = await client.response(is_head=True)
                assert fields["content-length"] == str(LARGE)

    run(loop, test())


def test_a_file_on_http2(arm, loop, tmp_path):
    content = os.urandom(LARGE)
    (tmp_path / "file").write_bytes(content)

    def application(environ, start_response):
        start_response("200 OK", [])
        return environ["wsgi.file_wrapper"]((tmp_path / "file").open("rb"))

    async def test():
        server = Http2Server(arm, application, wsgi=serve(arm, application).settings["wsgi"])
        async with server, server.http2() as client:
            assert bytes((await client.get()).body) == content

    run(loop, test())


def test_a_client_that_leaves_while_a_file_is_sent(arm, loop, tmp_path, caplog):
    with (tmp_path / "file").open("wb") as file:
        file.truncate(1 << 30)

    def application(environ, start_response):
        start_response("200 OK", [])
        return environ["wsgi.file_wrapper"]((tmp_path / "file").open("rb"))

    async def test():
        async with serve(arm, application) as server:
            async with server.client() as client:
                client.write(GET)
                await client.reader.readuntil(b"\r\n\r\n")
                client.reset()
            await support.until(lambda: server.service.active == 0)

    run(loop, test())
    assert not [record for record in caplog.records if record.name == LOGGER]


def test_a_thread_counts_though_a_signal_was_handled_during_its_start(arm, loop, monkeypatch):
    start = threading.Thread.start
    has_begun = threading.Event()
    started, errors = [], []

    def application(environ, start_response):
        has_begun.set()
        time.sleep(0.05)
        return answering(b"hello")(environ, start_response)

    def start_and_raise(thread):
        start(thread)
        if thread.name.startswith("ringloop-wsgi-"):
            started.append(thread)
            if len(started) == 1:
                wait(has_begun)
                raise ZeroDivisionError("a signal's handler")

    async def test():
        async with serve(arm, application, wsgi_threads=1) as server:
            monkeypatch.setattr(threading.Thread, "start", start_and_raise)
            answers = await asyncio.gather(*(server.ask(CLOSING) for _ in range(5)))
            assert all(answer.endswith(b"hello") for answer in answers)

    loop.set_exception_handler(lambda _, context: errors.append(type(context["exception"])))
    run(loop, test())
    assert errors == [ZeroDivisionError]
    # One is allowed, so no other one was made, though requests waited.
    assert len(started) == 1


# -- A loop that is closed ----------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("is_told", [False, True], ids=["before it is told", "after it was told"])
@pytest.mark.parametrize("waits_for", ["room", "body"])
def test_a_view_that_waits_for_a_loop_that_is_closed_goes_on(arm, loop_factory, waits_for, is_told):
    loop = loop_factory()
    has_begun, may_wait, is_over = threading.Event(), threading.Event(), threading.Event()

    def application(environ, start_response):
        has_begun.set()
        wait(may_wait)
        write = start_response("200 OK", [])
        with contextlib.suppress(OSError):
            while waits_for == "room":
                write(bytes(LARGE))
            environ["wsgi.input"].read()
        is_over.set()
        return []

    async def begin():
        server = await serve(arm, application).__aenter__()
        client = socket.create_connection((support.HOST, server.port))
        client.sendall(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n1")
        await until(loop, has_begun)
        if is_told:
            may_wait.set()
            await asyncio.sleep(0.1)
        return client

    with releasing(may_wait), loop.run_until_complete(begin()):
        loop.run_until_complete(loop.shutdown_default_executor())
        may_wait.set()
        time.sleep(0.1)
        assert not is_over.is_set()
        loop.close()
        wait(is_over)
