"""The table of options: what the command line, the environment, the checks and docs/serve.md say about a setting.

Each field of `Config` is one row. Its name, its type and its default are the field's own, and `option` adds the rest. A new option
is a new field there, and code that reads it: the command line, its help, the environment variables, the checks and the table in
docs/serve.md (`make serve-options`) follow from the row.
"""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

LONGEST_S = 1_000_000_000
"""Longer than anybody waits."""

_LARGEST_INT = (1 << 31) - 1  # C's.

GROUPS = (
    "Listening",
    "Application",
    "Processes",
    "Reloading",
    "Logging",
    "Requests",
    "Limits",
    "WebSocket",
    "TLS",
    "Other",
)
"""The sections of the help, in its order."""


@dataclasses.dataclass(frozen=True)
class Numbers:
    """The whole numbers from `smallest` to `largest`, which fit into the server's and the kernel's types."""

    smallest: int
    largest: int = sys.maxsize

    def __contains__(self, value: Any) -> bool:
        return isinstance(value, int) and self.smallest <= value <= self.largest

    def __str__(self) -> str:
        largest = "sys.maxsize" if self.largest == sys.maxsize else self.largest
        return f"a whole number from {self.smallest} to {largest}"


@dataclasses.dataclass(frozen=True)
class Seconds:
    """The times up to `LONGEST_S`, from zero on or, if `positive`, above zero."""

    positive: bool = False

    def __contains__(self, value: Any) -> bool:
        return isinstance(value, int | float) and 0 <= value <= LONGEST_S and not (self.positive and value == 0)

    def __str__(self) -> str:
        return f"a number of seconds {'above' if self.positive else 'from'} 0, up to {LONGEST_S}"


@dataclasses.dataclass(frozen=True)
class Names:
    """These words."""

    words: tuple[str, ...]

    def __contains__(self, value: Any) -> bool:
        return value in self.words

    def __str__(self) -> str:
        return f"{', '.join(map(repr, self.words[:-1]))} or {self.words[-1]!r}"


POSITIVE, COUNT, C_COUNT = Numbers(1), Numbers(0), Numbers(0, _LARGEST_INT)
SECONDS, POSITIVE_SECONDS = Seconds(), Seconds(positive=True)


@dataclasses.dataclass(frozen=True)
class Option:
    """One row of the table: all that is known about a setting besides its name, its type and its default."""

    group: str
    """The section of the help."""
    help: str
    """One line for --help."""
    meaning: str
    """More than that, in Markdown, for docs/serve.md. It names the default unless the default is None or False."""
    values: Numbers | Seconds | Names | None
    """The values that it may have; None: each of its type."""
    zero_is_none: bool
    """0 means None: no limit."""
    kind: str
    """How the command line takes it: one of `_KINDS` in _command_line.py."""
    spelling: str
    """Its name on the command line."""
    metavar: str | None
    uvicorn: str | None
    """uvicorn's name for it, in Markdown; None: uvicorn has no such option, and no environment variable for it."""
    granian: str | None
    """The same for granian."""
    hidden: bool
    """Only taken because command lines for uvicorn may have it."""


def option(
    default: Any,
    group: str,
    help: str,
    *,
    meaning: str | None = None,
    values: Numbers | Seconds | Names | None = None,
    zero_is_none: bool = False,
    kind: str = "value",
    spelling: str = "",
    metavar: str | None = None,
    uvicorn: str | None = "the same",
    granian: str | None = None,
    hidden: bool = False,
) -> Any:
    """Return a field of a dataclass that is an option, with this default. The parameters are `Option`'s fields.

    `spelling` is the field's own name, with dashes, unless it is given. The meaning is the help unless it is given.
    """
    row = Option(group, help, meaning or help, values, zero_is_none, kind, spelling, metavar, uvicorn, granian, hidden)
    factory = {"default_factory": default} if callable(default) else {"default": default}
    return dataclasses.field(**factory, metadata={"option": row})


def options_of(config: type) -> Iterator[tuple[dataclasses.Field[Any], Option]]:
    """Return the fields of a dataclass that are options, with their rows, in the order of the help."""
    fields = [field for field in dataclasses.fields(config) if "option" in field.metadata]
    for field in sorted(fields, key=lambda field: GROUPS.index(field.metadata["option"].group)):
        row = field.metadata["option"]
        yield field, dataclasses.replace(row, spelling=row.spelling or "--" + field.name.replace("_", "-"))


def check(config: Any) -> None:
    """Check the value of each option, and make the zeros that mean "no limit" None. Raises ValueError, with the option's name."""
    for field, row in options_of(type(config)):
        value = getattr(config, field.name)
        may_be_none = "None" in str(field.type)
        if row.values is not None and not (value is None and may_be_none) and value not in row.values:
            raise ValueError(f"{field.name} must be {row.values}, not {value!r}")
        if row.zero_is_none and value == 0:
            setattr(config, field.name, None)
