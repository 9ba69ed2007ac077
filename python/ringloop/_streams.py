"""Streams: asyncio's own objects, whose methods that run per read and per write are native.

The life of a server's connection (`start_server`, `start_unix_server`):

1. asyncio's function passes a factory of protocols to `loop.create_server`. `for_server` recognizes that factory and returns one of ours.
2. For each connection, `_make` makes a `ServerReader` and a `ServerProtocol`. Their attributes are slots, which take less memory.
3. `ServerProtocol.connection_made` makes the `ServerWriter`, calls the user's function and makes its task.
4. When the task has ended, `_on_done` runs asyncio's own callback, and `connection_lost` says how the connection ended.

The life of a client's connection (`open_connection`), and of a server's whose protocol is asyncio's:

1. asyncio makes the reader and the protocol. When a transport is given that protocol, `adopt` gives the reader the class below.
2. asyncio makes the writer, and calls nothing of ours afterwards. The first `drain` asks the reader for its exception: there
   `_adopt_writer` gives the writer its class.

What this relies on, where CPython has it, and which test of tests/compatibility/test_native_streams.py fails first when that changes:

- The factory is a function called `factory` inside `start_server`, with the free variables `client_connected_cb`, `limit` and `loop`
  (`_FACTORIES`): `test_streams_are_asyncio_s_and_native`.
- All state of a reader, writer and protocol is in their `__dict__` right after they were made (`__slots__` of the three classes):
  `test_a_server_s_streams_have_attributes_of_their_users`.
- `StreamWriter.drain` calls `exception` of its reader, and its frame has `self` (`_DRAIN`):
  `test_a_client_s_writer_is_native_from_its_first_drain_on`.
- The callback of a task is a function called `callback` inside `StreamReaderProtocol.connection_made`, whose free variables are `self`
  and `transport` (`_CALLBACK`): `test_a_server_s_task_ends_as_asyncio_s`.
- Instances of asyncio's classes accept a subclass without slots of its own as `__class__`: `test_a_plain_callback_gets_a_native_writer`.

Where one of these doesn't hold, where the user has put something in the place of a class or method, for subclasses and in debug mode,
the objects stay asyncio's, which are slower. On a CPython that was never tested, those of servers do.
"""

from __future__ import annotations

import functools
import sys
from asyncio import coroutines, futures, streams
from types import CellType, CodeType, FunctionType
from typing import TYPE_CHECKING, Any

from . import _core, _platform

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

_Reader: Any = streams.StreamReader
_Writer: Any = streams.StreamWriter
_Protocol: Any = streams.StreamReaderProtocol


class StreamReader(streams.StreamReader):
    """`asyncio.StreamReader` with native methods for reading."""

    __slots__ = ()

    def exception(self) -> Exception | None:
        # asyncio's `drain` asks this, and is the first to bring a client's writer along: see the module's docstring.
        # Native code that is called first of all, as in a new thread, has no frame.
        caller = sys._getframe().f_back
        if caller is not None and caller.f_code is _DRAIN:
            _adopt_writer(caller.f_locals.get("self"), self)
        return _Reader.exception(self)  # type: ignore[no-any-return]


class StreamWriter(streams.StreamWriter):
    """`asyncio.StreamWriter` with native methods for writing and draining."""

    __slots__ = ()


_DRAIN = getattr(streams.StreamWriter.drain, "__code__", None)


def _adopt_writer(writer: Any, reader: Any) -> None:
    """Give a writer its native class, unless it belongs to the user or to debug mode."""
    if type(writer) is _Writer and writer._reader is reader and not writer._loop.get_debug():
        writer.__class__ = StreamWriter
        # Nothing in asyncio uses this one; it is done from the beginning. A future takes 200 bytes.
        writer._complete_fut = _done


class _Stub:
    """The methods of a loop and of a transport that streams and a future call when they are made and when they go."""

    def get_debug(self) -> bool:
        return False

    def create_future(self) -> asyncio.Future[None]:
        return futures.Future(loop=_stub)

    def is_closing(self) -> bool:
        return True


_stub: Any = _Stub()
_done: asyncio.Future[None] = _stub.create_future()
_done.set_result(None)

# One of each, for the names of their attributes.
_reader: Any = _Reader(loop=_stub)
_protocol: Any = _Protocol(_reader, print, loop=_stub)
_writer: Any = _Writer(_stub, _protocol, _reader, _stub)


def _copy(self: Any) -> Any:
    """Return what `copy.copy` gives: it knows of dictionaries and of slots, but not of what native objects have besides."""
    kind: Any = type(self)
    copied = kind.__new__(kind)
    for name in self.__slots__:
        if hasattr(self, name):
            setattr(copied, name, getattr(self, name))
    vars(copied).update(vars(self))
    return copied


class ServerReader(_core.Slotted, StreamReader):
    """The reader of a server's connection."""

    __slots__ = tuple(vars(_reader))
    __copy__ = _copy


class ServerWriter(_core.Slotted, StreamWriter):
    """The writer of a server's connection."""

    __slots__ = tuple(vars(_writer))
    __copy__ = _copy


class ServerProtocol(_core.Slotted, streams.StreamReaderProtocol):
    """The protocol of a server's connection. What hardly any connection uses is made when somebody asks for it."""

    __slots__ = (*(vars(_protocol).keys() - {"_closed", "_drain_waiters"}), "_made_with", "_waiters", "_whether_closed")
    __copy__ = _copy

    @property
    def _drain_waiters(self: Any) -> Any:
        if self._waiters is None:
            self._waiters = type(_protocol._drain_waiters)()
        return self._waiters

    @_drain_waiters.setter
    def _drain_waiters(self: Any, waiters: Any) -> None:
        self._waiters = waiters or None

    # A future that is made after the protocol may be finalized before it. If its exception must be retrieved, the protocol's `__del__`
    # comes too late for that. So `_whether_closed` is None, then what the connection was lost by (an exception or `_done`), or a future
    # once somebody has asked for it.

    @property
    def _closed(self: Any) -> asyncio.Future[None]:
        closed = self._whether_closed
        if closed is _done or isinstance(closed, BaseException):
            if not self._connection_lost:
                # asyncio's `connection_lost` asks whether there is something to do.
                return _done
            self._whether_closed = future = self._loop.create_future()
            if closed is _done:
                future.set_result(None)
            else:
                future.set_exception(closed)
                future.exception()
        elif closed is None:
            self._whether_closed = self._loop.create_future()
        return self._whether_closed  # type: ignore[no-any-return]

    @_closed.setter
    def _closed(self: Any, future: asyncio.Future[None]) -> None:
        # The first one is that of asyncio's __init__.
        self._whether_closed = future if hasattr(self, "_whether_closed") else None

    def connection_lost(self: Any, exc: Exception | None) -> None:
        if self._whether_closed is None:
            self._whether_closed = _done if exc is None else exc
            _Protocol.connection_lost(self, exc)
            return
        _Protocol.connection_lost(self, exc)
        closed = self._whether_closed
        if futures.isfuture(closed) and closed.done() and not closed.cancelled():
            closed.exception()

    def __del__(self) -> None:
        # asyncio's retrieves the exception of the future, for which it would be made here.
        pass

    def connection_made(self: Any, transport: Any) -> None:
        if (
            _Protocol.connection_made is not _CONNECTION_MADE
            or streams.StreamWriter is not _Writer
            or self._loop.get_debug()
        ):
            _Protocol.connection_made(self, transport)
            return
        # As asyncio's, with a writer of ours and without a function of its own for each task.
        self._transport = transport
        reader = self._stream_reader
        if reader is not None:
            reader.set_transport(transport)
        self._over_ssl = transport.get_extra_info("sslcontext") is not None
        writer: Any = ServerWriter(transport, self, reader, self._loop)
        writer._complete_fut = _done
        if _KEEPS_WRITER:
            self._stream_writer = writer
        self._made_with = transport
        try:
            res = self._client_connected_cb(reader, writer)
        except Exception as exc:
            if not _REPORTS_ERRORS:
                raise
            self._loop.call_exception_handler({"message": _FAILED, "exception": exc, "transport": transport})
            transport.close()
            self._strong_reader = None
            return
        if coroutines.iscoroutine(res):
            self._task = self._loop.create_task(res)
            self._task.add_done_callback(self._on_done)
        self._strong_reader = None

    def _on_done(self: Any, task: asyncio.Task[None]) -> None:
        transport, self._made_with = self._made_with, None
        values = {"self": self, "transport": transport}
        closure = tuple(CellType(values[name]) for name in _CALLBACK.co_freevars)
        FunctionType(_CALLBACK, vars(streams), closure=closure)(task)


def _code_in(function: Any, name: str) -> CodeType | None:
    """Return the code of a function that is defined in another one."""
    constants = getattr(getattr(function, "__code__", None), "co_consts", ())
    return next((it for it in constants if isinstance(it, CodeType) and it.co_name == name), None)


# None if the user has put another in its place before ringloop was imported.
_CONNECTION_MADE = (
    _Protocol.connection_made if getattr(_Protocol.connection_made, "__globals__", None) is vars(streams) else None
)
_CALLBACK: Any = _code_in(_CONNECTION_MADE, "callback")
_IS_KNOWN = {*getattr(_CALLBACK, "co_freevars", ("unknown",))} <= {"self", "transport"}
# Python 3.11 does, since streams have `start_tls`.
_KEEPS_WRITER = "_stream_writer" in vars(_protocol)
# Python 3.14 does, also for callbacks that are no coroutine functions.
_FAILED = "Unhandled exception in client_connected_cb"
_REPORTS_ERRORS = _FAILED in getattr(getattr(_CONNECTION_MADE, "__code__", None), "co_consts", ())
# The code of the functions that make the protocols of `start_server` and `start_unix_server`.
_FACTORIES = [_code_in(getattr(streams, name, None), "factory") for name in ("start_server", "start_unix_server")]

_ours: type
_theirs: type
for _ours, _theirs in ((ServerReader, _Reader), (ServerWriter, _Writer), (ServerProtocol, _Protocol)):
    # Representations contain the name of the class.
    _ours.__name__ = _ours.__qualname__ = _theirs.__name__
# So does that of a handle or of a task, for its callbacks.
ServerProtocol.connection_made.__qualname__ = "StreamReaderProtocol.connection_made"
ServerProtocol._on_done.__qualname__ = getattr(_CALLBACK, "co_qualname", ServerProtocol._on_done.__qualname__)

_core._add_stream_methods(
    StreamReader, StreamWriter, (ServerReader, ServerWriter, ServerProtocol), len(vars(_reader)), _done
)


def for_server(factory: Callable[[], Any]) -> Callable[[], Any]:
    """Return the factory of a server's protocols: for that of asyncio's streams, the same with classes of ours."""
    if (
        not _platform.IS_TESTED
        or not _IS_KNOWN
        or type(factory) is not FunctionType
        or all(factory.__code__ is not it for it in _FACTORIES)
    ):
        return factory
    values = dict(zip(factory.__code__.co_freevars, factory.__closure__ or (), strict=True))
    values = {name: cell.cell_contents for name, cell in values.items()}
    if not {"client_connected_cb", "limit", "loop"} <= values.keys():
        return factory
    return functools.partial(_make, factory, values["client_connected_cb"], values["limit"], values["loop"])


def _make(factory: Callable[[], Any], callback: Any, limit: Any, loop: Any) -> Any:
    """Do what the factory does with classes of ours, unless the user has put something in the place of asyncio's classes."""
    is_usual = streams.StreamReader is _Reader and streams.StreamReaderProtocol is _Protocol
    if not is_usual or callback is None or loop.get_debug():
        return factory()
    return ServerProtocol(ServerReader(limit=limit, loop=loop), callback, loop=loop)


def adopt(protocol: Any) -> None:
    """Give the reader of a protocol its native class; the protocol is exactly asyncio's `StreamReaderProtocol`, or of our class."""
    reader: Any = protocol._stream_reader
    if type(reader) is not _Reader or reader._loop.get_debug():
        return
    reader.__class__ = StreamReader
    if not protocol._drain_waiters:
        # asyncio has a deque, which takes 600 bytes, and only appends to it, removes from it and goes through it.
        protocol._drain_waiters = []
