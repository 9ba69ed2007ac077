"""How a trial is run: its server, which is started or runs already, and the load on it.

The runner says what is measured. An executor says where: `Local` runs everything on this machine, ringlab.cluster on several.
What happens on the machine of the server is the same for both (`hosted`).
"""

import contextlib
import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ringlab import generator, instruments, manifest, preflight, process, results
from ringlab.instruments import Instrument, Instruments
from ringlab.manifest import MARK
from ringlab.process import SampleFailed, Server


class MachineLost(Exception):
    """A machine that takes part in a trial is gone, which says nothing about the arm: the trial must be repeated."""

    def __init__(self, machine: str, reason: str) -> None:
        """Take the machine's name, and how that showed."""
        super().__init__(f"{machine} {reason}")
        self.machine = machine


class NoMachines(Exception):
    """A lost machine hasn't come back, and nothing can take its place: nothing more can be measured."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """The server that a trial needs."""

    arm: manifest.Arm
    kind: str
    """The kind of its server: echo, http, asgi or wsgi."""
    workers: int
    feature: str = ""
    memory_bytes: float = math.inf
    verified: bool = True
    """Whether what the arm declares is looked up before anything else."""


@dataclass
class Loaded:
    """The measurements of a load."""

    event: dict[str, Any]
    """The load generator's result, or those of several as one."""
    figures: dict[str, float] = field(default_factory=dict)
    """Of the machine of the server."""
    counted: dict[str, float] = field(default_factory=dict)
    stacks: dict[tuple[str, ...], int] = field(default_factory=dict)
    """The reading of an instrument, if one was asked for."""


class Serving(Protocol):
    """A server while it is measured."""

    checks: Sequence[results.Check]
    """The declarations of the arm, looked up on its process."""
    complaint: str
    """How it ended, where that wasn't as it should; known after the end."""

    def ask(self, words: Sequence[str], limit_s: float, final: str = "result") -> dict[str, Any]:
        """Run one load generator that measures nothing; return its last event."""

    def load(self, words: Sequence[str], expected_s: float, instrument: Instrument | None = None) -> Loaded:
        """Load the server, as the words of the load generator say, and look into it meanwhile, if that is asked for."""


class Executor(Protocol):
    """Runs trials."""

    @property
    def records(self) -> list[results.Machine]:
        """The machines that take part, where there are several."""

    def serve(self, order: Order) -> AbstractContextManager[Serving]:
        """Give a server, and end it; errors inside of the block are SampleFailed, SampleVoid and MachineLost."""

    def instruments(self) -> Instruments:
        """Return what can look into a server; raise MachineLost."""

    def ceiling(self, words: Sequence[str], expected_s: float) -> list[dict[str, Any]]:
        """Return what each load generator reaches by itself, all at once; errors as in serve()."""

    def recover(self) -> None:
        """Wait until a trial can be run after a machine was lost; raise NoMachines."""


@dataclass
class Hosted:
    """A server on this machine."""

    server: Server
    memory_bytes: float
    checks: Sequence[results.Check] = ()
    complaint: str = ""

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Watch the server's memory while it is loaded; raise SampleFailed where it ends, or takes too much."""
        with process.MemoryWatch(self.server, self.memory_bytes):
            yield
        self.server.check_alive("while it was measured")


@contextlib.contextmanager
def hosted(order: Order, host: str, cpus: list[int]) -> Iterator[Hosted]:
    """Start a server at an address of this machine, verify it, and keep it on its CPUs; what goes wrong is SampleFailed."""
    server = Server(order.arm, order.kind, order.workers, order.feature, host)
    hosting = Hosted(server, order.memory_bytes)
    try:
        with server:
            if order.verified:
                hosting.checks = process.verify(server)
                pin(server, cpus)
            yield hosting
    except SampleFailed as failure:
        raise SampleFailed(f"{failure}{died(server, str(failure))}") from None
    if server.ending is not None:
        hosting.complaint = server.ending.complaint


def pin(server: Server, cpus: list[int]) -> None:
    """Keep a server, which listens, on its CPUs."""
    for pid in server.tree():
        process.pin(pid, cpus)


def died(server: Server, told: str) -> str:
    """Say how a server ended that wasn't asked to, unless that has been told."""
    ending = server.ending
    if ending is None or not ending.by_itself or "the server" in told:
        return ""
    return f"; the server had ended by itself, with code {ending.code}{ending.words}"


def cpu_words(cpus: Sequence[int]) -> list[str]:
    """Return the load generator's words about its own CPUs."""
    return ["--cpu", ",".join(map(str, cpus))] if cpus else []


def account_words(server: Server) -> list[str]:
    """Return the load generator's words about a server's processes, which count whenever they start and end."""
    return ["--account", str(server.pid), "--account-mark", f"{MARK}={server.mark}"]


def responder_words(cpus: Sequence[int]) -> list[str]:
    """Return the load generator's words about the CPU of its responder."""
    return ["--responder-cpu", str(cpus[0])] if cpus else []


@dataclass
class Local:
    """Runs everything on this machine."""

    program: Path | None
    """The load generator; None where no cell needs it."""
    placement: results.Placement
    records: list[results.Machine] = field(default_factory=list)

    @contextlib.contextmanager
    def serve(self, order: Order) -> Iterator[Serving]:
        """Start the server, if it doesn't run already."""
        if order.arm.address:
            yield LocalServing(self, order.arm.address)
            return
        with hosted(order, process.HOST, self.placement.server) as hosting:
            serving = LocalServing(self, hosting.server.address, hosting, hosting.checks)
            yield serving
        serving.complaint = hosting.complaint

    def instruments(self) -> Instruments:
        """Return what this machine has."""
        return instruments.find()

    def ceiling(self, words: Sequence[str], expected_s: float) -> list[dict[str, Any]]:
        """Run the load generator against its own responder, which has the server's CPU."""
        assert self.program is not None
        words = [*words, *cpu_words(self.placement.client), *responder_words(self.placement.server)]
        return [generator.run(self.program, words, expected_s)]

    def recover(self) -> None:
        """Do nothing: nothing is ever lost."""


@dataclass
class LocalServing:
    """A server that is loaded from this machine."""

    executor: Local
    address: str
    hosting: Hosted | None = None
    checks: Sequence[results.Check] = ()
    complaint: str = ""

    def ask(self, words: Sequence[str], limit_s: float, final: str = "result") -> dict[str, Any]:
        """Run the load generator, and account for nothing."""
        return self.generate(words, limit_s, final=final)

    def load(self, words: Sequence[str], expected_s: float, instrument: Instrument | None = None) -> Loaded:
        """Run the load generator, and account for the server's processes."""
        watch = StealWatch()
        if self.hosting is None:
            return Loaded(self.generate(words, expected_s, watch.see))
        account = account_words(self.hosting.server)
        with self.hosting.watched(), instruments.applied(instrument, self.hosting.server.tree()) as reading:

            def see(event: dict[str, Any]) -> None:
                watch.see(event)
                reading.see(event)

            event = self.generate([*words, *account], expected_s, see)
        return Loaded(event, watch.figures(), reading.counted, reading.stacks)

    def generate(
        self,
        words: Sequence[str],
        expected_s: float,
        on_event: generator.OnEvent | None = None,
        final: str = "result",
    ) -> dict[str, Any]:
        """Run the load generator against the server."""
        assert self.executor.program is not None
        words = [*words, "--address", self.address, *cpu_words(self.executor.placement.client)]
        return generator.run(self.executor.program, words, expected_s, on_event, final)


@dataclass
class StealWatch:
    """How much of the measured window the hypervisor took away."""

    begin: tuple[int, int] | None = None
    end: tuple[int, int] | None = None

    def see(self, event: dict[str, Any]) -> None:
        """Take an event of the load generator."""
        if event["event"] == "window_start":
            self.begin = preflight.cpu_ticks()
        elif event["event"] == "window_end":
            self.end = preflight.cpu_ticks()

    def figures(self) -> dict[str, float]:
        """Return the share of all CPUs' time, if both ends of the window were seen."""
        if self.begin is None or self.end is None or self.end[0] <= self.begin[0]:
            return {}
        return {"stolen_share": (self.end[1] - self.begin[1]) / (self.end[0] - self.begin[0])}
