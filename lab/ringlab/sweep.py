"""The search for the knee of an open loop: the rate at which the p99 passes KNEE_TIMES its floor.

The floor is the p99 at a low rate. From a first rate on, the search goes up or down in equal factors until one rate is below the
knee and one above it, and then halves the factor between the two until that is RESOLUTION. The knee lies where the line between the
two points, on logarithmic axes, crosses the threshold.

Noise adds to latencies and never takes from them. So the lower p99 of two trials is the floor, and a rate is above the knee only if
it is in two trials, unless the server plainly didn't keep up with it.

What the search can't find it doesn't guess: where the p99 at the low rate is already KNEE_TIMES the p50, there is no knee; where the
load generator is at its own limit first, the knee is at least the highest rate below; and where the server doesn't keep up with the
low rate, at most that.
"""

import math
import statistics as averages
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ringlab import figures
from ringlab.results import Bound, RatePoint

KNEE_TIMES = 10.0
FLOOR_PER_S = 2000.0
"""The low rate, the same for all arms."""
FLOOR_TRIALS = 2
FIRST_PER_S, FIRST_FACTOR = 10_000.0, 2.0
"""Where the first round begins, and its steps."""
LATER_FACTOR = 1.15
"""The steps of later rounds, which begin at the knee of the round before."""
LATER_RATES = 3
"""The number of rates that are tried with the small steps."""
RESOLUTION = 1.08
RATE_PER_S_MAX = 5e6
"""Half of what the load generator takes as a rate."""
TRIALS_MAX = 24
KEPT_UP = 0.97
"""The share of the offered rate that must have been answered."""
CLIENT_BUSY_MAX = 0.95
"""The share of its time that the load generator may be busy for, if latencies are to be the server's."""
ERRORS_MAX = 0.001
SAMPLE_MIN = 1000
"""A p99 takes at least this number of operations."""
TOGETHER = 1.05
"""Rates that differ by less are one point of a curve."""


@dataclass(frozen=True)
class Knee:
    """The knee that a search has found."""

    per_s: float
    bound: Bound
    floor_p50_ns: float
    floor_p99_ns: float


@dataclass
class Search:
    """The search of one arm in one round: asks for trials, and is told their points."""

    before_per_s: float = 0.0
    """The knee of the round before; 0 in the first round."""
    points: list[RatePoint] = field(default_factory=list)

    @property
    def factor(self) -> float:
        """By how much the rate changes, until the knee is between two rates."""
        tried = {point.offered_per_s for point in self.points} - {FLOOR_PER_S}
        return LATER_FACTOR if self.before_per_s and len(tried) < LATER_RATES else FIRST_FACTOR

    @property
    def floors(self) -> list[RatePoint]:
        """The trials at the low rate."""
        return [point for point in self.points if point.offered_per_s == FLOOR_PER_S]

    @property
    def kept(self) -> list[RatePoint]:
        """Those that the server kept up with."""
        return [point for point in self.floors if point.outcome == "floor"]

    @property
    def floor_ns(self) -> float:
        """The lower p99 of the trials at the low rate that the server kept up with; of all, if it did with none."""
        return min(point.latency_ns_p99 for point in self.kept or self.floors)

    @property
    def highest_below(self) -> float:
        """The highest rate that is known to be below the knee."""
        below = {point.offered_per_s for point in self.points if point.outcome in ("floor", "below")}
        least = self.lowest_not_below
        return max((rate for rate in below if rate < least), default=FLOOR_PER_S)

    @property
    def lowest_not_below(self) -> float:
        """The lowest rate that isn't below the knee; infinite if none was found."""
        return min(self.refuted, default=math.inf)

    @property
    def refuted(self) -> list[float]:
        """The rates that aren't below the knee."""
        outcomes: dict[float, list[RatePoint]] = {}
        for point in self.points:
            outcomes.setdefault(point.offered_per_s, []).append(point)
        return [
            rate
            for rate, points in outcomes.items()
            if not any(point.outcome in ("floor", "below") for point in points)
            and (len(points) >= 2 or not kept_up(points[0]))
        ]

    def why_none(self) -> str:
        """Return why there is no knee to be found; nothing where there may be one.

        A knee is where latencies rise, and at the low rate they have risen already: others have the CPU, or the server pauses.
        """
        if len(self.floors) < FLOOR_TRIALS or not self.kept:
            return ""
        p50_ns, p99_ns = min(point.latency_ns_p50 for point in self.kept), self.floor_ns
        if p99_ns <= KNEE_TIMES * p50_ns:
            return ""
        return (
            f"no knee: at {FLOOR_PER_S:,.0f}/s the p99 is {figures.latency(p99_ns)}, and the p50 {figures.latency(p50_ns)}: the tail is"
            f" more than {KNEE_TIMES:g} times as long where nothing is loaded yet"
        )

    def next_rate(self) -> float | None:
        """Return the rate of the next trial; None if the search has ended."""
        if len(self.floors) < FLOOR_TRIALS:
            return FLOOR_PER_S
        if FLOOR_PER_S in self.refuted or self.why_none() or len(self.points) >= TRIALS_MAX:
            return None
        last = self.points[-1]
        tried = sum(point.offered_per_s == last.offered_per_s for point in self.points)
        if tried == 1 and last.outcome not in ("floor", "below") and kept_up(last):
            return last.offered_per_s
        low, high = self.highest_below, self.lowest_not_below
        if low == FLOOR_PER_S and high == math.inf:
            return max(self.before_per_s or FIRST_PER_S, FLOOR_PER_S * self.factor)
        if high == math.inf:
            return low * self.factor if low * self.factor <= RATE_PER_S_MAX else None
        if low == FLOOR_PER_S and high / self.factor > FLOOR_PER_S * self.factor:
            return high / self.factor
        return math.sqrt(low * high) if high / low > RESOLUTION else None

    def take(self, point: RatePoint) -> None:
        """Put what a trial has found to the others."""
        if point.offered_per_s == FLOOR_PER_S:
            point.outcome = "floor" if kept_up(point) and point.outcome != "failed" else "failed"
        elif point.outcome == "below" and (not kept_up(point) or point.latency_ns_p99 > KNEE_TIMES * self.floor_ns):
            point.outcome = "limited" if point.reasons else "above"
        elif point.outcome == "below":
            point.reasons = []
        self.points.append(point)

    def knee(self) -> Knee:
        """Return what was found."""
        if not self.kept:
            slow = self.floors[0]
            return Knee(FLOOR_PER_S, "at most", slow.latency_ns_p50, slow.latency_ns_p99)
        floor_p50_ns = min(point.latency_ns_p50 for point in self.kept)
        low, high = self.highest_below, self.lowest_not_below
        above = [point for point in self.points if point.offered_per_s == high]
        if not above or any(point.outcome == "limited" for point in above):
            return Knee(low, "at least", floor_p50_ns, self.floor_ns)
        p99_low = min(
            point.latency_ns_p99
            for point in self.points
            if point.offered_per_s == low and point.outcome in ("floor", "below")
        )
        p99_high = min(point.latency_ns_p99 for point in above)
        return Knee(crossing(low, p99_low, high, p99_high, KNEE_TIMES * self.floor_ns), "", floor_p50_ns, self.floor_ns)


def kept_up(point: RatePoint) -> bool:
    """Return whether nearly all operations were answered in the window: if so, the p99 may be high by chance."""
    return point.achieved_per_s >= KEPT_UP * point.offered_per_s


def crossing(low: float, p99_low: float, high: float, p99_high: float, threshold: float) -> float:
    """Return where the line between two points, on logarithmic axes, crosses the threshold."""
    if not 0 < p99_low < threshold <= p99_high:
        # The server failed at the higher rate, so that its p99 says nothing.
        return math.sqrt(low * high)
    # Differences of logarithms: the ratio of a large and a tiny figure may be infinite.
    least = math.log(p99_low)
    share = (math.log(threshold) - least) / (math.log(p99_high) - least)
    return low * math.pow(high / low, share)


def window_s(rate_per_s: float, wanted_s: float) -> float:
    """Return how long a trial is measured, so that a p99 rests on enough operations."""
    return max(wanted_s, SAMPLE_MIN / rate_per_s)


def point_of(event: Mapping[str, Any], rate_per_s: float, late: bool) -> RatePoint:
    """Return what the load generator found at a rate; `late`: it was late by a good part of the latencies.

    A point with reasons and the outcome "below" is limited, if its p99 turns out to be above the knee.
    """
    corrected = event["latency"]["corrected"] or {}
    operations = event["operations"]
    client = event["client"]
    busy = client.get("busy_fraction", client["cpu_fraction"]) or 0.0
    point = RatePoint(
        offered_per_s=rate_per_s,
        achieved_per_s=event["operations_per_s"] or 0.0,
        latency_ns_p50=float(corrected.get("p50_ns") or 0.0),
        latency_ns_p99=float(corrected.get("p99_ns") or 0.0),
        latency_ns_p999=float(corrected.get("p999_ns") or 0.0),
        outcome="below",
        client_busy_fraction=busy,
    )
    failures = sum(error["count"] for error in event["errors"].values())
    connections = event["connections"]
    if event.get("void"):
        point.reasons.append(str(event["void"]))
    if failures > ERRORS_MAX * operations:
        kinds = (f"{error['count']} x {kind} ({error['first']})" for kind, error in event["errors"].items())
        point.reasons.append(f"errors: {', '.join(kinds)}")
    if connections["alive_at_end"] < connections["asked"]:
        point.reasons.append(
            f"only {connections['alive_at_end']} of {connections['asked']} connections were alive at the end"
        )
    if point.reasons:
        point.outcome = "failed"
    elif late:
        point.reasons.append("the load generator sent late by a good part of the latencies")
    elif busy > CLIENT_BUSY_MAX:
        point.reasons.append(f"the load generator was busy for {100 * busy:.0f}% of the time")
    return point


def merge(points: Iterable[RatePoint]) -> list[RatePoint]:
    """Return the curve of several rounds: the medians of the points at about one rate, in the order of the rates."""
    groups: list[list[RatePoint]] = []
    for point in sorted(points, key=lambda point: point.offered_per_s):
        if groups and point.offered_per_s < TOGETHER * groups[-1][0].offered_per_s:
            groups[-1].append(point)
        else:
            groups.append([point])
    return [median(group) for group in groups]


def median(points: Sequence[RatePoint]) -> RatePoint:
    """Return the medians of points, and what most of them are."""
    outcomes = [point.outcome for point in points]

    def middle(name: str) -> float:
        return float(averages.median(getattr(point, name) for point in points))

    return RatePoint(
        offered_per_s=middle("offered_per_s"),
        achieved_per_s=middle("achieved_per_s"),
        latency_ns_p50=middle("latency_ns_p50"),
        latency_ns_p99=middle("latency_ns_p99"),
        latency_ns_p999=middle("latency_ns_p999"),
        outcome=max(outcomes, key=outcomes.count),
        client_busy_fraction=middle("client_busy_fraction"),
        reasons=list(dict.fromkeys(reason for point in points for reason in point.reasons)),
        trials=len(points),
    )
