"""TLS: data of every kind and size, in records of every shape."""

import asyncio
import functools
import ssl

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support import (
    HOST,
    PATIENCE_S,
    Echo,
    Recorder,
    capture_contexts,
    examples,
    finish,
    released_view,
    same_as_asyncio,
    turns,
    until,
)
from tls_support import (
    NAME,
    VERSIONS,
    BufferedRecorder,
    attached,
    client_context,
    closed,
    ended,
    received,
    serve,
    server_context,
    settled,
)


class BufferedEcho(asyncio.BufferedProtocol):
    def __init__(self, size=5000):
        self.buffer = bytearray(size)

    def connection_made(self, transport):
        self.transport = transport

    def get_buffer(self, hint):
        return memoryview(self.buffer)

    def buffer_updated(self, count):
        self.transport.write(self.buffer[:count])


@pytest.mark.many_cases(short=8)
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
            messages = []
            for write in (transport.write, transport.writelines, lambda data: transport.writelines([data])):
                try:
                    write(data)
                except Exception as error:
                    messages.append((type(error), str(error)))
                else:
                    messages.append(None)
            transport.abort()
            await ended(protocol)
            peer.sock.close()
            return messages, str(protocol.error)

        contexts = capture_contexts(loop)
        return loop.run_until_complete(main()), [(c["message"], str(c["exception"])) for c in contexts]

    same_as_asyncio(body, loop_factory)


@pytest.mark.examples
@given(
    pieces=st.lists(st.binary(max_size=40_000) | st.integers(0, 70_000).map(bytes), min_size=1, max_size=8),
    way=st.lists(st.sampled_from(["write", "writelines", "bytearray", "memoryview"]), min_size=8, max_size=8),
    cut=st.integers(1, 30_000),
    receiver=st.sampled_from(["protocol", "buffered", "tiny buffer", "stream"]),
    version=st.sampled_from(list(VERSIONS)),
)
@settings(max_examples=examples(15), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
    """The calls to the protocol are those of asyncio, byte by byte around the ends of records."""

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


@pytest.mark.parametrize("name", ["read", "write"])
def test_methods_of_ssl_objects_may_be_replaced(loop_factory, monkeypatch, name):
    """They were bypassed."""
    original = getattr(ssl.SSLObject, name)
    called = []

    def replacement(self, *arguments):
        called.append(name)
        return original(self, *arguments)

    def body(loop):
        async def main():
            server, address = await serve(loop, Echo, server_context())
            transport, client = await loop.create_connection(
                Recorder, *address, ssl=client_context(), server_hostname=NAME
            )
            transport.write(b"data")
            await until(lambda: len(client.data) == 4)
            transport.close()
            await ended(client)
            await closed(server)
            return bool(called)

        called.clear()
        with monkeypatch.context() as patch:
            patch.setattr(ssl.SSLObject, name, replacement)
            return loop.run_until_complete(main())

    assert same_as_asyncio(body, loop_factory)
