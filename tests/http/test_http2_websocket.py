"""WebSockets on streams of HTTP/2 (RFC 8441): the tests of those on HTTP/1.1, and what is different."""

import asyncio
import re

import pytest

import http2
import support
import test_websocket
import test_websocket_service
from http2_websocket import Http2WebSocketServer
from serving import run
from test_health import pages_of
from test_websocket import logged  # noqa: F401
from websocket_client import FIN, PING, PONG, TEXT, application, closing, echo, masked

pytestmark = pytest.mark.ringloop_only


@pytest.fixture(autouse=True)
def on_streams(monkeypatch):
    for module in (test_websocket, test_websocket_service):
        monkeypatch.setattr(module, "WebSocketServer", Http2WebSocketServer)


# The tests of WebSockets on connections of their own that see frames and events only.
SHARED = {
    test_websocket: """
        messages_as_they_are_received messages_of_all_lengths frames_byte_by_byte what_may_be_sent many_pings
        messages_right_behind_the_handshake several_tasks_use_it clients_that_close applications_that_close
        messages_that_may_not_be_sent clients_that_break_the_rules text_arrives_as_it_was_sent text_that_is_not_utf8
        compressed_messages a_compressed_message_may_be_empty messages_are_not_inflated_beyond_the_limit
        compression_can_be_off clients_are_pinged clients_that_do_not_answer_pings pings_can_be_off
    """,
    test_websocket_service: """
        messages_of_several_tasks_keep_their_order a_busy_application_is_no_silent_client applications_that_end
        invalid_closes invalid_accepts invalid_messages
    """,
}
for _module, _names in SHARED.items():
    for _name in _names.split():
        globals()[f"test_{_name}"] = getattr(_module, f"test_{_name}")


# -- The handshake ----------------------------------------------------------------------------------------------------


def test_the_scope_of_a_stream(arm, loop):
    seen = []

    async def instance(scope, receive, send):
        seen.append(scope)
        await receive()
        await send({"type": "websocket.close"})

    async def test():
        settings = {"root_path": "/root", "state": {"key": "value"}}
        async with Http2WebSocketServer(arm, instance, **settings) as server, server.connection() as client:
            fields = [("sec-websocket-protocol", "one, two"), ("x-some", "thing"), ("sec-websocket-protocol", "three")]
            await client.open("/a%20path?query=%41", *fields)
            return server.port, client.writer.get_extra_info("sockname")

    port, address = run(loop, test())
    (scope,) = seen
    assert scope == {
        "type": "websocket",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "2",
        "scheme": "ws",
        "server": (support.HOST, port),
        "client": address,
        "root_path": "/root",
        "path": "/root/a path",
        "raw_path": b"/root/a%20path",
        "query_string": b"query=%41",
        "headers": [
            (b"host", b"example.org"),
            (b"sec-websocket-version", b"13"),
            (b"sec-websocket-protocol", b"one, two"),
            (b"sec-websocket-protocol", b"three"),
            (b"x-some", b"thing"),
        ],
        "subprotocols": ["one", "two", "three"],
        "state": {"key": "value"},
        "extensions": {"websocket.http.response": {}},
    }


def test_accepting_on_a_stream(arm, loop, logged):  # noqa: F811
    async def instance(scope, receive, send):
        await receive()
        headers = [(b"x-more", b"things"), (b"X-Again", b"and again")]
        await send({"type": "websocket.accept", "subprotocol": "two", "headers": headers})
        await receive()

    async def test():
        async with Http2WebSocketServer(arm, instance) as server, server.connection() as client:
            socket = await client.open("/path?query", ("sec-websocket-protocol", "one, two"))
            assert (socket.found.status, socket.found.fields) == (
                200,
                [("sec-websocket-protocol", "two"), ("x-more", "things"), ("x-again", "and again")],
            )
            assert await socket.goodbye() == 1000
            counted = server.service.metrics()["requests"]
            return client.writer.get_extra_info("sockname"), counted

    address, counted = run(loop, test())
    assert logged() == [f'127.0.0.1:{address[1]} - "WebSocket /path?query" [accepted]']
    assert [(method, status) for (method, status, *_) in counted] == [("CONNECT", 200)], counted


@pytest.mark.parametrize(
    ("fields", "options", "status"),
    [
        ([], {"version": None}, 426),
        ([], {"version": "12"}, 426),
        ([("sec-websocket-version", "13")], {}, 426),
        ([], {"ends": True}, 400),
        ([("content-length", "0")], {}, 400),
        ([("sec-websocket-protocol", "a b")], {}, 400),
        ([("sec-websocket-extensions", "permessage-deflate; =")], {}, 400),
    ],
)
def test_bad_handshakes_on_a_stream(arm, loop, errors, fields, options, status):
    async def instance(scope, receive, send):
        raise AssertionError("it must not be asked")

    async def test():
        async with Http2WebSocketServer(arm, instance) as server, server.connection() as client:
            socket = await client.open("/", *fields, **options)
            await client.until(lambda: socket.found.is_over)
            versions = [value for name, value in socket.found.fields if name == "sec-websocket-version"]
            assert (socket.found.status, versions) == (status, ["13"] if status == 426 else [])

    run(loop, test())
    (message,) = errors()
    assert re.fullmatch(rf"Invalid HTTP request received\. Client 127\.0\.0\.1:\d+ gets {status}: .+", message)


def test_the_servers_own_pages_are_for_http_only(arm, loop):
    seen = []

    async def instance(scope, receive, send):
        seen.append(scope["type"])
        await send({"type": "websocket.close"})

    async def test():
        pages = pages_of()
        async with Http2WebSocketServer(arm, instance, pages=pages) as server, server.connection() as client:
            socket = await client.open("/health")
            await client.until(lambda: socket.found.is_over)
            assert socket.found.status == 403

    run(loop, test())
    assert seen == ["websocket"]


@pytest.mark.parametrize("trailers", [False, True])
def test_a_denial_must_not_look_like_an_acceptance(arm, loop, errors, trailers):
    async def instance(scope, receive, send):
        with pytest.raises(RuntimeError, match="invalid status 200"):
            await send({"type": "websocket.http.response.start", "status": 200})
        # ASGI has no trailers here.
        await send({"type": "websocket.http.response.start", "status": 404, "trailers": trailers})
        await send({"type": "websocket.http.response.body", "body": b"none"})

    async def test():
        async with Http2WebSocketServer(arm, instance) as server, server.connection() as client:
            socket = await client.open()
            await client.until(lambda: socket.found.is_over)
            assert (socket.found.status, socket.found.body) == (404, b"none")

    run(loop, test())
    assert errors()[0].endswith('"WebSocket /" 404')


@pytest.mark.parametrize("has_websockets", [True, False])
@pytest.mark.parametrize("protocol", ["websocket", "connect-udp", "WebSocket", None])
def test_other_protocols_are_what_they_were(arm, loop, errors, protocol, has_websockets):
    """Their streams are reset, and those of WebSockets, too, if these are off. Plain CONNECT is a request."""
    seen = []

    async def instance(scope, receive, send):
        seen.append((scope["type"], scope.get("method"), scope["path"]))
        if scope["type"] == "websocket":
            await send({"type": "websocket.close"})
        else:
            await send({"type": "http.response.start", "status": 405})
            await send({"type": "http.response.body"})

    async def test():
        async with Http2WebSocketServer(arm, instance, ws=has_websockets) as server, server.client() as client:
            client = http2.Client(client.reader, client.writer, {})
            await client.until(lambda: client.is_settled)
            assert client.h2.remote_settings.enable_connect_protocol == has_websockets
            stream = client.h2.get_next_available_stream_id()
            found = client.streams[stream] = http2.Stream()
            pseudo = [(":method", "CONNECT"), (":authority", "example.org:80")]
            if protocol:
                pseudo += [(":protocol", protocol), (":scheme", "http"), (":path", "/path")]
            client.h2.send_headers(stream, [*pseudo, ("sec-websocket-version", "13")])
            client.flush()
            await client.until(lambda: found.is_over)
            await client.close()
            return found.status, found.code

    status, code = run(loop, test())
    if protocol == "websocket" and has_websockets:
        assert (status, seen) == (403, [("websocket", None, "/path")])
        assert errors()[0].endswith('"WebSocket /path" 403')
    elif protocol is None:
        assert (status, seen) == (405, [("http", "CONNECT", "")])
    else:
        assert (status, code, seen) == (None, 1, [])


# -- Streams ----------------------------------------------------------------------------------------------------------


async def echo_or_answer(scope, receive, send):
    if scope["type"] == "websocket":
        await application(echo)(scope, receive, send)
    else:
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body", "body": scope["path"].encode()})


def test_many_on_one_connection(arm, loop):
    async def test():
        async with Http2WebSocketServer(arm, echo_or_answer) as server, server.connection() as client:
            sockets = [await client.open(f"/{number}") for number in range(50)]
            for turn in range(3):
                for number, socket in enumerate(sockets):
                    socket.send(f"{turn} of {number}")
                    socket.send(bytes(5000) + b"%d" % number)
                    client.ask(f"/{number}")
                for number, socket in enumerate(sockets):
                    assert await socket.message() == f"{turn} of {number}"
                    assert await socket.message() == bytes(5000) + b"%d" % number
            assert (server.service.connections, server.service.active >= 50) == (1, True)
            for socket in sockets[::2]:
                assert await socket.goodbye() == 1000
                assert socket.found.has_ended
            for socket in sockets[1::2]:
                socket.send("still open")
                assert await socket.message() == "still open"
            requests = [stream for stream in client.streams if stream not in client.sockets]
            for stream in requests:
                assert (await client.response(stream)).status == 200

    run(loop, test())


@pytest.mark.parametrize("way", ["reset", "end", "close frame and end", "connection"])
def test_how_a_stream_ends(arm, loop, way):
    heard = []

    async def body(receive, send):
        while (message := await receive())["type"] == "websocket.receive":
            heard.append(message["text"])
        heard.append(message["code"])
        with pytest.raises(OSError):
            await send({"type": "websocket.send", "text": "late"})

    async def test():
        async with Http2WebSocketServer(arm, application(body)) as server:
            async with server.connection() as client:
                socket, other = await client.open(), await client.open()
                socket.send("one")
                await support.until(lambda: heard)
                if way == "reset":
                    socket.reset()
                elif way == "end":
                    socket.writer.write_eof()
                    await client.until(lambda: socket.found.is_over)
                    assert socket.found.has_ended
                elif way == "close frame and end":
                    socket.write(closing(4000))
                    socket.writer.write_eof()
                    assert (await socket.closed())[0] == 4000
                else:
                    client.writer.transport.abort()
                await support.until(lambda: len(heard) > 1)
                if way != "connection":
                    other.send("two")
                    await support.until(lambda: len(heard) > 2)
                    assert heard == ["one", 4000 if way.startswith("close") else 1006, "two"]
            await support.until(lambda: len(heard) == (3 if way == "connection" else 4))
        assert heard[-1] == 1006

    run(loop, test())


@pytest.mark.parametrize("ends", ["", "stream", "connection"])
def test_a_window_stays_shut_until_the_application_receives(arm, loop, ends):
    """It bounds what is kept; the other streams go on; and nothing is lost, even if the client leaves meanwhile."""
    may_receive = asyncio.Event()
    heard = []

    async def body(receive, send):
        await may_receive.wait()
        while (message := await receive())["type"] == "websocket.receive":
            heard.append(int(message["bytes"]))
        heard.append("end")

    async def instance(scope, receive, send):
        await application(echo if scope["path"] == "/echo" else body)(scope, receive, send)

    async def test():
        settings = {"ws_max_queue": 4, "limit_body_ahead": 65535}
        async with Http2WebSocketServer(arm, instance, **settings) as server, server.connection() as client:
            socket, other = await client.open(), await client.open("/echo")
            frames = [masked(FIN | 2, b"%09d" % number) for number in range(30_000)]
            socket.write(b"".join(frames))
            await support.standstill(lambda: len(socket.unsent))
            assert len(b"".join(frames)) - len(socket.unsent) < 2 * 65536 + 1000
            other.send("unharmed")
            assert await other.message() == "unharmed"
            if ends:
                # What has arrived is all that there is.
                count = (len(b"".join(frames)) - len(socket.unsent)) // len(frames[0])
                socket.unsent.clear()
                if ends == "stream":
                    socket.writer.write_eof()
                    await client.until(lambda: socket.found.is_over)
                else:
                    client.writer.write_eof()
                    client.write = lambda data: None
                    await client.reading
            else:
                count = len(frames)
            may_receive.set()
            await support.until(lambda: len(heard) >= count + (1 if ends else 0))
            assert heard[:count] == list(range(count))

    run(loop, test())


def test_a_close_behind_a_full_queue_is_answered_though_the_client_sends_no_more(arm, loop):
    async def body(receive, send):
        await asyncio.Event().wait()

    async def test():
        settings = {"ws_max_queue": 4, "limit_body_ahead": 1024}
        async with Http2WebSocketServer(arm, application(body), **settings) as server, server.connection() as client:
            socket = await client.open()
            socket.write(b"".join(masked(FIN | 2, bytes(100)) for _ in range(10)) + masked(FIN | 8, b"\x03\xe8"))
            await support.turns(20)
            client.writer.write_eof()
            client.write = lambda data: None
            await client.reading
            assert await socket.reader.read() == b"\x88\x02\x03\xe8"

    run(loop, test())


def test_a_message_in_many_small_frames_of_data(arm, loop):
    """Each frame of DATA has one byte, and the application receives nothing at first: that takes no time that grows."""
    may_receive = asyncio.Event()

    async def body(receive, send):
        await may_receive.wait()
        await echo(receive, send)

    async def test():
        async with (
            Http2WebSocketServer(arm, application(body), ws_max_queue=2) as server,
            server.connection() as client,
        ):
            socket = await client.open()
            data = b"".join(masked(FIN | TEXT, b"%05d" % number) for number in range(2000))
            for byte in data:
                client.h2.send_data(socket.stream, bytes([byte]))
            client.flush()
            await support.looks(20)
            may_receive.set()
            for number in range(2000):
                assert await socket.message() == f"{number:05}"

    run(loop, test())


def test_sending_waits_for_the_window_of_the_stream(arm, loop):
    sent = []

    async def body(receive, send):
        for number in range(100):
            await send({"type": "websocket.send", "bytes": b"%d" % number + bytes(10_000)})
            sent.append(number)
        await echo(receive, send)

    async def instance(scope, receive, send):
        await application(echo if scope["path"] == "/echo" else body)(scope, receive, send)

    async def test():
        async with Http2WebSocketServer(arm, instance) as server, server.connection() as client:
            client.gives_room = False
            socket = await client.open()
            await support.standstill(lambda: len(sent))
            assert 5 <= len(sent) < 20
            # Pings are not answered one by one.
            for number in range(100):
                socket.write(masked(FIN | PING, b"%d" % number))
            client.h2.increment_flow_control_window(1 << 20)
            client.flush()
            other = await client.open("/echo")
            other.send("unharmed")
            assert await other.message() == "unharmed"
            client.h2.increment_flow_control_window(2 << 20, socket.stream)
            client.flush()
            frames = [await socket.frame() for _ in range(101)]
            assert [payload for opcode, payload in frames if opcode == PONG] == [b"99"]
            assert [payload[:2].strip(b"\0") for opcode, payload in frames if opcode == 2] == [
                b"%d" % number for number in range(100)
            ]

    run(loop, test())


def test_a_client_that_gives_no_room_is_cut_off(arm, loop):
    """Its stream is, and the others stay."""
    heard = []

    async def body(receive, send):
        with pytest.raises(OSError):
            while True:
                await send({"type": "websocket.send", "bytes": bytes(10_000)})
        heard.append((await receive())["code"])

    async def instance(scope, receive, send):
        await application(echo if scope["path"] == "/echo" else body)(scope, receive, send)

    async def test():
        settings = {"timeout_write": 0.05, "ws_ping_interval": None}
        async with Http2WebSocketServer(arm, instance, **settings) as server, server.connection() as client:
            client.gives_room = False
            socket = await client.open()
            client.h2.increment_flow_control_window(1 << 20)
            client.flush()
            other = await client.open("/echo")
            await client.until(lambda: socket.found.is_over)
            assert socket.found.code == 8
            await support.until(lambda: heard)
            assert heard == [1006]
            other.send("unharmed")
            assert await other.message() == "unharmed"

    run(loop, test())


def test_each_stream_has_deadlines_of_its_own(arm, loop):
    async def test():
        settings = {"ws_ping_interval": 0.01, "ws_ping_timeout": 0.01}
        async with Http2WebSocketServer(arm, echo_or_answer, **settings) as server, server.connection() as client:
            for _ in range(2):
                sockets = [await client.open() for _ in range(3)]
                for socket in sockets:
                    assert (await socket.frame())[0] == PING
                    assert await socket.closed() == (1011, "keepalive ping timeout")
                    await client.until(lambda socket=socket: socket.found.is_over)
                    assert socket.found.has_ended
            # The connection has none.
            assert (await client.response(client.ask("/still"))).body == b"/still"
            assert server.service.connections == 1

    run(loop, test())


def test_the_end_of_a_server_with_many_streams(arm, loop):
    async def test():
        async with Http2WebSocketServer(arm, echo_or_answer) as server, server.connection() as client:
            sockets = [await client.open() for _ in range(5)]
            server.service.shut_down()
            for socket in sockets:
                assert await socket.closed() == (1012, "")
                socket.write(closing(1012))
            await client.reading
            assert client.goaways
            assert all(socket.found.has_ended for socket in sockets)
            await support.until(lambda: server.service.connections == 0)

    run(loop, test())
