"""Ratios of two arms that were measured in the same rounds.

A machine drifts from minute to minute by more than what is compared; within a round it drifts less.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

Series = Sequence[float | None]
"""One figure of one arm, by round; None where the arm failed."""


@dataclass(frozen=True)
class Ratio:
    """The median of the ratios within rounds, and the smallest and the greatest of them."""

    median: float
    low: float
    high: float
    rounds: int

    def __str__(self) -> str:
        text = f"{show(self.median)}"
        return f"{text} ({show(self.low)}..{show(self.high)})" if self.rounds > 1 else text

    def certainly_below(self, limit: float) -> bool:
        """Every round says so."""
        return self.high < limit

    def certainly_above(self, limit: float) -> bool:
        """Every round says so."""
        return self.low > limit


def show(value: float) -> str:
    """Three significant digits, without an exponent."""
    magnitude = abs(value)
    if magnitude >= 100:
        return f"{value:,.0f}"
    if magnitude >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}"


def paired(numerators: Series, denominators: Series) -> Ratio | None:
    """Return numerator / denominator over the rounds that have both, or None if there is none (or only with zeros)."""
    found = [
        numerator / denominator
        for numerator, denominator in zip(numerators, denominators, strict=False)
        if numerator is not None and denominator
    ]
    if not found:
        return None
    return Ratio(statistics.median(found), min(found), max(found), len(found))


def paired_difference(minuends: Series, subtrahends: Series) -> Ratio | None:
    """Return the same statistics of minuend - subtrahend."""
    pairs = zip(minuends, subtrahends, strict=False)
    found = [minuend - subtrahend for minuend, subtrahend in pairs if minuend is not None and subtrahend is not None]
    if not found:
        return None
    return Ratio(statistics.median(found), min(found), max(found), len(found))


def spread(series: Series) -> Ratio | None:
    """Return the same statistics of a figure by itself."""
    found = [value for value in series if value is not None]
    return Ratio(statistics.median(found), min(found), max(found), len(found)) if found else None


def median(series: Series) -> float | None:
    """Return the median of the rounds that have a figure."""
    found = [value for value in series if value is not None]
    return statistics.median(found) if found else None
