"""Figures as reports write them: a number, its unit, and how far the true value may be from it.

A figure is an interval. "5.58 ms" stands for anything from 5.575 to 5.585 ms, and "1 KB" for 1,000 or 1,024 bytes. Two figures
contradict each other only if no values within their intervals agree, so that rounding never looks like a contradiction.
"""

import re
from dataclasses import dataclass, replace
from typing import Literal

from ringlab import figures

Dimension = Literal["time", "rate", "bandwidth", "size", "percent", "factor", "number"]
Unit = tuple[Dimension, float, float]
"""The dimension, and the smallest and the largest size the unit is used for, in seconds, bytes, or one of them per second."""

ABOUT = 0.1
"""How far from it a figure may be that is called approximate."""
SECOND = ("s", "sec", "second")


def make_units() -> dict[str, Unit]:
    """Return all units by name. The case of B and b matters where only it tells bytes from bits."""
    units: dict[str, Unit] = {"%": ("percent", 1.0, 1.0), "x": ("factor", 1.0, 1.0), "×": ("factor", 1.0, 1.0)}
    times = {"ns": 1e-9, "nsec": 1e-9, "nanoseconds": 1e-9, "us": 1e-6, "usec": 1e-6, "microseconds": 1e-6, "ms": 1e-3}
    times |= {"msec": 1e-3, "milliseconds": 1e-3, "s": 1.0, "sec": 1.0, "secs": 1.0, "second": 1.0, "seconds": 1.0}
    times |= {"min": 60.0, "mins": 60.0, "minute": 60.0, "minutes": 60.0, "h": 3600.0, "hours": 3600.0}
    units |= {name: ("time", each, each) for name, each in times.items()}
    units |= dict.fromkeys(("rps", "qps", "iops", "hz", "tps"), ("rate", 1.0, 1.0))
    for power, letter in enumerate(("", "K", "M", "G", "T")):
        small, large = 1000.0**power, 1024.0**power
        for prefix in {letter, letter.lower()}:
            for name in ("B", "b", "bytes", "byte", "Bytes"):  # Programs write MB for both 10^6 and 2^20 bytes.
                units[prefix + name] = ("size", small, large)
            units[f"{prefix}iB"] = ("size", large, large)
            for name in ("Bps", "B/s", "bytes/s", "Bytes/s"):
                units[prefix + name] = ("bandwidth", small, large)
            units[f"{prefix}iB/s"] = ("bandwidth", large, large)
            for name in ("bps", "b/s", "bit/s", "bits/s"):
                units[prefix + name] = ("bandwidth", small / 8, small / 8)
    return units


UNITS = make_units()
SUFFIXES = {"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9}
FIGURE = re.compile(
    r"(?P<about>[~≈]\s*)?(?P<sign>[+\-−–]\s?)?(?P<number>\d{1,3}(?:[,']\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?(?:e[+-]?\d+)?|\d+,\d+)"
    r"(?![.,]?\d)(?P<suffix>\s?[kKMG](?![A-Za-z]))?\s*[⇅↓↑]?\s*"
    r"(?P<unit>%|[×xX](?![A-Za-z])|\[?#?[A-Za-zµμ]*\s?(?:/|per(?=\s))\s?[A-Za-z]+|\[?[A-Za-zµμ]+)?"
)


@dataclass(frozen=True)
class Quantity:
    """A figure: between `low` and `high`, and written as `text`. In seconds, bytes, per second, percent, or as it is."""

    value: float
    low: float
    high: float
    dimension: Dimension
    text: str
    each: bool = False
    """Whether it is a time for each of something: 1.4 us/op."""
    noun: str = ""
    """The word after a bare number: 983 connect."""
    line: int = 0
    """Where it was read."""

    def at(self, line: int) -> "Quantity":
        """Return it as read in a line."""
        return replace(self, line=line)

    def inverse(self, dimension: Dimension) -> "Quantity":
        """Return 1 divided by it."""
        return replace(self, value=1 / self.value, low=1 / self.high, high=1 / self.low, dimension=dimension)

    def near(self, low: float, high: float, slack: float = 0.0) -> bool:
        """Return whether it can lie within an interval, widened by a share of it."""
        return self.high >= low * (1 - slack) and self.low <= high * (1 + slack)

    def chosen(self) -> "Quantity":
        """Return it as a condition, which isn't rounded; what remains open is how large its unit is."""
        return replace(self, low=self.value, high=max(self.value, self.high - (self.value - self.low)))

    @property
    def digits(self) -> str:
        """Its significant digits, as they were written."""
        match = re.search(r"[\d.,']+", self.text)
        return re.sub(r"\D", "", match[0]).lstrip("0") if match else ""

    @property
    def shown(self) -> str:
        """It, in the unit of its dimension."""
        match self.dimension:
            case "time":
                return seconds(self.value)
            case "rate":
                return f"{plain(self.value)}/s"
            case "bandwidth":
                return megabits(self.value)
            case "size":
                return size(self.value)
            case "percent":
                return f"{figures.plain(self.value)}%"
        return plain(self.value)


def exactly(value: float, text: str, dimension: Dimension = "number") -> Quantity:
    """Return a figure that isn't rounded: a condition, which was chosen and not measured."""
    return Quantity(value, value, value, dimension, text)


def unit_of(text: str) -> tuple[Unit | None, bool]:
    """Return a unit, and whether it is that of each of something; a rate may be of anything: requests/s, timers per second."""
    text = re.sub(r"\s", "", text.strip("[]() ").replace("µ", "u").replace("μ", "u").replace(" per ", "/")).replace(
        "×", "x"
    )
    above, slash, below = text.partition("/")
    if slash and below.lower() in SECOND:
        return UNITS.get(f"{above}/s") or (None if above.lower() in UNITS else ("rate", 1.0, 1.0)), False
    found = UNITS.get(above) or UNITS.get(above.lower())
    if slash:
        return (found, True) if found and found[0] in ("time", "size") and below.isalpha() else (None, False)
    return found, False


def find(text: str, default: Unit | None = None, start: int = 0) -> tuple[Quantity, int] | None:
    """Return the figure that begins at a place in a text, and where it ends. A range such as 1-2 KB is one, too."""
    match = FIGURE.match(text, start)
    if not match:
        return None
    if further := re.match(r"\s?[-–]\s?(?=\d)", text[match.end("number") :]):
        last = find(text, default, match.end("number") + further.end())
        first = float(re.sub(r"[,']", "", match["number"]))
        written = float(re.sub(r"[^\d.]", "", re.split(r"[A-Za-zµ%×\s]", last[0].text)[0]) or 0) if last else 0.0
        if not last or first >= written:  # A date, a version.
            return None
        low = last[0].value * first / written
        return replace(last[0], value=(low + last[0].value) / 2, low=low, text=text[start : last[1]]), last[1]
    number = match["number"]
    if re.fullmatch(r"\d+,(?!\d{3}$)\d+", number):
        number = number.replace(",", ".")
    number = re.sub(r"[,']", "", number)
    value, places = float(number), len(number.partition("e")[0].partition(".")[2])
    half = 0.5 * 10.0**-places + (ABOUT * value if match["about"] else 0.0)
    unit, each = unit_of(match["unit"] or "")
    noun = "" if unit else (match["unit"] or "").lower()
    dimension, smallest, largest = unit or default or ("number", 1.0, 1.0)
    scale = SUFFIXES.get((match["suffix"] or "").strip(), 1.0)
    end = match.end("unit") if unit else match.end("suffix") if match["suffix"] else match.end("number")
    low, high, value = (value - half) * scale * smallest, (value + half) * scale * largest, value * scale * smallest
    if match["sign"] and match["sign"].strip() in "-−–":
        low, high, value = -high, -low, -value
    return Quantity(value, low, high, dimension, text[match.start() : end].strip(), each, noun), end


def read(text: str, default: Unit | None = None) -> Quantity | None:
    """Return the figure that a text begins with, after marks, symbols and signs such as '$' or an emoji."""
    start = re.match(r"[^\w~≈+\-−–<>≤≥(]*", text)
    found = find(text, default, start.end() if start else 0)
    return found[0] if found else None


def seconds(value: float) -> str:
    """Write a time."""
    return figures.latency(value * 1e9)


def size(value: float) -> str:
    """Write a number of bytes."""
    for factor, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "KB")):
        if abs(value) >= factor:
            return f"{figures.significant(value / factor, 4)} {unit}"
    return f"{value:.0f} bytes"


def megabits(value: float) -> str:
    """Write bytes per second as what networks are measured in."""
    return f"{figures.significant(value * 8 / 1e6, 4)} Mbps"


def plain(value: float) -> str:
    """Write a number with as many digits as a reader can check."""
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else figures.significant(value, 4)
