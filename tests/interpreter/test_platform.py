"""Where ringloop can't run, importing or building it fails with a message of one line."""

import ctypes
import os
import re
import shutil
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

import support
from support import REPOSITORY


def refusal(change="", **options):
    """Return the text of the ImportError that a child process gets, after it has made this change; it must be one line, and all."""
    source = f"""
    {change}
    try:
        import ringloop
    except ImportError as error:
        assert type(error) is ImportError
        assert error.__cause__ is None and (error.__context__ is None or error.__suppress_context__)
        print(error)
    else:
        print("imported")
    """
    child = support.run_child(source, "epoll", **options)
    assert child.stderr == ""
    assert child.returncode == 0
    (line,) = child.stdout.splitlines()
    return line


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ("sys.platform = 'darwin'", "ringloop needs Linux (io_uring or epoll); this is darwin."),
        ("sys.platform = 'win32'", "ringloop needs Linux (io_uring or epoll); this is win32."),
        ("sys.implementation.name = 'pypy'", "ringloop needs CPython; this is pypy."),
        ("sys.version_info = (3, 10, 4, 'final', 0)", "ringloop needs Python 3.11 or later; this is 3.10."),
        (
            "sys.version_info = (3, 13, 9, 'final', 0); sys.abiflags = 't'",
            "ringloop needs the GIL or Python 3.14 or later; this is a free-threaded Python 3.13.",
        ),
    ],
)
def test_an_interpreter_that_cannot_run_it(change, text):
    assert refusal(change) == f"{text} Use asyncio's own event loop here."


@pytest.fixture
def package(tmp_path):
    """Return a copy of the package without its extension module: its folder, and the environment in which it is imported."""
    import ringloop

    folder = tmp_path / "ringloop"
    shutil.copytree(Path(ringloop.__file__).parent, folder, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    path = os.pathsep.join([str(tmp_path), str(Path(support.__file__).parent)])
    return folder, {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}


NAME = f"_core{sysconfig.get_config_var('EXT_SUFFIX')}"
ADVICE = (
    f"Install ringloop with this interpreter: {sys.executable} -m pip install --force-reinstall ringloop. "
    "In a clone, run `make build`, and use .venv/bin/python"
)


def test_an_extension_that_is_missing(package):
    folder, environment = package
    expected = f"ringloop's extension module is missing: {folder} has no {NAME}. {ADVICE}"
    assert refusal(env=environment) == expected


def test_an_extension_for_another_interpreter(package):
    folder, environment = package
    foreign = "_core.cpython-39-x86_64-linux-gnu.so"
    (folder / foreign).touch()
    expected = f"ringloop was built for another interpreter: {folder} has {foreign}, this one needs {NAME}. {ADVICE}"
    assert refusal(env=environment) == expected


def test_an_extension_for_another_machine(package):
    folder, environment = package
    (folder / NAME).write_bytes(b"\x7fELF" + bytes(1000))
    text = refusal(env=environment)
    assert re.fullmatch(
        rf"ringloop's extension module cannot be loaded: .*{re.escape(NAME)}: .+\. {re.escape(ADVICE)}", text
    )


def test_an_error_of_the_packages_own_is_told_as_it_is(package):
    folder, environment = package
    (folder / "_core.py").write_text("import no_such_module\n")
    child = support.run_child("import ringloop", "epoll", env=environment)
    assert "ModuleNotFoundError: No module named 'no_such_module'" in child.stderr


# The GIL


PY_MOD_GIL = 87 if sys.version_info >= (3, 15) else 4
PY_MOD_GIL_NOT_USED = 1
SLOT_SIZE = 16
FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


def slots_of(module):
    """Return the slots that a loaded extension module was defined with, as {number: value}."""
    library = ctypes.PyDLL(module.__file__)
    if sys.version_info >= (3, 15):
        # PEP 793: an array of PySlot.
        export, number_type = getattr(library, f"PyModExport_{module.__name__.rpartition('.')[2]}"), ctypes.c_uint16
        export.restype = ctypes.c_void_p
        address = export()
    else:
        # A PyModuleDef: its header, four words, and a pointer to an array of PyModuleDef_Slot.
        init, number_type = getattr(library, f"PyInit_{module.__name__.rpartition('.')[2]}"), ctypes.c_int
        init.restype = ctypes.c_void_p
        header = object.__basicsize__ + 3 * 8
        address = ctypes.c_void_p.from_address(init() + header + 4 * 8).value
    slots = {}
    while number := number_type.from_address(address).value:
        slots[number] = ctypes.c_void_p.from_address(address + 8).value or 0
        address += SLOT_SIZE
    return slots


def test_the_module_says_that_it_does_not_need_the_gil():
    """A free-threaded interpreter would turn the GIL on for one that doesn't."""
    if sys.version_info < (3, 13):
        pytest.skip("before Python 3.13 no module can say so, and all have the GIL")
    from ringloop import _core

    assert slots_of(_core).get(PY_MOD_GIL) == PY_MOD_GIL_NOT_USED


@pytest.mark.parametrize("gil", ["0", "1"])
def test_a_free_threaded_interpreter_has_the_gil_only_if_its_user_wants_it(gil):
    if not FREE_THREADED:
        pytest.skip("this interpreter can't run without the GIL")
    source = "import ringloop; print(sys._is_gil_enabled(), ringloop.run(asyncio.sleep(0, 'ran')))"
    child = support.run_child(source, "epoll", env={"PYTHON_GIL": gil}, python_flags=("-W", "error"))
    assert (child.returncode, child.stdout, child.stderr) == (0, f"{gil == '1'} ran\n", "")


# What says which Pythons there are


def test_the_versions_of_python_are_the_same_everywhere():
    from ringloop import _platform

    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    versions = [f"3.{minor}" for minor in range(_platform.OLDEST[1], _platform.NEWEST_TESTED[1] + 1)]
    prefix = "Programming Language :: Python :: 3."
    classified = [it.removeprefix(prefix) for it in project["classifiers"] if it.startswith(prefix)]
    assert [f"3.{minor}" for minor in classified] == versions
    assert project["requires-python"] == f">={versions[0]}"
    span = f"{versions[0]} to {versions[-1]}"
    for name in (
        "README.md",
        "CONTRIBUTING.md",
        "Makefile",
        "docs/quickstart.md",
        "docs/compatibility.md",
        "tools/check.py",
    ):
        assert span in (REPOSITORY / name).read_text(), f"{name} does not say {span}"


def probe(change):
    """Return what tools/probe_python.py says of this interpreter, after this change."""
    source = f"""
    import runpy, sysconfig
    {change}
    runpy.run_path({str(REPOSITORY / "tools" / "probe_python.py")!r}, run_name="__main__")
    """
    child = support.run_child(source, "epoll")
    return child.returncode, child.stdout.rstrip("\n")


def test_the_probe_of_interpreters():
    status, text = probe("")
    assert status == 0
    assert text.split()[0] == sys.version.split()[0]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ("sys.implementation.name = 'pypy'", "this is pypy; ringloop needs CPython"),
        (
            "sys.version_info = (3, 10, 4, 'final', 0)",
            "this is Python 3.10; ringloop needs 3.11 to 3.15; choose one with PYTHON=...",
        ),
        (
            "sys.version_info = (3, 13, 9, 'final', 0); sys.abiflags = 't'",
            "this is a free-threaded Python 3.13; ringloop needs one with the GIL, or 3.14 or later",
        ),
    ],
)
def test_the_probe_turns_down(change, text):
    assert probe(change) == (1, text)
