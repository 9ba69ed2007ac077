"""Errors of datagram endpoints: the kernel's, wrong arguments, and exceptions of the protocol."""

import errno
import os
import socket

import pytest

from datagram_support import (
    UDP_BYTES_MAX,
    DatagramRecorder,
    address_of,
    close,
    endpoint,
    udp_socket,
    unix_socket,
    wait_for,
)
from support import (
    HOST,
    capture_contexts,
    same_as_asyncio,
    turns,
)


def test_a_refused_datagram_is_told_to_error_received(loop):
    with udp_socket() as sock:
        address = sock.getsockname()
    client, recorder = endpoint(loop, remote_addr=address)
    client.sendto(b"x")
    wait_for(loop, lambda: recorder.errors)
    assert [type(error) for error in recorder.errors] == [ConnectionRefusedError]
    assert recorder.errors[0].errno == errno.ECONNREFUSED
    with udp_socket(address) as sock:
        client.sendto(b"y")
        assert sock.recvfrom(10) == (b"y", address_of(client))
        sock.sendto(b"z", address_of(client))
        wait_for(loop, lambda: recorder.data)
    assert recorder.data == [b"z"]
    assert not client.is_closing()
    close(loop, client)


def test_datagrams_behind_an_error_are_delivered(loop):
    """The error is reported first, the datagrams that arrived with it after."""
    with udp_socket() as sock:
        client, recorder = endpoint(loop, remote_addr=sock.getsockname())
        for number in range(3):
            sock.sendto(b"%d" % number, address_of(client))
        sock_address = sock.getsockname()
    client.sendto(b"refused")
    wait_for(loop, lambda: recorder.errors and len(recorder.data) == 3)
    assert recorder.data == [b"0", b"1", b"2"]
    assert recorder.addresses == [sock_address] * 3
    assert [type(error) for error in recorder.errors] == [ConnectionRefusedError]
    close(loop, client)


def test_a_pending_error_is_told_by_sendto_first(loop_factory):
    """An ICMP error that arrived meanwhile fails the next send, whose datagram is lost."""

    def body(loop):
        with udp_socket() as sock:
            address = sock.getsockname()
        client, recorder = endpoint(loop, remote_addr=address)
        for _ in range(3):
            client.sendto(b"x")
        told = [type(error) for error in recorder.errors]
        loop.run_until_complete(turns(5))
        close(loop, client)
        return told, recorder.names

    told, _ = same_as_asyncio(body, loop_factory)
    assert told == [ConnectionRefusedError]


def test_a_failing_error_received(loop):
    """Its error goes to the caller of `sendto`, or to the exception handler where the loop was reading."""

    class Protocol(DatagramRecorder):
        def error_received(self, error):
            super().error_received(error)
            raise ValueError("mine") from error

    contexts = capture_contexts(loop)
    with udp_socket() as sock:
        address = sock.getsockname()
    client, recorder = endpoint(loop, Protocol(), remote_addr=address)
    with pytest.raises(ValueError, match="mine"):
        client.sendto(bytes(UDP_BYTES_MAX + 1))
    assert [error.errno for error in recorder.errors] == [errno.EMSGSIZE]
    client.sendto(b"x")
    wait_for(loop, lambda: contexts)
    assert str(contexts[0]["exception"]) == "mine"
    assert "DatagramTransport._read_ready()" in contexts[0]["message"]
    assert not client.is_closing()
    close(loop, client)


@pytest.mark.parametrize("connected", [True, False])
def test_a_datagram_that_is_too_large(loop, connected):
    server, service = endpoint(loop)
    options = {"remote_addr": address_of(server)} if connected else {"local_addr": (HOST, 0)}
    client, recorder = endpoint(loop, **options)
    target = None if connected else address_of(server)
    client.sendto(bytes(UDP_BYTES_MAX + 1), target)
    assert [(type(error), error.errno) for error in recorder.errors] == [(OSError, errno.EMSGSIZE)]
    client.sendto(b"fits", target)
    wait_for(loop, lambda: service.data)
    assert service.data == [b"fits"]
    assert client.get_write_buffer_size() == 0
    close(loop, server, client)


def test_sending_to_nobody_over_unix(loop_factory, folder):
    def body(loop):
        sender, recorder = endpoint(loop, family=socket.AF_UNIX)
        with unix_socket(os.path.join(folder, "gone")):
            pass
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream:
            stream.bind(os.path.join(folder, "stream"))
            for name in ("gone", "missing", "stream"):
                sender.sendto(b"x", os.path.join(folder, name))
        sender.sendto(b"x", b"\0nobody")
        sender.sendto(b"x", "x" * 108)
        sender.sendto(b"x", b"x" * 109)
        sender.sendto(b"x", "")
        close(loop, sender)
        for name in ("gone", "stream"):
            os.unlink(os.path.join(folder, name))
        return [(type(error), error.args) for error in recorder.errors]

    errors = same_as_asyncio(body, loop_factory)
    assert [error[0] for error in errors[:4]] == [
        ConnectionRefusedError,
        FileNotFoundError,
        OSError,
        ConnectionRefusedError,
    ]


def test_a_connected_peer_that_goes_away_over_unix(loop_factory, folder):
    path = os.path.join(folder, "peer")

    def body(loop):
        with unix_socket(path):
            client, recorder = endpoint(loop, remote_addr=path, family=socket.AF_UNIX)
            client.sendto(b"x")
        client.sendto(b"y")
        client.sendto(b"z")
        loop.run_until_complete(turns(5))
        names = recorder.names
        close(loop, client)
        os.unlink(path)
        return names, [(type(error), error.args) for error in recorder.errors]

    _, errors = same_as_asyncio(body, loop_factory)
    assert errors[0][0] is ConnectionRefusedError


def test_broadcast_needs_permission(loop_factory):
    def body(loop):
        sender, recorder = endpoint(loop)
        sender.sendto(b"x", ("255.255.255.255", 9))
        close(loop, sender)
        return [(type(error), error.args) for error in recorder.errors]

    assert same_as_asyncio(body, loop_factory)[0][0] is PermissionError


def test_broadcast_that_is_allowed(loop):
    # Bound to it, it hears what is broadcast on the loopback interface, and nothing else.
    server, service = endpoint(loop, local_addr=("127.255.255.255", 0))
    port = address_of(server)[1]
    client, recorder = endpoint(loop, remote_addr=("127.255.255.255", port), allow_broadcast=True)
    assert client.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST)
    assert client.get_extra_info("peername") is None, "it isn't connected, so that anybody may answer"
    client.sendto(b"anybody?")
    client.sendto(b"anybody else?", ("127.255.255.255", port))
    with pytest.raises(ValueError, match="Invalid address: must be None or"):
        client.sendto(b"you", (HOST, port))
    wait_for(loop, lambda: len(service.data) == 2 or recorder.errors)
    assert service.data == [b"anybody?", b"anybody else?"]
    server.sendto(b"me", service.addresses[0])
    wait_for(loop, lambda: recorder.data)
    assert recorder.data == [b"me"]
    close(loop, server, client)


@pytest.mark.parametrize(
    "data", [None, 5, "text", ["list"], object(), 1.5], ids=["None", "int", "str", "list", "object", "float"]
)
def test_data_of_a_wrong_type(loop_factory, data):
    def body(loop):
        client, recorder = endpoint(loop, remote_addr=(HOST, 9))
        with pytest.raises(TypeError) as caught:
            client.sendto(data)
        names = recorder.names
        close(loop, client)
        return str(caught.value), names

    text, names = same_as_asyncio(body, loop_factory)
    assert "must be a bytes-like object, not" in text
    assert names == ["connection_made"]


def test_missing_arguments(loop):
    transport, _ = endpoint(loop)
    with pytest.raises(TypeError, match=r"sendto\(\)"):
        transport.sendto()
    with pytest.raises(TypeError, match=r"sendto\(\)"):
        transport.sendto(b"x", None, 1)
    with udp_socket() as sock:
        transport.sendto(data=b"x", addr=sock.getsockname())
        assert sock.recv(10) == b"x"
    close(loop, transport)


@pytest.mark.parametrize(
    "address",
    [
        None,
        5,
        "text",
        (),
        (HOST,),
        (HOST, "9"),
        (HOST, -1),
        (HOST, 65536),
        (HOST, 1 << 70),
        (HOST, 9, 0),
        (5, 9),
        [HOST, 9],
        (HOST, 9.5),
        ("host\0name", 9),
    ],
    ids=repr,
)
def test_addresses_that_are_none(loop_factory, address):
    """A destination that is no address at all ends the transport, as under asyncio; the loop and others go on."""

    def body(loop):
        contexts = capture_contexts(loop)
        other, recorder = endpoint(loop)
        sender, service = endpoint(loop)
        sender.sendto(b"x", address)
        loop.run_until_complete(turns(3))
        found = [
            (context["message"], type(context["exception"]), str(context["exception"]), context["protocol"] is service)
            for context in contexts
        ]
        with udp_socket() as sock:
            sock.sendto(b"y", address_of(other))
            wait_for(loop, lambda: recorder.data)
        lost = [type(event[1]) for event in service.events if event[0] == "connection_lost"]
        close(loop, other, sender)
        return found, lost, [(type(error), str(error)) for error in service.errors]

    found, lost, _ = same_as_asyncio(body, loop_factory)
    assert len(found) == len(lost) == 1
    assert found[0][0] == "Fatal write error on datagram transport"


def test_a_name_that_does_not_resolve(loop_factory):
    def body(loop):
        sender, recorder = endpoint(loop)
        sender.sendto(b"x", ("name.invalid", 9))
        closing = sender.is_closing()
        close(loop, sender)
        return closing, [type(error) for error in recorder.errors]

    assert same_as_asyncio(body, loop_factory) == (False, [socket.gaierror])


def test_another_address_than_the_peers(loop):
    with udp_socket() as peer, udp_socket() as other:
        client, _ = endpoint(loop, remote_addr=peer.getsockname())
        text = f"Invalid address: must be None or {peer.getsockname()}"
        with pytest.raises(ValueError) as caught:
            client.sendto(b"x", other.getsockname())
        assert str(caught.value) == text
        client.sendto(b"y", (HOST, peer.getsockname()[1]))
        assert peer.recv(10) == b"y"
    close(loop, client)


def test_an_address_that_cannot_be_compared(loop):
    class Address:
        def __eq__(self, other):
            raise LookupError("no")

        __hash__ = None

    client, _ = endpoint(loop, remote_addr=(HOST, 9))
    with pytest.raises(LookupError, match="no"):
        client.sendto(b"x", Address())
    close(loop, client)


def test_data_that_is_not_contiguous(loop_factory):
    def body(loop):
        contexts = capture_contexts(loop)
        with udp_socket() as sock:
            client, recorder = endpoint(loop, remote_addr=sock.getsockname())
            client.sendto(memoryview(bytearray(10))[::2])
            loop.run_until_complete(turns(3))
        return [(context["message"], repr(context["exception"])) for context in contexts], recorder.lost

    found, lost = same_as_asyncio(body, loop_factory)
    assert lost
    assert found[0][0] == "Fatal write error on datagram transport"


def test_sending_after_the_end(loop_factory, caplog):
    """A connected endpoint counts and warns; one that isn't has no socket left to send with."""

    def body(loop):
        caplog.clear()
        found = []
        with udp_socket() as sock:
            connected, _ = endpoint(loop, remote_addr=sock.getsockname())
            free, _ = endpoint(loop)
            connected.close()
            free.close()
            free.sendto(b"still open", sock.getsockname())
            assert sock.recv(100) == b"still open"
            for _ in range(3):
                connected.sendto(b"x")
            loop.run_until_complete(turns(3))
            for _ in range(6):
                connected.sendto(b"x")
            with pytest.raises(TypeError):
                connected.sendto("text")
            for address in (None, sock.getsockname()):
                try:
                    free.sendto(b"x", address)
                except Exception as error:
                    found.append((type(error), str(error)))
            sock.setblocking(False)
            with pytest.raises(BlockingIOError):
                sock.recv(10)
        return found, [(record.levelname, record.getMessage()) for record in caplog.records]

    _, warnings = same_as_asyncio(body, loop_factory)
    assert warnings == [("WARNING", "socket.send() raised exception.")] * 5


def test_the_descriptor_that_was_closed_behind_the_transports_back(loop):
    transport, recorder = endpoint(loop)
    os.close(transport.get_extra_info("socket").fileno())
    transport.sendto(b"x", (HOST, 9))
    assert [error.errno for error in recorder.errors] == [errno.EBADF]
    loop.run_until_complete(turns(5))
    transport.get_extra_info("socket")._sock.detach()
    transport.close()
    loop.run_until_complete(turns(5))
    assert recorder.lost
