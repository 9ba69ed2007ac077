"""The WSGI applications that the tests serve by `ringloop serve`."""

import json
import os
import sys
import time


def say(text):
    os.write(1, f"{text}\n".encode())


def app(environ, start_response):
    """Answer with what was asked, by path."""
    path = environ["PATH_INFO"]
    if path == "/environ":
        shown = {name: value for name, value in environ.items() if isinstance(value, str | bool)}
        body = json.dumps(shown).encode()
    elif path == "/pid":
        body = str(os.getpid()).encode()
    elif path == "/fail":
        raise ValueError("of the application")
    elif path == "/log":
        environ["wsgi.errors"].write("into the log\n")
        body = b""
    elif path == "/wait":
        start_response("200 OK", [])
        return waiting("FILE")
    elif path == "/stuck":
        start_response("200 OK", [])
        return waiting(None)
    else:
        body = f"wsgi {path}".encode()
    start_response("200 OK", [("content-type", "text/plain")])
    return [body]


def waiting(name):
    """Begin, and end when the file that a variable names is there."""
    yield b"begun"
    while name is None or not os.path.exists(os.environ[name]):
        time.sleep(0.01)
    say("ended")
    yield b", done"


class Application:
    """PEP 3333's example: instances are the iterables."""

    def __init__(self, environ, start_response):
        self.environ = environ
        self.start = start_response

    def __iter__(self):
        self.start("200 OK", [("Content-type", "text/plain")])
        yield b"of a class"


class Callable:
    def __call__(self, environ, start_response):
        return app(environ, start_response)

    def method(self, environ, start_response):
        return app(environ, start_response)


instance = Callable()
method = instance.method


def wrapped(environ, start_response, *, more=None):
    return app(environ, start_response)


def with_default(environ, start_response, more=None):
    return app(environ, start_response)


def make(*_):
    return app


def anything(*arguments):
    return app(*arguments)


def of_four(one, two, three, four):
    sys.exit(1)


async def broken_asgi(scope):
    return None
