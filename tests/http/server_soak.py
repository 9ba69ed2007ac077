"""Clients of all kinds against `ringloop serve`, for a long time, on both backends, with and without TLS.

What a client gets is compared with what it must get. After each round, when all clients are gone, the server's process
must have no more tasks, sockets and connections than before. From the end of the warm-up on, descriptors, threads,
Python's memory blocks and the resident set must not grow.
"""

import asyncio
import contextlib
import dataclasses
import json
import pathlib
import random
import re
import signal
import socket
import ssl
import struct
import tempfile
import time
import zlib

import trustme

import http2
import serving
import soak_application
import support
import websocket_client

server_process = support.load_tool("server_process")

WARM_UP_ROUNDS = 4
LAST_ROUNDS = 3
GROWTH_MAX = {"descriptors": 0, "threads": 0, "blocks": 3000, "resident": 12 << 20}
"""From the most of the warm-up to the least of the last rounds."""
ROUND_S = 20
PATIENCE_S = 100
"""How long a client waits for what must come."""
SETTLING_S = 100
"""How long the server may take to forget clients that are gone."""
DEADLINE_S = 10
"""The server's, for slow clients. The others are never idle until then, even if the machine stands still for a while."""
CLOSING_S = 40
"""How long a client may take to close its connection: more than asyncio's timeout for the end of TLS."""
WORKERS = 3
"""Clients at a time, for each server, beside those that wait for a deadline."""
SIZES = (0, 1, 13, 1000, 16_384, 65_536, 200_000)
BUFFERS_MAX = 64 << 20
"""More bytes than those that a server and the kernel keep for a client."""


class Wrong(Exception):
    """A fault of the server."""


@dataclasses.dataclass
class Server:
    """A process of `ringloop serve`, as clients see it."""

    name: str
    port: int
    process: object
    log: pathlib.Path
    contexts: dict
    idle: dict = dataclasses.field(default_factory=dict)
    history: list = dataclasses.field(default_factory=list)
    done: int = 0
    failures: int = 0
    """How many requests made the application raise."""
    lengths: int = 0
    """How many responses of a view did not have their Content-Length."""

    @contextlib.asynccontextmanager
    async def connect(self, kind=serving.Client, **options):
        """Yield a client, which is closed when the context ends."""
        protocol = "h2" if kind is http2.Client else "http/1.1"
        reader, writer = await asyncio.open_connection(
            support.HOST, self.port, ssl=self.contexts.get(protocol), **options
        )
        client = kind(reader, writer, {}) if kind is http2.Client else kind(reader, writer)
        try:
            yield client
        finally:
            with contextlib.suppress(OSError):
                await self._close(client)

    async def _close(self, client):
        try:
            async with asyncio.timeout(CLOSING_S):
                await client.close()
        except TimeoutError:
            # Over TLS, asyncio of 3.11 waits for ever if the peer has ended the connection while reading was paused.
            client.writer.transport.abort()
            if not self.contexts:
                raise Wrong(f"{self.name}: a connection without TLS does not end") from None

    async def resources(self):
        """Return what the process holds while it answers this."""
        async with self.connect() as client:
            client.write(b"GET /resources HTTP/1.1\r\nhost: soak\r\n\r\n")
            _, _, body = await client.response()
            client.write(b"GET /metrics HTTP/1.1\r\nhost: soak\r\nconnection: close\r\n\r\n")
            _, _, metrics = await client.response()
        connections = re.search(rb"^ringloop_http_connections (\S+)$", metrics, re.MULTILINE)
        return {**json.loads(body), "connections": int(float(connections[1]))}

    async def settle(self):
        """Wait until the clients are forgotten; return what the process holds then."""
        deadline = time.monotonic() + SETTLING_S
        while True:
            found = await self.resources()
            if faults := found.get("faults"):
                raise Wrong(f"{self.name}: {'; '.join(faults)}")
            left = {name: found[name] for name, most in self.idle.items() if found[name] > most}
            if not left:
                return found
            if time.monotonic() > deadline:
                raise Wrong(f"{self.name}: {left} when all clients are gone, and {self.idle} before the first one")
            await asyncio.sleep(0.1)


def get(target, *fields):
    return b"\r\n".join([f"GET {target} HTTP/1.1".encode(), b"host: soak", *fields, b"", b""])


def expect(found, expected):
    """Compare; what is long is not shown whole."""
    if found != expected:
        raise Wrong(f"{found!r:.300} is not {expected!r:.300}")


def expect_ok(response, body):
    line, _, found = response
    expect(line, "HTTP/1.1 200 OK")
    expect(found, body)


# -- Clients that take turns ---------------------------------------------------------------------------------------------


async def keep_alive(server, rng):
    async with server.connect() as client:
        for _ in range(rng.randint(1, 20)):
            body = rng.randbytes(rng.choice(SIZES))
            if rng.random() < 0.5:
                client.write(b"POST /echo HTTP/1.1\r\nhost: soak\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
            else:
                client.write(b"POST /echo HTTP/1.1\r\nhost: soak\r\ntransfer-encoding: chunked\r\n\r\n")
                for at in range(0, len(body), 30_000):
                    part = body[at : at + 30_000]
                    client.write(b"%x\r\n%b\r\n" % (len(part), part))
                    await client.writer.drain()
                client.write(b"0\r\n\r\n")
            expect_ok(await client.response(), body)


async def pipelining(server, rng):
    async with server.connect() as client:
        sizes = [rng.randrange(2000) for _ in range(rng.randint(2, 12))]
        client.write(b"".join(get(f"/stream?chunks=2&size={size}") for size in sizes))
        for size in sizes:
            expect_ok(await client.response(), soak_application.pattern(size) * 2)


async def streaming(server, rng):
    chunks, size = rng.randint(1, 50), rng.choice(SIZES[1:5])
    async with server.connect() as client:
        client.write(get(f"/stream?chunks={chunks}&size={size}"))
        expect_ok(await client.response(), soak_application.pattern(size) * chunks)


async def files(server, rng):
    async with server.connect() as client:
        for _ in range(rng.randint(1, 3)):
            client.write(get("/file"))
            expect_ok(await client.response(), soak_application.pattern(soak_application.FILE_BYTES))


async def http2_requests(server, rng):
    async with server.connect(http2.Client) as client:
        await client.settled()
        for _ in range(rng.randint(1, 3)):
            streams = {}
            for _ in range(rng.randint(1, 10)):
                size = rng.choice(SIZES[1:5])
                if rng.random() < 0.5:
                    body = rng.randbytes(min(size, 4000))
                    streams[client.ask("/echo", method="POST", body=body)] = body
                else:
                    stream = client.ask(f"/stream?chunks=3&size={size}")
                    streams[stream] = soak_application.pattern(size) * 3
            if rng.random() < 0.5:
                client.reset_stream(client.ask("/endless"))
            for stream, body in streams.items():
                found = await client.response(stream)
                expect((found.status, found.has_ended, bytes(found.body)), (200, True, body))


async def http2_file(server, rng):
    async with server.connect(http2.Client) as client:
        found = await client.get("/file")
        expect((found.status, bytes(found.body)), (200, soak_application.pattern(soak_application.FILE_BYTES)))


async def websocket_messages(server, rng):
    async with server.connect(websocket_client.WebSocketClient) as client:
        line, _, _ = await client.shake_hands()
        expect(line, "HTTP/1.1 101 Switching Protocols")
        for message in websocket_client.random_messages(rng, rng.randint(1, 20)):
            client.send(message, parts=rng.randint(1, 3))
            if rng.random() < 0.2:
                client.write(websocket_client.masked(websocket_client.FIN | websocket_client.PONG, b"unasked"))
            expect(await client.message(), message)
        if rng.random() < 0.5:
            expect(await client.goodbye(), 1000)
        else:
            client.send("leave")
            code, _ = await client.closed()
            expect(code, 4000)
            client.write(websocket_client.closing(code))
            expect(await client.rest(), b"")


async def websocket_compression(server, rng):
    async with server.connect(websocket_client.WebSocketClient) as client:
        _, fields, _ = await client.shake_hands(b"/", b"Sec-WebSocket-Extensions: permessage-deflate\r\n")
        expect(fields["sec-websocket-extensions"].partition(";")[0], "permessage-deflate")
        for _ in range(rng.randint(1, 10)):
            message = b"compressible" * rng.randint(100, 5000)
            pressing = zlib.compressobj(wbits=-15)
            pressed = (pressing.compress(message) + pressing.flush(zlib.Z_SYNC_FLUSH))[:-4]
            first = websocket_client.FIN | websocket_client.RSV1 | websocket_client.BINARY
            client.write(websocket_client.masked(first, pressed))
            found, length = await client.reader.readexactly(2)
            expect(found, first)
            if length > 125:
                length = int.from_bytes(await client.reader.readexactly(2 if length == 126 else 8))
            answer = await client.reader.readexactly(length)
            expect(zlib.decompressobj(wbits=-15).decompress(answer + b"\0\0\xff\xff"), message)
        expect(await client.goodbye(), 1000)


async def websocket_refusal(server, rng):
    async with server.connect(websocket_client.WebSocketClient) as client:
        client.write(websocket_client.HANDSHAKE % b"/refuse" + b"\r\n")
        line, _, body = await client.response()
        expect((line, body), ("HTTP/1.1 403 Forbidden", b"refused"))


# Each of these is cut off somewhere.
FRAGMENTS = (
    b"",
    b"GET /",
    get("/endless"),
    get("/wait"),
    get("/file"),
    get("/stream?chunks=20&size=10000") * 5,
    b"POST /echo HTTP/1.1\r\nhost: soak\r\ncontent-length: 100000\r\n\r\nsome of it",
    b"POST /echo HTTP/1.1\r\nhost: soak\r\ntransfer-encoding: chunked\r\n\r\n5\r\nsom",
    websocket_client.HANDSHAKE % b"/" + b"\r\n",
    websocket_client.HANDSHAKE % b"/" + b"\r\n" + websocket_client.masked(0x82, b"x" * 1000)[:500],
)


async def aborting(server, rng):
    """Die in the middle, with or without a farewell, sometimes after it has read something."""
    async with server.connect() as client:
        client.write(rng.choice(FRAGMENTS))
        if rng.random() < 0.5:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(client.reader.read(1000), rng.random() / 10)
        if rng.random() < 0.7:
            client.reset()


async def aborting_http2(server, rng):
    async with server.connect(http2.Client) as client:
        for path in ("/endless", "/wait", "/file", "/stream?chunks=20&size=10000"):
            client.ask(path)
        client.ask("/echo", method="POST", body=b"some of it", ends=False)
        if rng.random() < 0.5:
            await client.settled()
        if rng.random() < 0.7:
            client.reset()


async def aborting_handshake(server, rng):
    """Send some bytes that look like TLS's, or none, and die."""
    with socket.create_connection((support.HOST, server.port), PATIENCE_S) as sock:
        sock.sendall(bytes.fromhex("16030100c8010000c40303")[: rng.randrange(12)])
        if rng.random() < 0.5:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def bad_request(server, rng):
    async with server.connect() as client:
        client.write(rng.choice((b"GET / HTTP/1.1\r\n\r\n", b"bad\r\n\r\n", get("/", b"content-length: x"))))
        line, _, _ = await client.response()
        expect(line, "HTTP/1.1 400 Bad Request")
        expect(await client.rest(), b"")


# -- Clients that come once a round --------------------------------------------------------------------------------------


async def failing(server, rng):
    """Ask for what makes the application raise, before or within a response."""
    server.failures += 2
    async with server.connect() as client:
        client.write(get("/fail?late=no"))
        line, _, _ = await client.response()
        expect(line, "HTTP/1.1 500 Internal Server Error")
    async with server.connect() as client:
        client.write(get("/fail?late=yes"))
        found = await client.rest()
        expect((b"begun" in found, found.endswith(b"0\r\n\r\n")), (True, False))


async def slow_head(server, rng):
    async with server.connect() as client:
        client.write(b"GET / HTTP/1.1\r\nhost: ")
        line, _, _ = await client.response()
        expect(line, "HTTP/1.1 408 Request Timeout")
        expect(await client.rest(), b"")


async def slow_body(server, rng):
    async with server.connect() as client:
        client.write(b"POST /echo HTTP/1.1\r\nhost: soak\r\ncontent-length: 10\r\n\r\nsome")
        await client.rest()


async def slow_http2_body(server, rng):
    async with server.connect(http2.Client) as client:
        stream = client.ask("/echo", method="POST", body=b"some of it", ends=False)
        await client.response(stream)


async def slow_reader(server, rng):
    async with server.connect() as client:
        client.write(get("/endless"))
        await asyncio.sleep(2.5 * DEADLINE_S)
        size = 0
        with contextlib.suppress(ConnectionError):
            while data := await client.reader.read(1 << 20):
                size += len(data)
                if size > BUFFERS_MAX:
                    raise Wrong("a client that did not read is still served")


async def slow_http2_reader(server, rng):
    async with server.connect(http2.Client) as client:
        client.gives_room = False
        found = await client.get("/endless")
        expect(found.has_ended, False)


async def idle(server, rng):
    async with server.connect() as client:
        client.write(get("/stream?chunks=1&size=1"))
        expect_ok(await client.response(), b"\0")
        expect(await client.rest(), b"")


async def silent_websocket(server, rng):
    """Answer no ping."""
    async with server.connect(websocket_client.WebSocketClient) as client:
        await client.shake_hands()
        while (frame := await client.frame())[0] == websocket_client.PING:
            pass
        expect((frame[0], int.from_bytes(frame[1][:2])), (websocket_client.CLOSE, 1011))


MANY = (
    keep_alive,
    pipelining,
    streaming,
    files,
    http2_requests,
    http2_file,
    websocket_messages,
    websocket_compression,
    websocket_refusal,
    aborting,
    aborting_http2,
    aborting_handshake,
    bad_request,
)
ONCE = (
    failing,
    slow_head,
    slow_body,
    slow_http2_body,
    slow_reader,
    slow_http2_reader,
    idle,
    silent_websocket,
)


@dataclasses.dataclass(frozen=True)
class Subject:
    """The application that is served, and who its clients are."""

    interface: str
    application: str
    options: tuple
    many: tuple
    """Clients that take turns."""
    once: tuple
    """Clients that come once a round."""
    idle: tuple = ("connections", "tasks", "sockets")
    """Resources that must be as before when all clients are gone."""

    async def prepare(self, server):
        """Have the server make what it keeps."""


ASGI = Subject(
    interface="ASGI",
    application="soak_application:app",
    options=("--ws-ping-interval=5", f"--ws-ping-timeout={DEADLINE_S}", "--lifespan=on"),
    many=MANY,
    once=ONCE,
)


def leaking(what):
    """Return a client that makes the server do what must be noticed."""

    async def leak(server, rng):
        async with server.connect() as client:
            client.write(get(f"/leak/{what}"))
            expect_ok(await client.response(), b"right")

    return leak


# -- The judgement -------------------------------------------------------------------------------------------------------


def growth(history):
    """Return what has grown since the warm-up, in words."""
    first, last = history[:WARM_UP_ROUNDS], history[WARM_UP_ROUNDS:][-LAST_ROUNDS:]
    if len(last) < LAST_ROUNDS:
        return []
    return [
        f"{name} grow: {max(r[name] for r in first):,} during the warm-up, at least {min(r[name] for r in last):,} now"
        for name, limit in GROWTH_MAX.items()
        if min(r[name] for r in last) - max(r[name] for r in first) > limit
    ]


def unexpected(log, server, interface):
    """Return what the server should not have logged."""
    exception, length = f"Exception in {interface} application", "than Content-Length"
    lines = log.splitlines()
    errors = [line for line in lines if line.startswith(("ERROR", "CRITICAL"))]
    wrong = [line for line in errors if exception not in line and not line.endswith(length)]
    raised = sum(exception in line for line in lines)
    if {raised, sum(line == "RuntimeError: on purpose" for line in lines)} != {server.failures}:
        wrong.append(f"the log has {raised} exceptions of the application, which has raised {server.failures}")
    lengths = sum(line.endswith(length) for line in errors)
    if lengths != server.lengths:
        wrong.append(f"the log has {lengths} responses of a wrong length, of which there were {server.lengths}")
    return wrong


async def perform(client, server, seed):
    """Let a client do what it does."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            await client(server, random.Random(seed))
    except Exception as error:
        raise Wrong(f"{server.name}: {client.__name__}, seed {seed}: {type(error).__name__}: {error}") from error
    server.done += 1


async def work(server, clients, rng, deadline):
    """Let each of the clients come once, and then any of them until the deadline."""
    for client in rng.sample(clients, len(clients)):
        await perform(client, server, rng.getrandbits(32))
    while time.monotonic() < deadline:
        await perform(rng.choice(clients), server, rng.getrandbits(32))


async def run_round(servers, many, once, rng, round_s):
    deadline = time.monotonic() + round_s
    async with asyncio.TaskGroup() as group:
        for server in servers:
            for _ in range(WORKERS if many else 0):
                group.create_task(work(server, many, random.Random(rng.getrandbits(32)), deadline))
            for client in once:
                group.create_task(perform(client, server, rng.getrandbits(32)))
    for server in servers:
        found = await server.settle()
        server.failures = found.get("failures", server.failures)
        server.history.append(found)


def report(servers, begun):
    """Print one line for each server."""
    minutes, seconds = divmod(int(time.monotonic() - begun), 60)
    print(f"round {len(servers[0].history)}, {minutes}:{seconds:02}", flush=True)
    for server in servers:
        now = server.history[-1]
        print(
            f"    {server.name:13} {server.done:7,} clients; {now['tasks']} tasks, {now['descriptors']} descriptors, "
            f"{now['threads']} threads, {now['blocks']:,} blocks, {now['resident'] / 1e6:.1f} MB",
            flush=True,
        )


async def soak_servers(servers, subject, many, once, rng, minutes, rounds_min, round_s):
    begun = time.monotonic()
    for server in servers:
        await subject.prepare(server)
        # What is made at the first use is no leak.
        await server.resources()
        found = await server.resources()
        server.idle = {name: found[name] for name in subject.idle}
    while len(servers[0].history) < rounds_min or time.monotonic() < begun + 60 * minutes:
        try:
            await run_round(servers, many, once, rng, round_s)
        except* Wrong as group:
            raise Wrong("\n".join(dict.fromkeys(map(str, leaves(group))))) from group
        report(servers, begun)
        for server in servers:
            for sentence in growth(server.history):
                raise Wrong(f"{server.name}: {sentence}")


def leaves(group):
    """Yield the exceptions of a group of groups."""
    for error in group.exceptions:
        yield from leaves(error) if isinstance(error, BaseExceptionGroup) else [error]


def options():
    """Return the options of `ringloop serve` for all applications."""
    deadlines = [f"--timeout-{of}={DEADLINE_S}" for of in ("head", "body", "write", "keep-alive")]
    return [*deadlines, "--metrics=/metrics", f"--app-dir={pathlib.Path(__file__).parent}"]


def tls(folder):
    """Return options of the server, and the contexts of clients by their protocol."""
    authority = trustme.CA()
    certificate = authority.issue_cert(support.HOST)
    chain, key = folder / "chain.pem", folder / "key.pem"
    chain.write_bytes(b"".join(part.bytes() for part in certificate.cert_chain_pems))
    certificate.private_key_pem.write_to_path(str(key))
    contexts = {}
    for protocol in ("http/1.1", "h2"):
        contexts[protocol] = context = ssl.create_default_context()
        authority.configure_trust(context)
        context.set_alpn_protocols([protocol])
    return [f"--ssl-certfile={chain}", f"--ssl-keyfile={key}"], contexts


def soak(
    backends,
    *,
    minutes,
    seed,
    subject=ASGI,
    many=None,
    once=None,
    kinds=("plain", "TLS"),
    rounds_min=1,
    round_s=ROUND_S,
):
    """Raise what is wrong. A Ctrl-C ends it. `many` and `once` are other clients than the subject's."""
    many = subject.many if many is None else many
    once = subject.once if once is None else once
    servers = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        secure, contexts = tls(folder)
        with contextlib.ExitStack() as stack:
            for backend in backends:
                for kind in kinds:
                    port, log = support.free_port(), folder / f"{backend}-{kind}.log"
                    more = secure if kind == "TLS" else []
                    more = [*options(), *subject.options, *more]
                    command = server_process.serve(subject.application, port, backend, *more)
                    # The access log is written, but not kept.
                    quiet = ["sh", "-c", 'exec "$@" >/dev/null', "sh", *command]
                    process = stack.enter_context(server_process.running(quiet, port, log))
                    found = contexts if kind == "TLS" else {}
                    servers.append(Server(f"{backend} {kind}", port, process, log, found))
            try:
                rng = random.Random(seed)
                asyncio.run(soak_servers(servers, subject, many, once, rng, minutes, rounds_min, round_s))
            except Wrong as error:
                logs = "\n".join(f"{server.name}: {line}" for server in servers for line in tail(server.log))
                raise Wrong(f"{error}\nthe ends of the logs:\n{logs}") from error
            finally:
                summarize(servers)
        for server in servers:
            for line in unexpected(server.log.read_text(), server, subject.interface):
                raise Wrong(f"{server.name}: {line}")
            if server.process.returncode != -signal.SIGTERM:
                raise Wrong(f"{server.name}: has not ended by SIGTERM, but with status {server.process.returncode}")


def tail(log):
    return log.read_text().splitlines()[-20:]


def summarize(servers):
    """Print each server's figures, from the warm-up to the end."""
    for server in servers:
        first, last = server.history[:WARM_UP_ROUNDS][-1:], server.history[-1:]
        found = "".join(
            f", {name} {before[name]:,} -> {after[name]:,}"
            for before, after in zip(first, last, strict=True)
            for name in GROWTH_MAX
        )
        views = f", {last[0]['views']:,} views" if last and "views" in last[0] else ""
        print(f"{server.name}: {server.done:,} clients in {len(server.history)} rounds{views}{found}", flush=True)
