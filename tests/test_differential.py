"""One body on two loops, stock asyncio and the loop under test: the same order, the same errors and texts, the same logs.

Each body writes a journal (`differential.Journal`); the journals must be equal. So nothing here says what is right: the running
Python's asyncio does.
"""

import asyncio
import inspect
import itertools
import random
import socket

import pytest

import support
from differential import demand_the_same

pytestmark = pytest.mark.ringloop_only


# Wrong arguments


ODD_VALUES = 24


def odd_values():
    """Things that most methods do not expect. Made anew for each call, since calls may use them up."""
    closed = socket.socket()
    closed.close()
    used_up = (number for number in ())
    list(used_up)
    unconnected = socket.socket()
    unconnected.setblocking(False)
    values = (
        None, -1, 0, 1 << 70, 1.5, float("nan"), "a\0b", "\udcff", b"bytes", bytearray(4), memoryview(b"read only"), object(),
        closed, unconnected, socket.socket(), (lambda *_: None), int, [], {}, used_up, 9999, ("127.0.0.1", 1), ("one",), ...,
    )  # fmt: skip
    assert len(values) == ODD_VALUES
    return values


# The numbers of positional arguments to try. What may do harm to the process (remove_reader(0), subprocesses) is left out.
ARGUMENTS = {
    "call_soon": [0, 1, 2], "call_later": [0, 1, 2], "call_at": [0, 1], "call_soon_threadsafe": [0, 1],
    "add_reader": [0, 1, 2], "add_writer": [1, 2], "remove_reader": [0, 1], "remove_writer": [1],
    "sock_recv": [0, 1, 2], "sock_recv_into": [1, 2], "sock_sendall": [1, 2], "sock_accept": [1], "sock_connect": [1, 2],
    "create_task": [0, 1], "set_task_factory": [1], "set_exception_handler": [1], "call_exception_handler": [0, 1],
    "default_exception_handler": [1], "set_debug": [1], "run_until_complete": [0, 1], "run_forever": [1],
    "add_signal_handler": [1, 2], "remove_signal_handler": [1], "run_in_executor": [1, 2], "set_default_executor": [1],
    "getnameinfo": [1, 2], "create_connection": [1], "create_server": [1], "connect_accepted_socket": [1, 2], "start_tls": [3],
    "time": [0, 1], "is_running": [1], "is_closed": [1], "stop": [1], "close": [1], "get_debug": [1], "create_future": [1],
    "shutdown_asyncgens": [1], "get_task_factory": [1], "get_exception_handler": [1],
}  # fmt: skip
CASES_MAX = 60


def combinations(method, count):
    """The indices of `odd_values` to call the method with: all, or a fixed choice where there are many."""
    everything = list(itertools.product(range(ODD_VALUES), repeat=count))
    return random.Random(f"{method}{count}").sample(everything, min(len(everything), CASES_MAX))


def call_wrongly(method, keys, is_closed, loop, journal):
    """Call the method, await what it returns for a moment, and let the loop make a turn."""
    values = odd_values()
    arguments = [values[key] for key in keys]
    if method == "call_exception_handler" and not isinstance(arguments[:1], dict):
        loop.set_exception_handler(None)
    if is_closed:
        loop.close()
    try:
        result = getattr(loop, method)(*arguments)
        if inspect.isawaitable(result) and not asyncio.isfuture(result) and not is_closed:

            async def main():
                await journal.attempt_async(method, asyncio.wait_for(result, support.PATIENCE_S))

            loop.run_until_complete(main())
        else:
            if asyncio.iscoroutine(result):
                result.close()
            journal.note(method, "returned", "a time" if method == "time" else result)
        if not is_closed:
            loop.call_soon(loop.stop)
            loop.run_forever()
    except Exception as error:
        journal.note(method, "raised", error)
    for value in values:
        if isinstance(value, socket.socket):
            if not is_closed and value.fileno() >= 0:
                loop.remove_reader(value)
                loop.remove_writer(value)
            value.close()
    loop.set_task_factory(None)


@pytest.fixture
def offline(monkeypatch):
    """Names are refused without asking a server for them."""
    resolve = socket.getaddrinfo

    def refuse_names(host, port, family=0, type=0, proto=0, flags=0):
        return resolve(host, port, family, type, proto, flags | socket.AI_NUMERICHOST)

    monkeypatch.setattr(socket, "getaddrinfo", refuse_names)


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("method", ARGUMENTS)
def test_wrong_arguments(loop_factory, method):
    for count in ARGUMENTS[method]:
        for keys in combinations(method, count):
            demand_the_same(call_wrongly, loop_factory, method, keys, False, collect=False)


@pytest.mark.parametrize("method", [name for name in ARGUMENTS if name != "close"])
def test_wrong_arguments_to_a_closed_loop(loop_factory, method):
    for count in ARGUMENTS[method]:
        for keys in combinations(method, count)[:15]:
            demand_the_same(call_wrongly, loop_factory, method, keys, True, collect=False)


# The life of a connection


class Failure(Exception):
    pass


MUCH = bytes(range(256)) * 16_384  # 4 MB: more than the sockets hold.

ACTIONS = {
    "nothing": lambda it: None,
    "close": lambda it: it.transport.close(),
    "close and write": lambda it: (it.transport.close(), it.transport.write(b"after close")),
    "abort": lambda it: it.transport.abort(),
    "write": lambda it: it.transport.write(b"answer"),
    "write and close": lambda it: (it.transport.write(b"answer"), it.transport.close()),
    "write much": lambda it: it.transport.write(MUCH),
    "write much and close": lambda it: (it.transport.write(MUCH), it.transport.close()),
    "write much and abort": lambda it: (it.transport.write(MUCH), it.transport.abort()),
    "write_eof": lambda it: it.transport.write_eof(),
    "write much and write_eof": lambda it: (it.transport.write(MUCH), it.transport.write_eof()),
    "write_eof and write": lambda it: (it.transport.write_eof(), it.transport.write(b"after write_eof")),
    "writelines": lambda it: it.transport.writelines([b"one", b"two", b"three"]),
    "pause": lambda it: it.transport.pause_reading(),
    "pause and resume": lambda it: (
        it.transport.pause_reading(),
        it.journal.note("is_reading", it.transport.is_reading()),
        it.transport.resume_reading(),
    ),
    "pause and resume soon": lambda it: (it.transport.pause_reading(), it.loop.call_soon(it.transport.resume_reading)),
    "resume": lambda it: it.transport.resume_reading(),
    "raise": lambda it: it.fail(Failure("from a callback")),
    "raise an OSError": lambda it: it.fail(OSError(5, "from a callback")),
    "raise a reset": lambda it: it.fail(ConnectionResetError("from a callback")),
    "switch": lambda it: it.transport.set_protocol(it.successor()),
    "switch kind": lambda it: it.transport.set_protocol(it.successor(other_kind=True)),
    "switch to nothing": lambda it: it.transport.set_protocol(object()),
    "write and raise": lambda it: (it.transport.write(b"answer"), it.fail(Failure("after writing"))),
    "close and raise": lambda it: (it.transport.close(), it.fail(Failure("after closing"))),
    "write a string": lambda it: it.transport.write("text"),
    "set limits": lambda it: (it.transport.set_write_buffer_limits(high=0), it.transport.write(MUCH)),
}  # fmt: skip


class Actor:
    """Notes each callback, and performs the action in the one that it is told."""

    def __init__(self, loop, journal, name, act_in, action, eof_answer):
        self.loop, self.journal, self.name = loop, journal, name
        self.act_in, self.action, self.eof_answer = act_in, action, eof_answer
        self.transport = None

    def successor(self, other_kind=False):
        kind = type(self)
        if other_kind:
            kind = BufferedActor if kind is PlainActor else PlainActor
        heir = kind(self.loop, self.journal, f"{self.name}'", None, None, self.eof_answer)
        heir.transport = self.transport
        return heir

    def fail(self, error):
        raise error

    def come(self, callback, *details):
        transport = self.transport
        self.journal.note(
            self.name,
            callback,
            *details,
            transport.is_closing(),
            transport.is_reading(),
            transport.get_write_buffer_size() > 0,
        )
        if callback == self.act_in:
            self.act_in = None
            try:
                ACTIONS[self.action](self)
            finally:
                self.journal.note(self.name, "acted", transport.is_closing(), transport.is_reading())

    def connection_made(self, transport):
        self.transport = transport
        self.come("connection_made")

    def eof_received(self):
        self.come("eof_received")
        return self.eof_answer

    def pause_writing(self):
        self.come("pause_writing")

    def resume_writing(self):
        self.come("resume_writing")

    def connection_lost(self, error):
        self.come("connection_lost", error)


class PlainActor(Actor, asyncio.Protocol):
    def data_received(self, data):
        self.come("data", data)


class BufferedActor(Actor, asyncio.BufferedProtocol):
    def get_buffer(self, sizehint):
        self.journal.note(self.name, "get_buffer", sizehint)
        self.buffer = bytearray(100)
        return self.buffer

    def buffer_updated(self, count):
        self.come("data", bytes(self.buffer[:count]))


class Peer:
    """The other end of the connection, a plain socket."""

    def __init__(self, sock, journal):
        self.sock, self.journal = sock, journal

    def say(self):
        try:
            self.sock.send(b"question")
        except OSError as error:
            self.journal.note("peer cannot send", error)

    def hang_up(self):
        try:
            self.sock.shutdown(socket.SHUT_WR)
        except OSError as error:
            self.journal.note("peer cannot hang up", error)

    def close(self):
        self.sock.close()

    def reset(self):
        support.reset(self.sock)

    async def listen(self):
        """Take what comes until it ends, or until nothing has come for a while."""
        received, silent = bytearray(), 0
        while self.sock.fileno() >= 0 and silent < 3:
            try:
                data = self.sock.recv(1 << 20)
            except BlockingIOError:
                silent += 1
                await settle()
            except OSError as error:
                self.journal.note("peer got", bytes(received[:30]), len(received), error)
                return
            else:
                silent = 0
                received += data
                if not data:
                    self.journal.note("peer got", bytes(received[:30]), len(received), "the end")
                    return
        self.journal.note("peer got", bytes(received[:30]), len(received))


# What the other end does, step by step.
COURSES = {
    "asks and hangs up": ["say", "hang_up", "listen"],
    "asks and closes": ["say", "close"],
    "asks and resets": ["say", "reset"],
    "says nothing": ["listen", "hang_up", "listen"],
    "resets at once": ["reset"],
    "asks twice": ["say", "listen", "say", "listen"],
    "floods": ["say", "say", "say", "hang_up"],
}


async def settle():
    """Long enough for what the kernel has to be seen, also where a busy loop looks seldom."""
    await support.turns(36)


def conversation(kind, act_in, action, eof_answer, course, loop, journal):
    async def main():
        ours, theirs = support.tcp_pair()
        peer = Peer(theirs, journal)
        actor = kind(loop, journal, "protocol", act_in, action, eof_answer)
        try:
            transport, _ = await loop.connect_accepted_socket(lambda: actor, ours)
        except Exception as error:
            journal.note("connecting", "raised", error)
            theirs.close()
            return
        for step in COURSES[course]:
            outcome = getattr(peer, step)()
            if outcome is not None:
                await outcome
            await settle()
        journal.note("at last", transport.is_closing(), transport.is_reading(), transport.get_write_buffer_size() > 0)
        if not any("connection_lost" in entry for entry in journal.entries):
            # After the end asyncio's may fail, as it has forgotten its loop.
            transport.abort()
        await settle()
        theirs.close()

    loop.run_until_complete(main())


@pytest.mark.parametrize("action", ACTIONS)
def test_actions_in_each_callback(loop_factory, action):
    """Each action in each callback of each kind of protocol, while the peer does what peers do."""
    callbacks = ["connection_made", "data", "eof_received", "connection_lost"]
    if "much" in action:
        callbacks.append("pause_writing")
    for course in COURSES:
        for act_in, kind in itertools.product(callbacks, (PlainActor, BufferedActor)):
            if (action, act_in) == ("writelines", "connection_lost"):
                continue  # From 3.12 on asyncio buffers it, and trips over its own closing.
            for eof_answer in (None, True) if act_in == "eof_received" else (None,):
                details = (kind, act_in, action, eof_answer, course)
                demand_the_same(conversation, loop_factory, *details, collect=False)
