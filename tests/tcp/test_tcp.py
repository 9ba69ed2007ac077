"""TCP servers, connections and their transports."""

import array
import asyncio
import collections
import errno
import hashlib
import re
import socket
import sys
import time

import pytest

from support import (
    HOST,
    PATIENCE_S,
    BufferedRecorder,
    Recorder,
    attach,
    capture_contexts,
    has_flow_control_in_writelines,
    has_ipv6,
    has_parameter,
    receive_all,
    receive_exactly,
    reset,
    resource_warnings,
    run_child,
    same_as_asyncio,
    skip_unless,
    tcp_listener,
    tcp_pair,
    turns,
    until,
)

BOTH = pytest.mark.parametrize("kind", [Recorder, BufferedRecorder], ids=["Protocol", "BufferedProtocol"])
TCP_CLOSE = 7
"""The state of a connection, in what TCP_INFO tells first, that has ended (tcp_states.h of Linux)."""


def address_of(server):
    return server.sockets[0].getsockname()[:2]


class Factory:
    """A protocol factory that keeps what it made."""

    def __init__(self, kind=Recorder, *arguments):
        self.kind, self.arguments, self.made = kind, arguments, []

    def __call__(self):
        self.made.append(self.kind(*self.arguments))
        return self.made[-1]

    def has_connected(self, count=1):
        """Whether so many have been made, and the last of them was told its transport."""
        return len(self.made) >= count and getattr(self.made[-1], "transport", None) is not None


class Echo(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.transport.write(data)


# Servers: making them


def test_a_server_listens_at_once(loop):
    async def main():
        server = await loop.create_server(Recorder, HOST, 0)
        assert isinstance(server, asyncio.AbstractServer)
        assert server.is_serving()
        assert server.get_loop() is loop
        [listener] = server.sockets
        assert type(listener) is asyncio.trsock.TransportSocket
        assert listener.getsockname()[0] == HOST and listener.getsockname()[1] > 0
        assert listener.gettimeout() == 0
        assert listener.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR) == 1
        assert listener.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT) == 0
        assert not listener.get_inheritable()
        assert repr(server) == f"<Server sockets={server.sockets!r}>"
        server.close()
        assert server.sockets == ()
        assert not server.is_serving()
        await server.wait_closed()
        assert repr(server) == "<Server sockets=()>"

    loop.run_until_complete(main())


def test_sockets_is_a_fresh_tuple(loop):
    async def main():
        server = await loop.create_server(Recorder, HOST, 0)
        assert isinstance(server.sockets, tuple)
        assert server.sockets is not server.sockets
        server.close()
        await server.wait_closed()

    loop.run_until_complete(main())


def test_a_server_on_several_hosts(loop):
    hosts = ["127.0.0.1", "127.0.0.2", "127.0.0.1"]

    async def main():
        server = await loop.create_server(Factory(), hosts, 0)
        bound = [listener.getsockname()[0] for listener in server.sockets]
        assert sorted(bound) == ["127.0.0.1", "127.0.0.2"], "a host given twice is bound once"
        for listener in server.sockets:
            with socket.create_connection(listener.getsockname()):
                pass
        server.close()
        await server.wait_closed()

    loop.run_until_complete(main())


@pytest.mark.parametrize("host", [None, ""], ids=["None", "empty"])
def test_a_server_on_all_interfaces(loop, host):
    async def main():
        factory = Factory()
        server = await loop.create_server(factory, host, 0)
        families = {listener.family for listener in server.sockets}
        assert socket.AF_INET in families
        for listener in server.sockets:
            if listener.family == socket.AF_INET6:
                assert listener.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY) == 1
            else:
                with socket.create_connection((HOST, listener.getsockname()[1])):
                    await until(factory.has_connected)
        await until(lambda: factory.made[0].lost)
        server.close()
        await server.wait_closed()

    loop.run_until_complete(main())


def test_a_server_on_ipv6(loop):
    skip_ipv6()

    async def main():
        factory = Factory()
        server = await loop.create_server(factory, "::1", 0)
        address = server.sockets[0].getsockname()
        assert address[0] == "::1" and len(address) == 4
        transport, client = await loop.create_connection(Recorder, "::1", address[1])
        await until(factory.has_connected)
        assert transport.get_extra_info("peername")[:2] == ("::1", address[1])
        assert len(factory.made[0].transport.get_extra_info("peername")) == 4
        transport.close()
        await until(lambda: client.lost and factory.made[0].lost)
        server.close()
        await server.wait_closed()

    loop.run_until_complete(main())


def skip_ipv6():
    if not has_ipv6():
        pytest.skip("the loopback interface has no IPv6 address here")


def test_a_server_from_a_socket(loop):
    listener = socket.socket()
    listener.bind((HOST, 0))

    async def main():
        server = await loop.create_server(Recorder, sock=listener)
        assert listener.gettimeout() == 0
        with socket.create_connection(listener.getsockname()):
            await turns(3)
        server.close()
        assert listener.fileno() == -1, "the server closes its socket, also one that was given"
        await server.wait_closed()

    loop.run_until_complete(main())


def test_options_of_the_listening_socket(loop):
    async def main():
        server = await loop.create_server(Recorder, HOST, 0, reuse_port=True, reuse_address=False)
        [listener] = server.sockets
        assert listener.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT) == 1
        assert listener.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR) == 0
        second = await loop.create_server(Recorder, *address_of(server), reuse_port=True)
        assert address_of(second) == address_of(server)
        for each in (server, second):
            each.close()
            await each.wait_closed()

    loop.run_until_complete(main())


def test_keep_alive(loop):
    skip_unless(has_parameter(asyncio.BaseEventLoop.create_server, "keep_alive"), "create_server(keep_alive=)")

    async def main():
        for keep_alive in (None, False, True):
            server = await loop.create_server(Recorder, HOST, 0, keep_alive=keep_alive)
            value = server.sockets[0].getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert value == (1 if keep_alive else 0)
            server.close()
            await server.wait_closed()

    loop.run_until_complete(main())


def test_start_serving_later(loop):
    async def main():
        factory = Factory()
        server = await loop.create_server(factory, HOST, 0, start_serving=False)
        assert not server.is_serving()
        with pytest.raises(ConnectionRefusedError), socket.create_connection(address_of(server)):
            pass
        await server.start_serving()
        await server.start_serving()
        assert server.is_serving()
        with socket.create_connection(address_of(server)):
            await until(factory.has_connected)
        await until(lambda: factory.made[0].lost)
        server.close()
        await server.wait_closed()

    loop.run_until_complete(main())


@pytest.mark.parametrize(
    "arguments, error, text",
    [
        ({}, ValueError, "Neither host/port nor sock were specified"),
        ({"host": HOST, "port": 0, "sock": "stream"}, ValueError, "host/port and sock can not be specified at the same time"),
        ({"sock": "datagram"}, ValueError, "A Stream Socket was expected, got <socket.socket "),
        ({"host": HOST, "port": 0, "ssl": True}, TypeError, "ssl argument must be an SSLContext or None"),
        ({"host": HOST, "port": 0, "ssl_handshake_timeout": 1}, ValueError, "ssl_handshake_timeout is only meaningful with ssl"),
        ({"host": HOST, "port": 0, "ssl_shutdown_timeout": 1}, ValueError, "ssl_shutdown_timeout is only meaningful with ssl"),
        ({"host": HOST, "port": 0, "unknown": 1}, TypeError, ""),
    ],
    ids=["nothing", "both", "datagram", "ssl", "handshake", "shutdown", "unknown"],
)  # fmt: skip
def test_create_server_checks_its_arguments(loop, arguments, error, text):
    with socket.socket() as stream, socket.socket(type=socket.SOCK_DGRAM) as datagram:
        given = {"stream": stream, "datagram": datagram}
        if "sock" in arguments:
            arguments = {**arguments, "sock": given[arguments["sock"]]}
        with pytest.raises(error) as caught:
            loop.run_until_complete(loop.create_server(Recorder, **arguments))
    assert str(caught.value).startswith(text)


def test_an_address_in_use(loop):
    with socket.create_server((HOST, 0)) as other:
        address = other.getsockname()
        with pytest.raises(OSError) as caught:
            loop.run_until_complete(loop.create_server(Recorder, *address))
    assert caught.value.errno == errno.EADDRINUSE
    assert f"error while attempting to bind on address {address!r}: " in str(caught.value)
    assert "address already in use" in str(caught.value)


def test_an_address_that_is_not_ours(loop_factory):
    def body(loop):
        with pytest.raises(OSError) as caught:
            loop.run_until_complete(loop.create_server(Recorder, "192.0.2.1", 0))
        return caught.value.errno, str(caught.value)

    assert "192.0.2.1" in same_as_asyncio(body, loop_factory)[1]


def test_a_failed_bind_closes_the_sockets_bound_before(loop):
    """The autouse fixture finds what stays open."""
    with socket.create_server(("127.0.0.2", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(OSError):
            loop.run_until_complete(loop.create_server(Recorder, ["127.0.0.1", "127.0.0.2", "127.0.0.3"], port))


# Servers: their end


def test_close_refuses_new_clients_and_keeps_the_old(loop):
    async def main():
        factory = Factory(Echo)
        server = await loop.create_server(factory, HOST, 0)
        address = address_of(server)
        transport, client = await loop.create_connection(Recorder, *address)
        await until(factory.has_connected)
        server.close()
        server.close()
        with pytest.raises(ConnectionRefusedError), socket.create_connection(address):
            pass
        transport.write(b"still there")
        await until(lambda: client.data == b"still there")
        transport.close()
        await server.wait_closed()

    loop.run_until_complete(main())


def test_wait_closed_waits_as_in_asyncio(loop_factory):
    def body(loop):
        async def main():
            trace = []
            factory = Factory()
            server = await loop.create_server(factory, HOST, 0)
            transport, _ = await loop.create_connection(Recorder, *address_of(server))
            await until(factory.has_connected)
            waiter = asyncio.ensure_future(server.wait_closed())
            await turns(3)
            trace.append(("open", waiter.done()))
            server.close()
            await turns(3)
            trace.append(("closed, one client", waiter.done()))
            transport.close()
            await until(lambda: factory.made[0].lost)
            await turns(3)
            trace.append(("closed, no client", waiter.done()))
            await waiter
            await server.wait_closed()
            return trace

        return loop.run_until_complete(main())

    assert same_as_asyncio(body, loop_factory)[2] == ("closed, no client", True)


def test_close_clients_and_abort_clients(loop):
    skip_unless(hasattr(asyncio.Server, "close_clients"), "Server.close_clients")

    async def main(method):
        factory = Factory()
        server = await loop.create_server(factory, HOST, 0)
        clients = [await loop.create_connection(Recorder, *address_of(server)) for _ in range(3)]
        await until(lambda: factory.has_connected(3))
        getattr(server, method)()
        await until(lambda: all(protocol.lost for protocol in factory.made))
        assert [protocol.error for protocol in factory.made] == [None] * 3
        await until(lambda: all(protocol.lost for _, protocol in clients))
        assert server.is_serving()
        server.close()
        await server.wait_closed()

    for method in ("close_clients", "abort_clients"):
        loop.run_until_complete(main(method))


def test_close_clients_flushes_and_abort_clients_does_not(loop):
    skip_unless(hasattr(asyncio.Server, "close_clients"), "Server.close_clients")
    amount = 16 << 20

    async def main(method):
        factory = Factory()
        server = await loop.create_server(factory, HOST, 0)
        with socket.create_connection(address_of(server)) as peer:
            peer.setblocking(False)
            await until(factory.has_connected)
            factory.made[0].transport.write(bytes(amount))
            getattr(server, method)()
            server.close()
            received = len(await receive_all(loop, peer))
        await server.wait_closed()
        return received

    assert loop.run_until_complete(main("close_clients")) == amount
    assert loop.run_until_complete(main("abort_clients")) < amount


def test_serve_forever_until_cancelled(loop):
    async def main():
        factory = Factory()
        server = await loop.create_server(factory, HOST, 0, start_serving=False)
        task = asyncio.ensure_future(server.serve_forever())
        await turns(2)
        assert server.is_serving()
        with pytest.raises(RuntimeError) as caught:
            await server.serve_forever()
        assert str(caught.value) == f"server {server!r} is already being awaited on serve_forever()"
        with socket.create_connection(address_of(server)):
            await until(factory.has_connected)
        await until(lambda: factory.made[0].lost)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not server.is_serving() and server.sockets == ()
        with pytest.raises(RuntimeError) as caught:
            await server.serve_forever()
        assert str(caught.value) == f"server {server!r} is closed"

    loop.run_until_complete(main())


def test_close_ends_serve_forever(loop):
    async def main():
        server = await loop.create_server(Recorder, HOST, 0)
        task = asyncio.ensure_future(server.serve_forever())
        await turns(2)
        server.close()
        with pytest.raises(asyncio.CancelledError):
            await task

    loop.run_until_complete(main())


def test_async_with_closes(loop):
    async def main():
        async with await loop.create_server(Recorder, HOST, 0) as server:
            address = address_of(server)
            assert server.is_serving()
        assert not server.is_serving()
        with pytest.raises(ConnectionRefusedError), socket.create_connection(address):
            pass

    loop.run_until_complete(main())


def test_a_port_can_be_bound_again_after_close(loop):
    async def main():
        address = (HOST, 0)
        for _ in range(20):
            server = await loop.create_server(Echo, *address)
            address = address_of(server)
            transport, client = await loop.create_connection(Recorder, *address)
            transport.write(b"x")
            await until(lambda client=client: client.data)
            transport.close()
            server.close()
            await server.wait_closed()
            await until(lambda client=client: client.lost)

    loop.run_until_complete(main())


def test_clients_waiting_in_the_backlog_are_dropped_by_close(loop):
    async def main():
        server = await loop.create_server(Recorder, HOST, 0, start_serving=False)
        await server.start_serving()
        with socket.create_connection(address_of(server)) as waiting:
            server.close()
            waiting.setblocking(False)
            try:
                assert await receive_all(loop, waiting) == b""
            except ConnectionResetError:
                pass
        await server.wait_closed()

    loop.run_until_complete(main())


def test_a_server_closed_in_its_own_callback(loop):
    async def main():
        class Closes(Recorder):
            def connection_made(self, transport):
                super().connection_made(transport)
                server.close()
                transport.close()

        factory = Factory(Closes)
        server = await loop.create_server(factory, HOST, 0)
        transport, client = await loop.create_connection(Recorder, *address_of(server))
        await until(lambda: client.lost)
        await server.wait_closed()
        assert factory.made[0].names == ["connection_made", "connection_lost"]

    loop.run_until_complete(main())


# Connecting


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


# What protocols see


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


# Transports: what they tell


def test_extra_info(loop):
    async def main():
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)
        with peer:
            sock = transport.get_extra_info("socket")
            assert type(sock) is asyncio.trsock.TransportSocket
            assert sock.getsockname() == transport.get_extra_info("sockname") == peer.getpeername()
            assert sock.getpeername() == transport.get_extra_info("peername") == peer.getsockname()
            assert transport.get_extra_info("nothing") is None
            assert transport.get_extra_info("nothing", 5) == 5
            assert transport.get_extra_info("sslcontext") is None
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
            assert sock.fileno() > 0 and sock.family == socket.AF_INET
            transport.close()
            await until(lambda: protocol.lost)
        assert sock.fileno() == -1

    loop.run_until_complete(main())


def test_names_stay_known_after_the_end(loop):
    async def main():
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)
        expected = peer.getsockname(), peer.getpeername()
        peer.close()
        await until(lambda: protocol.lost)
        assert (transport.get_extra_info("peername"), transport.get_extra_info("sockname")) == expected

    loop.run_until_complete(main())


def test_information_that_is_first_asked_for_after_the_end(loop):
    async def main():
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)
        peer.close()
        await until(lambda: protocol.lost)
        sock = transport.get_extra_info("socket")
        assert type(sock) is asyncio.trsock.TransportSocket and sock.fileno() == -1
        assert transport.get_extra_info("socket") is sock

    loop.run_until_complete(main())


@pytest.mark.parametrize("name", ["path", "abstract", "unnamed"])
def test_names_of_unix_streams(loop, tmp_path, name):
    async def main():
        with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
            listener.bind({"path": str(tmp_path / "s\xf6cket"), "abstract": f"\0{tmp_path}", "unnamed": b""}[name])
            listener.listen()
            client.connect(listener.getsockname())
            accepted, _ = listener.accept()
            expected = accepted.getsockname(), accepted.getpeername()
            protocol = Recorder()
            transport, _ = await loop.connect_accepted_socket(lambda: protocol, accepted)
            assert (transport.get_extra_info("sockname"), transport.get_extra_info("peername")) == expected
            transport.close()
            await until(lambda: protocol.lost)

    loop.run_until_complete(main())


def test_information_that_the_caller_gives(loop):
    class Proxied(socket.socket):
        def getsockname(self):
            return "bound"

        def getpeername(self):
            raise OSError(errno.ENOTCONN, "hidden")

    async def made(sock, **options):
        protocol = Recorder()
        transport = loop._make_socket_transport(sock, protocol, **options)
        await until(lambda: protocol.transport)
        told = {name: transport.get_extra_info(name) for name in ("sockname", "peername", "mine", "socket")}
        assert {**transport._extra, "mine": None} == {**told, "mine": None}
        assert told.pop("socket").fileno() == sock.fileno()
        transport.close()
        await until(lambda: protocol.lost)
        return told

    async def main():
        for given in ({}, {"peername": ("192.0.2.1", 7)}, {"peername": "x"}, {"peername": None}, {"mine": 1}):
            ours, peer = tcp_pair()
            with peer:
                known = {"sockname": peer.getpeername(), "peername": peer.getsockname(), "mine": None}
                assert await made(ours, extra=dict(given)) == {**known, **given}
        ours, peer = tcp_pair()
        with peer:
            proxied = Proxied(fileno=ours.detach())
            assert await made(proxied) == {"sockname": "bound", "peername": None, "mine": None}

    loop.run_until_complete(main())


IDLE_CONNECTIONS = """
import _socket, asyncio, gc, tracemalloc

made = 0

class Idle(asyncio.Protocol):
    __slots__ = ()

    def connection_made(self, transport):
        global made
        made += 1

async def main():
    tracemalloc.start()
    server = await asyncio.get_running_loop().create_server(Idle, "127.0.0.1", 0)
    clients = []

    async def connect(count):
        for _ in range(count):
            client = _socket.socket()
            client.connect(server.sockets[0].getsockname())
            clients.append(client)
            while made < len(clients):
                await asyncio.sleep(0)
        gc.collect()
        # What the clients and this program take is not the loop's.
        snapshot = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(False, "<string>")])
        return sum(trace.size for trace in snapshot.traces)

    await connect(100)
    before = await connect(100)
    print((await connect(200) - before) // 200)

with asyncio.Runner(loop_factory=new_loop) as runner:
    runner.run(main())
"""


@pytest.mark.ringloop_only
def test_idle_connections_take_little_memory(arm):
    child = run_child(IDLE_CONNECTIONS, arm)
    assert child.returncode == 0, child.stderr
    # About 510 B are the interpreter's objects; asyncio's take 1,550 B, uvloop's 1,270 B.
    assert 300 < int(child.stdout) < 800


def test_nodelay_is_set_on_both_sides(loop):
    async def main():
        factory = Factory()
        server = await loop.create_server(factory, HOST, 0)
        transport, client = await loop.create_connection(Recorder, *address_of(server))
        await until(factory.has_connected)
        for side in (transport, factory.made[0].transport):
            assert side.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
        transport.close()
        await until(lambda: client.lost and factory.made[0].lost)
        server.close()
        await server.wait_closed()

    loop.run_until_complete(main())


def test_repr_of_a_transport(loop):
    async def main():
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)
        fd = transport.get_extra_info("socket").fileno()
        await turns(2)
        with peer:
            assert re.fullmatch(rf"<\w+ fd={fd} read=polling write=<idle, bufsize=0>>", repr(transport))
            transport.pause_reading()
            assert re.fullmatch(rf"<\w+ fd={fd} read=idle write=<idle, bufsize=0>>", repr(transport))
            transport.write(bytes(8 << 20))
            size = transport.get_write_buffer_size()
            assert re.fullmatch(rf"<\w+ fd={fd} read=idle write=<polling, bufsize={size}>>", repr(transport))
            transport.close()
            assert re.fullmatch(rf"<\w+ closing fd={fd} read=idle write=<polling, bufsize={size}>>", repr(transport))
            transport.abort()
            await until(lambda: protocol.lost)
            assert re.fullmatch(rf"<\w+ closed fd={fd}>", repr(transport))

    loop.run_until_complete(main())


# Transports: the protocol


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


# Transports: reading


@BOTH
def test_pause_and_resume_reading(loop, kind):
    async def main():
        protocol = kind()
        transport, peer = await attach(loop, protocol)
        with peer:
            assert transport.is_reading()
            transport.pause_reading()
            transport.pause_reading()
            assert not transport.is_reading()
            peer.send(b"waits")
            await asyncio.sleep(0.02)
            assert not protocol.data
            transport.resume_reading()
            transport.resume_reading()
            assert transport.is_reading()
            await until(lambda: protocol.data == b"waits")
        await until(lambda: protocol.lost)
        assert not transport.is_reading()
        transport.pause_reading()
        transport.resume_reading()
        assert not transport.is_reading()

    loop.run_until_complete(main())


def test_reading_may_be_paused_before_it_begins(loop):
    class Pauses(Recorder):
        def connection_made(self, transport):
            super().connection_made(transport)
            transport.pause_reading()

    ours, peer = tcp_pair()
    peer.send(b"early")

    async def main():
        transport, protocol = await loop.connect_accepted_socket(Pauses, ours)
        await asyncio.sleep(0.01)
        assert not protocol.data
        transport.resume_reading()
        await until(lambda: protocol.data == b"early")
        peer.close()
        await until(lambda: protocol.lost)

    loop.run_until_complete(main())


def test_pausing_in_data_received_stops_at_once(loop):
    class OneAtATime(Recorder):
        def data_received(self, data):
            super().data_received(data)
            self.transport.pause_reading()

    async def main():
        protocol = OneAtATime()
        transport, peer = await attach(loop, protocol)
        with peer:
            await loop.sock_sendall(peer, bytes(1 << 20))
            for expected in range(1, 4):
                await until(lambda expected=expected: protocol.names.count("data_received") == expected)
                await turns(10)
                assert protocol.names.count("data_received") == expected
                transport.resume_reading()
            transport.abort()
        await until(lambda: protocol.lost)

    loop.run_until_complete(main())


def test_what_stays_unread_is_read_after_resuming(loop):
    """No new arrival announces it: a watch that fires on arrivals alone would sleep for ever."""

    async def main():
        protocol = BufferedRecorder(size=1000)
        transport, peer = await attach(loop, protocol)
        with peer:
            peer.send(bytes(10_000))
            await until(lambda: len(protocol.data) >= 1000)
            transport.pause_reading()
            seen = len(protocol.data)
            await asyncio.sleep(0.01)
            assert len(protocol.data) == seen
            transport.resume_reading()
            await until(lambda: len(protocol.data) == 10_000)
        await until(lambda: protocol.lost)

    loop.run_until_complete(main())


def test_one_read_per_turn_and_connection(loop):
    """A busy connection does not keep the others from their turn."""
    trace = []

    class Tracing(BufferedRecorder):
        def buffer_updated(self, count):
            super().buffer_updated(count)
            trace.append(self)

    async def main():
        pairs = [(Tracing(size=100), *tcp_pair()) for _ in range(2)]
        for protocol, ours, peer in pairs:
            peer.send(bytes(2000))
            await loop.connect_accepted_socket(lambda protocol=protocol: protocol, ours)
        await until(lambda: all(len(protocol.data) == 2000 for protocol, _, _ in pairs))
        for protocol, _, peer in pairs:
            peer.close()
            await until(lambda protocol=protocol: protocol.lost)
        return pairs[1][0]

    second = loop.run_until_complete(main())
    assert trace.index(second) <= 5, "the second connection had to wait until the first was drained"


def test_the_end_is_not_seen_while_reading_is_paused(loop):
    async def main():
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)
        transport.pause_reading()
        peer.send(b"last words")
        peer.close()
        await asyncio.sleep(0.02)
        assert protocol.names == ["connection_made"]
        transport.resume_reading()
        await until(lambda: protocol.lost)
        return protocol.names

    assert loop.run_until_complete(main()) == ["connection_made", "data_received", "eof_received", "connection_lost"]


# Transports: writing


@pytest.mark.parametrize(
    "data",
    [
        b"bytes",
        bytearray(b"bytearray"),
        memoryview(b"view"),
        memoryview(b"0123456789")[2:5],
        memoryview(array.array("I", [1, 2, 3])),
    ],
    ids=["bytes", "bytearray", "view", "slice", "integers"],
)
def test_what_can_be_written(loop, data):
    async def main():
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)
        with peer:
            assert transport.write(data) is None
            transport.writelines([data, data])
            transport.close()
            await until(lambda: protocol.lost)
            return await receive_all(loop, peer)

    assert loop.run_until_complete(main()) == bytes(data) * 3


def test_a_bytearray_can_be_changed_once_it_is_sent(loop):
    async def main():
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)
        with peer:
            data = bytearray(b"first")
            transport.write(data)
            assert transport.get_write_buffer_size() == 0
            data[:] = b"longer than before"
            transport.write(data)
            data.clear()
            transport.close()
            await until(lambda: protocol.lost)
            return await receive_all(loop, peer)

    assert loop.run_until_complete(main()) == b"firstlonger than before"


def test_a_subclass_of_bytes_can_be_written(loop):
    class Text(bytes):
        pass

    async def main():
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)
        with peer:
            transport.write(Text(b"text"))
            transport.writelines([Text(b"more")])
            assert await receive_exactly(loop, peer, 8) == b"textmore"
        await until(lambda: protocol.lost)

    loop.run_until_complete(main())


def test_a_view_with_gaps(loop):
    async def main():
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)
        with peer:
            transport.write(memoryview(b"0123456789")[::2])
            await until(lambda: protocol.lost)
            return protocol.error

    contexts = capture_contexts(loop)
    error = loop.run_until_complete(main())
    assert isinstance(error, BufferError)
    assert [context["message"] for context in contexts] == ["Fatal write error on socket transport"]


@pytest.mark.parametrize(
    "bad", ["text", 5, None, [b"x"], array.array("b", [1])], ids=["str", "int", "None", "list", "array"]
)
def test_what_cannot_be_written(loop_factory, bad):
    def body(loop):
        async def main():
            protocol = Recorder()
            transport, peer = await attach(loop, protocol)
            with peer:
                with pytest.raises(TypeError) as caught:
                    transport.write(bad)
                assert not transport.is_closing()
                transport.write(b"unharmed")
                assert await receive_exactly(loop, peer, 8) == b"unharmed"
            await until(lambda: protocol.lost)
            return str(caught.value)

        return loop.run_until_complete(main())

    text = same_as_asyncio(body, loop_factory)
    assert text.startswith("data argument must be a ") and text.endswith(f"not {type(bad).__name__!r}")


def test_what_cannot_be_written_in_lines(loop):
    async def main():
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)
        with peer:
            for bad in (["text"], [5], 5):
                with pytest.raises(TypeError):
                    transport.writelines(bad)
            transport.writelines([b"un", b"harmed"])
            assert await receive_exactly(loop, peer, 8) == b"unharmed"
        await until(lambda: protocol.lost)

    loop.run_until_complete(main())


def test_writing_nothing_is_nothing(loop):
    async def main():
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)
        with peer:
            transport.write(b"")
            transport.write(bytearray())
            transport.write(memoryview(b""))
            transport.writelines([])
            assert transport.get_write_buffer_size() == 0
            transport.write(b"x")
            assert await receive_exactly(loop, peer, 1) == b"x"
        await until(lambda: protocol.lost)

    loop.run_until_complete(main())


class Changing(bytearray):
    """One that says something else each time it is asked for its content, and may do something meanwhile."""

    def __init__(self, contents, action=lambda: None):
        super().__init__(b"any")
        self.contents, self.action = iter(contents), action

    def __buffer__(self, flags):
        self.action()
        return memoryview(next(self.contents))


@pytest.mark.ringloop_only
@pytest.mark.skipif(sys.version_info < (3, 12), reason="classes have __buffer__ from Python 3.12 on")
@pytest.mark.parametrize("sizes", [(8 << 20, 10), (10, 8 << 20), (8 << 20, 0), (8 << 20,)])
def test_data_that_changes_its_mind_is_asked_once(loop, sizes):
    async def main():
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)
        with peer:
            transport.write(Changing([bytes(size) for size in sizes]))
            transport.write(Changing([b"end"]))
            transport.close()
            assert await receive_all(loop, peer) == bytes(sizes[0]) + b"end"
            await until(lambda: protocol.lost)

    loop.run_until_complete(main())


@pytest.mark.ringloop_only
@pytest.mark.skipif(sys.version_info < (3, 12), reason="classes have __buffer__ from Python 3.12 on")
@pytest.mark.parametrize("action", ["close", "abort", "write_eof", "nested write"])
def test_data_that_meddles_with_its_transport(loop, action):
    async def main():
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)
        actions = {"nested write": lambda: transport.write(b"nested")}
        with peer:
            transport.write(Changing([b"data"], actions.get(action) or getattr(transport, action)))
            transport.close()
            assert await receive_all(loop, peer) in (b"data", b"", b"nesteddata")
            await until(lambda: protocol.lost)

    loop.run_until_complete(main())


def test_writelines_takes_any_iterable_and_many_parts(loop):
    parts = [bytes([number % 256]) * (number % 5 + 1) for number in range(5000)]

    async def main():
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)
        with peer:
            transport.writelines(parts)
            transport.writelines(tuple(parts))
            transport.writelines(part for part in parts)
            transport.close()
            data = await receive_all(loop, peer)
        await until(lambda: protocol.lost)
        return data

    assert loop.run_until_complete(main()) == b"".join(parts) * 3


def test_small_writes_keep_their_order(loop):
    expected = b"".join(b"%d," % number for number in range(20_000))

    async def main():
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)

        async def write():
            for number in range(20_000):
                transport.write(b"%d," % number)
                if number % 1000 == 0:
                    await asyncio.sleep(0)
            transport.close()

        writer = loop.create_task(write())
        with peer:
            data = await receive_all(loop, peer)
        await writer
        await until(lambda: protocol.lost)
        return data

    assert loop.run_until_complete(main()) == expected


def test_a_write_reaches_the_peer_at_once(loop):
    """asyncio sends directly when nothing waits: the bytes are out when write() returns, or at the latest in the next turn."""

    async def main():
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)
        with peer:
            transport.write(b"now")
            await asyncio.sleep(0)
            peer.setblocking(True)
            peer.settimeout(PATIENCE_S)
            assert peer.recv(3) == b"now"
        await until(lambda: protocol.lost)

    loop.run_until_complete(main())


def test_write_after_close_is_counted_and_warned_about(loop, caplog):
    async def main():
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)
        with peer:
            transport.abort()
            for _ in range(4):
                transport.write(b"x")
            early = len(caplog.records)
            for _ in range(3):
                transport.write(b"x")
            assert transport.get_write_buffer_size() == 0
            await until(lambda: protocol.lost)
        return early

    assert loop.run_until_complete(main()) == 0
    assert [record.getMessage() for record in caplog.records] == ["socket.send() raised exception."] * 3


def test_write_after_the_end_is_ignored(loop):
    async def main():
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)
        peer.close()
        await until(lambda: protocol.lost)
        transport.write(b"x")
        transport.write(b"y")
        transport.close()
        transport.abort()
        await turns(3)
        assert protocol.names.count("connection_lost") == 1

    loop.run_until_complete(main())


def test_write_eof_half_closes(loop):
    async def main():
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)
        with peer:
            assert transport.can_write_eof() is True
            transport.write(b"question")
            transport.write_eof()
            transport.write_eof()
            assert await receive_all(loop, peer) == b"question"
            peer.send(b"answer")
            await until(lambda: protocol.data == b"answer")
            assert not transport.is_closing()
        await until(lambda: protocol.lost)
        assert protocol.error is None

    loop.run_until_complete(main())


def test_write_after_write_eof(loop):
    async def main():
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)
        with peer:
            transport.write_eof()
            with pytest.raises(RuntimeError, match="^Cannot call write\\(\\) after write_eof\\(\\)$"):
                transport.write(b"x")
            name = "writelines" if sys.version_info >= (3, 12) else "write"
            with pytest.raises(RuntimeError, match=f"^Cannot call {name}\\(\\) after write_eof\\(\\)$"):
                transport.writelines([b"x"])
        await until(lambda: protocol.lost)

    loop.run_until_complete(main())


def test_write_eof_waits_for_what_is_buffered(loop):
    amount = 8 << 20

    async def main():
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)
        transport.write(b"z" * amount)
        assert transport.get_write_buffer_size() > 0
        transport.write_eof()
        with peer:
            assert len(await receive_all(loop, peer)) == amount
            peer.send(b"thanks")
            await until(lambda: protocol.data == b"thanks")
        await until(lambda: protocol.lost)

    loop.run_until_complete(main())


def test_write_eof_after_close_is_harmless(loop):
    async def main():
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)
        with peer:
            transport.close()
            transport.write_eof()
            await until(lambda: protocol.lost)
            transport.write_eof()

    loop.run_until_complete(main())


# Transports: closing


def test_close_flushes_what_is_buffered(loop):
    amount = 8 << 20

    async def main():
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)
        transport.write(b"z" * amount)
        transport.close()
        transport.close()
        assert transport.is_closing() and not transport.is_reading()
        await turns(3)
        assert not protocol.lost, "the end comes after the last byte"
        with peer:
            assert len(await receive_all(loop, peer)) == amount
        await until(lambda: protocol.lost)
        return protocol.error

    assert loop.run_until_complete(main()) is None


def test_close_sends_fin_at_once(loop):
    """Also while the loop had a read outstanding on the socket, which on io_uring could keep it open."""

    async def main():
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)
        await asyncio.sleep(0.01)
        with peer:
            transport.close()
            assert not protocol.lost, "connection_lost comes in a later turn"
            await turns(2)
            assert protocol.lost
            peer.setblocking(True)
            peer.settimeout(PATIENCE_S)
            assert peer.recv(1) == b""

    loop.run_until_complete(main())


def test_data_that_arrives_after_close_is_not_delivered(loop):
    async def main():
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)
        with peer:
            await turns(2)
            peer.send(b"too late")
            transport.close()
            await until(lambda: protocol.lost)
        return protocol.names

    assert loop.run_until_complete(main()) == ["connection_made", "connection_lost"]


def test_abort_throws_away_what_is_buffered(loop):
    async def main():
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)
        transport.write(bytes(16 << 20))
        transport.abort()
        transport.abort()
        assert transport.get_write_buffer_size() == 0
        assert transport.is_closing()
        with peer:
            assert len(await receive_all(loop, peer)) < 16 << 20
        await until(lambda: protocol.lost)
        return protocol.error

    assert loop.run_until_complete(main()) is None


def test_abort_after_close_ends_the_flushing(loop):
    async def main():
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)
        transport.write(bytes(16 << 20))
        transport.close()
        await turns(2)
        assert not protocol.lost
        transport.abort()
        await until(lambda: protocol.lost)
        peer.close()
        assert protocol.names.count("connection_lost") == 1

    loop.run_until_complete(main())


def test_the_descriptor_is_free_after_connection_lost(loop):
    async def main():
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)
        sock = transport.get_extra_info("socket")
        fd = sock.fileno()
        seen = []
        original = protocol.connection_lost

        def connection_lost(error):
            seen.append(sock.fileno())
            original(error)

        protocol.connection_lost = connection_lost
        with peer:
            transport.close()
            await until(lambda: protocol.lost)
        assert seen == [fd], "open during connection_lost"
        assert sock.fileno() == -1, "closed after it"

    loop.run_until_complete(main())


# Flow control


def test_write_buffer_limits(loop):
    async def main():
        transport, peer = await attach(loop, Recorder())
        with peer:
            limits = [transport.get_write_buffer_limits()]
            for options in (
                {"high": 1000},
                {"low": 100},
                {"high": 10, "low": 10},
                {"high": 0},
                {"high": 5, "low": 0},
                {},
            ):
                assert transport.set_write_buffer_limits(**options) is None
                limits.append(transport.get_write_buffer_limits())
            transport.set_write_buffer_limits(50, 20)
            limits.append(transport.get_write_buffer_limits())
            transport.abort()
            await turns(2)
        return limits

    assert loop.run_until_complete(main()) == [
        (16384, 65536), (250, 1000), (100, 400), (10, 10), (0, 0), (0, 5), (16384, 65536), (20, 50),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "options", [{"high": 1, "low": 2}, {"high": -1}, {"low": -1}, {"high": 5, "low": -1}], ids=repr
)
def test_wrong_write_buffer_limits(loop_factory, options):
    def body(loop):
        async def main():
            transport, peer = await attach(loop, Recorder())
            with peer:
                with pytest.raises(ValueError) as caught:
                    transport.set_write_buffer_limits(**options)
                transport.abort()
                await turns(2)
            return str(caught.value)

        return loop.run_until_complete(main())

    assert "must be >= low" in same_as_asyncio(body, loop_factory)


async def clogged(loop, protocol):
    """A transport whose kernel buffer is full and whose own buffer has something in it, without having paused."""
    transport, peer = await attach(loop, protocol)
    transport.set_write_buffer_limits(high=1 << 40)
    while not transport.get_write_buffer_size():
        transport.write(bytes(1 << 20))
    return transport, peer


def test_writing_pauses_above_the_high_mark_and_resumes_at_the_low_mark(loop):
    class Measures(Recorder):
        def resume_writing(self):
            super().resume_writing()
            sizes.append(self.transport.get_write_buffer_size())

    sizes = []

    async def main():
        protocol = Measures()
        transport, peer = await clogged(loop, protocol)
        size = transport.get_write_buffer_size()
        transport.set_write_buffer_limits(high=size + 100, low=50)
        transport.write(b"x" * 100)
        assert transport.get_write_buffer_size() == size + 100
        assert "pause_writing" not in protocol.names, "at the mark is not above it"
        transport.write(b"x")
        assert protocol.names[-1] == "pause_writing"
        transport.write(b"x" * 1000)
        assert protocol.names.count("pause_writing") == 1
        assert transport.get_write_buffer_size() == size + 1101
        with peer:
            received = 0
            while "resume_writing" not in protocol.names:
                received += len(await loop.sock_recv(peer, 65536))
            transport.write(b"end")
            transport.close()
            received += len(await receive_all(loop, peer))
        await until(lambda: protocol.lost)
        assert protocol.names == ["connection_made", "pause_writing", "resume_writing", "connection_lost"]

    loop.run_until_complete(main())
    assert len(sizes) == 1 and sizes[0] <= 50


def test_setting_lower_limits_pauses_at_once(loop):
    async def main():
        protocol = Recorder()
        transport, peer = await clogged(loop, protocol)
        transport.set_write_buffer_limits(high=10)
        assert protocol.names[-1] == "pause_writing"
        transport.abort()
        peer.close()
        await until(lambda: protocol.lost)
        assert "resume_writing" not in protocol.names

    loop.run_until_complete(main())


def test_a_high_mark_of_zero_pauses_whenever_something_is_buffered(loop):
    async def main():
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)
        transport.set_write_buffer_limits(high=0)
        transport.write(b"small")
        assert protocol.names == ["connection_made"]
        while not transport.get_write_buffer_size():
            transport.write(bytes(1 << 20))
        assert protocol.names == ["connection_made", "pause_writing"]
        with peer:
            reader = loop.create_task(receive_all(loop, peer))
            await until(lambda: "resume_writing" in protocol.names)
            assert transport.get_write_buffer_size() == 0
            transport.close()
            await reader
        await until(lambda: protocol.lost)

    loop.run_until_complete(main())


def test_pausing_and_resuming_alternate(loop):
    class Filling(Recorder):
        paused = False
        left = 200

        def fill(self):
            while not self.paused and self.left:
                self.left -= 1
                self.transport.write(bytes(100_000))

        def pause_writing(self):
            super().pause_writing()
            assert not self.paused
            self.paused = True

        def resume_writing(self):
            super().resume_writing()
            assert self.paused
            self.paused = False
            self.fill()

    async def main():
        protocol = Filling()
        transport, peer = await attach(loop, protocol)
        protocol.fill()
        with peer:
            received = await receive_exactly(loop, peer, 20_000_000)
            assert not any(received)
            transport.close()
            assert await receive_all(loop, peer) == b""
        await until(lambda: protocol.lost)
        assert protocol.names.count("pause_writing") == protocol.names.count("resume_writing") > 0

    loop.run_until_complete(main())


def test_writelines_observes_the_marks(loop):
    skip_unless(has_flow_control_in_writelines(), "flow control in writelines")

    async def main():
        protocol = Recorder()
        transport, peer = await clogged(loop, protocol)
        transport.set_write_buffer_limits(high=transport.get_write_buffer_size() + 100)
        transport.writelines([b"x" * 50, b"y" * 50])
        assert "pause_writing" not in protocol.names
        transport.writelines([b"z", b"z"])
        assert protocol.names[-1] == "pause_writing"
        transport.abort()
        peer.close()
        await until(lambda: protocol.lost)

    loop.run_until_complete(main())


def test_get_write_buffer_size_counts_what_the_kernel_did_not_take(loop):
    async def main():
        protocol = Recorder()
        transport, peer = await clogged(loop, protocol)
        size = transport.get_write_buffer_size()
        for addition in (b"x", bytearray(10), memoryview(b"abc"), memoryview(array.array("I", range(5))).cast("B")):
            transport.write(addition)
            size += len(addition)
            assert transport.get_write_buffer_size() == size
        transport.writelines([b"one", b"two"])
        assert transport.get_write_buffer_size() == size + 6
        transport.abort()
        peer.close()
        await until(lambda: protocol.lost)

    loop.run_until_complete(main())


# Bulk, crowds, and bad manners


def pattern(size, seed):
    """`size` bytes in which every offset is recognisable."""
    block = b"".join(hashlib.sha256(b"%d %d" % (seed, number)).digest() for number in range(2048))
    return (block * (size // len(block) + 1))[:size]


@BOTH
def test_bulk_in_both_directions_at_once_with_slow_readers(loop, kind):
    size = 24 << 20
    there, back = pattern(size, 1), pattern(size, 2)

    class Slow(kind):
        """Stops reading now and then for a few turns."""

        def connection_made(self, transport):
            super().connection_made(transport)
            self.count = 0

        def pace(self):
            self.count += 1
            if self.count % 16 == 0:
                self.transport.pause_reading()
                loop.call_later(0.0005, self.transport.resume_reading)

        def data_received(self, data):
            self.data += data
            self.pace()

        def buffer_updated(self, count):
            self.data += memoryview(self.buffer)[:count]
            self.pace()

    async def main():
        factory = Factory(Slow)
        server = await loop.create_server(factory, HOST, 0)
        transport, client = await loop.create_connection(Slow, *address_of(server))
        await until(factory.has_connected)
        other = factory.made[0]
        for part in range(0, size, 3_000_000):
            transport.write(there[part : part + 3_000_000])
            other.transport.write(back[part : part + 3_000_000])
            await asyncio.sleep(0)
        await until(lambda: len(other.data) == size and len(client.data) == size)
        assert other.data == there and client.data == back
        transport.close()
        await until(lambda: client.lost and other.lost)
        server.close()
        await server.wait_closed()

    loop.run_until_complete(main())


def test_bulk_to_a_slow_raw_reader(loop):
    data = pattern(16 << 20, 3)

    async def main():
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)
        transport.writelines([data[start : start + 100_001] for start in range(0, len(data), 100_001)])
        transport.close()
        received = bytearray()
        with peer:
            while chunk := await loop.sock_recv(peer, 300_000):
                received += chunk
                if len(received) % 7 == 0:
                    await asyncio.sleep(0)
        await until(lambda: protocol.lost)
        return received == data

    assert loop.run_until_complete(main())


def test_byte_by_byte(loop):
    message = pattern(2000, 4)

    async def main():
        server = await loop.create_server(Echo, HOST, 0)
        transport, client = await loop.create_connection(Recorder, *address_of(server))
        for number in range(len(message)):
            transport.write(message[number : number + 1])
            if number % 10 == 0:
                await asyncio.sleep(0)
        await until(lambda: len(client.data) == len(message))
        assert client.data == message
        transport.close()
        await until(lambda: client.lost)
        server.close()
        await server.wait_closed()

    loop.run_until_complete(main())


def test_two_hundred_clients_at_once(loop):
    async def client(address, number):
        reader, writer = await asyncio.open_connection(*address)
        for turn in range(5):
            message = b"%d:%d;" % (number, turn) * 50
            writer.write(message)
            assert await reader.readexactly(len(message)) == message
        writer.close()
        await writer.wait_closed()

    async def main():
        factory = Factory(Echo)
        server = await loop.create_server(factory, HOST, 0, backlog=256)
        await asyncio.gather(*(client(address_of(server), number) for number in range(200)))
        assert len(factory.made) == 200
        server.close()
        await server.wait_closed()

    loop.run_until_complete(main())


def test_a_crowd_that_connects_before_the_loop_looks(loop):
    async def main():
        factory = Factory()
        server = await loop.create_server(factory, HOST, 0, backlog=50)
        clients = [socket.create_connection(address_of(server)) for _ in range(50)]
        await until(lambda: factory.has_connected(50))
        await until(lambda: all(protocol.transport for protocol in factory.made))
        names = {protocol.transport.get_extra_info("peername") for protocol in factory.made}
        assert names == {client.getsockname() for client in clients}
        for client in clients:
            client.close()
        await until(lambda: all(protocol.lost for protocol in factory.made))
        server.close()
        await server.wait_closed()

    loop.run_until_complete(main())


def test_peers_that_vanish(loop):
    contexts = capture_contexts(loop)

    async def main():
        factory = Factory()
        server = await loop.create_server(factory, HOST, 0)
        for number in range(60):
            peer = socket.create_connection(address_of(server))
            if number % 3 == 0:
                peer.send(b"x")
            if number % 2:
                reset(peer)
            else:
                peer.close()
        # A peer may be gone before it is accepted: then the kernel may drop it altogether.
        with socket.create_connection(address_of(server)) as last:
            last.send(b"last")
            await until(lambda: any(protocol.data == b"last" for protocol in factory.made))
        await until(lambda: all(protocol.lost for protocol in factory.made))
        for protocol in factory.made:
            assert protocol.names[0] == "connection_made" and protocol.names.count("connection_lost") == 1
            assert protocol.error is None or isinstance(protocol.error, ConnectionResetError)
        server.close()
        await server.wait_closed()

    loop.run_until_complete(main())
    assert contexts == []


def test_connections_that_end_while_others_begin(loop):
    """Descriptor numbers are reused at once; no event of the old connection may reach the new one."""

    async def main():
        server = await loop.create_server(Echo, HOST, 0)
        for number in range(150):
            transport, client = await loop.create_connection(Recorder, *address_of(server))
            message = b"%d" % number
            transport.write(message)
            if number % 3 == 0:
                transport.abort()
                await until(lambda client=client: client.lost)
                assert client.data in (b"", message)
            else:
                await until(lambda client=client, message=message: client.data == message)
                transport.close()
        server.close()
        await server.wait_closed()
        await turns(5)

    loop.run_until_complete(main())


def test_both_sides_close_at_the_same_time(loop):
    async def main():
        factory = Factory()
        server = await loop.create_server(factory, HOST, 0)
        transport, client = await loop.create_connection(Recorder, *address_of(server))
        await until(lambda: factory.made and factory.made[0].transport)
        transport.close()
        factory.made[0].transport.close()
        await until(lambda: client.lost and factory.made[0].lost)
        assert client.names == factory.made[0].names == ["connection_made", "connection_lost"]
        server.close()
        await server.wait_closed()

    loop.run_until_complete(main())


def test_a_descriptor_in_use_by_a_transport_is_protected(loop):
    async def main():
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)
        fd = transport.get_extra_info("socket").fileno()
        with peer:
            for call in (
                lambda: loop.add_reader(fd, print),
                lambda: loop.add_writer(fd, print),
                lambda: loop.remove_reader(fd),
                lambda: loop.remove_writer(fd),
            ):
                with pytest.raises(RuntimeError) as caught:
                    call()
                assert str(caught.value) == f"File descriptor {fd} is used by transport {transport!r}"
            transport.close()
            await until(lambda: protocol.lost)

    loop.run_until_complete(main())


def test_an_unclosed_transport_warns_and_closes_its_socket(loop_factory):
    """A loop that is closed around a live connection leaves the transport to the garbage collector."""
    loop = loop_factory()
    ours, peer = tcp_pair()
    transport, _ = loop.run_until_complete(loop.connect_accepted_socket(asyncio.Protocol, ours))
    loop.close()
    with peer:
        with resource_warnings() as texts:
            del transport, loop
        assert any(text.startswith("unclosed transport <") for text in texts)
        assert ours.fileno() == -1
        peer.setblocking(True)
        peer.settimeout(PATIENCE_S)
        assert peer.recv(1) == b""


def test_an_idle_loop_with_connections_uses_no_cpu_to_speak_of(loop):
    """No spinning: the bound on CPU time is half of what spinning would cost."""

    async def main():
        server = await loop.create_server(Echo, HOST, 0)
        transport, client = await loop.create_connection(Recorder, *address_of(server))
        transport.write(b"x")
        await until(lambda: client.data)
        before = time.process_time()
        await asyncio.sleep(0.5)
        used = time.process_time() - before
        transport.close()
        await until(lambda: client.lost)
        server.close()
        await server.wait_closed()
        return used

    assert loop.run_until_complete(main()) < 0.25
