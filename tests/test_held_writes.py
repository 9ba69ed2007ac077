"""Several writes in one callback: after a few such callbacks ringloop sends them together when the callback ends.

Nothing but the moment of sending may differ from asyncio, and that only within the callback.
"""

import asyncio
import os
import socket

import pytest

from support import (
    PATIENCE_S,
    Recorder,
    receive_all,
    receive_exactly,
    run_child,
    same_as_asyncio,
    turns,
    until,
)

LESSONS = 8
"""Callbacks with two writes each, more than a transport needs to expect the second one."""


async def attach(loop, protocol, sent_bytes_max=None):
    """Put a transport on one end of a pair of Unix sockets, where what is sent is there at once; return it and the other."""
    ours, peer = socket.socketpair()
    for sock in (ours, peer):
        sock.setblocking(False)
        if sent_bytes_max:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, sent_bytes_max)
    transport, _ = await loop.create_connection(lambda: protocol, sock=ours)
    return transport, peer


async def teach(loop, transport, peer):
    """Write twice in each of several callbacks, and read that."""
    for _ in range(LESSONS):
        transport.write(b"one ")
        transport.write(b"two ")
        await asyncio.sleep(0)
        assert await receive_exactly(loop, peer, 8) == b"one two "


def peek(sock):
    """What has arrived, without taking it."""
    try:
        return sock.recv(1 << 20, socket.MSG_PEEK)
    except BlockingIOError:
        return None


@pytest.mark.ringloop_only
def test_writes_of_a_callback_leave_together_when_it_ends(loop):
    async def main():
        transport, peer = await attach(loop, Recorder())
        with peer:
            await teach(loop, transport, peer)
            transport.write(b"head ")
            assert peek(peer) is None
            assert transport.get_write_buffer_size() == 0
            transport.write(b"body")
            assert peek(peer) is None
            await asyncio.sleep(0)
            assert peek(peer) == b"head body"
            transport.close()

    loop.run_until_complete(main())


def test_what_was_written_is_there_when_the_next_callback_runs(loop):
    async def main():
        transport, peer = await attach(loop, Recorder())
        seen = []
        with peer:
            await teach(loop, transport, peer)
            loop.call_soon(lambda: seen.append(peek(peer)))
            transport.write(b"a")
            transport.write(b"b")
            await turns(2)
            transport.close()
        return seen

    assert loop.run_until_complete(main()) == [b"ab"]


@pytest.mark.ringloop_only
def test_one_callback_with_a_single_write_unlearns_it(loop):
    async def main():
        transport, peer = await attach(loop, Recorder())
        with peer:
            await teach(loop, transport, peer)
            transport.write(b"alone")
            await asyncio.sleep(0)
            assert await receive_exactly(loop, peer, 5) == b"alone"
            transport.write(b"a")
            assert peek(peer) == b"a"
            transport.write(b"b")
            assert peek(peer) == b"ab"
            transport.close()

    loop.run_until_complete(main())


def test_writes_outside_of_callbacks_leave_at_once(loop):
    async def prepare():
        transport, peer = await attach(loop, Recorder())
        await teach(loop, transport, peer)
        return transport, peer

    transport, peer = loop.run_until_complete(prepare())
    with peer:
        for number in range(LESSONS):
            transport.write(b"%d" % number)
            transport.write(b"!")
            assert peek(peer) == b"%d!" % number
            peer.recv(100)
        transport.close()
        loop.run_until_complete(turns(2))


def close(transport):
    transport.close()


def abort(transport):
    transport.abort()


def write_eof(transport):
    transport.write_eof()


def write_lines(transport):
    transport.writelines([b"<lines ", b"", b"end>"])


def write_changing_data(transport):
    data = bytearray(b"<changing>")
    transport.write(data)
    data[:] = b"<overwritten>"
    transport.write(memoryview(b"<view>"))


def write_much(transport):
    transport.write(b"<" + b"m" * 300_000 + b">")


def write_many(transport):
    for number in range(5000):
        transport.write(b"<%d>" % number)


def write_nothing(transport):
    transport.write(b"")


def write_wrong_type(transport):
    with pytest.raises(TypeError):
        transport.write("text")


def limit_buffer(transport):
    transport.set_write_buffer_limits(0)
    transport.write(b"<limited>")


def ask_for_the_socket(transport):
    with socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno())) as sock:
        sock.send(b"<by other means>")


def raise_error(transport):
    raise ZeroDivisionError("of the callback")


def pause_and_resume(transport):
    transport.pause_reading()
    transport.resume_reading()


def change_protocol(transport):
    other = Recorder()
    other.transport = transport
    transport.set_protocol(other)


@pytest.mark.parametrize(
    "deed",
    [
        close, abort, write_eof, write_lines, write_changing_data, write_much, write_many, write_nothing,
        write_wrong_type, limit_buffer, ask_for_the_socket, raise_error, pause_and_resume, change_protocol,
    ],
)  # fmt: skip
def test_the_peer_gets_what_asyncio_sends_whatever_follows_the_writes(loop_factory, deed):
    def body(loop):
        async def main():
            protocol = Recorder()
            transport, peer = await attach(loop, protocol)
            contexts = []
            loop.set_exception_handler(lambda _, context: contexts.append(repr(context.get("exception"))))
            with peer:
                await teach(loop, transport, peer)

                def callback():
                    transport.write(b"head ")
                    transport.write(b"body ")
                    deed(transport)

                loop.call_soon(callback)
                received = asyncio.ensure_future(receive_all(loop, peer))
                await turns(3)
                closing = transport.is_closing()
                transport.close()
                data = await received
                await turns(3)
            return data, closing, protocol.names, repr(protocol.error), contexts

        return loop.run_until_complete(asyncio.wait_for(main(), PATIENCE_S))

    data, *_ = same_as_asyncio(body, loop_factory)
    assert data.startswith(b"head body ")


def test_a_full_socket_takes_what_is_held_in_parts(loop_factory):
    def body(loop):
        async def main():
            protocol = Recorder()
            transport, peer = await attach(loop, protocol, 4096)
            with peer:
                await teach(loop, transport, peer)
                expected = b""
                for number in range(20):
                    head, tail = b"%d" % number * 5000, b"!" * 5000
                    transport.write(head)
                    transport.write(tail)
                    expected += head + tail
                    await asyncio.sleep(0)
                    part = await receive_exactly(loop, peer, len(expected))
                    assert part == expected
                    expected = b""
                transport.write(b"h" * 6000)
                transport.write(b"b" * 6000)
                transport.close()
                rest = await receive_all(loop, peer)
                await turns(3)
            return rest, protocol.names

        return loop.run_until_complete(asyncio.wait_for(main(), PATIENCE_S))

    rest, names = same_as_asyncio(body, loop_factory)
    assert rest == b"h" * 6000 + b"b" * 6000
    assert names == ["connection_made", "connection_lost"]


def test_flow_control_counts_what_is_held(loop_factory):
    def body(loop):
        async def main():
            protocol = Recorder()
            transport, peer = await attach(loop, protocol, 4096)
            with peer:
                await teach(loop, transport, peer)
                seen = []
                for _ in range(4):
                    transport.write(b"head")
                    transport.write(b"x" * 500_000)
                    seen.append((protocol.names[-1], transport.get_write_buffer_size() > 64 * 1024))
                    await receive_exactly(loop, peer, 500_004)
                    await until(lambda: protocol.names[-1] == "resume_writing")
                    seen.append((protocol.names[-1], transport.get_write_buffer_size()))
                transport.close()
                await turns(3)
            return seen

        return loop.run_until_complete(asyncio.wait_for(main(), PATIENCE_S))

    assert same_as_asyncio(body, loop_factory) == [("pause_writing", True), ("resume_writing", 0)] * 4


def test_a_connection_whose_peer_is_gone_is_lost_with_its_error(loop_factory):
    def body(loop):
        async def main():
            protocol = Recorder()
            transport, peer = await attach(loop, protocol)
            await teach(loop, transport, peer)

            def callback():
                peer.close()
                transport.write(b"head ")
                transport.write(b"body ")

            loop.call_soon(callback)
            await turns(4)
            return protocol.names, type(protocol.error)

        return loop.run_until_complete(asyncio.wait_for(main(), PATIENCE_S))

    names, error = same_as_asyncio(body, loop_factory)
    assert names == ["connection_made", "connection_lost"]
    assert error is BrokenPipeError


def test_a_file_follows_what_is_held(loop_factory, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(os.urandom(100_000))

    def body(loop):
        async def main():
            transport, peer = await attach(loop, Recorder())
            with peer, path.open("rb") as file:
                await teach(loop, transport, peer)
                received = asyncio.ensure_future(receive_exactly(loop, peer, 100_009))
                await asyncio.sleep(0)
                transport.write(b"head ")
                transport.write(b"body")
                await loop.sendfile(transport, file)
                data = await received
                transport.close()
                await turns(3)
            return data

        return loop.run_until_complete(asyncio.wait_for(main(), PATIENCE_S))

    assert same_as_asyncio(body, loop_factory) == b"head body" + path.read_bytes()


def test_streams_that_write_twice_answer_every_request(loop_factory):
    def body(loop):
        async def serve(reader, writer):
            while request := await reader.readline():
                writer.write(b"head of " + request)
                writer.write(b"body of " + request)
                await writer.drain()
            writer.close()
            await writer.wait_closed()

        async def main():
            server = await asyncio.start_server(serve, "127.0.0.1", 0)
            async with server:
                reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
                answers = []
                for number in range(50):
                    writer.write(b"%d\n" % number)
                    answers.append(await reader.readline() + await reader.readline())
                writer.close()
                await writer.wait_closed()
            return answers

        return loop.run_until_complete(asyncio.wait_for(main(), PATIENCE_S))

    answers = same_as_asyncio(body, loop_factory)
    assert answers == [b"head of %d\nbody of %d\n" % (number, number) for number in range(50)]


@pytest.mark.parametrize("error", ["SystemExit(7)", "KeyboardInterrupt()"])
def test_what_ends_the_loop_does_not_end_the_writes_before_it(arm, error):
    child = run_child(
        f"""
        from test_held_writes import Recorder, attach, peek, teach

        loop = new_loop()
        transport, peer = loop.run_until_complete(attach(loop, Recorder()))
        loop.run_until_complete(teach(loop, transport, peer))

        def callback():
            transport.write(b"head ")
            transport.write(b"body")
            raise {error}

        loop.call_soon(callback)
        try:
            loop.run_forever()
        except BaseException as error:
            print(repr(error), peek(peer))
        transport.close()
        peer.close()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        """,
        arm,
    )
    assert (child.stdout, child.stderr) == (f"{error} b'head body'\n", "")


@pytest.mark.ringloop_only
def test_looking_at_the_socket_sends_what_is_held(loop):
    async def main():
        for look in (
            lambda transport: transport.get_extra_info("socket"),
            lambda transport: transport.set_write_buffer_limits(100_000),
        ):
            transport, peer = await attach(loop, Recorder())
            with peer:
                await teach(loop, transport, peer)
                transport.write(b"head")
                assert peek(peer) is None
                look(transport)
                assert peek(peer) == b"head"
                transport.write(b" body")
                await asyncio.sleep(0)
                assert peek(peer) == b"head body"
                transport.close()
                await turns(2)

    loop.run_until_complete(main())


@pytest.mark.ringloop_only
def test_repr_does_not_show_what_is_held_as_blocked(loop):
    async def main():
        transport, peer = await attach(loop, Recorder())
        with peer:
            await teach(loop, transport, peer)
            before = repr(transport)
            transport.write(b"head")
            assert repr(transport) == before
            assert peek(peer) is None
            transport.close()
            await turns(2)

    loop.run_until_complete(main())
