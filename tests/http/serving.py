"""Applications served natively, and by uvicorn as the control, on the loop under test; and clients of raw bytes."""

import asyncio
import contextlib
import dataclasses
import socket
import struct

import pytest

import support
from applications import answer

LOGGER = "uvicorn.error"


def make_service(loop, application, **options):
    """ringloop's service, whose options are those of `HttpSettings` and the keywords of `HttpService` itself."""
    from ringloop import _core
    from ringloop.http._config import HttpSettings

    names = {field.name for field in dataclasses.fields(HttpSettings)} & options.keys()
    settings = HttpSettings(**{name: options.pop(name) for name in names})
    return _core.HttpService(loop, application, settings, **options)


class Server:
    """An application that is served on the running loop: by ringloop, or by uvicorn where the loop is asyncio's."""

    def __init__(self, arm, application, **settings):
        self.arm = arm
        self.application = application
        self.settings = settings
        self.service = None
        self.access = []

    def make_service(self):
        """Make ringloop's service."""
        settings = dict(self.settings)
        if settings.pop("log_access", False):
            settings["access_log"] = lambda *arguments: self.access.append(arguments)
        self.service = make_service(asyncio.get_running_loop(), self.application, **settings)
        return self.service.protocol

    def make_control(self):
        """Make uvicorn's protocol, with the same settings."""
        # Others install some of these: `make bench` uvicorn and httptools.
        for name in ("httptools", "websockets", "uvicorn"):
            uvicorn = pytest.importorskip(name, reason="make test-applications installs the control")
        from uvicorn.server import ServerState

        settings = dict(self.settings)
        log_access = settings.pop("log_access", False)
        state = settings.pop("state", {})
        headers = settings.pop("headers", [])
        options = {
            "root_path": settings.pop("root_path", ""),
            "timeout_keep_alive": settings.pop("timeout_keep_alive", 5),
            "limit_concurrency": settings.pop("limit_concurrency", None),
        }
        options["ws"] = "websockets-sansio" if settings.pop("ws", True) else "none"
        options |= {name: settings.pop(name) for name in list(settings) if name.startswith("ws_")}
        assert not settings, "uvicorn has no such settings"
        config = uvicorn.Config(
            self.application, http="httptools", lifespan="off", log_config=None, loop="asyncio", **options
        )
        config.load()
        server_state = ServerState()
        server_state.default_headers = headers

        def protocol():
            made = config.http_protocol_class(config=config, server_state=server_state, app_state=state)
            made.access_log = log_access
            made.access_logger = self
            return made

        return protocol

    def info(self, _format, *arguments):
        """Take what uvicorn's access log is told."""
        self.access.append(arguments)

    async def __aenter__(self):
        loop = asyncio.get_running_loop()
        protocol = self.make_control() if self.arm == "asyncio" else self.make_service()
        self.listener = await loop.create_server(protocol, support.HOST, 0, **self.listening())
        self.port = self.listener.sockets[0].getsockname()[1]
        return self

    def listening(self):
        """Return options of `create_server`."""
        return {}

    async def __aexit__(self, *_):
        self.listener.close()
        if self.service is not None:
            self.service.shut_down()
            self.service.abort()
            await self.service.wait_closed()
            assert (self.service.connections, self.service.active) == (0, 0)
        await asyncio.sleep(0)

    @contextlib.asynccontextmanager
    async def client(self):
        """Yield a client of raw bytes."""
        reader, writer = await asyncio.open_connection(support.HOST, self.port)
        client = Client(reader, writer)
        try:
            yield client
        finally:
            await client.close()

    async def ask(self, request):
        """Return all that the server sends until it closes the connection."""
        async with self.client() as client:
            client.write(request)
            return await client.rest()


class Client:
    def __init__(self, reader, writer):
        self.reader = reader
        self.writer = writer

    def write(self, data):
        self.writer.write(data)

    async def rest(self):
        return await self.reader.read()

    async def response(self, *, is_head=False):
        """Return the next response: (status line, fields without Date, body)."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        line, *fields = head[:-4].decode("latin-1").split("\r\n")
        fields = {name.lower(): value for name, value in (field.split(": ", 1) for field in fields)}
        fields.pop("date", None)
        body = b""
        if not is_head and line.split(" ")[1] not in ("204", "304", "100"):
            if "content-length" in fields:
                body = await self.reader.readexactly(int(fields["content-length"]))
            elif fields.get("transfer-encoding") == "chunked":
                body = await self.chunks()
            else:
                body = await self.reader.read()
        return line, fields, body

    async def chunks(self):
        body = b""
        while size := int(await self.reader.readline(), 16):
            body += await self.reader.readexactly(size)
            assert await self.reader.readexactly(2) == b"\r\n"
        assert await self.reader.readline() == b"\r\n"
        return body

    def reset(self):
        """End the connection as a client that has died does."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def close(self):
        self.writer.close()
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await self.writer.wait_closed()


def text(body, *fields, status=200):
    """Return an application that answers with a text."""

    async def application(scope, receive, send):
        await answer(send, body, status, fields)

    return application


async def body_of(receive):
    """Return the body of a request, and how many messages it took."""
    body, count = b"", 0
    while True:
        message = await receive()
        assert message["type"] == "http.request", message
        body += message["body"]
        count += 1
        if not message["more_body"]:
            return body, count


def run(loop, test):
    """Run an asynchronous test; a wait in vain ends before the test's own timeout."""
    return loop.run_until_complete(asyncio.wait_for(test, 10 * support.PATIENCE_S))
