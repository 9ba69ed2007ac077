"""One page of HTML that needs nothing else: no network, no script, no picture beside it."""

import re
import shlex
from functools import cache
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

from ringlab import __version__, figures, report
from ringlab.deferred import Deferred, jinja2
from ringlab.results import Cell, Group, Result

if TYPE_CHECKING:
    from ringlab.report import charts as charts
else:
    charts = Deferred("ringlab.report.charts")  # It imports matplotlib, which takes long.

DIRECTIONS = {"lower": "further left is better", "higher": "further right is better"}
TAIL = 99.9
"""The percentile that a chart of latencies goes to, or as far below it as there are enough operations for."""


def render(name: str, result: Result) -> str:
    """Return the page about a result, with the name that readers know it by."""
    template = environment().get_template("report.html.j2")
    return template.render(name=name, result=result, command=shlex.join(result.run.command), version=__version__)


@cache
def environment() -> "jinja2.Environment":
    """Return what fills templates; all text is escaped, and a misspelt name is an error."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("ringlab.report", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "significant": figures.significant,
        "plain": figures.plain,
        "sentence": report.sentence,
        "code": code,
        "anchor": anchor,
    }
    charts_of = (ratio_chart, median_chart, latency_charts, round_chart, sweep_chart)
    made.globals |= {"report": report, **{each.__name__: each for each in charts_of}}
    return made


def code(text: str) -> Markup:
    """Return a text for a page, with what stands between backticks as code."""
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def anchor(name: str) -> str:
    """Return where a page has a cell."""
    return f"cell-{name.replace('/', '-')}"


def ratio_chart(cell: Cell, group: Group) -> Markup:
    """Draw each arm's ratio to the baseline."""
    primary, rows = cell.primary, []
    for arm in group.ranking(primary):
        comparison = report.comparison_of(group, arm, primary.key)
        if arm == group.baseline:
            rows.append(charts.Row(arm, 1.0, 1.0, 1.0, "the baseline", f"{arm} is the baseline", "baseline"))
        elif comparison is not None:
            interval = (comparison.ratio, comparison.low, comparison.high)
            rows.append(
                charts.Row(arm, *interval, report.show_ratio(comparison), comparison.sentence, comparison.verdict)
            )
    title = f"{primary.title}, compared with {group.baseline}: {DIRECTIONS[primary.better]}"
    label = f"Ratios of {cell.title}"
    return charts.intervals(rows, title, label, figures.compared, group.noise_floor) if len(rows) > 1 else Markup("")


def median_chart(cell: Cell, group: Group) -> Markup:
    """Draw the medians of the primary metric, and the range of the rounds."""
    primary, rows = cell.primary, []
    for arm in group.ranking(primary):
        summary = report.summary_of(cell, arm, primary.key)
        if summary is not None:
            median, low, high = (
                figures.in_unit(value, primary.unit) for value in (summary.median, summary.low, summary.high)
            )
            figure = report.bounded(cell, arm, primary, median)
            title = f"{arm}: {figure}, rounds from {low} to {high}"
            # There is little room.
            short = figure.replace("at least", "≥").replace("at most", "≤")
            rows.append(charts.Row(arm, summary.median, summary.low, summary.high, short, title))
    # Each mark of a time has the unit that suits it.
    write = write_ns if primary.unit == "ns" else figures.plain
    return charts.intervals(rows, report.heading(primary), f"{primary.title} of {cell.title}", write)


def write_ns(value: float) -> str:
    """Return a mark of an axis of times."""
    return figures.latency(value, figures.plain)


def latency_charts(cell: Cell, group: Group) -> list[tuple[str, Markup]]:
    """Draw the latencies of most operations and of the slowest, from when they were due and from when they were sent."""
    texts = {
        "corrected": "Latency from when each request was due, so that stalls count in full",
        "service": "Latency from when each request was sent",
    }
    found = []
    for kind, text in texts.items():
        rows = []
        for arm in group.ranking(cell.primary):
            curve = next((each for each in cell.analysis.curves if (each.arm, each.kind) == (arm, kind)), None)
            points = {percentile: ns for percentile, ns in curve.points if percentile <= TAIL} if curve else {}
            if 50 in points:
                end = max(points)
                p50, p99, tail = points[50], points.get(99, points[end]), points[end]
                title = ", ".join(f"p{percentile:g} {figures.latency(ns)}" for percentile, ns in points.items())
                figure = f"p{end:g} {figures.latency(tail)}"
                figure = f"{figures.latency(p99)}, {figure}" if end > 99 else figure
                rows.append(charts.Row(arm, p99, p50, tail, figure, f"{arm}: {title}"))
        if rows:
            title = "from the median (left end) over p99 (point) to the slowest (right end)"
            found.append((text, charts.intervals(rows, title, f"{text}: {cell.title}", write_ns)))
    return found


def round_chart(cell: Cell, group: Group) -> Markup:
    """Draw the primary metric over the rounds, of each arm in percent of its median."""
    if len(cell.orders) < 2:
        return Markup("")
    lines = []
    for arm in group.ranking(cell.primary):
        series = enumerate(cell.series(arm, cell.primary.key), 1)
        points = [(number, value) for number, value in series if value is not None]
        titles = [f"round {number}: {figures.in_unit(value, cell.primary.unit)}" for number, value in points]
        lines.append(charts.in_percent(arm, points, titles))
    write = (write_whole, figures.plain)
    return charts.lines(lines, ("round", "% of the arm's median"), f"Rounds of {cell.title}", write=write)


def write_whole(value: float) -> str:
    """Return a mark of an axis of rounds."""
    return f"{value:.0f}" if value == round(value) else ""


def sweep_chart(cell: Cell) -> Markup:
    """Draw the p99 in ns of each arm over the offered rate."""
    lines = []
    what = f"{cell.operation}s"
    for each in report.sweeps_of(cell):
        points = [(point.offered_per_s, point.latency_ns_p99) for point in each.points if point.latency_ns_p99 > 0]
        titles = [f"{figures.latency(ns)} at {figures.significant(rate)} {what}/s" for rate, ns in points]
        lines.append(charts.Line(each.arm, points, titles))
    label = f"p99 over the offered rate: {cell.title}"
    write = (figures.plain, write_ns)
    return charts.lines(lines, (f"offered, {what} per second", "p99"), label, logarithmic=True, write=write)
