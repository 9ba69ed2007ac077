"""The Python servers that ringlab measures. Nothing of ringlab is imported.

    server.py echo|http|discard --loop LOOP --api API [--host ADDRESS] [--port PORT]
    server.py bind --loop LOOP --api API --mode bind|listen|accept --count N [--concurrent N]
    server.py probe --loop LOOP --api API                             (what the loop is; fails where it is missing)

LOOP is the name of a module with a `new_event_loop`. API is `protocol` or `streams`; for http also `uvicorn`, which
parses with httptools; or `threaded`, which has a thread for each connection and no loop.
"""

import argparse
import asyncio
import contextlib
import importlib
import importlib.metadata
import json
import os
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

HOST = "127.0.0.1"
BACKLOG = 1024
BUFFER_BYTES = 65_536
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 13\r\n\r\nHello, World!"
END_OF_REQUEST = b"\r\n\r\n"
CANNOT_BIND = {
    ("rloop", "accept"): "rloop 0.5.0 leaves the sockets of transports open that close: use --mode bind or listen",
    ("rsloop", "bind"): "rsloop 0.1.66 listens also with start_serving=False: use --mode listen or accept",
}
"""The operations that a loop cannot be timed at, and why."""
RESET_ON_CLOSE = struct.pack("ii", 1, 0)
"""For SO_LINGER: a client that closes so leaves no TIME_WAIT, of which ten thousand would slow down every later bind."""


def listen(host: str, port: int) -> socket.socket:
    """Return the listening socket of every server here; accepted sockets inherit TCP_NODELAY from it."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        sys.exit(f"cannot listen on {host}:{port}: {error.strerror}")
    listener.listen(BACKLOG)
    return listener


def announce(host: str, port: int) -> None:
    """Say where the server listens; only said once it accepts."""
    print(f"listening on {host}:{port}", flush=True)


# --- on a loop ---


class Echo(asyncio.Protocol):
    """Sends back what it receives; while the peer doesn't read, nothing more is read from it."""

    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)

    def pause_writing(self) -> None:
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        self.transport.resume_reading()


class Hello(Echo):
    """Answers each request with the same bytes, and looks at nothing but where a request ends."""

    rest = b""

    def data_received(self, data: bytes) -> None:
        if self.rest:
            data = self.rest + data
        requests = data.count(END_OF_REQUEST)
        if data.endswith(END_OF_REQUEST):
            self.rest = b""
        else:
            self.rest = data[data.rfind(END_OF_REQUEST) + len(END_OF_REQUEST) :] if requests else data
        if requests:
            self.transport.write(ANSWER * requests)


class Discard(Echo):
    """Throws away what it receives, and answers the end with how much that was."""

    received = 0

    def data_received(self, data: bytes) -> None:
        self.received += len(data)

    def eof_received(self) -> None:
        self.transport.write(b"%d\n" % self.received)


async def echo_stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send back what comes, until the peer has no more."""
    try:
        while data := await reader.read(BUFFER_BYTES):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass  # The peer has gone; so does its connection.
    finally:
        writer.close()


async def discard_stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Throw away what comes, until the peer has no more."""
    received = 0
    try:
        while data := await reader.read(BUFFER_BYTES):
            received += len(data)
        writer.write(b"%d\n" % received)
    except ConnectionError:
        pass
    finally:
        writer.close()


async def serve(kind: str, api: str, listener: socket.socket) -> None:
    """Serve until SIGTERM."""
    loop = asyncio.get_running_loop()
    terminated = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, terminated.set)
    address = listener.getsockname()  # Asked now: rloop takes the socket's descriptor away.
    server: asyncio.AbstractServer
    if api == "streams":
        converse = echo_stream if kind == "echo" else discard_stream
        server = await asyncio.start_server(converse, sock=listener, backlog=BACKLOG)
    else:
        protocol = {"echo": Echo, "http": Hello, "discard": Discard}[kind]
        server = await loop.create_server(protocol, sock=listener, backlog=BACKLOG)
    announce(*address)
    await terminated.wait()
    server.close()


def serve_uvicorn(new_event_loop: str, listener: socket.socket) -> None:
    """Serve the same 13 bytes through uvicorn, whose parser is httptools."""
    import uvicorn

    headers = [(b"content-type", b"text/plain"), (b"content-length", b"13")]

    async def application(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await receive()
            announce(*listener.getsockname())
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})
            return
        found = scope["path"] == "/"
        await send({"type": "http.response.start", "status": 200 if found else 404, "headers": headers})
        await send({"type": "http.response.body", "body": b"Hello, World!" if found else b"Not found, no"})

    server = uvicorn.Server(
        uvicorn.Config(
            application, http="httptools", ws="none", loop=new_event_loop, lifespan="on", access_log=False,
            log_level="warning", backlog=BACKLOG, timeout_graceful_shutdown=1,
            timeout_keep_alive=3600,  # By itself it would close connections that rest for five seconds.
        )
    )  # fmt: skip
    # uvicorn ends itself with the signal that it was ended with, once it has ended everything else.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    server.run(sockets=[listener])


# --- with a thread for each connection ---


def end_at_the_signal() -> None:
    """Wait for SIGTERM, and end at once: the threads of open connections would be waited for."""
    signal.sigwait({signal.SIGTERM})
    os._exit(0)


def echo_connection(connection: socket.socket) -> None:
    """Send back what comes, until the peer has no more."""
    while data := connection.recv(BUFFER_BYTES):
        connection.sendall(data)


def answer_connection(connection: socket.socket) -> None:
    """Answer each request with the same bytes."""
    rest = b""
    while data := connection.recv(BUFFER_BYTES):
        *requests, rest = (rest + data).split(END_OF_REQUEST)
        if requests:
            connection.sendall(ANSWER * len(requests))


def discard_connection(connection: socket.socket) -> None:
    """Throw away what comes, until the peer has no more."""
    received = 0
    while data := connection.recv(BUFFER_BYTES):
        received += len(data)
    connection.sendall(b"%d\n" % received)


def converse(serve_one: Callable[[socket.socket], None], connection: socket.socket) -> None:
    """Serve a connection until it is over: by its end, or because the peer has gone."""
    with connection, contextlib.suppress(ConnectionError):
        serve_one(connection)


def serve_threaded(kind: str, listener: socket.socket) -> None:
    """Accept for ever, with a thread for each connection."""
    # A handler would run in the thread that accepts: not until the next connection, if the signal comes just before `accept`.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    threading.Thread(target=end_at_the_signal, daemon=True).start()
    serve_one = {"echo": echo_connection, "http": answer_connection, "discard": discard_connection}[kind]
    announce(*listener.getsockname())
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=converse, args=(serve_one, connection), daemon=True).start()


# --- bind: one operation is bind and close; or bind, listen and close; or these with one connection accepted ---


class Counted(asyncio.Protocol):
    """Tells when its connection is lost."""

    def __init__(self) -> None:
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.set_result(None)


async def bind_once(mode: str) -> None:
    """Do the operation by the loop's create_server."""
    loop = asyncio.get_running_loop()
    accepted: asyncio.Queue[Counted] = asyncio.Queue()

    def factory() -> Counted:
        protocol = Counted()
        accepted.put_nowait(protocol)
        return protocol

    server = await loop.create_server(factory, HOST, 0, backlog=BACKLOG, start_serving=mode != "bind")
    if mode == "accept":
        transport, client = await loop.create_connection(Counted, *server.sockets[0].getsockname())
        peer = await accepted.get()
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        transport.close()
        await client.lost
        await peer.lost
    server.close()


async def bind_many(mode: str, count: int) -> None:
    """Do the operation again and again."""
    for _ in range(count):
        await bind_once(mode)


def bind_blocking(mode: str) -> None:
    """Do the operation by blocking sockets."""
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        if mode != "bind":
            listener.listen(BACKLOG)
        if mode == "accept":
            client = socket.create_connection(listener.getsockname())
            with listener.accept()[0]:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
                client.close()


async def measure_bind(mode: str, count: int, concurrent: int) -> None:
    """Time `count` operations, by `concurrent` tasks, and print the result."""
    await bind_once(mode)
    each = -(-count // concurrent)
    begin_ns = time.perf_counter_ns()
    await asyncio.gather(*[bind_many(mode, each) for _ in range(concurrent)])
    answer({"operations": each * concurrent, "ns": time.perf_counter_ns() - begin_ns})


def measure_blocking_bind(mode: str, count: int, concurrent: int) -> None:
    """Time `count` operations on blocking sockets, by `concurrent` threads, and print the result."""

    def many() -> None:
        for _ in range(each):
            bind_blocking(mode)

    bind_blocking(mode)
    each = -(-count // concurrent)
    begin_ns = time.perf_counter_ns()
    if concurrent == 1:
        many()
    else:
        with ThreadPoolExecutor(concurrent) as pool:
            for done in [pool.submit(many) for _ in range(concurrent)]:
                done.result()
    answer({"operations": each * concurrent, "ns": time.perf_counter_ns() - begin_ns})


# --- the program ---


def answer(value: object) -> None:
    """Print one JSON value for ringlab."""
    print(json.dumps(value), flush=True)


def import_module(name: str) -> ModuleType:
    """Import a module, or end with the reason."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        sys.exit(f"Python {sys.version.split()[0]} at {sys.executable} cannot import it: {error}")


def run(loop: str, main: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine on a new loop."""
    with asyncio.Runner(loop_factory=import_module(loop).new_event_loop) as runner:
        runner.run(main)


def probe(arguments: argparse.Namespace) -> None:
    """Say what the loop is; fail where it, or what the API needs besides, is missing, or where figures would mean nothing."""
    if hasattr(sys, "gettotalrefcount"):
        sys.exit(
            f"Python {sys.version.split()[0]} at {sys.executable} is a debugging build: name another in RINGLAB_PYTHON"
        )
    loop = import_module(arguments.loop).new_event_loop()
    loop.close()
    versions = {"python": sys.version.split()[0]}
    if arguments.api == "uvicorn":
        for module in ("uvicorn", "httptools"):
            import_module(module)
            versions[module] = importlib.metadata.version(module)
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # asyncio is of Python itself.
        versions[arguments.loop] = importlib.metadata.version(arguments.loop)
    answer(versions | {"backend": getattr(loop, "backend_reason", None)})


def positive(text: str) -> int:
    """Return a number of the command line that must be at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The Python servers that ringlab measures.")
    parser.add_argument("command", choices=["echo", "http", "discard", "bind", "probe"])
    parser.add_argument("--loop", default="asyncio", help="a module with a new_event_loop (default: %(default)s)")
    parser.add_argument("--api", default="protocol", choices=["protocol", "streams", "uvicorn", "threaded"])
    parser.add_argument("--host", default=HOST, help="the address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=0, help="0, the default, lets the kernel choose")
    parser.add_argument("--mode", choices=["bind", "listen", "accept"], default="listen")
    parser.add_argument("--count", type=positive, default=1000, help="how many operations")
    parser.add_argument("--concurrent", type=positive, default=1, help="how many at once")
    arguments = parser.parse_args()
    if arguments.command in ("echo", "discard") and arguments.api == "uvicorn":
        parser.error("uvicorn serves http only")
    if arguments.command == "http" and arguments.api == "streams":
        parser.error("http is served by protocol, uvicorn and threaded")
    return arguments


def main() -> None:
    """Do what the module's docstring says."""
    arguments = parse()
    binding = arguments.mode, arguments.count, arguments.concurrent
    match arguments.command, arguments.api:
        case "probe", _:
            probe(arguments)
        case "bind", "threaded":
            measure_blocking_bind(*binding)
        case "bind", _ if (arguments.loop, arguments.mode) in CANNOT_BIND:
            sys.exit(CANNOT_BIND[arguments.loop, arguments.mode])
        case "bind", _:
            run(arguments.loop, measure_bind(*binding))
        case _, "threaded":
            serve_threaded(arguments.command, listen(arguments.host, arguments.port))
        case _, "uvicorn":
            import_module(arguments.loop)
            serve_uvicorn(f"{arguments.loop}:new_event_loop", listen(arguments.host, arguments.port))
        case _:
            listener = listen(arguments.host, arguments.port)
            listener.setblocking(False)
            run(arguments.loop, serve(arguments.command, arguments.api, listener))


if __name__ == "__main__":
    main()
