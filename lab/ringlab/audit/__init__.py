"""Auditing published benchmarks: what a report's own figures contradict.

`document` takes a report apart, `tools` and `records` read what was measured, `quantities` knows units and rounding, and `checks`
has the rules. Only tables and what tools printed are read, no sentences. An audit runs no benchmark.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ringlab import Refused
from ringlab.audit import checks, document, records, tools
from ringlab.audit.checks import Finding
from ringlab.audit.records import Record

REPORT_BYTES_MAX = 16 << 20
DERIVED = {"message", "bandwidth_both"}
"""Kinds of figures that nobody wrote."""

__all__ = ["Audit", "Finding", "Record", "audit", "read"]


@dataclass(frozen=True)
class Audit:
    """The outcome of an audit of some reports."""

    findings: list[Finding]
    """In the order of the reports and their lines."""
    records: list[Record]
    unread: dict[str, list[int]]
    """By report: the lines of the tables with figures that weren't understood."""
    missing: dict[str, list[str]]
    """By report: what it doesn't have at all."""

    def figures(self, report: str) -> int:
        """Return how many figures of a report were read."""
        return sum(len(each.figures.keys() - DERIVED) for each in self.records if each.document == report)


def read(paths: Sequence[Path]) -> list[tuple[str, str]]:
    """Return the names and texts of reports; raise Refused."""
    found = []
    for path in paths:
        try:
            if path.stat().st_size > REPORT_BYTES_MAX:
                raise Refused(f"{path} is larger than {REPORT_BYTES_MAX >> 20} MiB: that is no report")
            content = path.read_bytes()
        except OSError as error:
            raise Refused(f"{path} can't be read: {error.strerror}") from None
        encoding = "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
        try:
            text = content.decode(encoding)
        except UnicodeDecodeError:
            text = content.decode("cp1252", "replace")
        if "\0" in text:
            raise Refused(f"{path} is no text; copy the report's text into a file")
        found.append((str(path), text))
    return found


def audit(reports: Sequence[tuple[str, str]]) -> Audit:
    """Return what is wrong with some reports, given by name and text. They are also compared with each other."""
    found: list[Record] = []
    unread: dict[str, list[int]] = {}
    for name, text in reports:
        parts = document.parse(text, name)
        found += tools.read_outputs(parts)
        tables, lines = records.read_tables(parts)
        found += tables
        unread[name] = lines
    checks.name_bandwidth(found)
    order = {name: index for index, (name, _) in enumerate(reports)}
    findings = checks.check(found)
    findings.sort(key=lambda finding: (order[finding.report], finding.line, finding.rule))
    missing = {name: checks.missing([record for record in found if record.document == name]) for name in order}
    return Audit(findings, found, unread, missing)
