"""Answers in place of an application that is not running, so that its author sees why."""

from __future__ import annotations

import asyncio
import contextlib
import copy
from typing import TYPE_CHECKING, Any

from .. import EventLoop, _core
from ._errors import StartupError
from ._server import listening_options
from .logging import access_log, logger

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Sequence

    from ._config import Config


@contextlib.asynccontextmanager
async def answering(config: Config, sockets: Sequence[socket.socket], reason: str) -> AsyncIterator[None]:
    """Answer each request on these sockets with 503 and the reason, for the length of the context."""
    stand_in = _StandIn(config, reason)
    try:
        await stand_in.start(sockets)
        yield
    finally:
        stand_in.stop()


class _StandIn:
    def __init__(self, config: Config, reason: str) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, EventLoop)
        # A copy, because workers get the original, and a TLS context can't be passed to them.
        self._config = copy.copy(config)
        self._body = f"The application does not run:\n\n{reason}\n".encode(errors="replace")
        self._servers: list[asyncio.Server] = []
        self._service = _core.HttpService(
            loop,
            self._answer,
            self._config,
            headers=config.encoded_headers,
            ws=False,
            access_log=access_log() if config.access_log else None,
            logger=logger,
        )

    async def start(self, sockets: Sequence[socket.socket]) -> None:
        """Listen on copies of the sockets, which stay open when it ends."""
        try:
            self._config.load_tls()
        except StartupError:
            return  # The worker has failed for the same reason.
        for sock in sockets:
            server = await asyncio.get_running_loop().create_server(
                self._service.protocol, sock=sock.dup(), **listening_options(self._config)
            )
            self._servers.append(server)

    def stop(self) -> None:
        for server in self._servers:
            server.close()
        self._service.shut_down()
        self._service.abort()

    async def _answer(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": 503, "headers": headers})
        await send({"type": "http.response.body", "body": self._body})
