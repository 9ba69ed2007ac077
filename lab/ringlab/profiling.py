"""Where each arm spends its time: perf's samples of each server's stacks, from a run apart from those that are measured.

perf samples the stacks of all of a server's processes during the window. `perf script` prints them, and equal stacks are counted
("folded"): flamegraph.pl, inferno and speedscope draw such files.
"""

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from ringlab import instruments, manifest, results, runner, sampling, workloads
from ringlab.process import SampleFailed, SampleVoid

FOLDER = "profiles"
WINDOW_S = 3.0


def folded(stacks: Mapping[tuple[str, ...], int]) -> str:
    """Return a line for each stack: functions separated by semicolons, and the count."""
    lines = (f"{';'.join(name.replace(';', ':') for name in stack)} {count}" for stack, count in stacks.items())
    return "\n".join(sorted(lines)) + "\n"


def profile(race: runner.Race, folder: Path) -> tuple[list[Path], list[str]]:
    """Sample each server in each cell that was measured; return the files, and what could not be sampled."""
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
            path = folder / f"{cell.name.replace('/', '-')}-{re.sub(r'[^A-Za-z0-9._-]+', '-', name)}.folded"
            results.write_text(path, folded(stacks))
            written.append(path)
    return written, problems


def sample(race: runner.Race, plan: workloads.CellPlan, arm: manifest.Arm, rate: float) -> Counter[tuple[str, ...]]:
    """Return the stacks of a server under a cell's load; raise SampleFailed."""
    loaded = race.look_into(plan, arm, rate, instruments.Instrument(instruments.STACKS), WINDOW_S)
    return Counter(loaded.stacks)
