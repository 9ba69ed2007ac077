"""Run Django's own tests with `ringloop serve` as their server: a program that `tools/suites.py` runs.

What Django's test client gives to an application goes through a server, and must come back as the application gave it: see
wsgi_bridge.py. `LiveServerTestCase` has another server in this process. On asyncio nothing changes: there the control is the test
client itself, and Django's development server.

    python -m django_suite [LABEL ...]      # in a folder with Django's tests; without labels, the tests below
"""

from __future__ import annotations

import importlib
import runpy
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import ringloop.http
from wsgi_bridge import ADDED, IS_CONTROL, Bridged, Environ, report

# Tests that use a server or the test client, without those that take minutes.
LABELS = [
    *(
        "auth_tests",
        "conditional_processing",
        "csrf_tests",
        "file_uploads",
        "flatpages_tests",
        "generic_views",
        "handlers",
    ),
    *("messages_tests", "middleware", "middleware_exceptions", "servers", "sessions_tests", "sitemaps_tests"),
    *(
        "staticfiles_tests",
        "syndication_tests",
        "test_client",
        "test_client_regress",
        "urlpatterns_reverse",
        "view_tests",
        "wsgi",
    ),
]


class LiveServer:
    """ringloop's server, as `LiveServerThread` uses Django's."""

    def __init__(
        self,
        address: tuple[str, int],
        handler: object,
        allow_reuse_address: bool = False,
        connections_override: dict[str, Any] | None = None,
    ) -> None:
        del handler, allow_reuse_address
        self.connections: Any = importlib.import_module("django.db").connections
        self.override = connections_override or {}
        self.listener = socket.create_server(address, reuse_port=False)
        self.server_address = self.listener.getsockname()
        config = ringloop.http.Config(self.application, interface="wsgi", access_log=False, log_config=None)
        self.server = ringloop.http.Server(config)
        self.app: Callable[..., Iterable[bytes]] | None = None

    def set_app(self, app: Callable[..., Iterable[bytes]]) -> None:
        self.app = app

    def serve_forever(self) -> None:
        self.server.run([self.listener])

    def shutdown(self) -> None:
        self.server.should_exit = True

    def server_close(self) -> None:
        """Do nothing: the server closes its socket."""

    def _close_connections(self) -> None:
        self.connections.close_all()

    def application(self, environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Call the application with the database connections of the tests, as Django's server does."""
        for alias, connection in self.override.items():
            self.connections[alias] = connection
        assert self.app is not None
        result = self.app(environ, start_response)
        if isinstance(result, environ["wsgi.file_wrapper"]):
            return result  # type: ignore[no-any-return]
        return Served(result, self._close_connections)


class Served:
    """A response, and what is done after it."""

    def __init__(self, response: Iterable[bytes], after: Callable[[], None]) -> None:
        self.response = response
        self.after = after

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.response)

    def close(self) -> None:
        try:
            getattr(self.response, "close", lambda: None)()
        finally:
            self.after()


def send(handler: Callable[[Environ], Any], environ: Environ) -> Any:
    """Send what the test client made; return the handler's response, if that is what came back."""
    held: list[Any] = []
    sent: list[tuple[str, str]] = []

    def application(served: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        response = handler(served)
        held.append(response)
        sent.extend((name, value) for name, value in response.items())
        sent.extend(("Set-Cookie", cookie.OutputString()) for cookie in response.cookies.values())
        start_response(f"{response.status_code} {response.reason_phrase}", list(sent))
        if response.streaming:
            # No iterable of WSGI. The test reads it.
            return [] if response.is_async else keep(response)
        return [response.content]

    received: list[Any] = []
    body = b"".join(Bridged(application)(environ, lambda *status_and_headers: received.extend(status_and_headers)))
    (response,) = held
    status, headers = received
    expected = b"" if response.streaming else response.content
    if response.streaming and not response.is_async:
        expected = b"".join(response.kept)
        response.streaming_content = response.kept
    given = {name.lower() for name, _ in sent}
    came = sorted((name.lower(), value) for name, value in headers if name.lower() not in ADDED - given)
    went = sorted((name.lower(), value.strip()) for name, value in sent)
    if (int(status.split()[0]), came, body) != (response.status_code, went, expected):
        raise AssertionError(
            f"the server sent {status}, {came}, {body!r} for {response.status_code}, {went}, {expected!r}"
        )
    return response


def keep(response: Any) -> Iterator[bytes]:
    """Give the parts of a response to the server, and keep them for the test."""
    response.kept = []
    for part in response.streaming_content:
        response.kept.append(part)
        yield part


SENT_MIN = 1000
"""The requests that all tests must send: with fewer, they haven't tested the server."""


def plug_in() -> None:
    """Put ringloop's server in the place of Django's."""
    basehttp: Any = importlib.import_module("django.core.servers.basehttp")
    testcases: Any = importlib.import_module("django.test.testcases")
    basehttp.ThreadedWSGIServer = testcases.ThreadedWSGIServer = testcases.LiveServerThread.server_class = LiveServer
    client: Any = importlib.import_module("django.test.client")
    call = client.ClientHandler.__call__
    client.ClientHandler.__call__ = lambda self, environ: send(lambda served: call(self, served), environ)


if __name__ == "__main__":
    if not IS_CONTROL:
        plug_in()
    sys.path[0] = "tests"
    sys.argv = ["tests/runtests.py", "--parallel=1", *(sys.argv[1:] or LABELS)]
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    finally:
        if not IS_CONTROL:
            print(report())
            if sys.argv[2:] == LABELS and Bridged.counts["sent"] < SENT_MIN:
                print("too few requests were sent to the server: nothing was tested")
                sys.exit(3)
