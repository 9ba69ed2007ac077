"""Reading from a TCP transport: pausing, resuming, and what stays unread."""

import asyncio
import contextlib
import socket

import pytest

from support import (
    HOST,
    BufferedRecorder,
    Recorder,
    attach,
    looks,
    same_as_asyncio,
    tcp_pair,
    turns,
    until,
)
from tcp_support import BOTH, address_of


@BOTH
def test_pause_and_resume_reading(loop, kind):
    async def main():
        protocol = kind()
        transport, peer = await attach(loop, protocol)
        with peer:
            assert transport.is_reading()
            transport.pause_reading()
            transport.pause_reading()
            assert not transport.is_reading()
            peer.send(b"waits")
            await looks()
            assert not protocol.data
            transport.resume_reading()
            transport.resume_reading()
            assert transport.is_reading()
            await until(lambda: protocol.data == b"waits")
        await until(lambda: protocol.lost)
        assert not transport.is_reading()
        transport.pause_reading()
        transport.resume_reading()
        assert not transport.is_reading()

    loop.run_until_complete(main())


def test_reading_may_be_paused_before_it_begins(loop):
    class Pauses(Recorder):
        def connection_made(self, transport):
            super().connection_made(transport)
            transport.pause_reading()

    ours, peer = tcp_pair()
    peer.send(b"early")

    async def main():
        transport, protocol = await loop.connect_accepted_socket(Pauses, ours)
        await looks()
        assert not protocol.data
        transport.resume_reading()
        await until(lambda: protocol.data == b"early")
        peer.close()
        await until(lambda: protocol.lost)

    loop.run_until_complete(main())


def test_pausing_in_data_received_stops_at_once(loop):
    class OneAtATime(Recorder):
        def data_received(self, data):
            super().data_received(data)
            self.transport.pause_reading()

    async def main():
        protocol = OneAtATime()
        transport, peer = await attach(loop, protocol)
        with peer:
            await loop.sock_sendall(peer, bytes(1 << 20))
            for expected in range(1, 4):
                await until(lambda expected=expected: protocol.names.count("data_received") == expected)
                await turns(10)
                assert protocol.names.count("data_received") == expected
                transport.resume_reading()
            transport.abort()
        await until(lambda: protocol.lost)

    loop.run_until_complete(main())


def test_what_stays_unread_is_read_after_resuming(loop):
    """No new arrival announces it: a watch that fires on arrivals alone would sleep for ever."""

    async def main():
        protocol = BufferedRecorder(size=1000)
        transport, peer = await attach(loop, protocol)
        with peer:
            peer.send(bytes(10_000))
            await until(lambda: len(protocol.data) >= 1000)
            transport.pause_reading()
            seen = len(protocol.data)
            await looks()
            assert len(protocol.data) == seen
            transport.resume_reading()
            await until(lambda: len(protocol.data) == 10_000)
        await until(lambda: protocol.lost)

    loop.run_until_complete(main())


def test_one_read_per_turn_and_connection(loop):
    """A busy connection does not keep the others from their turn."""
    trace = []

    class Tracing(BufferedRecorder):
        def buffer_updated(self, count):
            super().buffer_updated(count)
            trace.append(self)

    async def main():
        pairs = [(Tracing(size=100), *tcp_pair()) for _ in range(2)]
        for protocol, ours, peer in pairs:
            peer.send(bytes(2000))
            await loop.connect_accepted_socket(lambda protocol=protocol: protocol, ours)
        await until(lambda: all(len(protocol.data) == 2000 for protocol, _, _ in pairs))
        for protocol, _, peer in pairs:
            peer.close()
            await until(lambda protocol=protocol: protocol.lost)
        return pairs[1][0]

    second = loop.run_until_complete(main())
    assert trace.index(second) <= 5, "the second connection had to wait until the first was drained"


def test_the_end_is_not_seen_while_reading_is_paused(loop):
    async def main():
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)
        transport.pause_reading()
        peer.send(b"last words")
        peer.close()
        await looks()
        assert protocol.names == ["connection_made"]
        transport.resume_reading()
        await until(lambda: protocol.lost)
        return protocol.names

    assert loop.run_until_complete(main()) == ["connection_made", "data_received", "eof_received", "connection_lost"]


def test_a_transport_reads_once_in_a_turn(loop_factory):
    """Also if more arrives while it has left something: it comes back for that, and is told of the arrival, too."""

    def body(loop):
        async def main():
            reads_per_turn = []
            is_counting = True

            def count_turn():
                reads_per_turn.append(0)
                if is_counting:
                    loop.call_soon(count_turn)

            class Protocol(Recorder):
                def data_received(self, data):
                    reads_per_turn[-1] += 1
                    with contextlib.suppress(BlockingIOError):
                        peer.send(bytes(65536))

            ours, peer = tcp_pair()
            peer.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    peer.send(bytes(65536))
            count_turn()
            protocol = Protocol()
            transport, _ = await loop.connect_accepted_socket(lambda: protocol, ours)
            await until(lambda: sum(reads_per_turn) >= 100)
            is_counting = False
            peer.close()
            transport.abort()
            await until(lambda: protocol.lost)
            return max(reads_per_turn)

        return loop.run_until_complete(main())

    assert same_as_asyncio(body, loop_factory) == 1


async def accepted(loop, protocol):
    """Attach as `attach` does, with a server's transport, whose socket nobody else has."""
    server = await loop.create_server(lambda: protocol, HOST, 0)
    peer = socket.create_connection(address_of(server))
    await until(lambda: protocol.transport is not None)
    server.close()
    return protocol.transport, peer


@BOTH
@pytest.mark.parametrize("connect", [attach, accepted])
def test_what_was_reported_before_a_resume_is_read_in_the_next_turn(loop, kind, connect):
    """asyncio's selector reports a socket only in the turn after that in which it is asked to."""

    async def main():
        protocol = kind()
        transport, peer = await connect(loop, protocol)
        with peer:
            transport.pause_reading()
            await turns(3)
            # The next turn is told of this, and calls what is queued here first.
            peer.send(b"early")
            loop.call_soon(transport.resume_reading)
            await turns(2)
            assert not protocol.data
            await until(lambda: protocol.data == b"early")
        await until(lambda: protocol.lost)

    loop.run_until_complete(main())


@pytest.mark.parametrize("connect", [attach, accepted])
def test_what_was_reported_before_reading_began_is_read_in_the_next_turn(loop, connect):
    class BlocksAndPauses(Recorder):
        def connection_made(self, transport):
            super().connection_made(transport)
            transport.pause_reading()
            # From now on the socket is watched, for room.
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            transport.write(bytes(64 << 20))

    async def main():
        protocol = BlocksAndPauses()
        transport, peer = await connect(loop, protocol)
        with peer:
            await turns(3)
            peer.send(b"early")
            loop.call_soon(transport.resume_reading)
            await turns(2)
            assert not protocol.data
            await until(lambda: protocol.data == b"early")
            transport.abort()
            await until(lambda: protocol.lost)

    loop.run_until_complete(main())


def test_one_of_two_reads_is_refused_as_under_asyncio(loop_factory):
    """The first one resumes a reader that was paused, and waits for at least a turn; then nobody else may wait."""

    def body(loop):
        async def main():
            connected = loop.create_future()
            server = await asyncio.start_server(
                lambda reader, writer: connected.set_result((reader, writer)), HOST, 0, limit=16
            )
            peer = socket.create_connection(address_of(server))
            reader, writer = await connected
            server.close()
            peer.send(bytes(200))
            await until(lambda: len(reader._buffer) == 200)
            # It is too full: reading is paused.
            reader._buffer.clear()
            await turns(3)
            peer.send(b"more")
            first = loop.create_task(reader.read(100))
            await turns(2)
            try:
                second = await reader.read(100)
            except RuntimeError as error:
                second = str(error)
            result = await first, second
            peer.close()
            writer.close()
            return result

        return loop.run_until_complete(main())

    assert same_as_asyncio(body, loop_factory)[0] == b"more"
