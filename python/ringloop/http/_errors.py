"""The error of a server that cannot start, with a message for the user."""

from __future__ import annotations


class StartupError(Exception):
    """The server can't start. The message says why; the user sees nothing else."""
