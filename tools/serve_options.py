"""Write the table of options in docs/serve.md, from the table in ringloop.http's `Config`.

It stands between two comments in the page. A test fails where the page doesn't say what the table says.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from ringloop.http._config import Config
from ringloop.http._options import Option, options_of

PAGE = Path(__file__).resolve().parent.parent / "docs" / "serve.md"
BEGIN, END = "<!-- serve-options: begin -->\n", "<!-- serve-options: end -->\n"
APP_DIR = "| `--app-dir` | the same | `--working-dir` | put in front of `sys.path` |"
"""The only option that is no setting of a server."""


def names_of(row: Option) -> str:
    """Return how an option is spelled, in Markdown."""
    negated = f", `--no-{row.spelling.removeprefix('--')}`" if row.kind == "switch" else ""
    return f"`{row.spelling}`{negated}"


def rows() -> Iterator[str]:
    """Return the lines of the table."""
    yield "| `ringloop serve` | uvicorn 0.54 | granian 2.8 | default and meaning |"
    yield "| --- | --- | --- | --- |"
    for _, row in options_of(Config):
        if not row.hidden:
            yield f"| {names_of(row)} | {row.uvicorn or '-'} | {row.granian or '-'} | {row.meaning} |"
        if row.spelling == "--factory":
            yield APP_DIR


def with_table(text: str) -> str:
    """Return the page with the table as it is now."""
    head, _, rest = text.partition(BEGIN)
    _, found, tail = rest.partition(END)
    if not found:
        raise SystemExit(f"{PAGE}: the comments around the table are missing: {BEGIN.strip()} and {END.strip()}")
    return "".join([head, BEGIN, *(f"{row}\n" for row in rows()), END, tail])


def main() -> int:
    """Write the page. Return the exit status."""
    PAGE.write_text(with_table(PAGE.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
