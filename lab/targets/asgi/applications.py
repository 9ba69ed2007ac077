"""The applications that every ASGI server of ringlab serves, and the bytes that the load generator expects of them."""

import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

TEXT = (b"content-type", b"text/plain")
HELLO = b"Hello, World!"
CHUNKS = 100
CHUNK = b"0123456789" * 10
FIELDS = 20
ANSWERED = [(b"x-answer-%d" % number, b"value %d of the answer" % number) for number in range(FIELDS)]


async def lifespan(receive: Receive, send: Send) -> None:
    """Take part in the lifespan protocol, without anything to do."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


async def hello(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer 13 bytes."""
    if scope["type"] == "lifespan":
        return await lifespan(receive, send)
    await send({"type": "http.response.start", "status": 200, "headers": [TEXT, (b"content-length", b"13")]})
    await send({"type": "http.response.body", "body": HELLO})


async def post(scope: Scope, receive: Receive, send: Send) -> None:
    """Read the body, and answer its length."""
    if scope["type"] == "lifespan":
        return await lifespan(receive, send)
    length, more = 0, True
    while more:
        message = await receive()
        length += len(message.get("body", b""))
        more = message.get("more_body", False)
    body = b"%d" % length
    fields = [TEXT, (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": fields})
    await send({"type": "http.response.body", "body": body})


async def stream(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer in chunks, without a length."""
    if scope["type"] == "lifespan":
        return await lifespan(receive, send)
    await send({"type": "http.response.start", "status": 200, "headers": [TEXT]})
    for _ in range(CHUNKS):
        await send({"type": "http.response.body", "body": CHUNK, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def headers(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with 20 fields, and how many of the request's 20 have come."""
    if scope["type"] == "lifespan":
        return await lifespan(receive, send)
    body = b"%d" % sum(name.startswith(b"x-request-") for name, _ in scope["headers"])
    fields = [*ANSWERED, (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": fields})
    await send({"type": "http.response.body", "body": body})


async def websocket(scope: Scope, receive: Receive, send: Send) -> None:
    """Send every message back."""
    if scope["type"] == "lifespan":
        return await lifespan(receive, send)
    if scope["type"] != "websocket":
        return await hello(scope, receive, send)
    await receive()
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        await send({"type": "websocket.send", "bytes": message["bytes"]})


def starlette() -> Any:
    """Return Starlette's hello world."""
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route

    async def endpoint(request: Request) -> PlainTextResponse:
        return PlainTextResponse("Hello, World!")

    return Starlette(routes=[Route("/", endpoint)])


def fastapi() -> Any:
    """Return FastAPI's hello world, in JSON."""
    from fastapi import FastAPI

    application = FastAPI()

    @application.get("/")
    async def endpoint() -> dict[str, str]:
        return {"message": "Hello, World!"}

    return application


def file() -> Any:
    """Return an application that answers with a file, by `http.response.pathsend` where the server offers that."""
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import FileResponse
    from starlette.routing import Route

    path = os.environ["RINGLAB_FILE"]

    async def endpoint(request: Request) -> FileResponse:
        return FileResponse(path, media_type="application/octet-stream")

    return Starlette(routes=[Route("/", endpoint)])


MAKERS = {"starlette": starlette, "fastapi": fastapi, "file": file}

# The framework that a run doesn't need isn't imported: it would be in the figures of memory.
chosen = os.environ.get("RINGLAB_APPLICATION", "hello")
application = MAKERS[chosen]() if chosen in MAKERS else globals()[chosen]
