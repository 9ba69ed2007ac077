"""The access log as a server writes it: lines that are formatted natively and written together, where nobody can tell."""

import asyncio
import io
import logging
import os
import re

import pytest
from _pytest.logging import LogCaptureHandler

from ringloop.http import Config
from ringloop.http import logging as http_logging
from serving import Server, answer, run
from test_logging import app, loggers_as_before, record

__all__ = ["loggers_as_before"]

pytestmark = [pytest.mark.ringloop_only, pytest.mark.without_debug_mode]

LOG = logging.getLogger("uvicorn.access")
ERRORS = logging.getLogger("uvicorn.error")


class Stream(io.StringIO):
    """A stream that remembers what was written to it at once."""

    def __init__(self):
        super().__init__()
        self.pieces = []

    def write(self, text):
        self.pieces.append(text)
        return super().write(text)

    def lines(self):
        return [line.partition(" - ")[2] for line in self.getvalue().splitlines()]


class LoggingServer(Server):
    def make_service(self):
        self.settings["access_log"] = http_logging.access_log()
        return super().make_service()


@pytest.fixture
def stream():
    """Return the stream that the access log is written to."""
    return configured()


def configured(**options):
    Config(app, **options)
    stream = LOG.handlers[0].stream = Stream()
    return stream


async def reply(scope, receive, send):
    """Answer with the status that the path begins with."""
    number = re.match(r"/([1-9]\d\d)", scope["path"])
    await answer(send, status=int(number[1]) if number else 200)


def request(target="/", method="GET", *fields, version="1.1"):
    head = "".join(f"{field}\r\n" for field in ("Host: a", *fields))
    return f"{method} {target} HTTP/{version}\r\n{head}\r\n".encode()


def without_pytests_handlers():
    """Remove pytest's handlers, which it adds to loggers that don't propagate, too."""
    LOG.handlers[:] = [handler for handler in LOG.handlers if not isinstance(handler, LogCaptureHandler)]


def log_of(arm, loop, talk, application=reply, **settings):
    without_pytests_handlers()

    async def test():
        async with LoggingServer(arm, application, **settings) as server, server.client() as client:
            return await talk(server, client)

    result = run(loop, test())
    http_logging.flush_access_logs()
    return result


def ask(*requests, at_once=False):
    """Hold a conversation: each request and its response, or all of them at once."""

    async def talk(server, client):
        if at_once:
            client.write(b"".join(requests))
        for each in requests:
            if not at_once:
                client.write(each)
            await client.response(is_head=each.startswith(b"HEAD"))

    return talk


REQUESTS = [
    request(),
    request("/a/b-c_d.e~f?g=h&i"),
    request("/%C3%A4%20%25%ff/'()*!;:@&=+$,"),
    request("/?" + "x" * 3000),
    request("/" + "%ff" * 2000),
    request("/204", "POST", "Content-Length: 0"),
    request("/302", "HEAD"),
    request("/404", "BREW"),
    request("/500"),
    request("/299"),
    request("/999"),
    request("/forwarded", "GET", "X-Forwarded-For: 1"),
    request("/", "GET", "Connection: keep-alive", version="1.0"),
]


def forwarded(scope):
    scope["client"] = ("1.2.3.4", 0)


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("colors", [True, False])
def test_lines_equal_those_of_the_handler(arm, loop, colors, at_once):
    settings = {"forwarded": forwarded}
    ours = configured(use_colors=colors)
    log_of(arm, loop, ask(*REQUESTS, at_once=at_once), **settings)
    theirs = configured(use_colors=colors)
    LOG.addFilter(lambda record: True)
    try:
        log_of(arm, loop, ask(*REQUESTS, at_once=at_once), **settings)
    finally:
        LOG.filters.clear()
    assert len(theirs.pieces) >= len(REQUESTS)
    hide = re.compile(r"127\.0\.0\.1:\d+")
    assert hide.sub("client", ours.getvalue()) == hide.sub("client", theirs.getvalue())
    if at_once:
        assert len(ours.pieces) < len(REQUESTS)


def test_requests_of_a_turn_are_written_at_once(arm, loop, stream):
    log_of(arm, loop, ask(*3 * [request()], at_once=True))
    assert stream.lines() == 3 * ['"GET / HTTP/1.1" 200 OK']
    assert len(stream.pieces) == 1


def test_pieces_are_whole_lines_and_fit_into_a_pipe(arm, loop, stream):
    targets = [f"/{'x' * length}" for length in (0, 900, 900, 900, 900, 900, 5000, 1, 2, 4000)]
    log_of(arm, loop, ask(*map(request, targets), at_once=True))
    assert stream.lines() == [f'"GET {target} HTTP/1.1" 200 OK' for target in targets]
    assert 1 < len(stream.pieces) < len(targets)
    for piece in stream.pieces:
        assert piece.endswith("\n")
        assert len(piece) <= 4096 or piece.count("\n") == 1


def add_filter(patch, seen):
    patch.setattr(LOG, "filters", [lambda record: seen.append(record) or True])


def add_filter_to_handler(patch, seen):
    patch.setattr(LOG.handlers[0], "filters", [lambda record: seen.append(record) or True])


def add_handler(patch, seen):
    handler = logging.Handler()
    handler.emit = seen.append
    LOG.addHandler(handler)


def replace_handler(patch, seen):
    class Handler(logging.StreamHandler):
        def emit(self, record):
            seen.append(record)

    LOG.handlers[:] = [Handler(LOG.handlers[0].stream)]


def propagate(patch, seen):
    handler = logging.Handler()
    handler.emit = seen.append
    patch.setattr(logging.getLogger("uvicorn"), "handlers", [handler])
    LOG.propagate = True


def replace_formatter(patch, seen):
    class Formatter(http_logging.AccessFormatter):
        def format(self, record):
            seen.append(record)
            return super().format(record)

    LOG.handlers[0].setFormatter(Formatter())


def replace_format(patch, seen):
    class Seen(str):
        def __mod__(self, values):
            seen.append(values)
            return "seen"

    LOG.handlers[0].formatter._style._fmt = Seen("%(client_addr)s")


def override(name, holder):
    def change(patch, seen):
        def seeing(*arguments):
            seen.append(arguments)
            return original(*arguments)

        original = getattr(holder(), name)
        patch.setattr(holder(), name, seeing)

    change.__name__ = f"override {name}"
    return change


def replace_factory(patch, seen):
    factory = logging.getLogRecordFactory()
    patch.setattr(logging, "_logRecordFactory", lambda *a, **k: seen.append(a) or factory(*a, **k))


CHANGES = [
    add_filter,
    add_filter_to_handler,
    add_handler,
    replace_handler,
    propagate,
    replace_formatter,
    replace_format,
    replace_factory,
    override("handle", lambda: LOG),
    override("emit", lambda: LOG.handlers[0]),
    override("formatMessage", lambda: LOG.handlers[0].formatter),
    override("callHandlers", lambda: logging.Logger),
    override("emit", lambda: logging.StreamHandler),
    override("format", lambda: logging.Formatter),
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda it: it.__name__)
def test_changes_while_it_runs_take_effect(arm, loop, stream, monkeypatch, change):
    seen = []

    async def talk(server, client):
        await ask(*3 * [request()], at_once=True)(server, client)
        while not stream.pieces:
            await asyncio.sleep(0)
        assert len(stream.pieces) == 1
        with monkeypatch.context() as patch:
            change(patch, seen)
            await ask(*3 * [request()], at_once=True)(server, client)
            await asyncio.sleep(0)
        assert len(seen) == 3

    log_of(arm, loop, talk)


def test_levels_that_change_while_it_runs(arm, loop, stream):
    async def talk(server, client):
        for disable, enable in [
            (lambda: LOG.setLevel(logging.WARNING), lambda: LOG.setLevel(logging.INFO)),
            (lambda: logging.disable(logging.INFO), lambda: logging.disable(logging.NOTSET)),
            (lambda: setattr(LOG, "disabled", True), lambda: setattr(LOG, "disabled", False)),
            (lambda: LOG.handlers[0].setLevel(logging.WARNING), lambda: LOG.handlers[0].setLevel(logging.INFO)),
        ]:
            await ask(request("/seen"))(server, client)
            await asyncio.sleep(0)
            disable()
            try:
                await ask(request("/hidden"))(server, client)
                await asyncio.sleep(0)
            finally:
                enable()

    log_of(arm, loop, talk)
    assert stream.lines() == 4 * ['"GET /seen HTTP/1.1" 200 OK']


def test_scopes_that_an_application_changes(arm, loop, stream):
    """Lines show what is in the scope when the response begins, as uvicorn's do."""
    changes = [
        {"client": None},
        {"client": ["host", 7]},
        {"client": ("host", "x")},
        {"client": ("höst", 70000)},
        {"path": "/ä%\n"},
        {"method": "a method"},
        {"query_string": b"a=b"},
    ]

    async def application(scope, receive, send):
        scope.update(changes[int(scope["path"][1:])])
        await answer(send)

    log_of(arm, loop, ask(*(request(f"/{index}") for index in range(len(changes))), at_once=True), application)
    lines = stream.getvalue().splitlines()
    assert lines[:4] == [
        'INFO:      - "GET /0 HTTP/1.1" 200 OK',
        'INFO:     host:7 - "GET /1 HTTP/1.1" 200 OK',
        'INFO:     host:x - "GET /2 HTTP/1.1" 200 OK',
        'INFO:     höst:70000 - "GET /3 HTTP/1.1" 200 OK',
    ]
    assert stream.lines()[4:] == [
        '"GET /%C3%A4%25%0A HTTP/1.1" 200 OK',
        '"a method /5 HTTP/1.1" 200 OK',
        '"GET /6?a=b HTTP/1.1" 200 OK',
    ]


def test_lines_come_before_records_that_are_logged_later(arm, loop, stream):
    logging.getLogger("uvicorn").handlers[0].stream = stream

    async def application(scope, receive, send):
        await answer(send)
        if scope["path"] == "/error":
            ERRORS.error("later")
        if scope["path"] == "/access":
            LOG.info('%s - "%s %s HTTP/%s" %d', "me", "GET", "/later", "1.1", 200)
        if scope["path"] == "/raise":
            raise RuntimeError("for the log")

    log_of(arm, loop, ask(*map(request, ("/error", "/access", "/raise", "/")), at_once=True), application)
    lines = [line for line in stream.getvalue().splitlines() if line.startswith(("INFO", "ERROR"))]
    kinds = [re.search(r"GET (\S*)|later|Exception", line)[0] for line in lines]
    assert kinds == ["GET /error", "later", "GET /access", "GET /later", "GET /raise", "Exception", "GET /"]


@pytest.mark.parametrize("error", [OSError, ValueError])
def test_a_stream_that_fails(arm, loop, stream, capsys, error):
    def fail(text):
        raise error("the disk is full")

    stream.write = fail
    log_of(arm, loop, ask(request(), request()))
    complaint = capsys.readouterr().err
    assert complaint.count("--- Logging error ---") == 2
    assert "the disk is full" in complaint
    assert "GET / HTTP/1.1" in complaint


def test_a_line_that_cannot_be_encoded_does_not_take_others_along(arm, loop, stream, capsys):
    written = io.BytesIO()
    LOG.handlers[0].stream = io.TextIOWrapper(written, encoding="ascii")

    async def application(scope, receive, send):
        if scope["path"] == "/1":
            scope["client"] = ("höst", 80)
        await answer(send)

    log_of(arm, loop, ask(*map(request, ("/0", "/1", "/2")), at_once=True), application)
    assert re.findall(rb"GET (\S+)", written.getvalue()) == [b"/0", b"/2"]
    assert capsys.readouterr().err.count("--- Logging error ---") == 1


# Newer Pythons warn of a fork while threads run: those of other tests may.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_does_not_write_what_its_parent_holds_back(arm, loop, stream):
    async def application(scope, receive, send):
        await answer(send)
        assert stream.pieces == []
        child = os.fork()
        if child == 0:
            http_logging.flush_access_logs()
            os._exit(len(stream.pieces))
        _, status = os.waitpid(child, 0)
        counts.extend((len(stream.pieces), os.waitstatus_to_exitcode(status)))

    counts = []
    log_of(arm, loop, ask(request()), application)
    assert counts == [1, 1]


def test_lines_are_written_when_the_loop_has_ended(arm, loop, stream):
    async def application(scope, receive, send):
        await answer(send)
        stopped.set_result(None)

    without_pytests_handlers()

    async def serve():
        async with LoggingServer(arm, application) as server, server.client() as client:
            client.write(request())
            await asyncio.Event().wait()

    stopped = loop.create_future()
    task = loop.create_task(serve())
    stopped.add_done_callback(lambda _: loop.stop())
    loop.run_forever()
    http_logging.flush_access_logs()
    assert stream.lines() == ['"GET / HTTP/1.1" 200 OK']
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(task)


def test_a_formatter_that_is_used_directly_writes_what_is_held_back(arm, loop, stream):
    async def application(scope, receive, send):
        await answer(send)
        seen.append(len(stream.pieces))
        http_logging.DefaultFormatter().format(record())
        seen.append(len(stream.pieces))

    seen = []
    log_of(arm, loop, ask(request()), application)
    assert seen == [0, 1]
