"""Transports and operations whose socket is closed, detached or replaced behind the loop's back.

A descriptor's number says nothing about the file behind it. What was written to a connection, or waited for on it, must not reach
another one that has got its number.
"""

import asyncio
import contextlib
import errno
import functools
import gc
import os
import sys
import tempfile
import warnings

import pytest

from datagram_support import DatagramRecorder
from descriptor_support import (
    OPERATIONS,
    Stranger,
    end,
    fill,
    lend,
    operations,
    outcome_of,
    pair,
    parted,
    received,
    told,
    udp_socket,
)
from support import BufferedRecorder, Recorder, capture_contexts, noop, same_as_asyncio, turns, until
from tls_support import tls_contexts

pytestmark = pytest.mark.exact

WAYS = ("closed", "closed and reused", "closed, kept and reused", "detached", "detached and reused", "exchanged")


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
        protocol.on_datagram = lambda _, data: peer.sendto(data, address) if data != b"last" else None
        peer.sendto(b"first", address)
        await turns(20)
        protocol.on_datagram = None
        await turns(20)
        with contextlib.ExitStack() as stack:
            stack.enter_context(peer)
            strangers = []

            def part(*_):
                protocol.on_datagram = None
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


# Operations on sockets


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


# Transports that live on


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


# Errors that a direct write meets


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
