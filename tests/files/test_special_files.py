"""Files that are not on a disk: those of /proc and /sys, pipes, terminals. As the builtin `open` reads and writes them."""

import os
import pathlib

import pytest

from files_support import slow
from ringloop import files

# Their content does not change between two reads. Some have a size of 0, some one that is too large.
KERNEL_FILES = [
    "/proc/sys/kernel/pid_max",
    "/proc/sys/kernel/ostype",
    "/proc/sys/kernel/random/boot_id",
    "/proc/self/cmdline",
    "/proc/self/limits",
    "/proc/filesystems",
    "/sys/kernel/mm/transparent_hugepage/enabled",
    "/sys/devices/system/cpu/possible",
]


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("path", KERNEL_FILES)
def test_a_file_whose_size_says_nothing_is_read_to_its_end(run, path, waits):
    if not os.access(path, os.R_OK):
        pytest.skip(f"this kernel has no {path}")
    expected = pathlib.Path(path).read_bytes()
    assert expected

    async def main():
        for arguments in (("rb",), ("rb", 0), ("r",)):
            async with files.open(path, *arguments) as file:
                if waits:
                    slow(file)
                content = await file.read()
                assert (content if arguments[0] == "rb" else content.encode()) == expected
                # Again, and from where there is nothing left.
                assert not await file.read()
                await file.seek(0)
                assert len(await file.read()) == len(content)
        async with files.open(path, "rb", 0) as file:
            if waits:
                slow(file)
            assert await file.readall() == expected
        async with files.open(path, "rb") as file:
            if waits:
                slow(file)
            assert [line async for line in file] == expected.splitlines(keepends=True)

    run(main())
