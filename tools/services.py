#!/usr/bin/env python3
"""Compare services on ringloop with the same on tokio: an HTTPS reverse proxy of small requests, and an echo over QUIC.

    make bench-services                          both, with ringlab's load generator
    make bench-services ARGS="proxy --workers 2 --rounds 9"

In each round all servers start anew and live at the same time. They take turns in short windows, in random order, and what counts is
the CPU time of a server's process per operation in all of its windows together (/proc/PID/task/*/schedstat, in ns). The ratio to tokio
is that of the rounds' geometric mean, with Student's interval of 95%. An operation is a request of the proxy, or 1 MB sent and received.
Every answer is checked. Needs ringlab in this environment (make peers), because its load generator and its server in C take part.

Exits with 1 if a server gave a wrong answer or failed.
"""

import argparse
import contextlib
import json
import math
import os
import random
import statistics
import subprocess
import sys
from pathlib import Path

from scipy import stats

ROOT = Path(__file__).resolve().parent.parent
SERVICES = ROOT / "tools" / "services"
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "services"
PROGRAM = TARGET / "release" / "services"
LOAD = ROOT / "lab" / "target" / "release" / "ringlab-load"
FLOOR = ROOT / "lab" / "targets" / "c-epoll" / "server.c"
CONNECTIONS = 50
ARMS = {
    "tokio": ("tokio", {}),
    "ringloop, epoll": ("ringloop", {"RINGLOOP_BACKEND": "epoll"}),
    "ringloop, io_uring": ("ringloop", {"RINGLOOP_BACKEND": "io_uring"}),
}
START_S = 20.0


class Failed(Exception):
    """A server or a load failed; the message says which and how."""


def cpu_ns(pid: int) -> int:
    """Return the CPU time of all threads of a process."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads)


def build(folder: Path) -> Path:
    """Build the services and the server that the proxy passes requests on to; return the latter."""
    cargo = ["cargo", "build", "--release", "--locked", "--manifest-path", str(SERVICES / "Cargo.toml")]
    subprocess.run([*cargo, "--target-dir", str(TARGET)], check=True)
    if not LOAD.exists():
        subprocess.run(["make", "-C", str(ROOT / "lab"), "build"], check=True)
    floor = folder / "c-epoll"
    subprocess.run(["cc", "-O3", "-o", str(floor), str(FLOOR), "-lpthread"], check=True)
    return floor


def start(stack: contextlib.ExitStack, words: list[str], environment: dict[str, str]) -> tuple[int, str]:
    """Start a server that prints a line when it listens; return its PID and that line."""
    server = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=os.environ | environment)
    stack.callback(server.wait)
    stack.callback(server.kill)
    assert server.stdout is not None
    line = server.stdout.readline().strip()
    if not line:
        raise Failed(f"{' '.join(words)} ended without listening")
    return server.pid, line


def load_proxy(port: str, seconds: float) -> int:
    """Return how many requests were answered rightly."""
    words = [str(LOAD), "http", "--address", f"127.0.0.1:{port}", "--tls", "--connections", str(CONNECTIONS)]
    words += ["--warm-up", "0", "--window", str(seconds)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60 + seconds)
    result = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {}
    if not result or result["void"] or result["errors"]:
        raise Failed(f"a load of the proxy: {result.get('errors') or done.stderr}")
    return int(result["operations"])


def load_quic(port: str, seconds: float) -> int:
    """Return how many streams of 1 MB came back."""
    words = [str(PROGRAM), "quic-load", "--address", f"127.0.0.1:{port}", "--seconds", str(seconds)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60 + seconds)
    if done.returncode != 0:
        raise Failed(f"a load of QUIC: {done.stderr}")
    return int(done.stdout)


def measure(name: str, floor: Path, arguments: argparse.Namespace) -> dict[str, list[float]]:
    """Return the CPU time per operation of each arm in each round, in us."""
    found: dict[str, list[float]] = {arm: [] for arm in ARMS}
    for number in range(1, arguments.rounds + 1):
        print(f"{name}: round {number} of {arguments.rounds}", file=sys.stderr)
        order = list(ARMS)
        with contextlib.ExitStack() as stack:
            words = [str(PROGRAM), name]
            if name == "proxy":
                _, line = start(stack, [str(floor), "http", "--host", "127.0.0.1", "--port", "0", "--workers", "1"], {})
                words += ["--to", f"127.0.0.1:{line.rpartition(':')[2]}", "--workers", str(arguments.workers)]
            servers = {}
            random.shuffle(order)
            for arm in order:
                runtime, environment = ARMS[arm]
                servers[arm] = start(stack, [*words, "--runtime", runtime], environment)
            used = dict.fromkeys(ARMS, 0)
            done = dict.fromkeys(ARMS, 0)
            # The first window warms up.
            for window in range(arguments.windows + 1):
                random.shuffle(order)
                for arm in order:
                    pid, port = servers[arm]
                    before = cpu_ns(pid)
                    count = (load_proxy if name == "proxy" else load_quic)(port, arguments.seconds)
                    if window:
                        used[arm] += cpu_ns(pid) - before
                        done[arm] += count
        for arm in ARMS:
            found[arm].append(used[arm] / done[arm] / 1000)
    return found


def ratio(ours: list[float], others: list[float]) -> str:
    """Return the ratio of two series with its interval."""
    logs = [math.log(one / other) for one, other in zip(ours, others, strict=True)]
    mean = statistics.mean(logs)
    half = stats.t.ppf(0.975, len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return f"{math.exp(mean):.2f} ({math.exp(mean - half):.2f} to {math.exp(mean + half):.2f})"


def main() -> int:
    """Do what the module's docstring says."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("service", nargs="?", choices=["proxy", "quic"], help="one of the two; both if left out")
    parser.add_argument("--rounds", type=int, default=7, help="fresh processes (default: %(default)s)")
    parser.add_argument("--windows", type=int, default=3, help="of each server in a round (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=0.7, help="of each window (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=1, help="threads of the proxy (default: %(default)s)")
    arguments = parser.parse_args()
    if arguments.rounds < 2:
        parser.error("--rounds must be at least 2: the interval comes from their scatter")
    TARGET.mkdir(parents=True, exist_ok=True)
    floor = build(TARGET)
    try:
        for name in [arguments.service] if arguments.service else ["proxy", "quic"]:
            found = measure(name, floor, arguments)
            for arm, costs in found.items():
                against = f"  {ratio(costs, found['tokio'])} of tokio" if arm != "tokio" else ""
                print(f"{name:6} {arm:20} {statistics.median(costs):9.2f} us of CPU per operation{against}")
    except Failed as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
