"""Have uvicorn's own tests test `ringloop serve`, in a process that `tools/suites.py` runs on ringloop's loop.

pytest imports this module as a plugin, after suite_loop. What users import from uvicorn becomes ringloop's. Tests of its
protocols give bytes to a connection of ringloop's, which writes to their mock of a transport. On asyncio nothing changes:
there uvicorn itself is the control.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import ringloop.http
from ringloop import EventLoop
from ringloop._core import HttpService
from ringloop.http import _command_line, _config, _importing, _lifespan, _proxies, _reload, _run, logging

Application = Callable[[Any, Any, Any], Awaitable[None]]

IS_CONTROL = os.environ["RINGLOOP_SUITES_LOOP"] == "asyncio"
# Of uvicorn's protocols, by the fixture that chooses one: ringloop has one.
PROTOCOLS = {"http_protocol_cls": "HttpToolsProtocol", "ws_protocol_cls": "WebSocketsSansIOProtocol"}
# The numbers of the deadlines that keep-alive has; see the native half's deadlines.rs.
KEEP_ALIVE = (0, 1)
# How long a second of the tests of keep-alive lasts.
SECOND = 0.2


class Config(ringloop.http.Config):
    """ringloop's, with what uvicorn's makes of its options."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.should_reload:
            options = self.reload_dirs, self.reload_includes, self.reload_excludes
            directories, includes, excludes = map(_reload.listed, options)
            watched = _reload.FileFilter(directories, includes, excludes, Path.cwd()).directories
            self.reload_dirs = watched  # type: ignore[assignment]

    def bind_socket(self) -> socket.socket:
        (bound,) = self.bind().sockets
        return bound


class Lifespan(_lifespan.Lifespan):
    """ringloop's, with what uvicorn's asks for."""

    def __init__(self, config: ringloop.http.Config) -> None:
        if not config.loaded:
            config.load()
        self.error_occurred = self.startup_failed = self.shutdown_failed = False

        async def noting(scope: Any, receive: Any, send: Any) -> None:
            try:
                await config.loaded_app(scope, receive, send)
            except BaseException:
                self.error_occurred = True
                raise

        super().__init__(noting, config.lifespan, config.asgi_version)

    @property
    def should_exit(self) -> bool:
        return self.failed

    async def startup(self) -> None:
        await super().startup()
        self.startup_failed = self.failed

    async def shutdown(self) -> None:
        await super().shutdown()
        self.shutdown_failed = self.failed and not self.startup_failed


class ProxyHeaders:
    """uvicorn's middleware, made of what ringloop does with the scope of a forwarded request."""

    def __init__(self, app: Application, trusted_hosts: list[str] | str = "127.0.0.1") -> None:
        self.app = app
        self.proxies = _proxies.TrustedProxies(trusted_hosts)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        names = (b"x-forwarded-for", b"x-forwarded-proto")
        if scope["type"] != "lifespan" and any(name in names for name, _ in scope["headers"]):
            self.proxies.apply(scope)
        await self.app(scope, receive, send)


class Loop:
    """uvicorn's mock of a loop, on the running one: requests begin by themselves."""

    def __init__(self, service: HttpService) -> None:
        self.service = service

    async def run_one(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    def run_later(self, with_delay: float) -> None:
        """Let this time pass, and end what has been idle for too long."""
        for _ in range(20):
            time.sleep(with_delay * SECOND / 20)
            for deadline in KEEP_ALIVE:
                self.service._on_timer(deadline)


class Connected:
    """A connection of ringloop's, and the transport that it writes to."""

    def __init__(self, transport: Any, app: Application, lifespan: Lifespan | None, options: dict[str, Any]) -> None:
        options["timeout_keep_alive"] = options.get("timeout_keep_alive", 5) * SECOND
        config = ringloop.http.Config(app, **options)
        if not config.loaded:
            config.load()
        application = config.loaded_app
        self.scope: dict[str, Any] | None = None

        async def noting(scope: Any, receive: Any, send: Any) -> Any:
            self.scope = scope
            return await application(scope, receive, send)

        config.loaded_app = noting
        server = ringloop.http.Server(config)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, EventLoop)
        server._loop = loop
        server._lifespan = lifespan or _lifespan.Lifespan(config.loaded_app, "off", config.asgi_version)
        self.transport = transport
        self.service = server._make_service()
        self.loop = Loop(self.service)
        self.shutdown = self.service.shut_down
        self.protocol = self.service.protocol()
        self.protocol.connection_made(transport)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.protocol, name)


def get_connected_protocol(
    app: Application, http_protocol_cls: object, lifespan: Lifespan | None = None, **options: Any
) -> Connected:
    """Stand for the function of this name in uvicorn's tests."""
    del http_protocol_cls
    mock: Any = importlib.import_module("tests.protocols.test_http").MockTransport

    class Transport(mock):  # type: ignore[misc]
        def get_extra_info(self, key: str, default: Any = None) -> Any:
            return super().get_extra_info(key) or default

        def get_write_buffer_size(self) -> int:
            return 0

        def abort(self) -> None:
            self.closed = True

    return Connected(Transport(), app, lifespan, options)


def run_as_uvicorn(*arguments: Any, **options: Any) -> None:
    """Call what uvicorn's tests may have put in the place of `run`."""
    sys.modules["uvicorn.main"].run(*arguments, **options)


def plug_in() -> None:
    """Replace what uvicorn's users import."""
    replaced: dict[str, dict[str, Any]] = {
        "uvicorn.main": {"run": _run.run, "main": _command_line.command("ringloop")},
        "uvicorn.config": {"LOGGING_CONFIG": logging.LOGGING_CONFIG, "STARTUP_FAILURE": _config.STARTUP_FAILURE},
        "uvicorn.importer": {
            "import_from_string": _importing.import_from_string,
            "ImportFromStringError": _importing.ImportFromStringError,
        },
        "uvicorn.lifespan.on": {"LifespanOn": Lifespan},
        "uvicorn.lifespan.off": {"LifespanOff": Lifespan},
        "uvicorn.middleware.proxy_headers": {"ProxyHeadersMiddleware": ProxyHeaders},
        "uvicorn": {"run": _run.run},
        "uvicorn.server": {},
    }
    for name in ("uvicorn", "uvicorn.config", "uvicorn.main", "uvicorn.server"):
        replaced[name] |= {"Config": Config, "Server": ringloop.http.Server}
    for name, objects in replaced.items():
        importlib.import_module(name)
        for attribute, replacement in objects.items():
            # uvicorn.main is a function, too.
            setattr(sys.modules[name], attribute, replacement)
    setattr(_command_line, "run", run_as_uvicorn)  # noqa: B010


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests once where uvicorn has several protocols, and give them ringloop's."""
    kept: list[pytest.Item] = []
    dropped: list[pytest.Item] = []
    for item in items:
        module = getattr(item, "module", None)
        if not IS_CONTROL and hasattr(module, "get_connected_protocol"):
            setattr(module, "get_connected_protocol", get_connected_protocol)  # noqa: B010
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        wanted = all(parameters.get(name, one).endswith(one) for name, one in PROTOCOLS.items())
        # Without a server, it is uvicorn's protocol that is tested.
        uses_uvicorns = "ws_protocol_cls" in parameters and "http_protocol_cls" not in parameters
        (kept if wanted and not uses_uvicorns else dropped).append(item)
    config.hook.pytest_deselected(items=dropped)
    items[:] = kept


if not IS_CONTROL:
    plug_in()
