"""From the samples of a cell to what they say: summaries, ratios, verdicts in words, latency curves."""

import math
import statistics as averages
from collections.abc import Sequence

from hdrh.histogram import HdrHistogram

from ringlab import results, statistics
from ringlab.results import Cell, Comparison, Curve, Group, Metric, Summary, Verdict

CURVE_PERCENTILES = (
    *(float(each) for each in range(0, 90, 5)), 90.0, 92.5, 95.0, 97.0, 98.0, 99.0, 99.5, 99.7, 99.9, 99.95, 99.99, 99.999, 100.0,
)  # fmt: skip
NAMES_MOST = 5
"""In a sentence."""
RATE_KEPT = 0.97
"""The share of the offered rate that counts as kept up with."""
HISTOGRAM_MOST_NS = 3_600_000_000_000
HISTOGRAM_DIGITS = 3
FLOORS = ("c-epoll", "c-io_uring")
"""Arms that are measured against by choice, where they take part and the user names no baseline: what the kernel alone costs."""
CONTROLS = ("asyncio-protocol", "asyncio", "asyncio-uvicorn")
"""The same, where no floor takes part."""


def percent(ratio: float) -> str:
    """Return how far a ratio is from 1, as '4.2%' or, from a factor of 2 on, as '2.3 times'."""
    away = abs(ratio - 1)
    return f"{100 * away:.1f}%" if away < 0.1 else f"{100 * away:.0f}%"


def show_ratio(ratio: float) -> str:
    """Return a ratio with the digits that count."""
    return f"{ratio:.3f}" if 0.9 < ratio < 1.1 else f"{ratio:.2f}" if ratio < 10 else f"{ratio:.1f}"


def summarize(cell: Cell, arms: Sequence[str]) -> list[Summary]:
    """Return the median of every figure that an arm has, with the rounds' extremes."""
    found = []
    for arm in arms:
        samples = cell.measured(arm)
        for key in dict.fromkeys(key for sample in samples for key in sample.figures):
            values = [sample.figures[key] for sample in samples if key in sample.figures]
            found.append(
                Summary(
                    arm=arm,
                    metric=key,
                    median=averages.median(values),
                    low=min(values),
                    high=max(values),
                    rounds=len(values),
                )
            )
    return found


def compare(cell: Cell, metric: Metric, arms: Sequence[str], baseline: str, floor: float) -> list[Comparison]:
    """Compare arms with a baseline in one metric, with Holm's correction for their number."""
    reference = cell.series(baseline, metric.key)
    estimates = {}
    for arm in arms:
        found = statistics.estimate(statistics.log_ratios(cell.series(arm, metric.key), reference))
        if found is not None:
            estimates[arm] = found
    adjusted = dict(zip(estimates, statistics.holm([each.p for each in estimates.values()]), strict=True))
    return [
        describe(cell, metric, arm, baseline, found, adjusted[arm], floor, len(estimates))
        for arm, found in estimates.items()
    ]


def describe(
    cell: Cell,
    metric: Metric,
    arm: str,
    baseline: str,
    found: statistics.Estimate,
    p_adjusted: float,
    floor: float,
    comparisons: int,
) -> Comparison:
    """Return what an estimate says; `comparisons` is the number of those that `p_adjusted` was corrected for."""
    standing = statistics.judge(found, p_adjusted, floor)
    low, high = found.interval
    comparison = Comparison(
        metric=metric.key,
        arm=arm,
        baseline=baseline,
        ratio=found.ratio,
        low=low,
        # JSON has no infinity.
        high=high if math.isfinite(high) else 1e9,
        confidence=statistics.CONFIDENCE,
        p=found.p,
        p_adjusted=p_adjusted,
        rounds=found.rounds,
        ratios=statistics.ratios_by_round(cell.series(arm, metric.key), cell.series(baseline, metric.key)),
        verdict=side(standing, metric),
        rounds_needed=statistics.rounds_needed(found, floor, comparisons) if standing == "cannot tell" else None,
    )
    comparison.sentence = sentence_of(comparison, metric, found)
    return comparison


def side(standing: statistics.Standing, metric: Metric) -> results.ComparisonVerdict:
    """Return what being below or above means in this metric."""
    if standing in ("tie", "cannot tell"):
        return standing
    return "better" if (standing == "below") == (metric.better == "lower") else "worse"


def more_or_less(ratio: float) -> str:
    """Return 'more' or 'less'."""
    return "more" if ratio > 1 else "less"


def sentence_of(comparison: Comparison, metric: Metric, found: statistics.Estimate) -> str:
    """Say in words what a comparison found."""
    arm, baseline, ratio = comparison.arm, comparison.baseline, comparison.ratio
    interval = f"{show_ratio(comparison.low)} to {show_ratio(comparison.high)}"
    if comparison.verdict == "tie":
        low, high = found.interval_inner
        return f"{arm} and {baseline} tie in {metric.title}: they differ by less than {percent(max(high, 1 / low))}"
    if comparison.verdict == "cannot tell":
        if comparison.rounds < statistics.ROUNDS_LEAST:
            why = f"{comparison.rounds} of at least {statistics.ROUNDS_LEAST} rounds have both"
        else:
            why = f"the ratio is {show_ratio(ratio)}, and may be {interval}"
        return f"{arm} against {baseline} in {metric.title}: cannot tell, {why}; {would_take(comparison.rounds_needed)}"
    text = f"{percent(ratio)} {more_or_less(ratio)}" if ratio < 2 else f"{show_ratio(ratio)} times as much"
    return f"{arm} is {comparison.verdict} than {baseline} in {metric.title}: {text} ({interval})"


def some_of(names: Sequence[str]) -> str:
    """Return names as a list in words, a long one shortened."""
    if len(names) > NAMES_MOST:
        return f"{', '.join(names[: NAMES_MOST - 1])} and {len(names) - NAMES_MOST + 1} more"
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def would_take(rounds: int | None) -> str:
    """Say how many rounds it would take."""
    if rounds is None:
        return f"{statistics.ROUNDS_MOST} rounds wouldn't tell either"
    return f"about {rounds} rounds would tell"


def choose_baseline(arms: Sequence[str], asked: str, workload: str) -> str:
    """Return the arm that the others are compared with: the one asked for, a floor, a control, or the first."""
    preferred = (asked, *CONTROLS) if workload == "loop" else (asked, *FLOORS, *CONTROLS)
    return next((arm for arm in preferred if arm in arms), arms[0])


def group_arms(cell: Cell, arms: Sequence[results.Arm]) -> dict[str, list[str]]:
    """Return the arms that are ranked together: HTTP servers that parse apart from those whose answer is fixed."""
    if cell.workload != "http":
        return {"all": [arm.name for arm in arms]}
    probed = {probe.arm: probe.parser for probe in cell.probes}
    groups: dict[str, list[str]] = {}
    for arm in arms:
        # What was found out counts; what it declares counts where nothing was.
        found = probed.get(arm.repeats or arm.name, "unknown")
        if found == "unknown":
            found = arm.declares.get("parser", "unknown")
        groups.setdefault(found, []).append(arm.name)
    return groups


def analyse(cell: Cell, arms: Sequence[results.Arm], baseline: str = "") -> results.Analysis:
    """Return what the samples of a cell say; `baseline` is the arm that the user wants to compare with, if any."""
    present = [arm for arm in arms if cell.measured(arm.name)]
    analysis = results.Analysis(summaries=summarize(cell, [arm.name for arm in present]))
    repeated = {arm.repeats: arm.name for arm in present if arm.repeats}
    # One A/A arm is enough for a cell: the machine is the same for all groups.
    again = next(
        (
            statistics.estimate(
                statistics.log_ratios(cell.series(copy, cell.primary.key), cell.series(original, cell.primary.key))
            )
            for original, copy in repeated.items()
        ),
        None,
    )
    for name, members in group_arms(cell, present).items():
        originals = [member for member in members if member not in repeated.values()]
        if originals:
            analysis.groups.append(analyse_group(cell, name, members, originals, baseline, repeated, again))
    analysis.curves = curves(cell, [arm.name for arm in present])
    analysis.notes = notes(cell, arms)
    return analysis


def analyse_group(
    cell: Cell,
    name: str,
    members: list[str],
    originals: list[str],
    baseline: str,
    repeated: dict[str, str],
    again: statistics.Estimate | None,
) -> Group:
    """Compare the arms of a group, and say who is best."""
    reference = choose_baseline(originals, baseline, cell.workload)
    primary_floor = statistics.noise_floor(again)
    comparisons: list[Comparison] = []
    for metric in cell.metrics:
        others = [arm for arm in originals if arm != reference]
        floor = primary_floor if metric.primary else statistics.MARGIN
        comparisons += compare(cell, metric, others, reference, floor)
        if reference in repeated:
            # Its verdict must not rest on a floor that it has set itself.
            comparisons += compare(cell, metric, [repeated[reference]], reference, statistics.MARGIN)
    if again is None:
        noise_text = f"no A/A arm was measured: differences below {percent(1 + primary_floor)} count as none"
    else:
        low, high = again.interval
        noise_text = (
            f"two copies of one arm differ by a ratio of {show_ratio(again.ratio)} ({show_ratio(low)} to {show_ratio(min(high, 1e9))}):"
            f" differences below {percent(1 + primary_floor)} count as none"
        )
    return Group(
        name=name,
        arms=members,
        baseline=reference,
        noise_floor=primary_floor,
        noise_text=noise_text,
        comparisons=comparisons,
        verdict=who_is_best(cell, originals, primary_floor),
    )


def who_is_best(cell: Cell, arms: list[str], floor: float) -> Verdict:
    """Say which arm is best by the primary metric: it must be better than each other one, with Holm's correction."""
    metric = cell.primary
    medians = {
        arm: averages.median(values)
        for arm in arms
        if (values := [value for value in cell.series(arm, metric.key) if value is not None])
    }
    if len(medians) < 2:
        only = f"only {next(iter(medians))} was measured" if medians else "nothing was measured"
        return Verdict(kind="nothing to compare", arms=list(medians), sentence=f"nothing to compare: {only}")
    sign = 1 if metric.better == "lower" else -1
    ranked = sorted(medians, key=lambda arm: sign * medians[arm])
    best, second = ranked[0], ranked[1]
    comparisons = compare(cell, metric, ranked[1:], best, floor)
    by_arm = {comparison.arm: comparison for comparison in comparisons}
    open_arms = [arm for arm in ranked[1:] if arm not in by_arm or by_arm[arm].verdict == "cannot tell"]
    tied = [arm for arm in ranked[1:] if arm in by_arm and by_arm[arm].verdict in ("tie", "better")]
    if not open_arms and not tied:
        ratio = by_arm[second].ratio
        text = f"{percent(ratio)} {more_or_less(ratio)}" if ratio < 2 else f"{show_ratio(ratio)} times as much"
        return Verdict(
            kind="winner", arms=[best], sentence=f"{best} wins: the next, {second}, has {text} {metric.title}"
        )
    if not open_arms:
        names = some_of([best, *tied])
        return Verdict(
            kind="tie",
            arms=[best, *tied],
            sentence=f"tie: {names} are equal in {metric.title} within {percent(1 + statistics.TIE_MARGIN)}",
        )
    needed = [by_arm[arm].rounds_needed if arm in by_arm else None for arm in open_arms]
    most = None if any(each is None for each in needed) else max(each for each in needed if each is not None)
    rest = some_of([*tied, *open_arms])
    return Verdict(
        kind="cannot tell",
        arms=[best, *tied, *open_arms],
        sentence=f"cannot tell {best} from {rest} in {metric.title}; {would_take(most)}",
        rounds_needed=most,
    )


def curves(cell: Cell, arms: Sequence[str]) -> list[Curve]:
    """Return the latency by percentile of each arm, with the histograms of its rounds added up."""
    found = []
    for arm in arms:
        for kind in ("service", "corrected"):
            encoded = [sample.histograms[kind] for sample in cell.measured(arm) if kind in sample.histograms]
            if not encoded:
                continue
            merged = HdrHistogram(1, HISTOGRAM_MOST_NS, HISTOGRAM_DIGITS)
            for text in encoded:
                merged.add(HdrHistogram.decode(text.encode()))
            points = [[each, float(merged.get_value_at_percentile(each))] for each in CURVE_PERCENTILES]
            found.append(Curve(arm=arm, kind="service" if kind == "service" else "corrected", points=points))
    return found


def notes(cell: Cell, arms: Sequence[results.Arm]) -> list[str]:
    """Return what a reader must know besides: limits of the load, void and failed samples, empty hands."""
    found = []
    limited = [arm for arm in cell.arms if any(sample.client_limited for sample in cell.measured(arm))]
    if limited:
        found.append(
            f"client-limited: {', '.join(limited)}: the load generator was near its own limit, so rates are lower bounds"
            " and latencies hold its own; CPU per operation is as good as elsewhere"
        )
    for arm in cell.arms:
        for status in ("void", "failed"):
            samples = [sample for sample in cell.samples if sample.arm == arm and sample.status == status]
            if samples:
                reasons = "; ".join(dict.fromkeys(reason for sample in samples for reason in sample.reasons))
                rounds = ", ".join(str(sample.round) for sample in samples)
                found.append(f"{status}: {arm} in round {rounds}: {reasons}")
    offered = cell.parameters.get("offered_rate_per_s")
    for arm in cell.arms:
        rates = [value for value in cell.series(arm, "operations_per_s") if value is not None]
        if offered and rates and averages.median(rates) < RATE_KEPT * offered:
            found.append(
                f"{arm} didn't keep up: it answered {averages.median(rates):,.0f} of {offered:,.0f} requests/s"
            )
    for each in arms:
        probe = next((probe for probe in cell.probes if probe.arm == each.name), None)
        declared = each.declares.get("parser")
        if probe is not None and declared in ("real", "canned") and probe.parser not in ("unknown", declared):
            found.append(
                f"{each.name} declares a {declared} parser, and behaves as a {probe.parser} one: it is ranked with these"
            )
    return found
