"""Choosing a backend, waiting, fairness, running out of descriptors, and forking."""

import asyncio
import errno
import gc
import os
import socket
import weakref

import pytest

from support import (
    HOST,
    PATIENCE_S,
    BackgroundThread,
    finish,
    needs_seccomp,
    resource_warnings,
    run_child,
    tcp_listener,
    tcp_pair,
    turns,
    until,
)

ringloop_only = pytest.mark.ringloop_only


def exercise(loop):
    """Use timers, threads and sockets, briefly."""

    async def main():
        await asyncio.sleep(0.001)
        assert await loop.run_in_executor(None, abs, -1) == 1
        reader, writer = await asyncio.open_connection(sock=pair[0])
        pair[1].send(b"x")
        assert await reader.read(1) == b"x"
        writer.close()
        await writer.wait_closed()
        return True

    pair = tcp_pair()
    with pair[1]:
        return loop.run_until_complete(main())


# Choosing


@ringloop_only
def test_the_environment_forces_a_backend(arm):
    import ringloop

    loop = ringloop.new_event_loop()
    assert (loop.backend, exercise(loop)) == (arm, True)
    assert isinstance(loop.backend_reason, str) and loop.backend_reason
    finish(loop)


@ringloop_only
def test_the_argument_wins_over_the_environment(arm, monkeypatch):
    import ringloop

    monkeypatch.setenv("RINGLOOP_BACKEND", "epoll" if arm == "io_uring" else "auto")
    loop = ringloop.new_event_loop(backend=arm)
    assert loop.backend == arm
    loop.close()


@ringloop_only
@pytest.mark.parametrize("value", ["auto", "", None], ids=["auto", "empty", "unset"])
def test_auto_takes_what_works(arm, monkeypatch, value):
    import ringloop

    if value is None:
        monkeypatch.delenv("RINGLOOP_BACKEND")
    else:
        monkeypatch.setenv("RINGLOOP_BACKEND", value)
    loop = ringloop.new_event_loop()
    assert loop.backend in ("io_uring", "epoll")
    if arm == "io_uring":
        assert loop.backend == "io_uring", "it works here, so auto takes it"
    loop.close()


@ringloop_only
def test_the_environment_may_be_written_in_any_case_and_with_spaces(arm, monkeypatch):
    import ringloop

    for value in (arm.upper(), f" {arm} ", f"{arm.capitalize()}\n"):
        monkeypatch.setenv("RINGLOOP_BACKEND", value)
        loop = ringloop.new_event_loop()
        assert loop.backend == arm
        loop.close()
    monkeypatch.setenv("RINGLOOP_BUSY_POLL", " OFF ")
    loop = ringloop.new_event_loop()
    assert loop.busy_poll == "off"
    loop.close()


@ringloop_only
@pytest.mark.parametrize("value", ["kqueue", "io-uring", "2", "\udcff"], ids=ascii)
def test_an_unknown_backend_is_an_error_that_names_the_choices(arm, monkeypatch, value):
    import ringloop

    monkeypatch.setenv("RINGLOOP_BACKEND", value)
    with pytest.raises(ValueError) as caught:
        ringloop.new_event_loop()
    for word in ("RINGLOOP_BACKEND", "io_uring", "epoll", "auto"):
        assert word in str(caught.value)


@ringloop_only
def test_an_unknown_backend_argument_is_an_error(arm):
    import ringloop

    with pytest.raises(ValueError) as caught:
        ringloop.new_event_loop(backend="kqueue")
    for word in ("kqueue", "io_uring", "epoll", "auto"):
        assert word in str(caught.value)
    with pytest.raises(TypeError, match="^backend must be 'auto', 'io_uring' or 'epoll', not int$"):
        ringloop.new_event_loop(backend=5)
    with pytest.raises(TypeError):
        ringloop.new_event_loop("epoll")
    with pytest.raises(TypeError):
        ringloop.new_event_loop(unknown=1)


@ringloop_only
def test_backend_and_reason_cannot_be_set(loop):
    for name in ("backend", "backend_reason"):
        with pytest.raises(AttributeError):
            setattr(loop, name, "other")


# io_uring refused, as a container does it

REFUSED = [
    ("io_uring_setup", errno.EPERM),
    ("io_uring_setup", errno.ENOSYS),
    ("io_uring_setup", errno.ENOMEM),
    ("io_uring_enter", errno.EPERM),
    ("io_uring_enter", errno.ENOSYS),
    ("io_uring_register", errno.EPERM),
    ("epoll_wait", errno.EPERM),
]


@ringloop_only
@pytest.mark.parametrize(("call", "number"), REFUSED)
def test_auto_falls_back_to_epoll_and_says_why(arm, call, number):
    needs_seccomp()
    child = run_child(
        f"""
support.refuse_io_uring({number}, "{call}")
import ringloop
async def main():
    server = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()
    server.close()
    await server.wait_closed()
    loop = asyncio.get_running_loop()
    print(loop.backend)
    print(loop.backend_reason)
ringloop.run(main())
""",
        arm,
        env={"RINGLOOP_BACKEND": "auto"},
        python_flags=("-W", "error"),
    )
    assert (child.returncode, child.stderr) == (0, "")
    backend, reason = child.stdout.rstrip("\n").split("\n")
    assert backend == "epoll"
    assert call in reason
    assert os.strerror(number).lower() in reason.lower() or errno.errorcode[number] in reason


@pytest.mark.many_cases(short=2)
@ringloop_only
@pytest.mark.parametrize(("call", "number"), REFUSED)
def test_a_forced_io_uring_that_is_refused_is_an_error(arm, call, number):
    needs_seccomp()
    child = run_child(
        f"""
support.refuse_io_uring({number}, "{call}")
import ringloop
for options in ({{}}, {{"backend": "io_uring"}}):
    try:
        ringloop.new_event_loop(**options)
    except OSError as error:
        assert error.errno == {number}
        print(error)
# As the messages advise.
ringloop.new_event_loop(backend="auto").close()
os.environ["RINGLOOP_BACKEND"] = "auto"
ringloop.new_event_loop().close()
""",
        arm,
        env={"RINGLOOP_BACKEND": "io_uring"},
        python_flags=("-W", "error"),
    )
    assert (child.returncode, child.stderr) == (0, "")
    lines = child.stdout.splitlines()
    assert len(lines) == 2
    assert "io_uring is forced by RINGLOOP_BACKEND, but " in lines[0]
    assert lines[0].endswith("or set RINGLOOP_BACKEND to epoll or auto")
    assert "io_uring is forced by the configuration, but " in lines[1]
    assert lines[1].endswith("or choose epoll or auto there")
    for line in lines:
        assert call in line
        assert os.strerror(number).lower() in line.lower() or errno.errorcode[number] in line


@ringloop_only
def test_a_loop_whose_ring_is_refused_later_says_so_and_closes(arm):
    """As by a sandbox that a program goes into when it has started."""
    needs_seccomp()
    child = run_child(
        """
loop = new_loop()
loop.run_until_complete(asyncio.sleep(0.001))
support.refuse_io_uring(1, "io_uring_enter")
try:
    loop.run_until_complete(asyncio.sleep(0.001))
except PermissionError:
    print("refused")
loop.close()
import ringloop
other = ringloop.new_event_loop()
print(other.run_until_complete(asyncio.sleep(0.001, "goes on")))
other.close()
""",
        arm,
        env={"RINGLOOP_BACKEND": None},
    )
    assert (child.returncode, child.stderr) == (0, "")
    assert child.stdout == ("refused\n" if arm == "io_uring" else "") + "goes on\n"


def test_a_loop_that_cannot_learn_of_a_connection_says_so(arm):
    """On io_uring, epoll_wait tells of what descriptors have reported that the user may close."""
    needs_seccomp()
    child = run_child(
        f"""
loop = new_loop()
async def main():
    server = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0)
    support.refuse_io_uring({errno.ENOMEM}, "epoll_wait", "epoll_pwait2")
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    await reader.read()
for _ in range(3):
    try:
        loop.run_until_complete(main())
    except OSError as error:
        print(error.errno, flush=True)
os._exit(0)
""",
        arm,
    )
    assert (child.returncode, child.stdout) == (0, f"{errno.ENOMEM}\n" * 3)


@ringloop_only
def test_epoll_does_not_touch_io_uring(arm):
    """A forced epoll works under a filter that kills the process at io_uring_setup."""
    needs_seccomp()
    child = run_child(
        """
support.refuse_io_uring(None)
import ringloop
loop = ringloop.new_event_loop(backend="epoll")
print(loop.run_until_complete(asyncio.sleep(0.001, loop.backend)))
loop.close()
""",
        arm,
        env={"RINGLOOP_BACKEND": None},
    )
    assert (child.returncode, child.stdout, child.stderr) == (0, "epoll\n", "")


# Busy polling


@ringloop_only
@pytest.mark.parametrize("value", ["off", "adaptive", "0", "50", "100000", ""])
def test_busy_poll_from_the_environment(arm, monkeypatch, value):
    import ringloop

    monkeypatch.setenv("RINGLOOP_BUSY_POLL", value)
    loop = ringloop.new_event_loop()
    assert exercise(loop)
    finish(loop)


@ringloop_only
@pytest.mark.parametrize("value", ["off", "adaptive", 0, 50, "50"])
def test_busy_poll_as_an_argument(arm, value):
    import ringloop

    loop = ringloop.new_event_loop(busy_poll=value)
    assert exercise(loop)
    finish(loop)


@ringloop_only
@pytest.mark.parametrize("value", ["sometimes", "-1", "1.5", "10us", "99999999999999999999999"])
def test_an_unknown_busy_poll_is_an_error_that_names_the_choices(arm, monkeypatch, value):
    import ringloop

    with pytest.raises(ValueError) as argument:
        ringloop.new_event_loop(busy_poll=value)
    monkeypatch.setenv("RINGLOOP_BUSY_POLL", value)
    with pytest.raises(ValueError) as environment:
        ringloop.new_event_loop()
    for caught in (argument, environment):
        for word in (value, "off", "adaptive"):
            assert word in str(caught.value)
    assert "RINGLOOP_BUSY_POLL" in str(environment.value)


@ringloop_only
@pytest.mark.parametrize("value", [-1, 1.5, 2**80, [], object()], ids=["-1", "1.5", "2**80", "list", "object"])
def test_a_busy_poll_of_a_wrong_kind_is_an_error(arm, value):
    import ringloop

    with pytest.raises((ValueError, TypeError, OverflowError)):
        ringloop.new_event_loop(busy_poll=value)


@ringloop_only
@pytest.mark.parametrize("busy_poll", ["off", "adaptive", 1_000_000])
def test_whatever_the_polling_timers_threads_and_io_are_served(arm, busy_poll):
    import ringloop

    loop = ringloop.new_event_loop(busy_poll=busy_poll)
    for _ in range(20):
        assert exercise(loop)
    finish(loop)


# Fairness


CHAIN_LIMIT = 3_000_000
"""Links of an endless chain after which what it should not starve counts as starved."""


def chain_until(loop, condition):
    """Run an endless chain of call_soon until the condition holds; return whether it came to hold."""
    links = 0

    def link():
        nonlocal links
        links += 1
        if condition() or links > CHAIN_LIMIT:
            loop.stop()
        else:
            loop.call_soon(link)

    loop.call_soon(link)
    loop.run_forever()
    return condition()


def test_io_is_served_under_an_endless_chain_of_callbacks(loop):
    first, second = socket.socketpair()
    received = []
    with first, second:
        second.send(b"x")
        loop.add_reader(first, lambda: (received.append(first.recv(1)), len(received) < 20 and second.send(b"x")))
        assert chain_until(loop, lambda: len(received) == 20)
        loop.remove_reader(first)


def test_connections_are_accepted_under_an_endless_chain_of_callbacks(loop):
    served = []

    async def handle(reader, writer):
        served.append(await reader.read(10))
        writer.close()
        await writer.wait_closed()

    server = loop.run_until_complete(asyncio.start_server(handle, HOST, 0))
    with socket.create_connection(server.sockets[0].getsockname()) as client:
        client.send(b"x")
        assert chain_until(loop, lambda: served == [b"x"])
    server.close()
    loop.run_until_complete(server.wait_closed())
    loop.run_until_complete(asyncio.wait_for(wait_for_tasks(loop), PATIENCE_S))


async def wait_for_tasks(loop):
    while len(asyncio.all_tasks(loop)) > 2:
        await asyncio.sleep(0.001)


def test_timers_are_served_under_an_endless_chain_of_callbacks(loop):
    fired = []
    for milliseconds in (1, 2, 3):
        loop.call_later(milliseconds / 1000, fired.append, milliseconds)
    assert chain_until(loop, lambda: len(fired) == 3)
    assert fired == [1, 2, 3]


@pytest.mark.exact
def test_other_threads_are_served_under_an_endless_chain_of_callbacks(loop):
    called = []
    thread = BackgroundThread(lambda: [loop.call_soon_threadsafe(called.append, number) for number in range(100)])
    assert chain_until(loop, lambda: len(called) == 100)
    thread.result()


@pytest.mark.exact
def test_timers_and_callbacks_are_served_under_endless_io(loop):
    first, second = socket.socketpair()
    fired, reads = [], 0

    def read():
        nonlocal reads
        reads += 1
        if len(fired) == 2 or reads > CHAIN_LIMIT:
            loop.stop()

    with first, second:
        second.send(b"never read")
        loop.add_reader(first, read)
        loop.call_later(0.003, fired.append, "timer")
        BackgroundThread(loop.call_soon_threadsafe, fired.append, "thread").result()
        loop.run_forever()
        loop.remove_reader(first)
    assert sorted(fired) == ["thread", "timer"]


def test_io_is_served_under_timers_that_are_always_due(loop):
    first, second = socket.socketpair()
    received, count = [], 0

    def again():
        nonlocal count
        count += 1
        if received or count > CHAIN_LIMIT:
            loop.stop()
        else:
            loop.call_later(0, again)

    with first, second:
        second.send(b"x")
        loop.add_reader(first, lambda: received.append(first.recv(1)))
        loop.call_later(0, again)
        loop.run_forever()
        loop.remove_reader(first)
    assert received == [b"x"]


# Out of descriptors


def test_accept_without_descriptors_backs_off_tells_and_resumes(arm):
    child = run_child(
        """
        import resource, socket, time
        loop = new_loop()
        contexts, times, received = [], [], []
        def handler(loop, context):
            contexts.append(context)
            times.append(time.monotonic())
        loop.set_exception_handler(handler)

        class Echo(asyncio.Protocol):
            def connection_made(self, transport):
                self.transport = transport
            def data_received(self, data):
                received.append(data)
                self.transport.write(data)

        async def main():
            server = await loop.create_server(Echo, "127.0.0.1", 0, backlog=5)
            address = server.sockets[0].getsockname()
            early = socket.create_connection(address)
            early.send(b"early")
            await support.until(lambda: received == [b"early"])
            late = socket.socket()
            time.strftime("%Z")
            hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
            resource.setrlimit(resource.RLIMIT_NOFILE, (60, hard))
            fillers = []
            try:
                while True:
                    fillers.append(os.dup(0))
            except OSError:
                pass
            before, ticks = turn_count(), 0
            late.connect(address)
            late.send(b"late")
            await support.until(lambda: contexts)
            for _ in range(25):
                early.send(b"on")
                await asyncio.sleep(0.01)
                ticks += 1
            turns = turn_count() - before
            # The next attempt comes a second after the first, which was reported a little later than it was made.
            at_first = sum(when < times[0] + 0.5 for when in times)
            for filler in fillers:
                os.close(filler)
            await support.until(lambda: b"late" in received)
            server.close()
            early.close()
            late.close()
            await server.wait_closed()
            await support.looks()
            return at_first, turns, ticks

        turn_count = support.turn_counter(loop)
        at_first, turns, ticks = loop.run_until_complete(main())
        loop.close()
        print(sorted(contexts[0]))
        print(contexts[0]["message"])
        print(type(contexts[0]["exception"]).__name__, contexts[0]["exception"].errno)
        print(type(contexts[0]["socket"]).__name__)
        print(at_first, turns, ticks, b"".join(received).count(b"on"))
        """,
        arm,
        python_flags=("-X", "dev", "-W", "error"),
    )
    assert (child.returncode, child.stderr.replace("\n", "")) == (0, ""), child.stderr
    lines = child.stdout.splitlines()
    assert lines[:4] == [
        "['exception', 'message', 'socket']",
        "socket.accept() out of system resource",
        f"OSError {errno.EMFILE}",
        "TransportSocket",
    ]
    told, turns, ticks, served = lines[4].split()
    # asyncio tells it for each place in the backlog, and tries again a second after each: not always in one turn, and so more often.
    assert 0 < int(told) <= (6 if arm == "asyncio" else 1), "told once in a second"
    assert int(turns) < 1000, "the loop sleeps meanwhile"
    assert (ticks, served) == ("25", "25"), "timers and other connections go on"


@ringloop_only
def test_a_loop_that_cannot_be_made_for_lack_of_descriptors_raises(arm):
    child = run_child(
        """
        import resource
        new_loop().close()
        before = len(os.listdir("/proc/self/fd"))
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (40, hard))
        fillers = []
        try:
            while True:
                fillers.append(os.dup(0))
        except OSError:
            pass
        for spare in range(8):
            try:
                new_loop().close()
            except OSError as error:
                assert error.errno == 24, error
            else:
                break
            os.close(fillers.pop())
        loop = new_loop()
        print(loop.run_until_complete(asyncio.sleep(0.001, "works")))
        loop.close()
        for filler in fillers:
            os.close(filler)
        print(len(os.listdir("/proc/self/fd")) - before)
        """,
        arm,
        python_flags=("-W", "ignore"),
    )
    assert (child.returncode, child.stderr) == (0, "")
    assert child.stdout.split() == ["works", "0"]


# Fork


FORK = """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # About forking while threads run.

async def serve(loop):
    async def handle(reader, writer):
        writer.write(await reader.readline())
        writer.close()
        await writer.wait_closed()
    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"hello\\n")
        assert await reader.read() == b"hello\\n"
        writer.close()
        await writer.wait_closed()
    return "served"

def in_child(work):
    pid = os.fork()
    if not pid:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            import traceback
            traceback.print_exc()
        finally:
            os._exit(code)
    return pid
"""


def test_a_child_forked_from_a_running_loop_makes_its_own_loop(arm):
    child = run_child(
        FORK
        + """
def work():
    asyncio._set_running_loop(None)
    loop = new_loop()
    assert loop.run_until_complete(serve(loop)) == "served"
    loop.close()

async def main():
    loop = asyncio.get_running_loop()
    server = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0)
    connection = await asyncio.open_connection(*server.sockets[0].getsockname())
    ticking = loop.call_later(0.01, lambda: None)
    for _ in range(3):
        pid = in_child(work)
        while True:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                break
            await asyncio.sleep(0.001)
        print(os.waitstatus_to_exitcode(status), await serve(loop), flush=True)
    connection[1].close()
    await connection[1].wait_closed()
    server.close()
    await server.wait_closed()

loop = new_loop()
loop.run_until_complete(main())
loop.close()
print("parent closed")
""",
        arm,
    )
    assert child.returncode == 0, child.stderr
    assert child.stdout.splitlines() == ["0 served"] * 3 + ["parent closed"], child.stderr


def test_a_child_that_drops_and_collects_the_parents_loop_harms_nobody(arm):
    child = run_child(
        FORK
        + """
import gc
warnings.simplefilter("ignore", ResourceWarning)
loop = new_loop()
reader, writer = __import__("socket").socketpair()
reader.setblocking(False)
trace = []
loop.add_reader(reader, lambda: trace.append(reader.recv(10)))
loop.run_until_complete(asyncio.sleep(0.001))

def work():
    global loop
    del loop
    gc.collect()
    fresh = new_loop()
    assert fresh.run_until_complete(serve(fresh)) == "served"
    fresh.close()

status = os.waitpid(in_child(work), 0)[1]
print(os.waitstatus_to_exitcode(status))
writer.send(b"parent")
while not trace:
    loop.run_until_complete(asyncio.sleep(0.001))
print(trace, loop.run_until_complete(serve(loop)))
loop.remove_reader(reader)
loop.close()
""",
        arm,
    )
    assert child.returncode == 0, child.stderr
    assert child.stdout.splitlines() == ["0", "[b'parent'] served"], child.stderr


@ringloop_only
def test_a_parents_loop_used_in_a_forked_child_is_an_error_not_a_mess(arm):
    child = run_child(
        FORK
        + """
warnings.simplefilter("ignore", ResourceWarning)
loop = new_loop()
loop.run_until_complete(asyncio.sleep(0.001))

async def busy():
    # Something is always ready, so the loop only looks at the kernel, which on io_uring takes no system call.
    for _ in range(1000):
        await asyncio.sleep(0)

def work():
    try:
        loop.run_until_complete(coroutine())
    except (RuntimeError, OSError) as error:
        print("refused:", error, flush=True)
    else:
        print("allowed", flush=True)

for coroutine in (lambda: asyncio.sleep(0.001), busy):
    status = os.waitpid(in_child(work), 0)[1]
    print(os.waitstatus_to_exitcode(status), loop.run_until_complete(serve(loop)), flush=True)
loop.close()
""",
        arm,
    )
    assert child.returncode == 0, child.stderr
    refused = (
        "refused: this loop was inherited over fork: it belongs to the parent process; make a new one in the child"
    )
    assert child.stdout.splitlines() == [refused, "0 served"] * 2, child.stderr


def test_a_child_process_does_not_inherit_the_loops_descriptors(arm):
    child = run_child(
        """
        import subprocess
        loop = new_loop()
        async def main():
            server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            code = "import os; print(sorted(os.listdir('/proc/self/fd'), key=int))"
            print(subprocess.run([sys.executable, "-S", "-c", code], close_fds=False, capture_output=True, text=True).stdout.strip())
            writer.close()
            await writer.wait_closed()
            server.close()
        loop.run_until_complete(main())
        loop.run_until_complete(asyncio.sleep(0.01))
        loop.close()
        """,
        arm,
        python_flags=("-W", "ignore"),
        stdin=-3,
    )
    assert child.returncode == 0, child.stderr
    assert child.stdout.strip() == "['0', '1', '2', '3']", "0 to 2, and the one of the listing"


# The end of things in flight


def test_closing_a_loop_with_everything_in_flight(loop_factory):
    """Readers, pending receives, accepts and connects, half-written buffers: close() copes and the descriptors go."""
    loop = loop_factory()
    pairs = [tcp_pair() for _ in range(6)]
    listener = tcp_listener()

    async def main():
        loop.add_reader(pairs[0][0], print)
        loop.add_writer(pairs[0][1], lambda: None)
        tasks = [
            loop.create_task(loop.sock_recv(pairs[1][0], 10)),
            loop.create_task(loop.sock_sendall(pairs[2][0], bytes(8 << 20))),
            loop.create_task(loop.sock_accept(listener)),
        ]
        transport, _ = await loop.create_connection(asyncio.Protocol, sock=pairs[3][0])
        transport.write(bytes(8 << 20))
        await turns(5)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        return transport

    transport = loop.run_until_complete(main())
    loop.close()
    with resource_warnings() as messages:
        del transport
    assert any(text.startswith("unclosed transport <") for text in messages)
    for pair in pairs:
        for sock in pair:
            sock.close()
    listener.close()


def test_tasks_pending_at_close_can_be_dropped(loop_factory):
    loop = loop_factory()
    first, second = tcp_pair()

    async def receive():
        await loop.sock_recv(first, 10)

    task = loop.create_task(receive())
    task._log_destroy_pending = False
    loop.stop()
    loop.run_forever()
    assert not task.done()
    loop.close()
    reference = weakref.ref(task)
    del task
    gc.collect()
    assert reference() is None
    with first, second:
        second.send(b"x")
        assert first.recv(1) == b"x", "the closed loop took nothing"


def test_a_listening_socket_whose_server_was_never_started(loop):
    async def main():
        server = await loop.create_server(asyncio.Protocol, HOST, 0, start_serving=False)
        server.close()
        await server.wait_closed()

    loop.run_until_complete(main())


def test_until_gives_up_loudly(loop, monkeypatch):
    """The helper itself: a condition that never comes true fails the test rather than passing it."""
    monkeypatch.setattr("support.PATIENCE_S", 0.01)
    with pytest.raises(AssertionError, match="did not come true"):
        loop.run_until_complete(until(lambda: False))
