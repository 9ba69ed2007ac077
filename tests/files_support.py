"""Helpers for tests of files."""

import asyncio


async def until_in_flight(file, task):
    """Wait until the kernel has been asked to do something with the file. A thread may have done it before that is seen."""
    while not file._descriptor.in_flight and not task.done():
        await asyncio.sleep(0)


async def as_coroutine(awaitable):
    return await awaitable


def slow(file):
    """Make a file do everything as if it had to wait."""

    direct = file._descriptor.direct

    class Waits:
        share, is_shared, close = direct.share, direct.is_shared, direct.close

        def read(self, *_):
            return None

        read_all = readinto = write = read

    file._descriptor.direct = Waits()
    if hasattr(file, "_direct_read"):
        file._direct_read = file._descriptor.direct.read
    if hasattr(file, "_buffer"):
        slow(file._buffer)
