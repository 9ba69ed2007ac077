"""`ringloop serve` as a process, and clients for it."""

import contextlib
import functools
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

import support

FOLDER = pathlib.Path(__file__).parent
RINGLOOP = [sys.executable, "-m", "ringloop"]
# Threads for each server whose options don't set threads or workers, or rule them out. Needs a free-threaded Python.
THREADS = os.environ.get("RINGLOOP_TEST_SERVE_THREADS")
SETS_ITS_OWN = re.compile("--(?:threads|workers|reload|check|help)")
_WITH = r"(?: with \S+)? \(Press"
RUNNING = re.compile(rf"Ringloop running on (\S+){_WITH}|Ringloop running on (?:unix )?socket (\S+){_WITH}")


class ServeProcess:
    """A running `ringloop serve`, and what it writes."""

    def __init__(self, arm, *arguments, env=None, cwd=FOLDER, command=None, **options):
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("RINGLOOP_", "UVICORN_", "LISTEN_"))
            and name not in ("WEB_CONCURRENCY", "FORWARDED_ALLOW_IPS")
        }
        path = os.pathsep.join(filter(None, [str(FOLDER), os.environ.get("PYTHONPATH")]))
        options_and_variables = [*map(str, arguments), "--workers" if "WEB_CONCURRENCY" in (env or {}) else ""]
        if THREADS is not None and not any(map(SETS_ITS_OWN.match, options_and_variables)):
            arguments = (*arguments, "--threads", THREADS)
        environment |= {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1", "RINGLOOP_BACKEND": arm, **(env or {})}
        self.process = subprocess.Popen(
            command or [*RINGLOOP, "serve", *map(str, arguments)],
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            **options,
        )
        self._lines = []
        self._changed = threading.Condition()
        self._reader = support.BackgroundThread(self._read)

    def _read(self):
        for line in self.process.stdout:
            with self._changed:
                self._lines.append(line)
                self._changed.notify_all()
        with self._changed:
            self._lines.append(None)
            self._changed.notify_all()

    @property
    def output(self):
        with self._changed:
            return "".join(line for line in self._lines if line is not None)

    def wait_for(self, pattern, count=1):
        """Wait until the output has this pattern `count` times; return the last match."""
        deadline = time.monotonic() + support.PATIENCE_S
        with self._changed:
            while True:
                output = "".join(line for line in self._lines if line is not None)
                found = list(re.finditer(pattern, output))
                if len(found) >= count:
                    return found[count - 1]
                if None in self._lines or time.monotonic() > deadline:
                    pytest.fail(f"{pattern!r} did not come {count} times in:\n{output}")
                self._changed.wait(1)

    @functools.cached_property
    def address(self):
        """Where it listens: (host, port), or the path of a socket."""
        url, path = self.wait_for(RUNNING).groups()
        if path:
            return path
        host, _, port = url.partition("://")[2].rpartition(":")
        return host.strip("[]"), int(port)

    def connect(self):
        """Return a blocking socket that is connected to it, as soon as it listens."""
        address = self.address
        deadline = time.monotonic() + support.PATIENCE_S
        while True:
            sock = socket.socket(socket.AF_UNIX) if isinstance(address, str) else socket.socket()
            if isinstance(address, tuple) and ":" in address[0]:
                sock.close()
                sock = socket.socket(socket.AF_INET6)
            sock.settimeout(support.PATIENCE_S)
            try:
                sock.connect(address)
                return sock
            except (ConnectionRefusedError, FileNotFoundError):
                # Workers listen only when they have started.
                sock.close()
                if time.monotonic() > deadline or self.process.poll() is not None:
                    raise
                time.sleep(0.01)

    def client(self, context=None, sock=None):
        """Return an http.client.HTTPConnection; the caller closes it."""
        sock = sock or self.connect()
        if context is not None:
            sock = context.wrap_socket(sock, server_hostname="localhost")
        connection = http.client.HTTPConnection("localhost", timeout=support.PATIENCE_S)
        connection.sock = sock
        return connection

    def get_again(self, path="/"):
        """Get as `get` does, but repeat a request whose connection is closed before anything comes.

        A server that ends may close a connection before it has seen the first request on it.
        """
        while True:
            with contextlib.suppress(http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
                return self.get(path)

    def get(self, path="/", headers=None, context=None):
        """Return the status, the headers and the body that a request on a new connection gets."""
        client = self.client(context)
        try:
            client.request("GET", path, headers=headers or {})
            response = client.getresponse()
            return response.status, response.headers, response.read()
        finally:
            client.close()

    def get_json(self, path, **options):
        status, _, body = self.get(path, **options)
        assert status == 200
        return json.loads(body)

    def send(self, number):
        self.process.send_signal(number)

    def wait(self):
        """Wait until it has ended; return its exit status."""
        status = self.process.wait(support.PATIENCE_S)
        self._reader.result()
        return status

    def stop(self, number=signal.SIGTERM):
        self.send(number)
        return self.wait()


@contextlib.contextmanager
def serving(arm, *arguments, **options):
    """Yield a `ServeProcess` for the length of the context, on a free port unless the arguments say another place."""
    if not {"--uds", "--fd", "--port"}.intersection(arguments) and not options.get("command"):
        arguments = (*arguments, "--port", "0")
    program = ServeProcess(arm, *arguments, **options)
    try:
        yield program
    except BaseException:
        print(program.output)
        raise
    finally:
        with program.process:
            if program.process.poll() is None:
                program.process.terminate()
                try:
                    program.process.wait(support.PATIENCE_S)
                except subprocess.TimeoutExpired:
                    program.process.kill()
            program.wait()


def fails(arm, *arguments, **options):
    """Return the exit status and the output of a server that does not start."""
    with serving(arm, *arguments, **options) as program:
        status = program.wait()
        return status, program.output


def begin(program, path):
    """Return a connection whose request has begun to be answered with "begun"."""
    sock = program.connect()
    sock.sendall(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
    data = b""
    while b"begun" not in data:
        chunk = sock.recv(65536)
        assert chunk, data
        data += chunk
    return sock
