"""The output of load generators, as they print it: wrk, wrk2, tcpkali, ab, hey, oha and k6.

Each tool is a pattern for the line where its output begins, and patterns whose named groups are kinds of figures.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ringlab.audit import quantities
from ringlab.audit.document import Document
from ringlab.audit.quantities import Quantity, exactly
from ringlab.audit.records import NOT_CLOSED, Record, command_in, conditions_in

UNITS = {"rate": "/s", "rate_each_thread": "/s", "cycles": "/s", "bandwidth_down": "Mbps", "bandwidth_up": "Mbps"}
"""Of figures that tools print without one."""
CHOSEN = ("connections", "duration", "wrk_threads")


@dataclass(frozen=True)
class Tool:
    """A load generator's output: the kind of figure that it prints last or nearly, and its lines, the first one first."""

    name: str
    last: str
    patterns: Sequence[re.Pattern[str]]


def tool(name: str, last: str, *patterns: str) -> Tool:
    """Make a tool from its patterns; a space in one is any white space."""
    return Tool(name, last, [re.compile(r"^\s*" + pattern.replace(" ", r"\s+")) for pattern in patterns])


TOOLS = (
    tool(
        "wrk",
        "rate",
        r"Running (?P<duration>\S+) test @",
        r"(?P<wrk_threads>\d+) threads? and (?P<connections>\d+) connections?",
        r"Latency (?P<mean>[\d.]+\w+) (?P<stdev>[\d.]+\w+) (?P<max>[\d.]+\w+) [\d.]+%",
        r"Req/Sec (?P<rate_each_thread>[\d.]+k?) ",
        r"(?P<percentile>[\d.]+)% (?P<value>[\d.]+(?:us|ms|s|m))$",
        r"[\d.]+ [01]\.\d+ \d+ (?:[\d.]+|inf)$|Thread calibration: |#\[",
        r"(?P<operations>\d+) requests in (?P<measured>\S+), (?P<bytes>\S+) read",
        r"Socket errors: connect (?P<connect_error>\d+), read (?P<read_error>\d+), write (?P<write_error>\d+), timeout (?P<timeout>\d+)",
        r"Non-2xx or 3xx responses: (?P<failed>\d+)",
        r"Requests/sec: (?P<rate>[\d.]+)",
        r"Transfer/sec: (?P<bandwidth>[\d.]+\w+)",
    ),
    tool(
        "tcpkali",
        "measured",
        r"(?:[;$#>%] )?(?:as )?(?:\./)?tcpkali [^ ].*|Destination: ",
        r"Ramped up to (?P<connections>\d+) connections",
        r"Total data sent: (?P<rounded_sent>[\d.]+ \w+) \((?P<bytes_sent>\d+ bytes)\)",
        r"Total data received: (?P<rounded_received>[\d.]+ \w+) \((?P<bytes_received>\d+ bytes)\)",
        r"Bandwidth per channel: (?P<bandwidth_each>[\d.]+[⇅↓↑]? Mbps)",
        r"Aggregate bandwidth: (?P<bandwidth_down>[\d.]+)↓, (?P<bandwidth_up>[\d.]+)↑ Mbps",
        r"Packet rate estimate: \S+ \S+ \(\d+↓, (?P<segments>\d+)↑ TCP MSS/op\)",
        r"Test duration: (?P<measured>[\d.]+ s)",
    ),
    tool(
        "ab",
        "bandwidth",
        r"(?:This is ApacheBench|Server Software:|Benchmarking \S+ \(be patient\))",
        r"Concurrency Level: (?P<connections>\d+)",
        r"Time taken for tests: (?P<measured>[\d.]+ \w+)",
        r"Complete requests: (?P<operations>\d+)",
        r"Failed requests: (?P<error>\d+)",
        r"Non-2xx responses: (?P<failed>\d+)",
        r"Requests per second: (?P<rate>[\d.]+)",
        r"Time per request: (?P<mean>[\d.]+ \[\w+\]) \(mean\)",
        r"Transfer rate: (?P<bandwidth>[\d.]+ \[\w+/\w+\]) received",
        r"(?P<percentile>\d+)% (?P<value>\d+)(?: \(longest request\))?$",
    ),
    tool(
        "hey",
        "rate",
        r"Summary:$",
        r"Success rate: (?P<success>[\d.]+%)",
        r"Total: (?P<measured>[\d.]+ \w+)$",
        r"Slowest: (?P<max>[\d.]+ \w+)$",
        r"Fastest: (?P<min>[\d.]+ \w+)$",
        r"Average: (?P<mean>[\d.]+ \w+)$",
        r"Requests/sec: (?P<rate>[\d.]+)",
        r"Size/request: (?P<size>[\d.]+ \w+)$",
        r"Size/sec: (?P<bandwidth>[\d.]+ \w+)$",
        r"(?P<percentile>[\d.]+)%+ in (?P<value>[\d.]+ \w+)$",
        r"\[[123]\d\d\] (?P<operations>\d+) responses",
        r"\[[45]\d\d\] (?P<failed>\d+) responses",
        r"(?:DNS|[Rr]eq|[Rr]esp)[ +-]\w+: |[\d.]+ (?:ms )?\[\d+\] \|",
        r"\[(?P<error>\d+)\] (?!.*(?:aborted due to deadline|responses)).+",
    ),
    tool(
        "k6",
        "rate",
        r"(?:█ THRESHOLDS|█ TOTAL RESULTS|scenarios: \()|(?:[✓✗] )?(?:checks|data_received|http_req_duration)\.+:",
        r"(?:[✓✗] )?http_req_duration\.+: avg=(?P<mean>\S+)(?: min=(?P<min>\S+))?(?: med=(?P<p50>\S+))?(?: max=(?P<max>\S+))?"
        r"(?: p\(90\)=(?P<p90>\S+))?(?: p\(95\)=(?P<p95>\S+))?(?: p\(99\)=(?P<p99>\S+))?(?: p\(99.9\)=(?P<p999>\S+))?",
        r"(?:[✓✗] )?http_req_failed\.+: (?P<failed_share>[\d.]+%)",
        r"(?:[✓✗] )?http_reqs\.+: (?P<operations>\d+) (?P<rate>[\d.]+)/s",
        r"(?:[✓✗] )?iteration_duration\.+: avg=(?P<cycle>\S+)",
        r"(?:[✓✗] )?iterations\.+: \d+ (?P<cycles>[\d.]+)/s",
        r"vus\.+: \d+ min=(?P<connections>\d+) max=(?P=connections)\b",
        r"\S.*\.{3,}: ",
        r"running \((?P<measured>[\dm.]+s)\), ",
    ),
)


def read_value(kind: str, text: str, record: Record) -> Quantity | None:
    """Return a figure of a tool; wrk writes m for minutes, and Go's tools "1m01.0s"."""
    if parts := re.fullmatch(r"(\d+)m([\d.]+)s", text):
        text = f"{int(parts[1]) * 60 + float(parts[2])} s"
    if kind == "bandwidth" and "/" not in text:
        text += "/s"
    if kind.startswith("p") and record.source == "ab":
        text += " ms"
    unit = quantities.unit_of(UNITS[kind])[0] if kind in UNITS else None
    return quantities.read(re.sub(r"^([\d.]+)m$", r"\1 min", text), unit)


def put(record: Record, match: re.Match[str], line: int) -> None:
    """Put what a line of a tool's output says into its record."""
    groups = {kind: text for kind, text in match.groupdict().items() if text is not None}
    if share := groups.pop("percentile", None):
        named = {100.0: "max", 99.9: "p999", 99.99: "p9999"}
        groups = {named.get(float(share), f"p{float(share):g}"): groups["value"]}
    for kind, text in groups.items():
        value, before = read_value(kind, text, record), record.figures.get(kind)
        if value is None:
            continue
        if kind in CHOSEN:
            record.settings[kind] = exactly(value.value, value.text, value.dimension).at(line)
        elif before is None or (
            record.source == "hey" and kind in ("operations", "failed", "error")
        ):  # One line for each status.
            total = exactly(value.value + before.value, text) if before else value
            record.figures[kind] = total.at(line)


def begin(document: Document, kind: Tool, group: int, line: int, path: tuple[str, ...], command: str) -> Record:
    """Begin the record of an output, with the conditions that its headings and its command name."""
    record = Record(document.name, kind.name, group, line, path, path[-1] if path else "")
    for title in path:
        record.settings.update(conditions_in(title, line))
    record.settings.update(command_in(command, line))
    record.closed = "offered" not in record.settings and not document.says(NOT_CLOSED, path)
    if payload := re.search(r"(?<!as )tcpkali.*(?:-m|--message)[ =]?(?:'([^']*)'|\"([^\"]*)\"|(\S+))", command):
        text = next(each for each in payload.groups() if each is not None)
        record.figures["message"] = exactly(float(len(text.encode())), text, "size").at(line)
    return record


def read_outputs(document: Document) -> list[Record]:
    """Return the records of all outputs; their lines are marked as used. Each takes the first command not yet taken."""
    found: list[Record] = []
    commands: list[str] = []
    path: tuple[str, ...] = ()
    current, of, used = None, TOOLS[0], 0
    for line in document.lines:
        if line.section[: len(path)] != path:
            commands, current = [], None
        path = line.section
        if command_in(line.text, line.number):
            commands.append(line.text)
        begun = next((each for each in TOOLS if each.patterns[0].match(line.text)), None)
        if begun and (current is None or begun is not of or of.last in current.figures):
            current = begin(document, begun, len(found), line.number, path, commands.pop(0) if commands else "")
            of, used = begun, line.number
            found.append(current)
        for pattern in of.patterns if current else ():
            if (match := pattern.match(line.text)) and current:
                put(current, match, line.number)
                document.used.update(range(used, line.number + 1))
                used = line.number
    for record in found:
        if (measured := record.get("measured")) and "duration" not in record.settings:
            value = round(measured.value)
            record.settings["duration"] = exactly(value, f"{value} s", "time").at(record.line_of("measured"))
        if both := record.all("bandwidth_down", "bandwidth_up"):
            down, up = both
            text = f"({down.shown} + {up.shown})"
            total = Quantity(down.value + up.value, down.low + up.low, down.high + up.high, "bandwidth", text)
            record.figures["bandwidth_both"] = total.at(record.line_of("bandwidth_up"))
    return [record for record in found if record.figures.keys() - {"message", "measured"}]
