"""The result of a run on a busy machine, cut down to what tests read: data/recorded.json.

    recorded.py RESULT

writes that file from the whole result of a run, and from data/recorded.json itself the same again: which cells, which figures and
which histograms stay is decided here, by name, and the analysis is made anew from what has stayed. The run of November 2026 had
twelve cells on real targets, in 5 rounds of 0.5 s, beside other work: some of its samples are void, and one cell ended early.
"""

import json
import sys
from pathlib import Path
from typing import Any

from ringlab import analysis, results

FILE = Path(__file__).parent / "data" / "recorded.json"

CELLS = {
    "bind/listen/1": "an operation without a load",
    "http/50/closed": "servers in two groups, probes, and void samples",
    "http/50/open-50": "an open loop",
    "rtt/1KB": "histograms of latencies",
    "loop/call_soon": "a workload that is no more",
    "echo/framed/1KB/100": "a closed loop",
    "echo/stream/100": "fewer rounds than were planned",
}
"""The cells that stay, with what only they have."""
ARMS_LEFT_OUT = ("asyncio-streams", "uvloop-protocol")
FIGURES_BESIDES = ("operations", "window_s")
"""Figures that samples keep besides those that their cell shows."""
WITH_HISTOGRAMS = ("c-epoll", "go")
COLUMNS = 140


def cut(whole: results.Result) -> results.Result:
    """Return the part of a result that tests read; nothing of it is left out when it is cut again."""
    result = results.Result.from_json(whole.to_json())
    result.cells = [cell for cell in result.cells if cell.name in CELLS]
    left_out = {cell.name for cell in whole.cells} - set(CELLS)
    result.run.command = [
        ",".join(name for name in word.split(",") if name not in ARMS_LEFT_OUT)
        for word in result.run.command
        if word not in left_out
    ]
    result.arms = [arm for arm in result.arms if arm.name not in ARMS_LEFT_OUT]
    for cell in result.cells:
        cut_cell(cell)
        named = [arm for arm in result.arms if arm.name in cell.arms]
        cell.analysis = analysis.analyse(cell, named, cell.analysis.groups[0].baseline)
    return result


def cut_cell(cell: results.Cell) -> None:
    """Leave out arms, figures and histograms."""
    cell.arms = [arm for arm in cell.arms if arm not in ARMS_LEFT_OUT]
    cell.orders = [[arm for arm in order if arm not in ARMS_LEFT_OUT] for order in cell.orders]
    cell.probes = [probe for probe in cell.probes if probe.arm not in ARMS_LEFT_OUT]
    cell.system_calls = [counted for counted in cell.system_calls if counted.arm not in ARMS_LEFT_OUT]
    cell.samples = [sample for sample in cell.samples if sample.arm not in ARMS_LEFT_OUT]
    shown = {metric.key for metric in cell.metrics} | set(FIGURES_BESIDES)
    for sample in cell.samples:
        sample.figures = {key: value for key, value in sample.figures.items() if key in shown}
        if sample.arm not in WITH_HISTOGRAMS:
            sample.histograms = {}


def write(content: Any, indent: int = 0, before: int = 0) -> str:
    """Return JSON in full lines: whatever fits into what is left of one, after `before` columns, isn't broken."""
    line = json.dumps(content)
    if indent + before + len(line) <= COLUMNS or not isinstance(content, dict | list):
        return line
    space = " " * (indent + 1)
    lines = [""]
    for name, each in content.items() if isinstance(content, dict) else enumerate(content):
        label = f"{json.dumps(name)}: " if isinstance(content, dict) else ""
        part = label + write(each, indent + 1, len(label))
        if lines[-1] and ("\n" in part + lines[-1] or len(space + lines[-1] + part) + 3 > COLUMNS):
            lines.append("")
        lines[-1] += f", {part}" if lines[-1] else part
    opening, closing = "{}" if isinstance(content, dict) else "[]"
    return f"{opening}\n{space}" + f",\n{space}".join(lines) + f"\n{' ' * indent}{closing}"


if __name__ == "__main__":
    FILE.write_text(write(cut(results.Result.read(Path(sys.argv[1]))).to_json()) + "\n")
