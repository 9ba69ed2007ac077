"""Callbacks, timers and their handles: order, arguments, representations, errors."""

import asyncio
import contextvars
import fractions
import functools
import gc
import math
import socket
import threading
import time
import weakref

import pytest

from support import (
    BackgroundThread,
    Strange,
    capture_contexts,
    noop,
    run_turns,
    same_as_asyncio,
    skip_unless,
    until_waiting,
)

# Order


def test_call_soon_runs_in_the_order_of_calls(loop):
    trace = []
    for number in range(100):
        loop.call_soon(trace.append, number)
    assert trace == []
    run_turns(loop)
    assert trace == list(range(100))


def test_what_is_queued_in_a_turn_runs_in_the_next(loop):
    trace = []

    def outer(name):
        trace.append(name)
        loop.call_soon(trace.append, name + " inner")

    loop.call_soon(outer, "first")
    loop.call_soon(outer, "second")
    run_turns(loop)
    assert trace == ["first", "second"]
    run_turns(loop)
    assert trace == ["first", "second", "first inner", "second inner"]


def test_a_chain_advances_by_one_link_per_turn(loop):
    count = 0

    def link():
        nonlocal count
        count += 1
        loop.call_soon(link)

    loop.call_soon(link)
    for expected in range(1, 20):
        run_turns(loop)
        assert count == expected


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, 8, 40])
def test_arguments_arrive_as_given(loop, count):
    received = []
    arguments = tuple(object() for _ in range(count))
    loop.call_soon(lambda *got: received.append(got), *arguments)
    loop.call_later(0, lambda *got: received.append(got), *arguments)
    loop.call_soon_threadsafe(lambda *got: received.append(got), *arguments)
    run_turns(loop, 3)
    assert received == [arguments] * 3


def test_timers_fire_in_the_order_of_their_deadlines(loop):
    trace = []
    now = loop.time()
    for delay in (0.03, 0.01, 0.02, 0.0, 0.015):
        loop.call_at(now + delay, trace.append, delay)
    loop.call_at(now + 0.04, loop.stop)
    loop.run_forever()
    assert trace == [0.0, 0.01, 0.015, 0.02, 0.03]


def test_a_timer_never_fires_early(loop):
    early = []

    def check(handle_box):
        if loop.time() + time.get_clock_info("monotonic").resolution < handle_box[0].when():
            early.append(handle_box)

    for milliseconds in range(30):
        box = []
        box.append(loop.call_later(milliseconds / 1000, check, box))
    loop.call_later(0.032, loop.stop)
    loop.run_forever()
    assert early == []


def test_call_later_of_zero_runs_after_what_was_queued_before_and_in_its_own_order(loop):
    trace = []
    loop.call_later(0, trace.append, "timer 1")
    loop.call_soon(trace.append, "soon 1")
    loop.call_later(0, trace.append, "timer 2")
    loop.call_soon(trace.append, "soon 2")
    run_turns(loop)
    assert trace == ["soon 1", "soon 2", "timer 1", "timer 2"]


def test_a_timer_due_already_waits_for_the_next_turn(loop):
    trace = []

    def first():
        trace.append("first")
        loop.call_at(loop.time() - 1, trace.append, "overdue")
        loop.call_later(-1, trace.append, "negative")

    loop.call_later(0, first)
    run_turns(loop)
    assert trace == ["first"]
    run_turns(loop)
    assert sorted(trace) == ["first", "negative", "overdue"]


def test_overdue_timers_fire_by_deadline_not_by_insertion(loop):
    trace = []
    now = loop.time()
    for offset in (-1, -3, -2, -5, -4):
        loop.call_at(now + offset, trace.append, offset)
    run_turns(loop)
    assert trace == [-5, -4, -3, -2, -1]


def test_a_turn_runs_what_was_queued_then_io_then_timers(loop):
    reader, writer = socket.socketpair()
    trace = []

    def arrange():
        writer.send(b"x")
        loop.call_at(loop.time() - 1, trace.append, "timer")
        loop.call_soon(trace.append, "soon")

    with reader, writer:
        loop.add_reader(reader, lambda: (trace.append("io"), loop.remove_reader(reader)))
        run_turns(loop)
        loop.call_soon(arrange)
        run_turns(loop, 2)
    assert trace == ["soon", "io", "timer"]


def test_io_precedes_timers_after_a_long_callback(loop):
    reader, writer = socket.socketpair()
    trace = []

    def block():
        writer.send(b"x")
        # Begun here, or it might be due before the socket is readable.
        loop.call_later(0.01, lambda: (trace.append("timer"), loop.stop()))
        time.sleep(0.02)  # Until the timer is due: the loop must meet both at once.

    with reader, writer:
        loop.add_reader(reader, lambda: (trace.append("io"), loop.remove_reader(reader)))
        loop.call_soon(block)
        loop.run_forever()
    assert trace == ["io", "timer"]


def test_threadsafe_and_plain_calls_from_the_loops_own_thread_share_one_queue(loop):
    trace = []
    for number in range(0, 10, 2):
        loop.call_soon(trace.append, number)
        loop.call_soon_threadsafe(trace.append, number + 1)
    run_turns(loop)
    assert trace == list(range(10))


@pytest.mark.exact
def test_call_soon_threadsafe_wakes_a_sleeping_loop(loop):
    trace = []

    def wake():
        until_waiting(threading.main_thread())
        loop.call_soon_threadsafe(lambda: (trace.append(threading.get_ident()), loop.stop()))

    thread = BackgroundThread(wake)
    loop.run_forever()
    thread.result()
    assert trace == [threading.get_ident()]


@pytest.mark.exact
def test_callbacks_from_many_threads_all_arrive_each_in_its_order(loop):
    threads, each = 8, 500
    trace = []
    start = threading.Barrier(threads)

    def send(name):
        start.wait()
        for number in range(each):
            loop.call_soon_threadsafe(receive, name, number)

    def receive(name, number):
        trace.append((name, number))
        if len(trace) == threads * each:
            loop.stop()

    workers = [BackgroundThread(send, name) for name in range(threads)]
    loop.run_forever()
    for worker in workers:
        worker.result()
    for name in range(threads):
        assert [number for sender, number in trace if sender == name] == list(range(each))


@pytest.mark.exact
def test_threadsafe_calls_made_before_the_loop_runs_are_kept(loop):
    trace = []
    BackgroundThread(lambda: [loop.call_soon_threadsafe(trace.append, number) for number in range(3)]).result()
    run_turns(loop, 2)
    assert trace == [0, 1, 2]


def test_time_is_the_monotonic_clock(loop):
    before = time.monotonic()
    now = loop.time()
    assert isinstance(now, float)
    assert before <= now <= time.monotonic()


def test_time_advances_within_one_callback(loop):
    seen = []

    def callback():
        seen.append(loop.time())
        time.sleep(0.002)
        seen.append(loop.time())

    loop.call_soon(callback)
    run_turns(loop)
    assert seen[1] - seen[0] >= 0.002


# Cancelling


@pytest.mark.parametrize("schedule", ["call_soon", "call_later", "call_at", "call_soon_threadsafe"])
def test_a_cancelled_callback_does_not_run(loop, schedule):
    trace = []
    arguments = {"call_later": (0,), "call_at": (0,)}.get(schedule, ())
    handle = getattr(loop, schedule)(*arguments, trace.append, "cancelled")
    assert handle.cancelled() is False
    assert handle.cancel() is None
    assert handle.cancelled() is True
    handle.cancel()
    assert handle.cancelled() is True
    run_turns(loop, 3)
    assert trace == []


def test_a_callback_can_cancel_one_of_its_own_turn(loop):
    trace = []
    loop.call_soon(lambda: victim.cancel())
    victim = loop.call_soon(trace.append, "victim")
    loop.call_soon(trace.append, "bystander")
    run_turns(loop, 2)
    assert trace == ["bystander"]


def test_a_timer_can_cancel_one_that_expired_with_it(loop):
    trace = []
    now = loop.time()
    loop.call_at(now - 2, lambda: victim.cancel())
    victim = loop.call_at(now - 1, trace.append, "victim")
    run_turns(loop, 2)
    assert trace == []


def test_cancel_from_within_and_after_the_run_is_harmless(loop):
    boxes = []

    def cancel_self():
        boxes[0].cancel()
        boxes.append("ran")

    boxes.append(loop.call_soon(cancel_self))
    run_turns(loop)
    assert boxes[1] == "ran"
    assert boxes[0].cancelled()
    done = loop.call_soon(noop)
    run_turns(loop)
    assert not done.cancelled()
    done.cancel()
    assert done.cancelled()


def test_cancel_frees_callback_and_arguments_at_once(loop):
    class Thing:
        def __call__(self, *arguments):
            raise AssertionError("a cancelled callback ran")

    for schedule in (loop.call_soon, functools.partial(loop.call_later, 3600), loop.call_soon_threadsafe):
        callback, argument = Thing(), Thing()
        references = weakref.ref(callback), weakref.ref(argument)
        handle = schedule(callback, argument)
        del callback, argument
        assert all(reference() is not None for reference in references)
        handle.cancel()
        assert all(reference() is None for reference in references)
    run_turns(loop)


def test_cancelled_timers_do_not_pile_up(loop):
    handles = [loop.call_later(3600 + number, noop) for number in range(20_000)]
    references = [weakref.ref(handle) for handle in handles]
    for handle in handles:
        handle.cancel()
    del handle, handles
    run_turns(loop, 2)
    gc.collect()
    assert sum(reference() is not None for reference in references) == 0


def test_many_timers_fire_once_each_in_order(loop):
    trace = []
    now = loop.time()
    offsets = [(number * 7919) % 20_011 for number in range(20_000)]
    handles = [loop.call_at(now - 1 + offset * 1e-5, trace.append, offset) for offset in offsets]
    cancelled = set(offsets[::3])
    for handle in handles[::3]:
        handle.cancel()
    run_turns(loop, 2)
    assert trace == sorted(set(offsets) - cancelled)


def test_a_finished_callback_is_released_with_its_handle(loop):
    class Thing:
        pass

    thing = Thing()
    reference = weakref.ref(thing)
    loop.call_soon(noop, thing)
    loop.call_later(0, noop, thing)
    loop.call_soon_threadsafe(noop, thing)
    del thing
    run_turns(loop, 3)
    assert reference() is None


# Delays


@pytest.mark.parametrize("delay", [0, -0.0, -1, -1e300, -math.inf, False, True, fractions.Fraction(1, 1000), 1e-9])
def test_call_later_takes_real_numbers(loop, delay):
    trace = []
    loop.call_later(delay, trace.append, delay)
    handle = loop.call_later(1.01, loop.stop)
    while not trace:
        run_turns(loop)
    handle.cancel()
    assert trace == [delay]


@pytest.mark.parametrize("delay", [math.inf, 1e300, 1e18, 3e9, 2**31, 2**63])
def test_a_far_deadline_never_fires_and_blocks_nobody(loop, delay):
    trace = []
    handle = loop.call_later(delay, trace.append, "never")
    loop.call_later(0.005, loop.stop)
    loop.run_forever()
    run_turns(loop, 2)
    assert trace == []
    assert handle.when() >= delay


def test_a_deadline_that_is_not_a_number_can_be_cancelled(loop):
    trace = []
    handle = loop.call_later(math.nan, trace.append, "nan")
    assert math.isnan(handle.when())
    handle.cancel()
    loop.call_later(0.001, loop.stop)
    loop.run_forever()
    assert trace == []


def test_bad_delays_are_type_errors(loop_factory):
    def body(loop):
        messages = []
        for call in (
            lambda: loop.call_later(None, noop),
            lambda: loop.call_at(None, noop),
            lambda: loop.call_later("1", noop),
        ):
            with pytest.raises(TypeError) as caught:
                call()
            messages.append(str(caught.value))
        return messages

    messages = same_as_asyncio(body, loop_factory)
    assert messages[:2] == ["delay must not be None", "when cannot be None"]


def test_missing_or_named_arguments_are_type_errors(loop):
    for call in (loop.call_soon, loop.call_soon_threadsafe, loop.call_later, loop.call_at):
        with pytest.raises(TypeError):
            call()
    for call in (loop.call_later, loop.call_at):
        with pytest.raises(TypeError):
            call(1)
    with pytest.raises(TypeError):
        loop.call_soon(noop, unknown=1)
    with pytest.raises(TypeError):
        loop.call_later(1, noop, unknown=1)
    assert loop.call_soon(callback=noop).cancelled() is False
    loop.call_later(delay=0, callback=noop).cancel()
    loop.call_at(when=0, callback=noop).cancel()


# Handles


def test_handles_are_asyncio_handles(loop):
    for handle in (loop.call_soon(noop), loop.call_soon_threadsafe(noop)):
        assert isinstance(handle, asyncio.Handle)
        assert not isinstance(handle, asyncio.TimerHandle)
    for handle in (loop.call_later(1, noop), loop.call_at(1, noop)):
        assert isinstance(handle, asyncio.TimerHandle)
        assert isinstance(handle, asyncio.Handle)


@pytest.mark.parametrize("when", [0, 3, -3, 2**53, 5.0, float("inf")])
@pytest.mark.parametrize("debug", [False, True])
def test_when_is_of_the_type_that_was_given(loop, when, debug):
    loop.set_debug(debug)
    handle = loop.call_at(when, noop)
    for deadline in (handle.when(), handle._when):
        assert deadline == when
        assert isinstance(deadline, int) == isinstance(when, int)
    assert hash(handle) == hash(when)
    handle.cancel()
    assert handle.when() == when
    assert isinstance(loop.call_later(3, noop).when(), float)


def test_when_is_the_deadline(loop):
    before = loop.time()
    handle = loop.call_later(10, noop)
    assert before + 10 <= handle.when() <= loop.time() + 10
    assert loop.call_at(123.456, noop).when() == 123.456
    handle.cancel()
    assert handle.when() >= before + 10


class Callable:
    def __call__(self):
        pass

    def method(self):
        pass

    def __repr__(self):
        return "Callable()"


CALLBACKS = {
    "function": (noop, ()),
    "function with arguments": (noop, (1, "two", [3])),
    "long arguments": (noop, ("x" * 1000, list(range(1000)))),
    "lambda": (lambda: None, ()),
    "method": (Callable().method, ()),
    "object": (Callable(), ()),
    "builtin": (print, (1,)),
    "bound builtin": ([].append, (1,)),
    "class": (Callable, ()),
    "partial": (functools.partial(noop, 1, key=2), (3,)),
    "nested partial": (functools.partial(functools.partial(noop, 1), 2), (3,)),
    "wrapped": (functools.wraps(noop)(lambda: None), ()),
}


@pytest.mark.parametrize("debug", [False, True], ids=["plain", "debug"])
@pytest.mark.parametrize("cancelled", [False, True], ids=["live", "cancelled"])
@pytest.mark.parametrize("callback, arguments", CALLBACKS.values(), ids=CALLBACKS)
def test_repr_of_handles_is_asyncios(loop_factory, callback, arguments, cancelled, debug):
    def body(loop):
        loop.set_debug(debug)
        handles = [
            loop.call_soon(callback, *arguments),
            loop.call_soon_threadsafe(callback, *arguments),
            loop.call_at(5.5, callback, *arguments),
        ]
        if cancelled:
            for handle in handles:
                handle.cancel()
        shown = [repr(handle) for handle in handles]
        for handle in handles:
            handle.cancel()
        return shown

    shown = same_as_asyncio(body, loop_factory)
    assert all(("cancelled" in text) == cancelled and ("created at" in text) == debug for text in shown)
    assert "when=5.5" in shown[2]


def test_repr_in_debug_mode_names_the_line_of_the_call(loop):
    loop.set_debug(True)
    line = noop.__code__.co_firstlineno
    for schedule in (
        lambda: loop.call_soon(noop),
        lambda: loop.call_later(9, noop),
        lambda: loop.call_at(9, noop),
        lambda: loop.call_soon_threadsafe(noop),
    ):
        handle = schedule()
        text = repr(handle)
        assert f"noop() at {noop.__code__.co_filename}:{line}" in text
        assert text.endswith(f"created at {__file__}:{schedule.__code__.co_firstlineno}>")
        handle.cancel()


@pytest.mark.without_debug_mode
def test_repr_of_a_handle_after_its_run(loop_factory):
    def body(loop):
        handle = loop.call_soon(noop, 1)
        run_turns(loop)
        ran = repr(handle)
        handle.cancel()
        return ran, repr(handle)

    assert same_as_asyncio(body, loop_factory)[1] == "<Handle cancelled>"


@pytest.mark.without_debug_mode
def test_a_callback_whose_repr_fails_makes_the_handles_repr_fail(loop):
    class Broken:
        def __call__(self):
            pass

        def __repr__(self):
            raise LookupError("no text")

    handle = loop.call_soon(Broken())
    with pytest.raises(LookupError, match="no text"):
        repr(handle)
    handle.cancel()
    assert repr(handle) == "<Handle cancelled>"


def test_weak_references_to_handles(loop):
    for schedule in (loop.call_soon, loop.call_soon_threadsafe, functools.partial(loop.call_later, 0)):
        handle = schedule(noop)
        reference = weakref.ref(handle)
        assert reference() is handle
        assert handle in weakref.WeakSet([handle])
        del handle
        assert reference() is not None, "the loop holds what it will run"
        run_turns(loop, 2)
        assert reference() is None


def test_timer_handles_compare_by_deadline(loop):
    early, late = loop.call_at(1e9, noop), loop.call_at(2e9, noop)
    assert early < late and early <= late and late > early and late >= early
    assert not (late < early or late <= early or early > late or early >= late)
    assert early != late
    assert sorted([late, early]) == [early, late]
    assert hash(early) == hash(1e9)


def test_timer_handles_are_equal_when_everything_is(loop):
    first, second = loop.call_at(1e9, noop, 1), loop.call_at(1e9, noop, 1)
    assert first == second and first <= second and first >= second
    assert first != loop.call_at(1e9, noop, 2)
    assert first != loop.call_at(1e9, print, 1)
    second.cancel()
    assert first != second
    assert not first <= second and not first >= second
    first.cancel()
    assert first == second


def test_timer_handles_do_not_compare_with_others(loop):
    timer = loop.call_at(1e9, noop)
    assert timer != 1e9 and timer != loop.call_soon(noop) and not timer == object()
    for other in (1e9, None, loop.call_soon(noop)):
        for compare in ("__lt__", "__le__", "__gt__", "__ge__", "__eq__"):
            assert getattr(timer, compare)(other) is NotImplemented
        with pytest.raises(TypeError, match="not supported between instances of"):
            timer < other


def test_handles_are_hashed_by_identity(loop):
    first, second = loop.call_soon(noop), loop.call_soon(noop)
    assert first != second
    assert len({first, second}) == 2


def test_handle_classes_cannot_be_misused_to_crash(loop):
    for handle in (loop.call_soon(noop), loop.call_later(1, noop)):
        with pytest.raises(TypeError):
            handle.cancel(1)
        with pytest.raises(TypeError):
            handle.cancelled(1)
        handle.cancel()


# Contexts


VARIABLE = contextvars.ContextVar("variable", default="default")


def test_a_callback_runs_in_a_copy_of_the_context_of_its_call(loop):
    seen = []

    def callback():
        seen.append(VARIABLE.get())
        VARIABLE.set("set by a callback")

    def schedule():
        VARIABLE.set("caller")
        loop.call_soon(callback)
        loop.call_later(0, callback)
        loop.call_soon_threadsafe(callback)
        VARIABLE.set("later")

    contextvars.copy_context().run(schedule)
    run_turns(loop, 3)
    assert seen == ["caller"] * 3
    assert VARIABLE.get() == "default"


def test_a_given_context_is_entered_itself(loop):
    context = contextvars.copy_context()
    loop.call_soon(VARIABLE.set, "soon", context=context)
    run_turns(loop)
    assert context[VARIABLE] == "soon"
    loop.call_later(0, VARIABLE.set, "later", context=context)
    run_turns(loop)
    assert context[VARIABLE] == "later"
    loop.call_at(0, VARIABLE.set, "at", context=context)
    run_turns(loop)
    assert context[VARIABLE] == "at"
    loop.call_soon_threadsafe(VARIABLE.set, "threadsafe", context=context)
    run_turns(loop, 2)
    assert context[VARIABLE] == "threadsafe"
    assert VARIABLE.get() == "default"


def test_no_context_and_context_none_are_the_same(loop):
    seen = []

    def schedule():
        VARIABLE.set("caller")
        loop.call_soon(lambda: seen.append(VARIABLE.get()), context=None)
        loop.call_later(0, lambda: seen.append(VARIABLE.get()), context=None)

    contextvars.copy_context().run(schedule)
    run_turns(loop)
    assert seen == ["caller", "caller"]


def test_consecutive_callbacks_in_one_context_see_each_others_settings_and_others_do_not(loop):
    shared, seen = contextvars.copy_context(), []
    loop.call_soon(VARIABLE.set, "shared", context=shared)
    loop.call_soon(lambda: seen.append(VARIABLE.get()), context=shared)
    loop.call_soon(lambda: seen.append(VARIABLE.get()))
    loop.call_soon(lambda: seen.append(VARIABLE.get()), context=shared)
    run_turns(loop)
    assert seen == ["shared", "default", "shared"]


def test_a_context_that_is_entered_already_is_reported(loop, caplog):
    context, trace = contextvars.copy_context(), []

    def enter_twice():
        loop.call_soon(noop, context=context)
        loop.call_soon(trace.append, "after")
        run_turns(loop)

    context.run(enter_twice)
    [record] = caplog.records
    assert record.getMessage().startswith("Exception in callback noop")
    assert record.exc_info[0] is RuntimeError
    assert "is already entered" in str(record.exc_info[1])
    assert trace == ["after"]


def test_get_context_returns_the_context_of_the_run(loop):
    skip_unless(hasattr(asyncio.Handle, "get_context"), "Handle.get_context")
    context = contextvars.copy_context()
    for handle in (loop.call_soon(noop, context=context), loop.call_later(9, noop, context=context)):
        assert handle.get_context() is context
        handle.cancel()

    def schedule():
        VARIABLE.set("caller")
        return loop.call_soon(noop)

    handle = contextvars.copy_context().run(schedule)
    assert isinstance(handle.get_context(), contextvars.Context)
    assert handle.get_context()[VARIABLE] == "caller"
    assert handle.get_context() is handle.get_context()


# Closed loops and bad callbacks


@pytest.mark.parametrize(
    "call",
    [
        lambda loop: loop.call_soon(noop),
        lambda loop: loop.call_later(1, noop),
        lambda loop: loop.call_at(1, noop),
        lambda loop: loop.call_soon_threadsafe(noop),
        lambda loop: loop.run_forever(),
        lambda loop: loop.run_in_executor(None, noop),
        lambda loop: loop.add_reader(0, noop),
        lambda loop: loop.add_writer(0, noop),
    ],
    ids=["soon", "later", "at", "threadsafe", "forever", "executor", "reader", "writer"],
)
def test_a_closed_loop_says_so(loop, call):
    loop.close()
    with pytest.raises(RuntimeError) as caught:
        call(loop)
    assert str(caught.value) == "Event loop is closed"


def test_cancelling_handles_after_close_is_harmless(loop):
    handles = [loop.call_soon(noop), loop.call_later(1, noop), loop.call_soon_threadsafe(noop)]
    loop.close()
    for handle in handles:
        handle.cancel()
        assert handle.cancelled()


async def coroutine_function():
    pass


@pytest.mark.parametrize("method", ["call_soon", "call_soon_threadsafe", "call_at", "call_later"])
def test_debug_mode_rejects_what_cannot_be_called(loop, method):
    loop.set_debug(True)
    arguments = (0,) if method in ("call_at", "call_later") else ()
    reported = "call_at" if method == "call_later" else method
    for bad in (None, 5, "text"):
        with pytest.raises(TypeError) as caught:
            getattr(loop, method)(*arguments, bad)
        assert str(caught.value) == f"a callable object was expected by {reported}(), got {bad!r}"
    coroutine = coroutine_function()
    for bad in (coroutine_function, coroutine):
        with pytest.raises(TypeError) as caught:
            getattr(loop, method)(*arguments, bad)
        assert str(caught.value) == f"coroutines cannot be used with {reported}()"
    coroutine.close()


@pytest.mark.without_debug_mode
def test_without_debug_mode_what_cannot_be_called_is_reported_when_it_runs(loop_factory):
    def body(loop):
        contexts = capture_contexts(loop)
        loop.call_soon(None)
        loop.call_soon(5, 1)
        loop.call_later(0, "text")
        run_turns(loop)
        return [(context["message"], repr(context["exception"]), sorted(context)) for context in contexts]

    reports = same_as_asyncio(body, loop_factory)
    assert len(reports) == 3
    assert reports[0][:2] == ("Exception in callback None()", "TypeError(\"'NoneType' object is not callable\")")


# Callbacks that raise


@pytest.mark.without_debug_mode
@pytest.mark.parametrize(
    "error", [ValueError("bad"), asyncio.CancelledError(), GeneratorExit(), StopIteration(), Strange("odd")], ids=repr
)
def test_an_exception_goes_to_the_handler_and_the_turn_goes_on(loop_factory, error):
    def fail(*_arguments):
        raise error

    def body(loop):
        contexts, trace = capture_contexts(loop), []
        handles = [loop.call_soon(fail, 1), loop.call_later(0, fail)]
        loop.call_soon(trace.append, "after")
        run_turns(loop)
        assert trace == ["after"]
        assert [context["handle"] for context in contexts] == handles
        assert all(context["exception"] is error for context in contexts)
        return [(context["message"], sorted(context)) for context in contexts]

    reports = same_as_asyncio(body, loop_factory)
    assert all(report[1] == ["exception", "handle", "message"] for report in reports)
    assert reports[0][0].startswith("Exception in callback ")


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_exit_and_interrupt_leave_run_forever_and_keep_the_rest_queued(loop, kind):
    contexts, trace = capture_contexts(loop), []

    def leave():
        raise kind("out")

    loop.call_soon(trace.append, "before")
    loop.call_soon(leave)
    loop.call_soon(trace.append, "after")
    loop.call_later(0, trace.append, "timer")
    with pytest.raises(kind, match="out"):
        loop.run_forever()
    assert trace == ["before"]
    assert not loop.is_running()
    assert contexts == []
    run_turns(loop)
    assert trace == ["before", "after", "timer"]


def test_the_traceback_of_a_failed_callback_ends_in_the_callback(loop):
    contexts = capture_contexts(loop)

    def fail():
        raise ValueError("bad")

    loop.call_soon(fail)
    run_turns(loop)
    traceback = contexts[0]["exception"].__traceback__
    while traceback.tb_next:
        traceback = traceback.tb_next
    assert traceback.tb_frame.f_code is fail.__code__


def test_a_failed_callback_and_its_arguments_can_be_collected(loop):
    loop.set_exception_handler(noop)

    class Thing:
        pass

    thing = Thing()
    reference = weakref.ref(thing)

    def fail(_thing):
        raise ValueError("bad")

    loop.call_soon(fail, thing)
    loop.call_later(0, fail, thing)
    del thing
    run_turns(loop)
    gc.collect()
    assert reference() is None


# Things that bite an implementation in another language


def test_arguments_may_schedule_when_they_die(loop):
    trace = []

    class Schedules:
        def __del__(self):
            loop.call_soon(trace.append, "from a destructor")

    loop.call_soon(noop, Schedules())
    run_turns(loop)
    run_turns(loop)
    assert trace == ["from a destructor"]
    loop.call_later(3600, noop, Schedules()).cancel()
    run_turns(loop)
    assert trace == ["from a destructor"] * 2


def test_arguments_may_cancel_other_handles_when_they_die(loop):
    trace = []

    class Cancels:
        def __init__(self, handles):
            self.handles = handles

        def __del__(self):
            for handle in self.handles:
                handle.cancel()

    victims = [loop.call_soon(trace.append, number) for number in range(50)]
    victims += [loop.call_later(0, trace.append, number) for number in range(50)]
    loop.call_later(3600, noop, Cancels(victims)).cancel()
    assert all(victim.cancelled() for victim in victims)
    run_turns(loop, 2)
    assert trace == []


def test_a_comparison_that_runs_code_during_timer_equality_is_safe(loop):
    class Cancels:
        handle = None

        def __call__(self):
            pass

        def __eq__(self, other):
            self.handle.cancel()
            return True

        __hash__ = None

    callback, other = Cancels(), Cancels()
    first, second = loop.call_at(1e9, callback), loop.call_at(1e9, other)
    callback.handle = other.handle = first
    assert first != second
    assert first.cancelled()


def test_a_callback_can_run_the_garbage_collector(loop):
    trace = []
    for number in range(20):
        loop.call_soon(lambda: gc.collect(0))
        loop.call_later(0, trace.append, number)
    loop.call_soon(gc.collect)
    run_turns(loop, 2)
    assert trace == list(range(20))


def test_close_drops_what_is_queued(new_loop):
    loop = new_loop()
    trace = []

    class Thing:
        def __call__(self):
            trace.append("ran")

    things = [Thing() for _ in range(3)]
    references = [weakref.ref(thing) for thing in things]
    loop.call_soon(things[0])
    loop.call_later(0, things[1])
    loop.call_soon_threadsafe(things[2])
    del things
    loop.close()
    gc.collect()
    assert [reference() for reference in references] == [None] * 3
    assert trace == []


def test_a_destructor_that_schedules_during_close_gets_the_closed_error(new_loop):
    loop = new_loop()
    errors = []

    class Schedules:
        def __del__(self):
            try:
                loop.call_soon(noop)
            except RuntimeError as error:
                errors.append(str(error))

    loop.call_soon(noop, Schedules())
    loop.call_later(3600, noop, Schedules())
    loop.close()
    assert errors == ["Event loop is closed"] * 2


@pytest.mark.without_debug_mode
def test_the_queue_grows_as_needed_turn_after_turn(loop):
    count = 0

    def bump():
        nonlocal count
        count += 1

    for _ in range(3):
        for _ in range(50_000):
            loop.call_soon(bump)
        run_turns(loop)
    assert count == 150_000


@pytest.mark.exact
def test_more_wakeups_than_a_pipe_has_room_for_lose_no_callback(loop):
    count, amount = 0, 100_000

    def bump():
        nonlocal count
        count += 1

    BackgroundThread(lambda: [loop.call_soon_threadsafe(bump) for _ in range(amount)]).result()
    run_turns(loop, 2)
    assert count == amount


@pytest.mark.parametrize(
    "name", ["call_soon", "call_soon_threadsafe", "call_later", "call_at", "add_reader", "add_writer", "create_task"]
)
def test_a_call_from_c_without_arguments_is_a_type_error(loop, name):
    """CPython gives native methods no array then, but null."""
    with pytest.raises(TypeError, match="missing"):
        next(iter(getattr(loop, name), None))
