"""Datagram endpoints over UDP and Unix sockets."""

import asyncio
import contextlib
import contextvars
import errno
import functools
import gc
import itertools
import logging
import os
import re
import socket
import subprocess
import sys
import tempfile
import weakref

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support import (
    HOST,
    PATIENCE_S,
    capture_contexts,
    finish,
    has_ipv6,
    open_descriptors,
    resource_warnings,
    run_child,
    same_as_asyncio,
    turns,
    until,
)
from support import loop_factory as factory_of

MAX_UDP = 65507
SENDS_EMPTY = sys.version_info >= (3, 13)


class DatagramRecorder(asyncio.DatagramProtocol):
    """Writes down each callback as a tuple in `events`; `on_datagram(recorder, data)` runs for each datagram."""

    def __init__(self, on_datagram=None):
        self.events = []
        self.transport = None
        self.on_datagram = on_datagram

    @property
    def names(self):
        return [event[0] for event in self.events]

    @property
    def data(self):
        return [event[1] for event in self.events if event[0] == "datagram_received"]

    @property
    def addresses(self):
        return [event[2] for event in self.events if event[0] == "datagram_received"]

    @property
    def errors(self):
        return [event[1] for event in self.events if event[0] == "error_received"]

    @property
    def lost(self):
        return "connection_lost" in self.names

    def connection_made(self, transport):
        self.transport = transport
        self.events.append(("connection_made",))

    def datagram_received(self, data, address):
        self.events.append(("datagram_received", data, address))
        if self.on_datagram is not None:
            self.on_datagram(self, data)

    def error_received(self, error):
        self.events.append(("error_received", error))

    def pause_writing(self):
        self.events.append(("pause_writing",))

    def resume_writing(self):
        self.events.append(("resume_writing",))

    def connection_lost(self, error):
        self.events.append(("connection_lost", error))


def endpoint(loop, protocol=None, **options):
    """A datagram endpoint, on a free port of the loopback interface unless told otherwise: (transport, protocol)."""
    protocol = DatagramRecorder() if protocol is None else protocol
    if not options:
        options = {"local_addr": (HOST, 0)}
    return loop.run_until_complete(loop.create_datagram_endpoint(lambda: protocol, **options))


def address_of(transport):
    return transport.get_extra_info("sockname")


@contextlib.contextmanager
def udp_socket(address=(HOST, 0)):
    """A blocking UDP socket bound to an address; (None,) leaves it unbound."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(PATIENCE_S)
        sock.bind(address)
        yield sock


@contextlib.contextmanager
def unix_socket(path=None, peer=None):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.settimeout(PATIENCE_S)
        if path is not None:
            sock.bind(path)
        if peer is not None:
            sock.connect(peer)
        yield sock


def wait_for(loop, condition, what="the condition"):
    loop.run_until_complete(until(condition, what))


def close(loop, *transports):
    for transport in transports:
        transport.close()
    loop.run_until_complete(turns(3))


@pytest.fixture
def folder():
    # pytest's own folders may be too long for the path of a Unix socket.
    with tempfile.TemporaryDirectory(prefix="udp") as name:
        yield name


def full_pair():
    """Two connected Unix datagram sockets, and what was sent until the first had no room left.

    They have names: asyncio doesn't see that a socket is connected to a peer without one.
    """
    pair = [socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(2)]
    for sock in pair:
        sock.bind("")
        sock.setblocking(False)
    first, second = pair
    first.connect(second.getsockname())
    second.connect(first.getsockname())
    sent = []
    with contextlib.suppress(BlockingIOError):
        for number in itertools.count():
            data = b"before %d" % number
            first.send(data)
            sent.append(data)
    return first, second, sent


def drain(sock):
    """What the non-blocking socket has."""
    received = []
    with contextlib.suppress(BlockingIOError):
        while True:
            received.append(sock.recv(1 << 18))
    return received


async def drain_until(sock, received, count):
    """Collect from the non-blocking socket until there are `count` datagrams."""
    await until(lambda: received.extend(drain(sock)) or len(received) >= count, f"{count} datagrams")


@pytest.fixture
def right_buffer_size(arm):
    """For tests that need the size of the write buffer to be right again when it has been sent."""
    early = sys.version_info[:2] == (3, 13) and not hasattr(
        asyncio.selector_events._SelectorDatagramTransport, "_header_size"
    )
    if arm == "asyncio" and early:
        pytest.skip(
            "the asyncio of this early Python 3.13 adds the headers to the buffer's size and never takes them off"
        )


# Sending and receiving


def echo(recorder, data):
    recorder.transport.sendto(b"echo " + data, recorder.addresses[-1])


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
    """What `recvfrom` gives for every kind of sender."""

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
    data = os.urandom(MAX_UDP)
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


# Turns


def queued(loop, recorder, count=5, **options):
    """An endpoint with datagrams b"0", b"1", ... waiting in its socket."""
    transport, _ = endpoint(loop, recorder, **options)
    with udp_socket() as sock:
        for number in range(count):
            sock.sendto(b"%d" % number, address_of(transport))
    return transport


@pytest.mark.parametrize("method", ["close", "abort"])
def test_closing_ends_the_delivery(loop, method):
    recorder = DatagramRecorder(lambda it, _data: getattr(it.transport, method)())
    queued(loop, recorder)
    wait_for(loop, lambda: recorder.lost)
    assert recorder.names == ["connection_made", "datagram_received", "connection_lost"]
    assert recorder.transport.is_closing()


def test_a_closed_endpoint_stays_closed_after_further_datagrams(loop):
    def on_datagram(recorder, data):
        if data == b"2":
            recorder.transport.close()
            recorder.transport.close()
            recorder.transport.abort()

    recorder = DatagramRecorder(on_datagram)
    queued(loop, recorder)
    wait_for(loop, lambda: recorder.lost)
    loop.run_until_complete(turns(5))
    assert recorder.data == [b"0", b"1", b"2"]
    assert recorder.names.count("connection_lost") == 1


def test_stop_ends_the_turn_after_one_datagram(loop):
    recorder = DatagramRecorder(lambda _it, _data: loop.stop())
    transport = queued(loop, recorder)
    for count in range(1, 6):
        loop.run_forever()
        assert len(recorder.data) == count
    assert recorder.data == [b"0", b"1", b"2", b"3", b"4"]
    recorder.on_datagram = None
    close(loop, transport)


def test_pausing_ends_the_delivery_until_resumed(loop):
    def on_datagram(recorder, data):
        if data in (b"1", b"3"):
            recorder.transport.pause_reading()

    recorder = DatagramRecorder(on_datagram)
    transport = queued(loop, recorder, 20)
    wait_for(loop, lambda: len(recorder.data) == 2)
    assert not transport.is_reading()
    loop.run_until_complete(turns(5))
    assert recorder.data == [b"0", b"1"]
    transport.resume_reading()
    transport.resume_reading()
    wait_for(loop, lambda: len(recorder.data) == 4)
    loop.run_until_complete(turns(5))
    transport.resume_reading()
    wait_for(loop, lambda: len(recorder.data) == 20)
    assert recorder.data == [b"%d" % number for number in range(20)]
    assert transport.is_reading()
    close(loop, transport)
    assert not transport.is_reading()


def test_pausing_before_the_first_datagram(loop):
    transport, recorder = endpoint(loop)
    transport.pause_reading()
    with udp_socket() as sock:
        sock.sendto(b"x", address_of(transport))
        loop.run_until_complete(turns(5))
        assert recorder.data == []
        transport.resume_reading()
        wait_for(loop, lambda: recorder.data)
    close(loop, transport)


def test_a_flood_lets_others_in(loop):
    """Callbacks run, and other endpoints are served, before a long queue of datagrams is through."""
    order = []

    def on_datagram(_recorder, data):
        if not order:
            loop.call_soon(order.append, "callback")
        order.append(data)

    recorder = DatagramRecorder(on_datagram)
    transport = queued(loop, recorder, 100)
    other = queued(loop, DatagramRecorder(lambda _it, _data: order.append("other")), 1)
    wait_for(loop, lambda: len(order) == 102)
    assert order.index("callback") < 99
    assert order.index("other") < 99
    assert recorder.data == [b"%d" % number for number in range(100)]
    close(loop, transport, other)


def test_an_endless_exchange_lets_others_in(loop):
    """Each datagram is answered before the loop can look again; timers, callbacks and other sockets get their turn."""
    seen = []
    other, _ = endpoint(loop, DatagramRecorder(lambda _it, _data: seen.append("socket")))

    def on_datagram(recorder, data):
        if len(set(seen)) < 3:
            recorder.transport.sendto(data, address_of(recorder.transport))

    transport, recorder = endpoint(loop, DatagramRecorder(on_datagram))

    def begin_others():
        loop.call_later(0.001, seen.append, "timer")
        loop.call_soon(seen.append, "callback")
        other.sendto(b"x", address_of(other))

    transport.sendto(b"again and again", address_of(transport))
    wait_for(loop, lambda: len(recorder.data) > 100)
    begin_others()
    wait_for(loop, lambda: set(seen) == {"socket", "timer", "callback"})
    close(loop, transport, other)


def test_stop_in_an_endless_exchange(loop):
    def on_datagram(recorder, data):
        recorder.transport.sendto(data, address_of(recorder.transport))
        if len(recorder.data) % 50 == 0:
            loop.stop()

    transport, recorder = endpoint(loop, DatagramRecorder(on_datagram))
    transport.sendto(b"again and again", address_of(transport))
    for count in (50, 100, 150):
        loop.run_forever()
        assert len(recorder.data) == count
    recorder.on_datagram = None
    close(loop, transport)


@pytest.mark.parametrize("error_type", [SystemExit, KeyboardInterrupt])
def test_what_ends_the_loop_loses_no_datagram(loop, error_type):
    def on_datagram(_recorder, data):
        if data == b"1":
            raise error_type("enough")

    recorder = DatagramRecorder(on_datagram)
    transport = queued(loop, recorder)
    with pytest.raises(error_type, match="enough"):
        loop.run_forever()
    assert recorder.data == [b"0", b"1"]
    wait_for(loop, lambda: len(recorder.data) == 5)
    assert recorder.data == [b"0", b"1", b"2", b"3", b"4"]
    close(loop, transport)


@pytest.mark.without_debug_mode
def test_a_failing_datagram_received_is_reported_and_the_next_delivered(loop):
    def on_datagram(_recorder, data):
        if data in (b"1", b"4"):
            raise ValueError(data)

    contexts = capture_contexts(loop)
    recorder = DatagramRecorder(on_datagram)
    transport = queued(loop, recorder)
    wait_for(loop, lambda: len(contexts) == 2)
    assert recorder.data == [b"0", b"1", b"2", b"3", b"4"]
    assert [str(context["exception"]) for context in contexts] == ["b'1'", "b'4'"]
    for context in contexts:
        assert set(context) == {"message", "exception", "handle"}
        assert context["message"].startswith("Exception in callback ")
        assert "DatagramTransport._read_ready()" in context["message"]
        assert isinstance(context["handle"], asyncio.Handle)
    assert not transport.is_closing()
    close(loop, transport)


def test_the_exception_handler_may_close_the_transport(loop):
    recorder = DatagramRecorder(lambda _it, _data: 1 / 0)
    loop.set_exception_handler(lambda _loop, _context: recorder.transport.close())
    queued(loop, recorder)
    wait_for(loop, lambda: recorder.lost)
    assert len(recorder.data) == 1


def test_the_protocol_may_change_between_datagrams(loop):
    second = DatagramRecorder()

    def on_datagram(recorder, data):
        if data == b"1":
            assert recorder.transport.get_protocol() is recorder
            recorder.transport.set_protocol(second)

    first = DatagramRecorder(on_datagram)
    transport = queued(loop, first)
    wait_for(loop, lambda: len(second.data) == 3)
    assert first.data == [b"0", b"1"]
    assert second.data == [b"2", b"3", b"4"]
    assert transport.get_protocol() is second
    close(loop, transport)
    assert second.lost and not first.lost
    assert transport.get_protocol() is None


def test_a_protocol_without_the_method(loop):
    """A mistake of the user's is reported, not swallowed, and the loop goes on."""

    class Bare(asyncio.BaseProtocol):
        pass

    contexts = capture_contexts(loop)
    transport = queued(loop, Bare(), 2)
    wait_for(loop, lambda: len(contexts) == 2)
    assert {type(context["exception"]) for context in contexts} == {AttributeError}
    close(loop, transport)


def test_callbacks_run_in_the_context_of_the_creation(loop):
    variable = contextvars.ContextVar("variable", default="unset")
    seen = []

    class Protocol(DatagramRecorder):
        def connection_made(self, transport):
            super().connection_made(transport)
            seen.append(variable.get())
            variable.set("by connection_made")

    def on_datagram(_recorder, data):
        seen.append(variable.get())
        variable.set(data)

    async def create():
        variable.set("by the task")
        transport, _ = await loop.create_datagram_endpoint(lambda: Protocol(on_datagram), local_addr=(HOST, 0))
        variable.set("later")
        return transport

    transport = loop.run_until_complete(create())
    with udp_socket() as sock:
        sock.sendto(b"first", address_of(transport))
        sock.sendto(b"second", address_of(transport))
        wait_for(loop, lambda: len(seen) == 3)
    assert seen == ["by the task", "by the task", b"first"]
    assert variable.get() == "unset"
    close(loop, transport)


# Errors


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
    """What it raises goes to the caller of `sendto`, or to the exception handler where the loop was reading."""

    class Protocol(DatagramRecorder):
        def error_received(self, error):
            super().error_received(error)
            raise ValueError("mine") from error

    contexts = capture_contexts(loop)
    with udp_socket() as sock:
        address = sock.getsockname()
    client, recorder = endpoint(loop, Protocol(), remote_addr=address)
    with pytest.raises(ValueError, match="mine"):
        client.sendto(bytes(MAX_UDP + 1))
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
    client.sendto(bytes(MAX_UDP + 1), target)
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
        sender, recorder = endpoint(loop, local_addr=("0.0.0.0", 0))
        sender.sendto(b"x", ("255.255.255.255", 9))
        close(loop, sender)
        return [(type(error), error.args) for error in recorder.errors]

    assert same_as_asyncio(body, loop_factory)[0][0] is PermissionError


def test_broadcast_that_is_allowed(loop):
    server, service = endpoint(loop, local_addr=("0.0.0.0", 0))
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
    """What is no address at all ends the transport, as under asyncio; the loop and others go on."""

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


# Flow control


@pytest.mark.usefixtures("right_buffer_size")
def test_a_full_socket_buffers_and_pauses(loop):
    ours, peer, expected = full_pair()
    with peer:
        transport, recorder = endpoint(loop, sock=ours)
        transport.set_write_buffer_limits(high=1000)
        assert transport.get_write_buffer_limits() == (250, 1000)
        header = 8 if SENDS_EMPTY else 0
        size = 0
        while "pause_writing" not in recorder.names:
            data = b"%d" % size * 20
            transport.sendto(data)
            expected.append(data)
            size += len(data) + header
            assert transport.get_write_buffer_size() == size
            assert ("pause_writing" in recorder.names) == (size > 1000)
        received = []
        loop.run_until_complete(drain_until(peer, received, len(expected)))
        wait_for(loop, lambda: "resume_writing" in recorder.names)
        assert received == expected
        assert transport.get_write_buffer_size() == 0
        assert recorder.names == ["connection_made", "pause_writing", "resume_writing"]
        transport.sendto(b"direct")
        assert drain(peer) == [b"direct"]
        peer.send(b"and back")
        wait_for(loop, lambda: recorder.data)
        close(loop, transport)


@pytest.mark.usefixtures("right_buffer_size")
def test_the_full_queue_of_an_unconnected_peer(loop, folder):
    """No event tells that a Unix socket which we are not connected to has room again."""
    path = os.path.join(folder, "peer")
    with unix_socket(path) as peer:
        peer.setblocking(False)
        transport, recorder = endpoint(loop, family=socket.AF_UNIX)
        expected = [b"%d" % number for number in range(2000)]
        for data in expected:
            transport.sendto(data, path)
        assert transport.get_write_buffer_size() > 0
        received = []
        loop.run_until_complete(turns(20))
        loop.run_until_complete(drain_until(peer, received, len(expected)))
        assert received == expected
        assert not recorder.errors
        wait_for(loop, lambda: transport.get_write_buffer_size() == 0)
        close(loop, transport)


def test_close_sends_what_is_buffered(loop):
    ours, peer, expected = full_pair()
    with peer:
        transport, recorder = endpoint(loop, sock=ours)
        for number in range(10):
            transport.sendto(b"%d" % number)
        peer.send(b"never read")
        transport.close()
        assert transport.is_closing()
        loop.run_until_complete(turns(5))
        assert not recorder.lost
        received = []
        expected += [b"%d" % number for number in range(10)]
        loop.run_until_complete(drain_until(peer, received, len(expected)))
        wait_for(loop, lambda: recorder.lost)
        assert received == expected
        assert recorder.events == [("connection_made",), ("connection_lost", None)]


def test_abort_drops_what_is_buffered(loop):
    ours, peer, expected = full_pair()
    with peer:
        transport, recorder = endpoint(loop, sock=ours)
        for number in range(10):
            transport.sendto(b"%d" % number)
        transport.abort()
        loop.run_until_complete(turns(5))
        assert recorder.events == [("connection_made",), ("connection_lost", None)]
        assert drain(peer) == expected


def test_close_and_then_abort(loop):
    ours, peer, _ = full_pair()
    with peer:
        transport, recorder = endpoint(loop, sock=ours)
        transport.sendto(b"x")
        transport.close()
        transport.abort()
        transport.abort()
        loop.run_until_complete(turns(5))
        assert recorder.names == ["connection_made", "connection_lost"]


def test_what_is_buffered_is_a_copy(loop):
    ours, peer, expected = full_pair()
    with peer:
        transport, _ = endpoint(loop, sock=ours)
        data = bytearray(b"original")
        transport.sendto(data)
        data[:] = b"changed!"
        data.clear()
        received = []
        loop.run_until_complete(drain_until(peer, received, len(expected) + 1))
        assert received == [*expected, b"original"]
        close(loop, transport)


@pytest.mark.usefixtures("right_buffer_size")
def test_buffered_datagrams_keep_their_addresses(loop, folder):
    """Also those to peers with room wait for their turn."""
    full, free = os.path.join(folder, "full"), os.path.join(folder, "free")
    with unix_socket(full) as first, unix_socket(free) as second:
        first.setblocking(False)
        transport, _ = endpoint(loop, family=socket.AF_UNIX)
        count = 0
        while not transport.get_write_buffer_size():
            transport.sendto(b"%d" % count, full)
            count += 1
        transport.sendto(b"after", free)
        second.setblocking(False)
        loop.run_until_complete(turns(3))
        assert drain(second) == []
        received = []
        loop.run_until_complete(drain_until(first, received, count))
        wait_for(loop, lambda: not transport.get_write_buffer_size())
        loop.run_until_complete(drain_until(second, received, count + 1))
        assert received == [*(b"%d" % number for number in range(count)), b"after"]
        close(loop, transport)


def test_errors_while_the_buffer_is_sent(loop_factory, folder):
    """One that fails is told to the protocol; the rest is sent."""

    def body(loop):
        full = os.path.join(folder, "full")
        with unix_socket(full) as peer:
            peer.setblocking(False)
            contexts = capture_contexts(loop)
            transport, recorder = endpoint(loop, family=socket.AF_UNIX)
            count = 0
            while not transport._buffer:
                transport.sendto(b"%d" % count, full)
                count += 1
            transport.sendto(b"x", os.path.join(folder, "missing"))
            transport.sendto(b"last", full)
            received = []
            loop.run_until_complete(drain_until(peer, received, count + 1))
            assert received == [*(b"%d" % number for number in range(count)), b"last"]
            close(loop, transport)
        os.unlink(full)
        return [(type(error), error.args) for error in recorder.errors], contexts, recorder.names

    errors, contexts, names = same_as_asyncio(body, loop_factory)
    assert errors[0][0] is FileNotFoundError
    assert contexts == []
    assert names[-1] == "connection_lost"


def test_a_bad_address_in_the_buffer_is_fatal_when_its_turn_comes(loop, folder):
    contexts = capture_contexts(loop)
    full = os.path.join(folder, "full")
    with unix_socket(full) as peer:
        peer.setblocking(False)
        transport, recorder = endpoint(loop, family=socket.AF_UNIX)
        while not transport.get_write_buffer_size():
            transport.sendto(b"x", full)
        transport.sendto(b"x", 5)
        assert not transport.is_closing()
        wait_for(loop, lambda: (drain(peer) and False) or recorder.lost)
    assert recorder.names == ["connection_made", "connection_lost"]
    # asyncio then calls connection_lost once too often, and says so after this.
    assert contexts[0]["message"] == "Fatal write error on datagram transport"
    assert contexts[0]["exception"] is recorder.events[-1][1]


@pytest.mark.parametrize("method", ["pause_writing", "resume_writing"])
@pytest.mark.usefixtures("right_buffer_size")
def test_a_failing_flow_control_callback(loop, method):
    def fail():
        raise ValueError("mine")

    contexts = capture_contexts(loop)
    ours, peer, _ = full_pair()
    with peer:
        transport, recorder = endpoint(loop, sock=ours)
        setattr(recorder, method, fail)
        transport.set_write_buffer_limits(0)
        transport.sendto(b"x")
        wait_for(loop, lambda: (drain(peer) and False) or not transport.get_write_buffer_size())
        wait_for(loop, lambda: contexts)
        assert contexts[0]["message"] == f"protocol.{method}() failed"
        assert contexts[0]["transport"] is transport
        assert contexts[0]["protocol"] is recorder
        assert not transport.is_closing()
        close(loop, transport)


@pytest.mark.usefixtures("right_buffer_size")
def test_resume_writing_runs_in_the_context_of_the_blocked_send(loop):
    variable = contextvars.ContextVar("variable", default="unset")
    seen = []
    ours, peer, _ = full_pair()
    with peer:
        transport, recorder = endpoint(loop, sock=ours)
        recorder.resume_writing = lambda: seen.append(variable.get())
        transport.set_write_buffer_limits(0)

        def send(number):
            variable.set(number)
            transport.sendto(b"x")

        contextvars.copy_context().run(send, 1)
        contextvars.copy_context().run(send, 2)
        wait_for(loop, lambda: (drain(peer) and False) or seen)
        assert seen == [1]
        close(loop, transport)


@pytest.mark.usefixtures("right_buffer_size")
def test_resume_writing_may_send_and_close(loop):
    ours, peer, expected = full_pair()
    with peer:
        transport, recorder = endpoint(loop, sock=ours)
        transport.set_write_buffer_limits(0)
        received = []

        def resume_writing():
            recorder.events.append(("resume_writing",))
            transport.sendto(b"from resume_writing")
            transport.close()

        recorder.resume_writing = resume_writing
        transport.sendto(b"blocked")
        expected += [b"blocked", b"from resume_writing"]
        if type(transport).__module__.startswith("asyncio"):
            # It calls connection_lost twice there: once too often, and says so to the exception handler.
            loop.set_exception_handler(lambda _loop, _context: None)
        loop.run_until_complete(drain_until(peer, received, len(expected)))
        wait_for(loop, lambda: recorder.lost)
        assert received == expected
        assert recorder.names == ["connection_made", "pause_writing", "resume_writing", "connection_lost"]


@pytest.mark.parametrize("limits", [{}, {"high": 10}, {"low": 10}, {"high": 10, "low": 5}, {"high": 0}], ids=repr)
def test_buffer_limits(loop_factory, limits):
    def body(loop):
        transport, _ = endpoint(loop)
        before = transport.get_write_buffer_limits()
        transport.set_write_buffer_limits(**limits)
        after = transport.get_write_buffer_limits()
        with pytest.raises(ValueError) as caught:
            transport.set_write_buffer_limits(high=1, low=2)
        close(loop, transport)
        return before, after, str(caught.value)

    assert same_as_asyncio(body, loop_factory)[0] == (16384, 65536)


# create_datagram_endpoint


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
        texts = []
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
                texts.append(str(caught.value).split("fd=")[0])
        return texts

    texts = same_as_asyncio(body, loop_factory)
    assert texts[0] == (
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

    with resource_warnings() as texts, pytest.raises(LookupError, match="no protocol"):
        loop.run_until_complete(loop.create_datagram_endpoint(fail, local_addr=(HOST, 0)))
    assert len(texts) == 1 and "unclosed <socket.socket" in texts[0], "as under asyncio, whose oversight this is"


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


# What a transport tells of itself


def test_extra_info(loop_factory):
    def body(loop):
        with udp_socket() as peer:
            connected, _ = endpoint(loop, remote_addr=peer.getsockname())
            free, _ = endpoint(loop)
            assert connected.get_extra_info("peername") == peer.getsockname()
            assert connected.get_extra_info("sockname")[0] == HOST
            found = [
                free.get_extra_info("peername"),
                free.get_extra_info("unknown"),
                free.get_extra_info("unknown", "default"),
                type(free.get_extra_info("socket")).__name__,
                free.get_extra_info("socket").type,
                isinstance(free, asyncio.DatagramTransport),
                isinstance(free, asyncio.BaseTransport),
                isinstance(free, asyncio.Transport),
            ]
            close(loop, connected, free)
            found += [free.get_extra_info("sockname")[0], free.is_closing(), free.get_write_buffer_size()]
            return found

    same_as_asyncio(body, loop_factory)


def test_repr(loop_factory):
    def body(loop):
        ours, peer, _ = full_pair()
        with peer:
            transport, recorder = endpoint(loop, sock=ours)
            texts = [repr(transport)]
            transport.pause_reading()
            texts.append(repr(transport))
            transport.resume_reading()
            transport.sendto(b"12345")
            texts.append(repr(transport).replace("bufsize=13", "bufsize=5"))
            transport.close()
            texts.append(repr(transport).replace("bufsize=13", "bufsize=5"))
            wait_for(loop, lambda: (drain(peer) and False) or recorder.lost)
            texts.append(repr(transport))
        fd = f"fd={transport._sock_fd}"
        return [text.replace("_Selector", "").replace(fd, "fd=N") for text in texts]

    texts = same_as_asyncio(body, loop_factory)
    assert texts[0] == "<DatagramTransport fd=N read=polling write=<idle, bufsize=0>>"
    assert texts[2] == "<DatagramTransport fd=N read=polling write=<polling, bufsize=5>>"


def test_the_descriptor_belongs_to_the_transport(loop):
    transport, _ = endpoint(loop)
    sock = transport.get_extra_info("socket")
    for method in (loop.add_reader, loop.add_writer):
        with pytest.raises(RuntimeError) as caught:
            method(sock.fileno(), print)
        assert str(caught.value) == f"File descriptor {sock.fileno()} is used by transport {transport!r}"
    close(loop, transport)


def test_attributes_can_be_set(loop):
    transport, _ = endpoint(loop)
    transport.mine = "something"
    assert transport.mine == "something"
    close(loop, transport)


def test_debug_mode(loop, caplog):
    loop.set_debug(True)
    loop.slow_callback_duration = 0
    caplog.set_level(logging.DEBUG, "asyncio")
    server, service = endpoint(loop, DatagramRecorder(echo))
    client, recorder = endpoint(loop, remote_addr=address_of(server))
    client.sendto(b"x")
    wait_for(loop, lambda: recorder.data)
    client.pause_reading()
    client.resume_reading()
    close(loop, server, client)
    messages = [record.getMessage() for record in caplog.records]
    assert any(message.startswith("Datagram endpoint local_addr=") for message in messages)
    assert any(message.startswith("Executing ") and "DatagramTransport" in message for message in messages)
    assert [message.rsplit("> ")[-1] for message in messages if message.endswith("reading")] == [
        "pauses reading",
        "resumes reading",
    ]


def test_audit_hooks_hear_of_sendto(arm, loop_factory):
    """A hook sees each address that something is sent to, whoever makes the system call."""
    source = """
        import socket
        heard = []
        def hook(event, arguments):
            if event == "socket.sendto":
                heard.append((type(arguments[0]).__name__, arguments[1][1]))
                if arguments[1][1] == 4:
                    raise RuntimeError("forbidden")
        sys.addaudithook(hook)
        async def main():
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(lambda _loop, context: print(context["message"], repr(context["exception"])))
            transport, _ = await loop.create_datagram_endpoint(asyncio.DatagramProtocol, local_addr=("127.0.0.1", 0))
            for address in [("127.0.0.1", 9), ("127.0.0.1", 9), ("localhost", 8), ("127.0.0.1", 4)]:
                transport.sendto(b"x", address)
            print(transport.is_closing())
            await asyncio.sleep(0)
        loop = new_loop()
        loop.run_until_complete(main())
        loop.close()
        print(heard)
    """
    found = run_child(source, arm)
    assert found.stdout.splitlines() == [
        "Fatal write error on datagram transport RuntimeError('forbidden')",
        "True",
        "[('socket', 9), ('socket', 9), ('socket', 8), ('socket', 4)]",
    ], found.stderr


# sock_recvfrom, sock_recvfrom_into, sock_sendto


@contextlib.contextmanager
def plain_pair(kind="udp"):
    """Two non-blocking datagram sockets with addresses."""
    family = {"udp": socket.AF_INET, "udp6": socket.AF_INET6}.get(kind, socket.AF_UNIX)
    with socket.socket(family, socket.SOCK_DGRAM) as first, socket.socket(family, socket.SOCK_DGRAM) as second:
        for sock in (first, second):
            sock.bind({"udp": (HOST, 0), "udp6": ("::1", 0)}.get(kind, ""))
            sock.setblocking(False)
        yield first, second


@pytest.mark.parametrize("kind", ["udp", "udp6", "unix"])
def test_sock_sendto_and_recvfrom(loop, kind):
    if kind == "udp6" and not has_ipv6():
        pytest.skip("no IPv6 on the loopback interface")

    async def main():
        with plain_pair(kind) as (first, second):
            assert await loop.sock_sendto(first, b"ready", second.getsockname()) == 5
            assert await loop.sock_recvfrom(second, 100) == (b"ready", first.getsockname())
            task = loop.create_task(loop.sock_recvfrom(second, 100))
            await turns(3)
            assert not task.done()
            assert await loop.sock_sendto(first, memoryview(b"later"), second.getsockname()) == 5
            assert await task == (b"later", first.getsockname())
            await loop.sock_sendto(first, bytearray(b"cut off here"), second.getsockname())
            assert await loop.sock_recvfrom(second, 7) == (b"cut off", first.getsockname())
            await loop.sock_sendto(first, b"", second.getsockname())
            assert await loop.sock_recvfrom(second, 100) == (b"", first.getsockname())

    loop.run_until_complete(main())


@pytest.mark.parametrize("kind", ["udp", "unix"])
def test_sock_recvfrom_into(loop, kind):
    async def main():
        with plain_pair(kind) as (first, second):
            buffer = bytearray(10)
            for arguments, expected in [((), b"datagram"), ((0,), b"datagram"), ((4,), b"data"), ((10,), b"datagram")]:
                buffer[:] = bytes(10)
                task = loop.create_task(loop.sock_recvfrom_into(second, buffer, *arguments))
                await turns(2)
                await loop.sock_sendto(first, b"datagram", second.getsockname())
                assert await task == (len(expected), first.getsockname())
                assert buffer == expected.ljust(10, b"\0")
            view = memoryview(buffer)[2:6]
            await loop.sock_sendto(first, b"datagram", second.getsockname())
            assert await loop.sock_recvfrom_into(second, buf=view, nbytes=3) == (3, first.getsockname())
            assert buffer == b"dadatram\0\0"

    loop.run_until_complete(main())


def test_sock_recvfrom_of_the_largest_datagrams(loop):
    async def main():
        with plain_pair() as (first, second):
            data = os.urandom(MAX_UDP)
            assert await loop.sock_sendto(first, data, second.getsockname()) == MAX_UDP
            assert await loop.sock_recvfrom(second, 1 << 20) == (data, first.getsockname())
        with plain_pair("unix") as (first, second):
            data = os.urandom(200_000)
            await loop.sock_sendto(first, data, second.getsockname())
            assert await loop.sock_recvfrom(second, 1 << 18) == (data, first.getsockname())
            await loop.sock_sendto(first, data, second.getsockname())
            assert await loop.sock_recvfrom(second, 1 << 30) == (data, first.getsockname())

    loop.run_until_complete(main())


def test_sock_recvfrom_of_a_stream_has_no_address(loop_factory):
    def body(loop):
        async def main():
            first, second = socket.socketpair()
            with first, second:
                first.setblocking(False)
                second.setblocking(False)
                await loop.sock_sendall(first, b"stream")
                found = [await loop.sock_recvfrom(second, 3), await loop.sock_recvfrom_into(second, bytearray(10))]
                first.close()
                found.append(await loop.sock_recvfrom(second, 3))
                return found

        return loop.run_until_complete(main())

    assert same_as_asyncio(body, loop_factory) == [(b"str", None), (3, None), (b"", None)]


def test_sock_sendto_waits_for_room(loop, folder):
    path = os.path.join(folder, "peer")

    async def main():
        with unix_socket(path) as peer, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            peer.setblocking(False)
            sock.setblocking(False)
            expected = []
            with contextlib.suppress(BlockingIOError):
                while True:
                    sock.sendto(b"%d" % len(expected), path)
                    expected.append(b"%d" % len(expected))
            task = loop.create_task(loop.sock_sendto(sock, b"last", path))
            await turns(10)
            assert not task.done()
            received = []
            await drain_until(peer, received, len(expected) + 1)
            assert received == [*expected, b"last"]
            assert await task == 4

    loop.run_until_complete(main())


WRONG_CALLS = {
    "recvfrom of a word": lambda loop, sock, _other: loop.sock_recvfrom(sock, "many"),
    "recvfrom of less than nothing": lambda loop, sock, _other: loop.sock_recvfrom(sock, -1),
    "recvfrom of nothing": lambda loop, sock, _other: loop.sock_recvfrom(sock, 0),
    "recvfrom of far too much": lambda loop, sock, _other: loop.sock_recvfrom(sock, 1 << 70),
    "recvfrom of None": lambda loop, sock, _other: loop.sock_recvfrom(sock, None),
    "recvfrom of no socket": lambda loop, _sock, _other: loop.sock_recvfrom(5, 5),
    "recvfrom without a number": lambda loop, sock, _other: loop.sock_recvfrom(sock),
    "recvfrom_into bytes": lambda loop, sock, _other: loop.sock_recvfrom_into(sock, b"read-only"),
    "recvfrom_into text": lambda loop, sock, _other: loop.sock_recvfrom_into(sock, "text"),
    "recvfrom_into None": lambda loop, sock, _other: loop.sock_recvfrom_into(sock, None),
    "recvfrom_into too little": lambda loop, sock, _other: loop.sock_recvfrom_into(sock, bytearray(5), 6),
    "recvfrom_into less than nothing": lambda loop, sock, _other: loop.sock_recvfrom_into(sock, bytearray(5), -1),
    "recvfrom_into a word": lambda loop, sock, _other: loop.sock_recvfrom_into(sock, bytearray(5), "many"),
    "recvfrom_into nothing": lambda loop, sock, _other: loop.sock_recvfrom_into(sock, bytearray()),
    "recvfrom_into wide items": lambda loop, sock, _other: loop.sock_recvfrom_into(
        sock, memoryview(bytearray(16)).cast("I")
    ),
    "sendto text": lambda loop, sock, other: loop.sock_sendto(sock, "text", other.getsockname()),
    "sendto a number": lambda loop, sock, other: loop.sock_sendto(sock, 5, other.getsockname()),
    "sendto holes": lambda loop, sock, other: loop.sock_sendto(sock, memoryview(b"1234")[::2], other.getsockname()),
    "sendto None": lambda loop, sock, _other: loop.sock_sendto(sock, b"x", None),
    "sendto half an address": lambda loop, sock, _other: loop.sock_sendto(sock, b"x", (HOST,)),
    "sendto a wrong port": lambda loop, sock, _other: loop.sock_sendto(sock, b"x", (HOST, 65536)),
    "sendto a path": lambda loop, sock, _other: loop.sock_sendto(sock, b"x", "path"),
    "sendto without an address": lambda loop, sock, _other: loop.sock_sendto(sock, b"x"),
    "sendto too much": lambda loop, sock, other: loop.sock_sendto(sock, bytes(MAX_UDP + 1), other.getsockname()),
    "sendto everybody": lambda loop, sock, _other: loop.sock_sendto(sock, b"x", ("255.255.255.255", 9)),
    "sendto a name": lambda loop, sock, other: loop.sock_sendto(sock, b"x", ("localhost", other.getsockname()[1])),
    "sendto nowhere": lambda loop, sock, _other: loop.sock_sendto(sock, b"x", ("name.invalid", 9)),
}


@pytest.mark.parametrize("closed", [False, True], ids=["open", "closed"])
@pytest.mark.parametrize("name", WRONG_CALLS)
def test_wrong_calls(loop_factory, name, closed):
    """Errors, and results of what is odd but right, are asyncio's: type, text, and whether they come at all."""

    def body(loop):
        async def main():
            with plain_pair() as (first, second):
                first.connect(second.getsockname()) if "sendto" not in name else None
                second.sendto(b"12345678", first.getsockname())
                if closed:
                    first.close()
                try:
                    result = await WRONG_CALLS[name](loop, first, second)
                except Exception as error:
                    return type(error), re.sub(r"^\S*sock_", "sock_", str(error))
                return result[0] if type(result) is tuple else result

        return loop.run_until_complete(main())

    same_as_asyncio(body, loop_factory)


def test_sock_operations_are_told_of_errors(loop):
    async def main():
        with plain_pair() as (first, second):
            address = second.getsockname()
            first.connect(address)
            second.close()
            for receive in (
                lambda: loop.sock_recvfrom(first, 10),
                lambda: loop.sock_recvfrom_into(first, bytearray(10)),
            ):
                task = loop.create_task(receive())
                await turns(2)
                first.send(b"x")
                with pytest.raises(ConnectionRefusedError):
                    await task
            first.send(b"x")
            with pytest.raises(ConnectionRefusedError):
                await loop.sock_sendto(first, b"x", address)

    loop.run_until_complete(main())


def test_cancelling_sock_operations(loop):
    async def main():
        with plain_pair() as (first, second):
            for receive in (
                lambda: loop.sock_recvfrom(first, 10),
                lambda: loop.sock_recvfrom_into(first, bytearray(10)),
            ):
                task = loop.create_task(receive())
                await turns(2)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert loop.remove_reader(first) is False
            await loop.sock_sendto(second, b"x", first.getsockname())
            assert await loop.sock_recvfrom(first, 10) == (b"x", second.getsockname())

    loop.run_until_complete(main())


def test_sock_operations_next_to_a_transport(loop):
    transport, _ = endpoint(loop)
    sock = transport.get_extra_info("socket")._sock
    for operation in (loop.sock_recvfrom(sock, 10), loop.sock_recvfrom_into(sock, bytearray(10))):
        with pytest.raises(RuntimeError, match="File descriptor .* is used by transport <"):
            loop.run_until_complete(operation)
    close(loop, transport)


def test_sock_operations_in_debug_mode(loop):
    loop.set_debug(True)
    with plain_pair() as (first, second):
        first.setblocking(True)
        address = second.getsockname()
        for operation in (
            loop.sock_recvfrom(first, 10),
            loop.sock_recvfrom_into(first, bytearray(10)),
            loop.sock_sendto(first, b"x", address),
        ):
            with pytest.raises(ValueError, match="the socket must be non-blocking"):
                loop.run_until_complete(operation)


@pytest.mark.ringloop_only
def test_sock_operations_that_nobody_awaits_warn(loop):
    loop.set_debug(False)  # There they are asyncio's coroutines.
    with plain_pair() as (first, second):
        for name, arguments in [
            ("sock_recvfrom", (10,)),
            ("sock_recvfrom_into", (bytearray(10),)),
            ("sock_sendto", (b"x", second.getsockname())),
        ]:
            operation = getattr(loop, name)(first, *arguments)
            assert asyncio.iscoroutine(operation)
            assert repr(operation).startswith(f"<coroutine object EventLoop.{name} at ")
            with pytest.warns(RuntimeWarning, match=f"coroutine 'EventLoop.{name}' was never awaited"):
                del operation
                gc.collect()


# Life


def test_an_unclosed_transport_warns_and_closes_its_socket(loop_factory):
    descriptors = open_descriptors()
    loop = loop_factory()
    with resource_warnings() as texts:
        endpoint(loop)
        loop.close()
        gc.collect()
    assert len([it for it in texts if it.startswith("unclosed transport <")]) == 1, texts
    assert open_descriptors() == descriptors


def test_a_paused_transport_that_nobody_holds_is_collected(loop):
    transport, recorder = endpoint(loop)
    transport.pause_reading()
    reference = weakref.ref(transport)
    with resource_warnings() as texts:
        recorder.transport = None
        del transport
    assert reference() is None
    assert len(texts) == 1 and texts[0].startswith("unclosed transport <")


def test_a_reading_transport_lives_without_references(loop):
    transport, recorder = endpoint(loop)
    address = address_of(transport)
    reference = weakref.ref(transport)
    recorder.transport = None
    del transport
    gc.collect()
    assert reference() is not None
    with udp_socket() as sock:
        sock.sendto(b"x", address)
        wait_for(loop, lambda: recorder.data)
    close(loop, reference())
    gc.collect()
    assert reference() is None


def test_cycles_are_collected(loop):
    transport, recorder = endpoint(loop)
    transport.sendto(b"x", address_of(transport))
    wait_for(loop, lambda: recorder.data)
    transport.itself = transport
    close(loop, transport)
    references = weakref.ref(transport), weakref.ref(recorder)
    transport = recorder = None
    gc.collect()
    assert [reference() for reference in references] == [None, None]


def test_closing_the_loop_first(loop_factory):
    def use(loop):
        transport, recorder = endpoint(loop)
        loop.close()
        try:
            transport.close()
        except RuntimeError as error:
            text = str(error)
        with udp_socket() as sock:
            transport.sendto(b"x", sock.getsockname())
            assert sock.recv(10) == b"x", "the socket is still open"
        return text, transport.is_closing(), recorder.names

    with resource_warnings() as texts:
        assert use(loop_factory()) == ("Event loop is closed", True, ["connection_made"])
    assert any(text.startswith("unclosed transport <") for text in texts)


def test_nothing_is_left_after_many_cycles(loop):
    """Descriptors, objects and references."""
    big = os.urandom(2000)
    server, service = endpoint(loop, DatagramRecorder(echo))
    target = address_of(server)

    async def cycle():
        done = loop.create_future()
        recorder = DatagramRecorder(lambda _it, data: done.done() or done.set_result(data))
        transport, _ = await loop.create_datagram_endpoint(lambda: recorder, remote_addr=target)
        transport.sendto(big)
        assert await done == b"echo " + big
        service.events.clear()
        transport.close()
        await turns(2)
        assert recorder.lost

    async def cycles(count):
        for _ in range(count):
            await cycle()

    loop.run_until_complete(cycles(20))
    gc.collect()
    descriptors, objects, references = open_descriptors(), len(gc.get_objects()), sys.getrefcount(big)
    loop.run_until_complete(cycles(200))
    gc.collect()
    assert open_descriptors() == descriptors
    assert sys.getrefcount(big) == references
    assert len(gc.get_objects()) < objects + 100
    close(loop, server)


def test_references_of_what_is_sent_and_received(loop):
    server, service = endpoint(loop, DatagramRecorder(echo))
    client, recorder = endpoint(loop, remote_addr=address_of(server))
    data, address = b"payload" * 10, address_of(server)
    references = sys.getrefcount(data), sys.getrefcount(recorder)
    for count in range(1, 51):
        client.sendto(data, address)
        wait_for(loop, lambda: len(recorder.data) == count)  # noqa: B023
    assert (sys.getrefcount(data), sys.getrefcount(recorder)) == references
    assert sys.getrefcount(recorder.data[0]) <= 3
    close(loop, server, client)


def test_a_child_process_as_peer(loop):
    """Real datagrams from another process, more than one batch."""
    server, recorder = endpoint(loop)
    host, port = address_of(server)
    source = f"import socket\ns = socket.socket(type=socket.SOCK_DGRAM)\nfor n in range(100): s.sendto(b'%d' % n, ({host!r}, {port}))"
    process = subprocess.Popen([sys.executable, "-c", source])
    wait_for(loop, lambda: len(recorder.data) == 100)
    assert process.wait(PATIENCE_S) == 0
    assert recorder.data == [b"%d" % number for number in range(100)]
    close(loop, server)


# Random traffic


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(0, 2), st.sampled_from([0, 1, 7, 1000, 4000, 20000])),
        st.tuples(st.just("reply"), st.integers(0, 5)),
        st.tuples(st.just("turns"), st.integers(1, 3)),
        st.tuples(st.just("pause")),
        st.tuples(st.just("resume")),
        st.tuples(st.just("raise")),
    ),
    max_size=40,
)


def traffic(loop, actions, folder):
    """Run the actions with three senders and one receiver; return what the receiver and the senders saw."""
    path = os.path.join(folder, "receiver")
    raising = []

    def on_datagram(_recorder, _data):
        if raising:
            raising.pop()
            raise ValueError

    reported = []
    loop.set_exception_handler(lambda _loop, context: reported.append(type(context["exception"]).__name__))
    receiver, recorder = endpoint(loop, DatagramRecorder(on_datagram), local_addr=path, family=socket.AF_UNIX)
    names = [os.path.join(folder, f"sender{number}") for number in range(3)]
    with contextlib.ExitStack() as stack:
        senders = [stack.enter_context(unix_socket(name, path)) for name in names]
        for sender in senders:
            sender.setblocking(False)
        sent = 0
        for number, action in enumerate(actions):
            match action:
                case ("send", index, size):
                    with contextlib.suppress(BlockingIOError):
                        senders[index].send(number.to_bytes(2, "big") * size)
                        sent += 1
                case ("reply", back) if back < len(recorder.addresses):
                    receiver.sendto(b"reply %d" % number, recorder.addresses[-1 - back])
                case ("turns", count):
                    receiver.resume_reading()
                    # As many as it takes, so that it doesn't matter how many datagrams fit into a turn.
                    wait_for(loop, lambda: len(recorder.data) == sent)  # noqa: B023
                    loop.run_until_complete(turns(count))
                case ("pause",):
                    receiver.pause_reading()
                case ("resume",):
                    receiver.resume_reading()
                case ("raise",):
                    raising.append(True)
        receiver.resume_reading()
        wait_for(loop, lambda: len(recorder.data) == sent and not receiver._buffer)
        replies = [drain(sender) for sender in senders]
        events = recorder.events[:]
        close(loop, receiver)
    for name in (path, *names):
        os.unlink(name)
    return events, replies, reported


@given(actions=ACTIONS)
@settings(
    deadline=None,
    database=None,
    max_examples=25,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@pytest.mark.ringloop_only
def test_random_traffic_is_delivered_as_under_asyncio(arm, actions):
    with tempfile.TemporaryDirectory(prefix="udp") as folder:
        found = []
        for name in ("asyncio", arm):
            loop = factory_of(name)()
            try:
                found.append(traffic(loop, actions, folder))
            finally:
                finish(loop)
    assert found[0] == found[1]
