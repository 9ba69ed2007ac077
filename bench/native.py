"""Race the native runtime against tokio, monoio, hyper on tokio and raw C, in paired rounds and fresh processes.

A table with ratios is printed while the race runs, and JSON with every sample is written to --output. Ctrl-C ends it
early and keeps what was measured. docs/performance.md says how to read the figures.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path

# Run as a file, but made of modules of one package.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

from bench import cells, goals, measure, run  # noqa: E402
from bench.arms import Arm, Presence, last_line  # noqa: E402
from bench.cells import Cell, Metric  # noqa: E402
from bench.goals import NOISE, Finding, Verdict  # noqa: E402
from bench.results import CellResult  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
TARGETS = ROOT / "lab" / "targets"
CARGO_TARGET = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target").resolve()
PEERS_TARGET = TARGETS / "target"
EXAMPLES = CARGO_TARGET / "release" / "examples"
BUILD_TIMEOUT_S = 1800

CONTROL, RIVAL = "tokio", "monoio"
FLOORS = ("c-epoll", "c-io_uring")
SEVERAL = "echo, several workers"
"""The workload of cells in which an arm's workers share their CPUs with the load."""
BUFFER = ("--buffer", str(256 * 1024))
"""As large as ringloop's, so that nobody has to read a message twice."""


def floor(name: str) -> Arm:
    """A server in plain C."""
    program = str(measure.binary(name))
    timing = {"bind": (program, "bind", "--mode", "listen")} if name == FLOORS[0] else {}
    echo = (program, "echo", *BUFFER)
    return Arm(name, programs={"echo": echo, SEVERAL: echo, "http": (program, "http", *BUFFER)} | timing)


def peer(name: str, **more: tuple[str, ...]) -> Arm:
    """A runtime that ringloop is compared with."""
    program = str(PEERS_TARGET / "release" / name)
    own = {workload: (program, workload, *BUFFER) for workload in ("echo", "http")}
    return Arm(name, programs=own | {SEVERAL: own["echo"], "bind": (program, "bind", "--mode", "listen")} | more)


def ours(name: str, backend: str) -> Arm:
    """The native runtime on one backend."""
    examples = {"echo": "echo", "http": "http_raw", "hyper": "http_hello"}
    programs = {
        workload: (str(EXAMPLES / example), "--port", "0", "--backend", backend)
        for workload, example in examples.items()
    }
    programs["bind"] = (str(EXAMPLES / "bind"), "--mode", "listen", "--backend", backend)
    programs[SEVERAL] = programs["echo"]
    return Arm(name, own=True, programs=programs)


def unpinned(arm: Arm) -> Arm:
    """The same with workers that the kernel may move, as it may everybody else's. For cells of several workers only."""
    return Arm(f"{arm.name}-no-pin", own=True, programs={SEVERAL: (*arm.programs[SEVERAL], "--no-pin")})


ARMS = (
    ours("ringloop", "io_uring"),
    ours("ringloop-epoll", "epoll"),
    unpinned(ours("ringloop", "io_uring")),
    unpinned(ours("ringloop-epoll", "epoll")),
    peer(CONTROL, hyper=(str(PEERS_TARGET / "release" / "hyper"), "http", *BUFFER)),
    peer(RIVAL),
    *map(floor, FLOORS),
)

SERVER_CPU = replace(cells.SERVER_CPU, unit="us of CPU")
MESSAGES = (SERVER_CPU, cells.THROUGHPUT, cells.ROUND_TRIP, Metric("latency_us_p99", "us p99"))
REQUESTS = (SERVER_CPU, replace(cells.THROUGHPUT, unit="requests/s"), *MESSAGES[2:])
ANSWER = "Hello, World!"
HTTP_CONNECTIONS = (50, 500, 2000)
QUICK = {"echo/100KB/50", "echo-2/1KB/50", "http_raw/50", "hyper/50", "bind/listen"}


def echo_cells() -> list[Cell]:
    """Echo with one worker, and with two."""
    found = []
    for workers, connections in ((1, cells.CONNECTIONS), (2, (50, 500))):
        prefix, servers = ("echo", "one worker") if workers == 1 else (f"echo-{workers}", f"{workers} workers")
        for size, size_bytes in cells.SIZES.items():
            for count in connections:
                name, plural = f"{prefix}/{size}/{count}", "s" if count > 1 else ""
                found.append(
                    Cell(
                        name,
                        f"echo of {size} on {count} connection{plural}, {servers}, server CPU per message",
                        MESSAGES,
                        in_subset=workers == 1 or size in ("1KB", "16KB"),
                        in_quick=name in QUICK,
                        size_bytes=size_bytes,
                        connections=count,
                        workload="echo" if workers == 1 else SEVERAL,
                        workers=workers,
                    )
                )
    return found


def http_cells() -> list[Cell]:
    """A fixed answer to every request, the same by wrk, and hyper."""

    def cell(kind: str, what: str, workload: str, connections: int, *needs: str) -> Cell:
        name = f"{kind}/{connections}"
        return Cell(
            name,
            f"GET on {connections} connections, {what}, server CPU per request",
            REQUESTS,
            in_subset=not needs,
            in_quick=name in QUICK,
            needs=needs,
            body=ANSWER,
            connections=connections,
            workload=workload,
        )

    return [
        *(cell("http_raw", "a fixed answer", "http", connections) for connections in HTTP_CONNECTIONS),
        *(cell("hyper", "answered by hyper", "hyper", connections) for connections in HTTP_CONNECTIONS),
        *(
            cell("wrk", "a fixed answer, wrk as the load", "http", connections, "wrk")
            for connections in HTTP_CONNECTIONS
        ),
    ]


CELLS = (
    *echo_cells(),
    *http_cells(),
    Cell(
        "bind/listen",
        "bind, listen and close, one after the other, each",
        (cells.OPERATION_US,),
        in_subset=True,
        in_quick=True,
        micro="bind",
        workload="bind",
    ),
)


def choose(globs: list[str], *, full: bool, quick: bool) -> list[Cell]:
    """Return the cells that the options ask for."""
    return cells.choose(globs, full=full, quick=quick, every=CELLS)


# --- building ---


def cargo(*arguments: str) -> str:
    """Build something; return why that failed, if it did."""
    command = ["cargo", "build", "--release", "--locked", *arguments]
    try:
        # Its progress is for the terminal.
        done = subprocess.run(command, cwd=ROOT, timeout=BUILD_TIMEOUT_S, check=False, stdout=sys.stderr)
    except FileNotFoundError:
        return "cargo is not installed: see https://rustup.rs"
    except subprocess.TimeoutExpired:
        return f"{' '.join(command)} took over {BUILD_TIMEOUT_S} s"
    return f"{' '.join(command)} failed" if done.returncode else ""


@cache
def build_ours() -> str:
    """Build the examples."""
    examples = {Path(command[0]).name for arm in ARMS if arm.own for command in arm.programs.values()}
    names = [part for example in sorted(examples) for part in ("--example", example)]
    return cargo("--package", "ringloop", "--features", "hyper", "--target-dir", str(CARGO_TARGET), *names)


@cache
def build_peers() -> str:
    """Build the programs on other runtimes."""
    packages = [part for name in (CONTROL, RIVAL, "hyper") for part in ("--package", f"target-{name}")]
    return cargo("--manifest-path", str(TARGETS / "Cargo.toml"), "--target-dir", str(PEERS_TARGET), *packages)


def build_floor(name: str) -> str:
    """Compile a server in plain C."""
    sources = [TARGETS / name / "server.c", TARGETS / "support" / "server.h"]
    try:
        measure.compile_program(measure.binary(name), sources, ["-pthread"], ["-luring"] if "uring" in name else [])
    except measure.SetupFailed as failure:
        if "liburing.h" in str(failure):
            return "liburing's header is missing: apt-get install liburing-dev"
        return str(failure)
    return ""


def pinned_version(package: str) -> str:
    """The version of a package in the lock file of the peers."""
    found = re.search(rf'name = "{package}"\nversion = "(.*)"', (TARGETS / "Cargo.lock").read_text())
    return found[1] if found else ""


def backend_of(arm: Arm) -> str:
    """The backend that an arm of ours is told to use."""
    command = arm.programs[SEVERAL]
    return command[command.index("--backend") + 1]


def probe(arm: Arm) -> Presence:
    """Build an arm, and try it."""
    if arm.name in FLOORS:
        version, problem = "raw C", build_floor(arm.name)
    elif arm.own:
        version, problem = f"on {backend_of(arm)}", build_ours()
    else:
        version, problem = pinned_version(arm.name), build_peers()
        if "hyper" in arm.programs:
            version += f", hyper {pinned_version('hyper')}"
    if problem:
        return Presence(arm, version, problem=problem, broken=arm.own)
    try:
        # Which shows whether the kernel lets it have what it needs.
        with measure.serving([*arm.programs[SEVERAL], "--workers", "1"], arm.child_environment()):
            pass
    except measure.SampleFailed as failure:
        return Presence(arm, version, problem=last_line(str(failure)))
    return Presence(arm, version)


# --- goals ---


def better_of(arm: str, rival: str, results: Iterable[CellResult]) -> list[Finding]:
    """By how much an arm is ahead in server CPU or in throughput, whichever is more."""
    found = []
    for result in results:
        ratios = [result.advantage(arm, rival, metric.key) for metric in (SERVER_CPU, cells.THROUGHPUT)]
        known = [ratio for ratio in ratios if ratio]
        if known:
            found.append((result.cell.name, max(known, key=lambda ratio: ratio.median)))
    return found


def judge(found: dict[str, CellResult]) -> list[Verdict]:
    """Every goal on every backend that took part."""
    own = [arm.name for arm in ARMS if arm.own]
    took_part = [arm for arm in own if any(any(result.samples.get(arm, [])) for result in found.values())]
    return [verdict for arm in took_part for verdict in judge_arm(arm, found)]


def judge_arm(arm: str, found: dict[str, CellResult]) -> list[Verdict]:
    """Every goal on one backend."""

    def under(prefix: str) -> list[CellResult]:
        return [result for name, result in found.items() if name.startswith(prefix)]

    def of_the_floor(prefix: str) -> list[Finding]:
        ratios = (
            (f"{result.cell.name} over {result.floor}", result.ratio(arm, result.floor, result.cell.metrics[0].key))
            for result in under(prefix)
            if result.floor
        )
        return [(name, ratio) for name, ratio in ratios if ratio]

    def ahead(rival: str, prefix: str, metric: str = "") -> list[Finding]:
        ratios = (
            (result.cell.name, result.advantage(arm, rival, metric or result.cell.metrics[0].key))
            for result in under(prefix)
        )
        return [(name, ratio) for name, ratio in ratios if ratio]

    at_least, at_most = goals.at_least, goals.at_most
    p99 = MESSAGES[-1].key
    return [
        at_most("echo: at most 1.05x the better floor's CPU", arm, 1.05, of_the_floor("echo/")),
        at_least("echo: at least level with tokio", arm, 1 - NOISE, ahead(CONTROL, "echo/")),
        at_least("echo: 1.15x ahead of monoio", arm, 1.15, ahead(RIVAL, "echo/")),
        at_least(
            "two workers: 1.1x ahead of tokio in CPU or throughput", arm, 1.1, better_of(arm, CONTROL, under("echo-2/"))
        ),
        at_least("... and the p99 no worse", arm, 1 - NOISE, ahead(CONTROL, "echo-2/", p99)),
        at_least("http_raw: ahead of tokio", arm, 1, ahead(CONTROL, "http_raw/")),
        at_least("http_raw under wrk: ahead of tokio", arm, 1, ahead(CONTROL, "wrk/")),
        at_least("hyper: ahead of hyper on tokio", arm, 1, ahead(CONTROL, "hyper/")),
        at_most("bind, listen and close: at most 1.1x the system calls", arm, 1.1, of_the_floor("bind/")),
    ]


CONTEST = run.Contest(
    name="native",
    contestants=ARMS,
    control=CONTROL,
    floors=FLOORS,
    choose=choose,
    probe=probe,
    judge=judge,
    subset=replace(run.SUBSET, window_s=0.2),
    full=replace(run.FULL, rounds=7, window_s=0.6, warm_up_s=0.2),
)

if __name__ == "__main__":
    sys.exit(run.main(sys.argv[1:], CONTEST))
