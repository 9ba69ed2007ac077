"""The report as Markdown."""

import shlex

from ringlab import figures, report
from ringlab.results import Cell, Result

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
    lines += ["## Setting", "", *table([("", ""), *report.settings(result)], "---")]
    lines += ["Repeat it with:", "", COMMAND, ""]
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


def table(rows: report.Table, others: str = "---:") -> list[str]:
    """Return the lines of a table; all columns but the first have their texts at the right, or else as `others` says."""
    rule = ["---", *[others] * (len(rows[0]) - 1)]
    return [*(f"| {' | '.join(map(cell_text, row))} |" for row in (rows[0], rule, *rows[1:])), ""]


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
    if not result.goals:
        return []
    rows = [(each.goal, each.arm, each.verdict, each.sentence) for each in result.goals]
    return ["## Goals", "", *table([("goal", "arm", "verdict", "measured"), *rows], "---")]


def render_cell(cell: Cell) -> list[str]:
    """Return the lines about a cell."""
    lines = [f"## {cell.name}", "", report.sentence(cell.title), ""]
    if report.rate_of(cell):
        lines += [f"{report.rate_of(cell)}.", ""]
    for group in cell.analysis.groups:
        title = report.group_title(cell, group)
        if title:
            lines += [f"### {title[:1].upper()}{title[1:]}", ""]
        lines += [f"{group.verdict.sentence}.", "", *table(report.table_of(cell, group))]
        lines += [report.sentence(report.noise_of(group)), ""]
    if cell.ceiling is not None:
        lines += [f"The load generator's own ceiling is {figures.significant(cell.ceiling.operations_per_s)}/s.", ""]
    if cell.analysis.sweeps:
        lines += table(report.knees(cell))
    for each in report.sweeps_of(cell):
        lines += [f"{each.arm}, over the offered rate:", "", *table(report.curve(each.points))]
    if others := report.other_figures(cell):
        lines += ["Medians of what else was measured:", "", *table(others)]
    if cell.analysis.notes:
        lines += [f"- {note}" for note in cell.analysis.notes]
        lines.append("")
    return lines


def left_out(result: Result) -> list[str]:
    """Return who took no part, and why; and what of the declared couldn't be confirmed."""
    lines = []
    for title, texts in (
        ("Left out", report.left_out(result)),
        ("Declared settings that are wrong or could not be checked", report.unlike_declared(result)),
    ):
        if texts:
            lines += [f"## {title}", "", *(f"- {text}" for text in texts), ""]
    return lines
