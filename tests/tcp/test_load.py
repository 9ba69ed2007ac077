"""TCP under load: bulk data, crowds of clients, and peers with bad manners."""

import asyncio
import hashlib
import socket

import pytest

from support import (
    HOST,
    PATIENCE_S,
    Echo,
    Recorder,
    attach,
    capture_contexts,
    looks,
    reset,
    resource_warnings,
    tcp_pair,
    turn_counter,
    turns,
    until,
)
from tcp_support import BOTH, Factory, address_of


def pattern(size, seed):
    """Return `size` bytes in which every offset is recognisable."""
    block = b"".join(hashlib.sha256(b"%d %d" % (seed, number)).digest() for number in range(2048))
    return (block * (size // len(block) + 1))[:size]


@BOTH
def test_bulk_in_both_directions_at_once_with_slow_readers(loop, kind):
    size = 24 << 20
    there, back = pattern(size, 1), pattern(size, 2)

    class Slow(kind):
        """Stops reading now and then for a few turns."""

        def connection_made(self, transport):
            super().connection_made(transport)
            self.count = 0

        def pace(self):
            self.count += 1
            if self.count % 16 == 0:
                self.transport.pause_reading()
                loop.call_later(0.0005, self.transport.resume_reading)

        def data_received(self, data):
            self.data += data
            self.pace()

        def buffer_updated(self, count):
            self.data += memoryview(self.buffer)[:count]
            self.pace()

    async def main():
        factory = Factory(Slow)
        server = await loop.create_server(factory, HOST, 0)
        transport, client = await loop.create_connection(Slow, *address_of(server))
        await until(factory.has_connected)
        other = factory.made[0]
        for part in range(0, size, 3_000_000):
            transport.write(there[part : part + 3_000_000])
            other.transport.write(back[part : part + 3_000_000])
            await asyncio.sleep(0)
        await until(lambda: len(other.data) == size and len(client.data) == size)
        assert other.data == there and client.data == back
        transport.close()
        await until(lambda: client.lost and other.lost)
        server.close()
        await server.wait_closed()

    loop.run_until_complete(main())


def test_bulk_to_a_slow_raw_reader(loop):
    data = pattern(16 << 20, 3)

    async def main():
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)
        transport.writelines([data[start : start + 100_001] for start in range(0, len(data), 100_001)])
        transport.close()
        received = bytearray()
        with peer:
            while chunk := await loop.sock_recv(peer, 300_000):
                received += chunk
                if len(received) % 7 == 0:
                    await asyncio.sleep(0)
        await until(lambda: protocol.lost)
        return received == data

    assert loop.run_until_complete(main())


def test_byte_by_byte(loop):
    message = pattern(2000, 4)

    async def main():
        server = await loop.create_server(Echo, HOST, 0)
        transport, client = await loop.create_connection(Recorder, *address_of(server))
        for number in range(len(message)):
            transport.write(message[number : number + 1])
            if number % 10 == 0:
                await asyncio.sleep(0)
        await until(lambda: len(client.data) == len(message))
        assert client.data == message
        transport.close()
        await until(lambda: client.lost)
        server.close()
        await server.wait_closed()

    loop.run_until_complete(main())


def test_two_hundred_clients_at_once(loop):
    async def client(address, number):
        reader, writer = await asyncio.open_connection(*address)
        for turn in range(5):
            message = b"%d:%d;" % (number, turn) * 50
            writer.write(message)
            assert await reader.readexactly(len(message)) == message
        writer.close()
        await writer.wait_closed()

    async def main():
        factory = Factory(Echo)
        server = await loop.create_server(factory, HOST, 0, backlog=256)
        await asyncio.gather(*(client(address_of(server), number) for number in range(200)))
        assert len(factory.made) == 200
        server.close()
        await server.wait_closed()

    loop.run_until_complete(main())


def test_a_crowd_that_connects_before_the_loop_looks(loop):
    async def main():
        factory = Factory()
        server = await loop.create_server(factory, HOST, 0, backlog=50)
        clients = [socket.create_connection(address_of(server)) for _ in range(50)]
        await until(lambda: factory.has_connected(50))
        await until(lambda: all(protocol.transport for protocol in factory.made))
        names = {protocol.transport.get_extra_info("peername") for protocol in factory.made}
        assert names == {client.getsockname() for client in clients}
        for client in clients:
            client.close()
        await until(lambda: all(protocol.lost for protocol in factory.made))
        server.close()
        await server.wait_closed()

    loop.run_until_complete(main())


def test_peers_that_vanish(loop):
    contexts = capture_contexts(loop)

    async def main():
        factory = Factory()
        server = await loop.create_server(factory, HOST, 0)
        for number in range(60):
            peer = socket.create_connection(address_of(server))
            if number % 3 == 0:
                peer.send(b"x")
            if number % 2:
                reset(peer)
            else:
                peer.close()
        # A peer may be gone before it is accepted: then the kernel may drop it altogether.
        with socket.create_connection(address_of(server)) as last:
            last.send(b"last")
            await until(lambda: any(protocol.data == b"last" for protocol in factory.made))
        await until(lambda: all(protocol.lost for protocol in factory.made))
        for protocol in factory.made:
            assert protocol.names[0] == "connection_made" and protocol.names.count("connection_lost") == 1
            assert protocol.error is None or isinstance(protocol.error, ConnectionResetError)
        server.close()
        await server.wait_closed()

    loop.run_until_complete(main())
    assert contexts == []


def test_connections_that_end_while_others_begin(loop):
    """Descriptor numbers are reused at once; no event of the old connection may reach the new one."""

    async def main():
        server = await loop.create_server(Echo, HOST, 0)
        for number in range(150):
            transport, client = await loop.create_connection(Recorder, *address_of(server))
            message = b"%d" % number
            transport.write(message)
            if number % 3 == 0:
                transport.abort()
                await until(lambda client=client: client.lost)
                assert client.data in (b"", message)
            else:
                await until(lambda client=client, message=message: client.data == message)
                transport.close()
        server.close()
        await server.wait_closed()
        await turns(5)

    loop.run_until_complete(main())


def test_both_sides_close_at_the_same_time(loop):
    async def main():
        factory = Factory()
        server = await loop.create_server(factory, HOST, 0)
        transport, client = await loop.create_connection(Recorder, *address_of(server))
        await until(lambda: factory.made and factory.made[0].transport)
        transport.close()
        factory.made[0].transport.close()
        await until(lambda: client.lost and factory.made[0].lost)
        assert client.names == factory.made[0].names == ["connection_made", "connection_lost"]
        server.close()
        await server.wait_closed()

    loop.run_until_complete(main())


def test_a_descriptor_in_use_by_a_transport_is_protected(loop):
    async def main():
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)
        fd = transport.get_extra_info("socket").fileno()
        with peer:
            for call in (
                lambda: loop.add_reader(fd, print),
                lambda: loop.add_writer(fd, print),
                lambda: loop.remove_reader(fd),
                lambda: loop.remove_writer(fd),
            ):
                with pytest.raises(RuntimeError) as caught:
                    call()
                assert str(caught.value) == f"File descriptor {fd} is used by transport {transport!r}"
            transport.close()
            await until(lambda: protocol.lost)

    loop.run_until_complete(main())


def test_an_unclosed_transport_warns_and_closes_its_socket(loop_factory):
    """A loop that is closed around a live connection leaves the transport to the garbage collector."""
    loop = loop_factory()
    ours, peer = tcp_pair()
    transport, _ = loop.run_until_complete(loop.connect_accepted_socket(asyncio.Protocol, ours))
    loop.close()
    with peer:
        with resource_warnings() as messages:
            del transport, loop
        assert any(text.startswith("unclosed transport <") for text in messages)
        assert ours.fileno() == -1
        peer.setblocking(True)
        peer.settimeout(PATIENCE_S)
        assert peer.recv(1) == b""


def test_an_idle_loop_with_connections_does_not_turn(loop):
    """A loop that spins turns thousands of times in a tenth of a second."""

    async def main():
        server = await loop.create_server(Echo, HOST, 0)
        transport, client = await loop.create_connection(Recorder, *address_of(server))
        transport.write(b"x")
        await until(lambda: client.data)
        await looks()
        before = turn_count()
        await asyncio.sleep(0.1)
        made = turn_count() - before
        transport.close()
        await until(lambda: client.lost)
        server.close()
        await server.wait_closed()
        return made

    turn_count = turn_counter(loop)
    assert loop.run_until_complete(main()) < 10
