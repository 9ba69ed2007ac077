"""Where each arm spends its time: a flame graph of each server, from perf's samples of a run apart from those that are measured.

perf samples the stacks of all of a server's processes during the window. `perf script` prints them, equal stacks are counted
("folded"), and the counts are drawn as SVG that needs no script: what lies on top was on the CPU, and a box is as wide as its
share of the samples (Gregg, The Flame Graph, Communications of the ACM 59, 2016).
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from markupsafe import escape

from ringlab import figures, instruments, manifest, results, runner, sampling, workloads
from ringlab.process import SampleFailed, SampleVoid

FOLDER = "profiles"
WINDOW_S = 3.0

WIDTH, ROW, PADDING = 1200.0, 17, 10
HEAD = 34
CHARACTER = 6.6
SHARE_MIN = 0.0005
"""Narrower boxes can't be seen."""
DEPTH_MAX = 120


@dataclass
class Node:
    """A function in the tree of stacks."""

    count: int = 0
    children: dict[str, "Node"] = field(default_factory=dict)


def tree_of(stacks: Mapping[tuple[str, ...], int]) -> Node:
    """Merge stacks that begin alike."""
    root = Node()
    for stack, count in stacks.items():
        root.count += count
        node = root
        for name in stack[:DEPTH_MAX]:
            node = node.children.setdefault(name, Node())
            node.count += count
    return root


def boxes(node: Node, total: int, left: float = 0.0, depth: int = 0) -> Iterator[tuple[str, float, float, int, int]]:
    """Yield name, left, width, depth and count of every box that can be seen."""
    for name in sorted(node.children):
        child = node.children[name]
        share = child.count / total
        if share >= SHARE_MIN:
            yield name, left, share, depth, child.count
            yield from boxes(child, total, left, depth + 1)
        left += share


def colour(name: str) -> str:
    """Return a colour that a name always has: blue in the kernel, else from yellow to red."""
    value = hashlib.blake2b(name.encode(), digest_size=2).digest()
    if name.endswith("[kernel]"):
        return f"hsl({200 + value[0] % 30}, 55%, {68 + value[1] % 12}%)"
    return f"hsl({10 + value[0] % 45}, 85%, {66 + value[1] % 12}%)"


def draw(title: str, stacks: Mapping[tuple[str, ...], int]) -> str:
    """Return a flame graph as SVG."""
    root = tree_of(stacks)
    found = list(boxes(root, root.count)) if root.count else []
    height = HEAD + (max((depth for *_, depth, _ in found), default=0) + 1) * ROW + PADDING
    inner = WIDTH - 2 * PADDING
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:.0f} {height}" font-family="DejaVu Sans, sans-serif" font-size="11">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH:.0f}" height="{height}" fill="#fbfbfa"/>',
        f'<text x="{PADDING}" y="21" font-size="14">{escape(title)}: {root.count:,} samples</text>',
    ]
    for name, left, share, depth, count in found:
        x, width = PADDING + left * inner, share * inner
        y = height - PADDING - (depth + 1) * ROW
        text = f"{name}: {figures.percent(count / root.count)}, {figures.counted(count, 'sample')}"
        parts.append(
            f'<g><title>{escape(text)}</title><rect x="{x:.1f}" y="{y}" width="{max(0.3, width - 0.4):.1f}" height="{ROW - 1}"'
            f' fill="{colour(name)}" rx="1"/>'
        )
        room = int((width - 6) / CHARACTER)
        if room >= 3:
            shown = name if len(name) <= room else name[: room - 2] + ".."
            parts.append(f'<text x="{x + 3:.1f}" y="{y + 12}">{escape(shown)}</text>')
        parts.append("</g>")
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def folded(stacks: Mapping[tuple[str, ...], int]) -> str:
    """Return stacks in the format that other tools read: functions separated by semicolons, and the count."""
    lines = (f"{';'.join(name.replace(';', ':') for name in stack)} {count}" for stack, count in stacks.items())
    return "\n".join(sorted(lines)) + "\n"


def profile(race: runner.Race, folder: Path) -> tuple[list[Path], list[str]]:
    """Draw a flame graph of each server in each cell that was measured; return the files, and what could not be drawn."""
    if why_not := sampling.why_not():
        return [], [why_not]
    written: list[Path] = []
    problems: list[str] = []
    folder.mkdir(parents=True, exist_ok=True)
    plans = {plan.name: plan for plan in race.plans}
    for cell in race.result.cells:
        plan = plans.get(cell.name)
        if plan is None or plan.kind not in manifest.SERVERS or plan.idle:
            continue
        rate = float(cell.parameters.get("offered_rate_per_s", 0.0))
        for name, arm in race.arms.items():
            if not cell.measured(name):
                continue
            race.progress.step(f"{cell.name}: where {name} spends its time")
            try:
                stacks = sample(race, plan, arm, rate)
            except (SampleFailed, SampleVoid, OSError) as failure:
                problems.append(f"{cell.name}, {name}: {failure}")
                continue
            path = folder / f"{cell.name.replace('/', '-')}-{re.sub(r'[^A-Za-z0-9._-]+', '-', name)}.svg"
            results.write_text(path, draw(f"{name}, {cell.name}", stacks))
            results.write_text(path.with_suffix(".folded"), folded(stacks))
            written.append(path)
    return written, problems


def sample(race: runner.Race, plan: workloads.CellPlan, arm: manifest.Arm, rate: float) -> Counter[tuple[str, ...]]:
    """Return the stacks of a server under a cell's load; raise SampleFailed."""
    loaded = race.look_into(plan, arm, rate, instruments.Instrument(instruments.STACKS), WINDOW_S)
    return Counter(loaded.stacks)
