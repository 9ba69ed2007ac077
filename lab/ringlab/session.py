"""From what is asked for to a race, and from the race to its reports; what can't be done as asked is refused before it takes time."""

import datetime
import fnmatch
import functools
import itertools
import math
import os
import random
import re
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from ringlab import (
    Refused,
    analysis,
    figures,
    generator,
    goals,
    manifest,
    neighbours,
    preflight,
    process,
    report,
    results,
    runner,
    selection,
    services,
    statistics,
    storage,
    workloads,
)
from ringlab.progress import ConsoleProgress, working
from ringlab.report import terminal

EXIT_INTERRUPTED = 130
ANY_SERVICE = services.Service()
QUICK_MINUTES = 8.0
"""The time that `--quick` spends on measuring: with builds and probes it must end in under ten."""
QUICK_WINDOW_MIN = 0.5
"""The share of quick's window below which samples say too little."""
BUDGET_S_MIN = 1.0


class Duration(click.FloatRange):
    """A number within a range. NaN is refused, because it cannot be compared."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return it."""
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value} is not a number", param, ctx)
        return number


def measure(
    what: Sequence[str],
    selectors: Sequence[str],
    baseline: str,
    *,
    other: str = "",
    targets_folder: Path | None,
    quick: bool,
    publish: bool,
    rounds: int | None,
    seconds: float | None,
    minutes: float | None,
    seed: int | None,
    workers: int,
    system_calls: bool | None,
    again: bool,
    if_busy: neighbours.IfBusy = "refuse",
    memory: int | None = None,
    output: Path | None,
    goals_file: Path | None = None,
    must_reach: bool = True,
    addresses: Sequence[str] = (),
    service: services.Service = ANY_SERVICE,
) -> int:
    """Run the lab; return the exit status, which says whether the goals are reached, if they must be."""
    if addresses:
        check_outside(selectors, system_calls=bool(system_calls))
    if quick and publish:
        raise Refused("--quick and --publish can't be combined")
    if minutes and not quick:
        raise Refused("--minutes needs --quick; otherwise use --rounds and --seconds")
    console = terminal.make_console()
    begun = time.monotonic()
    name: workloads.ScaleName = "quick" if quick else "publish" if publish else "normal"
    scale = workloads.SCALES[name]
    if seconds:
        scale = with_window(scale, seconds)
    limited = quick and bool(minutes or not rounds)
    if rounds:
        scale = replace(scale, rounds=rounds)
    plans = workloads.choose(what, name)
    asked = read_goals(goals_file, plans, targets_folder, must_reach) if goals_file else []
    if addresses:
        chosen = selection.outside(addresses)
        everyone = chosen
        plans = [service.plan(plan) for plan in outside_plans(plans, what)]
    elif service != ANY_SERVICE:
        raise Refused(f"{service.words()[0]} describes a service: name it with --address")
    else:
        chosen = selection.find(targets_folder, selectors, terminal.warn, {plan.workload for plan in plans})
        everyone = []
    if baseline and baseline not in {arm.name for arm in chosen}:
        everyone = everyone or manifest.discover(targets_folder, broken={})
        if baseline not in {arm.name for arm in everyone}:
            raise Refused(f"the baseline {baseline} takes no part: {selection.no_such(baseline, everyone)}")
    # What none of the cells needs isn't built.
    chosen = [arm for arm in chosen if any(plan.serves in arm.workloads for plan in plans)] or chosen
    with (
        storage.claim(output) as folder,
        neighbours.announced(lambda taken: preflight.place(workers, taken=taken), if_busy, terminal.warn) as placed,
    ):
        lesser = [arm.name for arm in chosen if quick and not selectors and not arm.quick]
        chosen = [arm for arm in chosen if arm.name not in lesser]
        budget_s = (minutes or QUICK_MINUTES) * 60
        ready_by = begun + budget_s / 2 if quick else None
        if addresses:
            present, records = {arm.name: arm for arm in chosen}, [arm.record() for arm in chosen]
        else:
            with working(console, "checking which targets can run here") as tell:
                present, records = selection.make_ready(chosen, tell, ready_by)
        for record in records if selectors else ():
            if record.skipped:
                install = f"; install it with: {record.install}" if record.install else ""
                terminal.warn(f"without {record.name}: {record.skipped}{install}")
        if baseline and baseline not in present:
            reason = next(
                (record.skipped for record in records if record.name == baseline), "it isn't among the chosen targets"
            )
            raise Refused(f"the baseline {baseline} takes no part: {reason}")
        if not present:
            for record in records:
                print(f"skipped: {record.name}: {record.skipped}; install it with: {record.install}", file=sys.stderr)
            raise Refused("none of the targets can run here")
        plans = [plan for plan in plans if any(plan.served_by(arm) for arm in present.values())]
        if not plans:
            raise Refused("none of the targets serves any of these workloads; `ringlab targets` shows what they serve")
        seed = seed if seed is not None else random.SystemRandom().randrange(1 << 32)
        result = results.Result(
            run=results.Run(
                command=[],
                begun=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                seed=seed,
                scale=scale,
                placement=placed,
            ),
            arms=records,
        )
        race = start_race(console, result, present, plans, folder / storage.RESULT_FILE)
        if addresses:
            check_answers(race)
        race.options = runner.Options(
            workers=workers,
            baseline=baseline,
            again=again,
            system_calls=not addresses and (not quick if system_calls is None else system_calls),
            memory_bytes=preflight.memory_limit(memory),
        )
        if limited:
            # Where the shortest windows take too long, or others were asked for, cells end with fewer rounds.
            race.options.limit_s = max(BUDGET_S_MIN, budget_s - (time.monotonic() - begun))
            if not seconds:
                fit_quick(race, race.options.limit_s)
        if lesser:
            race.note(f"a quick run leaves out {', '.join(lesser)}: name them with --targets, or run without --quick")
        if addresses:
            race.note(
                f"{', '.join(addresses)}: not started by the lab, so its CPU, its memory and its settings are unknown;"
                " arms are ranked by rate, in an open loop by latency"
            )
        command = ["ringlab", "run", *(plan.name for plan in plans)]
        command += [word for address in addresses for word in ("--address", address)]
        command += service.words()
        command += ["--targets", ",".join(present)] if not addresses else []
        command += ["--rounds", str(race.scale.rounds), "--seconds", f"{race.scale.window_s:g}", "--seed", str(seed)]
        command += {"quick": ["--quick"], "normal": [], "publish": ["--publish"]}[name]
        command += ["--minutes", f"{budget_s / 60:g}"] if limited else []
        command += ["--targets-folder", str(targets_folder.resolve())] if targets_folder else []
        command += ["--memory", str(memory)] if memory else []
        command += ["--workers", str(workers)] if workers != 1 else []
        command += ["--baseline", baseline] if baseline else []
        command += ["--no-again"] if not again else []
        command += ["--goals", str(goals_file.resolve())] if goals_file and must_reach else []
        if not addresses and race.options.system_calls == quick:  # Unlike it would be by itself.
            command.append("--no-system-calls" if not quick else "--system-calls")
        result.run.command = command
        code = finish(console, race, asked, must_reach)
        if other:
            terminal.print_comparisons(console, result.cells, baseline, other)
        return code


def read_goals(
    path: Path, plans: Sequence[workloads.CellPlan], targets_folder: Path | None, must_reach: bool
) -> Sequence[goals.Goal]:
    """Return the goals in a file; raise Refused where they can't be judged by a run of these cells."""
    found = goals.read(path)
    known = [arm.name for arm in manifest.discover(targets_folder, broken={})]
    if must_reach:
        goals.check_arms(found, path, known)
    names = {plan.name for plan in plans}
    if must_reach and not any(names & goal.cell_names for goal in found):
        raise Refused(
            f"none of the goals in {path} is about a cell of this run; leave out --goals, or name their cells"
        )
    return found


def check_outside(selectors: Sequence[str], *, system_calls: bool) -> None:
    """Raise Refused for what is possible only with servers that are started."""
    if selectors:
        raise Refused("--address measures servers that run already, --targets starts servers: use one of them")
    if system_calls:
        raise Refused(
            "--system-calls looks into a server that the lab has started: leave it out, or name targets instead of --address"
        )


def outside_plans(plans: list[workloads.CellPlan], what: Sequence[str]) -> list[workloads.CellPlan]:
    """Return the cells for servers that run already, in figures that can be seen from outside; raise Refused."""
    if not what:
        raise Refused(
            "say what the server at --address serves, for example: ringlab run http/50/closed --address HOST:PORT"
        )
    found = [plan.without_processes for plan in plans if plan.kind in manifest.SERVERS]
    seen = [plan for plan in found if plan is not None]
    if not seen:
        raise Refused(
            "none of these cells can be measured from outside: their figures are those of processes that the lab has started"
        )
    return seen


def check_answers(race: runner.Race) -> None:
    """Ask each service once, before it is measured; raise Refused where its answer isn't right."""
    for plan in [plan for plan in race.plans if plan.has_first_client][:1]:
        for arm in race.arms.values():
            try:
                race.try_first_client(plan, arm)
            except (process.SampleFailed, process.SampleVoid) as wrong:
                raise Refused(
                    f"{arm.name}: {wrong}; say what is asked with --method, --path, --header and --data, and what a right answer is"
                    " with --expect-status, --expect-body or --expect-text"
                ) from None


def with_window(scale: results.Scale, window_s: float) -> results.Scale:
    """Return a scale with another window; where a quick run's is shorter than usual, so is its warm-up."""
    full = workloads.SCALES[scale.name]
    share = min(1.0, max(QUICK_WINDOW_MIN, window_s / full.window_s)) if scale.name == "quick" else 1.0
    return replace(scale, window_s=window_s, warm_up_s=share * full.warm_up_s)


def fit_quick(race: runner.Race, budget_s: float) -> None:
    """Give a quick run windows so short that it fits into its time, as far as they may shrink."""
    shortest_s = QUICK_WINDOW_MIN * workloads.SCALES["quick"].window_s
    while race.scale.window_s > shortest_s and sum(race.expected_s(plan) for plan in race.plans) > budget_s:
        race.result.run.scale = with_window(race.scale, max(shortest_s, round(race.scale.window_s * 0.9, 3)))


def start_race(
    console: Console,
    result: results.Result,
    present: dict[str, manifest.Arm],
    plans: list[workloads.CellPlan],
    output: Path,
) -> runner.Race:
    """Look at the machine, and prepare to measure; what makes measuring pointless is an error."""
    program, problem = None, ""
    needs_load = any(plan.loaded for plan in plans)
    if needs_load:
        with working(console, "looking for the load generator") as tell:
            try:
                program = generator.find(tell)
            except generator.GeneratorMissing as error:
                problem = str(error)
    connections = max(plan.connections for plan in plans)
    findings = preflight.examine(connections, result.run.placement, program, problem)
    if not needs_load:
        findings = [finding for finding in findings if finding.name != "load generator"]
    result.preflight = findings
    result.environment = preflight.environment(program)
    errors = [finding for finding in findings if finding.status == "error"]
    terminal.print_findings(console, findings, problems_only=True)
    if errors:
        raise Refused(f"nothing can be measured on this machine: {'; '.join(finding.name for finding in errors)}")
    race = runner.Race(result, present, plans, program, output, ConsoleProgress(console, 1.0))
    race.overheads_s = storage.read_overheads()
    return race


def finish(console: Console, race: runner.Race, asked: Sequence[goals.Goal] = (), must_reach: bool = False) -> int:
    """Run a race to its end, judge the goals and report; return the exit status."""
    result = race.result
    expected_s = sum(race.expected_s(plan) for plan in race.plans)
    terminal.print_settings(console, result)
    limit_s = race.left_s()
    cells, arms = figures.counted(len(race.plans), "cell"), figures.counted(len(race.arms), "arm")
    rounds = f"{'up to ' if limit_s < expected_s else ''}{figures.counted(race.scale.rounds, 'round')}"
    duration = report.minutes(min(expected_s, limit_s))
    console.print(
        f"{cells}, {arms}, {rounds}: about {duration}; Ctrl-C ends it and keeps what was measured",
        highlight=False,
    )
    least = min(1.0, statistics.ROUNDS_MIN / race.scale.rounds)
    progress = ConsoleProgress(console, expected_s, limit_s, least)
    race.progress = progress
    begun = time.monotonic()
    try:
        with progress.bar:
            race.run()
        storage.write_overheads(race.overheads_s | race.overheads_found_s)
        terminal.print_left_out(console, result)
        terminal.print_summary(console, result)
        if asked:
            result.goals = goals.judge(asked, result)
            race.write()
            terminal.print_goals(console, result)
    except OSError:
        # What is printed may go to the same full disk, and is less than the result.
        if not race.unwritten:
            raise
    if race.unwritten:
        storage.keep_elsewhere(result, race.unwritten)
    try:
        written = storage.write_reports(result, race.output.parent)
    except (OSError, ValueError) as error:
        raise Refused(
            f"the reports can't be written: {error}; the result is kept, and `ringlab report {shlex.quote(str(race.output))}` shows it"
        ) from None
    if result.run.interrupted and result.run.command[1:2] == ["run"] and "--address" not in result.run.command:
        resumed = f"ringlab run --resume {shlex.quote(str(race.output))}"
        console.print(f"\ninterrupted; what was measured is kept. Resume with: {resumed}")
    console.print(f"\n{report.minutes(time.monotonic() - begun)}; the report is in:")
    for path in (race.output, *written):
        console.print(f"  {path}", markup=False, highlight=False)
    if result.run.interrupted:
        return EXIT_INTERRUPTED
    if report.has_void(result) or not any(
        sample.status == "measured" for cell in result.cells for sample in cell.samples
    ):
        return 1
    return goals.status_of(result.goals) if asked and must_reach else 0


def resume(path: Path, targets_folder: Path | None, if_busy: neighbours.IfBusy) -> int:
    """Go on with a run that was interrupted; return the exit status."""
    result = results.Result.read(path)
    keep = functools.partial(keep_place, result)
    with storage.lock(path.parent), neighbours.announced(keep, if_busy, terminal.warn):
        return go_on(path, result, targets_folder)


def as_given(command: Sequence[str]) -> list[str]:
    """Return the words of a result's command with the bytes of paths that aren't UTF-8, which results.readable has written out.

    A path that exists as it is written is left alone.
    """
    written_out = re.compile(r"\\u(dc[89a-f][0-9a-f])")
    return [
        word if os.path.exists(word) else written_out.sub(lambda found: chr(int(found[1], 16)), word)
        for word in command
    ]


def keep_place(result: results.Result, taken: set[int]) -> results.Placement:
    """Return the CPUs of a run that goes on; raise Refused where another lab has them."""
    placement = result.run.placement
    if taken.intersection((*placement.server, *placement.client)):
        raise Refused("another lab measures on the CPUs of this run; wait for it with --if-busy wait")
    return replace(placement)


def go_on(path: Path, result: results.Result, targets_folder: Path | None) -> int:
    """Measure what a result lacks; return the exit status."""
    console = terminal.make_console()
    if result.run.complete:
        raise Refused(f"{path} is complete, there is nothing to resume; `ringlab report {path}` shows it")
    if "--address" in result.run.command:
        raise Refused(
            f"{path} is about servers that the lab has not started, and nobody knows whether they are still the same; start a new run"
        )
    if not result.cells:
        raise Refused(f"{path} has no cells; start a new run")
    for cell in result.cells:
        if cell.name not in workloads.BY_NAME:
            raise Refused(f"{path} can't be resumed: this ringlab has no cell {cell.name}; start a new run")
    words = as_given(result.run.command)
    values = dict(itertools.pairwise(words))
    try:
        workers = int(values.get("--workers", 1))
        minutes = float(values.get("--minutes", 0))
        memory = int(values.get("--memory", 0))
        begun, ended = (
            datetime.datetime.fromisoformat(each).astimezone(datetime.UTC)
            for each in (result.run.begun, result.run.ended)
        )
    except (ValueError, OverflowError) as error:  # OverflowError: beyond the year 9999 in UTC.
        raise Refused(f"{path} isn't a result that ringlab wrote: {error}; start a new run") from None
    if targets_folder is None and "--targets-folder" in values:
        targets_folder = Path(values["--targets-folder"])
    wanted = {arm.name for arm in result.arms if not arm.skipped and not arm.repeats}
    arms = [arm for arm in selection.find(targets_folder, (), terminal.warn) if arm.name in wanted]
    with working(console, "checking which targets can run here") as tell:
        present, records = selection.make_ready(arms, tell)
    lost = sorted(wanted - set(present))
    if lost:
        reasons = {record.name: record.skipped for record in records}
        lines = [f"{name} ({reasons.get(name, 'there is no such target')})" for name in lost]
        raise Refused(f"these took part and can't run any more: {'; '.join(lines)}")
    before = result.environment
    plans = [workloads.BY_NAME[cell.name] for cell in result.cells]
    race = start_race(console, result, present, plans, path)
    race.options = runner.Options(
        workers=workers,
        baseline=values.get("--baseline", ""),
        again="--no-again" not in words,
        system_calls="--system-calls" in words
        or (result.run.scale.name != "quick" and "--no-system-calls" not in words),
        memory_bytes=preflight.memory_limit(memory or None),
    )
    for name in ("machine", "cpu_model", "cpus_usable", "kernel"):
        then, now = getattr(before, name), getattr(result.environment, name)
        if then != now:
            raise Refused(f"this machine isn't the one of {path}: {name} was {then}, and is {now}; start a new run")
    if before.revision != result.environment.revision:
        race.note(f"what follows is of revision {result.environment.revision}, what was before of {before.revision}")
    # Both go on from where they were.
    race.stolen_begin_s -= before.stolen_s
    since_s = (datetime.datetime.now(datetime.UTC) - begun).total_seconds()
    race.begun -= since_s
    if minutes:
        race.options.limit_s = since_s + max(BUDGET_S_MIN, minutes * 60 - (ended - begun).total_seconds())
    asked = goals.read(Path(values["--goals"])) if "--goals" in values else []
    result.run.interrupted = False
    race.result.run.notes.append(
        f"the run was interrupted and resumed at {datetime.datetime.now(datetime.UTC):%Y-%m-%dT%H:%M:%SZ}"
    )
    return finish(console, race, asked, must_reach=True)


def compare_within(source: Path, first: str, second: str, what: Sequence[str]) -> None:
    """Compare two arms of a result, which is a file or in a folder."""
    console = terminal.make_console()
    result = results.Result.read(storage.result_file(source))
    records = {arm.name: arm for arm in result.arms}
    for name in (first, second):
        if name not in records or records[name].skipped:
            raise Refused(
                f"{name} took no part in {source}; those that did: {', '.join(n for n, arm in records.items() if not arm.skipped)}"
            )
    shown = []
    for cell in result.cells:
        if what and not any(fnmatch.fnmatchcase(cell.name, pattern) or cell.workload == pattern for pattern in what):
            continue
        if not (cell.measured(first) and cell.measured(second)):
            continue
        shown.append(cell)
        names = [name for name in cell.arms if name in (first, second) or records[name].repeats]
        cell.analysis = analysis.analyse(cell, [records[name] for name in names], first)
        terminal.print_cell(console, cell)
    if not shown:
        raise Refused(f"no cell of {source} has measured both {first} and {second}")
    terminal.print_comparisons(console, shown, first, second)
