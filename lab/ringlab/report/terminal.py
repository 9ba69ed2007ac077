"""The report for a terminal."""

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ringlab import figures, report
from ringlab.results import Cell, Finding, Group, Result

COLOURS = {
    "better": "green",
    "worse": "red",
    "tie": "cyan",
    "cannot tell": "yellow",
    "ok": "green",
    "warning": "yellow",
    "error": "red",
}
METRICS_SHOWN = 5


def print_result(console: Console, result: Result) -> None:
    """Print everything."""
    print_settings(console, result)
    for cell in result.cells:
        if cell.samples:
            print_cell(console, cell)
    print_left_out(console, result)
    print_summary(console, result)


def print_settings(console: Console, result: Result) -> None:
    """Print how and where was measured."""
    for name, text in report.settings(result):
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
            console.print(f"         [dim]remedy:[/dim] {escape(finding.remedy)}", highlight=False)


def print_cell(console: Console, cell: Cell) -> None:
    """Print what a cell says: a table and a sentence for each group of arms."""
    console.print(f"\n[bold]{escape(cell.name)}[/bold]  {escape(cell.title)}", highlight=False)
    if report.rate_of(cell):
        console.print(f"  {report.rate_of(cell)}", highlight=False)
    for group in cell.analysis.groups:
        title = report.group_title(cell, group)
        if title:
            console.print(f"  {title}")
        console.print(table_of(cell, group))
        console.print(f"  [bold]{escape(group.verdict.sentence)}[/bold]", highlight=False)
        console.print(f"  [dim]{escape(group.noise_text)}[/dim]", highlight=False)
    for note in cell.analysis.notes:
        console.print(f"  [yellow]![/yellow] {escape(note)}", highlight=False)
    if cell.ceiling is not None:
        console.print(
            f"  [dim]the load generator's own ceiling: {figures.significant(cell.ceiling.operations_per_s)}/s[/dim]",
            highlight=False,
        )


def table_of(cell: Cell, group: Group) -> Table:
    """Return the table of a group."""
    table = Table(box=None, pad_edge=True, header_style="dim")
    table.add_column("arm", no_wrap=True)
    metrics = cell.metrics[:METRICS_SHOWN]
    table.add_column(report.heading(cell.primary), justify="right")
    table.add_column("ratio to the baseline", justify="right")
    table.add_column("", no_wrap=True)
    others = [metric for metric in metrics if not metric.primary]
    for metric in others:
        table.add_column(report.heading(metric), justify="right")
    counted = report.has_system_calls(cell)
    if counted:
        table.add_column(f"system calls per {cell.operation}", justify="right")
    for arm in group.ranking(cell.primary):
        summary = report.summary_of(cell, arm, cell.primary.key)
        row = [escape(arm), report.show_figure(summary.median, cell.primary) if summary else ""]
        ratio, verdict = report.comparing(group, arm, cell.primary)
        colour = COLOURS.get(verdict, "dim")
        row += [ratio, f"[{colour}]{verdict}[/{colour}]"]
        for metric in others:
            found = report.summary_of(cell, arm, metric.key)
            row.append(report.show_figure(found.median, metric) if found else "")
        if counted:
            row.append(report.system_calls_of(cell, arm))
        table.add_row(*row)
    return table


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
    """Print the verdicts of all cells, and what went unlike it should."""
    console.print("\n[bold]verdicts[/bold]")
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
