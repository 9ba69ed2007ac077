"""Commands that end with all that they have started: at their own end, when they are told to, and when this process ends."""

import contextlib
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

GUARDIAN = Path(__file__).with_name("guardian.py")


class Guarded(subprocess.Popen[bytes]):
    """A command in a session of its own, below a guardian, which ends everything however this process ends.

    `pid` is the guardian's, below which is all that the command starts; `first` is the command's own. Signals go to the command.
    """

    def __init__(self, command: list[str], **options: Any) -> None:
        """Start it, as Popen does; raise OSError."""
        self.line, other = socket.socketpair()
        try:
            with other:
                # The interpreter looks at no variable, and at no file of the current folder.
                words = [sys.executable, "-IS", str(GUARDIAN), str(other.fileno()), *command]
                super().__init__(words, pass_fds=[other.fileno()], start_new_session=True, **options)
            answer = self.line.recv(100)
            self.first = int(answer or 0)
            if self.first <= 0:
                self.wait()
                raise OSError(-self.first, os.strerror(-self.first) if answer else "its guardian has ended")
        except BaseException:
            self.line.close()
            raise

    def send_signal(self, sig: int) -> None:
        """Send a signal to the command, if it hasn't ended."""
        with contextlib.suppress(OSError):  # It has just ended.
            self.line.send(bytes([sig]))

    def end(self) -> None:
        """Kill the command, and everything that it has started."""
        self.line.close()
        self.wait()

    def __exit__(self, *error: Any) -> None:
        """End it."""
        self.end()
        super().__exit__(*error)


def run(command: list[str], timeout: float | None = None, **options: Any) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end, and return what it has printed, as subprocess.run does; raise OSError and TimeoutExpired."""
    with Guarded(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options
    ) as process:
        output, errors = process.communicate(timeout=timeout)
    code = process.returncode
    return subprocess.CompletedProcess(command, code, output.decode(errors="replace"), errors.decode(errors="replace"))
