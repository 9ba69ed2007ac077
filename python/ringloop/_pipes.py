"""Pipe transports: asyncio's own, whose methods that run per read and per write are native."""

from __future__ import annotations

from asyncio import streams, subprocess, unix_events
from asyncio.log import logger
from typing import TYPE_CHECKING, Any

from . import _core
from ._streams import StreamReader, adopt

if TYPE_CHECKING:
    import asyncio

    from ._types import _Loop

_events: Any = unix_events


class ReadPipeTransport(_events._UnixReadPipeTransport):  # type: ignore[misc]
    """The reading end of a pipe; see `asyncio.ReadTransport`."""

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


class WritePipeTransport(_events._UnixWritePipeTransport):  # type: ignore[misc]
    """The writing end of a pipe; see `asyncio.WriteTransport`."""

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
ReadPipeTransport.__name__ = ReadPipeTransport.__qualname__ = _events._UnixReadPipeTransport.__name__
WritePipeTransport.__name__ = WritePipeTransport.__qualname__ = _events._UnixWritePipeTransport.__name__
_core._add_pipe_methods(ReadPipeTransport, WritePipeTransport)


_CHILD_PROTOCOL: Any = subprocess.SubprocessStreamProtocol


def adopt_child(protocol: Any) -> None:
    """Give the readers of a child's streams their native class, if the protocol is asyncio's own."""
    if type(protocol) is not _CHILD_PROTOCOL or protocol._loop.get_debug():
        return
    for reader in (protocol.stdout, protocol.stderr):
        if type(reader) is streams.StreamReader:
            reader.__class__ = StreamReader
