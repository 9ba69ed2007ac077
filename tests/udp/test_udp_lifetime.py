"""The life of datagram transports: unclosed ones, garbage, and what many of them leave behind."""

import gc
import os
import subprocess
import sys
import weakref

import pytest

from datagram_support import DatagramRecorder, address_of, close, echo, endpoint, udp_socket, wait_for
from support import (
    PATIENCE_S,
    count_objects_from_here,
    open_descriptors,
    resource_warnings,
    turns,
)

pytestmark = pytest.mark.exact


def test_an_unclosed_transport_warns_and_closes_its_socket(loop_factory):
    descriptors = open_descriptors()
    loop = loop_factory()
    with resource_warnings() as messages:
        endpoint(loop)
        loop.close()
        gc.collect()
    assert len([it for it in messages if it.startswith("unclosed transport <")]) == 1, messages
    assert not open_descriptors() - descriptors


def test_a_paused_transport_that_nobody_holds_is_collected(loop):
    transport, recorder = endpoint(loop)
    transport.pause_reading()
    reference = weakref.ref(transport)
    with resource_warnings() as messages:
        recorder.transport = None
        del transport
    assert reference() is None
    assert len(messages) == 1 and messages[0].startswith("unclosed transport <")


def test_a_reading_transport_lives_without_references(loop):
    transport, recorder = endpoint(loop)
    address = address_of(transport)
    reference = weakref.ref(transport)
    recorder.transport = None
    del transport
    gc.collect()
    assert reference() is not None
    with udp_socket() as sock:
        sock.sendto(b"x", address)
        wait_for(loop, lambda: recorder.data)
    close(loop, reference())
    gc.collect()
    assert reference() is None


def test_cycles_are_collected(loop):
    transport, recorder = endpoint(loop)
    transport.sendto(b"x", address_of(transport))
    wait_for(loop, lambda: recorder.data)
    transport.itself = transport
    close(loop, transport)
    references = weakref.ref(transport), weakref.ref(recorder)
    transport = recorder = None
    gc.collect()
    assert [reference() for reference in references] == [None, None]


def test_closing_the_loop_first(loop_factory):
    def use(loop):
        transport, recorder = endpoint(loop)
        loop.close()
        try:
            transport.close()
        except RuntimeError as error:
            text = str(error)
        with udp_socket() as sock:
            transport.sendto(b"x", sock.getsockname())
            assert sock.recv(10) == b"x", "the socket is still open"
        return text, transport.is_closing(), recorder.names

    with resource_warnings() as messages:
        assert use(loop_factory()) == ("Event loop is closed", True, ["connection_made"])
    assert any(text.startswith("unclosed transport <") for text in messages)


def test_nothing_is_left_after_many_cycles(loop):
    """Descriptors, objects and references."""
    big = os.urandom(2000)
    server, service = endpoint(loop, DatagramRecorder(echo))
    target = address_of(server)

    async def cycle():
        done = loop.create_future()
        recorder = DatagramRecorder(lambda _it, data: done.done() or done.set_result(data))
        transport, _ = await loop.create_datagram_endpoint(lambda: recorder, remote_addr=target)
        transport.sendto(big)
        assert await done == b"echo " + big
        service.events.clear()
        transport.close()
        await turns(2)
        assert recorder.lost

    async def cycles(count):
        for _ in range(count):
            await cycle()

    count_objects = count_objects_from_here()
    loop.run_until_complete(cycles(20))
    descriptors, objects, references = open_descriptors(), count_objects(), sys.getrefcount(big)
    loop.run_until_complete(cycles(200))
    gc.collect()
    assert not open_descriptors() - descriptors
    assert sys.getrefcount(big) == references
    assert count_objects() < objects + 100
    close(loop, server)


def test_references_of_what_is_sent_and_received(loop):
    server, service = endpoint(loop, DatagramRecorder(echo))
    client, recorder = endpoint(loop, remote_addr=address_of(server))
    data, address = b"payload" * 10, address_of(server)
    references = sys.getrefcount(data), sys.getrefcount(recorder)
    for count in range(1, 51):
        client.sendto(data, address)
        wait_for(loop, lambda: len(recorder.data) == count)  # noqa: B023
    assert (sys.getrefcount(data), sys.getrefcount(recorder)) == references
    assert sys.getrefcount(recorder.data[0]) <= 3
    close(loop, server, client)


def test_a_child_process_as_peer(loop):
    """Real datagrams from another process, more than one batch."""
    server, recorder = endpoint(loop)
    host, port = address_of(server)
    source = f"import socket\ns = socket.socket(type=socket.SOCK_DGRAM)\nfor n in range(100): s.sendto(b'%d' % n, ({host!r}, {port}))"
    process = subprocess.Popen([sys.executable, "-c", source])
    wait_for(loop, lambda: len(recorder.data) == 100)
    assert process.wait(PATIENCE_S) == 0
    assert recorder.data == [b"%d" % number for number in range(100)]
    close(loop, server)
