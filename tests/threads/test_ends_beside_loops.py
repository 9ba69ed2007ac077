"""Processes that fork, and interpreters that exit, while loops run in their threads: all of them end.

test_forks.py and test_interpreter_exit.py have what happens then. Here it happens often, at moments that nobody has chosen.
"""

import pytest

import support
from thread_support import rounds

pytestmark = pytest.mark.examples

LOOPS = """
import threading, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # About forking while threads run.
over = threading.Event()
begun = threading.Semaphore(0)

async def turns():
    while not over.is_set():
        begun.release()
        await asyncio.sleep(0)

async def streams():
    async def echo(reader, writer):
        while data := await reader.read(1000):
            writer.write(data)
            await writer.drain()
        writer.close()
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    while not over.is_set():
        writer.write(b"x" * 100)
        await reader.readexactly(100)
        begun.release()
    writer.close()
    await writer.wait_closed()
    server.close()

def run(work):
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(work())
"""


def test_forks_beside_running_loops(arm):
    """Each child has a loop of its own, and the parent's loops and the thread that posts to one of them go on."""
    count = rounds(200)
    child = support.run_child(
        LOOPS
        + f"""
idle = new_loop()

def post():
    while not over.is_set():
        ran = threading.Event()
        for _ in range(20):
            idle.call_soon_threadsafe(begun.release)
        idle.call_soon_threadsafe(ran.set)
        ran.wait()  # Or what waits would grow, and with it what a fork copies.

async def in_the_child():
    await asyncio.sleep(0.001)
    await asyncio.gather(*(asyncio.sleep(0) for _ in range(10)))
    return 7

threads = [threading.Thread(target=run, args=[work]) for work in (turns, streams)]
threads += [threading.Thread(target=idle.run_forever), threading.Thread(target=post)]
for thread in threads:
    thread.start()
ends = []
for _ in range({count}):
    for _ in range(5):
        begun.acquire()
    pid = os.fork()
    if not pid:
        try:
            with asyncio.Runner(loop_factory=new_loop) as runner:
                os._exit(runner.run(in_the_child()))
        finally:
            os._exit(1)
    ends.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
over.set()
threads[3].join()
idle.call_soon_threadsafe(idle.stop)
for thread in threads:
    thread.join()
idle.close()
print(len(ends), set(ends))
""",
        arm,
    )
    assert (child.returncode, child.stdout, child.stderr) == (0, f"{count} {{7}}\n", "")


@pytest.mark.parametrize("collects", [False, True], ids=["", "collecting"])
def test_exits_beside_running_loops(arm, collects):
    """Daemon threads run loops, and another one collects garbage, while the interpreter ends."""
    program = (
        LOOPS
        + f"""
import gc
def collect():
    while {collects}:
        gc.collect()
for work in (turns, streams):
    threading.Thread(target=run, args=[work], daemon=True).start()
threading.Thread(target=collect, daemon=True).start()
for _ in range(20):
    begun.acquire()
print("done")
"""
    )
    for _ in range(rounds(50)):
        child = support.run_child(program, arm)
        assert (child.returncode, child.stdout, child.stderr) == (0, "done\n", "")
