"""Where ringloop runs: the system, the interpreter, and an extension module built for it."""

from __future__ import annotations

import os
import sys

OLDEST = (3, 11)
OLDEST_FREE_THREADED = (3, 14)
NEWEST_TESTED = (3, 15)

IS_TESTED = sys.version_info[:2] <= NEWEST_TESTED
"""Whether ringloop was tested on the running minor version. If not, no copies of asyncio's code are used."""

DOCUMENTATION = "https://github.com/ringloop/ringloop/blob/main/docs"
"""Where users of a wheel find the documentation."""

_ADVICE = "Use asyncio's own event loop here."


def require() -> None:
    """Raise ImportError where ringloop cannot run, whatever is installed."""
    version = "{}.{}".format(*sys.version_info)
    if not sys.platform.startswith("linux"):
        raise ImportError(f"ringloop needs Linux (io_uring or epoll); this is {sys.platform}. {_ADVICE}")
    if sys.implementation.name != "cpython":
        raise ImportError(f"ringloop needs CPython; this is {sys.implementation.name}. {_ADVICE}")
    if sys.version_info[:2] < OLDEST:
        raise ImportError("ringloop needs Python {}.{} or later; this is {}. {}".format(*OLDEST, version, _ADVICE))
    if "t" in sys.abiflags and sys.version_info[:2] < OLDEST_FREE_THREADED:
        # Even with PYTHON_GIL=1, because objects have another layout.
        wanted = "{}.{}".format(*OLDEST_FREE_THREADED)
        raise ImportError(
            f"ringloop needs the GIL or Python {wanted} or later; this is a free-threaded Python {version}. {_ADVICE}"
        )


def does_not_know(problem: object) -> str:
    """Return the message that the running asyncio lacks something, or expects something else."""
    from ._core import __version__

    python = "{}.{}.{}".format(*sys.version_info)
    return f"ringloop {__version__} does not know the asyncio of Python {python}: {problem}. Install a newer ringloop."


def unknown_asyncio(problem: object) -> ImportError:
    """Return the error for an asyncio on which ringloop's loop can't work."""
    return ImportError(f"{does_not_know(problem)} {_ADVICE}")


def explain(error: ImportError) -> ImportError:
    """Return an error that says in one line why the extension module `ringloop._core` can't be imported."""
    if "subinterpreter" in str(error):
        return ImportError("ringloop does not support subinterpreters; use asyncio's own event loop here")
    if not (error.path or (isinstance(error, ModuleNotFoundError) and error.name == "ringloop._core")):
        # Raised by the module itself, or by what it imports.
        return error
    import importlib.machinery

    wanted = f"_core{importlib.machinery.EXTENSION_SUFFIXES[0]}"
    folder = os.path.dirname(__file__)
    found = sorted(name for name in os.listdir(folder) if name.startswith("_core.") and name.endswith(".so"))
    advice = (
        f"Install ringloop with this interpreter: {sys.executable} -m pip install --force-reinstall ringloop. "
        "In a clone, run `make build`, and use .venv/bin/python"
    )
    if not isinstance(error, ModuleNotFoundError):
        problem = f"ringloop's extension module cannot be loaded: {error}"
    elif found:
        problem = (
            f"ringloop was built for another interpreter: {folder} has {', '.join(found)}, this one needs {wanted}"
        )
    else:
        problem = f"ringloop's extension module is missing: {folder} has no {wanted}"
    return ImportError(f"{problem}. {advice}", name="ringloop._core")
