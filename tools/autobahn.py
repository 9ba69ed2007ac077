"""Run Autobahn's test suite for WebSocket against ringloop's HTTP server, and print what passed.

The suite's client is a program for Python 2.7, which `--python` names. It is installed with pip into the folder, once.
The server is an application that echoes, in a process of its own, on each backend in turn. The suite's reports of each
case are in the folder, too: reports/BACKEND/index.html.

A case counts as passed if its behaviour and its closing handshake are "OK", or have nothing to be judged by
("INFORMATIONAL", "NON-STRICT", "UNIMPLEMENTED" for the client's own missing parts).

Exits with 0 if all cases passed, with 1 if one failed, with 2 if the suite can't be run.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from server_process import BACKENDS, HOST, free_port, running, serve

PACKAGE = "autobahntestsuite==25.10.1"
PASSED = {"OK", "INFORMATIONAL", "NON-STRICT", "UNIMPLEMENTED"}


class UsageError(Exception):
    """A reason why the suite cannot be run."""


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Echo the messages of a WebSocket."""
    await receive()
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        await send({**message, "type": "websocket.send"})


def find_python(wanted: str | None) -> str:
    """Return a Python 2.7 that runs: pyenv's stand-ins on the path may not."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = [str(path) for path in sorted(pyenv.glob("versions/2.7.*/bin/python2.7"), reverse=True)]
    for name in [wanted] if wanted else ["python2.7", *found]:
        path = shutil.which(name)
        code = "import sys; sys.exit(sys.version_info[:2] != (2, 7))"
        if path and subprocess.run([path, "-c", code], capture_output=True, check=False).returncode == 0:
            return path
    raise UsageError("Autobahn's test suite needs Python 2.7, which was not found: name it with --python")


def install(python: str, folder: Path) -> Path:
    """Return the folder with the suite's packages."""
    packages = folder / "packages"
    mark = packages / ".installed"
    if not mark.exists():
        print(f"installing {PACKAGE} into {packages}", flush=True)
        shutil.rmtree(packages, ignore_errors=True)
        command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        try:
            subprocess.run([*command, "--target", packages, PACKAGE], check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise UsageError(f"{PACKAGE} can't be installed: {error}") from error
        mark.touch()
    return packages


def run_backend(
    backend: str, python: str, packages: Path, folder: Path, cases: list[str], timeout_s: float
) -> dict[str, dict[str, Any]]:
    """Run the cases on a backend; return what the suite says about each of them."""
    reports = folder / "reports" / backend
    shutil.rmtree(reports, ignore_errors=True)
    port = free_port()
    command = serve(f"{Path(__file__).stem}:app", port, backend, "--lifespan", "off", "--log-level", "error")
    specification = {
        "outdir": str(reports),
        "servers": [{"agent": "ringloop", "url": f"ws://{HOST}:{port}"}],
        "cases": cases,
        "exclude-cases": [],
    }
    spec = folder / f"{backend}.json"
    spec.write_text(json.dumps(specification))
    # The folder's .pth files make its namespace packages.
    program = f"import site; site.addsitedir({str(packages)!r}); from autobahntestsuite.wstest import run; run()"
    log = folder / f"{backend}.log"
    with running(command, port, folder / f"{backend}-server.log"), log.open("w") as output:
        try:
            subprocess.run(
                [python, "-c", program, "-m", "fuzzingclient", "-s", spec],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise UsageError(f"the suite has not ended after {timeout_s:.0f} s: see {log}") from error
    try:
        found = json.loads((reports / "index.json").read_text())
    except OSError as error:
        raise UsageError(f"the suite has made no report: see {log}") from error
    results: dict[str, dict[str, Any]] = found["ringloop"]
    return results


def report(backend: str, results: dict[str, dict[str, Any]]) -> bool:
    """Print the results of a backend. Return whether all cases passed."""
    behaviours = collections.Counter(result["behavior"] for result in results.values())
    failed = [
        (case, result)
        for case, result in results.items()
        if not {result["behavior"], result["behaviorClose"]} <= PASSED
    ]
    counts = ", ".join(f"{count} {name}" for name, count in behaviours.most_common())
    print(f"{backend}: {len(results)} cases: {counts}; {len(failed)} failed")
    for case, result in sorted(failed, key=lambda item: [int(part) for part in item[0].split(".")]):
        print(f"    {case}: {result['behavior']}, closing: {result['behaviorClose']}")
    return bool(results) and not failed


def main() -> int:
    """Return the exit status."""
    parser = argparse.ArgumentParser(description="Run Autobahn's test suite for WebSocket.")
    parser.add_argument("--folder", type=Path, default=Path("target/autobahn"), help="for packages and reports")
    parser.add_argument("--python", help="a Python 2.7; default: python2.7, or the one of pyenv")
    parser.add_argument("--backend", choices=BACKENDS, action="append", help="default: both")
    parser.add_argument("--case", action="append", help="cases to run, such as '1.*'; default: all")
    parser.add_argument("--timeout", type=float, default=3600, help="seconds for each backend")
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        python = find_python(arguments.python)
        packages = install(python, folder)
        passed = True
        for backend in arguments.backend or BACKENDS:
            options = (folder, arguments.case or ["*"], arguments.timeout)
            passed &= report(backend, run_backend(backend, python, packages, *options))
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
