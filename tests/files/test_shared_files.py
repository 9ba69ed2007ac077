"""Files that others have, too, and move: another process, a duplicate. And files whose position the kernel moves to the end."""

import asyncio
import os
import subprocess
import sys

import pytest

import support
from files_support import slow, until_in_flight
from ringloop import files

RECORD = 4096


@pytest.fixture
def records(tmp_path):
    """Return a file of 20 records, each of which is different."""
    path = tmp_path / "records"
    path.write_bytes(b"".join(b"%04d" % number * (RECORD // 4) for number in range(20)))
    return path


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("buffering", [-1, 0])
def test_what_others_write_to_a_shared_file_is_not_overwritten(run, tmp_path, buffering, waits):
    path = tmp_path / "file"

    async def main():
        async with files.open(path, "wb", buffering) as file:
            if waits:
                slow(file)
            other = os.dup(file.fileno())
            try:
                for _ in range(20):
                    writing = asyncio.create_task(file.write(b"mine.." * 10_000))
                    await support.turns(2)
                    os.write(other, b"theirs" * 100)
                    await writing
            finally:
                os.close(other)

    run(main())
    content = path.read_bytes()
    assert content.count(b"mine..") == 20 * 10_000
    assert content.count(b"theirs") == 20 * 100
    assert len(content) == 6 * 20 * 10_100


def test_a_file_that_is_shared_while_it_is_written_goes_on_behind_that(run, tmp_path):
    path = tmp_path / "file"

    async def main():
        async with files.open(path, "w+b", 0) as file:
            slow(file)
            writing = asyncio.create_task(file.write(b"mine"))
            await until_in_flight(file, writing)
            # Only an operation of io_uring has a place of its own. A thread may not have begun.
            if file._descriptor.writing is not None:
                os.write(file.fileno(), b"theirs")
                await writing
                assert path.read_bytes() == b"minetheirs"
                assert await file.tell() == 10
            else:
                await writing

    run(main())


UNFINISHED = """
import asyncio, errno, resource
from files_support import slow, until_in_flight
from ringloop import files

async def main():
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    async with files.open(sys.argv[1], "wb", 0) as file:
        slow(file)
        for expected in (100_000, errno.EFBIG):
            writing = asyncio.create_task(file.write(b"x" * 150_000))
            await until_in_flight(file, writing)
            file.fileno()
            try:
                count = await writing
            except OSError as error:
                count = error.errno
            assert count == expected, count
            assert await file.tell() == 100_000

loop = new_loop()
loop.run_until_complete(main())
loop.close()
"""


def test_a_file_that_is_shared_while_a_write_fails_is_where_the_write_has_ended(arm, tmp_path):
    done = support.run_child(UNFINISHED, arm, tmp_path / "file")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("buffering", [-1, 0])
def test_nothing_of_a_shared_file_is_read_twice(run, records, buffering, waits):
    async def main():
        number = os.open(records, os.O_RDONLY)
        async with files.open(number, "rb", buffering) as file:
            if waits:
                slow(file)
            seen = []
            while True:
                reading = asyncio.create_task(file.read(RECORD))
                await support.turns(2)
                theirs = os.read(number, RECORD)
                seen += [theirs, await reading]
                if not seen[-1] and not theirs:
                    break
            return b"".join(seen)

    data = run(main())
    pieces = [data[start : start + 4] for start in range(0, len(data), 4)]
    assert sorted(pieces) == sorted(b"%04d" % number for number in range(20) for _ in range(RECORD // 4))


@pytest.mark.parametrize("buffering", [-1, 0])
def test_a_cancelled_read_of_a_shared_file_loses_nothing(run, records, buffering):
    content = records.read_bytes()

    async def main():
        async with files.open(records, "r+b", buffering) as file:
            slow(file)
            file.fileno()

            async def cancelled_read():
                while True:
                    position = await file.tell()
                    reading = asyncio.create_task(file.read(10_000))
                    await until_in_flight(file, reading)
                    reading.cancel()
                    try:
                        await reading
                    except asyncio.CancelledError:
                        return
                    # It was done before it could be cancelled.
                    await file.seek(position)

            await cancelled_read()
            assert await file.read(3) == content[:3]
            assert await file.tell() == 3
            await cancelled_read()
            assert await file.seek(4, os.SEEK_CUR) == 7
            assert await file.read(3) == content[7:10]
            await cancelled_read()
            assert await file.write(b"new") == 3
            await file.flush()
            assert await file.tell() == 13
            await cancelled_read()
            assert await file.truncate() == 13
            await file.seek(0)
            await cancelled_read()
            assert await file.read() == content[:10] + b"new"

    run(main())
    assert records.read_bytes() == content[:10] + b"new"


@pytest.mark.parametrize("shared", [False, True])
def test_a_file_of_which_only_a_part_is_in_the_cache_is_read_as_a_whole(run, records, shared):
    content = records.read_bytes()

    async def main():
        for buffering in (-1, 0):
            async with files.open(records, "rb", buffering) as file:
                number = file._descriptor.fd
                if shared:
                    file.fileno()
                for call in (file.read, lambda: file.read(3 * RECORD), lambda: file.readinto(bytearray(3 * RECORD))):
                    os.fsync(number)
                    os.posix_fadvise(number, 0, 0, os.POSIX_FADV_RANDOM)
                    os.posix_fadvise(number, 0, 0, os.POSIX_FADV_DONTNEED)
                    os.pread(number, RECORD, 0)
                    os.pread(number, RECORD, 2 * RECORD)
                    data = await call()
                    size = data if isinstance(data, int) else len(data)
                    assert size == (len(content) if call == file.read else 3 * RECORD)
                    assert isinstance(data, int) or data == content[:size]
                    assert await file.tell() == size
                    await file.seek(0)

    run(main())


CHILD = """
import os, sys
for number in range(int(sys.argv[1])):
    os.write(1, b"child %05d\\n" % number)
"""


@pytest.mark.parametrize("mode", ["wb", "ab", "w+b"])
def test_a_log_that_a_child_writes_to_as_well_has_all_lines(run, tmp_path, mode):
    path, count = tmp_path / "log", 2000

    async def main():
        async with files.open(path, mode, 0) as file:
            with subprocess.Popen([sys.executable, "-c", CHILD, str(count)], stdout=file.fileno()) as child:
                written = 0
                while child.poll() is None:
                    await file.write(b"parent %04d\n" % written)
                    written += 1
            return written

    written = run(main())
    lines = path.read_bytes().splitlines()
    assert sorted(lines) == sorted(
        [b"child %05d" % number for number in range(count)] + [b"parent %04d" % number for number in range(written)]
    )


FORKED = """
import asyncio
from files_support import slow
from ringloop import files

async def main():
    async with files.open(sys.argv[1], "wb", 0) as file:
        slow(file)
        await file.write(b"first\\n")
        child = os.fork()
        if child == 0:
            number = file._descriptor.fd
            for _ in range(2000):
                os.write(number, b"child\\n")
            os._exit(0)
        for _ in range(200):
            await file.write(b"parent\\n")
        os.waitpid(child, 0)

loop = new_loop()
loop.run_until_complete(main())
loop.close()
"""


def test_a_forked_child_shares_the_files_of_its_parent(arm, tmp_path):
    path = tmp_path / "file"
    done = support.run_child(FORKED, arm, path, python_flags=("-W", "ignore::DeprecationWarning"))
    assert (done.returncode, done.stderr) == (0, "")
    lines = path.read_bytes().splitlines()
    assert [lines.count(line) for line in (b"first", b"child", b"parent")] == [1, 2000, 200]


APPENDING = {
    "opener": lambda path, opens: opens(path, "r+b", opener=lambda name, flags: os.open(name, flags | os.O_APPEND)),
    "number": lambda path, opens: opens(os.open(path, os.O_RDWR | os.O_APPEND), "r+b"),
    "unbuffered": lambda path, opens: opens(os.open(path, os.O_RDWR | os.O_APPEND), "r+b", 0),
    "mode": lambda path, opens: opens(path, "a+b"),
    # The mode moves the position to the file's end once; the descriptor does not append.
    "only the mode": lambda path, opens: opens(os.open(path, os.O_RDWR), "a+b"),
}


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("way", APPENDING)
def test_a_file_that_appends_is_where_the_kernel_has_moved_it(run, tmp_path, way, waits):
    paths = [tmp_path / "blocking", tmp_path / "awaited"]
    for path in paths:
        path.write_bytes(b"0123456789")

    with APPENDING[way](paths[0], open) as file:
        expected = [file.seek(2), file.write(b"abc"), file.flush(), file.tell(), file.read(), file.seek(4)]
        expected += [file.write(b"d"), file.flush(), file.tell(), file.seek(0), file.read()]

    async def main():
        async with APPENDING[way](paths[1], files.open) as file:
            if waits:
                slow(file)
            found = [await file.seek(2), await file.write(b"abc"), await file.flush(), await file.tell()]
            found += [await file.read(), await file.seek(4), await file.write(b"d"), await file.flush()]
            return [*found, await file.tell(), await file.seek(0), await file.read()]

    assert run(main()) == expected
    assert paths[1].read_bytes() == paths[0].read_bytes()
