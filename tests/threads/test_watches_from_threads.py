"""Readers and writers that other threads add and remove while the loop runs, and signals of descriptors that they close."""

import asyncio
import functools
import socket

import pytest

import support
from thread_support import at_once, rounds, running_in_a_thread, until

pytestmark = pytest.mark.examples


def pair():
    ours, peer = socket.socketpair()
    ours.setblocking(False)
    peer.setblocking(False)
    return ours, peer


@pytest.mark.parametrize("sockets", ["the same", "new"])
def test_readers_that_threads_add_hear_what_arrives(loop, sockets):
    """Whether the loop sleeps or not. Nothing else would wake it."""
    count = rounds(400)

    def work():
        ours, peer = pair()
        for number in range(count):
            if sockets == "new":
                ours.close()
                peer.close()
                ours, peer = pair()
            heard = []
            if number % 2:
                peer.send(b"x")
            # Removed first: once it is heard, the next one may be added.
            loop.add_reader(
                ours, lambda ours=ours, heard=heard: loop.remove_reader(ours) and heard.append(ours.recv(10))
            )
            if not number % 2:
                peer.send(b"x")
            until(lambda heard=heard: heard, "the reader's call")
            assert heard == [b"x"]
            assert loop.remove_reader(ours) is False
        ours.close()
        peer.close()

    with running_in_a_thread(loop):
        at_once(work, work, work)


def test_a_reader_that_a_thread_has_removed_is_not_called_anew(loop):
    """It may be called while it is removed, but not after the loop's next turn."""
    count = rounds(300)

    def work():
        ours, peer = pair()
        with ours, peer:
            peer.send(b"never read")
            for number in range(count):
                calls = []
                loop.add_reader(ours, calls.append, number)
                until(lambda calls=calls: calls)
                assert loop.remove_reader(ours) is True
                asyncio.run_coroutine_threadsafe(support.turns(2), loop).result(support.PATIENCE_S)
                before = len(calls)
                asyncio.run_coroutine_threadsafe(support.turns(2), loop).result(support.PATIENCE_S)
                assert len(calls) == before

    with running_in_a_thread(loop):
        at_once(work, work)


def test_threads_that_replace_each_other_s_reader(loop, arm):
    """One descriptor, several threads: the last that was added is called, and one removal removes it.

    asyncio's selector raises KeyError where two threads register one descriptor; that is why it isn't tried there.
    """
    if arm == "asyncio":
        pytest.skip("asyncio's selector isn't for several threads at one descriptor")
    ours, peer = pair()
    with ours, peer:
        peer.send(b"never read")
        with running_in_a_thread(loop):

            def work():
                for _ in range(rounds(1000)):
                    loop.add_reader(ours, support.noop)
                    loop.add_writer(ours, support.noop)
                    loop.remove_writer(ours)
                    loop.remove_reader(ours)

            at_once(work, work, work)
            calls = []
            loop.add_reader(ours, calls.append, None)
            until(lambda: calls)
            assert loop.remove_reader(ours) is True
            assert loop.remove_reader(ours) is False
            assert loop.remove_writer(ours) is False


def test_watches_of_threads_beside_traffic_of_the_loop_s_own(loop):
    async def echo(stopped):
        ours, peer = pair()
        exchanges = 0
        with ours, peer:
            while not stopped:
                await loop.sock_sendall(ours, b"x" * 1000)
                assert len(await support.receive_exactly(loop, peer, 1000)) == 1000
                await asyncio.sleep(0)  # None of the two had to wait.
                exchanges += 1
        return exchanges

    def work():
        ours, peer = pair()
        with ours, peer:
            for _ in range(rounds(300)):
                heard = []
                loop.add_reader(ours, lambda heard=heard: loop.remove_reader(ours) and heard.append(ours.recv(10)))
                loop.add_writer(peer, lambda: loop.remove_writer(peer) and peer.send(b"y"))
                until(lambda heard=heard: heard)

    with running_in_a_thread(loop):
        stopped = []
        echoing = asyncio.run_coroutine_threadsafe(echo(stopped), loop)
        at_once(work, work)
        stopped.append(True)
        assert echoing.result(support.PATIENCE_S) > 0


def test_sockets_that_threads_close_under_their_watch(loop, arm):
    """Its number may be another socket's at once, whose reader must be called."""
    if arm == "asyncio":
        pytest.skip("asyncio's selector keeps the number of a closed socket, and raises for the next one that has it")

    def work():
        for _ in range(rounds(200)):
            ours, peer = pair()
            loop.add_reader(ours, support.noop)
            peer.send(b"x")
            loop.remove_reader(ours)
            ours.close()
            peer.close()

    def listen():
        for _ in range(rounds(200)):
            ours, peer = pair()
            with ours, peer:
                heard = []
                loop.add_reader(ours, functools.partial(heard.append, None))
                peer.send(b"x")
                until(lambda heard=heard: heard)
                loop.remove_reader(ours)

    with running_in_a_thread(loop):
        at_once(work, work, listen)
