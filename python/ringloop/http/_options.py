"""The table of options: what the command line, the environment, the checks and docs/serve.md say about a setting.

Each field of `Config` is one row. Its name, its type and its default are the field's own, and `option` adds the rest. A new option
is a new field there, and code that reads it: the command line, its help, the environment variables, the checks and the table in
docs/serve.md (`make serve-options`) follow from the row.
"""

from __future__ import annotations

import dataclasses
import enum
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


@dataclasses.dataclass(frozen=True)
class Type:
    """The values of these types; the items of lists have the type `of`. `name` describes them to users."""

    types: tuple[type, ...]
    name: str
    of: type = object

    def __contains__(self, value: Any) -> bool:
        return isinstance(value, self.types) and (
            not isinstance(value, list) or all(isinstance(one, self.of) for one in value)
        )

    def __str__(self) -> str:
        return self.name


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
    """More than that, in Markdown, for docs/serve.md, which puts the default before it."""
    _: dataclasses.KW_ONLY
    values: Numbers | Seconds | Names | None = None
    """The values that it may have; None: each of its type."""
    zero_is_none: bool = False
    """0 means None: no limit."""
    kind: str = "value"
    """How the command line takes it: one of `_KINDS` in _command_line.py."""
    spelling: str = ""
    """Its name on the command line: the field's own, with dashes, unless it is given."""
    metavar: str | None = None
    uvicorn: str | None = "the same"
    """uvicorn's name for it, in Markdown; None: uvicorn has no such option."""
    granian: str | None = None
    """The same for granian."""
    hidden: bool = False
    """Only taken because command lines for uvicorn may have it."""

    @property
    def is_uvicorns(self) -> bool:
        """Whether uvicorn has an option, and so an environment variable, of the same name."""
        return self.uvicorn is not None and self.uvicorn.startswith("the same")

    @property
    def negation(self) -> str | None:
        """The spelling that turns a switch off."""
        return f"--no-{self.spelling.removeprefix('--')}" if self.kind == "switch" else None


def option(default: Any, *columns: Any, **more: Any) -> Any:
    """Return a field of a dataclass that is an option, with this default. The other arguments are `Option`'s."""
    factory = {"default_factory": default} if callable(default) else {"default": default}
    return dataclasses.field(**factory, metadata={"option": Option(*columns, **more)})


def options_of(config: type) -> Iterator[tuple[dataclasses.Field[Any], Option]]:
    """Yield the fields of a dataclass that are options, with their rows, in the order of the help."""
    fields = [field for field in dataclasses.fields(config) if "option" in field.metadata]
    for field in sorted(fields, key=lambda field: GROUPS.index(field.metadata["option"].group)):
        row = field.metadata["option"]
        yield field, dataclasses.replace(row, spelling=row.spelling or "--" + field.name.replace("_", "-"))


def default_of(field: dataclasses.Field[Any]) -> tuple[Any, bool]:
    """Return the default of an option, or None if it is made for each Config, and whether users are shown it."""
    default = None if field.default is dataclasses.MISSING else field.default
    if isinstance(default, enum.IntEnum):
        default = int(default)
    return default, isinstance(default, int | float | str) and default is not False and default != ""


def allowed_of(field: dataclasses.Field[Any], row: Option) -> Numbers | Seconds | Names | Type:
    """Return the values that an option may have in a file, where values have types."""
    if row.values is not None:
        return row.values
    if row.kind in ("switch", "flag", "truth"):
        return Type((bool,), "true or false")
    if row.kind == "number":
        return Numbers(-sys.maxsize)
    if row.kind in ("files", "globs", "headers", "folders"):
        return Type((list,), "a list of strings", str)
    if field.name == "log_config":
        return Type((str, dict), "the name of a file, or a table")
    return Type((str,), "a string")


def check(config: Any) -> None:
    """Check the value of each option, and make the zeros that mean "no limit" None. Raise ValueError, with the option's name."""
    for field in dataclasses.fields(config):
        row = field.metadata.get("option")
        if row is None:
            continue
        value = getattr(config, field.name)
        may_be_none = "None" in str(field.type)
        if row.values is not None and not (value is None and may_be_none) and value not in row.values:
            raise ValueError(f"{field.name} must be {row.values}, not {value!r}")
        if row.zero_is_none and value == 0:
            setattr(config, field.name, None)
