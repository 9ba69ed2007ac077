"""Stream transports: what happens once per connection. What happens once per packet is native, in `_core`."""

from __future__ import annotations

import errno
import inspect
import io
import os
import posix
import sys
import warnings
from asyncio import base_events, constants, exceptions, selector_events, unix_events
from asyncio.log import logger
from types import FunctionType
from typing import TYPE_CHECKING, Any

from . import _core

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from ._types import _Loop

# Since Python 3.13 a server knows its transports; before, it only counted them.
_SERVER_TAKES_TRANSPORT = "transport" in inspect.signature(base_events.Server._attach).parameters  # type: ignore[attr-defined]

# From Python 3.14 on it isn't told how much was sent: it sets the file's position even if nothing was.
_POSITION_ARGUMENTS = (
    unix_events._UnixSelectorEventLoop._sock_sendfile_update_filepos.__code__.co_argcount - 1  # type: ignore[attr-defined]
)


_Asyncio: Any = selector_events._SelectorSocketTransport  # type: ignore[attr-defined]


def named_as(original: FunctionType) -> Callable[[Any], Any]:
    """Give a copy of a function the name of asyncio's function, which then shows in handles and error reports."""

    def rename(function: FunctionType) -> FunctionType:
        copy = FunctionType(function.__code__, function.__globals__, function.__name__)
        copy.__qualname__ = original.__qualname__
        return copy

    return rename


# Whether asyncio accepts counts that are too large for the system call, as later versions do.
_BOUNDS_COUNT = "maxsize" in unix_events._UnixSelectorEventLoop._sock_sendfile_native_impl.__code__.co_names  # type: ignore[attr-defined]

# The original of `os.sendfile`, which the user may have replaced.
_SENDFILE = posix.sendfile


class SocketTransport(_core.SocketTransport):
    """A stream connection; see `asyncio.Transport`, which `isinstance` says it is."""

    _start_tls_compatible = True
    _sendfile_compatible = constants._SendfileMode.TRY_NATIVE
    max_size = 256 * 1024

    if not TYPE_CHECKING:  # for instances; stubtest would compare it with the class's own
        # Native classes can't derive from asyncio's, whose layout differs.
        __class__ = property(lambda self: _Asyncio)

    def __repr__(self) -> str:
        info = [self.__class__.__name__]
        if self._sock is None:
            info.append("closed")
        elif self._closing:
            info.append("closing")
        info.append(f"fd={self._sock_fd}")
        if (loop := self._loop) is not None and not loop.is_closed():
            reading, writing = self._polling()
            info.append(f"read={'polling' if reading else 'idle'}")
            state = "polling" if writing else "idle"
            info.append(f"write=<{state}, bufsize={self.get_write_buffer_size()}>")
        return f"<{' '.join(info)}>"

    def __del__(self) -> None:
        if (sock := self._sock) is None:
            return
        try:
            warnings.warn(f"unclosed transport {self!r}", ResourceWarning, source=self, stacklevel=1)
        finally:
            # The rest stays: whoever got hold of the transport through the warning may still use it, and finds its socket closed.
            self._let_go()
            sock.close()
            self._leave_server()

    def _attach(self, server: Any) -> None:
        """Count this transport as one of the server's, until it is closed."""
        server._attach(*([self] if _SERVER_TAKES_TRANSPORT else []))
        self._server = server

    def _leave_server(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server._detach(*([self] if _SERVER_TAKES_TRANSPORT else []))

    def _fatal_error(self, exc: BaseException, message: str = "Fatal error on transport") -> None:
        loop = self._loop
        if isinstance(exc, OSError):
            if loop.get_debug():
                logger.debug("%r: %s", self, message, exc_info=exc)
        else:
            loop.call_exception_handler(
                {
                    "message": message,
                    "exception": exc,
                    "transport": self,
                    "protocol": self._protocol,
                }
            )
        self._force_close(exc)

    @named_as(_Asyncio._call_connection_lost)
    def _call_connection_lost(self, exc: BaseException | None) -> None:
        try:
            if (protocol := self._protocol) is not None and self._protocol_connected:
                protocol.connection_lost(exc)
        finally:
            self._disconnect()


async def send_file(loop: _Loop, transport: SocketTransport, file: Any, offset: int, count: int | None) -> int:
    """Send a file with sendfile(2) after all earlier writes; see `asyncio.loop.sendfile`.

    Raise SendfileNotAvailableError, with asyncio's message, if this file can't be sent so. Nothing was sent then.
    """
    resume_reading = transport.is_reading()
    transport.pause_reading()
    waiter = transport._make_empty_waiter()
    try:
        await waiter
        return await _send_file_now(loop, transport, file, offset, count)
    finally:
        transport._reset_empty_waiter()
        if resume_reading:
            transport.resume_reading()


async def _send_file_now(loop: _Loop, transport: SocketTransport, file: Any, offset: int, count: int | None) -> int:
    if (sock := transport._sock) is None:
        raise ConnectionError("Connection is closed by peer")
    loop._check_sendfile_params(sock, file, offset, count)
    if (source := _file_to_send(file, count)) is None:
        return 0
    number, count = source
    failure: OSError | None = None
    try:
        if (ended := transport._start_sendfile(number, offset, count)) is not None:
            await ended
    except OSError as error:
        failure = error
    finally:
        sent = transport._stop_sendfile()
        _set_position(loop, number, offset, sent)
    if failure is None:
        return sent
    try:
        raise _sendfile_error(failure, is_available=bool(sent) or transport.is_closing())
    finally:
        del failure  # Its traceback refers to this frame.


async def send_file_over_socket(
    loop: _Loop, sock: socket.socket, file: Any, offset: int, count: int | None
) -> int | None:
    """Send a file with sendfile(2), as asyncio's `_sock_sendfile_native`. Return None if asyncio has to do it."""
    if getattr(vars(unix_events)["os"], "sendfile", None) is not _SENDFILE:  # replaced, or taken away
        return None
    if (source := _file_to_send(file, count)) is None:
        return 0
    number, count = source
    if (sending := loop._sock_send_file(sock, number, offset, count)) is None:
        return None
    failure: OSError | None = None
    try:
        await sending
    except OSError as error:
        failure = error
    finally:
        sent = sending.sent
        _set_position(loop, number, offset, sent)
    if failure is None:
        return sent
    try:
        raise _sendfile_error(failure, is_available=bool(sent))
    finally:
        del failure  # Its traceback refers to this frame.


def _file_to_send(file: Any, count: int | None) -> tuple[int, int | None] | None:
    """Return the descriptor of a file, and how many bytes to send; None if there are none. Raise SendfileNotAvailableError."""
    try:
        number = file.fileno()
    except (AttributeError, io.UnsupportedOperation):
        raise exceptions.SendfileNotAvailableError("not a regular file") from None
    try:
        size = os.fstat(number).st_size
    except OSError:
        raise exceptions.SendfileNotAvailableError("not a regular file") from None
    if not (count or size):
        return None
    if count and _BOUNDS_COUNT:
        count = min(count, sys.maxsize)
    return number, count


def _set_position(loop: _Loop, number: int, offset: int, sent: int) -> None:
    """Set a file's position to the end of what was sent of it, as the running Python's asyncio does."""
    arguments = [number, offset + sent, sent]
    del arguments[_POSITION_ARGUMENTS:]
    loop._sock_sendfile_update_filepos(*arguments)


def _sendfile_error(failure: OSError, *, is_available: bool) -> Exception:
    """Return what asyncio makes of an error of sendfile(2). If nothing was sent, it isn't available for this file."""
    if not is_available:
        error: Exception = exceptions.SendfileNotAvailableError("os.sendfile call failed")
    elif failure.errno == errno.ENOTCONN and type(failure) is not ConnectionError:
        error = ConnectionError("socket is not connected", errno.ENOTCONN)
    else:
        return failure
    error.__cause__ = failure
    return error
