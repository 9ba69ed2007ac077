"""Build ringloop's wheels: CPython 3.11 to 3.15, x86-64 and aarch64, glibc and musl, all on one machine.

usage: tools/wheels.py [--list] [--target TARGET...] [--python 3.14 3.14t...] [--here] [--fast] [--output DIR]

maturin builds them and zig links them, so no machine or container of the target is needed, and no interpreter but the one that
runs this. What is needed is Rust's standard library for each target. It is found in one of two ways:

    installed   `rustup target add aarch64-unknown-linux-gnu`
    built       from its source (`rustup component add rust-src`, or Debian's rust-src), with -Zbuild-std

A target that can't be built is left out with a message that says what is missing, and the program exits with 77 when all others
are built. `tools/pythons.sh --rust make wheels` has everything that is needed, from Debian.

3.14t and 3.15t are free-threaded, with wheels of their own (cp314-cp314t). maturin knows their ABI, too, without an interpreter.

Wheels built twice from one commit are equal if the toolchains are: `make reproducible` checks it.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass

ROOT = pathlib.Path(__file__).resolve().parent.parent
PYTHONS = ("3.11", "3.12", "3.13", "3.14", "3.15", "3.14t", "3.15t")
LACKING = 77
BUILT_STD = "std,panic_abort"
"""The crates that -Zbuild-std builds. panic_abort is needed although panics unwind."""

FAST = {
    "CARGO_PROFILE_RELEASE_LTO": "off",
    "CARGO_PROFILE_RELEASE_CODEGEN_UNITS": "16",
    "CARGO_PROFILE_RELEASE_OPT_LEVEL": "1",
}
"""cargo's profile for a build that only needs to work."""


@dataclass(frozen=True)
class Platform:
    """A target of Rust's, and the oldest C library that its wheels run on."""

    target: str
    tag: str


PLATFORMS = (
    Platform("x86_64-unknown-linux-gnu", "manylinux_2_28"),
    Platform("aarch64-unknown-linux-gnu", "manylinux_2_28"),
    Platform("x86_64-unknown-linux-musl", "musllinux_1_2"),
    Platform("aarch64-unknown-linux-musl", "musllinux_1_2"),
)
TARGETS = tuple(platform.target for platform in PLATFORMS)


@dataclass(frozen=True)
class Toolchain:
    """The Rust that builds."""

    sysroot: pathlib.Path
    cargo_home: pathlib.Path

    @classmethod
    def find(cls) -> Toolchain:
        """Return the one on the PATH."""
        sysroot = subprocess.run(["rustc", "--print", "sysroot"], stdout=subprocess.PIPE, text=True, check=True).stdout
        cargo_home = os.environ.get("CARGO_HOME") or pathlib.Path.home() / ".cargo"
        return cls(pathlib.Path(sysroot.strip()), pathlib.Path(cargo_home))

    def has_std(self, target: str) -> bool:
        """Return whether the standard library for the target is installed."""
        return any((self.sysroot / "lib/rustlib" / target / "lib").glob("libstd-*.rlib"))

    def has_source(self) -> bool:
        """Return whether the source of the standard library is installed."""
        return (self.sysroot / "lib/rustlib/src/rust/library/Cargo.lock").exists()

    def plan(self, target: str) -> str:
        """Return how a target gets its standard library: "installed", "built", or "" if it can't be had."""
        if self.has_std(target):
            return "installed"
        return "built" if self.has_source() else ""

    def remapped(self) -> str:
        """Return flags of rustc's that keep this machine's paths out of what it builds."""
        # The last prefix that matches counts.
        folders = {ROOT: "/ringloop", self.cargo_home: "/cargo", self.sysroot / "lib/rustlib/src/rust": "/rust"}
        names = {path: name for folder, name in folders.items() for path in (folder, folder.resolve())}
        return " ".join(f"--remap-path-prefix={path}={name}" for path, name in names.items())


def remedy(target: str) -> str:
    """Return how to get the standard library for a target."""
    return (
        f"there is no Rust standard library for {target}, and no source to build it from; install it with "
        f"`rustup target add {target}`, or run this in Debian's tree: tools/pythons.sh --rust make wheels"
    )


def build_environment(toolchain: Toolchain, plan: str, fast: bool) -> dict[str, str]:
    """Return the environment for maturin."""
    flags = f"{os.environ.get('RUSTFLAGS', '')} {toolchain.remapped()}".strip()
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")])
    # maturin sets zip's times to this; 1980 is the first year that zip knows.
    environment = os.environ | {"PATH": path, "RUSTFLAGS": flags, "SOURCE_DATE_EPOCH": "315532800"}
    # cargo and rustc of one build must not be configured for another interpreter.
    for name in ("PYO3_PYTHON", "PYO3_CONFIG_FILE", "CARGO_BUILD_TARGET", "CONDA_PREFIX", "VIRTUAL_ENV"):
        environment.pop(name, None)
    environment["CARGO_PROFILE_RELEASE_DEBUG"] = "false"
    if plan == "built":
        environment["RUSTC_BOOTSTRAP"] = "1"
    if fast:
        environment |= FAST
    return environment


def build(
    platform: Platform, python: str, toolchain: Toolchain, sbom: pathlib.Path, output: pathlib.Path, fast: bool
) -> None:
    """Build one wheel. Raise subprocess.CalledProcessError."""
    plan = toolchain.plan(platform.target)
    command = [
        *[sys.executable, "-m", "maturin", "build", "--release", "--locked", "--strip", "--zig", "--quiet"],
        *["--target", platform.target, "--compatibility", platform.tag, "--auditwheel", "check"],
        *["--manifest-path", str(ROOT / "crates/ringloop-python/Cargo.toml")],
        *["--out", str(output), "--sbom-include", str(sbom)],
        *(["-Z", f"build-std={BUILT_STD}"] if plan == "built" else []),
        *["--interpreter", f"python{python}"],
    ]
    subprocess.run(command, cwd=ROOT, env=build_environment(toolchain, plan, fast), check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--list", action="store_true", help="print what can be built here, and how; build nothing")
    parser.add_argument("--target", nargs="+", choices=TARGETS, default=TARGETS, help="default: all")
    parser.add_argument("--python", nargs="+", choices=PYTHONS, default=PYTHONS, help="default: all")
    parser.add_argument("--here", action="store_true", help="only for this machine, glibc, and the running Python")
    parser.add_argument("--fast", action="store_true", help="hardly optimised: to try the build, not to publish")
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "dist", metavar="DIR", help="default: dist")
    arguments = parser.parse_args()
    if arguments.here:
        arguments.target = [f"{os.uname().machine}-unknown-linux-gnu"]
        arguments.python = ["{}.{}".format(*sys.version_info) + ("t" if "t" in sys.abiflags else "")]
    if shutil.which("rustc") is None:
        parser.error("there is no rustc on the PATH")
    toolchain = Toolchain.find()
    platforms = [platform for platform in PLATFORMS if platform.target in arguments.target]
    possible = [platform for platform in platforms if toolchain.plan(platform.target)]
    for platform in platforms:
        plan = toolchain.plan(platform.target)
        found = f"standard library {plan}" if plan else f"left out: {remedy(platform.target)}"
        print(f"{platform.tag} on {platform.target}: {found}", flush=True)
    if not arguments.list:
        sbom = ROOT / "target" / "ringloop.cdx.json"
        subprocess.run(
            [sys.executable, ROOT / "tools/licences.py", "--package", "ringloop", "--check", "--sbom", sbom], check=True
        )
        for platform in possible:
            for version in arguments.python:
                print(f"== CPython {version}, {platform.tag}, {platform.target}", flush=True)
                build(platform, version, toolchain, sbom, arguments.output.resolve(), arguments.fast)
    return 0 if len(possible) == len(platforms) else LACKING


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as failed:
        sys.exit(f"wheels.py: failed: {' '.join(map(str, failed.cmd))}")
