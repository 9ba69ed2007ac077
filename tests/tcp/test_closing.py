"""Closing and aborting a TCP transport."""

from support import (
    PATIENCE_S,
    Recorder,
    attach,
    looks,
    receive_all,
    turns,
    until,
)


def test_close_flushes_what_is_buffered(loop):
    amount = 8 << 20

    async def main():
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)
        transport.write(b"z" * amount)
        transport.close()
        transport.close()
        assert transport.is_closing() and not transport.is_reading()
        await turns(3)
        assert not protocol.lost, "the end comes after the last byte"
        with peer:
            assert len(await receive_all(loop, peer)) == amount
        await until(lambda: protocol.lost)
        return protocol.error

    assert loop.run_until_complete(main()) is None


def test_close_sends_fin_at_once(loop):
    """Also while the loop had a read outstanding on the socket, which on io_uring could keep it open."""

    async def main():
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)
        await looks()
        with peer:
            transport.close()
            assert not protocol.lost, "connection_lost comes in a later turn"
            await turns(2)
            assert protocol.lost
            peer.setblocking(True)
            peer.settimeout(PATIENCE_S)
            assert peer.recv(1) == b""

    loop.run_until_complete(main())


def test_data_that_arrives_after_close_is_not_delivered(loop):
    async def main():
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)
        with peer:
            await turns(2)
            peer.send(b"too late")
            transport.close()
            await until(lambda: protocol.lost)
        return protocol.names

    assert loop.run_until_complete(main()) == ["connection_made", "connection_lost"]


def test_abort_throws_away_what_is_buffered(loop):
    async def main():
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)
        transport.write(bytes(16 << 20))
        transport.abort()
        transport.abort()
        assert transport.get_write_buffer_size() == 0
        assert transport.is_closing()
        with peer:
            assert len(await receive_all(loop, peer)) < 16 << 20
        await until(lambda: protocol.lost)
        return protocol.error

    assert loop.run_until_complete(main()) is None


def test_abort_after_close_ends_the_flushing(loop):
    async def main():
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)
        transport.write(bytes(16 << 20))
        transport.close()
        await turns(2)
        assert not protocol.lost
        transport.abort()
        await until(lambda: protocol.lost)
        peer.close()
        assert protocol.names.count("connection_lost") == 1

    loop.run_until_complete(main())


def test_the_descriptor_is_free_after_connection_lost(loop):
    async def main():
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)
        sock = transport.get_extra_info("socket")
        fd = sock.fileno()
        seen = []
        original = protocol.connection_lost

        def connection_lost(error):
            seen.append(sock.fileno())
            original(error)

        protocol.connection_lost = connection_lost
        with peer:
            transport.close()
            await until(lambda: protocol.lost)
        assert seen == [fd], "open during connection_lost"
        assert sock.fileno() == -1, "closed after it"

    loop.run_until_complete(main())
