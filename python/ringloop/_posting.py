"""Methods of transports that other threads call where there is no GIL: the loop's thread does what they ask for.

The methods that run once per packet do the same natively.
"""

from __future__ import annotations

import functools
import sys
from asyncio import transports
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

FREE_THREADED = "t" in sys.abiflags
"""Whether this is a free-threaded build of CPython, on which alone methods are left to the loop."""

_Flow: Any = transports._FlowControlMixin


def left_to_the_loop(method: Any, check: Callable[..., object] | None = None) -> Any:
    """Return a method of transports that the loop's thread calls if another thread runs the loop, in the order in which it was asked.

    `check` is called at once with the arguments, to raise the errors that only depend on them.
    """
    if not FREE_THREADED:
        return method

    @functools.wraps(method)
    def leave(self: Any, *arguments: Any, **options: Any) -> Any:
        loop = self._loop
        if loop is None or not loop._runs_elsewhere():
            return method(self, *arguments, **options)
        if check is not None:
            check(*arguments, **options)
        loop.call_soon_threadsafe(functools.partial(method, self, *arguments, **options))
        return None

    return leave


def check_limits(high: Any = None, low: Any = None) -> None:
    """Raise what asyncio's `set_write_buffer_limits` raises for these arguments."""
    _Flow._set_write_buffer_limits(SimpleNamespace(), high, low)


class EndsInTheLoop:
    """A transport of asyncio's that the loop's thread ends, whoever asks for it. It says at once that it is closing."""

    _ends = False

    if FREE_THREADED and not TYPE_CHECKING:  # stubtest runs on other builds, too

        def is_closing(self: Any) -> bool:
            """Return True once the transport is closing or closed."""
            return bool(self._closing or self._ends)


def ends_in_the_loop(method: Any) -> Any:
    """Return a method without arguments that ends an `EndsInTheLoop`, for `left_to_the_loop`."""
    if not FREE_THREADED:
        return method

    def end(transport: Any) -> None:
        is_over = transport._closing and not getattr(transport, "_buffer", None)
        if not is_over:
            method(transport)

    @functools.wraps(method)
    def leave(self: Any) -> None:
        loop = self._loop
        if loop is None or not loop._runs_elsewhere():
            method(self)
        else:
            self._ends = True
            loop.call_soon_threadsafe(end, self)

    return leave
