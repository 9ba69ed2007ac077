"""The event loop policy, on Pythons that have policies. Imported on demand.

Python 3.14 deprecates policies, and 3.16 has none; `ringloop.run` and `loop_factory` work everywhere.
"""

from __future__ import annotations

import asyncio
import sys
import warnings
from asyncio import events, unix_events
from typing import TYPE_CHECKING, Any

from ._loop import EventLoop

if TYPE_CHECKING:
    _Base = asyncio.DefaultEventLoopPolicy
else:
    # asyncio's own; the newer name first, because looking up the older one warns.
    _Base = getattr(unix_events, "_DefaultEventLoopPolicy", None) or getattr(
        unix_events, "DefaultEventLoopPolicy", None
    )

if _Base is not None:

    class EventLoopPolicy(_Base):
        """The default policy of the running Python's asyncio, including its child watchers, with ringloop's event loops."""

        def new_event_loop(self) -> EventLoop:
            """Make an event loop."""
            return EventLoop()

    EventLoopPolicy.__module__ = "ringloop"

    def install() -> None:
        """Make asyncio use ringloop's event loops, for example in `asyncio.run`.

        On Python 3.14 and later it warns, as asyncio does when a policy is set.
        """
        if sys.version_info >= (3, 14):
            _warn("install", stacklevel=3)
        set_policy = getattr(events, "_set_event_loop_policy", events.set_event_loop_policy)
        set_policy(EventLoopPolicy())

    install.__module__ = "ringloop"


def _warn(name: str, stacklevel: int) -> None:
    message = f"'ringloop.{name}' is deprecated and slated for removal in Python 3.16"
    warnings.warn(message, DeprecationWarning, stacklevel=stacklevel)


def find(name: str) -> Any:
    """Return `ringloop.EventLoopPolicy` or `ringloop.install`; raise AttributeError on Pythons without policies."""
    if name not in ("EventLoopPolicy", "install"):
        raise AttributeError(f"module 'ringloop' has no attribute {name!r}")
    if _Base is None:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise AttributeError(
            f"module 'ringloop' has no attribute {name!r}: Python {version} has no event loop policies; "
            "use ringloop.run(), or loop_factory=ringloop.new_event_loop"
        )
    if name == "EventLoopPolicy" and sys.version_info >= (3, 14):
        # Skip the frames of this function and of the package's __getattr__.
        _warn(name, stacklevel=4)
    return globals()[name]
