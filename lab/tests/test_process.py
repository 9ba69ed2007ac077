"""Servers that misbehave, and a lab that is interrupted at a bad moment: whatever was started ends, and what it did is told."""

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
import time
import tracemalloc
import venv
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from click.testing import CliRunner

from conftest import CALL_SOON, FAST, MakeTargets, command_of, lives, wait_until_gone, worker_of
from ringlab import cli, execution, guarded, manifest, process, session, system_calls

pytestmark = [pytest.mark.usefixtures("fake_load"), pytest.mark.timeout(300)]


def wait_for(path: Path, started: "subprocess.Popen[str]") -> str:
    """Return what a file says once it says something."""
    while not path.exists() or not path.read_text().strip():
        assert started.poll() is None, started.communicate()[0]
        time.sleep(0.02)
    return path.read_text()


def command_line(pid: int) -> str:
    """Return the command line of a process, nothing if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def child_of(server: process.Server) -> int:
    return int(next(line for line in server.lines if line.startswith("child")).split()[1])


@pytest.mark.parametrize("fault", ["child", "daemon"])
def test_what_a_server_started_ends_with_it(fault: str, make_targets: MakeTargets) -> None:
    (arm,) = manifest.discover(make_targets(one=1.0, faults={"one": fault}))
    with process.Server(arm, "echo", 1) as server:
        child = child_of(server)
        assert lives(child)
    wait_until_gone(child)


def test_an_interrupt_while_a_server_ends_leaves_nothing_behind(
    make_targets: MakeTargets, monkeypatch: pytest.MonkeyPatch
) -> None:
    (arm,) = manifest.discover(make_targets(one=1.0, faults={"one": "stubborn"}))
    arm = replace(arm, stop=replace(arm.stop, timeout_s=600))

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1))
    try:
        with pytest.raises(KeyboardInterrupt), process.Server(arm, "echo", 1) as server:
            send_signal = server.process.send_signal

            def send(number: int) -> None:
                send_signal(number)
                timer.start()

            monkeypatch.setattr(server.process, "send_signal", send)
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)
    wait_until_gone(server.pid)


def test_a_server_may_print_without_end(make_targets: MakeTargets) -> None:
    (arm,) = manifest.discover(make_targets(one=1.0, faults={"one": "endless"}))
    arm = replace(arm, ready=replace(arm.ready, timeout_s=200))
    tracemalloc.start()
    try:
        with process.Server(arm, "echo", 1) as server:
            assert tracemalloc.get_traced_memory()[1] < 100_000_000, "512 MB were printed, and aren't kept"
            assert server.stop().complaint == ""
    finally:
        tracemalloc.stop()


def test_what_is_no_port_is_not_taken_for_one(make_targets: MakeTargets) -> None:
    (arm,) = manifest.discover(make_targets(one=1.0, faults={"one": "no-port"}))
    with process.Server(arm, "echo", 1) as server:
        assert 0 < server.port < 65536
        process.verify(server)


def test_another_server_at_the_port_is_not_measured(make_targets: MakeTargets, monkeypatch: pytest.MonkeyPatch) -> None:
    (arm,) = manifest.discover(make_targets(one=1.0, connect=True, faults={"one": "elsewhere"}))
    with socket.create_server(("127.0.0.1", 0)) as foreign:
        port = foreign.getsockname()[1]
        monkeypatch.setattr(process, "free_port", lambda host: port)
        with (
            pytest.raises(
                process.SampleFailed, match=f"process {os.getpid()}, which isn't the server's, listens on port"
            ),
            process.Server(arm, "echo", 1) as server,
        ):
            process.verify(server)


@pytest.mark.parametrize("fault", ["worker-leaves", "bare-worker-leaves", "hands-over"])
def test_a_worker_that_has_left_the_servers_tree_is_one_of_its_processes(fault: str, make_targets: MakeTargets) -> None:
    """The second has an empty environment and a session of its own, and so has the third, which is handed each connection."""
    (arm,) = manifest.discover(make_targets(one=1.0, faults={"one": fault}))
    with process.Server(arm, "echo", 1) as server:
        process.verify(server)
        worker = worker_of(server)
        assert execution.account_words(server) == [
            "--account", str(server.pid), "--account-below", str(server.guardian)
        ]  # fmt: skip
    wait_until_gone(worker)


@pytest.mark.parametrize("fault", ["", "hands-over", "hands-outside"])
def test_a_worker_that_the_server_has_not_started_is_found(fault: str, outside: int, make_targets: MakeTargets) -> None:
    (arm,) = manifest.discover(make_targets(one=1.0, faults={"one": fault}))
    message = rf"process {outside} \(.*\) has connections to the server and isn't below it"
    with process.Server(arm, "echo", 1) as server, socket.create_connection((server.host, server.port)) as client:
        client.sendall(b"hello")
        assert client.recv(5) == b"hello"
        with pytest.raises(process.SampleVoid, match=message) if fault == "hands-outside" else contextlib.nullcontext():
            process.check_owners(server)


def test_nothing_in_a_servers_environment_is_of_the_lab(
    make_targets: MakeTargets, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RINGLAB_PYTHON", sys.executable)
    (arm,) = manifest.discover(make_targets(one=1.0))
    with process.Server(arm, "echo", 1) as server:
        variables = Path(f"/proc/{server.pid}/environ").read_text().split("\0")
    assert [each for each in variables if "RINGLAB" in each.upper()] == []


def test_a_worker_that_has_left_the_servers_tree_and_takes_too_much_memory_is_ended(make_targets: MakeTargets) -> None:
    (arm,) = manifest.discover(make_targets(one=1.0, faults={"one": "worker-leaves-leaks"}))
    with process.Server(arm, "echo", 1) as server:
        process.verify(server)
        worker = worker_of(server)
        with (
            pytest.raises(process.SampleFailed, match="the server's memory grew from"),
            process.MemoryWatch(server, 60e6),
            socket.create_connection((server.host, server.port)) as client,
        ):
            client.sendall(b"more")
            wait_until_gone(worker)


def test_a_program_that_starts_others_ends_with_them(make_targets: MakeTargets) -> None:
    (arm,) = manifest.discover(make_targets(one=1.0))
    before = set(process.psutil.pids())
    inner = "setsid sleep 600.25 & sleep 600.25"
    with pytest.raises(process.SampleFailed, match="it didn't end within 0 s"):
        process.run_program(arm, ["sh", "-c", inner], 0.3)
    assert [pid for pid in set(process.psutil.pids()) - before if "600.25" in command_line(pid)] == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_build_ends_with_the_lab(number: signal.Signals, make_targets: MakeTargets, tmp_path: Path) -> None:
    folder, marker = make_targets(one=1.0), tmp_path / "pid"
    path = folder / "one" / manifest.FILE_NAME
    path.write_text(
        path.read_text() + f'[build]\ncommand = "echo $$ > {marker}; sleep 600"\nartefact = "{marker}.not"\n'
    )
    words = ("run", CALL_SOON, *FAST, "--targets-folder", folder, "--output", tmp_path / "out")
    lab = subprocess.Popen(command_of(*words), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    pid = int(wait_for(marker, lab))
    lab.send_signal(number)
    printed, _ = lab.communicate(timeout=60)
    assert lab.returncode == session.EXIT_INTERRUPTED, printed
    assert "interrupted" in printed
    wait_until_gone(pid)


@pytest.mark.parametrize("what", ["loops", "build"])
def test_what_was_started_ends_with_a_lab_that_is_killed(what: str, make_targets: MakeTargets, tmp_path: Path) -> None:
    folder, marker = make_targets(one=1.0), tmp_path / "pid"
    path = folder / "one" / manifest.FILE_NAME
    inner = f"sleep 600 & echo $! > {marker}; wait"
    lines = path.read_text().splitlines()
    if what == "loops":
        lines = [f"loops = \"sh -c '{inner}'\"" if line.startswith("loops") else line for line in lines]
    else:
        lines += ["[build]", f'command = "{inner}"', 'artefact = "none"']
    path.write_text("\n".join(lines))
    words = ("run", CALL_SOON, *FAST, "--targets-folder", folder, "--output", tmp_path / "out")
    lab = subprocess.Popen(command_of(*words), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    pid = int(wait_for(marker, lab))
    lab.kill()
    lab.communicate(timeout=60)
    wait_until_gone(pid)


KILLED_LAB = """
import os, signal, subprocess
from ringlab import guarded
child = guarded.Guarded(["sleep", "600"], stdout=subprocess.DEVNULL)
print(child.first, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_guardian_whose_lab_is_gone_before_it_has_listened_ends_the_command(tmp_path: Path) -> None:
    """The kernel then resets the connection to the lab, and doesn't end it."""
    line, other = socket.socketpair()
    marker = tmp_path / "pid"
    words = [sys.executable, "-IS", guarded.GUARDIAN, str(other.fileno()), "sh", "-c", f"echo $$ > {marker}; sleep 600"]
    with other, subprocess.Popen(words, pass_fds=[other.fileno()]) as guardian:
        other.close()
        with line:
            # What is said is there, and isn't read.
            assert select.select([line], [], [])[0] == [line]
            while not marker.exists() or not marker.read_text():
                time.sleep(0.01)
        assert guardian.wait() == -signal.SIGKILL
    wait_until_gone(int(marker.read_text()))


def test_the_guardian_runs_nothing_from_the_current_folder(tmp_path: Path) -> None:
    for name in ("contextlib", "ctypes", "struct", "ringlab"):
        (tmp_path / f"{name}.py").write_text(f"open('{name}-was-imported', 'w')\nraise SystemExit\n")
    command = [sys.executable, "-P", "-c", KILLED_LAB]
    lab = subprocess.run(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, check=False)
    wait_until_gone(int(lab.stdout))
    assert list(tmp_path.glob("*-was-imported")) == []


def test_the_guardian_is_found_where_ringlab_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter has what ringlab needs, and ringlab is in the current folder only."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    venv.create(tmp_path, symlinks=True)
    own = next((tmp_path / "lib").glob("python*")) / "site-packages"
    for each in Path(sysconfig.get_path("purelib")).iterdir():
        if "ringlab" not in each.name and each.suffix != ".pth":
            (own / each.name).symlink_to(each)
    python = tmp_path / "bin" / "python"
    folder = Path(process.__file__).parents[1]
    assert subprocess.run([python, "-P", "-c", "import ringlab"], stderr=subprocess.DEVNULL, check=False).returncode
    lab = subprocess.run([python, "-c", KILLED_LAB], cwd=folder, stdout=subprocess.PIPE, text=True, check=False)
    wait_until_gone(int(lab.stdout))


@pytest.mark.parametrize("what", ["detect", "build"])
def test_what_has_just_begun_ends_with_the_lab(
    what: str, make_targets: MakeTargets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interrupt comes before Popen has returned, as where others have the CPU: nobody holds the process that has begun."""
    folder = make_targets(one=1.0)
    path = folder / "one" / manifest.FILE_NAME
    path.write_text(path.read_text() + {
        "detect": '[detect]\ncommands = ["sleep 600"]\nneeds = "a rest"\ninstall = "none"\n',
        "build": '[build]\ncommand = "sleep 600"\nartefact = "none"\n',
    }[what])  # fmt: skip
    begun: list[guarded.Guarded] = []

    popen = subprocess.Popen.__init__

    def interrupted(self: guarded.Guarded, command: list[str], **options: Any) -> None:
        popen(self, command, **options)
        if "sleep 600" in command:
            begun.append(self)
            raise KeyboardInterrupt

    monkeypatch.setattr(subprocess.Popen, "__init__", interrupted)
    words = ("run", CALL_SOON, *FAST, "--targets-folder", folder, "--output", tmp_path / "out")
    found = CliRunner().invoke(cli.main, list(map(str, words)))
    assert found.exit_code == session.EXIT_INTERRUPTED, found.output
    with begun[0] as started:
        assert started.wait() == -signal.SIGKILL


def test_a_counter_of_system_calls_that_is_interrupted_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []
    start = system_calls.Counter.start

    def interrupted(counter: system_calls.Counter, words: list[str]) -> None:
        start(counter, ["sleep", "600"])
        assert counter.process is not None
        started.append(counter.process)
        raise KeyboardInterrupt

    monkeypatch.setattr(system_calls.Counter, "start", interrupted)
    with pytest.raises(KeyboardInterrupt), system_calls.Counter("strace", [os.getpid()]):
        raise AssertionError
    assert started[0].returncode is not None


def has_ipv6() -> bool:
    """Return whether a socket can be bound to ::1."""
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


HAS_IPV6 = has_ipv6()


class Listening:
    """A server as far as it is looked at: this process, at a port."""

    def __init__(self, port: int) -> None:
        self.pid, self.port = os.getpid(), port


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6], ids=["ipv4", "ipv6"])
def test_sockets_are_found_by_their_ports(family: socket.AddressFamily) -> None:
    def inode(sock: socket.socket) -> int:
        return os.fstat(sock.fileno()).st_ino

    v6 = family == socket.AF_INET6
    if v6 and not HAS_IPV6:
        pytest.skip("no IPv6 here")
    try:
        process.sock_diag.at_port(1, process.sock_diag.TCP_LISTEN)
    except OSError as error:
        pytest.skip(f"no sock_diag here: {error}")
    host = "::" if v6 else process.HOST
    with socket.create_server((host, 0), family=family, dualstack_ipv6=v6) as listener:
        server: Any = Listening(listener.getsockname()[1])
        assert inode(listener) in process.inodes_of(server, None)
        for client_host in (process.HOST, "::1") if v6 else (process.HOST,):
            with socket.create_connection((client_host, server.port)) as client:
                assert process.inodes_of(server, client) == {0}
                accepted, _ = listener.accept()
                with accepted:
                    assert process.inodes_of(server, client) == {inode(accepted)}
                    listening = process.inodes_of(server, None)
                    assert inode(listener) in listening
                    assert inode(accepted) not in listening
        listened = inode(listener)
    assert listened not in process.inodes_of(server, None)


def test_the_kernel_is_not_asked_in_vain(make_targets: MakeTargets, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel without inet_diag answers as to a request that it doesn't know, and what an arm declares remains unknown."""
    monkeypatch.setattr(process.sock_diag, "SOCK_DIAG_BY_FAMILY", 0x7FFF)
    with pytest.raises(OSError):
        process.sock_diag.at_port(1, process.sock_diag.TCP_LISTEN)
    (arm,) = manifest.discover(make_targets(one=1.0))
    with process.Server(arm, "echo", 1) as server:
        found = {check.name: check for check in process.verify(server)}
        assert (found["nodelay"].status, found["backlog"].status) == ("unknown", "unknown")
        assert found["nodelay"].text.startswith("the kernel lists no such socket: ")
