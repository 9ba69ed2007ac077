"""Verdicts from rounds.

Two things make a figure differ from one measurement to the next: the machine, which drifts by more within a second than what is
compared, and the process, which is a little faster or slower for as long as it lives. So there are two levels. In a round each
arm has a process of its own, and these take turns in short windows; what counts is the logarithm of the ratio of two windows that
follow each other at once. Their mean is the round's. Rounds, with fresh processes, are independent of each other, and windows
of one round are not: they say nothing about how much processes differ. So the verdict rests on how much the rounds' means scatter,
which has both in it, exactly so as long as each round has the same number of windows (a nested design with random processes: Montgomery,
Design and Analysis of Experiments, chapter 14). More windows make rounds scatter less, and never count as more rounds.

- The estimate is the mean of the rounds' log-ratios, as a ratio: their geometric mean. From TRIMMED_FROM rounds on a fifth is
  trimmed at each end, because on a shared machine now and then a round is spoilt for one arm.
- Its standard error is Yuen's for trimmed means (Biometrika 61, 1974), which with nothing trimmed is Student's.
- Three to nine rounds say little about how much an arm scatters, but its neighbours were measured in the same rounds. So the
  comparisons of a family share what they know of the scatter (Smyth, Statistical Applications in Genetics and Molecular Biology 3,
  2004): each variance is drawn towards the mean of all, the more the more alike they are, and gains degrees of freedom by it.
  Student's quantile for 17 comparisons in 3 rounds falls from 18 to 5.
- Probabilities are corrected by Holm's method for the number of comparisons in the family. An interval has the confidence that
  Holm's method asked of this comparison, so it contains 1 exactly where the probability is no verdict.
- A second copy of the baseline, the A/A arm, shows what the machine makes of no difference at all: the noise floor.

lab/tests/test_error_rates.py simulates runs with noise of several kinds, and counts how often equals are told apart.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeGuard

from ringlab.deferred import np, special

if TYPE_CHECKING:
    from numpy.typing import NDArray

Figure = float | tuple[float, ...]
"""One figure of one arm in one round: that of its sample, or those of its windows in their order."""
Series = Sequence[Figure | None]
"""One figure of one arm by round; None where it wasn't measured."""

CONFIDENCE = 0.95
MARGIN = 0.02
"""A smaller difference is none, in however many rounds it shows: the layout of a process in memory alone can make it."""
TIE_MARGIN = 0.05
"""Two arms tie if they certainly differ by less; also, the width of the A/A interval raises the floor up to this, not further."""
NOISY = 0.1
"""Where differences below this don't show, the machine is too noisy for what the lab is for."""
POWER = 0.8
TRIM = 0.2
TRIMMED_FROM = 7
WINDOWS_TRIMMED_FROM = 5
"""In a round, whose mean needs no standard error: the verdict rests on how much rounds differ from each other."""
ROUNDS_MIN = 3
"""With fewer rounds there is no verdict."""
TIMES_MAX = 10
"""Nobody plans to run a larger multiple of the rounds: a quieter machine is the better plan."""
BORROWED_MAX = 2.0
"""The most that a comparison borrows from its family, as a multiple of its own degrees of freedom."""
ALIKE_MIN = 1e-4
"""The least variance of log-variances between arms: no more alike than this is assumed."""
UNSURE = -1.2816
"""The normal quantile at 10%: how alike the arms scatter is judged by the end of its interval at which they are less so."""
SPREAD_MIN = 1e-9
"""Log-ratios that are nearer to each other than this are equal but for the rounding of floats."""
LOG_MAX = math.log(1e9)
"""No interval reaches further: what is not known to a factor of 1e9 is not known, and JSON has no infinity."""

Standing = Literal["below", "above", "tie", "cannot tell"]
Interval = tuple[float, float]


@dataclass(frozen=True)
class Estimate:
    """The ratio of two arms over the rounds that have both."""

    log_ratio: float
    standard_error: float
    rounds: int
    freedom: float
    """Degrees of freedom: the rounds that weren't trimmed, less one, and what was borrowed from other comparisons."""

    @property
    def ratio(self) -> float:
        """The (trimmed) geometric mean of the rounds' ratios."""
        return math.exp(self.log_ratio)

    @property
    def p(self) -> float:
        """The probability of a ratio at least so far from 1, where the arms are equal."""
        if self.freedom <= 0:
            return 1.0
        if self.standard_error == 0:
            return 1.0 if self.log_ratio == 0 else 0.0
        return 2 * student_tail(abs(self.log_ratio) / self.standard_error, self.freedom)

    def within(self, outside: float = 1 - CONFIDENCE) -> Interval:
        """Return the ratios between which the true one lies, but for this probability."""
        if self.freedom <= 0:
            return interval(-math.inf, math.inf)
        reach = student_quantile(1 - outside / 2, self.freedom) * self.standard_error if self.standard_error else 0.0
        return interval(self.log_ratio - reach, self.log_ratio + reach)

    @property
    def interval(self) -> Interval:
        """The ratios between which the true one lies with CONFIDENCE, if this is the only comparison."""
        return self.within()

    @property
    def inner(self) -> Interval:
        """The same at the confidence of two one-sided tests, 2 * CONFIDENCE - 1: 90%."""
        return self.within(2 * (1 - CONFIDENCE))


@dataclass(frozen=True)
class Member:
    """An estimate among others of its family."""

    estimate: Estimate
    p_adjusted: float
    """By Holm's method."""
    outside: float
    """The probability that Holm's method leaves for a mistake in this comparison."""

    @property
    def interval(self) -> Interval:
        """The interval that the verdict rests on: it contains 1 exactly where `p_adjusted` is no verdict."""
        return self.estimate.within(self.outside)


def log_ratios(numerators: Series, denominators: Series) -> NDArray[np.float64]:
    """Return log(numerator / denominator) of each round that has both, as figures above 0."""
    return np.array([math.log(ratio) for ratio in ratios_by_round(numerators, denominators) if ratio is not None])


def ratios_by_round(numerators: Series, denominators: Series) -> list[float | None]:
    """Return the ratio of each round, None where one of the two is missing, or is no figure above 0."""
    return [ratio_of(above, below) for above, below in zip(numerators, denominators, strict=True)]


def ratio_of(numerator: Figure | None, denominator: Figure | None) -> float | None:
    """Return the ratio of two arms in one round: the (trimmed) geometric mean of the ratios of windows that follow each other."""
    figures = [each if isinstance(each, tuple) else (each,) for each in (numerator, denominator)]
    if not all(is_positive(each) for both in figures for each in both):
        return None
    above, below = (np.array(each, dtype=np.float64) for each in figures)
    if len(above) != len(below):
        return math.exp(float(np.log(above).mean() - np.log(below).mean()))
    logs = np.sort(np.log(above / below))
    cut = int(TRIM * len(logs)) if len(logs) >= WINDOWS_TRIMMED_FROM else 0
    return math.exp(float(logs[cut : len(logs) - cut].mean()))


def is_positive(value: float | None) -> TypeGuard[float]:
    """Return whether a value is a finite number above 0."""
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
    return mean, np.where(spread > SPREAD_MIN, np.sqrt(squares / (rest * (rest - 1))), 0.0), rest


def estimate(logs: NDArray[np.float64]) -> Estimate | None:
    """Return the ratio that these log-ratios, one a round, tell of; None without any."""
    rounds = len(logs)
    if rounds == 0:
        return None
    if rounds == 1:
        return Estimate(float(logs[0]), math.inf, 1, 0)
    mean, error, rest = trimmed(logs)
    return Estimate(float(mean), float(error), rounds, rest - 1)


def family(found: Sequence[Estimate], arms: int) -> list[Member]:
    """Return the comparisons of one family, made between `arms` arms, with what they know of each other's scatter."""
    shared = share_scatter(found, arms)
    adjusted = holm([each.p for each in shared])
    decided = sum(each < 1 - CONFIDENCE for each in adjusted)
    order = sorted(range(len(shared)), key=lambda index: shared[index].p)
    place = {index: rank for rank, index in enumerate(order)}
    # Holm's method ends at the first comparison that it doesn't decide, and asks of all further ones what it asked of that.
    return [
        Member(each, adjusted[index], (1 - CONFIDENCE) / (len(shared) - min(place[index], decided)))
        for index, each in enumerate(shared)
    ]


def share_scatter(found: Sequence[Estimate], arms: int) -> list[Estimate]:
    """Return estimates whose standard errors are drawn towards their family's, as far as the arms scatter alike."""
    scattered = [each for each in found if each.freedom > 0 and each.standard_error > 0]
    if arms < 3 or len(scattered) < 2:
        return list(found)
    variances = {id(each): each.standard_error**2 * each.rounds for each in scattered}
    # Equal scatter would show as log-variances that differ by chance alone: by trigamma(freedom / 2).
    logs = [
        math.log(variances[id(each)]) - digamma(each.freedom / 2) + math.log(each.freedom / 2) for each in scattered
    ]
    by_chance = math.fsum(trigamma(each.freedom / 2) for each in scattered) / len(scattered)
    # What is known of that comes from independent arms, in however many pairs they are compared.
    known = min(arms, len(scattered)) - 1
    apart = float(np.var(logs, ddof=1)) / chi_square_share(known) - by_chance
    own = min(each.freedom for each in scattered)
    borrowed = min(2 * inverse_trigamma(max(apart, ALIKE_MIN)), own * min(BORROWED_MAX, (arms - 1) / 2))
    borrowed = math.floor(100 * borrowed) / 100  # Quantiles are kept, and these are as good.
    usual = math.fsum(variances.values()) / len(variances)

    def drawn(each: Estimate) -> Estimate:
        if id(each) not in variances:
            return each
        freedom = each.freedom + borrowed
        variance = (borrowed * usual + each.freedom * variances[id(each)]) / freedom
        return replace(each, standard_error=math.sqrt(variance / each.rounds), freedom=freedom)

    return [drawn(each) for each in found]


def interval(low: float, high: float) -> Interval:
    """Return the ratios of two logarithms, of which none is 0 or infinite."""
    return math.exp(max(low, -LOG_MAX)), math.exp(min(high, LOG_MAX))


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


def hidden_below(again: Estimate) -> float:
    """Return the relative difference below which arms aren't told apart, where they scatter as two copies of one did."""
    low, high = again.interval
    reach = (math.log(high) - math.log(low)) / 2 if low > 0 and high < math.inf else math.inf
    return math.expm1(max(reach, abs(again.log_ratio)))


def judge(found: Estimate, p_adjusted: float, floor: float) -> Standing:
    """Say on which side of 1 the true ratio lies, or that it is 1 but for the noise, or that these rounds don't tell.

    A side needs a probability below 5% after Holm's correction, and an estimate beyond the noise floor. A tie needs both ends of the
    90% interval within TIE_MARGIN (two one-sided tests at 5% each), and a floor that isn't beyond it: where two copies of one arm
    differ by more, equal figures don't show equal arms.
    """
    if found.rounds < ROUNDS_MIN:
        return "cannot tell"
    if p_adjusted < 1 - CONFIDENCE and abs(found.log_ratio) > math.log1p(floor):
        return "below" if found.log_ratio < 0 else "above"
    low, high = found.inner
    if max(1 / low, high) <= 1 + TIE_MARGIN and floor <= TIE_MARGIN:
        return "tie"
    return "cannot tell"


def rounds_needed(found: Estimate, floor: float, comparisons: int = 1) -> int | None:
    """Return how many rounds would likely give a verdict, if the estimate and the noise stay what they are.

    None if TIMES_MAX times as many wouldn't: the noise is too large, or the difference at the border of what counts as one.
    """
    if found.freedom <= 0:
        return ROUNDS_MIN
    deviation = found.standard_error * math.sqrt(found.rounds)
    size = abs(found.log_ratio)
    # Each way to a verdict: the probability that stays outside, and how far the estimate is from the border.
    ways = [(1 - CONFIDENCE, math.log1p(TIE_MARGIN) - size)] if floor <= TIE_MARGIN else []
    if size > math.log1p(floor):
        ways.append(((1 - CONFIDENCE) / 2 / comparisons, size))
    for rounds in range(max(ROUNDS_MIN, found.rounds + 1), TIMES_MAX * found.rounds + 1):
        for tail, distance in ways:
            reach = student_quantile(1 - tail, rounds - 1) + student_quantile(POWER, rounds - 1)
            if reach * deviation / math.sqrt(rounds) <= distance:
                return rounds
    return None


def student_tail(t: float, freedom: float) -> float:
    """Return the probability that Student's t with these degrees of freedom is greater than `t`, which is at least 0."""
    return float(special.stdtr(freedom, -t))


@functools.cache
def student_quantile(probability: float, freedom: float) -> float:
    """Return what Student's t stays below with this probability, of 0.5 to 1."""
    return float(special.stdtrit(freedom, probability))


def digamma(x: float) -> float:
    """Return the derivative of log-gamma."""
    return float(special.digamma(x))


def trigamma(x: float) -> float:
    """Return the derivative of digamma, which is Hurwitz's zeta function of 2 (DLMF 25.11.12)."""
    return float(special.zeta(2, x))


def inverse_trigamma(value: float) -> float:
    """Return where trigamma, which falls from infinity to 0, has this value.

    Newton's method on the reciprocal, which is convex, rising and nearly straight, takes few steps. It starts to the right of the root
    and never passes it (Smyth's appendix).
    """
    x = 0.5 + 1 / value
    for _ in range(50):
        found = trigamma(x)
        step = found * (1 - found / value) / (-2 * float(special.zeta(3, x)))
        x += step
        if abs(step) < 1e-12 * x:
            break
    return x


def chi_square_share(freedom: int) -> float:
    """Return the quantile of chi-square at UNSURE, as a share of its mean (by Wilson and Hilferty's cube)."""
    spread = 2 / (9 * freedom)
    return float(max(1 - spread + UNSURE * math.sqrt(spread), 0.1) ** 3)
