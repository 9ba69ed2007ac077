"""A WebSocket client of raw frames, which can break every rule."""

import contextlib

from serving import Client, Server

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
FIN, RSV1 = 0x80, 0x40
KEY = b"dGhlIHNhbXBsZSBub25jZQ=="
HANDSHAKE = (
    b"GET %s HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: " + KEY + b"\r\nSec-WebSocket-Version: 13\r\n"
)


def masked(first, payload, mask=b"\x12\x34\x56\x78"):
    """Return a frame that begins with the byte `first`."""
    if len(payload) < 126:
        length = bytes([0x80 | len(payload)])
    elif len(payload) < 65536:
        length = b"\xfe" + len(payload).to_bytes(2, "big")
    else:
        length = b"\xff" + len(payload).to_bytes(8, "big")
    key = (mask * (len(payload) // 4 + 1))[: len(payload)]
    covered = (int.from_bytes(payload, "big") ^ int.from_bytes(key, "big")).to_bytes(len(payload), "big")
    return bytes([first]) + length + mask + covered


def closing(code=None, reason=b""):
    """Return a close frame."""
    return masked(FIN | CLOSE, b"" if code is None else code.to_bytes(2, "big") + reason)


class WebSocketClient(Client):
    """A client that has made its handshake."""

    async def shake_hands(self, path=b"/", fields=b"", early=b""):
        """Send a request for a WebSocket, with `early` right behind it; return status line, fields and body."""
        self.write(HANDSHAKE % path + fields + b"\r\n" + early)
        head = await self.reader.readuntil(b"\r\n\r\n")
        line, *lines = head[:-4].decode("latin-1").split("\r\n")
        answer = {name.lower(): value for name, value in (field.split(": ", 1) for field in lines)}
        answer.pop("date", None)
        is_accepted = line.split(" ")[1] == "101"
        body = b"" if is_accepted else await self.rest()
        return line, answer, body

    def send(self, payload, *, parts=1):
        """Send a message: text if it is a string."""
        opcode = TEXT if isinstance(payload, str) else BINARY
        data = payload.encode() if isinstance(payload, str) else payload
        size = -(-len(data) // parts) or 1
        pieces = [data[at : at + size] for at in range(0, len(data), size)] or [b""]
        for index, piece in enumerate(pieces):
            last = FIN if index == len(pieces) - 1 else 0
            self.write(masked(last | (CONTINUATION if index else opcode), piece))

    async def frame(self):
        """Return the next frame: (opcode, payload). It must not be fragmented, compressed or masked."""
        first, second = await self.reader.readexactly(2)
        assert first & 0xF0 == FIN, hex(first)
        assert second < 0x80, hex(second)
        length = second
        if length == 126:
            length = int.from_bytes(await self.reader.readexactly(2), "big")
            assert length > 125
        elif length == 127:
            length = int.from_bytes(await self.reader.readexactly(8), "big")
            assert length > 65535
        return first & 0x0F, await self.reader.readexactly(length)

    async def message(self):
        """Return the next message; pings are answered."""
        while True:
            opcode, payload = await self.frame()
            if opcode == PING:
                self.write(masked(FIN | PONG, payload))
            elif opcode == TEXT:
                return payload.decode()
            else:
                assert opcode == BINARY, (opcode, payload)
                return payload

    async def closed(self):
        """Return the code and the reason of the close frame that comes next."""
        opcode, payload = await self.frame()
        assert opcode == CLOSE, (opcode, payload)
        return (int.from_bytes(payload[:2], "big") if payload else None), payload[2:].decode()

    async def goodbye(self, code=1000):
        """Close as a good client does; return the code that the server answers. In a long test, pings come before it."""
        self.write(closing(code))
        opcode, payload = await self.frame()
        while opcode == PING:
            opcode, payload = await self.frame()
        assert opcode == CLOSE, (opcode, payload)
        assert await self.rest() == b""
        return int.from_bytes(payload[:2], "big") if payload else None


class WebSocketServer(Server):
    """A server whose clients speak WebSocket."""

    @contextlib.asynccontextmanager
    async def websocket(self, path=b"/", fields=b"", *, early=b""):
        """Yield a client whose handshake was accepted."""
        async with self.raw() as client:
            client.answer = await client.shake_hands(path, fields, early)
            assert client.answer[0] == "HTTP/1.1 101 Switching Protocols", client.answer
            yield client

    @contextlib.asynccontextmanager
    async def raw(self):
        async with super().client() as client:
            yield WebSocketClient(client.reader, client.writer)


def application(body, *, events=None):
    """Return an application that accepts, and runs `body(receive, send)`. `events` gets what happens to it."""

    async def instance(scope, receive, send):
        assert scope["type"] == "websocket"
        assert await receive() == {"type": "websocket.connect"}
        await send({"type": "websocket.accept"})
        await body(receive, send)

    async def recording(scope, receive, send):
        try:
            await instance(scope, receive, send)
        except BaseException as error:
            events.append(error)
            raise
        events.append("returned")

    return instance if events is None else recording


async def echo(receive, send):
    """Send back what it receives, until the client leaves."""
    while (message := await receive())["type"] == "websocket.receive":
        await send({**message, "type": "websocket.send"})


def random_messages(random, count):
    """Yield texts and bytes of lengths around those where the framing changes."""
    lengths = (0, 1, 125, 126, 127, 1000, 65535, 65536, 70000)
    for _ in range(count):
        length = random.choice(lengths)
        yield "ä" * (length // 2) if random.random() < 0.5 else random.randbytes(length)
