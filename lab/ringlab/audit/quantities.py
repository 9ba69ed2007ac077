"""Figures as reports write them: a number, its unit, and how far the true value may be from it.

A figure is an interval. "5.58 ms" stands for anything from 5.575 to 5.585 ms, and "1 KB" for 1,000 or 1,024 bytes. Two figures
contradict each other only if no values within their intervals agree, so that rounding never looks like a contradiction.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from ringlab import figures

Dimension = Literal["time", "rate", "bandwidth", "size", "percent", "factor", "number"]

ABOUT = 0.1
"""How far from it a figure may be that is called approximate."""
UNITS: dict[str, tuple[Dimension, float, float]] = {
    "ns": ("time", 1e-9, 1e-9),
    "us": ("time", 1e-6, 1e-6),
    "ms": ("time", 1e-3, 1e-3),
    "s": ("time", 1.0, 1.0),
    "sec": ("time", 1.0, 1.0),
    "secs": ("time", 1.0, 1.0),
    "second": ("time", 1.0, 1.0),
    "seconds": ("time", 1.0, 1.0),
    "min": ("time", 60.0, 60.0),
    "minute": ("time", 60.0, 60.0),
    "minutes": ("time", 60.0, 60.0),
    "%": ("percent", 1.0, 1.0),
    "x": ("factor", 1.0, 1.0),
    "bps": ("bandwidth", 0.125, 0.125),
    "b": ("size", 1.0, 1.0),
    "byte": ("size", 1.0, 1.0),
    "bytes": ("size", 1.0, 1.0),
}
"""By name: what is measured, and its size in seconds, bytes, or bytes per second; the smallest and the largest it is used for."""
for _index, _letter in enumerate("kmgt", 1):
    _small, _large = 1000.0**_index, 1024.0**_index
    for _name in (f"{_letter}bps", f"{_letter}bit/s", f"{_letter}b/s bits"):
        UNITS[_name] = ("bandwidth", _small / 8, _small / 8)
    # Programs write MB for both 10^6 and 2^20 bytes.
    UNITS[f"{_letter}b"] = ("size", _small, _large)
    UNITS[f"{_letter}ib"] = ("size", _large, _large)
    UNITS[f"{_letter}b/s"] = UNITS[f"{_letter}bytes/s"] = UNITS[f"{_letter}byps"] = ("bandwidth", _small, _large)
    UNITS[f"{_letter}ib/s"] = ("bandwidth", _large, _large)
for _name in ("/s", "/sec", "/second", "rps", "qps", "iops", "hz"):
    UNITS[_name] = ("rate", 1.0, 1.0)
SUFFIXES = {"k": 1e3, "m": 1e6, "g": 1e9}

NUMBER = re.compile(
    r"(?<![\w.,])(?P<about>~|≈|about\s+|approximately\s+)?(?P<sign>[+\-−–]\s?)?"
    r"(?P<number>\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?)(?![\d,]*\d)"
    r"(?P<tail>\s*(?:[kKMG](?=\s*(?:req|ops?|msgs?|requests|messages|conn|/s|rps|qps|$|[\s|;,)]))(?!\s*[bB](?:it|yte|ps|/s|\b)))?)"
    r"(?P<unit>\s*(?:[⇅↓↑]\s*)?(?:(?:req(?:uest)?s?|ops?|operations|msgs?|messages|iterations|echoes|trips)?\s?/\s?s(?:ec(?:ond)?)?\b"
    r"|(?:requests|operations|messages)\s+per\s+second|[KMGTkmgt]?i?[Bb](?:ytes?)?/s(?:ec)?\b|[KMGTkmgt]bit/s\b|[KMGTkmgt]?[Bb]ps\b"
    r"|rps\b|qps\b|iops\b|[nuµμm]s\b|s(?:ec(?:ond)?s?)?\b|min(?:ute)?s?\b|[KMGTkmgt]i?B\b|[Bb]ytes?\b|B\b|%|x\b|×))?"
)


@dataclass(frozen=True)
class Quantity:
    """A figure: between `low` and `high`, and written as `text`. In seconds, bytes, per second, percent, or as it is."""

    value: float
    low: float
    high: float
    dimension: Dimension
    text: str

    def scaled(self, factor: float, dimension: Dimension) -> "Quantity":
        """Return it in another unit."""
        return replace(
            self, value=self.value * factor, low=self.low * factor, high=self.high * factor, dimension=dimension
        )

    def meets(self, low: float, high: float) -> bool:
        """Return whether it can lie within an interval."""
        return self.high >= low and self.low <= high

    @property
    def digits(self) -> int:
        """How many significant digits it was written with."""
        return len(re.sub(r"\D", "", self.text.partition("e")[0]).lstrip("0"))


def parse_unit(text: str) -> tuple[Dimension, float, float] | None:
    """Return what a unit measures, and how much it is; None if it isn't one."""
    text = text.strip().lstrip("⇅↓↑ ").replace("µ", "u").replace("μ", "u").replace("×", "x")
    if re.fullmatch(r"[KMGTkmgt]?Bps", text) and text[-3] == "B":
        return UNITS["bytes"] if len(text) == 3 else UNITS[f"{text[0].lower()}byps"]
    if re.fullmatch(r"[KMGTkmgt]b/s(ec)?", text):  # A small b is a bit.
        return UNITS[f"{text[0].lower()}bps"]
    lower = re.sub(r"\s+", "", text.lower())
    lower = re.sub(r"/s(ec|econd)?$", "/s", lower).replace("persecond", "/s")
    if lower in ("b/s", "bytes/s"):
        return "bandwidth", 1.0, 1.0
    if lower in UNITS:
        return UNITS[lower]
    if lower.endswith("/s") and re.fullmatch(
        r"(req|request|requests|reqs|op|ops|operations|msg|msgs|messages|iterations|echoes|trips)/s", lower
    ):
        return UNITS["/s"]
    return None


def parse(match: re.Match[str], unit: tuple[Dimension, float, float] | None = None, *, exact: bool = False) -> Quantity:
    """Return the figure of a match of NUMBER; `unit` is what it has if it is written without one, `exact` means not rounded."""
    number = match["number"]
    value = float(number.replace(",", ""))
    half = 0.0 if exact else 0.5 * 10.0 ** -len(number.partition(".")[2])
    suffix = SUFFIXES.get((match["tail"] or "").strip().lower(), 1.0)
    own = parse_unit(match["unit"]) if match["unit"] else None
    dimension, smallest, largest = own or unit or ("number", 1.0, 1.0)
    slack = ABOUT * value if match["about"] else 0.0
    sign = -1.0 if match["sign"] and match["sign"].strip() in "-−–" else 1.0
    low, high = (value - half - slack) * suffix * smallest, (value + half + slack) * suffix * largest
    if sign < 0:
        low, high = -high, -low
    return Quantity(sign * value * suffix * smallest, low, high, dimension, match[0].strip())


def find(text: str, unit: tuple[Dimension, float, float] | None = None) -> Iterator[tuple[re.Match[str], Quantity]]:
    """Yield the figures in a text, from left to right; ranges such as 5-7x aren't figures."""
    for match in NUMBER.finditer(text):
        yield match, parse(match, unit)


def setting(text: str, unit: tuple[Dimension, float, float] | None = None) -> Quantity | None:
    """Return the first figure in a text as a setting, which isn't rounded."""
    match = NUMBER.search(text)
    return parse(match, unit, exact=True) if match else None


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
