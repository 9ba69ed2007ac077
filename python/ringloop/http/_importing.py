"""Imports objects that the user names, and modules that only some options need."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
import traceback
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from ._errors import StartupError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType, TracebackType

_P = ParamSpec("_P")
_R = TypeVar("_R")

USUAL_ATTRIBUTE = "app"
"""The usual name of an application in its module."""


class ImportFromStringError(Exception):
    """The named object cannot be found."""


def import_from_string(name: Any) -> Any:
    """Return the object that "module:attribute" names; anything but a string is returned as it is.

    Raise ImportFromStringError where the module or the attribute doesn't exist, and what the import itself raises.
    """
    if not isinstance(name, str):
        return name
    module_name, _, attributes = name.partition(":")
    if not module_name or not attributes:
        hint = _hint(as_name(name)) if module_name else ""
        raise ImportFromStringError(f'Import string "{name}" must be in format "<module>:<attribute>".{hint}')
    if _is_path(module_name):
        raise ImportFromStringError(f'Could not import module "{module_name}".{_hint(as_name(name))}')
    try:
        found = _import(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise
        raise ImportFromStringError(f'Could not import module "{module_name}".') from None
    try:
        for attribute in attributes.split("."):
            found = getattr(found, attribute)
    except AttributeError:
        import difflib  # Only mistakes need it.

        near = difflib.get_close_matches(attribute, dir(found), n=1)
        hint = _hint(f"{module_name}:{attributes.rpartition(attribute)[0]}{near[0]}") if near else ""
        text = f'Attribute "{attributes}" not found in module "{module_name}".{hint}'
        raise ImportFromStringError(text) from None
    return found


# The code of the functions that call the user's code while the server starts.
_CALLERS: set[CodeType] = set()


def calls_user(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Note that exceptions from this function come from the user's code; `import_failures_shown` shows them."""
    _CALLERS.add(function.__code__)
    return function


@calls_user
def _import(module_name: str) -> Any:
    return importlib.import_module(module_name)


def _is_path(module_name: str) -> bool:
    """Return whether this is a file's path rather than a module's name. A package may have a module "py"."""
    if os.sep in module_name:
        return True
    if not module_name.endswith(".py"):
        return False
    try:
        package = importlib.util.find_spec(module_name.partition(".")[0])
    except (ImportError, ValueError):
        return True
    return package is None or package.submodule_search_locations is None


def as_name(text: str) -> str:
    """Return "module:attribute" for what a user wrote instead: "main", "main.py", "main.py:app" or "src/main.py".

    If no module name can reach the file's folder, the result also has the option --app-dir.
    """
    path, _, attribute = text.partition(":")
    directory, _, file = path.removesuffix(".py").rpartition(os.sep)
    attribute = attribute or USUAL_ATTRIBUTE
    parts = os.path.normpath(directory).split(os.sep) if directory else []
    if path.startswith(os.sep) or not all(part.isidentifier() or part == os.curdir for part in parts):
        return f"--app-dir {directory or os.sep} {file}:{attribute}"
    return f"{'.'.join([*(part for part in parts if part != os.curdir), file])}:{attribute}"


def _hint(name: str) -> str:
    return f' Did you mean "{name}"?'


@contextlib.contextmanager
def import_failures_shown() -> Iterator[None]:
    """Print the traceback of an exception that the user's module or factory raises, and raise SystemExit(1).

    It begins with the user's first frame: those before it, of the server and importlib, mean nothing to the user.
    """
    try:
        yield
    except Exception as error:
        if not _is_users(error):
            raise
        error.__traceback__ = _frames_of_user(error.__traceback__)
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(1)


def _is_users(error: Exception) -> bool:
    frames = traceback.walk_tb(error.__traceback__)
    return not isinstance(error, StartupError) and any(frame.f_code in _CALLERS for frame, _ in frames)


def _frames_of_user(frames: TracebackType | None) -> TracebackType | None:
    """Return the part of a traceback after the function that calls the user's code, and after importlib's frames."""
    while frames is not None and frames.tb_frame.f_code not in _CALLERS:
        frames = frames.tb_next
    while frames is not None and (frames.tb_frame.f_code in _CALLERS or _is_importlibs(frames)):
        frames = frames.tb_next
    return frames


def _is_importlibs(frames: TracebackType) -> bool:
    module: str = frames.tb_frame.f_globals.get("__name__") or ""
    return module.partition(".")[0] == importlib.__name__


def import_optional(module: str, package: str, purpose: str) -> Any:
    """Return a module that few users need. Raise StartupError with the command that installs it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:
            raise
        raise StartupError(f"{purpose} needs {package}: pip install {package}") from None
