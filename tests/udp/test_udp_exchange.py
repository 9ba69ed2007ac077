"""Datagrams sent and received, over UDP and Unix sockets."""

import functools
import os
import socket

import pytest

from datagram_support import (
    SENDS_EMPTY,
    UDP_BYTES_MAX,
    DatagramRecorder,
    address_of,
    close,
    echo,
    endpoint,
    udp_socket,
    unix_socket,
    wait_for,
)
from support import (
    HOST,
    has_ipv6,
    same_as_asyncio,
    turns,
)


@pytest.mark.parametrize("host", [HOST, "::1"])
def test_echo_over_udp(loop, host):
    if host == "::1" and not has_ipv6():
        pytest.skip("no IPv6 on the loopback interface")
    server, service = endpoint(loop, DatagramRecorder(echo), local_addr=(host, 0))
    client, recorder = endpoint(loop, remote_addr=address_of(server)[:2])
    client.sendto(b"one")
    client.sendto(bytearray(b"two"), None)
    client.sendto(memoryview(b"three"), address_of(server))
    wait_for(loop, lambda: len(recorder.data) == 3)
    assert recorder.data == [b"echo one", b"echo two", b"echo three"]
    assert recorder.addresses == [address_of(server)] * 3
    assert service.data == [b"one", b"two", b"three"]
    assert service.addresses == [address_of(client)] * 3
    assert all(type(data) is bytes for data in service.data)
    close(loop, server, client)
    assert recorder.events[0] == ("connection_made",)
    assert recorder.events[-1] == ("connection_lost", None)


@pytest.mark.parametrize("abstract", [False, True], ids=["path", "abstract"])
def test_echo_over_unix_datagrams(loop, folder, abstract):
    def name(text):
        return f"\0ringloop-{os.getpid()}-{text}" if abstract else os.path.join(folder, text)

    server, service = endpoint(loop, DatagramRecorder(echo), local_addr=name("server"), family=socket.AF_UNIX)
    client, recorder = endpoint(loop, local_addr=name("client"), remote_addr=name("server"), family=socket.AF_UNIX)
    client.sendto(b"one")
    client.sendto(b"two")
    wait_for(loop, lambda: len(recorder.data) == 2)
    assert recorder.data == [b"echo one", b"echo two"]
    given_as = os.fsencode if abstract else str
    assert recorder.addresses == [given_as(name("server"))] * 2
    assert service.addresses == [given_as(name("client"))] * 2
    close(loop, server, client)


def test_an_unnamed_peer_has_no_address(loop, folder):
    path = os.path.join(folder, "server")
    server, recorder = endpoint(loop, local_addr=path, family=socket.AF_UNIX)
    with unix_socket(peer=path) as sock:
        sock.send(b"who am I?")
        wait_for(loop, lambda: recorder.data)
    assert recorder.events[1] == ("datagram_received", b"who am I?", None)
    close(loop, server)


def test_paths_that_are_not_ascii(loop_factory, folder):
    names = [os.path.join(folder, "sérvice"), os.fsdecode(os.path.join(os.fsencode(folder), b"\xff\xfe"))]

    def body(loop):
        received = []
        for path in names:
            server, recorder = endpoint(loop, DatagramRecorder(echo), local_addr=path, family=socket.AF_UNIX)
            with unix_socket(path + "-client", path) as sock:
                sock.send(b"x")
                wait_for(loop, functools.partial(lambda it: it.data, recorder))
                assert sock.recv(100) == b"echo x"
                recorder.transport.sendto(b"again", path + "-client")
                assert sock.recv(100) == b"again"
            received.append(recorder.addresses)
            close(loop, server)
            os.unlink(path)
            os.unlink(path + "-client")
        return received

    assert same_as_asyncio(body, loop_factory)[0] == [names[0] + "-client"]


def test_addresses_are_those_of_the_socket_module(loop_factory, folder):
    """The addresses are those that `recvfrom` gives for every kind of sender."""

    def body(loop):
        found = []
        server, recorder = endpoint(loop)
        with udp_socket((HOST, 0)) as sock, udp_socket(("127.10.200.99", 0)) as other:
            for sender in (sock, other, sock):
                sender.sendto(b"x", address_of(server))
            wait_for(loop, lambda: len(recorder.data) == 3)
            ports = {sock.getsockname()[1]: "first", other.getsockname()[1]: "second"}
            found += [(type(it), it[0], type(it[0]), type(it[1]), ports[it[1]]) for it in recorder.addresses]
        close(loop, server)
        path = os.path.join(folder, "s" * (107 - len(folder) - 1))
        server, recorder = endpoint(loop, local_addr=path, family=socket.AF_UNIX)
        longest = os.path.join(folder, "c" * (107 - len(folder) - 1))
        with unix_socket(longest, path) as sock:
            sock.send(b"x")
        with unix_socket(b"\0abstract\0with\xff", path) as sock:
            sock.send(b"x")
        with unix_socket("", path) as sock:
            sock.send(b"x")
            own = sock.getsockname()
        with unix_socket(None, path) as sock:
            sock.send(b"x")
        wait_for(loop, lambda: len(recorder.data) == 4)
        assert recorder.addresses[2] == own
        found += [*recorder.addresses[:2], type(recorder.addresses[2]), recorder.addresses[3]]
        close(loop, server)
        os.unlink(longest)
        return found

    found = same_as_asyncio(body, loop_factory)
    assert found[0] == (tuple, HOST, str, int, "first")
    assert found[1][1] == "127.10.200.99"
    assert found[-3:] == [b"\0abstract\0with\xff", bytes, None]


def test_ipv6_addresses_with_flow_and_scope(loop_factory):
    if not has_ipv6():
        pytest.skip("no IPv6 on the loopback interface")

    def body(loop):
        # For IPv4 and IPv6 at once there is no address of the loopback interface.
        server, recorder = endpoint(loop, local_addr=("::", 0))
        port = address_of(server)[1]
        sender, sent = endpoint(loop, local_addr=("::1", 0))
        for address in [
            ("::1", port),
            ("::1", port, 0),
            ("::1", port, 0, 0),
            ("0:0:0:0:0:0:0:1", port, 0, 0),
            ("::1", port, 1 << 21),
            ("::1%lo", port),
            ("127.0.0.1", port),
        ]:
            sender.sendto(b"x", address)
            if sender.is_closing():
                break
        wait_for(loop, lambda: len(recorder.data) >= 4)
        with udp_socket() as v4:
            v4.sendto(b"mapped", (HOST, port))
            wait_for(loop, lambda: recorder.data[-1] == b"mapped")
        found = [(address[0], *address[2:]) for address in recorder.addresses]
        close(loop, server, sender)
        return found, [(type(error), error.args) for error in sent.errors]

    found, _ = same_as_asyncio(body, loop_factory)
    assert found[0] == ("::1", 0, 0)
    assert found[-1] == ("::ffff:127.0.0.1", 0, 0)


def test_what_arrives_together_is_delivered_in_order_and_in_its_size(loop):
    server, recorder = endpoint(loop)
    sizes = [3, 0, 1, 1400, 0, 8000, 60000, 2, *range(30)]
    with udp_socket() as sock:
        for number, size in enumerate(sizes):
            sock.sendto(bytes([number]) * size, address_of(server))
        wait_for(loop, lambda: len(recorder.data) == len(sizes))
    assert recorder.data == [bytes([number]) * size for number, size in enumerate(sizes)]
    close(loop, server)


def test_the_largest_udp_datagram(loop):
    server, recorder = endpoint(loop, DatagramRecorder(lambda it, data: it.transport.sendto(data, it.addresses[-1])))
    data = os.urandom(UDP_BYTES_MAX)
    with udp_socket() as sock:
        for _ in range(2):
            sock.sendto(data, address_of(server))
            wait_for(loop, lambda: recorder.data)
            assert sock.recv(1 << 17) == data
    assert recorder.data == [data, data]
    close(loop, server)


def test_unix_datagrams_may_be_larger(loop, folder):
    path = os.path.join(folder, "server")
    server, recorder = endpoint(loop, local_addr=path, family=socket.AF_UNIX)
    datagrams = [os.urandom(200_000), b"small", os.urandom(100_000), os.urandom(150_000), b"", b"end"]
    with unix_socket(peer=path) as sock:
        for count, data in enumerate(datagrams, 1):
            sock.send(data)
            if len(data) > 1000:  # The sender's buffer takes one of these at a time.
                wait_for(loop, lambda: len(recorder.data) >= count)  # noqa: B023
        wait_for(loop, lambda: len(recorder.data) == len(datagrams))
    assert recorder.data == datagrams
    close(loop, server)


def test_a_large_datagram_among_small_ones(loop, folder):
    """Each is received whole, whatever came before it into the same memory."""
    udp, udp_recorder = endpoint(loop)
    path = os.path.join(folder, "server")
    unix, unix_recorder = endpoint(loop, local_addr=path, family=socket.AF_UNIX)
    with udp_socket() as first, unix_socket(peer=path) as second:
        for round_number in range(4):
            for size in (10, 40_000, 0, 20_000):
                first.sendto(bytes([round_number]) * size, address_of(udp))
                second.send(bytes([round_number + 100]) * size)
            wait_for(loop, lambda: len(udp_recorder.data) == len(unix_recorder.data) == 4 * (round_number + 1))  # noqa: B023
    expected = [(number, size) for number in range(4) for size in (10, 40_000, 0, 20_000)]
    assert udp_recorder.data == [bytes([number]) * size for number, size in expected]
    assert unix_recorder.data == [bytes([number + 100]) * size for number, size in expected]
    close(loop, udp, unix)


def test_empty_datagrams(loop):
    """Python sends them since 3.13."""
    server, recorder = endpoint(loop)
    client, _ = endpoint(loop, remote_addr=address_of(server))
    other, _ = endpoint(loop)
    for data in (b"", bytearray(), memoryview(b"")):
        client.sendto(data)
        other.sendto(data, address_of(server))
    client.sendto(b"end")
    wait_for(loop, lambda: b"end" in recorder.data)
    assert recorder.data == [b""] * (6 if SENDS_EMPTY else 0) + [b"end"]
    close(loop, server, client, other)


def test_many_senders(loop):
    server, _ = endpoint(loop, DatagramRecorder(echo))
    clients = [endpoint(loop, remote_addr=address_of(server)) for _ in range(60)]
    for _ in range(3):
        for number, (transport, _) in enumerate(clients):
            transport.sendto(b"%d" % number)
        loop.run_until_complete(turns(2))
    wait_for(loop, lambda: all(len(recorder.data) == 3 for _, recorder in clients))
    for number, (_, recorder) in enumerate(clients):
        assert recorder.data == [b"echo %d" % number] * 3
    close(loop, server, *(transport for transport, _ in clients))


def test_a_name_is_resolved(loop):
    """In `sendto`, at once, as the socket module does."""
    server, recorder = endpoint(loop)
    port = address_of(server)[1]
    sender, _ = endpoint(loop)

    class Text(str):
        __slots__ = ()

    class Number(int):
        __slots__ = ()

    sender.sendto(b"name", ("localhost", port))
    sender.sendto(b"subclass", (Text(HOST), Number(port)))
    sender.sendto(b"short", ("127.1", port))
    wait_for(loop, lambda: len(recorder.data) == 3)
    assert recorder.data == [b"name", b"subclass", b"short"]
    close(loop, server, sender)


def test_a_connected_endpoint_hears_only_its_peer(loop):
    server, _ = endpoint(loop, DatagramRecorder(echo))
    client, recorder = endpoint(loop, remote_addr=address_of(server))
    with udp_socket() as stranger:
        stranger.sendto(b"hello", address_of(client))
        client.sendto(b"x")
        wait_for(loop, lambda: recorder.data)
    assert recorder.data == [b"echo x"]
    close(loop, server, client)
