"""Findings of CPython's own tests of asyncio (`make conformance`), and what they don't cover."""

import asyncio
import gc
import inspect
import logging
import os
import re
import selectors
import signal
import socket
import sys
import threading
import weakref

import pytest

from support import (
    HOST,
    PATIENCE_S,
    BackgroundThread,
    Recorder,
    capture_contexts,
    open_descriptors,
    run_child,
    same_as_asyncio,
    tcp_pair,
    until,
)

# The whole interface


def test_every_method_of_abstract_event_loop_is_there(loop):
    missing = [
        name
        for name, value in vars(asyncio.AbstractEventLoop).items()
        if inspect.isroutine(value)
        and not name.startswith("__")
        and getattr(type(loop), name) is getattr(asyncio.AbstractEventLoop, name)
    ]
    assert missing == []


def test_every_public_name_of_asyncios_loop_is_there(loop):
    names = {name for name in dir(asyncio.SelectorEventLoop) if not name.startswith("_")}
    assert sorted(names - set(dir(loop))) == []


@pytest.mark.without_debug_mode
def test_the_state_of_a_new_loop(loop):
    assert (loop.is_running(), loop.is_closed(), loop.get_debug()) == (False, False, False)
    assert (loop.get_task_factory(), loop.get_exception_handler()) == (None, None)


def awkward_calls(loop):
    """Call by name, with too little, with too much, with the wrong thing, on an open loop and on a closed one."""
    yield lambda: loop.call_soon(callback=print).cancel()
    yield lambda: loop.call_later(delay=1, callback=print).cancel()
    yield lambda: loop.call_at(when=1, callback=print).cancel()
    yield lambda: loop.call_soon_threadsafe(callback=print).cancel()
    yield lambda: loop.call_soon()
    yield lambda: loop.call_soon(print, context=None, other=1)
    yield lambda: loop.call_soon(print, callback=print)
    yield lambda: loop.call_later(1)
    yield lambda: loop.call_at()
    yield lambda: loop.call_later("1", print)
    yield lambda: loop.call_later(None, print)
    yield lambda: loop.call_at(None, print)
    yield lambda: loop.call_later(float("nan"), print).cancel()
    yield lambda: loop.call_later(float("inf"), print).cancel()
    yield lambda: loop.sock_recv(sock=1, n=2).close()
    yield lambda: loop.sock_recv()
    yield lambda: loop.create_task()
    yield lambda: loop.create_task(5)
    yield lambda: loop.set_debug(enabled=False)
    yield lambda: loop.run_until_complete(future=asyncio.sleep(0))
    yield lambda: loop.run_until_complete(5)
    yield lambda: loop.run_forever(1)
    yield lambda: loop.set_exception_handler(handler=None)
    yield lambda: loop.set_exception_handler(5)
    yield lambda: loop.set_task_factory(5)
    yield lambda: loop.set_default_executor(5)
    yield lambda: loop.add_reader(-1, print)
    yield lambda: loop.add_reader("x", print)
    yield lambda: loop.add_writer(0)
    yield lambda: loop.remove_reader(fd=0)
    yield lambda: loop.add_signal_handler(99999, print)
    yield lambda: loop.add_signal_handler("x", print)
    yield lambda: loop.add_signal_handler(signal.SIGKILL, print)
    yield lambda: loop.add_signal_handler(signal.SIGUSR1, asyncio.sleep)
    yield lambda: loop.remove_signal_handler(signal.SIGUSR1)
    for _ in range(2):
        yield lambda: loop.close()
    yield lambda: loop.call_soon(print)
    yield lambda: loop.call_soon_threadsafe(print)
    yield lambda: loop.call_later(1, print)
    yield lambda: loop.call_at(1, print)
    yield lambda: loop.run_in_executor(None, print)
    yield lambda: loop.run_forever()
    yield lambda: loop.run_until_complete(loop.create_future())
    yield lambda: loop.add_reader(0, print)
    yield lambda: loop.add_writer(0, print)
    yield lambda: loop.remove_reader(0)
    yield lambda: loop.remove_writer(0)
    yield lambda: loop.add_signal_handler(signal.SIGUSR1, print)
    yield lambda: loop.remove_signal_handler(signal.SIGUSR1)
    yield lambda: loop.create_future().done()
    yield lambda: loop.stop()
    yield lambda: (loop.is_running(), loop.is_closed(), loop.get_debug())


def test_awkward_calls_are_answered_as_by_asyncio(loop_factory):
    def body(loop):
        answers = []
        for call in awkward_calls(loop):
            try:
                answers.append(call())
            except Exception as error:
                # Where the method comes from is not asyncio's to say.
                answers.append((type(error), re.sub(r"\w+\.(\w+\(\))", r"\1", str(error))))
        return answers

    same_as_asyncio(body, loop_factory)


# Put in the place of asyncio's own loop


def test_ringloop_as_asyncios_selector_event_loop(arm):
    """Whoever replaces the class in the module gets the same loop, and no endless recursion."""
    child = run_child(
        """
        import socket
        if sys.argv[1] != "asyncio":
            import ringloop
            asyncio.SelectorEventLoop = ringloop.EventLoop

        async def main():
            loop = asyncio.get_running_loop()
            transport, _ = await loop.create_datagram_endpoint(asyncio.DatagramProtocol, ("127.0.0.1", 0))
            first, second = socket.socketpair()
            with first, second:
                first.setblocking(False)
                second.setblocking(False)
                for debug in (False, True):
                    loop.set_debug(debug)
                    await loop.sock_sendall(first, b"data")
                    print(await loop.sock_recv(second, 10))
                    loop.add_reader(second, print)
                    print(loop.remove_reader(second))
            transport.close()

        loop = asyncio.SelectorEventLoop()
        loop.run_until_complete(main())
        loop.close()
        """,
        arm,
        arm,
    )
    assert (child.stdout, child.stderr) == ("b'data'\nTrue\n" * 2, "")


@pytest.mark.parametrize("where", ["instance", "class"])
def test_create_connection_uses_the_sock_connect_that_others_put_in(loop, monkeypatch, where):
    calls = []
    original = loop.sock_connect

    async def sock_connect(*arguments):
        calls.append(arguments[-1])
        await original(*arguments[-2:])

    monkeypatch.setattr(loop if where == "instance" else type(loop), "sock_connect", sock_connect)

    async def main():
        with socket.create_server((HOST, 0)) as listener:
            transport, protocol = await loop.create_connection(Recorder, *listener.getsockname())
            transport.close()
            await until(lambda: protocol.lost)
            assert calls == [listener.getsockname()]

    loop.run_until_complete(main())


def test_the_selector_knows_descriptors_by_number_and_by_file(loop):
    first, second = tcp_pair()
    with first, second:
        for name in (first, first.fileno()):
            with pytest.raises(KeyError, match="is not registered"):
                loop._selector.get_key(name)
        loop.add_writer(first, print)
        for name in (first, first.fileno()):
            assert loop._selector.get_key(name).events == selectors.EVENT_WRITE
        loop.remove_writer(first)
        with pytest.raises(ValueError, match="Invalid file object: 'nothing'"):
            loop._selector.get_key("nothing")


def test_slow_callbacks_are_logged_by_the_logger_of_asyncios_loop(loop, monkeypatch):
    records = []

    class Logger(logging.Logger):
        def handle(self, record):
            records.append(record.getMessage())

    monkeypatch.setattr(asyncio.base_events, "logger", Logger("other"))
    loop.set_debug(True)
    loop.slow_callback_duration = 0
    loop.call_soon(loop.stop)
    loop.run_forever()
    assert [text.startswith("Executing <Handle ") for text in records] == [True]


# Debug mode


@pytest.mark.parametrize("debug", [False, True])
def test_a_failed_task_that_nobody_keeps_goes_when_asyncios_goes(loop_factory, debug):
    """Its exception's traceback refers to frames of the loop's; none of these may refer to the task."""

    def body(loop):
        loop.set_debug(debug)
        events = []
        loop.set_exception_handler(lambda _loop, context: events.append(context["message"]))

        async def fail():
            raise ZeroDivisionError

        async def main():
            task = weakref.ref(loop.create_task(fail()))
            await asyncio.sleep(0)
            events.append(task() is None)
            gc.collect()

        gc.disable()
        try:
            loop.run_until_complete(main())
        finally:
            gc.enable()
        return events

    events = same_as_asyncio(body, loop_factory)
    if sys.version_info >= (3, 12):
        assert events == ["Task exception was never retrieved", True]


# Turn by turn


def test_run_once_runs_a_turn(loop):
    ran = []
    loop.call_soon(lambda: (ran.append("first"), loop.call_soon(ran.append, "second")))
    loop._run_once()
    assert ran == ["first"]
    loop._run_once()
    assert ran == ["first", "second"]


def test_run_once_waits_for_a_timer_and_for_another_thread(loop):
    ran = []
    loop.call_later(0.001, ran.append, "timer")
    while not ran:
        loop._run_once()
    thread = threading.Thread(target=loop.call_soon_threadsafe, args=(ran.append, "thread"))
    thread.start()
    while len(ran) < 2:
        loop._run_once()
    thread.join()
    assert ran == ["timer", "thread"]


def test_run_once_on_a_closed_loop(new_loop):
    loop = new_loop()
    loop.close()
    with pytest.raises((RuntimeError, AttributeError)):
        loop._run_once()


@pytest.mark.ringloop_only
def test_run_once_within_a_callback(loop):
    """A program that waits within a callback runs what is queued, and the rest of the outer turn follows."""
    ran = []

    def nested():
        loop.call_soon(ran.append, "third")
        loop._run_once()
        ran.append("fourth")

    loop.call_soon(ran.append, "first")
    loop.call_soon(nested)
    loop.call_soon(ran.append, "second")
    loop.call_soon(loop.stop)
    loop.run_forever()
    assert ran == ["first", "second", "third", "fourth"]


def test_a_loop_that_is_driven_by_its_program(loop):
    if not hasattr(asyncio.SelectorEventLoop, "_run_forever_setup"):
        pytest.skip("asyncio has _run_forever_setup() from Python 3.13 on")
    ran = []
    loop.call_soon(ran.append, 1)
    loop._run_forever_setup()
    try:
        assert asyncio.get_running_loop() is loop
        assert loop.is_running()
        for _ in range(10):
            loop.call_soon(lambda: None)  # so that no turn waits
            loop._run_once()
    finally:
        loop._run_forever_cleanup()
    assert asyncio._get_running_loop() is None
    assert not loop.is_running()
    assert ran == [1]


def test_run_forever_uses_the_setup_and_the_cleanup_that_others_put_in(loop, monkeypatch):
    if not hasattr(asyncio.SelectorEventLoop, "_run_forever_setup"):
        pytest.skip("asyncio has _run_forever_setup() from Python 3.13 on")
    calls = []
    for name in ("_run_forever_setup", "_run_forever_cleanup"):
        original = getattr(loop, name)
        monkeypatch.setattr(loop, name, lambda name=name, original=original: (calls.append(name), original()))
    loop.run_until_complete(asyncio.sleep(0))
    assert calls == ["_run_forever_setup", "_run_forever_cleanup"]


# Half-closed connections


def test_a_writer_waits_for_room_at_a_half_closed_peer(loop):
    """It is not kept busy by the end of what the peer sends, and lets the thread run that makes room."""
    first, second = tcp_pair()
    wrote = []

    def write():
        wrote.append(first.send(b"more"))
        loop.remove_writer(first)
        loop.stop()

    def drain():
        second.setblocking(True)
        while not received or received[-1]:
            received.append(second.recv(1 << 20))

    received = []
    with first, second:
        with pytest.raises(BlockingIOError):
            while True:
                first.send(bytes(1 << 20))
        second.shutdown(socket.SHUT_WR)
        loop.add_writer(first, write)
        thread = threading.Thread(target=drain)
        loop.call_later(0.01, thread.start)
        loop.run_forever()
        first.shutdown(socket.SHUT_WR)
        thread.join()
    assert wrote == [4]
    assert received[-2].endswith(b"more")


# Handles of other threads


@pytest.mark.exact
@pytest.mark.parametrize("method, answer", [("cancel", None), ("cancelled", False)])
def test_another_thread_waits_for_the_end_of_a_run(loop_factory, method, answer):
    """From Python 3.14 on a handle of `call_soon_threadsafe` has a lock; before, nobody waits."""

    def body(loop):
        started, asked, answered, finished = (threading.Event() for _ in range(4))
        seen = []

        def callback():
            started.set()
            asked.wait(PATIENCE_S)
            # The other thread asks at last when it has set the event. Where it has to wait, it answers when this has ended.
            answered.wait(0.1 if sys.version_info >= (3, 14) else PATIENCE_S)
            finished.set()

        def in_thread():
            handle = loop.call_soon_threadsafe(callback)
            started.wait(PATIENCE_S)
            asked.set()
            seen.append(getattr(handle, method)())
            seen.append(finished.is_set())
            answered.set()
            seen.append(handle.cancelled())
            loop.call_soon_threadsafe(loop.stop)

        thread = BackgroundThread(in_thread)
        loop.run_forever()
        thread.result()
        return seen

    has_lock = hasattr(asyncio.events, "_ThreadSafeHandle")
    assert same_as_asyncio(body, loop_factory) == [answer, has_lock, method == "cancel"]


@pytest.mark.exact
def test_a_callback_may_cancel_its_own_handle_of_call_soon_threadsafe(loop):
    handles, seen = [], []

    def callback():
        handles[0].cancel()
        seen.append(handles[0].cancelled())
        loop.stop()

    thread = BackgroundThread(lambda: handles.append(loop.call_soon_threadsafe(callback)))
    thread.result()
    loop.run_forever()
    assert seen == [True]


# Child processes


@pytest.mark.exact
@pytest.mark.ringloop_only
def test_the_pidfd_is_closed_when_waiting_for_the_child_fails(loop, monkeypatch):
    contexts = capture_contexts(loop)

    def fail(*_arguments):
        raise OSError("unexpected")

    async def main():
        before = open_descriptors()
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", "input()", stdin=asyncio.subprocess.PIPE)
        with monkeypatch.context() as patches:
            patches.setattr(os, "waitid", fail)
            patches.setattr(os, "waitpid", fail)
            process.stdin.close()
            assert await process.wait() == 255
        os.waitpid(process.pid, 0)
        assert not open_descriptors() - before

    loop.run_until_complete(main())
    assert [repr(context["exception"]) for context in contexts] == ["OSError('unexpected')"]
