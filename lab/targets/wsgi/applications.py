"""The applications that every WSGI server of ringlab serves, and the bytes that the load generator expects of them."""

import os
import time
from collections.abc import Iterable, Iterator
from typing import Any
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

TEXT = ("Content-Type", "text/plain")
HELLO = b"Hello, World!"
CHUNKS = 100
CHUNK = b"0123456789" * 10
FIELDS = 20
COMPUTE_STEPS = 200_000
ANSWERED = [(f"X-Answer-{number}", f"value {number} of the answer") for number in range(FIELDS)]
BLOCK_BYTES = 64 * 1024
urlpatterns: list[Any] = []
"""Django's views."""


def hello(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    """Answer 13 bytes."""
    start_response("200 OK", [TEXT, ("Content-Length", "13")])
    return [HELLO]


def post(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    """Read the body, and answer its length."""
    body = b"%d" % len(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
    start_response("200 OK", [TEXT, ("Content-Length", str(len(body)))])
    return [body]


def stream(environ: WSGIEnvironment, start_response: StartResponse) -> Iterator[bytes]:
    """Answer in chunks, without a length."""
    start_response("200 OK", [TEXT])
    for _ in range(CHUNKS):
        yield CHUNK


def headers(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    """Answer with 20 fields, and how many of the request's 20 have come."""
    body = b"%d" % sum(name.startswith("HTTP_X_REQUEST_") for name in environ)
    start_response("200 OK", [*ANSWERED, ("Content-Length", str(len(body)))])
    return [body]


def sleepers(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    """Answer 13 bytes, for /sleep only after a second."""
    if environ["PATH_INFO"] == "/sleep":
        time.sleep(1)
    return hello(environ, start_response)


def compute(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    """Compute in Python for about 10 ms on a CPU of 2026, and answer 13 bytes."""
    total = 0
    for number in range(COMPUTE_STEPS):
        total += number * number % 7
    assert total
    return hello(environ, start_response)


def flask() -> WSGIApplication:
    """Return Flask's hello world."""
    from flask import Flask, Response

    made = Flask(__name__)

    @made.get("/")
    def view() -> Response:
        return Response("Hello, World!", mimetype="text/plain")

    return made


def django() -> WSGIApplication:
    """Return Django's hello world."""
    from django.conf import settings
    from django.core.wsgi import get_wsgi_application
    from django.http import HttpRequest, HttpResponse
    from django.urls import path

    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse("Hello, World!", content_type="text/plain")

    urlpatterns.append(path("", view))
    # Without this middleware, answers have no Content-Length.
    middleware = ["django.middleware.common.CommonMiddleware"]
    settings.configure(SECRET_KEY="none", ALLOWED_HOSTS=["*"], ROOT_URLCONF=__name__, MIDDLEWARE=middleware)
    made: WSGIApplication = get_wsgi_application()
    return made


def file() -> WSGIApplication:
    """Return an application that answers with a file, by `wsgi.file_wrapper` where the server offers that."""
    from werkzeug.wsgi import wrap_file

    path = os.environ["RINGLAB_FILE"]
    fields = [("Content-Type", "application/octet-stream"), ("Content-Length", str(os.path.getsize(path)))]

    def view(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        start_response("200 OK", fields)
        return wrap_file(environ, open(path, "rb"), BLOCK_BYTES)

    return view


MAKERS = {"flask": flask, "django": django, "file": file}

# The framework that a run doesn't need isn't imported: it would be in the figures of memory.
chosen = os.environ.get("RINGLAB_APPLICATION", "hello")
application: WSGIApplication = MAKERS[chosen]() if chosen in MAKERS else globals()[chosen]
