"""Out of memory: the loop raises `MemoryError`, reports it, or continues without; it never panics and never ends the process.

In each scenario one allocation of Python's fails, each in turn, in a separate process. What the program does afterwards isn't
checked: asyncio loses callbacks then, and so does ringloop. asyncio has no panics to compare with. Allocations of Rust's fail where
the system refuses memory; see also limited_memory.py.
"""

import textwrap

import pytest

from support import examples, run_child

pytestmark = pytest.mark.exact

SCENARIOS = {
    "streams": """
        async def body():
            async def serve(reader, writer):
                while line := await reader.readline():
                    writer.write(line)
                    await writer.drain()
                writer.close()

            server = await asyncio.start_server(serve, "127.0.0.1", 0)
            fail()
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            for _ in range(2):
                writer.write(b"line\\n")
                writer.writelines([b"a", bytearray(b"b"), memoryview(b"\\n")])
                await reader.readline()
                await reader.readline()
            writer.close()
            await writer.wait_closed()
            server.close()
            await turns()
    """,
    "connecting": """
        async def body():
            with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as unused:
                unused.bind(("127.0.0.1", 0))
                address = listener.getsockname()
                fail()
                transport, _ = await loop.create_connection(asyncio.Protocol, *address)
                transport.get_extra_info("peername")
                transport.close()
                for count in range(1, 4):
                    task = loop.create_task(loop.create_connection(asyncio.Protocol, *address))
                    for _ in range(count):
                        await asyncio.sleep(0)
                    task.cancel()
                    await asyncio.wait([task])
                for refused in (unused.getsockname(), ("255.255.255.255", 1)):
                    try:
                        await loop.create_connection(asyncio.Protocol, *refused)
                    except OSError as error:
                        str(error)
                await turns()
    """,
    "a protocol": """
        class Protocol(asyncio.Protocol):
            def connection_made(self, transport):
                self.transport = transport

            def data_received(self, data):
                self.transport.write(data)

        async def body():
            ours, peer = nonblocking_pair()
            fail()
            transport, _ = await loop.create_connection(Protocol, sock=ours)
            peer.send(b"x" * 100)
            await turns()
            peer.recv(1000)
            repr(transport), transport.get_write_buffer_size(), transport.get_write_buffer_limits()
            transport.pause_reading()
            transport.resume_reading()
            transport.write(bytearray(10_000_000))
            transport.writelines([b"x" * 10_000, memoryview(b"x" * 10_000)])
            transport.set_write_buffer_limits(0)
            await turns()
            peer.close()
            await turns()
            transport.write(b"x")
            transport.abort()
    """,
    "a buffered protocol": """
        class Protocol(asyncio.BufferedProtocol):
            def connection_made(self, transport):
                self.transport = transport
                self.buffer = bytearray(1000)

            def get_buffer(self, hint):
                return self.buffer

            def buffer_updated(self, count):
                self.transport.write(self.buffer[:count])

        async def body():
            ours, peer = nonblocking_pair()
            await loop.create_connection(Protocol, sock=ours)
            fail()
            peer.send(b"x" * 700)
            await turns()
            peer.close()
            await turns()
    """,
    "sockets": """
        async def body():
            ours, peer = nonblocking_pair()
            fail()
            received = asyncio.create_task(loop.sock_recv(ours, 100), name="receiver")
            await asyncio.sleep(0)
            await loop.sock_sendall(peer, b"x" * 300)
            await received
            await loop.sock_recv(ours, 100)
            await loop.sock_recv_into(ours, bytearray(300))
            repr(loop.sock_recv(ours, 1))
    """,
    "datagrams": """
        class Protocol(asyncio.DatagramProtocol):
            def connection_made(self, transport):
                self.transport = transport

            def datagram_received(self, data, address):
                self.transport.sendto(data, address)

        async def body():
            transport, _ = await loop.create_datagram_endpoint(Protocol, local_addr=("127.0.0.1", 0))
            sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            sock.bind(("127.0.0.1", 0))
            sock.setblocking(False)
            address = transport.get_extra_info("sockname")
            fail()
            await loop.sock_sendto(sock, b"x", address)
            await loop.sock_recvfrom(sock, 1000)
            await loop.sock_sendto(sock, b"x", address)
            await loop.sock_recvfrom_into(sock, bytearray(1000))
            repr(transport)
            second, _ = await loop.create_datagram_endpoint(Protocol, remote_addr=address)
            transport.close()
            await turns()
            second.sendto(b"x")
            await turns()
            second.abort()
    """,
    "scheduling": """
        async def body():
            fail()
            handles = [loop.call_later(number / 10_000, len, ()) for number in range(4)]
            repr(handles[0]), handles[0].when(), handles[1] < handles[2]
            handles[0].cancel()
            handles.append(loop.call_soon_threadsafe(lambda: 1 / 0))
            loop.call_at(loop.time(), len, ())
            await asyncio.create_task(asyncio.sleep(0.001), name="sleeper")
            repr(loop)
            loop.get_debug(), loop.is_running(), loop.is_closed()
            loop.backend, loop.backend_reason, loop.busy_poll, loop.metrics()
    """,
    "readers": """
        async def body():
            ours, peer = nonblocking_pair()
            peer.send(b"x")
            fail()
            loop.add_reader(ours, len, ())
            loop.add_writer(ours, len, ())
            await turns()
            loop.remove_reader(ours)
            loop.remove_writer(ours)
    """,
    "wrong arguments": """
        async def body():
            ours, peer = nonblocking_pair()
            transport, _ = await loop.create_connection(asyncio.Protocol, sock=ours)
            wrong = [
                lambda: transport.write("text"),
                lambda: transport.writelines(None),
                lambda: transport.writelines(["text"]),
                lambda: transport.set_write_buffer_limits(-1),
                lambda: loop.call_soon(),
                lambda: loop.call_soon(len, nonsense=1),
                lambda: loop.call_later(None, len),
                lambda: loop.call_at("now", len),
                lambda: loop.create_task(nonsense=1),
                lambda: loop.add_reader(-1, len),
                lambda: loop.add_reader(object(), len),
                lambda: loop.add_reader(ours, len),
                lambda: loop.remove_writer(10**30),
                lambda: loop.sock_recv(peer, "many"),
            ]
            fail()
            for call in wrong:
                with contextlib.suppress(Exception):
                    call()
    """,
    "a loop": """
        async def body():
            fail()
            other = new_loop()
            other.call_soon(len, ())
            other.close()
            with contextlib.suppress(ValueError):
                type(other)(backend="nonsense")
            with contextlib.suppress(ValueError):
                type(other)(busy_poll="nonsense")
            with contextlib.suppress(RuntimeError):
                other.call_soon(len, ())
    """,
    "a service": """
        async def body():
            from ringloop import _core
            from ringloop.http._config import HttpSettings

            fail()
            settings, options = HttpSettings(root_path="/r"), {"state": {}, "headers": [(b"server", b"x"), (b"a", b"b")]}
            service = _core.HttpService(loop, len, settings, access_log=len, forwarded=len, **options)
            ours, peer = nonblocking_pair()
            protocol = service.protocol()
            transport, _ = await loop.create_connection(lambda: protocol, sock=ours)
            repr(protocol), service.connections, service.requests, service.active
            service.shut_down()
            service.disconnect()
            service.abort()
            await service.wait_closed()
    """,
    "requests": """
        async def body():
            from ringloop import _core
            from ringloop.http._config import HttpSettings

            async def application(scope, receive, send):
                body = b""
                if scope["method"] == "POST":
                    while (message := await receive())["type"] == "http.request":
                        body += message["body"]
                        if not message["more_body"]:
                            break
                if scope["path"] == "/later":
                    await asyncio.sleep(0)
                await send({"type": "http.response.start", "status": 200, "headers": [[b"a", bytearray(b"b")]]})
                await send({"type": "http.response.body", "body": body or b"x" * 10_000, "more_body": True})
                await send({"type": "http.response.body"})

            settings, options = HttpSettings(root_path="/r"), {"state": {}, "headers": [(b"server", b"x"), (b"a", b"b")]}
            options |= {"forwarded": len, "access_log": lambda *arguments: None}
            service = _core.HttpService(loop, application, settings, **options)
            ours, peer = nonblocking_pair()
            transport, _ = await loop.create_connection(service.protocol, sock=ours)
            get = b"GET /a%20b?c HTTP/1.1\\r\\nHost: x\\r\\nX-Forwarded-For: y\\r\\nX-Other: z\\r\\n\\r\\n"
            fail()
            peer.send(get + get)
            await turns()
    """,
    "bodies of requests": """
        async def body():
            from ringloop import _core
            from ringloop.http._config import HttpSettings

            async def application(scope, receive, send):
                body = b""
                if scope["method"] == "POST":
                    while (message := await receive())["type"] == "http.request":
                        body += message["body"]
                        if not message["more_body"]:
                            break
                if scope["path"] == "/later":
                    await asyncio.sleep(0)
                await send({"type": "http.response.start", "status": 200, "headers": [[b"a", bytearray(b"b")]]})
                await send({"type": "http.response.body", "body": body or b"x" * 10_000, "more_body": True})
                await send({"type": "http.response.body"})

            service = _core.HttpService(loop, application, HttpSettings())
            ours, peer = nonblocking_pair()
            transport, _ = await loop.create_connection(service.protocol, sock=ours)
            post = b"POST /later HTTP/1.1\\r\\nHost: x\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n1\\r\\na\\r\\n"
            fail()
            peer.send(post)
            await turns()
            peer.send(b"2\\r\\nbc\\r\\n0\\r\\n\\r\\n")
            await turns()
            peer.send(b"nonsense\\r\\n\\r\\n")
            await turns()
    """,
    "a file": """
        async def body():
            ours, peer = nonblocking_pair()
            transport, _ = await loop.create_connection(asyncio.Protocol, sock=ours)
            with tempfile.TemporaryFile() as file:
                file.write(b"x" * 1000)
                file.seek(0)
                fail()
                await loop.sendfile(transport, file)
    """,
}

# In debug mode each handle has a stack trace. CPython 3.12 crashes if there is no memory for one, on asyncio's loop as well.
NO_DEBUG_MODE = {"PYTHONASYNCIODEBUG": None, "PYTHONDEVMODE": None}
# More than the loop makes in most of them.
ALLOCATIONS = 120

PROGRAM = """
    import _testcapi, contextlib, socket, tempfile

    def nonblocking_pair():
        pair = socket.socketpair()
        for sock in pair:
            sock.setblocking(False)
        return pair

    async def turns():
        for _ in range(3):
            await asyncio.sleep(0)

    def run(number):
        # Whatever comes of it; how the process ends is looked at.
        global loop, fail
        loop = new_loop()
        loop.set_exception_handler(lambda loop, context: None)
        fail = lambda: None
        if number is not None:
            # Where the failure makes a callback vanish, nothing else ends the run.
            loop.call_later(0.05, loop.stop)
            fail = lambda: _testcapi.set_nomemory(number, number + 1)
        try:
            task = loop.create_task(body())
            task.add_done_callback(lambda task: loop.stop())
            loop.run_forever()
            _testcapi.remove_mem_hooks()
            return task.exception() if task.done() else "unfinished"
        except Exception as error:
            _testcapi.remove_mem_hooks()
            return error

{scenario}
    # What is imported at its first use is, once and for all.
    error = run(None)
    assert error is None, repr(error)
    loop.close()
    for number in {allocations}:
        child = os.fork()
        if child == 0:
            status = 99
            try:
                status = 1 if run(number) else 0
            finally:
                os._exit(status)
        status = os.waitpid(child, 0)[1]
        if os.waitstatus_to_exitcode(status) not in (0, 1):
            print(number, os.waitstatus_to_exitcode(status))
    print("done")
"""


@pytest.mark.many_cases(short=6)
@pytest.mark.examples
@pytest.mark.ringloop_only
@pytest.mark.without_debug_mode
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda name: name.replace(" ", "-"))
def test_an_allocation_that_fails_is_no_panic(arm, scenario):
    pytest.importorskip("_testcapi", reason="no _testcapi, which makes allocations fail")
    body = textwrap.indent(textwrap.dedent(SCENARIOS[scenario]), "    ")
    numbers = range(0, ALLOCATIONS, ALLOCATIONS // examples(ALLOCATIONS))
    program = PROGRAM.replace("{allocations}", str(numbers)).replace("{scenario}", body)
    child = run_child(program, arm, env=NO_DEBUG_MODE)
    assert (child.returncode, child.stdout) == (0, "done\n"), child.stderr[-3000:]
    assert "panicked" not in child.stderr
    assert "PanicException" not in child.stderr


@pytest.mark.many_cases(short=2)
@pytest.mark.without_debug_mode
@pytest.mark.parametrize(
    "schedule", ["loop.call_soon", "functools.partial(loop.call_later, 0)", "loop.call_soon_threadsafe"]
)
@pytest.mark.parametrize("left", [100_000, 10_000_000])
def test_what_cannot_be_scheduled_raises_and_the_rest_runs(arm, schedule, left):
    program = """
        import functools

        def count():
            global counted
            counted += 1

        scheduled = counted = 0
        loop = new_loop()
        loop.run_until_complete(asyncio.sleep(0))
        schedule = SCHEDULE
        # Small objects have an allocator of their own, which then has some: what fails first is a queue that must grow.
        spare = [bytes(size) for size in range(0, 480, 16) for _ in range(10_000)]
        del spare[::2]
        support.limit_address_space(support.address_space() + int(sys.argv[1]))
        try:
            while True:
                schedule(count)
                scheduled += 1
        except MemoryError:
            support.limit_address_space()
        loop.call_later(0.01, loop.stop)
        loop.run_forever()
        assert scheduled == counted > 1000, (scheduled, counted)
        print("done")
    """
    child = run_child(program.replace("SCHEDULE", schedule), arm, str(left), env=NO_DEBUG_MODE)
    assert (child.returncode, child.stdout) == (0, "done\n"), child.stderr[-3000:]
