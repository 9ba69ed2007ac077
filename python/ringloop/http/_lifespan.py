"""The lifespan protocol of ASGI: the application starts before the first connection, and ends after the last."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from ._errors import summarize
from .logging import logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_BEFORE, _STARTED, _ENDED = "before startup", "after startup", "after shutdown"


class Lifespan:
    """One application's lifespan; `mode` is "auto" (applications need not support it), "on" or "off".

    `reason` is why it failed, if it has. `state` is what the application put into its scope's state; each request gets a copy.
    """

    def __init__(self, app: Callable[..., Awaitable[None]], mode: str, asgi_version: str) -> None:
        self.state: dict[str, Any] = {}
        self.failed = False
        self.reason: str | None = None
        self._app = app
        self._mode = mode
        self._asgi_version = asgi_version
        self._phase = _BEFORE
        self._messages: asyncio.Queue[dict[str, str]] = asyncio.Queue()
        self._answered = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._abandoned = False
        self._is_ending = False

    async def startup(self) -> None:
        """Start the application; `failed` is then true if it can't be served."""
        if self._mode == "off":
            return
        logger.info("Waiting for application startup.")
        self._task = asyncio.get_running_loop().create_task(self._run(), name="lifespan")
        await self._ask("lifespan.startup")
        if not self.failed:
            logger.info("Application startup complete.")

    async def shutdown(self) -> None:
        """End the application; `failed` is then true if it said that this failed."""
        if self._task is None or self._task.done():
            return
        logger.info("Waiting for application shutdown.")
        self._is_ending = True
        await self._ask("lifespan.shutdown")
        if self.failed:
            logger.error("Application shutdown failed. Exiting.")
        else:
            logger.info("Application shutdown complete.")

    def abandon(self) -> None:
        """Cancel the application's task: the server ends at once."""
        self._abandoned = True
        if self._task is not None:
            self._task.cancel()

    async def _ask(self, message: str) -> None:
        self._answered.clear()
        self._messages.put_nowait({"type": message})
        await self._answered.wait()

    async def _run(self) -> None:
        scope = {
            "type": "lifespan",
            "asgi": {"version": self._asgi_version, "spec_version": "2.0"},
            "state": self.state,
        }
        try:
            await self._app(scope, self._messages.get, self._send)
        except BaseException as error:
            if self.failed or self._abandoned:
                pass  # The failure has been reported already; many applications raise afterwards.
            elif (
                self._mode == "auto"
                and self._phase is _BEFORE
                and not isinstance(error, SystemExit | KeyboardInterrupt)
            ):
                logger.info("ASGI 'lifespan' protocol appears unsupported.")
            else:
                # In the mode "auto" an application that has started is served, whatever its lifespan does next, as in uvicorn.
                self.failed = self._mode == "on" or self._phase is _BEFORE or self._is_ending
                self.reason = summarize(error)
                logger.error("Exception in 'lifespan' protocol\n", exc_info=error)
        finally:
            self._answered.set()

    async def _send(self, message: dict[str, Any]) -> None:
        name = message["type"]
        expected = "lifespan.startup" if self._phase is _BEFORE else "lifespan.shutdown"
        if self._phase is _ENDED or name not in (f"{expected}.complete", f"{expected}.failed"):
            raise RuntimeError(f"Unexpected ASGI message {name!r} in the lifespan protocol ({self._phase}).")
        self._phase = _STARTED if self._phase is _BEFORE else _ENDED
        if name.endswith(".failed"):
            self.failed = True
            if message.get("message"):
                self.reason = message["message"]
                logger.error(message["message"])
        self._answered.set()
