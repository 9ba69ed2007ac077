"""Failures of TLS: certificates, timeouts, peers that break off or send garbage, errors of the protocol."""

import asyncio
import socket
import ssl

import pytest

from support import (
    HOST,
    Echo,
    Recorder,
    capture_contexts,
    reset,
    same_as_asyncio,
    tcp_pair,
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
    failing,
    serve,
    server_context,
    settled,
)


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


@pytest.mark.many_cases(short=6)
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


@pytest.mark.many_cases(short=6)
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
