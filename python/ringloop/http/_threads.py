"""`--threads`: one process that serves in several threads, each with a loop and a listener of its own.

There is one application object, imported once. The first loop runs in the main thread. It starts the application and the other
threads, hears of signals, and ends all of them: they drain at the same time, up to the same deadline, and the application ends last.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

from . import _listening, _metrics
from ._errors import StartupError, summarize
from ._lifespan import Lifespan
from ._server import Server
from .logging import logger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .._core import HttpMetrics
    from ._config import Config

# How long after the deadline for its requests a thread has until it is left behind.
_END_MARGIN_S = 5.0


class ThreadsServer(Server):
    """Serves in the thread that runs it and in further ones. `failed` is whether one of these has ended by itself."""

    _takes_threads = True

    def __init__(self, config: Config, listeners: _listening.Listeners | None = None) -> None:
        super().__init__(config, listeners)
        self.failed = False
        # Those that run or have ended.
        self._others: list[_Thread] = []
        # All others serve, or one has ended.
        self._settled = asyncio.Event()
        self._announced: Sequence[socket.socket] | None = None

    @property
    def force_exit(self) -> bool:
        """Whether the server ends without waiting for anything."""
        return self._force_exit

    @force_exit.setter
    def force_exit(self, value: bool) -> None:
        self._force_exit = value
        if value:
            self._tell(self._force_asked)
        for other in self._others:
            other.server.force_exit = value

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve as `Server.run` does. If this thread's loop fails, the others end before its error is raised."""
        try:
            super().run(sockets)
        except (Exception, SystemExit):
            # Nothing can be awaited any more, and signals do again what they did before: one ends the process at once.
            self._join_others()
            raise

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if not self.started:
            return
        try:
            have_started = await self._start_others(sockets)
        except BaseException:
            for other in self._others:
                if not other.server.started:
                    # It doesn't wait for its application to start, either.
                    other.server.force_exit = True
            await self.shutdown(sockets)
            self.started = False
            raise
        if have_started and self._announced is not None:
            super()._announce(self._announced)
            logger.info("Serving in %d threads", self.config.threads)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for other in self._others:
            other.server.should_exit = True
        await super().shutdown(sockets)

    async def collect_metrics(self) -> tuple[HttpMetrics | None, list[_metrics.Snapshot]]:
        """Return what each thread has counted. May be called in each of them."""
        found = [_take(self, 0), *(other.last or _take(other.server, other.number) for other in self._others)]
        return None, [snapshot for snapshot in found if snapshot is not None]

    def note_full(self, limit: int) -> None:
        """Note that a thread has served as many requests as it may. May be called from any thread."""
        # The limits of the threads may differ; this is the one to log.
        self._max_requests = limit
        self._tell(self._max_requests_served)

    def make_lifespan(self) -> Lifespan:
        """Return the lifespan of a further thread: one of its own, or none but a copy of the first one's state."""
        assert self._lifespan is not None
        if self.config.lifespan_per_thread:
            return super()._make_lifespan()
        lifespan = Lifespan(self.config.loaded_app, "off", self.config.asgi_version)
        lifespan.state = dict(self._lifespan.state)
        return lifespan

    def _announce(self, sockets: Sequence[socket.socket]) -> None:
        # Once all threads listen.
        self._announced = sockets

    async def _start_others(self, sockets: list[socket.socket] | None) -> bool:
        """Return whether all serve, and no signal has forced them to end before. Raise StartupError if one can't start."""
        if sockets is None:
            assert self._listeners is not None
            sockets = self._listeners.sockets
            # Not before it listens: if two servers start at the same time, one of them must find the port in use.
            self._listeners.allow_more()
        for number in range(1, self.config.threads):
            try:
                other = _Thread(self, number, self._listeners_of_another(sockets))
                other.start()
            except (OSError, RuntimeError, StartupError) as error:
                raise StartupError(f"Thread {number} can't start: {_reason(error)}") from error
            self._others.append(other)
            if self._force_exit:
                other.server.force_exit = True
        if not await self._unless(self._force_asked, self._settled.wait()):
            return False
        for other in self._others:
            if other.ended.is_set() and not other.server.started:
                reason = "it was told to end" if other.error is None else _reason(other.error)
                raise StartupError(f"Thread {other.number} can't start: {reason}")
        return True

    def _listeners_of_another(self, sockets: list[socket.socket]) -> _listening.Listeners:
        """Return sockets of a thread's own at the same addresses; where there can't be more, those that the first one has."""
        if self._listeners is not None and self._listeners.can_be_repeated:
            return _listening.bind(self.config.host, sockets[0].getsockname()[1], reuse_port=True)
        return _listening.duplicate(sockets)

    def note_start(self) -> None:
        """Note that a thread serves."""
        started = sum(other.server.started for other in self._others)
        if started == self.config.threads - 1:
            self._settled.set()

    def note_end(self, other: _Thread) -> None:
        """Note that a thread has ended. Unless it was told to, and has no error, so does the server."""
        other.ended.set()
        self._settled.set()
        if not other.server.started or (other.server.should_exit and other.error is None):
            return
        reason = "" if other.error is None else f": {summarize(other.error)}"
        logger.error("Thread %d has ended%s", other.number, reason, exc_info=other.error)
        self.failed = True
        self.should_exit = True

    def _has_requests(self) -> bool:
        others = (other.server.service for other in self._others)
        return super()._has_requests() or any(service is not None and service.active for service in others)

    async def _end_application(self, lifespan: Lifespan, elapsed: float = 0.0) -> None:
        since = asyncio.get_running_loop().time()
        await self._end_others(elapsed)
        await super()._end_application(lifespan, elapsed + asyncio.get_running_loop().time() - since)

    async def _end_others(self, elapsed: float) -> None:
        limit = self.config.timeout_graceful_shutdown
        try:
            async with asyncio.timeout(None if limit is None else max(limit - elapsed, 0) + _END_MARGIN_S):
                for other in self._others:
                    await self._unless(self._force_asked, other.ended.wait())
        except TimeoutError:
            pass
        for other in self._others:
            if not other.ended.is_set() and not self._force_exit:
                logger.error("Thread %d did not end in time; it is left behind", other.number)

    def _join_others(self) -> None:
        limit = self.config.timeout_graceful_shutdown
        deadline = None if limit is None else time.monotonic() + limit + _END_MARGIN_S
        for other in self._others:
            other.server.should_exit = True
        for other in self._others:
            other.join(None if deadline is None else max(deadline - time.monotonic(), 0))


def _take(server: Server, number: int) -> _metrics.Snapshot | None:
    service, loop = server.service, server._loop
    return None if service is None or loop is None else _metrics.take(service, loop, thread=number)


def _reason(error: BaseException) -> str:
    return str(error.strerror or error) if isinstance(error, OSError) else summarize(error)


class _Thread:
    """A further thread that serves. `ended` belongs to the first thread's loop."""

    def __init__(self, first: ThreadsServer, number: int, listeners: _listening.Listeners) -> None:
        self.number = number
        self.server = _ThreadServer(first, self, listeners)
        self.error: BaseException | None = None
        self.ended = asyncio.Event()
        # What it has counted, once it serves no more.
        self.last: _metrics.Snapshot | None = None
        self._first = first
        self._loop = asyncio.get_running_loop()
        self._listeners = listeners
        # The process needn't wait for one that doesn't end.
        self._thread = threading.Thread(target=self._run, name=f"ringloop serve, thread {number}", daemon=True)

    def start(self) -> None:
        try:
            self._thread.start()
        except BaseException:
            self._listeners.close()
            raise

    def join(self, timeout: float | None) -> None:
        self._thread.join(timeout)

    def tell_started(self) -> None:
        self._tell(self._first.note_start)

    def _run(self) -> None:
        try:
            self.server.run()
        except BaseException as error:
            self.error = error
        finally:
            self._listeners.close()
            self._tell(self._first.note_end, self)

    def _tell(self, callback: Any, *arguments: Any) -> None:
        # The first loop may be closed by now, if it did not wait.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *arguments)


class _ThreadServer(Server):
    """The server of a further thread. What concerns the process is the first one's to do and to log."""

    _takes_threads = True

    def __init__(self, first: ThreadsServer, thread: _Thread, listeners: _listening.Listeners) -> None:
        super().__init__(first.config, listeners)
        self._first = first
        self._thread = thread

    async def main_loop(self) -> None:
        self._thread.tell_started()
        if self._max_requests is not None and await self._unless(self._exit_asked, self._max_requests_served.wait()):
            self._first.note_full(self._max_requests)
        await self.wait_for_exit()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().shutdown(sockets)
        finally:
            self._thread.last = _take(self, self._thread.number)

    async def collect_metrics(self) -> tuple[HttpMetrics | None, list[_metrics.Snapshot]]:
        return await self._first.collect_metrics()

    def _make_lifespan(self) -> Lifespan:
        return self._first.make_lifespan()

    def _inform(self, text: str) -> None:
        pass

    def _announce(self, sockets: Sequence[socket.socket]) -> None:
        pass

    def _watch_tls(self) -> None:
        pass

    def _report(self, text: str) -> None:
        pass

    def _failures_logged(self) -> contextlib.AbstractContextManager[None]:
        # The first one logs what its thread ends with.
        return contextlib.nullcontext()
