"""Check that the repository and the files in `dist` are ready to be released, and write down what is uploaded.

usage: tools/release_check.py [--sources] [--fast]

`--sources` checks only what is in the repository: one version everywhere, a section for it in CHANGELOG.md, no page that says that
nothing is published yet, no uncommitted change, current licences, a description for PyPI in which each link is absolute, and a cargo
that can upload several crates at once. Without it, `dist` must also have each wheel, the source distributions and the crates of that
version and nothing else; `make release-check` makes them. target/attachments then gets what belongs to the release on GitHub: the
files' checksums, the versions of the tools that have built them, and the bills of materials of both packages.

`--fast` is for a rehearsal: what only the commit of a release changes is reported, but not refused, and no checksums are written,
because these files must not be uploaded.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator

import set_version

ROOT = pathlib.Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
ATTACHMENTS = ROOT / "target" / "attachments"
CRATES = ("ringloop-driver", "ringloop-reactor", "ringloop")
"""Those on crates.io."""
WHEELS = 28
"""Seven Pythons, of which two are free-threaded, two machines, two C libraries."""
CARGO_MIN = (1, 90)
"""The first cargo that uploads crates which depend on each other in one command, or rehearses that, as `make crates` does."""
UNPUBLISHED = re.compile(
    r"publish\w*\s+yet|no\s+published\s+package|no\s+release\s+yet|to\s+be\s+filled\s+in", re.IGNORECASE
)
"""Sentences that are wrong in a release."""
BUILD_TOOLS = ("maturin", "cargo-zigbuild", "ziglang", "hatchling")
"""Packages of the environment, on which the contents of wheels depend."""
FIRST_RELEASE = "tools/first_release.patch"
"""The pages' text from the first release on."""


def version() -> str:
    """Return the version of the workspace, which is that of the release."""
    return str(tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"])


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


def tracked_pages() -> list[str]:
    """Return the names of the Markdown files that are in the repository, without those of tests' data."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--", "*.md"]
    names = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split("\0")
    files = [name for name in names if name and (ROOT / name).is_file() and not (ROOT / name).is_symlink()]
    return [name for name in files if not name.startswith("lab/tests/data/")]


def unpublished() -> Iterator[str]:
    """Yield each sentence that says that nothing is published yet."""
    if (ROOT / FIRST_RELEASE).exists():
        yield f"{FIRST_RELEASE} has the pages' text from the first release on: apply it and delete it"
    for name in tracked_pages():
        text = (ROOT / name).read_text()
        for match in UNPUBLISHED.finditer(text):
            yield f"{name}:{text.count(chr(10), 0, match.start()) + 1}: `{' '.join(match[0].split())}`"


def old_cargo() -> Iterator[str]:
    """Yield the mistake if this cargo can't upload the crates in one command."""
    said = subprocess.run(["cargo", "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    match = re.match(r"cargo (\d+)\.(\d+)", said)
    if match is None or (int(match[1]), int(match[2])) < CARGO_MIN:
        yield f"{said} cannot upload several crates at once; a release needs cargo {'.'.join(map(str, CARGO_MIN))} or later"


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


def output_of(*command: str) -> str:
    """Return the output of a program."""
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def toolchain() -> str:
    """Return a text that says from what, on what and with which versions the files are built."""
    found = {
        "commit": output_of("git", "rev-parse", "HEAD"),
        "system": f"{platform.system()} {platform.machine()}, {' '.join(platform.libc_ver())}",
        "rustc": output_of("rustc", "-vV"),
        "cargo": output_of("cargo", "--version"),
        "Python": platform.python_version(),
    }
    # ziglang has the version of the zig in it.
    found |= {name: importlib.metadata.version(name) for name in BUILD_TOOLS}
    return "".join(f"{name}: {value}\n" for name, value in found.items())


def checksums() -> str:
    """Return the SHA-256 of each file in `dist`, as sha256sum prints them."""
    files = sorted(DIST.iterdir())
    return "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)


def write_attachments(sums: str, built_with: str) -> None:
    """Write what is attached to the release on GitHub."""
    ATTACHMENTS.mkdir(parents=True, exist_ok=True)
    for package in ("ringloop", "ringlab"):
        command = [sys.executable, "tools/licences.py", "--package", package, "--check"]
        output_of(*command, "--sbom", str(ATTACHMENTS / f"{package}.cdx.json"))
    (ATTACHMENTS / "toolchain.txt").write_text(built_with)
    (ATTACHMENTS / "dist.sha256").write_text(sums)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--sources", action="store_true", help="check only what is in the repository")
    parser.add_argument("--fast", action="store_true", help="a rehearsal: the files in dist are not for publishing")
    arguments = parser.parse_args()
    wanted = version()
    if not arguments.sources:
        # Checksums of an earlier build must not be taken for those of this one.
        shutil.rmtree(ATTACHMENTS, ignore_errors=True)
    found = [*set_version.wrong_versions(wanted), *wrong_descriptions(), *uncommitted(), *old_licences(), *old_cargo()]
    at_the_release = [*wrong_changelog(wanted), *unpublished()]
    if arguments.fast:
        for problem in at_the_release:
            print(f"before the release: {problem}")
    else:
        found += at_the_release
    if not arguments.sources:
        found += wrong_files(wanted)
    for problem in found:
        print(f"not ready: {problem}")
    if found:
        return 1
    if not arguments.sources:
        sums, built_with = checksums(), toolchain()
        print(f"{built_with}{sums}", end="")
        if arguments.fast:
            print(f"rehearsed: {wanted}. These files are hardly optimised; don't upload them")
        else:
            write_attachments(sums, built_with)
            print(f"ready: {wanted}. Go on with step 4 of docs/releasing.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
