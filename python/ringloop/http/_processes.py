"""Child processes that serve, as their parent sees them, and what runs in them.

Parent and child are connected by a pair of sockets. The child says when it is there, when it has started, and when it
has served as many requests as it may; it answers pings in a thread, however busy its loop is. Its answers carry its
metrics, if they are served. It ends when its parent has ended.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any, cast

from . import _metrics
from ._errors import summarize
from ._importing import import_failures_shown
from ._server import Server
from .logging import logger

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from multiprocessing.connection import Connection
    from types import FrameType

    from .._core import HttpMetrics
    from ._config import Config

# Messages. A child's metrics follow _PONG and _COLLECT, and those of all children follow _COLLECTED.
_HERE, _STARTED, _FULL, _PING, _PONG = b"here", b"started", b"full", b"ping", b"pong"
# Why the child can't start follows.
_FAILED = b"failed"
_COLLECT, _COLLECTED = b"collect", b"collected"

# How often a worker's answer and its memory are looked at.
_LOOK_INTERVAL_S = 1.0

# How long after its creation a worker may say that it is there, on a machine that is slow or busy.
_HERE_MARGIN_S = 60.0

# How long after the deadline for its requests a worker has for the end of the application.
_END_MARGIN_S = 30.0

_spawn = multiprocessing.get_context("spawn")


class Worker:
    """A child process that serves on these sockets, from its start to its end."""

    def __init__(
        self,
        config: Config,
        sockets: list[socket.socket],
        board: _metrics.Board,
        ask_for_another: Callable[[Worker], None],
    ) -> None:
        """Start the process. `board` takes its metrics; `ask_for_another` is called once when it should be replaced."""
        self._config = config
        self._board = board
        self._ask_for_another = ask_for_another
        self._loop = asyncio.get_running_loop()
        self._settled = asyncio.Event()
        self._ended = asyncio.Event()
        self._is_here = False
        self._answers = True
        self._killed = False
        self.started = False
        # What went wrong if it could not start, in one line.
        self._reason: str | None = None
        # The exit status, negative for a signal; None while it runs.
        self.exitcode: int | None = None
        self._connection, theirs = _spawn.Pipe()
        try:
            self._process = _spawn.Process(target=_work, args=(config, sockets, theirs, _stdin()))
            self._process.start()
        except BaseException:
            self._connection.close()
            raise
        finally:
            theirs.close()
        assert self._process.pid is not None
        self.pid: int = self._process.pid
        # multiprocessing's own sentinel is inherited by the child's children, and would wait for them, too.
        self._pidfd = os.pidfd_open(self.pid)
        self._loop.add_reader(self._pidfd, self._note_end)
        self._loop.add_reader(self._connection.fileno(), self._note_message)
        self._look: asyncio.Task[None] | None
        self._look = self._loop.create_task(self._look_after(), name=f"worker {self.pid}")

    @property
    def ended(self) -> bool:
        """Whether the process is gone."""
        return self._ended.is_set()

    @property
    def reason(self) -> str:
        """Why the process has ended by itself, in one line."""
        if self._reason is not None:
            return self._reason
        status = self.exitcode
        if status is not None and status < 0:
            return f"The process was ended by {signal.Signals(-status).name}."
        return f"The process ended with status {status}."

    async def wait_until_settled(self) -> bool:
        """Wait until it has started; return False if it ended before."""
        await self._settled.wait()
        return self.started and not self.ended

    async def wait_until_ended(self) -> None:
        """Wait until the process is gone."""
        await self._ended.wait()

    async def end(self) -> None:
        """Tell it to end, and wait until it is gone; it is killed when its time is over."""
        self.signal(signal.SIGTERM)
        limit = self._config.timeout_graceful_shutdown
        try:
            async with asyncio.timeout(None if limit is None else limit + _END_MARGIN_S):
                await self._ended.wait()
        except TimeoutError:
            logger.error("Child process [%d] does not end, killing it", self.pid)
            self.signal(signal.SIGKILL)
            await self._ended.wait()

    def signal(self, number: int) -> None:
        """Send it a signal, unless it is gone."""
        if not self.ended:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def _note_end(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        # What it said last.
        while not self._connection.closed and self._connection.poll():
            self._note_message()
        self._drop_connection()
        assert self._look is not None
        self._look.cancel()
        # The task keeps the traceback of its cancellation, which refers to this object.
        self._look = None
        self._process.join()
        self.exitcode = self._process.exitcode
        self._process.close()
        self._board.end(self.pid)
        self._ended.set()
        self._settled.set()

    def _drop_connection(self) -> None:
        if not self._connection.closed:
            self._loop.remove_reader(self._connection.fileno())
            self._connection.close()

    def _note_message(self) -> None:
        try:
            message, _, content = self._connection.recv_bytes().partition(b" ")
        except (OSError, EOFError):
            self._drop_connection()
            return
        if message == _FAILED:
            self._reason = content.decode(errors="replace")
        elif content:
            self._board.note(pickle.loads(content))
        if message == _HERE:
            self._is_here = True
        elif message == _STARTED:
            self.started = True
            self._settled.set()
        elif message == _PONG:
            self._answers = True
        elif message == _COLLECT:
            with contextlib.suppress(OSError):
                self._connection.send_bytes(_COLLECTED + b" " + pickle.dumps(self._board.read()))
        elif message == _FULL:
            self._ask_for_another(self)

    async def _look_after(self) -> None:
        """Kill the process if it stops answering; ask for another one if it is too old or too large."""
        config, loop = self._config, self._loop
        born = answered = loop.time()
        asked = False
        while True:
            await asyncio.sleep(_LOOK_INTERVAL_S)
            limit = config.timeout_worker_healthcheck + (0 if self._is_here else _HERE_MARGIN_S)
            if self._is_here and self._answers:
                answered = loop.time()
                self._answers = False
                with contextlib.suppress(OSError):
                    self._connection.send_bytes(_PING)
            elif loop.time() - answered > limit and not self._killed:
                logger.error("Child process [%d] does not answer, killing it", self.pid)
                self._killed = True
                self.signal(signal.SIGKILL)
            if asked or not self.started:
                continue
            if config.workers_lifetime is not None and loop.time() - born > config.workers_lifetime:
                logger.info("Child process [%d] is replaced: it has reached its lifetime", self.pid)
                asked = True
            elif config.workers_max_rss is not None and (size := _resident_mib(self.pid)) > config.workers_max_rss:
                logger.info("Child process [%d] is replaced: it uses %d MiB of memory", self.pid, size)
                asked = True
            if asked:
                self._ask_for_another(self)


def _resident_mib(pid: int) -> int:
    """Return the resident memory of a process; 0 if it is gone."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            pages = int(file.read().split()[1])
    except (OSError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE") >> 20


def _stdin() -> int | None:
    """Return the descriptor that a debugger in the child reads from; multiprocessing gives it none."""
    try:
        return sys.stdin.fileno()
    except (AttributeError, OSError, ValueError):
        return None


class _ChildServer(Server):
    """A server that tells the parent process what happens to it."""

    def __init__(self, config: Config, connection: Connection) -> None:
        super().__init__(config)
        self._connection = connection
        # Two threads send.
        self._sending = threading.Lock()
        self._collecting: collections.deque[asyncio.Future[Any]] = collections.deque()

    def attend(self) -> None:
        """Answer the parent's pings, in a thread of its own, until it has gone; then end the server."""
        with contextlib.suppress(OSError, EOFError):
            self._send(_HERE)
            while True:
                message, _, content = self._connection.recv_bytes().partition(b" ")
                if message == _PING:
                    self._send(_PONG, self._own_metrics())
                elif (loop := self._loop) is not None:
                    with contextlib.suppress(RuntimeError):  # The loop is closed.
                        loop.call_soon_threadsafe(self._note_collected, content)
        self.should_exit = True

    async def collect_metrics(self) -> tuple[HttpMetrics | None, list[_metrics.Snapshot]]:
        """Return the counts of all processes: the parent has them, those of other processes up to a second old. It adds them up."""
        assert self._loop is not None
        future = self._loop.create_future()
        self._collecting.append(future)
        self._tell_parent(_COLLECT, self._own_metrics())
        return cast("tuple[HttpMetrics | None, list[_metrics.Snapshot]]", await future)

    def _note_collected(self, content: bytes) -> None:
        future = self._collecting.popleft()
        if not future.done():
            future.set_result(pickle.loads(content))

    def _own_metrics(self) -> bytes:
        service, loop = self.service, self._loop
        if self.config.metrics is None or service is None or loop is None:
            return b""
        return pickle.dumps(_metrics.take(service, loop))

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End the server; it is not forced by an interrupt, which may come after the parent's SIGTERM.

        Ctrl-C in a terminal interrupts parent and children. After a second one the parent kills them.
        """
        if not (self.should_exit and sig == signal.SIGINT):
            super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets)
        except BaseException as error:
            reason = None if self._lifespan is None else self._lifespan.reason
            self._tell_parent(_FAILED, str(reason or summarize(error)).encode(errors="replace"))
            raise
        if self.started:
            self._tell_parent(_STARTED)

    async def main_loop(self) -> None:
        await super().main_loop()
        if not self.should_exit:
            # It has served enough, and serves on until another process has taken its place.
            self._tell_parent(_FULL)
            await self.wait_for_exit()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().shutdown(sockets)
        finally:
            self._tell_parent(_PONG, self._own_metrics())

    def _tell_parent(self, message: bytes, content: bytes = b"") -> None:
        with contextlib.suppress(OSError):
            self._send(message, content)

    def _send(self, message: bytes, content: bytes = b"") -> None:
        with self._sending:
            self._connection.send_bytes(message + b" " + content)


def _work(config: Config, sockets: list[socket.socket], connection: Connection, stdin: int | None) -> None:
    """Serve in the child."""
    if stdin is not None:
        with contextlib.suppress(OSError):
            sys.stdin = os.fdopen(stdin, closefd=False)
    config.configure_logging()
    server = _ChildServer(config, connection)
    threading.Thread(target=server.attend, daemon=True).start()
    # The parent tells of an interrupt.
    with contextlib.suppress(KeyboardInterrupt), import_failures_shown():
        server.run(sockets)
