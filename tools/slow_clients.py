"""Attack `ringloop serve` with slowhttptest's slow clients, and demand that it serves others and ends their connections.

Three attacks on each backend: heads that never end, bodies that never end, and responses that are read a few bytes at a
time. Deadlines are short, so that a run takes two minutes. While an attack runs, another client asks without
end. Afterwards the server must have no connection left.

Needs slowhttptest (Debian's package). Exits with 0 if all is well, with 1 if not, with 2 if it can't be run.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from server_process import BACKENDS, HOST, free_port, running, serve

CONNECTIONS = 300
DEADLINE_S = 4
# Of slowhttptest's run. Followup data comes more often than the deadline: only a limit on the whole helps, or on progress.
LENGTH_S = 16
ATTACKS = {
    "slow heads": ["-H", "-i", "1", "-x", "8"],
    # One piece of data in a longer time than the deadline: any progress moves a body's deadline.
    "slow bodies": ["-B", "-i", str(2 * DEADLINE_S), "-s", "100000", "-x", "8"],
    # One read in a longer time than the deadline.
    "slow reading": ["-X", "-n", str(2 * DEADLINE_S), "-w", "1", "-y", "64", "-z", "32", "-k", "3"],
}
LARGE = bytes(8 << 20)


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Read the body, and answer with 8 MiB for the path /large."""
    while (message := await receive())["type"] == "http.request" and message.get("more_body"):
        pass
    body = LARGE if scope["path"] == "/large" else b"hello"
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


def connections(pid: int) -> int:
    """Return how many sockets a process has."""
    count = 0
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            count += os.readlink(descriptor).startswith("socket:")
    return count


def attack(name: str, backend: str, folder: Path) -> list[str]:
    """Return what is wrong after an attack."""
    wrong = []
    deadlines = [f"--timeout-{of}={DEADLINE_S}" for of in ("head", "body", "write")]
    port = free_port()
    command = serve(f"{Path(__file__).stem}:app", port, backend, "--lifespan", "off", "--no-access-log", *deadlines)
    with running(command, port, folder / "server.log") as server:
        pid = server.pid
        before = connections(pid)
        url = f"http://{HOST}:{port}"
        target = f"{url}/large" if name == "slow reading" else f"{url}/"
        rate = ["-c", str(CONNECTIONS), "-r", "150", "-l", str(LENGTH_S), "-p", "5", "-u", target]
        command = ["slowhttptest", *ATTACKS[name], *rate, "-g", "-o", str(folder / "statistics"), "-v", "1"]
        answers, most, last, slowest = 0, 0, 0, 0.0
        with (
            (folder / "attack.log").open("wb") as output,
            subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output) as attacker,
        ):
            try:
                while attacker.poll() is None:
                    begun = time.monotonic()
                    try:
                        with urllib.request.urlopen(f"{url}/", timeout=30) as response:
                            if response.read() != b"hello":
                                wrong.append("a wrong answer to the other client")
                        answers += 1
                    except OSError as error:
                        wrong.append(f"the other client: {error}")
                    slowest = max(slowest, time.monotonic() - begun)
                    last = connections(pid) - before
                    most = max(most, last)
                    if time.monotonic() - begun > 4 * LENGTH_S:
                        break
                    time.sleep(0.02)
            finally:
                if attacker.poll() is None:
                    attacker.kill()
        report = re.sub(r"\x1b\[[0-9;]*m", "", (folder / "attack.log").read_text())
        if re.search(r"service available:\s*NO", report):
            wrong.append("slowhttptest says that the service was not available")
        if last > 5:  # slowhttptest opens none after the first seconds; the other client's may be there.
            wrong.append(f"{last} connections outlived the deadlines")
        if most < CONNECTIONS // 3:
            wrong.append(f"the attack had only {most} connections: it proves nothing")
        end = time.monotonic() + 4 * DEADLINE_S
        while (left := connections(pid) - before) > 0 and time.monotonic() < end:
            time.sleep(0.1)
        if left > 0:
            wrong.append(f"{left} connections are left")
        log = (folder / "server.log").read_text()
        if "Traceback" in log:
            wrong.append(log)
        print(
            f"{backend}: {name}: {most} connections at most, {last} before its end; {answers} answers to the other client, "
            f"the slowest in {slowest * 1000:.0f} ms; {'; '.join(wrong) or 'ok'}",
            flush=True,
        )
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", action="append", choices=BACKENDS)
    arguments = parser.parse_args()
    if shutil.which("slowhttptest") is None:
        print("slowhttptest is not installed: apt-get install slowhttptest", file=sys.stderr)
        return 2
    failed = False
    for backend in arguments.backend or BACKENDS:
        for name in ATTACKS:
            with tempfile.TemporaryDirectory() as folder:
                try:
                    failed |= bool(attack(name, backend, Path(folder)))
                except RuntimeError as error:
                    print(error, file=sys.stderr)
                    return 2
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
