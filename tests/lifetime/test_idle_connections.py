"""The memory of idle connections."""

import pytest

from support import run_child

pytestmark = pytest.mark.exact

# Prints how many bytes a further connection takes. A source before it has `serve()`, which makes a server that counts
# its connections in `made`, and `GREETING`, which each client sends.
PER_CONNECTION = """
import _socket, gc, tracemalloc

made = 0

async def main():
    tracemalloc.start()
    server = await serve()
    clients = []

    async def connect(count):
        for _ in range(count):
            client = _socket.socket()
            client.connect(server.sockets[0].getsockname())
            client.send(GREETING)
            clients.append(client)
            while made < len(clients):
                await asyncio.sleep(0)
        for _ in range(5):
            await asyncio.sleep(0)
        gc.collect()
        # What the clients and this program take, its coroutines among that, is not the loop's.
        snapshot = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(False, "<string>")])
        return sum(trace.size for trace in snapshot.traces)

    await connect(100)
    before = await connect(100)
    print((await connect(200) - before) // 200)

with asyncio.Runner(loop_factory=new_loop) as runner:
    runner.run(main())
"""

IDLE_CONNECTIONS = """
import asyncio

GREETING = b""

class Idle(asyncio.Protocol):
    __slots__ = ()

    def connection_made(self, transport):
        global made
        made += 1

async def serve():
    return await asyncio.get_running_loop().create_server(Idle, "127.0.0.1", 0)
"""


@pytest.mark.ringloop_only
def test_idle_connections_take_little_memory(arm):
    child = run_child(IDLE_CONNECTIONS + PER_CONNECTION, arm)
    assert child.returncode == 0, child.stderr
    # About 510 B are the interpreter's objects; asyncio's take 1,550 B, uvloop's 1,270 B.
    assert 300 < int(child.stdout) < 800


IDLE_STREAMS = """
import asyncio

GREETING = b"data"

async def hear(reader, writer):
    global made
    made += 1
    await reader.readexactly(4)
    await reader.read(1000)

async def serve():
    return await asyncio.start_server(hear, "127.0.0.1", 0)
"""


@pytest.mark.ringloop_only
def test_idle_streams_take_little_memory(arm):
    """All that a server's connection takes besides its coroutine's frame, after a message: half of asyncio's."""
    # In debug mode handles and tasks remember where they were made.
    ours, theirs = [
        run_child(IDLE_STREAMS + PER_CONNECTION, kind, env={"PYTHONASYNCIODEBUG": None}) for kind in (arm, "asyncio")
    ]
    assert ours.returncode == theirs.returncode == 0, ours.stderr + theirs.stderr
    assert 800 < int(ours.stdout) < 0.5 * int(theirs.stdout)
