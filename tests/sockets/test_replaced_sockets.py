"""Programs that put methods of their own into `socket.socket`, or another class in its place: asyncio calls these.

Tests block connections so (pytest-socket, mocket), and programs send them through a proxy (PySocks). Native code makes system calls of
its own, and has to leave such sockets to asyncio.
"""

import asyncio
import os
import socket

import pytest

from datagram_support import DatagramRecorder
from support import (
    HOST,
    Oops,
    Recorder,
    keep_receive_buffer_small,
    receive_exactly,
    run_child,
    same_as_asyncio,
    tcp_listener,
    tcp_pair,
    turns,
    until,
)

METHODS = [
    "accept", "close", "connect", "fileno", "getpeername", "getsockname", "getsockopt", "recv", "recv_into", "recvfrom",
    "recvfrom_into", "send", "sendmsg", "sendto", "setblocking", "setsockopt", "shutdown",
]  # fmt: skip
PROPERTIES = ["family", "proto", "type"]


class InBuffer(asyncio.BufferedProtocol):
    def __init__(self):
        self.buffer, self.count, self.lost = bytearray(100), 0, False

    def get_buffer(self, sizehint):
        return self.buffer

    def buffer_updated(self, count):
        self.count += count

    def connection_lost(self, error):
        self.lost = True


async def use_streams(loop):
    async def handle(reader, writer):
        writer.write(await reader.read(10))
        writer.close()

    server = await asyncio.start_server(handle, HOST, 0)
    address = server.sockets[0].getsockname()
    reader, writer = await asyncio.open_connection(*address)
    writer.get_extra_info("sockname")
    writer.writelines([b"in", b"out"])
    writer.write_eof()
    assert await reader.read() == b"inout"
    writer.close()
    await writer.wait_closed()
    server.close()
    await server.wait_closed()


async def use_transports(loop):
    ours, peer = tcp_pair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
    keep_receive_buffer_small(peer)
    with peer:
        transport, protocol = await loop.create_connection(InBuffer, sock=ours)
        os.write(peer.fileno(), b"in")
        await until(lambda: protocol.count == 2)
        transport.write(b"x" * 1_000_000)
        transport.writelines([b"out", b"put"])
        assert transport.get_write_buffer_size() > 0
        await receive_exactly(loop, peer, 1_000_006)
        transport.close()
        await until(lambda: protocol.lost)
    transport, protocol = await loop.create_datagram_endpoint(DatagramRecorder, local_addr=(HOST, 0))
    address = transport.get_extra_info("sockname")
    transport.sendto(b"x", address)
    await until(lambda: protocol.data)
    other, peer = await loop.create_datagram_endpoint(DatagramRecorder, remote_addr=address)
    other.sendto(b"y")
    await until(lambda: len(protocol.data) == 2)
    for each, recorder in ((transport, protocol), (other, peer)):
        each.close()
        await until(lambda recorder=recorder: recorder.lost)


async def use_sockets(loop):
    with tcp_listener() as listener, socket.socket() as client:
        client.setblocking(False)
        await loop.sock_connect(client, listener.getsockname())
        accepted, _ = await loop.sock_accept(listener)
        with accepted:
            await loop.sock_sendall(client, b"one")
            assert await loop.sock_recv(accepted, 3) == b"one"
            await loop.sock_sendall(client, b"two")
            assert await loop.sock_recv_into(accepted, bytearray(3)) == 3
    with socket.socket(type=socket.SOCK_DGRAM) as sock:
        sock.bind((HOST, 0))
        sock.setblocking(False)
        address = sock.getsockname()
        for _ in range(2):
            await loop.sock_sendto(sock, b"x", address)
        assert await loop.sock_recvfrom(sock, 10) == (b"x", address)
        assert await loop.sock_recvfrom_into(sock, bytearray(10)) == (1, address)


@pytest.mark.parametrize("use", [use_streams, use_transports, use_sockets])
def test_methods_in_the_class_of_sockets_were_bypassed(loop_factory, use):
    """Which of them are called depends on asyncio's version."""

    def body(loop):
        return {name for name in METHODS + PROPERTIES if is_called(loop, use, name)}

    assert same_as_asyncio(body, loop_factory)


def is_called(loop, use, name):
    """Return whether somebody calls this method of sockets, or asks for this attribute."""
    original = getattr(socket.socket, name)
    called = []

    def method(sock, *arguments):
        if is_watched:
            called.append(name)
        return original(sock, *arguments)

    def attribute(sock):
        if is_watched:
            called.append(name)
        return original.__get__(sock)

    async def main():
        nonlocal is_watched
        await asyncio.sleep(0)
        is_watched = True
        await use(loop)
        is_watched = False

    is_watched = False
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, name, property(attribute) if name in PROPERTIES else method)
        loop.run_until_complete(main())
    return bool(called)


@pytest.mark.parametrize("way", ["create_connection", "open_connection", "sock_connect", "create_datagram_endpoint"])
def test_a_connection_that_is_forbidden_was_made(loop, monkeypatch, way):
    """As pytest-socket forbids it: by a `connect` in the class."""

    def connect(sock, address):
        raise Oops(address)

    async def main(address):
        if way == "create_connection":
            await loop.create_connection(Recorder, *address)
        elif way == "open_connection":
            await asyncio.open_connection(*address)
        elif way == "create_datagram_endpoint":
            await loop.create_datagram_endpoint(DatagramRecorder, remote_addr=address)
        else:
            with socket.socket() as sock:
                sock.setblocking(False)
                await loop.sock_connect(sock, address)

    with tcp_listener() as listener:
        address = listener.getsockname()
        with monkeypatch.context() as patch:
            patch.setattr(socket.socket, "connect", connect)
            with pytest.raises(Oops) as caught:
                loop.run_until_complete(main(address))
            assert caught.value.args == (address,)
        if way != "create_datagram_endpoint":

            async def again():
                transport, protocol = await loop.create_connection(Recorder, *address)
                transport.close()
                await until(lambda: protocol.lost)

            loop.run_until_complete(again())


CHANGING = """
    import socket, threading
    if "after" in sys.argv and {arm!r} != "asyncio":
        import ringloop

    def changed(data):
        return bytes(byte ^ 1 for byte in data)

    class Changing(socket.socket):
        def connect(self, address):
            print("connect")
            super().connect(address)

        def send(self, data, *arguments):
            return super().send(changed(data), *arguments)

        def recv(self, count, *arguments):
            return changed(super().recv(count, *arguments))

        def sendto(self, data, *arguments):
            return super().sendto(changed(data), *arguments)

        def recvfrom(self, count, *arguments):
            data, address = super().recvfrom(count, *arguments)
            return changed(data), address

    Plain, socket.socket = socket.socket, Changing

    class Datagrams(asyncio.DatagramProtocol):
        def __init__(self):
            self.received = asyncio.get_running_loop().create_future()

        def datagram_received(self, data, address):
            self.received.set_result(data)

    def accept(listener):
        sock = Plain(fileno=listener._accept()[0])
        sock.setblocking(True)
        return sock

    async def main():
        loop = asyncio.get_running_loop()
        with Plain() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            with accept(listener) as peer:
                writer.write(b"hello")
                print(peer.recv(5))
                peer.sendall(b"answer")
                print(await reader.read(10))
                writer.close()
                await writer.wait_closed()
            with socket.socket() as sock:
                sock.setblocking(False)
                await loop.sock_connect(sock, listener.getsockname())
                with accept(listener) as peer:
                    await loop.sock_sendall(sock, b"hello")
                    print(peer.recv(5))
                    peer.sendall(b"answer")
                    print(await loop.sock_recv(sock, 10))
        with Plain(type=socket.SOCK_DGRAM) as peer:
            peer.bind(("127.0.0.1", 0))
            transport, protocol = await loop.create_datagram_endpoint(Datagrams, local_addr=("127.0.0.1", 0))
            transport.sendto(b"hello", peer.getsockname())
            data, address = peer.recvfrom(10)
            peer.sendto(b"answer", address)
            print(data, await protocol.received)
            transport.close()
            await asyncio.sleep(0)
        async def handle(reader, writer):
            writer.write(await reader.read(5))
            writer.close()
        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        with Plain() as client:
            client.setblocking(False)
            await asyncio.to_thread(blocking, client, server.sockets[0].getsockname())
        server.close()
        await server.wait_closed()

    def blocking(client, address):
        client.setblocking(True)
        client.connect(address)
        client.sendall(b"hello")
        print(client.recv(10))

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_class_in_the_place_of_socket_was_bypassed(arm, when):
    """Before or after the import of ringloop: connections of such programs went past their proxy."""
    child = run_child(CHANGING.replace("{arm!r}", repr(arm)), arm, when, python_flags=("-W", "ignore"))
    stream = ["b'idmmn'", "b'`orvds'"]
    expected = ["connect", *stream, "connect", *stream, "b'idmmn' b'`orvds'", "b'hello'"]
    assert (child.stdout.splitlines(), child.stderr) == (expected, "")


def test_methods_replaced_before_the_import(arm):
    """They counted as the interpreter's own."""
    child = run_child(
        """
        import socket

        names = ("connect", "send", "recv", "accept")
        originals = {name: getattr(socket.socket, name) for name in names}
        called = []

        def replacement(name):
            def method(self, *arguments):
                called.append(name)
                return originals[name](self, *arguments)
            return method

        for name in names:
            setattr(socket.socket, name, replacement(name))

        async def main():
            async def handle(reader, writer):
                writer.write(await reader.read(5))
                writer.close()
            server = await asyncio.start_server(handle, "127.0.0.1", 0)
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            called.clear()
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.write(b"x")
            await reader.read()
            writer.close()
            server.close()
            await support.looks()
            print(sorted(set(called)))

        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(main())
        """,
        arm,
        python_flags=("-W", "ignore"),
    )
    assert (child.stdout, child.stderr) == ("['accept', 'connect', 'recv', 'send']\n", "")


def test_connections_are_accepted_as_the_class_of_the_day(loop_factory, monkeypatch):
    """`accept` of the interpreter's class makes an object of what `socket.socket` is now, for a listener of before too."""

    class Own(socket.socket):
        pass

    def body(loop):
        kinds = []

        class Server(asyncio.Protocol):
            def connection_made(self, transport):
                kinds.append(type(transport.get_extra_info("socket")._sock).__name__)
                transport.abort()

        async def main():
            server = await loop.create_server(Server, HOST, 0)
            address = server.sockets[0].getsockname()
            original = socket.socket
            for current in (original, Own, original):
                with monkeypatch.context() as patch:
                    patch.setattr(socket, "socket", current)
                    with original() as client:
                        client.connect(address)
                        count = len(kinds)
                        await until(lambda count=count: len(kinds) > count)
            server.close()
            await server.wait_closed()

        loop.run_until_complete(main())
        return kinds

    assert same_as_asyncio(body, loop_factory) == ["socket", "Own", "socket"]


def test_a_function_in_the_place_of_the_class(loop, monkeypatch):
    """It used to be taken for a class."""
    original, made = socket.socket, []

    def make(*arguments, **options):
        made.append(arguments)
        return original(*arguments, **options)

    async def main():
        ours, peer = tcp_pair()
        with tcp_listener() as listener, peer:
            address = listener.getsockname()
            monkeypatch.setattr(socket, "socket", make)
            for way in ({"sock": ours}, {"host": address[0], "port": address[1]}):
                transport, protocol = await loop.create_connection(Recorder, **way)
                transport.close()
                await until(lambda protocol=protocol: protocol.lost)
            transport, protocol = await loop.create_datagram_endpoint(DatagramRecorder, local_addr=(HOST, 0))
            transport.close()
            await until(lambda: protocol.lost)
            monkeypatch.undo()

    loop.run_until_complete(main())
    assert len(made) == 2


@pytest.mark.ringloop_only
@pytest.mark.without_debug_mode
def test_sockets_are_native_again_once_the_originals_are_back(loop, monkeypatch):
    async def kinds():
        ours, peer = tcp_pair()
        with peer:
            transport, protocol = await loop.create_connection(Recorder, sock=ours)
            endpoint, recorder = await loop.create_datagram_endpoint(DatagramRecorder, local_addr=(HOST, 0))
            receiving = loop.sock_recv(peer, 1)
            receiving.close()
            transport.close()
            endpoint.close()
            await until(lambda: protocol.lost and recorder.lost)
        await turns(2)
        return [type(each).__module__ for each in (transport, endpoint, receiving)]

    native = ["ringloop._transports", "ringloop._datagrams", "ringloop._core"]
    assert loop.run_until_complete(kinds()) == native
    with monkeypatch.context() as patch:
        patch.setattr(socket.socket, "recv", lambda *arguments: b"")
        asyncios = loop.run_until_complete(kinds())
        assert asyncios == ["asyncio.selector_events", "asyncio.selector_events", "builtins"]
    assert loop.run_until_complete(kinds()) == native
    with monkeypatch.context() as patch:
        patch.setattr(socket.socket, "__getattribute__", lambda *arguments: object.__getattribute__(*arguments))
        assert loop.run_until_complete(kinds()) == asyncios
    assert loop.run_until_complete(kinds()) == native


@pytest.mark.ringloop_only
def test_replacements_are_noticed_after_more_changes_than_a_class_has_versions(arm):
    """From Python 3.13 on, a class has no version after a thousand changes."""
    child = run_child(
        """
        import socket
        import ringloop._core as core

        sock = socket.socket()
        original = socket.socket.send
        for _ in range(3000):
            socket.socket.send = print
            assert not core._is_usual_socket(sock)
            socket.socket.send = original
            assert core._is_usual_socket(sock)
        sock.close()
        print("noticed")
        """,
        arm,
    )
    assert (child.stdout, child.stderr) == ("noticed\n", "")


@pytest.mark.ringloop_only
def test_what_is_a_usual_socket():
    import ringloop._core as core

    class Derived(socket.socket):
        __slots__ = ()

    class Alike(socket.socket.__base__):
        pass

    ours, peer = socket.socketpair()
    alike = Alike()
    with ours, peer, Derived() as derived:
        found = [core._is_usual_socket(it) for it in (ours, derived, alike, None, 5, socket.socket)]
    alike.close()
    assert found == [True, False, False, False, False, False]


def test_a_method_of_a_socket_that_ends_its_own_operation_is_refused(loop):
    """The operation is in the middle of a step, after which it would have watched the socket for nobody."""
    found = []

    class Ending(socket.socket):
        def recv(self, size, flags=0):
            for end in (operation.close, lambda: operation.throw(KeyError)):
                with pytest.raises(ValueError, match="already executing"):
                    end()
                found.append(end)
            return super().recv(size, flags)

    ours, peer = socket.socketpair()
    with Ending(fileno=ours.detach()) as ending, peer:
        ending.setblocking(False)
        peer.send(b"data")
        operation = loop.sock_recv(ending, 4)
        with pytest.raises(StopIteration) as stopped:
            operation.send(None)
        assert stopped.value.value == b"data"
        assert len(found) == 2
