"""Servers of others, started as processes on ports and folders of their own, and stopped within bounds."""

import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import pytest

import support


def wait_until(condition, process, log):
    """Wait until `condition()` is true, while the process runs; else fail with what the process wrote."""
    deadline = time.monotonic() + support.PATIENCE_S
    while not condition():
        if process.poll() is not None or time.monotonic() > deadline:
            state = "is not ready" if process.poll() is None else f"ended with {process.returncode}"
            pytest.fail(f"{process.args} {state}:\n{log.read_text()}")
        time.sleep(0.01)


def accepts(address, family=socket.AF_INET):
    """Return whether somebody listens there."""
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        return sock.connect_ex(address) == 0


def stop(process, signal_number=signal.SIGTERM):
    """End a process, by force if it does not listen; return its exit status."""
    if process.poll() is None:
        process.send_signal(signal_number)
    try:
        return process.wait(support.PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(support.PATIENCE_S)
        raise


def scripts_on_path(environment):
    """Return the environment with the scripts of this interpreter's packages first on PATH, as in an activated one."""
    path = os.pathsep.join([os.path.dirname(sys.executable), environment.get("PATH", os.defpath)])
    return {**environment, "PATH": path}


class ServerProcess:
    """A running program: its process, and what it wrote on stdout and stderr."""

    def __init__(self, command, log, *, arm, cwd, environment=None):
        backend = {} if arm == "asyncio" else {"RINGLOOP_BACKEND": arm}
        self.log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                command,
                cwd=cwd,
                env=scripts_on_path({**os.environ, "PYTHONUNBUFFERED": "1", **backend, **(environment or {})}),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def output(self):
        return self.log.read_text()

    def wait_for_port(self, port):
        wait_until(lambda: accepts((support.HOST, port)), self.process, self.log)

    def wait_for_output(self, text):
        wait_until(lambda: text in self.output(), self.process, self.log)

    def stop(self, signal_number=signal.SIGTERM):
        return stop(self.process, signal_number)


@contextlib.contextmanager
def running(command, log, **options):
    """Yield a `ServerProcess` for the length of the context."""
    program = ServerProcess(command, log, **options)
    try:
        yield program
    finally:
        program.stop()


def debian_program(name, package, *folders):
    """Return the path of a server's program, or skip with how to get it."""
    for folder in (*folders, *os.get_exec_path(), "/usr/sbin"):
        candidate = pathlib.Path(folder, name)
        if os.access(candidate, os.X_OK):
            return candidate
    pytest.skip(f"{name} is not installed here: apt-get install {package}")
