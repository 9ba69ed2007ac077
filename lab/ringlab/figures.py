"""Figures as text: each is written the same way in a sentence, a table and a chart."""

import math
from collections.abc import Callable

NANOSECONDS = ((1e9, "s"), (1e6, "ms"), (1e3, "us"), (1.0, "ns"))


def significant(value: float, digits: int = 3) -> str:
    """Return a figure with this many significant digits and thousands separators: 1,230,000 and 0.0123."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else "none"
    # Rounded first: a value that rounds up to the next power of ten has one more digit before the point.
    magnitude = math.floor(math.log10(abs(float(f"{value:.{digits - 1}e}"))))
    rounded = round(value, digits - 1 - magnitude)
    return f"{rounded:,.{max(0, digits - 1 - magnitude)}f}"


def plain(value: float) -> str:
    """Return a figure without zeros at its end: a mark on an axis, a count."""
    written = significant(value)
    return written.rstrip("0").rstrip(".") if "." in written else written


def latency(value_ns: float, write: Callable[[float], str] = significant) -> str:
    """Return a time with the unit that suits it."""
    for factor, unit in NANOSECONDS:
        if abs(value_ns) >= factor:
            return f"{write(value_ns / factor)} {unit}"
    return f"{write(value_ns)} ns"


def in_unit(value: float, unit: str) -> str:
    """Return a figure with its unit; a time in ns gets the one that suits it."""
    return latency(value) if unit == "ns" else f"{significant(value)} {unit}".rstrip()


def counted(number: int, what: str) -> str:
    """Return '1 thing' or 'N things'."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def percent(share: float) -> str:
    """Return a share of 1 as percent: 0.034 is 3.4%."""
    return f"{significant(100 * share, 2)}%"


def difference(value: float) -> str:
    """Return how far a ratio is from 1: both 1.042 and 0.958 are 4.2% away."""
    return percent(abs(value - 1))


def ratio(value: float) -> str:
    """Return a ratio with its significant digits."""
    return f"{value:.3f}" if 0.9 < value < 1.1 else significant(value)


def ratio_within(value: float, low: float, high: float) -> str:
    """Return a ratio and its interval, with the decimals that tell the three apart: 0.952 (0.941 to 0.963), 2.4 (1.1 to 12.0)."""
    decimals = 0 if high >= 100 else 1 if high >= 10 else 2 if high >= 2 or high - low >= 0.1 else 3
    return f"{value:,.{decimals}f} ({low:,.{decimals}f} to {high:,.{decimals}f})"
