"""Say whether the Python that runs this file can build and run ringloop.

Prints the interpreter's version, its ABI tag and its real path on one line and exits with 0, or prints what is missing,
one sentence a line, each with its remedy, and exits with 1. Uses only what every Python since 3.6 understands, because
it must also run on the interpreters that it refuses.
"""

import importlib.util
import os
import sys
import sysconfig

OLDEST = (3, 11)
NEWEST = (3, 15)
OLDEST_FREE_THREADED = (3, 14)


def shortcomings() -> "list[str]":
    """Return what prevents this interpreter from building ringloop: one sentence for each problem."""
    version = "{}.{}".format(*sys.version_info[:2])
    if sys.implementation.name != "cpython":
        return [f"this is {sys.implementation.name}; ringloop needs CPython"]
    if not OLDEST <= sys.version_info[:2] <= NEWEST:
        supported = "{}.{} to {}.{}".format(*(OLDEST + NEWEST))
        return [f"this is Python {version}; ringloop needs {supported}; choose one with PYTHON=..."]
    if "t" in sys.abiflags and sys.version_info[:2] < OLDEST_FREE_THREADED:
        wanted = "{}.{}".format(*OLDEST_FREE_THREADED)
        return [f"this is a free-threaded Python {version}; ringloop needs one with the GIL, or {wanted} or later"]
    found = []
    header = os.path.join(sysconfig.get_path("include"), "Python.h")
    if not os.path.exists(header):
        found.append(f"no Python headers ({header}); install them with: apt-get install python{version}-dev")
    # Debian packages both separately from the standard library; a venv with pip in it needs both.
    if importlib.util.find_spec("venv") is None or importlib.util.find_spec("ensurepip") is None:
        found.append(f"no venv module; install it with: apt-get install python{version}-venv")
    return found


if __name__ == "__main__":
    problems = shortcomings()
    if problems:
        print("\n".join(problems))
        sys.exit(1)
    print(sys.version.split()[0], sysconfig.get_config_var("SOABI"), os.path.realpath(sys.executable))
