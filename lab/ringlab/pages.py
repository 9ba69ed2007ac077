"""The page about figures over many runs. It needs no network and no script."""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from ringlab import __version__, figures
from ringlab.report import html
from ringlab.report.scales import Axis
from ringlab.trend import Run, Series

WIDTH, HEIGHT = 320, 64
MARGIN = 6
TEXT = 12


@dataclass(frozen=True)
class Line:
    """A series, ready for the page."""

    series: Series
    chart: Markup
    latest: str
    steps: list[str]


@dataclass(frozen=True)
class CellTrend:
    """The series of a cell: those of its primary metric, and the others."""

    name: str
    anchor: str
    primary: list[Line]
    others: list[Line]
    control: str


def render(runs: Sequence[Run], series: Sequence[Series], unread: Sequence[str], links: Sequence[str] = ()) -> str:
    """Return the page about figures over runs; `links` are the pages of the runs, where they have any."""
    cells: dict[str, list[Series]] = {}
    for each in series:
        cells.setdefault(each.cell, []).append(each)
    trends = [cell_trend(runs, name, found) for name, found in cells.items()]
    changes = [
        (trend.anchor, line, step) for trend in trends for line in trend.primary + trend.others for step in line.steps
    ]
    template = html.environment().get_template("trend.html.j2")
    return template.render(
        runs=runs,
        links=list(links) or [""] * len(runs),
        cells=trends,
        changes=changes,
        unread=unread,
        version=__version__,
    )


def cell_trend(runs: Sequence[Run], name: str, series: Sequence[Series]) -> CellTrend:
    """Prepare a cell."""
    lines = [Line(each, draw(runs, each), show(each, each.points[-1].value), step_texts(runs, each)) for each in series]
    control = next((each.control for each in series if each.control), "")
    primary = [line for line in lines if line.series.metric.primary]
    others = [line for line in lines if not line.series.metric.primary]
    return CellTrend(name, f"cell-{name.replace('/', '-')}", primary, others, control)


def show(series: Series, value: float) -> str:
    """Write a figure of a series: a ratio, or with its unit."""
    return figures.ratio(value) if series.control else figures.in_unit(value, series.metric.unit)


def step_texts(runs: Sequence[Run], series: Series) -> list[str]:
    """Say in words where a series changed."""
    found = []
    for step in series.steps:
        run = runs[series.points[step.index].run]
        worse = (step.ratio > 1) == (series.metric.better == "lower")
        found.append(
            f"{series.arm}, {series.metric.title}: {figures.difference(step.ratio)}"
            f" {'more' if step.ratio > 1 else 'less'} from {run.label} on"
            f" ({'worse' if worse else 'better'}; p {step.p:.2g})"
        )
    return found


def draw(runs: Sequence[Run], series: Series) -> Markup:
    """Draw a series as a small chart: points with the range of their rounds, steps as vertical lines."""
    lows, highs = [point.low for point in series.points], [point.high for point in series.points]
    low, high = min(lows), max(highs)
    # A flat series shall look flat: the axis covers at least a tenth.
    middle = (low + high) / 2
    if high - low < 0.1 * middle:
        low, high = middle * 0.95, middle * 1.05
    y = Axis(low, high, HEIGHT - MARGIN, MARGIN)
    x = Axis(0, max(1, len(runs) - 1), MARGIN, WIDTH - MARGIN)
    title = (
        f"{series.arm}, {series.metric.title}, in {len(series.points)} runs: from"
        f" {show(series, series.points[0].value)} to {show(series, series.points[-1].value)}"
    )
    parts = [
        Markup('<svg class="spark" viewBox="0 0 {} {}" role="img" aria-label="{}"><title>{}</title>').format(
            WIDTH, HEIGHT, title, title
        )
    ]
    for step in series.steps:
        worse = (step.ratio > 1) == (series.metric.better == "lower")
        place = (x(series.points[step.index - 1].run) + x(series.points[step.index].run)) / 2
        parts.append(
            Markup('<line class="step {}" x1="{:.1f}" x2="{:.1f}" y1="0" y2="{}"/>').format(
                "bad" if worse else "good", place, place, HEIGHT
            )
        )
    for point in series.points:
        parts.append(
            Markup('<line class="range" x1="{:.1f}" x2="{:.1f}" y1="{:.1f}" y2="{:.1f}"/>').format(
                x(point.run), x(point.run), y(point.low), y(point.high)
            )
        )
    path = " ".join(f"{x(point.run):.1f},{y(point.value):.1f}" for point in series.points)
    parts.append(Markup('<polyline class="line" points="{}"/>').format(path))
    for point in series.points:
        run = runs[point.run]
        text = (
            f"{run.label}, {run.result.run.begun[:10]}: {show(series, point.value)} ({show(series, point.low)}"
            f" to {show(series, point.high)})"
        )
        parts.append(
            Markup('<circle class="dot" cx="{:.1f}" cy="{:.1f}" r="2.5"><title>{}</title></circle>').format(
                x(point.run), y(point.value), escape(text)
            )
        )
    parts.append(Markup("</svg>"))
    return Markup("").join(parts)
