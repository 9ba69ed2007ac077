"""Presets: runs that are asked for by one name."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ringlab import Refused, nearest, sources

GOALS_FOLDER = "goals"
NATIVE_TARGETS = ("ringloop-rust-*", "ringloop-hyper-*", "hyper", "tokio", "monoio", "c-epoll", "c-io_uring")
NATIVE_CELLS = (
    "echo/framed/*/[0-9]",
    "echo/framed/*/[0-9][0-9]",
    "echo/framed/*/500",
    "http/*/closed",
    "bind/listen/1",
)


@dataclass(frozen=True)
class Preset:
    """Which cells of which arms are measured, how long, and against which goals."""

    title: str
    what: tuple[str, ...]
    targets: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of `ringlab run`, by their names there; what the user gives goes before."""
    goals: str = ""
    """The file, in GOALS_FOLDER."""

    def goals_file(self) -> Path | None:
        """Return where its goals are, in a clone or in the sources that the package contains."""
        lab = sources.folder()
        path = lab / GOALS_FOLDER / self.goals if lab is not None and self.goals else None
        return path if path is not None and path.exists() else None


PRESETS = {
    "loops": Preset(
        "Python's event loops in the main cells of the workload loops, in under 9 minutes",
        ("loops",),
        options={"quick": True, "minutes": 8.2},
        goals="loops.toml",
    ),
    "loops-full": Preset(
        "the same in every cell, with longer samples",
        ("loops",),
        options={"rounds": 5},
        goals="loops.toml",
    ),
    "native": Preset(
        "ringloop's Rust runtime, tokio, monoio, hyper and raw C: echo, HTTP and listening, in under 8 minutes",
        (*NATIVE_CELLS, "echo/framed/1KB/*/workers-2", "echo/framed/16KB/*/workers-2"),
        NATIVE_TARGETS,
        options={"quick": True, "minutes": 7.0, "seconds": 0.2},
        goals="native.toml",
    ),
    "native-full": Preset(
        "the same with more cells of two workers, and longer samples",
        (*NATIVE_CELLS, "echo/framed/*/workers-2"),
        NATIVE_TARGETS,
        options={"rounds": 7, "seconds": 0.6, "system_calls": False},
        goals="native.toml",
    ),
    "files": Preset(
        "ringloop.files, aiofiles, AnyIO and blocking calls",
        ("files",),
        options={"quick": True, "minutes": 5.0},
    ),
}


def named(name: str) -> Preset:
    """Return a preset; raise Refused."""
    if name not in PRESETS:
        near = nearest.suggest(name, list(PRESETS))
        raise Refused(f"there is no preset {name!r}; {near or ''} there are: {', '.join(PRESETS)}")
    return PRESETS[name]
