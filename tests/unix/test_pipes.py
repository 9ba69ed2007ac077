"""Pipes, FIFOs, terminals and sockets as pipes: connect_read_pipe and connect_write_pipe."""

import asyncio
import contextlib
import errno
import gc
import io
import logging
import os
import pty
import socket
import tty

import pytest

import support
from support import Recorder, capture_contexts, resource_warnings, same_as_asyncio, turns, until

LARGE = 4 << 20
"""More than a pipe holds."""


def pipe():
    """Return the two ends of a pipe as unbuffered files."""
    inside, outside = os.pipe()
    return open(inside, "rb", buffering=0), open(outside, "wb", buffering=0)


def fifo(tmp_path):
    """Return the two ends of a named pipe."""
    path = tmp_path / "fifo"
    os.mkfifo(path)
    inside = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    return open(inside, "rb", buffering=0), open(path, "wb", buffering=0)


def sockets(_tmp_path):
    return socket.socketpair()


def open_terminal():
    """Return the descriptors of both sides of a terminal: (master, slave)."""
    try:
        return pty.openpty()
    except OSError as error:
        pytest.skip(f"no terminals here: {error}")


def terminal(_tmp_path):
    """Return both sides of a terminal that passes everything on as it is."""
    master, slave = open_terminal()
    tty.setraw(slave)
    return open(slave, "rb", buffering=0), open(master, "wb", buffering=0)


@pytest.fixture(params=[lambda _path: pipe(), fifo, sockets, terminal], ids=["pipe", "fifo", "sockets", "terminal"])
def ends(request, tmp_path):
    """Yield (what is read from, what is written to) of each kind."""
    reading, writing = request.param(tmp_path)
    yield reading, writing
    reading.close()
    writing.close()


async def reader_of(loop, file, **options):
    protocol = Recorder(**options)
    transport, same = await loop.connect_read_pipe(lambda: protocol, file)
    assert same is protocol
    return transport, protocol


async def writer_of(loop, file, **options):
    protocol = Recorder(**options)
    transport, same = await loop.connect_write_pipe(lambda: protocol, file)
    assert same is protocol
    return transport, protocol


def read_all(file):
    """Return everything that a file has until its end, in a thread's own time."""
    data = bytearray()
    while chunk := os.read(file.fileno(), 1 << 20):
        data += chunk
    return bytes(data)


# Reading


def test_data_arrives_and_then_the_end(loop_factory):
    def body(loop):
        async def main():
            reading, writing = pipe()
            with reading, writing:
                transport, protocol = await reader_of(loop, reading)
                for data in (b"one", b"two"):
                    writing.write(data)
                    await until(lambda data=data: protocol.data.endswith(data))
                writing.close()
                await until(lambda: protocol.lost)
                return protocol.events, transport.is_closing(), reading.closed

        return loop.run_until_complete(main())

    events, *rest = same_as_asyncio(body, loop_factory)
    assert events == [
        ("connection_made",),
        ("data_received", b"one"),
        ("data_received", b"two"),
        ("eof_received",),
        ("connection_lost", None),
    ]
    assert rest == [True, True]


def test_every_kind_is_read(loop, ends):
    reading, writing = ends

    async def main():
        _, protocol = await reader_of(loop, reading)
        for number in range(50):
            os.write(writing.fileno(), b"%d\n" % number)
            await until(lambda number=number: protocol.data.endswith(b"%d\n" % number))
        protocol.transport.close()
        await until(lambda: protocol.lost)
        assert protocol.data == b"".join(b"%d\n" % number for number in range(50))

    loop.run_until_complete(main())


@pytest.mark.exact
def test_much_data_at_once(loop):
    data = os.urandom(LARGE)

    async def main():
        reading, writing = pipe()
        with writing:
            _, protocol = await reader_of(loop, reading)
            thread = support.BackgroundThread(lambda: (writing.write(data), writing.close()))
            await until(lambda: protocol.lost)
            thread.result()
            assert protocol.data == data
            assert protocol.names[-2:] == ["eof_received", "connection_lost"]

    loop.run_until_complete(main())


def test_data_that_was_there_before_and_a_writer_that_has_gone(loop):
    async def main():
        reading, writing = pipe()
        with writing:
            writing.write(b"x" * 1000)
        _, protocol = await reader_of(loop, reading)
        await until(lambda: protocol.lost)
        assert protocol.data == b"x" * 1000

    loop.run_until_complete(main())


def test_pausing_holds_data_and_end_back(loop):
    async def main():
        reading, writing = pipe()
        with writing:
            transport, protocol = await reader_of(loop, reading)
            transport.pause_reading()
            transport.pause_reading()
            assert not transport.is_reading()
            writing.write(b"held")
            writing.close()
            await turns(5)
            assert protocol.events == [("connection_made",)]
            transport.resume_reading()
            transport.resume_reading()
            assert transport.is_reading()
            await until(lambda: protocol.lost)
            assert protocol.names == ["connection_made", "data_received", "eof_received", "connection_lost"]

    loop.run_until_complete(main())


def test_paused_in_connection_made(loop):
    class Paused(Recorder):
        def connection_made(self, transport):
            super().connection_made(transport)
            transport.pause_reading()

    async def main():
        reading, writing = pipe()
        with writing:
            writing.write(b"held")
            protocol = Paused()
            transport, _ = await loop.connect_read_pipe(lambda: protocol, reading)
            await turns(5)
            assert protocol.data == b""
            transport.resume_reading()
            await until(lambda: protocol.data == b"held")
            transport.close()
            await until(lambda: protocol.lost)

    loop.run_until_complete(main())


def test_paused_and_closed_in_data_received(loop):
    class Once(Recorder):
        def data_received(self, data):
            super().data_received(data)
            self.transport.pause_reading()
            if len(self.data) > 1 << 19:
                self.transport.close()
            else:
                asyncio.get_running_loop().call_soon(self.transport.resume_reading)

    async def main():
        reading, writing = pipe()
        with writing:
            protocol = Once()
            await loop.connect_read_pipe(lambda: protocol, reading)
            with contextlib.suppress(BrokenPipeError):
                await loop.run_in_executor(None, writing.write, bytes(LARGE))
            await until(lambda: protocol.lost)
            assert 1 << 19 < len(protocol.data) < LARGE
            assert "eof_received" not in protocol.names

    loop.run_until_complete(main())


def test_closing_drops_what_was_not_read(loop_factory):
    def body(loop):
        async def main():
            reading, writing = pipe()
            with writing:
                transport, protocol = await reader_of(loop, reading)
                transport.pause_reading()
                writing.write(b"never read")
                transport.close()
                transport.close()
                transport.resume_reading()
                await until(lambda: protocol.lost)
                with pytest.raises(BrokenPipeError):
                    writing.write(b"x")
                return protocol.events

        return loop.run_until_complete(main())

    assert same_as_asyncio(body, loop_factory) == [("connection_made",), ("connection_lost", None)]


def test_a_stream_reader_over_a_pipe(loop):
    async def main():
        reading, writing = pipe()
        with writing:
            reader = asyncio.StreamReader(limit=1000)
            transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), reading)
            writing.write(b"a line\nand more")
            assert await reader.readline() == b"a line\n"
            writing.close()
            assert await reader.read() == b"and more"
            transport.close()
            await turns(3)

    loop.run_until_complete(main())


def test_the_protocol_can_be_replaced(loop):
    async def main():
        reading, writing = pipe()
        with writing:
            transport, first = await reader_of(loop, reading)
            second = Recorder()
            transport.set_protocol(second)
            assert transport.get_protocol() is second
            writing.write(b"for the second")
            await until(lambda: second.data == b"for the second")
            writing.close()
            await until(lambda: second.lost)
            assert first.events == [("connection_made",)]

    loop.run_until_complete(main())


def test_a_terminal_that_hangs_up(loop_factory):
    # The last slave's end gives EIO, which is no error to tell anyone of but the protocol.
    def body(loop):
        contexts = capture_contexts(loop)

        async def main():
            master, slave = open_terminal()
            tty.setraw(slave)
            with open(master, "rb", buffering=0) as file:
                _, protocol = await reader_of(loop, file)
                os.write(slave, b"from the slave")
                await until(lambda: protocol.data == b"from the slave")
                os.close(slave)
                await until(lambda: protocol.lost)
            return protocol.names, protocol.error.errno, contexts

        return loop.run_until_complete(main())

    assert same_as_asyncio(body, loop_factory)[1] == errno.EIO


def test_lines_of_a_terminal_come_one_after_another(loop):
    # In its usual mode a terminal gives one line per read, though more are there.
    async def main():
        master, slave = open_terminal()
        with open(master, "wb", buffering=0) as keyboard, open(slave, "rb", buffering=0) as file:
            _, protocol = await reader_of(loop, file)
            keyboard.write(b"one\ntwo\nthree\n")
            await until(lambda: protocol.data == b"one\ntwo\nthree\n")
            keyboard.write(b"\x04")
            await until(lambda: protocol.lost)
        assert [event[1] for event in protocol.events if event[0] == "data_received"] == [
            b"one\n",
            b"two\n",
            b"three\n",
        ]

    loop.run_until_complete(main())


def test_an_error_in_data_received_is_reported(loop_factory):
    class Broken(Recorder):
        def data_received(self, data):
            super().data_received(data)
            raise ZeroDivisionError("in data_received")

    def body(loop):
        contexts = capture_contexts(loop)

        async def main():
            reading, writing = pipe()
            with writing:
                protocol = Broken()
                transport, _ = await loop.connect_read_pipe(lambda: protocol, reading)
                writing.write(b"one")
                await until(lambda: contexts)
                writing.write(b"two")
                await until(lambda: len(contexts) == 2)
                transport.close()
                await until(lambda: protocol.lost)
                messages = [context["message"].partition("(<")[0] for context in contexts]
                return messages, [str(context["exception"]) for context in contexts], protocol.names

        return loop.run_until_complete(main())

    same_as_asyncio(body, loop_factory)


# Writing


def test_every_kind_is_written(loop, ends):
    reading, writing = ends

    async def main():
        transport, protocol = await writer_of(loop, writing)
        for number in range(50):
            transport.write(b"%d\n" % number)
            expected = b"%d\n" % number
            assert os.read(reading.fileno(), 100) == expected
            await asyncio.sleep(0)
        assert not protocol.lost
        transport.close()
        await until(lambda: protocol.lost)
        assert protocol.events == [("connection_made",), ("connection_lost", None)]

    loop.run_until_complete(main())


def test_a_writer_takes_all_kinds_of_bytes(loop):
    async def main():
        reading, writing = pipe()
        with reading:
            transport, protocol = await writer_of(loop, writing)
            transport.write(b"bytes ")
            transport.write(bytearray(b"bytearray "))
            transport.write(memoryview(b"memoryview "))
            transport.write(b"")
            transport.writelines([b"several", b" ", b"lines"])
            assert os.read(reading.fileno(), 1000) == b"bytes bytearray memoryview several lines"
            transport.close()
            await until(lambda: protocol.lost)

    loop.run_until_complete(main())


@pytest.mark.parametrize("data", ["text", None, 5, [b"list"]], ids=repr)
def test_what_cannot_be_written(loop_factory, data):
    def body(loop):
        async def main():
            reading, writing = pipe()
            with reading:
                transport, protocol = await writer_of(loop, writing)
                with pytest.raises((AssertionError, TypeError)) as refusal:
                    transport.write(data)
                transport.write(b"still here")
                assert os.read(reading.fileno(), 1000) == b"still here"
                transport.close()
                await until(lambda: protocol.lost)
                return refusal.type, str(refusal.value)

        return loop.run_until_complete(main())

    same_as_asyncio(body, loop_factory)


@pytest.mark.parametrize("how", ["close", "write_eof"])
def test_what_the_pipe_did_not_take_is_sent_later(loop, how):
    data = os.urandom(LARGE)

    async def main():
        reading, writing = pipe()
        with reading:
            transport, protocol = await writer_of(loop, writing)
            transport.write(data[:100])
            transport.write(data[100:])
            assert protocol.names == ["connection_made", "pause_writing"]
            assert 0 < transport.get_write_buffer_size() < LARGE
            assert transport.can_write_eof()
            getattr(transport, how)()
            assert transport.is_closing()
            transport.write(b"too late")
            received = await loop.run_in_executor(None, read_all, reading)
            await until(lambda: protocol.lost)
            assert received == data
            assert protocol.names == ["connection_made", "pause_writing", "resume_writing", "connection_lost"]
            assert protocol.error is None

    loop.run_until_complete(main())


def test_abort_drops_what_was_not_sent(loop_factory):
    def body(loop):
        async def main():
            reading, writing = pipe()
            with reading:
                transport, protocol = await writer_of(loop, writing)
                transport.write(bytes(LARGE))
                transport.abort()
                size = transport.get_write_buffer_size()
                await until(lambda: protocol.lost)
                received = await loop.run_in_executor(None, read_all, reading)
                return size, protocol.events, len(received) < LARGE

        return loop.run_until_complete(main())

    same_as_asyncio(body, loop_factory)


def test_flow_control_keeps_to_its_limits(loop_factory):
    def body(loop):
        async def main():
            reading, writing = pipe()
            with reading:
                transport, protocol = await writer_of(loop, writing)
                results = [transport.get_write_buffer_limits()]
                transport.set_write_buffer_limits(high=1000, low=100)
                results.append(transport.get_write_buffer_limits())
                with pytest.raises(ValueError) as refusal:
                    transport.set_write_buffer_limits(high=1, low=2)
                results.append(str(refusal.value))
                os.set_blocking(writing.fileno(), False)
                with contextlib.suppress(BlockingIOError):
                    while os.write(writing.fileno(), bytes(4096)):
                        pass
                transport.write(bytes(1000))
                results.append(list(protocol.names))
                transport.write(b"x")
                results.append((list(protocol.names), transport.get_write_buffer_size()))
                os.read(reading.fileno(), 1 << 20)
                await until(lambda: "resume_writing" in protocol.names)
                results.append(transport.get_write_buffer_size())
                transport.close()
                await until(lambda: protocol.lost)
                return results, protocol.names

        return loop.run_until_complete(main())

    same_as_asyncio(body, loop_factory)


@pytest.mark.parametrize("buffered", [False, True])
def test_a_writer_notices_that_its_reader_has_gone(loop_factory, buffered):
    def body(loop):
        async def main():
            reading, writing = pipe()
            with reading:
                transport, protocol = await writer_of(loop, writing)
                if buffered:
                    transport.write(bytes(LARGE))
                await turns(3)
                assert not protocol.lost
                reading.close()
                await until(lambda: protocol.lost)
                return protocol.names, type(protocol.error), str(protocol.error), transport.is_closing()

        return loop.run_until_complete(main())

    _, kind, *_ = same_as_asyncio(body, loop_factory)
    assert kind is (BrokenPipeError if buffered else type(None))


def test_a_writer_over_a_socket_notices_that_its_peer_has_gone(loop_factory):
    def body(loop):
        async def main():
            ours, peer = socket.socketpair()
            _, protocol = await writer_of(loop, ours)
            peer.close()
            await until(lambda: protocol.lost)
            return protocol.events

        return loop.run_until_complete(main())

    same_as_asyncio(body, loop_factory)


def test_unread_data_is_no_end(loop):
    # A pipe's writing end becomes readable when its reader goes, and not when data waits in it.
    async def main():
        reading, writing = pipe()
        with reading:
            transport, protocol = await writer_of(loop, writing)
            for _ in range(20):
                transport.write(b"unread")
                await turns(2)
            assert not transport.is_closing()
            transport.close()
            await until(lambda: protocol.lost)
            assert os.read(reading.fileno(), 1000) == b"unread" * 20

    loop.run_until_complete(main())


def test_writing_after_the_reader_has_gone(loop_factory, caplog):
    caplog.set_level(logging.WARNING, logger="asyncio")

    def body(loop):
        caplog.clear()

        async def main():
            reading, writing = pipe()
            transport, protocol = await writer_of(loop, writing)
            reading.close()
            for _ in range(8):
                transport.write(b"to nobody")
            await until(lambda: protocol.lost)
            for _ in range(3):
                transport.write(b"to nobody")
            messages = [record.getMessage() for record in caplog.records]
            return protocol.names, type(protocol.error), messages

        return loop.run_until_complete(main())

    _, kind, messages = same_as_asyncio(body, loop_factory)
    assert kind is BrokenPipeError
    assert set(messages) == {"pipe closed by peer or os.write(pipe, data) raised exception."}


# What is refused, and what is shown


def calls(loop, protocol=asyncio.Protocol):
    return (lambda file: loop.connect_read_pipe(protocol, file), lambda file: loop.connect_write_pipe(protocol, file))


def test_regular_files_are_refused(loop_factory, tmp_path):
    (tmp_path / "regular").touch()

    def body(loop):
        async def main():
            messages = []
            for connect in calls(loop):
                with open(tmp_path / "regular", "r+b", buffering=0) as file:
                    with pytest.raises(ValueError) as refusal:
                        await connect(file)
                    messages.append(str(refusal.value))
                    file.write(b"not closed")
            return messages

        return loop.run_until_complete(main())

    assert same_as_asyncio(body, loop_factory) == [
        "Pipe transport is for pipes/sockets only.",
        "Pipe transport is only for pipes, sockets and character devices",
    ]


# asyncio's half-made transports fail once more when they go.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_what_is_no_open_file_is_refused(loop_factory):
    def body(loop):
        async def main():
            reading, writing = pipe()
            reading.close()
            writing.close()
            results = []
            for connect in calls(loop):
                for file in (reading, None, "a name", 5.5):
                    with resource_warnings(), pytest.raises(Exception) as refusal:
                        await connect(file)
                    results.append((refusal.type, str(refusal.value)))
                    del refusal
                    gc.collect()
            return results

        return loop.run_until_complete(main())

    same_as_asyncio(body, loop_factory)


def test_a_device_that_cannot_be_waited_for(loop_factory):
    def body(loop):
        contexts = capture_contexts(loop)

        async def main():
            protocol = Recorder()
            with open(os.devnull, "rb", buffering=0) as file:
                transport, _ = await loop.connect_read_pipe(lambda: protocol, file)
                await turns(3)
                transport.close()
                await until(lambda: protocol.lost)
            with open(os.devnull, "wb", buffering=0) as file:
                transport, _ = await loop.connect_write_pipe(Recorder, file)
                transport.write(bytes(LARGE))
                assert transport.get_write_buffer_size() == 0
                transport.close()
                await turns(3)
            return protocol.names, [str(context["exception"]) for context in contexts]

        return loop.run_until_complete(main())

    same_as_asyncio(body, loop_factory)


def test_a_factory_that_raises_leaves_nothing(loop):
    async def main():
        for connect in calls(loop, lambda: 1 / 0):
            reading, writing = pipe()
            with reading, writing, pytest.raises(ZeroDivisionError):
                await connect(writing)

    loop.run_until_complete(main())


def test_transports_show_themselves(loop_factory):
    def body(loop):
        async def main():
            reading, writing = pipe()
            shown = []

            def note(transport, number):
                shown.append(repr(transport).replace(f"fd={number}", "fd=N"))

            numbers = reading.fileno(), writing.fileno()
            receiver, first = await reader_of(loop, reading)
            sender, second = await writer_of(loop, writing)
            await turns(2)
            for transport, file in ((receiver, reading), (sender, writing)):
                assert transport.get_extra_info("pipe") is file
                assert transport.get_extra_info("nothing", 5) == 5
                note(transport, file.fileno())
            receiver.pause_reading()
            note(receiver, numbers[0])
            sender.write(bytes(LARGE))
            shown.append(repr(sender).partition("bufsize")[0].replace(f"fd={numbers[1]}", "fd=N"))
            sender.abort()
            note(sender, numbers[1])
            receiver.close()
            note(receiver, numbers[0])
            await until(lambda: first.lost and second.lost)
            note(receiver, numbers[0])
            note(sender, numbers[1])
            return shown

        return loop.run_until_complete(main())

    assert same_as_asyncio(body, loop_factory)[0] == "<_UnixReadPipeTransport fd=N polling>"


def test_debug_mode_logs_what_happens(loop_factory, caplog):
    caplog.set_level(logging.DEBUG, logger="asyncio")

    def body(loop):
        caplog.clear()
        loop.set_debug(True)
        loop.slow_callback_duration = support.PATIENCE_S

        async def main():
            reading, writing = pipe()
            transport, protocol = await reader_of(loop, reading)
            transport.pause_reading()
            transport.resume_reading()
            writing.close()
            await until(lambda: protocol.lost)
            digits = str.maketrans("", "", "0123456789")
            messages = [record.getMessage().translate(digits).partition(" object at")[0] for record in caplog.records]
            return [text for text in messages if not text.startswith("Using selector")]

        return loop.run_until_complete(main())

    same_as_asyncio(body, loop_factory)


# Nothing is left


@pytest.mark.parametrize("which", ["reading", "writing"])
def test_a_transport_that_nobody_closed_warns(loop_factory, which):
    def body(loop):
        reading, writing = pipe()
        number = (reading if which == "reading" else writing).fileno()

        async def main():
            if which == "reading":
                transport, _ = await reader_of(loop, reading)
            else:
                transport, _ = await writer_of(loop, writing)
            await turns(2)
            return repr(transport)[:20]

        with resource_warnings() as messages:
            shown = loop.run_until_complete(main())
            loop.close()
            gc.collect()
        closed = reading.closed if which == "reading" else writing.closed
        reading.close()
        writing.close()
        return shown, closed, sorted(text.replace(f"fd={number}", "fd=N") for text in messages if "transport" in text)

    expected = body(asyncio.SelectorEventLoop())
    assert body(loop_factory()) == expected
    assert len(expected[2]) == 1


def test_nobody_else_needs_to_hold_a_reader(loop):
    async def main():
        reading, writing = pipe()
        with writing:
            seen = []

            class Keeps(asyncio.Protocol):
                def data_received(self, data):
                    seen.append(data)

                def connection_lost(self, error):
                    seen.append(error)

            await loop.connect_read_pipe(Keeps, reading)
            del reading
            gc.collect()
            writing.write(b"heard")
            await until(lambda: seen == [b"heard"])
        await until(lambda: seen == [b"heard", None])

    loop.run_until_complete(main())


@pytest.mark.exact
def test_nothing_is_left_of_many_pipes(loop):
    async def one(number):
        reading, writing = pipe()
        receiver, first = await reader_of(loop, reading)
        sender, second = await writer_of(loop, writing)
        sender.write(b"data")
        await until(lambda: first.data == b"data")
        if number % 3 == 0:
            sender.close()
        elif number % 3 == 1:
            receiver.close()
        else:
            sender.write(bytes(LARGE))
            sender.abort()
            receiver.close()
        await until(lambda: first.lost and second.lost)

    async def main():
        for number in range(6):
            await one(number)
        gc.collect()
        descriptors = support.open_descriptors()
        for number in range(200):
            await one(number)
        assert not support.open_descriptors() - descriptors

    loop.run_until_complete(main())


# What is ringloop's own


@pytest.mark.ringloop_only
def test_a_reader_whose_file_was_closed_does_not_read_from_another(loop):
    contexts = capture_contexts(loop)

    async def main():
        reading, writing = pipe()
        other_reading, other_writing = os.pipe()
        with writing:
            transport, protocol = await reader_of(loop, reading)
            number = reading.fileno()
            reading.close()
            os.dup2(other_reading, number)
            os.write(other_writing, b"for somebody else")
            transport._read_ready()
            await until(lambda: protocol.lost)
            assert protocol.data == b""
            assert protocol.error.errno == errno.EBADF
            assert os.read(number, 100) == b"for somebody else"
        for descriptor in (number, other_reading, other_writing):
            os.close(descriptor)

    loop.run_until_complete(main())
    assert [context["message"] for context in contexts] == ["Fatal read error on pipe transport"]


@pytest.mark.ringloop_only
@pytest.mark.parametrize("buffering", [False, True])
def test_a_writer_whose_file_was_closed_does_not_write_to_another(loop, buffering):
    async def main():
        reading, writing = os.pipe()
        other_reading, other_writing = os.pipe()
        os.set_blocking(other_reading, False)
        file = io.FileIO(writing, "wb")
        file = io.BufferedWriter(file) if buffering else file
        transport, protocol = await writer_of(loop, file)
        file.close()
        os.dup2(other_writing, writing)
        transport.write(b"not for everybody")
        await until(lambda: protocol.lost)
        assert protocol.error.errno == errno.EBADF
        with pytest.raises(BlockingIOError):
            os.read(other_reading, 100)
        for descriptor in (reading, writing, other_reading, other_writing):
            os.close(descriptor)

    loop.run_until_complete(main())


@pytest.mark.ringloop_only
def test_items_larger_than_a_byte_are_written_whole(loop):
    async def main():
        reading, writing = pipe()
        with reading:
            transport, protocol = await writer_of(loop, writing)
            items = memoryview(bytes(range(256)) * (LARGE // 256)).cast("I")
            transport.write(items)
            assert transport.get_write_buffer_size() > 0
            transport.write(items[:100])
            transport.close()
            received = await loop.run_in_executor(None, read_all, reading)
            await until(lambda: protocol.lost)
            assert received == items.tobytes() + items[:100].tobytes()

    loop.run_until_complete(main())


def test_a_buffer_that_changes_after_it_was_written(loop):
    async def main():
        reading, writing = pipe()
        with reading:
            transport, protocol = await writer_of(loop, writing)
            data = bytearray(b"x" * LARGE)
            transport.write(data)
            data[:] = b"y" * LARGE
            data.extend(b"resizable")
            transport.write(memoryview(data)[-3:])
            transport.close()
            received = await loop.run_in_executor(None, read_all, reading)
            await until(lambda: protocol.lost)
            assert received == b"x" * LARGE + b"ble"

    loop.run_until_complete(main())


def test_many_small_pieces_keep_their_order(loop):
    async def main():
        reading, writing = pipe()
        with reading:
            transport, protocol = await writer_of(loop, writing)
            transport.write(bytes(LARGE))
            pieces = [b"%d," % number for number in range(2000)]
            for piece in pieces:
                transport.write(piece)
            assert transport.get_write_buffer_size() > sum(map(len, pieces))
            transport.write_eof()
            received = await loop.run_in_executor(None, read_all, reading)
            await until(lambda: protocol.lost)
            assert received == bytes(LARGE) + b"".join(pieces)

    loop.run_until_complete(main())


@pytest.mark.parametrize("call", [lambda it: it.write(), lambda it: it.write(b"", b""), lambda it: it.write(text=b"")])
def test_calls_with_wrong_arguments(loop_factory, call):
    def body(loop):
        async def main():
            reading, writing = pipe()
            with reading:
                transport, protocol = await writer_of(loop, writing)
                transport.write(data=b"by name")
                assert os.read(reading.fileno(), 100) == b"by name"
                with pytest.raises(TypeError) as refusal:
                    call(transport)
                transport.close()
                await until(lambda: protocol.lost)
                return str(refusal.value)

        return loop.run_until_complete(main())

    same_as_asyncio(body, loop_factory)


def test_views_that_cannot_be_written(loop_factory):
    # What is not contiguous ends the transport if it is written at once. If it has to wait, the call raises.
    def body(loop, first):
        contexts = capture_contexts(loop)

        async def main():
            reading, writing = pipe()
            with reading:
                transport, protocol = await writer_of(loop, writing)
                outcome = None
                transport.write(first)
                try:
                    transport.write(memoryview(bytes(100))[::2])
                except Exception as error:
                    outcome = type(error)
                transport.abort() if not transport.is_closing() else None
                await until(lambda: protocol.lost)
                return outcome, type(protocol.error), [context["message"] for context in contexts]

        return loop.run_until_complete(main())

    for first in (b"", bytes(LARGE)):
        same_as_asyncio(lambda loop, first=first: body(loop, first), loop_factory)


def test_errors_name_the_callback_as_asyncio_does(loop_factory):
    class Broken(Recorder):
        def data_received(self, data):
            raise ZeroDivisionError

    def body(loop):
        contexts = capture_contexts(loop)

        async def main():
            reading, writing = pipe()
            with writing:
                protocol = Broken()
                transport, _ = await loop.connect_read_pipe(lambda: protocol, reading)
                writing.write(b"x")
                await until(lambda: contexts)
                transport.close()
                await until(lambda: protocol.lost)
                return contexts[0]["message"], sorted(contexts[0])

        return loop.run_until_complete(main())

    assert same_as_asyncio(body, loop_factory)[0] == "Exception in callback _UnixReadPipeTransport._read_ready()"


def test_one_file_for_both_directions(loop, tmp_path):
    # A terminal, which a writer doesn't watch for its end.
    async def main():
        master, slave = open_terminal()
        tty.setraw(slave)
        tty.setraw(master)
        with open(master, "r+b", buffering=0) as file, open(slave, "r+b", buffering=0) as peer:
            reader, heard = await reader_of(loop, file)
            writer, wrote = await writer_of(loop, file)
            data = os.urandom(200_000)
            writer.write(data)
            echo = loop.run_in_executor(None, copy_back, peer, len(data))
            await until(lambda: len(heard.data) == len(data))
            await echo
            assert heard.data == data
            writer.close()
            await until(lambda: wrote.lost)
            reader.close()
            await until(lambda: heard.lost)

    def copy_back(peer, left):
        while left:
            chunk = os.read(peer.fileno(), 1000)
            left -= len(chunk)
            while chunk:
                chunk = chunk[os.write(peer.fileno(), chunk) :]

    loop.run_until_complete(main())


@pytest.mark.exact
def test_a_file_that_somebody_made_blocking_stops_no_other_thread(loop):
    # The flag belongs to the open file, which other processes may share. The thread that reads needs the GIL.
    async def main():
        reading, writing = pipe()
        with reading:
            transport, protocol = await writer_of(loop, writing)
            os.set_blocking(writing.fileno(), True)
            thread = support.BackgroundThread(lambda: read_all(reading))
            data = os.urandom(LARGE)
            transport.write(data)
            transport.close()
            await until(lambda: protocol.lost)
            return thread.result() == data

    assert loop.run_until_complete(main())


def test_both_ends_closed_from_within_each_other(loop):
    class Closing(Recorder):
        def data_received(self, data):
            super().data_received(data)
            self.other.abort()
            self.transport.close()

    async def main():
        reading, writing = pipe()
        protocol = Closing()
        await loop.connect_read_pipe(lambda: protocol, reading)
        writer, wrote = await writer_of(loop, writing)
        protocol.other = writer
        writer.write(bytes(LARGE))
        await until(lambda: protocol.lost and wrote.lost)
        assert protocol.error is None and wrote.error is None
        assert reading.closed and writing.closed
        assert protocol.names == ["connection_made", "data_received", "connection_lost"]

    loop.run_until_complete(main())


def test_a_child_that_inherits_an_end_keeps_the_pipe_open(loop):
    async def main():
        reading, writing = pipe()
        transport, protocol = await reader_of(loop, reading)
        gate_reading, gate_writing = os.pipe()
        process = await asyncio.create_subprocess_exec(
            "sh", "-c", "read line; echo from the child", stdin=gate_reading, stdout=writing
        )  # fmt: skip
        writing.close()
        await turns(5)
        assert not protocol.lost
        os.write(gate_writing, b"go\n")
        await process.wait()
        await until(lambda: protocol.lost)
        assert protocol.data == b"from the child\n"
        os.close(gate_reading)
        os.close(gate_writing)

    loop.run_until_complete(main())
