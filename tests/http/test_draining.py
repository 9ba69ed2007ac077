"""The end of a server resets no connection: what the kernel has queued is answered, what comes later is refused."""

import contextlib
import errno
import signal
import socket
import threading

import pytest

import serve_process
import support
from ringloop.http import _listening

CLIENTS = 6


def outcome_of_one(address):
    """Return what a client sees that connects, asks once, and reads to the end."""
    with socket.socket() as sock:
        sock.settimeout(support.PATIENCE_S)
        try:
            sock.connect(address)
        except ConnectionRefusedError:
            return "refused"
        try:
            sock.sendall(b"GET /pid HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            data = b""
            while chunk := sock.recv(65536):
                data += chunk
        except OSError as error:
            return errno.errorcode[error.errno]
    return "answered" if data.startswith(b"HTTP/1.1 200 ") else repr(data)


def outcomes_until_refused(address, started):
    """Connect again and again, until the server is gone; return what was seen."""
    seen = []
    while not seen or seen[-1] != "refused":
        seen.append(outcome_of_one(address))
        started.set()
    return seen


@pytest.mark.parametrize("workers", [(), ("--workers", "2"), ("--workers", "2", "--reuse-port")], ids=" ".join)
@pytest.mark.ringloop_only
def test_the_end_of_a_server_resets_nobody(arm, workers):
    with serve_process.serving(arm, "applications:app", *workers) as program:
        program.get("/pid")
        program.wait_for("Application startup complete", count=int(workers[1]) if workers else 1)
        begun = [threading.Event() for _ in range(CLIENTS)]
        clients = [support.BackgroundThread(outcomes_until_refused, program.address, event) for event in begun]
        for event in begun:
            assert event.wait(support.PATIENCE_S)
        program.send(signal.SIGTERM)
        seen = {outcome for client in clients for outcome in client.result()}
    assert seen == {"answered", "refused"}


@pytest.fixture
def listeners():
    found = _listening.bind("127.0.0.1", 0)
    found.sockets[0].listen(8)
    with contextlib.closing(found):
        yield found


def connecting(address):
    """Return a socket that has begun to connect."""
    sock = socket.socket()
    sock.setblocking(False)
    assert sock.connect_ex(address) == errno.EINPROGRESS
    return sock


def test_refuse_more_keeps_what_waits_and_lets_nothing_begin(listeners):
    (listener,) = listeners.sockets
    listener.setblocking(False)
    with socket.create_connection(listener.getsockname()) as early:
        listeners.refuse_more()
        with connecting(listener.getsockname()) as late:
            accepted, address = listener.accept()
            assert address == early.getsockname()
            with pytest.raises(BlockingIOError):
                listener.accept()
            # What has been accepted isn't affected.
            with accepted:
                early.sendall(b"ping")
                early.shutdown(socket.SHUT_WR)
                accepted.settimeout(support.PATIENCE_S)
                assert accepted.makefile("rb").read() == b"ping"
            listeners.close()
            # Sent again a second later, it is refused.
            late.settimeout(support.PATIENCE_S)
            with pytest.raises(ConnectionRefusedError):
                late.recv(1)


def test_refuse_more_sends_clients_to_others_at_the_same_port():
    first = _listening.bind("127.0.0.1", 0, reuse_port=True)
    port = first.sockets[0].getsockname()[1]
    second = _listening.bind("127.0.0.1", port, reuse_port=True)
    with contextlib.closing(first), contextlib.closing(second):
        for listeners in (first, second):
            listeners.sockets[0].listen(64)
        first.refuse_more()
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(connecting(("127.0.0.1", port))) for _ in range(32)]
            first.close()
            listener = second.sockets[0]
            listener.settimeout(support.PATIENCE_S)
            accepted = [stack.enter_context(listener.accept()[0]) for _ in clients]
            assert {sock.getpeername() for sock in accepted} == {client.getsockname() for client in clients}


def test_refuse_more_leaves_sockets_alone_that_others_listen_on(listeners):
    (listener,) = listeners.sockets
    adopted = _listening.adopt(listener.fileno())
    with contextlib.closing(adopted):
        adopted.refuse_more()
        with socket.create_connection(listener.getsockname(), support.PATIENCE_S):
            listener.settimeout(support.PATIENCE_S)
            listener.accept()[0].close()


def test_refuse_more_removes_the_path_of_a_unix_socket(tmp_path):
    path = tmp_path / "socket"
    with contextlib.closing(_listening.bind_unix(str(path))) as listeners:
        listeners.refuse_more()
        assert not path.exists()
        # Another server may have taken the path by the time of the end.
        path.touch()
        listeners.close()
        assert path.exists()
