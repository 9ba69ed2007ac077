"""`ringloop serve` with one process: listening, starting, ending."""

import contextlib
import errno
import os
import re
import shlex
import signal
import socket
import stat
import subprocess
import sys

import pytest

import support
from serve_process import RINGLOOP, begin, fails, serving

# The server is a process of its own, and above the loop: few tests need both backends.
pytestmark = [pytest.mark.ringloop_only, pytest.mark.any_backend]
both_backends = pytest.mark.any_backend(matters=True)


@pytest.mark.one_thread
@both_backends
def test_it_serves_and_says_so(arm):
    with serving(arm, "applications:app") as program:
        status, headers, body = program.get("/")
        assert (status, body) == (200, b"hello")
        assert headers["server"] == "ringloop"
        assert headers["date"]
        port = program.address[1]
        pid = program.process.pid
        assert program.stop() == -signal.SIGTERM
        expected = [
            f"INFO:     Started server process [{pid}]",
            "INFO:     Waiting for application startup.",
            "startup",
            "INFO:     Application startup complete.",
            f"INFO:     Ringloop running on http://127.0.0.1:{port} with {arm} (Press CTRL+C to quit)",
            'INFO:     127.0.0.1:# - "GET / HTTP/1.1" 200 OK',
            "INFO:     Shutting down",
            "INFO:     Waiting for application shutdown.",
            "shutdown",
            "INFO:     Application shutdown complete.",
            f"INFO:     Finished server process [{pid}]",
        ]
        lines = re.sub(r"127.0.0.1:\d+ -", "127.0.0.1:# -", program.output).splitlines()
        # The server may not have seen yet that the client has gone.
        waiting = "INFO:     Waiting for connections to close. (CTRL+C to force quit)"
        assert [line for line in lines if line != waiting] == expected


def test_an_interrupt_ends_it_with_status_0_as_it_does_uvicorn(arm):
    with serving(arm, "applications:app") as program:
        program.get("/")
        assert program.stop(signal.SIGINT) == 0
        assert "Traceback" not in program.output
        assert "shutdown" in program.output.splitlines()


# Modules that a plain server does not need: they would take time at each start, and so in thousands of tests.
RARELY_NEEDED = {
    *("argparse", "configparser", "ctypes", "difflib", "email.utils", "json", "mimetypes"),
    *("multiprocessing", "pathlib", "platform", "random", "shlex", "tomllib"),
    *("ringloop._watchdog", "ringloop.http._processes", "ringloop.http._reload", "ringloop.http._static"),
}
SHOWS_MODULES = """
import sys

async def app(scope, receive, send):
    assert scope["type"] == "http"
    body = " ".join(sys.modules).encode()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})
"""


def test_a_start_imports_what_it_needs_and_a_request_nothing(arm, tmp_path):
    (tmp_path / "shows.py").write_text(SHOWS_MODULES)
    source = "import asyncio, click, logging.config, sys; print(*sys.modules)"
    needed = subprocess.run(
        [sys.executable, "-c", source], stdout=subprocess.PIPE, text=True, check=True
    ).stdout.split()
    with serving(arm, "shows:app", cwd=tmp_path) as program:
        first, second = (set(program.get("/")[2].decode().split()) for _ in range(2))
    assert "ringloop.http._server" in first
    assert (RARELY_NEEDED & first).difference(needed) == set()
    assert second == first


def test_python_m_ringloop_serve(arm):
    with serving(arm, command=[sys.executable, "-m", "ringloop", "serve", "--help"]) as program:
        assert program.wait() == 0
        assert "Usage: python -m ringloop serve [OPTIONS] MODULE:ATTRIBUTE" in program.output


@pytest.mark.parametrize("name", ["make", "app", "instance", "without_lifespan", "of_asgi2"])
def test_applications_of_all_kinds(arm, name):
    options = ("--factory",) if name == "make" else ()
    with serving(arm, f"applications:{name}", *options) as program:
        status, _, body = program.get("/")
        assert status == 200
        assert name != "of_asgi2" or body == b"asgi 2.0"
        assert program.stop() == -signal.SIGTERM
        unsupported = "ASGI 'lifespan' protocol appears unsupported." in program.output
        assert unsupported == (name == "without_lifespan")


def test_a_factory_is_detected_with_a_warning(arm):
    with serving(arm, "applications:make") as program:
        assert program.get("/")[0] == 200
        assert "WARNING:  ASGI app factory detected." in program.output


@pytest.mark.many_cases(short=3)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere:app",), 'Could not import module "nowhere".'),
        (("applications:nothing",), 'Attribute "nothing" not found in module "applications".'),
        (("applications",), 'must be in format "<module>:<attribute>"'),
        (("applications:failing",), "no database"),
        (("applications:without_lifespan", "--lifespan", "on"), "Exception in 'lifespan' protocol"),
        (("applications:make_with_arguments", "--factory"), "Error loading ASGI app factory"),
        (("applications:app", "--fd", "99"), "descriptor 99: Bad file descriptor"),
        (
            ("applications:app", "--log-config", "/dev/null"),
            "The logging configuration '/dev/null' can't be used: ",
        ),
        (("applications:app", "--uds", "/nowhere/at/all"), "/nowhere/at/all: No such file or directory"),
        (("applications:app", "--host", "a..b"), "a..b:0: "),
        (
            ("applications:app", "--ssl-certfile", "/nowhere"),
            "TLS can't be set up: [Errno 2] No such file or directory: '/nowhere'",
        ),
    ],
)
def test_what_cannot_start_ends_with_status_3(arm, arguments, message):
    status, output = fails(arm, *arguments)
    assert status == 3
    assert message in output
    if "Exception in" not in message:
        assert "Traceback" not in output


REFUSED = """
import sys
sys.path.insert(0, {!r})
import support
support.refuse_io_uring(1)
from ringloop.__main__ import main
sys.exit(main())
"""


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize(
    ("variable", "option", "who"),
    [
        ("io_uring", (), "RINGLOOP_BACKEND"),
        ("", ("--backend", "io_uring"), "the configuration"),
    ],
    ids=["environment", "option"],
)
def test_a_backend_that_is_refused_ends_with_status_3(arm, workers, variable, option, who):
    support.needs_seccomp()
    command = [sys.executable, "-c", REFUSED.format(os.path.dirname(support.__file__)), "serve", "applications:app"]
    command += ["--port", "0", "--workers", workers, *option]
    status, output = fails(arm, command=command, env={"RINGLOOP_BACKEND": variable})
    assert status == 3
    message = f"io_uring is forced by {who}, but io_uring_setup was refused with EPERM .*\n"
    assert re.fullmatch(f"ERROR:    The event loop can't be made: {message}", output)


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("RINGLOOP_BUSY_POLL", "fast", "'fast' is not a valid busy_poll value; use "),
        ("RINGLOOP_BACKEND", "kqueue", 'unknown backend "kqueue": use io_uring, epoll or auto\n'),
    ],
)
def test_a_wrong_setting_of_the_loop_ends_with_status_3(arm, workers, name, value, message):
    status, output = fails(arm, "applications:app", "--workers", workers, env={name: value})
    assert status == 3
    assert output.startswith(f"ERROR:    The event loop can't be made: {name}: {message}")
    assert output.count("\n") == 1


def test_a_port_that_is_taken(arm, tmp_path):
    (tmp_path / "telling.py").write_text("print('imported')\nfrom applications import app\n")
    with socket.create_server((support.HOST, 0)) as listener:
        port = listener.getsockname()[1]
        status, output = fails(arm, "telling:app", "--port", str(port), cwd=tmp_path)
        assert status == 3
        message = (
            f"error while attempting to bind on address ('127.0.0.1', {port}): {os.strerror(errno.EADDRINUSE).lower()}"
        )
        assert f"ERROR:    [Errno 98] {message}; `ss -ltnp` shows by which process\n" in output
        assert "imported" not in output


def test_a_port_that_is_taken_while_the_application_starts(arm, tmp_path):
    """Both have the port, and the one that starts first may listen."""
    listen = "import os, socket\nsock = socket.socket()\nsock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n"
    listen += "sock.bind(('127.0.0.1', int(os.environ['TAKEN'])))\nsock.listen()\nfrom applications import app\n"
    (tmp_path / "taking.py").write_text(listen)
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind((support.HOST, 0))
        port = str(free.getsockname()[1])
        status, output = fails(arm, "taking:app", "--port", port, cwd=tmp_path, env={"TAKEN": port})
        assert status == 3
        assert "ERROR:    [Errno 98] Address already in use; `ss -ltnp` shows by which process\n" in output
        # It had started before, and is told.
        assert "shutdown" in output.splitlines()


@pytest.mark.parametrize("workers", ["1", "2"])
def test_it_says_where_it_runs_once_it_can_be_connected_to(arm, tmp_path, workers):
    """The application waits for a file, until which the port is refused."""
    (tmp_path / "waiting.py").write_text(
        "import os, time\nprint('waits', flush=True)\nwhile not os.path.exists('go'):\n    time.sleep(0.01)\n"
        "from applications import app\n"
    )
    with serving(arm, "waiting:app", "--workers", workers, cwd=tmp_path) as program:
        program.wait_for("waits")
        assert "running on" not in program.output
        (tmp_path / "go").touch()
        with socket.create_connection(program.address):
            pass
        assert program.get("/")[0] == 200
        assert program.output.count("running on") == 1
        program.stop()


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize(
    ("content", "first"),
    [
        ("import missing_thing\n", '  File "{path}", line 1, in <module>\n'),
        ("def make():\n    raise KeyError('a')\napp = make()\n", '  File "{path}", line 3, in <module>\n'),
        ("def app():\n    raise KeyError('a')\n", '  File "{path}", line 2, in app\n'),
        ("x = (\n", '  File "{path}", line 1\n'),
    ],
    ids=["import", "call", "factory", "syntax"],
)
def test_errors_of_the_import_are_the_users(arm, tmp_path, content, first, workers):
    """The traceback begins in the user's file."""
    path = tmp_path / "wrong.py"
    path.write_text(content)
    status, output = fails(arm, "wrong:app", "--app-dir", str(tmp_path), "--workers", workers)
    assert status == (1 if workers == "1" else 3)
    assert first.format(path=path) in output
    for theirs in ("importlib", "ringloop/", "asyncio/", "multiprocessing/", "click/"):
        assert theirs not in output, output


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("main.py", 'Import string "main.py" must be in format "<module>:<attribute>". Did you mean "main:app"?'),
        ("main", 'Import string "main" must be in format "<module>:<attribute>". Did you mean "main:app"?'),
        ("main.py:api", 'Could not import module "main.py". Did you mean "main:api"?'),
        ("src/main.py:app", 'Could not import module "src/main.py". Did you mean "src.main:app"?'),
        ("./main.py:app", 'Could not import module "./main.py". Did you mean "main:app"?'),
        ("/srv/x-y/main.py", 'Did you mean "--app-dir /srv/x-y main:app"?'),
        ("applications:ap", 'Attribute "ap" not found in module "applications". Did you mean "applications:app"?'),
        ("applications:os.pth", 'Did you mean "applications:os.path"?'),
        ("applications:__name__", '"applications:__name__" is no application: a str can\'t be called.'),
        ("os:getpid", "What the factory returns is no application: a int can't be called."),
    ],
)
def test_wrong_names_get_an_answer(arm, tmp_path, name, message):
    (tmp_path / "main.py").write_text("raise SystemExit('imported')\n")
    status, output = fails(arm, name, cwd=tmp_path)
    assert status == 3
    assert "ERROR:    Error loading ASGI app. " in output
    assert message in output
    assert "Traceback" not in output and "imported" not in output


def test_a_module_py_of_a_package_is_one(arm, tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "py.py").write_text("from applications import app\n")
    with serving(arm, "package.py:app", cwd=tmp_path) as program:
        assert program.get("/")[0] == 200


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("srve", "main:app"),
        ("srve --port 1", "main:app --port 1"),
        ("run main:app --port 1", "main:app --port 1"),
        ("main:app", "main:app"),
        ("main.py --port 1", "main:app --port 1"),
        ("main.py:api", "main:api"),
    ],
)
def test_wrong_commands_get_an_answer(arm, words, meant):
    with serving(arm, command=[*RINGLOOP, *shlex.split(words)]) as program:
        assert program.wait() == 2
        assert program.output.endswith(f". Did you mean: python -m ringloop serve {meant}\n")


def test_a_directory_that_does_not_exist_is_named(arm):
    import ringloop

    status, output = fails(arm, "applications:app", "--app-dir", "/nowhere")
    assert status == 2
    assert output.endswith("Error: Invalid value for '--app-dir': Directory '/nowhere' does not exist.\n")
    with pytest.raises(ValueError, match="app_dir: there is no directory '/nowhere'"):
        ringloop.serve("applications:app", app_dir="/nowhere")


@both_backends
def test_a_unix_socket_keeps_its_mode_and_is_removed(arm, tmp_path):
    path = tmp_path / "socket"
    for mode in (0o666, 0o600):
        if mode == 0o600:
            with socket.socket(socket.AF_UNIX) as left_over:
                left_over.bind(str(path))
            path.chmod(mode)
        with serving(arm, "applications:app", "--uds", str(path)) as program:
            assert program.get("/")[0] == 200
            assert stat.S_IMODE(path.stat().st_mode) == mode
            assert f"Ringloop running on unix socket {path} with {arm} (Press" in program.output
            assert program.get_json("/scope")["client"] is None
            assert program.stop() == -signal.SIGTERM
        assert not path.exists()


def test_a_file_that_is_no_socket_stays(arm, tmp_path):
    path = tmp_path / "file"
    path.write_text("precious")
    status, output = fails(arm, "applications:app", "--uds", str(path))
    assert status == 3
    assert os.strerror(errno.EADDRINUSE) in output
    assert path.read_text() == "precious"


def test_a_socket_that_another_server_has_put_there_stays(arm, tmp_path):
    path = tmp_path / "socket"
    with serving(arm, "applications:app", "--uds", str(path)) as old:
        old.get("/pid")
        with serving(arm, "applications:app", "--uds", str(path)) as new:
            assert new.get("/pid")[2] == str(new.process.pid).encode()
            old.stop()
            assert new.get("/pid")[2] == str(new.process.pid).encode()


def test_a_server_that_fails_leaves_the_socket_of_another_alone(arm, tmp_path):
    path = tmp_path / "socket"
    (tmp_path / "wrong.py").write_text("raise ValueError\n")
    with serving(arm, "applications:app", "--uds", str(path)) as first:
        first.get("/pid")
        assert fails(arm, "wrong:app", "--app-dir", str(tmp_path), "--uds", str(path))[0] == 1
        assert first.get("/pid")[0] == 200


def test_a_descriptor(arm):
    with socket.create_server((support.HOST, 0)) as listener:
        descriptor = listener.fileno()
        with serving(arm, "applications:app", "--fd", str(descriptor), pass_fds=[descriptor]) as program:
            assert program.address == listener.getsockname()
            assert program.get("/")[0] == 200


def test_a_descriptor_that_cannot_be_listened_on(arm):
    with socket.socket(type=socket.SOCK_DGRAM) as sock:
        sock.bind((support.HOST, 0))
        descriptor = sock.fileno()
        message = "not a stream socket, but the server needs one that it can listen on"
        status, output = fails(arm, "applications:app", "--fd", str(descriptor), pass_fds=[descriptor])
        assert status == 3
        assert f"ERROR:    descriptor {descriptor}: {message}\n" in output
        command = [sys.executable, "-c", LISTEN_FDS, str(descriptor), *RINGLOOP, "serve", "applications:app"]
        status, output = fails(arm, command=command, pass_fds=[descriptor])
        assert status == 3
        assert f"ERROR:    descriptor 3 of LISTEN_FDS: {message}\n" in output
        assert "Traceback" not in output


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_standard_streams_that_are_closed(arm, closed):
    """Python then has None for them. Nothing is logged, or all of it."""
    with socket.create_server((support.HOST, 0)) as listener:
        descriptor = str(listener.fileno())
        command = [*RINGLOOP, "serve", "applications:app", "--fd", descriptor]
        shell = ["sh", "-c", f'exec "$@" {closed}', "sh", *command]
        with serving(arm, command=shell, pass_fds=[listener.fileno()]) as program:
            program.address = listener.getsockname()
            assert program.get("/")[0] == 200
            assert program.stop() == -signal.SIGTERM


LISTEN_FDS = """
import os, sys
descriptor = int(sys.argv.pop(1))
os.dup2(descriptor, 3, inheritable=True)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1", LISTEN_FDNAMES="http")
os.execv(sys.argv[1], sys.argv[1:])
"""


def test_systemds_sockets(arm):
    with socket.create_server((support.HOST, 0)) as listener:
        descriptor = listener.fileno()
        command = [sys.executable, "-c", LISTEN_FDS, str(descriptor), *RINGLOOP, "serve", "applications:app"]
        with serving(arm, command=command, pass_fds=[descriptor]) as program:
            assert program.address == listener.getsockname()
            environment = program.get_json("/environment")
            assert not [name for name in environment if name.startswith("LISTEN_")]


def test_others_listen_variables_are_not_ours(arm):
    with serving(arm, "applications:app", env={"LISTEN_PID": "1", "LISTEN_FDS": "1"}) as program:
        assert program.get_json("/environment")["LISTEN_PID"] == "1"


@pytest.mark.parametrize("host", ["localhost", "::1", ""])
def test_hosts(arm, host):
    if not support.has_ipv6():
        pytest.skip("the loopback interface has no IPv6")
    with serving(arm, "applications:app", "--host", host) as program:
        assert program.get("/")[0] == 200
        found = socket.getaddrinfo(host or None, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        program.wait_for("Ringloop running on", len({address for *_, address in found}))
        ports = set(re.findall(r"running on http://\S+:(\d+) ", program.output))
        assert len(ports) == 1, "all addresses have the same port"


def test_the_port_opens_when_the_application_has_started(arm, tmp_path):
    gate = tmp_path / "gate"
    port = support.free_port()
    with serving(arm, "applications:slow_to_start", "--port", str(port), env={"GATE": str(gate)}) as program:
        program.wait_for("starting")
        with socket.socket() as client:
            assert client.connect_ex((support.HOST, port)) != 0
        gate.touch()
        assert program.get("/")[2] == b"at last"


def test_a_signal_during_the_start_ends_it_afterwards(arm, tmp_path):
    gate = tmp_path / "gate"
    with serving(arm, "applications:slow_to_start", env={"GATE": str(gate)}) as program:
        program.wait_for("starting")
        program.send(signal.SIGTERM)
        gate.touch()
        assert program.wait() == -signal.SIGTERM
        assert "Application shutdown complete." in program.output


def test_a_second_interrupt_ends_a_start_that_hangs(arm, tmp_path):
    with serving(arm, "applications:slow_to_start", env={"GATE": str(tmp_path / "never")}) as program:
        program.wait_for("starting")
        interrupt_until_it_ends(program)
        # One more of them may end what is left of the process.
        assert program.wait() in (3, -signal.SIGINT)


def interrupt_until_it_ends(program):
    """Send interrupts; one that comes before the last was handled is merged with it by the kernel."""
    while program.process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            program.send(signal.SIGINT)
        with contextlib.suppress(Exception):
            program.process.wait(0.2)


@both_backends
def test_idle_connections_do_not_delay_the_end(arm):
    options = ("--timeout-graceful-shutdown", "1000")
    with serving(arm, "applications:app", *options) as program, contextlib.closing(program.client()) as client:
        client.request("GET", "/")
        client.getresponse().read()
        assert program.stop() == -signal.SIGTERM
        assert client.sock.recv(1) == b""


@both_backends
def test_streams_hear_of_the_end(arm):
    with serving(arm, "applications:app", "--timeout-graceful-shutdown", "1") as program:
        with begin(program, "/stream") as sock:
            program.send(signal.SIGTERM)
            while sock.recv(65536):
                pass
        assert program.wait() == -signal.SIGTERM
        lines = program.output.splitlines()
        assert lines.index("heard http.disconnect") < lines.index("shutdown")


@both_backends
def test_requests_that_do_not_end_are_cancelled_at_the_deadline(arm):
    with serving(arm, "applications:app", "--timeout-graceful-shutdown", "0.2") as program:
        with begin(program, "/stubborn"):
            assert program.stop() == -signal.SIGTERM
        lines = program.output.splitlines()
        assert "ERROR:    Cancel 1 running task(s), timeout graceful shutdown exceeded" in lines
        assert lines.index("cancelled") < lines.index("shutdown")


@both_backends
def test_a_second_interrupt_ends_at_once(arm):
    with serving(arm, "applications:app", "--timeout-graceful-shutdown", "1000") as program:
        with begin(program, "/stubborn"):
            interrupt_until_it_ends(program)
        assert program.wait() in (0, -signal.SIGINT)
        assert "cancelled" in program.output.splitlines()
        assert "shutdown" not in program.output.splitlines()


@both_backends
@pytest.mark.parametrize("options", [(), ("--workers", "2")])
def test_tasks_that_ignore_cancellation_do_not_block_the_end(arm, options):
    """One interrupt is enough, and the log says which they are."""
    with serving(arm, "applications:app", "--timeout-graceful-shutdown", "0.2", *options) as program:
        with begin(program, "/deaf"):
            assert program.stop(signal.SIGINT) == 0
        assert "shutdown" in program.output.splitlines()
        said = "ERROR:    A task did not end when it was cancelled: <Task .*"
        assert re.search(said + r"application\(\) running at .*applications\.py", program.output)
        # SIGTERM, which workers get, ends the process before it comes to other tasks than those of requests.
        assert bool(options) != bool(re.search(said + "in the background", program.output))
        assert "Task was destroyed" not in program.output


def test_a_second_interrupt_ends_an_application_that_does_not_end(arm):
    with serving(arm, "applications:hanging_shutdown") as program:
        program.get("/")
        program.send(signal.SIGINT)
        program.wait_for("hanging")
        interrupt_until_it_ends(program)
        assert program.wait() in (0, -signal.SIGINT)


@both_backends
@pytest.mark.parametrize("options", [(), ("--workers", "1", "--workers-lifetime", "9999")])
def test_the_deadline_is_for_the_end_of_the_application_too(arm, options):
    with serving(arm, "applications:hanging_shutdown", "--timeout-graceful-shutdown", "0.2", *options) as program:
        program.get("/")
        assert program.stop(signal.SIGINT) == 0
        lines = program.output.splitlines()
        said = "ERROR:    Application shutdown did not complete in time, timeout graceful shutdown exceeded"
        assert lines.index("hanging") < lines.index(said)
        assert not any(line.startswith("Traceback") for line in lines)


def test_an_application_that_fails_to_end_is_reported(arm):
    with serving(arm, "applications:broken_shutdown") as program:
        program.get("/")
        assert program.stop() == -signal.SIGTERM
        assert "ValueError: cannot end" in program.output
        assert "ERROR:    Application shutdown failed. Exiting." in program.output


@pytest.mark.one_thread
def test_a_limit_of_requests(arm):
    with serving(arm, "applications:app", "--limit-max-requests", "2") as program:
        program.get("/")
        program.get("/")
        assert program.wait() == 0
        assert "Maximum request limit of 2 exceeded. Terminating process." in program.output
        assert "shutdown" in program.output.splitlines()


def test_headers_and_root_path(arm):
    options = ("--header", "X-One: 1", "--header", "server:mine", "--no-date-header", "--root-path", "/mounted")
    with serving(arm, "applications:app", *options) as program:
        status, headers, body = program.get("/scope")
        assert status == 200
        assert (headers["x-one"], headers.get_all("server"), headers["date"]) == ("1", ["mine"], None)
        assert b'"root_path": "/mounted"' in body
    with serving(arm, "applications:app", "--no-server-header") as program:
        assert program.get("/")[1]["server"] is None


def test_state_of_the_lifespan(arm):
    with serving(arm, "applications:app") as program:
        assert program.get_json("/scope")["state"] == {"begun": "in lifespan"}
    with serving(arm, "applications:app", "--lifespan", "off") as program:
        assert program.get_json("/scope")["state"] is None


def test_proxies(arm):
    headers = {"X-Forwarded-For": "203.0.113.7", "X-Forwarded-Proto": "https"}
    with serving(arm, "applications:app") as program:
        scope = program.get_json("/scope", headers=headers)
        assert (scope["client"], scope["scheme"]) == (["203.0.113.7", 0], "https")
        program.wait_for(r'203.0.113.7:0 - "GET /scope HTTP/1.1" 200 OK')
    for options, env in (
        (("--no-proxy-headers",), {}),
        (("--forwarded-allow-ips", "10.0.0.0/8"), {}),
        ((), {"FORWARDED_ALLOW_IPS": "10.1.2.3"}),
    ):
        with serving(arm, "applications:app", *options, env=env) as program:
            scope = program.get_json("/scope", headers=headers)
            assert (scope["client"][0], scope["scheme"]) == (support.HOST, "http")


def test_an_environment_file(arm, tmp_path):
    pytest.importorskip("dotenv", reason="python-dotenv is not installed")
    (tmp_path / "env").write_text("GREETING=good morning\nFORWARDED_ALLOW_IPS=10.0.0.1\n")
    with serving(arm, "applications:app", "--env-file", str(tmp_path / "env")) as program:
        assert program.get_json("/environment")["GREETING"] == "good morning"
        assert program.get_json("/scope", headers={"X-Forwarded-For": "1.2.3.4"})["client"][0] == support.HOST


def test_options_from_the_environment(arm):
    env = {"UVICORN_APP": "applications:app", "UVICORN_HEADERS": "x-a:1 x-b:2", "RINGLOOP_ACCESS_LOG": "false"}
    env |= {"UVICORN_HOST": "nowhere.invalid", "RINGLOOP_HOST": "127.0.0.1", "UVICORN_ROOT_PATH": "/env"}
    with serving(arm, env=env) as program:
        _, headers, body = program.get("/scope")
        assert (headers["x-a"], headers["x-b"]) == ("1", "2")
        assert b'"root_path": "/env"' in body
        program.stop()
        assert "GET" not in program.output


def test_uvicorns_options_are_taken(arm):
    """Those that mean nothing here are named."""
    options = ("--loop", "uvloop", "--http", "httptools", "--ws", "none", "--h11-max-incomplete-event-size", "1000")
    with serving(arm, "applications:app", *options) as program:
        assert program.get("/")[0] == 200
        warnings = [line for line in program.output.splitlines() if line.startswith("WARNING")]
        assert warnings == [
            "WARNING:  'loop' has no effect: ringloop serve always runs on ringloop.",
            "WARNING:  'http' has no effect: there is one implementation.",
        ]


def test_mistakes_on_the_command_line(arm):
    for arguments, message in (
        ((), "Missing argument 'MODULE:ATTRIBUTE'"),
        (("applications:app", "--header", "nonsense"), "'nonsense' is not of the form Name:Value"),
        (("applications:app", "--port", "70000"), "70000 is too large: the maximum is 65535."),
        (("applications:app", "--port", "abc"), "'abc' is not a valid integer. Use a whole number from 0 to 65535."),
        (("applications:app", "--workers", "0"), "0 is not in the range x>=1. Use a whole number from 1 on."),
        (("applications:app", "--timeout-head", "x"), "Use a number of seconds from 0, up to 1000000000."),
        (("applications:app", "--nonsense"), "No such option"),
    ):
        status, output = fails(arm, *arguments)
        assert (status, "Traceback" in output) == (2, False)
        assert message in output


def test_version(arm):
    import ringloop

    status, output = fails(arm, "--version")
    assert status == 0
    assert output.startswith(f"Running ringloop {ringloop.__version__} with CPython ")


WITHOUT = "import sys; sys.modules[{!r}] = None; from ringloop.__main__ import main; sys.exit(main())"


@pytest.mark.parametrize(
    ("module", "arguments", "message"),
    [
        ("click", (), "ringloop serve needs click: pip install 'ringloop[serve]'\n"),
        ("watchfiles", ("--reload",), "--reload needs watchfiles: pip install watchfiles\n"),
        ("dotenv", ("--env-file", __file__), "--env-file needs python-dotenv: pip install python-dotenv\n"),
        ("yaml", ("--log-config", "{tmp_path}/log.yaml"), "--log-config with a YAML file needs PyYAML: pip install"),
    ],
)
def test_what_is_missing_is_named(arm, tmp_path, module, arguments, message):
    (tmp_path / "log.yaml").write_text("version: 1\n")
    arguments = [argument.format(tmp_path=tmp_path) for argument in arguments]
    command = [sys.executable, "-c", WITHOUT.format(module), "serve"]
    status, output = fails(arm, command=[*command, "applications:app", "--port", "0", *arguments])
    assert status == 3
    assert message in output
    assert "Traceback" not in output


@both_backends
def test_it_runs_on_the_backend_that_was_asked_for(arm, tmp_path):
    other = "epoll" if arm == "io_uring" else "io_uring"
    source = (
        "import asyncio\nasync def app(scope, receive, send):\n"
        "    assert scope['type'] == 'http'\n"
        "    body = asyncio.get_running_loop().backend.encode()\n"
        "    await send({'type': 'http.response.start', 'status': 200, 'headers': []})\n"
        "    await send({'type': 'http.response.body', 'body': body})\n"
    )
    (tmp_path / "tell.py").write_text(source)
    with serving(other, "tell:app", "--app-dir", str(tmp_path), "--backend", arm) as program:
        assert program.get("/")[2] == arm.encode()


@both_backends
def test_the_backend_in_the_environment_may_have_any_case_and_spaces(arm, tmp_path):
    with serving(f" {arm.upper()} ", "applications:app") as program:
        assert program.get("/")[0] == 200
