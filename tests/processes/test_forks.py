"""Forked and spawned children, in and around a running loop: the child works, and the parent is unaffected.

More on forks: test_backends.py (a child with its own loop, a parent's loop used in a child) and test_subprocess.py.
"""

import sys

import pytest

import support

pytestmark = pytest.mark.exact

PRELUDE = """
import gc, multiprocessing, socket, threading, time, warnings
from concurrent.futures import ProcessPoolExecutor
warnings.simplefilter("ignore", DeprecationWarning)  # About forking while threads run.

class Echo(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport
    def data_received(self, data):
        self.transport.write(data)

async def converse(reader, writer, text):
    writer.write(text)
    return await reader.readexactly(len(text))

async def until_exit(pid):
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        await asyncio.sleep(0.001)

def run(main):
    # A loop with a timer and a connection that stand before, while and after the child lives.
    async def around():
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Echo, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        assert await converse(reader, writer, b"before") == b"before"
        timer = loop.call_later(0.05, expired.append, True)
        await main(loop, reader, writer)
        while not expired:
            await asyncio.sleep(0.001)
        for _ in range(10):
            assert await converse(reader, writer, b"after") == b"after"
        writer.close()
        await writer.wait_closed()
        server.close()
        await server.wait_closed()
    expired = []
    loop = new_loop()
    loop.run_until_complete(around())
    loop.close()
    print("parent ended")
"""


def outcome(source, arm, **options):
    """Run the source after the prelude; demand a clean end, and return what was printed before the parent's last line."""
    child = support.run_child(PRELUDE + source, arm, **options)
    assert child.returncode == 0, child.stderr
    lines = child.stdout.splitlines()
    assert lines[-1:] == ["parent ended"], child.stderr
    return lines[:-1], child.stderr


ENDINGS = {
    "an exit without cleaning up": "os._exit(5)",
    "an exit through the parent's loop": "sys.exit(5)",
    "another program": "os.execv(sys.executable, [sys.executable, '-c', 'raise SystemExit(5)'])",
    "closing the parent's connection": """
        writer.transport.abort()
        writer.close()
        os._exit(5)""",
    "closing the parent's socket": """
        writer.transport._sock.close()
        os._exit(5)""",
    "dropping everything": """
        writer.transport._sock.detach()
        reader = writer = loop = None
        gc.collect()
        os._exit(5)""",
    "a loop of its own": """
        asyncio._set_running_loop(None)
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(asyncio.sleep(0.01))
        os._exit(5)""",
    "a child of its own": """
        inner = os.fork()
        if not inner:
            os._exit(5)
        os._exit(os.waitstatus_to_exitcode(os.waitpid(inner, 0)[1]))""",
}


@pytest.mark.many_cases(short=2)
def test_children_forked_in_a_task_end_in_every_way(arm):
    """Whatever the child does, the parent's loop and its connection go on."""
    endings = dict(ENDINGS)
    if arm == "asyncio":
        # There the child takes the connection out of the epoll set that it shares with the parent.
        del endings["closing the parent's connection"]
        if sys.version_info >= (3, 14):
            # There the exit is lost, and the child runs on as the parent's twin: it no longer has a running loop.
            del endings["an exit through the parent's loop"]
    source = """
async def main(loop, reader, writer):
"""
    for name, ending in endings.items():
        source += f"""
    pid = os.fork()
    if not pid:
        warnings.simplefilter("ignore")
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        {ending.strip()}
    print({name!r}, await until_exit(pid), await converse(reader, writer, b"and on"), flush=True)
"""
    lines, _ = outcome(source + "run(main)", arm)
    codes = dict.fromkeys(endings, 5)
    if sys.version_info >= (3, 14) and arm != "asyncio":
        # The exit is lost here too, but the parent's loop refuses to run on.
        codes["an exit through the parent's loop"] = 1
    assert lines == [f"{name} {code} b'and on'" for name, code in codes.items()]


@pytest.mark.ringloop_only
def test_a_child_that_closes_the_parents_loop_harms_nobody(arm):
    source = """
async def main(loop, reader, writer):
    pid = os.fork()
    if not pid:
        warnings.simplefilter("ignore")
        asyncio._set_running_loop(None)
        loop._thread_id = None
        try:
            loop.run_until_complete(asyncio.sleep(0.001))
        except RuntimeError as error:
            print(error, flush=True)
        loop.close()
        assert loop.is_closed()
        os._exit(0)
    print(await until_exit(pid))
run(main)
"""
    lines, _ = outcome(source, arm)
    assert lines == [
        "this loop was inherited over fork: it belongs to the parent process; make a new one in the child",
        "0",
    ]


@pytest.mark.ringloop_only
def test_the_parents_metrics_can_be_read_in_the_child(arm):
    source = """
async def main(loop, reader, writer):
    before = loop.metrics()
    pid = os.fork()
    if not pid:
        assert loop.metrics().callbacks >= before.callbacks > 0
        assert loop.metrics().connections == before.connections == 2
        os._exit(0)
    print(await until_exit(pid))
run(main)
"""
    assert outcome(source, arm)[0] == ["0"]


def test_a_fork_while_the_loop_waits_in_another_thread(arm):
    source = """
async def main(loop, reader, writer):
    def fork():
        support.until_waiting(threading.main_thread())
        pid = os.fork()
        if not pid:
            with asyncio.Runner(loop_factory=new_loop) as runner:
                runner.run(asyncio.sleep(0.01))
            gc.collect()
            os._exit(5)
        return pid
    pids = [await asyncio.to_thread(fork) for _ in range(5)]
    print([await until_exit(pid) for pid in pids])
run(main)
"""
    assert outcome(source, arm)[0] == ["[5, 5, 5, 5, 5]"]


def test_a_fork_while_threads_wait_for_the_end_of_a_callback(arm):
    """As they do from Python 3.14 on, to learn whether it was cancelled. Of their waiting the child inherits nothing that blocks."""
    source = """
def in_the_child():
    entered = threading.Event()
    def work():
        entered.set()
        time.sleep(0.01)  # While the other thread asks, most likely; if not, the test says less.
    loop = new_loop()
    handle = loop.call_soon_threadsafe(work)
    asking = threading.Thread(target=lambda: (entered.wait(), handle.cancelled()))
    asking.start()
    loop.call_soon(loop.stop)
    loop.run_forever()
    asking.join()
    loop.close()
    os._exit(5)
async def main(loop, reader, writer):
    def fork():
        time.sleep(0.001)  # The threads most likely wait for a lock by now; if not, the test says less.
        pid = os.fork()
        if not pid:
            in_the_child()
        forked.set_result(pid)
    def ask():
        while not ended.is_set():
            handle.cancelled()
    codes = []
    for _ in range(5):
        forked, ended = loop.create_future(), threading.Event()
        handle = loop.call_soon_threadsafe(fork)
        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        pid = await forked
        ended.set()
        for thread in threads:
            thread.join()
        codes.append(await until_exit(pid))
    print(codes)
run(main)
"""
    assert outcome(source, arm)[0] == ["[5, 5, 5, 5, 5]"]


def test_a_child_of_another_thread_that_ends_as_programs_end(arm):
    """It finalises an interpreter in which its parent's loop waits, in a thread that is gone."""
    source = """
loop = new_loop()
thread = threading.Thread(target=loop.run_forever)
thread.start()
support.until_waiting(thread)
pid = os.fork()
if not pid:
    sys.exit(5)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
loop.call_soon_threadsafe(loop.stop)
thread.join()
loop.close()
print("parent ended")
"""
    lines, stderr = outcome(source, arm)
    assert lines == ["5"]
    assert "Traceback" not in stderr


def test_signals_of_a_child_stay_with_the_child(arm):
    if arm == "asyncio" and sys.version_info < (3, 12):
        pytest.skip("asyncio before Python 3.12 hands a child's signals to the parent")
    source = """
async def main(loop, reader, writer):
    seen = []
    loop.add_signal_handler(signal.SIGUSR1, seen.append, "parent's")
    pid = os.fork()
    if not pid:
        signal.signal(signal.SIGUSR1, lambda *_: seen.append("child's"))
        os.kill(os.getpid(), signal.SIGUSR1)
        while not seen:
            time.sleep(0.001)
        os._exit(5 if seen == ["child's"] else 1)
    print(await until_exit(pid))
    os.kill(os.getpid(), signal.SIGUSR1)
    while not seen:
        await asyncio.sleep(0.001)
    print(seen)
run(main)
"""
    assert outcome(source, arm)[0] == ["5", '["parent\'s"]']


def test_a_wakeup_descriptor_of_the_users_survives_a_fork(arm):
    if sys.version_info >= (3, 12):
        pytest.skip("asyncio from Python 3.12 on takes it away in the child")
    source = """
a, b = socket.socketpair()
b.setblocking(False)
signal.set_wakeup_fd(b.fileno())
async def main(loop, reader, writer):
    pid = os.fork()
    if not pid:
        os._exit(5 if signal.set_wakeup_fd(-1) == b.fileno() else 1)
    print(await until_exit(pid))
run(main)
signal.set_wakeup_fd(-1)
"""
    child = support.run_child(PRELUDE + source, arm)
    assert child.stdout.splitlines() == ["5", "parent ended"], child.stderr


def test_multiprocessing_in_a_running_loop(arm):
    source = f"""
async def main(loop, reader, writer):
    for method in multiprocessing.get_all_start_methods():
        print(method, *await start(loop, multiprocessing.get_context(method)))

async def start(loop, context):
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=support.run_a_loop_and_tell, args=({arm!r}, sender))
    process.start()
    arrived = loop.create_future()
    loop.add_reader(receiver.fileno(), arrived.set_result, None)
    await arrived
    loop.remove_reader(receiver.fileno())
    told = receiver.recv()
    await asyncio.to_thread(process.join)
    exitcode = process.exitcode
    process.close()
    receiver.close()
    sender.close()
    return told, exitcode
if __name__ == "__main__":
    run(main)
"""
    lines, _ = outcome(source, arm)
    assert sorted(lines) == ["fork echoed 0", "forkserver echoed 0", "spawn echoed 0"]


def test_a_process_pool_as_executor(arm):
    source = f"""
async def main(loop, reader, writer):
    for method in multiprocessing.get_all_start_methods():
        await compute(loop, reader, writer, multiprocessing.get_context(method))

async def compute(loop, reader, writer, context):
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        calls = [loop.run_in_executor(pool, support.run_a_loop, {arm!r}) for _ in range(4)]
        for call in asyncio.as_completed(calls):
            assert await converse(reader, writer, b"meanwhile") == b"meanwhile"
            print(await call)
        try:
            await loop.run_in_executor(pool, divmod, 1, 0)
        except ZeroDivisionError as error:
            print(type(error).__name__)
if __name__ == "__main__":
    run(main)
"""
    lines, _ = outcome(source, arm)
    assert lines == [*["echoed"] * 4, "ZeroDivisionError"] * 3


def test_a_terminated_process_leaves_the_parents_signal_handlers_alone(arm):
    """`Process.terminate` sends SIGTERM to a child that was forked from a loop which handles SIGTERM."""
    if arm == "asyncio" and sys.version_info < (3, 12):
        pytest.skip("asyncio before Python 3.12 hands a child's signals to the parent")
    source = """
async def main(loop, reader, writer):
    seen = []
    loop.add_signal_handler(signal.SIGTERM, seen.append, "parent's")
    context = multiprocessing.get_context("fork")
    ready, tell = context.Pipe(duplex=False)
    def child():
        tell.send(1)
        time.sleep(60)
    process = context.Process(target=child)
    process.start()
    await asyncio.to_thread(ready.recv)
    process.terminate()
    process.join(0.05)  # It has been sent the signal, and does not end.
    await support.looks()
    print(seen)
    process.kill()
    await asyncio.to_thread(process.join)
    process.close()
    ready.close()
    tell.close()
run(main)
"""
    assert outcome(source, arm)[0] == ["[]"]
