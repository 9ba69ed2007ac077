"""Clients of HTTP/2, and hypercorn as the control, which serves on the loop under test where that is asyncio's."""

import asyncio
import contextlib

import h2.config
import h2.connection
import h2.events
import h2.settings
import pytest

import serving
import support

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM, END_HEADERS = 1, 4


def frame(kind, flags=0, stream=0, payload=b""):
    """Return a frame, right or wrong."""
    return len(payload).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + payload


def get(stream, flags=END_STREAM | END_HEADERS, path=b"/"):
    """Return a frame that asks for a path."""
    return frame(HEADERS, flags, stream, b"\x82\x86\x41\x01a\x04" + bytes((len(path),)) + path)


class Server(serving.Server):
    """An application that is served with prior knowledge of HTTP/2, by ringloop or by hypercorn."""

    def make_control(self):
        """Make hypercorn's protocol, in place of uvicorn's."""
        pytest.importorskip("hypercorn", reason="make test-applications installs the control")
        from hypercorn.app_wrappers import ASGIWrapper
        from hypercorn.asyncio.tcp_server import TCPServer
        from hypercorn.asyncio.worker_context import WorkerContext
        from hypercorn.config import Config

        assert not self.settings, "hypercorn has other settings"
        loop = asyncio.get_running_loop()
        config, context, app = Config(), WorkerContext(None), ASGIWrapper(self.application)
        config.alpn_protocols = ["h2"]
        config._log = _NoLog()
        self.tasks = set()

        async def serve(reader, writer):
            self.tasks.add(asyncio.current_task())
            await TCPServer(app, loop, config, context, {}, reader, writer)

        def protocol():
            return asyncio.StreamReaderProtocol(asyncio.StreamReader(), serve)

        return protocol

    async def __aexit__(self, *error):
        await super().__aexit__(*error)
        for task in getattr(self, "tasks", ()):
            task.cancel()
            await asyncio.wait([task])

    @contextlib.asynccontextmanager
    async def http2(self, settings=(), **options):
        """Yield a client of HTTP/2."""
        reader, writer = await asyncio.open_connection(support.HOST, self.port, **options)
        client = Client(reader, writer, dict(settings))
        try:
            yield client
        finally:
            await client.close()


class _NoLog:
    async def access(self, *_):
        pass

    exception = error = info = debug = warning = access


class Stream:
    """The events that have come on a stream."""

    def __init__(self):
        self.informed = []
        self.hints = []
        self.fields = None
        self.status = None
        self.body = bytearray()
        self.trailers = None
        self.has_ended = False
        self.code = None

    @property
    def is_over(self):
        return self.has_ended or self.code is not None


class Client(serving.Client):
    """A client that reads when it is asked to."""

    def __init__(self, reader, writer, settings):
        super().__init__(reader, writer)
        config = h2.config.H2Configuration(header_encoding="latin-1", validate_outbound_headers=False)
        config.normalize_outbound_headers = False
        self.h2 = h2.connection.H2Connection(config)
        self.h2.local_settings = h2.settings.Settings(client=True, initial_values=settings)
        self.h2.initiate_connection()
        self.unread = b""
        self.streams = {}
        self.goaways = []
        self.is_settled = False
        self.is_over = False
        self.gives_room = True
        self.flush()

    def flush(self):
        self.write(self.h2.data_to_send())

    def ask(self, path="/", *fields, method="GET", body=None, ends=True):
        """Begin a request, and return its stream's number."""
        stream = self.h2.get_next_available_stream_id()
        self.streams[stream] = Stream()
        pseudo = (":method", method), (":scheme", "http"), (":authority", "example.org"), (":path", path)
        head = [(name, value.encode("latin-1")) for name, value in (*pseudo, *fields)]
        self.h2.send_headers(stream, head, end_stream=body is None and ends)
        if body is not None:
            self.h2.send_data(stream, body, end_stream=ends)
        self.flush()
        return stream

    def data(self, stream, data, *, ends=False):
        self.h2.send_data(stream, data, end_stream=ends)
        self.flush()

    def reset_stream(self, stream, code=8):
        self.h2.reset_stream(stream, code)
        self.flush()

    async def until(self, condition):
        """Read until something is so, or the connection is over."""
        while not condition() and not self.is_over:
            data = await self.reader.read(65536)
            if not data:
                self.is_over = True
            self.unread += data
            # Frame by frame: after a GOAWAY the library refuses what follows, unless `take` sees to it.
            while len(self.unread) >= 9 and len(self.unread) >= (size := 9 + int.from_bytes(self.unread[:3])):
                whole, self.unread = self.unread[:size], self.unread[size:]
                for event in self.h2.receive_data(whole):
                    self.take(event)
            if not self.writer.is_closing():
                self.flush()

    def take(self, event):
        stream = self.streams.get(getattr(event, "stream_id", None))
        match event:
            case h2.events.InformationalResponseReceived():
                stream.informed.append(dict(event.headers)[":status"])
                stream.hints.append([(name, value) for name, value in event.headers if name != ":status"])
            case h2.events.ResponseReceived():
                stream.fields = [(name, value) for name, value in event.headers if name not in (":status", "date")]
                stream.status = int(dict(event.headers)[":status"])
            case h2.events.DataReceived():
                stream.body += event.data
                if self.gives_room:
                    self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            case h2.events.TrailersReceived():
                stream.trailers = list(event.headers)
            case h2.events.StreamEnded():
                stream.has_ended = True
            case h2.events.StreamReset() if stream is not None:
                stream.code = int(event.error_code)
            case h2.events.SettingsAcknowledged():
                self.is_settled = True
            case h2.events.ConnectionTerminated():
                self.goaways.append((int(event.error_code), event.last_stream_id))
                # The library takes a connection for closed then, but the server finishes what it has begun.
                self.h2.state_machine.state = h2.connection.ConnectionState.CLIENT_OPEN

    async def settled(self):
        """Wait until the server has taken the settings."""
        await self.until(lambda: self.is_settled)

    async def response(self, stream):
        """Return all that comes on a stream."""
        found = self.streams[stream]
        await self.until(lambda: found.is_over)
        return found

    async def get(self, path="/", *fields, **options):
        """Make a request; return its response."""
        return await self.response(self.ask(path, *fields, **options))

    async def end(self):
        """Read to the end of the connection."""
        await self.until(lambda: False)
