"""Files of file systems that ask somebody: no call keeps the loop, or other threads, waiting for the answer."""

import pytest

import support


def run_on_fuse(source, arm, folder):
    """Run Python source in a child process that has mounted a FUSE file system at `folder`, its argument."""
    done = support.run_child(source, arm, folder)
    if done.stdout.startswith("unavailable: "):
        pytest.skip(f"cannot mount a FUSE file system: {done.stdout.strip()}")
    assert (done.returncode, done.stderr) == (0, "")


ANSWERED_BY_THE_LOOP = """
import asyncio, os

from fuse_support import CREATE, FLUSH, FSYNC, GETATTR, OPEN, READ, SETATTR, SIZE, WRITE, FileSystem
from ringloop import files


async def use(folder):
    path = folder + "/file"
    await asyncio.to_thread(os.stat, path)
    async with files.open(path, "rb") as file:
        assert await file.read(100) == b"x" * 100
        assert len(await file.read()) == SIZE - 100
        assert await file.seek(-10, os.SEEK_END) == SIZE - 10
        assert await file.pread(20, 5) == b"x" * 20
        assert await file.readinto(bytearray(SIZE)) == 10
        assert not await file.isatty()
    async with files.open(path) as file:
        assert len(await file.read()) == SIZE
    async with files.open(path, "rb", 0) as file:
        assert len(await file.readall()) == SIZE
        assert await file.seek(0, os.SEEK_END) == SIZE
    async with files.open(path, "r+b") as file:
        await file.write(b"y" * 20_000)
        await file.fsync()
        await file.truncate(SIZE)
        await file.pwrite(b"y", 7)
    for mode in "ab", "w":
        async with files.open(path, mode) as file:
            await file.write("y" if mode == "w" else b"y")
    async with files.open(folder + "/new", "xb") as file:
        await file.write(b"y")
    for options in {}, {"opener": os.open}:
        target = path if options else await asyncio.to_thread(os.open, path, os.O_RDONLY)
        async with files.open(target, "rb", **options) as file:
            assert len(await file.read()) == SIZE
    used = {GETATTR, SETATTR, OPEN, READ, WRITE, FLUSH, FSYNC, CREATE}
    assert system.asked >= used, used - system.asked


system = FileSystem(sys.argv[1])
loop = new_loop()
loop.add_reader(system.questions, system.answer)
try:
    loop.run_until_complete(use(sys.argv[1]))
    loop.run_until_complete(loop.shutdown_default_executor())
finally:
    system.close()
    loop.close()
"""


def test_a_file_system_that_asks_the_loop_gets_its_answers(arm, tmp_path):
    run_on_fuse(ANSWERED_BY_THE_LOOP, arm, tmp_path)


ANSWERED_BY_A_THREAD = """
import asyncio, os, socket, threading

from fuse_support import SIZE, FileSystem


def answer():
    while system.answer():
        pass


async def send(way, file):
    loop = asyncio.get_running_loop()
    ours, peer = socket.socketpair()
    for sock in ours, peer:
        sock.setblocking(False)
    if way == "sock_sendfile":
        sending = asyncio.create_task(loop.sock_sendfile(ours, file))
    else:
        transport, _ = await loop.create_connection(asyncio.Protocol, sock=ours)
        sending = asyncio.create_task(loop.sendfile(transport, file))
    received = 0
    while received < SIZE:
        received += len(await loop.sock_recv(peer, SIZE))
    assert await sending == SIZE
    peer.close()
    ours.close() if way == "sock_sendfile" else transport.close()


async def main(path):
    for way in "sendfile", "sock_sendfile":
        # What was read of it is forgotten when it is opened.
        with await asyncio.to_thread(open, path, "rb") as file:
            await send(way, file)


system = FileSystem(sys.argv[1])
thread = threading.Thread(target=answer)
thread.start()
loop = new_loop()
try:
    loop.run_until_complete(main(sys.argv[1] + "/file"))
    loop.run_until_complete(loop.shutdown_default_executor())
finally:
    system.close()
    thread.join()
    loop.close()
"""


def test_a_file_system_that_asks_a_thread_gets_its_answers_while_a_file_is_sent(arm, tmp_path):
    run_on_fuse(ANSWERED_BY_A_THREAD, arm, tmp_path)
