"""A server that runs already, at an address."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from click.testing import CliRunner

from conftest import FAKES
from ringlab import cli, results, workloads


def refused(*words: object) -> str:
    found = CliRunner().invoke(cli.main, list(map(str, words)))
    assert found.exit_code == 2, found.output
    return found.output


def test_what_cannot_be_asked_of_a_server_that_runs_already_is_refused(fake_load: Path) -> None:
    assert "say what the server at --address serves" in refused("run", "--address", "127.0.0.1:1")
    assert "is no address of a server" in refused("run", "echo", "--address", "8080")
    assert "is named twice" in refused("run", "echo", *["--address", "127.0.0.1:1"] * 2)
    assert "use one of them" in refused("run", "echo", "--address", "127.0.0.1:1", "--targets", "go")
    assert "or name targets instead of --address" in refused(
        "run", "echo", "--address", "127.0.0.1:1", "--system-calls"
    )


@contextlib.contextmanager
def running_server(cost: float = 1.0) -> Iterator[str]:
    words = [sys.executable, str(FAKES / "server.py"), "http", "--cost", str(cost)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().split()[-1]
        finally:
            server.kill()


def test_a_server_that_runs_already_is_measured_by_its_rate(fake_load: Path, tmp_path: Path) -> None:
    with running_server() as address:
        words = [
            "run",
            "http/50/closed",
            "--address",
            address,
            "--rounds",
            "3",
            "--seconds",
            "0.1",
            "--output",
            tmp_path / "out",
        ]
        found = CliRunner().invoke(cli.main, list(map(str, words)))
        assert found.exit_code == 0, found.output
        assert "not started by the lab, so its CPU, its memory and its settings are unknown" in found.output
        result = results.Result.read(tmp_path / "out" / "result.json")
    (cell,) = result.cells
    assert cell.primary.key == "operations_per_s"
    assert [sample.status for sample in cell.samples] == ["measured"] * 6
    assert {sample.arm for sample in cell.samples} == {address, f"{address} (again)"}
    assert f"--address {address}" in " ".join(result.run.command)
    path = tmp_path / "out" / "result.json"
    assert "there is nothing to resume" in refused("run", "--resume", path)
    result.run.complete = False
    result.write(path)
    assert "nobody knows whether they are still the same; start a new run" in refused("run", "--resume", path)


def test_cells_from_outside_have_another_figure() -> None:
    for name, key in (
        ("http/50/closed", "operations_per_s"),
        ("http/50/open-50", "latency_ns_p99"),
        ("echo/stream/100", "megabytes_per_s"),
    ):
        plan = workloads.BY_NAME[name].without_processes
        assert plan is not None
        assert [each.key for each in plan.metrics if each.primary] == [key]
    assert workloads.BY_NAME[f"http/idle/{workloads.IDLE_CONNECTIONS}"].without_processes is None
