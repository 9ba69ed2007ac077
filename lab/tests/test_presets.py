"""The cells of the presets, small, with the real programs: that each cell can be measured, not what comes out.

`make test-long` runs it. ringloop, asyncio and the floors must be measured in every cell; other loops may fail.
"""

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from ringlab import manifest, preflight, results, workloads

SMALL = ("--quick", "--rounds", "1", "--no-again", "--no-system-calls")
SECONDS, SECONDS_AGAIN = 0.1, 2.0
TRIES_AGAIN = 4
AGAIN_LIMIT_S = 400
"""After this no other try begins: what hinders samples for this time isn't the machine."""
RUN_TIMEOUT_S = 1500
pytestmark = pytest.mark.timeout(2 * RUN_TIMEOUT_S + AGAIN_LIMIT_S)

LOADED = (
    "loops/echo/protocol/100KB/50",
    "loops/echo/streams/1KB/50",
    "loops/echo/sock/1KB/50",
    "loops/echo/buffered/1KB/50",
    "loops/tls/protocol/1KB/50",
    "loops/tls/protocol/64KB/50",
    "loops/udp/1KB/50",
    "loops/unix/protocol/1KB/50",
    "loops/http/uvicorn/50",
    "loops/http/aiohttp/50",
    "loops/wait/*",
)
OPERATIONS = tuple(
    plan.name for plan in workloads.CELLS if plan.workload == "loops" and plan.subject_words[0] == "micro"
)
RUNS = {
    "loops": ((*OPERATIONS, *LOADED), ("loops",), ("asyncio", "ringloop", "ringloop-epoll", "floor")),
    "files": (("files",), ("files",), ("files-blocking", "files-ringloop", "files-ringloop-epoll")),
    "native": (
        ("echo/framed/100KB/50", "echo/framed/1KB/50/workers-2"),
        ("ringloop-rust-*", "c-epoll"),
        ("ringloop-rust-io_uring", "ringloop-rust-epoll", "c-epoll"),
    ),
}
"""By preset: cells, targets, and the arms that must be measured."""


def ringlab(*words: object) -> None:
    """Run the command; nothing that was measured is told by the result."""
    command = [sys.executable, "-m", "ringlab", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False)
    assert done.returncode in (0, 1), f"{' '.join(command[2:])}:\n{done.stdout}\n{done.stderr}"


def problems(result: results.Result, required: Sequence[str]) -> dict[tuple[str, str], str]:
    """Return why required arms have no figures, by cell and arm."""
    skipped = {arm.name: arm.skipped for arm in result.arms if arm.skipped}
    found = {}
    for cell in result.cells:
        plan = workloads.BY_NAME[cell.name]
        for arm in required:
            served = plan.served_by(next(each for each in manifest.discover() if each.name == arm))
            if not served or cell.left_out or cell.measured(arm):
                continue
            reasons = [reason for sample in cell.samples if sample.arm == arm for reason in sample.reasons]
            found[cell.name, arm] = skipped.get(arm) or "; ".join(reasons) or "it wasn't tried"
    return found


@pytest.mark.parametrize("preset", RUNS)
def test_every_cell_is_measured(preset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in preflight.DEBUG_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    cells, targets, required = RUNS[preset]
    # A quick run ends builds that take too long.
    ringlab("targets", "--build", "--targets", ",".join(targets))
    folder = tmp_path / "first"
    ringlab("run", *cells, "--targets", ",".join(targets), *SMALL, "--seconds", SECONDS, "--output", folder)
    result = results.Result.read(folder / "result.json")
    missing = problems(result, required)
    skipped = {arm.name: arm.skipped for arm in result.arms}
    # A machine may refuse io_uring, and then the arm isn't there.
    missing = {key: why for key, why in missing.items() if not ("io_uring" in key[1] and skipped[key[1]])}
    begun = time.monotonic()
    for number in range(TRIES_AGAIN):
        # A busy machine spoils short windows: what fails in long ones, too, is at fault itself.
        for arm in dict.fromkeys(arm for _, arm in missing):
            if time.monotonic() - begun < AGAIN_LIMIT_S:
                again = tmp_path / f"{arm}-{number}"
                names = [cell for cell, each in missing if each == arm]
                words = ("--targets", arm, *SMALL, "--seconds", SECONDS_AGAIN, "--output", again)
                ringlab("run", *names, *words)
                still = problems(results.Result.read(again / "result.json"), [arm])
                missing = {key: still.get(key, why) for key, why in missing.items() if key[1] != arm or key in still}
    assert not missing, "\n".join(f"{cell}: {arm}: {why}" for (cell, arm), why in missing.items())
    left_out = {cell.name: cell.left_out for cell in result.cells if cell.left_out}
    assert all("install" in why for why in left_out.values()), left_out
