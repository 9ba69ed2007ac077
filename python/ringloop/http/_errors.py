"""The error of a server that cannot start, with a message for the user."""

from __future__ import annotations

import traceback


class StartupError(Exception):
    """The server can't start. The message says why; the user sees nothing else."""


def summarize(error: BaseException) -> str:
    """Return an error in one line: the message of its traceback, with the place of a syntax error."""
    if isinstance(error, StartupError):
        return str(error)
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error}"
    # Notes follow the message.
    return traceback.format_exception_only(error)[0].strip()
