"""Say whether a Python is a free-threaded one that ringloop can be tested on without the GIL.

    PYTHON tools/free_threading.py --named      before the build: prints the version, or one line that says why not
    PYTHON tools/free_threading.py --imported   after it: imports ringloop, and checks that the GIL has stayed off

Exits with 1 if not. Uses only what every Python since 3.6 understands, as tools/probe_python.py does.
"""

import sys
import sysconfig

OLDEST = (3, 14)


def problem() -> str:
    """Return why this interpreter is not one, or an empty string."""
    version = sys.version.split()[0]
    wanted = "this needs a free-threaded CPython {}.{} or later; name one with PYTHON=...".format(*OLDEST)
    if sys.implementation.name != "cpython":
        return f"{sys.executable} is {sys.implementation.name}; {wanted}"
    if not sysconfig.get_config_var("Py_GIL_DISABLED"):
        return f"{sys.executable} is a Python {version} with the GIL; {wanted}"
    if sys.version_info[:2] < OLDEST:
        return f"{sys.executable} is a free-threaded Python {version}; {wanted}"
    return ""


def imported() -> str:
    """Import ringloop; return what is wrong then, or an empty string."""
    import ringloop

    if getattr(sys, "_is_gil_enabled", lambda: True)():
        return f"the GIL is on after `import ringloop` {ringloop.__version__}; is PYTHON_GIL or -X gil set?"
    return ""


def main() -> int:
    """Run the program and return its exit status."""
    found = problem()
    if not found and "--imported" in sys.argv[1:]:
        found = imported()
    if found:
        print(f"free_threading: {found}", file=sys.stderr)
        return 1
    print(f"free-threaded CPython {sys.version.split()[0]}, {sysconfig.get_config_var('SOABI')}, {sys.executable}")
    if "--imported" in sys.argv[1:]:
        print("the GIL is off, with ringloop imported")
    return 0


if __name__ == "__main__":
    sys.exit(main())
