"""Check that wheels of ringloop may be published: tags, contents, the extension module's ABI, licences and SBOM.

usage: tools/audit_wheel.py [--complete] WHEEL...

Prints one line for each wheel, or one for each problem, and exits with 1 if there is any. `--complete` also requires the whole set:
each supported Python on each platform.

What a wheel must satisfy is in the functions `check_*`. If auditwheel is installed (`make wheels` installs it), its judgement of the
glibc that a wheel needs must agree with the wheel's tag.
"""

from __future__ import annotations

import argparse
import base64
import csv
import email
import hashlib
import importlib.util
import io
import json
import pathlib
import re
import stat
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PYTHONS = ("311", "312", "313", "314", "315", "314t", "315t")
MACHINES = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}
GLIBC_NEWEST = (2, 28)
MUSL_NEWEST = (1, 2)
WHEEL_BYTES_MAX = 4_000_000
MODULE_BYTES_MAX = 10_000_000
LOADERS = {"x86_64": "ld-linux-x86-64.so.2", "aarch64": "ld-linux-aarch64.so.1"}
LIBRARIES = {
    "manylinux": {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", "libgcc_s.so.1"},
    "musllinux": {"libc.so"},
}
"""The libraries that a wheel may need besides glibc's loader. musl's wheels name musl without its machine."""
NEW_IN_MUSL = {"qsort_r": "1.2.3", "preadv2": "1.2.5", "pwritev2": "1.2.5", "statx": "1.2.5", "renameat2": "1.2.6"}
"""Functions that Alpine 3.13 lacks, whose musl is 1.2.2. musl's symbols have no versions, and zig links with the newest musl."""
SYMBOL_VERSIONS = {"GLIBC": GLIBC_NEWEST, "GCC": (4, 3)}
LICENCE_FILES = ("LICENSE-APACHE", "LICENSE-MIT", "THIRD-PARTY-LICENSES")
BUILD_PATHS = re.compile(rb"/(?:home|root|work|Users|github|tmp|opt|build)/[\w.+/-]{3,}")
"""Folders of a machine that builds. Remapped ones begin with /ringloop, /cargo or /rustc."""


@dataclass
class Wheel:
    """A wheel, and what its name says."""

    path: pathlib.Path
    archive: zipfile.ZipFile
    version: str
    python: str
    """Such as "311", or "314t" for a free-threaded one."""
    abi: str
    platforms: list[str]
    family: str
    """manylinux or musllinux."""
    libc: tuple[int, int]
    """The newest version of the C library that the tags name."""
    machine: str

    @property
    def info(self) -> str:
        """The folder of metadata."""
        return f"ringloop-{self.version}.dist-info"

    @property
    def module(self) -> str:
        """The path of the extension module."""
        libc = "gnu" if self.family == "manylinux" else "musl"
        return f"ringloop/_core.cpython-{self.python}-{self.machine}-linux-{libc}.so"

    def read(self, name: str) -> bytes:
        """Return a file of the wheel; empty if it has none of this name."""
        try:
            return self.archive.read(name)
        except KeyError:
            return b""


class Unreadable(Exception):
    """A file that is no wheel of ringloop; the message says why."""


def open_wheel(path: pathlib.Path) -> Wheel:
    """Open a wheel. Raise Unreadable."""
    name = re.fullmatch(r"ringloop-([^-]+)-cp(\d+)-(\w+)-([\w.]+)\.whl", path.name)
    if not name:
        raise Unreadable("the file's name is not that of a wheel of ringloop for one CPython")
    platforms = name[4].split(".")
    tags = [re.fullmatch(r"(manylinux|musllinux)_(\d+)_(\d+)_(\w+)", platform) for platform in platforms]
    # manylinux2014 and the like are old names of a tag that stands beside them.
    found = [tag for tag in tags if tag]
    if not found or len({(tag[1], tag[4]) for tag in found}) != 1:
        raise Unreadable(f"the platform tag {name[4]} is not that of one manylinux or musllinux; PyPI refuses others")
    try:
        archive = zipfile.ZipFile(path)
        broken = archive.testzip()
    except (OSError, zipfile.BadZipFile) as error:
        raise Unreadable(f"not a zip file: {error}") from None
    if broken:
        raise Unreadable(f"{broken} is damaged")
    libc = max((int(tag[2]), int(tag[3])) for tag in found)
    # Free-threaded builds share the tag of the Python with those that have the GIL; the ABI's ends with t.
    python = name[2] + ("t" if name[3] == f"cp{name[2]}t" else "")
    return Wheel(path, archive, name[1], python, name[3], platforms, found[0][1], libc, found[0][4])


def expected_version() -> str:
    """Return the version in Cargo.toml."""
    return str(tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"])


def check_tags(wheel: Wheel) -> Iterator[str]:
    """Check that the name and the files WHEEL and METADATA say the same, and something that we support."""
    if wheel.version != expected_version():
        yield f"the version is {wheel.version}, but Cargo.toml has {expected_version()}"
    if wheel.python not in PYTHONS:
        yield f"CPython {wheel.python} is not supported"
    if wheel.abi != f"cp{wheel.python}":
        yield f"the ABI tag is {wheel.abi} instead of cp{wheel.python}"
    if wheel.machine not in MACHINES:
        yield f"the machine {wheel.machine} is not supported"
    newest = GLIBC_NEWEST if wheel.family == "manylinux" else MUSL_NEWEST
    if wheel.libc > newest:
        yield "the tag needs {} {}.{}; at most {}.{} is allowed".format(wheel.family, *wheel.libc, *newest)
    header = email.message_from_bytes(wheel.read(f"{wheel.info}/WHEEL"))
    tags = {f"cp{wheel.python.removesuffix('t')}-{wheel.abi}-{platform}" for platform in wheel.platforms}
    if set(header.get_all("Tag", [])) != tags:
        yield f"the file WHEEL has the tags {header.get_all('Tag', [])}, but the name has {sorted(tags)}"
    if header["Root-Is-Purelib"] != "false":
        yield "the file WHEEL says that the wheel has no compiled code"


def check_metadata(wheel: Wheel) -> Iterator[str]:
    """Check that METADATA names the package, its version, its licence and the Pythons."""
    metadata = email.message_from_bytes(wheel.read(f"{wheel.info}/METADATA"))
    wanted = {
        "Name": "ringloop",
        "Version": wheel.version,
        "License-Expression": "MIT OR Apache-2.0",
        "Requires-Python": ">=3.11",
    }
    for key, value in wanted.items():
        if metadata[key] != value:
            yield f"METADATA has {key}: {metadata[key]} instead of {value}"
    if set(metadata.get_all("License-File", [])) != set(LICENCE_FILES):
        yield f"METADATA names the licences {metadata.get_all('License-File', [])}"
    # Tests and tools install what only they need; users must not.
    if needless := [each for each in metadata.get_all("Requires-Dist", []) if "extra ==" not in each]:
        yield f"the wheel requires {', '.join(needless)}; ringloop has no required dependencies"


def check_contents(wheel: Wheel) -> Iterator[str]:
    """Check for the package of the repository, one extension module and the metadata: nothing else, nothing missing."""
    package = ROOT / "python" / "ringloop"
    sources = [path for path in package.rglob("*") if path.suffix in (".py", ".pyi") or path.name == "py.typed"]
    wanted = {f"ringloop/{path.relative_to(package)}" for path in sources} | {wheel.module}
    wanted |= {
        f"{wheel.info}/{name}"
        for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "sboms/ringloop.cdx.json")
    }
    wanted |= {f"{wheel.info}/licenses/{name}" for name in LICENCE_FILES}
    names = [each.filename for each in wheel.archive.infolist() if not each.is_dir()]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"{name} occurs twice"
    for name in sorted(set(names) - wanted):
        yield f"{name} does not belong in a wheel"
    for name in sorted(wanted - set(names)):
        yield f"{name} is missing"
    for path in sources:
        name = f"ringloop/{path.relative_to(package)}"
        if name in names and wheel.read(name) != path.read_bytes():
            yield f"{name} differs from the repository's"
    for each in wheel.archive.infolist():
        mode = each.external_attr >> 16
        if stat.S_ISLNK(mode) or mode & 0o7022:
            yield f"{each.filename} has the mode {mode:o}"
        if each.date_time[:3] != (1980, 1, 1):
            yield f"{each.filename} has a time, so a second build would differ"
    size = wheel.path.stat().st_size
    if size > WHEEL_BYTES_MAX:
        yield f"the wheel has {size:,} bytes; at most {WHEEL_BYTES_MAX:,} are expected"


def check_record(wheel: Wheel) -> Iterator[str]:
    """Check that RECORD has the hash and the size of each file."""
    rows = {row[0]: row[1:] for row in csv.reader(io.StringIO(wheel.read(f"{wheel.info}/RECORD").decode())) if row}
    for name in wheel.archive.namelist():
        if name.endswith(("/RECORD", "/")):
            continue
        data = wheel.read(name)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        if rows.get(name) != [f"sha256={digest}", str(len(data))]:
            yield f"RECORD does not match {name}"
    for name in sorted(set(rows) - set(wheel.archive.namelist())):
        yield f"RECORD names {name}, which is missing"


def entries(elf: ELFFile, section: str, kind: str) -> list[Any]:
    """Return the entries of a section; none if the module lacks it. `kind` is what pyelftools calls them."""
    found: Any = elf.get_section_by_name(section)
    return list(getattr(found, f"iter_{kind}")()) if found else []


def check_module(wheel: Wheel) -> Iterator[str]:
    """Check that the extension module is stripped and hardened, and needs only what the tag promises."""
    data = wheel.read(wheel.module)
    if not data:
        return  # check_contents says so.
    try:
        elf = ELFFile(io.BytesIO(data))
    except ELFError:
        yield f"{wheel.module} is not an ELF file"
        return
    if elf["e_machine"] != MACHINES.get(wheel.machine) or elf["e_type"] != "ET_DYN":
        yield f"the module is an {elf['e_type']} for {elf['e_machine']}, the wheel is for {wheel.machine}"
    for section in elf.iter_sections():
        if section.name == ".symtab" or section.name.startswith(".debug"):
            yield f"the module is not stripped: it has the section {section.name}"
    yield from check_linking(wheel, elf)
    yield from check_symbols(elf)
    if wheel.family == "musllinux":
        yield from check_musl(elf)
    if found := sorted({match.group().decode() for match in BUILD_PATHS.finditer(data)}):
        yield f"the module contains {len(found)} paths of the machine that built it, such as {found[0]}"
    if len(data) > MODULE_BYTES_MAX:
        yield f"the module has {len(data):,} bytes; at most {MODULE_BYTES_MAX:,} are expected"


def check_linking(wheel: Wheel, elf: ELFFile) -> Iterator[str]:
    """Check libraries, their symbols' versions, and how the loader treats the module."""
    allowed = set(LIBRARIES[wheel.family])
    if wheel.family == "manylinux":
        allowed.add(LOADERS.get(wheel.machine, ""))
    bound = False
    for tag in entries(elf, ".dynamic", "tags"):
        if tag.entry.d_tag == "DT_NEEDED" and tag.needed not in allowed:
            yield f"the module needs the library {tag.needed}"
        if tag.entry.d_tag in ("DT_RPATH", "DT_RUNPATH"):
            yield f"the module has a search path for libraries ({tag.entry.d_tag})"
        if tag.entry.d_tag == "DT_TEXTREL":
            yield "the module has relocations in its code"
        flags = {"DT_FLAGS": 0x8, "DT_FLAGS_1": 0x1}.get(tag.entry.d_tag, 0)
        bound = bound or bool(tag.entry.d_val & flags) or tag.entry.d_tag == "DT_BIND_NOW"
    if not bound:
        yield "the module is not bound at once (-z now), so its tables stay writable"
    segments = {segment["p_type"]: segment for segment in elf.iter_segments()}
    if "PT_GNU_RELRO" not in segments:
        yield "the module has no read-only relocations (-z relro)"
    if "PT_GNU_STACK" not in segments or segments["PT_GNU_STACK"]["p_flags"] & 1:
        yield "the module asks for an executable stack"
    for library, versions in entries(elf, ".gnu.version_r", "versions"):
        for version in versions:
            kind, _, number = version.name.partition("_")
            newest = wheel.libc if kind == "GLIBC" else SYMBOL_VERSIONS.get(kind)
            parts = tuple(int(part) for part in number.split(".") if part.isdigit())
            if wheel.family == "musllinux" or newest is None or not parts or parts[:2] > newest:
                yield f"the module needs {version.name} of {library.name}"


def check_symbols(elf: ELFFile) -> Iterator[str]:
    """Check that the module exports its initialisation functions only: another module's symbols must not bind to ours."""
    exported = {
        symbol.name
        for symbol in entries(elf, ".dynsym", "symbols")
        if symbol["st_shndx"] != "SHN_UNDEF" and symbol["st_info"]["bind"] in ("STB_GLOBAL", "STB_WEAK")
    }
    # Python 3.15 looks for the second one first (PEP 793).
    if exported - {"PyModExport__core"} != {"PyInit__core"}:
        yield f"the module exports {', '.join(sorted(exported)) or 'nothing'} instead of PyInit__core"


def check_musl(elf: ELFFile) -> Iterator[str]:
    """Check that the module needs no function that only a newer musl has. Weak symbols may be missing."""
    for symbol in entries(elf, ".dynsym", "symbols"):
        needed = symbol["st_shndx"] == "SHN_UNDEF" and symbol["st_info"]["bind"] == "STB_GLOBAL"
        if needed and symbol.name in NEW_IN_MUSL:
            yield f"the module needs {symbol.name}, which musl has since {NEW_IN_MUSL[symbol.name]}"


def check_licences(wheel: Wheel) -> Iterator[str]:
    """Check that the SBOM lists the crates, and that THIRD-PARTY-LICENSES has a licence for each."""
    try:
        sbom = json.loads(wheel.read(f"{wheel.info}/sboms/ringloop.cdx.json"))
        components = [(each["name"], each["version"], each["licenses"]) for each in sbom["components"]]
    except (ValueError, LookupError, TypeError) as error:
        yield f"the SBOM cannot be read: {error!r}"
        return
    if sbom.get("bomFormat") != "CycloneDX" or len(components) < 10:
        yield f"the SBOM is not a CycloneDX document of all crates; it has {len(components)}"
    text = wheel.read(f"{wheel.info}/licenses/THIRD-PARTY-LICENSES").decode()
    for name, version, licences in components:
        if not licences or not re.search(rf"(?<![\w-]){re.escape(f'{name} {version}')}(?![\w.])", text):
            yield f"{name} {version} is in the SBOM, but THIRD-PARTY-LICENSES has no licence for it"


def shown_platform(path: pathlib.Path) -> tuple[str, str]:
    """Return the platform tag that auditwheel gives a wheel, empty if it can't tell, and all that it says."""
    command = [sys.executable, "-m", "auditwheel", "show", str(path)]
    shown = subprocess.run(command, capture_output=True, text=True, check=False)
    said = " ".join(shown.stdout.split())
    match = re.search(r'following platform tag: "([\w.]+)"', said)
    return match[1] if match else "", said or shown.stderr.strip()


def check_auditwheel(wheel: Wheel) -> Iterator[str]:
    """Check that auditwheel agrees with the tag of a wheel for glibc.

    For musl it wants the library's name on Alpine, libc.musl-x86_64.so.1. zig writes libc.so, which musl's loader takes for itself,
    as it does each name of its own parts; check_linking allows no other.
    """
    if wheel.family == "musllinux" or importlib.util.find_spec("auditwheel") is None:
        return
    platform, said = shown_platform(wheel.path)
    tag = re.fullmatch(r"(\w+)_(\d+)_(\d+)_(\w+)", platform)
    if tag is None:
        yield f"auditwheel cannot tell its platform: {said}"
    elif (tag[1], tag[4]) != (wheel.family, wheel.machine) or (int(tag[2]), int(tag[3])) > wheel.libc:
        yield f"auditwheel says {tag[0]}, but the tag is {'.'.join(wheel.platforms)}"


CHECKS = (
    check_tags,
    check_metadata,
    check_contents,
    check_record,
    check_module,
    check_licences,
    check_auditwheel,
)


def problems(path: pathlib.Path) -> list[str]:
    """Return what is wrong with a wheel."""
    try:
        wheel = open_wheel(path)
    except Unreadable as error:
        return [str(error)]
    with wheel.archive:
        return [problem for check in CHECKS for problem in check(wheel)]


def absent(paths: list[pathlib.Path]) -> list[str]:
    """Return the wheels of a complete set that are not among these."""
    names = "\n".join(path.name for path in paths)
    return [
        f"there is no wheel for CPython {python}, {family}, {machine}"
        for python in PYTHONS
        for family in LIBRARIES
        for machine in MACHINES
        if not re.search(rf"-cp{python.removesuffix('t')}-cp{python}-{family}\S*_{machine}\.whl", names)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--complete", action="store_true", help="require a wheel for each Python and platform")
    parser.add_argument("wheels", nargs="+", type=pathlib.Path, metavar="WHEEL")
    arguments = parser.parse_args()
    bad = 0
    for path in arguments.wheels:
        found = problems(path)
        bad += len(found)
        for problem in found:
            print(f"{path.name}: {problem}")
        if not found:
            print(f"{path.name}: good, {path.stat().st_size:,} bytes")
    for problem in absent(arguments.wheels) if arguments.complete else []:
        bad += 1
        print(problem)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
