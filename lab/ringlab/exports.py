"""Results for other programs: CSV, JUnit's XML, annotations of GitHub, and a summary in Markdown to be copied."""

import csv
import io
import re
import xml.etree.ElementTree as xml
from collections.abc import Sequence
from dataclasses import dataclass

from ringlab import Refused, figures
from ringlab.report import rate_of, verdicts_of
from ringlab.report.markdown import cell_text, table
from ringlab.results import Result
from ringlab.unpaired import Comparison, Judged

POINT_FIGURES = ("achieved_per_s", "latency_ns_p50", "latency_ns_p99", "latency_ns_p999")
"""Of each trial of a sweep."""
CONDITIONS = ("slower", "faster", "cannot-tell", "missing")


@dataclass(frozen=True)
class Condition:
    """When a comparison fails: `slower:3%` is a verdict of worse, by more than 3%."""

    kind: str
    percent: float = 0.0

    @classmethod
    def parse(cls, text: str) -> "Condition":
        """Read it; raise Refused."""
        match = re.fullmatch(r"(slower|faster|cannot-tell|missing)(?::(\d+(?:\.\d+)?)\s*%?)?", text.strip())
        if not match or (match[2] and match[1] in ("cannot-tell", "missing")):
            raise Refused(
                f"--fail-if {text!r} isn't understood; write {', '.join(CONDITIONS[:-1])} or {CONDITIONS[-1]}, and slower or faster"
                " also with a limit: slower:3%"
            )
        return cls(match[1], float(match[2] or 0.0))

    def meets(self, judged: Judged) -> bool:
        """Return whether a verdict fulfils it."""
        if self.kind == "cannot-tell":
            return judged.kind == "cannot tell"
        if self.kind == "slower":
            return judged.kind == "worse" and judged.worse_by > self.percent / 100
        return self.kind == "faster" and judged.kind == "better" and 1 / (1 + judged.worse_by) - 1 > self.percent / 100


def failures(comparison: Comparison, conditions: Sequence[Condition]) -> list[Judged]:
    """Return the verdicts that fulfil one of the conditions."""
    return [judged for judged in comparison.judged if any(condition.meets(judged) for condition in conditions)]


def missing(comparison: Comparison, conditions: Sequence[Condition]) -> list[tuple[str, str]]:
    """Return the cells and arms that are missing, if that is a failure."""
    return comparison.missing if any(condition.kind == "missing" for condition in conditions) else []


def junit(name: str, comparison: Comparison, conditions: Sequence[Condition]) -> str:
    """Return a report in JUnit's format: a case for each cell, arm and metric. Without conditions, nothing fails."""
    failed, absent = failures(comparison, conditions), missing(comparison, conditions)
    suite = xml.Element(
        "testsuite",
        name=printable(name),
        tests=str(len(comparison.judged) + len(comparison.missing)),
        failures=str(len(failed) + len(absent)),
        errors="0",
        skipped=str(len(comparison.missing) - len(absent)),
    )
    for judged in comparison.judged:
        case = xml.SubElement(
            suite,
            "testcase",
            classname=printable(judged.cell),
            name=printable(f"{judged.arm}: {judged.metric.title}"),
            time="0",
        )
        if judged in failed:
            xml.SubElement(case, "failure", message=printable(judged.sentence), type=judged.kind).text = printable(
                judged.sentence
            )
        xml.SubElement(case, "system-out").text = printable(judged.sentence)
    for cell, arm in comparison.missing:
        case = xml.SubElement(suite, "testcase", classname=printable(cell), name=printable(arm), time="0")
        kind = "failure" if absent else "skipped"
        xml.SubElement(case, kind, message="the second result has no figures of it")
    root = xml.Element("testsuites")
    root.append(suite)
    xml.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + xml.tostring(root, encoding="unicode") + "\n"


def printable(text: str) -> str:
    """Return text without the characters that XML 1.0 doesn't have."""
    return re.sub(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "?", text)


def annotations(comparison: Comparison, conditions: Sequence[Condition]) -> list[str]:
    """Return GitHub's workflow commands: an error for each failure, a warning for what else is worse."""
    failed = failures(comparison, conditions)
    lines = [command("error", f"{judged.cell}: {judged.arm}", judged.sentence) for judged in failed]
    lines += [
        command("warning", f"{judged.cell}: {judged.arm}", judged.sentence)
        for judged in comparison.judged
        if judged.kind == "worse" and judged not in failed
    ]
    lines += [
        command("error", f"{cell}: {arm}", "the second result has no figures of it")
        for cell, arm in missing(comparison, conditions)
    ]
    return lines


def command(kind: str, title: str, text: str) -> str:
    """Return a workflow command, whose text may hold anything."""

    def escaped(value: str, more: str = "") -> str:
        value = value.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
        for character in more:
            value = value.replace(character, f"%{ord(character):02X}")
        return value

    return f"::{kind} title={escaped(title, ':,')}::{escaped(text)}"


def comparison_csv(comparison: Comparison) -> str:
    """Return the verdicts as CSV (RFC 4180)."""
    rows = [
        [
            judged.cell, judged.arm, judged.metric.key, judged.metric.unit, judged.kind, f"{judged.ratio:.6g}", f"{judged.low:.6g}",
            f"{judged.high:.6g}", f"{judged.p_adjusted:.3g}", judged.rounds[0], judged.rounds[1], judged.control,
        ]
        for judged in comparison.judged
    ]  # fmt: skip
    headings = [
        "cell", "arm", "metric", "unit", "verdict", "ratio", "low", "high", "p_adjusted", "rounds_a", "rounds_b", "control",
    ]  # fmt: skip
    return write_csv(headings, rows)


def result_csv(result: Result) -> str:
    """Return every figure of every sample as CSV, in long form: a row for each. A trial of a sweep has its outcome as status."""
    rows = [
        [cell.name, sample.arm, sample.round, sample.position, sample.status, key, repr(value)]
        for cell in result.cells
        for sample in cell.samples
        for key, value in (sample.figures or {"": 0.0}).items()
    ]
    rows += [
        [cell.name, sample.arm, sample.round, sample.position, point.outcome, f"{key} at {point.offered_per_s:.1f}/s", repr(value)]
        for cell in result.cells
        for sample in cell.samples
        for point in sample.points
        for key, value in vars(point).items()
        if key in POINT_FIGURES
    ]  # fmt: skip
    return write_csv(["cell", "arm", "round", "position", "status", "figure", "value"], rows)


def write_csv(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table as CSV."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(headings)
    writer.writerows(rows)
    return text.getvalue()


def comparison_summary(first: str, second: str, comparison: Comparison) -> str:
    """Return what has changed, in Markdown, short enough to be copied into a message."""
    counts = {
        kind: sum(judged.kind == kind for judged in comparison.judged)
        for kind in ("worse", "better", "tie", "cannot tell")
    }
    lines = [
        f"**{cell_text(second)} against {cell_text(first)}**: "
        + ", ".join(f"{count} {kind}" for kind, count in counts.items())
    ]
    shown = [judged for judged in comparison.judged if judged.kind in ("worse", "better")]
    if shown:
        rows = [
            [each.cell, each.arm, each.metric.title, figures.compared(each.ratio, (each.low, each.high)), each.kind]
            for each in sorted(shown, key=lambda each: -each.worse_by)
        ]
        lines += ["", *table(["cell", "arm", "figure", "change", "verdict"], rows, "---")[:-1]]
    controls = sorted({judged.control for judged in comparison.judged})
    lines += [
        "",
        "Changes are of figures "
        + " or ".join(f"relative to {each} in the same round" if each else "as measured" for each in controls)
        + ".",
    ]
    lines += [f"- {note}" for note in comparison.notes]
    return "\n".join(lines) + "\n"


def result_summary(name: str, result: Result) -> str:
    """Return the verdicts of a result in Markdown, short enough to be copied into a message."""
    environment = result.environment
    machine = environment.cpu_model or environment.machine
    lines = [f"**{cell_text(name)}**: {environment.cpus_usable} CPUs, {machine}, {environment.kernel}", ""]
    rows = []
    for cell in result.cells:
        for title, _, sentence in verdicts_of(cell):
            rate = rate_of(cell)
            rows.append([", ".join(filter(None, (cell.name, title))), f"{sentence} ({rate})" if rate else sentence])
    return "\n".join([*lines, *table(["cell", "verdict"], rows, "---")])
