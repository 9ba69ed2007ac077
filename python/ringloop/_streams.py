"""Streams: asyncio's own objects, whose methods that run per read and per write are native.

A connection that asyncio's `open_connection`, `start_server` and their like make has asyncio's `StreamReader` and `StreamWriter`. Its
transport gives the reader the class below when it is given the protocol. A server's writer, which doesn't exist by then, gets its class
when it is passed to the server's callback. Subclasses of asyncio's classes stay what they are, and so does everything in debug mode.
"""

from __future__ import annotations

from asyncio import streams
from typing import TYPE_CHECKING, Any

from . import _core

if TYPE_CHECKING:
    from collections.abc import Callable


class StreamReader(streams.StreamReader):
    """`asyncio.StreamReader` with native methods for reading."""

    __slots__ = ()


class StreamWriter(streams.StreamWriter):
    """`asyncio.StreamWriter` with native methods for writing and draining."""

    __slots__ = ()


_core._add_stream_methods(StreamReader, StreamWriter)

_Reader: Any = streams.StreamReader
_Writer: Any = streams.StreamWriter


class _Accept:
    """Stands for a server's callback until it is called."""

    __slots__ = ("_callback",)

    def __init__(self, callback: Callable[..., object]) -> None:
        self._callback = callback

    def __call__(self, reader: Any, writer: Any) -> object:
        if type(writer) is _Writer:
            writer.__class__ = StreamWriter
            writer._protocol._client_connected_cb = self._callback
        return self._callback(reader, writer)


def adopt(protocol: Any) -> None:
    """Gives the streams of a protocol their native classes; the protocol is exactly asyncio's `StreamReaderProtocol`."""
    reader: Any = protocol._stream_reader
    if type(reader) is not _Reader or reader._loop.get_debug():
        return
    reader.__class__ = StreamReader
    callback = protocol._client_connected_cb
    if callback is not None and protocol._transport is None:
        protocol._client_connected_cb = _Accept(callback)
