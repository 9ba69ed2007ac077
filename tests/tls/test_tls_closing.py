"""The end of TLS connections, by the peer or by ourselves."""

import socket
import ssl

import pytest

from support import (
    Recorder,
    capture_contexts,
    looks,
    same_as_asyncio,
    until,
)
from tls_support import BufferedRecorder, attached, end_has_arrived, ended


@pytest.mark.many_cases(short=8)
@pytest.mark.parametrize("keep_open", [False, True])
@pytest.mark.parametrize("how", ["close_notify", "end", "both"])
@pytest.mark.parametrize("kind", [Recorder, BufferedRecorder])
def test_how_the_peer_ends(loop_factory, kind, how, keep_open, version):
    """close_notify, the end of the stream without it, and a program that would keep the connection open."""

    def body(loop):
        async def main():
            protocol = kind(keep_open=keep_open)
            transport, peer = await attached(loop, protocol, version)
            records = peer.encrypt(b"last words")
            if how != "end":
                with pytest.raises(ssl.SSLWantReadError):
                    peer.tls.unwrap()
                records += peer.outgoing.read()
            # In one piece: a kernel that is busy delivers two one by one, and the protocol is asked for another buffer.
            await loop.sock_sendall(peer.sock, records)
            if how != "close_notify":
                peer.sock.shutdown(socket.SHUT_WR)
            await ended(protocol)
            rest = b""
            try:
                while data := await loop.sock_recv(peer.sock, 1 << 16):
                    rest += data
            except ConnectionResetError:
                rest = b"reset"
            peer.sock.close()
            return protocol.names, bytes(protocol.data), repr(protocol.error), transport.is_closing(), bool(rest)

        contexts = capture_contexts(loop)
        return loop.run_until_complete(main()), [context["message"] for context in contexts]

    same_as_asyncio(body, loop_factory)


def test_closing_says_goodbye_after_everything_written(loop, version):
    async def main():
        protocol = Recorder()
        transport, peer = await attached(loop, protocol, version)
        data = b"x" * 5_000_000
        transport.write(data)
        transport.close()
        transport.close()
        assert await peer.receive(len(data)) == data
        assert await peer.call(peer.tls.read, 1) == b""
        peer.tls.unwrap()
        await peer.flush()
        await ended(protocol)
        assert protocol.error is None
        peer.sock.close()

    loop.run_until_complete(main())


def test_a_peer_that_never_says_goodbye(loop):
    async def main():
        protocol = Recorder()
        transport, peer = await attached(loop, protocol, ssl_shutdown_timeout=0.05)
        transport.close()
        await ended(protocol)
        assert isinstance(protocol.error, TimeoutError)
        assert str(protocol.error) == "SSL shutdown timed out"
        peer.sock.close()

    loop.run_until_complete(main())


@pytest.mark.ringloop_only
def test_a_peer_that_says_goodbye_and_then_does_not_read(loop):
    """asyncio before 3.14 stops counting once close_notify has come, and such a peer holds the connection open for ever."""

    async def main():
        protocol = Recorder()
        transport, peer = await attached(loop, protocol, ssl_shutdown_timeout=0.1)
        transport.write(bytes(50_000_000))
        with pytest.raises(ssl.SSLWantReadError):
            peer.tls.unwrap()
        await peer.flush()
        await ended(protocol)
        assert isinstance(protocol.error, TimeoutError)
        peer.sock.close()

    loop.run_until_complete(main())


@pytest.mark.parametrize("how", ["end", "both"])
def test_the_peer_ends_while_reading_is_paused(loop_factory, how, version):
    """The protocol receives everything, and then the end, when it reads on."""

    def body(loop):
        async def main():
            protocol = Recorder()
            transport, peer = await attached(loop, protocol, version)
            transport.pause_reading()
            await end(loop, peer, b"last words", how)
            before = bytes(protocol.data), list(protocol.names)
            transport.write(b"not sent")
            transport.resume_reading()
            await ended(protocol)
            peer.sock.close()
            return before, bytes(protocol.data), protocol.names, repr(protocol.error)

        return loop.run_until_complete(main())

    same_as_asyncio(body, loop_factory)


async def end(loop, peer, data, how):
    """Send data and the end of the stream, after close_notify or without it, and wait until they are read."""
    records = peer.encrypt(data)
    if how == "both":
        with pytest.raises(ssl.SSLWantReadError):
            peer.tls.unwrap()
        records += peer.outgoing.read()
    await loop.sock_sendall(peer.sock, records)
    peer.sock.shutdown(socket.SHUT_WR)
    await until(lambda: end_has_arrived(peer.sock), "the end")
    await looks()


@pytest.mark.ringloop_only
@pytest.mark.parametrize("how", ["end", "both"])
@pytest.mark.parametrize("kind", [Recorder, BufferedRecorder])
def test_closing_a_connection_whose_peer_ended_while_reading_was_paused(loop, kind, how, version):
    """asyncio waits until the protocol reads on, and nobody does that after closing: the connection stays for ever."""

    async def main():
        protocol = kind()
        transport, peer = await attached(loop, protocol, version)
        transport.pause_reading()
        await end(loop, peer, b"not read", how)
        transport.close()
        await ended(protocol)
        assert protocol.data == b""
        assert protocol.error is None
        peer.sock.close()

    loop.run_until_complete(main())


@pytest.mark.ringloop_only
def test_pausing_and_closing_within_the_last_read(loop, version):
    """The read goes on, and ends the connection."""

    class Pausing(Recorder):
        def data_received(self, data):
            super().data_received(data)
            self.transport.pause_reading()
            self.transport.close()

    async def main():
        contexts = capture_contexts(loop)
        protocol = Pausing()
        transport, peer = await attached(loop, protocol, version)
        protocol.transport = transport
        transport.pause_reading()
        await end(loop, peer, b"last words", "end")
        transport.resume_reading()
        await ended(protocol)
        assert protocol.data == b"last words"
        assert (protocol.error, contexts) == (None, [])
        peer.sock.close()

    loop.run_until_complete(main())


def test_writes_after_the_end(loop_factory, caplog):
    def body(loop):
        async def main():
            protocol = Recorder()
            transport, peer = await attached(loop, protocol)
            caplog.clear()
            transport.abort()
            for _ in range(8):
                transport.write(b"x")
                transport.writelines([b"x"])
            await ended(protocol)
            transport.write(b"x")
            peer.sock.close()
            return protocol.names, [record.getMessage() for record in caplog.records]

        return loop.run_until_complete(main())

    assert "SSL connection is closed" in same_as_asyncio(body, loop_factory)[1]


def test_the_protocol_closes_while_data_is_delivered(loop_factory):
    def body(loop):
        class Closing(Recorder):
            def data_received(self, data):
                super().data_received(data)
                if len(self.data) == 3:
                    self.transport.write(b"bye")
                    self.transport.close()

        async def main():
            protocol = Closing()
            _, peer = await attached(loop, protocol)
            await loop.sock_sendall(peer.sock, peer.encrypt(b"one"))
            assert await peer.receive(3) == b"bye"
            assert await peer.call(peer.tls.read, 1) == b""
            await loop.sock_sendall(peer.sock, peer.encrypt(b"two"))
            peer.tls.unwrap()
            await peer.flush()
            await ended(protocol)
            peer.sock.close()
            return protocol.events[:-1], repr(protocol.error)

        return loop.run_until_complete(main())

    same_as_asyncio(body, loop_factory)
