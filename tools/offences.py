"""The offences that a check of the sources finds, and the program around such a check."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, order=True)
class Place:
    """A line of a file, relative to the root of the repository."""

    path: str
    line: int


@dataclass(frozen=True, order=True)
class Offence:
    """A violation, and where it is."""

    place: Place
    message: str

    def __str__(self) -> str:
        return f"{self.place.path}:{self.place.line}: {self.message}"


def main(description: str, find_offences: Callable[[Path], Sequence[Offence]]) -> int:
    """Print the offences in the repository; the exit code is 1 if there are any."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent, help="the repository")
    offences = find_offences(parser.parse_args().root)
    for offence in offences:
        print(offence)
    return 1 if offences else 0
