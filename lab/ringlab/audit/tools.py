"""The output of load generators: wrk, wrk2 and tcpkali, as they print it, in a report's code blocks or in files of their own."""

import re
from collections.abc import Iterator

from ringlab.audit import quantities
from ringlab.audit.document import Block, Document
from ringlab.audit.records import Figure, Record

WRK_START = re.compile(r"^\s*Running\s+(\S+)\s+test\s+@\s+(\S+)")
WRK_SETUP = re.compile(r"^\s*(\d+)\s+threads?\s+and\s+(\d+)\s+connections?")
WRK_STATS = re.compile(r"^\s*(Latency|Req/Sec)\s+(\S+)\s+(\S+)\s+(\S+)\s+(\S+)%")
WRK_PERCENTILE = re.compile(r"^\s*(50|75|90|95|99|99\.9|99\.99|99\.999|100)(?:\.0+)?%\s+([\d.]+(?:us|ms|s|m))\s*$")
WRK_TOTAL = re.compile(r"^\s*(\d+)\s+requests\s+in\s+([\d.]+\s?\w+),\s+([\d.]+\s?[KMG]?B)\s+read")
WRK_ERRORS = re.compile(r"Socket errors:\s+connect\s+(\d+),\s+read\s+(\d+),\s+write\s+(\d+),\s+timeout\s+(\d+)")
WRK_RATE = re.compile(r"^\s*Requests/sec:\s+([\d.]+)")
WRK_TRANSFER = re.compile(r"^\s*Transfer/sec:\s+([\d.]+\s?[KMG]?B)")
TCPKALI_COMMAND = re.compile(r"\btcpkali\b(.*)")
TCPKALI_DATA = re.compile(r"^Total data (sent|received):\s+([\d.]+ (?:[KMG]iB|bytes)) \((\d+) bytes\)")
TCPKALI_EACH = re.compile(r"^Bandwidth per channel:\s+([\d.]+)\s*(⇅|↓|↑)?\s*Mbps \(([\d.]+) kBps\)")
TCPKALI_ALL = re.compile(r"^Aggregate bandwidth:\s+([\d.]+)↓,\s+([\d.]+)↑ Mbps")
TCPKALI_TIME = re.compile(r"^Test duration:\s+([\d.]+) s")
TCPKALI_RAMP = re.compile(r"^Ramped up to (\d+) connections")


def read_blocks(document: Document) -> list[Record]:
    """Return the records of all code blocks."""
    found: list[Record] = []
    for block in document.code:
        found += read_wrk(block)
        found += read_tcpkali(block)
    for record in found:
        record.document = document.name
    return found


def subject_of(block: Block) -> str:
    """Return whose output a block has: what stands before it, else the heading above it."""
    caption = block.caption.strip().rstrip(":")
    if caption and len(caption) <= 60 and "\n" not in caption:
        return re.sub(r"\s+", " ", caption)
    return block.section.rpartition(" / ")[2]


def put(record: Record, kind: str, text: str, line: int, unit: str = "") -> None:
    """Put a figure into a record."""
    parsed = quantities.parse_unit(unit) if unit else None
    for _, quantity in quantities.find(wrk_minutes(text), parsed):
        record.figures.setdefault(kind, Figure(quantity, line))
        return


def wrk_minutes(text: str) -> str:
    """Return a time of wrk's in a form that isn't a million: it writes m for minutes."""
    return re.sub(r"^([\d.]+)m$", r"\1min", text)


def put_setting(record: Record, kind: str, text: str, line: int) -> None:
    """Put a condition into a record."""
    quantity = quantities.setting(wrk_minutes(text))
    if quantity is not None:
        record.settings.setdefault(kind, Figure(quantity, line))


def read_wrk(block: Block) -> Iterator[Record]:
    """Yield wrk's runs."""
    record: Record | None = None
    for offset, text in enumerate(block.text.split("\n")):
        line = block.line + offset
        start = WRK_START.match(text)
        if start:
            if record is not None:
                yield record
            record = Record(subject_of(block), "", "wrk", line, block.section, text=block.text)
            put_setting(record, "duration", start[1], line)
        if record is None:
            continue
        if match := WRK_SETUP.match(text):
            put_setting(record, "threads", match[1], line)
            put_setting(record, "connections", match[2], line)
        elif match := WRK_STATS.match(text):
            if match[1] == "Latency":
                put(record, "mean", match[2], line)
                put(record, "stdev", match[3], line)
                put(record, "max", match[4], line)
            else:
                put(record, "rate_each_thread", f"{match[2]} req/s", line)
        elif match := WRK_PERCENTILE.match(text):
            kind = {"100": "max", "99.9": "p999", "99.99": "p9999", "99.999": ""}.get(match[1], f"p{match[1]}")
            if kind:
                put(record, kind, match[2], line)
        elif match := WRK_TOTAL.match(text):
            put(record, "operations", match[1], line)
            put(record, "measured_time", match[2], line)
            put(record, "bytes", match[3], line)
        elif match := WRK_ERRORS.search(text):
            put(record, "connect_error", match[1], line)
        elif match := WRK_RATE.match(text):
            put(record, "rate", f"{match[1]} req/s", line)
        elif match := WRK_TRANSFER.match(text):
            put(record, "bandwidth", f"{match[1]}/s", line)
    if record is not None:
        yield record


def read_tcpkali(block: Block) -> Iterator[Record]:
    """Yield tcpkali's runs: each begins with its command, or with its first line."""
    record: Record | None = None
    for offset, text in enumerate(block.text.split("\n")):
        line = block.line + offset
        command = TCPKALI_COMMAND.search(text)
        if command or (text.startswith("Destination:") and (record is None or "measured_time" in record.figures)):
            if record is not None and record.figures:
                yield record
            record = Record(subject_of(block), "", "tcpkali", line, block.section, text=block.text)
            options = command[1] if command else ""
            if match := re.search(r"(?:-c|--connections)[ =]?(\d+)", options):
                put_setting(record, "connections", match[1], line)
            if match := re.search(r"(?:-T|--duration)[ =]?(\d+(?:\.\d+)?(?:ms|s|m)?)", options):
                put_setting(record, "duration", match[1] if match[1][-1].isalpha() else f"{match[1]} s", line)
        if record is None:
            continue
        if match := TCPKALI_RAMP.match(text):
            put_setting(record, "connections", match[1], line)
        elif match := TCPKALI_DATA.match(text):
            put(record, f"bytes_{match[1]}", f"{match[3]} bytes", line)
            put(record, f"rounded_{match[1]}", match[2], line)
        elif match := TCPKALI_EACH.match(text):
            put(record, "bandwidth_each", f"{match[1]} Mbps", line)
            put(record, "bandwidth_each_bytes", f"{match[3]} kBps", line)
        elif match := TCPKALI_ALL.match(text):
            put(record, "bandwidth_down", f"{match[1]} Mbps", line)
            put(record, "bandwidth_up", f"{match[2]} Mbps", line)
        elif match := TCPKALI_TIME.match(text):
            put(record, "measured_time", f"{match[1]} s", line)
            put_setting(record, "duration", f"{round(float(match[1]))} s", line)
    if record is not None and record.figures:
        yield record
