"""The whole matrix, small: every arm that this machine has the tools for, in every workload that it serves, measured by the
real command with the real load generator, and reported.

What is measured here says nothing about the arms: one short round. That each of them can be measured does.
`make test-long` runs it, or `pytest lab/tests/test_matrix.py`, which takes some three minutes once the targets are built.
"""

import re
import subprocess
import sys
import time
from dataclasses import dataclass, field

import pytest

from ringlab import manifest, preflight, results, workloads

CELLS = (
    "bind/listen/1",
    "http/50/closed",
    "http/50/open-75",
    "rtt/64B",
    "loops/schedule/call_soon",
    "echo/framed/1KB/100",
    "echo/stream/1",
    "stream/discard/1",
    "asgi/hello/50",
    "wsgi/hello/50",
    "loops/echo/protocol/1KB/50",
    "files/pread_4KB",
    "churn/http/50",
)
SMALL = ("--quick", "--rounds", "1", "--no-system-calls", "--if-busy", "wait")
SECONDS, SECONDS_AGAIN = 0.1, 2.0
TRIES_AGAIN = 4
AGAIN_LIMIT_S = 400
"""After this no other try begins: what hinders samples for this time isn't the machine."""
# What a machine that has other things to do makes of a short window, or of a limit in time. Whatever else voids a sample, or lets
# it fail, is the arm's fault, or ours.
BUSY = (
    "Little's law: ",
    " were measured instead of ",
    " tell nothing: at least ",
    # rloop 0.5.0 reads on as long as more has come, before it answers: on a stream until the client rests.
    "nothing was answered in the window",
    # The generator's patience of 5 s: a connection that is reset or closed has a name of its own, which isn't forgiven.
    " connections were opened",
    " connections were alive at the end",
    " x connect (",
    " x timeout (",
    # All trials of a bind cell were disturbed.
    " ms were measured, and at least ",
    # The limits of process.py and generator.py: for a server to listen and to answer at first, and for a program to end.
    "it didn't print a line with ",
    "it didn't accept a connection within ",
    "the server didn't answer within ",
    "it didn't end within ",
    "the load generator didn't end within ",
)
TARGETS_MIN = 10
RUN_TIMEOUT_S = 1500
# What is first asked for builds all targets and measures them; then the tries, of which the last may take a while.
pytestmark = pytest.mark.timeout(2 * RUN_TIMEOUT_S + AGAIN_LIMIT_S + 600)

ALL = {arm.name: arm for arm in manifest.discover()}


@dataclass
class Matrix:
    """The outcome of the matrix."""

    arms: dict[str, results.Arm]
    """All of them, with the reason where one was skipped."""
    cells: dict[str, results.Cell]
    samples: dict[tuple[str, str], results.Sample] = field(default_factory=dict)
    """By arm and cell: the last one, where it was tried again."""
    reports: dict[str, str] = field(default_factory=dict)

    def take(self, result: results.Result) -> None:
        """Take in the samples of a run."""
        for cell in result.cells:
            for sample in cell.samples:
                self.samples[sample.arm, cell.name] = sample

    def problem(self, arm: str, cell: str) -> str:
        """Say what hindered an arm from being measured in a cell that it serves, if anything."""
        sample = self.samples.get((arm, cell))
        if sample is None and "No module named " in self.cells[cell].unable.get(arm, ""):
            return ""  # PyPI has nothing for this Python.
        if sample is None:
            return self.cells[cell].left_out or "it wasn't tried"
        return "" if sample.status == "measured" else f"{sample.status}: {'; '.join(sample.reasons)}"

    def spoilt(self, arm: str) -> list[str]:
        """Return the cells in which the machine, and not the arm, hindered it from being measured."""
        return [
            cell
            for cell in self.cells
            if (sample := self.samples.get((arm, cell))) is not None
            and sample.status in ("void", "failed")
            and all(any(each in reason for each in BUSY) for reason in sample.reasons)
        ]


def ringlab(*words: object, may_fail: bool = False) -> str:
    """Run the command and return what it printed; it must succeed, unless it may find that nothing could be measured."""
    command = [sys.executable, "-m", "ringlab", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False)
    shown = f"`{' '.join(command[2:])}` ended with code {done.returncode}:\n{done.stdout}\n{done.stderr}"
    assert done.returncode in ((0, 1) if may_fail else (0,)), shown
    return done.stdout


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Matrix:
    """Measure everything once, and once more what the machine has spoilt."""
    with pytest.MonkeyPatch.context() as patch:
        for name in preflight.DEBUG_VARIABLES:
            patch.delenv(name, raising=False)
        output = tmp_path_factory.mktemp("matrix")
        ringlab("targets", "--build")
        # Named, or a quick run would take the main variants only.
        ringlab("run", *CELLS, *SMALL, "--seconds", SECONDS, "--targets", "*", "--output", output)
        result = results.Result.read(output / "result.json")  # It validates against the published schema.
        found = Matrix({arm.name: arm for arm in result.arms}, {cell.name: cell for cell in result.cells})
        found.take(result)
        found.reports = {
            "terminal": ringlab("report", output),
            "Markdown": (output / "report.md").read_text(),
            "HTML": (output / "report.html").read_text(),
        }
        begun = time.monotonic()
        for number in range(TRIES_AGAIN):
            for arm in ALL:
                if (cells := found.spoilt(arm)) and time.monotonic() - begun < AGAIN_LIMIT_S:
                    again = output / f"{arm}-{number}"
                    words = ("--seconds", SECONDS_AGAIN, "--targets", arm, "--no-again", "--output", again)
                    ringlab("run", *cells, *SMALL, *words, may_fail=True)
                    found.take(results.Result.read(again / "result.json"))
        return found


@pytest.mark.parametrize("name", ALL)
def test_arm_is_measured_in_every_cell_that_it_serves(name: str, matrix: Matrix) -> None:
    record = matrix.arms[name]
    if record.skipped:
        # One whose build failed isn't lacking anything that could be installed.
        assert record.install, f"{name}: {record.skipped}"
        pytest.skip(f"{record.skipped}; install it with: {record.install}")
    served = [cell for cell in CELLS if workloads.BY_NAME[cell].served_by(ALL[name])]
    assert served, f"{name} serves no workload"
    problems = [f"{name}: {cell}: {problem}" for cell in served if (problem := matrix.problem(name, cell))]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("workload", manifest.WORKLOADS)
def test_each_workload_runs_on_at_least_ten_arms(workload: str, matrix: Matrix) -> None:
    serving = [name for name, arm in ALL.items() if workload in arm.workloads]
    least = min(TARGETS_MIN, len(serving))
    here = [name for name in serving if not matrix.arms[name].skipped]
    if len(here) < least:
        pytest.skip(f"this machine has the tools for {len(here)} of {len(serving)}: {', '.join(here)}")
    measured = {arm for (arm, cell), sample in matrix.samples.items()
                if matrix.cells[cell].workload == workload and sample.status == "measured"}  # fmt: skip
    assert len(measured & set(here)) >= least, f"only {sorted(measured)}"


def test_the_noise_is_measured_in_every_cell(matrix: Matrix) -> None:
    for cell in matrix.cells.values():
        (copy,) = (arm for arm in cell.arms if matrix.arms[arm].repeats)
        assert (copy, cell.name) in matrix.samples, f"{copy} wasn't tried in {cell.name}"


def names(text: str, name: str) -> bool:
    """Return whether a text has a name as a whole, and not only a longer one that it is a part of."""
    return re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", text) is not None


SECTION = {"terminal": "\n{}  ", "Markdown": "\n## {}\n", "HTML": "<p class=\"soft\"><code>{}</code>"}  # fmt: skip
"""The beginning of the part about a cell, by report."""


@pytest.mark.parametrize("report", SECTION)
def test_report_names_every_cell_and_arm(report: str, matrix: Matrix) -> None:
    text = matrix.reports[report]
    # The baseline's second copy is a control, and no arm that is ranked.
    copies = {arm.name for arm in matrix.arms.values() if arm.repeats}
    begins = {cell: text.find(SECTION[report].format(cell)) for cell in CELLS}
    absent = [cell for cell, begin in begins.items() if begin < 0]
    assert not absent, f"no part about {absent} in the report for {report}"
    for cell, begin in begins.items():
        end = min((each for each in begins.values() if each > begin), default=len(text))
        lacking = [arm for arm in matrix.cells[cell].arms if arm not in copies and not names(text[begin:end], arm)]
        assert not lacking, f"{report}: the part about {cell} doesn't name {lacking}"
    for arm in matrix.arms.values():
        assert arm.repeats or names(text, arm.name), f"{report} doesn't name {arm.name}"
        if arm.skipped:
            assert f"{arm.name}: " in text or report == "HTML", f"{report} doesn't say why {arm.name} was skipped"
