"""ASGI frameworks served by `ringloop serve`, as a process; the control is uvicorn, which must give the same answers."""

import contextlib
import http.client
import json
import sys
import textwrap
import time

import pytest

import processes
import support

pytest.importorskip("click", reason="make test-applications installs it")
pytest.importorskip("uvicorn", reason="make test-applications installs it")
pytest.importorskip("websockets", reason="make test-applications installs it")
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect


class Served:
    """A server and clients for it."""

    def __init__(self, program, port):
        self.program = program
        self.port = port

    @contextlib.contextmanager
    def response(self, path, method="GET", body=None, headers=None):
        """Yield the response to a request on a connection of its own, its body unread."""
        connection = http.client.HTTPConnection(support.HOST, self.port, timeout=support.PATIENCE_S)
        with contextlib.closing(connection):
            connection.request(method, path, body, headers or {})
            with connection.getresponse() as response:
                yield response

    def ask(self, path, method="GET", body=None, headers=None):
        """Return the status and the body that a request gets."""
        with self.response(path, method, body, headers) as response:
            return response.status, response.read()

    def ask_json(self, path, method="GET", value=None):
        """Do the same with JSON both ways."""
        body = None if value is None else json.dumps(value)
        status, answer = self.ask(path, method, body, {"content-type": "application/json"})
        return status, json.loads(answer)

    def websocket(self, path, **options):
        timeout = support.PATIENCE_S
        return connect(f"ws://{support.HOST}:{self.port}{path}", open_timeout=timeout, close_timeout=timeout, **options)

    def wait_for(self, path, answer):
        """Ask until this is the answer."""
        deadline = time.monotonic() + support.PATIENCE_S
        while (found := self.ask(path)) != (200, answer):
            assert time.monotonic() < deadline, found
            time.sleep(0.01)


@contextlib.contextmanager
def serving(arm, folder, source, *options):
    """Serve `app` of this source."""
    (folder / "served.py").write_text(textwrap.dedent(source))
    port = support.free_port()
    server = ["ringloop", "serve"] if arm != "asyncio" else ["uvicorn", "--loop", "asyncio"]
    # fmt: off
    command = [
        sys.executable, "-m", *server, "served:app", "--host", support.HOST, "--port", str(port), "--app-dir", str(folder),
        *options,
    ]
    # fmt: on
    environment = {"PYTHONASYNCIODEBUG": "", "PYTHONDEVMODE": "", "HOME": str(folder)}
    with processes.running(command, folder / "log", arm=arm, cwd=folder, environment=environment) as program:
        program.wait_for_port(port)
        try:
            yield Served(program, port)
        except BaseException:
            print(program.output())
            raise
        program.stop()
    output = program.output()
    assert "Application shutdown complete" in output or "shutdown" not in output, output
    assert "Traceback" not in output, output


def needs(package):
    pytest.importorskip(package, reason="make test-applications installs it where it can be installed")


def test_fastapi(arm, tmp_path):
    needs("fastapi")
    source = """
        import asyncio
        import contextlib
        import pathlib
        from typing import Annotated

        from fastapi import BackgroundTasks, Depends, FastAPI, HTTPException, Request, WebSocket
        from fastapi.responses import FileResponse, StreamingResponse
        from pydantic import BaseModel


        @contextlib.asynccontextmanager
        async def lifespan(app):
            yield {"greeting": "hello"}


        app = FastAPI(lifespan=lifespan)
        done = []
        pathlib.Path("file.bin").write_bytes(bytes(range(256)) * 1000)


        class Item(BaseModel):
            name: str
            count: int = 1


        async def opened():
            await asyncio.sleep(0)
            try:
                yield "open"
            finally:
                done.append("closed")


        @app.get("/items/{number}")
        async def get_item(number: int, limit: int = 10, resource: Annotated[str, Depends(opened)] = ""):
            if number > 100:
                raise HTTPException(404, "no such item")
            return {"number": number, "limit": limit, "resource": resource}


        @app.post("/items", status_code=201)
        async def create(item: Item):
            return item


        @app.get("/thread")
        def in_a_thread(request: Request):
            return request.state.greeting


        @app.get("/stream")
        async def stream():
            async def pieces():
                for number in range(3):
                    await asyncio.sleep(0.001)
                    yield f"{number} "

            return StreamingResponse(pieces(), media_type="text/plain")


        @app.get("/background")
        async def background(tasks: BackgroundTasks):
            tasks.add_task(done.append, "in a thread")
            return "begun"


        @app.get("/done")
        async def what_is_done():
            return done


        @app.get("/file")
        async def file():
            return FileResponse("file.bin")


        @app.websocket("/chat/{room}")
        async def chat(websocket: WebSocket, room: str, name: str):
            await websocket.accept(subprotocol="chat")
            async for message in websocket.iter_json():
                await websocket.send_json({"room": room, "name": name, **message})
        """
    with serving(arm, tmp_path, source) as served:
        assert served.ask_json("/items/7?limit=3") == (200, {"number": 7, "limit": 3, "resource": "open"})
        assert served.ask_json("/items/101") == (404, {"detail": "no such item"})
        assert served.ask_json("/done") == (200, ["closed", "closed"])
        assert served.ask_json("/items", "POST", {"name": "é"}) == (201, {"name": "é", "count": 1})
        status, answer = served.ask_json("/items", "POST", {"count": "many"})
        assert (status, [error["loc"] for error in answer["detail"]]) == (422, [["body", "name"], ["body", "count"]])
        assert served.ask_json("/thread") == (200, "hello")
        assert served.ask("/stream") == (200, b"0 1 2 ")
        assert served.ask_json("/background") == (200, "begun")
        served.wait_for("/done", b'["closed","closed","in a thread"]')
        assert served.ask("/file") == (200, bytes(range(256)) * 1000)
        assert served.ask("/file", headers={"range": "bytes=255-257"}) == (206, b"\xff\x00\x01")
        status, answer = served.ask_json("/openapi.json")
        assert (status, "/items" in answer["paths"]) == (200, True)
        with served.websocket("/chat/blue?name=me", subprotocols=["chat"]) as websocket:
            assert websocket.subprotocol == "chat"
            for number in range(3):
                websocket.send(json.dumps({"number": number}))
                answer = json.loads(websocket.recv(support.PATIENCE_S))
                assert answer == {"room": "blue", "name": "me", "number": number}


def test_quart(arm, tmp_path):
    needs("quart")
    source = """
        import asyncio

        from quart import Quart, request, websocket

        app = Quart(__name__)


        @app.before_serving
        async def start():
            app.started = "started"


        @app.get("/")
        async def state():
            return app.started


        @app.post("/json")
        async def double():
            return {"doubled": (await request.get_json())["number"] * 2}


        @app.post("/length")
        async def length():
            size = 0
            async for piece in request.body:
                size += len(piece)
            return str(size)


        @app.get("/thread")
        def in_a_thread():
            return "from a thread"


        @app.get("/stream")
        async def stream():
            async def pieces():
                for number in range(3):
                    await asyncio.sleep(0.001)
                    yield f"{number} "

            return pieces()


        @app.websocket("/echo")
        async def echo():
            await websocket.accept()
            while (message := await websocket.receive()) != "close":
                await websocket.send(message)
            await websocket.close(4001, "as you asked")
        """
    with serving(arm, tmp_path, source) as served:
        assert served.ask("/") == (200, b"started")
        assert served.ask_json("/json", "POST", {"number": 21}) == (200, {"doubled": 42})
        assert served.ask("/length", "POST", bytes(1_000_000)) == (200, b"1000000")
        assert served.ask("/thread") == (200, b"from a thread")
        assert served.ask("/stream") == (200, b"0 1 2 ")
        assert served.ask("/missing")[0] == 404
        with served.websocket("/echo") as websocket:
            for message in ("text", b"bytes", "x" * 200_000):
                websocket.send(message)
                assert websocket.recv(support.PATIENCE_S) == message
            websocket.send("close")
            with pytest.raises(ConnectionClosed) as closed:
                websocket.recv(support.PATIENCE_S)
            assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (4001, "as you asked")


def test_litestar(arm, tmp_path):
    needs("litestar")
    source = """
        import asyncio
        import dataclasses

        from litestar import Litestar, get, post, websocket_listener
        from litestar.response import ServerSentEvent, Stream


        @dataclasses.dataclass
        class Item:
            name: str
            count: int


        @get("/items/{number:int}")
        async def get_item(number: int, limit: int = 10) -> dict[str, int]:
            return {"number": number, "limit": limit}


        @post("/items")
        async def create(data: Item) -> Item:
            return data


        @get("/thread", sync_to_thread=True)
        def in_a_thread() -> str:
            return "from a thread"


        async def pieces():
            for number in range(3):
                await asyncio.sleep(0.001)
                yield f"{number} "


        @get("/stream")
        async def stream() -> Stream:
            return Stream(pieces())


        @get("/events")
        async def events() -> ServerSentEvent:
            return ServerSentEvent(pieces())


        @websocket_listener("/double")
        async def double(data: dict[str, int]) -> dict[str, int]:
            return {"doubled": data["number"] * 2}


        app = Litestar([get_item, create, in_a_thread, stream, events, double])
        """
    with serving(arm, tmp_path, source) as served:
        assert served.ask_json("/items/7?limit=3") == (200, {"number": 7, "limit": 3})
        assert served.ask_json("/items", "POST", {"name": "é", "count": 3}) == (201, {"name": "é", "count": 3})
        assert served.ask_json("/items", "POST", {"name": "é"})[0] == 400
        assert served.ask("/thread") == (200, b"from a thread")
        assert served.ask("/stream") == (200, b"0 1 2 ")
        assert served.ask("/events") == (200, b"data: 0 \r\n\r\ndata: 1 \r\n\r\ndata: 2 \r\n\r\n")
        with served.websocket("/double") as websocket:
            websocket.send('{"number": 21}')
            assert json.loads(websocket.recv(support.PATIENCE_S)) == {"doubled": 42}


def test_sse_starlette(arm, tmp_path):
    """Events arrive one by one, the application learns of a client that leaves, and of the server's end."""
    needs("sse_starlette")
    source = """
        import asyncio

        from sse_starlette import EventSourceResponse
        from starlette.applications import Starlette
        from starlette.responses import JSONResponse
        from starlette.routing import Route

        ended = []


        async def three(request):
            async def events():
                for number in range(3):
                    yield {"id": str(number), "event": "number", "data": f"{number}\\n."}

            return EventSourceResponse(events(), sep="\\n")


        async def endless(request):
            async def events():
                try:
                    yield {"data": "begun"}
                    while True:
                        await asyncio.sleep(0.001)
                        yield {"data": "more"}
                finally:
                    ended.append(request.url.path)

            return EventSourceResponse(events(), sep="\\n")


        async def what_ended(request):
            return JSONResponse(ended)


        app = Starlette(routes=[Route("/three", three), Route("/endless", endless), Route("/ended", what_ended)])
        """
    with serving(arm, tmp_path, source, "--timeout-graceful-shutdown", "4") as served:
        expected = "".join(f"id: {number}\nevent: number\ndata: {number}\ndata: .\n\n" for number in range(3))
        assert served.ask("/three") == (200, expected.encode())
        with served.response("/endless") as response:
            assert response.getheader("content-type").startswith("text/event-stream")
            assert response.readline() == b"data: begun\n"
        served.wait_for("/ended", b'["/endless"]')


def test_channels(arm, tmp_path):
    """A consumer of Django's channels, whose members talk to each other through the layer in memory."""
    needs("channels")
    source = """
        from channels.generic.websocket import AsyncJsonWebsocketConsumer
        from channels.routing import ProtocolTypeRouter, URLRouter
        from django.conf import settings
        from django.core.asgi import get_asgi_application
        from django.http import HttpResponse
        from django.urls import path

        settings.configure(
            ALLOWED_HOSTS=["*"],
            ROOT_URLCONF=__name__,
            SECRET_KEY="-",
            CHANNEL_LAYERS={"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}},
        )
        django = get_asgi_application()


        class Chat(AsyncJsonWebsocketConsumer):
            async def connect(self):
                self.room = self.scope["url_route"]["kwargs"]["room"]
                if self.room == "closed":
                    await self.close()
                    return
                await self.channel_layer.group_add(self.room, self.channel_name)
                await self.accept()

            async def receive_json(self, content):
                await self.channel_layer.group_send(self.room, {"type": "chat.message", "text": content["text"]})

            async def chat_message(self, event):
                await self.send_json({"room": self.room, "text": event["text"]})

            async def disconnect(self, code):
                await self.channel_layer.group_discard(self.room, self.channel_name)
                await self.channel_layer.group_send(self.room, {"type": "chat.message", "text": f"left with {code}"})


        urlpatterns = [path("", lambda request: HttpResponse("hello"))]
        sockets = URLRouter([path("chat/<str:room>", Chat.as_asgi())])
        app = ProtocolTypeRouter({"http": django, "websocket": sockets})
        """
    with serving(arm, tmp_path, source, "--lifespan", "off") as served:
        assert served.ask("/") == (200, b"hello")
        with served.websocket("/chat/blue") as first:
            with served.websocket("/chat/blue") as second:
                second.send('{"text": "to all"}')
                for websocket in (first, second):
                    answer = json.loads(websocket.recv(support.PATIENCE_S))
                    assert answer == {"room": "blue", "text": "to all"}
            assert json.loads(first.recv(support.PATIENCE_S)) == {"room": "blue", "text": "left with 1000"}
        with pytest.raises(Exception, match="403"):
            served.websocket("/chat/closed").__enter__()


def test_opentelemetry(arm, tmp_path):
    """The middleware wraps `receive` and `send`, and reads the scope of each request."""
    needs("opentelemetry.instrumentation.asgi")
    source = """
        import json

        from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
        from starlette.applications import Starlette
        from starlette.responses import JSONResponse, PlainTextResponse
        from starlette.routing import Route, WebSocketRoute

        exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(exporter))


        async def hello(request):
            return PlainTextResponse("hello")


        async def echo(websocket):
            await websocket.accept()
            async for text in websocket.iter_text():
                await websocket.send_text(text)


        traced = OpenTelemetryMiddleware(
            Starlette(routes=[Route("/hello", hello), WebSocketRoute("/echo", echo)]), tracer_provider=provider
        )


        async def app(scope, receive, send):
            if scope.get("path") == "/spans":
                spans = [span for span in exporter.get_finished_spans() if span.kind.name == "SERVER"]
                shown = [
                    [
                        span.name,
                        format(span.context.trace_id, "x"),
                        {key: span.attributes.get(key) for key in ("http.method", "http.target", "http.status_code")},
                    ]
                    for span in spans
                ]
                await JSONResponse(shown)(scope, receive, send)
            else:
                await traced(scope, receive, send)
        """
    with serving(arm, tmp_path, source) as served:
        trace = "4bf92f3577b34da6a3ce929d0e0e4736"
        headers = {"traceparent": f"00-{trace}-00f067aa0ba902b7-01"}
        assert served.ask("/hello?a=b", headers=headers) == (200, b"hello")
        with served.websocket("/echo") as websocket:
            websocket.send("a text")
            assert websocket.recv(support.PATIENCE_S) == "a text"
        assert served.ask("/missing")[0] == 404
        deadline = time.monotonic() + support.PATIENCE_S
        while len(spans := served.ask_json("/spans")[1]) < 3:
            assert time.monotonic() < deadline, spans
            time.sleep(0.01)
        by_name = {name: (of, attributes) for name, of, attributes in spans}
        of, attributes = by_name["GET /hello"]
        assert (of, attributes["http.status_code"]) == (trace, 200)
        assert by_name["GET /missing"][1]["http.status_code"] == 404
        assert "/echo" in str(by_name)
