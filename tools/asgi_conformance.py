"""Run an ASGI application on HTTP servers, and compare what it sees, and what clients get, with the specification.

The servers are `ringloop serve` on both backends and, as controls, those of uvicorn, granian and hypercorn that
`--controls` names a Python with. Each is a process of its own; clients are sockets. Prints a table of the cases in which
a server differs.

Exits with 0 if ringloop follows the specification in all cases, with 1 if it does not, with 2 if a server can't be run.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from server_process import HOST, PATIENCE_S, free_port, running, serve

KEY = b"dGhlIHNhbXBsZSBub25jZQ=="

# -- The application: the header "case" says what it does ---------------------------------------------------------------

seen: dict[str, list[Any]] = {}


def plain(value: Any) -> Any:
    """Return the value, of types that `ast.literal_eval` reads; those of keys in the scope are kept."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(plain(item) for item in value)
    if isinstance(value, int):
        return int(value)
    return value if isinstance(value, str | bytes | None) else f"<{type(value).__name__}>"


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        await live(scope, receive, send)
        return
    case = dict(scope["headers"]).get(b"case", b"").decode()
    if case == "report":
        name = dict(scope["headers"])[b"of"].decode()
        await respond(send, 200, ascii(seen.get(name, [])).encode())
        return
    events = seen.setdefault(case, [])
    events.append(plain({key: value for key, value in scope.items() if key != "headers"}))
    events.append([tuple(field) for field in scope["headers"]])

    async def hear() -> Any:
        message = await receive()
        events.append(plain(message))
        return message

    await (serve_websocket if scope["type"] == "websocket" else serve_http)(case, scope, hear, send, events)


async def live(scope: Any, receive: Any, send: Any) -> None:
    if "state" in scope:
        scope["state"].update(shared=[], number=1)
    assert (await receive())["type"] == "lifespan.startup"
    await send({"type": "lifespan.startup.complete"})
    assert (await receive())["type"] == "lifespan.shutdown"
    await send({"type": "lifespan.shutdown.complete"})


async def respond(send: Any, status: int, body: bytes = b"", headers: Any = None) -> None:
    headers = [(b"content-length", str(len(body)).encode())] if headers is None else headers
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def serve_http(case: str, scope: Any, receive: Any, send: Any, events: list[Any]) -> None:
    if case == "state":
        scope["state"]["number"] += 1
        scope["state"]["shared"].append(1)
        await respond(send, 200, f"{scope['state']['number']} {len(scope['state']['shared'])}".encode())
        return
    if case in ("disconnect", "send after disconnect"):
        await receive()
        await receive()
        try:
            await respond(send, 200, b"too late")
            events.append("sent")
        except Exception as error:
            events.append("OSError" if isinstance(error, OSError) else type(error).__name__)
        return
    while (message := await receive())["type"] == "http.request" and message.get("more_body"):
        pass
    if case == "head":
        await respond(send, 200, b"hello")
    elif case in ("204", "304"):
        await respond(send, int(case), b"", [])
    elif case in ("pieces", "pieces to 1.0"):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for piece in (b"one", b"", b"two"):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body"})
    elif case == "defaults":
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body"})
    elif case == "cookies":
        await respond(send, 200, b"", [(b"set-cookie", b"b=1"), (b"x-other", b"o"), (b"set-cookie", b"a=2")])
    elif case == "receive after the response":
        await respond(send, 200, b"ok")
        await receive()
    elif case == "error":
        raise RuntimeError("as the case asks for")
    else:
        await respond(send, 200, b"ok")


async def serve_websocket(case: str, scope: Any, receive: Any, send: Any, events: list[Any]) -> None:
    await receive()
    if case == "ws refused":
        await send({"type": "websocket.close"})
        return
    if case == "ws denied":
        await send({"type": "websocket.http.response.start", "status": 401, "headers": [(b"content-length", b"2")]})
        await send({"type": "websocket.http.response.body", "body": b"no"})
        return
    accept: dict[str, Any] = {"type": "websocket.accept"}
    if case == "ws accept":
        accept |= {"subprotocol": "second", "headers": [(b"x-mine", b"1"), (b"x-mine", b"2")]}
    await send(accept)
    if case == "ws close by the application":
        await send({"type": "websocket.close", "code": 4001, "reason": "why"})
        await receive()
        return
    if case == "ws empty":
        await send({"type": "websocket.send", "text": ""})
        await send({"type": "websocket.send", "bytes": b"", "text": None})
    while (await receive())["type"] == "websocket.receive":
        pass
    try:
        await send({"type": "websocket.send", "text": "too late"})
        events.append("sent")
    except Exception as error:
        events.append("OSError" if isinstance(error, OSError) else type(error).__name__)


# -- Clients ------------------------------------------------------------------------------------------------------------


class Different(Exception):
    """A difference of a server from the specification."""


def demand(condition: object, what: object) -> None:
    if not condition:
        raise Different(str(what))


class Client:
    """Requests to the server at this port, each on a connection of its own."""

    def __init__(self, port: int) -> None:
        self.port = port

    def connect(self) -> socket.socket:
        sock = socket.create_connection((HOST, self.port), PATIENCE_S)
        sock.settimeout(30)
        return sock

    def exchange(self, request: bytes) -> tuple[bytes, list[bytes], bytes]:
        """Return the status line, the fields, and all that follows them until the server closes the connection."""
        with self.connect() as sock:
            sock.sendall(request)
            data = everything(sock)
        head, _, body = data.partition(b"\r\n\r\n")
        line, *fields = head.split(b"\r\n")
        return line, fields, body

    def ask(
        self, case: str, line: bytes = b"GET / HTTP/1.1", fields: bytes = b"", body: bytes = b""
    ) -> tuple[bytes, list[bytes], bytes]:
        head = line + b"\r\nhost: h\r\nconnection: close\r\ncase: " + case.encode() + b"\r\n" + fields + b"\r\n"
        return self.exchange(head + body)

    def report(self, case: str, count: int = 0) -> list[Any]:
        """Return what the application saw in this case, with at least `count` messages: the scope, the headers, and the messages."""
        deadline = time.monotonic() + 30
        while True:
            answer = self.ask("report", fields=b"of: " + case.encode() + b"\r\n")[2]
            events: list[Any] = ast.literal_eval(answer.decode())
            if len(events) >= count:
                return events
            if time.monotonic() > deadline:
                raise Different(f"the application saw only {events[2:]}")
            time.sleep(0.05)

    def scope(self, case: str, line: bytes = b"GET / HTTP/1.1", fields: bytes = b"") -> dict[str, Any]:
        answer = self.ask(case, line, fields)
        demand(b" 200 " in answer[0], answer[0] or "no response")
        scope: dict[str, Any] = self.report(case, 2)[0]
        return scope

    @contextlib.contextmanager
    def websocket(
        self, case: str, fields: bytes = b"", path: bytes = b"/"
    ) -> Iterator[tuple[socket.socket, bytes, bytes]]:
        """Yield a connection that has asked for a WebSocket, the head of the answer, and what came after it."""
        with self.connect() as sock:
            sock.sendall(
                b"GET " + path + b" HTTP/1.1\r\nhost: h\r\nupgrade: websocket\r\nconnection: Upgrade\r\ncase: "
                + case.encode() + b"\r\nsec-websocket-version: 13\r\nsec-websocket-key: " + KEY + b"\r\n" + fields + b"\r\n"
            )  # fmt: skip
            data = b""
            while b"\r\n\r\n" not in data:
                part = sock.recv(65536)
                demand(part, f"the connection ended after {data!r}")
                data += part
            head, _, rest = data.partition(b"\r\n\r\n")
            yield sock, head, rest


def everything(sock: socket.socket) -> bytes:
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while part := sock.recv(65536):
            data += part
    return data


def frame(opcode: int, payload: bytes) -> bytes:
    """Return a masked frame, with the mask zero."""
    return bytes([0x80 | opcode, 0x80 | len(payload)]) + bytes(4) + payload


def reset(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def has(fields: list[bytes], name: bytes) -> bool:
    return any(field.lower().startswith(name + b":") for field in fields)


# -- The cases ----------------------------------------------------------------------------------------------------------

CASES: dict[str, Callable[[Client], None]] = {}
ROOTED: dict[str, Callable[[Client], None]] = {}


def case(name: str, cases: dict[str, Callable[[Client], None]] = CASES) -> Callable[[Any], Any]:
    def add(function: Callable[[Client], None]) -> Callable[[Client], None]:
        cases[name] = function
        return function

    return add


def types(scope: dict[str, Any], expected: dict[str, Any]) -> None:
    for key, kinds in expected.items():
        demand(key in scope, f"no {key}")
        demand(isinstance(scope[key], kinds), f"{key} is {scope[key]!r}")


ADDRESS = (list, tuple)


@case("http scope: keys and types")
def _(client: Client) -> None:
    scope = client.scope("types", b"GET /a?b HTTP/1.1")
    types(
        scope,
        {"type": str, "asgi": dict, "http_version": str, "method": str, "scheme": str, "path": str, "raw_path": bytes,
         "query_string": bytes, "root_path": str, "client": ADDRESS, "server": ADDRESS, "state": dict},
    )  # fmt: skip
    demand(scope["asgi"].get("version") == "3.0", scope["asgi"])
    wanted = ("http", "1.1", "GET", "http", "/a", b"/a", b"b", "")
    keys = ("type", "http_version", "method", "scheme", "path", "raw_path", "query_string", "root_path")
    got = tuple(scope[key] for key in keys)
    demand(got == wanted, got)
    demand(tuple(scope["server"]) == (HOST, client.port), scope["server"])
    demand(scope["client"][0] == HOST and isinstance(scope["client"][1], int), scope["client"])


@case("http scope: HTTP/1.0")
def _(client: Client) -> None:
    demand((got := client.scope("1.0", b"GET / HTTP/1.0")["http_version"]) == "1.0", got)


@case("http scope: percent-encoding is decoded in path and kept in raw_path")
def _(client: Client) -> None:
    scope = client.scope("percent", b"GET /a%20b/%C3%A9%2Fc?x=%20&y=+ HTTP/1.1")
    got = (scope["path"], scope.get("raw_path"), scope["query_string"])
    demand(got == ("/a b/é/c", b"/a%20b/%C3%A9%2Fc", b"x=%20&y=+"), got)


@case("http scope: a percent sign without digits")
def _(client: Client) -> None:
    scope = client.scope("bad percent", b"GET /a%zz%4 HTTP/1.1")
    demand(scope["path"] == "/a%zz%4", scope["path"])


@case("http scope: a path that is not UTF-8")
def _(client: Client) -> None:
    scope = client.scope("not utf-8", b"GET /%ff HTTP/1.1")
    demand(scope.get("raw_path") == b"/%ff", scope.get("raw_path"))


@case("http scope: an empty query")
def _(client: Client) -> None:
    scope = client.scope("empty query", b"GET /x? HTTP/1.1")
    got = (scope["path"], scope.get("raw_path"), scope["query_string"])
    demand(got == ("/x", b"/x", b""), got)


@case("http scope: a second question mark")
def _(client: Client) -> None:
    scope = client.scope("question marks", b"GET /x?a?b HTTP/1.1")
    demand((got := (scope["path"], scope["query_string"])) == ("/x", b"a?b"), got)


@case("http scope: slashes and dots are kept")
def _(client: Client) -> None:
    scope = client.scope("slashes", b"GET //a/../b//./c/ HTTP/1.1")
    demand(scope["path"] == "//a/../b//./c/", scope["path"])


@case("http scope: a target with scheme and host")
def _(client: Client) -> None:
    scope = client.scope("absolute", b"GET http://h/a?b HTTP/1.1")
    demand((got := (scope["path"], scope["query_string"])) == ("/a", b"b"), got)


@case("http scope: OPTIONS *")
def _(client: Client) -> None:
    scope = client.scope("star", b"OPTIONS * HTTP/1.1")
    demand(scope["path"] == "*", scope["path"])


@case("headers: names in lower case, order and duplicates kept, values as sent")
def _(client: Client) -> None:
    client.scope("headers", fields=b"X-B: 2\r\nx-a:  1\t\r\nX-b: \xe9\r\nX-Empty:\r\n")
    got = [field for field in client.report("headers")[1] if field[0].startswith(b"x-")]
    demand(got == [(b"x-b", b"2"), (b"x-a", b"1"), (b"x-b", b"\xe9"), (b"x-empty", b"")], got)


@case("headers: duplicates of Cookie are kept")
def _(client: Client) -> None:
    client.scope("cookie", fields=b"Cookie: a=1\r\nCookie: b=2\r\n")
    got = [value for name, value in client.report("cookie")[1] if name == b"cookie"]
    demand(got == [b"a=1", b"b=2"], got)


@case("body: none is one empty message")
def _(client: Client) -> None:
    client.ask("no body")
    (message,) = client.report("no body", 3)[2:]
    got = (message["type"], message.get("body", b""), message.get("more_body", False))
    demand(got == ("http.request", b"", False), message)


def body_of(client: Client, name: str) -> bytes:
    messages = client.report(name, 3)[2:]
    demand(all(message["type"] == "http.request" for message in messages), messages)
    flags = [message.get("more_body", False) for message in messages]
    demand(flags == [True] * (len(messages) - 1) + [False], messages)
    return b"".join(message.get("body", b"") for message in messages)


@case("body: by its length")
def _(client: Client) -> None:
    client.ask("length", b"POST / HTTP/1.1", b"content-length: 5\r\n", b"hello")
    demand((got := body_of(client, "length")) == b"hello", got)


@case("body: in chunks, with extension and trailer")
def _(client: Client) -> None:
    chunks = b"3;x=y\r\nhel\r\n2\r\nlo\r\n0\r\nx-trailer: 1\r\n\r\n"
    line, _, _ = client.ask("chunks", b"POST / HTTP/1.1", b"transfer-encoding: chunked\r\n", chunks)
    demand(b" 200 " in line, line)
    demand((got := body_of(client, "chunks")) == b"hello", got)


@case("body: 100 Continue")
def _(client: Client) -> None:
    with client.connect() as sock:
        sock.sendall(b"POST / HTTP/1.1\r\nhost: h\r\ncase: continue\r\nconnection: close\r\nexpect: 100-continue\r\n"
                     b"content-length: 5\r\n\r\n")  # fmt: skip
        first = sock.recv(65536)
        demand(first.startswith(b"HTTP/1.1 100 "), first)
        sock.sendall(b"hello")
        demand(b" 200 " in everything(sock), "no response")


@case("response: HEAD has the length and no body")
def _(client: Client) -> None:
    line, fields, body = client.ask("head", b"HEAD / HTTP/1.1")
    demand(b" 200 " in line and body == b"", (line, body))
    demand(b"content-length: 5" in map(bytes.lower, fields), fields)


@case("response: 204 has no body, Content-Length or Transfer-Encoding")
def _(client: Client) -> None:
    line, fields, body = client.ask("204")
    demand(b" 204" in line and body == b"", (line, body))
    demand(not has(fields, b"content-length") and not has(fields, b"transfer-encoding"), fields)


@case("response: 304 has no body or Transfer-Encoding")
def _(client: Client) -> None:
    line, fields, body = client.ask("304")
    demand(b" 304" in line and body == b"", (line, body))
    demand(not has(fields, b"transfer-encoding"), fields)


@case("response: pieces without a length are chunks")
def _(client: Client) -> None:
    _, fields, body = client.ask("pieces")
    demand(has(fields, b"transfer-encoding"), fields)
    demand(body.lower() == b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n", body)


@case("response: headers and body may be left out")
def _(client: Client) -> None:
    line, _, body = client.ask("defaults")
    demand(b" 200 " in line and body in (b"", b"0\r\n\r\n"), (line, body))


@case("response: HTTP/1.0 gets no chunks")
def _(client: Client) -> None:
    line, fields, body = client.ask("pieces to 1.0", b"GET / HTTP/1.0")
    demand(b" 200 " in line and not has(fields, b"transfer-encoding") and body == b"onetwo", (fields, body))


@case("response: duplicates and order of headers")
def _(client: Client) -> None:
    _, fields, _ = client.ask("cookies")
    got = [field for field in fields if field.lower().startswith((b"set-cookie", b"x-"))]
    demand(got == [b"set-cookie: b=1", b"x-other: o", b"set-cookie: a=2"], got)


@case("response: an exception before it is 500")
def _(client: Client) -> None:
    line, _, _ = client.ask("error")
    demand(b" 500 " in line, line or "no response")


@case("events: http.disconnect after the response")
def _(client: Client) -> None:
    client.ask("receive after the response")
    got = [message["type"] for message in client.report("receive after the response", 4)[2:]]
    demand(got == ["http.request", "http.disconnect"], got)


@case("events: http.disconnect when the client leaves; send raises OSError or does nothing")
def _(client: Client) -> None:
    with client.connect() as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nhost: h\r\ncase: disconnect\r\n\r\n")
        client.report("disconnect", 3)
        reset(sock)
    scope, _, *events = client.report("disconnect", 5)
    got = [event if isinstance(event, str) else event["type"] for event in events]
    demand(got[:2] == ["http.request", "http.disconnect"], got)
    # From version 2.4 on, send raises; before, it does nothing. Servers may do nothing in any case for HTTP.
    demand(got[2] in ("sent", "OSError"), (scope["asgi"], got))


@case("state: a shallow copy of the lifespan's for each request")
def _(client: Client) -> None:
    first, second = (client.ask("state")[2] for _ in range(2))
    demand((first, second) == (b"2 1", b"2 2"), (first, second))


@case("root_path: path has it in front", ROOTED)
def _(client: Client) -> None:
    scope = client.scope("root", b"GET /a HTTP/1.1")
    got = (scope["root_path"], scope["path"])
    demand(got == ("/api", "/api/a"), got)


@case("websocket scope: keys and types")
def _(client: Client) -> None:
    with client.websocket("ws", b"sec-websocket-protocol: first, second\r\nX-B: 1\r\n", b"/%20?q") as (sock, head, _):
        demand(head.startswith(b"HTTP/1.1 101 "), head)
        sock.sendall(frame(8, b"\x03\xe8"))
        everything(sock)
    scope, fields, first, *_ = client.report("ws", 4)
    types(
        scope,
        {"type": str, "asgi": dict, "http_version": str, "scheme": str, "path": str, "raw_path": bytes,
         "query_string": bytes, "root_path": str, "client": ADDRESS, "server": ADDRESS, "state": dict},
    )  # fmt: skip
    keys = ("type", "http_version", "scheme", "path", "raw_path", "query_string", "subprotocols")
    got = tuple(scope[key] for key in keys)
    demand(got == ("websocket", "1.1", "ws", "/ ", b"/%20", b"q", ["first", "second"]), got)
    demand("method" not in scope, "the scope has a method")
    demand((b"x-b", b"1") in fields, fields)
    demand(first == {"type": "websocket.connect"}, first)


@case("websocket: subprotocol and headers of the handshake")
def _(client: Client) -> None:
    with client.websocket("ws accept", b"sec-websocket-protocol: first, second\r\n") as (_, head, _):
        lines = head.lower().split(b"\r\n")
        demand(b"sec-websocket-protocol: second" in lines, head)
        demand([line for line in lines if line.startswith(b"x-")] == [b"x-mine: 1", b"x-mine: 2"], head)


@case("websocket: text and bytes, empty ones too")
def _(client: Client) -> None:
    with client.websocket("ws messages") as (sock, _, _):
        sock.sendall(frame(1, "é".encode()) + frame(2, b"\xff") + frame(1, b"") + frame(2, b"") + frame(8, b"\x03\xe8"))
        everything(sock)
    messages = client.report("ws messages", 8)[3:7]
    got = [(message["type"], message.get("text"), message.get("bytes")) for message in messages]
    wanted = [("é", None), (None, b"\xff"), ("", None), (None, b"")]
    demand(got == [("websocket.receive", *pair) for pair in wanted], got)


@case("websocket: empty messages are sent")
def _(client: Client) -> None:
    with client.websocket("ws empty") as (sock, _, data):
        while len(data) < 4 and (part := sock.recv(100)):
            data += part
        demand(data[:4] == b"\x81\x00\x82\x00", data)
        sock.sendall(frame(8, b"\x03\xe8"))


def ended(client: Client, name: str) -> dict[str, Any]:
    (message,) = [event for event in client.report(name, 5)[3:] if isinstance(event, dict)]
    demand(message["type"] == "websocket.disconnect", message)
    return dict(message)


@case("websocket: the client's close code and reason")
def _(client: Client) -> None:
    with client.websocket("ws close") as (sock, _, data):
        sock.sendall(frame(8, struct.pack("!H", 4002) + b"bye"))
        data += everything(sock)
        demand(data[2:4] == struct.pack("!H", 4002), data)
    message = ended(client, "ws close")
    demand((message["code"], message.get("reason")) == (4002, "bye"), message)


@case("websocket: a close frame without a code is 1005")
def _(client: Client) -> None:
    with client.websocket("ws no code") as (sock, _, _):
        sock.sendall(frame(8, b""))
        everything(sock)
    message = ended(client, "ws no code")
    demand(message["code"] == 1005, message)


@case("websocket: a lost connection is 1006")
def _(client: Client) -> None:
    with client.websocket("ws lost") as (sock, _, _):
        reset(sock)
    message = ended(client, "ws lost")
    demand(message["code"] == 1006, message)


@case("websocket: send after disconnect raises OSError (version 2.4 on)")
def _(client: Client) -> None:
    with client.websocket("ws late") as (sock, _, _):
        sock.sendall(frame(8, b"\x03\xe8"))
        everything(sock)
    scope, *_, last = client.report("ws late", 5)
    version = tuple(map(int, scope["asgi"].get("spec_version", "2.0").split(".")))
    demand(last == "OSError" if version >= (2, 4) else last == "sent", (scope["asgi"], last))


@case("websocket: the application's close code and reason")
def _(client: Client) -> None:
    with client.websocket("ws close by the application") as (sock, _, data):
        while len(data) < 7 and (part := sock.recv(100)):
            data += part
        demand(data[:7] == b"\x88\x05" + struct.pack("!H", 4001) + b"why", data)
        sock.sendall(frame(8, data[2:]))
        everything(sock)
    message = client.report("ws close by the application", 4)[3]
    demand((message["type"], message["code"]) == ("websocket.disconnect", 4001), message)


@case("websocket: closed before it is accepted is 403")
def _(client: Client) -> None:
    with client.websocket("ws refused") as (_, head, _):
        demand(b" 403" in head.split(b"\r\n")[0], head)


@case("websocket.http.response, if it is announced")
def _(client: Client) -> None:
    with client.websocket("ws denied") as (sock, head, rest):
        scope = client.report("ws denied", 2)[0]
        if "websocket.http.response" in (scope.get("extensions") or {}):
            while len(rest) < 2 and (part := sock.recv(100)):
                rest += part
            demand(b" 401 " in head and rest == b"no", (head, rest))


# -- Servers ------------------------------------------------------------------------------------------------------------


def commands(controls: str | None, names: list[str]) -> dict[str, Callable[[int, str], list[str]]]:
    """Return how each server is started at a port, with a root path."""
    target = f"{Path(__file__).stem}:app"

    def ringloop(backend: str) -> Callable[[int, str], list[str]]:
        return lambda port, root: serve(target, port, backend, "--root-path", root, "--log-level", "critical")

    def uvicorn(port: int, root: str) -> list[str]:
        options = ["--port", str(port), "--root-path", root, "--log-level", "critical"]
        return [str(controls), "-m", "uvicorn", target, *options]

    def granian(port: int, root: str) -> list[str]:
        prefix = ["--url-path-prefix", root] if root else []
        return [str(controls), "-m", "granian", "--interface", "asgi", "--port", str(port), *prefix, "--no-log", target]

    def hypercorn(port: int, root: str) -> list[str]:
        return [str(controls), "-m", "hypercorn", "--bind", f"{HOST}:{port}", "--root-path", root, target]

    servers = {"ringloop io_uring": ringloop("io_uring"), "ringloop epoll": ringloop("epoll")}
    if controls:
        servers |= {"uvicorn": uvicorn, "granian": granian, "hypercorn": hypercorn}
    return {name: command for name, command in servers.items() if not names or name in names}


def differences(command: Callable[[int, str], list[str]], log: Path) -> dict[str, str]:
    """Return the cases that a server differs in, and how."""
    found: dict[str, str] = {}
    for root, cases in (("", CASES), ("/api", ROOTED)):
        port = free_port()
        with running(command(port, root), port, log):
            client = Client(port)
            for name, check in cases.items():
                try:
                    check(client)
                except Different as difference:
                    found[name] = str(difference)
                except (OSError, ValueError, KeyError, IndexError, SyntaxError, TypeError) as error:
                    found[name] = f"{type(error).__name__}: {error}"
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--controls", metavar="PYTHON", help="a Python that has uvicorn, granian and hypercorn")
    parser.add_argument("--server", action="append", default=[], help="only this one: ringloop io_uring, uvicorn, ...")
    arguments = parser.parse_args()
    servers = commands(arguments.controls, arguments.server)
    found: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, command in servers.items():
            try:
                found[name] = differences(command, Path(folder, name))
            except (OSError, RuntimeError) as error:
                print(error, file=sys.stderr)
                return 2
    names = [*CASES, *ROOTED]
    print(f"{len(names)} cases\n\n| case | {' | '.join(found)} |\n| --- |{' --- |' * len(found)}")
    for name in names:
        if any(name in each for each in found.values()):
            print(f"| {name} | {' | '.join('differs' if name in each else 'ok' for each in found.values())} |")
    print()
    for server, each in found.items():
        for name, how in each.items():
            print(f"{server}: {name}: {how[:300]}")
    return int(any(each for server, each in found.items() if server.startswith("ringloop")))


if __name__ == "__main__":
    sys.exit(main())
