"""The machine that runs the lab: it finds the machines of a cluster, checks them, places the tasks of each trial, and watches them."""

import asyncio
import concurrent.futures
import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

from ringlab import Refused, execution, generator, manifest, results, sampling
from ringlab.cluster import LOAD, SERVER, Encryption, merging, seat, worker
from ringlab.execution import Loaded, MachineLost, NoMachines
from ringlab.instruments import STACKS, Instrument, Instruments
from ringlab.process import SampleFailed, SampleVoid

ANSWER_S = 10.0
"""After this time without an answer, a machine is lost."""
AGAIN_S = 2.0
"""The same, where it didn't answer before."""
RETURN_S = 60.0
"""How long a lost machine is waited for."""
GRACE_S = 30.0
"""How much longer than planned a part of a trial may take."""
READY_S = 1800.0
"""How long builds may take."""
LEAD_S = 0.5
"""Between telling all generators when to start and that instant."""
EXCHANGES_FIRST, EXCHANGES = 20, 5
"""By which clocks are compared: before a run, and before each trial."""
UNCERTAINTY_S_MAX = 0.05
"""Of the comparison of clocks; the round trip is twice as long."""
DRIFT_MAX = 5e-4
"""How much faster than another a clock may go while it is being set right (adjtimex(2))."""
OFFSET_S_MAX = 1.0
"""Of the time of day, by which logs and certificates are judged; loads are started on another clock."""
MISALIGNED_MAX = 0.05
"""The share of the window by which the windows of all machines may differ."""
LOCK = "ringlab"
SOON_S, LATER_S = 0.05, 0.5
"""How often tasks are looked at: before a load, and while it runs."""
T = TypeVar("T")
NUMBERS = itertools.count(1)


@dataclass
class Machine:
    """One machine of the cluster, as the lab knows it."""

    worker: str
    """Dask's address of its worker."""
    record: results.Machine
    ahead_ns: int = 0
    """How far its CLOCK_MONOTONIC is ahead of that of this machine."""
    uncertainty_ns: int = 0
    compared_ns: int = 0
    """When that was known, on this machine's CLOCK_MONOTONIC; 0: never."""

    @property
    def name(self) -> str:
        """The name that its user has given it."""
        return self.record.name

    def __str__(self) -> str:
        """Say which it is."""
        return f"{self.name} ({self.record.host})"


@dataclass
class Task:
    """A task, and the machine on which it was placed."""

    name: str
    machine: Machine
    future: Any
    reports: dict[str, Any] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        return bool(self.future.done())


class Cluster:
    """Runs trials on the machines of a cluster."""

    def __init__(self, scheduler: str, encryption: Encryption, *, serves: bool, generators: int = 0) -> None:
        """Prepare; `serves`: servers are started, `generators`: the number of machines that load them, 0 for all."""
        self.scheduler = worker.check_address(scheduler)
        self.encryption = encryption
        self.serves = serves
        self.generators = generators
        self.server: Machine | None = None
        self.loads: list[Machine] = []
        self.client: Any = None
        self.lock: Any = None
        self.silent: set[str] = set()
        """The workers that didn't answer the last time."""
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        """Connect, and check all machines; raise Refused."""
        self.thread.start()
        try:
            self.do(self.connect())
            self.do(self.take())
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Let the machines go."""
        self.close()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something on the loop, and wait for it; an interrupt ends it."""
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """End the connection, in a bounded time."""

        async def end() -> None:
            with contextlib.suppress(OSError, asyncio.CancelledError):
                if self.lock is not None:
                    await asyncio.wait_for(self.lock.release(), ANSWER_S)
            with contextlib.suppress(OSError, asyncio.CancelledError):
                if self.client is not None:
                    await asyncio.wait_for(self.client.close(), ANSWER_S)

        with contextlib.suppress(concurrent.futures.CancelledError, TimeoutError):
            asyncio.run_coroutine_threadsafe(end(), self.loop).result(3 * ANSWER_S)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(ANSWER_S)

    @property
    def machines(self) -> list[Machine]:
        """All that take part."""
        return [*([self.server] if self.server is not None else []), *self.loads]

    @property
    def records(self) -> list[results.Machine]:
        """Their records in a result."""
        return [machine.record for machine in self.machines]

    # --- finding and checking machines ---

    async def connect(self) -> None:
        """Connect to the scheduler; raise Refused."""
        library = worker.dask_library()
        try:
            self.client = await library.Client(
                self.scheduler,
                asynchronous=True,
                security=worker.security(self.encryption),
                timeout=ANSWER_S,
                set_as_default=False,
            )
        except (OSError, TimeoutError, ValueError) as error:
            raise Refused(
                f"no scheduler answers at {self.scheduler} ({error}); start one with `dask scheduler`, and name it with"
                f" --cluster"
            ) from None
        semaphore = await library.Semaphore(
            max_leases=1, name=LOCK, scheduler_rpc=self.client.scheduler, loop=self.client.loop
        )
        if not await semaphore.acquire(timeout=1):
            raise Refused(
                f"another lab measures on the cluster of {self.scheduler}; wait until it has ended (one that was killed"
                " gives way within a minute)"
            )
        self.lock = semaphore

    async def call(self, address: str, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function on a worker, which returns at once; raise OSError where it doesn't answer."""
        limit_s = AGAIN_S if address in self.silent else ANSWER_S
        self.silent.add(address)
        try:
            calling = self.client.run(function, *arguments, workers=[address])
            found: dict[str, T] = await asyncio.wait_for(calling, limit_s)
            answer = found[address]
        except TimeoutError:
            raise OSError(f"doesn't answer within {limit_s:g} s") from None
        except (OSError, KeyError, ValueError) as error:
            raise OSError(f"is gone ({error})") from None
        self.silent.discard(address)
        return answer

    async def ask(self, machine: Machine, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function on a machine of the run; raise MachineLost."""
        try:
            return await self.call(machine.worker, function, *arguments)
        except OSError as error:
            raise MachineLost(machine.name, str(error)) from None

    async def find(self) -> dict[str, list[Machine]]:
        """Return the machines that answer, by role."""
        identity = await asyncio.wait_for(self.client.scheduler.identity(n_workers=-1), ANSWER_S)
        addresses = [
            address
            for address, each in identity["workers"].items()
            if any(role in each.get("resources", {}) for role in (SERVER, LOAD))
        ]

        async def describe(address: str) -> Machine | None:
            with contextlib.suppress(OSError):
                return Machine(address, results.Machine(**await self.call(address, seat.describe)))
            return None

        found: dict[str, list[Machine]] = {SERVER: [], LOAD: []}
        for machine in await asyncio.gather(*map(describe, addresses)):
            if machine is not None:
                found[machine.record.role].append(machine)
        for machines in found.values():
            machines.sort(key=lambda machine: machine.name)
        return found

    async def take(self) -> None:
        """Choose machines and check them; raise Refused."""
        found = await self.find()
        wanted = self.generators or max(1, len(found[LOAD]))
        for role, count in ((SERVER, int(self.serves)), (LOAD, wanted)):
            if len(found[role]) < count:
                raise Refused(
                    f"the cluster has {len(found[role])} machines with the role {role}, and {count} are needed: start"
                    f" `ringlab worker --role {role} --scheduler {self.scheduler}` on each"
                )
        self.server = found[SERVER][0] if self.serves else None
        self.loads = found[LOAD][:wanted]
        names = [machine.name for machine in self.machines]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise Refused(f"several machines are called {', '.join(twice)}: give each `ringlab worker` its own --name")
        problems = check_versions(self.machines)
        for machine in self.machines:
            try:
                problems += await self.check_clock(machine)
            except MachineLost as lost:
                problems.append(str(lost))
        if problems:
            raise Refused("; ".join(problems))
        self.tell_places()

    def tell_places(self) -> None:
        """Record what runs where."""
        for index, machine in enumerate(self.loads, 1):
            machine.record.placed = f"load generator {index} of {len(self.loads)}"
        if self.server is not None:
            self.server.record.placed = "every server"

    async def check_clock(self, machine: Machine) -> list[str]:
        """Compare clocks before a run; return what is wrong."""
        offset_ns = await self.compare_clocks(machine, EXCHANGES_FIRST)
        record = machine.record
        record.clock_offset_s = offset_ns / 1e9
        problems = []
        if abs(record.clock_offset_s) - record.clock_uncertainty_s > OFFSET_S_MAX:
            problems.append(
                f"the clock of {machine} is {record.clock_offset_s:+.3f} s off this machine's, and at most"
                f" {OFFSET_S_MAX:g} s are allowed: synchronise it, for example with chrony (`chronyc makestep`)"
            )
        if machine.uncertainty_ns > UNCERTAINTY_S_MAX * 1e9:
            problems.append(
                f"the clock of {machine} could be compared only within {machine.uncertainty_ns / 1e6:.0f} ms, and"
                f" {UNCERTAINTY_S_MAX * 1e3:g} ms are needed: the network or the machines are too busy"
            )
        return problems

    async def compare_clocks(self, machine: Machine, exchanges: int) -> int:
        """Compare a machine's clocks with this one's, as NTP does; return how far its time of day is ahead.

        Of several exchanges the one with the shortest round trip counts: its answer was made at most half of that away from its middle.
        An earlier comparison counts as long as it is the better one, with what clocks may have drifted since then.
        """
        found = []
        for _ in range(exchanges):
            day_ns, begin_ns = time.time_ns(), time.monotonic_ns()
            their_day_ns, theirs_ns = await self.ask(machine, seat.clocks)
            half_ns = (time.monotonic_ns() - begin_ns) // 2
            found.append((half_ns, theirs_ns - (begin_ns + half_ns), their_day_ns - (day_ns + half_ns)))
        half_ns, ahead_ns, day_ahead_ns = min(found)
        now_ns = time.monotonic_ns()
        drifted_ns = machine.uncertainty_ns + round(DRIFT_MAX * (now_ns - machine.compared_ns))
        if machine.compared_ns and drifted_ns < half_ns:
            machine.uncertainty_ns = drifted_ns
        else:
            machine.uncertainty_ns, machine.ahead_ns = half_ns, ahead_ns
        machine.compared_ns = now_ns
        record = machine.record
        record.clock_uncertainty_s = max(record.clock_uncertainty_s, machine.uncertainty_ns / 1e9)
        return day_ahead_ns

    def recover(self) -> None:
        """Wait until all machines are there again, or others in their place; raise NoMachines."""
        self.do(self.replace_lost())

    async def replace_lost(self) -> None:
        """Find every machine again by its name; in the place of one that loads, any other that loads may come."""
        deadline = time.monotonic() + RETURN_S
        while True:
            missing = []
            try:
                found = await self.find()
            except OSError as error:
                found, missing = {SERVER: [], LOAD: []}, [f"the scheduler ({error})"]
            by_name = {(role, machine.name): machine for role, machines in found.items() for machine in machines}
            taken = [by_name.get((each.record.role, each.name)) for each in self.machines]
            used = {machine.name for machine in taken if machine is not None}
            spare = [machine for machine in found[LOAD] if machine.name not in used]
            for index, (before, now) in enumerate(zip(self.machines, list(taken), strict=True)):
                if now is None and before.record.role == LOAD and spare:
                    taken[index] = spare.pop(0)
                elif now is None:
                    missing.append(str(before))
            there = [machine for machine in taken if machine is not None]
            if not missing:
                problems = check_versions(there)
                try:
                    for machine in there:
                        problems += await self.check_clock(machine)
                except MachineLost as lost:
                    missing = [str(lost)]
                if problems:
                    raise NoMachines("; ".join(problems))
            if not missing:
                break
            if time.monotonic() > deadline:
                raise NoMachines(
                    f"{', '.join(missing)} hasn't come back within {RETURN_S:g} s: see that the machine runs, that"
                    " the network reaches it, and what its `ringlab worker` says"
                )
            await asyncio.sleep(LATER_S)
        for before, now in zip(self.machines, there, strict=True):
            now.record.clock_uncertainty_s = max(now.record.clock_uncertainty_s, before.record.clock_uncertainty_s)
        self.server = there[0] if self.serves else None
        self.loads = there[int(self.serves) :]
        self.tell_places()

    # --- before a run ---

    def make_ready(
        self, arms: Sequence[manifest.Arm], tell: Callable[[str], None]
    ) -> tuple[dict[str, manifest.Arm], list[results.Arm]]:
        """Detect and build arms on the machine of the server; return those that can run there, and a record of each."""
        assert self.server is not None
        tell(f"checking and building targets on {self.server}")
        names = [arm.name for arm in arms]
        found: list[seat.Ready] = self.do(self.run(self.server, READY_S, seat.make_ready, names))
        ready = {each.record.name: each for each in found}
        present, records = {}, []
        for arm in arms:
            if arm.name not in ready:
                raise Refused(
                    f"{self.server} has no target {arm.name}: give its `ringlab worker` the same targets as this machine"
                    " has (--targets-folder)"
                )
            each = ready[arm.name]
            if not each.record.skipped and each.sources != seat.sources_hash(arm.folder):
                raise Refused(
                    f"the target {arm.target} on {self.server} has other sources ({each.sources}) than here"
                    f" ({seat.sources_hash(arm.folder)}): bring both to one revision"
                )
            records.append(each.record)
            served = [kind for kind in manifest.SERVERS if arm.listens_anywhere(kind)]
            if not each.record.skipped and not served:
                each.record.skipped = "its command has no {host}, so other machines can't reach it"
            if not each.record.skipped:
                present[arm.name] = arm
        return present, records

    def examine(self, connections: int) -> tuple[list[results.Finding], results.Environment | None]:
        """Return what preflight finds on all machines, and what the one of the server is."""
        findings, environment = [], None
        for machine in self.machines:
            found, other = self.do(self.run(machine, READY_S, seat.examine, connections))
            environment = other if machine is self.server else environment
            for finding in found:
                finding.name = f"{machine.name}: {finding.name}"
                findings.append(finding)
        return findings, environment

    async def run(self, machine: Machine, limit_s: float, function: Callable[..., T], *arguments: Any) -> T:
        """Run a task that needs no steering."""
        task = Task("", machine, self.submit(machine, function, *arguments))
        try:
            await self.watch([task], lambda: finished(task), limit_s, f"{machine} didn't {function.__name__}", LATER_S)
            found: T = await task.future
            return found
        except (MachineLost, SampleFailed) as error:
            raise Refused(f"{machine}: {error}") from None
        finally:
            await self.forget(task.future)

    def instruments(self) -> Instruments:
        """Return what can look into a server on its machine; raise MachineLost."""
        if self.server is None:
            return Instruments()
        return self.do(self.ask(self.server, seat.find_instruments))

    # --- trials ---

    def ceiling(self, words: Sequence[str], expected_s: float) -> list[dict[str, Any]]:
        """Return what each load generator reaches by itself on its machine, with its share of the connections, all at once."""
        return self.do(self.ceiling_soon(list(words), expected_s))

    async def ceiling_soon(self, words: list[str], expected_s: float) -> list[dict[str, Any]]:
        """Run them, and wait for all."""
        limit_s = expected_s + GRACE_S
        shares = merging.share(words, len(self.loads))
        tasks = [self.start(each, seat.ceiling, part, limit_s) for each, part in zip(self.loads, shares, strict=False)]
        try:
            what = "the ceilings of the load generators weren't measured"
            await self.watch(tasks, lambda: all(map(finished, tasks)), limit_s + GRACE_S, what, LATER_S)
            return [await each.future for each in tasks]
        finally:
            await asyncio.gather(*map(self.end, tasks))

    async def end(self, task: Task) -> None:
        """End a task, if it hasn't ended."""
        if not task.done:
            with contextlib.suppress(OSError, MachineLost, asyncio.CancelledError):
                await self.ask(task.machine, seat.abandon, task.name)
                # The next trial needs its place.
                await asyncio.wait_for(task.future.exception(), ANSWER_S)
        await self.forget(task.future)

    def submit(self, machine: Machine, function: Callable[..., Any], *arguments: Any) -> Any:
        """Place a task on a machine."""
        return self.client.submit(
            function,
            *arguments,
            workers=[machine.worker],
            allow_other_workers=False,
            resources={machine.record.role: 1},
            pure=False,
            retries=0,
        )

    async def forget(self, future: Any) -> None:
        """Cancel a task that hasn't ended, and let its result go."""
        with contextlib.suppress(OSError, asyncio.CancelledError):
            if not future.done():
                await asyncio.wait_for(self.client.cancel([future], force=True), AGAIN_S)
        future.release()

    def start(self, machine: Machine, function: Callable[..., Any], *arguments: Any) -> Task:
        """Place a task that has a seat."""
        name = f"{function.__name__}-{next(NUMBERS)}-{time.monotonic_ns()}"
        return Task(name, machine, self.submit(machine, function, name, *arguments))

    async def look(self, task: Task) -> None:
        """Look at what a task has reported; raise what has ended it, and MachineLost."""
        if task.done:
            if task.future.status == "error":
                error = await task.future.exception()
                if isinstance(error, SampleFailed | SampleVoid):
                    raise type(error)(str(error))
                raise MachineLost(task.machine.name, f"has ended a task: {type(error).__name__}: {error}")
            if task.future.status != "finished":
                raise MachineLost(task.machine.name, "was lost by the scheduler")
            return
        task.reports |= await self.ask(task.machine, seat.look, task.name)

    async def watch(
        self, tasks: Sequence[Task], until: Callable[[], bool], limit_s: float, what: str, every_s: float = SOON_S
    ) -> None:
        """Look at tasks until something is so."""
        deadline = time.monotonic() + limit_s
        while not until():
            found = await asyncio.gather(*map(self.look, tasks), return_exceptions=True)
            # What ends the server ends the loads, too, so the first is the reason. But a lost machine says nothing of an arm.
            errors = sorted(
                (each for each in found if isinstance(each, BaseException)),
                key=lambda error: not isinstance(error, MachineLost),
            )
            if errors:
                raise errors[0]
            if until():
                return
            if time.monotonic() > deadline:
                raise SampleFailed(f"{what} within {limit_s:.0f} s")
            await asyncio.sleep(every_s)

    @contextlib.contextmanager
    def serve(self, order: execution.Order) -> Iterator["ClusterServing"]:
        """Start a server on its machine, if it doesn't run already, and end it."""
        serving = ClusterServing(self, order.arm.address)
        try:
            if not order.arm.address:
                self.do(serving.open(order))
            yield serving
            serving.complaint = self.do(serving.stop())
        finally:
            with contextlib.suppress(concurrent.futures.CancelledError):
                self.do(serving.close())


class ClusterServing:
    """A server that is loaded from several machines."""

    def __init__(self, cluster: Cluster, address: str) -> None:
        """Prepare; without an address the server must be started."""
        self.cluster = cluster
        self.address = address
        self.checks: Sequence[results.Check] = ()
        self.complaint = ""
        self.server: Task | None = None
        self.tasks: list[Task] = []

    async def open(self, order: execution.Order) -> None:
        """Start the server."""
        machine = self.cluster.server
        assert machine is not None
        self.server = task = self.cluster.start(machine, seat.serve, order)
        self.tasks.append(task)
        limit_s = order.arm.ready.timeout_s + GRACE_S
        await self.cluster.watch([task], lambda: "serving" in task.reports, limit_s, "the server wasn't ready")
        self.address, self.checks = task.reports["serving"]["address"], task.reports["serving"]["checks"]

    async def stop(self) -> str:
        """End the server; return how it ended, where that wasn't as it should."""
        task = self.server
        if task is None:
            return ""
        await self.cluster.ask(task.machine, seat.tell, task.name, {"do": "stop"})
        await self.cluster.watch(
            [task], lambda: task.done and task.future.status == "finished", GRACE_S * 2, "the server didn't end"
        )
        return str(await task.future)

    async def close(self) -> None:
        """End what hasn't ended."""
        await asyncio.gather(*map(self.cluster.end, self.tasks))

    def ask(self, words: Sequence[str], limit_s: float, final: str = "result") -> dict[str, Any]:
        """Run one load generator that measures nothing."""
        return self.cluster.do(self.ask_soon(words, limit_s, final))

    async def ask_soon(self, words: Sequence[str], limit_s: float, final: str) -> dict[str, Any]:
        """Run it on the first machine."""
        words = [*words, "--address", self.address]
        task = self.cluster.start(self.cluster.loads[0], seat.generate, words, limit_s, final)
        self.tasks.append(task)
        watched = [task, *([self.server] if self.server is not None else [])]
        await self.cluster.watch(watched, lambda: finished(task), limit_s + 2 * GRACE_S, "a first client didn't end")
        event: dict[str, Any] = await task.future
        return event

    def load(self, words: Sequence[str], expected_s: float, instrument: Instrument | None = None) -> Loaded:
        """Load the server from all machines at once."""
        return self.cluster.do(self.load_soon(list(words), expected_s, instrument))

    async def load_soon(self, words: list[str], expected_s: float, instrument: Instrument | None) -> Loaded:
        """Prepare everything, start it on one clock, and put together what comes back."""
        cluster, server = self.cluster, self.server
        values = dict(itertools.pairwise(words))
        limit_s = expected_s + GRACE_S
        watched = [server] if server is not None else []
        load = next(NUMBERS)
        if server is not None:
            window = [word for option in ("--warm-up", "--window") for word in (option, values[option])]
            message = {
                "do": "account",
                "number": load,
                "words": window,
                "expected_s": limit_s,
                "instrument": instrument,
            }
            await cluster.ask(server.machine, seat.tell, server.name, message)
            await cluster.watch(
                watched, lambda: server.reports.get("accounting") == load, GRACE_S, "nobody counted the server's CPU"
            )
        seed = int(values["--seed"])
        shares = merging.share(words, len(cluster.loads))
        generators = []
        for number, (machine, part) in enumerate(zip(cluster.loads, shares, strict=False)):
            # Each has bytes of its own: a server that mixes up connections of different machines sends wrong ones.
            own = with_value(part, "--seed", str((seed + number) % (1 << 64)))
            own += ["--address", self.address, "--start-on-stdin"]
            # Percentiles of all operations come from histograms alone.
            own += ["--hdr"] if "--hdr" not in own else []
            generators.append(cluster.start(machine, seat.generate, own, limit_s))
        self.tasks += generators
        watched = [*watched, *generators]
        await cluster.watch(
            watched,
            lambda: all("connected" in each.reports for each in generators) or any(map(finished, generators)),
            limit_s,
            "the load generators weren't connected",
        )
        if early := [each for each in generators if finished(each)]:
            event = await early[0].future
            raise SampleVoid(f"{early[0].machine.name}: {event.get('void') or event.get('ended_early')}")
        uncertainty_ns = await self.begin(watched)
        await cluster.watch(watched, lambda: all(map(finished, generators)), limit_s, "the load didn't end", LATER_S)
        figures: dict[str, float] = {}
        accounted: Mapping[str, Any] | None = None
        read: Mapping[str, Any] = {"counted": {}, "stacks": {}}
        if server is not None:
            # perf prints the stacks that it has sampled in its own time.
            more_s = sampling.SCRIPT_TIMEOUT_S if instrument is not None and instrument.tool == STACKS else 0.0
            await cluster.watch(
                [server],
                lambda: server.reports.get("accounted", {}).get("number") == load,
                GRACE_S + more_s,
                "nobody counted the server's CPU",
            )
            read = server.reports["accounted"]
            accounted, figures = read["event"], read["figures"]
        events = {each.machine.name: await each.future for each in generators}
        merged = merging.merge(events, accounted["server"] if accounted is not None else None)
        late = [each.get("start_late_ns") or 0 for each in (*events.values(), *([accounted] if accounted else []))]
        if len(late) > 1:
            misaligned_ns = max(late) - min(late) + 2 * uncertainty_ns
            figures = figures | {"misaligned_ms": misaligned_ns / 1e6}
            share = misaligned_ns / 1e9 / float(values["--window"])
            if share > MISALIGNED_MAX and not merged["void"]:
                merged["void"] = (
                    f"the windows of the machines differ by up to {misaligned_ns / 1e6:.3g} ms, {100 * share:.0f}% of their length"
                )
        return Loaded(merged, figures, read["counted"], read["stacks"])

    async def begin(self, tasks: Sequence[Task]) -> int:
        """Tell all machines when to start, each on its own clock; return how uncertain the clocks are, in ns."""
        cluster = self.cluster
        machines = {each.machine.worker: each.machine for each in tasks}.values()
        for machine in machines:
            await cluster.compare_clocks(machine, EXCHANGES)
        start_ns = time.monotonic_ns() + round(LEAD_S * 1e9)
        await asyncio.gather(
            *(cluster.ask(each.machine, seat.begin, each.name, start_ns + each.machine.ahead_ns) for each in tasks)
        )
        return max(machine.uncertainty_ns for machine in machines)


def finished(task: Task) -> bool:
    """Return whether a task has a result."""
    return task.done and task.future.status == "finished"


def with_value(words: Sequence[str], option: str, value: str) -> list[str]:
    """Return words with another value of an option that is among them."""
    index = words.index(option)
    return [*words[: index + 1], value, *words[index + 2 :]]


def check_versions(machines: Sequence[Machine]) -> list[str]:
    """Return which machines have other versions than this one, and what to do."""
    problems = []
    own = seat.package_version()
    protocol = f"protocol {generator.SCHEMA_VERSION}"
    for machine in machines:
        if machine.record.ringlab != own:
            problems.append(
                f"{machine} has ringlab {machine.record.ringlab}, and this machine has {own}: install the same revision"
                " there, and start its `ringlab worker` again"
            )
        if not machine.record.generator.endswith(protocol):
            problems.append(
                f"{machine} has {machine.record.generator or 'no load generator'}, and this lab speaks {protocol}: build it"
                " there from the same revision (in its folder lab: cargo build --release -p ringlab-load), and start its"
                " `ringlab worker` again"
            )
    return problems
