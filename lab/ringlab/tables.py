"""TOML files, read as dataclasses: the types of the fields say what is right.

A key that has no field is an error, so that a misspelt one never goes unnoticed. The check of Annotated[type, check], and a dataclass's
own __post_init__, raise ValueError with what the message says after the key.
"""

import contextlib
import dataclasses
import tomllib
import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import MISSING
from pathlib import Path
from typing import Annotated, Any, Literal

from ringlab import Refused, nearest

NAMES = {
    str: "a string",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "a table",
}
NUMBER_MAX = 1_000_000_000


class WrongFile(Refused):
    """A file can't be used; the message names file, key and remedy."""


class WrongKey(Exception):
    """The value of a key can't be used; the message names the key and the remedy."""


@contextlib.contextmanager
def reading(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the contents of a file; raise WrongFile, also for a WrongKey in the block."""
    try:
        yield tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise WrongFile(f"cannot read {path}: {error.strerror}") from None
    except WrongKey as error:
        raise WrongFile(f"{path}: {error}") from None
    except (ValueError, OverflowError, RecursionError) as error:  # Also of too many digits, and of too many brackets.
        raise WrongFile(f"{path} is not valid TOML: {error}") from None


def read(kind: Any, value: Any, place: str = "") -> Any:
    """Return a value as an instance of a type; raise WrongKey with its place in the file."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        made = read(arguments[0], value, place)
        with checking(f"{place} "):
            arguments[1](made)
        return made
    if origin is Literal:
        if value not in arguments:
            raise WrongKey(f"{place} must be one of {', '.join(arguments)}, not {value!r}")
        return value
    if origin in (typing.Union, types.UnionType):  # Of a type and None, which no file has.
        return read(arguments[0], value, place)
    if origin is tuple:
        return tuple(
            read(arguments[0], each, element(place, index, each)) for index, each in enumerate(read(list, value, place))
        )
    if origin is dict:
        return {key: read(arguments[1], each, within(place, key)) for key, each in read(dict, value, place).items()}
    if dataclasses.is_dataclass(kind):
        return read_class(kind, read(dict, value, place), place)
    if kind is Path:
        return Path(read(str, value, place))
    if kind is float and type(value) is int:
        value = float(value)
    if kind is not Any and type(value) is not kind:
        raise WrongKey(f"{place} must be {NAMES[kind]}, not {value!r}")
    return value


def read_class(kind: Any, table: dict[str, Any], place: str) -> Any:
    """Return an instance of a dataclass, whose fields without a default must be there."""
    hints = typing.get_type_hints(kind, include_extras=True)
    needed = [each.name for each in dataclasses.fields(kind) if each.default is each.default_factory is MISSING]
    for key in table:
        if key not in hints:
            known = nearest.suggest(key, hints) or f"known here: {', '.join(hints)}"
            raise WrongKey(f"{within(place, key)} is not known; {known}")
    values = {key: read(hints[key], each, within(place, key)) for key, each in table.items()}
    for key in needed:
        if key not in table:
            raise WrongKey(f"{within(place, key)} is missing; needed here: {', '.join(needed)}")
    with checking(within(place, "")):
        return kind(**values)


@contextlib.contextmanager
def checking(begin: str) -> Iterator[None]:
    """Raise WrongKey for a ValueError in the block, with how the message begins."""
    try:
        yield
    except ValueError as error:
        raise WrongKey(f"{begin}{error}") from None


def within(place: str, key: str) -> str:
    """Return the place of a key in a table."""
    return f"{place}.{key}" if place else key


def element(place: str, index: int, value: Any) -> str:
    """Return the place of an element of a list, which is a table's name where it has one."""
    return f"{place}[{value.get('name', index) if isinstance(value, dict) else index!r}]"


def at_least(least: float) -> Callable[[float], None]:
    """Return a check of a number, which is never so large that it can't be printed, nor inf or nan, as TOML also has them."""

    def check(value: float) -> None:
        if not least <= value <= NUMBER_MAX:
            raise ValueError(f"must be at least {least:g} and at most {NUMBER_MAX:,}, not {value!r}")

    return check
