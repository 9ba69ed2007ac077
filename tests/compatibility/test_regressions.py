"""Past bugs. Each test is named for what a user would have seen."""

import array
import asyncio
import contextlib
import os
import signal
import socket
import tempfile

import pytest

from support import (
    PATIENCE_S,
    BufferedRecorder,
    Recorder,
    attach,
    looks,
    nested_turns,
    receive_all,
    run_child,
    tcp_pair,
    turns,
    until,
)

DATA = bytes(range(256)) * 4096


def test_sendfile_over_a_transport(loop):
    async def main():
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)
        with peer, tempfile.TemporaryFile() as file:
            file.write(DATA)
            sent = asyncio.ensure_future(loop.sendfile(transport, file, 0, len(DATA)))
            received = bytearray()
            while len(received) < len(DATA):
                received += await loop.sock_recv(peer, 1 << 20)
            assert await sent == len(DATA)
            assert received == DATA
            transport.close()
            await until(lambda: protocol.lost)

    loop.run_until_complete(main())


def test_a_peer_hears_of_a_close_that_comes_with_the_last_flush(loop):
    async def main():
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)
        with peer:
            transport.write(bytes(8 << 20))
            transport.close()
            assert len(await receive_all(loop, peer)) == 8 << 20
        await until(lambda: protocol.lost)

    loop.run_until_complete(asyncio.wait_for(main(), PATIENCE_S))


def test_an_error_in_connection_lost_after_the_last_flush_leaves_the_loop_running(loop):
    contexts = []
    loop.set_exception_handler(lambda loop, context: contexts.append(context))

    class Raises(asyncio.Protocol):
        def connection_lost(self, exc):
            raise LookupError("lost")

    async def main():
        transport, peer = await attach(loop, Raises())
        with peer:
            transport.write(bytes(8 << 20))
            transport.close()
            await receive_all(loop, peer)
            await until(lambda: contexts)
        return "still here"

    assert loop.run_until_complete(main()) == "still here"
    [context] = contexts
    assert isinstance(context["exception"], LookupError)


def test_a_connection_paused_before_it_reads_is_heard_after_resume(loop):
    class Pauses(Recorder):
        def connection_made(self, transport):
            super().connection_made(transport)
            transport.pause_reading()
            transport.write(bytes(8 << 20))

    async def main():
        protocol = Pauses()
        transport, peer = await attach(loop, protocol)
        with peer:
            await loop.sock_sendall(peer, b"hello")
            await looks()
            assert protocol.data == b""
            transport.resume_reading()
            await until(lambda: protocol.data == b"hello")
            transport.abort()
        await until(lambda: protocol.lost)

    loop.run_until_complete(main())


def test_a_pending_receive_never_reads_from_the_next_socket_with_its_number(loop):
    async def main():
        first, first_peer = tcp_pair()
        pending = asyncio.ensure_future(loop.sock_recv(first, 100))
        await asyncio.sleep(0)
        number = first.fileno()
        first.close()
        second, second_peer = tcp_pair()
        with first_peer, second, second_peer:
            assert number in (second.fileno(), second_peer.fileno())
            for sock in (second, second_peer):
                await loop.sock_sendall(sock, b"secret")
            first_peer.close()
            await looks(10)
            if pending.done():
                assert isinstance(pending.exception(), OSError)
            pending.cancel()
            await asyncio.wait([pending])

    loop.run_until_complete(main())


def test_data_survives_a_signal_handler_that_raises(loop):
    def handler(number, frame):
        raise LookupError("signal")

    previous = signal.signal(signal.SIGUSR1, handler)
    try:
        protocol = Recorder()
        transport, peer = loop.run_until_complete(attach(loop, protocol))
        with peer:
            for _ in range(10):
                before = len(protocol.data)

                def send_and_signal():
                    peer.send(b"x")
                    os.kill(os.getpid(), signal.SIGUSR1)

                loop.call_soon(send_and_signal)
                stopping = loop.call_later(0.02, loop.stop)
                loop.set_exception_handler(lambda loop, context: None)
                try:
                    loop.run_forever()
                except LookupError:
                    pass
                stopping.cancel()
                loop.run_until_complete(until(lambda: len(protocol.data) == before + 1))  # noqa: B023
            transport.close()
            loop.run_until_complete(until(lambda: protocol.lost))
    finally:
        signal.signal(signal.SIGUSR1, previous)


@pytest.mark.parametrize("call", ["sock_recv(here, 10)", "sock_sendall(here, b'x')"])
def test_an_operation_that_outlives_its_loop_does_not_abort_at_exit(arm, call):
    child = run_child(
        f"""
        import builtins, socket
        here, there = socket.socketpair()
        here.setblocking(False)
        loop = new_loop()
        builtins.keep = loop.{call}
        loop.close()
        """,
        arm,
        python_flags=("-W", "ignore"),
    )
    assert child.returncode == 0, child.stderr


def test_a_sent_bytearray_cannot_be_resized_while_it_waits(loop):
    async def main():
        here, there = tcp_pair()
        with here, there:
            data = bytearray(8 << 20)
            sending = asyncio.ensure_future(loop.sock_sendall(here, data))
            await looks()
            with pytest.raises(BufferError):
                data.clear()
            received = 0
            while received < 8 << 20:
                received += len(await loop.sock_recv(there, 1 << 20))
            await sending

    loop.run_until_complete(main())


def test_a_server_that_stops_refuses_the_next_connection_at_once(loop):
    async def main():
        server = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0)
        address = server.sockets[0].getsockname()
        server.close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address).close()
        await server.wait_closed()

    loop.run_until_complete(main())


def _with_urgent_data(sock):
    sock.send(b"abc")
    sock.send(b"!", socket.MSG_OOB)
    sock.send(b"def")


def _with_descriptors(sock):
    inside, outside = os.pipe()
    with open(inside, "rb"), open(outside, "wb"):
        passed = array.array("i", [inside])
        sock.sendmsg([b"abc"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, passed)])
    sock.send(b"def")


@pytest.mark.parametrize("protocol_type", [Recorder, BufferedRecorder, None], ids=["data", "buffered", "stream"])
@pytest.mark.parametrize("send", [_with_urgent_data, _with_descriptors], ids=["urgent", "descriptors"])
def test_data_behind_what_ends_a_read_arrives(loop, arm, send, protocol_type):
    """The kernel ends a read at urgent data and behind passed descriptors. That it was short doesn't mean that it was all."""
    if send is _with_urgent_data and arm == "io_uring":
        pytest.skip("io_uring doesn't tell of urgent data: what lies behind comes with the next packet")

    async def main():
        near, far = tcp_pair() if send is _with_urgent_data else socket.socketpair()
        if protocol_type is None:
            reader = asyncio.StreamReader()
            protocol = asyncio.StreamReaderProtocol(reader)
        else:
            protocol = protocol_type()
        transport, _ = await loop.create_connection(lambda: protocol, sock=near)
        with far:
            for rounds in range(1, 6):
                send(far)
                if protocol_type is None:
                    assert await asyncio.wait_for(reader.readexactly(6), PATIENCE_S) == b"abcdef"
                else:
                    await until(lambda: len(protocol.data) >= 6 * rounds)  # noqa: B023
                    assert protocol.data == b"abcdef" * rounds
                await turns(2)
        transport.abort()
        await turns(2)

    loop.run_until_complete(main())


async def _received_late(loop, near, far, data, count_max):
    """Return what `sock_recv` gives when the data comes while it waits."""
    receiving = asyncio.ensure_future(loop.sock_recv(near, count_max))
    await turns(3)
    far.send(data)
    return await asyncio.wait_for(receiving, PATIENCE_S)


@pytest.mark.parametrize("kind", [socket.SOCK_DGRAM, socket.SOCK_SEQPACKET], ids=["datagram", "seqpacket"])
def test_sock_recv_takes_messages_whole_whatever_streams_were_like(loop, kind):
    """How much to expect is learned, and less is asked for: of a message the rest would be lost."""

    async def main():
        near, far = socket.socketpair()
        with near, far:
            near.setblocking(False)
            for _ in range(4):
                assert len(await _received_late(loop, near, far, bytes(40_000), 1 << 17)) == 40_000
        near, far = socket.socketpair(socket.AF_UNIX, kind)
        with near, far:
            near.setblocking(False)
            for size in (100_000, 60_000, 1, 100_000):
                assert len(await _received_late(loop, near, far, bytes(size), 1 << 17)) == size

    loop.run_until_complete(main())


def test_sock_recv_takes_a_message_larger_than_the_receive_buffer(loop):
    size = 300_000
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with near, far:
        near.setblocking(False)
        far.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * size)
        if far.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) < size + 4096:
            pytest.skip("this machine's net.core.wmem_max allows no datagram of this size")
        far.send(bytes(size))
        assert len(loop.run_until_complete(loop.sock_recv(near, 1 << 20))) == size
        assert len(loop.run_until_complete(_received_late(loop, near, far, bytes(size), 1 << 20))) == size


def test_sock_recv_of_more_than_fits_in_a_size(loop):
    near, far = socket.socketpair()
    with near, far:
        near.setblocking(False)
        with pytest.raises(OverflowError):
            loop.run_until_complete(loop.sock_recv(near, 1 << 63))


class _Interrupts(asyncio.Protocol):
    """Raises KeyboardInterrupt out of its first callback for what arrives."""

    def __init__(self):
        self.data = bytearray()
        self.calls = 0

    def interrupt_once(self):
        self.calls += 1
        if self.calls == 1:
            raise KeyboardInterrupt

    def data_received(self, data):
        self.data += data
        self.interrupt_once()


class _InterruptsBuffered(_Interrupts, asyncio.BufferedProtocol):
    def get_buffer(self, sizehint):
        self.buffer = bytearray(4)
        return self.buffer

    def buffer_updated(self, nbytes):
        self.data += self.buffer[:nbytes]
        self.interrupt_once()


class _InterruptsInGetBuffer(_InterruptsBuffered):
    def get_buffer(self, sizehint):
        self.interrupt_once()
        return super().get_buffer(sizehint)


class _InterruptsAtEnd(_Interrupts):
    ends = 0
    lost = False

    def data_received(self, data):
        self.data += data

    def eof_received(self):
        self.ends += 1
        self.interrupt_once()

    def connection_lost(self, exc):
        self.lost = True


@pytest.mark.parametrize("protocol_type", [_Interrupts, _InterruptsBuffered, _InterruptsInGetBuffer])
def test_what_is_left_of_an_interrupted_delivery_arrives_in_the_next_run(loop, protocol_type):
    """Under asyncio the socket reports it again."""
    data = DATA[:12] if issubclass(protocol_type, _InterruptsBuffered) else DATA[:280_000]
    protocol = protocol_type()
    near, far = socket.socketpair()
    near.setblocking(False)
    far.setblocking(False)
    far.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    transport, _ = loop.run_until_complete(loop.connect_accepted_socket(lambda: protocol, near))
    with far:
        # All at once, and more than one read takes.
        sent = far.send(data)
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(until(lambda: protocol.calls > 1))
        loop.run_until_complete(until(lambda: len(protocol.data) >= sent))
        assert protocol.data == data[:sent]
        transport.abort()
        loop.run_until_complete(turns(2))


def test_the_end_of_a_stream_is_told_again_after_an_interrupt(loop):
    protocol = _InterruptsAtEnd()
    _, far = loop.run_until_complete(attach(loop, protocol))
    far.close()
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(until(lambda: protocol.lost))
    loop.run_until_complete(until(lambda: protocol.lost))
    assert protocol.ends == 2


def test_an_interrupted_delivery_does_not_lose_the_room_to_write(loop):
    protocol = _Interrupts()
    transport, far = loop.run_until_complete(attach(loop, protocol))
    with far:
        transport.write(bytes(8 << 20))
        loop.run_until_complete(turns(2))
        far.send(b"interrupt")
        received = 0
        # The room and the data are one report to the loop, which doesn't turn meanwhile.
        with contextlib.suppress(BlockingIOError):
            while True:
                received += len(far.recv(1 << 20))
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(until(lambda: protocol.calls > 1))
        transport.close()
        rest = loop.run_until_complete(asyncio.wait_for(receive_all(loop, far), PATIENCE_S))
        assert received + len(rest) == 8 << 20


class _TurnsTheLoop(asyncio.Protocol, asyncio.DatagramProtocol):
    """Makes the loop turn in its first callback, when more has arrived."""

    def __init__(self, loop):
        self.loop = loop
        self.pieces = []
        self.grown = asyncio.Event()

    async def reach(self, count):
        """Wait for `count` pieces."""
        while len(self.pieces) < count:
            self.grown.clear()
            await self.grown.wait()

    def data_received(self, data):
        self.pieces.append(bytes(data))
        if len(self.pieces) == 1:
            self.far.send(b"second")
            nested_turns(self.loop, 3)
            self.pieces.append(b"first ends")
        self.grown.set()

    def datagram_received(self, data, addr):
        self.data_received(data)


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM], ids=["stream", "datagram"])
def test_what_arrives_in_a_nested_turn_is_delivered_after_it(loop, kind):
    # asyncio tells the handler of the context that it can't enter.
    loop.set_exception_handler(lambda loop, context: None)

    async def main():
        protocol = _TurnsTheLoop(loop)
        if kind == socket.SOCK_STREAM:
            near, protocol.far = tcp_pair()
            transport, _ = await loop.create_connection(lambda: protocol, sock=near)
        else:
            transport, _ = await loop.create_datagram_endpoint(lambda: protocol, local_addr=("127.0.0.1", 0))
            protocol.far = socket.socket(type=socket.SOCK_DGRAM)
            protocol.far.connect(transport.get_extra_info("sockname"))
        with protocol.far:
            protocol.far.send(b"first")
            await protocol.reach(3)
            protocol.far.send(b"third")
            await protocol.reach(4)
            transport.abort()
            await turns(2)
        assert protocol.pieces == [b"first", b"first ends", b"second", b"third"]

    loop.run_until_complete(asyncio.wait_for(main(), PATIENCE_S))


def test_room_to_write_that_comes_in_a_nested_turn_is_used_after_it(loop):
    loop.set_exception_handler(lambda loop, context: None)
    received = 0

    class TurnsTheLoop(Recorder):
        def resume_writing(self):
            nonlocal received
            with contextlib.suppress(BlockingIOError):
                while True:
                    received += len(far.recv(1 << 20))
            nested_turns(loop, 3)

    protocol = TurnsTheLoop()
    transport, far = loop.run_until_complete(attach(loop, protocol))
    with far:
        transport.set_write_buffer_limits(high=16 << 20, low=16 << 20)
        transport.write(bytes(32 << 20))
        transport.close()
        rest = loop.run_until_complete(asyncio.wait_for(receive_all(loop, far), PATIENCE_S))
        assert received > 0
        assert received + len(rest) == 32 << 20
