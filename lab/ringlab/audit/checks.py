"""Contradictions within a report's own figures: each check looks at records, and yields findings with their arithmetic.

Limits are wider than rounding and honest measuring make necessary: a check that cries wolf is worth nothing. They stand below,
with their reasons.
"""

import itertools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from ringlab import figures
from ringlab.audit import quantities
from ringlab.audit.document import Document
from ringlab.audit.quantities import Quantity
from ringlab.audit.records import LATENCIES, NAMES, PERCENTILES, Record, names_of, same_subject

Severity = Literal["contradiction", "weakness"]

IN_FLIGHT_MIN, IN_FLIGHT_MAX = 0.85, 1.1
"""Of the connections of a closed loop, the share that is under way on average. The client's own time between an answer and the
next request is missing in it, and seldom more than a few percent."""
SAMPLE_S_MIN = 0.1
"""A shorter sample is decided by one preemption (of 4 ms on Linux) or one interrupt."""
SLACK = 0.02
"""Figures of one run that programs take at slightly different moments."""
REPEAT_SLACK = 0.03
"""Between two figures that ought to be of the same run."""
ALIKE = 0.06
"""Two benchmarks whose figures are this close for every subject may be one."""
ALIKE_RATIO_MIN = 2.0
"""Unless the subjects hardly differ: then so do their figures."""
BANDWIDTH_SLACK = 0.1
EFFICIENCY_MARGIN = 0.1
WAITING_MIN = 0.1
CLAIM_SLACK = 0.02
PORTS_ALL, PORTS_DEFAULT = 65_535 - 1_023, 60_999 - 32_768 + 1
"""From one address to one other: those a program may use at all, and Linux's net.ipv4.ip_local_port_range."""
DESCRIPTORS = (256, 1024, 4096, 65_536)
"""Limits that systems set by themselves (macOS: 256; Linux: 1,024 soft, 4,096 hard in older kernels)."""
DESCRIPTORS_STANDARD = 3
FACTORS = (
    (8.0, "bits and bytes"),
    (1.048576, "MB of 10^6 and MiB of 2^20 bytes"),
    (1.024, "1,000 and 1,024"),
    (1000.0, "a unit of 1,000"),
)


@dataclass(frozen=True)
class Finding:
    """Something that a report's own figures contradict, or can't carry."""

    rule: str
    severity: Severity
    report: str
    line: int
    what: str
    """In one sentence."""
    arithmetic: str
    """The calculation, so that a reader can repeat it."""
    meaning: str
    """The consequence."""

    def to_json(self) -> dict[str, Any]:
        """Return it as `--json` prints it."""
        return asdict(self)


@dataclass
class Reports:
    """The contents of the reports that are audited together."""

    documents: Sequence[Document]
    records: Sequence[Record]

    def table_groups(self) -> Iterator[list[Record]]:
        """Yield the records of each table."""
        tables = [record for record in self.records if record.table >= 0]
        for _, group in itertools.groupby(tables, key=lambda record: (record.document, record.table)):
            yield list(group)


def finding(
    rule: str, severity: Severity, record: Record, line: int, what: str, arithmetic: str, meaning: str
) -> Finding:
    """Make a finding about a record."""
    return Finding(rule, severity, record.document, line, what, arithmetic, meaning)


def show(figure: Quantity) -> str:
    """Write a figure in the unit of its dimension."""
    if figure.dimension == "time":
        return quantities.seconds(figure.value)
    if figure.dimension == "rate":
        return f"{quantities.plain(figure.value)}/s"
    if figure.dimension == "bandwidth":
        return quantities.megabits(figure.value)
    if figure.dimension == "size":
        return quantities.size(figure.value)
    if figure.dimension == "percent":
        return f"{figures.plain(figure.value)}%"
    return quantities.plain(figure.value)


def product(one: Quantity, other: Quantity) -> tuple[float, float, float]:
    """Return a product, and the smallest and the largest that rounding allows."""
    return one.value * other.value, one.low * other.low, one.high * other.high


# --- connections ---


def effective(record: Record) -> float | None:
    """Return how many connections the load generator opened, as far as the report tells: wrk divides them among threads."""
    connections, threads = record.get("connections"), record.get("threads")
    if connections is None:
        return None
    command = re.search(r"\bwrk2?\b[^\n`]*?-t\s?(\d+)", record.text)
    count = threads.value if threads and record.source == "wrk" else float(command[1]) if command else 0.0
    opened = connections.value // count * count if count else connections.value
    errors = record.get("connect_error")
    return opened - errors.value if errors is not None and errors.value < opened else opened


def threads_of(record: Record) -> float:
    """Return the number of wrk's threads, or 0."""
    threads = record.get("threads")
    if record.source == "wrk" and threads:
        return threads.value
    command = re.search(r"\bwrk2?\b[^\n`]*?-t\s?(\d+)", record.text)
    return float(command[1]) if command else 0.0


def check_littles_law(reports: Reports) -> Iterator[Finding]:
    """Check by Little's law: the mean number of requests under way is the rate times the mean latency."""
    for record in reports.records:
        rate, mean, opened = record.get("rate"), record.get("mean"), effective(record)
        connections = record.get("connections")
        if rate is None or mean is None or opened is None or connections is None or not record.closed_loop:
            continue
        value, low, high = product(rate, mean)
        if low <= IN_FLIGHT_MAX * connections.value and high >= IN_FLIGHT_MIN * connections.value:
            continue
        share = value / connections.value
        unit = next((name for factor, name in FACTORS if factor > 2 and is_near(share, factor)), "")
        meaning = (
            f"one of the figures has another unit than it says: they are {figures.plain(max(share, 1 / share))} times apart ({unit})"
            if unit
            else "more requests were under way than there were connections to carry them: rate, latency or connections are wrong"
            if share > 1
            else f"about {quantities.plain(round(value))} connections carried requests; the others didn't exist, or weren't served"
        )
        yield finding(
            "littles-law",
            "contradiction",
            record,
            record.line_of("rate"),
            f"{record.name}: {quantities.plain(connections.value)} connections can't give this rate and this latency",
            f"{show(rate)} x {show(mean)} = {quantities.plain(round(value, 1))} requests under way, not"
            f" {quantities.plain(connections.value)}",
            meaning,
        )


def check_connections(reports: Reports) -> Iterator[Finding]:
    """Find connections that can't have existed: errors, wrk's division among threads, descriptors, ports."""
    told: set[tuple[str, float, float]] = set()
    for record in reports.records:
        connections = record.get("connections")
        if connections is None:
            continue
        asked, threads = connections.value, threads_of(record)
        line = record.line_of("connections")
        divided = asked // threads * threads if threads else asked
        errors = record.get("connect_error")
        failed = errors.value if errors is not None else 0.0
        if 0 < failed < divided:
            opened = divided - failed
            arithmetic = f"{quantities.plain(divided)} - {quantities.plain(failed)} connect errors = {quantities.plain(opened)} connections"
            if threads and divided != asked:
                arithmetic = (
                    f"{threads:.0f} threads x {asked // threads:.0f} = {quantities.plain(divided)}; {arithmetic}"
                )
            yield finding(
                "connections",
                "contradiction",
                record,
                record.line_of("connect_error"),
                f"{record.name}: not {quantities.plain(asked)} connections were open, but {quantities.plain(opened)}",
                arithmetic,
                f"the figures are those of {quantities.plain(opened)} connections" + descriptor_note(opened, threads),
            )
        elif divided != asked and (record.document, asked, threads) not in told:
            told.add((record.document, asked, threads))
            yield finding(
                "connections",
                "weakness",
                record,
                line,
                f"wrk opened {quantities.plain(divided)} connections, not {quantities.plain(asked)}",
                f"{asked:.0f} connections / {threads:.0f} threads = {asked // threads:.0f} for each thread, "
                f"and {threads:.0f} x {asked // threads:.0f} = {divided:.0f}",
                "wrk gives every thread the same whole number of connections, and drops the rest",
            )
        limit = re.search(
            r"ulimit\s+-\w*n\s+(\d+)|(?:open files|nofile|RLIMIT_NOFILE|descriptors?(?: limit)?)\D{0,20}?(\d{3,7})",
            record.text,
        )
        allowed = float(limit[1] or limit[2]) if limit else 0.0
        if allowed and asked + DESCRIPTORS_STANDARD > allowed and failed == 0:
            yield finding(
                "descriptors",
                "contradiction",
                record,
                line,
                f"{record.name}: a process with {quantities.plain(allowed)} descriptors can't have {quantities.plain(asked)} connections",
                f"{quantities.plain(asked)} connections + {DESCRIPTORS_STANDARD} standard descriptors = "
                f"{quantities.plain(asked + DESCRIPTORS_STANDARD)} > {quantities.plain(allowed)}",
                "each connection is a descriptor, on both sides: raise the limit, and count those that are open",
            )
        several = re.search(
            r"ip_local_port_range|source address|several (addresses|ips|clients|machines)|multiple (ips|addresses|clients|machines)"
            r"|(two|three|four|\d+) (client|load) machines|aliases|127\.0\.0\.\d+ to",
            record.text,
            re.I,
        )
        if asked > PORTS_ALL and not several:
            yield finding(
                "ports",
                "contradiction",
                record,
                line,
                f"{record.name}: {quantities.plain(asked)} connections don't fit between two addresses",
                f"65,535 - 1,023 = {PORTS_ALL:,} ports < {quantities.plain(asked)} connections",
                "a connection needs a port of its own on the client: without several addresses there can't be more",
            )
        elif asked > PORTS_DEFAULT and not several:
            yield finding(
                "ports",
                "weakness",
                record,
                line,
                f"{record.name}: {quantities.plain(asked)} connections need more ports than Linux gives by default",
                f"60,999 - 32,768 + 1 = {PORTS_DEFAULT:,} ports < {quantities.plain(asked)} connections",
                "from one client address that takes another net.ipv4.ip_local_port_range, which the report doesn't mention",
            )


def descriptor_note(opened: float, threads: float) -> str:
    """Say which limit of descriptors a number of connections met, if it did."""
    used = opened + threads + DESCRIPTORS_STANDARD
    for limit in DESCRIPTORS:
        if abs(used - limit) <= 2:
            with_threads = f" + {threads:.0f} epoll sets" if threads else ""
            return (
                f"; {quantities.plain(opened)}{with_threads} + {DESCRIPTORS_STANDARD} standard descriptors = {used:,.0f}:"
                f" the client met its limit of {limit:,} descriptors (ulimit -n)"
            )
    return ""


# --- latencies ---


def check_order(reports: Reports) -> Iterator[Finding]:
    """Check that percentiles don't fall."""
    for record in reports.records:
        known = [(kind, record.figures[kind]) for kind in LATENCIES if kind in record.figures]
        for (below, low), (above, high) in itertools.pairwise(known):
            if low.quantity.low > high.quantity.high:
                yield finding(
                    "percentiles",
                    "contradiction",
                    record,
                    high.line,
                    f"{record.name}: {NAMES.get(above, above)} is below {NAMES.get(below, below)}",
                    f"{NAMES.get(above, above)} {show(high.quantity)} < {NAMES.get(below, below)} {show(low.quantity)}",
                    "a higher percentile of the same latencies can't be smaller: a figure is wrong, or they aren't of one run",
                )


def mean_bounds(record: Record) -> tuple[float, str, float, str]:
    """Return the smallest and the largest mean that the percentiles allow, each with its arithmetic."""
    known = [
        (share / 100, record.figures[kind].quantity) for kind, share in PERCENTILES.items() if kind in record.figures
    ]
    least = record.get("min")
    low, words = (least.low, [show(least)]) if least else (0.0, [])
    floor = low
    # A share (1 - q) of the requests took at least the percentile q.
    for index, (share, figure) in enumerate(known):
        following = known[index + 1][0] if index + 1 < len(known) else 1.0
        if index == 0 and least:
            low *= share
            words = [f"{share:.4g} x {show(least)}"]
        low += (following - share) * max(figure.low, floor)
        words.append(f"{following - share:.4g} x {show(figure)}")
    most = record.get("max")
    if most is None or not known:
        return low, " + ".join(words), most.high if most else math.inf, f"the maximum is {show(most)}" if most else ""
    high, before, terms = 0.0, 0.0, []
    for share, figure in known:
        high += (share - before) * figure.high
        terms.append(f"{share - before:.4g} x {show(figure)}")
        before = share
    high += (1 - before) * most.high
    terms.append(f"{1 - before:.4g} x {show(most)}")
    return low, " + ".join(words), high, " + ".join(terms)


def check_mean(reports: Reports) -> Iterator[Finding]:
    """Check that the percentiles allow the mean."""
    for record in reports.records:
        mean = record.get("mean")
        if mean is None:
            continue
        low, below, high, above = mean_bounds(record)
        if mean.high < low * (1 - SLACK):
            yield finding(
                "mean",
                "contradiction",
                record,
                record.line_of("mean"),
                f"{record.name}: the mean is smaller than the percentiles allow",
                f"mean >= {below} = {quantities.seconds(low)}, but it is {show(mean)}",
                "mean and percentiles aren't of the same requests, or one has another unit",
            )
        elif mean.low > high * (1 + SLACK):
            yield finding(
                "mean",
                "contradiction",
                record,
                record.line_of("mean"),
                f"{record.name}: the mean is greater than the percentiles allow",
                f"mean <= {above} = {quantities.seconds(high)}, but it is {show(mean)}",
                "mean and percentiles aren't of the same requests, or one has another unit",
            )


# --- samples ---


def sample_time(record: Record) -> tuple[float, str] | None:
    """Return how long was measured, with the arithmetic."""
    total, count = record.get("total"), record.get("count")
    if total is not None:
        return total.high, f"{show(total)} in all"
    duration = record.get("measured_time") or record.get("duration")
    if duration is not None:
        return duration.high, f"{show(duration)} in all"
    each = record.get("operation") or record.get("mean")
    if count is None or each is None:
        return None
    # Of several connections, each waits for its own.
    connections = record.get("connections")
    parallel = max(1.0, connections.value) if connections and record.get("operation") is None else 1.0
    value = count.value * each.value / parallel
    return value, f"{quantities.plain(count.value)} x {show(each)} = {quantities.seconds(value)} in all"


def check_samples(reports: Reports) -> Iterator[Finding]:
    """Find samples that are too short, and percentiles of too few operations; told once for each table."""
    for group in grouped(reports.records):
        short = []
        for record in group:
            found = sample_time(record)
            if found is not None and found[0] < SAMPLE_S_MIN:
                short.append((found, record))
        if short:
            (_, arithmetic), record = min(short, key=lambda each: each[0][0])
            others = f", and {len(short) - 1} more like it" if len(short) > 1 else ""
            yield finding(
                "short-sample",
                "weakness",
                record,
                record.line,
                f"{record.name}{others}: measured for less than {SAMPLE_S_MIN * 1000:g} ms",
                arithmetic,
                "one preemption or interrupt of a few ms decides such a figure: repeat the operation until a sample takes at least 100 ms",
            )
        for record in group:
            count = record.get("count") or record.get("operations")
            kind = next((kind for kind in reversed(PERCENTILES) if kind in record.figures), "")
            if count is None or not kind:
                continue
            beyond = count.value * (1 - PERCENTILES[kind] / 100)
            if beyond < 1:
                yield finding(
                    "few-operations",
                    "weakness",
                    record,
                    record.line_of(kind),
                    f"{record.name}: {NAMES.get(kind, kind)} of {quantities.plain(count.value)} operations is their maximum",
                    f"{quantities.plain(count.value)} x {100 - PERCENTILES[kind]:.4g}% = {beyond:.2g} operations are slower",
                    "a percentile needs at least ten operations beyond it",
                )


def grouped(records: Sequence[Record]) -> Iterator[list[Record]]:
    """Yield the records that were read from one table or block."""
    for _, group in itertools.groupby(records, key=lambda record: (record.document, record.table, record.section)):
        yield list(group)


def check_waiting(reports: Reports) -> Iterator[Finding]:
    """Find a total that holds a delay that was asked for: timers of 0 to 9 ms take at least 9 ms."""
    for group in grouped(reports.records):
        cases: dict[str, list[tuple[Record, Quantity]]] = {}
        for record in group:
            total = record.get("total")
            if total is not None:
                cases.setdefault(record.label, []).append((record, total))
        for label, found in cases.items():
            match = re.search(
                r"(?:(\d+(?:\.\d+)?)\s*(?:to|-|–)\s*)?(\d+(?:\.\d+)?)\s*ms\b", label
            )  # The longest delay.
            if not match or not re.search(r"call_later|timer|delay|sleep|timeout", label, re.I):
                continue
            delay = float(match[2]) / 1000
            shares = [delay / total.value for _, total in found]
            if not all(WAITING_MIN < share < 1 for share in shares):
                continue
            words = "; ".join(
                f"{record.subject}: {show(total)} - {quantities.seconds(delay)} = {quantities.seconds(total.value - delay)}"
                for record, total in found
            )
            if len(found) == 2:
                (_, one), (_, other) = found
                words += (
                    f"; the ratio is {figures.ratio((one.value - delay) / (other.value - delay))} without the delay,"
                    f" and {figures.ratio(one.value / other.value)} with it"
                )
            yield finding(
                "waiting",
                "weakness",
                found[0][0],
                found[0][0].line_of("total"),
                f"{label}: {figures.plain(100 * min(shares))}% and more of the time is the delay that was asked for",
                words,
                "the wait is the same for everyone and hides the difference: measure how late each timer is instead",
            )


# --- rates, sizes and totals ---


def check_operation(reports: Reports) -> Iterator[Finding]:
    """Check that a time per operation and a rate of the same sequential operations are each other's inverse."""
    for record in reports.records:
        rate, each = record.get("rate"), record.get("operation")
        if rate is None or each is None or record.get("connections") is not None:
            continue
        low, high = 1 / each.high, 1 / each.low if each.low > 0 else math.inf
        if not rate.meets(low * (1 - SLACK), high * (1 + SLACK)):
            yield finding(
                "rate",
                "contradiction",
                record,
                record.line_of("rate"),
                f"{record.name}: rate and time per operation disagree",
                f"1 / {show(each)} = {quantities.plain(1 / each.value)}/s, not {show(rate)}",
                "one of them is wrong, or operations ran at once: then the time isn't that of an operation",
            )


def check_counts(reports: Reports) -> Iterator[Finding]:
    """Check that operations / time = rate, and bytes / time = bandwidth."""
    for record in reports.records:
        operations = record.get("operations") or record.get("count")
        time = record.get("measured_time") or record.get("total") or record.get("duration")
        rate = record.get("rate")
        if operations is not None and time is not None and rate is not None and time.low > 0:
            slack = SLACK if record.get("measured_time") or record.get("total") else 0.1
            low, high = operations.low / time.high, operations.high / time.low
            if not rate.meets(low * (1 - slack), high * (1 + slack)):
                yield finding(
                    "rate",
                    "contradiction",
                    record,
                    record.line_of("rate"),
                    f"{record.name}: operations, time and rate disagree",
                    f"{show(operations)} operations / {show(time)} = {quantities.plain(operations.value / time.value)}/s, not {show(rate)}",
                    "the rate isn't that of this run",
                )
        each, total = record.get("operation"), record.get("total")
        count = record.get("count")
        if each is not None and total is not None and count is not None and count.value > 0:
            low, high = total.low / count.value, total.high / count.value
            if not each.meets(low * (1 - SLACK), high * (1 + SLACK)):
                yield finding(
                    "rate",
                    "contradiction",
                    record,
                    record.line_of("operation"),
                    f"{record.name}: operations, total time and time per operation disagree",
                    f"{show(total)} / {show(count)} = {quantities.seconds(total.value / count.value)}, not {show(each)}",
                    "the time per operation isn't that of this run",
                )
        read, measured, bandwidth = record.get("bytes"), record.get("measured_time"), record.get("bandwidth")
        if read is not None and measured is not None and bandwidth is not None:
            low, high = read.low / measured.high, read.high / measured.low
            if not bandwidth.meets(low * (1 - SLACK), high * (1 + SLACK)):
                yield finding(
                    "bandwidth",
                    "contradiction",
                    record,
                    record.line_of("bandwidth"),
                    f"{record.name}: bytes, time and bandwidth disagree",
                    f"{show(read)} / {show(measured)} = {quantities.size(read.value / measured.value)}/s,"
                    f" not {quantities.size(bandwidth.value)}/s",
                    "the bandwidth isn't that of this run",
                )


def check_bandwidth(reports: Reports) -> Iterator[Finding]:
    """Check that bandwidth = rate x size, in one direction or in both."""
    for record in reports.records:
        bandwidth, size = record.get("bandwidth"), record.get("size")
        rate, derived = record.get("rate"), ""
        mean, connections = record.get("mean"), record.get("connections")
        single = connections is None or connections.value == 1
        if rate is None and mean is not None and single and mean.low > 0:
            rate = Quantity(1 / mean.value, 1 / mean.high, 1 / mean.low, "rate", "")
            derived = f"1 / {show(mean)} = {quantities.plain(rate.value)}/s; "
        if bandwidth is None or size is None or rate is None:
            continue
        value, low, high = product(rate, size)
        # Headers come on top of a body, and both directions may be counted.
        most = 2 + BANDWIDTH_SLACK if not re.search(r"http", record.text, re.I) else math.inf
        slack = BANDWIDTH_SLACK
        if bandwidth.meets(low * (1 - slack), high * (1 + slack)) or bandwidth.meets(
            low * (2 - slack), high * (2 + slack)
        ):
            if derived and record.get("rate") is None:
                yield finding(
                    "derived",
                    "weakness",
                    record,
                    record.line_of("bandwidth"),
                    f"{record.name}: the bandwidth is the size divided by the round trip, and no measure of its own",
                    f"{show(size)} / {show(mean)} = {quantities.size(value)}/s; {bandwidth.text} are reported"
                    if mean
                    else "",
                    "with one message under way it says what the latency says, client included, and nothing about capacity",
                )
            continue
        if bandwidth.low > high and bandwidth.low < most * high:
            continue
        ratio = bandwidth.value / value
        unit = next((name for factor, name in FACTORS if is_near(ratio, factor) or is_near(ratio, 2 * factor)), "")
        yield finding(
            "bandwidth",
            "contradiction",
            record,
            record.line_of("bandwidth"),
            f"{record.name}: the bandwidth isn't rate x size",
            f"{derived}{quantities.plain(rate.value)}/s x {show(size)} = {quantities.size(value)}/s ({quantities.megabits(value)}),"
            f" not {bandwidth.text}, which is {quantities.size(bandwidth.value)}/s",
            f"it is off by {figures.plain(max(ratio, 1 / ratio))}"
            + (f": {unit} were confused" if unit else ": one of the three figures is wrong"),
        )


def is_near(ratio: float, factor: float, slack: float = 0.03) -> bool:
    """Return whether a ratio is a factor or its inverse."""
    return abs(ratio / factor - 1) < slack or abs(ratio * factor - 1) < slack


def check_totals(reports: Reports) -> Iterator[Finding]:
    """Check totals against figures per connection, per thread and per direction."""
    for record in reports.records:
        yield from check_tcpkali(record)
        each, threads, rate = record.get("rate_each_thread"), record.get("threads"), record.get("rate")
        if each is not None and threads is not None and rate is not None:
            value, low, high = product(each, threads)
            # wrk averages samples of each thread, which a slow start distorts.
            if not rate.meets(low * 0.8, high * 1.2):
                yield finding(
                    "totals",
                    "contradiction",
                    record,
                    record.line_of("rate"),
                    f"{record.name}: the threads' rates don't add up to the total",
                    f"{quantities.plain(each.value)}/s x {threads.value:.0f} threads = {quantities.plain(value)}/s, not {show(rate)}",
                    "most of the time some threads had no connections, or the rate came in bursts",
                )
        connections, total = record.get("connections"), record.get("bandwidth_total")
        each = record.get("bandwidth_each")
        if each is None or total is None or connections is None:
            continue
        value, low, high = each.value * connections.value, each.low * connections.value, each.high * connections.value
        if any(total.meets(low * part * (1 - SLACK), high * part * (1 + SLACK)) for part in (1.0, 0.5, 2.0)):
            continue
        yield finding(
            "totals",
            "contradiction",
            record,
            record.line_of("bandwidth_total"),
            f"{record.name}: the total isn't the sum of the connections",
            f"{show(each)} x {quantities.plain(connections.value)} connections = {quantities.megabits(value)}, not {show(total)}",
            "not all connections existed, or the two are of different runs",
        )
    for group in reports.table_groups():
        yield from check_hidden_totals(group)


def check_tcpkali(record: Record) -> Iterator[Finding]:
    """Check tcpkali's figures against each other."""
    time = record.get("measured_time")
    for way, direction in (("received", "down"), ("sent", "up")):
        data, bandwidth = record.get(f"bytes_{way}"), record.get(f"bandwidth_{direction}")
        if data is not None and bandwidth is not None and time is not None:
            low, high = data.low / time.high, data.high / time.low
            if not bandwidth.meets(low * (1 - SLACK), high * (1 + SLACK)):
                yield finding(
                    "bandwidth",
                    "contradiction",
                    record,
                    record.line_of(f"bandwidth_{direction}"),
                    f"{record.name}: bytes {way}, time and bandwidth disagree",
                    f"{data.value:,.0f} bytes x 8 / {show(time)} = {quantities.megabits(data.value / time.value)}, not {show(bandwidth)}",
                    "the output was edited, or put together from two runs",
                )
        rounded = record.get(f"rounded_{way}")
        if data is not None and rounded is not None and not rounded.meets(data.low * 0.999, data.high * 1.001):
            yield finding(
                "units",
                "contradiction",
                record,
                record.line_of(f"rounded_{way}"),
                f"{record.name}: {rounded.text} and {data.text} {way} aren't the same",
                f"{rounded.text} = {rounded.value:,.0f} bytes, not {data.value:,.0f}",
                "MB of 10^6 and MiB of 2^20 bytes were confused, or the output was edited",
            )
    each, connections = record.get("bandwidth_each"), record.get("connections")
    down, up = record.get("bandwidth_down"), record.get("bandwidth_up")
    if each is None or connections is None or down is None or up is None:
        return
    value = (down.value + up.value) / connections.value
    if not each.meets(value * (1 - SLACK), value * (1 + SLACK)):
        yield finding(
            "totals",
            "contradiction",
            record,
            record.line_of("bandwidth_each"),
            f"{record.name}: the bandwidth per connection isn't the aggregate's share",
            f"({show(down)} + {show(up)}) / {quantities.plain(connections.value)} connections ="
            f" {quantities.megabits(value)}, not {show(each)}",
            "not all connections existed, or the output was edited",
        )


def check_hidden_totals(group: Sequence[Record]) -> Iterator[Finding]:
    """Find figures per connection at several numbers of connections, whose totals fall, without the totals."""
    by_subject: dict[str, list[tuple[float, Quantity, Record]]] = {}
    for record in group:
        each, connections = record.get("bandwidth_each"), record.get("connections")
        if each is not None and connections is not None and record.get("bandwidth_total") is None:
            by_subject.setdefault(record.subject, []).append((connections.value, each, record))
    falls = []
    for subject, found in by_subject.items():
        ordered = sorted(found, key=lambda item: item[0])
        totals = [(count, count * each.value) for count, each, _ in ordered]
        if totals[-1][0] > totals[0][0] and totals[-1][1] < 0.75 * totals[0][1]:
            falls.append((subject, totals, ordered[0][2]))
    if falls:
        subject, totals, record = max(falls, key=lambda item: item[1][0][1] / item[1][-1][1])
        distinct = dict(totals)
        words = "; ".join(
            f"{count:,.0f} x {quantities.megabits(total / count)} = {quantities.megabits(total)}"
            for count, total in distinct.items()
        )
        yield finding(
            "hidden-total",
            "weakness",
            record,
            record.line,
            "with more connections less is transferred in all, which figures per connection hide"
            f" ({len(falls)} of {len(by_subject)} subjects)",
            f"{subject}: {words}",
            "give the total in each direction: a figure per connection falls by itself when there are more connections",
        )


# --- figures that ought to be the same ---


DISTINGUISHING = re.compile(
    r"\b(run \d+|before|after|old(?:er)?|new|cold|warm|tls|https?2?|http/2|unix|linux|macos|windows|debug|release"
    r"|sync|async|v?\d+\.\d+\.\d+"
    r"|again|first|second|third|repeat|read|write|arm|x86|intel|amd|m1|m2|small|big(?:ger)?|with(?:out)?)\b",
    re.I,
)


def distinguishing(record: Record) -> frozenset[str]:
    """Return the words of a record's heading that say it was measured under other conditions."""
    return frozenset(
        word.lower() for word in DISTINGUISHING.findall(f"{record.section.rpartition(' / ')[2]} {record.label}")
    )


def find_subject(record: Record, names: Sequence[str]) -> list[str]:
    """Return which subjects of tables a tool's output is about: its heading has one of their names."""
    whole = names_of(record.subject)
    exact = [name for name in names if whole & names_of(name)]
    if exact:
        return exact
    words = set(re.findall(r"[\w.+#-]+", record.subject.lower()))
    return [
        name
        for name in names
        if words & {part for each in names_of(name) for part in re.findall(r"[\w.+#-]+", each)} - COMMON
    ]


COMMON = {
    "server",
    "echo",
    "http",
    "using",
    "the",
    "results",
    "benchmark",
    "stdlib",
    "tcp",
    "output",
    "raw",
    "logs",
    "log",
    "of",
    "with",
    "and",
    "run",
    "on",
    "in",
}
COMPARED = ("operation", "rate", "mean", "bandwidth_each", "bandwidth", "total", "p50", "p99")


def check_repeats(reports: Reports) -> Iterator[Finding]:
    """Find the same subject, conditions and figure in two places, with different values."""
    names = list(dict.fromkeys(record.subject for record in reports.records if record.table >= 0))
    for one, other in itertools.combinations(reports.records, 2):
        if (one.document, one.table, one.source) == (other.document, other.table, other.source) and one.table >= 0:
            continue
        if one.source != "table" and other.source != "table":
            continue  # Two outputs of a tool are two runs, and say so by being there twice.
        if not same_conditions(one, other) or distinguishing(one) != distinguishing(other):
            continue
        if not is_same_subject(one, other, names):
            continue
        for kind in COMPARED:
            first, second = one.get(kind), other.get(kind)
            if first is None or second is None or first.dimension != second.dimension:
                continue
            if first.meets(second.low * (1 - REPEAT_SLACK), second.high * (1 + REPEAT_SLACK)):
                continue
            ratio = max(first.value, second.value) / min(first.value, second.value)
            same_report = one.document == other.document
            yield finding(
                "two-places" if same_report else "repeats",
                "contradiction" if same_report else "weakness",
                other,
                other.line_of(kind),
                f"{NAMES.get(kind, kind)} of {one.name} is {show(first)} here and {show(second)} there"
                if not same_report
                else f"{NAMES.get(kind, kind)} of {one.name} is {show(first)} in one place and {show(second)} in another",
                f"{one.document}, line {one.line_of(kind)}: {show(first)}; {other.document}, line {other.line_of(kind)}: {show(second)};"
                f" the ratio is {figures.ratio(ratio)}",
                "two places that describe the same run must agree: one is of another program, setting or day"
                if same_report
                else f"the same benchmark differs by {figures.percent(ratio - 1)} from one report to the next:"
                " smaller differences between subjects mean nothing",
            )
            break


def same_conditions(one: Record, other: Record) -> bool:
    """Return whether two records were measured alike.

    No condition differs, and where a tool's output says more, its table is about the same.
    """
    for kind in {*one.settings, *other.settings} - {"threads"}:
        first, second = one.get(kind), other.get(kind)
        if first is not None and second is not None and not math.isclose(first.value, second.value, rel_tol=1e-6):
            return False
        if (first is None) != (second is None) and "table" == one.source == other.source:
            return False
        if (first is None) != (second is None) and kind in ("connections", "duration"):
            return False
    return one.label.lower() == other.label.lower() or one.source != "table" or other.source != "table"


def is_same_subject(one: Record, other: Record, names: Sequence[str]) -> bool:
    """Return whether two records are about one subject."""
    if not one.subject or not other.subject:
        return False
    if one.source == other.source == "table":
        return same_subject(one.subject, other.subject)
    table, tool = (one, other) if one.source == "table" else (other, one)
    return find_subject(tool, names) == [table.subject]


def check_directions(reports: Reports) -> Iterator[Finding]:
    """Find bandwidth per connection that adds both directions, and is shown without saying so."""
    names = list(dict.fromkeys(record.subject for record in reports.records if record.table >= 0))
    for table, log in itertools.product(reports.records, reports.records):
        if table.source != "table" or log.source != "tcpkali" or table.document != log.document:
            continue
        each, down, up = (
            table.get("bandwidth_each") or table.get("bandwidth"),
            log.get("bandwidth_down"),
            log.get("bandwidth_up"),
        )
        connections = log.get("connections")
        if each is None or down is None or up is None or connections is None or not same_conditions(table, log):
            continue
        if not is_same_subject(table, log, names) or re.search(
            r"both directions|⇅|sum of|bidirectional", table.text, re.I
        ):
            continue
        value = (down.value + up.value) / connections.value
        if each.meets(value * (1 - SLACK), value * (1 + SLACK)):
            yield finding(
                "both-directions",
                "weakness",
                table,
                table.line,
                f"{table.name}: the bandwidth adds both directions, and the table doesn't say so",
                f"({show(down)} + {show(up)}) / {quantities.plain(connections.value)} ="
                f" {quantities.megabits(value)}, of which each direction"
                f" has half, and {quantities.megabits((down.value + up.value) / 2)} in all",
                "an echo sends what it receives: the bandwidth is half of what is shown",
            )
            return


def per_operation(record: Record) -> Quantity | None:
    """Return the time per operation, from the total if need be."""
    each, total, count = record.get("operation"), record.get("total"), record.get("count")
    if each is not None or total is None or count is None:
        return each
    return total.scaled(1 / count.value, "time")


def check_identical(reports: Reports) -> Iterator[Finding]:
    """Find two benchmarks with another name and the same figures."""
    for group in reports.table_groups():
        cases: dict[str, dict[str, tuple[Quantity, Record]]] = {}
        for record in group:
            each = per_operation(record)
            if record.label and each is not None and each.value > 0:
                cases.setdefault(record.label, {})[record.subject] = (each, record)
        for (name, one), (other_name, other) in itertools.combinations(cases.items(), 2):
            subjects = [subject for subject in one if subject in other]
            if len(subjects) < 2:
                continue
            values = [one[subject][0].value for subject in subjects]
            if max(values) / min(values) < ALIKE_RATIO_MIN:
                continue
            if all(is_near(one[each][0].value / other[each][0].value, 1.0, ALIKE) for each in subjects):
                record = other[subjects[0]][1]
                words = "; ".join(
                    f"{each}: {show(one[each][0])} and {show(other[each][0])} per operation" for each in subjects
                )
                yield finding(
                    "identical",
                    "weakness",
                    record,
                    record.line,
                    f"{name} and {other_name} give the same figures for every subject: they may time the same code",
                    words,
                    "two benchmarks that measure one thing count as one",
                )
    whole = [record for record in reports.records if len(long_figures(record)) >= 2]
    for original, copy in itertools.combinations(whole, 2):
        common = {kind: text for kind, text in long_figures(original).items() if long_figures(copy).get(kind) == text}
        differs = (
            original.subject != copy.subject or original.conditions != copy.conditions or original.label != copy.label
        )
        if len(common) >= 2 and differs and original.source == copy.source:
            yield finding(
                "copied",
                "contradiction",
                copy,
                copy.line,
                f"{copy.name} has the very figures of {original.name}",
                ", ".join(f"{NAMES.get(kind, kind)} {text} twice" for kind, text in common.items()),
                "two runs never agree to the last digit: one was copied",
            )


def long_figures(record: Record) -> dict[str, str]:
    """Return the figures with at least five significant digits, or four and a unit, as they are written."""
    measured = ("rate", "mean", "operation", "total", "bandwidth", "bandwidth_each", "p50", "p95", "p99")
    return {
        kind: figure.text
        for kind, figure in record.figures.items()
        if kind in measured and figure.quantity.digits >= 4 and record.source == "table"
    }


# --- comparisons ---


def check_factors(reports: Reports) -> Iterator[Finding]:
    """Find subjects that are compared, and never under the same conditions."""
    for group in reports.table_groups():
        by_subject: dict[str, set[tuple[tuple[str, float], ...]]] = {}
        kinds: set[str] = set()
        for record in group:
            if record.label and not record.settings:
                continue
            conditions = tuple(
                (kind, value) for kind, value in record.conditions if kind in ("connections", "size", "count")
            )
            # How often is no condition by itself: a faster operation is repeated more often.
            if any(kind != "count" for kind, _ in conditions):
                by_subject.setdefault(record.subject, set()).add(conditions)
                kinds |= {kind for kind, _ in conditions}
        if len(by_subject) < 2:
            continue
        essential = {
            subject: {tuple(pair for pair in each if pair[0] != "count") for each in found}
            for subject, found in by_subject.items()
        }
        every = set().union(*essential.values())
        if any(one & other for one, other in itertools.combinations(essential.values(), 2)):
            continue
        cells = sum(map(len, essential.values()))
        record = group[0]
        names = {"size": "size", "connections": "number of connections"}
        changed = " and ".join(names[kind] for kind in ("size", "connections") if kind in kinds)
        words = "; ".join(f"{each.name}" for each in group[:4])
        yield finding(
            "factors",
            "weakness",
            record,
            record.line,
            f"subject and {changed} change at once: no two subjects were measured under the same conditions",
            f"{words}: {cells} of {len(essential)} x {len(every)} = {len(essential) * len(every)} cells",
            "a difference can't be told to come from either: measure every subject under every condition",
        )


def check_efficiency(reports: Reports) -> Iterator[Finding]:
    """Find a higher rate that took more CPU than it gained."""
    for group in reports.table_groups():
        for one, other in itertools.combinations(group, 2):
            if one.subject == other.subject or one.conditions != other.conditions or one.label != other.label:
                continue
            first, second = (one.get("rate"), one.get("cpu")), (other.get("rate"), other.get("cpu"))
            if None in first or None in second:
                continue
            (rate, cpu), (rate_other, cpu_other) = first, second
            assert rate and cpu and rate_other and cpu_other
            if min(cpu.low, cpu_other.low) <= 0:
                continue
            fast, slow = (one, other) if rate.value > rate_other.value else (other, one)
            rate, cpu = fast.get("rate"), fast.get("cpu")
            rate_other, cpu_other = slow.get("rate"), slow.get("cpu")
            assert rate and cpu and rate_other and cpu_other
            # Even with rounding in favour of the faster one.
            if rate.high / cpu.low * (1 + EFFICIENCY_MARGIN) < rate_other.low / cpu_other.high:
                yield finding(
                    "efficiency",
                    "weakness",
                    fast,
                    fast.line_of("cpu"),
                    f"{fast.name} has the higher rate, and needs more CPU for each request than {slow.subject}",
                    f"{fast.subject}: {show(rate)} / {show(cpu)} ="
                    f" {quantities.plain(round(rate.value / cpu.value))} per second and CPU percent;"
                    f" {slow.subject}: {show(rate_other)} / {show(cpu_other)} ="
                    f" {quantities.plain(round(rate_other.value / cpu_other.value))}",
                    f"{slow.subject} does"
                    f" {figures.ratio(rate_other.value / cpu_other.value * cpu.value / rate.value)} times as much for the same"
                    " CPU: with both CPUs full it may be the faster one",
                )


def check_saturation(reports: Reports) -> Iterator[Finding]:
    """Find a limit that is claimed, while the CPU is idle."""
    for document in reports.documents:
        loads = [
            (record.figures["cpu"], record)
            for record in reports.records
            if record.document == document.name and "cpu" in record.figures
        ]
        if not loads:
            continue
        most, _ = max(loads, key=lambda item: item[0].quantity.value)
        if most.quantity.value >= 85:
            continue
        for block in document.prose:
            claim = re.search(
                r"line[ -]rate|saturat\w+|maxim(?:um|al) throughput|peak throughput|at its limit", block.text, re.I
            )
            denied = re.search(r"\bnot?\b|n't|neither|never|without", block.text, re.I)
            if claim and not denied:
                yield Finding(
                    "saturation",
                    "weakness",
                    document.name,
                    line_in(block.text, claim.start(), block.line),
                    f'"{claim[0]}" is claimed, and no CPU is busy',
                    f"the busiest server uses {show(most.quantity)} of its CPU (line {most.line}):"
                    f" {100 - most.quantity.value:.0f}% are idle",
                    "what limits the rate is somewhere else, perhaps in the client: it must be shown which",
                )
                break


def line_in(text: str, offset: int, line: int) -> int:
    """Return the line of a place in a block that begins in a line."""
    return line + text.count("\n", 0, offset)


# --- claims ---


def change_intervals(one: Quantity, other: Quantity) -> list[tuple[float, float]]:
    """Return the percentages by which one may be said to differ from the other: of this one or of that one, up or down."""
    if min(one.low, other.low) <= 0:
        return []
    ups = (100 * (one.low / other.high - 1), 100 * (one.high / other.low - 1))
    downs = (100 * (other.low / one.high - 1), 100 * (other.high / one.low - 1))
    found = [ups, downs, (-ups[1], -ups[0]), (-downs[1], -downs[0])]
    return [(min(pair), max(pair)) for pair in found]


def main_figure(record: Record) -> Quantity | None:
    """Return the figure that a row's change or speed-up is about."""
    for kind in ("operation", "rate", "mean", "total", "bandwidth", "bandwidth_each", "p50", "p99"):
        quantity = record.get(kind)
        if quantity is not None:
            return quantity
    return None


def check_changes(reports: Reports) -> Iterator[Finding]:
    """Check percentages and speed-ups in a table against the figures beside them."""
    for group in reports.table_groups():
        for record in group:
            for kind in ("change", "speedup"):
                claimed = record.get(kind)
                if claimed is None or (claimed.value == 0):
                    continue
                yield from check_change(record, group, kind, claimed)


def check_change(record: Record, group: Sequence[Record], kind: str, claimed: Quantity) -> Iterator[Finding]:
    """Compare a claimed change with every pair of figures it may be about."""
    alike = [
        each
        for each in group
        if each is not record and each.label == record.label and each.conditions == record.conditions
    ]
    if record.baseline:
        named = [each for each in alike if same_subject(each.subject, record.baseline)]
        alike = named or alike
    if main_figure(record) is None:
        # The change stands in a row of its own, or in a column beside those of the subjects.
        pairs = [(one, other) for one, other in itertools.permutations(alike, 2) if one.subject and other.subject]
    else:
        pairs = [(record, each) for each in alike]
    tried: list[tuple[Record, Record, Quantity, Quantity]] = []
    coarse: tuple[float, float] | None = None
    for one, other in pairs:
        for name in (
            "operation",
            "rate",
            "mean",
            "total",
            "bandwidth",
            "bandwidth_each",
            "p50",
            "p95",
            "p99",
            "p999",
            "cpu",
        ):
            first, second = one.get(name), other.get(name)
            if (
                first is None
                or second is None
                or first.dimension != second.dimension
                or min(first.low, second.low) <= 0
            ):
                continue
            tried.append((one, other, first, second))
            if kind == "change":
                for low, high in change_intervals(first, second):
                    if claimed.meets(low - 100 * CLAIM_SLACK / 2, high + 100 * CLAIM_SLACK / 2):
                        if low < 0 < high and abs(claimed.value) > 1:
                            coarse = (low, high)
                            continue
                        return
            else:
                for low, high in (
                    (first.low / second.high, first.high / second.low),
                    (second.low / first.high, second.high / first.low),
                ):
                    if claimed.meets(low * (1 - CLAIM_SLACK), high * (1 + CLAIM_SLACK)):
                        return
    if not tried:
        return
    _, other, first, second = tried[0]
    line = record.line_of(kind)
    subject = record.subject or record.label or tried[0][0].subject
    if coarse is not None:
        yield finding(
            "rounding",
            "weakness",
            record,
            line,
            f"{subject}: a change of {claimed.text} can't be read from figures that are rounded so coarsely",
            f"{first.text} and {second.text} stand for a change of {figures.plain(coarse[0])} to {figures.plain(coarse[1])}%",
            "give more digits, or no difference",
        )
        return
    ratio = first.value / second.value
    arithmetic = (
        f"{show(first)} / {show(second)} - 1 = {100 * (ratio - 1):+.1f}%, and the other way round {100 * (1 / ratio - 1):+.1f}%"
        if kind == "change"
        else f"{show(first)} / {show(second)} = {figures.ratio(ratio)}, and the other way round {figures.ratio(1 / ratio)}"
    )
    yield finding(
        "change",
        "contradiction",
        record,
        line,
        f"{subject}: the {'change' if kind == 'change' else 'speed-up'} of {claimed.text} doesn't follow from the figures",
        f"{arithmetic}, not {claimed.text} (against {other.subject or other.label})",
        "the claim is of other figures than those shown",
    )


HIGHER_IS_BETTER = ("rate", "bandwidth", "bandwidth_each", "bandwidth_total")


def check_winners(reports: Reports) -> Iterator[Finding]:
    """Check who is said to be best, against the figures in the same row."""
    for group in reports.table_groups():
        for record in group:
            if not record.winner:
                continue
            alike = [
                each
                for each in group
                if not each.winner and each.conditions == record.conditions and each.label == record.label
            ]
            kind = record.about or next(
                (kind for kind in COMPARED if sum(each.get(kind) is not None for each in alike) > 1), ""
            )
            found = [(each.subject, quantity) for each in alike if (quantity := each.get(kind)) is not None]
            named = [quantity for subject, quantity in found if same_subject(subject, record.winner)]
            others = [(subject, quantity) for subject, quantity in found if not same_subject(subject, record.winner)]
            if len(named) != 1 or not others:
                continue
            (mine,) = named
            sign = 1 if kind in HIGHER_IS_BETTER else -1
            subject, best = max(others, key=lambda item: sign * item[1].value)
            beaten = best.low > mine.high if sign > 0 else best.high < mine.low
            if beaten:
                yield finding(
                    "winner",
                    "contradiction",
                    record,
                    record.line,
                    f"{record.winner} is called the best in {NAMES.get(kind, kind)}{of_case(record)}, and {subject} is better",
                    f"{subject} {show(best)}, {record.winner} {show(mine)}; {'higher' if sign > 0 else 'lower'} is better",
                    "the winner and the figures are of different runs, or the comparison was turned round",
                )


def of_case(record: Record) -> str:
    """Say of which case a record is."""
    return f" ({record.name})" if record.name != "it" else ""


CLAIM = re.compile(
    r"(?P<low>\d+(?:\.\d+)?)(?:\s?[-–]\s?(?P<high>\d+(?:\.\d+)?))?\s?(?P<unit>%|x\b|×|times\b)\s*(?P<word>faster|slower|more|less|higher|lower|better|speed-?up)?",
    re.I,
)
RANGE = re.compile(
    r"(?P<low>\d+(?:\.\d+)?)\s?[-–]\s?(?P<high>\d+(?:\.\d+)?)\s?(?P<unit>x\b|×|times\b)\s*(?P<word>faster|slower|speed-?up)?",
    re.I,
)
OTHER_MATTERS = re.compile(
    r"memory|code|lines|binary|cost|price|cores?\b|hardware|cheaper|confidence|percentile|idle|utili[sz]ation|cpu|of the time",
    re.I,
)


def check_claims(reports: Reports) -> Iterator[Finding]:
    """Find speed-ups that a report's sentences claim, and no pair of its figures gives."""
    for document in reports.documents:
        records = [record for record in reports.records if record.document == document.name]
        ratios = all_ratios(records)
        if not ratios:
            continue
        for block in document.prose:
            for offset, text in sentences(block.text):
                # "5-7x" says by itself what it is about; of other claims a sentence must name a subject.
                for match in CLAIM.finditer(text) if names_subject(records, text) else RANGE.finditer(text):
                    if is_claim(match, text) and not follows(match, relevant(ratios, text)):
                        near = nearest(match, relevant(ratios, text))
                        yield Finding(
                            "claim",
                            "weakness",
                            document.name,
                            line_in(block.text, offset + match.start(), block.line),
                            f'no two figures give "{match[0].strip()}"',
                            near,
                            "what isn't measured can't be claimed, and what is measured says something else",
                        )


def names_subject(records: Sequence[Record], text: str) -> bool:
    """Return whether a sentence names one of the subjects."""
    words = set(re.findall(r"[\w.+#]+", text.lower()))
    return any(
        set(re.findall(r"[\w.+#]+", name)) <= words for record in records for name in names_of(record.subject) if name
    )


def is_claim(match: re.Match[str], text: str) -> bool:
    """Return whether a match of CLAIM says how much faster something is."""
    # "5-7x" without a word is one, too; a lone percentage needs one, and "1 KB x 2000" isn't one.
    return not OTHER_MATTERS.search(text) and bool(match["word"] or (match["high"] and match["unit"] != "%"))


def sentences(text: str) -> Iterator[tuple[int, str]]:
    """Yield sentences with where they begin."""
    for match in re.finditer(r"[^.;\n]+(?:\.\d[^.;\n]*)*", text):
        yield match.start(), match[0]


@dataclass(frozen=True)
class Ratio:
    """Two figures that a report allows to compare."""

    low: float
    high: float
    subjects: tuple[str, str]
    words: str


def all_ratios(records: Sequence[Record]) -> list[Ratio]:
    """Return the ratios of all pairs of figures that are comparable."""
    found = []
    for one, other in itertools.combinations(records, 2):
        # Other benchmarks of one report have other figures, which nobody compares.
        if one.label != other.label or (one.subject == other.subject) == (one.conditions == other.conditions):
            continue
        for kind in ("operation", "rate", "mean", "total", "bandwidth", "bandwidth_each", "p50", "p95", "p99", "p999"):
            first, second = one.get(kind), other.get(kind)
            if first is None or second is None or first.dimension != second.dimension:
                continue
            if min(first.low, second.low) > 0:
                ratio = first.value / second.value
                words = f"{one.name} against {other.name}: {show(first)} / {show(second)} = {figures.ratio(ratio)}"
                found.append(
                    Ratio(first.low / second.high, first.high / second.low, (one.subject, other.subject), words)
                )
    return found


def relevant(ratios: Sequence[Ratio], text: str) -> Sequence[Ratio]:
    """Return the ratios of the subjects that a sentence names, or all."""
    words = set(re.findall(r"[\w.+#]+", text.lower()))

    def named(subject: str) -> bool:
        return any(set(re.findall(r"[\w.+#]+", name)) <= words for name in names_of(subject) if name)

    both = [
        ratio
        for ratio in ratios
        if all(named(each) for each in ratio.subjects) and ratio.subjects[0] != ratio.subjects[1]
    ]
    return both or [ratio for ratio in ratios if any(named(each) for each in ratio.subjects)] or ratios


def claimed_ratios(match: re.Match[str]) -> list[tuple[float, float]]:
    """Return the ratios that a claim may mean: 36% faster is 1.36 times the rate, or 0.64 of the time."""
    low, high = float(match["low"]), float(match["high"] or match["low"])
    half = 0.5 * 10.0 ** -len(match["low"].partition(".")[2])
    low, high = low - half, high + half
    if match["unit"] == "%":
        found = [(1 + low / 100, 1 + high / 100)]
        if high < 100:
            found.append((1 / (1 - low / 100), 1 / (1 - high / 100)))
        return found
    return [(low, high), (low + 1, high + 1)]


def follows(match: re.Match[str], ratios: Sequence[Ratio]) -> bool:
    """Return whether some pair of figures gives a claim, in either direction."""
    for low, high in claimed_ratios(match):
        for ratio in ratios:
            for below, above in ((ratio.low, ratio.high), (1 / ratio.high, 1 / ratio.low)):
                if above >= low * (1 - CLAIM_SLACK) and below <= high * (1 + CLAIM_SLACK):
                    return True
    return False


def nearest(match: re.Match[str], ratios: Sequence[Ratio]) -> str:
    """Say which pair of figures comes nearest to a claim."""
    target = claimed_ratios(match)[0][0]

    def distance(ratio: Ratio) -> float:
        middle = math.sqrt(ratio.low * ratio.high)
        return min(abs(math.log(middle / target)), abs(math.log(1 / middle / target)))

    return f"the nearest is {min(ratios, key=distance).words}"


def check_unmeasured(reports: Reports) -> Iterator[Finding]:
    """Find subjects that are announced or surpassed, and have no row; numbers of connections beyond what was measured."""
    for document in reports.documents:
        records = [record for record in reports.records if record.document == document.name]
        subjects = list(dict.fromkeys(record.subject for record in records if record.subject))
        if not subjects:
            continue
        known = {word for subject in subjects for word in re.findall(r"[\w.+#]+", subject.lower())}
        yield from check_announced(document, records, known)
        for block in document.prose:
            for match in re.finditer(r"\b(?:faster|better|quicker) than ([A-Za-z][\w.+#-]*)", block.text):
                written = match[1].rstrip(".")
                name = written.lower()
                if name not in known and name not in VAGUE and is_name(written):
                    yield Finding(
                        "not-measured",
                        "weakness",
                        document.name,
                        line_in(block.text, match.start(), block.line),
                        f'"{match[0]}" is claimed, and {written} wasn\'t measured',
                        f"the figures are of {', '.join(subjects[:8])}",
                        "a comparison needs a row",
                    )
        yield from check_extrapolation(document, records)


VAGUE = {
    "the",
    "a",
    "an",
    "any",
    "all",
    "others",
    "other",
    "it",
    "its",
    "before",
    "ever",
    "expected",
    "that",
    "this",
    "those",
    "usual",
    "average",
    "on",
    "in",
    "with",
    "without",
    "one",
    "most",
    "what",
    "i",
    "we",
    "you",
    "our",
    "their",
    "sync",
    "async",
    "cold",
    "warm",
}


def is_name(word: str) -> bool:
    """Return whether a word may be the name of a program: it has a capital, a digit or an unusual letter pair."""
    return word[:1].isupper() or word.lower() in PROGRAMS


PROGRAMS = {
    "uvloop",
    "asyncio",
    "tokio",
    "libuv",
    "node",
    "go",
    "rust",
    "netty",
    "nginx",
    "haproxy",
    "asio",
    "monoio",
    "glommio",
    "trio",
    "twisted",
    "gevent",
    "hyper",
    "actix",
    "ranch",
    "cowboy",
    "eio",
    "rloop",
    "loopmini",
    "blazio",
    "talyn",
    "libevent",
}


def check_announced(document: Document, records: Sequence[Record], known: set[str]) -> Iterator[Finding]:
    """Find subjects in the title that have no row."""
    for listed in re.findall(r"\(([^)]*,[^)]*)\)", document.title):
        names = [name.strip() for name in re.split(r",| and ", listed) if name.strip()]
        measured = [name for name in names if set(re.findall(r"[\w.+#]+", name.lower())) & known]
        if len(measured) < 2:
            continue
        for name in names:
            if name not in measured:
                line = next((block.line for block in document.prose if name in block.text), 1)
                yield Finding(
                    "not-measured",
                    "weakness",
                    document.name,
                    line,
                    f"{name} is announced, and has no figures",
                    f"the title names {len(names)}, and {len(measured)} have a row: {', '.join(measured)}",
                    "nothing can be said about it",
                )


PROMISE = re.compile(
    r"\bscal|handl|support|real[- ]|production|capab|excellent|\bgood\b|\bpoor\b|easily|sustain|\bcan\b|will"
)


def check_extrapolation(document: Document, records: Sequence[Record]) -> Iterator[Finding]:
    """Find more connections than were measured."""
    measured = max(
        (figure.quantity.value for each in records for kind, figure in each.settings.items() if kind == "connections"),
        default=0.0,
    )
    pattern = re.compile(
        r"(\d[\d,]*)\s?([kK]?)\+?\s+(?:(?:concurrent|open|simultaneous|idle|parallel|active)\s+)*(?:connections|clients)\b"
    )
    for block in [*document.prose]:
        for match in pattern.finditer(block.text):
            value = float(match[1].replace(",", "")) * (1000 if match[2] else 1)
            context = block.text.lower()
            denied = re.search(
                r"\bnot measured|were refused|limit|at most|up to .* were|untested|wasn't|weren't|didn't", context
            )
            if value > 2 * max(measured, 1) and value >= 100 and PROMISE.search(context) and not denied:
                yield Finding(
                    "extrapolation",
                    "weakness",
                    document.name,
                    line_in(block.text, match.start(), block.line),
                    f'"{match[0]}" is about more connections than were measured',
                    f"{value:,.0f} connections are named, and at most {measured:,.0f} were measured"
                    if measured
                    else f"{value:,.0f} connections are named, and no figure is of connections",
                    "memory, descriptors, ports and queues decide at that number, and none of it was measured",
                )
                return


CHECKS: tuple[Callable[[Reports], Iterator[Finding]], ...] = (
    check_littles_law,
    check_connections,
    check_order,
    check_mean,
    check_samples,
    check_waiting,
    check_operation,
    check_counts,
    check_bandwidth,
    check_totals,
    check_repeats,
    check_directions,
    check_identical,
    check_factors,
    check_efficiency,
    check_saturation,
    check_changes,
    check_winners,
    check_claims,
    check_unmeasured,
)
