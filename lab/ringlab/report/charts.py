"""Charts as inline SVG, made from the figures alone: no script, no picture, no font that must be fetched.

Colours are CSS variables of the page, so that one drawing serves light and dark. Every mark says what it is in a `title`,
which browsers show under the pointer and screen readers read.
"""

import math
import statistics as averages
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup, escape

from ringlab.figures import latency, plain, significant
from ringlab.report.scales import Axis, linear_marks, logarithmic_marks, ratio_marks

WIDTH = 760
ROW = 24
FOOT = 40
CHARACTER = 6.7
"""The width of a character at the size of the charts' text, about."""
LABEL_MAX = 230
NARROW, NARROW_ROW = 340, 42
"""The width of what is drawn for telephones, and the height of its rows, which have their text above the mark."""
REACH_MAX = 1.5
"""An axis of ratios goes so far beyond the arm that is furthest out, in whichever direction: intervals may be endless."""
LOGARITHMIC_FROM = 4.0
"""From this ratio of its ends on, an axis has the marks of a logarithmic one, and bars are drawn on one."""
COLOURS = 8
"""The number of colours that the page has for lines; further lines share them and are dashed."""


@dataclass(frozen=True)
class Interval:
    """One row of a forest plot: an arm's ratio to the baseline."""

    name: str
    ratio: float
    low: float
    high: float
    verdict: str
    text: str
    figure: str


@dataclass(frozen=True)
class Bar:
    """One bar: an arm's median, and the range of its rounds."""

    name: str
    value: float
    low: float
    high: float
    text: str
    figure: str
    kind: str = ""
    """A class of the page's style: the winner, the baseline."""


@dataclass(frozen=True)
class Line:
    """One line: an arm's pairs of x and y."""

    name: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Strip:
    """One row of a strip of rounds: an arm's figures, and what is to be said where there is none."""

    name: str
    values: Sequence[float | None]
    texts: Sequence[str]
    missing: Sequence[str] = field(default_factory=tuple)
    """By round: void, failed, or nothing."""


def label_width(names: Sequence[str]) -> float:
    """Return how much room the names of rows need."""
    return min(LABEL_MAX, 12 + CHARACTER * max((len(name) for name in names), default=0))


def shorten(name: str, room: float) -> str:
    """Return as much of a name as there is room for."""
    most = int((room - 8) / CHARACTER)
    return name if len(name) <= most else name[: most - 1] + "…"


def number(value: float) -> str:
    """Return a coordinate, to a tenth of a pixel."""
    return f"{value:.1f}".removesuffix(".0")


def element(name: str, title: str = "", **attributes: object) -> Markup:
    """Return an empty SVG element, or one with a title. `class_` and `stroke_width` become `class` and `stroke-width`."""
    described = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(number(value) if isinstance(value, float) else str(value))}"'
        for key, value in attributes.items()
    )
    inside = f"<title>{escape(title)}</title>" if title else ""
    return Markup(f"<{name}{described}>{inside}</{name}>")


def text(content: str, x: float, y: float, class_: str = "", anchor: str = "start", title: str = "") -> Markup:
    """Return a line of text."""
    inside = Markup(f"<title>{escape(title)}</title>") if title else Markup("")
    return Markup('<text x="{}" y="{}" class="{}" text-anchor="{}">{}{}</text>').format(
        number(x), number(y), class_, anchor, content, inside
    )


def drawing(parts: Sequence[Markup], height: float, title: str, kind: str = "wide", width: float = WIDTH) -> Markup:
    """Return the whole picture; `kind` says on which screens it is shown."""
    return Markup(
        '<div class="scroll {}"><svg viewBox="0 0 {} {}" role="img" aria-label="{}" class="chart">{}</svg></div>'
    ).format(kind, number(width), number(height), title, Markup("\n").join(parts))


def row_labels(names: Sequence[str], room: float) -> list[Markup]:
    """Return the names of rows, at the left."""
    return [
        text(shorten(name, room), room - 8, ROW * index + ROW / 2 + 4, "name", "end", name)
        for index, name in enumerate(names)
    ]


@dataclass(frozen=True)
class Frame:
    """Where the rows of a chart have their names, marks and figures: side by side, or for a telephone above each other."""

    names: Sequence[str]
    figures: Sequence[str]
    narrow: bool
    figures_width: float

    @property
    def width(self) -> float:
        """Of the whole chart."""
        return NARROW if self.narrow else WIDTH

    @property
    def row(self) -> float:
        """The height of a row."""
        return NARROW_ROW if self.narrow else ROW

    @property
    def start(self) -> float:
        """Where the axis begins."""
        return 8 if self.narrow else label_width(self.names)

    @property
    def end(self) -> float:
        """Where the axis ends."""
        return self.width - (8 if self.narrow else self.figures_width)

    @property
    def bottom(self) -> float:
        """Where the rows end."""
        return self.row * len(self.names) + 4

    def middle(self, index: int) -> float:
        """Return the height of a row's marks."""
        return self.row * index + (28 if self.narrow else ROW / 2)

    def texts(self) -> list[Markup]:
        """Return the names and figures of the rows."""
        if not self.narrow:
            parts = row_labels(self.names, self.start)
            for index, figure in enumerate(self.figures):
                parts.append(text(figure, self.end + 12, self.middle(index) + 4, "figure"))
            return parts
        parts = []
        for index, (name, figure) in enumerate(zip(self.names, self.figures, strict=True)):
            height = self.row * index + 14
            room = self.width - 24 - CHARACTER * len(figure)
            parts.append(text(shorten(name, room), self.start, height, "label", title=name))
            parts.append(text(figure, self.end, height, "figure", "end"))
        return parts

    def draw(self, parts: Sequence[Markup], axis_title: str, title: str) -> Markup:
        """Return the whole picture."""
        caption = shorten(axis_title, self.width) if self.narrow else axis_title
        place = self.width / 2 if self.narrow else (self.start + self.end) / 2
        whole = [*parts, text(caption, place, self.bottom + 32, "axis", "middle")]
        return drawing(whole, self.bottom + FOOT, title, "narrow" if self.narrow else "wide", self.width)


def forest(rows: Sequence[Interval], noise: float, axis_title: str, title: str, *, narrow: bool = False) -> Markup:
    """Draw paired ratios with their intervals; what lies within the noise band is no difference."""
    if not rows:
        return Markup("")
    frame = Frame([row.name for row in rows], [row.figure for row in rows], narrow, 178)
    ratios = [1.0, *(row.ratio for row in rows)]
    low = max(min([1 / (1 + noise), *(row.low for row in rows)]) * 0.97, min(ratios) / REACH_MAX)
    high = min(max([1 + noise, *(row.high for row in rows)]) * 1.03, max(ratios) * REACH_MAX)
    low, high = min(low, 0.97 / (1 + noise)), max(high, 1.03 * (1 + noise))
    axis = Axis(low, high, frame.start, frame.end, logarithmic=True)
    parts = [
        element(
            "rect",
            f"noise: ratios from {1 / (1 + noise):.3f} to {1 + noise:.3f} are no difference",
            class_="noise",
            x=axis(1 / (1 + noise)),
            y=0.0,
            width=max(1.0, axis(1 + noise) - axis(1 / (1 + noise))),
            height=float(frame.bottom),
        )
    ]
    most = 5 if narrow else 7
    for mark in ratio_marks(low, high, most) if high / low < LOGARITHMIC_FROM else logarithmic_marks(low, high, most):
        place = axis(mark)
        kind = "one" if math.isclose(mark, 1) else "grid"
        parts.append(element("line", class_=kind, x1=place, x2=place, y1=0.0, y2=float(frame.bottom)))
        parts.append(text(plain(mark), place, frame.bottom + 15, "tick", "middle"))
    for index, row in enumerate(rows):
        middle = frame.middle(index)
        kind = row.verdict.replace(" ", "-")
        parts.append(
            element(
                "line", row.text, class_=f"interval {kind}", x1=axis(row.low), x2=axis(row.high), y1=middle, y2=middle
            )
        )
        parts.append(element("circle", row.text, class_=f"point {kind}", cx=axis(row.ratio), cy=middle, r=4.5))
    return frame.draw([*parts, *frame.texts()], axis_title, title)


def bars(
    rows: Sequence[Bar], axis_title: str, title: str, write: Callable[[float], str] = plain, *, narrow: bool = False
) -> Markup:
    """Draw medians as bars from 0, each with the range of its rounds; `write` makes the labels of the marks.

    Where the worst arm is far out, the axis is logarithmic: on a linear one the others would all be stumps.
    """
    if not rows:
        return Markup("")
    frame = Frame([row.name for row in rows], [row.figure for row in rows], narrow, 96)
    least, high = min(row.low for row in rows), max(row.high for row in rows) * 1.02
    logarithmic = least > 0 and high / min(row.value for row in rows) > 2 * LOGARITHMIC_FROM
    low = least / 2 if logarithmic else 0.0
    axis = Axis(low, high, frame.start, frame.end, logarithmic=logarithmic)
    most = 4 if narrow else 6
    parts = []
    for mark in logarithmic_marks(low, high, most) if logarithmic else linear_marks(low, high, most):
        parts.append(element("line", class_="grid", x1=axis(mark), x2=axis(mark), y1=0.0, y2=float(frame.bottom)))
        parts.append(text(write(mark), axis(mark), frame.bottom + 15, "tick", "middle"))
    for index, row in enumerate(rows):
        middle = frame.middle(index)
        parts.append(
            element(
                "rect",
                row.text,
                class_=f"bar {row.kind}".strip(),
                x=axis(low),
                y=float(middle - ROW / 2 + 5),
                width=max(1.0, axis(row.value) - axis(low)),
                height=float(ROW - 10),
                rx=2,
            )
        )
        parts.append(
            element("line", row.text, class_="range", x1=axis(row.low), x2=axis(row.high), y1=middle, y2=middle)
        )
    caption = f"{axis_title}, logarithmic" if logarithmic else axis_title
    return frame.draw([*parts, *frame.texts()], caption, title)


def spread(places: Sequence[float], least: float, low: float, high: float) -> list[float]:
    """Return the places moved apart, so that labels at them do not overlap; their order stays."""
    order = sorted(range(len(places)), key=places.__getitem__)
    moved = list(places)
    previous = low - least
    for index in order:
        moved[index] = max(moved[index], previous + least)
        previous = moved[index]
    following = high + least
    for index in reversed(order):
        moved[index] = min(moved[index], following - least)
        following = moved[index]
    return moved


def line_style(index: int) -> str:
    """Return the classes of the line that is drawn as number `index`."""
    return f"line c{index % COLOURS} d{index // COLOURS % 3}"


def draw_lines(
    lines: Sequence[Line], x: Axis, y: Axis, labels_x: float, describe: Sequence[Sequence[str]]
) -> list[Markup]:
    """Draw lines with their names at their right ends."""
    parts = []
    top, bottom = min(y.start, y.end), max(y.start, y.end)
    ends = spread([y(line.points[-1][1]) for line in lines], 14, top + 2, max(bottom, top + 14 * len(lines)))
    for index, line in enumerate(lines):
        path = " ".join(f"{number(x(across))},{number(y(up))}" for across, up in line.points)
        series = [element("polyline", line.name, class_=line_style(index), points=path)]
        for (across, up), said in zip(line.points, describe[index], strict=True):
            if said:
                series.append(element("circle", said, class_=f"dot c{index % COLOURS}", cx=x(across), cy=y(up), r=3))
        last_x, last_y = x(line.points[-1][0]), y(line.points[-1][1])
        series.append(element("line", class_="leader", x1=last_x + 4, x2=labels_x - 3, y1=last_y, y2=ends[index]))
        room = WIDTH - labels_x
        series.append(
            text(shorten(line.name, room), labels_x, ends[index] + 4, f"end t{index % COLOURS}", title=line.name)
        )
        # The page's style lifts one series out of the others while a pointer is on it.
        parts.append(Markup('<g class="series">{}</g>').format(Markup("").join(series)))
    return parts


def percentile_place(percentile: float) -> float:
    """Return a percentile as its distance from 100, turned over: 90, 99 and 99.9 are equally far apart."""
    return 1 / max(1e-6, 1 - percentile / 100)


SMALL = (230, 140)
"""Width and height of one of many."""
SMALL_PERCENTILES = (50, 90, 99, 99.9, 99.99, 99.999)
PERCENTILES_MIN = 99.0


def percentiles(lines: Sequence[Line], title: str, anchor: str) -> Markup:
    """Draw latency (in ns) by percentile, both on logarithmic scales: one small chart for each line, with all the others behind it.

    `anchor` is a name that nothing else on the page has.
    """
    lines = [line for line in lines if line.points]
    if not lines:
        return Markup("")
    # As far as every line goes, so that they end side by side; but one of few operations does not hide the tails of the others.
    ends = [max((percentile for percentile, _ in line.points if percentile < 100), default=0.0) for line in lines]
    shown = max(min(ends), min(max(ends), PERCENTILES_MIN))
    cut = [
        Line(
            line.name, [(percentile_place(percentile), ns) for percentile, ns in line.points if 0 < percentile <= shown]
        )
        for line in lines
    ]
    cut = [line for line in cut if line.points]
    if not cut:
        return Markup("")
    low = min(ns for line in cut for _, ns in line.points)
    high = max(ns for line in cut for _, ns in line.points)
    width, height = SMALL
    x = Axis(1, percentile_place(shown), 46, width - 8, logarithmic=True)
    y = Axis(max(low * 0.9, 1), max(high * 1.1, 2), height - 20, 24, logarithmic=True)
    paths = [" ".join(f"{number(x(across))},{number(y(up))}" for across, up in line.points) for line in cut]
    grid = []
    for mark in SMALL_PERCENTILES:
        if mark <= shown:
            place = x(percentile_place(mark))
            grid.append(element("line", class_="grid", x1=place, x2=place, y1=24.0, y2=float(height - 20)))
            grid.append(text(f"{mark:g}", place, height - 6, "tick", "middle"))
    for mark in logarithmic_marks(y.low, y.high, 4):
        grid.append(element("line", class_="grid", x1=x.start, x2=x.end, y1=y(mark), y2=y(mark)))
        grid.append(text(latency(mark, plain), x.start - 6, y(mark) + 4, "tick", "end"))
    behind = [element("polyline", class_="behind", points=path) for path in paths]
    pictures = []
    for index, (line, path) in enumerate(zip(cut, paths, strict=True)):
        # What all have in common is drawn once, and used by the others.
        common = (
            # The page's style doesn't look from what is used to what surrounds the use, but sees this class.
            Markup('<g id="{}" class="chart">{}</g>').format(anchor, Markup("").join([*grid, *behind]))
            if index == 0
            else Markup('<use href="#{}"></use>').format(anchor)
        )
        last = latency(line.points[-1][1])
        room = width - 20 - CHARACTER * len(last)
        parts = [
            common,
            element("polyline", line.name, class_="line c0", points=path),
            text(shorten(line.name, room), 4, 14, "label", title=line.name),
            text(last, width - 4, 14, "figure", "end", title=f"{line.name}: {last} at the last percentile shown"),
        ]
        pictures.append(
            Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}" class="chart small">{}</svg>').format(
                number(width), number(height), f"{title}: {line.name}", Markup("").join(parts)
            )
        )
    return Markup('<div class="multiples">{}</div>').format(Markup("\n").join(pictures))


def y_grid(y: Axis, x: Axis) -> list[Markup]:
    """Draw an axis of latencies (in ns) at the left."""
    parts = []
    for mark in logarithmic_marks(y.low, y.high):
        parts.append(element("line", class_="grid", x1=x.start, x2=x.end, y1=y(mark), y2=y(mark)))
        parts.append(text(latency(mark, plain), x.start - 8, y(mark) + 4, "tick", "end"))
    return parts


def latency_over_rate(
    lines: Sequence[Line], title: str, caption: str = "offered, requests/s", *, logarithmic: bool = False
) -> Markup:
    """Draw latency (in ns) over the offered rate (per second), of which the axis may be logarithmic as well."""
    lines = [line for line in lines if line.points]
    if not lines:
        return Markup("")
    labels_x = WIDTH - label_width([line.name for line in lines])
    rates = [rate for line in lines for rate, _ in line.points]
    latencies = [ns for line in lines for _, ns in line.points]
    height = max(250, 15 * len(lines) + 20)
    low = min(rates) * 0.9 if logarithmic else 0
    x = Axis(low, max(rates) * 1.03, 62, labels_x - 16, logarithmic=logarithmic)
    y = Axis(max(min(latencies) * 0.9, 1), max(latencies) * 1.1, height, 8, logarithmic=True)
    parts = []
    for mark in logarithmic_marks(x.low, x.high) if logarithmic else linear_marks(0, x.high):
        parts.append(element("line", class_="grid", x1=x(mark), x2=x(mark), y1=8.0, y2=float(height)))
        parts.append(text(plain(mark), x(mark), height + 16, "tick", "middle"))
    parts += y_grid(y, x)
    parts.append(text(caption, (x.start + x.end) / 2, height + 34, "axis", "middle"))
    said = [
        [f"{line.name}: {latency(ns)} at {significant(rate)} requests/s" for rate, ns in line.points] for line in lines
    ]
    parts += draw_lines(lines, x, y, labels_x, said)
    return drawing(parts, height + FOOT + 4, title)


DEVIATIONS = (0.02, 0.05, 0.10, 0.20)
"""Bounds of the shades of a strip of rounds."""


def shade(value: float, usual: float) -> str:
    """Return the class of a round's figure, by how far it lies from the arm's median."""
    distance = value / usual - 1 if usual else 0.0
    step = sum(abs(distance) > bound for bound in DEVIATIONS)
    return f"s{step}" if step == 0 else f"{'up' if distance > 0 else 'down'} s{step}"


def strip(rows: Sequence[Strip], title: str) -> Markup:
    """Draw each round of each arm as a field: the further from the arm's own median, the stronger its colour."""
    rows = [row for row in rows if row.values]
    if not rows:
        return Markup("")
    room = label_width([row.name for row in rows])
    rounds = max(len(row.values) for row in rows)
    width = min(44.0, (WIDTH - room - 8) / rounds)
    parts = row_labels([row.name for row in rows], room)
    for index, row in enumerate(rows):
        known = [value for value in row.values if value is not None]
        usual = averages.median(known) if known else 0.0
        for place, value in enumerate(row.values):
            x, y = room + place * width, float(ROW * index + 3)
            gap = min(2.0, width * 0.1)
            kind = (row.missing[place] if row.missing else "") if value is None else shade(value, usual)
            parts.append(
                element(
                    "rect",
                    row.texts[place],
                    class_=f"field {kind or 'none'}",
                    x=x,
                    y=y,
                    width=width - gap,
                    height=float(ROW - 6),
                    rx=2,
                )
            )
    bottom = ROW * len(rows) + 4
    step = max(1, math.ceil(rounds / 16))
    for place in range(0, rounds, step):
        parts.append(text(str(place + 1), room + place * width + width / 2, bottom + 12, "tick", "middle"))
    parts.append(text("round", room, bottom + 28, "axis"))
    return drawing(parts, bottom + FOOT - 6, title)
