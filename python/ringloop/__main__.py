"""`python -m ringloop`: which ringloop this is, and what it runs on; `serve` and `gunicorn` are an HTTP server."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import ringloop

from ._platform import DOCUMENTATION

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

# The environment variable with which a shell asks for completions, as click defines it.
_COMPLETE = "_RINGLOOP_COMPLETE"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status: 0, 1 if something is refused, 2 for a wrong option or setting."""
    if arguments is None:
        arguments = sys.argv[1:]
    if arguments and arguments[0] == "serve":
        return _serve(arguments[1:])
    if arguments and arguments[0] == "gunicorn":
        return _gunicorn(arguments[1:], f"{_program()} gunicorn")
    if not arguments and _COMPLETE in os.environ:
        return _complete()
    if arguments and not arguments[0].startswith("-"):
        _parser().error(_refusal(arguments))
    options = _parser().parse_args(arguments)
    status: int = options.run(options)
    return status


def _program() -> str:
    name = os.path.basename(sys.argv[0])
    return "python -m ringloop" if name == "__main__.py" else name


def _refusal(arguments: Sequence[str]) -> str:
    """Return what is wrong with a first word that is not a command, and what the user may have meant."""
    import shlex

    word, *others = arguments
    if ":" in word or word.endswith(".py"):
        wrong, meant = "the command is missing", [word, *others]
    else:
        wrong, meant = f"there is no command {word!r}", others
    if not meant or meant[0].startswith("-"):
        meant = ["main:app", *meant]
    words = shlex.join(meant)
    if meant[0].partition(":")[0].endswith(".py"):
        from .http._importing import as_name

        words = f"{as_name(meant[0])} {shlex.join(meant[1:])}".rstrip()
    return f"{wrong}. Did you mean: {_program()} serve {words}"


def _serve(arguments: Sequence[str]) -> int:
    if not _has_click():
        return 3
    from .http import _command_line

    _command_line.main(arguments, _program())
    return 0


def gunicorn() -> int:
    """Run the command line of `ringloop-gunicorn`."""
    return _gunicorn(sys.argv[1:], _program())


def _gunicorn(arguments: Sequence[str], program: str) -> int:
    if not _has_click():
        return 3
    from .http import _gunicorn

    _gunicorn.main(arguments, program)


def _has_click() -> bool:
    try:
        import click  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "click":
            raise
        print("ringloop serve needs click: pip install 'ringloop[serve]'", file=sys.stderr)
        return False
    return True


def _complete() -> int:
    """Answer a shell that completes a command line."""
    if not _has_click():
        return 3
    from .http import _command_line

    _command_line.complete(_COMPLETE)
    return 0


def _parser() -> argparse.ArgumentParser:
    import argparse  # Not for `serve`, which many programs and tests start often.

    parser = argparse.ArgumentParser(
        prog=_program(),
        usage="%(prog)s [-h] [--version] [--json] [--check]\n       %(prog)s serve MODULE:ATTRIBUTE ...\n"
        "       %(prog)s gunicorn MODULE ...",
        description="Show the versions of ringloop, Python and the kernel, which backend a loop gets and why, and how it would wait.",
        epilog=f"`{_program()} serve` is an HTTP server for ASGI and WSGI applications; see `{_program()} serve --help`. "
        f"`{_program()} gunicorn` is the same server with gunicorn's command line. "
        f"The environment variables RINGLOOP_BACKEND and RINGLOOP_BUSY_POLL set how loops run: {DOCUMENTATION}/backends.md",
    )
    parser.add_argument("--version", action="version", version=f"ringloop {ringloop.__version__}")
    parser.add_argument("--json", action="store_true", help="print the same as one JSON object")
    parser.add_argument(
        "--check",
        action="store_true",
        help="exit with status 1 if io_uring is refused, regardless of RINGLOOP_BACKEND",
    )
    parser.set_defaults(run=_report)
    return parser


def _report(options: argparse.Namespace) -> int:
    try:
        facts = _facts()
    except ValueError as error:  # a wrong value in the environment
        print(f"ringloop: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"ringloop: no loop can be made: {error.strerror or error}", file=sys.stderr)
        return 1
    if options.json:
        import json

        print(json.dumps(facts, indent=2))
    else:
        _print(facts)
    return 1 if options.check and not facts["io_uring"] else 0


def _facts() -> dict[str, Any]:
    """Return the contents of the report. Raise the same errors as creating a loop."""
    import platform

    best = ringloop.new_event_loop(backend="auto")
    try:
        busy_poll: str = best.busy_poll
        granted, ring = best.backend == "io_uring", best.backend_reason.removeprefix("epoll: ")
    finally:
        best.close()
    try:
        loop = ringloop.new_event_loop()
    except OSError as error:
        if granted:
            raise
        backend, reason = None, error.strerror or str(error)
    else:
        backend, reason = loop.backend, loop.backend_reason
        loop.close()
    cpus = len(os.sched_getaffinity(0))
    return {
        "version": ringloop.__version__,
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "machine": platform.machine(),
        "libc": " ".join(platform.libc_ver()).strip(),
        "kernel": platform.release(),
        "backend": backend,
        "backend_reason": reason,
        "io_uring": granted,
        "io_uring_reason": ring,
        "busy_poll": busy_poll,
        "busy_poll_effect": _effect(busy_poll, cpus),
        "cpus": cpus,
        "environment": {name: value for name, value in sorted(os.environ.items()) if name.startswith("RINGLOOP_")},
    }


def _effect(busy_poll: str, cpus: int) -> str:
    """Return what this setting means with this number of CPUs."""
    if busy_poll == "off" or busy_poll == "0":
        return "a loop sleeps at once when it has nothing to do"
    if busy_poll != "adaptive":
        return f"before each sleep a loop polls for {busy_poll} us, whether or not that pays off"
    if cpus == 1:
        return "a loop sleeps at once, because this process may use only one CPU, which others need to answer"
    return "a loop polls for up to 100 us before it sleeps, if it measures that this pays off, and wastes at most 1/64 of the time"


def _print(facts: dict[str, Any]) -> None:
    runs_on = ", ".join(filter(None, (facts["implementation"], facts["machine"], facts["libc"])))
    lines = {
        "ringloop": facts["version"],
        "Python": f"{facts['python']} ({runs_on})",
        "kernel": facts["kernel"],
        "backend": facts["backend"] or "none: a loop cannot be made",
        "reason": facts["backend_reason"],
        "io_uring": "granted" if facts["io_uring"] else f"refused: {facts['io_uring_reason']}",
        "busy polling": f"{facts['busy_poll']}: {facts['busy_poll_effect']}",
        "CPUs": str(facts["cpus"]),
        "environment": ", ".join(f"{name}={value}" for name, value in facts["environment"].items()) or "nothing set",
    }
    for name, value in lines.items():
        print(f"{name:<13} {value}")


if __name__ == "__main__":
    sys.exit(main())
