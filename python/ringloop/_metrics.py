"""What a loop tells about itself: `loop.metrics()`."""

import asyncio
import functools
from types import CodeType, MethodType
from typing import NamedTuple


class Metrics(NamedTuple):
    """What an event loop has done since it was made, and what it holds now. See `EventLoop.metrics`.

    Seconds are of the clock of `loop.time()`, not of CPU time. Of two snapshots, the differences tell what happened in between.
    """

    backend: str
    """The kernel interface in use: "io_uring" or "epoll"."""
    turns: int
    """Turns of the loop: each looks at the kernel and at the timers, and runs what is ready."""
    callbacks: int
    """Callbacks run: of `call_soon` and its like, of timers, of descriptors, steps of tasks, and reads and writes of transports."""
    ready: int
    """Callbacks that are queued now, for the next turn or this one. Cancelled ones count until their turn comes."""
    timers: int
    """Timers that are scheduled now; cancelled ones don't count."""
    connections: int
    """Native transports that have their socket now, also those that are closing. asyncio's own transports don't count."""
    busy_seconds: float
    """Time that the loop ran without waiting: in callbacks, and in the loop itself."""
    idle_seconds: float
    """Time that the loop waited for something to happen, polling or asleep in the kernel."""
    gil_seconds: float
    """Time between the end of such a wait and having Python's global lock back, which other threads held."""
    polling_seconds: float
    """The part of `idle_seconds` in which the loop polled instead of sleeping."""
    wasted_seconds: float
    """The part of `polling_seconds` in which nothing came."""
    slowest_seconds: float
    """How long the slowest callback took; 0.0 if none has taken 0.1 ms.

    Timed from its call to its return, with whatever the system did in between: other threads, other processes.
    """
    slowest_callback: str | None
    """What it was, in a text that keeps nothing alive: a function, a task's coroutine, or a transport's protocol.

    Where callbacks take less than 2 us on average, the clock is not read after each of them. There it may be "one of 16 callbacks,
    the last of them ...", and `slowest_seconds` is the time of all of them. The next 100,000 are then told apart.
    """
    system_calls: int
    """System calls made by native code. Those of Python's own modules (`socket.accept`, for one) don't count."""
    events: int
    """Completions and reports of readiness that the kernel has delivered."""
    wakes: int
    """Waits that another thread has ended, by `call_soon_threadsafe` for one."""
    waits: int
    """Turns that waited, because nothing was ready."""
    polled_waits: int
    """The waits that began with polling."""
    polled_hits: int
    """The polled waits in which something came, so that the loop did not sleep."""


def describe(subject: object) -> str:
    """Says what was run: a callback, one of asyncio's handles, or a transport. In UTF-8, whatever the path or the name is in."""
    return _describe(subject).encode("utf-8", "backslashreplace").decode()


def _describe(subject: object) -> str:
    try:
        if isinstance(subject, asyncio.Handle):
            return _describe_callback(subject._callback)  # type: ignore[attr-defined]
        if isinstance(subject, asyncio.BaseTransport):
            protocol = type(subject.get_protocol())
            return f"connection of {protocol.__module__}.{protocol.__qualname__}"
        return _describe_callback(subject)
    except Exception:
        # An object of the user's that raises where it is asked for its name.
        return object.__repr__(subject)


def _describe_callback(callback: object) -> str:
    if callback is None:
        return "a callback that was cancelled while it ran"
    if isinstance(callback, functools.partial):
        return _describe_callback(callback.func)
    task = getattr(callback, "__self__", None)
    if isinstance(task, _TASKS):
        coroutine = task.get_coro()
        return f"task {task.get_name()!r} of {_describe_code(coroutine, getattr(coroutine, 'cr_code', None))}"
    if isinstance(callback, MethodType):
        callback = callback.__func__
    return _describe_code(callback, getattr(callback, "__code__", None))


# The second is what asyncio's are where its C module is missing, and what some debuggers put in their place.
_TASKS = (asyncio.Task, asyncio.tasks._PyTask)  # type: ignore[attr-defined]


def _describe_code(function: object, code: object) -> str:
    """Name and place of a function or a coroutine, as asyncio's handles give theirs."""
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    place = f" at {code.co_filename}:{code.co_firstlineno}" if isinstance(code, CodeType) else ""
    return f"{name}(){place}"
