"""Measure one event loop in one respect, once, and print the figures as a JSON object.

    harness.py OPTIONS micro NAME                              time one operation of a loop (subject.py has them)
    harness.py OPTIONS echo API TRANSPORT BYTES CONNECTIONS    load an echo server; API is protocol, buffered, streams or sock,
                                                               TRANSPORT is tcp, unix, tls or udp
    harness.py OPTIONS wait MICROSECONDS                       one connection: idle with 0, else a message each MICROSECONDS
    harness.py OPTIONS http FRAMEWORK CONNECTIONS              load an HTTP server on the loop
    harness.py --check ... the same                            only see whether this machine can do that

The measured loop runs in a process of its own (subject.py), or as plain C (floor.c). A server is loaded by ringlab-load (--load), which
reads the server's CPU clock at both ends of the window. What doesn't work, or can't on this machine, ends this program with a status of
1 and a line on stderr.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

HERE = Path(__file__).resolve().parent
SUBJECT = HERE / "subject.py"
HOST = "127.0.0.1"
FLOOR = "floor"
"""The name of the loop that is none: plain C."""
START_TIMEOUT_S = 20.0
PATIENCE_S = 50.0
"""Beyond the time that a process is meant to take."""
REHEARSAL_OPERATIONS, REHEARSAL_S_MAX = 100, 20.0
"""How much a server answers before it is measured, and for how long at most."""
BODY = "Hello, world!"
"""Of every HTTP response."""
WAITING_BYTES = 1024
PACKAGES = {"uvicorn": ("uvicorn", "httptools"), "aiohttp": ("aiohttp",)}
COUNTERPARTS = {"connect": "echo", "sock_connect": "echo", "sendfile": "sink"}
"""The servers that a client is timed against: in C and in a process of their own, so that their cost is in no loop's figure."""


class Failed(Exception):
    """There is no figure; the message says why, in one line."""


@dataclass(frozen=True)
class Load:
    """The load of a server."""

    transport: str = "tcp"
    size_bytes: int = 0
    connections: int = 1
    framework: str = ""
    interval_us: int = 0
    idle: bool = False


@dataclass(frozen=True)
class Harness:
    """One loop, and how it is measured."""

    build: Path
    loop: str
    load: str
    window_s: float
    warm_up_s: float
    server_cpus: list[int]
    load_cpus: list[int]

    def subject(self, *words: str) -> list[str]:
        """Return the command of the measured program; -I keeps the user's Python environment out of it."""
        return [sys.executable, "-I", str(SUBJECT), self.loop, *words]

    def floor(self, transport: str = "tcp") -> str:
        """Return the path of the program in C."""
        return str(self.build / ("floor-tls" if transport == "tls" else "floor"))

    @property
    def certificate(self) -> tuple[str, str]:
        """The paths of the certificate and its key."""
        return str(self.build / "certificate.pem"), str(self.build / "key.pem")

    # --- one operation ---

    def micro(self, name: str) -> dict[str, float]:
        """Time an operation."""
        surroundings: dict[str, object] = {"certificate": self.certificate[0], "key": self.certificate[1]}
        counterpart = COUNTERPARTS.get(name)
        with contextlib.ExitStack() as stack:
            if counterpart:
                server = stack.enter_context(serving([self.floor(), counterpart]))
                pin(server.process.pid, self.load_cpus)
                surroundings |= {"port": server.port, "cpus": self.server_cpus}
            if self.loop != FLOOR:
                words = ("micro", name, f"{self.window_s:g}", json.dumps(surroundings))
                return run(self.subject(*words), 2 * self.window_s)
            count = max(100, int(self.window_s * (50_000 if counterpart else 200_000)))
            port = [str(surroundings["port"])] if counterpart else []
            return run([self.floor(), name, *port, str(count)], self.window_s, self.server_cpus if port else [])

    # --- a server under load ---

    def server_command(self, api: str, load: Load, path: str) -> list[str]:
        """Return the command of a server; `path` is for a Unix socket."""
        if load.framework:
            return self.subject("http", load.framework, BODY)
        more = {"unix": [path], "tls": list(self.certificate)}.get(load.transport, [])
        if self.loop != FLOOR:
            return self.subject("echo", api, load.transport, *more)
        kind = "echo" if load.transport == "tcp" else f"echo-{load.transport}"
        return [self.floor(load.transport), kind, *more]

    def load_command(self, load: Load, server: "Server", path: str) -> list[str]:
        """Return the command of the load, without its duration and the number of connections.

        It sleeps as soon as it has nothing to do, as clients do, so a server's cost includes waking them.
        """
        tcp = f"{HOST}:{server.port}"
        address = {"unix": f"unix:{path}", "udp": f"udp:{tcp}"}.get(load.transport, tcp)
        command = [self.load, "http" if load.framework else "echo", "--address", address]
        command += ["--account", str(server.process.pid), "--spin-us", "0"]
        if load.transport == "tls":
            command += ["--tls", "--certificate", self.certificate[0]]
        if load.framework:
            # As most clients do, it names what it accepts, and itself.
            return [*command, "--body", BODY, "--header", "Accept: */*", "--header", "User-Agent: load"]
        return [*command, "--size", str(load.size_bytes)]

    def server(self, api: str, load: Load) -> dict[str, float]:
        """Load a server, after a first client that comes and goes.

        The first client makes a difference. Who reads into fresh memory of 256 KB, as asyncio does, gets it from mmap(2) and gives it
        back for every message, until the first such block is freed whole: with the last read of a connection. From then on glibc's
        malloc keeps it (mallopt(3), M_MMAP_THRESHOLD), and asyncio's echo of 1 KB takes 6 us of CPU and not 20.
        """
        with tempfile.TemporaryDirectory(prefix="ringlab-loops-") as folder:
            path = str(Path(folder) / "socket")
            with serving(self.server_command(api, load, path)) as server:
                # Only now: a loop that looks how many CPUs it may use must see what it would see in production.
                pin(server.process.pid, self.server_cpus)
                command = self.load_command(load, server, path)
                try:
                    first = ["--connections", "1", "--warm-up", "0", "--window", f"{REHEARSAL_S_MAX:g}"]
                    first += ["--max-operations", str(REHEARSAL_OPERATIONS)]
                    check_right(run([*command, *first], REHEARSAL_S_MAX, self.load_cpus))
                    command += ["--connections", str(load.connections), "--warm-up", f"{self.warm_up_s:g}"]
                    command += ["--window", f"{self.window_s:g}"]
                    command += ["--rate", f"{1e6 / load.interval_us:g}"] if load.interval_us else []
                    command += ["--idle"] if load.idle else []
                    found = run(command, self.warm_up_s + self.window_s, self.load_cpus)
                    check_right(found)
                    check_plausible(found, load, self.window_s)
                except Failed as failure:
                    words = said(server.stderr)
                    last = f"; the server's last line: {words}" if words else ""
                    raise Failed(f"{failure}{last}") from None
        return figures_of(found, load)

    # --- what the command line asks for ---

    def measure(self, words: Sequence[str]) -> dict[str, float]:
        """Measure what the words say."""
        match words:
            case ["micro", name]:
                return self.micro(name)
            case ["echo", api, transport, size_bytes, connections]:
                return self.server(api, Load(transport, int(size_bytes), int(connections)))
            case ["wait", interval_us]:
                rests = int(interval_us) == 0
                return self.server("protocol", Load(size_bytes=WAITING_BYTES, interval_us=int(interval_us), idle=rests))
            case ["http", framework, connections]:
                return self.server("", Load(connections=int(connections), framework=framework))
        raise Failed(f"nothing is called {' '.join(words)}")

    def missing(self, words: Sequence[str]) -> str:
        """Return what this machine lacks for that, with the command that installs it, or nothing."""
        if "tls" in words or "tls_one_loop" in words:
            note = self.build / "tls-missing.txt"
            return note.read_text().strip() if note.exists() else ""
        for package in PACKAGES.get(words[1], ()) if words[0] == "http" else ():
            if importlib.util.find_spec(package) is None:
                return f"{package} is not installed; install it with: {sys.executable} -m pip install {package}"
        return ""


def check_right(found: dict[str, Any]) -> None:
    """Raise Failed if a load met any failure, such as a wrong byte or a lost datagram, or can't tell what the server cost."""
    for error in found["errors"].values():
        raise Failed(error["first"])
    for reason in (found["void"], found["server"]["error"]):
        if reason:
            raise Failed(reason)


def check_plausible(found: dict[str, Any], load: Load, window_s: float) -> None:
    """Raise Failed if the answers stopped coming for a part of the window.

    By Little's law: where each connection sends its next message as soon as it has the answer, all wait for one all the time.
    """
    closed = not load.idle and not load.interval_us
    in_flight = found["littles_law"]["in_flight_average"]
    if closed and in_flight < load.connections / 2:
        raise Failed(
            f"stalled: {found['operations']} messages in {window_s:g} s on {load.connections} connections account for"
            f" {in_flight:.1f} of them"
        )


def figures_of(found: dict[str, Any], load: Load) -> dict[str, float]:
    """Return what the load has measured, under the names that the lab has for it."""
    cpu_ns, operations = found["server"]["cpu_ns"], found["operations"]
    figures = {
        "server_cpu_percent": 100 * cpu_ns / (1e9 * found["window_s"]),
        "client_cpu_fraction": found["client"]["cpu_fraction"],
        "client_busy_fraction": found["client"]["busy_fraction"],
        "operations": operations,
        "operations_per_s": found["operations_per_s"],
        "window_s": found["window_s"],
    }
    if load.size_bytes:
        figures["megabytes_per_s"] = found["operations_per_s"] * load.size_bytes / 1e6
    if not load.idle:
        latency = found["latency"]["service"]
        figures["server_cpu_us"] = cpu_ns / operations / 1000
        figures["in_flight_average"] = found["littles_law"]["in_flight_average"]
        figures |= {f"latency_ns_{name}": latency[f"{name}_ns"] for name in ("mean", "p50", "p95", "p99", "max")}
    return figures


# --- processes ---


@dataclass(frozen=True)
class Server:
    """A server that listens."""

    process: "subprocess.Popen[bytes]"
    port: int
    stderr: IO[bytes]


def last_line(text: str) -> str:
    """Return the last line that says something: of a traceback, the error itself."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def said(stderr: IO[bytes]) -> str:
    """Return the last line that a process wrote to its stderr file."""
    stderr.seek(0)
    return last_line(stderr.read().decode(errors="replace"))


def pin(pid: int, cpus: Sequence[int]) -> None:
    """Keep every thread of a process on these CPUs from now on; threads that it starts later inherit that."""
    if not cpus:
        return
    with contextlib.suppress(OSError):  # It has just ended, which shows elsewhere.
        for thread in os.listdir(f"/proc/{pid}/task"):
            # A kernel thread that serves the process may refuse.
            with contextlib.suppress(OSError):
                os.sched_setaffinity(int(thread), cpus)


def with_parent() -> list[str]:
    """Return the words before a command that make the kernel end it when this process ends, however that happens."""
    program = shutil.which("setpriv")
    return [program, "--pdeathsig", "KILL"] if program else []


def run(command: list[str], expected_s: float, cpus: Sequence[int] = ()) -> dict[str, Any]:
    """Run a program to its end and return the JSON object that it prints; raise Failed."""
    with tempfile.TemporaryFile() as stderr:
        process = subprocess.Popen(
            [*with_parent(), *command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr
        )
        try:
            pin(process.pid, cpus)
            output, _ = process.communicate(timeout=expected_s + PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise Failed(f"no result after {expected_s + PATIENCE_S:.0f} s") from None
        finally:
            if process.poll() is None:
                process.kill()
                process.communicate()
        if process.returncode != 0:
            raise Failed(said(stderr) or f"exit status {process.returncode}")
    found: dict[str, Any] = json.loads(last_line(output.decode()))
    return found


@contextlib.contextmanager
def serving(command: list[str]) -> Iterator[Server]:
    """Start a server, wait until it listens, and end it at the end."""
    with tempfile.TemporaryFile() as stderr:
        process = subprocess.Popen(
            [*with_parent(), *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            readable, _, _ = select.select([process.stdout], [], [], START_TIMEOUT_S)
            line = process.stdout.readline() if readable else b""
            if not line:
                raise Failed(said(stderr) or f"the server didn't listen after {START_TIMEOUT_S:g} s")
            try:
                port = int(json.loads(line)["port"])
            except (ValueError, KeyError, TypeError):
                raise Failed(f"the server's first line says no port: {line[:100]!r}") from None
            yield Server(process, port, stderr)
        finally:
            process.stdin.close()  # Which ends the server.
            try:
                process.wait(2)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()


def cpus_in(text: str) -> list[int]:
    """Return the numbers in a list with commas."""
    return [int(each) for each in text.split(",") if each]


def main() -> int:
    """Read the command line and do what it says; return the exit status."""
    parser = argparse.ArgumentParser(description="Measure one event loop in one respect.")
    parser.add_argument("--build", type=Path, required=True, metavar="FOLDER", help="where build.py has put everything")
    parser.add_argument("--load", default="", metavar="PROGRAM", help="ringlab-load, where a server is loaded")
    parser.add_argument("--loop", required=True, metavar="MODULE:FUNCTION", help="makes the loop; floor: plain C")
    parser.add_argument("--window", type=float, default=0.1, metavar="S")
    parser.add_argument("--warm-up", type=float, default=0.1, metavar="S")
    parser.add_argument("--server-cpus", type=cpus_in, default=[], metavar="N,N")
    parser.add_argument("--load-cpus", type=cpus_in, default=[], metavar="N,N")
    parser.add_argument("--check", action="store_true", help="only see whether this machine can do it")
    parser.add_argument("words", nargs="+")
    options = parser.parse_args()
    harness = Harness(
        options.build,
        options.loop,
        options.load,
        options.window,
        options.warm_up,
        options.server_cpus,
        options.load_cpus,
    )
    try:
        if options.check:
            if missing := harness.missing(options.words):
                raise Failed(missing)
            print("{}")
        else:
            print(json.dumps({"figures": harness.measure(options.words)}))
    except Failed as failure:
        print(failure, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
