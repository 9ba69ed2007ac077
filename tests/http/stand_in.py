"""A service in the place of `ringloop._core.HttpService`, where the extension has none: HTTP/1.1 by h11, in Python."""

import asyncio
import contextvars
import urllib.parse

import h11


class HttpService:
    def __init__(
        self,
        loop,
        app,
        *,
        root_path="",
        headers=(),
        date_header=True,
        state=None,
        limit_head=65536,
        limit_body_ahead=65536,
        limit_concurrency=None,
        timeout_keep_alive=5.0,
        timeout_head=10.0,
        timeout_body=60.0,
        timeout_write=60.0,
        access_log=None,
        forwarded=None,
        logger=None,
    ):
        self.loop, self.app, self.root_path, self.headers = loop, app, root_path, list(headers)
        self.date_header, self.state, self.limit_head = date_header, state, limit_head
        self.limit_concurrency = limit_concurrency
        self.access_log, self.forwarded, self.logger = access_log, forwarded, logger
        self.context = contextvars.copy_context()
        self.open, self.tasks, self.waiters = set(), set(), []
        self.requests = 0
        self.ending = self.disconnected = False

    connections = property(lambda self: len(self.open))
    active = property(lambda self: len(self.tasks))

    def protocol(self):
        return Connection(self)

    def shut_down(self):
        self.ending = True
        for connection in list(self.open):
            if connection.task is None and connection.served:
                connection.transport.close()
            elif connection.task is None:
                # Its first request may be on its way.
                self.loop.call_later(1, connection.close_unless_busy)

    def disconnect(self):
        self.disconnected = True
        for connection in self.open:
            connection.changed.set()

    def abort(self):
        for task in list(self.tasks):
            task.cancel()
        for connection in list(self.open):
            connection.transport.abort()

    def wait_closed(self):
        waiter = self.loop.create_future()
        self.waiters.append(waiter)
        self.look()
        return waiter

    def look(self):
        if not self.open and not self.tasks:
            waiters, self.waiters = self.waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)


class Connection(asyncio.Protocol):
    def __init__(self, service):
        self.service = service
        self.task = None
        self.served = False
        self.changed = asyncio.Event()
        self.lost = False

    def connection_made(self, transport):
        self.transport = transport
        self.parser = h11.Connection(h11.SERVER, max_incomplete_event_size=self.service.limit_head)
        self.service.open.add(self)

    def close_unless_busy(self):
        if self.task is None:
            self.transport.close()

    def connection_lost(self, error):
        self.lost = True
        self.service.open.discard(self)
        self.changed.set()
        self.service.look()

    def data_received(self, data):
        self.parser.receive_data(data)
        self.step()

    def step(self):
        if self.task is not None:
            self.changed.set()
            return
        event = self.parser.next_event()
        if isinstance(event, h11.Request):
            service = self.service
            service.requests += 1
            self.served = True
            self.task = service.loop.create_task(self.answer(event), context=service.context.copy())
            service.tasks.add(self.task)
            self.task.add_done_callback(self.done)

    def done(self, task):
        self.task = None
        self.service.tasks.discard(task)
        if self.service.ending or self.parser.our_state is not h11.DONE or self.parser.their_state is not h11.DONE:
            self.transport.close()
        else:
            self.parser.start_next_cycle()
            self.step()
        self.service.look()

    def scope(self, request):
        get = self.transport.get_extra_info
        peer, own = get("peername"), get("sockname")
        path, _, query = request.target.partition(b"?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": request.http_version.decode(),
            "server": tuple(own[:2]) if isinstance(own, tuple) else (own, None),
            "client": tuple(peer[:2]) if isinstance(peer, tuple) and peer else None,
            "scheme": "https" if get("sslcontext") else "http",
            "method": request.method.decode(),
            "root_path": self.service.root_path,
            "path": self.service.root_path + urllib.parse.unquote(path.decode()),
            "raw_path": self.service.root_path.encode() + path,
            "query_string": query,
            "headers": list(request.headers),
        }
        if self.service.state is not None:
            scope["state"] = self.service.state.copy()
        if self.service.forwarded and any(name.startswith(b"x-forwarded-") for name, _ in scope["headers"]):
            self.service.forwarded(scope)
        return scope

    async def answer(self, request):
        service, scope = self.service, self.scope(request)
        app = service.app
        if service.limit_concurrency is not None and len(service.open) > service.limit_concurrency:
            app = unavailable
        try:
            await app(scope, self.receive, lambda message: self.send(scope, message))
        except Exception as error:
            service.logger.error("Exception in ASGI application\n", exc_info=error)
            if self.parser.our_state is h11.SEND_RESPONSE:
                await self.send(scope, {"type": "http.response.start", "status": 500, "headers": []})
                await self.send(scope, {"type": "http.response.body", "body": b"Internal Server Error"})

    async def receive(self):
        while True:
            event = self.parser.next_event()
            if isinstance(event, h11.Data):
                return {"type": "http.request", "body": bytes(event.data), "more_body": True}
            if isinstance(event, h11.EndOfMessage):
                return {"type": "http.request", "body": b"", "more_body": False}
            if self.lost or self.service.disconnected:
                return {"type": "http.disconnect"}
            self.changed.clear()
            await self.changed.wait()

    async def send(self, scope, message):
        if self.lost:
            return
        if message["type"] == "http.response.start":
            headers = [(bytes(name), bytes(value)) for name, value in message.get("headers", [])]
            names = {name.lower() for name, _ in headers}
            if self.service.date_header and b"date" not in names:
                headers.append((b"date", b"Sun, 06 Nov 1994 08:49:37 GMT"))
            headers += [(name, value) for name, value in self.service.headers if name not in names]
            self.transport.write(self.parser.send(h11.Response(status_code=message["status"], headers=headers)))
            if self.service.access_log:
                client, query = scope["client"], scope["query_string"].decode()
                path = urllib.parse.quote(scope["path"]) + (f"?{query}" if query else "")
                self.service.access_log(
                    f"{client[0]}:{client[1]}" if client else "",
                    scope["method"],
                    path,
                    scope["http_version"],
                    message["status"],
                )
        else:
            self.transport.write(self.parser.send(h11.Data(data=message.get("body", b""))))
            if not message.get("more_body", False):
                self.transport.write(self.parser.send(h11.EndOfMessage()))


async def unavailable(scope, receive, send):
    await send({"type": "http.response.start", "status": 503, "headers": []})
    await send({"type": "http.response.body", "body": b"Service Unavailable"})


def install():
    """Put it where the server looks for one, if there is none."""
    from ringloop import _core

    if not hasattr(_core, "HttpService"):
        _core.HttpService = HttpService
