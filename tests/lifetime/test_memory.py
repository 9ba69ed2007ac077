"""Memory that a burst needed is given back."""

import ctypes
import sys
import textwrap

import pytest

from support import run_child, skip_unless

pytestmark = pytest.mark.exact

MEASURE = """
import ctypes, gc, socket

class Allocated(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")]

mallinfo = ctypes.CDLL(None).mallinfo2
mallinfo.restype = Allocated

def allocated():
    # Bytes that are allocated from the C library, whatever of them the kernel has been asked for.
    gc.collect()
    info = mallinfo()
    return info.uordblks + info.hblkhd

def noop(*arguments):
    pass

async def turns(count=10):
    # Each waits, be it for nothing.
    for _ in range(count):
        await asyncio.sleep(0.0001)

loop = new_loop()
"""

BURSTS = {
    "callbacks": """
        async def burst():
            for _ in range(count):
                loop.call_soon(noop)
            await turns()
    """,
    "callbacks from elsewhere": """
        async def burst():
            def post():
                for _ in range(count):
                    loop.call_soon_threadsafe(noop)
            await asyncio.to_thread(post)
            await turns()
    """,
    "timers that expire": """
        async def burst():
            for _ in range(count):
                loop.call_later(0, noop)
            await turns()
    """,
    "timers that are cancelled": """
        async def burst():
            for timer in [loop.call_later(3600, noop) for _ in range(count)]:
                timer.cancel()
            await turns()
    """,
    "timers of which some stay": """
        stay = []

        async def burst():
            for number in range(count):
                timer = loop.call_later(3600 if number % 10_000 == 9_999 else 0, noop)
                if number % 10_000 == 9_999:
                    stay.append(timer)
            await turns()
    """,
    "writes": """
        async def burst():
            ours, peer = socket.socketpair()
            peer.setblocking(False)
            with peer:
                transport, _ = await loop.create_connection(asyncio.Protocol, sock=ours)
                for _ in range(count):
                    transport.write(b"x")
                while transport.get_write_buffer_size():
                    try:
                        peer.recv(1 << 20)
                    except BlockingIOError:
                        pass
                    await asyncio.sleep(0)
                connections.append(transport)
                await turns()
                held.append(allocated())
                transport.abort()
                await turns()

        connections = []
    """,
}

OF_DEBUG_MODE = """
    # Handles of asyncio's own, as debug mode makes them, but without their tracebacks, which take long to make.
    async def burst():
        timers = [asyncio.TimerHandle(1e9, noop, (), loop) for _ in range(count)]
        for timer in timers:
            loop._add_timer(timer, 1e9)
            timer._scheduled = True
        for timer in timers:
            timer.cancel()
        await turns()
"""


@pytest.fixture(autouse=True)
def needs_mallinfo():
    skip_unless(hasattr(ctypes.CDLL(None), "mallinfo2"), "mallinfo2 in the C library")


def growth(arm, burst, small=70_000, large=300_000):
    """Return by how many KB more is allocated after a large burst than after a small one, with what is kept in any case."""
    child = run_child(
        MEASURE
        + textwrap.dedent(f"""
            found = []
            for count in ({small}, {large}):
                held = []
                exec({textwrap.dedent(burst)!r})
                loop.run_until_complete(burst())
                found.append(max([allocated(), *held]))
            print((found[1] - found[0]) // 1024)
        """),
        arm,
        env={"PYTHONASYNCIODEBUG": None},
    )
    assert (child.returncode, child.stderr) == (0, "")
    return int(child.stdout)


@pytest.mark.many_cases(short=2)
@pytest.mark.parametrize("burst", BURSTS, ids=lambda name: name.replace(" ", "-"))
def test_what_a_burst_needed_is_given_back(arm, burst):
    if arm == "asyncio" and burst == "writes" and sys.version_info >= (3, 12):
        pytest.skip("from Python 3.12 on, asyncio's time for many small writes is quadratic")
    assert growth(arm, BURSTS[burst]) < 1024


@pytest.mark.long
@pytest.mark.ringloop_only
def test_what_a_burst_needed_is_given_back_in_debug_mode(arm):
    assert growth(arm, OF_DEBUG_MODE) < 1024
