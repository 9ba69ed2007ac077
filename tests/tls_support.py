"""Certificates, contexts and peers for tests of TLS.

`Peer` is the other end, driven by hand, so that a test decides how the stream of records is split and when it ends.
"""

import asyncio
import fcntl
import functools
import socket
import ssl
import struct
import termios
import threading

import trustme

from support import (
    HOST,
    tcp_pair,
    turns,
    until,
)
from support import BufferedRecorder as PlainBufferedRecorder

NAME = "server.test"


VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


def once(function):
    """Remember what a function returns, as `functools.cache` does, but let no two threads call it at once: there is one authority."""
    cached, lock = functools.cache(function), threading.RLock()

    @functools.wraps(function)
    def call(*arguments):
        with lock:
            return cached(*arguments)

    return call


@once
def authority():
    return trustme.CA(key_type=trustme.KeyType.ECDSA)


@once
def certificate(name):
    return authority().issue_cert(name, HOST, key_type=trustme.KeyType.ECDSA)


def pinned(context, version):
    if version is not None:
        context.minimum_version = context.maximum_version = VERSIONS[version]
    return context


def server_context(version=None, name=NAME):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate(name).configure_cert(context)
    return pinned(context, version)


def client_context(version=None):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority().configure_trust(context)
    return pinned(context, version)


@once
def tls_contexts(name=NAME):
    """Return a server's context and that of a client which trusts it."""
    return server_context(name=name), client_context()


class Peer:
    """One end of a TLS connection, driven by hand over a non-blocking socket."""

    def __init__(self, loop, sock, context, *, server_side=False, name=NAME):
        self.loop, self.sock = loop, sock
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(
            self.incoming, self.outgoing, server_side=server_side, server_hostname=None if server_side else name
        )

    async def flush(self):
        if data := self.outgoing.read():
            await self.loop.sock_sendall(self.sock, data)

    async def call(self, method, *arguments):
        """Call a method of the SSL object, exchanging records until it succeeds."""
        while True:
            try:
                result = method(*arguments)
            except ssl.SSLWantReadError:
                await self.flush()
                data = await self.loop.sock_recv(self.sock, 1 << 16)
                if not data:
                    raise EOFError("the other end hung up") from None
                self.incoming.write(data)
            else:
                await self.flush()
                return result

    async def handshake(self):
        await self.call(self.tls.do_handshake)

    def encrypt(self, data):
        """Return the records of this data, not sent."""
        view = memoryview(data)
        while view:
            view = view[self.tls.write(view) :]
        return self.outgoing.read()

    async def send(self, data):
        await self.loop.sock_sendall(self.sock, self.encrypt(data))

    async def receive(self, count):
        data = bytearray()
        while len(data) < count:
            data += await self.call(self.tls.read, count - len(data))
        return bytes(data)


async def attached(loop, protocol, version=None, *, context=None, peer_context=None, **options):
    """Return a server's transport for `protocol`, and its Peer, connected and shaken hands."""
    ours, theirs = tcp_pair()
    options.setdefault("ssl", context or server_context(version))
    task = asyncio.ensure_future(loop.connect_accepted_socket(lambda: protocol, ours, **options))
    peer = Peer(loop, theirs, peer_context or client_context(version))
    await peer.handshake()
    transport, _ = await task
    return transport, peer


async def ended(protocol, transport=None):
    """Close the transport, if one is named, and wait for connection_lost."""
    if transport is not None:
        transport.abort()
    await until(lambda: protocol.lost, "connection_lost")


async def received(protocol, data):
    """Wait until this is what the protocol has received."""
    await until(lambda: len(protocol.data) >= len(data), "the data")
    assert protocol.data == data


class BufferedRecorder(PlainBufferedRecorder):
    """Offers a view: what doesn't fit into one read goes astray where asyncio is offered a bytearray."""

    def get_buffer(self, hint):
        return memoryview(super().get_buffer(hint))


async def serve(loop, factory, context=None, **options):
    server = await loop.create_server(factory, HOST, 0, ssl=context or server_context(), **options)
    return server, server.sockets[0].getsockname()


async def closed(server):
    server.close()
    await server.wait_closed()


async def settled(sender, receiver):
    """Wait until everything sent has been read from the receiver's socket, and what came of it is done."""
    await until(lambda: unsent(sender) == 0 and unread(receiver) == 0, "the receiver's read")
    await turns(3)


def unsent(sock):
    return struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)))[0]


def unread(sock):
    return struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.FIONREAD, bytes(4)))[0]


def end_has_arrived(sock):
    """Return whether the other end's kernel has acknowledged that this one has ended, so that it has all the data before that."""
    state = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
    return state not in (b"\x01", b"\x04")  # TCP_ESTABLISHED, TCP_FIN_WAIT1


def failing(protocol, method, error):
    """Let one of the protocol's methods raise after it has done its work."""
    original = getattr(protocol, method)

    def fail(*arguments):
        original(*arguments)
        raise error

    setattr(protocol, method, fail)
    return protocol
