"""ringloop: an asyncio event loop on io_uring, with epoll where io_uring is refused.

Two ways to run a program on it:

    ringloop.run(main())                                            # any supported Python
    asyncio.run(main(), loop_factory=ringloop.new_event_loop)       # Python 3.12 and later

`ringloop.serve("module:app")` serves an ASGI or WSGI application; see `ringloop.http`. `ringloop.open(...)` opens files
that do not block the loop; see `ringloop.files`. `ringloop.watch(loop)` logs the stack of code that blocks it.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from . import _platform

_platform.require()
try:
    from ._core import __version__
except ImportError as _error:
    raise _platform.explain(_error) from None

try:
    from . import _guard
    from ._loop import EventLoop, new_event_loop, run
except AttributeError as _error:
    raise _platform.unknown_asyncio(_error) from _error
from ._metrics import Metrics  # noqa: E402

_guard.check()

Loop = EventLoop
"""uvloop's name for it."""

if TYPE_CHECKING:
    from ._policy import EventLoopPolicy as EventLoopPolicy
    from ._policy import install as install
    from ._watchdog import Watchdog as Watchdog
    from ._watchdog import watch as watch
    from .files import open as open
    from .http import run as serve  # noqa: F401

__all__ = ["EventLoop", "Loop", "Metrics", "__version__", "new_event_loop", "run"]
if sys.version_info < (3, 14):
    # Later, asking for it warns.
    __all__ += ["EventLoopPolicy", "install"]


def __getattr__(name: str) -> Any:
    # What few programs need is imported when they ask for it.
    if name in ("http", "serve"):
        http = importlib.import_module(f"{__name__}.http")
        return http if name == "http" else http.run
    if name in ("files", "open"):
        files = importlib.import_module(f"{__name__}.files")
        return files if name == "files" else files.open
    if name in ("watch", "Watchdog"):
        return getattr(importlib.import_module(f"{__name__}._watchdog"), name)
    # Not `from . import`, which would ask here for the module.
    from ._policy import find

    return find(name)
