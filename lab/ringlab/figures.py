"""Figures as text: each is written the same way in a sentence, a table and a chart."""

import math
from collections.abc import Callable

TIMES_FROM = 2.0
"""A ratio from here on is told in times, a smaller one in percent."""
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


def ratio(value: float) -> str:
    """Return a ratio with its significant digits."""
    return f"{value:.3f}" if 0.9 < value < 1.1 else significant(value)


def compared(value: float, interval: tuple[float, float] | None = None, *, whole: bool = True) -> str:
    """Return how a figure compares with another one, given their ratio; the interval decides on the digits, and is shown if `whole`.

    11% more (5 to 18%), 37% less (30 to 42%), 1% more (3% less to 6% more), 8.7 times (8.2 to 9.3).
    """
    low, high = interval or (value, value)
    if value >= TIMES_FROM:
        # As many digits as tell the three apart.
        digits = 2 if interval is None or len({significant(each, 2) for each in (value, low, high)}) == 3 else 3
        parts = [significant(each, digits) if each >= 0.1 else "0" for each in (value, low, high)]
        return f"{parts[0]} times ({parts[1]} to {parts[2]})" if interval and whole else f"{parts[0]} times"
    wide = high - low >= 0.02 or (interval is None and abs(value - 1) >= 0.1)
    # None that isn't 0 is written as 0.
    decimals = 0 if wide and min(abs(each - 1) for each in (value, low, high)) >= 0.005 else 1

    def percent_of(part: float) -> str:
        return f"{100 * abs(part - 1):.{decimals}f}%"

    def direction(part: float) -> str:
        return "more" if part >= 1 else "less"

    told = f"{percent_of(value)} {direction(value)}" if float(percent_of(value)[:-1]) else "the same"
    if interval is None or not whole:
        return told
    if high >= TIMES_FROM:
        return f"{told} ({percent_of(low)} {direction(low)} to {significant(high, 2)} times)"
    if low >= 1 or high <= 1:
        least, most = sorted((low, high), key=lambda part: abs(part - 1))
        return f"{told} ({percent_of(least)[:-1]} to {percent_of(most)})"
    return f"{told} ({percent_of(low)} less to {percent_of(high)} more)"
