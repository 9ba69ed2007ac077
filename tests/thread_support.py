"""Shared by the tests in which several threads touch one loop, or run loops of their own.

They are bounded by counts: `rounds` says how many. On a build of CPython with the GIL they show that nothing was forgotten. Without the
GIL they are stress, and `make test-free-threaded` gives them ten times as many rounds.
"""

import contextlib
import gc
import threading
import time

import support

rounds = support.examples


def at_once(*functions):
    """Call each function in a thread of its own, all at the same moment, and return their results."""
    start = threading.Barrier(len(functions))

    def begin(function):
        start.wait(support.PATIENCE_S)
        return function()

    threads = [support.BackgroundThread(begin, function) for function in functions]
    return [thread.result() for thread in threads]


@contextlib.contextmanager
def running_in_a_thread(loop):
    """Run the loop in a thread of its own while the context lasts."""
    thread = support.BackgroundThread(loop.run_forever)
    try:
        yield thread
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.result()


@contextlib.contextmanager
def repeating(function, *more):
    """Call the functions again and again, each in a thread of its own, while the context lasts; what one of them raises is raised."""
    over = threading.Event()

    def repeat(function):
        while not over.is_set():
            function()

    threads = [support.BackgroundThread(repeat, each) for each in (function, *more)]
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.result()


def collecting():
    """Force garbage collections in a thread of its own while the context lasts."""

    def collect():
        began = time.monotonic()
        gc.collect()
        # Without the GIL a collection stops all threads. Let them run for as long as it took, even on a busy machine.
        time.sleep(max(0.002, time.monotonic() - began))

    return repeating(collect)


async def echo(reader, writer):
    """Send back what comes, until it ends."""
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()


def until(condition, what="the condition"):
    """Wait in a thread that runs no loop until `condition()` is true. It asks as often as it can: what it waits for ends a race."""
    deadline = time.monotonic() + support.PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come true within {support.PATIENCE_S} s"
        time.sleep(0)


class Census:
    """Makes objects, and counts those that have ended."""

    def __init__(self):
        self._made, self._ended = [], []
        ended = self._ended

        class Citizen:
            def __del__(self):
                ended.append(None)  # Appending is atomic, with and without the GIL.

        self._citizen = Citizen

    def make(self):
        """Return a new object."""
        self._made.append(None)
        return self._citizen()

    def check(self):
        """Assert that each object has ended, once."""
        gc.collect()
        assert len(self._ended) == len(self._made)
