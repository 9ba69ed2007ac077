"""The interpreter exits while daemon threads run loops: the process ends as it would without them.

CPython stops a daemon thread when it next requests the GIL: in any Python code that a callback runs, after a blocking call, or at
the end of the loop's wait.
"""

import textwrap

import pytest

from support import run_child

pytestmark = pytest.mark.exact

# Each defines `run(loop)`, for a daemon thread. `begun.release()` says that the thread is where the scenario wants it.
SCENARIOS = {
    "turns without end": """
        async def main():
            while True:
                begun.release()
                await asyncio.sleep(0)

        def run(loop):
            loop.run_until_complete(main())
    """,
    "a callback that computes without end": """
        def compute():
            begun.release()
            while True:
                pass

        def run(loop):
            loop.call_soon(compute)
            loop.run_forever()
    """,
    "a callback that blocks without the GIL": """
        def block():
            begun.release()
            while True:
                time.sleep(0.01)

        def run(loop):
            loop.call_soon(block)
            loop.run_forever()
    """,
    "timers": """
        def tick(loop):
            begun.release()
            loop.call_later(0.001, tick, loop)

        def run(loop):
            loop.call_soon(tick, loop)
            loop.run_forever()
    """,
    "a wait that never ends": """
        def run(loop):
            loop.call_soon(begun.release)
            loop.run_forever()
    """,
    "a callback that raises": """
        def fail(loop):
            begun.release()
            loop.call_soon(fail, loop)
            raise Exception

        def run(loop):
            loop.set_exception_handler(lambda loop, context: sum(range(1000)))
            loop.call_soon(fail, loop)
            loop.run_forever()
    """,
    "the end of an object": """
        class Thing:
            def __del__(self):
                begun.release()
                while True:
                    sum(range(1000))

        def run(loop):
            loop.call_soon(lambda thing: None, Thing())
            loop.run_forever()
    """,
    "the end of what a closed loop held": """
        class Thing:
            def __del__(self):
                begun.release()
                while True:
                    sum(range(1000))

        def run(loop):
            loop.call_soon(lambda thing: None, Thing())
            loop.close()
    """,
    "a loop inside of a loop": """
        def nest(loop):
            inner = new_loop()
            asyncio._set_running_loop(None)
            inner.run_until_complete(main())

        async def main():
            while True:
                begun.release()
                await asyncio.sleep(0)

        def run(loop):
            loop.call_soon(nest, loop)
            loop.run_forever()
    """,
    "a reader": """
        def read(sock):
            begun.release()
            sum(range(1000))

        def run(loop):
            first, second = socket.socketpair()
            second.send(b"ready")
            loop.add_reader(first, read, first)
            loop.run_forever()
    """,
    "a protocol": """
        class Echo(asyncio.Protocol):
            def connection_made(self, transport):
                self.transport = transport
                transport.write(b"echo")

            def data_received(self, data):
                begun.release()
                sum(range(1000))
                self.transport.write(data)

        async def connect(loop):
            for end in socket.socketpair():
                end.setblocking(False)
                await loop.create_connection(Echo, sock=end)

        def run(loop):
            loop.create_task(connect(loop))
            loop.run_forever()
    """,
    "a datagram protocol": """
        class Echo(asyncio.DatagramProtocol):
            def connection_made(self, transport):
                self.transport = transport
                transport.sendto(b"echo", transport.get_extra_info("sockname"))

            def datagram_received(self, data, address):
                begun.release()
                sum(range(1000))
                self.transport.sendto(data, address)

        def run(loop):
            loop.create_task(loop.create_datagram_endpoint(Echo, local_addr=("127.0.0.1", 0)))
            loop.run_forever()
    """,
    "sockets": """
        async def echo(loop, sock):
            await loop.sock_sendall(sock, b"echo")
            while True:
                begun.release()
                await loop.sock_sendall(sock, await loop.sock_recv(sock, 100))

        def run(loop):
            for end in socket.socketpair():
                end.setblocking(False)
                loop.create_task(echo(loop, end))
            loop.run_forever()
    """,
    "tasks in debug mode, before the loop runs": """
        def run(loop):
            loop.set_debug(True)
            loop.create_task(asyncio.sleep(0))
            while True:
                begun.release()
                loop.call_soon(sum, ()).cancel()
    """,
    "callbacks from other threads": """
        def post(loop):
            while True:
                begun.release()
                loop.call_soon_threadsafe(sum, range(100))
                time.sleep(0)

        def run(loop):
            threading.Thread(target=post, args=(loop,), daemon=True).start()
            loop.run_forever()
    """,
}

PROGRAM = """
    import socket, threading, time

    begun = threading.Semaphore(0)

    class Last:
        '''Ends in the middle of the interpreter's end, and gives the other threads time for it.'''

        def __del__(self, sleep=time.sleep):
            sleep(0.05)

    sys.last = Last()
{scenario}
    for _ in range(3):
        threading.Thread(target=run, args=(new_loop(),), daemon=True).start()
    for _ in range(3):
        begun.acquire()
    print("done")
"""


@pytest.mark.many_cases(short=4)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda name: name.replace(" ", "-"))
def test_daemon_threads_do_not_disturb_the_end(arm, scenario):
    child = run_child(PROGRAM.replace("{scenario}", textwrap.indent(textwrap.dedent(SCENARIOS[scenario]), "    ")), arm)
    assert (child.returncode, child.stdout, child.stderr) == (0, "done\n", "")
