"""TLS: servers, clients and upgrades with the user's contexts, over every kind of protocol, to the letter of asyncio.

Each body runs on stock asyncio too. Where Python versions differ, `same_as_asyncio` compares with the running one. `Peer` is the other
end driven by hand, so that a test decides how the stream of records is cut, and when it ends.
"""

import asyncio
import contextvars
import fcntl
import functools
import gc
import logging
import socket
import ssl
import struct
import tempfile
import termios
import weakref
from asyncio import sslproto

import pytest
import trustme
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support import (
    HOST,
    PATIENCE_S,
    BackgroundThread,
    Recorder,
    capture_contexts,
    finish,
    open_descriptors,
    outcome,
    reset,
    resource_warnings,
    same_as_asyncio,
    tcp_pair,
    turns,
    until,
)
from support import BufferedRecorder as PlainBufferedRecorder

NAME = "server.test"
VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


@functools.cache
def authority():
    return trustme.CA(key_type=trustme.KeyType.ECDSA)


@functools.cache
def certificate(name):
    return authority().issue_cert(name, HOST, key_type=trustme.KeyType.ECDSA)


def pinned(context, version):
    if version is not None:
        context.minimum_version = context.maximum_version = VERSIONS[version]
    return context


def server_context(version=None, name=NAME):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate(name).configure_cert(context)
    return pinned(context, version)


def client_context(version=None):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority().configure_trust(context)
    return pinned(context, version)


@pytest.fixture(params=VERSIONS)
def version(request):
    return request.param


class Peer:
    """One end of a TLS connection, driven by hand over a non-blocking socket."""

    def __init__(self, loop, sock, context, *, server_side=False, name=NAME):
        self.loop, self.sock = loop, sock
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(
            self.incoming, self.outgoing, server_side=server_side, server_hostname=None if server_side else name
        )

    async def flush(self):
        if data := self.outgoing.read():
            await self.loop.sock_sendall(self.sock, data)

    async def call(self, method, *arguments):
        """Calls a method of the SSL object, exchanging records until it succeeds."""
        while True:
            try:
                result = method(*arguments)
            except ssl.SSLWantReadError:
                await self.flush()
                data = await self.loop.sock_recv(self.sock, 1 << 16)
                if not data:
                    raise EOFError("the other end hung up") from None
                self.incoming.write(data)
            else:
                await self.flush()
                return result

    async def handshake(self):
        await self.call(self.tls.do_handshake)

    def encrypt(self, data):
        """The records of this data, not sent."""
        view = memoryview(data)
        while view:
            view = view[self.tls.write(view) :]
        return self.outgoing.read()

    async def send(self, data):
        await self.loop.sock_sendall(self.sock, self.encrypt(data))

    async def receive(self, count):
        data = bytearray()
        while len(data) < count:
            data += await self.call(self.tls.read, count - len(data))
        return bytes(data)


async def attached(loop, protocol, version=None, *, context=None, peer_context=None, **options):
    """A server's transport for `protocol`, and its Peer, connected and shaken hands."""
    ours, theirs = tcp_pair()
    options.setdefault("ssl", context or server_context(version))
    task = asyncio.ensure_future(loop.connect_accepted_socket(lambda: protocol, ours, **options))
    peer = Peer(loop, theirs, peer_context or client_context(version))
    await peer.handshake()
    transport, _ = await task
    return transport, peer


async def ended(protocol, transport=None):
    """Close the transport, if one is named, and wait for connection_lost."""
    if transport is not None:
        transport.abort()
    await until(lambda: protocol.lost, "connection_lost")


async def received(protocol, data):
    """Wait until this is what the protocol has received."""
    await until(lambda: len(protocol.data) >= len(data), "the data")
    assert protocol.data == data


class Echo(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.transport.write(data)


class BufferedEcho(asyncio.BufferedProtocol):
    def __init__(self, size=5000):
        self.buffer = bytearray(size)

    def connection_made(self, transport):
        self.transport = transport

    def get_buffer(self, hint):
        return memoryview(self.buffer)

    def buffer_updated(self, count):
        self.transport.write(self.buffer[:count])


class BufferedRecorder(PlainBufferedRecorder):
    """Offers a view: what doesn't fit into one read goes astray where asyncio is offered a bytearray."""

    def get_buffer(self, hint):
        return memoryview(super().get_buffer(hint))


async def serve(loop, factory, context=None, **options):
    server = await loop.create_server(factory, HOST, 0, ssl=context or server_context(), **options)
    return server, server.sockets[0].getsockname()


async def closed(server):
    server.close()
    await server.wait_closed()


# --- data -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 1000, 16384, 16385, 65536, 3_000_000])
@pytest.mark.parametrize("protocol", [Echo, BufferedEcho], ids=["protocol", "buffered"])
def test_what_is_sent_comes_back(loop, version, protocol, size):
    async def main():
        data = bytes(range(251)) * (size // 251 + 1)
        data = data[:size]
        server, address = await serve(loop, protocol, server_context(version))
        transport, client = await loop.create_connection(
            Recorder, *address, ssl=client_context(version), server_hostname=NAME
        )
        assert transport.get_extra_info("ssl_object").version() == version
        transport.write(data)
        await until(lambda: len(client.data) >= size)
        assert client.data == data
        transport.close()
        await ended(client)
        assert client.error is None
        await closed(server)

    loop.run_until_complete(main())


@pytest.mark.parametrize("ciphers", ["ECDHE-ECDSA-AES256-SHA384", "ECDHE-ECDSA-CHACHA20-POLY1305"])
def test_records_of_other_shapes(loop, ciphers):
    """With padding, and with authentication of another length."""

    async def main():
        context = server_context("TLSv1.2")
        context.set_ciphers(f"{ciphers}:@SECLEVEL=0")
        ours = client_context("TLSv1.2")
        ours.set_ciphers(f"{ciphers}:@SECLEVEL=0")
        server, address = await serve(loop, Echo, context)
        transport, client = await loop.create_connection(Recorder, *address, ssl=ours, server_hostname=NAME)
        assert transport.get_extra_info("cipher")[0] == ciphers
        sent = b""
        for size in (1, 15, 16, 17, 16383, 16384, 16385, 100_000):
            transport.write(bytes([size % 251]) * size)
            sent += bytes([size % 251]) * size
            await received(client, sent)
        transport.close()
        await ended(client)
        await closed(server)

    loop.run_until_complete(main())


def test_streams(loop, version):
    async def main():
        async def handle(reader, writer):
            while line := await reader.readline():
                writer.writelines([line, b"", line])
                await writer.drain()
            writer.close()
            await writer.wait_closed()

        server = await asyncio.start_server(handle, HOST, 0, ssl=server_context(version), limit=1 << 20)
        reader, writer = await asyncio.open_connection(
            *server.sockets[0].getsockname(), ssl=client_context(version), server_hostname=NAME, limit=1 << 20
        )
        for size in (1, 100, 20_000, 300_000):
            line = b"x" * size + b"\n"
            writer.write(line)
            assert await reader.readexactly(2 * len(line)) == line * 2
        writer.close()
        await writer.wait_closed()
        await closed(server)

    loop.run_until_complete(main())


def test_a_reader_that_is_slow_holds_the_sender_up(loop):
    async def main():
        async def handle(reader, writer):
            writer.write(bytes(10_000_000))
            await writer.drain()
            writer.close()
            await writer.wait_closed()

        server = await asyncio.start_server(handle, HOST, 0, ssl=server_context())
        reader, writer = await asyncio.open_connection(
            *server.sockets[0].getsockname(), ssl=client_context(), server_hostname=NAME
        )
        await until(lambda: writer.transport.get_extra_info("socket") is not None)
        for _ in range(50):
            await asyncio.sleep(0)
        assert len(reader._buffer) < 2_000_000
        assert len(await reader.read(-1)) == 10_000_000
        writer.close()
        await writer.wait_closed()
        await closed(server)

    loop.run_until_complete(main())


def released_view():
    view = memoryview(b"released")
    view.release()
    return view


@pytest.mark.parametrize(
    "kind", [bytes, bytearray, memoryview, lambda data: memoryview(bytearray(data))[::1], lambda data: bytearray(data)]
)
def test_every_kind_of_bytes(loop, kind):
    async def main():
        protocol = Recorder()
        transport, peer = await attached(loop, protocol)
        for size in (1, 16384, 50_000):
            data = bytes(range(250)) * (size // 250 + 1)
            transport.write(kind(data))
            assert await peer.receive(len(data)) == data
            transport.writelines([kind(data), b"", kind(b"end")])
            assert await peer.receive(len(data) + 3) == data + b"end"
            transport.writelines(kind(piece) for piece in (b"a", data, b"b"))
            assert await peer.receive(len(data) + 2) == b"a" + data + b"b"
        await ended(protocol, transport)
        peer.sock.close()

    loop.run_until_complete(main())


@pytest.mark.parametrize(
    "data",
    ["text", None, 1, [b"x"], memoryview(bytearray(10))[::2], memoryview(b"0123456789")[::-1], released_view()],
    ids=["text", "None", "number", "list", "every other byte", "backwards", "released"],
)
def test_what_cannot_be_written(loop_factory, data):
    def body(loop):
        async def main():
            protocol = Recorder()
            transport, peer = await attached(loop, protocol)
            texts = []
            for write in (transport.write, transport.writelines, lambda data: transport.writelines([data])):
                try:
                    write(data)
                except Exception as error:
                    texts.append((type(error), str(error)))
                else:
                    texts.append(None)
            transport.abort()
            await ended(protocol)
            peer.sock.close()
            return texts, str(protocol.error)

        contexts = capture_contexts(loop)
        return loop.run_until_complete(main()), [(c["message"], str(c["exception"])) for c in contexts]

    same_as_asyncio(body, loop_factory)


@given(
    pieces=st.lists(st.binary(max_size=40_000) | st.integers(0, 70_000).map(bytes), min_size=1, max_size=8),
    way=st.lists(st.sampled_from(["write", "writelines", "bytearray", "memoryview"]), min_size=8, max_size=8),
    cut=st.integers(1, 30_000),
    receiver=st.sampled_from(["protocol", "buffered", "tiny buffer", "stream"]),
    version=st.sampled_from(list(VERSIONS)),
)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_data_cut_anywhere_arrives(loop_factory, pieces, way, cut, receiver, version):
    """Sent through a transport in any form, and sent back in records that arrive in any pieces."""

    async def main(loop, cut):
        if receiver == "stream":
            reader = asyncio.StreamReader(limit=1 << 24, loop=loop)
            protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        elif receiver == "protocol":
            protocol = Recorder()
        else:
            protocol = BufferedRecorder(100 if receiver == "tiny buffer" else 65536)
        transport, peer = await attached(loop, protocol, version)
        for piece, how in zip(pieces, way, strict=False):
            if how == "write":
                transport.write(piece)
            elif how == "writelines":
                transport.writelines([piece[:10], piece[10:20], piece[20:]])
            else:
                transport.write({"bytearray": bytearray, "memoryview": memoryview}[how](piece))
        whole = b"".join(pieces)
        assert await peer.receive(len(whole)) == whole
        records = b"".join(peer.encrypt(piece) for piece in pieces)
        cut = max(cut, len(records) // 100)
        for start in range(0, len(records), cut):
            await loop.sock_sendall(peer.sock, records[start : start + cut])
            await asyncio.sleep(0)
        if receiver == "stream":
            assert await asyncio.wait_for(reader.readexactly(len(whole)), PATIENCE_S) == whole
        else:
            await until(lambda: len(protocol.data) >= len(whole))
            assert protocol.data == whole
        transport.abort()
        await turns(3)
        peer.sock.close()

    loop = loop_factory()
    try:
        loop.run_until_complete(main(loop, cut))
    finally:
        finish(loop)


@pytest.mark.parametrize("kind", [Recorder, functools.partial(BufferedRecorder, 20_000)], ids=["protocol", "buffered"])
@pytest.mark.parametrize("size", [100, 40_000])
def test_records_cut_at_their_ends_are_delivered_as_by_asyncio(loop_factory, kind, size):
    """What the protocol is asked and told, byte by byte around the ends of records."""

    def body(loop):
        async def main():
            protocol = kind()
            transport, peer = await attached(loop, protocol)
            # The tickets of TLS 1.3 went the other way; nothing else has arrived yet.
            first, second = peer.encrypt(b"a" * size), peer.encrypt(b"b" * size)
            sizes = []
            stream = first + second
            cuts = [3, 5, 6, len(first) - 1, len(first), len(first) + 4, len(first) + 5, len(stream) - 1, len(stream)]
            begin = 0
            for cut in cuts:
                arrived = len(protocol.events)
                await loop.sock_sendall(peer.sock, stream[begin:cut])
                begin = cut
                await settled(peer.sock, transport.get_extra_info("socket"))
                sizes.append((len(protocol.events) - arrived, transport.get_read_buffer_size()))
            events = [event if event[0] != "data_received" else (event[0], len(event[1])) for event in protocol.events]
            await ended(protocol, transport)
            peer.sock.close()
            return events, sizes, bytes(protocol.data)

        return loop.run_until_complete(main())

    same_as_asyncio(body, loop_factory)


async def settled(sender, receiver):
    """Wait until everything sent has been read from the receiver's socket, and what came of it is done."""
    await until(lambda: unsent(sender) == 0 and unread(receiver) == 0, "the receiver's read")
    await turns(3)


def unsent(sock):
    return struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)))[0]


def unread(sock):
    return struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.FIONREAD, bytes(4)))[0]


# --- what the transport says of itself ---------------------------------------------------------------------------------


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
            await asyncio.sleep(0.01)
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


# --- what goes wrong ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["wrong.test", "10.0.0.1"])
def test_a_certificate_for_another_name(loop_factory, name, version):
    def body(loop):
        async def main():
            server, address = await serve(loop, Echo, server_context(version))
            try:
                await loop.create_connection(Recorder, *address, ssl=client_context(version), server_hostname=name)
            except ssl.SSLCertVerificationError as error:
                result = error.verify_code, error.verify_message, error.reason
            await closed(server)
            return result

        contexts = capture_contexts(loop)
        return loop.run_until_complete(main()), [context["message"] for context in contexts]

    same_as_asyncio(body, loop_factory)


def test_an_unknown_authority_and_no_name(loop_factory):
    def body(loop):
        async def main():
            server, address = await serve(loop, Echo)
            errors = []
            for options in ({"ssl": True}, {"ssl": ssl.create_default_context(), "server_hostname": NAME}):
                try:
                    await loop.create_connection(Recorder, *address, **options)
                except ssl.SSLError as error:
                    errors.append((type(error), error.reason, error.verify_message))
            try:
                await loop.create_connection(Recorder, *address, server_hostname=NAME)
            except ValueError as error:
                errors.append((type(error), str(error)))
            await closed(server)
            return errors

        return loop.run_until_complete(main())

    assert len(same_as_asyncio(body, loop_factory)) == 3


@pytest.mark.parametrize("options", [{"ssl_handshake_timeout": 0}, {"ssl_shutdown_timeout": -1}])
def test_timeouts_that_make_no_sense(loop_factory, options):
    def body(loop):
        async def main():
            ours, theirs = tcp_pair()
            protocol = Recorder()
            transport, _ = await loop.connect_accepted_socket(lambda: protocol, ours)
            with pytest.raises(ValueError) as caught:
                await loop.start_tls(transport, protocol, client_context(), server_hostname=NAME, **options)
            await ended(protocol, transport)
            theirs.close()
            return str(caught.value)

        return loop.run_until_complete(main())

    assert "should be a positive number" in same_as_asyncio(body, loop_factory)


def test_a_server_that_says_nothing(loop):
    async def main():
        with socket.create_server((HOST, 0)) as listener:
            client = Recorder()
            with pytest.raises(ConnectionAbortedError, match="SSL handshake is taking longer than 0.05 seconds: abort"):
                await loop.create_connection(
                    lambda: client,
                    *listener.getsockname(),
                    ssl=client_context(),
                    server_hostname=NAME,
                    ssl_handshake_timeout=0.05,
                )
            assert client.events == []

    loop.run_until_complete(main())


@pytest.mark.without_debug_mode  # where asyncio reports failed handshakes
def test_a_client_that_says_nothing_is_shown_out(loop):
    async def main():
        server, address = await serve(loop, Recorder, ssl_handshake_timeout=0.05)
        with socket.create_connection(address) as silent:
            silent.setblocking(False)
            assert await loop.sock_recv(silent, 1) == b""
        await closed(server)

    contexts = capture_contexts(loop)
    loop.run_until_complete(main())
    assert contexts == []


@pytest.mark.parametrize("when", ["before", "within"])
@pytest.mark.parametrize("how", ["reset", "close"])
def test_a_peer_that_leaves_the_handshake(loop_factory, when, how):
    def body(loop):
        async def main():
            ours, theirs = tcp_pair()
            peer = Peer(loop, theirs, client_context())
            task = asyncio.ensure_future(loop.connect_accepted_socket(Recorder, ours, ssl=server_context()))
            if when == "within":
                with pytest.raises(ssl.SSLWantReadError):
                    peer.tls.do_handshake()
                hello = peer.outgoing.read()
                await loop.sock_sendall(theirs, hello[:50])
                await settled(theirs, ours)
            if how == "reset":
                reset(theirs)
            else:
                theirs.close()
            try:
                await task
            except OSError as error:
                return type(error), error.args

        contexts = capture_contexts(loop)
        return loop.run_until_complete(main()), [context["message"] for context in contexts]

    same_as_asyncio(body, loop_factory)


def test_a_reset_between_records(loop_factory):
    def body(loop):
        async def main():
            protocol = Recorder()
            _, peer = await attached(loop, protocol)
            await peer.send(b"hello")
            await until(lambda: protocol.data == b"hello")
            reset(peer.sock)
            await ended(protocol)
            return protocol.names, type(protocol.error), protocol.error.errno

        return loop.run_until_complete(main())

    same_as_asyncio(body, loop_factory)


@pytest.mark.without_debug_mode
@pytest.mark.parametrize("greeting", [b"GET / HTTP/1.0\r\n\r\n", b"\x16\x03\x01\xff\xff", bytes(300)])
def test_plain_text_to_a_tls_server_disturbs_nobody(loop, greeting):
    async def main():
        server, address = await serve(loop, Echo)
        transport, client = await loop.create_connection(Recorder, *address, ssl=client_context(), server_hostname=NAME)
        with socket.create_connection(address) as plain:
            plain.setblocking(False)
            await loop.sock_sendall(plain, greeting)
            answer = b""
            try:
                while data := await loop.sock_recv(plain, 1000):
                    answer += data
            except ConnectionResetError:
                pass
            assert len(answer) < 100
        transport.write(b"still here")
        await until(lambda: client.data == b"still here")
        transport.close()
        await ended(client)
        await closed(server)

    contexts = capture_contexts(loop)
    loop.run_until_complete(main())
    assert contexts == []


@pytest.mark.parametrize(
    "garbage",
    [b"GET / HTTP/1.0\r\n\r\n", b"\x17\x03\x03\xff\xff", b"\x17\x03\x03\x00\x30" + bytes(48), b"\x16\x03\x03\x00\x01x"],
    ids=["text", "length", "forged", "handshake"],
)
@pytest.mark.parametrize("before", [b"", b"data"])
def test_garbage_instead_of_a_record(loop_factory, garbage, before, version):
    def body(loop):
        async def main():
            protocol = Recorder()
            _, peer = await attached(loop, protocol, version)
            records = peer.encrypt(before) if before else b""
            await loop.sock_sendall(peer.sock, records + garbage)
            await ended(protocol)
            peer.sock.close()
            return protocol.events[:-1], type(protocol.error), protocol.error.reason

        contexts = capture_contexts(loop)
        return loop.run_until_complete(main()), [context["message"] for context in contexts]

    same_as_asyncio(body, loop_factory)


def failing(protocol, method, error):
    """Let one of the protocol's methods raise after it has done its work."""
    original = getattr(protocol, method)

    def fail(*arguments):
        original(*arguments)
        raise error

    setattr(protocol, method, fail)
    return protocol


@pytest.mark.parametrize("error", [RuntimeError("mine"), OSError(5, "mine"), asyncio.CancelledError("mine")], ids=repr)
@pytest.mark.parametrize("method", ["data_received", "eof_received", "get_buffer", "buffer_updated", "pause_writing"])
def test_errors_of_the_protocol(loop_factory, method, error):
    kind = BufferedRecorder if "buffer" in method else Recorder

    def body(loop):
        async def main():
            protocol = failing(kind(), method, error)
            transport, peer = await attached(loop, protocol)
            if method == "pause_writing":
                transport.set_write_buffer_limits(0)
                transport.write(b"x")
                transport.abort()
            else:
                await peer.send(b"hello")
                if method == "eof_received":
                    await until(lambda: protocol.data)
                    peer.sock.shutdown(socket.SHUT_WR)
            await ended(protocol)
            peer.sock.close()
            return protocol.names, repr(protocol.error)

        contexts = capture_contexts(loop)
        result = loop.run_until_complete(main())
        return result, [(context["message"], repr(context["exception"]), sorted(context)) for context in contexts]

    same_as_asyncio(body, loop_factory)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_ends_the_loop_passes_through(loop, error):
    protocol = failing(Recorder(), "data_received", error("mine"))

    async def main():
        transport, peer = await attached(loop, protocol)
        await peer.send(b"hello")
        return transport, peer

    with pytest.raises(error, match="mine"):
        task = loop.create_task(main())
        loop.run_until_complete(task)
        loop.run_until_complete(until(lambda: protocol.lost))
    transport, peer = loop.run_until_complete(task)
    loop.run_until_complete(ended(protocol, transport))
    peer.sock.close()


# --- ends --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep_open", [False, True])
@pytest.mark.parametrize("how", ["close_notify", "end", "both"])
@pytest.mark.parametrize("kind", [Recorder, BufferedRecorder])
def test_how_the_peer_ends(loop_factory, kind, how, keep_open, version):
    """close_notify, the end of the stream without it, and a program that would keep the connection open."""

    def body(loop):
        async def main():
            protocol = kind(keep_open=keep_open)
            transport, peer = await attached(loop, protocol, version)
            records = peer.encrypt(b"last words")
            if how != "end":
                with pytest.raises(ssl.SSLWantReadError):
                    peer.tls.unwrap()
                records += peer.outgoing.read()
            # In one piece: a kernel that is busy delivers two one by one, and the protocol is asked for another buffer.
            await loop.sock_sendall(peer.sock, records)
            if how != "close_notify":
                peer.sock.shutdown(socket.SHUT_WR)
            await ended(protocol)
            rest = b""
            try:
                while data := await loop.sock_recv(peer.sock, 1 << 16):
                    rest += data
            except ConnectionResetError:
                rest = b"reset"
            peer.sock.close()
            return protocol.names, bytes(protocol.data), repr(protocol.error), transport.is_closing(), bool(rest)

        contexts = capture_contexts(loop)
        return loop.run_until_complete(main()), [context["message"] for context in contexts]

    same_as_asyncio(body, loop_factory)


def test_closing_says_goodbye_after_everything_written(loop, version):
    async def main():
        protocol = Recorder()
        transport, peer = await attached(loop, protocol, version)
        data = b"x" * 5_000_000
        transport.write(data)
        transport.close()
        transport.close()
        assert await peer.receive(len(data)) == data
        assert await peer.call(peer.tls.read, 1) == b""
        peer.tls.unwrap()
        await peer.flush()
        await ended(protocol)
        assert protocol.error is None
        peer.sock.close()

    loop.run_until_complete(main())


def test_a_peer_that_never_says_goodbye(loop):
    async def main():
        protocol = Recorder()
        transport, peer = await attached(loop, protocol, ssl_shutdown_timeout=0.05)
        transport.close()
        await ended(protocol)
        assert isinstance(protocol.error, TimeoutError)
        assert str(protocol.error) == "SSL shutdown timed out"
        peer.sock.close()

    loop.run_until_complete(main())


@pytest.mark.ringloop_only
def test_a_peer_that_says_goodbye_and_then_does_not_read(loop):
    """asyncio before 3.14 stops counting once close_notify has come, and such a peer holds the connection open for ever."""

    async def main():
        protocol = Recorder()
        transport, peer = await attached(loop, protocol, ssl_shutdown_timeout=0.1)
        transport.write(bytes(50_000_000))
        with pytest.raises(ssl.SSLWantReadError):
            peer.tls.unwrap()
        await peer.flush()
        await ended(protocol)
        assert isinstance(protocol.error, TimeoutError)
        peer.sock.close()

    loop.run_until_complete(main())


def test_writes_after_the_end(loop_factory, caplog):
    def body(loop):
        async def main():
            protocol = Recorder()
            transport, peer = await attached(loop, protocol)
            caplog.clear()
            transport.abort()
            for _ in range(8):
                transport.write(b"x")
                transport.writelines([b"x"])
            await ended(protocol)
            transport.write(b"x")
            peer.sock.close()
            return protocol.names, [record.getMessage() for record in caplog.records]

        return loop.run_until_complete(main())

    assert "SSL connection is closed" in same_as_asyncio(body, loop_factory)[1]


def test_the_protocol_closes_while_data_is_delivered(loop_factory):
    def body(loop):
        class Closing(Recorder):
            def data_received(self, data):
                super().data_received(data)
                if len(self.data) == 3:
                    self.transport.write(b"bye")
                    self.transport.close()

        async def main():
            protocol = Closing()
            _, peer = await attached(loop, protocol)
            await loop.sock_sendall(peer.sock, peer.encrypt(b"one"))
            assert await peer.receive(3) == b"bye"
            assert await peer.call(peer.tls.read, 1) == b""
            await loop.sock_sendall(peer.sock, peer.encrypt(b"two"))
            peer.tls.unwrap()
            await peer.flush()
            await ended(protocol)
            peer.sock.close()
            return protocol.events[:-1], repr(protocol.error)

        return loop.run_until_complete(main())

    same_as_asyncio(body, loop_factory)


# --- flow control ------------------------------------------------------------------------------------------------------


def test_writing_is_paused_and_resumed(loop_factory):
    def body(loop):
        async def main():
            protocol = Recorder()
            transport, peer = await attached(loop, protocol)
            transport.set_write_buffer_limits(high=100_000, low=10_000)
            limits = transport.get_write_buffer_limits()
            written = 0
            while "pause_writing" not in protocol.names:
                transport.write(bytes(60_000))
                written += 60_000
            assert transport.get_write_buffer_size() >= 100_000
            assert transport._protocol_paused
            received = 0
            while received < written:
                received += len(await peer.call(peer.tls.read, 1 << 16))
            await until(lambda: "resume_writing" in protocol.names)
            assert transport.get_write_buffer_size() == 0
            await ended(protocol, transport)
            peer.sock.close()
            return protocol.names, limits

        return loop.run_until_complete(main())

    same_as_asyncio(body, loop_factory)


@pytest.mark.parametrize("limits", [(0, 0), (0, None), (None, 0), (1, 1), (10**9, None), (1.5, 0.5)])
def test_marks_of_every_size(loop_factory, limits):
    def body(loop):
        async def main():
            protocol = Recorder()
            transport, peer = await attached(loop, protocol)
            high, low = limits
            transport.set_write_buffer_limits(high=high, low=low)
            if 0 not in limits:
                # Of those asyncio never resumes reading.
                transport.set_read_buffer_limits(high=high, low=low)
            for size in (1, 20_000, 1):
                transport.write(bytes(size))
                assert await peer.receive(size) == bytes(size)
                await peer.send(bytes(size))
            await until(lambda: len(protocol.data) == 20_002)
            result = protocol.names, transport.get_write_buffer_limits(), transport.get_read_buffer_limits()
            await ended(protocol, transport)
            peer.sock.close()
            return [name for name in result[0] if name != "data_received"], result[1:]

        return loop.run_until_complete(main())

    same_as_asyncio(body, loop_factory)


@pytest.mark.parametrize("limits", [(-1, None), (1, 2), ("1", None)])
def test_marks_that_make_no_sense(loop_factory, limits):
    def body(loop):
        async def main():
            protocol = Recorder()
            transport, peer = await attached(loop, protocol)
            errors = []
            for setter in (transport.set_write_buffer_limits, transport.set_read_buffer_limits):
                try:
                    setter(*limits)
                except (ValueError, TypeError) as error:
                    errors.append((type(error), str(error)))
            await ended(protocol, transport)
            peer.sock.close()
            return errors

        return loop.run_until_complete(main())

    assert len(same_as_asyncio(body, loop_factory)) == 2


@pytest.mark.parametrize("kind", [Recorder, BufferedRecorder])
def test_reading_is_paused_and_resumed(loop, kind):
    async def main():
        protocol = kind()
        transport, peer = await attached(loop, protocol)
        transport.pause_reading()
        assert not transport.is_reading()
        data = bytes(range(250)) * 8000
        sender = loop.create_task(peer.send(data))
        await until(lambda: transport.get_read_buffer_size() > 256 * 1024)
        assert not protocol.data
        transport.resume_reading()
        assert transport.is_reading()
        await until(lambda: len(protocol.data) >= len(data))
        await sender
        assert protocol.data == data
        await ended(protocol, transport)
        peer.sock.close()

    loop.run_until_complete(main())


def test_a_pause_within_a_delivery(loop_factory):
    def body(loop):
        class Pausing(Recorder):
            def data_received(self, data):
                super().data_received(data)
                self.transport.pause_reading()

        async def main():
            protocol = Pausing()
            transport, peer = await attached(loop, protocol)
            for piece in (b"one", b"two", b"three"):
                await peer.send(piece)
                await settled(peer.sock, transport.get_extra_info("socket"))
            sizes = [transport.get_read_buffer_size()]
            transport.resume_reading()
            transport.pause_reading()
            transport.resume_reading()
            await until(lambda: len(protocol.data) == 11)
            sizes.append(transport.get_read_buffer_size())
            await ended(protocol, transport)
            peer.sock.close()
            return protocol.events, sizes

        return loop.run_until_complete(main())

    same_as_asyncio(body, loop_factory)


@pytest.mark.ringloop_only
@pytest.mark.parametrize("side", ["client", "server"])
def test_a_protocol_that_pauses_reading_at_once_has_the_handshake_ended(loop, version, side):
    """Its peer gets the last words of the handshake: a client's Finished. asyncio sends them with the first read."""

    class Pausing(Recorder):
        def connection_made(self, transport):
            super().connection_made(transport)
            transport.pause_reading()

    async def main():
        ours, theirs = tcp_pair()
        paused, other = Pausing(), Recorder()
        client, server = (paused, other) if side == "client" else (other, paused)
        # The server's comes first: it ends when the client's last words are there.
        await asyncio.gather(
            loop.connect_accepted_socket(lambda: server, ours, ssl=server_context(version)),
            loop.create_connection(lambda: client, sock=theirs, ssl=client_context(version), server_hostname=NAME),
        )
        other.transport.write(b"to one who does not listen yet")
        paused.transport.write(b"and back")
        await received(other, b"and back")
        assert not paused.data
        paused.transport.resume_reading()
        await received(paused, b"to one who does not listen yet")
        await ended(paused, paused.transport)
        await ended(other)

    loop.run_until_complete(asyncio.wait_for(main(), PATIENCE_S))


@pytest.mark.parametrize("how", ["close", "abort"])
@pytest.mark.parametrize("side", ["client", "server"])
def test_a_protocol_that_pauses_reading_and_leaves_at_once(loop_factory, version, side, how):
    class Leaving(Recorder):
        def connection_made(self, transport):
            super().connection_made(transport)
            transport.pause_reading()
            getattr(transport, how)()

    def body(loop):
        async def main():
            ours, theirs = tcp_pair()
            leaving, other = Leaving(), Recorder()
            client, server = (leaving, other) if side == "client" else (other, leaving)
            outcomes = await asyncio.gather(
                loop.connect_accepted_socket(lambda: server, ours, ssl=server_context(version)),
                loop.create_connection(lambda: client, sock=theirs, ssl=client_context(version), server_hostname=NAME),
                return_exceptions=True,
            )
            await ended(leaving)
            if other.names:
                await ended(other)
            return [type(outcome) for outcome in outcomes if isinstance(outcome, Exception)], leaving.names, other.names

        return loop.run_until_complete(main())

    same_as_asyncio(body, loop_factory)


# --- start_tls ---------------------------------------------------------------------------------------------------------


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
    """What a stream reader has read ahead of the upgrade: newer asyncios hand it on, older ones wait for it in vain."""

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
    except AssertionError:  # One of them had no CPU for so long.
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


# --- contexts, debug mode, life ----------------------------------------------------------------------------------------


def test_the_context_of_callbacks(loop_factory):
    variable = contextvars.ContextVar("variable", default="none")

    def body(loop):
        seen = []

        class Watching(Recorder):
            def connection_made(self, transport):
                super().connection_made(transport)
                seen.append(("made", variable.get()))

            def data_received(self, data):
                super().data_received(data)
                seen.append(("data", variable.get()))

            def connection_lost(self, error):
                super().connection_lost(error)
                seen.append(("lost", variable.get()))

        async def main():
            variable.set("main")
            protocol = Watching()
            transport, peer = await attached(loop, protocol)
            variable.set("later")
            await peer.send(b"x")
            await until(lambda: protocol.data)
            transport.pause_reading()
            variable.set("resumed")
            transport.resume_reading()
            await peer.send(b"y")
            await until(lambda: len(protocol.data) == 2)
            await ended(protocol, transport)
            peer.sock.close()
            return seen

        return contextvars.copy_context().run(loop.run_until_complete, main())

    same_as_asyncio(body, loop_factory)


def test_debug_mode_says_what_asyncio_says(loop_factory, caplog):
    def body(loop):
        async def main():
            protocol = failing(Recorder(), "data_received", OSError("mine"))
            _, peer = await attached(loop, protocol)
            await peer.send(b"x")
            await ended(protocol)
            peer.sock.close()

        loop.set_debug(True)
        loop.slow_callback_duration = 1000
        caplog.clear()
        loop.run_until_complete(main())
        own = [r for r in caplog.records if "SSLProtocol" in r.getMessage()]
        return [(r.msg, r.exc_info and repr(r.exc_info[1])) for r in own]

    with caplog.at_level(logging.DEBUG, logger="asyncio"):
        assert len(same_as_asyncio(body, loop_factory)) >= 3


def test_a_cancelled_handshake_leaves_nothing(loop):
    async def main():
        with socket.create_server((HOST, 0)) as listener:
            listener.setblocking(False)
            before = open_descriptors()
            for way in ("connect", "upgrade"):
                client = Recorder()
                if way == "connect":
                    task = loop.create_task(
                        loop.create_connection(
                            lambda client=client: client,
                            *listener.getsockname(),
                            ssl=client_context(),
                            server_hostname=NAME,
                        )
                    )
                else:
                    plain, _ = await loop.create_connection(lambda client=client: client, *listener.getsockname())
                    task = loop.create_task(loop.start_tls(plain, client, client_context(), server_hostname=NAME))
                accepted, _ = await loop.sock_accept(listener)
                assert await loop.sock_recv(accepted, 1) == b"\x16"
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                while await loop.sock_recv(accepted, 1000):
                    pass
                accepted.close()
            await turns(3)
            gc.collect()
            assert open_descriptors() == before

    loop.run_until_complete(main())


def test_200_connections_leave_nothing(loop):
    async def main():
        refs = []
        there = sum(isinstance(thing, sslproto.SSLProtocol) for thing in gc.get_objects())

        def factory():
            protocol = Echo()
            refs.append(weakref.ref(protocol))
            return protocol

        context, ours = server_context(), client_context()
        server, address = await serve(loop, factory, context)

        async def once(number):
            client = Recorder()
            transport, _ = await loop.create_connection(lambda: client, *address, ssl=ours, server_hostname=NAME)
            refs.append(weakref.ref(transport))
            refs.append(weakref.ref(client))
            transport.write(b"x" * 2000)
            await until(lambda: len(client.data) == 2000)
            if number % 2:
                transport.close()
            else:
                transport.abort()
            await ended(client)

        await once(0)
        before = open_descriptors()
        for number in range(50):
            await asyncio.gather(*[once(4 * number + index) for index in range(4)])
        await until(lambda: open_descriptors() == before, "the end of every connection")
        await closed(server)
        await turns(5)
        gc.collect()
        assert [ref() for ref in refs if ref() is not None] == []
        assert sum(isinstance(thing, sslproto.SSLProtocol) for thing in gc.get_objects()) <= there

    loop.run_until_complete(main())


def test_a_connection_needs_no_collector(loop):
    """Closed connections go by counting references, as asyncio's do."""

    async def main():
        protocol = Recorder()
        transport, peer = await attached(loop, protocol)
        await peer.send(b"x" * 100)
        await until(lambda: protocol.data)
        transport.write(b"y" * 100_000)
        assert await peer.receive(100_000)
        dead = weakref.ref(transport)
        await ended(protocol, transport)
        protocol.transport = None
        del transport
        peer.sock.close()
        await turns(3)
        return dead

    gc.collect()
    gc.disable()
    try:
        dead = loop.run_until_complete(main())
        assert dead() is None
    finally:
        gc.enable()


def test_what_nobody_closed_is_warned_of(loop_factory):
    def body(loop):
        async def main():
            protocol = Recorder()
            _, peer = await attached(loop, protocol)
            protocol.transport = None
            peer.sock.close()

        with resource_warnings() as texts:
            loop.run_until_complete(main())
            loop.close()
            gc.collect()
        return sorted({text.split(" fd=")[0].replace("_Selector", "") for text in texts if "socket.socket" not in text})

    same_as_asyncio(body, loop_factory)


def test_a_thousand_small_writes(loop):
    async def main():
        protocol = Recorder()
        transport, peer = await attached(loop, protocol)
        for number in range(1000):
            transport.write(b"%4d" % number)
        assert await peer.receive(4000) == b"".join(b"%4d" % number for number in range(1000))
        await ended(protocol, transport)
        peer.sock.close()

    loop.run_until_complete(main())


def test_two_loops_in_two_threads(loop_factory):
    certificate(NAME)  # Made once, and not in two threads at once.

    def run():
        loop = loop_factory()
        try:

            async def main():
                server, address = await serve(loop, Echo)
                transport, client = await loop.create_connection(
                    Recorder, *address, ssl=client_context(), server_hostname=NAME
                )
                for _ in range(100):
                    client.data.clear()
                    transport.write(b"x" * 30_000)
                    await until(lambda: len(client.data) == 30_000)
                transport.close()
                await ended(client)
                await closed(server)

            loop.run_until_complete(main())
        finally:
            finish(loop)

    for thread in [BackgroundThread(run) for _ in range(2)]:
        thread.result()
