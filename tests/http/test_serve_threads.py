"""`ringloop serve --threads`: one process, one application object, and a loop with a listener in each thread."""

import contextlib
import http.client
import pathlib
import signal
import socket
import sys
import time

import pytest

import support
from ringloop.http import Config, Server, _config, _listening
from serve_process import FOLDER, RINGLOOP, begin, fails, serving

# The server is above the loop: few tests need both backends.
pytestmark = [pytest.mark.ringloop_only, pytest.mark.any_backend]
both_backends = pytest.mark.any_backend(matters=True)

SECOND = "ringloop serve, thread 1"


@contextlib.contextmanager
def serving_in_threads(arm, *arguments, app="threads_application:app", **options):
    """Serve in threads, also where they take turns because of the GIL."""
    command = [sys.executable, str(FOLDER / "serve_with_threads.py"), "serve", *map(str, arguments), app]
    if not {"--uds", "--fd", "--port"}.intersection(arguments):
        command += ["--port", "0"]
    with serving(arm, command=command, **options) as program:
        yield program


def threads_that_answer(program, count):
    """Ask on new connections until this many threads have answered; return them with the state that each has."""
    found = {}
    deadline = time.monotonic() + support.PATIENCE_S
    while len(found) < count:
        assert time.monotonic() < deadline, found
        thread, made_in = program.get_json("/")
        found[thread] = made_in
    return found


def receive_all(sock):
    data = b""
    while chunk := sock.recv(65536):
        data += chunk
    return data


def receive_beginning(sock):
    """Return the thread that streams the answer, which has begun but not ended."""
    data = b""
    while b"begun in " not in data or not data.endswith(b".\r\n"):
        chunk = sock.recv(65536)
        assert chunk, data
        data += chunk
    return data.partition(b"begun in ")[2].removesuffix(b".\r\n").decode()


def assert_both_threads_accept(program):
    """Hold the loop of one thread until the other one has answered."""
    held = program.client()
    with contextlib.closing(held):
        held.request("GET", "/hold")
        # From then on, it accepts no connection.
        program.wait_for("held ")
        other, made_in = program.get_json("/release")
        assert other in ("first", SECOND)
        assert made_in == "first"
        assert held.getresponse().read() == b"true"


@both_backends
def test_each_thread_answers_with_one_application(arm):
    with serving_in_threads(arm, "--threads", 3) as program:
        assert threads_that_answer(program, 3) == dict.fromkeys(("first", SECOND, "ringloop serve, thread 2"), "first")
        assert program.stop() == -signal.SIGTERM
    for text in ("imported", "startup in first", "shutdown in first", "Serving in 3 threads", "Shutting down"):
        assert program.output.count(text) == 1, program.output
    assert "startup in ringloop" not in program.output
    assert "rror" not in program.output


def test_each_thread_can_run_the_lifespan(arm):
    with serving_in_threads(arm, "--threads", 2, "--lifespan-per-thread") as program:
        assert threads_that_answer(program, 2) == {"first": "first", SECOND: SECOND}
        assert program.stop() == -signal.SIGTERM
    for text in ("startup in first", f"startup in {SECOND}", "shutdown in first", f"shutdown in {SECOND}"):
        assert program.output.count(text) == 1, program.output


def test_a_thread_that_cannot_start_ends_all(arm):
    with serving_in_threads(
        arm, "--threads", 3, "--lifespan-per-thread", app="threads_application:failing_app"
    ) as program:
        assert program.wait() == 3
    assert "no start here" in program.output
    assert "Thread 2 can't start: Application startup failed" in program.output
    assert "shutdown in first" in program.output
    assert "Traceback" not in program.output
    assert "left behind" not in program.output


@pytest.mark.parametrize("app", ["threadless_app", "slow_app"])
def test_threads_that_have_not_started_are_not_waited_for(arm, app):
    """One of them waits for its application for ever when another one fails."""
    options = ["--lifespan-per-thread"] if app == "slow_app" else []
    with serving_in_threads(arm, "--threads", 3, *options, app=f"threads_application:{app}") as program:
        assert program.wait() == 3
    assert "Thread 2 can't start: " in program.output
    assert "shutdown in first" in program.output
    for text in ("Traceback", "left behind", "running on"):
        assert text not in program.output


@pytest.mark.parametrize("spare", [0, 1, 2, 3, 4, 6, 8, 12])
def test_no_descriptors_for_a_thread(arm, spare):
    with serving_in_threads(
        arm,
        *("--threads", 2, "--timeout-graceful-shutdown", 1),
        app="threads_application:exhausting_app",
        env={"SPARE_DESCRIPTORS": str(spare)},
    ) as program:
        if spare < 4:
            assert program.wait() == 3
            assert "Thread 1 can't start: " in program.output
            assert "running on" not in program.output
        else:
            # The loop's backend says whether there are enough.
            program.wait_for("running on|can't start")
            program.stop()
    for text in ("Traceback", "left behind"):
        assert text not in program.output


def test_one_of_two_servers_that_start_at_once_is_refused():
    """Both may be bound before one of them listens. Only then may others have the same port."""
    first = _listening.bind("127.0.0.1", 0)
    second = _listening.bind("127.0.0.1", first.sockets[0].getsockname()[1])
    with contextlib.closing(first), contextlib.closing(second):
        first.sockets[0].listen()
        first.allow_more()
        with pytest.raises(OSError, match="in use"):
            second.sockets[0].listen()
        with contextlib.closing(_listening.bind(*first.sockets[0].getsockname(), reuse_port=True)) as further:
            further.sockets[0].listen()


def test_a_server_object_serves_in_one_thread(monkeypatch):
    monkeypatch.setattr(_config, "has_gil", lambda: False)
    with pytest.raises(ValueError, match="one thread"):
        Server(Config(None, threads=2))


@both_backends
def test_requests_in_progress_end_in_each_thread(arm):
    with serving_in_threads(arm, "--threads", 2) as program:
        begun = {}
        deadline = time.monotonic() + support.PATIENCE_S
        with contextlib.ExitStack() as stack:
            while len(begun) < 2:
                assert time.monotonic() < deadline, begun
                sock = stack.enter_context(program.connect())
                sock.sendall(b"GET /stream HTTP/1.1\r\nhost: localhost\r\n\r\n")
                begun[receive_beginning(sock)] = sock
            program.send(signal.SIGTERM)
            program.wait_for("Waiting for connections to close")
            for sock in begun.values():
                assert b" ended" in receive_all(sock)
        assert program.wait() == -signal.SIGTERM


@both_backends
def test_no_request_is_lost_at_the_end(arm):
    """Clients come all the time. Each gets an answer until no connection is accepted any more."""
    with serving_in_threads(arm, "--threads", 2, "--no-access-log") as program:
        address = program.address
        answered = []

        def ask():
            while True:
                try:
                    sock = socket.create_connection(address, support.PATIENCE_S)
                except ConnectionError:
                    return
                with sock:
                    sock.sendall(b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
                    data = receive_all(sock)
                    assert data.startswith(b"HTTP/1.1 200 OK\r\n"), data
                    answered.append(1)

        clients = [support.BackgroundThread(ask) for _ in range(4)]
        deadline = time.monotonic() + support.PATIENCE_S
        while len(answered) < 200:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        program.send(signal.SIGTERM)
        for client in clients:
            client.result()
        assert program.wait() == -signal.SIGTERM


def test_a_thread_that_ends_by_itself_ends_the_process(arm):
    with serving_in_threads(arm, "--threads", 2) as program:
        deadline = time.monotonic() + support.PATIENCE_S
        while program.process.poll() is None:
            assert time.monotonic() < deadline
            with program.connect() as sock, contextlib.closing(program.client(sock=sock)) as client:
                client.request("GET", "/")
                if SECOND not in client.getresponse().read().decode():
                    continue
                client.request("GET", "/stop")
                with contextlib.suppress(OSError, http.client.HTTPException):
                    client.getresponse()
                break
        assert program.wait() == 1
    assert "Thread 1 has ended: " in program.output
    assert program.output.count("shutdown in first") == 1


def test_requests_end_in_other_threads_if_the_first_ends_by_itself(arm):
    with serving_in_threads(arm, "--threads", 2) as program, contextlib.ExitStack() as stack:
        deadline = time.monotonic() + support.PATIENCE_S
        thread = None
        while thread != SECOND:
            assert time.monotonic() < deadline
            sock = stack.enter_context(program.connect())
            sock.sendall(b"GET /stream HTTP/1.1\r\nhost: localhost\r\n\r\n")
            thread = receive_beginning(sock)
        threads = set()
        while "first" not in threads:
            assert time.monotonic() < deadline
            with program.connect() as other:
                other.sendall(b"GET /stop-first HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
                answer = receive_all(other)
            threads.add("first" if b"stopping" in answer else "other")
        # The application ends its answer when half of the time for that is over: the loop of the first is gone by then.
        assert b" ended" in receive_all(sock)
        assert program.wait() == 1
    assert "Event loop stopped" in program.output


def test_an_error_while_a_thread_drains_is_told(arm):
    with (
        serving_in_threads(arm, "--threads", 2, app="threads_application:stopping_app") as program,
        contextlib.ExitStack() as stack,
    ):
        threads = set()
        deadline = time.monotonic() + support.PATIENCE_S
        while SECOND not in threads:
            assert time.monotonic() < deadline, threads
            sock = program.connect()
            sock.sendall(b"GET /stream HTTP/1.1\r\nhost: localhost\r\n\r\n")
            thread = receive_beginning(sock)
            threads.add(thread)
            # Only the further thread has a request to end, and so its loop is stopped while it drains.
            if thread == SECOND:
                stack.enter_context(sock)
            else:
                sock.close()
        program.send(signal.SIGINT)
        assert program.wait() == 1
    assert "Thread 1 has ended: " in program.output


def test_interrupted_twice_it_ends_at_once(arm):
    patience = 100 * support.PATIENCE_S
    with serving_in_threads(arm, "--threads", 2, "--timeout-graceful-shutdown", patience) as program:
        clients = [begin(program, "/stream") for _ in range(8)]
        program.send(signal.SIGINT)
        program.wait_for("Waiting for connections to close")
        program.send(signal.SIGINT)
        assert program.wait() in (0, -signal.SIGINT)
        for client in clients:
            client.close()


def test_all_threads_end_when_one_has_served_enough(arm):
    with serving_in_threads(arm, "--threads", 2, "--limit-max-requests", 5) as program:
        with contextlib.suppress(OSError, AssertionError):
            for _ in range(20):
                program.get("/")
        assert program.wait() == 0
    assert program.output.count("Maximum request limit of 5 exceeded") == 1


def test_a_unix_socket_is_shared(arm, tmp_path):
    path = tmp_path / "socket"
    with serving_in_threads(arm, "--threads", 2, "--uds", path) as program:
        assert_both_threads_accept(program)
        assert program.stop() == -signal.SIGTERM
    assert not path.exists()


def test_an_inherited_socket_is_shared(arm):
    with socket.create_server(("127.0.0.1", 0)) as sock:
        descriptor = sock.fileno()
        with serving_in_threads(arm, "--threads", 2, "--fd", descriptor, pass_fds=[descriptor]) as program:
            assert_both_threads_accept(program)
            assert program.stop() == -signal.SIGTERM


def test_a_port_that_is_in_use_is_refused(arm):
    with serving_in_threads(arm, "--threads", 2) as program:
        port = str(program.address[1])
        with serving_in_threads(arm, "--threads", 2, "--port", port) as other:
            assert other.wait() == 3
        assert "address already in use" in other.output
        assert program.get_json("/")[1] == "first"


@pytest.mark.parametrize("pool", [1, 4])
def test_wsgi_in_threads(arm, pool):
    """Views run at the same time even if each loop has one thread for them."""
    with (
        serving_in_threads(arm, "--threads", 2, "--wsgi-threads", pool, app="threads_application:view") as program,
        contextlib.ExitStack() as stack,
    ):

        def ask(client, path):
            client.request("GET", path)
            return client.getresponse().read()

        clients = {}
        deadline = time.monotonic() + support.PATIENCE_S
        while len(clients) < 2:
            assert time.monotonic() < deadline, clients
            client = stack.enter_context(contextlib.closing(program.client()))
            clients[ask(client, "/")] = client
        answers = [support.BackgroundThread(ask, client, "/meet") for client in clients.values()]
        for answer in answers:
            assert answer.result().startswith(b"True ")
        assert program.stop() == -signal.SIGTERM


def test_metrics_have_the_sum_of_all_threads(arm):
    parser = pytest.importorskip("prometheus_client.parser")
    with serving_in_threads(arm, "--threads", 2, "--metrics", "/metrics") as program:
        deadline = time.monotonic() + support.PATIENCE_S
        asked, threads = 0, set()
        while len(threads) < 2:
            assert time.monotonic() < deadline, threads
            threads.add(program.get_json("/")[0])
            asked += 1
        # A thread may answer while another one has yet to count what it has answered.
        requests = pages = 0
        while requests < asked:
            assert time.monotonic() < deadline, (requests, asked)
            text = program.get("/metrics")[2].decode()
            families = {it.name: it for it in parser.text_string_to_metric_families(text)}
            requests = sum(it.value for it in families["ringloop_http_requests"].samples) - pages
            pages += 1
        labels = [it.labels for it in families["ringloop_loop_turns"].samples]
        pid = str(program.process.pid)
        assert labels == [{"worker": pid, "thread": "0"}, {"worker": pid, "thread": "1"}]
        assert [it.value for it in families["ringloop_threads"].samples] == [2]
        assert [it.value for it in families["ringloop_workers"].samples] == [1]
        assert len(families["process_open_fds"].samples) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--threads", "2", "--workers", "2"], "--threads serves in one process, without --workers"),
        (["--threads", "2", "--reload"], "--threads serves in one process, without --workers"),
        (["--threads", "0"], "threads"),
    ],
)
def test_what_is_refused(arm, arguments, message):
    status, output = fails(arm, *arguments, "threads_application:app")
    assert status != 0
    assert message in output
    assert "Traceback" not in output


def test_threads_are_refused_with_the_gil(arm):
    command = [*RINGLOOP, "serve", "--threads", "2", "threads_application:app"]
    if not support.has_gil():
        command[1:1] = ["-X", "gil=1"]
    status, output = fails(arm, command=command)
    assert status == 3
    assert output == "ERROR:    --threads needs a free-threaded Python (3.14t) without the GIL. Use --workers here.\n"


def test_one_thread_needs_no_such_python(arm):
    with serving(arm, "--threads", "1", "threads_application:app") as program:
        assert program.get_json("/") == ["first", "first"]
        names = [path.read_text().strip() for path in pathlib.Path(f"/proc/{program.process.pid}/task").glob("*/comm")]
        # The kernel has threads of its own there.
        assert len([name for name in names if not name.startswith("iou-")]) == 1, names
