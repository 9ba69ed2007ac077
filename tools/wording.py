#!/usr/bin/env python3
"""Check that the repository speaks one dialect: the table in CONTRIBUTING.md, as far as a program can see it.

In the tracked Rust, Python and Markdown files:

- `so many`, `so often`, `so long` and `so much` must not stand for a number that the reader has to find. Only
  `so many that` and `so much faster that` are left alone.
- The documentation of an item must not begin with `What`: doc comments of Rust, the docs of native types, and Python's
  docstrings, also those of constants and attributes.
- Names of bounds end in `_MAX` and `_MIN`: `BUDGET_S_MAX`, neither `BUDGET_MOST_S` nor `MAX_BUDGET_S`.

Code in backticks is not checked, and recorded reports are left out. That docstrings are in the imperative mood is
for ruff to say (D401).

Prints each offence as `file:line: message`. Exits with 1 if there is one.
"""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from offences import Offence, Place, main

SUFFIXES = (".rs", ".py", ".pyi", ".md")
RECORDED = ("lab/tests/data/",)
"""Folders of texts that others have written."""

# A comment may go on in the next line, with its marks. A pattern that begins with letters is searched fast.
_GAP = r"(?:[ \t]+|[ \t]*\n[ \t]*(?://[/!]?|\#:?|\*|>)?[ \t]*)"
_PHRASES = [
    re.compile(
        rf"{so}(?<!\w{so}){_GAP}(?:(many|often|long)\b(?!{_GAP}that\b)|(much)\b(?!{_GAP}(?:\w+er{_GAP})?that\b))"
    )
    for so in ("so", "So")
]
_INSTEAD = {
    "many": "name the number, such as `count` requests",
    "often": "name the number of times or the interval, such as every `interval_s`",
    "long": "name the time, such as for `window_s`",
    "much": "name the amount, such as `size` bytes",
}
_BEGINNING = "begin with the noun or the verb, such as `The bytes to send` or `Return what ...`"
_DOC = {
    ".rs": re.compile(
        r"""^[ \t]*//[/!][ \t]+What\b | \bdoc:[ ]c"What\b | \#!?\[doc[ ]=[ ]"What\b""", re.VERBOSE | re.MULTILINE
    ),
    ".py": re.compile(r'^[ \t]*[rR]?"""(?:\\?\n)?[ \t]*What\b', re.MULTILINE),
}
_DOC[".pyi"] = _DOC[".py"]
_BOUND = re.compile(
    r"""
    (?<!\w) (?!AT_(?:MOST|LEAST)\b) ( [A-Z_][A-Z0-9_]*_(?:MOST|LEAST) (?:_[A-Z0-9_]+)? ) \b
    | ^[ \t]* (?:pub(?:\([^)]*\))?[ ])? (?:(?:const|static)[ ])? ( _?(?:MAX|MIN)_[A-Z0-9_]+ ) [ ]?[:=](?!=)
    """,
    re.VERBOSE | re.MULTILINE,
)


def _is_code(text: str, position: int) -> bool:
    """Return whether a position is within backticks that are opened in its line."""
    return text.count("`", text.rfind("\n", 0, position) + 1, position) % 2 == 1


def _offences_in(suffix: str, text: str) -> Iterator[tuple[int, str]]:
    """Yield the offences in a file's text: their positions and messages."""
    for match in itertools.chain.from_iterable(phrase.finditer(text) for phrase in _PHRASES):
        if not _is_code(text, match.start()):
            word = match[1] or match[2]
            yield match.start(), f"`so {word}`: {_INSTEAD[word]}"
    if suffix not in _DOC:
        return
    if "What" in text:
        for match in _DOC[suffix].finditer(text):
            if not _goes_on(text, match):
                yield match.end(), f"a doc begins with `What`: {_BEGINNING}"
    if "_MOST" in text or "_LEAST" in text or "MAX_" in text or "MIN_" in text:
        for match in _BOUND.finditer(text):
            name = match[1] or match[2]
            if not _is_code(text, position := match.start() + match[0].index(name)):
                yield position, f"`{name}`: bounds end in `_MAX` and `_MIN`, after the unit"


def _goes_on(text: str, match: re.Match[str]) -> bool:
    """Return whether a match is a line of a doc comment, but not its first one."""
    line_before = text[: match.start()].rpartition("\n")[0].rpartition("\n")[2].strip()
    return match[0].lstrip().startswith("//") and line_before.startswith(("///", "//!"))


def tracked_files(root: Path) -> list[str]:
    """Return the names of the files that are checked, relative to the root."""
    command = ["git", "-C", str(root), "ls-files", "-z", "--", *(f"*{suffix}" for suffix in SUFFIXES)]
    names = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout.split("\0")
    return [name for name in names if name and not name.startswith(RECORDED) and (root / name).is_file()]


def find_offences(root: Path) -> list[Offence]:
    """Return all violations in the repository at `root`."""
    offences = []
    for name in tracked_files(root):
        text = (root / name).read_text(encoding="utf-8")
        for position, message in _offences_in(Path(name).suffix, text):
            offences.append(Offence(Place(name, text.count("\n", 0, position) + 1), message))
    return sorted(offences)


if __name__ == "__main__":
    sys.exit(main("Check the wording of comments, documentation and names of bounds.", find_offences))
