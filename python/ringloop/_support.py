"""Functions that the native code calls in rare cases: errors, debug mode, representations.

Everything here exists in asyncio, too, with the same messages. It is in Python so that the native code stays short.
"""

from __future__ import annotations

import asyncio
import operator
import sys
import time
import types
from asyncio import base_events, events, format_helpers, futures, selector_events, streams, transports
from asyncio.log import logger
from typing import TYPE_CHECKING, Any

from . import _platform
from ._streams import adopt as adopt_streams

if TYPE_CHECKING:
    import traceback
    from collections.abc import Callable
    from contextvars import Context

    from . import _core
    from ._types import _Loop

    # With asyncio's private names, which typeshed leaves out.
    class _Handle(asyncio.Handle):
        _callback: Callable[..., object] | None
        _loop: _Loop
        _source_traceback: traceback.StackSummary

    class _TimerHandle(_Handle, asyncio.TimerHandle):
        _scheduled: bool
        _when: float

    class _ThreadSafeHandle(_Handle): ...

else:
    _Handle = asyncio.Handle
    _TimerHandle = asyncio.TimerHandle
    # Newer Pythons have a separate class for handles that other threads may cancel.
    _ThreadSafeHandle = getattr(events, "_ThreadSafeHandle", asyncio.Handle)
__all__ = ["adopt_streams", "logger"]

# Transports feed the reader of this protocol without calling the protocol. They copy what the tested versions of asyncio do.
FED_PROTOCOL = streams.StreamReaderProtocol if _platform.IS_TESTED else None

_DATAGRAM_TRANSPORT: Any = selector_events._SelectorDatagramTransport  # type: ignore[attr-defined]
_FLOW_CONTROL: Any = transports._FlowControlMixin
_SELECTOR_TRANSPORT = selector_events._SelectorSocketTransport  # type: ignore[attr-defined]


def handle_repr(handle: _Handle) -> str:
    """Return the representation of a handle, as `asyncio.Handle.__repr__` makes it."""
    info = [handle.__class__.__name__]
    if handle._cancelled:
        info.append("cancelled")
    if isinstance(handle, _TimerHandle):
        info.append(f"when={handle.when()}")
    if (callback := handle._callback) is not None:
        info.append(_callback_source(handle, callback))
    return f"<{' '.join(info)}>"


def _callback_source(handle: _Handle, callback: object) -> str:
    arguments = handle._args
    if hasattr(events.Handle, "_repr_info") and "debug" in _SOURCE_PARAMETERS:
        debug = handle._loop.get_debug()
        return _FORMAT_SOURCE(callback, arguments, debug=debug)
    return _FORMAT_SOURCE(callback, arguments)


# Its parameters depend on the running Python's version, including the bug-fix release.
_FORMAT_SOURCE: Callable[..., str] = format_helpers._format_callback_source
_SOURCE_PARAMETERS = format_helpers._format_callback_source.__code__.co_varnames


_set_context: Any = BaseException.__dict__["__context__"].__set__


def call_handling(exception: BaseException, function: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    """Call a function as if from the `except` block that caught the exception, so that `sys.exc_info()` has it."""
    context, traceback = exception.__context__, exception.__traceback__
    try:
        raise exception
    except BaseException:
        # The exception should look as if raised where it first was.
        _set_context(exception, context)
        BaseException.with_traceback(exception, traceback)
        function(*arguments)


def report_callback_error(handle: _Handle, exception: BaseException) -> None:
    """Tell the loop's exception handler about a callback that raised, as `asyncio.Handle._run` does."""
    source = _callback_source(handle, handle._callback)
    context: dict[str, Any] = {
        "message": f"Exception in callback {source}",
        "exception": exception,
        "handle": handle,
    }
    if handle._source_traceback:
        context["source_traceback"] = handle._source_traceback
    call_handling(exception, handle._loop.call_exception_handler, (context,))


_COMPARISONS = (operator.lt, operator.le, operator.eq, operator.ne, operator.gt, operator.ge)


def timer_handle_compare(left: Any, right: Any, operation: int) -> Any:
    """Compare two timer handles by time, in the order of C's Py_LT to Py_GE."""
    if not isinstance(right, _TimerHandle):
        return NotImplemented
    compare = _COMPARISONS[operation]
    if compare in (operator.lt, operator.gt):
        return compare(left._when, right._when)
    # In asyncio's order, and only as far as needed: comparing callbacks may run user code.
    equal = (
        left._when == right._when
        and left._callback == right._callback
        and left._args == right._args
        and left._cancelled == right._cancelled
    )
    if compare is operator.eq:
        return equal
    if compare is operator.ne:
        return not equal
    strict = operator.lt if compare is operator.le else operator.gt
    return strict(left._when, right._when) or equal


def end_empty_waiter(waiter: asyncio.Future[None]) -> None:
    """Tell who waits for an empty write buffer that the connection is over."""
    if not waiter.done():
        waiter.set_exception(ConnectionError("Connection is closed by peer"))


wake_waiter = futures._set_result_unless_cancelled  # type: ignore[attr-defined]
set_nodelay = base_events._set_nodelay  # type: ignore[attr-defined]


def make_handle(
    loop: _Loop, callback: Callable[..., object], arguments: tuple[Any, ...], context: Context | None
) -> asyncio.Handle:
    """Return asyncio's own handle for a descriptor's callback, in debug mode."""
    handle = _Handle(callback, arguments, loop, context)
    del handle._source_traceback[-1]
    return handle


def call_soon_debug(
    loop: _Loop,
    callback: Callable[..., object],
    arguments: tuple[Any, ...],
    context: Context | None,
    when: None,
) -> asyncio.Handle:
    """Schedule a callback in debug mode, as `call_soon`: asyncio's checks, and its handle with the traceback of its creation."""
    loop._check_thread()
    loop._check_callback(callback, "call_soon")
    handle = _Handle(callback, arguments, loop, context)
    del handle._source_traceback[-1]
    loop._add_callback(handle)
    return handle


def call_soon_threadsafe_debug(
    loop: _Loop,
    callback: Callable[..., object],
    arguments: tuple[Any, ...],
    context: Context | None,
    when: None,
) -> asyncio.Handle:
    """Schedule a callback in debug mode, as `call_soon_threadsafe`."""
    loop._check_callback(callback, "call_soon_threadsafe")
    handle = _ThreadSafeHandle(callback, arguments, loop, context)
    # The frame of this function, and that of the class's own __init__ if it has one.
    own = "__init__" in vars(_ThreadSafeHandle) and _ThreadSafeHandle.__name__ != "Handle"
    del handle._source_traceback[-2 if own else -1 :]
    loop._add_callback(handle)
    return handle


def call_at_debug(
    loop: _Loop,
    callback: Callable[..., object],
    arguments: tuple[Any, ...],
    context: Context | None,
    when: float,
) -> asyncio.TimerHandle:
    """Schedule a callback in debug mode, as `call_at`."""
    loop._check_thread()
    loop._check_callback(callback, "call_at")
    handle = _TimerHandle(when, callback, arguments, loop, context)
    del handle._source_traceback[-1]
    loop._add_timer(handle, when)
    handle._scheduled = True
    return handle


def run_timed(loop: _Loop, handle: asyncio.Handle) -> None:
    """Run a handle in debug mode, and log it if it blocked the loop for `slow_callback_duration`."""
    loop._current_handle = handle
    begin = time.monotonic()
    try:
        handle._run()
        duration = time.monotonic() - begin
        if duration >= loop.slow_callback_duration:
            _log_slow(base_events._format_handle(handle), duration)  # type: ignore[attr-defined]
    finally:
        loop._current_handle = None
        # The traceback of a task's exception may hold this frame, and the frame would hold the task.
        del handle


def _log_slow(what: object, duration: float) -> None:
    # Looked up where asyncio's loop looks it up, because tests replace it there.
    base_events.logger.warning("Executing %s took %.3f seconds", what, duration)  # type: ignore[attr-defined]


def log_slow_transport(loop: _Loop, transport: object, duration: float) -> None:
    """Log a transport whose protocol blocked the loop, in debug mode."""
    if duration >= loop.slow_callback_duration:
        _log_slow(transport, duration)


def report_transport_error(
    loop: _Loop,
    transport: _core.SocketTransport | _core.DatagramTransport,
    callback: str,
    context: Context | None,
    exception: BaseException,
) -> None:
    """Report the exception of a transport's step, which in asyncio is a callback of this name, to the loop's exception handler."""

    def method(name: str) -> Callable[..., object]:
        # From Python 3.12 on, each instance has the sending method; its class has it under this name.
        own = transport.__class__
        return types.MethodType(getattr(own, name if hasattr(own, name) else "_write_sendmsg"), transport)

    arguments = (transport._sock_fd, method("_read_ready")) if callback == "_add_reader" else ()
    handle = _Handle(method(callback), arguments, loop, context)
    reads, writes = transport._polling()
    if not {"_read_ready": reads, "_add_reader": True}.get(callback, writes):
        # Whoever ended the wait has cancelled the handle, even while it ran.
        handle.cancel()
    report_callback_error(handle, exception)


def refuse_datagram(transport: _core.DatagramTransport, data: object, address: object) -> None:
    """Do what asyncio does with a datagram that can't be sent: of the wrong type, not to the peer, or too late."""
    _DATAGRAM_TRANSPORT.sendto(transport, data, address)


def water_marks(high: Any, low: Any) -> tuple[int, int]:
    """Return the (high, low) marks in bytes that asyncio computes from arguments of `set_write_buffer_limits`; raise its errors."""
    marks: Any = types.SimpleNamespace()
    _FLOW_CONTROL._set_write_buffer_limits(marks, high, low)
    return int(min(marks._high_water, sys.maxsize)), int(min(marks._low_water, sys.maxsize))


def write_type_error(data: object) -> TypeError:
    """Return the error of the running Python's asyncio for data that a transport can't send."""
    try:
        _SELECTOR_TRANSPORT.write(None, data)
    except TypeError as error:
        return error.with_traceback(None)
    raise AssertionError(f"{type(data)} is bytes-like")
