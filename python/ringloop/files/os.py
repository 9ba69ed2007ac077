"""`os`, awaited: the functions that work on files and directories, as operations of io_uring or in threads."""

import os
from collections.abc import Awaitable, Callable
from typing import Any

from . import ospath as path
from ._paths import fdatasync, fsync, lstat, mkdir, remove, rename, replace, rmdir, stat, unlink
from ._threads import in_thread as wrap

access = wrap(os.access)
chmod = wrap(os.chmod)
chown = wrap(os.chown)
fstat = wrap(os.fstat)
ftruncate = wrap(os.ftruncate)
getcwd = wrap(os.getcwd)
link = wrap(os.link)
listdir = wrap(os.listdir)
makedirs = wrap(os.makedirs)
readlink: Callable[..., Awaitable[Any]] = wrap(os.readlink)
removedirs = wrap(os.removedirs)
renames = wrap(os.renames)
scandir = wrap(os.scandir)
sendfile = wrap(os.sendfile)
statvfs = wrap(os.statvfs)
symlink = wrap(os.symlink)
truncate = wrap(os.truncate)
utime = wrap(os.utime)

__all__ = [
    "access",
    "chmod",
    "chown",
    "fdatasync",
    "fstat",
    "fsync",
    "ftruncate",
    "getcwd",
    "link",
    "listdir",
    "lstat",
    "makedirs",
    "mkdir",
    "path",
    "readlink",
    "remove",
    "removedirs",
    "rename",
    "renames",
    "replace",
    "rmdir",
    "scandir",
    "sendfile",
    "stat",
    "statvfs",
    "symlink",
    "truncate",
    "unlink",
    "utime",
    "wrap",
]
