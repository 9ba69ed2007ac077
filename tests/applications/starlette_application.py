"""The application that test_uvicorn.py has served: one route for each thing that a web application does to its loop."""

import asyncio
import contextlib
import hashlib

from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse, StreamingResponse
from starlette.routing import Route, WebSocketRoute

PIECE = bytes(range(256)) * 64


async def about(request):
    """Say which loop runs this, and which connection it came over."""
    loop = asyncio.get_running_loop()
    backend = getattr(loop, "backend", "asyncio")
    return JSONResponse({"backend": backend, "type": type(loop).__name__, "client": list(request.client)})


async def number(request):
    return PlainTextResponse(str(request.path_params["number"]))


async def digest(request):
    """Return the SHA-256 of the body, read piece by piece."""
    digest, size = hashlib.sha256(), 0
    async for piece in request.stream():
        digest.update(piece)
        size += len(piece)
    return JSONResponse({"size": size, "sha256": digest.hexdigest()})


async def stream(request):
    """Send as many pieces as the client asks for."""

    async def pieces():
        for _ in range(int(request.query_params["pieces"])):
            yield PIECE

    return StreamingResponse(pieces())


class Mirror:
    """Send the body back while it comes. Plain ASGI: Starlette's responses listen for the end of the connection themselves."""

    def __init__(self, scope, receive, send):
        self.receive, self.send = receive, send

    def __await__(self):
        return self.respond().__await__()

    async def respond(self):
        await self.send({"type": "http.response.start", "status": 200, "headers": []})
        more = True
        while more:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                return
            more = message.get("more_body", False)
            await self.send({"type": "http.response.body", "body": message.get("body", b""), "more_body": more})


async def fail(_request):
    raise RuntimeError("the handler failed")


async def echo(websocket):
    """Send back what comes; the text "close" makes the server close."""
    await websocket.accept()
    while (message := await websocket.receive())["type"] == "websocket.receive":
        if message.get("text") == "close":
            await websocket.close(4001, "as you asked")
            return
        if message.get("bytes") is not None:
            await websocket.send_bytes(message["bytes"])
        else:
            await websocket.send_text(message["text"])
    print("websocket closed with", message["code"], flush=True)


@contextlib.asynccontextmanager
async def lifespan(_application):
    print("application started", flush=True)
    yield
    print("application stopped", flush=True)


application = Starlette(
    lifespan=lifespan,
    routes=[
        Route("/about", about),
        Route("/number/{number:int}", number),
        Route("/digest", digest, methods=["POST"]),
        Route("/stream", stream),
        Route("/mirror", Mirror, methods=["POST"]),
        Route("/fail", fail),
        WebSocketRoute("/echo", echo),
    ],
)
