"""`start_tls`: connections that are upgraded to TLS."""

import asyncio
import functools
import ssl
from asyncio import sslproto

import pytest

from support import (
    HOST,
    Echo,
    Recorder,
    capture_contexts,
    outcome,
    same_as_asyncio,
    tcp_pair,
    turns,
    until,
)
from tls_support import (
    NAME,
    BufferedRecorder,
    Peer,
    attached,
    client_context,
    closed,
    ended,
    received,
    serve,
    server_context,
)


class Upgrading(Recorder):
    """Speaks plainly until told to upgrade, and then under TLS."""


def test_start_tls_on_both_sides(loop, version):
    async def main():
        async def upgrade(reader, writer):
            assert await reader.readline() == b"STARTTLS\n"
            writer.write(b"GO\n")
            await writer.drain()
            plain = writer.transport
            secure = await loop.start_tls(plain, plain.get_protocol(), server_context(version), server_side=True)
            writer._transport = secure
            reader._transport = secure
            assert await reader.readline() == b"secret\n"
            writer.write(b"x" * 100_000 + b"\n")
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(upgrade, HOST, 0)
        plain, client = await loop.create_connection(Upgrading, *server.sockets[0].getsockname())
        plain.write(b"STARTTLS\n")
        await until(lambda: client.data == b"GO\n")
        secure = await loop.start_tls(plain, client, client_context(version), server_hostname=NAME)
        assert isinstance(secure, sslproto._SSLProtocolTransport)
        assert secure.get_extra_info("ssl_object").version() == version
        assert secure.get_extra_info("peername") == server.sockets[0].getsockname()
        assert client.names.count("connection_made") == 1
        secure.write(b"secret\n")
        await until(lambda: len(client.data) == 3 + 100_001)
        await ended(client)
        secure.close()
        await closed(server)

    loop.run_until_complete(main())


def test_stream_writers_upgrade(loop):
    async def main():
        async def upgrade(reader, writer):
            assert await reader.readline() == b"hello\n"
            writer.write(b"go\n")
            await writer.drain()
            await writer.start_tls(server_context())
            while line := await reader.readline():
                writer.write(line)
                await writer.drain()
            writer.close()
            await writer.wait_closed()

        server = await asyncio.start_server(upgrade, HOST, 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"hello\n")
        assert await reader.readline() == b"go\n"
        await writer.start_tls(client_context(), server_hostname=NAME)
        for size in (1, 40_000):
            writer.write(b"x" * size + b"\n")
            assert await reader.readline() == b"x" * size + b"\n"
        writer.close()
        await writer.wait_closed()
        await closed(server)

    loop.run_until_complete(main())


def test_a_hello_that_arrives_with_the_last_plain_words(loop_factory):
    """Newer asyncios hand on what a stream reader has read ahead of the upgrade; older ones wait for it in vain."""

    def body(loop, patience_s):
        async def main():
            ours, theirs = tcp_pair()
            reader = asyncio.StreamReader(loop=loop)
            protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
            plain, _ = await loop.connect_accepted_socket(lambda: protocol, ours)
            peer = Peer(loop, theirs, client_context())
            with pytest.raises(ssl.SSLWantReadError):
                peer.tls.do_handshake()
            await loop.sock_sendall(theirs, b"STARTTLS\n" + peer.outgoing.read())
            assert await reader.readline() == b"STARTTLS\n"
            upgrade = loop.create_task(
                loop.start_tls(plain, protocol, server_context(), server_side=True, ssl_handshake_timeout=patience_s)
            )
            shake = loop.create_task(peer.handshake())
            done, _ = await asyncio.wait([upgrade, shake])
            try:
                secure = upgrade.result()
            except ConnectionAbortedError:
                assert isinstance(shake.exception(), EOFError)
                return "waits in vain"
            else:
                shake.result()
                await peer.send(b"x" * 100)
                await peer.send(b"y" * 100_000)
                assert await reader.readexactly(100_100) == b"x" * 100 + b"y" * 100_000
                secure.abort()
                await turns(3)
                return "handed on"
            finally:
                theirs.close()

        contexts = capture_contexts(loop)
        return loop.run_until_complete(main()), [context["message"] for context in contexts]

    try:
        same_as_asyncio(functools.partial(body, patience_s=0.5), loop_factory)
    except AssertionError:  # One of them had no CPU for half a second.
        same_as_asyncio(functools.partial(body, patience_s=20), loop_factory)


@pytest.mark.parametrize("what", ["context", "transport", "closed"])
def test_upgrades_that_cannot_be(loop_factory, what):
    def body(loop):
        async def main():
            ours, theirs = tcp_pair()
            protocol = Recorder()
            transport, _ = await loop.connect_accepted_socket(lambda: protocol, ours)
            context = client_context()
            if what == "closed":
                theirs.close()
            try:
                await loop.start_tls(
                    object() if what == "transport" else transport,
                    protocol,
                    None if what == "context" else context,
                    server_hostname="localhost",
                )
            except (TypeError, OSError) as error:
                text = str(error).split("<object")[0]
                result = type(error), text
            transport.abort()
            await turns(3)
            theirs.close()
            return result

        contexts = capture_contexts(loop)
        return loop.run_until_complete(main()), [context["message"] for context in contexts]

    if what == "closed":
        # Whether the end or the reset is noticed first is the kernel's to say.
        assert issubclass(outcome(body, loop_factory)[0][0], OSError)
    else:
        same_as_asyncio(body, loop_factory)


def test_tls_within_tls(loop):
    async def main():
        inner = [server_context(name="inner.test")]
        outers = []

        class Server(asyncio.Protocol):
            def connection_made(self, transport):
                self.inner = Echo()
                outers.append(loop.create_task(self.upgrade(transport)))

            async def upgrade(self, transport):
                self.inner.transport = await loop.start_tls(transport, self.inner, inner[0], server_side=True)

        server, address = await serve(loop, Server)
        outer, first = await loop.create_connection(Recorder, *address, ssl=client_context(), server_hostname=NAME)
        client = Recorder()
        transport = await loop.start_tls(outer, client, client_context(), server_hostname="inner.test")
        await outers[0]
        assert transport.get_extra_info("peercert")["subjectAltName"][0] == ("DNS", "inner.test")
        data = bytes(range(250)) * 2000
        transport.write(data)
        await until(lambda: len(client.data) == len(data))
        assert client.data == data
        transport.close()
        await ended(client)
        outer.close()
        await closed(server)

    loop.run_until_complete(main())


def test_reading_paused_in_tls_within_tls(loop):
    """When reading goes on, the outer layer delivers at once more than a receive buffer holds."""
    data = bytes(range(250)) * 16000

    class Server(asyncio.Protocol):
        def connection_made(self, transport):
            self.upgrade = loop.create_task(self.send(transport))

        async def send(self, transport):
            inner = await loop.start_tls(transport, Recorder(), server_context(), server_side=True)
            inner.write(data)

    async def main():
        server, address = await serve(loop, Server)
        outer, _ = await loop.create_connection(Recorder, *address, ssl=client_context(), server_hostname=NAME)
        client = Recorder()
        transport = await loop.start_tls(outer, client, client_context(), server_hostname=NAME)
        outer.set_read_buffer_limits(high=1 << 20)
        transport.pause_reading()
        below = outer._ssl_protocol
        await until(lambda: not below._transport.is_reading())
        assert below._get_read_buffer_size() >= 1 << 20
        transport.resume_reading()
        await until(lambda: len(client.data) == len(data))
        assert client.data == data
        transport.close()
        await ended(client)
        outer.close()
        await closed(server)

    loop.run_until_complete(main())


def test_protocols_change_under_way(loop):
    async def main():
        first = Recorder()
        transport, peer = await attached(loop, first)
        await peer.send(b"one")
        await until(lambda: first.data == b"one")
        reader = asyncio.StreamReader(loop=loop)
        stream = asyncio.StreamReaderProtocol(reader, loop=loop)
        for protocol in (BufferedRecorder(10), Recorder(), stream, BufferedRecorder()):
            transport.set_protocol(protocol)
            assert transport.get_protocol() is protocol
            await peer.send(b"hello" * 10)
            if protocol is stream:
                assert await reader.readexactly(50) == b"hello" * 10
            else:
                await received(protocol, b"hello" * 10)
        await ended(protocol, transport)
        peer.sock.close()

    loop.run_until_complete(main())
