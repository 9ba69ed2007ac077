"""`create_datagram_endpoint`: its arguments, and what goes wrong."""

import asyncio
import contextlib
import errno
import os
import socket
import sys

import pytest

from datagram_support import DatagramRecorder, address_of, close, endpoint, udp_socket, unix_socket, wait_for
from support import (
    HOST,
    capture_contexts,
    resource_warnings,
    same_as_asyncio,
    turns,
)


@pytest.mark.parametrize(
    ("options", "error_type"),
    [
        ({}, ValueError),
        ({"local_addr": HOST}, TypeError),
        ({"local_addr": (HOST,)}, TypeError),
        ({"local_addr": (HOST, 0, 0)}, TypeError),
        ({"local_addr": [HOST, 0]}, TypeError),
        ({"remote_addr": 5}, TypeError),
        ({"local_addr": ("name.invalid", 0)}, socket.gaierror),
        ({"local_addr": (HOST, 0), "family": socket.AF_INET6}, socket.gaierror),
        ({"local_addr": ("::1", 0), "remote_addr": (HOST, 9)}, ValueError),
        ({"local_addr": ("203.0.113.77", 0)}, OSError),
        ({"local_addr": (HOST, -1)}, OverflowError),
        ({"local_addr": b"/tmp/x", "family": socket.AF_UNIX}, TypeError),
        ({"local_addr": "/nowhere/at/all", "family": socket.AF_UNIX}, OSError),
        ({"remote_addr": "/nowhere/at/all", "family": socket.AF_UNIX}, OSError),
        ({"local_addr": "x" * 200, "family": socket.AF_UNIX}, OSError),
        ({"local_addr": (HOST, 0), "flags": socket.AI_NUMERICHOST, "unknown": 1}, TypeError),
    ],
    ids=repr,
)
def test_endpoints_that_cannot_be_made(loop_factory, options, error_type):
    def body(loop):
        with pytest.raises(error_type) as caught:
            endpoint(loop, **(options or {"family": 0}))
        return type(caught.value), str(caught.value).replace("EventLoop", "").replace("Base", "")

    same_as_asyncio(body, loop_factory)


def test_options_next_to_a_socket(loop_factory):
    def body(loop):
        messages = []
        with udp_socket() as sock, socket.socket() as stream:
            sock.setblocking(False)
            for options in (
                {"sock": sock, "local_addr": (HOST, 0)},
                {"sock": sock, "remote_addr": (HOST, 0), "family": 2, "proto": 3, "flags": 4},
                {"sock": sock, "reuse_port": True, "allow_broadcast": True},
                {"sock": stream},
            ):
                with pytest.raises(ValueError) as caught:
                    endpoint(loop, **options)
                messages.append(str(caught.value).split("fd=")[0])
        return messages

    messages = same_as_asyncio(body, loop_factory)
    assert messages[0] == (
        f"socket modifier keyword arguments can not be used when sock is specified. (local_addr=('{HOST}', 0))"
    )


def test_a_socket_of_ones_own(loop):
    with udp_socket() as peer:
        ours = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        ours.bind((HOST, 0))
        transport, recorder = endpoint(loop, sock=ours)
        assert ours.gettimeout() == 0
        transport.sendto(b"x", peer.getsockname())
        assert peer.recvfrom(10) == (b"x", ours.getsockname())
        peer.sendto(b"y", ours.getsockname())
        wait_for(loop, lambda: recorder.data)
        close(loop, transport)
        assert ours.fileno() == -1


def test_a_connected_socket_of_ones_own_sends_to_its_peer(loop_factory):
    """Whatever address it is given: that's asyncio's way."""

    def body(loop):
        with udp_socket() as peer, udp_socket() as other:
            ours = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            ours.connect(peer.getsockname())
            transport, _ = endpoint(loop, sock=ours)
            transport.sendto(b"x", other.getsockname())
            transport.sendto(b"y")
            transport.sendto(b"z", "whatever")
            assert [peer.recv(10) for _ in range(3)] == [b"x", b"y", b"z"]
            assert transport.get_extra_info("peername") == peer.getsockname()
            close(loop, transport)

    same_as_asyncio(body, loop_factory)


def test_ports_can_be_shared(loop):
    first, _ = endpoint(loop, local_addr=(HOST, 0), reuse_port=True)
    second, _ = endpoint(loop, local_addr=address_of(first), reuse_port=True)
    assert address_of(first) == address_of(second)
    with pytest.raises(OSError) as caught:
        endpoint(loop, local_addr=address_of(first))
    assert caught.value.errno == errno.EADDRINUSE
    close(loop, first, second)


def test_only_a_family(loop):
    transport, recorder = endpoint(loop, family=socket.AF_INET)
    assert address_of(transport) == ("0.0.0.0", 0)
    with udp_socket() as peer:
        transport.sendto(b"x", peer.getsockname())
        data, address = peer.recvfrom(10)
        peer.sendto(b"y", address)
        wait_for(loop, lambda: recorder.data)
    close(loop, transport)


def test_local_and_remote_address(loop):
    with udp_socket() as peer:
        transport, _ = endpoint(loop, local_addr=(HOST, 0), remote_addr=peer.getsockname())
        transport.sendto(b"x")
        assert peer.recvfrom(10) == (b"x", address_of(transport))
        assert transport.get_extra_info("peername") == peer.getsockname()
        close(loop, transport)


def test_a_stale_unix_socket_is_removed(loop, folder):
    path = os.path.join(folder, "socket")
    with unix_socket(path):
        pass
    assert os.path.exists(path)
    transport, recorder = endpoint(loop, local_addr=path, family=socket.AF_UNIX)
    with unix_socket(peer=path) as sock:
        sock.send(b"x")
        wait_for(loop, lambda: recorder.data)
    close(loop, transport)
    assert os.path.exists(path), "a datagram endpoint leaves its path behind"


def test_a_file_that_is_no_socket_stays(loop_factory, folder):
    path = os.path.join(folder, "file")

    def body(loop):
        with open(path, "w") as file:
            file.write("mine")
        with pytest.raises(OSError) as caught:
            endpoint(loop, local_addr=path, family=socket.AF_UNIX)
        with open(path) as file:
            assert file.read() == "mine"
        return caught.value.errno, str(caught.value)

    assert same_as_asyncio(body, loop_factory)[0] == errno.EADDRINUSE


@pytest.mark.without_debug_mode
def test_a_protocol_factory_that_fails(loop):
    def fail():
        raise LookupError("no protocol")

    with resource_warnings() as messages, pytest.raises(LookupError, match="no protocol"):
        loop.run_until_complete(loop.create_datagram_endpoint(fail, local_addr=(HOST, 0)))
    assert len(messages) == 1 and "unclosed <socket.socket" in messages[0], "as under asyncio, whose oversight this is"


def test_a_connection_made_that_fails(loop):
    class Protocol(DatagramRecorder):
        def connection_made(self, transport):
            super().connection_made(transport)
            raise LookupError("mine")

    contexts = capture_contexts(loop)
    transport, recorder = endpoint(loop, Protocol(), local_addr=(HOST, 0))
    assert [repr(context["exception"]) for context in contexts] == ["LookupError('mine')"]
    with udp_socket() as sock:
        sock.sendto(b"x", address_of(transport))
        wait_for(loop, lambda: recorder.data)
    close(loop, transport)


def test_close_in_connection_made(loop):
    class Protocol(DatagramRecorder):
        def connection_made(self, transport):
            super().connection_made(transport)
            transport.close()

    transport, recorder = endpoint(loop, Protocol(), local_addr=(HOST, 0))
    wait_for(loop, lambda: recorder.lost)
    assert recorder.names == ["connection_made", "connection_lost"]


def test_cancelling_the_creation_closes_the_socket(loop):
    recorder = DatagramRecorder()

    async def main():
        task = loop.create_task(loop.create_datagram_endpoint(lambda: recorder, local_addr=(HOST, 0)))
        # The endpoint is made at once; the task waits until connection_made() has been called.
        await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await turns(3)
        return task.cancelled()

    assert loop.run_until_complete(main())
    assert recorder.names == ["connection_made", "connection_lost"]


@pytest.mark.parametrize("kind", ["subclass", "seqpacket"])
def test_other_sockets_are_served_too(loop, kind):
    """By asyncio's own transport where the native one would not do."""

    class Sock(socket.socket):
        __slots__ = ()

        def recvfrom(self, count):
            data, address = super().recvfrom(count)
            return b"seen " + data, address

    if kind == "subclass":
        ours = Sock(socket.AF_INET, socket.SOCK_DGRAM)
        ours.bind((HOST, 0))
        transport, recorder = endpoint(loop, sock=ours)
        with udp_socket() as sock:
            sock.sendto(b"x", address_of(transport))
            wait_for(loop, lambda: recorder.data)
        assert recorder.data == [b"seen x"]
    else:
        if sys.version_info < (3, 13):
            pytest.skip("before Python 3.13 asyncio takes nothing but SOCK_DGRAM")
        ours, peer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with peer:
            transport, recorder = endpoint(loop, sock=ours)
            peer.send(b"x")
            wait_for(loop, lambda: recorder.data)
            assert recorder.data == [b"x"]
            close(loop, transport)
    close(loop, transport)
