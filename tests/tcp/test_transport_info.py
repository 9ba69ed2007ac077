"""The information that a TCP transport gives about itself: extra information, names, options of its socket, its `repr`."""

import asyncio
import errno
import re
import socket

import pytest

from support import (
    HOST,
    Recorder,
    attach,
    same_as_asyncio,
    tcp_pair,
    turns,
    until,
)
from tcp_support import Factory, address_of


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


@pytest.mark.parametrize("kind", ["client's", "accepted"])
def test_nodelay_is_left_alone_on_sockets_without_a_protocol(loop_factory, kind):
    def body(loop):
        async def main():
            factory = Factory()
            with socket.socket() as listener:
                listener.bind((HOST, 0))
                server = await loop.create_server(factory, sock=listener)
                sock = socket.socket()
                assert sock.proto == 0
                sock.setblocking(False)
                await loop.sock_connect(sock, address_of(server))
                transport, protocol = await loop.create_connection(Recorder, sock=sock)
                await until(factory.has_connected)
                side = transport if kind == "client's" else factory.made[0].transport
                found = side.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                transport.close()
                await until(lambda: protocol.lost and factory.made[0].lost)
                server.close()
                await server.wait_closed()
                return found

        return loop.run_until_complete(main())

    assert same_as_asyncio(body, loop_factory) == 0
