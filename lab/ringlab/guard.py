"""Whether a change has made something slower: one repository at two revisions, both built, raced against each other.

The repository may be anybody's: one command builds a revision, and one starts its server. ringloop's own brings targets instead.
Each revision has a worktree of its own. Worktrees and builds are kept, so the next guard against the same base builds only what is new.
"""

import datetime
import hashlib
import math
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from ringlab import (
    Refused,
    analysis,
    manifest,
    neighbours,
    preflight,
    results,
    runner,
    selection,
    services,
    session,
    sources,
    statistics,
    storage,
    workloads,
)
from ringlab.progress import working
from ringlab.report import terminal
from ringlab.results import Comparison

SIDES = ("base", "head")
EXIT_UNDECIDED = 3
"""Unlike 2, which all commands end with where a request can't be carried out."""
BUILD_COMMAND = "make build"
"""Of ringloop's repository. One whose server is started by --start has its own, if any."""
BUILD_TIMEOUT_S = 3600
TARGETS = "ringloop*"
STARTED = "server"
"""The name of what --start starts."""
STARTED_CELLS = ("http/50/closed",)
READY_TIMEOUT_S = 60.0
STOP_CODES = (0, 1, 2, -15, 130, 143)
"""The exit codes of a server that SIGTERM ends: few handle it."""
CELLS = (
    "echo/framed/1KB/100",
    "http/50/closed",
    "rtt/1KB",
    "loops/schedule/call_soon",
    "loops/schedule/chain",
    "loops/schedule/timers",
    "bind/accept/1",
)


@dataclass(frozen=True)
class Revision:
    """One of the two revisions, in its worktree."""

    side: str
    name: str
    """The name that the user gave."""
    commit: str
    worktree: Path

    @property
    def python(self) -> str:
        """The interpreter of its virtual environment, or, if its build makes none, that which runs here."""
        own = self.worktree / ".venv" / "bin" / "python"
        return str(own) if own.exists() else sys.executable


def git(repository: Path, *words: str) -> str:
    """Run git and return what it printed; raise Refused."""
    if shutil.which("git") is None:
        raise Refused("guard needs git: apt-get install git")
    done = subprocess.run(
        ["git", "-C", str(repository), *words],
        capture_output=True,
        encoding="utf-8",
        errors="surrogateescape",
        check=False,
    )
    if done.returncode != 0:
        raise Refused(f"git {' '.join(words)}: {manifest.last_line(done.stderr)}")
    return done.stdout.strip()


def check_out(repository: Path, side: str, name: str) -> Revision:
    """Return a revision in a worktree of its own; raise Refused."""
    try:
        commit = git(repository, "rev-parse", "--verify", "--end-of-options", f"{name}^{{commit}}")
    except Refused:
        raise Refused(
            f"{repository} has no revision {name!r}: name a branch, tag or commit (a shallow clone has few: git fetch --unshallow)"
        ) from None
    # Not within the repository: builds look for settings and packages in the folders around them.
    known_by = hashlib.sha256(os.fsencode(repository.resolve())).hexdigest()[:8]
    worktree = sources.cache().resolve() / "guard" / f"{repository.resolve().name}-{known_by}" / commit[:12]
    known = git(repository, "worktree", "list", "--porcelain").split("\n")
    if f"worktree {worktree}" not in known or not (worktree / ".git").exists():
        # One may be left of a repository that was deleted, and cloned again to the same place.
        shutil.rmtree(worktree, ignore_errors=True)
        worktree.parent.mkdir(parents=True, exist_ok=True)
        git(repository, "worktree", "prune")
        git(repository, "worktree", "add", "--detach", "--force", str(worktree), commit)
    # An earlier run may have been interrupted during the checkout, and a build may have changed files.
    git(worktree, "reset", "--hard", "--quiet", commit)
    return Revision(side, name, commit, worktree)


def build(revision: Revision, command: str, tell: Callable[[str], None]) -> None:
    """Build a revision in its worktree; raise Refused."""
    log = revision.worktree.parent / f"{revision.commit[:12]}.log"
    # This process's environment refers to folders of this repository, not to those of the worktree. Above all, cargo must not compile
    # both revisions into one folder: it compares only times, so it would take crates of one revision for those of the other.
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("RINGLAB_", "VIRTUAL_ENV", "MAKE", "PYTHONPATH", "CARGO_TARGET_DIR"))
    }
    try:
        manifest.run_build(
            ["sh", "-c", command], command, revision.worktree, environment, log, BUILD_TIMEOUT_S,
            lambda text: tell(f"building {revision.name} ({revision.commit[:12]}): {text}"),
        )  # fmt: skip
    except manifest.BuildFailed as error:
        raise Refused(f"{revision.name}: {error}") from None


def choose(revision: Revision, selectors: Sequence[str]) -> list[manifest.Arm]:
    """Return the arms that are asked for, which run a revision's code."""
    broken: dict[str, str] = {}
    builds = revision.worktree.with_name(f"{revision.worktree.name}-targets")
    folder = revision.worktree / "lab" / "targets"
    if not folder.is_dir():
        raise Refused(f"{revision.name} has no lab/targets: choose a later revision, or name a server with --start")
    arms = manifest.discover(folder, builds, revision.python, broken)
    return [at(revision, arm) for arm in selection.choose(arms, selectors, broken)]


def started(revision: Revision, command: str, plans: Sequence[workloads.CellPlan]) -> manifest.Arm:
    """Return the arm of a server that a command starts in a revision's worktree; raise Refused."""
    kinds = dict.fromkeys(plan.kind for plan in plans)
    if wrong := [plan.name for plan in plans if plan.kind not in ("echo", "http", "discard")]:
        raise Refused(
            f"--start starts a server, and {wrong[0]} loads none; measure http, echo, rtt, churn, sweep or stream"
        )
    try:
        manifest.check_command(manifest.PLACEHOLDERS["http"] | {"python"}, command)
    except ValueError as error:
        raise Refused(f"--start {error}") from None
    if "{port}" not in command:
        raise Refused("--start must say where the port goes that the server shall listen on: write it as {port}")
    arm = manifest.Arm(
        name=STARTED,
        target=STARTED,
        language="unknown",
        title=command,
        folder=revision.worktree,
        build_folder=revision.worktree,
        commands=dict.fromkeys(kinds, command),
        workloads=tuple(name for name in manifest.SERVED if manifest.KIND_OF_WORKLOAD[name] in kinds),
        ready=manifest.Ready(connect=True, timeout_s=READY_TIMEOUT_S),
        stop=manifest.Stop(exit_codes=STOP_CODES),
        declares=manifest.Declares(workers=0),
        python=revision.python,
    )
    return at(revision, arm)


def at(revision: Revision, arm: manifest.Arm) -> manifest.Arm:
    """Return an arm as that of a revision."""
    # It would make the Pythons of both revisions import the same code; if it is empty, it has no effect.
    own_path = {"PYTHONPATH": ""} if os.environ.get("PYTHONPATH") else {}
    return replace(
        arm,
        name=f"{arm.name}@{revision.side}",
        title=f"{arm.title}, at {revision.name}",
        environment={**own_path, **arm.environment},
    )


@dataclass(frozen=True)
class Finding:
    """One arm in one cell, at head against at base."""

    cell: results.Cell
    arm: str
    comparison: Comparison | None
    """None where it wasn't measured at both revisions."""

    @property
    def word(self) -> str:
        """The verdict."""
        return self.comparison.verdict if self.comparison else "cannot tell"

    @property
    def bounds(self) -> tuple[frozenset[results.Bound], frozenset[results.Bound]]:
        """In which directions the figures at head and at base are only bounds."""
        head, base = (
            analysis.bounds_of(self.cell, f"{self.arm}@{side}", self.cell.primary, {}) for side in reversed(SIDES)
        )
        return head, base

    def why_unmeasured(self) -> str:
        """Say what went wrong at which revision."""
        reasons = dict(self.cell.unable)
        for sample in self.cell.samples:
            if sample.status != "measured" and sample.reasons:
                reasons.setdefault(sample.arm, sample.reasons[0])
        found = [f"{name}: {reasons[name]}" for side in SIDES if (name := f"{self.arm}@{side}") in reasons]
        return "; ".join([f"{self.arm} wasn't measured at both revisions", *found])


def judge(result: results.Result, names: Sequence[str]) -> list[Finding]:
    """Compare head with base, each arm in each cell, with Holm's correction for all of them together."""
    found: list[tuple[Finding, statistics.Estimate | None, float]] = []
    for cell in result.cells:
        metric = cell.primary
        floor = statistics.noise_floor(analysis.again(cell, metric, analysis.copies_of(cell, result.arms)))
        for name in names:
            base, head = (f"{name}@{side}" for side in SIDES)
            if base in cell.arms or head in cell.arms:
                logs = statistics.log_ratios(cell.windows(head, metric.key), cell.windows(base, metric.key))
                found.append((Finding(cell, name, None), statistics.estimate(logs), floor))
    measured = [each for _, each, _ in found if each is not None]
    # Cells scatter differently, so their comparisons share no more than the correction for their number.
    members = iter(statistics.family(measured, arms=0))
    return [
        finding
        if each is None
        else replace(
            finding,
            comparison=analysis.describe(
                finding.cell.primary,
                f"{finding.arm}@head",
                f"{finding.arm}@base",
                next(members),
                floor,
                len(measured),
                finding.bounds,
            ),
        )
        for finding, each, floor in found
    ]


def exit_code(findings: Sequence[Finding]) -> int:
    """Return 1 if something is slower, else EXIT_UNDECIDED if something can't be told (or nothing was measured), else 0."""
    words = [finding.word for finding in findings]
    if "worse" in words:
        return 1
    return EXIT_UNDECIDED if "cannot tell" in words or not words else 0


def conclusion(findings: Sequence[Finding]) -> str:
    """Say in a sentence what was found."""
    total = len(findings)
    slower = [finding for finding in findings if finding.word == "worse"]
    open_ones = [finding for finding in findings if finding.word == "cannot tell"]
    if slower:
        worst = max(slower, key=lambda finding: abs(math.log(finding.comparison.ratio)) if finding.comparison else 0.0)
        sentence = worst.comparison.sentence if worst.comparison else ""
        return f"slower: {len(slower)} of {total}; the worst: {worst.cell.name}: {sentence}"
    bounded = [f"{finding.arm} in {finding.cell.name}" for finding in open_ones if any(finding.bounds)]
    if bounded:
        return f"cannot tell: {len(open_ones)} of {total}; only bounds are known of {analysis.some_of(bounded)}"
    if open_ones or not total:
        needed = [finding.comparison.rounds_needed if finding.comparison else None for finding in open_ones]
        most = None if any(each is None for each in needed) else max((each for each in needed if each), default=None)
        return f"cannot tell: {len(open_ones)} of {total}; {analysis.would_take(most)}"
    return f"fine: none of {total} is slower"


def run(
    what: Sequence[str],
    base: str,
    head: str,
    repository: Path,
    selectors: Sequence[str],
    build_command: str | None,
    start: str,
    service: services.Service,
    output: Path | None,
    if_busy: neighbours.IfBusy,
    **options: Any,
) -> int:
    """Build two revisions, race them and judge; return the exit status. Raise Refused, and OSError."""
    console = terminal.make_console()
    plans = workloads.choose(what or (STARTED_CELLS if start else CELLS), "normal")
    if start:
        if tuple(selectors) != (TARGETS,):
            raise Refused("--start is what is measured: leave out --targets")
        plans = [service.plan(plan) for plan in plans]
    elif service.words():
        raise Refused(f"{service.words()[0]} describes a service: add --start, the command that starts it")
    if build_command is None:
        build_command = "" if start else BUILD_COMMAND
    try:
        root = Path(git(repository, "rev-parse", "--show-toplevel"))
    except Refused as error:
        raise Refused(f"{error}; name the repository with --repository") from None
    revisions = [check_out(root, side, name) for side, name in zip(SIDES, (base, head), strict=True)]
    if head == "HEAD" and git(root, "status", "--porcelain", "--untracked-files=no"):
        console.print("[yellow]warning[/yellow]  uncommitted changes are not measured: head is the last commit")
    if revisions[0].commit == revisions[1].commit:
        console.print("[yellow]warning[/yellow]  base and head are the same commit: this measures the noise")

    # A build takes minutes, so errors in the rest of the command are reported first.
    def arms_of(revision: Revision) -> list[manifest.Arm]:
        return [started(revision, start, plans)] if start else choose(revision, selectors)

    for revision in revisions:
        arms_of(revision)
    words = ["--start", start, *service.words()] if start else []
    words += ["--build", build_command] if build_command else []
    with (
        storage.claim(output) as folder,
        neighbours.announced(lambda taken: preflight.place(taken=taken), if_busy, terminal.warn) as placement,
    ):
        with working(console, "building") as tell:
            for revision in {each.commit: each for each in revisions}.values() if build_command else ():
                build(revision, build_command, tell)
        chosen = [arm for revision in revisions for arm in arms_of(revision)]
        return race_revisions(console, root, revisions, plans, chosen, words, folder, placement, **options)


def race_revisions(
    console: Console,
    root: Path,
    revisions: Sequence[Revision],
    plans: list[workloads.CellPlan],
    chosen: Sequence[manifest.Arm],
    words: Sequence[str],
    folder: Path,
    placement: results.Placement,
    *,
    rounds: int,
    seconds: float,
    seed: int | None,
) -> int:
    """Race two revisions that have been built; return the exit status."""
    with working(console, "checking which targets can run here") as tell:
        present, records = selection.make_ready(chosen, tell)
    for record in records:
        if record.skipped:
            console.print(f"[yellow]skipped[/yellow]  {escape(record.name)}: {escape(record.skipped)}", highlight=False)
    names = dict.fromkeys(each.rpartition("@")[0] for each in present)
    both = [name for name in names if all(f"{name}@{side}" in present for side in SIDES)]
    if not both:
        raise Refused("no arm can be run at both revisions; choose others with --targets")
    present = {name: arm for name, arm in present.items() if name.rpartition("@")[0] in both}
    plans = [plan for plan in plans if any(plan.served_by(arm) for arm in present.values())]
    if not plans:
        raise Refused("none of these arms serves any of these cells")
    seed = seed if seed is not None else random.SystemRandom().randrange(1 << 32)
    base, head = revisions
    command = ["ringlab", "guard", *(plan.name for plan in plans), "--base", base.commit, "--head", head.commit]
    command += ["--targets", ",".join(both)] if both != [STARTED] else []
    command += [*words, "--rounds", str(rounds), "--seconds", f"{seconds:g}", "--repository", str(root)]
    result = results.Result(
        run=results.Run(
            command=[*command, "--seed", str(seed)],
            begun=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            seed=seed,
            scale=replace(workloads.SCALES["normal"], rounds=rounds, window_s=seconds),
            placement=placement,
            notes=[f"base is {base.name} ({base.commit[:12]}), head is {head.name} ({head.commit[:12]})"],
        ),
        arms=[record for record in records if record.name in present],
    )
    race = session.start_race(console, result, present, plans, folder / storage.RESULT_FILE)
    race.options = runner.Options(baseline=f"{both[0]}@base", memory_bytes=preflight.memory_limit(None))
    if session.finish(console, race) == session.EXIT_INTERRUPTED:
        return session.EXIT_INTERRUPTED
    findings = judge(result, both)
    console.print("\n[bold]head against base[/bold]")
    for finding in findings:
        text = finding.comparison.sentence if finding.comparison else finding.why_unmeasured()
        colour = terminal.COLOURS[finding.word]
        console.print(
            f"  [{colour}]{finding.word:11}[/{colour}] {escape(finding.cell.name)}: {escape(text)}", highlight=False
        )
    console.print(f"[bold]{escape(conclusion(findings))}[/bold]", highlight=False)
    return exit_code(findings)
