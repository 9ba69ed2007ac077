"""One sample: one arm in one cell, in fresh processes.

An echo or HTTP cell takes two processes: the server, and the native load program, which also reads the server's CPU
clock at both ends of the measured window. Every process that is started here has a time limit, and ends when this one does.
"""

import contextlib
import dataclasses
import fcntl
import functools
import importlib.metadata
import json
import os
import re
import resource
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from bench.arms import Arm, last_line
from bench.cells import Cell

HERE = Path(__file__).parent
SOURCES = {name: HERE / f"{name}.c" for name in ("load", "floor")}
TLS_SUFFIX = "-tls"
TLS_OPTIONS = {True: (["-DWITH_TLS"], ["-lssl", "-lcrypto"]), False: ([], [])}
CERTIFICATE_DAYS = 3650
START_TIMEOUT_S = 20
SAMPLE_TIMEOUT_S = 60
"""Beyond the time that a sample is meant to take."""
NO_PATH = Path()
DESCRIPTORS_SPARE = 64
PROCESS_START_S = 0.15
"""What a fresh interpreter takes till it has a loop: for the estimate of the duration only."""
FRAMEWORK_START_S = 0.5
"""... and what importing a web framework adds."""
REHEARSAL_S = 0.02
WRK_S = 1
"""wrk counts in whole seconds."""
OPERATION_EXPECTED_S = 1e-5
"""Of making and closing a listener: for the number of them in a sample only."""


class SampleFailed(Exception):
    """An arm couldn't be measured; the text says why, in a line."""


class SetupFailed(Exception):
    """Nothing can be measured; the text says why, and what to do."""


@dataclass(frozen=True)
class Scale:
    """How long and how often."""

    rounds: int
    micro_s: float
    window_s: float
    warm_up_s: float
    waiting_s: float
    messages: int = 0
    """If not 0, the window of an echo cell ends after so many messages per connection, however long they take."""

    def sample_s(self, cell: Cell) -> float:
        """About how long one sample takes."""
        if cell.micro:
            return PROCESS_START_S + 1.5 * self.micro_s
        if "wrk" in cell.needs:
            return PROCESS_START_S + max(WRK_S, self.window_s)
        window_s = self.waiting_s if cell.idle or cell.interval_us else self.window_s
        start_s = PROCESS_START_S + (FRAMEWORK_START_S if cell.framework else 0)
        connect_s = cell.connections * (2e-3 if cell.transport == "tls" else 1e-4)
        return start_s + self.warm_up_s + window_s + connect_s


@dataclass(frozen=True)
class Placement:
    """Which CPU the measured process has for itself, and which one its counterpart; None where the kernel decides.

    Left alone, the kernel puts a server and its only client now on one CPU and now on two, and a message costs up to
    twice as much in one case as in the other: more than what is compared. So they are kept apart, but a server only
    once it listens: a loop that looks how many CPUs it may use, as ringloop does before it polls busily, must see what
    it would see in production.
    """

    measured: int | None = None
    other: int | None = None

    def __str__(self) -> str:
        if self.measured is None:
            return "free: the kernel places server and load"
        return f"apart: the server on CPU {self.measured} from when it listens, the load on CPU {self.other}"


def siblings(cpu: int) -> set[int]:
    """The CPUs that share a core with `cpu`, itself among them (sysfs, Documentation/admin-guide/cputopology.rst)."""
    try:
        text = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text()
    except OSError:
        return {cpu}
    found = {cpu}
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def place_apart() -> Placement:
    """Two CPUs, of two cores where there are two; the kernel's choice where only one CPU may be used."""
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < 2:
        return Placement()
    measured = usable[0]
    others = [cpu for cpu in usable if cpu not in siblings(measured)] or usable[1:]
    return Placement(measured, others[0])


def pin(pid: int, cpu: int | None) -> None:
    """Keep every thread of a process on one CPU from now on; threads that it starts later inherit that."""
    if cpu is None:
        return
    with contextlib.suppress(OSError):  # It has just ended, which shows elsewhere.
        for thread in os.listdir(f"/proc/{pid}/task"):
            os.sched_setaffinity(int(thread), {cpu})


def binary(name: str) -> Path:
    """Where the compiled program stands."""
    return HERE / "bin" / name


def compile_programs(*, tls: bool = False) -> None:
    """Compile what is missing or older than its source."""
    for name, source in SOURCES.items():
        compile_program(binary(name + TLS_SUFFIX if tls else name), [source], *TLS_OPTIONS[tls])


def compile_program(target: Path, sources: Sequence[Path], options: Sequence[str], libraries: Sequence[str]) -> None:
    """Compile the first of these files if the program is missing or older than any of them."""
    if target.exists() and all(target.stat().st_mtime >= source.stat().st_mtime for source in sources):
        return
    compiler = os.environ.get("CC", "cc")
    if shutil.which(compiler) is None:
        raise SetupFailed(f"the load program needs a C compiler ({compiler}): apt-get install gcc libc6-dev")
    target.parent.mkdir(exist_ok=True)
    unfinished = target.with_suffix(f".{os.getpid()}")
    command = [compiler, "-O2", "-Wall", "-Wextra", *options, "-o", str(unfinished), str(sources[0]), *libraries]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SetupFailed(f"{' '.join(command)} failed:\n{done.stderr}")
    unfinished.replace(target)


def certificate() -> tuple[Path, Path]:
    """Where the certificate of the TLS cells and its key stand."""
    return HERE / "bin" / "certificate.pem", HERE / "bin" / "key.pem"


def make_certificate(path: Path, key: Path) -> None:
    """Make a certificate for 127.0.0.1, and its key."""
    new_path, new_key = (each.with_suffix(f".{os.getpid()}") for each in (path, key))
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", str(CERTIFICATE_DAYS), "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    # Not every TLS library takes a certificate for a server's own that may sign others.
    command += ["-addext", "basicConstraints=critical,CA:FALSE"]
    command += ["-keyout", str(new_key), "-out", str(new_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SetupFailed(f"{' '.join(command)} failed:\n{done.stderr}")
    new_key.replace(key)
    new_path.replace(path)


@functools.cache
def missing(need: str) -> str:
    """What is to be done so that cells with this need can be measured, or nothing."""
    if need == "certificate":
        if shutil.which("openssl") is None:
            return "no certificate without the openssl command: apt-get install openssl"
        path, key = certificate()
        path.parent.mkdir(exist_ok=True)
        # Of two that make them at once one would have the other's key.
        with (path.parent / "certificate.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (path.exists() and key.exists()):
                make_certificate(path, key)
    elif need == "wrk":
        if shutil.which("wrk") is None:
            return "wrk is not installed: apt-get install wrk"
    elif need == "libssl":
        try:
            compile_programs(tls=True)
        except SetupFailed as failure:
            if "openssl/" not in str(failure) and "cannot find -lssl" not in str(failure):
                raise
            return "no load under TLS without OpenSSL's headers: apt-get install libssl-dev"
    else:
        try:
            importlib.metadata.version(need)
        except importlib.metadata.PackageNotFoundError:
            return f"{need} is not installed; install it with: {sys.executable} -m pip install --group http"
    return ""


def check_descriptors(connections: int) -> None:
    """Raise the limit of descriptors as far as `connections` need it; the server inherits it."""
    needed = connections + DESCRIPTORS_SPARE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= needed or soft == resource.RLIM_INFINITY:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise SetupFailed(
            f"{connections} connections need {needed} descriptors, the limit is {hard}; raise it: ulimit -n {needed}"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def said(stderr: IO[bytes]) -> str:
    """The last line that a process wrote to its stderr file."""
    stderr.seek(0)
    return last_line(stderr.read().decode(errors="replace"))


def run(
    command: list[str], environment: dict[str, str] | None, expected_s: float, cpu: int | None = None
) -> dict[str, Any]:
    """Run a program to its end and return the JSON object that it prints."""
    with tempfile.TemporaryFile() as stderr:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            # Ctrl-C is for the harness, which ends its children itself.
            start_new_session=True,
        )
        try:
            pin(process.pid, cpu)
            output, _ = process.communicate(timeout=expected_s + SAMPLE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise SampleFailed(f"no result after {expected_s + SAMPLE_TIMEOUT_S:.0f} s") from None
        finally:
            if process.poll() is None:
                process.kill()
                process.communicate()
        if process.returncode != 0:
            raise SampleFailed(said(stderr) or f"exit status {process.returncode}")
    result: dict[str, Any] = json.loads(last_line(output.decode()))
    return result


@dataclass(frozen=True)
class Server:
    """An echo server that listens."""

    process: "subprocess.Popen[bytes]"
    port: int
    stderr: IO[bytes]

    def last_words(self) -> str:
        """What it had to say, if anything, as an addition to somebody else's complaint."""
        words = said(self.stderr)
        return f"; the server's last line: {words}" if words else ""


def port_in(line: str) -> int:
    """The port in the first line that a server prints: {"port": 7000}, or `listening on 127.0.0.1:7000`."""
    if found := re.match(r"listening on [^ ]*:(\d+)", line):
        return int(found[1])
    return int(json.loads(line)["port"])


@contextlib.contextmanager
def serving(command: list[str], environment: dict[str, str] | None) -> Iterator[Server]:
    """Start an echo server, wait until it listens, and end it at the end."""
    with tempfile.TemporaryFile() as stderr:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            start_new_session=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            readable, _, _ = select.select([process.stdout], [], [], START_TIMEOUT_S)
            line = process.stdout.readline() if readable else b""
            if not line:
                raise SampleFailed(said(stderr) or f"the server didn't listen after {START_TIMEOUT_S} s")
            yield Server(process, port_in(line.decode()), stderr)
        finally:
            process.stdin.close()  # Which ends a server of the Python race, and SIGTERM the others.
            process.terminate()
            try:
                process.wait(2)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()


def sample(arm: Arm, cell: Cell, scale: Scale, placement: Placement) -> dict[str, float]:
    """Measure one arm in one cell once, or raise SampleFailed."""
    if cell.workload:
        return sample_program(arm, cell, scale, placement)
    if cell.micro:
        return sample_micro(arm, cell, scale, placement)
    with tempfile.TemporaryDirectory(prefix="ringloop-bench-") as folder:
        path = Path(folder) / "socket"
        return sample_server(server_command(arm, cell, path), arm, cell, scale, placement, path)


def sample_micro(arm: Arm, cell: Cell, scale: Scale, placement: Placement) -> dict[str, float]:
    """Time one operation in a process of its own."""
    surroundings: dict[str, object] = {}
    if "certificate" in cell.needs:
        surroundings["certificate"], surroundings["key"] = map(str, certificate())
    with contextlib.ExitStack() as stack:
        counterpart = {"connect": "echo", "sendfile": "sink"}.get(cell.micro)
        if counterpart:
            # In C and in a process of its own, so that the cost of its side is in no arm's figure.
            server = stack.enter_context(serving([str(binary("floor")), counterpart], None))
            pin(server.process.pid, placement.other)
            surroundings["port"], surroundings["cpu"] = server.port, placement.measured
        if not arm.loop:
            count = max(100, int(scale.micro_s * (50_000 if cell.micro == "connect" else 200_000)))
            port = [str(surroundings["port"])] if counterpart else []
            command = [str(binary("floor")), cell.micro, *port, str(count)]
            result = run(command, None, scale.micro_s, placement.measured if port else None)
            return {"operation_us": result["operation_ns"] / 1000}
        command = arm.command("micro", cell.micro, str(scale.micro_s), json.dumps(surroundings))
        return run(command, arm.child_environment(), scale.sample_s(cell))


def check_plausible(result: dict[str, Any], cell: Cell, window_s: float) -> None:
    """Raise SampleFailed if the figures of a load can't stand for what the cell is about."""
    if cell.idle:
        return
    if result["messages"] == 0:
        raise SampleFailed(f"no message came back within {window_s} s")
    # Little's law: all connections wait for an echo all the time, or the echoes stopped for a part of the window.
    if not cell.interval_us and result["in_flight_average"] < cell.connections / 2:
        raise SampleFailed(
            f"stalled: {result['messages']} messages in {window_s} s on {cell.connections} connections account for"
            f" {result['in_flight_average']:.1f} of them"
        )


def server_command(arm: Arm, cell: Cell, path: Path) -> list[str]:
    """The command of an echo or HTTP server; `path` is for a Unix socket."""
    if cell.framework:
        return arm.command("http", cell.framework, cell.body)
    pair = list(map(str, certificate()))
    if arm.loop:
        more = {"unix": [str(path)], "tls": pair}.get(cell.transport, [])
        return arm.command("echo", cell.api, cell.transport, *more)
    match cell.transport:
        case "tls":
            return [str(binary("floor" + TLS_SUFFIX)), "echo-tls", *pair]
        case "unix":
            return [str(binary("floor")), "echo-unix", str(path)]
        case "udp":
            return [str(binary("floor")), "echo-udp"]
        case _:
            return [str(binary("floor")), "echo"]


def load_command(cell: Cell, server: Server, path: Path) -> list[str]:
    """The command of the load, without its duration."""
    program = "load" + (TLS_SUFFIX if cell.transport == "tls" else "")
    command = [str(binary(program)), "--transport", cell.transport, "--server-pid", str(server.process.pid)]
    command += ["--path", str(path)] if cell.transport == "unix" else ["--port", str(server.port)]
    command += ["--connections", str(cell.connections)]
    if cell.transport == "tls":
        command += ["--certificate", str(certificate()[0])]
    command += ["--http-get", "/", "--body", cell.body] if cell.body else ["--size", str(cell.size_bytes)]
    if cell.interval_us:
        command += ["--interval-us", str(cell.interval_us)]
    return command


def sample_program(arm: Arm, cell: Cell, scale: Scale, placement: Placement) -> dict[str, float]:
    """Measure a program of a native arm."""
    # The program ends when this process does, whatever that dies of.
    command = ["setpriv", "--pdeathsig", "TERM", *arm.programs[cell.workload]]
    if cell.micro:
        count = max(100, int(scale.micro_s / OPERATION_EXPECTED_S))
        result = run([*command, "--count", str(count)], arm.child_environment(), scale.micro_s, placement.measured)
        return {"operation_us": result["ns"] / result["operations"] / 1000}
    command += ["--workers", str(cell.workers)]
    if cell.workers > 1:
        # They share the CPUs with the load, as the kernel or the arm places them.
        placement = Placement()
    if "wrk" in cell.needs:
        return sample_by_wrk(command, arm, cell, scale, placement)
    return sample_server(command, arm, cell, scale, placement)


def cpu_time_ns(pid: int) -> int:
    """The CPU time of a process, all threads together: clock_getcpuclockid(3), which Python has for threads only."""
    cpuclock_sched = 2
    return time.clock_gettime_ns(~pid << 3 | cpuclock_sched)


def sample_by_wrk(command: list[str], arm: Arm, cell: Cell, scale: Scale, placement: Placement) -> dict[str, float]:
    """Load an HTTP server by wrk, which shares nothing with our load. Its connecting is within its window."""
    check_descriptors(cell.connections)
    seconds = max(WRK_S, round(scale.window_s))
    with serving(command, arm.child_environment()) as server:
        pin(server.process.pid, placement.measured)
        load = [
            "wrk",
            "--threads",
            "1",
            "--connections",
            str(cell.connections),
            "--duration",
            f"{seconds}s",
            "--latency",
        ]
        load.append(f"http://127.0.0.1:{server.port}/")
        if placement.other is not None:
            load = ["taskset", "--cpu-list", str(placement.other), *load]
        begin_ns = cpu_time_ns(server.process.pid)
        done = subprocess.run(load, capture_output=True, text=True, timeout=seconds + SAMPLE_TIMEOUT_S, check=False)
        cpu_ns = cpu_time_ns(server.process.pid) - begin_ns
        if done.returncode != 0:
            raise SampleFailed(f"{last_line(done.stderr) or 'wrk failed'}{server.last_words()}")
    return figures_of_wrk(done.stdout, cpu_ns)


def figures_of_wrk(text: str, cpu_ns: int) -> dict[str, float]:
    """What wrk has printed, and the CPU time that the server has taken for it."""
    scales = {"us": 1.0, "ms": 1e3, "s": 1e6}
    requests = re.search(r"(\d+) requests in ", text)
    rate = re.search(r"Requests/sec: +([\d.]+)", text)
    latencies = {
        percent: float(value) * scales[unit]
        for percent, value, unit in re.findall(r" (50|99)% +([\d.]+)(us|ms|s)\b", text)
    }
    if not requests or not rate or len(latencies) < 2 or requests[1] == "0":
        raise SampleFailed(f"wrk's output isn't understood: {last_line(text)}")
    if errors := re.search(r"(Socket errors|Non-2xx).*", text):
        raise SampleFailed(f"wrk: {errors[0]}")
    return {
        "server_cpu_us": cpu_ns / int(requests[1]) / 1000,
        "messages_per_s": float(rate[1]),
        "latency_us_p50": latencies["50"],
        "latency_us_p99": latencies["99"],
    }


def rehearse(cell: Cell, server: Server, path: Path, placement: Placement) -> None:
    """Serve one connection, and let it go, as every server has before long; raises SampleFailed.

    It makes a difference. Who reads into fresh memory of 256 KB, as asyncio does, gets it from mmap(2) and gives it back for
    every message, until the first such block is freed whole: with the last read of a connection. From then on glibc's malloc
    keeps it (mallopt(3), M_MMAP_THRESHOLD), and asyncio's echo of 1 KB takes 6 us of CPU and not 20.
    """
    first = dataclasses.replace(cell, connections=1, interval_us=0)
    load = [*load_command(first, server, path), "--duration", str(REHEARSAL_S), "--warm-up", "0"]
    run(load, None, REHEARSAL_S, placement.other)


def sample_server(
    command: list[str], arm: Arm, cell: Cell, scale: Scale, placement: Placement, path: Path = NO_PATH
) -> dict[str, float]:
    """Load a server in one process from another; `path` is that of its Unix socket."""
    check_descriptors(cell.connections)
    waiting = cell.idle or cell.interval_us > 0
    window_s = scale.waiting_s if waiting else scale.window_s
    with serving(command, arm.child_environment()) as server:
        pin(server.process.pid, placement.measured)
        load = load_command(cell, server, path)
        load += ["--duration", str(window_s), "--warm-up", str(scale.warm_up_s)]
        if cell.idle:
            load.append("--idle")
        elif scale.messages:
            load += ["--messages", str(scale.messages * cell.connections)]
        try:
            rehearse(cell, server, path, placement)
            result = run(load, None, scale.sample_s(cell), placement.other)
            check_plausible(result, cell, window_s)
        except SampleFailed as failure:
            raise SampleFailed(f"{failure}{server.last_words()}") from None
    figures = {
        "server_cpu_percent": 100 * result["server_cpu_ns"] / result["window_ns"],
        "client_cpu_percent": 100 * result["client_cpu_ns"] / result["window_ns"],
        "messages": result["messages"],
        "messages_per_s": result["messages_per_s"],
        "in_flight_average": result["in_flight_average"],
    }
    if not cell.body:
        figures["megabytes_per_s"] = result["megabytes_per_s"]
    if cell.idle:
        return figures
    figures["server_cpu_us"] = result["server_cpu_ns"] / result["messages"] / 1000
    figures["first_echo_us_p50"] = result["first_echo_ns_p50"] / 1000
    for name in ("average", "p50", "p95", "p99", "max"):
        figures[f"latency_us_{name}"] = result[f"latency_ns_{name}"] / 1000
    return figures
