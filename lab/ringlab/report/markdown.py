"""The report as Markdown."""

import shlex

from ringlab import figures, report
from ringlab.results import Cell, Group, Result

COMMAND = "{the command}"
"""Stands for what repeats the run, until the rest of the text is complete."""


def render(result: Result) -> str:
    """Return the report as the text of a Markdown file."""
    lines = ["# A run of ringlab", ""]
    if result.run.interrupted:
        lines += ["The run was interrupted: this report covers what was measured until then.", ""]
    if wrong := report.not_counted(result):
        lines += [*(f"- **Not counted**: {text}" for text in wrong), ""]
    meanings = "; ".join(f"*{word}*: {meaning}" for word, meaning in report.words(result))
    lines += ["## Verdicts", "", f"{meanings}.", "", *verdicts(result), *goals(result)]
    lines += ["## Setting", "", "| | |", "| --- | --- |"]
    lines += [f"| {name} | {cell_text(text)} |" for name, text in report.settings(result)]
    lines += ["", "Repeat it with:", "", COMMAND, ""]
    problems = [finding for finding in result.preflight if finding.status != "ok"]
    if problems:
        lines += ["What preflight found:", ""]
        lines += [f"- {finding.status}: {finding.name}: {finding.text}" for finding in problems]
        lines.append("")
    for cell in result.cells:
        if cell.samples:
            lines += render_cell(cell)
    lines += left_out(result)
    # Nothing that comes from elsewhere may become an element of HTML, which readers wouldn't see; but code shows what it is.
    text = "\n".join(lines).rstrip().replace("<", "&lt;")
    return text.replace(COMMAND, f"```\n{shlex.join(result.run.command)}\n```") + "\n"


def cell_text(text: str) -> str:
    """Escape text so that it doesn't end a table's cell."""
    return text.replace("|", "\\|").replace("\n", " ")


def table(headings: list[str], rows: list[list[str]], others: str = "---:") -> list[str]:
    """Return the lines of a table; all columns but the first have their texts at the right, or else as `others` says."""
    lines = [f"| {' | '.join(map(cell_text, headings))} |", f"| --- |{f' {others} |' * (len(headings) - 1)}"]
    return lines + [f"| {' | '.join(map(cell_text, row))} |" for row in rows] + [""]


def verdicts(result: Result) -> list[str]:
    """Return a sentence for each group of arms."""
    lines = []
    for cell in result.cells:
        for title, _, sentence in report.verdicts_of(cell):
            lines.append(f"- **{cell.name}**{f' ({title})' if title else ''}: {sentence}")
    if not lines:
        lines.append("Nothing was measured.")
    lines.append("")
    if result.run.notes:
        lines += [f"- {note}" for note in result.run.notes]
        lines.append("")
    return lines


def goals(result: Result) -> list[str]:
    """Return a table of the goals that were judged."""
    rows = [[each.goal, each.arm, each.verdict, each.sentence] for each in result.goals]
    if not rows:
        return []
    return ["## Goals", "", *table(["goal", "arm", "verdict", "measured"], rows, "---")]


def render_cell(cell: Cell) -> list[str]:
    """Return the lines about a cell."""
    lines = [f"## {cell.name}", "", report.sentence(cell.title), ""]
    if report.rate_of(cell):
        lines += [f"{report.rate_of(cell)}.", ""]
    for group in cell.analysis.groups:
        title = report.group_title(cell, group)
        if title:
            lines += [f"### {title[:1].upper()}{title[1:]}", ""]
        lines += [f"{group.verdict.sentence}.", "", *table_of(cell, group)]
        lines += [report.sentence(report.noise_of(group)), ""]
    if cell.ceiling is not None:
        lines += [f"The load generator's own ceiling is {figures.significant(cell.ceiling.operations_per_s)}/s.", ""]
    if cell.analysis.sweeps:
        lines += table(list(report.SWEEP_HEADINGS), report.sweep_rows(cell))
    for each in cell.analysis.sweeps:
        lines += [f"{each.arm}, over the offered rate:", ""]
        lines += table(list(report.CURVE_HEADINGS), report.curve_rows(each.points))
    headings, rows = report.other_figures(cell)
    if rows:
        lines += ["Medians of what else was measured:", "", *table(headings, rows)]
    if cell.analysis.notes:
        lines += [f"- {note}" for note in cell.analysis.notes]
        lines.append("")
    return lines


def table_of(cell: Cell, group: Group) -> list[str]:
    """Return the table of a group."""
    others = [metric for metric in cell.metrics if not metric.primary]
    counted = report.counted(cell)
    headings = ["arm", report.heading(cell.primary), f"compared with {group.baseline}", "verdict", "rank"]
    headings += [report.heading(metric) for metric in others]
    headings += [heading for heading, _ in counted]
    rows = []
    for arm in group.ranking(cell.primary):
        summary = report.summary_of(cell, arm, cell.primary.key)
        row = [arm, report.show_median(cell, summary, cell.primary)]
        row += [*report.comparing(group, arm, cell.primary), report.rank_of(group, arm)]
        for metric in others:
            found = report.summary_of(cell, arm, metric.key)
            row.append(report.show_figure(found.median, metric) if found else "")
        row += [texts.get(arm, "") for _, texts in counted]
        rows.append(row)
    return table(headings, rows)


def left_out(result: Result) -> list[str]:
    """Return who took no part, and why; and what of the declared couldn't be confirmed."""
    lines = []
    for arm in result.arms:
        if arm.skipped:
            install = f" Install it with `{arm.install}`." if arm.install else ""
            lines.append(f"- {arm.name}: {arm.skipped}.{install}")
    lines += [f"- {cell.name}: {why}." for cell in result.cells if (why := report.why_left_out(cell))]
    if lines:
        lines = ["## Left out", "", *lines, ""]
    checks = [(arm, check) for arm in result.arms for check in arm.checks if check.status != "ok"]
    if checks:
        lines += ["## Declared settings that are wrong or could not be checked", ""]
        lines += [f"- {arm.name}: {check.name} {check.declared}: {check.status}, {check.text}" for arm, check in checks]
        lines.append("")
    return lines
