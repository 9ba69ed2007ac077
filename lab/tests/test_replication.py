"""Repeating published benchmarks, with fakes for servers: their claims and what is measured, what was mended, and what did not run."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from conftest import MakeTargets
from ringlab import cli, manifest, neighbours, replication, results, statistics, workloads

pytestmark = [pytest.mark.usefixtures("fake_load"), pytest.mark.timeout(300)]


def ringlab(*words: object) -> Result:
    return CliRunner().invoke(cli.main, [str(word) for word in words])


def replicate(name: str, folder: Path, output: Path, *words: object) -> Result:
    fixed = ("--targets-folder", folder, "--rounds", 3, "--seconds", 0.05, "--output", output)
    return ringlab("replicate", name, *fixed, *words)


@pytest.mark.parametrize("report", replication.REPORTS.values(), ids=replication.REPORTS)
def test_a_report_is_made_of_cells_and_arms_that_exist(report: replication.Report) -> None:
    arms = {arm.name: arm for arm in manifest.discover()}
    assert set(report.arms) - {"pyloop"} <= set(arms)
    for claim in report.claims:
        plan = workloads.BY_NAME[claim.cell]
        for arm in (claim.arm, claim.other):
            assert arm == "pyloop" or plan.served_by(arms[arm]), f"{arm} serves {claim.cell}"
        assert claim.figure in replication.TITLES
        assert claim.arm == report.subject
    assert report.mended and report.incomparable


def test_claims_stand_beside_what_is_measured(make_targets: MakeTargets, tmp_path: Path) -> None:
    folder, output = make_targets(**{"kio": 1.2, "tokio": 1.0, "c-epoll": 0.9}), tmp_path / "out"
    found = replicate("kio", folder, output)
    assert found.exit_code == 0, found.output
    text = (output / replication.REPORT_FILE).read_text()
    # 139,489/s against 110,599/s, at 40% CPU against 20%: 2 / 1.261 = 1.586.
    assert "| http/50/closed | rate | kio / tokio | 1.26 | " in text
    row = (
        r"\| http/50/closed \| CPU per request \| kio / tokio \| 1\.59 \| 1\.\d+ \(1\.\d+ to 1\.\d+\) \| doesn't fit \|"
    )
    assert re.search(row, text), text
    result = results.Result.read(output / "result.json")
    series = [result.cells[0].series(arm, "server_cpu_us") for arm in ("kio", "tokio")]
    measured = statistics.estimate(statistics.log_ratios(*series))
    assert measured is not None
    claim = replication.Claim("http/50/closed", "server_cpu_us", "kio", "tokio", measured.ratio)
    assert replication.compare(claim, result)[-1] == "fits"
    assert "kio / tokio" in found.output and "CPU per request" in found.output
    # Absolute figures of two machines aren't put side by side.
    for absolute in ("139,489", "110,599", "299 us", "/s |"):
        assert absolute not in text
    assert "## Mended" in text and "wrk divides among 12 threads" in text
    assert "## Can't be compared" in text and "## Did not run" not in text
    assert "Mended" in found.output


@pytest.mark.parametrize("name", ["kio", "atacama", "tml", "pyloop"])
def test_nothing_is_built_or_measured_without_the_subject(name: str, make_targets: MakeTargets, tmp_path: Path) -> None:
    folder, marker = make_targets(**{"tokio": 1.0, "c-epoll": 1.0}), tmp_path / "built"
    with (folder / "tokio" / manifest.FILE_NAME).open("a") as file:
        file.write(f'[build]\ncommand = "touch {marker}"\nartefact = "{marker}"\n')
    found = replicate(name, folder, tmp_path / "out")
    assert found.exit_code == 2
    assert f"nothing is measured, because {name} can't run here: " in found.output
    assert not (tmp_path / "out").exists()
    assert not marker.exists()


def test_nothing_is_measured_without_a_rival(make_targets: MakeTargets, tmp_path: Path) -> None:
    found = replicate("kio", make_targets(**{"kio": 1.0, "c-epoll": 1.0}), tmp_path / "out")
    assert found.exit_code == 2
    assert "because kio can be compared with nothing here: tokio: there is no such target" in found.output


def test_systems_that_are_missing_are_named(make_targets: MakeTargets, tmp_path: Path) -> None:
    folder = make_targets(atacama=1.0, go=1.0)
    found = replicate("atacama", folder, tmp_path / "out")
    assert found.exit_code == 0, found.output
    text = (tmp_path / "out" / replication.REPORT_FILE).read_text()
    assert "| echo/stream/1 | bandwidth | atacama / ranch | 0.549 | did not run |  |" in text
    assert "- ranch: there is no such target" in text


def test_everything_is_built_before_the_lab_is_announced(
    make_targets: MakeTargets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others may measure during the builds."""
    folder, marker = make_targets(kio=1.0, tokio=1.0), tmp_path / "locks-at-build"
    locks = neighbours.folder()
    for name in ("kio", "tokio"):
        with (folder / name / manifest.FILE_NAME).open("a") as file:
            made = tmp_path / f"made-{name}"
            file.write(f'[build]\ncommand = "ls {locks} >>{marker}; touch {made}"\nartefact = "{made}"\n')
    found = replicate("kio", folder, tmp_path / "out")
    assert found.exit_code == 0, found.output
    assert ".lock" not in marker.read_text()


def test_an_unknown_report_is_refused() -> None:
    found = ringlab("replicate", "nothing")
    assert found.exit_code == 2
    assert "'nothing' is not one of" in found.output


def test_ratios_are_those_of_the_reports() -> None:
    def ratio(name: str, cell: str, figure: str, other: str) -> float:
        claims = replication.REPORTS[name].claims
        (found,) = [each for each in claims if (each.cell, each.figure, each.other) == (cell, figure, other)]
        return found.ratio

    assert ratio("kio", "http/2000/closed", "latency_ns_p99", "tokio") == pytest.approx(9.74 / 12.95)
    assert ratio("atacama", "echo/stream/100", "megabytes_per_s", "tokio") == pytest.approx(422 / 539)
    assert ratio("tml", "bind/listen/1", "operation_ns", "node") == pytest.approx(1 / 40.9, rel=2e-3)
    assert ratio("pyloop", "loops/schedule/chain", "operation_ns", "asyncio") == pytest.approx(1 / 9.95, rel=2e-3)
    assert ratio("pyloop", "loops/schedule/chains", "operation_ns", "uvloop") == 0
    assert ratio("echo-pair", "rtt/1KB", "latency_ns_mean", "threaded-python") == pytest.approx(89 / 30)
