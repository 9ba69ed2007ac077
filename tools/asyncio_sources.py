"""Report what has changed in the parts of asyncio that ringloop replaces, copies or relies on.

asyncio_sources.txt has the SHA-256 of the source of each of these functions, for each release of Python whose asyncio somebody has
read with ringloop in mind. A release that is not in it is compared with those of the same minor version:

    python tools/asyncio_sources.py                    what differs from the nearest release that was read
    python tools/asyncio_sources.py --diff OTHER       the text of it, if OTHER is an interpreter of that release
    python tools/asyncio_sources.py --update           "I have read it": enters the running release

tests/interpreter/test_asyncio_sources.py does the first of these. Exits with 0 if all is as it was read, with 1 if something differs.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import dataclasses
import difflib
import hashlib
import platform
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

DATA = Path(__file__).with_suffix(".txt")

# The classes and functions, by module. Each function of a class counts separately, and everything between the functions
# counts as one item.
PARTS = {
    "base_events": (
        "BaseEventLoop",
        "Server",
        "_SendfileFallbackProtocol",
        "_format_handle",
        "_ipaddr_info",
        "_set_nodelay",
    ),
    "base_subprocess": ("BaseSubprocessTransport",),
    "events": ("Handle", "TimerHandle", "_ThreadSafeHandle"),
    "format_helpers": ("_format_callback_source", "_format_callback", "_format_args_and_kwargs"),
    "futures": ("_set_result_unless_cancelled",),
    "selector_events": (
        "BaseSelectorEventLoop",
        "_SelectorTransport",
        "_SelectorSocketTransport",
        "_SelectorDatagramTransport",
    ),
    "sslproto": (
        "SSLProtocol",
        "_SSLProtocolTransport",
        "SSLProtocolState",
        "AppProtocolState",
        "add_flowcontrol_defaults",
    ),
    "streams": (
        "FlowControlMixin",
        "StreamReader",
        "StreamReaderProtocol",
        "StreamWriter",
        "start_server",
        "start_unix_server",
    ),
    "subprocess": ("SubprocessStreamProtocol", "Process"),
    "transports": (
        "BaseTransport",
        "ReadTransport",
        "WriteTransport",
        "Transport",
        "DatagramTransport",
        "_FlowControlMixin",
    ),
    "trsock": ("TransportSocket",),
    "unix_events": (
        "_UnixSelectorEventLoop",
        "_UnixReadPipeTransport",
        "_UnixWritePipeTransport",
        "_UnixSubprocessTransport",
        "PidfdChildWatcher",
        "ThreadedChildWatcher",
        "_PidfdChildWatcher",
        "_ThreadedChildWatcher",
    ),
}

Hashes = dict[str, dict[str, list[str]]]
"""For each function, by its name, and for each hash of its source: the releases that have it."""


def sources(folder: Path) -> dict[str, str]:
    """Return the source of each function in PARTS, by its name, from the folder of an asyncio package."""
    found: dict[str, str] = {}
    for module, parts in PARTS.items():
        text = (folder / f"{module}.py").read_text()
        lines = text.splitlines(keepends=True)
        for node in _top(ast.parse(text).body):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name in parts:
                for name, source in _functions(f"{module}.{node.name}", node, lines).items():
                    # Some are defined twice, in the branches of a condition.
                    found[name] = found.get(name, "") + source
    return found


def _top(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a module, with those in the branches of its conditions."""
    for node in body:
        yield node
        if isinstance(node, ast.If):
            yield from _top(node.body + node.orelse)


def _functions(
    name: str, node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, lines: list[str]
) -> dict[str, str]:
    """Return the source of a function, or of a class's functions and of everything between them."""
    span = _span(node)
    if not isinstance(node, ast.ClassDef):
        return {name: "".join(lines[number] for number in span)}
    found: dict[str, str] = {}
    between = {number: lines[number] for number in span}
    for inner in ast.walk(node):
        if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef) and inner.lineno - 1 in between:
            source = found.setdefault(f"{name}.{inner.name}", "")
            found[f"{name}.{inner.name}"] = source + "".join(between.pop(number) for number in _span(inner))
    found[name] = "".join(line for line in between.values() if line.strip())
    return found


def _span(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> range:
    """Return the indices of the lines of a definition, decorators included."""
    first = min([node.lineno, *(it.lineno for it in node.decorator_list)])
    return range(first - 1, node.end_lineno or first)


def hashes(found: dict[str, str]) -> dict[str, str]:
    """Return the SHA-256 of each source, in hexadecimal digits."""
    return {name: hashlib.sha256(source.encode()).hexdigest() for name, source in found.items()}


@dataclasses.dataclass
class Comparison:
    """The differences in a release's asyncio that no maintainer has reviewed yet."""

    release: str
    nearest: str | None
    """The release that it was compared with: itself, or the last reviewed one of the same minor version."""
    changed: list[str]
    gone: list[str]
    new: list[str]

    @property
    def differs(self) -> bool:
        return self.nearest is None or bool(self.changed or self.gone or self.new)

    def __str__(self) -> str:
        if self.nearest is None:
            minor = self.release.rpartition(".")[0]
            return (
                f"nobody has read the asyncio of Python {minor} with ringloop in mind. Read what has changed since the version "
                "before, port ringloop to it, then run tools/asyncio_sources.py --update with this Python"
            )
        if not self.differs:
            return f"asyncio of Python {self.release}: what ringloop relies on is as it was read in {self.nearest}"
        kinds = [("changed", self.changed), ("gone", self.gone), ("new", self.new)]
        differences = "; ".join(f"{', '.join(names)} {kind}" for kind, names in kinds if names)
        return (
            f"asyncio of Python {self.release}, compared with {self.nearest}: {differences}. Read the diff (tools/asyncio_sources.py "
            f"--diff with an interpreter of {self.nearest}, or `git diff v{self.nearest} v{self.release} -- Lib/asyncio` in a clone of "
            "CPython), change ringloop where it does the same, then run tools/asyncio_sources.py --update with this Python"
        )


def _order(release: str) -> tuple[int, ...]:
    """Return a key that puts releases in order: "3.15.0rc2" before "3.15.1", after "3.14.10"."""
    digits = "".join(it if it.isdigit() else "." for it in release)
    return tuple(int(it) for it in digits.split(".") if it)


def compare(release: str, found: dict[str, str], known: Hashes) -> Comparison:
    """Compare the hashes of a release with itself, if it is known, or else with all releases of its minor version."""
    minor = release.rpartition(".")[0] + "."
    releases = {it for variants in known.values() for its in variants.values() for it in its if it.startswith(minor)}
    if not releases:
        return Comparison(release, None, [], [], [])
    nearest = release if release in releases else max(releases, key=_order)
    peers = {release} if release in releases else releases
    read = {
        name: {value for value, its in variants.items() if peers.intersection(its)} for name, variants in known.items()
    }
    last = {name for name, variants in known.items() if any(nearest in its for its in variants.values())}
    return Comparison(
        release,
        nearest,
        changed=sorted(name for name, value in found.items() if read.get(name) and value not in read[name]),
        gone=sorted(last - set(found)),
        new=sorted(name for name in found if not read.get(name)),
    )


def load() -> Hashes:
    """Read the file: on each line a function, the hash of its source, and the releases that have it."""
    known: Hashes = {}
    for line in DATA.read_text().splitlines():
        name, value, *releases = line.split()
        known.setdefault(name, {})[value] = releases
    return known


def save(known: Hashes) -> None:
    """Write the file that `load` reads."""
    lines = [
        f"{name} {value} {' '.join(releases)}\n"
        for name, variants in sorted(known.items())
        for value, releases in variants.items()
    ]
    DATA.write_text("".join(lines))


def update(release: str, found: dict[str, str], known: Hashes) -> Hashes:
    """Return the known hashes, with those of this release added."""
    updated: Hashes = {}
    for name in {*known, *found}:
        variants = {value: [it for it in its if it != release] for value, its in known.get(name, {}).items()}
        if name in found:
            variants.setdefault(found[name], []).append(release)
        variants = {value: sorted(its, key=_order) for value, its in variants.items() if its}
        if variants:
            updated[name] = dict(sorted(variants.items(), key=lambda item: _order(item[1][0])))
    return updated


def diff(other: str) -> str:
    """Return the unified diff between another interpreter's asyncio and the running one's, as far as it matters here."""
    script = "import asyncio, platform; print(asyncio.__file__, platform.python_version())"
    path, release = subprocess.run([other, "-c", script], check=True, capture_output=True, text=True).stdout.split()
    before, after = sources(Path(path).parent), sources(Path(asyncio.__file__).parent)
    pieces: list[str] = []
    for name in sorted({*before, *after}):
        pieces += difflib.unified_diff(
            before.get(name, "").splitlines(keepends=True),
            after.get(name, "").splitlines(keepends=True),
            f"{release}: {name}",
            f"{platform.python_version()}: {name}",
        )
    return "".join(pieces)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    actions = parser.add_mutually_exclusive_group()
    actions.add_argument("--diff", metavar="OTHER", help="print what differs from the asyncio of this interpreter")
    actions.add_argument("--update", action="store_true", help="enter the running release as read")
    arguments = parser.parse_args()
    if arguments.diff:
        print(diff(arguments.diff), end="")
        return 0
    release, found = platform.python_version(), hashes(sources(Path(asyncio.__file__).parent))
    if arguments.update:
        save(update(release, found, load()))
        print(f"entered Python {release} in {DATA.name}")
        return 0
    comparison = compare(release, found, load())
    print(comparison)
    return int(comparison.differs)


if __name__ == "__main__":
    sys.exit(main())
