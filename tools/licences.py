"""List the third-party code inside the wheels: its licences (THIRD-PARTY-LICENSES) and its bill of materials (SBOM).

usage: tools/licences.py [--package NAME] [--check] [--sbom FILE]

Without options, THIRD-PARTY-LICENSES is written again for each package, or for the one named, from its Cargo.lock and the sources of the
crates that are linked into its extension module or load generator. `--check` changes nothing, and fails if a file is out of date.
`--sbom FILE` writes a CycloneDX 1.5 document for one package. All are the same on every machine: they contain no path and no time.

A crate whose licence is not in ALLOWED, or which comes without the text of its licence, is an error.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGETS = tuple(f"{machine}-unknown-linux-{libc}" for machine in ("x86_64", "aarch64") for libc in ("gnu", "musl"))
ALLOWED = ("MIT", "Apache-2.0", "BSD-3-Clause", "ISC", "Zlib")
"""The licences that wheels may contain, the preferred one first. deny.toml has those of all dependencies."""
FILE_OF = {"MIT": "MIT", "Apache-2.0": "APACHE", "BSD-3-Clause": "BSD", "ISC": "ISC", "Zlib": "ZLIB"}
"""The words in the name of a file with this licence's text, in a crate that offers several licences."""
TOOLCHAINS = """\
The Rust standard library is linked into every wheel. It is under MIT OR Apache-2.0, Copyright (c) The Rust Project
Contributors. Wheels for musl also contain libunwind of the LLVM Project, which is under Apache-2.0 WITH LLVM-exception OR MIT,
Copyright (c) The LLVM Project contributors. The texts of these licences are in LICENSE-MIT and LICENSE-APACHE, except for the
copyright lines above.
"""


class Refused(Exception):
    """A crate can't be in a wheel; the message says why."""


@dataclass(frozen=True)
class Package:
    """A package on PyPI, and the workspace's crate that is linked into its wheels."""

    name: str
    crate: str
    folder: pathlib.Path
    """Of the workspace, with Cargo.lock and THIRD-PARTY-LICENSES."""

    @property
    def file(self) -> pathlib.Path:
        """Its THIRD-PARTY-LICENSES."""
        return self.folder / "THIRD-PARTY-LICENSES"


PACKAGES = {
    package.name: package
    for package in (
        Package("ringloop", "ringloop-python", ROOT),
        Package("ringlab", "ringlab-load", ROOT / "lab"),
    )
}


@dataclass(frozen=True, order=True)
class Crate:
    """A crate from a registry, that is linked into a wheel."""

    name: str
    version: str
    expression: str
    """Its licence, as an SPDX expression."""
    folder: pathlib.Path
    repository: str
    checksum: str
    """The SHA-256 of its package."""


def cargo(folder: pathlib.Path, *arguments: str) -> str:
    """Return the output of a cargo command on a workspace."""
    command = ["cargo", *arguments, "--locked", "--manifest-path", str(folder / "Cargo.toml")]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def linked_crates(package: Package) -> list[Crate]:
    """Return the crates of registries that are linked into a package, on any of the targets."""
    linked = set()
    for target in TARGETS:
        options = ["--edges", "normal,no-proc-macro", "--target", target, "--prefix", "none", "--format", "{p}"]
        for line in cargo(package.folder, "tree", "--package", package.crate, *options).splitlines():
            if match := re.match(r"(\S+) v(\S+)( \((?!\*).*\))?", line):
                linked.add((match[1], match[2]))
    lock = tomllib.loads((package.folder / "Cargo.lock").read_text())
    checksums = {(each["name"], each["version"]): each.get("checksum", "") for each in lock["package"]}
    found = []
    for crate in json.loads(cargo(package.folder, "metadata", "--format-version", "1"))["packages"]:
        key = (crate["name"], crate["version"])
        if key in linked and crate["source"]:
            found.append(
                Crate(
                    *key,
                    # Old manifests have a slash where SPDX has OR.
                    expression=re.sub(r"\s*/\s*", " OR ", crate["license"] or ""),
                    folder=pathlib.Path(crate["manifest_path"]).parent,
                    repository=crate["repository"] or "",
                    checksum=checksums[key],
                )
            )
    return sorted(found)


def chosen_licence(crate: Crate) -> str:
    """Return the licence of a crate that we choose, or all of them if they apply together. Raise Refused."""
    together = re.split(r"\s+AND\s+", crate.expression)
    if len(together) > 1 and all(licence in ALLOWED for licence in together):
        return crate.expression
    offered = re.split(r"\s+OR\s+", crate.expression.strip("()"))
    for licence in ALLOWED:
        if licence in offered:
            return licence
    raise Refused(
        f"{crate.name} {crate.version} is under {crate.expression or 'no licence'}; allowed: {', '.join(ALLOWED)}"
    )


def licence_text(crate: Crate, licence: str) -> str:
    """Return the text of the licence in a crate's sources, with those of code that the crate has taken from others. Raise Refused."""
    files = sorted(path for path in crate.folder.rglob("*") if re.match("LICEN[CS]E|COPYING", path.name.upper()))
    if " AND " in licence:
        # Each part of the crate has its own.
        wanted = [path for path in files if path.is_file()]
    else:
        files = [path for path in files if path.parent == crate.folder]
        wanted = [path for path in files if FILE_OF[licence] in path.name.upper()][:1]
        if not wanted and " OR " not in crate.expression:
            wanted = files[:1]
        wanted += [path for path in files if wanted and "THIRD" in path.name.upper()]
    if not wanted:
        raise Refused(f"{crate.name} {crate.version} comes without the text of its licence, {licence}")
    texts = [path.read_text(encoding="utf-8").strip() for path in wanted]
    return "\n".join(line.rstrip() for line in "\n\n".join(texts).splitlines())


def document(package: Package, crates: list[Crate]) -> str:
    """Return the contents of THIRD-PARTY-LICENSES. Equal texts occur once."""
    users: dict[tuple[str, str], list[str]] = {}
    for crate in crates:
        licence = chosen_licence(crate)
        users.setdefault((licence, licence_text(crate, licence)), []).append(f"{crate.name} {crate.version}")
    parts = [f"Licences of the third-party code in {package.name}'s wheels. Made by tools/licences.py.\n", TOOLCHAINS]
    for (licence, text), names in sorted(users.items(), key=lambda item: item[1]):
        parts.append(f"{'=' * 100}\n{', '.join(names)}\nused under {licence}:\n\n{text}\n")
    return "\n".join(parts)


def bill_of_materials(package: Package, crates: list[Crate]) -> str:
    """Return the SBOM."""
    version = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    main = f"pkg:pypi/{package.name}@{version}"
    components = []
    for crate in crates:
        reference = f"pkg:cargo/{crate.name}@{crate.version}"
        component = {
            "type": "library",
            "bom-ref": reference,
            "name": crate.name,
            "version": crate.version,
            "scope": "required",
            "hashes": [{"alg": "SHA-256", "content": crate.checksum}],
            "licenses": [{"expression": crate.expression}],
            "purl": reference,
        }
        if crate.repository:
            component["externalReferences"] = [{"type": "vcs", "url": crate.repository}]
        components.append(component)
    contents = {
        "$schema": "http://cyclonedx.org/schema/bom-1.5.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "bom-ref": main,
                "name": package.name,
                "version": version,
                "licenses": [{"expression": "MIT OR Apache-2.0"}],
                "purl": main,
            }
        },
        "components": components,
        "dependencies": [{"ref": main, "dependsOn": [component["bom-ref"] for component in components]}],
    }
    return json.dumps(contents, indent=2) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--check", action="store_true", help="fail if THIRD-PARTY-LICENSES is out of date")
    parser.add_argument("--sbom", type=pathlib.Path, metavar="FILE", help="write the bill of materials of one package")
    parser.add_argument("--package", choices=PACKAGES, help="default: all")
    arguments = parser.parse_args()
    if arguments.sbom and not arguments.package:
        parser.error("--sbom is for one package; name it with --package")
    for package in [PACKAGES[arguments.package]] if arguments.package else PACKAGES.values():
        try:
            crates = linked_crates(package)
            text = document(package, crates)
        except Refused as refusal:
            print(f"licences.py: {refusal}", file=sys.stderr)
            return 1
        if arguments.sbom:
            arguments.sbom.parent.mkdir(parents=True, exist_ok=True)
            arguments.sbom.write_text(bill_of_materials(package, crates))
        if arguments.check:
            if not package.file.exists() or package.file.read_text() != text:
                name = package.file.relative_to(ROOT)
                print(f"{name} is out of date; write it again with: make licences", file=sys.stderr)
                return 1
        elif not arguments.sbom:
            package.file.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
