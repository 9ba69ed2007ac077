"""Random programs: the order of everything is asyncio's, and streams deliver what was sent however it is cut up."""

import asyncio
import itertools

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support import Recorder, attach, finish, receive_all, tcp_pair, turns, until
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


@given(program=PROGRAMS)
@settings(max_examples=80, **COMMON)
def test_random_programs_run_in_asyncios_order(loop, program):
    """The loop under test keeps running programs; the reference gets a fresh loop for each."""
    reference = factory_of("asyncio")()
    try:
        expected = trace_of(reference, program)
    finally:
        finish(reference)
    assert trace_of(loop, program) == expected
    loop.run_until_complete(turns(3))


@given(st.lists(st.tuples(st.integers(-50, 50), st.booleans()), max_size=60, unique_by=lambda item: item[0]))
@settings(max_examples=60, **COMMON)
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


@given(writes=WRITES)
@settings(max_examples=40, **COMMON)
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


@given(
    data=st.binary(max_size=8000), cuts=st.lists(st.integers(0, 8000), max_size=8), reads=st.lists(READS, max_size=15)
)
@settings(max_examples=60, **COMMON)
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
