"""Build ringlab's packages into `dist`: a wheel with the load generator for each machine, and the source distribution.

usage: tools/ringlab_packages.py [--here] [--fast] [--output DIR]

zig links the generator against glibc 2.28, and Rust's standard library comes from where tools/wheels.py takes it. A machine that
has none is left out with a message, and the program exits with 77. Each wheel is audited: it has the licences of what is linked into
the generator, and auditwheel agrees with its platform tag.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import re
import stat
import subprocess
import sys
import zipfile

import audit_wheel
import wheels

ROOT = pathlib.Path(__file__).resolve().parent.parent
MACHINES = ("x86_64", "aarch64")
GLIBC = "2.28"
PROGRAM = "ringlab/bin/ringlab-load"
CONTENTS = (
    PROGRAM,
    "ringlab/py.typed",
    "ringlab/sources.tar.gz",
    "licenses/LICENSE-APACHE",
    "licenses/LICENSE-MIT",
    "licenses/THIRD-PARTY-LICENSES",
    "sboms/ringlab.cdx.json",
)
"""The files that a wheel must have; the last ones in the folder of its metadata."""


def rust_target(machine: str) -> str:
    """Return the generator's target. On musl, cargo builds the generator where ringlab is installed."""
    return f"{machine}-unknown-linux-gnu"


def build_generator(folder: pathlib.Path, machine: str, toolchain: wheels.Toolchain, fast: bool) -> pathlib.Path:
    """Build the load generator. Return its path."""
    target = rust_target(machine)
    plan = toolchain.plan(target)
    environment = wheels.build_environment(toolchain, plan, fast) | {"CARGO_PROFILE_RELEASE_STRIP": "true"}
    command = ["cargo", "zigbuild", "--release", "--locked", "--quiet", "--package", "ringlab-load"]
    command += ["--target", f"{target}.{GLIBC}", "--target-dir", str(folder)]
    if plan == "built":
        command += ["-Z", f"build-std={wheels.BUILT_STD}"]
    subprocess.run(command, cwd=ROOT / "lab", env=environment, check=True)
    return folder / target / "release" / "ringlab-load"


def audit(wheel: pathlib.Path) -> list[str]:
    """Return what is wrong with a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        entries = {re.sub(r"^[^/]*\.dist-info/", "", entry.filename): entry for entry in archive.infolist()}
    found = [f"it has no {name}" for name in CONTENTS if name not in entries]
    program = entries.get(PROGRAM)
    if program and not program.external_attr >> 16 & stat.S_IXUSR:
        found.append(f"{PROGRAM} cannot be executed")
    platform, said = audit_wheel.shown_platform(wheel)
    if platform != wheel.stem.rpartition("-")[2]:
        found.append(f"auditwheel does not agree with its tag: {said}")
    return found


def package(output: pathlib.Path, kind: str, variables: dict[str, str]) -> None:
    """Build one package, "wheel" or "sdist"; `variables` are those of lab/hatch_build.py."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", kind, "--directory", str(output)]
    subprocess.run(command, cwd=ROOT / "lab", env=os.environ | variables, check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--here", action="store_true", help="only the wheel for this machine")
    parser.add_argument("--fast", action="store_true", help="hardly optimised: to try the build, not to publish")
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "dist", metavar="DIR", help="default: dist")
    arguments = parser.parse_args()
    output = arguments.output.resolve()
    folder = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
    toolchain = wheels.Toolchain.find()
    sbom = folder / "ringlab.cdx.json"
    command = [sys.executable, str(ROOT / "tools/licences.py"), "--package", "ringlab", "--check", "--sbom", str(sbom)]
    subprocess.run(command, check=True)
    lacking = 0
    for machine in (os.uname().machine,) if arguments.here else MACHINES:
        if not toolchain.plan(rust_target(machine)):
            print(f"ringlab on {machine}: left out: {wheels.remedy(rust_target(machine))}", flush=True)
            lacking = wheels.LACKING
            continue
        program = build_generator(folder, machine, toolchain, arguments.fast)
        platform = f"manylinux_{GLIBC.replace('.', '_')}_{machine}"
        variables = {"PROGRAM": str(program), "PLATFORM": platform, "SBOM": str(sbom)}
        package(output, "wheel", {f"RINGLAB_LOAD_{name}": value for name, value in variables.items()})
        for wheel in output.glob(f"ringlab-*-{platform}.whl"):
            if problems := audit(wheel):
                sys.exit("\n".join(f"{wheel.name}: {problem}" for problem in problems))
    package(output, "sdist", {})
    return lacking


if __name__ == "__main__":
    sys.exit(main())
