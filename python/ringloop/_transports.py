"""Stream transports: what happens once per connection. What happens once per packet is native, in `_core`."""

from __future__ import annotations

import inspect
import warnings
from asyncio import base_events, constants, transports
from asyncio.log import logger
from typing import TYPE_CHECKING, Any

from . import _core

# Servers learned which transports they have in Python 3.13; before, they only counted.
_SERVER_TAKES_TRANSPORT = "transport" in inspect.signature(base_events.Server._attach).parameters  # type: ignore[attr-defined]


class SocketTransport(_core.SocketTransport):
    """A stream connection; see `asyncio.Transport`, which `isinstance` says it is."""

    __slots__ = ()

    _start_tls_compatible = True
    _sendfile_compatible = constants._SendfileMode.FALLBACK
    max_size = 256 * 1024

    if not TYPE_CHECKING:  # Of instances; stubtest would compare it with the class's own.
        # asyncio's classes have a layout of their own, so that a native class can't also derive from them. This one is a
        # Transport, and what `loop.sendfile` asks for.
        __class__ = property(lambda self: transports._FlowControlMixin)

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
        try:
            warnings.warn(f"unclosed transport {self!r}", ResourceWarning, source=self, stacklevel=1)
        finally:
            self._disconnect()

    def _attach(self, server: Any) -> None:
        """Counts this transport as one of the server's, until it is closed."""
        server._attach(*([self] if _SERVER_TAKES_TRANSPORT else []))
        self._server = server

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
