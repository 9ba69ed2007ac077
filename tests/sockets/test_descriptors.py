"""Descriptors whose file is closed, detached or exchanged behind the loop's back, and numbers that are used again.

A number says nothing of the file behind it. What was given to a connection, or waited for on one, must reach no other that has got its
number; a file that is closed must be let go of, so that its peer hears at once.
"""

import array
import asyncio
import contextlib
import errno
import fcntl
import functools
import gc
import os
import resource
import socket
import ssl
import struct
import sys
import tempfile
import threading
import time
import warnings
import weakref

import pytest
import trustme

import support
from support import HOST, PATIENCE_S, BufferedRecorder, Recorder, capture_contexts, same_as_asyncio, turns, until


def noop(*_):
    pass


def run_turns(loop, count=1):
    loop.run_until_complete(turns(count))


def apart(sock):
    """The socket under a number that no other thread is given, so that nobody else has it when it is closed."""
    number = fcntl.fcntl(sock, fcntl.F_DUPFD_CLOEXEC, 500)
    sock.close()
    moved = socket.socket(fileno=number)
    moved.setblocking(False)
    return moved


def pair():
    """Two connected stream sockets that do not block."""
    ours, peer = socket.socketpair()
    peer.setblocking(False)
    return apart(ours), peer


async def lend(loop, kind=Recorder):
    """Make a transport for a protocol of this kind on a socket that stays ours, and let it begin.

    Return (the socket, the other end's, the protocol, the transport).
    """
    ours, peer = pair()
    protocol = kind()
    transport, _ = await loop.create_connection(lambda: protocol, sock=ours)
    await turns(3)
    return ours, peer, protocol, transport


def fill(sock):
    """Write until the socket takes no more."""
    with contextlib.suppress(BlockingIOError):
        while True:
            sock.send(bytes(1 << 16))


def received(sock):
    """What has come: bytes, which are empty at the end of the stream, or None."""
    try:
        return sock.recv(1 << 16)
    except BlockingIOError:
        return None


class Stranger:
    """Another connection, which gets the number that was somebody else's."""

    def __init__(self):
        self.near, self.far = socket.socketpair()
        self.near.setblocking(False)
        self.far.setblocking(False)
        self.copies = []

    def take(self, number):
        os.dup2(self.near.fileno(), number, inheritable=False)
        self.copies.append(number)

    def close(self):
        for number in self.copies:
            os.close(number)
        self.near.close()
        self.far.close()

    def state(self):
        """What it was sent in the name of another, and what is left of the data that was sent to it."""
        return received(self.far), received(self.near)


@contextlib.contextmanager
def parted(way, sock):
    """Part the socket object from its number in one of `WAYS`; give the other connection that may have it now."""
    stranger = Stranger()
    kept = []
    number = sock.fileno()
    try:
        if "kept" in way:
            kept.append(sock.dup())
        if "detached" in way:
            sock.detach()
        elif way != "exchanged":
            sock.close()
        if way in ("exchanged", "closed and reused", "closed, kept and reused", "detached and reused"):
            stranger.take(number)
        elif way == "detached":
            kept.append(socket.socket(fileno=number))
        if way == "exchanged":
            stranger.copies.clear()
            kept.append(sock)  # Which still has the number, if it was not closed with its transport.
        yield stranger
    finally:
        for other in kept:
            other.close()
        stranger.close()


WAYS = ("closed", "closed and reused", "closed, kept and reused", "detached", "detached and reused", "exchanged")


def outcome_of(function, *arguments):
    """What a call returned or raised, in a form that compares."""
    try:
        return function(*arguments)
    except Exception as error:
        return repr(error)


def told(protocol):
    """The callbacks of a recorder, with errors in a form that compares."""
    return [tuple(repr(it) if isinstance(it, Exception) else it for it in event) for event in protocol.events]


def write(transport, peer, stranger):
    transport.write(b"secret")


def writelines(transport, peer, stranger):
    transport.writelines([b"secret", b"of", b"ours"])


def write_eof(transport, peer, stranger):
    transport.write_eof()


def read(transport, peer, stranger):
    stranger.far.send(b"private")
    with contextlib.suppress(OSError):  # Where the last descriptor was closed, nobody listens.
        peer.send(b"data")


def end(transport, peer, stranger):
    stranger.far.send(b"private")
    peer.shutdown(socket.SHUT_WR)


def close(transport, peer, stranger):
    transport.close()


def abort(transport, peer, stranger):
    transport.abort()


ACTIONS = (write, writelines, write_eof, read, end, close, abort)


@pytest.mark.parametrize("recorder", [Recorder, BufferedRecorder], ids=["plain", "buffered"])
@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: action.__name__)
@pytest.mark.parametrize("way", WAYS)
def test_a_transport_uses_the_descriptor_that_its_socket_has(loop_factory, way, action, recorder):
    def body(loop):
        contexts = capture_contexts(loop)

        async def main():
            ours, peer, protocol, transport = await lend(loop, recorder)
            with peer, parted(way, ours) as stranger:
                result = outcome_of(action, transport, peer, stranger)
                await turns(5)
                states = [stranger.state(), received(peer), transport.is_closing()]
                transport.abort()
                await until(lambda: protocol.lost)
                await turns(3)
                # The other connection works in both directions, if it is not the socket's own number that it had.
                alive = way == "exchanged" or (stranger.near.send(b"x"), stranger.far.recv(10))
                return result, states, alive, told(protocol), [context["message"] for context in contexts]

        return loop.run_until_complete(main())

    result, states, alive, *_ = same_as_asyncio(body, loop_factory)
    if way != "exchanged":
        assert states[0] == (None, b"private" if action in (read, end) else None)
        assert alive == (1, b"x")
    if action is write_eof and way != "exchanged":
        assert result == "OSError(9, 'Bad file descriptor')"


@pytest.mark.parametrize("way", WAYS)
def test_what_is_buffered_is_not_sent_elsewhere(loop_factory, way):
    def body(loop):
        async def main():
            ours, peer, protocol, transport = await lend(loop)
            # One that reads, too, asyncio can't abort: changing what a closed number is watched for is an error.
            transport.pause_reading()
            fill(ours)
            transport.write(b"secret")
            with peer, parted(way, ours) as stranger:
                while received(peer):
                    pass
                await turns(5)
                states = [stranger.state(), received(peer), transport.is_closing(), transport.get_write_buffer_size()]
                transport.abort()
                await until(lambda: protocol.lost)
                return states, told(protocol)

        return loop.run_until_complete(main())

    states, _ = same_as_asyncio(body, loop_factory)
    assert states[0] == (None, None)


@pytest.mark.parametrize("way", ["closed", "detached"])
def test_reading_resumes_only_on_a_descriptor_that_is_open(loop_factory, way):
    def body(loop):
        async def main():
            ours, peer, protocol, transport = await lend(loop)
            transport.pause_reading()
            with peer, parted(way, ours):
                result = outcome_of(transport.resume_reading)
                if way == "detached":
                    peer.send(b"data")
                await turns(5)
                transport.abort()
                await until(lambda: protocol.lost)
                return result, told(protocol)

        return loop.run_until_complete(main())

    same_as_asyncio(body, loop_factory)


@pytest.mark.ringloop_only
@pytest.mark.parametrize("way", ["closed and reused", "closed, kept and reused", "detached and reused"])
def test_reading_does_not_resume_on_another_connection(loop, way):
    """asyncio's transport registers the number all the same, and ends at the other's first data."""

    async def main():
        ours, peer, protocol, transport = await lend(loop)
        transport.pause_reading()
        with peer, parted(way, ours) as stranger:
            with pytest.raises(OSError) as caught:
                transport.resume_reading()
            assert caught.value.errno == errno.EBADF
            stranger.far.send(b"private")
            await turns(5)
            assert stranger.state() == (None, b"private")
            transport.abort()
            await until(lambda: protocol.lost)
        assert protocol.names == ["connection_made", "connection_lost"]

    loop.run_until_complete(main())


@pytest.mark.parametrize("way", WAYS)
def test_streams_whose_socket_is_gone(loop_factory, way):
    def body(loop):
        async def main():
            ours, peer = pair()
            reader, writer = await asyncio.open_connection(sock=ours)
            reading = loop.create_task(reader.read(100))
            await turns(3)
            with peer, parted(way, ours) as stranger:
                stranger.far.send(b"private")
                writer.write(b"secret")
                await turns(5)
                states = [stranger.state(), reading.done()]
                writer.transport.abort()
                results = await asyncio.gather(reading, writer.drain(), writer.wait_closed(), return_exceptions=True)
                return states, [repr(result) for result in results]

        return loop.run_until_complete(main())

    states, _ = same_as_asyncio(body, loop_factory)
    assert states[0] == (b"secret" if way == "exchanged" else None, b"private")


@pytest.mark.parametrize("fallback", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_a_file_is_not_sent_elsewhere(loop_factory, way, fallback):
    def body(loop):
        async def main():
            ours, peer, protocol, transport = await lend(loop)
            with tempfile.TemporaryFile() as file, peer, parted(way, ours) as stranger:
                file.write(b"secret")
                file.flush()
                try:
                    result = await loop.sendfile(transport, file, fallback=fallback)
                except Exception as error:
                    result = repr(error)
                await turns(5)
                states = [stranger.state(), received(peer), transport.is_closing()]
                transport.abort()
                await until(lambda: protocol.lost)
                if "reused" in way:
                    # asyncio's transport goes on to read what has the number, instead of being refused.
                    return None, states[:2], None
                return result, states, told(protocol)

        return loop.run_until_complete(main())

    _, states, _ = same_as_asyncio(body, loop_factory)
    assert states[0] == (b"secret" if way == "exchanged" else None, None)


@functools.cache
def tls_contexts():
    authority = trustme.CA(key_type=trustme.KeyType.ECDSA)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("server.test", key_type=trustme.KeyType.ECDSA).configure_cert(server)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.configure_trust(client)
    return server, client


@pytest.mark.parametrize("action", [write, read], ids=lambda action: action.__name__)
@pytest.mark.parametrize("way", ["closed", "closed and reused", "closed, kept and reused", "detached and reused"])
def test_tls_whose_socket_is_gone(loop_factory, way, action):
    """Its transport's is the socket."""

    def body(loop):
        loop.set_exception_handler(noop)

        async def main():
            server_context, client_context = tls_contexts()
            ours, theirs = pair()
            protocol, server = Recorder(), Recorder()
            (transport, _), (server_transport, _) = await asyncio.gather(
                loop.create_connection(lambda: protocol, sock=ours, ssl=client_context, server_hostname="server.test"),
                loop.connect_accepted_socket(lambda: server, theirs, ssl=server_context),
            )
            await turns(20)
            with parted(way, ours) as stranger:
                stranger.far.send(b"private")
                if action is write:
                    transport.write(b"secret")
                else:
                    server_transport.write(b"data")
                await turns(10)
                states = [stranger.state(), transport.is_closing(), bytes(server.data)]
                transport.abort()
                server_transport.abort()
                await until(lambda: protocol.lost and server.lost)
                return states, told(protocol)

        return loop.run_until_complete(main())

    states, _ = same_as_asyncio(body, loop_factory)
    assert states[0] == (None, b"private")
    assert states[2] == b""


class DatagramRecorder(asyncio.DatagramProtocol):
    """Writes down each callback; calls `on_datagram` for each datagram."""

    def __init__(self):
        self.events = []
        self.lost = False
        self.on_datagram = noop

    def connection_made(self, transport):
        self.events.append(("connection_made",))

    def datagram_received(self, data, address):
        self.events.append(("datagram_received", data))
        self.on_datagram(data)

    def error_received(self, error):
        self.events.append(("error_received", error))

    def connection_lost(self, error):
        self.events.append(("connection_lost", error))
        self.lost = True


def udp_socket():
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind((HOST, 0))
    return apart(sock)


@pytest.mark.parametrize("connected", [True, False], ids=["connected", "unconnected"])
@pytest.mark.parametrize("way", WAYS)
def test_a_datagram_transport_uses_the_descriptor_that_its_socket_has(loop_factory, way, connected):
    def body(loop):
        async def main():
            ours, peer = udp_socket(), udp_socket()
            if connected:
                ours.connect(peer.getsockname())
            protocol = DatagramRecorder()
            transport, _ = await loop.create_datagram_endpoint(lambda: protocol, sock=ours)
            await turns(3)
            address = ours.getsockname()
            with peer, parted(way, ours) as stranger:
                result = outcome_of(transport.sendto, b"secret", None if connected else peer.getsockname())
                sent = stranger.state()
                stranger.far.send(b"private")
                peer.sendto(b"data", address)
                await turns(5)
                states = [sent, stranger.state(), received(peer), transport.is_closing()]
                transport.abort()
                await until(lambda: protocol.lost)
                # asyncio's tells the same error in each turn, for as long as there is something to read.
                return result, states, list(dict.fromkeys(told(protocol)))

        return loop.run_until_complete(main())

    result, states, _ = same_as_asyncio(body, loop_factory)
    if way != "exchanged":
        assert states[:2] == [(None, None), (None, b"private")]


@pytest.mark.parametrize("way", ["closed and reused", "detached and reused"])
def test_the_next_datagram_of_a_batch_is_nobody_elses(loop, way):
    """The protocol closes the socket of the transport that is delivering, and its number becomes another's."""

    async def main():
        ours, peer = udp_socket(), udp_socket()
        protocol = DatagramRecorder()
        transport, _ = await loop.create_datagram_endpoint(lambda: protocol, sock=ours)
        await turns(3)
        address = ours.getsockname()
        # For as long as looking again right after a delivery finds something, the transport does so.
        protocol.on_datagram = lambda data: peer.sendto(data, address) if data != b"last" else None
        peer.sendto(b"first", address)
        await turns(20)
        protocol.on_datagram = noop
        await turns(20)
        with contextlib.ExitStack() as stack:
            stack.enter_context(peer)
            strangers = []

            def part(_):
                protocol.on_datagram = noop
                strangers.append(stack.enter_context(parted(way, ours)))
                strangers[0].far.send(b"private")

            protocol.on_datagram = part
            peer.sendto(b"last", address)
            await until(lambda: strangers)
            await turns(5)
            assert strangers[0].state() == (None, b"private")
            assert all(event[1] in (b"first", b"last") for event in protocol.events if event[0] == "datagram_received")
            transport.abort()
            await until(lambda: protocol.lost)

    loop.run_until_complete(main())


def closing_hook(event, arguments):
    if event == "socket.sendto" and closing_hook.action is not None:
        action, closing_hook.action = closing_hook.action, None
        action()


closing_hook.action = None
add_closing_hook = functools.cache(functools.partial(sys.addaudithook, closing_hook))


@pytest.mark.parametrize("how", ["transport", "sock_sendto"])
def test_an_audit_hook_that_closes_the_socket(loop_factory, how):
    def body(loop):
        async def main():
            ours, peer = udp_socket(), udp_socket()
            protocol = DatagramRecorder()
            with peer, contextlib.ExitStack() as stack:
                strangers = []
                add_closing_hook()
                if how == "transport":
                    transport, _ = await loop.create_datagram_endpoint(lambda: protocol, sock=ours)
                    await turns(3)
                closing_hook.action = lambda: strangers.append(stack.enter_context(parted("closed and reused", ours)))
                if how == "transport":
                    transport.sendto(b"secret", peer.getsockname())
                    transport.abort()
                    await until(lambda: protocol.lost)
                    result = told(protocol)
                else:
                    try:
                        result = await loop.sock_sendto(ours, b"secret", peer.getsockname())
                    except OSError as error:
                        result = repr(error)
                return result, strangers[0].state()

        return loop.run_until_complete(main())

    _, state = same_as_asyncio(body, loop_factory)
    assert state == (None, None)


def test_a_buffer_that_closes_the_socket_when_it_is_offered(loop_factory):
    def body(loop):
        class Closing(BufferedRecorder):
            def get_buffer(self, sizehint):
                if strangers is not None and not strangers:
                    strangers.append(stack.enter_context(parted("closed and reused", ours)))
                    strangers[0].far.send(b"private")
                return super().get_buffer(sizehint)

        async def main():
            protocol = Closing()
            transport, _ = await loop.create_connection(lambda: protocol, sock=ours)
            with peer:
                peer.send(b"data")
                await until(lambda: strangers)
                await turns(5)
                states = [strangers[0].state(), transport.is_closing()]
                transport.abort()
                await until(lambda: protocol.lost)
                return states, told(protocol)

        ours, peer = pair()
        strangers = []
        with contextlib.ExitStack() as stack:
            return loop.run_until_complete(main())

    states, _ = same_as_asyncio(body, loop_factory)
    assert states[0] == (None, b"private")


@pytest.mark.skipif(sys.version_info < (3, 12), reason="classes offer buffers from Python 3.12 on")
@pytest.mark.parametrize("how", ["write", "sock_sendall", "sock_recv_into", "sendto"])
def test_a_buffer_whose_class_closes_the_socket(loop, how):
    async def main():
        ours, peer = pair() if how != "sendto" else (udp_socket(), udp_socket())
        if how == "sendto":
            ours.connect(peer.getsockname())
        strangers = []

        class Buffer(bytearray):
            def __buffer__(self, flags):
                if not strangers:
                    strangers.append(stack.enter_context(parted("closed and reused", ours)))
                    strangers[0].far.send(b"private")
                return super().__buffer__(flags)

        protocol = DatagramRecorder() if how == "sendto" else Recorder()
        with contextlib.ExitStack() as stack, peer:
            if how == "write":
                transport, _ = await loop.create_connection(lambda: protocol, sock=ours)
                transport.write(Buffer(b"secret"))
            elif how == "sendto":
                transport, _ = await loop.create_datagram_endpoint(lambda: protocol, sock=ours)
                transport.sendto(Buffer(b"secret"))
            else:
                peer.send(b"data")
                with pytest.raises(OSError):
                    await getattr(loop, how)(ours, Buffer(b"secret"))
            assert strangers[0].state() == (None, b"private")
            if how in ("write", "sendto"):
                transport.abort()
                await until(lambda: protocol.lost)

    loop.run_until_complete(main())


# ---- operations on sockets


def operations(loop, sock):
    """The operations that wait on a stream socket, each with what makes it go on."""
    return {
        "sock_recv": (loop.sock_recv, (sock, 100), False),
        "sock_recv_into": (loop.sock_recv_into, (sock, bytearray(100)), False),
        "sock_recvfrom": (loop.sock_recvfrom, (sock, 100), False),
        "sock_recvfrom_into": (loop.sock_recvfrom_into, (sock, bytearray(100)), False),
        "sock_sendall": (loop.sock_sendall, (sock, b"secret"), True),
    }


OPERATIONS = tuple(operations(asyncio.SelectorEventLoop, None))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_operation_in_progress_uses_the_descriptor_that_its_socket_has(loop_factory, operation, way):
    def body(loop):
        async def main():
            ours, peer = pair()
            method, arguments, sends = operations(loop, ours)[operation]
            if sends:
                fill(ours)
            task = loop.create_task(method(*arguments))
            await turns(3)
            with peer, parted(way, ours) as stranger:
                stranger.far.send(b"private")
                with contextlib.suppress(OSError):
                    if sends:
                        while received(peer):
                            pass
                    else:
                        peer.send(b"data")
                await turns(5)
                states = [stranger.state(), task.done()]
                if not task.done():
                    task.cancel()
                result = (await asyncio.gather(task, return_exceptions=True))[0]
                await turns(3)
                return states, repr(result), loop.remove_reader(stranger.near), loop.remove_writer(stranger.near)

        return loop.run_until_complete(main())

    states, *_ = same_as_asyncio(body, loop_factory)
    assert states[0] == (None, b"private")


# ---- peers hear at once


def listening(loop, sock):
    return loop.create_task(loop.sock_accept(sock))


def heard_by(sock):
    """Whether the peer has heard of the end by the time that close() has returned: no turn of the loop is needed."""
    return received(sock) == b""


@pytest.mark.parametrize("turns_before", [0, 3])
@pytest.mark.parametrize("how", ["add_reader", "add_writer", "both", *OPERATIONS])
def test_a_socket_that_is_closed_while_it_is_watched_is_let_go_of(loop, how, turns_before):
    async def main():
        ours, peer = pair()
        task = None
        if how in ("add_reader", "both"):
            loop.add_reader(ours.fileno(), noop)
        if how in ("add_writer", "both"):
            fill(ours)
            loop.add_writer(ours.fileno(), noop)
        if how in OPERATIONS:
            method, arguments, sends = operations(loop, ours)[how]
            if sends:
                fill(ours)
            task = loop.create_task(method(*arguments))
            await turns(1)
        await turns(turns_before)
        with peer:
            number = ours.fileno()
            ours.close()
            while data := received(peer):
                assert set(data) == {0}
            assert data == b""
            await turns(3)
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
            else:
                # Of both, the one that is left is asked of the kernel.
                with contextlib.suppress(OSError):
                    loop.remove_reader(number)
                loop.remove_writer(number)

    loop.run_until_complete(main())


def test_a_watched_socket_that_another_thread_closes_while_the_loop_waits(loop):
    async def main():
        loop.add_reader(ours.fileno(), noop)
        await asyncio.to_thread(end)
        loop.remove_reader(number)

    def end():
        time.sleep(0.02)  # So that the loop is likely to wait.
        ours.close()
        heard.append(heard_by(peer))

    heard = []
    ours, peer = pair()
    number = ours.fileno()
    with peer:
        loop.run_until_complete(main())
    assert heard == [True]


@pytest.mark.parametrize("how", ["sock_accept", "server", "add_reader"])
def test_a_listener_that_is_closed_takes_no_more_connections(loop, how):
    async def main():
        listener = support.tcp_listener()
        address = listener.getsockname()
        number = listener.fileno()
        if how == "sock_accept":
            waiter = loop.create_task(loop.sock_accept(listener))
        elif how == "server":
            server = await loop.create_server(Recorder, sock=listener)
        else:
            loop.add_reader(number, noop)
        await turns(3)
        listener.close()
        with socket.socket() as client, pytest.raises(ConnectionRefusedError):
            client.settimeout(PATIENCE_S)
            client.connect(address)
        if how == "sock_accept":
            waiter.cancel()
            await asyncio.wait([waiter])
        elif how == "server":
            with contextlib.suppress(ValueError):  # It asks the closed listener for its number.
                server.close()
        else:
            loop.remove_reader(number)

    loop.run_until_complete(main())


async def connection(loop, sock):
    return await loop.create_connection(Recorder, sock=sock)


async def accepted(loop, sock):
    return await loop.connect_accepted_socket(Recorder, sock)


async def unix_connection(loop, sock):
    return await loop.create_unix_connection(Recorder, sock=sock)


async def streams(loop, sock):
    reader, writer = await asyncio.open_connection(sock=sock)
    return writer.transport, (reader, writer)


@pytest.mark.parametrize("paused", [False, True], ids=["reading", "paused"])
@pytest.mark.parametrize("make", [connection, accepted, unix_connection, streams], ids=lambda make: make.__name__)
def test_a_transports_socket_that_its_owner_closes_is_let_go_of(loop, make, paused):
    async def main():
        ours, peer = pair()
        transport, kept = await make(loop, ours)
        await turns(3)
        if paused:
            transport.pause_reading()
        with peer:
            ours.close()
            assert heard_by(peer)
            await turns(3)
            transport.abort()
            await turns(3)
            del kept

    loop.run_until_complete(main())


def test_the_socket_of_a_tls_transport_that_its_owner_closes_is_let_go_of(loop):
    async def main():
        server_context, client_context = tls_contexts()
        ours, theirs = pair()
        protocol, server = Recorder(), Recorder()
        (transport, _), _ = await asyncio.gather(
            loop.create_connection(lambda: protocol, sock=ours, ssl=client_context, server_hostname="server.test"),
            loop.connect_accepted_socket(lambda: server, theirs, ssl=server_context),
        )
        await turns(20)
        ours.close()
        await until(lambda: server.lost)
        transport.abort()
        await until(lambda: protocol.lost)

    loop.run_until_complete(main())


def test_the_port_of_a_datagram_socket_that_its_owner_closes_is_free(loop):
    async def main():
        ours = udp_socket()
        address = ours.getsockname()
        transport, protocol = await loop.create_datagram_endpoint(DatagramRecorder, sock=ours)
        await turns(3)
        ours.close()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
            other.bind(address)
        transport.abort()
        await until(lambda: protocol.lost)

    loop.run_until_complete(main())


# ---- numbers that come back


@pytest.mark.ringloop_only
@pytest.mark.parametrize("way", ["closed and reused", "closed, kept and reused"])
@pytest.mark.parametrize("method", ["add_reader", "add_writer"])
def test_who_waited_for_a_closed_descriptor_hears_nothing_of_the_next_one(loop, method, way):
    """asyncio never asks the kernel for a number that it believes to be watched: the second callback is not called either."""
    ours, peer = pair()
    trace = []
    loop.add_reader(ours, trace.append, "stale reader")
    fill(ours)
    loop.add_writer(ours, trace.append, "stale writer")
    run_turns(loop, 2)
    with peer, parted(way, ours) as stranger:
        number = stranger.copies[0]
        stranger.far.send(b"private")
        run_turns(loop, 3)
        assert trace == []
        getattr(loop, method)(number, trace.append, "new")
        run_turns(loop, 3)
        assert set(trace) == {"new"}
        assert loop.remove_reader(number) is (method == "add_reader")
        assert loop.remove_writer(number) is (method == "add_writer")
        while received(peer):
            pass
        trace.clear()
        run_turns(loop, 3)
        assert trace == []


@pytest.mark.ringloop_only
@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_operation_whose_number_became_a_connections_leaves_that_alone(loop, operation):
    """asyncio's connection hears nothing: its loop takes the number for one that is watched already."""

    async def main():
        ours, peer = pair()
        method, arguments, sends = operations(loop, ours)[operation]
        if sends:
            fill(ours)
        task = loop.create_task(method(*arguments))
        await turns(3)
        with peer, parted("closed and reused", ours) as stranger:
            sock = socket.socket(fileno=stranger.copies.pop())
            protocol = Recorder()
            transport, _ = await loop.create_connection(lambda: protocol, sock=sock)
            stranger.far.send(b"one")
            await until(lambda: protocol.data == b"one")
            task.cancel()
            await asyncio.wait([task])
            stranger.far.send(b"two")
            await until(lambda: protocol.data == b"onetwo")
            transport.close()
            await until(lambda: protocol.lost)

    loop.run_until_complete(main())


@pytest.mark.parametrize("end", ["close", "abort"])
def test_a_transport_that_ends_leaves_alone_who_has_its_number(loop, end):
    async def main():
        ours, peer, protocol, transport = await lend(loop)
        trace = []
        with peer, parted("closed and reused", ours) as stranger:
            getattr(transport, end)()
            loop.add_reader(stranger.copies[0], trace.append, "read")
            await until(lambda: protocol.lost)
            await turns(3)
            assert trace == []
            stranger.far.send(b"x")
            await until(lambda: trace)
            assert loop.remove_reader(stranger.copies[0])

    loop.run_until_complete(main())


@pytest.mark.ringloop_only
def test_a_transport_that_still_has_something_to_send_leaves_alone_who_has_its_number(loop):
    """asyncio refuses to watch the number for as long."""

    async def main():
        ours, peer, protocol, transport = await lend(loop)
        fill(ours)
        transport.write(b"secret")
        transport.close()
        trace = []
        with peer, parted("closed and reused", ours) as stranger:
            loop.add_reader(stranger.copies[0], trace.append, "read")
            transport.abort()
            await until(lambda: protocol.lost)
            stranger.far.send(b"x")
            await until(lambda: trace)
            assert loop.remove_reader(stranger.copies[0])

    loop.run_until_complete(main())


@pytest.mark.parametrize("kind", ["stream", "datagram"])
def test_the_number_of_a_transport_is_its_own_when_its_predecessor_ends(loop, kind):
    async def make(sock):
        protocol = DatagramRecorder() if kind == "datagram" else Recorder()
        if kind == "datagram":
            return await loop.create_datagram_endpoint(lambda: protocol, sock=sock)
        return await loop.create_connection(lambda: protocol, sock=sock)

    def new():
        if kind == "datagram":
            return udp_socket()
        ours, peer = pair()
        peers.append(peer)
        return ours

    async def main():
        first = new()
        number = first.fileno()
        old, old_protocol = await make(first)
        await turns(3)
        first.close()
        old.abort()
        # It has not heard yet that it is lost when the next one has its number.
        second = new()
        if second.fileno() != number:
            os.dup2(second.fileno(), number, inheritable=False)
            second.close()
            second = socket.socket(fileno=number)
        transport, protocol = await make(second)
        await until(lambda: old_protocol.lost)
        await turns(3)
        with pytest.raises(RuntimeError, match="is used by transport"):
            loop.add_reader(number, noop)
        transport.abort()
        await until(lambda: protocol.lost)
        with pytest.raises(OSError):
            loop.add_reader(number, noop)

    peers = []
    loop.run_until_complete(main())
    for peer in peers:
        peer.close()


# ---- no descriptor, or one that is too large


@pytest.mark.parametrize("number", [10**6, 10**7, 10**8, 2**31 - 2, 2**31 - 1, 2**31, 2**63, -(2**40)])
def test_numbers_that_no_file_has(loop_factory, number):
    def body(loop):
        methods = (loop.add_reader, loop.add_writer)
        results = [outcome_of(method, number, noop) for method in methods]
        return results + [outcome_of(method, number) for method in (loop.remove_reader, loop.remove_writer)]

    same_as_asyncio(body, loop_factory)


def test_a_number_that_no_file_has_takes_no_memory(arm):
    """The peak of a child's memory, before and after: a table by number would take 80 MB."""
    source = """
        import resource
        def peak_kb():
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        loop = new_loop()
        before = peak_kb()
        for number in (10**7, 10**8, 2**31 - 2):
            for method in (loop.add_reader, loop.add_writer):
                try:
                    method(number, print)
                except OSError as error:
                    print(error.errno)
        loop.close()
        assert peak_kb() - before < 10_000, peak_kb() - before
    """
    child = support.run_child(source, arm)
    assert (child.returncode, child.stdout.split()) == (0, [str(errno.EBADF)] * 6), child.stderr


@pytest.mark.parametrize("recorder", [Recorder, BufferedRecorder, DatagramRecorder], ids=lambda it: it.__name__)
def test_a_protocol_factory_that_closes_its_socket(loop_factory, recorder):
    def body(loop):
        contexts = capture_contexts(loop)
        is_datagram = recorder is DatagramRecorder

        async def main():
            ours, peer = pair() if not is_datagram else (udp_socket(), udp_socket())
            other, other_peer = pair()
            other_transport, other_protocol = await loop.create_connection(Recorder, sock=other)

            def factory():
                ours.close()
                return recorder()

            with peer, other_peer:
                make = loop.create_datagram_endpoint if is_datagram else loop.create_connection
                transport, protocol = await make(factory, sock=ours)
                await turns(3)
                extra = [transport.get_extra_info(name, "none") for name in ("sockname", "peername")]
                state = [transport.is_closing(), extra, told(protocol), [repr(it["exception"]) for it in contexts]]
                if type(loop).__module__.startswith("asyncio"):
                    # No method of it works: each asks for the number, which is none.
                    transport._sock = None
                else:
                    transport.sendto(b"x", peer.getsockname()) if is_datagram else transport.write(b"x")
                    transport.abort()
                    await until(lambda: protocol.lost)
                    errors = [event[1] for event in protocol.events if event[1:] not in ((), (None,))]
                    assert [error.errno for error in errors] == [errno.EBADF]
                # Whoever else has a descriptor still has it.
                with pytest.raises(RuntimeError, match="is used by transport"):
                    loop.add_reader(other.fileno(), noop)
                other_peer.send(b"data")
                await until(lambda: other_protocol.data == b"data")
                other_transport.abort()
                await until(lambda: other_protocol.lost)
                return state

        return loop.run_until_complete(main())

    is_closing, _, events, errors = same_as_asyncio(body, loop_factory)
    assert not is_closing
    assert events == [("connection_made",)]
    assert errors == ["ValueError('Invalid file descriptor: -1')"]


# asyncio's transport can't say which one it is that was not closed.
@pytest.mark.filterwarnings("ignore:.*_SelectorTransport.__del__:pytest.PytestUnraisableExceptionWarning")
def test_a_protocol_factory_that_closes_its_tcp_socket(loop_factory):
    """Here the first thing that a transport asks of its socket, to send without delay, is an error."""

    def body(loop):
        async def main():
            ours, peer = support.tcp_pair()

            def factory():
                ours.close()
                return Recorder()

            with peer:
                try:
                    await loop.create_connection(factory, sock=ours)
                except OSError as error:
                    return repr(error)

        with support.resource_warnings():
            return loop.run_until_complete(main())

    assert same_as_asyncio(body, loop_factory) == "OSError(9, 'Bad file descriptor')"


# ---- transports that live on


@pytest.mark.parametrize("action", ["write", "writelines", "write_eof", "resume_reading", "close", "abort", "sendto"])
def test_a_transport_that_outlives_its_finalizer_has_no_descriptor(loop_factory, action):
    """Whoever gets hold of it by the warning that it was not closed."""

    def body(loop):
        is_datagram = action == "sendto"

        async def main():
            stranger = Stranger()
            ours, peer = (udp_socket(), udp_socket()) if is_datagram else pair()
            number = ours.fileno()
            if is_datagram:
                ours.connect(peer.getsockname())
                transport, protocol = await loop.create_datagram_endpoint(DatagramRecorder, sock=ours)
            else:
                transport, protocol = await loop.create_connection(Recorder, sock=ours)
                protocol.transport = None
            await turns(3)
            transport.pause_reading()
            del ours
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                del transport
                gc.collect()
            sources = [it.source for it in caught if "unclosed transport" in str(it.message)]
            caught.clear()
            with peer:
                with pytest.raises(OSError):
                    os.fstat(number)
                stranger.take(number)
                (transport,) = sources
                arguments = {"write": [b"secret"], "writelines": [[b"secret"]], "sendto": [b"secret"]}.get(action, [])
                result = None
                if action != "resume_reading":
                    result = outcome_of(getattr(transport, action), *arguments)
                await turns(3)
                state = stranger.state()
                transport.abort()
                await until(lambda: protocol.lost)
                stranger.close()
                return result, state, told(protocol)

        return loop.run_until_complete(main())

    _, state, _ = same_as_asyncio(body, loop_factory)
    assert state == (None, None)


# ---- files that are closed before they are removed


class File:
    """A file object whose number goes when it is closed."""

    def __init__(self, number):
        self.number = number

    def fileno(self):
        return self.number


@pytest.mark.parametrize("error", [ValueError, TypeError, AttributeError, -1], ids=str)
@pytest.mark.parametrize("kinds", ["r", "w", "rw"])
def test_a_closed_file_is_removed_by_the_object_that_was_added(loop_factory, kinds, error):
    def body(loop):
        class Closing(File):
            def fileno(self):
                if self.number is not None:
                    return self.number
                if error == -1:
                    return -1
                raise error("closed")

        ours, peer = pair()
        file = Closing(ours.fileno())
        if "r" in kinds:
            loop.add_reader(file, noop)
        if "w" in kinds:
            loop.add_writer(file, noop)
        run_turns(loop, 2)
        file.number = None
        ours.close()
        peer.close()
        methods = (loop.remove_reader, loop.remove_writer, loop.remove_reader)
        results = [outcome_of(method, file) for method in methods]
        # Without what tells one object from another.
        return [it.partition("object at")[0] if isinstance(it, str) else it for it in results]

    results = same_as_asyncio(body, loop_factory)
    # Where `fileno` raises, asyncio does not get as far as to look for the object.
    assert True in results or error != -1 or kinds == "rw"


def test_a_closed_socket_is_removed_by_itself(loop_factory):
    def body(loop):
        ours, peer = pair()
        loop.add_reader(ours, noop)
        run_turns(loop, 2)
        ours.close()
        peer.close()
        again = outcome_of(loop.add_reader, ours, noop)
        changed = outcome_of(loop._selector.get_key, ours)
        results = [again, changed.fileobj is ours, loop.remove_reader(ours), outcome_of(loop.remove_reader, ours)]
        unknown, _ = pair()
        _.close()
        unknown.close()
        return [*results, outcome_of(loop.remove_writer, unknown).partition(":")[0]]

    same_as_asyncio(body, loop_factory)


def test_a_closed_socket_that_is_removed_leaves_alone_who_has_its_number(loop):
    async def main():
        ours, peer = pair()
        loop.add_reader(ours, noop)
        await turns(2)
        with peer, parted("closed and reused", ours) as stranger:
            assert loop.remove_reader(ours)
            trace = []
            loop.add_reader(stranger.copies[0], trace.append, "read")
            stranger.far.send(b"x")
            await until(lambda: trace)
            with pytest.raises(ValueError):
                loop.remove_reader(ours)
            assert loop.remove_reader(stranger.copies[0])

    loop.run_until_complete(main())


def test_a_file_is_kept_for_as_long_as_it_is_watched(loop):
    ours, peer = pair()
    reference = weakref.ref(ours)
    number = ours.fileno()
    trace = []
    with peer:
        loop.add_reader(ours, trace.append, "read")
        del ours
        gc.collect()
        assert reference() is not None
        peer.send(b"x")
        run_turns(loop, 3)
        assert trace
        with pytest.warns(ResourceWarning, match="unclosed <socket"):
            loop.remove_reader(number)
            gc.collect()
        assert reference() is None


def test_a_cycle_through_a_watched_file(new_loop):
    class Holder(File):
        pass

    loop = new_loop()
    reading, writing = os.pipe()
    file = Holder(reading)
    file.loop = loop
    loop.add_reader(file, noop)
    reference = weakref.ref(file)
    loop.close()
    del file
    gc.collect()
    assert reference() is None
    os.close(reading)
    os.close(writing)


@pytest.mark.ringloop_only
def test_the_descriptor_of_a_socket_is_read_as_its_method_tells_it():
    import ringloop._core as core

    class Derived(socket.socket):
        def fileno(self):
            raise AssertionError("not asked")

    for make in (socket.socket, Derived):
        sock = make(socket.AF_INET, socket.SOCK_DGRAM)
        number = socket.socket.fileno(sock)
        assert number >= 0
        assert core._socket_descriptor(sock) == (number, number)
        sock.close()
        assert core._socket_descriptor(sock) == (-1, -1)
        sock = make()
        os.close(sock.detach())
        assert core._socket_descriptor(sock) == (-1, -1)
    assert core._socket_descriptor(make.__new__(make)) == (-1, -1)
    for other in (None, 5, File(5)):
        with contextlib.suppress(TypeError):
            assert core._socket_descriptor(other)[0] is None


# ---- errors that a direct write meets


def test_the_error_of_a_direct_write_has_its_number(loop_factory):
    def body(loop):
        async def main():
            ours, peer = pair()
            protocol = Recorder()
            transport, _ = await loop.create_connection(lambda: protocol, sock=ours)
            transport.pause_reading()
            peer.close()
            transport.write(b"x")
            await until(lambda: protocol.lost)
            return type(protocol.error), protocol.error.errno, str(protocol.error)

        return loop.run_until_complete(main())

    assert same_as_asyncio(body, loop_factory)[:2] == (BrokenPipeError, errno.EPIPE)


# ---- from other threads, while the loop waits


def in_another_thread(function, *arguments):
    """Call a function in another thread, when the loop is likely to wait; wait for its result in this one's loop."""

    def later():
        time.sleep(0.01)
        return outcome_of(function, *arguments)

    return asyncio.to_thread(later)


def test_another_thread_adds_and_removes_while_the_loop_waits(loop):
    async def once(ours, peer):
        trace = []
        assert await in_another_thread(loop.add_reader, ours, trace.append, "read") is None
        assert trace == []
        peer.send(b"x")
        await until(lambda: trace)
        ours.recv(10)
        assert await in_another_thread(loop.remove_reader, ours) is True
        assert await in_another_thread(loop.remove_reader, ours) is False
        trace.clear()
        assert await in_another_thread(loop.add_writer, ours, trace.append, "write") is None
        await until(lambda: trace)
        assert await in_another_thread(loop.remove_writer, ours) is True

    async def main():
        ours, peer = pair()
        with ours, peer:
            for _ in range(5):
                await once(ours, peer)

    loop.run_until_complete(main())


def test_what_another_thread_adds_ends_the_wait_of_a_loop_that_has_nothing_else_to_do(loop):
    """Nothing but the descriptor itself wakes it: neither a timer nor a callback from that thread."""

    async def main():
        event = asyncio.Event()

        def ready():
            assert threading.get_ident() == own
            loop.remove_reader(reading)
            event.set()

        own = threading.get_ident()
        reading, writing = os.pipe()
        os.write(writing, b"x")
        thread = support.BackgroundThread(lambda: (time.sleep(0.02), loop.add_reader(reading, ready)))
        await event.wait()
        thread.result()
        thread = support.BackgroundThread(lambda: (time.sleep(0.02), loop.add_writer(writing, written)))
        event.clear()

        def written():
            loop.remove_writer(writing)
            event.set()

        await event.wait()
        thread.result()
        os.close(reading)
        os.close(writing)

    loop.run_until_complete(main())


def test_another_thread_is_told_of_errors(loop_factory):
    def body(loop):
        async def main():
            ours, peer = pair()
            transport, protocol = await loop.create_connection(Recorder, sock=ours)
            await turns(3)
            with tempfile.TemporaryFile() as file, peer:
                results = []
                for method in (loop.add_reader, loop.add_writer):
                    for bad in (10**6, -1, "text", file.fileno()):
                        results.append(await in_another_thread(method, bad, noop))
                    used = await in_another_thread(method, ours.fileno(), noop)
                    results.append(used.partition(" is used by")[0].partition("descriptor")[0])
                transport.abort()
                await until(lambda: protocol.lost)
                return results

        return loop.run_until_complete(main())

    results = same_as_asyncio(body, loop_factory)
    assert all(isinstance(result, str) for result in results)


@pytest.mark.ringloop_only
def test_threads_that_add_and_remove_all_the_time(loop):
    """Each its own descriptors, which are used again and again; and none loses an arrival, as happens under asyncio."""

    def work():
        for number in range(100):
            ours, peer = pair()
            arrived = threading.Event()
            with ours, peer:
                loop.add_reader(ours, arrived.set)
                peer.send(b"x")
                assert arrived.wait(PATIENCE_S), number
                assert loop.remove_reader(ours)

    async def main():
        await asyncio.gather(*(asyncio.to_thread(work) for _ in range(3)))

    loop.run_until_complete(main())


# ---- passing descriptors on


def test_a_socket_that_was_passed_on_and_closed_here_is_let_go_of(loop):
    """Its file lives on elsewhere, and so may its registration: nobody here hears of that."""

    async def main():
        ours, peer = pair()
        carrier, receiver = pair()
        trace = []
        loop.add_reader(ours, trace.append, "stale")
        await turns(2)
        with carrier, receiver, peer:
            carrier.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [ours.fileno()]))])
            assert loop.remove_reader(ours)
            ours.close()
            peer.send(b"data")
            await turns(5)
            _, ancillary, _, _ = receiver.recvmsg(1, socket.CMSG_SPACE(4))
            (number,) = struct.unpack("i", ancillary[0][2])
            with socket.socket(fileno=number) as passed:
                assert passed.recv(10) == b"data"
        assert trace == []

    loop.run_until_complete(main())


def test_descriptors_run_out_and_come_back(loop):
    """What is refused for want of descriptors leaves nothing behind."""

    async def main():
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        ours, peer = pair()
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(number for number, _ in support.open_descriptors()) + 1, hard))
        try:
            held = []
            with contextlib.suppress(OSError):
                while True:
                    held.append(os.dup(0))
            trace = []
            loop.add_reader(ours, trace.append, "read")
            peer.send(b"x")
            await turns(3)
            assert trace
            assert loop.remove_reader(ours)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for number in held:
                os.close(number)
        ours.close()
        peer.close()

    loop.run_until_complete(main())
