"""asyncio's streams as state machines: readers and writers of both ends of a connection, used in any way. See state_machines.py."""

import asyncio
import collections
import gc
import os
import tempfile

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

import support
from differential import described
from state_machines import BYTES_MAX, MISTAKES, TEXT, WRITELINES_IS_BROKEN, Machine

FED = b"fed,\nby hand\n"


class End:
    """The reader and the writer of one end, and what its calls came to."""

    def __init__(self, world):
        self.world = world
        self.reader = self.writer = self.peer = None
        self.calls = []
        self.results = {}
        self.views = []
        self.plans = {}
        self.called = collections.Counter()
        self.written = 0
        # The data that was read, and whether it must be what the peer has written.
        self.taken = bytearray()
        self.is_pure = True
        self.was_full = False

    @property
    def tasks(self):
        return [task for task in self.calls if not task.done()]

    def progress(self):
        size = self.writer.transport.get_write_buffer_size()
        self.was_full = self.was_full or size > 0
        return len(self.results), len(self.reader._buffer), size, self.reader._waiter is None

    def state(self):
        """Return what must be the same in both worlds."""
        reader, transport = self.reader, self.writer.transport
        state = {
            "closing": transport.is_closing(),
            "called": self.called,
            "exception": described(reader.exception()),
            "waits": reader._waiter is not None,
            "at_eof": reader.at_eof(),
            "paused": reader._paused,
        }
        if not self.was_full and not self.peer.was_full:
            # How much a kernel's buffer takes depends on how it is cut into pieces.
            state |= {"results": self.results, "buffered": len(reader._buffer), "is_reading": transport.is_reading()}
        return state

    def check(self):
        """Check what must hold in each world."""
        if self.is_pure:
            content = bytes(self.taken) + bytes(self.reader._buffer)
            assert TEXT[: self.peer.written].startswith(content), "the content is not what was written"

    def has_ended(self):
        return self.writer is None or self.writer.get_extra_info("socket").fileno() == -1

    # Actions.

    def perform(self, action):
        """Do something; return what it came to as plain data."""
        name, *arguments = action
        try:
            return described(getattr(self, name)(*arguments))
        except Exception as error:
            return described(error)

    def start(self, call):
        number = len(self.calls)
        task = self.world.loop.create_task(self.note(number, call))
        self.calls.append(task)

    async def note(self, number, call):
        try:
            result = await call()
        except asyncio.IncompleteReadError as error:
            self.taken += error.partial
            self.results[number] = ("incomplete", len(error.partial), error.expected)
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, ValueError):
                # A line beyond the limit: `readline` throws away what there is of it.
                self.is_pure = False
            self.results[number] = described(error)
        else:
            if isinstance(result, bytes):
                self.taken += result
                result = (len(result), result[:20])
            self.results[number] = result

    def read(self, count):
        if count < 0:
            # If it is cancelled, what it has collected is lost.
            self.is_pure = False
        self.start(lambda: self.reader.read(count))

    def read_exactly(self, count):
        self.start(lambda: self.reader.readexactly(count))

    def read_line(self):
        self.start(self.reader.readline)

    def read_until(self, separator):
        self.start(lambda: self.reader.readuntil(separator))

    def drain(self):
        self.start(self.writer.drain)

    def wait_closed(self):
        self.start(self.writer.wait_closed)

    def cancel(self, index):
        if tasks := self.tasks:
            return tasks[index % len(tasks)].cancel()

    def begin_by_hand(self, count, end):
        """Begin a read as a debugger does, or a program with an event loop of its own."""
        call = self.reader.read(count)
        try:
            future = call.send(None)
        except StopIteration as stop:
            self.taken += stop.value
            return len(stop.value)
        finally:
            if end == "drop":
                del call
            elif end == "close":
                call.close()
        if end == "throw":
            call.throw(KeyError("thrown"))
        return future is not None

    def write(self, count, how):
        data = TEXT[self.written : self.written + min(count, BYTES_MAX - self.written)]
        # For empty pieces asyncio makes a system call, which may find that the peer has gone.
        if how == "lines" and data and not WRITELINES_IS_BROKEN:
            self.writer.writelines([data[: count // 2], data[count // 2 :]])
        else:
            self.writer.write({"bytearray": bytearray, "memoryview": memoryview}.get(how, bytes)(data))
        self.written += len(data)

    def write_eof(self):
        self.writer.write_eof()

    def close(self):
        self.writer.close()

    def abort(self):
        self.writer.transport.abort()

    def feed(self, kind):
        self.is_pure = False
        self.reader.feed_data({"bytes": bytes, "bytearray": bytearray, "nothing": lambda _: b""}[kind](FED))

    def feed_eof(self):
        self.is_pure = False
        self.reader.feed_eof()

    def set_exception(self):
        self.reader.set_exception(KeyError("set"))

    def look(self):
        reader = self.reader
        return reader.at_eof(), self.writer.can_write_eof(), self.writer.is_closing(), repr(reader).split()[0]

    def look_into(self):
        if not (self.was_full or self.peer.was_full):
            return bytes(self.reader._buffer[:20]), len(self.reader._buffer)

    def replace(self):
        self.is_pure = False
        self.reader._buffer = bytearray(FED)

    def limit(self, count):
        self.reader._limit = count

    def view(self):
        """Hold a view of the buffer: meanwhile it can't be resized."""
        self.is_pure = False
        self.views.append(memoryview(self.reader._buffer))

    def release(self):
        while self.views:
            self.views.pop().release()

    def patch(self, what, method):
        target = self.reader if what == "reader" else self.writer
        if method == "read" and self.tasks:
            # A call that reads all looks once whether `read` was replaced, asyncio's at each block.
            return
        if method in vars(target):
            delattr(target, method)
            return
        original = getattr(target, method)

        def called(*arguments):
            # How often a read waits depends on the turn in which the end of the stream comes: with the last bytes, or after them.
            self.called[method] = 1 if method == "_wait_for_data" else self.called[method] + 1
            return original(*arguments)

        setattr(target, method, called)

    def pause(self):
        self.writer.transport.pause_reading()

    def resume(self):
        self.writer.transport.resume_reading()

    def collect(self):
        gc.collect(0)

    def leave(self):
        self.release()
        for task in self.tasks:
            task.cancel()
        if not self.has_ended():
            self.writer.transport.abort()


SIZES = st.sampled_from([0, 1, 5, 100, 4000, 40_000, 70_000, 300_000])
READS = [
    st.tuples(st.just("read"), st.sampled_from([-1, 0, 1, 7, 100, 5000, 65_536, 1_000_000])),
    st.tuples(st.just("read_exactly"), st.sampled_from([0, 1, 100, 5000, 50_000, 200_000])),
    st.tuples(st.just("read_until"), st.sampled_from([b"\n", b"a", b"ab", b"\n\x00\n\x01"])),
    st.just(("read_line",)),
]
COMMON = [
    st.tuples(st.just("cancel"), st.integers(0, 3)),
    st.sampled_from([("drain",), ("wait_closed",), ("look",), ("look_into",), ("collect",), ("write_eof",)]),
    st.tuples(st.just("write"), SIZES, st.sampled_from(["bytes", "bytearray", "memoryview", "lines"])),
    st.tuples(st.just("write"), SIZES, st.just("bytes")),
]
RARE = [
    st.sampled_from([("close",), ("abort",), ("feed_eof",), ("set_exception",), ("replace",), ("view",), ("release",)]),
    st.sampled_from([("pause",), ("resume",), ("feed", "bytes"), ("feed", "bytearray"), ("feed", "nothing")]),
    st.tuples(st.just("limit"), st.sampled_from([1, 10, 1000, 65_536, 1 << 20, 1 << 64])),
    st.tuples(
        st.just("begin_by_hand"), st.sampled_from([1, 5000]), st.sampled_from(["drop", "close", "throw", "leave"])
    ),
    st.tuples(
        st.just("patch"),
        st.just("reader"),
        st.sampled_from(["feed_data", "read", "readuntil", "_wait_for_data", "exception"]),
    ),
    st.tuples(st.just("patch"), st.just("writer"), st.sampled_from(["write", "drain"])),
]


def steps(extra):
    action = st.one_of(*READS, *READS, *COMMON, *COMMON, *extra)
    return st.lists(st.tuples(st.integers(0, 1), action), min_size=1, max_size=5)


class StreamsMachine(Machine):
    """A client of `open_unix_connection` and a connection of `start_unix_server`."""

    def __init__(self, arm):
        super().__init__(arm)
        self.folder = tempfile.TemporaryDirectory(prefix="streams")
        for world in self.worlds:
            # Much of it is asyncio's own code in both.
            world.mistakes = MISTAKES

    def teardown(self):
        try:
            super().teardown()
        finally:
            self.folder.cleanup()

    @initialize(limit=st.sampled_from([1, 100, 65_536, 1 << 20]))
    def connect(self, limit):
        self.in_both(lambda world: self.connect_in(world, limit))

    async def connect_in(self, world, limit):
        accepted = world.loop.create_future()
        server, dial = await self.serve(lambda *pair: accepted.set_result(pair), limit)
        world.ends = [End(world), End(world)]
        client = await dial()
        for end, peer, pair in zip(world.ends, reversed(world.ends), (client, await accepted), strict=True):
            end.peer = peer
            end.reader, end.writer = pair
        server.close()

    async def serve(self, connected, limit):
        path = os.path.join(tempfile.mkdtemp(dir=self.folder.name), "socket")
        server = await asyncio.start_unix_server(connected, path, limit=limit)
        return server, lambda: asyncio.open_unix_connection(path, limit=limit)

    def perform_in_both(self, steps):
        async def perform(world):
            return [world.ends[end].perform(action) for end, action in steps]

        self.in_both(perform)


class UnixStreamsMachine(StreamsMachine):
    """Over Unix sockets, where both worlds must do the same."""

    @rule(steps=steps(RARE))
    def act(self, steps):
        self.perform_in_both(steps)


class TcpStreamsMachine(StreamsMachine):
    """Over TCP, where the kernel takes its time: the worlds are not compared, but what is read must be what was written."""

    async def serve(self, connected, limit):
        server = await asyncio.start_server(connected, support.HOST, 0, limit=limit)
        return server, lambda: asyncio.open_connection(*server.sockets[0].getsockname(), limit=limit)

    def in_both(self, function):
        for world in self.worlds:
            world.run(function(world))
            for end in world.ends:
                end.check()

    @rule(steps=steps([]))
    def act(self, steps):
        self.perform_in_both(steps)
