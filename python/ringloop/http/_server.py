"""One process that serves: its start, its signals, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import threading
import time
from typing import TYPE_CHECKING, Any, ClassVar

from .. import EventLoop, _core
from . import _applications, _listening, _metrics, _pages
from ._config import Config, startup_failures_logged
from ._errors import StartupError
from ._lifespan import Lifespan
from .logging import access_log, flush_access_logs, logger, style

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable, Iterator, Sequence
    from types import FrameType

    from .. import Watchdog

_EXIT_SIGNALS = (signal.SIGINT, signal.SIGTERM)

# How often to check whether the TLS files have changed.
_FILES_INTERVAL_S = 1.0

# How long cancelled tasks have to end.
_CANCELLED_S = 1.0

# How long connections that were accepted before the end may take for their TLS handshakes, and how often to look.
_HANDSHAKE_S = 1.0
_HANDSHAKE_INTERVAL_S = 0.01

# From a connection in the kernel's queue to its protocol: it is found and accepted in one turn, and set up in the next.
_TURNS_TO_ACCEPT = 2

# How long the application may take to end if the requests have taken all the time.
_LIFESPAN_S = 1.0

# How long until streams get `http.disconnect` if shutdown has no deadline; otherwise it is half of the deadline.
_DISCONNECT_S = 5.0


class Server:
    """Serves an application, in this process.

    `listeners` are the sockets that it listens on if `serve` is given none; without them it opens those that the configuration
    names. `started` is true from when it listens. Setting `should_exit`, from any thread, ends it as a signal does; setting
    `force_exit` as well ends it without waiting for requests. `servers` are the loop's, one for each socket.
    """

    _takes_threads: ClassVar[bool] = False

    def __init__(self, config: Config, listeners: _listening.Listeners | None = None) -> None:
        if config.threads > 1 and not self._takes_threads:
            raise ValueError(
                "a Server serves in one thread; ringloop.serve() and `ringloop serve` take the option threads"
            )
        self.config = config
        self.started = False
        self.servers: list[asyncio.Server] = []
        self.service: _core.HttpService | None = None
        self._should_exit = False
        self._force_exit = False
        self._is_draining = False
        self._ending = asyncio.Lock()
        self._has_ended = False
        self._loop: EventLoop | None = None
        self._exit_asked = asyncio.Event()
        self._force_asked = asyncio.Event()
        self._max_requests: int | None = None
        self._max_requests_served = asyncio.Event()
        self._captured_signals: list[int] = []
        # Cancelled tasks that have not ended.
        self._stubborn: set[asyncio.Task[Any]] = set()
        self._lifespan: Lifespan | None = None
        self._tls_watch: asyncio.Task[None] | None = None
        self._listeners = listeners
        self._watchdog: Watchdog | None = None

    @property
    def should_exit(self) -> bool:
        """Whether the server ends, or has ended."""
        return self._should_exit

    @should_exit.setter
    def should_exit(self, value: bool) -> None:
        self._should_exit = value
        if value:
            self._tell(self._exit_asked)

    @property
    def force_exit(self) -> bool:
        """Whether the server ends without waiting for anything."""
        return self._force_exit

    @force_exit.setter
    def force_exit(self, value: bool) -> None:
        self._force_exit = value
        if value:
            self._tell(self._force_asked)

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve on a new event loop until told to end; see `serve`. Raise SystemExit(3) also if the loop can't be made."""
        with self._failures_logged(), asyncio.Runner(loop_factory=self.config.get_loop_factory()) as runner:
            try:
                runner.run(self.serve(sockets))
            finally:
                runner.run(self._end_tasks())

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve on the running loop until told to end, on these sockets or those that the configuration names.

        In the main thread SIGINT and SIGTERM end it, unless `install_signal_handlers` is false; they are raised again
        afterwards. Raise SystemExit(3) if it can't start.
        """
        with self.capture_signals(), self._failures_logged():
            await self._serve(sockets)

    async def _serve(self, sockets: list[socket.socket] | None) -> None:
        loop = asyncio.get_running_loop()
        if not isinstance(loop, EventLoop):
            raise RuntimeError(
                "the server needs ringloop's event loop: use Server.run(), ringloop.run() "
                "or loop_factory=ringloop.new_event_loop"
            )
        self._loop = loop
        self._has_ended = False
        if self._should_exit:
            self._exit_asked.set()
        if self._force_exit:
            self._force_asked.set()
        self._report("Started server process [%d]")
        try:
            await self.startup(sockets)
            if self.started:
                try:
                    await self.main_loop()
                finally:
                    await self.shutdown(sockets)
                self._report("Finished server process [%d]")
        finally:
            if self._watchdog is not None:
                self._watchdog.close()
            self._loop = None
            flush_access_logs()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Open the sockets, load and start the application, then listen. Raise StartupError if one of these fails."""
        config = self.config
        if sockets is None and self._listeners is None and config.uds is None:
            self._listeners = config.bind()
        try:
            await self._start(sockets)
        finally:
            if not self.started and self._listeners is not None:
                self._listeners.close()

    async def _start(self, sockets: list[socket.socket] | None) -> None:
        config = self.config
        if not config.loaded:
            config.load()
        self._lifespan = lifespan = self._make_lifespan()
        if not await self._unless(self._force_asked, lifespan.startup()):
            lifespan.abandon()
            return
        if lifespan.failed:
            raise StartupError("Application startup failed. Exiting.")
        try:
            self._watch()
            await self._listen(sockets)
        except BaseException:
            await self._end_application(lifespan)
            raise
        self.started = True

    async def main_loop(self) -> None:
        """Wait until the server is told to end, or has served as many requests as it may."""
        if self._max_requests is None:
            await self.wait_for_exit()
        elif await self._unless(self._exit_asked, self._max_requests_served.wait()):
            logger.info("Maximum request limit of %d exceeded. Terminating process.", self._max_requests)

    async def wait_for_exit(self) -> None:
        """Wait until `should_exit` is set."""
        await self._exit_asked.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End connections, requests and the application, in this order. Do nothing if the server hasn't started.

        `serve` does so itself when it is told to end: then this only waits until it has.
        """
        async with self._ending:
            if self._loop is None or not self.started or self._has_ended:
                return
            self._is_draining = True
            await self._shut_down(sockets or [])
            self._has_ended = True

    async def _shut_down(self, sockets: list[socket.socket]) -> None:
        self._inform("Shutting down")
        if self._tls_watch is not None:
            self._tls_watch.cancel()
            # The task keeps the traceback of its cancellation, which refers to this object.
            self._tls_watch = None
        assert self._lifespan is not None
        since = time.monotonic()
        try:
            try:
                # The kernel resets connections that wait at a socket when it is closed.
                if self._listeners is not None:
                    self._listeners.refuse_more()
                for _ in range(_TURNS_TO_ACCEPT):
                    await asyncio.sleep(0)
                self._stop_accepting()
                # asyncio's servers drop connections that are set up when they are closed.
                await asyncio.sleep(0)
            finally:
                self._stop_listening(sockets)
            await self._finish_requests()
        finally:
            await self._end_application(self._lifespan, time.monotonic() - since)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Let signals end the server while this context lasts, and raise them again afterwards."""
        if threading.current_thread() is not threading.main_thread() or not self.config.install_signal_handlers:
            yield
            return
        handlers: dict[int, Any] = {number: signal.signal(number, self.handle_exit) for number in _EXIT_SIGNALS}
        if self.config.is_ssl:
            handlers[signal.SIGHUP] = signal.signal(signal.SIGHUP, self._handle_hangup)
        try:
            yield
        finally:
            for number, handler in handlers.items():
                # None is a handler that Python did not install, and cannot restore.
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
        # The exit status then shows the parent process which signal ended this one.
        for number in reversed(self._captured_signals):
            signal.raise_signal(number)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End the server; a second SIGINT ends it at once."""
        self._captured_signals.append(sig)
        if self._should_exit and sig == signal.SIGINT:
            self.force_exit = True
        else:
            self.should_exit = True

    def _handle_hangup(self, number: int, frame: FrameType | None) -> None:
        loop, reloadable = self._loop, self.config.reloadable_ssl
        if loop is not None and reloadable is not None:
            loop.call_soon_threadsafe(reloadable.reload)

    def _tell(self, event: asyncio.Event) -> None:
        loop = self._loop
        if loop is not None:
            # The loop may be closed by now, if another thread asks.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(event.set)

    def _watch(self) -> None:
        """Begin to log what holds the loop. Before this, the application may take its time to start."""
        threshold_ms = self.config.watchdog
        if threshold_ms is None:
            return
        assert self._loop is not None
        from .. import watch  # Most servers have no watchdog.

        try:
            self._watchdog = watch(self._loop, threshold=threshold_ms / 1000, logger=logger)
        except (RuntimeError, ValueError) as error:
            raise StartupError(f"The option watchdog can't be used: {error}") from error

    async def _listen(self, sockets: list[socket.socket] | None) -> None:
        config, loop = self.config, asyncio.get_running_loop()
        self.service = service = self._make_service()
        if sockets is None:
            if self._listeners is None:
                self._listeners = config.bind()
            sockets = self._listeners.sockets
        try:
            for sock in sockets:
                server = await loop.create_server(service.protocol, sock=sock, **listening_options(config))
                self.servers.append(server)
        except BaseException as error:
            self._stop_listening(sockets)
            if isinstance(error, OSError):
                # Another server may have begun to listen since the sockets were opened.
                raise StartupError(_listening.explain(error)) from error
            raise
        if self._listeners is not None:
            self._announce(sockets)
        self._watch_tls()

    def _make_service(self) -> _core.HttpService:
        config = self.config
        assert self._lifespan is not None and self._loop is not None
        self._max_requests = config.draw_max_requests()
        proxies = config.trusted_proxies()
        log = access_log(config.access_log_format) if config.access_log else None
        return _core.HttpService(
            self._loop,
            config.loaded_app,
            config,
            headers=config.encoded_headers,
            # As in uvicorn: WSGI has no WebSockets, so that they are served as plain requests.
            ws=config.ws != "none" and config.interface != "wsgi",
            state=None if config.lifespan == "off" else self._lifespan.state,
            limit_max_requests=self._max_requests,
            on_max_requests=self._max_requests_served.set,
            access_log=log,
            pages=self._make_pages(),
            forwarded=None if proxies is None else proxies.apply,
            logger=logger,
            wsgi=self._wsgi_environ(),
        )

    def _make_pages(self) -> _pages.Pages | None:
        """Return what this server answers itself, if anything."""
        config = self.config
        pages = _pages.Pages(config.root_path)
        if config.metrics is not None:
            pages.add_page(config.metrics, _metrics.Page(self.collect_metrics), is_logged=False)
        if config.health is not None:
            health = _pages.health(lambda: self._should_exit or self._is_draining)
            pages.add_page(config.health, health, is_logged=config.log_health)
        for prefix, folder in config.static_folders().items():
            pages.add_folder(prefix, folder)
        return pages if pages.paths or pages.prefixes else None

    def _wsgi_environ(self) -> dict[str, Any] | None:
        config = self.config
        if config.interface != "wsgi":
            return None
        has_threads = config.wsgi_threads != 1 or config.threads != 1
        has_workers = (config.workers or 1) > 1
        return _applications.wsgi_environ(config.root_path, has_threads=has_threads, has_workers=has_workers)

    async def collect_metrics(self) -> tuple[_core.HttpMetrics | None, list[_metrics.Snapshot]]:
        """Return what all processes have counted: the sum of those that are gone, and each that runs."""
        assert self.service is not None and self._loop is not None
        return None, [_metrics.take(self.service, self._loop)]

    # What a process does once, whatever the number of its threads.

    def _make_lifespan(self) -> Lifespan:
        config = self.config
        return Lifespan(config.loaded_app, config.lifespan, config.asgi_version)

    def _inform(self, text: str) -> None:
        logger.info(text)

    def _report(self, text: str) -> None:
        logger.info(text, os.getpid(), extra={"color_message": text.replace("%d", style("%d", color="cyan"))})

    def _failures_logged(self) -> contextlib.AbstractContextManager[None]:
        return startup_failures_logged()

    def _announce(self, sockets: Sequence[socket.socket]) -> None:
        announce(self.config, sockets)

    def _has_requests(self) -> bool:
        assert self.service is not None
        return bool(self.service.connections or self.service.active)

    def _watch_tls(self) -> None:
        if self.config.reloadable_ssl is not None:
            assert self._loop is not None
            self._tls_watch = self._loop.create_task(self._watch_tls_files(), name="TLS certificate")

    async def _watch_tls_files(self) -> None:
        """Reload the certificate when its files have changed."""
        reloadable = self.config.reloadable_ssl
        assert reloadable is not None
        while True:
            await asyncio.sleep(_FILES_INTERVAL_S)
            reloadable.reload_if_changed()

    async def _finish_requests(self) -> None:
        """Let requests end, up to the deadline; then cancel them."""
        service, timeout = self.service, self.config.timeout_graceful_shutdown
        assert service is not None
        service.shut_down()
        if not self._force_exit and self._has_requests():
            self._inform("Waiting for connections to close. (CTRL+C to force quit)")
        grace = _DISCONNECT_S if timeout is None else timeout / 2
        since = time.monotonic()
        await self._connected_within(min(grace, _HANDSHAKE_S))
        if await self._closed_within(max(grace - (time.monotonic() - since), 0)):
            return
        service.disconnect()
        if await self._closed_within(None if timeout is None else timeout - grace):
            return
        if service.active and not self._force_exit:
            what = "Disconnect %s view(s)" if self.config.interface == "wsgi" else "Cancel %s running task(s)"
            logger.error(f"{what}, timeout graceful shutdown exceeded", service.active)
        service.abort()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(service.wait_closed(), _CANCELLED_S)
        self._report_stubborn(service.tasks())
        if service.active and self.config.interface == "wsgi":
            logger.error("%d view(s) did not end in time; their threads are left behind", service.active)

    async def _end_application(self, lifespan: Lifespan, elapsed: float = 0.0) -> None:
        """Let the application end, up to the deadline, but for a moment at least; then cancel it."""
        timeout = self.config.timeout_graceful_shutdown
        left = None if timeout is None else max(timeout - elapsed, _LIFESPAN_S)
        try:
            async with asyncio.timeout(left):
                if not self._force_exit and await self._unless(self._force_asked, lifespan.shutdown()):
                    return
        except TimeoutError:
            text = "Application shutdown did not complete in time, timeout graceful shutdown exceeded"
            logger.error(text)
        lifespan.abandon()

    async def _end_tasks(self) -> None:
        """Cancel the tasks that are left, and give up those that don't end: the runner would wait for them for ever."""
        tasks = asyncio.all_tasks() - {asyncio.current_task()} - self._stubborn
        try:
            for task in tasks:
                task.cancel()
            if tasks:
                _, pending = await asyncio.wait(tasks, timeout=_CANCELLED_S)
                self._report_stubborn(pending)
        finally:
            for task in self._stubborn.union(tasks):
                if not task.done():
                    asyncio._unregister_task(task)
                    task._log_destroy_pending = False  # type: ignore[attr-defined]

    def _report_stubborn(self, tasks: Iterable[asyncio.Task[Any]]) -> None:
        """Log which tasks did not end in time after they were cancelled."""
        for task in tasks:
            logger.error("A task did not end when it was cancelled: %r", task)
            self._stubborn.add(task)

    async def _connected_within(self, timeout: float) -> None:
        """Wait until all accepted connections have begun or ended, for this time at most.

        What ends before it has begun may tell nobody, so this looks again and again.
        """
        assert self.service is not None
        deadline = time.monotonic() + timeout
        while self.service.awaited and not self._force_exit and time.monotonic() < deadline:
            await asyncio.sleep(_HANDSHAKE_INTERVAL_S)

    async def _closed_within(self, timeout: float | None) -> bool:
        """Return whether all requests and connections end in this time; False at once if the server is forced to end."""
        assert self.service is not None
        try:
            async with asyncio.timeout(timeout):
                return await self._unless(self._force_asked, self.service.wait_closed())
        except TimeoutError:
            return False

    async def _unless(self, event: asyncio.Event, awaitable: Awaitable[Any]) -> bool:
        """Wait until it is done; return False, and cancel it, if the event comes first."""
        waiting, first = asyncio.ensure_future(awaitable), asyncio.ensure_future(event.wait())
        try:
            await asyncio.wait((waiting, first), return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                return False
            waiting.result()
            return True
        finally:
            first.cancel()
            waiting.cancel()

    def _stop_accepting(self) -> None:
        assert self._loop is not None
        for server in self.servers:
            for sock in server.sockets:
                self._loop.remove_reader(sock.fileno())

    def _stop_listening(self, sockets: list[socket.socket]) -> None:
        for server in self.servers:
            server.close()
        _listening.close(sockets)
        if self._listeners is not None:
            self._listeners.close()


def listening_options(config: Config) -> dict[str, Any]:
    """Return the options of `loop.create_server` for a loaded configuration."""
    options: dict[str, Any] = {"backlog": config.backlog}
    if config.ssl is not None:
        reloadable = config.reloadable_ssl
        # Somebody may have put another context there.
        is_reloadable = reloadable is not None and config.ssl is reloadable.initial
        options["ssl"] = reloadable if is_reloadable else config.ssl
        options["ssl_handshake_timeout"] = config.ssl_handshake_timeout
        options["ssl_shutdown_timeout"] = config.ssl_shutdown_timeout
    return options


def announce(config: Config, sockets: Sequence[socket.socket]) -> None:
    """Log where clients can connect, with one line for each socket, and the running loop's backend."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, EventLoop)
    for sock in sockets:
        name = _listening.describe(sock)
        if sock.family == socket.AF_UNIX:
            name = f"unix socket {name}"
        elif isinstance(sock.getsockname(), tuple):
            name = f"{'https' if config.is_ssl else 'http'}://{name}"
        else:
            name = f"socket {name}"
        text = "Ringloop running on %s with %s (Press CTRL+C to quit)"
        colored = f"Ringloop running on {style('%s', bold=True)} with %s (Press CTRL+C to quit)"
        logger.info(text, name, loop.backend, extra={"color_message": colored})
