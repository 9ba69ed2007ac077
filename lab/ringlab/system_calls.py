"""System calls and instructions of live processes: perf counts both and disturbs little, strace counts calls and disturbs much.

perf counts in intervals, so that its rate is that of the window however long it took to attach; strace is there before the load
begins, and its count is taken over everything that was done.
"""

import contextlib
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ringlab.process import SampleFailed, die_with_parent

INTERVAL_MS = 100
SYSTEM_CALLS = "raw_syscalls:sys_enter"
WINDOW_S_MIN = 1.0
"""In less, perf ends too few intervals."""
ATTACH_TIMEOUT_S = 10.0
END_TIMEOUT_S = 10


class Counter:
    """Counts system calls of processes within a `with` block, and with perf other events as well."""

    def __init__(self, tool: str, pids: Sequence[int], events: Sequence[str] = (SYSTEM_CALLS,)) -> None:
        """Prepare to count by `tool`, perf or strace."""
        self.events = events
        self.tool = tool
        self.pids = [str(pid) for pid in pids]
        self.output = tempfile.NamedTemporaryFile(mode="r", prefix="ringlab-")  # noqa: SIM115 (closed in __exit__)
        self.process: subprocess.Popen[bytes] | None = None
        self.counted: dict[str, float] = {}
        """By event: per second (perf), or in all (strace)."""

    def __enter__(self) -> Self:
        """Begin, if the tool must be there from the beginning."""
        if self.tool == "strace":
            words = ["strace", "-f", "-c", "-o", self.output.name]
            for pid in self.pids:
                words += ["-p", pid]
            try:
                self.start(words)
                self.wait_attached()
            except BaseException:
                self.end()
                self.output.close()
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End counting."""
        try:
            self.end()
            if kind is None:
                self.counted = self.read()
        finally:
            self.output.close()

    def wait_attached(self) -> None:
        """Wait until every thread is traced, as far as that comes."""
        deadline = time.monotonic() + ATTACH_TIMEOUT_S
        while time.monotonic() < deadline and not all(is_traced(pid) for pid in self.pids):
            time.sleep(0.01)

    def start(self, words: list[str]) -> None:
        """Start the tool."""
        self.process = subprocess.Popen(
            [*die_with_parent(), *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def end(self) -> None:
        """Let the tool write what it has counted."""
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def see(self, event: dict[str, Any]) -> None:
        """Take an event of the load generator: perf counts from the window's begin to its end."""
        if self.tool != "perf":
            return
        if event["event"] == "window_start":
            words = ["perf", "stat", "-x", ",", "-I", str(INTERVAL_MS), "-o", self.output.name]
            self.start([*words, "-e", ",".join(self.events), "-p", ",".join(self.pids)])
        elif event["event"] == "window_end":
            self.end()

    def read(self) -> dict[str, float]:
        """Return each event per second (perf), or all calls (strace); raise SampleFailed."""
        text = self.output.read()
        if self.tool == "perf":
            return {event: events_per_s(text, event) for event in self.events}
        return {SYSTEM_CALLS: calls_in_all(text)}


def per_operation(
    tool: str, counted: Mapping[str, float], operations: float, window_s: float, event: str = SYSTEM_CALLS
) -> float:
    """Return how often an event came in one operation, of what a counter has counted."""
    count = counted.get(event)
    if not count or operations <= 0:
        raise SampleFailed("nothing was counted")
    return count / operations * (window_s if tool == "perf" else 1)


def is_traced(pid: str) -> bool:
    """Return whether every thread of a process is traced (or gone)."""
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        with contextlib.suppress(OSError):
            if "TracerPid:\t0\n" in status.read_text():
                return False
    return True


def events_per_s(text: str, event: str = SYSTEM_CALLS) -> float:
    """Read what `perf stat -I -x ,` wrote of an event: a line for each interval."""
    times, counts = [], []
    for line in text.splitlines():
        fields = line.split(",")
        # A processor with cores of two kinds has "cpu_core/instructions/"; that of the other kind isn't counted.
        if len(fields) > 3 and event.partition(":")[0] in fields[3]:
            with contextlib.suppress(ValueError):
                time_s, count = float(fields[0]), float(fields[1])
                times.append(time_s)
                counts.append(count)
    # The first interval holds the attaching, and the last one was cut short.
    if len(counts) < 4:
        raise SampleFailed("perf counted for too short a time; use a longer window")
    return sum(counts[1:-1]) / (times[-2] - times[0])


def calls_in_all(text: str) -> float:
    """Read the table that `strace -c` wrote: the sum of the column 'calls', which not every version fills in alike."""
    end = None
    for line in text.splitlines():
        if end is None and " calls" in line:
            end = line.index(" calls") + len(" calls")
        elif end is not None and line.rstrip().endswith(" total"):
            return float(line[:end].split()[-1])
    raise SampleFailed("strace counted nothing")
