"""Steps in a series of figures: at which runs did a figure change for good?

Runs that follow each other are alike: the machine that was slow yesterday is slow today. So a figure wanders, and a test that takes
runs for independent finds steps where nothing has changed. Here a step must be larger than such wandering makes it.

- What is looked at is Student's t of the means before and after a split, with the residuals' own correlation between neighbours taken
  off (the effective sample size of an AR(1) process). The split with the greatest t is the candidate.
- How great that becomes without a step is simulated, for series of the same length of which each value keeps a share of the one
  before (CORRELATIONS, from none to 0.9). The step counts if fewer than SIGNIFICANT of the simulated series have such a t, whatever
  the share is. So white noise gives fewer false steps still.
- Then both sides are searched in the same way (binary segmentation: Vostrikova 1981).
- One spoilt run is no step, and hides none: a value far away from both neighbours is drawn to the nearer one first (Hampel's filter), in
  the simulated series as well.

What is found is a step only if it exceeds the noise: what two copies of one arm show as a difference over the same runs, and what
the figures are at least if some of them are bounds.

lab/tests/test_trend.py counts the false steps of series that wander.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ringlab import statistics
from ringlab.deferred import np

if TYPE_CHECKING:
    from numpy.typing import NDArray

SIGNIFICANT = 0.05
CORRELATIONS = (0.0, 0.3, 0.5, 0.7, 0.8, 0.9)
"""Of neighbours, in the simulated series. Nearer to 1 a series is a random walk, in which every value is a step."""
SIMULATED = 1999
"""Series of each correlation: the smallest probability is a two-thousandth."""
SPOILT = 4.0
"""How far a value is drawn back, in robust standard deviations of values from their neighbours: only a spoilt one is as far."""
SEGMENT_MIN = 3
"""Runs on either side of a step; fewer may be an accident."""
HALVES_FROM = 24
"""Runs from which on parts of a series are looked at as well."""
CHANGE_MIN = 0.02
"""A smaller step is none: the layout of a process in memory alone can make it."""
SPREAD_MIN = 1e-7
"""Values that are nearer to each other than this are equal but for the rounding of floats."""


@dataclass(frozen=True)
class Step:
    """A change for good: from the run at `index` on, the figure is `ratio` times what it was."""

    index: int
    ratio: float
    p: float


@dataclass(frozen=True)
class Noise:
    """The evidence of one run for how far a figure of its own can be trusted."""

    again: float | None = None
    """The ratio of the same figure between two copies of one arm; None where there was no copy."""
    may_be_more: bool = False
    """The figure is only known to be at least what it is."""
    may_be_less: bool = False


def find(values: Sequence[float], noise: Sequence[Noise] = ()) -> list[Step]:
    """Return the steps in a series of figures above 0, with the noise of each if it is known."""
    if any(not (0 < value < math.inf) for value in values):
        raise ValueError("a series of figures must be finite and above 0")
    logs = np.log(np.asarray(values, dtype=np.float64))
    noise = noise or [Noise()] * len(values)
    splits = sorted(search(logs, 0, len(logs)))
    edges = [0, *(index for index, _ in splits), len(logs)]
    found = []
    for number, (index, p) in enumerate(splits, 1):
        before, after = slice(edges[number - 1], index), slice(index, edges[number + 1])
        change = float(np.median(logs[after]) - np.median(logs[before]))
        floor = noise_floor(noise[before], noise[after])
        if least_change(logs, noise, before, after, change) > math.log1p(floor):
            found.append(Step(index, math.exp(change), p))
    return found


def noise_floor(before: Sequence[Noise], after: Sequence[Noise]) -> float:
    """Return the change that is none, as a share: what the copies of one arm differ by on either side, and how far that moved."""
    floor, means = CHANGE_MIN, []
    for side in (before, after):
        found = statistics.estimate(np.array([math.log(each.again) for each in side if each.again is not None]))
        if found is not None:
            floor = max(floor, statistics.noise_floor(found, CHANGE_MIN))
            means.append(found.log_ratio)
    return max(floor, math.expm1(abs(means[1] - means[0]))) if len(means) == 2 else floor


def least_change(
    logs: NDArray[np.float64], noise: Sequence[Noise], before: slice, after: slice, change: float
) -> float:
    """Return how large a change is at least, in its direction, if figures that are only bounds lie where that makes it smallest."""
    up = change > 0
    larger = np.array([np.inf if each.may_be_more else 0.0 for each in noise])
    smaller = np.array([-np.inf if each.may_be_less else 0.0 for each in noise])
    first, last = (larger, smaller) if up else (smaller, larger)
    least = float(np.median(logs[after] + last[after]) - np.median(logs[before] + first[before]))
    return least if up else -least


def search(logs: NDArray[np.float64], begin: int, end: int) -> list[tuple[int, float]]:
    """Return the splits between two places, each with its probability."""
    count = end - begin
    # Another step looks like wandering, so of a long series the halves, with one around the middle, are looked at as well.
    half = (count + 1) // 2
    parts = [(begin, end)]
    if count >= HALVES_FROM:
        parts += [(at, at + half) for at in (begin, begin + (count - half) // 2, end - half)]
    p, split = min((best_split(logs, *part) for part in parts), default=(1.0, 0))
    p = min(1.0, len(parts) * p)
    if p > SIGNIFICANT:
        return []
    return [*search(logs, begin, split), (split, p), *search(logs, split, end)]


def best_split(logs: NDArray[np.float64], begin: int, end: int) -> tuple[float, int]:
    """Return the split between two places that is least likely by chance, after its probability."""
    count = end - begin
    if count < 2 * SEGMENT_MIN or np.ptp(logs[begin:end]) == 0:
        return 1.0, begin
    found = student(logs[np.newaxis, begin:end])[0]
    best = int(np.argmax(found))
    # The most unfavourable correlation decides.
    greater = int(np.sum(greatest(count) >= found[best], axis=1).max())
    return (1 + greater) / (SIMULATED + 1), begin + SEGMENT_MIN + best


@functools.cache
def greatest(count: int) -> NDArray[np.float64]:
    """Return the greatest t of each simulated series of this length that has no step: a row for each correlation."""
    random = np.random.default_rng(count)
    found = []
    for correlation in CORRELATIONS:
        # What is before the first value has no end: it starts as far from the mean as all others are.
        values = random.standard_normal((SIMULATED, count))
        values[:, 0] /= math.sqrt(1 - correlation**2)
        for place in range(1, count):
            values[:, place] += correlation * values[:, place - 1]
        found.append(student(values).max(axis=1))
    return np.array(found)


def student(series: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return, for each row and each split, Student's t of the difference between both sides, for residuals that are AR(1)."""
    values = unspoilt(series)
    count = values.shape[1]
    splits = np.arange(SEGMENT_MIN, count - SEGMENT_MIN + 1)
    squares, products = np.zeros((len(values), len(splits))), np.zeros((len(values), len(splits)))
    means = []
    for side, sizes in ((values, splits), (values[:, ::-1], count - splits)):
        # Of the first `size` values of a side: their sum, their squares, and their products with their neighbours.
        last = sizes - 1
        mean = np.cumsum(side, axis=1)[:, last] / sizes
        squares += np.cumsum(side**2, axis=1)[:, last] - sizes * mean**2
        ends = side[:, :1] + side[:, last]
        neighbours = np.cumsum(side[:, 1:] * side[:, :-1], axis=1)[:, last - 1]
        products += neighbours - mean * (2 * sizes * mean - ends) + last * mean**2
        means.append(mean)
    squares = np.maximum(squares, SPREAD_MIN**2)
    correlation = np.clip(products / squares, 0, CORRELATIONS[-1])
    error = np.sqrt(squares / (count - 2) * (1 / splits + 1 / (count - splits)))
    found: NDArray[np.float64] = np.abs(means[0] - means[1]) / error * np.sqrt((1 - correlation) / (1 + correlation))
    return found


def unspoilt(series: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return each row with values that are far from the median of themselves and both neighbours drawn near to it."""
    padded = np.pad(series, ((0, 0), (1, 1)), mode="edge")
    middle = np.median(np.lib.stride_tricks.sliding_window_view(padded, 3, axis=1), axis=2)
    away = np.abs(series - middle)
    reach = SPOILT * np.array([np.median(row[row > 0]) if row.any() else 0.0 for row in away])[:, np.newaxis]
    found: NDArray[np.float64] = np.clip(series, middle - reach, middle + reach)
    found -= found.mean(axis=1, keepdims=True)
    return found
