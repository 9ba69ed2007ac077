"""Start the programs of lab/targets from their manifests, for the tests of the programs."""

import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

TARGETS = Path(__file__).resolve().parents[1] / "targets"
BUILD = Path(os.environ.get("RINGLAB_BUILD") or TARGETS / ".build").resolve()
DETECT_TIMEOUT_S = 60
BUILD_TIMEOUT_S = 600


@dataclass(frozen=True)
class Arm:
    """One way to run a target: a variant of its, or itself where it has none."""

    name: str
    folder: Path
    manifest: dict[str, Any] = field(hash=False, compare=False)
    variant: dict[str, Any] = field(hash=False, compare=False)

    @property
    def declares(self) -> dict[str, Any]:
        return dict(self.manifest.get("declares", {}) | self.variant.get("declares", {}))

    @property
    def workloads(self) -> set[str]:
        served = {kind for kind in ("echo", "http", "bind", "loop") if kind in self.manifest["run"]}
        return served & set(self.variant.get("workloads", served))

    @property
    def environment(self) -> dict[str, str]:
        own: dict[str, str] = self.manifest["run"].get("environment", {}) | self.variant.get("environment", {})
        return os.environ | own

    @property
    def stop_timeout_s(self) -> float:
        return float(self.manifest.get("stop", {}).get("timeout_s", 5))

    @property
    def stop_signal(self) -> signal.Signals:
        return signal.Signals[self.manifest.get("stop", {}).get("signal", "SIGTERM")]

    def expand(self, text: str, **more: object) -> str:
        """Put in what stands in braces."""
        binary = self.manifest.get("detect", {}).get("binary", "")
        places: dict[str, object] = {
            "build": BUILD / self.folder.name,
            "target": self.folder,
            "python": os.environ.get("RINGLAB_PYTHON") or sys.executable,
            "binary": os.environ.get(binary, ""),
        }
        return text.format(**(places | more))

    def command(self, kind: str, **more: object) -> list[str]:
        """The words of the command that serves `kind`."""
        more.setdefault("workers", self.declares.get("workers", 1))
        return [*shlex.split(self.expand(self.manifest["run"][kind], **more)), *self.variant.get("arguments", [])]


def arms() -> list[Arm]:
    """Every arm of every target."""
    found = []
    for path in sorted(TARGETS.glob("*/target.toml")):
        manifest = tomllib.loads(path.read_text())
        for variant in manifest.get("variants", [{"name": manifest["name"]}]):
            found.append(Arm(variant["name"], path.parent, manifest, variant))
    return found


def missing(arm: Arm) -> str:
    """Why the arm can't run here, and the command that changes that; empty if it can."""
    for detect in (arm.manifest.get("detect", {}), arm.variant.get("detect", {})):
        advice = f"install it with: {arm.expand(detect['install'])}" if "install" in detect else ""
        needs = arm.expand(detect.get("needs", ""))
        if "binary" in detect and not os.access(os.environ.get(detect["binary"], ""), os.X_OK):
            return f"needs {needs}: {detect['binary']} names no program; {advice}"
        for command in detect.get("commands", []):
            done = subprocess.run(
                arm.expand(command), shell=True, cwd=arm.folder, stdin=subprocess.DEVNULL, capture_output=True,
                text=True, timeout=DETECT_TIMEOUT_S, check=False,
            )  # fmt: skip
            if done.returncode != 0:
                said = (done.stderr.strip() or done.stdout.strip() or f"exit status {done.returncode}").splitlines()[-1]
                return f"needs {needs}: {said}; {advice}"
    return ""


@cache
def build(folder: Path) -> None:
    """Build a target whose artefact is older than a file of its folder."""
    arm = next(arm for arm in arms() if arm.folder == folder)
    instructions = arm.manifest.get("build")
    if not instructions:
        return
    artefact = Path(arm.expand(instructions["artefact"]))
    sources = max(path.stat().st_mtime for path in folder.rglob("*") if path.is_file())
    if artefact.exists() and artefact.stat().st_mtime >= sources and not instructions.get("always"):
        return
    (BUILD / folder.name).mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        arm.expand(instructions["command"]), shell=True, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, timeout=BUILD_TIMEOUT_S, check=False,
    )  # fmt: skip
    if done.returncode != 0 or not artefact.exists():
        raise RuntimeError(f"building {folder.name} failed:\n{done.stdout[-4000:]}")


@dataclass
class Server:
    """A program that listens."""

    process: "subprocess.Popen[str]"
    port: int

    def stop(self, arm: Arm) -> int:
        """Ask it to end, and return its exit status; a TimeoutExpired if it doesn't in time."""
        self.process.send_signal(arm.stop_signal)
        return self.process.wait(arm.stop_timeout_s)


@contextmanager
def started(arm: Arm, kind: str, **more: object) -> Iterator[Server]:
    """Start the program that serves `kind`, wait until it listens, and see to it that it is gone afterwards."""
    with tempfile.TemporaryFile("w+") as complaints:
        process = subprocess.Popen(
            arm.command(kind, port=0, **more), cwd=arm.folder, env=arm.environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=complaints, text=True,
        )  # fmt: skip
        # A program that never gets ready is ended, which ends the reading of its output below.
        timer = threading.Timer(float(arm.manifest.get("ready", {}).get("timeout_s", 10)), process.kill)
        timer.start()
        try:
            port = wait_until_ready(process, complaints)
            timer.cancel()
            yield Server(process, port)
        finally:
            timer.cancel()
            process.kill()
            process.wait()
            assert process.stdout
            process.stdout.close()


def wait_until_ready(process: "subprocess.Popen[str]", complaints: Any) -> int:
    """Return the port that the program says it listens on."""
    assert process.stdout
    for line in process.stdout:
        if found := re.match(r"listening on \S*:(\d+)", line):
            return int(found[1])
    process.wait()
    complaints.seek(0)
    raise RuntimeError(f"{process.args!r} never listened: status {process.returncode}\n{complaints.read()[-2000:]}")
