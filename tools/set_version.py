"""Write the version of a release into each file that names it.

usage: tools/set_version.py X.Y.Z

These are the manifests of both workspaces and of ringlab, ringlab itself, each Cargo.lock with a crate of ours, and the example of
`python -m ringloop` in docs/backends.md. tools/release_check.py refuses a release if one of them names another version.
CHANGELOG.md is left to you.
"""

from __future__ import annotations

import argparse
import pathlib
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass

ROOT = pathlib.Path(__file__).resolve().parent.parent
LOCKS = (
    "Cargo.lock",
    "crates/ringloop-driver/fuzz/Cargo.lock",
    "crates/ringloop-http/fuzz/Cargo.lock",
    "crates/ringloop/ecosystem/Cargo.lock",
    "lab/Cargo.lock",
    "lab/targets/ringloop/Cargo.lock",
    "tools/services/Cargo.lock",
)
"""Those with a crate of this repository's that has the version of the release."""
PLACES = {
    "Cargo.toml": r'^version = "([^"]+)"|^ringloop\S* = \{.*\bversion = "([^"]+)"',
    "lab/Cargo.toml": r'^version = "([^"]+)"',
    "lab/pyproject.toml": r'^version = "([^"]+)"',
    "lab/ringlab/__init__.py": r'^__version__ = "([^"]+)"',
    "docs/backends.md": r"^ringloop +(\d\S*)$",
} | dict.fromkeys(
    LOCKS, r'^name = "(?:ringloop|ringloop-(?:driver|http|python|reactor)|ringlab-load)"\nversion = "([^"]+)"'
)
"""Files, and patterns whose groups are the version."""


@dataclass(frozen=True)
class Place:
    """A version in a text."""

    version: str
    begin: int
    end: int


def places(text: str, pattern: str) -> Iterator[Place]:
    """Yield each version in a text."""
    for match in re.finditer(pattern, text, re.MULTILINE):
        assert match.lastindex
        yield Place(match[match.lastindex], *match.span(match.lastindex))


def wrong_versions(wanted: str) -> Iterator[str]:
    """Yield what names another version, and what should name one and doesn't."""
    for name, pattern in PLACES.items():
        text = (ROOT / name).read_text()
        found = list(places(text, pattern))
        if not found:
            yield f"{name}: names no version"
        for place in found:
            if place.version != wanted:
                line = text.count("\n", 0, place.begin) + 1
                yield f"{name}:{line}: the version is {place.version} instead of {wanted}"


def set_version(wanted: str) -> None:
    """Write a version into all files."""
    for name, pattern in PLACES.items():
        text = (ROOT / name).read_text()
        for place in reversed(list(places(text, pattern))):
            text = text[: place.begin] + wanted + text[place.end :]
        (ROOT / name).write_text(text)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("version", metavar="X.Y.Z")
    wanted = parser.parse_args().version
    if not re.fullmatch(r"\d+\.\d+\.\d+", wanted):
        parser.error(f"{wanted} is not a version such as 1.2.3")
    set_version(wanted)
    print(
        f"set: {wanted}. CHANGELOG.md needs a section for it; tools/release_check.py --sources says what else is missing"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
