"""The application that `make soak` has `ringloop serve` serve, and the resources that the server's process holds."""

import asyncio
import concurrent.futures
import ctypes
import gc
import json
import logging
import mmap
import os
import signal
import socket
import sys
import tempfile
import threading
import time
import urllib.parse

FILE_BYTES = 1_000_000
LEAKED = []
SERVED = {}


def pattern(size):
    """Return bytes that both sides know."""
    return (bytes(range(251)) * (size // 251 + 1))[:size]


async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        await lifespan(receive, send)
    elif scope["type"] == "websocket":
        await websocket(scope["path"], receive, send)
    else:
        _, action, *rest = scope["path"].split("/")
        query = dict(urllib.parse.parse_qsl(scope["query_string"].decode()))
        await ACTIONS[action](scope, receive, send, *rest, **query)


async def lifespan(receive, send):
    loop = asyncio.get_running_loop()
    # All of the executor's threads from the beginning, so that a later one is a leak.
    executor = concurrent.futures.ThreadPoolExecutor(4)
    loop.set_default_executor(executor)
    everyone = threading.Barrier(5)
    for _ in range(4):
        executor.submit(everyone.wait)
    everyone.wait()
    await receive()
    with tempfile.NamedTemporaryFile() as file:
        file.write(pattern(FILE_BYTES))
        file.flush()
        SERVED["file"] = file.name
        await send({"type": "lifespan.startup.complete"})
        await receive()
    await send({"type": "lifespan.shutdown.complete"})


async def respond(send, body, status=200):
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [length]})
    await send({"type": "http.response.body", "body": body})


async def echo(scope, receive, send):
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body += message["body"]
        more = message["more_body"]
    await respond(send, body)


async def stream(scope, receive, send, *, chunks, size):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for number in range(int(chunks)):
        if number % 8 == 7:
            await asyncio.sleep(0.001)
        await send({"type": "http.response.body", "body": pattern(int(size)), "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def endless(scope, receive, send):
    await receive()
    gone = asyncio.ensure_future(receive())
    await send({"type": "http.response.start", "status": 200, "headers": []})
    while not gone.done():
        await send({"type": "http.response.body", "body": pattern(10_000), "more_body": True})
        await asyncio.sleep(0)
    assert gone.result() == {"type": "http.disconnect"}


async def wait(scope, receive, send):
    while (await receive())["type"] != "http.disconnect":
        pass


async def file(scope, receive, send):
    length = (b"content-length", str(FILE_BYTES).encode())
    await send({"type": "http.response.start", "status": 200, "headers": [length]})
    if "http.response.pathsend" in scope["extensions"]:
        await send({"type": "http.response.pathsend", "path": SERVED["file"]})
    else:
        await send({"type": "http.response.body", "body": pattern(FILE_BYTES)})


async def fail(scope, receive, send, *, late):
    if late == "yes":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"begun", "more_body": True})
    raise RuntimeError("on purpose")


async def websocket(path, receive, send):
    await receive()
    if path == "/refuse":
        await send({"type": "websocket.http.response.start", "status": 403, "headers": []})
        await send({"type": "websocket.http.response.body", "body": b"refused"})
        return
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        if message.get("text") == "leave":
            await send({"type": "websocket.close", "code": 4000})
        else:
            await send({**message, "type": "websocket.send"})


async def resources(scope, receive, send):
    found = {"tasks": len(asyncio.all_tasks()), **held()}
    await respond(send, json.dumps(found).encode())


def held():
    """Return what the process holds."""
    for _ in range(3):
        gc.collect()
    # Otherwise memory that is free again counts.
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm", "rb", 0) as statm:
        resident = int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return {
        "threads": sum(not name.startswith(b"iou-") for name in thread_names()),
        "blocks": sys.getallocatedblocks(),
        "resident": resident,
        **descriptors(),
    }


def thread_names():
    """Yield the names of the threads of the whole process. The kernel's own of io_uring come and go."""
    for thread in os.listdir("/proc/self/task"):
        try:
            # Not as a text: CPython keeps a little memory each time.
            with open(f"/proc/self/task/{thread}/comm", "rb", 0) as name:
                yield name.read()
        except FileNotFoundError:
            pass


def descriptors():
    targets = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            targets.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        except FileNotFoundError:
            pass  # that of the listing
    return {"descriptors": len(targets), "sockets": sum(target.startswith("socket:") for target in targets)}


async def leak(scope, receive, send, what):
    """Do what `make soak` has to notice."""
    match what:
        case "blocks":
            LEAKED.append([object() for _ in range(3000)])
        case "resident":
            LEAKED.append(mmap.mmap(-1, 6 << 20))
            LEAKED[-1].write(b"x" * (6 << 20))
        case "descriptors":
            LEAKED.append(os.open(os.devnull, os.O_RDONLY))
        case "sockets":
            LEAKED.append(socket.socket())
        case "tasks":
            LEAKED.append(asyncio.ensure_future(asyncio.sleep(3600)))
        case "threads":
            threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
        case "log":
            logging.getLogger("uvicorn.error").error("not expected")
        case "exit":
            os._exit(1)
        case "signal":
            signal.signal(signal.SIGTERM, lambda *_: os._exit(1))
    await respond(send, b"wrong" if what == "response" else b"right")


ACTIONS = {action.__name__: action for action in (echo, stream, endless, wait, file, fail, resources, leak)}
