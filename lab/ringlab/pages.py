"""The page about figures over many runs. It needs no network and no script."""

import statistics as averages
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from ringlab import __version__, figures
from ringlab.report import html
from ringlab.results import Metric
from ringlab.trend import Run, Series


@dataclass(frozen=True)
class Figure:
    """One figure of all arms of a cell: its chart, the first and the latest figure of each arm, and its steps in words."""

    metric: Metric
    chart: Markup
    rows: list[tuple[str, str, str]]
    steps: list[str]


@dataclass(frozen=True)
class CellTrend:
    """The figures of a cell, that which ranks the arms first."""

    name: str
    anchor: str
    figures: list[Figure]
    control: str


def render(runs: Sequence[Run], series: Sequence[Series], unread: Sequence[str], links: Sequence[str] = ()) -> str:
    """Return the page about figures over runs; `links` are the pages of the runs, where they have any."""
    cells: dict[str, list[Series]] = {}
    for each in series:
        cells.setdefault(each.cell, []).append(each)
    template = html.environment().get_template("trend.html.j2")
    return template.render(
        runs=runs,
        links=list(links) or [""] * len(runs),
        cells=[cell_trend(runs, name, found) for name, found in cells.items()],
        unread=unread,
        version=__version__,
    )


def cell_trend(runs: Sequence[Run], name: str, series: Sequence[Series]) -> CellTrend:
    """Prepare a cell."""
    by_metric: dict[str, list[Series]] = {}
    for each in sorted(series, key=lambda each: not each.metric.primary):
        by_metric.setdefault(each.metric.key, []).append(each)
    found = [
        Figure(
            of_metric[0].metric,
            draw(runs, of_metric),
            [(each.arm, show(each, each.points[0].value), show(each, each.points[-1].value)) for each in of_metric],
            [text for each in of_metric for text in step_texts(runs, each)],
        )
        for of_metric in by_metric.values()
    ]
    control = next((each.control for each in series if each.control), "")
    return CellTrend(name, f"cell-{name.replace('/', '-')}", found, control)


def show(series: Series, value: float) -> str:
    """Return a figure of a series: a ratio, or with its unit."""
    return figures.significant(value) if series.control else figures.in_unit(value, series.metric.unit)


def step_texts(runs: Sequence[Run], series: Series) -> list[str]:
    """Return in words where a series changed."""
    found = []
    for step in series.steps:
        run = runs[series.points[step.index].run]
        worse = (step.ratio > 1) == (series.metric.better == "lower")
        found.append(
            f"{series.arm}, {series.metric.title}: {figures.compared(step.ratio)} from {run.label} on"
            f" ({'worse' if worse else 'better'}; p {step.p:.2g})"
        )
    return found


def draw(runs: Sequence[Run], series: Sequence[Series]) -> Markup:
    """Draw a figure of all arms over the runs, each in percent of its own median, and where it changed.

    A control, which isn't relative to anything, would show the machine instead.
    """
    lines, steps = [], []
    for each in [each for each in series if each.control] or series:
        usual = averages.median(point.value for point in each.points)
        titles = [
            f"{runs[point.run].label}, {runs[point.run].result.run.begun[:10]}: {show(each, point.value)}"
            f" ({show(each, point.low)} to {show(each, point.high)})"
            for point in each.points
        ]
        lines.append(
            html.charts.Line(each.arm, [(point.run, 100 * point.value / usual) for point in each.points], titles)
        )
        for step, text in zip(each.steps, step_texts(runs, each), strict=True):
            steps.append(((each.points[step.index - 1].run + each.points[step.index].run) / 2, text))

    def label(place: float) -> str:
        return runs[round(place)].label if round(place) in range(len(runs)) and place == round(place) else ""

    title = f"{series[0].metric.title} in {len(runs)} runs"
    axes, write = ("run", "% of the arm's median"), (label, figures.plain)
    return html.charts.lines(lines, axes, title, logarithmic=(False, False), write=write, steps=steps)
