"""Auditing published reports: known flaws are found, each with its arithmetic, and consistent reports raise no alarm."""

import math
import random
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ringlab import Refused, audit, cli
from ringlab.audit import checks, document, quantities

DATA = Path(__file__).parent / "data" / "audit"
ORIGINALS = DATA / "originals"


def audit_of(*paths: Path) -> audit.Audit:
    return audit.audit(audit.read(paths))


def ringlab(*words: object) -> Result:
    return CliRunner().invoke(cli.main, ["audit", *map(str, words)])


# --- the five reports, as published ---

GOLDEN: dict[str, list[tuple[int, str, str]]] = {
    "tml": [
        (12, "short-sample", "50 x 13.7 us = 683 us in all"),
        (25, "ranking", "Go 21.3 us, Python 21.4 us; lower is better"),
        (26, "two-places", "line 15: 41.5 us; tml, line 26: 32.3 us; the ratio is 1.29; 4 others agree"),
        (172, "calculated", "TML: 13.7 us x 1,000 = 13.7 ms"),
    ],
    "kio": [
        (37, "efficiency", "139,489/s / 40% = 3,487 per second and CPU percent; Tokio (Rust): 110,599/s / 20% = 5,530"),
        (40, "division", "12 threads x 4 = 48"),
        (54, "division", "12 threads x 41 = 492"),
        (61, "littles-law", "179,944/s x 5.58 ms = 1,004 requests under way, not 2,000"),
        (61, "littles-law", "176,440/s x 5.66 ms = 998.7 requests under way, not 2,000"),
        (65, "saturation", "500 connections: 183,992/s, 40% CPU; 2,000: 179,944/s, 40% CPU"),
        (66, "connections", "12 threads x 166 = 1,992; 1,992 - 983 connect errors = 1,009 connections"),
        (66, "connections", "1,009 + 12 epoll sets + 3 standard descriptors = 1,024: the client met the limit of 1,024"),
    ],
    "echo-pair": [
        (25, "factors", "2 of 2 x 2 = 4 cells"),
        (27, "short-sample", "2,000 x 30.0 us = 60.0 ms in all; 1,000 x 89.0 us = 89.0 ms in all"),
        (30, "derived", "1.024 KB / 30.0 us = 34.13 MB/s; 32.34 MB/s are reported"),
        (66, "derived", "16.38 KB / 89.0 us = 184.1 MB/s; 172.61 MB/s are reported"),
    ],
    "pyloop": [
        (19, "identical", "PyLoop: 1.46 us and 1.38 us per operation; Asyncio: 14.3 us and 13.8 us per operation"),
        (82, "waiting", "24.7 ms - 9.00 ms = 15.7 ms"),
        (131, "short-sample", "13.8 ms in all; 14.8 ms in all"),
    ],
    "atacama": [
        (19, "two-places", "line 35: 158.2 Mbps; atacama, line 19: 422.3 Mbps"),
        (19, "two-places", "line 48: 145.4 Mbps; atacama, line 19: 403.7 Mbps"),
        (20, "both-directions", "(7,857 Mbps + 7,847 Mbps) / 100 = 157.0 Mbps"),
        (21, "hidden-total", "1 x 73,340 Mbps = 73,340 Mbps; 100 x 509.2 Mbps = 50,920 Mbps; 500 x 27.10 Mbps = 13,550 Mbps"),
        (23, "two-places", "line 176: 211.1 Mbps; atacama, line 23: 199.8 Mbps"),
        (24, "two-places", "line 148: 226.3 Mbps; atacama, line 24: 538.9 Mbps"),
        (24, "two-places", "line 160: 230.9 Mbps; atacama, line 24: 538.8 Mbps"),
        (94, "streams", "32 segments in a write x at least 536 bytes = 17,152 bytes = 1,559 messages or more"),
    ],
}  # fmt: skip
MISSING = {
    "tml": ["p99 or a maximum", "repeated runs or a spread between them", "the CPU that the server took"],
    "kio": ["repeated runs or a spread between them"],
    "echo-pair": ["p99 or a maximum", "repeated runs or a spread between them"],
    "pyloop": ["p99 or a maximum", "repeated runs or a spread between them", "the CPU that the server took"],
    "atacama": ["latency", "repeated runs or a spread between them", "the CPU that the server took"],
}


@pytest.mark.parametrize("name", GOLDEN)
def test_the_flaws_of_the_five_reports_are_found_and_no_others(name: str) -> None:
    done = audit.audit([(name, (ORIGINALS / f"{name}.txt").read_text())])
    assert [(each.line, each.rule) for each in done.findings] == [(line, rule) for line, rule, _ in GOLDEN[name]]
    for each, (_, _, words) in zip(done.findings, GOLDEN[name], strict=True):
        assert words in each.arithmetic
    assert done.missing[name] == MISSING[name]
    assert done.unread[name] == []


def test_the_kind_of_a_file_follows_from_its_content(tmp_path: Path) -> None:
    text = (ORIGINALS / "kio.txt").read_text()
    found = {name: audit.audit([(name, text)]).findings for name in ("kio.md", "kio", "kio.log", "kio.html")}
    assert len({tuple((each.line, each.rule) for each in findings) for findings in found.values()}) == 1


def test_broken_characters_make_no_difference() -> None:
    broken = (ORIGINALS / "tml.txt").read_text()
    whole = re.sub(r"[^\x00-\x7f]+", document.mend, broken)
    assert "Âµ" in broken and "Âµ" not in whole
    assert audit.audit([("r", whole)]).findings == audit.audit([("r", broken)]).findings


def test_two_reports_of_the_same_benchmark_are_compared() -> None:
    one = "| Language | Per Op (ns) |\n| --- | --- |\n| TML | 13,668 |\n| Go | 21,288 |\n"
    other = one.replace("13,668", "17,911").replace("21,288", "21,301")
    (found,) = audit.audit([("one.md", one), ("other.md", other)]).findings
    assert (found.report, found.rule, found.severity) == ("other.md", "repeats", "weakness")
    assert "13.7 us" in found.arithmetic and "17.9 us" in found.arithmetic


# --- planted errors and clean reports ---


@pytest.mark.parametrize("path", sorted((DATA / "planted").iterdir()), ids=lambda path: path.stem)
def test_a_planted_error_is_found_and_nothing_else(path: Path) -> None:
    found = audit_of(path).findings
    assert {each.rule for each in found} == {path.stem}
    lines = path.read_text().splitlines()
    for each in found:
        assert 1 <= each.line <= len(lines)
        assert lines[each.line - 1].strip(), "it names the line where it is"
        assert each.what and each.arithmetic and each.meaning


def test_each_rule_has_an_example() -> None:
    assert {path.stem for path in (DATA / "planted").iterdir()} == checks.RULES.keys() - {"repeats"}
    assert len(list((DATA / "published").iterdir())) >= 10


PUBLISHED = {
    "ab.txt": (1, 15), "box.txt": (8, 22), "clients.md": (16, 16), "hey.md": (1, 14), "interfaces.md": (7, 24), "k6.txt": (1, 12),
    "metrics.md": (10, 15), "monoio.txt": (23, 49), "oha.txt": (2, 36), "tcpkali.md": (2, 10), "vmbench.html": (6, 36),
    "vmbench-copied.txt": (6, 36),
    "wrk.md": (2, 30), "wrk2.md": (1, 16),
}  # fmt: skip
"""How many records and figures each has: what isn't read raises no alarm either."""


@pytest.mark.parametrize("path", sorted((DATA / "published").iterdir()), ids=lambda path: path.name)
def test_a_published_report_raises_no_alarm_and_is_read_whole(path: Path) -> None:
    done = audit_of(path)
    assert [(each.rule, each.what, each.arithmetic) for each in done.findings] == []
    assert (len(done.records), done.figures(str(path))) == PUBLISHED[path.name]
    assert done.unread[str(path)] == []


def figures_of(text: str) -> dict[str, str]:
    (record,) = audit.audit([("report", text)]).records
    return {kind: figure.text for kind, figure in (record.settings | record.figures).items()}


def test_what_the_first_readers_got_wrong() -> None:
    heading = "| Server | Total requests | RPS | 99p latency | Max |\n|---|---|---|---|---|\n"
    read = figures_of(heading + "| RSGI get (c64) | 143,073 | 4,247.89 | 18 ms | 40 ms |\n")
    assert read == {"connections": "c64", "count": "143,073", "rate": "4,247.89", "p99": "18 ms", "max": "40 ms"}
    sentences = "# Report\n\nRed is 40% slower, 36% faster than Blue and scales to 10,000 connections. 5-7x!\n"
    assert audit.audit([("report", sentences)]).records == []
    images = "1 Core | 4 Cores\n:---:|:---:\n![1core](/bench-1C.png) | ![4cores](/bench-4C.png)\n![80 ms](a.png) | ![90 ms](b.png)\n"
    assert audit.audit([("report", images)]).records == []


def rounded(value: float, digits: int) -> str:
    return f"{value:.{max(0, digits - 1 - math.floor(math.log10(value)))}f}"


def write_time(seconds: float, digits: int) -> str:
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= factor:
            return f"{rounded(seconds / factor, digits)} {unit}"
    return f"{rounded(seconds * 1e9, digits)} ns"


@st.composite
def consistent_reports(draw: st.DrawFn) -> str:
    """Return a report of a closed loop whose figures all follow from latencies that were drawn."""
    dice = random.Random(draw(st.integers(0, 1 << 30)))
    digits = draw(st.integers(3, 6))
    size = draw(st.sampled_from([0, 64, 1000, 1024, 16384]))
    subjects = draw(st.lists(st.sampled_from(["red", "blue", "green", "amber"]), min_size=1, max_size=4, unique=True))
    lines = ["# A closed loop", "", f"Each run took {draw(st.integers(1, 60))} s.", ""]
    heading = ["connections", "server", "req/s", "mean", "p50", "p90", "p99", "p99.9", "max"]
    heading += ["size", "MB/s"] if size else []
    lines += [f"| {' | '.join(heading)} |", f"|{' --- |' * len(heading)}"]
    for connections in draw(st.lists(st.integers(1, 3000), min_size=1, max_size=3, unique=True)):
        for subject in subjects:
            scale, spread = 10 ** dice.uniform(-5, -1), dice.uniform(0.05, 1.5)
            latencies = sorted(dice.lognormvariate(math.log(scale), spread) for _ in range(4000))
            mean = sum(latencies) / len(latencies)
            # The client takes a little time between an answer and the next request.
            rate = connections / (mean * dice.uniform(1.0, 1.1))
            at = [latencies[min(3999, int(share * 4000))] for share in (0.5, 0.9, 0.99, 0.999)]
            row = [str(connections), subject, f"{rate:,.{0 if rate > 1000 else 3}f}", write_time(mean, digits)]
            row += [write_time(each, digits) for each in (*at, latencies[-1])]
            row += [f"{size} B", rounded(rate * size / 1e6, digits)] if size else []
            lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines) + "\n"


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(consistent_reports())
def test_a_consistent_report_never_raises_an_alarm(text: str) -> None:
    done = audit.audit([("report.md", text)])
    assert done.records
    assert [(each.rule, each.what, each.arithmetic) for each in done.findings] == []


@st.composite
def consistent_outputs(draw: st.DrawFn) -> str:
    """Return what tcpkali prints of a run."""
    connections, seconds = draw(st.integers(1, 5000)), draw(st.floats(0.5, 100))
    sent = draw(st.integers(10**6, 10**12))
    received = round(sent * draw(st.floats(0.9, 1.0)))
    down, up = (each * 8 / seconds / 1e6 for each in (received, sent))
    each = (down + up) / connections
    return f"""# Streams
; tcpkali 127.0.0.1:1 -c {connections} -T {round(seconds)}s
Ramped up to {connections} connections.
Total data sent:     {sent / 2**20:.1f} MiB ({sent} bytes)
Total data received: {received / 2**20:.1f} MiB ({received} bytes)
Bandwidth per channel: {each:.3f}⇅ Mbps ({each * 125:.1f} kBps)
Aggregate bandwidth: {down:.3f}↓, {up:.3f}↑ Mbps
Test duration: {seconds:.4f} s.
"""


@settings(max_examples=150, deadline=None)
@given(consistent_outputs())
def test_consistent_output_of_a_tool_never_raises_an_alarm(text: str) -> None:
    done = audit.audit([("log.txt", text)])
    assert len(done.records) == 1
    assert [(each.rule, each.what, each.arithmetic) for each in done.findings] == []


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet=st.sampled_from("|-:# \n`0123456789.,%xKMGBps/uconnetirq()*;"), max_size=400))
def test_any_text_is_read_without_an_error(text: str) -> None:
    audit.audit([("report.md", text), ("log.txt", text)])


# --- units and rounding ---


@pytest.mark.parametrize(
    ("text", "low", "high", "dimension"),
    [
        ("5.58 ms", 5.575e-3, 5.585e-3, "time"),
        ("350us", 349.5e-6, 350.5e-6, "time"),
        ("139,489 req/s", 139_488.5, 139_489.5, "rate"),
        ("12.3k req/s", 12_250, 12_350, "rate"),
        ("40%", 39.5, 40.5, "percent"),
        ("800 Mbps", 99_937_500, 100_062_500, "bandwidth"),
        ("1.0 MiB/s", 0.95 * 2**20, 1.05 * 2**20, "bandwidth"),
        # MB is used for both.
        ("1.0 MB/s", 0.95e6, 1.05 * 2**20, "bandwidth"),
        ("9.78x", 9.775, 9.785, "factor"),
        ("~100 bytes", 89.5, 110.5, "size"),
        ("−10.4%", -10.45, -10.35, "percent"),
    ],
)
def test_a_figure_is_an_interval(text: str, low: float, high: float, dimension: str) -> None:
    found = quantities.read(text)
    assert found is not None
    assert (found.low, found.high) == pytest.approx((low, high))
    assert found.dimension == dimension


@pytest.mark.parametrize("text", ["none", "v1.2.3", "2026-02-25", "<5 ms", "a 5 ms"])
def test_what_is_no_figure(text: str) -> None:
    assert quantities.read(text) is None


def test_a_table_with_a_mere_rule_is_read() -> None:
    text = "| name | 100conn/10s |\n-------------------\n| red | 158 Mbps |\n| blue | 512 Mbps |\n"
    (table,) = document.tables(document.parse(text, "report.md"), bool)
    assert isinstance(table, document.Table)
    assert table.headings == ["name", "100conn/10s"]
    assert [(line.number, cells) for line, cells in table.rows] == [(3, ["red", "158 Mbps"]), (4, ["blue", "512 Mbps"])]


# --- the command ---


def test_the_command_lists_findings_and_exits_with_1() -> None:
    found = ringlab(ORIGINALS / "kio.txt")
    assert found.exit_code == 1
    assert "kio.txt:61: contradiction (littles-law)" in found.output
    assert "179,944/s x 5.58 ms = 1,004 requests under way, not 2,000" in found.output
    assert "kio.txt: 32 figures understood: 4 contradictions, 4 other findings" in found.output
    assert "not in it: repeated runs" in found.output


def test_the_command_exits_with_0_if_all_was_read() -> None:
    found = ringlab(DATA / "published" / "wrk.md")
    assert found.exit_code == 0
    assert "wrk.md: 30 figures understood: 0 contradictions, 0 other findings" in found.output


def test_what_was_not_read_is_not_clean(tmp_path: Path) -> None:
    path = tmp_path / "report.md"
    path.write_text("# Nothing\n\nOnly sentences about 5 ms here.\n")
    found = ringlab(path)
    assert found.exit_code == 3
    assert "report.md: 0 figures understood: it is silent about this report" in found.output
    path.write_text("| server | req/s | p99 |\n|---|---|---|\n| red | 1,000 | 64 ms |\n| blue | 1,000 | <4 ms |\n")
    found = ringlab(path)
    assert found.exit_code == 3
    assert "not understood: some figures of the tables at line 1" in found.output


def test_other_encodings_are_read(tmp_path: Path) -> None:
    text = "| server | mean |\n|---|---|\n| red | 5 µs |\n"
    for encoding in ("utf-8", "utf-8-sig", "utf-16", "cp1252"):
        path = tmp_path / f"{encoding}.txt"
        path.write_bytes(text.encode(encoding))
        assert audit_of(path).records[0].figures["mean"].value == pytest.approx(5e-6)


def test_what_is_no_text_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "report.md"
    path.write_bytes(b"\x7fELF\x00\x01")
    with pytest.raises(Refused, match="is no text"):
        audit.read([path])
    assert ringlab(path).exit_code == 2
    assert ringlab(tmp_path / "missing.md").exit_code == 2
