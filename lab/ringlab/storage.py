"""The folder of a run, where its result and what people read of it lie."""

import contextlib
import datetime
import fcntl
import itertools
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NoReturn

from ringlab import Refused, results, sources
from ringlab.report import html, markdown

FOLDER = "ringlab-results"
RESULT_FILE = "result.json"
HTML_FILE = "report.html"
OVERHEAD_S_MAX = 600.0


def result_file(path: Path) -> Path:
    """Return the result that a path names: the file itself, or that in the folder."""
    return path / RESULT_FILE if path.is_dir() else path


@contextlib.contextmanager
def claim(output: Path | None) -> Iterator[Path]:
    """Give the folder for results, which is this run's alone until the end; one that holds a result, or can't be written to, is refused.

    Afterwards it is gone, if nothing came into it.
    """
    with contextlib.ExitStack() as stack:
        try:
            if output is None:
                folder = make_unique(Path(FOLDER), datetime.datetime.now().strftime("%Y%m%d-%H%M%S"))
            else:
                folder = output
                folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(lock(folder))
            if (folder / RESULT_FILE).exists():
                raise Refused(f"{folder / RESULT_FILE} would be overwritten; choose another folder with --output")
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            raise Refused(
                f"results can't be written to {output or FOLDER}: {error.strerror}; choose another folder with --output"
            ) from None
        try:
            yield folder
        finally:
            with contextlib.suppress(OSError):
                folder.rmdir()


def make_unique(parent: Path, name: str) -> Path:
    """Make a folder that nobody else has made, also not in the same second."""
    parent.mkdir(parents=True, exist_ok=True)
    for number in itertools.count(1):
        folder = parent / (name if number == 1 else f"{name}-{number}")
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
            return folder
    raise AssertionError("there is always a next number")


@contextlib.contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Keep other labs from writing into a folder; raise Refused where one does already."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise Refused(f"another lab writes its results to {folder}; choose another folder with --output") from None
    except OSError:
        pass  # A file system over the network may lock no folders, and is no reason to measure nothing.
    try:
        yield
    finally:
        os.close(descriptor)


def overheads_file() -> Path:
    """Return where it is kept how long samples took beyond what is measured, so that the next run's estimate is right.

    Raise Refused where this user has no home.
    """
    return sources.cache() / "overheads.json"


def read_overheads() -> dict[str, float]:
    """Return what earlier runs have found, if anything."""
    try:
        content = json.loads(overheads_file().read_text())
        return {str(key): min(max(float(value), 0.0), OVERHEAD_S_MAX) for key, value in content.items()}
    except (Refused, OSError, ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        return {}


def write_overheads(found: Mapping[str, float]) -> None:
    """Keep what a run has found; that it can't be kept harms nothing."""
    with contextlib.suppress(OSError, Refused):
        path = overheads_file()
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f"{path.name}.{os.getpid()}")
        unfinished.write_text(json.dumps({key: round(value, 3) for key, value in found.items()}))
        unfinished.replace(path)


def keep_elsewhere(result: results.Result, unwritten: str) -> NoReturn:
    """Write a result elsewhere that can't be written to its own place, for the reason given; raise Refused, which says where it is."""
    try:
        folder = Path(tempfile.mkdtemp(prefix="ringlab-"))
        result.write(folder / RESULT_FILE)
    except OSError as error:
        raise Refused(
            f"{unwritten}; nor can a folder for temporary files: {error.strerror}; what was measured is lost"
        ) from None
    raise Refused(f"{unwritten}; the result is in {folder / RESULT_FILE}: `ringlab report {folder}` shows it")


def write_reports(result: results.Result, folder: Path) -> list[Path]:
    """Write what people read beside a result; return the files."""
    path = folder / "report.md"
    results.write_text(path, markdown.render(result))
    written = [path]
    path = folder / HTML_FILE
    results.write_text(path, html.render(folder.name, result))
    return [*written, path]
