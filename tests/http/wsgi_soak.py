"""Clients of HTTP/1 and HTTP/2 against WSGI views on `ringloop serve`, for a long time: see server_soak.py.

Client and view make the same plan from the number in the path (wsgi_plans.py), so that each knows every byte of the request
and of the response. The application also notes what only it can see: whether each iterable was closed, once and in its
view's thread, and whether reading from `wsgi.input` gave what it must.
"""

import asyncio
import contextlib
import dataclasses
import functools

import http2
import soak_application
import wsgi_plans
from server_soak import (
    Subject,
    Wrong,
    aborting_handshake,
    bad_request,
    expect,
    expect_ok,
    get,
    keep_alive,
    slow_body,
    slow_head,
    slow_http2_body,
    slow_http2_reader,
    slow_reader,
)

THREADS = 10
"""More than those clients hold that do nothing."""


@dataclasses.dataclass
class Found:
    """A response of HTTP/1, and whether all of it has come."""

    status: int
    fields: dict
    body: bytes
    is_complete: bool

    @property
    def closes(self):
        return not self.is_complete or self.fields.get("connection") == "close"


def plan_of(rng, kind="any"):
    return wsgi_plans.make(rng.getrandbits(40), kind)


def path_of(plan, kind):
    return f"/view/{kind}/{plan.number}"


# -- Sending and receiving -----------------------------------------------------------------------------------------------


def request(plan, kind, rng, *fields):
    """Return a request's head, and its body as it is framed."""
    lines = [f"{plan.method} {path_of(plan, kind)} HTTP/1.1", "Host: soak", *fields]
    body = plan.body
    if plan.framing == "length":
        lines.append(f"Content-Length: {len(body)}")
    elif plan.framing == "chunked":
        lines.append("Transfer-Encoding: chunked")
        size = rng.randint(len(body) // 50 + 1, len(body) + 1)
        parts = [body[at : at + size] for at in range(0, len(body), size)]
        body = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in [*parts, b""])
    return "\r\n".join([*lines, "", ""]).encode(), body


def pieces(data, rng):
    """Return the data in random pieces."""
    cuts = sorted(rng.randint(0, len(data)) for _ in range(rng.choice((0, 0, 1, 5))))
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


async def pause(rng):
    if rng.random() < 0.3:
        await asyncio.sleep(rng.random() / 200)


async def send(client, data, rng):
    """Send the data in random pieces. The server may have closed the connection."""
    with contextlib.suppress(ConnectionError):
        for piece in pieces(data, rng):
            client.write(piece)
            await client.writer.drain()
            await pause(rng)


async def head(client):
    """Receive a head: the status and the fields."""
    text = await client.reader.readuntil(b"\r\n\r\n")
    line, *lines = text[:-4].decode("latin-1").split("\r\n")
    return int(line.split(" ")[1]), {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}


async def response(client, plan, begun=None):
    """Receive a response, whose head may have come already, with as much of the body as comes."""
    status, fields = begun or await head(client)
    if plan.method == "HEAD" or status in (204, 304):
        return Found(status, fields, b"", True)
    body = b""
    try:
        if "content-length" in fields:
            body = await client.reader.readexactly(int(fields["content-length"]))
        else:
            expect(fields.get("transfer-encoding"), "chunked")
            while size := int((await client.reader.readuntil(b"\r\n")), 16):
                # What comes before an end counts.
                while size:
                    part = await client.reader.read(size)
                    if not part:
                        raise asyncio.IncompleteReadError(b"", size)
                    body += part
                    size -= len(part)
                expect(await client.reader.readexactly(2), b"\r\n")
            expect(await client.reader.readexactly(2), b"\r\n")
    except asyncio.IncompleteReadError as error:
        return Found(status, fields, body or error.partial, False)
    return Found(status, fields, body, True)


class Reset(Exception):
    """The server has reset a connection on which it had nothing more to say, and lost the end of what it had said."""


def ends(plan):
    """Return whether the server may end the connection after the response to a plan."""
    expected = plan.expected()
    return expected.is_refused or not expected.is_complete


def count(server, *plans):
    """Count what the server says about the responses to plans that it will serve."""
    server.lengths += sum(bool(plan.expected().log) for plan in plans)


@contextlib.contextmanager
def about(server, plan, *, may_close=False):
    """Say which plan an error is about."""
    try:
        yield
    except Exception as error:
        # Under TLS the server doesn't wait for clients that are still sending.
        if isinstance(error, ConnectionError) and server.contexts and (may_close or ends(plan)):
            raise Reset from error
        shown = dataclasses.replace(plan, body=plan.body[:10], parts=tuple(part[:10] for part in plan.parts))
        how = ", and the client asked for something that may end the connection" if may_close else ""
        raise Wrong(f"{type(error).__name__}: {error}; {shown}{how}") from error


def check(plan, found, *, is_complete):
    """Compare a response with what it must be. Of a broken one on HTTP/2 a part may be missing."""
    expected = plan.expected()
    body = found.body
    if not expected.is_complete and isinstance(found, http2.Stream):
        expected = dataclasses.replace(expected, body=expected.body[: len(body)])
    expect(found.status, expected.status)
    number = dict(found.fields or {}).get("x-plan")
    expect(number, None if expected.is_refused else str(plan.number))
    expect((len(body), bytes(body)), (len(expected.body), expected.body))
    if plan.has_body or expected.is_complete:
        expect(is_complete, expected.is_complete)


async def exchange(client, plan, rng, *, expects, closes):
    """Make a request on HTTP/1; return whether there can be another."""
    # A view that has begun to answer can't ask for the body any more.
    waits = expects and not plan.reads_later and rng.random() < 0.7
    fields = ["Expect: 100-continue"] * expects + ["Connection: close"] * closes
    begin, body = request(plan, "any", rng, *fields)
    begun = None
    if waits:
        await send(client, begin, rng)
        begun = await head(client)
        expect(begun[0] == 100, plan.reads_at_call)
        rest = body if begun[0] == 100 else b""
    else:
        rest = begin + body
    # A client that only reads when all is sent may wait for a server that does the same.
    sending = asyncio.create_task(send(client, rest, rng))
    try:
        await pause(rng)
        while begun is None or begun[0] == 100:
            begun = await head(client)
            if begun[0] == 100:
                expect(expects, True)
        found = await response(client, plan, begun)
        check(plan, found, is_complete=found.is_complete)
        if not ends(plan) and not expects:
            expect(found.closes, closes)
        if found.closes:
            expect(await client.rest(), b"")
        if found.closes or not plan.expected().is_complete:
            return False
        await sending
        return True
    finally:
        sending.cancel()
        await asyncio.wait([sending])


# -- Clients that take turns ---------------------------------------------------------------------------------------------


async def views(server, rng):
    async with server.connect() as client:
        for _ in range(rng.randint(1, 12)):
            plan = plan_of(rng)
            count(server, plan)
            expects, closes = bool(plan.body) and rng.random() < 0.2, rng.random() < 0.05
            try:
                with about(server, plan, may_close=expects or closes):
                    if not await exchange(client, plan, rng, expects=expects, closes=closes):
                        break
            except Reset:
                break


async def pipelined_views(server, rng):
    """Send some requests at once."""
    plans = [plan_of(rng) for _ in range(rng.randint(2, 12))]
    data = b"".join(part for plan in plans for part in request(plan, "any", rng))
    # What comes after a response that ends the connection is not served.
    last = next((index for index, plan in enumerate(plans) if ends(plan)), len(plans))
    served = plans[: last + 1]
    count(server, *served)
    async with server.connect() as client:
        sending = asyncio.create_task(send(client, data, rng))
        try:
            for plan in served:
                # A reset may also lose the responses before the one that ends the connection.
                with about(server, plan, may_close=ends(served[-1])):
                    found = await response(client, plan)
                    check(plan, found, is_complete=found.is_complete)
                    expect(found.closes and not ends(plan), False)
                    if found.closes:
                        expect(await client.rest(), b"")
        except Reset:
            pass
        finally:
            sending.cancel()
            await asyncio.wait([sending])


def ask(client, plan, kind):
    """Begin a request on HTTP/2; return its stream."""
    fields = [("content-length", str(len(plan.body)))] if plan.framing == "length" else []
    return client.ask(path_of(plan, kind), *fields, method=plan.method, ends=plan.framing == "none")


def has_room(client, stream):
    """Return whether more can be sent on a stream, or never again."""
    return client.streams[stream].code is not None or client.h2.local_flow_control_window(stream) > 0


async def send_bodies(client, left, rng):
    """Send the bodies of streams, a piece of this one and a piece of that one."""
    while left:
        stream = rng.choice(list(left))
        size = 0
        if left[stream]:
            await client.until(functools.partial(has_room, client, stream))
        if client.streams[stream].code is not None:
            del left[stream]
            continue
        if left[stream]:
            room = min(client.h2.local_flow_control_window(stream), client.h2.max_outbound_frame_size)
            size = min(rng.choice((1000, 10_000, 60_000)), room)
        piece, left[stream] = left[stream][:size], left[stream][size:]
        client.data(stream, piece, ends=not left[stream])
        if not left[stream]:
            del left[stream]
        await client.writer.drain()
        await pause(rng)


async def http2_views(server, rng):
    async with server.connect(http2.Client) as client:
        await client.settled()
        for _ in range(rng.randint(1, 4)):
            plans = {}
            for _ in range(rng.randint(1, 12)):
                plan = plan_of(rng)
                while plan.status.startswith("304") and plan.length:
                    plan = plan_of(rng)  # The library doesn't know that there is no body.
                plans[ask(client, plan, "any")] = plan
            bodies = {stream: plan.body for stream, plan in plans.items() if plan.framing != "none"}
            if rng.random() < 0.4:
                plan = plan_of(rng, "quiet")
                stream = ask(client, plan, "quiet")
                if plan.framing != "none":
                    client.data(stream, plan.body[: rng.randint(0, min(len(plan.body), 4000))])
                await pause(rng)
                client.reset_stream(stream)
            count(server, *plans.values())
            await send_bodies(client, bodies, rng)
            for stream, plan in plans.items():
                with about(server, plan):
                    found = await client.response(stream)
                    check(plan, found, is_complete=found.has_ended)
            expect(client.goaways, [])


async def endless_views(server, rng):
    """Read some of a body that does not end, with pauses, and leave."""
    size = rng.choice((1, 20_000, 500_000, 3_000_000))
    async with server.connect() as client:
        client.write(get("/endless"))
        status, _ = await head(client)
        expect(status, 200)
        while size > 0:
            length = int(await client.reader.readuntil(b"\r\n"), 16)
            part = await client.reader.readexactly(length + 2)
            whole = length // 10_000
            expect(part, soak_application.pattern(10_000) * whole + b"\r\n")
            size -= length
            await pause(rng)
        leave(client, rng)


def leave(client, rng):
    """Leave with or without a farewell, if the server has not closed the connection before."""
    if rng.random() < 0.7 and client.writer.get_extra_info("socket") is not None:
        client.reset()


async def aborting_views(server, rng):
    """Die in the middle of a request or of a response, with or without a farewell."""
    async with server.connect() as client:
        plan = plan_of(rng, "quiet")
        data = b"".join(request(plan, "quiet", rng))
        if rng.random() < 0.6:
            data = data[: rng.randint(0, len(data))]
        await send(client, data, rng)
        if rng.random() < 0.6:
            # Under TLS the server doesn't linger: what it hasn't read of the body resets the connection.
            with contextlib.suppress(TimeoutError, ConnectionError):
                await asyncio.wait_for(client.reader.read(rng.choice((1, 1000, 100_000))), rng.random() / 10)
        leave(client, rng)


async def aborting_http2_views(server, rng):
    async with server.connect(http2.Client) as client:
        for _ in range(rng.randint(1, 10)):
            plan = plan_of(rng, "quiet")
            stream = ask(client, plan, "quiet")
            if plan.framing != "none" and rng.random() < 0.5:
                client.data(stream, plan.body[: rng.randint(0, min(len(plan.body), 4000))])
        client.ask("/endless")
        if rng.random() < 0.5:
            await client.settled()
        await pause(rng)
        leave(client, rng)


async def idle(server, rng):
    async with server.connect() as client:
        client.write(get("/echo"))
        expect_ok(await client.response(), b"")
        expect(await client.rest(), b"")


async def gather(server):
    """Ask for as many views at a time as there are threads."""

    async def one():
        async with server.connect() as client:
            client.write(get(f"/gather/{THREADS}"))
            expect_ok(await client.response(), b"gathered")

    await asyncio.gather(*(one() for _ in range(THREADS)))


class Views(Subject):
    async def prepare(self, server):
        await gather(server)


WSGI = Views(
    interface="WSGI",
    application="soak_wsgi_application:app",
    options=(f"--wsgi-threads={THREADS}",),
    many=(
        views,
        views,
        pipelined_views,
        http2_views,
        http2_views,
        endless_views,
        aborting_views,
        aborting_http2_views,
        keep_alive,
        aborting_handshake,
        bad_request,
    ),
    once=(slow_head, slow_body, slow_http2_body, slow_reader, slow_http2_reader, idle),
    idle=("connections", "tasks", "sockets", "descriptors", "iterables", "running"),
)
