"""What broke once. Each test is named for what a user would have seen."""

import array
import asyncio
import os
import signal
import socket
import tempfile

import pytest

from support import PATIENCE_S, BufferedRecorder, Recorder, attach, receive_all, run_child, tcp_pair, turns, until

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

    loop.run_until_complete(asyncio.wait_for(main(), 20))


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
            await asyncio.sleep(0.01)
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
            await asyncio.wait([pending], timeout=0.05)
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
                loop.call_later(0.02, loop.stop)
                loop.set_exception_handler(lambda loop, context: None)
                try:
                    loop.run_forever()
                except LookupError:
                    pass
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
            await asyncio.sleep(0.01)
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
