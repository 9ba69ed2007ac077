"""Other labs that measure on this machine at the same time, which disturb each other and must know of it.

Each lab holds a lock (flock(2), which ends with the process) on a file of its own in one folder, and writes into it who it is and
which CPUs it uses. Whoever begins looks at the others under one lock for all.
"""

import contextlib
import datetime
import fcntl
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from ringlab import Refused, results

FOLDER_VARIABLE = "RINGLAB_LOCKS"
POLL_S = 0.5
PREFIX, SUFFIX = "ringlab-", ".lock"
"""Of a lab's file. Others, in a folder that somebody has named, are not touched."""
WAIT_MINUTES = 60.0
IfBusy = str
"""Says what to do where another lab measures: refuse, wait, wait:MINUTES or beside."""


def minutes_of(if_busy: IfBusy) -> float:
    """Return how long another lab is waited for."""
    word, _, minutes = if_busy.partition(":")
    return float(minutes or WAIT_MINUTES) if word == "wait" else 0.0


def check_if_busy(value: str) -> IfBusy:
    """Return the value of --if-busy; raise click.BadParameter."""
    with contextlib.suppress(ValueError):
        if value in ("refuse", "wait", "beside") or (value.startswith("wait:") and float(value[5:]) > 0):
            return value
    raise click.BadParameter(f"{value!r} is none of refuse, wait, wait:MINUTES and beside")


if_busy_option = click.option(
    "--if-busy",
    type=check_if_busy,
    metavar="[refuse|wait|wait:MINUTES|beside]",
    default="refuse",
    show_default=True,
    help=f"If another lab is measuring on this machine: refuse, wait until it ends (at most {WAIT_MINUTES:g} minutes, or"
    " MINUTES), or measure on other CPUs (beside).",
)


@dataclass(frozen=True)
class Neighbour:
    """A lab that measures at this moment."""

    who: str
    cpus: tuple[int, ...]
    """Those of its servers and its load; none where the kernel places them."""


def folder() -> Path:
    """Return where labs of this machine look for each other, whoever runs them."""
    return Path(os.environ.get(FOLDER_VARIABLE) or Path(tempfile.gettempdir()) / "ringlab")


def read(path: Path) -> Neighbour:
    """Read who holds the lock of a file."""
    try:
        cpus, _, who = path.read_text(encoding="utf-8", errors="replace").partition(":")
        # A terminal would take some of what somebody else may have written for commands.
        who = "".join(each if each.isprintable() else "?" for each in results.shorten(who))
        return Neighbour(who, tuple(int(each) for each in cpus.split()))
    except (OSError, ValueError):
        return Neighbour(f"whoever holds {path}", ())


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
    descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def announced(
    choose: Callable[[set[int]], results.Placement], if_busy: IfBusy, tell: Callable[[str], None]
) -> Iterator[results.Placement]:
    """Choose CPUs for this lab that no other lab has, and let others know of it until the end of the block.

    Raise Refused where another lab measures, unless it is to be waited for and ends in time, or to be measured beside.
    """
    place, begun, told = folder(), time.monotonic(), False
    try:
        with contextlib.suppress(FileExistsError):
            place.mkdir()
            place.chmod(0o1777)  # Everybody may add files, and remove only their own.
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
        who, minutes = "; ".join(other.who for other in others), minutes_of(if_busy)
        if time.monotonic() - begun >= 60 * minutes:
            still = f", still after {minutes:g} minutes" if minutes else ""
            raise Refused(
                f"another lab measures on this machine{still}: {who}; wait for it with --if-busy wait or wait:MINUTES,"
                " or measure on other CPUs with --if-busy beside"
            )
        if not told:
            tell(f"waiting at most {minutes:g} minutes for another lab: {who}")
            told = True
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
        who = "; ".join(other.who for other in others)
        raise Refused(f"another lab measures on this machine, and too few CPUs are left beside it: {who}")
    if others:
        placement.text += f"; beside another lab on CPU {', '.join(map(str, sorted(taken)))}"
    return placement


def announce(place: Path, placement: results.Placement) -> tuple[Path, int]:
    """Write who this lab is; return the file, and the descriptor that holds its lock, which ends with the process at the latest."""
    descriptor, name = tempfile.mkstemp(SUFFIX, PREFIX, place)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.fchmod(descriptor, 0o644)
    cpus = [str(cpu) for cpu in sorted({*placement.server, *placement.client})]
    begun = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
    command = shlex.join(["ringlab", *sys.argv[1:]])
    where = f"CPUs {', '.join(cpus)}" if cpus else "any CPU"
    text = f"{' '.join(cpus)}:process {os.getpid()}, since {begun}, on {where}: {command}"
    os.write(descriptor, text.encode(errors="replace"))
    return Path(name), descriptor
