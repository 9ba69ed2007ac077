"""The protocol of a TCP connection, from its first callback to its last, and after it was exchanged."""

import errno
import socket

import pytest

from support import (
    BufferedRecorder,
    Recorder,
    attach,
    capture_contexts,
    receive_all,
    receive_exactly,
    reset,
    tcp_pair,
    turns,
    until,
)
from tcp_support import BOTH

TCP_CLOSE = 7
"""The state of a connection, in what TCP_INFO tells first, that has ended (tcp_states.h of Linux)."""


@BOTH
def test_the_life_of_a_protocol(loop, kind):
    async def main():
        protocol = kind()
        transport, peer = await attach(loop, protocol)
        with peer:
            assert protocol.names == ["connection_made"]
            peer.send(b"one")
            await until(lambda: protocol.data == b"one")
            peer.send(b"two")
            await until(lambda: protocol.data == b"onetwo")
        await until(lambda: protocol.lost)
        assert transport.is_closing()
        return protocol.events

    events = loop.run_until_complete(main())
    if kind is Recorder:
        assert events == [
            ("connection_made",),
            ("data_received", b"one"),
            ("data_received", b"two"),
            ("eof_received",),
            ("connection_lost", None),
        ]
    else:
        assert events == [
            ("connection_made",),
            ("get_buffer", -1), ("buffer_updated", 3),
            ("get_buffer", -1), ("buffer_updated", 3),
            ("get_buffer", -1), ("eof_received",),
            ("connection_lost", None),
        ]  # fmt: skip


def test_data_arrives_as_bytes(loop):
    async def main():
        protocol = Recorder()
        _, peer = await attach(loop, protocol)
        with peer:
            for size in (1, 2, 100, 65536, 200_000):
                before = len(protocol.data)
                await loop.sock_sendall(peer, b"z" * size)
                await until(lambda before=before, size=size: len(protocol.data) == before + size)
        await until(lambda: protocol.lost)
        return {type(event[1]) for event in protocol.events if event[0] == "data_received"}

    assert loop.run_until_complete(main()) == {bytes}


def test_received_bytes_are_not_overwritten_later(loop):
    """The bytes objects that a protocol keeps stay what they were, however the receive buffer is reused."""

    async def main():
        protocol = Recorder()
        _, peer = await attach(loop, protocol)
        with peer:
            for number in range(200):
                peer.send(bytes([number]) * 50)
                await until(lambda number=number: len(protocol.data) == 50 * (number + 1))
        await until(lambda: protocol.lost)
        return b"".join(event[1] for event in protocol.events if event[0] == "data_received")

    assert loop.run_until_complete(main()) == b"".join(bytes([number]) * 50 for number in range(200))


def test_connection_made_comes_before_data_that_is_there_already(loop):
    ours, peer = tcp_pair()
    peer.send(b"early")

    async def main():
        protocol = Recorder()
        await loop.connect_accepted_socket(lambda: protocol, ours)
        peer.close()
        await until(lambda: protocol.lost)
        return protocol.names

    assert loop.run_until_complete(main()) == ["connection_made", "data_received", "eof_received", "connection_lost"]


@BOTH
@pytest.mark.parametrize("keep_open", [None, False, 0, ""], ids=repr)
def test_eof_received_returning_false_closes(loop, kind, keep_open):
    async def main():
        protocol = kind(keep_open=keep_open)
        transport, peer = await attach(loop, protocol)
        with peer:
            peer.shutdown(socket.SHUT_WR)
            assert await receive_all(loop, peer) == b""
        await until(lambda: protocol.lost)
        return [name for name in protocol.names if name != "get_buffer"]

    assert loop.run_until_complete(main()) == ["connection_made", "eof_received", "connection_lost"]


@BOTH
@pytest.mark.parametrize("keep_open", [True, 1, "yes"], ids=repr)
def test_eof_received_returning_true_keeps_the_writing_half(loop, kind, keep_open):
    async def main():
        protocol = kind(keep_open=keep_open)
        transport, peer = await attach(loop, protocol)
        with peer:
            peer.shutdown(socket.SHUT_WR)
            await until(lambda: "eof_received" in protocol.names)
            await turns(5)
            assert not transport.is_closing() and not protocol.lost
            transport.write(b"after the end")
            assert await receive_exactly(loop, peer, 13) == b"after the end"
            transport.close()
            assert await receive_all(loop, peer) == b""
        await until(lambda: protocol.lost)
        assert protocol.names.count("eof_received") == 1
        return protocol.error

    assert loop.run_until_complete(main()) is None


@BOTH
def test_a_reset_by_the_peer(loop, kind):
    contexts = capture_contexts(loop)

    async def main():
        protocol = kind()
        transport, peer = await attach(loop, protocol)
        await turns(2)
        reset(peer)
        await until(lambda: protocol.lost)
        assert transport.is_closing()
        return protocol

    protocol = loop.run_until_complete(main())
    assert type(protocol.error) is ConnectionResetError
    assert protocol.error.errno == errno.ECONNRESET
    assert "eof_received" not in protocol.names
    assert contexts == [], "a connection error is no error of the program"


def test_a_reset_while_data_waits_to_be_sent(loop):
    async def main():
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)
        transport.write(bytes(8 << 20))
        assert transport.get_write_buffer_size() > 0
        reset(peer)
        await until(lambda: protocol.lost)
        assert transport.get_write_buffer_size() == 0
        return protocol

    protocol = loop.run_until_complete(main())
    assert isinstance(protocol.error, (ConnectionResetError, BrokenPipeError))
    assert protocol.names.count("connection_lost") == 1


def test_a_reset_that_arrives_while_reading_is_paused_shows_at_the_next_write(loop):
    async def main():
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)
        await turns(2)
        transport.pause_reading()
        sock = transport.get_extra_info("socket")
        reset(peer)
        await until(lambda: sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1) == bytes([TCP_CLOSE]), "the reset")
        transport.write(b"x")
        await until(lambda: protocol.lost)
        return protocol.error

    assert isinstance(loop.run_until_complete(main()), (ConnectionResetError, BrokenPipeError))


# Exchanging the protocol


def test_set_protocol_switches_between_the_kinds(loop):
    async def main():
        first, second, third = Recorder(), BufferedRecorder(), Recorder()
        transport, peer = await attach(loop, first)
        assert transport.get_protocol() is first
        with peer:
            peer.send(b"one")
            await until(lambda: first.data == b"one")
            assert transport.set_protocol(second) is None
            assert transport.get_protocol() is second
            peer.send(b"two")
            await until(lambda: second.data == b"two")
            transport.set_protocol(third)
            peer.send(b"three")
            await until(lambda: third.data == b"three")
        await until(lambda: third.lost)
        assert "connection_made" not in second.names + third.names
        assert not first.lost and not second.lost
        assert transport.get_protocol() is None, "the transport lets go of the protocol at the end"

    loop.run_until_complete(main())


def test_a_class_that_only_looks_like_a_protocol_will_do(loop):
    """asyncio does not ask for the base class; what has `get_buffer` without it is a streaming protocol."""

    class Duck:
        def __init__(self):
            self.data, self.lost = b"", False

        def connection_made(self, transport):
            pass

        def data_received(self, data):
            self.data += data

        def eof_received(self):
            pass

        def connection_lost(self, error):
            self.lost = True

        def get_buffer(self, sizehint):
            raise AssertionError("not a BufferedProtocol")

    async def main():
        duck = Duck()
        _, peer = await attach(loop, duck)
        with peer:
            peer.send(b"quack")
            await until(lambda: duck.data == b"quack")
        await until(lambda: duck.lost)

    loop.run_until_complete(main())


def test_protocol_methods_are_looked_up_at_each_call(loop):
    """Libraries replace methods on a live protocol object."""

    async def main():
        protocol, received = Recorder(), []
        _, peer = await attach(loop, protocol)
        with peer:
            peer.send(b"one")
            await until(lambda: protocol.data == b"one")
            protocol.data_received = received.append
            peer.send(b"two")
            await until(lambda: received)
        await until(lambda: protocol.lost)
        return received

    assert loop.run_until_complete(main()) == [b"two"]
