#!/usr/bin/env python3
"""Run tests of the Rust crates in a virtual machine, on a kernel of Debian's.

    kernels.py ktls              kernel TLS, on the kernel of Debian 12
    kernels.py measure           what kernel TLS saves, in instructions
    kernels.py contract          the contract of the driver and the tests of the reactor, on all kernels in KERNELS
    kernels.py grants            what each of KERNELS grants; with --write, into the tables of docs/backends.md

qemu emulates the machine, without KVM and without root. The kernel comes from Debian's archive, through apt-get, into the folder
of cargo. Exits with 1 if a test fails or takes too long, and with 77 if a program is missing or a kernel cannot be had.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MISSING = 77
MIRROR = "http://deb.debian.org/debian"
DOCUMENT = ROOT / "docs/backends.md"
BEGIN, END = "<!-- begin: tools/kernels.py -->", "<!-- end: tools/kernels.py -->"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
BUSYBOX = Path("/bin/busybox")
PROGRAMS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "cpio": "cpio",
    "apt-get": "apt",
    "dpkg-deb": "dpkg",
    "cargo": "cargo",
}

# Debian's releases, whose kernels for virtual machines are tried: 5.10, 6.1, 6.12, and the newest.
KERNELS = {"5.10": "bullseye", "6.1": "bookworm", "6.12": "trixie", "newest": "trixie-backports"}
META_PACKAGE = "linux-image-cloud-amd64"

# What TLS and its ciphers need. The names differ between kernels, and each module waits for those that it needs.
MODULES = """
    crypto_simd cryptd gf128mul geniv seqiv ghash-generic ctr gcm libpoly1305 libchacha poly1305_generic poly1305-generic
    chacha_generic chacha chacha-x86_64 poly1305-x86_64 chacha20poly1305 libaesgcm aesni-intel ghash-clmulni-intel tls
""".split()  # noqa: SIM905 - a list would take twenty lines

INIT = """#!/bin/busybox sh
b=/bin/busybox
$b mount -t proc proc /proc; $b mount -t sysfs sys /sys; $b mount -t devtmpfs dev /dev; $b mount -t tmpfs tmp /tmp
$b mkdir -p /dev/shm /dev/pts; $b mount -t tmpfs shm /dev/shm; $b mount -t devpts pts /dev/pts; $b ln -s /proc/self/fd /dev/fd
$b ifconfig lo 127.0.0.1 up; $b ip -6 addr add ::1/128 dev lo 2>/dev/null
for round in 1 2 3; do for module in /modules/*.ko; do $b insmod $module 2>/dev/null; done; done
export PATH=/bin HOME=/tmp TMPDIR=/tmp @ENVIRONMENT@
echo; echo "kernel $($b uname -r)"
ulimit -n 65536
cd /scratch
@COMMANDS@
$b poweroff -f
"""


class UnavailableError(Exception):
    """Something is missing here that is no fault of the tests."""


@dataclass
class Program:
    """A program to run in the guest."""

    path: Path
    arguments: list[str]


@dataclass
class Outcome:
    """The words of a guest, as far as they count."""

    release: str = "?"
    passed: set[str] = field(default_factory=set)
    """The numbers of the programs that succeeded."""
    grants: dict[str, dict[str, str]] = field(default_factory=dict)
    """The answer for each feature, in groups."""

    def hear(self, line: str) -> None:
        """Interpret a line that the guest has printed."""
        match line.split():
            case ["kernel", release]:
                self.release = release
            case ["status", number, "0"]:
                self.passed.add(number)
        match line.split("\t"):
            case ["grants", group, what, answer]:
                self.grants.setdefault(group, {})[what] = answer


def check_programs() -> None:
    """Raise an error that says which packages are missing."""
    missing = [package for program, package in PROGRAMS.items() if shutil.which(program) is None]
    if not BUSYBOX.exists():
        missing.append("busybox-static")
    if missing:
        raise UnavailableError(
            f"install {', '.join(missing)} (apt-get install --no-install-recommends {' '.join(missing)})"
        )
    if platform.machine() != "x86_64":
        raise UnavailableError("the kernels and programs are for x86_64")


class Archive:
    """Debian's archive, without the machine's own configuration of apt."""

    def __init__(self, folder: Path, suite: str) -> None:
        """Remember where downloads go."""
        self.folder = folder / suite
        self.suite = suite
        for part in ("lists/partial", "cache/archives/partial", "etc"):
            (self.folder / part).mkdir(parents=True, exist_ok=True)
        signed = f"[signed-by={KEYRING}] " if KEYRING.exists() else ""
        (self.folder / "sources.list").write_text(f"deb {signed}{MIRROR} {suite} main\n")
        # apt is asked as if nothing were installed.
        (self.folder / "status").touch()

    def apt(self, program: str, *arguments: str) -> str:
        """Call apt-get or apt-cache, and return what it prints."""
        places = {
            "Dir::Etc::sourcelist": "sources.list",
            "Dir::Etc::sourceparts": "etc",
            "Dir::State::lists": "lists",
            "Dir::State::status": "status",
            "Dir::Cache": "cache",
        }
        options = [f"-o{name}={self.folder.resolve() / place}" for name, place in places.items()]
        command = [program, "-qq", *options, "-oAPT::Sandbox::User=root", "-oAPT::Default-Release=", *arguments]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False, timeout=300)
        if done.returncode != 0:
            raise UnavailableError(f"{program} {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def packages(self) -> set[str]:
        """Return the packages that have a part of the kernel. Since 7.1, there are several."""
        known: set[str] = set()
        unseen = {META_PACKAGE}
        while unseen:
            package = unseen.pop()
            known.add(package)
            lines = self.apt("apt-cache", "depends", package).splitlines()
            names = {line.split(":", 1)[1].strip() for line in lines if "Depends:" in line}
            parts = ("linux-image-", "linux-binary-", "linux-modules-")
            unseen |= {name for name in names if name.startswith(parts)} - known
        return known

    def kernel(self) -> Path:
        """Return the folder with the newest kernel's files, downloaded if they are not there."""
        files = self.folder / "files"
        if (files / "complete").exists():
            return files
        shutil.rmtree(files, ignore_errors=True)
        self.apt("apt-get", "update")
        for package in sorted(self.packages()):
            self.apt("apt-get", "download", package)
        for downloaded in self.folder.glob("*.deb"):
            subprocess.run(["dpkg-deb", "--extract", downloaded, files], check=True)
            downloaded.unlink()
        (files / "complete").touch()
        return files


def build(package: str, *targets: str) -> list[Path]:
    """Build tests or examples, and return the programs."""
    command = ["cargo", "test", "--locked", "--package", package, "--all-features", "--no-run", *targets]
    done = subprocess.run(
        [*command, "--message-format", "json"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    )
    messages = (json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))
    return [Path(message["executable"]) for message in messages if message.get("executable")]


def libraries(program: Path) -> set[Path]:
    """Return the shared libraries of a program, with the dynamic linker."""
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    words = (word for line in listed.splitlines() for word in line.split())
    return {Path(word) for word in words if word.startswith("/")}


def copy_module(kernel: Path, name: str, folder: Path, position: int) -> None:
    """Copy a module, decompressed, so that its name says when it is loaded."""
    for found in kernel.rglob(f"{name}.ko*"):
        content = found.read_bytes()
        if found.suffix == ".xz":
            content = lzma.decompress(content)
        (folder / f"{position:02}-{name}.ko").write_bytes(content)
        return


def make_initrd(kernel: Path, programs: list[Program], environment: dict[str, str], folder: Path) -> Path:
    """Make the guest's file system: the programs, their libraries, the modules, and what runs them."""
    root = folder / "root"
    shutil.rmtree(root, ignore_errors=True)
    for name in ("bin", "proc", "sys", "dev", "tmp", "etc", "modules", "scratch"):
        (root / name).mkdir(parents=True)
    (root / "etc/passwd").write_text("root:x:0:0:root:/tmp:/bin/sh\n")
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n::1 localhost\n")
    shutil.copy(BUSYBOX, root / "bin/busybox")
    for name in ("sh", "cat", "sleep", "true", "false"):
        (root / "bin" / name).symlink_to("busybox")
    for position, name in enumerate(MODULES):
        copy_module(kernel, name, root / "modules", position)
    commands = []
    for number, program in enumerate(programs):
        inside = f"/bin/{number}-{program.path.name}"
        shutil.copy(program.path, root / inside[1:])
        for library in libraries(program.path):
            target = root / str(library)[1:]
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library, target)
        arguments = " ".join(program.arguments)
        commands.append(
            f'echo "running {program.path.name} {arguments}"; {inside} {arguments}; echo "status {number} $?"'
        )
    settings = " ".join(f"{name}={value}" for name, value in environment.items())
    init = INIT.replace("@ENVIRONMENT@", settings).replace("@COMMANDS@", "\n".join(commands))
    (root / "init").write_text(init)
    (root / "init").chmod(0o755)
    files = "\n".join(str(path.relative_to(root)) for path in sorted(root.rglob("*")))
    initrd = folder / "initrd"
    with initrd.open("wb") as output:
        subprocess.run(
            ["cpio", "-o", "-H", "newc", "--quiet"], cwd=root, input=files.encode(), stdout=output, check=True
        )
    return initrd


def boot(kernel: Path, initrd: Path, seconds: int, *, counts: bool) -> Outcome:
    """Run the guest until it ends, print what it prints, and return it.

    With `counts`, an instruction takes a nanosecond of the guest's time, so its CPU times are numbers of instructions.
    """
    image = next(path for path in kernel.rglob("vmlinuz*") if path.is_file())
    speed = ["-accel", "tcg", "-icount", "shift=0,sleep=off"] if counts else ["-accel", "tcg,thread=multi", "-smp", "2"]
    machine = [*speed, "-cpu", "max", "-m", "768", "-nographic", "-nic", "none", "-no-reboot"]
    start = ["-kernel", str(image), "-initrd", str(initrd), "-append", "console=ttyS0 panic=-1 quiet"]
    command = ["timeout", "--foreground", str(seconds), "qemu-system-x86_64", *machine, *start]
    outcome = Outcome()
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, errors="replace"
    ) as guest:
        assert guest.stdout is not None
        for line in guest.stdout:
            text = line.rstrip()
            outcome.hear(text)
            print(f"  {text}", flush=True)
    if guest.returncode == 124:
        print(f"the virtual machine has not ended within {seconds} s", file=sys.stderr)
    return outcome


def run(
    name: str, suite: str, programs: list[Program], environment: dict[str, str], options: argparse.Namespace
) -> Outcome:
    """Run programs on one kernel."""
    print(f"Linux {name} of Debian's {suite}", flush=True)
    kernel = Archive(options.folder, suite).kernel()
    initrd = make_initrd(kernel, programs, environment, options.folder / suite)
    return boot(kernel, initrd, options.seconds, counts=options.what == "measure")


def tables(outcomes: Iterable[Outcome]) -> str:
    """Return what the kernels grant, in Markdown: a table for each group, with a column for each kernel."""
    outcomes = list(outcomes)
    groups: dict[str, dict[str, None]] = {}
    for outcome in outcomes:
        for group, answers in outcome.grants.items():
            groups.setdefault(group, {}).update(dict.fromkeys(answers))
    parts = []
    for group, features in groups.items():
        rows = [[group, *(outcome.release for outcome in outcomes)], ["---"] * (1 + len(outcomes))]
        rows += [
            [feature, *(outcome.grants.get(group, {}).get(feature, "?") for outcome in outcomes)]
            for feature in features
        ]
        parts.append("\n".join(f"| {' | '.join(row)} |" for row in rows))
    return "\n\n".join(parts)


def write_tables(text: str) -> None:
    """Put the tables into the documentation."""
    document = DOCUMENT.read_text()
    before, rest = document.split(BEGIN)
    _, after = rest.split(END)
    DOCUMENT.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


def programs_for(what: str, arguments: list[str]) -> list[Program]:
    """Build and return the programs that a choice of the command line runs."""
    if what == "ktls":
        built = build("ringloop", "--test", "kernel_tls", "--test", "tls", "--test", "cancellation")
        filters = {"kernel_tls": [], "tls": [], "cancellation": ["tls::"]}
        return [Program(path, filters[path.name.rsplit("-", 1)[0]] + arguments) for path in built]
    if what == "measure":
        return [
            Program(path, ["--ignored", "--nocapture", "measuring"])
            for path in build("ringloop", "--test", "kernel_tls")
        ]
    if what == "grants":
        built = build("ringloop-driver", "--test", "contract") + build("ringloop", "--test", "kernel_tls")
        return [Program(path, ["--ignored", "--nocapture", "what_is_granted"]) for path in built]
    built = build("ringloop-driver", "--lib", "--test", "contract")
    built += build("ringloop-reactor", "--test", "reactor", "--test", "interrupted")
    return [Program(path, arguments) for path in built]


def main() -> int:
    """Run what the command line asks for."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", "target"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["ktls", "measure", "contract", "grants"])
    parser.add_argument(
        "--kernel", action="append", choices=list(KERNELS), help="which kernels; may be given several times"
    )
    parser.add_argument("--folder", type=Path, default=target / "kernels", help="where kernels are kept")
    parser.add_argument("--seconds", type=int, default=1800, help="how long each virtual machine may run")
    parser.add_argument("arguments", nargs="*", help="for the tests, after --: for example -- --test-threads 1 NAME")
    parser.add_argument("--write", action="store_true", help="write the tables of docs/backends.md")
    options = parser.parse_args()
    environment = {"RUST_TEST_THREADS": "2"}
    kernels = options.kernel or (list(KERNELS) if options.what in {"contract", "grants"} else ["6.1"])
    # 5.10 lacks ChaCha20-Poly1305: there, a refusal is no failure.
    if options.what == "ktls" and "5.10" not in kernels:
        environment["RINGLOOP_TEST_KERNEL_TLS"] = "1"
    try:
        check_programs()
        programs = programs_for(options.what, options.arguments)
        outcomes = {kernel: run(kernel, KERNELS[kernel], programs, environment, options) for kernel in kernels}
    except UnavailableError as error:
        print(f"left out: {error}")
        return MISSING
    if options.what == "grants":
        text = tables(outcomes.values())
        print(text)
        if options.write:
            write_tables(text)
    passed = {kernel: len(outcome.passed) == len(programs) for kernel, outcome in outcomes.items()}
    for kernel, has_passed in passed.items():
        print(f"Linux {kernel} ({outcomes[kernel].release}): {'passed' if has_passed else 'FAILED'}")
    return 0 if all(passed.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
