"""Put `ringloop.files` in aiofiles' place: a plugin of pytest for the suite "aiofiles" of tools/suites.py.

What aiofiles' tests import is made of ringloop's modules. They also look at `_file`, the blocking file that aiofiles wraps:
only at whether it is closed. And one of them replaces the `open` that aiofiles calls in a thread by a slow one: here it
becomes the opener.
"""

import builtins
import os
import sys
import types
from typing import Any

from ringloop import files


def alias(name: str, **contents: object) -> types.ModuleType:
    """Make a module of aiofiles."""
    module = types.ModuleType(name)
    vars(module).update(contents)
    sys.modules[name] = module
    return module


def open_slowly(file: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
    """Open a file, through the `open` that a test has put in place."""
    if threadpool.sync_open is builtins.open:
        return files.open(file, mode, *args, **options)

    def opener(path: str, flags: int) -> int:
        with threadpool.sync_open(path, mode=mode) as blocking:
            return os.dup(blocking.fileno())

    options["opener"] = opener
    return files.open(file, mode, *args, **options)


contents = {name: getattr(files, name) for name in files.__all__}
threadpool = alias("aiofiles.threadpool", **contents | {"open": open_slowly, "sync_open": builtins.open})
package = alias("aiofiles", **contents, threadpool=threadpool, __path__=[])
sys.modules |= {"aiofiles.os": files.os, "aiofiles.ospath": files.ospath, "aiofiles.tempfile": files.tempfile}
setattr(files.File, "_file", property(lambda self: self))  # noqa: B010 - mypy knows that there is none
