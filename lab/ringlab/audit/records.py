"""The measurements of a report: each record is one subject under one set of conditions, with its figures.

A table has a row for each subject and a column for each figure, or a row for each figure ("Metric") and a column for each subject,
or a row for each benchmark and a column for each subject, or conditions in its headings ("100conn/10s"). A list of "name: figure"
is one record, or one for each name if the names are subjects. Conditions also stand in headings ("50 Connections", "(c64)") and in
the load generators' commands beside a table.
"""

import functools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from ringlab import figures
from ringlab.audit import quantities
from ringlab.audit.document import Document, Pairs, Table, tables
from ringlab.audit.quantities import Dimension, Quantity, Unit, exactly

PERCENTILES = {"p50": 50.0, "p75": 75.0, "p90": 90.0, "p95": 95.0, "p99": 99.0, "p999": 99.9, "p9999": 99.99}
LATENCIES = ("min", *PERCENTILES, "max")
"""In the order in which they may not fall."""
SETTINGS = ("connections", "duration", "size", "threads", "wrk_threads", "count", "offered", "delay")
"""Conditions: a figure of these kinds isn't measured but chosen."""
DIMENSIONS: dict[str, Dimension] = {
    **dict.fromkeys(("duration", "total", "mean", "stdev", "operation", *LATENCIES), "time"),
    **dict.fromkeys(("bandwidth", "bandwidth_each", "bandwidth_total"), "bandwidth"),
    "rate": "rate", "offered": "rate", "change": "percent", "cpu": "percent", "size": "size",
}  # fmt: skip
"""Of kinds of figures; all others are numbers."""
NAMES = {"mean": "mean latency", "operation": "time per operation", "bandwidth_each": "bandwidth per connection", "p999": "p99.9",
         "rounded_sent": "rounded data sent", "rounded_received": "rounded data received"}  # fmt: skip
NOUNS = r"iterations|operations|ops|requests|messages|callbacks|timers|repeats|repetitions|round trips|samples|binds|tasks|runs"
KINDS: tuple[tuple[str, str], ...] = (
    ("rank", r"^(rank|place|position|#)$"),
    ("winner", r"^(winner|best|fastest|better|faster)$"),
    ("connect_error", r"connect(ion)? (errors?|failures?)"),
    ("error", r"errors?\b|failures?|failed|timeouts?|non-2xx"),
    *((kind, rf"\bp\s?\(?{share:g}\b(?!\.\d)|\b{kind}\b|\b{share:g}p\b|(?<![\d.]){share:g}(\.0+)?\s?(%|th)")
      for kind, share in reversed(PERCENTILES.items())),
    ("p50", r"\bmedian\b|\bmed\b"),
    ("change", r"overhead|\bvs\.?\s|versus|compared (to|with)|improvement|difference|\bdiff\b|delta|change|gain|faster by|slower by"),
    ("speedup", r"speed-?\s?up|\bratio\b|times faster|\bfactor\b"),
    ("stdev", r"std\.?\s?dev|stdev|σ|variation|jitter|spread|±"),
    ("bandwidth_each", r"(bandwidth|throughput|[mg]bps|mb/s).*(per|/) ?(conn|channel)|per.(connection|channel).*(bandwidth|mbps|mb/s)"),
    ("bandwidth_total", r"(aggregate|total).*(bandwidth|[mg]bps|[mg]i?b/s)|(bandwidth|[mg]bps).*(aggregate|total)"),
    ("bandwidth", r"bandwidth|transfer/sec|[kmg]i?b/s(ec)?\b|[kmg]bit/s|[kmg]bps\b"),
    ("offered", r"offered|target(ed)? (rate|rps|qps)|(rate|rps|qps|req/s).limit"),
    ("rate", r"[a-z]\s?(/|per )\s?s(ec(ond)?)?\b|\b[rqt]ps\b|throughput|\brate\b|^/s$"),
    ("operation", r"per[ -]op|time per|/op\b|ns/iter|per (operation|iteration|callback|bind|message|request)|us/op|latency per"),
    ("connections", r"^(tcp |client )?(open |concurrent |parallel )?(connections?|conns?|concurrency|clients|sockets|c)$"
     r"|#\s?connections|number of connections|conn-per"),
    ("threads", r"^(client |load |wrk )?threads$"),
    ("duration", r"duration|^(test|run) length$|seconds run"),
    ("size", r"(message |payload |body |packet |block )?size$|^(message|payload|body)( \(?bytes\)?)?$"),
    ("count", rf"^(n|count|total requests|runs of|{NOUNS})( done| sent)?$"),
    ("total", r"^(total |elapsed |wall )(time|ms|s)\b|^time( \((ms|s|us|ns)\))?$|^total$|^elapsed|^wall"),
    ("mean", r"avg|average|mean|^latency( \((us|ms|ns|s|µs)\))?$|round trip|\brtt\b"),
    ("min", r"\bmin(imum)?\b|fastest"),
    ("max", r"\bmax(imum)?\b|slowest|worst"),
    ("cpu", r"\bcpu\b"),
)  # fmt: skip
PATTERNS = [(kind, re.compile(pattern)) for kind, pattern in KINDS]
SUBJECTS = re.compile(
    r"^(name|server|runtime|language|implementation|framework|library|system|subject|arm|loop|target|program|version|release|commit"
    r"|branch|build|variant|configuration|module)\b",
    re.I,
)
CASES = re.compile(
    r"^(benchmark|test|workload|case|scenario|cell|operation|metric|measure|figure|what|step|mode)s?\b", re.I
)
METRICS = re.compile(r"^(metric|measure|figure|statistic)s?$", re.I)
CONNECTIONS = re.compile(
    r"(\d[\d,]*)\s*(k?)\s*(?:concurrent |parallel |open )?(?:conn(?:ection)?s?|clients)\b(?!/core)|\bc(?:oncurrency)?\s?=?\s?(\d+)\b",
    re.I,
)
DURATION = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)\s?(s|secs?|seconds|min|minutes)\b", re.I)
SIZE = re.compile(r"(?<![\w.])\d+(?:\.\d+)?\s?(?:[KMG]i?B|bytes)\b(?!/)", re.I)
COUNT = re.compile(rf"(?<![\w.])~?(\d[\d,]*(?:\.\d+)?)\s?(k?)\s+(?:\w+\s+)?(?:{NOUNS})\b|[x×]\s?(\d[\d,]*)\s*$", re.I)
DELAY = re.compile(r"(?<![\w.])\d+(?:\.\d+)?\s*(?:to|-|–)\s*(\d+(?:\.\d+)?\s*(?:ms|us|s))\b")
COMMAND = re.compile(r"(?<![\w-])(wrk2?|hey|oha|ab|bombardier|tcpkali|k6|h2load)(\s+\S.*)")
OPTIONS = {
    "connections": r"(?:^|\s)(?:-c|--connections|-u|--vus)[ =]?(\d+)",
    "wrk_threads": r"(?:^|\s)(?:-t|--threads)[ =]?(\d+)(?!\s*s)",
    "duration": r"(?:^|\s)(?:-d|-z|-T|--duration)[ =]?(\d+(?:\.\d+)?(?:ms|s|m)?)\b",
    "offered": r"(?:^|\s)(?:-R|--rate|-q)[ =]?(\d+)",
}
NOT_CLOSED = re.compile(
    r"open[- ]loop|(constant|fixed|offered|target)[- ](rate|rps|load)|(?<!out )(rate|rps|qps)[- ]limit|\bwrk2\b|pipelin|multiplex"
    r"|think time|http/2|\bh2",
    re.I,
)
"""Words that say that a connection may have no request under way, or several. They hold a finding back, and cause none."""
BASELINE = re.compile(r"(?:vs\.?|versus|compared (?:to|with)|over|than|to)\s+([\w.+-]+)", re.I)
BOTH_WAYS = re.compile(r"both directions|⇅|sum of|bidirectional|full duplex", re.I)
EMPTY = re.compile(r"[-–—]*|n/?a|none", re.I)


@dataclass
class Record:
    """One subject, under one set of conditions."""

    document: str
    source: str
    """"table", "list" or a tool's name."""
    group: int
    """Which table, list or output of its document."""
    line: int
    path: tuple[str, ...]
    subject: str = ""
    label: str = ""
    """The benchmark or case, where a report has several."""
    settings: dict[str, Quantity] = field(default_factory=dict)
    figures: dict[str, Quantity] = field(default_factory=dict)
    baseline: str = ""
    """The reference of changes and speed-ups, where a heading names it."""
    winner: str = ""
    about: str = ""
    """Of a winner: in which figure."""
    both_ways: bool = False
    """Whether its table says that bandwidths add both directions."""
    closed: bool = True
    """Whether each connection has one request under way at a time, as far as the report says."""

    def get(self, kind: str) -> Quantity | None:
        """Return a figure or a setting."""
        return self.figures.get(kind) or self.settings.get(kind)

    def all(self, *kinds: str) -> list[Quantity]:
        """Return figures or settings of several kinds, or nothing if one is missing or 0."""
        found = [quantity for kind in kinds if (quantity := self.get(kind)) is not None and quantity.low > 0]
        return found if len(found) == len(kinds) else []

    def line_of(self, kind: str) -> int:
        """Return where a figure is."""
        found = self.get(kind)
        return found.line if found else self.line

    @property
    def name(self) -> str:
        """Say which it is."""
        parts = [part for part in (self.subject, self.label) if part]
        for kind, figure in self.settings.items():
            value = figure.value
            if kind == "connections" and f"{value:.0f}" not in self.label:
                parts.append(figures.counted(round(value), "connection"))
            elif kind == "duration":
                parts.append(f"{value:g} s")
            elif kind == "size" and figure.text not in self.label:
                parts.append(figure.text)
        return ", ".join(parts) or "it"

    @property
    def conditions(self) -> tuple[tuple[str, float], ...]:
        """Return the settings as a key: two records with the same were measured alike, as far as the report says."""
        chosen = {kind: each for kind, each in self.settings.items() if "threads" not in kind}
        return tuple(sorted((kind, round(each.value, 9)) for kind, each in chosen.items()))


def kind_of(heading: str) -> str:
    """Return what a heading announces, or nothing."""
    text = heading.strip().lower()
    return next((kind for kind, pattern in PATTERNS if pattern.search(text)), "")


def is_heading(cells: Sequence[str]) -> bool:
    """Return whether cells may be the headings of columns: kinds of figures, or nothing but conditions."""
    chosen = [dict(conditions_in(cell, 0)) for cell in cells]
    return all(chosen) or (any(map(kind_of, cells)) and not any(map(quantities.read, cells)))


def heading_unit(heading: str) -> Unit | None:
    """Return the unit that a heading gives for its figures."""
    for text in [*re.findall(r"[\[(]([^\])]+)[\])]", heading), heading.rpartition(",")[2], *heading.split()]:
        unit, _ = quantities.unit_of(text)
        if unit:
            return unit
    return quantities.unit_of("/s")[0] if kind_of(heading) == "rate" else None


def clean(text: str) -> str:
    """Return the name in a cell or heading, without symbols and decoration."""
    return re.sub(r"\s+", " ", re.sub(r"[^\w.+#/()=,: -]", "", re.sub(r"^[^\x00-\x7f]+\s", "", text))).strip(" -")


@functools.cache
def names_of(text: str) -> frozenset[str]:
    """Return the ways in which a report may refer to a subject: "Rust (tokio)" is rust, tokio and rust (tokio)."""
    whole = re.sub(r"[`'\"]", "", text).strip().lower()
    whole = re.sub(r"\s+(results?|server|output|logs?|benchmark)$", "", whole.partition(":")[0])
    outer = re.sub(r"\([^)]*\)", "", whole).strip()
    inner = [part.strip().removeprefix("using ") for part in ",".join(re.findall(r"\(([^)]*)\)", whole)).split(",")]
    names = {name for name in (whole, outer, *inner) if re.match(r"[^\W\d]|\d+\.\d", name)}
    return frozenset(names - {"stdlib", "std", "http", "tcp", "default", "localhost"})


def is_round(value: float) -> bool:
    """Return whether somebody may have chosen a number: it has two digits, or is a power of two."""
    return value >= 1 and (float(f"{value:.1e}") == value or math.log2(value) == int(math.log2(value)))


def conditions_in(text: str, line: int) -> Iterator[tuple[str, Quantity]]:
    """Yield the conditions that a heading, label or command names: "100conn/10s", "c64", "1 KB", "50k iterations"."""
    if match := CONNECTIONS.search(text):
        value = float((match[1] or match[3]).replace(",", "")) * (1e3 if match[2] else 1)
        yield "connections", exactly(value, match[0]).at(line)
        if (duration := DURATION.search(text)) and (found := quantities.read(duration[0])):
            yield "duration", exactly(found.value, duration[0], "time").at(line)
    elif (match := re.search(r"\b(\d+)\s?C?\s?[*×x]\s?(\d+)\b", text)) and "conn" in text:
        yield "connections", exactly(float(match[1]) * float(match[2]), match[0]).at(line)
    if (sizes := SIZE.findall(text)) and (size := quantities.read(sizes[-1])):
        yield "size", size.chosen().at(line)
    if match := COUNT.search(text):
        value = float((match[1] or match[3]).replace(",", "")) * (1e3 if match[2] else 1)
        if value >= 2:
            yield "count", exactly(value, match[0]).at(line)
    timed = re.search(r"timer|call_later|delay|sleep|timeout", text, re.I)
    if timed and (match := DELAY.search(text)) and (delay := quantities.read(match[1])):
        yield "delay", delay.at(line)


def command_in(text: str, line: int) -> dict[str, Quantity]:
    """Return the conditions that a load generator's command sets."""
    found: dict[str, Quantity] = {}
    if match := COMMAND.search(text):
        for kind, pattern in OPTIONS.items():
            option = re.search(pattern, match[2])
            if option and (kind != "wrk_threads" or match[1].startswith("wrk")):
                words = option[1] if kind != "duration" or option[1][-1].isalpha() else f"{option[1]} s"
                if quantity := quantities.read(re.sub(r"(\d)m$", r"\1 min", words)):
                    found[kind] = quantity.chosen().at(line)
    return found


def take(record: Record, kind: str, text: str, unit: Unit | None, line: int) -> bool:
    """Put the figure that a text begins with into a record, by what its unit says of its kind; return whether there was one."""
    quantity = quantities.read(text, unit)
    if quantity is None or re.match(r"\s*[<>≤≥]", text) or (quantity.value < 0 and kind != "change"):
        return False
    if kind == "error" and re.match("connect", quantity.noun):
        kind = "connect_error"
    wanted, found = DIMENSIONS.get(kind, "number"), quantity.dimension
    if found == "number" and wanted in ("rate", "size", "time") and (wanted != "time" or kind == "duration"):
        quantity = replace(quantity, dimension=wanted)  # A duration without a unit is in seconds.
    elif found == "size" and wanted == "bandwidth":  # "Transfer/sec: 13.63MB"; and Gb may be either.
        low = quantity.low / (8 if re.search(r"[KMGkmg]b$", quantity.text) else 1)
        quantity = replace(quantity, low=low, dimension="bandwidth")
    elif found == "time" and quantity.each:
        kind = "operation"
    elif found != wanted or not kind:
        if found in ("rate", "bandwidth"):
            kind = found
        elif (kind, found) != ("speedup", "factor"):
            kind = f"other {kind.removeprefix('other').strip()}".strip()
    if kind == "size" and not any(is_round(quantity.value / scale) for scale in (1, 2**10, 2**20)):
        kind = "other size"  # An outcome, such as that of compressing.
    if kind == "duration" and len(quantity.digits) >= 4:
        kind = "total"  # Nobody chooses 73.001 ms.
    if kind in SETTINGS:
        record.settings[kind] = quantity.chosen().at(line)
    else:
        record.figures.setdefault(kind, quantity.at(line))
    return True


@dataclass
class Column:
    """A column of a table, and its role: subject, case, metric, winner, setting, figure, text."""

    index: int
    heading: str
    role: str
    kind: str = ""
    unit: Unit | None = None
    subject: str = ""
    settings: dict[str, Quantity] = field(default_factory=dict)


def read_columns(table: Table) -> list[Column]:
    """Find out what the columns have."""
    columns: list[Column] = []
    cells = [[row[index] for _, row in table.rows if index < len(row)] for index in range(len(table.headings))]
    named = sum(kind_of(cell) not in ("", "count", "rank", "error") for cell in cells[0]) * 2 > len(cells[0])
    numbered = kind_of(table.headings[0]) in SETTINGS and all(
        re.fullmatch(r"[\d,]+", each) for each in table.headings[1:]
    )
    for index, heading in enumerate(table.headings):
        kind = kind_of(heading)
        read = sum(quantities.read(cell) is not None for cell in cells[index])
        numeric = read * 2 > sum(not EMPTY.fullmatch(cell) for cell in cells[index]) or (
            read and kind not in ("", "winner")
        )
        column = Column(index, heading, "text", kind, heading_unit(heading))
        first = index == 0 and (CASES.match(heading) or SUBJECTS.match(heading) or "-per-" in heading or numbered)
        if METRICS.match(heading) or (named and index == 0):
            column.role = "metric"
        elif numeric and not first and (kind or index or heading):
            column.role = "setting" if kind in SETTINGS else "figure"
            column.settings = dict(conditions_in(heading, table.line.number))
            if numbered:
                value = exactly(float(heading.replace(",", "")), heading)
                column.settings = {columns[0].kind: value.at(table.line.number)}
                column.kind = next((found for title in reversed(table.line.path) if (found := kind_of(title))), "")
        elif kind == "winner":
            column.role = "winner"
        elif CASES.match(heading) or first:
            column.role = "subject" if SUBJECTS.match(heading) else "case"
        elif SUBJECTS.match(heading):
            column.role = "subject"
        columns.append(column)
    plain = [column for column in columns if column.role == "figure" and not column.settings]
    unnamed = [column for column in plain if not column.kind]
    metrics = any(column.role == "metric" for column in columns)
    if metrics or (len(unnamed) > 1 and all(column.kind in ("", "change", "speedup") for column in plain)):
        for column in unnamed:  # Columns named after subjects.
            column.subject = clean(column.heading)
    texts = [column for column in columns if column.role == "text"]
    if texts and all(column.kind == "rank" for column in columns[: texts[0].index]):
        others = any(column.subject or column.role == "subject" for column in columns)
        texts[0].role = "case" if others else "subject"
    return columns


def read_table(table: Table, base: Record) -> tuple[list[Record], int]:
    """Return the records of a table, and how many of its figures weren't read."""
    columns = read_columns(table)
    found: dict[tuple[object, ...], Record] = {}
    above, unread = [""] * len(columns), 0
    place = next((clean(title) for title in reversed(base.path) if not dict(conditions_in(title, 0))), "")
    place = "" if any(column.subject for column in columns) else place
    for line, cells in table.rows:
        cells += [""] * (len(columns) - len(cells))
        if not any(cells[1:]) and cells[0]:  # A row that names those below it.
            place = clean(cells[0])
            continue
        # An empty cell repeats what is above it, unless it may be a figure.
        above = [cells[c.index] or (above[c.index] if c.role not in ("figure", "metric") else "") for c in columns]
        metric = next((above[c.index] for c in columns if c.role == "metric"), "")
        subjects, cases = (
            [clean(above[c.index]) for c in columns if c.role == role and above[c.index]]
            for role in ("subject", "case")
        )
        subject, label = subjects[0] if subjects else place, " ".join(cases + subjects[1:])
        row = replace(base, line=line.number, settings=dict(base.settings), figures={})
        words = [above[c.index] for c in columns if c.role in ("subject", "case")]
        row.settings.update(conditions_in(" ".join([table.headings[0], *words]), line.number))
        if "-per-" in table.headings[0]:  # Such as "client-nCore * client-conn-per-core".
            subject, label = place, ""
        if rank := re.match(r"^#?(\d+)[.)]\s+(\S.*)$", subject):
            subject = rank[2]
            row.figures["rank"] = exactly(float(rank[1]), rank[1]).at(line.number)
        for column in columns:
            text = above[column.index]
            if column.role == "setting" and text:
                unread += (
                    not take(row, column.kind, text, column.unit, line.number) and quantities.read(text) is not None
                )
        for column in columns:
            text, kind, unit = above[column.index], column.kind, column.unit
            if column.role == "winner" and (
                won := re.match(r"([A-Za-z][\w.+# -]*?)\s*(?:\(?[+\-−–]?\d.*)?$", clean(text))
            ):
                record = replace(row, subject="", label=label, winner=won[1], about=kind_of(metric), figures={})
                take(record, "change", text.partition(won[1])[2].strip(), None, line.number)
                found[line.number, "winner"] = record
            if column.role != "figure" or EMPTY.fullmatch(text):
                continue
            case = " ".join(filter(None, (subject, label))) if column.subject else label
            settings = row.settings | column.settings
            conditions = tuple((kind, each.value) for kind, each in settings.items())
            key = (column.subject or subject, case, conditions, 0 if metric else line.number)
            record = found.get(key) or replace(
                row, subject=key[0], label=case, settings=settings, figures=dict(row.figures)
            )
            if baseline := BASELINE.search(column.heading):
                record.baseline = baseline[1]
            kind, unit = kind or kind_of(metric), unit or heading_unit(metric)
            quantity = quantities.read(text, unit)
            if quantity and quantity.dimension == "number" and not kind and not column.heading:
                unread += 1  # Nothing says what it is.
                continue
            if not kind and column.subject:
                counted = quantity and quantity.dimension == "time" and "count" in dict(conditions_in(case, 0))
                kind = "total" if counted else "other"
            if take(record, kind or f"other {clean(column.heading).lower()}", text, unit, line.number):
                found[key] = record
            else:
                unread += bool(re.match(r"\W*\d", text))
    return [record for record in found.values() if record.figures or record.winner], unread


def read_pairs(pairs: Pairs, base: Record) -> list[Record]:
    """Return the records of a list of "name: figure"."""
    named = [each for each in base.path[1:] if not dict(conditions_in(each, 0))] or list(base.path)
    subject = named[-1] if named else ""
    record = replace(base, subject=clean(subject), figures={})
    record.label = " ".join(clean(each) for each in base.path[1:] if each != subject)
    found = []
    for line, name, text in pairs:
        kind, quantity = kind_of(name), quantities.read(text)
        if quantity is None or (quantity.dimension == "number" and not kind) or re.match("date|warm-?up", name, re.I):
            continue
        kind = "other" if name.lower() == "time" else kind
        if kind or quantity.each or re.search(r"time|schedul", name, re.I):
            take(record, kind or f"other {name.lower()}", text, None, line.number)
        elif quantity.dimension in ("time", "rate", "bandwidth"):
            one = replace(record, subject=clean(name), label=" ".join(base.path[1:]), figures={}, line=line.number)
            take(one, "other", text, None, line.number)
            found.append(one)
    if record.figures.keys() <= {"change", "speedup"}:  # Of what is told in the lists beside it.
        parts = base.path[1:-1] if subject == "".join(base.path[-1:]) else base.path[1:]
        record.subject, record.label = "", " ".join(map(clean, parts))
    return [record, *found] if record.figures else found


Shared = dict[tuple[str, ...], dict[str, Quantity]]


def share(document: Document, found: Sequence[Pairs | Table]) -> Shared:
    """Return the conditions that hold for sections: of their headings, of lists such as "Test: 50 iterations", of commands."""
    shared: Shared = {}
    commands: dict[tuple[str, ...], list[dict[str, Quantity]]] = {}
    for line in document.lines:
        for depth in range(1, len(line.path) + 1):
            if line.path[:depth] not in shared:
                shared[line.path[:depth]] = dict(conditions_in(line.path[depth - 1], line.number))
        if command := command_in(line.text, line.number):
            commands.setdefault(line.path, []).append(command)
    for part in found:
        for line, name, text in () if isinstance(part, Table) else part:
            if re.fullmatch(r"tests?|benchmark|workload|scenario|load|set-?up|iterations|repeats", name, re.I):
                there = shared.setdefault(line.path, {})
                shared[line.path] = dict(conditions_in(f"{text} {name}", line.number)) | there
    for path, several in commands.items():
        first = several[0].items()
        same = {
            kind: each
            for kind, each in first
            if {s[kind].value if kind in s else None for s in several} == {each.value}
        }
        shared[path] = shared.get(path, {}) | same
    return shared


def read_tables(document: Document) -> tuple[list[Record], list[int]]:
    """Return the records of all tables and lists, and the lines of the tables with figures that weren't read."""
    parts = list(tables(document, is_heading))
    shared = share(document, parts)
    records: list[Record] = []
    unread: list[int] = []
    for group, part in enumerate(parts):
        line = part.line if isinstance(part, Table) else part[0][0]
        base = Record(document.name, "table" if isinstance(part, Table) else "list", group, line.number, line.path)
        for depth in range(len(line.path) + 1):
            base.settings.update(shared.get(line.path[:depth], {}))
        base.closed = not document.says(NOT_CLOSED, line.path)
        base.both_ways = document.says(BOTH_WAYS, line.path)
        if isinstance(part, Table):
            read, missed = read_table(part, base)
            records += read
            unread += [line.number] if missed else []
        else:
            records += read_pairs(part, base)
    return records, unread
