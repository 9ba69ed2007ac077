"""Files that are not on a disk: those of /proc and /sys, pipes, terminals. As the builtin `open` reads and writes them."""

import asyncio
import os
import pathlib
import socket
import threading

import pytest

import support
from files_support import slow
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
    """Reads from a descriptor in a thread, once it is told to: so much, or to the end."""

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
