"""Flow control of TCP transports: the marks of the write buffer, and the protocol's pauses."""

import array

import pytest

from support import (
    Recorder,
    attach,
    has_flow_control_in_writelines,
    receive_all,
    receive_exactly,
    same_as_asyncio,
    skip_unless,
    turns,
    until,
)


def test_write_buffer_limits(loop):
    async def main():
        transport, peer = await attach(loop, Recorder())
        with peer:
            limits = [transport.get_write_buffer_limits()]
            for options in (
                {"high": 1000},
                {"low": 100},
                {"high": 10, "low": 10},
                {"high": 0},
                {"high": 5, "low": 0},
                {},
            ):
                assert transport.set_write_buffer_limits(**options) is None
                limits.append(transport.get_write_buffer_limits())
            transport.set_write_buffer_limits(50, 20)
            limits.append(transport.get_write_buffer_limits())
            transport.abort()
            await turns(2)
        return limits

    assert loop.run_until_complete(main()) == [
        (16384, 65536), (250, 1000), (100, 400), (10, 10), (0, 0), (0, 5), (16384, 65536), (20, 50),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "options", [{"high": 1, "low": 2}, {"high": -1}, {"low": -1}, {"high": 5, "low": -1}], ids=repr
)
def test_wrong_write_buffer_limits(loop_factory, options):
    def body(loop):
        async def main():
            transport, peer = await attach(loop, Recorder())
            with peer:
                with pytest.raises(ValueError) as caught:
                    transport.set_write_buffer_limits(**options)
                transport.abort()
                await turns(2)
            return str(caught.value)

        return loop.run_until_complete(main())

    assert "must be >= low" in same_as_asyncio(body, loop_factory)


async def clogged(loop, protocol):
    """Return a transport whose kernel buffer is full and whose own buffer has something in it, without having paused."""
    transport, peer = await attach(loop, protocol)
    transport.set_write_buffer_limits(high=1 << 40)
    while not transport.get_write_buffer_size():
        transport.write(bytes(1 << 20))
    return transport, peer


def test_writing_pauses_above_the_high_mark_and_resumes_at_the_low_mark(loop):
    class Measures(Recorder):
        def resume_writing(self):
            super().resume_writing()
            sizes.append(self.transport.get_write_buffer_size())

    sizes = []

    async def main():
        protocol = Measures()
        transport, peer = await clogged(loop, protocol)
        size = transport.get_write_buffer_size()
        transport.set_write_buffer_limits(high=size + 100, low=50)
        transport.write(b"x" * 100)
        assert transport.get_write_buffer_size() == size + 100
        assert "pause_writing" not in protocol.names, "at the mark is not above it"
        transport.write(b"x")
        assert protocol.names[-1] == "pause_writing"
        transport.write(b"x" * 1000)
        assert protocol.names.count("pause_writing") == 1
        assert transport.get_write_buffer_size() == size + 1101
        with peer:
            received = 0
            while "resume_writing" not in protocol.names:
                received += len(await loop.sock_recv(peer, 65536))
            transport.write(b"end")
            transport.close()
            received += len(await receive_all(loop, peer))
        await until(lambda: protocol.lost)
        assert protocol.names == ["connection_made", "pause_writing", "resume_writing", "connection_lost"]

    loop.run_until_complete(main())
    assert len(sizes) == 1 and sizes[0] <= 50


def test_setting_lower_limits_pauses_at_once(loop):
    async def main():
        protocol = Recorder()
        transport, peer = await clogged(loop, protocol)
        transport.set_write_buffer_limits(high=10)
        assert protocol.names[-1] == "pause_writing"
        transport.abort()
        peer.close()
        await until(lambda: protocol.lost)
        assert "resume_writing" not in protocol.names

    loop.run_until_complete(main())


def test_a_high_mark_of_zero_pauses_whenever_something_is_buffered(loop):
    async def main():
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)
        transport.set_write_buffer_limits(high=0)
        transport.write(b"small")
        assert protocol.names == ["connection_made"]
        while not transport.get_write_buffer_size():
            transport.write(bytes(1 << 20))
        assert protocol.names == ["connection_made", "pause_writing"]
        with peer:
            reader = loop.create_task(receive_all(loop, peer))
            await until(lambda: "resume_writing" in protocol.names)
            assert transport.get_write_buffer_size() == 0
            transport.close()
            await reader
        await until(lambda: protocol.lost)

    loop.run_until_complete(main())


def test_pausing_and_resuming_alternate(loop):
    class Filling(Recorder):
        paused = False
        left = 200

        def fill(self):
            while not self.paused and self.left:
                self.left -= 1
                self.transport.write(bytes(100_000))

        def pause_writing(self):
            super().pause_writing()
            assert not self.paused
            self.paused = True

        def resume_writing(self):
            super().resume_writing()
            assert self.paused
            self.paused = False
            self.fill()

    async def main():
        protocol = Filling()
        transport, peer = await attach(loop, protocol)
        protocol.fill()
        with peer:
            received = await receive_exactly(loop, peer, 20_000_000)
            assert not any(received)
            transport.close()
            assert await receive_all(loop, peer) == b""
        await until(lambda: protocol.lost)
        assert protocol.names.count("pause_writing") == protocol.names.count("resume_writing") > 0

    loop.run_until_complete(main())


def test_writelines_observes_the_marks(loop):
    skip_unless(has_flow_control_in_writelines(), "flow control in writelines")

    async def main():
        protocol = Recorder()
        transport, peer = await clogged(loop, protocol)
        transport.set_write_buffer_limits(high=transport.get_write_buffer_size() + 100)
        transport.writelines([b"x" * 50, b"y" * 50])
        assert "pause_writing" not in protocol.names
        transport.writelines([b"z", b"z"])
        assert protocol.names[-1] == "pause_writing"
        transport.abort()
        peer.close()
        await until(lambda: protocol.lost)

    loop.run_until_complete(main())


def test_get_write_buffer_size_counts_what_the_kernel_did_not_take(loop):
    async def main():
        protocol = Recorder()
        transport, peer = await clogged(loop, protocol)
        size = transport.get_write_buffer_size()
        for addition in (b"x", bytearray(10), memoryview(b"abc"), memoryview(array.array("I", range(5))).cast("B")):
            transport.write(addition)
            size += len(addition)
            assert transport.get_write_buffer_size() == size
        transport.writelines([b"one", b"two"])
        assert transport.get_write_buffer_size() == size + 6
        transport.abort()
        peer.close()
        await until(lambda: protocol.lost)

    loop.run_until_complete(main())
