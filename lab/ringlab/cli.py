"""The command line: the commands with their options, and how they end."""

import contextlib
import functools
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import click
from click.core import ParameterSource
from rich.markup import escape
from rich.table import Table

from ringlab import (
    Refused,
    __version__,
    exports,
    generator,
    guard,
    history,
    manifest,
    neighbours,
    preflight,
    presets,
    replication,
    results,
    selection,
    services,
    session,
    storage,
    workloads,
)
from ringlab.audit.command import audit_command
from ringlab.progress import working
from ringlab.report import html, markdown, terminal

EXIT_UNREAD = 128 + signal.SIGPIPE
"""The status of a process that SIGPIPE has ended, which the kernel sends when nobody reads the output any more."""
SEED_MAX = (1 << 64) - 1
FORMATS = ("terminal", "markdown", "html", "csv")
CONNECTIONS = 2000
"""The most in any cell of a run without --publish."""
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class Impossible(click.ClickException):
    """The error, in click's format, for a request that can't be carried out."""

    exit_code = 2


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Let SIGTERM and SIGHUP interrupt as Ctrl-C does, but only once: winding up takes a moment, and must be completed."""
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


@contextlib.contextmanager
def errors_told() -> Iterator[None]:
    """Tell what went wrong, and end with a status that says so.

    Python's own status for an error is 1, which for `guard` means that head is slower, and so is click's where an input has ended.
    """
    try:
        yield
    except (click.exceptions.Exit, click.Abort):
        raise
    except BrokenPipeError:
        terminal.let_go_of(sys.stdout)
        sys.exit(EXIT_UNREAD)
    except Exception as error:
        told: Exception = error
        if isinstance(error, Refused):
            told = Impossible(str(error))
        elif isinstance(error, OSError):
            terminal.let_go_of(sys.stdout)
            where = f"{error.filename}: " if error.filename else ""
            told = Impossible(f"{where}{error.strerror or error}")
        # Not by click, which has another status where the message can't be printed.
        if isinstance(told, click.ClickException):
            print_error(told.show)
            sys.exit(told.exit_code)
        print_error(traceback.print_exc)
        sys.exit(Impossible.exit_code)


def print_error(write: Callable[[], None]) -> None:
    """Write to the standard error, as far as it can be written to: the status must not depend on it."""
    try:
        write()
    except OSError:
        terminal.let_go_of(sys.stderr)


class Commands(click.Group):
    """The commands, each of which may be interrupted, and leaves nothing running."""

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        """Read the command line as far as the command's name, and print the help if it is asked for."""
        with errors_told():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run one of them."""
        with errors_told(), interruptible():
            try:
                return super().invoke(ctx)
            except KeyboardInterrupt:
                print_error(functools.partial(click.echo, "interrupted", err=True))
                sys.exit(session.EXIT_INTERRUPTED)


def together(*options: Decorator) -> Decorator:
    """Return the decorator that adds all of these options."""
    return lambda function: functools.reduce(lambda made, option: option(made), reversed(options), function)


targets_folder_option = click.option(
    "--targets-folder",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Where the targets are: folders with a target.toml (default: $RINGLAB_TARGETS, or lab/targets of the repository).",
)
seed_option = click.option(
    "--seed",
    type=click.IntRange(0, SEED_MAX),
    help="Seed for the order in each round and for the bytes sent (random; it is recorded).",
)
output_option = click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help=f"The folder for result.json and reports (default: {storage.FOLDER}/DATE).",
)
measuring_options = together(
    targets_folder_option,
    click.option(
        "--quick",
        is_flag=True,
        help=f"A first look, in about {session.QUICK_MINUTES:g} minutes: fewer cells, short windows.",
    ),
    click.option("--publish", is_flag=True, help="Every cell, long windows, many rounds; takes hours."),
    click.option(
        "--rounds",
        type=click.IntRange(1, 10_000),
        help="How often every arm runs in each cell (default: 9; --publish: 15).",
    ),
    click.option(
        "--seconds", type=session.Duration(0.05, 3600), help="Length of a sample (default: 2; --publish: 10)."
    ),
    click.option("--minutes", type=session.Duration(0.1, 1440), help="With --quick: how long measuring may take."),
    seed_option,
    click.option(
        "--workers", type=click.IntRange(1, 1024), default=1, show_default=True, help="Workers of each server."
    ),
    neighbours.if_busy_option,
    click.option(
        "--memory",
        type=click.IntRange(16, 1 << 24),
        metavar="MB",
        help="Stop a server that takes more memory than this (default: half of what is available).",
    ),
    click.option(
        "--system-calls/--no-system-calls",
        default=None,
        help="Count system calls, in separate runs (not with --quick).",
    ),
    click.option(
        "--again/--no-again",
        default=True,
        help="Run a second copy of the baseline, which shows the noise (default: yes).",
    ),
    output_option,
)
"""The options that `run` and `compare` have in common."""


def given() -> dict[str, str]:
    """Return which parameters of the current command the command line has, by their names: how each is written."""
    context = click.get_current_context()
    return {
        parameter.name or "": parameter.opts[0]
        for parameter in context.command.params
        if context.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE
    }


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="ringlab")
def main() -> None:
    """Benchmark network servers in any language, side by side, and say so when the data does not support a ranking.

    A target is a program to measure, and an arm is one variant of it. Every arm runs in rounds, in random order, in fresh
    processes. Only ratios within a round are compared, above all the server's CPU time per operation. Start with
    `ringlab doctor`, then `ringlab run --quick`.

    Exit status: 0 done; 1 nothing was measured, a goal is missed, or guard found a regression; 2 the request can't be carried
    out; 3 a goal or guard cannot tell; 130 interrupted.
    """


@main.command(short_help="Measure workloads or single cells.")
@click.argument("what", nargs=-1, metavar="[WORKLOAD|CELL]...")
@click.option(
    "--targets",
    "selectors",
    multiple=True,
    metavar="A,B",
    help="Only these arms, targets, languages or globs; an arm's name selects that arm alone. Repeatable.",
)
@click.option(
    "--baseline",
    default="",
    metavar="ARM",
    help="The arm that ratios are relative to (default: a raw C server or asyncio, if it takes part).",
)
@click.option(
    "--resume",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Resume an interrupted run from its result.json, with its cells, arms, rounds and seed.",
)
@click.option(
    "--preset",
    metavar="NAME",
    help="A named choice of cells, arms, length and goals, from presets.toml: loops, native and others. Other options take precedence.",
)
@click.option(
    "--goals",
    "goals_file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Judge the goals in this TOML file. Exit status: 0 reached, 1 missed, 3 cannot tell.",
)
@measuring_options
@services.options
@click.option(
    "--address",
    "addresses",
    multiple=True,
    metavar="HOST:PORT",
    help="Measure a server that runs already, instead of targets. Repeatable.",
)
def run(
    what: tuple[str, ...],
    selectors: tuple[str, ...],
    baseline: str,
    resume: Path | None,
    preset: str | None,
    goals_file: Path | None,
    **options: Any,
) -> None:
    """Measure workloads (bind, http, rtt, echo, asgi, wsgi, sweep, churn, idle, stream, loops, files) or single cells, with every
    target that can run here. The default is all workloads but loops and files, or with --quick the first four.

    \b
    Examples:
      ringlab run --quick
      ringlab run echo http --targets python,go,tokio --rounds 15
      ringlab run 'http/50/*' --baseline c-epoll
      ringlab run asgi --targets 'uvicorn-uvloop,ringloop-serve-*'
      ringlab run wsgi --targets 'gunicorn-gthread,ringloop-wsgi-*'
      ringlab run --preset loops
      ringlab run 'loops/echo/*' --targets asyncio,ringloop --goals lab/goals/loops.toml
      ringlab run --resume ringlab-results/20261121-160000/result.json
      ringlab run http/50/closed --address 10.0.0.5:8080 --path /items/7 --expect-text '"id":7'

    Results are written after every cell. Ctrl-C ends the run and keeps what was measured.
    """
    if resume is not None:
        for name, written in given().items():
            if name not in ("resume", "targets_folder", "if_busy"):
                raise Refused(f"--resume continues the run with its own options: leave out {written}")
        sys.exit(session.resume(resume, options["targets_folder"], options["if_busy"]))
    options["service"] = services.Service.of(options)
    if preset is None:
        sys.exit(session.measure(what, selectors, baseline, goals_file=goals_file, **options))
    asked = presets.named(preset)
    options |= preset_options(asked)
    goals_file, must_reach = goals_file or asked.goals, goals_file is not None
    what, selectors = what or asked.cells, selectors or asked.targets
    sys.exit(session.measure(what, selectors, baseline, goals_file=goals_file, must_reach=must_reach, **options))


def preset_options(preset: presets.Preset) -> dict[str, Any]:
    """Return a preset's options of the current command, without those that were given, and what these exclude."""
    if unknown := preset.options.keys() - click.get_current_context().params.keys():
        raise Refused(
            f"{preset.title!r} in {presets.FILE_NAME} has no option of `ringlab run`: {', '.join(sorted(unknown))}"
        )
    excluded = set(given())
    excluded |= {"quick", "minutes", "seconds"} if "publish" in excluded else set()
    excluded |= {"minutes"} if "rounds" in excluded else set()
    return {name: value for name, value in preset.options.items() if name not in excluded}


RESULT_FILE_OPTIONS = ("fail_if", "control", "every_metric", "csv")
"""Of `compare`, for two result files."""


@main.command(short_help="Compare two arms, or two results.")
@click.argument("arms", nargs=2, metavar="A B")
@click.option(
    "--in",
    "source",
    type=click.Path(path_type=Path, exists=True),
    help="Compare within this result, or that of this folder; measure nothing.",
)
@click.option("--workload", "what", multiple=True, metavar="WORKLOAD|CELL", help="Only these. Repeatable.")
@click.option(
    "--fail-if",
    multiple=True,
    metavar="CONDITION",
    help="Files: exit with 1 for slower, slower:3%, faster, cannot-tell or missing. Repeatable.",
)
@click.option("--control", default="", metavar="ARM", help="Files: the arm that others are relative to, or none.")
@click.option(
    "--all-figures",
    "every_metric",
    is_flag=True,
    help="Files: compare all figures, not only the one that ranks the arms.",
)
@click.option(
    "--csv",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Files: write the verdicts as CSV.",
)
@measuring_options
def compare(arms: tuple[str, str], source: Path | None, what: tuple[str, ...], **options: Any) -> None:
    """Compare two arms, or two results: A is the baseline, B is what differs. An arm against itself shows the noise.

    Arms are measured now, or with --in compared within a result in which both took part. If A and B are result files or
    their folders, every arm that is in both is compared, relative to a control that is in both; with --fail-if, the exit
    status is 1 if a verdict meets the condition.

    \b
    Examples:
      ringlab compare asyncio-protocol uvloop-protocol --workload echo --quick
      ringlab compare go tokio --in ringlab-results/20261121-160000
      ringlab compare before/result.json after/result.json --fail-if slower:3%
    """
    first, second = arms
    of_files = {name: options.pop(name) for name in RESULT_FILE_OPTIONS}
    if history.is_result(first) and history.is_result(second):
        for name, written in given().items():
            if name not in ("arms", "what", *RESULT_FILE_OPTIONS):
                raise Refused(f"{written} is for arms, not for result files")
        cells = [plan.name for plan in workloads.choose(what, "publish")] if what else []
        sys.exit(history.compare_files(first, second, cells=cells, **of_files))
    for name, written in given().items():
        if name in RESULT_FILE_OPTIONS:
            raise Refused(f"{written} is for two result files; {first} and {second} aren't both")
    if source is None:
        broken: dict[str, str] = {}
        known = manifest.discover(options["targets_folder"], broken=broken)
        for name in arms:
            if name not in {arm.name for arm in known}:
                raise Refused(selection.no_such(name, known, broken))
        # An arm against itself is compared with its second copy, which shows the noise.
        other = second if second != first else manifest.again_name(first)
        sys.exit(session.measure(what, arms, first, other=other, **options))
    if first == second:
        raise Refused(f"A and B are the same: compare {first} with {manifest.again_name(first)}, if that was measured")
    session.compare_within(source, first, second, what)


@main.command("guard", short_help="Tell whether a change made something slower.")
@click.argument("what", nargs=-1, metavar="[WORKLOAD|CELL]...")
@click.option("--base", required=True, metavar="REV", help="The revision to compare with: a branch, tag or commit.")
@click.option("--head", default="HEAD", show_default=True, metavar="REV", help="The revision to judge.")
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
    help="The arms to measure.",
)
@click.option(
    "--build",
    "build_command",
    metavar="COMMAND",
    help=f"Builds a revision (default: {guard.BUILD_COMMAND}; with --start: nothing).",
)
@click.option(
    "--start",
    default="",
    metavar="COMMAND",
    help="Starts the server of a revision, in its folder, on port {port}: for any repository, instead of targets.",
)
@services.options
@click.option(
    "--rounds",
    type=click.IntRange(1, 10_000),
    default=9,
    show_default=True,
    help="How often every arm runs in each cell.",
)
@click.option(
    "--seconds",
    type=session.Duration(0.05, 3600),
    default=1.0,
    show_default=True,
    help="The measured window of a sample.",
)
@seed_option
@neighbours.if_busy_option
@output_option
def guard_command(
    what: tuple[str, ...],
    base: str,
    head: str,
    repository: Path,
    selectors: tuple[str, ...],
    build_command: str | None,
    start: str,
    output: Path | None,
    **options: Any,
) -> None:
    """Build a repository at two revisions, measure both, and say whether head is slower than base.

    Without --start it is ringloop's, which brings targets. The server of any other is started by --start.

    \b
    Exit status: 0 fine, 1 slower, 2 it can't be done, 3 cannot tell, 130 interrupted.
    Example:
      ringlab guard --base main echo --rounds 15
      ringlab guard --base main --build 'go build -o server .' --start './server -addr {host}:{port}' \\
          http/50/closed --path /items/7 --expect-text '"id":7'
    """
    service = services.Service.of(options)
    sys.exit(guard.run(what, base, head, repository, selectors, build_command, start, service, output, **options))


@main.command(short_help="List what can be measured here.")
@targets_folder_option
@click.option(
    "--targets", "selectors", multiple=True, metavar="A,B", help="Only these arms, targets, languages or globs."
)
@click.option("--cells", is_flag=True, help="List the cells instead.")
@click.option("--build", is_flag=True, help="Build those that can be built.")
def targets(targets_folder: Path | None, selectors: tuple[str, ...], cells: bool, build: bool) -> None:
    """List the targets: which can run here, which can't and why, and the command that installs what they lack."""
    console = terminal.make_console()
    if cells:
        for plan in workloads.CELLS:
            scale = min(plan.scales, key=["quick", "normal", "publish"].index, default="named")
            click.echo(f"{plan.name:32} {scale:8} {plan.title}")
        return
    arms = selection.find(targets_folder, selectors, terminal.warn)
    records: list[results.Arm] = []
    if build:
        with working(console, "checking which targets can run here") as tell:
            _, records = selection.make_ready(arms, tell)
    else:
        asked: dict[tuple[str, str], manifest.Presence] = {}
        records = [selection.look_up(arm, asked) for arm in arms]
    table = Table(box=None, header_style="dim")
    for heading in ("arm", "language", "serves", "here"):
        table.add_column(heading, overflow="fold")
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
@targets_folder_option
def doctor(targets_folder: Path | None) -> None:
    """Check whether this machine can measure, and say what to fix. Exit status 1 if something prevents it."""
    console = terminal.make_console()
    program, problem = None, ""
    with working(console, "looking for the load generator") as tell:
        try:
            program = generator.find(tell)
        except generator.GeneratorMissing as error:
            problem = str(error)
    findings = preflight.examine(CONNECTIONS, preflight.place(), program, problem)
    broken: dict[str, str] = {}
    arms = manifest.discover(targets_folder, broken=broken)
    findings += [
        results.Finding(
            name=f"target {name}", status="warning", text=error, remedy="mend the file; others are not affected"
        )
        for name, error in broken.items()
    ]
    asked: dict[tuple[str, str], manifest.Presence] = {}
    with console.status("checking which targets can run here"):
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


@main.command("report", short_help="Show a result again, or convert it.")
@click.argument("path", type=click.Path(path_type=Path, exists=True), metavar="RESULT")
@click.option("--format", "kind", type=click.Choice(FORMATS), default="terminal", show_default=True)
def report_command(path: Path, kind: str) -> None:
    """Show a result again, from a result.json (even of an interrupted run) or from its folder.

    \b
    Example:
      ringlab report ringlab-results/20261121-160000 --format csv > figures.csv
    """
    file = storage.result_file(path)
    result = results.Result.read(file)
    if kind == "terminal":
        terminal.print_result(terminal.make_console(), result)
    elif kind == "html":
        name = file.resolve().parent.name if file.name == storage.RESULT_FILE else file.stem
        click.echo(html.render(name, result).encode(errors="backslashreplace"), nl=False)
    else:
        text = markdown.render(result) if kind == "markdown" else exports.result_csv(result)
        click.echo(text.encode(errors="backslashreplace"), nl=False)


for command in (
    audit_command,
    history.trend_command,
    replication.replicate_command,
):
    main.add_command(command)
