"""The commands about results that exist: `ringlab trend` and `ringlab publish`, and the comparison of two result files."""

import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click
from rich.markup import escape

from ringlab import Refused, exports, figures, pages, results, storage, trend, unpaired
from ringlab.report import html, markdown, terminal
from ringlab.results import Result

TREND_FILE = "trend.html"
SITE_MARK = ".ringlab-site"
"""A file in every published folder. Only a folder with it is replaced."""
EXIT_FAILED = 1


def is_result(text: str) -> bool:
    """Return whether an argument names a result rather than an arm: a file, or a folder that has one."""
    path = Path(text)
    return path.is_file() or (path / storage.RESULT_FILE).is_file()


def read_result(text: str) -> Result:
    """Read the result that an argument names."""
    path = Path(text)
    return Result.read(path / storage.RESULT_FILE if path.is_dir() else path)


def compare_files(
    first: str,
    second: str,
    *,
    cells: Sequence[str],
    control: str,
    every_metric: bool,
    fail_if: Sequence[str],
    junit: Path | None,
    csv: Path | None,
    summary: Path | None,
    annotate: bool,
) -> int:
    """Compare two result files, and report in every form that was asked for; return the exit status."""
    conditions = [exports.Condition.parse(text) for text in fail_if]
    comparison = unpaired.compare(
        read_result(first), read_result(second), control=control, cells=cells, every_metric=every_metric
    )
    console = terminal.make_console()
    console.print(f"[bold]{escape(second)} against {escape(first)}[/bold]")
    for note in comparison.notes:
        console.print(f"  [yellow]![/yellow] {escape(note)}", highlight=False)
    for judged in comparison.judged:
        colour = terminal.COLOURS[judged.kind]
        console.print(
            f"  [{colour}]{judged.kind:11}[/{colour}] {escape(judged.cell)}: {escape(judged.sentence)}", highlight=False
        )
    for cell, arm in comparison.missing:
        console.print(
            f"  [yellow]missing    [/yellow] {escape(cell)}: {escape(arm)} has no figures in {escape(second)}",
            highlight=False,
        )
    if annotate:
        for line in exports.annotations(comparison, conditions):
            click.echo(line)
    for path, text in (
        (junit, exports.junit(f"{second} against {first}", comparison, conditions)),
        (csv, exports.comparison_csv(comparison)),
        (summary, exports.comparison_summary(first, second, comparison)),
    ):
        if path is not None:
            write(path, text)
    failed = len(exports.failures(comparison, conditions)) + len(exports.missing(comparison, conditions))
    if failed:
        console.print(
            f"[bold red]{figures.counted(failed, 'verdict')} meet --fail-if {escape(' '.join(fail_if))}[/bold red]",
            highlight=False,
        )
    return EXIT_FAILED if failed else 0


def write(path: Path, text: str) -> None:
    """Write a file that was asked for; `-` is the standard output."""
    if str(path) == "-":
        click.echo(text, nl=False)
        return
    try:
        results.write_text(path, text)
    except OSError as error:
        raise Refused(f"{path} can't be written: {error.strerror}") from None


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
    Runs are in the order of their start. Steps are found by a permutation test
    at 1%, in at least ten runs.
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
    write(path, pages.render(runs, series, unread))
    for text in unread:
        click.echo(f"not read: {text}", err=True)
    for each in series:
        for step in pages.step_texts(runs, each):
            click.echo(f"{each.cell}: {step}")
    click.echo(f"{figures.counted(len(series), 'figure')} over {figures.counted(len(runs), 'run')}: {path}")


@click.command("publish", short_help="Make a static site of runs.")
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("ringlab-site"),
    show_default=True,
    help="The folder of the site.",
)
@click.option("--control", default="", metavar="ARM", help="The same as for trend.")
def publish_command(folder: Path, output: Path, control: str) -> None:
    """Make a static site of the runs in FOLDER: an index, a page for each run, and figures over all runs.

    \b
    A site that this command made is replaced. Any other folder must be empty.
    Example:
      ringlab publish ringlab-results --output public
    """
    runs, unread = trend.find_runs(folder)
    check_output(output, folder)
    place = output.resolve()  # A link stays one.
    place.parent.mkdir(parents=True, exist_ok=True)
    # Made beside it, so that a site is whole or not there.
    with tempfile.TemporaryDirectory(prefix=f".{place.name}-", dir=place.parent) as beside:
        made, old = Path(beside) / "made", Path(beside) / "old"
        made.mkdir()
        build_site(made, runs, unread, control)
        replace(place, made, old)
    click.echo(f"{figures.counted(len(runs), 'run')}: {output / 'index.html'}")


def check_output(output: Path, folder: Path) -> None:
    """Raise Refused where a site of the runs in a folder must not, or can't, be put."""
    place = output.resolve()
    if output.exists() and any(output.iterdir()) and not (output / SITE_MARK).exists():
        problem = f"{output} isn't empty, and no site of ringlab"
    elif folder.resolve().is_relative_to(place):
        problem = f"{folder} lies in {output}, which would be replaced"
    elif Path.cwd().is_relative_to(place):
        problem = f"the current folder is in {output}, which would be replaced"
    elif place.is_mount():
        problem = f"{output} is where a file system is mounted, which can't be replaced"
    else:
        return
    raise Refused(f"{problem}; choose another folder with --output")


def replace(place: Path, made: Path, old: Path) -> None:
    """Put a folder into its place, and what was there to `old`; there is always one of them in the end."""
    try:
        if place.exists():
            place.rename(old)
        made.rename(place)
    except BaseException:
        # An interrupt may come right after either of them.
        if old.exists() and not place.exists():
            old.rename(place)
        raise


def build_site(folder: Path, runs: Sequence[trend.Run], unread: Sequence[str], control: str) -> None:
    """Write all pages of a site into a folder."""
    (folder / SITE_MARK).touch()
    taken: set[str] = set()
    places = []
    for run in runs:
        place = "runs/" + unique(re.sub(r"[^A-Za-z0-9._-]+", "-", run.name).strip("-.") or "run", taken)
        places.append(place)
        target = folder / place
        target.mkdir(parents=True)
        run.result.write(target / storage.RESULT_FILE)
        results.write_text(target / "index.html", html.render([(run.name, run.result)]))
        results.write_text(target / "report.md", markdown.render(run.result))
        results.write_text(target / "figures.csv", exports.result_csv(run.result))
    entries = [pages.entry(run, place) for run, place in zip(runs, places, strict=True)]
    results.write_text(folder / "index.html", pages.render_index(entries, unread))
    series = list(trend.all_series(runs, control))
    links = [f"{place}/index.html" for place in places]
    results.write_text(folder / TREND_FILE, pages.render(runs, series, unread, links))


def unique(name: str, taken: set[str]) -> str:
    """Return a name that no other has, also where names differ only in case."""
    found, number = name, 1
    while found.lower() in taken:
        number += 1
        found = f"{name}-{number}"
    taken.add(found.lower())
    return found
