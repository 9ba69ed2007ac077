"""The tables of figures in the documentation are what tools/tables.py makes of the committed results."""

import json
import lzma
import subprocess
import sys

import pytest

from support import load_tool

tables = load_tool("tables")


def comparison(arm, ratio, metric="operation_ns", baseline="asyncio"):
    return {"arm": arm, "metric": metric, "baseline": baseline, "ratio": ratio}


def median(arm, value, metric="operation_ns"):
    return {"arm": arm, "metric": metric, "median": value}


def cell(name, *comparisons, rounds=4, summaries=(), unit="ns"):
    metrics = [
        {"key": "operation_ns", "unit": unit, "primary": True},
        {"key": "cpu_ns", "unit": "ns", "primary": False},
    ]
    analysis = {"groups": [{"comparisons": list(comparisons)}], "summaries": list(summaries)}
    return {"name": name, "metrics": metrics, "orders": [[]] * rounds, "analysis": analysis}


def result(*cells, python="3.11.7"):
    """Return the parts of a result of ringlab that are read."""
    environment = {
        "cpus_usable": 2, "hypervisor": True, "python": python, "kernel": "6.18.44-vm x86_64", "revision": "0123456789ab-dirty",
        "load_average_begin": [0.04, 0, 0], "load_average_end": [1.96, 0, 0],
    }  # fmt: skip
    return {"environment": environment, "run": {"begun": "2026-11-24T10:00:00+00:00"}, "cells": list(cells)}


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """Let results be kept elsewhere."""
    monkeypatch.setattr(tables, "RESULTS", tmp_path / "results")
    return tmp_path


def test_pages_are_what_the_tool_makes():
    done = subprocess.run([sys.executable, tables.__file__, "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", tables.NAMES)
def test_every_table_has_a_place(name):
    begin, end = tables.marks(name)
    page = tables.page_of(name).read_text()
    assert page.count(begin) == page.count(end) == 1
    assert page.index(begin) < page.index(end)


def test_arms_are_those_of_the_lab():
    lab = tables.ROOT / "lab"
    names = {
        line.split('"')[1]
        for file in (lab / "targets").glob("*/target.toml")
        for line in file.read_text().splitlines()
        if line.startswith("name = ")
    }
    for table in tables.TABLES.values():
        assert {*table.own, *table.floor} <= table.arms.keys()
        assert table.arms.keys() <= names, table.arms.keys() - names


def test_the_first_row_measures_the_loop_and_not_memory():
    begin, _ = tables.marks("loops")
    _, _, rest = tables.PERFORMANCE.read_text().partition(begin)
    rows = [line for line in rest.splitlines() if line.startswith("| ")]
    assert rows[0].startswith("| | uvloop")
    assert rows[2].startswith("| chained callback")


def test_a_result_of_loops_becomes_ratios_and_says_where_it_comes_from():
    chain = cell(
        "loops/schedule/chain",
        comparison("uvloop", 0.5),
        comparison("ringloop", 0.1),
        comparison("ringloop", 0.3, baseline="uvloop"),
        comparison("ringloop", 0.2, "cpu_ns"),
    )
    other = cell("loops/setup/connect", comparison("uvloop", 0.4), comparison("ringloop", 0.8), rounds=6)
    unknown = cell("loops/setup/server", comparison("uvloop", 0.4))
    found = result(chain, other, unknown)
    assert tables.figures(tables.TABLES["loops"], found) == {
        "loops/schedule/chain": {"uvloop": 2.0, "ringloop": 10.0},
        "loops/setup/connect": {"uvloop": 2.5, "ringloop": 1.25},
    }
    text = tables.block("loops", found)
    assert "| | uvloop | ringloop, io_uring |" in text
    assert "| chained callback, one per iteration | 2.0 | **10.0** |" in text
    assert "| create_connection and close | 2.5 | 1.25 |" in text
    flat = " ".join(text.split())
    assert (
        "(`make figures TABLE=loops`, 4 to 6 rounds, CPython 3.11.7, Linux 6.18.44, 2 virtual cores, load average 0.0 at the start,"
        " 2.0 at the end, 2026-11-24, revision 0123456789ab-dirty)." in flat
    )
    assert all(len(line) <= 100 for line in text.splitlines() if not line.startswith("|"))


def test_a_result_of_servers_becomes_times_and_the_least_is_bold():
    hello = cell(
        "asgi/hello/50",
        summaries=(
            median("ringloop-serve-io_uring", 6.04),
            median("ringloop-serve-epoll", 7.5),
            median("granian", 7.25),
            median("granian", 1.0, "cpu_ns"),
            median("granian (again)", 9.0),
        ),
        unit="us",
    )
    text = tables.block("asgi", result(hello, python="3.13.0"))
    assert "| | ringloop, io_uring | ringloop, epoll | Granian |" in text
    assert "| 13 bytes | **6.0** | 7.5 | 7.2 |" in text


def test_times_of_files_are_shown_in_us_and_blocking_calls_are_no_peer():
    pread = cell("files/pread_4KB", summaries=(median("files-ringloop", 630), median("files-aiofiles", 150_000),
                                               median("files-blocking", 580)))  # fmt: skip
    text = tables.block("files", result(pread, python="3.13.0"))
    assert "| 4 KB at an offset | **0.63** | 150 | 0.58 |" in text


def test_a_result_is_kept_as_it_is(kept):
    found = result(cell("loops/schedule/chain", comparison("uvloop", 0.5)), python="3.14.1")
    path = kept / "result.json"
    path.write_text(json.dumps(found))
    tables.keep("loops-3.14", path)
    assert json.loads(lzma.decompress((kept / "results" / "loops-3.14.json.xz").read_bytes())) == found
    assert tables.read("loops-3.14") == found


def test_a_result_of_something_else_is_refused(kept):
    path = kept / "result.json"
    path.write_text(json.dumps(result()))
    with pytest.raises(SystemExit, match="no figures for this table"):
        tables.keep("loops", path)
    path.write_text(json.dumps(result(cell("loops/schedule/chain", comparison("uvloop", 0.5)), python="3.1.4")))
    with pytest.raises(SystemExit, match=r"loops is measured on CPython 3\.11, and this is 3\.1\.4"):
        tables.keep("loops", path)
    assert not (kept / "results").exists()


def summarised(*names):
    """Return a result with these cells of the summary."""
    return result(*(cell(name, comparison("uvloop", 0.5), comparison("ringloop", 0.25)) for name in names))


def test_the_summary_is_of_the_cells_that_it_names():
    text = tables.summary(summarised(*tables.SUMMARISED))
    flat = " ".join(text.split())
    assert "4.0 times as fast on ringloop as on stock asyncio through streams" in flat
    assert "(uvloop: 2.0, 2.0, 2.0)" in flat
    assert "measured on 2026-11-24 (CPython 3.11.7)" in flat
    assert all(len(line) <= 100 for line in text.splitlines())
    with pytest.raises(SystemExit, match="lacks a cell of the summary"):
        tables.summary(summarised(*tables.SUMMARISED[1:]))


def test_a_result_without_the_cells_of_the_summary_is_not_kept(kept):
    path = kept / "result.json"
    path.write_text(json.dumps(summarised(*tables.SUMMARISED[1:])))
    with pytest.raises(SystemExit, match="lacks a cell of the summary"):
        tables.keep("loops", kept)
    assert not (kept / "results").exists()


def threads_result(loops):
    """Return samples of all cells of these loops."""
    found = result()
    found["run"]["rounds"] = 3
    found["samples"] = [
        {
            "round": number,
            "cell": cell,
            "loop": loop,
            "threads": count,
            "rate": 100.0 * count,
            "cpu_us": number * (1.0 if loop == "ringloop" else 1.5),
        }
        for number in (1, 2, 3)
        for cell in tables.THREADS_ROWS
        for loop in loops
        for count in (1, 2, 2, 1)
    ]
    return found


def test_samples_of_threads_become_two_tables():
    text = tables.block("threads", threads_result(tables.THREADS_LOOPS))
    assert "| a task | 2.0 | 1.50 | 1.50 | 1.50 | 1.50 |" in text
    assert "| a task | 2.00 (1.00) | 2.00 (1.00) | 2.00 (1.00) | 2.00 (1.00) | 2.00 (1.00) |" in text
    assert "`make figures TABLE=threads`, 3 rounds" in " ".join(text.split())


def test_samples_of_some_threads_are_not_kept(kept):
    path = kept / "result.json"
    path.write_text(json.dumps(threads_result(["ringloop", "uvloop"])))
    with pytest.raises(SystemExit, match="no samples of ringloop-epoll in callbacks"):
        tables.keep("threads", path)
    assert not (kept / "results").exists()


class Finding:
    def __init__(self, status):
        self.status, self.text = status, "something waits for a CPU"


def test_measuring_waits_until_the_machine_is_quiet(monkeypatch, capsys):
    statuses, slept = ["warning", "warning", "ok"], []
    monkeypatch.setattr(tables, "examine", lambda: [Finding("ok"), Finding(statuses.pop(0))])
    monkeypatch.setattr(tables.time, "sleep", slept.append)
    tables.wait_until_quiet()
    assert len(slept) == 2 and not statuses
    assert "something waits for a CPU" in capsys.readouterr().err


def test_measuring_gives_up_on_a_machine_that_stays_busy(monkeypatch):
    monkeypatch.setattr(tables, "examine", lambda: [Finding("warning")])
    monkeypatch.setattr(tables.time, "sleep", lambda _: None)
    with pytest.raises(SystemExit, match="no quiet machine within 60 minutes.*--anyway"):
        tables.wait_until_quiet()


def test_another_python_is_refused_before_anything_is_measured():
    with pytest.raises(SystemExit, match=r"make figures TABLE=loops-3\.14 PYTHON=python3\.14 VENV=\.venv-3\.14"):
        tables.check_python("loops-3.14", "3.11.7")


def test_a_page_without_the_marks_is_refused():
    with pytest.raises(SystemExit, match="the page of loops lacks the lines"):
        tables.replaced("no table", "loops", "a table")
