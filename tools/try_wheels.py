"""Try each of ringloop's wheels in a folder on a Python that can run it, and the source distribution on each Python, always in a
fresh environment; say which ones could not be tried.

usage: tools/try_wheels.py [DIR] [--python 3.14...] [--required | --release] [--tests ARGUMENTS]

DIR is `dist` by default. What is for this machine and glibc is tried with `python3.X` of the PATH or of pyenv. Wheels for another
machine or for musl need the Pythons that `make foreign-pythons` provides.

`--python` tries only what is for these versions. `--tests` is that of tools/try_wheel.py. Exits with 1 if something does not work,
if nothing could be tried, and with `--required` if anything could not.

`--release` leaves out what has worked before, here or in the Debian tree of tools/pythons.sh, with the very same file; target/tried
has the record. It fails unless everything has worked except what MAY_STAY_UNTRIED names. That list is for a release on x86-64.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import wheels

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOREIGN = ROOT / "target" / "foreign"
TRIED = ROOT / "target" / "tried"
"""A line for each trial that has worked."""
FOREIGN_PLATFORMS = ("glibc aarch64", "musl x86_64", "musl aarch64")
MAY_STAY_UNTRIED = frozenset(
    # `make foreign-pythons` provides neither 3.12, which no release of Debian has, nor a free-threaded Python.
    {f"{version} {platform}" for version in ("3.12", "3.14t", "3.15t") for platform in FOREIGN_PLATFORMS}
    # On a free-threaded 3.15, nothing has been tried so far: its wheels are only built.
    | {"3.15t glibc x86_64", "3.15t source"}
)
"""The trials that a release can do without: a version of Python, and the C library and machine of a wheel."""
LIBCS = {"many": "glibc", "musl": "musl"}


def runs(python: str, program: str = "") -> bool:
    """Return whether this Python runs a program."""
    try:
        return subprocess.run([python, "-c", program], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def native(version: str) -> str:
    """Return a Python of this version on this machine; empty if there is none that runs."""
    # pyenv calls a free-threaded one 3.14.2t.
    number = version.removesuffix("t")
    pyenv = pathlib.Path.home().glob(f".pyenv/versions/{number}.*/bin/python{version}")
    for candidate in [shutil.which(f"python{version}"), *sorted(map(str, pyenv), reverse=True)]:
        # A shim of pyenv's is there even for a version that is not selected.
        if candidate and runs(candidate, "import venv, ensurepip"):
            return candidate
    return ""


@dataclass(frozen=True)
class Trial:
    """A package, and the Python that it is tried on."""

    package: pathlib.Path
    version: str
    """Of the Python, such as 3.14, or 3.14t without the GIL."""
    interpreter: tuple[str, ...]
    """Arguments for try_wheel.py that name this Python; none if there is none."""
    reason: str = ""
    """Why there is none."""

    def __str__(self) -> str:
        """Say what is tried on what."""
        return f"{self.package.name} on CPython {self.version}" if self.version else self.package.name

    @property
    def subject(self) -> str:
        """Return its name in MAY_STAY_UNTRIED."""
        match = wheel_name(self.package)
        return f"{self.version} {LIBCS[match[3]]} {match[4]}" if match else f"{self.version} source"

    def record(self) -> str:
        """Return the line of the record that says that it has worked."""
        return f"{hashlib.sha256(self.package.read_bytes()).hexdigest()}  {self}"

    def run(self, tests: str) -> bool:
        """Try it. Return True if it works."""
        command = [sys.executable, str(ROOT / "tools/try_wheel.py"), *self.interpreter]
        command += [f"--tests={tests}"] if tests else []
        environment = dict(os.environ)
        if self.package.suffix == ".gz":
            # All Pythons share what doesn't depend on them, and what is built only needs to work.
            folder = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve() / "sdist"
            environment |= wheels.FAST | {"CARGO_TARGET_DIR": str(folder)}
        return subprocess.run([*command, str(self.package)], env=environment, check=False).returncode == 0


def wheel_name(wheel: pathlib.Path) -> re.Match[str] | None:
    """Return the parts of a wheel's name: minor version, `t` if free-threaded, C library, machine."""
    return re.fullmatch(r"ringloop-[^-]+-cp3(\d+)-cp3\1(t?)-(many|musl)linux_.*_(x86_64|aarch64)\.whl", wheel.name)


def on_this_machine(package: pathlib.Path, version: str) -> Trial:
    """Return a package that is for this machine's own Python."""
    python = native(version)
    if not python:
        return Trial(package, version, (), f"there is no Python {version} on this machine")
    return Trial(package, version, ("--python", python))


def trial_of(wheel: pathlib.Path) -> Trial:
    """Return how a wheel is tried."""
    match = wheel_name(wheel)
    if match is None:
        return Trial(wheel, "", (), "its name is not understood")
    version, libc, machine = f"3.{match[1]}{match[2]}", LIBCS[match[3]], match[4]
    if libc == "glibc" and machine == platform.machine():
        return on_this_machine(wheel, version)
    script = FOREIGN / f"{libc}-{machine}" / f"python{version}"
    if not script.exists():
        return Trial(wheel, version, (), f"there is no {script} (make foreign-pythons)")
    # qemu-user or musl may be missing, as in the Debian tree of tools/pythons.sh.
    if not runs(str(script)):
        return Trial(wheel, version, (), f"{script} does not run here")
    # A Python of another machine can't make an environment, because it isn't started by its own name.
    return Trial(wheel, version, ("--python" if machine == platform.machine() else "--foreign", str(script)))


def trials(folder: pathlib.Path) -> Iterator[Trial]:
    """Yield all that there is to try in a folder."""
    for wheel in sorted(folder.glob("ringloop-*.whl")):
        yield trial_of(wheel)
    for source in sorted(folder.glob("ringloop-*.tar.gz")):
        for version in wheels.PYTHONS:
            yield on_this_machine(source, version)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--python", nargs="+", choices=wheels.PYTHONS, default=wheels.PYTHONS, help="default: all")
    strict = parser.add_mutually_exclusive_group()
    strict.add_argument("--required", action="store_true", help="fail if something could not be tried")
    strict.add_argument(
        "--release",
        action="store_true",
        help="try what has not worked yet; fail if more is left than a release may leave",
    )
    parser.add_argument(
        "--tests", default="", metavar="ARGUMENTS", help="also run pytest with these, in the repository"
    )
    parser.add_argument("folder", nargs="?", type=pathlib.Path, default=ROOT / "dist", metavar="DIR")
    arguments = parser.parse_args()
    if arguments.release and (arguments.tests or list(arguments.python) != list(wheels.PYTHONS)):
        parser.error("--release is for all of it, and runs no tests")
    before = set(TRIED.read_text().splitlines()) if arguments.release and TRIED.exists() else set()
    summary, failed, untried, tried = [], 0, 0, 0
    for trial in trials(arguments.folder):
        if trial.version and trial.version not in arguments.python:
            continue
        if trial.record() in before:
            tried += 1
            summary.append(f"works      {trial}, tried before")
            continue
        if trial.reason:
            allowed = arguments.release and trial.subject in MAY_STAY_UNTRIED
            untried += not allowed
            summary.append(f"{'left out ' if allowed else 'not tried'}  {trial}: {trial.reason}")
            continue
        print(f"== {trial}", flush=True)
        works = trial.run(arguments.tests)
        tried += 1
        failed += not works
        summary.append(f"{'works    ' if works else 'FAILED   '}  {trial}")
        if works:
            TRIED.parent.mkdir(exist_ok=True)
            with TRIED.open("a") as record:
                record.write(f"{trial.record()}\n")
    print("\n".join(summary) or f"there is nothing to try in {arguments.folder}")
    return 1 if failed or not tried or ((arguments.required or arguments.release) and untried) else 0


if __name__ == "__main__":
    sys.exit(main())
