"""The race: rounds that run every arm once, each in a fresh process and in a new random order.

A sample of a server is: start, ready, verify, pin, ramp, warm up, window, drain, stop. In closed loops the servers of a round live at
the same time, and take turns in short windows. What was measured is written after every cell, and Ctrl-C ends the race early and keeps
it.
"""

import contextlib
import datetime
import math
import os
import random
import statistics as averages
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, TypeGuard

from ringlab import (
    analysis,
    execution,
    figures,
    manifest,
    preflight,
    process,
    results,
    statistics,
    sweep,
    system_calls,
    workloads,
)
from ringlab.process import SampleFailed, SampleVoid
from ringlab.workloads import CellPlan

FAILURES_MAX = 2
"""After this many failures in a cell, or as many samples in a row that don't count, an arm isn't tried again there: each failure may
take the whole time limit, and what answers wrongly twice does it again."""
HIDDEN_SHARE = 1 / 3
"""A server whose CPU time is below this share of what the kernel alone takes in the same cell doesn't do the work itself."""
CEILING_SHARE = 1 / 8
"""The same share of the load generator's own time, of which a part isn't the kernel's."""
HIDDEN_CPU_S_MIN = 0.1
"""Less CPU time in a window tells too little of how much of it was the kernel's: it is known in ticks."""
LARGE_ECHOES = (16 * 1024, 64 * 1024)
"""Bytes, as whole cells of longer runs send them: a quick run sends them once to each server."""
CEILING_WINDOW_S = 1.0
PROGRAM_GRACE_S = 60.0
BIND_COUNT_FIRST = 200
BIND_TRIALS_MAX = 6
BIND_COUNT_MAX = 5_000_000


class Progress(Protocol):
    """Reports progress while the race runs."""

    def step(self, text: str) -> None:
        """Tell that something begins that may take a while."""

    def advance(self, expected_s: float) -> None:
        """Tell that a part of the race is over, which was expected to take this long."""

    def cell_done(self, cell: results.Cell) -> None:
        """Tell that a cell has been measured and analysed."""

    def warn(self, text: str) -> None:
        """Tell that something is wrong that the user can fix while the race runs."""


@dataclass
class Options:
    """How the race is run, beyond which cells and arms."""

    workers: int = 1
    baseline: str = ""
    again: bool = True
    """Run an A/A arm."""
    system_calls: bool = False
    ceilings: bool = True
    """Measure the load generator's own ceiling in every round, as if it were an arm."""
    memory_bytes: float = math.inf
    """A server that takes more is ended, before it takes all that the machine has."""
    limit_s: float = 0.0
    """If not 0, cells end early, but not before statistics.ROUNDS_MIN rounds, where the race would take longer than this, counted from
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
    overheads_s: dict[str, float] = field(default_factory=dict)
    """By arm and kind: what samples of earlier runs took beyond what was measured, for estimates of the time."""
    overheads_found_s: dict[str, float] = field(default_factory=dict)
    """The same of this run."""
    unwritten: str = ""
    """Why the result couldn't be written the last time; it is tried again after every cell."""
    wrong_echoes: dict[str, str] = field(default_factory=dict)
    """By arm: how it answered large messages wrongly; nothing if it didn't."""
    ports_held: bool = False
    """Closed connections held many ports for longer than a single one holds its port."""

    def executor(self, plan: CellPlan | None = None) -> execution.Executor:
        """Return what runs the trials, those of a cell or others."""
        placement = self.placement(plan) if plan is not None else self.result.run.placement
        return execution.Executor(self.program, placement)

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
        arms = sum(self.sample_s(plan, arm) for arm in self.contestants(plan))
        return arms + (plan.sample_s(self.ceiling_scale(plan)) if self.has_ceiling(plan) else 0.0)

    def sample_s(self, plan: CellPlan, arm: manifest.Arm) -> float:
        """Return about how long a sample takes, from how long the arm's took in an earlier run."""
        return plan.sample_s(self.scale_of(arm), self.overheads_s.get(overhead_key(plan, arm)))

    def has_ceiling(self, plan: CellPlan) -> bool:
        """Return whether the load generator's own ceiling is measured with a cell's arms: a closed loop is limited by it."""
        closed = plan.workload in ("echo", "http") and not plan.stream and not plan.percent and not plan.idle
        closed = closed and not plan.request  # The responder knows the lab's own request only.
        return closed and self.options.ceilings

    def ceiling_scale(self, plan: CellPlan) -> results.Scale:
        """Return how long the ceiling is measured."""
        share = min(1.0, CEILING_WINDOW_S / plan.window_s(self.scale))
        return replace(self.scale, window_s=share * self.scale.window_s)

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
            if unchecked := [cell.name for cell in self.result.cells if is_unchecked(cell)]:
                self.note(
                    f"{', '.join(unchecked)}: whether CPU time is hidden shows only in who holds the connections: no server in C took"
                    " part that says what the kernel alone takes, and nor did the load generator's ceiling"
                )
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
        # A round that was interrupted hasn't been looked at.
        void_hidden(cell)
        limit_by_ceiling(cell)
        cell.analysis = analysis.analyse(cell, [by_name[name] for name in cell.arms], self.options.baseline)
        self.write()
        self.progress.cell_done(cell)

    def run_cell(self, plan: CellPlan, cell: results.Cell) -> None:
        """Measure a cell's rounds, as far as the result lacks them."""
        if plan.has_first_client and not cell.orders:
            self.leave_out_unable(plan, cell)
        contestants = [arm for arm in self.contestants(plan, cell) if arm.name in cell.arms]
        if not contestants:
            cell.left_out = "no arm that can run here can do it"
            self.conclude(cell)
            return
        if plan.checked and not cell.orders:
            cell.left_out = self.why_unable(plan)
            if cell.left_out:
                self.conclude(cell)
                return
        done = finished_rounds(cell)
        counted_here = plan.kind in manifest.SERVERS and not plan.idle and not plan.sweeps
        counts = self.options.system_calls and counted_here
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
        if cell.of_http:
            self.probe(cell, contestants)
        if plan.kind == "echo" and self.scale.name == "quick":
            self.send_large(plan, contestants)
        if cell.ceiling is not None:
            cell.ceiling.rates = cell.ceiling.rates[:done]
        if plan.workload == "bind":
            self.progress.step(f"{plan.name}: waiting until closed connections release their ports")
            # If other programs create them faster than they disappear, there is no point in waiting again.
            if self.ports_held or not preflight.drain_time_wait():
                self.ports_held = True
                self.note(f"{plan.name}: many sockets were in TIME_WAIT all along, which makes binding slow")
        last = self.scale.rounds
        for number in range(done + 1, last + 1):
            before = number - 1 - done
            ended_s = (time.monotonic() - begun) * (1 + 1 / before) if before else 0.0
            if number > statistics.ROUNDS_MIN and ended_s > limit_s:
                self.note(
                    f"{plan.name} ended after {number - 1} of {last} rounds, because a quick run has no time for more"
                )
                self.progress.advance((last - number + 1) * self.round_s(plan))
                break
            order = contestants.copy()
            # Each round has its own generator, so that a resumed run uses the same orders.
            random.Random(f"{self.result.run.seed} {plan.name} {number}").shuffle(order)
            cell.orders.append([arm.name for arm in order])
            if self.has_ceiling(plan):
                self.measure_ceiling(plan, cell, number)
                self.progress.advance(plan.sample_s(self.ceiling_scale(plan)))
            turns = plan.takes_turns
            if turns:
                self.measure_in_turns(plan, cell, order, number)
            for position, arm in enumerate(order if not turns else (), 1):
                if not given_up(cell, arm.name):
                    self.progress.step(f"{plan.name}, round {number} of {last}, {arm.name}")
                    self.keep(plan, cell, arm, self.measure(plan, cell, arm, number, position, rate))
                self.progress.advance(self.sample_s(plan, arm))
            void_hidden(cell)
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
        sample = self.sample(arm, number, position)
        with self.trying(sample):
            self.check_large_echoes(plan, arm)
            if plan.workload == "bind":
                self.measure_bind(plan, arm, sample)
            elif plan.kind in manifest.SUBJECTS:
                self.measure_subject(plan, arm, sample)
            else:
                self.measure_server(plan, cell, arm, sample, rate)
        return sample

    def sample(self, arm: manifest.Arm, number: int, position: int) -> results.Sample:
        """Return a sample that begins."""
        begun_s = time.monotonic() - self.begun
        return results.Sample(
            arm=arm.name, round=number, position=position, begun_s=begun_s, duration_s=0.0, status="measured"
        )

    @contextlib.contextmanager
    def trying(self, sample: results.Sample) -> Iterator[None]:
        """Keep in a sample what goes wrong in the block, and how long it takes."""
        begin = time.monotonic()
        try:
            yield
        except SampleVoid as wrong:
            sample.status = "void"
            sample.reasons.append(str(wrong))
        except (SampleFailed, OSError) as failure:
            sample.status = "failed"
            sample.reasons.append(str(failure))
        sample.duration_s += time.monotonic() - begin

    def keep(self, plan: CellPlan, cell: results.Cell, arm: manifest.Arm, sample: results.Sample) -> None:
        """Put a sample into its cell, and learn how long its arm's take."""
        cell.samples.append(sample)
        beyond_s = sample.duration_s - plan.sample_s(self.scale_of(arm), 0.0)
        if sample.status == "measured":
            self.overheads_found_s[overhead_key(plan, arm)] = max(0.0, beyond_s)

    def measure_in_turns(self, plan: CellPlan, cell: results.Cell, order: Sequence[manifest.Arm], number: int) -> None:
        """Measure a round in which all servers live at the same time: one window each, to and fro, A B B A A B B A.

        So whatever changes steadily while the round lasts is the same for all.
        """
        turns: list[tuple[manifest.Arm, results.Sample, Generator[None]]] = []
        steps = 2 + plan.windows(self.scale)
        for position, arm in enumerate(order, 1):
            if not given_up(cell, arm.name):
                sample = self.sample(arm, number, position)
                turns.append((arm, sample, self.in_turns(plan, cell, arm, sample)))
            else:
                self.progress.advance(self.sample_s(plan, arm))
        try:
            for step in range(steps):
                for arm, sample, turn in turns if step % 2 else reversed(turns):
                    self.progress.step(f"{plan.name}, round {number} of {self.scale.rounds}, {arm.name}")
                    with self.trying(sample):
                        next(turn, None)
                    self.progress.advance(self.sample_s(plan, arm) / steps)
        finally:
            # Those of an interrupted round have servers that still run.
            with contextlib.ExitStack() as stack:
                for _, _, turn in turns:
                    stack.callback(turn.close)
        for arm, sample, _ in turns:
            self.keep(plan, cell, arm, sample)

    def in_turns(
        self, plan: CellPlan, cell: results.Cell, arm: manifest.Arm, sample: results.Sample
    ) -> Generator[None]:
        """Take a sample step by step, and let others do theirs after each: the server starts, windows, the server ends."""
        self.check_large_echoes(plan, arm)
        scale, windows = self.scale_of(arm), plan.windows(self.scale)
        words = [*plan.load_options(scale, windows=windows), "--hdr", "--seed", str(self.result.run.seed)]
        with self.served(plan, arm, sample) as serving:
            with serving.windows(words, plan.sample_s(scale)) as load:
                for _ in range(windows):
                    yield
                    if not load.measure(plan.window_s(scale) / windows):
                        break
                yield
                loaded = load.loaded()
            self.take_loaded(plan, cell, loaded, sample)

    def workers(self, arm: manifest.Arm, asked: int = 0) -> int:
        """Return how many workers an arm is asked for; `asked` is what a cell asks for, if it asks for any."""
        most, asked = arm.declares.max_workers, asked or self.options.workers
        return min(asked, most) if most else asked

    def placement(self, plan: CellPlan) -> results.Placement:
        """Return where a cell's server and load run: more workers than the run's share all CPUs with the load."""
        return results.Placement() if plan.workers > self.options.workers else self.result.run.placement

    def measure_bind(self, plan: CellPlan, arm: manifest.Arm, sample: results.Sample) -> None:
        """Time the opening of sockets, repeated until it takes long enough to be timed."""
        least_ns = workloads.PROGRAM_WINDOW_S_MIN * 1e9
        wanted_ns = max(1.1 * least_ns, plan.window_s(self.scale) * 1e9)
        key = (plan.name, arm.repeats or arm.name)
        count = self.bind_counts.get(key, BIND_COUNT_FIRST)
        for _ in range(BIND_TRIALS_MAX):
            asked = count
            command = arm.command("bind", mode=plan.mode, count=count, concurrent=plan.concurrent)
            content = process.run_program(arm, command, PROGRAM_GRACE_S + wanted_ns / 1e9)
            operations, ns = number_of(content, "operations"), number_of(content, "ns")
            if ns >= 0.7 * wanted_ns and ns >= least_ns:
                break
            factor = min(100.0, 1.1 * wanted_ns / max(ns, 1.0))
            count = min(BIND_COUNT_MAX, round(count * factor / plan.concurrent + 1) * plan.concurrent)
        self.bind_counts[key] = count
        sample.figures = {"operation_ns": ns / max(1.0, operations), "operations": operations, "window_s": ns / 1e9}
        if ns < least_ns:
            sample.status = "void"
            sample.reasons.append(f"{ns / 1e6:.3g} ms were measured, and at least {least_ns / 1e6:g} ms must be")
        elif operations != asked:
            sample.status = "void"
            sample.reasons.append(f"it was asked for {asked} operations but did {operations:g}")

    def measure_subject(self, plan: CellPlan, arm: manifest.Arm, sample: results.Sample) -> None:
        """Let a program measure one thing itself."""
        command = self.subject_command(plan, arm)
        content = process.run_program(
            arm, [*command, *plan.subject_words], PROGRAM_GRACE_S + 3 * plan.window_s(self.scale)
        )
        sample.figures = figures_in(content)
        primary = next(metric for metric in plan.metrics if metric.primary)
        if primary.key not in sample.figures:
            raise SampleFailed(f"it printed no figure {primary.key!r}: {results.shorten(str(content))}")

    def subject_command(self, plan: CellPlan, arm: manifest.Arm) -> list[str]:
        """Return the command of a program that measures itself, without what it measures."""
        placement = self.placement(plan)
        return arm.command(
            plan.kind,
            window=f"{plan.window_s(self.scale):g}",
            warm_up=f"{self.scale_of(arm).warm_up_s:g}",
            server_cpus=",".join(map(str, placement.server)),
            load_cpus=",".join(map(str, placement.client)),
            load=str(self.program.absolute()) if self.program else "",
        )

    def why_unable(self, plan: CellPlan) -> str:
        """Return why this machine can't measure what a subject is about, if it can't."""
        for arm in self.contestants(plan):
            try:
                process.run_program(
                    arm, [*self.subject_command(plan, arm), "--check", *plan.subject_words], PROGRAM_GRACE_S
                )
            except SampleFailed as failure:
                return str(failure)
            return ""
        return ""

    def order(self, plan: CellPlan, arm: manifest.Arm) -> execution.Order:
        """Return the server that a cell needs."""
        return execution.Order(
            arm=arm,
            kind=plan.kind,
            workers=self.workers(arm, plan.workers),
            feature=plan.feature,
            memory_bytes=self.options.memory_bytes,
        )

    def measure_server(
        self, plan: CellPlan, cell: results.Cell, arm: manifest.Arm, sample: results.Sample, rate: float
    ) -> None:
        """Load a server in one process from another."""
        with self.served(plan, arm, sample) as serving:
            if plan.sweeps:
                self.sweep(plan, cell, arm, serving, sample)
            else:
                self.load_once(plan, cell, arm, serving, sample, rate)

    @contextlib.contextmanager
    def served(self, plan: CellPlan, arm: manifest.Arm, sample: results.Sample) -> Iterator[execution.Serving]:
        """Start a server for a sample, make it ready to be loaded, and end it."""
        with self.executor(plan).serve(self.order(plan, arm)) as serving:
            self.keep_checks(arm, serving.checks, sample)
            if plan.has_first_client:
                self.first_client(plan, serving)
            yield serving
        if serving.complaint:
            self.note(f"{arm.name}: {serving.complaint}")

    def load_once(
        self,
        plan: CellPlan,
        cell: results.Cell,
        arm: manifest.Arm,
        serving: execution.Serving,
        sample: results.Sample,
        rate: float,
    ) -> None:
        """Load a server once, as the plan says."""
        scale = self.scale_of(arm)
        words = [*plan.load_options(scale, rate), "--hdr", "--seed", str(self.result.run.seed)]
        self.take_loaded(plan, cell, serving.load(words, plan.sample_s(scale)), sample)

    def take_loaded(self, plan: CellPlan, cell: results.Cell, loaded: execution.Loaded, sample: results.Sample) -> None:
        """Put the measurements of a load into a sample, and judge whether it counts."""
        try:
            sample.windows = workloads.windows_of_load(loaded.event)
            sample.figures = workloads.figures_of_load(plan, loaded.event) | loaded.figures
            self.take_event(plan, cell, loaded.event, sample)
        except (KeyError, TypeError) as error:
            text = f"the load generator's result isn't as expected ({error!r}): build both from one revision"
            raise SampleFailed(text) from None

    def sweep(
        self, plan: CellPlan, cell: results.Cell, arm: manifest.Arm, serving: execution.Serving, sample: results.Sample
    ) -> None:
        """Search the knee of a server that runs. Raise SampleVoid where it lies, or fails at a low rate."""
        scale = self.scale_of(arm)
        before = [knee for knee in cell.series(arm.name, workloads.KNEE.key) if knee is not None]
        search = sweep.Search(before[-1] if before else 0.0)
        while (rate := search.next_rate()) is not None:
            self.progress.step(f"{plan.name}, round {sample.round} of {self.scale.rounds}, {arm.name} at {rate:,.0f}/s")
            window_s = sweep.window_s(rate, plan.window_s(scale))
            words = [*plan.load_options(scale, rate, window_s), "--seed", str(self.result.run.seed)]
            event = serving.load(words, scale.ramp_s + plan.warm_up_s(scale) + window_s).event
            try:
                if why := workloads.why_lying(event):
                    raise SampleVoid(f"at {rate:,.0f}/s: {why}")
                search.take(sweep.point_of(event, rate, workloads.sent_late(event)))
            except (KeyError, TypeError) as error:
                text = f"the load generator's result isn't as expected ({error!r}): build both from one revision"
                raise SampleFailed(text) from None
        sample.points = search.points
        if why := search.why_none():
            raise SampleVoid(why)
        knee = search.knee()
        reasons = [reason for point in search.floors for reason in point.reasons if point.outcome == "failed"]
        if knee.bound == "at most" and reasons:
            raise SampleVoid(f"at {sweep.FLOOR_PER_S:,.0f}/s: {reasons[0]}")
        sample.bound = knee.bound
        sample.client_limited = any(point.outcome == "limited" for point in search.points) and knee.bound == "at least"
        sample.figures = {
            workloads.KNEE.key: knee.per_s,
            workloads.FLOOR_P50.key: knee.floor_p50_ns,
            workloads.FLOOR_P99.key: knee.floor_p99_ns,
            "trials": float(len(search.points)),
        }

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
        # A closed loop's is judged again by the ceiling, where that was measured.
        sample.client_limited = busy or workloads.sent_late(event)

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

    def first_client(self, plan: CellPlan, serving: execution.Serving) -> None:
        """Let one client come and go, as verify() does with other servers.

        Raise SampleVoid where its answer is wrong, and SampleFailed where it gets none.
        """
        event = serving.ask(plan.first_client(), workloads.FIRST_CLIENT_S)
        for kind, error in event["errors"].items():
            wrong = kind in workloads.VOIDING
            raise (SampleVoid if wrong else SampleFailed)(f"its first client: {kind}: {error['first']}")
        if event.get("void"):
            raise SampleFailed(f"its first client: {event['void']}")

    def leave_out_unable(self, plan: CellPlan, cell: results.Cell) -> None:
        """Find out which servers of applications can't do what a cell is about, before it is measured."""
        for arm in self.contestants(plan):
            if arm.repeats:
                continue
            self.progress.step(f"{plan.name}: whether {arm.name} can do it")
            try:
                self.try_first_client(plan, arm)
            except SampleFailed as failure:
                cell.unable[arm.name] = str(failure)
            except SampleVoid:
                pass  # It can do it, and does it wrong: that belongs into its samples.
        able = self.contestants(plan, cell)
        self.record(able)
        cell.arms = [arm.name for arm in able]

    def try_first_client(self, plan: CellPlan, arm: manifest.Arm) -> None:
        """Let one client come and go on an arm's server, which isn't asked for anything else."""
        with self.executor(plan).serve(replace(self.order(plan, arm), verified=False)) as serving:
            self.first_client(plan, serving)

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
        order = execution.Order(arm=arm, kind="http", workers=self.workers(arm), verified=False)
        try:
            with self.executor().serve(order) as serving:
                event = serving.ask(["http", "--probe"], 30.0, final="probe")
        except SampleFailed as failure:
            return results.Probe(arm=arm.name, parser="unknown", text=str(failure))
        parser = event.get("parser")
        return results.Probe(
            arm=arm.name,
            parser=parser if parser in ("real", "canned") else "unknown",
            text=str(event.get("text", "")),
            answers={str(name): str(answer) for name, answer in event.get("answers", {}).items()},
        )

    def send_large(self, plan: CellPlan, contestants: Sequence[manifest.Arm]) -> None:
        """Send each echo server large messages once in a run, because a quick run has no cells with them."""
        for arm in contestants:
            if arm.repeats or arm.name in self.wrong_echoes:
                continue
            self.progress.step(f"{plan.name}: whether {arm.name} echoes large messages")
            self.wrong_echoes[arm.name] = ""
            try:
                self.echo_large(plan, arm)
            except SampleVoid as wrong:
                self.wrong_echoes[arm.name] = str(wrong)
            except SampleFailed:
                pass  # Its samples will tell.

    def check_large_echoes(self, plan: CellPlan, arm: manifest.Arm) -> None:
        """Raise SampleVoid where a server has echoed large messages wrongly."""
        if plan.kind == "echo" and (wrong := self.wrong_echoes.get(arm.repeats or arm.name)):
            raise SampleVoid(wrong)

    def echo_large(self, plan: CellPlan, arm: manifest.Arm) -> None:
        """Send an echo server large messages; raise SampleVoid where they don't come back as they are."""
        with self.executor(plan).serve(replace(self.order(plan, arm), verified=False)) as serving:
            for size in LARGE_ECHOES:
                event = serving.ask(workloads.one_echo(size), workloads.FIRST_CLIENT_S)
                wrong = next(
                    (f"{kind}: {error['first']}" for kind, error in event["errors"].items()), event.get("void")
                )
                if wrong:
                    raise SampleVoid(f"of one message of {size:,} bytes, before anything was measured: {wrong}")

    def measure_ceiling(self, plan: CellPlan, cell: results.Cell, number: int) -> None:
        """Find out in a round what the load generator reaches by itself."""
        self.progress.step(f"{plan.name}, round {number} of {self.scale.rounds}, the load generator's own ceiling")
        words = ["ceiling", plan.kind, "--connections", str(plan.connections)]
        words += ["--size", str(plan.size_bytes)] if plan.kind == "echo" else []
        scale = self.ceiling_scale(plan)
        words += ["--warm-up", f"{scale.warm_up_s:g}", "--window", f"{plan.window_s(scale):g}"]
        rate: float | None = None
        try:
            event = self.executor(plan).ceiling(words, plan.sample_s(scale))
            # What its CPU time per operation allows: the responder may have been the limit of the rate itself.
            rate = float(event["ceiling"]["operations_per_s"])
            if cell.ceiling is None:
                busy = workloads.busy_fraction(event)
                cell.ceiling = results.Ceiling(operations_per_s=rate, client_cpu_fraction=busy)
                cell.ceiling.rates = [None] * (number - 1)
            # Of two upper bounds the lower: being busy includes waiting for a CPU, and CPU time includes looking for events.
            cpu_ns = event["client"]["cpu_ns"] / event["operations"]
            spent_us = min(event["ceiling"]["client_busy_ns_per_operation"], cpu_ns) / 1e3
            cell.ceiling.client_us_per_operation = min(cell.ceiling.client_us_per_operation or spent_us, spent_us)
        except (SampleFailed, KeyError, TypeError, ZeroDivisionError) as failure:
            self.note(f"no ceiling for {plan.name}: {failure}")
        if cell.ceiling is not None:
            cell.ceiling.rates.append(rate)

    def count_system_calls(
        self, plan: CellPlan, cell: results.Cell, contestants: Sequence[manifest.Arm], rate: float
    ) -> None:
        """Count system calls and instructions per operation, each arm once, in runs apart from those that are timed."""
        contestants = [arm for arm in contestants if cell.measured(arm.name)]
        if not contestants:
            return
        tool, why_no_tool = preflight.system_call_tool()
        instructions, why_no_instructions = preflight.instruction_event()
        if not instructions:
            self.note(f"instructions weren't counted: {why_no_instructions}")
        # perf counts both at once; what strace slows isn't counted otherwise.
        together = (system_calls.SYSTEM_CALLS, instructions) if tool == "perf" and instructions else ()

        def count(arm: manifest.Arm, tool: str, events: tuple[str, ...]) -> tuple[list[float], float]:
            loaded = self.load_counted(plan, arm, rate, tool, events)
            operations, window_s = plan.amount(loaded.event), loaded.event["window_s"]
            return [
                system_calls.per_operation(tool, loaded.counted, operations, window_s, event) for event in events
            ], operations

        for arm in contestants:
            record = results.SystemCalls(arm=arm.name, tool=tool, text="" if tool else why_no_tool)
            try:
                if tool:
                    self.progress.step(f"{plan.name}: system calls of {arm.name}")
                    each, operations = count(arm, tool, together or (system_calls.SYSTEM_CALLS,))
                    record.per_operation, record.operations = each[0], int(operations)
                if instructions and not together:
                    self.progress.step(f"{plan.name}: instructions of {arm.name}")
                    each, _ = count(arm, "perf", (instructions,))
                if instructions:
                    record.instructions, record.instructions_of = each[-1], instructions
            except (SampleFailed, SampleVoid, OSError) as failure:
                record.text = record.text or str(failure)
            cell.system_calls.append(record)

    def load_counted(
        self, plan: CellPlan, arm: manifest.Arm, rate: float, tool: str, events: Sequence[str]
    ) -> execution.Loaded:
        """Load an arm in a run of its own, long enough for a tool that counts events in its processes."""
        with self.executor(plan).serve(self.order(plan, arm)) as serving:
            if plan.has_first_client:
                self.first_client(plan, serving)
            # strace counts from the beginning, so nothing may be done that isn't counted as an operation.
            traced = tool == "strace"
            scale = replace(self.scale, warm_up_s=0.0, ramp_s=0.0) if traced else self.scale_of(arm)
            window_s = system_calls.WINDOW_S_MIN
            words = [*plan.load_options(scale, rate, window_s), "--seed", str(self.result.run.seed)]
            return serving.load(words, plan.sample_s(scale) + window_s, tool, events)


def overhead_key(plan: CellPlan, arm: manifest.Arm) -> str:
    """Return what an arm's samples are known by that take alike long beyond what is measured."""
    kind = plan.workload if plan.workload in workloads.LOADS else plan.kind
    return f"{arm.repeats or arm.name} {kind} {plan.connections}"


def limit_by_ceiling(cell: results.Cell) -> None:
    """Say which samples of a closed loop were near the load generator's limit: what the highest rate of all leaves no doubt about."""
    if cell.ceiling is None or "rate_fraction" in cell.parameters:
        return
    reached = [sample for arm in cell.arms for sample in cell.measured(arm) if "operations_per_s" in sample.figures]
    known = [rate for rate in cell.ceiling.rates if rate is not None]
    rates = [sample.figures["operations_per_s"] for sample in reached]
    cell.ceiling.operations_per_s = max([*known, *rates], default=cell.ceiling.operations_per_s)
    for sample in reached:
        rate = sample.figures["operations_per_s"]
        sample.client_limited = rate * workloads.CEILING_FACTOR > cell.ceiling.operations_per_s


def void_hidden(cell: results.Cell) -> None:
    """Void the samples whose server used less CPU time than the kernel alone takes for the work: somebody else has done it."""
    floor_us, whose = kernel_us(cell)
    for sample in cell.samples:
        cpu_us = sample.figures.get("server_cpu_us")
        if sample.status == "measured" and cpu_us is not None and cpu_us < floor_us:
            sample.status = "void"
            sample.reasons.append(
                f"its processes used {figures.significant(cpu_us)} us of CPU per {cell.operation}, and {whose}:"
                " another process, which the lab doesn't see, must have done the work"
            )


def is_unchecked(cell: results.Cell) -> bool:
    """Return whether servers are ranked by their CPU time, and nothing tells how much of it they can't do without."""
    return (
        cell.primary.key == "server_cpu_us" and any(cell.measured(arm) for arm in cell.arms) and not kernel_us(cell)[0]
    )


def kernel_us(cell: results.Cell) -> tuple[float, str]:
    """Return the CPU time per operation that no server can do with less of, and why; 0 where nothing tells.

    It is a share of the kernel's part of a floor in C, or else of the load generator's time, which does as much with its sockets.
    """
    if cell.workload == "idle":
        return 0.0, ""
    found: dict[str, float] = {}
    for arm in analysis.FLOORS:
        parts = [
            sample.figures["server_cpu_us"] * sample.figures["server_system_share"]
            for sample in cell.measured(arm)
            if {"server_cpu_us", "server_system_share", "server_cpu_percent"} <= sample.figures.keys()
            and sample.figures["server_cpu_percent"] / 100 * sample.figures.get("window_s", 0.0) >= HIDDEN_CPU_S_MIN
        ]
        if parts:
            found[arm] = averages.median(parts)
    if found:
        arm = min(found, key=lambda each: found[each])
        return HIDDEN_SHARE * found[arm], f"the kernel alone takes {figures.significant(found[arm])} us for {arm}"
    if cell.ceiling is not None and cell.ceiling.client_us_per_operation:
        spent_us = cell.ceiling.client_us_per_operation
        return CEILING_SHARE * spent_us, f"the load generator needs {figures.significant(spent_us)} us for its end"
    return 0.0, ""


def given_up(cell: results.Cell, arm: str, before: float = math.inf) -> bool:
    """Return whether an arm isn't tried any more in a cell, after what its samples before a round were."""
    own = [sample.status for sample in cell.samples if sample.arm == arm and sample.round < before]
    last = own[-FAILURES_MAX:]
    return own.count("failed") >= FAILURES_MAX or (len(last) == FAILURES_MAX and "measured" not in last)


def finished_rounds(cell: results.Cell) -> int:
    """Return how many rounds, from the first on, have a sample of every arm that was still tried."""
    for index, order in enumerate(cell.orders):
        for arm in order:
            if not given_up(cell, arm, index + 1) and not any(
                each.arm == arm and each.round == index + 1 for each in cell.samples
            ):
                return index
    return len(cell.orders)


def figures_in(content: dict[str, Any]) -> dict[str, float]:
    """Return the figures in a program's output, as far as they are numbers."""
    figures = content.get("figures")
    return {
        str(name): float(value)
        for name, value in (figures if isinstance(figures, dict) else {}).items()
        if is_number(value)
    }


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a value from JSON, which Python reads more of than there is, is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def number_of(content: dict[str, Any], key: str) -> float:
    """Return a number of a program's output; raise SampleFailed where there is none."""
    value = content.get(key)
    if not is_number(value):
        raise SampleFailed(f"its output has no number {key!r}: {results.shorten(str(content))}")
    return float(value)
