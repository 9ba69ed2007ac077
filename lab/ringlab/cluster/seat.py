"""The part that runs on a machine of a cluster, within its worker: the tasks, and the functions by which the lab sees and steers them.

A task is blocking and has a seat, by which the lab talks to it: the lab looks at what a task has reported at least every few seconds, and
a server that nobody looks at is ended. None of this knows Dask.
"""

import contextlib
import hashlib
import math
import os
import platform
import queue
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import ringlab
from ringlab import (
    __version__,
    execution,
    generator,
    instruments,
    manifest,
    preflight,
    process,
    results,
    selection,
    sources,
)
from ringlab.process import SampleFailed

LEASE_S = 30.0
"""How long a server is kept that the lab doesn't look at."""
POLL_S = 0.2
OFFSET_VARIABLE = "RINGLAB_CLOCK_OFFSET_S"
"""For tests: the error of a machine's time of day."""
HASHED = 16


@dataclass
class Here:
    """This machine, as its worker was told."""

    name: str
    role: str
    host: str
    """The address at which other machines reach it."""
    cpus: list[int] = field(default_factory=list)
    """Those of what runs here; the kernel decides where there are none."""
    targets_folder: Path | None = None
    program: Path | None = None
    """The load generator."""
    arms: dict[str, manifest.Arm] = field(default_factory=dict)

    def arm(self, name: str) -> manifest.Arm:
        """Return an arm of this machine; raise SampleFailed."""
        if name not in self.arms:
            self.arms = {arm.name: arm for arm in manifest.discover(self.targets_folder, broken={})}
        if name not in self.arms:
            raise SampleFailed(f"{self.name} has no target {name}")
        return self.arms[name]

    def generator(self) -> Path:
        """Return the load generator."""
        if self.program is None:
            self.program = generator.find()
        return self.program


HERE: Here | None = None


def here() -> Here:
    """Return this machine."""
    assert HERE is not None, "only a worker of ringlab runs this"
    return HERE


class Abandoned(Exception):
    """Nobody looks at a task any more."""


class Seat:
    """By which the lab talks to a task."""

    def __init__(self) -> None:
        """Make one that was looked at now."""
        self.inbox: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.reports: dict[str, Any] = {}
        self.seen = time.monotonic()
        self.abandoned = False
        self.stdin: int | None = None

    def next(self) -> dict[str, Any]:
        """Wait for a message; raise Abandoned."""
        while True:
            self.check()
            with contextlib.suppress(queue.Empty):
                return self.inbox.get(timeout=POLL_S)

    def check(self) -> None:
        """Raise Abandoned where nobody waits for this task."""
        if self.abandoned or time.monotonic() - self.seen > LEASE_S:
            raise Abandoned(f"nobody has looked at it for {LEASE_S:g} s")

    def begin(self, start_ns: int) -> None:
        """Tell the load generator when to start."""
        if self.stdin is not None:
            with contextlib.suppress(OSError):  # It has ended, and its task says why.
                os.write(self.stdin, f"{start_ns}\n".encode())


SEATS: dict[str, Seat] = {}


@contextlib.contextmanager
def seated(task: str) -> Iterator[Seat]:
    """Give a task its seat."""
    seat = SEATS[task] = Seat()
    try:
        yield seat
    finally:
        del SEATS[task]


# --- what the lab calls while tasks run; each returns at once ---


def look(task: str) -> dict[str, Any]:
    """Return what a task has reported, nothing where it doesn't run."""
    seat = SEATS.get(task)
    if seat is None:
        return {}
    seat.seen = time.monotonic()
    return dict(seat.reports)


def tell(task: str, message: dict[str, Any]) -> None:
    """Send a message to a task."""
    if task in SEATS:
        SEATS[task].inbox.put(message)


def begin(task: str, start_ns: int) -> None:
    """Say when the load of a task starts, on this machine's CLOCK_MONOTONIC."""
    if task in SEATS:
        SEATS[task].begin(start_ns)


def abandon(task: str) -> None:
    """End a task soon, whatever it does."""
    if task in SEATS:
        SEATS[task].abandoned = True


def clocks() -> tuple[int, int]:
    """Return the time of day and CLOCK_MONOTONIC, in ns."""
    wrong_ns = round(float(os.environ.get(OFFSET_VARIABLE) or 0) * 1e9)
    return time.time_ns() + wrong_ns, time.monotonic_ns()


def sources_hash(folder: Path) -> str:
    """Return a hash of the files of a folder that people write."""
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        written = not any(part.startswith(".") or part in ("__pycache__", "node_modules", "target") for part in parts)
        if written and path.is_file() and path != sources.PROGRAM:
            found.update("/".join(parts).encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()[:HASHED]


def package_version() -> str:
    """Return ringlab's version here, with a hash of its sources."""
    return f"{__version__} ({sources_hash(Path(ringlab.__file__).parent)})"


def generator_version(program: Path) -> str:
    """Return the load generator's version here, or what is wrong with it."""
    try:
        return generator.version(program)
    except generator.GeneratorMissing as error:
        return str(error)


def describe() -> dict[str, Any]:
    """Return what this machine is and has."""
    me = here()
    return {
        "name": me.name,
        "role": me.role,
        "host": me.host,
        "cpu_model": preflight.cpu_model(),
        "cpus": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "ringlab": package_version(),
        "generator": generator_version(me.generator()),
    }


def find_instruments() -> instruments.Instruments:
    """Return what can look into a server here."""
    return instruments.find()


# --- tasks ---


def examine(connections: int) -> tuple[list[results.Finding], results.Environment]:
    """Return what preflight finds here, and what the machine is."""
    me = here()
    program = me.generator()
    placement = results.Placement(server=me.cpus, client=me.cpus, text="")
    skipped = ("CPUs",)
    found = [each for each in preflight.examine(connections, placement, program) if each.name not in skipped]
    return found, preflight.environment(program)


@dataclass(frozen=True)
class Ready:
    """An arm on the machine of the server."""

    record: results.Arm
    sources: str
    """A hash of the target's sources."""


def make_ready(names: Sequence[str]) -> list[Ready]:
    """Detect and build arms here."""
    me = here()
    me.arms = {arm.name: arm for arm in manifest.discover(me.targets_folder, broken={})}
    arms = [me.arms[name] for name in names if name in me.arms]
    present, records = selection.make_ready(arms, lambda text: print(text, file=sys.stderr, flush=True))
    ready = []
    for arm, record in zip(arms, records, strict=True):
        if arm.name in present:
            record.build = artefact_hash(arm)
        ready.append(Ready(record, sources_hash(arm.folder)))
    return ready


def artefact_hash(arm: manifest.Arm) -> str:
    """Return a hash of what was built, nothing where nothing was."""
    path = Path(arm.expand(arm.build.artefact)) if arm.build.artefact else None
    return hashlib.sha256(path.read_bytes()).hexdigest()[:HASHED] if path is not None and path.is_file() else ""


def serve(task: str, order: execution.Order) -> str:
    """Serve until the lab says `stop`, and account for each load of which it says when; return how the server ended."""
    me = here()
    arm = replace(me.arm(order.arm.repeats or order.arm.name), name=order.arm.name)
    limit = order.memory_bytes if math.isfinite(order.memory_bytes) else preflight.memory_limit(None)
    order = replace(order, arm=arm, memory_bytes=limit)
    with seated(task) as seat:
        with execution.hosted(order, me.host, me.cpus) as hosting:
            seat.reports["serving"] = {"address": hosting.server.address, "checks": list(hosting.checks)}
            while (message := seat.next())["do"] != "stop":
                account(seat, hosting, message)
        return hosting.complaint


def account(seat: Seat, hosting: execution.Hosted, message: dict[str, Any]) -> None:
    """Account for the server's processes over the window of a load, and look into them with an instrument, if there is one.

    What is reported has the load's number: a server may be loaded again and again.
    """
    number = message["number"]
    watch = execution.StealWatch()

    def see(event: dict[str, Any]) -> None:
        if event["event"] == "accounting":
            seat.reports["accounting"] = number
        watch.see(event)
        reading.see(event)

    words = ["account", *message["words"], *execution.account_words(hosting.server)]
    with hosting.watched(), instruments.applied(message["instrument"], hosting.server.tree()) as reading:
        event = run_on_time(seat, words, message["expected_s"], see)
    seat.reports["accounted"] = {
        "number": number,
        "event": event,
        "figures": watch.figures(),
        "counted": reading.counted,
        "stacks": reading.stacks,
    }


def generate(task: str, words: Sequence[str], expected_s: float, final: str = "result") -> dict[str, Any]:
    """Run a load generator, and return its last event."""

    with seated(task) as seat:

        def see(event: dict[str, Any]) -> None:
            if event["event"] == "connected":
                seat.reports["connected"] = True

        return run_on_time(seat, [*words, *execution.cpu_words(here().cpus)], expected_s, see, final)


def ceiling(task: str, words: Sequence[str], expected_s: float) -> dict[str, Any]:
    """Run a load generator against its own responder, which has another CPU of this machine, and return its last event."""
    me = here()
    others = sorted(os.sched_getaffinity(0).difference(me.cpus)) if me.cpus else []
    words = [*words, *execution.cpu_words(me.cpus), *execution.responder_words(others)]
    with seated(task) as seat:
        return generator.run(me.generator(), words, expected_s, check=seat.check)


def run_on_time(
    seat: Seat, words: list[str], expected_s: float, see: generator.OnEvent, final: str = "result"
) -> dict[str, Any]:
    """Run the load generator, which can be told when to start."""
    reading, writing = os.pipe()
    seat.stdin = writing
    try:
        return generator.run(here().generator(), words, expected_s, see, final, stdin=reading, check=seat.check)
    finally:
        seat.stdin = None
        os.close(writing)
        os.close(reading)


def end_everything() -> None:
    """End all that this worker has started, whatever happens to it."""
    process.end_marked()
