"""A result is the same after it was written and read, and the published schema is the classes' own."""

import json
from pathlib import Path

import jsonschema
import pytest

import recorded
from ringlab import results


def make_result() -> results.Result:
    sample = results.Sample(
        arm="a",
        round=1,
        position=2,
        begun_s=0.5,
        duration_s=1.5,
        status="void",
        reasons=["stalled"],
        figures={"server_cpu_us": 4.5},
        errors={"reset": results.ErrorCount(count=2, first="connection reset")},
    )
    cell = results.Cell(
        name="echo/1KB/50",
        workload="echo",
        title="echo",
        operation="message",
        metrics=[results.Metric(key="server_cpu_us", title="CPU", unit="us", better="lower", primary=True)],
        arms=["a"],
        orders=[["a"]],
        samples=[sample],
        ceiling=results.Ceiling(operations_per_s=100000, client_cpu_fraction=0.9),
    )
    scale = results.Scale(name="quick", rounds=1, window_s=1, warm_up_s=0.1, ramp_s=0.1)
    run = results.Run(command=["ringlab", "run"], begun="2026-11-21T15:00:00+00:00", seed=1, scale=scale)
    arm = results.Arm(name="a", target="a", language="C", title="an arm")
    return results.Result(run=run, arms=[arm], cells=[cell])


def test_the_published_schema_is_made_from_the_classes() -> None:
    path = Path(results.__file__).with_name("schema") / f"result-v{results.SCHEMA_VERSION}.json"
    assert json.loads(path.read_text()) == results.make_schema(), (
        "write it anew: .venv/bin/python -m ringlab.results > lab/ringlab/schema/result-v1.json"
    )
    jsonschema.Draft202012Validator.check_schema(results.make_schema())


def test_a_result_survives_its_file(tmp_path: Path) -> None:
    made = make_result()
    made.write(tmp_path / "folder" / "result.json")
    assert results.Result.read(tmp_path / "folder" / "result.json") == made
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["result.json"]


def test_a_void_sample_does_not_count() -> None:
    cell = make_result().cells[0]
    assert cell.series("a", "server_cpu_us") == [None]
    cell.samples[0].status = "measured"
    assert cell.series("a", "server_cpu_us") == [4.5]
    assert cell.primary.key == "server_cpu_us"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cells": None}, r"at \$\.cells: None is not of type 'array'"),
        ({"schema_version": 99}, "schema version 99, but this ringlab reads only up to 1; use a newer ringlab"),
        ({"run": {}}, r"at \$\.run: 'command' is a required property"),
    ],
)
def test_what_is_no_result_is_refused(change: dict[str, object], message: str, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps(make_result().to_json() | change))
    with pytest.raises(results.ResultError, match=message) as caught:
        results.Result.read(path)
    assert str(path) in str(caught.value)


def test_parts_that_do_not_fit_together_are_refused() -> None:
    """They follow the schema, and would end a report in a traceback."""
    made = make_result()
    made.cells[0].samples[0].round = 2
    with pytest.raises(
        results.ResultError, match=r"at \$\.cells\[0\]\.samples\[0\]: there is no round 2 in \$\.cells\[0\]"
    ):
        results.Result.from_json(made.to_json())
    made = make_result()
    made.cells[0].metrics[0].primary = False
    with pytest.raises(results.ResultError, match=r"at \$\.cells\[0\]\.metrics: one metric must be the primary one"):
        results.Result.from_json(made.to_json())
    made = make_result()
    made.cells[0].arms.append("b")
    with pytest.raises(results.ResultError, match=r"at \$\.cells\[0\]\.arms: there is no arm b in \$\.arms"):
        results.Result.from_json(made.to_json())


def test_a_whole_number_may_have_a_fraction_of_zero() -> None:
    """To a schema, it is an integer."""
    content = make_result().to_json()
    content["cells"][0]["samples"][0]["round"] = 1.0
    found = results.Result.from_json(content)
    assert type(found.cells[0].samples[0].round) is int
    assert found == make_result()


def test_numbers_that_are_none_are_refused(tmp_path: Path) -> None:
    made = make_result()
    made.cells[0].samples[0].figures["server_cpu_us"] = float("nan")
    made.write(tmp_path / "result.json")
    with pytest.raises(results.ResultError, match="is not valid JSON: it has NaN"):
        results.Result.read(tmp_path / "result.json")


def test_what_is_no_text_is_written_out(tmp_path: Path) -> None:
    made, path = make_result(), tmp_path / "result.json"
    made.cells[0].title = "caf\udce9"
    made.cells[0].parameters = {"\ud800": ("\udfff", 1)}
    made.write(path)
    assert "\\ud" not in path.read_text().replace("\\\\", "")
    for text in (path.read_text(), path.read_text().replace("\\\\", "\\")):
        path.write_text(text)
        (cell,) = results.Result.read(path).cells
        assert cell.title == "caf\\udce9"
        assert cell.parameters == {"\\ud800": ["\\udfff", 1]}


def test_a_file_that_is_missing_or_no_json_is_refused(tmp_path: Path) -> None:
    with pytest.raises(results.ResultError, match="cannot read .*: No such file"):
        results.Result.read(tmp_path / "missing.json")
    (tmp_path / "text.json").write_text("text")
    with pytest.raises(results.ResultError, match="is not valid JSON"):
        results.Result.read(tmp_path / "text.json")


def test_a_newer_minor_field_is_ignored() -> None:
    content = make_result().to_json() | {"of_a_later_version": 1}
    assert results.Result.from_json(content) == make_result()


def test_a_recorded_result_can_be_read() -> None:
    """Recorded by this schema's version, from real targets on a busy machine: what reports are tried on.

    The workload loop is no more, and its results are still read.
    """
    found = results.Result.read(recorded.FILE)
    assert {cell.workload for cell in found.cells} >= {"bind", "loop", "echo"}
    assert all(cell.analysis.groups for cell in found.cells)
    assert any(arm.skipped and arm.install for arm in found.arms)
    assert any(len(cell.analysis.groups) == 2 for cell in found.cells)
    samples = [sample for cell in found.cells for sample in cell.samples]
    assert {sample.status for sample in samples} == {"measured", "void"}
    assert any(sample.histograms for sample in samples)
    assert any(len(cell.orders) * len(cell.orders[0]) > len(cell.samples) for cell in found.cells)


def test_the_recorded_result_is_what_is_left_of_a_run() -> None:
    """Nothing of it is written by hand, and nothing is left in it that recorded.py would leave out."""
    text = recorded.FILE.read_text()
    assert text == recorded.write(json.loads(text)) + "\n"
    found = results.Result.read(recorded.FILE)
    again = recorded.cut(found)
    for cell, other in zip(found.cells, again.cells, strict=True):
        # Another version of numpy may round otherwise.
        assert [group.verdict.kind for group in cell.analysis.groups] == [
            group.verdict.kind for group in other.analysis.groups
        ]
        other.analysis = cell.analysis
    assert again == found
