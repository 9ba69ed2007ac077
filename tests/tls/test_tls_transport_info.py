"""The information that a TLS transport gives about itself, certificates, and what TLS runs on."""

import asyncio
import ssl
import tempfile
from asyncio import sslproto

import pytest

from support import (
    HOST,
    Echo,
    Recorder,
    looks,
    same_as_asyncio,
    until,
)
from support import BufferedRecorder as PlainBufferedRecorder
from tls_support import (
    NAME,
    attached,
    authority,
    certificate,
    client_context,
    closed,
    ended,
    received,
    serve,
    server_context,
)


def test_extra_info(loop_factory, version):
    def body(loop):
        async def main():
            server, address = await serve(loop, Echo, server_context(version))
            context = client_context(version)
            transport, client = await loop.create_connection(Recorder, *address, ssl=context, server_hostname=NAME)
            info = transport.get_extra_info
            assert info("sslcontext") is context
            assert isinstance(info("ssl_object"), ssl.SSLObject)
            assert info("peername") == address
            assert info("socket").getpeername() == address
            assert isinstance(transport, asyncio.Transport)
            assert isinstance(transport, sslproto._SSLProtocolTransport)
            result = (
                info("peercert")["subjectAltName"],
                info("cipher"),
                info("compression"),
                info("nothing", "default"),
                info("nothing"),
                transport.is_reading(),
                transport.is_closing(),
                transport.can_write_eof(),
                transport.get_protocol() is client,
                transport.get_write_buffer_limits(),
                transport.get_read_buffer_limits(),
                transport.get_write_buffer_size(),
                transport.get_read_buffer_size(),
                transport._start_tls_compatible,
            )
            with pytest.raises(NotImplementedError):
                transport.write_eof()
            transport.close()
            assert transport.is_closing()
            await ended(client)
            await closed(server)
            return result

        return loop.run_until_complete(main())

    result = same_as_asyncio(body, loop_factory)
    assert result[0] == (("DNS", NAME), ("IP Address", HOST))


def test_alpn_and_sni(loop):
    async def main():
        asked = []
        other = server_context(name="other.test")
        context = server_context()
        for one in (context, other):
            one.set_alpn_protocols(["h2", "http/1.1"])

        def choose(ssl_object, name, _context):
            asked.append(name)
            if name == "other.test":
                ssl_object.context = other

        context.sni_callback = choose
        server, address = await serve(loop, Echo, context)
        for name in (NAME, "other.test"):
            ours = client_context()
            ours.set_alpn_protocols(["http/1.1"])
            transport, client = await loop.create_connection(Recorder, *address, ssl=ours, server_hostname=name)
            assert transport.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"
            assert transport.get_extra_info("peercert")["subjectAltName"][0] == ("DNS", name)
            transport.write(b"hello")
            await received(client, b"hello")
            transport.close()
            await ended(client)
        assert asked == [NAME, "other.test"]
        await closed(server)

    loop.run_until_complete(main())


def test_client_certificates(loop, version):
    async def main():
        context = server_context(version)
        authority().configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED
        made = []

        class Server(Echo):
            def connection_made(self, transport):
                super().connection_made(transport)
                made.append(transport.get_extra_info("peercert"))

        server, address = await serve(loop, Server, context)
        ours = client_context(version)
        certificate("client.test").configure_cert(ours)
        transport, client = await loop.create_connection(Recorder, *address, ssl=ours, server_hostname=NAME)
        transport.write(b"hello")
        await until(lambda: client.data == b"hello")
        assert made[0]["subjectAltName"][0] == ("DNS", "client.test")
        transport.close()
        await ended(client)
        # Without one: TLS 1.3 lets the client finish before the server has looked.
        client = Recorder()
        try:
            await loop.create_connection(lambda: client, *address, ssl=client_context(version), server_hostname=NAME)
        except OSError:
            assert version == "TLSv1.2"
        else:
            await ended(client)
            # The server's alert, or the reset that follows it, or what it broke.
            assert isinstance(client.error, OSError | None)
        assert len(made) == 1
        await closed(server)

    loop.run_until_complete(main())


@pytest.mark.parametrize("how", ["protocol", "buffered", "stream"])
def test_a_client_is_asked_for_its_certificate_after_the_handshake(loop, how):
    """In TLS 1.3. What asks is what the server reads next, which then has something to send."""

    async def main():
        context = server_context("TLSv1.3")
        authority().configure_trust(context)
        context.verify_mode = ssl.CERT_OPTIONAL
        context.post_handshake_auth = True
        ours = client_context("TLSv1.3")
        ours.post_handshake_auth = True
        certificate("client.test").configure_cert(ours)
        seen = []

        def look(tls):
            seen.append(bool(tls.getpeercert()))
            if len(seen) == 1:
                tls.verify_client_post_handshake()

        class Plain(Recorder):
            def data_received(self, data):
                look(self.transport.get_extra_info("ssl_object"))

        class Buffered(PlainBufferedRecorder):
            def buffer_updated(self, nbytes):
                look(self.transport.get_extra_info("ssl_object"))

        async def read(reader, writer):
            while await reader.read(100):
                look(writer.get_extra_info("ssl_object"))
            writer.close()

        if how == "stream":
            server = await asyncio.start_server(read, HOST, 0, ssl=context)
            address = server.sockets[0].getsockname()
        else:
            server, address = await serve(loop, {"protocol": Plain, "buffered": Buffered}[how], context)
        transport, client = await loop.create_connection(Recorder, *address, ssl=ours, server_hostname=NAME)
        for said in range(1, 10):
            transport.write(b"hello")
            await until(lambda said=said: len(seen) >= said)
            if seen[-1]:
                break
            # The request and the answer are under way.
            await looks()
        # Not in the first two: of them the first asks, and the second is read before the answer.
        assert seen[:2] == [False, False]
        assert seen[-1]
        transport.close()
        await ended(client)
        await closed(server)

    loop.run_until_complete(main())


@pytest.mark.parametrize("path", [True, False], ids=["path", "abstract"])
def test_unix_sockets(loop, path):
    async def main():
        with tempfile.TemporaryDirectory() as folder:
            name = f"{folder}/socket" if path else "\0" + folder
            server = await loop.create_unix_server(Echo, name, ssl=server_context())
            transport, client = await loop.create_unix_connection(
                Recorder, name, ssl=client_context(), server_hostname=NAME
            )
            transport.write(b"hello" * 10_000)
            await until(lambda: client.data == b"hello" * 10_000)
            transport.close()
            await ended(client)
            await closed(server)

    loop.run_until_complete(main())


@pytest.mark.ringloop_only
def test_a_bytearray_as_a_buffer_loses_nothing(loop):
    """asyncio reads each further record into a copy of the rest of it."""

    async def main():
        protocol = PlainBufferedRecorder()
        transport, peer = await attached(loop, protocol)
        data = bytes(range(250)) * 1000
        await peer.send(data)
        await received(protocol, data)
        await ended(protocol, transport)
        peer.sock.close()

    loop.run_until_complete(main())


def test_an_ssl_object_of_the_users_own_is_used(loop):
    calls = []

    class Mine(ssl.SSLObject):
        def read(self, *arguments):
            calls.append("read")
            return super().read(*arguments)

        def write(self, data):
            calls.append("write")
            return super().write(data)

    async def main():
        context = server_context()
        context.sslobject_class = Mine
        protocol = Recorder()
        transport, peer = await attached(loop, protocol, context=context)
        await peer.send(b"x" * 50_000)
        await until(lambda: len(protocol.data) == 50_000)
        transport.write(b"y" * 50_000)
        assert await peer.receive(50_000) == b"y" * 50_000
        assert {"read", "write"} <= set(calls)
        await ended(protocol, transport)
        peer.sock.close()

    loop.run_until_complete(main())
