"""`--cluster local`: three machines on one, as network namespaces that a switch connects. It needs root, and nothing of the machine's own
network is touched.

The scheduler is in the namespace of the switch, a bridge, and so is the lab while it measures. The name of a namespace says which process
made it, so that those of a run that was killed are found and removed.
"""

import contextlib
import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from ringlab import Refused, generator, results
from ringlab.cluster import LOAD, PORT, SERVER
from ringlab.manifest import MARK, RUN_MARK, last_line
from ringlab.process import die_with_parent, end_marked, module_command

FOLDER = Path("/run/netns")
"""Where ip-netns(8) keeps the names of namespaces."""
NAME = re.compile(r"ringlab-(\d+)-(\d+)-[a-z0-9]+")
SWITCH = "switch"
NETWORK = "10.199.0"
"""Nobody else sees it."""
READY_S = 60.0
"""How long scheduler and workers may take to begin."""
CLONE_NEWNET = 0x40000000


@dataclass(frozen=True)
class Place:
    """One of the machines."""

    name: str
    role: str
    host: str
    cpus: tuple[int, ...]


def ip(*words: str) -> None:
    """Run ip(8); raise Refused."""
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Refused(
            f"`ip {' '.join(words)}` failed: {last_line(done.stderr)}; --cluster local makes network namespaces, for which"
            " root needs the rights of CAP_NET_ADMIN and CAP_SYS_ADMIN"
        )


def check_rights() -> None:
    """Raise Refused where no namespaces can be made."""
    if os.geteuid():
        raise Refused(
            "--cluster local makes network namespaces, which only root may do: run it with sudo, or start `dask scheduler`"
            f" and `ringlab worker` on this machine and use --cluster tcp://127.0.0.1:{PORT}"
        )
    if shutil.which("ip") is None:
        raise Refused("--cluster local needs ip(8), which isn't installed: apt-get install iproute2")


def started(pid: int) -> int | None:
    """Return when a process was started, in ticks since the machine was; None if there is no such process."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


def remove(name: str) -> None:
    """Remove a namespace, and end what still runs in it."""
    found = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False)
    for pid in map(int, found.stdout.split()):
        if pid != os.getpid():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


def remove_stale() -> list[str]:
    """Remove the namespaces of runs that have been killed; return their names."""
    removed = []
    for path in sorted(FOLDER.glob("ringlab-*")):
        match = NAME.fullmatch(path.name)
        if match and started(int(match[1])) != int(match[2]):
            remove(path.name)
            removed.append(path.name)
    return removed


class Namespaces:
    """A cluster on this machine, within a `with` block: `scheduler` is its address."""

    def __init__(self, placement: results.Placement, targets_folder: Path | None) -> None:
        """Prepare: servers and loads have their CPUs as on one machine."""
        server, client = tuple(placement.server), tuple(placement.client)
        self.places = [
            Place("server", SERVER, f"{NETWORK}.11", server),
            Place("load1", LOAD, f"{NETWORK}.21", client),
            Place("load2", LOAD, f"{NETWORK}.22", client),
        ]
        self.targets_folder = targets_folder
        self.prefix = f"ringlab-{os.getpid()}-{started(os.getpid())}"
        self.scheduler = f"tcp://{NETWORK}.1:{PORT}"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.folder = Path()
        self.stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        """Make everything; raise Refused."""
        check_rights()
        # What is missing is told of each machine later.
        with contextlib.suppress(generator.GeneratorMissing):
            generator.find()
        with self.stack as stack:
            for name in remove_stale():
                print(f"removed {name}, which a run has left that was killed", file=sys.stderr)
            stack.callback(self.remove)
            self.make()
            self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ringlab-cluster-")))
            stack.callback(self.end)
            self.start()
            stack.enter_context(entered(self.path(SWITCH)))
            self.stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End everything, and remove it."""
        self.stack.close()

    def path(self, name: str) -> Path:
        """Return the file of a namespace."""
        return FOLDER / f"{self.prefix}-{name}"

    def make(self) -> None:
        """Make the namespaces, and connect them."""
        switch = f"{self.prefix}-{SWITCH}"
        ip("netns", "add", switch)
        ip("-n", switch, "link", "set", "lo", "up")
        ip("-n", switch, "link", "add", "name", "bridge", "type", "bridge")
        ip("-n", switch, "address", "add", f"{NETWORK}.1/24", "dev", "bridge")
        ip("-n", switch, "link", "set", "bridge", "up")
        for place in self.places:
            name = f"{self.prefix}-{place.name}"
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", switch, "link", "add", "name", place.name, "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("-n", switch, "link", "set", place.name, "master", "bridge", "up")
            ip("-n", name, "address", "add", f"{place.host}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")

    def remove(self) -> None:
        """Remove the namespaces; their interfaces go with them."""
        for path in sorted(FOLDER.glob(f"{self.prefix}-*")):
            remove(path.name)

    def run(self, namespace: str, name: str, words: Sequence[str]) -> None:
        """Start a program in a namespace."""
        with (self.folder / name).open("wb") as log:
            self.processes[name] = subprocess.Popen(
                [*die_with_parent(), "ip", "netns", "exec", f"{self.prefix}-{namespace}", *words],
                env=dict(os.environ) | {MARK: RUN_MARK},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def start(self) -> None:
        """Start the scheduler and the workers, and wait until they are connected; raise Refused."""
        scheduler = [sys.executable, "-P", "-m", "distributed.cli.dask_scheduler", "--host", f"{NETWORK}.1"]
        self.run(SWITCH, "scheduler", [*scheduler, "--port", str(PORT), "--no-dashboard"])
        for place in self.places:
            words = module_command("ringlab", "worker", "--role", place.role, "--name", place.name)
            words += ["--scheduler", self.scheduler, "--host", place.host]
            words += ["--cpus", ",".join(map(str, place.cpus))] if place.cpus else []
            words += ["--targets-folder", str(self.targets_folder.resolve())] if self.targets_folder else []
            self.run(place.name, place.name, words)
        deadline = time.monotonic() + READY_S
        for place in self.places:
            while "connected to" not in self.said(place.name):
                for name, process in self.processes.items():
                    if process.poll() is not None:
                        raise Refused(f"{name} ended with code {process.returncode}: {last_line(self.said(name))}")
                if time.monotonic() > deadline:
                    raise Refused(
                        f"{place.name} wasn't connected within {READY_S:g} s; its last line: {last_line(self.said(place.name)) or 'none'}"
                    )
                time.sleep(0.05)

    def said(self, name: str) -> str:
        """Return what a process has printed."""
        return (self.folder / name).read_text(errors="replace")

    def end(self) -> None:
        """End all processes."""
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        end_marked()
        for process in self.processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(READY_S)
        # Those that have left the session, too; the namespaces have no others.
        for place in (SWITCH, *(each.name for each in self.places)):
            for pid in pids_in(self.path(place)):
                with contextlib.suppress(psutil.NoSuchProcess):
                    psutil.Process(pid).kill()


def pids_in(namespace: Path) -> list[int]:
    """Return the processes in a namespace, without this one."""
    done = subprocess.run(["ip", "netns", "pids", namespace.name], capture_output=True, text=True, check=False)
    return [int(word) for word in done.stdout.split() if int(word) != os.getpid()]


@contextlib.contextmanager
def entered(namespace: Path) -> Iterator[None]:
    """Be in a network namespace with this thread, and with those that it starts."""
    libc = ctypes.CDLL(None, use_errno=True)

    def enter(descriptor: int) -> None:
        if libc.setns(descriptor, CLONE_NEWNET):
            raise Refused(f"{namespace} can't be entered: {os.strerror(ctypes.get_errno())}")

    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        descriptor = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
        try:
            enter(descriptor)
        finally:
            os.close(descriptor)
        try:
            yield
        finally:
            enter(before)
    finally:
        os.close(before)
