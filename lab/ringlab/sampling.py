"""Stacks of live processes, as perf samples them."""

import re
import shutil
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from ringlab import manifest, results
from ringlab.process import SampleFailed

FREQUENCY = 499
"""Per second and CPU; no multiple of anything, so that it doesn't keep step with timers."""
START_TIMEOUT_S = 30.0
SCRIPT_TIMEOUT_S = 300.0


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
        words = ["perf", "record", "-q", "-F", str(FREQUENCY), "-g", "-o", str(self.data)]
        words += ["-p", ",".join(map(str, self.pids))]
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
    """Return the stacks that perf recorded, as text; raise SampleFailed."""
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
