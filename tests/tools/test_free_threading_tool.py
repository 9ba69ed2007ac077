"""tools/free_threading.py says which interpreters `make test-free-threaded` takes, in one line."""

import subprocess
import sys
import sysconfig

import pytest

from support import REPOSITORY, load_tool

tool = load_tool("free_threading")
WANTED = "this needs a free-threaded CPython 3.14 or later; name one with PYTHON=..."


@pytest.fixture
def interpreter(monkeypatch):
    """Return a function that makes the tool see another interpreter."""

    def pretend(name="cpython", version=(3, 14, 2), free_threaded=True, gil=False):
        monkeypatch.setattr(tool.sys, "executable", "python")
        monkeypatch.setattr(tool.sys.implementation, "name", name)
        monkeypatch.setattr(tool.sys, "version_info", version)
        monkeypatch.setattr(tool.sys, "version", "{}.{}.{} (main)".format(*version))
        monkeypatch.setattr(tool.sys, "_is_gil_enabled", lambda: gil, raising=False)
        monkeypatch.setattr(tool.sysconfig, "get_config_var", lambda _: int(free_threaded))

    return pretend


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"name": "pypy"}, "python is pypy"),
        ({"free_threaded": False}, "python is a Python 3.14.2 with the GIL"),
        ({"version": (3, 13, 9)}, "python is a free-threaded Python 3.13.9"),
    ],
)
def test_what_is_turned_down(interpreter, options, text):
    interpreter(**options)
    assert tool.problem() == f"{text}; {WANTED}"


def test_what_is_taken(interpreter):
    interpreter()
    assert tool.problem() == ""
    assert tool.imported() == ""


def test_a_gil_that_is_on_after_the_import_is_found(interpreter):
    interpreter(gil=True)
    assert tool.imported().startswith("the GIL is on after `import ringloop`")


def test_this_interpreter():
    command = [sys.executable, REPOSITORY / "tools" / "free_threading.py", "--named"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        assert done.returncode == 0
        assert done.stdout.startswith(f"free-threaded CPython {sys.version.split()[0]}")
    else:
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.count("\n") == 1
