"""Tasks, futures, executors and context variables."""

import asyncio
import concurrent.futures
import contextvars
import functools
import gc
import inspect
import threading
import time
import weakref

import pytest

from support import (
    PATIENCE_S,
    Recorder,
    attach,
    capture_contexts,
    has_parameter,
    same_as_asyncio,
    skip_unless,
    turns,
    until,
)

VARIABLE = contextvars.ContextVar("variable", default="default")


async def answer():
    return 42


# create_task


def test_tasks_and_futures_are_asyncios_own(loop):
    async def main():
        return type(loop.create_task(answer())), type(loop.create_future()), type(asyncio.create_task(answer()))

    assert loop.run_until_complete(main()) == (asyncio.Task, asyncio.Future, asyncio.Task)
    assert loop.create_future().get_loop() is loop


def test_a_task_starts_in_the_next_turn_in_order_with_callbacks(loop):
    trace = []

    async def step(name):
        trace.append(name)

    async def main():
        loop.call_soon(trace.append, "callback 1")
        first = loop.create_task(step("task 1"))
        loop.call_soon(trace.append, "callback 2")
        second = asyncio.create_task(step("task 2"))
        trace.append("main")
        await first
        await second

    loop.run_until_complete(main())
    assert trace == ["main", "callback 1", "task 1", "callback 2", "task 2"]


def test_create_task_takes_a_name(loop):
    task = loop.create_task(answer(), name="chosen")
    assert task.get_name() == "chosen"
    number = loop.create_task(answer(), name=5)
    assert number.get_name() == "5"
    assert loop.create_task(answer()).get_name().startswith("Task-")
    assert loop.create_task(answer(), name=None).get_name().startswith("Task-")


def test_create_task_takes_a_context(loop):
    context = contextvars.copy_context()

    async def main():
        VARIABLE.set("in the task")
        await asyncio.sleep(0)
        return VARIABLE.get()

    assert loop.run_until_complete(loop.create_task(main(), context=context)) == "in the task"
    assert context[VARIABLE] == "in the task"
    assert VARIABLE.get() == "default"


def test_create_task_takes_all_that_the_running_python_takes(loop_factory):
    def body(loop):
        results = []
        for options in ({"name": "x"}, {"context": contextvars.copy_context()}, {"eager_start": False}, {"unknown": 1}):
            coroutine = answer()
            try:
                task = loop.create_task(coroutine, **options)
                results.append(loop.run_until_complete(task))
            except TypeError:
                results.append(TypeError)
                coroutine.close()
        return results

    assert same_as_asyncio(body, loop_factory)[:2] == [42, 42]


def test_create_task_rejects_what_is_no_coroutine(loop_factory):
    def body(loop):
        messages = []
        for bad in (None, 5, answer):
            with pytest.raises(TypeError) as caught:
                loop.create_task(bad)
            messages.append(str(caught.value))
        return [text.split(" at 0x")[0] for text in messages]

    assert same_as_asyncio(body, loop_factory)[0] == "a coroutine was expected, got None"


def test_eager_start(loop):
    skip_unless(
        has_parameter(asyncio.Task, "eager_start") and not has_parameter(asyncio.BaseEventLoop.create_task, "name"),
        "create_task(eager_start=)",
    )
    trace = []

    async def step():
        trace.append("started")
        await asyncio.sleep(0)
        trace.append("resumed")

    async def main():
        task = loop.create_task(step(), eager_start=True)
        assert trace == ["started"]
        await task
        assert await loop.create_task(answer(), eager_start=True, name="eager") == 42

    loop.run_until_complete(main())
    assert trace == ["started", "resumed"]


def test_eager_task_factory(loop):
    skip_unless(hasattr(asyncio, "eager_task_factory"), "eager_task_factory")
    loop.set_task_factory(asyncio.eager_task_factory)
    trace = []

    async def step():
        trace.append("step")
        return asyncio.current_task()

    async def main():
        task = asyncio.create_task(step(), name="eager")
        trace.append("after")
        assert task.done() and task.result() is task and task.get_name() == "eager"
        assert asyncio.current_task() is not task
        async with asyncio.TaskGroup() as group:
            child = group.create_task(asyncio.sleep(0, "child"))
        return child.result()

    assert loop.run_until_complete(main()) == "child"
    assert trace == ["step", "after"]


def test_task_factory_is_used_and_shown(loop):
    seen = []

    def factory(loop, coroutine, **options):
        seen.append((loop, sorted(options)))
        return asyncio.Task(coroutine, loop=loop, **options)

    assert loop.get_task_factory() is None
    loop.set_task_factory(factory)
    assert loop.get_task_factory() is factory
    assert loop.run_until_complete(answer()) == 42
    assert seen[0][0] is loop
    loop.set_task_factory(None)
    assert loop.get_task_factory() is None
    count = len(seen)
    loop.run_until_complete(answer())
    assert len(seen) == count


def test_task_factory_gets_name_and_context_as_in_asyncio(loop_factory):
    def body(loop):
        seen = []

        def factory(loop, coroutine, **options):
            seen.append(sorted(options))
            return asyncio.Task(coroutine, loop=loop, **options)

        loop.set_task_factory(factory)
        names = []
        for options in ({}, {"name": "n"}, {"context": contextvars.copy_context()}):
            task = loop.create_task(answer(), **options)
            names.append(task.get_name().startswith("Task-") or task.get_name())
            loop.run_until_complete(task)
        loop.set_task_factory(None)
        return seen, names

    assert same_as_asyncio(body, loop_factory)[1][1] == "n"


def test_task_factory_must_be_callable(loop):
    with pytest.raises(TypeError, match="^task factory must be a callable or None$"):
        loop.set_task_factory(5)


def test_current_task_and_all_tasks(loop):
    async def main():
        task = asyncio.create_task(asyncio.sleep(0))
        assert asyncio.current_task() in asyncio.all_tasks()
        assert asyncio.all_tasks() == {asyncio.current_task(), task}
        await task
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return asyncio.current_task()

    task = loop.run_until_complete(main())
    assert isinstance(task, asyncio.Task)
    assert asyncio.current_task(loop) is None
    assert asyncio.all_tasks(loop) == set()


def test_current_task_is_none_in_a_plain_callback(loop):
    seen = []
    loop.call_soon(lambda: seen.append(asyncio.current_task()))
    loop.stop()
    loop.run_forever()
    assert seen == [None]


def test_a_task_destroyed_pending_is_reported(loop):
    contexts = capture_contexts(loop)

    async def orphan():
        await loop.create_future()

    async def main():
        task = loop.create_task(orphan(), name="orphan")
        await asyncio.sleep(0)
        del task
        gc.collect()

    loop.run_until_complete(main())
    [context] = contexts
    assert context["message"] == "Task was destroyed but it is pending!"
    assert context["task"].get_name() == "orphan"


def test_an_exception_nobody_asked_for_is_reported(loop):
    contexts = capture_contexts(loop)

    async def fail():
        raise ZeroDivisionError("unseen")

    async def main():
        loop.create_task(fail(), name="failing")
        future = loop.create_future()
        future.set_exception(LookupError("unseen too"))
        del future
        await turns(3)
        gc.collect()

    loop.run_until_complete(main())
    assert sorted(context["message"] for context in contexts) == [
        "Future exception was never retrieved",
        "Task exception was never retrieved",
    ]


# Waiting for several things


def test_gather(loop):
    async def after(turn_count, value):
        await turns(turn_count)
        return value

    async def main():
        return await asyncio.gather(*(after(number % 7, number) for number in range(100)))

    assert loop.run_until_complete(main()) == list(range(100))


def test_gather_hands_over_exceptions(loop):
    async def fail(error):
        raise error

    async def main():
        both = await asyncio.gather(answer(), fail(ValueError("a")), return_exceptions=True)
        with pytest.raises(LookupError):
            await asyncio.gather(asyncio.sleep(0), fail(LookupError()))
        return both

    values = loop.run_until_complete(main())
    assert values[0] == 42 and isinstance(values[1], ValueError)


def test_wait_for(loop):
    async def main():
        assert await asyncio.wait_for(answer(), PATIENCE_S) == 42
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(loop.create_future(), 0.001)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.sleep(10), 0)
        return await asyncio.wait_for(asyncio.sleep(0, "x"), None)

    assert loop.run_until_complete(main()) == "x"


def test_timeout(loop):
    async def main():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await asyncio.sleep(10)
        async with asyncio.timeout(PATIENCE_S) as scope:
            await asyncio.sleep(0)
        assert not scope.expired()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout_at(loop.time()):
                await asyncio.sleep(10)
        assert asyncio.current_task().cancelling() == 0

    loop.run_until_complete(main())


def test_task_group_cancels_the_rest(loop):
    trace = []

    async def forever():
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            trace.append("cancelled")
            raise

    async def fail():
        await asyncio.sleep(0)
        raise ZeroDivisionError

    async def main():
        with pytest.raises(ExceptionGroup) as caught:
            async with asyncio.TaskGroup() as group:
                group.create_task(forever())
                group.create_task(forever())
                group.create_task(fail())
        return caught.value.exceptions

    [error] = loop.run_until_complete(main())
    assert isinstance(error, ZeroDivisionError)
    assert trace == ["cancelled", "cancelled"]


def test_cancellation_reaches_a_sleeping_task(loop):
    trace = []

    async def sleeper():
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError as error:
            trace.append(error.args)
            raise

    async def main():
        task = asyncio.create_task(sleeper())
        await asyncio.sleep(0)
        assert task.cancel("message")
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled() and not task.cancel()

    loop.run_until_complete(main())
    assert trace == [("message",)]


def test_a_task_cancelled_before_it_starts_never_runs(loop):
    trace = []

    async def step():
        trace.append("ran")

    async def main():
        task = asyncio.create_task(step())
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    loop.run_until_complete(main())
    assert trace == []


def test_shield_and_uncancel(loop):
    async def main():
        inner = asyncio.ensure_future(asyncio.sleep(0.001, "inner"))
        outer = asyncio.ensure_future(asyncio.wait_for(asyncio.shield(inner), PATIENCE_S))
        await asyncio.sleep(0)
        outer.cancel()
        with pytest.raises(asyncio.CancelledError):
            await outer
        return await inner

    assert loop.run_until_complete(main()) == "inner"


def test_as_completed_and_wait(loop):
    async def main():
        order = []
        for future in asyncio.as_completed([asyncio.sleep(0.02, "slow"), asyncio.sleep(0, "fast")]):
            order.append(await future)
        done, pending = await asyncio.wait(
            [asyncio.ensure_future(asyncio.sleep(0)), never := loop.create_future()],
            return_when=asyncio.FIRST_COMPLETED,
        )
        assert pending == {never} and len(done) == 1
        return order

    assert loop.run_until_complete(main()) == ["fast", "slow"]


def test_locks_queues_events_and_conditions(loop):
    async def main():
        queue, lock, event, received = asyncio.Queue(maxsize=2), asyncio.Lock(), asyncio.Event(), []

        async def produce():
            for number in range(20):
                await queue.put(number)
            event.set()

        async def consume():
            while len(received) < 20:
                async with lock:
                    received.append(await queue.get())

        await asyncio.gather(produce(), consume(), event.wait())
        return received

    assert loop.run_until_complete(main()) == list(range(20))


def test_sleep_of_zero_yields_one_turn_each(loop):
    trace = []

    async def worker(name):
        for number in range(3):
            trace.append((name, number))
            await asyncio.sleep(0)

    async def main():
        await asyncio.gather(worker("a"), worker("b"))

    loop.run_until_complete(main())
    assert trace == [(name, number) for number in range(3) for name in "ab"]


def test_sleep_sleeps_at_least_as_long(loop):
    async def main():
        start = time.monotonic()
        await asyncio.sleep(0.05)
        return time.monotonic() - start

    assert loop.run_until_complete(main()) >= 0.05 - time.get_clock_info("monotonic").resolution


def test_future_callbacks_run_in_order_in_a_later_turn(loop):
    trace = []
    future = loop.create_future()
    for number in range(5):
        future.add_done_callback(lambda done, number=number: trace.append((number, done is future)))
    future.set_result(None)
    assert trace == []
    loop.stop()
    loop.run_forever()
    assert trace == [(number, True) for number in range(5)]


def test_run_coroutine_threadsafe(loop):
    def from_thread():
        future = asyncio.run_coroutine_threadsafe(answer(), loop)
        value = future.result(PATIENCE_S)
        loop.call_soon_threadsafe(loop.stop)
        return value

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        future = pool.submit(from_thread)
        loop.run_forever()
        assert future.result() == 42


def test_finished_tasks_are_freed_without_the_collector(loop):
    async def main():
        task = asyncio.create_task(asyncio.sleep(0))
        reference = weakref.ref(task)
        await task
        del task
        await asyncio.sleep(0)
        return reference

    gc.collect()
    gc.disable()
    try:
        assert loop.run_until_complete(main())() is None
    finally:
        gc.enable()


# Executors


def test_run_in_executor_returns_an_asyncio_future(loop):
    async def main():
        future = loop.run_in_executor(None, threading.current_thread)
        assert isinstance(future, asyncio.Future) and future.get_loop() is loop
        return await future

    thread = loop.run_until_complete(main())
    assert thread is not threading.current_thread()
    assert thread.name.startswith("asyncio_")


def test_run_in_executor_passes_arguments_and_exceptions(loop):
    async def main():
        assert await loop.run_in_executor(None, divmod, 17, 5) == (3, 2)
        assert await loop.run_in_executor(None, functools.partial(int, "11", base=2)) == 3
        with pytest.raises(ZeroDivisionError):
            await loop.run_in_executor(None, divmod, 1, 0)

    loop.run_until_complete(main())


def test_run_in_executor_with_an_executor_of_ones_own(loop):
    async def main():
        with concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="own") as own:
            thread = await loop.run_in_executor(own, threading.current_thread)
        assert thread.name.startswith("own")

    loop.run_until_complete(main())


def test_set_default_executor(loop):
    executor = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="default")
    assert loop.set_default_executor(executor) is None

    async def main():
        return await loop.run_in_executor(None, threading.current_thread)

    assert loop.run_until_complete(main()).name.startswith("default")


@pytest.mark.parametrize("bad", [None, 5, object()], ids=["None", "5", "object"])
def test_set_default_executor_checks_its_type(loop, bad):
    with pytest.raises(TypeError, match="^executor must be ThreadPoolExecutor instance$"):
        loop.set_default_executor(bad)


def test_run_in_executor_checks_its_function_in_debug_mode(loop):
    loop.set_debug(True)
    with pytest.raises(TypeError, match="^coroutines cannot be used with run_in_executor\\(\\)$"):
        loop.run_in_executor(None, answer)
    with pytest.raises(TypeError, match="^a callable object was expected by run_in_executor\\(\\), got 5$"):
        loop.run_in_executor(None, 5)


def test_to_thread_carries_the_context(loop):
    async def main():
        VARIABLE.set("carried")
        return await asyncio.to_thread(VARIABLE.get)

    assert loop.run_until_complete(main()) == "carried"


def test_many_executor_calls_all_come_back(loop):
    async def main():
        return await asyncio.gather(*(loop.run_in_executor(None, abs, -number) for number in range(500)))

    assert loop.run_until_complete(main()) == list(range(500))


# Context variables


def test_a_task_copies_the_context_of_its_creator(loop):
    async def child():
        before = VARIABLE.get()
        VARIABLE.set("child")
        await asyncio.sleep(0)
        return before, VARIABLE.get()

    async def main():
        VARIABLE.set("parent")
        task = asyncio.create_task(child())
        VARIABLE.set("changed later")
        seen = await task
        return seen, VARIABLE.get()

    assert loop.run_until_complete(main()) == (("parent", "child"), "changed later")
    assert VARIABLE.get() == "default"


def test_interleaved_tasks_keep_their_contexts_apart(loop):
    async def worker(name):
        VARIABLE.set(name)
        for _ in range(10):
            await asyncio.sleep(0)
            assert VARIABLE.get() == name
            loop.call_soon(lambda: results.append(VARIABLE.get() == name))
        await asyncio.sleep(0)

    results = []

    async def main():
        await asyncio.gather(*(worker(name) for name in range(10)))
        await turns(2)

    loop.run_until_complete(main())
    assert results == [True] * 100


def test_future_callbacks_run_in_the_context_of_their_registration(loop):
    seen = []
    future = loop.create_future()

    def register(name):
        VARIABLE.set(name)
        future.add_done_callback(lambda _: seen.append(VARIABLE.get()))

    contextvars.copy_context().run(register, "first")
    contextvars.copy_context().run(register, "second")
    future.add_done_callback(lambda _: seen.append(VARIABLE.get()), context=contextvars.copy_context())
    contextvars.copy_context().run(future.set_result, None)
    loop.stop()
    loop.run_forever()
    assert seen == ["first", "second", "default"]


def test_add_reader_runs_in_the_context_of_its_registration(loop):
    import socket

    reader, writer = socket.socketpair()
    seen = []

    def register():
        VARIABLE.set("registered")
        loop.add_reader(
            reader, lambda: (seen.append(VARIABLE.get()), VARIABLE.set("changed"), reader.recv(1), loop.stop())
        )

    with reader, writer:
        contextvars.copy_context().run(register)
        for _ in range(2):
            writer.send(b"x")
            loop.run_forever()
        loop.remove_reader(reader)
    assert seen == ["registered", "changed"], "one handle, one context, entered again and again"
    assert VARIABLE.get() == "default"


class ContextRecorder(Recorder):
    def __init__(self):
        super().__init__(keep_open=False)
        self.contexts = {}

    def connection_made(self, transport):
        super().connection_made(transport)
        self.contexts["connection_made"] = VARIABLE.get()

    def data_received(self, data):
        super().data_received(data)
        self.contexts["data_received"] = VARIABLE.get()

    def eof_received(self):
        self.contexts["eof_received"] = VARIABLE.get()
        return super().eof_received()

    def connection_lost(self, error):
        self.contexts["connection_lost"] = VARIABLE.get()
        super().connection_lost(error)


def test_protocol_callbacks_run_in_the_context_that_made_the_transport(loop):
    async def main():
        VARIABLE.set("creator")
        protocol = ContextRecorder()
        transport, peer = await attach(loop, protocol)
        VARIABLE.set("later")
        with peer:
            peer.send(b"x")
            await until(lambda: protocol.data)
        await until(lambda: protocol.lost)
        return protocol.contexts

    assert loop.run_until_complete(main()) == dict.fromkeys(
        ["connection_made", "data_received", "eof_received", "connection_lost"], "creator"
    )


def test_protocol_callbacks_of_a_server_run_in_the_context_of_its_start(loop):
    protocols = []

    def factory():
        protocols.append(ContextRecorder())
        protocols[-1].contexts["factory"] = VARIABLE.get()
        return protocols[-1]

    async def serve():
        VARIABLE.set("server")
        return await loop.create_server(factory, "127.0.0.1", 0)

    async def main():
        server = await loop.create_task(serve())
        VARIABLE.set("client")
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"x")
        await until(lambda: protocols and protocols[0].data)
        writer.close()
        await writer.wait_closed()
        await until(lambda: protocols[0].lost)
        server.close()
        await server.wait_closed()

    loop.run_until_complete(main())
    assert protocols[0].contexts == dict.fromkeys(
        ["factory", "connection_made", "data_received", "eof_received", "connection_lost"], "server"
    )


def test_data_received_after_resume_reading_runs_in_the_resumers_context(loop):
    """asyncio registers the reader anew when reading resumes, so the resumer's context is the one from then on.

    From Python 3.15 on the connection has one context.
    """

    async def resume(transport):
        VARIABLE.set("resumer")
        transport.resume_reading()

    async def main():
        VARIABLE.set("creator")
        protocol = ContextRecorder()
        transport, peer = await attach(loop, protocol)
        await turns(2)
        transport.pause_reading()
        await loop.create_task(resume(transport))
        with peer:
            peer.send(b"x")
            await until(lambda: protocol.data)
            transport.close()
            await until(lambda: protocol.lost)
        return protocol.contexts["data_received"]

    one_context = has_parameter(asyncio.SelectorEventLoop._make_socket_transport, "context")
    assert loop.run_until_complete(main()) == ("creator" if one_context else "resumer")


def test_the_public_signatures_are_asyncios(loop):
    """Whoever passes an argument by name finds it; names that begin with an underscore are asyncio's own."""
    differences = {}
    for name in (
        "call_soon", "call_later", "call_at", "call_soon_threadsafe", "run_in_executor", "create_server",
        "create_connection", "connect_accepted_socket", "getaddrinfo", "getnameinfo", "sock_recv", "sock_recv_into",
        "sock_sendall", "sock_connect", "sock_accept", "add_reader", "add_writer", "remove_reader", "remove_writer",
        "add_signal_handler", "remove_signal_handler", "shutdown_default_executor", "set_exception_handler",
        "call_exception_handler", "set_task_factory", "run_until_complete", "set_debug",
    ):  # fmt: skip
        expected = inspect.signature(getattr(asyncio.SelectorEventLoop, name)).parameters
        try:
            actual = inspect.signature(getattr(type(loop), name)).parameters
        except ValueError:
            differences[name] = "no signature"
            continue
        missing = [parameter for parameter in expected if parameter not in actual]
        if missing and not any(parameter.kind is parameter.VAR_KEYWORD for parameter in actual.values()):
            differences[name] = missing
    assert differences == {}
