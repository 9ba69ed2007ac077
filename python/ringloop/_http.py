"""The HTTP server's native half, in Python: what runs once per connection, or rarely."""

from __future__ import annotations

import asyncio
import asyncio.coroutines
import contextvars
import errno
import fcntl
import inspect
import io
import logging
import os
import socket
import stat
import sys
import termios
import threading
import urllib.parse
from asyncio import Task, constants, tasks
from typing import TYPE_CHECKING, Any
from wsgiref.util import FileWrapper

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ._core import HttpRequest, SocketTransport, WsgiStartResponse

__all__ = ["FileWrapper", "Task"]

logger = logging.getLogger("uvicorn.error")

# The tasks that run, by loop. Later Pythons don't need it, and may not have it.
current_tasks = getattr(tasks, "_current_tasks", None)

# The marks that `inspect.iscoroutinefunction` and `asyncio.iscoroutinefunction` look for in a callable.
COROUTINE_MARK = getattr(inspect, "_is_coroutine_mark", getattr(inspect, "_is_coroutine_marker", None))
ASYNCIO_COROUTINE_MARK = getattr(asyncio.coroutines, "_is_coroutine", None)


class ClientDisconnected(OSError):
    """The client is gone: raised by `send` for a WebSocket, and where a WSGI view reads or writes."""


async def awaiting(awaitable: Awaitable[Any]) -> Any:
    """Await the object that an application has returned instead of a coroutine."""
    return await awaitable


def addresses(transport: asyncio.BaseTransport) -> tuple[Any, Any, str]:
    """Return server, client and scheme of a connection, as ASGI's scopes have them."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        server, client = _ask(sock.getsockname), _ask(sock.getpeername)
    else:
        server = transport.get_extra_info("sockname")
        client = transport.get_extra_info("peername")
    scheme = "https" if transport.get_extra_info("sslcontext") else "http"
    return _server(server), _client(client), scheme


def has_chosen_http2(transport: asyncio.BaseTransport) -> bool:
    """Return whether a connection is under TLS, and has chosen HTTP/2."""
    tls = transport.get_extra_info("ssl_object")
    return tls is not None and tls.selected_alpn_protocol() == "h2"


def _ask(name: Callable[[], Any]) -> Any:
    try:
        return name()
    except OSError:  # The connection is gone already.
        return None


def _server(address: Any) -> tuple[str, int | None] | None:
    return (address, None) if isinstance(address, str) else _client(address)


def _client(address: Any) -> tuple[str, int] | None:
    if isinstance(address, list | tuple) and len(address) >= 2:
        return (str(address[0]), int(address[1]))
    return None


def unsent(transport: asyncio.WriteTransport) -> int:
    """Return the number of bytes that wait to be sent, under TLS too. asyncio's TLS transports can't say once they are closed."""
    protocol: Any = getattr(transport, "_ssl_protocol", transport)
    if protocol is None:
        return 0
    size: int = transport.get_write_buffer_size()
    if protocol is not transport and protocol._transport is not None:
        size += protocol._transport.get_write_buffer_size()
    return size


def queued(transport: asyncio.BaseTransport) -> int:
    """Return the number of bytes that the kernel has taken from a connection, and its peer has not."""
    sock = transport.get_extra_info("socket")
    try:
        return int.from_bytes(fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    except (AttributeError, ValueError, OSError):  # closed, or no socket
        return 0


# A file up to this size is read, to be sent together with the head.
READ_AT_ONCE = 16 * 1024

# How much a stream of HTTP/2 reads of a file before the client has made room. A connection has many streams.
_STREAM_PART = 64 * 1024

# After this number of parts of a file, others have their turn: a client that reads fast always makes room for more.
_PARTS_PER_TURN = 4

# The errors of sendfile(2) for files that it can't send.
_NOT_SENDABLE = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)

# The errors that say that the client can't be reached, besides ConnectionError and TimeoutError.
_UNREACHABLE = (errno.EHOSTUNREACH, errno.ENETUNREACH)


async def send_path(request: HttpRequest, path: str | OpenFile) -> None:
    """Send a file as the body of a response.

    What is wrong with the file is raised. Nothing is raised when the client leaves, as with other bodies. ASGI asks
    applications for an absolute path, but Starlette passes on what it was given. The server's own application passes an
    open file.
    """
    if isinstance(path, OpenFile):
        await _send_content(request, path, None)
        return
    if not isinstance(path, str):
        raise TypeError(f"the path of a file must be a str, not {type(path).__name__}")
    # To open a pipe must not block.
    file = OpenFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), path)
    try:
        content = file.read(READ_AT_ONCE, 0) if file.size <= READ_AT_ONCE else None
        if content and not file.size:
            content = await _read_on(file, content)
        await _send_content(request, file, content)
    finally:
        file.close()


async def send_file(request: WsgiStartResponse, file: OpenFile) -> None:
    """Send the file, or the part of it, that `file_of_wrapper` has returned for a WSGI view, and close it."""
    try:
        await _send_content(request, file, None)
    finally:
        file.close()


async def _send_content(request: HttpRequest | WsgiStartResponse, file: OpenFile, content: bytes | None) -> None:
    """Send a file, or its content if that was read."""
    size = file.size if content is None else len(content)
    try:
        count = request._begin_file(size, content)
        if count:
            await _send_file(request, file, count)
        request._end_file()
    except OSError as error:
        request._give_up_file()
        if not (isinstance(error, ConnectionError | TimeoutError) or error.errno in _UNREACHABLE):
            raise
    except BaseException:
        request._give_up_file()
        raise


async def _read_on(file: OpenFile, content: bytes) -> bytes:
    """Read a file to its end that doesn't know its size, as those in /proc. They give a page or so at a time."""
    parts = [content]
    read = len(content)
    while part := await file.read_soon(constants.SENDFILE_FALLBACK_READBUFFER_SIZE, read):
        parts.append(part)
        read += len(part)
    return b"".join(parts)


async def _send_file(request: HttpRequest | WsgiStartResponse, file: OpenFile, count: int) -> None:
    sent = 0
    part = constants.SENDFILE_FALLBACK_READBUFFER_SIZE
    if request._has_stream:
        part = _STREAM_PART
    elif (transport := request._socket()) is not None:
        # The end of a guarded file is sent only if the file has not changed until then.
        held_back = READ_AT_ONCE if file.is_guarded else 0
        sent = await _send_by_kernel(request, transport, file, max(count - held_back, 0))
    parts = 0
    while sent < count:
        content = await file.read_soon(min(count - sent, part), sent)
        if not content:
            raise FileChangedError("Response content shorter than Content-Length")
        sent += len(content)
        if sent >= count:
            file.check()
        request._write_file(content)
        while (room := request._room()) is not None:
            await room
        parts += 1
        if parts % _PARTS_PER_TURN == 0:
            await asyncio.sleep(0)


async def _send_by_kernel(
    request: HttpRequest | WsgiStartResponse, transport: SocketTransport, file: OpenFile, count: int
) -> int:
    """Return how much was sent: less than all if the file ends before, or sendfile(2) doesn't support it."""
    waiter = transport._make_empty_waiter()
    try:
        await waiter
        if (ended := request._start_file(file.number, file.offset, count)) is not None:
            await ended
    except OSError as error:
        if error.errno not in _NOT_SENDABLE:
            raise
    finally:
        sent = transport._stop_sendfile()
        transport._reset_empty_waiter()
    return sent


class FileChangedError(RuntimeError):
    """A file was shortened or modified while it was being sent."""


class OpenFile:
    """A regular file that is to be sent, or a part of it. Threads may still read it when it is closed."""

    def __init__(self, number: int, path: str | None = None, *, is_guarded: bool = False) -> None:
        """Take a descriptor. `is_guarded`: sending fails if the file changes meanwhile."""
        self.number = number
        self._lock = threading.Lock()
        self._readers = 0
        self._is_closed = False
        status = os.fstat(self.number)
        self.size = status.st_size
        self.offset = 0
        self.changed_ns = status.st_mtime_ns
        self.is_guarded = is_guarded
        self._version = (status.st_size, status.st_mtime_ns)
        if not stat.S_ISREG(status.st_mode):
            self.close()
            code = errno.EISDIR if stat.S_ISDIR(status.st_mode) else errno.EINVAL
            raise OSError(code, "not a regular file", path)

    def __del__(self) -> None:
        self.close()

    def cut(self, offset: int, count: int) -> None:
        """Send only a part."""
        self.offset, self.size = offset, count

    def check(self) -> None:
        """Raise FileChangedError if a guarded file has changed."""
        if self.is_guarded:
            status = os.fstat(self.number)
            if (status.st_size, status.st_mtime_ns) != self._version:
                raise FileChangedError("the file has changed")

    def read(self, count: int, offset: int) -> bytes:
        """Read up to `count` bytes, at this offset in the part that is sent."""
        with self._lock:
            if self._is_closed:
                return b""
            self._readers += 1
        try:
            return os.pread(self.number, count, self.offset + offset)
        finally:
            with self._lock:
                self._readers -= 1
                self._close_unused()

    async def read_soon(self, count: int, offset: int) -> bytes:
        """Read up to `count` bytes: at once what is in memory, or else in a thread."""
        content = bytearray(count)
        try:
            read = os.preadv(self.number, [content], self.offset + offset, os.RWF_NOWAIT)
            return bytes(memoryview(content)[:read])
        except OSError:  # It would block, or the file system can't say whether it would.
            return await asyncio.get_running_loop().run_in_executor(None, self.read, count, offset)

    async def read_all(self) -> bytes:
        """Read all that is to be sent."""
        content = b""
        while len(content) < self.size:
            part = await self.read_soon(self.size - len(content), len(content))
            if not part:
                raise FileChangedError("Response content shorter than Content-Length")
            content += part
        self.check()
        return content

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._close_unused()

    def _close_unused(self) -> None:
        if self._is_closed and self._readers == 0 and self.number >= 0:
            os.close(self.number)
            self.number = -1


# The classes of files whose bytes are those of their descriptors.
_PLAIN_FILES = (io.FileIO, io.BufferedReader, io.BufferedRandom)


def file_of_wrapper(wrapper: FileWrapper, left: int | None) -> OpenFile | bytes | None:
    """Return the rest of the file that a WSGI view has wrapped, up to `left` bytes, or its content if it is small.

    Return None if it is not a regular file, or not open as one. The wrapper may be closed at once, because the result
    has a descriptor of its own.
    """
    file: Any = wrapper.filelike
    # Others with such an attribute may read it in a way of their own.
    tempfile: Any = sys.modules.get("tempfile")
    if tempfile is not None and type(file) is tempfile._TemporaryFileWrapper:
        file = file.file
    if type(file) not in _PLAIN_FILES or type(getattr(file, "raw", file)) is not io.FileIO:
        return None
    try:
        file.flush()
        number, offset = file.fileno(), file.tell()
        status = os.fstat(number)
        if not stat.S_ISREG(status.st_mode) or not file.readable() or offset > status.st_size or not status.st_size:
            return None
        size = status.st_size - offset
        if left is not None:
            size = min(size, left)
        if size <= READ_AT_ONCE:
            return os.pread(number, size, offset)
        rest = OpenFile(os.dup(number))
        rest.cut(offset, size)
        return rest
    except (OSError, ValueError):
        return None


def start_view_thread(work: Callable[[int], None], number: int) -> None:
    """Start a thread that runs WSGI views, in an empty context. The process doesn't wait for it at its end."""
    thread = threading.Thread(target=work, args=(number,), name=f"ringloop-wsgi-{number}", daemon=True)
    # Free-threaded Pythons let a thread inherit the context of who starts it: here of the loop, or of a view that waits.
    contextvars.Context().run(thread.start)


def has_arrived(transport: asyncio.BaseTransport) -> bool:
    """Return whether the client has sent something that was not read yet."""
    sock = transport.get_extra_info("socket")
    sock = getattr(sock, "_sock", sock)
    try:
        return bool(sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    except (AttributeError, OSError):
        return False


def log_access(log: Callable[[str, str, str, str, int], None], scope: dict[str, Any], status: int) -> None:
    """Call `log` with the arguments of uvicorn's access log for a request."""
    address, path = client_and_path(scope)
    log(address, scope["method"], path, scope["http_version"], status)


def client_and_path(scope: dict[str, Any]) -> tuple[str, str]:
    """Return the client and the path of a request as uvicorn logs them."""
    client = scope.get("client")
    path = urllib.parse.quote(scope["path"])
    if query := scope["query_string"]:
        path = f"{path}?{query.decode('ascii')}"
    return f"{client[0]}:{client[1]}" if client else "", path


def report_exception(logger: logging.Logger, error: BaseException) -> None:
    logger.error("Exception in ASGI application\n", exc_info=error)


def report_wsgi_exception(logger: logging.Logger, error: BaseException) -> None:
    logger.error("Exception in WSGI application\n", exc_info=error)


def report_error(logger: logging.Logger, text: str) -> None:
    logger.error("%s", text)


def report_result(logger: logging.Logger, result: Any) -> None:
    logger.error("ASGI callable should return None, but returned '%s'.", result)


def report_no_response(logger: logging.Logger, _: None) -> None:
    logger.error("ASGI callable returned without starting response.")


def report_incomplete(logger: logging.Logger, _: None) -> None:
    logger.error("ASGI callable returned without completing response.")


def report_no_handshake(logger: logging.Logger, _: None) -> None:
    logger.error("ASGI callable returned without completing handshake.")


def report_invalid(logger: logging.Logger, refused: tuple[tuple[str, int] | None, str, int]) -> None:
    """Log which client sent something that is refused, the outcome, and how many were not logged before."""
    client, outcome, unlogged = refused
    logger.warning(
        "Invalid HTTP request received. %s %s%s",
        f"Client {client[0]}:{client[1]}" if client else "The client",
        outcome,
        f" (and {unlogged} more that were not logged)" if unlogged else "",
    )


_PLAIN_HTTP = "plain HTTP on a port for HTTPS"
_PLAIN_HTTP_ANSWER = b"This port speaks HTTPS. Use https:// in place of http://.\n"
_PLAIN_HTTP_HEAD = b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"


def refuse_plain_http(logger: logging.Logger, transport: asyncio.WriteTransport) -> None:
    """Answer a client that has sent plain HTTP in place of a TLS handshake, and log it."""
    transport.write(_PLAIN_HTTP_HEAD % len(_PLAIN_HTTP_ANSWER) + _PLAIN_HTTP_ANSWER)
    client = _client(transport.get_extra_info("peername"))
    report_invalid(logger, (client, f"gets 400: {_PLAIN_HTTP}", 0))


def log_websocket(logger: logging.Logger, answer: tuple[dict[str, Any], str]) -> None:
    """Log how a request for a WebSocket was answered, as uvicorn does."""
    scope, outcome = answer
    address, path = client_and_path(scope)
    logger.info(f'%s - "WebSocket %s" {outcome}', address, path)
