"""WSGI applications: what they are told, what they may answer, and what a client gets."""

import functools
import io
import sys
import wsgiref.simple_server
import wsgiref.validate

import pytest

from http2 import Server as Http2Server
from serving import run
from wsgi_support import CLOSING, GET, Closing, answering, post, serve

pytestmark = pytest.mark.ringloop_only


def environ_of(arm, loop, request, **settings):
    """Return the environment that a request gives."""
    found = []

    def application(environ, start_response):
        found.append(environ)
        start_response("200 OK", [])
        return [b""]

    async def test():
        async with serve(arm, application, **settings) as server, server.client() as client:
            client.write(request)
            await client.response()
            found.append((server.port, client.writer.get_extra_info("sockname")[1]))

    run(loop, test())
    environ, ports = found
    return environ, ports


def answer_of(arm, loop, application, request=CLOSING, **settings):
    """Return all that a client gets."""

    async def test():
        async with serve(arm, application, **settings) as server:
            return await server.ask(request)

    return run(loop, test())


# -- The environment --------------------------------------------------------------------------------------------------


def test_environment(arm, loop):
    request = b"GET /a%20b/%C3%A9?x=%41&y HTTP/1.1\r\nHost: example.org:81\r\nUser-Agent: me\r\n\r\n"
    environ, (port, client_port) = environ_of(arm, loop, request)
    assert type(environ) is dict
    stream = environ.pop("wsgi.input")
    assert all(hasattr(stream, name) for name in ("read", "readline", "readlines", "__iter__"))
    assert environ.pop("wsgi.errors") is not None
    assert callable(environ.pop("wsgi.file_wrapper"))
    assert environ.pop("SERVER_SOFTWARE").startswith("ringloop/")
    assert environ == {
        "REQUEST_METHOD": "GET",
        "SCRIPT_NAME": "",
        "PATH_INFO": "/a b/\u00c3\u00a9",
        "QUERY_STRING": "x=%41&y",
        "RAW_URI": "/a%20b/%C3%A9?x=%41&y",
        "REQUEST_URI": "/a%20b/%C3%A9?x=%41&y",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "SERVER_NAME": "127.0.0.1",
        "SERVER_PORT": str(port),
        "REMOTE_ADDR": "127.0.0.1",
        "REMOTE_PORT": str(client_port),
        "HTTP_HOST": "example.org:81",
        "HTTP_USER_AGENT": "me",
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "http",
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
        "wsgi.input_terminated": True,
    }


@pytest.mark.parametrize("target", ["/a", "/a?", "/a?b", "/a?b?", "/a??", "/?"])
def test_the_target_is_given_as_it_was_sent(arm, loop, target):
    """Also with a question mark that no query follows."""
    environ, _ = environ_of(arm, loop, b"GET %b HTTP/1.1\r\nHost: a\r\n\r\n" % target.encode())
    assert (environ["RAW_URI"], environ["REQUEST_URI"]) == (target, target)
    assert environ["QUERY_STRING"] == target.partition("?")[2]


@pytest.mark.parametrize("target", ["/a", "/a?", "/a?b"])
def test_the_target_of_a_stream_is_given_as_it_was_sent(arm, loop, target):
    def application(environ, start_response):
        start_response("200 OK", [])
        return [environ["RAW_URI"].encode()]

    async def test():
        server = Http2Server(arm, application, wsgi=serve(arm, application).settings["wsgi"])
        async with server, server.http2() as client:
            response = await client.response(client.ask(target))
            assert bytes(response.body) == target.encode()

    run(loop, test())


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (b"X-One: 1\r\nx-one: 2\r\n", {"HTTP_X_ONE": "1,2"}),
        (b"Cookie: a=b\r\nCookie: c=d\r\n", {"HTTP_COOKIE": "a=b; c=d"}),
        (b"X_One: 1\r\n", {"HTTP_X_ONE": None}),
        (b"X-One: 1\r\nX_One: 2\r\n", {"HTTP_X_ONE": "1"}),
        (b"X-Bytes: \xe9\xff\r\n", {"HTTP_X_BYTES": "\u00e9\u00ff"}),
        (b"Content-Type: text/plain\r\n", {"CONTENT_TYPE": "text/plain", "HTTP_CONTENT_TYPE": None}),
        (b"Content-Length: 0\r\n", {"CONTENT_LENGTH": "0", "HTTP_CONTENT_LENGTH": None}),
        (b"", {"CONTENT_TYPE": None, "CONTENT_LENGTH": None}),
    ],
)
def test_fields(arm, loop, fields, expected):
    environ, _ = environ_of(arm, loop, b"GET / HTTP/1.1\r\nHost: a\r\n" + fields + b"\r\n")
    assert {name: environ.get(name) for name in expected} == expected


def test_root_path(arm, loop):
    environ, _ = environ_of(arm, loop, b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n", root_path="/\u00e9")
    assert (environ["SCRIPT_NAME"], environ["PATH_INFO"]) == ("/\u00c3\u00a9", "/x")


def test_http10(arm, loop):
    environ, _ = environ_of(arm, loop, b"GET / HTTP/1.0\r\n\r\n")
    assert environ["SERVER_PROTOCOL"] == "HTTP/1.0"
    assert "HTTP_HOST" not in environ


def test_what_a_trusted_proxy_says(arm, loop):
    from ringloop.http._proxies import TrustedProxies

    fields = b"X-Forwarded-For: 1.2.3.4\r\nX-Forwarded-Proto: https\r\n"
    request = b"GET / HTTP/1.1\r\nHost: a\r\n" + fields + b"\r\n"
    for trusted, expected in (("127.0.0.1", ("https", "1.2.3.4")), ("10.0.0.1", ("http", "127.0.0.1"))):
        environ, _ = environ_of(arm, loop, request, forwarded=TrustedProxies(trusted).apply)
        assert (environ["wsgi.url_scheme"], environ["REMOTE_ADDR"]) == expected


def test_requests_do_not_share_their_environment(arm, loop):
    found = []

    def application(environ, start_response):
        found.append(environ.get("mine"))
        environ["mine"] = True
        start_response("200 OK", [])
        return [b""]

    async def test():
        async with serve(arm, application) as server, server.client() as client:
            for _ in range(3):
                client.write(GET)
                await client.response()

    run(loop, test())
    assert found == [None] * 3


def test_validator(arm, loop):
    def application(environ, start_response):
        data = environ["wsgi.input"].read(100)
        start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(data)))])
        return [data]

    request = post(b"some data", b"Content-Type: text/plain", b"Connection: close")
    answer = answer_of(arm, loop, wsgiref.validate.validator(application), request)
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b"\r\n\r\nsome data")


# -- Responses --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "framing", "body"),
    [
        (lambda: [b"hello"], b"content-length: 5\r\n", b"hello"),
        (lambda: (b"hello",), b"content-length: 5\r\n", b"hello"),
        (lambda: [b"hel", b"", b"lo"], b"content-length: 5\r\n", b"hello"),
        (list, b"content-length: 0\r\n", b""),
        (lambda: [b""], b"content-length: 0\r\n", b""),
        (lambda: iter([b"hel", b"", b"lo"]), b"transfer-encoding: chunked\r\n", None),
        (lambda: io.BytesIO(b"a\nb\n"), b"transfer-encoding: chunked\r\n", None),
        (lambda: iter([]), b"content-length: 0\r\n", b""),
    ],
)
def test_bodies(arm, loop, made, framing, body):
    def application(environ, start_response):
        start_response("200 OK", [("X-One", "1")])
        return made()

    head, _, rest = answer_of(arm, loop, application).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"\r\nx-one: 1" in head.lower()
    assert framing in head.lower() + b"\r\n"
    if body is not None:
        assert rest == body


def test_the_head_waits_for_the_first_part_of_the_body(arm, loop):
    def application(environ, start_response):
        yield b""
        start_response("404 Not Found", [("Content-Length", "2")])
        yield b""
        yield b"no"

    answer = answer_of(arm, loop, application)
    assert answer.startswith(b"HTTP/1.1 404 Not Found\r\n")
    assert answer.endswith(b"\r\n\r\nno")


def test_write(arm, loop):
    def application(environ, start_response):
        write = start_response("200 OK", [("Content-Length", "9")])
        write(b"one")
        write(b"")
        write(b"two")
        return [b"end"]

    assert answer_of(arm, loop, application).endswith(b"\r\n\r\nonetwoend")


@pytest.mark.parametrize(("status", "length"), [("204 No Content", None), ("304 Not Modified", "5"), ("200 OK", "5")])
def test_responses_without_a_body(arm, loop, status, length):
    method = b"HEAD" if status == "200 OK" else b"GET"

    def application(environ, start_response):
        start_response(status, [("Content-Length", length)] if length else [])
        return [] if status != "200 OK" else [b"hello"]

    async def test():
        async with serve(arm, application) as server, server.client() as client:
            for _ in range(2):
                client.write(method + b" / HTTP/1.1\r\nHost: a\r\n\r\n")
                line, fields, _ = await client.response(is_head=True)
                assert line == f"HTTP/1.1 {status}"
                assert fields.get("content-length") == length
            client.writer.write_eof()
            assert await client.rest() == b""

    run(loop, test())


def test_a_longer_body_is_cut(arm, loop, errors):
    application = answering(b"hello", ("Content-Length", "3"))

    async def test():
        async with serve(arm, application) as server, server.client() as client:
            for _ in range(2):
                client.write(GET)
                assert (await client.response())[2] == b"hel"

    run(loop, test())
    assert errors() == ["Response content longer than Content-Length"] * 2


def test_a_shorter_body_ends_the_connection(arm, loop, errors):
    answer = answer_of(arm, loop, answering(b"hello", ("Content-Length", "9")), GET)
    assert answer.endswith(b"\r\n\r\nhello")
    assert errors() == ["Response content shorter than Content-Length"]


REFUSED = [
    ("2000 OK", []),
    ("99 Low", []),
    ("100 Continue", []),
    ("abc", []),
    ("200\r\nx: y", []),
    ("200 OK\n", []),
    (200, []),
    (b"200 OK", []),
    ("200 OK", [("a b", "c")]),
    ("200 OK", [("", "c")]),
    ("200 OK", [("a", "b\r\nc: d")]),
    ("200 OK", [("a", "b\0")]),
    ("200 OK", [("a", "\u1234")]),
    ("200 OK", [("a", b"c")]),
    ("200 OK", [("a", 1)]),
    ("200 OK", [("a",)]),
    ("200 OK", [("Content-Length", "-1")]),
    ("200 OK", [("Content-Length", "1"), ("content-length", "2")]),
    ("200 OK", [("Connection", "close")]),
    ("200 OK", [("Transfer-Encoding", "chunked")]),
    ("200 OK", [("Upgrade", "x")]),
    ("200 OK", None),
]


@pytest.mark.parametrize(("status", "headers"), REFUSED)
def test_heads_that_are_refused(arm, loop, errors, status, headers):
    def application(environ, start_response):
        start_response(status, headers)
        return [b"hello"]

    assert answer_of(arm, loop, application).startswith(b"HTTP/1.1 500 Internal Server Error\r\n")
    assert errors() == ["Exception in WSGI application\n"]


@pytest.mark.parametrize("result", [None, 5, b"bytes", "text", ["text"], [b"x", None], {1: 2}])
def test_results_that_are_refused(arm, loop, errors, result):
    def application(environ, start_response):
        start_response("200 OK", [])
        return result

    assert answer_of(arm, loop, application).startswith(b"HTTP/1.1 500 Internal Server Error\r\n")
    assert errors() == ["Exception in WSGI application\n"]


def test_without_start_response(arm, loop, errors):
    assert answer_of(arm, loop, lambda environ, start_response: [b"x"]).startswith(b"HTTP/1.1 500 ")
    assert answer_of(arm, loop, lambda environ, start_response: []).startswith(b"HTTP/1.1 500 ")
    assert errors() == ["Exception in WSGI application\n"] * 2


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt, BaseException])
def test_an_exception_before_the_head(arm, loop, errors, error):
    def application(environ, start_response):
        start_response("200 OK", [])
        raise error

    assert answer_of(arm, loop, application).startswith(b"HTTP/1.1 500 Internal Server Error\r\n")
    assert errors() == ["Exception in WSGI application\n"]


def test_an_exception_after_the_head(arm, loop, errors):
    def application(environ, start_response):
        start_response("200 OK", [])
        yield b"hello"
        raise ValueError

    answer = answer_of(arm, loop, application, GET)
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b"5\r\nhello\r\n")
    assert errors() == ["Exception in WSGI application\n"]


def test_start_response_again(arm, loop, errors):
    def application(environ, start_response):
        start_response("200 OK", [])
        with pytest.raises(RuntimeError, match="already called"):
            start_response("200 OK", [])
        try:
            raise ValueError
        except ValueError:
            start_response("503 Sorry", [("X-Two", "2")], sys.exc_info())
        return [b"sorry"]

    answer = answer_of(arm, loop, application)
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"x-two: 2" in answer.lower()


def test_start_response_again_when_it_is_too_late(arm, loop, errors):
    found = []

    def application(environ, start_response):
        start_response("200 OK", [("Content-Length", "10")])
        yield b"hello"
        try:
            raise ValueError("mine")
        except ValueError as error:
            try:
                start_response("500 Sorry", [], sys.exc_info())
            except ValueError as again:
                found.append(again is error)
                raise

    assert answer_of(arm, loop, application).endswith(b"\r\n\r\nhello")
    assert found == [True]
    assert errors() == ["Exception in WSGI application\n"]


@pytest.mark.parametrize("fails", [False, True])
def test_close_is_called_once(arm, loop, errors, fails):
    made = []

    def parts():
        yield b"one"
        if fails:
            raise ValueError
        yield b"two"

    def application(environ, start_response):
        start_response("200 OK", [])
        made.append(Closing(parts()))
        return made[0]

    answer_of(arm, loop, application)
    assert len(made[0].closed) == 1
    assert errors() == ["Exception in WSGI application\n"] * fails


def test_an_exception_of_close(arm, loop, errors):
    class Failing(Closing):
        def close(self):
            raise ValueError

    def application(environ, start_response):
        start_response("200 OK", [("Content-Length", "3")])
        return Failing([b"one"])

    assert answer_of(arm, loop, application).endswith(b"\r\n\r\none")
    assert errors() == ["Exception in WSGI application\n"]


def test_access_log(arm, loop):
    async def test():
        async with serve(arm, answering(b""), log_access=True) as server:
            await server.ask(b"GET /x?y HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            return server.access

    ((address, *rest),) = run(loop, test())
    assert address.startswith("127.0.0.1:")
    assert rest == ["GET", "/x?y", "1.1", 200]


def test_metrics(arm, loop):
    async def test():
        async with serve(arm, answering(b"")) as server:
            await server.ask(CLOSING)
            return server.service.metrics()

    metrics = run(loop, test())
    assert metrics["requests"] == {("GET", 200): 1}


# -- HTTP/2 -----------------------------------------------------------------------------------------------------------


def test_http2(arm, loop):
    def application(environ, start_response):
        assert environ["SERVER_PROTOCOL"] == "HTTP/2"
        assert environ["HTTP_HOST"] == "example.org"
        data = environ["wsgi.input"].read()
        start_response("200 OK", [("X-One", "1")])
        return iter([environ["REQUEST_METHOD"].encode(), b" ", data])

    async def test():
        server = Http2Server(arm, application, wsgi=serve(arm, application).settings["wsgi"])
        async with server, server.http2() as client:
            first = client.ask("/")
            second = client.ask("/", method="POST", body=b"x" * 10_000)
            third = client.ask("/", method="HEAD")
            for stream, body in ((first, b"GET "), (second, b"POST " + b"x" * 10_000), (third, b"")):
                response = await client.response(stream)
                assert (response.status, response.has_ended, bytes(response.body)) == (200, True, body)
                assert ("x-one", "1") in response.fields

    run(loop, test())


# -- Which interface an application has -------------------------------------------------------------------------------


def interfaces():
    """Return applications by the interface that they must be taken for."""

    async def coroutine_function(scope, receive, send): ...

    class Asgi3:
        async def __call__(self, scope, receive, send): ...

        async def method(self, scope, receive, send): ...

    class Asgi2:
        def __init__(self, scope): ...

        async def __call__(self, receive, send): ...

    class Wsgi:
        def __call__(self, environ, start_response): ...

        def method(self, environ, start_response): ...

    class WsgiIterable:
        def __init__(self, environ, start_response): ...

        def __iter__(self): ...

    async def anything(*arguments): ...

    return {
        "asgi3": [
            coroutine_function,
            Asgi3(),
            Asgi3().method,
            anything,
            lambda scope, receive, send: coroutine_function(scope, receive, send),
            functools.partial(coroutine_function),
            functools.partial(lambda more, scope, receive, send: None, 1),
        ],
        "asgi2": [Asgi2, lambda scope: coroutine_function],
        "wsgi": [
            Wsgi(),
            Wsgi().method,
            WsgiIterable,
            lambda environ, start_response: [],
            lambda environ, start_response, more=None: [],
            lambda environ, start_response, /, *more, other=None: [],
            functools.partial(lambda more, environ, start_response: [], 1),
            wsgiref.simple_server.demo_app,
        ],
    }


@pytest.mark.parametrize("expected", ["asgi3", "asgi2", "wsgi"])
@pytest.mark.any_backend
def test_the_interface_is_recognised(arm, expected):
    from ringloop.http._applications import interface_of

    assert [interface_of(app) for app in interfaces()[expected]] == [expected] * len(interfaces()[expected])


@pytest.mark.parametrize("interface", ["wsgi", "auto"])
@pytest.mark.any_backend
def test_what_takes_any_number_of_arguments_for_a_view_is_wsgi_and_no_factory(arm, interface):
    """Werkzeug's `Request.application` makes applications that take any number of arguments."""
    from ringloop.http import Config

    def view(request): ...

    @functools.wraps(view)
    def application(*args):
        return args[-2]

    config = Config(application, interface=interface, log_config=None)
    config.load()
    assert config.loaded_app is application
    assert config.interface == "wsgi"


def wrapping(function):
    """Return a function that takes what `function` does, and more, as decorators that trace calls do."""

    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


APPLICATION = answering(b"")


@pytest.mark.parametrize(
    "factory",
    [
        lambda: APPLICATION,
        lambda config=None, testing=False: APPLICATION,
        lambda *args, **kwargs: APPLICATION,
        wrapping(lambda: APPLICATION),
        wrapping(lambda config=None: APPLICATION),
    ],
)
@pytest.mark.parametrize("interface", ["wsgi", "auto"])
@pytest.mark.any_backend
def test_what_can_be_called_without_arguments_is_a_factory(arm, factory, interface):
    from ringloop.http import Config

    config = Config(factory, interface=interface, log_config=None)
    config.load()
    assert config.loaded_app is APPLICATION
    assert config.interface == "wsgi"


@pytest.mark.parametrize("app", [lambda *_: None, lambda: None, lambda a, b, c, d: None, 5, dict])
@pytest.mark.any_backend
def test_an_interface_that_can_not_be_recognised(arm, app):
    from ringloop.http._applications import interface_of
    from ringloop.http._errors import StartupError

    with pytest.raises(StartupError, match="set --interface to asgi3, asgi2 or wsgi"):
        interface_of(app)
