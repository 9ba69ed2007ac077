"""Charts, drawn by matplotlib as SVG that stands in a page: no script, no picture beside it, no font that must be fetched.

A chart's colours become the page's CSS variables, so that one drawing serves light and dark. What a mark is called is in its
`title`, which browsers show under the pointer and screen readers read.
"""

import io
import itertools
import math
import re
import statistics as averages
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from markupsafe import Markup, escape
from matplotlib import ticker
from matplotlib.figure import Figure

from ringlab import figures

WIDTH, ROW, FOOT, TEXT = 520.0, 19.0, 44.0, 9.0
"""The width of a chart, and the heights of its rows, of its axis with a title, and of its text, in points."""
CHARACTER = 0.56 * TEXT
"""The width of a character, about."""
NAME_MAX = 34
"""The most characters of a name that stand beside a chart."""
REACH_MAX = 1.5
"""An axis of ratios goes so far beyond the row that is furthest out, in whichever direction: intervals may be endless."""
LOGARITHMIC_FROM = 4.0
"""From this ratio of its ends on, an axis is logarithmic."""
INK, SOFT, LINE, BAND = "#1c2024", "#5b6470", "#e3e5e8", "#dfe5ee"
LINES = ("#2f66c4", "#b3471d", "#0f7b57", "#8b47b5", "#8a6d00", "#0b7f93", "#c02f6b", "#5b6471")
"""The colours of lines; further lines share them and are dashed."""
VERDICTS = {"better": LINES[2], "worse": LINES[1], "cannot tell": LINES[4]}
"""The colours of verdicts; others are SOFT."""
VARIABLES = {INK: "ink", SOFT: "soft", LINE: "line", BAND: "band"}
VARIABLES |= {colour: f"c{index}" for index, colour in enumerate(LINES)}
"""The names of the page's CSS variables, by the colours that stand for them in a drawing."""
SETTINGS: Any = {
    "svg.fonttype": "none",
    "font.size": TEXT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": LINE,
    "axes.labelcolor": SOFT,
    "axes.axisbelow": True,
    "grid.color": LINE,
    "text.color": INK,
    "xtick.color": LINE,
    "ytick.color": LINE,
    "xtick.labelcolor": SOFT,
    "ytick.labelcolor": SOFT,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "legend.frameon": False,
}
Write = Callable[[float], str]
NUMBERS = itertools.count()


@dataclass(frozen=True)
class Row:
    """One row of a chart of intervals: a figure, and the interval that it lies in."""

    name: str
    value: float
    low: float
    high: float
    figure: str
    """The text at the right."""
    title: str = ""
    verdict: str = ""


@dataclass(frozen=True)
class Line:
    """One line: pairs of x and y, and what each point is called."""

    name: str
    points: Sequence[tuple[float, float]]
    titles: Sequence[str] = ()


def in_percent(name: str, points: Sequence[tuple[float, float]], titles: Sequence[str]) -> Line:
    """Return a line of figures in percent of their median; an empty one if that is 0."""
    usual = averages.median([figure for _, figure in points] or [0.0])
    return Line(name, [(place, 100 * figure / usual) for place, figure in points] if usual else [], titles)


def shorten(name: str) -> str:
    """Return as much of a name as there is room for."""
    return name if len(name) <= NAME_MAX else name[: NAME_MAX - 1] + "…"


class Drawing:
    """A figure with axes, whose marks may have titles."""

    def __init__(self, height: float, left: float, right: float, foot: float) -> None:
        """Make axes of a height in points, with this much room around them."""
        whole = 8 + height + foot
        self.figure = Figure(figsize=(WIDTH / 72, whole / 72))
        self.figure.patch.set_visible(False)
        place = (left / WIDTH, foot / whole, (WIDTH - left - right) / WIDTH, height / whole)
        self.axes = self.figure.add_axes(place)
        self.axes.patch.set_visible(False)
        self.titles: list[str] = []

    def titled(self, artist: Any, title: str) -> None:
        """Give a mark a title."""
        if title:
            artist.set_gid(f"title-{len(self.titles)}")
            self.titles.append(title)

    def mark_up(self, label: str) -> Markup:
        """Return the drawing as an element of a page."""
        text = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        # Names of definitions follow from this text, and must differ on a page.
        with mpl.rc_context({"svg.hashsalt": str(next(NUMBERS))}):
            self.figure.savefig(text, format="svg", metadata=nothing)
        svg = text.getvalue()
        svg = svg[svg.index(">", svg.index("<svg")) + 1 :]
        # A style would be that of the whole page.
        svg = re.sub(r"<style.*?</style>|<!--.*?-->|<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
        svg = re.sub(r"font: [^;\"]*?([\d.]+px)[^;\"]*", r"font-size: \1", svg)
        svg = re.sub(r' id="title-(\d+)">', lambda found: f"><title>{escape(self.titles[int(found[1])])}</title>", svg)
        used = set(re.findall(r"(?:href=\"|url\()#([^\")]+)", svg))
        svg = re.sub(r' id="([^"]+)"', lambda found: found[0] if found[1] in used else "", svg)
        svg = re.sub(
            "#[0-9a-f]{6}", lambda found: f"var(--{name})" if (name := VARIABLES.get(found[0])) else found[0], svg
        )
        svg = re.sub(r"(-?\d+\.\d\d)\d{2,}", r"\1", re.sub(r"\s*\n\s*", "\n", svg))
        size = f"{WIDTH:g} {72 * self.figure.get_figheight():g}"
        return Markup(
            f'<div class="scroll"><svg viewBox="0 0 {size}" role="img" class="chart" aria-label="{escape(label)}">{svg}</div>'
        )


def room_for(names: Sequence[str]) -> float:
    """Return how wide the longest of these texts is, in points, with a gap."""
    return 14 + CHARACTER * max((len(shorten(name)) for name in names), default=0)


def write_axis(axis: Any, write: Write, *, logarithmic: bool, most: int = 7) -> None:
    """Give an axis few round marks, written as figures are."""
    low, high = axis.get_view_interval()
    locator: ticker.Locator = ticker.MaxNLocator(most, steps=(1, 2, 2.5, 5, 10))
    if logarithmic:
        for steps in ((1, 2, 5), (1, 3), (1,)):
            marks = ticker.LogLocator(subs=steps, numticks=99).tick_values(low, high)
            if sum(low <= mark <= high for mark in marks) <= most:
                break
        if sum(low <= mark <= high for mark in marks) > 1:
            locator = ticker.FixedLocator(marks)
    axis.set_major_locator(locator)
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, place: write(value)))
    axis.set_minor_locator(ticker.NullLocator())


def intervals(
    rows: Sequence[Row], axis_title: str, label: str, write: Write = figures.plain, noise: float = 0.0
) -> Markup:
    """Draw a point and its interval for each row. With `noise` they are ratios, and within 1 plus or minus it nothing is a difference."""
    if not rows:
        return Markup("")
    with mpl.rc_context(SETTINGS):
        left, right = room_for([row.name for row in rows]), room_for([row.figure for row in rows])
        drawing = Drawing(ROW * len(rows), left, right, FOOT)
        axes, values = drawing.axes, [row.value for row in rows] + [1.0] * bool(noise)
        low, high = min(row.low for row in rows), max(row.high for row in rows)
        if noise:
            low, high = max(low, min(values) / REACH_MAX), min(high, max(values) * REACH_MAX)
            low, high = min(low, 1 / (1 + noise)) * 0.97, max(high, 1 + noise) * 1.03
            band = axes.axvspan(1 / (1 + noise), 1 + noise, color=BAND, linewidth=0)
            drawing.titled(band, f"noise: ratios from {1 / (1 + noise):.3f} to {1 + noise:.3f} are no difference")
            axes.axvline(1, color=SOFT, linewidth=1)
        logarithmic = low > 0 and high / low > LOGARITHMIC_FROM
        axes.set_xscale("log" if logarithmic else "linear")
        axes.set_xlim((low if noise else low * 0.95) if logarithmic or noise else 0, high * 1.03)
        for index, row in enumerate(rows):
            colour = VERDICTS.get(row.verdict, SOFT if row.verdict else LINES[0])
            dashes = "--" if row.verdict == "cannot tell" else "-"
            (line,) = axes.plot([row.low, row.high], [index, index], dashes, color=colour, linewidth=1.6)
            (point,) = axes.plot([row.value], [index], "o", color=colour, markersize=5.5)
            drawing.titled(line, row.title)
            drawing.titled(point, row.title)
            place = axes.get_yaxis_transform()
            axes.text(1.015, index, row.figure, transform=place, va="center")
            name = axes.text(-0.015, index, shorten(row.name), transform=place, ha="right", va="center")
            drawing.titled(name, row.name if row.name != shorten(row.name) else "")
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.yaxis.set_major_locator(ticker.NullLocator())
        axes.grid(axis="x")
        write_axis(axes.xaxis, write, logarithmic=logarithmic)
        axes.set_xlabel(f"{axis_title}; the axis is logarithmic" if logarithmic else axis_title)
        # In the middle of the drawing, where there is most room.
        middle = (WIDTH / 2 - left) / (WIDTH - left - right)
        axes.xaxis.set_label_coords(middle, -26 / (ROW * len(rows)))
        return drawing.mark_up(label)


def lines(
    found: Sequence[Line],
    titles: tuple[str, str],
    label: str,
    *,
    logarithmic: bool = False,
    write: tuple[Write, Write] = (figures.plain, figures.plain),
    steps: Sequence[tuple[float, str]] = (),
) -> Markup:
    """Draw lines over two axes with their titles; `steps` are places on the x axis where something changed, and what."""
    found = [line for line in found if line.points]
    if not found:
        return Markup("")
    columns = max(1, int(WIDTH / (room_for([line.name for line in found]) + 28)))
    legend = 13.0 * math.ceil(len(found) / columns) + 8
    with mpl.rc_context(SETTINGS):
        drawing = Drawing(190, 62, 12, FOOT + legend)
        axes = drawing.axes
        for index, line in enumerate(found):
            colour, dashes = LINES[index % len(LINES)], ("-", "--", ":")[index // len(LINES) % 3]
            across, up = zip(*line.points, strict=True)
            axes.plot(across, up, dashes, color=colour, label=shorten(line.name), linewidth=1.5)
            for place, (x, y) in enumerate(line.points):
                (point,) = axes.plot([x], [y], "o", color=colour, markersize=3)
                drawing.titled(point, f"{line.name}: {line.titles[place]}" if line.titles else line.name)
        for across_step, title in steps:
            drawing.titled(axes.axvline(across_step, color=SOFT, linestyle="--", linewidth=1.2), title)
        for name, axis_title, of_axis in zip("xy", titles, write, strict=True):
            axes.set(**{f"{name}scale": "log" if logarithmic else "linear", f"{name}label": axis_title})
            write_axis(getattr(axes, f"{name}axis"), of_axis, logarithmic=logarithmic)
        axes.grid()
        axes.legend(
            loc="upper left", bbox_to_anchor=(-0.1, -FOOT / 190), ncols=columns, borderaxespad=0, handlelength=1.6
        )
        return drawing.mark_up(label)
