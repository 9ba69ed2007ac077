"""Whether a maintainer has reviewed the running Python's asyncio, and the tool that records it.

A reviewed release must be unchanged. If a bug-fix release that nobody has reviewed differs, that is no failure of this run: the test
is skipped, and its reason says what has changed and what to do. `.ci/run` repeats it in its summary.
"""

import asyncio
import platform
import subprocess
import sys
from pathlib import Path
from types import FunctionType

import pytest

from support import REPOSITORY, load_tool

TOOL = REPOSITORY / "tools" / "asyncio_sources.py"
tool = load_tool("asyncio_sources")

ASYNCIO = Path(asyncio.__file__).parent


def test_the_running_asyncio_is_as_it_was_read():
    comparison = tool.compare(platform.python_version(), tool.hashes(tool.sources(ASYNCIO)), tool.load())
    if comparison.differs and comparison.nearest not in (None, comparison.release):
        pytest.skip(str(comparison))
    assert not comparison.differs, str(comparison)


def test_each_method_that_ringloop_hides_is_among_them():
    import ringloop
    from ringloop import _datagrams, _tls, _transports

    known = tool.sources(ASYNCIO)
    pairs = [
        (ringloop.EventLoop, asyncio.SelectorEventLoop),
        (_tls.SSLProtocol, asyncio.sslproto.SSLProtocol),
        (_tls.SSLProtocolTransport, asyncio.sslproto._SSLProtocolTransport),
        (_transports.SocketTransport, asyncio.selector_events._SelectorSocketTransport),
        (_datagrams.DatagramTransport, asyncio.selector_events._SelectorDatagramTransport),
    ]
    missing = set()
    for ours, theirs in pairs:
        for name in {name for base in ours.__mro__ if base not in theirs.__mro__ for name in vars(base)}:
            # The nearest one, and those that it hides in its turn.
            for base in theirs.__mro__[:-1]:
                if isinstance(vars(base).get(name), FunctionType):
                    key = f"{base.__module__.partition('.')[2]}.{base.__name__}.{name}"
                    missing |= {key} - set(known)
    # asyncio's abstract base classes have nothing but names.
    assert not {key for key in missing if not key.startswith(("events.AbstractEventLoop.", "protocols."))}


def test_each_part_is_in_some_python():
    """A name that was misspelt would be looked for in vain, for ever."""
    known = {name.rpartition(".")[0] for name in tool.load()} | set(tool.load())
    assert {f"{module}.{part}" for module, parts in tool.PARTS.items() for part in parts} <= known


def package(folder, **modules):
    """Return an asyncio of one's own: the modules that are given, and the others empty."""
    for module in tool.PARTS:
        (folder / f"{module}.py").write_text(modules.get(module, ""))
    return folder


SOURCE = '''
class Handle:
    """A handle."""

    __slots__ = ("a",)

    def run(self):
        def inner():
            pass
        inner()

    @property
    @decorated(
        1,
    )
    def when(self):
        return 1

    if sys.platform == "win32":
        def either(self):
            return 1
    else:
        async def either(self):
            return 2

def other():
    pass

if sys.platform == "win32":
    def _ThreadSafeHandle():
        return 1
else:
    def _ThreadSafeHandle():
        return 2
'''


def test_the_sources_of_functions_and_of_what_stands_between(tmp_path):
    found = tool.sources(package(tmp_path, events=SOURCE))
    assert found == {
        "events.Handle": 'class Handle:\n    """A handle."""\n    __slots__ = ("a",)\n    if sys.platform == "win32":\n    else:\n',
        "events.Handle.run": "    def run(self):\n        def inner():\n            pass\n        inner()\n",
        "events.Handle.when": "    @property\n    @decorated(\n        1,\n    )\n    def when(self):\n        return 1\n",
        "events.Handle.either": "        def either(self):\n            return 1\n        async def either(self):\n            return 2\n",
        "events._ThreadSafeHandle": "    def _ThreadSafeHandle():\n        return 1\n    def _ThreadSafeHandle():\n        return 2\n",
    }


KNOWN = {
    "a": {"1": ["3.11.2", "3.11.10"], "2": ["3.12.1"]},
    "b": {"3": ["3.11.2"], "4": ["3.11.10", "3.12.1"]},
    "c": {"5": ["3.11.2"]},
}


@pytest.mark.parametrize(
    ("release", "found", "expected"),
    [
        # A release that was read must be as it was.
        ("3.11.2", {"a": "1", "b": "3", "c": "5"}, ("3.11.2", [], [], [])),
        ("3.11.2", {"a": "1", "b": "4", "c": "5"}, ("3.11.2", ["b"], [], [])),
        ("3.11.10", {"a": "1", "b": "4", "c": "5"}, ("3.11.10", [], [], ["c"])),
        ("3.11.10", {"a": "1"}, ("3.11.10", [], ["b"], [])),
        # Another one may be as any of its minor version.
        ("3.11.4", {"a": "1", "b": "3"}, ("3.11.10", [], [], [])),
        ("3.11.4", {"a": "1", "b": "4", "c": "5"}, ("3.11.10", [], [], [])),
        ("3.11.4", {"a": "2", "b": "9", "d": "6"}, ("3.11.10", ["a", "b"], [], ["d"])),
        ("3.12.4", {"a": "2"}, ("3.12.1", [], ["b"], [])),
        ("3.13.0rc2", {"a": "1"}, (None, [], [], [])),
    ],
)  # fmt: skip
def test_comparing(release, found, expected):
    comparison = tool.compare(release, found, KNOWN)
    assert (comparison.nearest, comparison.changed, comparison.gone, comparison.new) == expected
    assert comparison.differs == (expected[0] is None or any(expected[1:]))


def test_what_is_said_of_a_change():
    text = str(tool.compare("3.11.4", {"a": "2", "d": "6"}, KNOWN))
    assert text.startswith("asyncio of Python 3.11.4, compared with 3.11.10: a changed; b gone; d new. Read the diff ")
    assert "git diff v3.11.10 v3.11.4 -- Lib/asyncio" in text
    assert "--update" in text
    assert "nobody has read the asyncio of Python 3.16" in str(tool.compare("3.16.0", {}, KNOWN))
    assert "as it was read in 3.12.1" in str(tool.compare("3.12.9", {"a": "2", "b": "4"}, KNOWN))


def test_entering_a_release(tmp_path, monkeypatch):
    monkeypatch.setattr(tool, "DATA", tmp_path / "known.txt")
    tool.save(KNOWN)
    assert tool.load() == KNOWN
    tool.save(tool.update("3.11.2", {"a": "2", "b": "3", "d": "6"}, tool.load()))
    assert tool.load() == {
        "a": {"1": ["3.11.10"], "2": ["3.11.2", "3.12.1"]},
        "b": {"3": ["3.11.2"], "4": ["3.11.10", "3.12.1"]},
        "d": {"6": ["3.11.2"]},
    }


def test_the_command():
    def run(*arguments):
        return subprocess.run([sys.executable, TOOL, *arguments], capture_output=True, text=True, check=False)

    compared = run()
    assert compared.stdout.startswith(f"asyncio of Python {platform.python_version()}")
    assert compared.returncode == ("as it was read" not in compared.stdout)
    assert run("--diff", sys.executable).stdout == ""
    assert run("--no-such-option").returncode == 2
