"""TLS: what happens once per connection, by asyncio's own code. What happens once per packet is native, in `_core`."""

from __future__ import annotations

import ssl
from asyncio import base_events, sslproto
from types import FunctionType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Self

from . import _core
from ._posting import FREE_THREADED, check_limits, left_to_the_loop

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine

# typeshed leaves out what is private, and some of the rest is out of date.
_AsyncioSSLProtocol: Any = sslproto.SSLProtocol
_Transport: Any = sslproto._SSLProtocolTransport
# The buffers of all connections whose transports don't need one. It is empty, so nobody can write to it.
_NO_BUFFER = bytearray()
_NO_BUFFER_VIEW = memoryview(_NO_BUFFER)
_WRAPPED, _FLUSHING = sslproto.SSLProtocolState.WRAPPED, sslproto.SSLProtocolState.FLUSHING
_NOT_MADE = sslproto.AppProtocolState.STATE_INIT


class SSLProtocolTransport(_Transport):  # type: ignore[misc]
    """The transport that the user writes to; `write` and `writelines` are native."""

    if TYPE_CHECKING:
        _closed: bool

        # Positional only, as for native methods with one argument.
        def write(self, data: Any, /) -> None: ...
        def writelines(self, list_of_data: Any, /) -> None: ...

    set_protocol = left_to_the_loop(_Transport.set_protocol)
    pause_reading = left_to_the_loop(_Transport.pause_reading)
    resume_reading = left_to_the_loop(_Transport.resume_reading)
    set_write_buffer_limits = left_to_the_loop(_Transport.set_write_buffer_limits, check_limits)
    set_read_buffer_limits = left_to_the_loop(_Transport.set_read_buffer_limits, check_limits)

    if FREE_THREADED:
        # Closing and aborting are left to the loop, too, but `is_closing` is true at once.

        def close(self) -> None:
            if self._closed or not self._loop._runs_elsewhere():
                super().close()
            else:
                self._closed = True
                self._loop.call_soon_threadsafe(self._ssl_protocol._start_shutdown)

        def _force_close(self, exc: BaseException | None) -> None:
            protocol = self._ssl_protocol
            if protocol is None or not self._loop._runs_elsewhere():
                super()._force_close(exc)
            else:
                self._closed = True
                self._loop.call_soon_threadsafe(protocol._abort, exc)


_core._add_transport_methods(SSLProtocolTransport)


class SSLProtocol(_core.SSLProtocol, _AsyncioSSLProtocol):  # type: ignore[misc]
    """TLS between a transport and the user's protocol; see `asyncio.sslproto.SSLProtocol`."""

    if TYPE_CHECKING:
        _app_transport: SSLProtocolTransport | None
        _app_transport_created: bool
        _shutdown_timeout_handle: asyncio.TimerHandle | None
        _sslcontext: Any

    # Until asyncio's __init__ has set both.
    _incoming_high_water: float = 1
    _outgoing_high_water: float = 1

    def __new__(cls, *args: Any, **options: Any) -> Self:
        # The native part needs no arguments, and would have to copy them.
        return super().__new__(cls)

    def __init__(self, *args: Any, **options: Any) -> None:
        # asyncio's makes a buffer of this size. Our transports don't need it; for others, `get_buffer` makes it.
        self.max_size = 0
        super().__init__(*args, **options)
        del self.max_size
        if not isinstance(self._sslcontext, ssl.SSLContext):
            # It stands for a context that is replaced from time to time, as in `ringloop.http`.
            self._sslcontext = getattr(self._sslobj, "context", self._sslcontext)
            self._extra["sslcontext"] = self._sslcontext
        self._ssl_buffer, self._ssl_buffer_view = _NO_BUFFER, _NO_BUFFER_VIEW

    def _get_app_transport(self) -> SSLProtocolTransport:
        if self._app_transport is None:
            if self._app_transport_created:
                raise RuntimeError("Creating _SSLProtocolTransport twice")
            self._app_transport = SSLProtocolTransport(self._loop, self)
            self._app_transport_created = True
        return self._app_transport

    def _set_write_buffer_limits(self, high: float | None = None, low: float | None = None) -> None:
        super()._set_write_buffer_limits(high, low)
        self._note_zero_marks()

    def _set_read_buffer_limits(self, high: float | None = None, low: float | None = None) -> None:
        super()._set_read_buffer_limits(high, low)
        self._note_zero_marks()

    def _note_zero_marks(self) -> None:
        self._zero_marks = not (self._incoming_high_water > 0 and self._outgoing_high_water > 0)

    def _on_handshake_complete(self, handshake_exc: BaseException | None) -> None:
        if (
            getattr(handshake_exc, "reason", None) == "HTTP_REQUEST"
            and isinstance(self._app_protocol, _core.HttpConnection)
            and self._transport is not None
        ):
            self._app_protocol._refuse_plain_http(self._transport)
        super()._on_handshake_complete(handshake_exc)
        del handshake_exc  # Its traceback refers to this frame.
        if self._app_reading_paused and self._state is _WRAPPED:
            # asyncio sends the end of the handshake after its first read. If the protocol has paused reading in
            # connection_made, there is no read, and the peer would wait.
            self._process_outgoing()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._app_state is _NOT_MADE and isinstance(self._app_protocol, _core.HttpConnection):
            self._app_protocol._connection_not_made()
        super().connection_lost(exc)

    def eof_received(self) -> bool | None:
        if self._app_reading_paused and getattr(self._app_protocol, "_takes_rest_at_end", False):
            # What has arrived is in memory already. asyncio would keep the end from the protocol until it reads on, and
            # drop what it writes meanwhile.
            self._app_reading_paused = False
        keeps_open: bool | None = super().eof_received()
        return keeps_open

    def _start_shutdown(self, *args: Any) -> None:
        if self._state is _FLUSHING and self._app_reading_paused:
            # The peer has ended the connection, and what it sent before waits until the user reads on. A user who closes
            # the connection never does, and asyncio would wait for ever. If it is closed within a read, that goes on.
            self._loop.call_soon(self._flush_closed)
        super()._start_shutdown(*args)

    def _flush_closed(self) -> None:
        if self._state is _FLUSHING:
            self._do_flush()

    def _on_shutdown_complete(self, shutdown_exc: BaseException | None) -> None:
        super()._on_shutdown_complete(shutdown_exc)
        if not shutdown_exc and self._shutdown_timeout_handle is None:
            # Closing waits until everything is sent, so a peer that doesn't read could keep the connection open for ever.
            # Newer versions of asyncio keep the timeout running until the connection is lost; here all do.
            self._shutdown_timeout_handle = self._loop.call_later(
                self._ssl_shutdown_timeout, self._check_shutdown_timeout
            )


def _with_our_protocol(method: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Return a copy of asyncio's method that uses our `SSLProtocol`."""
    assert isinstance(method, FunctionType)
    names = {**method.__globals__, "sslproto": SimpleNamespace(SSLProtocol=SSLProtocol)}
    function = FunctionType(method.__code__, names, method.__name__, method.__defaults__, method.__closure__)
    function.__kwdefaults__ = method.__kwdefaults__
    function.__qualname__ = method.__qualname__
    function.__doc__ = method.__doc__
    return function


start_tls = _with_our_protocol(base_events.BaseEventLoop.start_tls)
