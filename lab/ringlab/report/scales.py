"""From figures to places on paper: what all charts share."""

import math
from dataclasses import dataclass

LINEAR_STEPS = (1, 2, 2.5, 5, 10)
DECADE_STEPS = ((1,), (1, 3), (1, 2, 5))
"""Marks within a decade of a logarithmic axis, from few to many."""
RATIO_STEPS = (0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0)
"""Distances of the marks of an axis of ratios."""


@dataclass(frozen=True)
class Axis:
    """Where a value lies between two places, on a linear or a logarithmic scale."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        """Return the place of a value; what lies outside goes to the nearer end."""
        value = min(max(value, self.low), self.high)
        if self.high <= self.low:
            return (self.start + self.end) / 2
        if self.logarithmic:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)


def linear_marks(low: float, high: float, most: int = 6) -> list[float]:
    """Return round values from `low` to `high`, at most about `most` of them."""
    if not high > low:
        return [low]
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in LINEAR_STEPS if factor * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [index * step for index in range(first, math.floor(high / step + 1e-9) + 1)]


def logarithmic_marks(low: float, high: float, most: int = 7) -> list[float]:
    """Return round values from `low` to `high`, both above 0, that are about evenly apart on a logarithmic axis."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    found: list[float] = []
    for steps in DECADE_STEPS:
        marks = [step * 10.0**decade for decade in range(first, last + 1) for step in steps]
        within = [mark for mark in marks if low * 0.999 <= mark <= high * 1.001]
        if found and len(within) > most:
            break
        found = within
    return found if len(found) >= 2 else linear_marks(low, high, most)


def ratio_marks(low: float, high: float, most: int = 7) -> list[float]:
    """Return round values around 1 that lie from `low` to `high`."""
    step = next((step for step in RATIO_STEPS if (high - low) / step <= most), RATIO_STEPS[-1])
    first, last = math.ceil((low - 1) / step - 1e-9), math.floor((high - 1) / step + 1e-9)
    return [1 + index * step for index in range(first, last + 1)]
