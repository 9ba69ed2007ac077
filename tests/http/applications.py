"""The ASGI applications that the tests serve."""

import asyncio
import contextlib
import json
import os
import signal
import sys

# More than the kernel's buffers take.
LARGE = 20 << 20


def say(text):
    """Print a line in one piece, also where several processes print."""
    os.write(1, f"{text}\n".encode())


async def answer(send, body=b"", status=200, headers=()):
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})
    await send({"type": "http.response.body", "body": body})


async def app(scope, receive, send):
    """Answer with what it was asked, by path."""
    if scope["type"] == "lifespan":
        await lifespan(scope, receive, send)
        return
    assert scope["type"] == "http"
    path = scope["path"].removeprefix(scope["root_path"])
    if path == "/pid":
        await answer(send, str(os.getpid()).encode())
    elif path == "/scope":
        shown = {key: scope[key] for key in ("client", "scheme", "root_path", "path", "server")}
        shown["state"] = scope.get("state")
        await answer(send, json.dumps(shown).encode())
    elif path == "/environment":
        await answer(send, json.dumps(dict(os.environ)).encode())
    elif path == "/kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif path == "/stream":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass
        say("heard http.disconnect")
    elif path == "/stubborn":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            say("cancelled")
            raise
    elif path == "/deaf":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        background.append(asyncio.create_task(ignore_cancellation(), name="in the background"))
        await ignore_cancellation()
    elif path == "/large":
        say("sending")
        await answer(send, LARGE * b"x")
    elif path == "/grow":
        sys.modules[__name__].ballast = bytearray(os.urandom(1 << 20) * 300)
        await answer(send)
    else:
        await answer(send, b"hello")


background = []


async def ignore_cancellation():
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()


async def lifespan(scope, receive, send):
    assert await receive() == {"type": "lifespan.startup"}
    if "state" in scope:
        scope["state"]["begun"] = "in lifespan"
    say("startup")
    await send({"type": "lifespan.startup.complete"})
    assert await receive() == {"type": "lifespan.shutdown"}
    say("shutdown")
    await send({"type": "lifespan.shutdown.complete"})


async def slow_to_start(scope, receive, send):
    """Wait in the startup until a file is there."""
    if scope["type"] == "lifespan":
        await receive()
        say("starting")
        while not os.path.exists(os.environ["GATE"]):
            await asyncio.sleep(0.01)
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})
    else:
        await answer(send, b"at last")


async def failing(scope, receive, send):
    assert scope["type"] == "lifespan"
    await receive()
    await send({"type": "lifespan.startup.failed", "message": "no database"})


async def without_lifespan(scope, receive, send):
    assert scope["type"] == "http"
    await answer(send, b"hello")


async def broken_shutdown(scope, receive, send):
    if scope["type"] == "lifespan":
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        raise ValueError("cannot end")
    await answer(send)


async def hanging_shutdown(scope, receive, send):
    if scope["type"] == "lifespan":
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        say("hanging")
        await asyncio.Event().wait()
    await answer(send)


def make():
    return app


def make_with_arguments(needed):
    return app


def of_asgi2(scope):
    async def instance(receive, send):
        version = scope["asgi"]["version"].encode()
        await (lifespan(scope, receive, send) if scope["type"] == "lifespan" else answer(send, b"asgi " + version))

    return instance


class Callable:
    async def __call__(self, scope, receive, send):
        await app(scope, receive, send)


instance = Callable()
