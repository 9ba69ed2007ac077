"""Binary files: what `io.FileIO`, `io.BufferedReader`, `io.BufferedWriter` and `io.BufferedRandom` do, awaited."""

from __future__ import annotations

import asyncio
import errno
import io
import operator
import os
import sys
import warnings
from collections.abc import AsyncIterator, Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Self, TypeVar

from ._descriptor import Descriptor, Lock

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

_AnyStr = TypeVar("_AnyStr", str, bytes)


def to_size(size: int | None) -> int:
    """Return a size as `io` takes it: None is -1."""
    if size is None:
        return -1
    try:
        return operator.index(size)
    except TypeError:
        raise TypeError(f"argument should be integer or None, not '{type(size).__name__}'") from None


def kind_of(argument: object) -> str:
    """Return what CPython's messages about a wrong argument say that it is."""
    return "None" if argument is None else type(argument).__name__


def view_of(data: ReadableBuffer) -> memoryview:
    """Return the bytes of an object, or raise `io`'s error where it has none."""
    try:
        view = memoryview(data)
    except TypeError:
        raise TypeError(f"a bytes-like object is required, not '{type(data).__name__}'") from None
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def target_of(buffer: WriteableBuffer, method: str) -> memoryview:
    """Return the bytes of an object that can be written to, or raise `io`'s error where it has none."""
    try:
        view = memoryview(buffer)
    except TypeError:
        view = None
    if view is None or view.readonly or not view.c_contiguous:
        raise TypeError(f"{method}() argument must be read-write bytes-like object, not {kind_of(buffer)}")
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


class File(Generic[_AnyStr]):
    """The base class of all files. Calls on one file take turns, in the order in which they were made."""

    _descriptor: Descriptor
    _lock: Lock
    _close_file: Callable[[], None]
    _closed = False
    _detached = False
    # The object of `tempfile`, if it has made the file.
    _temporary: Any = None

    def __init__(self, descriptor: Descriptor, close: Callable[[], None] | None = None) -> None:
        self._descriptor = descriptor
        self._lock = descriptor.lock
        self._close_file = close or descriptor.raw.close

    def __repr__(self) -> str:
        return f"<ringloop.files.{type(self).__name__} name={self.name!r} mode={self.mode!r}>"

    # What is collected last, when the interpreter exits, finds the globals of all modules set to None.
    _warn: Any = staticmethod(warnings.warn)
    _write_now: Any = staticmethod(os.write)

    def __del__(self) -> None:
        if self._closed or self._detached or not hasattr(self, "_descriptor"):
            return
        try:
            if self._descriptor.raw.closefd:
                self._warn(f"unclosed file {self!r}", ResourceWarning, source=self, stacklevel=2)
        finally:
            try:
                if self._descriptor.in_flight:
                    # Closing waits for these operations, and never comes if the loop is closed first.
                    self._flush_now()
            finally:
                self._descriptor.when_unused(self._close_now)

    def _close_now(self) -> None:
        """Flush and close, waiting as long as that takes."""
        try:
            self._flush_now()
        finally:
            self._closed = True
            self._close_file()

    def _flush_now(self) -> None:
        """Write what was buffered, waiting as long as that takes: the file was never closed."""

    def _check_open(self, message: str = "I/O operation on closed file.") -> None:
        if self._closed:
            raise ValueError(message)
        if self._detached:
            raise ValueError("raw stream has been detached")

    @property
    def closed(self) -> bool:
        """Whether it is closed."""
        self._check_attached()
        return self._closed

    def _check_attached(self) -> None:
        if self._detached:
            raise ValueError("raw stream has been detached")

    @property
    def name(self) -> Any:
        """The path, or the number, that it was opened by."""
        return getattr(self._temporary or self._descriptor.raw, "name", None)

    @property
    def delete(self) -> bool:
        """Whether a named temporary file is removed when it is closed."""
        if not hasattr(self._temporary, "delete"):
            raise AttributeError("this is not a named temporary file")
        return bool(self._temporary.delete)

    @property
    def mode(self) -> str:
        """The mode, as of the blocking file."""
        return self._descriptor.raw.mode

    @property
    def closefd(self) -> bool:
        """Whether closing it closes its descriptor."""
        return self._descriptor.raw.closefd

    def fileno(self) -> int:
        """Return the descriptor. The file closes it."""
        self._check_open("I/O operation on closed file")
        return self._descriptor.share()

    async def isatty(self) -> bool:
        """Return whether it is a terminal."""
        self._check_open("I/O operation on closed file")
        return not self._descriptor.is_regular and os.isatty(self._descriptor.fd)

    async def seekable(self) -> bool:
        """Return whether it has a position."""
        self._check_open("I/O operation on closed file")
        return self._descriptor.seekable

    def readable(self) -> Any:
        """Return whether it was opened for reading."""
        self._check_open("I/O operation on closed file")
        return self._descriptor.raw.readable()

    async def writable(self) -> bool:
        """Return whether it was opened for writing."""
        self._check_open("I/O operation on closed file")
        return self._descriptor.raw.writable()

    async def fsync(self, *, data_only: bool = False) -> None:
        """Flush the file's buffer, and then the kernel's, to the device: fsync(2), or fdatasync(2)."""
        async with self._lock:
            self._check_open()
            await self._flush()
            await self._descriptor.sync(data_only=data_only)

    async def flush(self) -> None:
        """Write what is buffered to the file."""
        async with self._lock:
            self._check_open()
            await self._flush()

    async def _flush(self) -> None:
        """Flush with the lock held."""

    async def close(self) -> None:
        """Flush and close. Calls that were made before are finished first. Once begun, it is not cancelled."""
        self._check_attached()
        if self._closed or self._close_at_once():
            return
        if asyncio.get_running_loop() is not self._descriptor.loop:
            raise RuntimeError("this file belongs to another event loop; close it in the loop that has opened it")
        # Its place in the queue is taken now: later calls find the file closed.
        await asyncio.shield(self._descriptor.loop.create_task(self._close(self._lock.reserve())))

    def _close_at_once(self) -> bool:
        """Close a file that needs no waiting."""
        descriptor = self._descriptor
        simple = (
            descriptor.closes_at_once
            and asyncio.get_running_loop() is descriptor.loop
            and not self._lock.taken
            and not descriptor.in_flight
            and self._close_file == descriptor.raw.close
        )
        if simple:
            self._closed = True
            descriptor.direct.close()
            descriptor.raw.close()
        return simple

    async def _close(self, turn: asyncio.Future[None] | None) -> None:
        await self._lock.wait(turn)
        try:
            if self._closed:
                return
            try:
                await self._flush()
            finally:
                self._closed = True
                await self._descriptor.close(self._close_file)
        finally:
            self._lock.release()

    async def __aenter__(self) -> Self:
        self._check_open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def __aiter__(self) -> AsyncIterator[_AnyStr]:
        self._check_open()
        return self

    async def __anext__(self) -> _AnyStr:
        line = await self.readline()
        if not line:
            raise StopAsyncIteration
        return line

    async def readline(self, size: int | None = -1, /) -> _AnyStr:
        """Read a line, with its end."""
        raise NotImplementedError

    async def readlines(self, hint: int | None = None, /) -> list[_AnyStr]:
        """Read lines until the end, or until there are more than `hint` bytes or characters of them."""
        self._check_open()
        limit = to_size(hint)
        lines: list[_AnyStr] = []
        total = 0
        async with self._lock:
            note = self._begin_lines()
            try:
                while line := await self._next_line(note):
                    lines.append(line)
                    total += len(line)
                    if 0 < limit < total:
                        break
            except UnicodeError:
                # As in `TextFile.read`.
                raise
            except BaseException:
                self._undo_lines(note, lines)
                raise
        return lines

    def _begin_lines(self) -> Any:
        """Refuse to read lines, or return what `_undo_lines` needs. All three are called with the lock held."""
        raise NotImplementedError

    async def _next_line(self, note: Any) -> _AnyStr:
        raise NotImplementedError

    def _undo_lines(self, note: Any, lines: list[_AnyStr]) -> None:
        """Let what was read be read again."""
        raise NotImplementedError

    async def write(self, data: Any, /) -> int:
        """Write, or put into the buffer."""
        raise NotImplementedError

    async def writelines(self, lines: Iterable[Any], /) -> None:
        """Write several pieces; they need no ends of lines."""
        self._check_open()
        for line in lines:
            await self.write(line)


WHENCES = frozenset((os.SEEK_SET, os.SEEK_CUR, os.SEEK_END, os.SEEK_DATA, os.SEEK_HOLE))


def check_whence(whence: int) -> None:
    """Refuse what lseek(2) has no name for."""
    if whence not in WHENCES:
        raise ValueError(f"whence value {whence} unsupported")


class _Binary(File[bytes]):
    """The base class of binary files."""

    def __init__(self, descriptor: Descriptor, close: Callable[[], None] | None = None) -> None:
        super().__init__(descriptor, close)
        self._direct_read = descriptor.direct.read

    async def pread(self, size: int, offset: int, /) -> bytes:
        """Read up to `size` bytes at an offset, as `os.pread`: past the buffer, and without moving the position."""
        if offset < 0 or size < 0:
            self._check_open()
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        data = self._direct_read(size, offset)
        if data is None:
            return await self._descriptor.pread(size, offset)
        return data

    async def pwrite(self, data: ReadableBuffer, offset: int, /) -> int:
        """Write at an offset, as `os.pwrite`: past the buffer, and without moving the position. Return how many bytes."""
        self._check_open()
        if offset < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        with view_of(data) as view:
            return await self._descriptor.pwrite(view, offset)

    def detach(self) -> io.FileIO:
        """Return the blocking raw file, which the caller closes. What was buffered must be flushed before."""
        self._check_open()
        if self._lock.taken or self._descriptor.in_flight:
            raise RuntimeError("the file is in use; await what is in progress before detach()")
        self._descriptor.put_back()
        self._detached = True
        self._descriptor.direct.close()
        return self._descriptor.raw


class RawFile(_Binary):
    """An unbuffered binary file, as `io.FileIO`. Each call is one operation of the kernel."""

    def _check_raw(self) -> None:
        self._check_open("I/O operation on closed file")

    def _check_readable(self) -> None:
        self._check_raw()
        if not self._descriptor.raw.readable():
            raise io.UnsupportedOperation("File not open for reading")

    def _check_writable(self) -> None:
        self._check_raw()
        if not self._descriptor.raw.writable():
            raise io.UnsupportedOperation("File not open for writing")

    async def read(self, size: int | None = -1, /) -> bytes | None:
        """Read up to `size` bytes, or all. None if a non-blocking file has nothing now."""
        size = to_size(size)
        async with self._lock:
            self._check_readable()
            return await (self._descriptor.read_all() if size < 0 else self._descriptor.read_fully(size))

    async def readall(self) -> bytes | None:
        """Read to the end."""
        async with self._lock:
            self._check_raw()
            if not self._descriptor.raw.readable():
                # It fails at once, with an error that depends on the version of Python.
                return self._descriptor.raw.readall()
            return await self._descriptor.read_all()

    async def readinto(self, buffer: WriteableBuffer, /) -> int | None:
        """Read into a buffer; return how many bytes."""
        # Before anything is read: what a read that fails has taken would be lost.
        with target_of(buffer, "readinto") as target:
            async with self._lock:
                self._check_readable()
                return await self._descriptor.readinto(target)

    async def readline(self, size: int | None = -1, /) -> bytes:
        """Read a line, byte by byte: what follows stays in the file."""
        limit = to_size(size)
        async with self._lock:
            self._check_raw()
            if limit != 0:
                self._check_readable()
            return await self._readline(limit)

    async def _readline(self, limit: int) -> bytes:
        line = bytearray()
        try:
            while limit < 0 or len(line) < limit:
                byte = await self._descriptor.read(1)
                if not byte:
                    break
                line += byte
                if byte == b"\n":
                    break
        except BaseException:
            self._descriptor.give_back(bytes(line))
            raise
        return bytes(line)

    def _begin_lines(self) -> None:
        self._check_readable()

    async def _next_line(self, note: None) -> bytes:
        return await self._readline(-1)

    def _undo_lines(self, note: None, lines: list[bytes]) -> None:
        self._descriptor.give_back(b"".join(lines))

    async def write(self, data: ReadableBuffer, /) -> int:
        """Write all, or what a full or non-blocking file takes; return how many bytes."""
        with view_of(data) as view:
            async with self._lock:
                self._check_writable()
                return await self._descriptor.write_all(view)  # type: ignore[return-value]

    async def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Move the position, and return it."""
        async with self._lock:
            self._check_raw()
            return await self._descriptor.seek(offset, whence)

    async def tell(self) -> int:
        """Return the file's position."""
        async with self._lock:
            self._check_raw()
            return self._descriptor.tell()

    async def truncate(self, size: int | None = None, /) -> int:
        """Set the length; the position stays."""
        async with self._lock:
            self._check_writable()
            if size is None:
                size = self._descriptor.tell()
            await self._descriptor.call(os.ftruncate, self._descriptor.fd, size)
            return size


def _blocked(count: int) -> BlockingIOError:
    """Return the error of a file that has no room now. Of what `write` was given, it has taken `count` bytes."""
    return BlockingIOError(errno.EAGAIN, "write could not complete without blocking", count)


class _Buffered(_Binary):
    """The base class of buffered files. The methods with an underscore are called with the lock held."""

    def __init__(self, descriptor: Descriptor, size: int, close: Callable[[], None] | None = None) -> None:
        super().__init__(descriptor, close)
        self._size = size
        # The data that was read in advance, and how much of it was given out.
        self._ahead = b""
        self._used = 0
        # The data to be written.
        self._out = bytearray()
        self._reads = descriptor.raw.readable()
        self._writes = descriptor.raw.writable()

    @property
    def raw(self) -> io.FileIO:
        """The blocking file below. Reading it moves this file's position."""
        self._descriptor.share()
        return self._descriptor.raw

    # Reading

    def _start_reading(self, operation: str, closed: str | None = None) -> None:
        if not self._reads:
            raise io.UnsupportedOperation(operation)
        if self._closed or self._detached:
            self._check_open(closed or f"{operation} of closed file")

    def _fill_now(self) -> bool:
        """Read ahead, if that needs no waiting: whether it was possible."""
        descriptor = self._descriptor
        if self._out or descriptor.left:
            return False
        data = self._direct_read(self._size, -1)
        if data is None:
            return False
        self._ahead, self._used = data, 0
        return True

    async def _fill(self) -> bool | None:
        """Read ahead when all was given out. False at the end, None if a non-blocking file has nothing."""
        if not self._fill_now():
            if self._out:
                await self._flush()
            data = await self._descriptor.read(self._size)
            self._ahead, self._used = data or b"", 0
            if data is None:
                return None
        return bool(self._ahead)

    def _take(self, size: int) -> bytes:
        start = self._used
        data = self._ahead[start : start + size]
        self._used = start + len(data)
        return data

    async def _read(self, size: int) -> bytes | None:
        have = len(self._ahead) - self._used
        if 0 <= size <= have:
            return self._take(size)
        if self._out:
            await self._flush()
        if size < 0:
            rest = await self._descriptor.read_all()
            data = self._take(have)
            self._ahead, self._used = b"", 0
            if rest is None and not data:
                return None
            return data + rest if data and rest else data or rest or b""
        pieces = [self._ahead[self._used :]] if have else []
        try:
            while have < size:
                want = size - have
                piece = await self._descriptor.read(want if want >= self._size else self._size)
                if not piece:
                    if piece is None and not have:
                        return None
                    break
                pieces.append(piece)
                have += len(piece)
            return self._join(pieces, have - size)
        except BaseException:
            self._keep(pieces)
            raise

    def _join(self, pieces: list[bytes], surplus: int) -> bytes:
        """Return what was read, without `surplus` bytes at the end of the last piece, which stay in the buffer."""
        ahead = pieces[-1] if surplus > 0 else b""
        used = len(ahead) - surplus if ahead else 0
        data = b"".join([*pieces[:-1], ahead[:used]] if ahead else pieces)
        self._ahead, self._used = ahead, used
        return data

    def _keep(self, pieces: list[bytes]) -> None:
        """Let what a call has read that was cancelled, or has failed, be read again."""
        self._ahead, self._used = b"".join(pieces), 0

    def _unread(self, count: int) -> None:
        """Move a position that nobody else has back by this number of bytes that were given out."""
        count += len(self._ahead) - self._used
        self._ahead, self._used = b"", 0
        self._descriptor.move_back(count)

    async def _read1(self, size: int) -> bytes | None:
        if size < 0:
            size = self._size
        if self._used < len(self._ahead):
            return self._take(size)
        self._ahead, self._used = b"", 0
        if self._out:
            await self._flush()
        return await self._descriptor.read(size)

    async def _read_once(self, size: int, have: int) -> bytes | None:
        """Read what was read ahead, and what one read gives if that is nothing, or much is wanted: as `readinto1`."""
        rest = size - have
        if rest > self._size or not have:
            if self._out:
                await self._flush()
            piece = await self._descriptor.read(max(rest, self._size))
            if piece is None and not have:
                return None
            self._ahead, self._used = self._ahead[self._used :] + (piece or b""), 0
        return self._take(size)

    def _read1_now(self, size: int) -> bytes | None:
        """Read as `_read1`, or return None if that might wait."""
        if self._used < len(self._ahead):
            return self._take(size)
        if self._out or self._descriptor.left:
            return None
        return self._direct_read(size, -1)

    async def _readline(self, limit: int) -> bytes:
        start = self._used
        end = self._ahead.find(b"\n", start) + 1
        have = (end or len(self._ahead)) - start
        if end or 0 <= limit <= have:
            return self._take(have if limit < 0 else min(have, limit))
        if self._out:
            await self._flush()
        pieces = [self._ahead[start:]] if have else []
        try:
            while True:
                piece = self._direct_read(self._size, -1) if not self._descriptor.left else None
                if piece is None:
                    piece = await self._descriptor.read(self._size)
                if not piece:
                    return self._join(pieces, 0)
                pieces.append(piece)
                end = piece.find(b"\n") + 1
                size = have + (end or len(piece))
                have += len(piece)
                if 0 <= limit <= size:
                    return self._join(pieces, have - limit)
                if end:
                    return self._join(pieces, have - size)
        except BaseException:
            self._keep(pieces)
            raise

    def _refuse_to_read(self, name: str, size: int | None) -> NoReturn:
        if sys.version_info >= (3, 12):
            # As `io.BufferedIOBase` does, where not even None is a size.
            operator.index(size)  # type: ignore[arg-type]
        raise io.UnsupportedOperation(name)

    async def read(self, size: int | None = -1, /) -> bytes | None:
        """Read `size` bytes, fewer at the end, or all. None if a non-blocking file has nothing now."""
        if not self._reads:
            self._refuse_to_read("read", size)
        size = to_size(size)
        if size < -1:
            raise ValueError("read length must be non-negative or -1")
        lock = self._lock
        if turn := lock.reserve():
            await lock.wait(turn)
        try:
            if self._closed or self._detached:
                self._check_open("read of closed file")
            end = self._used + size
            if size >= 0 and end <= len(self._ahead):
                data = self._ahead[self._used : end]
                self._used = end
                return data
            if size < 0 and not self._out and self._used == len(self._ahead) and not self._descriptor.left:
                rest = self._descriptor.direct.read_all()
                if rest is not None:
                    self._ahead, self._used = b"", 0
                    return rest
            return await self._read(size)
        finally:
            lock.release()

    async def read1(self, size: int = -1, /) -> bytes:
        """Read up to `size` bytes with at most one read of the file. None of them also if a non-blocking file has nothing."""
        if not self._reads:
            self._refuse_to_read("read1", size)
        size = operator.index(size)
        async with self._lock:
            self._start_reading("read1", "read of closed file")
            return await self._read1(size) or b""

    async def readinto(self, buffer: WriteableBuffer, /) -> int | None:
        """Read into a buffer, fewer bytes than it has only at the end, or if a non-blocking file has no more; return how many.

        None if that has nothing now.
        """
        return await self._readinto(buffer, once=False)

    async def readinto1(self, buffer: WriteableBuffer, /) -> int | None:
        """Read into a buffer, with at most one read of the file; return how many bytes."""
        return await self._readinto(buffer, once=True)

    async def _readinto(self, buffer: WriteableBuffer, *, once: bool) -> int | None:
        if not self._reads:
            raise io.UnsupportedOperation("read1" if once else "read")
        with target_of(buffer, "readinto1" if once else "readinto") as target:
            async with self._lock:
                self._start_reading("readinto")
                size = len(target)
                have = len(self._ahead) - self._used
                if not once and not self._out and not have and size >= self._size and not self._descriptor.left:
                    return await self._readinto_directly(target)
                data = await (self._read_once(size, have) if once else self._read(size))
                if data is None:
                    return None
                target[: len(data)] = data
                return len(data)

    async def _readinto_directly(self, target: memoryview) -> int | None:
        """Fill it past the buffer, which is empty."""
        done = 0
        try:
            while done < len(target):
                count = await self._descriptor.readinto(target[done:])
                done += count or 0
                # Of a regular file, one call gives all there is.
                if not count or self._descriptor.is_regular:
                    return done if done or count is not None else None
        except BaseException:
            self._keep([bytes(target[:done])])
            raise
        return done

    async def readline(self, size: int | None = -1, /) -> bytes:
        """Read a line, with its end."""
        limit = to_size(size)
        if not self._reads:
            if limit == 0:
                return b""
            raise io.UnsupportedOperation("read")
        lock = self._lock
        if turn := lock.reserve():
            await lock.wait(turn)
        try:
            self._start_reading("readline")
            return await self._readline(limit)
        finally:
            lock.release()

    def _begin_lines(self) -> None:
        self._start_reading("read", "readline of closed file")

    async def _next_line(self, note: None) -> bytes:
        return await self._readline(-1)

    def _undo_lines(self, note: None, lines: list[bytes]) -> None:
        self._keep([*lines, self._ahead[self._used :]])

    async def __anext__(self) -> bytes:
        if not self._lock.taken and not self._closed and not self._detached:
            end = self._ahead.find(b"\n", self._used) + 1
            if end:
                line = self._ahead[self._used : end]
                self._used = end
                return line
        line = await self.readline()
        if not line:
            raise StopAsyncIteration
        return line

    async def _peek(self) -> bytes:
        async with self._lock:
            self._start_reading("peek")
            if self._used >= len(self._ahead):
                await self._fill()
            return self._ahead[self._used : self._used + self._size]

    # Writing

    async def _flush(self) -> None:
        while self._out:
            if not await self._descriptor.write(self._out, self._written):
                raise _blocked(0)

    def _written(self, count: int | None) -> None:
        del self._out[: count or 0]

    def _flush_now(self) -> None:
        # What an operation writes is not written again, even if the loop was closed before it was over.
        while self._out and self._descriptor.flushing is None:
            # Not `fd`: a collector may have closed the raw file first, and another file may have its number.
            self._written(self._write_now(self._descriptor.raw.fileno(), self._out))

    def _keeps(self, size: int) -> bool:
        """Return whether an empty buffer would take this many bytes; from Python 3.13 on, `io` writes what would fill it."""
        return size < self._size if sys.version_info >= (3, 13) else size <= self._size

    async def _write(self, view: memoryview) -> int:
        size = view.nbytes
        if self._ahead:
            self._drop_ahead()
        out = self._out
        if len(out) + size <= self._size and self._keeps(size):
            out += view
            return size
        try:
            await self._flush()
        except BlockingIOError:
            # Of these data, the buffer takes what it has room for.
            room = max(self._size - len(out), 0)
            out += view[:room]
            if size <= room:
                return size
            raise _blocked(room) from None
        if self._keeps(size):
            out += view
            return size
        # From here on the data count as written: what the kernel has not taken when the call is cancelled goes on.
        out += view
        try:
            await self._flush()
        except BlockingIOError:
            # The buffer keeps of the rest what fits.
            refused = len(out) - self._size
            if refused <= 0:
                return size
            del out[self._size :]
            raise _blocked(size - refused) from None
        except OSError:
            if len(out) < size and self._keeps(len(out)):
                # As in `io`, the buffer takes what is left when the kernel has written a part, and the next flush fails.
                return size
            # It belongs to this call, which has failed.
            out.clear()
            raise
        return size

    def _drop_ahead(self) -> None:
        """Forget what was read in advance: the kernel's position becomes this file's."""
        unused = len(self._ahead) - self._used
        self._descriptor.put_back()
        if unused and self._descriptor.seekable:
            os.lseek(self._descriptor.fd, -unused, os.SEEK_CUR)
        self._ahead, self._used = b"", 0

    async def write(self, data: ReadableBuffer, /) -> int:
        """Write all, or put it into the buffer; return how many bytes that are.

        BlockingIOError if a non-blocking file has no room; its `characters_written` are the bytes that were written or put into
        the buffer.
        """
        if not self._writes:
            raise io.UnsupportedOperation("write")
        view = view_of(data)
        lock = self._lock
        if turn := lock.reserve():
            await lock.wait(turn)
        try:
            if self._closed or self._detached:
                self._check_open("write to closed file")
            return await self._write(view)
        finally:
            lock.release()
            view.release()

    # Both

    async def flush(self) -> None:
        """Write what is buffered to the file."""
        async with self._lock:
            self._check_open("flush of closed file" if self._writes else "I/O operation on closed file.")
            await self._flush()
            if self._writes and self._ahead:
                self._drop_ahead()

    def _tell(self) -> int:
        return self._descriptor.tell() - (len(self._ahead) - self._used) + len(self._out)

    async def tell(self) -> int:
        """Return the file's position, as its reader and writer see it."""
        async with self._lock:
            self._check_open("I/O operation on closed file")
            return self._tell()

    async def _seek(self, offset: int, whence: int) -> int:
        if self._out:
            await self._flush()
        if whence == os.SEEK_CUR:
            offset -= len(self._ahead) - self._used
        position = await self._descriptor.seek(offset, whence)
        self._ahead, self._used = b"", 0
        return position

    async def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Move the position, and return it."""
        check_whence(whence)
        lock = self._lock
        if turn := lock.reserve():
            await lock.wait(turn)
        try:
            self._check_open("seek of closed file")
            if not self._descriptor.seekable:
                raise io.UnsupportedOperation("File or stream is not seekable.")
            return await self._seek(offset, whence)
        finally:
            lock.release()

    async def truncate(self, size: int | None = None, /) -> int:
        """Set the length; the position stays."""
        async with self._lock:
            self._check_open("truncate of closed file")
            return await self._truncate(size)

    async def _truncate(self, size: int | None) -> int:
        if not self._writes:
            raise io.UnsupportedOperation("truncate")
        await self._flush()
        if self._ahead:
            self._drop_ahead()
        if size is None:
            size = self._tell()
        await self._descriptor.call(os.ftruncate, self._descriptor.fd, size)
        return size

    def detach(self) -> io.FileIO:
        """Return the blocking raw file, which the caller closes. What is buffered for writing must be flushed before."""
        self._check_open()
        if self._out:
            raise RuntimeError("flush() before detach(): there are data that were not written")
        return super().detach()


class BufferedReader(_Buffered):
    """A binary file for reading, as `io.BufferedReader`."""

    async def peek(self, size: int = 0, /) -> bytes:
        """Return what was read in advance, or what one read gives, without moving the position."""
        return await self._peek()


class BufferedWriter(_Buffered):
    """A binary file for writing, as `io.BufferedWriter`."""


class BufferedRandom(_Buffered):
    """A binary file for both, as `io.BufferedRandom`."""

    async def peek(self, size: int = 0, /) -> bytes:
        """Return what was read in advance, or what one read gives, without moving the position."""
        return await self._peek()
