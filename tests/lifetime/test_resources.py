"""Five hundred life cycles of each kind leave descriptors, threads, children, memory and reference counts unchanged.

The first cycles fill free lists, caches and buffers; counting begins after them. Python's own counts don't include native memory, so
the size of the process is checked, too. Stock asyncio, the control, runs a fifth as many cycles.
"""

import asyncio
import concurrent.futures
import ctypes
import gc
import os
import signal
import socket
import sys
import threading
import types

import pytest

import support
from tls_support import tls_contexts

pytestmark = pytest.mark.exact

CYCLES = 500
WARM_UP = 60
# Each attempt runs twice as many cycles as the one before. A leak grows with the cycles; caches and tables that grow by chance do not.
ATTEMPTS = 4
# Of the process's size, in bytes: 4 KB a cycle would show. Allocators keep and fragment some of what they gave.
GROWTH_MAX = 2 << 20


class Echo(asyncio.Protocol):
    connections = 0
    """How many there are at the moment."""

    def connection_made(self, transport):
        Echo.connections += 1
        self.transport = transport

    def data_received(self, data):
        self.transport.write(data)

    def connection_lost(self, _error):
        Echo.connections -= 1


class EchoDatagrams(asyncio.DatagramProtocol):
    def connection_made(self, transport):
        self.transport = transport

    def datagram_received(self, data, address):
        self.transport.sendto(data, address)


class Client(asyncio.Protocol, asyncio.DatagramProtocol):
    """One object for all cycles, whose reference count is looked at."""

    def __init__(self):
        self.answer = self.end = None

    def data_received(self, data):
        self.answer.set_result(len(data))

    def datagram_received(self, data, _address):
        self.answer.set_result(len(data))

    def connection_lost(self, _error):
        self.end.set_result(None)


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def children():
    """Return the children of this process, zombies included."""
    found = set()
    for thread in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{thread}/children") as file:
            found |= set(file.read().split())
    return found


def settle():
    """Collect garbage, and give back to the system what the C library holds."""
    for _ in range(3):
        gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def look(watched, count_objects):
    settle()
    return types.SimpleNamespace(
        descriptors=support.open_descriptors(),
        threads=set(threading.enumerate()),
        children=children(),
        counts=[sys.getrefcount(it) for it in watched],
        blocks=sys.getallocatedblocks(),
        objects=count_objects(),
        resident=resident_bytes(),
    )


def leaves_nothing(loop, cycle, watched, cycles, warm_up=WARM_UP, at_once=1):
    """Run `await cycle()` again and again, or `cycle()` without a loop, and demand that everything is afterwards as it was."""

    async def repeat(count):
        connections = Echo.connections
        for _ in range(count):
            await cycle()
        # What peers have still to notice, and what the last cycles have queued.
        await support.until(lambda: Echo.connections == connections, "the end of the server's connections")
        await support.looks()
        await support.turns(5)

    def run(count):
        if loop is None:
            for _ in range(count):
                cycle()
        else:
            loop.run_until_complete(repeat(count))

    count_objects = support.count_objects_from_here()
    run(warm_up)
    after = look(watched, count_objects)
    for _ in range(ATTEMPTS):
        before = after
        run(cycles)
        after = look(watched, count_objects)
        assert not after.descriptors - before.descriptors
        assert not after.threads - before.threads
        assert not after.children - before.children
        assert after.counts == before.counts
        grown = {
            # One per cycle would show.
            "objects": (after.objects - before.objects) / (cycles * at_once),
            "blocks": (after.blocks - before.blocks) / (cycles * at_once),
            "memory": (after.resident - before.resident) / GROWTH_MAX,
        }
        if all(growth < 0.8 for growth in grown.values()):
            return
        cycles *= 2
    raise AssertionError(f"it grows again and again: {grown}")


@pytest.fixture
def cycles(arm):
    return CYCLES // 5 if arm == "asyncio" else CYCLES


@pytest.fixture
def client():
    return Client()


PAYLOAD = bytes(range(256)) * 4


async def converse(loop, client, connect, method="write"):
    """Connect, say something, hear it again, and hang up; until connection_lost has been called."""
    client.end = loop.create_future()
    client.answer = loop.create_future()
    transport, _ = await connect(lambda: client)
    getattr(transport, method)(PAYLOAD)
    assert await client.answer == len(PAYLOAD)
    transport.close()
    await client.end


def with_server(loop, make, use):
    """Start a server, run `use(server)`, and close it."""
    server = loop.run_until_complete(make())
    try:
        use(server)
    finally:
        server.close()
        loop.run_until_complete(server.wait_closed())


def test_tcp_connections(loop, client, cycles):
    with_server(
        loop,
        lambda: loop.create_server(Echo, support.HOST, 0),
        lambda server: leaves_nothing(
            loop,
            lambda: converse(
                loop,
                client,
                lambda factory: loop.create_connection(factory, *server.sockets[0].getsockname()),
            ),
            [client, PAYLOAD, loop],
            cycles,
        ),
    )


def test_tcp_connections_that_are_reset(loop, client, cycles):
    async def cycle():
        client.end = loop.create_future()
        client.answer = loop.create_future()
        transport, peer = await support.attach(loop, client)
        transport.write(PAYLOAD)
        support.reset(peer)
        await client.end

    leaves_nothing(loop, cycle, [client, PAYLOAD, loop], cycles)


def test_unix_connections(loop, client, tmp_path, cycles):
    path = str(tmp_path / "socket")
    with_server(
        loop,
        lambda: loop.create_unix_server(Echo, path),
        lambda _server: leaves_nothing(
            loop,
            lambda: converse(loop, client, lambda factory: loop.create_unix_connection(factory, path)),
            [client, PAYLOAD, loop, path],
            cycles,
        ),
    )


def test_streams(loop, cycles):
    async def echo(reader, writer):
        writer.write(await reader.read(1 << 16))
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    async def cycle(address):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(PAYLOAD)
        assert await reader.read() == PAYLOAD
        writer.close()
        await writer.wait_closed()

    with_server(
        loop,
        lambda: asyncio.start_server(echo, support.HOST, 0),
        lambda server: leaves_nothing(
            loop, lambda: cycle(server.sockets[0].getsockname()), [echo, PAYLOAD, loop], cycles
        ),
    )


def test_tls_connections(loop, client, cycles):
    ours, theirs = tls_contexts()
    with_server(
        loop,
        lambda: loop.create_server(Echo, support.HOST, 0, ssl=ours),
        lambda server: leaves_nothing(
            loop,
            lambda: converse(
                loop,
                client,
                lambda factory: loop.create_connection(factory, *server.sockets[0].getsockname(), ssl=theirs),
            ),
            [client, PAYLOAD, loop, ours, theirs],
            cycles,
        ),
    )


def test_datagram_endpoints(loop, client, cycles):
    transport, _ = loop.run_until_complete(loop.create_datagram_endpoint(EchoDatagrams, local_addr=(support.HOST, 0)))

    def connect(factory):
        return loop.create_datagram_endpoint(factory, remote_addr=transport.get_extra_info("sockname"))

    leaves_nothing(loop, lambda: converse(loop, client, connect, method="sendto"), [client, PAYLOAD, loop], cycles)
    transport.close()
    loop.run_until_complete(asyncio.sleep(0))


def test_servers(loop, cycles):
    async def cycle():
        server = await loop.create_server(factory, support.HOST, 0)
        await server.start_serving()
        server.close()
        await server.wait_closed()

    def factory():
        raise AssertionError("nobody connects")

    leaves_nothing(loop, cycle, [factory, loop], cycles)


def test_socket_operations(loop, cycles):
    async def cycle():
        first, second = socket.socketpair()
        with first, second:
            first.setblocking(False)
            second.setblocking(False)
            receiving = loop.create_task(loop.sock_recv(second, 4096))
            await asyncio.sleep(0)
            await loop.sock_sendall(first, PAYLOAD)
            assert await receiving == PAYLOAD
            receiving = loop.create_task(loop.sock_recv_into(second, buffer))
            await asyncio.sleep(0)
            receiving.cancel()
            await asyncio.wait([receiving])

    buffer = bytearray(100)
    leaves_nothing(loop, cycle, [PAYLOAD, buffer, loop], cycles)


def test_watched_descriptors(loop, cycles):
    async def cycle():
        first, second = socket.socketpair()
        with first, second:
            seen = loop.create_future()
            loop.add_reader(first, callback, seen)
            loop.add_writer(first, noop)
            second.send(b"x")
            await seen
            loop.remove_reader(first)
            loop.remove_writer(first)

    def callback(seen):
        if not seen.done():
            seen.set_result(None)

    def noop():
        pass

    leaves_nothing(loop, cycle, [callback, noop, loop], cycles)


def test_signal_handlers(loop, cycles):
    async def cycle():
        seen = loop.create_future()
        loop.add_signal_handler(signal.SIGUSR1, callback, seen)
        os.kill(os.getpid(), signal.SIGUSR1)
        await seen
        assert loop.remove_signal_handler(signal.SIGUSR1)

    def callback(seen):
        seen.set_result(None)

    leaves_nothing(loop, cycle, [callback, loop], cycles)


def test_child_processes(loop):
    """Ten at a time, and half as many: what they cost is the system's."""

    async def one():
        process = await asyncio.create_subprocess_exec(
            "/bin/true", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        assert await process.communicate() == (b"", None)
        assert process.returncode == 0

    async def cycle():
        await asyncio.gather(*(one() for _ in range(10)))

    if sys.version_info < (3, 12) and not hasattr(loop, "backend"):
        # asyncio's children have a thread each there, which ends in its own time.
        async def cycle():
            await asyncio.gather(*(one() for _ in range(10)))
            await support.until(lambda: not any("waitpid" in thread.name for thread in threading.enumerate()))

        with asyncio.ThreadedChildWatcher() as watcher:
            watcher.attach_loop(loop)
            leaves_nothing(loop, cycle, [loop], cycles=25, warm_up=3, at_once=10)
    else:
        leaves_nothing(loop, cycle, [loop], cycles=25, warm_up=3, at_once=10)


def test_the_executor(loop, cycles):
    async def cycle():
        assert await asyncio.to_thread(divmod, 7, 2) == (3, 1)

    # More threads would be started whenever all are busy for a moment.
    loop.set_default_executor(concurrent.futures.ThreadPoolExecutor(1))
    leaves_nothing(loop, cycle, [loop], cycles)
    loop.run_until_complete(loop.shutdown_default_executor())


def test_tasks_timers_and_generators(loop, cycles):
    async def numbers():
        for number in range(3):
            yield number
            await asyncio.sleep(0)

    async def cycle():
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(0.0001))
            group.create_task(asyncio.sleep(0, payload))
        async for _ in numbers():
            break
        loop.call_later(3600, noop, payload).cancel()
        loop.call_soon(noop, payload)
        try:
            async with asyncio.timeout(0):
                await asyncio.sleep(3600)
        except TimeoutError:
            pass

    def noop(_payload):
        pass

    payload = object()
    leaves_nothing(loop, cycle, [noop, payload, loop], cycles)


@pytest.mark.ringloop_only  # asyncio's own leave a block of memory behind each.
def test_whole_loops(loop_factory, cycles):
    async def main():
        server = await asyncio.get_running_loop().create_server(Echo, support.HOST, 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(PAYLOAD)
        assert await reader.readexactly(len(PAYLOAD)) == PAYLOAD
        writer.close()
        await writer.wait_closed()
        server.close()
        await server.wait_closed()

    def cycle():
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(main())

    leaves_nothing(None, cycle, [PAYLOAD, loop_factory], cycles, warm_up=20)
