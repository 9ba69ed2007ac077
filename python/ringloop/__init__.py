"""ringloop: an asyncio event loop on io_uring, with epoll where io_uring is refused.

Two ways to run a program on it:

    ringloop.run(main())                                            # any supported Python
    asyncio.run(main(), loop_factory=ringloop.new_event_loop)       # Python 3.12 and later
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if not sys.platform.startswith("linux"):
    raise ImportError(
        f"ringloop needs Linux (io_uring or epoll); this is {sys.platform}. Use asyncio's own event loop here."
    )

from ._core import __version__
from ._loop import EventLoop, new_event_loop, run
from ._metrics import Metrics

if TYPE_CHECKING:
    from ._policy import EventLoopPolicy as EventLoopPolicy
    from ._policy import install as install

__all__ = ["EventLoop", "Metrics", "__version__", "new_event_loop", "run"]
if sys.version_info < (3, 14):
    # Later, asking for it warns.
    __all__ += ["EventLoopPolicy", "install"]


def __getattr__(name: str) -> Any:
    # Not `from . import`, which would ask here for the module.
    from ._policy import find

    return find(name)
