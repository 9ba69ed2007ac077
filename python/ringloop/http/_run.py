"""Serving an application from a program's main thread, in this process or in several."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
from typing import Any

from ._config import STARTUP_FAILURE, Config, startup_failures_logged
from ._errors import StartupError
from ._reload import Reloader
from ._server import Server
from ._supervisor import Supervisor


def run(app: Any, *, app_dir: str | os.PathLike[str] | None = None, **options: Any) -> None:
    """Serve an application until a signal ends it; `options` are those of `Config`.

    `app_dir` is put in front of `sys.path`. Raise ValueError for a value that an option can't have, and SystemExit(3) if
    the server can't start.
    """
    if app_dir is not None:
        sys.path.insert(0, os.fspath(app_dir))
    with startup_failures_logged():
        config = Config(app, **options)
        # Set while a child process imports the main program; multiprocessing looks at it before it starts a process.
        if getattr(multiprocessing.current_process(), "_inheriting", False):
            raise StartupError(
                "A worker process imports your program, which serves again: call `ringloop.serve` "
                'under `if __name__ == "__main__":` only.'
            )
        if config.use_subprocess and not isinstance(app, str):
            raise StartupError("You must pass the application as an import string to enable 'reload' or 'workers'.")
        if config.use_subprocess:
            (Reloader(config) if config.should_reload else Supervisor(config)).run()
            return
        # Outside of the loop, so that the application may run one while it is imported.
        config.load_app()
        server = Server(config)
    with contextlib.suppress(KeyboardInterrupt):
        server.run()
    if not server.started:
        sys.exit(STARTUP_FAILURE)
