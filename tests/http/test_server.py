"""`ringloop.http.Server` inside of a program, and what it makes of an application's lifespan."""

import asyncio
import contextvars
import logging
import signal
import socket

import pytest

import support
from applications import answer
from ringloop.http import Config, Server
from ringloop.http._lifespan import Lifespan
from tls_support import NAME, tls_contexts

pytestmark = pytest.mark.ringloop_only


@pytest.fixture(autouse=True)
def records():
    """Yield the list of records that are logged on uvicorn.error."""
    made = []
    handler = logging.Handler()
    handler.emit = lambda record: made.append((record.levelname, record.getMessage()))
    logger = logging.getLogger("uvicorn.error")
    level, propagate = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    yield made
    logger.removeHandler(handler)
    logger.propagate = propagate
    logger.setLevel(level)


async def hello(scope, receive, send):
    assert scope["type"] == "http"
    await answer(send, b"hello")


def server_of(app=hello, **options):
    options = {"port": 0, "log_config": None, "lifespan": "off", "install_signal_handlers": False, **options}
    return Server(Config(app, **options))


async def get(server, path="/"):
    """Return the answer to a request on a connection of its own."""
    reader, writer = await asyncio.open_connection(*server.servers[0].sockets[0].getsockname())
    writer.write(f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


async def start(server):
    """Return a task that serves, and has started."""
    task = asyncio.ensure_future(server.serve())
    await support.until(lambda: server.started or task.done())
    if task.done():
        task.result()
    return task


def test_it_serves_until_it_should_exit(loop):
    async def main():
        server = server_of()
        assert (server.started, server.should_exit, server.force_exit, server.servers) == (False, False, False, [])
        task = await start(server)
        assert b"hello" in await get(server)
        server.should_exit = True
        await task
        assert server.servers[0].sockets == ()

    loop.run_until_complete(main())


def test_shutting_down_what_has_ended_does_nothing(loop, records):
    """Programs call `shutdown` after `serve`, as uvicorn's own tests do."""

    async def main():
        server = server_of()
        task = await start(server)
        server.should_exit = True
        await task
        records.clear()
        await server.shutdown()

    loop.run_until_complete(main())
    assert records == []


@pytest.mark.parametrize("turns", range(12))
def test_shutting_down_what_is_ending_waits_for_its_end(loop, records, turns):
    async def main():
        server = server_of()
        task = await start(server)
        server.should_exit = True
        await support.turns(turns)
        await server.shutdown()
        assert server.servers[0].sockets == ()
        await task

    loop.run_until_complete(main())
    assert records.count(("INFO", "Shutting down")) == 1


def test_an_end_that_is_cancelled_is_made_up_for_by_serve(loop):
    async def main():
        asked, cancelled = asyncio.Event(), asyncio.Event()

        async def app(scope, receive, send):
            asked.set()
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()

        server = server_of(app, timeout_graceful_shutdown=None)
        task = await start(server)
        getting = asyncio.ensure_future(get(server))
        await asked.wait()
        ending = asyncio.ensure_future(server.shutdown())
        server.should_exit = True
        await support.turns(20)
        ending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ending
        server.force_exit = True
        await task
        assert cancelled.is_set()
        await asyncio.wait([getting])

    loop.run_until_complete(main())


def test_shutting_down_what_has_not_started_does_nothing(loop):
    async def main():
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def app(scope, receive, send):
            assert (await receive())["type"] == "lifespan.startup"
            begun.set()
            await go_on.wait()
            await send({"type": "lifespan.startup.complete"})
            assert (await receive())["type"] == "lifespan.shutdown"
            await send({"type": "lifespan.shutdown.complete"})

        server = server_of(app, lifespan="on")
        task = asyncio.ensure_future(server.serve())
        await begun.wait()
        await server.shutdown()
        go_on.set()
        await support.until(lambda: server.started)
        server.should_exit = True
        await task
        assert server.servers[0].sockets == ()

    loop.run_until_complete(main())


def test_sockets_that_are_given(loop):
    async def main():
        with socket.socket() as sock:
            sock.bind((support.HOST, 0))
            server = server_of()
            task = asyncio.ensure_future(server.serve([sock]))
            await support.until(lambda: server.started)
            assert server.servers[0].sockets[0].getsockname() == sock.getsockname()
            assert b"hello" in await get(server)
            server.should_exit = True
            await task
            assert sock.fileno() == -1

    loop.run_until_complete(main())


@pytest.mark.exact
def test_another_thread_ends_it(arm):
    server = server_of(backend=arm)
    thread = support.BackgroundThread(server.run)
    asyncio.run(support.until(lambda: server.started))
    server.should_exit = True
    thread.result()
    server.should_exit = False
    server.should_exit = True  # Afterwards it is no mistake either.


def test_it_was_told_before_it_began(loop, records):
    server = server_of()
    server.should_exit = True
    loop.run_until_complete(server.serve())
    assert ("INFO", "Shutting down") in records


def test_cancelling_it_ends_it_in_order(loop, records):
    ended = []

    async def app(scope, receive, send):
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            ended.append("lifespan")
            await send({"type": "lifespan.shutdown.complete"})

    async def main():
        server = server_of(app, lifespan="on")
        task = await start(server)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended == ["lifespan"]
        assert not server.servers[0].is_serving()

    loop.run_until_complete(main())
    assert records[-1][1].startswith("Finished server process") or records[-1][1] == "Application shutdown complete."


def test_the_lifespan_ends_whatever_fails_before(loop, monkeypatch):
    ended = []

    async def app(scope, receive, send):
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            ended.append("lifespan")
            await send({"type": "lifespan.shutdown.complete"})

    async def fail():
        raise ValueError("requests")

    async def main():
        server = server_of(app, lifespan="on")
        task = await start(server)
        monkeypatch.setattr(server, "_finish_requests", fail)
        server.should_exit = True
        with pytest.raises(ValueError, match="requests"):
            await task

    loop.run_until_complete(main())
    assert ended == ["lifespan"]


@pytest.mark.parametrize("turns", range(5))
def test_connections_that_came_before_the_end_are_served(loop, turns):
    """Wherever they are by then: in the kernel's queue, accepted, or set up."""

    async def main():
        server = server_of()
        task = await start(server)
        with socket.create_connection(server.servers[0].sockets[0].getsockname()) as client:
            client.settimeout(support.PATIENCE_S)
            for _ in range(turns):
                await asyncio.sleep(0)
            server.should_exit = True
            await support.until(lambda: not server.servers[0].is_serving())
            client.sendall(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
            await task
            assert client.recv(65536).endswith(b"hello")

    loop.run_until_complete(main())


@pytest.mark.parametrize("before", [5, 6])
@pytest.mark.parametrize("tls", [False, True])
def test_connections_that_come_at_the_end_are_served_or_refused(loop, tls, before):
    """Those that come too late are refused when they try again, a second later."""
    server_context, client_context = tls_contexts()

    async def served(address):
        try:
            options = {"ssl": client_context, "server_hostname": NAME} if tls else {}
            reader, writer = await asyncio.open_connection(*address, **options)
            writer.write(b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            answer = await reader.read()
            writer.close()
        except ConnectionRefusedError:
            return False
        assert answer.endswith(b"hello")
        return True

    async def main():
        server = server_of()
        if tls:
            server.config.ssl = server_context
        task = await start(server)
        address = server.servers[0].sockets[0].getsockname()
        clients = []
        # One in each turn, so that one is accepted right before the end. The loop polls in every second turn: `before` is even or odd.
        while server.servers[0].is_serving():
            clients.append(asyncio.ensure_future(served(address)))
            server.should_exit = len(clients) > before
            await asyncio.sleep(0)
        assert sum(await asyncio.gather(*clients)) > 5
        await task

    loop.run_until_complete(main())


def test_a_handshake_that_does_not_end_delays_the_end_for_a_moment(loop):
    server_context, _ = tls_contexts()

    async def main():
        server = server_of(timeout_graceful_shutdown=None)
        server.config.ssl = server_context
        task = await start(server)
        with socket.create_connection(server.servers[0].sockets[0].getsockname()):
            await support.until(lambda: server.service.awaited == 1)
            since = loop.time()
            server.should_exit = True
            await task
            assert loop.time() - since > 0.9

    loop.run_until_complete(main())


def test_two_servers_of_one_loop(loop):
    async def main():
        first, second = server_of(), server_of()
        tasks = [await start(first), await start(second)]
        for server in (first, second):
            assert b"hello" in await get(server)
            server.should_exit = True
        await asyncio.gather(*tasks)

    loop.run_until_complete(main())


def test_signals_are_left_alone_unless_they_are_asked_for(loop):
    async def main(installed):
        before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
        server = server_of(install_signal_handlers=installed)
        task = await start(server)
        assert ((signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before) is not installed
        server.should_exit = True
        await task
        assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before

    loop.run_until_complete(main(False))
    loop.run_until_complete(main(True))


def test_signals_are_raised_again(loop):
    """With the handlers that were there before."""
    caught = []

    async def main():
        server = server_of(install_signal_handlers=True)
        task = await start(server)
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        await task

    before = signal.signal(signal.SIGTERM, lambda number, frame: caught.append(number))
    try:
        loop.run_until_complete(main())
    finally:
        signal.signal(signal.SIGTERM, before)
    assert caught == [signal.SIGTERM, signal.SIGTERM]


def test_a_loop_of_others_is_refused():
    with pytest.raises(RuntimeError, match=r"needs ringloop's event loop: use Server.run\(\)"):
        asyncio.run(server_of().serve())


def test_contexts_of_requests(loop):
    variable = contextvars.ContextVar("variable", default="nothing")
    seen = []

    async def app(scope, receive, send):
        seen.append(variable.get())
        variable.set("leaked")
        await answer(send)

    async def main():
        for reset in (False, True):
            variable.set("outside")
            server = server_of(app, reset_contextvars=reset)
            task = await start(server)
            await get(server)
            await get(server)
            server.should_exit = True
            await task

    loop.run_until_complete(main())
    assert seen == ["outside", "outside", "nothing", "nothing"]


def test_settings_reach_the_service(loop, monkeypatch):
    from ringloop import _core

    given = {}

    make = _core.HttpService

    def note(loop, app, settings, **options):
        given.update(options, settings=settings)
        return make(loop, app, settings, **options)

    monkeypatch.setattr(_core, "HttpService", note)
    values = {
        "root_path": "/r", "date_header": False, "limit_head": 1000, "limit_fields": 30, "limit_body_ahead": 2000, "limit_concurrency": 7,
        "timeout_keep_alive": 1.5, "timeout_head": 2.5, "timeout_body": 3.5, "timeout_write": None,
    }  # fmt: skip

    async def main():
        server = server_of(**values, headers=[("X-A", "b")])
        task = await start(server)
        server.should_exit = True
        await task

    loop.run_until_complete(main())
    assert {name: getattr(given["settings"], name) for name in values} == values
    assert given["headers"] == [(b"server", b"ringloop"), (b"x-a", b"b")]
    assert given["state"] is None


def test_import_is_lazy(arm):
    child = support.run_child(
        """
        import ringloop
        assert not [name for name in sys.modules if name.startswith("ringloop.http") or name == "click"]
        assert ringloop.http.run is ringloop.serve
        assert "click" not in sys.modules
        """,
        arm,
    )
    assert (child.returncode, child.stderr) == (0, "")


def lifespan_of(loop, app, mode="auto"):
    """Run an application's lifespan; what `failed` was after its start and after its end."""

    async def main():
        lifespan = Lifespan(app, mode, "3.0")
        await lifespan.startup()
        outcome = [lifespan.failed]
        if not lifespan.failed:
            await lifespan.shutdown()
            outcome.append(lifespan.failed)
        await support.until(lambda: lifespan._task is None or lifespan._task.done())
        return outcome

    return loop.run_until_complete(main())


def speaking(*messages, then=None):
    """Return an application that answers the messages of the lifespan with these."""

    async def app(scope, receive, send):
        for message in messages:
            await receive()
            await send(message)
        if then is not None:
            raise then

    return app


STARTED, ENDED = {"type": "lifespan.startup.complete"}, {"type": "lifespan.shutdown.complete"}


@pytest.mark.parametrize("mode", ["auto", "on"])
def test_lifespans(loop, records, mode):
    assert lifespan_of(loop, speaking(STARTED, ENDED), mode) == [False, False]
    assert [text for _, text in records] == [
        "Waiting for application startup.",
        "Application startup complete.",
        "Waiting for application shutdown.",
        "Application shutdown complete.",
    ]
    failed = {"type": "lifespan.startup.failed", "message": "because"}
    assert lifespan_of(loop, speaking(failed, then=ValueError("again")), mode) == [True]
    assert records[-1] == ("ERROR", "because")
    failed = {"type": "lifespan.shutdown.failed", "message": "so"}
    assert lifespan_of(loop, speaking(STARTED, failed), mode) == [False, True]
    assert records[-2:] == [("ERROR", "so"), ("ERROR", "Application shutdown failed. Exiting.")]
    # An application that returns at once has started, and has nothing to end.
    assert lifespan_of(loop, speaking(), mode) == [False, False]


@pytest.mark.parametrize("mode", ["auto", "on"])
@pytest.mark.parametrize("message", [ENDED, {"type": "lifespan.startup"}, {"type": "http.response.start"}])
def test_messages_that_the_lifespan_has_not(loop, records, mode, message):
    assert lifespan_of(loop, speaking(message), mode) == ([True] if mode == "on" else [False, False])
    assert (("INFO", "ASGI 'lifespan' protocol appears unsupported.") in records) is (mode == "auto")


@pytest.mark.parametrize("mode", ["auto", "on"])
def test_an_exception_after_the_start_is_always_told(loop, records, mode):
    """uvicorn takes it for an application without lifespan."""
    assert lifespan_of(loop, speaking(STARTED, then=ValueError("later")), mode) == (
        [True] if mode == "on" else [False, False]
    )
    assert ("ERROR", "Exception in 'lifespan' protocol\n") in records


@pytest.mark.parametrize("error", [SystemExit("no"), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("mode", ["auto", "on"])
def test_a_lifespan_that_exits_does_not_end_the_process(loop, records, mode, error):
    """It has not started then, even if it does not have to."""
    assert lifespan_of(loop, speaking(then=error), mode) == [True]
    assert records[1:] == [("ERROR", "Exception in 'lifespan' protocol\n")]
    records.clear()
    assert lifespan_of(loop, speaking(STARTED, then=error), mode) == ([True] if mode == "on" else [False, False])
    assert ("ERROR", "Exception in 'lifespan' protocol\n") in records


@pytest.mark.parametrize("mode", ["auto", "on"])
def test_an_exception_at_the_end(loop, records, mode):
    async def app(scope, receive, send):
        await receive()
        await send(STARTED)
        await receive()
        raise ValueError("cannot end")

    assert lifespan_of(loop, app, mode) == [False, True]
    assert records[-1] == ("ERROR", "Application shutdown failed. Exiting.")


def test_off(loop, records):
    assert lifespan_of(loop, speaking(STARTED, ENDED), "off") == [False, False]
    assert records == []


def test_handle_exit_has_uvicorns_parameters(arm, loop):
    """Programs that run a server in a thread call it by keyword."""

    async def main():
        server = server_of()
        task = await start(server)
        server.handle_exit(sig=signal.SIGTERM, frame=None)
        await task
        assert server.should_exit

    loop.run_until_complete(main())
