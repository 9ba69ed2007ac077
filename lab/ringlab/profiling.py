"""Where each arm spends its time: a flame graph of each server, from perf's samples of a run apart from those that are measured.

perf samples the stacks of all of a server's processes during the window. `perf script` prints them, equal stacks are counted
("folded"), and the counts are drawn as SVG that needs no script: what lies on top was on the CPU, and a box is as wide as its
share of the samples (Gregg, The Flame Graph, Communications of the ACM 59, 2016).
"""

import hashlib
import re
import shutil
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from markupsafe import escape

from ringlab import figures, manifest, results, runner, workloads
from ringlab.process import SampleFailed, SampleVoid

FOLDER = "profiles"
FREQUENCY = 499
"""Per second and CPU; no multiple of anything, so that it doesn't keep step with timers."""
WINDOW_S = 3.0
START_TIMEOUT_S = 30.0
SCRIPT_TIMEOUT_S = 300.0

WIDTH, ROW, PADDING = 1200.0, 17, 10
HEAD = 34
CHARACTER = 6.6
SHARE_LEAST = 0.0005
"""Narrower boxes can't be seen."""
DEPTH_MOST = 120


def why_not() -> str:
    """Return why perf can't sample here, with the remedy; nothing if it can."""
    if shutil.which("perf") is None:
        return "perf isn't installed: apt-get install linux-perf (Debian), or linux-tools-generic (Ubuntu)"
    with tempfile.TemporaryDirectory() as folder:
        words = ["perf", "record", "-F", "99", "-g", "-o", f"{folder}/perf.data", "--", "true"]
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
        )
    if done.returncode == 0:
        return ""
    reason = next(
        (line.strip() for line in done.stderr.splitlines() if line.strip() and "perf record" not in line),
        "it gave no reason",
    )
    return (
        f"perf may not sample here: {results.shorten(reason)}; sysctl kernel.perf_event_paranoid=1 allows it to users, unless a"
        " container forbids it"
    )


@dataclass
class Sampler:
    """perf, which samples processes between the two ends of a window."""

    pids: Sequence[int]
    data: Path
    recorder: "subprocess.Popen[bytes] | None" = None
    problem: str = ""

    def __enter__(self) -> Self:
        """Wait for the window."""
        return self

    def __exit__(self, *_: object) -> None:
        """End perf in any case."""
        self.stop()

    def see(self, event: dict[str, Any]) -> None:
        """Take an event of the load generator."""
        if event["event"] == "window_start":
            self.start()
        elif event["event"] == "window_end":
            self.stop()

    def start(self) -> None:
        """Begin to sample."""
        words = [
            "perf",
            "record",
            "-q",
            "-F",
            str(FREQUENCY),
            "-g",
            "-p",
            ",".join(map(str, self.pids)),
            "-o",
            str(self.data),
        ]
        self.recorder = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )

    def stop(self) -> None:
        """End it as Ctrl-C does, so that it writes what it has."""
        recorder, self.recorder = self.recorder, None
        if recorder is None:
            return
        recorder.send_signal(signal.SIGINT)
        try:
            _, errors = recorder.communicate(timeout=START_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            recorder.kill()
            _, errors = recorder.communicate()
        if not self.data.exists() or self.data.stat().st_size == 0:
            self.problem = manifest.last_line(errors.decode(errors="replace")) or "perf recorded nothing"


def script(data: Path) -> str:
    """Return the stacks that perf recorded, as text; raises SampleFailed."""
    words = ["perf", "script", "-i", str(data), "-F", "comm,pid,tid,event,ip,sym,dso"]
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, timeout=SCRIPT_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise SampleFailed(f"perf script didn't end within {SCRIPT_TIMEOUT_S:.0f} s") from None
    if done.returncode != 0:
        raise SampleFailed(f"perf script: {manifest.last_line(done.stderr.decode(errors='replace'))}")
    return done.stdout.decode(errors="replace")


FRAME = re.compile(r"^\s+[0-9a-f]+\s+(?P<symbol>.*?)(?:\s+\((?P<file>[^()]*(?:\([^)]*\))?[^()]*)\))?$")


def fold(text: str) -> Counter[tuple[str, ...]]:
    """Count equal stacks in what `perf script` prints, the outermost function first, and before it the program's name."""
    found: Counter[tuple[str, ...]] = Counter()
    program = ""
    frames: list[str] = []

    def finish() -> None:
        if program:
            found[(program, *reversed(frames))] += 1

    for line in text.splitlines():
        if not line.strip():
            finish()
            program, frames = "", []
        elif not line[:1].isspace():
            finish()
            # "NAME PID/TID EVENT:", of which the name may hold spaces.
            match = re.match(r"^(.+?)\s+\d+(?:/\d+)?\s+\S+:", line)
            program, frames = (match[1] if match else line.split()[0]), []
        else:
            match = FRAME.match(line)
            if match:
                frames.append(name_of(match["symbol"], match["file"] or ""))
    finish()
    return found


def name_of(symbol: str, file: str) -> str:
    """Return how a frame is called: its function without the offset, or the file that has it."""
    symbol = re.sub(r"\+0x[0-9a-f]+$", "", symbol.strip())
    # Rust appends a hash.
    symbol = re.sub(r"::h[0-9a-f]{16}$", "", symbol)
    if symbol and symbol != "[unknown]":
        return f"{symbol} [kernel]" if file.startswith(("[kernel", "[guest.kernel")) else symbol
    return f"[{Path(file).name or 'unknown'}]" if not file.startswith("[") else file


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
        for name in stack[:DEPTH_MOST]:
            node = node.children.setdefault(name, Node())
            node.count += count
    return root


def boxes(node: Node, total: int, left: float = 0.0, depth: int = 0) -> Iterator[tuple[str, float, float, int, int]]:
    """Yield name, left, width, depth and count of every box that can be seen."""
    for name in sorted(node.children):
        child = node.children[name]
        share = child.count / total
        if share >= SHARE_LEAST:
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
    problem = why_not()
    if problem:
        return [], [problem]
    written: list[Path] = []
    problems = []
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
            path.write_text(draw(f"{name}, {cell.name}", stacks), encoding="utf-8")
            path.with_suffix(".folded").write_text(folded(stacks), encoding="utf-8")
            written.append(path)
    return written, problems


def sample(race: runner.Race, plan: workloads.CellPlan, arm: manifest.Arm, rate: float) -> Counter[tuple[str, ...]]:
    """Return the stacks of a server under a cell's load; raises SampleFailed."""
    with (
        tempfile.TemporaryDirectory(prefix="ringlab-perf-") as place,
        race.hosted(plan, arm) as server,
    ):
        scale = race.scale_of(arm)
        words = plan.load_options(scale, rate, WINDOW_S) + race.common_words(server, plan)
        with Sampler(server.tree(), Path(place) / "perf.data") as sampler:
            race.load(words, plan.sample_s(scale) + WINDOW_S, sampler.see)
        if sampler.problem:
            raise SampleFailed(sampler.problem)
        stacks = fold(script(sampler.data))
    if not stacks:
        raise SampleFailed("perf took no sample of it")
    return stacks
