"""Pipe transports: asyncio's own, whose methods that run per read and per write are native."""

from __future__ import annotations

from asyncio import streams, subprocess, unix_events
from asyncio.log import logger
from typing import TYPE_CHECKING, Any

from . import _core
from ._posting import EndsInTheLoop, check_limits, ends_in_the_loop, left_to_the_loop
from ._streams import StreamReader, adopt

if TYPE_CHECKING:
    import asyncio

    from ._types import _Loop

_Reader: Any = unix_events._UnixReadPipeTransport  # type: ignore[attr-defined]
_Writer: Any = unix_events._UnixWritePipeTransport  # type: ignore[attr-defined]


class ReadPipeTransport(EndsInTheLoop, _Reader):  # type: ignore[misc]
    """The reading end of a pipe; see `asyncio.ReadTransport`."""

    set_protocol = left_to_the_loop(_Reader.set_protocol)
    pause_reading = left_to_the_loop(_Reader.pause_reading)
    resume_reading = left_to_the_loop(_Reader.resume_reading)
    close = ends_in_the_loop(_Reader.close)

    def __init__(
        self,
        loop: _Loop,
        pipe: Any,
        protocol: asyncio.BaseProtocol,
        waiter: asyncio.Future[None] | None = None,
        extra: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(loop, pipe, protocol, waiter, extra)
        if type(protocol) is streams.StreamReaderProtocol:
            adopt(protocol)

    def _end(self: Any) -> None:
        """End the transport because the other end was closed, as the second half of asyncio's `_read_ready`."""
        if self._loop.get_debug():
            logger.info("%r was closed by peer", self)
        self._closing = True
        self._loop._remove_reader(self._fileno)
        self._loop.call_soon(self._protocol.eof_received)
        self._loop.call_soon(self._call_connection_lost, None)


class WritePipeTransport(EndsInTheLoop, _Writer):  # type: ignore[misc]
    """The writing end of a pipe; see `asyncio.WriteTransport`."""

    set_protocol = left_to_the_loop(_Writer.set_protocol)
    set_write_buffer_limits = left_to_the_loop(_Writer.set_write_buffer_limits, check_limits)
    write_eof = ends_in_the_loop(_Writer.write_eof)
    close = ends_in_the_loop(_Writer.close)
    abort = ends_in_the_loop(_Writer.abort)

    def __init__(
        self,
        loop: _Loop,
        pipe: Any,
        protocol: asyncio.BaseProtocol,
        waiter: asyncio.Future[None] | None = None,
        extra: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(loop, pipe, protocol, waiter, extra)
        self._buffer = _core.WriteBuffer()

    if TYPE_CHECKING:  # native

        def write(self, data: bytes | bytearray | memoryview) -> None: ...


# Representations and error messages contain the name of the class.
ReadPipeTransport.__name__ = ReadPipeTransport.__qualname__ = _Reader.__name__
WritePipeTransport.__name__ = WritePipeTransport.__qualname__ = _Writer.__name__
_core._add_pipe_methods(ReadPipeTransport, WritePipeTransport)


_CHILD_PROTOCOL: Any = subprocess.SubprocessStreamProtocol


def adopt_child(protocol: Any) -> None:
    """Give the readers of a child's streams their native class, if the protocol is asyncio's own."""
    if type(protocol) is not _CHILD_PROTOCOL or protocol._loop.get_debug():
        return
    for reader in (protocol.stdout, protocol.stderr):
        if type(reader) is streams.StreamReader:
            reader.__class__ = StreamReader
