"""Writing to a TCP transport: which data, in which order, and the end of the writing half."""

import array
import asyncio
import socket
import sys

import pytest

from support import (
    PATIENCE_S,
    Recorder,
    attach,
    capture_contexts,
    receive_all,
    receive_exactly,
    same_as_asyncio,
    turns,
    until,
)


@pytest.mark.parametrize(
    "data",
    [
        b"bytes",
        bytearray(b"bytearray"),
        memoryview(b"view"),
        memoryview(b"0123456789")[2:5],
        memoryview(array.array("I", [1, 2, 3])),
    ],
    ids=["bytes", "bytearray", "view", "slice", "integers"],
)
def test_what_can_be_written(loop, data):
    async def main():
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)
        with peer:
            assert transport.write(data) is None
            transport.writelines([data, data])
            transport.close()
            await until(lambda: protocol.lost)
            return await receive_all(loop, peer)

    assert loop.run_until_complete(main()) == bytes(data) * 3


def test_a_bytearray_can_be_changed_once_it_is_sent(loop):
    async def main():
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)
        with peer:
            data = bytearray(b"first")
            transport.write(data)
            assert transport.get_write_buffer_size() == 0
            data[:] = b"longer than before"
            transport.write(data)
            data.clear()
            transport.close()
            await until(lambda: protocol.lost)
            return await receive_all(loop, peer)

    assert loop.run_until_complete(main()) == b"firstlonger than before"


def test_a_subclass_of_bytes_can_be_written(loop):
    class Text(bytes):
        pass

    async def main():
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)
        with peer:
            transport.write(Text(b"text"))
            transport.writelines([Text(b"more")])
            assert await receive_exactly(loop, peer, 8) == b"textmore"
        await until(lambda: protocol.lost)

    loop.run_until_complete(main())


def test_a_view_with_gaps(loop):
    async def main():
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)
        with peer:
            transport.write(memoryview(b"0123456789")[::2])
            await until(lambda: protocol.lost)
            return protocol.error

    contexts = capture_contexts(loop)
    error = loop.run_until_complete(main())
    assert isinstance(error, BufferError)
    assert [context["message"] for context in contexts] == ["Fatal write error on socket transport"]


@pytest.mark.parametrize(
    "bad", ["text", 5, None, [b"x"], array.array("b", [1])], ids=["str", "int", "None", "list", "array"]
)
def test_what_cannot_be_written(loop_factory, bad):
    def body(loop):
        async def main():
            protocol = Recorder()
            transport, peer = await attach(loop, protocol)
            with peer:
                with pytest.raises(TypeError) as caught:
                    transport.write(bad)
                assert not transport.is_closing()
                transport.write(b"unharmed")
                assert await receive_exactly(loop, peer, 8) == b"unharmed"
            await until(lambda: protocol.lost)
            return str(caught.value)

        return loop.run_until_complete(main())

    text = same_as_asyncio(body, loop_factory)
    assert text.startswith("data argument must be a ") and text.endswith(f"not {type(bad).__name__!r}")


def test_what_cannot_be_written_in_lines(loop):
    async def main():
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)
        with peer:
            for bad in (["text"], [5], 5):
                with pytest.raises(TypeError):
                    transport.writelines(bad)
            transport.writelines([b"un", b"harmed"])
            assert await receive_exactly(loop, peer, 8) == b"unharmed"
        await until(lambda: protocol.lost)

    loop.run_until_complete(main())


def test_writing_nothing_is_nothing(loop):
    async def main():
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)
        with peer:
            transport.write(b"")
            transport.write(bytearray())
            transport.write(memoryview(b""))
            transport.writelines([])
            assert transport.get_write_buffer_size() == 0
            transport.write(b"x")
            assert await receive_exactly(loop, peer, 1) == b"x"
        await until(lambda: protocol.lost)

    loop.run_until_complete(main())


class Changing(bytearray):
    """One that says something else each time it is asked for its content, and may do something meanwhile."""

    def __init__(self, contents, action=lambda: None):
        super().__init__(b"any")
        self.contents, self.action = iter(contents), action

    def __buffer__(self, flags):
        self.action()
        return memoryview(next(self.contents))


@pytest.mark.ringloop_only
@pytest.mark.skipif(sys.version_info < (3, 12), reason="classes have __buffer__ from Python 3.12 on")
@pytest.mark.parametrize("sizes", [(8 << 20, 10), (10, 8 << 20), (8 << 20, 0), (8 << 20,)])
def test_data_that_changes_its_mind_is_asked_once(loop, sizes):
    async def main():
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)
        with peer:
            transport.write(Changing([bytes(size) for size in sizes]))
            transport.write(Changing([b"end"]))
            transport.close()
            assert await receive_all(loop, peer) == bytes(sizes[0]) + b"end"
            await until(lambda: protocol.lost)

    loop.run_until_complete(main())


@pytest.mark.ringloop_only
@pytest.mark.skipif(sys.version_info < (3, 12), reason="classes have __buffer__ from Python 3.12 on")
@pytest.mark.parametrize("action", ["close", "abort", "write_eof", "nested write"])
def test_data_that_meddles_with_its_transport(loop, action):
    async def main():
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)
        actions = {"nested write": lambda: transport.write(b"nested")}
        with peer:
            transport.write(Changing([b"data"], actions.get(action) or getattr(transport, action)))
            transport.close()
            assert await receive_all(loop, peer) in (b"data", b"", b"nesteddata")
            await until(lambda: protocol.lost)

    loop.run_until_complete(main())


def test_writelines_takes_any_iterable_and_many_parts(loop):
    parts = [bytes([number % 256]) * (number % 5 + 1) for number in range(5000)]

    async def main():
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)
        with peer:
            transport.writelines(parts)
            transport.writelines(tuple(parts))
            transport.writelines(part for part in parts)
            transport.close()
            data = await receive_all(loop, peer)
        await until(lambda: protocol.lost)
        return data

    assert loop.run_until_complete(main()) == b"".join(parts) * 3


def test_small_writes_keep_their_order(loop):
    expected = b"".join(b"%d," % number for number in range(20_000))

    async def main():
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)

        async def write():
            for number in range(20_000):
                transport.write(b"%d," % number)
                if number % 1000 == 0:
                    await asyncio.sleep(0)
            transport.close()

        writer = loop.create_task(write())
        with peer:
            data = await receive_all(loop, peer)
        await writer
        await until(lambda: protocol.lost)
        return data

    assert loop.run_until_complete(main()) == expected


def test_a_write_reaches_the_peer_at_once(loop):
    """asyncio sends directly when nothing waits: the bytes are out when write() returns, or at the latest in the next turn."""

    async def main():
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)
        with peer:
            transport.write(b"now")
            await asyncio.sleep(0)
            peer.setblocking(True)
            peer.settimeout(PATIENCE_S)
            assert peer.recv(3) == b"now"
        await until(lambda: protocol.lost)

    loop.run_until_complete(main())


def test_write_after_close_is_counted_and_warned_about(loop, caplog):
    async def main():
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)
        with peer:
            transport.abort()
            for _ in range(4):
                transport.write(b"x")
            early = len(caplog.records)
            for _ in range(3):
                transport.write(b"x")
            assert transport.get_write_buffer_size() == 0
            await until(lambda: protocol.lost)
        return early

    assert loop.run_until_complete(main()) == 0
    assert [record.getMessage() for record in caplog.records] == ["socket.send() raised exception."] * 3


def test_write_after_the_end_is_ignored(loop):
    async def main():
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)
        peer.close()
        await until(lambda: protocol.lost)
        transport.write(b"x")
        transport.write(b"y")
        transport.close()
        transport.abort()
        await turns(3)
        assert protocol.names.count("connection_lost") == 1

    loop.run_until_complete(main())


def test_write_eof_half_closes(loop):
    async def main():
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)
        with peer:
            assert transport.can_write_eof() is True
            transport.write(b"question")
            transport.write_eof()
            transport.write_eof()
            assert await receive_all(loop, peer) == b"question"
            peer.send(b"answer")
            await until(lambda: protocol.data == b"answer")
            assert not transport.is_closing()
        await until(lambda: protocol.lost)
        assert protocol.error is None

    loop.run_until_complete(main())


def test_write_after_write_eof(loop):
    async def main():
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)
        with peer:
            transport.write_eof()
            with pytest.raises(RuntimeError, match="^Cannot call write\\(\\) after write_eof\\(\\)$"):
                transport.write(b"x")
            name = "writelines" if sys.version_info >= (3, 12) else "write"
            with pytest.raises(RuntimeError, match=f"^Cannot call {name}\\(\\) after write_eof\\(\\)$"):
                transport.writelines([b"x"])
        await until(lambda: protocol.lost)

    loop.run_until_complete(main())


def test_write_eof_waits_for_what_is_buffered(loop):
    amount = 8 << 20

    async def main():
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)
        transport.write(b"z" * amount)
        assert transport.get_write_buffer_size() > 0
        transport.write_eof()
        with peer:
            assert len(await receive_all(loop, peer)) == amount
            peer.send(b"thanks")
            await until(lambda: protocol.data == b"thanks")
        await until(lambda: protocol.lost)

    loop.run_until_complete(main())


def test_write_eof_after_close_is_harmless(loop):
    async def main():
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)
        with peer:
            transport.close()
            transport.write_eof()
            await until(lambda: protocol.lost)
            transport.write_eof()

    loop.run_until_complete(main())


def test_room_reported_before_the_socket_was_full_is_used_in_the_next_turn(loop):
    """asyncio's selector reports room only in the turn after that in which a write found none."""

    async def main():
        ours, peer = socket.socketpair()
        protocol = Recorder()
        transport, _ = await loop.create_unix_connection(lambda: protocol, sock=ours)
        with peer:

            def fill():
                transport.write(bytes(8 << 20))
                # There is room at once, but nobody has been told.
                left.append(transport.get_write_buffer_size())
                taken.append(len(peer.recv(1 << 20)))
                loop.call_soon(lambda: left.append(transport.get_write_buffer_size()))

            left, taken = [], []
            await turns(3)
            # The next turn is told of this, and that there is room; it calls what is queued here first.
            peer.send(b"early")
            loop.call_soon(fill)
            await turns(3)
            assert protocol.data == b"early"
            assert 0 < left[0] == left[1]
            transport.close()
            peer.setblocking(False)
            assert len(await receive_all(loop, peer)) == (8 << 20) - taken[0]
            await until(lambda: protocol.lost)

    loop.run_until_complete(main())
