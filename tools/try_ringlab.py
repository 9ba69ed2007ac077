"""Install ringlab from a wheel or a source distribution in a fresh virtual environment, and measure with it outside of the clone.

usage: tools/try_ringlab.py [--python PYTHON] PACKAGE...

The generator of a wheel must be the one inside. From the source distribution, cargo builds it. What is measured is a server in C,
briefly: the figures mean nothing. A wheel for another machine is left out, and named.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import platform
import subprocess
import sys
import tempfile

CELL = "http/50/closed"
MEASURE = ("run", CELL, "--targets", "c-epoll", "--rounds", "2", "--seconds", "0.1", "--if-busy", "beside")
PATIENCE_S = 1200


def environment_of(folder: pathlib.Path, *, may_build: bool) -> dict[str, str]:
    """Return the environment as a user has it: no variables that point into the clone, and caches that are empty."""
    names = [name for name in os.environ if name.startswith(("RINGLAB", "RINGLOOP", "XDG", "PYTHON"))]
    environment = {key: value for key, value in os.environ.items() if key not in names}
    environment |= {
        "HOME": str(folder),
        "CARGO_HOME": os.environ.get("CARGO_HOME", str(pathlib.Path.home() / ".cargo")),
    }
    if not may_build:
        # Nothing may need cargo. Its folder can't be left out of PATH: Debian's is in /usr/bin, with the shell and the C compiler.
        cargo = folder / "without" / "cargo"
        cargo.parent.mkdir()
        cargo.write_text("#!/bin/sh\nexit 1\n")
        cargo.chmod(0o755)
        environment["PATH"] = f"{cargo.parent}{os.pathsep}{environment['PATH']}"
    return environment


def attempt(package: pathlib.Path, python: str, folder: pathlib.Path) -> None:
    """Install the package in an empty folder, and use it there. Raise CalledProcessError, or AssertionError."""
    subprocess.run([python, "-m", "venv", folder / "venv"], check=True)
    programs = folder / "venv" / "bin"
    pip = [str(programs / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    subprocess.run([*pip, str(package.resolve())], check=True)
    environment = environment_of(folder, may_build=package.suffix != ".whl")
    for arguments in (["--version"], ["targets"], [*MEASURE, "--output", "results"]):
        command = [str(programs / "ringlab"), *arguments]
        subprocess.run(command, cwd=folder, env=environment, check=True, timeout=PATIENCE_S, stdout=subprocess.DEVNULL)
    result = json.loads((folder / "results" / "result.json").read_text())
    samples = [sample["status"] for cell in result["cells"] for sample in cell["samples"]]
    assert "measured" in samples, f"no sample of {CELL} is valid: {samples}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--python", default=sys.executable, help="default: the one that runs this")
    parser.add_argument("packages", nargs="+", type=pathlib.Path, metavar="PACKAGE")
    arguments = parser.parse_args()
    failed = 0
    for package in arguments.packages:
        if package.suffix == ".whl" and not package.stem.endswith(platform.machine()):
            print(f"not tried  {package.name}: it is for another machine")
            continue
        with tempfile.TemporaryDirectory(prefix="try-ringlab-") as folder:
            try:
                attempt(package, arguments.python, pathlib.Path(folder))
            except (subprocess.SubprocessError, AssertionError) as error:
                print(f"FAILED     {package.name}: {error}")
                failed += 1
            else:
                print(f"works      {package.name}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
