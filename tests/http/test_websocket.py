"""WebSockets, with uvicorn as the control: what applications are told, what they may send, and how it ends."""

import asyncio
import logging
import random
import zlib

import pytest

import support
from serving import LOGGER, run
from websocket_client import (
    BINARY,
    CLOSE,
    CONTINUATION,
    FIN,
    PING,
    PONG,
    RSV1,
    TEXT,
    WebSocketServer,
    application,
    closing,
    echo,
    masked,
    random_messages,
)


@pytest.fixture
def logged(caplog):
    """Return a function that takes what the server has logged since the last call."""
    caplog.set_level(logging.INFO, LOGGER)

    def take():
        # The package websockets, uvicorn's implementation, says more.
        found = [record.getMessage() for record in caplog.records if record.name == LOGGER]
        caplog.clear()
        return [text for text in found if not text.startswith("connection ")]

    return take


def events_of(arm, loop, body, act, **settings):
    """Return what happens to an application with this body while `act(client)` runs, and what that returns."""
    events = []

    async def recorded(receive, send):
        async def recorded_receive():
            message = await receive()
            events.append(message)
            return message

        await body(recorded_receive, send)

    over = asyncio.Event()

    async def instance(scope, receive, send):
        try:
            await application(recorded, events=events)(scope, receive, send)
        finally:
            over.set()

    async def test():
        async with WebSocketServer(arm, instance, **settings) as server:
            async with server.websocket() as client:
                result = await act(client)
            await over.wait()
            return result

    return events, run(loop, test())


# -- The handshake ----------------------------------------------------------------------------------------------------


def test_the_scope(arm, loop):
    seen = []

    async def instance(scope, receive, send):
        seen.append(scope)
        await receive()
        await send({"type": "websocket.close"})

    fields = b"Sec-WebSocket-Protocol: one, two\r\nX-Some: thing\r\nSec-WebSocket-Protocol: three\r\n"

    async def test():
        settings = {"root_path": "/root", "state": {"key": "value"}}
        async with WebSocketServer(arm, instance, **settings) as server, server.raw() as client:
            await client.shake_hands(b"/a%20path?query=%41", fields)
            return server.port, client.writer.get_extra_info("sockname")

    port, address = run(loop, test())
    (scope,) = seen
    headers = scope.pop("headers")
    assert (b"x-some", b"thing") in headers
    assert (b"sec-websocket-version", b"13") in headers
    assert scope == {
        "type": "websocket",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "scheme": "ws",
        "server": ("127.0.0.1", port),
        "client": address[:2],
        "root_path": "/root",
        "path": "/root/a path",
        "raw_path": b"/root/a%20path",
        "query_string": b"query=%41",
        "subprotocols": ["one", "two", "three"],
        "state": {"key": "value"},
        "extensions": {"websocket.http.response": {}},
    }


def test_accepting(arm, loop, logged):
    async def instance(scope, receive, send):
        await receive()
        headers = [(b"x-more", b"things"), (b"X-Again", b"and again")]
        await send({"type": "websocket.accept", "subprotocol": "two", "headers": headers})
        await receive()

    async def test():
        async with WebSocketServer(arm, instance) as server:
            fields = b"Sec-WebSocket-Protocol: one, two\r\n"
            async with server.websocket(b"/path?query", fields) as client:
                assert client.answer == (
                    "HTTP/1.1 101 Switching Protocols",
                    {
                        "upgrade": "websocket",
                        "connection": "Upgrade",
                        "sec-websocket-accept": "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=",
                        "sec-websocket-protocol": "two",
                        "x-more": "things",
                        "x-again": "and again",
                    },
                    b"",
                )
                assert await client.goodbye() == 1000
                return client.writer.get_extra_info("sockname")

    address = run(loop, test())
    assert logged() == [f'127.0.0.1:{address[1]} - "WebSocket /path?query" [accepted]']


@pytest.mark.parametrize("way", ["close", "return", "raise"])
def test_refusing(arm, loop, way, logged):
    seen = []

    async def instance(scope, receive, send):
        await receive()
        if way == "close":
            await send({"type": "websocket.close", "code": 4000})
            seen.append(await receive())
            with pytest.raises(RuntimeError, match=r"Unexpected ASGI message 'websocket.accept', after sending"):
                await send({"type": "websocket.accept"})
        if way == "raise":
            raise ValueError("not now")

    async def test():
        async with WebSocketServer(arm, instance) as server, server.raw() as client:
            line, fields, body = await client.shake_hands()
            return line, fields["connection"], body

    answer = run(loop, test())
    texts = logged()
    if way == "close":
        assert answer == ("HTTP/1.1 403 Forbidden", "close", b"")
        # The connection may be lost before it asks.
        assert seen[0]["code"] == 1006
        assert texts[0].endswith('"WebSocket /" 403')
    else:
        assert answer == ("HTTP/1.1 500 Internal Server Error", "close", b"Internal Server Error")
        said = "Exception in ASGI application\n"
        assert texts == [said if way == "raise" else "ASGI callable returned without completing handshake."]


def test_a_response_instead(arm, loop, logged):
    seen = []

    async def instance(scope, receive, send):
        await receive()
        headers = [(b"content-type", b"text/x-mine"), (b"content-length", b"11")]
        await send({"type": "websocket.http.response.start", "status": 418, "headers": headers})
        with pytest.raises(RuntimeError, match=r"Expected ASGI message 'websocket.http.response.body'"):
            await send({"type": "websocket.accept"})
        await send({"type": "websocket.http.response.body", "body": b"short and ", "more_body": True})
        await send({"type": "websocket.http.response.body", "body": b"s"})
        seen.append((await receive())["code"])

    async def test():
        async with WebSocketServer(arm, instance) as server, server.raw() as client:
            line, fields, body = await client.shake_hands()
            return line.split(" ")[1], fields["content-type"], fields["connection"], body

    assert run(loop, test()) == ("418", "text/x-mine", "close", b"short and s")
    assert seen == [1006]
    assert logged()[0].endswith('"WebSocket /" 418')


@pytest.mark.parametrize(
    ("field", "replacement", "status"),
    [
        (b"Sec-WebSocket-Version: 13", b"Sec-WebSocket-Version: 12", "426"),
        (b"Sec-WebSocket-Key: ", b"Sec-WebSocket-Key: x", "400"),
        (b"Sec-WebSocket-Key", b"X-Key", "400"),
    ],
)
def test_bad_handshakes(arm, loop, field, replacement, status):
    async def instance(scope, receive, send):
        raise AssertionError("it must not be asked")

    async def test():
        from websocket_client import HANDSHAKE

        async with WebSocketServer(arm, instance) as server:
            answer = await server.ask((HANDSHAKE % b"/" + b"\r\n").replace(field, replacement))
            head = answer.partition(b"\r\n\r\n")[0].decode().lower().split("\r\n")
            return head[0].split(" ")[1], "sec-websocket-version: 13" in head

    if arm == "asyncio" and status == "426":
        status = "400"
    found, names_version = run(loop, test())
    assert found == status
    assert names_version == (found == "426")


# -- Messages ---------------------------------------------------------------------------------------------------------


def test_messages_as_they_are_received(arm, loop):
    async def act(client):
        client.send("text")
        client.send(b"bytes")
        client.send("")
        client.send(b"")
        client.send("in three parts: äöü", parts=3)
        answers = [await client.message() for _ in range(5)]
        await client.goodbye()
        return answers

    events, answers = events_of(arm, loop, echo, act)
    assert answers == ["text", b"bytes", "", b"", "in three parts: äöü"]
    assert events == [
        {"type": "websocket.receive", "text": "text"},
        {"type": "websocket.receive", "bytes": b"bytes"},
        {"type": "websocket.receive", "text": ""},
        {"type": "websocket.receive", "bytes": b""},
        {"type": "websocket.receive", "text": "in three parts: äöü"},
        {"type": "websocket.disconnect", "code": 1000, "reason": ""},
        "returned",
    ]


def test_messages_of_all_lengths(arm, loop):
    randomness = random.Random(1)
    messages = list(random_messages(randomness, 200))

    async def act(client):
        async def send():
            for message in messages:
                client.send(message, parts=randomness.choice((1, 1, 2, 7)))
                if randomness.random() < 0.2:
                    client.write(masked(FIN | PONG, b"unasked"))
                await client.writer.drain()

        sending = asyncio.ensure_future(send())
        answers = [await client.message() for _ in messages]
        await sending
        return answers

    assert events_of(arm, loop, echo, act)[1] == messages


def test_frames_byte_by_byte(arm, loop):
    async def act(client):
        for byte in masked(TEXT, b"first ") + masked(FIN | PING, b"ping") + masked(FIN | CONTINUATION, b"and second"):
            client.write(bytes([byte]))
            await asyncio.sleep(0)
        assert await client.frame() == (PONG, b"ping")
        return await client.message()

    assert events_of(arm, loop, echo, act)[1] == "first and second"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"bytes": b"b", "text": "t"}, b"b"),
        ({"bytes": None, "text": "t"}, "t"),
        ({"bytes": b"b", "text": None}, b"b"),
        ({"bytes": bytearray(b"array")}, b"array"),
        ({"bytes": memoryview(b"view")}, b"view"),
        ({"text": "x" * 100_000}, "x" * 100_000),
        ({"bytes": b"x" * 100_000}, b"x" * 100_000),
    ],
)
def test_what_may_be_sent(arm, loop, content, expected):
    async def body(receive, send):
        await send({"type": "websocket.send", **content})
        await send({"type": "websocket.close"})

    async def act(client):
        return await client.message(), await client.closed()

    assert events_of(arm, loop, body, act)[1] == (expected, (1000, ""))


def test_many_pings(arm, loop):
    async def act(client):
        for number in range(10):
            client.write(masked(FIN | PING, b"%d" % number))
        return [await client.frame() for _ in range(10)]

    assert events_of(arm, loop, echo, act)[1] == [(PONG, b"%d" % number) for number in range(10)]


def test_messages_right_behind_the_handshake(arm, loop):
    if arm == "asyncio":
        pytest.skip("uvicorn drops them")

    async def test():
        async with WebSocketServer(arm, application(echo)) as server:
            early = masked(FIN | TEXT, b"early") + masked(TEXT, b"and")
            async with server.websocket(early=early) as client:
                first = await client.message()
                client.write(masked(FIN | CONTINUATION, b" late"))
                return first, await client.message()

    assert run(loop, test()) == ("early", "and late")


def test_several_tasks_use_it(arm, loop):
    async def body(receive, send):
        async def speak(name):
            for number in range(100):
                await send({"type": "websocket.send", "text": f"{name} {number}"})
                await asyncio.sleep(0)

        async with asyncio.TaskGroup() as group:
            for name in "abc":
                group.create_task(speak(name))
            assert (await receive())["text"] == "heard"
        await send({"type": "websocket.close"})

    async def act(client):
        client.send("heard")
        return [await client.message() for _ in range(300)]

    messages = events_of(arm, loop, body, act)[1]
    for name in "abc":
        assert [text for text in messages if text[0] == name] == [f"{name} {number}" for number in range(100)]


# -- The end ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frame", "answer", "message"),
    [
        (closing(1000), 1000, {"code": 1000, "reason": ""}),
        (closing(4321, b"the reason"), 4321, {"code": 4321, "reason": "the reason"}),
        (closing(), None, {"code": 1005, "reason": ""}),
    ],
)
def test_clients_that_close(arm, loop, frame, answer, message):
    async def act(client):
        client.write(frame)
        code = (await client.closed())[0]
        assert await client.rest() == b""
        return code

    events, code = events_of(arm, loop, echo, act)
    assert events == [{"type": "websocket.disconnect", **message}, "returned"]
    assert code == answer


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, (1000, "")),
        ({"code": 4000, "reason": "a reason"}, (4000, "a reason")),
        ({"code": 1011, "reason": None}, (1011, "")),
    ],
)
def test_applications_that_close(arm, loop, given, expected):
    async def body(receive, send):
        await send({"type": "websocket.close", **given})
        await receive()
        with pytest.raises(RuntimeError, match=r"Unexpected ASGI message 'websocket.send', after sending"):
            await send({"type": "websocket.send", "text": "late"})

    async def act(client):
        client.send("on its way")
        found = await client.closed()
        client.send("dropped")
        client.write(closing(expected[0]))
        assert await client.rest() == b""
        return found

    events, found = events_of(arm, loop, body, act)
    assert found == expected
    assert events[-1] == "returned"
    disconnected = [event for event in events[:-1] if event["type"] == "websocket.disconnect"]
    assert disconnected in ([], [{"type": "websocket.disconnect", "code": expected[0], "reason": expected[1]}])


@pytest.mark.parametrize("way", ["close", "reset", "close frame"])
@pytest.mark.parametrize("kind", ["websocket.send", "websocket.close"])
def test_sending_to_a_client_that_has_left(arm, loop, way, kind, logged):
    async def body(receive, send):
        await receive()
        # The close frame arrives before the end of the connection.
        await support.looks(10)
        await send({"type": kind, "text": "to nobody"})

    async def act(client):
        if way == "reset":
            client.reset()
        elif way == "close frame":
            await client.goodbye()

    events, _ = events_of(arm, loop, body, act)
    disconnected, error = events
    code = 1000 if way == "close frame" else 1005 if arm == "asyncio" else 1006
    assert (disconnected["type"], disconnected["code"]) == ("websocket.disconnect", code)
    assert isinstance(error, OSError)
    assert type(error).__name__ == "ClientDisconnected"
    # The application need not catch it.
    assert not [text for text in logged() if "Exception" in text]


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (
            {"type": "websocket.accept"},
            "Expected ASGI message 'websocket.send' or 'websocket.close', but got 'websocket.accept'.",
        ),
        ({"type": "http.response.start"}, "Expected ASGI message 'websocket.send' or 'websocket.close', but got "),
    ],
)
def test_messages_that_may_not_be_sent(arm, loop, message, text):
    async def body(receive, send):
        with pytest.raises(RuntimeError) as caught:
            await send(message)
        assert str(caught.value).startswith(text)
        with pytest.raises(KeyError):
            await send({})
        await echo(receive, send)

    async def act(client):
        client.send("still open")
        return await client.message()

    assert events_of(arm, loop, body, act)[1] == "still open"


def test_messages_that_may_not_begin(arm, loop):
    caught = []

    async def instance(scope, receive, send):
        for kind in ("websocket.send", "http.response.start"):
            try:
                await send({"type": kind})
            except RuntimeError as error:
                caught.append(str(error))
        await send({"type": "websocket.close"})

    async def test():
        async with WebSocketServer(arm, instance) as server, server.raw() as client:
            return await client.shake_hands()

    assert run(loop, test())[0].split(" ")[1] == "403"
    text = "Expected ASGI message 'websocket.accept', 'websocket.close' or 'websocket.http.response.start' but got "
    assert caught == [f"{text}'websocket.send'.", f"{text}'http.response.start'."]


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        (masked(FIN | 3, b"unknown opcode"), 1002),
        (masked(FIN | RSV1 | TEXT, b"not negotiated"), 1002),
        (masked(FIN | CONTINUATION, b"of nothing"), 1002),
        (masked(TEXT, b"one") + masked(FIN | TEXT, b"within another"), 1002),
        (masked(PING, b"in parts"), 1002),
        (b"\x81\x02hi", 1002),
        (closing(1005), 1002),
        (masked(FIN | TEXT, b"\xff"), 1007),
        (masked(FIN | BINARY, b"x" * 1001), 1009),
        (masked(BINARY, b"x" * 1000) + masked(FIN | CONTINUATION, b"x"), 1009),
    ],
)
def test_clients_that_break_the_rules(arm, loop, frames, code):
    async def act(client):
        client.send("good")
        assert await client.message() == "good"
        client.write(frames)
        if arm != "asyncio":
            # More than fits into the sockets' buffers: the answer arrives all the same.
            client.write(bytes(1 << 20))
        found, _ = await client.closed()
        return found

    events, found = events_of(arm, loop, echo, act, ws_max_size=1000, ws_per_message_deflate=False)
    assert found == code
    assert events[0] == {"type": "websocket.receive", "text": "good"}
    assert (events[1]["type"], events[1]["code"]) == ("websocket.disconnect", code)
    assert events[2] == "returned"


TEXTS = [
    *("x" * length for length in (0, 1, 2, 31, 32, 33, 63, 64, 125, 126, 5000)),
    *(edge * 50 for edge in ("\0", "\x7f", "\x80", "\xff", "\u0100", "\uffff", "\U00010000", "\U0010ffff")),
    *("x" * length + "\u20ac" for length in (15, 31, 32, 100, 5000)),
    "\u20ac" + "x" * 100,
]


@pytest.mark.parametrize("parts", [1, 2, 7])
def test_text_arrives_as_it_was_sent(arm, loop, parts):
    async def act(client):
        heard = []
        for text in TEXTS:
            client.send(text, parts=parts)
            heard.append(await client.message())
        client.write(closing(1000))
        return heard

    events, heard = events_of(arm, loop, echo, act, ws_per_message_deflate=False)
    assert heard == TEXTS
    assert [event["text"] for event in events[: len(TEXTS)]] == TEXTS


INVALID_TEXTS = [
    b"\xff",
    b"x" * 100 + b"\x80",
    b"\xc0\xaf",
    b"a surrogate \xed\xa0\x80",
    b"beyond Unicode \xf4\x90\x80\x80",
    b"cut off \xe2\x82",
    "\u20ac".encode() * 40 + b"\xe2",
]


@pytest.mark.parametrize("invalid", INVALID_TEXTS)
@pytest.mark.parametrize("is_compressed", [False, True])
@pytest.mark.parametrize("parts", [1, 2, 3])
def test_text_that_is_not_utf8(arm, loop, invalid, is_compressed, parts):
    async def test():
        async with WebSocketServer(arm, application(echo)) as server:
            fields = Deflating.FIELDS if is_compressed else b""
            async with server.websocket(fields=fields) as client:
                data = Deflating.compressed(invalid) if is_compressed else invalid
                cuts = [len(data) * part // parts for part in range(parts + 1)]
                first = TEXT | (RSV1 if is_compressed else 0)
                for part in range(parts):
                    last = FIN if part == parts - 1 else 0
                    piece = data[cuts[part] : cuts[part + 1]]
                    client.write(masked(last | (CONTINUATION if part else first), piece))
                    if not last:
                        client.write(masked(FIN | PING, b"between"))
                while (frame := await client.frame())[0] == PONG:
                    assert frame[1] == b"between"
                return frame

    opcode, payload = run(loop, test())
    assert (opcode, int.from_bytes(payload[:2], "big")) == (CLOSE, 1007)


# -- Compression ------------------------------------------------------------------------------------------------------


class Deflating:
    """The client's side of permessage-deflate, without contexts that are kept."""

    FIELDS = b"Sec-WebSocket-Extensions: permessage-deflate; client_no_context_takeover; server_no_context_takeover\r\n"

    @staticmethod
    def compressed(data):
        context = zlib.compressobj(wbits=-12)
        return (context.compress(data) + context.flush(zlib.Z_SYNC_FLUSH))[:-4]


def test_compressed_messages(arm, loop):
    text = "the same again and again " * 1000

    async def test():
        async with (
            WebSocketServer(arm, application(echo)) as server,
            server.websocket(fields=Deflating.FIELDS) as client,
        ):
            assert client.answer[1]["sec-websocket-extensions"].startswith("permessage-deflate")
            client.write(masked(FIN | RSV1 | TEXT, Deflating.compressed(text.encode())))
            first, second = await client.reader.readexactly(2)
            assert first == FIN | RSV1 | TEXT
            assert second <= 126
            length = int.from_bytes(await client.reader.readexactly(2), "big") if second == 126 else second
            data = await client.reader.readexactly(length)
            assert len(data) < 1000
            return zlib.decompressobj(wbits=-15).decompress(data + b"\0\0\xff\xff").decode()

    assert run(loop, test()) == text


@pytest.mark.parametrize("payload", [b"", b"\0"])
def test_a_compressed_message_may_be_empty(arm, loop, payload):
    """By RFC 7692 it consists of a block, but uvicorn takes nothing for one, too."""
    received = []

    async def body(receive, send):
        while (message := await receive())["type"] == "websocket.receive":
            received.append(message)

    async def test():
        async with (
            WebSocketServer(arm, application(body)) as server,
            server.websocket(fields=Deflating.FIELDS) as client,
        ):
            for opcode in (TEXT, BINARY):
                client.write(masked(FIN | RSV1 | opcode, payload))
            assert await client.goodbye() == 1000

    run(loop, test())
    assert received == [{"type": "websocket.receive", "text": ""}, {"type": "websocket.receive", "bytes": b""}]


def test_messages_are_not_inflated_beyond_the_limit(arm, loop):
    async def test():
        async with WebSocketServer(arm, application(echo), ws_max_size=100_000) as server:
            fields = Deflating.FIELDS
            async with server.websocket(fields=fields) as client:
                client.write(masked(FIN | RSV1 | BINARY, Deflating.compressed(bytes(10_000_000))))
                return await client.closed()

    assert run(loop, test())[0] == 1009


def test_compression_can_be_off(arm, loop):
    async def test():
        async with WebSocketServer(arm, application(echo), ws_per_message_deflate=False) as server:
            fields = Deflating.FIELDS
            async with server.websocket(fields=fields) as client:
                return client.answer[1]

    assert "sec-websocket-extensions" not in run(loop, test())


# -- Pings ------------------------------------------------------------------------------------------------------------


def test_clients_are_pinged(arm, loop):
    async def act(client):
        payloads = []
        for _ in range(3):
            opcode, payload = await client.frame()
            assert opcode == PING
            payloads.append(payload)
            client.write(masked(FIN | PONG, b"another"))
            client.write(masked(FIN | PONG, payload))
        client.write(closing(1000))
        return payloads

    payloads = events_of(arm, loop, echo, act, ws_ping_interval=0.01, ws_ping_timeout=1000.0)[1]
    assert len(set(payloads)) == 3


def test_clients_that_do_not_answer_pings(arm, loop):
    async def act(client):
        opcode, payload = await client.frame()
        assert opcode == PING
        client.write(masked(FIN | PONG, b"not " + payload))
        return await client.closed()

    events, answer = events_of(arm, loop, echo, act, ws_ping_interval=0.01, ws_ping_timeout=0.01)
    assert answer == (1011, "keepalive ping timeout")
    assert events[0]["type"] == "websocket.disconnect"
    assert events[0]["code"] == (1005 if arm == "asyncio" else 1011)


def test_pings_can_be_off(arm, loop):
    async def act(client):
        client.send("only")
        message = await client.message()
        await asyncio.sleep(0.05)  # Longer than an answer to a ping would be waited for.
        client.write(closing(1000))
        return message, await client.closed()

    settings = {"ws_ping_interval": None, "ws_ping_timeout": 0.01}
    assert events_of(arm, loop, echo, act, **settings)[1] == ("only", (1000, ""))
