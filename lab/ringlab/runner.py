"""The race: rounds that run every arm once, each in a fresh process and in a new random order.

A sample of a server is: start, ready, verify, pin, ramp, warm up, window, drain, stop. What was measured is written after every
cell, and Ctrl-C ends the race early and keeps it.
"""

import datetime
import math
import os
import random
import statistics as averages
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, TypeGuard

from ringlab import analysis, generator, manifest, preflight, process, results, statistics, system_calls, workloads
from ringlab.process import SampleFailed, SampleVoid, Server
from ringlab.workloads import CellPlan

FAILURES_MOST = 2
"""After this many failures in a cell, an arm isn't tried again there: each failure may take the whole time limit."""
CEILING_WINDOW_S = 1.0
PROGRAM_GRACE_S = 60.0
BIND_COUNT_FIRST = 200
BIND_TRIALS_MOST = 6
BIND_COUNT_MOST = 5_000_000


class Progress(Protocol):
    """Reports progress while the race runs."""

    def step(self, text: str) -> None:
        """Something begins that may take a while."""

    def advance(self, expected_s: float) -> None:
        """A part of the race is over, which was expected to take this long."""

    def cell_done(self, cell: results.Cell) -> None:
        """A cell has been measured and analysed."""

    def warn(self, text: str) -> None:
        """Something is wrong that the user can fix while the race runs."""


@dataclass
class Options:
    """How the race is run, beyond which cells and arms."""

    workers: int = 1
    baseline: str = ""
    again: bool = True
    """Run an A/A arm."""
    system_calls: bool = False
    ceilings: bool = True
    limit_s: float = 0.0
    """If not 0, cells end early, but not before statistics.ROUNDS_LEAST rounds, where the race would take longer than this, counted from
    when it began."""


@dataclass
class Race:
    """One run of the lab."""

    result: results.Result
    arms: dict[str, manifest.Arm]
    """Those that are present, by name."""
    plans: list[CellPlan]
    program: Path | None
    """The load generator; None where no cell needs it."""
    output: Path
    progress: Progress
    options: Options = field(default_factory=Options)
    begun: float = field(default_factory=time.monotonic)
    stolen_begin_s: float = field(default_factory=preflight.stolen_s)
    bind_counts: dict[tuple[str, str], int] = field(default_factory=dict)
    ceilings: dict[str, results.Ceiling | None] = field(default_factory=dict)
    unwritten: str = ""
    """Why the result couldn't be written the last time; it is tried again after every cell."""
    ports_held: bool = False
    """Closed connections held many ports for longer than a single one holds its port."""

    @property
    def scale(self) -> results.Scale:
        """How long and how often is measured."""
        return self.result.run.scale

    def contestants(self, plan: CellPlan, cell: results.Cell | None = None) -> list[manifest.Arm]:
        """Return the arms of a cell, the A/A arm among them, without those that have turned out to be unable."""
        unable = cell.unable if cell is not None else {}
        arms = [arm for arm in self.arms.values() if plan.served_by(arm) and arm.name not in unable]
        if arms and self.options.again:
            reference = analysis.choose_baseline([arm.name for arm in arms], self.options.baseline, plan.workload)
            arms.append(self.arms[reference].again())
        return arms

    def expected_s(self, plan: CellPlan) -> float:
        """Return about how long a cell takes."""
        return self.scale.rounds * self.round_s(plan)

    def round_s(self, plan: CellPlan) -> float:
        """Return about how long a round of a cell takes."""
        return sum(plan.sample_s(self.scale_of(arm)) for arm in self.contestants(plan))

    def scale_of(self, arm: manifest.Arm) -> results.Scale:
        """Return the scale, with a longer warm-up for an arm that needs one."""
        return replace(self.scale, warm_up_s=max(self.scale.warm_up_s, arm.warm_up_s))

    def cell_limit_s(self, plan: CellPlan) -> float:
        """Return how long a cell may take, of the time that is left."""
        remaining = self.plans[self.plans.index(plan) :]
        return self.left_s() * self.expected_s(plan) / sum(self.expected_s(each) for each in remaining)

    def left_s(self) -> float:
        """Return how long the race may still take."""
        return self.options.limit_s - (time.monotonic() - self.begun) if self.options.limit_s else math.inf

    def prepare(self) -> None:
        """Put every planned cell into the result, so that an unfinished one shows what is missing."""
        known = {cell.name for cell in self.result.cells}
        for plan in self.plans:
            contestants = self.contestants(plan)
            self.record(contestants)
            if plan.name not in known:
                cell = plan.record(self.scale)
                cell.arms = [arm.name for arm in contestants]
                if not contestants:
                    cell.left_out = "no arm that can run here serves it"
                self.result.cells.append(cell)

    def record(self, arms: Sequence[manifest.Arm]) -> None:
        """Put arms into the result that it doesn't have."""
        recorded = {arm.name for arm in self.result.arms}
        self.result.arms += [arm.record() for arm in arms if arm.name not in recorded]

    def run(self) -> None:
        """Measure what the result lacks; an interrupt ends it early, and is no error."""
        self.prepare()
        self.write()
        cells = {cell.name: cell for cell in self.result.cells}
        current: results.Cell | None = None
        try:
            for plan in self.plans:
                current = cells[plan.name]
                if not current.left_out:
                    self.run_cell(plan, current)
            self.result.run.complete = True
        except KeyboardInterrupt:
            self.result.run.interrupted = True
            if current is not None and current.samples:
                self.conclude(current)
        finally:
            self.write()

    def write(self) -> None:
        """Write all that is known."""
        run, environment = self.result.run, self.result.environment
        run.ended = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        environment.load_average_end = list(os.getloadavg())
        environment.stolen_s = preflight.stolen_s() - self.stolen_begin_s
        try:
            self.result.write(self.output)
            self.unwritten = ""
        except OSError as error:
            self.unwritten = f"{self.output} can't be written: {error.strerror}"
            self.progress.warn(f"{self.unwritten}; it is tried again after every cell")

    def conclude(self, cell: results.Cell) -> None:
        """Analyse a cell, write the result, and tell."""
        by_name = {arm.name: arm for arm in self.result.arms}
        cell.analysis = analysis.analyse(cell, [by_name[name] for name in cell.arms], self.options.baseline)
        self.write()
        self.progress.cell_done(cell)

    def run_cell(self, plan: CellPlan, cell: results.Cell) -> None:
        """Measure a cell's rounds, as far as the result lacks them."""
        if plan.workload == "asgi" and not cell.orders:
            self.leave_out_unable(plan, cell)
        contestants = [arm for arm in self.contestants(plan, cell) if arm.name in cell.arms]
        if not contestants:
            cell.left_out = "no arm that can run here can do it"
            self.conclude(cell)
            return
        done = finished_rounds(cell)
        counts = self.options.system_calls and plan.kind in manifest.SERVERS and not plan.idle
        counted = {each.arm for each in cell.system_calls}
        uncounted = [arm for arm in contestants if not arm.repeats and arm.name not in counted] if counts else []
        if done >= self.scale.rounds and not any(cell.measured(arm.name) for arm in uncounted):
            self.progress.advance(self.expected_s(plan))
            return
        begun, limit_s = time.monotonic(), self.cell_limit_s(plan)
        # An unfinished round is measured anew: its pairs would be from different times.
        cell.orders = cell.orders[:done]
        cell.samples = [sample for sample in cell.samples if sample.round <= done]
        self.progress.advance(done * self.round_s(plan))
        rate = 0.0
        if plan.percent:
            rate = self.choose_rate(plan, cell)
            if not rate:
                cell.left_out = f"{plan.follows} gave no rate"
                return
            cell.parameters["offered_rate_per_s"] = rate
        if plan.workload == "http":
            self.probe(cell, contestants)
        if plan.kind in ("echo", "http") and not plan.stream and self.options.ceilings:
            cell.ceiling = self.measure_ceiling(plan)
        if plan.workload == "bind":
            self.progress.step(f"{plan.name}: waiting until closed connections release their ports")
            # If other programs create them faster than they disappear, there is no point in waiting again.
            if self.ports_held or not preflight.drain_time_wait():
                self.ports_held = True
                self.note(f"{plan.name}: many sockets were in TIME_WAIT all along, which makes binding slow")
        for number in range(done + 1, self.scale.rounds + 1):
            if number > statistics.ROUNDS_LEAST and (time.monotonic() - begun) * number / (number - 1) > limit_s:
                self.note(
                    f"{plan.name} ended after {number - 1} of {self.scale.rounds} rounds, because a quick run has no time for more"
                )
                self.progress.advance((self.scale.rounds - number + 1) * self.round_s(plan))
                break
            order = list(contestants)
            # Each round has its own generator, so that a resumed run uses the same orders.
            random.Random(f"{self.result.run.seed} {plan.name} {number}").shuffle(order)
            cell.orders.append([arm.name for arm in order])
            for position, arm in enumerate(order, 1):
                if failures(cell, arm.name) < FAILURES_MOST:
                    self.progress.step(f"{plan.name}, round {number} of {self.scale.rounds}, {arm.name}")
                    sample = self.measure(plan, cell, arm, number, position, rate)
                    cell.samples.append(sample)
                self.progress.advance(plan.sample_s(self.scale_of(arm)))
        self.count_system_calls(plan, cell, uncounted, rate)
        self.conclude(cell)

    def note(self, text: str) -> None:
        """Keep a sentence about the run, once."""
        if text not in self.result.run.notes:
            self.result.run.notes.append(text)

    def choose_rate(self, plan: CellPlan, cell: results.Cell) -> float:
        """Return the rate of an open loop: a share of what the slowest arm did in the closed loop."""
        followed = next(each for each in self.result.cells if each.name == plan.follows)
        medians = {}
        for arm in cell.arms:
            rates = [sample.figures["operations_per_s"] for sample in followed.measured(arm)]
            if rates:
                medians[arm] = averages.median(rates)
        if not medians:
            return 0.0
        slowest = min(medians, key=lambda arm: medians[arm])
        cell.parameters["of"] = slowest
        return round(medians[slowest] * plan.percent / 100, 1)

    def measure(
        self, plan: CellPlan, cell: results.Cell, arm: manifest.Arm, number: int, position: int, rate: float
    ) -> results.Sample:
        """Measure one arm once; what goes wrong is in the sample."""
        sample = results.Sample(
            arm=arm.name,
            round=number,
            position=position,
            begun_s=time.monotonic() - self.begun,
            duration_s=0.0,
            status="measured",
        )
        begin = time.monotonic()
        try:
            if plan.workload == "bind":
                self.measure_bind(plan, arm, sample)
            elif plan.workload == "loop":
                self.measure_loop(plan, arm, sample)
            else:
                self.measure_server(plan, cell, arm, sample, rate)
        except SampleVoid as wrong:
            sample.status = "void"
            sample.reasons.append(str(wrong))
        except (SampleFailed, OSError) as failure:
            sample.status = "failed"
            sample.reasons.append(str(failure))
        sample.duration_s = time.monotonic() - begin
        return sample

    def workers(self, arm: manifest.Arm) -> int:
        """Return how many workers an arm is asked for."""
        most = arm.declares.max_workers
        return min(self.options.workers, most) if most else self.options.workers

    def measure_bind(self, plan: CellPlan, arm: manifest.Arm, sample: results.Sample) -> None:
        """Time the opening of sockets, repeated until it takes long enough to be timed."""
        least_ns = workloads.PROGRAM_WINDOW_S_LEAST * 1e9
        wanted_ns = max(1.1 * least_ns, plan.window_s(self.scale) * 1e9)
        key = (plan.name, arm.repeats or arm.name)
        count = self.bind_counts.get(key, BIND_COUNT_FIRST)
        for _ in range(BIND_TRIALS_MOST):
            asked = count
            command = arm.command("bind", mode=plan.mode, count=count, concurrent=plan.concurrent)
            content = process.run_program(arm, command, PROGRAM_GRACE_S + wanted_ns / 1e9)
            operations, ns = number_of(content, "operations"), number_of(content, "ns")
            if ns >= 0.7 * wanted_ns and ns >= least_ns:
                break
            factor = min(100.0, 1.1 * wanted_ns / max(ns, 1.0))
            count = min(BIND_COUNT_MOST, round(count * factor / plan.concurrent + 1) * plan.concurrent)
        self.bind_counts[key] = count
        sample.figures = {"operation_ns": ns / max(1.0, operations), "operations": operations, "window_s": ns / 1e9}
        if ns < least_ns:
            sample.status = "void"
            sample.reasons.append(f"{ns / 1e6:.3g} ms were measured, and at least {least_ns / 1e6:g} ms must be")
        elif operations != asked:
            sample.status = "void"
            sample.reasons.append(f"it was asked for {asked} operations but did {operations:g}")

    def measure_loop(self, plan: CellPlan, arm: manifest.Arm, sample: results.Sample) -> None:
        """Time an event loop by itself."""
        window_s = plan.window_s(self.scale)
        command = arm.command("loop", benchmark=plan.benchmark, window=f"{window_s:g}")
        content = process.run_program(arm, command, PROGRAM_GRACE_S + 3 * window_s)
        times = content.get("samples_ns")
        operations, ns = number_of(content, "operations"), number_of(content, "ns")
        if not isinstance(times, list) or not times or not all(map(is_number, times)) or operations <= 0:
            raise SampleFailed(f"it printed no samples_ns: {results.shorten(str(content))}")
        sample.figures = {"operation_ns": averages.median(times), "operations": operations, "window_s": ns / 1e9}
        figures = content.get("figures")
        for name, value in (figures if isinstance(figures, dict) else {}).items():
            if is_number(value):
                sample.figures[str(name)] = float(value)

    def measure_server(
        self, plan: CellPlan, cell: results.Cell, arm: manifest.Arm, sample: results.Sample, rate: float
    ) -> None:
        """Load a server in one process from another."""
        server = Server(arm, plan.kind, self.workers(arm), plan.feature)
        try:
            with server:
                self.keep_checks(arm, process.verify(server), sample)
                self.pin(server)
                if plan.workload == "asgi":
                    self.first_client(plan, server)
                scale = self.scale_of(arm)
                words = [*plan.load_options(scale, rate), "--hdr", *self.common_words(server)]
                watch = StealWatch()
                event = self.load(words, plan.sample_s(scale), watch.see)
                server.check_alive("while it was measured")
                try:
                    sample.figures = workloads.figures_of_load(plan, event) | watch.figures()
                    self.take_event(plan, cell, event, sample)
                except (KeyError, TypeError) as error:
                    text = f"the load generator's result isn't as expected ({error!r}): build both from one revision"
                    raise SampleFailed(text) from None
        except SampleFailed as failure:
            raise SampleFailed(f"{failure}{died(server, str(failure))}") from None
        finally:
            ending = server.ending
        if ending is not None and ending.complaint:
            self.note(f"{arm.name}: {ending.complaint}")

    def take_event(self, plan: CellPlan, cell: results.Cell, event: dict[str, Any], sample: results.Sample) -> None:
        """Put what the load generator measured into a sample, and judge whether it counts."""
        sample.errors = {
            kind: results.ErrorCount(count=int(each["count"]), first=str(each.get("first", "")))
            for kind, each in event["errors"].items()
        }
        for kind in ("service", "corrected", "cold"):
            histogram = event["latency"].get(kind)
            if histogram and histogram["count"] and histogram.get("hdr"):
                sample.histograms[kind] = histogram["hdr"]
        reasons = workloads.why_void(plan, event, plan.window_s(self.scale))
        if cell.primary.key not in sample.figures and not reasons:
            why = (event.get("server") or {}).get("error") or "the load generator gave none"
            reasons.append(f"no {cell.primary.title}: {why}")
        if reasons:
            sample.status = "void"
            sample.reasons += reasons
        achieved = event["operations_per_s"]
        if achieved is None:  # The run ended before the window was opened.
            return
        busy = workloads.busy_fraction(event) > workloads.CLIENT_BUSY
        if cell.ceiling is not None and not plan.percent:
            sample.client_limited = achieved * workloads.CEILING_FACTOR > cell.ceiling.operations_per_s
        else:
            sample.client_limited = busy or workloads.sent_late(event)

    def common_words(self, server: Server) -> list[str]:
        """Return the load generator's words about where, by whom and on whom."""
        # Its children count, too, whenever they start and end.
        account = ["--account", str(server.pid)]
        return ["--address", server.address, "--seed", str(self.result.run.seed), *account, *self.cpu_words()]

    def cpu_words(self) -> list[str]:
        """Return the load generator's words about its placement."""
        cpus = self.result.run.placement.client
        return ["--cpu", ",".join(map(str, cpus))] if cpus else []

    def load(
        self, words: list[str], expected_s: float, on_event: Callable[[dict[str, Any]], None] | None = None
    ) -> dict[str, Any]:
        """Run the load generator."""
        assert self.program is not None
        return generator.run(self.program, words, expected_s, on_event)

    def pin(self, server: Server) -> None:
        """Keep a server, which listens, on its CPUs."""
        for pid in server.tree():
            process.pin(pid, self.result.run.placement.server)

    def keep_checks(self, arm: manifest.Arm, checks: Sequence[results.Check], sample: results.Sample) -> None:
        """Keep what an arm's process really has, and void the sample where it isn't what the arm declares."""
        record = next(each for each in self.result.arms if each.name == arm.name)
        worst = {check.name: check for check in record.checks if check.status == "violated"}
        kept = {check.name: check for check in record.checks} | {check.name: check for check in checks} | worst
        record.checks = list(kept.values())
        for check in checks:
            if check.status == "violated":
                sample.status = "void"
                sample.reasons.append(f"{check.name} isn't as declared: {check.text} (declared: {check.declared})")

    def first_client(self, plan: CellPlan, server: Server) -> None:
        """Let one client come and go, as verify() does with other servers.

        Raises SampleVoid where its answer is wrong, and SampleFailed where it gets none.
        """
        assert self.program is not None
        words = [*plan.first_client(), "--address", server.address, *self.cpu_words()]
        event = generator.run(self.program, words, workloads.FIRST_CLIENT_S)
        for kind, error in event["errors"].items():
            wrong = kind in workloads.VOIDING
            raise (SampleVoid if wrong else SampleFailed)(f"its first client: {kind}: {error['first']}")
        if event.get("void"):
            raise SampleFailed(f"its first client: {event['void']}")

    def leave_out_unable(self, plan: CellPlan, cell: results.Cell) -> None:
        """Find out which ASGI servers can't do what a cell is about, before it is measured."""
        for arm in self.contestants(plan):
            if arm.repeats:
                continue
            self.progress.step(f"{plan.name}: whether {arm.name} can do it")
            server = Server(arm, plan.kind, self.workers(arm), plan.feature)
            try:
                with server:
                    self.first_client(plan, server)
            except SampleFailed as failure:
                cell.unable[arm.name] = f"{failure}{died(server, str(failure))}"
            except SampleVoid:
                pass  # It can do it, and does it wrong: that belongs into its samples.
        able = self.contestants(plan, cell)
        self.record(able)
        cell.arms = [arm.name for arm in able]

    def probe(self, cell: results.Cell, contestants: Sequence[manifest.Arm]) -> None:
        """Find out which HTTP servers parse; once for an arm, in whatever cell comes first."""
        known = {probe.arm: probe for each in self.result.cells for probe in each.probes}
        for arm in contestants:
            if arm.repeats:
                continue
            if arm.name not in known:
                self.progress.step(f"{cell.name}: what {arm.name} parses")
                known[arm.name] = self.probe_arm(arm)
        cell.probes = [known[arm.name] for arm in contestants if arm.name in known]

    def probe_arm(self, arm: manifest.Arm) -> results.Probe:
        """Send an HTTP server requests that a canned answer can't get right."""
        assert self.program is not None
        try:
            with Server(arm, "http", self.workers(arm)) as server:
                event = generator.run(
                    self.program, ["http", "--probe", "--address", server.address], 30.0, final="probe"
                )
        except SampleFailed as failure:
            return results.Probe(arm=arm.name, parser="unknown", text=str(failure))
        parser = event.get("parser")
        return results.Probe(
            arm=arm.name,
            parser=parser if parser in ("real", "canned") else "unknown",
            text=str(event.get("text", "")),
            answers={str(name): str(answer) for name, answer in event.get("answers", {}).items()},
        )

    def measure_ceiling(self, plan: CellPlan) -> results.Ceiling | None:
        """Find out what the load generator reaches by itself; once for cells that load alike."""
        key = plan.follows or plan.name
        if key not in self.ceilings:
            self.progress.step(f"{plan.name}: the load generator's own ceiling")
            closed = workloads.BY_NAME[plan.follows] if plan.follows else plan
            words = ["ceiling", closed.kind, "--connections", str(closed.connections), *self.cpu_words()]
            words += ["--size", str(closed.size_bytes)] if closed.kind == "echo" else []
            words += [
                "--warm-up",
                f"{self.scale.warm_up_s:g}",
                "--window",
                f"{min(CEILING_WINDOW_S, plan.window_s(self.scale)):g}",
            ]
            placement = self.result.run.placement
            if placement.server:
                words += ["--responder-cpu", str(placement.server[0])]
            try:
                event = self.load(words, plan.sample_s(self.scale))
                self.ceilings[key] = results.Ceiling(
                    # What its CPU time per operation allows: the responder may have been the limit of the rate itself.
                    operations_per_s=event["ceiling"]["operations_per_s"],
                    client_cpu_fraction=workloads.busy_fraction(event),
                )
            except (SampleFailed, KeyError, TypeError) as failure:
                self.note(f"no ceiling for {plan.name}: {failure}")
                self.ceilings[key] = None
        return self.ceilings[key]

    def count_system_calls(
        self, plan: CellPlan, cell: results.Cell, contestants: Sequence[manifest.Arm], rate: float
    ) -> None:
        """Count system calls per operation, each arm once, in a run apart from those that are timed."""
        contestants = [arm for arm in contestants if cell.measured(arm.name)]
        tool, why = preflight.system_call_tool() if contestants else ("", "")
        for arm in contestants:
            if not tool:
                cell.system_calls.append(results.SystemCalls(arm=arm.name, tool="", text=why))
                continue
            self.progress.step(f"{plan.name}: system calls of {arm.name}")
            try:
                with Server(arm, plan.kind, self.workers(arm), plan.feature) as server:
                    process.verify(server)
                    self.pin(server)
                    if plan.workload == "asgi":
                        self.first_client(plan, server)
                    # strace counts from the beginning, so nothing may be done that isn't counted as an operation.
                    scale = replace(self.scale, warm_up_s=0.0, ramp_s=0.0) if tool == "strace" else self.scale_of(arm)
                    words = plan.load_options(scale, rate, system_calls.WINDOW_S_LEAST) + self.common_words(server)
                    with system_calls.Counter(tool, server.tree()) as counter:
                        event = self.load(words, plan.sample_s(scale) + system_calls.WINDOW_S_LEAST, counter.see)
                counted = event["bytes_in"] / 1e6 if plan.stream else event["operations"]
                calls = counter.per_operation(counted, event["window_s"])
                cell.system_calls.append(
                    results.SystemCalls(arm=arm.name, tool=tool, operations=int(counted), per_operation=calls)
                )
            except (SampleFailed, SampleVoid, OSError) as failure:
                cell.system_calls.append(results.SystemCalls(arm=arm.name, tool=tool, text=str(failure)))


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


def died(server: Server, told: str) -> str:
    """Say how a server ended that wasn't asked to, unless that has been told."""
    ending = server.ending
    if ending is None or not ending.by_itself or "the server" in told:
        return ""
    return f"; the server had ended by itself, with code {ending.code}{ending.words}"


def failures(cell: results.Cell, arm: str) -> int:
    """Return how often an arm has failed in a cell."""
    return sum(1 for sample in cell.samples if sample.arm == arm and sample.status == "failed")


def finished_rounds(cell: results.Cell) -> int:
    """Return how many rounds, from the first on, have a sample of every arm that was still tried."""
    for index, order in enumerate(cell.orders):
        for arm in order:
            given_up = (
                sum(1 for each in cell.samples if each.arm == arm and each.status == "failed" and each.round <= index)
                >= FAILURES_MOST
            )
            if not given_up and not any(each.arm == arm and each.round == index + 1 for each in cell.samples):
                return index
    return len(cell.orders)


def is_number(value: object) -> TypeGuard[float]:
    """Whether a value from JSON, which Python reads more of than there is, is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def number_of(content: dict[str, Any], key: str) -> float:
    """Return a number of a program's output; raises SampleFailed where there is none."""
    value = content.get(key)
    if not is_number(value):
        raise SampleFailed(f"its output has no number {key!r}: {results.shorten(str(content))}")
    return float(value)
