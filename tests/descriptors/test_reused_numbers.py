"""Descriptor numbers that are used again, that no file has, or that are too large."""

import asyncio
import errno
import os
import socket

import pytest

import support
from datagram_support import DatagramRecorder
from descriptor_support import (
    OPERATIONS,
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
from support import BufferedRecorder, Recorder, capture_contexts, noop, run_turns, same_as_asyncio, turns, until

pytestmark = pytest.mark.exact


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
    run_turns(loop, 4)
    with peer, parted(way, ours) as stranger:
        number = stranger.copies[0]
        stranger.far.send(b"private")
        run_turns(loop, 5)
        assert trace == []
        getattr(loop, method)(number, trace.append, "new")
        run_turns(loop, 5)
        assert set(trace) == {"new"}
        assert loop.remove_reader(number) is (method == "add_reader")
        assert loop.remove_writer(number) is (method == "add_writer")
        while received(peer):
            pass
        trace.clear()
        run_turns(loop, 5)
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


# No descriptor, or one that is too large


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
