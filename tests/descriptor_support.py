"""For tests that take a transport's socket away: transports on sockets of the test's own, and ways to close or replace those."""

import asyncio
import contextlib
import fcntl
import os
import socket

from support import HOST, Recorder, turns


def apart(sock):
    """Return the socket under a number that no other thread is given, so that nobody else has it when it is closed."""
    number = fcntl.fcntl(sock, fcntl.F_DUPFD_CLOEXEC, 500)
    sock.close()
    moved = socket.socket(fileno=number)
    moved.setblocking(False)
    return moved


def pair():
    """Return two connected stream sockets that do not block."""
    ours, peer = socket.socketpair()
    peer.setblocking(False)
    return apart(ours), peer


async def lend(loop, kind=Recorder):
    """Make a transport for a protocol of this kind on a socket that stays ours, and let it begin.

    Return (the socket, the other end's, the protocol, the transport).
    """
    ours, peer = pair()
    protocol = kind()
    transport, _ = await loop.create_connection(lambda: protocol, sock=ours)
    await turns(3)
    return ours, peer, protocol, transport


def fill(sock):
    """Write until the socket takes no more."""
    with contextlib.suppress(BlockingIOError):
        while True:
            sock.send(bytes(1 << 16))


def received(sock):
    """Return what has come: bytes, which are empty at the end of the stream, or None."""
    try:
        return sock.recv(1 << 16)
    except BlockingIOError:
        return None


class Stranger:
    """Another connection, which gets the number that was somebody else's."""

    def __init__(self):
        self.near, self.far = socket.socketpair()
        self.near.setblocking(False)
        self.far.setblocking(False)
        self.copies = []

    def take(self, number):
        os.dup2(self.near.fileno(), number, inheritable=False)
        self.copies.append(number)

    def close(self):
        for number in self.copies:
            os.close(number)
        self.near.close()
        self.far.close()

    def state(self):
        """Return what it was sent in the name of another, and what is left of the data that was sent to it."""
        return received(self.far), received(self.near)


@contextlib.contextmanager
def parted(way, sock):
    """Part the socket object from its number in one of `WAYS`; return the other connection that may have it now."""
    stranger = Stranger()
    kept = []
    number = sock.fileno()
    try:
        if "kept" in way:
            kept.append(sock.dup())
        if "detached" in way:
            sock.detach()
        elif way != "exchanged":
            sock.close()
        if way in ("exchanged", "closed and reused", "closed, kept and reused", "detached and reused"):
            stranger.take(number)
        elif way == "detached":
            kept.append(socket.socket(fileno=number))
        if way == "exchanged":
            stranger.copies.clear()
            kept.append(sock)  # Which still has the number, if it was not closed with its transport.
        yield stranger
    finally:
        for other in kept:
            other.close()
        stranger.close()


def outcome_of(function, *arguments):
    """Return what a call returned or raised, in a form that compares."""
    try:
        return function(*arguments)
    except Exception as error:
        return repr(error)


def told(protocol):
    """Return the callbacks of a recorder, with errors in a form that compares, and without the addresses of datagrams."""
    return [tuple(repr(it) if isinstance(it, Exception) else it for it in event[:2]) for event in protocol.events]


def end(transport, peer, stranger):
    stranger.far.send(b"private")
    peer.shutdown(socket.SHUT_WR)


def udp_socket():
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind((HOST, 0))
    return apart(sock)


def operations(loop, sock):
    """Return the operations that wait on a stream socket, each with what makes it go on."""
    return {
        "sock_recv": (loop.sock_recv, (sock, 100), False),
        "sock_recv_into": (loop.sock_recv_into, (sock, bytearray(100)), False),
        "sock_recvfrom": (loop.sock_recvfrom, (sock, 100), False),
        "sock_recvfrom_into": (loop.sock_recvfrom_into, (sock, bytearray(100)), False),
        "sock_sendall": (loop.sock_sendall, (sock, b"secret"), True),
    }


OPERATIONS = tuple(operations(asyncio.SelectorEventLoop, None))
