"""Files as state machines: a file of `ringloop.files` with a blocking one as the model. See state_machines.py.

Several calls are made at a time, and some are cancelled. They take turns, in the order in which they were made; a read that was
cancelled has read nothing. Which calls find what they want in the page cache is up to Hypothesis. Others may have the file, too.
"""

import asyncio
import contextlib
import gc
import os
import pathlib
import tempfile

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

import support
from ringloop import files
from state_machines import TEXT

SIZES = st.sampled_from([-1, 0, 1, 10, 4096, 8192, 8193, 70_000, 600_000])
OFFSETS = st.sampled_from([0, 1, 4095, 8192, 100_000])
COUNTS = st.sampled_from([0, 1, 10, 5000, 8192, 70_000, 600_000])
READS = [
    st.tuples(st.just("read"), SIZES),
    st.tuples(st.just("readinto"), COUNTS),
    st.tuples(st.just("readline"), st.sampled_from([-1, 0, 5, 9000])),
    st.tuples(st.just("readlines"), st.sampled_from([1, 5000])),
    st.tuples(st.just("pread"), COUNTS, OFFSETS),
]
OTHERS = [
    st.tuples(st.just("write"), COUNTS),
    st.tuples(st.just("pwrite"), COUNTS, OFFSETS),
    st.tuples(st.just("seek"), OFFSETS, st.sampled_from([0, 0, 1, 2])),
    st.tuples(st.just("truncate"), OFFSETS),
    st.sampled_from([("tell",), ("flush",), ("fsync",)]),
]
REFUSED = OSError, ValueError, TypeError


class Moody:
    """A `DirectFile` that says of some calls that they would have to wait."""

    def __init__(self, direct, moods):
        self.direct, self.moods = direct, moods

    def __getattr__(self, name):
        method = getattr(self.direct, name)
        if name in ("close", "share", "is_shared"):
            return method

        def call(*arguments):
            return method(*arguments) if not self.moods or self.moods.pop() else None

        return call


class FileMachine(RuleBasedStateMachine):
    """A binary file."""

    def __init__(self, arm):
        super().__init__()
        self.loop = support.loop_factory(arm)()
        self.folder = tempfile.TemporaryDirectory(prefix="files")
        self.model = self.file = None
        self.moods = []
        self.last = []
        self.written = 0

    @initialize(
        size=st.sampled_from([0, 1, 5000, 300_000]),
        mode=st.sampled_from(["rb", "rb+", "wb+", "ab+"]),
        buffering=st.sampled_from([0, 3, -1, 100_000]),
    )
    def open(self, size, mode, buffering):
        self.paths = [pathlib.Path(self.folder.name, name) for name in ("model", "file")]
        for path in self.paths:
            path.write_bytes(TEXT[:size])
        self.buffering = buffering
        self.model = open(self.paths[0], mode, buffering)  # noqa: SIM115 (closed by teardown)
        self.file = self.loop.run_until_complete(self.open_file(mode, buffering))

    async def open_file(self, mode, buffering):
        file = await files.open(self.paths[1], mode, buffering)
        descriptor = file._descriptor
        descriptor.direct = Moody(descriptor.direct, self.moods)
        file._direct_read = descriptor.direct.read
        return file

    def data(self, count):
        start = self.written % 1_000_000
        return TEXT[start : start + count]

    def in_the_model(self, name, *arguments):
        """Return what a call on the blocking file comes to."""
        model, number = self.model, self.model.fileno()
        try:
            match name:
                case "readinto":
                    buffer = bytearray(*arguments)
                    return model.readinto(buffer), buffer
                case "pread":
                    return os.pread(number, *arguments)
                case "pwrite":
                    count, offset = arguments
                    return os.pwrite(number, self.data(count), offset)
                case "write":
                    return model.write(self.data(*arguments))
                case "fsync":
                    model.flush()
                    return os.fsync(number)
            return getattr(model, name)(*arguments)
        except REFUSED as error:
            return type(error), getattr(error, "errno", None)

    async def in_the_file(self, name, *arguments):
        """Return the same for the file."""
        file = self.file
        try:
            match name:
                case "readinto":
                    buffer = bytearray(*arguments)
                    return await file.readinto(buffer), buffer
                case "pwrite":
                    count, offset = arguments
                    return await file.pwrite(self.data(count), offset)
                case "write":
                    return await file.write(self.data(*arguments))
            return await getattr(file, name)(*arguments)
        except REFUSED as error:
            return type(error), getattr(error, "errno", None)

    @rule(
        calls=st.lists(st.tuples(st.one_of(*READS, *OTHERS), st.sampled_from([None, None, 0, 1, 2, 5])), max_size=4),
        moods=st.lists(st.booleans(), max_size=12),
    )
    def call(self, calls, moods):
        """Make calls, and cancel those of the reads that have a number, after that number of turns of the loop."""
        self.moods[:] = moods
        # `pread` and `pwrite` don't wait for their turn.
        if any(call[0] in ("pread", "pwrite") for call, _ in calls):
            calls = calls[:1]
        results = self.loop.run_until_complete(self.call_in_file(calls))
        self.moods.clear()
        self.last = results
        for (call, _), found in zip(calls, results, strict=True):
            if found == "cancelled":
                continue
            wanted = self.in_the_model(*call)
            assert found == wanted, (call, wanted, found)
        self.written += 1
        self.compare()

    async def call_in_file(self, calls):
        tasks, ends = [], []
        for call, turns in calls:
            tasks.append(self.loop.create_task(self.in_the_file(*call)))
            if turns is not None and call[0] in ("read", "readinto", "readline", "readlines", "pread"):
                ends.append(self.loop.create_task(self.cancel(tasks[-1], turns)))
        await asyncio.gather(*ends)
        results = []
        for task in tasks:
            try:
                results.append(await task)
            except asyncio.CancelledError:
                results.append("cancelled")
        return results

    async def cancel(self, task, turns):
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()

    def compare(self):
        self.loop.run_until_complete(self.file.flush())
        self.model.flush()
        told = self.loop.run_until_complete(self.file.tell())
        assert told == self.model.tell(), (told, self.model.tell(), [str(r)[:60] for r in self.last])
        assert self.paths[0].read_bytes() == self.paths[1].read_bytes()

    @rule()
    def collect(self):
        gc.collect(0)

    @rule()
    def forget(self):
        """Forget what is in the page cache: what is read next is cold."""
        self.loop.run_until_complete(self.file.flush())
        # Asking for the number would share the file.
        number = self.file._descriptor.fd
        os.fsync(number)
        os.posix_fadvise(number, 0, 0, os.POSIX_FADV_DONTNEED)

    @rule(count=COUNTS, calls=st.lists(st.sampled_from(["read", "write", "seek"]), max_size=3))
    def share(self, count, calls):
        """Let others read, write and move an unbuffered file; a buffered one is only shared."""
        numbers = [self.model.fileno(), self.file.fileno()]
        if self.buffering:
            return
        for call in calls:
            results = []
            for number in numbers:
                try:
                    match call:
                        case "read":
                            results.append(os.read(number, count))
                        case "write":
                            results.append(os.write(number, self.data(count)))
                        case "seek":
                            results.append(os.lseek(number, count, os.SEEK_SET))
                except OSError as error:
                    results.append(error.errno)
            assert results[0] == results[1], call
            self.written += 1
        self.compare()

    def teardown(self):
        try:
            if self.file is not None:
                self.model.close()
                self.loop.run_until_complete(self.file.close())
                assert self.paths[0].read_bytes() == self.paths[1].read_bytes()
        finally:
            with contextlib.suppress(RuntimeError):
                support.finish(self.loop)
            self.folder.cleanup()
