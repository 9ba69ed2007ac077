"""Sending files over transports and sockets: loop.sendfile and loop.sock_sendfile, natively and with the fallback."""

import asyncio
import gc
import io
import os
import socket
import sys

import pytest

import support
from support import (
    Recorder,
    attach,
    receive_all,
    receive_exactly,
    reset,
    run_child,
    same_as_asyncio,
    tcp_pair,
    until,
)

SIZE = 1 << 20
DATA = bytes(range(256)) * (SIZE // 256)
LARGE = 16 << 20
"""More than a pair of sockets holds: who sends this must wait for the peer."""


@pytest.fixture
def file(tmp_path):
    (tmp_path / "data").write_bytes(DATA)
    with open(tmp_path / "data", "rb") as file:
        yield file


@pytest.fixture
def large_file(tmp_path):
    with open(tmp_path / "large", "w+b") as file:
        file.truncate(LARGE)
        yield file


async def end(protocol):
    """Close the transport of a recording protocol, and wait until it is gone."""
    protocol.transport.close()
    await until(lambda: protocol.lost)


async def over_transport(loop, body):
    """Run `body(loop.sendfile, the transport)`; return (its result, all that the peer received)."""
    protocol = Recorder()
    transport, peer = await attach(loop, protocol)
    with peer:
        received = loop.create_task(receive_all(loop, peer))
        try:
            result = await body(loop.sendfile, transport)
        finally:
            await end(protocol)
        return result, await received


async def over_socket(loop, body):
    """Do the same for `loop.sock_sendfile` and a socket."""
    ours, peer = tcp_pair()
    with peer:
        received = loop.create_task(receive_all(loop, peer))
        with ours:
            result = await body(loop.sock_sendfile, ours)
        return result, await received


@pytest.fixture(params=[over_transport, over_socket])
def over(request):
    """Return both ways to send a file."""
    return request.param


class Unnumbered(io.BytesIO):
    """A file that has no descriptor, as those in memory."""


# What is sent


@pytest.mark.parametrize(
    ("offset", "count"),
    [
        (0, None),
        (1000, None),
        (0, 5000),
        (SIZE - 10, 5000),
        (0, SIZE),
        (0, SIZE * 3),
        (12345, 54321),
        (SIZE, None),
        (SIZE * 2, None),
        (SIZE * 2, 10),
    ],
)
@pytest.mark.parametrize("position", [0, 77])
def test_the_part_asked_for_is_sent(loop_factory, file, over, offset, count, position):
    def body(loop):
        async def send(sendfile, target):
            file.seek(position)
            return await sendfile(target, file, offset, count), file.tell()

        return loop.run_until_complete(over(loop, send))

    (sent, _), received = same_as_asyncio(body, loop_factory)
    expected = DATA[offset:] if count is None else DATA[offset : offset + count]
    assert received == expected
    assert sent == len(expected)


@pytest.mark.parametrize(("offset", "count"), [(0, None), (1000, None), (0, 5000), (12345, 54321), (SIZE - 10, 5000)])
def test_files_in_memory_are_copied(loop_factory, over, offset, count):
    def body(loop):
        source = Unnumbered(DATA)

        async def send(sendfile, target):
            return await sendfile(target, source, offset, count), source.tell()

        return loop.run_until_complete(over(loop, send))

    (sent, _), received = same_as_asyncio(body, loop_factory)
    expected = DATA[offset:] if count is None else DATA[offset : offset + count]
    assert received == expected
    assert sent == len(expected)


def test_an_empty_file(loop_factory, tmp_path, over):
    (tmp_path / "empty").touch()

    def body(loop):
        async def send(sendfile, target):
            with open(tmp_path / "empty", "rb") as source:
                return await sendfile(target, source), await sendfile(target, source, 5), source.tell()

        return loop.run_until_complete(over(loop, send))

    assert same_as_asyncio(body, loop_factory) == ((0, 0, 0), b"")


def test_what_is_not_a_regular_file(loop_factory, over):
    def body(loop):
        async def send(sendfile, target):
            inside, outside = os.pipe()
            with open(inside, "rb", buffering=0) as source, open(outside, "wb", buffering=0) as sink:
                sink.write(b"piped")
                sink.close()
                results = []
                for options in ({}, {"count": 100}, {"count": 100, "fallback": False}):
                    try:
                        results.append(await sendfile(target, source, **options))
                    except Exception as error:
                        results.append((type(error), str(error)))
                return results

        return loop.run_until_complete(over(loop, send))

    same_as_asyncio(body, loop_factory)


def test_a_file_larger_than_the_sockets_hold(loop, large_file, over):
    async def send(sendfile, target):
        return await sendfile(target, large_file)

    assert loop.run_until_complete(over(loop, send)) == (LARGE, bytes(LARGE))


def test_a_file_that_is_cut_on_the_way(loop, large_file):
    async def main():
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)
        with peer:
            sending = loop.create_task(loop.sendfile(transport, large_file, 0, LARGE))
            first = await loop.sock_recv(peer, 1)
            large_file.truncate(SIZE)
            received = loop.create_task(receive_all(loop, peer))
            sent = await sending
            await end(protocol)
            assert sent == len(first) + len(await received) < LARGE

    loop.run_until_complete(main())


def test_over_a_unix_socket(loop, large_file):
    async def main():
        ours, peer = socket.socketpair()
        peer.setblocking(False)
        protocol = Recorder()
        transport, _ = await loop.create_unix_connection(lambda: protocol, sock=ours)
        with peer:
            received = loop.create_task(receive_all(loop, peer))
            assert await loop.sendfile(transport, large_file) == LARGE
            await end(protocol)
            assert await received == bytes(LARGE)

    loop.run_until_complete(main())


def test_many_small_files_one_after_another(loop, file):
    async def send(sendfile, transport):
        for number in range(200):
            assert await sendfile(transport, file, number, 1000 + number) == 1000 + number

    _, received = loop.run_until_complete(over_transport(loop, send))
    assert received == b"".join(DATA[number : 1000 + 2 * number] for number in range(200))


@pytest.mark.ringloop_only
def test_a_transport_sends_natively(loop, file, monkeypatch):
    async def refused(*_arguments):
        raise AssertionError("the fallback")

    monkeypatch.setattr(loop, "_sendfile_fallback", refused, raising=False)

    async def send(sendfile, transport):
        return await sendfile(transport, file, fallback=False)

    assert loop.run_until_complete(over_transport(loop, send)) == (SIZE, DATA)


# Together with what is written


def test_what_was_written_before_goes_first(loop, file):
    async def send(sendfile, transport):
        transport.write(b"b" * LARGE)
        sent = await sendfile(transport, file)
        transport.write(b"after")
        return sent

    sent, received = loop.run_until_complete(over_transport(loop, send))
    assert sent == SIZE
    assert received == b"b" * LARGE + DATA + b"after"


def test_writing_is_refused_meanwhile(loop_factory, large_file):
    def body(loop):
        async def main():
            protocol = Recorder()
            transport, peer = await attach(loop, protocol)
            with peer:
                sending = loop.create_task(loop.sendfile(transport, large_file))
                await loop.sock_recv(peer, 1)
                results = []
                for act in (
                    lambda: transport.write(b"between"),
                    lambda: transport.write(b""),
                    lambda: transport.writelines([b"be", b"tween"]),
                    lambda: transport.get_write_buffer_size(),
                ):
                    try:
                        results.append(act())
                    except RuntimeError as error:
                        results.append(str(error))
                received = loop.create_task(receive_all(loop, peer))
                results.append(await sending)
                transport.write(b"after")
                await end(protocol)
                results.append((await received)[-5:])
                return results

        return loop.run_until_complete(main())

    assert same_as_asyncio(body, loop_factory)[-1] == b"after"


@pytest.mark.ringloop_only  # asyncio fails with a KeyError of its own there.
def test_a_second_file_meanwhile(loop, large_file, file):
    async def main():
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)
        with peer:
            first = loop.create_task(loop.sendfile(transport, large_file))
            await loop.sock_recv(peer, 1)
            with pytest.raises(RuntimeError, match="Empty waiter is already set"):
                await loop.sendfile(transport, file)
            received = loop.create_task(receive_all(loop, peer))
            assert await first == LARGE
            assert transport.is_reading()
            assert await loop.sendfile(transport, file) == SIZE
            await end(protocol)
            assert (await received)[-SIZE:] == DATA

    loop.run_until_complete(main())


@pytest.mark.parametrize("paused", [False, True])
def test_reading_pauses_meanwhile(loop, large_file, paused):
    async def main():
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)
        with peer:
            await support.turns(3)
            if paused:
                transport.pause_reading()
            sending = loop.create_task(loop.sendfile(transport, large_file))
            await receive_exactly(loop, peer, 1)
            assert not transport.is_reading()
            await loop.sock_sendall(peer, b"meanwhile")
            await support.turns(5)
            assert protocol.data == b""
            await receive_exactly(loop, peer, LARGE - 1)
            assert await sending == LARGE
            assert transport.is_reading() is not paused
            if paused:
                transport.resume_reading()
            await until(lambda: protocol.data == b"meanwhile")
            await end(protocol)

    loop.run_until_complete(main())


def test_flow_control_is_not_asked(loop, large_file):
    async def main():
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)
        with peer:
            received = loop.create_task(receive_all(loop, peer))
            await loop.sendfile(transport, large_file)
            await end(protocol)
            await received
        assert protocol.names == ["connection_made", "connection_lost"]

    loop.run_until_complete(main())


# Refusals


@pytest.mark.parametrize(
    "options",
    [
        {"count": 0},
        {"count": -1},
        {"count": "10"},
        {"count": 1.5},
        {"count": 1 << 63},
        {"count": 1 << 70},
        {"offset": -1},
        {"offset": "10"},
        {"offset": 1.5},
        {"offset": None},
    ],
    ids=str,
)
def test_bad_numbers_get_asyncios_answer(loop_factory, file, over, options):
    def body(loop):
        async def send(sendfile, target):
            try:
                # Counts that are too large for the system call are none too large for later asyncios.
                return await sendfile(target, file, **options)
            except (ValueError, TypeError, OverflowError) as refusal:
                # It can be done right after all.
                assert await sendfile(target, file, 10, 100) == 100
                return type(refusal), str(refusal)

        return loop.run_until_complete(over(loop, send))

    same_as_asyncio(body, loop_factory)


def test_bad_files_get_asyncios_exception(loop_factory, tmp_path, over):
    (tmp_path / "text").write_text("text")

    def body(loop):
        async def send(sendfile, target):
            with open(tmp_path / "text") as text, open(tmp_path / "text", "rb") as closed:
                closed.close()
                results = []
                for source in (text, closed, None, object()):
                    for fallback in (True, False):
                        try:
                            results.append(await sendfile(target, source, fallback=fallback))
                        except Exception as error:
                            results.append((type(error), str(error).partition(" object at")[0]))
                return results

        return loop.run_until_complete(over(loop, send))

    same_as_asyncio(body, loop_factory)


def test_without_the_fallback_files_in_memory_are_refused(loop_factory, over):
    def body(loop):
        async def send(sendfile, target):
            with pytest.raises(RuntimeError) as refusal:
                await sendfile(target, Unnumbered(DATA), fallback=False)
            return refusal.type, str(refusal.value)

        return loop.run_until_complete(over(loop, send))

    (kind, _), _ = same_as_asyncio(body, loop_factory)
    assert kind is asyncio.SendfileNotAvailableError


def test_a_closing_transport_is_refused(loop_factory, file):
    def body(loop):
        async def main():
            protocol = Recorder()
            transport, peer = await attach(loop, protocol)
            with peer:
                transport.close()
                with pytest.raises(RuntimeError) as refusal:
                    await loop.sendfile(transport, file)
                await until(lambda: protocol.lost)
                return str(refusal.value)

        return loop.run_until_complete(main())

    assert same_as_asyncio(body, loop_factory) == "Transport is closing"


def test_transports_that_cannot(loop, file):
    async def main():
        inside, outside = os.pipe()
        with open(inside, "rb"), open(outside, "wb", buffering=0) as pipe:
            transport, protocol = await loop.connect_write_pipe(Recorder, pipe)
            with pytest.raises(RuntimeError, match="sendfile is not supported for transport <_UnixWritePipe"):
                await loop.sendfile(transport, file)
            await end(protocol)

    loop.run_until_complete(main())


def test_sock_sendfile_wants_a_stream_that_does_not_block(loop_factory, file):
    def body(loop):
        async def main():
            results = []
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
                datagrams.setblocking(False)
                ours, peer = tcp_pair()
                with ours, peer:
                    ours.setblocking(True)
                    for sock in (datagrams, ours):
                        loop.set_debug(True)
                        with pytest.raises(ValueError) as refusal:
                            await loop.sock_sendfile(sock, file)
                        results.append(str(refusal.value))
            return results

        return loop.run_until_complete(main())

    same_as_asyncio(body, loop_factory)


# Ends on the way


@pytest.mark.ringloop_only  # asyncio waits for ever.
@pytest.mark.parametrize("how", ["close", "abort"])
def test_a_transport_that_is_closed_on_the_way(loop, large_file, how):
    async def main():
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)
        with peer:
            sending = loop.create_task(loop.sendfile(transport, large_file))
            await loop.sock_recv(peer, 1)
            getattr(transport, how)()
            with pytest.raises(ConnectionError, match="Connection is closed by peer"):
                await sending
            received = await receive_all(loop, peer)
            assert 1 + len(received) == large_file.tell() < LARGE
        assert protocol.names == ["connection_made", "connection_lost"]
        assert protocol.error is None

    loop.run_until_complete(main())


@pytest.mark.ringloop_only
def test_a_transport_that_is_aborted_before_the_file_begins(loop, file):
    async def main():
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)
        with peer:
            transport.write(bytes(LARGE))
            sending = loop.create_task(loop.sendfile(transport, file))
            await support.turns(3)
            transport.abort()
            with pytest.raises(ConnectionError, match="Connection is closed by peer"):
                await sending
        assert protocol.lost

    loop.run_until_complete(main())


def test_a_peer_that_resets_on_the_way(loop, large_file):
    async def main():
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)
        sending = loop.create_task(loop.sendfile(transport, large_file))
        await loop.sock_recv(peer, 1)
        reset(peer)
        with pytest.raises(ConnectionError):
            await sending
        # Reading goes on, and finds the end.
        await until(lambda: protocol.lost)
        # The loop and its other connections are none the worse.
        other = Recorder()
        transport, peer = await attach(loop, other)
        with peer:
            transport.write(b"still here")
            assert await receive_exactly(loop, peer, 10) == b"still here"
            await end(other)

    loop.run_until_complete(main())


def test_a_peer_that_only_ends_its_side(loop, large_file):
    async def main():
        protocol = Recorder(keep_open=True)
        transport, peer = await attach(loop, protocol)
        with peer:
            sending = loop.create_task(loop.sendfile(transport, large_file))
            await loop.sock_recv(peer, 1)
            peer.shutdown(socket.SHUT_WR)
            await receive_exactly(loop, peer, LARGE - 1)
            assert await sending == LARGE
            await until(lambda: "eof_received" in protocol.names)
            await end(protocol)

    loop.run_until_complete(main())


def test_cancelled_on_the_way(arm, loop, large_file):
    async def main():
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)
        with peer:
            sending = loop.create_task(loop.sendfile(transport, large_file))
            await loop.sock_recv(peer, 1)
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
            assert transport.is_reading()
            transport.write(b"after")
            received = loop.create_task(receive_all(loop, peer))
            await end(protocol)
            data = await received
            assert data.endswith(b"after")
            assert 1 + len(data) - len(b"after") < LARGE
            if arm != "asyncio":  # It leaves the position where it was.
                assert 1 + len(data) - len(b"after") == large_file.tell()

    loop.run_until_complete(main())


@pytest.mark.ringloop_only  # asyncio leaves the transport refusing to write.
def test_cancelled_before_the_file_begins(loop, file):
    async def main():
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)
        with peer:
            transport.write(bytes(LARGE))
            sending = loop.create_task(loop.sendfile(transport, file))
            await support.turns(3)
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
            assert transport.is_reading()
            transport.write(b"after")
            received = loop.create_task(receive_all(loop, peer))
            await end(protocol)
            assert await received == bytes(LARGE) + b"after"

    loop.run_until_complete(main())


def test_sock_sendfile_cancelled_on_the_way(loop, large_file):
    async def main():
        ours, peer = tcp_pair()
        with peer, ours:
            sending = loop.create_task(loop.sock_sendfile(ours, large_file))
            await loop.sock_recv(peer, 1)
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
            assert not loop.remove_writer(ours)
            received = loop.create_task(receive_all(loop, peer))
            await loop.sock_sendall(ours, b"after")
            ours.close()
            assert (await received).endswith(b"after")

    loop.run_until_complete(main())


def test_nobody_else_needs_to_hold_the_task(loop, large_file):
    async def main():
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)
        ended = []

        async def send():
            ended.append(await loop.sendfile(transport, large_file))

        task = loop.create_task(send())
        await loop.sock_recv(peer, 1)
        transport = protocol.transport = None
        del task
        gc.collect()
        with peer:
            received = await receive_exactly(loop, peer, LARGE - 1)
            assert len(received) == LARGE - 1
            await until(lambda: ended)
            assert ended == [LARGE]
        await until(lambda: protocol.lost)

    loop.run_until_complete(main())


def test_the_transport_shows_that_it_sends(loop_factory, large_file):
    def body(loop):
        async def main():
            protocol = Recorder()
            transport, peer = await attach(loop, protocol)
            with peer:
                sending = loop.create_task(loop.sendfile(transport, large_file))
                await loop.sock_recv(peer, 1)
                await support.turns(20)
                shown = [repr(transport).partition("fd=")[2].partition(" ")[2]]
                await receive_exactly(loop, peer, LARGE - 1)
                await sending
                shown.append(repr(transport).partition("fd=")[2].partition(" ")[2])
                await end(protocol)
                return shown

        return loop.run_until_complete(main())

    assert same_as_asyncio(body, loop_factory) == [
        "read=idle write=<polling, bufsize=0>>",
        "read=polling write=<idle, bufsize=0>>",
    ]


# Nothing is left


@pytest.mark.exact
def test_nothing_is_left_of_many_files(loop, large_file, file):
    async def one(number):
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)
        with peer:
            if number % 2:
                assert await loop.sendfile(transport, file, 0, 1000) == 1000
            else:
                sending = loop.create_task(loop.sendfile(transport, large_file))
                await loop.sock_recv(peer, 1)
                sending.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await sending
            transport.abort()
            await until(lambda: protocol.lost)

    async def main():
        for number in range(8):
            await one(number)
        gc.collect()
        descriptors, references = support.open_descriptors(), sys.getrefcount(file)
        for number in range(200):
            await one(number)
        gc.collect()
        assert not support.open_descriptors() - descriptors
        assert sys.getrefcount(file) == references

    loop.run_until_complete(main())


@pytest.mark.without_debug_mode
@pytest.mark.ringloop_only
def test_a_cancelled_sock_sendfile_leaves_the_position_behind_what_was_sent(loop, large_file):
    # As asyncio documents it; its own loop leaves the position where it was.
    async def main():
        ours, peer = tcp_pair()
        with peer, ours:
            sending = loop.create_task(loop.sock_sendfile(ours, large_file, 1000))
            await loop.sock_recv(peer, 1)
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
            received = loop.create_task(receive_all(loop, peer))
            ours.close()
            assert large_file.tell() == 1000 + 1 + len(await received)

    loop.run_until_complete(main())


@pytest.mark.without_debug_mode
@pytest.mark.ringloop_only
def test_a_socket_sends_natively(loop, large_file, monkeypatch):
    monkeypatch.setattr(loop, "_sock_sendfile_native_impl", None)
    monkeypatch.setattr(loop, "_sock_sendfile_fallback", None)

    async def body(sendfile, sock):
        return await sendfile(sock, large_file, 5)

    sent, received = loop.run_until_complete(over_socket(loop, body))
    assert sent == len(received) == LARGE - 5


def test_a_replaced_system_call_is_called(loop, file, monkeypatch):
    calls = []
    original = os.sendfile

    def replacement(*arguments):
        calls.append(arguments[2:])
        return original(*arguments)

    monkeypatch.setattr(os, "sendfile", replacement)

    async def body(sendfile, sock):
        return await sendfile(sock, file, 0, 1000)

    sent, received = loop.run_until_complete(over_socket(loop, body))
    assert (sent, received) == (1000, DATA[:1000])
    assert calls[0] == (0, 1000)


def test_a_peer_that_resets_in_the_middle_of_sock_sendfile(loop_factory, large_file):
    def body(loop):
        async def main():
            large_file.seek(0)
            ours, peer = tcp_pair()
            with ours:
                sending = loop.create_task(loop.sock_sendfile(ours, large_file))
                await loop.sock_recv(peer, 1)
                reset(peer)
                with pytest.raises(OSError) as error:
                    await sending
                return type(error.value), error.value.errno, large_file.tell() > 0

        return loop.run_until_complete(main())

    same_as_asyncio(body, loop_factory)


def test_a_socket_that_is_closed_while_it_sends_a_file(loop_factory, large_file):
    def body(loop):
        async def main():
            ours, peer = tcp_pair()
            with peer:
                sending = loop.create_task(loop.sock_sendfile(ours, large_file))
                await loop.sock_recv(peer, 1)
                loop.remove_writer(ours)
                ours.close()
                sending.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await sending

        return loop.run_until_complete(main())

    same_as_asyncio(body, loop_factory)


@pytest.mark.parametrize("way", ["sock_sendfile", "sendfile"])
def test_other_threads_run_during_the_system_call(arm, way):
    """It blocks here, because the socket does, until another thread has read."""
    child = run_child(
        """
        import os, socket, tempfile, threading

        COUNT = 4_000_000

        async def main():
            loop = asyncio.get_running_loop()
            ours, peer = socket.socketpair()
            ours.setblocking(False)
            with tempfile.TemporaryFile() as file, peer:
                file.truncate(COUNT)
                target = ours
                if sys.argv[1] == "sendfile":
                    target, _ = await loop.create_connection(asyncio.Protocol, sock=ours)
                os.set_blocking(ours.fileno(), True)
                received = bytearray()

                def receive():
                    while len(received) < COUNT:
                        received.extend(peer.recv(65536))

                thread = threading.Thread(target=receive)
                thread.start()
                print(await getattr(loop, sys.argv[1])(target, file))
                thread.join()
                target.close()

        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(main())
        """,
        arm,
        way,
    )
    assert (child.stdout, child.stderr) == ("4000000\n", "")
