"""The memory of idle connections."""

import pytest

from support import run_child

IDLE_CONNECTIONS = """
import _socket, asyncio, gc, tracemalloc

made = 0

class Idle(asyncio.Protocol):
    __slots__ = ()

    def connection_made(self, transport):
        global made
        made += 1

async def main():
    tracemalloc.start()
    server = await asyncio.get_running_loop().create_server(Idle, "127.0.0.1", 0)
    clients = []

    async def connect(count):
        for _ in range(count):
            client = _socket.socket()
            client.connect(server.sockets[0].getsockname())
            clients.append(client)
            while made < len(clients):
                await asyncio.sleep(0)
        gc.collect()
        # What the clients and this program take is not the loop's.
        snapshot = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(False, "<string>")])
        return sum(trace.size for trace in snapshot.traces)

    await connect(100)
    before = await connect(100)
    print((await connect(200) - before) // 200)

with asyncio.Runner(loop_factory=new_loop) as runner:
    runner.run(main())
"""


@pytest.mark.ringloop_only
def test_idle_connections_take_little_memory(arm):
    child = run_child(IDLE_CONNECTIONS, arm)
    assert child.returncode == 0, child.stderr
    # About 510 B are the interpreter's objects; asyncio's take 1,550 B, uvloop's 1,270 B.
    assert 300 < int(child.stdout) < 800
