"""A file's descriptor: the calls that it does at once, those that must wait, and who may use it meanwhile.

Reads from the page cache and the like are done at once, on the loop's thread (`_core.DirectFile`). What would have to wait
for a device is done by the driver on a ringloop loop, and in a thread of the loop's executor on others.

A call that is cancelled while the kernel works for it ends at once. The kernel's operation goes on: its buffer is not the
caller's, and the file stays locked until it is over. Of a file with a position, a cancelled read moves nothing. What was
read from a pipe is kept for the next read. A cancelled write happens.

The position is the kernel's, and a file that others may have is read and written as by read(2) and write(2): the kernel
moves it together with the transfer. io_uring does not do that. It remembers the position from when the operation began,
and sets the position when it is over, so what others do meanwhile is lost or done twice (io_kiocb_update_pos and kiocb_done
in io_uring/rw.c). So io_uring's operations have an offset, and are only used for files that nobody else has. Others may
have a file from when its number was asked for, or the process has forked, and if it was opened by a number or an opener.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import fcntl
import io
import os
import stat
from _thread import get_ident
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .._core import DirectFile, FileOperation, _burst_is_over, _count_fork, _end_burst, _glance_at_file
from .._loop import EventLoop

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

DIRECT_MAX = 2 * 1024 * 1024
"""The bytes that one direct call transfers at most; as in files/direct.rs."""
OPERATION_MAX = 8 * 1024 * 1024
"""The bytes that one operation of the kernel reads at most."""
STREAM_MAX = 256 * 1024
"""The bytes that one operation is given to write to a pipe or the like, which has room for 64 KB: each makes a copy."""


os.register_at_fork(after_in_parent=_count_fork, after_in_child=_count_fork)


def kind_of(fd: int) -> tuple[bool, bool]:
    """Return whether a file is a regular one, and whether its file system asks a server or another process.

    Any call on such a file may wait, even one that would not have to wait for a device.
    """
    return _glance_at_file(fd) or (stat.S_ISREG(os.fstat(fd).st_mode), False)


async def let_the_loop_turn() -> None:
    """Suspend until the loop has turned, if direct calls have kept it from that for too long."""
    if _burst_is_over():
        await asyncio.sleep(0)
        _end_burst()


def call_with(_raw: io.FileIO, function: Callable[..., Any], *args: Any) -> Any:
    """Call a function, in a thread that keeps the file open, even if its loop is closed and nobody has it any longer."""
    return function(*args)


def check_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Refuse a call from another event loop."""
    if asyncio.get_running_loop() is not loop:
        raise RuntimeError("this file belongs to another event loop; open it in the loop that uses it")


class Lock:
    """Who uses a file. Calls take turns, in the order in which they came."""

    __slots__ = ("loop", "pending", "taken", "thread", "waiters")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        # The thread that the loop ran in when it was last seen here.
        self.thread = get_ident()
        self.taken = False
        self.waiters: collections.deque[asyncio.Future[None]] | None = None
        self.pending: Pending | None = None

    def reserve(self) -> asyncio.Future[None] | None:
        """Take it, or take a place in the queue: what is to be waited for then, with `wait`."""
        # Looking for the loop is slower. Another loop in this thread does no harm: its call is refused when it uses the file.
        if get_ident() != self.thread:
            check_loop(self.loop)
            self.thread = get_ident()
        if not self.taken:
            self.taken = True
            return None
        check_loop(self.loop)
        waiter = self.loop.create_future()
        if self.waiters is None:
            self.waiters = collections.deque()
        self.waiters.append(waiter)
        return waiter

    async def wait(self, waiter: asyncio.Future[None] | None) -> None:
        """Wait until the one who had it has passed it on."""
        if waiter is None:
            return
        try:
            await waiter
        except BaseException:
            if waiter.done() and not waiter.cancelled():
                self.release()
            elif self.waiters is not None and waiter in self.waiters:
                self.waiters.remove(waiter)
            raise

    async def acquire(self) -> None:
        """Take it, when it is this call's turn."""
        await self.wait(self.reserve())

    def release(self) -> None:
        """Pass it on, unless the kernel still works for a call that was cancelled; its end then passes it on."""
        if self.pending is not None:
            return
        while self.waiters:
            waiter = self.waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self.taken = False

    async def __aenter__(self) -> None:
        await self.acquire()

    async def __aexit__(self, *_: object) -> None:
        self.release()


class Pending:
    """An operation of the kernel, or a call in a thread. Whoever waits for it may be cancelled; it goes on.

    `effect` gets what it came to, or None if it failed. `keep` gets the same only if nobody waited for it.
    """

    __slots__ = ("done", "effect", "error", "inner", "keep", "lock", "loop", "value", "waiter")

    def __init__(self, loop: asyncio.AbstractEventLoop, effect: Callable[[Any], None] | None = None) -> None:
        self.loop = loop
        self.effect = effect
        self.keep: Callable[[Any], None] | None = None
        self.inner: Any = None
        self.done = False
        self.value: Any = None
        self.error: BaseException | None = None
        self.waiter: asyncio.Future[None] | None = None
        self.lock: Lock | None = None

    def take(self, inner: Any) -> None:
        """Take the result of what was waited for."""
        try:
            self.value = inner.result()
        except BaseException as error:
            self.error = error

    def complete(self, inner: Any) -> None:
        """Take the result, which is the last."""
        self.take(inner)
        self.end()

    def end(self) -> None:
        """Be over. It has its effect on the file now, whether or not somebody still waits."""
        self.done = True
        if self.effect is not None:
            try:
                self.effect(self.value if self.error is None else None)
            except OSError as error:
                # The descriptor was closed behind the file's back.
                self.error = self.error or error
        if self.keep is not None and self.error is None:
            self.keep(self.value)
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)
        if self.lock is not None:
            lock, self.lock = self.lock, None
            lock.pending = None
            lock.release()

    def is_over(self) -> bool:
        """Return whether the result is there."""
        return self.done

    async def wait(
        self, lock: Lock | None = None, *, cancel: bool = False, keep: Callable[[Any], None] | None = None
    ) -> Any:
        """Wait for the result. If that is cancelled, `lock` stays taken until the operation is over.

        With `cancel` the kernel is asked to end it then. `keep` gets the value that nobody waits for.
        """
        if not self.done:
            self.waiter = self.loop.create_future()
            try:
                await self.waiter
            except BaseException:
                if self.is_over():
                    if keep is not None and self.error is None:
                        keep(self.value)
                else:
                    self.keep = keep
                    if lock is not None:
                        self.lock, lock.pending = lock, self
                    if cancel and isinstance(self.inner, FileOperation):
                        self.inner.cancel()
                raise
            finally:
                self.waiter = None
        if self.error is not None:
            try:
                raise self.error
            finally:
                self.error = None
        return self.value


class StreamWrite:
    """Writes everything to a file without a position: as write(2), which waits until there was room for it.

    An operation ends when it has written something. What was written before an error counts.
    """

    __slots__ = ("descriptor", "pending", "rest", "written")

    def __init__(self, descriptor: Descriptor, data: bytes, effect: Callable[[int | None], None] | None) -> None:
        self.descriptor = descriptor
        self.pending = descriptor.expect(effect)
        self.rest = memoryview(data)
        self.written = 0

    def go_on(self) -> Any:
        """Start the next operation."""
        descriptor, piece = self.descriptor, self.rest[:STREAM_MAX]
        if descriptor.native_loop is not None:
            return descriptor.native_loop._write_file(descriptor.fd, piece, None, self.complete)
        future = descriptor.loop.run_in_executor(None, call_with, descriptor.raw, os.write, descriptor.fd, piece)
        future.add_done_callback(self.complete)
        return future

    def complete(self, inner: Any) -> None:
        """Take the result of one, and start the next until all is written."""
        pending = self.pending
        pending.take(inner)
        if pending.error is None:
            self.written += pending.value
            self.rest = self.rest[pending.value :]
            if self.rest:
                try:
                    pending.inner = self.go_on()
                    return
                except BaseException as error:
                    pending.error = error
        if self.written and isinstance(pending.error, OSError):
            pending.error = None
        pending.value = self.written
        self.descriptor.finish(pending)


class Descriptor:
    """An open file: its descriptor, its position, and the operations that are in progress on it."""

    __slots__ = (
        "appends",
        "closes_at_once",
        "direct",
        "drained",
        "fd",
        "flushing",
        "in_flight",
        "is_regular",
        "is_remote",
        "left",
        "lock",
        "loop",
        "native_loop",
        "passed",
        "raw",
        "ring",
        "seekable",
        "unused",
        "writing",
    )

    def __init__(
        self,
        raw: io.FileIO,
        loop: asyncio.AbstractEventLoop,
        kind: tuple[bool, bool] | None = None,
        *,
        shared: bool = True,
    ) -> None:
        self.raw = raw
        self.loop = loop
        self.fd = raw.fileno()
        self.is_regular, self.is_remote = kind or kind_of(self.fd)
        native_loop = loop if isinstance(loop, EventLoop) else None
        self.ring = native_loop if native_loop is not None and native_loop.backend == "io_uring" else None
        if self.is_remote and self.ring is not None:
            # io_uring first asks whether it can be polled (io_file_supports_nowait in io_uring/rw.c), which FUSE asks its server.
            native_loop = self.ring = None
        self.native_loop = native_loop
        self.direct = DirectFile(self.fd, self.is_regular, self.is_remote, shared, loop)
        self.seekable = self.is_regular or raw.seekable()
        # A file that was only read has nothing to write back when it is closed.
        self.closes_at_once = not raw.writable() and not self.is_remote
        self.appends = raw.writable() and bool(fcntl.fcntl(self.fd, fcntl.F_GETFL) & os.O_APPEND)
        self.lock = Lock(loop)
        self.left = bytearray()
        self.in_flight = 0
        # The operation in progress that writes what was buffered, and says how much it was.
        self.flushing: Pending | None = None
        self.drained: asyncio.Future[None] | None = None
        # Closes the file once nobody refers to it. A list, so that only one of two threads can pop it.
        self.unused: list[Callable[[], None]] | None = None
        # The write of io_uring: where it begins and ends, and who hears how much it was. `passed` if the position was
        # moved behind it meanwhile.
        self.writing: tuple[int, int, Callable[[int | None], None] | None] | None = None
        self.passed = False

    def share(self) -> int:
        """Return the number, to somebody who may give the file to others. They find it behind what is being written."""
        self.direct.share()
        if self.writing is not None and not self.passed:
            os.lseek(self.fd, self.writing[1], os.SEEK_SET)
            self.passed = True
        return self.fd

    def when_unused(self, close: Callable[[], None]) -> None:
        """Close it, for nobody has it any longer: at once, or when the operations in progress are over.

        They were given the number of the descriptor. Once it is closed, another file may have that number. If the loop
        is closed before that, the file is closed when it is collected; calls still running in threads keep it open until then.
        """
        # In this order, as the last operation may end in the loop's thread while a collector runs this in another one.
        self.unused = [close]
        if not self.in_flight:
            self.close_unused()

    def close_unused(self) -> None:
        """Close the file that nobody has any longer, once."""
        assert self.unused is not None
        try:
            close = self.unused.pop()
        except IndexError:
            return
        close()

    def start(
        self, start: Callable[[Callable[[Any], None]], Any], effect: Callable[[Any], None] | None = None
    ) -> Pending:
        """Start an operation, with a function that is given the callback."""
        pending = self.expect(effect)

        def complete(inner: Any) -> None:
            pending.take(inner)
            self.finish(pending)

        self.begin(pending, lambda: start(complete))
        return pending

    def begin(self, pending: Pending, start: Callable[[], Any]) -> None:
        """Let an operation be in progress. It is counted first, as a collector in another thread may find the file unused."""
        self.in_flight += 1
        if pending.effect is not None:
            self.flushing = pending
        try:
            pending.inner = start()
        except BaseException:
            self.forget(pending)
            raise

    def forget(self, pending: Pending) -> None:
        """Let an operation be in progress no longer."""
        if self.flushing is pending:
            self.flushing = None
        self.in_flight -= 1

    def expect(self, effect: Callable[[Any], None] | None) -> Pending:
        """Return what will have the result of an operation."""
        check_loop(self.loop)
        return Pending(self.loop, effect)

    def finish(self, pending: Pending) -> None:
        """Let an operation be over that was in progress."""
        try:
            pending.end()
        finally:
            self.forget(pending)
        if self.in_flight:
            return
        if self.drained is not None and not self.drained.done():
            self.drained.set_result(None)
        if self.unused:
            self.close_unused()

    def start_call(
        self, function: Callable[..., Any], *args: Any, effect: Callable[[Any], None] | None = None
    ) -> Pending:
        """Start a call in a thread."""

        def start(complete: Callable[[Any], None]) -> Any:
            future = self.loop.run_in_executor(None, call_with, self.raw, function, *args)
            future.add_done_callback(complete)
            return future

        return self.start(start, effect)

    async def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function in a thread, with the file's lock held."""
        return await self.start_call(function, *args).wait(self.lock)

    def start_read(self, size: int, offset: int | None) -> Pending:
        """Read in the kernel's time: without an offset, at the file's position, which moves."""
        loop = self.native_loop if offset is not None or self.ring is None or not self.seekable else None
        size = min(size, OPERATION_MAX)
        if loop is not None:
            return self.start(lambda complete: loop._read_file(self.fd, size, offset, complete))
        if offset is None:
            return self.start_call(os.read, self.fd, size)
        return self.start_call(os.pread, self.fd, size, offset)

    def start_write(
        self, data: ReadableBuffer, offset: int | None, effect: Callable[[int | None], None] | None
    ) -> Pending:
        """Write a copy of the data in the kernel's time, in the same way."""
        loop = self.native_loop if offset is not None or self.ring is None or not self.seekable else None
        if loop is not None:
            return self.start(lambda complete: loop._write_file(self.fd, data, offset, complete), effect)
        if offset is None:
            return self.start_call(os.write, self.fd, bytes(data), effect=effect)
        return self.start_call(os.pwrite, self.fd, bytes(data), offset, effect=effect)

    def start_stream_write(self, data: ReadableBuffer, effect: Callable[[int | None], None] | None) -> Pending:
        """Write a copy of all the data to a file without a position, in the kernel's time."""
        stream = StreamWrite(self, bytes(data), effect)
        self.begin(stream.pending, stream.go_on)
        return stream.pending

    def keep(self, data: bytes) -> None:
        """Keep what a cancelled read has taken from a pipe, or from a file that others have."""
        self.left += data

    def give_back(self, data: bytes) -> None:
        """Undo the reads of a call that was cancelled, or failed, before it had all: the next read gives these bytes."""
        if not self.seekable or self.direct.is_shared():
            self.left[:0] = data
        elif data:
            self.move_back(len(data))

    def read_again(self, count: int, offset: int) -> bytes:
        """Read once more what a call has just read that was cancelled, or failed: from the page cache, mostly."""
        pieces: list[bytes] = []
        # As in `move_back`.
        with contextlib.suppress(OSError):
            while count and (piece := os.pread(self.fd, count, offset)):
                pieces.append(piece)
                count -= len(piece)
                offset += len(piece)
        return b"".join(pieces)

    def put_back(self) -> None:
        """Move the file's position, if it has one, to where its user believes that it is: before the bytes that were kept."""
        if self.left and self.seekable:
            count = len(self.left)
            self.left.clear()
            self.move_back(count)

    def move_back(self, count: int) -> None:
        """Move the file's position towards its beginning."""
        # It fails if the descriptor was closed behind the file's back.
        with contextlib.suppress(OSError):
            os.lseek(self.fd, -count, os.SEEK_CUR)

    def tell(self) -> int:
        """Return where the user believes that the file is; the lock is held."""
        self.put_back()
        return os.lseek(self.fd, 0, os.SEEK_CUR)

    async def seek(self, offset: int, whence: int) -> int:
        """Move the file's position from where the user believes that it is; the lock is held."""
        self.put_back()
        if self.is_remote and whence not in (os.SEEK_SET, os.SEEK_CUR):
            position: int = await self.call(os.lseek, self.fd, offset, whence)
            return position
        return os.lseek(self.fd, offset, whence)

    async def read(self, size: int) -> bytes | None:
        """Read up to `size` bytes at the file's position; the lock is held. None if a non-blocking file has nothing."""
        if size == 0:
            return b""
        if self.left:
            data = bytes(self.left[:size])
            del self.left[:size]
            return data
        await let_the_loop_turn()
        now = self.direct.read(min(size, DIRECT_MAX), -1)
        if now is not None:
            return now
        try:
            if self.never_waits():
                return os.read(self.fd, size)
            if not self.seekable or self.direct.is_shared():
                data = await self.start_read(size, None).wait(self.lock, cancel=True, keep=self.keep)
                return bytes(data)
            offset = os.lseek(self.fd, 0, os.SEEK_CUR)
            data = await self.start_read(size, offset).wait(self.lock, cancel=True)
        except BlockingIOError:
            return None
        os.lseek(self.fd, offset + len(data), os.SEEK_SET)
        return bytes(data)

    async def read_fully(self, size: int) -> bytes | None:
        """Read `size` bytes of a regular file, fewer only at its end; of other files what one read gives."""
        first = await self.read(size)
        if not first or len(first) == size or not self.is_regular:
            return first
        pieces, rest = [first], size - len(first)
        try:
            while rest:
                piece = await self.read(rest)
                if not piece:
                    break
                pieces.append(piece)
                rest -= len(piece)
        except BaseException:
            self.give_back(b"".join(pieces))
            raise
        return b"".join(pieces)

    async def read_all(self) -> bytes | None:
        """Read to the end; the lock is held."""
        size = io.DEFAULT_BUFFER_SIZE
        if self.is_regular:
            data = self.direct.read_all() if not self.left else None
            if data is not None:
                return data
            status = await self.call(os.fstat, self.fd) if self.is_remote else os.fstat(self.fd)
            left = status.st_size - os.lseek(self.fd, 0, os.SEEK_CUR)
            # One more: a read that gives nothing has found the end. The size may say nothing: that of files in /proc is 0, and
            # of a sysctl's number only one that is read at once is given.
            if left > 0:
                size = left + 1
        pieces: list[bytes] = []
        try:
            while piece := await self.read(size):
                pieces.append(piece)
                size = max(size - len(piece), io.DEFAULT_BUFFER_SIZE)
        except BaseException:
            self.give_back(b"".join(pieces))
            raise
        return None if piece is None and not pieces else b"".join(pieces)

    async def readinto(self, target: memoryview) -> int | None:
        """Read into a buffer; the lock is held."""
        count = None
        if not self.left and not _burst_is_over():
            count = self.direct.readinto(target[:DIRECT_MAX], -1)
            if count is not None and (count == len(target) or (count < DIRECT_MAX and not self.direct.is_shared())):
                return count
        done = count or 0
        try:
            data = await self.read_fully(len(target) - done)
        except BaseException:
            self.give_back(bytes(target[:done]))
            raise
        if data is None:
            return done or None
        target[done : done + len(data)] = data
        return done + len(data)

    async def write(
        self, data: bytearray | memoryview, taken: Callable[[int | None], None] | None = None
    ) -> int | None:
        """Write at the file's position; the lock is held. `taken` hears how many bytes, also if the call is cancelled.

        Of an operation that fails it hears None.
        """
        await let_the_loop_turn()
        if self.left:
            self.put_back()
        count = self.direct.write(data, -1)
        if count is None:
            if self.never_waits():
                count = self.write_now(data)
                if count is None:
                    return None
            else:
                written: int = await self.start_write_here(data, taken).wait(self.lock)
                return written
        if taken is not None:
            taken(count)
        return count

    async def write_all(self, data: memoryview) -> int | None:
        """Write all, unless the file is full, or does not block; the lock is held. What was written before an error counts."""
        await let_the_loop_turn()
        if self.left:
            self.put_back()
        done = self.direct.write(data, -1)
        if done == len(data):
            return done
        if self.never_waits():
            return self.write_now(data) if done is None else done
        try:
            rest: int = await self.start_write_here(data[done:] if done else data, None).wait(self.lock)
        except OSError:
            if done:
                return done
            raise
        return (done or 0) + rest

    def write_now(self, data: bytearray | memoryview) -> int | None:
        """Write to a file that does not block. None if it has no room."""
        try:
            return os.write(self.fd, data)
        except BlockingIOError:
            return None

    def never_waits(self) -> bool:
        """Return whether it is not a file on a disk, and was made non-blocking."""
        return not self.is_regular and not os.get_blocking(self.fd)

    def start_write_here(self, data: bytearray | memoryview, taken: Callable[[int | None], None] | None) -> Pending:
        """Write a copy of the data at the file's position, in the kernel's time, and move that."""
        if not self.seekable:
            return self.start_stream_write(data, taken)
        ring = self.ring
        if ring is None or (self.direct.is_shared() and not (self.appends and not self.raw.readable())):
            return self.start_write(data, None, taken)
        begin = os.lseek(self.fd, 0, os.SEEK_CUR)
        if not self.appends:
            pending = self.start_write(data, begin, self.settle)
            self.writing, self.passed = (begin, begin + len(data), taken), False
            return pending

        def settle(count: int | None) -> None:
            # The kernel has moved the position to the end of what it has written, except after an error in the middle,
            # and if the device has written it behind the kernel's back (O_DIRECT).
            if count and os.lseek(self.fd, 0, os.SEEK_CUR) == begin:
                os.lseek(self.fd, 0, os.SEEK_END)
            if taken is not None:
                taken(count)

        return self.start(lambda complete: ring._write_file(self.fd, data, None, complete), settle)

    def settle(self, count: int | None) -> None:
        """Move the file's position behind what was written. Others who were told to go on behind all of it may have done so."""
        assert self.writing is not None
        (begin, end, taken), self.writing = self.writing, None
        if not self.passed or os.lseek(self.fd, 0, os.SEEK_CUR) == end:
            os.lseek(self.fd, begin + (count or 0), os.SEEK_SET)
        if taken is not None:
            taken(count)

    async def pread(self, size: int, offset: int) -> bytes:
        """Read at an offset."""
        await let_the_loop_turn()
        pieces: list[bytes] = []
        while True:
            piece = self.direct.read(min(size, DIRECT_MAX), offset)
            if piece is None:
                piece = await self.start_read(size, offset).wait(cancel=True) if size else b""
            size -= len(piece)
            offset += len(piece)
            if not piece or not size or not self.is_regular:
                return b"".join([*pieces, piece]) if pieces else piece
            pieces.append(piece)
            await let_the_loop_turn()

    async def pwrite(self, data: memoryview, offset: int) -> int:
        """Write at an offset."""
        await let_the_loop_turn()
        done = self.direct.write(data, offset)
        if done is None or (done < len(data) and self.is_regular):
            done = done or 0
            try:
                done += await self.start_write(data[done:], offset + done, None).wait()
            except OSError:
                if not done:
                    raise
        return done

    async def sync(self, *, data_only: bool) -> None:
        """Flush to the device; the lock is held."""
        loop = self.native_loop
        if loop is not None:
            await self.start(lambda complete: loop._sync_file(self.fd, data_only, complete)).wait(self.lock)
        else:
            await self.call(os.fdatasync if data_only else os.fsync, self.fd)

    async def close(self, finish: Callable[[], None]) -> None:
        """Close it, when nothing is in progress any more."""
        self.direct.close()
        while self.in_flight:
            self.drained = self.loop.create_future()
            try:
                await self.drained
            finally:
                self.drained = None
        if self.closes_at_once and finish == self.raw.close:
            self.raw.close()
        else:
            await self.call(finish)
