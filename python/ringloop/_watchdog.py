"""`ringloop.watch`: reports who holds the loop, and where, while it is still held."""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import sys
import threading
import traceback
import urllib.parse
from asyncio.log import logger as asyncio_logger
from typing import TYPE_CHECKING, Self

from . import _core
from ._loop import EventLoop

if TYPE_CHECKING:
    from types import FrameType, TracebackType

# The innermost frames of a stack; a longer one is cut.
_FRAMES_MAX = 100

# Longer than anybody waits.
_THRESHOLD_S_MAX = 1_000_000_000

# The frames of a callback are those above the one of this function.
_RUN = EventLoop.run_forever.__code__


class Watchdog:
    """Logs the stacks of callbacks that hold a loop too long; `ringloop.watch` makes one.

    It ends with `close`, at the end of a `with` block, and when the loop is closed.
    """

    def __init__(self, loop: EventLoop, threshold: float, logger: logging.Logger) -> None:
        self._native = _core.LoopWatchdog(loop, threshold)
        self._loop = loop
        self._logger = logger
        self._process = os.getpid()
        # A daemon, so that it does not keep the program from ending.
        self._thread = threading.Thread(target=self._run, name="ringloop watchdog", daemon=True)
        try:
            self._thread.start()
        except BaseException:
            self._native._stop()
            raise
        # Before daemon threads are cut off.
        atexit.register(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop watching, and wait for a report that is being logged. May be called from any thread, and again."""
        if os.getpid() != self._process:
            # A fork has left the thread behind, perhaps with the lock that it shares with `_stop`.
            return
        atexit.unregister(self.close)
        self._native._stop()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        try:
            while (found := self._native._wait()) is not None:
                self._report(*found)
        finally:
            # The loop may have been closed.
            self._native._stop()
            atexit.unregister(self.close)

    def _report(self, held_s: float, others: int) -> None:
        """Log who holds the loop. An error here does not end the watchdog."""
        try:
            name, rest = self._describe(held_s)
            more = f" ({others} more since the last report)" if others else ""
            self._logger.warning("%s has held the event loop for %.3f s%s%s", name, held_s, more, rest)
        except Exception:
            asyncio_logger.exception("The watchdog could not report who holds %r", self._loop)

    def _describe(self, held_s: float) -> tuple[str, str]:
        """Return the name of what runs, and where it is."""
        thread = self._loop._thread_id
        frame = None if thread is None else sys._current_frames().get(thread)
        # Other threads run between two lines of this one, so what can change is noted first.
        places = []
        while frame is not None and frame.f_code is not _RUN:
            places.append((frame, frame.f_lineno))
            frame = frame.f_back
        task = asyncio.current_task(self._loop)
        if not self._native._is_held():
            slowest = self._loop.metrics()
            known = slowest.slowest_seconds >= held_s
            hint = f". The slowest callback so far is {slowest.slowest_callback}" if known else ""
            return "A callback", f", and ended before its stack could be taken, perhaps because it kept the GIL{hint}"
        name = "A callback" if task is None else f"The task {task.get_name()!r}"
        if (request := _find_request(places)) is not None:
            name = f"{name}, in the request {request},"
        if not places:
            return name, ", in code that is not Python's"
        stack = traceback.StackSummary.extract(reversed(places[:_FRAMES_MAX]))
        lines = "".join(stack.format()).rstrip()
        return name, f". Its stack, with the most recent call last:\n{lines}"


def _find_request(places: list[tuple[FrameType, int]]) -> str | None:
    """Return method and path of the request that an ASGI application answers in one of these frames."""
    for frame, _ in places:
        code = frame.f_code
        if "scope" not in code.co_varnames and "scope" not in code.co_freevars:
            continue
        scope = frame.f_locals.get("scope")
        if type(scope) is dict and scope.get("type") in ("http", "websocket"):
            method, path = scope.get("method", "WebSocket"), scope.get("path")
            if isinstance(method, str) and isinstance(path, str):
                return f"{urllib.parse.quote(method)} {urllib.parse.quote(path)}"
    return None


def watch(loop: EventLoop, *, threshold: float = 0.1, logger: logging.Logger | None = None) -> Watchdog:
    """Watch a loop: log the stack of a callback, or of a step of a task, that holds it longer than `threshold` seconds.

    Another thread logs it while the callback still runs, as a warning of `logger` (asyncio's own by default), with the
    name of the task, and with the path of the request if an ASGI application answers one. There is at most one report
    per second, and one per callback; `loop.metrics().stalls` counts all such callbacks. A loop that waits for I/O is not
    held.

    Close the result, or use it in a `with` block. Raise TypeError for a loop that is not ringloop's, ValueError for an
    invalid threshold, and RuntimeError for a loop that is closed or watched already.
    """
    kind: type = type(loop)
    if not issubclass(kind, EventLoop):
        raise TypeError(
            f"watch() needs a ringloop.EventLoop, not {kind.__module__}.{kind.__qualname__}; "
            "asyncio's debug mode logs slow callbacks of other loops"
        )
    if not 0 < threshold <= _THRESHOLD_S_MAX:
        raise ValueError(f"threshold must be a number of seconds above 0, up to {_THRESHOLD_S_MAX}, not {threshold!r}")
    return Watchdog(loop, threshold, asyncio_logger if logger is None else logger)
