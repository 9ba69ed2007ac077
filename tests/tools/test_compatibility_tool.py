"""The page of what other projects' tests come to on ringloop, and the file that it is made from."""

import json
import platform

import pytest

from support import REPOSITORY, load_tool

compatibility = load_tool("compatibility")
RESULTS = compatibility.read(compatibility.RESULTS)


def test_the_page_is_what_the_results_come_to():
    assert compatibility.PAGE.read_text() == compatibility.render(RESULTS), "run make compatibility-page"


def test_each_difference_is_explained():
    assert "not explained" not in compatibility.render(RESULTS).lower()
    verdicts = {
        (entry["suite"], loop, test): verdict
        for entry in RESULTS
        for loop, found in entry["loops"].items()
        for test, verdict in found.get("verdicts", {}).items()
    }
    assert verdicts
    assert [key for key, verdict in verdicts.items() if verdict == "FAILED"] == []


def test_an_unexplained_difference_is_shown_as_one():
    found = {"passed": 1, "skipped": 0, "failed": ["tests/test_a.py::test_b[c]"]}
    loops = {loop: {"passed": 2, "skipped": 0, "failed": []} for loop in compatibility.LOOPS}
    loops["epoll"] = found | {"verdicts": {"tests/test_a.py::test_b[c]": "FAILED"}}
    entry = {"suite": "some", "version": "1", "python": "3.11.7", "date": "2020-02-02", "loops": loops}
    page = "\n".join(compatibility.render_suite({"title": "Some"}, [entry]))
    assert "- `test_b`: **not explained** (on epoll)." in page
    assert "| 1 | 3.11.7 | epoll | 1 | 1 | 0 | 1 | 2020-02-02 |" in page
    loops["epoll"]["verdicts"] = {"tests/test_a.py::test_b[c]": "explained"}
    explained = {"tests/test_a.py::test_b": "it asks for a name"}
    page = "\n".join(compatibility.render_suite({"title": "Some", "explained": explained}, [entry]))
    assert "- `test_b`: it asks for a name." in page


def test_a_run_replaces_what_the_same_suite_came_to_on_this_python(tmp_path):
    path = tmp_path / "results.json"
    for version in ("1", "2"):
        compatibility.record(path, {"suite": "some", "version": version, "loops": {}})
    compatibility.record(path, {"suite": "another", "version": "3", "loops": {}})
    contents = json.loads(path.read_text())
    other = contents["entries"][0] | {"suite": "some", "python": "3.999.1", "version": "0"}
    path.write_text(json.dumps(contents | {"entries": [*contents["entries"], other]}))
    compatibility.record(path, {"suite": "some", "version": "4", "loops": {}})
    entries = [(entry["suite"], entry["version"], entry["python"]) for entry in compatibility.read(path)]
    python = platform.python_version()
    assert entries == [("another", "3", python), ("some", "4", python), ("some", "0", "3.999.1")]
    assert list(tmp_path.iterdir()) == [path]


def test_results_of_another_format_are_refused(tmp_path):
    path = tmp_path / "results.json"
    path.write_text('{"format": 2, "entries": []}')
    with pytest.raises(SystemExit, match="has format 2, not 1"):
        compatibility.read(path)


def test_tests_of_applications_are_counted_by_loop(tmp_path):
    report = tmp_path / "report.xml"
    report.write_text(
        """<testsuites><testsuite>
        <testcase classname="tests.applications.test_a" name="test_b[epoll-x]"/>
        <testcase classname="tests.applications.test_a" name="test_b[y-epoll]"><failure/></testcase>
        <testcase classname="tests.applications.test_a" name="test_b[asyncio]"><skipped/></testcase>
        <testcase classname="tests.applications.test_a" name="test_c"/>
        </testsuite></testsuites>"""
    )
    assert compatibility.read_applications(report) == {
        "test_a::test_b": {"asyncio": [0, 0, 1], "epoll": [1, 1, 0], "io_uring": [0, 0, 0]}
    }


def test_lines_are_broken_outside_of_code_and_links():
    text = compatibility.filled("word " * 30 + "`some code` [a link](to.md)", "- ", "  ")
    assert all(len(line) <= compatibility.WIDTH for line in text.splitlines())
    assert text.startswith("- word") and "\n  word" in text and text.endswith("`some code` [a link](to.md)")


def test_the_page_names_each_suite_that_has_results():
    page = (REPOSITORY / "docs" / "frameworks.md").read_text()
    headings = [line.removeprefix("## ") for line in page.splitlines() if line.startswith("## ")]
    assert len(headings) == len(set(headings)) == len({entry["suite"] for entry in RESULTS})
