"""`create_connection` to an address literal, which is native code: what asyncio does, in its turns, contexts and words.

Nearly all bodies run on stock asyncio, too, and must give the same result there.
"""

import asyncio
import contextlib
import contextvars
import errno
import gc
import inspect
import json
import os
import socket
import sys
import textwrap

import pytest

from support import (
    HOST,
    PATIENCE_S,
    BackgroundThread,
    Oops,
    Recorder,
    Strange,
    descriptors_left,
    has_ipv6,
    looks,
    open_descriptors,
    outcome,
    resource_warnings,
    run_child,
    same_as_asyncio,
    turns,
    until,
)
from tcp_support import address_of

FAMILIES = ["IPv4", "IPv6"]
VARIABLE = contextvars.ContextVar("VARIABLE", default="nobody's")


def host_of(family):
    if family == "IPv6" and not has_ipv6():
        pytest.skip("the loopback interface has no IPv6 address here")
    return HOST if family == "IPv4" else "::1"


class Turns:
    """Counts the turns of a loop."""

    def __init__(self, loop):
        self.loop, self.count = loop, 0
        self.handle = loop.call_soon(self.next)

    def next(self):
        self.count += 1
        self.handle = self.loop.call_soon(self.next)


@contextlib.contextmanager
def counting(loop):
    turns_made = Turns(loop)
    try:
        yield turns_made
    finally:
        turns_made.handle.cancel()


@contextlib.contextmanager
def listening(family="IPv4"):
    host = host_of(family)
    kind = socket.AF_INET if family == "IPv4" else socket.AF_INET6
    with socket.socket(kind) as listener:
        listener.bind((host, 0))
        listener.listen(100)
        yield listener.getsockname()[:2]


@contextlib.contextmanager
def silent():
    """Yield a listener that no longer answers, because its backlog is full; with its address."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind((HOST, 0))
        listener.listen(0)
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield listener, listener.getsockname()


def told(error):
    """Return all that an exception tells."""
    return type(error).__name__, error.args, str(error), type(error.__context__).__name__, error.__cause__


@pytest.mark.parametrize("family", FAMILIES)
def test_each_step_comes_in_asyncios_turn(loop_factory, family):
    host = host_of(family)

    def body(loop):
        steps = []

        def note(*words):
            steps.append((*words, made.count - begin))

        class Told(asyncio.Protocol):
            def __init__(self, name):
                self.name = name
                note(name, "made")
                loop.call_soon(note, name, "after being made")

            def connection_made(self, transport):
                note(self.name, "connected")
                loop.call_soon(note, self.name, "after connecting")
                transport.write(b"hello")

            def data_received(self, data):
                note(self.name, "received", data)

            def connection_lost(self, error):
                note(self.name, "lost", error)

        async def main():
            nonlocal begin
            server = await loop.create_server(lambda: Told("server"), host, 0)
            for _ in range(2):
                begin = made.count
                transport, protocol = await loop.create_connection(lambda: Told("client"), *address_of(server)[:2])
                note("returned", protocol.name)
                loop.call_soon(note, "after returning")
                await turns(10)
                transport.close()
                await turns(10)
            server.close()
            await server.wait_closed()

        begin = 0
        with counting(loop) as made:
            loop.run_until_complete(main())
        return steps

    assert ("returned", "client") in {step[:2] for step in same_as_asyncio(body, loop_factory)}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_contexts_of_the_callbacks(loop_factory, family):
    def body(loop):
        seen = []

        class Told(asyncio.Protocol):
            def __init__(self):
                seen.append(("made", VARIABLE.get()))
                VARIABLE.set("the factory's")

            def connection_made(self, transport):
                seen.append(("connected", VARIABLE.get()))
                VARIABLE.set("connection_made's")

            def data_received(self, data):
                seen.append(("received", VARIABLE.get()))
                VARIABLE.set("data_received's")

            def eof_received(self):
                seen.append(("ended", VARIABLE.get()))

            def connection_lost(self, error):
                seen.append(("lost", VARIABLE.get()))

        async def main():
            VARIABLE.set("the caller's")
            with socket.socket(socket.AF_INET if family == "IPv4" else socket.AF_INET6) as listener:
                listener.bind((host_of(family), 0))
                listener.listen()
                await loop.create_connection(Told, *listener.getsockname()[:2])
                seen.append(("returned", VARIABLE.get()))
                VARIABLE.set("set afterwards")
                peer, _ = listener.accept()
                with peer:
                    peer.sendall(b"x")
                    await until(lambda: "received" in {what for what, _ in seen})
                await until(lambda: "lost" in {what for what, _ in seen})

        loop.run_until_complete(main())
        return seen

    assert len(same_as_asyncio(body, loop_factory)) == 6


@pytest.mark.parametrize(
    "host",
    [
        HOST,
        "0.0.0.0",
        "127.1.2.3",
        "::1",
        "::",
        "0:0:0:0:0:0:0:1",
        "::ffff:127.0.0.1",
        "::FFFF:7f00:1",
        "::ffff:0.0.0.0",
    ],
)
def test_what_is_known_of_a_connection(loop_factory, host):
    if ":" in host:
        host_of("IPv6")

    def body(loop):
        async def main():
            kind = socket.AF_INET6 if ":" in host else socket.AF_INET
            with socket.socket(kind) as listener:
                if kind == socket.AF_INET6:
                    listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
                # Whoever connects to no address in particular connects to this machine.
                own = {"0.0.0.0": HOST, "::": "::1", "::ffff:0.0.0.0": "::ffff:127.0.0.1"}
                listener.bind((own.get(host, host), 0))
                listener.listen()
                port = listener.getsockname()[1]
                transport, _ = await loop.create_connection(Recorder, host, port)
                sock = transport.get_extra_info("socket")
                names = [transport.get_extra_info(name) for name in ("peername", "sockname")]
                assert names == [sock.getpeername(), sock.getsockname()]
                assert [type(part) for name in names for part in name] == [
                    type(part) for name in (sock.getpeername(), sock.getsockname()) for part in name
                ]
                transport.close()
                await turns(3)
                assert names[0][1] == port
                ports = [names[0][0], names[0][2:], names[1][0], names[1][2:]]
                return type(sock).__name__, sock.family, sock.type, sock.proto, sock.gettimeout(), ports

        return loop.run_until_complete(main())

    assert same_as_asyncio(body, loop_factory)[2:5] == (socket.SOCK_STREAM, socket.IPPROTO_TCP, 0)


def test_the_socket_is_one_like_asyncios(loop_factory):
    def body(loop):
        async def main():
            with listening() as address:
                transport, _ = await loop.create_connection(Recorder, *address)
                sock = transport.get_extra_info("socket")._sock
                number = sock.fileno()
                options = [sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0, os.get_blocking(number)]
                options += [os.get_inheritable(number), sock.get_inheritable(), sock._io_refs, sock._closed]
                transport.close()
                await turns(3)
                options += [sock._closed, sock.fileno()]
                return type(sock) is socket.socket, options

        return loop.run_until_complete(main())

    assert same_as_asyncio(body, loop_factory) == (True, [True, False, False, False, 0, False, True, -1])


# Refused at once, or when the kernel has asked.
REFUSALS = {
    "refused": ("127.0.0.1", None),
    "refused, IPv6": ("::1", None),
    "no port": ("127.0.0.1", 0),
    "broadcast": ("255.255.255.255", 80),
    "multicast": ("224.0.0.1", 80),
    "multicast, IPv6": ("ff02::1", 80),
    "link-local without a zone": ("fe80::1", 80),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_failures(loop_factory, name, refused_port):
    host, port = REFUSALS[name]
    port = refused_port if port is None else port
    if ":" in host:
        host_of("IPv6")

    def body(loop):
        found = []

        async def main():
            for _ in range(2):
                begin = made.count
                try:
                    await loop.create_connection(Recorder, host, port)
                except OSError as error:
                    found.append((told(error), made.count - begin))
            try:
                raise Oops
            except Oops:
                with pytest.raises(OSError) as caught:
                    await loop.create_connection(Recorder, host, port)
                found.append(type(caught.value.__context__).__name__)

        with counting(loop) as made:
            loop.run_until_complete(main())
        return found

    assert len(same_as_asyncio(body, loop_factory)) == 3


ODD_ADDRESSES = {
    "a larger port": (HOST, 65536),
    "a negative port": (HOST, -1),
    "a port in text": (HOST, "0"),
    "a port in bytes": (HOST, b"0"),
    "no port at all": (HOST, None),
    "a true port": (HOST, True),
    "a fraction of a port": (HOST, 1.5),
    "the host in bytes": (b"127.0.0.1", 0),
    "leading zeros": ("127.0.0.01", 0),
    "a NUL": ("127.0.0.1\0", 0),
    "a zone": ("::1%lo", 0),
    "a surrogate": ("\udcff", 0),
    "a list": (["127.0.0.1"], 0),
    "no host": (None, 0),
}


@pytest.mark.parametrize("name", ODD_ADDRESSES)
def test_odd_addresses(loop_factory, name):
    def body(loop):
        async def main():
            with pytest.raises(Exception) as caught:
                await loop.create_connection(Recorder, *ODD_ADDRESSES[name])
            return told(caught.value)[:3]

        return loop.run_until_complete(main())

    same_as_asyncio(body, loop_factory)


@pytest.mark.exact
@pytest.mark.parametrize("in_same_loop", [False, True], ids=["server elsewhere", "server in the loop"])
@pytest.mark.parametrize("after", range(8))
def test_cancellation_in_each_turn(loop_factory, after, in_same_loop):
    def body(loop):
        found = []

        async def main():
            clients = []

            def factory():
                clients.append(Recorder())
                return clients[-1]

            with contextlib.ExitStack() as stack:
                if in_same_loop:
                    server = await loop.create_server(Recorder, HOST, 0)
                    address = address_of(server)
                else:
                    address = stack.enter_context(listening())
                for message in ((), ("why",)):
                    before = open_descriptors()
                    task = loop.create_task(loop.create_connection(factory, *address))
                    await turns(after)
                    found.append(task.cancel(*message))
                    try:
                        transport, _ = await task
                    except asyncio.CancelledError as error:
                        found.append(("cancelled", error.args))
                    else:
                        found.append("connected")
                        transport.close()
                    await turns(10)
                    found.append([(client.names, client.error) for client in clients])
                    if not in_same_loop:
                        found.append(len(open_descriptors() - before))
                if in_same_loop:
                    server.close()
                    await server.wait_closed()

        loop.run_until_complete(main())
        return found

    same_as_asyncio(body, loop_factory)


@pytest.mark.exact
def test_a_cancelled_attempt_closes_its_socket_at_once(loop):
    async def main():
        with silent() as (_, address):
            before = open_descriptors()
            for message in ((), ("why",)):
                task = loop.create_task(loop.create_connection(Recorder, *address))
                await turns(3)
                assert len(open_descriptors() - before) == 1
                task.cancel(*message)
                with pytest.raises(asyncio.CancelledError) as caught:
                    await task
                assert caught.value.args == message
                assert not open_descriptors() - before
                await turns(3)

    loop.run_until_complete(main())


@pytest.mark.exact
@pytest.mark.parametrize("steps", range(4))
@pytest.mark.parametrize("how", ["closed", "thrown into"])
def test_a_coroutine_that_ends_early(loop_factory, steps, how):
    """The caller steps it by hand, with turns of the loop in between, and ends it."""

    def body(loop):
        clients, found = [], []

        def factory():
            clients.append(Recorder())
            return clients[-1]

        with listening() as address:
            before = open_descriptors()
            coroutine = loop.create_connection(factory, *address)
            for _ in range(steps):
                try:
                    coroutine.send(None)._asyncio_future_blocking = False
                except StopIteration as end:
                    found.append("connected")
                    end.value[0].close()
                    break
                for _ in range(2):
                    loop.call_soon(loop.call_soon, loop.stop)
                    loop.run_forever()
            if how == "closed":
                coroutine.close()
            else:
                with pytest.raises((Oops, RuntimeError)) as caught:
                    coroutine.throw(Oops("thrown"))
                found.append(told(caught.value)[:3])
            for _ in range(3):
                loop.call_soon(loop.stop)
                loop.run_forever()
            found.append([(client.names, client.error) for client in clients])
            found.append(len(open_descriptors() - before))
        return found

    same_as_asyncio(body, loop_factory)


@pytest.mark.exact
def test_a_coroutine_that_is_resumed_too_early(loop_factory):
    def body(loop):
        with listening() as address:
            before = open_descriptors()
            coroutine = loop.create_connection(Recorder, *address)
            future = coroutine.send(None)
            assert asyncio.isfuture(future)
            with pytest.raises(RuntimeError) as caught:
                coroutine.send(None)
            del future
            loop.call_soon(loop.call_soon, loop.stop)
            loop.run_forever()
            return told(caught.value)[:3], len(open_descriptors() - before)

    same_as_asyncio(body, loop_factory)


@pytest.mark.exact
@pytest.mark.parametrize("error", [Oops("no"), OSError(5, "mine"), Strange("no"), asyncio.CancelledError("mine")])
def test_a_factory_that_raises(loop_factory, error):
    def body(loop):
        def factory():
            raise error

        async def main():
            with listening() as address:
                before = open_descriptors()
                with pytest.raises(BaseException) as caught:
                    await loop.create_connection(factory, *address)
                found = caught.value is error, told(error)[:3]
                error.__traceback__ = error.__context__ = None
                caught = None
                await turns(2)
                gc.collect()
                assert not open_descriptors() - before
                return found

        with resource_warnings():
            return loop.run_until_complete(main())

    same_as_asyncio(body, loop_factory)


@pytest.mark.exact
@pytest.mark.parametrize("what", ["close", "detach", "shutdown", "reuse the number"])
def test_a_factory_that_ends_the_socket(loop_factory, what):
    def body(loop):
        numbers = []

        def factory():
            for sock in gc.get_objects():
                if type(sock) is socket.socket and sock.fileno() >= 0:
                    with contextlib.suppress(OSError):
                        if sock.getpeername() == address:
                            if what == "shutdown":
                                sock.shutdown(socket.SHUT_RDWR)
                            elif what == "detach":
                                numbers.append(sock.detach())
                            elif what == "reuse the number":
                                other = os.open(os.devnull, os.O_RDWR)
                                os.dup2(other, sock.fileno())
                                os.close(other)
                            else:
                                sock.close()
            return Recorder()

        async def main():
            try:
                transport, protocol = await loop.create_connection(factory, *address)
            except OSError as error:
                return told(error)[:3]
            await turns(10)
            names = list(protocol.names)
            transport.abort()
            await turns(3)
            return names, protocol.names

        with listening() as address:
            try:
                return loop.run_until_complete(main())
            finally:
                for number in numbers:
                    os.close(number)

    with resource_warnings():
        same_as_asyncio(body, loop_factory)


@pytest.mark.parametrize("what", ["raise", "close", "abort", "pause_reading", "stop", "exit"])
def test_what_connection_made_may_do(loop_factory, what):
    def body(loop):
        found = []
        loop.set_exception_handler(
            lambda _, context: found.append((context["message"].split("(")[0], type(context.get("exception"))))
        )

        class Told(Recorder):
            def connection_made(self, transport):
                super().connection_made(transport)
                if what == "raise":
                    raise Oops
                if what == "stop":
                    loop.stop()
                elif what == "exit":
                    raise SystemExit(7)
                else:
                    getattr(transport, what)()

        async def main():
            with listening() as address:
                client = Told()
                task = loop.create_task(loop.create_connection(lambda: client, *address))
                try:
                    transport, _ = await task
                finally:
                    found.append(client.names[:])
                found.append(transport.is_closing())
                transport.close()
                await until(lambda: client.lost)
                found.append((client.names, client.error))

        task = loop.create_task(main())
        for _ in range(3):
            try:
                loop.run_until_complete(task)
            except SystemExit as error:
                found.append(("exit", error.code))
            except RuntimeError as error:
                found.append(str(error))
        return [word for word in found if not (isinstance(word, tuple) and "callback" in str(word[0]))], len(found)

    same_as_asyncio(body, loop_factory)


@pytest.mark.parametrize("kind", ["no connection_made", "none", "odd"])
def test_things_that_are_no_protocols(loop_factory, kind):
    def body(loop):
        factory = {"no connection_made": object, "none": lambda: None, "odd": 5}[kind]

        async def main():
            with listening() as address:
                with pytest.raises((AttributeError, TypeError)) as caught:
                    await loop.create_connection(factory, *address)
                found = told(caught.value)[:3]
                caught = None
                return found

        with resource_warnings():
            found = loop.run_until_complete(main())
            gc.collect()
        return found

    same_as_asyncio(body, loop_factory)


OWN_METHODS = [
    "sock_connect", "_connect_sock", "_ensure_resolved", "_create_connection_transport", "_make_socket_transport",
    "create_future", "call_soon", "getaddrinfo",
]  # fmt: skip


@pytest.mark.parametrize("name", OWN_METHODS)
@pytest.mark.parametrize("where", ["loop", "class", "subclass"])
def test_methods_that_the_user_has_replaced_are_called(loop_factory, monkeypatch, name, where):
    def body(loop):
        calls = []
        original = getattr(type(loop), name)

        def counting(self, *arguments, **options):
            if recording:
                # Which futures there are, and who asks for a literal's address how often, is ringloop's own affair.
                calls.append(len(arguments) if name in ("sock_connect", "_connect_sock") else None)
            return original(self, *arguments, **options)

        async def main():
            nonlocal recording
            with listening() as address:
                for _ in range(2):
                    recording = True
                    transport, _ = await loop.create_connection(Recorder, *address)
                    recording = False
                    transport.close()
                    await turns(3)

        recording = False
        with monkeypatch.context() as patch:
            if where == "loop":
                patch.setattr(loop, name, counting.__get__(loop))
            elif where == "class":
                patch.setattr(type(loop), name, counting)
            else:
                loop.__class__ = type("Own", (type(loop),), {name: counting})
            loop.run_until_complete(main())
        return calls if name in ("sock_connect", "_connect_sock", "getaddrinfo") else bool(calls)

    calls = same_as_asyncio(body, loop_factory)
    assert bool(calls) == (name != "getaddrinfo"), "asyncio needs no answer for a literal"


def test_a_socket_class_of_the_users(loop_factory, monkeypatch):
    def body(loop):
        made = []

        class Own(socket.socket):
            def __init__(self, *arguments, **options):
                super().__init__(*arguments, **options)
                made.append((arguments, sorted(options)))

            def connect(self, address):
                made.append(address[0])
                return super().connect(address)

        async def main():
            with listening() as address, monkeypatch.context() as patch:
                patch.setattr(socket, "socket", Own)
                transport, _ = await loop.create_connection(Recorder, *address)
                transport.close()
                await turns(3)

        loop.run_until_complete(main())
        return made

    assert len(same_as_asyncio(body, loop_factory)) == 2


def test_options_that_change_nothing(loop_factory):
    def body(loop):
        async def main():
            with listening() as address:
                for options in ({"ssl": None}, {"family": socket.AF_INET}, {"proto": 6}, {"flags": 0}, {"sock": None}):
                    transport, protocol = await loop.create_connection(Recorder, *address, **options)
                    assert transport.get_extra_info("peername") == address
                    transport.close()
                    await until(lambda protocol=protocol: protocol.lost)
                transport, protocol = await loop.create_connection(
                    protocol_factory=Recorder, host=address[0], port=address[1]
                )
                transport.close()
                await until(lambda: protocol.lost)

        loop.run_until_complete(main())

    same_as_asyncio(body, loop_factory)


def test_it_is_a_coroutine(loop_factory):
    def body(loop):
        coroutine = loop.create_connection(Recorder, HOST, 1)
        found = inspect.iscoroutine(coroutine), inspect.iscoroutinefunction(loop.create_connection), coroutine.__name__
        coroutine.close()
        with pytest.warns(RuntimeWarning, match="create_connection' was never awaited"):
            loop.create_connection(Recorder, HOST, 1)
            gc.collect()
        return found

    assert same_as_asyncio(body, loop_factory)[:2] == (True, True)


@pytest.mark.ringloop_only
@pytest.mark.without_debug_mode
def test_literals_have_the_native_way_and_others_have_not(loop, refused_port):
    def waits_for(*address, **options):
        coroutine = loop.create_connection(Recorder, *address, **options)
        coroutine.send(None)._asyncio_future_blocking = False
        found = type(coroutine.cr_await).__name__
        coroutine.close()
        return found

    assert waits_for(HOST, refused_port) == "Connecting"
    if has_ipv6():
        assert waits_for("::1", refused_port) == "Connecting"
    assert waits_for(HOST, str(refused_port)) == "coroutine"
    assert waits_for(HOST, refused_port, ssl=None) == "coroutine"
    loop.set_debug(True)
    assert waits_for(HOST, refused_port) == "coroutine"


def python_tasks(loop, coroutine, **options):
    return asyncio.tasks._PyTask(coroutine, loop=loop, **options)


TASK_FACTORIES = {"Python's": python_tasks, "eager": getattr(asyncio, "eager_task_factory", None)}


@pytest.mark.parametrize("name", TASK_FACTORIES)
def test_tasks_of_other_kinds(loop_factory, name, refused_port):
    if TASK_FACTORIES[name] is None:
        pytest.skip(f"Python {sys.version_info.major}.{sys.version_info.minor} has no eager tasks")

    def body(loop):
        found = []

        async def main():
            with listening() as address:
                for port in (address[1], refused_port):
                    begin = made.count
                    task = loop.create_task(loop.create_connection(Recorder, HOST, port))
                    try:
                        transport, protocol = await task
                    except OSError as error:
                        found.append((told(error), made.count - begin))
                    else:
                        found.append((protocol.names, made.count - begin))
                        transport.close()
                    await turns(3)
                for after in range(6):
                    task = loop.create_task(loop.create_connection(Recorder, *address))
                    await turns(after)
                    task.cancel("why")
                    try:
                        (await task)[0].close()
                        found.append("connected")
                    except asyncio.CancelledError as error:
                        found.append(error.args)
                    await turns(3)

        loop.set_task_factory(TASK_FACTORIES[name])
        with counting(loop) as made:
            loop.run_until_complete(main())
        return found

    same_as_asyncio(body, loop_factory)


@pytest.mark.exact
def test_timeouts_and_shields(loop):
    async def main():
        with silent() as (_, address), listening() as open_address:
            before = open_descriptors()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02):
                    await loop.create_connection(Recorder, *address)
            assert not open_descriptors() - before
            shielded = asyncio.ensure_future(loop.create_connection(Recorder, *open_address))
            outer = asyncio.shield(shielded)
            await turns(1)
            outer.cancel()
            transport, protocol = await shielded
            transport.close()
            await until(lambda: protocol.lost)

    loop.run_until_complete(main())


def test_many_at_once(loop_factory):
    def body(loop):
        async def main():
            server = await loop.create_server(Recorder, HOST, 0)
            results = await asyncio.gather(*(loop.create_connection(Recorder, *address_of(server)) for _ in range(200)))
            names = {tuple(protocol.names) for _, protocol in results}
            own = {transport.get_extra_info("sockname") for transport, _ in results}
            for transport, _ in results:
                transport.close()
            await until(lambda: all(protocol.lost for _, protocol in results))
            server.close()
            await server.wait_closed()
            return names, len(own)

        return loop.run_until_complete(main())

    assert same_as_asyncio(body, loop_factory) == ({("connection_made",)}, 200)


def test_a_connection_that_takes_its_time(loop):
    """The kernel asks again after a second, and is accepted or refused then."""

    async def main():
        with silent() as (listener, address), silent() as (other, other_address):
            task = loop.create_task(loop.create_connection(Recorder, *address))
            refused = loop.create_task(loop.create_connection(Recorder, *other_address))
            await looks()
            other.close()
            listener.setblocking(False)
            while not task.done():
                with contextlib.suppress(BlockingIOError):
                    listener.accept()[0].close()
                await asyncio.sleep(0.02)
            transport, protocol = await task
            assert protocol.names[0] == "connection_made"
            assert transport.get_extra_info("peername") == address
            transport.close()
            await until(lambda: protocol.lost)
            with pytest.raises(ConnectionRefusedError) as caught:
                await refused
            assert str(caught.value) == f"[Errno 111] Connect call failed {other_address}"

    loop.run_until_complete(main())


def test_debug_mode_that_begins_in_the_middle(loop):
    async def main():
        with listening() as address:
            for after in range(5):
                task = loop.create_task(loop.create_connection(Recorder, *address))
                await turns(after)
                loop.set_debug(not loop.get_debug())
                transport, protocol = await task
                transport.close()
                await until(lambda protocol=protocol: protocol.lost)

    loop.run_until_complete(main())


@pytest.mark.exact
def test_a_loop_that_is_closed(loop_factory):
    def body(loop):
        with listening() as address:
            before = open_descriptors()
            coroutine = loop.create_connection(Recorder, *address)
            loop.close()
            inside = open_descriptors()
            with pytest.raises(RuntimeError) as caught:
                coroutine.send(None)
            assert not open_descriptors() - inside
            assert not inside - before
            return told(caught.value)[:3]

    same_as_asyncio(body, loop_factory)


def test_a_loop_that_is_closed_in_the_middle(loop_factory):
    def body(loop):
        with listening() as address:
            for steps in range(1, 3):
                coroutine = loop.create_connection(Recorder, *address)
                for _ in range(steps):
                    coroutine.send(None)._asyncio_future_blocking = False
                    for _ in range(2):
                        loop.call_soon(loop.call_soon, loop.stop)
                        loop.run_forever()
                if steps == 2:
                    loop.close()
                with contextlib.suppress(RuntimeError):
                    coroutine.close()
                del coroutine
        return True

    with resource_warnings():
        assert outcome(body, loop_factory)
        gc.collect()


@pytest.mark.exact
def test_without_descriptors(loop_factory):
    def body(loop):
        async def main():
            with listening() as address:
                with descriptors_left(0), pytest.raises(OSError) as caught:
                    await loop.create_connection(Recorder, *address)
                return told(caught.value)

        return loop.run_until_complete(main())

    assert same_as_asyncio(body, loop_factory)[1][0] == errno.EMFILE


@pytest.mark.exact
def test_another_thread_asks_for_it(loop):
    def ask(address):
        try:
            for _ in range(20):
                future = asyncio.run_coroutine_threadsafe(loop.create_connection(Recorder, *address), loop)
                transport, protocol = future.result(PATIENCE_S)
                assert protocol.names == ["connection_made"]
                loop.call_soon_threadsafe(transport.close)
        finally:
            loop.call_soon_threadsafe(loop.call_soon, loop.call_soon, loop.stop)

    with listening() as address:
        thread = BackgroundThread(ask, address)
        loop.run_forever()
        thread.result()


AUDITED = """
    import json
    import socket
    from support import HOST, Recorder, turns

    seen, refused = [], None

    def hook(event, arguments):
        if watching and event.startswith("socket."):
            seen.append([event, [repr(it) if not isinstance(it, socket.socket) else "socket" for it in arguments]])
            if event == refused:
                raise RuntimeError("not allowed")

    watching = False
    sys.addaudithook(hook)

    async def main():
        global watching, refused
        for host in (HOST, "::1") if has_ipv6 else (HOST,):
            listener = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
            port = listener.getsockname()[1]
            for refused in (None, "socket.__new__", "socket.connect"):
                watching = True
                try:
                    transport, _ = await loop.create_connection(Recorder, host, port)
                except RuntimeError as error:
                    seen.append(str(error))
                else:
                    transport.close()
                watching = False
                await turns(3)
            listener.close()
            seen[:] = [json.loads(json.dumps(seen).replace(str(port), "PORT"))]

    loop = new_loop()
    loop.run_until_complete(main())
    loop.close()
    print(json.dumps(seen))
"""


def test_audit_events(arm):
    def events(arm):
        source = f"has_ipv6 = {has_ipv6()}\n" + textwrap.dedent(AUDITED)
        return json.loads(run_child(source, arm).stdout)

    found = events(arm)
    assert found == events("asyncio")
    assert "socket.connect" in json.dumps(found)
