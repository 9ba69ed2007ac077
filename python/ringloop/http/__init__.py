"""An HTTP server for ASGI and WSGI applications, on ringloop's event loop.

    ringloop serve app:app          # the command line; docs/serve.md explains its options
    ringloop.serve("app:app")       # the same from Python

`Config` and `Server` run a server inside of a program that has a loop already: `await Server(Config(app)).serve()`.
"""

from __future__ import annotations

from ._config import Config
from ._run import run
from ._server import Server

__all__ = ["Config", "Server", "run"]
