"""Children as state machines: their streams, signals and ends, in any order. See state_machines.py.

When a child does something is up to the kernel. So it is not compared with asyncio, but what must hold in any case is checked: what is
read is what was written, nothing waits for ever, each child is reaped, and its end is that which it had.
"""

import asyncio
import contextlib
import gc
import os
import signal

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

import support
from state_machines import BYTES_MAX, TEXT

PIPE = asyncio.subprocess.PIPE
# What they write is what they read; the second one does it on both outputs, the third one ends by itself.
PROGRAMS = {
    "cat": ("cat", 0),
    "both": ("tee /dev/stderr", 0),
    "head": ("head -c 50000; exit 3", 3),
    "silent": ("exec cat > /dev/null", 0),
    "gone": ("exit 7", 7),
}


class Child:
    """A child, and what was written to it and read from it."""

    def __init__(self, process, program):
        self.process = process
        self.program = program
        self.written = 0
        self.taken = bytearray()
        self.reading = None
        self.tasks = []
        # Signals that may have been its end.
        self.signals = set()

    def check(self):
        code = self.process.returncode
        if self.program != "silent":
            assert TEXT[: self.written].startswith(self.taken), "the content is not what was written"
        assert code in (None, PROGRAMS[self.program][1], *self.signals), (self.program, code, self.signals)


class ChildMachine(RuleBasedStateMachine):
    """Children of one loop."""

    def __init__(self, arm):
        super().__init__()
        self.loop = support.loop_factory(arm)()
        self.children = []
        self.reported = []
        self.loop.set_exception_handler(lambda _loop, context: self.reported.append(context))

    def run(self, coroutine):
        async def main():
            return await asyncio.wait_for(coroutine, support.PATIENCE_S)

        return self.loop.run_until_complete(main())

    @initialize(program=st.sampled_from(sorted(PROGRAMS)))
    def start_first(self, program):
        self.run(self.start_child(program, 65_536))

    @rule(program=st.sampled_from(sorted(PROGRAMS)), limit=st.sampled_from([100, 65_536, 1 << 20]))
    def start(self, program, limit):
        if len(self.children) < 3:
            self.run(self.start_child(program, limit))

    async def start_child(self, program, limit):
        script, _ = PROGRAMS[program]
        errors = asyncio.subprocess.DEVNULL if program == "both" else None
        options = {"stdin": PIPE, "stdout": PIPE, "stderr": errors, "limit": limit}
        process = await asyncio.create_subprocess_shell(script, **options)
        self.children.append(Child(process, program))

    @rule(
        steps=st.lists(
            st.tuples(
                st.integers(0, 2),
                st.one_of(
                    st.tuples(st.just("write"), st.sampled_from([1, 1000, 70_000, 300_000])),
                    st.tuples(st.just("read"), st.sampled_from([-1, 1, 5000, 65_536])),
                    st.tuples(st.just("exactly"), st.sampled_from([1, 1000, 100_000])),
                    st.tuples(st.just("send"), st.sampled_from([signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP])),
                    st.sampled_from([("drain",), ("end",), ("wait",), ("cancel",), ("collect",), ("wait_a_little",)]),
                ),
            ),
            min_size=1,
            max_size=4,
        )
    )
    def act(self, steps):
        self.run(self.act_on(steps))
        for child in self.children:
            child.check()
        assert not self.reported, self.reported

    async def act_on(self, steps):
        for number, (name, *arguments) in steps:
            if number < len(self.children):
                await getattr(self, name)(self.children[number], *arguments)
        for _ in range(20):
            await asyncio.sleep(0)

    async def write(self, child, count):
        data = TEXT[child.written : child.written + min(count, BYTES_MAX - child.written)]
        if not child.process.stdin.is_closing():
            child.process.stdin.write(data)
            child.written += len(data)

    def note(self, child, call):
        async def read():
            try:
                child.taken += await call()
            except asyncio.IncompleteReadError as error:
                child.taken += error.partial

        if child.reading is None or child.reading.done():
            child.reading = self.loop.create_task(read())
            child.tasks.append(child.reading)

    async def read(self, child, count):
        # One that reads all, and is cancelled, loses what it has.
        if count > 0 or child.process.stdin.is_closing():
            self.note(child, lambda: child.process.stdout.read(count))

    async def exactly(self, child, count):
        self.note(child, lambda: child.process.stdout.readexactly(count))

    async def drain(self, child):
        async def drain():
            with contextlib.suppress(ConnectionError):
                await child.process.stdin.drain()

        child.tasks.append(self.loop.create_task(drain()))

    async def end(self, child):
        child.process.stdin.close()

    async def wait(self, child):
        child.tasks.append(self.loop.create_task(child.process.wait()))

    async def cancel(self, child):
        if child.tasks and not (child.process.stdin.is_closing() and child.tasks[-1] is child.reading):
            child.tasks[-1].cancel()

    async def send(self, child, number):
        try:
            child.process.send_signal(number)
        except ProcessLookupError:
            return
        if number != signal.SIGSTOP:
            child.signals.add(-number)

    async def collect(self, child):
        gc.collect(0)

    async def wait_a_little(self, child):
        await asyncio.sleep(0.002)

    def teardown(self):
        try:
            self.run(self.end_all())
            for child in self.children:
                child.check()
            assert not self.reported, self.reported
            for child in self.children:
                with contextlib.suppress(ChildProcessError):
                    raise AssertionError("a child was not reaped", os.waitpid(child.process.pid, os.WNOHANG))
        finally:
            support.finish(self.loop)

    async def end_all(self):
        """End every child: each ends when it has nothing to read any more, and what it writes is read."""
        for child in self.children:
            with contextlib.suppress(ProcessLookupError):
                child.process.send_signal(signal.SIGCONT)
            child.process.stdin.close()
            if child.reading is not None:
                await asyncio.wait([child.reading])
            child.taken += await child.process.stdout.read()
            code = await child.process.wait()
            await asyncio.gather(*child.tasks, return_exceptions=True)
            if child.program in ("cat", "both") and code == 0 and not child.signals:
                assert len(child.taken) == child.written
