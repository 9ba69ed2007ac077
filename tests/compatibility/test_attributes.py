"""Attributes that users set on transports: tests replace `write`, and programs store notes.

Whatever is set is what gets called, by the user's code, by asyncio's code and by native code alike.
"""

import asyncio
import gc
import sys
import weakref
from unittest import mock

import pytest

import support
from datagram_support import DatagramRecorder
from differential import demand_the_same

METHODS = [
    "write", "writelines", "write_eof", "can_write_eof", "close", "abort", "is_closing", "is_reading", "pause_reading", "resume_reading",
    "set_protocol", "get_protocol", "get_extra_info", "get_write_buffer_size", "get_write_buffer_limits", "set_write_buffer_limits",
]  # fmt: skip
INNER_METHODS = ["_fatal_error", "_force_close", "_call_connection_lost"]


@pytest.fixture(params=["stream", "datagram"])
def transport(request, loop):
    """Yield a transport of either kind; its protocol is a recorder."""

    async def main():
        if request.param == "stream":
            return await support.attach(loop, support.Recorder())
        transport, _ = await loop.create_datagram_endpoint(DatagramRecorder, local_addr=(support.HOST, 0))
        return transport, None

    transport, peer = loop.run_until_complete(main())
    yield transport
    transport.close()
    loop.run_until_complete(support.turns(3))
    if peer is not None:
        peer.close()


# Setting, getting, deleting


def test_a_note_on_a_transport(transport):
    with pytest.raises(AttributeError):
        transport.note  # noqa: B018
    transport.note = "mine"
    assert transport.note == getattr(transport, "note") == vars(transport)["note"] == "mine"  # noqa: B009
    del transport.note
    assert not hasattr(transport, "note")
    vars(transport)["other"] = 1
    assert transport.other == 1


def test_a_method_is_replaced_and_comes_back(transport):
    names = [name for name in METHODS if hasattr(transport, name)]
    for name in names:
        with mock.patch.object(transport, name) as replacement:
            assert getattr(transport, name)(1, two=2) is replacement.return_value
            replacement.assert_called_once_with(1, two=2)
        assert name not in vars(transport)
        assert getattr(transport, name).__self__ is transport


def test_a_method_is_replaced_in_the_class(transport):
    """The class that counts is `type(transport)`."""
    with mock.patch.object(type(transport), "is_closing", lambda self: (self, "patched")):
        assert transport.is_closing() == (transport, "patched")
    assert transport.is_closing() is False


def test_a_transport_that_refers_to_itself_is_garbage(transport):
    """Tested on another one of the same kind, which nobody holds."""
    loop = transport._loop
    is_stream = hasattr(transport, "write")

    async def make():
        if is_stream:
            first, second = support.tcp_pair()
            transport, protocol = await loop.create_connection(support.Recorder, sock=first)
        else:
            second = None
            transport, protocol = await loop.create_datagram_endpoint(DatagramRecorder, local_addr=(support.HOST, 0))
        transport.itself = transport
        transport.close_by_itself = transport.close
        transport.closed = lambda: transport.close()
        transport.abort()
        return weakref.ref(transport), weakref.ref(protocol), second

    transport_gone, protocol_gone, second = loop.run_until_complete(make())
    loop.run_until_complete(support.turns(3))
    gc.collect()
    assert transport_gone() is None and protocol_gone() is None
    if second is not None:
        second.close()


def test_an_attribute_is_dropped_with_its_transport(loop):
    class Note:
        pass

    note = Note()
    gone = weakref.ref(note)

    async def main(note):
        transport, peer = await support.attach(loop, support.Recorder())
        transport.note = note
        peer.close()
        transport.close()

    loop.run_until_complete(main(note))
    del note
    loop.run_until_complete(support.turns(3))
    gc.collect()
    assert gone() is None


def test_an_unclosed_transport_with_attributes_warns(loop):
    async def main():
        transport, peer = await support.attach(loop, support.Recorder())
        transport.pause_reading()
        transport.itself = transport
        peer.close()

    with support.resource_warnings() as messages:
        loop.run_until_complete(main())
        loop.run_until_complete(support.turns(3))
    assert any(text.startswith("unclosed transport <") for text in messages)


def dicts_of(thing):
    return sum(type(referent) is dict for referent in gc.get_referents(thing))


@pytest.mark.ringloop_only
def test_there_is_no_dict_until_one_is_needed(transport):
    """An idle connection does not pay for it, also if the methods that look for replacements were called."""
    before = dicts_of(transport)
    transport.pause_reading()
    transport.resume_reading()
    transport.is_reading()
    assert dicts_of(transport) == before
    transport.note = {}
    vars(transport)
    assert dicts_of(transport) == before + 1


# What the loop itself calls


def replace(transport, names, calls):
    """Put in the place of each method one that notes the call and passes it on."""

    def spy(name, method):
        def replacement(*arguments, **options):
            calls.add(name)
            return method(*arguments, **options)

        return replacement

    for name in names:
        if hasattr(transport, name):
            setattr(transport, name, spy(name, getattr(transport, name)))


class Spied(support.Recorder):
    """A recorder, all of whose transport's methods are replaced from the beginning on. It raises what it finds in `failing`."""

    failing = None

    def connection_made(self, transport):
        support.Recorder.connection_made(self, transport)
        self.calls = set()
        replace(transport, METHODS + INNER_METHODS, self.calls)

    def data_received(self, data):
        super().data_received(data)
        if self.failing is not None:
            raise self.failing


class BufferedSpied(support.BufferedRecorder):
    failing = None
    connection_made = Spied.connection_made

    def buffer_updated(self, count):
        super().buffer_updated(count)
        if self.failing is not None:
            raise self.failing


async def end_of_the_stream(loop, protocol, transport, peer):
    peer.close()


async def an_error_of_the_protocol(loop, protocol, transport, peer):
    protocol.failing = ValueError("mine")
    peer.send(b"x")


async def a_reset(loop, protocol, transport, peer):
    support.reset(peer)


async def abort(loop, protocol, transport, peer):
    transport.abort()


async def close_with_data_to_send(loop, protocol, transport, peer):
    transport.set_write_buffer_limits(high=10)
    transport.write(bytes(8 << 20))
    transport.close()
    while await loop.sock_recv(peer, 1 << 20):
        pass


async def write_lines(loop, protocol, transport, peer):
    transport.writelines([b"one", b"two"])
    transport.close()


async def pause_and_resume(loop, protocol, transport, peer):
    transport.pause_reading()
    transport.resume_reading()
    transport.close()


async def write_to_a_lost_peer(loop, protocol, transport, peer):
    transport.pause_reading()
    support.reset(peer)
    while not transport.is_closing():
        transport.write(b"x")
        await asyncio.sleep(0)


SCENES = [
    end_of_the_stream, an_error_of_the_protocol, a_reset, abort, close_with_data_to_send, write_lines, pause_and_resume,
    write_to_a_lost_peer,
]  # fmt: skip


def play(scene, kind, loop, journal):
    async def main():
        protocol = kind()
        transport, peer = await support.attach(loop, protocol)
        protocol.calls.clear()
        with peer:
            await scene(loop, protocol, transport, peer)
            await support.until(lambda: protocol.lost)
        journal.note(*sorted(protocol.calls))

    loop.set_exception_handler(lambda _loop, context: None)
    loop.run_until_complete(asyncio.wait_for(main(), support.PATIENCE_S))


@pytest.mark.ringloop_only
@pytest.mark.parametrize("kind", [Spied, BufferedSpied])
@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_what_the_loop_calls_of_a_stream(loop_factory, scene, kind):
    """As asyncio: neither more of the replaced methods nor fewer."""
    demand_the_same(play, loop_factory, scene, kind)


def below(transport):
    """Return the transport under a TLS transport."""
    return transport._ssl_protocol._transport


def test_tls_writes_by_what_stands_in_the_place_of_write(loop, contexts):
    """TLS hands its records to the transport below; nothing may pass by a replacement, be it the instance's or the class's."""
    server_context, client_context = contexts

    async def main():
        ours, theirs = support.tcp_pair()
        (server, _), (client, protocol) = await asyncio.gather(
            loop.connect_accepted_socket(support.Recorder, ours, ssl=server_context),
            loop.create_connection(support.Recorder, sock=theirs, ssl=client_context, server_hostname="localhost"),
        )
        await support.turns(10)
        records = []
        with mock.patch.object(below(server), "write", records.append):
            server.write(b"never sent")
            server.writelines([b"nor", b"this"])
        assert len(records) >= 2 and all(type(record) is bytes and record[0] == 23 for record in records)
        with mock.patch.object(type(below(server)), "write", lambda self, data: records.append((self, data))):
            server.write(b"nor that")
        assert records[-1][0] is below(server)
        assert protocol.events == [("connection_made",)]
        for transport in (server, client):
            transport.abort()
        await support.turns(3)

    loop.run_until_complete(asyncio.wait_for(main(), support.PATIENCE_S))


def test_stream_writer_and_reader_use_what_was_set(loop):
    """asyncio's own streams, which the native code feeds: what they call of the transport is the replacement."""

    async def main():
        listener = support.tcp_listener()
        with listener:
            reader, writer = await asyncio.open_connection(*listener.getsockname(), limit=10)
            accepted, _ = listener.accept()
        calls = set()
        replace(writer.transport, METHODS, calls)
        with accepted:
            writer.write(b"question")
            writer.writelines([b"!"])
            await writer.drain()
            assert {"write", "is_closing"} <= calls
            accepted.send(bytes(100))
            await support.until(lambda: "pause_reading" in calls)
            assert await reader.readexactly(100) == bytes(100)
            assert "resume_reading" in calls
            writer.write_eof()
            writer.close()
            assert {"write_eof", "close"} <= calls
            await writer.wait_closed()

    loop.run_until_complete(asyncio.wait_for(main(), support.PATIENCE_S))


def test_sendfile_pauses_and_resumes_by_what_was_set(loop, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"content")

    async def main():
        transport, peer = await support.attach(loop, support.Recorder())
        calls = set()
        replace(transport, METHODS, calls)
        with peer, path.open("rb") as file:
            assert await loop.sendfile(transport, file) == 7
            assert await support.receive_exactly(loop, peer, 7) == b"content"
            assert {"pause_reading", "resume_reading"} <= calls
            transport.close()
            await support.turns(3)

    loop.run_until_complete(asyncio.wait_for(main(), support.PATIENCE_S))


def test_flow_control_believes_what_was_set(loop):
    """The size of the write buffer decides when the protocol is paused."""

    async def main():
        protocol = support.Recorder()
        transport, peer = await support.attach(loop, protocol)
        with peer:
            transport.set_write_buffer_limits(high=1 << 30)
            while not transport.get_write_buffer_size():
                transport.write(bytes(1 << 20))
            assert "pause_writing" not in protocol.names
            transport.get_write_buffer_size = lambda: 1 << 31
            transport.write(b"more")
            assert protocol.names[-1] == "pause_writing"
            transport.get_write_buffer_size = lambda: 0
            while protocol.names[-1] != "resume_writing":
                await loop.sock_recv(peer, 1 << 20)
            del transport.get_write_buffer_size
            transport.abort()
            await support.turns(3)

    loop.run_until_complete(asyncio.wait_for(main(), support.PATIENCE_S))


def test_a_transport_that_says_that_it_is_closing_does_not_begin_to_read(loop):
    """asyncio asks `is_closing` before it reads, through `is_reading`."""

    async def main():
        protocol = support.Recorder()
        protocol.connection_made = lambda transport: setattr(transport, "is_closing", lambda: True)
        transport, peer = await support.attach(loop, protocol)
        with peer:
            peer.send(b"x")
            await support.turns(20)
            assert protocol.events == [] and not transport.is_reading()
            transport.abort()
            await support.turns(3)

    loop.run_until_complete(asyncio.wait_for(main(), support.PATIENCE_S))


def test_what_the_loop_calls_of_a_datagram_transport(loop):
    async def main():
        transport, protocol = await loop.create_datagram_endpoint(DatagramRecorder, local_addr=(support.HOST, 0))
        calls = set()
        replace(transport, [*METHODS, "sendto", *INNER_METHODS], calls)
        transport.sendto(b"x", transport.get_extra_info("sockname"))
        await support.until(lambda: "datagram_received" in protocol.names)
        transport.sendto(b"x", ("127.0.0.1", 1, "too long"))
        await support.until(lambda: protocol.lost)
        assert {"_fatal_error", "_force_close", "_call_connection_lost"} <= calls

    loop.set_exception_handler(lambda _loop, context: None)
    loop.run_until_complete(asyncio.wait_for(main(), support.PATIENCE_S))


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="from Python 3.12 on asyncio's writelines() sends by itself")
def test_writelines_writes_by_what_was_set(loop):
    async def main():
        transport, peer = await support.attach(loop, support.Recorder())
        with peer:
            with mock.patch.object(transport, "write") as write:
                transport.writelines([b"one", b"two"])
                write.assert_called_once_with(b"onetwo")
            transport.close()
            await support.turns(3)

    loop.run_until_complete(asyncio.wait_for(main(), support.PATIENCE_S))
