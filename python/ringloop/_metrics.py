"""The metrics of a loop: `loop.metrics()`."""

import asyncio
import functools
from types import CodeType, MethodType
from typing import NamedTuple


class Metrics(NamedTuple):
    """Counts of what an event loop has done since it was made, and of what it holds now. See `EventLoop.metrics`.

    Times are by the clock of `loop.time()`, not CPU time. The differences of two snapshots say what happened in between.
    """

    backend: str
    """The kernel interface in use: "io_uring" or "epoll"."""
    turns: int
    """Turns of the loop: each looks at the kernel and at the timers, and runs what is ready."""
    callbacks: int
    """Callbacks run: those of `call_soon` and the like, timers, descriptors, task steps, and reads and writes of transports."""
    ready: int
    """Callbacks that are queued now, for this turn or the next. Cancelled ones count until their turn comes."""
    timers: int
    """Timers that are scheduled now; cancelled ones don't count."""
    connections: int
    """Native transports that have a socket now, including closing ones. asyncio's own transports don't count."""
    busy_seconds: float
    """Time during which the loop didn't wait: in callbacks and in the loop itself."""
    idle_seconds: float
    """Time during which the loop waited for something to happen, polling or asleep in the kernel."""
    gil_seconds: float
    """Time from the end of such a wait until the loop had the GIL back from other threads."""
    polling_seconds: float
    """The part of `idle_seconds` in which the loop polled instead of sleeping."""
    wasted_seconds: float
    """The part of `polling_seconds` in which nothing came."""
    slowest_seconds: float
    """How long the slowest callback took; 0.0 if none has taken 0.1 ms.

    Measured from its call to its return, including what other threads and processes did in between.
    """
    slowest_callback: str | None
    """A description of it, which keeps nothing alive: a function, a task's coroutine, or a transport's protocol.

    Where callbacks take less than 2 us on average, the clock isn't read after each of them. Then it may be "one of 16 callbacks,
    the last of them ...", with the time of all of them in `slowest_seconds`. The next 100,000 callbacks are timed one by one.
    """
    system_calls: int
    """System calls made by native code. Those of Python's own modules, such as `socket.accept`, don't count."""
    events: int
    """Completions and reports of readiness that the kernel has delivered."""
    wakes: int
    """Waits that another thread has ended, for example with `call_soon_threadsafe`."""
    waits: int
    """Turns that waited, because nothing was ready."""
    polled_waits: int
    """The waits that began with polling."""
    polled_hits: int
    """The polled waits in which something came, so the loop didn't sleep."""
    stalls: int
    """Callbacks that have held the loop longer than the threshold of `ringloop.watch`; 0 if the loop is not watched."""


def describe(subject: object) -> str:
    """Describe what was run: a callback, one of asyncio's handles, or a transport. The result is valid UTF-8."""
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
        # An object of the user's that raises when asked for its name.
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


# The second is used where asyncio's C module is missing, and some debuggers install it.
_TASKS = (asyncio.Task, asyncio.tasks._PyTask)  # type: ignore[attr-defined]


def _describe_code(function: object, code: object) -> str:
    """Return name and place of a function or a coroutine, as asyncio's handles give theirs."""
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    place = f" at {code.co_filename}:{code.co_firstlineno}" if isinstance(code, CodeType) else ""
    return f"{name}(){place}"
