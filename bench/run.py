"""Race event loops against each other on this machine, in paired rounds and fresh processes.

A table with ratios is printed while the race runs, and JSON with every sample is written to --output. Ctrl-C ends it
early and keeps what was measured. docs/performance.md says how to read the figures.
"""

import argparse
import datetime
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

# Run as a file, but made of modules of one package.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

from bench import arms, cells, goals, measure, report, results  # noqa: E402

SUBSET = measure.Scale(rounds=0, micro_s=0.1, window_s=0.25, warm_up_s=0.1, waiting_s=0.6)
"""With as many rounds as fit in SUBSET_S."""
FULL = measure.Scale(rounds=5, micro_s=0.3, window_s=1.0, warm_up_s=0.3, waiting_s=5.0)
QUICK = measure.Scale(rounds=1, micro_s=0.001, window_s=0.05, warm_up_s=0.01, waiting_s=0.05, messages=5)
SUBSET_S = 400
ROUNDS_LEAST, ROUNDS_MOST = 3, 9
FAILURES_MOST = 3
"""An arm that has failed so often in a cell isn't tried again in it: fewer failures may be the machine's, which has stood still."""
RESULTS = Path(__file__).resolve().parent / "results"

Plan = list[tuple[cells.Cell, list[arms.Arm]]]
"""Each cell, and who takes part in it."""


@dataclass(frozen=True)
class Contest:
    """Who races in what, and which goals rest on it."""

    name: str
    """In the name of the results' file."""
    contestants: Sequence[arms.Arm]
    control: str
    floors: tuple[str, ...]
    choose: Callable[..., list[cells.Cell]]
    """The cells that the options ask for, as `cells.choose`."""
    probe: Callable[[arms.Arm], arms.Presence]
    judge: Callable[[dict[str, results.CellResult]], list[goals.Verdict]]
    subset: measure.Scale
    full: measure.Scale


PYTHON = Contest(
    name=f"py{sys.version_info[0]}.{sys.version_info[1]}",
    contestants=arms.ARMS,
    control=arms.CONTROL,
    floors=(arms.FLOOR,),
    choose=cells.choose,
    probe=arms.probe,
    judge=goals.judge,
    subset=SUBSET,
    full=FULL,
)


def parse(arguments: list[str], contest: Contest) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    extent = parser.add_mutually_exclusive_group()
    extent.add_argument("--full", action="store_true", help="every cell, with longer samples and more rounds")
    extent.add_argument("--quick", action="store_true", help="a check that everything runs; measures nothing")
    parser.add_argument(
        "--arms", metavar="A,B", help=f"only these, by name; {contest.control} is the control of the ratios"
    )
    parser.add_argument(
        "--cells", metavar="GLOB", action="append", default=[], help="only these, as 'echo/*/1KB/50'; repeatable"
    )
    parser.add_argument(
        "--rounds",
        type=int,
        metavar="N",
        help=f"({ROUNDS_LEAST} to {ROUNDS_MOST}, as fit in {SUBSET_S} s; --full {contest.full.rounds})",
    )
    parser.add_argument("--seconds", type=float, metavar="S", help="the measured time of a sample, in every cell")
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help=f"the JSON file (bench/results/DATE-{contest.name}.json)"
    )
    parser.add_argument(
        "--placement",
        choices=("apart", "free"),
        default="apart",
        help="apart: server and load each on a CPU of its own, where there are two; free: as the kernel likes",
    )
    parser.add_argument("--seed", type=int, help="of the order of the arms in each round (random, and recorded)")
    parser.add_argument("--list", action="store_true", help="say which arms and cells there are, and end")
    options = parser.parse_args(arguments)
    if options.rounds is not None and options.rounds < 1:
        parser.error("--rounds must be at least 1")
    if options.seconds is not None and not 0.001 <= options.seconds <= 600:
        parser.error("--seconds must be from 0.001 to 600")
    return options


def choose_arms(names: str | None, every: Sequence[arms.Arm]) -> list[arms.Arm]:
    """Return the arms that the user asks for, or all."""
    if not names:
        return list(every)
    known = {arm.name: arm for arm in every}
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    for name in wanted:
        if name not in known:
            raise measure.SetupFailed(f"there is no arm {name}; there are: {', '.join(known)}")
    return [arm for arm in every if arm.name in wanted]


def choose_scale(options: argparse.Namespace, contest: Contest) -> measure.Scale:
    """Return how long and how often."""
    scale = contest.full if options.full else QUICK if options.quick else contest.subset
    if options.rounds:
        scale = replace(scale, rounds=options.rounds)
    if options.seconds:
        seconds = options.seconds
        scale = replace(scale, micro_s=seconds, window_s=seconds, waiting_s=seconds, messages=0)
    return scale


def expect_s(plan: Plan, scale: measure.Scale) -> float:
    """Return how long a round takes, about."""
    return sum(scale.sample_s(cell) * len(contestants) for cell, contestants in plan)


def takes_part(arm: arms.Arm, cell: cells.Cell) -> bool:
    """The raw C program has no scheduler to measure; some loops lack a feature; native arms have a program or not."""
    if cell.workload:
        return cell.workload in arm.programs
    return cell.feature not in arm.lacks if arm.loop else cell.floor


def leave_out(chosen: list[cells.Cell]) -> tuple[list[cells.Cell], dict[str, str]]:
    """Return the cells that can be measured here, and of each other one the reason why it can't."""
    reasons = {cell.name: "; ".join(filter(None, map(measure.missing, cell.needs))) for cell in chosen}
    return [cell for cell in chosen if not reasons[cell.name]], {name: text for name, text in reasons.items() if text}


def race(
    cell: cells.Cell,
    contestants: list[arms.Arm],
    scale: measure.Scale,
    placement: measure.Placement,
    dice: random.Random,
    progress: report.Progress,
    result: results.CellResult,
) -> None:
    """Measure every arm in one cell, round by round, in an order that is drawn anew for each round."""
    for number in range(scale.rounds):
        order = dice.sample(contestants, len(contestants))
        result.orders.append([arm.name for arm in order])
        for arm in order:
            samples, failures = result.samples[arm.name], result.failures.setdefault(arm.name, [])
            # A failure is tried again at once, but not for ever: each may take as long as its time limit.
            sample = None
            while sample is None and len(failures) < FAILURES_MOST:
                progress.show(f"{cell.name}, round {number + 1} of {scale.rounds}, {arm.name}")
                try:
                    sample = measure.sample(arm, cell, scale, placement)
                except measure.SampleFailed as failure:
                    failures.append(f"round {number + 1}: {failure}")
            samples.append(sample)
            progress.advance(scale.sample_s(cell))


def main(arguments: list[str], contest: Contest = PYTHON) -> int:
    """Run the race; return the exit status."""
    options = parse(arguments, contest)
    try:
        asked = choose_arms(options.arms, contest.contestants)
        chosen = contest.choose(options.cells, full=options.full or options.list, quick=options.quick)
        if not chosen:
            raise measure.SetupFailed("no cell has such a name; --list shows them")
        if options.list:
            print_list([contest.probe(arm) for arm in asked], chosen)
            return 0
        measure.compile_programs()
        chosen, left_out = leave_out(chosen)
        measure.check_descriptors(max((cell.connections for cell in chosen), default=0))
    except measure.SetupFailed as failure:
        print(f"bench: {failure}", file=sys.stderr)
        return 2

    presences = [contest.probe(arm) for arm in asked]
    present = [presence.arm for presence in presences if not presence.problem]
    scale = choose_scale(options, contest)
    placement = measure.place_apart() if options.placement == "apart" else measure.Placement()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 32)
    plan: Plan = [(cell, [arm for arm in present if takes_part(arm, cell)]) for cell in chosen]
    if not scale.rounds:
        fitting = int(SUBSET_S / max(1.0, expect_s(plan, scale)))
        scale = replace(scale, rounds=min(ROUNDS_MOST, max(ROUNDS_LEAST, fitting)))
    expected_s = scale.rounds * expect_s(plan, scale)
    found = results.Results(presences, scale, seed, results.environment(placement), left_out)
    date = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    output = options.output or RESULTS / f"{date}-{contest.name}.json"

    report.print_setting(found, expected_s, len(chosen), contest.control)
    report.print_left_out(left_out)
    progress = report.Progress(expected_s)
    dice = random.Random(seed)
    begin = time.monotonic()
    try:
        for cell, contestants in plan:
            samples: dict[str, list[dict[str, float] | None]] = {arm.name: [] for arm in contestants}
            result = results.CellResult(cell, samples, control=contest.control, floors=contest.floors)
            found.cells[cell.name] = result
            race(cell, contestants, scale, placement, dice, progress, result)
            report.print_cell(result)
            found.write(output)
    except KeyboardInterrupt:
        found.interrupted = True
        if found.cells:
            report.print_cell(list(found.cells.values())[-1])
        report.say("\ninterrupted: what follows rests on what was measured till then")

    report.print_summary(found, contest.control)
    verdicts = [] if options.quick else contest.judge(found.cells)
    found.verdicts = [verdict.record() for verdict in verdicts]
    report.print_verdicts(verdicts)
    found.write(output)
    report.say(f"\n{report.minutes(time.monotonic() - begin)}; every sample is in {output}")
    if found.interrupted:
        return 130
    return 1 if report_failures(found, contest) else 0


def report_failures(found: results.Results, contest: Contest) -> bool:
    """Repeat what has failed, and say whether any of it is ours: a peer may lack a feature, ringloop may not."""
    ours = {arm.name for arm in contest.contestants if arm.own or arm.name in (contest.control, *contest.floors)}
    failed = False
    for presence in found.presences:
        if presence.broken:
            report.say(presence.describe())
            failed |= presence.arm.name in ours
    for name, result in found.cells.items():
        for arm, reasons in result.failures.items():
            for reason in reasons:
                report.say(f"failed: {arm} in {name}, {reason}")
            failed |= arm in ours and len(reasons) >= FAILURES_MOST
    return failed


def print_list(presences: list[arms.Presence], chosen: list[cells.Cell]) -> None:
    """Say what could be measured."""
    report.say("arms:")
    report.print_presences(presences)
    report.say("cells (those with a star run without --full as well):")
    for cell in chosen:
        report.say(f"  {'*' if cell.in_subset else ' '} {cell.name:26} {cell.title}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
