"""Blocking calls and blocking file objects, in the threads of the loop's executor."""

from __future__ import annotations

import asyncio
import functools
import io
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")


def in_thread(function: Callable[_P, _T]) -> Callable[..., Awaitable[_T]]:
    """Return a coroutine function that calls `function` in a thread.

    It takes the same arguments, and `loop` and `executor` for programs that were written for aiofiles.
    """

    @functools.wraps(function)
    async def call(
        *args: Any, loop: asyncio.AbstractEventLoop | None = None, executor: Any = None, **options: Any
    ) -> _T:
        loop = loop or asyncio.get_running_loop()
        return await loop.run_in_executor(executor, functools.partial(function, *args, **options))

    return call


async def create_in_thread(
    executor: Any, undo: Callable[[_T], object], create: Callable[..., _T], *args: Any, **options: Any
) -> _T:
    """Call `create` in a thread. If that is cancelled nobody gets the result: `undo` is called with it then."""

    def undo_unwanted(creating: asyncio.Future[_T]) -> None:
        if not creating.cancelled() and creating.exception() is None:
            undo(creating.result())

    call = functools.partial(create, *args, **options)
    creating = asyncio.get_running_loop().run_in_executor(executor, call)
    try:
        return await asyncio.shield(creating)
    except asyncio.CancelledError:
        creating.add_done_callback(undo_unwanted)
        raise


_DIRECT = frozenset(
    [
        "buffer",
        "closed",
        "detach",
        "encoding",
        "errors",
        "fileno",
        "line_buffering",
        "mode",
        "name",
        "newlines",
        "raw",
        "readable",
    ]
)


def _awaited(name: str) -> Any:
    async def method(self: ThreadedFile, *args: Any, **options: Any) -> Any:
        return await self._call(name, *args, **options)

    method.__name__ = method.__qualname__ = name
    method.__doc__ = f"Call the file's `{name}` in a thread."
    return method


class ThreadedFile:
    """A blocking file object whose methods are called in threads: for standard streams, and for objects with other methods."""

    def __init__(self, get: Callable[[], Any], executor: Any = None) -> None:
        self._get = get
        self._executor = executor

    def __repr__(self) -> str:
        return f"<{type(self).__module__}.{type(self).__qualname__} wrapping {self._file!r}>"

    @property
    def _file(self) -> Any:
        return self._get()

    async def _call(self, name: str, *args: Any, **options: Any) -> Any:
        call = functools.partial(getattr(self._file, name), *args, **options)
        return await asyncio.get_running_loop().run_in_executor(self._executor, call)

    close = _awaited("close")
    flush = _awaited("flush")
    isatty = _awaited("isatty")
    peek = _awaited("peek")
    read = _awaited("read")
    read1 = _awaited("read1")
    readall = _awaited("readall")
    readinto = _awaited("readinto")
    readline = _awaited("readline")
    readlines = _awaited("readlines")
    seek = _awaited("seek")
    seekable = _awaited("seekable")
    tell = _awaited("tell")
    truncate = _awaited("truncate")
    writable = _awaited("writable")
    write = _awaited("write")
    writelines = _awaited("writelines")

    def __getattr__(self, name: str) -> Any:
        # What does no I/O.
        if name in _DIRECT:
            return getattr(self._file, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    async def __aenter__(self) -> ThreadedFile:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        line = await self.readline()
        if not line:
            raise StopAsyncIteration
        return line


def wrap(file: Any, *, loop: asyncio.AbstractEventLoop | None = None, executor: Any = None) -> ThreadedFile:
    """Return an object with awaitable methods for a blocking file object, which are called in threads."""
    if not isinstance(file, io.IOBase):
        raise TypeError(f"Unsupported io type: {file}.")
    return ThreadedFile(lambda: file, executor)


stdin = ThreadedFile(lambda: sys.stdin)
stdout = ThreadedFile(lambda: sys.stdout)
stderr = ThreadedFile(lambda: sys.stderr)
stdin_bytes = ThreadedFile(lambda: sys.stdin.buffer)
stdout_bytes = ThreadedFile(lambda: sys.stdout.buffer)
stderr_bytes = ThreadedFile(lambda: sys.stderr.buffer)
