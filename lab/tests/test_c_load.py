"""The load in C (lab/targets/loops/load.c) against servers that misbehave: each kind of misbehaviour is found and named."""

import contextlib
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

PATIENCE_S = 100
"""How long a test waits for what must happen. Never an expectation about speed."""
LOOPS = Path(__file__).resolve().parents[1] / "targets" / "loops"

sys.path.insert(0, str(LOOPS))
import build  # noqa: E402


@pytest.fixture(scope="session")
def programs(tmp_path_factory):
    """Return the folder with what build.py makes."""
    folder = tmp_path_factory.mktemp("loops")
    build.main(folder)
    return folder


@pytest.fixture(scope="session")
def load_program(programs):
    """Return the path of the load program."""
    return str(programs / "load")


@contextlib.contextmanager
def server(serve, listener=None):
    """Run `serve(connection)` in a thread for each connection to the port (or path) that this yields."""
    listener = listener or socket.create_server(("127.0.0.1", 0))
    name = listener.getsockname()
    threads = []

    def guarded(connection):
        # The load program hangs up when it has found a mistake.
        with connection, contextlib.suppress(ConnectionError, ssl.SSLError):
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
        yield name if isinstance(name, str) else name[1]
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
    command = [program, "--port", str(port), "--warm-up", "0", "--patience", str(PATIENCE_S / 2), *map(str, options)]
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

    # On a busy machine the first echo may take longer than a short patience lasts.
    for patience_s in (0.3, 3, 20):
        with server(serve) as port:
            status, result, stderr = load(load_program, port, "--size", 64, "--messages", 10, "--patience", patience_s)
        if "message 1," not in stderr:
            break
    assert status == 1
    assert f"no byte came for {patience_s} s" in stderr
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
    # A message leaves when its time has come, never before; on a busy machine there may be fewer, or none in a short window.
    for duration_s in (0.5, 5, 20):
        with server(echo) as port:
            status, result, _ = load(load_program, port, "--interval-us", 20_000, "--duration", duration_s)
        assert status == 0
        assert result["messages"] <= duration_s / 0.02 + 1
        if result["messages"]:
            return
    pytest.fail("no message was sent in 20 s")


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


def test_echo_over_a_unix_socket_is_checked(load_program, tmp_path):
    def listen(name):
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(tmp_path / name))
        listener.listen()
        return listener

    command = [load_program, "--transport", "unix", "--warm-up", "0", "--messages", "50", "--connections", "3"]
    command += ["--patience", str(PATIENCE_S / 2)]
    with server(echo, listen("true")) as path:
        done = subprocess.run(
            [*command, "--path", path], capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["messages"] >= 50
    with server(echo_altered(lambda data, _: data[::-1]), listen("false")) as path:
        done = subprocess.run(
            [*command, "--path", path], capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
    assert done.returncode == 1
    assert "wrong echo: connection 0, message 1" in done.stderr


@contextlib.contextmanager
def datagrams(alter):
    """Answer each datagram with `alter(data)`; None answers nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as bound:
        bound.bind(("127.0.0.1", 0))

        def serve():
            while True:
                data, peer = bound.recvfrom(65536)
                if not data:
                    return
                if (answer := alter(data)) is not None:
                    with contextlib.suppress(ConnectionError):  # Of an earlier answer, to a program that has ended.
                        bound.sendto(answer, peer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield bound.getsockname()[1]
        finally:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
                last.sendto(b"", bound.getsockname())
            thread.join()


def test_echo_of_datagrams_is_checked(load_program):
    options = ("--transport", "udp", "--size", 100, "--messages", 60, "--connections", 3)
    with datagrams(lambda data: data) as port:
        status, result, stderr = load(load_program, port, *options)
    assert (status, stderr) == (0, "")
    assert result["messages"] >= 60
    with datagrams(lambda data: data[:-1]) as port:
        status, _, stderr = load(load_program, port, *options)
    assert status == 1
    assert "wrong echo: connection 0, message 1: a datagram of 99 bytes instead of 100" in stderr
    with datagrams(lambda data: data[:50] + b"?" + data[51:]) as port:
        status, _, stderr = load(load_program, port, *options)
    assert status == 1
    assert "wrong echo: connection 0, message 1, byte 50 of 100" in stderr


def test_lost_datagram_is_named(load_program):
    with datagrams(lambda data: None) as port:
        status, result, stderr = load(load_program, port, "--transport", "udp", "--size", 64, "--patience", 0.3)
    assert status == 1
    assert "connection 0, message 1, after 0 of 64 bytes" in stderr
    assert result["errors"]["stalled"] == 1


@pytest.fixture(scope="session")
def tls_load_program(programs):
    """Return the load program with TLS in it."""
    if (note := programs / "tls-missing.txt").exists():
        pytest.skip(note.read_text().strip())
    return str(programs / "load-tls")


@pytest.fixture
def certificate(programs):
    """Return the paths of the certificate for 127.0.0.1, and of its key."""
    return programs / "certificate.pem", programs / "key.pem"


def tls_server(serve, certificate):
    """Serve as `server` does, under TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)

    def shake_hands_and_serve(connection):
        with context.wrap_socket(connection, server_side=True) as wrapped:
            serve(wrapped)

    return server(shake_hands_and_serve)


@pytest.mark.parametrize("size", [1, 1024, 70_000])
def test_echo_under_tls_is_checked(tls_load_program, certificate, size):
    options = ("--transport", "tls", "--certificate", certificate[0], "--size", size, "--messages", 30)
    with tls_server(echo, certificate) as port:
        status, result, stderr = load(tls_load_program, port, "--connections", 3, *options)
    assert (status, stderr) == (0, "")
    assert result["messages"] >= 30
    with tls_server(echo_altered(lambda data, _: bytes(byte ^ 1 for byte in data)), certificate) as port:
        status, _, stderr = load(tls_load_program, port, *options)
    assert status == 1
    assert "wrong echo: connection 0, message 1, byte 0" in stderr


def test_server_with_another_certificate_is_not_measured(tls_load_program, certificate, tmp_path):
    build.make_certificate(tmp_path)
    path = tmp_path / "certificate.pem"
    with tls_server(echo, certificate) as port:
        status, result, stderr = load(tls_load_program, port, "--transport", "tls", "--certificate", path)
    assert status == 1
    assert "TLS handshake on connection 0 failed: certificate verify failed" in stderr
    assert result["messages"] == 0


def test_server_without_tls_is_named(tls_load_program, certificate):
    with server(echo) as port:
        status, _, stderr = load(tls_load_program, port, "--transport", "tls", "--certificate", certificate[0])
    assert status == 1
    assert "TLS handshake on connection 0 failed: " in stderr


RESPONSE = b"HTTP/1.1 200 OK\r\nServer: it\r\ncontent-length: 5\r\n\r\nhello"


def respond(response, pieces=1):
    """Answer each request with `response`, cut into `pieces`."""

    def serve(connection):
        received = b""
        while data := connection.recv(65536):
            received += data
            while b"\r\n\r\n" in received:
                head, _, received = received.partition(b"\r\n\r\n")
                assert head.startswith(b"GET /greeting HTTP/1.1\r\nHost: 127.0.0.1:"), head
                step = -(-len(response) // pieces)
                for begin in range(0, len(response), step):
                    connection.sendall(response[begin : begin + step])

    return serve


def get(load_program, port, *options):
    """Run the load program against an HTTP server."""
    return load(load_program, port, "--http-get", "/greeting", "--body", "hello", *options)


@pytest.mark.parametrize("pieces", [1, 2, len(RESPONSE)])
def test_right_responses_are_counted(load_program, pieces):
    with server(respond(RESPONSE, pieces)) as port:
        status, result, stderr = get(load_program, port, "--connections", 3, "--messages", 30)
    assert (status, stderr) == (0, "")
    assert result["messages"] >= 30
    assert result["latency_ns_max"] > 0


@pytest.mark.parametrize(
    ("response", "complaint"),
    [
        (RESPONSE.replace(b"200 OK", b"500 Oh"), "its status is not 200; it begins with 'HTTP/1.1 500 Oh'"),
        (RESPONSE.replace(b"hello", b"jello"), "its body is not the one asked for"),
        (RESPONSE.replace(b": 5", b": 6") + b"!", "its Content-Length is not that of the body asked for"),
        (RESPONSE.replace(b": 5", b": five"), "it has no Content-Length"),
        (RESPONSE.replace(b"Server: it", b"Content-Length: 5"), "it has two Content-Lengths"),
        (RESPONSE.replace(b"content-length: 5", b"X: y"), "it has no Content-Length"),
        (RESPONSE.replace(b"Server: it", b"Transfer-Encoding: chunked"), "it has a Transfer-Encoding"),
        (RESPONSE + b"!", "more bytes came than Content-Length says"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 20_000, "it is too long"),
    ],
)
def test_wrong_response_is_named(load_program, response, complaint):
    with server(respond(response)) as port:
        status, result, stderr = get(load_program, port, "--messages", 30)
    assert status == 1
    assert f"wrong response: connection 0, request 1: {complaint}" in stderr
    assert result["errors"]["wrong_response"] == 1


def test_response_that_nobody_asked_for_is_found(load_program):
    def serve(connection):
        connection.recv(65536)
        connection.sendall(RESPONSE)
        connection.sendall(RESPONSE)
        with contextlib.suppress(ConnectionError):
            connection.recv(65536)

    with server(serve) as port:
        status, _, stderr = get(load_program, port, "--idle", "--duration", PATIENCE_S / 2)
    assert status == 1
    assert "wrong response: connection 0" in stderr


def test_response_that_is_cut_short_is_named(load_program):
    def serve(connection):
        connection.recv(65536)
        connection.sendall(RESPONSE[:-1])

    with server(serve) as port:
        status, _, stderr = get(load_program, port)
    assert status == 1
    assert f"hung up (end of file): connection 0, message 1, after {len(RESPONSE) - 1} bytes of its response" in stderr


def test_bad_usage_is_refused(load_program):
    for options in (
        "--transport unix",
        "--transport nonsense --port 9",
        "--transport tls --port 9",
        "--transport tls --port 9 --certificate none",
        "--transport udp --port 9 --size 65508",
        "--port 9 --http-get /",
        "--transport udp --port 9 --http-get / --body x",
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
