"""Flow control of TLS connections, in both directions."""

import asyncio

import pytest

from support import (
    PATIENCE_S,
    Recorder,
    same_as_asyncio,
    tcp_pair,
    until,
)
from tls_support import NAME, BufferedRecorder, attached, client_context, ended, received, server_context, settled


def test_writing_is_paused_and_resumed(loop_factory):
    def body(loop):
        async def main():
            protocol = Recorder()
            transport, peer = await attached(loop, protocol)
            transport.set_write_buffer_limits(high=100_000, low=10_000)
            limits = transport.get_write_buffer_limits()
            written = 0
            while "pause_writing" not in protocol.names:
                transport.write(bytes(60_000))
                written += 60_000
            assert transport.get_write_buffer_size() >= 100_000
            assert transport._protocol_paused
            received = 0
            while received < written:
                received += len(await peer.call(peer.tls.read, 1 << 16))
            await until(lambda: "resume_writing" in protocol.names)
            assert transport.get_write_buffer_size() == 0
            await ended(protocol, transport)
            peer.sock.close()
            return protocol.names, limits

        return loop.run_until_complete(main())

    same_as_asyncio(body, loop_factory)


@pytest.mark.parametrize("limits", [(0, 0), (0, None), (None, 0), (1, 1), (10**9, None), (1.5, 0.5)])
def test_marks_of_every_size(loop_factory, limits):
    def body(loop):
        async def main():
            protocol = Recorder()
            transport, peer = await attached(loop, protocol)
            high, low = limits
            transport.set_write_buffer_limits(high=high, low=low)
            if 0 not in limits:
                # Of those asyncio never resumes reading.
                transport.set_read_buffer_limits(high=high, low=low)
            for size in (1, 20_000, 1):
                transport.write(bytes(size))
                assert await peer.receive(size) == bytes(size)
                await peer.send(bytes(size))
            await until(lambda: len(protocol.data) == 20_002)
            result = protocol.names, transport.get_write_buffer_limits(), transport.get_read_buffer_limits()
            await ended(protocol, transport)
            peer.sock.close()
            return [name for name in result[0] if name != "data_received"], result[1:]

        return loop.run_until_complete(main())

    same_as_asyncio(body, loop_factory)


@pytest.mark.parametrize("limits", [(-1, None), (1, 2), ("1", None)])
def test_marks_that_make_no_sense(loop_factory, limits):
    def body(loop):
        async def main():
            protocol = Recorder()
            transport, peer = await attached(loop, protocol)
            errors = []
            for setter in (transport.set_write_buffer_limits, transport.set_read_buffer_limits):
                try:
                    setter(*limits)
                except (ValueError, TypeError) as error:
                    errors.append((type(error), str(error)))
            await ended(protocol, transport)
            peer.sock.close()
            return errors

        return loop.run_until_complete(main())

    assert len(same_as_asyncio(body, loop_factory)) == 2


@pytest.mark.parametrize("kind", [Recorder, BufferedRecorder])
def test_reading_is_paused_and_resumed(loop, kind):
    async def main():
        protocol = kind()
        transport, peer = await attached(loop, protocol)
        transport.pause_reading()
        assert not transport.is_reading()
        data = bytes(range(250)) * 8000
        sender = loop.create_task(peer.send(data))
        await until(lambda: transport.get_read_buffer_size() > 256 * 1024)
        assert not protocol.data
        transport.resume_reading()
        assert transport.is_reading()
        await until(lambda: len(protocol.data) >= len(data))
        await sender
        assert protocol.data == data
        await ended(protocol, transport)
        peer.sock.close()

    loop.run_until_complete(main())


def test_a_pause_within_a_delivery(loop_factory):
    def body(loop):
        class Pausing(Recorder):
            def data_received(self, data):
                super().data_received(data)
                self.transport.pause_reading()

        async def main():
            protocol = Pausing()
            transport, peer = await attached(loop, protocol)
            for piece in (b"one", b"two", b"three"):
                await peer.send(piece)
                await settled(peer.sock, transport.get_extra_info("socket"))
            sizes = [transport.get_read_buffer_size()]
            transport.resume_reading()
            transport.pause_reading()
            transport.resume_reading()
            await until(lambda: len(protocol.data) == 11)
            sizes.append(transport.get_read_buffer_size())
            await ended(protocol, transport)
            peer.sock.close()
            return protocol.events, sizes

        return loop.run_until_complete(main())

    same_as_asyncio(body, loop_factory)


@pytest.mark.ringloop_only
@pytest.mark.parametrize("side", ["client", "server"])
def test_a_protocol_that_pauses_reading_at_once_has_the_handshake_ended(loop, version, side):
    """Its peer gets the last words of the handshake: a client's Finished. asyncio sends them with the first read."""

    class Pausing(Recorder):
        def connection_made(self, transport):
            super().connection_made(transport)
            transport.pause_reading()

    async def main():
        ours, theirs = tcp_pair()
        paused, other = Pausing(), Recorder()
        client, server = (paused, other) if side == "client" else (other, paused)
        # The server's comes first: it ends when the client's last words are there.
        await asyncio.gather(
            loop.connect_accepted_socket(lambda: server, ours, ssl=server_context(version)),
            loop.create_connection(lambda: client, sock=theirs, ssl=client_context(version), server_hostname=NAME),
        )
        other.transport.write(b"to one who does not listen yet")
        paused.transport.write(b"and back")
        await received(other, b"and back")
        assert not paused.data
        paused.transport.resume_reading()
        await received(paused, b"to one who does not listen yet")
        await ended(paused, paused.transport)
        await ended(other)

    loop.run_until_complete(asyncio.wait_for(main(), PATIENCE_S))


@pytest.mark.parametrize("how", ["close", "abort"])
@pytest.mark.parametrize("side", ["client", "server"])
def test_a_protocol_that_pauses_reading_and_leaves_at_once(loop_factory, version, side, how):
    class Leaving(Recorder):
        def connection_made(self, transport):
            super().connection_made(transport)
            transport.pause_reading()
            getattr(transport, how)()

    def body(loop):
        async def main():
            ours, theirs = tcp_pair()
            leaving, other = Leaving(), Recorder()
            client, server = (leaving, other) if side == "client" else (other, leaving)
            outcomes = await asyncio.gather(
                loop.connect_accepted_socket(lambda: server, ours, ssl=server_context(version)),
                loop.create_connection(lambda: client, sock=theirs, ssl=client_context(version), server_hostname=NAME),
                return_exceptions=True,
            )
            await ended(leaving)
            if other.names:
                await ended(other)
            return [type(outcome) for outcome in outcomes if isinstance(outcome, Exception)], leaving.names, other.names

        return loop.run_until_complete(main())

    same_as_asyncio(body, loop_factory)
