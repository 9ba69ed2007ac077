"""Clients of WebSockets on streams of HTTP/2 (RFC 8441), as those on connections of their own: the same frames."""

import asyncio
import contextlib

import h2.events

import http2
from websocket_client import WebSocketClient, WebSocketServer


class Connection(http2.Client):
    """A client whose streams carry WebSockets. It reads all the time."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.sockets = {}
        self.reading = asyncio.ensure_future(self.end())

    def take(self, event):
        super().take(event)
        stream = getattr(event, "stream_id", None)
        match event:
            case h2.events.WindowUpdated() | h2.events.RemoteSettingsChanged():
                for socket in self.sockets.values():
                    socket.send_on()
            case _ if stream in self.sockets:
                self.sockets[stream].take(event)

    async def end(self):
        try:
            await super().end()
        except ConnectionError:
            self.is_over = True
        for socket in self.sockets.values():
            socket.reader.feed_eof()

    async def until(self, condition):
        """Wait until something is so, or the connection is over."""
        if asyncio.current_task() is self.reading:
            await super().until(condition)
        else:
            while not condition() and not self.reading.done():
                await asyncio.sleep(0)

    async def open(self, path="/", *fields, early=b"", **options):
        """Ask for a WebSocket."""
        await self.until(lambda: self.h2.remote_settings.enable_connect_protocol)
        socket = Socket(self)
        await socket.ask(path, fields, early, **options)
        return socket

    async def close(self):
        self.reading.cancel()
        await asyncio.wait([self.reading])
        await super().close()


class Writer:
    """The part of a stream writer that tests use."""

    def __init__(self, socket):
        self.socket = socket
        self.get_extra_info = socket.connection.writer.get_extra_info

    async def drain(self):
        while self.socket.unsent and not self.socket.is_over:
            await asyncio.sleep(0)

    def write_eof(self):
        self.socket.ends = True
        self.socket.send_on()


class Socket(WebSocketClient):
    """A client of a WebSocket, on its stream."""

    def __init__(self, connection):
        self.connection = connection
        super().__init__(asyncio.StreamReader(), Writer(self))
        self.unsent = bytearray()
        self.ends = False
        self.has_ended = False

    @property
    def is_over(self):
        return self.found.is_over or self.connection.is_over

    async def ask(self, path="/", fields=(), early=b"", *, protocol="websocket", version="13", ends=False):
        pseudo = [(":method", "CONNECT"), (":protocol", protocol), (":scheme", "http")]
        pseudo += [(":authority", "example.org"), (":path", path)]
        if version is not None:
            pseudo.append(("sec-websocket-version", version))
        connection = self.connection
        self.stream = connection.h2.get_next_available_stream_id()
        self.found = connection.streams[self.stream] = http2.Stream()
        connection.sockets[self.stream] = self
        connection.h2.send_headers(self.stream, [*pseudo, *fields], end_stream=ends)
        connection.flush()
        self.write(early)
        await connection.until(lambda: self.found.status is not None or self.found.is_over)

    async def shake_hands(self, path=b"/", fields=b"", early=b""):
        """Ask for a WebSocket as on HTTP/1.1, whose fields are `fields`; return status line, fields and body."""
        lines = [line.split(": ", 1) for line in fields.decode().split("\r\n") if line]
        await self.ask(path.decode(), [(name.lower(), value) for name, value in lines], early)
        body = b"" if self.found.status == 200 else await self.rest()
        return f"HTTP/2 {self.found.status}", dict(self.found.fields or ()), body

    def take(self, event):
        match event:
            case h2.events.DataReceived():
                self.reader.feed_data(event.data)
            case h2.events.StreamEnded() | h2.events.StreamReset():
                self.reader.feed_eof()

    def write(self, data):
        self.unsent += data
        self.send_on()

    def send_on(self):
        """Send as much as there is room for."""
        connection = self.connection
        if self.is_over or self.has_ended:
            return
        while self.unsent:
            room = connection.h2.local_flow_control_window(self.stream)
            size = min(room, connection.h2.max_outbound_frame_size, len(self.unsent))
            if size <= 0:
                break
            connection.h2.send_data(self.stream, bytes(self.unsent[:size]))
            del self.unsent[:size]
        if self.ends and not self.unsent:
            self.has_ended = True
            connection.h2.end_stream(self.stream)
        connection.flush()

    def reset(self, code=8):
        """Reset the stream."""
        if not self.found.is_over:
            self.connection.reset_stream(self.stream, code)
            self.found.code = code
        self.reader.feed_eof()

    async def close(self):
        """Leave, as a client that closes its connection does."""
        if not self.is_over and not self.has_ended:
            self.unsent.clear()
            self.writer.write_eof()


class Http2WebSocketServer(WebSocketServer):
    """A server whose clients speak WebSocket on streams of HTTP/2: each on a connection of its own, unless asked."""

    @contextlib.asynccontextmanager
    async def connection(self):
        async with self.client() as client:
            connection = Connection(client.reader, client.writer, {})
            try:
                yield connection
            finally:
                await connection.close()

    @contextlib.asynccontextmanager
    async def raw(self):
        async with self.connection() as connection:
            await connection.until(lambda: connection.h2.remote_settings.enable_connect_protocol)
            yield Socket(connection)

    @contextlib.asynccontextmanager
    async def websocket(self, path=b"/", fields=b"", *, early=b""):
        async with self.raw() as client:
            client.answer = await client.shake_hands(path, fields, early)
            assert client.answer[0] == "HTTP/2 200", client.answer
            try:
                yield client
            finally:
                await client.close()
