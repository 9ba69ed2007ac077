"""`ringloop serve --workers`: a parent and its worker processes."""

import contextlib
import errno
import os
import pathlib
import re
import signal
import socket
import stat
import sys
import time

import pytest

import support
from serve_process import begin, serving

# The server is a process of its own, and above the loop: few tests need both backends.
pytestmark = [pytest.mark.ringloop_only, pytest.mark.any_backend]
both_backends = pytest.mark.any_backend(matters=True)

# A busy machine may let any process wait for long.
PATIENT = ("--no-access-log", "--timeout-worker-healthcheck", str(support.PATIENCE_S))


def children(pid):
    """Return the processes that are children of this one, without multiprocessing's tracker."""
    found = set()
    for entry in pathlib.Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            is_child = entry.name.isdigit() and f"\nPPid:\t{pid}\n" in (entry / "status").read_text()
            if is_child and b"resource_tracker" not in (entry / "cmdline").read_bytes():
                found.add(int(entry.name))
    return found


def gone(pid):
    """Return whether a process has ended; zombies have."""
    try:
        return "\nState:\tZ" in pathlib.Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True


def wait_until(condition, program=None):
    deadline = time.monotonic() + support.PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, program and program.output
        time.sleep(0.02)


def started(program, count):
    """Wait until `count` workers have started since the beginning; return their numbers."""
    program.wait_for("Application startup complete", count)
    return [int(pid) for pid in re.findall(r"Started server process \[(\d+)\]", program.output)]


def serving_pids(program, workers):
    """Ask until `workers` different workers have answered; all answers must be good ones."""
    seen = set()

    def enough():
        status, _, body = program.get_again("/pid")
        assert status == 200
        seen.add(int(body))
        return len(seen) >= workers

    wait_until(enough, program)
    return seen


@contextlib.contextmanager
def held(program, pid):
    """Keep this worker in the middle of an answer for the length of the context."""
    while True:
        with contextlib.closing(program.client()) as client:
            client.request("GET", "/pid")
            if int(client.getresponse().read()) == pid:
                client.request("GET", "/stream")
                assert client.getresponse().read(5) == b"begun"
                yield
                return


@both_backends
@pytest.mark.parametrize("options", [(), ("--reuse-port",)])
def test_workers_serve_and_end(arm, options):
    with serving(arm, "applications:app", "--workers", "2", *PATIENT, *options) as program:
        pids = set(started(program, 2))
        assert serving_pids(program, 2) == pids == children(program.process.pid)
        parent = program.process.pid
        assert program.stop() == 0
        assert all(map(gone, pids))
        lines = program.output.splitlines()
        assert f"INFO:     Started parent process [{parent}]" in lines
        assert "INFO:     Received SIGTERM, exiting." in lines
        assert lines[-1] == f"INFO:     Stopping parent process [{parent}]"
        assert lines.count("shutdown") == 2
        assert "Traceback" not in program.output


def test_the_environment_says_how_many(arm):
    with serving(arm, "applications:app", *PATIENT, env={"WEB_CONCURRENCY": "2"}) as program:
        assert serving_pids(program, 2) == set(started(program, 2))


def test_an_interrupt_of_all_processes_ends_them(arm):
    """As Ctrl-C in a terminal does."""
    with serving(arm, "applications:app", "--workers", "2", *PATIENT, start_new_session=True) as program:
        pids = started(program, 2)
        os.killpg(program.process.pid, signal.SIGINT)
        assert program.wait() == 0
        assert all(map(gone, pids))
        assert "Traceback" not in program.output
        assert program.output.splitlines().count("shutdown") == 2


def test_an_interrupt_after_the_parents_signal_does_not_force_a_worker(arm):
    """Ctrl-C interrupts the workers, too, perhaps after their parent has told them to end."""
    options = ("--workers-lifetime", "9999", "--timeout-graceful-shutdown", "2", *PATIENT)
    with serving(arm, "applications:app", *options) as program:
        (pid,) = started(program, 1)
        with begin(program, "/stream") as sock:
            program.send(signal.SIGTERM)
            program.wait_for("Waiting for connections to close")
            os.kill(pid, signal.SIGINT)
            # It waits for the request as before.
            program.wait_for("heard http.disconnect")
            while sock.recv(65536):
                pass
        assert program.wait() == 0
        assert program.output.splitlines().count("shutdown") == 1


@both_backends
def test_a_worker_that_dies_is_replaced(arm):
    with serving(arm, "applications:app", "--workers", "2", *PATIENT) as program:
        first, second = serving_pids(program, 2)
        os.kill(first, signal.SIGKILL)
        program.wait_for(rf"Child process \[{first}\] died")
        third = started(program, 3)[2]
        assert serving_pids(program, 2) == {second, third}
        assert program.stop() == 0


@pytest.mark.long
def test_a_worker_that_dies_under_load_costs_no_other_request(arm):
    """Only the request that kills it fails."""
    with serving(arm, "applications:app", "--workers", "2", *PATIENT) as program:
        started(program, 2)
        for _ in range(3):
            with pytest.raises((ConnectionError, OSError)):
                program.get("/kill")
            for _ in range(20):
                assert program.get("/")[0] == 200
            assert len(serving_pids(program, 2)) == 2
        assert program.stop() == 0


class Load:
    """Clients that ask without end and never repeat a request, and what failed of that.

    A request may fail if a killed worker had its connection. That is the one that answered there before; a connection
    without an answer may have been the killed worker's if it was open while one died.
    """

    def __init__(self, program):
        self.program = program
        self.killed = set()
        # Odd while a worker dies.
        self.generation = 0
        self.answers = 0
        self.failed = []
        self.wrong = []
        self.is_over = False

    def run(self, keeps_alive):
        while not self.is_over:
            opened = self.generation
            owner = None
            try:
                address = self.program.address
                with socket.create_connection(address, support.PATIENCE_S) as sock, sock.makefile("rb") as stream:
                    while not self.is_over:
                        sock.sendall(b"GET /pid HTTP/1.1\r\nhost: localhost\r\n\r\n")
                        owner = self.answer(stream)
                        self.answers += 1
                        if not keeps_alive:
                            break
            except OSError as error:
                generation = self.generation
                self.failed.append(error)
                is_excused = owner in self.killed if owner else opened % 2 or generation != opened
                if not is_excused or isinstance(error, ConnectionRefusedError | TimeoutError):
                    self.wrong.append((error, owner, opened, generation))

    def answer(self, stream):
        line = stream.readline()
        if not line.endswith(b"\n"):
            raise ConnectionResetError("the connection ended")
        assert line == b"HTTP/1.1 200 OK\r\n"
        length = None
        while (line := stream.readline()).strip():
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        body = stream.read(length)
        if len(body) < length:
            raise ConnectionResetError("the connection ended")
        return int(body)

    def kill(self, pid):
        self.killed.add(pid)
        self.generation += 1
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: gone(pid), self.program)
        self.generation += 1

    def more(self, count):
        target = self.answers + count
        wait_until(lambda: self.answers >= target, self.program)


@pytest.mark.long
@pytest.mark.exact
@both_backends
@pytest.mark.parametrize("options", [(), ("--reuse-port",)])
def test_killed_workers_under_load_fail_only_what_was_theirs(arm, options):
    """With a listener for each worker, what waits in the killed one's queue is lost, too, and it was open meanwhile."""
    clients, kills = 8, 5
    patient = (*PATIENT, "--timeout-keep-alive", str(support.PATIENCE_S))
    with serving(arm, "applications:app", "--workers", "2", *patient, *options) as program:
        workers = serving_pids(program, 2)
        load = Load(program)
        threads = [support.BackgroundThread(lambda number=number: load.run(number % 2)) for number in range(clients)]
        try:
            for number in range(kills):
                load.more(100)
                load.kill(workers.pop())
                load.more(100)
                workers.add(started(program, 3 + number)[-1])
        finally:
            load.is_over = True
            for thread in threads:
                thread.result()
        assert load.wrong == []
        assert len(load.failed) <= kills * clients
        assert program.stop() == 0


@both_backends
def test_a_worker_that_is_killed_loses_no_connection_that_waits(arm):
    """Workers share a listener, so what one has not accepted is left to the other."""
    with serving(arm, "applications:app", "--workers", "2", *PATIENT) as program, contextlib.ExitStack() as stack:
        first, second = serving_pids(program, 2)
        for pid in (first, second):
            os.kill(pid, signal.SIGSTOP)
        socks = [stack.enter_context(program.connect()) for _ in range(20)]
        for sock in socks:
            sock.sendall(b"GET /pid HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: gone(first), program)
        os.kill(second, signal.SIGCONT)
        for sock in socks:
            assert sock.recv(65536).startswith(b"HTTP/1.1 200")
        assert program.stop() == 0


def test_children_of_a_worker_do_not_hide_its_death(arm, tmp_path):
    (tmp_path / "forks.py").write_text(
        "import os, time\n"
        "from applications import app\n"
        "if os.environ.get('FORKED') is None:\n"
        "    os.environ['FORKED'] = 'yes'\n"
        "    if os.fork() == 0:\n"
        "        while os.getppid() != 1: time.sleep(0.05)\n"
        "        time.sleep(1000)\n"
    )
    with serving(arm, "forks:app", "--app-dir", str(tmp_path), "--workers", "2", *PATIENT) as program:
        first, second = serving_pids(program, 2)
        grandchildren = children(first) | children(second)
        try:
            os.kill(first, signal.SIGKILL)
            program.wait_for(rf"Child process \[{first}\] died")
            started(program, 3)
        finally:
            grandchildren |= {child for pid in children(program.process.pid) for child in children(pid)}
            for pid in grandchildren:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


@pytest.mark.many_cases(short=1)
@pytest.mark.parametrize(
    ("application", "message"),
    [
        ("applications:failing", "no database"),
        ("nowhere:app", 'Could not import module "nowhere"'),
        ("broken:app", "NameError"),
    ],
)
def test_workers_that_cannot_start_end_everything_with_status_3(arm, tmp_path, application, message):
    (tmp_path / "broken.py").write_text("undefined\n")
    options = ("--app-dir", str(tmp_path), "--workers", "2", *PATIENT)
    with serving(arm, application, *options) as program:
        assert program.wait() == 3
        assert message in program.output
        program.wait_for(r"Child process \[\d+\] failed to start, stopping the parent process.")
        assert program.output.count("Started server process") <= 2


@pytest.mark.long
def test_a_worker_killed_during_its_start_is_tried_again_but_not_for_ever(arm, tmp_path):
    (tmp_path / "killed.py").write_text(
        "import os, pathlib, signal\n"
        "tries = pathlib.Path(__file__).with_name('tries')\n"
        "with tries.open('a') as file: file.write('x')\n"
        "if len(tries.read_text()) <= int(os.environ['KILLED']): os.kill(os.getpid(), signal.SIGKILL)\n"
        "from applications import app\n"
    )
    options = ("--app-dir", str(tmp_path), "--workers", "1", "--workers-lifetime", "100000", *PATIENT)
    with serving(arm, "killed:app", *options, env={"KILLED": "2"}) as program:
        assert program.get("/")[0] == 200
        assert program.stop() == 0
    (tmp_path / "tries").unlink()
    with serving(arm, "killed:app", *options, env={"KILLED": "1000"}) as program:
        assert program.wait() == 3
        assert (tmp_path / "tries").read_text() == "xxx"


@pytest.mark.long
def test_a_successor_that_cannot_start_ends_everything_with_status_3(arm, tmp_path):
    """As under uvicorn: whoever runs the server learns of it."""
    module = tmp_path / "changing.py"
    module.write_text("from applications import app\n")
    with serving(arm, "changing:app", "--app-dir", str(tmp_path), "--workers", "2", *PATIENT) as program:
        first, _ = serving_pids(program, 2)
        module.write_text("raise SystemExit('broken')\n")
        os.kill(first, signal.SIGKILL)
        assert program.wait() == 3


@both_backends
def test_a_restart_replaces_one_after_the_other_without_a_failed_request(arm):
    with serving(arm, "applications:app", "--workers", "2", *PATIENT) as program:
        old = set(started(program, 2))
        program.send(signal.SIGHUP)
        new = set()
        while len(new) < 2:
            status, _, body = program.get_again("/pid")
            assert status == 200
            new |= {int(body)} - old
        wait_until(lambda: children(program.process.pid) == new, program)
        lines = program.output.splitlines()
        ends = [lines.index(f"INFO:     Finished server process [{pid}]") for pid in old]
        begins = [lines.index(f"INFO:     Started server process [{pid}]") for pid in new]
        assert sorted(begins)[0] < sorted(ends)[0] < sorted(begins)[1] < sorted(ends)[1]
        assert program.stop() == 0


@pytest.mark.long
def test_a_restart_that_fails_keeps_the_old_workers(arm, tmp_path):
    module = tmp_path / "changing.py"
    module.write_text("from applications import app\n")
    with serving(arm, "changing:app", "--app-dir", str(tmp_path), "--workers", "2", *PATIENT) as program:
        old = set(started(program, 2))
        module.write_text("undefined\n")
        program.send(signal.SIGHUP)
        program.wait_for("The restart is aborted.")
        assert serving_pids(program, 2) == old
        module.write_text("from applications import app\n")
        program.send(signal.SIGHUP)
        wait_until(lambda: all(map(gone, old)), program)
        assert len(serving_pids(program, 2)) == 2
        assert program.stop() == 0


def descriptors(pid):
    """Return what the descriptors of a process refer to, by their numbers."""
    found = {}
    for entry in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            found[int(entry.name)] = entry.readlink().name
    return found


# `ringloop` without the garbage collector, which says at its end how many workers there still are.
UNCOLLECTED = """
import atexit, gc, sys
from ringloop.__main__ import main
from ringloop.http._processes import Worker
gc.disable()
atexit.register(lambda: print("workers left:", sum(isinstance(one, Worker) for one in gc.get_objects())))
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.long
def test_the_parent_keeps_nothing_of_a_worker_that_is_gone(arm, tmp_path):
    """However it went; and without the help of the garbage collector, which may not run for hours."""
    module = tmp_path / "changing.py"
    module.write_text("from applications import app\n")
    options = ("--app-dir", str(tmp_path), "--workers", "1", "--workers-lifetime", "9999", *PATIENT)
    command = [sys.executable, "-c", UNCOLLECTED, "serve", "changing:app", "--port", "0", *options]
    with serving(arm, command=command) as program:
        parent = program.process.pid
        (first,) = started(program, 1)
        before = descriptors(parent)

        def only_one_is_left():
            wait_until(lambda: len(children(parent)) == 1, program)
            wait_until(lambda: len(descriptors(parent)) == len(before), program)

        program.send(signal.SIGHUP)
        second = started(program, 2)[1]
        only_one_is_left()
        os.kill(second, signal.SIGKILL)
        started(program, 3)
        only_one_is_left()
        program.send(signal.SIGTTIN)
        started(program, 4)
        program.send(signal.SIGTTOU)
        only_one_is_left()
        module.write_text("undefined\n")
        program.send(signal.SIGHUP)
        program.wait_for("The restart is aborted.")
        only_one_is_left()
        assert program.stop() == 0
        assert gone(first)
        # The last one is that of the only place.
        assert "workers left: 1" in program.output.splitlines()


@pytest.mark.long
def test_a_successor_that_dies_while_the_old_worker_ends_is_replaced_at_once(arm):
    """The old worker accepts nothing any more, so nobody would serve until it is gone."""
    options = ("--workers-lifetime", "9999", "--timeout-graceful-shutdown", "1000", *PATIENT)
    with serving(arm, "applications:app", *options) as program:
        (first,) = started(program, 1)
        with held(program, first):
            program.send(signal.SIGHUP)
            program.wait_for("Waiting for connections to close")
            second = started(program, 2)[1]
            os.kill(second, signal.SIGKILL)
            program.wait_for(rf"Child process \[{second}\] died")
            third = started(program, 3)[2]
            assert serving_pids(program, 1) == {third}
            # The parent waits for both at its end.
            program.send(signal.SIGTERM)
            wait_until(lambda: gone(third), program)
            assert not gone(first)
        assert program.wait() == 0
        assert gone(first)
        assert program.output.splitlines().count("shutdown") == 2
        assert program.output.splitlines()[-1] == f"INFO:     Stopping parent process [{program.process.pid}]"
        assert "Traceback" not in program.output


@pytest.mark.long
def test_a_successor_is_dropped_while_the_old_worker_ends(arm):
    options = ("--workers-lifetime", "9999", "--timeout-graceful-shutdown", "1000", *PATIENT)
    with serving(arm, "applications:app", *options) as program:
        (first,) = started(program, 1)
        program.send(signal.SIGTTIN)
        second = started(program, 2)[1]
        with held(program, second):
            program.send(signal.SIGHUP)
            program.wait_for("Waiting for connections to close")
            wait_until(lambda: gone(first), program)
            third, fourth = started(program, 4)[2:]
            program.send(signal.SIGTTOU)
            wait_until(lambda: gone(fourth), program)
            assert not gone(second)
            wait_until(lambda: serving_pids(program, 1) == {third}, program)
        wait_until(lambda: children(program.process.pid) == {third}, program)
        program.send(signal.SIGHUP)
        wait_until(lambda: gone(third), program)
        assert serving_pids(program, 1) == {started(program, 5)[4]}
        assert program.stop() == 0
        assert "Traceback" not in program.output


@pytest.mark.parametrize("options", [(), ("--reuse-port",)])
def test_signals_add_and_drop_workers(arm, options):
    with serving(
        arm, "applications:app", "--workers", "1", "--workers-lifetime", "9999", *PATIENT, *options
    ) as program:
        (first,) = started(program, 1)
        program.send(signal.SIGTTIN)
        second = started(program, 2)[1]
        assert serving_pids(program, 2) == {first, second}
        program.send(signal.SIGTTOU)
        wait_until(lambda: gone(second), program)
        assert serving_pids(program, 1) == {first}
        program.send(signal.SIGTTOU)
        program.wait_for("Already reached one process")
        assert program.get("/pid")[2] == str(first).encode()
        assert program.stop() == 0


def test_other_signals_are_ignored_as_uvicorns_parent_does(arm):
    with serving(arm, "applications:app", "--workers", "2", *PATIENT) as program:
        started(program, 2)
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT):
            program.send(number)
        assert program.get("/")[0] == 200
        assert program.stop() == 0


@pytest.mark.long
def test_a_limit_of_requests_replaces_workers_without_a_failed_request(arm):
    options = ("--workers", "2", "--limit-max-requests", "5", "--limit-max-requests-jitter", "3", *PATIENT)
    with serving(arm, "applications:app", *options) as program:
        pids = set()
        while len(pids) < 5:
            status, _, body = program.get_again("/pid")
            assert status == 200
            pids.add(int(body))
        program.wait_for(r"Maximum request limit of [5-8] exceeded", 3)
        assert program.stop() == 0


def test_workers_are_replaced_at_the_end_of_their_lifetime(arm):
    with serving(arm, "applications:app", "--workers-lifetime", "0.5", *PATIENT) as program:
        started(program, 3)
        first = started(program, 3)[0]
        wait_until(lambda: gone(first), program)
        program.wait_for(rf"Child process \[{first}\] is replaced: it has reached its lifetime")
        assert program.get("/")[0] == 200
        assert program.stop() == 0


@pytest.mark.long
def test_workers_that_use_much_memory_are_replaced(arm):
    with serving(arm, "applications:app", "--workers-max-rss", "250", *PATIENT) as program:
        (first,) = started(program, 1)
        program.get("/grow")
        started(program, 2)
        program.wait_for(rf"Child process \[{first}\] is replaced: it uses \d+ MiB of memory")
        wait_until(lambda: gone(first), program)
        assert program.get("/")[0] == 200
        assert program.stop() == 0


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [("--workers-lifetime", "0.5"), ("--workers-lifetime", "9999", "--limit-max-requests", "1")],
    ids=["lifetime", "requests"],
)
def test_a_worker_is_replaced_although_successors_failed(arm, tmp_path, options):
    """It asks for a successor only once, and serves on meanwhile. Here the first two successors fail."""
    (tmp_path / "failing_twice.py").write_text(
        "import pathlib\n"
        "tries = pathlib.Path(__file__).with_name('tries')\n"
        "with tries.open('a') as file: file.write('x')\n"
        "if len(tries.read_text()) in (2, 3): raise ValueError('no database')\n"
        "from applications import app\n"
    )
    with serving(arm, "failing_twice:app", "--app-dir", str(tmp_path), *PATIENT, *options) as program:
        first = started(program, 1)[0]
        assert program.get_again("/")[0] == 200
        program.wait_for(rf"New child process \[\d+\] failed to start; keeping worker \[{first}\]", 2)
        started(program, 2)
        wait_until(lambda: gone(first), program)
        assert program.get_again("/")[0] == 200
        assert program.stop() == 0


@pytest.mark.long
def test_the_server_ends_between_two_tries_of_a_successor(arm, tmp_path):
    module = tmp_path / "changing.py"
    module.write_text("from applications import app\n")
    options = ("--app-dir", str(tmp_path), "--workers-max-rss", "1", *PATIENT)
    with serving(arm, "changing:app", *options) as program:
        started(program, 1)
        module.write_text("undefined\n")
        program.wait_for("failed to start; keeping worker", 2)
        assert program.stop() == 0
        assert program.output.splitlines()[-1] == f"INFO:     Stopping parent process [{program.process.pid}]"


@pytest.mark.long
def test_a_worker_that_does_not_answer_is_killed_and_replaced(arm):
    with serving(arm, "applications:app", "--workers", "2", "--timeout-worker-healthcheck", "8") as program:
        first, _ = serving_pids(program, 2)
        os.kill(first, signal.SIGSTOP)
        program.wait_for(rf"Child process \[{first}\] does not answer, killing it")
        program.wait_for(rf"Child process \[{first}\] died")
        started(program, 3)
        assert program.stop() == 0


@pytest.mark.long
def test_a_worker_that_hangs_before_it_is_there_is_killed(arm):
    child = support.run_child(
        """
        import asyncio, signal
        from ringloop.http import Config, _metrics, _processes

        _processes._HERE_MARGIN_S = 0.1

        async def main():
            config = Config("applications:app", timeout_worker_healthcheck=0.1)
            worker = _processes.Worker(config, [], _metrics.Board(), print)
            worker.signal(signal.SIGSTOP)
            print(await worker.wait_until_settled(), worker.exitcode)

        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(main())
        """,
        arm,
    )
    assert child.stdout == f"False {-signal.SIGKILL}\n", child.stderr
    assert "does not answer, killing it" in child.stderr


def test_workers_end_when_their_parent_is_killed(arm):
    with serving(arm, "applications:app", "--workers", "2", *PATIENT) as program:
        pids = started(program, 2)
        program.process.kill()
        wait_until(lambda: all(map(gone, pids)), program)
        program.wait()
        assert program.output.splitlines().count("shutdown") == 2


def test_a_second_signal_kills_workers(arm):
    options = ("--workers", "2", "--timeout-graceful-shutdown", "1000", *PATIENT)
    with serving(arm, "applications:app", *options) as program:
        pids = started(program, 2)
        with begin(program, "/stubborn"):
            program.send(signal.SIGTERM)
            program.wait_for("Received SIGTERM, exiting.")
            program.send(signal.SIGTERM)
            assert program.wait() == 0
        assert all(map(gone, pids))


def test_a_port_that_is_taken(arm):
    with socket.create_server((support.HOST, 0)) as listener:
        options = ("--workers", "2", "--port", str(listener.getsockname()[1]), *PATIENT)
        with serving(arm, "applications:app", *options) as program:
            assert program.wait() == 3
            assert os.strerror(errno.EADDRINUSE).lower() in program.output
            assert "Started server process" not in program.output


@pytest.mark.long
def test_a_descriptor_that_has_no_second_socket(arm):
    """Another socket can't be bound to its address, whatever --reuse-port says."""
    with socket.create_server((support.HOST, 0)) as listener:
        options = ("--fd", str(listener.fileno()), "--workers", "2", "--reuse-port", *PATIENT)
        with serving(arm, "applications:app", *options, pass_fds=[listener.fileno()]) as program:
            assert serving_pids(program, 2)
            assert program.stop() == 0


def test_a_unix_socket(arm, tmp_path):
    path = tmp_path / "socket"
    with serving(arm, "applications:app", "--workers", "2", "--uds", str(path), *PATIENT) as program:
        started(program, 2)
        assert stat.S_IMODE(path.stat().st_mode) == 0o666
        assert serving_pids(program, 2)
        assert program.stop() == 0
    assert not path.exists()


def test_an_application_object_cannot_be_served_by_workers(arm):
    child = support.run_child(
        """
        import ringloop

        async def app(scope, receive, send):
            pass

        ringloop.serve(app, port=0, workers=2)
        """,
        arm,
    )
    assert child.returncode == 3
    assert "You must pass the application as an import string" in child.stderr


def test_a_program_that_serves_when_a_worker_imports_it_is_told(arm, tmp_path):
    script = tmp_path / "unguarded.py"
    script.write_text("import ringloop\nringloop.serve('applications:app', port=0, workers=2)\n")
    with serving(arm, command=[sys.executable, str(script)]) as program:
        assert program.wait() == 3
        hint = 'which serves again: call `ringloop.serve` under `if __name__ == "__main__":` only.'
        assert 1 <= program.output.count(hint) <= 2, "each worker may say it"
        assert "Ringloop running on" not in program.output
        assert "Traceback" not in program.output


REFUSED = """
import errno, os, sys

if __name__ == "__main__":
    from ringloop.__main__ import main
    from ringloop.http import _supervisor

    answers = [answer == "yes" for answer in os.environ["ANSWERS"].split()]

    class Worker(_supervisor.Worker):
        def __init__(self, *arguments):
            if not (answers.pop(0) if answers else True):
                raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            super().__init__(*arguments)

    _supervisor.Worker = Worker
    sys.exit(main())
"""


def refused(arm, tmp_path, answers):
    """Return a server with one worker that the kernel refuses processes."""
    script = tmp_path / "refused.py"
    script.write_text(REFUSED)
    options = ("--port", "0", "--workers-lifetime", "9999", *PATIENT)
    command = [sys.executable, str(script), "serve", "applications:app", *options]
    return serving(arm, command=command, env={"ANSWERS": answers})


MESSAGE = "A child process can't be started: [Errno 11] Resource temporarily unavailable"


def test_without_processes_it_cannot_start(arm, tmp_path):
    with refused(arm, tmp_path, "no") as program:
        assert program.wait() == 3
        assert program.output.count(MESSAGE) == 1


@pytest.mark.long
def test_a_process_that_is_refused_is_asked_for_again(arm, tmp_path):
    with refused(arm, tmp_path, "yes yes no no yes") as program:
        first = serving_pids(program, 1).pop()
        program.send(signal.SIGTTIN)
        assert len(serving_pids(program, 2)) == 2
        os.kill(first, signal.SIGKILL)
        program.wait_for(re.escape(MESSAGE), 2)
        assert len(serving_pids(program, 2)) == 2
        assert program.stop() == 0


@pytest.mark.long
def test_a_restart_whose_process_is_refused_keeps_the_worker(arm, tmp_path):
    with refused(arm, tmp_path, "yes no yes") as program:
        first = serving_pids(program, 1)
        program.send(signal.SIGHUP)
        program.wait_for("The restart is aborted.")
        assert serving_pids(program, 1) == first
        program.send(signal.SIGHUP)
        wait_until(lambda: all(map(gone, first)), program)
        assert serving_pids(program, 1) != first
        assert program.stop() == 0
