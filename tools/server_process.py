"""Servers as processes of their own, for the tools that examine `ringloop serve`."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

BACKENDS = ("io_uring", "epoll")
HOST = "127.0.0.1"
PATIENCE_S = 60
HERE = Path(__file__).parent


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind((HOST, 0))
        port: int = sock.getsockname()[1]
        return port


def serve(application: str, port: int, backend: str, *options: str) -> list[str]:
    """Return the command that serves an application of a module in this folder, as `module:name`."""
    return [sys.executable, "-m", "ringloop", "serve", application, "--port", str(port), "--backend", backend, *options]


@contextlib.contextmanager
def running(command: list[str], port: int, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process, from when it listens until the context ends. What it prints is appended to the log."""
    environment = {**os.environ, "PYTHONPATH": str(HERE)}
    with log.open("ab") as output:
        # In a process group of its own: Ctrl-C ends this program, which then ends the server.
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment, process_group=0
        )
    try:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            with contextlib.suppress(ConnectionRefusedError), socket.create_connection((HOST, port)):
                break
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{' '.join(command)} doesn't serve:\n{log.read_text()}")
            time.sleep(0.05)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
