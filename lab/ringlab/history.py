"""The commands about results that exist: `ringlab trend`, and the comparison of two result files."""

import os
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

import click
from rich.markup import escape

from ringlab import Refused, exports, figures, pages, results, storage, trend, unpaired
from ringlab.report import terminal
from ringlab.results import Result

TREND_FILE = "trend.html"
EXIT_FAILED = 1


def is_result(text: str) -> bool:
    """Return whether an argument names a result rather than an arm: a file, or a folder that has one."""
    return storage.result_file(Path(text)).is_file()


def read_result(text: str) -> Result:
    """Read the result that an argument names."""
    return Result.read(storage.result_file(Path(text)))


def compare_files(
    first: str,
    second: str,
    *,
    cells: Sequence[str],
    control: str,
    every_metric: bool,
    fail_if: Sequence[str],
    csv: Path | None,
) -> int:
    """Compare two result files, and write the verdicts as CSV if that was asked for; return the exit status."""
    conditions = [exports.Condition.parse(text) for text in fail_if]
    comparison = unpaired.compare(
        read_result(first), read_result(second), control=control, cells=cells, every_metric=every_metric
    )
    console = terminal.make_console()
    console.print(f"[bold]{escape(second)} against {escape(first)}[/bold]")
    for note in comparison.notes:
        terminal.print_note(console, note)
    for judged in comparison.judged:
        terminal.print_verdict(console, judged.kind, f"{judged.cell}: {judged.sentence}")
    for cell, arm in comparison.missing:
        terminal.print_verdict(console, "missing", f"{cell}: {arm} has no figures in {second}")
    if csv is not None:
        write(csv, exports.comparison_csv(comparison))
    failed = len(exports.failures(comparison, conditions))
    if any(condition.kind == "missing" for condition in conditions):
        failed += len(comparison.missing)
    if failed:
        said = f"--fail-if {' '.join(fail_if)} is met by {figures.counted(failed, 'verdict')}"
        console.print(f"[bold red]{escape(said)}[/bold red]")
    return EXIT_FAILED if failed else 0


def write(path: Path, text: str) -> None:
    """Write a file that was asked for."""
    try:
        results.write_text(path, text)
    except OSError as error:
        raise Refused(f"{path} can't be written: {error.strerror}") from None


def link_to_report(run: trend.Run, page: Path) -> str:
    """Return where a page finds the report of a run, or nothing if there is none beside its result."""
    path = run.path.with_name(storage.HTML_FILE)
    return quote(os.fsencode(os.path.relpath(path.resolve(), page.resolve().parent))) if path.exists() else ""


@click.command("trend", short_help="Draw figures over runs, and find steps.")
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option(
    "--control",
    default="",
    metavar="ARM",
    help="The arm that others are relative to (default: the baseline of every run), or none.",
)
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), help=f"The page (FOLDER/{TREND_FILE}).")
def trend_command(folder: Path, control: str, output: Path | None) -> None:
    """Draw every figure over the runs in FOLDER, and mark the steps: changes that last.

    \b
    Runs are in the order of their start. Steps are larger than what unchanged
    runs show, with a 5% chance of a false one per figure. At least ten runs are
    needed.
    Example:
      ringlab trend ringlab-results
    """
    runs, unread = trend.find_runs(folder)
    if len(runs) < trend.RUNS_MIN:
        raise Refused(f"only one result is in {folder}; a trend takes at least {trend.RUNS_MIN}")
    series = list(trend.all_series(runs, control))
    if not series:
        raise Refused(f"the {len(runs)} results in {folder} have no figure in common")
    path = output or folder / TREND_FILE
    write(path, pages.render(runs, series, unread, [link_to_report(run, path) for run in runs]))
    for text in unread:
        click.echo(f"not read: {text}", err=True)
    for each in series:
        for step in pages.step_texts(runs, each):
            click.echo(f"{each.cell}: {step}")
    click.echo(f"{figures.counted(len(series), 'figure')} over {figures.counted(len(runs), 'run')}: {path}")
