"""Connections as state machines of Hypothesis, with stock asyncio as the model.

A machine has two worlds: a pair of transports on asyncio's loop, and the same pair on the loop under test. Each step does the same in
both, runs both until nothing moves any more, and compares what the protocols were told, what the calls returned or raised, and the
state of the transports. What asyncio loses through bugs of its own is only checked on the loop under test.

The sockets are Unix sockets: data has arrived when the system call returns, so nothing depends on time. test_state_machines.py
runs a few fixed examples; soak.py runs others for as long as it is told to.
"""

import asyncio
import asyncio.selector_events
import concurrent.futures
import contextlib
import gc
import io
import os
import random
import socket
import sys
import tempfile
import threading
from asyncio import sslproto

from hypothesis import assume
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

import support
from differential import described
from tls_support import NAME, tls_contexts

FLUSHING = sslproto.SSLProtocolState.FLUSHING
BYTES_MAX = 4_000_000
"""No end writes more than this."""
TEXT = random.Random(1).randbytes(BYTES_MAX)
"""The text that each end writes: its next bytes are those that follow the last ones."""
QUIET_TURNS = 12
"""When nothing has changed for this number of turns, nothing will. Fewer than those in which a loop looks at the kernel each time."""


WRITELINES_IS_BROKEN = (
    sys.version_info >= (3, 12)
    and "_conn_lost" not in asyncio.selector_events._SelectorSocketTransport.writelines.__code__.co_names
)
"""asyncio of Python 3.12 and 3.13 never pauses the protocol there, and after a failed write it fills a buffer that nobody empties."""

MISTAKES = ("AttributeError", "InvalidStateError")
"""The errors that asyncio's own code raises in callbacks after the end of a connection."""


class Boom(Exception):
    """The error that protocols raise when they are told to."""


class SameThread(concurrent.futures.ThreadPoolExecutor):
    """Does what it is given at once, so that nothing depends on when a thread gets a CPU."""

    def submit(self, function, /, *arguments, **options):
        future = concurrent.futures.Future()
        try:
            future.set_result(function(*arguments, **options))
        except Exception as error:
            future.set_exception(error)
        return future


class World:
    """One loop, and what lives on it."""

    def __init__(self, arm):
        self.arm = arm
        self.loop = support.loop_factory(arm)()
        self.loop.set_exception_handler(self.handle_exception)
        self.loop.set_default_executor(SameThread())
        self.mistakes = MISTAKES if arm == "asyncio" else ()
        self.after_close = lambda transport: None
        """A function that is called after each call of a transport's close()."""
        self.ends = []
        self.reported = []

    def handle_exception(self, _loop, context):
        self.reported.append(type(context.get("exception")).__name__)

    def run(self, coroutine):
        """Run a coroutine, and then the loop until nothing moves any more. Return the coroutine's result."""
        return self.loop.run_until_complete(self._run(coroutine))

    async def _run(self, coroutine):
        result = await coroutine
        await self.settle()
        return result

    async def settle(self):
        quiet, before = 0, None
        while quiet < QUIET_TURNS:
            await asyncio.sleep(0)
            now = [end.progress() for end in self.ends], len(self.reported), len(asyncio.all_tasks())
            quiet = quiet + 1 if now == before else 0
            before = now

    def close(self):
        support.finish(self.loop)
        assert not asyncio.all_tasks(self.loop)


def differences(wanted, found):
    """Return what differs between two states, for people."""
    return {key: (wanted.get(key), found.get(key)) for key in {**wanted, **found} if wanted.get(key) != found.get(key)}


def is_mistake(outcome):
    """Return whether asyncio has called something of a transport that has gone."""
    match outcome:
        case ("AttributeError" | "TypeError", text):
            return text.startswith(("'NoneType' object has no attribute", "'NoneType' object is not callable"))
    return False


class Machine(RuleBasedStateMachine):
    """Two worlds in which the same happens."""

    def __init__(self, arm):
        super().__init__()
        self.worlds = [World("asyncio"), World(arm)]

    def in_both(self, function):
        """Run `function(world)`, a coroutine, in each world; what it comes to must be the same, and so must be what has happened."""
        wanted, found = (world.run(function(world)) or () for world in self.worlds)
        for one, other in zip(*(world.ends for world in self.worlds), strict=True):
            assume(self.is_comparable(one, other))
        for one, other in zip(wanted, found, strict=True):
            assert one == other or is_mistake(one), (wanted, found)
        self.compare()

    def is_comparable(self, one, other):
        """Return whether asyncio's end and the other's had the same chances; an example where they had not is given up."""
        # To find the end of a file, asyncio waits until the socket is nearly empty. If the peer does not read, that is never.
        return other.tasks or not one.tasks

    def compare(self):
        model, subject = self.worlds
        for number, (wanted, found) in enumerate(zip(model.ends, subject.ends, strict=True)):
            wanted, found = wanted.state(), found.state()
            assert wanted == found, f"end {number}: {differences(wanted, found)}"
        wanted, found = (
            sorted(name for name in world.reported if name not in world.mistakes) for world in (model, subject)
        )
        assert wanted == found, (model.reported, subject.reported)
        for world in self.worlds:
            for end in world.ends:
                end.check()

    def teardown(self):
        try:
            for world in self.worlds:
                for end in world.ends:
                    end.plans.clear()
                    end.leave()
                world.run(asyncio.sleep(0))
                for end in world.ends:
                    assert end.has_ended()
        finally:
            for world in self.worlds:
                world.close()


class End:
    """One end of a connection: its transport, and what its protocol was told."""

    def __init__(self, world):
        self.world = world
        self.transport = None
        # Under TLS, the transport below: the one above forgets it when it is closed twice.
        self.lowest = None
        self.socket = None
        # The plans of the protocol for its next calls: actions by the name of the callback.
        self.plans = {}
        self.tasks = set()
        # How often something was done at either end while these tasks ran.
        self.busy_count = 0

    def perform(self, action):
        """Do something to the transport; return what it came to as plain data."""
        for end in self.world.ends:
            end.busy_count += not all(task.done() for task in end.tasks)
        name, *arguments = action
        return self.outcome_of(getattr(self, name), *arguments)

    def act(self, action):
        """Act from outside of a callback, where nobody catches what a callback raised: `sendto` may call `error_received`."""
        try:
            return self.perform(action)
        except Boom as error:
            return described(error)

    @staticmethod
    def outcome_of(function, *arguments):
        try:
            return described(function(*arguments))
        except Boom:
            raise
        except Exception as error:
            return described(error)

    def transport_state(self):
        """Return what must be the same in both worlds of a transport of bytes, and of what came through it."""
        state = {
            "closing": self.ask("is_closing"),
            "is_reading": self.ask("is_reading"),
            "limits": self.ask("get_write_buffer_limits"),
            "empty": self.ask("get_write_buffer_size") == 0,
        }
        if not self.peer.was_full:
            # How much a kernel's buffer takes depends on how it is cut into pieces.
            state["received"] = len(self.received)
        return state

    def called(self, callback):
        """Do what is planned for when the protocol is called."""
        for action in self.plans.pop(callback, ()):
            self.perform(action)

    # Actions on any transport.

    def boom(self):
        raise Boom

    def close(self):
        self.transport.close()
        self.world.after_close(self.transport)

    def abort(self):
        self.transport.abort()

    def soon(self, action):
        self.world.loop.call_soon(self.perform, action)

    def from_a_thread(self, action):
        thread = threading.Thread(target=self.world.loop.call_soon_threadsafe, args=(self.perform, action))
        thread.start()
        thread.join()

    def collect(self):
        gc.collect(0)

    def limits(self, high, low):
        self.transport.set_write_buffer_limits(high, low)

    def plan(self, callback, action):
        self.plans.setdefault(callback, []).append(action)

    @contextlib.contextmanager
    def counted(self, count):
        """Count what is written within as written from the beginning: `pause_writing`, which is called within, may write more."""
        self.written += count
        try:
            yield
        except Exception:
            self.written -= count
            raise

    def leave(self):
        if not self.has_ended():
            self.lowest.abort()

    def has_ended(self):
        return self.transport is None or self.socket.fileno() == -1


# --- streams ----------------------------------------------------------------------------------------------------------


class StreamEnd(End):
    """One end of a stream. Its protocols share it."""

    def __init__(self, world):
        super().__init__(world)
        self.peer = None
        self.written = 0
        self.received = bytearray()
        self.receives_all = True
        self.sent_file = False
        # The callbacks that were called, but for data: the two directions do not depend on each other.
        self.reading, self.writing = [], []
        self.delivering = False
        self.paused_writing = False
        self.was_full = False

    def ask(self, method):
        """Return what the transport says of itself, or how it refuses to: under TLS it knows nothing any more once it is closed."""
        return None if self.transport is None else self.outcome_of(getattr(self.transport, method))

    def progress(self):
        size = self.ask("get_write_buffer_size")
        self.was_full = self.was_full or size not in (None, 0)
        return len(self.received), len(self.reading), len(self.writing), size

    def state(self):
        """Return what must be the same in both worlds."""
        state = {"reading": self.reading, "writing": self.writing}
        if self.transport is None:
            return state
        return state | self.transport_state()

    def chances(self):
        """Return what shows how many turns it took to send a file."""
        return "eof" in self.reading, self.ask("is_reading"), self.busy_count

    def holds(self):
        try:
            self.check()
        except AssertionError:
            return False
        return True

    def check(self):
        """Check what must hold in each world."""
        sent = TEXT[: self.peer.written]
        assert sent.startswith(self.received)
        ends = self, self.peer
        quiet = all(end.ask("is_closing") is False and end.ask("is_reading") is True and not end.tasks for end in ends)
        if quiet and self.receives_all and "eof" not in self.reading:
            assert len(self.received) == self.peer.written
            assert self.peer.ask("get_write_buffer_size") == 0

    # Callbacks.

    def connection_made(self, transport):
        assert "made" not in self.reading
        self.transport = transport
        self.lowest = transport._ssl_protocol._transport if hasattr(transport, "_ssl_protocol") else transport
        self.socket = transport.get_extra_info("socket")
        self.reading.append("made")
        self.called("made")

    def data_received(self, data):
        assert "lost" not in self.reading
        if self.delivering:
            # Under TLS, where a protocol resumes or closes what it is being called by.
            self.reading.append("called anew")
        self.received += data
        before, self.delivering = self.delivering, True
        try:
            self.called("data")
        finally:
            self.delivering = before

    def eof_received(self):
        self.reading.append("eof")
        self.called("eof")
        return bool(self.plans.pop("keep open", None))

    def pause_writing(self):
        assert not self.paused_writing
        self.paused_writing = True
        self.writing.append("pause")
        self.called("pause")

    def resume_writing(self):
        assert self.paused_writing
        self.paused_writing = False
        self.writing.append("resume")
        self.called("resume")

    def connection_lost(self, error):
        assert "lost" not in self.reading
        if isinstance(error, ConnectionError) and (self.was_full or self.peer.was_full):
            # Whether reading or writing meets the end first depends on how much the kernel's buffers took.
            error = ConnectionError()
        self.reading += ["lost", described(error)]
        self.called("lost")

    # Actions.

    def write(self, count, how):
        count = min(count, BYTES_MAX - self.written)
        data = TEXT[self.written : self.written + count]
        step = max(1, count // 7)
        pieces = [data[start : start + step] for start in range(0, count, step)]
        with self.counted(count):
            if how == "bytes" or self.has_broken_writelines():
                self.transport.write(data)
            elif how == "bytearray":
                self.transport.write(bytearray(data))
            elif how == "memoryview":
                self.transport.write(memoryview(data))
            elif how == "list" or not pieces:
                # asyncio's assertion fails on an empty iterator.
                self.transport.writelines(pieces)
            else:
                self.transport.writelines(bytearray(piece) for piece in pieces)

    def has_broken_writelines(self):
        """Return whether `write` stands for it. Where both refuse, the message names the method."""
        if not WRITELINES_IS_BROKEN or self.world.arm != "asyncio" or self.transport is not self.lowest:
            return False
        return not self.transport._eof and self.transport._empty_waiter is None

    def end(self):
        self.transport.write_eof()

    def pause(self):
        self.transport.pause_reading()

    def resume(self):
        self.transport.resume_reading()

    def switch(self, kind):
        self.transport.set_protocol(PROTOCOLS[kind](self))

    def keep_open(self):
        self.plans["keep open"] = [("collect",)]

    def shut(self, how):
        self.receives_all = self.peer.receives_all = False
        self.socket.shutdown(how)

    def wrong(self, data):
        self.transport.write(data)

    def look(self):
        return self.transport.get_extra_info("nothing", 5), self.transport.can_write_eof()

    def send_file(self, count):
        if self.tasks:
            # Of two at a time asyncio may forget the first.
            return
        self.sent_file = True
        task = self.world.loop.create_task(self.sending(count))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def sending(self, count):
        start = self.written
        self.written = min(start + count, BYTES_MAX)
        try:
            with tempfile.TemporaryFile(buffering=0) as file:
                file.write(TEXT[: self.written])
                await self.world.loop.sendfile(self.transport, file, start)
        except RuntimeError:
            # Refused: nothing was sent.
            self.written = start
        except Exception:
            # How much was sent is not told.
            self.peer.receives_all = False
        finally:
            if self.world.arm == "asyncio":
                # asyncio doesn't, where the connection ends before the file's turn, and refuses to write ever after.
                self.lowest._empty_waiter = None


class Plain(asyncio.Protocol):
    def __init__(self, end):
        self.connection_made = end.connection_made
        self.data_received = end.data_received
        self.eof_received = end.eof_received
        self.pause_writing = end.pause_writing
        self.resume_writing = end.resume_writing
        self.connection_lost = end.connection_lost


class Buffered(asyncio.BufferedProtocol):
    def __init__(self, end):
        self.end = end
        self.buffer = bytearray(5000)
        self.connection_made = end.connection_made
        self.eof_received = end.eof_received
        self.pause_writing = end.pause_writing
        self.resume_writing = end.resume_writing
        self.connection_lost = end.connection_lost

    def get_buffer(self, sizehint):
        # Not a bytearray, of which asyncio loses parts under TLS.
        return memoryview(self.buffer)

    def buffer_updated(self, count):
        self.end.data_received(self.buffer[:count])


PROTOCOLS = {"plain": Plain, "buffered": Buffered}

COUNTS = st.sampled_from([0, 1, 100, 4000, 20_000, 70_000, 300_000])
SMALL_COUNTS = st.sampled_from([1, 100, 1000])
HOW = st.sampled_from(["bytes", "bytearray", "memoryview", "list", "iterator"])
MARKS = st.sampled_from([None, 0, 1, 100, 10_000, 500_000])
COMMON = [
    st.tuples(st.just("pause")),
    st.tuples(st.just("resume")),
    st.tuples(st.just("close")),
    st.tuples(st.just("abort")),
    st.tuples(st.just("collect")),
    st.tuples(st.just("look")),
    st.tuples(st.just("limits"), MARKS, MARKS),
    st.tuples(st.just("switch"), st.sampled_from(sorted(PROTOCOLS))),
    st.tuples(st.just("wrong"), st.sampled_from([None, "text", 5, [b"bytes"]])),
]
STREAM_ONLY = [
    st.tuples(st.just("end")),
    st.tuples(st.just("keep_open")),
    # What goes in one system call. After one that has sent a part, asyncio waits until the socket is nearly empty.
    st.tuples(st.just("send_file"), st.sampled_from([1, 1000])),
    st.tuples(st.just("shut"), st.sampled_from([socket.SHUT_RD, socket.SHUT_WR, socket.SHUT_RDWR])),
]
CALLBACKS = st.sampled_from(["data", "eof", "pause", "resume", "lost"])


def stream_actions(extra):
    """Return what may be done to one end, now or in a callback."""
    now = st.one_of(st.tuples(st.just("write"), COUNTS, HOW), *COMMON, *extra)
    within = st.one_of(st.tuples(st.just("write"), SMALL_COUNTS, HOW), st.tuples(st.just("boom")), *COMMON, *extra)
    within = st.one_of(within, st.tuples(st.just("soon"), within))
    return st.one_of(
        now,
        now,
        st.tuples(st.sampled_from(["soon", "from_a_thread"]), now),
        st.tuples(st.just("plan"), CALLBACKS, within),
    )


class StreamMachine(Machine):
    """A stream connection whose two ends do anything at any time."""

    options = ({}, {})
    pair = staticmethod(socket.socketpair)

    @initialize(kinds=st.tuples(*[st.sampled_from(sorted(PROTOCOLS))] * 2), small=st.booleans())
    def connect(self, kinds, small):
        self.in_both(lambda world: self.connect_in(world, kinds, small))

    async def connect_in(self, world, kinds, small):
        sockets = self.pair()
        world.ends = [StreamEnd(world), StreamEnd(world)]
        for end, peer in zip(world.ends, reversed(world.ends), strict=True):
            end.peer = peer
        protocols = [PROTOCOLS[kind](end) for kind, end in zip(kinds, world.ends, strict=True)]
        for sock in sockets:
            sock.setblocking(False)
            if small:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        await asyncio.gather(
            world.loop.create_connection(lambda: protocols[0], sock=sockets[0], **self.options[0]),
            world.loop.connect_accepted_socket(lambda: protocols[1], sockets[1], **self.options[1]),
        )

    def is_comparable(self, one, other):
        # A transport does not read while it sends a file, and asyncio takes more turns for that. In these turns it refuses
        # to write, may hear that the connection was reset before it hears its end, and undoes a pause of the program's.
        return super().is_comparable(one, other) and (not one.sent_file or one.chances() == other.chances())

    def act_in_both(self, steps):
        async def act(world):
            return [world.ends[end].act(action) for end, action in steps]

        self.in_both(act)


class PlainMachine(StreamMachine):
    """Over a plain socket."""

    @rule(steps=st.lists(st.tuples(st.integers(0, 1), stream_actions(STREAM_ONLY)), min_size=1, max_size=4))
    def act(self, steps):
        """Do several things in a row, in one callback."""
        self.act_in_both(steps)


class TcpMachine(PlainMachine):
    """Over TCP, where the kernel takes its time. What must hold in each world is waited for, and the worlds are not compared."""

    pair = staticmethod(support.tcp_pair)

    def in_both(self, function):
        for world in self.worlds:
            world.run(function(world))
            for end in world.ends:
                world.run(support.until(end.holds, "what must hold"))


# --- TLS --------------------------------------------------------------------------------------------------------------


def end_at_last(transport):
    """Give asyncio what ringloop adds to it.

    If the peer has ended the connection while reading was paused, close() ends it; asyncio's waits for ever.
    """
    protocol = transport._ssl_protocol
    if protocol is not None and protocol._state is FLUSHING and protocol._app_reading_paused:
        protocol._loop.call_soon(lambda: protocol._state is FLUSHING and protocol._do_flush())


class TlsMachine(StreamMachine):
    """The same under TLS."""

    def __init__(self, arm):
        super().__init__(arm)
        server, client = tls_contexts()
        self.options = {"ssl": client, "server_hostname": NAME}, {"ssl": server}
        for world in self.worlds:
            # Much of it is asyncio's own code in both.
            world.mistakes = MISTAKES
        self.worlds[0].after_close = end_at_last

    @rule(steps=st.lists(st.tuples(st.integers(0, 1), stream_actions([])), min_size=1, max_size=4))
    def act(self, steps):
        self.act_in_both(steps)


# --- datagrams --------------------------------------------------------------------------------------------------------


class DatagramEnd(End, asyncio.DatagramProtocol):
    """One socket for datagrams, and its protocol. Each datagram has a number of its own."""

    def __init__(self, world, address):
        super().__init__(world)
        self.address = address
        self.number = 0
        self.received, self.errors, self.writing = [], [], []
        self.paused = False
        self.was_full = False
        self.ending = None

    def progress(self):
        size = None if self.transport is None else self.transport.get_write_buffer_size()
        return len(self.received), len(self.errors), len(self.writing), size, self.ending

    def state(self):
        state = {
            "received": self.received,
            "errors": self.errors,
            "writing": self.writing,
            "ending": self.ending,
            "closing": self.transport.is_closing(),
            "limits": self.transport.get_write_buffer_limits(),
            "size": self.transport.get_write_buffer_size(),
        }
        if self.was_refused():
            # When a connected socket meets the end of its peer in sending, the kernel throws away what it hasn't read.
            del state["received"]
        return state

    def check(self):
        # Nothing comes twice, or out of order. Empty datagrams have no number.
        numbers = [data for data, _length, _sender in self.received if data]
        assert numbers == sorted(set(numbers))

    # Callbacks.

    def connection_made(self, transport):
        assert self.transport is None
        self.transport = self.lowest = transport
        self.socket = transport.get_extra_info("socket")

    def datagram_received(self, data, address):
        assert self.ending is None
        self.received.append((data[:8], len(data), os.path.basename(address or "")))
        self.called("datagram")

    def error_received(self, error):
        assert self.ending is None
        self.errors.append(described(error))
        self.called("error")

    def pause_writing(self):
        assert not self.paused
        self.paused = True
        self.writing.append("pause")
        self.called("pause")

    def resume_writing(self):
        assert self.paused
        self.paused = False
        self.writing.append("resume")
        self.called("resume")

    def connection_lost(self, error):
        assert self.ending is None
        self.ending = ("lost", described(error))
        self.called("lost")

    # Actions.

    def send(self, length, to):
        if self.transport.is_closing() and self.ending is None and self.transport.get_write_buffer_size() == 0:
            # What the kernel has no room for now is lost in asyncio, which goes on to write it to a socket that is gone.
            return
        self.number += 1
        data = b"%07d." % self.number + bytes(length)
        address = {"peer": self.peer.address, "nobody": self.address + "x", "none": None, "wrong": 5}[to]
        self.transport.sendto(data if length else b"", address)
        self.was_full |= self.transport.get_write_buffer_size() > 0

    def was_refused(self):
        return any(name == "ConnectionRefusedError" for name, _ in self.errors)

    def burst(self, count, length, to):
        for _ in range(count):
            self.send(length, to)

    def wrong(self, data):
        self.transport.sendto(data, self.peer.address)


LENGTHS = st.sampled_from([0, 1, 1000, 20_000])
TO = st.sampled_from(["peer", "peer", "peer", "none", "nobody", "wrong"])
DATAGRAM_ACTIONS = st.one_of(
    st.tuples(st.just("send"), LENGTHS, TO),
    st.tuples(st.just("burst"), st.integers(2, 40), LENGTHS, TO),
    st.tuples(st.just("close")),
    st.tuples(st.just("abort")),
    st.tuples(st.just("collect")),
    st.tuples(st.just("limits"), MARKS, MARKS),
    st.tuples(st.just("wrong"), st.sampled_from([None, "text", 5])),
)
DATAGRAM_PLANS = st.one_of(DATAGRAM_ACTIONS, st.tuples(st.just("boom")))


class DatagramMachine(Machine):
    """Two Unix sockets for datagrams, connected to one another or not."""

    def __init__(self, arm):
        super().__init__(arm)
        self.folder = tempfile.TemporaryDirectory(prefix="datagrams")

    def teardown(self):
        try:
            super().teardown()
        finally:
            self.folder.cleanup()

    @initialize(connected=st.booleans(), small=st.booleans())
    def open(self, connected, small):
        self.in_both(lambda world: self.open_in(world, connected, small))

    def is_comparable(self, one, other):
        # A peer that reads several datagrams in a turn, and then closes, has made room for those that waited before it is gone.
        return super().is_comparable(one, other) and (not one.was_full or one.was_refused() == other.was_refused())

    async def open_in(self, world, connected, small):
        sockets = [socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(2)]
        folder = tempfile.mkdtemp(dir=self.folder.name)
        world.ends = [DatagramEnd(world, f"{folder}/{name}") for name in "ab"]
        for end, peer, sock in zip(world.ends, reversed(world.ends), sockets, strict=True):
            end.peer = peer
            sock.setblocking(False)
            sock.bind(end.address)
            if small:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        for end, sock in zip(world.ends, sockets, strict=True):
            if connected:
                sock.connect(end.peer.address)
            await world.loop.create_datagram_endpoint(lambda: end, sock=sock)  # noqa: B023

    @rule(
        steps=st.lists(
            st.tuples(
                st.integers(0, 1),
                st.one_of(
                    DATAGRAM_ACTIONS,
                    DATAGRAM_ACTIONS,
                    st.tuples(st.sampled_from(["soon", "from_a_thread"]), DATAGRAM_ACTIONS),
                    st.tuples(
                        st.just("plan"),
                        st.sampled_from(["datagram", "error", "pause", "resume", "lost"]),
                        DATAGRAM_PLANS,
                    ),
                ),
            ),
            min_size=1,
            max_size=4,
        )
    )
    def act(self, steps):
        async def act(world):
            return [world.ends[end].act(action) for end, action in steps]

        self.in_both(act)


# --- pipes ------------------------------------------------------------------------------------------------------------


class PipeEnd(End, asyncio.Protocol):
    """The reading or the writing end of a pipe, and its protocol."""

    def __init__(self, world, file):
        super().__init__(world)
        self.socket = file
        self.called_back = []
        self.received = bytearray()
        self.written = 0
        self.was_full = False

    def has_ended(self):
        return self.socket.closed if hasattr(self.socket, "closed") else self.socket.fileno() == -1

    def ask(self, method):
        return self.outcome_of(getattr(self.transport, method)) if hasattr(self.transport, method) else None

    def progress(self):
        size = self.ask("get_write_buffer_size")
        self.was_full = self.was_full or size not in (None, 0)
        return len(self.received), len(self.called_back), size

    def state(self):
        return {"called": self.called_back} | self.transport_state()

    def check(self):
        assert TEXT[: self.peer.written].startswith(self.received)
        quiet = all(end.ask("is_closing") is False for end in (self, self.peer))
        if quiet and self.ask("is_reading") is True:
            assert len(self.received) == self.peer.written
            assert self.peer.ask("get_write_buffer_size") == 0

    # Callbacks.

    def connection_made(self, transport):
        self.transport = self.lowest = transport

    def data_received(self, data):
        assert "lost" not in self.called_back
        self.received += data
        self.called("data")

    def hear(self, name):
        self.called_back.append(name)
        self.called(name)

    def eof_received(self):
        self.hear("eof")

    def pause_writing(self):
        self.hear("pause")

    def resume_writing(self):
        self.hear("resume")

    def connection_lost(self, error):
        self.called_back.append(described(error))
        self.hear("lost")

    def leave(self):
        if not self.has_ended():
            # A writer that is closing can be aborted, too.
            getattr(self.transport, "abort", self.transport.close)()

    # Actions.

    def write(self, count, how):
        count = min(count, BYTES_MAX - self.written)
        data = TEXT[self.written : self.written + count]
        with self.counted(0 if self.transport.is_closing() else count):
            if how in ("list", "iterator"):
                step = max(1, count // 7)
                self.transport.writelines([data[start : start + step] for start in range(0, count, step)])
            else:
                self.transport.write({"bytes": bytes, "bytearray": bytearray, "memoryview": memoryview}[how](data))

    def end(self):
        self.transport.write_eof()

    def pause(self):
        self.transport.pause_reading()

    def resume(self):
        self.transport.resume_reading()

    def wrong(self, data):
        self.transport.write(data)

    def look(self):
        return self.transport.get_extra_info("nothing", 5), repr(self.transport).split()[0]


PIPE_ACTIONS = {
    0: [st.sampled_from([("pause",), ("resume",), ("close",), ("collect",), ("look",)])],
    1: [
        st.tuples(st.just("write"), SMALL_COUNTS, HOW),
        st.tuples(st.just("limits"), MARKS, MARKS),
        st.tuples(st.just("wrong"), st.sampled_from([None, "text", 5, [b"bytes"]])),
        st.sampled_from([("close",), ("abort",), ("end",), ("collect",), ("look",)]),
    ],
}


def pipe_steps(number):
    """Return what may be done to one end: 0 reads, 1 writes."""
    small = st.one_of(PIPE_ACTIONS[number])
    now = st.one_of(st.tuples(st.just("write"), COUNTS, HOW), small) if number else small
    plans = {0: ["data", "eof", "lost"], 1: ["pause", "resume", "lost"]}[number]
    within = st.one_of(small, st.tuples(st.just("boom")), st.tuples(st.just("soon"), small))
    action = st.one_of(
        now,
        now,
        st.tuples(st.sampled_from(["soon", "from_a_thread"]), now),
        st.tuples(st.just("plan"), st.sampled_from(plans), within),
    )
    return st.tuples(st.just(number), action)


class PipeMachine(Machine):
    """The two ends of a pipe, or of a pair of sockets used as one, in one loop."""

    def __init__(self, arm):
        super().__init__(arm)
        for world in self.worlds:
            # Much of it is asyncio's own code in both.
            world.mistakes = MISTAKES

    @initialize(kind=st.sampled_from(["pipe", "sockets"]))
    def open(self, kind):
        self.in_both(lambda world: self.open_in(world, kind))

    async def open_in(self, world, kind):
        if kind == "pipe":
            reading, writing = os.pipe()
            files = [io.FileIO(reading, "rb"), io.FileIO(writing, "wb")]
        else:
            files = socket.socketpair()
        world.ends = [PipeEnd(world, file) for file in files]
        world.ends[0].peer, world.ends[1].peer = world.ends[1], world.ends[0]
        await world.loop.connect_read_pipe(lambda: world.ends[0], files[0])
        await world.loop.connect_write_pipe(lambda: world.ends[1], files[1])

    @rule(steps=st.lists(st.one_of(pipe_steps(0), pipe_steps(1), pipe_steps(1)), min_size=1, max_size=4))
    def act(self, steps):
        async def act(world):
            return [world.ends[end].act(action) for end, action in steps]

        self.in_both(act)
