"""The life of TLS connections: contexts of callbacks, debug mode, cancelled handshakes, garbage, threads."""

import asyncio
import collections
import contextvars
import gc
import logging
import socket
import weakref
from asyncio import sslproto

import pytest

from support import (
    HOST,
    BackgroundThread,
    Echo,
    Recorder,
    count_objects_from_here,
    finish,
    open_descriptors,
    resource_warnings,
    same_as_asyncio,
    turns,
    until,
)
from tls_support import NAME, attached, certificate, client_context, closed, ended, failing, serve, server_context

pytestmark = pytest.mark.exact


def test_the_context_of_callbacks(loop_factory):
    variable = contextvars.ContextVar("variable", default="none")

    def body(loop):
        seen = []

        class Watching(Recorder):
            def connection_made(self, transport):
                super().connection_made(transport)
                seen.append(("made", variable.get()))

            def data_received(self, data):
                super().data_received(data)
                seen.append(("data", variable.get()))

            def connection_lost(self, error):
                super().connection_lost(error)
                seen.append(("lost", variable.get()))

        async def main():
            variable.set("main")
            protocol = Watching()
            transport, peer = await attached(loop, protocol)
            variable.set("later")
            await peer.send(b"x")
            await until(lambda: protocol.data)
            transport.pause_reading()
            variable.set("resumed")
            transport.resume_reading()
            await peer.send(b"y")
            await until(lambda: len(protocol.data) == 2)
            await ended(protocol, transport)
            peer.sock.close()
            return seen

        return contextvars.copy_context().run(loop.run_until_complete, main())

    same_as_asyncio(body, loop_factory)


def test_debug_mode_says_what_asyncio_says(loop_factory, caplog):
    def body(loop):
        async def main():
            protocol = failing(Recorder(), "data_received", OSError("mine"))
            _, peer = await attached(loop, protocol)
            await peer.send(b"x")
            await ended(protocol)
            peer.sock.close()

        loop.set_debug(True)
        loop.slow_callback_duration = 1000
        caplog.clear()
        loop.run_until_complete(main())
        own = [r for r in caplog.records if "SSLProtocol" in r.getMessage()]
        return [(r.msg, r.exc_info and repr(r.exc_info[1])) for r in own]

    with caplog.at_level(logging.DEBUG, logger="asyncio"):
        assert len(same_as_asyncio(body, loop_factory)) >= 3


def test_a_cancelled_handshake_leaves_nothing(loop):
    async def main():
        with socket.create_server((HOST, 0)) as listener:
            listener.setblocking(False)
            before = open_descriptors()
            for way in ("connect", "upgrade"):
                client = Recorder()
                if way == "connect":
                    task = loop.create_task(
                        loop.create_connection(
                            lambda client=client: client,
                            *listener.getsockname(),
                            ssl=client_context(),
                            server_hostname=NAME,
                        )
                    )
                else:
                    plain, _ = await loop.create_connection(lambda client=client: client, *listener.getsockname())
                    task = loop.create_task(loop.start_tls(plain, client, client_context(), server_hostname=NAME))
                accepted, _ = await loop.sock_accept(listener)
                assert await loop.sock_recv(accepted, 1) == b"\x16"
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                while await loop.sock_recv(accepted, 1000):
                    pass
                accepted.close()
            await turns(3)
            gc.collect()
            assert not open_descriptors() - before

    loop.run_until_complete(main())


@pytest.mark.long
def test_200_connections_leave_nothing(loop):
    async def main():
        refs = []
        count_protocols = count_objects_from_here(sslproto.SSLProtocol)

        def factory():
            protocol = Echo()
            refs.append(weakref.ref(protocol))
            return protocol

        context, ours = server_context(), client_context()
        server, address = await serve(loop, factory, context)

        async def once(number):
            client = Recorder()
            transport, _ = await loop.create_connection(lambda: client, *address, ssl=ours, server_hostname=NAME)
            refs.append(weakref.ref(transport))
            refs.append(weakref.ref(client))
            transport.write(b"x" * 2000)
            await until(lambda: len(client.data) == 2000)
            if number % 2:
                transport.close()
            else:
                transport.abort()
            await ended(client)

        await once(0)
        before = open_descriptors()
        for number in range(50):
            await asyncio.gather(*[once(4 * number + index) for index in range(4)])
        await until(lambda: not open_descriptors() - before, "the end of every connection")
        await closed(server)
        await turns(5)
        gc.collect()
        assert [ref() for ref in refs if ref() is not None] == []
        assert count_protocols() == 0

    loop.run_until_complete(main())


def test_a_connection_needs_no_collector(loop):
    """Closed connections go by counting references, as asyncio's do."""

    async def main():
        protocol = Recorder()
        transport, peer = await attached(loop, protocol)
        await peer.send(b"x" * 100)
        await until(lambda: protocol.data)
        transport.write(b"y" * 100_000)
        assert await peer.receive(100_000)
        dead = weakref.ref(transport)
        await ended(protocol, transport)
        protocol.transport = None
        del transport
        peer.sock.close()
        await turns(3)
        return dead

    gc.collect()
    gc.disable()
    try:
        dead = loop.run_until_complete(main())
        assert dead() is None
    finally:
        gc.enable()


def test_what_nobody_closed_is_warned_of(loop_factory):
    def body(loop):
        async def main():
            protocol = Recorder()
            _, peer = await attached(loop, protocol)
            protocol.transport = None
            peer.sock.close()

        with resource_warnings() as messages:
            loop.run_until_complete(main())
            loop.close()
            gc.collect()
        return sorted(
            {text.split(" fd=")[0].replace("_Selector", "") for text in messages if "socket.socket" not in text}
        )

    same_as_asyncio(body, loop_factory)


def test_a_thousand_small_writes(loop):
    async def main():
        protocol = Recorder()
        transport, peer = await attached(loop, protocol)
        for number in range(1000):
            transport.write(b"%4d" % number)
        assert await peer.receive(4000) == b"".join(b"%4d" % number for number in range(1000))
        await ended(protocol, transport)
        peer.sock.close()

    loop.run_until_complete(main())


def test_two_loops_in_two_threads(loop_factory):
    certificate(NAME)  # Made once, and not in two threads at once.

    def run():
        loop = loop_factory()
        try:

            async def main():
                server, address = await serve(loop, Echo)
                transport, client = await loop.create_connection(
                    Recorder, *address, ssl=client_context(), server_hostname=NAME
                )
                for _ in range(100):
                    client.data.clear()
                    transport.write(b"x" * 30_000)
                    await until(lambda: len(client.data) == 30_000)
                transport.close()
                await ended(client)
                await closed(server)

            loop.run_until_complete(main())
        finally:
            finish(loop)

    for thread in [BackgroundThread(run) for _ in range(2)]:
        thread.result()


@pytest.mark.ringloop_only
def test_an_idle_connection_has_neither_a_buffer_nor_a_queue_of_its_own(loop):
    """Each connection would pay for them, and few need them."""

    async def main():
        protocols, peers = [Recorder(), Recorder()], []
        for protocol in protocols:
            transport, peer = await attached(loop, protocol)
            await peer.send(b"x")
            await until(lambda protocol=protocol: protocol.data)
            transport.write(b"y")
            peers.append((transport, peer))
        first, second = (transport._ssl_protocol for transport, _ in peers)
        assert not [each for each in gc.get_referents(first) if isinstance(each, collections.deque)]
        assert first._ssl_buffer_view is second._ssl_buffer_view
        # Once asyncio's code has asked for a queue, it is always the same.
        first._write_backlog.append(b"z")
        assert list(first._write_backlog) == [b"z"]
        assert first._write_backlog is not second._write_backlog
        first._write_backlog.clear()
        for protocol, (transport, peer) in zip(protocols, peers, strict=True):
            await ended(protocol, transport)
            peer.sock.close()

    loop.run_until_complete(main())
