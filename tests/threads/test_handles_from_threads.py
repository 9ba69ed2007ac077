"""Handles that other threads cancel and look at while the loop runs them: each callback runs once or never, and lets its arguments go."""

import asyncio
import collections
import functools
import random

import pytest

import support
from thread_support import Census, at_once, repeating, rounds, running_in_a_thread, until

pytestmark = pytest.mark.examples


class Bench:
    """Where threads put handles for other threads, and how often the callback of each has run."""

    def __init__(self, loop, size=64):
        self.loop = loop
        self.census = Census()
        self.slots = [None] * size
        self.ran = collections.Counter()

    def callback(self, number, first, second):
        self.ran[number] += 1
        assert type(first) is type(second)

    def arguments(self, number):
        return self.callback, number, self.census.make(), self.census.make()

    def put(self, handles):
        for place, handle in enumerate(handles):
            self.slots[place % len(self.slots)] = handle

    def cancel_all(self):
        for place, handle in enumerate(self.slots):
            if handle is not None:
                handle.cancel()
                self.slots[place] = None

    def look_at_all(self):
        for handle in self.slots:
            look_at(handle)

    def check(self, arm):
        """Assert that no callback has run twice, and that nothing is left of them."""
        assert set(self.ran.values()) <= {1}
        self.slots.clear()
        self.census.check()


def look_at(handle):
    """Ask a handle everything that can be asked."""
    if handle is None:
        return
    repr(handle)
    assert handle.cancelled() in (True, False)
    hash(handle)
    handle == handle
    if hasattr(handle, "get_context"):
        handle.get_context()
    if hasattr(handle, "when"):
        assert handle.when() > 0


@pytest.fixture
def bench(loop, arm):
    """Return a bench; what a callback raises fails the test.

    asyncio's handle looks at its callback again after it was asked whether it is cancelled. Before 3.14 it may have gone then.
    """
    errors = support.capture_contexts(loop)
    yield Bench(loop)
    if arm == "asyncio":
        errors = [error for error in errors if not isinstance(error["exception"], TypeError)]
    assert errors == []


async def forever(loop):
    """Let the loop turn without a wait until it is told to stop."""
    while True:
        await asyncio.sleep(0)


def test_handles_that_are_cancelled_while_they_run(bench, loop, arm):
    count = rounds(300)

    def post(who):
        for number in range(count):
            handles = [loop.call_soon_threadsafe(*bench.arguments((who, number, each))) for each in range(64)]
            bench.put(handles)
            for each, handle in enumerate(handles):
                if each % 4:
                    handle.cancel()
                assert handle.cancelled() or each % 4 == 0 or arm == "asyncio"

    spinning = asyncio.run_coroutine_threadsafe
    with running_in_a_thread(loop):
        future = spinning(forever(loop), loop)
        with repeating(bench.cancel_all, bench.look_at_all):
            at_once(functools.partial(post, 0), functools.partial(post, 1))
        future.cancel()
        until(lambda: not asyncio.all_tasks(loop))
    support.run_turns(loop, 3)
    bench.check(arm)


def test_a_handle_that_nobody_cancels_runs_while_others_look_at_it(bench, loop, arm):
    count = rounds(300)

    def post():
        for number in range(count):
            bench.put([loop.call_soon_threadsafe(*bench.arguments((number, each))) for each in range(64)])

    with running_in_a_thread(loop), repeating(bench.look_at_all, bench.look_at_all):
        at_once(post)
    support.run_turns(loop, 3)
    assert len(bench.ran) == 64 * count
    bench.check(arm)


def test_timers_that_are_cancelled_while_they_run(bench, loop, arm):
    """They are made in the loop's thread: `call_later` isn't for others."""

    async def make():
        chance = random.Random(1)
        for number in range(rounds(300)):
            handles = [
                loop.call_later(chance.choice((0, 0.0001, 0.001)), *bench.arguments((number, each)))
                for each in range(64)
            ]
            bench.put(handles)
            for handle in handles[::5]:
                handle.cancel()
            await asyncio.sleep(0)
            await asyncio.sleep(chance.choice((0, 0.0005)))
        await asyncio.sleep(0.005)

    with repeating(bench.cancel_all, bench.look_at_all):
        loop.run_until_complete(make())
    support.run_turns(loop, 3)
    bench.check(arm)


def test_a_timer_that_nobody_cancels_runs_while_others_look_at_it(bench, loop, arm):
    count = rounds(200)

    async def make():
        for number in range(count):
            bench.put([loop.call_later(0.0001, *bench.arguments((number, each))) for each in range(64)])
            await asyncio.sleep(0)
        await support.until(lambda: len(bench.ran) == 64 * count)

    with repeating(bench.look_at_all, bench.look_at_all):
        loop.run_until_complete(make())
    bench.check(arm)


@pytest.mark.parametrize("kind", ["call_soon", "call_later"])
def test_handles_that_several_threads_cancel_at_once(loop, kind):
    """The last that is left of a handle ends in whichever thread comes last."""
    census = Census()
    for _ in range(rounds(200)):
        if kind == "call_soon":
            handles = [loop.call_soon(print, census.make()) for _ in range(256)]
        else:
            handles = [loop.call_later(100, print, census.make()) for _ in range(256)]

        def cancel(handles):
            for handle in handles:
                handle.cancel()

        at_once(*[functools.partial(cancel, handles)] * 3)
        assert all(handle.cancelled() for handle in handles)
        del handles
        support.run_turns(loop)
    # Cancelled timers leave asyncio's list when their time has come, or when they are many.
    loop.close()
    if hasattr(loop, "_scheduled"):
        loop._scheduled.clear()
    census.check()


def test_handles_that_end_in_other_threads(loop):
    """The loop's reference and the thread's are let go of at about the same moment; one handle's memory may be the next one's at once."""
    census, count = Census(), rounds(2000)

    def post():
        for _ in range(count):
            handle = loop.call_soon_threadsafe(lambda _: None, census.make())
            del handle
            for handle in [loop.call_soon_threadsafe(lambda _: None, census.make()) for _ in range(8)]:
                handle.cancel()

    with running_in_a_thread(loop):
        at_once(post, post)
    support.run_turns(loop, 3)
    census.check()


def test_cancelling_waits_for_nothing_that_waits_for_it(loop):
    """A callback that waits for the thread that cancels it: without an end of the one, none of the other."""

    def once(steps):
        def callback():
            steps.append("began")
            until(lambda: "asked" in steps)
            steps.append("ended")

        with running_in_a_thread(loop):
            handle = loop.call_soon_threadsafe(callback)
            until(lambda: "began" in steps)
            steps.append("asked")
            handle.cancel()
            steps.append("cancelled")
            until(lambda: len(steps) == 4)
        assert handle.cancelled()

    for _ in range(rounds(100)):
        once([])
