"""When the owner of a socket closes it, the loop releases it at once, so its peer notices."""

import array
import asyncio
import contextlib
import socket
import struct
import threading

import pytest

import support
from datagram_support import DatagramRecorder
from descriptor_support import OPERATIONS, fill, operations, pair, received, udp_socket
from support import PATIENCE_S, Recorder, noop, turns, until
from tls_support import tls_contexts

pytestmark = pytest.mark.exact


def listening(loop, sock):
    return loop.create_task(loop.sock_accept(sock))


def heard_by(sock):
    """Return whether the peer has heard of the end by the time that close() has returned: no turn of the loop is needed."""
    return received(sock) == b""


@pytest.mark.parametrize("turns_before", [0, 3])
@pytest.mark.parametrize("how", ["add_reader", "add_writer", "both", *OPERATIONS])
def test_a_socket_that_is_closed_while_it_is_watched_is_let_go_of(loop, how, turns_before):
    async def main():
        ours, peer = pair()
        task = None
        if how in ("add_reader", "both"):
            loop.add_reader(ours.fileno(), noop)
        if how in ("add_writer", "both"):
            fill(ours)
            loop.add_writer(ours.fileno(), noop)
        if how in OPERATIONS:
            method, arguments, sends = operations(loop, ours)[how]
            if sends:
                fill(ours)
            task = loop.create_task(method(*arguments))
            await turns(1)
        await turns(turns_before)
        with peer:
            number = ours.fileno()
            ours.close()
            while data := received(peer):
                assert set(data) == {0}
            assert data == b""
            await turns(3)
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
            else:
                # Of both, the one that is left is asked of the kernel.
                with contextlib.suppress(OSError):
                    loop.remove_reader(number)
                loop.remove_writer(number)

    loop.run_until_complete(main())


def test_a_watched_socket_that_another_thread_closes_while_the_loop_waits(loop):
    async def main():
        loop.add_reader(ours.fileno(), noop)
        await asyncio.to_thread(end)
        loop.remove_reader(number)

    def end():
        support.until_waiting(threading.main_thread())
        ours.close()
        heard.append(heard_by(peer))

    heard = []
    ours, peer = pair()
    number = ours.fileno()
    with peer:
        loop.run_until_complete(main())
    assert heard == [True]


@pytest.mark.parametrize("how", ["sock_accept", "server", "add_reader"])
def test_a_listener_that_is_closed_takes_no_more_connections(loop, how):
    async def main():
        listener = support.tcp_listener()
        address = listener.getsockname()
        number = listener.fileno()
        if how == "sock_accept":
            waiter = loop.create_task(loop.sock_accept(listener))
        elif how == "server":
            server = await loop.create_server(Recorder, sock=listener)
        else:
            loop.add_reader(number, noop)
        await turns(3)
        listener.close()
        with socket.socket() as client, pytest.raises(ConnectionRefusedError):
            client.settimeout(PATIENCE_S)
            client.connect(address)
        if how == "sock_accept":
            waiter.cancel()
            await asyncio.wait([waiter])
        elif how == "server":
            with contextlib.suppress(ValueError):  # It asks the closed listener for its number.
                server.close()
        else:
            loop.remove_reader(number)

    loop.run_until_complete(main())


async def connection(loop, sock):
    return await loop.create_connection(Recorder, sock=sock)


async def accepted(loop, sock):
    return await loop.connect_accepted_socket(Recorder, sock)


async def unix_connection(loop, sock):
    return await loop.create_unix_connection(Recorder, sock=sock)


async def streams(loop, sock):
    reader, writer = await asyncio.open_connection(sock=sock)
    return writer.transport, (reader, writer)


@pytest.mark.parametrize("paused", [False, True], ids=["reading", "paused"])
@pytest.mark.parametrize("make", [connection, accepted, unix_connection, streams], ids=lambda make: make.__name__)
def test_a_transports_socket_that_its_owner_closes_is_let_go_of(loop, make, paused):
    async def main():
        ours, peer = pair()
        transport, kept = await make(loop, ours)
        await turns(3)
        if paused:
            transport.pause_reading()
        with peer:
            ours.close()
            assert heard_by(peer)
            await turns(3)
            transport.abort()
            await turns(3)
            del kept

    loop.run_until_complete(main())


def test_the_socket_of_a_tls_transport_that_its_owner_closes_is_let_go_of(loop):
    async def main():
        server_context, client_context = tls_contexts()
        ours, theirs = pair()
        protocol, server = Recorder(), Recorder()
        (transport, _), _ = await asyncio.gather(
            loop.create_connection(lambda: protocol, sock=ours, ssl=client_context, server_hostname="server.test"),
            loop.connect_accepted_socket(lambda: server, theirs, ssl=server_context),
        )
        await turns(20)
        ours.close()
        await until(lambda: server.lost)
        transport.abort()
        await until(lambda: protocol.lost)

    loop.run_until_complete(main())


def test_the_port_of_a_datagram_socket_that_its_owner_closes_is_free(loop):
    async def main():
        ours = udp_socket()
        address = ours.getsockname()
        transport, protocol = await loop.create_datagram_endpoint(DatagramRecorder, sock=ours)
        await turns(3)
        ours.close()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
            other.bind(address)
        transport.abort()
        await until(lambda: protocol.lost)

    loop.run_until_complete(main())


# Passing descriptors on


def test_a_socket_that_was_passed_on_and_closed_here_is_let_go_of(loop):
    """Its file lives on elsewhere, and so may its registration: nobody here hears of that."""

    async def main():
        ours, peer = pair()
        carrier, receiver = pair()
        trace = []
        loop.add_reader(ours, trace.append, "stale")
        await turns(2)
        with carrier, receiver, peer:
            carrier.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [ours.fileno()]))])
            assert loop.remove_reader(ours)
            ours.close()
            peer.send(b"data")
            await turns(5)
            _, ancillary, _, _ = receiver.recvmsg(1, socket.CMSG_SPACE(4))
            (number,) = struct.unpack("i", ancillary[0][2])
            with socket.socket(fileno=number) as passed:
                assert passed.recv(10) == b"data"
        assert trace == []

    loop.run_until_complete(main())


def test_descriptors_run_out_and_come_back(loop):
    """A call that is refused for want of descriptors leaves nothing behind."""

    async def main():
        ours, peer = pair()
        with support.descriptors_left(0):
            trace = []
            loop.add_reader(ours, trace.append, "read")
            peer.send(b"x")
            await turns(3)
            assert trace
            assert loop.remove_reader(ours)
        ours.close()
        peer.close()

    loop.run_until_complete(main())
