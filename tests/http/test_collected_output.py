"""Output that is collected during a turn and written at its end: how it saves system calls, and that nothing is lost."""

import asyncio
import socket
import sys
import time

import pytest

import http2
import support
from serving import Server, answer, run
from test_http1 import GET, LAST
from test_pathsend import FileServer, make, send_file
from websocket_client import WebSocketServer, application

pytestmark = pytest.mark.ringloop_only

CHUNKS = [b"%d " % number * 10 for number in range(20)]
# More than the sockets' buffers hold.
FAR_TOO_MUCH = 64 << 20


async def begin(send, *fields):
    await send({"type": "http.response.start", "status": 200, "headers": list(fields)})


async def part(send, body, more=True):
    await send({"type": "http.response.body", "body": body, "more_body": more})


async def stream(send, chunks=CHUNKS):
    await begin(send)
    for chunk in chunks:
        await part(send, chunk)
    await part(send, b"", more=False)


def system_calls():
    return asyncio.get_running_loop().metrics().system_calls


class Raw:
    """A client whose socket an application can read without a turn of the loop."""

    def __init__(self, server):
        self.sock = socket.create_connection((support.HOST, server.port))
        self.sock.settimeout(support.PATIENCE_S)
        self.received = b""

    def until(self, end):
        while end not in self.received:
            data = self.sock.recv(65536)
            assert data, "the connection has ended"
            self.received += data
        return self.received

    def rest(self):
        while data := self.sock.recv(65536):
            self.received += data
        return self.received

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.sock.close()


def serve_raw(arm, loop, body, request=LAST):
    """Run `body(client, send)` as the application of one request; return what the client gets."""

    async def application(scope, receive, send):
        await body(client, send)
        is_over.set()

    async def test():
        nonlocal client, is_over
        is_over = asyncio.Event()
        async with Server(arm, application) as server:
            with Raw(server) as client:
                client.sock.sendall(request)
                await is_over.wait()
                return await asyncio.to_thread(client.rest)

    client = is_over = None
    return run(loop, test())


# -- What is saved ----------------------------------------------------------------------------------------------------


async def fewest_calls(attempt):
    """Return the fewest system calls of several attempts: after a pause of the process, what follows is written at once."""
    return min([await attempt() for _ in range(20)])


def test_chunks_of_one_turn(arm, loop, contexts):
    calls = []

    async def application(scope, receive, send):
        before = system_calls()
        await stream(send)
        calls.append(system_calls() - before)

    async def test(contexts):
        async with FileServer(arm, application, contexts) as server, server.client() as client:

            async def attempt():
                client.write(GET)
                _, _, body = await client.response()
                assert body == b"".join(CHUNKS)
                return calls.pop()

            return await fewest_calls(attempt)

    assert run(loop, test(None)) == 2
    assert run(loop, test(contexts)) == 2


def test_chunks_of_a_task_that_waits(arm, loop):
    calls = []

    async def application(scope, receive, send):
        await begin(send)
        await part(send, b"first")
        before = system_calls()
        for chunk in CHUNKS:
            await part(send, chunk)
        calls.append(system_calls() - before)
        await asyncio.wait([asyncio.ensure_future(receive())])
        await receive()

    async def test():
        async with Server(arm, application) as server:

            async def attempt():
                async with server.client() as client:
                    client.write(GET)
                    await client.reader.readuntil(CHUNKS[-1])
                return calls.pop()

            return await fewest_calls(attempt)

    assert run(loop, test()) == 0


def test_messages_of_a_websocket(arm, loop):
    calls = []

    async def body(receive, send):
        while (await receive())["type"] == "websocket.receive":
            before = system_calls()
            for number in range(20):
                await send({"type": "websocket.send", "text": str(number)})
            calls.append(system_calls() - before)

    async def test():
        async with WebSocketServer(arm, application(body)) as server, server.websocket() as client:

            async def attempt():
                client.send("go")
                assert [await client.message() for _ in range(20)] == [str(number) for number in range(20)]
                return calls.pop()

            return await fewest_calls(attempt)

    assert run(loop, test()) == 1


def test_streams_of_http2_that_answer_in_one_turn(arm, loop):
    calls = []
    gates = []

    async def application(scope, receive, send):
        gates.append(gate := asyncio.get_running_loop().create_future())
        await gate
        before = system_calls()
        await answer(send, b"hello")
        calls.append(system_calls() - before)

    async def test():
        async with http2.Server(arm, application) as server, server.http2() as client:

            async def attempt():
                streams = [client.ask() for _ in range(10)]
                while len(gates) < 10:
                    await asyncio.sleep(0)
                for gate in gates:
                    gate.set_result(None)
                gates.clear()
                for stream in streams:
                    assert (await client.response(stream)).body == b"hello"
                counted = sum(calls)
                calls.clear()
                return counted

            return await fewest_calls(attempt)

    assert run(loop, test()) == 1


# -- When it goes out -------------------------------------------------------------------------------------------------


def test_the_first_bytes_of_a_turn_go_out_at_once(arm, loop):
    async def body(client, send):
        await begin(send)
        await part(send, b"first")
        client.until(b"first")
        await part(send, b"second", more=False)

    assert b"second" in serve_raw(arm, loop, body)


def test_the_end_of_a_response_goes_out_at_once(arm, loop):
    async def body(client, send):
        await begin(send)
        await part(send, b"first")
        await part(send, b"second")
        await part(send, b"third", more=False)
        client.until(b"third")

    assert serve_raw(arm, loop, body).endswith(b"0\r\n\r\n")


def test_what_comes_after_a_pause_goes_out_at_once(arm, loop):
    """Of an application that blocks the loop while it streams."""

    async def body(client, send):
        await begin(send)
        for chunk in (b"first", b"second", b"third"):
            await part(send, chunk)
            time.sleep(0.01)  # The application takes the time: nothing can be waited for.
            if chunk != b"first":
                client.until(chunk)
        await part(send, b"", more=False)

    assert serve_raw(arm, loop, body).endswith(b"0\r\n\r\n")


def test_much_goes_out_at_once(arm, loop):
    """At most 64 KiB are kept. It may be less: after a pause of the process, what there is goes out at once."""
    sent = 200 * 1024 * b"x"

    async def body(client, send):
        await begin(send)
        for _ in range(200):
            await part(send, 1024 * b"x")
        client.until((200 - 64) * 1024 * b"x")
        await part(send, b"large" + 10_000 * b"y")
        client.until(10_000 * b"y")
        await part(send, b"", more=False)

    # HTTP/1.0 has no chunks.
    received = serve_raw(arm, loop, body, b"GET / HTTP/1.0\r\n\r\n")
    assert received.endswith(b"\r\n\r\n" + sent + b"large" + 10_000 * b"y")


@pytest.mark.parametrize("way", ["raise", "return"])
def test_an_application_that_ends_in_the_middle(arm, loop, errors, way):
    async def application(scope, receive, send):
        await begin(send)
        for chunk in CHUNKS:
            await part(send, chunk)
        if way == "raise":
            raise support.Oops

    async def test():
        async with Server(arm, application) as server:
            return await server.ask(GET)

    assert run(loop, test()).endswith(CHUNKS[-1] + b"\r\n")
    assert len(errors()) == 1


@pytest.mark.parametrize("way", ["exit", "stop"])
def test_a_loop_that_ends_in_the_middle_of_a_response(arm, new_loop, way):
    loop = new_loop()

    async def application(scope, receive, send):
        await begin(send)
        await gate
        for chunk in CHUNKS:
            await part(send, chunk)
        loop.stop()
        await receive()
        await receive()

    async def start(server):
        await server.__aenter__()
        client = Raw(server)
        client.sock.sendall(GET)
        while not server.service.active:
            await asyncio.sleep(0)
        return client

    gate = loop.create_future()
    server = Server(arm, application)
    with loop.run_until_complete(start(server)) as client:
        gate.set_result(None)
        if way == "exit":
            loop.call_soon(sys.exit)
            with pytest.raises(SystemExit):
                loop.run_forever()
        else:
            loop.run_forever()
        client.until(CHUNKS[-1])
        loop.run_until_complete(server.__aexit__())


def test_a_server_that_aborts(arm, loop):
    async def application(scope, receive, send):
        await begin(send)
        for chunk in CHUNKS:
            await part(send, chunk)
        server.service.abort()

    server = None

    async def test():
        nonlocal server
        async with Server(arm, application) as server:
            with Raw(server) as client:
                client.sock.sendall(GET)
                return await asyncio.to_thread(client.rest)

    assert CHUNKS[-1] in run(loop, test())


# -- Order, and flow control ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1000, 1_000_000])
def test_a_file_after_chunks(arm, loop, contexts, tmp_path, size):
    """In pipelined responses nothing overtakes."""
    path, content = make(tmp_path, size)

    async def application(scope, receive, send):
        if scope["path"] == "/file":
            await send_file(send, path)
        else:
            await stream(send)

    async def test(contexts):
        async with FileServer(arm, application, contexts) as server, server.client() as client:
            client.write(GET + GET.replace(b"/ ", b"/file ") + GET + GET.replace(b"/ ", b"/file "))
            for _ in range(2):
                assert (await client.response())[2] == b"".join(CHUNKS)
                assert (await client.response())[2] == content

    run(loop, test(None))
    run(loop, test(contexts))


@pytest.mark.many_cases(short=2)
@pytest.mark.parametrize("size", [100, 5000, 9000, 100_000])
def test_send_waits_for_a_client_that_does_not_read(arm, loop, contexts, size):
    sent = 0

    async def application(scope, receive, send):
        nonlocal sent
        await begin(send, (b"content-length", str(FAR_TOO_MUCH).encode()))
        while sent < FAR_TOO_MUCH:
            await part(send, size * b"x")
            sent += size

    async def test(contexts):
        nonlocal sent
        sent = 0
        async with FileServer(arm, application, contexts, timeout_write=None) as server, server.client() as client:
            client.writer.transport.pause_reading()
            client.write(GET)
            while server.service.active == 0:
                await asyncio.sleep(0)
            assert await support.standstill(lambda: sent) < FAR_TOO_MUCH
            client.reset()
            while server.service.active:
                await asyncio.sleep(0)

    run(loop, test(None))
    run(loop, test(contexts))


def test_ten_thousand_tiny_chunks(arm, loop, contexts):
    async def application(scope, receive, send):
        await stream(send, [b"%d," % number for number in range(10_000)])

    async def test(contexts):
        async with FileServer(arm, application, contexts) as server, server.client() as client:
            client.write(GET)
            assert (await client.response())[2] == b"".join(b"%d," % number for number in range(10_000))

    run(loop, test(None))
    run(loop, test(contexts))


def test_chunks_of_all_sizes(arm, loop, contexts):
    sizes = [0, 1, 8191, 8192, 8193, 0, 65535, 65536, 65537, 1, 0, 300_000, 1, 1]
    chunks = [bytes([65 + index]) * size for index, size in enumerate(sizes)]

    async def application(scope, receive, send):
        await stream(send, chunks if scope["method"] != "POST" else reversed(chunks))

    async def test(contexts):
        async with FileServer(arm, application, contexts) as server, server.client() as client:
            head = GET.replace(b"GET", b"HEAD")
            client.write(head + GET + head + GET.replace(b"GET", b"POST"))
            for body in (b"".join(chunks), b"".join(reversed(chunks))):
                assert (await client.response(is_head=True))[2] == b""
                assert (await client.response())[2] == body

    run(loop, test(None))
    run(loop, test(contexts))


def test_a_client_that_resets_in_the_middle(arm, loop, errors):
    ended = []

    async def application(scope, receive, send):
        await begin(send)
        for chunk in CHUNKS:
            await part(send, chunk)
        client.reset()
        for chunk in CHUNKS:
            await part(send, chunk)
        while (await receive())["type"] != "http.disconnect":
            pass
        for chunk in CHUNKS:
            await part(send, chunk)
        ended.append(True)

    client = None

    async def test():
        nonlocal client
        async with Server(arm, application) as server, server.client() as client:
            client.write(GET)
            while not ended:
                await asyncio.sleep(0)

    run(loop, test())


def test_collected_bytes_are_counted(arm, loop):
    async def application(scope, receive, send):
        await stream(send)

    async def test():
        async with Server(arm, application) as server:
            received = await server.ask(LAST)
            assert server.service.metrics()["bytes_sent"] == len(received)

    run(loop, test())
