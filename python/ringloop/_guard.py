"""Compares ringloop with the running asyncio, once, when ringloop is imported.

ringloop's classes override methods that asyncio calls. A later asyncio may pass an argument that an override doesn't take, and the
first connection of a program would fail. So each override must take every parameter of asyncio's method. If one doesn't:

- a method that makes transports, or that belongs to them, is removed, and asyncio's own is used: its transports work on ringloop's
  queue and watches. A RuntimeWarning says so.
- any other method is an ImportError, because the loop itself wouldn't work.

The names of parameters are compared, not what is done with them. tests/interpreter/test_asyncio_sources.py tells a maintainer about that.
"""

from __future__ import annotations

import asyncio
import warnings
from asyncio import selector_events, sslproto
from types import FunctionType
from typing import TYPE_CHECKING, Any

from . import _platform, _tls
from ._datagrams import DatagramTransport
from ._loop import EventLoop
from ._transports import SocketTransport

if TYPE_CHECKING:
    from collections.abc import Iterator

_selector: Any = selector_events
_ssl: Any = sslproto

# These pass unknown arguments on to asyncio's method of the same name.
_FORWARDING = frozenset(
    {
        "connect_accepted_socket",
        "create_connection",
        "create_datagram_endpoint",
        "create_server",
        "create_task",
        "create_unix_connection",
        "create_unix_server",
    }
)

# The parts that can be left to asyncio, with the loop's methods that are removed for them.
_TLS = "TLS connections"
_STREAMS = "stream connections"
_DATAGRAMS = "datagram endpoints"
_HOOKS = {
    _TLS: {"_make_ssl_transport", "start_tls"},
    _STREAMS: {
        "_accept_connection",
        "_make_socket_transport",
        "_make_ssl_transport",
        "start_tls",
        "create_connection",
        "_sendfile_native",
    },
    _DATAGRAMS: {"_make_datagram_transport"},
    "pipes": {"_make_read_pipe_transport", "_make_write_pipe_transport"},
    "files sent over sockets": {"_sock_sendfile_native"},
    "subprocesses": {"_make_subprocess_transport"},
    "name resolution": {"getaddrinfo", "getnameinfo"},
}


def check() -> None:
    """Leave to asyncio what doesn't fit, with a RuntimeWarning; raise ImportError if the loop itself doesn't fit."""
    problems = []
    left: dict[str, None] = {}
    for part, problem in _mismatches():
        if part is None:
            raise _platform.unknown_asyncio(problem)
        problems.append(problem)
        left[part] = None
    if not left:
        return
    # Some are only defined for certain versions.
    for hook in {hook for part in left for hook in _HOOKS[part] if hook in vars(EventLoop)}:
        delattr(EventLoop, hook)
    message = f"{_platform.does_not_know('; '.join(problems))} Until then it leaves {' and '.join(left)} to asyncio, which is slower."
    warnings.warn(message, RuntimeWarning, stacklevel=3)


def _mismatches() -> Iterator[tuple[str | None, str]]:
    """Yield what doesn't fit, with the part that must be left to asyncio, or None for the loop itself."""
    for name, problem in _unknown_parameters(EventLoop, asyncio.SelectorEventLoop):
        yield next((part for part, hooks in _HOOKS.items() if name in hooks), None), problem
    for part, ours, theirs in (
        (_TLS, _tls.SSLProtocol, _ssl.SSLProtocol),
        (_TLS, _tls.SSLProtocolTransport, _ssl._SSLProtocolTransport),
        (_STREAMS, SocketTransport, _selector._SelectorSocketTransport),
        (_DATAGRAMS, DatagramTransport, _selector._SelectorDatagramTransport),
    ):
        for _, problem in _unknown_parameters(ours, theirs):
            yield part, problem
    # Native transports don't inherit asyncio's interfaces, so they must define all of them.
    for part, ours, interface in (
        (_STREAMS, SocketTransport, asyncio.Transport),
        (_DATAGRAMS, DatagramTransport, asyncio.DatagramTransport),
    ):
        for base in interface.__mro__[:-1]:
            for name in vars(base):
                if not name.startswith("_") and not hasattr(ours, name):
                    yield part, f"{base.__name__} has {name}()"


def _unknown_parameters(ours: type, theirs: type) -> Iterator[tuple[str, str]]:
    """Yield the methods of `ours` that override one of `theirs` and lack one of its parameters: name and problem."""
    for base in ours.__mro__:
        if base in theirs.__mro__:
            return
        for name, own in vars(base).items():
            if name.startswith("__"):
                continue
            hidden = getattr(theirs, name, None)
            # What stands in front of a method passes all arguments on.
            own = getattr(own, "__wrapped__", own)
            if type(hidden) is not FunctionType or hidden is own or name in _FORWARDING:
                continue
            asked = _parameters_of_code(hidden)
            if len(asked) == 1:
                continue
            taken = _parameters_of_code(own) if type(own) is FunctionType else _parameters_of_text(own)
            for parameter in asked:
                if parameter not in taken:
                    yield name, f"{hidden.__qualname__}() takes {parameter!r}"


def _parameters_of_code(function: FunctionType) -> tuple[str, ...]:
    """Return the names of the parameters, without *args and **kwargs."""
    code = function.__code__
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def _parameters_of_text(method: Any) -> list[str]:
    """Return the same of a native method, by its text signature: "($self, callback, /, *args, context=None)"."""
    names: list[str] = (method.__text_signature__ or "($self)")[2:-1].split(", ")
    return [name.partition("=")[0] for name in names]
