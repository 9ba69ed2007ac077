"""Shared by all tests: loops by arm, sockets, recording protocols, child processes."""

import asyncio
import contextlib
import ctypes
import functools
import gc
import importlib.util
import inspect
import itertools
import os
import pathlib
import platform
import resource
import signal
import socket
import struct
import subprocess
import sys
import textwrap
import threading
import time
import warnings

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
ARMS = ("asyncio", "io_uring", "epoll")
HOST = "127.0.0.1"
DEBUG_MODE_OFF = False
"""True during tests that are marked `without_debug_mode`."""
_EXAMPLES = float(os.environ.get("RINGLOOP_TEST_EXAMPLES", "1"))
PATIENCE_S = 100 * max(_EXAMPLES, 1)
"""How long a test waits for something that must happen. It says nothing about speed: other processes may have the CPU, and
a thread or a child process may try all examples of a test."""


def loop_factory(arm):
    """Return a callable without arguments that makes an event loop of this arm.

    The environment decides whether they start in debug mode, as for users; tests marked `without_debug_mode` have it off.
    In debug mode they report no slow callbacks unless a test asks for it: on a busy machine any callback may take long.
    """

    def make():
        loop = new_event_loop(arm)
        loop.slow_callback_duration = 3600
        if DEBUG_MODE_OFF:
            loop.set_debug(False)
        return loop

    return make


def new_event_loop(arm):
    """Make an event loop of this arm as users do."""
    if arm == "asyncio":
        return asyncio.SelectorEventLoop()
    import ringloop

    return ringloop.new_event_loop(backend=arm)


def finish(loop):
    """Cancel the remaining tasks of the loop, wait for its executor, and close it."""
    if loop.is_closed():
        return
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks, timeout=PATIENCE_S))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


def outcome(body, factory):
    """Run `body(loop)` on a fresh loop and return what it returned."""
    loop = factory()
    try:
        return body(loop)
    finally:
        finish(loop)


def load_tool(name):
    """Import a program of tools/ as a module."""
    return load_file(REPOSITORY / "tools" / f"{name}.py")


def load_file(path):
    """Import a program as a module. It may import modules of its own folder, as when it runs."""
    specification = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(specification)
    sys.modules[path.stem] = module  # dataclasses look their module up
    sys.path.insert(0, str(path.parent))
    try:
        specification.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    return module


def same_as_asyncio(body, factory):
    """Run `body(loop)` on stock asyncio and on the loop under test, assert that the results are equal, and return them.

    For behaviour that differs between Python versions: the running asyncio decides what is right.
    """
    expected = outcome(body, loop_factory("asyncio"))
    assert outcome(body, factory) == expected
    return expected


def _skip(reason):
    # Children import this module, too, and importing pytest takes longer than everything else that most of them do.
    import pytest

    pytest.skip(reason)


REPORTED_WITHOUT_GENERATIONS = (
    "without the GIL, the collector has no generations, and asyncio reports an exception that its handler has caught"
)


def has_gil():
    """Return whether the threads of this process take turns."""
    is_enabled = getattr(sys, "_is_gil_enabled", None)
    return is_enabled is None or is_enabled()


def needs_gil():
    """Skip where threads don't take turns."""
    if not has_gil():
        _skip("this Python has no GIL")


def skip_unless(condition, feature):
    """Skip where the running Python's own asyncio lacks a feature."""
    if not condition:
        _skip(f"asyncio of Python {sys.version_info.major}.{sys.version_info.minor} has no {feature}")


def has_flow_control_in_writelines():
    """Return whether the running asyncio's TCP transport pauses its protocol in `writelines`; that of 3.12 forgets to."""
    writelines = asyncio.selector_events._SelectorSocketTransport.writelines
    return "_maybe_pause_protocol" in writelines.__code__.co_names or writelines.__qualname__.startswith(
        "WriteTransport"
    )


def has_parameter(function, name):
    """Return whether a function of the running asyncio takes this argument."""
    return name in inspect.signature(function).parameters


def capture_contexts(loop):
    """Install an exception handler that appends each context to the returned list."""
    contexts = []
    loop.set_exception_handler(lambda _loop, context: contexts.append(context))
    return contexts


@contextlib.contextmanager
def resource_warnings():
    """Record ResourceWarnings, including those of a final garbage collection, and yield the list of their messages.

    In a garbage cycle the socket may be finalised before its transport, and then has its own warning. Only the message is recorded:
    a whole record would keep the object of the warning alive.
    """
    messages = []

    def note(message, category, *_details):
        if category is ResourceWarning:
            messages.append(str(message))

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = note
        yield messages
        gc.collect()


def open_descriptors():
    """Return the set of (descriptor, what it refers to) that this process has open."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            found.add((int(name), os.readlink(f"/proc/self/fd/{name}")))
        except OSError:
            continue  # The descriptor of the listing itself.
    return found


def count_objects_from_here(kind=object):
    """Return a function that counts the objects of a kind that were made since, and that the garbage collector knows.

    Those from before are the process's. They are frozen: neither counted nor collected from now on.
    """
    gc.collect()
    gc.freeze()

    def count():
        gc.collect()
        return sum(issubclass(type(it), kind) for it in gc.get_objects())

    return count


@contextlib.contextmanager
def descriptors_left(count):
    """Let the process open only `count` descriptors more. Their numbers may have gaps: a shell may pass on a high one."""
    used = {number for number, _ in open_descriptors()}
    free = (number for number in itertools.count() if number not in used)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (next(itertools.islice(free, count, None)), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def examples(count):
    """Return how many of its examples a test tries: `count` times RINGLOOP_TEST_EXAMPLES, which is 1 by default.

    10 is a long search. `make test` tries a tenth, and so does the check on each interpreter but the main one. Mark such a test with
    `@pytest.mark.examples`, so that `make test-long` tries them all.
    """
    return max(min(count, 3), round(count * _EXAMPLES))


def names_the_slowest(test):
    """Retry a test that expects a certain callback to be the slowest: another one may have waited longer for a CPU."""

    @functools.wraps(test)
    def tried(*arguments, **named):
        for _ in range(4):
            with contextlib.suppress(AssertionError):
                return test(*arguments, **named)
        return test(*arguments, **named)

    return tried


def noop(*_arguments):
    """Do nothing."""


class Oops(Exception):
    """An exception that only the tests raise."""


class Strange(BaseException):
    """One that `except Exception` doesn't catch, and that doesn't end the loop either."""


def run_turns(loop, count=1):
    """Run the loop for this many turns."""
    for _ in range(count):
        loop.stop()
        loop.run_forever()


async def turns(count):
    """Let the loop make this many turns."""
    for _ in range(count):
        await asyncio.sleep(0)


def nested_turns(loop, count):
    """Let the loop make this many turns within one of its callbacks.

    They run what is left of the outer turn, too. asyncio's outer turn then takes as many callbacks from its queue as were there when it
    began, and fails where there are fewer. So it gets as many that do nothing.
    """
    left = len(getattr(loop, "_ready", ()))
    for _ in range(count):
        loop.call_soon(lambda: None)
        loop._run_once()
    for _ in range(left):
        loop.call_soon(lambda: None)


async def looks(count=3):
    """Let the loop look at the kernel this many times: whoever listens has heard then of all that had arrived before.

    Each look is for a byte that is sent over a connection of its own, behind what others had sent. This is for what must not
    happen, or may have happened already; for what must happen there is `until`.
    """
    loop = asyncio.get_running_loop()
    ours, peer = tcp_pair()
    with ours, peer:
        for _ in range(count):
            heard = loop.create_future()
            loop.add_reader(ours, heard.set_result, None)
            peer.send(b"x")
            await heard
            loop.remove_reader(ours)
            ours.recv(1)


async def standstill(value):
    """Wait until `value()` stays the same however often the loop looks at the kernel; return it."""
    while True:
        before = value()
        await looks(20)
        if value() == before:
            return before


def turn_counter(loop):
    """Return a function that says how many turns the loop has made."""
    if hasattr(loop, "metrics"):
        return lambda: loop.metrics().turns
    made = 0
    select = loop._selector.select

    def counted(timeout=None):
        nonlocal made
        made += 1
        return select(timeout)

    loop._selector.select = counted
    return lambda: made


def until_waiting(thread):
    """Wait until another thread waits in the kernel for anything but a lock, as an idle loop does.

    A system that does not say which call a thread is in, only that it sleeps, may let the caller go on earlier.
    """
    deadline = time.monotonic() + PATIENCE_S
    while not _waits(thread.native_id):
        assert time.monotonic() < deadline, f"{thread} never waited"
        time.sleep(0.001)


def _waits(native_id):
    task = pathlib.Path("/proc/self/task", str(native_id))
    if task.joinpath("stat").read_text().rpartition(")")[2].split()[0] != "S":
        return False
    try:
        call = task.joinpath("syscall").read_text().split()[0]
    except OSError:
        return True
    # futex(2) on x86-64 and aarch64: the GIL.
    return call not in ("running", "202" if os.uname().machine == "x86_64" else "98")


async def until(condition, what="the condition"):
    """Wait until `condition()` is true; give up loudly after PATIENCE_S."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come true within {PATIENCE_S} s")
        await asyncio.sleep(0.001)


@functools.cache
def port_numbers():
    """Return an endless iterator of numbers below those that the system gives away: a thousand for each process of pytest-xdist.

    They begin at different places, for whoever runs the tests twice at once. Where the system gives them away too, it is asked.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    first = 20_000 + 1000 * (worker % 12)
    lowest = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    if first + 1000 > lowest:
        return itertools.repeat(0)
    return (first + (os.getpid() + number) % 1000 for number in itertools.count())


def free_port():
    """Return a port that was free a moment ago. Programs that are told a number, and do not say what they got, need one."""
    for number in itertools.islice(port_numbers(), 1000):
        with socket.socket() as sock, contextlib.suppress(OSError):
            sock.bind((HOST, number))
            return sock.getsockname()[1]
    raise RuntimeError("no port is free")


def tcp_listener(host=HOST, backlog=128):
    """Return a listening, non-blocking TCP socket on a free port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.bind((host, 0))
    listener.listen(backlog)
    listener.setblocking(False)
    return listener


def tcp_pair():
    """Return two connected, non-blocking TCP sockets on the loopback interface."""
    with socket.create_server((HOST, 0)) as listener:
        first = socket.create_connection(listener.getsockname())
        second, _ = listener.accept()
    first.setblocking(False)
    second.setblocking(False)
    return first, second


def reset(sock):
    """Close the socket so that its peer gets a RST."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def has_ipv6():
    """Return whether the loopback interface speaks IPv6."""
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


async def receive_exactly(loop, sock, count):
    """Read exactly `count` bytes from a non-blocking socket."""
    data = bytearray()
    while len(data) < count:
        chunk = await loop.sock_recv(sock, min(count - len(data), 1 << 20))
        assert chunk, f"the peer hung up after {len(data)} of {count} bytes"
        data += chunk
    return bytes(data)


async def receive_all(loop, sock):
    """Read from a non-blocking socket until its peer hangs up."""
    data = bytearray()
    while chunk := await loop.sock_recv(sock, 1 << 20):
        data += chunk
    return bytes(data)


class Recorder(asyncio.Protocol):
    """Writes down each callback as a tuple in `events`; `lost` is set to True at the end of the connection."""

    def __init__(self, keep_open=None):
        self.events = []
        self.data = bytearray()
        self.transport = None
        self.lost = False
        self.error = None
        self.keep_open = keep_open

    @property
    def names(self):
        return [event[0] for event in self.events]

    def connection_made(self, transport):
        self.transport = transport
        self.events.append(("connection_made",))

    def data_received(self, data):
        self.data += data
        self.events.append(("data_received", data))

    def eof_received(self):
        self.events.append(("eof_received",))
        return self.keep_open

    def pause_writing(self):
        self.events.append(("pause_writing",))

    def resume_writing(self):
        self.events.append(("resume_writing",))

    def connection_lost(self, error):
        self.events.append(("connection_lost", error))
        self.error = error
        self.lost = True


class BufferedRecorder(asyncio.BufferedProtocol):
    """The same for a protocol that provides its own buffer."""

    def __init__(self, size=65536, keep_open=None):
        self.events = []
        self.data = bytearray()
        self.buffer = bytearray(size)
        self.transport = None
        self.lost = False
        self.error = None
        self.keep_open = keep_open

    names = Recorder.names
    connection_made = Recorder.connection_made
    eof_received = Recorder.eof_received
    pause_writing = Recorder.pause_writing
    resume_writing = Recorder.resume_writing
    connection_lost = Recorder.connection_lost

    def get_buffer(self, sizehint):
        self.events.append(("get_buffer", sizehint))
        return self.buffer

    def buffer_updated(self, count):
        self.events.append(("buffer_updated", count))
        self.data += self.buffer[:count]


class Echo(asyncio.Protocol):
    """Sends back what it receives."""

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.transport.write(data)


def released_view():
    """Return a memoryview that can no longer be used."""
    view = memoryview(b"released")
    view.release()
    return view


async def attach(loop, protocol):
    """Put a transport for `protocol` on one end of a fresh TCP connection; return (transport, the other end's socket)."""
    ours, peer = tcp_pair()
    transport, _ = await loop.connect_accepted_socket(lambda: protocol, ours)
    return transport, peer


def keep_receive_buffer_small(peer):
    """Bound what the kernel takes for a peer that doesn't read. Otherwise the buffer may grow to tens of megabytes."""
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)


def unlogged(stderr):
    """Return a child's stderr without debug mode's log of slow callbacks: on a busy machine any callback may be slow."""
    return "".join(line for line in stderr.splitlines(True) if not line.startswith("Executing <"))


def run_child(source, arm, *arguments, env=None, python_flags=(), **options):
    """Run Python source in a child process, with `new_loop` ready to make a loop of this arm.

    Return the subprocess.CompletedProcess, with text output, from which `unlogged` has taken what it takes.
    """
    with start_child(source, arm, *arguments, env=env, python_flags=python_flags, **options) as process:
        stdout, stderr = process.communicate(timeout=PATIENCE_S)
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, unlogged(stderr))


def address_space():
    """Return the bytes that this process has mapped or reserved."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[0]) * resource.getpagesize()


def limit_address_space(byte_count=resource.RLIM_INFINITY):
    """Let this process map and reserve at most `byte_count` bytes; without an argument, any number again."""
    resource.setrlimit(resource.RLIMIT_AS, (byte_count, resource.RLIM_INFINITY))


def needs_seccomp():
    """Skip where this kernel or container has no seccomp filters to refuse io_uring with."""
    if ctypes.CDLL(None).prctl(21, 0, 0, 0, 0) < 0:
        _skip("the kernel has no seccomp, prctl(PR_GET_SECCOMP) fails")


# Of linux/filter.h and linux/seccomp.h: instructions, and what a filter returns.
LOAD_WORD, JUMP_EQUAL, RETURN = 0x20, 0x15, 0x06
SECCOMP_KILL, SECCOMP_FAIL, SECCOMP_ALLOW = 0x80000000, 0x00050000, 0x7FFF0000


def install_seccomp(*instructions):
    """Install a seccomp filter for this thread and what it starts; an instruction is (code, jump if true, jump if false, value)."""

    class Instruction(ctypes.Structure):
        _fields_ = (("code", ctypes.c_uint16), ("jt", ctypes.c_uint8), ("jf", ctypes.c_uint8), ("k", ctypes.c_uint32))

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_uint16), ("filter", ctypes.POINTER(Instruction)))

    array = (Instruction * len(instructions))(*(Instruction(*each) for each in instructions))
    program = Program(len(instructions), array)
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0, "PR_SET_NO_NEW_PRIVS"
    assert libc.prctl(22, 2, ctypes.byref(program), 0, 0) == 0, f"PR_SET_SECCOMP: errno {ctypes.get_errno()}"


def refuse_io_uring(number, *calls):
    """Let calls, io_uring_setup by default, fail with this errno in this process from now on, by a seccomp filter.

    None kills the process instead.
    """
    # The numbers of new calls are the same on all machines.
    numbers = {"io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "epoll_pwait2": 441}
    # aarch64 has only the second of these, and the C library calls it for the first.
    epoll_wait = {"x86_64": (232, 281), "aarch64": (22,)}[platform.machine()]
    refused = []
    for call in calls or ("io_uring_setup",):
        refused.extend(epoll_wait if call == "epoll_wait" else [numbers[call]])
    install_seccomp(
        (LOAD_WORD, 0, 0, 0),
        *((JUMP_EQUAL, len(refused) - index, 0, value) for index, value in enumerate(refused)),
        (RETURN, 0, 0, SECCOMP_ALLOW),
        (RETURN, 0, 0, SECCOMP_KILL if number is None else SECCOMP_FAIL | number),
    )


def heed_interrupts():
    """Let SIGINT interrupt this process, and so its children: a shell starts background jobs with it ignored, and children inherit that.

    A `preexec_fn` could do it for a child alone. But then Python forks, and copies the page tables of a large process for each child.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)


def forbid_sleep():
    """Let the kernel kill this process if this thread sleeps for a time from now on. Locks and the GIL may be waited for."""
    # nanosleep, clock_nanosleep, poll, ppoll, select, pselect6, sched_yield: asm/unistd_64.h, asm-generic/unistd.h.
    calls = {"x86_64": (35, 230, 7, 271, 23, 270, 24), "aarch64": (101, 115, 73, 72, 124)}[os.uname().machine]
    install_seccomp(
        (LOAD_WORD, 0, 0, 0),
        *((JUMP_EQUAL, left, 0, call) for left, call in zip(reversed(range(1, len(calls) + 1)), calls, strict=True)),
        (RETURN, 0, 0, SECCOMP_ALLOW),
        (RETURN, 0, 0, SECCOMP_KILL),
    )


@contextlib.contextmanager
def start_child(source, arm, *arguments, env=None, python_flags=(), **options):
    """Start a child as `run_child` does, but yield the running subprocess.Popen; it is killed if it outlives the context."""
    preamble = f"import asyncio, os, signal, sys, support\nnew_loop = support.loop_factory({arm!r})\n"
    path = os.pathsep.join(filter(None, [os.path.dirname(__file__), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, **(env or {})}
    environment = {name: value for name, value in environment.items() if value is not None}
    command = [sys.executable, *python_flags, "-c", preamble + textwrap.dedent(source), *arguments]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


class BackgroundThread(threading.Thread):
    """A thread that hands its exception to whoever joins it through `result()`."""

    def __init__(self, function, *arguments):
        super().__init__(daemon=True)
        self._function, self._arguments = function, arguments
        self._value = self._error = None
        self.start()

    def run(self):
        try:
            self._value = self._function(*self._arguments)
        except BaseException as error:
            self._error = error

    def result(self):
        self.join(PATIENCE_S)
        assert not self.is_alive(), "the thread did not end"
        error, self._error = self._error, None
        if error is not None:
            raise error
        return self._value


def run_a_loop(arm):
    """Let a loop of this arm echo something to itself; "echoed". For child processes that import this module."""

    class Echo(asyncio.Protocol):
        def connection_made(self, transport):
            self.transport = transport

        def data_received(self, data):
            self.transport.write(data)

    async def main():
        server = await asyncio.get_running_loop().create_server(Echo, HOST, 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"echoed")
        data = await reader.readexactly(6)
        writer.close()
        await writer.wait_closed()
        server.close()
        return data.decode()

    with asyncio.Runner(loop_factory=loop_factory(arm)) as runner:
        return runner.run(main())


def run_a_loop_and_tell(arm, sender):
    """Send the result of `run_a_loop` to the sending end of a pipe of multiprocessing."""
    sender.send(run_a_loop(arm))
