"""The command line."""

import contextlib
import datetime
import fnmatch
import itertools
import json
import math
import random
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import click
from click.core import ParameterSource
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from ringlab import (
    __version__,
    analysis,
    generator,
    guard,
    manifest,
    preflight,
    process,
    report,
    results,
    runner,
    workloads,
)
from ringlab.report import html, markdown, terminal

EXIT_INTERRUPTED = 130
QUICK_MINUTES = 8.0
"""What `--quick` spends on measuring: with builds and probes it must end in under ten."""
QUICK_WINDOW_LEAST = 0.5
"""The share of quick's window below which samples say too little."""
WIDTH = 160
RESULTS_FOLDER = "ringlab-results"
RESULT_FILE = "result.json"
FORMATS = ("terminal", "markdown", "json", "html")


class Refused(click.ClickException):
    """What was asked for can't be done; the text says why, and what to do."""

    exit_code = 2


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Let SIGTERM, and the end of the terminal, interrupt as Ctrl-C does, and once: what ends then takes a moment, and must end."""
    signals = [
        number
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is not signal.SIG_IGN  # As nohup(1) has it.
    ]

    def interrupt(number: int, frame: FrameType | None) -> None:
        for each in signals:
            signal.signal(each, lambda number, frame: None)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Commands(click.Group):
    """The commands, each of which may be interrupted, and leaves nothing running."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run one of them."""
        with interruptible():
            try:
                return super().invoke(ctx)
            except KeyboardInterrupt:
                click.echo("interrupted", err=True)
                sys.exit(EXIT_INTERRUPTED)
            finally:
                process.end_marked()


def make_console() -> Console:
    """Return the console; what isn't read on a terminal is as wide as its tables need it."""
    console = Console(soft_wrap=True)
    return console if console.is_terminal else Console(soft_wrap=True, width=WIDTH)


class ConsoleProgress:
    """Tells how far the race is and how long it will still take, and prints each cell when it is done."""

    def __init__(self, console: Console, expected_s: float, limit_s: float = 0.0) -> None:
        """Take what the whole race is expected to take, and at most, if there is a limit."""
        self.console = console
        self.limit_s = limit_s or math.inf
        self.expected_s = max(expected_s, 0.001)
        self.done_s = 0.0
        self.begun = time.monotonic()
        self.bar = Progress(
            BarColumn(30),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[left]}"),
            TextColumn("{task.description}", markup=False),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self.task = self.bar.add_task("", total=self.expected_s, left="")

    def left(self) -> str:
        """Return how long it will still take, from how long what is done took."""
        left_s = self.expected_s - self.done_s
        if self.done_s > 0:
            left_s *= (time.monotonic() - self.begun) / self.done_s
        left_s = min(left_s, self.limit_s - (time.monotonic() - self.begun))
        return f"{report.minutes(max(0.0, left_s))} left"

    def step(self, text: str) -> None:
        """Say what is done now."""
        self.bar.update(self.task, description=text, left=self.left())

    def advance(self, expected_s: float) -> None:
        """Take in that a part is over."""
        self.done_s += expected_s
        self.bar.update(self.task, completed=min(self.done_s, self.expected_s), left=self.left())

    def warn(self, text: str) -> None:
        """Print what can be mended meanwhile."""
        self.console.print(f"[red]{escape(text)}[/red]", highlight=False)

    def cell_done(self, cell: results.Cell) -> None:
        """Print a cell."""
        terminal.print_cell(self.console, cell)
        if not self.console.is_terminal:
            self.console.print(f"[dim]{self.left()}[/dim]", highlight=False)


def split(selectors: Sequence[str]) -> list[str]:
    """Return what commas separate."""
    return [each.strip() for selector in selectors for each in selector.split(",") if each.strip()]


def choose_arms(arms: list[manifest.Arm], selectors: Sequence[str]) -> list[manifest.Arm]:
    """Return the arms that are asked for, by their name, target, language or a glob; all where nothing is.

    The name of an arm is that arm alone, also where its target or language is called the same.
    """
    patterns = split(selectors)
    if not patterns:
        return arms
    chosen: dict[str, manifest.Arm] = {}
    for pattern in patterns:
        found = [arm for arm in arms if arm.name == pattern] or [
            arm
            for arm in arms
            if fnmatch.fnmatchcase(arm.name, pattern)
            or pattern == arm.target
            or pattern.lower() == arm.language.lower()
        ]
        if not found:
            raise Refused(
                f"there is no target {pattern!r}; `ringlab targets` lists them: {', '.join(arm.name for arm in arms)}"
            )
        chosen |= {arm.name: arm for arm in found}
    return list(chosen.values())


def choose_plans(what: Sequence[str], scale: workloads.ScaleName) -> list[workloads.CellPlan]:
    """Return the cells that are asked for."""
    try:
        return workloads.choose(what, scale)
    except workloads.UnknownCells as error:
        raise Refused(str(error)) from None


def discover(folder: Path | None) -> list[manifest.Arm]:
    """Return all arms."""
    try:
        return manifest.discover(folder)
    except manifest.ManifestError as error:
        raise Refused(str(error)) from None


def make_ready(
    arms: Sequence[manifest.Arm], tell: Callable[[str], None], deadline: float | None = None
) -> tuple[dict[str, manifest.Arm], list[results.Arm]]:
    """Detect and build arms; return those that can run, and a record of each, with the reason where it can't.

    Nothing more is built after the deadline (of time.monotonic).
    """
    present: dict[str, manifest.Arm] = {}
    records = []
    asked: dict[tuple[str, str], manifest.Presence] = {}
    built: set[Path] = set()
    broken: dict[Path, str] = {}
    for arm in arms:
        record = arm.record()
        records.append(record)
        presence = manifest.detect_all(arm, asked)
        record.version, record.skipped, record.install = presence.version, presence.skipped, presence.install
        if record.skipped:
            continue
        record.skipped = preflight.debug_build(arm) or broken.get(arm.build_folder, "")
        if record.skipped:
            continue
        limit_s = manifest.BUILD_TIMEOUT_S if deadline is None else max(0.0, deadline - time.monotonic())
        if not_built(arm, built):
            tell(f"building {arm.target}")
            if not limit_s:
                record.skipped = "not built, because a quick run has no time for more builds"
                record.install = "ringlab targets --build"
                continue
        try:
            manifest.build(arm, built, limit_s)
            present[arm.name] = arm
        except manifest.BuildFailed as error:
            record.skipped = broken[arm.build_folder] = f"it can't be built: {error}"
    return present, records


def not_built(arm: manifest.Arm, built: set[Path]) -> bool:
    """Whether a build command would run for an arm."""
    return bool(arm.build.command) and arm.build_folder not in built and not manifest.is_built(arm)


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


def claim(output: Path | None) -> Path:
    """Return the folder for results, which is made; one that holds a result, or can't be written to, is refused."""
    folder = output or Path(RESULTS_FOLDER) / datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    path = folder / RESULT_FILE
    if path.exists():
        raise Refused(f"{path} would be overwritten: choose another folder with --output")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
        click.get_current_context().call_on_close(lambda: remove_empty(folder))
    except OSError as error:
        raise Refused(
            f"results can't be written to {folder}: {error.strerror}; choose another folder with --output"
        ) from None
    return folder


def remove_empty(folder: Path) -> None:
    """Remove a folder that nothing came into."""
    with contextlib.suppress(OSError):
        folder.rmdir()


def keep_result(race: runner.Race) -> Path:
    """Return where the result lies at the end: elsewhere, if its own place can't be written to."""
    if not race.unwritten:
        return race.output
    folder = Path(tempfile.mkdtemp(prefix="ringlab-"))
    try:
        race.result.write(folder / RESULT_FILE)
    except OSError as error:
        click.echo(json.dumps(race.result.to_json()))
        raise Refused(
            f"{race.unwritten}; nor to {folder}: {error.strerror}; the result is what was just printed"
        ) from None
    raise Refused(f"{race.unwritten}; the result lies in {folder / RESULT_FILE}: `ringlab report {folder}` shows it")


def write_reports(result: results.Result, folder: Path) -> list[Path]:
    """Write what people read beside a result; return the files."""
    path = folder / "report.md"
    path.write_text(markdown.render(result), encoding="utf-8")
    written = [path]
    path = folder / "report.html"
    path.write_text(html.render([(folder.name, result)]), encoding="utf-8")
    return [*written, path]


Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def targets_folder_option() -> Decorator:
    """Return the option that names the folder of the targets."""
    return click.option(
        "--targets-folder",
        type=click.Path(path_type=Path, exists=True, file_okay=False),
        help="Where the targets are: folders with a target.toml (default: $RINGLAB_TARGETS, or lab/targets of the repository).",
    )


def measuring_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that `run` and `compare` have in common."""
    options: list[Decorator] = [
        targets_folder_option(),
        click.option(
            "--quick",
            is_flag=True,
            help=f"A first look, in about {QUICK_MINUTES:g} minutes: fewer cells, short windows.",
        ),
        click.option("--publish", is_flag=True, help="Every cell, long windows, many rounds: hours."),
        click.option(
            "--rounds",
            type=click.IntRange(1, 10_000),
            help="How often every arm runs in each cell (9; compare and --publish: 15).",
        ),
        click.option(
            "--seconds", type=click.FloatRange(0.05, 3600), help="The measured window of a sample (2; --publish: 10)."
        ),
        click.option("--minutes", type=click.FloatRange(0.1, 1440), help="With --quick: what measuring may take."),
        click.option(
            "--seed", type=int, help="Of the order in each round and of the bytes sent (random, and recorded)."
        ),
        click.option("--workers", type=click.IntRange(1, 1024), default=1, show_default=True, help="Of each server."),
        click.option(
            "--placement",
            type=click.Choice(["apart", "free"]),
            default="apart",
            show_default=True,
            help="apart: servers and load on CPUs of their own; free: as the kernel likes.",
        ),
        click.option(
            "--system-calls/--no-system-calls",
            default=None,
            help="Count system calls, in runs apart (not with --quick).",
        ),
        click.option(
            "--again/--no-again", default=True, help="Run a second copy of the baseline, which shows the noise (yes)."
        ),
        click.option(
            "--output",
            type=click.Path(path_type=Path, file_okay=False),
            help=f"The folder for result.json and reports ({RESULTS_FOLDER}/DATE).",
        ),
    ]
    for option in reversed(options):
        function = option(function)
    return function


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="ringlab")
def main() -> None:
    """Measure network servers in any language, side by side, and say when it can't be told which is better.

    Every arm (a variant of a target) runs in rounds, in random order, in fresh processes; only ratios within a round are
    compared, first of all the server's CPU per operation. Start with `ringlab doctor`, then `ringlab run --quick`.

    Exit status: 0 done, 1 nothing was measured or guard found a regression, 2 it can't be done as asked, 130 interrupted.
    """


@main.command()
@click.argument("what", nargs=-1, metavar="[WORKLOAD|CELL]...")
@click.option(
    "--targets",
    "selectors",
    multiple=True,
    metavar="A,B",
    help="Only these: arms, targets, languages or globs; an arm's name is that arm alone. Repeatable.",
)
@click.option(
    "--baseline", default="", metavar="ARM", help="What ratios are to (a raw C floor or asyncio, where one takes part)."
)
@click.option(
    "--resume",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Go on with an interrupted run: its result.json, with its cells, arms, rounds and seed.",
)
@measuring_options
def run(
    what: tuple[str, ...],
    selectors: tuple[str, ...],
    baseline: str,
    resume: Path | None,
    **options: Any,
) -> None:
    """Measure workloads (bind, http, rtt, loop, echo; all by default) or single cells on every target that is here.

    \b
    Examples:
      ringlab run --quick
      ringlab run echo http --targets python,go,tokio --rounds 15
      ringlab run 'http/50/*' --baseline c-epoll
      ringlab run --resume ringlab-results/20261121-160000/result.json

    Results are written after every cell. Ctrl-C ends the run and keeps what was measured.
    """
    if resume is not None:
        context = click.get_current_context()
        for parameter in context.command.params:
            name = parameter.name or ""
            given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
            if given and name not in ("resume", "targets_folder"):
                raise Refused(f"--resume goes on with that run as it was asked for: leave out {parameter.opts[0]}")
        sys.exit(continue_run(resume, options["targets_folder"]))
    sys.exit(measure(what, selectors, baseline, **options))


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
        raise Refused("--quick and --publish exclude each other")
    if minutes and not quick:
        raise Refused("--minutes is for --quick; without it --rounds and --seconds say how long is measured")
    console = make_console()
    begun = time.monotonic()
    name: workloads.ScaleName = "quick" if quick else "publish" if publish else "normal"
    scale = workloads.SCALES[name]
    if seconds:
        scale = with_window(scale, seconds)
    limited = quick and bool(minutes or not rounds)
    if rounds:
        scale = replace(scale, rounds=rounds)
    plans = choose_plans(what, name)
    chosen = choose_arms(discover(targets_folder), selectors)
    output = claim(output)
    lesser = [arm.name for arm in chosen if quick and not selectors and not arm.quick]
    chosen = [arm for arm in chosen if arm.name not in lesser]
    budget_s = (minutes or QUICK_MINUTES) * 60
    with console.status("looking which targets are here") as status:
        present, records = make_ready(chosen, status.update, begun + budget_s / 2 if quick else None)
    if baseline and baseline not in present:
        reason = next(
            (record.skipped for record in records if record.name == baseline), "it isn't among the targets chosen"
        )
        raise Refused(f"the baseline {baseline} takes no part: {reason}")
    if not present:
        for record in records:
            click.echo(f"skipped: {record.name}: {record.skipped}; install it with: {record.install}", err=True)
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
    race = start_race(console, result, present, plans, output / RESULT_FILE)
    race.options = runner.Options(
        workers=workers,
        baseline=baseline,
        again=again,
        system_calls=not quick if system_calls is None else system_calls,
    )
    if limited:
        # Where the shortest windows take too long, or others were asked for, cells end with fewer rounds.
        race.options.limit_s = max(1.0, budget_s - (time.monotonic() - begun))
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
        print_comparisons(console, result.cells, baseline, other)
    return code


def start_race(
    console: Console,
    result: results.Result,
    present: dict[str, manifest.Arm],
    plans: list[workloads.CellPlan],
    output: Path,
) -> runner.Race:
    """Look at the machine, and prepare to measure; what makes measuring pointless is an error."""
    program, problem = None, ""
    needs_load = any(plan.kind in ("echo", "http") for plan in plans)
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
        raise Refused(f"nothing can be measured like this: {'; '.join(finding.name for finding in errors)}")
    return runner.Race(result, present, plans, program, output, ConsoleProgress(console, 1.0))


def finish(console: Console, race: runner.Race) -> int:
    """Run a race to its end and report; return the exit status."""
    result = race.result
    expected_s = sum(race.expected_s(plan) for plan in race.plans)
    terminal.print_settings(console, result)
    arms, limit_s = len(race.arms), race.options.limit_s
    rounds = f"{'up to ' if 0 < limit_s < expected_s else ''}{race.scale.rounds} rounds"
    duration = report.minutes(min(expected_s, limit_s or expected_s))
    console.print(
        f"{len(race.plans)} cells, {arms} arms, {rounds}: about {duration}; Ctrl-C ends it and keeps what was measured",
        highlight=False,
    )
    progress = ConsoleProgress(console, expected_s, limit_s)
    race.progress = progress
    begun = time.monotonic()
    with progress.bar:
        race.run()
    terminal.print_left_out(console, result)
    terminal.print_summary(console, result)
    written = [keep_result(race)]
    try:
        written += write_reports(result, race.output.parent)
    except OSError as error:
        raise Refused(
            f"the reports can't be written: {error}; the result is kept, and `ringlab report {shlex.quote(str(race.output))}` shows it"
        ) from None
    if result.run.interrupted:
        console.print(
            f"\ninterrupted; what was measured is kept. Go on with: ringlab run --resume {shlex.quote(str(race.output))}"
        )
    console.print(f"\n{report.minutes(time.monotonic() - begun)}; the report lies in:")
    for path in written:
        click.echo(f"  {path}")
    if result.run.interrupted:
        return EXIT_INTERRUPTED
    return 0 if any(sample.status == "measured" for cell in result.cells for sample in cell.samples) else 1


def continue_run(path: Path, targets_folder: Path | None) -> int:
    """Go on with a run that was interrupted; return the exit status."""
    console = make_console()
    result = read_result(path)
    if result.run.complete:
        raise Refused(f"{path} is complete: there is nothing to go on with; `ringlab report {path}` shows it")
    words = result.run.command
    options = dict(itertools.pairwise(words))
    if targets_folder is None and "--targets-folder" in options:
        targets_folder = Path(options["--targets-folder"])
    wanted = {arm.name for arm in result.arms if not arm.skipped and not arm.repeats}
    arms = [arm for arm in discover(targets_folder) if arm.name in wanted]
    with console.status("looking which targets are here") as status:
        present, records = make_ready(arms, status.update)
    lost = sorted(wanted - set(present))
    if lost:
        reasons = {record.name: record.skipped for record in records}
        lines = [f"{name} ({reasons.get(name, 'there is no such target')})" for name in lost]
        raise Refused(f"these took part and can't any more: {'; '.join(lines)}")
    before = result.environment
    race = start_race(console, result, present, [workloads.BY_NAME[cell.name] for cell in result.cells], path)
    race.options = runner.Options(
        workers=int(options.get("--workers", 1)),
        baseline=options.get("--baseline", ""),
        again="--no-again" not in words,
        system_calls="--system-calls" in words
        or (result.run.scale.name != "quick" and "--no-system-calls" not in words),
    )
    for name in ("machine", "cpu_model", "cpus_usable", "kernel"):
        then, now = getattr(before, name), getattr(result.environment, name)
        if then != now:
            raise Refused(f"the machine isn't the one of {path}: {name} was {then}, and is {now}; begin a new run")
    if before.revision != result.environment.revision:
        race.note(f"what follows is of revision {result.environment.revision}, what was before of {before.revision}")
    # Both go on from where they were.
    race.stolen_begin_s -= before.stolen_s
    race.begun -= (
        datetime.datetime.now(datetime.UTC) - datetime.datetime.fromisoformat(result.run.begun)
    ).total_seconds()
    result.run.interrupted = False
    race.result.run.notes.append(
        f"the run was interrupted and went on at {datetime.datetime.now(datetime.UTC):%Y-%m-%dT%H:%M:%SZ}"
    )
    return finish(console, race)


def read_result(path: Path) -> results.Result:
    """Read a result."""
    try:
        return results.Result.read(path)
    except results.ResultError as error:
        raise Refused(str(error)) from None


@main.command()
@click.argument("arms", nargs=2, metavar="A B")
@click.option(
    "--in", "source", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="Compare within this result."
)
@click.option("--workload", "what", multiple=True, metavar="WORKLOAD|CELL", help="Only these. Repeatable.")
@measuring_options
def compare(arms: tuple[str, str], source: Path | None, what: tuple[str, ...], **options: Any) -> None:
    """Compare two arms: A is the baseline, B is what differs. A against itself shows the noise.

    With --in, from the rounds of a result in which both took part; otherwise they are raced now.

    \b
    Examples:
      ringlab compare asyncio-protocol uvloop-protocol --workload echo --quick
      ringlab compare go tokio --in ringlab-results/20261121-160000/result.json
    """
    first, second = arms
    if source is None:
        names = {arm.name for arm in discover(options["targets_folder"])}
        for name in arms:
            if name not in names:
                raise Refused(f"there is no arm {name!r}; `ringlab targets` lists them")
        # One arm against itself is its second copy: what the lab makes of no difference.
        other = second if second != first else manifest.again_name(first)
        if not options["quick"]:
            options["rounds"] = options["rounds"] or workloads.COMPARE_ROUNDS
        sys.exit(measure(what, arms, first, other=other, **options))
    if first == second:
        raise Refused(f"A and B are the same: compare {first} with {manifest.again_name(first)}, if that was measured")
    sys.exit(compare_within(read_result(source), source, first, second, what))


def compare_within(result: results.Result, source: Path, first: str, second: str, what: Sequence[str]) -> int:
    """Compare two arms of a result; return the exit status."""
    console = make_console()
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
    print_comparisons(console, shown, first, second)
    return 0


def print_comparisons(console: Console, cells: Sequence[results.Cell], first: str, second: str) -> None:
    """Print how an arm compares with a baseline, in these cells and every metric."""
    console.print(f"\n[bold]{escape(second)} against {escape(first)}[/bold]")
    for cell in cells:
        for group in cell.analysis.groups:
            for comparison in group.comparisons:
                if (comparison.arm, comparison.baseline) == (second, first):
                    colour = terminal.COLOURS[comparison.verdict]
                    text = f"{cell.name}: {comparison.sentence}"
                    console.print(f"  [{colour}]{comparison.verdict:11}[/{colour}] {escape(text)}", highlight=False)


@main.command("guard")
@click.argument("what", nargs=-1, metavar="[WORKLOAD|CELL]...")
@click.option("--base", required=True, metavar="REV", help="What nothing may be slower than: a branch, tag or commit.")
@click.option("--head", default="HEAD", show_default=True, metavar="REV", help="The revision that is judged.")
@click.option(
    "--repository",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=Path("."),
    help="Where the repository is (default: around the current folder).",
)
@click.option(
    "--targets",
    "selectors",
    multiple=True,
    default=(guard.TARGETS,),
    show_default=True,
    metavar="A,B",
    help="Which arms are raced.",
)
@click.option(
    "--build",
    "build_command",
    default=guard.BUILD_COMMAND,
    show_default=True,
    metavar="COMMAND",
    help="Builds a revision.",
)
@click.option(
    "--rounds",
    type=click.IntRange(1, 10_000),
    default=9,
    show_default=True,
    help="How often every arm runs in each cell.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0.05, 3600),
    default=1.0,
    show_default=True,
    help="The measured window of a sample.",
)
@click.option("--seed", type=int, help="Of the order in each round and of the bytes sent (random, and recorded).")
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help=f"The folder for result and reports ({RESULTS_FOLDER}/DATE).",
)
def guard_command(
    what: tuple[str, ...],
    base: str,
    head: str,
    repository: Path,
    selectors: tuple[str, ...],
    build_command: str,
    output: Path | None,
    **options: Any,
) -> None:
    """Build this repository at two revisions, race them, and say whether head is slower than base.

    \b
    Exit status: 0 fine, 1 slower, 2 cannot tell (or it can't be done), 130 interrupted.
    Example:
      ringlab guard --base main echo --rounds 15
    """
    console = make_console()
    try:
        root = guard.find_repository(repository)
        revisions = [guard.check_out(root, side, name) for side, name in zip(guard.SIDES, (base, head), strict=True)]
        if head == "HEAD" and guard.is_dirty(root):
            console.print(
                "[yellow]warning[/yellow]  changes that aren't committed are not measured: head is the last commit"
            )
        if revisions[0].commit == revisions[1].commit:
            console.print("[yellow]warning[/yellow]  base and head are the same commit: this measures the noise")
        # A build takes minutes: what is wrong with the rest of the command is said before it.
        plans = choose_plans(what or guard.CELLS, "normal")
        for revision in revisions:
            choose_arms_of(root, revision, selectors)
        with console.status("building") as status:
            for revision in {each.commit: each for each in revisions}.values():
                guard.build(root, revision, build_command, status.update)
        sys.exit(race_revisions(console, root, revisions, plans, selectors, build_command, output, **options))
    except (guard.GuardFailed, manifest.ManifestError, OSError) as error:
        # Python's own status for an error, 1, would say that head is slower.
        raise Refused(str(error)) from None


def choose_arms_of(root: Path, revision: guard.Revision, selectors: Sequence[str]) -> list[manifest.Arm]:
    """Return the arms of a revision that are asked for."""
    sided = [f"{each}@{revision.side}" for each in split(selectors)]
    return choose_arms(list(guard.arms_of(root, revision).values()), sided)


def race_revisions(
    console: Console,
    root: Path,
    revisions: Sequence[guard.Revision],
    plans: Sequence[workloads.CellPlan],
    selectors: Sequence[str],
    build_command: str,
    output: Path | None,
    *,
    rounds: int,
    seconds: float,
    seed: int | None,
) -> int:
    """Race two revisions that have been built; return the exit status."""
    chosen = [arm for revision in revisions for arm in choose_arms_of(root, revision, selectors)]
    with console.status("looking which targets are here") as status:
        present, records = make_ready(chosen, status.update)
    for record in records:
        if record.skipped:
            console.print(f"[yellow]skipped[/yellow]  {escape(record.name)}: {escape(record.skipped)}", highlight=False)
    both = [
        name for name in dict.fromkeys(each.rpartition("@")[0] for each in present) if guard.is_at_both(name, present)
    ]
    if not both:
        raise Refused("no arm can be run at both revisions; --targets chooses others")
    present = {name: arm for name, arm in present.items() if name.rpartition("@")[0] in both}
    plans = [plan for plan in plans if any(plan.served_by(arm) for arm in present.values())]
    if not plans:
        raise Refused("none of these arms serves any of these cells")
    seed = seed if seed is not None else random.SystemRandom().randrange(1 << 32)
    base, head = revisions
    command = ["ringlab", "guard", *(plan.name for plan in plans), "--base", base.commit, "--head", head.commit]
    command += [
        "--targets",
        ",".join(both),
        "--build",
        build_command,
        "--rounds",
        str(rounds),
        "--seconds",
        f"{seconds:g}",
    ]
    result = results.Result(
        run=results.Run(
            command=[*command, "--seed", str(seed)],
            begun=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            seed=seed,
            scale=replace(workloads.SCALES["normal"], rounds=rounds, window_s=seconds),
            placement=preflight.place(),
            notes=[f"base is {base.name} ({base.commit[:12]}), head is {head.name} ({head.commit[:12]})"],
        ),
        arms=[record for record in records if record.name in present],
    )
    race = start_race(console, result, present, plans, claim(output) / RESULT_FILE)
    race.options = runner.Options(baseline=f"{both[0]}@base")
    status_code = finish(console, race)
    if status_code == EXIT_INTERRUPTED:
        return status_code
    findings = guard.judge(result, both)
    console.print("\n[bold]head against base[/bold]")
    for finding in findings:
        text = finding.comparison.sentence if finding.comparison else f"{finding.arm} wasn't measured at both"
        colour = terminal.COLOURS[finding.word]
        console.print(
            f"  [{colour}]{finding.word:11}[/{colour}] {escape(finding.cell.name)}: {escape(text)}", highlight=False
        )
    console.print(f"[bold]{escape(guard.conclusion(findings))}[/bold]", highlight=False)
    return guard.exit_code(findings)


@main.command()
@targets_folder_option()
@click.option(
    "--targets", "selectors", multiple=True, metavar="A,B", help="Only these: arms, targets, languages or globs."
)
@click.option("--cells", is_flag=True, help="List the cells instead.")
@click.option("--build", is_flag=True, help="Build those that can be built.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def targets(targets_folder: Path | None, selectors: tuple[str, ...], cells: bool, build: bool, as_json: bool) -> None:
    """List the targets: which can run here, which can't and why, and the command that would install what they lack."""
    console = make_console()
    if cells:
        for plan in workloads.CELLS:
            scale = min(plan.scales, key=["quick", "normal", "publish"].index)
            click.echo(f"{plan.name:24} {scale:8} {plan.title}")
        return
    arms = choose_arms(discover(targets_folder), selectors)
    records: list[results.Arm] = []
    if build:
        with console.status("looking which targets are here") as status:
            _, records = make_ready(arms, status.update)
    else:
        asked: dict[tuple[str, str], manifest.Presence] = {}
        for arm in arms:
            record = arm.record()
            presence = manifest.detect_all(arm, asked)
            record.version, record.skipped, record.install = presence.version, presence.skipped, presence.install
            records.append(record)
    if as_json:
        click.echo(json.dumps([vars(record) | {"checks": []} for record in records], indent=1))
        return
    table = Table(box=None, header_style="dim")
    for heading in ("arm", "language", "serves", "here"):
        table.add_column(heading)
    for record in records:
        here = (
            escape(record.version or "yes") if not record.skipped else f"[yellow]no: {escape(record.skipped)}[/yellow]"
        )
        if record.skipped and record.install:
            here += f"\ninstall it with: {escape(record.install)}"
        table.add_row(record.name, record.language, " ".join(record.workloads), here)
    console.print(table)
    count = sum(1 for record in records if not record.skipped)
    console.print(f"{count} of {len(records)} can run here")


@main.command()
@targets_folder_option()
@click.option(
    "--connections", type=click.IntRange(1), default=2000, show_default=True, help="How many the widest cell has."
)
def doctor(targets_folder: Path | None, connections: int) -> None:
    """Look whether this machine can measure, and say what to mend. Exit status 1 if something stands in the way."""
    console = make_console()
    program, problem = None, ""
    with console.status("looking for the load generator, and building it where it is missing"):
        try:
            program = generator.find()
        except generator.GeneratorMissing as error:
            problem = str(error)
    findings = preflight.examine(connections, preflight.place(), program, problem)
    arms = discover(targets_folder)
    asked: dict[tuple[str, str], manifest.Presence] = {}
    with console.status("looking which targets are here"):
        here = sum(1 for arm in arms if not manifest.detect_all(arm, asked).skipped)
    findings.append(
        results.Finding(
            name="targets",
            status="ok" if here >= 2 else "warning",
            text=f"{here} of {len(arms)} can run here",
            remedy="`ringlab targets` says what the others lack",
        )
    )
    terminal.print_findings(console, findings, problems_only=False)
    sys.exit(1 if any(finding.status == "error" for finding in findings) else 0)


@main.command("report")
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True), metavar="RESULT...")
@click.option("--format", "kind", type=click.Choice(FORMATS), default="terminal", show_default=True)
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write it to this file; several RESULTs become one page of HTML.",
)
def report_command(paths: tuple[Path, ...], kind: str, output: Path | None) -> None:
    """Show results again: a result.json, also of an interrupted run, or the folder that it is in.

    \b
    Example:
      ringlab report ringlab-results/* --format html --output report.html
    """
    if output is not None and len(paths) > 1 and kind != "html":
        raise Refused("--output takes several results with --format html only; report one after the other")
    files = [path / "result.json" if path.is_dir() else path for path in paths]
    found = [
        (file.resolve().parent.name if file.name == "result.json" else file.stem, read_result(file)) for file in files
    ]
    if kind == "html":
        texts = [html.render(found)]
    elif kind == "json":
        texts = [json.dumps(result.to_json(), indent=1) + "\n" for _, result in found]
    elif kind == "markdown":
        texts = [markdown.render(result) for _, result in found]
    elif output is None:
        for _, result in found:
            terminal.print_result(make_console(), result)
        return
    else:
        with output.open("w", encoding="utf-8") as file:
            terminal.print_result(Console(file=file, width=WIDTH, soft_wrap=True), found[0][1])
        click.echo(str(output))
        return
    if output is None:
        click.echo("\n".join(texts), nl=False)
    else:
        output.write_text("\n".join(texts), encoding="utf-8")
        click.echo(str(output))


if __name__ == "__main__":
    main()
