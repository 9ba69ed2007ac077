"""Repeating published benchmarks, with fakes for servers: both tables, what was mended, and what did not run."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from conftest import MakeTargets
from ringlab import cli, replication, workloads

pytestmark = [pytest.mark.usefixtures("fake_load"), pytest.mark.timeout(300)]


def ringlab(*words: object) -> Result:
    return CliRunner().invoke(cli.main, [str(word) for word in words])


@pytest.mark.parametrize("report", replication.REPORTS.values(), ids=replication.REPORTS)
def test_a_report_is_made_of_cells_and_arms_that_exist(report: replication.Report) -> None:
    known = replication.manifest.discover()
    arms = {arm.name: arm for arm in known}
    assert set(report.arms) <= set(arms)
    for row in report.rows:
        plan = workloads.BY_NAME[row.cell]
        assert row.arm in ("", *report.arms)
        if row.arm:
            assert plan.served_by(arms[row.arm]), f"{row.arm} serves {row.cell}"
        assert row.figure in replication.TITLES
    assert report.mended and report.incomparable


def test_both_tables_are_shown(make_targets: MakeTargets, tmp_path: Path) -> None:
    folder = make_targets(**{"kio": 1.0, "tokio": 1.2, "c-epoll": 0.9})
    output = tmp_path / "out"
    found = ringlab(
        "replicate", "kio", "--targets-folder", folder, "--rounds", 3, "--seconds", 0.05, "--output", output
    )
    assert found.exit_code == 0, found.output
    text = (output / replication.REPORT_FILE).read_text()
    assert "| http/50/closed | kio | rate | 139,489/s | " in text
    assert "| http/2000/closed | tokio | p99 | 12.9 ms | " in text or "| 13.0 ms |" in text
    assert "## Mended" in text and "wrk divides among 12 threads" in text
    assert "## Can't be compared" in text
    assert "mended" in found.output


def test_systems_that_are_missing_are_named(make_targets: MakeTargets, tmp_path: Path) -> None:
    folder = make_targets(tokio=1.0)
    found = ringlab(
        "replicate", "kio", "--targets-folder", folder, "--rounds", 3, "--seconds", 0.05, "--output", tmp_path / "out"
    )
    assert found.exit_code == 0, found.output
    text = (tmp_path / "out" / replication.REPORT_FILE).read_text()
    assert "| http/50/closed | kio | rate | 139,489/s | did not run |" in text
    assert "- kio: there is no such target" in text


def test_an_unknown_report_is_refused() -> None:
    found = ringlab("replicate", "nothing")
    assert found.exit_code == 2
    assert "'nothing' is not one of" in found.output


def test_figures_have_their_units() -> None:
    assert replication.write_figure("latency_ns_p99", 1.06e6) == "1.06 ms"
    assert replication.write_figure("operations_per_s", 139_489) == "139,489/s"
    assert replication.write_figure("megabytes_per_s", 5035.0) == "5,040 MB/s"
    assert replication.write_figure("latency_ns_p99", None) == ""


def test_bandwidth_of_both_directions_on_each_connection_becomes_that_of_one_direction_in_all() -> None:
    rows = {(row.subject, row.cell): row.published for row in replication.REPORTS["atacama"].rows}
    # The report's log has 25.6 Gbps in each direction for ranch: 512 Mbps x 100 / 2.
    assert rows["ranch", "echo/stream/100"] == pytest.approx(25_600 / 8)
