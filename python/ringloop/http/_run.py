"""Serving an application from a program's main thread, in this process or in several."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from typing import TYPE_CHECKING, Any

from ._config import STARTUP_FAILURE, Config, startup_failures_logged
from ._errors import StartupError
from ._server import Server

if TYPE_CHECKING:
    from ._listening import Listeners
    from ._supervisor import Parent


def run(app: Any, *, app_dir: str | os.PathLike[str] | None = None, **options: Any) -> None:
    """Serve an application until a signal ends it; `options` are those of `Config`.

    `app_dir` is put in front of `sys.path`. Raise ValueError for a value that an option can't have, and SystemExit(3) if
    the server can't start.
    """
    _enter(app_dir)
    with contextlib.ExitStack() as stack:
        with startup_failures_logged():
            config = Config(app, **options)
            if _is_imported_by_worker():
                raise StartupError(
                    "A worker process imports your program, which serves again: call `ringloop.serve` "
                    'under `if __name__ == "__main__":` only.'
                )
            _require_name(config)
            if config.use_subprocess:
                _parent_of_workers(config).run()
                return
            # An application may take a long time to start, so notice first if the port is already in use.
            # Not with a Unix socket: binding would take the path from a server that listens there.
            listeners = None if config.uds is not None else stack.enter_context(contextlib.closing(config.bind()))
            # Outside of the loop, so that the application may run one while it is imported.
            config.load_app()
            server = _make_server(config, listeners)
        with contextlib.suppress(KeyboardInterrupt):
            server.run()
    if not server.started:
        sys.exit(STARTUP_FAILURE)
    if getattr(server, "failed", False):
        sys.exit(1)


def _make_server(config: Config, listeners: Listeners | None) -> Server:
    if config.threads == 1:
        return Server(config, listeners)
    from ._threads import ThreadsServer  # Most servers have one thread.

    return ThreadsServer(config, listeners)


def _is_imported_by_worker() -> bool:
    """Return whether this is a child process that imports the main program."""
    # A child process has imported multiprocessing; a server without workers doesn't need it.
    multiprocessing: Any = sys.modules.get("multiprocessing")
    # multiprocessing looks at this mark before it starts a process.
    return multiprocessing is not None and getattr(multiprocessing.current_process(), "_inheriting", False)


def _parent_of_workers(config: Config) -> Parent:
    # Most servers have no workers, and most with workers don't reload.
    if config.should_reload:
        from ._reload import Reloader

        return Reloader(config)
    from ._supervisor import Supervisor

    return Supervisor(config)


def check_application(app: Any, *, app_dir: str | os.PathLike[str] | None = None, **options: Any) -> None:
    """Load all that `run` loads, with the same errors, and serve nothing."""
    _enter(app_dir)
    with startup_failures_logged():
        config = Config(app, **options)
        _require_name(config)
        if not config.use_subprocess:
            config.load_app()
        with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
            runner.run(_load(config))


async def _load(config: Config) -> None:
    config.load()


def _enter(app_dir: str | os.PathLike[str] | None) -> None:
    if app_dir is None:
        return
    path = os.fspath(app_dir)
    if path and not os.path.isdir(path):
        raise ValueError(f"app_dir: there is no directory {path!r}")
    sys.path.insert(0, path)


def _require_name(config: Config) -> None:
    if config.use_subprocess and not isinstance(config.app, str):
        raise StartupError("You must pass the application as an import string to enable 'reload' or 'workers'.")
