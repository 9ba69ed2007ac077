"""Child processes: started with all options of subprocess.Popen, watched, signalled, and reaped individually."""

import asyncio
import contextlib
import errno
import gc
import logging
import os
import signal
import subprocess
import sys
import threading
import types
import warnings

import pytest

import support
from support import (
    PATIENCE_S,
    BackgroundThread,
    finish,
    open_descriptors,
    resource_warnings,
    run_child,
    same_as_asyncio,
    until,
)

PIPE, STDOUT, DEVNULL = subprocess.PIPE, subprocess.STDOUT, subprocess.DEVNULL

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may give its children other users and groups")


def own_children():
    """Return the numbers of this process's children, zombies among them; proc_pid_stat(5)."""
    found = set()
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat") as file:
            if int(file.read().rpartition(")")[2].split()[1]) == os.getpid():
                found.add(int(name))
    return found


@pytest.fixture(autouse=True)
def no_zombies():
    """Fail a test that leaves a child behind, alive or dead."""
    before = own_children()
    yield
    if own_children() - before:
        gc.collect()
    # Waiting threads may need a moment.
    for thread in threading.enumerate():
        if "waitpid" in thread.name:
            thread.join(PATIENCE_S)
    subprocess._cleanup()  # What `subprocess` itself does with children that were dropped.
    left = own_children() - before
    assert not left, f"children left behind: {left}"


def refuse_pidfds(monkeypatch, error=errno.EPERM):
    """Make the kernel's pidfd_open fail as it does in a sandbox; asyncio itself takes threads then."""

    def refused(_pid, _flags=0):
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "pidfd_open", refused)


@pytest.fixture(params=["pidfd", "thread"])
def watched_by(request, arm, monkeypatch):
    """Return both ways to learn of a child's end."""
    if request.param == "thread":
        if arm == "asyncio":
            pytest.skip("asyncio takes threads or looks for pidfds once for all, by version")
        refuse_pidfds(monkeypatch)
    return request.param


@contextlib.contextmanager
def gate():
    """Yield a pipe for a child's input, as (the child's end, a function that ends it): the child goes on when the test says so."""
    inside, outside = os.pipe()
    ends = [outside]
    try:
        yield inside, lambda: os.close(ends.pop())
    finally:
        for end in (inside, *ends):
            os.close(end)


def wait_unreaped(pid):
    """Wait until a child has ended, and leave it for others to reap. Holds the loop meanwhile."""
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


async def output_of(*command, **options):
    """Run a program to its end; return (its return code, its output)."""
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, **options)
    stdout, _ = await process.communicate()
    return process.returncode, stdout


class Events(asyncio.SubprocessProtocol):
    """Writes down what happens to the child; `lost` is done at the end of all."""

    def __init__(self, loop):
        self.events = []
        self.lost = loop.create_future()

    def connection_made(self, transport):
        self.transport = transport
        self.events.append(("connection_made",))

    def pipe_data_received(self, fd, data):
        self.events.append(("pipe_data_received", fd, data))

    def pipe_connection_lost(self, fd, error):
        self.events.append(("pipe_connection_lost", fd, error))

    def process_exited(self):
        self.events.append(("process_exited", self.transport.get_returncode()))

    def connection_lost(self, error):
        self.events.append(("connection_lost", error))
        self.lost.set_result(None)


# Running a program


@pytest.mark.exact
def test_exec_returns_what_the_program_returns(loop, watched_by):
    async def main():
        process = await asyncio.create_subprocess_exec("/bin/sh", "-c", "read line; exit 7", stdin=PIPE)
        assert process.pid in own_children()
        process.stdin.close()
        assert await process.wait() == 7
        assert process.returncode == 7
        assert process.pid not in own_children()

    loop.run_until_complete(main())


def test_shell_takes_a_command_line(loop):
    async def main():
        process = await asyncio.create_subprocess_shell("echo out; echo err >&2; exit 3", stdout=PIPE, stderr=PIPE)
        assert await process.communicate() == (b"out\n", b"err\n")
        assert process.returncode == 3

    loop.run_until_complete(main())


def test_communicate_feeds_and_collects(loop, watched_by):
    data = bytes(range(256)) * 4096

    async def main():
        process = await asyncio.create_subprocess_exec("cat", stdin=PIPE, stdout=PIPE)
        stdout, stderr = await process.communicate(data)
        assert stdout == data
        assert stderr is None
        assert process.returncode == 0

    loop.run_until_complete(main())


def test_output_is_read_line_by_line_as_it_comes(loop):
    async def main():
        process = await asyncio.create_subprocess_exec(
            "/bin/sh", "-c", "while read line; do echo got $line; done", stdin=PIPE, stdout=PIPE
        )
        for number in range(20):
            process.stdin.write(b"%d\n" % number)
            assert await process.stdout.readline() == b"got %d\n" % number
        process.stdin.close()
        await process.stdin.wait_closed()
        assert await process.stdout.read() == b""
        assert await process.wait() == 0

    loop.run_until_complete(main())


def test_many_children_at_once(loop, watched_by):
    async def one(number):
        return await output_of("/bin/sh", "-c", f"echo {number}; exit {number}")

    async def main():
        results = await asyncio.gather(*(one(number) for number in range(24)))
        assert results == [(number, b"%d\n" % number) for number in range(24)]

    loop.run_until_complete(main())


def test_with_eager_tasks(loop, watched_by):
    support.skip_unless(hasattr(asyncio, "eager_task_factory"), "eager tasks")
    loop.set_task_factory(asyncio.eager_task_factory)

    async def main():
        process = await asyncio.create_subprocess_exec("cat", stdin=PIPE, stdout=PIPE)
        assert await process.communicate(b"eager") == (b"eager", None)
        process = await asyncio.create_subprocess_exec("true")
        waits = [loop.create_task(process.wait()) for _ in range(3)]
        assert await asyncio.gather(*waits) == [0] * 3

    loop.run_until_complete(main())


# What subprocess.Popen takes


@pytest.mark.parametrize(
    ("options", "script", "expected"),
    [
        ({"cwd": "/usr"}, "pwd", b"/usr\n"),
        ({"env": {"GREETING": "hello"}}, 'echo "$GREETING"', b"hello\n"),
        ({"umask": 0o027}, "umask", b"0027\n"),
        ({"executable": "/bin/echo"}, "over sh", b"-c over sh\n"),
        ({"preexec_fn": lambda: os.environ.clear() or os.chdir("/usr")}, "pwd", b"/usr\n"),
        ({"start_new_session": True}, "set -- $(cat /proc/$$/stat); [ $6 = $$ ] && echo leader", b"leader\n"),
        ({"process_group": 0}, "set -- $(cat /proc/$$/stat); [ $5 = $$ ] && echo leader", b"leader\n"),
        ({"restore_signals": False}, "echo restored", b"restored\n"),
        ({"pipesize": 4096}, "echo small", b"small\n"),
        pytest.param({"user": 65534}, "id -u", b"65534\n", marks=needs_root),
        pytest.param({"user": "nobody"}, "id -un", b"nobody\n", marks=needs_root),
        pytest.param({"group": 65534}, "id -g", b"65534\n", marks=needs_root),
        pytest.param({"extra_groups": [1, 2]}, "id -G", b"0 1 2\n", marks=needs_root),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_popen_options_reach_the_child(loop, options, script, expected):
    async def main():
        assert await output_of("/bin/sh", "-c", script, **options) == (0, expected)

    with warnings.catch_warnings():
        # Newer Pythons warn of preexec_fn, and of forks while threads run.
        warnings.simplefilter("ignore", DeprecationWarning)
        loop.run_until_complete(main())


def test_descriptors_are_passed_on_request_only(loop):
    async def main():
        inside, outside = os.pipe()
        try:
            script = f"echo passed >/dev/fd/{outside}"
            assert await output_of("/bin/sh", "-c", script, pass_fds=(outside,)) == (0, b"")
            assert os.read(inside, 100) == b"passed\n"
            code, _ = await output_of("/bin/sh", "-c", script, stderr=DEVNULL)
            assert code != 0
        finally:
            os.close(inside)
            os.close(outside)

    loop.run_until_complete(main())


def test_streams_may_be_files_numbers_devnull_and_each_other(loop, tmp_path):
    (tmp_path / "in").write_bytes(b"from a file\n")

    async def main():
        with open(tmp_path / "in", "rb") as stdin, open(tmp_path / "out", "wb") as stdout:
            process = await asyncio.create_subprocess_exec("cat", stdin=stdin, stdout=stdout.fileno())
            assert process.stdin is process.stdout is process.stderr is None
            assert await process.wait() == 0
        assert (tmp_path / "out").read_bytes() == b"from a file\n"
        process = await asyncio.create_subprocess_shell(
            "cat; echo out; echo err >&2", stdin=DEVNULL, stdout=PIPE, stderr=STDOUT
        )
        assert await process.communicate() == (b"out\nerr\n", None)
        process = await asyncio.create_subprocess_shell("echo out; echo err >&2", stdout=DEVNULL, stderr=PIPE)
        assert await process.communicate() == (None, b"err\n")

    loop.run_until_complete(main())


def test_a_socket_can_be_a_stream(loop):
    async def main():
        ours, theirs = support.tcp_pair()
        with ours:
            with theirs:
                process = await asyncio.create_subprocess_exec("echo", "over tcp", stdout=theirs)
            assert await support.receive_all(loop, ours) == b"over tcp\n"
            assert await process.wait() == 0

    loop.run_until_complete(main())


# Events


def test_events_come_in_asyncios_order(loop_factory):
    # The child ends each stream and itself when told to, so that nothing is left to chance.
    script = "read a; echo $a; exec >&-; read b; echo $b >&2; exec 2>&-; read c; exit 5"

    def body(loop):
        async def main():
            protocol = Events(loop)
            transport, same = await loop.subprocess_exec(lambda: protocol, "/bin/sh", "-c", script)
            assert same is protocol
            stdin = transport.get_pipe_transport(0)
            stdin.write(b"one\n")
            await until(lambda: any(event[:2] == ("pipe_connection_lost", 1) for event in protocol.events))
            stdin.write(b"two\n")
            await until(lambda: any(event[:2] == ("pipe_connection_lost", 2) for event in protocol.events))
            stdin.write(b"three\n")
            await protocol.lost
            transport.close()
            # The end of its input's reader and its own reach us in either order.
            *others, first, second, last = protocol.events
            return others, {first[:2], second[:2]}, last

        return loop.run_until_complete(main())

    others, _, last = same_as_asyncio(body, loop_factory)
    assert others == [
        ("connection_made",),
        ("pipe_data_received", 1, b"one\n"),
        ("pipe_connection_lost", 1, None),
        ("pipe_data_received", 2, b"two\n"),
        ("pipe_connection_lost", 2, None),
    ]
    assert last == ("connection_lost", None)


def test_events_without_pipes(loop_factory):
    def body(loop):
        async def main():
            protocol = Events(loop)
            transport, _ = await loop.subprocess_exec(lambda: protocol, "true", stdin=None, stdout=None, stderr=None)
            assert transport.get_pipe_transport(0) is transport.get_pipe_transport(1) is None
            await protocol.lost
            transport.close()
            return protocol.events

        return loop.run_until_complete(main())

    assert same_as_asyncio(body, loop_factory) == [
        ("connection_made",),
        ("process_exited", 0),
        ("connection_lost", None),
    ]


def test_the_transport_shows_its_state(loop_factory):
    def body(loop):
        async def main():
            protocol = Events(loop)
            transport, _ = await loop.subprocess_exec(lambda: protocol, "cat", stderr=DEVNULL)
            pid = str(transport.get_pid())

            def shown():
                text = repr(transport).replace(pid, "PID")
                return "".join(character for character in text if not character.isdigit())

            process = transport.get_extra_info("subprocess")
            states = [
                shown(),
                transport.is_closing(),
                transport.get_returncode(),
                isinstance(transport, asyncio.SubprocessTransport),
                type(process),
                process.pid == transport.get_pid(),
                transport.get_protocol() is protocol,
            ]
            transport.get_pipe_transport(0).close()
            await protocol.lost
            states += [shown(), transport.get_returncode(), process.returncode]
            transport.close()
            return [*states, shown(), transport.is_closing()]

        return loop.run_until_complete(main())

    same_as_asyncio(body, loop_factory)


# Waiting and signalling


def test_several_tasks_wait_for_one_child(loop, watched_by):
    async def main():
        process = await asyncio.create_subprocess_exec("cat", stdin=PIPE)
        waits = [asyncio.create_task(process.wait()) for _ in range(5)]
        await asyncio.sleep(0)
        waits[2].cancel()
        process.stdin.close()
        results = await asyncio.gather(*waits, return_exceptions=True)
        assert [result for result in results if result == 0] == [0] * 4
        assert isinstance(results[2], asyncio.CancelledError)
        assert await process.wait() == 0

    loop.run_until_complete(main())


@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        (lambda process: process.kill(), -signal.SIGKILL),
        (lambda process: process.terminate(), -signal.SIGTERM),
        (lambda process: process.send_signal(signal.SIGUSR1), -signal.SIGUSR1),
    ],
    ids=["kill", "terminate", "send_signal"],
)
def test_a_signal_ends_the_child(loop, watched_by, stop, expected):
    async def main():
        process = await asyncio.create_subprocess_exec("sleep", "3600")
        stop(process)
        assert await process.wait() == expected

    loop.run_until_complete(main())


def test_signals_after_the_end(loop_factory):
    def body(loop):
        async def main():
            process = await asyncio.create_subprocess_exec("true")
            await process.wait()
            await support.turns(3)
            results = []
            for act in (process.kill, process.terminate, lambda: process.send_signal(signal.SIGTERM)):
                try:
                    results.append(act())
                except ProcessLookupError as error:
                    results.append((type(error), str(error)))
            return results

        return loop.run_until_complete(main())

    same_as_asyncio(body, loop_factory)


def test_wait_can_time_out_and_be_asked_again(loop):
    async def main():
        process = await asyncio.create_subprocess_exec("cat", stdin=PIPE)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(process.wait(), 0.01)
        assert process.returncode is None
        process.stdin.close()
        assert await process.wait() == 0

    loop.run_until_complete(main())


# Pipes of the child


def test_writing_to_a_child_that_has_gone(loop):
    async def main():
        process = await asyncio.create_subprocess_exec("true", stdin=PIPE)
        await process.wait()
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            for _ in range(1000):
                process.stdin.write(b"x" * 65536)
                await process.stdin.drain()
        await process.wait()

    loop.run_until_complete(main())


def test_communicate_ignores_a_child_that_does_not_listen(loop):
    async def main():
        process = await asyncio.create_subprocess_exec("true", stdin=PIPE, stdout=PIPE)
        assert await process.communicate(b"x" * (1 << 20)) == (b"", None)
        assert process.returncode == 0

    loop.run_until_complete(main())


def test_flow_control_holds_a_loud_child_back(loop):
    size = 3 << 20

    async def main():
        process = await asyncio.create_subprocess_shell(f"head -c {size} /dev/zero", stdout=PIPE, limit=4096)
        await until(lambda: not process.stdout._transport.is_reading(), "the reader's being paused")
        held = len(process.stdout._buffer)
        await support.turns(20)
        assert len(process.stdout._buffer) == held <= 2 * 4096 + (256 << 10)
        total = 0
        while data := await process.stdout.read(10000):
            total += len(data)
        assert total == size
        assert await process.wait() == 0

    loop.run_until_complete(main())


def test_limit_is_the_streams(loop_factory):
    def body(loop):
        async def main():
            process = await asyncio.create_subprocess_shell("echo 0123456789abcdef; echo short", stdout=PIPE, limit=8)
            with pytest.raises(ValueError) as refusal:
                await process.stdout.readline()
            rest = await process.stdout.read()
            await process.wait()
            return str(refusal.value), rest[-6:]

        return loop.run_until_complete(main())

    same_as_asyncio(body, loop_factory)


def test_write_flow_control_reaches_the_protocol(loop):
    class Flow(Events):
        def pause_writing(self):
            self.events.append(("pause_writing",))

        def resume_writing(self):
            self.events.append(("resume_writing",))

    async def main():
        protocol = Flow(loop)
        inside, outside = os.pipe()
        with os.fdopen(inside, "rb"), os.fdopen(outside, "wb") as gate:
            transport, _ = await loop.subprocess_exec(
                lambda: protocol,
                "/bin/sh",
                "-c",
                f"read go </dev/fd/{inside}; cat >/dev/null",
                pass_fds=(inside,),
                stdout=None,
                stderr=None,
            )
            stdin = transport.get_pipe_transport(0)
            stdin.write(b"x" * (1 << 20))
            assert ("pause_writing",) in protocol.events
            gate.write(b"go\n")
            gate.flush()
            await until(lambda: ("resume_writing",) in protocol.events)
            stdin.close()
            await protocol.lost
        transport.close()
        assert transport.get_returncode() == 0

    loop.run_until_complete(main())


# Refusals and failures


@pytest.mark.exact
@pytest.mark.parametrize(
    "call",
    [
        lambda loop: loop.subprocess_exec(asyncio.SubprocessProtocol, "true", shell=True),
        lambda loop: loop.subprocess_exec(asyncio.SubprocessProtocol, "true", universal_newlines=True),
        lambda loop: loop.subprocess_exec(asyncio.SubprocessProtocol, "true", bufsize=4096),
        lambda loop: loop.subprocess_exec(asyncio.SubprocessProtocol, "true", text=True),
        lambda loop: loop.subprocess_exec(asyncio.SubprocessProtocol, "true", encoding="utf-8"),
        lambda loop: loop.subprocess_exec(asyncio.SubprocessProtocol, "true", errors="strict"),
        lambda loop: loop.subprocess_exec(asyncio.SubprocessProtocol, "true", no_such_option=1),
        lambda loop: loop.subprocess_exec(asyncio.SubprocessProtocol, 5),
        lambda loop: loop.subprocess_exec(asyncio.SubprocessProtocol, "true", "a\0b"),
        lambda loop: loop.subprocess_exec(asyncio.SubprocessProtocol, "true", cwd="/no/such/folder"),
        lambda loop: loop.subprocess_exec(asyncio.SubprocessProtocol, "true", env={"a=b": "c"}),
        lambda loop: loop.subprocess_exec(asyncio.SubprocessProtocol, "true", stdin="a string"),
        lambda loop: loop.subprocess_exec(asyncio.SubprocessProtocol, "true", preexec_fn=lambda: 1 / 0),
        lambda loop: loop.subprocess_exec(asyncio.SubprocessProtocol, "true", preexec_fn=5),
        lambda loop: loop.subprocess_exec(asyncio.SubprocessProtocol, "true", pass_fds=(10**9,)),
        lambda loop: loop.subprocess_exec(asyncio.SubprocessProtocol, "true", umask="027"),
        lambda loop: loop.subprocess_exec(asyncio.SubprocessProtocol, "true", user="no such user"),
        lambda loop: loop.subprocess_exec(asyncio.SubprocessProtocol, "true", group=1.5),
        lambda loop: loop.subprocess_exec(asyncio.SubprocessProtocol, "true", process_group="x"),
        lambda loop: loop.subprocess_exec(asyncio.SubprocessProtocol, "/no/such/program"),
        lambda loop: loop.subprocess_exec(asyncio.SubprocessProtocol, "/etc/passwd"),
        lambda loop: loop.subprocess_shell(asyncio.SubprocessProtocol, ["true"]),
        lambda loop: loop.subprocess_shell(asyncio.SubprocessProtocol, "true", shell=False),
        lambda loop: loop.subprocess_exec(lambda: 1 / 0, "true"),
    ],
)
def test_bad_input_gets_asyncios_exception(loop_factory, call):
    def body(loop):
        async def main():
            descriptors = support.open_descriptors()
            with pytest.raises(Exception) as refusal:
                await call(loop)
            kind, text = refusal.type, str(refusal.value)
            del refusal
            gc.collect()
            assert not support.open_descriptors() - descriptors
            # The loop is none the worse.
            assert await output_of("echo", "still here") == (0, b"still here\n")
            return kind, text

        return loop.run_until_complete(main())

    same_as_asyncio(body, loop_factory)


def test_a_protocol_that_raises_does_not_lose_the_child(loop):
    contexts = support.capture_contexts(loop)

    class Broken(Events):
        def process_exited(self):
            super().process_exited()
            raise ZeroDivisionError("exited")

    async def main():
        protocol = Broken(loop)
        transport, _ = await loop.subprocess_exec(lambda: protocol, "true", stdin=None, stdout=None, stderr=None)
        await protocol.lost
        transport.close()

    loop.run_until_complete(main())
    assert [str(context["exception"]) for context in contexts] == ["exited"]


@pytest.mark.exact
def test_cancelled_while_starting(loop, watched_by):
    before = own_children()

    async def main():
        for delay in range(6):
            task = asyncio.create_task(asyncio.create_subprocess_exec("cat", stdin=PIPE, stdout=PIPE))
            await support.turns(delay)
            task.cancel()
            try:
                process = await task
            except asyncio.CancelledError:
                pass
            else:
                process.stdin.close()
                await process.communicate()
        await until(lambda: own_children() == before, "the children's end")

    loop.run_until_complete(main())


@pytest.mark.exact
@pytest.mark.ringloop_only  # asyncio starts it, and then finds that it can't watch it.
def test_a_closed_loop_starts_nothing(loop_factory):
    before = own_children()
    loop = loop_factory()
    loop.close()
    with pytest.raises(RuntimeError, match="Event loop is closed"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        coroutine = loop.subprocess_exec(asyncio.SubprocessProtocol, "true")
        try:
            coroutine.send(None)
        finally:
            coroutine.close()
    gc.collect()
    assert not own_children() - before


# Reaping: each child by itself, once


def test_only_the_loops_own_children_are_reaped(loop, watched_by):
    async def main():
        strangers = [subprocess.Popen(["/bin/sh", "-c", f"exit {number}"]) for number in range(10, 15)]
        for number in range(5):
            assert await output_of("/bin/sh", "-c", f"exit {number}") == (number, b"")
        assert [stranger.wait(PATIENCE_S) for stranger in strangers] == list(range(10, 15))

    loop.run_until_complete(main())


def test_a_child_that_someone_else_reaped_gives_255(arm, loop_factory, caplog, watched_by):
    def body(loop):
        caplog.clear()

        async def main():
            with gate() as (stdin, open_gate):
                process = await asyncio.create_subprocess_exec("cat", stdin=stdin)
                open_gate()
                # The loop is held until the thief is through.
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(process.pid, 0)
            code = await process.wait()
            messages = [record.getMessage().replace(str(process.pid), "PID") for record in caplog.records]
            return code, messages

        return loop.run_until_complete(main())

    caplog.set_level(logging.WARNING, logger="asyncio")
    loop = loop_factory()
    try:
        code, messages = body(loop)
    finally:
        finish(loop)
    if arm == "asyncio":
        return  # Its waiting thread may have been first.
    assert code == 255
    text = {
        "pidfd": "child process pid PID exit status already read:  will report returncode 255",
        "thread": "Unknown child process pid PID, will report returncode 255",
    }
    assert messages == [text[watched_by]]


@pytest.mark.ringloop_only  # asyncio reports 255 there.
def test_a_child_that_its_popen_reaped_keeps_its_code(loop, watched_by, caplog):
    async def main():
        with gate() as (stdin, open_gate):
            process = await asyncio.create_subprocess_exec("/bin/sh", "-c", "read line; exit 9", stdin=stdin)
            open_gate()
            wait_unreaped(process.pid)
            assert process._transport.get_extra_info("subprocess").poll() == 9
        assert await process.wait() == 9

    loop.run_until_complete(main())
    assert not caplog.records


@pytest.mark.ringloop_only  # asyncio reports 255 there, and logs a warning.
def test_closing_a_transport_whose_child_has_ended_unnoticed(loop, watched_by, caplog):
    async def main():
        protocol = Events(loop)
        with gate() as (stdin, open_gate):
            transport, _ = await loop.subprocess_exec(
                lambda: protocol, "/bin/sh", "-c", "read line; exit 4", stdin=stdin, stdout=None, stderr=None
            )
            open_gate()
            wait_unreaped(transport.get_pid())
            transport.close()
        await protocol.lost
        assert transport.get_returncode() == 4

    loop.run_until_complete(main())
    assert not caplog.records


@pytest.mark.exact
@pytest.mark.ringloop_only  # gh-127049: before Python 3.14 asyncio's thread reaps, and a signal may hit a stranger.
def test_a_child_is_reaped_when_its_end_is_told(loop, watched_by):
    async def main():
        threads = set(threading.enumerate())
        with gate() as (stdin, open_gate):
            process = await asyncio.create_subprocess_exec("cat", stdin=stdin)
            open_gate()
            for thread in set(threading.enumerate()) - threads:
                thread.join(PATIENCE_S)
            wait_unreaped(process.pid)
        assert process.returncode is None
        process.kill()  # It's a zombie still, so this hits nobody else.
        assert await process.wait() == 0
        with pytest.raises(ChildProcessError):
            wait_unreaped(process.pid)

    loop.run_until_complete(main())


def test_a_stopped_child_has_not_ended(loop, watched_by):
    async def main():
        process = await asyncio.create_subprocess_exec("cat", stdin=PIPE, stdout=PIPE)
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        assert await output_of("echo", "meanwhile") == (0, b"meanwhile\n")
        assert process.returncode is None
        process.send_signal(signal.SIGCONT)
        assert await process.communicate(b"on again") == (b"on again", None)
        assert process.returncode == 0

    loop.run_until_complete(main())


def test_children_with_sigchld_ignored(arm):
    # The kernel reaps them by itself, so that nobody can learn how they ended.
    source = """
        async def main():
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
            process = await asyncio.create_subprocess_exec("cat", stdin=asyncio.subprocess.PIPE)
            process.stdin.close()
            print(await process.wait())
        loop = new_loop()
        loop.run_until_complete(main())
        loop.close()
    """
    result = run_child(source, arm)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "255\n"
    assert "will report returncode 255" in result.stderr


def test_sigchld_stays_the_users(loop, watched_by):
    async def main():
        noticed = asyncio.Event()
        loop.add_signal_handler(signal.SIGCHLD, noticed.set)
        try:
            assert await output_of("echo", "x") == (0, b"x\n")
            await noticed.wait()
        finally:
            loop.remove_signal_handler(signal.SIGCHLD)

    loop.run_until_complete(main())


# Where pidfds are refused


@pytest.mark.exact
@pytest.mark.ringloop_only
@pytest.mark.parametrize("error", [errno.EPERM, errno.ENOSYS, errno.EMFILE, None])
def test_without_pidfds_a_thread_waits(loop, monkeypatch, error):
    if error is None:  # A Python built without them.
        monkeypatch.delattr(os, "pidfd_open")
    else:
        refuse_pidfds(monkeypatch, error)

    async def main():
        threads = set(threading.enumerate())
        process = await asyncio.create_subprocess_exec("cat", stdin=PIPE)
        [waiting] = set(threading.enumerate()) - threads
        assert waiting.daemon
        assert waiting.name.startswith("asyncio-waitpid-")
        process.stdin.close()
        assert await process.wait() == 0
        waiting.join(PATIENCE_S)
        assert not waiting.is_alive()

    loop.run_until_complete(main())


@pytest.mark.exact
@pytest.mark.ringloop_only
def test_a_pidfd_that_cannot_be_watched_is_closed(loop, monkeypatch):
    from ringloop._children import Child

    def refuse(fd, callback):
        assert fd in {fd for fd, _ in open_descriptors() - descriptors}
        raise RuntimeError("not today")

    with subprocess.Popen(["cat"], stdin=PIPE) as process:
        descriptors = open_descriptors()
        with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="not today"):
            patch.setattr(type(loop), "_add_reader", staticmethod(refuse), raising=False)
            Child(loop, types.SimpleNamespace(_proc=process, _outlives=False))
        assert not open_descriptors() - descriptors


@pytest.mark.exact
@pytest.mark.ringloop_only
def test_with_pidfds_no_thread_waits(loop):
    async def main():
        threads = set(threading.enumerate())
        process = await asyncio.create_subprocess_exec("cat", stdin=PIPE)
        assert not set(threading.enumerate()) - threads
        process.stdin.close()
        assert await process.wait() == 0

    loop.run_until_complete(main())


@pytest.fixture
def watcher_classes():
    """Yield asyncio's module with the child watchers, where the running Python has them; the policy's watcher is restored."""
    from asyncio import unix_events

    support.skip_unless(hasattr(unix_events, "SafeChildWatcher"), "child watchers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield unix_events
        asyncio.set_child_watcher(None)


def test_a_watcher_that_the_program_has_set_is_asked(loop, watcher_classes):
    class Watcher(watcher_classes.SafeChildWatcher):
        def add_child_handler(self, pid, callback, *args):
            watched.append(pid)
            super().add_child_handler(pid, callback, *args)

    async def main():
        process = await asyncio.create_subprocess_exec("cat", stdin=PIPE)
        assert watched == [process.pid]
        process.stdin.close()
        assert await process.wait() == 0

    watched = []
    watcher = Watcher()
    watcher.attach_loop(loop)
    asyncio.set_child_watcher(watcher)
    loop.run_until_complete(main())
    watcher.close()


@pytest.mark.exact
def test_a_watcher_that_is_not_active_is_asked_early(loop, watcher_classes):
    before = own_children()
    asyncio.set_child_watcher(watcher_classes.SafeChildWatcher())
    with pytest.raises(RuntimeError, match="is not activated, subprocess support is not installed"):
        loop.run_until_complete(asyncio.create_subprocess_exec("true"))
    assert not own_children() - before


# Loops in threads, loops that close


@pytest.mark.exact
def test_children_of_loops_in_several_threads(loop_factory, watched_by):
    def one(number):
        loop = loop_factory()
        try:
            return loop.run_until_complete(
                asyncio.wait_for(_several(number), PATIENCE_S),
            )
        finally:
            finish(loop)

    async def _several(number):
        return [await output_of("/bin/sh", "-c", f"exit {number + index}") for index in range(4)]

    threads = [BackgroundThread(one, number * 10) for number in range(4)]
    for number, thread in enumerate(threads):
        assert thread.result() == [(number * 10 + index, b"") for index in range(4)]


@pytest.mark.exact
@pytest.mark.ringloop_only  # asyncio leaves a zombie, and from 3.12 on a descriptor.
def test_no_zombie_of_a_loop_that_closed_first(loop_factory, watched_by):
    loop = loop_factory()
    before = own_children()

    async def main():
        with gate() as (stdin, open_gate):
            running = await asyncio.create_subprocess_exec("sleep", "3600")
            ended = await asyncio.create_subprocess_exec("cat", stdin=stdin)
            open_gate()
            wait_unreaped(ended.pid)
        return ended, running

    processes = loop.run_until_complete(main())
    loop.close()
    os.kill(processes[1].pid, signal.SIGTERM)
    for thread in threading.enumerate():
        if "waitpid" in thread.name:
            thread.join(PATIENCE_S)
    assert not own_children() - before
    popens = [process._transport.get_extra_info("subprocess") for process in processes]
    assert [popen.returncode for popen in popens] == [0, -signal.SIGTERM]
    for process in processes:
        process._transport.close()


@pytest.mark.ringloop_only
def test_a_forked_child_leaves_its_parents_children_alone(arm):
    source = """
        async def main():
            process = await asyncio.create_subprocess_exec("cat", stdin=asyncio.subprocess.PIPE)
            pid = os.fork()
            if not pid:
                os._exit(0)
            os.waitpid(pid, 0)
            process.stdin.close()
            print(await process.wait())
        import warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        loop = new_loop()
        loop.run_until_complete(main())
        loop.close()

        loop = new_loop()
        process = loop.run_until_complete(asyncio.create_subprocess_exec("cat", stdin=asyncio.subprocess.PIPE))
        pid = os.fork()
        if not pid:
            loop.close()
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        process.stdin.close()
        print(loop.run_until_complete(process.wait()))
        loop.close()
    """
    result = run_child(source, arm)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "0\n0\n0\n"


@pytest.mark.skipif(
    sys.version_info < (3, 12), reason="before Python 3.12 asyncio's waiting thread keeps the transport"
)
@pytest.mark.ringloop_only  # asyncio leaves a zombie.
def test_a_transport_that_nobody_closed_warns_and_kills(loop_factory):
    loop = loop_factory()

    async def main():
        transport, _ = await loop.subprocess_exec(
            asyncio.SubprocessProtocol, "sleep", "3600", stdin=None, stdout=None, stderr=None
        )
        return transport.get_pid()

    with resource_warnings() as messages:
        pid = loop.run_until_complete(main())
        loop.close()
        gc.collect()
    assert any(f"unclosed transport <_UnixSubprocessTransport pid={pid} running" in text for text in messages)


OUTLIVING = """
    # What a child says whose loop has closed, and to whose transport nobody refers: something, unless it was killed.
    import contextlib, gc, threading
    if sys.argv[1] == "thread":
        def refused(pid, flags=0):
            raise PermissionError(1, "refused")
        os.pidfd_open = refused
    child_reads, we_write = os.pipe()
    we_read, child_writes = os.pipe()
    loop = new_loop()
    loop.run_until_complete(loop.subprocess_exec(
        asyncio.SubprocessProtocol, "sh", "-c", "read line; echo $line", stdin=child_reads, stdout=child_writes, stderr=None
    ))
    os.close(child_reads)
    os.close(child_writes)
    loop.close()
    gc.collect()
    with contextlib.suppress(BrokenPipeError):
        os.write(we_write, b"alive")
    os.close(we_write)
    with open(we_read) as here:
        print(here.read().strip() or "killed")
    for thread in threading.enumerate():
        if thread is not threading.current_thread():
            thread.join()
"""


@pytest.mark.parametrize("watched_by", ["pidfd", "thread"])
def test_a_child_that_nobody_refers_to_ends_with_its_loop_as_under_asyncio(arm, watched_by):
    """Where asyncio waits in a thread, that refers to the transport, and nothing kills the child."""
    flags = ("-W", "ignore")
    expected = run_child(OUTLIVING, "asyncio", watched_by, python_flags=flags)
    assert expected.stdout in ("alive\n", "killed\n")
    child = run_child(OUTLIVING, arm, watched_by, python_flags=flags)
    assert (child.returncode, child.stdout) == (0, expected.stdout)
    if arm != "asyncio":
        assert "Traceback" not in child.stderr


def refuse_to_wait(monkeypatch, *calls):
    """Make these calls fail for all children, as a sandbox does."""

    def refused(*_arguments):
        raise PermissionError(errno.EPERM, "refused")

    for call in calls:
        monkeypatch.setattr(os, call, refused)


@pytest.mark.ringloop_only  # asyncio calls waitpid.
@pytest.mark.parametrize("close", [False, True], ids=["open", "closed"])
def test_waitpid_is_called_where_waitid_is_refused(loop_factory, watched_by, monkeypatch, close):
    loop = loop_factory()
    contexts = support.capture_contexts(loop)
    refuse_to_wait(monkeypatch, "waitid")

    async def main():
        process = await asyncio.create_subprocess_exec("cat", stdin=stdin)
        if not close:
            open_gate()
            await process.wait()
        return process

    with gate() as (stdin, open_gate):
        process = loop.run_until_complete(main())
        popen = process._transport.get_extra_info("subprocess")
        if close:
            loop.close()
            open_gate()
            for thread in threading.enumerate():
                if "waitpid" in thread.name:
                    thread.join(PATIENCE_S)
            process._transport.close()
    assert popen.returncode == 0
    assert contexts == []
    finish(loop)


@pytest.mark.ringloop_only  # Under asyncio, `wait` never returns.
def test_a_child_that_nobody_can_wait_for_is_reported(loop, watched_by, monkeypatch):
    contexts = support.capture_contexts(loop)

    async def main():
        process = await asyncio.create_subprocess_exec("true")
        return process.pid, await asyncio.wait_for(process.wait(), PATIENCE_S)

    with monkeypatch.context() as patch:
        refuse_to_wait(patch, "waitid", "waitpid")
        pid, returncode = loop.run_until_complete(main())
    os.waitpid(pid, 0)
    assert returncode == 255
    told = [(context["message"], type(context["exception"])) for context in contexts]
    assert told == [(f"Cannot wait for child process pid {pid}, will report returncode 255", PermissionError)]


UNCLOSED = """
    import builtins, gc, threading
    ending, watched_by, child_reads, child_writes = sys.argv[1:]
    if watched_by == "thread":
        def refused(pid, flags=0):
            raise PermissionError(1, "refused")
        os.pidfd_open = refused

    async def main():
        return await asyncio.create_subprocess_exec(
            "sh", "-c", "read line; echo $line", stdin=int(child_reads), stdout=int(child_writes), stderr=asyncio.subprocess.DEVNULL
        )

    def abandon():
        # The loop is of another generation of the collector's than what comes after it.
        loop = new_loop()
        gc.collect(0)
        process = loop.run_until_complete(main())
        loop.itself, process.loop = loop, loop
        return [loop, process]

    def leave(coroutine):
        coroutine.close()
        sys.exit()

    gc.disable()
    if ending == "collected":
        abandon()
        gc.collect()
    elif ending == "garbage":
        abandon()
    elif ending == "global":
        kept = abandon()
    elif ending == "last":
        builtins.kept = abandon()
    elif ending == "thread":
        thread = threading.Thread(target=lambda: setattr(builtins, "kept", abandon()))
        thread.start()
        thread.join()
    elif ending == "sys.exit":
        loop = new_loop()
        async def exit():
            await main()
            sys.exit()
        loop.run_until_complete(exit())
"""


@pytest.mark.many_cases(short=3)
@pytest.mark.parametrize("watched_by", ["pidfd", "thread"])
@pytest.mark.parametrize("ending", ["collected", "garbage", "global", "last", "thread", "sys.exit"])
def test_a_program_ends_although_a_child_lives_and_the_loop_is_open(arm, ending, watched_by):
    """And the child lives on if it does under asyncio, which up to Python 3.11 refers to it in a thread."""

    def run(arm):
        child_reads, we_write = os.pipe()
        we_read, child_writes = os.pipe()
        ends = (child_reads, child_writes)
        arguments = (ending, watched_by, *map(str, ends))
        program = run_child(UNCLOSED, arm, *arguments, python_flags=("-W", "ignore"), pass_fds=ends)
        for end in ends:
            os.close(end)
        with contextlib.suppress(BrokenPipeError):
            os.write(we_write, b"alive")
        os.close(we_write)
        with open(we_read) as output:
            fate = output.read().strip() or "killed"
        return program.returncode, fate, program.stderr

    expected = run("asyncio")
    assert expected[0] == 0
    assert expected[1] in ("alive", "killed")
    returncode, fate, stderr = run(arm)
    assert (returncode, fate) == expected[:2]
    if arm != "asyncio":
        assert stderr == ""


def test_debug_mode_says_what_it_starts(loop_factory, caplog):
    def body(loop):
        caplog.clear()
        loop.set_debug(True)
        loop.slow_callback_duration = PATIENCE_S

        async def main():
            process = await asyncio.create_subprocess_exec("echo", "quiet", stdout=PIPE)
            await process.communicate()
            await asyncio.sleep(0)
            digits = str.maketrans("", "", "0123456789")
            messages = [record.getMessage().translate(digits) for record in caplog.records]
            # What a thread says of the child, and what each says of its selector, is its own.
            return [text for text in messages if not text.startswith(("process ", "Using selector"))]

        return loop.run_until_complete(main())

    caplog.set_level(logging.DEBUG, logger="asyncio")
    same_as_asyncio(lambda loop: sorted(body(loop)), loop_factory)


# Nothing is left


@pytest.mark.many_cases(short=1)
@pytest.mark.exact
def test_nothing_is_left_of_many_children(loop, watched_by):
    cycles = 60 if watched_by == "thread" else 200

    async def one(number):
        if number % 4 == 0:
            assert await output_of("echo", "x") == (0, b"x\n")
        elif number % 4 == 1:
            process = await asyncio.create_subprocess_exec("cat", stdin=PIPE, stdout=PIPE, stderr=PIPE)
            assert await process.communicate(b"data") == (b"data", b"")
        elif number % 4 == 2:
            process = await asyncio.create_subprocess_exec("sleep", "3600", stdin=PIPE)
            process.kill()
            assert await process.wait() == -signal.SIGKILL
        else:
            with pytest.raises(FileNotFoundError):
                await asyncio.create_subprocess_exec("/no/such/program", stdin=PIPE, stdout=PIPE)

    async def main():
        for number in range(8):
            await one(number)
        await support.turns(3)
        gc.collect()
        descriptors, children = support.open_descriptors(), own_children()
        for number in range(cycles):
            await one(number)
        await support.turns(3)
        gc.collect()
        assert not support.open_descriptors() - descriptors
        assert not own_children() - children

    loop.run_until_complete(main())
