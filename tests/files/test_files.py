"""Files that do not block the loop: cancellation, errors, order, closing, and what the kernel refuses."""

import asyncio
import contextlib
import errno
import gc
import io
import json
import os
import pathlib
import select
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
import types
import warnings

import pytest

import ringloop
import support
from files_support import as_coroutine, slow, until_in_flight
from ringloop import files


def test_what_is_in_the_page_cache_is_read_without_a_suspension(run, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"first\nsecond\n")
    if os.statvfs(path).f_bsize and not direct_reads_work(path):
        pytest.skip("the file system of the temporary folder cannot say whether a read would wait")

    suspensions = 0

    @types.coroutine
    def counted(awaitable):
        nonlocal suspensions
        iterator = awaitable.__await__()
        while True:
            try:
                future = next(iterator)
            except StopIteration as returned:
                return returned.value
            suspensions += 1
            yield future

    async def main():
        nonlocal suspensions
        # The kernel may say that a read would wait, though the file was just written: while it writes it to the disk, for one.
        for _ in range(20):
            suspensions = 0
            async with files.open(path, "rb") as file:
                steps = [file.read(2), file.readline(), file.pread(3, 1), file.readline(), file.readline()]
                assert [await counted(step) for step in steps] == [b"fi", b"rst\n", b"irs", b"second\n", b""]
            if suspensions == 0:
                return
            await asyncio.sleep(0.1)
        pytest.fail(f"the reads of a file in the page cache took {suspensions} suspensions")

    run(main())


def test_a_forgotten_await_is_told(run):
    async def main():
        for make, name in ((files.open, "FileContext"), (files.tempfile.TemporaryDirectory, "_DirectoryContext")):
            context = make("/nowhere")
            hint = f"'{name}' object has no attribute 'read': await it first, or use `async with`"
            with pytest.raises(AttributeError) as missing:
                context.read()
            assert str(missing.value) == hint
            assert getattr(context, "read", None) is None
            with pytest.raises(TypeError) as blocking, context:
                pass
            assert str(blocking.value) == f"'{name}' object needs `async with`, not `with`"
            context.close()

    run(main())


def direct_reads_work(path):
    with open(path, "rb") as file:
        try:
            os.preadv(file.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT)
        except OSError:
            return False
    return True


def test_a_task_that_only_reads_cached_files_lets_others_run(run, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"x" * 4096)

    async def main():
        others = 0

        async def other():
            nonlocal others
            while others < 3:
                others += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        async with files.open(path, "rb") as file:
            while others < 3:
                assert len(await file.pread(4096, 0)) == 4096
        await task

    run(main())


def test_a_task_that_only_reads_in_a_second_loop_lets_others_run(new_loop, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"x")

    async def read(until):
        async with files.open(path, "rb") as file:
            while not until():
                await file.pread(1, 0)

    async def main():
        others = []

        async def other():
            others.append(await asyncio.sleep(0))

        task = asyncio.create_task(other())
        await read(lambda: others)
        await task

    for _ in range(3):
        # The last direct call is made in the last turn of each loop.
        new_loop().run_until_complete(main())


def test_a_descriptor_that_is_closed_while_it_is_written(run, tmp_path):
    async def main():
        file = await files.open(tmp_path / "file", "wb", 0)
        slow(file)
        writing = asyncio.create_task(file.write(b"x" * 1000))
        await asyncio.sleep(0)
        os.close(file.fileno())
        with contextlib.suppress(OSError):
            await writing
        with pytest.raises(OSError, match="Bad file descriptor"):
            await file.close()

    run(main())


def test_a_cancelled_read_of_a_pipe_loses_nothing(run, fifo):
    path, end = fifo

    async def main():
        async with files.open(path, "rb", buffering=0) as file:
            reading = asyncio.create_task(file.read(10))
            await support.turns(3)
            reading.cancel()
            # On asyncio a thread reads on, and keeps what it gets for the next call.
            with pytest.raises(asyncio.CancelledError):
                await reading
            os.write(end, b"kept")
            return await file.read(10)

    assert run(main()) == b"kept"


def test_a_cancelled_read_of_lines_from_a_pipe_loses_nothing(run, fifo):
    path, end = fifo

    async def main():
        async with files.open(path, "r") as file:
            reading = asyncio.create_task(file.readline())
            await support.turns(3)
            os.write(end, b"half ")
            # Until the half has been read.
            while not file._decoded:
                await asyncio.sleep(0)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            os.write(end, b"a line\nrest\n")
            return await file.readline(), await file.readline()

    assert run(main()) == ("half a line\n", "rest\n")


@pytest.mark.parametrize("buffering", [-1, 0])
def test_a_cancelled_read_does_not_move_the_file(run, tmp_path, buffering):
    path = tmp_path / "file"
    path.write_bytes(bytes(range(200)) * 100)

    async def main():
        async with files.open(path, "rb", buffering) as file:
            slow(file)
            expected = 0
            for size in (7, 5000, 10000):
                reading = asyncio.create_task(file.read(size))
                await asyncio.sleep(0)
                reading.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    expected += len(await reading)
                assert await file.tell() == expected
            data = await file.read(11)
            assert data == path.read_bytes()[expected : expected + 11]

    run(main())


CALLS = {
    "read": lambda file, size: file.read(size),
    "read_all": lambda file, size: file.read(),
    "readinto": lambda file, size: file.readinto(bytearray(size)),
    "readline": lambda file, size: file.readline(),
}


@pytest.mark.parametrize("buffering", [-1, 0])
@pytest.mark.parametrize("call", CALLS)
def test_a_read_in_pieces_that_is_cancelled_does_not_move_the_file(run, tmp_path, monkeypatch, buffering, call):
    path = tmp_path / "file"
    path.write_bytes(bytes(range(200)).replace(b"\n", b"") * 1000)
    monkeypatch.setattr(files._descriptor, "OPERATION_MAX", 1000)

    async def main():
        async with files.open(path, "rb", buffering) as file:
            slow(file)
            reading = asyncio.create_task(CALLS[call](file, 150_000))
            while not os.lseek(file.fileno(), 0, os.SEEK_CUR):
                await asyncio.sleep(0)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            assert await file.tell() == 0
            assert await file.read(5) == path.read_bytes()[:5]

    run(main())


@pytest.mark.parametrize("buffering", [-1, 0])
@pytest.mark.parametrize("call", ["read_all", "readline"])
def test_a_read_of_a_pipe_in_pieces_that_is_cancelled_loses_nothing(run, fifo, buffering, call):
    path, end = fifo

    async def main():
        async with files.open(path, "rb", buffering) as file:
            reading = asyncio.create_task(CALLS[call](file, 0))
            await support.turns(3)
            os.write(end, b"first")
            while select.select([end], [], [], 0)[0]:
                await asyncio.sleep(0)
            await support.turns(3)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            os.write(end, b"second")
            data = b""
            # A read of a pipe may give less than was asked for.
            while len(data) < len(b"firstsecond"):
                data += await file.read(len(b"firstsecond") - len(data))
            return data

    assert run(main()) == b"firstsecond"


def source(kind, path, content):
    """Return what a text file with that content is opened by: its path, or a pipe."""
    if kind != "pipe":
        path.write_bytes(content)
        return path
    near, far = os.pipe()

    def write():
        with open(far, "wb", 0) as file, contextlib.suppress(BrokenPipeError):
            file.write(content)

    threading.Thread(target=write, daemon=True).start()
    return near


@pytest.mark.exact
@pytest.mark.parametrize("kind", ["path", "pipe"])
def test_the_lines_of_a_text_file_are_not_in_memory_a_second_time(run, tmp_path, kind):
    line = "x" * 999 + "\n"
    content = line.encode() * 4000

    async def main():
        async with files.open(source(kind, tmp_path / "file", content)) as file:
            tracemalloc.start()
            try:
                lines = await file.readlines()
                return lines == [line] * 4000, tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()

    right, peak = run(main())
    assert right
    assert peak < 1.4 * len(content)


LINES = "".join(f"{number} gr\u00fc\u00df\u20ac\r\n{number}\r{number}\n" for number in range(1500))
"""As bytes, more than four chunks. Some have ends of lines and characters that are cut in two."""


@pytest.mark.parametrize("error", [OSError(errno.EIO, "failed"), asyncio.CancelledError()], ids=["error", "cancelled"])
@pytest.mark.parametrize(
    ("encoding", "newline"), [("utf-8", None), ("utf-8", ""), ("utf-8", "\r\n"), ("utf-16", "\n"), ("utf-7", None)]
)
@pytest.mark.parametrize("kind", ["path", "shared", "shared in the middle", "pipe"])
def test_reading_lines_that_fails_has_read_nothing(run, tmp_path, monkeypatch, kind, encoding, newline, error):
    content = LINES.encode(encoding)
    (tmp_path / "model").write_bytes(content)
    options = {"encoding": encoding, "newline": newline}

    async def main(reads, ahead):
        with open(tmp_path / "model", **options) as model:
            async with files.open(source(kind, tmp_path / "file", content), **options) as file:
                if kind == "shared":
                    file.fileno()
                slow(file)
                descriptor = type(file._descriptor)
                read, count = descriptor.read, 0

                async def fails(descriptor, size):
                    nonlocal count
                    count += 1
                    if kind == "shared in the middle" and count == 3:
                        file.fileno()
                    if count > reads:
                        raise error
                    return await read(descriptor, size)

                assert await file.read(ahead) == model.read(ahead)
                told = await file.tell() if kind != "pipe" else None
                with monkeypatch.context() as patch:
                    patch.setattr(descriptor, "read", fails)
                    with pytest.raises(type(error)):
                        await file.readlines()
                    where = os.lseek(file._descriptor.fd, 0, os.SEEK_CUR) if kind != "pipe" else None
                    if kind == "path":
                        assert where <= ahead * 8 + 8192
                    elif kind == "shared":
                        # Others may go on from there.
                        assert where == min(len(content), (reads + (ahead > 0)) * 8192)
                    # Again, with what was put back.
                    count = reads
                    with pytest.raises(type(error)):
                        await file.readlines()
                if kind == "pipe":
                    assert [await file.readline() for _ in range(3)] == [model.readline() for _ in range(3)]
                else:
                    assert await file.tell() == told == model.tell()
                    assert [await file.readline() for _ in range(3)] == [model.readline() for _ in range(3)]
                    assert await file.tell() == model.tell()
                assert await file.read(7) == model.read(7)
                assert await file.readlines(5000) == model.readlines(5000)
                assert await file.readlines() == model.readlines()
                assert file.newlines == model.newlines

    for reads in (0, 1, 4):
        for ahead in (0, 5):
            run(main(reads, ahead))


@pytest.mark.parametrize("kind", ["path", "shared", "shared in the middle"])
def test_reading_lines_that_is_cancelled_while_the_kernel_works_does_not_move_the_file(run, tmp_path, kind):
    path = tmp_path / "file"
    path.write_bytes(LINES.encode())

    async def main():
        async with files.open(path, newline="") as file:
            slow(file)
            if kind == "shared":
                file.fileno()
            first = await file.readline()
            told = await file.tell()
            for turns in range(0, 12, 3):
                reading = asyncio.create_task(file.readlines())
                while os.lseek(file._descriptor.fd, 0, os.SEEK_CUR) < 20_000:
                    await asyncio.sleep(0)
                await support.turns(turns)
                if kind == "shared in the middle":
                    file.fileno()
                await until_in_flight(file, reading)
                reading.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    assert first + "".join(await reading) == LINES
                    await file.seek(told)
                assert await file.tell() == told
                if kind != "path":
                    break
            assert first + await file.read() == LINES

    run(main())


def test_lines_that_cannot_be_decoded_are_lost_as_those_of_open(run, tmp_path):
    content = b"a line\r\n" * 5000 + b"\xff\n" + b"other\n" * 5000

    async def main():
        with open(source("path", tmp_path / "file", content)) as model:
            for kind in ("path", "pipe"):
                async with files.open(source(kind, tmp_path / "file", content)) as file:
                    model.seek(0)
                    for each in (model, file):
                        with pytest.raises(UnicodeDecodeError):
                            lines = each.readlines()
                            await lines
                    assert await file.read() == model.read()

    run(main())


class Counted(str):
    """A text that counts the characters that were copied from it, or searched."""

    __slots__ = ("count",)

    def __getitem__(self, index):
        found = super().__getitem__(index)
        self.count += len(found)
        return found

    def find(self, part, start=0, stop=sys.maxsize):
        found = super().find(part, start, stop)
        self.count += (min(stop, len(self)) if found < 0 else found + 1) - start
        return found


@pytest.mark.parametrize("call", ["readline", "readlines", "next"])
@pytest.mark.parametrize(("end", "newline"), [("\n", None), ("\n", ""), ("\r", ""), ("\r\n", "\r\n")])
def test_lines_that_were_put_back_are_not_copied_for_each_one(run, fifo, end, newline, call):
    path, far = fifo
    line = "x" * 9 + end

    async def main():
        async with files.open(path, newline=newline) as file:
            reading = asyncio.create_task(file.readlines())
            for _ in range(20):
                os.write(far, line.encode() * 1000)
                while select.select([far], [], [], 0)[0]:
                    await asyncio.sleep(0)
            await support.turns(3)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            # On asyncio a thread reads on.
            os.write(far, line.encode())
            text = file._decoded = Counted(file._decoded)
            text.count, size = 0, len(text)
            assert size > 150_000
            lines = size // len(line)
            if call == "readlines":
                assert await file.readlines(lines * len(line) - 1) == [line] * lines
            else:
                for _ in range(lines):
                    assert await (file.readline() if call == "readline" else anext(file)) == line
            # "\r" is searched for after a "\n" was not found near.
            assert text.count < (2000 if end == "\r" else 4) * size

    run(main())


@pytest.mark.parametrize("buffering", [-1, 0])
def test_a_cancelled_write_happens_as_a_whole(run, tmp_path, buffering):
    path = tmp_path / "file"
    size = 2 * io.DEFAULT_BUFFER_SIZE

    async def main():
        async with files.open(path, "wb", buffering) as file:
            slow(file)
            for letter in (b"a", b"b", b"c"):
                # Whoever is cancelled before its turn has written nothing.
                await file.tell()
                writing = asyncio.create_task(file.write(letter * size))
                await asyncio.sleep(0)
                writing.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await writing
            assert await file.tell() == 3 * size

    run(main())
    assert path.read_bytes() == b"a" * size + b"b" * size + b"c" * size


@pytest.mark.parametrize("waits", [False, True])
def test_appending_nothing_does_not_move_the_file(run, tmp_path, waits):
    path = tmp_path / "file"
    path.write_bytes(b"x")

    async def main():
        async with files.open(path, "ab+", 0) as file:
            if waits:
                slow(file)
            await file.seek(100)
            assert await file.write(b"") == 0
            assert await file.tell() == 100
            await file.write(b"yz")
            assert await file.tell() == 3

    run(main())


def test_what_has_to_wait_gives_the_same_results(run, tmp_path):
    path = tmp_path / "file"
    content = b"".join(b"line %d\n" % number for number in range(5000))

    async def main():
        async with files.open(path, "w+b") as file:
            slow(file)
            await file.write(content)
            await file.seek(0)
            assert [line async for line in file] == content.splitlines(keepends=True)
            assert await file.pread(10, 100) == content[100:110]
            assert await file.pwrite(b"LINE", 0) == 4
            await file.seek(0)
            assert await file.readline() == b"LINE 0\n"
            buffer = bytearray(50_000)
            await file.seek(-20, os.SEEK_END)
            assert await file.readinto(buffer) == 20
            await file.fsync()
            await file.fsync(data_only=True)
        async with files.open(path, "a") as file:
            slow(file)
            await file.write("end")
            assert await file.tell() == len(content) + 3
        async with files.open(path) as file:
            slow(file)
            assert await file.read() == f"LINE{content.decode()[4:]}end"
        async with files.open(path, "rb", 0) as file:
            slow(file)
            assert await file.readall() == b"LINE" + content[4:] + b"end"

    run(main())


def test_calls_take_turns_in_their_order(run, tmp_path):
    path = tmp_path / "file"

    async def main():
        async with files.open(path, "w+b", 0) as file:
            slow(file)
            await asyncio.gather(*(file.write(b"%03d" % number) for number in range(100)))
            await file.seek(0)
            pieces = await asyncio.gather(*(file.read(3) for _ in range(100)))
            assert pieces == [b"%03d" % number for number in range(100)]

    run(main())


def test_close_waits_for_what_is_in_progress(run, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100_000)

    async def main():
        file = await files.open(path, "r+b")
        slow(file)
        reading = asyncio.create_task(file.pread(100_000, 0))
        writing = asyncio.create_task(file.write(b"y" * 50_000))
        await asyncio.sleep(0)
        closing = [asyncio.create_task(file.close()) for _ in range(2)]
        late = asyncio.create_task(file.read())
        await asyncio.gather(*closing)
        assert len(await reading) == 100_000
        assert await writing == 50_000
        with pytest.raises(ValueError, match="closed file"):
            await late
        assert file.closed
        await file.close()

    run(main())
    assert path.read_bytes() == b"y" * 50_000 + b"x" * 50_000


def test_a_close_that_is_cancelled_closes_the_file(run, tmp_path):
    path = tmp_path / "file"

    async def main():
        file = await files.open(path, "wb")
        slow(file)
        await file.write(b"content")
        closing = asyncio.create_task(file.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        while not file._descriptor.raw.closed:
            await asyncio.sleep(0)

    run(main())
    assert path.read_bytes() == b"content"


def test_an_unclosed_file_warns_and_is_flushed(run, tmp_path):
    path = tmp_path / "file"

    async def main():
        file = await files.open(path, "w")
        await file.write("content")
        with pytest.warns(ResourceWarning, match=r"unclosed file <ringloop.files.TextFile name="):
            del file
            gc.collect()
        file = await files.open(path, "rb")
        with pytest.warns(ResourceWarning, match=r"unclosed file <ringloop.files.BufferedReader name="):
            del file
            gc.collect()

    run(main())
    assert path.read_text() == "content"


UNCLOSED = """
from ringloop import files

async def main():
    # What `sys` refers to is collected after the globals of all modules were set to None.
    sys.unclosed = [await files.open(sys.argv[1], "w"), await files.open(sys.argv[2], "wb")]
    await sys.unclosed[0].write("text")
    await sys.unclosed[1].write(b"bytes")

loop = new_loop()
loop.run_until_complete(main())
loop.close()
"""


def test_a_file_that_is_unclosed_when_the_interpreter_exits_is_flushed(arm, tmp_path):
    paths = [tmp_path / "text", tmp_path / "bytes"]
    done = support.run_child(UNCLOSED, arm, *paths)
    assert (done.returncode, done.stderr) == (0, "")
    assert [path.read_bytes() for path in paths] == [b"text", b"bytes"]


@pytest.mark.exact
def test_an_unclosed_file_is_closed_when_the_operation_in_progress_is_over(run, tmp_path):
    path, other_path = tmp_path / "file", tmp_path / "other"
    path.touch()

    async def main():
        file = await files.open(path, "r+b", buffering=0)
        slow(file)
        opened = {it for it in support.open_descriptors() if it[1] == str(path)}
        assert len(opened) == 1
        call = file.write(b"content")
        call.send(None)
        call.close()
        with pytest.warns(ResourceWarning, match=r"unclosed file <ringloop.files.RawFile name="):
            del file, call
            gc.collect()
        # It would get the descriptor's number if that were free, and what was written with it.
        with other_path.open("wb"):
            await support.until(lambda: not opened & support.open_descriptors())

    run(main())
    assert (path.read_bytes(), other_path.read_bytes()) == (b"content", b"")


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.parametrize("closed_first", ["loop", "file"])
def test_an_unclosed_file_is_flushed_though_its_loop_was_closed_during_a_call(new_loop, tmp_path, closed_first):
    path = tmp_path / "file"
    path.write_bytes(b"....... and more")
    loop = new_loop()

    async def main():
        file = await files.open(path, "r+b")
        await file.write(b"content")
        file._descriptor.start_call(is_released.wait, support.PATIENCE_S)
        unclosed.append(file)

    unclosed = []
    is_released = threading.Event()
    loop.run_until_complete(main())
    if closed_first == "loop":
        loop.close()
    unclosed.clear()
    loop.close()
    gc.collect()
    assert path.read_bytes() == b"content and more"
    is_released.set()

    def is_closed():
        gc.collect()
        return all(it[1] != str(path) for it in support.open_descriptors())

    asyncio.run(support.until(is_closed, "closing it"))


def test_opening_that_is_cancelled_leaves_nothing_open(run, tmp_path):
    started, go_on = threading.Event(), threading.Event()

    def opener(path, flags):
        started.set()
        go_on.wait(support.PATIENCE_S)
        return os.open(path, flags)

    async def main():
        opening = asyncio.ensure_future(
            asyncio.create_task(as_coroutine(files.open(tmp_path / "f", "w", opener=opener)))
        )
        await asyncio.get_running_loop().run_in_executor(None, started.wait)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        go_on.set()
        await asyncio.get_running_loop().shutdown_default_executor()
        await support.turns(3)

    run(main())
    # The descriptor is closed: the fixture of all tests looks.


def test_another_loop_is_refused(new_loop, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"content")
    first, second = new_loop(), new_loop()
    file = first.run_until_complete(as_coroutine(files.open(path, "rb")))
    with pytest.raises(RuntimeError, match="belongs to another event loop"):
        second.run_until_complete(file.pread(1, 0))
    with pytest.raises(RuntimeError, match="belongs to another event loop"):
        second.run_until_complete(file.read(1))
    assert first.run_until_complete(file.read()) == b"content"
    first.run_until_complete(file.close())


def test_a_full_device_says_so_and_loses_nothing(run):
    async def main():
        file = await files.open("/dev/full", "wb")
        await file.write(b"content")
        for _ in range(2):
            with pytest.raises(OSError, match="No space left") as full:
                await file.flush()
            assert full.value.errno == errno.ENOSPC
        with pytest.raises(OSError, match="No space left"):
            await file.close()
        assert file.closed
        async with files.open("/dev/full", "wb", 0) as file:
            with pytest.raises(OSError, match="No space left"):
                await file.write(b"content")

    run(main())


LIMITED = """
import asyncio, resource, ringloop, sys
from ringloop import files

async def main():
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    # With a larger buffer, such as the usual one of Python 3.15, the rest would be kept.
    file = await files.open(sys.argv[1], "wb", 8192)
    try:
        await file.write(b"x" * 200_000)
    except OSError as error:
        print(error.errno)
    await file.close()

asyncio.Runner(loop_factory=ringloop.new_event_loop if sys.argv[2] != "asyncio" else None).run(main())
"""


def test_the_limit_of_file_sizes_is_an_error(arm, tmp_path):
    path = tmp_path / "file"
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, path, arm],
        capture_output=True,
        text=True,
        check=False,
        timeout=support.PATIENCE_S,
    )
    assert (done.stdout, done.stderr) == (f"{errno.EFBIG}\n", "")
    assert path.read_bytes() == b"x" * 100_000


CUT_SHORT = """
import asyncio, inspect, json, resource, ringloop, sys
from ringloop import files

LIMIT, SIZE = 100_000, 8192

async def outcomes(file, lengths):
    async def outcome(method, *arguments):
        try:
            result = getattr(file, method)(*arguments)
            return await result if inspect.isawaitable(result) else result
        except OSError as error:
            return -error.errno

    content = "x" if "b" not in file.mode else b"x"
    found = [await outcome("write", content * length) for length in lengths]
    return [*found, await outcome("flush"), await outcome("flush"), await outcome("close"), file.closed]

async def main():
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, LIMIT))
    cases = [[LIMIT + extra] for extra in (-1, 0, 1, 5000, SIZE, SIZE + 1, 3 * SIZE, LIMIT)]
    cases += [[50, LIMIT], [50, LIMIT, 1], [LIMIT - 10, 20], [LIMIT - 10, SIZE], [LIMIT - 10, 20, SIZE], [LIMIT - 10, 20, 2 * SIZE]]
    cases += [[LIMIT + 5000, 1], [LIMIT + 5000, SIZE], [LIMIT + 5000, 2 * SIZE], [LIMIT, 1, 2 * SIZE], [LIMIT, SIZE, SIZE]]
    for mode in json.loads(sys.argv[2]):
        for lengths in cases:
            with open(sys.argv[1], mode, SIZE) as blocking:
                expected = await outcomes(blocking, lengths)
            with open(sys.argv[1], "rb") as file:
                expected.append(len(file.read()))
            file = await files.open(sys.argv[1], mode, SIZE)
            found = await outcomes(file, lengths)
            with open(sys.argv[1], "rb") as file:
                found.append(len(file.read()))
            if found != expected:
                print(mode, lengths, found, "but open:", expected)

asyncio.Runner(loop_factory=ringloop.new_event_loop if sys.argv[3] != "asyncio" else None).run(main())
"""


@pytest.mark.parametrize("memory", [False, True])
def test_writes_that_the_limit_of_file_sizes_cuts_short(arm, tmp_path, memory):
    """As with `open`: the buffer keeps the rest if it has room for it, and the next flush fails."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if memory else tmp_path) as folder:
        done = subprocess.run(
            [sys.executable, "-c", CUT_SHORT, f"{folder}/file", json.dumps(["wb", "w+b", "w"]), arm],
            capture_output=True,
            text=True,
            check=False,
            timeout=support.PATIENCE_S,
        )
    assert (done.stdout, done.stderr) == ("", "")


def test_closed_numbers_are_bad_descriptors(run, tmp_path):
    async def main():
        file = await files.open(tmp_path / "file", "w+b", 0)
        os.close(file.fileno())
        for call in (
            file.write(b"x"),
            file.read(1),
            file.seek(0),
            file.pread(1, 0),
            file.pwrite(b"x", 0),
            file.close(),
        ):
            with pytest.raises(OSError, match="Bad file descriptor"):
                await call

    run(main())


def test_special_files(run):
    async def main():
        async with files.open("/proc/self/status") as file:
            text = await file.read()
            assert "Name:" in text
            await file.seek(0)
            assert (await anext(aiter(file))).startswith("Name:")
        async with files.open("/dev/zero", "rb") as file:
            assert await file.read(100_000) == bytes(100_000)
        async with files.open("/dev/null", "r+b", 0) as file:
            assert (await file.write(b"gone"), await file.read()) == (4, b"")

    run(main())


def test_files_larger_than_two_gigabytes(run, tmp_path):
    path = tmp_path / "sparse"
    offset = 5 << 30

    async def main():
        async with files.open(path, "w+b") as file:
            await file.truncate(offset)
            await file.seek(offset - 1)
            await file.write(b"<end>")
            assert await file.tell() == offset + 4
            await file.flush()
            assert await file.pread(10, offset - 2) == b"\0<end>"
            await file.seek(-3, os.SEEK_END)
            assert await file.read() == b"nd>"
            assert await file.pwrite(b"!", offset + 10) == 1
            assert await file.seek(0, os.SEEK_HOLE) == 0
            assert await file.seek(offset, os.SEEK_HOLE) > offset

    run(main())


@pytest.mark.parametrize("folder", ["/dev/shm", "/tmp"])
def test_files_in_memory_and_on_a_disk(run, folder):
    if not os.access(folder, os.W_OK):
        pytest.skip(f"{folder} cannot be written to")

    async def main():
        async with files.tempfile.TemporaryFile("w+b", dir=folder) as file:
            await file.write(b"0123456789" * 500_000)
            await file.seek(0)
            assert await file.read() == b"0123456789" * 500_000
            buffer = bytearray(3_000_000)
            await file.seek(5)
            assert await file.readinto(buffer) == 3_000_000
            assert buffer.startswith(b"567890")
            assert await file.pread(4_000_000, 1) == (b"0123456789" * 500_000)[1:4_000_001]

    run(main())


def test_all_kinds_of_names(run, tmp_path):
    names = [tmp_path / "path", os.fsencode(tmp_path / "bytes"), str(tmp_path / os.fsdecode(b"\xff surrogate"))]

    async def main():
        for name in names:
            async with files.open(name, "w") as file:
                assert file.name == os.fspath(name)
                await file.write("content")
            async with files.open(name) as file:
                assert (file.name, await file.read()) == (os.fspath(name), "content")

    run(main())


def test_descriptors_instead_of_names(run, tmp_path):
    path = tmp_path / "file"
    path.write_text("one two")
    number = os.open(path, os.O_RDWR)

    async def main():
        async with files.open(number, "rb", closefd=False) as file:
            assert (file.name, await file.read(4)) == (number, b"one ")
        os.lseek(number, 0, os.SEEK_SET)
        async with files.open(number, "r+", closefd=True) as file:
            assert await file.read() == "one two"

    run(main())
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(number)


def test_pipes_are_read_and_written(run):
    near, far = os.pipe()

    async def main():
        async with files.open(near, "r") as reader, files.open(far, "w", buffering=1) as writer:
            line = asyncio.create_task(reader.readline())
            await support.turns(3)
            await writer.write("over\n")
            assert await line == "over\n"
            with pytest.raises(io.UnsupportedOperation):
                await reader.seek(0)
            await writer.write("rest")
            await writer.close()
            assert await reader.read() == "rest"

    run(main())


def test_the_other_end_of_a_fifo_is_waited_for(run, tmp_path):
    path = tmp_path / "fifo"
    os.mkfifo(path)

    async def main():
        async def write():
            async with files.open(path, "w") as file:
                await file.write("met")

        async def read():
            async with files.open(path) as file:
                return await file.read()

        return (await asyncio.gather(read(), write()))[0]

    assert run(main()) == "met"


def test_an_empty_non_blocking_pipe_gives_none(run):
    near, far = os.pipe2(os.O_NONBLOCK)

    async def main():
        async with files.open(near, "rb", 0) as raw:
            assert await raw.read(1) is None
            os.write(far, b"x")
            assert await raw.read(5) == b"x"

    try:
        run(main())
    finally:
        os.close(far)


def test_detached_files_are_blocking_ones(run, tmp_path):
    path = tmp_path / "file"
    path.write_text("content")

    async def main():
        file = await files.open(path)
        raw = file.detach()
        with pytest.raises(ValueError, match="detached"):
            await file.read()
        with pytest.raises(ValueError, match="detached"):
            await file.close()
        with raw:
            assert raw.read() == b"content"

    run(main())


def test_functions_of_os(run, tmp_path):
    async def main():
        await files.os.makedirs(tmp_path / "a" / "b")
        async with ringloop.open(tmp_path / "a" / "b" / "file", "w") as file:
            await file.write("content")
            await files.os.fsync(file.fileno())
        with pytest.raises(FileExistsError) as exists:
            await files.os.mkdir(tmp_path / "a")
        assert exists.value.filename == str(tmp_path / "a")
        assert (await files.os.stat(tmp_path / "a/b/file")).st_size == 7
        assert await files.os.path.exists(tmp_path / "a/b/file")
        await files.os.rename(tmp_path / "a/b/file", tmp_path / "moved")
        assert sorted(await files.os.listdir(tmp_path)) == ["a", "moved"]
        assert {entry.name for entry in await files.os.scandir(tmp_path)} == {"a", "moved"}
        await files.os.unlink(tmp_path / "moved")
        await files.os.removedirs(tmp_path / "a" / "b")

    run(main())


def test_temporary_files_go_when_they_are_closed(run, tmp_path):
    async def main():
        async with files.tempfile.NamedTemporaryFile("w+", dir=tmp_path) as file:
            await file.write("content")
            await file.flush()
            assert pathlib.Path(file.name).read_text() == "content"
        assert not pathlib.Path(file.name).exists()
        async with files.tempfile.TemporaryDirectory(dir=tmp_path) as folder:
            assert pathlib.Path(folder).is_dir()
        assert not pathlib.Path(folder).exists()

    run(main())


@pytest.mark.parametrize("what", ["write", "flush"])
def test_a_loop_that_is_closed_with_a_write_in_progress(loop_factory, tmp_path, what):
    """Data that a cancelled call is writing has left the buffer, so nobody else would write it."""
    path = tmp_path / "file"
    data = b"x" * 100 if what == "flush" else b"x" * 300_000

    async def main():
        file = await files.open(path, "wb")
        if what == "flush":
            await file.write(data)
        slow(file)
        task = asyncio.ensure_future(file.write(data) if what == "write" else file.flush())
        await until_in_flight(file, task)
        task.cancel()
        await asyncio.wait([task])
        return file

    loop = loop_factory()
    file = loop.run_until_complete(main())
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    assert path.read_bytes() == data
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        del file
        gc.collect()


def test_a_loop_that_is_closed_with_a_read_in_progress(loop_factory, arm, fifo):
    if arm == "asyncio":
        pytest.skip("a thread of asyncio's executor reads until something comes")
    path, _ = fifo
    loop = loop_factory()
    file = loop.run_until_complete(as_coroutine(files.open(path, "rb", 0)))
    reading = loop.create_task(file.read(1))
    loop.run_until_complete(support.turns(3))
    reading.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        loop.run_until_complete(reading)
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        del file, reading
        gc.collect()


@pytest.mark.parametrize("buffering", [-1, 0])
@pytest.mark.parametrize("waits", [False, True])
def test_a_buffer_that_cannot_be_written_is_refused_before_anything_is_read(run, tmp_path, buffering, waits):
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    strided = memoryview(bytearray(10))[::2]

    async def main():
        async with files.open(path, "rb", buffering) as file:
            if waits:
                slow(file)
            for buffer in (b"constant", memoryview(b"read-only"), strided, "text", None):
                kind = "None" if buffer is None else type(buffer).__name__
                for method in ("readinto", "readinto1") if buffering else ("readinto",):
                    with pytest.raises(TypeError, match=rf"{method}\(\) argument .*not {kind}"):
                        await getattr(file, method)(buffer)
            assert await file.tell() == 0
            assert await file.read() == b"0123456789"

    run(main())


def test_another_thread_ends_an_operation_while_the_loop_waits(loop, arm):
    """A collector may close a coroutine that waits for a file in any thread; the operation stayed for ever."""
    if arm != "io_uring":
        pytest.skip("only io_uring has operations on files")
    near, far = os.pipe()
    ended = loop.create_future()
    operation = loop._read_file(near, 10, None, ended.set_result)

    def end():
        time.sleep(0.05)  # Most likely, the loop waits by then.
        operation.cancel()

    thread = threading.Thread(target=end)
    thread.start()
    try:
        assert loop.run_until_complete(asyncio.wait_for(ended, support.PATIENCE_S)) is operation
        with pytest.raises(OSError) as raised:
            operation.result()
        assert raised.value.errno == errno.ECANCELED
    finally:
        thread.join()
        os.close(near)
        os.close(far)
