"""The folder of a run, where its result and what people read of it lie."""

import contextlib
import datetime
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from ringlab import Refused, results
from ringlab.report import html, markdown

FOLDER = "ringlab-results"
RESULT_FILE = "result.json"


@contextlib.contextmanager
def claim(output: Path | None) -> Iterator[Path]:
    """Give the folder for results, which is made; one that holds a result, or can't be written to, is refused.

    Afterwards it is gone, if nothing came into it.
    """
    folder = output or Path(FOLDER) / datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    path = folder / RESULT_FILE
    if path.exists():
        raise Refused(f"{path} would be overwritten; choose another folder with --output")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise Refused(
            f"results can't be written to {folder}: {error.strerror}; choose another folder with --output"
        ) from None
    try:
        yield folder
    finally:
        with contextlib.suppress(OSError):
            folder.rmdir()


def keep_elsewhere(result: results.Result, unwritten: str) -> NoReturn:
    """Write a result elsewhere that can't be written to its own place, for the reason given; raises Refused, which says where."""
    folder = Path(tempfile.mkdtemp(prefix="ringlab-"))
    try:
        result.write(folder / RESULT_FILE)
    except OSError as error:
        print(json.dumps(result.to_json()))
        raise Refused(f"{unwritten}; nor to {folder}: {error.strerror}; the result is what was just printed") from None
    raise Refused(f"{unwritten}; the result is in {folder / RESULT_FILE}: `ringlab report {folder}` shows it")


def write_reports(result: results.Result, folder: Path) -> list[Path]:
    """Write what people read beside a result; return the files."""
    path = folder / "report.md"
    path.write_text(markdown.render(result), encoding="utf-8")
    written = [path]
    path = folder / "report.html"
    path.write_text(html.render([(folder.name, result)]), encoding="utf-8")
    return [*written, path]
