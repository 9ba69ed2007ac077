"""Watching descriptors, and the sock_* methods."""

import asyncio
import contextlib
import errno
import gc
import os
import socket
import ssl
import tempfile
import weakref

import pytest

from support import (
    HOST,
    PATIENCE_S,
    Recorder,
    attach,
    capture_contexts,
    looks,
    noop,
    receive_exactly,
    reset,
    run_turns,
    same_as_asyncio,
    tcp_listener,
    tcp_pair,
    turns,
    until,
)


@pytest.fixture
def pair():
    first, second = socket.socketpair()
    first.setblocking(False)
    second.setblocking(False)
    with first, second:
        yield first, second


# add_reader and add_writer


def test_add_and_remove_tell_what_they_did(loop, pair):
    first, _ = pair
    assert loop.remove_reader(first) is False
    assert loop.remove_writer(first) is False
    assert loop.add_reader(first, noop) is None
    assert loop.add_writer(first, noop) is None
    assert loop.remove_reader(first) is True
    assert loop.remove_reader(first) is False
    assert loop.remove_writer(first) is True
    assert loop.remove_writer(first) is False


@pytest.mark.parametrize("convert", [lambda sock: sock, lambda sock: sock.fileno()], ids=["socket", "number"])
def test_a_reader_is_called_with_its_arguments(loop, pair, convert):
    first, second = pair
    trace = []
    loop.add_reader(convert(first), lambda *arguments: (trace.append(arguments), first.recv(10), loop.stop()), 1, "two")
    second.send(b"x")
    loop.run_forever()
    loop.remove_reader(convert(first))
    assert trace == [(1, "two")]


def test_readers_are_level_triggered(loop, pair):
    first, second = pair
    trace = []
    loop.add_reader(first, trace.append, "readable")
    run_turns(loop, 3)
    assert trace == []
    second.send(b"xyz")
    run_turns(loop, 5)
    assert trace == ["readable"] * 5, "once per turn, as long as something is left"
    assert first.recv(1) == b"x"
    run_turns(loop, 2)
    assert trace == ["readable"] * 7, "also after a part has been read"
    first.recv(10)
    run_turns(loop, 2)
    assert trace == ["readable"] * 7
    second.send(b"again")
    run_turns(loop, 1)
    assert trace == ["readable"] * 8
    loop.remove_reader(first)
    run_turns(loop, 2)
    assert trace == ["readable"] * 8


def test_writers_are_level_triggered(loop, pair):
    first, second = pair
    trace = []
    loop.add_writer(first, trace.append, "writable")
    run_turns(loop, 3)
    assert trace == ["writable"] * 3
    with contextlib.suppress(BlockingIOError):
        while True:
            first.send(bytes(65536))
    trace.clear()
    run_turns(loop, 3)
    assert trace == []
    with contextlib.suppress(BlockingIOError):
        while True:
            second.recv(1 << 20)
    run_turns(loop, 2)
    assert trace == ["writable"] * 2
    loop.remove_writer(first)


def test_a_reader_and_a_writer_on_one_descriptor(loop, pair):
    first, second = pair
    trace = []
    loop.add_reader(first, trace.append, "r")
    loop.add_writer(first, trace.append, "w")
    second.send(b"x")
    run_turns(loop)
    assert trace == ["r", "w"]
    loop.remove_writer(first)
    run_turns(loop)
    assert trace == ["r", "w", "r"]
    loop.add_writer(first, trace.append, "w2")
    loop.remove_reader(first)
    run_turns(loop)
    assert trace == ["r", "w", "r", "w2"]
    loop.remove_writer(first)


def test_adding_again_replaces_the_callback(loop, pair):
    first, second = pair
    trace = []
    loop.add_reader(first, trace.append, "old")
    loop.add_reader(first, trace.append, "new")
    second.send(b"x")
    run_turns(loop)
    assert trace == ["new"]
    assert loop.remove_reader(first) is True
    assert loop.remove_reader(first) is False


def test_removing_within_the_turn_prevents_the_call(loop, pair):
    """Both are ready in one turn; whichever is called first removes the other."""
    first, second = pair
    trace = []

    def callback(name, other):
        trace.append(name)
        loop.remove_reader(other)

    loop.add_reader(first, callback, "first", second)
    loop.add_reader(second, callback, "second", first)
    first.send(b"x")
    second.send(b"x")
    run_turns(loop, 1)
    assert len(trace) == 1
    loop.remove_reader(first)
    loop.remove_reader(second)


def test_a_callback_may_remove_itself_and_add_another(loop, pair):
    first, second = pair
    trace = []

    def once():
        trace.append("once")
        assert loop.remove_reader(first) is True
        loop.add_reader(first, lambda: (trace.append("then"), first.recv(10), loop.stop()))

    loop.add_reader(first, once)
    second.send(b"x")
    loop.run_forever()
    loop.remove_reader(first)
    assert trace == ["once", "then"]


def test_the_end_of_the_peer_is_readable(loop, pair):
    first, second = pair
    trace = []
    loop.add_reader(first, lambda: (trace.append(first.recv(10)), loop.stop()))
    second.close()
    loop.run_forever()
    loop.run_forever()
    loop.remove_reader(first)
    assert trace == [b"", b""]


def test_a_reset_wakes_reader_and_writer(loop):
    first, second = tcp_pair()
    trace = []
    with first:
        loop.add_reader(first, lambda: (trace.append("r"), loop.remove_reader(first)))
        run_turns(loop, 2)
        reset(second)
        loop.call_later(20, loop.stop)
        while not trace:
            run_turns(loop)
        assert trace == ["r"]
        loop.add_writer(first, lambda: (trace.append("w"), loop.remove_writer(first)))
        run_turns(loop, 2)
    assert trace == ["r", "w"]


def test_removing_frees_the_callback(loop, pair):
    class Thing:
        def __call__(self):
            pass

    first, _ = pair
    for add, remove in ((loop.add_reader, loop.remove_reader), (loop.add_writer, loop.remove_writer)):
        thing = Thing()
        reference = weakref.ref(thing)
        add(first, thing)
        del thing
        run_turns(loop)
        assert reference() is not None
        remove(first)
        run_turns(loop)
        assert reference() is None


def test_a_descriptor_that_is_reused_after_close(loop):
    """The old watch is removed before the close, as it must be; the new socket gets the same number."""
    trace = []
    numbers = set()
    for number in range(50):
        first, second = socket.socketpair()
        numbers.add(first.fileno())
        loop.add_reader(first, trace.append, number)
        second.send(b"x")
        run_turns(loop)
        loop.remove_reader(first)
        first.close()
        second.close()
    run_turns(loop, 3)
    assert trace == list(range(50))
    assert len(numbers) == 1


def test_a_descriptor_closed_while_it_is_watched_can_be_removed(loop):
    first, second = socket.socketpair()
    fd = first.fileno()
    loop.add_reader(fd, noop)
    run_turns(loop)
    first.close()
    second.close()
    run_turns(loop, 2)
    assert loop.remove_reader(fd) is True
    third, fourth = socket.socketpair()
    trace = []
    with third, fourth:
        loop.add_reader(third, trace.append, "third")
        fourth.send(b"x")
        run_turns(loop, 2)
        loop.remove_reader(third)
    assert trace


@pytest.mark.parametrize("method", ["add_reader", "add_writer"])
def test_a_closed_descriptor_is_an_error(loop, method):
    first, second = socket.socketpair()
    fd = first.fileno()
    first.close()
    second.close()
    with pytest.raises(OSError) as caught:
        getattr(loop, method)(fd, noop)
    assert caught.value.errno == errno.EBADF
    with pytest.raises(
        ValueError, match="^Invalid file object: <socket.socket \\[closed\\]|^Invalid file descriptor: -1$"
    ):
        getattr(loop, method)(first, noop)


@pytest.mark.parametrize("bad", [-1, "text", None, 1.5, object()], ids=["-1", "str", "None", "float", "object"])
def test_what_is_no_descriptor(loop_factory, bad):
    def body(loop):
        results = []
        for method in (loop.add_reader, loop.add_writer):
            with pytest.raises((ValueError, OSError)) as caught:
                method(bad, noop)
            results.append((type(caught.value), str(caught.value)))
        for method in (loop.remove_reader, loop.remove_writer):
            try:
                results.append(method(bad))
            except (ValueError, OSError) as error:
                results.append((type(error), str(error)))
        return results

    same_as_asyncio(body, loop_factory)


def test_a_regular_file_cannot_be_watched(loop):
    with tempfile.TemporaryFile() as file, pytest.raises(PermissionError) as caught:
        loop.add_reader(file, noop)
    assert caught.value.errno == errno.EPERM
    assert loop.run_until_complete(asyncio.sleep(0, "unharmed")) == "unharmed"


def test_pipes_can_be_watched(loop):
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    trace = []
    loop.add_reader(reader, lambda: (trace.append(os.read(reader, 10)), loop.stop()))
    loop.add_writer(writer, lambda: (os.write(writer, b"piped"), loop.remove_writer(writer)))
    loop.run_forever()
    os.close(writer)
    loop.run_forever()
    loop.remove_reader(reader)
    os.close(reader)
    assert trace == [b"piped", b""]


@pytest.mark.without_debug_mode
def test_a_failing_reader_is_reported_and_stays(loop, pair):
    contexts = capture_contexts(loop)
    first, second = pair

    def fail():
        raise ZeroDivisionError

    loop.add_reader(first, fail)
    second.send(b"x")
    run_turns(loop, 3)
    loop.remove_reader(first)
    assert [sorted(context) for context in contexts] == [["exception", "handle", "message"]] * 3


def test_many_descriptors(loop):
    pairs = [socket.socketpair() for _ in range(300)]
    trace = []
    for number, (first, _) in enumerate(pairs):
        loop.add_reader(first, lambda number=number, first=first: trace.append((number, first.recv(10))))
    run_turns(loop)
    for number, (_, second) in enumerate(pairs):
        if number % 2:
            second.send(b"%d" % number)
    loop.call_later(20, loop.stop)
    while len(trace) < 150:
        run_turns(loop)
    assert sorted(trace) == [(number, b"%d" % number) for number in range(1, 300, 2)]
    for first, second in pairs:
        loop.remove_reader(first)
        first.close()
        second.close()


def test_watching_changes_between_turns_cost_no_event(loop, pair):
    first, second = pair
    trace = []
    second.send(b"x")
    for _ in range(20):
        loop.add_reader(first, trace.append, "lost")
        loop.remove_reader(first)
    loop.add_reader(first, trace.append, "kept")
    run_turns(loop, 1)
    loop.remove_reader(first)
    assert trace == ["kept"]


# sock_recv and its kin


def test_recv_returns_bytes_that_are_there(loop, pair):
    first, second = pair
    second.send(b"hello")
    data = loop.run_until_complete(loop.sock_recv(first, 100))
    assert data == b"hello" and type(data) is bytes
    second.send(b"hello")
    assert loop.run_until_complete(loop.sock_recv(first, 2)) == b"he"
    assert loop.run_until_complete(loop.sock_recv(first, 100)) == b"llo"


def test_recv_waits(loop, pair):
    first, second = pair
    loop.call_later(0.005, second.send, b"later")
    assert loop.run_until_complete(loop.sock_recv(first, 100)) == b"later"
    loop.call_later(0.005, second.close)
    assert loop.run_until_complete(loop.sock_recv(first, 100)) == b""


def test_recv_into(loop, pair):
    first, second = pair
    buffer = bytearray(10)
    second.send(b"abc")
    assert loop.run_until_complete(loop.sock_recv_into(first, buffer)) == 3
    assert buffer[:3] == b"abc"
    loop.call_later(0.005, second.send, b"defgh")
    assert loop.run_until_complete(loop.sock_recv_into(first, memoryview(buffer)[5:])) == 5
    assert buffer == b"abc\0\0defgh"
    buffer.extend(b"resizable again")


def test_recv_into_a_read_only_buffer(loop, pair):
    with pytest.raises((TypeError, BufferError)):
        loop.run_until_complete(loop.sock_recv_into(pair[0], b"read only"))


def test_sendall(loop, pair):
    first, second = pair

    async def main():
        assert await loop.sock_sendall(first, b"small") is None
        assert await receive_exactly(loop, second, 5) == b"small"
        for data in (b"z" * (8 << 20), bytearray(b"y" * (8 << 20)), memoryview(b"x" * (8 << 20))):
            task = loop.create_task(loop.sock_sendall(first, data))
            assert await receive_exactly(loop, second, len(data)) == data
            assert await task is None
        assert await loop.sock_sendall(first, b"") is None

    loop.run_until_complete(main())


def test_accept_and_connect(loop):
    async def main():
        with tcp_listener() as listener, socket.socket() as client:
            client.setblocking(False)
            accepting = loop.create_task(loop.sock_accept(listener))
            await turns(3)
            assert not accepting.done()
            assert await loop.sock_connect(client, listener.getsockname()) is None
            accepted, address = await accepting
            with accepted:
                assert address == client.getsockname()
                assert type(accepted) is socket.socket and accepted.gettimeout() == 0
                assert not accepted.get_inheritable()
                await loop.sock_sendall(client, b"hi")
                assert await loop.sock_recv(accepted, 10) == b"hi"
            with socket.create_connection(listener.getsockname()) as second:
                accepted, address = await loop.sock_accept(listener)
                assert address == second.getsockname()
                accepted.close()

    loop.run_until_complete(main())


def test_connect_by_name(loop):
    async def main():
        with tcp_listener() as listener, socket.socket() as client:
            client.setblocking(False)
            await loop.sock_connect(client, ("localhost", listener.getsockname()[1]))
            assert client.getpeername() == listener.getsockname()

    loop.run_until_complete(main())


def test_a_refused_connect(loop, refused_port):
    with socket.socket() as client:
        client.setblocking(False)
        with pytest.raises(ConnectionRefusedError) as caught:
            loop.run_until_complete(loop.sock_connect(client, (HOST, refused_port)))
    assert str(caught.value) == f"[Errno 111] Connect call failed ('{HOST}', {refused_port})"


def test_connect_to_a_unix_socket(loop, tmp_path):
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
        listener.bind(path)
        listener.listen()
        listener.setblocking(False)
        client.setblocking(False)
        loop.run_until_complete(loop.sock_connect(client, path))
        accepted, _ = loop.run_until_complete(loop.sock_accept(listener))
        with accepted:
            loop.run_until_complete(loop.sock_sendall(accepted, b"unix"))
            assert loop.run_until_complete(loop.sock_recv(client, 10)) == b"unix"
        with socket.socket(socket.AF_UNIX) as lost:
            lost.setblocking(False)
            with pytest.raises(FileNotFoundError):
                loop.run_until_complete(loop.sock_connect(lost, path + "missing"))


def calls(loop, sock):
    return {
        "sock_recv": lambda: loop.sock_recv(sock, 10),
        "sock_recv_into": lambda: loop.sock_recv_into(sock, bytearray(10)),
        "sock_sendall": lambda: loop.sock_sendall(sock, b"x"),
        "sock_connect": lambda: loop.sock_connect(sock, (HOST, 1)),
        "sock_accept": lambda: loop.sock_accept(sock),
    }


METHODS = ["sock_recv", "sock_recv_into", "sock_sendall", "sock_connect", "sock_accept"]


@pytest.mark.parametrize("method", METHODS)
def test_debug_mode_refuses_blocking_sockets(loop, method):
    loop.set_debug(True)
    with socket.socket() as blocking:
        for timeout in (None, 5):
            blocking.settimeout(timeout)
            with pytest.raises(ValueError, match="^the socket must be non-blocking$"):
                loop.run_until_complete(calls(loop, blocking)[method]())


@pytest.mark.parametrize("method", METHODS)
def test_a_closed_socket_is_an_error(loop_factory, method):
    def body(loop):
        sock = socket.socket()
        sock.setblocking(False)
        sock.close()
        with pytest.raises(OSError) as caught:
            loop.run_until_complete(calls(loop, sock)[method]())
        return type(caught.value), caught.value.errno

    assert same_as_asyncio(body, loop_factory) == (OSError, errno.EBADF)


@pytest.mark.parametrize("method", ["sock_recv", "sock_recv_into", "sock_sendall", "sock_accept"])
def test_an_unconnected_socket_is_an_error(loop_factory, method):
    def body(loop):
        with socket.socket() as sock:
            sock.setblocking(False)
            with pytest.raises(OSError) as caught:
                loop.run_until_complete(calls(loop, sock)[method]())
            return type(caught.value), caught.value.errno

    same_as_asyncio(body, loop_factory)


@pytest.mark.parametrize("bad", [None, 5, "text"], ids=repr)
@pytest.mark.parametrize("method", METHODS)
def test_what_is_no_socket(loop, method, bad):
    with pytest.raises((AttributeError, TypeError, ValueError)):
        loop.run_until_complete(calls(loop, bad)[method]())


def test_tls_sockets_are_refused(loop):
    context = ssl.create_default_context()
    context.check_hostname = False
    first, second = tcp_pair()
    with first, second, context.wrap_socket(first, do_handshake_on_connect=False) as wrapped:
        for method in METHODS:
            with pytest.raises(TypeError, match="^Socket cannot be of type SSLSocket$"):
                loop.run_until_complete(calls(loop, wrapped)[method]())


def test_a_reset_while_receiving(loop):
    first, second = tcp_pair()
    with first:
        loop.call_later(0.005, reset, second)
        with pytest.raises(ConnectionResetError):
            loop.run_until_complete(loop.sock_recv(first, 10))


def test_a_reset_while_sending(loop):
    first, second = tcp_pair()
    with first:
        loop.call_later(0.005, reset, second)
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            loop.run_until_complete(loop.sock_sendall(first, bytes(32 << 20)))


# Cancelling


def test_a_cancelled_recv_loses_no_data(loop, pair):
    first, second = pair

    async def main():
        for _ in range(3):
            task = loop.create_task(loop.sock_recv(first, 10))
            await turns(2)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(loop.sock_recv(first, 10), 0.002)
        second.send(b"kept")
        assert await loop.sock_recv(first, 10) == b"kept"
        assert loop.remove_reader(first) is False

    loop.run_until_complete(main())


def test_a_cancelled_accept_loses_no_connection(loop):
    async def main():
        with tcp_listener() as listener:
            task = loop.create_task(loop.sock_accept(listener))
            await turns(2)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            with socket.create_connection(listener.getsockname()) as client:
                accepted, address = await asyncio.wait_for(loop.sock_accept(listener), PATIENCE_S)
                assert address == client.getsockname()
                accepted.close()

    loop.run_until_complete(main())


def test_an_accept_cancelled_as_the_client_comes_leaves_it_to_the_next(loop):
    async def main():
        with tcp_listener() as listener:
            for _ in range(20):
                task = loop.create_task(loop.sock_accept(listener))
                await turns(2)
                with socket.create_connection(listener.getsockname()) as client:
                    task.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await task
                    accepted, address = await asyncio.wait_for(loop.sock_accept(listener), PATIENCE_S)
                    assert address == client.getsockname()
                    accepted.close()

    loop.run_until_complete(main())


def test_a_cancelled_sendall_stops_sending(loop, pair):
    first, second = pair

    async def main():
        task = loop.create_task(loop.sock_sendall(first, b"a" * (8 << 20)))
        await turns(3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert loop.remove_writer(first) is False
        first.shutdown(socket.SHUT_WR)
        received = 0
        while chunk := await loop.sock_recv(second, 1 << 20):
            assert not chunk.strip(b"a")
            received += len(chunk)
        assert 0 < received < 8 << 20

    loop.run_until_complete(main())


def test_a_cancelled_connect(loop):
    async def main():
        silent = tcp_listener(backlog=0)
        clients = [socket.socket() for _ in range(6)]
        for client in clients:
            client.setblocking(False)
        tasks = [loop.create_task(loop.sock_connect(client, silent.getsockname())) for client in clients]
        await looks()
        assert not all(task.done() for task in tasks)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        for client in (silent, *clients):
            client.close()

    loop.run_until_complete(main())


def test_a_socket_closed_after_its_receive_was_cancelled_can_be_reused_by_number(loop):
    async def main():
        for _ in range(50):
            first, second = tcp_pair()
            task = loop.create_task(loop.sock_recv(first, 10))
            await turns(2)
            task.cancel()
            await turns(1)
            first.close()
            second.close()
            third, fourth = tcp_pair()
            fourth.send(b"new")
            assert await asyncio.wait_for(loop.sock_recv(third, 10), PATIENCE_S) == b"new"
            third.close()
            fourth.close()

    loop.run_until_complete(main())


def test_results_can_be_awaited_in_every_way(loop, pair):
    first, second = pair

    async def main():
        second.send(b"1")
        assert await asyncio.create_task(loop.sock_recv(first, 1)) == b"1"
        second.send(b"2")
        assert await asyncio.wait_for(loop.sock_recv(first, 1), PATIENCE_S) == b"2"
        second.send(b"3")
        assert await asyncio.gather(loop.sock_recv(first, 1)) == [b"3"]
        second.send(b"4")
        async with asyncio.TaskGroup() as group:
            task = group.create_task(loop.sock_recv(first, 1))
        assert task.result() == b"4"
        loop.call_later(0.002, second.send, b"5")
        assert await asyncio.ensure_future(loop.sock_recv(first, 1)) == b"5"
        loop.call_later(0.002, second.send, b"6")
        async with asyncio.timeout(PATIENCE_S):
            assert await loop.sock_recv(first, 1) == b"6"
        loop.call_later(0.002, second.send, b"7")
        return await asyncio.shield(loop.sock_recv(first, 1))

    assert loop.run_until_complete(main()) == b"7"


def test_a_result_that_is_ready_at_once_does_not_wait_for_a_turn(loop, pair):
    first, second = pair
    trace = []

    async def main():
        second.send(b"x")
        loop.call_soon(trace.append, "turn")
        await loop.sock_recv(first, 1)
        await loop.sock_sendall(first, b"y")
        trace.append("received and sent")

    loop.run_until_complete(main())
    assert trace[0] == "received and sent"


def test_nothing_happens_before_the_first_await(loop, pair):
    """The methods are coroutines in asyncio: calling one without awaiting it sends nothing."""
    first, second = pair
    coroutine = loop.sock_sendall(first, b"not yet")
    run_turns(loop, 2)
    with pytest.raises(BlockingIOError):
        second.recv(10)
    assert loop.run_until_complete(coroutine) is None
    assert second.recv(10) == b"not yet"


def test_receiving_and_sending_on_one_socket_at_once(loop):
    first, second = tcp_pair()

    async def main():
        with first, second:
            amount = 4 << 20
            sends = [loop.create_task(loop.sock_sendall(sock, bytes(amount))) for sock in (first, second)]
            received = await asyncio.gather(*(receive_exactly(loop, sock, amount) for sock in (first, second)))
            await asyncio.gather(*sends)
            assert [len(data) for data in received] == [amount, amount]

    loop.run_until_complete(main())


def test_an_echo_server_of_sock_methods(loop):
    async def serve(sock):
        with sock:
            while data := await loop.sock_recv(sock, 65536):
                await loop.sock_sendall(sock, data)

    async def accept(listener, tasks):
        while True:
            sock, _ = await loop.sock_accept(listener)
            tasks.append(loop.create_task(serve(sock)))

    async def client(address, number):
        with socket.socket() as sock:
            sock.setblocking(False)
            await loop.sock_connect(sock, address)
            for size in (1, 1000, 100_000):
                message = bytes([number]) * size
                sending = loop.create_task(loop.sock_sendall(sock, message))
                assert await receive_exactly(loop, sock, size) == message
                await sending

    async def main():
        tasks = []
        with tcp_listener() as listener:
            acceptor = loop.create_task(accept(listener, tasks))
            await asyncio.gather(*(client(listener.getsockname(), number) for number in range(40)))
            await asyncio.gather(*tasks)
            acceptor.cancel()
            await asyncio.wait([acceptor])

    loop.run_until_complete(main())


def test_a_pending_receive_keeps_no_cycle(loop, pair):
    first, _ = pair

    async def main():
        task = loop.create_task(loop.sock_recv(first, 10))
        await turns(2)
        reference = weakref.ref(task)
        task.cancel()
        await asyncio.wait([task])
        del task
        await turns(2)
        gc.collect()
        assert reference() is None

    loop.run_until_complete(main())


def test_a_transport_and_a_sock_method_do_not_share_a_descriptor(loop):
    async def main():
        protocol = Recorder()
        transport, peer = await attach(loop, protocol)
        sock = transport.get_extra_info("socket")._sock
        with peer:
            with pytest.raises(RuntimeError, match="is used by transport"):
                await loop.sock_recv(sock, 10)
            transport.close()
            await until(lambda: protocol.lost)

    loop.run_until_complete(main())


def test_connections_are_accepted_in_the_order_of_their_clients(loop):
    async def main():
        with tcp_listener() as listener:
            listener.setblocking(False)
            tasks = [loop.create_task(loop.sock_accept(listener))]
            clients, names = [], []
            await asyncio.sleep(0)
            for _ in range(10):
                client = socket.create_connection(listener.getsockname())
                clients.append(client)
                names.append(client.getsockname())
            tasks += [loop.create_task(loop.sock_accept(listener)) for _ in range(9)]
            accepted = await asyncio.gather(*tasks)
            found = sorted(names.index(address) for _, address in accepted)
            assert found == list(range(10))
            for connection, _ in accepted:
                connection.close()
            for client in clients:
                client.close()

    loop.run_until_complete(main())


def test_a_connection_that_was_accepted_for_a_cancelled_task_is_closed(loop_factory):
    def body(loop):
        async def main():
            with tcp_listener() as listener:
                listener.setblocking(False)
                task = loop.create_task(loop.sock_accept(listener))
                await asyncio.sleep(0)
                future = task._fut_waiter

                def cancel_when_done():
                    # Runs first in each turn: before the wake of the task, which is queued after it.
                    if future.done():
                        task.cancel()
                    else:
                        loop.call_soon(cancel_when_done)

                cancel_when_done()
                with socket.create_connection(listener.getsockname()), pytest.raises(asyncio.CancelledError):
                    await task

        with pytest.warns(ResourceWarning, match="unclosed <socket.socket"):
            loop.run_until_complete(main())
            gc.collect()

    same_as_asyncio(body, loop_factory)


@pytest.mark.parametrize("kind", ["refused", "unix", "backlog", "closed", "names", "scope", "port", "dgram"])
def test_connecting_comes_to_what_it_comes_to_under_asyncio(loop_factory, refused_port, tmp_path, kind):
    path = str(tmp_path / "nothing")

    def body(loop):
        with contextlib.ExitStack() as stack:
            family = socket.AF_UNIX if kind in ("unix", "backlog") else socket.AF_INET
            sock = stack.enter_context(
                socket.socket(family, socket.SOCK_DGRAM if kind == "dgram" else socket.SOCK_STREAM)
            )
            sock.setblocking(False)
            address = {
                "refused": (HOST, refused_port),
                "unix": path,
                "closed": (HOST, refused_port),
                "names": ("localhost", refused_port),
                "scope": ("127.0.0.1%lo", refused_port),
                "port": (HOST, 1 << 20),
                "dgram": (HOST, refused_port),
            }.get(kind)
            if kind == "backlog":
                listener = stack.enter_context(socket.socket(socket.AF_UNIX))
                listener.bind(address := f"\0{os.getpid()}-{id(loop)}")
                listener.listen(0)
                while True:
                    filler = stack.enter_context(socket.socket(socket.AF_UNIX))
                    filler.setblocking(False)
                    if filler.connect_ex(address):
                        break
            if kind == "closed":
                sock.close()
            coroutine = loop.sock_connect(sock, address)
            try:
                result = loop.run_until_complete(asyncio.wait_for(coroutine, 2 if kind == "backlog" else None))
            except Exception as error:
                result = type(error), error.args
            assert not loop.remove_writer(sock) if sock.fileno() >= 0 else True
            return result

    same_as_asyncio(body, loop_factory)


@pytest.mark.without_debug_mode
@pytest.mark.ringloop_only
def test_accept_and_connect_are_native(loop):
    with tcp_listener() as listener, socket.socket() as client:
        client.setblocking(False)
        listener.setblocking(False)
        operations = [
            loop.sock_accept(listener),
            loop.sock_connect(client, listener.getsockname()),
        ]
        assert [type(each).__name__ for each in operations] == ["SocketOperation"] * 2
        assert [repr(each).split()[2] for each in operations] == ["EventLoop.sock_accept", "EventLoop.sock_connect"]
        for each in operations:
            each.close()


@pytest.mark.parametrize("what", ["sock_recv", "sock_recv at once", "sock_sendall", "sock_connect", "sock_sendto"])
def test_errors_have_the_exception_that_is_being_handled_as_their_context(loop_factory, what):
    def body(loop):
        async def call(ours, peer):
            match what:
                case "sock_recv":
                    loop.call_soon(reset, peer)
                    await loop.sock_recv(ours, 1)
                case "sock_recv at once":
                    reset(peer)
                    await loop.sock_recv(ours, 1)
                case "sock_sendall":
                    reset(peer)
                    await loop.sock_sendall(ours, b"x")
                case "sock_connect":
                    with socket.socket() as sock, socket.socket() as refusing:
                        sock.setblocking(False)
                        refusing.bind((HOST, 0))
                        await loop.sock_connect(sock, refusing.getsockname())
                case "sock_sendto":
                    with socket.socket(type=socket.SOCK_DGRAM) as sock:
                        sock.setblocking(False)
                        await loop.sock_sendto(sock, bytes(100_000), (HOST, 9))

        async def main():
            ours, peer = tcp_pair()
            with ours, peer, pytest.raises(OSError) as caught:
                try:
                    raise KeyError
                except KeyError:
                    await call(ours, peer)
            error, chain = caught.value, []
            while error is not None:
                chain.append(type(error))
                error = error.__context__
            return chain

        return loop.run_until_complete(main())

    chain = same_as_asyncio(body, loop_factory)
    assert chain[-1] is KeyError and len(chain) > 1
