"""Files of file systems that ask somebody: no call keeps the loop waiting for the answer."""

import pytest

import support

PROGRAM = """
import asyncio, ctypes, os, select, stat, struct, sys

from ringloop import files

PATIENCE_S = 10
SIZE = 100_000
FORGET, SETATTR, WRITE, RELEASE, FLUSH, INIT, INTERRUPT, CREATE, BATCH_FORGET = 2, 4, 16, 18, 25, 26, 36, 35, 42
LOOKUP, GETATTR, OPEN, READ, FSYNC = 1, 3, 14, 15, 20
NEW_USERS, NEW_MOUNTS = 0x10000000, 0x00020000


def unavailable(reason):
    print("unavailable:", reason)
    sys.exit()


def mount(folder):
    # In a namespace of this process, so that the mount goes with it.
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    if libc.unshare(NEW_MOUNTS | (NEW_USERS if user else 0)):
        unavailable("unshare(2) failed")
    if user:
        for name, text in ("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1"):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    try:
        device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        unavailable(error)
    options = b"fd=%d,rootmode=40000,user_id=0,group_id=0" % device
    if libc.mount(b"fuse", folder.encode(), b"fuse", 0, options):
        unavailable(f"mount(2) failed: {ctypes.get_errno()}")
    return device


def attributes(node):
    kind = stat.S_IFDIR | 0o755 if node == 1 else stat.S_IFREG | 0o644
    size = 0 if node == 1 else SIZE
    return struct.pack("<6Q10I", node, size, 0, 0, 0, 0, 0, 0, 0, kind, 1, 0, 0, 0, 4096, 0)


def serve(device, ask, answer):
    # Names may be cached, attributes may not.
    while True:
        request = os.read(device, 1 << 18)
        _, operation, number, node = struct.unpack_from("<IIQQ", request)
        body, reply, error = request[40:], b"", 0
        entry = struct.pack("<QQQQII", 2, 0, 3600, 0, 0, 0) + attributes(2)
        if operation in (FORGET, BATCH_FORGET, INTERRUPT):
            continue
        if operation not in (INIT, RELEASE):
            os.write(ask, bytes([operation]))
            if not select.select([answer], [], [], PATIENCE_S)[0]:
                # The calls fail with ENOTCONN then.
                print("the loop did not turn during operation", operation, file=sys.stderr, flush=True)
                return
            os.read(answer, 1)
        if operation == INIT:
            reply = struct.pack("<IIIIHHIIHHII24x", 7, 31, 1 << 17, 1, 12, 9, 1 << 16, 1, 16, 0, 0, 0)
        elif operation == LOOKUP:
            reply = entry
            if body.rstrip(b"\\0") != b"file":
                reply, error = b"", -2
        elif operation in (GETATTR, SETATTR):
            reply = struct.pack("<QII", 0, 0, 0) + attributes(node)
        elif operation == OPEN:
            reply = struct.pack("<QII", 1, 0, 0)
        elif operation == CREATE:
            reply = entry + struct.pack("<QII", 1, 0, 0)
        elif operation == READ:
            _, offset, size = struct.unpack_from("<QQI", body)
            reply = b"x" * max(0, min(size, SIZE - offset))
        elif operation == WRITE:
            reply = struct.pack("<II", struct.unpack_from("<QQI", body)[2], 0)
        elif operation not in (RELEASE, FLUSH, FSYNC):
            error = -38
        os.write(device, struct.pack("<IiQ", 16 + len(reply), error, number) + reply)


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
    asked.discard(LOOKUP)
    assert asked >= {GETATTR, SETATTR, OPEN, READ, WRITE, FLUSH, FSYNC, CREATE}, asked


device = mount(sys.argv[1])
ask, answer = os.pipe(), os.pipe()
server = os.fork()
if server == 0:
    try:
        serve(device, ask[1], answer[0])
    finally:
        os._exit(0)
os.close(device)
asked = set()


def reply():
    asked.update(os.read(ask[0], 1))
    os.write(answer[1], b"!")


loop = new_loop()
loop.add_reader(ask[0], reply)
try:
    loop.run_until_complete(use(sys.argv[1]))
    loop.run_until_complete(loop.shutdown_default_executor())
finally:
    os.kill(server, 9)
    loop.close()
"""


def test_a_file_system_that_asks_the_loop_gets_its_answers(arm, tmp_path):
    done = support.run_child(PROGRAM, arm, tmp_path)
    if done.stdout.startswith("unavailable: "):
        pytest.skip(f"cannot mount a FUSE file system: {done.stdout.strip()}")
    assert (done.returncode, done.stderr) == (0, "")
