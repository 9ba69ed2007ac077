"""The load program against servers that misbehave: each kind of misbehaviour is found and named."""

import contextlib
import json
import os
import socket
import subprocess
import threading
import time

PATIENCE_S = 30
"""How long a test waits for what must happen. Never an expectation about speed."""


@contextlib.contextmanager
def server(serve):
    """Run `serve(connection)` in a thread for each connection to the port that this yields."""
    listener = socket.create_server(("127.0.0.1", 0))
    threads = []

    def guarded(connection):
        # The load program hangs up when it has found a mistake.
        with connection, contextlib.suppress(ConnectionError):
            serve(connection)

    def accept():
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                connection.settimeout(PATIENCE_S)
                threads.append(threading.Thread(target=guarded, args=(connection,)))
                threads[-1].start()

    acceptor = threading.Thread(target=accept)
    acceptor.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)  # Which ends accept(2); closing alone doesn't.
        listener.close()
        acceptor.join()
        for thread in threads:
            thread.join()


def echo(connection):
    """Send everything back."""
    while data := connection.recv(65536):
        connection.sendall(data)


def echo_altered(alter):
    """Send everything back, after `alter(data, offset in the stream)`."""

    def serve(connection):
        offset = 0
        while data := connection.recv(65536):
            connection.sendall(alter(bytearray(data), offset))
            offset += len(data)

    return serve


def load(program, port, *options):
    """Run the load program; return its exit status, its JSON object and what it said on stderr."""
    command = [program, "--port", str(port), "--warm-up", "0", *map(str, options)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    return done.returncode, json.loads(done.stdout) if done.stdout else None, done.stderr


def test_faithful_echo_is_counted(load_program):
    with server(echo) as port:
        status, result, stderr = load(load_program, port, "--connections", 3, "--size", 5000, "--messages", 30)
    assert (status, stderr) == (0, "")
    assert result["messages"] >= 30
    assert result["connections"] == 3
    assert not any(result["errors"].values())
    assert 0 < result["latency_ns_p50"] <= result["latency_ns_p95"] <= result["latency_ns_p99"]
    # A percentile is the middle of its bucket, which is at most 1/128 of it wide.
    assert result["latency_ns_p99"] <= result["latency_ns_max"] * 129 / 128


def test_sizes_around_the_header_are_echoed(load_program):
    with server(echo) as port:
        for size in (1, 15, 16, 17, 300_000):
            status, result, stderr = load(load_program, port, "--size", size, "--messages", 5)
            assert (status, stderr) == (0, "")
            assert result["size_bytes"] == size
            assert result["messages"] >= 5


def test_flipped_byte_is_found_and_named(load_program):
    # Byte 700 of the fourth message: the one with sequence number 4, because the first is 1.
    position = 3 * 1024 + 700

    def flip(data, offset):
        if offset <= position < offset + len(data):
            data[position - offset] ^= 0x10
        return data

    with server(echo_altered(flip)) as port:
        status, result, stderr = load(load_program, port, "--size", 1024, "--messages", 100)
    assert status == 1
    assert "wrong echo: connection 0, message 4, byte 700 of 1024" in stderr
    assert stderr.count("\n") == 1
    assert result["errors"]["wrong_echo"] == 1


def test_stale_echo_is_found(load_program):
    """A server that answers with the message before, whole and undamaged."""

    def serve(connection):
        previous = b""
        while data := connection.recv(64, socket.MSG_WAITALL):
            connection.sendall(previous or data)
            previous = data

    with server(serve) as port:
        status, result, stderr = load(load_program, port, "--size", 64, "--messages", 100)
    assert status == 1
    assert "wrong echo: connection 0, message 2, byte 0 of 64" in stderr
    assert result["errors"]["wrong_echo"] == 1


def test_echo_of_another_connection_is_found(load_program):
    """A server that sends the first connection's bytes to the second one."""
    first_bytes = []

    def serve(connection):
        data = connection.recv(64, socket.MSG_WAITALL)
        first_bytes.append(data)
        connection.sendall(first_bytes[0])
        echo(connection)

    with server(serve) as port:
        status, _, stderr = load(load_program, port, "--connections", 2, "--size", 64, "--messages", 100)
    assert status == 1
    assert "wrong echo: connection 1, message 1, byte 0 of 64" in stderr


def test_more_bytes_than_were_sent_are_found(load_program):
    with server(echo_altered(lambda data, offset: data + b"!" if offset == 0 else data)) as port:
        status, result, stderr = load(load_program, port, "--size", 64, "--messages", 100)
    assert status == 1
    assert "wrong echo: connection 0, message" in stderr
    assert result["errors"]["wrong_echo"] == 1


def test_hang_up_is_named(load_program):
    def serve(connection):
        for _ in range(3):
            connection.sendall(connection.recv(256, socket.MSG_WAITALL))
        connection.sendall(connection.recv(256, socket.MSG_WAITALL)[:100])

    with server(serve) as port:
        status, result, stderr = load(load_program, port, "--size", 256, "--messages", 100)
    assert status == 1
    assert "hung up (end of file): connection 0, message 4, after 100 of 256 bytes" in stderr
    assert result["errors"]["hang_up"] == 1


def test_refused_connection_is_named(load_program):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # Bound, so that nobody else listens there, and not listening.
        port = closed.getsockname()[1]
        status, result, stderr = load(load_program, port)
    assert status == 1
    assert stderr == f"load: connection 0 to 127.0.0.1:{port} was refused: is a server listening there?\n"
    assert result["errors"]["refused"] == 1


def test_silent_server_is_named(load_program):
    def serve(connection):
        echoed = connection.recv(64, socket.MSG_WAITALL)
        connection.sendall(echoed)
        while connection.recv(64):
            pass

    with server(serve) as port:
        status, result, stderr = load(load_program, port, "--size", 64, "--messages", 10, "--patience", 0.3)
    assert status == 1
    assert "no byte came for 0.3 s" in stderr
    assert "connection 0, message 2, after 0 of 64 bytes" in stderr
    assert result["errors"]["stalled"] == 1


def test_idle_connection_that_was_dropped_is_found(load_program):
    def serve(connection):
        connection.sendall(connection.recv(64, socket.MSG_WAITALL))

    with server(serve) as port:
        status, result, _ = load(load_program, port, "--size", 64, "--idle", "--duration", 0.1)
    assert status == 1
    assert result["errors"]["hang_up"] == 1


def test_pace_is_kept(load_program):
    with server(echo) as port:
        status, result, _ = load(load_program, port, "--interval-us", 20_000, "--duration", 0.5)
    assert status == 0
    # A message leaves when its time has come, never before; on a busy machine there may be fewer.
    assert 1 <= result["messages"] <= 26


def test_cpu_time_of_the_server_is_read(load_program):
    """The CPU clock of a process that works during the window shows that it does."""
    with server(lambda connection: [echo(connection)]) as port:
        before_ns = time.process_time_ns()
        status, result, _ = load(load_program, port, "--messages", 200, "--server-pid", os.getpid())
        spent_ns = time.process_time_ns() - before_ns
    assert status == 0
    assert 0 < result["server_cpu_ns"] <= spent_ns


def test_too_many_connections_are_refused_before_the_first(load_program):
    command = ["sh", "-c", f'ulimit -n 64; exec "{load_program}" --port 9 --connections 500']
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 2
    assert "500 connections need 516 descriptors, and the limit is 64; raise it with: ulimit -n 516" in done.stderr


def test_bad_usage_is_refused(load_program):
    for options in (
        "--port 0",
        "--port 9 --size 0",
        "--port 9 --idle --messages 3",
        "--port 9 extra",
        "--port 9 --nonsense",
    ):
        command = [load_program, *options.split()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        assert done.returncode == 2, options
        assert done.stderr.count("\n") == 1, options
