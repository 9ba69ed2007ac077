"""`tempfile`, awaited: files and directories that are removed when they are closed."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Callable
from typing import Any

from ._open import FileContext, layer, letters_or_error
from ._threads import ThreadedFile, create_in_thread

__all__ = ["NamedTemporaryFile", "SpooledTemporaryFile", "TemporaryDirectory", "TemporaryFile"]


async def _file(
    context: FileContext[Any],
    create: Callable[..., Any],
    mode: str,
    buffering: int,
    encoding: str | None,
    newline: str | None,
    executor: Any,
    options: dict[str, Any],
) -> Any:
    letters, raw_mode, _ = letters_or_error(mode, buffering, encoding, None, newline)
    made = await create_in_thread(executor, lambda made: made.close(), create, f"{raw_mode}b", 0, **options)
    raw = getattr(made, "file", made)
    try:
        file = layer(raw, letters, mode, buffering, encoding, None, newline, close=made.close)
    except BaseException:
        made.close()
        raise
    file._temporary = made
    context._obj = file
    return file


def TemporaryFile(
    mode: str = "w+b",
    buffering: int = -1,
    encoding: str | None = None,
    newline: str | None = None,
    suffix: str | None = None,
    prefix: str | None = None,
    dir: Any = None,
    loop: asyncio.AbstractEventLoop | None = None,
    executor: Any = None,
) -> FileContext[Any]:
    """Open a temporary file without a name."""
    options = {"suffix": suffix, "prefix": prefix, "dir": dir}
    return FileContext(_file, tempfile.TemporaryFile, mode, buffering, encoding, newline, executor, options)


def NamedTemporaryFile(
    mode: str = "w+b",
    buffering: int = -1,
    encoding: str | None = None,
    newline: str | None = None,
    suffix: str | None = None,
    prefix: str | None = None,
    dir: Any = None,
    delete: bool = True,
    delete_on_close: bool = True,
    loop: asyncio.AbstractEventLoop | None = None,
    executor: Any = None,
) -> FileContext[Any]:
    """Open a temporary file with a name. `delete_on_close` needs Python 3.12."""
    options = {"suffix": suffix, "prefix": prefix, "dir": dir, "delete": delete}
    if sys.version_info >= (3, 12):
        options["delete_on_close"] = delete_on_close
    elif not delete_on_close:
        raise TypeError("delete_on_close needs Python 3.12 or later")
    return _NamedContext(_file, tempfile.NamedTemporaryFile, mode, buffering, encoding, newline, executor, options)


class _NamedContext(FileContext[Any]):
    """With `delete_on_close=False` the file is removed when the block ends."""

    __slots__ = ()

    def __aexit__(self, *exception: Any) -> Any:
        return self._end(exception)

    async def _end(self, exception: tuple[Any, ...]) -> None:
        if self._obj is not None:
            await self._obj.close()
            await asyncio.get_running_loop().run_in_executor(None, self._obj._temporary.__exit__, *exception)


def SpooledTemporaryFile(
    max_size: int = 0,
    mode: str = "w+b",
    buffering: int = -1,
    encoding: str | None = None,
    newline: str | None = None,
    suffix: str | None = None,
    prefix: str | None = None,
    dir: Any = None,
    loop: asyncio.AbstractEventLoop | None = None,
    executor: Any = None,
) -> FileContext[Any]:
    """Open a temporary file that is in memory up to `max_size` bytes, and then on disk."""
    options = {
        "max_size": max_size,
        "mode": mode,
        "buffering": buffering,
        "encoding": encoding,
        "newline": newline,
        "suffix": suffix,
        "prefix": prefix,
        "dir": dir,
    }
    return FileContext(_spooled, executor, options)


class SpooledFile(ThreadedFile):
    """A `tempfile.SpooledTemporaryFile` whose methods are called in threads."""

    async def rollover(self) -> None:
        """Move it to the disk now."""
        await self._call("rollover")


async def _spooled(context: FileContext[Any], executor: Any, options: dict[str, Any]) -> Any:
    made = await create_in_thread(
        executor, tempfile.SpooledTemporaryFile.close, tempfile.SpooledTemporaryFile, **options
    )
    context._obj = SpooledFile(lambda: made, executor)
    return context._obj


class Directory:
    """A temporary directory."""

    def __init__(self, made: tempfile.TemporaryDirectory[str], executor: Any) -> None:
        self._made = made
        self._executor = executor

    @property
    def name(self) -> str:
        """Its path."""
        return self._made.name

    async def cleanup(self) -> None:
        """Remove it, with what is in it."""
        await asyncio.get_running_loop().run_in_executor(self._executor, self._made.cleanup)

    async def close(self) -> None:
        """Do the same as `cleanup`."""
        await self.cleanup()


class _DirectoryContext(FileContext[Any]):
    """`async with` gives the path, as the blocking one does."""

    __slots__ = ()

    def __aenter__(self) -> Any:
        return self._enter()

    async def _enter(self) -> str:
        return (await self).name  # type: ignore[no-any-return]


def TemporaryDirectory(
    suffix: str | None = None,
    prefix: str | None = None,
    dir: Any = None,
    loop: asyncio.AbstractEventLoop | None = None,
    executor: Any = None,
) -> FileContext[Any]:
    """Make a temporary directory. `async with` gives its path; awaited, an object with `name` and `cleanup`."""
    return _DirectoryContext(_directory, suffix, prefix, dir, executor)


async def _directory(context: FileContext[Any], suffix: Any, prefix: Any, dir: Any, executor: Any) -> Directory:
    made = await create_in_thread(
        executor, tempfile.TemporaryDirectory.cleanup, tempfile.TemporaryDirectory, suffix, prefix, dir
    )
    directory = Directory(made, executor)
    context._obj = directory
    return directory
