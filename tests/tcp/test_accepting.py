"""How servers take connections: the order of what is called, in which contexts, and what happens if something fails."""

import asyncio
import contextvars
import errno
import gc
import os
import socket
import sys
import weakref

import pytest

from support import (
    HOST,
    Oops,
    Recorder,
    descriptors_left,
    has_ipv6,
    open_descriptors,
    reset,
    resource_warnings,
    run_child,
    same_as_asyncio,
    turns,
    until,
)
from tcp_support import address_of
from tls_support import tls_contexts

FAMILIES = ["IPv4", "IPv6", "Unix"]
VARIABLE = contextvars.ContextVar("VARIABLE", default="nobody's")


def accepts_natively(loop):
    """Return whether no tasks are made for connections, as asyncio does, and ringloop in debug mode and from Python 3.15 on."""
    return sys.version_info < (3, 15) and hasattr(loop, "backend") and not loop.get_debug()


async def start(loop, factory, family, tmp_path, **options):
    """Return a server of this family, and a function that connects a blocking socket to it."""
    if family == "Unix":
        path = str(tmp_path / "socket")
        server = await loop.create_unix_server(factory, path, **options)
        kind, address = socket.AF_UNIX, path
    else:
        if family == "IPv6" and not has_ipv6():
            pytest.skip("the loopback interface has no IPv6 address here")
        server = await loop.create_server(factory, HOST if family == "IPv4" else "::1", 0, **options)
        kind = socket.AF_INET if family == "IPv4" else socket.AF_INET6
        address = address_of(server)

    def connect():
        client = socket.socket(kind)
        client.connect(address)
        return client

    return server, connect


def test_each_step_is_taken_for_all_connections_before_the_next(loop_factory):
    def body(loop):
        steps = []

        class Told(asyncio.Protocol):
            def __init__(self):
                self.number = sum(step[0] == "made" for step in steps)
                steps.append(("made", self.number))
                loop.call_soon(steps.append, ("after being made", self.number))

            def connection_made(self, transport):
                steps.append(("connected", self.number))
                loop.call_soon(steps.append, ("after connecting", self.number))

            def data_received(self, data):
                steps.append(("received", self.number, data))

            def connection_lost(self, error):
                steps.append(("lost", self.number, error))

        async def main():
            server = await loop.create_server(Told, HOST, 0)
            clients = [socket.create_connection(address_of(server)) for _ in range(3)]
            for client in clients:
                client.sendall(b"sent before the server has accepted")
            await until(lambda: sum(step[0] == "received" for step in steps) == 3)
            for client in clients:
                client.close()
            await until(lambda: sum(step[0] == "lost" for step in steps) == 3)
            server.close()
            await server.wait_closed()

        loop.run_until_complete(main())
        return steps

    assert len(same_as_asyncio(body, loop_factory)) == 18


def test_more_connections_than_the_backlog_are_accepted(loop):
    async def main():
        made = []
        server = await loop.create_server(lambda: made.append(None) or Recorder(), HOST, 0, backlog=3)
        clients = [socket.create_connection(address_of(server)) for _ in range(4)]
        await until(lambda: len(made) == 4)
        for client in clients:
            client.close()
        server.close()
        await server.wait_closed()

    loop.run_until_complete(main())


@pytest.mark.parametrize("backlog", [0, -5])
def test_a_server_without_a_backlog_accepts_one_at_a_time(loop, backlog):
    async def main():
        if not hasattr(loop, "backend"):
            pytest.skip("asyncio accepts nothing then, at least before 3.14")
        made = []
        server = await loop.create_server(lambda: made.append(None) or Recorder(), HOST, 0, backlog=backlog)
        for count in range(1, 3):
            with socket.create_connection(address_of(server)):
                await until(lambda count=count: len(made) == count)
        server.close()
        await server.wait_closed()

    loop.run_until_complete(main())


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_known_of_an_accepted_connection(loop, tmp_path, family):
    async def main():
        protocols = []
        server, connect = await start(loop, lambda: protocols.append(Recorder()) or protocols[-1], family, tmp_path)
        with connect() as client:
            await until(lambda: protocols and protocols[-1].names)
            transport = protocols[-1].transport
            assert transport.get_extra_info("peername") == client.getsockname()
            assert transport.get_extra_info("sockname") == client.getpeername()
            sock = transport.get_extra_info("socket")
            listener = server.sockets[0]
            assert (sock.family, sock.type, sock.proto) == (listener.family, listener.type, listener.proto)
            assert sock.gettimeout() == 0
            assert not sock.get_inheritable()
            assert not os.get_blocking(sock.fileno())
            assert sock.getpeername() == client.getsockname()
            assert type(transport._sock) is socket.socket
        await until(lambda: protocols[-1].lost)
        server.close()
        await server.wait_closed()

    loop.run_until_complete(main())


def test_a_default_timeout_is_not_for_accepted_connections(loop):
    async def main():
        protocols = []
        server = await loop.create_server(lambda: protocols.append(Recorder()) or protocols[-1], HOST, 0)
        socket.setdefaulttimeout(5)
        try:
            with socket.create_connection(address_of(server)):
                await until(lambda: protocols and protocols[-1].names)
                assert protocols[-1].transport.get_extra_info("socket").gettimeout() == 0
        finally:
            socket.setdefaulttimeout(None)
        await until(lambda: protocols[-1].lost)
        server.close()
        await server.wait_closed()

    loop.run_until_complete(main())


def test_the_peer_stays_known_if_it_has_gone_before_it_was_accepted(loop):
    async def main():
        protocols = []
        server = await loop.create_server(lambda: protocols.append(Recorder()) or protocols[-1], HOST, 0)
        client = socket.create_connection(address_of(server))
        peer = client.getsockname()
        reset(client)
        await until(lambda: protocols and protocols[-1].lost)
        assert protocols[-1].transport.get_extra_info("peername") == peer
        server.close()
        await server.wait_closed()

    loop.run_until_complete(main())


def test_each_connection_has_a_context_of_its_own(loop):
    async def main():
        seen = []

        class Changes(Recorder):
            def __init__(self):
                super().__init__()
                seen.append(("factory", VARIABLE.get()))
                VARIABLE.set(f"connection {len(seen)}")

            def connection_made(self, transport):
                super().connection_made(transport)
                seen.append(("connection_made", VARIABLE.get()))

        VARIABLE.set("the server's")
        server = await loop.create_server(Changes, HOST, 0)
        VARIABLE.set("changed since")
        for _ in range(2):
            with socket.create_connection(address_of(server)):
                count = len(seen)
                await until(lambda count=count: len(seen) == count + 2)
        assert seen == [
            ("factory", "the server's"),
            ("connection_made", "connection 1"),
            ("factory", "the server's"),
            ("connection_made", "connection 3"),
        ]
        server.close()

    loop.run_until_complete(main())


@pytest.mark.parametrize("family", FAMILIES)
def test_a_factory_that_fails_costs_one_connection(loop, tmp_path, family):
    if loop.get_debug():
        pytest.skip("asyncio's code accepts and reports the error, which keeps the socket")

    async def main():
        reported = []
        loop.set_exception_handler(lambda _, context: reported.append(context))
        made = []

        def factory():
            if not made:
                made.append(None)
                raise Oops
            made.append(Recorder())
            return made[-1]

        server, connect = await start(loop, factory, family, tmp_path)
        with connect() as refused:
            await until(lambda: made)
            refused.settimeout(10)
            assert await loop.run_in_executor(None, refused.recv, 1) == b""
        with connect():
            await until(lambda: len(made) == 2 and made[1].names)
        await until(lambda: made[1].lost)
        assert reported == []
        server.close()
        await server.wait_closed()

    with resource_warnings():
        loop.run_until_complete(main())


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_what_ends_the_loop_leaves_the_factory(loop, error):
    if hasattr(loop, "backend") and not accepts_natively(loop):
        pytest.skip("there is a task as in asyncio, which keeps the socket for a while")

    def factory():
        raise error

    server = loop.run_until_complete(loop.create_server(factory, HOST, 0))
    with resource_warnings(), socket.create_connection(address_of(server)) as client:
        loop.call_later(60, loop.stop)
        with pytest.raises(error):
            loop.run_forever()
        gc.collect()
        client.settimeout(10)
        assert client.recv(1) == b""
    server.close()
    loop.run_until_complete(server.wait_closed())


def test_a_task_factory_makes_the_tasks_of_connections(loop):
    async def main():
        names = []

        def task_factory(loop, coroutine, **options):
            names.append(coroutine.__name__)
            return asyncio.Task(coroutine, loop=loop, **options)

        protocols = []
        server = await loop.create_server(lambda: protocols.append(Recorder()) or protocols[-1], HOST, 0)
        loop.set_task_factory(task_factory)
        with socket.create_connection(address_of(server)):
            await until(lambda: protocols and protocols[-1].names)
        await until(lambda: protocols[-1].lost)
        loop.set_task_factory(None)
        assert names == ["_accept_connection2"]
        server.close()
        await server.wait_closed()

    loop.run_until_complete(main())


@pytest.mark.exact
@pytest.mark.parametrize("debug", [False, True])
def test_without_descriptors_a_server_tells_and_tries_again(loop, monkeypatch, debug):
    monkeypatch.setattr(asyncio.constants, "ACCEPT_RETRY_DELAY", 0.01)
    loop.set_debug(debug or loop.get_debug())

    async def main():
        reported = []
        loop.set_exception_handler(lambda _, context: reported.append(context))
        protocols = []
        server = await loop.create_server(lambda: protocols.append(Recorder()) or protocols[-1], HOST, 0, backlog=2)
        with socket.create_connection(address_of(server)):
            with descriptors_left(0):
                await until(lambda: reported)
            assert reported[0]["message"] == "socket.accept() out of system resource"
            assert reported[0]["exception"].errno == errno.EMFILE
            assert not protocols
            await until(lambda: protocols and protocols[-1].names)
        await until(lambda: protocols[-1].lost)
        server.close()
        await server.wait_closed()

    loop.run_until_complete(main())


@pytest.mark.exact
@pytest.mark.ringloop_only
@pytest.mark.parametrize("kind", ["plain", "TLS", "debug"])
def test_without_descriptors_a_server_tells_once_before_it_tries_again(loop, monkeypatch, kind):
    """asyncio tells once for each place in the backlog, all in one callback."""
    monkeypatch.setattr(asyncio.constants, "ACCEPT_RETRY_DELAY", 3600)
    loop.set_debug(kind == "debug" or loop.get_debug())
    context = tls_contexts()[0] if kind == "TLS" else None

    async def main():
        reported = []
        loop.set_exception_handler(lambda _, context: reported.append(context))
        server = await loop.create_server(Recorder, HOST, 0, backlog=1000, ssl=context)
        with socket.create_connection(address_of(server)):
            with descriptors_left(0):
                await until(lambda: reported)
                await turns(20)
            (told,) = reported
            assert told["message"] == "socket.accept() out of system resource"
            assert told["exception"].errno == errno.EMFILE
            assert told["socket"].fileno() == server.sockets[0].fileno()
            server.close()
        await server.wait_closed()

    loop.run_until_complete(main())


@pytest.mark.exact
@pytest.mark.ringloop_only
@pytest.mark.parametrize("when", ["at once", "later"])
def test_a_server_that_is_closed_without_descriptors_does_not_try_again(loop, monkeypatch, when):
    """asyncio's tries, with a socket that is closed, and reports an error."""
    monkeypatch.setattr(asyncio.constants, "ACCEPT_RETRY_DELAY", 0.01)

    async def main():
        reported = []

        def report(_, context):
            reported.append(context["message"])
            if when == "at once":
                server.close()

        loop.set_exception_handler(report)
        server = await loop.create_server(Recorder, HOST, 0)
        with socket.create_connection(address_of(server)):
            with descriptors_left(0):
                await until(lambda: reported)
                server.close()
            await asyncio.sleep(3 * asyncio.constants.ACCEPT_RETRY_DELAY)  # A retry would be due before.
        assert set(reported) == {"socket.accept() out of system resource"}
        await server.wait_closed()

    loop.run_until_complete(main())


@pytest.mark.exact
def test_nothing_is_left_of_connections_that_have_ended(loop):
    async def main():
        references = []

        def factory():
            protocol = Recorder()
            references.append(weakref.ref(protocol))
            return protocol

        server = await loop.create_server(factory, HOST, 0)
        before = open_descriptors()
        for count in range(1, 6):
            with socket.create_connection(address_of(server)):
                await until(lambda count=count: len(references) == count and references[-1]().names)
            await until(lambda: references[-1]() is None or references[-1]().lost)
        await turns(3)
        gc.collect()
        assert [reference() for reference in references] == [None] * 5
        assert not open_descriptors() - before
        server.close()
        await server.wait_closed()

    loop.run_until_complete(main())


def test_other_threads_run_while_a_blocking_listener_waits(arm):
    """Somebody who shares the file has made it so. asyncio's accept waits for as many connections as the backlog has."""
    child = run_child(
        """
        import os, socket, threading

        async def main():
            count = 0
            reached = asyncio.Event()

            class Protocol(asyncio.Protocol):
                def connection_made(self, transport):
                    nonlocal count
                    count += 1
                    transport.abort()
                    if count == 6:
                        reached.set()

            loop = asyncio.get_running_loop()
            server = await loop.create_server(Protocol, "127.0.0.1", 0, backlog=1)
            listener = server.sockets[0]
            os.set_blocking(listener.fileno(), True)

            def connect():
                for _ in range(6):
                    socket.create_connection(listener.getsockname()).close()

            thread = threading.Thread(target=connect)
            thread.start()
            await reached.wait()
            thread.join()
            server.close()
            print("accepted")

        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(main())
        """,
        arm,
    )
    assert (child.stdout, child.stderr) == ("accepted\n", "")
