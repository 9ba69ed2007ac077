"""The arms of the race: which event loops, how each is made, and whether it can run here."""

import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

SUBJECT = Path(__file__).with_name("subject.py")
CONTROL = "asyncio"
FLOOR = "floor"
PROBE_TIMEOUT_S = 30


@dataclass(frozen=True)
class Arm:
    """One contestant. `loop` is `module:function`, or empty for the raw C program."""

    name: str
    loop: str = ""
    distribution: str = ""
    """Its name on PyPI, where it comes from there."""
    environment: dict[str, str] = field(default_factory=dict)
    own: bool = False
    """It is ringloop: goals are set for it, and its failure fails the run."""
    first_python: tuple[int, int] = (3, 11)
    lacks: frozenset[str] = frozenset()
    """What it has never had; it takes no part in cells about that."""
    programs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The commands of a native arm, by the workload of a cell."""

    def command(self, *arguments: str) -> list[str]:
        """The command of the measured program; -I keeps the user's Python environment out of it."""
        return [sys.executable, "-I", str(SUBJECT), self.loop, *arguments]

    def child_environment(self) -> dict[str, str]:
        """The environment of the measured program. RINGLOOP_BUSY_POLL and the like pass, so that they can be tried."""
        inherited = {name: value for name, value in os.environ.items() if name != "RINGLOOP_BACKEND"}
        return inherited | self.environment


ARMS = (
    Arm(CONTROL, "asyncio:new_event_loop"),
    Arm("uvloop", "uvloop:new_event_loop", "uvloop", lacks=frozenset({"sendfile"})),
    Arm("rloop", "rloop:new_event_loop", "rloop", lacks=frozenset({"tls", "unix", "sendfile"})),
    Arm("rsloop", "rsloop:new_event_loop", "rsloop", first_python=(3, 14)),
    Arm("zuvloop", "zuvloop:new_event_loop", "zuvloop", first_python=(3, 14)),
    Arm("ringloop", "ringloop:new_event_loop", "ringloop", own=True),
    Arm("ringloop-epoll", "ringloop:new_event_loop", "ringloop", {"RINGLOOP_BACKEND": "epoll"}, own=True),
    Arm(FLOOR),
)
PEERS = tuple(arm.name for arm in ARMS if arm.loop and not arm.own)
OWN = tuple(arm.name for arm in ARMS if arm.own)


@dataclass(frozen=True)
class Presence:
    """What asking an arm to make one loop has shown."""

    arm: Arm
    version: str = ""
    facts: dict[str, object] = field(default_factory=dict)
    problem: str = ""
    """Why it can't run, and how to change that; empty if it can."""
    broken: bool = False
    """It is installed and still can't run."""

    def describe(self) -> str:
        """One line for people."""
        if self.problem:
            return f"{self.arm.name}: {'broken' if self.broken else 'skipped'}: {self.problem}"
        backend = self.facts.get("backend")
        reason = self.facts.get("backend_reason")
        return f"{self.arm.name} {self.version}" + (f" on {backend} ({reason})" if backend else "")


def last_line(text: str) -> str:
    """The last line that says something: of a traceback, the error itself."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def probe(arm: Arm) -> Presence:
    """Make one loop of this arm in a process of its own."""
    if not arm.loop:
        return Presence(arm, "raw C, epoll")
    if sys.version_info < arm.first_python:
        oldest = ".".join(map(str, arm.first_python))
        return Presence(
            arm, problem=f"needs Python {oldest}: make bench-loops PYTHON=python{oldest} VENV=.venv-{oldest}"
        )
    version = sys.version.split()[0]
    if arm.distribution:
        try:
            version = importlib.metadata.version(arm.distribution)
        except importlib.metadata.PackageNotFoundError:
            remedy = "make build" if arm.own else f"{sys.executable} -m pip install -r bench/requirements.txt"
            return Presence(arm, problem=f"not installed; install it with: {remedy}")
    try:
        done = subprocess.run(
            arm.command("probe"),
            env=arm.child_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PROBE_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Presence(arm, version, problem=f"making a loop took over {PROBE_TIMEOUT_S} s", broken=True)
    if done.returncode != 0:
        problem = last_line(done.stderr) or f"exit status {done.returncode}"
        return Presence(arm, version, problem=problem, broken=True)
    return Presence(arm, version, json.loads(done.stdout))
