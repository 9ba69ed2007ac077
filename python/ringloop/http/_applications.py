"""The user's application as an ASGI 3 callable, whatever it is written for."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from ._errors import StartupError
from ._importing import ImportFromStringError, calls_user, import_from_string, import_optional
from .logging import TRACE_LOG_LEVEL, asgi_logger, logger

if sys.version_info >= (3, 14):
    from inspect import iscoroutinefunction
else:
    from asyncio import iscoroutinefunction

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


# Only the size of these is traced.
_PLACEHOLDERS = {"body": "<{} bytes>", "bytes": "<{} bytes>", "text": "<{} chars>", "headers": "<...>"}


def load(name: Any) -> Any:
    """Return the object that the user named. Raise StartupError if there is none, or it can't be called."""
    try:
        app = import_from_string(name)
    except ImportFromStringError as error:
        raise StartupError(f"Error loading ASGI app. {error}") from None
    return _require_callable(app, f'"{name}"' if isinstance(name, str) else "The object")


def _require_callable(app: Any, what: str) -> Any:
    if not callable(app):
        raise StartupError(f"Error loading ASGI app. {what} is no application: a {type(app).__name__} can't be called.")
    return app


@calls_user
def call_factory(app: Any, factory: bool) -> Any:
    """Return what a factory returns; an application is returned as it is.

    What isn't called a factory is one if it can be called without arguments, as with uvicorn.
    """
    try:
        made = app()
    except TypeError as error:
        if factory:
            raise StartupError(f"Error loading ASGI app factory: {error}") from error
        return app
    if not factory:
        logger.warning(
            "ASGI app factory detected. Using it, but please consider setting the --factory flag explicitly."
        )
    return _require_callable(made, "What the factory returns")


def is_asgi3(app: Any) -> bool:
    """Return whether the application is of ASGI 3 rather than 2, by what calling it would return."""
    if inspect.isclass(app):
        return hasattr(app, "__await__")
    return iscoroutinefunction(app if inspect.isfunction(app) else getattr(app, "__call__", None))  # noqa: B004


def adapt(app: Any, interface: str) -> Application:
    """Return the application as ASGI 3. Raise StartupError where WSGI is asked for and a2wsgi is missing."""
    if interface == "wsgi":
        adapted: Application = import_optional("a2wsgi", "a2wsgi", "--interface wsgi").WSGIMiddleware(app)
        return adapted
    if interface == "asgi2":
        return _Asgi2(app)
    adapted = app
    return adapted


class _Asgi2:
    """Calls an application of ASGI 2, which is called twice, as one of ASGI 3."""

    def __init__(self, app: Callable[[Scope], Callable[[Receive, Send], Awaitable[None]]]) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["asgi"]["version"] = "2.0"
        await self._app(scope)(receive, send)


class TracedApplication:
    """Logs each message of an application, with the sizes of bodies, on the level "trace"."""

    def __init__(self, app: Application) -> None:
        self._app = app
        self._count = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._count += 1
        client = scope.get("client")
        prefix = f"{client[0]}:{client[1]} - ASGI [{self._count}]" if client else f"ASGI [{self._count}]"

        def trace(text: str, *details: Any) -> None:
            asgi_logger.log(TRACE_LOG_LEVEL, f"%s {text}", prefix, *details)

        async def traced_receive() -> dict[str, Any]:
            message = await receive()
            trace("Receive %s", _without_content(message))
            return message

        async def traced_send(message: dict[str, Any]) -> None:
            trace("Send %s", _without_content(message))
            await send(message)

        trace("Started scope=%s", _without_content(scope))
        try:
            await self._app(scope, traced_receive, traced_send)
        except BaseException:
            trace("Raised exception")
            raise
        trace("Completed")


def _without_content(message: dict[str, Any]) -> dict[str, Any]:
    shown = dict(message)
    for key, text in _PLACEHOLDERS.items():
        if shown.get(key) is not None:
            shown[key] = text.format(len(shown[key]))
    return shown
