"""Stream transports: what happens once per connection. What happens once per packet is native, in `_core`."""

from __future__ import annotations

import asyncio
import inspect
import warnings
from asyncio import base_events, constants, futures, trsock
from asyncio.log import logger
from typing import TYPE_CHECKING, Any

from . import _core

if TYPE_CHECKING:
    import socket

    from ._loop import EventLoop

# Servers learned which transports they have in Python 3.13; before, they only counted.
_SERVER_TAKES_TRANSPORT = "transport" in inspect.signature(base_events.Server._attach).parameters  # type: ignore[attr-defined]


class SocketTransport(_core.SocketTransport):
    """A stream connection; see `asyncio.Transport`, which `isinstance` says it is."""

    __slots__ = ()

    _start_tls_compatible = True
    _sendfile_compatible = constants._SendfileMode.TRY_NATIVE  # type: ignore[attr-defined]
    max_size = 256 * 1024

    # asyncio.Transport has a layout of its own, so that a native class can't also derive from it.
    __class__ = property(lambda self: asyncio.Transport)  # type: ignore[assignment]

    def __init__(
        self,
        loop: EventLoop,
        sock: socket.socket,
        protocol: asyncio.BaseProtocol,
        waiter: asyncio.Future[None] | None = None,
        extra: dict[str, Any] | None = None,
        server: asyncio.Server | None = None,
    ) -> None:
        info = self._extra
        info["socket"] = trsock.TransportSocket(sock)
        try:
            info["sockname"] = sock.getsockname()
        except OSError:
            info["sockname"] = None
        if "peername" not in info:
            try:
                info["peername"] = sock.getpeername()
            except OSError:
                info["peername"] = None
        if server is not None:
            server._attach(*([self] if _SERVER_TAKES_TRANSPORT else []))  # type: ignore[attr-defined]
        loop._transports[self._sock_fd] = self
        base_events._set_nodelay(sock)  # type: ignore[attr-defined]
        loop.call_soon(protocol.connection_made, self)
        # Reading starts, and the waiter wakes, only when connection_made() has been called.
        loop._start_reading(self)
        if waiter is not None:
            loop.call_soon(futures._set_result_unless_cancelled, waiter, None)  # type: ignore[attr-defined]

    def __repr__(self) -> str:
        info = [type(self).__name__]
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
        if self._sock is None:
            return
        warnings.warn(f"unclosed transport {self!r}", ResourceWarning, source=self, stacklevel=1)
        self._disconnect()

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

    def _call_connection_lost(self, exc: BaseException | None) -> None:
        try:
            if (protocol := self._protocol) is not None and self._protocol_connected:
                protocol.connection_lost(exc)
        finally:
            self._disconnect()

    def _disconnect(self) -> None:
        sock, server, empty_waiter = self._detach()
        if sock is not None:
            sock.close()
        if server is not None:
            server._detach(*([self] if _SERVER_TAKES_TRANSPORT else []))
        if empty_waiter is not None and not empty_waiter.done():
            empty_waiter.set_exception(ConnectionError("Connection is closed by peer"))
