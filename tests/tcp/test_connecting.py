"""Making TCP connections: `create_connection`, `connect_accepted_socket`, and what goes wrong on the way."""

import asyncio
import collections
import errno
import socket

import pytest

from support import (
    HOST,
    Echo,
    Recorder,
    has_ipv6,
    has_parameter,
    receive_exactly,
    same_as_asyncio,
    skip_unless,
    tcp_listener,
    tcp_pair,
    turns,
    until,
)
from tcp_support import Factory, address_of, skip_ipv6


def test_create_connection_returns_transport_and_protocol(loop):
    async def main():
        factory = Factory()
        server = await loop.create_server(factory, HOST, 0)
        client = Recorder()
        transport, protocol = await loop.create_connection(lambda: client, *address_of(server))
        assert protocol is client and client.transport is transport
        assert client.names == ["connection_made"], "connection_made comes before create_connection returns"
        assert isinstance(transport, asyncio.Transport)
        await until(factory.has_connected)
        server_side = factory.made[0].transport
        assert transport.get_extra_info("peername") == server_side.get_extra_info("sockname") == address_of(server)
        assert transport.get_extra_info("sockname") == server_side.get_extra_info("peername")
        transport.close()
        await until(lambda: client.lost and factory.made[0].lost)
        assert (client.error, factory.made[0].error) == (None, None)
        server.close()
        await server.wait_closed()

    loop.run_until_complete(main())


def test_create_connection_with_a_connected_socket(loop):
    ours, peer = tcp_pair()
    ours.setblocking(True)

    async def main():
        transport, protocol = await loop.create_connection(Recorder, sock=ours)
        assert ours.gettimeout() == 0
        with peer:
            peer.send(b"x")
            await until(lambda: protocol.data)
        await until(lambda: protocol.lost)
        assert ours.fileno() == -1

    loop.run_until_complete(main())


def test_create_connection_with_a_unix_socket_pair(loop):
    ours, peer = socket.socketpair()

    async def main():
        transport, protocol = await loop.create_connection(Recorder, sock=ours)
        transport.write(b"out")
        with peer:
            peer.setblocking(False)
            assert await receive_exactly(loop, peer, 3) == b"out"
            peer.send(b"in")
            await until(lambda: protocol.data == b"in")
        await until(lambda: protocol.lost)
        assert protocol.error is None

    loop.run_until_complete(main())


class ActsAsSocket:
    """Has all that a socket has, but isn't one; counts the calls that a transport makes."""

    def __init__(self, sock):
        self.sock, self.calls = sock, collections.Counter()

    def __getattr__(self, name):
        if name in ("recv", "send"):
            self.calls[name] += 1
        return getattr(self.sock, name)


def test_create_connection_with_what_only_acts_as_a_socket(loop):
    """Its own methods are called."""
    ours, peer = tcp_pair()
    sock = ActsAsSocket(ours)

    async def main():
        transport, protocol = await loop.create_connection(Recorder, sock=sock)
        with pytest.raises(RuntimeError, match="is used by transport"):
            loop.add_reader(sock, print)
        with peer:
            peer.send(b"in")
            await until(lambda: protocol.data == b"in")
            transport.write(b"out")
            assert await receive_exactly(loop, peer, 3) == b"out"
        await until(lambda: protocol.lost)
        assert ours.fileno() == -1

    loop.run_until_complete(main())
    assert sock.calls["recv"] and sock.calls["send"]


@pytest.mark.parametrize("name", ["recv", "send"])
def test_create_connection_with_a_subclass_of_socket(loop, name):
    """Its own methods are called."""
    called = []

    class Subclass(socket.socket):
        def recv(self, *arguments):
            called.append("recv")
            return super().recv(*arguments)

        def send(self, *arguments):
            called.append("send")
            return super().send(*arguments)

    ours, peer = tcp_pair()
    sock = Subclass(fileno=ours.detach())

    async def main():
        transport, protocol = await loop.create_connection(Recorder, sock=sock)
        with peer:
            if name == "recv":
                peer.send(b"in")
                await until(lambda: protocol.data == b"in")
            else:
                transport.write(b"out")
                assert await receive_exactly(loop, peer, 3) == b"out"
        await until(lambda: protocol.lost)

    loop.run_until_complete(main())
    assert name in called


def test_connect_accepted_socket(loop):
    async def main():
        with tcp_listener() as listener, socket.create_connection(listener.getsockname()) as peer:
            accepted, _ = await loop.sock_accept(listener)
            transport, protocol = await loop.connect_accepted_socket(Recorder, accepted)
            assert protocol.names == ["connection_made"]
            assert transport.get_extra_info("peername") == peer.getsockname()
            transport.write(b"hello")
            peer.setblocking(False)
            assert await receive_exactly(loop, peer, 5) == b"hello"
            transport.close()
            await until(lambda: protocol.lost)

    loop.run_until_complete(main())


def test_connect_accepted_socket_checks_its_arguments(loop):
    with socket.socket(type=socket.SOCK_DGRAM) as datagram, socket.socket() as stream:
        for sock, options, text in (
            (datagram, {}, f"A Stream Socket was expected, got {datagram!r}"),
            (stream, {"ssl_handshake_timeout": 1}, "ssl_handshake_timeout is only meaningful with ssl"),
            (stream, {"ssl_shutdown_timeout": 1}, "ssl_shutdown_timeout is only meaningful with ssl"),
        ):
            with pytest.raises(ValueError) as caught:
                loop.run_until_complete(loop.connect_accepted_socket(Recorder, sock, **options))
            assert str(caught.value) == text


@pytest.mark.parametrize(
    "arguments, text",
    [
        ({}, "host and port was not specified and no sock specified"),
        ({"host": HOST, "port": 1, "sock": "stream"}, "host/port and sock can not be specified at the same time"),
        ({"sock": "datagram"}, "A Stream Socket was expected, got <socket.socket "),
        ({"host": HOST, "port": 1, "server_hostname": "x"}, "server_hostname is only meaningful with ssl"),
        ({"host": HOST, "port": 1, "ssl_handshake_timeout": 1}, "ssl_handshake_timeout is only meaningful with ssl"),
        ({"host": HOST, "port": 1, "ssl_shutdown_timeout": 1}, "ssl_shutdown_timeout is only meaningful with ssl"),
        ({"sock": "stream", "ssl": True}, "You must set server_hostname when using ssl without a host"),
    ],
    ids=["nothing", "both", "datagram", "hostname", "handshake", "shutdown", "no host"],
)
def test_create_connection_checks_its_arguments(loop, arguments, text):
    with socket.socket() as stream, socket.socket(type=socket.SOCK_DGRAM) as datagram:
        given = {"stream": stream, "datagram": datagram}
        if "sock" in arguments:
            arguments = {**arguments, "sock": given[arguments["sock"]]}
        with pytest.raises(ValueError) as caught:
            loop.run_until_complete(loop.create_connection(Recorder, **arguments))
    assert str(caught.value).startswith(text)


def test_a_refused_connection(loop, refused_port):
    with pytest.raises(ConnectionRefusedError) as caught:
        loop.run_until_complete(loop.create_connection(Recorder, HOST, refused_port))
    assert caught.value.errno == errno.ECONNREFUSED
    assert str(caught.value) == f"[Errno 111] Connect call failed ('127.0.0.1', {refused_port})"


def resolve_to(loop, monkeypatch, *hosts):
    """Make `loop.getaddrinfo` answer with these addresses."""

    async def getaddrinfo(host, port, **options):
        return [
            (
                socket.AF_INET6 if ":" in address else socket.AF_INET,
                socket.SOCK_STREAM,
                socket.IPPROTO_TCP,
                "",
                (address, port),
            )
            for address in hosts
        ]

    monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo, raising=True)


@pytest.mark.without_debug_mode
def test_a_server_of_the_same_loop_has_accepted_when_the_connection_is_there(loop_factory):
    """In asyncio's turns and in its order, in which the server comes first."""

    def body(loop):
        turn, trace = 0, []

        def count():
            nonlocal turn, handle
            turn += 1
            handle = loop.call_soon(count)

        class Note(asyncio.Protocol):
            def __init__(self, name):
                self.name = name

            def connection_made(self, transport):
                trace.append((self.name, turn - begin))

        async def main():
            nonlocal begin
            server = await loop.create_server(lambda: Note("server"), HOST, 0)
            for _ in range(3):
                begin = turn
                transport, _ = await loop.create_connection(lambda: Note("client"), *address_of(server))
                trace.append(("connected", turn - begin))
                transport.close()
                await turns(20)
            server.close()
            await server.wait_closed()

        begin = 0
        handle = loop.call_soon(count)
        loop.run_until_complete(main())
        handle.cancel()
        return trace

    trace = same_as_asyncio(body, loop_factory)
    assert [name for name, _ in trace] == ["server", "client", "connected"] * 3


@pytest.mark.without_debug_mode
def test_the_server_of_the_same_loop_handles_the_client_when_open_connection_returns(loop):
    async def main():
        handled = []

        async def handle(reader, writer):
            handled.append(reader)
            await reader.read()
            writer.close()

        server = await asyncio.start_server(handle, HOST, 0)
        for number in range(1, 4):
            _, writer = await asyncio.open_connection(*address_of(server))
            assert len(handled) == number
            writer.close()
            await writer.wait_closed()
        server.close()
        await server.wait_closed()

    loop.run_until_complete(main())


def test_a_client_that_tries_again_at_once_lets_others_run(loop):
    """A refusal takes turns of the loop, as a connection does."""

    async def main():
        with socket.socket() as listener:
            listener.bind((HOST, 0))
            handle = loop.call_later(0, loop.call_soon, loop.call_soon, listener.listen)
            for _ in range(1000):
                try:
                    transport, _ = await loop.create_connection(Recorder, *listener.getsockname())
                except ConnectionRefusedError:
                    continue
                transport.close()
                break
            handle.cancel()
            return transport

    assert loop.run_until_complete(main()).is_closing()


def test_several_refused_addresses(loop, monkeypatch, refused_port):
    resolve_to(loop, monkeypatch, "127.0.0.1", "127.0.0.2")
    with pytest.raises(OSError) as caught:
        loop.run_until_complete(loop.create_connection(Recorder, "several.invalid", refused_port))
    failures = [f"[Errno 111] Connect call failed ('127.0.0.{number}', {refused_port})" for number in (1, 2)]
    assert str(caught.value) == "Multiple exceptions: " + ", ".join(failures)


def test_all_errors(loop, monkeypatch, refused_port):
    skip_unless(has_parameter(asyncio.BaseEventLoop.create_connection, "all_errors"), "create_connection(all_errors=)")
    resolve_to(loop, monkeypatch, "127.0.0.1", "127.0.0.2")
    with pytest.raises(ExceptionGroup) as caught:
        loop.run_until_complete(loop.create_connection(Recorder, "several.invalid", refused_port, all_errors=True))
    assert caught.value.message == "create_connection failed"
    assert [type(error) for error in caught.value.exceptions] == [ConnectionRefusedError] * 2


def test_the_same_failure_twice_is_told_once(loop, monkeypatch, refused_port):
    resolve_to(loop, monkeypatch, "127.0.0.1", "127.0.0.1")
    with pytest.raises(ConnectionRefusedError) as caught:
        loop.run_until_complete(loop.create_connection(Recorder, "twice.invalid", refused_port))
    assert str(caught.value) == f"[Errno 111] Connect call failed ('127.0.0.1', {refused_port})"


def test_an_empty_answer_from_getaddrinfo(loop, monkeypatch):
    resolve_to(loop, monkeypatch)
    with pytest.raises(OSError, match="^getaddrinfo\\(\\) returned empty list$"):
        loop.run_until_complete(loop.create_connection(Recorder, "nobody.invalid", 80))
    with pytest.raises(OSError, match="^getaddrinfo\\('nobody.invalid'\\) returned empty list$"):
        loop.run_until_complete(loop.create_server(Recorder, "nobody.invalid", 80))


@pytest.mark.parametrize("delay", [None, 0.25, 0.0], ids=["in turn", "happy eyeballs", "all at once"])
def test_the_next_address_is_tried_after_a_refusal(loop, monkeypatch, delay):
    async def main():
        server = await loop.create_server(Echo, HOST, 0)
        host, port = address_of(server)

        async def getaddrinfo(host, port, **options):
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"127.0.0.{last}", port)) for last in (3, 2, 1)]

        monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo)
        transport, protocol = await loop.create_connection(Recorder, "name.invalid", port, happy_eyeballs_delay=delay)
        assert transport.get_extra_info("peername") == (HOST, port)
        transport.write(b"x")
        await until(lambda: protocol.data)
        transport.close()
        await until(lambda: protocol.lost)
        server.close()
        await server.wait_closed()

    loop.run_until_complete(main())


def test_happy_eyeballs_do_not_wait_for_a_silent_address(loop, monkeypatch):
    """A full backlog swallows the first attempt; the second one wins and the first is given up."""
    silent = socket.socket()
    silent.bind((HOST, 0))
    silent.listen(0)
    fillers = [socket.socket() for _ in range(4)]
    for filler in fillers:
        filler.setblocking(False)
        filler.connect_ex(silent.getsockname())

    async def main():
        server = await loop.create_server(Recorder, HOST, 0)
        addresses = [silent.getsockname(), address_of(server)]

        async def getaddrinfo(host, port, **options):
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address) for address in addresses]

        monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo)
        transport, protocol = await loop.create_connection(Recorder, "name.invalid", 1, happy_eyeballs_delay=0.01)
        assert transport.get_extra_info("peername") == addresses[1]
        transport.close()
        await until(lambda: protocol.lost)
        server.close()
        await server.wait_closed()

    loop.run_until_complete(main())
    for sock in (silent, *fillers):
        sock.close()


@pytest.mark.parametrize("interleave, order", [(None, "44466"), (1, "46464"), (2, "44646")], ids=["off", "1", "2"])
def test_interleave(loop, monkeypatch, interleave, order):
    tried = []

    async def getaddrinfo(host, port, **options):
        four = [(socket.AF_INET, 1, 6, "", (f"127.0.0.{last}", port)) for last in (1, 2, 3)]
        six = [(socket.AF_INET6, 1, 6, "", ("::1", port, 0, 0)), (socket.AF_INET6, 1, 6, "", ("::", port, 0, 0))]
        return four + six

    async def sock_connect(sock, address):
        tried.append("4" if sock.family == socket.AF_INET else "6")
        raise ConnectionRefusedError(111, f"refused {address}")

    monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(loop, "sock_connect", sock_connect)
    if not has_ipv6():
        pytest.skip("the loopback interface has no IPv6 address here")
    with pytest.raises(OSError):
        loop.run_until_complete(loop.create_connection(Recorder, "name.invalid", 1, interleave=interleave))
    assert "".join(tried) == order


def test_local_addr(loop, refused_port):
    async def main():
        factory = Factory()
        server = await loop.create_server(factory, HOST, 0)
        local = ("127.0.0.9", refused_port)  # Nobody else can have it under all addresses.
        transport, client = await loop.create_connection(Recorder, *address_of(server), local_addr=local)
        assert transport.get_extra_info("sockname") == local
        await until(factory.has_connected)
        transport.abort()
        await until(lambda: client.lost and factory.made[0].lost)
        server.close()
        await server.wait_closed()

    loop.run_until_complete(main())


def test_a_local_address_that_cannot_be_bound(loop_factory):
    with socket.create_server((HOST, 0)) as listener:
        port = listener.getsockname()[1]

        def body(loop):
            with pytest.raises(OSError) as caught:
                loop.run_until_complete(loop.create_connection(Recorder, HOST, port, local_addr=("192.0.2.1", 0)))
            return caught.value.errno, str(caught.value)

        number, text = same_as_asyncio(body, loop_factory)
    assert number == errno.EADDRNOTAVAIL
    assert "error while attempting to bind on address ('192.0.2.1', 0): " in text


def test_a_local_address_of_another_family(loop_factory):
    skip_ipv6()

    def body(loop):
        with pytest.raises(OSError) as caught:
            loop.run_until_complete(loop.create_connection(Recorder, HOST, 1, local_addr=("::1", 0)))
        return str(caught.value)

    assert same_as_asyncio(body, loop_factory).startswith("no matching local address with family=")


def test_a_cancelled_connection_attempt_leaves_nothing(loop):
    silent = socket.socket()
    silent.bind((HOST, 0))
    silent.listen(0)
    fillers = [socket.socket() for _ in range(4)]
    for filler in fillers:
        filler.setblocking(False)
        filler.connect_ex(silent.getsockname())

    async def main():
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(loop.create_connection(Recorder, *silent.getsockname()), 0.05)
        task = loop.create_task(loop.create_connection(Recorder, *silent.getsockname()))
        await turns(3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    loop.run_until_complete(main())
    for sock in (silent, *fillers):
        sock.close()
