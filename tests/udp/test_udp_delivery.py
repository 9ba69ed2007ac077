"""When datagrams are delivered: turns of the loop, pauses, and the callbacks that end a delivery."""

import asyncio
import contextvars

import pytest

from datagram_support import DatagramRecorder, address_of, close, endpoint, udp_socket, wait_for
from support import (
    HOST,
    capture_contexts,
    turns,
)


def queued(loop, recorder, count=5, **options):
    """Return an endpoint with datagrams b"0", b"1", ... waiting in its socket."""
    transport, _ = endpoint(loop, recorder, **options)
    with udp_socket() as sock:
        for number in range(count):
            sock.sendto(b"%d" % number, address_of(transport))
    return transport


@pytest.mark.parametrize("method", ["close", "abort"])
def test_closing_ends_the_delivery(loop, method):
    recorder = DatagramRecorder(lambda it, _data: getattr(it.transport, method)())
    queued(loop, recorder)
    wait_for(loop, lambda: recorder.lost)
    assert recorder.names == ["connection_made", "datagram_received", "connection_lost"]
    assert recorder.transport.is_closing()


def test_a_closed_endpoint_stays_closed_after_further_datagrams(loop):
    def on_datagram(recorder, data):
        if data == b"2":
            recorder.transport.close()
            recorder.transport.close()
            recorder.transport.abort()

    recorder = DatagramRecorder(on_datagram)
    queued(loop, recorder)
    wait_for(loop, lambda: recorder.lost)
    loop.run_until_complete(turns(5))
    assert recorder.data == [b"0", b"1", b"2"]
    assert recorder.names.count("connection_lost") == 1


def test_stop_ends_the_turn_after_one_datagram(loop):
    recorder = DatagramRecorder(lambda _it, _data: loop.stop())
    transport = queued(loop, recorder)
    for count in range(1, 6):
        loop.run_forever()
        assert len(recorder.data) == count
    assert recorder.data == [b"0", b"1", b"2", b"3", b"4"]
    recorder.on_datagram = None
    close(loop, transport)


def test_pausing_ends_the_delivery_until_resumed(loop):
    def on_datagram(recorder, data):
        if data in (b"1", b"3"):
            recorder.transport.pause_reading()

    recorder = DatagramRecorder(on_datagram)
    transport = queued(loop, recorder, 20)
    wait_for(loop, lambda: len(recorder.data) == 2)
    assert not transport.is_reading()
    loop.run_until_complete(turns(5))
    assert recorder.data == [b"0", b"1"]
    transport.resume_reading()
    transport.resume_reading()
    wait_for(loop, lambda: len(recorder.data) == 4)
    loop.run_until_complete(turns(5))
    transport.resume_reading()
    wait_for(loop, lambda: len(recorder.data) == 20)
    assert recorder.data == [b"%d" % number for number in range(20)]
    assert transport.is_reading()
    close(loop, transport)
    assert not transport.is_reading()


@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 32])
def test_what_arrived_before_a_pause_needs_no_further_arrival(loop, count):
    """Also if the endpoint was about to look for more: 16 datagrams are received together."""
    recorder = DatagramRecorder(lambda it, _data: it.transport.pause_reading())
    transport = queued(loop, recorder, count)
    for number in range(1, count + 1):
        wait_for(loop, lambda number=number: len(recorder.data) == number)
        loop.run_until_complete(turns(3))
        assert len(recorder.data) == number
        transport.resume_reading()
    assert recorder.data == [b"%d" % number for number in range(count)]
    close(loop, transport)


def test_pausing_before_the_first_datagram(loop):
    transport, recorder = endpoint(loop)
    transport.pause_reading()
    with udp_socket() as sock:
        sock.sendto(b"x", address_of(transport))
        loop.run_until_complete(turns(5))
        assert recorder.data == []
        transport.resume_reading()
        wait_for(loop, lambda: recorder.data)
    close(loop, transport)


def test_what_was_reported_before_a_resume_is_delivered_in_the_next_turn(loop):
    """asyncio's selector reports a socket only in the turn after that in which it is asked to."""
    transport, recorder = endpoint(loop)

    async def main():
        await turns(3)
        # The next turn is told of this, and calls what is queued here first.
        sock.sendto(b"early", address_of(transport))
        loop.call_soon(transport.pause_reading)
        loop.call_soon(transport.resume_reading)
        await turns(2)
        assert recorder.data == []

    with udp_socket() as sock:
        loop.run_until_complete(main())
        wait_for(loop, lambda: recorder.data)
        sock.sendto(b"later", address_of(transport))
        wait_for(loop, lambda: len(recorder.data) == 2)
    close(loop, transport)


def test_a_flood_lets_others_in(loop):
    """Callbacks run, and other endpoints are served, before a long queue of datagrams is through."""
    order = []

    def on_datagram(_recorder, data):
        if not order:
            loop.call_soon(order.append, "callback")
        order.append(data)

    recorder = DatagramRecorder(on_datagram)
    transport = queued(loop, recorder, 100)
    other = queued(loop, DatagramRecorder(lambda _it, _data: order.append("other")), 1)
    wait_for(loop, lambda: len(order) == 102)
    assert order.index("callback") < 99
    assert order.index("other") < 99
    assert recorder.data == [b"%d" % number for number in range(100)]
    close(loop, transport, other)


def test_an_endless_exchange_lets_others_in(loop):
    """Each datagram is answered before the loop can look again; timers, callbacks and other sockets get their turn."""
    seen = []
    other, _ = endpoint(loop, DatagramRecorder(lambda _it, _data: seen.append("socket")))

    def on_datagram(recorder, data):
        if len(set(seen)) < 3:
            recorder.transport.sendto(data, address_of(recorder.transport))

    transport, recorder = endpoint(loop, DatagramRecorder(on_datagram))

    def begin_others():
        loop.call_later(0.001, seen.append, "timer")
        loop.call_soon(seen.append, "callback")
        other.sendto(b"x", address_of(other))

    transport.sendto(b"again and again", address_of(transport))
    wait_for(loop, lambda: len(recorder.data) > 100)
    begin_others()
    wait_for(loop, lambda: set(seen) == {"socket", "timer", "callback"})
    close(loop, transport, other)


def test_stop_in_an_endless_exchange(loop):
    def on_datagram(recorder, data):
        recorder.transport.sendto(data, address_of(recorder.transport))
        if len(recorder.data) % 50 == 0:
            loop.stop()

    transport, recorder = endpoint(loop, DatagramRecorder(on_datagram))
    transport.sendto(b"again and again", address_of(transport))
    for count in (50, 100, 150):
        loop.run_forever()
        assert len(recorder.data) == count
    recorder.on_datagram = None
    close(loop, transport)


@pytest.mark.parametrize("error_type", [SystemExit, KeyboardInterrupt])
def test_what_ends_the_loop_loses_no_datagram(loop, error_type):
    def on_datagram(_recorder, data):
        if data == b"1":
            raise error_type("enough")

    recorder = DatagramRecorder(on_datagram)
    transport = queued(loop, recorder)
    with pytest.raises(error_type, match="enough"):
        loop.run_forever()
    assert recorder.data == [b"0", b"1"]
    wait_for(loop, lambda: len(recorder.data) == 5)
    assert recorder.data == [b"0", b"1", b"2", b"3", b"4"]
    close(loop, transport)


@pytest.mark.without_debug_mode
def test_a_failing_datagram_received_is_reported_and_the_next_delivered(loop):
    def on_datagram(_recorder, data):
        if data in (b"1", b"4"):
            raise ValueError(data)

    contexts = capture_contexts(loop)
    recorder = DatagramRecorder(on_datagram)
    transport = queued(loop, recorder)
    wait_for(loop, lambda: len(contexts) == 2)
    assert recorder.data == [b"0", b"1", b"2", b"3", b"4"]
    assert [str(context["exception"]) for context in contexts] == ["b'1'", "b'4'"]
    for context in contexts:
        assert set(context) == {"message", "exception", "handle"}
        assert context["message"].startswith("Exception in callback ")
        assert "DatagramTransport._read_ready()" in context["message"]
        assert isinstance(context["handle"], asyncio.Handle)
    assert not transport.is_closing()
    close(loop, transport)


def test_the_exception_handler_may_close_the_transport(loop):
    recorder = DatagramRecorder(lambda _it, _data: 1 / 0)
    loop.set_exception_handler(lambda _loop, _context: recorder.transport.close())
    queued(loop, recorder)
    wait_for(loop, lambda: recorder.lost)
    assert len(recorder.data) == 1


def test_the_protocol_may_change_between_datagrams(loop):
    second = DatagramRecorder()

    def on_datagram(recorder, data):
        if data == b"1":
            assert recorder.transport.get_protocol() is recorder
            recorder.transport.set_protocol(second)

    first = DatagramRecorder(on_datagram)
    transport = queued(loop, first)
    wait_for(loop, lambda: len(second.data) == 3)
    assert first.data == [b"0", b"1"]
    assert second.data == [b"2", b"3", b"4"]
    assert transport.get_protocol() is second
    close(loop, transport)
    assert second.lost and not first.lost
    assert transport.get_protocol() is None


def test_a_protocol_without_the_method(loop):
    """A mistake of the user's is reported, not swallowed, and the loop goes on."""

    class Bare(asyncio.BaseProtocol):
        pass

    contexts = capture_contexts(loop)
    transport = queued(loop, Bare(), 2)
    wait_for(loop, lambda: len(contexts) == 2)
    assert {type(context["exception"]) for context in contexts} == {AttributeError}
    close(loop, transport)


def test_callbacks_run_in_the_context_of_the_creation(loop):
    variable = contextvars.ContextVar("variable", default="unset")
    seen = []

    class Protocol(DatagramRecorder):
        def connection_made(self, transport):
            super().connection_made(transport)
            seen.append(variable.get())
            variable.set("by connection_made")

    def on_datagram(_recorder, data):
        seen.append(variable.get())
        variable.set(data)

    async def create():
        variable.set("by the task")
        transport, _ = await loop.create_datagram_endpoint(lambda: Protocol(on_datagram), local_addr=(HOST, 0))
        variable.set("later")
        return transport

    transport = loop.run_until_complete(create())
    with udp_socket() as sock:
        sock.sendto(b"first", address_of(transport))
        sock.sendto(b"second", address_of(transport))
        wait_for(loop, lambda: len(seen) == 3)
    assert seen == ["by the task", "by the task", b"first"]
    assert variable.get() == "unset"
    close(loop, transport)
