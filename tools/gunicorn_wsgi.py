"""Ask gunicorn and `ringloop serve` the same, and compare their answers: tests of the suite "gunicorn" of tools/suites.py.

The suite copies this file next to gunicorn's own tests. The applications are gunicorn's examples and the one of its tests; the
malformed and unusual requests are those of its tests. The reference is gunicorn with threads. On asyncio, as the control, a second
gunicorn takes the place of `ringloop serve`.

Not compared are Server, Date, what a server says about an error, and whether a body has chunks or a length where the application
gives no Content-Length. Each aspect of an answer has a test of its own, so that an explained difference hides no other.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import h11
import pytest

from server_process import HOST, free_port, running, serve

PATIENCE_S = 20
HERE = Path(__file__).parent
APPLICATIONS = {
    "echo": "examples/echo:app",
    "test": "examples/test:app",
    "sendfile": "examples/sendfile:app",
    "log_app": "examples/log_app:app",
    "multidomainapp": "examples/multidomainapp:app",
    "standalone_app": "examples/standalone_app:handler_app",
    "readline_app": "examples/readline_app:app",
    "bad": "examples/bad:app",
    "support": "tests/support:app",
}
# What a server adds to the environment, or what tells servers apart.
OWN = {"SERVER_PORT", "REMOTE_PORT", "SERVER_SOFTWARE", "REQUEST_URI"}
CUT_OFF = "the end of the connection, before that of the body"
REQUEST_LINE = re.compile(rb"([!-~]+) \S+ HTTP/1\.\d\r\n")


def message(line: str, *fields: str, body: bytes = b"") -> bytes:
    """Return a request."""
    return "".join(f"{field}\r\n" for field in (line, *fields, "")).encode() + body


GET = message("GET /a%20b?c=d HTTP/1.1", "Host: localhost")
POST = message("POST / HTTP/1.1", "Host: localhost", "Content-Length: 11", body=b"hello\nworld")
# What a client sends: all at once, or each part after the response to the one before it. The body of "expect" waits for 100.
REQUESTS = {
    "get": [GET],
    "head": [message("HEAD / HTTP/1.1", "Host: localhost")],
    "post": [POST],
    "empty post": [message("POST / HTTP/1.1", "Host: localhost", "Content-Length: 0")],
    "chunked": [
        message(
            "POST / HTTP/1.1",
            "Host: localhost",
            "Transfer-Encoding: chunked",
            body=b"5\r\nhello\r\n6;a=b\r\n\nworld\r\n0\r\n\r\n",
        )
    ],
    "close": [message("GET / HTTP/1.1", "Host: localhost", "Connection: close")],
    "keep-alive": [POST, GET, POST],
    "pipelined": [GET + POST + GET],
    "expect": [message("POST / HTTP/1.1", "Host: localhost", "Content-Length: 5", "Expect: 100-continue"), b"hello"],
    "other host": [message("GET / HTTP/1.1", "Host: example.org")],
    "http10": [message("GET / HTTP/1.0")],
    "http10 head": [message("HEAD / HTTP/1.0")],
    "http10 post": [message("POST / HTTP/1.0", "Content-Length: 5", body=b"hello")],
    "http10 keep-alive": [message("GET / HTTP/1.0", "Connection: keep-alive")] * 2,
}


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Answer with what a request said."""
    seen = {name: value for name, value in environ.items() if isinstance(value, str | bool | tuple) and name not in OWN}
    seen["body"] = environ["wsgi.input"].read().decode("latin-1")
    body = json.dumps(seen, sort_keys=True).encode()
    start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
    return [body]


# The servers.


def command(target: str, port: int, is_reference: bool) -> list[str]:
    """Return the command that serves an application, as FOLDER/MODULE:NAME."""
    loop = os.environ["RINGLOOP_SUITES_LOOP"]
    folder, _, name = str(HERE / target).rpartition("/")
    if loop != "asyncio" and not is_reference:
        return serve(name, port, loop, "--interface=wsgi", f"--app-dir={folder}", "--no-access-log")
    options = ["--worker-class=gthread", "--threads=4", "--no-control-socket"]
    return [sys.executable, "-m", "gunicorn", name, f"--bind={HOST}:{port}", f"--pythonpath={folder}", *options]


@contextlib.contextmanager
def serving(target: str, factory: pytest.TempPathFactory) -> Iterator[tuple[int, int]]:
    """Serve an application with both servers, and yield the reference's port and the other's."""
    folder = factory.mktemp("servers")
    with contextlib.ExitStack() as stack:
        # An example creates files and leaves them behind.
        stack.enter_context(pytest.MonkeyPatch.context()).setenv("TMPDIR", str(folder))
        ports = (free_port(), free_port())
        for port, is_reference in zip(ports, (True, False), strict=True):
            stack.enter_context(running(command(target, port, is_reference), port, folder / "log"))
        yield ports


# A client.


class Answer(NamedTuple):
    """A response: the statuses, with those of informational responses before it, and the rest of the last one."""

    statuses: list[str]
    headers: list[tuple[str, str]]
    body: bytes
    closes: bool


class Client:
    """A connection to a server. All that it waits for takes up to PATIENCE_S."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection((HOST, port), PATIENCE_S)
        self.deadline = time.monotonic() + PATIENCE_S
        self.received = b""
        self.has_ended = False

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *error: object) -> None:
        self.sock.close()

    def receive(self) -> bytes:
        """Return what has arrived; nothing means that the server has ended the connection."""
        self.sock.settimeout(max(0.001, self.deadline - time.monotonic()))
        try:
            data = self.sock.recv(65536)
        except ConnectionResetError:
            data = b""
        self.has_ended = not data
        return data

    def answer(self, method: str, body_on_100: bytes = b"") -> Answer | None:
        """Return the response to a request, or nothing if the connection ends before it."""
        parser = h11.Connection(h11.CLIENT)
        parser.send(h11.Request(method=method, target="/", headers=[("Host", HOST)]))
        parser.send(h11.EndOfMessage())
        if self.received:
            parser.receive_data(self.received)
        head: h11.Response | None = None
        statuses, body = [], b""
        try:
            while not isinstance(event := parser.next_event(), h11.EndOfMessage):
                if event is h11.NEED_DATA:
                    parser.receive_data(self.receive())
                elif isinstance(event, h11.InformationalResponse | h11.Response):
                    statuses.append(f"{event.status_code} {bytes(event.reason).decode('latin-1')}")
                    if isinstance(event, h11.Response):
                        head = event
                    elif event.status_code == 100:
                        self.sock.sendall(body_on_100)
                elif isinstance(event, h11.Data):
                    body += event.data
        except h11.RemoteProtocolError:
            if not self.has_ended:
                raise
            statuses.append(CUT_OFF)
        self.received = parser.trailing_data[0]
        if head is None:
            return None
        headers = [(bytes(name).decode(), bytes(value).decode("latin-1")) for name, value in head.headers]
        options = re.split(r"\s*,\s*", dict(headers).get("connection", "").lower())
        persists = head.http_version == b"1.1" or "keep-alive" in options
        return Answer(statuses, headers, body, closes=self.has_ended or "close" in options or not persists)

    def check_end(self) -> None:
        """Check that the server ends the connection and sends nothing more."""
        assert not self.received
        assert self.has_ended or not self.receive()


def ask(port: int, sends: list[bytes], is_whole: bool = True) -> list[Answer]:
    """Return the answers to what a client sends, and check that the connection ends where the server says so."""
    answers: list[Answer] = []
    with Client(port) as client:
        awaiting = sends[1] if b"Expect:" in sends[0] else b""
        for data in sends[:1] if awaiting else sends:
            client.sock.sendall(data)
            if not is_whole:
                client.sock.shutdown(socket.SHUT_WR)
            # What looks like a request may be part of a body, or follow the last request that is answered.
            for method in REQUEST_LINE.findall(data) or [b"GET"]:
                answer = client.answer("HEAD" if method == b"HEAD" else "GET", awaiting)
                if answer is None:
                    return answers
                answers.append(answer)
                if answer.closes:
                    client.check_end()
                    return answers
    return answers


def succeeds(answer: Answer) -> bool:
    return answer.statuses[-1] < "4"


# The applications.

Asked = Callable[[str], tuple[list[Answer], list[Answer]]]


@pytest.fixture(scope="module")
def asked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    """Yield a function that sends both servers of an application a request, once."""
    with serving(APPLICATIONS[request.param], tmp_path_factory) as ports:

        @functools.cache
        def answers(name: str) -> tuple[list[Answer], list[Answer]]:
            return ask(ports[0], REQUESTS[name]), ask(ports[1], REQUESTS[name])

        yield answers


def each_case(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test for each application and each request."""
    for mark in (
        pytest.mark.parametrize("asked", APPLICATIONS, indirect=True),
        pytest.mark.parametrize("name", REQUESTS),
    ):
        test = mark(test)
    return test


def headers(answer: Answer, reference: Answer) -> list[tuple[str, str]]:
    """Return those headers of an answer that are compared with a reference, by name: only the order of equal names matters."""
    ignored = {"server", "date", "connection", "keep-alive", "transfer-encoding"}
    if "content-length" not in dict(reference.headers):
        # The parts of a list have a length on ringloop, and chunks on gunicorn.
        ignored.add("content-length")
    return sorted((pair for pair in answer.headers if pair[0] not in ignored), key=lambda pair: pair[0])


def pairs(asked: Asked, name: str) -> list[tuple[Answer, Answer]]:
    """Return those answers of both servers that are the application's own."""
    found = zip(*asked(name), strict=False)
    of_application = [both for both in found if all(succeeds(answer) for answer in both)]
    if not of_application:
        pytest.skip("what a server says about an error is its own")
    return of_application


@each_case
def test_status(asked: Asked, name: str) -> None:
    """As many answers, with the same statuses."""
    reference, other = asked(name)
    assert [answer.statuses for answer in other] == [answer.statuses for answer in reference]


@each_case
def test_headers(asked: Asked, name: str) -> None:
    for reference, other in pairs(asked, name):
        assert headers(other, reference) == headers(reference, reference)


@each_case
def test_body(asked: Asked, name: str) -> None:
    for reference, other in pairs(asked, name):
        assert other.body == reference.body


@each_case
def test_connection(asked: Asked, name: str) -> None:
    """The connection ends after the same answers."""
    reference, other = asked(name)
    assert [answer.closes for answer in other] == [answer.closes for answer in reference]


# The requests of gunicorn's tests.

# These end too early, which a server learns only when the client says that it has sent all.
CUT = {("valid", "099"), ("invalid", "001"), ("invalid", "rfc9112_chunked_missing_final_crlf_01")}


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, int]]:
    """Serve the application that answers with what a request said."""
    with serving("gunicorn_wsgi:application", tmp_path_factory) as found:
        yield found


def read(kind: str, name: str) -> bytes:
    """Return a request, as gunicorn's `treq.py` reads its file."""
    data = (HERE / "tests" / "requests" / kind / f"{name}.http").read_bytes()
    data = data.replace(b"\n", b"").replace(b"\\r\\n", b"\r\n")
    data = data.replace(b"\\0", b"\0").replace(b"\\n", b"\n").replace(b"\\t", b"\t")
    return re.sub(rb"\\x([0-9A-Fa-f]{2})", lambda match: bytes([int(match[1], 16)]), data)


def with_host(data: bytes) -> bytes:
    """Return requests with a Host in each head of HTTP/1.1 that has none."""

    def completed(match: re.Match[bytes]) -> bytes:
        has_host = re.search(rb"^host:", match[2], re.IGNORECASE | re.MULTILINE)
        return match[0] if has_host else match[1] + b"Host: a\r\n" + match[2]

    return re.sub(rb"([!-~]+ \S+ HTTP/1\.1\r\n)((?:[^\r\n]+\r\n)*\r\n)", completed, data)


def names(kind: str, *, without_host: bool = False) -> list[str]:
    """Return the names of requests that need no settings of gunicorn's."""
    files = (HERE / "tests" / "requests" / kind).glob("*.http")
    found = sorted(path.stem for path in files if "cfg" not in path.with_suffix(".py").read_text())
    return [name for name in found if not without_host or with_host(read(kind, name)) != read(kind, name)]


def outcomes(answers: list[Answer]) -> list[object]:
    """Return what the application saw of each request and whether the connection ended, or that it was refused."""
    found: list[object] = []
    for answer in answers:
        if succeeds(answer):
            found.append({**json.loads(answer.body), "closes": answer.closes})
        else:
            # For the same reason, servers may choose different statuses; but 500 is the application's fault.
            is_refusal = re.match("4|501|505", answer.statuses[-1])
            found.append("refused" if is_refusal else answer.statuses[-1])
    return found


def compare(ports: tuple[int, int], kind: str, name: str, change: Callable[[bytes], bytes] = bytes) -> None:
    """Let both servers refuse a request, or their applications see the same."""
    data = change(read(kind, name))
    reference, other = (outcomes(ask(port, [data], (kind, name) not in CUT)) for port in ports)
    assert other == reference


@pytest.mark.parametrize("name", names("valid"))
def test_valid(ports: tuple[int, int], name: str) -> None:
    compare(ports, "valid", name)


@pytest.mark.parametrize("name", names("valid", without_host=True))
def test_valid_with_host(ports: tuple[int, int], name: str) -> None:
    """HTTP/1.1 requires Host, which many of these requests don't have."""
    compare(ports, "valid", name, with_host)


@pytest.mark.parametrize("name", names("invalid"))
def test_invalid(ports: tuple[int, int], name: str) -> None:
    compare(ports, "invalid", name)


@pytest.mark.parametrize("name", names("invalid", without_host=True))
def test_invalid_with_host(ports: tuple[int, int], name: str) -> None:
    """The reason for a refusal is another than a missing Host."""
    compare(ports, "invalid", name, with_host)
