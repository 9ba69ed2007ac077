"""The machine's settings, for as long as something is measured: what makes figures scatter is switched off, and afterwards on again.

Each setting is a file below /proc or /sys. What was in it is written to a journal before it is changed, so that a process that is
killed leaves enough to undo its changes: the next `ringlab tune` does, or `ringlab tune --restore`.
"""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import click
from rich.markup import escape

from ringlab import Refused, preflight
from ringlab.report import terminal

JOURNAL = Path("/run/ringlab-tune.json")
POLL_S = 3600.0

Status = Literal["set", "as it should be", "can't be done"]


@dataclass(frozen=True)
class Outcome:
    """The outcome for a setting."""

    title: str
    status: Status
    text: str


@dataclass(frozen=True)
class Change:
    """A file, and what was in it before."""

    path: Path
    before: str


class Tuner:
    """Changes settings, and undoes what it changed. `root` stands for /, `journal` is the file that survives a kill."""

    def __init__(self, root: Path = Path("/"), journal: Path = JOURNAL, load_cpus: Sequence[int] = (0,)) -> None:
        """Prepare; nothing is changed yet. Interrupts go to `load_cpus`, which no server is measured on."""
        self.root = root
        self.journal = journal
        self.load_cpus = list(load_cpus)
        self.changes: list[Change] = []

    def tune(self) -> list[Outcome]:
        """Change every setting that can be changed; return what became of each. If this raises, nothing stays changed."""
        steps: tuple[Callable[[], Outcome], ...] = (
            self.governor,
            self.turbo,
            self.layout,
            self.sampling,
            self.watchdog,
            self.interrupts,
        )
        try:
            return [step() for step in steps]
        except BaseException:
            self.restore()
            raise

    def governor(self) -> Outcome:
        """Let CPUs run at one speed: the governor performance."""
        files = sorted((self.root / "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor"))
        return self.set_all(
            "CPU governor", files, "performance", "no governor is visible: the hypervisor or the firmware decides"
        )

    def turbo(self) -> Outcome:
        """Switch turbo off: how fast it is depends on temperature, and on what other cores do."""
        cpu = self.root / "sys/devices/system/cpu"
        intel, boost = cpu / "intel_pstate/no_turbo", cpu / "cpufreq/boost"
        if intel.exists():
            return self.set_all("turbo", [intel], "1", "")
        absent = "no switch for turbo is visible: the hypervisor or the firmware decides"
        return self.set_all("turbo", [boost] if boost.exists() else [], "0", absent)

    def layout(self) -> Outcome:
        """Randomize addresses fully: with one fixed layout, every run has the same luck with caches, and no run shows it."""
        return self.set_all(
            "address space layout",
            self.there("proc/sys/kernel/randomize_va_space"),
            "2",
            "the kernel has no such setting",
        )

    def sampling(self) -> Outcome:
        """Let perf interrupt once a second at most, unless somebody asks for more."""
        return self.set_all(
            "perf sampling", self.there("proc/sys/kernel/perf_event_max_sample_rate"), "1", "the kernel has no perf"
        )

    def watchdog(self) -> Outcome:
        """Switch off the watchdog, which takes a performance counter and wakes every CPU."""
        return self.set_all("NMI watchdog", self.there("proc/sys/kernel/nmi_watchdog"), "0", "the kernel has none")

    def interrupts(self) -> Outcome:
        """Send interrupts to the CPUs of the load."""
        mask = cpu_list(self.load_cpus)
        files = sorted(
            (self.root / "proc/irq").glob("[0-9]*/smp_affinity_list"), key=lambda path: int(path.parent.name)
        )
        outcome = self.set_all("interrupts", files, mask, "no interrupts are visible")
        if outcome.status == "set" and any("irqbalance" in line for line in self.processes()):
            return Outcome(
                outcome.title,
                outcome.status,
                f"{outcome.text}; irqbalance runs and may move them back: systemctl stop irqbalance",
            )
        return outcome

    def processes(self) -> Iterator[str]:
        """Yield the names of the processes."""
        for path in (self.root / "proc").glob("[0-9]*/comm"):
            with contextlib.suppress(OSError):
                yield path.read_text()

    def there(self, name: str) -> list[Path]:
        """Return a file if it exists."""
        path = self.root / name
        return [path] if path.exists() else []

    def set_all(self, title: str, files: Sequence[Path], value: str, absent: str) -> Outcome:
        """Write a value into files; return what became of it."""
        if not files:
            return Outcome(title, "can't be done", absent)
        changed, failed, refused = 0, 0, ""
        before = ""
        for path in files:
            try:
                before = path.read_text().strip()
                if before == value:
                    continue
                self.remember(Change(path, before))
                path.write_text(value)
                changed += 1
            except OSError as error:
                # The kernel keeps some interrupts where they are.
                self.forget(path)
                failed += 1
                refused = f"{path}: {error.strerror}"
        if failed == len(files):
            hint = "" if os.geteuid() == 0 else "; it takes root: sudo ringlab tune"
            return Outcome(title, "can't be done", f"{refused}{hint}")
        if changed == 0 and not failed:
            return Outcome(title, "as it should be", before)
        rest = f"; {failed} of {len(files)} stay as they are ({refused})" if failed else ""
        was = f", was {before}" if len(files) == 1 else f" in {changed} of {len(files)} files"
        return Outcome(title, "set", f"{value}{was}{rest}")

    def remember(self, change: Change) -> None:
        """Put a change into the journal, before it is made."""
        self.changes.append(change)
        self.write_journal()

    def forget(self, path: Path) -> None:
        """Take a change that failed out of the journal."""
        self.changes = [change for change in self.changes if change.path != path]
        self.write_journal()

    def write_journal(self) -> None:
        """Write what must be undone; raise Refused where that isn't possible, since a kill could not be undone then."""
        content = {"process": os.getpid(), "changes": [[str(change.path), change.before] for change in self.changes]}
        unfinished = self.journal.with_suffix(".new")
        try:
            unfinished.write_text(json.dumps(content))
            unfinished.replace(self.journal)
        except OSError as error:
            raise Refused(
                f"{self.journal} can't be written: {error.strerror}; settings are changed only by root: sudo ringlab tune"
            ) from None

    def restore(self) -> list[str]:
        """Undo all changes, the last first; return what could not be undone."""
        problems = []
        left = []
        for change in reversed(self.changes):
            try:
                change.path.write_text(change.before)
            except OSError as error:
                problems.append(f"{change.path} can't be set back to {change.before!r}: {error.strerror}")
                left.append(change)
        self.changes = list(reversed(left))
        if self.changes:
            self.write_journal()
        else:
            self.journal.unlink(missing_ok=True)
        return problems


def cpu_list(cpus: Sequence[int]) -> str:
    """Write CPUs as the kernel shows them: 0-2,5."""
    parts: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if parts and cpu == parts[-1][1] + 1:
            parts[-1][1] = cpu
        else:
            parts.append([cpu, cpu])
    return ",".join(f"{low}" if low == high else f"{low}-{high}" for low, high in parts)


def left_over(root: Path = Path("/"), journal: Path = JOURNAL) -> Tuner | None:
    """Return what a process that was killed has left changed; raise Refused if that process lives."""
    if not journal.exists():
        return None
    try:
        content = json.loads(journal.read_text())
        process, changes = (
            int(content["process"]),
            [Change(Path(path), str(before)) for path, before in content["changes"]],
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Refused(
            f"{journal} can't be read: {error}; restart the machine to have its own settings, and remove the file"
        ) from None
    below = (root / "proc", root / "sys")
    if any(".." in change.path.parts or not any(map(change.path.is_relative_to, below)) for change in changes):
        raise Refused(f"{journal} names files outside of /proc and /sys; remove it")
    if process != os.getpid() and is_tune(root, process):
        raise Refused(f"process {process} has tuned this machine and still runs; end it with Ctrl-C first")
    found = Tuner(root, journal)
    found.changes = changes
    return found


def is_tune(root: Path, process: int) -> bool:
    """Return whether a process is a `ringlab tune`."""
    try:
        return b"tune" in (root / f"proc/{process}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False


@click.command(
    "tune", context_settings={"ignore_unknown_options": True}, short_help="Prepare the machine for measuring."
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]")
@click.option("--restore", is_flag=True, help="Undo the changes of a `ringlab tune` that was killed.")
def tune_command(command: tuple[str, ...], restore: bool) -> None:
    """Prepare the machine for measuring while COMMAND runs, or until Ctrl-C, and undo it at the end. Needs root.

    The CPU governor is set to performance, turbo and the NMI watchdog are turned off, perf samples at most once a second,
    addresses are fully randomized, and interrupts go to the load's CPUs. The command lists what it can't change: in most
    virtual machines, the governor and turbo.

    \b
    Exit status: that of COMMAND; 2 if nothing could be tuned.
    Example:
      sudo ringlab tune -- ringlab run echo
    """
    console = terminal.make_console()
    before = left_over()
    if before is not None:
        for problem in before.restore():
            console.print(f"[red]![/red] {escape(problem)}", highlight=False)
        console.print("what an earlier tune left changed is undone")
    if restore:
        if before is None:
            console.print("nothing is left to undo")
        sys.exit(0)
    tuner = Tuner(load_cpus=preflight.place().client or [0])
    code = 0
    try:
        outcomes = tuner.tune()
        colours = {"set": "green", "as it should be": "green", "can't be done": "yellow"}
        for outcome in outcomes:
            colour = colours[outcome.status]
            console.print(
                f"[{colour}]{outcome.status:15}[/{colour}] {outcome.title}: {escape(outcome.text)}", highlight=False
            )
        if all(outcome.status == "can't be done" for outcome in outcomes):
            raise Refused("nothing can be tuned here")
        if command:
            code = run(command)
        else:
            console.print("until Ctrl-C")
            while True:
                time.sleep(POLL_S)
    except KeyboardInterrupt:
        if command:
            raise
    finally:
        problems = tuner.restore()
        for problem in problems:
            console.print(f"[red]![/red] {escape(problem)}", highlight=False)
        if not problems:
            console.print("undone")
    sys.exit(code)


def run(command: Sequence[str]) -> int:
    """Run a command to its end, also if Ctrl-C interrupts both; return its exit status as a shell has it."""
    try:
        process = subprocess.Popen(command)
    except OSError as error:
        raise Refused(f"{command[0]} can't be run: {error.strerror}") from None
    try:
        code = process.wait()
    except BaseException:
        # It was interrupted, too, and ends by itself; or else it is ended.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(60)
        process.kill()
        process.wait()
        raise
    return code if code >= 0 else 128 - code
