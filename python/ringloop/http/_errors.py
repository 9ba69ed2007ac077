"""What keeps a server from starting, in words for its user."""

from __future__ import annotations


class StartupError(Exception):
    """The server can't start; the text says why, and is all that the user sees."""
