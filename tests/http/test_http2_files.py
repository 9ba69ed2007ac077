"""Responses on HTTP/2 that are files: ASGI's extension http.response.pathsend."""

import asyncio
import functools
import os

import pytest

import http2
from serving import answer, run
from test_pathsend import LARGE, SMALL, caught, length, make, open_files, send_file, serving_file

pytestmark = pytest.mark.ringloop_only


@pytest.fixture
def folder(tmp_path):
    """Yield a folder whose files nobody has open after the test."""
    yield tmp_path
    assert open_files(tmp_path) == []


@pytest.mark.parametrize("size", [0, 1, SMALL, 16 * 1024, 16 * 1024 + 1, LARGE])
@pytest.mark.parametrize("names_length", [True, False])
def test_a_file(arm, loop, folder, size, names_length):
    path, content = make(folder, size)
    fields = [length(size)] if names_length else []

    async def test():
        async with http2.Server(arm, serving_file(path, *fields)) as server, server.http2() as client:
            for stream in [client.ask() for _ in range(3)]:
                response = await client.response(stream)
                assert (response.status, response.has_ended) == (200, True)
                assert ("content-length", str(size)) in response.fields
                assert response.body == content

    run(loop, test())


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_a_head(arm, loop, folder, size):
    path, _ = make(folder, size)

    async def test():
        async with http2.Server(arm, serving_file(path, length(size))) as server, server.http2() as client:
            response = await client.get(method="HEAD")
            assert ("content-length", str(size)) in response.fields
            assert (response.body, response.has_ended) == (b"", True)

    run(loop, test())


def test_a_file_that_has_grown(arm, loop, folder):
    path, content = make(folder, SMALL)

    async def test():
        async with http2.Server(arm, serving_file(path, length(10))) as server, server.http2() as client:
            assert (await client.get()).body == content[:10]

    run(loop, test())


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_a_file_that_is_too_short(arm, loop, folder, size):
    """The stream is reset; the connection goes on."""
    path, content = make(folder, size)
    errors = []

    async def application(scope, receive, send):
        fields = [length(size + 1)] if scope["path"] == "/short" else []
        errors.append(await caught(send_file(send, path, *fields)))

    async def test():
        async with http2.Server(arm, application) as server, server.http2() as client:
            assert (await client.get("/short")).code is not None
            assert (await client.get("/")).body == content

    run(loop, test())
    assert [str(error) for error in errors] == ["Response content shorter than Content-Length", "None"]


def test_a_file_that_is_not_there(arm, loop, folder):
    errors = []

    async def application(scope, receive, send):
        await send({"type": "http.response.start", "status": 200})
        errors.append(await caught(send({"type": "http.response.pathsend", "path": str(folder / "none")})))
        await send({"type": "http.response.body", "body": b"instead"})

    async def test():
        async with http2.Server(arm, application) as server, server.http2() as client:
            assert (await client.get()).body == b"instead"

    run(loop, test())
    assert isinstance(errors[0], FileNotFoundError)


@pytest.mark.parametrize("status", [204, 205, 304])
@pytest.mark.parametrize("size", [0, SMALL, LARGE])
def test_a_status_without_a_body(arm, loop, folder, status, errors, size):
    path, _ = make(folder, size)

    async def test():
        application = serving_file(path, status=status)
        async with http2.Server(arm, application) as server, server.http2() as client:
            response = await client.get()
            assert (response.status, response.body, response.has_ended) == (status, b"", True)

    run(loop, test())
    warning = f"A response with status {status} has no body. What was sent of one is dropped."
    assert errors() == ([warning] if size else [])


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_trailers_after_a_file(arm, loop, folder, size):
    path, content = make(folder, size)

    async def application(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "trailers": True})
        await send({"type": "http.response.pathsend", "path": path})
        await send({"type": "http.response.trailers", "headers": [(b"x-sum", b"1")]})

    async def test():
        async with http2.Server(arm, application) as server, server.http2() as client:
            response = await client.get()
            assert (response.body, response.trailers) == (content, [("x-sum", "1")])

    run(loop, test())


def test_other_messages_while_a_file_is_sent(arm, loop, folder):
    path, content = make(folder, LARGE)
    errors = []

    async def application(scope, receive, send):
        await send({"type": "http.response.start", "status": 200})
        sending = asyncio.ensure_future(send({"type": "http.response.pathsend", "path": path}))
        await asyncio.sleep(0)
        errors.append(await caught(send({"type": "http.response.body", "body": b"x"})))
        await sending

    async def test():
        async with http2.Server(arm, application) as server, server.http2() as client:
            assert (await client.get()).body == content

    run(loop, test())
    assert "after response already completed" in str(errors[0])


@pytest.mark.parametrize("end", ["reset", "lost", "cancelled", "aborted"])
def test_a_client_that_makes_no_room(arm, loop, folder, end, errors):
    """The file is read no further than the windows allow, and closed when the stream ends."""
    path = folder / "huge"
    with open(path, "wb") as file:
        file.truncate(1 << 40)
    tasks = []
    other, content = make(folder, SMALL, "other")

    async def application(scope, receive, send):
        if scope["path"] == "/other":
            await send_file(send, other)
            return
        tasks.append(asyncio.current_task())
        await send_file(send, str(path))

    async def test():
        async with http2.Server(arm, application) as server, server.http2() as client:
            client.gives_room = False
            stream = client.ask()
            await client.until(lambda: len(client.streams[stream].body) == 65535)
            client.h2.increment_flow_control_window(1 << 20)
            # The other streams go on.
            assert (await client.get("/other")).body == content
            assert not tasks[0].done()
            if end == "reset":
                client.reset_stream(stream)
            elif end == "lost":
                client.reset()
            elif end == "cancelled":
                tasks[0].cancel()
                assert (await client.response(stream)).code is not None
            else:
                server.service.abort()
            await asyncio.wait(tasks)

    run(loop, test())
    errors()


def test_a_deadline_for_a_client_that_makes_no_room(arm, loop, folder):
    path, _ = make(folder, LARGE)
    serve = functools.partial(http2.Server, arm, serving_file(path), timeout_write=0.1)

    async def test():
        async with serve() as server, server.http2() as client:
            client.gives_room = False
            stream = client.ask()
            assert (await client.response(stream)).code is not None
            while server.service.active:
                await asyncio.sleep(0)

    run(loop, test())


def test_many_files_at_once(arm, loop, folder):
    files = [make(folder, size, str(size)) for size in (0, 100, 20_000, 70_000, 300_000)]

    async def application(scope, receive, send):
        path, _ = files[int(scope["path"][1:])]
        if scope["path"] == "/0":
            await answer(send, os.fsencode(path))
        else:
            await send_file(send, path)

    async def test():
        async with http2.Server(arm, application) as server, server.http2() as client:
            streams = [(client.ask(f"/{number % 5}"), number % 5) for number in range(50)]
            for stream, number in streams:
                expected = os.fsencode(files[0][0]) if number == 0 else files[number][1]
                assert (await client.response(stream)).body == expected

    run(loop, test())
