"""Stream servers and connections over Unix sockets."""

import asyncio
import contextlib
import errno
import gc
import inspect
import os
import pathlib
import socket
import stat
import struct
import subprocess
import sys
import tempfile

import pytest

from support import (
    BufferedRecorder,
    Recorder,
    capture_contexts,
    count_objects_from_here,
    looks,
    open_descriptors,
    resource_warnings,
    same_as_asyncio,
    skip_unless,
    turns,
    until,
)

HAS_CLEANUP = "cleanup_socket" in inspect.signature(asyncio.SelectorEventLoop.create_unix_server).parameters
"""Python 3.13 and later remove the path of a server that is closed."""


@pytest.fixture
def folder():
    # pytest's own folders may be too long for the path of a Unix socket.
    with tempfile.TemporaryDirectory(prefix="unix") as name:
        yield name


@pytest.fixture
def path(folder):
    return os.path.join(folder, "socket")


class Echo(asyncio.Protocol):
    def __init__(self):
        self.events = []

    def connection_made(self, transport):
        self.transport = transport
        self.events.append("connection_made")

    def data_received(self, data):
        self.transport.write(data)

    def eof_received(self):
        self.events.append("eof_received")

    def connection_lost(self, error):
        self.events.append(("connection_lost", error))


@contextlib.asynccontextmanager
async def serving(path, factory=Echo, **options):
    """Serve on the path, until the end of the context."""
    server = await asyncio.get_running_loop().create_unix_server(factory, path, **options)
    try:
        yield server
    finally:
        server.close()
        await server.wait_closed()


async def connected(path, protocol=None, **options):
    """Return (transport, protocol) of a connection to the path."""
    protocol = Recorder() if protocol is None else protocol
    return await asyncio.get_running_loop().create_unix_connection(lambda: protocol, path, **options)


async def ended(protocol):
    await until(lambda: protocol.lost, "the end of the connection")


async def exchange(path):
    """Connect, have b"ping" echoed, close."""
    transport, protocol = await connected(path)
    transport.write(b"ping")
    await until(lambda: protocol.data == b"ping")
    transport.close()
    await ended(protocol)
    return protocol


# Addresses


@pytest.mark.parametrize("convert", [str, os.fsencode, pathlib.Path], ids=["str", "bytes", "PathLike"])
def test_paths_of_every_type(loop, path, convert):
    async def main():
        async with serving(convert(path)) as server:
            assert stat.S_ISSOCK(os.stat(path).st_mode)
            assert [sock.getsockname() for sock in server.sockets] == [path]
            protocol = await exchange(convert(path))
            assert protocol.names == ["connection_made", "data_received", "connection_lost"]

    loop.run_until_complete(main())
    assert os.path.exists(path) != HAS_CLEANUP


@pytest.mark.parametrize("convert", [str, os.fsencode], ids=["str", "bytes"])
def test_abstract_names(loop, convert):
    name = convert(f"\0ringloop-test-{os.getpid()}")

    async def main():
        async with serving(name) as server:
            assert server.sockets[0].getsockname() == os.fsencode(name)
            await exchange(name)
        with pytest.raises(ConnectionRefusedError):
            await connected(name)

    loop.run_until_complete(main())


def test_names_that_are_not_ascii(loop, folder):
    async def main():
        for name in ("sérvice", os.fsdecode(b"\xff\xfe")):
            async with serving(os.path.join(folder, name)):
                await exchange(os.path.join(folder, name))

    loop.run_until_complete(main())


def test_a_stale_socket_is_replaced(loop, path):
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(path)

    async def main():
        with pytest.raises(ConnectionRefusedError):
            await connected(path)
        async with serving(path):
            assert os.path.exists(path)
            await exchange(path)

    loop.run_until_complete(main())


def test_a_server_takes_over_from_a_running_one(loop, path):
    """The server that is bound last has the path; asyncio doesn't ask whether somebody still listens."""

    async def main():
        first = await loop.create_unix_server(Echo, path)
        second_seen = []

        def factory():
            second_seen.append(True)
            return Echo()

        async with serving(path, factory):
            first.close()
            await first.wait_closed()
            assert os.path.exists(path), "the path is the second's by now"
            await exchange(path)
            assert second_seen == [True]

    loop.run_until_complete(main())


def test_a_file_that_is_no_socket_stays(loop_factory, path):
    def body(loop):
        with open(path, "w") as file:
            file.write("mine")
        with pytest.raises(OSError) as caught:
            loop.run_until_complete(loop.create_unix_server(Echo, path))
        with open(path) as file:
            assert file.read() == "mine"
        return type(caught.value), caught.value.args

    _, arguments = same_as_asyncio(body, loop_factory)
    assert arguments == (errno.EADDRINUSE, f"Address {path!r} is already in use")


def test_permissions_of_the_path(loop, path):
    """They are as the socket was bound, and the mode says who may connect."""

    async def main():
        previous = os.umask(0o077)
        try:
            server = await loop.create_unix_server(Echo, path)
        finally:
            os.umask(previous)
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o700
        os.chmod(path, 0o666)
        await exchange(path)
        server.close()
        await server.wait_closed()

    loop.run_until_complete(main())


def test_a_directory_without_permission(loop_factory, folder, caplog):
    os.chmod(folder, 0o500)
    user = os.geteuid()

    def body(loop):
        caplog.clear()
        if user == 0:  # Root may do anything.
            os.seteuid(65534)
        try:
            with pytest.raises(OSError) as caught:
                loop.run_until_complete(loop.create_unix_server(Echo, os.path.join(folder, "socket")))
        finally:
            os.seteuid(user)
        return type(caught.value), caught.value.args, [record.getMessage() for record in caplog.records]

    try:
        assert same_as_asyncio(body, loop_factory)[0] is PermissionError
    finally:
        os.chmod(folder, 0o700)


# Bad input


@pytest.mark.parametrize(
    ("path", "options"),
    [
        (None, {}),
        ("socket", {"sock": "unix"}),
        (None, {"sock": "tcp"}),
        (None, {"sock": "datagram"}),
        ("socket", {"ssl": True}),
        ("socket", {"ssl_handshake_timeout": 1}),
        ("socket", {"ssl_shutdown_timeout": 1}),
        ("socket", {"unknown": 1}),
        (5, {}),
        (object(), {}),
        ("", {}),
        ("x" * 200, {}),
        (b"x" * 108, {}),
        ("missing/socket", {}),
        ("nul\0inside", {}),
        ("/", {}),
    ],
    # No address in it: an id is the same in every run.
    ids=lambda value: "object" if type(value) is object else repr(value)[:30],
)
@pytest.mark.parametrize("method", ["create_unix_server", "create_unix_connection"])
def test_bad_arguments(loop_factory, folder, method, path, options, monkeypatch):
    monkeypatch.chdir(folder)

    def body(loop):
        with (
            socket.socket(socket.AF_UNIX) as unix,
            socket.socket() as tcp,
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagram,
        ):
            given = {"unix": unix, "tcp": tcp, "datagram": datagram}
            arguments = {name: given.get(value, value) for name, value in options.items()}
            with pytest.raises(Exception) as caught:
                result = loop.run_until_complete(getattr(loop, method)(Echo, path, **arguments))
                if method == "create_unix_server":  # Some are accepted, such as a socket with a NUL in its name.
                    result.close()
                raise LookupError("nothing was wrong")
            text = str(caught.value)
            for name, sock in given.items():
                text = text.replace(repr(sock), name)
        for name in os.listdir(folder):
            os.unlink(os.path.join(folder, name))
        return type(caught.value), text.replace("_UnixSelectorEventLoop", "EventLoop")

    with resource_warnings():  # asyncio leaves the socket of some paths to the collector.
        same_as_asyncio(body, loop_factory)


@pytest.mark.parametrize(
    "options",
    [{"server_hostname": "host"}, {"ssl": True}, {"ssl": True, "server_hostname": 5}, {"server_hostname": 5}],
    ids=repr,
)
def test_bad_tls_arguments_of_connections(loop_factory, path, options):
    def body(loop):
        with pytest.raises((ValueError, AssertionError)) as caught:
            loop.run_until_complete(loop.create_unix_connection(Recorder, path, **options))
        return type(caught.value), str(caught.value)

    same_as_asyncio(body, loop_factory)


def test_connecting_to_what_is_not_there(loop_factory, folder):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagram, open(os.path.join(folder, "file"), "w"):
        datagram.bind(os.path.join(folder, "datagram"))

        def body(loop):
            found = []
            for name in ("missing", "file", "datagram", "file/below", "."):
                with pytest.raises(OSError) as caught:
                    loop.run_until_complete(loop.create_unix_connection(Recorder, os.path.join(folder, name)))
                found.append((type(caught.value), caught.value.args))
            return found

        found = same_as_asyncio(body, loop_factory)
    assert [it[0] for it in found[:2]] == [FileNotFoundError, ConnectionRefusedError]


@pytest.mark.without_debug_mode
def test_a_failing_protocol_factory(loop, path):
    calls = []

    def fail():
        calls.append("called")
        raise LookupError("no protocol")

    # asyncio tells of the server's in debug mode only.
    loop.set_exception_handler(lambda _loop, _context: None)

    async def main():
        async with serving(path, fail):
            with pytest.raises(LookupError, match="no protocol"):
                await loop.create_unix_connection(fail, path)
            await until(lambda: len(calls) == 2)
        async with serving(path):
            await exchange(path)

    with (
        resource_warnings()
    ):  # asyncio leaves the sockets of connections whose protocol can't be made to the collector.
        loop.run_until_complete(main())


# What closing leaves


def test_closing_removes_the_path_where_asyncio_does(loop_factory, path):
    def body(loop):
        async def main():
            server = await loop.create_unix_server(Echo, path)
            server.close()
            left = os.path.exists(path)
            await server.wait_closed()
            return left

        return loop.run_until_complete(main())

    assert same_as_asyncio(body, loop_factory) is not HAS_CLEANUP


@pytest.mark.parametrize("case", ["kept", "replaced", "removed", "abstract", "sock"])
def test_cleanup_socket(loop_factory, path, case):
    skip_unless(HAS_CLEANUP, "create_unix_server(cleanup_socket=)")

    def body(loop):
        async def main():
            if case == "sock":
                sock = socket.socket(socket.AF_UNIX)
                sock.bind(path)
                server = await loop.create_unix_server(Echo, sock=sock)
            elif case == "abstract":
                server = await loop.create_unix_server(Echo, f"\0{path}", cleanup_socket=True)
            else:
                server = await loop.create_unix_server(Echo, path, cleanup_socket=case != "kept")
            if case in ("replaced", "removed"):
                os.rename(path, path + "-old")
            if case == "replaced":
                with socket.socket(socket.AF_UNIX) as other:
                    other.bind(path)
            server.close()
            await server.wait_closed()

        loop.run_until_complete(main())
        left = sorted(os.listdir(os.path.dirname(path)))
        for name in left:
            os.unlink(os.path.join(os.path.dirname(path), name))
        return left

    expected = {
        "kept": ["socket"],
        "replaced": ["socket", "socket-old"],
        "removed": ["socket-old"],
        "abstract": [],
        "sock": [],
    }
    assert same_as_asyncio(body, loop_factory) == expected[case]


def test_start_serving_later(loop, path):
    async def main():
        server = await loop.create_unix_server(Echo, path, start_serving=False)
        assert not server.is_serving()
        with pytest.raises(ConnectionRefusedError):
            await connected(path)
        await server.start_serving()
        assert server.is_serving()
        await exchange(path)
        server.close()
        await server.wait_closed()
        with pytest.raises((ConnectionRefusedError, FileNotFoundError)):
            await connected(path)

    loop.run_until_complete(main())


def test_a_closed_server_keeps_its_connections(loop, path):
    async def main():
        server = await loop.create_unix_server(Echo, path)
        transport, protocol = await connected(path)
        await until(lambda: transport.get_extra_info("peername") == path)
        transport.write(b"before")
        await until(lambda: protocol.data == b"before")
        server.close()
        transport.write(b" and after")
        await until(lambda: protocol.data == b"before and after")
        transport.close()
        await ended(protocol)
        await server.wait_closed()

    loop.run_until_complete(main())


def test_serve_forever(loop, path):
    async def main():
        server = await loop.create_unix_server(Echo, path, start_serving=False)
        task = loop.create_task(server.serve_forever())
        await until(server.is_serving)
        await exchange(path)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not server.is_serving()

    loop.run_until_complete(main())


# Sockets of one's own


def test_sockets_of_ones_own(loop, path):
    async def main():
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        client = socket.socket(socket.AF_UNIX)
        async with serving(None, sock=listener):
            client.connect(path)
            transport, protocol = await connected(None, sock=client)
            assert client.gettimeout() == 0
            transport.write(b"x")
            await until(lambda: protocol.data == b"x")
            transport.close()
            await ended(protocol)
            assert client.fileno() == -1
        assert listener.fileno() == -1

    loop.run_until_complete(main())


def test_a_socket_pair(loop):
    ours, peer = socket.socketpair()
    peer.setblocking(False)

    async def main():
        with peer:
            transport, protocol = await connected(None, sock=ours)
            assert transport.get_extra_info("peername") == ""
            assert transport.get_extra_info("sockname") == ""
            transport.write(b"x")
            assert await loop.sock_recv(peer, 10) == b"x"
            await loop.sock_sendall(peer, b"y")
            await until(lambda: protocol.data == b"y")
        await ended(protocol)
        assert protocol.names == ["connection_made", "data_received", "eof_received", "connection_lost"]

    loop.run_until_complete(main())


def test_connect_accepted_socket(loop, path):
    async def main():
        with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
            listener.bind(path)
            listener.listen()
            client.connect(path)
            accepted, _ = listener.accept()
            protocol = Recorder()
            transport, _ = await loop.connect_accepted_socket(lambda: protocol, accepted)
            assert transport.get_extra_info("sockname") == path
            assert transport.get_extra_info("peername") == ""
            client.sendall(b"x")
            await until(lambda: protocol.data)
        await ended(protocol)

    loop.run_until_complete(main())


# What a transport tells of itself


def test_extra_info(loop_factory, path):
    def body(loop):
        async def main():
            made = []

            def factory():
                made.append(Echo())
                return made[-1]

            async with serving(path, factory):
                transport, protocol = await connected(path)
                await until(lambda: made and made[0].events)
                found = []
                for side in (transport, made[0].transport):
                    sock = side.get_extra_info("socket")
                    found += [
                        side.get_extra_info("sockname"),
                        side.get_extra_info("peername"),
                        side.get_extra_info("sslcontext", "none"),
                        sock.family,
                        type(sock).__name__,
                        sock.getsockname(),
                        sock.getpeername(),
                    ]
                    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
                    assert struct.unpack("3i", credentials) == (os.getpid(), os.getuid(), os.getgid())
                transport.close()
                await ended(protocol)
                found.append(transport.get_extra_info("peername"))
                return found

        return loop.run_until_complete(main())

    found = same_as_asyncio(body, loop_factory)
    assert found[0] == "" and found[1] == path
    assert found[7] == path and found[8] == ""


def test_the_credentials_of_another_process(loop, path):
    async def main():
        made = []

        class Protocol(Echo):
            def connection_made(self, transport):
                super().connection_made(transport)
                sock = transport.get_extra_info("socket")
                made.append(struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)))

        async with serving(path, Protocol):
            source = f"import socket; s = socket.socket(socket.AF_UNIX); s.connect({path!r})"
            with subprocess.Popen([sys.executable, "-c", source]) as process:
                await until(lambda: made)
                assert made == [(process.pid, os.getuid(), os.getgid())]
            assert process.returncode == 0

    loop.run_until_complete(main())


# Traffic


@pytest.mark.parametrize("recorder", [Recorder, BufferedRecorder])
def test_large_transfers(loop, path, recorder):
    data = os.urandom(3_000_000)

    async def main():
        async with serving(path):
            transport, protocol = await connected(path, recorder())
            transport.write(data)
            transport.writelines([data[:1000], b"", data[1000:2000]])
            await until(lambda: len(protocol.data) == len(data) + 2000)
            assert protocol.data == data + data[:2000]
            transport.close()
            await ended(protocol)

    loop.run_until_complete(main())


def test_flow_control(loop):
    ours, peer = socket.socketpair()
    peer.setblocking(False)

    async def main():
        transport, protocol = await connected(None, sock=ours)
        transport.set_write_buffer_limits(high=100_000)
        total = 0
        while "pause_writing" not in protocol.names:
            transport.write(bytes(65536))
            total += 65536
        assert transport.get_write_buffer_size() > 100_000
        received = 0
        while received < total:
            received += len(await loop.sock_recv(peer, 1 << 20))
        await until(lambda: "resume_writing" in protocol.names)
        assert protocol.names == ["connection_made", "pause_writing", "resume_writing"]
        transport.pause_reading()
        await loop.sock_sendall(peer, b"later")
        await turns(5)
        assert not protocol.data
        transport.resume_reading()
        await until(lambda: protocol.data == b"later")
        transport.close()
        await ended(protocol)

    with peer:
        loop.run_until_complete(main())


def test_half_close(loop, path):
    class Server(Echo):
        def eof_received(self):
            super().eof_received()
            self.transport.write(b" the end")
            loop.call_soon(self.transport.close)
            return True

    async def main():
        async with serving(path, Server):
            transport, protocol = await connected(path)
            assert transport.can_write_eof()
            transport.write(b"all of it")
            transport.write_eof()
            await ended(protocol)
            assert protocol.data == b"all of it the end"
            assert protocol.names[-2:] == ["eof_received", "connection_lost"]
            assert protocol.error is None

    loop.run_until_complete(main())


def test_a_peer_that_leaves_data_unread_resets(loop_factory):
    """Closing a Unix socket with data in its queue is a reset for the peer."""

    def body(loop):
        ours, peer = socket.socketpair()

        async def main():
            contexts = capture_contexts(loop)
            transport, protocol = await connected(None, sock=ours)
            transport.write(b"never read")
            peer.close()
            await ended(protocol)
            return [event[0] for event in protocol.events], type(protocol.error), contexts

        return loop.run_until_complete(main())

    assert same_as_asyncio(body, loop_factory)[1:] == (ConnectionResetError, [])


def test_writing_to_a_peer_that_is_gone(loop_factory):
    def body(loop):
        ours, peer = socket.socketpair()

        async def main():
            transport, protocol = await connected(None, sock=ours)
            peer.close()
            transport.write(b"x")
            await ended(protocol)
            return type(protocol.error)

        return loop.run_until_complete(main())

    assert same_as_asyncio(body, loop_factory) is BrokenPipeError


def test_abort_drops_what_is_buffered(loop):
    ours, peer = socket.socketpair()

    async def main():
        transport, protocol = await connected(None, sock=ours)
        transport.write(bytes(5_000_000))
        assert transport.get_write_buffer_size() > 0
        transport.abort()
        await ended(protocol)
        assert protocol.error is None
        assert transport.get_write_buffer_size() == 0

    with peer:
        loop.run_until_complete(main())


def test_streams(loop, path):
    async def handle(reader, writer):
        async for line in reader:
            writer.write(line.upper())
            await writer.drain()
        writer.close()
        await writer.wait_closed()

    async def main():
        server = await asyncio.start_unix_server(handle, path, limit=1 << 20)
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b"one\ntwo\n")
        assert await reader.readline() == b"ONE\n"
        assert await reader.readexactly(4) == b"TWO\n"
        long = b"x" * 200_000 + b"\n"
        writer.write(long)
        await writer.drain()
        with pytest.raises(ValueError, match="longer than limit"):
            await reader.readline()
        writer.write_eof()
        await reader.read()
        writer.close()
        await writer.wait_closed()
        server.close()
        await server.wait_closed()

    loop.run_until_complete(main())


def test_many_connections_at_once(loop, path):
    async def main():
        async with serving(path, backlog=200):
            protocols = await asyncio.gather(*(exchange(path) for _ in range(150)))
        assert all(protocol.data == b"ping" for protocol in protocols)

    loop.run_until_complete(main())


def test_a_peer_that_floods_does_not_starve_others(loop, path):
    """One connection whose peer never stops sending, another that is served meanwhile."""

    class Sink(asyncio.Protocol):
        def connection_made(self, transport):
            self.transport = transport

        def data_received(self, data):
            if data.startswith(b"ping"):
                self.transport.write(b"pong")

    async def main():
        async with serving(path, Sink):
            flood, flooding = await connected(path)
            stopped = False

            async def send():
                while not stopped:
                    flood.write(b"x" * 65536)
                    await asyncio.sleep(0)

            task = loop.create_task(send())
            for _ in range(20):
                transport, protocol = await connected(path)
                transport.write(b"ping")
                await until(lambda: protocol.data == b"pong")  # noqa: B023
                transport.close()
                await ended(protocol)
            stopped = True
            await task
            flood.abort()
            await ended(flooding)

    loop.run_until_complete(main())


def test_cancelling_a_connection(loop, path):
    async def main():
        async with serving(path):
            for delay in range(4):
                protocol = Recorder()
                task = loop.create_task(loop.create_unix_connection(lambda p=protocol: p, path))
                await turns(delay)
                task.cancel()
                try:
                    transport, _ = await task
                except asyncio.CancelledError:
                    await turns(3)
                    assert protocol.names in ([], ["connection_made", "connection_lost"])
                else:
                    transport.close()
                    await ended(protocol)
            await exchange(path)

    with resource_warnings() as messages:
        loop.run_until_complete(main())
    assert messages == []


def test_sock_operations(loop, path):
    async def main():
        with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
            listener.bind(path)
            listener.listen()
            listener.setblocking(False)
            client.setblocking(False)
            accepting = loop.create_task(loop.sock_accept(listener))
            await turns(2)
            await loop.sock_connect(client, path)
            accepted, address = await accepting
            with accepted:
                assert address == ""
                assert accepted.gettimeout() == 0
                await loop.sock_sendall(client, b"x" * 1000)
                assert await loop.sock_recv(accepted, 2000) == b"x" * 1000
                with pytest.raises(OSError) as caught:
                    await loop.sock_connect(client, path)
                assert caught.value.errno == errno.EISCONN

    loop.run_until_complete(main())


# Life


@pytest.mark.exact
def test_an_unclosed_connection_warns(loop_factory, path):
    descriptors = open_descriptors()
    loop = loop_factory()

    async def main():
        async with serving(path):
            await connected(path)
            await turns(3)
            there.append(True)

    there = []
    with resource_warnings() as messages:
        # From Python 3.12 on, a server waits for its connections: this one has none any more when the loop is closed.
        task = loop.create_task(main())
        loop.run_until_complete(until(lambda: there))
        loop.run_until_complete(looks(10))
        task.cancel()
        loop.run_until_complete(asyncio.wait([task]))
        loop.close()
        task = None
        gc.collect()
    assert [text for text in messages if text.startswith("unclosed transport <")]
    assert not open_descriptors() - descriptors


@pytest.mark.exact
def test_nothing_is_left_after_many_cycles(loop, path):
    async def cycle():
        async with serving(path):
            await exchange(path)

    async def cycles(count):
        for _ in range(count):
            await cycle()

    count_objects = count_objects_from_here()
    loop.run_until_complete(cycles(20))
    descriptors, objects = open_descriptors(), count_objects()
    loop.run_until_complete(cycles(200))
    assert not open_descriptors() - descriptors
    assert count_objects() < objects + 100
