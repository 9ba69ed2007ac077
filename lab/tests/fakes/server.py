"""A server for the tests of the runner: echo and HTTP in threads, with faults on demand; and the program for bind.

The tests start it thousands of times, so it imports little.
"""

import os
import signal
import socket
import sys
import threading
import time

BARE_ECHO = """
import select, socket, sys, time
listener = socket.socket(fileno=int(sys.argv[1]))
select.select([listener], [], [])
time.sleep(0.2)
connection, _ = listener.accept()
while data := connection.recv(65536):
    connection.sendall(data)
time.sleep(600)
"""
WORKER = os.path.join(os.path.dirname(__file__), "worker.py")
LEAKED: list[bytearray] = []
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\nHello, World!"


class Options:
    """The words of the command line, with the defaults of those that are left out."""

    host, port, workers, cost, fault, count, feature = "127.0.0.1", 0, 1, 1.0, "", 0, ""

    def __init__(self, what: str, *words: str) -> None:
        self.what = what
        for option, word in zip(words[::2], words[1::2], strict=True):
            name = option.removeprefix("--")
            setattr(self, name, type(getattr(self, name))(word))


def serve(connection: socket.socket, options: Options, number: int) -> None:
    if options.fault != "nagle":
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    received = 0
    with connection:
        while data := connection.recv(65536):
            if options.fault == "crash" and number > 1:
                print("Segmentation fault, or so", file=sys.stderr, flush=True)
                os._exit(3)
            if options.fault in ("leaks", "worker-leaves-leaks") and number > 1:
                LEAKED.append(bytearray(b"x") * 60_000_000)
            if options.fault == "silent":
                continue
            if options.fault == "forks" and number > 1:
                # Another process does the work, and has used the CPU when the answer goes out.
                import subprocess

                subprocess.run([sys.executable, "-c", "sum(range(5_000_000))"], check=True)
            received += len(data)
            if options.what != "discard":
                connection.sendall(ANSWER if options.what in ("http", "asgi", "wsgi") else data)
        if options.what == "discard":
            lie = options.fault == "miscounts" or (options.fault == "miscounts-later" and number > 1)
            connection.sendall(b"%d\n" % (1000 if lie else received))


def hidden_worker() -> socket.socket:
    """Start a worker that has nothing of this process: no parent, no session, no environment; return what connections go over."""
    own, other = socket.socketpair()
    with other:
        if os.fork() == 0:
            if os.fork() == 0:
                os.setsid()
                os.set_inheritable(other.fileno(), True)
                os.execve(sys.executable, [sys.executable, "-IS", WORKER, str(other.fileno())], {})
            os._exit(0)
        os.wait()
    return own


def main() -> None:
    options = Options(*sys.argv[1:])
    if options.what == "bind":
        # As many at once take a round number of nanoseconds where that is asked for.
        fixed = {"instant": 0, "constant": 150_000_000}
        ns = fixed.get(options.fault, int(options.count * 20_000 * options.cost))
        print(f'{{"operations": {options.count}, "ns": {ns}}}')
        return
    if options.fault == f"without-{options.feature}":
        sys.exit(f"it has no {options.feature}")
    if options.fault == "no-start":
        sys.exit("cannot load its library: libnone.so.1")
    if options.fault == "never-ready":
        time.sleep(600)
    if options.fault == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda number, frame: os._exit(7 if options.fault == "fails-late" else 0))
    if options.fault in ("child", "daemon"):
        import subprocess
    if options.fault == "child":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        print("child", child.pid, flush=True)
    if options.fault == "daemon":
        # As daemons do: out of the session, and away from its parent.
        inner = "import subprocess, sys; print('child', subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']).pid)"
        subprocess.run([sys.executable, "-c", inner], start_new_session=True, check=True)
    if options.fault == "endless":
        for _ in range(256):
            for stream in (sys.stdout, sys.stderr):
                stream.write("x" * 1_000_000)
        print(flush=True)
    if options.fault == "no-port":
        print("listening on 127.0.0.1:\u00b2", flush=True)
        print("listening on 127.0.0.1:70000", flush=True)
    if options.fault == "elsewhere":
        time.sleep(600)
    listener = socket.create_server((options.host, options.port), backlog=5 if options.fault == "backlog" else 1024)
    if options.fault != "quiet":
        print(f"listening on {options.host}:{listener.getsockname()[1]}", flush=True)
    if options.fault in ("worker-leaves", "worker-leaves-leaks", "bare-worker-leaves"):
        if os.fork() != 0:
            os.wait()
            time.sleep(600)
        if os.fork() != 0:
            os._exit(0)
        os.setsid()
        if options.fault == "bare-worker-leaves":
            os.set_inheritable(listener.fileno(), True)
            os.execve(sys.executable, [sys.executable, "-c", BARE_ECHO, str(listener.fileno())], {})
    worker, first_handed, number = None, 1, 0
    if options.fault == "hands-over":
        worker = hidden_worker()
    if options.fault == "hands-outside":
        worker = socket.socket(socket.AF_UNIX)
        worker.connect(os.environ["FAKE_OUTSIDE"])
        first_handed = int(os.environ.get("FAKE_OUTSIDE_FROM", "1"))
    while True:
        connection, _ = listener.accept()
        number += 1
        if worker is not None and number >= first_handed:
            with connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                socket.send_fds(worker, [b"1"], [connection.fileno()])
            continue
        threading.Thread(target=serve, args=(connection, options, number), daemon=True).start()


main()
