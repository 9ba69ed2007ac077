"""Builds the site of the documentation with Sphinx: `make docs`.

Its pages are the Markdown files that people also read on GitHub, and those of docs/site. They are copied into one folder, because
Sphinx reads only one. What is wrong with a link, a heading or a docstring is a warning of Sphinx, and fails the build.
"""

from __future__ import annotations

import argparse
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Sequence

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
# Pages outside of docs.
ROOT_PAGES = ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
FOLDERS = ("docs", "docs/decisions", "docs/site")


def pages() -> dict[str, pathlib.Path]:
    """Return the files of the pages, by the name that a page has on the site."""
    files = [REPOSITORY / name for name in ROOT_PAGES]
    for folder in FOLDERS:
        files += (REPOSITORY / folder).glob("*.md")
    found = {file.stem.lower(): file for file in sorted(files)}
    if len(found) < len(files):
        raise SystemExit("two pages have the same name; on the site, all pages are in one folder")
    return found


def stage(folder: pathlib.Path) -> None:
    """Make a folder with a copy of each page."""
    folder.mkdir(parents=True)
    for name, file in pages().items():
        shutil.copyfile(file, folder / f"{name}.md")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0], allow_abbrev=False)
    parser.add_argument("--output", type=pathlib.Path, default=REPOSITORY / "target" / "docs", help="the site's folder")
    parser.add_argument("--result", type=pathlib.Path, help="a result file of ringlab, for the page of charts")
    options = parser.parse_args(arguments)
    work = options.output.with_name(options.output.name + "-work")
    shutil.rmtree(work, ignore_errors=True)
    stage(work / "source")
    command: list[str | pathlib.Path] = [
        sys.executable,
        "-m",
        "sphinx",
        "--builder",
        "html",
        "--conf-dir",
        REPOSITORY / "docs" / "site",
    ]
    command += ["--doctree-dir", work / "doctrees", "--quiet", "--fail-on-warning", "--nitpicky"]
    if options.result:
        command += ["--define", f"run_result={options.result.resolve()}"]
    shutil.rmtree(options.output, ignore_errors=True)
    status = subprocess.run([*command, work / "source", options.output], check=False).returncode
    if status == 0:
        print(f"ready: {options.output / 'index.html'}")
    return status


if __name__ == "__main__":
    sys.exit(main())
