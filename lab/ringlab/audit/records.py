"""The measurements of a report: each record is one subject under one set of conditions, with its figures.

Tables are read in the forms that reports use: a row for each subject; a row for each condition and a column for each subject; a
row for each figure, with its name in a column "metric"; conditions in the headings of columns ("100conn/10s"); several figures in
one cell ("139,489 req/s; 437 us; 1.14 ms"). Columns that aren't understood are left alone: what isn't read can't be wrong.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from ringlab import figures
from ringlab.audit import quantities
from ringlab.audit.document import Document, Table
from ringlab.audit.quantities import Dimension, Quantity

Unit = tuple[Dimension, float, float]

PERCENTILES = {"p50": 50.0, "p75": 75.0, "p90": 90.0, "p95": 95.0, "p99": 99.0, "p999": 99.9, "p9999": 99.99}
LATENCIES = ("min", *PERCENTILES, "max")
"""In the order in which they may not fall."""
SETTINGS = ("connections", "duration", "size", "threads", "count")
"""Conditions: a figure of these kinds isn't measured but chosen."""
KINDS: tuple[tuple[str, str], ...] = (
    ("connect_error", r"connect(ion)? (errors?|failures?)"),
    ("error", r"errors?\b|failures?|failed|timeouts?"),
    ("p9999", r"p\s?99\.99|99\.99\s?(%|th)"),
    ("p999", r"p\s?99\.9|p999|99\.9\s?(%|th)"),
    ("p99", r"p\s?99|99\s?(%|th)"),
    ("p95", r"p\s?95|95\s?(%|th)"),
    ("p90", r"p\s?90|90\s?(%|th)"),
    ("p75", r"p\s?75|75\s?(%|th)"),
    ("p50", r"p\s?50|50\s?(%|th)|median"),
    ("change", r"overhead|\bvs\.?\s|versus|compared (to|with)|improvement|difference|\bdiff\b|delta|change|gain|faster by"),
    ("speedup", r"speed-?\s?up|\bratio\b|times faster|\bfactor\b"),
    ("bandwidth_each", r"(bandwidth|throughput|mbps|gbps|mb/s).*(per|/) ?(conn|channel)|per.(connection|channel).*(bandwidth|mbps|mb/s)"),
    ("bandwidth_total", r"(aggregate|total).*(bandwidth|mbps|gbps|[mg]i?b/s)|(bandwidth|mbps|gbps).*(aggregate|total)"),
    ("bandwidth", r"bandwidth|transfer/sec|[kmg]i?b/s(ec)?\b|[kmg]bit/s|[kmg]bps\b"),
    ("rate", r"(req|requests?|ops?|operations|msgs?|messages|iterations|callbacks|round trips|trips|echoes)"
     r"\s?(/|per )\s?s(ec(ond)?)?\b|\b[rq]ps\b"
     r"|throughput|\brate\b|^/s$"),
    ("operation", r"per[ -]op|time per|/op\b|ns/iter|per (operation|iteration|callback|bind|message|request)|us/op|latency per"),
    ("connections", r"^(tcp )?(open |concurrent |parallel )?(connections?|conns?|concurrency|clients|sockets|c)$"
     r"|#\s?connections|number of connections"),
    ("threads", r"^(client |load |wrk )?threads$"),
    ("duration", r"duration|^(test |run )?length$|seconds run"),
    ("size", r"(message |payload |body |packet |block )?size$|^(message|payload|body)( \(?bytes\)?)?$"),
    ("count", r"^(n|count|iterations|operations|messages|requests|round trips|samples|binds|total requests|runs of)( done| sent)?$"),
    ("total", r"^(total |elapsed |wall )(time|ms|s)\b|^time( \((ms|s|us|ns)\))?$|^total$|^elapsed|^wall"),
    ("mean", r"avg|average|mean|^latency( \((us|ms|ns|s|µs)\))?$|round trip"),
    ("stdev", r"std\.?\s?dev|stdev|σ"),
    ("min", r"\bmin(imum)?\b|fastest"),
    ("max", r"\bmax(imum)?\b|slowest|worst"),
    ("cpu", r"\bcpu\b"),
)  # fmt: skip
DIMENSIONS: dict[str, tuple[Dimension, ...]] = {
    "rate": ("rate", "number"),
    "bandwidth": ("bandwidth",),
    "bandwidth_each": ("bandwidth",),
    "bandwidth_total": ("bandwidth",),
    "connections": ("number",),
    "threads": ("number",),
    "count": ("number",),
    "connect_error": ("number",),
    "error": ("number",),
    "size": ("size",),
    "duration": ("time",),
    "change": ("percent",),
    "speedup": ("factor", "number"),
    "cpu": ("percent",),
    **dict.fromkeys(("operation", "total", "mean", "stdev", *LATENCIES), ("time",)),
}
NAMES = {
    "rate": "the rate",
    "mean": "the mean latency",
    "operation": "the time per operation",
    "bandwidth": "the bandwidth",
    "bandwidth_each": "the bandwidth per connection",
    "bandwidth_total": "the total bandwidth",
    "total": "the total time",
    "error": "the errors",
    "p999": "p99.9",
    "p9999": "p99.99",
    "cpu": "the CPU",
}
SUBJECT_HEADINGS = re.compile(
    r"^(name|server|runtime|language|implementation|framework|library|system|subject|arm|loop|target|program|version|release|commit|branch|build|variant|configuration)\b",
    re.I,
)
LABEL_HEADINGS = re.compile(
    r"^(benchmark|test|workload|case|scenario|cell|operation|metric|measure|figure|what|step)\b", re.I
)
METRIC_HEADINGS = re.compile(r"^(metric|measure|figure)s?$", re.I)
WINNER_HEADINGS = re.compile(r"^(winner|best|fastest|better|faster)$", re.I)
CONDITION = re.compile(r"(\d[\d,]*)\s*(k?)\s*(conn(?:ection)?s?|clients)\b", re.I)
DURATION = re.compile(r"\b(\d+(?:\.\d+)?)\s*(s|sec|seconds|min|minutes|m)\b", re.I)
OPEN_LOOP = re.compile(
    r"open[- ]loop|constant[- ]rate|wrk2|\bwrk\b[^\n]*\s-R\s?\d|--rate\b|fixed rate|offered (rate|load)", re.I
)
PIPELINED = re.compile(r"pipelin(?!e (?:build|ci))", re.I)


@dataclass(frozen=True)
class Figure:
    """A figure of a record, where it was read."""

    quantity: Quantity
    line: int

    @property
    def text(self) -> str:
        """As it was written."""
        return self.quantity.text


@dataclass
class Record:
    """One subject, under one set of conditions."""

    subject: str
    label: str
    """The benchmark or case, where a report has several."""
    source: str
    """The source that it was read from: "table" or a tool's name."""
    line: int
    section: str
    settings: dict[str, Figure] = field(default_factory=dict)
    figures: dict[str, Figure] = field(default_factory=dict)
    baseline: str = ""
    """The reference of changes and speed-ups, where a heading names it."""
    text: str = ""
    """The text around it, for words that say how it was measured."""
    winner: str = ""
    """Of a record that holds nothing but who is said to be best, and by how much: whom a report names."""
    about: str = ""
    """In which figure; empty where the row has only one."""
    table: int = -1
    """Which table of the document."""
    document: str = ""

    def get(self, kind: str) -> Quantity | None:
        """Return a figure or a setting."""
        found = self.figures.get(kind) or self.settings.get(kind)
        return found.quantity if found else None

    def line_of(self, kind: str) -> int:
        """Return where a figure is."""
        found = self.figures.get(kind) or self.settings.get(kind)
        return found.line if found else self.line

    @property
    def name(self) -> str:
        """Say which it is."""
        parts = [part for part in (self.subject, self.label) if part]
        parts += [describe_setting(kind, figure) for kind, figure in self.settings.items() if kind != "threads"]
        return ", ".join(parts) or "it"

    @property
    def conditions(self) -> tuple[tuple[str, float], ...]:
        """Return the settings as a key: two records with the same were measured alike, as far as the report says."""
        return tuple(sorted((kind, round(each.quantity.value, 9)) for kind, each in self.settings.items()))

    def conditions_of(self, kind: str) -> float | None:
        """Return one of the settings."""
        found = self.settings.get(kind)
        return found.quantity.value if found else None

    @property
    def closed_loop(self) -> bool:
        """Whether each connection has one request under way at a time, as far as the report says."""
        return not OPEN_LOOP.search(self.text) and not PIPELINED.search(self.text)


def describe_setting(kind: str, figure: Figure) -> str:
    """Write a condition."""
    if kind in ("size", "duration"):
        return figure.text if kind == "size" else quantities.seconds(figure.quantity.value)
    noun = {"connections": "connection", "threads": "thread", "count": "operation"}[kind]
    return figures.counted(round(figure.quantity.value), noun)


def kind_of(heading: str) -> str:
    """Return what a heading announces, or nothing."""
    text = heading.strip().lower()
    return next((kind for kind, pattern in KINDS if re.search(pattern, text)), "")


def unit_of(heading: str) -> Unit | None:
    """Return the unit that a heading gives for its figures."""
    for text in [*re.findall(r"[\[(]([^\])]+)[\])]", heading), heading.rpartition(",")[2]]:
        unit = quantities.parse_unit(text)
        if unit is not None:
            return unit
    match = re.search(r"\b([kmg]i?b/s|[kmg]bit/s|[kmg]bps|ns|us|µs|ms)\b", heading, re.I)
    if match:
        return quantities.parse_unit(match[1])
    return quantities.parse_unit("/s") if kind_of(heading) == "rate" else None


def subject_of(text: str) -> str:
    """Return the name in a cell or heading, without decoration."""
    return re.sub(r"\s+", " ", re.sub(r"[^\w.+#/() -]", "", text)).strip()


def same_subject(one: str, other: str) -> bool:
    """Return whether two names mean the same: equal but for case, or one has the other's words in parentheses."""
    return bool(names_of(one) & names_of(other))


def names_of(text: str) -> frozenset[str]:
    """Return the ways in which a report may refer to a subject: "Rust (tokio)" is rust, tokio and rust (tokio)."""
    whole = text.strip().lower()
    inner = [part.strip() for group in re.findall(r"\(([^)]*)\)", whole) for part in group.split(",")]
    outer = re.sub(r"\([^)]*\)", "", whole).strip()
    ambiguous = {"stdlib", "std", "http", "tcp", "default", ""}
    found = {whole, *(part for part in inner if part not in ambiguous)}
    # Two programs in one language aren't the same subject.
    return frozenset(found if inner and inner[0] not in ambiguous else {*found, outer})


def fits(kind: str, quantity: Quantity) -> bool:
    """Return whether a figure can be of a kind, by its unit."""
    return quantity.dimension in DIMENSIONS.get(kind, ())


def take(record: Record, kind: str, text: str, unit: Unit | None, line: int) -> bool:
    """Put the figure that a text has into a record; return whether there was one."""
    if not text.strip() or re.fullmatch(r"[-–—]|n/?a|none", text.strip(), re.I):
        return False
    if kind in SETTINGS:
        quantity = quantities.setting(text, unit)
        target = record.settings
    else:
        quantity = next((each for _, each in quantities.find(text, unit)), None)
        target = record.figures
    if quantity is None or (quantity.value < 0 and kind != "change"):
        return False
    if not fits(kind, quantity):
        # A duration without a unit is in seconds; a size without one is in bytes.
        defaults: dict[str, Unit] = {"duration": ("time", 1.0, 1.0), "size": ("size", 1.0, 1.0)}
        if quantity.dimension != "number" or kind not in defaults:
            return False
        quantity = quantities.setting(text, defaults[kind])
        assert quantity is not None
    if re.search(r"[<>≤≥]", text):
        return False
    target.setdefault(kind, Figure(quantity, line))
    return True


def guess_kind(quantity: Quantity, context: str) -> str:
    """Return what a figure may be by its unit alone."""
    if quantity.dimension == "rate":
        return "rate"
    if quantity.dimension == "bandwidth":
        each = re.search(r"per[ -](connection|channel|conn)", context, re.I)
        return "bandwidth_each" if each else "bandwidth"
    return {"percent": "", "factor": "", "time": "", "size": "", "number": ""}[quantity.dimension]


@dataclass(frozen=True)
class Column:
    """A column of a table, and its role."""

    index: int
    heading: str
    role: str
    """subject, label, setting, figure, other-subject or nothing."""
    kinds: tuple[str, ...] = ()
    unit: Unit | None = None
    subject: str = ""
    settings: tuple[tuple[str, Figure], ...] = ()


def settings_in(text: str, line: int) -> tuple[tuple[str, Figure], ...]:
    """Return the conditions in a heading such as 100conn/10s."""
    found = []
    match = CONDITION.search(text)
    if match:
        value = float(match[1].replace(",", "")) * (1e3 if match[2] else 1)
        quantity = Quantity(value, value, value, "number", match[0])
        found.append(("connections", Figure(quantity, line)))
    match = DURATION.search(text)
    if match and (found or re.fullmatch(DURATION.pattern, text.strip(), re.I)):
        duration = quantities.setting(match[0].replace("m", "min") if match[2] == "m" else match[0])
        if duration is not None and duration.dimension == "time":
            found.append(("duration", Figure(duration, line)))
    return tuple(found)


def read_columns(table: Table) -> list[Column]:
    """Find out what the columns have."""
    columns: list[Column] = []
    inherited: tuple[str, ...] = ()
    has_metric = any(METRIC_HEADINGS.match(heading) for heading in table.headings)
    for index, heading in enumerate(table.headings):
        cells = [row[index] for row in table.rows if index < len(row)]
        numeric = sum(bool(quantities.NUMBER.search(cell)) for cell in cells) * 2 > len(cells)
        conditions = settings_in(heading, table.line)
        kinds, subject = split_heading(heading)
        unit = unit_of(heading)
        if conditions and numeric:
            columns.append(Column(index, heading, "figure", (), unit, settings=conditions))
        elif METRIC_HEADINGS.match(heading):
            columns.append(Column(index, heading, "metric"))
        elif WINNER_HEADINGS.match(heading):
            columns.append(Column(index, heading, "winner"))
        elif index == 0 and not numeric and not (kinds and kinds[0] in SETTINGS):
            role = "label" if LABEL_HEADINGS.match(heading) else "subject"
            columns.append(Column(index, heading, role))
        elif SUBJECT_HEADINGS.match(heading) and not any(each.role == "subject" for each in columns):
            columns.append(Column(index, heading, "subject"))
        elif LABEL_HEADINGS.match(heading) and not has_metric:
            columns.append(Column(index, heading, "label"))
        elif kinds and kinds[0] in SETTINGS and not subject:
            columns.append(Column(index, heading, "setting", kinds, unit))
        elif kinds:
            inherited = kinds if len(kinds) > 1 or subject else ()
            columns.append(Column(index, heading, "figure", kinds, unit, subject))
        elif numeric and (has_metric or inherited or index > 0):
            # A column named after a subject, in a table whose rows are conditions, benchmarks or metrics.
            columns.append(Column(index, heading, "figure", inherited, unit, subject_of(heading)))
        else:
            columns.append(Column(index, heading, ""))
    return columns


def split_heading(heading: str) -> tuple[tuple[str, ...], str]:
    """Return the kinds of figures in a heading, and the subject before the first: "kio req/s, avg, p50"."""
    whole = kind_of(heading)
    parts = [part.strip() for part in re.split(r"[,;]", re.sub(r"\([^)]*\)", "", heading)) if part.strip()]
    kinds = [kind_of(part) for part in parts]
    if len(parts) > 1 and all(kinds):
        match = re.match(r"^([A-Z]?[\w.+-]+)\s+\S", parts[0])
        first = match[1] if match and not kind_of(match[1]) else ""
        return tuple(kinds), first
    if not whole:
        return (), ""
    match = re.match(
        r"^([A-Za-z][\w.+-]*)\s+(?:(?:mean|avg|average|p\d+|req/s|ops/s|rps|ms|us|ns|throughput|latency|cpu|total|time)\b)",
        heading,
    )
    named = re.match(r"^([A-Za-z][\w.+ -]*?)\s*\(([^)]*)\)$", heading)
    if named and not kind_of(named[1]) and quantities.parse_unit(named[2]):
        return (whole,), named[1]
    plain = re.compile(
        r"^(the|mean|avg|average|total|cpu|server|client|requests?|ops?|latency|throughput|time|max|min|test|run|wall)$",
        re.I,
    )
    if match and not plain.match(match[1]) and not kind_of(match[1]):
        return (whole,), match[1]
    return (whole,), ""


def read_table(table: Table, number: int, context: str) -> Iterator[Record]:
    """Yield the records of a table."""
    columns = read_columns(table)
    figure_columns = [column for column in columns if column.role == "figure"]
    if not figure_columns:
        return
    above: dict[int, str] = {}
    group: dict[tuple[object, ...], Record] = {}
    winners: list[Record] = []
    around = f"{table.section}\n{table.caption}\n{context}"
    text_around = f"{around}\n{', '.join(table.headings)}"
    for cells, line in zip(table.rows, table.lines, strict=True):
        texts = dict(enumerate(cells))
        for column in columns:
            if column.role in ("subject", "label", "setting"):
                # An empty cell repeats what is above it.
                texts[column.index] = above[column.index] = texts.get(column.index) or above.get(column.index, "")
        subject = next((subject_of(texts.get(each.index, "")) for each in columns if each.role == "subject"), "")
        label = " ".join(texts.get(each.index, "") for each in columns if each.role == "label").strip()
        metric = next((texts.get(each.index, "") for each in columns if each.role == "metric"), "")
        base = Record(subject, label, "table", line, table.section, text=text_around, table=number)
        for column in columns:
            if column.role == "setting":
                take(base, column.kinds[0], texts.get(column.index, ""), column.unit, line)
        for kind, figure in settings_in_label(label or (subject if not figure_subjects(columns) else ""), line):
            base.settings.setdefault(kind, figure)
        for column in figure_columns:
            text = texts.get(column.index, "")
            kinds, unit = column.kinds, column.unit
            if metric:
                kinds, unit = (kind_of(metric),), unit_of(metric) or unit
            # Where columns are subjects, what stands in the column of subjects is a case of each.
            name = column.subject or subject
            extra = f"{subject} {label}".strip() if column.subject and subject else label
            key: tuple[object, ...] = (
                name,
                extra,
                base.conditions,
                tuple((k, f.quantity.value) for k, f in column.settings),
            )
            if not metric:
                key += (line,)
            record = group.get(key)
            if record is None:
                record = Record(
                    name, extra, "table", line, table.section, dict(base.settings), text=text_around, table=number
                )
                record.settings.update(dict(column.settings))
                group[key] = record
            fill(record, text, kinds, unit, line, column.heading, around)
        for column in columns:
            match = re.match(r"([A-Za-z][\w.+# -]*?)\s*(?:\(?[+\-−–]?\d.*)?$", texts.get(column.index, "").strip())
            if column.role == "winner" and match:
                about = kind_of(metric) if metric else ""
                winner = replace(base, subject="", winner=match[1], about=about, figures={})
                take(winner, "change", texts[column.index][match.end(1) :], None, line)
                winners.append(winner)
    yield from (record for record in group.values() if record.figures)
    yield from winners


def figure_subjects(columns: Sequence[Column]) -> bool:
    """Return whether columns are named after subjects."""
    return any(column.role == "figure" and column.subject for column in columns)


def settings_in_label(label: str, line: int) -> Iterator[tuple[str, Figure]]:
    """Yield the conditions in the name of a benchmark: "50,000 call_soon", "1 KB x 2000"."""
    match = re.match(r"^~?(\d[\d,]*)\s+(?!conn|ms\b|us\b|s\b|[KMG]i?B\b)[A-Za-z_]", label)
    times = re.search(r"[x×]\s?(\d[\d,]*)\s*$", label)
    found = match or times
    if found and float(found[1].replace(",", "")) >= 2:
        value = float(found[1].replace(",", ""))
        yield "count", Figure(Quantity(value, value, value, "number", found[1]), line)
    size = re.search(r"\b\d+(?:\.\d+)?\s?[KMG]i?B\b", label)
    if size:
        quantity = quantities.setting(size[0])
        assert quantity is not None
        yield "size", Figure(quantity, line)
    yield from settings_in(label, line)


def fill(
    record: Record, text: str, kinds: Sequence[str], unit: Unit | None, line: int, heading: str, around: str
) -> None:
    """Read the figures of a cell."""
    parts = [part.strip() for part in re.split(r";", text) if part.strip()]
    if len(kinds) > 1 and len(parts) == 1:
        parts = [part.strip() for part in re.split(r",\s", text) if part.strip()]
    if len(kinds) > 1 or len(parts) > 1:
        remaining = list(kinds)
        for part in parts:
            named = kind_of(re.sub(r"[\d.,]+\s*(ms|us|µs|ns|s|%)?", "", part))
            kind = named if named and named != "rate" else (remaining.pop(0) if remaining else named)
            if kind:
                take(record, kind, part, unit if kind == "rate" else None, line)
        return
    kind = kinds[0] if kinds else ""
    if not kind:
        quantity = next((each for _, each in quantities.find(text, unit)), None)
        kind = guess_kind(quantity, around) if quantity else ""
        if quantity is not None and not kind and quantity.dimension == "time":
            each = re.search(r"\b(each|per)\b", record.label, re.I)
            kind = "operation" if each else "total" if "count" in record.settings else "mean"
    if kind in ("bandwidth", "bandwidth_each", "bandwidth_total") and re.search(
        r"per[ -](connection|channel)", heading + around, re.I
    ):
        kind = "bandwidth_each" if kind == "bandwidth" else kind
    if kind:
        take(record, kind, text, unit, line)
    if kind in ("change", "speedup"):
        match = re.search(r"(?:vs\.?|versus|compared (?:to|with)|over|than|to)\s+([\w.+-]+)", heading, re.I)
        record.baseline = match[1] if match else record.baseline


def name_bandwidth(records: Sequence[Record], tool_records: Sequence[Record]) -> None:
    """Call a table's bandwidths what they are: those of each connection, if a tool's output below the table says so of any."""
    tables = {(record.document, record.table) for record in records}
    for table in tables:
        found = [record for record in records if (record.document, record.table) == table and record.get("bandwidth")]
        if any(is_each(record, log) for record in found for log in tool_records if log.document == record.document):
            for record in found:
                record.figures["bandwidth_each"] = record.figures.pop("bandwidth")


def is_each(record: Record, log: Record) -> bool:
    """Return whether a bandwidth in a table is what a tool gives for each connection, under the same conditions."""
    each, bandwidth = log.get("bandwidth_each"), record.get("bandwidth")
    connections = record.get("connections")
    if each is None or bandwidth is None or connections is None or connections.value < 2:
        return False
    alike = all(record.conditions_of(kind) == log.conditions_of(kind) for kind in ("connections", "duration"))
    return alike and bandwidth.meets(each.low, each.high)


def context_of(document: Document) -> str:
    """Return the words that hold for the whole report: its title and what stands before its second heading."""
    texts = []
    headings = 0
    first_section = document.prose[0].section if document.prose else ""
    for block in document.prose:
        headings += block.section != first_section
        if headings:
            break
        texts.append(block.text)
    return "\n".join(texts)


def read_tables(document: Document) -> list[Record]:
    """Return the records of all tables."""
    context = context_of(document)
    found = []
    for number, table in enumerate(document.tables):
        for record in read_table(table, number, context):
            record.document = document.name
            found.append(record)
    share_settings(found, document, context)
    return found


def share_settings(records: Sequence[Record], document: Document, context: str) -> None:
    """Give records the number of operations that the introduction tells of all: "50 iterations of a TCP bind"."""
    match = re.search(r"\b(\d[\d,]*)\s+(iterations|repetitions|operations)\b", context, re.I)
    if not match:
        return
    line = next((block.line for block in document.prose if match[0] in block.text), 1)
    value = float(match[1].replace(",", ""))
    for record in records:
        if "count" not in record.settings and record.get("operation") is not None:
            record.settings["count"] = Figure(Quantity(value, value, value, "number", match[1]), line)
