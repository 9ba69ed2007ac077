"""Other labs that measure on this machine at the same time, which disturb each other and must know of it.

Each lab holds a lock (flock(2), which ends with the process) on a file of its own in one folder, and writes into it who it is and
which CPUs it uses. Whoever begins looks at the others under one lock for all.
"""

import contextlib
import datetime
import fcntl
import json
import os
import shlex
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from ringlab import Refused, results

FOLDER_VARIABLE = "RINGLAB_LOCKS"
POLL_S = 0.5
DOOR = "door"
PREFIX, SUFFIX = "ringlab-", ".lock"
"""Of a lab's file. Others, in a folder that somebody has named, are not touched."""
WAIT_MINUTES = 60.0
IfBusy = str
"""Says what to do where another lab measures: refuse, wait, wait:MINUTES or beside."""


class IfBusyType(click.ParamType[IfBusy]):
    """The value of --if-busy."""

    name = "if_busy"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> IfBusy:
        """Return it, checked."""
        with contextlib.suppress(ValueError):
            if value in ("refuse", "beside") or waiting_s(value) > 0:
                return str(value)
        self.fail(f"{value!r} is none of refuse, wait, wait:MINUTES and beside", param, ctx)


def if_busy_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the option that says what to do where another lab measures on this machine."""
    return click.option(
        "--if-busy",
        type=IfBusyType(),
        metavar="[refuse|wait|wait:MINUTES|beside]",
        default="refuse",
        show_default=True,
        help=f"If another lab is measuring on this machine: refuse, wait until it ends (at most {WAIT_MINUTES:g} minutes, or"
        " MINUTES), or measure on other CPUs (beside).",
    )(function)


def waiting_s(if_busy: IfBusy) -> float:
    """Return how long another lab is waited for; raise ValueError."""
    word, colon, minutes = if_busy.partition(":")
    if word != "wait":
        raise ValueError(if_busy)
    return 60 * (float(minutes) if colon else WAIT_MINUTES)


@dataclass(frozen=True)
class Neighbour:
    """A lab that measures at this moment."""

    pid: int
    begun: str
    command: str
    cpus: tuple[int, ...]
    """Those of its servers and its load; none where the kernel places them."""

    def __str__(self) -> str:
        """Say who it is."""
        where = f"CPUs {', '.join(map(str, self.cpus))}" if self.cpus else "any CPU"
        return f"process {self.pid}, since {self.begun}, on {where}: {self.command}"


def folder() -> Path:
    """Return where labs of this machine look for each other, whoever runs them."""
    return Path(os.environ.get(FOLDER_VARIABLE) or Path(tempfile.gettempdir()) / "ringlab")


def printable(text: str) -> str:
    """Return a text of somebody else without what a terminal would take for commands."""
    return "".join(each if each.isprintable() else "?" for each in results.shorten(text))


def read(path: Path) -> Neighbour:
    """Read who holds the lock of a file."""
    try:
        content = json.loads(path.read_text())
        cpus = tuple(int(each) for each in content["cpus"])
        return Neighbour(
            int(content["pid"]), printable(str(content["begun"])), printable(str(content["command"])), cpus
        )
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return Neighbour(0, "an unknown time", f"whoever holds {path}", ())


def is_held(path: Path) -> bool:
    """Return whether a lab holds the lock of a file; one that nobody holds is removed."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        with contextlib.suppress(OSError):  # Somebody else's, in a folder for all.
            path.unlink()
        return False
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def door(place: Path) -> Iterator[None]:
    """Let one lab at a time look at the others."""
    path = place / DOOR
    flags = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_RDONLY
    try:
        # Another user's file can't be opened with O_CREAT in a folder for all (protected_regular in sysctl/fs.rst).
        descriptor = os.open(path, flags)
    except FileNotFoundError:
        descriptor = os.open(path, flags | os.O_CREAT, 0o644)
        os.fchmod(descriptor, 0o644)  # Whatever the umask: others must be able to open it.
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def make(place: Path) -> None:
    """Make the folder, in which everybody may add files and remove only their own."""
    try:
        place.mkdir()
    except FileExistsError:
        return
    place.chmod(stat.S_ISVTX | 0o777)


@contextlib.contextmanager
def announced(
    choose: Callable[[set[int]], results.Placement], if_busy: IfBusy, tell: Callable[[str], None]
) -> Iterator[results.Placement]:
    """Choose CPUs for this lab that no other lab has, and let others know of it until the end of the block.

    Raise Refused where another lab measures, unless it is to be waited for and ends in time, or to be measured beside.
    """
    place, began = folder(), 0.0
    try:
        make(place)
        with door(place):
            pass
    except OSError as error:
        tell(f"other labs on this machine can't be seen: {error.filename}: {error.strerror}")
        yield choose(set())
        return
    while True:
        with door(place):
            others = [read(path) for path in sorted(place.glob(f"{PREFIX}*{SUFFIX}")) if is_held(path)]
            if not others or if_busy == "beside":
                placement = beside(choose, others)
                own, descriptor = announce(place, placement)
                break
        who = "; ".join(map(str, others))
        if if_busy == "refuse":
            raise Refused(
                f"another lab measures on this machine: {who}; wait for it with --if-busy wait,"
                " or measure on other CPUs with --if-busy beside"
            )
        limit_s = waiting_s(if_busy)
        if not began:
            began = time.monotonic()
            tell(f"waiting at most {limit_s / 60:g} minutes for another lab: {who}")
        if time.monotonic() - began > limit_s:
            raise Refused(
                f"another lab still measures after {limit_s / 60:g} minutes: {who}; wait longer with --if-busy wait:MINUTES,"
                " or measure on other CPUs with --if-busy beside"
            )
        time.sleep(POLL_S)
    try:
        yield placement
    finally:
        own.unlink(missing_ok=True)
        os.close(descriptor)


def beside(choose: Callable[[set[int]], results.Placement], others: list[Neighbour]) -> results.Placement:
    """Return a placement on CPUs that no other lab has; raise Refused where there are too few."""
    taken = {cpu for other in others for cpu in other.cpus}
    placement = choose(taken)
    if others and (not placement.server or not all(other.cpus for other in others)):
        who = "; ".join(map(str, others))
        raise Refused(f"another lab measures on this machine, and too few CPUs are left beside it: {who}")
    if others:
        placement.text += f"; beside another lab on CPU {', '.join(map(str, sorted(taken)))}"
    return placement


def announce(place: Path, placement: results.Placement) -> tuple[Path, int]:
    """Write who this lab is; return the file, and the descriptor that holds its lock, which ends with the process at the latest."""
    descriptor, name = tempfile.mkstemp(SUFFIX, PREFIX, place)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.fchmod(descriptor, 0o644)
    content = {
        "pid": os.getpid(),
        "begun": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "command": shlex.join(["ringlab", *sys.argv[1:]]),
        "cpus": sorted({*placement.server, *placement.client}),
    }
    os.write(descriptor, json.dumps(content).encode())
    return Path(name), descriptor
