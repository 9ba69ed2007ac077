"""Files that are not on a disk: those of /proc and /sys, pipes, terminals. As the builtin `open` reads and writes them."""

import asyncio
import errno
import os
import pathlib
import select
import socket
import threading

import pytest

import support
from files_support import slow, until_in_flight
from ringloop import files

# Their content does not change between two reads. Some have a size of 0, some one that is too large.
KERNEL_FILES = [
    "/proc/sys/kernel/pid_max",
    "/proc/sys/kernel/ostype",
    "/proc/sys/kernel/random/boot_id",
    "/proc/self/cmdline",
    "/proc/self/limits",
    "/proc/filesystems",
    "/sys/kernel/mm/transparent_hugepage/enabled",
    "/sys/devices/system/cpu/possible",
]


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("path", KERNEL_FILES)
def test_a_file_whose_size_says_nothing_is_read_to_its_end(run, path, waits):
    if not os.access(path, os.R_OK):
        pytest.skip(f"this kernel has no {path}")
    expected = pathlib.Path(path).read_bytes()
    assert expected

    async def main():
        for arguments in (("rb",), ("rb", 0), ("r",)):
            async with files.open(path, *arguments) as file:
                if waits:
                    slow(file)
                content = await file.read()
                assert (content if arguments[0] == "rb" else content.encode()) == expected
                # Again, and from where there is nothing left.
                assert not await file.read()
                await file.seek(0)
                assert len(await file.read()) == len(content)
        async with files.open(path, "rb", 0) as file:
            if waits:
                slow(file)
            assert await file.readall() == expected
        async with files.open(path, "rb") as file:
            if waits:
                slow(file)
            assert [line async for line in file] == expected.splitlines(keepends=True)

    run(main())


def pipe():
    """Return the two ends of a pipe, blocking ones."""
    return os.pipe()


def sockets():
    """Return the two ends of a connection, in the same order."""
    near, far = socket.socketpair()
    return near.detach(), far.detach()


class Reader(threading.Thread):
    """Reads from a descriptor in a thread, once it is told to: up to `limit` bytes, or to the end."""

    def __init__(self, fd, limit=None):
        super().__init__(daemon=True)
        self.fd, self.limit, self.count = fd, limit, 0
        self.may_read = threading.Event()
        self.start()

    def run(self):
        self.may_read.wait(support.PATIENCE_S)
        while self.limit is None or self.count < self.limit:
            data = os.read(self.fd, 65536)
            if not data:
                break
            self.count += len(data)
        os.close(self.fd)


@pytest.mark.parametrize("ends", [pipe, sockets])
@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("arguments", [("wb", 0), ("wb",), ("w",)])
def test_a_blocking_pipe_takes_all_that_is_written(run, ends, waits, arguments):
    size = 1_000_000
    near, far = ends()
    reader = Reader(near)

    async def main():
        async with files.open(far, *arguments) as file:
            if waits:
                slow(file)
            reader.may_read.set()
            assert await file.write(("x" if arguments == ("w",) else b"x") * size) == size

    run(main())
    reader.join(support.PATIENCE_S)
    assert reader.count == size


@pytest.mark.parametrize("ends", [pipe, sockets])
@pytest.mark.parametrize("buffering", [-1, 0])
def test_a_cancelled_write_to_a_pipe_happens_as_a_whole(run, ends, buffering):
    size = 1_000_000
    near, far = ends()
    reader = Reader(near)

    async def main():
        async with files.open(far, "wb", buffering) as file:
            writing = asyncio.create_task(file.write(b"x" * size))
            await support.turns(3)
            writing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await writing
            reader.may_read.set()
            # It has its turn when the whole is written.
            assert await file.write(b"y") == 1

    run(main())
    reader.join(support.PATIENCE_S)
    assert reader.count == size + 1


def test_a_reader_that_goes_in_the_middle_of_a_write_leaves_the_count(run):
    near, far = pipe()
    reader = Reader(near, limit=200_000)

    async def main():
        async with files.open(far, "wb", 0) as file:
            reader.may_read.set()
            assert 200_000 <= await file.write(b"x" * 1_000_000) < 1_000_000
            with pytest.raises(BrokenPipeError):
                await file.write(b"x")

    run(main())
    reader.join(support.PATIENCE_S)


def test_a_pipe_that_does_not_block_takes_what_it_has_room_for(run):
    near, far = os.pipe2(os.O_NONBLOCK)

    async def main():
        async with files.open(near, "rb", 0), files.open(far, "wb", 0) as file:
            assert 0 < await file.write(b"x" * 1_000_000) < 1_000_000
            assert await file.write(b"x" * 1_000_000) is None

    run(main())


PARTS = [b"one\ntwo", b"", b"three\n", b"", b"\r\n\r_", b"x" * 9000, "gr\u00fc\u00dfe".encode()]
TEXT_CALLS = [("read", 50), ("read", 9000), ("readline",), ("readline", 2), ("readlines",), ("readlines", 4)]
BINARY_CALLS = [
    *TEXT_CALLS,
    ("read",),
    ("read1", 5),
    ("read1",),
    ("peek",),
    ("readinto", 5),
    ("readinto", 9000),
    ("readinto1", 9000),
]


def called(file, name, *arguments):
    """Call a method of a file, or return what is to be awaited."""
    if name.startswith("readinto"):
        arguments = [bytearray(*arguments)]
    return getattr(file, name)(*arguments)


@pytest.mark.parametrize(
    ("mode", "call"),
    [*(("r", call) for call in TEXT_CALLS), *(("rb", call) for call in BINARY_CALLS)],
    ids=str,
)
def test_what_has_arrived_at_a_descriptor_that_does_not_block_is_read_as_by_open(run, mode, call):
    blocking, awaited = [os.pipe2(os.O_NONBLOCK) for _ in range(2)]

    async def main():
        with open(blocking[0], mode) as model:
            async with files.open(awaited[0], mode) as file:
                for part in PARTS:
                    for _, far in (blocking, awaited):
                        os.write(far, part)
                    for _ in range(3):
                        assert await called(file, *call) == called(model, *call), part
                for _, far in (blocking, awaited):
                    os.close(far)
                assert await file.read() == model.read()

    run(main())


@pytest.mark.parametrize("call", [("read", 50), ("read",), ("readline",), ("readlines",)], ids=str)
def test_text_that_arrives_in_parts_is_decoded_as_a_whole(run, call):
    near, far = os.pipe2(os.O_NONBLOCK)
    found = []

    async def main():
        async with files.open(near) as file:
            for part in (b"gr\xc3", b"", b"\xbc\xc3", b"\x9fe\r", b"", b"\nline"):
                os.write(far, part)
                found.append("".join(await called(file, *call)))
            os.write(far, b" and more\r")
            found.append(await file.read())
            os.write(far, b"\xc3")
            os.close(far)
            with pytest.raises(UnicodeDecodeError):
                await file.read()

    run(main())
    # Who reads a line gets its end by itself.
    assert found[:5] == ["gr", "", "ü", "ße", ""]
    assert "".join(found) == "grüße\nline and more"


@pytest.mark.parametrize(
    ("arguments", "call"),
    [
        # An unbuffered file reads once if it is told how much.
        *((("rb", 0), call) for call in [("read",), ("readline",), ("readlines",)]),
        *((arguments, ("read", 50)) for arguments in [("r",), ("rb",)]),
        *((arguments, call) for arguments in [("r",), ("rb",)] for call in [("read",), ("readline",), ("readlines",)]),
    ],
    ids=str,
)
@pytest.mark.parametrize("error", [OSError(errno.EIO, "failed"), asyncio.CancelledError()], ids=["error", "cancelled"])
def test_a_call_that_fails_in_the_middle_has_read_nothing(run, monkeypatch, arguments, call, error):
    near, far = pipe()
    os.write(far, b"one\ntwo")
    os.close(far)

    async def main():
        async with files.open(near, *arguments) as file:
            slow(file)
            kind = type(file._descriptor)
            read = kind.read

            async def fails_at_the_end(descriptor, size):
                data = await read(descriptor, size)
                if not data:
                    raise error
                return data

            if call == ("readline",):
                assert len(await file.readline()) == 4
            with monkeypatch.context() as patch:
                patch.setattr(kind, "read", fails_at_the_end)
                with pytest.raises(type(error)):
                    await called(file, *call)
            rest = await file.read()
            assert (rest if isinstance(rest, str) else rest.decode()) == (
                "two" if call == ("readline",) else "one\ntwo"
            )

    run(main())


# How much is written, and how much is read then.
WRITES = [
    [(100, 0), (100_000, 0), (5000, 4096), (200_000, 4096), (3, 0), (9000, 1 << 20), (10, 0)],
    [(200_000, 1 << 20), (65_536, 0), (8192, 0), (8192, 4096), (1, 1 << 20)],
    [(8000, 0), (60_000, 0), (8000, 0), (8000, 1 << 20), (300_000, 65_536), (8193, 0)],
    [(65_530, 0), (10, 0), (20, 0), (9000, 8192), (9000, 0)],
]


@pytest.mark.many_cases(short=4)
@pytest.mark.parametrize("mode", ["wb", "w"])
@pytest.mark.parametrize("buffering", [-1, 10, 100_000])
@pytest.mark.parametrize("writes", WRITES, ids=str)
def test_a_full_pipe_that_does_not_block_takes_as_much_as_from_open(run, mode, buffering, writes):
    data = bytes(number % 251 for number in range(1 << 20))
    ends = [os.pipe2(os.O_NONBLOCK) for _ in range(2)]

    def drained(near, size):
        try:
            return os.read(near, size) if size else b""
        except BlockingIOError:
            return b""

    async def outcome(call, *arguments):
        try:
            result = call(*arguments)
            return await result if asyncio.iscoroutine(result) else result
        except BlockingIOError as error:
            return error.errno, str(error), error.characters_written

    async def steps(near, file, mode):
        results, written = [], 0
        for size, read in writes:
            piece = data[written : written + size]
            taken = await outcome(file.write, piece if mode == "wb" else piece.decode("latin-1"))
            written += taken if isinstance(taken, int) else taken[2]
            results += [taken, drained(near, read), await outcome(file.flush) if read else None]
        while await outcome(file.flush) is not None:
            results.append(drained(near, 4096))
        results.append(drained(near, 1 << 20))
        assert b"".join(each for each in results if isinstance(each, bytes)) == data[:written]
        return results

    async def main():
        # `io`'s text files keep what they can before they give it to the buffer, so the model of both is a binary one.
        with open(ends[0][1], "wb", buffering) as model:
            expected = await steps(ends[0][0], model, "wb")
        encoding = "latin-1" if mode == "w" else None
        async with files.open(ends[1][1], mode, buffering, encoding) as file:
            assert await steps(ends[1][0], file, mode) == expected

    try:
        run(main())
    finally:
        for near, _ in ends:
            os.close(near)


@pytest.mark.many_cases(short=4)
@pytest.mark.parametrize("ends", [pipe, sockets])
@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("ahead", [0, 10])
def test_a_buffer_is_filled_by_as_many_reads_as_that_takes(run, ends, waits, ahead):
    data = bytes(number % 251 for number in range(500_000))
    near, far = ends()

    def write():
        with open(far, "wb", 0) as file:
            assert file.write(data) == len(data)

    writer = threading.Thread(target=write, daemon=True)

    async def main():
        async with files.open(near, "rb") as file:
            if waits:
                slow(file)
            writer.start()
            begin = await file.read(ahead)
            buffer = bytearray(400_000)
            assert await file.readinto(buffer) == 400_000
            rest = bytearray(200_000)
            count = await file.readinto(rest)
            assert begin + buffer + rest[:count] == data
            assert await file.readinto(rest) == 0

    run(main())
    writer.join(support.PATIENCE_S)


@pytest.mark.parametrize("waits", [False, True])
def test_a_buffer_is_filled_from_a_device_without_an_end(run, waits):
    async def main():
        async with files.open("/dev/zero", "rb") as file:
            if waits:
                slow(file)
            assert await file.readinto(bytearray(20_000_000)) == 20_000_000

    run(main())


def test_a_buffer_that_was_filled_in_part_when_that_was_cancelled_loses_nothing(run):
    near, far = pipe()

    async def main():
        async with files.open(near, "rb") as file:
            os.write(far, b"begin")
            filling = asyncio.create_task(file.readinto(bytearray(20_000)))
            while select.select([near], [], [], 0)[0]:
                await asyncio.sleep(0)
            await until_in_flight(file, filling)
            filling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await filling
            os.write(far, b" and end")
            os.close(far)
            assert await file.read() == b"begin and end"

    run(main())


class Counted(files.BufferedReader):
    """A file that counts the bytes that its buffer was given."""

    count = 0

    @property
    def _ahead(self):
        return vars(self)["_ahead"]

    @_ahead.setter
    def _ahead(self, data):
        vars(self)["_ahead"] = data
        self.count += len(data)


@pytest.mark.parametrize("call", [("read", 3_000_000), ("readline",), ("readline", 3_000_000), ("readlines",)], ids=str)
@pytest.mark.parametrize("ahead", [0, 10])
def test_no_byte_is_copied_again_for_each_piece_that_follows(run, call, ahead):
    size = 3_000_000
    near, far = pipe()

    def write():
        with open(far, "wb", 0) as file:
            file.write(b"x" * size)

    writer = threading.Thread(target=write, daemon=True)

    async def main():
        async with files.open(near, "rb") as file:
            file.__class__ = Counted
            writer.start()
            begin = await file.read(ahead)
            found = await called(file, *call)
            assert len(begin) + sum(map(len, found if call == ("readlines",) else [found])) == size
            assert file.count < 2 * size

    run(main())
    writer.join(support.PATIENCE_S)


async def cancel_when_all_is_read(file, near, call):
    """Run a call that waits for more than the pipe has, and cancel it."""
    reading = asyncio.create_task(call)
    while select.select([near], [], [], 0)[0]:
        await asyncio.sleep(0)
    await until_in_flight(file, reading)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading


@pytest.mark.parametrize("buffering", [-1, 0])
def test_what_a_cancelled_call_has_left_is_not_copied_for_each_read_of_it(run, buffering):
    near, far = pipe()

    async def main():
        async with files.open(near, "rb", buffering) as file:
            os.write(far, b"x" * 50_000)
            await cancel_when_all_is_read(file, near, file.read())
            os.close(far)
            left = file._descriptor.left
            for _ in range(5):
                assert await file.read(10_000) == b"x" * 10_000
                assert file._descriptor.left is left
            assert await file.read(1) == b""

    run(main())


def test_peek_gives_no_more_than_a_buffer_though_a_cancelled_call_has_left_more(run):
    near, far = pipe()

    async def main():
        async with files.open(near, "rb", 4096) as file:
            os.write(far, b"x" * 50_000)
            await cancel_when_all_is_read(file, near, file.read(1_000_000))
            os.close(far)
            assert await file.peek() == b"x" * 4096
            assert await file.read() == b"x" * 50_000

    run(main())
