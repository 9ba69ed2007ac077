"""The page about figures over many runs. It needs no network and no script."""

from collections.abc import Sequence

from markupsafe import Markup

from ringlab import __version__, figures
from ringlab.report import html
from ringlab.trend import Run, Series


def render(runs: Sequence[Run], series: Sequence[Series], unread: Sequence[str], links: Sequence[str] = ()) -> str:
    """Return the page about figures over runs; `links` are the pages of the runs, where they have any."""
    cells: dict[str, dict[str, list[Series]]] = {}
    # The figure that ranks the arms is the first one of its cell.
    for each in sorted(series, key=lambda each: not each.metric.primary):
        cells.setdefault(each.cell, {}).setdefault(each.metric.key, []).append(each)
    template = html.environment().get_template("trend.html.j2")
    return template.render(
        runs=runs,
        links=list(links) or [""] * len(runs),
        cells={name: list(by_metric.values()) for name, by_metric in cells.items()},
        steps_of=lambda found: [text for each in found for text in step_texts(runs, each)],
        chart_of=lambda found: draw(runs, found),
        show=show,
        unread=unread,
        version=__version__,
    )


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
        titles = [
            f"{runs[point.run].label}, {runs[point.run].result.run.begun[:10]}: {show(each, point.value)}"
            f" ({show(each, point.low)} to {show(each, point.high)})"
            for point in each.points
        ]
        points = [(point.run, point.value) for point in each.points]
        lines.append(html.charts.in_percent(each.arm, points, titles))
        for step, text in zip(each.steps, step_texts(runs, each), strict=True):
            steps.append(((each.points[step.index - 1].run + each.points[step.index].run) / 2, text))

    def label(place: float) -> str:
        return runs[round(place)].label if round(place) in range(len(runs)) and place == round(place) else ""

    axes, title = ("run", "% of the arm's median"), f"{series[0].metric.title} in {len(runs)} runs"
    return html.charts.lines(lines, axes, title, write=(label, figures.plain), steps=steps)
