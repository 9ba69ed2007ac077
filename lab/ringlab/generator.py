"""The load generator, a native program of its own: finding it, running it, and reading the JSON lines that it prints."""

import contextlib
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from ringlab import sources
from ringlab.manifest import BuildFailed, Tell, run_build
from ringlab.process import SampleFailed, die_with_parent, said

NAME = "ringlab-load"
SCHEMA_VERSION = 1
BUILD_TIMEOUT_S = 900
GRACE_S = 20.0
"""How much longer than planned a load may take."""

OnEvent = Callable[[dict[str, Any]], None]


class GeneratorMissing(Exception):
    """There is no load generator; the message says how to get it."""


def build(lab: Path, tell: Tell = str) -> Path:
    """Build the load generator in the lab's folder, and tell how far it is; raise GeneratorMissing."""
    cargo = shutil.which("cargo") or shutil.which("cargo", path=os.path.expanduser("~/.cargo/bin"))
    if cargo is None:
        raise GeneratorMissing(
            "the load generator must be built, but there is no cargo; install Rust: https://rustup.rs"
        )
    command = [cargo, "build", "--release", "--locked", "--package", NAME]
    shown = " ".join(command)
    # cargo's configuration may put the build anywhere, so cargo is asked for the path.
    asking = [*command, "--message-format=json-render-diagnostics"]
    log = lab / "build" / f"{NAME}.log"
    with tempfile.TemporaryFile() as output:
        try:
            run_build(asking, shown, lab, os.environ, log, BUILD_TIMEOUT_S, tell, output)
        except BuildFailed as error:
            raise GeneratorMissing(f"in {lab}: {error}") from None
        output.seek(0)
        for line in output:
            message = json.loads(line)
            if message.get("executable") and message["target"]["name"] == NAME:
                return Path(message["executable"])
    raise GeneratorMissing(f"`{shown}` built no {NAME} in {lab}: set RINGLAB_LOAD to its path")


def find(tell: Tell = str) -> Path:
    """Return the load generator: $RINGLAB_LOAD, the package's own, that of the sources (built if need be), or one on the PATH.

    `tell` is told how far the build is.
    """
    named = os.environ.get("RINGLAB_LOAD")
    if named:
        if not os.access(named, os.X_OK) or Path(named).is_dir():
            raise GeneratorMissing(f"RINGLAB_LOAD is {named}, which can't be run; unset it, or set it to {NAME}'s path")
        return Path(named)
    if os.access(sources.PROGRAM, os.X_OK):
        return sources.PROGRAM
    lab = sources.folder()
    if lab is not None:
        return build(lab, tell)
    installed = shutil.which(NAME)
    if installed is None:
        raise GeneratorMissing(
            f"there is no {NAME} on the PATH; build it from ringloop's repository, or set RINGLAB_LOAD to its path"
        )
    return Path(installed)


def version(program: Path) -> str:
    """Return the generator's version line; raise GeneratorMissing if it doesn't run."""
    try:
        done = subprocess.run([str(program), "--version"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise GeneratorMissing(f"{program} doesn't run: {error}") from None
    if done.returncode != 0:
        raise GeneratorMissing(f"{program} --version failed: {done.stderr.strip()}")
    return done.stdout.strip()


class Load:
    """The generator while it runs. What is asked of it raises SampleFailed where it ends, says nothing for too long, or babbles."""

    def __init__(
        self,
        program: Path,
        words: list[str],
        on_event: OnEvent | None = None,
        stdin: int = subprocess.PIPE,
    ) -> None:
        """Prepare to start it: `on_event` sees every event, and what it raises ends it."""
        self.command = [*die_with_parent(), str(program), *words]
        self.on_event = on_event
        self.stdin = stdin
        self.lines: list[bytes] = [b""]
        """Those that it has printed and nobody has read yet, and the beginning of another one."""
        self.last: dict[str, Any] = {}
        """The event that it printed last."""

    def __enter__(self) -> Self:
        """Start it."""
        self.stderr = tempfile.TemporaryFile()
        try:
            self.process = subprocess.Popen(
                self.command, stdin=self.stdin, stdout=subprocess.PIPE, stderr=self.stderr, start_new_session=True
            )
        except OSError as error:
            self.stderr.close()
            raise SampleFailed(f"the load generator can't be started: {error}") from None
        return self

    def __exit__(self, *_: object) -> None:
        """End it in any case."""
        self.process.kill()
        self.process.wait()
        for each in (self.process.stdout, self.process.stdin, self.stderr):
            if each is not None:
                with contextlib.suppress(OSError):
                    each.close()

    def until(self, name: str, expected_s: float) -> bool:
        """Wait for an event of this name, and return whether it came before the end."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + expected_s + GRACE_S
        while True:
            while len(self.lines) > 1:
                self.last = read_event(self.lines.pop(0))
                if self.on_event is not None:
                    self.on_event(self.last)
                if self.last["event"] == name:
                    return True
            left_s = deadline - time.monotonic()
            readable, _, _ = select.select([self.process.stdout], [], [], max(0.0, left_s))
            if not readable and left_s <= 0:
                raise SampleFailed(f"the load generator didn't end within {expected_s + GRACE_S:.0f} s")
            if readable:
                data = os.read(self.process.stdout.fileno(), 1 << 20)
                if not data:
                    return False
                self.lines[-1:] = (self.lines[-1] + data).split(b"\n")

    def measure(self, window_s: float) -> bool:
        """Let it measure one more window (--windows-on-stdin); return whether it did, and goes on."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # Its events say how it ended.
            os.write(self.process.stdin.fileno(), b"\n")
        return self.until("window_end", window_s)

    def result(self, expected_s: float, final: str = "result") -> dict[str, Any]:
        """Tell it that nothing more is wanted, wait until it ends, and return its last event, which must be `final`."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.until("", expected_s)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(GRACE_S)
        if self.process.returncode != 0:
            raise SampleFailed(f"the load generator: {said(self.stderr) or f'exit status {self.process.returncode}'}")
        if self.last.get("event") != final:
            raise SampleFailed(f"the load generator ended without a {final}; its last event: {self.last or 'none'}")
        found = self.last.get("schema_version", SCHEMA_VERSION)
        if found != SCHEMA_VERSION:
            raise SampleFailed(
                f"the load generator's results are of version {found}, not {SCHEMA_VERSION}: build both from one revision"
            )
        return self.last


def run(
    program: Path,
    words: list[str],
    expected_s: float,
    on_event: OnEvent | None = None,
    final: str = "result",
) -> dict[str, Any]:
    """Run the generator to its end and return its last event, which must be `final`; the rest is as for Load."""
    with Load(program, words, on_event, subprocess.DEVNULL) as load:
        return load.result(expected_s, final)


def read_event(line: bytes) -> dict[str, Any]:
    """Return the event of a line; raise SampleFailed."""
    try:
        event = json.loads(line)
    except ValueError:
        event = None
    if not isinstance(event, dict) or "event" not in event:
        raise SampleFailed(
            f"the load generator printed a line that is not an event: {line[:100].decode(errors='replace')}"
        )
    return event
