"""How a trial is run: its server, which is started or runs already, and the load on it."""

import contextlib
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ringlab import generator, manifest, preflight, process, results, system_calls
from ringlab.process import SampleFailed, Server


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
    """The load generator's result."""
    figures: dict[str, float] = field(default_factory=dict)
    """Of the machine."""
    counted: dict[str, float] = field(default_factory=dict)
    """By event, as system_calls.per_operation() takes it, if that was asked for."""


def died(server: Server, told: str) -> str:
    """Say how a server ended that wasn't asked to, unless that has been told."""
    ending = server.ending
    if ending is None or not ending.by_itself or "the server" in told:
        return ""
    return f"; the server had ended by itself, with code {ending.code}{ending.words}"


def cpu_words(cpus: Sequence[int]) -> list[str]:
    """Return the load generator's words about its own CPU, the first of these."""
    return ["--cpu", str(cpus[0])] if cpus else []


def account_words(server: Server) -> list[str]:
    """Return the load generator's words about a server's processes, which count whenever they start and end."""
    return ["--account", str(server.pid), "--account-below", str(server.guardian)]


@dataclass
class Executor:
    """Runs trials on this machine."""

    program: Path | None
    """The load generator; None where no cell needs it."""
    placement: results.Placement

    @contextlib.contextmanager
    def serve(self, order: Order) -> Iterator["Serving"]:
        """Start the server, if it doesn't run already, and end it; errors inside of the block are SampleFailed and SampleVoid."""
        if order.arm.address:
            yield Serving(self, order.arm.address)
            return
        server = Server(order.arm, order.kind, order.workers, order.feature)
        try:
            with server:
                serving = Serving(self, server.address, server, order.memory_bytes)
                if order.verified:
                    serving.checks = process.verify(server)
                    for pid in server.tree():
                        process.pin(pid, self.placement.server)
                yield serving
        except SampleFailed as failure:
            raise SampleFailed(f"{failure}{died(server, str(failure))}") from None
        if server.ending is not None:
            serving.complaint = server.ending.complaint

    def ceiling(self, words: Sequence[str], expected_s: float) -> dict[str, Any]:
        """Run the load generator against its own responder, which has the server's CPU."""
        responder = ["--responder-cpu", str(self.placement.server[0])] if self.placement.server else []
        return self.generate([*words, *responder], expected_s)

    def generate(
        self,
        words: Sequence[str],
        expected_s: float,
        on_event: generator.OnEvent | None = None,
        final: str = "result",
    ) -> dict[str, Any]:
        """Run the load generator on its CPUs; return its last event."""
        assert self.program is not None
        return generator.run(self.program, [*words, *cpu_words(self.placement.client)], expected_s, on_event, final)


@dataclass
class Serving:
    """A server while it is measured."""

    executor: Executor
    address: str
    server: Server | None = None
    """None if the lab hasn't started it."""
    memory_bytes: float = math.inf
    checks: Sequence[results.Check] = ()
    """The declarations of the arm, looked up on its process."""
    complaint: str = ""
    """How it ended, where that wasn't as it should; known after the end."""

    def ask(self, words: Sequence[str], limit_s: float, final: str = "result") -> dict[str, Any]:
        """Run a load that measures nothing; return the load generator's last event."""
        return self.executor.generate([*words, "--address", self.address], limit_s, final=final)

    def load(self, words: Sequence[str], expected_s: float, tool: str = "", events: Sequence[str] = ()) -> Loaded:
        """Load the server, as the words of the load generator say, while a tool counts events in its processes, if one is named."""
        words = [*words, "--address", self.address]
        watch = Watch(self.server)
        if self.server is None:
            return Loaded(self.executor.generate(words, expected_s, watch.see))
        counter = system_calls.Counter(tool, self.server.tree(), events) if tool else None
        with process.MemoryWatch(self.server, self.memory_bytes), counter or contextlib.nullcontext():

            def see(event: dict[str, Any]) -> None:
                watch.see(event)
                if counter is not None:
                    counter.see(event)

            event = self.executor.generate([*words, *account_words(self.server)], expected_s, see)
        self.server.check_alive("while it was measured")
        return Loaded(event, watch.figures(), counter.counted if counter is not None else {})

    @contextlib.contextmanager
    def windows(self, words: Sequence[str], expected_s: float) -> Iterator["Windows"]:
        """Connect and warm up, and then measure a window whenever that is asked for; between them the load rests."""
        watch = Watch(self.server)
        words = [*words, "--windows-on-stdin", "--address", self.address, *cpu_words(self.executor.placement.client)]
        assert self.executor.program is not None
        with contextlib.ExitStack() as stack:
            if self.server is not None:
                words += account_words(self.server)
                stack.enter_context(process.MemoryWatch(self.server, self.memory_bytes))
            load = stack.enter_context(generator.Load(self.executor.program, words, watch.see))
            load.until("resting", expected_s)
            yield Windows(load, watch)
        if self.server is not None:
            self.server.check_alive("while it was measured")


@dataclass
class Windows:
    """A load that rests until it is asked for a window."""

    running: generator.Load
    watch: "Watch"

    def measure(self, window_s: float) -> bool:
        """Measure one window, and return whether there can be another one."""
        return self.running.measure(window_s)

    def loaded(self) -> Loaded:
        """Return the measurements of all windows together, and end the load."""
        return Loaded(self.running.result(0.0), self.watch.figures())


@dataclass
class Watch:
    """The share of the measured windows that others have taken: the hypervisor, other programs, processes that serve unseen."""

    server: Server | None = None
    begin: dict[str, float] = field(default_factory=dict)
    grown: dict[str, float] = field(default_factory=dict)
    """By how much the counters grew in all windows together."""

    def see(self, event: dict[str, Any]) -> None:
        """Take an event of the load generator; raise SampleVoid where another process than the server's serves."""
        if event["event"] == "window_start":
            self.begin = self.read()
            # It reads the descriptors of all processes, so once in a sample must do.
            if self.server is not None and not self.grown:
                process.check_owners(self.server)
        elif event["event"] == "window_end":
            for name, value in self.read().items():
                if name in self.begin:
                    self.grown[name] = self.grown.get(name, 0.0) + value - self.begin[name]

    def read(self) -> dict[str, float]:
        """Return the counters."""
        found = preflight.pressure_s()
        found["at"] = time.monotonic()
        found["ticks"], found["stolen"] = preflight.cpu_ticks()
        if self.server is not None:
            found |= {"run_delay": process.run_delay_s(self.server.tree())}
        return found

    def figures(self) -> dict[str, float]:
        """Return shares of the windows, if any were seen; that of the hypervisor is of all CPUs' time."""
        grown = self.grown
        if not grown.get("at") or not grown.get("ticks"):
            return {}
        found = {"stolen_share": grown["stolen"] / grown["ticks"]}
        for name in ("pressure", "run_delay"):
            if name in grown:
                found[f"{name}_share"] = max(0.0, grown[name] / grown["at"])
        return found
