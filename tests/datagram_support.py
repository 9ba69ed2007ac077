"""Datagram endpoints and sockets for tests."""

import asyncio
import contextlib
import itertools
import socket
import sys

from support import (
    HOST,
    PATIENCE_S,
    turns,
    until,
)

UDP_BYTES_MAX = 65507


SENDS_EMPTY = sys.version_info >= (3, 13)


class DatagramRecorder(asyncio.DatagramProtocol):
    """Writes down each callback as a tuple in `events`; `on_datagram(recorder, data)` runs for each datagram."""

    def __init__(self, on_datagram=None):
        self.events = []
        self.transport = None
        self.on_datagram = on_datagram

    @property
    def names(self):
        return [event[0] for event in self.events]

    @property
    def data(self):
        return [event[1] for event in self.events if event[0] == "datagram_received"]

    @property
    def addresses(self):
        return [event[2] for event in self.events if event[0] == "datagram_received"]

    @property
    def errors(self):
        return [event[1] for event in self.events if event[0] == "error_received"]

    @property
    def lost(self):
        return "connection_lost" in self.names

    def connection_made(self, transport):
        self.transport = transport
        self.events.append(("connection_made",))

    def datagram_received(self, data, address):
        self.events.append(("datagram_received", data, address))
        if self.on_datagram is not None:
            self.on_datagram(self, data)

    def error_received(self, error):
        self.events.append(("error_received", error))

    def pause_writing(self):
        self.events.append(("pause_writing",))

    def resume_writing(self):
        self.events.append(("resume_writing",))

    def connection_lost(self, error):
        self.events.append(("connection_lost", error))


def endpoint(loop, protocol=None, **options):
    """Return a datagram endpoint, on a free port of the loopback interface unless told otherwise: (transport, protocol)."""
    protocol = DatagramRecorder() if protocol is None else protocol
    if not options:
        options = {"local_addr": (HOST, 0)}
    return loop.run_until_complete(loop.create_datagram_endpoint(lambda: protocol, **options))


def address_of(transport):
    return transport.get_extra_info("sockname")


@contextlib.contextmanager
def udp_socket(address=(HOST, 0)):
    """Yield a blocking UDP socket bound to an address; (None,) leaves it unbound."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(PATIENCE_S)
        sock.bind(address)
        yield sock


@contextlib.contextmanager
def unix_socket(path=None, peer=None):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.settimeout(PATIENCE_S)
        if path is not None:
            sock.bind(path)
        if peer is not None:
            sock.connect(peer)
        yield sock


def wait_for(loop, condition, what="the condition"):
    loop.run_until_complete(until(condition, what))


def close(loop, *transports):
    for transport in transports:
        transport.close()
    loop.run_until_complete(turns(3))


def full_pair():
    """Return two connected Unix datagram sockets, and what was sent until the first had no room left.

    They have names: asyncio doesn't see that a socket is connected to a peer without one.
    """
    pair = [socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(2)]
    for sock in pair:
        sock.bind("")
        sock.setblocking(False)
    first, second = pair
    first.connect(second.getsockname())
    second.connect(first.getsockname())
    sent = []
    with contextlib.suppress(BlockingIOError):
        for number in itertools.count():
            data = b"before %d" % number
            first.send(data)
            sent.append(data)
    return first, second, sent


def drain(sock):
    """Return what the non-blocking socket has."""
    received = []
    with contextlib.suppress(BlockingIOError):
        while True:
            received.append(sock.recv(1 << 18))
    return received


async def drain_until(sock, received, count):
    """Collect from the non-blocking socket until there are `count` datagrams."""
    await until(lambda: received.extend(drain(sock)) or len(received) >= count, f"{count} datagrams")


def echo(recorder, data):
    recorder.transport.sendto(b"echo " + data, recorder.addresses[-1])
