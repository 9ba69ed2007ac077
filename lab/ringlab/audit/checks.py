"""Contradictions within a report's own figures: each check looks at records, and yields findings with their arithmetic.

Limits are wider than rounding and honest measuring make necessary: a check that cries wolf is worth nothing. They stand below,
with their reasons.
"""

import collections
import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ringlab import figures
from ringlab.audit.quantities import Quantity, megabits, plain, seconds, size
from ringlab.audit.records import LATENCIES, NAMES, PERCENTILES, Record, names_of

Severity = Literal["contradiction", "weakness"]
Records = Sequence[Record]

IN_FLIGHT_MIN, IN_FLIGHT_MAX, IN_FLIGHT_WRK = 0.75, 1.3, 10.0
"""Of the connections of a closed loop, the share that is under way on average. The client's own time between an answer and the
next request is missing in it. wrk before 4.0 added latencies for pauses: the example in its README gives 1.2, others up to 4."""
OPERATIONS_MIN = 20
"""Of each connection: with fewer, the beginning and the end of a run decide the mean rate."""
DIVISION_MIN = 0.015
"""Share of the connections that wrk's division among threads leaves out: less changes no figure that anyone would notice."""
SAMPLE_S_MIN = 0.1
"""A shorter sample is decided by one preemption (of 4 ms on Linux) or one interrupt."""
SLACK = 0.02
"""Figures of one run that programs take at slightly different moments."""
SAME, REPEAT_SLACK = 0.005, 0.03
"""Two figures that are this close state one measurement; two that ought to, and are further apart than the second, contradict."""
ALIKE, ALIKE_RATIO_MIN = 0.06, 2.0
"""Two benchmarks whose figures are this close for every subject may be one, unless the subjects themselves hardly differ."""
BANDWIDTH_SLACK = 0.1
EFFICIENCY_MARGIN = 0.1
WAITING_MIN = 0.1
FAILED_MIN = 0.001
"""Share of the requests; wrk counts the connections that a server closes at the end as a few read errors."""
IDLE_CPU, FLAT, MORE_CONNECTIONS = 85.0, 1.05, 2.0
"""A rate that stays within 5% at twice the connections, while the CPU isn't nearly full."""
DESCRIPTORS = (256, 1024, 4096, 65_536)
"""Limits that systems set by themselves (macOS: 256; Linux: 1,024 soft, 4,096 hard in older kernels)."""
DESCRIPTORS_STANDARD = 3
SEGMENT_MIN = 536
"""The smallest segment that TCP assumes without an option (RFC 9293, 3.7.1)."""
FACTORS = ((8.0, "bits and bytes"), (1.048576, "MB and MiB"), (1.024, "1,000 and 1,024"), (1000.0, "a unit of 1,000"))
COMPARED = ("operation", "rate", "mean", "total", "bandwidth", "bandwidth_each", "p50", "p95", "p99", "p999")
RULES: dict[str, tuple[Severity, str]] = {
    "littles-law": ("contradiction", "that many requests were under way: other connections didn't exist, or weren't served"),
    "connections": ("contradiction", "the figures are those of the connections that were open"),
    "division": ("weakness", "wrk gives every thread the same whole number of connections, and drops the rest"),
    "errors": ("weakness", "a rate counts answers of all kinds, and an error is often cheaper than an answer"),
    "percentiles": ("contradiction", "a higher percentile of the same latencies can't be smaller"),
    "mean": ("contradiction", "mean and percentiles aren't of the same requests, or one has another unit"),
    "short-sample": ("weakness", "one preemption or interrupt of a few ms decides it: repeat until a sample takes 100 ms"),
    "few-operations": ("weakness", "a percentile needs at least ten operations beyond it"),
    "waiting": ("weakness", "the wait is the same for everyone and hides the difference: measure how late each timer is"),
    "rate": ("contradiction", "one of the figures isn't of this run"),
    "bandwidth": ("contradiction", "one of the figures is wrong, or has another unit"),
    "units": ("contradiction", "MB of 10^6 and MiB of 2^20 bytes were confused, or the output was edited"),
    "derived": ("weakness", "with one message under way it says what the latency says, client included, and nothing about capacity"),
    "totals": ("contradiction", "not all of them took part all the time, or the figures are of different runs"),
    "hidden-total": ("weakness", "a figure per connection falls by itself when there are more: give the total in each direction"),
    "both-directions": ("weakness", "an echo sends what it receives: the bandwidth is half of what is shown"),
    "streams": ("weakness", "small messages were combined to large writes: it is a stream, and no rate of messages"),
    "two-places": ("contradiction", "places that state one measurement must agree: one is of another program, setting or day"),
    "repeats": ("weakness", "smaller differences between subjects than those between reports mean nothing"),
    "ranking": ("contradiction", "the rank and the figure are of different measurements"),
    "calculated": ("contradiction", "two measurements never agree to the last digit: one was calculated, or copied"),
    "identical": ("weakness", "they may time the same code, and two benchmarks that measure one thing count as one"),
    "factors": ("weakness", "a difference can't be told to come from either: measure every subject under every condition"),
    "efficiency": ("weakness", "with the CPUs full the slower one may be the faster one"),
    "saturation": ("weakness", "something else than the server's CPU limits the rate, perhaps the client: the figures compare that"),
    "change": ("contradiction", "it is of other figures than those shown"),
    "rounding": ("weakness", "give more digits, or no difference"),
    "winner": ("contradiction", "the winner and the figures are of different runs, or the comparison was turned round"),
}  # fmt: skip
"""By name: how severe it is, and what follows."""


@dataclass(frozen=True)
class Finding:
    """Something that a report's own figures contradict, or can't carry."""

    rule: str
    report: str
    line: int
    what: str
    """In one sentence."""
    arithmetic: str
    """The calculation, so that a reader can repeat it."""

    @property
    def severity(self) -> Severity:
        """Whether figures can't all be true, or are too weak for what is concluded from them."""
        return RULES[self.rule][0]

    @property
    def meaning(self) -> str:
        """The consequence."""
        return RULES[self.rule][1]


def finding(rule: str, record: Record, kind: str, what: str, arithmetic: str) -> Finding:
    """Make a finding about a figure of a record."""
    return Finding(rule, record.document, record.line_of(kind), what, arithmetic)


def times(*quantities: Quantity) -> Quantity:
    """Return a product."""
    value, low, high = (math.prod(getattr(each, end) for each in quantities) for end in ("value", "low", "high"))
    return replace(quantities[0], value=value, low=low, high=high)


def is_near(ratio: float, factor: float, slack: float = 0.03) -> bool:
    """Return whether a ratio is a factor or its inverse."""
    return abs(ratio / factor - 1) < slack or abs(ratio * factor - 1) < slack


def grouped(records: Iterable[Record], key: Callable[[Record], Hashable]) -> list[list[Record]]:
    """Return records in groups of one key."""
    found: dict[Hashable, list[Record]] = {}
    for record in records:
        found.setdefault(key(record), []).append(record)
    return list(found.values())


def families(records: Records) -> list[list[Record]]:
    """Return what is compared: the records of each table, all lists of a report, and each output by itself."""
    return grouped(records, lambda each: (each.document, each.source, -1 if each.source == "list" else each.group))


def same_subject(one: str, other: str) -> bool:
    """Return whether two names mean the same: equal but for case, or one has the other's words in parentheses."""
    return bool(names_of(one) & names_of(other))


def alike_groups(family: Records) -> list[list[Record]]:
    """Return the records of a family by case and conditions: those that may be set beside each other."""
    return grouped(family, lambda each: (each.label, each.conditions))


# --- one record ---


def check_littles_law(record: Record) -> Iterator[Finding]:
    """Check by Little's law: the mean number of requests under way is the rate times the mean latency."""
    pair = record.all("cycles", "cycle") or ([] if record.source == "k6" else record.all("rate", "mean"))
    connections, count = record.all("connections"), record.get("operations") or record.get("count")
    if not pair or not connections or not record.closed:
        return
    asked, flying = connections[0].value, times(*pair)
    if count is not None and count.value < OPERATIONS_MIN * asked:
        return
    if not flying.near(IN_FLIGHT_MIN * asked, (IN_FLIGHT_WRK if record.get("wrk_threads") else IN_FLIGHT_MAX) * asked):
        ratio = max(flying.value / asked, asked / flying.value)
        unit = next((f"; off by {name}?" for factor, name in FACTORS if factor > 2 and is_near(ratio, factor)), "")
        what = f"{record.name}: {plain(asked)} connections can't give this rate and this latency"
        words = f"{pair[0].shown} x {pair[1].shown} = {plain(round(flying.value, 1))} requests under way, not {plain(asked)}"
        yield finding("littles-law", record, "rate", what, words + unit)


def check_connections(record: Record) -> Iterator[Finding]:
    """Find connections that can't have existed: errors, and wrk's division among its threads."""
    connections, threads, errors = record.get("connections"), record.get("wrk_threads"), record.get("connect_error")
    if connections is None:
        return
    asked, workers = connections.value, threads.value if threads else 0.0
    opened = asked // workers * workers if workers else asked
    each = f"{workers:.0f} threads x {asked // workers:.0f} = {plain(opened)}" if opened != asked else ""
    if errors is not None and 0 < errors.value < opened:
        left = opened - errors.value
        used = left + workers + DESCRIPTORS_STANDARD
        limit = next((limit for limit in DESCRIPTORS if abs(used - limit) <= 2), 0)
        words = (
            f"{each}; " * bool(each)
            + f"{plain(opened)} - {plain(errors.value)} connect errors = {plain(left)} connections"
        )
        if limit:
            words += f"; {plain(left)}" + f" + {workers:.0f} epoll sets" * bool(workers)
            words += f" + 3 standard descriptors = {used:,.0f}: the client met the limit of {limit:,}"
        what = f"{record.name}: not {plain(asked)} connections were open, but {plain(left)}"
        yield finding("connections", record, "connect_error", what, words)
    elif asked - opened >= DIVISION_MIN * asked:
        # Not named after the subject: it is the same for all, and told once.
        words = f"{asked:.0f} connections / {workers:.0f} threads = {asked // workers:.0f} for each thread; {each}"
        what = f"wrk opened {plain(opened)} connections, not {plain(asked)}"
        yield finding("division", record, "connections", what, words)


def check_errors(record: Record) -> Iterator[Finding]:
    """Find answers that weren't right, and requests without an answer."""
    names = {"failed": "answers other than 2xx and 3xx", "read_error": "read errors", "write_error": "write errors"}
    names |= {"timeout": "timeouts", "error": "errors"}
    done, failed = record.all("operations"), record.all("failed")
    # hey counts the answers with status 4xx and 5xx apart.
    requests = sum(each.value for each in done + (failed if record.source == "hey" else []))
    for kind, name in names.items():
        if requests and (count := record.all(kind)) and count[0].value >= FAILED_MIN * requests:
            words = (
                f"{count[0].shown} {name} / {plain(requests)} requests = {figures.percent(count[0].value / requests)}"
            )
            yield finding("errors", record, kind, f"{record.name}: {name} are part of the rate", words)
    for kind, share in (("failed_share", record.get("failed_share")), ("success", record.get("success"))):
        lost = 0.0 if share is None else 100 - share.value if kind == "success" else share.value
        if lost >= 100 * FAILED_MIN:
            what, words = (
                f"{record.name}: failures are part of the rate",
                f"{figures.plain(lost)}% of the requests failed",
            )
            yield finding("errors", record, kind, what, words)


def check_percentiles(record: Record) -> Iterator[Finding]:
    """Check that percentiles don't fall."""
    for below, above in itertools.pairwise(kind for kind in LATENCIES if kind in record.figures):
        low, high = record.figures[below], record.figures[above]
        if low.low > high.high:
            lower, upper = NAMES.get(below, below), NAMES.get(above, above)
            words = f"{upper} {high.shown} < {lower} {low.shown}"
            yield finding("percentiles", record, above, f"{record.name}: {upper} is below {lower}", words)


def check_mean(record: Record) -> Iterator[Finding]:
    """Check that the percentiles allow the mean: a share (1 - q) of the requests took at least the percentile q."""
    mean, least, most = record.get("mean"), record.get("min"), record.get("max")
    known = [(share / 100, record.figures[kind]) for kind, share in PERCENTILES.items() if kind in record.figures]
    if mean is None or not known:
        return
    marks = ([(0.0, least)] if least else []) + known
    lows = [
        (end - share, each) for (share, each), end in zip(marks, [*(share for share, _ in marks[1:]), 1.0], strict=True)
    ]
    low = sum(share * max(each.low, least.low if least else 0.0) for share, each in lows)
    marks = known + ([(1.0, most)] if most else [])
    highs = [(share - start, each) for (share, each), (start, _) in zip(marks, [(0.0, mean), *marks], strict=False)]
    high = sum(share * each.high for share, each in highs) if most else math.inf
    for wrong, size_of, sign, parts, bound in (
        (mean.high < low * (1 - SLACK), "smaller", ">=", lows, low),
        (mean.low > high * (1 + SLACK), "greater", "<=", highs, high),
    ):
        if wrong:
            words = " + ".join(f"{share:.4g} x {each.shown}" for share, each in parts)
            what = f"{record.name}: the mean is {size_of} than the percentiles allow"
            words = f"mean {sign} {words} = {seconds(bound)}, but it is {mean.shown}"
            yield finding("mean", record, "mean", what, words)


def check_few_operations(record: Record) -> Iterator[Finding]:
    """Find percentiles that are maxima, unless the tool shows by itself that they are."""
    count, most = record.get("operations") or record.get("count"), record.get("max")
    kind = next((kind for kind in reversed(PERCENTILES) if kind in record.figures), "")
    beyond = count.value * (1 - PERCENTILES[kind] / 100) if count and kind else 1.0
    if count and beyond < 0.999 and not (most and most.value == record.figures[kind].value):
        what = f"{record.name}: {kind} of {plain(count.value)} operations is their maximum"
        words = f"{plain(count.value)} x {100 - PERCENTILES[kind]:.4g}% = {beyond:.2g} are slower"
        yield finding("few-operations", record, kind, what, words)


# Of each: the rule, the figure, those whose product it is, those that divide it, the slack, and what it may be a multiple of.
EQUATIONS: tuple[tuple[str, str, tuple[str, ...], tuple[str, ...], float, tuple[float, ...]], ...] = (
    ("rate", "rate", ("operations",), ("measured",), SLACK, (1.0,)),
    ("rate", "rate", ("count",), ("total",), SLACK, (1.0,)),
    ("rate", "rate", (), ("operation",), SLACK, (1.0,)),
    ("rate", "operation", ("total",), ("count",), SLACK, (1.0,)),
    ("bandwidth", "bandwidth", ("bytes",), ("measured",), SLACK, (1.0,)),
    ("bandwidth", "bandwidth_down", ("bytes_received",), ("measured",), SLACK, (1.0,)),
    ("bandwidth", "bandwidth_up", ("bytes_sent",), ("measured",), SLACK, (1.0,)),
    ("units", "rounded_sent", ("bytes_sent",), (), 0.001, (1.0,)),
    ("units", "rounded_received", ("bytes_received",), (), 0.001, (1.0,)),
    # wrk averages samples of each thread, which a slow start distorts.
    ("totals", "rate", ("rate_each_thread", "wrk_threads"), (), 0.2, (1.0,)),
    ("totals", "bandwidth_total", ("bandwidth_each", "connections"), (), SLACK, (1.0, 0.5, 2.0)),
    ("totals", "bandwidth_each", ("bandwidth_both",), ("connections",), SLACK, (1.0,)),
)


def check_equations(record: Record) -> Iterator[Finding]:
    """Check products and quotients: operations / time = rate, bytes / time = bandwidth, threads x rate of each = rate."""
    for rule, kind, factors, divisors, slack, multiples in EQUATIONS:
        found, above, below = record.all(kind), record.all(*factors), record.all(*divisors)
        if not found or len(above + below) < len(factors + divisors):
            continue
        if divisors == ("operation",) and record.get("connections"):
            continue  # Of several connections, each has an operation under way.
        value = times(*above, *(each.inverse(each.dimension) for each in below))
        if not any(found[0].near(value.low * part, value.high * part, slack) for part in multiples):
            words = (" x ".join(each.shown for each in above) or "1") + "".join(f" / {each.shown}" for each in below)
            what = f"{record.name}: {NAMES.get(kind, kind)} and the figures beside it disagree"
            result = replace(value, dimension=found[0].dimension).shown
            yield finding(rule, record, kind, what, f"{words} = {result}, not {found[0].shown}")


def check_bandwidth(record: Record) -> Iterator[Finding]:
    """Check that bandwidth = rate x size, in one direction or in both."""
    found, rate, mean, connections = (
        record.all("bandwidth", "size"),
        record.all("rate"),
        record.all("mean"),
        record.get("connections"),
    )
    derived = bool(mean) and not rate and (connections is None or connections.value == 1)
    rate = [mean[0].inverse("rate")] if derived else rate
    if not found or not rate:
        return
    (bandwidth, message), value = found, times(rate[0], found[1])
    if any(bandwidth.near(value.low * ways, value.high * ways, BANDWIDTH_SLACK) for ways in (1, 2)):
        if derived:
            what = f"{record.name}: the bandwidth is the size divided by the round trip"
            words = f"{message.shown} / {mean[0].shown} = {size(value.value)}/s; {bandwidth.text} are reported"
            yield finding("derived", record, "bandwidth", what, words)
    elif not value.high < bandwidth.low < (2 + BANDWIDTH_SLACK) * value.high:  # Headers come on top of a body.
        ratio = bandwidth.value / value.value
        unit = next(
            (f": {name}?" for factor, name in FACTORS if is_near(ratio, factor) or is_near(ratio, 2 * factor)), ""
        )
        words = f"{plain(rate[0].value)}/s x {message.shown} = {size(value.value)}/s, not {bandwidth.text}, which is"
        words += f" {size(bandwidth.value)}/s: off by {figures.plain(max(ratio, 1 / ratio))}{unit}"
        yield finding("bandwidth", record, "bandwidth", f"{record.name}: the bandwidth isn't rate x size", words)


# --- the records of a report, of a table, of its lists ---


def check_samples(records: Records) -> Iterator[Finding]:
    """Find samples that are too short."""
    short: list[tuple[float, str, Record]] = []
    for record in records:
        total = record.get("total") or record.get("measured") or record.get("duration")
        count, each = record.get("count"), record.get("operation") or record.get("mean")
        if total is not None and total.high > 0:
            short.append((total.high, f"{total.shown} in all", record))
        elif count is not None and each is not None:
            connections = record.get("connections")  # Of several, each waits for its own.
            parallel = min(connections.value, count.value) if connections and not record.get("operation") else 1.0
            value = count.value * each.value / max(1.0, parallel)
            short.append((value, f"{plain(count.value)} x {each.shown} = {seconds(value)} in all", record))
    short = sorted((each for each in short if each[0] < SAMPLE_S_MIN), key=lambda each: each[0])
    if short:
        what = short[0][2].name + (f", and {len(short) - 1} more like it" if len(short) > 1 else "")
        words = "; ".join(dict.fromkeys(arithmetic for _, arithmetic, _ in short[:4]))
        yield finding("short-sample", short[0][2], "total", f"{what}: measured for less than 100 ms", words)


def check_waiting(family: Records) -> Iterator[Finding]:
    """Find a total that holds a delay that was asked for: timers of 0 to 9 ms take at least 9 ms."""
    for label, cases in itertools.groupby(family, key=lambda record: record.label):
        found = [(record, pair[0], pair[1]) for record in cases if (pair := record.all("total", "delay"))]
        shares = [delay.value / total.value for _, total, delay in found]
        if not found or not all(WAITING_MIN < share < 1 for share in shares):
            continue
        rests = [total.value - delay.value for _, total, delay in found]
        words = "; ".join(f"{r.subject}: {t.shown} - {d.shown} = {seconds(t.value - d.value)}" for r, t, d in found)
        if len(found) == 2:
            words += f"; the ratio is {figures.ratio(rests[0] / rests[1])} without the delay, and"
            words += f" {figures.ratio(found[0][1].value / found[1][1].value)} with it"
        what = f"{label}: {figures.percent(min(shares))} and more of the time is the delay asked for"
        yield finding("waiting", found[0][0], "total", what, words)


def check_streams(records: Records) -> Iterator[Finding]:
    """Find messages of which many are in one write, by tcpkali's own estimate."""
    found = [(record, pair[0], pair[1]) for record in records if (pair := record.all("segments", "message"))]
    found = [
        each for each in found if each[1].value > 1 and not any("stream" in title.lower() for title in each[0].path)
    ]
    if found:
        record, segments, message = max(found, key=lambda each: each[1].value)
        write = segments.value * SEGMENT_MIN
        what = f"messages of {message.value:.0f} bytes were sent many at a time ({len(found)} outputs)"
        words = f"{segments.value:.0f} segments in a write x at least {SEGMENT_MIN} bytes = {plain(write)} bytes ="
        yield finding("streams", record, "segments", what, f"{words} {plain(write // message.value)} messages or more")


def check_hidden_totals(family: Records) -> Iterator[Finding]:
    """Find figures per connection at several numbers of connections, whose totals fall, without the totals."""
    by_subject: dict[str, list[tuple[float, float, Record]]] = {}
    for record in family:
        if (
            record.source == "table"
            and (pair := record.all("bandwidth_each", "connections"))
            and not record.get("bandwidth_total")
        ):
            by_subject.setdefault(record.subject, []).append((pair[1].value, times(*pair).value, record))
    ordered = {subject: sorted(series, key=lambda item: item[0]) for subject, series in by_subject.items()}
    falls = [
        (name, each) for name, each in ordered.items() if each[-1][0] > each[0][0] and each[-1][1] < 0.75 * each[0][1]
    ]
    if falls:
        subject, series = max(falls, key=lambda item: item[1][0][1] / item[1][-1][1])
        what = f"with more connections less is transferred in all ({len(falls)} of {len(by_subject)} subjects)"
        totals = {count: total for count, total, _ in series}
        words = "; ".join(f"{n:,.0f} x {megabits(t / n)} = {megabits(t)}" for n, t in totals.items())
        yield finding("hidden-total", series[0][2], "bandwidth_each", what, f"{subject}: {words}")


def check_ranking(family: Records) -> Iterator[Finding]:
    """Find a rank whose figure is beaten by that of the next."""
    ranked = sorted((each for each in family if "rank" in each.figures), key=lambda each: each.figures["rank"].value)
    found: list[list[Finding]] = []
    for kind in {kind: None for record in ranked for kind in record.figures if kind != "rank"}:
        having = [record for record in ranked if kind in record.figures]
        beaten = []
        for one, other in itertools.pairwise(having):
            first, second = one.figures[kind], other.figures[kind]
            higher = first.dimension in ("rate", "bandwidth")
            if second.low > first.high if higher else second.high < first.low:
                after, before = (f"rank {each.figures['rank'].text} ({each.subject})" for each in (other, one))
                words = f"{other.subject} {second.shown}, {one.subject} {first.shown}; {'higher' if higher else 'lower'} is better"
                beaten.append(finding("ranking", other, kind, f"{after} is better than {before}", words))
        if len(having) > 2:
            found.append(beaten)
    # By which of several figures is ranked, the order says: by that with the fewest exceptions.
    best = min(found, key=len, default=[])
    if len(best) * 2 < len(ranked) - 1:
        yield from best


def check_identical(family: Records) -> Iterator[Finding]:
    """Find two benchmarks with another name and nearly the same figures, for subjects that differ much."""
    cases: dict[str, dict[str, tuple[Quantity, Record]]] = {}
    for record in family:
        each = record.all("operation")
        if whole := record.all("total", "count"):
            each = each or [times(whole[0], whole[1].inverse("number"))]
        each = each or [rate.inverse("time") for rate in record.all("rate") if not record.get("connections")]
        if record.label and record.subject and each:
            cases.setdefault(record.label, {})[record.subject] = (each[0], record)
    for (name, one), (other_name, other) in itertools.combinations(cases.items(), 2):
        pairs = [(subject, one[subject][0], other[subject][0]) for subject in one if subject in other]
        values = [first.value for _, first, _ in pairs]
        if len(pairs) < 2 or max(values) / min(values) < ALIKE_RATIO_MIN:
            continue
        stated = all(first.near(second.low, second.high, SAME) for _, first, second in pairs)  # It is one, told twice.
        if not stated and all(is_near(first.value / second.value, 1.0, ALIKE) for _, first, second in pairs):
            words = "; ".join(
                f"{subject}: {first.shown} and {second.shown} per operation" for subject, first, second in pairs
            )
            what = f"{name} and {other_name} give the same figures for every subject"
            yield finding("identical", other[pairs[0][0]][1], "operation", what, words)


def check_factors(family: Records) -> Iterator[Finding]:
    """Find subjects that are compared, and never under the same conditions."""
    groups: dict[frozenset[str], dict[str, list[Record]]] = {}
    for record in family:
        if record.settings.keys() & {"connections", "size"} and record.subject and record.figures:
            group = groups.setdefault(frozenset(record.figures) if record.source == "list" else frozenset(), {})
            group.setdefault(record.subject, []).append(record)
    for group in groups.values():
        # How often is no condition: a faster operation is repeated more often.
        kinds = ("connections", "size")
        cells = [
            {tuple(pair for pair in each.conditions if pair[0] in kinds) for each in found} for found in group.values()
        ]
        every = set().union(*cells)
        if len(cells) == len(every) > 2:  # Each has its own: it is an outcome, such as the size of a program.
            continue
        if len(cells) > 1 and not any(one & other for one, other in itertools.combinations(cells, 2)):
            changed = " and ".join(kind for kind in kinds if len({dict(each).get(kind) for each in every}) > 1)
            members = list(itertools.chain(*group.values()))
            words = (
                f"{'; '.join(each.name for each in members[:4])}: {sum(map(len, cells))} of {len(cells)} x {len(every)}"
            )
            words += f" = {len(cells) * len(every)} cells"
            what = f"subject and {changed} change at once: no two subjects were measured alike"
            yield finding("factors", members[0], "size", what, words)


def check_efficiency(family: Records) -> Iterator[Finding]:
    """Find a higher rate that took more CPU than it gained."""
    having = [
        [(each, pair[0], pair[1]) for each in group if (pair := each.all("rate", "cpu"))]
        for group in alike_groups(family)
    ]
    for (fast, rate, cpu), (slow, less, spared) in itertools.chain(
        *(itertools.permutations(group, 2) for group in having)
    ):
        if slow.subject == fast.subject or cpu.dimension != "percent":
            continue
        if rate.value > less.value and rate.high / cpu.low * (1 + EFFICIENCY_MARGIN) < less.low / spared.high:
            each, other = rate.value / cpu.value, less.value / spared.value
            what = f"{fast.name} has the higher rate, and needs more CPU for each request than {slow.subject}"
            words = (
                f"{fast.subject}: {rate.shown} / {cpu.shown} = {each:,.0f} per second and CPU percent; {slow.subject}:"
            )
            words += (
                f" {less.shown} / {spared.shown} = {other:,.0f}, which is {figures.ratio(other / each)} times as much"
            )
            yield finding("efficiency", fast, "cpu", what, words)


def check_saturation(records: Records) -> Iterator[Finding]:
    """Find a rate that no longer rises with the connections, while the CPU is idle."""
    for series in grouped(records, lambda each: (each.subject, each.label)):
        found = [(record, record.all("connections", "rate", "cpu")) for record in series]
        found = sorted((each for each in found if each[1]), key=lambda each: each[1][0].value)
        for (_, (low, rate, cpu)), (record, (high, more, busy)) in itertools.combinations(found, 2):
            idle = cpu.dimension == "percent" and max(cpu.high, busy.high) < IDLE_CPU
            if idle and high.value >= MORE_CONNECTIONS * low.value and more.value <= FLAT * rate.value:
                words = (
                    f"{plain(low.value)} connections: {rate.shown}, {cpu.shown} CPU; {plain(high.value)}: {more.shown},"
                )
                what = f"{record.subject}: the rate stays the same, and the CPU isn't full"
                yield finding("saturation", record, "cpu", what, f"{words} {busy.shown} CPU")


def changes(one: Quantity, other: Quantity, kind: str) -> list[tuple[float, float]]:
    """Return by which percentages, or how many times, one may be said to differ from the other: of this or of that, up or down."""
    ratios = [(one.low / other.high, one.high / other.low), (other.low / one.high, other.high / one.low)]
    if kind == "speedup":
        return ratios
    percents = [(100 * (low - 1), 100 * (high - 1)) for low, high in ratios]
    return percents + [(-high, -low) for low, high in percents]


def check_changes(family: Records) -> Iterator[Finding]:
    """Check percentages and speed-ups against the figures beside them."""
    claims = [(each, kind, group) for group in alike_groups(family) for each in group for kind in ("change", "speedup")]
    for record, kind, group in claims:
        claimed, near = record.get(kind), [each for each in group if each is not record]
        if claimed is None or not claimed.value:
            continue
        near = [each for each in near if same_subject(each.subject, record.baseline)] or near
        names = {name: None for each in near for name in each.figures if name not in ("change", "speedup", "rank")}
        pairs = [(record, each) for each in near]
        if not record.figures.keys() & names.keys():  # It stands in a row or a column of its own.
            pairs = [(one, other) for one, other in itertools.permutations(near, 2) if one.subject and other.subject]
        tried = [
            (first, second, other)
            for (one, other), name in itertools.product(pairs, names)
            if (first := one.get(name)) and (second := other.get(name))
            if first.dimension == second.dimension and first.low > 0 and second.low > 0
        ]
        slack = SLACK / 2 * (100 if kind == "change" else claimed.value)
        ends = [(low, high, one, other) for one, other, _ in tried for low, high in changes(one, other, kind)]
        fitting = [each for each in ends if claimed.high >= each[0] - slack and claimed.low <= each[1] + slack]
        exact = [each for each in fitting if kind == "speedup" or not each[0] < 0 < each[1] or abs(claimed.value) <= 1]
        subject = record.subject or record.label
        if fitting and not exact:
            low, high, one, other = fitting[0]
            what = f"{subject}: {claimed.text} can't be read from figures that are rounded so coarsely"
            words = f"{one.text} and {other.text} stand for {figures.plain(low)} to {figures.plain(high)}%"
            yield finding("rounding", record, kind, what, words)
        elif tried and not exact:
            one, other, against = tried[0]
            ratios = (one.value / other.value, other.value / one.value)
            ways = [f"{100 * (each - 1):+.1f}%" if kind == "change" else figures.ratio(each) for each in ratios]
            words = f"{one.shown} against {other.shown} ({against.name}): {ways[0]}, or the other way round {ways[1]}"
            yield finding("change", record, kind, f"{subject}: {claimed.text} doesn't follow from the figures", words)


def check_winners(family: Records) -> Iterator[Finding]:
    """Check who is said to be best, against the figures in the same row."""
    won = [(record, group) for group in alike_groups(family) for record in group if record.winner]
    for record, group in won:
        rivals = [each for each in group if not each.winner]
        kind = record.about or next((kind for kind in COMPARED if sum(kind in each.figures for each in rivals) > 1), "")
        found = [(each.subject, each.figures[kind]) for each in rivals if kind in each.figures]
        mine = [quantity for subject, quantity in found if same_subject(subject, record.winner)]
        others = [(subject, quantity) for subject, quantity in found if not same_subject(subject, record.winner)]
        if len(mine) == 1 and others:
            higher = mine[0].dimension in ("rate", "bandwidth")
            subject, best = max(others, key=lambda item: item[1].value if higher else -item[1].value)
            if best.low > mine[0].high if higher else best.high < mine[0].low:
                what = f"{record.winner} is called the best in {NAMES.get(kind, kind)} ({record.name}), and isn't"
                words = f"{subject} {best.shown}, {record.winner} {mine[0].shown}; {'higher' if higher else 'lower'} is better"
                yield finding("winner", record, kind, what, words)


# --- figures in two places ---

Pair = tuple[Record, Record, Quantity, Quantity]


def alike(one: Record, other: Record) -> bool:
    """Return whether two records are of one subject, and no condition differs."""
    if not same_subject(one.subject, other.subject):
        return False
    if one.label and other.label and one.source == other.source == "table" and one.label.lower() != other.label.lower():
        return False
    for kind in ("connections", "duration", "size", "count", "offered"):
        first, second = one.get(kind), other.get(kind)
        if first and second and not math.isclose(first.value, second.value, rel_tol=0.025):
            return False
        if (first is None) != (second is None) and kind in ("connections", "size"):
            return False
    return True


def comparable(one: str, other: str) -> bool:
    """Return whether two kinds of figures may be one: equal, or one says nothing but its unit."""
    return (
        one == other
        or "other" in (one.split()[0], other.split()[0])
        or (one[:9], other[:9]) == ("bandwidth", "bandwidth")
    )


def matches(
    records: Records, are_alike: Callable[[Record, Record], bool] = alike
) -> Iterator[tuple[str, str, list[Pair]]]:
    """Yield two kinds and the pairs of figures that two places give for the same subjects, under the same conditions.

    A place is a table, a list whose names are subjects, all other lists of a report, or all outputs of a tool.
    """
    series: dict[tuple[str, str, int, str], list[Record]] = {}
    sizes = collections.Counter((record.document, record.source, record.group) for record in records)
    for record in records:
        alone = record.source == "table" or (
            record.source == "list" and sizes[record.document, "list", record.group] > 1
        )
        for kind in record.figures:
            if kind in COMPARED or kind.startswith("other"):
                key = (record.document, record.source, record.group if alone else -1, kind)
                series.setdefault(key, []).append(record)
    for (one_key, ones), (other_key, others) in itertools.combinations(series.items(), 2):
        one_kind, other_kind = one_key[3], other_key[3]
        if one_key[:3] == other_key[:3] or not comparable(one_kind, other_kind):
            continue
        index: dict[str, list[Record]] = {}
        for other in others:
            for name in names_of(other.subject):
                index.setdefault(name, []).append(other)
        found = []
        for one in ones:
            named = {id(each): each for name in names_of(one.subject) for each in index.get(name, ())}
            found += [(one, other) for other in named.values() if are_alike(one, other)]
        often = collections.Counter(id(record) for pair in found for record in pair)
        pairs = []
        for one, other in found:
            first, second = one.figures[one_kind], other.figures[other_kind]
            timed = first.dimension == second.dimension and first.dimension in ("time", "rate", "bandwidth")
            if often[id(one)] == often[id(other)] == 1 and timed and first.low > 0 and second.low > 0:
                pairs.append((one, other, first, second))
        if pairs:
            yield one_kind, other_kind, pairs


def agrees(pair: Pair) -> bool:
    """Return whether two figures state one measurement."""
    return pair[2].near(pair[3].low, pair[3].high, SAME) and min(len(pair[2].digits), len(pair[3].digits)) >= 3


def name_bandwidth(records: Records) -> None:
    """Call a table's bandwidths what they are: those of each connection, if outputs of a tool state the same figures so."""
    for one_kind, other_kind, pairs in list(matches(records)):
        if {one_kind, other_kind} == {"bandwidth", "bandwidth_each"} and any(map(agrees, pairs)):
            table = next((each for each in pairs[0][:2] if "bandwidth" in each.figures), pairs[0][0])
            for record in records:
                place = (record.document, record.source, record.group)
                if place == (table.document, table.source, table.group) and "bandwidth" in record.figures:
                    record.figures["bandwidth_each"] = record.figures.pop("bandwidth")


def check_repeats(records: Records) -> Iterator[Finding]:
    """Find one measurement that two places state differently: other figures of the two agree, so they are of the same runs."""
    told = set()
    for one_kind, other_kind, pairs in matches(records):
        agreeing = sum(map(agrees, pairs))
        agreed = len({pair[0].subject for pair in pairs if agrees(pair)})
        differing = [pair for pair in pairs if not pair[2].near(pair[3].low, pair[3].high, REPEAT_SLACK)]
        exact = one_kind == other_kind and all(
            one.conditions == other.conditions and one.conditions for one, other, *_ in pairs
        )
        for one, other, first, second in differing:
            same = one.document == other.document
            if same and (agreed < (1 if exact else 2) or agreeing < len(differing)):
                continue
            if not same and (one_kind != other_kind or one.label.lower() != other.label.lower()):
                continue
            values = frozenset(round(math.log(each.value), 1) for each in (first, second))
            if (key := (one.document, other.document, one.conditions, values)) in told:
                continue
            told.add(key)
            name = "figure" if one_kind.startswith("other") else NAMES.get(one_kind, one_kind)
            what = f"{one.name}: the {name} is {first.shown} in one place and {second.shown} in another"
            ratio = max(first.value / second.value, second.value / first.value)
            words = f"{one.document}, line {one.line_of(one_kind)}: {first.shown}; {other.document}, line {other.line_of(other_kind)}:"
            words += f" {second.shown}; the ratio is {figures.ratio(ratio)}" + f"; {agreeing} others agree" * same
            yield finding("two-places" if same else "repeats", other, other_kind, what, words)


def check_calculated(records: Records) -> Iterator[Finding]:
    """Find figures with the digits of others: multiplied by a power of ten, or copied to another subject or condition."""
    told: set[int] = set()
    for one_kind, other_kind, pairs in matches(records, lambda one, other: same_subject(one.subject, other.subject)):
        one, other, first, second = pairs[0]
        far = all(
            not math.isclose(a.value, b.value, rel_tol=0.01) and len(a.digits.rstrip("0")) >= 4 for _, _, a, b in pairs
        )
        if len(pairs) < 3 or not far or id(other) in told or "total" in (one_kind, other_kind):
            continue
        if all(a.digits.rstrip("0") == b.digits.rstrip("0") for _, _, a, b in pairs):
            told.add(id(other))
            what = f"{other.label or other.name}: {len(pairs)} figures have the digits of others"
            words = f"{one.subject}: {first.shown} x {plain(second.value / first.value)} = {second.shown}, and so on;"
            yield finding("calculated", other, other_kind, what, f"{words} line {one.line_of(one_kind)} has the others")
    seen: dict[tuple[object, ...], Record] = {}
    for record in (each for each in records if each.source == "table"):
        texts = [(kind, record.figures[kind].text) for kind in COMPARED if kind in record.figures]
        long = [each for each in texts if len(record.figures[each[0]].digits) >= 4]
        for pair in itertools.combinations(long, 2):
            one = seen.setdefault(pair, record)
            if one.subject != record.subject or one.conditions != record.conditions:
                words = ", ".join(f"{NAMES.get(kind, kind)} {text} twice" for kind, text in pair)
                what = f"{record.name} has the very figures of {one.name}"
                yield finding("calculated", record, pair[0][0], what, words)


def check_directions(records: Records) -> Iterator[Finding]:
    """Find bandwidth per connection that adds both directions, and is shown as if it were one."""
    for one_kind, _, pairs in matches(records):
        for pair in filter(agrees, pairs):
            for table, log in (pair[:2], pair[1::-1]):
                found = log.all("bandwidth_both", "connections")
                if table.source == "table" and found and "bandwidth" in one_kind and not table.both_ways:
                    what = f"{table.name}: the bandwidth adds both directions, and the table doesn't say so"
                    value = megabits(found[0].value / found[1].value)
                    words = f"{found[0].text} / {plain(found[1].value)} = {value}"
                    yield finding("both-directions", table, "bandwidth_each", what, words)
                    return


CHECKS_OF_RECORDS = (
    check_littles_law, check_connections, check_errors, check_percentiles, check_mean, check_few_operations, check_equations,
    check_bandwidth,
)  # fmt: skip
CHECKS_OF_FAMILIES = (
    check_waiting, check_hidden_totals, check_ranking, check_identical, check_factors, check_efficiency, check_changes, check_winners,
)  # fmt: skip
CHECKS_OF_REPORTS = (check_samples, check_streams, check_saturation)
CHECKS_OF_ALL = (check_repeats, check_calculated, check_directions)


def check(records: Records) -> list[Finding]:
    """Return all findings; of those that say the same thing of a report, only the first."""
    reports = grouped(records, lambda each: each.document)
    found = [finding for record in records for check in CHECKS_OF_RECORDS for finding in check(record)]
    found += [finding for family in families(records) for check in CHECKS_OF_FAMILIES for finding in check(family)]
    found += [finding for report in reports for check in CHECKS_OF_REPORTS for finding in check(report)]
    found += [finding for check in CHECKS_OF_ALL for finding in check(records)]
    once: dict[tuple[str, str, str], Finding] = {}
    for each in found:  # Two benchmarks with the same figures have them wherever they are told.
        once.setdefault((each.report, each.rule, "" if each.rule == "identical" else each.what), each)
    return list(once.values())


def missing(records: Records) -> list[str]:
    """Return what measurements of servers and loops need, and a report doesn't have at all."""
    kinds = {kind for record in records for kind in (*record.figures, *record.settings)}
    outputs = [
        (record.source, record.subject, record.conditions)
        for record in records
        if record.source not in ("table", "list")
    ]
    repeated = len(outputs) >= 2 * len(set(outputs)) if outputs else "stdev" in kinds
    found = []
    if not kinds & {"mean", "operation", *LATENCIES}:
        found.append("latency")
    elif not kinds & {"p99", "p999", "p9999", "max"}:
        found.append("p99 or a maximum")
    if not repeated:
        found.append("repeated runs or a spread between them")
    if "cpu" not in kinds and kinds & {"connections", "rate"}:
        found.append("the CPU that the server took")
    return found
