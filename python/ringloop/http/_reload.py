"""A server that is started again whenever files change."""

from __future__ import annotations

import asyncio
import os
import pathlib
import threading
from typing import TYPE_CHECKING, Any

from ._importing import import_optional
from ._stand_in import answering
from ._supervisor import Parent, wait_for_any
from .logging import logger

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ._config import Config
    from ._processes import Worker

_INCLUDES = ("*.py",)
_EXCLUDES = (".*", ".py[cod]", ".sw.*", "~*")


class FileFilter:
    """Which files matter, and in which directories, by uvicorn's rules.

    A pattern that names a directory means everything in it.
    """

    def __init__(
        self, directories: Iterable[str], includes: Iterable[str], excludes: Iterable[str], where: pathlib.Path
    ) -> None:
        included, excluded = set(includes), set(excludes)
        self._includes = (set(_INCLUDES) - excluded) | included
        self._excludes = (set(_EXCLUDES) - included) | excluded
        self._excluded_directories = {found for pattern in excluded for found in _directories(pattern, where)}
        watched = {(where / name).resolve() for name in directories}
        watched |= {found for pattern in included for found in _directories(pattern, where)}
        watched = {directory for directory in watched if directory.is_dir()} or {where.resolve()}
        watched = {directory for directory in watched if not self._is_excluded(directory)} or {where.resolve()}
        self.directories = sorted(one for one in watched if not watched.intersection(one.parents))

    def __call__(self, path: pathlib.Path) -> bool:
        if any(path.match(pattern) and str(path).endswith(pattern) for pattern in self._includes):
            return True  # It was named, not described.
        if self._is_excluded(path) or any(path.match(pattern) for pattern in self._excludes):
            return False
        return any(path.match(pattern) for pattern in self._includes)

    def _is_excluded(self, path: pathlib.Path) -> bool:
        return bool(self._excluded_directories.intersection((path, *path.parents)))


def _directories(pattern: str, where: pathlib.Path) -> set[pathlib.Path]:
    """Return the directories that a pattern names; ".*" is for files alone."""
    if pattern == ".*":
        return set()
    found = [pathlib.Path(pattern)] if os.path.isabs(pattern) else [where / pattern, *where.glob(pattern)]
    return {directory.resolve() for directory in found if directory.is_dir()}


class Reloader(Parent):
    """Keeps one worker; when files change it is ended, and another one started.

    A worker that ends by itself, for example because of a mistake in the application, gets no successor before a file
    changes. Until then requests get 503, with the reason.
    """

    kind = "reloader"

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        # Before anything is opened or started.
        self._watchfiles: Any = import_optional("watchfiles", "watchfiles", "--reload")
        self._filter = FileFilter(
            listed(config.reload_dirs),
            listed(config.reload_includes),
            listed(config.reload_excludes),
            pathlib.Path.cwd(),
        )
        self._changed = asyncio.Event()
        self._changes: set[pathlib.Path] = set()
        self._watch_ends = threading.Event()

    async def serve(self) -> None:
        directories = [str(directory) for directory in self._filter.directories]
        logger.info("Will watch for changes in these directories: %s", directories)
        loop = asyncio.get_running_loop()
        watching = threading.Thread(target=self._watch, args=(loop,), daemon=True)
        watching.start()
        self.log_process("Started reloader process [%d] using WatchFiles")
        try:
            while True:
                worker = self.spawn(self.listeners.sockets)
                await wait_for_any(worker.wait_until_ended(), self._changed.wait())
                if self._ending.is_set():
                    return  # A terminal's interrupt has reached the worker, too.
                if not self._changed.is_set():
                    await self._stand_in_for(worker)
                self._changed.clear()
                changes, self._changes = self._changes, set()
                shown = ", ".join(sorted(_shorten(path) for path in changes))
                logger.warning("WatchFiles detected changes in %s. Reloading...", shown)
                await self.retire(worker)
        finally:
            self._watch_ends.set()

    async def _stand_in_for(self, worker: Worker) -> None:
        """Tell clients why the worker has ended, until files change."""
        logger.error("Child process [%d] is gone. Requests get 503 until files change: %s", worker.pid, worker.reason)
        async with answering(self.config, self.listeners.sockets, worker.reason):
            self.announce()
            await self._changed.wait()

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Tell the loop of changes, in a thread of its own."""
        try:
            for changes in self._watchfiles.watch(
                *self._filter.directories,
                watch_filter=None,
                step=max(1, int(self.config.reload_delay * 1000)),
                stop_event=self._watch_ends,
                raise_interrupt=False,
                ignore_permission_denied=True,
            ):
                paths = {path for _, name in changes if self._filter(path := pathlib.Path(name))}
                if paths:
                    loop.call_soon_threadsafe(self._note_changes, paths)
        except Exception as error:
            # Of the loop, when it is closed; or of watchfiles.
            if not self._watch_ends.is_set():
                unexpected = None if isinstance(error, RuntimeError | OSError) else error
                logger.error("Files are no longer watched: %s", error, exc_info=unexpected)

    def _note_changes(self, paths: set[pathlib.Path]) -> None:
        self._changes |= paths
        self._changed.set()


def listed(names: list[str] | str | None) -> list[str]:
    """Return the names that an option gives."""
    return [names] if isinstance(names, str) else list(names or ())


def _shorten(path: pathlib.Path) -> str:
    try:
        return f"'{path.relative_to(pathlib.Path.cwd())}'"
    except ValueError:
        return f"'{path}'"
