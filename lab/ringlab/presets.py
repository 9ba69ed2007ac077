"""Presets: runs that are asked for by one name, from presets.toml in the lab's folder."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ringlab import Refused, nearest, sources, tables

FILE_NAME = "presets.toml"


@dataclass(frozen=True)
class Preset:
    """Which cells of which targets are measured, how long, and against which goals."""

    title: str
    cells: tuple[str, ...]
    targets: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    """Of `ringlab run`, by their names there; what the user gives takes precedence."""
    goals: Path | None = None
    """In presets.toml relative to its folder."""


def read(path: Path) -> dict[str, Preset]:
    """Return the presets of a file by their names; raise tables.WrongFile."""
    with tables.reading(path) as content:
        found: dict[str, Preset] = tables.read(dict[str, Preset], content)
    return {name: replace(each, goals=each.goals and path.parent / each.goals) for name, each in found.items()}


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
