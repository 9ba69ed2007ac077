"""Programs where memory is limited: they see MemoryError, and nothing of the user's size that ends the process."""

import pytest

from support import run_child

PROGRAM = """
import asyncio, contextlib, os, socket, sys, tempfile
from ringloop import files

SIZE = 40_000_000

@contextlib.contextmanager
def limited():
    support.limit_address_space(support.address_space() + SIZE // 2)
    try:
        yield
    except MemoryError:
        print("no memory")
    finally:
        support.limit_address_space()

async def stream(write):
    ours, peer = socket.socketpair()
    transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=ours)
    with peer, contextlib.closing(transport):
        with limited():
            write(transport)
        transport.abort()

async def pipe(data):
    reading, writing = os.pipe()
    transport, _ = await asyncio.get_running_loop().connect_write_pipe(asyncio.Protocol, open(writing, "wb", 0))
    with limited():
        transport.write(data)
    transport.abort()
    os.close(reading)

async def file(data):
    with tempfile.NamedTemporaryFile() as place:
        async with files.open(place.name, "wb", 0) as file:
            with limited():
                await file._descriptor.start_write(data, 0, None).wait()

async def main():
    data = bytearray(SIZE)
    match sys.argv[1]:
        case "write":
            await stream(lambda transport: transport.write(data))
        case "writelines":
            await stream(lambda transport: transport.writelines([data]))
        case "pipe":
            await pipe(data)
        case "file":
            await file(data)
    await asyncio.sleep(0)

with asyncio.Runner(loop_factory=new_loop) as runner:
    runner.run(main())
"""


@pytest.mark.exact
@pytest.mark.ringloop_only
@pytest.mark.parametrize("what", ["write", "writelines", "pipe", "file"])
def test_data_that_cannot_be_copied_is_refused(arm, what):
    done = run_child(PROGRAM, arm, what, env={"PYTHONASYNCIODEBUG": None})
    assert (done.returncode, done.stdout.strip()) == (0, "no memory"), done.stderr


def test_all_of_many_streams_is_read_with_few_addresses(arm):
    """Each call reserved 64 MB from the first megabyte on."""
    source = """
        import asyncio, socket

        COUNT, SIZE, LIMIT = 30, 2 << 20, 1 << 30

        async def main():
            loop = asyncio.get_running_loop()
            calls, peers, writers = [], [], []
            for _ in range(COUNT):
                ours, peer = socket.socketpair()
                peer.setblocking(False)
                peers.append(peer)
                reader, writer = await asyncio.open_connection(sock=ours)
                writers.append(writer)
                calls.append(loop.create_task(reader.read()))
            support.limit_address_space(support.address_space() + LIMIT)
            data = bytes(SIZE)
            await asyncio.gather(*[loop.sock_sendall(peer, data) for peer in peers])
            await asyncio.sleep(0.01)  # Most of it is read meanwhile; if not, the test says less.
            try:
                bytearray(LIMIT // 2)
            except MemoryError:
                print("no memory")
            for peer in peers:
                peer.close()
            print({len(data) for data in await asyncio.gather(*calls)})

        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(main())
    """
    child = run_child(source, arm, python_flags=("-W", "ignore"))
    assert (child.stdout, child.stderr) == ("{2097152}\n", "")
