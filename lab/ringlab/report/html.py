"""One page of HTML that needs nothing else: no network, no script, no picture beside it."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ringlab import __version__
from ringlab.report import charts, scales
from ringlab.results import Analysis, Cell, Comparison, Group, Metric, Result, Sample, Summary

WORKLOADS = {
    "bind": "Bind: opening a listening socket",
    "http": "HTTP: hello world",
    "rtt": "Round trip: one connection",
    "loop": "Loop: what an event loop costs by itself",
    "echo": "Echo under load",
}
DIRECTIONS = {"lower": "further left is better", "higher": "further right is better"}
LATENCY_KEY = "latency_ns_p99"
BASELINE_VERDICT = "baseline"


@dataclass(frozen=True)
class GroupView:
    """The arms of a cell that are ranked together, ready for the page."""

    group: Group
    forest: Markup
    bars: Markup
    strip: Markup


@dataclass(frozen=True)
class Row:
    """An arm's medians in all metrics of a cell."""

    arm: str
    figures: list[str]
    calls: str
    rounds: str
    parser: str


@dataclass(frozen=True)
class CellView:
    """One cell, ready for the page."""

    anchor: str
    cell: Cell
    groups: list[GroupView]
    curves: list[tuple[str, Markup]]
    rows: list[Row]
    voided: list[str]
    has_calls: bool
    has_parser: bool


@dataclass(frozen=True)
class Section:
    """The cells of one workload."""

    anchor: str
    title: str
    cells: list[CellView]
    left_out: list[Cell]
    rate_charts: list[tuple[str, Markup]]


@dataclass(frozen=True)
class Page:
    """One run."""

    anchor: str
    name: str
    result: Result
    command: str
    sections: list[Section]


def render(results: Sequence[tuple[str, Result]]) -> str:
    """Return the page about some results, each with the name that readers know it by."""
    pages = [view(index, name, result) for index, (name, result) in enumerate(results)]
    return environment().get_template("report.html.j2").render(pages=pages, version=__version__)


@cache
def environment() -> Environment:
    """Return what fills templates; all texts are escaped, and a misspelt name is an error."""
    made = Environment(
        loader=PackageLoader("ringlab.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["significant"] = scales.significant
    made.filters["percent"] = scales.percent
    return made


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
                left_out=[cell for cell in cells if cell.left_out],
                rate_charts=rate_charts(measured),
            )
        )
    return Page(anchor, name, result, shlex.join(result.run.command), sections)


def workload_order(cell: Cell) -> int:
    """Workloads come in the order of WORKLOADS; cells keep theirs."""
    return list(WORKLOADS).index(cell.workload)


def view_cell(anchor: str, cell: Cell) -> CellView:
    """Prepare one cell."""
    analysis = cell.analysis
    calls = {counted.arm: counted for counted in cell.system_calls}
    parsers = {probe.arm: probe.parser for probe in cell.probes}
    rows = []
    for arm in cell.arms:
        found = {summary.metric: summary for summary in analysis.summaries if summary.arm == arm}
        counted = calls.get(arm)
        rows.append(
            Row(
                arm=arm,
                figures=[describe(found.get(metric.key), metric) for metric in cell.metrics],
                calls=""
                if counted is None
                else scales.significant(counted.per_operation)
                if counted.per_operation is not None
                else counted.text,
                rounds=f"{len(cell.measured(arm))} of {len(cell.orders)}",
                parser=parsers.get(arm, ""),
            )
        )
    return CellView(
        anchor=anchor,
        cell=cell,
        groups=[view_group(cell, group) for group in analysis.groups],
        curves=curve_charts(analysis, cell.title),
        rows=rows,
        voided=[
            f"{sample.arm}, round {sample.round}: {sample.status}: {'; '.join(sample.reasons)}"
            for sample in cell.samples
            if sample.status != "measured"
        ],
        has_calls=bool(calls),
        has_parser=bool(parsers),
    )


def describe(summary: Summary | None, metric: Metric) -> str:
    """Return a median in its unit."""
    return "" if summary is None else scales.with_unit(metric.unit)(summary.median)


def view_group(cell: Cell, group: Group) -> GroupView:
    """Prepare the charts of a group."""
    primary = cell.primary
    return GroupView(
        group, forest_chart(cell, group, primary), bar_chart(cell, group, primary), strip_chart(cell, group)
    )


def forest_chart(cell: Cell, group: Group, primary: Metric) -> Markup:
    """Draw each arm's ratio to the baseline, the best first."""
    found = [comparison for comparison in group.comparisons if comparison.metric == primary.key]
    intervals = [
        charts.Interval(
            name=comparison.arm,
            ratio=comparison.ratio,
            low=comparison.low,
            high=comparison.high,
            verdict=comparison.verdict,
            text=comparison.sentence or sentence(comparison),
        )
        for comparison in found
    ]
    if not intervals:
        return Markup("")
    intervals.append(
        charts.Interval(group.baseline, 1.0, 1.0, 1.0, BASELINE_VERDICT, f"{group.baseline} is the baseline")
    )
    intervals.sort(key=lambda interval: interval.ratio, reverse=primary.better == "higher")
    axis_title = f"{primary.title}, ratio to {group.baseline}: {DIRECTIONS[primary.better]}"
    return charts.forest(intervals, group.noise_floor, axis_title, f"Paired ratios of {cell.title}")


def sentence(comparison: Comparison) -> str:
    """Return a comparison in words."""
    return f"{comparison.arm}: {comparison.ratio:.3f} of {comparison.baseline}, {comparison.verdict}"


def bar_chart(cell: Cell, group: Group, primary: Metric) -> Markup:
    """Draw the medians of the primary metric, the best first."""
    wanted = set(group.arms)
    winners = set(group.verdict.arms) if group.verdict.kind == "winner" else set()
    found = [summary for summary in cell.analysis.summaries if summary.metric == primary.key and summary.arm in wanted]
    found.sort(key=lambda summary: summary.median, reverse=primary.better == "higher")
    write = scales.with_unit(primary.unit)
    rows = [
        charts.Bar(
            name=summary.arm,
            value=summary.median,
            low=summary.low,
            high=summary.high,
            text=f"{summary.arm}: {write(summary.median)}, rounds from {write(summary.low)} to {write(summary.high)}",
            kind="winner" if summary.arm in winners else "",
        )
        for summary in found
    ]
    return charts.bars(
        rows, f"{primary.title}, {primary.unit} per {cell.operation}", f"{primary.title} of {cell.title}"
    )


def strip_chart(cell: Cell, group: Group) -> Markup:
    """Draw every round of the primary metric."""
    primary = cell.primary
    write = scales.with_unit(primary.unit)
    samples: dict[tuple[str, int], Sample] = {(sample.arm, sample.round): sample for sample in cell.samples}
    rows = []
    for arm in group.arms:
        values = cell.series(arm, primary.key)
        texts, missing = [], []
        for number, value in enumerate(values, 1):
            sample = samples.get((arm, number))
            status = "none" if sample is None else sample.status
            missing.append("" if value is not None else status)
            said = write(value) if value is not None else status
            reasons = f": {'; '.join(sample.reasons)}" if sample is not None and sample.reasons else ""
            texts.append(f"{arm}, round {number}: {said}{reasons}")
        rows.append(charts.Strip(arm, values, texts, missing))
    return charts.strip(rows, f"Rounds of {cell.title}")


def curve_charts(analysis: Analysis, title: str) -> list[tuple[str, Markup]]:
    """Draw latency by percentile, corrected and service time apart."""
    texts = {
        "corrected": "Latency from when each request was due, free of coordinated omission",
        "service": "Latency from when each request was sent",
    }
    found = []
    for kind, text in texts.items():
        lines = [
            charts.Line(curve.arm, [(point[0], point[1]) for point in curve.points])
            for curve in analysis.curves
            if curve.kind == kind and curve.points
        ]
        if lines:
            found.append((text, charts.percentiles(lines, f"{text}: {title}")))
    return found


def rate_charts(cells: Sequence[Cell]) -> list[tuple[str, Markup]]:
    """Draw the p99 over the offered rate, for each number of connections."""
    found = []
    offered = [cell for cell in cells if "offered_rate_per_s" in cell.parameters]
    for connections, same in groupby(offered, key=lambda cell: cell.parameters.get("connections")):
        lines: dict[str, list[tuple[float, float]]] = {}
        for cell in same:
            rate = float(cell.parameters["offered_rate_per_s"])
            for summary in cell.analysis.summaries:
                if summary.metric == LATENCY_KEY:
                    lines.setdefault(summary.arm, []).append((rate, summary.median))
        title = f"p99 over the offered rate, {connections} connections"
        chart = charts.latency_over_rate([charts.Line(arm, sorted(points)) for arm, points in lines.items()], title)
        if chart:
            found.append((title, chart))
    return found
