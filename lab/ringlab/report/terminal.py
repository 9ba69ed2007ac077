"""The report for a terminal."""

import contextlib
import os
import sys
from collections.abc import Sequence
from typing import TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ringlab import figures, report
from ringlab.results import Cell, Finding, Result

COLOURS = {
    "better": "green",
    "worse": "red",
    "tie": "cyan",
    "cannot tell": "yellow",
    "ok": "green",
    "warning": "yellow",
    "error": "red",
    "reached": "green",
    "missed": "red",
    "not measured": "dim",
    "missing": "yellow",
}
COLUMNS_MIN = 4
"""Arm, figure, ratio and verdict."""
WIDTH = 160
COLUMN_PADDING = 2


def let_go_of(stream: TextIO) -> None:
    """Let what is still written to it lead nowhere; if it failed when Python ends, the status would be Python's."""
    with contextlib.suppress(OSError, ValueError):  # ValueError: it is no file, or closed.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


class Screen(Console):
    """The console, which may lose its reader without harm to what runs: that takes long, and its result is kept."""

    def on_broken_pipe(self) -> None:
        """Go on."""
        self.quiet = True
        let_go_of(sys.stdout)


def make_console() -> Console:
    """Return the console; what isn't read on a terminal is as wide as its tables need it."""
    console = Screen(soft_wrap=True, highlight=False)
    return console if console.is_terminal else Screen(soft_wrap=True, highlight=False, width=WIDTH)


def warn(text: str) -> None:
    """Print a warning where it mixes with no output that is read by programs."""
    print(f"warning: {text}", file=sys.stderr)


def print_result(console: Console, result: Result) -> None:
    """Print everything."""
    print_settings(console, result)
    for cell in result.cells:
        if cell.samples:
            print_cell(console, cell)
    print_left_out(console, result)
    print_summary(console, result)
    print_goals(console, result)


def print_verdict(console: Console, verdict: str, text: str) -> None:
    """Print a verdict in its colour, and what it is about."""
    console.print(f"  [{COLOURS[verdict]}]{verdict:11}[/] {escape(text)}")


def print_note(console: Console, text: str) -> None:
    """Print what a reader should know before trusting the figures."""
    console.print(f"  [yellow]![/yellow] {escape(text)}")


def print_settings(console: Console, result: Result) -> None:
    """Print how and where the run was measured, and what the words mean that are used from here on."""
    for name, text in (*report.settings(result), *report.words(result)):
        console.print(f"[dim]{name:10}[/dim] {escape(text)}")


def print_findings(console: Console, findings: list[Finding], *, problems_only: bool) -> None:
    """Print what preflight found."""
    for finding in findings:
        if problems_only and finding.status == "ok":
            continue
        console.print(f"[{COLOURS[finding.status]}]{finding.status:8}[/] {finding.name}: {escape(finding.text)}")
        if finding.remedy and finding.status != "ok":
            console.print(f"         [dim]what to do:[/dim] {escape(finding.remedy)}")


def print_cell(console: Console, cell: Cell) -> None:
    """Print what a cell says: a table and a sentence for each group of arms."""
    console.print(f"\n[bold]{escape(cell.name)}[/bold]  {escape(cell.title)}")
    if report.rate_of(cell):
        console.print(f"  {report.rate_of(cell)}")
    for group in cell.analysis.groups:
        title = report.group_title(cell, group)
        if title:
            console.print(f"  {title}")
        print_table(console, report.table_of(cell, group))
        console.print(f"  [bold]{escape(group.verdict.sentence)}[/bold]")
        colours = {"failed": COLOURS["error"], "too noisy": COLOURS["warning"]}
        colour = colours.get(group.control.status, "dim") if group.control is not None else "dim"
        console.print(f"  [{colour}]{escape(report.noise_of(group))}[/{colour}]")
    if cell.analysis.sweeps:
        print_table(console, report.knees(cell))
        console.print("  [dim]report.md and report.html have the whole curves[/dim]")
    for note in cell.analysis.notes:
        print_note(console, note)
    if cell.ceiling is not None:
        rate = figures.significant(cell.ceiling.operations_per_s)
        console.print(f"  [dim]the load generator's own ceiling: {rate}/s[/dim]")


def print_table(console: Console, table: report.Table) -> None:
    """Print a table with as many of its columns as the console has room for, but the first ones always.

    Columns are so wide that no figure is cut, and no heading either, which may be wrapped at its spaces.
    """
    columns = list(zip(*table, strict=True))
    widths = [max(map(cell_len, (*heading.split(), *texts)), default=0) for heading, *texts in columns]
    count = len(columns)
    while count > COLUMNS_MIN and sum(widths[:count]) + COLUMN_PADDING * count > console.width:
        count -= 1
    # What is left over goes to headings, from the left.
    spare = max(0, console.width - sum(widths[:count]) - COLUMN_PADDING * count)
    shown = Table(box=None, pad_edge=True, header_style="dim")
    for (heading, *_), width in zip(columns[:count], widths, strict=False):
        more = min(spare, max(0, cell_len(heading) - width))
        spare -= more
        shown.add_column(heading, justify="left" if heading in ("arm", "verdict") else "right", width=width + more)
        shown.width = (shown.width or 0) + width + more + COLUMN_PADDING
    for row in table[1:]:
        shown.add_row(*(Text(text, COLOURS.get(text, "")) for text in row[:count]))
    console.print(shown)
    if count < len(columns):
        console.print("  [dim]a wider terminal shows more figures[/dim]")


def print_left_out(console: Console, result: Result) -> None:
    """Print who took no part, and why."""
    texts = report.left_out(result)
    if texts:
        console.print("\n[bold]left out[/bold]")
    for text in texts:
        console.print(f"  {escape(text)}")


def print_summary(console: Console, result: Result) -> None:
    """Print the verdicts of all cells, and what went unlike it should: first of all the arms of which nothing counts."""
    console.print()
    for text in report.not_counted(result):
        console.print(f"[{COLOURS['error']}]not counted[/]  {escape(text)}")
    console.print("[bold]verdicts[/bold]")
    for cell in result.cells:
        for title, _, sentence in report.verdicts_of(cell):
            name = f"{cell.name} ({title})" if title else cell.name
            console.print(f"  {escape(name)}: {escape(sentence)}")
    for note in (*result.run.notes, *report.unlike_declared(result)):
        print_note(console, note)


def print_goals(console: Console, result: Result) -> None:
    """Print the verdict of each goal, arm by arm."""
    for arm in dict.fromkeys(each.arm for each in result.goals):
        console.print(f"\n[bold]goals of {escape(arm)}[/bold]")
        own = [each for each in result.goals if each.arm == arm]
        measured = [each for each in own if each.verdict != "not measured"]
        for each in measured:
            print_verdict(console, each.verdict, f"{each.goal}: {each.sentence}")
        if unmeasured := len(own) - len(measured):
            console.print(f"  [dim]{figures.counted(unmeasured, 'other')} not measured: their cells did not run[/dim]")


def print_comparisons(console: Console, cells: Sequence[Cell], first: str, second: str) -> None:
    """Print how an arm compares with a baseline, in these cells and every metric."""
    console.print(f"\n[bold]{escape(second)} against {escape(first)}[/bold]")
    for cell in cells:
        for group in cell.analysis.groups:
            for comparison in group.comparisons:
                if (comparison.arm, comparison.baseline) == (second, first):
                    print_verdict(console, comparison.verdict, f"{cell.name}: {comparison.sentence}")
