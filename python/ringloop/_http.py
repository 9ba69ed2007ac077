"""The HTTP server's native half, in Python: what runs once per connection, or rarely."""

from __future__ import annotations

import asyncio.coroutines
import inspect
import logging
import urllib.parse
from asyncio import Task, current_task
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["Task", "current_task"]

logger = logging.getLogger("uvicorn.error")

# What `inspect.iscoroutinefunction` and `asyncio.iscoroutinefunction` look for in a callable.
COROUTINE_MARK = getattr(inspect, "_is_coroutine_mark", getattr(inspect, "_is_coroutine_marker", None))
ASYNCIO_COROUTINE_MARK = getattr(asyncio.coroutines, "_is_coroutine", None)


async def awaiting(awaitable: Awaitable[Any]) -> Any:
    """Awaits the object that an application has returned instead of a coroutine."""
    return await awaitable


def addresses(transport: asyncio.BaseTransport) -> tuple[Any, Any, str]:
    """Server, client and scheme of a connection, as ASGI's scopes have them."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        server, client = _ask(sock.getsockname), _ask(sock.getpeername)
    else:
        server = transport.get_extra_info("sockname")
        client = transport.get_extra_info("peername")
    scheme = "https" if transport.get_extra_info("sslcontext") else "http"
    return _server(server), _client(client), scheme


def _ask(name: Callable[[], Any]) -> Any:
    try:
        return name()
    except OSError:  # The connection is gone already.
        return None


def _server(address: Any) -> tuple[str, int | None] | None:
    return (address, None) if isinstance(address, str) else _client(address)


def _client(address: Any) -> tuple[str, int] | None:
    if isinstance(address, list | tuple) and len(address) >= 2:
        return (str(address[0]), int(address[1]))
    return None


def unsent(transport: asyncio.WriteTransport) -> int:
    """Bytes that wait to be sent, under TLS too. asyncio's TLS transports can't say once they are closed."""
    protocol: Any = getattr(transport, "_ssl_protocol", transport)
    if protocol is None:
        return 0
    size: int = transport.get_write_buffer_size()
    if protocol is not transport and protocol._transport is not None:
        size += protocol._transport.get_write_buffer_size()
    return size


def log_access(log: Callable[[str, str, str, str, int], None], scope: dict[str, Any], status: int) -> None:
    """Calls `log` with the arguments of uvicorn's access log for a request."""
    client = scope.get("client")
    path = urllib.parse.quote(scope["path"])
    if query := scope["query_string"]:
        path = f"{path}?{query.decode('ascii')}"
    address = f"{client[0]}:{client[1]}" if client else ""
    log(address, scope["method"], path, scope["http_version"], status)


def report_exception(logger: logging.Logger, error: BaseException) -> None:
    logger.error("Exception in ASGI application\n", exc_info=error)


def report_result(logger: logging.Logger, result: Any) -> None:
    logger.error("ASGI callable should return None, but returned '%s'.", result)


def report_no_response(logger: logging.Logger, _: None) -> None:
    logger.error("ASGI callable returned without starting response.")


def report_incomplete(logger: logging.Logger, _: None) -> None:
    logger.error("ASGI callable returned without completing response.")


def warn_upgrade(logger: logging.Logger, _: None) -> None:
    logger.warning("Unsupported upgrade request.")
