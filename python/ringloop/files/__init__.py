"""Files that do not block the event loop: `open`, and the modules `os` and `tempfile`.

    async with ringloop.open("data.txt") as file:
        async for line in file:
            ...

The interface is aiofiles': `from ringloop import files as aiofiles` is all that a program has to change. It works on
ringloop's loops and on asyncio's and uvloop's.
"""

from . import os, ospath, tempfile
from ._binary import BufferedRandom, BufferedReader, BufferedWriter, File, RawFile
from ._open import FileContext, open
from ._text import TextFile
from ._threads import stderr, stderr_bytes, stdin, stdin_bytes, stdout, stdout_bytes, wrap

__all__ = [
    "BufferedRandom",
    "BufferedReader",
    "BufferedWriter",
    "File",
    "FileContext",
    "RawFile",
    "TextFile",
    "open",
    "os",
    "ospath",
    "stderr",
    "stderr_bytes",
    "stdin",
    "stdin_bytes",
    "stdout",
    "stdout_bytes",
    "tempfile",
    "wrap",
]
