"""The evaluation of a cell's samples: summaries, ratios, verdicts in words, latency curves."""

import itertools
import math
import statistics as averages
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from hdrh.histogram import HdrHistogram

from ringlab import figures, results, statistics, sweep
from ringlab.deferred import np
from ringlab.results import Bound, Cell, Comparison, Control, Curve, Group, Metric, Rank, Summary, Sweep, Verdict

CURVE_PERCENTILES = (
    *(float(each) for each in range(0, 90, 5)), 90.0, 92.5, 95.0, 97.0, 98.0, 99.0, 99.5, 99.7, 99.9, 99.95, 99.99, 99.999, 100.0,
)  # fmt: skip
CURVE_COUNT_MIN = 10
"""At least this many operations of a curve were as slow as its last percentile (except for the maximum)."""
NAMES_MAX = 5
"""In a sentence."""
INSIDE_NOISE = "inside the noise: a quieter machine may tell, more rounds won't"
ONLY_BOUNDS = "one of the two, or both, are only known to be at least or at most what they are"
GROWN_BYTES, GROWN_TIMES = 100e6, 2.0
"""Memory that grows by more than both within a sample is told."""
RESTLESS_SHARE = 0.05
"""Of its CPU time in the windows: a server that uses more between them is told. uvicorn's ticks, ten in a second, take 2% to 4%."""
TOLD_MAX = 11.0
"""A ratio further off is told as nothing known."""
PRAISE = {"us": ("fastest", "costs"), "ns": ("fastest", "takes"), "bytes": ("smallest", "needs")}
"""The praise of the best arm by the unit of its figure, and the verb of the others."""
WAITED_MAX = 0.05
"""The share of a window that servers may wait for a CPU: each arm in its median sample."""
RATE_KEPT = 0.97
"""The share of the offered rate that counts as kept up with."""
HISTOGRAM_NS_MAX = 3_600_000_000_000
HISTOGRAM_DIGITS = 3
FLOORS = ("c-epoll", "c-io_uring")
"""Preferred baselines, if they take part and the user names none: they show what the kernel alone costs."""
LOOPS = ("asyncio-protocol", "asyncio", "asyncio-uvicorn")
CONTROLS = {
    "loops": LOOPS,
    "asgi": ("uvicorn-uvloop", "granian"),
    "wsgi": ("gunicorn-gthread", "granian-wsgi"),
    "files": ("files-blocking",),
}
"""The same by workload; the loops', where no floor takes part."""


def summarize(cell: Cell, arms: Sequence[str]) -> list[Summary]:
    """Return the median of every figure that an arm has, with the rounds' extremes."""
    found = []
    for arm in arms:
        for key in dict.fromkeys(key for sample in cell.measured(arm) for key in sample.figures):
            values = figures_of(cell, arm, key)
            middle = averages.median(values)
            found.append(
                Summary(arm=arm, metric=key, median=middle, low=min(values), high=max(values), rounds=len(values))
            )
    return found


def series_of(cell: Cell, arm: str, metric: Metric, copies: Mapping[str, str]) -> list[statistics.Figure | None]:
    """Return one figure of an arm by round and window: of an arm with a second copy the geometric mean of both, which scatters less."""
    own = cell.windows(arm, metric.key)
    if arm not in copies:
        return [*own]
    pairs = zip(own, cell.windows(copies[arm], metric.key), strict=True)
    return [geometric_mean(one, other) if one is not None and other is not None else one for one, other in pairs]


def geometric_mean(one: Sequence[float], other: Sequence[float]) -> tuple[float, ...]:
    """Return that of each of two copies' figures; the first's where they don't fit together."""
    if len(one) != len(other) or not all(map(statistics.is_positive, (*one, *other))):
        return tuple(one)
    return tuple(math.sqrt(first * second) for first, second in zip(one, other, strict=True))


def compare(
    cell: Cell,
    metric: Metric,
    arms: Sequence[str],
    baseline: str,
    floor: float,
    copies: Mapping[str, str],
) -> list[Comparison]:
    """Compare arms with a baseline in one metric, as one family; `copies` are second copies, by what they are copies of."""
    reference = series_of(cell, baseline, metric, copies)
    series = {arm: series_of(cell, arm, metric, copies) for arm in arms}
    estimates = {}
    for arm in arms:
        found = statistics.estimate(statistics.log_ratios(series[arm], reference))
        if found is not None:
            estimates[arm] = found
    members = zip(estimates, statistics.family(list(estimates.values()), len(estimates) + 1), strict=True)
    comparisons = []
    for arm, member in members:
        bounds = bounds_of(cell, arm, metric, copies), bounds_of(cell, baseline, metric, copies)
        comparison = describe(metric, arm, baseline, member, floor, len(estimates), bounds)
        comparison.ratios = statistics.ratios_by_round(series[arm], reference)
        comparisons.append(comparison)
    return comparisons


def bounds_of(cell: Cell, arm: str, metric: Metric, copies: Mapping[str, str]) -> frozenset[Bound]:
    """Return in which directions an arm's figure, as series_of() has it, is only a bound: 'at least', 'at most', or neither."""
    arms = [each for each in (arm, copies.get(arm)) if each and metric.primary]
    return frozenset(sample.bound for each in arms for sample in cell.measured(each) if sample.bound)


def may_be(numerator: frozenset[Bound], denominator: frozenset[Bound]) -> tuple[bool, bool]:
    """Return whether a ratio may be larger, and whether it may be smaller, than it is found to be: its figures may be bounds."""
    return (
        "at least" in numerator or "at most" in denominator,
        "at most" in numerator or "at least" in denominator,
    )


def within_bounds(
    standing: statistics.Standing, numerator: frozenset[Bound], denominator: frozenset[Bound]
) -> statistics.Standing:
    """Return what a ratio still says where its two figures are only bounds."""
    larger, smaller = may_be(numerator, denominator)
    holds = {"above": not smaller, "below": not larger, "tie": not (larger or smaller), "cannot tell": True}
    return standing if holds[standing] else "cannot tell"


def describe(
    metric: Metric,
    arm: str,
    baseline: str,
    member: statistics.Member,
    floor: float,
    comparisons: int,
    bounds: tuple[frozenset[Bound], frozenset[Bound]] = (frozenset(), frozenset()),
) -> Comparison:
    """Return the verdict of an estimate, as a comparison of its family, with the interval that it rests on.

    `bounds` are those of the arm and of the baseline.
    """
    found = member.estimate
    standing = within_bounds(statistics.judge(found, member.p_adjusted, floor), *bounds)
    # A tie rests on two one-sided tests.
    (low, high), outside = (
        (found.inner, 2 * (1 - statistics.CONFIDENCE)) if standing == "tie" else (member.interval, member.outside)
    )
    comparison = Comparison(
        metric=metric.key,
        arm=arm,
        baseline=baseline,
        ratio=found.ratio,
        low=low,
        high=high,
        confidence=1 - outside,
        p=found.p,
        p_adjusted=member.p_adjusted,
        rounds=found.rounds,
        ratios=[],
        verdict=side(standing, metric),
        rounds_needed=statistics.rounds_needed(found, floor, comparisons)
        if standing == "cannot tell" and not any(bounds)
        else None,
    )
    comparison.sentence = sentence_of(comparison, metric, bounded=any(bounds))
    return comparison


def side(standing: statistics.Standing, metric: Metric) -> results.ComparisonVerdict:
    """Return what being below or above means in this metric."""
    if standing in ("tie", "cannot tell"):
        return standing
    return "better" if (standing == "below") == (metric.better == "lower") else "worse"


def sentence_of(comparison: Comparison, metric: Metric, *, bounded: bool = False) -> str:
    """Say in words what a comparison found."""
    arm, baseline, low, high = comparison.arm, comparison.baseline, comparison.low, comparison.high
    within = figures.compared(comparison.ratio, (low, high))
    if comparison.verdict == "tie":
        far = figures.percent(max(high, 1 / low, 1.001) - 1)
        return f"{arm} and {baseline} tie in {metric.title}: they differ by less than {far}"
    if comparison.verdict == "cannot tell":
        if comparison.rounds < statistics.ROUNDS_MIN:
            why = f"{comparison.rounds} of at least {statistics.ROUNDS_MIN} rounds have both"
        else:
            # An interval without 1 asks for the reason why it is no verdict.
            why = within if low <= 1 <= high else f"{within} is within the noise"
        more = ONLY_BOUNDS if bounded else would_take(comparison.rounds_needed)
        return f"{arm} against {baseline} in {metric.title}: no difference shown: {why}; {more}"
    return f"{arm} is {comparison.verdict} than {baseline} in {metric.title}: {within}"


def some_of(names: Sequence[str]) -> str:
    """Return names as a list in words, a long one shortened."""
    if len(names) > NAMES_MAX:
        return f"{', '.join(names[: NAMES_MAX - 1])} and {len(names) - NAMES_MAX + 1} more"
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def would_take(rounds: int | None) -> str:
    """Say how many rounds a verdict would take."""
    if rounds is None:
        return INSIDE_NOISE
    return f"about {rounds:,} rounds would tell"


def choose_baseline(arms: Sequence[str], asked: str, workload: str) -> str:
    """Return the arm that the others are compared with: the one asked for, a floor, a control, or the first."""
    preferred = (asked, *CONTROLS.get(workload, (*FLOORS, *LOOPS)))
    return next((arm for arm in preferred if arm in arms), arms[0])


def copies_of(cell: Cell, arms: Sequence[results.Arm]) -> dict[str, str]:
    """Return which of these arms are second copies in a cell (A/A), by what they are copies of, where both were measured."""
    return {
        arm.repeats: arm.name for arm in arms if arm.repeats and cell.measured(arm.name) and cell.measured(arm.repeats)
    }


def common_control(cells: Sequence[Cell], copies: Sequence[Mapping[str, str]], asked: str) -> str:
    """Return what the figures of one cell in several results are relative to: the arm asked for, or a baseline of all of them.

    It is nothing where there is none, or where 'none' is asked for. `copies` are those of each cell, as copies_of() returns them.
    """
    if asked:
        return asked if asked != "none" and all(cell.measured(asked) for cell in cells) else ""
    baselines = [[group.baseline for group in cell.analysis.groups] for cell in cells]
    common = [arm for arm in baselines[0] if all(arm in each for each in baselines)]
    # A floor's knee is often only a bound, to which nothing can be relative.
    common = [arm for arm in common if not any(bounds_of(cell, arm, cell.primary, {}) for cell in cells)] or common
    # Each group of HTTP servers has a baseline, but all share the rounds, and so the drift. Of one with a copy the noise is known.
    copied = next((arm for arm in common if all(arm in each for each in copies)), "")
    return choose_baseline(common, copied, cells[0].workload) if common else ""


def group_arms(cell: Cell, arms: Sequence[results.Arm]) -> dict[str, list[str]]:
    """Return the arms that are ranked together: HTTP servers that parse apart from those whose answer is fixed."""
    if not cell.of_http:
        return {"all": [arm.name for arm in arms]}
    probed = {probe.arm: probe.parser for probe in cell.probes}
    groups: dict[str, list[str]] = {}
    for arm in arms:
        # The probe's finding counts; without one, the declaration does.
        found = probed.get(arm.repeats or arm.name, "unknown")
        if found == "unknown":
            found = arm.declares.get("parser", "unknown")
        groups.setdefault(found, []).append(arm.name)
    return groups


def analyse(cell: Cell, arms: Sequence[results.Arm], baseline: str = "") -> results.Analysis:
    """Evaluate the samples of a cell; `baseline` is the arm that the user wants to compare with, if any."""
    names = [arm.name for arm in arms if cell.measured(arm.name)]
    return results.Analysis(
        summaries=summarize(cell, names),
        groups=groups_of(cell, arms, baseline),
        curves=curves(cell, names),
        sweeps=sweeps(cell, names),
        notes=notes(cell, arms),
    )


def groups_of(cell: Cell, arms: Sequence[results.Arm], baseline: str) -> list[Group]:
    """Compare the arms of each group."""
    present = [arm for arm in arms if cell.measured(arm.name)]
    names = [arm.name for arm in present]
    # The noise is a property of the machine, even if only other arms are shown.
    copies = copies_of(cell, present)
    # But a copy of an arm that isn't shown competes with no other arm.
    ranked = [arm for arm in present if not arm.repeats or arm.repeats in names]
    groups = group_arms(cell, ranked) if ranked else {}
    return [analyse_group(cell, name, members, baseline, copies) for name, members in groups.items()]


def again(cell: Cell, metric: Metric, copies: Mapping[str, str]) -> statistics.Estimate | None:
    """Return the ratio of the A/A arm to the arm that it is a copy of; None if there is no A/A arm.

    One is enough for a cell: the machine is the same for all groups.
    """
    return next(
        (
            statistics.estimate(
                statistics.log_ratios(cell.windows(copy, metric.key), cell.windows(original, metric.key))
            )
            for original, copy in copies.items()
        ),
        None,
    )


def analyse_group(cell: Cell, name: str, members: list[str], baseline: str, copies: Mapping[str, str]) -> Group:
    """Compare the arms of a group, and say who is best; `copies` are the A/A arms by what they are copies of."""
    originals = [member for member in members if member not in copies.values()]
    # If most samples of the baseline are void, few rounds of the other arms have a ratio.
    enough = [arm for arm in originals if rounds_of(cell, arm) >= statistics.ROUNDS_MIN]
    reference = choose_baseline(originals if baseline in originals else enough or originals, baseline, cell.workload)
    noise = again(cell, cell.primary, copies)
    floor = statistics.noise_floor(noise)
    # An arm against itself: whether the lab reports a difference where there is none. Otherwise the copy is a control, not an arm.
    itself = len(originals) == 1
    ranked, merged = (members, {}) if itself else (originals, copies)
    comparisons: list[Comparison] = []
    for metric in cell.metrics:
        own_floor = statistics.MARGIN if itself else statistics.noise_floor(again(cell, metric, copies))
        others = [arm for arm in ranked if arm != reference]
        comparisons += compare(cell, metric, others, reference, own_floor, merged)
    group = Group(
        name=name,
        arms=list(ranked),
        baseline=reference,
        noise_floor=floor,
        noise_text=describe_noise(noise, floor),
        comparisons=comparisons,
        verdict=Verdict(kind="nothing to compare", arms=[], sentence=""),
        control=None if itself else control_of(cell, copies, noise),
    )
    headline = Headline(cell, group.ranking(cell.primary), statistics.MARGIN if itself else floor, merged)
    group.verdict, group.ranks = headline.verdict(), headline.ranks()
    return group


def control_of(cell: Cell, copies: Mapping[str, str], noise: statistics.Estimate | None) -> Control | None:
    """Return whether two copies of one arm were found to be equal: the A/A arm takes part to show that, and not to be ranked."""
    if noise is None or noise.rounds < statistics.ROUNDS_MIN:
        return None
    original, copy = next(iter(copies.items()))
    failed = statistics.judge(noise, noise.p, statistics.MARGIN) in ("below", "above")
    low, high = noise.interval
    noisy = statistics.hidden_below(noise) > statistics.NOISY
    status: Literal["passed", "failed", "too noisy"] = "failed" if failed else "too noisy" if noisy else "passed"
    return Control(arm=copy, of=original, status=status, ratio=noise.ratio, low=low, high=high)


def describe_noise(noise: statistics.Estimate | None, floor: float) -> str:
    """Say what the A/A arm has shown, and what follows from that."""
    follows = f"differences below {figures.percent(floor)} count as none"
    if noise is None:
        return f"no A/A arm was measured: {follows}"
    if noise.rounds < 2:
        return f"two copies of one arm were measured in one round only: {follows}"
    hidden = statistics.hidden_below(noise)
    if noise.rounds >= statistics.ROUNDS_MIN and hidden > statistics.NOISY:
        follows = f"differences below {figures.percent(hidden)} don't show here"
    return f"two copies of one arm differ, the second has {figures.compared(noise.ratio, noise.interval)}: {follows}"


def rounds_of(cell: Cell, arm: str) -> int:
    """Return in how many rounds an arm's primary figure was measured."""
    return sum(value is not None for value in cell.series(arm, cell.primary.key))


@dataclass
class Headline:
    """Which arms are certainly better than which others by the primary metric: every pair is compared, all as one family."""

    cell: Cell
    ranking: Sequence[str]
    floor: float
    copies: Mapping[str, str]

    def __post_init__(self) -> None:
        """Compare."""
        enough = [arm for arm in self.ranking if rounds_of(self.cell, arm) >= statistics.ROUNDS_MIN]
        self.arms = enough if len(enough) >= 2 else list(self.ranking)
        series = {arm: series_of(self.cell, arm, self.cell.primary, self.copies) for arm in self.arms}
        pairs = {}
        for first, second in itertools.combinations(self.arms, 2):
            found = statistics.estimate(statistics.log_ratios(series[second], series[first]))
            if found is not None:
                pairs[first, second] = found
        members = statistics.family(list(pairs.values()), len(self.arms))
        self.comparisons = len(pairs)
        self.pairs: dict[tuple[str, str], statistics.Member] = {}
        """By two arms: what the ratio of the first to the second is."""
        for (first, second), member in zip(pairs, members, strict=True):
            turned = replace(member.estimate, log_ratio=-member.estimate.log_ratio)
            self.pairs[second, first] = member
            self.pairs[first, second] = replace(member, estimate=turned)

    def bounds(self, arm: str) -> frozenset[Bound]:
        """Return in which directions an arm's figure is only a bound."""
        return bounds_of(self.cell, arm, self.cell.primary, self.copies)

    def standing(self, arm: str, other: str) -> results.ComparisonVerdict:
        """Return how an arm compares with another one."""
        member = self.pairs.get((arm, other))
        if member is None:
            return "cannot tell"
        standing = statistics.judge(member.estimate, member.p_adjusted, self.floor)
        return side(within_bounds(standing, self.bounds(arm), self.bounds(other)), self.cell.primary)

    def ranks(self) -> list[Rank]:
        """Return the best and the worst rank that each arm may have."""
        found = []
        for arm in self.arms:
            standings = [self.standing(arm, other) for other in self.arms if other != arm]
            best, worst = 1 + standings.count("worse"), len(self.arms) - standings.count("better")
            found.append(Rank(arm=arm, best=best, worst=worst))
        return found

    def verdict(self) -> Verdict:
        """Return the groups: those that nothing is certainly better than, then who follows, and who is last."""
        metric = self.cell.primary
        if len(self.arms) < 2:
            only = f"only {self.arms[0]} was measured" if self.arms else "nothing was measured"
            return Verdict(kind="nothing to compare", arms=self.arms, sentence=f"nothing to compare: {only}")
        unbeaten = {rank.arm for rank in self.ranks() if rank.best == 1}
        front = [arm for arm in self.arms if arm in unbeaten] or self.arms[:1]
        best, near = front[0], front[1:]
        rest = [arm for arm in self.arms if arm not in front]
        praise, verb = PRAISE.get(metric.unit, ("best", "reaches"))
        needed, ending = None, ""
        kind: results.CellVerdict
        if not near:
            kind, sentence = "winner", f"{praise}: {best}"
        elif all(self.standing(arm, best) == "tie" for arm in near):
            kind = "tie"
            equal = f"equal within {100 * statistics.TIE_MARGIN:g}%"
            sentence = (
                f"{praise}, {equal}: {some_of(front)}" if rest else f"no difference: {some_of(front)} are {equal}"
            )
        else:
            kind = "groups" if rest else "cannot tell"
            between = "them" if rest else some_of(front)
            shown = f"no difference shown between {between}{self.apart(near, best)}"
            sentence = f"{praise}: {some_of(front)}, {shown}" if rest else shown
            needed, ending = self.more(near, best)
        for arm in dict.fromkeys((*rest[:1], *rest[-1:])):
            last = ", the last," if len(rest) > 1 and arm == rest[-1] else ""
            sentence += f"; {arm}{last}{self.behind(arm, best, verb, whole=arm == rest[0])}"
        missing = [arm for arm in self.ranking if arm not in self.arms]
        if missing:
            ending += f"; not ranked: {some_of(missing)}, measured in fewer than {statistics.ROUNDS_MIN} rounds"
        return Verdict(kind=kind, arms=front, sentence=sentence + ending, rounds_needed=needed)

    def apart(self, near: Sequence[str], best: str) -> str:
        """Say how far the arms near the best one may be from it."""
        found = [self.pairs[arm, best].interval if (arm, best) in self.pairs else (0.0, math.inf) for arm in near]
        far = max(max(high, 1 / max(low, 1 / TOLD_MAX)) for low, high in found)
        return f", but one of up to {figures.percent(far - 1)} is possible" if far < TOLD_MAX else ""

    def behind(self, arm: str, best: str, verb: str, *, whole: bool) -> str:
        """Say how far an arm is from the best one, on request with the interval."""
        member = self.pairs.get((arm, best))
        if member is None:
            return ""
        ratio = member.estimate.ratio
        told = figures.compared(ratio, member.interval, whole=whole)
        return f" {verb} {told.replace(' times', ' times as much') if ratio >= figures.TIMES_FROM else told}"

    def more(self, near: Sequence[str], best: str) -> tuple[int | None, str]:
        """Return how many rounds would tell the best arm from those near it, and say so."""
        open_ones = [arm for arm in near if self.standing(arm, best) != "tie"]
        members = [self.pairs[arm, best] for arm in open_ones if (arm, best) in self.pairs]
        if len(members) < len(open_ones):
            return None, "; not all have a round in common"
        bounded = [arm for arm in (best, *open_ones) if self.bounds(arm)]
        if bounded:
            return None, f"; only bounds are known of {some_of(bounded)}"
        counts = [statistics.rounds_needed(each.estimate, self.floor, self.comparisons) for each in members]
        finite = [each for each in counts if each is not None]
        if finite and None in counts:
            return None, f"; about {max(finite):,} rounds would tell {len(finite)} of these {len(counts)}"
        needed = max(finite, default=None)
        return needed, f"; {would_take(needed)}"


def curves(cell: Cell, arms: Sequence[str]) -> list[Curve]:
    """Return the latency by percentile of each arm, with the histograms of its rounds added up."""
    found = []
    for arm in arms:
        kinds: tuple[Literal["service", "corrected"], ...] = ("service", "corrected")
        for kind in kinds:
            encoded = [sample.histograms[kind] for sample in cell.measured(arm) if kind in sample.histograms]
            if not encoded:
                continue
            merged = HdrHistogram(1, HISTOGRAM_NS_MAX, HISTOGRAM_DIGITS)
            try:
                for text in encoded:
                    merged.add(HdrHistogram.decode(text.encode()))
            except Exception as error:  # Whatever its parts raise: base64, zlib, and its own.
                raise results.ResultError(f"{cell.name}: a histogram of {arm} can't be decoded: {error}") from None
            count = merged.get_total_count()
            # Beyond these, the curve would show only a few single operations, as a horizontal line.
            shown = [each for each in CURVE_PERCENTILES if each == 100 or count * (1 - each / 100) >= CURVE_COUNT_MIN]
            values = merged.get_percentile_to_value_dict(shown)
            points = [[each, float(values.get(each, 0))] for each in shown]
            found.append(Curve(arm=arm, kind=kind, points=points))
    return found


def sweeps(cell: Cell, arms: Sequence[str]) -> list[Sweep]:
    """Return the knee of each arm and its curve, where rates were tried."""
    found = []
    for arm in arms:
        samples = [sample for sample in cell.measured(arm) if sample.points]
        if not samples:
            continue
        knee = statistics.estimate(np.log([sample.figures[cell.primary.key] for sample in samples]))
        assert knee is not None
        low, high = knee.interval if knee.rounds > 1 else (None, None)
        bounds = {sample.bound for sample in samples}
        # One round without an upper end leaves the mean without one.
        bound: Bound = "at least" if "at least" in bounds else "at most" if "at most" in bounds else ""
        found.append(
            Sweep(
                arm=arm,
                knee_per_s=knee.ratio,
                low=low,
                high=high,
                bound=bound,
                rounds=knee.rounds,
                floor_ns=averages.median(sample.figures["floor_ns_p99"] for sample in samples),
                points=sweep.merge(point for sample in samples for point in sample.points),
            )
        )
    return found


def swept(cell: Cell) -> list[str]:
    """Return what limited the search for knees."""
    found = []
    for each in sweeps(cell, cell.arms):
        reasons = [reason for point in each.points if point.outcome == "limited" for reason in point.reasons]
        rate = f"{each.arm}: its knee is {each.bound} {each.knee_per_s:,.0f}/s"
        if each.bound == "at least":
            found.append(f"{rate}: {reasons[0] if reasons else 'no rate that was tried reaches it'}")
        elif each.bound == "at most":
            found.append(f"{rate}, the low rate, which it didn't keep up with")
        failures = [point for point in each.points if point.outcome == "failed" and point.reasons]
        if failures:
            found.append(f"{each.arm} failed at {failures[0].offered_per_s:,.0f}/s: {failures[0].reasons[0]}")
    return found


def grown(cell: Cell) -> list[str]:
    """Return which servers' memory grew while nothing but their load went on."""
    found = []
    for arm in cell.arms:
        for sample in cell.measured(arm):
            end, rest = sample.figures.get("rss_end_bytes"), sample.figures.get("rss_rest_bytes")
            if end is None or rest is None:
                continue
            connections = cell.parameters.get("connections", 1)
            before = rest + sample.figures.get("rss_per_connection_bytes", 0.0) * connections
            operations = sample.figures.get("operations", 0)
            if cell.operation == "MB":
                operations = sample.figures.get("megabytes_per_s", 0) * sample.figures.get("window_s", 0)
            if end - before > GROWN_BYTES and end > GROWN_TIMES * before:
                each = (
                    f", {figures.significant((end - before) / operations)} bytes for each {cell.operation}"
                    if operations
                    else ""
                )
                found.append(
                    f"{arm} may leak: in round {sample.round} its memory grew from {figures.significant(before / 1e6)} to"
                    f" {figures.significant(end / 1e6)} MB while it was measured{each}"
                )
                break
    return found


def disturbed(cell: Cell) -> list[str]:
    """Say that others had the CPUs while samples were taken: what all arms waited for isn't of their own making."""
    waited = [shares for arm in cell.arms if (shares := figures_of(cell, arm, "run_delay_share"))]
    least = min(waited, key=averages.median, default=[0.0])
    if averages.median(least) <= WAITED_MAX:
        return []
    pressure = [share for arm in cell.arms for share in figures_of(cell, arm, "pressure_share")]
    also = f"; something on the machine did for {figures.percent(averages.median(pressure))}" if pressure else ""
    return [
        f"servers were ready to run and had no CPU for {figures.percent(averages.median(least))} of the time in the median sample, and for"
        f" {figures.percent(max(least))} in the worst, of the arm that waited least{also}: other programs run on their CPUs"
    ]


def figures_of(cell: Cell, arm: str, key: str) -> list[float]:
    """Return a figure of the samples of an arm that have it."""
    return [sample.figures[key] for sample in cell.measured(arm) if key in sample.figures]


def notes(cell: Cell, arms: Sequence[results.Arm]) -> list[str]:
    """Return what else a reader must know: limits of the load, void and failed samples, arms without figures."""
    found = []
    limited = [arm for arm in cell.arms if any(sample.client_limited for sample in cell.measured(arm))]
    if cell.workload == "sweep":
        found += swept(cell)
    elif limited:
        everyone = len(limited) > NAMES_MAX and all(arm in limited for arm in cell.arms if cell.measured(arm))
        found.append(
            f"client-limited: {'all arms' if everyone else ', '.join(limited)}: the load generator was near its own limit, so rates"
            " are lower bounds and latencies include its own; CPU per operation remains valid"
        )
    found += disturbed(cell)
    found += [f"{arm} took no part: {why}" for arm, why in cell.unable.items()]
    for arm in cell.arms:
        for status in ("void", "failed"):
            samples = [sample for sample in cell.samples if sample.arm == arm and sample.status == status]
            if samples:
                reasons = "; ".join(dict.fromkeys(reason for sample in samples for reason in sample.reasons))
                rounds = ", ".join(str(sample.round) for sample in samples)
                found.append(f"{status}: {arm} in round {rounds}: {reasons}")
        for kind in sorted({kind for sample in cell.measured(arm) for kind in sample.errors}):
            counts = [sample.errors[kind] for sample in cell.measured(arm) if kind in sample.errors]
            total = sum(each.count for each in counts)
            found.append(
                f"{arm}: {figures.counted(total, 'error')} of the kind '{kind}' in measured rounds, first: {counts[0].first}"
            )
    uncounted: dict[str, list[str]] = {}
    for calls in cell.system_calls:
        if calls.per_operation is None:
            uncounted.setdefault(calls.text, []).append(calls.arm)
    found += [f"the system calls of {some_of(names)} weren't counted: {why}" for why, names in uncounted.items()]
    for arm in cell.arms:
        held_back = [sample.figures for sample in cell.measured(arm) if sample.figures.get("streams_held_back")]
        if held_back:
            behind = max(each.get("stream_outstanding_bytes", 0.0) for each in held_back) / 1e6
            found.append(
                f"{arm} lagged {figures.significant(behind)} MB behind on a connection: sending was held back until half of that had"
                " come back"
            )
    for arm in cell.arms:
        shares = [each.figures.get("rest_cpu_share", 0.0) for each in cell.measured(arm)]
        if shares and averages.median(shares) > RESTLESS_SHARE:
            found.append(
                f"{arm} used {figures.percent(averages.median(shares))} as much CPU between its windows as in them: that isn't counted, and"
                " it may have slowed other arms"
            )
    found += grown(cell)
    offered = cell.parameters.get("offered_rate_per_s")
    for arm in cell.arms:
        rates = [value for value in cell.series(arm, "operations_per_s") if value is not None]
        if not offered or not rates:
            continue
        rate = averages.median(rates)
        if rate < RATE_KEPT * offered:
            found.append(f"{arm} didn't keep up: it answered {rate:,.0f} of {offered:,.0f} requests/s")
        elif rate > offered / RATE_KEPT:
            found.append(
                f"{arm} was behind when the window began: it answered {rate:,.0f} requests/s, and {offered:,.0f} were offered"
            )
    for each in arms:
        probe = next((probe for probe in cell.probes if probe.arm == each.name), None)
        declared = each.declares.get("parser")
        if probe is not None and declared in ("real", "canned") and probe.parser not in ("unknown", declared):
            found.append(
                f"{each.name} declares a {declared} parser, but behaves like a {probe.parser} one, so it is ranked with those"
            )
    return found
