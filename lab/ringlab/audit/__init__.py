"""Auditing published benchmarks: what a report's own figures contradict.

`document` parses a report, `records` and `tools` read what was measured, `quantities` knows units and rounding, and `checks` has
the rules. An audit needs nothing but the report: it runs no benchmark.
"""

from collections.abc import Sequence
from pathlib import Path

from ringlab import Refused
from ringlab.audit import checks, document, records, tools
from ringlab.audit.checks import Finding
from ringlab.audit.records import Record

REPORT_BYTES_MAX = 16 << 20

__all__ = ["Finding", "Record", "audit", "read"]


def read(paths: Sequence[Path]) -> list[tuple[str, str]]:
    """Return the names and texts of reports; raise Refused."""
    found = []
    for path in paths:
        try:
            if path.stat().st_size > REPORT_BYTES_MAX:
                raise Refused(f"{path} is larger than {REPORT_BYTES_MAX >> 20} MiB: that is no report")
            text = path.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError:
            raise Refused(f"{path} is not UTF-8 text; convert it, or copy its text into a Markdown file") from None
        except OSError as error:
            raise Refused(f"{path} can't be read: {error.strerror}") from None
        found.append((str(path), text))
    return found


def audit(reports: Sequence[tuple[str, str]]) -> tuple[list[Finding], list[Record]]:
    """Return what is wrong with some reports, given by name and text, and what was read of them.

    Findings come in the order of the reports and their lines. Reports are also compared with each other.
    """
    documents = [document.read(text, name) for name, text in reports]
    found = []
    for each in documents:
        tables, outputs = records.read_tables(each), tools.read_blocks(each)
        records.name_bandwidth(tables, outputs)
        found += tables + outputs
    read_reports = checks.Reports(documents, found)
    findings = [finding for check in checks.CHECKS for finding in check(read_reports)]
    order = {name: index for index, (name, _) in enumerate(reports)}
    findings = list(dict.fromkeys(findings))
    findings.sort(key=lambda finding: (order[finding.report], finding.line, finding.rule))
    return findings, found
