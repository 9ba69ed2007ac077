"""Responses that are files: ASGI's extension http.response.pathsend."""

import asyncio
import contextlib
import copy
import os
import ssl
import threading

import pytest

import support
from serving import LOGGER, Client, Server, answer, run
from test_http1 import GET, LAST
from test_service import until_closed

pytestmark = pytest.mark.ringloop_only

HEAD = GET.replace(b"GET", b"HEAD", 1)
OLD = b"GET / HTTP/1.0\r\n\r\n"
SMALL, LARGE = 1000, 5_000_000


class FileServer(Server):
    """Serves on TCP, with or without TLS, and checks at its end that no file is left open."""

    def __init__(self, arm, application, contexts=None, **settings):
        super().__init__(arm, application, **settings)
        self.contexts = contexts

    def listening(self):
        return {"ssl": self.contexts[0]} if self.contexts else {}

    @contextlib.asynccontextmanager
    async def client(self):
        options = {"ssl": self.contexts[1], "server_hostname": "localhost"} if self.contexts else {}
        reader, writer = await asyncio.open_connection(support.HOST, self.port, **options)
        client = Client(reader, writer)
        try:
            yield client
        finally:
            with contextlib.suppress(ssl.SSLError):  # The file goes on after the client's end.
                await client.close()


@pytest.fixture(params=["plain", "tls"])
def secured(request, contexts):
    """Return the contexts of server and client, or None."""
    return contexts if request.param == "tls" else None


@pytest.fixture
def folder(tmp_path):
    """Yield a folder whose files nobody has open after the test."""
    yield tmp_path
    assert open_files(tmp_path) == []


def open_files(folder):
    names = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            names.append(os.readlink(f"/proc/self/fd/{number}"))
    return [name for name in names if name.startswith(str(folder))]


def make(folder, size, name="file"):
    """Return a file of this size, and its content."""
    content = os.urandom(size)
    path = folder / name
    path.write_bytes(content)
    return str(path), content


def length(size):
    return (b"content-length", str(size).encode())


async def send_file(send, path, *fields, status=200):
    await send({"type": "http.response.start", "status": status, "headers": list(fields)})
    await send({"type": "http.response.pathsend", "path": path})


def serving_file(path, *fields, status=200):
    async def application(scope, receive, send):
        await send_file(send, path, *fields, status=status)

    return application


async def caught(awaitable):
    """Return the exception of a wait, or None."""
    try:
        await awaitable
    except Exception as error:
        return error


# -- What is sent -----------------------------------------------------------------------------------------------------


def test_the_scope_names_the_extension(arm, loop):
    seen = []

    async def application(scope, receive, send):
        seen.append(copy.deepcopy(scope["extensions"]))
        scope["extensions"]["mine"] = {}
        scope["extensions"]["http.response.pathsend"]["mine"] = 1
        await answer(send)

    async def test():
        async with Server(arm, application) as server:
            await server.ask(GET + LAST)

    run(loop, test())
    assert seen == 2 * [{"http.response.pathsend": {}, "http.response.early_hint": {}}]


@pytest.mark.parametrize("size", [0, 1, SMALL, 16 * 1024, 16 * 1024 + 1, LARGE])
@pytest.mark.parametrize("names_length", [True, False])
def test_a_file(arm, loop, folder, secured, size, names_length):
    """The connection is kept; a length that the application doesn't give is that of the file."""
    path, content = make(folder, size)
    fields = [length(size)] if names_length else []

    async def test():
        async with FileServer(arm, serving_file(path, *fields), secured) as server, server.client() as client:
            client.write(3 * GET)
            for _ in range(3):
                line, received, body = await client.response()
                assert line == "HTTP/1.1 200 OK"
                assert received["content-length"] == str(size)
                assert body == content

    run(loop, test())


def test_a_file_that_does_not_know_its_size(arm, loop, secured):
    """One in /proc is read to its end, whatever a single read gives."""
    path = "/proc/self/smaps"

    async def test():
        async with FileServer(arm, serving_file(path), secured) as server:
            async with server.client() as client:
                client.write(GET)
                _, _, body = await client.response()
            last = body.splitlines()[-1]
            assert len(body) > 20_000
            assert last.startswith(b"VmFlags:"), last

    assert os.stat(path).st_size == 0
    run(loop, test())


def test_a_head(arm, loop, folder, secured):
    path, content = make(folder, SMALL)

    async def test():
        async with FileServer(arm, serving_file(path, length(SMALL)), secured) as server, server.client() as client:
            client.write(HEAD)
            assert (await client.response(is_head=True))[1]["content-length"] == str(SMALL)
            client.write(GET)
            assert (await client.response())[2] == content

    run(loop, test())


@pytest.mark.parametrize("status", [204, 205, 304])
@pytest.mark.parametrize("size", [0, SMALL, LARGE])
def test_a_status_without_a_body(arm, loop, folder, secured, status, size, errors):
    path, _ = make(folder, size)

    async def test():
        async with FileServer(arm, serving_file(path, status=status), secured) as server, server.client() as client:
            for _ in range(2):
                client.write(GET)
                line, _, _ = await client.response(is_head=True)
                assert line.startswith(f"HTTP/1.1 {status} ")
            client.write(HEAD)
            await client.response(is_head=True)

    run(loop, test())
    warning = f"A response with status {status} has no body. What was sent of one is dropped."
    assert errors() == (2 * [warning] if size else [])


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_chunks(arm, loop, folder, secured, size):
    """A head that went out before the file's length was known."""
    path, content = make(folder, size)

    async def application(scope, receive, send):
        await send({"type": "http.response.start", "status": 200})
        await asyncio.sleep(0)
        await send({"type": "http.response.pathsend", "path": path})

    async def test():
        async with FileServer(arm, application, secured) as server:
            async with server.client() as client:
                client.write(2 * GET)
                for _ in range(2):
                    _, fields, body = await client.response()
                    assert fields["transfer-encoding"] == "chunked"
                    assert body == content
            async with server.client() as client:
                client.write(OLD)
                assert (await client.response())[2] == content

    run(loop, test())


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_a_file_that_is_longer_than_its_response(arm, loop, folder, secured, size):
    """It has grown since the application looked."""
    path, content = make(folder, size)

    async def test():
        application = serving_file(path, length(size - 10))
        async with FileServer(arm, application, secured) as server, server.client() as client:
            for _ in range(2):
                client.write(GET)
                assert (await client.response())[2] == content[:-10]

    run(loop, test())


@pytest.mark.parametrize("size", [0, SMALL, LARGE])
def test_a_file_that_is_shorter_than_its_response(arm, loop, folder, secured, size):
    path, _ = make(folder, size)
    errors = []

    async def application(scope, receive, send):
        errors.append(await caught(send_file(send, path, length(size + 10))))

    async def test():
        async with FileServer(arm, application, secured) as server, server.client() as client:
            client.write(GET)
            response = await client.rest()
            assert b"content-length: %d\r\n" % (size + 10) in response
            # The client sees that something is missing.
            assert len(response.partition(b"\r\n\r\n")[2]) < size + 10

    run(loop, test())
    assert [str(error) for error in errors] == ["Response content shorter than Content-Length"]


def test_a_file_that_shrinks_while_it_is_sent(arm, loop, folder, secured):
    size = 50_000_000
    path = str(folder / "file")
    with open(path, "wb") as file:
        file.truncate(size)
    errors = []

    async def application(scope, receive, send):
        errors.append(await caught(send_file(send, path, length(size))))

    async def test():
        async with FileServer(arm, application, secured) as server, server.client() as client:
            client.write(GET)
            await client.reader.readuntil(b"\r\n\r\n")
            os.truncate(path, 1000)
            assert len(await client.rest()) < size
            await until_closed(server)

    run(loop, test())
    assert [str(error) for error in errors] == ["Response content shorter than Content-Length"]


def test_a_request_body_that_nobody_reads(arm, loop, folder):
    path, content = make(folder, LARGE)
    request = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nhello"

    async def test():
        async with FileServer(arm, serving_file(path)) as server, server.client() as client:
            client.write(3 * request)
            for _ in range(3):
                assert (await client.response())[2] == content

    run(loop, test())


# -- What is refused --------------------------------------------------------------------------------------------------


def test_paths_that_cannot_be_sent(arm, loop, folder):
    """The exception reaches the application, which can still answer something else."""
    os.mkfifo(folder / "fifo")
    (folder / "secret").write_bytes(b"x")
    paths = {
        str(folder / "missing"): FileNotFoundError,
        str(folder): IsADirectoryError,
        str(folder / "fifo"): OSError,
        "/dev/zero": OSError,
        "relative": FileNotFoundError,
        "": FileNotFoundError,
        "/a\0b": ValueError,
        b"/etc/passwd": TypeError,
        None: TypeError,
        7: TypeError,
    }
    seen = []

    async def application(scope, receive, send):
        await send({"type": "http.response.start", "status": 200})
        for path in paths:
            seen.append(await caught(send({"type": "http.response.pathsend", "path": path})))
        seen.append(await caught(send({"type": "http.response.pathsend"})))
        await send({"type": "http.response.body", "body": b"instead"})

    async def test():
        async with FileServer(arm, application) as server, server.client() as client:
            client.write(GET)
            assert (await client.response())[2] == b"instead"

    run(loop, test())
    for error, expected in zip(seen, [*paths.values(), KeyError], strict=True):
        assert isinstance(error, expected), (error, expected)


def test_a_relative_path(arm, loop, folder, monkeypatch):
    """Starlette sends the path that its FileResponse was given."""
    _, content = make(folder, SMALL)
    monkeypatch.chdir(folder)

    async def test():
        async with FileServer(arm, serving_file("file")) as server, server.client() as client:
            client.write(GET)
            assert (await client.response())[2] == content

    run(loop, test())


def test_an_exception_that_the_application_leaves(arm, loop, folder, caplog):
    async def test():
        async with FileServer(arm, serving_file(str(folder / "missing"), length(5))) as server:
            response = await server.ask(GET)
            assert b"\r\n\r\n" in response
            assert not response.partition(b"\r\n\r\n")[2]

    run(loop, test())
    (record,) = (record for record in caplog.records if record.name == LOGGER)
    assert record.exc_info[0] is FileNotFoundError


def test_messages_out_of_order(arm, loop, folder):
    path, content = make(folder, LARGE)
    seen = []

    async def application(scope, receive, send):
        file = {"type": "http.response.pathsend", "path": path}
        seen.append(await caught(send(file)))
        await send({"type": "http.response.start", "status": 200, "headers": [length(LARGE)]})
        if scope["path"] == "/body":
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
            seen.append(await caught(send(file)))
            return
        sending = asyncio.create_task(send(file))
        await asyncio.sleep(0)
        # The file may be under way, or sent.
        seen.append(await caught(send({"type": "http.response.body", "body": b"x"})))
        seen.append(await caught(send(file)))
        await sending
        seen.append(await caught(send(file)))

    async def test():
        async with FileServer(arm, application) as server, server.client() as client:
            client.write(GET)
            assert (await client.response())[2] == content
            client.write(GET.replace(b"/", b"/body", 1))
            await client.rest()

    run(loop, test())
    texts = [
        "Expected ASGI message 'http.response.start', but got 'http.response.pathsend'.",
        "Unexpected ASGI message 'http.response.body' sent, after response already completed.",
        "Unexpected ASGI message 'http.response.pathsend' sent, after response already completed.",
        "Unexpected ASGI message 'http.response.pathsend' sent, after response already completed.",
        "Expected ASGI message 'http.response.start', but got 'http.response.pathsend'.",
        "Expected ASGI message 'http.response.body', but got 'http.response.pathsend'.",
    ]
    assert [str(error) for error in seen] == texts


# -- Ends -------------------------------------------------------------------------------------------------------------


class Slow:
    """An application whose file is so large that it is under way until the client reads it."""

    SIZE = 200_000_000

    def __init__(self, folder, within=None):
        self.path = str(folder / "slow")
        with open(self.path, "wb") as file:
            file.truncate(self.SIZE)
        self.folder = folder
        self.within = within or (lambda sending: sending)
        self.outcome = None
        self.is_over = asyncio.Event()

    async def __call__(self, scope, receive, send):
        try:
            self.outcome = await self.within(send_file(send, self.path, length(self.SIZE)))
        except BaseException as error:
            self.outcome = error
            raise
        finally:
            self.open = open_files(self.folder)
            self.is_over.set()

    async def begin(self, client):
        client.write(GET)
        await client.reader.readuntil(b"\r\n\r\n")
        assert open_files(self.folder)


@pytest.mark.parametrize("way", ["close", "reset"])
def test_a_client_that_leaves(arm, loop, folder, secured, way, caplog):
    async def test():
        slow = Slow(folder)
        async with FileServer(arm, slow, secured) as server, server.client() as client:
            await slow.begin(client)
            if way == "reset":
                client.reset()
            else:
                client.writer.transport.abort()
            await slow.is_over.wait()
            assert (slow.outcome, slow.open) == (None, [])
            await until_closed(server)

    run(loop, test())
    assert caplog.records == []


def test_a_client_that_ends_its_side(arm, loop, folder):
    """It still gets all of the file, and the application is told. There is no reason to linger after it."""
    heard = []

    async def application(scope, receive, send):
        await receive()
        waiting = asyncio.create_task(receive())
        await send_file(send, path, length(LARGE))
        heard.append((await waiting)["type"])

    path, content = make(folder, LARGE)

    async def test():
        async with FileServer(arm, application, timeout_linger=1000) as server, server.client() as client:
            client.write(GET)
            client.writer.write_eof()
            assert (await client.rest()).endswith(content)
            await until_closed(server)

    run(loop, test())
    assert heard == ["http.disconnect"]


def test_a_client_that_reads_nothing(arm, loop, folder, secured):
    async def test():
        slow = Slow(folder)
        async with FileServer(arm, slow, secured, timeout_write=0.1) as server, server.client() as client:
            client.writer.transport.pause_reading()
            client.write(GET)
            await slow.is_over.wait()
            assert (slow.outcome, slow.open) == (None, [])
            await until_closed(server)

    run(loop, test())


def test_a_client_that_reads_slowly(arm, loop, folder, secured):
    """Whoever takes something within each time limit gets all."""
    size, timeout = 8_000_000, 0.4
    path, content = make(folder, size)

    async def attempt(server):
        """Return whether the client took something in time each time; it got all then."""
        body, slowest = b"", 0
        async with server.client() as client:
            client.write(GET)
            await client.reader.readuntil(b"\r\n\r\n")
            while len(body) < size:
                begun = loop.time()
                await asyncio.sleep(timeout / 8)
                chunk = await client.reader.read(size // 16)
                slowest = max(slowest, loop.time() - begun)
                if not chunk:
                    break
                body += chunk
        assert body == content or slowest > timeout / 2
        return body == content

    async def test():
        application = serving_file(path, length(size))
        async with FileServer(arm, application, secured, timeout_write=timeout) as server:
            # A machine that stands still makes the client late.
            while not await attempt(server):
                pass

    run(loop, test())


def test_a_client_that_reads_little_at_a_time(arm, loop, folder, secured):
    """A socket has room again when a third of its buffer is sent. That may take longer than the time limit."""
    timeout = 0.3
    path = folder / "file"
    with path.open("wb") as file:
        file.truncate(Slow.SIZE)

    async def attempt(server):
        """Return whether the client took something in time each time; it was served all the while then."""
        slowest = 0
        async with server.client() as client:
            support.keep_receive_buffer_small(client.writer.get_extra_info("socket"))
            client.write(GET)
            for _ in range(40):  # five times the limit
                begun = loop.time()
                await asyncio.sleep(timeout / 8)
                chunk = await client.reader.read(16384)
                slowest = max(slowest, loop.time() - begun)
                if not chunk:
                    assert slowest > timeout / 4
                    return False
        return True

    async def test():
        application = serving_file(str(path), length(Slow.SIZE))
        async with FileServer(arm, application, secured, timeout_write=timeout) as server:
            # A machine that stands still makes the client late.
            while not await attempt(server):
                pass
            await until_closed(server)

    run(loop, test())


@pytest.mark.parametrize("way", ["task", "timeout"])
def test_a_send_that_is_cancelled(arm, loop, folder, secured, way):
    """The rest of the file can't be sent: the connection ends."""

    under_way = asyncio.Event()

    async def expire(scope):
        await under_way.wait()
        scope.reschedule(loop.time())

    async def within(sending):
        if way == "timeout":
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(None) as scope:
                    expiring = asyncio.create_task(expire(scope))
                    await sending
            await expiring
        else:
            task = asyncio.create_task(sending)
            await under_way.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        return "cancelled"

    async def test():
        slow = Slow(folder, within)
        async with FileServer(arm, slow, secured) as server, server.client() as client:
            await slow.begin(client)
            under_way.set()
            await slow.is_over.wait()
            assert slow.outcome == "cancelled"
            assert len(await client.rest()) < slow.SIZE
            await until_closed(server)

    run(loop, test())


def test_a_server_that_is_aborted(arm, loop, folder, secured):
    async def test():
        slow = Slow(folder)
        async with FileServer(arm, slow, secured) as server, server.client() as client:
            await slow.begin(client)
            server.service.shut_down()
            server.service.disconnect()
            server.service.abort()
            await server.service.wait_closed()
            assert isinstance(slow.outcome, asyncio.CancelledError)
            assert len(await client.rest()) < slow.SIZE

    run(loop, test())


def test_a_server_that_shuts_down(arm, loop, folder, secured):
    """A file that is under way is sent to its end."""

    async def test():
        slow = Slow(folder)
        slow.SIZE = 30_000_000
        os.truncate(slow.path, slow.SIZE)
        async with FileServer(arm, slow, secured) as server, server.client() as client:
            await slow.begin(client)
            server.service.shut_down()
            server.service.disconnect()
            assert len(await client.rest()) == slow.SIZE
            await server.service.wait_closed()
            assert slow.outcome is None

    run(loop, test())


def test_no_descriptors(arm, loop, folder, monkeypatch):
    path, _ = make(folder, SMALL)
    errors = []

    def refuse(*_):
        raise OSError(24, "Too many open files")

    async def application(scope, receive, send):
        await send({"type": "http.response.start", "status": 200})
        with monkeypatch.context() as patch:
            patch.setattr(os, "open", refuse)
            errors.append(await caught(send({"type": "http.response.pathsend", "path": path})))
        await send({"type": "http.response.body", "body": b"instead"})

    async def test():
        async with FileServer(arm, application) as server, server.client() as client:
            client.write(GET)
            assert (await client.response())[2] == b"instead"

    run(loop, test())
    assert errors[0].errno == 24


def test_the_kernel_sends_what_is_not_encrypted(arm, loop, folder, monkeypatch):
    path, content = make(folder, LARGE)

    def refuse(*_):
        raise OSError(5, "the file is read")

    async def test():
        async with FileServer(arm, serving_file(path)) as server, server.client() as client:
            monkeypatch.setattr(os, "preadv", refuse)
            monkeypatch.setattr(os, "pread", refuse)
            client.write(GET)
            assert (await client.response())[2] == content

    run(loop, test())


def test_what_is_not_in_memory_is_read_by_a_thread(arm, loop, folder, contexts, monkeypatch):
    path, content = make(folder, LARGE)
    threads = set()

    def would_block(*_):
        raise BlockingIOError

    def pread(*arguments):
        threads.add(threading.get_ident())
        return original(*arguments)

    original = os.pread

    async def test():
        async with FileServer(arm, serving_file(path), contexts) as server, server.client() as client:
            monkeypatch.setattr(os, "preadv", would_block)
            monkeypatch.setattr(os, "pread", pread)
            client.write(GET)
            assert (await client.response())[2] == content

    run(loop, test())
    assert threads
    assert threading.get_ident() not in threads


@pytest.mark.exact
def test_a_cancelled_send_whose_thread_reads(arm, loop, folder, contexts, monkeypatch):
    """The file is closed when the thread is done with it."""
    path, _ = make(folder, LARGE)
    is_reading, may_read = threading.Event(), threading.Event()

    def would_block(*_):
        raise BlockingIOError

    def pread(*arguments):
        is_reading.set()
        may_read.wait(support.PATIENCE_S)
        return original(*arguments)

    original = os.pread

    async def application(scope, receive, send):
        sending = asyncio.create_task(send_file(send, path))
        await asyncio.to_thread(is_reading.wait, support.PATIENCE_S)
        sending.cancel()
        await asyncio.wait([sending])
        assert sending.cancelled()
        assert open_files(folder)
        may_read.set()
        await support.until(lambda: not open_files(folder))

    async def test():
        async with FileServer(arm, application, contexts) as server, server.client() as client:
            monkeypatch.setattr(os, "preadv", would_block)
            monkeypatch.setattr(os, "pread", pread)
            client.write(GET)
            await client.rest()
            await until_closed(server)

    run(loop, test())


def test_a_file_that_the_kernel_cannot_send(arm, loop, folder, monkeypatch):
    """Such as one of a file system without sendfile(2): it is read."""
    path, content = make(folder, LARGE)

    async def cannot(*_):
        return 0

    async def test():
        async with FileServer(arm, serving_file(path)) as server, server.client() as client:
            monkeypatch.setattr("ringloop._http._send_by_kernel", cannot)
            client.write(GET)
            assert (await client.response())[2] == content

    run(loop, test())


def test_others_have_their_turn_while_a_client_reads_as_fast_as_a_file_is_sent(arm, loop, tmp_path):
    """Nothing else makes the server wait, if the file is in memory and there is always room."""
    from ringloop import _http

    turns = 0
    seen = []

    class Request:
        _has_stream = True

        def _write_file(self, content):
            seen.append(turns)

        def _room(self):
            return None

    async def count_turns():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def test():
        path, _ = make(tmp_path, 2_000_000)
        file = _http.OpenFile(os.open(path, os.O_RDONLY))
        counting = asyncio.ensure_future(count_turns())
        try:
            await _http._send_file(Request(), file, file.size)
        finally:
            file.close()
            counting.cancel()

    run(loop, test())
    assert max(seen.count(turn) for turn in set(seen)) <= 4
