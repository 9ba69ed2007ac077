"""Send what a test gives to a WSGI application through `ringloop serve`, in a process that `tools/suites.py` runs.

Test clients of frameworks call an application with an `environ` that they made up. `Bridged` stands for that application: it
sends the request over a connection to a server in this process, and returns what comes back. The application gets the `environ`,
the input and the `start_response` that the server made, and runs in the thread of the test, where its thread-locals and context
variables are.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import contextlib
import http.client
import io
import itertools
import os
import queue
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar
from urllib.parse import quote, unquote_to_bytes

import ringloop.http

Environ = dict[str, Any]
Application = Callable[..., Iterable[bytes]]

IS_CONTROL = os.environ["RINGLOOP_SUITES_LOOP"] == "asyncio"
MARK = "X-Ringloop-Exchange"
PATIENCE_S = 60
# What a request says. Everything else is the test's to say.
SENT = {
    *("REQUEST_METHOD", "PATH_INFO", "QUERY_STRING", "REQUEST_URI", "RAW_URI", "CONTENT_TYPE", "CONTENT_LENGTH"),
    *("SERVER_PROTOCOL", "wsgi.input", "wsgi.input_terminated", "wsgi.file_wrapper"),
}
# What a server adds to a response if the application doesn't.
ADDED = {"date", "server", "content-length", "transfer-encoding", "connection"}


class CannotBeSentError(Exception):
    """The test calls the application with something that no client can send."""


class Exchange:
    """A request, and the calls that the server makes to its application."""

    def __init__(self, application: Application, environ: Environ) -> None:
        self.application = application
        self.environ = environ
        self.error: BaseException | None = None
        self.given: set[str] = set()
        # Whether there is an iterable that the server has still to close. It may do so when the client has the response.
        self.is_open = False
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], concurrent.futures.Future[Any]] | None]
        self._calls = queue.SimpleQueue()

    def call(self, function: Callable[[], Any]) -> Any:
        """Have the test's thread call this. The view's thread of the server waits for the result."""
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self._calls.put((function, future))
        return future.result(PATIENCE_S)

    def run(self, client: Callable[[], Any]) -> Any:
        """Run a client in another thread, and in this one what the server calls."""
        result: concurrent.futures.Future[Any] = concurrent.futures.Future()

        def run_client() -> None:
            try:
                result.set_result(client())
            except BaseException as error:
                result.set_exception(error)
            self._calls.put(None)

        threading.Thread(target=run_client, daemon=True).start()
        while not result.done() or self.is_open:
            call = self._calls.get(timeout=PATIENCE_S)
            if call is None:
                continue
            function, future = call
            try:
                future.set_result(function())
            except BaseException as error:
                if not isinstance(error, StopIteration):
                    self.error = self.error or error
                future.set_exception(error)
        return result.result()

    def start(self, environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Call the application."""
        wanted = self.environ
        for name, value in wanted.items():
            if name not in SENT and not name.startswith("HTTP_"):
                environ[name] = value
        if "HTTP_HOST" not in wanted:
            del environ["HTTP_HOST"]
        environ["PATH_INFO"] = environ["PATH_INFO"].removeprefix(wanted.get("SCRIPT_NAME", ""))

        def noting(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
            write = start_response(status, headers, *([exc_info] if exc_info else []))
            self.given = {name.lower() for name, _ in headers}
            return write

        result = self.application(environ, noting)
        # What the server treats in its own way.
        if isinstance(result, (list, tuple, environ["wsgi.file_wrapper"])):
            return result
        self.is_open = True
        return Parts(self, result)


class Parts:
    """An iterable of an application, for the server."""

    def __init__(self, exchange: Exchange, iterable: Iterable[bytes]) -> None:
        self.exchange = exchange
        self.iterable = iterable

    def __iter__(self) -> Iterator[bytes]:
        iterator = self.exchange.call(lambda: iter(self.iterable))
        while (part := self.exchange.call(lambda: next(iterator, None))) is not None:
            yield part

    def close(self) -> None:
        self.exchange.call(self._close)

    def _close(self) -> None:
        self.exchange.is_open = False
        getattr(self.iterable, "close", lambda: None)()


class Service:
    """A server in a thread of its own, and connections to it."""

    def __init__(self) -> None:
        self.exchanges: dict[str, Exchange] = {}
        self.idle: list[http.client.HTTPConnection] = []
        self.numbers = itertools.count()
        listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.address = listener.getsockname()
        config = ringloop.http.Config(
            self.application,
            interface="wsgi",
            proxy_headers=False,
            access_log=False,
            log_config=None,
            timeout_keep_alive=3600,
            timeout_graceful_shutdown=1,
        )
        self.server = ringloop.http.Server(config)
        self.thread = threading.Thread(target=self.server.run, args=([listener],), daemon=True)
        self.thread.start()
        atexit.register(self.end)

    def end(self) -> None:
        for connection in self.idle:
            connection.close()
        self.server.should_exit = True
        self.thread.join(PATIENCE_S)

    def application(self, environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Be the server's application."""
        exchange = self.exchanges[environ.pop("HTTP_X_RINGLOOP_EXCHANGE")]
        return exchange.call(lambda: exchange.start(environ, start_response))  # type: ignore[no-any-return]

    def send(self, exchange: Exchange) -> tuple[str, list[tuple[str, str]], bytes]:
        """Send a request; return the status, the headers and the body of its response."""
        number = str(next(self.numbers))
        head, body = request_of(exchange.environ, number)
        self.exchanges[number] = exchange
        try:
            return exchange.run(lambda: self._ask(exchange, head, body))  # type: ignore[no-any-return]
        finally:
            del self.exchanges[number]

    def _ask(self, exchange: Exchange, head: bytes, body: bytes) -> tuple[str, list[tuple[str, str]], bytes]:
        try:
            connection = self.idle.pop()
        except IndexError:
            connection = http.client.HTTPConnection(self.address[0], self.address[1], timeout=PATIENCE_S)
            connection.connect()
        sock = connection.sock
        assert sock is not None
        # A server may answer before it has the body, and not read it.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            sock.sendall(head + body)
        response = http.client.HTTPResponse(sock, method=exchange.environ["REQUEST_METHOD"])
        try:
            response.begin()
            while response.status == 100:
                response.begin()
            content = response.read()
        except http.client.HTTPException:
            connection.close()
            raise
        if response.will_close:
            connection.close()
        else:
            self.idle.append(connection)
        return f"{response.status} {response.reason}", response.getheaders(), content


def request_of(environ: Environ, number: str) -> tuple[bytes, bytes]:
    """Return the request that a client would send so that an application gets this environment."""
    if "wsgi.input" not in environ or "REQUEST_METHOD" not in environ:
        raise CannotBeSentError("without an environment")
    method, protocol = environ["REQUEST_METHOD"], environ.get("SERVER_PROTOCOL", "HTTP/1.1")
    script, path, query = (environ.get(name, "") for name in ("SCRIPT_NAME", "PATH_INFO", "QUERY_STRING"))
    whole = (script + path).encode("latin-1")
    if not whole.startswith(b"/"):
        raise CannotBeSentError("the path doesn't begin with a slash")
    if protocol not in ("HTTP/1.0", "HTTP/1.1"):
        raise CannotBeSentError("another protocol")
    target = environ.get("REQUEST_URI", "")
    if unquote_to_bytes(target.partition("?")[0]) != whole or target.partition("?")[2] != query:
        target = quote(whole, safe="/:@!$&'()*+,;=~") + (f"?{query}" if query else "")
    fields = [(MARK, number)]
    if "HTTP_HOST" not in environ:
        fields.append(("Host", environ.get("SERVER_NAME", "localhost")))
    for name, value in environ.items():
        if name.startswith("HTTP_"):
            if not isinstance(value, str):
                raise CannotBeSentError("a header that isn't text")
            fields.append((name[5:].replace("_", "-").title(), value))
    for name in ("CONTENT_TYPE", "CONTENT_LENGTH"):
        if environ.get(name):
            fields.append((name.replace("_", "-").title(), str(environ[name])))
    body = body_of(environ)
    if any(set(text) & {"\r", "\n", "\0"} or text != text.strip() for _, text in fields) or not target.isprintable():
        raise CannotBeSentError("characters that a head can't have")
    lines = [f"{method} {target} {protocol}", *(f"{name}: {value}" for name, value in fields), "", ""]
    try:
        return "\r\n".join(lines).encode("latin-1"), body
    except UnicodeEncodeError:
        raise CannotBeSentError("characters that a head can't have") from None


def body_of(environ: Environ) -> bytes:
    """Return the body, as it is sent."""
    stream = environ["wsgi.input"]
    if "HTTP_TRANSFER_ENCODING" in environ:
        content = stream.read()
        return b"%x\r\n%b\r\n0\r\n\r\n" % (len(content), content) if content else b"0\r\n\r\n"
    length = environ.get("CONTENT_LENGTH") or "0"
    if not str(length).isdecimal():
        raise CannotBeSentError("a length that isn't a number")
    if not int(length):
        return b""
    content = stream.read(int(length))
    if stream.seekable():
        # A client that follows a redirect sends it again.
        stream.seek(-len(content), io.SEEK_CUR)
    if len(content) != int(length):
        raise CannotBeSentError("a body that is shorter than its length")
    return content  # type: ignore[no-any-return]


class Bridged:
    """An application, on the other side of a server."""

    service: Service | None = None
    # What was sent, and what wasn't, by the reason.
    counts: ClassVar[Counter[str]] = Counter()

    def __init__(self, application: Application) -> None:
        self.application = application

    def __call__(self, environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        if Bridged.service is None:
            Bridged.service = Service()
        exchange = Exchange(self.application, environ)
        try:
            status, headers, body = Bridged.service.send(exchange)
        except CannotBeSentError as error:
            Bridged.counts[str(error)] += 1
            return self.application(environ, start_response)
        except (http.client.HTTPException, OSError) as error:
            raise exchange.error or error from None
        Bridged.counts["sent"] += 1
        if exchange.error is not None:
            raise exchange.error
        start_response(status, [field for field in headers if field[0].lower() not in ADDED - exchange.given])
        return Received([body] if body else [])


class Received(list[bytes]):
    """A body, with the method that a test may call."""

    def close(self) -> None:
        """Do nothing: the server has closed the application's iterable."""


def report() -> str:
    """Return how many requests were sent, and why others were not."""
    sent = Bridged.counts["sent"]
    others = ", ".join(f"{count} {reason}" for reason, count in Bridged.counts.items() if reason != "sent")
    return f"{sent} requests were sent to ringloop's server. Not sent: {others or 'none'}"
