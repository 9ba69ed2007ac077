"""uvicorn with a Starlette application, started as its users start it: as a process, with the loop named on the command line.

The clients are of another kind on purpose (http.client, sockets, websockets on stock asyncio): what they see is the server's doing alone.
None has two threads on one TLS connection: OpenSSL forbids it, and ssl.SSLSocket has no lock on CPython 3.11 to 3.13 (it reads an
end that nobody sent, or crashes).
"""

import asyncio
import contextlib
import hashlib
import http.client
import io
import itertools
import json
import pathlib
import select
import signal
import socket
import ssl
import sys
import types

import pytest

import processes
import support

websockets = pytest.importorskip("websockets", reason="make test-applications installs it")
pytest.importorskip("uvicorn", reason="make test-applications installs it")
pytest.importorskip("starlette", reason="make test-applications installs it")
from websockets.asyncio.client import connect  # noqa: E402

FOLDER = pathlib.Path(__file__).parent
LOOPS = {"asyncio": "asyncio", "io_uring": "ringloop:new_event_loop", "epoll": "ringloop:new_event_loop"}


class Server(processes.ServerProcess):
    """One uvicorn."""

    def __init__(self, arm, folder, *options, certificate=None):
        self.port = support.free_port()
        # fmt: off
        command = [
            sys.executable, "-W", "always::ResourceWarning", "-m", "uvicorn", "starlette_application:application",
            "--loop", LOOPS[arm], "--port", str(self.port), "--lifespan", "on", *options,
        ]
        # fmt: on
        if certificate is not None:
            command += ["--ssl-certfile", str(certificate.certificate), "--ssl-keyfile", str(certificate.key)]
        self.context = None if certificate is None else certificate.client_context()
        super().__init__(command, folder / f"uvicorn-{self.port}.log", arm=arm, cwd=FOLDER)
        self.wait_for_output("Uvicorn running")

    def connection(self):
        """Return a client's connection."""
        options = {"timeout": support.PATIENCE_S}
        if self.context is not None:
            return http.client.HTTPSConnection("localhost", self.port, context=self.context, **options)
        return http.client.HTTPConnection(support.HOST, self.port, **options)

    def websocket(self):
        scheme = "ws" if self.context is None else "wss"
        options = {} if self.context is None else {"ssl": self.context}
        return connect(f"{scheme}://localhost:{self.port}/echo", max_size=None, **options)

    def get(self, path):
        """Make one request on a connection of its own; return the status and the body."""
        connection = self.connection()
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    """Start a server for each arm and kind when it is first asked for; end them all and look at their last words."""
    started = {}
    ending = contextlib.ExitStack()

    def server(arm, kind, certificate):
        if (arm, kind) not in started:
            if kind == "tls":
                made = Server(arm, tmp_path_factory.mktemp("uvicorn"), "--http", "h11", certificate=certificate)
            else:
                made = Server(arm, tmp_path_factory.mktemp("uvicorn"), "--http", "httptools")
            ending.callback(made.stop)
            started[arm, kind] = made
        return started[arm, kind]

    with ending:
        yield server
    for made in started.values():
        output = made.output()
        assert "application stopped" in output
        assert "ResourceWarning" not in output and "never retrieved" not in output
        assert "Traceback" not in output.replace(*FAILURE_ON_PURPOSE), output


FAILURE_ON_PURPOSE = ("Exception in ASGI application\nTraceback", "")


@pytest.fixture(params=["http", "tls"])
def server(request, arm, servers, certificate):
    """Return a running server of the arm under test, with httptools, or with h11 over TLS."""
    return servers(arm, request.param, certificate)


def test_runs_on_the_loop_that_was_named(arm, server):
    status, body = server.get("/about")
    said = json.loads(body)
    assert status == 200 and said["backend"] == arm
    assert said["type"] == ("_UnixSelectorEventLoop" if arm == "asyncio" else "EventLoop")


def test_keeps_a_connection_for_many_requests(server):
    connection = server.connection()
    clients = set()
    for _ in range(100):
        connection.request("GET", "/about")
        clients.add(tuple(json.loads(connection.getresponse().read())["client"]))
    assert len(clients) == 1
    connection.close()


def test_answers_pipelined_requests_in_order(arm, servers, certificate):
    server = servers(arm, "http", certificate)
    requests = [f"GET /number/{number} HTTP/1.1\r\nhost: localhost\r\n\r\n" for number in range(99)]
    requests.append("GET /number/99 HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
    with socket.create_connection((support.HOST, server.port), timeout=support.PATIENCE_S) as client:
        client.sendall("".join(requests).encode())
        answer = b"".join(iter(lambda: client.recv(65536), b""))
    bodies = [part.partition(b"\r\n\r\n")[2] for part in answer.split(b"HTTP/1.1 200 OK\r\n")[1:]]
    assert bodies == [str(number).encode() for number in range(100)]


def test_reads_an_upload_in_pieces(server):
    pieces = [bytes([number]) * (1 + 4099 * number) for number in range(40)]
    whole = b"".join(pieces)
    connection = server.connection()
    connection.request(
        "POST", "/digest", body=iter(pieces), encode_chunked=True, headers={"Transfer-Encoding": "chunked"}
    )
    said = json.loads(connection.getresponse().read())
    assert said == {"size": len(whole), "sha256": hashlib.sha256(whole).hexdigest()}
    connection.close()


def test_streams_to_a_client_that_reads_late(server):
    connection = server.connection()
    connection.request("GET", "/stream?pieces=500")
    # The server has filled the sockets' buffers, and waits, while others are served.
    assert server.get("/number/7") == (200, b"7")
    assert connection.getresponse().read() == bytes(range(256)) * 64 * 500
    connection.close()


def test_answers_while_it_is_asked(server):
    """Bodies in both directions at once, with more than the sockets hold."""
    body = bytes(range(256)) * 256 * 60
    head = f"POST /mirror HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    connection = server.connection()
    connection.connect()
    answer, unsent = exchange(connection.sock, head.encode() + body)
    connection.close()
    assert unsent, "the answer began only when the request had ended"
    assert parsed(answer).read() == body


def exchange(sock, request):
    """Send a piece and read what has come, in turn, to the end: the answer, and how many bytes were unsent when it began."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)  # Of this size it can't hold all that is sent.
    sock.setblocking(False)
    answer, unsent, unsent_at_first = [], memoryview(request), None
    poll = select.poll()
    while True:
        poll.register(sock, select.POLLIN | (select.POLLOUT if unsent else 0))
        assert poll.poll(support.PATIENCE_S * 1000), "nothing moves"
        with contextlib.suppress(*NOT_YET):
            if unsent:
                unsent = unsent[sock.send(unsent[:65536]) :]
        with contextlib.suppress(*NOT_YET):
            while data := sock.recv(65536):
                unsent_at_first = len(unsent) if unsent_at_first is None else unsent_at_first
                answer.append(data)
            return b"".join(answer), unsent_at_first


NOT_YET = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


def parsed(answer):
    """Return the bytes of an answer as http.client understands them."""
    response = http.client.HTTPResponse(types.SimpleNamespace(makefile=lambda mode: io.BytesIO(answer)), method="POST")
    response.begin()
    return response


def test_a_failing_handler_and_a_client_that_goes_hurt_nobody_else(server):
    bystander = server.connection()
    bystander.request("GET", "/number/1")
    assert bystander.getresponse().read() == b"1"
    assert server.get("/fail") == (500, b"Internal Server Error")
    for path, answer_first in itertools.product(("/digest", "/mirror"), (False, True)):
        rude = server.connection()
        rude.putrequest("POST", path)
        rude.putheader("Content-Length", "1000000")
        rude.endheaders()
        rude.send(b"x" * 1000)
        if answer_first and path == "/mirror":
            assert rude.getresponse().read(1000) == b"x" * 1000
        support.reset(rude.sock)
    deaf = server.connection()
    deaf.request("GET", "/stream?pieces=500")
    support.reset(deaf.sock)
    bystander.request("GET", "/number/2")
    assert bystander.getresponse().read() == b"2"
    bystander.close()


def test_websockets(server):
    async def talk():
        async with server.websocket() as client:
            messages = ["", "grüße", b"", bytes(range(256)) * 4096]
            for message in messages:
                await client.send(message)
            assert [await client.recv() for _ in messages] == messages
            await client.send(["in ", "three ", "fragments"])
            assert await client.recv() == "in three fragments"
            await (await client.ping())
            await client.close(4002, "done")
        async with server.websocket() as client:
            await client.send("close")
            with pytest.raises(websockets.ConnectionClosed) as caught:
                await client.recv()
        assert (caught.value.rcvd.code, caught.value.rcvd.reason) == (4001, "as you asked")

    with asyncio.Runner(loop_factory=support.loop_factory("asyncio")) as runner:
        runner.run(asyncio.wait_for(talk(), support.PATIENCE_S))
    server.wait_for_output("websocket closed with 4002")


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_after_the_last_answer(arm, tmp_path, signal_number):
    server = Server(arm, tmp_path)
    try:
        idle = server.connection()
        idle.request("GET", "/number/1")
        assert idle.getresponse().read() == b"1"
        busy = server.connection()
        busy.putrequest("POST", "/mirror")
        busy.putheader("Content-Length", "8")
        busy.endheaders()
        busy.send(b"begun")
        answer = busy.getresponse()
        assert answer.read(5) == b"begun"

        server.process.send_signal(signal_number)
        server.wait_for_output("Waiting for connections to close")
        assert idle.sock.recv(1) == b""
        assert not processes.accepts((support.HOST, server.port))
        busy.send(b"end")
        assert answer.read() == b"end"
        # uvicorn hands the signal on once it has finished: SIGTERM is for its command line to survive, an interrupt ends it.
        assert server.process.wait(support.PATIENCE_S) in (0, -signal_number)
        idle.close()
        busy.close()
    finally:
        server.stop(signal.SIGKILL)
    output = server.output()
    assert "application stopped" in output and "Finished server process" in output
    assert "Traceback" not in output and "ResourceWarning" not in output


@pytest.mark.exact
def test_many_clients_at_once(server):
    def client(number):
        connection = server.connection()
        for step in range(10):
            connection.request("GET", f"/number/{number}{step}")
            assert connection.getresponse().read() == f"{number}{step}".encode()
        connection.close()

    threads = [support.BackgroundThread(client, number) for number in range(1, 25)]
    for thread in threads:
        thread.result()
