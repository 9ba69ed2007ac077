"""Have the tests of Werkzeug, Flask and Bottle test `ringloop serve`: a plugin of pytest for suites of tools/suites.py.

What their test clients send to an application goes through a server: see wsgi_bridge.py. Werkzeug's tests of its development server
start a program; run with the name of that program and its arguments, this module makes it start `ringloop serve` instead. On
asyncio nothing changes: there the control is the test client, or the development server.
"""

from __future__ import annotations

import importlib
import os
import runpy
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

import ringloop.http
from wsgi_bridge import IS_CONTROL, Bridged, report

SENT_MIN = 100
"""The requests that a whole suite must send: with fewer, it hasn't tested the server."""
ALL_MIN = 200
"""More tests than this are a whole suite."""


def bridge_werkzeug() -> None:
    """Let `werkzeug.test.Client`, which Flask's is made of, send its requests."""
    module: Any = importlib.import_module("werkzeug.test")
    run_wsgi_app = module.run_wsgi_app

    def run_bridged(application: Any, environ: Any, buffered: bool = False) -> Any:
        # Applications call others in the same way, with what the server gave them.
        is_inner = isinstance(environ, dict) and type(environ.get("wsgi.input")).__module__.startswith("ringloop.")
        return run_wsgi_app(application if is_inner else Bridged(application), environ, buffered)

    module.run_wsgi_app = run_bridged


def bridge_bottle() -> None:
    """Let the base class of Bottle's tests send its requests."""
    base: Any = importlib.import_module("test.tools").ServerTestBase
    set_up = base.setUp

    def bridged(self: Any) -> None:
        set_up(self)
        self.wsgiapp = Bridged(self.wsgiapp)

    base.setUp = bridged


def run_simple(hostname: str, port: int, application: Any, **options: Any) -> None:
    """Stand for Werkzeug's function of this name, with the options that its tests use."""
    given: dict[str, Any] = {"host": hostname, "port": port}
    if hostname.startswith("unix://"):
        given = {"uds": hostname.removeprefix("unix://")}
    context = options.get("ssl_context")
    if isinstance(context, tuple):
        given["ssl_certfile"], given["ssl_keyfile"] = context
    elif context is not None:
        made = (
            importlib.import_module("werkzeug.serving").generate_adhoc_ssl_context() if context == "adhoc" else context
        )
        given["ssl_context_factory"] = lambda config, default: made
    ringloop.http.run(application, interface="wsgi", **given)


def start(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start the program of a development server with ringloop in the server's place."""
    return subprocess.Popen([command[0], "-m", "wsgi_suite", *command[1:]], **options)


@pytest.hookimpl(tryfirst=True)
def pytest_plugin_registered(plugin: object) -> None:
    """Let Werkzeug's tests start servers in another way."""
    if not IS_CONTROL and hasattr(plugin, "DevServerClient"):
        replacement = types.SimpleNamespace(Popen=start, STDOUT=subprocess.STDOUT)
        setattr(plugin, "subprocess", replacement)  # noqa: B010


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if not IS_CONTROL:
        terminalreporter.write_line(report())


def pytest_configure(config: pytest.Config) -> None:
    del config
    if IS_CONTROL:
        return
    {"werkzeug": bridge_werkzeug, "bottle": bridge_bottle}[os.environ["RINGLOOP_SUITES_BRIDGE"]]()


def pytest_sessionfinish(session: pytest.Session) -> None:
    # Single tests, which are repeated, may send nothing.
    if not IS_CONTROL and session.testscollected > ALL_MIN and Bridged.counts["sent"] < SENT_MIN:
        session.exitstatus = pytest.ExitCode.INTERNAL_ERROR


if __name__ == "__main__":
    del sys.argv[0]
    sys.path.insert(0, str(Path(sys.argv[0]).parent))
    serving: Any = importlib.import_module("werkzeug.serving")
    serving.run_simple = run_simple
    runpy.run_path(sys.argv[0], run_name="__main__")
