"""The table of event loops and its summary are what tools/loops_table.py makes of the committed file."""

import json
import subprocess
import sys

import pytest

from support import load_tool

loops_table = load_tool("loops_table")


def comparison(arm, ratio, metric="operation_ns"):
    return {"arm": arm, "metric": metric, "baseline": "asyncio", "ratio": ratio}


def cell(name, *comparisons, rounds=4):
    metrics = [{"key": "operation_ns", "primary": True}, {"key": "cpu_ns", "primary": False}]
    return {
        "name": name,
        "metrics": metrics,
        "orders": [[]] * rounds,
        "analysis": {"groups": [{"comparisons": comparisons}]},
    }


def result(*cells):
    """Return the parts of a result of ringlab that are read."""
    environment = {
        "cpus_usable": 2, "hypervisor": True, "python": "3.11.7", "kernel": "6.18.44-vm x86_64", "revision": "0123456789abcdef",
        "load_average_begin": [0.04, 0, 0], "load_average_end": [1.96, 0, 0],
    }  # fmt: skip
    return {"environment": environment, "run": {"begun": "2026-11-24T10:00:00+00:00"}, "cells": list(cells)}


def test_pages_are_what_the_tool_makes():
    done = subprocess.run(
        [sys.executable, loops_table.__file__, "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_first_row_measures_the_loop_and_not_memory():
    _, _, rest = loops_table.PERFORMANCE.read_text().partition(loops_table.BEGIN)
    rows = [line for line in rest.splitlines() if line.startswith("| ")]
    assert rows[0].startswith("| | uvloop")
    assert rows[2].startswith("| chained callback")


def test_a_result_becomes_the_table_and_says_where_it_comes_from():
    chain = cell(
        "loops/schedule/chain",
        comparison("uvloop", 0.5),
        comparison("ringloop", 0.1),
        comparison("ringloop", 0.2, "cpu_ns"),
    )
    other = cell("loops/setup/connect", comparison("uvloop", 0.4), comparison("ringloop", 0.8), rounds=6)
    unknown = cell("loops/setup/server", comparison("uvloop", 0.4))
    source = loops_table.extract(result(chain, other, unknown))
    assert source["times_better_than_asyncio"] == {
        "loops/schedule/chain": {"uvloop": 2.0, "ringloop": 10.0},
        "loops/setup/connect": {"uvloop": 2.5, "ringloop": 1.25},
    }
    text = loops_table.block(source)
    assert "| chained callback, one per iteration | 2.0 |  | **10.0** |  |  |" in text
    assert "| create_connection and close | 2.5 |  | 1.25 |  |  |" in text
    flat = " ".join(text.split())
    assert "4 to 6 rounds of `make bench-loops`" in flat
    assert (
        "CPython 3.11.7, Linux 6.18.44, 2 virtual cores, load average 0.0 at the start, 2.0 at the end, 2026-11-24,"
        " at revision 0123456789ab" in flat
    )
    assert all(len(line) <= 100 for line in text.splitlines() if not line.startswith("|"))


def test_a_result_without_loops_is_refused():
    with pytest.raises(SystemExit, match="ringlab run --preset loops"):
        loops_table.extract(result())


def test_the_summary_is_of_the_cells_that_it_names():
    source = json.loads(loops_table.SOURCE.read_text())
    times = source["times_better_than_asyncio"]
    text = loops_table.summary(source)
    for name in loops_table.SUMMARISED:
        assert f"{loops_table.show(times[name]['ringloop'])} times" in " ".join(text.split())
    assert all(len(line) <= 100 for line in text.splitlines())
    del times[loops_table.SUMMARISED[0]]
    with pytest.raises(SystemExit, match="lacks a cell of the summary"):
        loops_table.summary(source)


def test_a_page_without_the_marks_is_refused():
    with pytest.raises(SystemExit, match="a page lacks the lines"):
        loops_table.replaced("no table", "a table")
