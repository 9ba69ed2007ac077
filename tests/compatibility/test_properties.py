"""Random programs: everything happens in asyncio's order, and streams deliver what was sent, however it is split."""

import asyncio
import contextlib
import errno
import hashlib
import itertools
import socket

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from differential import demand_the_same
from support import (
    HOST,
    Recorder,
    attach,
    examples,
    finish,
    has_flow_control_in_writelines,
    receive_all,
    reset,
    tcp_pair,
    turns,
    until,
)
from support import loop_factory as factory_of

COMMON = {
    "deadline": None,
    "database": None,
    "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
}


# Scheduling. A program is a list of actions; what an action schedules has a program of its own.


def actions(children):
    return st.one_of(
        st.tuples(st.sampled_from(["soon", "later", "threadsafe", "future"]), children),
        st.tuples(st.just("overdue"), children, st.integers(1, 5)),
        st.tuples(st.just("cancel"), st.integers(0, 30)),
        st.just(("raise",)),
        st.just(("task",)),
    )


PROGRAMS = st.recursive(st.just([]), lambda children: st.lists(actions(children), max_size=6), max_leaves=40)


class Failure(Exception):
    pass


def trace_of(loop, program, turn_count=12):
    """Run the program turn by turn; return what ran in which turn, and what was reported."""
    trace, handles = [], []
    base = loop.time() - 100
    loop.set_exception_handler(lambda _loop, context: trace.append(("reported", type(context["exception"]).__name__)))

    def run(name, actions):
        trace.append(name)
        for number, action in enumerate(actions):
            perform((*name, number), action)

    async def task(name):
        trace.append((*name, "task begins"))
        await asyncio.sleep(0)
        trace.append((*name, "task ends"))

    def perform(name, action):
        match action:
            case ("soon", children):
                handles.append(loop.call_soon(run, name, children))
            case ("later", children):
                handles.append(loop.call_later(0, run, name, children))
            case ("threadsafe", children):
                handles.append(loop.call_soon_threadsafe(run, name, children))
            case ("future", children):
                future = loop.create_future()
                future.add_done_callback(lambda _future: run(name, children))
                future.set_result(None)
            case ("overdue", children, rank):
                # Deadlines long past, all different: first by rank, then by the order of their making.
                handles.append(loop.call_at(base + rank + len(handles) * 1e-4, run, name, children))
            case ("cancel", index) if handles:
                handles[index % len(handles)].cancel()
            case ("task",):
                loop.create_task(task(name))
            case ("raise",):
                raise Failure(name)

    loop.call_soon(run, (), program)
    for turn in range(turn_count):
        trace.append(f"turn {turn}")
        loop.stop()
        loop.run_forever()
    return trace, [handle.cancelled() for handle in handles]


@pytest.mark.examples
@given(program=PROGRAMS)
@settings(max_examples=examples(80), **COMMON)
def test_random_programs_run_in_asyncios_order(loop, program):
    """The loop under test keeps running programs; the reference gets a fresh loop for each."""
    reference = factory_of("asyncio")()
    try:
        expected = trace_of(reference, program)
    finally:
        finish(reference)
    assert trace_of(loop, program) == expected
    loop.run_until_complete(turns(3))


@pytest.mark.examples
@given(st.lists(st.tuples(st.integers(-50, 50), st.booleans()), max_size=60, unique_by=lambda item: item[0]))
@settings(max_examples=examples(60), **COMMON)
def test_timers_fire_sorted_whatever_the_order_of_insertion_and_cancelling(loop, timers):
    trace = []
    base = loop.time() - 1
    handles = [(loop.call_at(base + offset / 1000, trace.append, offset), cancelled) for offset, cancelled in timers]
    for handle, cancelled in handles:
        if cancelled:
            handle.cancel()
    loop.stop()
    loop.run_forever()
    assert trace == sorted(offset for offset, cancelled in timers if not cancelled)


# Streams

WRITES = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.binary(max_size=3000)),
        # Without empty parts: before 3.14 asyncio waits for ever to send one.
        st.tuples(st.just("writelines"), st.lists(st.binary(min_size=1, max_size=1000), max_size=8)),
        st.just(("pause",)),
    ),
    max_size=20,
)


@pytest.mark.examples
@given(writes=WRITES)
@settings(max_examples=examples(40), **COMMON)
def test_what_is_written_in_pieces_arrives_whole(loop, writes):
    sent = bytearray()

    async def main():
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)
        for how, *arguments in writes:
            if how == "pause":
                await asyncio.sleep(0)
            else:
                getattr(transport, how)(*arguments)
                sent.extend(b"".join(arguments[0]) if how == "writelines" else arguments[0])
        transport.close()
        with peer:
            data = await receive_all(loop, peer)
        await until(lambda: protocol.lost)
        return data

    assert loop.run_until_complete(main()) == sent


READS = st.one_of(
    st.tuples(st.just("read"), st.integers(1, 2000)),
    st.tuples(st.just("exactly"), st.integers(0, 2000)),
    st.just(("line",)),
)


@pytest.mark.examples
@given(
    data=st.binary(max_size=8000), cuts=st.lists(st.integers(0, 8000), max_size=8), reads=st.lists(READS, max_size=15)
)
@settings(max_examples=examples(60), **COMMON)
def test_reading_in_any_way_gives_the_bytes_in_order(loop, data, cuts, reads):
    async def feed(peer):
        edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
        for start, end in itertools.pairwise(edges):
            await loop.sock_sendall(peer, data[start:end])
            await asyncio.sleep(0)
        peer.close()

    async def main():
        ours, peer = tcp_pair()
        reader, writer = await asyncio.open_connection(sock=ours)
        feeder = loop.create_task(feed(peer))
        position = 0
        for how, *arguments in reads:
            rest = data[position:]
            if how == "read":
                piece = await reader.read(*arguments)
                assert len(piece) <= arguments[0] and bool(piece) == bool(rest)
            elif how == "exactly":
                try:
                    piece = await reader.readexactly(*arguments)
                    assert len(piece) == arguments[0]
                except asyncio.IncompleteReadError as error:
                    piece = error.partial
                    assert piece == rest and len(rest) < arguments[0]
            else:
                piece = await reader.readline()
                expected, newline, _ = rest.partition(b"\n")
                assert piece == expected + newline
            assert rest.startswith(piece)
            position += len(piece)
        assert await reader.read() == data[position:]
        await feeder
        writer.close()
        await writer.wait_closed()

    loop.run_until_complete(main())


# Against asyncio: the same random program, the same journal


def same_journal(function, factory, *arguments):
    demand_the_same(function, factory, *arguments, collect=False)


STREAM_PROGRAMS = st.lists(
    st.one_of(
        st.tuples(st.just("feed"), st.binary(max_size=200)),
        st.tuples(st.just("feed"), st.lists(st.sampled_from([b"a", b"b", b"\n", b"--"]), max_size=60).map(b"".join)),
        st.tuples(st.just("read"), st.integers(-1, 300)),
        st.tuples(st.just("readexactly"), st.integers(-2, 300)),
        st.just(("readline",)),
        st.tuples(st.just("readuntil"), st.sampled_from([b"\n", b"--", b"a\n", b""])),
        st.just(("end",)),
        st.just(("reset",)),
        st.just(("at_eof",)),
        st.tuples(st.just("set_exception"), st.just("from outside")),
    ),
    max_size=14,
).map(tuple)


def use_a_reader(program, limit, loop, journal):
    """Feed a stream and read from it; a read that cannot be satisfied is cancelled."""

    async def main():
        ours, theirs = tcp_pair()
        reader, writer = await asyncio.open_connection(sock=ours, limit=limit)
        for how, *arguments in program:
            if how in ("feed", "end", "reset"):
                if theirs.fileno() >= 0 and how == "feed":
                    theirs.send(*arguments)
                elif theirs.fileno() >= 0:
                    theirs.close() if how == "end" else reset(theirs)
                await turns(36)
            elif how == "at_eof":
                journal.note("at_eof", reader.at_eof())
            elif how == "set_exception":
                reader.set_exception(Failure(*arguments))
            else:
                task = loop.create_task(journal.attempt_async(how, getattr(reader, how)(*arguments)))
                await turns(36)
                task.cancel()
                await task
            journal.note("paused", not writer.transport.is_closing() and not writer.transport.is_reading())
        theirs.close()
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)

    loop.run_until_complete(main())


@pytest.mark.examples
@pytest.mark.ringloop_only
@given(program=STREAM_PROGRAMS, limit=st.integers(1, 100))
@settings(max_examples=examples(60), **COMMON)
def test_random_reading_does_what_asyncios_does(loop_factory, program, limit):
    same_journal(use_a_reader, loop_factory, program, limit)


FLOW_PROGRAMS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 60_000)),
        *(
            [st.tuples(st.just("writelines"), st.lists(st.integers(1, 20_000), min_size=1, max_size=4).map(tuple))]
            if has_flow_control_in_writelines()
            else []
        ),
        st.tuples(st.just("limits"), st.none() | st.integers(0, 50_000), st.none() | st.integers(0, 50_000)),
        st.tuples(st.just("read"), st.integers(1, 100_000)),
        st.tuples(st.just("say"), st.integers(1, 5000)),
        st.just(("pause",)),
        st.just(("resume",)),
        st.just(("write_eof",)),
        st.just(("drain",)),
        st.just(("hang up",)),
        st.just(("close",)),
        st.just(("abort",)),
    ),
    max_size=16,
).map(tuple)


class Noting(Recorder):
    """Writes its callbacks into a journal."""

    def __init__(self, journal):
        super().__init__(keep_open=True)
        self.events = self
        self.journal = journal

    def append(self, event):
        name, *details = event
        size = () if name == "connection_made" else (self.transport.get_write_buffer_size(),)
        self.journal.note(name, *(len(it) if isinstance(it, bytes) else it for it in details), *size)


def control_the_flow(program, loop, journal):
    """Write through a Unix socket with a small buffer, which takes the same amounts every time."""

    async def main():
        ours, theirs = socket.socketpair()
        for sock in (ours, theirs):
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
        protocol = Noting(journal)
        transport, _ = await loop.connect_accepted_socket(lambda: protocol, ours)
        heard = hashlib.sha256()
        written = itertools.count()
        for how, *arguments in program:
            if protocol.lost:
                break
            match how:
                case "write":
                    journal.attempt("write", transport.write, bytes([next(written) % 256]) * arguments[0])
                case "writelines":
                    pieces = [bytes([next(written) % 256]) * size for size in arguments[0]]
                    journal.attempt("writelines", transport.writelines, pieces)
                case "limits":
                    journal.attempt("limits", transport.set_write_buffer_limits, *arguments)
                    journal.note(*transport.get_write_buffer_limits())
                case "read":
                    with contextlib.suppress(OSError):
                        heard.update(theirs.recv(arguments[0]))
                case "say":
                    with contextlib.suppress(OSError):
                        theirs.send(b"x" * arguments[0])
                case "pause":
                    journal.attempt("pause", transport.pause_reading)
                case "resume":
                    journal.attempt("resume", transport.resume_reading)
                case "write_eof":
                    journal.attempt("write_eof", transport.write_eof)
                case "drain":
                    with contextlib.suppress(OSError):
                        while data := theirs.recv(1 << 20):
                            heard.update(data)
                            await turns(36)
                case "hang up":
                    theirs.shutdown(socket.SHUT_WR)
                case "close":
                    transport.close()
                case "abort":
                    transport.abort()
            await turns(36)
            if not protocol.lost:
                journal.note(how, transport.get_write_buffer_size(), transport.is_closing(), transport.is_reading())
        if not protocol.lost:
            transport.abort()
            await turns(3)
        journal.note(heard.hexdigest())
        theirs.close()

    loop.run_until_complete(main())


@pytest.mark.examples
@pytest.mark.ringloop_only
@given(program=FLOW_PROGRAMS)
@example(program=(("write", 16257), ("read", 1), ("read", 8127), ("writelines", (1,))))
@settings(max_examples=examples(80), **COMMON)
def test_random_flow_control_does_what_asyncios_does(loop_factory, program):
    same_journal(control_the_flow, loop_factory, program)


def steps(children):
    return st.one_of(
        st.sampled_from([("yield",), ("soon",), ("fail",), ("forever",)]),
        st.tuples(st.sampled_from(["spawn", "await", "gather", "shield", "group", "suppress"]), children),
        st.tuples(st.just("cancel"), st.integers(0, 12)),
        st.tuples(st.just("join"), st.integers(0, 12)),
        st.tuples(st.sampled_from(["set", "wait", "put", "get"]), st.integers(0, 2)),
        st.tuples(st.just("time out"), st.integers(-1, 0), children),
    )


TASK_PROGRAMS = st.recursive(
    st.just(()), lambda children: st.lists(steps(children), max_size=6).map(tuple), max_leaves=30
)


class InOrder(dict):
    """For the set of a TaskGroup, which cancels its tasks in the order that their addresses happen to give."""

    def add(self, task):
        self[task] = None

    def discard(self, task):
        self.pop(task, None)


def run_tasks(program, loop, journal):
    """Interpret a program of tasks that wait for each other, cancel each other and fail."""
    tasks = []
    events = [asyncio.Event() for _ in range(3)]
    queues = [asyncio.Queue(1) for _ in range(3)]

    def spawn(create, name, children):
        task = create(interpret(name, children))
        tasks.append((name, task))
        return task

    async def interpret(name, program):
        journal.note(name, "begins")
        try:
            for number, step in enumerate(program):
                journal.note(name, number, step[0])
                await perform(f"{name}.{number}", step)
        except (Exception, asyncio.CancelledError) as error:
            journal.note(name, "ends by", error)
            raise
        journal.note(name, "ends")

    async def perform(name, step):
        match step:
            case ("yield",):
                await asyncio.sleep(0)
            case ("soon",):
                loop.call_soon(journal.note, name, "soon")
            case ("fail",):
                raise Failure(name)
            case ("forever",):
                await loop.create_future()
            case ("spawn", children):
                spawn(loop.create_task, name, children)
            case ("await", children):
                await spawn(loop.create_task, name, children)
            case ("gather", children):
                pair = (spawn(loop.create_task, f"{name}{half}", children) for half in "ab")
                outcomes = await asyncio.gather(*pair, return_exceptions=True)
                journal.note(name, *outcomes)
            case ("shield", children):
                await asyncio.shield(spawn(loop.create_task, name, children))
            case ("group", children):
                async with asyncio.TaskGroup() as group:
                    group._tasks = InOrder()
                    spawn(group.create_task, f"{name}a", children)
                    spawn(group.create_task, f"{name}b", children[1:])
            case ("suppress", children):
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await interpret(name, children)
            case ("cancel", index) if tasks:
                other, task = tasks[index % len(tasks)]
                journal.note(name, "cancels", other, task.cancel(f"by {name}"))
            case ("join", index) if tasks:
                await asyncio.wait([tasks[index % len(tasks)][1]])
            case ("set", index):
                events[index].set()
            case ("wait", index):
                await events[index].wait()
            case ("put", index):
                await queues[index].put(name)
            case ("get", index):
                journal.note(name, "got", await queues[index].get())
            case ("time out", delay, children):
                async with asyncio.timeout(delay):
                    await interpret(name, children)

    spawn(loop.create_task, "task", program)
    for turn in range(40):
        journal.note("turn", turn)
        loop.stop()
        loop.run_forever()
    journal.note(*(name for name, task in tasks if not task.done()))
    loop.set_exception_handler(
        lambda _loop, _context: None
    )  # Exceptions that nobody asked for are reported at some time.
    # Again and again: a program may suppress a cancellation and then wait for what never comes.
    while not all(task.done() for _, task in tasks):
        for _, task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
    finish(loop)
    for _, task in tasks:
        if not task.cancelled():
            task.exception()


@pytest.mark.examples
@pytest.mark.ringloop_only
@given(program=TASK_PROGRAMS)
@settings(max_examples=examples(120), **COMMON)
def test_random_tasks_and_cancellations_go_as_in_asyncio(loop_factory, program):
    same_journal(run_tasks, loop_factory, program)


SERVER_PROGRAMS = st.lists(
    st.one_of(
        st.sampled_from(
            [
                ("start",),
                ("close",),
                ("connect",),
                ("wait",),
                ("serve",),
                ("cancel",),
                ("look",),
                ("close all",),
                ("abort all",),
            ]
        ),
        st.tuples(st.sampled_from(["client closes", "client resets", "server side closes"]), st.integers(0, 5)),
    ),
    max_size=14,
).map(tuple)


def run_a_server(program, loop, journal):
    """Start, use and close a server in any order."""

    async def main():
        served, clients, waiting = [], [], []

        def factory():
            served.append(Recorder())
            return served[-1]

        server = await loop.create_server(factory, HOST, 0, start_serving=False)
        address = server.sockets[0].getsockname()
        for how, *arguments in program:
            journal.note(how)
            match how:
                case "start":
                    await journal.attempt_async(how, server.start_serving())
                case "close":
                    journal.attempt(how, server.close)
                case "connect":
                    client = socket.socket()
                    client.setblocking(False)
                    clients.append(client)
                    journal.note(client.connect_ex(address) in (0, errno.EINPROGRESS))
                case "wait" | "serve":
                    wait = server.wait_closed() if how == "wait" else server.serve_forever()
                    waiting.append(loop.create_task(journal.attempt_async(how, wait)))
                case "cancel":
                    for task in waiting:
                        task.cancel()
                case "look":
                    journal.note(server.is_serving(), len(server.sockets), server.get_loop() is loop)
                case "close all" | "abort all":
                    method = getattr(server, "close_clients" if how == "close all" else "abort_clients", None)
                    if method is not None:
                        journal.attempt(how, method)
                case "client closes" if clients:
                    clients[arguments[0] % len(clients)].close()
                case "client resets" if clients:
                    client = clients[arguments[0] % len(clients)]
                    if client.fileno() >= 0:
                        reset(client)
                case "server side closes" if served:
                    served[arguments[0] % len(served)].transport.close()
            await turns(36)
            journal.note(*(task.done() for task in waiting), *(protocol.names for protocol in served))
        server.close()
        for protocol in served:
            if not protocol.lost:
                protocol.transport.abort()
        for client in clients:
            client.close()
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting)
        await turns(36)
        journal.note(*(protocol.names for protocol in served))

    loop.run_until_complete(main())


@pytest.mark.examples
@pytest.mark.ringloop_only
@given(program=SERVER_PROGRAMS)
@settings(max_examples=examples(60), **COMMON)
def test_random_lives_of_a_server_go_as_in_asyncio(loop_factory, program):
    same_journal(run_a_server, loop_factory, program)
