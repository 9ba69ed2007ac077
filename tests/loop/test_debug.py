"""Debug mode: slow callbacks, calls from the wrong thread, where things were created."""

import asyncio
import contextlib
import logging
import os
import re
import subprocess
import sys
import textwrap
import time

import pytest

from support import (
    PATIENCE_S,
    BackgroundThread,
    capture_contexts,
    new_event_loop,
    noop,
    run_child,
    run_turns,
    same_as_asyncio,
    skip_unless,
    tcp_pair,
)


async def answer():
    return 42


# Switching it on


@pytest.mark.parametrize(
    "environment, flags, expected",
    [
        ({"PYTHONASYNCIODEBUG": None}, (), "False"),
        ({"PYTHONASYNCIODEBUG": "1"}, (), "True"),
        ({"PYTHONASYNCIODEBUG": ""}, (), "False"),
        ({"PYTHONASYNCIODEBUG": None}, ("-X", "dev"), "True"),
        ({"PYTHONASYNCIODEBUG": "1"}, ("-E",), "False"),
    ],
    ids=["off", "variable", "empty variable", "dev mode", "ignored variable"],
)
def test_new_loops_take_debug_mode_from_the_environment(arm, environment, flags, expected):
    # -E hides PYTHONPATH too, so the child gets its path by hand.
    child = run_child_with_path(
        """
        if sys.argv[1] == "asyncio":
            loop = asyncio.SelectorEventLoop()
        else:
            import ringloop
            loop = ringloop.new_event_loop()
        print(loop.get_debug())
        loop.close()
        """,
        arm,
        environment,
        flags,
    )
    assert (child.stdout.strip(), child.stderr) == (expected, "")


def run_child_with_path(source, arm, environment, flags):
    lines = f"import sys\nsys.path[:] = {sys.path!r}\nimport asyncio\n" + textwrap.dedent(source)
    variables = {
        name: value for name, value in {**os.environ, "PYTHONDEVMODE": None, **environment}.items() if value is not None
    }
    return subprocess.run(
        [sys.executable, *flags, "-c", lines, arm], env=variables, capture_output=True, text=True, timeout=PATIENCE_S
    )


@pytest.mark.without_debug_mode
def test_set_debug_and_get_debug(loop):
    assert loop.get_debug() is False
    loop.set_debug(True)
    assert loop.get_debug() is True
    loop.set_debug(False)
    assert loop.get_debug() is False


# Slow callbacks


def slow(seconds):
    time.sleep(seconds)


def slow_ones(caplog, name):
    """Return what was logged about a slow callback of this name. On a busy machine the test's others may be slow as well."""
    return [record for record in caplog.records if name in record.getMessage()]


def test_slow_callback_duration_is_a_tenth_of_a_second_and_can_be_set(arm):
    with contextlib.closing(new_event_loop(arm)) as loop:
        assert loop.slow_callback_duration == 0.1
        loop.slow_callback_duration = 0.5
        assert loop.slow_callback_duration == 0.5


def test_a_slow_callback_is_logged(loop, caplog):
    loop.set_debug(True)
    loop.slow_callback_duration = 0.01
    loop.call_soon(slow, 0.02)
    loop.call_soon(noop)
    run_turns(loop)
    [record] = slow_ones(caplog, "slow(")
    line = slow.__code__.co_firstlineno
    assert record.name == "asyncio" and record.levelno == logging.WARNING
    assert re.fullmatch(
        rf"Executing <Handle slow\(0\.02\) at {re.escape(__file__)}:{line} "
        rf"created at {re.escape(__file__)}:\d+> took \d+\.\d{{3}} seconds",
        record.getMessage(),
    )


def test_a_slow_timer_is_logged(loop, caplog):
    loop.set_debug(True)
    loop.slow_callback_duration = 0.01
    loop.call_later(0, slow, 0.02)
    run_turns(loop)
    [record] = slow_ones(caplog, "slow(")
    assert re.match(r"Executing <TimerHandle when=\d+\.\d+ slow\(0\.02\) at ", record.getMessage())


def test_a_slow_task_step_is_logged_as_the_task(loop, caplog):
    loop.set_debug(True)
    loop.slow_callback_duration = 0.01

    async def main():
        time.sleep(0.02)

    loop.run_until_complete(loop.create_task(main(), name="slow task"))
    [record] = slow_ones(caplog, "'slow task'")
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith(
        "Executing <Task finished name='slow task' coro=<test_a_slow_task_step_is_logged_as_the_task"
    )


def test_a_slow_callback_that_cancels_itself_is_logged_with_its_name(loop, caplog):
    loop.set_debug(True)
    loop.slow_callback_duration = 0.01
    box = []

    def cancel_and_sleep():
        box[0].cancel()
        time.sleep(0.02)

    box.append(loop.call_soon(cancel_and_sleep))
    run_turns(loop)
    [record] = slow_ones(caplog, "cancel_and_sleep(")
    assert re.match(r"Executing <Handle cancelled .*cancel_and_sleep\(\) at ", record.getMessage())


def test_a_slow_reader_is_logged(loop, caplog):
    loop.set_debug(True)
    loop.slow_callback_duration = 0.01
    first, second = tcp_pair()

    def read():
        first.recv(1)
        time.sleep(0.02)
        loop.stop()

    with first, second:
        loop.add_reader(first, read)
        second.send(b"x")
        loop.run_forever()
        loop.remove_reader(first)
    [record] = slow_ones(caplog, "read(")
    assert re.match(r"Executing <Handle .*read\(\) at .* took \d+\.\d{3} seconds", record.getMessage())


@pytest.mark.without_debug_mode
def test_slowness_is_not_logged_without_debug_mode(loop, caplog):
    loop.slow_callback_duration = 0.01
    loop.call_soon(slow, 0.02)
    run_turns(loop)
    assert caplog.records == []


def test_the_limit_is_inclusive(loop, caplog):
    loop.set_debug(True)
    loop.slow_callback_duration = 0
    loop.call_soon(noop)
    run_turns(loop)
    assert len(caplog.records) == 1


# Calls from the wrong thread


WRONG_THREAD = "^Non-thread-safe operation invoked on an event loop other than the current one$"


@pytest.mark.exact
@pytest.mark.parametrize(
    "call",
    [
        lambda loop: loop.call_soon(noop),
        lambda loop: loop.call_later(1, noop),
        lambda loop: loop.call_at(1, noop),
        lambda loop: loop.create_future().add_done_callback(noop) or loop.call_soon(noop),
    ],
    ids=["call_soon", "call_later", "call_at", "future"],
)
def test_unsafe_calls_from_another_thread_are_refused(loop, call):
    loop.set_debug(True)

    async def main():
        thread = BackgroundThread(call, loop)
        while thread.is_alive():
            await asyncio.sleep(0.001)
        with pytest.raises(RuntimeError, match=WRONG_THREAD):
            thread.result()

    loop.run_until_complete(main())


@pytest.mark.exact
def test_safe_calls_from_another_thread_are_accepted(loop):
    loop.set_debug(True)
    trace = []
    BackgroundThread(loop.call_soon, trace.append, "not running yet").result()

    async def main():
        await loop.run_in_executor(None, loop.call_soon_threadsafe, trace.append, "threadsafe")
        await asyncio.sleep(0)

    loop.run_until_complete(main())
    assert trace == ["not running yet", "threadsafe"]


@pytest.mark.without_debug_mode
def test_without_debug_mode_unsafe_calls_are_not_checked(loop):
    trace = []

    async def main():
        await loop.run_in_executor(None, loop.call_soon, trace.append, "unsafe")
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    loop.run_until_complete(main())
    assert trace == ["unsafe"]


# Where things were created


def fail():
    raise ZeroDivisionError("on purpose")


@pytest.mark.parametrize("method", ["call_soon", "call_later", "call_at", "call_soon_threadsafe"])
def test_a_failed_callback_says_where_it_was_queued(loop, method):
    loop.set_debug(True)
    contexts = capture_contexts(loop)
    arguments = (0,) if method in ("call_later", "call_at") else ()

    def queue_it():
        getattr(loop, method)(*arguments, fail)

    queue_it()
    run_turns(loop, 2)
    [context] = contexts
    assert sorted(context) == ["exception", "handle", "message", "source_traceback"]
    last = context["source_traceback"][-1]
    assert (last.filename, last.name) == (__file__, "queue_it")


@pytest.mark.without_debug_mode
def test_no_source_traceback_without_debug_mode(loop):
    contexts = capture_contexts(loop)
    loop.call_soon(fail)
    run_turns(loop)
    assert "source_traceback" not in contexts[0]


def test_the_default_handler_shows_where_the_handle_was_created(loop, caplog):
    loop.set_debug(True)
    loop.call_soon(fail)
    run_turns(loop)
    text = caplog.records[0].getMessage()
    assert text.startswith("Exception in callback fail() at ")
    assert "\nsource_traceback: Object created at (most recent call last):\n  File " in text
    assert "loop.call_soon(fail)" in text
    assert caplog.records[0].exc_info[0] is ZeroDivisionError


def test_a_report_from_within_a_callback_names_its_handle(loop, caplog):
    loop.set_debug(True)
    loop.call_soon(loop.call_exception_handler, {"message": "told by hand"})
    run_turns(loop)
    lines = caplog.records[0].getMessage().split("\n")
    assert lines[:2] == ["told by hand", "handle_traceback: Handle created at (most recent call last):"]


def test_a_report_from_outside_names_no_handle(loop, caplog):
    loop.set_debug(True)
    loop.call_exception_handler({"message": "told by hand"})
    assert caplog.records[0].getMessage() == "told by hand"


def test_tasks_and_futures_know_where_they_were_created(loop):
    loop.set_debug(True)

    async def main():
        task = loop.create_task(answer())
        await task
        return repr(task), repr(loop.create_future())

    task, future = loop.run_until_complete(main())
    assert f" created at {__file__}:" in task
    assert " created at " in future


def test_coroutines_track_their_origin_while_a_debugging_loop_runs(loop):
    depth = sys.get_coroutine_origin_tracking_depth()

    async def main():
        inside = sys.get_coroutine_origin_tracking_depth()
        loop.set_debug(False)
        await asyncio.sleep(0.001)
        off = sys.get_coroutine_origin_tracking_depth()
        loop.set_debug(True)
        await asyncio.sleep(0.001)
        return inside, off, sys.get_coroutine_origin_tracking_depth()

    loop.set_debug(True)
    assert loop.run_until_complete(main()) == (10, depth, 10)
    assert sys.get_coroutine_origin_tracking_depth() == depth
    loop.set_debug(False)

    async def inside_depth():
        return sys.get_coroutine_origin_tracking_depth()

    assert loop.run_until_complete(inside_depth()) == depth


def test_set_debug_from_within_a_callback_takes_effect(loop, caplog):
    loop.slow_callback_duration = 0
    loop.call_soon(loop.set_debug, True)
    run_turns(loop)
    caplog.clear()
    loop.call_soon(slow, 0.001)
    run_turns(loop)
    assert any("slow(0.001)" in record.getMessage() for record in caplog.records)


# What is logged


def test_what_debug_mode_logs_about_a_connection(loop, caplog):
    """The messages that people grep for, without addresses and descriptors."""
    caplog.set_level(logging.DEBUG, "asyncio")
    loop.set_debug(True)
    loop.slow_callback_duration = 1000

    async def main():
        server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.transport.pause_reading()
        writer.transport.resume_reading()
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
        server.close()
        await server.wait_closed()

    loop.run_until_complete(main())
    messages = [record.getMessage() for record in caplog.records]

    def logged(pattern):
        return any(re.search(pattern, message) for message in messages)

    assert logged(r"^<Server sockets=.*> is serving$")
    assert logged(r" connected to 127\.0\.0\.1:\d+: \(<.*>, <.*>\)$")
    assert logged(r"^<Server sockets=.*> got a new connection from \('127\.0\.0\.1', \d+\): ")
    assert logged(r"fd=\d+.*> pauses reading$")
    assert logged(r"fd=\d+.*> resumes reading$")
    assert logged(r"fd=\d+.*> received EOF$")


def test_close_is_logged_in_debug_mode(loop, caplog):
    caplog.set_level(logging.DEBUG, "asyncio")
    loop.set_debug(True)
    loop.close()
    assert any(re.match(r"Close <\w+ running=False ", record.getMessage()) for record in caplog.records)


def test_getaddrinfo_is_timed_in_debug_mode(loop_factory, caplog):
    caplog.set_level(logging.DEBUG, "asyncio")

    def body(loop):
        caplog.clear()
        loop.set_debug(True)
        loop.slow_callback_duration = 1000
        loop.run_until_complete(loop.getaddrinfo("localhost", 80, type=1))
        return [
            re.sub(r"took [\d.]+ms: .*", "took", record.getMessage())
            for record in caplog.records
            if "ddress info" in record.getMessage()
        ]

    messages = same_as_asyncio(body, loop_factory)
    assert messages[0].startswith("Get address info localhost:80, type=")
    assert messages[1].startswith("Getting address info localhost:80, type=")


@pytest.mark.parametrize("debug", [False, True])
def test_the_whole_of_an_ordinary_program_works_in_debug_mode(loop, debug):
    loop.set_debug(debug)
    loop.slow_callback_duration = 1000

    async def handle(reader, writer):
        while line := await reader.readline():
            writer.write(line)
            await writer.drain()
        writer.close()

    async def client(address, number):
        reader, writer = await asyncio.open_connection(*address)
        for turn in range(5):
            writer.write(f"{number} {turn}\n".encode())
            assert await reader.readline() == f"{number} {turn}\n".encode()
        writer.close()
        await writer.wait_closed()

    async def main():
        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        address = server.sockets[0].getsockname()
        async with server:
            await asyncio.gather(*(client(address, number) for number in range(20)))

    loop.run_until_complete(main())


def test_the_child_process_of_a_debugging_user_is_clean(arm):
    """`python -X dev -W error` says nothing about a program that does everything right."""
    child = run_child(
        """
        async def handle(reader, writer):
            writer.write(await reader.readline())
            await writer.drain()
            writer.close()
            await writer.wait_closed()

        async def main():
            server = await asyncio.start_server(handle, "127.0.0.1", 0)
            async with server:
                reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
                writer.write(b"hello\\n")
                print(await reader.read())
                writer.close()
                await writer.wait_closed()

        with asyncio.Runner(loop_factory=new_loop, debug=True) as runner:
            runner.run(main())
        """,
        arm,
        python_flags=("-X", "dev", "-W", "error"),
    )
    assert child.returncode == 0, child.stderr
    assert child.stdout == "b'hello\\n'\n"
    assert "Warning" not in child.stderr and "Traceback" not in child.stderr


@pytest.mark.without_debug_mode
def test_source_traceback_is_what_asyncios_handles_carry(loop):
    """Libraries read `_source_traceback` of a handle when they report a leak."""
    skip_unless(hasattr(asyncio.Handle, "_source_traceback"), "Handle._source_traceback")
    quiet = loop.call_soon(noop)
    assert quiet._source_traceback is None
    loop.set_debug(True)
    handle = loop.call_soon(noop)
    assert handle._source_traceback[-1].filename == __file__
