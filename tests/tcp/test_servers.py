"""TCP servers: where they listen, how they end."""

import asyncio
import errno
import os
import socket

import pytest

from support import (
    HOST,
    Echo,
    Recorder,
    has_parameter,
    receive_all,
    same_as_asyncio,
    skip_unless,
    turns,
    until,
)
from tcp_support import Factory, address_of, skip_ipv6


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
    assert os.strerror(errno.EADDRINUSE).lower() in str(caught.value)


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


# How they end


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
