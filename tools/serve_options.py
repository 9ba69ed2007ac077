"""Write the table of options in docs/serve.md, from the table in ringloop.http's `Config`.

It stands between two comments in the page. A test fails where the page doesn't say what the table says.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import Field
from pathlib import Path
from typing import Any

from ringloop.http._config import Config
from ringloop.http._options import Option, default_of, options_of

PAGE = Path(__file__).resolve().parent.parent / "docs" / "serve.md"
BEGIN, END = "<!-- serve-options: begin -->\n", "<!-- serve-options: end -->\n"
OF_COMMAND = (
    "| `--app-dir` | the same | `--working-dir` | put in front of `sys.path` |",
    "| `--config` | - | - | file with settings, in TOML: see [Configuration file](#configuration-file) |",
    "| `--check` | - | - | load the configuration, the certificate and the application, and exit: see [Checking](#checking) |",
)
"""The options that are no settings of a server."""


def names_of(row: Option) -> str:
    """Return how an option is spelled, in Markdown."""
    return ", ".join(f"`{name}`" for name in (row.spelling, row.negation) if name)


def meaning_of(field: Field[Any], row: Option) -> str:
    """Return what an option means, in Markdown, with its default first if it has one."""
    default, is_shown = default_of(field)
    if not is_shown:
        return row.meaning
    words = {"switch": "on", "truth": "true"}
    text = words.get(row.kind, f"`{default}`" if isinstance(default, str) else str(default).removesuffix(".0"))
    return f"default {text}" + (f". {row.meaning[0].upper()}{row.meaning[1:]}" if row.meaning else "")


def rows() -> Iterator[str]:
    """Return the lines of the table."""
    yield "| `ringloop serve` | uvicorn 0.54 | granian 2.8 | default and meaning |"
    yield "| --- | --- | --- | --- |"
    for field, row in options_of(Config):
        if not row.hidden:
            yield f"| {names_of(row)} | {row.uvicorn or '-'} | {row.granian or '-'} | {meaning_of(field, row)} |"
        if row.spelling == "--factory":
            yield from OF_COMMAND


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
