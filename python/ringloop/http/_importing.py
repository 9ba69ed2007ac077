"""Imports objects that the user names, and modules that only some options need."""

from __future__ import annotations

import importlib
from typing import Any

from ._errors import StartupError


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
        raise ImportFromStringError(f'Import string "{name}" must be in format "<module>:<attribute>".')
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise
        raise ImportFromStringError(f'Could not import module "{module_name}".') from None
    try:
        for attribute in attributes.split("."):
            found = getattr(found, attribute)
    except AttributeError:
        raise ImportFromStringError(f'Attribute "{attributes}" not found in module "{module_name}".') from None
    return found


def import_optional(module: str, package: str, purpose: str) -> Any:
    """Return a module that few users need. Raise StartupError with the command that installs it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:
            raise
        raise StartupError(f"{purpose} needs {package}: pip install {package}") from None
