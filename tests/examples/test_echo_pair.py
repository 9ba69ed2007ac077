"""The programs of examples/echo_pair, run as users run them: as processes, with command lines."""

import contextlib
import os
import pty
import queue
import re
import select
import signal
import socket
import subprocess
import sys
import time

import pytest

import support

FOLDER = support.REPOSITORY / "examples" / "echo_pair"
MEASURED = re.compile(r"average +[0-9.]+ ms\np95 +[0-9.]+ ms\nthroughput +[0-9.]+ MB/s\n$")


def start(program, *arguments, environment=None, **options):
    """Start a program of the folder, in development mode so that what it forgets to close shows on stderr."""
    return subprocess.Popen(
        [sys.executable, "-X", "dev", FOLDER / program, *arguments],
        env={**os.environ, "PYTHONPATH": "", **(environment or {})},
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options},
    )


def finish(process):
    """Wait for a program's end; return its exit status and what it printed on stdout and, besides slow callbacks, on stderr."""
    with process:
        try:
            stdout, stderr = process.communicate(timeout=support.PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return process.returncode, stdout, support.unlogged(stderr or "")


def run(program, *arguments, **options):
    """Run a program of the folder to its end; return its exit status and what it printed on stdout and stderr."""
    return finish(start(program, *arguments, **options))


def run_client(port, *arguments, **options):
    return run("client.py", "--port", str(port), *arguments, **options)


def fails_with_one_line(outcome, *fragments, status=1):
    """Demand that a program failed as users want it: nothing but one line, which says what was wrong."""
    assert outcome[:2] == (status, "")
    line = outcome[2].removesuffix("\n")
    assert line.startswith("error: ")
    assert "\n" not in line
    for fragment in fragments:
        assert fragment in line


@contextlib.contextmanager
def running_server(program, *arguments, environment=None):
    """Run a server on a free port, give that port, and end the server by Ctrl-C, which it must take cleanly."""
    process = start(program, "--port", "0", *arguments, environment=environment)
    try:
        line = process.stdout.readline()
        match = re.search(r"listens on \S+ port (\d+); Ctrl-C ends it", line)
        assert match, f"{line!r}, and on stderr {process.communicate()[1]!r}"
        yield int(match[1])
        process.send_signal(signal.SIGINT)
        assert finish(process) == (0, "ended\n", "")
    finally:
        process.kill()
        process.communicate()


def async_server(arm, *arguments):
    """Run server_async.py on the loop that the arm stands for."""
    loop = "asyncio" if arm == "asyncio" else "ringloop"
    return running_server("server_async.py", "--loop", loop, *arguments, environment={"RINGLOOP_BACKEND": arm})


@contextlib.contextmanager
def fake_server(behave):
    """Run `behave(connection)` on the first connection that a client makes to the port that this gives."""
    with socket.create_server((support.HOST, 0)) as listener:
        listener.settimeout(support.PATIENCE_S)

        def serve():
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(support.PATIENCE_S)
                behave(connection)

        thread = support.BackgroundThread(serve)
        yield listener.getsockname()[1]
        thread.result()


def connected(port):
    """Return a socket that is connected to this port of this machine."""
    return socket.create_connection((support.HOST, port), timeout=support.PATIENCE_S)


class EchoServers:
    """The requirements on every echo server; the classes below say which one `server(arm)` runs."""

    def test_one_message(self, server):
        status, stdout, stderr = run_client(server, "--message", "grüß dich")
        assert (status, stderr) == (0, "")
        assert re.fullmatch(r"echo +grüß dich\nround trip +[0-9.]+ ms\n", stdout)

    def test_bench(self, server):
        status, stdout, stderr = run_client(server, "--bench", "--repeat", "200", "--size", "1024")
        assert (status, stderr) == (0, "")
        assert stdout.startswith("200 round trips of 1024 bytes on one connection, after 20 for warm-up\n")
        assert MEASURED.search(stdout)

    def test_a_message_larger_than_what_the_sockets_hold(self, server):
        status, stdout, stderr = run_client(server, "--bench", "--repeat", "1", "--size", "20000000")
        assert (status, stderr) == (0, "")
        assert MEASURED.search(stdout)

    def test_clients_at_once(self, server):
        clients = [start("client.py", "--port", str(server), "--message", f"client {number}") for number in range(5)]
        for number, client in enumerate(clients):
            status, stdout, stderr = finish(client)
            assert (status, stderr) == (0, "")
            assert f"client {number}\n" in stdout

    def test_a_client_that_resets_its_connection_harms_nobody(self, server):
        connection = connected(server)
        connection.sendall(bytes(1 << 20))
        support.reset(connection)
        assert run_client(server)[0] == 0

    def test_a_client_that_ends_its_side_gets_the_rest_and_the_end(self, server):
        with connected(server) as connection:
            connection.sendall(b"the rest")
            connection.shutdown(socket.SHUT_WR)
            with connection.makefile("rb") as stream:
                assert stream.read() == b"the rest"


class TestThreadedServer(EchoServers):
    @pytest.fixture
    def server(self):
        with running_server("server.py") as port:
            yield port


class TestAsyncServer(EchoServers):
    @pytest.fixture
    def server(self, arm):
        with async_server(arm) as port:
            yield port

    def test_a_client_that_resets_its_connection_harms_nobody(self, arm, server):
        if arm == "asyncio" and not support.has_gil():
            pytest.skip(support.REPORTED_WITHOUT_GENERATIONS)
        super().test_a_client_that_resets_its_connection_harms_nobody(server)

    def test_idle_clients_do_not_delay_the_end(self, arm):
        with contextlib.ExitStack() as stack:
            with async_server(arm) as port:
                connection = stack.enter_context(connected(port))
                connection.sendall(b"x")
                assert connection.recv(1) == b"x"
            assert connection.recv(1) == b""

    def test_listens_on_ipv6(self, arm):
        if not support.has_ipv6():
            pytest.skip("the loopback interface of this machine has no IPv6")
        with async_server(arm, "--host", "::1") as port:
            assert run_client(port, "--host", "::1")[0] == 0


def test_the_async_server_on_uvloop():
    pytest.importorskip("uvloop", reason="uvloop is not installed: it comes with `make bench-loops`")
    with running_server("server_async.py", "--loop", "uvloop") as port:
        assert run_client(port)[0] == 0


def test_the_threaded_server_listens_on_ipv6():
    if not support.has_ipv6():
        pytest.skip("the loopback interface of this machine has no IPv6")
    with running_server("server.py", "--host", "::1") as port:
        assert run_client(port, "--host", "::1")[0] == 0


def test_idle_clients_do_not_delay_the_end_of_the_threaded_server():
    with contextlib.ExitStack() as stack, running_server("server.py") as port:
        connection = stack.enter_context(connected(port))
        connection.sendall(b"x")
        assert connection.recv(1) == b"x"


@pytest.mark.parametrize("program", ["server.py", "server_async.py"])
def test_a_port_in_use(program):
    with socket.create_server((support.HOST, 0)) as listener:
        port = str(listener.getsockname()[1])
        fails_with_one_line(run(program, "--port", port), f"cannot listen on 127.0.0.1 port {port}", "in use")


@pytest.mark.parametrize(("program", "port"), [("server.py", 5050), ("server_async.py", 5051), ("client.py", 5050)])
def test_default_ports(program, port):
    status, stdout, stderr = run(program, "--help")
    assert (status, stderr) == (0, "")
    assert f"(default: {port})" in stdout


def test_a_loop_that_is_not_installed(tmp_path):
    (tmp_path / "uvloop.py").write_text("raise ModuleNotFoundError(\"No module named 'uvloop'\", name='uvloop')\n")
    outcome = run("server_async.py", "--loop", "uvloop", environment={"PYTHONPATH": str(tmp_path)})
    fails_with_one_line(outcome, "No module named 'uvloop'", "pip install uvloop")


def test_nobody_listens(refused_port):
    fails_with_one_line(run_client(refused_port), "connection refused", "server.py")


def test_no_such_host():
    # The name has an empty label, so that it is refused before any server is asked for it.
    fails_with_one_line(run_client(5050, "--host", "no..such.host"), "cannot find the host")


def test_the_server_echoes_other_bytes():
    with fake_server(lambda connection: connection.sendall(connection.recv(5).replace(b"l", b"L"))) as port:
        outcome = run_client(port, "--message", "hello")
    fails_with_one_line(outcome, f"127.0.0.1 port {port}", "wrong echo: byte 2 is 0x4c, and 0x6c was sent")


def test_the_server_echoes_other_bytes_in_the_middle_of_a_bench():
    def behave(connection):
        for _ in range(50):
            connection.sendall(connection.recv(5))
        connection.sendall(connection.recv(5).upper())

    with fake_server(behave) as port:
        outcome = run_client(port, "--bench", "--repeat", "500")
    fails_with_one_line(outcome, "wrong echo: byte 0")


def test_the_server_echoes_too_much():
    with fake_server(lambda connection: connection.sendall(connection.recv(5) + b"!")) as port:
        outcome = run_client(port)
    fails_with_one_line(outcome, "wrong echo: 1 bytes more than were sent")


def test_the_server_hangs_up_in_the_middle_of_the_echo():
    with fake_server(lambda connection: connection.sendall(connection.recv(5)[:2])) as port:
        outcome = run_client(port)
    fails_with_one_line(outcome, "the server hung up after 2 of 5 bytes")


def test_the_server_resets_the_connection():
    def behave(connection):
        connection.recv(5)
        support.reset(connection)

    with fake_server(behave) as port:
        outcome = run_client(port)
    fails_with_one_line(outcome, "the server hung up after 0 of 5 bytes")


@pytest.mark.parametrize("size", [5, 20_000_000])
def test_the_server_is_silent(size):
    def behave(connection):
        # Reads nothing: a large message does not even leave the client.
        deadline = time.monotonic() + support.PATIENCE_S
        while connection.recv(5, socket.MSG_PEEK) and time.monotonic() < deadline and not done:
            time.sleep(0.01)

    done = []
    with fake_server(behave) as port:
        outcome = run_client(port, "--timeout", "0.3", "--size", str(size))
        done.append(True)
    fails_with_one_line(outcome, f"the server was silent for 0.3 s after 0 of {size} bytes")


def test_a_server_that_keeps_its_side_open_is_right():
    def behave(connection):
        connection.sendall(connection.recv(5))
        while not done:
            time.sleep(0.01)

    done = []
    with fake_server(behave) as port:
        status, stdout, stderr = run_client(port)
        done.append(True)
    assert (status, stderr) == (0, "")
    assert "hello" in stdout


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        (["--port", "0"], "'0' is not a port"),
        (["--port", "65536"], "'65536' is not a port"),
        (["--port", "http"], "'http' is not a port"),
        (["--message", ""], "an empty message has no echo"),
        (["--message"], "expected one argument"),
        (["--size", "0"], "'0' is not a whole number above zero"),
        (["--bench", "--repeat", "-1"], "'-1' is not a whole number above zero"),
        (["--repeat", "5"], "needs --bench"),
        (["--timeout", "nan"], "'nan' is not a number of seconds"),
        (["--nonsense"], "--nonsense"),
    ],
)
def test_wrong_arguments(arguments, fragment):
    fails_with_one_line(run("client.py", *arguments), fragment, status=2)


def test_a_message_that_is_no_text_and_a_terminal_that_is_ascii():
    with fake_server(lambda connection: connection.sendall(connection.recv(100))) as port:
        environment = {"PYTHONIOENCODING": "ascii"}
        status, stdout, stderr = run_client(port, "--message", b"\xff and \xc3\xbc", environment=environment)
    assert (status, stderr) == (0, "")
    assert r"\xff and \xfc" in stdout


def test_ctrl_c_ends_the_client():
    def behave(connection):
        connection.recv(5)
        started.get(timeout=support.PATIENCE_S).send_signal(signal.SIGINT)
        connection.recv(5)

    started = queue.SimpleQueue()
    with fake_server(behave) as port:
        client = start("client.py", "--port", str(port))
        started.put(client)
        assert finish(client) == (130, "", "interrupted\n")


def test_a_long_bench_shows_its_progress_on_a_terminal():
    def behave(connection):
        while message := connection.recv(5):
            time.sleep(0.1)  # The client shows its progress once it has taken a while.
            connection.sendall(message)

    ours, terminal = pty.openpty()
    try:
        with fake_server(behave) as port:
            client = start("client.py", "--port", str(port), "--bench", "--repeat", "5", stderr=terminal)
            status, stdout, _ = finish(client)
        shown = ""
        while not shown.endswith("\r\x1b[K") and select.select([ours], [], [], support.PATIENCE_S)[0]:
            shown += os.read(ours, 65536).decode()
    finally:
        os.close(ours)
        os.close(terminal)
    assert status == 0
    assert MEASURED.search(stdout)
    assert re.match(r"\r\[#+\.+\] \d+ of 15, \d+ s left", shown)
    assert shown.endswith("\r\x1b[K"), "the bar is gone when the result is printed"
