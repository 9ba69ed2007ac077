"""Presets: runs that are asked for by one name, from presets.toml in the lab's folder."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ringlab import Refused, nearest, sources

FILE_NAME = "presets.toml"


@dataclass(frozen=True)
class Preset:
    """Which cells of which targets are measured, how long, and against which goals."""

    title: str
    cells: tuple[str, ...]
    targets: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of `ringlab run`, by their names there; what the user gives takes precedence."""
    goals: Path | None = None


def read(path: Path) -> dict[str, Preset]:
    """Return the presets of a file by their names; raise Refused."""
    needed, known = {"title", "cells"}, {each.name for each in fields(Preset)}
    found = {}
    try:
        for name, table in tomllib.loads(path.read_text()).items():
            if not isinstance(table, dict) or not needed <= table.keys() <= known:
                further = ", ".join(sorted(known - needed))
                raise Refused(f"{path}: [{name}] must have title and cells, and may have {further}")
            if wrong := [key for key in ("cells", "targets") if not isinstance(table.get(key, []), list)]:
                raise Refused(f"{path}: [{name}] must have a list of names as {wrong[0]}")
            goals = path.parent / table["goals"] if "goals" in table else None
            what = {"cells": tuple(table["cells"]), "targets": tuple(table.get("targets", ()))}
            found[name] = Preset(**{**table, **what, "goals": goals})
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise Refused(f"{path} cannot be read: {error}") from None
    return found


def all_presets() -> dict[str, Preset]:
    """Return the presets by their names: none where ringlab came without sources."""
    lab = sources.folder()
    return read(lab / FILE_NAME) if lab is not None else {}


def named(name: str) -> Preset:
    """Return a preset; raise Refused."""
    presets = all_presets()
    if name not in presets:
        near = nearest.suggest(name, list(presets))
        raise Refused(f"there is no preset {name!r}; {f'{near} ' if near else ''}there are: {', '.join(presets)}")
    return presets[name]
