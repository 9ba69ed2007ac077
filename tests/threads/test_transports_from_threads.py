"""Transports that other threads use while the loop runs: the loop's thread does what they ask, in the order in which they ask.

asyncio leaves open what happens then. With the GIL, ringloop does too: each thread acts itself, as under asyncio. The peers are blocking
sockets of other threads, because one of the same loop would only act between two of its steps.
"""

import asyncio
import contextlib
import functools
import os
import socket
import struct

import pytest

import support
import tls_support
from thread_support import at_once, rounds, running_in_a_thread, until

pytestmark = [pytest.mark.examples, pytest.mark.ringloop_only]

HEADER = struct.Struct("!BII")
SIZES = (0, 1, 100, 70_000)


@pytest.fixture(autouse=True)
def without_the_gil():
    if support.has_gil():
        pytest.skip("with the GIL, each thread acts itself")


class Listener(asyncio.Protocol):
    """Counts what it hears; made to be asked by other threads."""

    def __init__(self):
        self.heard, self.ends, self.lost = bytearray(), 0, []

    def data_received(self, data):
        self.heard += data

    def datagram_received(self, data, _address):
        self.heard += data

    def eof_received(self):
        self.ends += 1

    def connection_lost(self, error):
        self.lost.append(error)


def call(loop, function, *arguments):
    """Run a coroutine function in the loop of another thread, and return its result."""
    return asyncio.run_coroutine_threadsafe(function(*arguments), loop).result(support.PATIENCE_S)


async def wrap(loop, sock, protocol):
    sock.setblocking(False)
    transport, _ = await loop.create_connection(lambda: protocol, sock=sock)
    return transport


def stream_pair(loop, protocol):
    """Return a transport whose socket the user has passed in, and its blocking peer."""
    ours, peer = socket.socketpair()
    peer.settimeout(support.PATIENCE_S)
    return call(loop, wrap, loop, ours, protocol), peer


@contextlib.contextmanager
def connecting(loop):
    """Yield a function as `stream_pair`, whose sockets are the loop's own."""
    with socket.create_server((support.HOST, 0)) as listener:

        def connect(loop, protocol):
            async def begin():
                transport, _ = await loop.create_connection(lambda: protocol, *listener.getsockname())
                return transport

            transport = call(loop, begin)
            peer, _ = listener.accept()
            peer.settimeout(support.PATIENCE_S)
            return transport, peer

        yield connect


@contextlib.contextmanager
def lending(_loop):
    yield stream_pair


sockets = pytest.mark.parametrize("sockets", [lending, connecting], ids=["lent", "own"])


def record(who, number):
    size = SIZES[number % len(SIZES)]
    return HEADER.pack(who, number, size) + bytes([who]) * size


def check_records(data, counts):
    """Assert that the records of each writer are complete, and in its order."""
    seen, at = [0] * len(counts), 0
    while at < len(data):
        who, number, size = HEADER.unpack_from(data, at)
        at += HEADER.size
        assert number == seen[who], f"writer {who}"
        assert data[at : at + size] == bytes([who]) * size
        seen[who] += 1
        at += size
    assert seen == counts


def read_all(sock):
    data = bytearray()
    while piece := sock.recv(1 << 16):
        data += piece
    return data


def write_records(transport, who, count):
    """Write by turns in all ways that there are. A buffer that was passed belongs to its owner again at once."""
    for number in range(count):
        data = record(who, number)
        if number % 3 == 0:
            transport.write(data)
        elif number % 3 == 1:
            buffer = bytearray(data)
            transport.write(memoryview(buffer))
            buffer[:] = bytes(len(buffer))
        else:
            pieces = [data[:5], bytearray(data[5:9]), memoryview(data)[9:]]
            transport.writelines(iter(pieces))
            pieces[1][:] = b"????"


@pytest.mark.parametrize("way", ["transport", "writer", "tls"])
def test_what_threads_write_arrives_in_their_order(loop, way):
    """Beside writes of the loop's own. What is written before a close arrives."""
    count = rounds(300)

    def in_the_loop(transport, number=0):
        if number < count:
            transport.write(record(0, number))
            loop.call_soon(in_the_loop, transport, number + 1)

    async def open_streams(sock):
        sock.setblocking(False)
        return (await asyncio.open_connection(sock=sock))[1]

    async def open_tls(sock):
        context = tls_support.server_context()
        sock.setblocking(False)
        transport, _ = await loop.connect_accepted_socket(Listener, sock, ssl=context)
        return transport

    ours, peer = socket.socketpair()
    peer.settimeout(support.PATIENCE_S)
    with running_in_a_thread(loop):
        if way == "tls":
            client = functools.partial(tls_support.client_context().wrap_socket, peer, server_hostname=tls_support.NAME)
            wrapped = support.BackgroundThread(client)
            transport = call(loop, open_tls, ours)
            peer = wrapped.result()
        elif way == "writer":
            transport = call(loop, open_streams, ours)
        else:
            transport = call(loop, wrap, loop, ours, Listener())
        with peer:
            reader = support.BackgroundThread(read_all, peer)
            loop.call_soon_threadsafe(in_the_loop, transport)
            at_once(*(functools.partial(write_records, transport, who, count) for who in (1, 2)))
            call(loop, support.turns, count + 2)
            transport.write(record(1, count))
            transport.close()
            assert transport.is_closing()
            check_records(reader.result(), [count, count + 1, count])
        if way == "writer":
            call(loop, transport.wait_closed)


@pytest.mark.parametrize("end", ["close", "abort"])
@sockets
def test_connections_that_threads_end_while_the_loop_reads(loop, sockets, end):
    """Each hears of its end once, though nothing but that wakes the loop, and the next one that gets the number of its socket reads."""

    def work(make):
        for number in range(rounds(100)):
            protocol = Listener()
            transport, peer = make(loop, protocol)
            with peer:
                peer.sendall(b"x" * 1000)
                until(lambda: len(protocol.heard) == 1000, "what was sent")
                if number % 2:
                    peer.sendall(b"y" * 100_000)
                getattr(transport, end)()
                assert transport.is_closing()
                transport.close()
                transport.write(b"too late")
                until(lambda: protocol.lost, "connection_lost")
                with contextlib.suppress(ConnectionResetError):
                    assert peer.recv(1) == b""
            call(loop, support.turns, 2)
            assert protocol.lost == [None]

    with running_in_a_thread(loop), sockets(loop) as first, sockets(loop) as second:
        at_once(functools.partial(work, first), functools.partial(work, second))


@sockets
@pytest.mark.filterwarnings("ignore:unclosed transport:ResourceWarning")
def test_connections_that_threads_drop_while_the_loop_waits(loop, sockets):
    """A paused transport that nobody has any more ends in the thread that had it last. Its number is free at once."""

    async def pause(transport):
        transport.pause_reading()

    def work(make):
        for _ in range(rounds(100)):
            transport, peer = make(loop, Listener())
            call(loop, pause, transport)
            del transport
            with peer:
                assert peer.recv(1) == b""
            protocol = Listener()
            transport, peer = make(loop, protocol)
            with peer:
                peer.sendall(b"x")
                until(lambda protocol=protocol: protocol.heard, "what was sent")
                transport.abort()
            until(lambda protocol=protocol: protocol.lost, "connection_lost")

    with running_in_a_thread(loop), sockets(loop) as first, sockets(loop) as second:
        at_once(functools.partial(work, first), functools.partial(work, second))


@sockets
def test_a_thread_that_pauses_and_resumes(loop, sockets):
    count = rounds(300)
    with running_in_a_thread(loop), sockets(loop) as make:
        protocol = Listener()
        transport, peer = make(loop, protocol)

        def send():
            for number in range(count):
                peer.sendall(struct.pack("!I", number) * 100)

        def pause():
            for _ in range(count):
                transport.pause_reading()
                transport.resume_reading()

        with peer:
            at_once(send, pause)
            until(lambda: len(protocol.heard) == 400 * count, "what was sent")
            assert protocol.heard == b"".join(struct.pack("!I", number) * 100 for number in range(count))
            for _ in range(5):
                transport.pause_reading()
                call(loop, support.turns, 1)
                assert not transport.is_reading()
                before = len(protocol.heard)
                peer.sendall(b"x")
                call(loop, support.looks)
                assert len(protocol.heard) == before
                transport.resume_reading()
                until(lambda before=before: len(protocol.heard) == before + 1)
            transport.close()
            until(lambda: protocol.lost)


def test_the_protocol_that_a_thread_sets_gets_what_is_sent_then(loop):
    with running_in_a_thread(loop):
        protocol = Listener()
        transport, peer = stream_pair(loop, protocol)
        with peer:
            for number in range(rounds(100)):
                following = Listener()
                transport.set_protocol(following)
                call(loop, support.turns, 1)
                assert transport.get_protocol() is following
                peer.sendall(b"%d" % number)
                until(lambda following=following, number=number: following.heard == b"%d" % number)
            assert protocol.heard == b""
            transport.close()
            until(lambda: following.lost)


def test_the_end_of_writing_comes_after_what_was_written(loop):
    contexts = support.capture_contexts(loop)
    with running_in_a_thread(loop):
        protocol = Listener()
        transport, peer = stream_pair(loop, protocol)
        with peer:
            reader = support.BackgroundThread(read_all, peer)
            transport.set_write_buffer_limits(high=1000)
            write_records(transport, 0, 50)
            transport.write_eof()
            transport.write_eof()
            check_records(reader.result(), [50])
            assert contexts == []
            transport.write(b"x")  # Only the loop's thread finds out.
            transport.writelines([b"x"])
            until(lambda: len(contexts) == 2)
            assert [type(each["exception"]) for each in contexts] == [RuntimeError] * 2
            assert transport.get_write_buffer_limits() == (250, 1000)
            transport.close()
            until(lambda: protocol.lost)


def test_wrong_arguments_are_refused_at_once(loop):
    contexts = support.capture_contexts(loop)

    async def datagrams():
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.bind((support.HOST, 0))
        address = sock.getsockname()
        sock.close()
        transport, _ = await loop.create_datagram_endpoint(Listener, remote_addr=address)
        return transport

    async def pipe(number):
        transport, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, os.fdopen(number, "wb", 0))
        return transport

    with running_in_a_thread(loop):
        stream, peer = stream_pair(loop, Listener())
        reading, writing = os.pipe()
        with peer, os.fdopen(reading):
            for transport in (stream, call(loop, datagrams), call(loop, pipe, writing)):
                with pytest.raises(ValueError, match="must be >="):
                    transport.set_write_buffer_limits(high=1, low=2)
                write = getattr(transport, "sendto", transport.write)
                if transport.__class__.__name__ == "_UnixWritePipeTransport":
                    with pytest.raises(AssertionError):
                        write("text")
                else:
                    with pytest.raises(TypeError):
                        write("text")
                released = support.released_view()
                with pytest.raises(ValueError, match="released"):
                    write(released)
                if transport is stream:
                    with pytest.raises(TypeError):
                        transport.writelines([b"not sent", "text"])
                    with pytest.raises(TypeError):
                        transport.writelines(5)
                elif hasattr(transport, "sendto"):
                    with pytest.raises(ValueError, match="None or"):
                        transport.sendto(b"x", ("192.0.2.1", 1))
                transport.abort()
                assert transport.is_closing()
            assert peer.recv(1) == b""
        call(loop, support.turns, 3)
    assert contexts == []


@pytest.mark.parametrize("end", ["close", "abort"])
def test_datagrams_of_threads_leave_in_their_order(loop, end):
    count = rounds(500)

    async def begin(sock):
        transport, _ = await loop.create_datagram_endpoint(lambda: protocol, sock=sock)
        return transport

    pair = [socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(2)]
    for sock in pair:
        sock.bind("")
    ours, peer = pair
    ours.connect(peer.getsockname())
    peer.connect(ours.getsockname())
    peer.settimeout(support.PATIENCE_S)
    ours.setblocking(False)

    def send(who):
        buffer = bytearray(HEADER.size)
        for number in range(count):
            HEADER.pack_into(buffer, 0, who, number, 0)
            transport.sendto(buffer)

    def receive(datagrams):
        return b"".join(peer.recv(1 << 16) for _ in range(datagrams))

    with running_in_a_thread(loop), peer:
        protocol = Listener()
        transport = call(loop, begin, ours)
        reader = support.BackgroundThread(receive, 2 * count)
        at_once(*(functools.partial(send, who) for who in (0, 1)))
        check_records(reader.result(), [count, count])
        for number in range(rounds(100)):
            # The kernel keeps a few datagrams, and a send that waits for room would wait for ever while reading is paused.
            until(lambda number=number: len(protocol.heard) >= number - 5)
            transport.pause_reading()
            peer.send(b"x")
            transport.resume_reading()
        until(lambda: len(protocol.heard) == rounds(100))
        reader = support.BackgroundThread(receive, 1000 if end == "close" else 1)
        for number in range(1000):
            transport.sendto(HEADER.pack(0, number, 0))
        getattr(transport, end)()
        assert transport.is_closing()
        until(lambda: protocol.lost)
        data = reader.result()
        if end == "close":
            check_records(data, [1000])
        call(loop, support.turns, 2)
        assert protocol.lost == [None]


@pytest.mark.parametrize("end", ["close", "write_eof", "abort"])
def test_pipes_that_threads_write_to(loop, end):
    count = rounds(200)

    async def begin(file):
        transport, _ = await loop.connect_write_pipe(lambda: protocol, file)
        return transport

    def read(file):
        with file:
            return file.read()

    with running_in_a_thread(loop):
        reading, writing = os.pipe()
        protocol = Listener()
        transport = call(loop, begin, os.fdopen(writing, "wb", 0))
        reader = support.BackgroundThread(read, os.fdopen(reading, "rb"))

        def write(who):
            for number in range(count):
                buffer = bytearray(record(who, number))
                transport.write(buffer)
                buffer[:] = bytes(len(buffer))

        at_once(*(functools.partial(write, who) for who in (0, 1)))
        getattr(transport, end)()
        assert transport.is_closing()
        until(lambda: protocol.lost)
        data = reader.result()
        if end != "abort":
            check_records(data, [count, count])
        call(loop, support.turns, 2)
        assert protocol.lost == [None]


def test_pipes_that_threads_pause_and_close(loop):
    async def begin(file):
        transport, _ = await loop.connect_read_pipe(lambda: protocol, file)
        return transport

    with running_in_a_thread(loop):
        for number in range(rounds(100)):
            reading, writing = os.pipe()
            protocol = Listener()
            transport = call(loop, begin, os.fdopen(reading, "rb", 0))
            with os.fdopen(writing, "wb", 0) as peer:
                peer.write(b"x" * 1000)
                transport.pause_reading()
                peer.write(b"y" * 1000)
                transport.resume_reading()
                until(lambda: protocol.heard == b"x" * 1000 + b"y" * 1000)
                if number % 2:
                    transport.close()
                    assert transport.is_closing()
            # At the same moment as its end, or not.
            transport.close()
            until(lambda: protocol.lost)
            call(loop, support.turns, 2)
            assert protocol.lost == [None]


@pytest.mark.parametrize("end", ["close", "abort"])
def test_tls_connections_that_threads_end_and_pause(loop, end):
    server, client = tls_support.tls_contexts()

    async def begin(sock):
        sock.setblocking(False)
        transport, _ = await loop.connect_accepted_socket(lambda: protocol, sock, ssl=server)
        return transport

    with running_in_a_thread(loop):
        for _ in range(rounds(30)):
            ours, peer = socket.socketpair()
            peer.settimeout(support.PATIENCE_S)
            protocol = Listener()
            wrapping = support.BackgroundThread(
                functools.partial(client.wrap_socket, peer, server_hostname=tls_support.NAME)
            )
            transport = call(loop, begin, ours)
            with wrapping.result() as peer:
                for number in range(20):
                    transport.pause_reading()
                    peer.sendall(b"%02d" % number)
                    transport.resume_reading()
                until(lambda: len(protocol.heard) == 40)
                transport.write(b"last")
                getattr(transport, end)()
                assert transport.is_closing()
                with contextlib.suppress(OSError):
                    data = read_all(peer)
                    assert data == b"last"
            until(lambda: protocol.lost)
            call(loop, support.turns, 2)
            assert len(protocol.lost) == 1


def test_nobody_waits_for_a_loop_that_has_stopped(loop):
    """The thread that asks acts itself then."""
    with running_in_a_thread(loop):
        protocol = Listener()
        transport, peer = stream_pair(loop, protocol)
    with peer:
        transport.write(b"x")
        assert peer.recv(10) == b"x"
        with pytest.raises(TypeError):
            transport.write("text")
        transport.close()
        assert transport.is_closing()
        assert not protocol.lost
        support.run_turns(loop, 3)
        assert protocol.lost == [None]


def test_a_reader_of_a_thread_s_takes_the_place_of_a_waiting_sock_recv(loop):
    """It keeps the place, whatever the operation is doing then: looking in vain, or being cancelled."""

    def work():
        ours, peer = socket.socketpair()
        ours.setblocking(False)
        with ours, peer:
            for number in range(rounds(300)):
                receiving = asyncio.run_coroutine_threadsafe(loop.sock_recv(ours, 10), loop)
                call(loop, support.turns, 1)
                if number % 2:
                    peer.send(b"x")
                    with contextlib.suppress(BlockingIOError):
                        ours.recv(1)
                else:
                    receiving.cancel()
                heard = []
                loop.add_reader(ours, heard.append, None)
                peer.send(b"y")
                until(
                    lambda heard=heard, receiving=receiving: heard or (receiving.done() and not receiving.cancelled())
                )
                receiving.cancel()
                call(loop, support.turns, 2)
                loop.remove_reader(ours)
                with contextlib.suppress(BlockingIOError):
                    while ours.recv(10):
                        pass

    with running_in_a_thread(loop):
        at_once(work, work)
