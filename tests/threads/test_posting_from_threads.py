"""`call_soon_threadsafe` and `run_coroutine_threadsafe` from several threads: nothing is lost, reordered, or left waiting."""

import asyncio
import concurrent.futures
import functools
import random
import threading

import pytest

import support
from thread_support import Census, at_once, rounds, running_in_a_thread, until

pytestmark = pytest.mark.examples


class Posts:
    """Callbacks that some threads post: each thread waits now and then until all of its own has run.

    The loop has no timer and no descriptor of ours. If a wakeup is lost, and nobody posts any more, it sleeps for ever.
    """

    def __init__(self, loop, threads, own_work):
        self.loop, self.own_work = loop, own_work
        self.posted, self.ran = [0] * threads, [0] * threads
        self.out_of_order = []
        self.chained = self.chains = 0
        self.meeting = threading.Barrier(threads)

    def chain(self, left):
        self.chained += 1
        if left:
            self.loop.call_soon(self.chain, left - 1)

    def callback(self, who, number):
        if number != self.ran[who]:
            self.out_of_order.append((who, number, self.ran[who]))
        self.ran[who] += 1
        if self.own_work and number % 7 == 0:
            self.chains += 1
            self.loop.call_soon(self.chain, 8)

    def post(self, who, count):
        chance = random.Random(who)
        for number in range(count):
            if number % 2:
                # All post at once, and then nobody does before all of it has run.
                self.meeting.wait(support.PATIENCE_S)
            for _ in range(chance.choice((1, 1, 2, 5, 40))):
                self.loop.call_soon_threadsafe(self.callback, who, self.posted[who])
                self.posted[who] += 1
            until(lambda: self.ran[who] == self.posted[who], "what was posted")


@pytest.mark.parametrize("own_work", [False, True], ids=["idle", "busy"])
@pytest.mark.parametrize("threads", [1, 2, 3, 4])
def test_nothing_that_is_posted_is_lost_or_reordered(loop, threads, own_work):
    posts = Posts(loop, threads, own_work)
    with running_in_a_thread(loop):
        at_once(*(functools.partial(posts.post, who, rounds(1000)) for who in range(threads)))
    assert posts.ran == posts.posted
    assert posts.out_of_order == []
    support.run_turns(loop, 10)
    assert posts.chained == posts.chains * 9


def test_what_is_posted_while_the_loop_stops_and_starts_runs(loop):
    ran, threads, count = [], 3, rounds(3000)

    def callback(who, number):
        ran.append((who, number))
        # Also after the last one, or the loop would wait for more.
        if number % 10 == 0 or number == count - 1:
            loop.stop()

    def post(who):
        for number in range(count):
            loop.call_soon_threadsafe(callback, who, number)

    def run():
        while len(ran) < threads * count:
            loop.run_forever()

    at_once(run, *(functools.partial(post, who) for who in range(threads)))
    for who in range(threads):
        assert [number for thread, number in ran if thread == who] == list(range(count))


def test_what_is_posted_while_a_loop_closes_is_refused_or_let_go(loop_factory):
    census = Census()

    def post(loop, taken):
        while True:
            try:
                loop.call_soon_threadsafe(lambda _: None, census.make())
            except RuntimeError as error:
                assert str(error) == "Event loop is closed"
                return
            taken.append(None)

    for _ in range(rounds(60)):
        loop, taken = loop_factory(), []

        def run(loop=loop, taken=taken):
            loop.call_soon_threadsafe(loop.stop)
            loop.run_forever()
            until(lambda: len(taken) > 5)
            loop.close()

        at_once(run, *[functools.partial(post, loop, taken)] * 2)
        del loop, run, taken
    census.check()


def test_coroutines_of_several_threads(loop):
    count = rounds(400)

    async def double(number):
        await asyncio.sleep(0)
        return number * 2

    async def fail(number):
        raise LookupError(number)

    def submit(who):
        for number in range(who, 4 * count, 4):
            assert asyncio.run_coroutine_threadsafe(double(number), loop).result(support.PATIENCE_S) == number * 2
            with pytest.raises(LookupError, match=str(number)):
                asyncio.run_coroutine_threadsafe(fail(number), loop).result(support.PATIENCE_S)

    with running_in_a_thread(loop):
        at_once(*(functools.partial(submit, who) for who in range(4)))


def test_coroutines_that_several_threads_cancel(loop):
    """The future ends once, cancelled or with its result, and so does the task."""
    begun, ended, outcomes, count = [], [], [], rounds(300)

    async def work(number):
        begun.append(number)
        try:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            return number
        finally:
            ended.append(number)

    def submit(who):
        for number in range(who, 3 * count, 3):
            future = asyncio.run_coroutine_threadsafe(work(number), loop)
            if number % 2:
                until(lambda number=number, future=future: number in begun[-10:] or future.done())
            future.cancel()
            try:
                outcomes.append(future.result(support.PATIENCE_S) == number)
            except concurrent.futures.CancelledError:
                outcomes.append(True)

    with running_in_a_thread(loop):
        at_once(*(functools.partial(submit, who) for who in range(3)))
        # What was cancelled before it began never does, and the others end.
        until(lambda: len(ended) == len(begun))
    assert outcomes == [True] * (3 * count)
    support.run_turns(loop, 4)
    assert sorted(ended) == sorted(begun)
    assert not asyncio.all_tasks(loop)


def test_futures_that_are_done_in_threads_wake_tasks(loop):
    """As executors do it: each wait ends by a callback from another thread, and nothing else would end it."""

    async def wait(count):
        for number in range(count):
            assert await loop.run_in_executor(None, lambda number=number: number) == number

    async def main():
        await asyncio.gather(*(wait(rounds(400)) for _ in range(4)))

    loop.run_until_complete(main())
    loop.run_until_complete(loop.shutdown_default_executor())
