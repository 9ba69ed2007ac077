"""Running, stopping and closing a loop; runners, generators, executors, threads."""

import asyncio
import concurrent.futures
import gc
import inspect
import socket
import sys
import threading
import time
import weakref

import pytest

from support import (
    PATIENCE_S,
    BackgroundThread,
    capture_contexts,
    finish,
    has_parameter,
    looks,
    noop,
    open_descriptors,
    outcome,
    run_child,
    same_as_asyncio,
    skip_unless,
    until_waiting,
)


async def answer():
    return 42


# run_forever, stop


def test_stop_lets_the_turn_finish(loop):
    trace = []
    loop.call_soon(lambda: (trace.append("stop"), loop.stop(), loop.call_soon(trace.append, "next turn")))
    loop.call_soon(trace.append, "same turn")
    assert loop.run_forever() is None
    assert trace == ["stop", "same turn"]
    loop.stop()
    loop.run_forever()
    assert trace == ["stop", "same turn", "next turn"]


def test_stop_before_run_makes_one_turn_that_polls(loop):
    reader, writer = socket.socketpair()
    trace = []
    with reader, writer:
        writer.send(b"x")
        loop.add_reader(reader, trace.append, "io")
        loop.call_soon(trace.append, "soon")
        loop.call_later(0, trace.append, "timer")
        loop.call_later(3600, trace.append, "never").cancel()
        loop.stop()
        loop.run_forever()
        loop.remove_reader(reader)
    assert trace == ["soon", "io", "timer"]


def test_stop_is_forgotten_after_the_run(loop):
    loop.stop()
    loop.stop()
    loop.run_forever()
    assert loop.run_until_complete(answer()) == 42


@pytest.mark.exact
def test_stop_from_a_thread_needs_a_wakeup(loop):
    def stop():
        until_waiting(threading.main_thread())
        loop.call_soon_threadsafe(loop.stop)

    thread = BackgroundThread(stop)
    loop.run_forever()
    thread.result()


def test_a_stopped_loop_keeps_its_timers_and_readers(loop):
    reader, writer = socket.socketpair()
    trace = []

    def start_and_stop():
        # Within the turn that ends the run, so that no timer of it is due, however long all this takes.
        loop.call_later(0.02, lambda: (trace.append("timer"), loop.stop()))
        loop.stop()

    with reader, writer:
        loop.add_reader(reader, lambda: (trace.append("io"), loop.remove_reader(reader)))
        loop.call_soon(start_and_stop)
        loop.run_forever()
        assert trace == []
        writer.send(b"x")
        loop.run_forever()
    assert trace == ["io", "timer"]


def test_is_running_and_the_running_loop(loop):
    seen = []
    loop.call_soon(lambda: seen.append((loop.is_running(), asyncio.get_running_loop() is loop)))
    assert not loop.is_running()
    loop.stop()
    loop.run_forever()
    assert seen == [(True, True)]
    assert not loop.is_running()
    with pytest.raises(RuntimeError, match="no running event loop"):
        asyncio.get_running_loop()


def test_get_event_loop_inside_a_callback_is_the_running_loop(loop):
    async def main():
        return asyncio.get_event_loop()

    assert loop.run_until_complete(main()) is loop


def test_the_running_loop_is_cleared_after_an_interrupt(loop):
    def interrupt():
        raise KeyboardInterrupt

    loop.call_soon(interrupt)
    with pytest.raises(KeyboardInterrupt):
        loop.run_forever()
    assert asyncio._get_running_loop() is None
    assert not loop.is_running()
    assert loop.run_until_complete(answer()) == 42


def test_running_a_loop_inside_itself(loop):
    async def main():
        with pytest.raises(RuntimeError) as complete:
            loop.run_until_complete(loop.create_future())
        # Last, because in CPython 3.13 this very error makes asyncio forget that the loop runs.
        with pytest.raises(RuntimeError) as forever:
            loop.run_forever()
        return str(forever.value), str(complete.value)

    assert loop.run_until_complete(main()) == ("This event loop is already running",) * 2


def test_running_a_loop_inside_another(new_loop):
    outer, inner = new_loop(), new_loop()

    async def main():
        with pytest.raises(RuntimeError) as caught:
            inner.run_forever()
        assert not inner.is_running()
        return str(caught.value)

    assert outer.run_until_complete(main()) == "Cannot run the event loop while another loop is running"


# run_until_complete


def test_run_until_complete_takes_coroutines_tasks_futures_and_awaitables(loop):
    class Awaitable:
        def __await__(self):
            return answer().__await__()

    future = loop.create_future()
    loop.call_soon(future.set_result, 42)
    for awaitable in (answer(), loop.create_task(answer()), future, Awaitable()):
        assert loop.run_until_complete(awaitable) == 42
    assert loop.run_until_complete(future) == 42, "a finished future gives its result again"


def test_run_until_complete_rejects_other_things(loop_factory):
    def body(loop):
        messages = []
        for bad in (None, 5, answer):
            with pytest.raises(TypeError) as caught:
                loop.run_until_complete(bad)
            messages.append(str(caught.value))
        return messages

    assert "awaitable is required" in same_as_asyncio(body, loop_factory)[0]


def test_run_until_complete_rejects_another_loops_future(new_loop):
    first, second = new_loop(), new_loop()
    with pytest.raises(
        ValueError, match="^The future belongs to a different loop than the one specified as the loop argument$"
    ):
        first.run_until_complete(second.create_future())


@pytest.mark.parametrize("error", [ValueError("bad"), asyncio.CancelledError(), OSError(5, "x")], ids=repr)
def test_run_until_complete_raises_what_the_coroutine_raised(loop, error):
    async def fail():
        raise error

    with pytest.raises(type(error)):
        loop.run_until_complete(fail())


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_exit_from_a_task_leaves_the_loop_usable(loop, kind):
    async def leave():
        raise kind("out")

    with pytest.raises(kind, match="out"):
        loop.run_until_complete(leave())
    assert not loop.is_running()
    assert loop.run_until_complete(answer()) == 42


def test_a_future_that_is_never_done(loop):
    loop.call_soon(loop.stop)
    with pytest.raises(RuntimeError) as caught:
        loop.run_until_complete(loop.create_future())
    assert str(caught.value) == "Event loop stopped before Future completed."


def test_run_until_complete_removes_its_callback_when_the_loop_is_stopped(loop):
    future = loop.create_future()
    loop.call_soon(loop.stop)
    with pytest.raises(RuntimeError):
        loop.run_until_complete(future)
    trace = []
    future.set_result(None)
    loop.call_soon(lambda: loop.call_soon(lambda: (trace.append("on"), loop.stop())))
    loop.run_forever()
    assert trace == ["on"], "the finished future must not stop a later run"


def test_a_callback_queued_by_the_last_step_runs_in_the_next_run(loop):
    trace = []

    async def main():
        loop.call_soon(trace.append, "queued")

    loop.run_until_complete(main())
    loop.run_until_complete(answer())
    assert trace == ["queued"]


# close


def test_close_is_idempotent_and_visible(new_loop):
    loop = new_loop()
    assert not loop.is_closed()
    assert loop.close() is None
    assert loop.is_closed()
    loop.close()
    assert not loop.is_running()


def test_close_of_a_running_loop_is_refused(loop):
    async def main():
        with pytest.raises(RuntimeError) as caught:
            loop.close()
        return str(caught.value)

    assert loop.run_until_complete(main()) == "Cannot close a running event loop"
    assert not loop.is_closed()


def test_run_until_complete_and_create_task_of_a_closed_loop(loop):
    loop.close()
    for call in (loop.run_until_complete, loop.create_task):
        coroutine = answer()
        with pytest.raises(RuntimeError, match="^Event loop is closed$"):
            call(coroutine)
        coroutine.close()


@pytest.mark.without_debug_mode
def test_stop_of_a_closed_loop_is_harmless(loop):
    loop.close()
    loop.stop()
    assert loop.get_debug() is False
    assert isinstance(loop.time(), float)


def test_a_closed_loop_still_makes_futures(loop):
    loop.close()
    future = loop.create_future()
    future.set_result(1)
    assert future.result() == 1


def test_remove_reader_and_writer_of_a_closed_loop_return_false(loop):
    reader, writer = socket.socketpair()
    with reader, writer:
        loop.add_reader(reader, noop)
        loop.close()
        assert loop.remove_reader(reader) is False
        assert loop.remove_writer(reader) is False


def test_an_unclosed_loop_warns_when_it_dies(loop_factory):
    loop = loop_factory()
    text = repr(loop)
    with pytest.warns(ResourceWarning) as caught:
        del loop
        gc.collect()
    assert [str(warning.message) for warning in caught] == [f"unclosed event loop {text}"]


def test_a_closed_loop_dies_in_silence(loop_factory):
    loop = loop_factory()
    loop.run_until_complete(answer())
    loop.close()
    reference = weakref.ref(loop)
    del loop
    gc.collect()
    assert reference() is None


@pytest.mark.without_debug_mode
def test_repr_shows_the_state(loop):
    name = type(loop).__name__
    assert repr(loop) == f"<{name} running=False closed=False debug=False>"

    async def main():
        loop.set_debug(True)
        return repr(loop)

    assert loop.run_until_complete(main()) == f"<{name} running=True closed=False debug=True>"
    loop.close()
    assert repr(loop) == f"<{name} running=False closed=True debug=True>"


def test_it_is_an_event_loop_that_can_be_weakly_referenced_and_extended(loop):
    assert isinstance(loop, asyncio.AbstractEventLoop)
    assert weakref.ref(loop)() is loop
    loop.attribute_of_a_library = 5
    assert loop.attribute_of_a_library == 5


def test_subclasses_may_override_what_asyncio_lets_them(loop):
    trace = []

    class Subclass(type(loop)):
        def default_exception_handler(self, context):
            trace.append(context["message"])

        def create_task(self, coroutine, **options):
            trace.append("create_task")
            return super().create_task(coroutine, **options)

        def get_debug(self):
            return super().get_debug()

    subclassed = Subclass()
    try:
        subclassed.set_debug(False)
        subclassed.call_exception_handler({"message": "told"})
        assert subclassed.run_until_complete(answer()) == 42
    finally:
        finish(subclassed)
    assert trace[:2] == ["told", "create_task"]


# Asynchronous generators


def test_generator_hooks_are_set_while_running(loop):
    outside = sys.get_asyncgen_hooks()

    async def main():
        return sys.get_asyncgen_hooks()

    inside = loop.run_until_complete(main())
    assert inside.firstiter is not None and inside.finalizer is not None
    assert sys.get_asyncgen_hooks() == outside


def test_previous_generator_hooks_come_back(loop):
    sys.set_asyncgen_hooks(firstiter=noop, finalizer=noop)
    try:
        loop.run_until_complete(answer())
        assert sys.get_asyncgen_hooks() == (noop, noop)
    finally:
        sys.set_asyncgen_hooks(None, None)


def test_an_abandoned_generator_is_closed_by_the_loop(loop):
    trace = []

    async def numbers():
        try:
            yield 1
            yield 2
        finally:
            await asyncio.sleep(0)
            trace.append("closed")

    async def main():
        async for _ in numbers():
            break
        gc.collect()
        for _ in range(5):
            await asyncio.sleep(0)

    loop.run_until_complete(main())
    assert trace == ["closed"]


def test_shutdown_asyncgens_closes_live_generators(loop):
    trace = []

    async def numbers(name):
        try:
            yield 1
        finally:
            trace.append(name)

    generators = [numbers("a"), numbers("b")]

    async def main():
        for generator in generators:
            await anext(generator)

    loop.run_until_complete(main())
    assert trace == []
    assert loop.run_until_complete(loop.shutdown_asyncgens()) is None
    assert sorted(trace) == ["a", "b"]
    loop.run_until_complete(loop.shutdown_asyncgens())


def test_a_generator_that_fails_to_close_is_reported(loop):
    contexts = capture_contexts(loop)

    async def broken():
        try:
            yield 1
        finally:
            raise ZeroDivisionError("in finally")

    generator = broken()

    async def main():
        await anext(generator)

    loop.run_until_complete(main())
    loop.run_until_complete(loop.shutdown_asyncgens())
    [context] = contexts
    assert sorted(context) == ["asyncgen", "exception", "message"]
    assert context["message"] == f"an error occurred during closing of asynchronous generator {generator!r}"
    assert context["asyncgen"] is generator
    assert isinstance(context["exception"], ZeroDivisionError)


def test_a_generator_started_after_the_shutdown_warns(loop):
    async def numbers():
        yield 1

    async def main():
        await loop.shutdown_asyncgens()
        generator = numbers()
        with pytest.warns(ResourceWarning, match="was scheduled after loop.shutdown_asyncgens\\(\\) call"):
            await anext(generator)
        await generator.aclose()

    loop.run_until_complete(main())


# The default executor


def test_shutdown_default_executor_waits_for_its_work(loop):
    trace, goes_on = [], threading.Event()

    def work():
        assert goes_on.wait(PATIENCE_S)
        trace.append("done")

    loop.call_soon(loop.run_in_executor, None, work)

    async def main():
        await asyncio.sleep(0)
        ending = asyncio.ensure_future(loop.shutdown_default_executor())
        await looks()
        assert not ending.done()
        goes_on.set()
        await ending
        return list(trace)

    assert loop.run_until_complete(main()) == ["done"]


def test_run_in_executor_after_its_shutdown(loop):
    async def main():
        await loop.shutdown_default_executor()
        with pytest.raises(RuntimeError, match="^Executor shutdown has been called$"):
            loop.run_in_executor(None, noop)
        with concurrent.futures.ThreadPoolExecutor(1) as own:
            return await loop.run_in_executor(own, lambda: 42)

    assert loop.run_until_complete(main()) == 42


def test_shutdown_of_the_executor_has_a_timeout(loop):
    source = inspect.getsource(asyncio.BaseEventLoop.shutdown_default_executor)
    skip_unless("timeouts.timeout(" in source, "working timeout of shutdown_default_executor")
    release = threading.Event()

    async def main():
        work = loop.run_in_executor(None, release.wait)
        try:
            with pytest.warns(RuntimeWarning) as caught:
                await loop.shutdown_default_executor(timeout=0.01)
        finally:
            release.set()
        await work
        return str(caught[0].message)

    text = loop.run_until_complete(main())
    assert text == "The executor did not finishing joining its threads within 0.01 seconds."


def test_close_does_not_wait_for_the_executor(new_loop):
    loop = new_loop()
    release = threading.Event()
    executor = concurrent.futures.ThreadPoolExecutor(1)
    loop.set_default_executor(executor)

    async def main():
        loop.run_in_executor(None, release.wait)
        await asyncio.sleep(0)

    loop.run_until_complete(main())
    loop.close()
    release.set()
    executor.shutdown(wait=True)
    with pytest.raises(RuntimeError, match="cannot schedule new futures after shutdown"):
        executor.submit(noop)


# Runners


def test_runner_with_a_loop_factory(loop_factory):
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        loop = runner.get_loop()
        assert runner.run(answer()) == 42
        assert runner.run(answer()) == 42
        assert not loop.is_closed()
    assert loop.is_closed()


def test_runner_debug(loop_factory):
    async def main():
        return asyncio.get_running_loop().get_debug()

    for debug in (True, False):
        with asyncio.Runner(loop_factory=loop_factory, debug=debug) as runner:
            assert runner.run(main()) is debug


def test_asyncio_run_with_a_loop_factory(loop_factory):
    skip_unless(has_parameter(asyncio.run, "loop_factory"), "asyncio.run(loop_factory=)")
    loops = []

    async def main():
        loops.append(asyncio.get_running_loop())
        return 42

    assert asyncio.run(main(), loop_factory=loop_factory) == 42
    assert loops[0].is_closed()
    assert type(loops[0]) is type(outcome(lambda loop: loop, loop_factory))


def test_a_runner_cancels_what_is_left_and_closes_generators(loop_factory):
    trace = []

    async def forever():
        try:
            await asyncio.sleep(3600)
        finally:
            trace.append("cancelled")

    async def numbers():
        try:
            yield 1
        finally:
            trace.append("generator closed")

    generator = numbers()

    async def main():
        asyncio.create_task(forever(), name="left over")
        await anext(generator)
        await asyncio.sleep(0)

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(main())
    assert trace == ["cancelled", "generator closed"]


@pytest.mark.ringloop_only
def test_ringloop_run(arm):
    import ringloop

    async def main():
        loop = asyncio.get_running_loop()
        return isinstance(loop, ringloop.EventLoop), loop.backend, loop

    is_ringloop, backend, loop = ringloop.run(main())
    assert is_ringloop and backend == arm
    assert loop.is_closed()
    with pytest.raises(ZeroDivisionError):
        ringloop.run(divide_by_zero())


async def divide_by_zero():
    return 1 / 0


@pytest.mark.ringloop_only
def test_ringloop_run_rejects_what_asyncio_run_rejects(arm):
    import ringloop

    def text_of(run, argument):
        with pytest.raises((TypeError, ValueError)) as caught:
            run(argument)
        return type(caught.value), str(caught.value)

    for argument in (None, 5, answer):
        assert text_of(ringloop.run, argument) == text_of(asyncio.run, argument)

    async def nested():
        coroutine = answer()
        try:
            ringloop.run(coroutine)
        finally:
            coroutine.close()

    with pytest.raises(RuntimeError, match="cannot be called from a running event loop"):
        ringloop.run(nested())


@pytest.mark.ringloop_only
def test_ringloop_has_a_version(arm):
    import ringloop

    assert isinstance(ringloop.__version__, str) and ringloop.__version__[0].isdigit()
    loop = ringloop.new_event_loop()
    assert isinstance(loop, ringloop.EventLoop)
    assert loop.backend == arm
    assert isinstance(loop.backend_reason, str) and loop.backend_reason
    loop.close()


# Threads


def use(loop):
    """Use timers, I/O, wakeups and an executor, in whatever thread this runs."""

    async def main():
        await asyncio.sleep(0.001)
        reader, writer = socket.socketpair()
        with reader, writer:
            reader.setblocking(False)
            writer.setblocking(False)
            await loop.sock_sendall(writer, b"ping")
            assert await loop.sock_recv(reader, 100) == b"ping"
            pending = asyncio.ensure_future(loop.sock_recv(reader, 100))
            await asyncio.sleep(0)
            writer.send(b"pong")
            assert await pending == b"pong"
        server = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
        server.close()
        await server.wait_closed()
        return await loop.run_in_executor(None, threading.get_ident)

    return loop.run_until_complete(main())


@pytest.mark.exact
def test_a_loop_made_in_one_thread_runs_in_another(new_loop):
    loop = new_loop()
    BackgroundThread(use, loop).result()


@pytest.mark.exact
def test_a_loop_made_in_a_thread_runs_in_the_main_thread(loop_factory):
    loop = BackgroundThread(loop_factory).result()
    use(loop)
    finish(loop)


@pytest.mark.exact
def test_a_loop_runs_in_several_threads_one_after_the_other(new_loop):
    loop = new_loop()
    use(loop)
    for _ in range(3):
        BackgroundThread(use, loop).result()
    use(loop)


@pytest.mark.exact
def test_a_reader_registered_in_one_thread_fires_in_another(new_loop):
    loop = new_loop()
    reader, writer = socket.socketpair()
    trace = []
    with reader, writer:
        loop.add_reader(reader, lambda: (trace.append(threading.get_ident()), reader.recv(1), loop.stop()))
        loop.stop()
        loop.run_forever()
        for _ in range(2):
            writer.send(b"x")
            thread = BackgroundThread(loop.run_forever)
            thread.result()
            assert trace[-1] == thread.ident
        writer.send(b"x")
        loop.run_forever()
        assert trace[-1] == threading.get_ident()
        loop.remove_reader(reader)
    assert len(trace) == 3


@pytest.mark.exact
def test_a_loop_closed_in_another_thread(loop_factory):
    loop = loop_factory()
    use(loop)
    BackgroundThread(finish, loop).result()
    assert loop.is_closed()


@pytest.mark.exact
def test_a_loop_that_dies_in_another_thread(loop_factory):
    box = [loop_factory()]
    use(box[0])
    finish(box[0])
    BackgroundThread(lambda: (box.clear(), gc.collect())).result()
    assert box == []


@pytest.mark.exact
def test_loops_in_several_threads_at_once(loop_factory):
    def work():
        loop = loop_factory()
        try:
            return [use(loop) for _ in range(5)]
        finally:
            finish(loop)

    threads = [BackgroundThread(work) for _ in range(4)]
    for thread in threads:
        assert len(thread.result()) == 5


@pytest.mark.exact
def test_loops_in_two_threads_talk_to_each_other(new_loop):
    first, second = new_loop(), new_loop()
    thread = BackgroundThread(second.run_forever)

    async def remote(value):
        await asyncio.sleep(0)
        return value * 2, asyncio.get_running_loop() is second

    async def main():
        futures = [asyncio.run_coroutine_threadsafe(remote(number), second) for number in range(100)]
        return [await asyncio.wrap_future(future) for future in futures]

    assert first.run_until_complete(main()) == [(number * 2, True) for number in range(100)]
    second.call_soon_threadsafe(second.stop)
    thread.result()


@pytest.mark.exact
def test_other_threads_run_while_the_loop_waits(loop):
    trace = []

    def work():
        for number in range(50):
            trace.append(number)
            time.sleep(0.0005)
        loop.call_soon_threadsafe(loop.stop)

    thread = BackgroundThread(work)
    loop.run_forever()
    thread.result()
    assert trace == list(range(50))


@pytest.mark.exact
def test_running_a_loop_that_another_thread_runs(new_loop):
    loop = new_loop()
    started = threading.Event()
    loop.call_soon(started.set)
    thread = BackgroundThread(loop.run_forever)
    started.wait()
    with pytest.raises(RuntimeError, match="^This event loop is already running$"):
        loop.run_until_complete(loop.create_future())
    with pytest.raises(RuntimeError, match="^Cannot close a running event loop$"):
        loop.close()
    assert loop.is_running()
    loop.call_soon_threadsafe(loop.stop)
    thread.result()


@pytest.mark.exact
def test_call_soon_threadsafe_races_with_close(loop_factory):
    """Either the callback is accepted or the error is the documented one."""
    for _ in range(50):
        loop = loop_factory()
        stop = threading.Event()
        outcomes = []

        def hammer(loop=loop, stop=stop, outcomes=outcomes):
            while not stop.is_set():
                try:
                    loop.call_soon_threadsafe(noop)
                except RuntimeError as error:
                    outcomes.append(str(error))
                    return

        thread = BackgroundThread(hammer)
        loop.call_later(0.0005, loop.stop)
        loop.run_forever()
        loop.close()
        stop_soon = threading.Timer(PATIENCE_S, stop.set)
        stop_soon.start()
        thread.result()
        stop_soon.cancel()
        stop_soon.join()
        assert outcomes == ["Event loop is closed"]


# The end of the interpreter


@pytest.mark.parametrize("ending", ["loop.close()", "pass", "sys.exit(0)", "del loop"])
def test_the_interpreter_ends_cleanly_with_a_loop_around(arm, ending):
    child = run_child(
        f"""
        loop = new_loop()
        loop.run_until_complete(asyncio.sleep(0.001))
        loop.call_later(3600, print, "never")
        loop.call_soon(print, "never")
        keep = [loop]; keep.append(keep)
        {ending}
        """,
        arm,
        python_flags=("-W", "ignore"),
        env={"PYTHONASYNCIODEBUG": None},
    )
    assert (child.returncode, child.stdout, child.stderr) == (0, "", "")


def test_the_interpreter_ends_cleanly_inside_a_callback(arm):
    child = run_child(
        """
        loop = new_loop()
        async def main():
            server = await asyncio.start_server(print, "127.0.0.1", 0)
            connection = await asyncio.open_connection(*server.sockets[0].getsockname())
            sys.stdout.flush()
            os._exit(7) if len(sys.argv) > 1 else sys.exit(7)
        loop.run_until_complete(main())
        """,
        arm,
        python_flags=("-W", "ignore"),
    )
    assert child.returncode == 7
    assert "Fatal" not in child.stderr and "panicked" not in child.stderr


@pytest.mark.exact
def test_many_loops_one_after_the_other(loop_factory):
    outcome(use_briefly, loop_factory)
    descriptors = open_descriptors()
    for _ in range(100):
        assert outcome(use_briefly, loop_factory) == 42
    assert not open_descriptors() - descriptors


def use_briefly(loop):
    return loop.run_until_complete(answer())


@pytest.mark.ringloop_only
def test_the_name_of_uvloop_for_the_class(loop):
    import ringloop

    assert ringloop.Loop is ringloop.EventLoop
    assert isinstance(loop, ringloop.Loop)


@pytest.mark.ringloop_only
def test_what_is_put_into_asyncios_selector_loop_later_leaves_ours_alone(loop_factory, monkeypatch):
    """As nest_asyncio does it to the class of another loop of the program."""

    def nested(*arguments):
        raise AssertionError("asyncio's own loops only")

    for name in ("run_forever", "run_until_complete", "_run_once", "_check_running"):
        monkeypatch.setattr(asyncio.SelectorEventLoop.__mro__[1], name, nested, raising=False)
    loop = loop_factory()
    try:
        assert loop.run_until_complete(asyncio.sleep(0, "done")) == "done"
    finally:
        loop.close()


@pytest.mark.ringloop_only
def test_nest_asyncio_is_told_that_it_cannot_patch(loop):
    patch = "def patch(loop): return hasattr(loop, '_nest_patched')"
    namespace = {"__name__": "nest_asyncio"}
    exec(patch, namespace)
    with pytest.raises(RuntimeError, match="nest_asyncio cannot patch a ringloop.EventLoop"):
        namespace["patch"](loop)
    assert not hasattr(loop, "_nest_patched")
    assert loop.run_until_complete(asyncio.sleep(0, "done")) == "done"
