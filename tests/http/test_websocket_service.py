"""WebSockets of ringloop alone: flow control, the server's end, memory, and applications and clients that end at any point."""

import asyncio
import contextlib
import gc
import random
import socket
import ssl
import sys
import threading
import weakref

import pytest

import support
from serving import LOGGER, run
from test_service import until_closed
from websocket_client import (
    BINARY,
    CONTINUATION,
    FIN,
    HANDSHAKE,
    PING,
    PONG,
    TEXT,
    WebSocketClient,
    WebSocketServer,
    application,
    closing,
    echo,
    masked,
)

pytestmark = pytest.mark.ringloop_only

# More than the buffers of two sockets hold.
FAR_TOO_MUCH = 64 << 20


# -- Flow control -----------------------------------------------------------------------------------------------------


def test_messages_of_several_tasks_keep_their_order(arm, loop):
    """Also when `send` gives way, which it does once in `SENT_MAX` messages."""
    count = 3000

    async def produce(send):
        for begin in range(0, count, 3):
            numbers = range(begin, begin + 3)
            await asyncio.gather(*(send({"type": "websocket.send", "bytes": b"%04d" % number}) for number in numbers))

    async def body(receive, send):
        await asyncio.create_task(produce(send))

    async def test():
        async with WebSocketServer(arm, application(body)) as server, server.websocket() as client:
            for number in range(count):
                assert await client.frame() == (BINARY, b"%04d" % number)

    run(loop, test())


def test_many_messages_that_wait_for_room_keep_nobody_busy(arm, loop):
    async def body(receive, send):
        message = {"type": "websocket.send", "bytes": bytes(20_000)}
        sending.extend(asyncio.create_task(send(message)) for _ in range(3000))
        await asyncio.gather(*sending, return_exceptions=True)

    sending = []

    async def test():
        async with WebSocketServer(arm, application(body)) as server, server.websocket() as client:
            await support.until(lambda: sum(task.done() for task in sending) > 1)
            await support.standstill(lambda: sum(task.done() for task in sending))
            assert sum(not task.done() for task in sending) > 1100
            before = loop.metrics().callbacks
            await support.looks(5)
            assert loop.metrics().callbacks - before < 100
            client.reset()
            await support.until(lambda: all(task.done() for task in sending))

    run(loop, test())


@pytest.mark.parametrize("size", [0, 1, 50_000])
def test_reading_stops_if_nothing_is_received(arm, loop, size):
    begin = asyncio.Event()
    received = []

    async def body(receive, send):
        await begin.wait()
        while (message := await receive())["type"] == "websocket.receive":
            received.append(int(message["bytes"][:8] or b"0"))

    async def test():
        async with WebSocketServer(arm, application(body)) as server, server.websocket() as client:
            sent = 0
            # Until the sockets are full: nobody takes anything.
            draining = asyncio.ensure_future(asyncio.sleep(0))
            while True:
                await asyncio.sleep(0)
                if not draining.done():
                    await support.standstill(client.writer.transport.get_write_buffer_size)
                    if not draining.done():
                        break
                block = b"".join(masked(FIN | BINARY, b"%08d" % (sent + at) + bytes(size)) for at in range(100))
                client.write(block)
                sent += 100
                assert sent * (size + 14) <= FAR_TOO_MUCH, "all of it was taken"
                draining = asyncio.ensure_future(client.writer.drain())

            assert not received
            begin.set()
            await draining
            assert await client.goodbye() == 1000
            await support.until(lambda: not server.service.active)
            assert received == list(range(sent))

    run(loop, test())


def test_sending_waits_for_the_client(arm, loop):
    count = FAR_TOO_MUCH // 100_000
    progress = []

    async def body(receive, send):
        for number in range(count):
            await send({"type": "websocket.send", "bytes": b"%08d" % number + bytes(100_000)})
            progress.append(number)
        await send({"type": "websocket.close"})

    async def test():
        async with WebSocketServer(arm, application(body)) as server, server.websocket() as client:
            await support.until(lambda: progress)
            # It gets no further by itself.
            assert await support.standstill(lambda: len(progress)) < count
            for number in range(count):
                assert (await client.message())[:8] == b"%08d" % number
            assert await client.closed() == (1000, "")

    run(loop, test())


@pytest.mark.parametrize("way", ["reset", "close", "timeout"])
def test_a_client_that_leaves_while_it_is_sent_to(arm, loop, way):
    sent, caught = [], []

    async def body(receive, send):
        try:
            while True:
                await send({"type": "websocket.send", "bytes": bytes(1_000_000)})
                sent.append(1)
        except OSError as error:
            caught.append(type(error).__name__)
            caught.append((await receive())["code"])

    async def test():
        settings = {"timeout_write": 0.2} if way == "timeout" else {}
        async with WebSocketServer(arm, application(body), **settings) as server, server.websocket() as client:
            client.writer.transport.pause_reading()
            if way == "reset":
                await support.standstill(lambda: len(sent))
                client.reset()
            elif way == "close":
                await support.standstill(lambda: len(sent))
                client.writer.transport.abort()
            await support.until(lambda: len(caught) == 2)
            client.writer.transport.abort()

    run(loop, test())
    assert caught == ["ClientDisconnected", 1006]


def test_pings_of_a_client_that_does_not_read(arm, loop):
    begin = asyncio.Event()

    async def body(receive, send):
        await begin.wait()
        await echo(receive, send)

    async def test():
        async with WebSocketServer(arm, application(body)) as server, server.websocket() as client:
            client.writer.transport.pause_reading()
            ping = masked(FIN | PING, bytes(125))
            for _ in range(FAR_TOO_MUCH // (100 * len(ping))):
                client.write(ping * 100)
                await client.writer.drain()
            begin.set()
            client.writer.transport.resume_reading()
            client.write(masked(FIN | PING, b"the last"))
            client.send("over")
            count = 0
            while (frame := await client.frame()) != (TEXT, b"over"):
                count += 1
                last = frame
            assert last == (PONG, b"the last")
            # What could not be written was not kept.
            assert count < FAR_TOO_MUCH // len(ping)

    run(loop, test())


def test_a_busy_application_is_no_silent_client(arm, loop):
    """The queue is full, so that the answer to a ping is not read."""
    over = asyncio.Event()

    async def body(receive, send):
        await over.wait()
        await echo(receive, send)

    async def test():
        settings = {"ws_max_queue": 2, "ws_ping_interval": 0.01, "ws_ping_timeout": 0.01}
        async with WebSocketServer(arm, application(body), **settings) as server, server.websocket() as client:
            for _ in range(10):
                client.send("waiting")
            await asyncio.sleep(0.1)  # Long enough for pings to be due, and their answers.
            over.set()
            for _ in range(10):
                assert await client.message() == "waiting"

    run(loop, test())


# -- Before the answer ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["close", "reset"])
def test_a_client_that_leaves_before_its_handshake_is_answered(arm, loop, way):
    """It has sent more than is read ahead. While reading is paused nobody sees its end, and the application waits for it."""
    begun = asyncio.Event()
    gone = asyncio.Event()
    seen = []

    async def instance(scope, receive, send):
        await receive()
        begun.set()
        await gone.wait()
        seen.append((await receive())["type"])

    async def test():
        async with WebSocketServer(arm, instance, timeout_body=0.05) as server:
            async with server.raw() as client:
                client.write(HANDSHAKE % b"/" + b"\r\n" + masked(FIN | BINARY, bytes(100_000)))
                await begun.wait()
                # As much as the server takes, so that it has paused reading.
                await support.standstill(client.writer.transport.get_write_buffer_size)
                if way == "reset":
                    client.reset()
            gone.set()
            await until_closed(server)

    run(loop, test())
    assert seen == ["websocket.disconnect"]


def test_what_was_sent_before_the_answer_is_not_dropped(arm, loop, caplog):
    """The WebSocket would begin in the middle of a frame."""
    caplog.set_level("INFO", LOGGER)
    seen = []

    async def instance(scope, receive, send):
        await receive()
        with contextlib.suppress(TimeoutError):
            seen.append(await asyncio.wait_for(receive(), support.PATIENCE_S))
        await send({"type": "websocket.accept"})

    async def test():
        async with WebSocketServer(arm, instance, timeout_body=0.05) as server, server.raw() as client:
            line, _, body = await client.shake_hands(early=masked(FIN | BINARY, bytes(100_000)))
            return line, body

    assert run(loop, test()) == ("HTTP/1.1 408 Request Timeout", b"request timeout")
    assert [(message["type"], message["code"]) for message in seen] == [("websocket.disconnect", 1006)]
    texts = [record.getMessage() for record in caplog.records if record.name == LOGGER]
    assert len(texts) == 1
    assert texts[0].endswith('"WebSocket /" 408')


# -- The end ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("raises", [False, True])
def test_applications_that_end(arm, loop, raises, caplog):
    async def body(receive, send):
        await send({"type": "websocket.send", "text": "and out"})
        if raises:
            raise ValueError("as the test wants")

    async def test():
        async with WebSocketServer(arm, application(body)) as server, server.websocket() as client:
            assert await client.message() == "and out"
            found = await client.closed()
            client.write(closing(found[0]))
            assert await client.rest() == b""
            return found

    assert run(loop, test()) == ((1011, "") if raises else (1000, ""))
    errors = [record for record in caplog.records if record.name == LOGGER and record.levelname == "ERROR"]
    assert [record.getMessage() for record in errors] == (["Exception in ASGI application\n"] if raises else [])


def test_the_server_shuts_down(arm, loop):
    events = []

    async def body(receive, send):
        events.append(await receive())
        with pytest.raises(OSError):
            await send({"type": "websocket.send", "text": "too late"})

    async def test():
        async with WebSocketServer(arm, application(body)) as server, server.websocket() as client:
            await asyncio.sleep(0)
            server.service.shut_down()
            assert await client.closed() == (1012, "")
            client.write(closing(1012))
            assert await client.rest() == b""
            await server.service.wait_closed()

    run(loop, test())
    assert events == [{"type": "websocket.disconnect", "code": 1012, "reason": ""}]


@pytest.mark.parametrize("moment", ["before accepting", "open", "closing"])
def test_clients_that_do_not_answer_a_shutdown(arm, loop, moment):
    go_on = asyncio.Event()

    async def instance(scope, receive, send):
        await receive()
        if moment == "before accepting":
            await go_on.wait()
        await send({"type": "websocket.accept"})
        if moment == "closing":
            await send({"type": "websocket.close"})
        await receive()

    async def test():
        async with WebSocketServer(arm, instance) as server, server.raw() as client:
            accepted = asyncio.ensure_future(client.shake_hands())
            await support.until(lambda: server.service.requests)
            if moment != "before accepting":
                await accepted
            server.service.shut_down()
            go_on.set()
            await accepted
            assert (await client.closed())[0] == (1000 if moment == "closing" else 1012)
            # The second step of the server's shutdown.
            server.service.disconnect()
            assert await client.rest() == b""
            await server.service.wait_closed()

    run(loop, test())


def test_aborting(arm, loop):
    caught = []

    async def body(receive, send):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            caught.append("cancelled")
            raise

    async def test():
        async with WebSocketServer(arm, application(body)) as server, server.websocket() as client:
            server.service.abort()
            await server.service.wait_closed()
            with contextlib.suppress(ConnectionError):
                await client.rest()

    run(loop, test())
    assert caught == ["cancelled"]


def test_a_client_that_ends_its_side(arm, loop):
    events = []

    async def body(receive, send):
        events.append(await receive())
        events.append(await receive())

    async def test():
        async with WebSocketServer(arm, application(body)) as server, server.websocket() as client:
            client.send("last words")
            client.writer.write_eof()
            assert await client.rest() == b""
            await support.until(lambda: not server.service.active)

    run(loop, test())
    assert events == [
        {"type": "websocket.receive", "text": "last words"},
        {"type": "websocket.disconnect", "code": 1006, "reason": ""},
    ]


def test_what_comes_after_a_broken_rule_is_dropped(arm, loop):
    async def test():
        async with WebSocketServer(arm, application(echo)) as server, server.websocket() as client:
            client.write(masked(FIN | 3, b"unknown opcode"))
            assert (await client.closed())[0] == 1002
            # More than the buffers of two sockets hold.
            client.write(bytes(16 << 20))
            await client.writer.drain()
            client.writer.write_eof()
            assert await client.rest() == b""

    run(loop, test())


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"code": 999}, "invalid close code 999"),
        ({"code": 1006}, "invalid close code 1006"),
        ({"code": 1000, "reason": "x" * 124}, "too long"),
    ],
)
def test_invalid_closes(arm, loop, message, text):
    async def body(receive, send):
        with pytest.raises(RuntimeError, match=text):
            await send({"type": "websocket.close", **message})
        with pytest.raises(TypeError):
            await send({"type": "websocket.close", "reason": b"no string"})
        # That stands for no code.
        await send({"type": "websocket.close", "code": 1005})

    async def test():
        async with WebSocketServer(arm, application(body)) as server, server.websocket() as client:
            assert await client.closed() == (None, "")

    run(loop, test())


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"subprotocol": "unasked"}, "the client did not offer that subprotocol"),
        ({"headers": [(b"Connection", b"close")]}, "header not allowed in a WebSocket handshake"),
        ({"headers": [(b"a\n", b"b")]}, "header name"),
        ({"headers": [(b"a", b"b\r\nc: d")]}, "header value"),
    ],
)
def test_invalid_accepts(arm, loop, message, text):
    async def instance(scope, receive, send):
        with pytest.raises(RuntimeError, match=text):
            await send({"type": "websocket.accept", **message})
        await send({"type": "websocket.accept", "subprotocol": ""})
        await send({"type": "websocket.close"})

    async def test():
        async with WebSocketServer(arm, instance) as server, server.websocket() as client:
            assert await client.closed() == (1000, "")

    run(loop, test())


@pytest.mark.parametrize("content", [{"text": "\ud800"}, {"text": b"bytes"}, {"text": 1}, {"bytes": "text"}])
def test_invalid_messages(arm, loop, content):
    async def body(receive, send):
        with pytest.raises((TypeError, UnicodeEncodeError)):
            await send({"type": "websocket.send", **content})
        await send({"type": "websocket.send"})
        await send({"type": "websocket.send", "text": "valid"})

    async def test():
        async with WebSocketServer(arm, application(body)) as server, server.websocket() as client:
            assert await client.message() == "valid"

    run(loop, test())


def test_the_service_has_default_headers(arm, loop):
    """Those that frame a body, or are the handshake's own, are for other responses."""

    async def instance(scope, receive, send):
        await receive()
        await send({"type": "websocket.accept", "headers": [(b"X-Default", b"own"), (b"Server", b"own")]})

    async def test():
        headers = [(b"server", b"some"), (b"x-default", b"value"), (b"connection", b"x"), (b"upgrade", b"y")]
        for app, expected in (
            (application(echo), [b"x-default: value", b"server: some"]),
            (instance, [b"x-default: value", b"x-default: own", b"server: own"]),
        ):
            async with WebSocketServer(arm, app, headers=headers) as server, server.raw() as client:
                client.write(HANDSHAKE % b"/" + b"\r\n")
                lines = (await client.reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
                assert [line for line in lines if line.startswith((b"server", b"x-default"))] == expected

    run(loop, test())


@pytest.mark.parametrize("method", [b"GET", b"HEAD"])
@pytest.mark.parametrize("version", [b"12", b"13"])
def test_a_refused_handshake_lingers(arm, loop, method, version):
    """If data met a closed socket, the kernel would reset the connection, and the client might lose the answer."""

    async def instance(scope, receive, send):
        raise AssertionError("it must not be asked")

    async def test():
        async with WebSocketServer(arm, instance) as server, server.raw() as client:
            handshake = (HANDSHAKE % b"/").replace(b"GET", method).replace(b"13", version)
            if version == b"13":
                handshake = handshake.replace(b"-Key", b"-No-Key")
            client.write(handshake + b"\r\n")
            head, _, body = (await client.rest()).partition(b"\r\n\r\n")
            for _ in range(10):
                client.write(bytes(1000))
                await client.writer.drain()
                await support.looks()
            return head.split(b"\r\n"), body

    (line, *fields), body = run(loop, test())
    is_old = (method, version) == (b"GET", b"12")
    assert line == (b"HTTP/1.1 426 Upgrade Required" if is_old else b"HTTP/1.1 400 Bad Request")
    assert b"connection: close" in fields
    assert (b"sec-websocket-version: 13" in fields) == is_old
    assert bool(body) == (method == b"GET")


def test_too_many_connections(arm, loop, caplog):
    caplog.set_level("INFO", LOGGER)

    async def test():
        settings = {"limit_concurrency": 1, "log_access": True}
        async with WebSocketServer(arm, application(echo), **settings) as server, server.raw() as client:
            line, _, body = await client.shake_hands(b"/path")
            assert not server.access
            return line, body

    assert run(loop, test()) == ("HTTP/1.1 503 Service Unavailable", b"Service Unavailable")
    texts = [record.getMessage() for record in caplog.records if record.name == LOGGER]
    assert texts[0].endswith('"WebSocket /path" 503')


# -- Other threads, other loops, TLS ----------------------------------------------------------------------------------


def test_tls(arm, loop, contexts):
    serving, trusting = contexts
    seen = []

    async def instance(scope, receive, send):
        seen.append(scope["scheme"])
        await application(echo)(scope, receive, send)

    async def test():
        async with WebSocketServer(arm, instance) as server:
            server.listener.close()
            loop = asyncio.get_running_loop()
            server.listener = await loop.create_server(server.service.protocol, support.HOST, 0, ssl=serving)
            port = server.listener.sockets[0].getsockname()[1]
            streams = await asyncio.open_connection(support.HOST, port, ssl=trusting, server_hostname="localhost")
            client = WebSocketClient(*streams)
            try:
                await client.shake_hands()
                for message in ("text", bytes(500_000), "ä" * 100_000):
                    client.send(message, parts=3)
                    assert await client.message() == message
                client.write(b"\x81\x00")
                assert (await client.closed())[0] == 1002
            finally:
                await client.close()

    run(loop, test())
    assert seen == ["wss"]


@pytest.mark.parametrize("closes", [False, True])
def test_the_end_of_tls_comes_after_messages_that_wait(arm, loop, contexts, closes):
    """TLS tells of the end even while reading is paused."""
    serving, trusting = contexts
    begin = asyncio.Event()
    received = []

    async def body(receive, send):
        await begin.wait()
        while (message := await receive())["type"] == "websocket.receive":
            received.append(int(message["text"]))
        received.append(message["code"])

    async def test():
        async with WebSocketServer(arm, application(body), ws_max_queue=2) as server:
            server.listener.close()
            loop = asyncio.get_running_loop()
            server.listener = await loop.create_server(server.service.protocol, support.HOST, 0, ssl=serving)
            port = server.listener.sockets[0].getsockname()[1]
            streams = await asyncio.open_connection(support.HOST, port, ssl=trusting, server_hostname="localhost")
            client = WebSocketClient(*streams)
            await client.shake_hands()
            frames = b"".join(masked(FIN | TEXT, b"%d" % number) for number in range(100))
            client.write(frames + (closing(1000) if closes else b""))
            # It has ended its side, and is answered all the same.
            with contextlib.suppress(ssl.SSLError):
                await client.close()
            await support.until(lambda: not server.service.connections)
            begin.set()
            await support.until(lambda: not server.service.active)

    run(loop, test())
    assert received == [*range(100), 1000 if closes else 1006]


def test_answers_from_another_thread(arm, loop):
    async def body(receive, send):
        loop = asyncio.get_running_loop()

        def work():
            for number in range(20):
                message = {"type": "websocket.send", "text": str(number)}
                asyncio.run_coroutine_threadsafe(send(message), loop).result(support.PATIENCE_S)

        thread = threading.Thread(target=work)
        thread.start()
        await loop.run_in_executor(None, thread.join)

    async def test():
        async with WebSocketServer(arm, application(body)) as server, server.websocket() as client:
            return [await client.message() for _ in range(20)]

    assert run(loop, test()) == [str(number) for number in range(20)]


# -- Memory -----------------------------------------------------------------------------------------------------------


def test_cycles_are_collected(arm, loop):
    class Holder:
        pass

    references = []

    async def instance(scope, receive, send):
        holder = Holder()
        holder.all = (scope, receive, send, holder)
        references.append(weakref.ref(holder))
        await receive()
        await send({"type": "websocket.accept"})
        holder.waiting = asyncio.ensure_future(receive())
        await echo(receive, send)

    async def test():
        async with WebSocketServer(arm, instance) as server:
            for _ in range(5):
                async with server.websocket() as client:
                    client.send("for the one")
                    client.send("for the other")
                    client.write(closing())
            await support.until(lambda: not server.service.active)
        await asyncio.sleep(0)

    run(loop, test())
    gc.collect()
    assert [reference() for reference in references] == [None] * 5


@pytest.mark.exact
def test_nothing_grows(arm, loop, caplog):
    # Records of the log are kept for the test.
    caplog.set_level("CRITICAL", LOGGER)

    async def test():
        async with WebSocketServer(arm, application(echo)) as server:

            async def rounds(count):
                for _ in range(count):
                    async with server.websocket() as client:
                        client.send("hello")
                        await client.message()
                        await client.goodbye()
                await support.until(lambda: not server.service.connections)
                return own_objects(), sys.getallocatedblocks()

            own_objects = support.count_objects_from_here()
            await rounds(20)
            objects, blocks = await rounds(20)
            more_objects, more_blocks = await rounds(100)
            assert more_objects - objects < 50
            assert more_blocks - blocks < 500

    run(loop, test())


# -- Anything, at any time --------------------------------------------------------------------------------------------


def test_everything_at_random(arm, loop, caplog):
    """Clients and applications that send, close, raise, cancel, reset, and break the rules."""
    caplog.set_level("CRITICAL")
    randomness = random.Random(7)

    async def instance(scope, receive, send):
        chance = randomness.random
        with contextlib.suppress(OSError):
            if chance() < 0.9:
                await receive()
            if chance() < 0.1:
                await send({"type": "websocket.close"})
                return
            if chance() < 0.1:
                await send({"type": "websocket.http.response.start", "status": 400})
                await send({"type": "websocket.http.response.body", "body": b"no", "more_body": chance() < 0.5})
                return
            await send({"type": "websocket.accept"})
            while True:
                way = randomness.choice("rrrrsssscxkt")
                if way == "r":
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(0.005):
                            if (await receive())["type"] == "websocket.disconnect" and chance() < 0.5:
                                return
                elif way == "s":
                    await send({"type": "websocket.send", "bytes": bytes(randomness.choice((0, 10, 200_000)))})
                elif way == "c":
                    await send({"type": "websocket.close", "code": 4000})
                    if chance() < 0.5:
                        return
                elif way == "x":
                    raise ValueError("at random")
                elif way == "k":
                    asyncio.current_task().cancel()
                else:
                    asyncio.ensure_future(receive()).add_done_callback(
                        lambda task: task.cancelled() or task.exception()
                    )

    async def use(server):
        async with server.raw() as client:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                client.write(
                    b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
                )
                for _ in range(randomness.randrange(30)):
                    first = randomness.choice((TEXT, BINARY, CONTINUATION, PING, PONG)) | randomness.choice((FIN, 0))
                    frame = masked(first, bytes(randomness.choice((0, 10, 125))))
                    cut = randomness.randrange(len(frame))
                    client.write(frame[:cut])
                    if randomness.random() < 0.3:
                        await asyncio.sleep(0)
                    if randomness.random() < 0.03:
                        client.reset()
                        return
                    client.write(frame[cut:])
                    if randomness.random() < 0.05:
                        client.write(closing(1000))
                async with asyncio.timeout(0.05):
                    await client.rest()

    async def one(server):
        with contextlib.suppress(TimeoutError):
            await use(server)

    async def test():
        settings = {"ws_ping_interval": 0.003, "ws_ping_timeout": 0.003, "ws_max_queue": 3}
        async with WebSocketServer(arm, instance, **settings) as server:
            for _ in range(30):
                await asyncio.gather(*(one(server) for _ in range(10)))
            server.service.shut_down()
            server.service.disconnect()

    reported = []
    loop.set_exception_handler(lambda _, context: reported.append(context))
    run(loop, test())
    assert not reported


def test_a_socket_pair(arm, loop):
    """A transport whose peer has no address."""

    async def test():
        async with WebSocketServer(arm, application(echo)) as server:
            ours, theirs = socket.socketpair()
            loop = asyncio.get_running_loop()
            await loop.connect_accepted_socket(server.service.protocol, ours)
            client = WebSocketClient(*await asyncio.open_connection(sock=theirs))
            await client.shake_hands()
            client.send("hello")
            assert await client.message() == "hello"
            await client.goodbye()
            await client.close()

    run(loop, test())
