"""`open`."""

from __future__ import annotations

import asyncio
import builtins
import io
import os
import stat
import sys
import warnings
from collections.abc import Callable, Coroutine, Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Protocol, TypeVar, overload

from .._core import _glance_at_file, _open_cached
from ._binary import BufferedRandom, BufferedReader, BufferedWriter, RawFile, _Buffered
from ._descriptor import Descriptor, kind_of
from ._paths import encoded, perform, ring_of
from ._text import TextFile
from ._threads import create_in_thread

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from _typeshed import (
        FileDescriptorOrPath,
        OpenBinaryMode,
        OpenBinaryModeReading,
        OpenBinaryModeUpdating,
        OpenBinaryModeWriting,
        OpenTextMode,
    )


class _Closable(Protocol):
    def close(self) -> Coroutine[Any, Any, None]: ...


_F = TypeVar("_F", bound=_Closable)


class FileContext(Coroutine[Any, Any, _F]):
    """The object that `open` returns: to be awaited for the file, or used with `async with`, which closes it."""

    __slots__ = ("_coroutine", "_obj")

    def __init__(self, opening: Callable[..., Coroutine[Any, Any, _F]], *args: Any) -> None:
        self._obj: _F | None = None
        self._coroutine = opening(self, *args)

    def __await__(self) -> Generator[Any, Any, _F]:
        return self._coroutine.__await__() if self._obj is None else finished(self._obj).__await__()

    def send(self, value: Any, /) -> Any:
        """Take the next step, as of a coroutine."""
        return self._coroutine.send(value)

    def throw(self, *exception: Any) -> Any:
        """Raise an exception where it waits."""
        return self._coroutine.throw(*exception)

    def close(self) -> None:
        """End it before it has opened the file."""
        self._coroutine.close()

    def __aenter__(self) -> Coroutine[Any, Any, _F]:
        return self._coroutine if self._obj is None else finished(self._obj)

    def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> Coroutine[Any, Any, None]:
        return self._leave() if self._obj is None else self._obj.close()

    async def _leave(self) -> None:
        """Do nothing: there is nothing to close."""

    # For those who forget that it is asynchronous.

    def __enter__(self) -> NoReturn:
        raise TypeError(f"{type(self).__name__!r} object needs `async with`, not `with`")

    def __exit__(self, *exception: object) -> None: ...

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"{type(self).__name__!r} object has no attribute {name!r}: await it first, or use `async with`"
        )


async def finished(file: _F) -> _F:
    """Return a file that is open already."""
    return file


_KNOWN_MODES: dict[str, tuple[frozenset[str], str, int]] = {}
_CREATING = {
    "a": os.O_CREAT | os.O_APPEND,
    "w": os.O_CREAT | os.O_TRUNC,
    "x": os.O_CREAT | os.O_EXCL,
}


def parse_mode(mode: str) -> tuple[frozenset[str], str, int] | None:
    """Return the letters of a mode, the mode of the raw file, and the flags by which it is opened.

    None if the mode is not valid.
    """
    letters = frozenset(mode)
    if letters - set("axrwb+t") or len(mode) > len(letters) or {"t", "b"} <= letters or len(letters & set("xrwa")) != 1:
        return None
    raw_mode = "".join(letter for letter in "xrwa+" if letter in letters)
    access = os.O_RDWR if "+" in letters else os.O_RDONLY if "r" in letters else os.O_WRONLY
    return letters, raw_mode, access | _CREATING.get(raw_mode[0], 0) | os.O_CLOEXEC


def letters_or_error(
    mode: str, buffering: int, encoding: str | None, errors: str | None, newline: str | None
) -> tuple[frozenset[str], str, int]:
    """Return what `parse_mode` returns, or raise the error that `io.open` raises for these arguments."""
    found = None
    if isinstance(mode, str) and isinstance(buffering, int):
        found = _KNOWN_MODES.get(mode) or parse_mode(mode)
        if found is not None:
            _KNOWN_MODES[mode] = found
    is_binary = found is not None and "b" in found[0]
    if found is None or (is_binary and (encoding is not None or errors is not None or newline is not None)):
        builtins.open(os.devnull, mode, buffering, encoding, errors, newline).close()
    if found is None:
        raise ValueError(f"invalid mode: {mode!r}, or buffering: {buffering!r}")
    if is_binary and buffering == 1:
        warnings.warn(
            "line buffering (buffering=1) isn't supported in binary mode, the default buffer size will be used",
            RuntimeWarning,
            stacklevel=3,
        )
    return found


def buffer_size(raw: io.FileIO) -> int:
    """Return the size of buffer that `io.open` chooses."""
    size = getattr(raw, "_blksize", io.DEFAULT_BUFFER_SIZE)
    if not isinstance(size, int) or size <= 1:
        return io.DEFAULT_BUFFER_SIZE
    return max(min(size, 8 << 20), io.DEFAULT_BUFFER_SIZE) if sys.version_info >= (3, 14) else size


def layer(
    raw: io.FileIO,
    letters: frozenset[str],
    mode: str,
    buffering: int,
    encoding: str | None,
    errors: str | None,
    newline: str | None,
    *,
    kind: tuple[bool, bool] | None = None,
    shared: bool = False,
    close: Callable[[], None] | None = None,
) -> Any:
    """Put the layers that a mode asks for on a raw file. Its `kind` is as of `kind_of`. It is `shared` if others may have it."""
    descriptor = Descriptor(raw, asyncio.get_running_loop(), kind, shared=shared)
    line_buffering = buffering == 1 or (buffering < 0 and not descriptor.is_regular and raw.isatty())
    if buffering < 0 or buffering == 1:
        buffering = buffer_size(raw)
    if buffering == 0:
        if "b" not in letters:
            raise ValueError("can't have unbuffered text I/O")
        return RawFile(descriptor, close)
    layered: type[_Buffered]
    if "+" in letters:
        if not descriptor.seekable:
            raise io.UnsupportedOperation("File or stream is not seekable.")
        layered = BufferedRandom
    else:
        layered = BufferedReader if "r" in letters else BufferedWriter
    buffer = layered(descriptor, buffering, close)
    if "b" in letters:
        return buffer
    try:
        return TextFile(buffer, mode, encoding, errors, newline, line_buffering)
    except BaseException:
        # It is closed with the raw file.
        buffer._closed = True
        raise


async def open_on_ring(file: Any, name: bytes, mode: str, flags: int) -> int | None:
    """Open a regular file, or create one, by operations of io_uring. None if that has to be done in another way.

    The driver opens without waiting for the other end of a FIFO, or for a modem. So what is there is looked at first.
    """
    ring = ring_of()
    if ring is None:
        return None
    creates = flags & os.O_CREAT
    if creates:
        # FileIO raises this event, too, but then the file is there already.
        sys.audit("open", file, mode, flags)
    if not flags & os.O_EXCL:
        try:
            status = await perform(ring, lambda ring, done: ring._stat_path(name, True, done), (file,))
        except FileNotFoundError:
            if not creates:
                raise
        except OSError:
            return None
        else:
            if not stat.S_ISREG(status.st_mode):
                return None
    if not creates:
        # Its name is in the cache now.
        return _open_cached(name, flags)
    fd: int = await perform(ring, lambda ring, done: ring._open_path(name, flags, 0o666, done), (file,), os.close)
    return fd


def adopt(fd: int, file: Any, mode: str) -> io.FileIO:
    """Return the file object of what was opened. It finds the descriptor open, and does the rest."""
    try:
        return io.FileIO(file, mode, opener=lambda *_: fd)
    except BaseException:
        os.close(fd)
        raise


async def open_file(
    context: FileContext[Any],
    file: Any,
    mode: str,
    buffering: int,
    encoding: str | None,
    errors: str | None,
    newline: str | None,
    closefd: bool,
    opener: Callable[[str, int], int] | None,
    executor: Any,
) -> Any:
    """Open a file: at once if its name is in the directory cache, else on the ring or in a thread. Then put the layers on it."""
    if not isinstance(file, int):
        file = os.fspath(file)
    letters, raw_mode, flags = letters_or_error(mode, buffering, encoding, errors, newline)
    if "b" not in letters:
        encoding = io.text_encoding(encoding)
    kind = fd = None
    name = encoded(file) if opener is None and closefd else None
    if name is not None:
        fd = _open_cached(name, flags)
        kind = None if fd is None else (True, False)
        if fd is None and executor is None:
            fd = await open_on_ring(file, name, raw_mode, flags)
    raw: io.FileIO
    if fd is not None:
        kind = kind or kind_of(fd)
        if kind[1]:
            raw = await create_in_thread(executor, io.FileIO.close, adopt, fd, file, raw_mode)
        else:
            raw = adopt(fd, file, raw_mode)
    else:
        # Of a number that is no file's, `FileIO` says what is wrong with it.
        is_number = isinstance(file, int) and opener is None
        kind = _glance_at_file(file) if is_number and 0 <= file < 1 << 31 else None
        if is_number and (kind is None or not kind[1]):
            raw = io.FileIO(file, raw_mode, closefd, opener)
        else:
            raw = await create_in_thread(executor, io.FileIO.close, io.FileIO, file, raw_mode, closefd, opener)
    shared = isinstance(file, int) or opener is not None
    try:
        context._obj = layer(raw, letters, mode, buffering, encoding, errors, newline, kind=kind, shared=shared)
    except BaseException:
        raw.close()
        raise
    return context._obj


@overload
def open(
    file: FileDescriptorOrPath,
    mode: OpenTextMode = "r",
    buffering: int = -1,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
    closefd: bool = True,
    opener: Callable[[str, int], int] | None = None,
    *,
    loop: asyncio.AbstractEventLoop | None = None,
    executor: Executor | None = None,
) -> FileContext[TextFile]: ...
@overload
def open(
    file: FileDescriptorOrPath,
    mode: OpenBinaryMode,
    buffering: Literal[0],
    encoding: None = None,
    errors: None = None,
    newline: None = None,
    closefd: bool = True,
    opener: Callable[[str, int], int] | None = None,
    *,
    loop: asyncio.AbstractEventLoop | None = None,
    executor: Executor | None = None,
) -> FileContext[RawFile]: ...
@overload
def open(
    file: FileDescriptorOrPath,
    mode: OpenBinaryModeReading,
    buffering: Literal[-1, 1] = -1,
    encoding: None = None,
    errors: None = None,
    newline: None = None,
    closefd: bool = True,
    opener: Callable[[str, int], int] | None = None,
    *,
    loop: asyncio.AbstractEventLoop | None = None,
    executor: Executor | None = None,
) -> FileContext[BufferedReader]: ...
@overload
def open(
    file: FileDescriptorOrPath,
    mode: OpenBinaryModeWriting,
    buffering: Literal[-1, 1] = -1,
    encoding: None = None,
    errors: None = None,
    newline: None = None,
    closefd: bool = True,
    opener: Callable[[str, int], int] | None = None,
    *,
    loop: asyncio.AbstractEventLoop | None = None,
    executor: Executor | None = None,
) -> FileContext[BufferedWriter]: ...
@overload
def open(
    file: FileDescriptorOrPath,
    mode: OpenBinaryModeUpdating,
    buffering: Literal[-1, 1] = -1,
    encoding: None = None,
    errors: None = None,
    newline: None = None,
    closefd: bool = True,
    opener: Callable[[str, int], int] | None = None,
    *,
    loop: asyncio.AbstractEventLoop | None = None,
    executor: Executor | None = None,
) -> FileContext[BufferedRandom]: ...
@overload
def open(
    file: FileDescriptorOrPath,
    mode: str,
    buffering: int = -1,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
    closefd: bool = True,
    opener: Callable[[str, int], int] | None = None,
    *,
    loop: asyncio.AbstractEventLoop | None = None,
    executor: Executor | None = None,
) -> FileContext[Any]: ...
def open(
    file: Any,
    mode: str = "r",
    buffering: int = -1,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
    closefd: bool = True,
    opener: Callable[[str, int], int] | None = None,
    *,
    loop: asyncio.AbstractEventLoop | None = None,
    executor: Executor | None = None,
) -> FileContext[Any]:
    """Open a file, as the builtin `open`: `f = await open(...)`, or `async with open(...) as f:`.

    The file belongs to the event loop that runs. `loop` is accepted for programs that were written for aiofiles, and
    `executor` opens the file where that has to wait.
    """
    return FileContext(open_file, file, mode, buffering, encoding, errors, newline, closefd, opener, executor)
