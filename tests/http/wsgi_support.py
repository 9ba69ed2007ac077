"""WSGI applications served on the loop under test, and what their tests share."""

import contextlib
import threading

import support
from serving import Server

GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
CLOSING = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"


def serve(arm, application, *, root_path="", **settings):
    """Return a server of a WSGI application, as `Server` of serving.py."""
    from ringloop.http._applications import wsgi_environ

    environ = wsgi_environ(root_path, has_threads=True, has_workers=False)
    return Server(arm, application, wsgi=environ, ws=False, root_path=root_path, **settings)


def answering(body, *headers, status="200 OK"):
    """Return an application that answers with a list."""

    def application(environ, start_response):
        start_response(status, list(headers))
        return [body]

    return application


def post(body, *fields):
    """Return a request with a body of known length."""
    lines = [b"POST / HTTP/1.1", b"Host: a", b"Content-Length: %d" % len(body), *fields]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


class Closing:
    """An iterable that notes how often it was closed, and in which thread."""

    def __init__(self, parts):
        self._parts = parts
        self.closed = []
        self.has_closed = threading.Event()

    def __iter__(self):
        yield from self._parts

    def close(self):
        self.closed.append(threading.get_ident())
        self.has_closed.set()


def wait(event):
    """Wait for an event in a view, or fail."""
    assert event.wait(support.PATIENCE_S)


async def until(loop, event):
    """Wait for a thread's event."""
    assert await loop.run_in_executor(None, event.wait, support.PATIENCE_S)


@contextlib.contextmanager
def releasing(*events):
    """Set events at the end, so that no view waits for ever."""
    try:
        yield
    finally:
        for event in events:
            event.set()
