"""`loop.metrics()`. Counts are exact; of times, only what always holds is asserted."""

import asyncio
import functools
import gc
import socket
import threading
import time
import typing
import weakref

import pytest

import ringloop
import support
from support import names_the_slowest

pytestmark = pytest.mark.ringloop_only

SLOW_S = 0.05


def slow():
    time.sleep(SLOW_S)


def nothing():
    pass


class Sleeper(asyncio.Protocol):
    """Takes its time over what it receives, and says when it has it."""

    def __init__(self, received):
        self.received = received

    def data_received(self, data):
        slow()
        self.received.set_result(data)


def run_until_stopped(loop, *callbacks):
    """Run these callbacks, and then `stop()`, in one turn."""
    for callback in callbacks:
        loop.call_soon(callback)
    loop.call_soon(loop.stop)
    loop.run_forever()


def run_for(loop, awaitable):
    """Run an awaitable with the slowest callback before it forgotten; return the metrics after it."""

    async def main():
        loop.metrics(reset_slowest=True)
        await awaitable

    loop.run_until_complete(main())
    return loop.metrics()


def test_it_is_an_immutable_typed_snapshot(loop):
    metrics = loop.metrics()
    assert type(metrics) is ringloop.Metrics
    assert metrics.backend == loop.backend
    for name, kind in typing.get_type_hints(ringloop.Metrics).items():
        value = getattr(metrics, name)
        assert isinstance(value, kind), name
        if name not in ("backend", "system_calls"):
            assert not value, f"{name} of a loop that has not run"
    with pytest.raises(AttributeError):
        metrics.turns = 5
    before = metrics._asdict()
    run_until_stopped(loop, nothing)
    assert metrics._asdict() == before
    assert loop.metrics().callbacks == 2


def test_its_only_argument_is_a_keyword(loop):
    with pytest.raises(TypeError, match="positional"):
        loop.metrics(True)
    with pytest.raises(TypeError, match="unexpected keyword"):
        loop.metrics(slowest=True)


@pytest.mark.parametrize("debug", [False, True])
def test_turns_and_callbacks_are_counted(loop, debug):
    loop.set_debug(debug)
    run_until_stopped(loop)
    first = loop.metrics()
    left = 10

    def step():
        nonlocal left
        left -= 1
        loop.call_soon(step if left else loop.stop)

    loop.call_soon(step)
    loop.run_forever()
    second = loop.metrics()
    assert second.callbacks - first.callbacks == 11
    assert second.turns - first.turns == 11
    handle = loop.call_soon(nothing)
    handle.cancel()
    timer = loop.call_later(0, nothing)
    timer.cancel()
    run_until_stopped(loop, *[nothing] * 100)
    third = loop.metrics()
    assert third.callbacks - second.callbacks == 101, "cancelled callbacks do not run"
    assert third.turns - second.turns == 1


def test_callbacks_that_raise_are_counted(loop):
    contexts = support.capture_contexts(loop)
    before = loop.metrics().callbacks
    run_until_stopped(loop, lambda: 1 / 0)
    assert len(contexts) == 1
    assert loop.metrics().callbacks - before == 2
    with pytest.raises(SystemExit):
        run_until_stopped(loop, lambda: exec("raise SystemExit"))
    assert loop.metrics().callbacks - before == 3


def test_what_is_queued_and_scheduled_is_counted(loop):
    seen = []
    later = loop.call_later(3600, nothing)
    loop.call_at(loop.time() + 3600, nothing).cancel()

    def first():
        loop.call_soon(nothing)
        seen.append(loop.metrics())

    loop.call_soon(first)
    loop.call_soon(nothing)
    assert (loop.metrics().ready, loop.metrics().timers) == (2, 1)
    loop.call_soon(loop.stop)
    loop.run_forever()
    # The second, the stop, and what the first one queued.
    assert (seen[0].ready, seen[0].timers) == (3, 1)
    later.cancel()
    assert (loop.metrics().ready, loop.metrics().timers) == (1, 0)


def test_connections_are_counted_while_they_have_their_socket(loop):
    async def main():
        protocols = [support.Recorder() for _ in range(3)]
        peers = []
        for number, protocol in enumerate(protocols):
            assert loop.metrics().connections == number
            peers.append((await support.attach(loop, protocol))[1])
        assert loop.metrics().connections == 3
        protocols[0].transport.close()
        protocols[1].transport.abort()
        peers[2].close()
        await support.until(lambda: all(protocol.lost for protocol in protocols))
        assert loop.metrics().connections == 0
        for peer in peers:
            peer.close()

    loop.run_until_complete(main())


def test_busy_and_idle_time_add_up_to_the_time_it_ran(loop):
    bounds = {}

    async def main():
        inner = time.monotonic()
        before = loop.metrics()
        slow()
        assert loop.metrics().busy_seconds - before.busy_seconds >= SLOW_S * 0.99
        assert loop.metrics().idle_seconds == before.idle_seconds
        await asyncio.sleep(SLOW_S)
        after = loop.metrics()
        assert after.idle_seconds > before.idle_seconds
        bounds["inner"] = time.monotonic() - inner

    outer = time.monotonic()
    loop.run_until_complete(main())
    outer = time.monotonic() - outer
    metrics = loop.metrics()
    total = metrics.busy_seconds + metrics.idle_seconds + metrics.gil_seconds
    assert bounds["inner"] * 0.99 <= total <= outer * 1.01
    assert metrics.waits >= 1
    slow()
    assert loop.metrics() == metrics, "a loop that does not run is neither busy nor idle"


def test_polling_is_a_part_of_the_idle_time(loop):
    loop.busy_poll = 2_000
    for _ in range(20):
        # Where the CPU is taken away for longer, the timer is due before there is a wait.
        loop.run_until_complete(asyncio.sleep(0.01))
        metrics = loop.metrics()
        if metrics.polled_waits:
            break
    assert metrics.polled_waits >= 1
    assert 0 < metrics.wasted_seconds <= metrics.polling_seconds <= metrics.idle_seconds
    assert metrics.polled_hits <= metrics.polled_waits <= metrics.waits


async def call(callback, how):
    """Run a callback by one of the loop's ways, and wait until it has run."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    getattr(loop, how)(*([0] if how == "call_later" else []), callback)
    getattr(loop, how)(*([0] if how == "call_later" else []), done.set_result, None)
    await done


class Thing:
    def method(self):
        slow()

    def __call__(self):
        slow()


@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize("how", ["call_soon", "call_later", "call_soon_threadsafe"])
@pytest.mark.parametrize(
    ("callback", "text"),
    [
        (slow, f"slow() at {__file__}:{slow.__code__.co_firstlineno}"),
        (functools.partial(slow), f"slow() at {__file__}:{slow.__code__.co_firstlineno}"),
        (Thing().method, f"Thing.method() at {__file__}:{Thing.method.__code__.co_firstlineno}"),
        (Thing(), "Thing()"),
        (functools.partial(time.sleep, SLOW_S), "sleep()"),
    ],
    ids=["function", "partial", "method", "object", "builtin"],
)
@names_the_slowest
def test_the_slowest_callback_is_named(loop, callback, text, how, debug):
    loop.slow_callback_duration = 60  # Nothing in the log of debug mode.
    loop.set_debug(debug)
    metrics = run_for(loop, call(callback, how))
    assert metrics.slowest_callback == text
    assert SLOW_S * 0.99 <= metrics.slowest_seconds <= metrics.busy_seconds


@names_the_slowest
def test_a_slow_task_is_named_by_its_coroutine(loop):
    async def work():
        await asyncio.sleep(0)
        slow()

    async def main():
        await asyncio.create_task(work(), name="a name")

    text = f"task 'a name' of {work.__qualname__}() at {__file__}:{work.__code__.co_firstlineno}"
    assert run_for(loop, main()).slowest_callback == text


@names_the_slowest
def test_a_slow_protocol_is_named(loop):
    async def main():
        received = loop.create_future()
        transport, peer = await support.attach(loop, Sleeper(received))
        peer.send(b"x")
        await received
        transport.close()
        peer.close()

    assert run_for(loop, main()).slowest_callback == f"connection of {__name__}.Sleeper"


@pytest.mark.without_debug_mode
@names_the_slowest
def test_a_slow_reader_of_a_descriptor_is_named(loop):
    first, second = socket.socketpair()
    with first, second:

        async def main():
            read = loop.create_future()

            def on_readable():
                slow()
                loop.remove_reader(first)
                read.set_result(None)

            loop.add_reader(first, on_readable)
            second.send(b"x")
            await read

        assert "on_readable()" in run_for(loop, main()).slowest_callback


@pytest.mark.without_debug_mode
@names_the_slowest
def test_a_callback_that_cancels_itself_and_is_slow(loop):
    def cancel_and_work():
        handle.cancel()
        slow()

    loop.metrics(reset_slowest=True)
    handle = loop.call_soon(cancel_and_work)
    run_until_stopped(loop)
    assert loop.metrics().slowest_callback.startswith(cancel_and_work.__qualname__)


@pytest.mark.without_debug_mode
@names_the_slowest
def test_a_callable_that_refuses_to_be_named_harms_nobody(loop):
    class Refusing:
        def __call__(self):
            slow()

        def __getattr__(self, name):
            raise RuntimeError(f"no {name}")

    contexts = support.capture_contexts(loop)
    loop.metrics(reset_slowest=True)
    run_until_stopped(loop, Refusing())
    assert not contexts
    assert "Refusing object at" in loop.metrics().slowest_callback


@pytest.mark.parametrize("where", ["path", "name"])
@names_the_slowest
def test_what_is_not_in_utf_8_is_named(loop, where):
    """As where the file system's encoding is another: Python has surrogates in such names."""
    names = {"slow": slow}
    path = "/home/j\udcfcrgen/app.py" if where == "path" else "/home/app.py"
    exec(compile("def named():\n    slow()\n", path, "exec"), names)
    if where == "name":
        names["named"].__qualname__ = "j\udcfcrgen"
    contexts = support.capture_contexts(loop)
    loop.slow_callback_duration = 60  # Nothing in the log of debug mode.
    loop.metrics(reset_slowest=True)
    run_until_stopped(loop, names["named"])
    text = {"path": "named() at /home/j\\udcfcrgen/app.py:1", "name": "j\\udcfcrgen() at /home/app.py:1"}
    assert loop.metrics().slowest_callback == text[where]
    assert not contexts


@names_the_slowest
def test_where_nothing_can_be_described_the_loop_goes_on(loop, monkeypatch):
    def refuse(subject):
        raise RuntimeError("no text")

    monkeypatch.setattr("ringloop._metrics.describe", refuse)
    contexts = support.capture_contexts(loop)
    loop.slow_callback_duration = 60
    loop.metrics(reset_slowest=True)
    run_until_stopped(loop, slow)
    assert loop.metrics().slowest_callback == "what cannot be described"
    assert not contexts


@names_the_slowest
def test_the_slowest_callback_is_not_kept_alive(loop):
    def callback():
        slow()

    reference = weakref.ref(callback)
    loop.metrics(reset_slowest=True)
    run_until_stopped(loop, callback)
    assert callback.__qualname__ in loop.metrics().slowest_callback
    del callback
    gc.collect()
    assert reference() is None


def test_what_takes_no_time_is_not_named(loop):
    run_until_stopped(loop)
    metrics = loop.metrics(reset_slowest=True)
    assert (metrics.slowest_callback is None) == (metrics.slowest_seconds == 0)
    assert loop.metrics().slowest_callback is None
    assert loop.metrics().slowest_seconds == 0.0


@names_the_slowest
def test_a_slow_one_among_many_short_ones_is_noticed(loop):
    """Where the clock is not read after each callback, the text admits it, and the next one is told apart."""

    def chain(count):
        async def steps():
            for _ in range(count):
                await asyncio.sleep(0)

        return steps()

    loop.run_until_complete(chain(5000))
    loop.metrics(reset_slowest=True)
    run_until_stopped(loop, *[nothing] * 40, slow, *[nothing] * 40)
    first = loop.metrics(reset_slowest=True)
    assert first.slowest_seconds >= SLOW_S * 0.99
    assert "callbacks, the last of them" in first.slowest_callback or first.slowest_callback.startswith("slow()")
    if first.slowest_callback.startswith("slow()"):
        return  # Something else was slow just before, so that it was told apart at once.
    run_until_stopped(loop, *[nothing] * 40, slow, *[nothing] * 40)
    assert loop.metrics().slowest_callback.startswith("slow()")


def test_a_slow_one_is_noticed_though_cancelled_ones_follow(loop):
    for _ in range(5000):
        loop.call_soon(nothing)
    run_until_stopped(loop)
    loop.metrics(reset_slowest=True)

    async def main():
        loop.call_soon(slow)
        for _ in range(3):
            loop.call_soon(nothing).cancel()
        await asyncio.sleep(0.01)

    loop.run_until_complete(main())
    assert loop.metrics().slowest_seconds >= SLOW_S * 0.99


def test_system_calls_events_and_wakes_are_counted(loop):
    count = 50

    async def main():
        ours, peer = socket.socketpair()
        protocol = support.Recorder()
        transport, _ = await loop.create_connection(lambda: protocol, sock=ours)
        with peer:
            before = loop.metrics()
            for number in range(count):
                peer.send(b"x")
                await support.until(lambda number=number: len(protocol.data) == number + 1)
                transport.write(b"y")
            after = loop.metrics()
        transport.close()
        return before, after

    before, after = loop.run_until_complete(main())
    assert after.events - before.events >= count
    assert after.system_calls - before.system_calls >= 2 * count, "one recv and one send for each message"


@pytest.mark.exact
def test_it_may_be_asked_from_another_thread(loop):
    seen = []

    def ask():
        while loop.metrics().idle_seconds == 0 or loop.metrics().timers == 2:
            time.sleep(0.001)
        seen.append(loop.metrics())
        # The loop may still be at the timer's callback, and sleep only later.
        deadline = time.monotonic() + support.PATIENCE_S
        while loop.metrics().idle_seconds == seen[0].idle_seconds and time.monotonic() < deadline:
            time.sleep(0.001)
        seen.append(loop.metrics())
        # On a busy machine the loop may be found on its way to sleep, and needs no wake then.
        while loop.metrics().wakes == 0:
            loop.call_soon_threadsafe(nothing)
            time.sleep(0.001)
        loop.call_soon_threadsafe(loop.stop)

    loop.call_later(3600, nothing)
    loop.call_later(0.001, nothing)
    thread = support.BackgroundThread(ask)
    loop.run_forever()
    thread.result()
    first, second = seen
    assert second.timers == 1
    assert second.idle_seconds > first.idle_seconds, "the wait in progress counts"


@pytest.mark.exact
def test_several_threads_ask_at_once(loop):
    stop = threading.Event()

    def ask():
        last = loop.metrics()
        while not stop.is_set():
            now = loop.metrics(reset_slowest=True)
            assert now.turns >= last.turns
            assert now.callbacks >= last.callbacks
            assert now.system_calls >= last.system_calls
            last = now

    threads = [support.BackgroundThread(ask) for _ in range(2)]

    async def main():
        for _ in range(40):
            await asyncio.sleep(0)
            await asyncio.sleep(0.0001)

    loop.run_until_complete(main())
    stop.set()
    for thread in threads:
        thread.result()


def test_a_closed_loop_tells_what_it_has_done(loop_factory):
    loop = loop_factory()
    loop.call_later(3600, nothing)
    loop.run_until_complete(asyncio.sleep(0.001))
    before = loop.metrics()
    assert before.timers == 1
    loop.close()
    after = loop.metrics()
    assert after._replace(system_calls=0) == before._replace(timers=0, ready=0, system_calls=0)
    assert after.system_calls >= before.system_calls > 0
    assert after.turns > 0


@pytest.mark.exact
def test_system_calls_of_a_loop_that_runs_in_several_threads(loop):
    def exchange():
        async def main():
            ours, peer = socket.socketpair()
            transport, _ = await loop.create_connection(support.Recorder, sock=ours)
            with peer:
                before = loop.metrics().system_calls
                for _ in range(10):
                    transport.write(b"x")
                assert loop.metrics().system_calls - before >= 10
            transport.close()

        loop.run_until_complete(main())
        return loop.metrics().system_calls

    first = support.BackgroundThread(exchange).result()
    second = support.BackgroundThread(exchange).result()
    third = exchange()
    assert 10 <= first <= second - 10 <= third - 20


@names_the_slowest
def test_datagrams_and_what_they_cost_are_counted(loop):
    class Slow(asyncio.DatagramProtocol):
        def datagram_received(self, data, address):
            slow()
            received.set_result(data)

    async def main():
        loop.metrics(reset_slowest=True)
        transport, _ = await loop.create_datagram_endpoint(Slow, local_addr=(support.HOST, 0))
        before = loop.metrics()
        assert before.connections == 1
        transport.sendto(b"x", transport.get_extra_info("sockname"))
        await received
        assert loop.metrics().system_calls - before.system_calls >= 2
        transport.close()

    received = loop.create_future()
    loop.run_until_complete(main())
    loop.run_until_complete(asyncio.sleep(0))
    assert loop.metrics().connections == 0
    assert loop.metrics().slowest_callback == f"connection of {__name__}.{Slow.__qualname__}"
