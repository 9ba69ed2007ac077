"""The report for a terminal."""

import contextlib
import itertools
import os
import sys
from collections.abc import Sequence
from typing import TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape, render
from rich.table import Table

from ringlab import figures, report
from ringlab.results import Cell, Finding, Group, Metric, Result

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
}
METRICS_SHOWN = 5
COLUMNS_MIN = 4
"""Arm, figure, ratio and verdict."""
WIDTH = 160
COLUMN_PADDING = 2


def let_go_of_output() -> None:
    """Let what is still printed lead nowhere, where the standard output can't be written to any more."""
    let_go_of(sys.stdout)


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
        let_go_of_output()


def make_console() -> Console:
    """Return the console; what isn't read on a terminal is as wide as its tables need it."""
    console = Screen(soft_wrap=True)
    return console if console.is_terminal else Screen(soft_wrap=True, width=WIDTH)


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


def print_settings(console: Console, result: Result) -> None:
    """Print how and where the run was measured, and what the words mean that are used from here on."""
    for name, text in (*report.settings(result), *report.words(result)):
        console.print(f"[dim]{name:10}[/dim] {escape(text)}", highlight=False)


def print_findings(console: Console, findings: list[Finding], *, problems_only: bool) -> None:
    """Print what preflight found."""
    for finding in findings:
        if problems_only and finding.status == "ok":
            continue
        colour = COLOURS[finding.status]
        console.print(
            f"[{colour}]{finding.status:8}[/{colour}] {finding.name}: {escape(finding.text)}", highlight=False
        )
        if finding.remedy and finding.status != "ok":
            console.print(f"         [dim]what to do:[/dim] {escape(finding.remedy)}", highlight=False)


def print_cell(console: Console, cell: Cell) -> None:
    """Print what a cell says: a table and a sentence for each group of arms."""
    console.print(f"\n[bold]{escape(cell.name)}[/bold]  {escape(cell.title)}", highlight=False)
    if report.rate_of(cell):
        console.print(f"  {report.rate_of(cell)}", highlight=False)
    for group in cell.analysis.groups:
        title = report.group_title(cell, group)
        if title:
            console.print(f"  {title}")
        print_table(console, cell, group)
        console.print(f"  [bold]{escape(group.verdict.sentence)}[/bold]", highlight=False)
        colours = {"failed": COLOURS["error"], "too noisy": COLOURS["warning"]}
        colour = colours.get(group.control.status, "dim") if group.control is not None else "dim"
        console.print(f"  [{colour}]{escape(report.noise_of(group))}[/{colour}]", highlight=False)
    if cell.analysis.sweeps:
        print_sweeps(console, cell)
    for note in cell.analysis.notes:
        console.print(f"  [yellow]![/yellow] {escape(note)}", highlight=False)
    if cell.ceiling is not None:
        console.print(
            f"  [dim]the load generator's own ceiling: {figures.significant(cell.ceiling.operations_per_s)}/s[/dim]",
            highlight=False,
        )


def print_sweeps(console: Console, cell: Cell) -> None:
    """Print the knees, and the p99 over the rate."""
    table = Table(box=None, pad_edge=True, header_style="dim")
    for heading in (*report.SWEEP_HEADINGS, "p99 at shares of the knee: 50%, 80%, 100%, 120%"):
        table.add_column(heading, justify="left" if heading == "arm" else "right")
    known = {each.arm: each for each in cell.analysis.sweeps}
    for row in report.sweep_rows(cell):
        table.add_row(*map(escape, row), escape(report.p99_around(known[row[0]])))
    console.print(table)
    console.print("  [dim]report.md and report.html have the whole curves[/dim]", highlight=False)


def columns_of(cell: Cell, group: Group) -> list[tuple[str, list[str]]]:
    """Return the columns of a group's table, as headings and markup: those of the primary metric, then the others."""
    arms = group.ranking(cell.primary)

    def figures_of(metric: Metric) -> list[str]:
        found = [report.summary_of(cell, arm, metric.key) for arm in arms]
        return [report.show_median(cell, each, metric) for each in found]

    comparisons = [report.comparing(group, arm, cell.primary) for arm in arms]
    columns = [
        ("arm", [escape(arm) for arm in arms]),
        (report.heading(cell.primary), figures_of(cell.primary)),
        ("compared with the baseline", [ratio for ratio, _ in comparisons]),
        ("", [f"[{COLOURS.get(verdict, 'dim')}]{verdict}[/]" for _, verdict in comparisons]),
        ("rank", [report.rank_of(group, arm) for arm in arms]),
    ]
    columns += [
        (report.heading(metric), figures_of(metric)) for metric in cell.metrics[:METRICS_SHOWN] if not metric.primary
    ]
    columns += [(heading, [texts.get(arm, "") for arm in arms]) for heading, texts in report.counted(cell)]
    return columns


def widths_of(columns: Sequence[tuple[str, list[str]]], *, wrapped: bool) -> list[int]:
    """Return how wide columns must be so that no figure is cut, and no heading either, which may be wrapped at its spaces."""
    return [
        max(
            map(cell_len, [*(heading.split() if wrapped else [heading]), *(render(cell).plain for cell in cells)]),
            default=0,
        )
        for heading, cells in columns
    ]


def print_table(console: Console, cell: Cell, group: Group) -> None:
    """Print the table of a group, with as many of its columns as the console has room for, but those of the primary metric always."""
    columns = columns_of(cell, group)
    for count, wrapped in itertools.product(range(len(columns), COLUMNS_MIN - 1, -1), (False, True)):
        widths = widths_of(columns[:count], wrapped=wrapped)
        needed = sum(widths) + COLUMN_PADDING * count
        if needed <= console.width:
            break
    # What is left over goes to headings, from the left.
    spare = max(0, console.width - needed)
    for index, whole in enumerate(widths_of(columns[:count], wrapped=False)):
        more = min(spare, whole - widths[index])
        widths[index] += more
        spare -= more
    table = Table(box=None, pad_edge=True, header_style="dim", width=sum(widths) + COLUMN_PADDING * count)
    for (heading, _), width in zip(columns, widths, strict=False):
        table.add_column(heading, justify="left" if heading in ("arm", "") else "right", width=width)
    for row in zip(*(cells for _, cells in columns[:count]), strict=True):
        table.add_row(*row)
    console.print(table)
    if count < len(columns):
        console.print("  [dim]a wider terminal shows more figures[/dim]", highlight=False)


def print_left_out(console: Console, result: Result) -> None:
    """Print who took no part, and why."""
    skipped = [arm for arm in result.arms if arm.skipped]
    if skipped:
        console.print("\n[bold]skipped[/bold]")
    for arm in skipped:
        install = f"; install it with: {arm.install}" if arm.install else ""
        console.print(f"  {escape(arm.name)}: {escape(arm.skipped + install)}", highlight=False)
    for cell in result.cells:
        if why := report.why_left_out(cell):
            console.print(f"  {escape(cell.name)}: {escape(why)}", highlight=False)


def print_summary(console: Console, result: Result) -> None:
    """Print the verdicts of all cells, and what went unlike it should: first of all the arms of which nothing counts."""
    console.print()
    for text in report.not_counted(result):
        console.print(f"[{COLOURS['error']}]not counted[/]  {escape(text)}", highlight=False)
    console.print("[bold]verdicts[/bold]")
    for cell in result.cells:
        for title, _, sentence in report.verdicts_of(cell):
            name = f"{cell.name} ({title})" if title else cell.name
            console.print(f"  {escape(name)}: {escape(sentence)}", highlight=False)
    for note in result.run.notes:
        console.print(f"  [yellow]![/yellow] {escape(note)}", highlight=False)
    for arm in result.arms:
        for check in arm.checks:
            if check.status != "ok":
                text = f"{arm.name}: {check.name} {check.declared}: {'not looked up, ' if check.status == 'unknown' else ''}{check.text}"
                console.print(f"  [yellow]![/yellow] {escape(text)}", highlight=False)


def print_goals(console: Console, result: Result) -> None:
    """Print the verdict of each goal, arm by arm."""
    for arm in dict.fromkeys(each.arm for each in result.goals):
        console.print(f"\n[bold]goals of {escape(arm)}[/bold]")
        own = [each for each in result.goals if each.arm == arm]
        for each in own:
            if each.verdict != "not measured":
                colour = COLOURS[each.verdict]
                text = f"{each.goal}: {each.sentence}"
                console.print(f"  [{colour}]{each.verdict:11}[/{colour}] {escape(text)}", highlight=False)
        unmeasured = sum(each.verdict == "not measured" for each in own)
        if unmeasured:
            console.print(f"  [dim]{figures.counted(unmeasured, 'other')} not measured: their cells did not run[/dim]")


def print_comparisons(console: Console, cells: Sequence[Cell], first: str, second: str) -> None:
    """Print how an arm compares with a baseline, in these cells and every metric."""
    console.print(f"\n[bold]{escape(second)} against {escape(first)}[/bold]")
    for cell in cells:
        for group in cell.analysis.groups:
            for comparison in group.comparisons:
                if (comparison.arm, comparison.baseline) == (second, first):
                    colour = COLOURS[comparison.verdict]
                    text = f"{cell.name}: {comparison.sentence}"
                    console.print(f"  [{colour}]{comparison.verdict:11}[/{colour}] {escape(text)}", highlight=False)
