"""Datagram transports: what happens once per endpoint, and errors. What happens once per datagram is native, in `_core`."""

from __future__ import annotations

import asyncio
import socket
import sys
from asyncio import futures, selector_events, transports, trsock
from asyncio.log import logger
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from . import _core
from ._posting import check_limits, left_to_the_loop
from ._transports import SocketTransport, named_as

_Flow: Any = transports._FlowControlMixin
_Asyncio: Any = selector_events._SelectorDatagramTransport  # type: ignore[attr-defined]

# Since Python 3.13, empty datagrams are sent rather than dropped, and each datagram counts with its header in the write buffer.
_SENDS_EMPTY = sys.version_info >= (3, 13)
_HEADER_SIZE = 8 if _SENDS_EMPTY else 0
# So since Python 3.15.
_force_close: Any = selector_events._SelectorTransport._force_close  # type: ignore[attr-defined]
_FORGETS_SIZE = "_buffer_size" in getattr(getattr(_force_close, "__code__", None), "co_names", ())

_FAMILIES = (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX)


def _default_marks() -> tuple[float, float]:
    marks: Any = SimpleNamespace()
    _Flow._set_write_buffer_limits(marks)
    return marks._high_water, marks._low_water


class DatagramTransport(_core.DatagramTransport):
    """A datagram endpoint; see `asyncio.DatagramTransport`."""

    max_size = 256 * 1024

    if not TYPE_CHECKING:  # for instances; stubtest would compare it with the class's own
        # Native classes can't derive from asyncio's, whose layout differs.
        __class__ = property(lambda self: _Asyncio)

    def __new__(
        cls,
        loop: _core.Loop,
        sock: socket.socket,
        protocol: asyncio.BaseProtocol,
        address: Any = None,
        waiter: asyncio.Future[None] | None = None,
        extra: dict[str, Any] | None = None,
        lent: bool = False,
    ) -> DatagramTransport:
        extra = {} if extra is None else extra
        extra["socket"] = trsock.TransportSocket(sock)
        try:
            extra["sockname"] = sock.getsockname()
        except OSError:
            extra["sockname"] = None
        if "peername" not in extra:
            try:
                extra["peername"] = sock.getpeername()
            except OSError:
                extra["peername"] = None
        return super().__new__(
            cls, loop, sock, protocol, address, extra, _HEADER_SIZE, _SENDS_EMPTY, _FORGETS_SIZE, lent
        )

    def __init__(
        self,
        loop: _core.Loop,
        sock: socket.socket,
        protocol: Any,
        address: Any = None,
        waiter: asyncio.Future[None] | None = None,
        extra: dict[str, Any] | None = None,
        lent: bool = False,
    ) -> None:
        self._enter()
        loop.call_soon(protocol.connection_made, self)
        # Only start reading, and wake up the waiter, when connection_made() has been called.
        loop.call_soon(self._start_reading)
        if waiter is not None:
            loop.call_soon(futures._set_result_unless_cancelled, waiter, None)  # type: ignore[attr-defined]

    _server = None
    # The defaults of flow control.
    _protocol_paused = False
    _high_water, _low_water = _default_marks()

    # asyncio's own methods, which work on this class as it is.
    get_extra_info = transports.BaseTransport.get_extra_info
    write = _Asyncio.write
    writelines = _Asyncio.writelines
    write_eof = _Asyncio.write_eof
    can_write_eof = _Asyncio.can_write_eof
    abort = _Asyncio.abort
    get_write_buffer_limits = _Flow.get_write_buffer_limits
    set_write_buffer_limits = left_to_the_loop(_Flow.set_write_buffer_limits, check_limits)
    _set_write_buffer_limits = _Flow._set_write_buffer_limits
    _maybe_pause_protocol = _Flow._maybe_pause_protocol
    _maybe_resume_protocol = _Flow._maybe_resume_protocol

    # The same as for streams.
    __repr__ = cast(Any, SocketTransport.__repr__)
    __del__ = cast(Any, SocketTransport.__del__)
    _fatal_error = cast(Any, SocketTransport._fatal_error)
    _call_connection_lost = named_as(_Asyncio._call_connection_lost)(SocketTransport._call_connection_lost)

    @left_to_the_loop
    def pause_reading(self) -> None:
        """Stop delivering datagrams until `resume_reading`. Do nothing when paused or closing."""
        if not self.is_reading():
            return
        self._set_paused(True)
        if self._loop.get_debug():
            logger.debug("%r pauses reading", self)

    @left_to_the_loop
    def resume_reading(self) -> None:
        """Deliver datagrams again."""
        if self._closing or not self._paused:
            return
        self._set_paused(False)
        self._start_reading()
        if self._loop.get_debug():
            logger.debug("%r resumes reading", self)

    def close(self) -> None:
        """Close the endpoint once everything buffered is sent; nothing more is received."""
        if self._closing:
            return
        if (loop := self._note_end(True)) is None:
            self._close()
        else:
            loop.call_soon_threadsafe(self._close)

    def _close(self) -> None:
        if not self._begin_close():
            self._loop.call_soon(self._call_connection_lost, None)

    def _force_close(self, exc: BaseException | None) -> None:
        if (loop := self._note_end(False)) is not None:
            loop.call_soon_threadsafe(self._force_close, exc)
        elif self._begin_abort():
            self._loop.call_soon(self._call_connection_lost, exc)

    def _leave_server(self) -> None:
        """Do nothing: it never has a server."""

    def _disconnect(self) -> None:
        if (sock := self._detach()) is not None:
            sock.close()


def can_be_native(sock: socket.socket) -> bool:
    """Return whether the native transport supports this kind of socket; asyncio's own transport serves all others."""
    return _core._is_usual_socket(sock) and sock.type == socket.SOCK_DGRAM and sock.family in _FAMILIES
