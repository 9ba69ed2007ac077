"""Steps in a series of figures: at which runs did a figure change for good?

A series is split where the means of the ranks before and after differ most, and the split counts if the same series in random
order shows such a difference in at most SIGNIFICANT of the cases (a permutation test of the greatest weighted CUSUM of ranks). Then
both sides are searched in the same way (binary segmentation: Vostrikova 1981; with permutations: Matteson and James, Journal
of the American Statistical Association 109, 2014). Ranks make one spoilt run harmless. The test assumes nothing about the
noise but that the order of runs doesn't matter if nothing has changed, so it holds for few runs as well as for many.

What is found is a step only if it exceeds the noise: what two copies of one arm show as a difference over the same runs, and what
the figures are at least if some of them are bounds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ringlab import statistics
from ringlab.deferred import np

if TYPE_CHECKING:
    from numpy.typing import NDArray

SIGNIFICANT = 0.01
PERMUTATIONS = 1999
SEGMENT_MIN = 3
"""Runs on either side of a step; fewer may be an accident."""
CHANGE_MIN = 0.02
"""A smaller step is none: the layout of a process in memory alone can make it."""


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


def find(values: Sequence[float], noise: Sequence[Noise] = (), seed: int = 0) -> list[Step]:
    """Return the steps in a series of figures above 0, with the noise of each if it is known."""
    if any(not (0 < value < math.inf) for value in values):
        raise ValueError("a series of figures must be finite and above 0")
    logs = np.log(np.asarray(values, dtype=np.float64))
    noise = noise or [Noise()] * len(values)
    splits = sorted(search(logs, 0, len(logs), np.random.default_rng(seed)))
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


def search(logs: NDArray[np.float64], begin: int, end: int, random: np.random.Generator) -> list[tuple[int, float]]:
    """Return the splits between two places, each with its probability."""
    count = end - begin
    if count < 2 * SEGMENT_MIN:
        return []
    ranks = ranked(logs[begin:end])
    if np.ptp(ranks) == 0:
        return []
    observed = cusum(ranks[np.newaxis])[0]
    best = int(np.argmax(observed))
    shuffled = random.permuted(np.tile(ranks, (PERMUTATIONS, 1)), axis=1)
    greater = int(np.sum(cusum(shuffled).max(axis=1) >= observed[best] - 1e-9))
    p = (greater + 1) / (PERMUTATIONS + 1)
    if p > SIGNIFICANT:
        return []
    split = begin + SEGMENT_MIN + best
    return [*search(logs, begin, split, random), (split, p), *search(logs, split, end, random)]


def ranked(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the ranks, the mean of them where values are equal."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks: NDArray[np.float64] = ((2 * ends - counts - 1) / 2)[places]
    return ranks


def cusum(ranks: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return, for each row and each split, how far apart the mean ranks of both sides are, weighted by their sizes."""
    count = ranks.shape[1]
    sums = np.cumsum(ranks - ranks.mean(axis=1, keepdims=True), axis=1)
    splits = np.arange(SEGMENT_MIN, count - SEGMENT_MIN + 1)
    weights = np.sqrt(count / (splits * (count - splits)))
    weighted: NDArray[np.float64] = np.abs(sums[:, splits - 1]) * weights
    return weighted
