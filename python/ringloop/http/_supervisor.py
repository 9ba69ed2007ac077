"""The parent of several worker processes: it replaces those that die, and those that are asked to go."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING, Any

from . import _listening, _metrics
from ._config import STARTUP_FAILURE, Config, startup_failures_logged
from ._processes import Worker
from ._server import announce
from .logging import logger, style

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from ._listening import Listeners

# Signals that uvicorn's parent ignores, too: their default would end it.
_IGNORED = (signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)

# How many times in a row to try again when a process is killed before it has started, for example for lack of memory.
_ATTEMPTS = 3

# How long to wait before trying again after the kernel has refused to create a process.
_RETRY_INTERVAL_S = 1.0

# The wait before another successor is tried doubles up to this.
_LONGEST_RETRY_INTERVAL_S = 60.0


class Parent:
    """The base class of parents of worker processes: signals, listening sockets, and the end.

    `kind` is their name in the log.
    """

    kind = "parent"

    def __init__(self, config: Config) -> None:
        self.config = config
        self.exit_status = 0
        self.workers: set[Worker] = set()
        self._board = _metrics.Board()
        self._ending = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_announced = False

    def run(self) -> None:
        """Serve until a signal ends it. Raise SystemExit(3) if it can't start, or can't continue."""
        with startup_failures_logged(), asyncio.Runner(loop_factory=self.config.get_loop_factory()) as runner:
            runner.run(self._run())
        if self.exit_status:
            sys.exit(self.exit_status)

    async def serve(self) -> None:
        """Keep workers; cancelled when the parent ends."""
        raise NotImplementedError

    def spawn(self, sockets: list[socket.socket]) -> Worker:
        """Start a worker."""
        worker = Worker(self.config, sockets, self._board, self.replace)
        self.workers.add(worker)
        if not self._is_announced:
            self.start_task(self._announce_when_started(worker), f"announce {worker.pid}")
        return worker

    def announce(self) -> None:
        """Log where clients can connect, once: somebody answers them from now on."""
        if not self._is_announced:
            self._is_announced = True
            announce(self.config, self.listeners.sockets)

    async def _announce_when_started(self, worker: Worker) -> None:
        if await worker.wait_until_settled():
            self.announce()

    async def retire(self, worker: Worker) -> None:
        """End a worker, and wait until it is gone."""
        await worker.end()
        self.workers.discard(worker)

    def replace(self, worker: Worker) -> None:
        """Arrange for this worker to be replaced soon."""

    def all_listeners(self) -> list[Listeners]:
        """Return what the workers listen on."""
        return [self.listeners]

    def end(self, status: int = 0) -> None:
        """End all workers, and then this process."""
        self.exit_status = self.exit_status or status
        self._ending.set()

    def start_task(self, coroutine: Coroutine[None, None, None], name: str) -> asyncio.Task[None]:
        """Start a task that is cancelled when the parent ends, and that ends the parent if it fails."""
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._note_task)
        return task

    def on_signal(self, number: int) -> None:
        """Handle a signal; unknown ones are ignored."""
        name = signal.Signals(number).name
        if number in (signal.SIGINT, signal.SIGTERM):
            logger.info("Received %s, exiting.", name)
            if self._ending.is_set():
                for worker in self.workers:
                    worker.signal(signal.SIGKILL)
            self.end()
        else:
            logger.debug("Received %s, and ignored it.", name)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTTIN, signal.SIGTTOU, *_IGNORED):
            loop.add_signal_handler(number, self.on_signal, number)
        self.listeners = self.config.bind()
        try:
            self.start_task(self.serve(), "parent")
            await self._ending.wait()
        finally:
            for task in self._tasks:
                task.cancel()
            # Before the workers accept what waits, and end.
            for listeners in self.all_listeners():
                listeners.refuse_more()
            self.listeners.close()
            await asyncio.gather(*(self.retire(worker) for worker in list(self.workers)))
            self.log_process(f"Stopping {self.kind} process [%d]")

    def log_process(self, text: str) -> None:
        """Log what happens to this process; the text has a placeholder for its number."""
        colored = text.replace("%d", style("%d", "cyan", bold=True))
        logger.info(text, os.getpid(), extra={"color_message": colored})

    def _note_task(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("The parent process failed", exc_info=error)
            self.end(1)


class _Place:
    """One of the intended processes, with the sockets that it listens on."""

    def __init__(self, listeners: Listeners) -> None:
        self.listeners = listeners
        self.worker: Worker | None = None
        self.successor: asyncio.Future[bool] | None = None
        self.wake = asyncio.Event()
        self.given_up = False


class Supervisor(Parent):
    """Keeps the intended number of workers running.

    One that dies is replaced. One that cannot start ends everything, with status 3, unless others serve and it was to
    replace one of those. SIGHUP replaces all of them, one by one: the old one ends when the new one serves. SIGTTIN and
    SIGTTOU add one and drop one.
    """

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._places: list[_Place] = []
        # Workers are replaced one by one, whoever asks.
        self._replacing = asyncio.Lock()
        self._restart_waits = False

    async def serve(self) -> None:
        self.log_process("Started parent process [%d]")
        assert self.config.workers is not None
        for _ in range(self.config.workers):
            self._add_place()

    def on_signal(self, number: int) -> None:
        if self._ending.is_set():
            super().on_signal(number)
        elif number == signal.SIGHUP:
            logger.info("Received SIGHUP, restarting processes.")
            if not self._restart_waits:
                self._restart_waits = True
                self.start_task(self._restart_all(), "restart")
        elif number == signal.SIGTTIN:
            logger.info("Received SIGTTIN, increasing the number of processes.")
            self._add_place()
        elif number == signal.SIGTTOU:
            logger.info("Received SIGTTOU, decreasing number of processes.")
            if len(self._places) > 1:
                place = self._places.pop()
                place.given_up = True
                place.wake.set()
            else:
                logger.info("Already reached one process, cannot decrease the number of processes anymore.")
        else:
            super().on_signal(number)

    def replace(self, worker: Worker) -> None:
        self.start_task(self._replace_one(worker), f"replace {worker.pid}")

    def all_listeners(self) -> list[Listeners]:
        return [self.listeners, *(place.listeners for place in self._places if place.listeners is not self.listeners)]

    def _add_place(self) -> None:
        place = _Place(self._listeners_of_one())
        self._places.append(place)
        self.start_task(self._keep(place, vital=self._none_has_started()), "worker")

    def _listeners_of_one(self) -> Listeners:
        """Return what another worker listens on: the same as all, or with `reuse_port` sockets of its own at the same port."""
        if not self._places or not self.listeners.can_be_repeated:
            return self.listeners
        port = self.listeners.sockets[0].getsockname()[1]
        return _listening.bind(self.config.host, port, reuse_port=True)

    def _none_has_started(self) -> bool:
        return not any(worker.started for worker in self.workers)

    async def _keep(self, place: _Place, vital: bool) -> None:
        """Keep a worker in this place, until it is given up."""
        try:
            await self._keep_one(place, vital)
        finally:
            self._answer(place, True)
            if place.listeners is not self.listeners:
                place.listeners.close()

    async def _keep_one(self, place: _Place, vital: bool) -> None:
        attempts = 0
        while not place.given_up:
            try:
                worker = place.worker = self.spawn(place.listeners.sockets)
            except OSError as error:
                # The kernel is out of processes or descriptors, perhaps only for now.
                logger.error("A child process can't be started: %s", error)
                if self._none_has_started():
                    self.end(STARTUP_FAILURE)
                    return
                await asyncio.sleep(_RETRY_INTERVAL_S)
                continue
            if not await worker.wait_until_settled():
                self.workers.discard(worker)
                attempts += 1
                if self._may_try_again(worker, attempts):
                    logger.info("Child process [%d] died before it had started", worker.pid)
                    continue
                if vital:
                    logger.error("Child process [%d] failed to start, stopping the parent process.", worker.pid)
                    self.end(STARTUP_FAILURE)
                else:
                    logger.error("Child process [%d] failed to start, and is not started again.", worker.pid)
                    if place in self._places:
                        self._places.remove(place)
                return
            attempts, vital = 0, True
            await self._attend(place)
        if place.listeners is not self.listeners:
            place.listeners.refuse_more()
        if place.worker is not None:
            await self.retire(place.worker)

    def _may_try_again(self, worker: Worker, attempts: int) -> bool:
        killed = worker.exitcode is not None and worker.exitcode < 0
        return killed and attempts < _ATTEMPTS

    async def _attend(self, place: _Place) -> None:
        """Wait until the worker has died, or the place is given up; put others in its place when asked."""
        while True:
            assert place.worker is not None
            await wait_for_any(place.worker.wait_until_ended(), place.wake.wait())
            place.wake.clear()
            if place.given_up:
                return
            if place.worker.ended:
                logger.info("Child process [%d] died", place.worker.pid)
                self.workers.discard(place.worker)
                self._answer(place, True)
                return
            if place.successor is not None:
                self._answer(place, await self._exchange(place))

    async def _exchange(self, place: _Place) -> bool:
        """Start another worker in this place, and end the old one when it serves.

        Wait until the old one is gone, so that they are replaced one by one, but no longer than the new one lives and
        the place is wanted.
        """
        old = place.worker
        assert old is not None
        try:
            new = self.spawn(place.listeners.sockets)
        except OSError as error:
            logger.error("A child process can't be started: %s", error)
            return False
        if not await new.wait_until_settled():
            self.workers.discard(new)
            logger.error("New child process [%d] failed to start; keeping worker [%d].", new.pid, old.pid)
            return False
        place.worker = new
        self.start_task(self.retire(old), f"retire {old.pid}")
        await wait_for_any(old.wait_until_ended(), new.wait_until_ended(), place.wake.wait())
        return True

    def _answer(self, place: _Place, result: bool) -> None:
        successor, place.successor = place.successor, None
        if successor is not None and not successor.done():
            successor.set_result(result)

    async def _ask_for_successor(self, place: _Place) -> bool:
        place.successor = asyncio.get_running_loop().create_future()
        place.wake.set()
        return await place.successor

    async def _restart_all(self) -> None:
        async with self._replacing:
            self._restart_waits = False
            for place in list(self._places):
                if place in self._places and not await self._ask_for_successor(place):
                    logger.error("The restart is aborted.")
                    return

    async def _replace_one(self, worker: Worker) -> None:
        """Replace this worker, which does not ask again: try until a successor has started or the worker is gone."""
        interval = _RETRY_INTERVAL_S
        while not await self._try_to_replace(worker):
            await asyncio.sleep(interval)
            interval = min(2 * interval, _LONGEST_RETRY_INTERVAL_S)

    async def _try_to_replace(self, worker: Worker) -> bool:
        """Try to replace the worker. Return False if the successor failed; True also if the worker is gone."""
        async with self._replacing:
            for place in self._places:
                if place.worker is worker and not worker.ended:
                    return await self._ask_for_successor(place)
        return True


async def wait_for_any(*coroutines: Coroutine[Any, Any, object]) -> None:
    """Wait until one of these has ended, and cancel the others."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
