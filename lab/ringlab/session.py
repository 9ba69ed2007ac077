"""From what is asked for to a race, and from the race to its reports; what can't be done as asked is refused before it takes time."""

import datetime
import fnmatch
import itertools
import random
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from ringlab import (
    Refused,
    analysis,
    figures,
    generator,
    manifest,
    preflight,
    report,
    results,
    runner,
    selection,
    storage,
    workloads,
)
from ringlab.progress import ConsoleProgress
from ringlab.report import terminal

EXIT_INTERRUPTED = 130
QUICK_MINUTES = 8.0
"""What `--quick` spends on measuring: with builds and probes it must end in under ten."""
QUICK_WINDOW_LEAST = 0.5
"""The share of quick's window below which samples say too little."""
BUDGET_LEAST_S = 1.0


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
    placement: str,
    system_calls: bool | None,
    again: bool,
    output: Path | None,
) -> int:
    """Run the lab; return the exit status."""
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
    chosen = selection.choose(manifest.discover(targets_folder), selectors)
    # What none of the cells needs isn't built.
    chosen = [arm for arm in chosen if any(plan.workload in arm.workloads for plan in plans)] or chosen
    with storage.claim(output) as folder:
        lesser = [arm.name for arm in chosen if quick and not selectors and not arm.quick]
        chosen = [arm for arm in chosen if arm.name not in lesser]
        budget_s = (minutes or QUICK_MINUTES) * 60
        with console.status("checking which targets can run here") as status:
            present, records = selection.make_ready(chosen, status.update, begun + budget_s / 2 if quick else None)
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
                placement=preflight.place(workers, apart=placement == "apart"),
            ),
            arms=records,
        )
        race = start_race(console, result, present, plans, folder / storage.RESULT_FILE)
        race.options = runner.Options(
            workers=workers,
            baseline=baseline,
            again=again,
            system_calls=not quick if system_calls is None else system_calls,
        )
        if limited:
            # Where the shortest windows take too long, or others were asked for, cells end with fewer rounds.
            race.options.limit_s = max(BUDGET_LEAST_S, budget_s - (time.monotonic() - begun))
            if not seconds:
                fit_quick(race, race.options.limit_s)
        if lesser:
            race.note(f"a quick run leaves out {', '.join(lesser)}: name them with --targets, or run without --quick")
        command = ["ringlab", "run", *(plan.name for plan in plans), "--targets", ",".join(present)]
        command += ["--rounds", str(race.scale.rounds), "--seconds", f"{race.scale.window_s:g}", "--seed", str(seed)]
        command += {"quick": ["--quick"], "normal": [], "publish": ["--publish"]}[name]
        command += ["--minutes", f"{budget_s / 60:g}"] if limited else []
        command += ["--targets-folder", str(targets_folder.resolve())] if targets_folder else []
        command += ["--workers", str(workers)] if workers != 1 else []
        command += ["--placement", placement] if placement != "apart" else []
        command += ["--baseline", baseline] if baseline else []
        command += ["--no-again"] if not again else []
        if race.options.system_calls == quick:  # Unlike it would be by itself.
            command.append("--no-system-calls" if not quick else "--system-calls")
        result.run.command = command
        code = finish(console, race)
        if other:
            terminal.print_comparisons(console, result.cells, baseline, other)
        return code


def with_window(scale: results.Scale, window_s: float) -> results.Scale:
    """Return a scale with another window; where a quick run's is shorter than usual, so is its warm-up."""
    full = workloads.SCALES[scale.name]
    share = min(1.0, max(QUICK_WINDOW_LEAST, window_s / full.window_s)) if scale.name == "quick" else 1.0
    return replace(scale, window_s=window_s, warm_up_s=share * full.warm_up_s)


def fit_quick(race: runner.Race, budget_s: float) -> None:
    """Give a quick run windows so short that it fits into its time, as far as they may shrink."""
    shortest_s = QUICK_WINDOW_LEAST * workloads.SCALES["quick"].window_s
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
    needs_load = any(plan.kind in manifest.SERVERS for plan in plans)
    if needs_load:
        with console.status("looking for the load generator, and building it where it is missing"):
            try:
                program = generator.find()
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
    return runner.Race(result, present, plans, program, output, ConsoleProgress(console, 1.0))


def finish(console: Console, race: runner.Race) -> int:
    """Run a race to its end and report; return the exit status."""
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
    progress = ConsoleProgress(console, expected_s, limit_s)
    race.progress = progress
    begun = time.monotonic()
    with progress.bar:
        race.run()
    terminal.print_left_out(console, result)
    terminal.print_summary(console, result)
    if race.unwritten:
        storage.keep_elsewhere(result, race.unwritten)
    try:
        written = storage.write_reports(result, race.output.parent)
    except OSError as error:
        raise Refused(
            f"the reports can't be written: {error}; the result is kept, and `ringlab report {shlex.quote(str(race.output))}` shows it"
        ) from None
    if result.run.interrupted:
        console.print(
            f"\ninterrupted; what was measured is kept. Resume with: ringlab run --resume {shlex.quote(str(race.output))}"
        )
    console.print(f"\n{report.minutes(time.monotonic() - begun)}; the report is in:")
    for path in (race.output, *written):
        console.print(f"  {path}", markup=False, highlight=False)
    if result.run.interrupted:
        return EXIT_INTERRUPTED
    return 0 if any(sample.status == "measured" for cell in result.cells for sample in cell.samples) else 1


def resume(path: Path, targets_folder: Path | None) -> int:
    """Go on with a run that was interrupted; return the exit status."""
    console = terminal.make_console()
    result = results.Result.read(path)
    if result.run.complete:
        raise Refused(f"{path} is complete, there is nothing to resume; `ringlab report {path}` shows it")
    if not result.cells:
        raise Refused(f"{path} has no cells; start a new run")
    for cell in result.cells:
        if cell.name not in workloads.BY_NAME:
            raise Refused(f"{path} can't be resumed: this ringlab has no cell {cell.name}; start a new run")
    words = result.run.command
    values = dict(itertools.pairwise(words))
    try:
        workers = int(values.get("--workers", 1))
        minutes = float(values.get("--minutes", 0))
        begun, ended = (
            datetime.datetime.fromisoformat(each).astimezone(datetime.UTC)
            for each in (result.run.begun, result.run.ended)
        )
    except ValueError as error:
        raise Refused(f"{path} isn't a result that ringlab wrote: {error}; start a new run") from None
    if targets_folder is None and "--targets-folder" in values:
        targets_folder = Path(values["--targets-folder"])
    wanted = {arm.name for arm in result.arms if not arm.skipped and not arm.repeats}
    arms = [arm for arm in manifest.discover(targets_folder) if arm.name in wanted]
    with console.status("checking which targets can run here") as status:
        present, records = selection.make_ready(arms, status.update)
    lost = sorted(wanted - set(present))
    if lost:
        reasons = {record.name: record.skipped for record in records}
        lines = [f"{name} ({reasons.get(name, 'there is no such target')})" for name in lost]
        raise Refused(f"these took part and can't run any more: {'; '.join(lines)}")
    before = result.environment
    race = start_race(console, result, present, [workloads.BY_NAME[cell.name] for cell in result.cells], path)
    race.options = runner.Options(
        workers=workers,
        baseline=values.get("--baseline", ""),
        again="--no-again" not in words,
        system_calls="--system-calls" in words
        or (result.run.scale.name != "quick" and "--no-system-calls" not in words),
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
        race.options.limit_s = since_s + max(BUDGET_LEAST_S, minutes * 60 - (ended - begun).total_seconds())
    result.run.interrupted = False
    race.result.run.notes.append(
        f"the run was interrupted and resumed at {datetime.datetime.now(datetime.UTC):%Y-%m-%dT%H:%M:%SZ}"
    )
    return finish(console, race)


def compare_within(source: Path, first: str, second: str, what: Sequence[str]) -> None:
    """Compare two arms of a result."""
    console = terminal.make_console()
    result = results.Result.read(source)
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
