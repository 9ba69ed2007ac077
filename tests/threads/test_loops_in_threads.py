"""Several loops, each in a thread of its own, at the same time: they have nothing to do with each other."""

import asyncio
import contextlib
import contextvars
import functools
import gc
import os
import sys
import threading
import weakref

import pytest

import support
import tls_support
from thread_support import at_once, collecting, echo, repeating, rounds

pytestmark = pytest.mark.examples

THREADS = 3


async def exchange(count, client=None, server=None):
    """Serve, and be one's own client: connections that come and go, with data of all sizes."""
    server = await asyncio.start_server(echo, support.HOST, 0, ssl=server)
    address = server.sockets[0].getsockname()

    async def talk():
        options = {} if client is None else {"ssl": client, "server_hostname": tls_support.NAME}
        reader, writer = await asyncio.open_connection(*address, **options)
        for size in (1, 100, 5000, 70_000):
            data = os.urandom(16) * (size // 16 + 1)
            writer.write(data)
            assert await reader.readexactly(len(data)) == data
        writer.write_eof() if client is None else writer.close()
        assert client is not None or await reader.read() == b""
        writer.close()
        await writer.wait_closed()

    for _ in range(count):
        await asyncio.gather(talk(), talk())
    server.close()
    await server.wait_closed()


async def work(count, where):
    """Do a little of everything that a loop can do, and stay in this thread and context."""
    loop, thread = asyncio.get_running_loop(), threading.get_ident()
    where.set(thread)

    async def timers():
        for _ in range(10 * count):
            await asyncio.sleep(0.0001)
            assert where.get() == thread == threading.get_ident()

    async def tasks():
        for _ in range(10 * count):
            assert await asyncio.gather(*(asyncio.sleep(0, number) for number in range(20))) == list(range(20))

    async def executor():
        for number in range(10 * count):
            assert await loop.run_in_executor(None, lambda number=number: number) == number
            assert await asyncio.to_thread(where.get) == thread

    async def cancelled():
        for _ in range(10 * count):
            task = loop.create_task(asyncio.sleep(100))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(asyncio.sleep(100), 0)

    await asyncio.gather(timers(), tasks(), executor(), cancelled(), exchange(count))
    assert asyncio.get_running_loop() is loop
    return thread


@pytest.mark.parametrize("collects", [False, True], ids=["", "collecting"])
def test_runners_in_several_threads(loop_factory, collects):
    where = contextvars.ContextVar("where")

    def run():
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            threads = {runner.run(work(rounds(40), where)) for _ in range(2)}
            assert threads == {threading.get_ident()}

    with collecting() if collects else repeating(functools.partial(threading.Event().wait, 0.1)):
        at_once(*[run] * THREADS)


@pytest.mark.ringloop_only
def test_run_in_several_threads(arm):
    import ringloop

    where = contextvars.ContextVar("where")

    async def main():
        assert asyncio.get_running_loop().backend == arm
        return await work(rounds(20), where)

    with collecting():
        threads = at_once(*[lambda: (ringloop.run(main()), ringloop.run(main()))] * THREADS)
    assert len({thread for each in threads for thread in each}) >= 2


def test_loops_that_are_made_and_closed_in_several_threads(loop_factory):
    def run():
        for _ in range(rounds(200)):
            loop = loop_factory()
            loop.run_until_complete(asyncio.sleep(0.0001))
            loop.call_soon(support.noop)
            loop.call_later(100, support.noop)
            loop.close()
            assert loop.is_closed()

    with collecting():
        at_once(*[run] * THREADS)


def test_tls_in_several_threads(loop_factory):
    server, client = tls_support.tls_contexts()

    def run():
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(exchange(rounds(30), client, server))

    at_once(*[run] * 2)


def test_datagrams_in_several_threads(loop_factory):
    class Peer(asyncio.DatagramProtocol):
        def __init__(self, wanted):
            self.left, self.over = wanted, asyncio.get_running_loop().create_future()

        def connection_made(self, transport):
            self.transport = transport

        def datagram_received(self, data, address):
            self.left -= 1
            if self.left:
                self.transport.sendto(data, address)
            else:
                self.over.set_result(None)

    async def main():
        loop, count = asyncio.get_running_loop(), rounds(2000)
        first, one = await loop.create_datagram_endpoint(lambda: Peer(count), local_addr=(support.HOST, 0))
        second, other = await loop.create_datagram_endpoint(lambda: Peer(count), local_addr=(support.HOST, 0))
        first.sendto(b"x" * 100, second.get_extra_info("sockname"))
        await asyncio.wait([one.over, other.over], return_when=asyncio.FIRST_COMPLETED)
        first.close()
        second.close()
        await support.turns(2)

    def run():
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(main())

    with collecting():
        at_once(*[run] * THREADS)


def test_a_loop_for_each_thread_and_connections_between_them(loop_factory):
    """A server in one thread, and clients on loops in others. Each side sees the other's data in its order."""
    opened, address = threading.Event(), []

    def serve():
        async def main():
            server = await asyncio.start_server(echo, support.HOST, 0)
            address.extend(server.sockets[0].getsockname())
            over.append((asyncio.get_running_loop(), asyncio.Event()))
            opened.set()
            await over[0][1].wait()
            server.close()
            await server.wait_closed()

        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(main())

    def connect():
        async def main():
            reader, writer = await asyncio.open_connection(*address)
            for number in range(rounds(500)):
                data = b"%d." % number * (1 + number % 300)
                writer.write(data)
                assert await reader.readexactly(len(data)) == data
            writer.close()
            await writer.wait_closed()

        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(main())

    over = []
    server = support.BackgroundThread(serve)
    assert opened.wait(support.PATIENCE_S)
    at_once(*[connect] * 2)
    loop, event = over[0]
    loop.call_soon_threadsafe(event.set)
    server.result()


def test_children_of_the_loops_of_several_threads(loop_factory):
    def run():
        async def main():
            for number in range(rounds(60)):
                child = await asyncio.create_subprocess_exec(
                    "sh", "-c", f"cat; exit {number % 7}", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
                )
                text = b"%d" % number * 1000
                assert await child.communicate(text) == (text, None)
                assert child.returncode == number % 7

        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(main())

    at_once(*[run] * 2)


def test_signals_of_the_main_loop_beside_loops_in_threads(arm):
    """The handler runs in the main thread, whichever thread the kernel interrupts, and each signal ends the main loop's wait."""
    child = support.run_child(
        f"""
        import threading, time
        got, over = [], threading.Event()

        async def work():
            while not over.is_set():
                await asyncio.sleep(0)
                await asyncio.sleep(0.0001)

        def run():
            with asyncio.Runner(loop_factory=new_loop) as runner:
                runner.run(work())

        async def main():
            loop = asyncio.get_running_loop()
            arrived = asyncio.Event()
            def handle():
                got.append(threading.current_thread() is threading.main_thread())
                arrived.set()
            loop.add_signal_handler(signal.SIGUSR1, handle)
            def send():
                os.kill(os.getpid(), signal.SIGUSR1)
            for number in range({rounds(300)}):
                arrived.clear()
                threading.Thread(target=send).start()
                await arrived.wait()
            loop.remove_signal_handler(signal.SIGUSR1)

        threads = [threading.Thread(target=run) for _ in range(2)]
        for thread in threads:
            thread.start()
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(main())
        over.set()
        for thread in threads:
            thread.join()
        print(len(got), set(got))
        """,
        arm,
    )
    assert (child.returncode, child.stderr) == (0, "")
    assert child.stdout == f"{rounds(300)} {{True}}\n"


def test_ctrl_c_ends_the_main_loop_and_no_other(arm):
    child = support.run_child(
        """
        import threading
        begun, told = threading.Semaphore(0), threading.Event()

        def run():
            async def work():
                begun.release()
                while not told.is_set():
                    await asyncio.sleep(0.0001)
                return "worked on"
            with asyncio.Runner(loop_factory=new_loop) as runner:
                print(runner.run(work()))

        thread = threading.Thread(target=run)
        thread.start()
        begun.acquire()

        async def main():
            threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGINT)).start()
            await asyncio.sleep(3600)

        try:
            with asyncio.Runner(loop_factory=new_loop) as runner:
                runner.run(main())
        except KeyboardInterrupt:
            print("interrupted")
        told.set()
        thread.join()
        """,
        arm,
    )
    assert (child.returncode, child.stderr, child.stdout) == (0, "", "interrupted\nworked on\n")


def test_the_interpreter_is_the_one_that_was_asked_for():
    """A module that needs the GIL would turn it on, and everything in this folder would be tested with it."""
    if not hasattr(sys, "_is_gil_enabled"):
        pytest.skip("before Python 3.13 all have the GIL")
    import sysconfig

    import ringloop  # noqa: F401

    # -X gil=1 or PYTHON_GIL=1 turns it on.
    free = bool(sysconfig.get_config_var("Py_GIL_DISABLED")) and getattr(sys.flags, "gil", None) != 1
    assert sys._is_gil_enabled() is not free


def test_a_thread_that_ends_leaves_its_closed_loop_to_others(loop_factory):
    """The objects that a loop still had are let go of in another thread than the one that made it."""
    loops, ends = [], []

    def run():
        for _ in range(rounds(100)):
            loop = loop_factory()
            loop.run_until_complete(asyncio.sleep(0))
            loop.call_later(100, support.noop, loop)
            handle = loop.call_soon(support.noop, loop)
            loop.close()
            ends.append(weakref.ref(loop))
            loops.append((loop, handle))

    def drop():
        with contextlib.suppress(IndexError):
            while True:
                loops.pop()

    at_once(run, run)
    with collecting():
        at_once(drop, drop)
    gc.collect()
    assert len(ends) == 2 * rounds(100)
    assert not any(end() for end in ends)
