"""The streams of children: reading them until their end, and their classes."""

import asyncio
import contextlib
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support import examples, needs_gil, run_child, same_as_asyncio

PIPE = asyncio.subprocess.PIPE


def child(source, **options):
    return asyncio.create_subprocess_exec(sys.executable, "-c", source, stdout=PIPE, **options)


@pytest.mark.parametrize("size", [0, 1, 65536, 65537, 5_000_000])
def test_communicate_returns_everything(loop, size):
    data = bytes(range(256)) * (size // 256) + b"x" * (size % 256)

    async def main():
        process = await asyncio.create_subprocess_exec("cat", stdin=PIPE, stdout=PIPE)
        output, errors = await process.communicate(data)
        assert output == data and type(output) is bytes and errors is None
        assert process.returncode == 0

    loop.run_until_complete(main())


def test_both_outputs_at_once(loop):
    source = "import os; [os.write(1 + n % 2, b'%d' % n * 1000) for n in range(1000)]"

    async def main():
        process = await child(source, stderr=PIPE)
        outputs = await process.communicate()
        expected = [b"".join(b"%d" % n * 1000 for n in range(1000) if n % 2 == kind) for kind in (0, 1)]
        assert list(outputs) == expected

    loop.run_until_complete(main())


def test_all_ways_of_reading(loop_factory):
    def body(loop):
        async def main():
            process = await child("print('one\\ntwo\\nthree'); print('x' * 300_000); print('end', end='')")
            out = process.stdout
            read = [await out.readline(), await out.readuntil(b"o"), await out.readexactly(3), await out.readexactly(4)]
            read.append(await out.read())
            read += [await out.read(), await out.read(-1), await out.read(0), out.at_eof(), await process.wait()]
            return read

        return loop.run_until_complete(main())

    same_as_asyncio(body, loop_factory)


def test_an_exception_on_the_way_is_raised(loop_factory):
    def body(loop):
        async def main():
            process = await child("import sys; print('x' * 100, flush=True); sys.stdin.read()", stdin=PIPE)
            reading = loop.create_task(process.stdout.read())
            while process.stdout._waiter is None:
                await asyncio.sleep(0)
            process.stdout.set_exception(ZeroDivisionError("set"))
            with pytest.raises(ZeroDivisionError, match="set"):
                await reading
            with pytest.raises(ZeroDivisionError, match="set"):
                await process.stdout.read()
            process.stdin.close()
            return await process.wait()

        return loop.run_until_complete(main())

    same_as_asyncio(body, loop_factory)


def test_cancelled_while_reading_until_the_end(loop):
    async def main():
        process = await child("import sys; print('first', flush=True); sys.stdin.read(); print('last')", stdin=PIPE)
        reading = loop.create_task(process.stdout.read())
        while process.stdout._waiter is None:
            await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        process.stdin.close()
        assert (await process.stdout.read()).endswith(b"last\n")
        await process.wait()

    loop.run_until_complete(main())


def test_a_replaced_read_is_called(loop, monkeypatch):
    original = asyncio.StreamReader.read
    counts = []

    async def read(self, n=-1):
        counts.append(n)
        return await original(self, n)

    monkeypatch.setattr(asyncio.StreamReader, "read", read)

    async def main():
        process = await child("print('x')")
        assert await process.communicate() == (b"x\n", None)

    loop.run_until_complete(main())
    assert counts[0] == -1


def test_a_protocol_of_one_s_own(loop):
    class Protocol(asyncio.SubprocessProtocol):
        def __init__(self):
            self.data = bytearray()
            self.ended = loop.create_future()

        def pipe_data_received(self, fd, data):
            assert fd == 1
            self.data += data

        def connection_lost(self, exc):
            self.ended.set_result(exc)

    async def main():
        transport, protocol = await loop.subprocess_exec(Protocol, "head", "-c", "1000000", "/dev/zero", stderr=None)
        with contextlib.closing(transport):
            assert await protocol.ended is None
        assert protocol.data == bytes(1_000_000)

    loop.run_until_complete(main())


@pytest.mark.examples
@settings(
    max_examples=examples(50),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(sizes=st.lists(st.one_of(st.integers(1, 100), st.integers(1, 300_000)), max_size=12), big=st.booleans())
def test_pieces_are_joined(loop, sizes, big):
    pieces = [bytes([number + 1]) * size for number, size in enumerate(sizes)]
    if big:
        pieces += [b"big" * 20_000] * 100

    async def main():
        process = await child("pass")
        await process.wait()
        reader = asyncio.StreamReader()
        reader.__class__ = type(process.stdout)
        reading = loop.create_task(reader.read())
        for piece in pieces:
            await asyncio.sleep(0)
            reader.feed_data(piece)
        reader.feed_eof()
        result = await reading
        assert result == b"".join(pieces) and type(result) is bytes
        assert hash(result) == hash(bytes(bytearray(result))) and sys.getsizeof(result) == len(result) + sys.getsizeof(
            b""
        )
        assert await reader.read() == b""

    loop.run_until_complete(main())


LIMITED = """
import asyncio, sys

async def main():
    process = await asyncio.create_subprocess_exec("true", stdout=asyncio.subprocess.PIPE)
    await process.wait()
    reader = asyncio.StreamReader()
    reader.__class__ = type(process.stdout)
    reading = asyncio.ensure_future(reader.read())
    piece = bytes(65536)
    support.limit_address_space(support.address_space() + int(sys.argv[1]) * 1_000_000)
    for _ in range(2400):
        await asyncio.sleep(0)
        if reading.done():
            break
        reader.feed_data(piece)
    reader.feed_eof()
    try:
        print(len(await reading))
    except MemoryError:
        print("no memory")

with asyncio.Runner(loop_factory=new_loop) as runner:
    runner.run(main())
"""


@pytest.mark.ringloop_only
@pytest.mark.parametrize(("megabytes", "outcome"), [(200, "157286400"), (100, "no memory")])
def test_memory_may_be_limited(arm, megabytes, outcome):
    """Room is made for more than there is, but not where that is refused."""
    needs_gil()  # Without one, Python has another allocator, which takes address space in advance.
    # In debug mode streams are asyncio's, and collect with a copy.
    done = run_child(LIMITED, arm, str(megabytes), env={"PYTHONASYNCIODEBUG": None})
    assert (done.returncode, done.stdout.strip()) == (0, outcome), done.stderr
