"""Calls on paths as operations of io_uring. On epoll and on loops of others, the blocking functions run in threads.

The kernel has threads of its own for these operations, which need no GIL. What is unusual is left to the blocking functions:
descriptors in place of paths, `dir_fd`, an executor of the caller's, and arguments that are wrong.
"""

from __future__ import annotations

import asyncio
import functools
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from .._loop import EventLoop
from ._descriptor import Pending
from ._threads import in_thread

_Start: TypeAlias = Callable[[EventLoop, Callable[[Any], None]], Any]
"""Starts an operation, with the callback that is called when it is over."""
_Judge: TypeAlias = Callable[..., _Start | None]
"""Takes the arguments of a blocking function. None if that function has to be called."""


def ring_of(loop: asyncio.AbstractEventLoop | None = None) -> EventLoop | None:
    """Return the running loop if it has a ring, and if `loop` is no other."""
    running = asyncio.get_running_loop()
    if isinstance(running, EventLoop) and running.backend == "io_uring" and loop in (None, running):
        return running
    return None


def encoded(path: Any) -> bytes | None:
    """Return a path as the kernel takes it. None if it is no path, or has no such form."""
    if not isinstance(path, (str, bytes)):
        return None
    try:
        name = os.fsencode(path)
    except UnicodeEncodeError:
        return None
    return None if b"\0" in name else name


async def perform(
    ring: EventLoop, start: _Start, paths: tuple[Any, ...], keep: Callable[[Any], None] | None = None
) -> Any:
    """Wait for an operation. Its errors name the paths, as those of the blocking function do.

    If this is cancelled, the kernel is asked to end the operation. `keep` gets a result that nobody waits for.
    """
    pending = Pending(ring)
    pending.inner = start(ring, pending.complete)
    try:
        return await pending.wait(cancel=True, keep=keep)
    except OSError as error:
        if paths:
            error.filename = paths[0]
        if paths[1:]:
            error.filename2 = paths[1]
        raise


def on_ring(function: Callable[..., Any], judge: _Judge, names: int = 1) -> Callable[..., Awaitable[Any]]:
    """Return a coroutine function for a blocking one. Its first `names` arguments are paths."""
    blocking = in_thread(function)

    @functools.wraps(function)
    async def call(
        *args: Any, loop: asyncio.AbstractEventLoop | None = None, executor: Any = None, **options: Any
    ) -> Any:
        ring = ring_of(loop) if executor is None and len(args) >= names else None
        if ring is not None:
            try:
                paths = tuple(os.fspath(path) if isinstance(path, os.PathLike) else path for path in args[:names])
                start = judge(*paths, *args[names:], **options)
            except TypeError:
                # The blocking function has a better message.
                start = None
            if start is not None:
                return await perform(ring, start, paths)
        return await blocking(*args, loop=loop, executor=executor, **options)

    return call


def _stat(path: Any, *, follow_symlinks: Any = True) -> _Start | None:
    name, follow = encoded(path), bool(follow_symlinks)
    return None if name is None else lambda ring, done: ring._stat_path(name, follow, done)


def _lstat(path: Any) -> _Start | None:
    return _stat(path, follow_symlinks=False)


def _rename(src: Any, dst: Any) -> _Start | None:
    old, new = encoded(src), encoded(dst)
    if old is None or new is None:
        return None
    sys.audit("os.rename", src, dst, -1, -1)
    return lambda ring, done: ring._rename_path(old, new, done)


def _remove(path: Any) -> _Start | None:
    name = encoded(path)
    if name is None:
        return None
    sys.audit("os.remove", path, -1)
    return lambda ring, done: ring._remove_path(name, False, done)


def _rmdir(path: Any) -> _Start | None:
    name = encoded(path)
    if name is None:
        return None
    sys.audit("os.rmdir", path, -1)
    return lambda ring, done: ring._remove_path(name, True, done)


def _mkdir(path: Any, mode: Any = 0o777) -> _Start | None:
    name = encoded(path)
    if name is None or type(mode) is not int or not 0 <= mode <= 0o7777:
        return None
    sys.audit("os.mkdir", path, mode, -1)
    return lambda ring, done: ring._make_directory(name, mode, done)


def _fsync(fd: Any) -> _Start | None:
    return _sync(fd, data_only=False)


def _fdatasync(fd: Any) -> _Start | None:
    return _sync(fd, data_only=True)


def _sync(fd: Any, *, data_only: bool) -> _Start | None:
    if type(fd) is not int or not 0 <= fd < 1 << 31:
        return None
    return lambda ring, done: ring._sync_file(fd, data_only, done)


fdatasync = on_ring(os.fdatasync, _fdatasync, 0)
fsync = on_ring(os.fsync, _fsync, 0)
lstat = on_ring(os.lstat, _lstat)
mkdir = on_ring(os.mkdir, _mkdir)
remove = on_ring(os.remove, _remove)
rename = on_ring(os.rename, _rename, 2)
replace = on_ring(os.replace, _rename, 2)
rmdir = on_ring(os.rmdir, _rmdir)
stat = on_ring(os.stat, _stat)
unlink = on_ring(os.unlink, _remove)


def from_status(
    function: Callable[..., Any], look: Callable[[os.stat_result], Any], *, follow: bool = True, missing: Any = None
) -> Callable[..., Awaitable[Any]]:
    """Return a coroutine function for one of `os.path` that asks for a file's status.

    `missing` is what it returns if there is none. None: it raises the error.
    """
    blocking = in_thread(function)
    status_of = stat if follow else lstat

    @functools.wraps(function)
    async def call(
        *args: Any, loop: asyncio.AbstractEventLoop | None = None, executor: Any = None, **options: Any
    ) -> Any:
        if executor is not None or len(args) != 1 or options or ring_of(loop) is None:
            return await blocking(*args, loop=loop, executor=executor, **options)
        try:
            status = await status_of(args[0])
        except (OSError, ValueError):
            if missing is None:
                raise
            return missing
        return look(status)

    return call
