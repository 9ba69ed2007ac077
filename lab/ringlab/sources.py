"""Where the lab's folder is, from which it builds targets and its load generator: around this package, or a copy in the cache.

A package of ringlab contains the sources as an archive (lab/hatch_build.py). It is unpacked where it is needed for the first time,
because builds write beside the sources, and the folder of a package may be read-only.
"""

import hashlib
import os
import shutil
import tarfile
import tempfile
from pathlib import Path

from ringlab import Refused

ARCHIVE = Path(__file__).resolve().parent / "sources.tar.gz"
PROGRAM = Path(__file__).resolve().parent / "bin" / "ringlab-load"
"""The load generator, in packages that have it."""


def clone() -> Path | None:
    """Return the lab's folder if this package is in it, as in a clone."""
    folder = Path(__file__).resolve().parent.parent
    return folder if (folder / "ringlab-load" / "Cargo.toml").exists() else None


def cache() -> Path:
    """Return the folder for unpacked sources and what else is kept between runs: ringlab in $XDG_CACHE_HOME or ~/.cache.

    Raise Refused where this user has no home.
    """
    named = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(named) if named else Path.home() / ".cache") / "ringlab"
    except RuntimeError:
        raise Refused(
            "this user has no home folder: set HOME, or XDG_CACHE_HOME to a folder for what is kept"
        ) from None


def unpacked(archive: Path, folder: Path) -> Path:
    """Return the folder with the archive's contents, after unpacking it if that has not happened yet."""
    name = hashlib.sha256(archive.read_bytes()).hexdigest()[:16]
    target = folder / name
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=f"{name}.", dir=folder))
        try:
            with tarfile.open(archive) as contents:
                # Before 3.11.4 there are no filters.
                contents.extraction_filter = getattr(tarfile, "data_filter", None)
                contents.extractall(fresh)
            try:
                fresh.rename(target)
            except OSError:
                # Another process may have been faster, and rename(2) replaces only empty folders.
                if not target.exists():
                    raise
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    return target


def folder() -> Path | None:
    """Return the lab's folder; None if this package came without sources."""
    found = clone()
    if found is None and ARCHIVE.exists():
        # The archive has the layout of the repository.
        found = unpacked(ARCHIVE, cache()) / "lab"
    return found
