"""Helpers for tests of TCP."""

import pytest

from support import (
    BufferedRecorder,
    Recorder,
    has_ipv6,
)

BOTH = pytest.mark.parametrize("kind", [Recorder, BufferedRecorder], ids=["Protocol", "BufferedProtocol"])


def address_of(server):
    return server.sockets[0].getsockname()[:2]


class Factory:
    """A protocol factory that keeps what it made."""

    def __init__(self, kind=Recorder, *arguments):
        self.kind, self.arguments, self.made = kind, arguments, []

    def __call__(self):
        self.made.append(self.kind(*self.arguments))
        return self.made[-1]

    def has_connected(self, count=1):
        """Return whether `count` have been made, and the last of them was told its transport."""
        return len(self.made) >= count and getattr(self.made[-1], "transport", None) is not None


def skip_ipv6():
    if not has_ipv6():
        pytest.skip("the loopback interface has no IPv6 address here")
