"""Check that the repository and the files in `dist` are ready to be released, and print what to upload.

usage: tools/release_check.py [--sources | --fast]

`--sources` checks only what is in the repository: one version everywhere, a section for it in CHANGELOG.md, no uncommitted change,
current licences, and a description for PyPI in which each link is absolute. Without it, `dist` must also have each wheel, the source
distributions and the crates of that version and nothing else; `make release-check` makes them. `--fast` says that they are those of
a rehearsal, which must not be uploaded.
"""

from __future__ import annotations

import argparse
import hashlib
import pathlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
CRATES = ("ringloop-driver", "ringloop-reactor", "ringloop")
"""Those on crates.io."""
WHEELS = 28
"""Seven Pythons, of which two are free-threaded, two machines, two C libraries."""


def version() -> str:
    """Return the version of the workspace, which is that of the release."""
    return str(tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"])


def wrong_versions(wanted: str) -> Iterator[str]:
    """Yield what names another version."""
    workspace = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]
    for name, dependency in workspace["dependencies"].items():
        if name.startswith("ringloop") and dependency["version"] != wanted:
            yield f"Cargo.toml: {name} is {dependency['version']} among the dependencies, but the version is {wanted}"
    lab = tomllib.loads((ROOT / "lab/pyproject.toml").read_text())["project"]["version"]
    if lab != wanted:
        yield f"lab/pyproject.toml: the version is {lab} instead of {wanted}"
    load = tomllib.loads((ROOT / "lab/Cargo.toml").read_text())["workspace"]["package"]["version"]
    if load != wanted:
        yield f"lab/Cargo.toml: the version is {load} instead of {wanted}"


def wrong_changelog(wanted: str) -> Iterator[str]:
    """Yield what CHANGELOG.md lacks for a release."""
    text = (ROOT / "CHANGELOG.md").read_text()
    heading = re.search(rf"^## \[{re.escape(wanted)}\] - (\S+)$", text, re.MULTILINE)
    if heading is None:
        yield f"CHANGELOG.md has no section `## [{wanted}] - YYYY-MM-DD`"
    elif not re.fullmatch(r"\d{4}-\d\d-\d\d", heading[1]):
        yield f"CHANGELOG.md: {heading[1]} is not a date"
    if not re.search(rf"^\[{re.escape(wanted)}\]: https://", text, re.MULTILINE):
        yield f"CHANGELOG.md has no link for [{wanted}] at its end"
    unreleased = text.partition("## [Unreleased]")[2].partition("\n## [")[0]
    if heading and "\n- " in unreleased:
        yield "CHANGELOG.md still has entries under [Unreleased]"


def relative_links(text: str) -> list[str]:
    """Return the links of a Markdown text that lead nowhere on PyPI."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", prose) if not re.match(r"https?://|#|mailto:", link)]


def wrong_descriptions() -> Iterator[str]:
    """Yield what PyPI and crates.io would show wrongly."""
    for name in ("README.md", "lab/README.md", *(f"crates/{crate}/README.md" for crate in CRATES)):
        if links := relative_links((ROOT / name).read_text()):
            yield f"{name}: {len(links)} links are relative, such as {links[0]}; PyPI and crates.io cannot follow them"


def uncommitted() -> Iterator[str]:
    """Yield changes that would not be in the tag."""
    command = ["git", "-C", str(ROOT), "status", "--porcelain"]
    changes = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    if changes:
        yield f"{len(changes)} files differ from the last commit, such as {changes[0][3:]}"


def old_licences() -> Iterator[str]:
    """Yield the mistake if THIRD-PARTY-LICENSES is not that of Cargo.lock."""
    command = [sys.executable, str(ROOT / "tools/licences.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        yield done.stderr.strip()


def wrong_files(wanted: str) -> Iterator[str]:
    """Yield what is missing in `dist`, or does not belong there."""
    names = {path.name for path in DIST.iterdir()} if DIST.exists() else set()
    wheels = {name for name in names if re.fullmatch(rf"ringloop-{re.escape(wanted)}-cp\S+\.whl", name)}
    if len(wheels) != WHEELS:
        yield f"dist has {len(wheels)} wheels of ringloop {wanted} instead of {WHEELS}"
    others = {f"ringlab-{wanted}-py3-none-manylinux_2_28_{machine}.whl" for machine in ("x86_64", "aarch64")}
    others |= {f"{name}-{wanted}.tar.gz" for name in ("ringloop", "ringlab")}
    others |= {f"{name}-{wanted}.crate" for name in CRATES}
    for name in sorted(others - names):
        yield f"dist has no {name}"
    for name in sorted(names - wheels - others):
        yield f"dist has {name}, which is no part of {wanted}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    stage = parser.add_mutually_exclusive_group()
    stage.add_argument("--sources", action="store_true", help="check only what is in the repository")
    stage.add_argument("--fast", action="store_true", help="the files in dist are hardly optimised, not for publishing")
    arguments = parser.parse_args()
    wanted = version()
    found = [*wrong_versions(wanted), *wrong_changelog(wanted), *wrong_descriptions(), *uncommitted(), *old_licences()]
    if not arguments.sources:
        found += wrong_files(wanted)
    for problem in found:
        print(f"not ready: {problem}")
    if found:
        return 1
    if not arguments.sources:
        for path in sorted(DIST.iterdir()):
            print(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}")
        if arguments.fast:
            print(f"rehearsed: {wanted}. These files are hardly optimised; don't upload them")
        else:
            print(f"ready: {wanted}. Go on with step 4 of docs/releasing.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
