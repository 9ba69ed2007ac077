"""The part that all Python tests of the repository share: the mark `exact`, and the record that tools/run_pytest.py judges.

`--record FILE` writes a line of JSON for each test: its name, how it ended, how long it took, and how much CPU time its process and the
children that it waited for used meanwhile. It works with and without pytest-xdist.
"""

import json
import resource
from pathlib import Path

import pytest

CPU_BEFORE = pytest.StashKey[float]()


def pytest_addoption(parser):
    parser.addoption("--record", metavar="FILE", type=Path, help="write a line of JSON for each test to FILE")


def pytest_configure(config):
    config.addinivalue_line(
        "markers", "exact: about a race, memory or descriptors: the first failure counts, and the test is not run again"
    )
    path = config.getoption("record")
    if path is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(path))


def used_cpu_s():
    """Return the CPU time, in seconds, of this process and of those of its children that it has waited for."""
    usages = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    item.stash[CPU_BEFORE] = used_cpu_s()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    # xdist passes reports on to the process that records, but no items.
    if call.when == "teardown":
        report.user_properties.append(("cpu_s", used_cpu_s() - item.stash[CPU_BEFORE]))
    if report.failed:
        report.user_properties.append(("exact", item.get_closest_marker("exact") is not None))
    return report


class Recorder:
    """Collects the reports of each test, and writes them when the run is over."""

    def __init__(self, path):
        self.path = path
        self.tests = {}

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report):
        new = {"name": report.nodeid, "outcome": "passed", "exact": False, "wall_s": 0.0, "cpu_s": 0.0, "output": ""}
        test = self.tests.setdefault(report.nodeid, new)
        properties = dict(report.user_properties)
        test["wall_s"] += report.duration
        test["cpu_s"] += properties.get("cpu_s", 0.0)
        if report.failed:
            # xdist's own report of a worker that ended: a crash is a matter of memory.
            crashed = report.when == "???"
            test.update(outcome="failed", exact=test["exact"] or crashed or properties.get("exact", False))
            test["output"] += "\n".join([report.longreprtext, *(text for _, text in report.sections)])
        elif report.skipped and test["outcome"] == "passed":
            test["outcome"] = "skipped"

    def pytest_sessionfinish(self):
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(test) + "\n" for test in self.tests.values())
