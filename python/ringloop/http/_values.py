"""Which values options may have, on the command line and in Python."""

from __future__ import annotations

import dataclasses
import re
import sys
from typing import Any

LONGEST_S = 1_000_000_000
"""Longer than anybody waits."""

_LARGEST_INT = (1 << 31) - 1  # C's.


@dataclasses.dataclass(frozen=True)
class Numbers:
    """The whole numbers from `smallest` to `largest`, which fit into the server's and the kernel's types."""

    smallest: int
    largest: int = sys.maxsize

    def __contains__(self, value: Any) -> bool:
        return isinstance(value, int) and self.smallest <= value <= self.largest

    def __str__(self) -> str:
        return (
            f"a whole number from {self.smallest} to {'sys.maxsize' if self.largest == sys.maxsize else self.largest}"
        )


@dataclasses.dataclass(frozen=True)
class Seconds:
    """The times up to `LONGEST_S`, from zero on or, if `positive`, above zero."""

    positive: bool = False

    def __contains__(self, value: Any) -> bool:
        return isinstance(value, int | float) and 0 <= value <= LONGEST_S and not (self.positive and value == 0)

    def __str__(self) -> str:
        return f"a number of seconds {'above' if self.positive else 'from'} 0, up to {LONGEST_S}"


@dataclasses.dataclass(frozen=True)
class Names:
    """These words."""

    words: tuple[str, ...]

    def __contains__(self, value: Any) -> bool:
        return value in self.words

    def __str__(self) -> str:
        return f"{', '.join(map(repr, self.words[:-1]))} or {self.words[-1]!r}"


_POSITIVE, _COUNT, _SECONDS = Numbers(1), Numbers(0), Seconds()

VALUES: dict[str, Numbers | Seconds | Names] = {
    "port": Numbers(0, 65535),
    "fd": Numbers(0, _LARGEST_INT),
    "backlog": Numbers(1, _LARGEST_INT),
    "backend": Names(("auto", "io_uring", "epoll")),
    "interface": Names(("auto", "asgi3", "asgi2", "wsgi")),
    "lifespan": Names(("auto", "on", "off")),
    "reload_delay": _SECONDS,
    "workers": _POSITIVE,
    "workers_lifetime": _SECONDS,
    "workers_max_rss": _POSITIVE,
    "timeout_worker_healthcheck": _SECONDS,
    "limit_concurrency": _POSITIVE,
    "limit_http2_requests": _COUNT,
    "limit_max_requests": _POSITIVE,
    "limit_max_requests_jitter": _COUNT,
    "limit_head": _POSITIVE,
    "limit_fields": _POSITIVE,
    "limit_body_ahead": _POSITIVE,
    "timeout_keep_alive": _SECONDS,
    "timeout_head": _SECONDS,
    "timeout_body": _SECONDS,
    "timeout_write": _SECONDS,
    "timeout_graceful_shutdown": _SECONDS,
    "ws_max_size": _POSITIVE,
    "ws_max_queue": _POSITIVE,
    "ws_ping_interval": _SECONDS,
    "ws_ping_timeout": _SECONDS,
    "ssl_handshake_timeout": Seconds(positive=True),
    "ssl_shutdown_timeout": Seconds(positive=True),
    "h11_max_incomplete_event_size": _POSITIVE,
}
"""The values that each option may have, by its name in Python. The others take anything of their type."""

UNLIMITED_IF_ZERO = (
    "limit_http2_requests",
    "timeout_head",
    "timeout_body",
    "timeout_write",
    "ws_ping_interval",
    "ws_ping_timeout",
)
"""Options of which 0 means None."""

# Of RFC 9110, section 5; what is outside of ASCII is sent as Latin-1.
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile("[\t\x20-\x7e\x80-\xff]*")
_FRAMING = frozenset(("content-length", "transfer-encoding"))


def check(name: str, value: Any) -> None:
    """Raises ValueError, with the option's name, if it can't have this value."""
    allowed = VALUES.get(name)
    if allowed is not None and value not in allowed:
        raise ValueError(f"{name} must be {allowed}, not {value!r}")


def header_mistake(name: str, value: str) -> str | None:
    """What is wrong with a header for each response, as the end of a sentence; None if it can be sent."""
    if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
        return "has characters that are not allowed in a header"
    if name.lower() in _FRAMING:
        return "would give each response the same length"
    return None
