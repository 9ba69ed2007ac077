"""The evaluation of a cell's samples: summaries, ratios, verdicts in words, latency curves."""

import math
import statistics as averages
from collections.abc import Mapping, Sequence

from hdrh.histogram import HdrHistogram

from ringlab import figures, results, statistics
from ringlab.results import Cell, Comparison, Curve, Group, Metric, Summary, Verdict

CURVE_PERCENTILES = (
    *(float(each) for each in range(0, 90, 5)), 90.0, 92.5, 95.0, 97.0, 98.0, 99.0, 99.5, 99.7, 99.9, 99.95, 99.99, 99.999, 100.0,
)  # fmt: skip
CURVE_COUNT_LEAST = 10
"""At least this many operations of a curve were as slow as its last percentile (except for the maximum)."""
NAMES_MOST = 5
"""In a sentence."""
RATE_KEPT = 0.97
"""The share of the offered rate that counts as kept up with."""
HISTOGRAM_MOST_NS = 3_600_000_000_000
HISTOGRAM_DIGITS = 3
FLOORS = ("c-epoll", "c-io_uring")
"""Preferred baselines, if they take part and the user names none: they show what the kernel alone costs."""
CONTROLS = ("asyncio-protocol", "asyncio", "asyncio-uvicorn")
"""The same, where no floor takes part."""
ASGI_CONTROLS = ("uvicorn-uvloop", "granian")
"""The same among ASGI servers."""


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
    """Return the verdict of an estimate; `comparisons` is the number of comparisons that `p_adjusted` accounts for."""
    standing = statistics.judge(found, p_adjusted, floor)
    low, high = found.interval
    comparison = Comparison(
        metric=metric.key,
        arm=arm,
        baseline=baseline,
        ratio=found.ratio,
        low=low,
        high=high,
        confidence=statistics.CONFIDENCE,
        p=found.p,
        p_adjusted=p_adjusted,
        rounds=found.rounds,
        ratios=statistics.ratios_by_round(cell.series(arm, metric.key), cell.series(baseline, metric.key)),
        verdict=side(standing, metric),
        rounds_needed=statistics.rounds_needed(found, floor, comparisons) if standing == "cannot tell" else None,
    )
    comparison.sentence = sentence_of(comparison, metric, found, floor, comparisons)
    return comparison


def side(standing: statistics.Standing, metric: Metric) -> results.ComparisonVerdict:
    """Return what being below or above means in this metric."""
    if standing in ("tie", "cannot tell"):
        return standing
    return "better" if (standing == "below") == (metric.better == "lower") else "worse"


def how_much(ratio: float) -> str:
    """Say how much a ratio is more or less than 1."""
    if ratio >= 2:
        return f"{figures.ratio(ratio)} times as much"
    return f"{figures.difference(ratio)} {'more' if ratio > 1 else 'less'}"


def sentence_of(
    comparison: Comparison, metric: Metric, found: statistics.Estimate, floor: float, comparisons: int
) -> str:
    """Say in words what a comparison found."""
    arm, baseline, ratio = comparison.arm, comparison.baseline, comparison.ratio
    within = figures.ratio_within(ratio, comparison.low, comparison.high)
    if comparison.verdict == "tie":
        low, high = found.interval_inner
        return f"{arm} and {baseline} tie in {metric.title}: they differ by less than {figures.difference(max(high, 1 / low, 1.001))}"
    if comparison.verdict == "cannot tell":
        if comparison.rounds < statistics.ROUNDS_LEAST:
            why = f"{comparison.rounds} of at least {statistics.ROUNDS_LEAST} rounds have both"
        else:
            why = f"the ratio is {within}"
            # An interval without 1 asks for the reason why it is no verdict.
            if not comparison.low <= 1 <= comparison.high:
                if abs(found.log_ratio) <= math.log1p(floor):
                    why += ", which is within the noise"
                elif comparison.p_adjusted >= 1 - statistics.CONFIDENCE:
                    why += f", but by chance alone one of {comparisons} arms may be this far off"
        return f"{arm} against {baseline} in {metric.title}: cannot tell, {why}; {would_take(comparison.rounds_needed)}"
    return f"{arm} is {comparison.verdict} than {baseline} in {metric.title}: {how_much(ratio)}, a ratio of {within}"


def some_of(names: Sequence[str]) -> str:
    """Return names as a list in words, a long one shortened."""
    if len(names) > NAMES_MOST:
        return f"{', '.join(names[: NAMES_MOST - 1])} and {len(names) - NAMES_MOST + 1} more"
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def would_take(rounds: int | None) -> str:
    """Say how many rounds a verdict would take."""
    if rounds is None:
        return f"{statistics.ROUNDS_MOST:,} rounds wouldn't tell either"
    return f"about {rounds:,} rounds would tell"


def choose_baseline(arms: Sequence[str], asked: str, workload: str) -> str:
    """Return the arm that the others are compared with: the one asked for, a floor, a control, or the first."""
    controls = {"loop": CONTROLS, "asgi": ASGI_CONTROLS}.get(workload, (*FLOORS, *CONTROLS))
    preferred = (asked, *controls)
    return next((arm for arm in preferred if arm in arms), arms[0])


def group_arms(cell: Cell, arms: Sequence[results.Arm]) -> dict[str, list[str]]:
    """Return the arms that are ranked together: HTTP servers that parse apart from those whose answer is fixed."""
    if cell.workload != "http":
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
    present = [arm for arm in arms if cell.measured(arm.name)]
    names = [arm.name for arm in present]
    analysis = results.Analysis(summaries=summarize(cell, names))
    # The noise is a property of the machine, even if only other arms are shown.
    copies = {arm.repeats: arm.name for arm in present if arm.repeats and cell.measured(arm.repeats)}
    # But a copy of an arm that isn't shown competes with no other arm.
    ranked = [arm for arm in present if not arm.repeats or arm.repeats in names]
    for name, members in group_arms(cell, ranked).items() if ranked else ():
        analysis.groups.append(analyse_group(cell, name, members, baseline, copies))
    analysis.curves = curves(cell, names)
    analysis.notes = notes(cell, arms)
    return analysis


def again(cell: Cell, metric: Metric, copies: Mapping[str, str]) -> statistics.Estimate | None:
    """Return the ratio of the A/A arm to the arm that it is a copy of; None if there is no A/A arm.

    One is enough for a cell: the machine is the same for all groups.
    """
    return next(
        (
            statistics.estimate(statistics.log_ratios(cell.series(copy, metric.key), cell.series(original, metric.key)))
            for original, copy in copies.items()
        ),
        None,
    )


def analyse_group(cell: Cell, name: str, members: list[str], baseline: str, copies: Mapping[str, str]) -> Group:
    """Compare the arms of a group, and say who is best; `copies` are the A/A arms by what they are copies of."""
    originals = [member for member in members if member not in copies.values()]
    # If most samples of the baseline are void, few rounds of the other arms have a ratio.
    enough = [arm for arm in originals if rounds_of(cell, arm) >= statistics.ROUNDS_LEAST]
    reference = choose_baseline(originals if baseline in originals else enough or originals, baseline, cell.workload)
    comparisons: list[Comparison] = []
    for metric in cell.metrics:
        floor = statistics.noise_floor(again(cell, metric, copies))
        comparisons += compare(cell, metric, [arm for arm in originals if arm != reference], reference, floor)
        # A copy does not count for Holm's correction, and its verdict must not depend on a noise floor that it has set
        # itself.
        comparisons += compare(
            cell, metric, [arm for arm in members if arm not in originals], reference, statistics.MARGIN
        )
    noise = again(cell, cell.primary, copies)
    floor = statistics.noise_floor(noise)
    group = Group(
        name=name,
        arms=members,
        baseline=reference,
        noise_floor=floor,
        noise_text=describe_noise(noise, floor),
        comparisons=comparisons,
        verdict=Verdict(kind="nothing to compare", arms=[], sentence=""),
    )
    ranking = group.ranking(cell.primary)
    if len(originals) == 1:
        # An arm against itself: whether the lab reports a difference where there is none.
        group.verdict = who_is_best(cell, ranking, statistics.MARGIN)
    else:
        group.verdict = who_is_best(cell, [arm for arm in ranking if arm in originals], floor)
    return group


def describe_noise(noise: statistics.Estimate | None, floor: float) -> str:
    """Say what the A/A arm has shown, and what follows from that."""
    follows = f"differences below {figures.percent(floor)} count as none"
    if noise is None:
        return f"no A/A arm was measured: {follows}"
    if noise.rounds < 2:
        return f"two copies of one arm were measured in one round only: {follows}"
    return f"two copies of one arm differ by a ratio of {figures.ratio_within(noise.ratio, *noise.interval)}: {follows}"


def rounds_of(cell: Cell, arm: str) -> int:
    """Return in how many rounds an arm's primary figure was measured."""
    return sum(value is not None for value in cell.series(arm, cell.primary.key))


def who_is_best(cell: Cell, ranking: Sequence[str], floor: float) -> Verdict:
    """Say which of some arms is best by the primary metric: it must be better than each other one, with Holm's correction.

    The first one of the ranking is a guess that the others are compared with; the verdict rests on these comparisons alone.
    """
    metric = cell.primary
    enough = [arm for arm in ranking if rounds_of(cell, arm) >= statistics.ROUNDS_LEAST]
    ranked = enough if len(enough) >= 2 else list(ranking)
    if len(ranked) < 2:
        only = f"only {ranked[0]} was measured" if ranked else "nothing was measured"
        return Verdict(kind="nothing to compare", arms=ranked, sentence=f"nothing to compare: {only}")
    best, others = ranked[0], ranked[1:]
    found = {comparison.arm: comparison for comparison in compare(cell, metric, others, best, floor)}
    tied = [arm for arm in others if arm in found and found[arm].verdict == "tie"]
    # If an arm is better than this guess, because it was measured in other rounds than the rest, there is no winner.
    unknown = [arm for arm in others if arm not in found or found[arm].verdict in ("cannot tell", "better")]
    worse = len(others) - len(tied) - len(unknown)
    rest = f"; {'the other one is' if worse == 1 else f'the other {worse} are'} worse" if worse else ""
    needed = None
    if unknown:
        kind: results.CellVerdict = "cannot tell"
        counts = [found[arm].rounds_needed if arm in found else None for arm in unknown]
        finite = [each for each in counts if each is not None]
        needed = None if None in counts else max(finite)
        would = would_take(needed)
        if not all(arm in found for arm in unknown):
            would = "not all have a round in common"
        elif finite and needed is None:
            would = f"about {max(finite):,} rounds would tell {len(finite)} of these {len(unknown)}"
        sentence = f"cannot tell {best} from {some_of([*unknown, *tied])} in {metric.title}{rest}; {would}"
    elif tied:
        kind = "tie"
        names = some_of([best, *tied])
        sentence = f"tie: {names} are equal in {metric.title} within {figures.percent(statistics.TIE_MARGIN)}{rest}"
    else:
        kind = "winner"
        second = min(others, key=lambda arm: abs(math.log(found[arm].ratio)))
        sentence = f"{best} wins: the next, {second}, has {how_much(found[second].ratio)} {metric.title}"
    missing = [arm for arm in ranking if arm not in ranked]
    if missing:
        sentence += f"; not ranked: {some_of(missing)}, measured in fewer than {statistics.ROUNDS_LEAST} rounds"
    return Verdict(kind=kind, arms=[best, *tied, *unknown], sentence=sentence, rounds_needed=needed)


def curves(cell: Cell, arms: Sequence[str]) -> list[Curve]:
    """Return the latency by percentile of each arm, with the histograms of its rounds added up."""
    found = []
    for arm in arms:
        for kind in ("service", "corrected"):
            encoded = [sample.histograms[kind] for sample in cell.measured(arm) if kind in sample.histograms]
            if not encoded:
                continue
            merged = HdrHistogram(1, HISTOGRAM_MOST_NS, HISTOGRAM_DIGITS)
            try:
                for text in encoded:
                    merged.add(HdrHistogram.decode(text.encode()))
            except Exception as error:  # Whatever its parts raise: base64, zlib, and its own.
                raise results.ResultError(f"{cell.name}: a histogram of {arm} can't be decoded: {error}") from None
            count = merged.get_total_count()
            points = [
                [each, float(merged.get_value_at_percentile(each))]
                for each in CURVE_PERCENTILES
                # Beyond these, the curve would show only a few single operations, as a horizontal line.
                if each == 100 or count * (1 - each / 100) >= CURVE_COUNT_LEAST
            ]
            found.append(Curve(arm=arm, kind="service" if kind == "service" else "corrected", points=points))
    return found


def notes(cell: Cell, arms: Sequence[results.Arm]) -> list[str]:
    """Return what else a reader must know: limits of the load, void and failed samples, arms without figures."""
    found = []
    limited = [arm for arm in cell.arms if any(sample.client_limited for sample in cell.measured(arm))]
    if limited:
        everyone = len(limited) > NAMES_MOST and all(arm in limited for arm in cell.arms if cell.measured(arm))
        found.append(
            f"client-limited: {'all arms' if everyone else ', '.join(limited)}: the load generator was near its own limit, so rates"
            " are lower bounds and latencies include its own; CPU per operation remains valid"
        )
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
            behind = max(each["stream_outstanding_bytes"] for each in held_back) / 1e6
            found.append(
                f"{arm} lagged {figures.significant(behind)} MB behind on a connection: sending was held back until half of that had"
                " come back"
            )
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
