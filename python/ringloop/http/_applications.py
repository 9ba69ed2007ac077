"""The user's application, and the interface that it is written for."""

from __future__ import annotations

import inspect
import io
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Literal
from wsgiref.util import FileWrapper

from .. import _core
from ._errors import StartupError
from ._importing import ImportFromStringError, calls_user, import_from_string
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
def call_factory(app: Any, factory: bool, interface: str = "auto") -> Any:
    """Return what a factory returns; an application is returned as it is.

    What isn't called a factory is one if it can be called without arguments, as with uvicorn. An application that takes any number
    of arguments can be called without them, too, but is none: as Werkzeug's decorator makes it, or if the user says that it is WSGI.
    """
    if not factory and ((interface == "wsgi" and _takes_any_number(app)) or (interface == "auto" and _wraps_view(app))):
        return app
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


def _takes_any_number(app: Any) -> bool:
    """Return whether something takes any number of positional arguments and no keywords, and what it may wrap needs one."""
    try:
        own = {parameter.kind for parameter in inspect.signature(app, follow_wrapped=False).parameters.values()}
        wrapped = inspect.signature(app)
    except (TypeError, ValueError):
        return False
    has_any = inspect.Parameter.VAR_POSITIONAL in own and inspect.Parameter.VAR_KEYWORD not in own
    return has_any and not (hasattr(app, "__wrapped__") and _takes(wrapped, 0))


def _wraps_view(app: Any) -> bool:
    """Return whether an application takes any number of arguments and wraps a function of one, as Werkzeug's decorator has it."""
    if not hasattr(app, "__wrapped__") or not _takes_any_number(app):
        return False
    wrapped = inspect.signature(app)
    return _takes(wrapped, 1) and not _takes(wrapped, 2)


def interface_of(app: Any) -> Literal["asgi3", "asgi2", "wsgi"]:
    """Return the interface of an application, by how it can be called. Raise StartupError if that is ambiguous."""
    if _is_asgi3(app):
        return "asgi3"
    if _wraps_view(app):
        return "wsgi"
    try:
        signature = inspect.signature(app)
    except (TypeError, ValueError):
        raise StartupError(f"{_AMBIGUOUS} Its signature can't be read.") from None
    fitting = [name for name, count in _PARAMETERS.items() if _takes(signature, count)]
    if len(fitting) == 1:
        return fitting[0]
    if len(fitting) > 1 and (required := _required(signature)) in _PARAMETERS.values():
        return next(name for name, count in _PARAMETERS.items() if count == required)
    raise StartupError(f"{_AMBIGUOUS} Its signature is {signature}.")


_PARAMETERS: dict[Literal["asgi3", "asgi2", "wsgi"], int] = {"asgi3": 3, "asgi2": 1, "wsgi": 2}

_AMBIGUOUS = "It is not clear which interface the application has: set --interface to asgi3, asgi2 or wsgi."


def _takes(signature: inspect.Signature, count: int) -> bool:
    """Return whether something can be called with `count` positional arguments."""
    try:
        signature.bind(*range(count))
    except TypeError:
        return False
    return True


def _required(signature: inspect.Signature) -> int:
    """Return the number of positional arguments that a call needs."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = signature.parameters.values()
    return sum(parameter.kind in kinds and parameter.default is parameter.empty for parameter in parameters)


def _is_asgi3(app: Any) -> bool:
    """Return whether calling the application gives an awaitable, as far as can be told without a call."""
    if inspect.isclass(app):
        return hasattr(app, "__await__")
    function = getattr(app, "func", app)  # that of functools.partial
    return iscoroutinefunction(function if inspect.isroutine(function) else getattr(function, "__call__", None))  # noqa: B004


def wsgi_environ(root_path: str, *, has_threads: bool, has_workers: bool) -> dict[str, Any]:
    """Return what the environments of all requests have in common."""
    errors = sys.stderr if sys.stderr is not None else io.StringIO()
    return {
        "wsgi.version": (1, 0),
        "wsgi.errors": errors,
        "wsgi.multithread": has_threads,
        "wsgi.multiprocess": has_workers,
        "wsgi.run_once": False,
        "wsgi.input_terminated": True,
        "wsgi.file_wrapper": FileWrapper,
        "SERVER_SOFTWARE": f"ringloop/{_core.__version__}",
        # WSGI has a character for each byte.
        "SCRIPT_NAME": root_path.rstrip("/").encode().decode("latin-1"),
    }


def adapt(app: Any, interface: str) -> Any:
    """Return the application as an ASGI 3 or WSGI application."""
    if interface == "asgi2":
        return _Asgi2(app)
    return app


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
