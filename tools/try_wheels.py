"""Try each wheel in a folder on a Python that can run it, in a fresh environment; say which ones could not be tried.

usage: tools/try_wheels.py [--required] [DIR]

DIR is `dist` by default. Wheels for this machine are tried with `python3.X` of the PATH or of pyenv. Others need a tree that
tools/foreign_pythons.sh makes:

    tools/foreign_pythons.sh target/foreign     # CPython for aarch64, from Debian, and for musl, compiled here

`--required` fails if a wheel could not be tried.
"""

from __future__ import annotations

import argparse
import pathlib
import platform
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOREIGN = ROOT / "target" / "foreign"


def runs(python: str, program: str = "") -> bool:
    """Whether this Python runs a program."""
    try:
        return subprocess.run([python, "-c", program], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def native(version: str) -> str:
    """A Python of this version on this machine; empty if there is none that runs."""
    pyenv = pathlib.Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}")
    for candidate in [shutil.which(f"python{version}"), *sorted(map(str, pyenv), reverse=True)]:
        # A shim of pyenv's is there even for a version that is not selected.
        if candidate and runs(candidate, "import venv, ensurepip"):
            return candidate
    return ""


def interpreter(wheel: pathlib.Path) -> tuple[list[str], str]:
    """Arguments for try_wheel.py that name a Python for this wheel, or why there is none."""
    match = re.fullmatch(r"ringloop-[^-]+-cp3(\d+)-\w+-(many|musl)linux_.*_(x86_64|aarch64)\.whl", wheel.name)
    if match is None:
        return [], "its name is not understood"
    version, libc, machine = f"3.{match[1]}", match[2], match[3]
    if libc == "many" and machine == platform.machine():
        python = native(version)
        return (["--python", python], "") if python else ([], f"there is no Python {version} on this machine")
    script = FOREIGN / f"{'glibc' if libc == 'many' else 'musl'}-{machine}" / f"python{version}"
    if not script.exists():
        return [], f"there is no {script} (tools/foreign_pythons.sh)"
    # qemu-user or musl may be missing, as in the Debian tree of tools/pythons.sh.
    return (["--foreign", str(script)], "") if runs(str(script)) else ([], f"{script} does not run here")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--required", action="store_true", help="fail if a wheel could not be tried")
    parser.add_argument("folder", nargs="?", type=pathlib.Path, default=ROOT / "dist", metavar="DIR")
    arguments = parser.parse_args()
    summary, failed, untried = [], 0, 0
    for wheel in sorted(arguments.folder.glob("*.whl")):
        found, reason = interpreter(wheel)
        if not found:
            untried += 1
            summary.append(f"not tried  {wheel.name}: {reason}")
            continue
        print(f"== {wheel.name}", flush=True)
        done = subprocess.run([sys.executable, ROOT / "tools/try_wheel.py", *found, wheel], check=False)
        failed += done.returncode != 0
        summary.append(f"{'FAILED   ' if done.returncode else 'works    '}  {wheel.name}")
    print("\n".join(summary) or f"there is no wheel in {arguments.folder}")
    return 1 if failed or not summary or (arguments.required and untried) else 0


if __name__ == "__main__":
    sys.exit(main())
