"""`sock_recvfrom`, `sock_recvfrom_into` and `sock_sendto`."""

import asyncio
import contextlib
import gc
import os
import re
import socket

import pytest

from datagram_support import UDP_BYTES_MAX, close, drain_until, endpoint, unix_socket
from support import (
    HOST,
    has_ipv6,
    same_as_asyncio,
    turns,
)


@contextlib.contextmanager
def plain_pair(kind="udp"):
    """Yield two non-blocking datagram sockets with addresses."""
    family = {"udp": socket.AF_INET, "udp6": socket.AF_INET6}.get(kind, socket.AF_UNIX)
    with socket.socket(family, socket.SOCK_DGRAM) as first, socket.socket(family, socket.SOCK_DGRAM) as second:
        for sock in (first, second):
            sock.bind({"udp": (HOST, 0), "udp6": ("::1", 0)}.get(kind, ""))
            sock.setblocking(False)
        yield first, second


@pytest.mark.parametrize("kind", ["udp", "udp6", "unix"])
def test_sock_sendto_and_recvfrom(loop, kind):
    if kind == "udp6" and not has_ipv6():
        pytest.skip("no IPv6 on the loopback interface")

    async def main():
        with plain_pair(kind) as (first, second):
            assert await loop.sock_sendto(first, b"ready", second.getsockname()) == 5
            assert await loop.sock_recvfrom(second, 100) == (b"ready", first.getsockname())
            task = loop.create_task(loop.sock_recvfrom(second, 100))
            await turns(3)
            assert not task.done()
            assert await loop.sock_sendto(first, memoryview(b"later"), second.getsockname()) == 5
            assert await task == (b"later", first.getsockname())
            await loop.sock_sendto(first, bytearray(b"cut off here"), second.getsockname())
            assert await loop.sock_recvfrom(second, 7) == (b"cut off", first.getsockname())
            await loop.sock_sendto(first, b"", second.getsockname())
            assert await loop.sock_recvfrom(second, 100) == (b"", first.getsockname())

    loop.run_until_complete(main())


@pytest.mark.parametrize("kind", ["udp", "unix"])
def test_sock_recvfrom_into(loop, kind):
    async def main():
        with plain_pair(kind) as (first, second):
            buffer = bytearray(10)
            for arguments, expected in [((), b"datagram"), ((0,), b"datagram"), ((4,), b"data"), ((10,), b"datagram")]:
                buffer[:] = bytes(10)
                task = loop.create_task(loop.sock_recvfrom_into(second, buffer, *arguments))
                await turns(2)
                await loop.sock_sendto(first, b"datagram", second.getsockname())
                assert await task == (len(expected), first.getsockname())
                assert buffer == expected.ljust(10, b"\0")
            view = memoryview(buffer)[2:6]
            await loop.sock_sendto(first, b"datagram", second.getsockname())
            assert await loop.sock_recvfrom_into(second, buf=view, nbytes=3) == (3, first.getsockname())
            assert buffer == b"dadatram\0\0"

    loop.run_until_complete(main())


def test_sock_recvfrom_of_the_largest_datagrams(loop):
    async def main():
        with plain_pair() as (first, second):
            data = os.urandom(UDP_BYTES_MAX)
            assert await loop.sock_sendto(first, data, second.getsockname()) == UDP_BYTES_MAX
            assert await loop.sock_recvfrom(second, 1 << 20) == (data, first.getsockname())
        with plain_pair("unix") as (first, second):
            data = os.urandom(200_000)
            await loop.sock_sendto(first, data, second.getsockname())
            assert await loop.sock_recvfrom(second, 1 << 18) == (data, first.getsockname())
            await loop.sock_sendto(first, data, second.getsockname())
            assert await loop.sock_recvfrom(second, 1 << 30) == (data, first.getsockname())

    loop.run_until_complete(main())


def test_sock_recvfrom_of_a_stream_has_no_address(loop_factory):
    def body(loop):
        async def main():
            first, second = socket.socketpair()
            with first, second:
                first.setblocking(False)
                second.setblocking(False)
                await loop.sock_sendall(first, b"stream")
                found = [await loop.sock_recvfrom(second, 3), await loop.sock_recvfrom_into(second, bytearray(10))]
                first.close()
                found.append(await loop.sock_recvfrom(second, 3))
                return found

        return loop.run_until_complete(main())

    assert same_as_asyncio(body, loop_factory) == [(b"str", None), (3, None), (b"", None)]


def test_sock_sendto_waits_for_room(loop, folder):
    path = os.path.join(folder, "peer")

    async def main():
        with unix_socket(path) as peer, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            peer.setblocking(False)
            sock.setblocking(False)
            expected = []
            with contextlib.suppress(BlockingIOError):
                while True:
                    sock.sendto(b"%d" % len(expected), path)
                    expected.append(b"%d" % len(expected))
            task = loop.create_task(loop.sock_sendto(sock, b"last", path))
            await turns(10)
            assert not task.done()
            received = []
            await drain_until(peer, received, len(expected) + 1)
            assert received == [*expected, b"last"]
            assert await task == 4

    loop.run_until_complete(main())


WRONG_CALLS = {
    "recvfrom of a word": lambda loop, sock, _other: loop.sock_recvfrom(sock, "many"),
    "recvfrom of less than nothing": lambda loop, sock, _other: loop.sock_recvfrom(sock, -1),
    "recvfrom of nothing": lambda loop, sock, _other: loop.sock_recvfrom(sock, 0),
    "recvfrom of far too much": lambda loop, sock, _other: loop.sock_recvfrom(sock, 1 << 70),
    "recvfrom of None": lambda loop, sock, _other: loop.sock_recvfrom(sock, None),
    "recvfrom of no socket": lambda loop, _sock, _other: loop.sock_recvfrom(5, 5),
    "recvfrom without a number": lambda loop, sock, _other: loop.sock_recvfrom(sock),
    "recvfrom_into bytes": lambda loop, sock, _other: loop.sock_recvfrom_into(sock, b"read-only"),
    "recvfrom_into text": lambda loop, sock, _other: loop.sock_recvfrom_into(sock, "text"),
    "recvfrom_into None": lambda loop, sock, _other: loop.sock_recvfrom_into(sock, None),
    "recvfrom_into too little": lambda loop, sock, _other: loop.sock_recvfrom_into(sock, bytearray(5), 6),
    "recvfrom_into less than nothing": lambda loop, sock, _other: loop.sock_recvfrom_into(sock, bytearray(5), -1),
    "recvfrom_into a word": lambda loop, sock, _other: loop.sock_recvfrom_into(sock, bytearray(5), "many"),
    "recvfrom_into nothing": lambda loop, sock, _other: loop.sock_recvfrom_into(sock, bytearray()),
    "recvfrom_into wide items": lambda loop, sock, _other: loop.sock_recvfrom_into(
        sock, memoryview(bytearray(16)).cast("I")
    ),
    "sendto text": lambda loop, sock, other: loop.sock_sendto(sock, "text", other.getsockname()),
    "sendto a number": lambda loop, sock, other: loop.sock_sendto(sock, 5, other.getsockname()),
    "sendto holes": lambda loop, sock, other: loop.sock_sendto(sock, memoryview(b"1234")[::2], other.getsockname()),
    "sendto None": lambda loop, sock, _other: loop.sock_sendto(sock, b"x", None),
    "sendto half an address": lambda loop, sock, _other: loop.sock_sendto(sock, b"x", (HOST,)),
    "sendto a wrong port": lambda loop, sock, _other: loop.sock_sendto(sock, b"x", (HOST, 65536)),
    "sendto a path": lambda loop, sock, _other: loop.sock_sendto(sock, b"x", "path"),
    "sendto without an address": lambda loop, sock, _other: loop.sock_sendto(sock, b"x"),
    "sendto too much": lambda loop, sock, other: loop.sock_sendto(sock, bytes(UDP_BYTES_MAX + 1), other.getsockname()),
    "sendto everybody": lambda loop, sock, _other: loop.sock_sendto(sock, b"x", ("255.255.255.255", 9)),
    "sendto a name": lambda loop, sock, other: loop.sock_sendto(sock, b"x", ("localhost", other.getsockname()[1])),
    "sendto nowhere": lambda loop, sock, _other: loop.sock_sendto(sock, b"x", ("name.invalid", 9)),
}


@pytest.mark.parametrize("closed", [False, True], ids=["open", "closed"])
@pytest.mark.parametrize("name", WRONG_CALLS)
def test_wrong_calls(loop_factory, name, closed):
    """Errors, and results of what is odd but right, are asyncio's: type, text, and whether they come at all."""

    def body(loop):
        async def main():
            with plain_pair() as (first, second):
                first.connect(second.getsockname()) if "sendto" not in name else None
                second.sendto(b"12345678", first.getsockname())
                if closed:
                    first.close()
                try:
                    result = await WRONG_CALLS[name](loop, first, second)
                except Exception as error:
                    return type(error), re.sub(r"^\S*sock_", "sock_", str(error))
                return result[0] if type(result) is tuple else result

        return loop.run_until_complete(main())

    same_as_asyncio(body, loop_factory)


def test_sock_operations_are_told_of_errors(loop):
    async def main():
        with plain_pair() as (first, second):
            address = second.getsockname()
            first.connect(address)
            second.close()
            for receive in (
                lambda: loop.sock_recvfrom(first, 10),
                lambda: loop.sock_recvfrom_into(first, bytearray(10)),
            ):
                task = loop.create_task(receive())
                await turns(2)
                first.send(b"x")
                with pytest.raises(ConnectionRefusedError):
                    await task
            first.send(b"x")
            with pytest.raises(ConnectionRefusedError):
                await loop.sock_sendto(first, b"x", address)

    loop.run_until_complete(main())


def test_cancelling_sock_operations(loop):
    async def main():
        with plain_pair() as (first, second):
            for receive in (
                lambda: loop.sock_recvfrom(first, 10),
                lambda: loop.sock_recvfrom_into(first, bytearray(10)),
            ):
                task = loop.create_task(receive())
                await turns(2)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert loop.remove_reader(first) is False
            await loop.sock_sendto(second, b"x", first.getsockname())
            assert await loop.sock_recvfrom(first, 10) == (b"x", second.getsockname())

    loop.run_until_complete(main())


def test_sock_operations_next_to_a_transport(loop):
    transport, _ = endpoint(loop)
    sock = transport.get_extra_info("socket")._sock
    for operation in (loop.sock_recvfrom(sock, 10), loop.sock_recvfrom_into(sock, bytearray(10))):
        with pytest.raises(RuntimeError, match="File descriptor .* is used by transport <"):
            loop.run_until_complete(operation)
    close(loop, transport)


def test_sock_operations_in_debug_mode(loop):
    loop.set_debug(True)
    with plain_pair() as (first, second):
        first.setblocking(True)
        address = second.getsockname()
        for operation in (
            loop.sock_recvfrom(first, 10),
            loop.sock_recvfrom_into(first, bytearray(10)),
            loop.sock_sendto(first, b"x", address),
        ):
            with pytest.raises(ValueError, match="the socket must be non-blocking"):
                loop.run_until_complete(operation)


@pytest.mark.ringloop_only
def test_sock_operations_that_nobody_awaits_warn(loop):
    loop.set_debug(False)  # There they are asyncio's coroutines.
    with plain_pair() as (first, second):
        for name, arguments in [
            ("sock_recvfrom", (10,)),
            ("sock_recvfrom_into", (bytearray(10),)),
            ("sock_sendto", (b"x", second.getsockname())),
        ]:
            operation = getattr(loop, name)(first, *arguments)
            assert asyncio.iscoroutine(operation)
            assert repr(operation).startswith(f"<coroutine object EventLoop.{name} at ")
            with pytest.warns(RuntimeWarning, match=f"coroutine 'EventLoop.{name}' was never awaited"):
                del operation
                gc.collect()
