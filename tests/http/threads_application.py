"""The application that the tests of `--threads` serve: it says in which thread things happen."""

import asyncio
import json
import os
import resource
import threading

from applications import answer, say

PATIENCE_S = 100

say("imported")


def here():
    return "first" if threading.current_thread() is threading.main_thread() else threading.current_thread().name


async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        while (message := await receive())["type"] == "lifespan.startup":
            say(f"startup in {here()}")
            if here() in failing:
                await send({"type": "lifespan.startup.failed", "message": "no start here"})
                return
            scope["state"]["made in"] = here()
            await send({"type": "lifespan.startup.complete"})
        say(f"shutdown in {here()}")
        await send({"type": f"{message['type']}.complete"})
    elif scope["path"] == "/hold":
        # The loop of this thread does nothing else until another one has been asked.
        released.clear()
        say(f"held {here()}")
        await answer(send, json.dumps(released.wait(PATIENCE_S)).encode())
    elif scope["path"] == "/release":
        released.set()
        await answer(send, json.dumps([here(), scope["state"]["made in"]]).encode())
    elif scope["path"] == "/stop":
        asyncio.get_running_loop().stop()
    elif scope["path"] == "/stop-first":
        await answer(send, b"stopping" if here() == "first" else b"not here")
        if here() == "first":
            asyncio.get_running_loop().call_later(0.1, asyncio.get_running_loop().stop)
    elif scope["path"] == "/stream":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": f"begun in {here()}.".encode(), "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass
        await send({"type": "http.response.body", "body": b" ended"})
    else:
        await answer(send, json.dumps([here(), scope["state"]["made in"]]).encode())


failing: set[str] = set()
released = threading.Event()
SECOND, THIRD = "ringloop serve, thread 1", "ringloop serve, thread 2"


async def failing_app(scope, receive, send):
    failing.add(THIRD)
    await app(scope, receive, send)


async def slow_app(scope, receive, send):
    """One thread's lifespan does not start until it is told to end, and another one's fails."""
    if scope["type"] == "lifespan" and here() == SECOND:
        say("waiting")
        await asyncio.get_running_loop().create_future()
    await failing_app(scope, receive, send)


async def threadless_app(scope, receive, send):
    """There is no room for the last thread."""
    start = threading.Thread.start

    def refuse(self):
        if self.name == THIRD:
            raise RuntimeError("can't start new thread")
        start(self)

    threading.Thread.start = refuse
    await app(scope, receive, send)


async def exhausting_app(scope, receive, send):
    """There are no descriptors left when the further threads begin."""
    if scope["type"] == "lifespan" and here() == "first":
        used = len(os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + int(os.environ["SPARE_DESCRIPTORS"]), 4096))
    await app(scope, receive, send)


async def stopping_app(scope, receive, send):
    """Stop the loop of a further thread when the server ends."""
    await app(scope, receive, send)
    if scope.get("path") == "/stream" and here() != "first":
        asyncio.get_running_loop().stop()


meeting = threading.Barrier(2)


def view(environ, start_response):
    if environ["PATH_INFO"] == "/meet":
        meeting.wait(PATIENCE_S)
    start_response("200 OK", [("content-type", "text/plain")])
    return [f"{environ['wsgi.multithread']} {threading.get_ident()}".encode()]
