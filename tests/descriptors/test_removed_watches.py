"""Files that are closed before they are removed, and watches that other threads add and remove."""

import asyncio
import contextlib
import gc
import os
import socket
import tempfile
import threading
import weakref

import pytest

import support
from descriptor_support import outcome_of, pair, parted
from support import PATIENCE_S, Recorder, noop, run_turns, same_as_asyncio, turns, until

pytestmark = pytest.mark.exact


class File:
    """A file object whose number goes when it is closed."""

    def __init__(self, number):
        self.number = number

    def fileno(self):
        return self.number


@pytest.mark.parametrize("error", [ValueError, TypeError, AttributeError, -1], ids=str)
@pytest.mark.parametrize("kinds", ["r", "w", "rw"])
def test_a_closed_file_is_removed_by_the_object_that_was_added(loop_factory, kinds, error):
    def body(loop):
        class Closing(File):
            def fileno(self):
                if self.number is not None:
                    return self.number
                if error == -1:
                    return -1
                raise error("closed")

        ours, peer = pair()
        file = Closing(ours.fileno())
        if "r" in kinds:
            loop.add_reader(file, noop)
        if "w" in kinds:
            loop.add_writer(file, noop)
        run_turns(loop, 4)
        file.number = None
        ours.close()
        peer.close()
        methods = (loop.remove_reader, loop.remove_writer, loop.remove_reader)
        results = [outcome_of(method, file) for method in methods]
        # Without what tells one object from another.
        return [it.partition("object at")[0] if isinstance(it, str) else it for it in results]

    results = same_as_asyncio(body, loop_factory)
    # Where `fileno` raises, asyncio does not get as far as to look for the object.
    assert True in results or error != -1 or kinds == "rw"


def test_a_closed_socket_is_removed_by_itself(loop_factory):
    def body(loop):
        ours, peer = pair()
        loop.add_reader(ours, noop)
        run_turns(loop, 4)
        ours.close()
        peer.close()
        again = outcome_of(loop.add_reader, ours, noop)
        changed = outcome_of(loop._selector.get_key, ours)
        results = [again, changed.fileobj is ours, loop.remove_reader(ours), outcome_of(loop.remove_reader, ours)]
        unknown, _ = pair()
        _.close()
        unknown.close()
        return [*results, outcome_of(loop.remove_writer, unknown).partition(":")[0]]

    same_as_asyncio(body, loop_factory)


def test_a_closed_socket_that_is_removed_leaves_alone_who_has_its_number(loop):
    async def main():
        ours, peer = pair()
        loop.add_reader(ours, noop)
        await turns(2)
        with peer, parted("closed and reused", ours) as stranger:
            assert loop.remove_reader(ours)
            trace = []
            loop.add_reader(stranger.copies[0], trace.append, "read")
            stranger.far.send(b"x")
            await until(lambda: trace)
            with pytest.raises(ValueError):
                loop.remove_reader(ours)
            assert loop.remove_reader(stranger.copies[0])

    loop.run_until_complete(main())


def test_a_file_is_kept_for_as_long_as_it_is_watched(loop):
    ours, peer = pair()
    reference = weakref.ref(ours)
    number = ours.fileno()
    trace = []
    with peer:
        loop.add_reader(ours, trace.append, "read")
        del ours
        gc.collect()
        assert reference() is not None
        peer.send(b"x")
        run_turns(loop, 5)
        assert trace
        with pytest.warns(ResourceWarning, match="unclosed <socket"):
            loop.remove_reader(number)
            gc.collect()
        assert reference() is None


def test_a_cycle_through_a_watched_file(new_loop):
    class Holder(File):
        pass

    loop = new_loop()
    reading, writing = os.pipe()
    file = Holder(reading)
    file.loop = loop
    loop.add_reader(file, noop)
    reference = weakref.ref(file)
    loop.close()
    del file
    gc.collect()
    assert reference() is None
    os.close(reading)
    os.close(writing)


@pytest.mark.ringloop_only
def test_the_descriptor_of_a_socket_is_read_as_its_method_tells_it():
    import ringloop._core as core

    class Derived(socket.socket):
        def fileno(self):
            raise AssertionError("not asked")

    for make in (socket.socket, Derived):
        sock = make(socket.AF_INET, socket.SOCK_DGRAM)
        number = socket.socket.fileno(sock)
        assert number >= 0
        assert core._socket_descriptor(sock) == (number, number)
        sock.close()
        assert core._socket_descriptor(sock) == (-1, -1)
        sock = make()
        os.close(sock.detach())
        assert core._socket_descriptor(sock) == (-1, -1)
    assert core._socket_descriptor(make.__new__(make)) == (-1, -1)
    for other in (None, 5, File(5)):
        with contextlib.suppress(TypeError):
            assert core._socket_descriptor(other)[0] is None


# From other threads, while the loop waits


def in_another_thread(function, *arguments):
    """Call a function in another thread, when the loop waits; wait for its result in this one's loop."""

    def later():
        support.until_waiting(threading.main_thread())
        return outcome_of(function, *arguments)

    return asyncio.to_thread(later)


def test_another_thread_adds_and_removes_while_the_loop_waits(loop):
    async def once(ours, peer):
        trace = []
        assert await in_another_thread(loop.add_reader, ours, trace.append, "read") is None
        assert trace == []
        peer.send(b"x")
        await until(lambda: trace)
        ours.recv(10)
        assert await in_another_thread(loop.remove_reader, ours) is True
        assert await in_another_thread(loop.remove_reader, ours) is False
        trace.clear()
        assert await in_another_thread(loop.add_writer, ours, trace.append, "write") is None
        await until(lambda: trace)
        # The socket can be written to, so that the loop does not wait.
        assert await asyncio.to_thread(loop.remove_writer, ours) is True

    async def main():
        ours, peer = pair()
        with ours, peer:
            for _ in range(5):
                await once(ours, peer)

    loop.run_until_complete(main())


def test_what_another_thread_adds_ends_the_wait_of_a_loop_that_has_nothing_else_to_do(loop):
    """Nothing but the descriptor itself wakes it: neither a timer nor a callback from that thread."""

    def when_it_waits(function, *arguments):
        support.until_waiting(threading.main_thread())
        function(*arguments)

    async def main():
        event = asyncio.Event()

        def ready():
            assert threading.get_ident() == own
            loop.remove_reader(reading)
            event.set()

        own = threading.get_ident()
        reading, writing = os.pipe()
        os.write(writing, b"x")
        thread = support.BackgroundThread(when_it_waits, loop.add_reader, reading, ready)
        await event.wait()
        thread.result()
        event.clear()

        def written():
            loop.remove_writer(writing)
            event.set()

        thread = support.BackgroundThread(when_it_waits, loop.add_writer, writing, written)
        await event.wait()
        thread.result()
        os.close(reading)
        os.close(writing)

    loop.run_until_complete(main())


def test_another_thread_is_told_of_errors(loop_factory):
    def body(loop):
        async def main():
            ours, peer = pair()
            transport, protocol = await loop.create_connection(Recorder, sock=ours)
            await turns(3)
            with tempfile.TemporaryFile() as file, peer:
                results = []
                for method in (loop.add_reader, loop.add_writer):
                    for bad in (10**6, -1, "text", file.fileno()):
                        results.append(await in_another_thread(method, bad, noop))
                    used = await in_another_thread(method, ours.fileno(), noop)
                    results.append(used.partition(" is used by")[0].partition("descriptor")[0])
                transport.abort()
                await until(lambda: protocol.lost)
                return results

        return loop.run_until_complete(main())

    results = same_as_asyncio(body, loop_factory)
    assert all(isinstance(result, str) for result in results)


@pytest.mark.ringloop_only
def test_threads_that_add_and_remove_all_the_time(loop):
    """Each its own descriptors, which are used again and again; and none loses an arrival, as happens under asyncio."""

    def work():
        for number in range(100):
            ours, peer = pair()
            arrived = threading.Event()
            with ours, peer:
                loop.add_reader(ours, arrived.set)
                peer.send(b"x")
                assert arrived.wait(PATIENCE_S), number
                assert loop.remove_reader(ours)

    async def main():
        await asyncio.gather(*(asyncio.to_thread(work) for _ in range(3)))

    loop.run_until_complete(main())
