"""Auditing published reports: known flaws are found, each with its arithmetic, and consistent reports raise no alarm."""

import json
import math
import random
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ringlab import Refused, audit, cli
from ringlab.audit import document, quantities

DATA = Path(__file__).parent / "data" / "audit"
REPORTS = DATA / "reports"


def findings_of(*paths: Path) -> list[audit.Finding]:
    return audit.audit(audit.read(paths))[0]


def ringlab(*words: object) -> Result:
    return CliRunner().invoke(cli.main, ["audit", *map(str, words)])


# --- the five reports ---

GOLDEN = {
    "tml": [
        ("short-sample", "50 x 13.7 us = 683 us in all"),
        ("two-places", "32.3 us"),
        ("not-measured", "C++"),
        ("extrapolation", "10,000 connections are named, and no figure is of connections"),
    ],
    "kio": [
        ("connections", "12 threads x 166 = 1,992; 1,992 - 983 connect errors = 1,009 connections"),
        ("connections", "1,009 + 12 epoll sets + 3 standard descriptors = 1,024"),
        ("littles-law", "179,944/s x 5.58 ms = 1,004 requests under way, not 2,000"),
        ("connections", "12 x 4 = 48"),
        ("connections", "12 x 41 = 492"),
        ("efficiency", "kio: 139,489/s / 40% = 3,487 per second and CPU percent; tokio: 110,599/s / 20% = 5,530"),
        ("saturation", "the busiest server uses 40% of its CPU"),
    ],
    "echo-pair": [
        ("factors", "2 of 2 x 2 = 4 cells"),
        ("short-sample", "2,000 x 30.0 us = 60.0 ms in all"),
        ("derived", "/ 30.0 us = 33.33 MB/s; 32.34 are reported"),
        ("derived", "/ 89.0 us = 179.8 MB/s; 172.61 are reported"),
    ],
    "pyloop": [
        ("identical", "PyLoop: 1.46 us and 1.38 us per operation; asyncio: 14.3 us and 13.8 us"),
        ("waiting", "24.7 ms - 9.00 ms = 15.7 ms"),
        ("short-sample", "10,000 x 1.38 us = 13.8 ms in all"),
        ("claim", "5-7x"),
        ("not-measured", "uvloop"),
    ],
    "atacama": [
        ("two-places", "539.0 Mbps; reports/atacama.md, line 57: 226.0 Mbps"),
        ("two-places", "422.0 Mbps; reports/atacama.md, line 19: 158.0 Mbps"),
        ("hidden-total", "1 x 73,340 Mbps = 73,340 Mbps; 100 x 509.0 Mbps = 50,900 Mbps; 500 x 27.00 Mbps = 13,500 Mbps"),
        ("both-directions", "(25,600 Mbps + 25,600 Mbps) / 100 = 512.0 Mbps"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", GOLDEN)
def test_the_flaws_of_the_five_reports_are_found(name: str) -> None:
    text = (REPORTS / f"{name}.md").read_text()
    found, _ = audit.audit([(f"reports/{name}.md", text)])
    for rule, words in GOLDEN[name]:
        texts = [f"{each.what} {each.arithmetic} {each.meaning}" for each in found if each.rule == rule]
        assert any(words in text for text in texts), f"{rule}: {words} is not among {texts}"
    assert {each.rule for each in found} == {rule for rule, _ in GOLDEN[name]}, "and nothing else is"


def test_two_reports_of_the_same_benchmark_are_compared() -> None:
    found = findings_of(REPORTS / "tml.md", REPORTS / "tml-sister.md")
    repeats = [each for each in found if each.rule == "repeats"]
    assert any("13.7 us" in each.arithmetic and "28.8 us" in each.arithmetic for each in repeats)
    assert all(each.report.endswith("tml-sister.md") for each in repeats)


def test_a_cell_may_hold_several_figures() -> None:
    text = """
| connections | kio req/s, avg, p50, p99 | tokio |
| --- | --- | --- |
| 2000 | 179,944; 5.58 ms; 5.30 ms; 9.74 ms; 983 connect errors | 176,440; 5.66 ms; 5.10 ms; 12.95 ms |
"""
    found, records = audit.audit([("report.md", text)])
    assert [record.subject for record in records] == ["kio", "tokio"]
    assert records[0].get("p99").value == pytest.approx(9.74e-3)
    assert records[0].get("connect_error").value == 983
    assert {each.rule for each in found} == {"connections", "littles-law"}


# --- planted errors and clean reports ---


@pytest.mark.parametrize("path", sorted((DATA / "planted").glob("*.md")), ids=lambda path: path.stem)
def test_a_planted_error_is_found_and_nothing_else(path: Path) -> None:
    found = findings_of(path)
    assert {each.rule for each in found} == {path.stem}
    lines = path.read_text().splitlines()
    for each in found:
        assert 1 <= each.line <= len(lines)
        assert lines[each.line - 1].strip(), "it names the line where it is"
        assert each.what and each.arithmetic and each.meaning


def test_there_are_enough_examples() -> None:
    assert len(list((DATA / "planted").glob("*.md"))) >= 10
    assert len(list((DATA / "clean").glob("*.md"))) >= 10


@pytest.mark.parametrize("path", sorted((DATA / "clean").glob("*.md")), ids=lambda path: path.stem)
def test_a_clean_report_raises_no_alarm(path: Path) -> None:
    found, records = audit.audit(audit.read([path]))
    assert records, "it is read"
    assert found == []


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
    found, records = audit.audit([("report.md", text)])
    assert records
    assert [(each.rule, each.what, each.arithmetic) for each in found] == []


@st.composite
def consistent_outputs(draw: st.DrawFn) -> str:
    """Return what tcpkali prints of a run."""
    connections, seconds = draw(st.integers(1, 5000)), draw(st.floats(0.5, 100))
    sent = draw(st.integers(10**6, 10**12))
    received = round(sent * draw(st.floats(0.9, 1.0)))
    down, up = (each * 8 / seconds / 1e6 for each in (received, sent))
    each = (down + up) / connections
    return f"""; tcpkali 127.0.0.1:1 -c {connections} -T {round(seconds)}s
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
    found, records = audit.audit([("log.txt", text)])
    assert len(records) == 1
    assert [(each.rule, each.what, each.arithmetic) for each in found] == []


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
    ((_, found),) = quantities.find(text)
    assert (found.low, found.high) == pytest.approx((low, high))
    assert found.dimension == dimension


def test_a_table_with_a_mere_rule_is_read() -> None:
    text = "| name | 100conn/10s |\n-------------------\n| red | 158 Mbps |\n| blue | 512 Mbps |\n"
    (table,) = document.read(text, "report.md").tables
    assert table.headings == ["name", "100conn/10s"]
    assert table.rows == [["red", "158 Mbps"], ["blue", "512 Mbps"]]
    assert table.lines == [3, 4]


# --- the command ---


def test_the_command_lists_findings_and_exits_with_1() -> None:
    found = ringlab(REPORTS / "kio.md")
    assert found.exit_code == 1
    assert "kio.md:12: contradiction (littles-law)" in found.output
    assert "179,944/s x 5.58 ms = 1,004 requests under way, not 2,000" in found.output


def test_the_command_exits_with_0_without_findings() -> None:
    found = ringlab(DATA / "clean" / "wrk.md")
    assert found.exit_code == 0
    assert "nothing contradicts itself" in found.output


def test_the_command_prints_json() -> None:
    found = ringlab(REPORTS / "tml.md", "--json")
    assert found.exit_code == 1
    content = json.loads(found.output)
    assert content["findings"][0].keys() == {"rule", "severity", "report", "line", "what", "arithmetic", "meaning"}
    assert content["read"] == 10


def test_a_report_without_figures_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "report.md"
    path.write_text("# Nothing\n\nNo figures here.\n")
    found = ringlab(path)
    assert found.exit_code == 2
    assert "no figures that it understands" in found.output


def test_what_is_no_text_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "report.md"
    path.write_bytes(b"\xff\xfe\x00x")
    with pytest.raises(Refused, match="is not UTF-8 text"):
        audit.read([path])
    assert ringlab(tmp_path / "missing.md").exit_code == 2
