"""Verdicts from rounds.

A machine drifts from minute to minute by more than what is compared, and within a round by less. So every round runs every
arm, and what counts is the logarithm of the ratio of two arms within a round. Rounds are independent of each other;
requests within a sample are not, and are never resampled.

- The estimate is the mean of the rounds' log-ratios, as a ratio: their geometric mean. From TRIMMED_FROM rounds on a fifth is
  trimmed at each end, because on a shared machine now and then a round is spoilt for one arm.
- Its interval comes from a bootstrap over rounds of Student's statistic (bootstrap-t: Efron and Tibshirani, An Introduction to
  the Bootstrap, chapter 12). Fewer than TRIMMED_FROM rounds can't be resampled usefully, and Student's own distribution serves. Of few
  rounds some resamples are nearly equal, which now and then makes it several times too wide: so it ends where the rounds end. That all
  of them lie on one side of the true median is less likely than 2%. In simulations, with noise that is normal, skewed, or spoilt in a
  tenth of the rounds, it holds the truth as often as before (95 to 97%), and is shorter by a fifth to a third with 7 rounds.
- Its probability comes from Yuen's test for trimmed means (Biometrika 61, 1974), which with nothing trimmed is Student's: a bootstrap
  can't resolve the small probabilities that Holm's correction for many arms asks for.
- A second copy of the baseline, the A/A arm, shows what the machine makes of no difference at all: the noise floor.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeGuard

import numpy as np
from numpy.typing import NDArray

Series = Sequence[float | None]
"""One figure of one arm by round; None where it wasn't measured."""

CONFIDENCE = 0.95
MARGIN = 0.02
"""A smaller difference is none, in however many rounds it shows: the layout of a process in memory alone can make it."""
TIE_MARGIN = 0.05
"""Two arms tie if they certainly differ by less; also, the width of the A/A interval raises the floor up to this, not further."""
LEVELS = (CONFIDENCE, 2 * CONFIDENCE - 1)
"""Of the interval that is shown, and of that of two one-sided tests."""
POWER = 0.8
RESAMPLES = 4000
TRIM = 0.2
TRIMMED_FROM = 7
ROUNDS_LEAST = 3
"""With fewer rounds there is no verdict."""
ROUNDS_MOST = 1000
"""More are nobody's plan."""
SPREAD_LEAST = 1e-9
"""Log-ratios that are nearer to each other than this are equal but for the rounding of floats."""
LOG_MOST = math.log(1e9)
"""No interval reaches further: what is not known to a factor of 1e9 is not known, and JSON has no infinity."""

Standing = Literal["below", "above", "tie", "cannot tell"]
Interval = tuple[float, float]


@dataclass(frozen=True)
class Estimate:
    """The ratio of two arms over the rounds that have both."""

    log_ratio: float
    standard_error: float
    rounds: int
    freedom: int
    """Degrees of freedom: the rounds that weren't trimmed, less one."""
    interval: Interval
    """The ratios between which the true one lies with CONFIDENCE."""
    interval_inner: Interval
    """The same at the confidence of two one-sided tests, 2 * CONFIDENCE - 1: 90%."""

    @property
    def ratio(self) -> float:
        """The (trimmed) geometric mean of the rounds' ratios."""
        return math.exp(self.log_ratio)

    @property
    def p(self) -> float:
        """The probability of a ratio at least so far from 1, where the arms are equal."""
        if self.freedom < 1:
            return 1.0
        if self.standard_error == 0:
            return 1.0 if self.log_ratio == 0 else 0.0
        return 2 * student_tail(abs(self.log_ratio) / self.standard_error, self.freedom)


def log_ratios(numerators: Series, denominators: Series) -> NDArray[np.float64]:
    """Return log(numerator / denominator) of each round that has both, as figures above 0."""
    return np.array([math.log(ratio) for ratio in ratios_by_round(numerators, denominators) if ratio is not None])


def ratios_by_round(numerators: Series, denominators: Series) -> list[float | None]:
    """Return the ratio of each round, None where one of the two is missing, or is no figure above 0."""
    pairs = zip(numerators, denominators, strict=True)
    return [above / below if is_positive(above) and is_positive(below) else None for above, below in pairs]


def is_positive(value: float | None) -> TypeGuard[float]:
    """Whether a value is a finite number above 0."""
    return value is not None and 0 < value < math.inf


def trimmed(logs: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64], int]:
    """Return the trimmed mean along the last axis, its standard error from the winsorized rest, and the rounds that count."""
    rounds = logs.shape[-1]
    cut = int(TRIM * rounds) if rounds >= TRIMMED_FROM else 0
    rest = rounds - 2 * cut
    ordered = np.sort(logs, axis=-1)
    mean = ordered[..., cut : rounds - cut].mean(axis=-1)
    winsorized = np.clip(ordered, ordered[..., cut : cut + 1], ordered[..., rounds - cut - 1 : rounds - cut])
    squares = ((winsorized - winsorized.mean(axis=-1, keepdims=True)) ** 2).sum(axis=-1)
    spread = winsorized.max(axis=-1) - winsorized.min(axis=-1)
    return mean, np.where(spread > SPREAD_LEAST, np.sqrt(squares / (rest * (rest - 1))), 0.0), rest


def estimate(logs: NDArray[np.float64], seed: int = 0) -> Estimate | None:
    """Return the ratio that these log-ratios, one a round, tell of; None without any."""
    rounds = len(logs)
    if rounds == 0:
        return None
    if rounds == 1:
        unknown = interval(-math.inf, math.inf)
        return Estimate(float(logs[0]), math.inf, 1, 0, unknown, unknown)
    means, errors, rest = trimmed(logs)
    mean, error = float(means), float(errors)
    reaches, ends = None, (-math.inf, math.inf)
    if rounds >= TRIMMED_FROM and error > 0:
        reaches, ends = resampled_reaches(logs, mean, seed), (float(logs.min()), float(logs.max()))
    if reaches is None:
        reaches = [student_quantile(0.5 + level / 2, rest - 1) for level in LEVELS]
    outer, inner = (
        interval(max(mean - reach * error, ends[0]), min(mean + reach * error, ends[1])) for reach in reaches
    )
    return Estimate(mean, error, rounds, rest - 1, outer, inner)


def resampled_reaches(logs: NDArray[np.float64], mean: float, seed: int) -> list[float] | None:
    """Return how many standard errors a mean may be off at each of LEVELS, by a bootstrap; None where that says nothing.

    A resample whose rounds are all equal says nothing of how far its mean may be off. Figures that repeat exactly, like latencies
    from a histogram, give many of these.
    """
    random = np.random.default_rng(seed)
    means, errors, _ = trimmed(logs[random.integers(len(logs), size=(RESAMPLES, len(logs)))])
    off = np.full(RESAMPLES, math.inf)
    np.divide(np.abs(means - mean), errors, out=off, where=errors > 0)
    found = [float(each) for each in np.quantile(off, LEVELS, method="higher")]
    return found if all(map(math.isfinite, found)) else None


def interval(low: float, high: float) -> Interval:
    """Return the ratios of two logarithms, of which none is 0 or infinite."""
    return math.exp(max(low, -LOG_MOST)), math.exp(min(high, LOG_MOST))


def holm(probabilities: Sequence[float]) -> list[float]:
    """Return the probabilities adjusted by Holm's step-down method, in the given order."""
    adjusted = [0.0] * len(probabilities)
    running = 0.0
    order = sorted(range(len(probabilities)), key=lambda index: probabilities[index])
    for rank, index in enumerate(order):
        running = max(running, min(1.0, (len(probabilities) - rank) * probabilities[index]))
        adjusted[index] = running
    return adjusted


def noise_floor(again: Estimate | None, margin: float = MARGIN) -> float:
    """Return the relative difference below which nothing is told apart, from the A/A arm's estimate.

    It is how far from 1 the A/A ratio may lie, but at least the margin and at most TIE_MARGIN; and never less than where it lies:
    what is no larger than the difference between two copies of one arm is none.
    """
    if again is None or again.rounds < 2:
        return margin
    low, high = again.interval
    return max(min(max(margin, high - 1, 1 / low - 1), max(margin, TIE_MARGIN)), math.expm1(abs(again.log_ratio)))


def judge(found: Estimate, p_adjusted: float, floor: float) -> Standing:
    """Say on which side of 1 the true ratio lies, or that it is 1 but for the noise, or that these rounds don't tell.

    A side needs a probability below 5% after Holm's correction, an interval without 1, and an estimate beyond the noise floor. A tie
    needs both ends of the 90% interval within TIE_MARGIN (two one-sided tests at 5% each), and a floor that isn't beyond it: where
    two copies of one arm differ by more, equal figures don't show equal arms.
    """
    if found.rounds < ROUNDS_LEAST:
        return "cannot tell"
    low, high = found.interval
    if p_adjusted < 1 - CONFIDENCE and not low <= 1 <= high and abs(found.log_ratio) > math.log1p(floor):
        return "below" if found.log_ratio < 0 else "above"
    low, high = found.interval_inner
    if max(1 / low, high) <= 1 + TIE_MARGIN and floor <= TIE_MARGIN:
        return "tie"
    return "cannot tell"


def rounds_needed(found: Estimate, floor: float, comparisons: int = 1) -> int | None:
    """Return how many rounds would likely give a verdict, if the estimate and the noise stay what they are.

    None if no number up to ROUNDS_MOST would: the difference lies at the border of what counts as one.
    """
    if found.freedom < 1:
        return ROUNDS_LEAST
    deviation = found.standard_error * math.sqrt(found.rounds)
    size = abs(found.log_ratio)
    # Each way to a verdict: the probability that stays outside, and how far the estimate is from the border.
    ways = [(1 - CONFIDENCE, math.log1p(TIE_MARGIN) - size)] if floor <= TIE_MARGIN else []
    if size > math.log1p(floor):
        ways.append(((1 - CONFIDENCE) / 2 / comparisons, size))
    for rounds in range(max(ROUNDS_LEAST, found.rounds + 1), ROUNDS_MOST + 1):
        for tail, distance in ways:
            reach = student_quantile(1 - tail, rounds - 1) + student_quantile(POWER, rounds - 1)
            if reach * deviation / math.sqrt(rounds) <= distance:
                return rounds
    return None


def student_tail(t: float, freedom: int) -> float:
    """Return the probability that Student's t with so many degrees of freedom is greater than `t`, which is at least 0."""
    return 0.5 * incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t))


@functools.cache
def student_quantile(probability: float, freedom: int) -> float:
    """Return what Student's t stays below with this probability, of 0.5 to 1."""
    low, high = 0.0, 1.0
    while 1 - student_tail(high, freedom) < probability:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        if 1 - student_tail(middle, freedom) < probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def incomplete_beta(a: float, b: float, x: float) -> float:
    """Return the regularized incomplete beta function, by its continued fraction (DLMF 8.17.22, Lentz's algorithm)."""
    if x <= 0:
        return 0.0
    if x >= 1:
        return 1.0
    if x > (a + 1) / (a + b + 2):
        return 1 - incomplete_beta(b, a, 1 - x)
    tiny = 1e-300
    scale = math.exp(a * math.log(x) + b * math.log1p(-x) - math.lgamma(a) - math.lgamma(b) + math.lgamma(a + b)) / a
    c, d = 1.0, 1 / guarded(1 - (a + b) * x / (a + 1), tiny)
    fraction = d
    for step in range(1, 300):
        even = step * (b - step) * x / ((a + 2 * step - 1) * (a + 2 * step))
        odd = -(a + step) * (a + b + step) * x / ((a + 2 * step) * (a + 2 * step + 1))
        for numerator in (even, odd):
            d = 1 / guarded(1 + numerator * d, tiny)
            c = guarded(1 + numerator / c, tiny)
            fraction *= c * d
        if abs(c * d - 1) < 1e-14:
            break
    return scale * fraction


def guarded(value: float, tiny: float) -> float:
    """Return the value, or something that can be divided by where it is 0."""
    return value if abs(value) > tiny else tiny
