"""One page of HTML that needs nothing else: no network, no script, no picture beside it."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

from ringlab import __version__, figures, report
from ringlab.deferred import Deferred, jinja2
from ringlab.results import Cell, CellVerdict, Group, Metric, Result, Sample

if TYPE_CHECKING:
    from ringlab.report import charts as charts
else:
    charts = Deferred("ringlab.report.charts")  # It imports matplotlib, which takes long.

WORKLOADS = {
    "bind": "Bind: opening a listening socket",
    "http": "HTTP: hello world",
    "rtt": "Round trip: one connection",
    "loop": "Loop: what an event loop costs by itself",
    "echo": "Echo under load",
    "asgi": "ASGI: servers of web applications",
    "wsgi": "WSGI: servers of web applications",
    "loops": "Loops: Python's event loops, interface by interface",
    "files": "Files: libraries for asynchronous files in Python",
    "sweep": "Sweep: rising rates, up to the knee",
    "churn": "Churn: connect, one message, close",
    "idle": "Idle: memory of resting connections",
    "stream": "Stream: a continuous stream of bytes, there and back or one way",
}
DIRECTIONS = {"lower": "further left is better", "higher": "further right is better"}
TAIL = 99.9
"""The percentile that a chart of latencies goes to, or as far below it as there are enough operations for."""
LATENCY_KEY = "latency_ns_p99"


@dataclass(frozen=True)
class GroupView:
    """The arms of a cell that are ranked together, ready for the page."""

    group: Group
    title: str
    ratios: Markup
    medians: Markup
    noise: str
    latencies: list[tuple[str, Markup]]
    rounds: Markup


@dataclass(frozen=True)
class Row:
    """An arm's medians in all metrics of a cell."""

    arm: str
    rank: str
    figures: list[str]
    parser: str
    rounds: str


@dataclass(frozen=True)
class SweepView:
    """The knees of a cell's arms, and their curves."""

    chart: Markup
    headings: Sequence[str]
    rows: list[list[str]]
    curve_headings: Sequence[str]
    curves: list[tuple[str, list[list[str]]]]


@dataclass(frozen=True)
class CellView:
    """One cell, ready for the page."""

    anchor: str
    cell: Cell
    verdicts: list[tuple[str, CellVerdict, str]]
    rate: str
    groups: list[GroupView]
    headings: list[str]
    rows: list[Row]
    others: tuple[list[str], list[list[str]]]
    voided: list[str]
    has_parser: bool
    sweep: SweepView | None


@dataclass(frozen=True)
class Section:
    """The cells of one workload."""

    anchor: str
    title: str
    cells: list[CellView]
    left_out: list[tuple[str, str]]
    rate_charts: list[tuple[str, Markup]]


@dataclass(frozen=True)
class Page:
    """One run."""

    anchor: str
    name: str
    result: Result
    command: str
    settings: list[tuple[str, str]]
    words: list[tuple[str, str]]
    wrong: list[str]
    notes: list[str]
    sections: list[Section]


def render(results: Sequence[tuple[str, Result]]) -> str:
    """Return the page about some results, each with the name that readers know it by."""
    pages = [view(index, name, result) for index, (name, result) in enumerate(results)]
    return environment().get_template("report.html.j2").render(pages=pages, version=__version__)


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
    made.filters["significant"] = figures.significant
    made.filters["plain"] = figures.plain
    made.filters["percent"] = figures.percent
    made.filters["sentence"] = report.sentence
    made.filters["code"] = code
    return made


def code(text: str) -> Markup:
    """Return a text for a page, with what stands between backticks as code."""
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def view(index: int, name: str, result: Result) -> Page:
    """Prepare one run."""
    anchor = f"run{index}"
    sections = []
    for workload, found in groupby(sorted(result.cells, key=workload_order), key=lambda cell: cell.workload):
        cells = list(found)
        measured = [cell for cell in cells if not cell.left_out and cell.samples]
        sections.append(
            Section(
                anchor=f"{anchor}-{workload}",
                title=WORKLOADS[workload],
                cells=[view_cell(f"{anchor}-{cell.name.replace('/', '-')}", cell) for cell in measured],
                left_out=[(cell.name, report.why_left_out(cell)) for cell in cells if report.why_left_out(cell)],
                rate_charts=rate_charts(measured),
            )
        )
    return Page(
        anchor,
        name,
        result,
        shlex.join(result.run.command),
        report.settings(result),
        report.words(result),
        report.not_counted(result),
        result.run.notes,
        sections,
    )


def workload_order(cell: Cell) -> int:
    """Return the sort key that puts workloads in the order of WORKLOADS; cells keep theirs."""
    return list(WORKLOADS).index(cell.workload)


def view_cell(anchor: str, cell: Cell) -> CellView:
    """Prepare one cell."""
    parsers = {probe.arm: probe.parser for probe in cell.probes}
    counted = report.counted(cell)
    headings = [*(metric.title for metric in cell.metrics), *(heading for heading, _ in counted)]
    ranks = {rank.arm: report.rank_of(group, rank.arm) for group in cell.analysis.groups for rank in group.ranks}
    rows = []
    for arm in report.arms_of(cell):
        found = [describe(cell, arm, metric) for metric in cell.metrics]
        found += [texts.get(arm, "") for _, texts in counted]
        rows.append(
            Row(
                arm,
                ranks.get(arm, ""),
                found,
                parsers.get(arm, ""),
                f"{len(cell.measured(arm))} of {sum(arm in order for order in cell.orders)}",
            )
        )
    return CellView(
        anchor=anchor,
        cell=cell,
        verdicts=report.verdicts_of(cell),
        rate=report.rate_of(cell),
        groups=[view_group(cell, group) for group in cell.analysis.groups],
        headings=headings,
        rows=rows,
        others=report.other_figures(cell),
        voided=[
            f"{sample.arm}, round {sample.round}: {sample.status}: {'; '.join(sample.reasons)}"
            for sample in cell.samples
            if sample.status != "measured"
        ],
        has_parser=bool(parsers),
        sweep=view_sweep(cell) if cell.analysis.sweeps else None,
    )


def view_sweep(cell: Cell) -> SweepView:
    """Prepare the knees and curves of a cell."""
    known = {each.arm: each for each in cell.analysis.sweeps}
    arms = [arm for arm in report.arms_of(cell) if arm in known]
    points = {
        arm: [(point.offered_per_s, point.latency_ns_p99) for point in known[arm].points if point.latency_ns_p99 > 0]
        for arm in arms
    }
    return SweepView(
        p99_over_rate(points, f"p99 over the offered rate: {cell.title}", f"{cell.operation}s", logarithmic=True),
        report.SWEEP_HEADINGS,
        report.sweep_rows(cell),
        report.CURVE_HEADINGS,
        [(arm, report.curve_rows(known[arm].points)) for arm in arms],
    )


def describe(cell: Cell, arm: str, metric: Metric) -> str:
    """Return an arm's median in its unit."""
    summary = report.summary_of(cell, arm, metric.key)
    if summary is None:
        return ""
    return report.bounded(cell, arm, metric, figures.in_unit(summary.median, metric.unit))


def view_group(cell: Cell, group: Group) -> GroupView:
    """Prepare the charts of a group; their rows have one order."""
    return GroupView(
        group,
        report.group_title(cell, group),
        ratio_chart(cell, group),
        median_chart(cell, group),
        report.noise_of(group),
        latency_charts(cell, group),
        round_chart(cell, group),
    )


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
    times = primary.unit == "ns"
    title = primary.title if times else f"{primary.title}, {primary.unit}"
    return charts.intervals(rows, title, f"{primary.title} of {cell.title}", write_ns if times else figures.plain)


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
    """Draw every round of the primary metric."""
    primary = cell.primary
    samples: dict[tuple[str, int], Sample] = {(sample.arm, sample.round): sample for sample in cell.samples}
    rows = []
    for arm in group.ranking(primary):
        values = cell.series(arm, primary.key)
        titles = []
        for number, value in enumerate(values, 1):
            sample = samples.get((arm, number))
            status = "not tried" if sample is None else sample.status
            said = figures.in_unit(value, primary.unit) if value is not None else status
            reasons = f": {'; '.join(sample.reasons)}" if sample is not None and sample.reasons else ""
            titles.append(f"{arm}, round {number}: {said}{reasons}")
        rows.append(charts.Rounds(arm, values, titles))
    return charts.rounds(rows, f"Rounds of {cell.title}")


def p99_over_rate(
    points: dict[str, list[tuple[float, float]]], label: str, what: str = "requests", *, logarithmic: bool = False
) -> Markup:
    """Draw the p99 in ns of each arm over the offered rate per second."""
    lines = [
        charts.Line(
            arm, found, [f"{figures.latency(ns)} at {figures.significant(rate)} {what}/s" for rate, ns in found]
        )
        for arm, found in points.items()
    ]
    titles = (f"offered, {what} per second", "p99")
    return charts.lines(lines, titles, label, logarithmic=(logarithmic, True), write=(figures.plain, write_ns))


def rate_charts(cells: Sequence[Cell]) -> list[tuple[str, Markup]]:
    """Draw the p99 over the offered rate, for each number of connections and each group of arms."""
    lines: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for cell in cells:
        if "offered_rate_per_s" not in cell.parameters:
            continue
        rate = float(cell.parameters["offered_rate_per_s"])
        for group in cell.analysis.groups:
            title = f"p99 over the offered rate, {cell.parameters.get('connections')} connections"
            kind = report.group_title(cell, group)
            of_group = lines.setdefault(f"{title}: {kind}" if kind else title, {})
            for arm in group.arms:
                summary = report.summary_of(cell, arm, LATENCY_KEY)
                if summary is not None:
                    of_group.setdefault(arm, []).append((rate, summary.median))
    return [
        (title, p99_over_rate({arm: sorted(points) for arm, points in found.items()}, title))
        # One rate is no curve: the table of that cell says the same.
        for title, found in lines.items()
        if any(len(points) > 1 for points in found.values())
    ]
