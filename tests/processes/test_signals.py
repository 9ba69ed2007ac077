"""Signals: KeyboardInterrupt, SIGTERM, and the loop's handlers. Mostly in child processes, where a signal can do no harm."""

import asyncio
import os
import signal
import threading
import time

import pytest

from support import PATIENCE_S, BackgroundThread, noop, run_child, same_as_asyncio, start_child, turns, unlogged


async def coroutine_function():
    pass


def interrupted(arm, source, number=signal.SIGINT, env=None, asleep=False):
    """Run source in a child, send it the signal once it has printed "ready", and return (exit code, stdout, stderr).

    With `asleep` the signal waits until the child sleeps in the kernel.
    """
    with start_child(source, arm, env=env) as process:
        assert process.stdout.readline() == "ready\n", process.stderr.read()
        deadline = time.monotonic() + PATIENCE_S
        while asleep and state_of(process.pid) != "S":
            assert time.monotonic() < deadline, "the child never slept"
            time.sleep(0.001)
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=PATIENCE_S)
    return process.returncode, stdout, unlogged(stderr)


def state_of(pid):
    """Return the state letter of a process, proc_pid_stat(5)."""
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]


SPINNING = {"RINGLOOP_BUSY_POLL": "1000000"}
"""A loop that polls for a second before it sleeps: the signal finds it busy. Stock asyncio does not care."""


# SIGINT


@pytest.mark.many_cases(short=2)
@pytest.mark.parametrize("env", [{}, SPINNING], ids=["asleep", "polling"])
@pytest.mark.parametrize(
    "body",
    [
        "await asyncio.sleep(3600)",
        "await loop.create_future()",
        "loop.add_reader(os.pipe()[0], print); await asyncio.Event().wait()",
    ],
    ids=["timer", "nothing", "descriptor"],
)
def test_an_interrupt_ends_a_runner_as_under_asyncio(arm, body, env):
    code, stdout, stderr = interrupted(
        arm,
        f"""
        async def main():
            loop = asyncio.get_running_loop()
            loop.call_later(0.02, lambda: print("ready", flush=True))
            try:
                {body}
            except asyncio.CancelledError:
                print("cancelled", flush=True)
                raise
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(main())
        """,
        env=env,
    )
    assert (code, stdout) == (-signal.SIGINT, "cancelled\n")
    assert stderr.rstrip().endswith("KeyboardInterrupt")
    assert "never retrieved" not in stderr and "Exception in" not in stderr


@pytest.mark.parametrize("env", [{}, SPINNING], ids=["asleep", "polling"])
def test_an_interrupt_leaves_run_forever(arm, env):
    code, stdout, _ = interrupted(
        arm,
        """
        loop = new_loop()
        loop.call_later(0.02, lambda: print("ready", flush=True))
        try:
            loop.run_forever()
        except KeyboardInterrupt:
            print("interrupted", loop.is_running(), asyncio._get_running_loop())
        print(loop.run_until_complete(asyncio.sleep(0.001, "usable")))
        loop.close()
        """,
        env=env,
    )
    assert (code, stdout) == (0, "interrupted False None\nusable\n")


def test_an_interrupt_reaches_a_busy_callback(arm):
    code, stdout, _ = interrupted(
        arm,
        """
        loop = new_loop()
        def spin():
            print("ready", flush=True)
            while True:
                pass
        loop.call_soon(spin)
        try:
            loop.run_forever()
        except KeyboardInterrupt:
            print("interrupted")
        loop.close()
        """,
    )
    assert (code, stdout) == (0, "interrupted\n")


def test_an_interrupt_reaches_an_endless_chain_of_callbacks(arm):
    code, stdout, _ = interrupted(
        arm,
        """
        loop = new_loop()
        def link():
            loop.call_soon(link)
        loop.call_soon(link)
        loop.call_later(0.02, lambda: print("ready", flush=True))
        try:
            loop.run_forever()
        except KeyboardInterrupt:
            print("interrupted")
        loop.close()
        """,
    )
    assert (code, stdout) == (0, "interrupted\n")


def test_an_interrupt_can_be_survived_by_the_main_task(arm):
    code, stdout, _ = interrupted(
        arm,
        """
        async def main():
            print("ready", flush=True)
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                asyncio.current_task().uncancel()
            return "survived"
        with asyncio.Runner(loop_factory=new_loop) as runner:
            print(runner.run(main()))
        """,
    )
    assert (code, stdout) == (0, "survived\n")


def test_an_interrupt_under_a_server_with_clients(arm):
    code, stdout, stderr = interrupted(
        arm,
        """
        async def handle(reader, writer):
            while data := await reader.read(1000):
                writer.write(data)
            writer.close()
        async def main():
            server = await asyncio.start_server(handle, "127.0.0.1", 0)
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.write(b"x")
            await reader.read(1)
            print("ready", flush=True)
            try:
                await asyncio.sleep(3600)
            finally:
                writer.close()
                server.close()
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(main())
        """,
    )
    assert code == -signal.SIGINT
    assert stderr.rstrip().endswith("KeyboardInterrupt")


def test_a_keyboard_interrupt_raised_in_a_task_ends_a_runner(arm):
    child = run_child(
        """
        async def main():
            raise KeyboardInterrupt
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(main())
        """,
        arm,
    )
    assert child.returncode == -signal.SIGINT
    assert child.stderr.rstrip().endswith("KeyboardInterrupt")


def test_system_exit_in_a_task_gives_the_exit_code(arm):
    child = run_child(
        """
        async def main():
            raise SystemExit(7)
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(main())
        """,
        arm,
    )
    assert child.returncode == 7
    assert child.stderr == ""


def test_a_python_signal_handler_runs_while_the_loop_sleeps(arm):
    """A handler of signal.signal, not of the loop: it runs when the wait is interrupted, and the wait goes on."""
    code, stdout, _ = interrupted(
        arm,
        """
        loop = new_loop()
        def handler(number, frame):
            print("handled", number, flush=True)
            loop.call_soon_threadsafe(loop.stop)
        signal.signal(signal.SIGUSR1, handler)
        import threading
        # From another thread: the handler must not find the loop's own within print.
        loop.call_soon(threading.Timer(0.1, print, ["ready"], {"flush": True}).start)
        loop.run_forever()
        loop.close()
        """,
        number=signal.SIGUSR1,
        env={"RINGLOOP_BUSY_POLL": "off"},
        asleep=True,
    )
    assert (code, stdout) == (0, f"handled {signal.SIGUSR1.value}\n")


def test_an_exception_from_a_python_signal_handler_leaves_the_loop(arm):
    code, stdout, _ = interrupted(
        arm,
        """
        loop = new_loop()
        def handler(number, frame):
            raise LookupError("from the handler")
        signal.signal(signal.SIGUSR1, handler)
        import threading
        # From another thread: the signal must not find the loop in a callback, whose exceptions are reported instead.
        loop.call_soon(threading.Timer(0.1, print, ["ready"], {"flush": True}).start)
        try:
            loop.run_forever()
        except LookupError as error:
            print(error, loop.is_running())
        loop.close()
        """,
        number=signal.SIGUSR1,
        env={"RINGLOOP_BUSY_POLL": "off"},
        asleep=True,
    )
    assert (code, stdout) == (0, "from the handler False\n")


# SIGTERM


@pytest.mark.parametrize("env", [{}, SPINNING], ids=["asleep", "polling"])
def test_sigterm_kills_by_default(arm, env):
    code, stdout, stderr = interrupted(
        arm,
        """
        async def main():
            print("ready", flush=True)
            await asyncio.sleep(3600)
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(main())
        """,
        number=signal.SIGTERM,
        env=env,
    )
    assert (code, stdout, stderr) == (-signal.SIGTERM, "", "")


@pytest.mark.parametrize("env", [{}, SPINNING], ids=["asleep", "polling"])
def test_a_server_that_stops_on_sigterm(arm, env):
    code, stdout, stderr = interrupted(
        arm,
        """
        async def main():
            loop, stopping = asyncio.get_running_loop(), asyncio.Event()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, stopping.set)
            server = await asyncio.start_server(print, "127.0.0.1", 0)
            loop.call_later(0.02, lambda: print("ready", flush=True))
            await stopping.wait()
            server.close()
            await server.wait_closed()
            print("stopped in order")
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(main())
        """,
        number=signal.SIGTERM,
        env=env,
    )
    assert (code, stdout, stderr) == (0, "stopped in order\n", "")


# Handlers of the loop


@pytest.fixture
def signals_restored():
    numbers = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)
    saved = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in saved.items():
        signal.signal(number, handler)


pytestmark = pytest.mark.usefixtures("signals_restored")


def test_a_handler_gets_its_arguments_in_the_loop(loop):
    trace = []
    assert (
        loop.add_signal_handler(signal.SIGUSR1, lambda *arguments: (trace.append(arguments), loop.stop()), 1, "two")
        is None
    )
    loop.call_soon(os.kill, os.getpid(), signal.SIGUSR1)
    loop.run_forever()
    assert loop.remove_signal_handler(signal.SIGUSR1) is True
    assert loop.remove_signal_handler(signal.SIGUSR1) is False
    assert trace == [(1, "two")]


def test_a_handler_runs_in_the_context_of_its_registration_and_sees_the_running_loop(loop):
    seen = []
    loop.add_signal_handler(signal.SIGUSR1, lambda: (seen.append(asyncio.get_running_loop() is loop), loop.stop()))
    loop.call_later(0.01, os.kill, os.getpid(), signal.SIGUSR1)
    loop.run_forever()
    loop.remove_signal_handler(signal.SIGUSR1)
    assert seen == [True]


def test_a_signal_wakes_an_idle_loop_from_a_thread(loop):
    loop.add_signal_handler(signal.SIGUSR1, loop.stop)
    threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1)).start()
    loop.run_forever()
    loop.remove_signal_handler(signal.SIGUSR1)


def test_a_signal_before_the_run_is_kept(loop):
    trace = []
    loop.add_signal_handler(signal.SIGUSR1, lambda: (trace.append("handled"), loop.stop()))
    os.kill(os.getpid(), signal.SIGUSR1)
    assert trace == []
    loop.run_forever()
    loop.remove_signal_handler(signal.SIGUSR1)
    assert trace == ["handled"]


def test_handlers_run_in_the_order_of_the_signals(loop):
    trace = []
    loop.add_signal_handler(signal.SIGUSR1, trace.append, "one")
    loop.add_signal_handler(signal.SIGUSR2, lambda: (trace.append("two"), loop.stop()))

    def send():
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            signal.raise_signal(number)

    loop.call_soon(send)
    loop.run_forever()
    loop.remove_signal_handler(signal.SIGUSR1)
    loop.remove_signal_handler(signal.SIGUSR2)
    assert trace == ["one", "two"]


def test_a_handler_runs_after_what_was_queued_before_the_signal(loop):
    trace = []
    loop.add_signal_handler(signal.SIGUSR1, lambda: (trace.append("signal"), loop.stop()))

    def send():
        loop.call_soon(trace.append, "queued before")
        signal.raise_signal(signal.SIGUSR1)

    loop.call_soon(send)
    loop.run_forever()
    loop.remove_signal_handler(signal.SIGUSR1)
    assert trace == ["queued before", "signal"]


def test_adding_again_replaces_the_handler(loop):
    trace = []
    loop.add_signal_handler(signal.SIGUSR1, trace.append, "old")
    loop.add_signal_handler(signal.SIGUSR1, lambda: (trace.append("new"), loop.stop()))
    loop.call_soon(signal.raise_signal, signal.SIGUSR1)
    loop.run_forever()
    loop.remove_signal_handler(signal.SIGUSR1)
    assert trace == ["new"]


def test_removing_restores_the_default_action(loop):
    loop.add_signal_handler(signal.SIGUSR1, noop)
    assert signal.getsignal(signal.SIGUSR1) not in (signal.SIG_DFL, signal.SIG_IGN)
    loop.remove_signal_handler(signal.SIGUSR1)
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
    loop.add_signal_handler(signal.SIGINT, noop)
    loop.remove_signal_handler(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_close_removes_the_handlers(new_loop):
    loop = new_loop()
    loop.add_signal_handler(signal.SIGUSR1, noop)
    loop.add_signal_handler(signal.SIGINT, noop)
    loop.close()
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.set_wakeup_fd(-1) == -1


def test_the_wakeup_descriptor_is_given_back_with_the_last_handler(loop):
    loop.add_signal_handler(signal.SIGUSR1, noop)
    loop.add_signal_handler(signal.SIGUSR2, noop)
    loop.remove_signal_handler(signal.SIGUSR1)
    fd = signal.set_wakeup_fd(-1)
    assert fd != -1
    signal.set_wakeup_fd(fd)
    loop.remove_signal_handler(signal.SIGUSR2)
    assert signal.set_wakeup_fd(-1) == -1


@pytest.mark.without_debug_mode
def test_a_handler_that_fails_is_reported(loop):
    contexts = []

    def handler(_loop, context):
        contexts.append(context)
        loop.stop()

    def fail():
        raise ZeroDivisionError

    loop.set_exception_handler(handler)
    loop.add_signal_handler(signal.SIGUSR1, fail)
    loop.call_soon(signal.raise_signal, signal.SIGUSR1)
    loop.run_forever()
    loop.remove_signal_handler(signal.SIGUSR1)
    assert sorted(contexts[0]) == ["exception", "handle", "message"]


def test_a_handler_may_be_called_many_times(loop):
    trace = []

    async def main():
        loop.add_signal_handler(signal.SIGUSR1, trace.append, "x")
        for number in range(100):
            signal.raise_signal(signal.SIGUSR1)
            while len(trace) <= number:
                await asyncio.sleep(0)
        await turns(3)
        loop.remove_signal_handler(signal.SIGUSR1)

    loop.run_until_complete(main())
    assert len(trace) == 100


@pytest.mark.parametrize("number", [0, -1, 65, 1000, signal.SIGKILL, signal.SIGSTOP, "SIGINT", None, 1.5], ids=repr)
def test_bad_signal_numbers(loop_factory, number):
    def body(loop):
        results = []
        for method in (lambda: loop.add_signal_handler(number, noop), lambda: loop.remove_signal_handler(number)):
            try:
                results.append(method())
            except (ValueError, TypeError, RuntimeError, OSError) as error:
                results.append((type(error), str(error)))
        return results

    results = same_as_asyncio(body, loop_factory)
    assert isinstance(results[0], tuple)


def test_coroutines_are_no_handlers(loop):
    coroutine = coroutine_function()
    for bad in (coroutine, coroutine_function):
        with pytest.raises(TypeError, match="^coroutines cannot be used with add_signal_handler\\(\\)$"):
            loop.add_signal_handler(signal.SIGUSR1, bad)
    coroutine.close()
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL


@pytest.mark.exact
def test_handlers_belong_to_the_main_thread(loop_factory):
    def body(loop):
        def add():
            with pytest.raises((RuntimeError, ValueError)) as caught:
                loop.add_signal_handler(signal.SIGUSR1, noop)
            return type(caught.value), str(caught.value)

        return BackgroundThread(add).result()

    kind, text = same_as_asyncio(body, loop_factory)
    assert kind is RuntimeError and text.startswith("set_wakeup_fd only works in main thread")
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL


def test_a_closed_loop_takes_no_handler(loop):
    loop.close()
    with pytest.raises(RuntimeError, match="^Event loop is closed$"):
        loop.add_signal_handler(signal.SIGUSR1, noop)
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL


def test_a_loop_that_has_no_handlers_leaves_the_wakeup_descriptor_alone(loop):
    """Whatever else set it, such as a test runner or a GUI toolkit, keeps it after a run."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    previous = signal.set_wakeup_fd(writer)
    try:
        loop.run_until_complete(asyncio.sleep(0.001))
    finally:
        current = signal.set_wakeup_fd(previous)
        os.close(reader)
        os.close(writer)
    assert current == writer


def test_more_signals_than_the_loops_socket_has_room_for(arm):
    """While a callback blocks the loop: the interpreter warned of each."""
    child = run_child(
        """
        import signal

        seen = []

        async def main():
            signal.signal(signal.SIGUSR1, lambda *_: seen.append(1))
            for _ in range(3000):
                signal.raise_signal(signal.SIGUSR1)
            await asyncio.sleep(0.001)
            print(len(seen))

        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(main())
        """,
        arm,
    )
    assert (child.stdout, child.stderr) == ("3000\n", "")


@pytest.mark.many_cases(short=2)
@pytest.mark.parametrize("when", ["before the run", "during the run"])
def test_the_users_wakeup_descriptor_warns_no_more_than_before(arm, when):
    child = run_child(
        """
        import signal, socket

        reader, writer = socket.socketpair()
        writer.setblocking(False)

        def set_it():
            signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)

        async def main():
            if sys.argv[1] == "during the run":
                set_it()
            await asyncio.sleep(0.001)

        signal.signal(signal.SIGUSR1, lambda *_: None)
        if sys.argv[1] == "before the run":
            set_it()
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(main())
        for _ in range(3000):
            signal.raise_signal(signal.SIGUSR1)
        print(signal.set_wakeup_fd(-1) == writer.fileno())
        """,
        arm,
        when,
    )
    assert (child.stdout, child.stderr) == ("True\n", "")


def test_the_users_wakeup_descriptor_is_closed(loop):
    """It is still set; giving it back failed."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    previous = signal.set_wakeup_fd(writer)
    try:
        os.close(reader)
        os.close(writer)
        assert loop.run_until_complete(asyncio.sleep(0.001, "result")) == "result"
    finally:
        signal.set_wakeup_fd(previous)


HANDLER_RAISES = """
        import signal

        class Oops(Exception):
            pass

        def handler(*_):
            raise Oops

        def profile(frame, event, argument):
            name = frame.f_code.co_name if event == "call" else getattr(argument, "__name__", "")
            if [event, name] == sys.argv[1:3]:
                sys.setprofile(None)
                signal.raise_signal(signal.SIGUSR1)
"""
"""For children: a signal handler that raises where the profiler sees what the first two arguments say, an event and a name."""


@pytest.mark.many_cases(short=3)
@pytest.mark.ringloop_only
@pytest.mark.parametrize("own", ["none", "the user's"])
@pytest.mark.parametrize(
    ("event", "name"),
    [
        ("c_return", "extend"),
        ("call", "_give_back_wakeup_fd"),
        ("call", "_give_back_signals"),
        ("c_return", "set_wakeup_fd"),
        ("call", "_run_forever_cleanup"),
    ],
)
def test_a_signal_handler_that_raises_where_a_run_begins_or_ends(arm, event, name, own):
    """The loop doesn't stay "running", and its socket is not left to signals: its number would become another file's."""
    child = run_child(
        HANDLER_RAISES
        + """
        import socket

        own = -1
        if sys.argv[3] != "none":
            reader, writer = socket.socketpair()
            writer.setblocking(False)
            own = writer.fileno()
            signal.set_wakeup_fd(own, warn_on_full_buffer=False)
        signal.signal(signal.SIGUSR1, handler)
        loop = new_loop()
        loop.call_soon(loop.stop)
        sys.setprofile(profile)
        try:
            loop.run_forever()
            happened = sys.getprofile() is None
        except Oops:
            happened = True
        finally:
            sys.setprofile(None)
        assert not loop.is_running()
        # The first run may not have come to its end.
        loop.call_soon(loop.stop)
        loop.run_forever()
        other = new_loop()
        other.run_until_complete(asyncio.sleep(0))
        other.close()
        loop.close()
        print(happened, signal.set_wakeup_fd(-1) == own)
        """,
        arm,
        event,
        name,
        own,
    )
    # The user's own is given back when the run begins, from a call that Python code doesn't make.
    happens = name != ("_give_back_wakeup_fd" if own == "none" else "set_wakeup_fd")
    assert (child.stdout, child.stderr) == (f"{happens} True\n", "")


@pytest.mark.ringloop_only
@pytest.mark.parametrize("then", ["runs again", "is closed"])
def test_a_loop_that_has_not_given_back_the_wakeup_descriptor_runs_in_another_thread(arm, then):
    """A signal handler has raised where that would have been done. Only the main thread can do it."""
    child = run_child(
        HANDLER_RAISES
        + """
        import threading

        signal.signal(signal.SIGUSR1, handler)
        loop = new_loop()
        loop.call_soon(loop.stop)
        sys.setprofile(profile)
        try:
            loop.run_forever()
        except Oops:
            print("raised")

        def run():
            print(loop.run_until_complete(asyncio.sleep(0.001, "result")))

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        if sys.argv[3] == "runs again":
            loop.run_until_complete(asyncio.sleep(0))
        else:
            loop.close()
        print(signal.set_wakeup_fd(-1))
        loop.close()
        """,
        arm,
        "call",
        "_give_back_signals",
        then,
    )
    assert (child.stdout, child.stderr) == ("raised\nresult\n-1\n", "")


@pytest.mark.exact
@pytest.mark.ringloop_only
def test_a_loop_that_has_not_given_back_the_wakeup_descriptor_is_closed_by_another_thread(loop):
    loop._replaced_wakeup_fds.append(-1)
    BackgroundThread(loop.close).result()
    assert loop.is_closed()
