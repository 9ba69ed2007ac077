"""Time one use of files in the page cache, by a library for asynchronous files or by blocking calls.

    files.py --library blocking|ringloop|aiofiles|anyio|urio|turbofile|asyncfiles --window SECONDS CELL

Prints the time of one operation as a JSON object. All of them run on ringloop's loop.
"""

import argparse
import asyncio
import importlib
import inspect
import json
import os
import tempfile
import time
import warnings
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import ringloop

Work = Callable[[int], Awaitable[None]]
"""Does something as often as its argument says."""

PAGE = 4096
MEGABYTE = 1 << 20
SMALL_FILES = 1000
LINES = 20_000
PIECES = 20_000
STATS = 1000
RENAMES = 200
TASKS = 50
PIECE = b"0123456789abcdef" * 6 + b"end\n"


class Folder:
    """The files that are read and written."""

    def __init__(self, path: Path) -> None:
        self.large = path / "large"
        self.large.write_bytes(os.urandom(MEGABYTE))
        self.lines = path / "lines"
        self.lines.write_text("".join(f"line {number} with some words in it\n" for number in range(LINES)))
        self.small = [path / f"small{number}" for number in range(SMALL_FILES)]
        for small in self.small:
            small.write_bytes(b"x" * 1000)
        self.written = path / "written"
        self.renamed = [(path / f"old{number}", path / f"new{number}") for number in range(TASKS)]
        for old, _ in self.renamed:
            old.touch()


async def blocking(cell: str, folder: Folder) -> Work:
    """Return the work of a cell with the builtin `open`."""
    file = open(folder.large, "rb")  # noqa: SIM115 - it stays open for all rounds

    async def pread(count: int) -> None:
        fd = file.fileno()
        for _ in range(count):
            os.pread(fd, PAGE, 8 * PAGE)

    async def read(count: int) -> None:
        for _ in range(count):
            file.seek(0)
            file.read()

    async def small(count: int) -> None:
        for _ in range(count):
            for path in folder.small:
                with open(path, "rb") as each:
                    each.read()

    async def lines(count: int) -> None:
        for _ in range(count):
            with open(folder.lines) as each:
                for _line in each:
                    pass

    async def write(count: int) -> None:
        for _ in range(count):
            with open(folder.written, "wb") as each:
                for _piece in range(PIECES):
                    each.write(PIECE)

    async def stat(count: int) -> None:
        for _ in range(count * STATS):
            os.stat(folder.lines)

    async def rename(count: int) -> None:
        for _ in range(count * RENAMES // TASKS // 2):
            for old, new in folder.renamed:
                os.rename(old, new)
                os.rename(new, old)

    works = {work.__name__: work for work in (pread, read, small, lines, write, stat, rename)}
    return works["stat" if cell == "many_stats" else cell]


def awaited(
    open_file: Callable[..., Any],
    stat_of: Callable[[Path], Awaitable[Any]],
    move: Callable[[Path, Path], Awaitable[Any]],
) -> Callable[[str, Folder], Awaitable[Work]]:
    """Return the works of a library whose `open` gives an asynchronous context manager."""

    async def prepare(cell: str, folder: Folder) -> Work:
        file = await (await opened(open_file(folder.large, "rb"))).__aenter__()
        fetch, read_at = getattr(file, "pread", None), getattr(file, "read_at", None)
        # py-asyncfiles moves the position at once, the others in a coroutine.
        moving = file.seek(0)
        moved_at_once = not inspect.isawaitable(moving)
        if not moved_at_once:
            await moving

        async def pread(count: int) -> None:
            for _ in range(count):
                if fetch is not None:
                    await fetch(PAGE, 8 * PAGE)
                elif read_at is not None:
                    await read_at(8 * PAGE, PAGE)
                elif moved_at_once:
                    file.seek(8 * PAGE)
                    await file.read(PAGE)
                else:
                    await file.seek(8 * PAGE)
                    await file.read(PAGE)

        async def read(count: int) -> None:
            for _ in range(count):
                if moved_at_once:
                    file.seek(0)
                else:
                    await file.seek(0)
                await file.read()

        async def one(path: Path) -> None:
            async with await opened(open_file(path, "rb")) as each:
                await each.read()

        async def small(count: int) -> None:
            for _ in range(count):
                await asyncio.gather(*map(one, folder.small))

        async def lines(count: int) -> None:
            for _ in range(count):
                async with await opened(open_file(folder.lines)) as each:
                    async for _line in each:
                        pass

        async def write(count: int) -> None:
            for _ in range(count):
                async with await opened(open_file(folder.written, "wb")) as each:
                    for _piece in range(PIECES):
                        await each.write(PIECE)

        async def stats(count: int) -> None:
            for _ in range(count):
                await stat_of(folder.lines)

        async def stat(count: int) -> None:
            await stats(count * STATS)

        async def many_stats(count: int) -> None:
            await asyncio.gather(*(stats(count * STATS // TASKS) for _ in range(TASKS)))

        async def there_and_back(old: Path, new: Path, count: int) -> None:
            for _ in range(count):
                await move(old, new)
                await move(new, old)

        async def rename(count: int) -> None:
            times = count * RENAMES // TASKS // 2
            await asyncio.gather(*(there_and_back(old, new, times) for old, new in folder.renamed))

        works = (pread, read, small, lines, write, stat, many_stats, rename)
        return {work.__name__: work for work in works}[cell]

    return prepare


def library_of(name: str) -> Callable[[str, Folder], Awaitable[Work]]:
    """Return the works of a library."""
    module, function = OPENERS[name]
    opening = getattr(importlib.import_module(module), function)
    if name in WITH_PATHS:
        path_of = importlib.import_module(module).Path
        return awaited(opening, lambda path: path_of(path).stat(), lambda old, new: path_of(old).rename(new))
    if name in WITHOUT_STATUS:
        return awaited(opening, missing, missing)
    functions = importlib.import_module(f"{module}.os")
    return awaited(opening, functions.stat, functions.rename)


async def missing(*_: Path) -> None:
    """Say that there is no such function: target.toml declares that these cells are not for it."""
    raise NotImplementedError("this library has no such function")


async def opened(context: Any) -> Any:
    """Return a context manager: AnyIO's `open_file` is a coroutine, whose file is one."""
    return await context if asyncio.iscoroutine(context) and not hasattr(context, "__aenter__") else context


CELLS = {
    "pread_4KB": ("pread", 1),
    "read_1MB": ("read", 1),
    "1000_small": ("small", SMALL_FILES),
    "lines": ("lines", LINES),
    "write_100B": ("write", PIECES),
    "stat": ("stat", STATS),
    "50_stat": ("many_stats", STATS),
    "50_rename": ("rename", RENAMES),
}
"""The calls that are measured, and how many operations each one is."""
OPENERS = {
    "ringloop": ("ringloop.files", "open"),
    "aiofiles": ("aiofiles", "open"),
    "anyio": ("anyio", "open_file"),
    "urio": ("urio", "open"),
    "turbofile": ("turbofile", "open"),
    "asyncfiles": ("asyncfiles", "open"),
}
WITH_PATHS = ("anyio", "urio")
"""Libraries that rename files and get their status through a class of paths."""
WITHOUT_STATUS = ("turbofile", "asyncfiles")
"""Libraries without stat and rename."""


async def measure(library: str, cell: str, folder: Folder, window_s: float) -> float:
    """Return how many ns one operation takes."""
    name, operations = CELLS[cell]
    if library == "blocking":
        work = await blocking(name, folder)
    else:
        work = await library_of(library)(name, folder)
    await work(1)
    count = 1
    while True:
        begin_ns = time.perf_counter_ns()
        await work(count)
        took_ns = time.perf_counter_ns() - begin_ns
        if took_ns >= window_s * 1e9:
            return took_ns / (count * operations)
        count = max(count * 2, int(count * window_s * 1e9 / max(took_ns, 1000)))


def main() -> None:
    """Read the command line, measure, and print."""
    parser = argparse.ArgumentParser(description="Time one use of files.")
    parser.add_argument("--library", choices=["blocking", *OPENERS], required=True)
    parser.add_argument("--window", type=float, default=0.1, metavar="S")
    parser.add_argument("cell", choices=["probe", *CELLS])
    options = parser.parse_args()
    loop = ringloop.new_event_loop()
    try:
        if options.cell == "probe":
            if options.library in OPENERS:
                importlib.import_module(OPENERS[options.library][0])
            print(f"ringloop {ringloop.__version__} on {loop.backend}")
            return
        # The files that stay open for the whole measurement.
        warnings.simplefilter("ignore", ResourceWarning)
        with tempfile.TemporaryDirectory(prefix="ringlab-files-") as path:
            operation_ns = loop.run_until_complete(
                measure(options.library, options.cell, Folder(Path(path)), options.window)
            )
            print(json.dumps({"figures": {"operation_ns": operation_ns}}))
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


if __name__ == "__main__":
    main()
