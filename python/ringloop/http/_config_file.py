"""A file with settings: `[tool.ringloop.serve]` in pyproject.toml, or a file of its own, in TOML."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from ._config import Config
from ._options import Type, allowed_of, options_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ._options import Names, Numbers, Seconds

PYPROJECT = "pyproject.toml"
TABLE = ("tool", "ringloop", "serve")

# Settings of the command that a server doesn't have.
_OF_COMMAND = ("app", "app_dir")

# Other environment variables that set an option, and take precedence over the file. The server reads them.
_VARIABLES = {"backend": "RINGLOOP_BACKEND", "workers": "WEB_CONCURRENCY", "forwarded_allow_ips": "FORWARDED_ALLOW_IPS"}


class ConfigFileError(Exception):
    """The file can't be used. The message names the file and the line."""


class ConfigFile:
    """The settings in a file. `values` has them by the names of `Config`'s fields, `app` and `app_dir`.

    Raise ConfigFileError where it can't be read, or has an unknown name or a value of the wrong type.
    """

    def __init__(self, path: str) -> None:
        import tomllib  # Most servers have no such file.

        self._path = path
        try:
            with open(path, "rb") as file:
                self._text = file.read().decode()
            content = tomllib.loads(self._text)
        except OSError as error:
            raise ConfigFileError(f"{path}: {error.strerror or error}") from None
        except UnicodeDecodeError as error:
            raise ConfigFileError(f"{path}: not encoded in UTF-8: {error.reason}") from None
        except tomllib.TOMLDecodeError as error:
            raise ConfigFileError(f"{_with_line(path, str(error))}") from None
        self._is_pyproject = os.path.basename(path) == PYPROJECT
        self._table: Any = content
        for name in TABLE if self._is_pyproject else ():
            self._table = self._table.get(name, {}) if isinstance(self._table, dict) else {}
        self.values = dict(self._read())

    def place_of(self, name: str) -> str:
        """Return where a setting is, by the name of its field: a file and a line."""
        key = next((key for key in self._table if _field_name(key) == name), name)
        return f"{self._path}:{self._line_of(key)}"

    def _read(self) -> Iterator[tuple[str, Any]]:
        if not isinstance(self._table, dict):
            raise ConfigFileError(f"{self._path}: tool.ringloop.serve must be a table")
        allowed = _allowed()
        seen: dict[str, str] = {}
        for key, value in self._table.items():
            name = _field_name(key)
            where = f"{self._path}:{self._line_of(key)}"
            if name not in allowed:
                raise ConfigFileError(f"{where}: {_unknown(key, allowed)}")
            if name in seen:
                raise ConfigFileError(f"{where}: {key!r} and {seen[name]!r} are the same setting")
            seen[name] = key
            values = allowed[name]
            if (isinstance(value, bool) and not _is_of_bool(values)) or value not in values:
                raise ConfigFileError(f"{where}: {key} must be {values}, not {value!r}")
            if os.environ.get(_VARIABLES.get(name, ""), "") == "":
                yield name, value

    def _line_of(self, key: str) -> int:
        """Return the line of a key in the table. tomllib doesn't give it, so this looks for the usual spellings."""
        is_inside = not self._is_pyproject
        header = 1
        pattern = re.compile(rf"""\s*["']?{re.escape(key)}["']?\s*[=.]""")
        nested = re.compile(rf"""\s*\[.*\b["']?{re.escape(key)}["']?[\].]""")
        for number, line in enumerate(self._text.splitlines(), 1):
            if re.match(r"\s*\[\s*tool\s*\.\s*ringloop\s*\.\s*serve\s*\]", line):
                is_inside, header = self._is_pyproject, number
            elif re.match(r"\s*\[", line):
                if nested.match(line):
                    return number
                is_inside = False
            elif is_inside and pattern.match(line):
                return number
        return header


def find(directories: list[str]) -> ConfigFile | None:
    """Return the settings in the first of these directories' pyproject.toml that has some; None if there are none."""
    for directory in directories:
        path = os.path.join(directory, PYPROJECT)
        if os.path.isfile(path) and _has_table(path):
            return ConfigFile(path)
    return None


def _has_table(path: str) -> bool:
    """Return whether a pyproject.toml has settings. One without is not our business, even if it is invalid."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return re.search(r"^\s*\[\s*tool\s*\.\s*ringloop\s*\.\s*serve\b", file.read(), re.MULTILINE) is not None
    except OSError:
        return False


def _allowed() -> dict[str, Numbers | Seconds | Names | Type]:
    options = {field.name: allowed_of(field, row) for field, row in options_of(Config)}
    return options | dict.fromkeys(_OF_COMMAND, Type((str,), "a string"))


def _is_of_bool(values: object) -> bool:
    return isinstance(values, Type) and bool in values.types


def _field_name(key: str) -> str:
    return key.replace("-", "_")


def _unknown(key: str, allowed: dict[str, Any]) -> str:
    import difflib  # Only mistakes need it.

    near = difflib.get_close_matches(_field_name(key), allowed, n=1)
    hint = f" Did you mean {near[0].replace('_', '-')!r}?" if near else ""
    return f"there is no option {key!r}.{hint}"


def _with_line(path: str, message: str) -> str:
    """Put the line of tomllib's message behind the file's name, where all messages have it."""
    found = re.fullmatch(r"(.*) \(at line (\d+), column \d+\)", message, re.DOTALL)
    return f"{path}:{found[2]}: {found[1]}" if found else f"{path}: {message}"
