"""`os.path`, awaited: the functions that ask the file system, as operations of io_uring or in threads."""

import stat
from collections.abc import Awaitable, Callable
from os import path
from typing import Any

from ._paths import from_status
from ._threads import in_thread

__all__ = [
    "abspath",
    "exists",
    "getatime",
    "getctime",
    "getmtime",
    "getsize",
    "isdir",
    "isfile",
    "islink",
    "ismount",
    "lexists",
    "realpath",
    "samefile",
    "sameopenfile",
]

abspath: Callable[..., Awaitable[Any]] = in_thread(path.abspath)
exists = from_status(path.exists, lambda status: True, missing=False)
getatime = from_status(path.getatime, lambda status: status.st_atime)
getctime = from_status(path.getctime, lambda status: status.st_ctime)
getmtime = from_status(path.getmtime, lambda status: status.st_mtime)
getsize = from_status(path.getsize, lambda status: status.st_size)
isdir = from_status(path.isdir, lambda status: stat.S_ISDIR(status.st_mode), missing=False)
isfile = from_status(path.isfile, lambda status: stat.S_ISREG(status.st_mode), missing=False)
islink = from_status(path.islink, lambda status: stat.S_ISLNK(status.st_mode), follow=False, missing=False)
ismount = in_thread(path.ismount)
lexists = from_status(path.lexists, lambda status: True, follow=False, missing=False)
realpath: Callable[..., Awaitable[Any]] = in_thread(path.realpath)
samefile = in_thread(path.samefile)
sameopenfile = in_thread(path.sameopenfile)
