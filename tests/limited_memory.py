"""A process with hardly any memory, again and again: it gets `MemoryError`, never a panic, and never ends otherwise.

Each example is a child process. It serves and uses connections, TLS, files and HTTP while RLIMIT_AS is a few hundred kilobytes above
what it has, or less, and another part of the program has taken what malloc had left. What an operation achieves then isn't checked:
asyncio loses callbacks, too. Where nothing is left at all, CPython itself gives up on some examples ("Cannot recover from
MemoryErrors", or a MemoryError from where no program can catch it); that is not a failure. CPython 3.11 crashes as well: while it
handles an exception and has no memory for a MemoryError, it makes another MemoryError about that, and so on until the stack is full.
"""

import re
import signal
import subprocess
import sys

import support

PROGRAM = '''
import asyncio, contextlib, functools, gc, os, random, ssl, sys, tempfile, warnings
import ringloop, support
from ringloop import files, http
import tls_support

ROUNDS = 25
TASKS = 8
SIZES = (1, 1000, 70_000, 500_000)
warnings.simplefilter("ignore")  # coroutines that found no memory for their task are not awaited
choose = random.Random(int(sys.argv[1]))

async def echo(reader, writer):
    with contextlib.closing(writer), contextlib.suppress(MemoryError, OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()

class Echo(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.transport.write(data)

async def application(scope, receive, send):
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"a", b"b")]})
    await send({"type": "http.response.body", "body": bytes(choose.choice(SIZES))})

async def exchange(reader, writer):
    with contextlib.closing(writer):
        data = bytes(choose.choice(SIZES))
        writer.write(data)
        await reader.readexactly(len(data))

async def use(port):
    await exchange(*await asyncio.open_connection("127.0.0.1", port))

class TlsConnections:
    """Connections that are made while there is memory: CPython 3.11 crashes if OpenSSL has none for a new one."""

    def __init__(self, *address, **tls):
        self.address, self.tls, self.connections = address, tls, []

    async def fill(self):
        while len(self.connections) < TASKS:
            self.connections.append(await asyncio.open_connection(*self.address, **self.tls))

    async def use(self):
        await exchange(*self.connections.pop())

async def request(port):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with contextlib.closing(writer):
        body = bytes(choose.choice(SIZES))
        writer.write(b"POST / HTTP/1.1\\r\\nHost: a\\r\\nConnection: close\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(body) + body)
        await reader.read()

async def copy(path):
    async with files.open(path, "rb") as source, files.open(path + ".copy", "wb") as target:
        while data := await source.read(choose.choice(SIZES)):
            await target.write(data)

async def schedule():
    loop = asyncio.get_running_loop()
    for _ in range(2000):
        loop.call_soon(int)
        loop.call_later(0, int)
        loop.call_soon_threadsafe(int)
    await asyncio.sleep(0)

async def begin(folder):
    """Start servers; return the operations."""
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda loop, context: None)
    path = os.path.join(folder, "file")
    with open(path, "wb") as file:
        file.write(bytes(1_000_000))
    server_context, client_context = tls_support.tls_contexts()
    servers = [
        await asyncio.start_server(echo, "127.0.0.1", 0),
        await loop.create_server(Echo, "127.0.0.1", 0),
        await asyncio.start_server(echo, "127.0.0.1", 0, ssl=server_context),
    ]
    plain, protocol, tls = (server.sockets[0].getsockname()[1] for server in servers)
    connections = TlsConnections("127.0.0.1", tls, ssl=client_context, server_hostname=tls_support.NAME)
    operations = [
        functools.partial(use, plain),
        functools.partial(use, protocol),
        connections.use,
        functools.partial(copy, path),
        schedule,
    ]
    if isinstance(loop, ringloop.EventLoop):
        web = http.Server(http.Config(application, port=0, lifespan="off", log_level="critical"))
        loop.create_task(web.serve())
        while not web.started:
            await asyncio.sleep(0.01)
        operations.append(functools.partial(request, web.servers[0].sockets[0].getsockname()[1]))
    return operations, connections, servers

async def work(operations):
    tasks = [asyncio.ensure_future(choose.choice(operations)()) for _ in range(TASKS)]
    await asyncio.wait(tasks, timeout=3)
    for task in tasks:
        task.cancel()

def run_out_of_memory(loop, operations):
    taken = []
    # CPython 3.11 crashes if not even small objects find memory, which have an allocator of their own.
    spare = [bytes(size) for size in range(16, 480, 16) for _ in range(2000)]
    del spare[::2]
    support.limit_address_space(support.address_space() + choose.choice([0, 100_000, 500_000, 2_000_000]))
    try:
        size = choose.choice([600, 4000, 100_000])
        with contextlib.suppress(MemoryError):
            while True:
                taken.append(bytearray(size))
        del taken[: choose.randrange(60)]
        loop.run_until_complete(work(operations))
    except BaseException:
        pass
    finally:
        taken = None
        support.limit_address_space()

with tempfile.TemporaryDirectory() as folder:
    loop = new_loop()
    operations, connections, servers = loop.run_until_complete(begin(folder))
    loop.run_until_complete(connections.fill())
    for operation in operations:
        loop.run_until_complete(operation())
    for _ in range(ROUNDS):
        loop.run_until_complete(connections.fill())
        run_out_of_memory(loop, operations)
        gc.collect()
    loop.run_until_complete(connections.fill())
    for operation in operations:
        try:
            loop.run_until_complete(asyncio.wait_for(operation(), 10))
        except BaseException as error:
            print("does not work any more:", operation, repr(error), flush=True)
    os._exit(0)
'''
PATIENCE_S = 150
"""More than all rounds take if each of them loses what it waits for."""
CPYTHON_CRASHES = sys.version_info < (3, 12)
NOT_WRONG = "Segmentation fault|.*Cannot recover" if CPYTHON_CRASHES else ".*Cannot recover"
WRONG = re.compile(rf"memory allocation of|panicked at|PanicException|RefCell|Fatal Python error: (?!{NOT_WRONG})")
SIGNALS = {signal.SIGILL, signal.SIGBUS} | (set() if CPYTHON_CRASHES else {signal.SIGSEGV})


def limited_memory(arm, seed):
    """Run one example. Raise AssertionError if it did what no example may do."""
    # With malloc, which a soak uses elsewhere, not even the smallest objects would find memory.
    environment = {"PYTHONASYNCIODEBUG": None, "PYTHONMALLOC": None}
    with support.start_child(PROGRAM, arm, str(seed), env=environment, python_flags=("-X", "faulthandler")) as process:
        try:
            stdout, stderr = process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            stdout, stderr = process.communicate()
    is_wrong = WRONG.search(stderr) or -process.returncode in SIGNALS or "does not work" in stdout
    assert not is_wrong, f"seed {seed} on {arm}: ended with {process.returncode}\n{stdout}{stderr[-4000:]}"
