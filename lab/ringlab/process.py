"""Servers as processes: start them, wait for them, inspect them while they run, and make sure that they end.

What an arm declares of its sockets is looked up on the live process: its descriptors are duplicated into this one by
pidfd_getfd(2), and asked. That needs the right to trace it, which one has on one's own children unless the machine forbids it.
"""

import contextlib
import ctypes
import itertools
import json
import math
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import psutil

from ringlab import figures, results, sock_diag
from ringlab.guarded import Guarded
from ringlab.manifest import APPLICATIONS, Arm, last_line

HOST = "127.0.0.1"
PIDFD_GETFD = 438
"""The number of the system call, which is the same on every architecture (since Linux 5.6)."""
TCP_INFO_BACKLOG_OFFSET = 28
"""Of tcpi_sacked in struct tcp_info: on a listening socket it holds the greatest backlog (tcp_get_info() in net/ipv4/tcp.c)."""
PROBE_TIMEOUT_S = 5.0
ACCEPT_TIMEOUT_S, ACCEPT_LOOK_S = 0.5, 0.005
"""How long a server may take to accept a connection on which it has nothing to answer, and how often that is looked up."""
ENDING_S = 10.0
"""How long a process that is about to end may take for the rest."""
PF_EXITING = 0x4
"""The flag of a thread in exit(2) (include/linux/sched.h); proc_pid_stat(5) shows it, and the kernel closes files after it is set."""
LINES_KEPT = 10
LINE_BYTES_MAX = 1 << 20
"""Longer lines are split: a program that prints without end must not fill the memory."""
PORT_MAX = 65535
MEMORY_LOOK_S = 0.1
"""At this interval, looking costs a few parts in ten thousand of a CPU."""
MEMORY_LOOKS_PER_TREE = 30
"""Finding new processes takes reading about every process of the machine."""


class SampleFailed(Exception):
    """An arm couldn't be measured; the message says why, in one line."""


class SampleVoid(Exception):
    """An arm's answer was wrong before anything was measured; the message says how, in one line."""


def die_with_parent() -> list[str]:
    """Return the words before a command that make the kernel end it when this process ends, however that happens."""
    program = shutil.which("setpriv")
    return [program, "--pdeathsig", "KILL"] if program else []


def pin(pid: int, cpus: list[int]) -> None:
    """Keep every thread of a process on these CPUs from now on; threads that it starts later inherit that."""
    if not cpus:
        return
    with contextlib.suppress(OSError):  # It has just ended, which shows elsewhere.
        for thread in os.listdir(f"/proc/{pid}/task"):
            # A kernel thread that serves the process may refuse.
            with contextlib.suppress(OSError):
                os.sched_setaffinity(int(thread), cpus)


def is_ending(pid: int) -> bool:
    """Say whether a process is within exit(2)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return True
    return bool(int(fields[6]) & PF_EXITING)


def free_port(host: str = HOST) -> int:
    """Return a port that nobody uses at this moment."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def said(stderr: IO[bytes]) -> str:
    """Return the last line that a process wrote to its stderr file."""
    stderr.seek(0)
    return results.shorten(last_line(stderr.read().decode(errors="replace")), 300)


class Reader:
    """Reads what a process prints, so that it never has to wait, and keeps the end of it."""

    def __init__(self, stream: IO[bytes], see: Callable[[str], None] = lambda line: None) -> None:
        """Begin; `see` gets every line, in a thread."""
        self.stream = stream
        self.see = see
        self.lines: deque[str] = deque(maxlen=LINES_KEPT)
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def read(self) -> None:
        """Read to the end."""
        with self.stream:
            while raw := self.stream.readline(LINE_BYTES_MAX):
                line = raw.decode(errors="replace").rstrip()
                if line:
                    self.lines.append(line)
                    self.see(line)

    def last_line(self) -> str:
        """Return the last line until now, or, of a process that has ended, of all."""
        return self.lines[-1] if self.lines else ""


class Child:
    """A process of an arm, with everything that it starts."""

    def __init__(self, arm: Arm, command: list[str], see: Callable[[str], None] = lambda line: None) -> None:
        """Start it; raise SampleFailed."""
        try:
            self.process = Guarded(
                command,
                cwd=arm.folder,
                env=arm.run_environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        except (OSError, ValueError) as error:  # ValueError: a word with a null in it.
            why = error.strerror if isinstance(error, OSError) else error
            raise SampleFailed(f"`{' '.join(command)}` can't be started: {why}") from None
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.stdout = Reader(self.process.stdout, see)
        self.stderr = Reader(self.process.stderr)

    def end(self) -> None:
        """Kill whatever is left of it."""
        self.process.end()
        self.drain()

    def drain(self) -> None:
        """Wait until all is read that it has printed."""
        for reader in (self.stdout, self.stderr):
            reader.thread.join(PROBE_TIMEOUT_S)


@dataclass
class Ending:
    """How a server ended."""

    code: int | None
    by_itself: bool
    """Nobody had asked it to end."""
    complaint: str = ""
    words: str = ""
    """The last line that it printed, if that may explain something."""


class Server:
    """A server of an arm, which listens inside of a `with` block.

    Everything that it started is ended with it.
    """

    def __init__(self, arm: Arm, kind: str, workers: int, feature: str = "", host: str = HOST) -> None:
        """Prepare to start what serves `kind`: echo, http, or one of APPLICATIONS with a feature."""
        self.host = host
        self.arm = arm
        self.kind = kind
        self.workers = workers
        self.feature = feature
        self.port = free_port(host) if arm.ready.connect else 0
        self.ending: Ending | None = None
        self.ready = threading.Event()
        self.child: Child | None = None

    def __enter__(self) -> Self:
        """Start it and wait until it listens; raise SampleFailed."""
        command = self.arm.command(
            self.kind, host=self.host, port=self.port, workers=self.workers, feature=self.feature
        )
        self.child = Child(self.arm, command, self.see)
        try:
            self.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End it."""
        self.stop()

    @property
    def process(self) -> Guarded:
        """The one that was started, as the child of its guardian."""
        assert self.child is not None
        return self.child.process

    @property
    def pid(self) -> int:
        """Of the process that was started."""
        return self.process.first

    @property
    def lines(self) -> list[str]:
        """The lines that it printed last."""
        assert self.child is not None
        return list(self.child.stdout.lines)

    @property
    def address(self) -> str:
        """As HOST:PORT."""
        return f"{self.host}:{self.port}"

    def see(self, line: str) -> None:
        """Read a line: one of them says where the server listens."""
        if not self.ready.is_set() and not self.arm.ready.connect and line.startswith(self.arm.ready.line):
            port = "".join(line.rpartition(":")[2].split()[:1])
            if port.isascii() and port.isdigit() and 0 < int(port) <= PORT_MAX:
                self.port = int(port)
                self.ready.set()

    def wait_ready(self) -> None:
        """Wait until it listens."""
        limit_s = self.arm.ready.timeout_s
        deadline = time.monotonic() + limit_s
        while not self.ready.wait(0.02 if self.arm.ready.connect else 0.1):
            if self.arm.ready.connect:
                with contextlib.suppress(OSError), socket.create_connection((self.host, self.port), 0.2):
                    return
            self.check_alive("before it listened")
            if time.monotonic() > deadline:
                waited_for = (
                    "accept a connection" if self.arm.ready.connect else f"print a line with {self.arm.ready.line!r}"
                )
                raise SampleFailed(f"it didn't {waited_for} within {limit_s:g} s{self.last_words()}")

    def check_alive(self, when: str) -> None:
        """Raise SampleFailed if it has ended, or is about to: its connections are closed a moment before it can be waited for."""
        code = self.process.poll()
        if code is None and is_ending(self.pid):
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self.process.wait(ENDING_S)
        if code is not None:
            how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
            raise SampleFailed(f"the server {how} {when}{self.last_words()}")

    def last_words(self) -> str:
        """Return the last line that it printed, if any, to be appended to an error message."""
        assert self.child is not None
        if self.process.poll() is not None:
            self.child.drain()
        words = self.child.stderr.last_line() or ("" if self.ready.is_set() else self.child.stdout.last_line())
        return f"; its last line: {results.shorten(words, 300)}" if words else ""

    @property
    def guardian(self) -> int:
        """The PID of the process below which is all that serves, also what has left the tree of the first process."""
        return self.process.pid

    def tree(self) -> list[int]:
        """Return the PIDs of all that serves: the process, its descendants, and what has left its tree, as daemons do."""
        try:
            found = psutil.Process(self.guardian).children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        return sorted((each.pid for each in found), key=lambda pid: pid != self.pid)

    def threads(self) -> int:
        """Return how many threads serve, those of the kernel that belong to the process among them."""
        count = 0
        for pid in self.tree():
            with contextlib.suppress(OSError):
                count += len(os.listdir(f"/proc/{pid}/task"))
        return count

    def stop(self) -> Ending:
        """End it with its stop signal, and kill what doesn't end in time."""
        if self.ending is not None:
            return self.ending
        assert self.child is not None
        stop = self.arm.stop
        ended_by_itself = self.process.poll() is not None
        killed = False
        try:
            if not ended_by_itself:
                self.process.send_signal(signal.Signals[stop.signal])
                self.process.wait(stop.timeout_s)
        except subprocess.TimeoutExpired:
            killed = True
        finally:
            self.child.end()
        complaint, code = "", self.process.returncode
        if killed:
            complaint = f"it didn't end within {stop.timeout_s:g} s of {stop.signal} and was killed"
        elif not ended_by_itself and code not in stop.exit_codes and stop.signal != "SIGKILL":
            how = f"by {signal.Signals(-code).name}" if code < 0 else f"with code {code}"
            complaint = f"it ended {how} on {stop.signal}{self.last_words()}"
        words = self.last_words() if ended_by_itself else ""
        self.ending = Ending(code, ended_by_itself, complaint, words)
        return self.ending


class MemoryWatch:
    """Ends a server within a `with` block that takes more memory than it may, and then raises SampleFailed.

    A limit of the address space would count what runtimes only reserve, and a control group takes rights that a user seldom has.
    """

    def __init__(self, server: Server, limit_bytes: float) -> None:
        """Prepare; nothing is watched where there is no limit."""
        self.server = server
        self.limit_bytes = limit_bytes
        self.first_bytes = self.most_bytes = 0
        self.pids: list[int] = []
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.watch, daemon=True)

    def __enter__(self) -> Self:
        """Begin."""
        self.pids = self.server.tree()
        self.first_bytes = self.look()
        if math.isfinite(self.limit_bytes):
            self.thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop watching."""
        self.over.set()
        if self.thread.ident is not None:
            self.thread.join()
            self.pids = self.server.tree() or self.pids
            self.look()
        if self.most_bytes > self.limit_bytes and (kind is None or issubclass(kind, SampleFailed)):
            megabytes = (f"{figures.significant(each / 1e6)} MB" for each in (self.first_bytes, self.most_bytes))
            raise SampleFailed(
                f"the server's memory grew from {next(megabytes)} to {next(megabytes)}, and it may have"
                f" {figures.significant(self.limit_bytes / 1e6)} MB (--memory)"
            )

    def watch(self) -> None:
        """Look until the block ends or the limit is reached."""
        for number in itertools.count(1):
            if self.over.wait(MEMORY_LOOK_S):
                return
            if number % MEMORY_LOOKS_PER_TREE == 0:
                self.pids = self.server.tree() or self.pids
            if self.look() > self.limit_bytes:
                self.server.process.kill()
                return

    def look(self) -> int:
        """Return what all processes of the server occupy now, and remember the most."""
        pages = 0
        for pid in self.pids:
            with contextlib.suppress(OSError, IndexError, ValueError):
                pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        found = pages * os.sysconf("SC_PAGE_SIZE")
        self.most_bytes = max(self.most_bytes, found)
        return found


def run_delay_s(pids: Iterable[int]) -> float:
    """Return how long the threads of processes were ready to run and had no CPU, in seconds (Documentation/scheduler/sched-stats.rst)."""
    found_ns = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{pid}/task"):
                with contextlib.suppress(OSError, IndexError):
                    found_ns += int(Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split()[1])
    return found_ns / 1e9


def run_program(arm: Arm, command: list[str], limit_s: float) -> dict[str, Any]:
    """Run a program to its end and return the JSON object that is its last line; raise SampleFailed."""
    child = Child(arm, command)
    try:
        code = child.process.wait(limit_s)
    except subprocess.TimeoutExpired:
        raise SampleFailed(f"it didn't end within {limit_s:.0f} s") from None
    finally:
        child.end()
    if code != 0:
        words = results.shorten(child.stderr.last_line(), 300)
        raise SampleFailed(words or f"it ended with code {code} and printed nothing")
    line = child.stdout.last_line()
    try:
        content = json.loads(line)
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise SampleFailed(f"its last line is not a JSON object: {results.shorten(line, 100)!r}")
    return content


def duplicate(pid: int, descriptor: int) -> socket.socket:
    """Return a socket of another process, as one of ours; raise OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    pidfd = os.pidfd_open(pid)
    try:
        found = libc.syscall(PIDFD_GETFD, pidfd, descriptor, 0)
        if found < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
    finally:
        os.close(pidfd)
    return socket.socket(fileno=found)


def socket_descriptors(pid: int) -> Iterator[tuple[int, int]]:
    """Yield the descriptors of a process that are sockets, with their inodes."""
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/{pid}/fd/{name}")
            if target.startswith("socket:["):
                yield int(name), int(target[8:-1])


def inodes_of(server: Server, client: socket.socket | None) -> set[int]:
    """Return the inodes of the sockets that listen at a server's port, or of its end of a client's connection: 0 if it isn't accepted.

    Raise OSError where the kernel can't be asked.
    """
    return sock_diag.at_port(server.port, sock_diag.TCP_LISTEN) if client is None else {sock_diag.other_end(client)}


def ask_sockets(
    server: Server, client: socket.socket | None, ask: Callable[[socket.socket], int]
) -> tuple[list[int], int, str]:
    """Ask a server's sockets (which listen, or one connection); return the answers, how many sockets there are, and what hindered."""
    try:
        inodes = inodes_of(server, client)
    except OSError as error:
        return [], 0, f"the kernel lists no such socket: {error.strerror}"
    found, hindrance, seen = [], "", set()
    for pid in server.tree():
        try:
            for descriptor, inode in socket_descriptors(pid):
                if inode in inodes and inode not in seen:
                    seen.add(inode)
                    with duplicate(pid, descriptor) as own:
                        found.append(ask(own))
        except OSError as error:
            hindrance = f"its sockets can't be inspected: {error.strerror}"
    if not found and not hindrance:
        hindrance = "no descriptor of the process leads to it" if inodes else "the kernel lists no such socket"
    return found, len(inodes), hindrance


def check_listener(server: Server) -> None:
    """Raise SampleFailed where a process that isn't the server's listens at its port."""
    try:
        inodes = inodes_of(server, None)
    except OSError:
        return
    own = set(server.tree())
    # No descriptor was found: io_uring can hold sockets without descriptors.
    if inodes and not owners(own, inodes):
        for pid in owners(set(psutil.pids()) - own, inodes) - set(server.tree()):
            raise SampleFailed(f"process {pid}, which isn't the server's, listens on port {server.port}")


def owners(pids: Iterable[int], inodes: Container[int]) -> set[int]:
    """Return which of these processes have a descriptor of one of these sockets."""
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            if any(inode in inodes for _, inode in socket_descriptors(pid)):
                found.add(pid)
    return found


def check_owners(server: Server) -> None:
    """Raise SampleVoid where a process that isn't the server's has accepted connections, whether or not the server has them, too.

    Whatever it does for them would count as nothing.
    """
    try:
        inodes = sock_diag.at_port(server.port, sock_diag.TCP_ESTABLISHED)
    except OSError:
        return
    for pid in owners(set(psutil.pids()) - set(server.tree()) - {os.getpid()}, inodes) - set(server.tree()):
        name = "of another user"
        with contextlib.suppress(psutil.Error):
            name = psutil.Process(pid).name()
        raise SampleVoid(
            f"process {pid} ({name}) has connections to the server and isn't below it, so its CPU time is unknown"
        )


def checked(name: str, declared: int, found: int | None, text: str) -> results.Check:
    """Return the check that two things are the same; it is unknown where None was found. The text says why it isn't ok."""
    status: results.CheckStatus = "unknown" if found is None else "ok" if declared == found else "violated"
    return results.Check(
        name=name,
        declared=json.dumps(declared),
        found="" if found is None else json.dumps(found),
        status=status,
        text="" if status == "ok" else text,
    )


def check_listening(server: Server) -> list[results.Check]:
    """Check backlog, and the number of workers as far as it shows."""
    declares, checks = server.arm.declares, []
    backlogs, count, hindrance = ask_sockets(server, None, listen_backlog)
    if declares.backlog is not None:
        expected = min(declares.backlog, int(Path("/proc/sys/net/core/somaxconn").read_text()))
        backlog = min(backlogs, default=None)
        text = f"it listens with a backlog of {backlog}" if backlogs else hindrance
        checks.append(checked("backlog", expected, backlog, text))
    threads = server.threads()
    if threads < server.workers:
        text = f"{server.workers} workers were asked for, but it has only {threads} threads"
        checks.append(checked("workers", server.workers, threads, text))
    elif count > max(1, server.workers) and declares.workers:
        text = f"it was asked for {server.workers} and listens with {count} sockets at one port"
        checks.append(checked("workers", server.workers, count, text))
    else:
        # More threads than workers are fine: runtimes have helper threads, and their CPU time counts.
        found = figures.counted(threads, "thread")
        checks.append(results.Check(name="workers", declared=str(server.workers), found=found, status="ok"))
    return checks


def listen_backlog(listener: socket.socket) -> int:
    """Return the backlog that a listening socket really has."""
    info = listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
    backlog: int = struct.unpack_from("=I", info, TCP_INFO_BACKLOG_OFFSET)[0]
    return backlog


def has_nodelay(connection: socket.socket) -> bool:
    """Return whether a connection sends at once."""
    return bool(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))


def check_connection(server: Server) -> list[results.Check]:
    """Check the options of an accepted socket, after something has gone to and fro.

    What a server of applications is sent first depends on the cell, and so the load generator does that (runner.Race.first_client).
    """
    if server.kind in APPLICATIONS:
        return []
    message = b"ringlab looks at this connection"
    greeting = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" if server.kind == "http" else message
    try:
        with socket.create_connection((server.host, server.port), PROBE_TIMEOUT_S) as client:
            client.sendall(greeting)
            if server.kind == "discard":
                # It answers the end alone, and then closes the connection: whether it has accepted it is looked up until it has.
                checks = check_accepted(server, client, ACCEPT_TIMEOUT_S)
                client.shutdown(socket.SHUT_WR)
                count = first_answer(server, client, len(b"%d\n" % len(message)))
                if count != b"%d\n" % len(message):
                    raise SampleFailed(
                        f"the server has counted {results.shorten(repr(count))} of a first {len(message)} bytes{server.last_words()}"
                    )
                return checks
            # The answer shows that the server has the connection in hand.
            first_answer(server, client, 1 if server.kind == "http" else len(greeting))
            return check_accepted(server, client)
    except OSError as error:
        raise SampleFailed(f"the server doesn't accept a connection: {error}{server.last_words()}") from None


def first_answer(server: Server, client: socket.socket, bytes_min: int) -> bytes:
    """Return the server's answer to a first message; raise SampleFailed where none comes."""
    received = b""
    while len(received) < bytes_min:
        readable, _, _ = select.select([client], [], [], PROBE_TIMEOUT_S)
        data = client.recv(65536) if readable else b""
        if not data:
            what = "closed the connection" if readable else f"didn't answer within {PROBE_TIMEOUT_S:g} s"
            raise SampleFailed(f"the server {what} at a first {server.kind} message{server.last_words()}")
        received += data
    return received


def check_accepted(server: Server, client: socket.socket, wait_s: float = 0.0) -> list[results.Check]:
    """Check the options of the server's end of a connection, which it may yet have to accept and to set up."""
    declared = server.arm.declares.nodelay
    if declared is None:
        return []
    deadline = time.monotonic() + wait_s
    while True:
        found, _, hindrance = ask_sockets(server, client, has_nodelay)
        nodelay = found[0] if found else None
        differs = f"TCP_NODELAY is {'on' if nodelay else 'off'} on accepted sockets"
        check = checked("nodelay", declared, nodelay, differs if found else hindrance)
        if check.status == "ok" or time.monotonic() >= deadline:
            return [check]
        time.sleep(ACCEPT_LOOK_S)


def verify(server: Server) -> list[results.Check]:
    """Check what an arm declares, on its live process; raise SampleFailed where it doesn't even answer.

    Afterwards the server has served one connection and let it go, as every server has before long, and is measured in that state.
    It makes a difference: asyncio's echo of 1 KB takes 24 us of CPU before and 6 us after. It reads into fresh memory of
    256 KB, which glibc's malloc gets from mmap(2) and gives back for every message, until such a block is freed whole, with
    the last read of a connection (mallopt(3), M_MMAP_THRESHOLD).
    """
    check_listener(server)
    return [*check_listening(server), *check_connection(server)]
