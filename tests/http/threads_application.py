"""The application that the tests of `--threads` serve: it says in which thread things happen."""

import asyncio
import json
import threading

from applications import answer, say

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


async def failing_app(scope, receive, send):
    failing.add("ringloop serve, thread 2")
    await app(scope, receive, send)


async def stopping_app(scope, receive, send):
    """Stop the loop of a further thread when the server ends."""
    await app(scope, receive, send)
    if scope.get("path") == "/stream" and here() != "first":
        asyncio.get_running_loop().stop()


def view(environ, start_response):
    start_response("200 OK", [("content-type", "text/plain")])
    return [b"multithread" if environ["wsgi.multithread"] else b"alone"]
