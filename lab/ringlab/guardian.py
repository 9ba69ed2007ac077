"""The parent of a command of the lab, which keeps whatever the command starts together, and ends it with the command or with the lab.

A process whose parent has ended is given to its next ancestor that asks for such processes (PR_SET_CHILD_SUBREAPER in prctl(2)). So
what a command starts stays below its guardian, in whatever session and environment, and nothing in that environment has to mark it.

This is a program that imports little, because each server waits for it: run by `guarded.Guarded`, it imports nothing of ringlab.
Its first word is the descriptor of a socket. There it says the command's PID, or -errno; the lab sends the numbers of signals for the
command, and closes it to end everything, which the kernel does for a lab that is killed.
"""

import contextlib
import ctypes
import os
import select
import signal
import sys
import time

PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36
LOOK_S = 0.001
"""How often is looked whether processes that were killed have ended."""


def children() -> list[int]:
    """Return the PIDs of the children, and of those that have been given to this process."""
    found, own = [], os.getpid()
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
            if int(file.read().rpartition(b")")[2].split()[1]) == own:
                found.append(int(name))
    return found


def ended(first: int) -> tuple[bool, int | None]:
    """Wait for the children that have ended; return whether any is left, and the status of the first if it was among them."""
    status = None
    while True:
        try:
            pid, code = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False, status
        if pid == 0:
            return True, status
        if pid == first:
            status = code


def watch(line: int, first: int) -> int | None:
    """Pass signals on until the command has ended, or the lab wants no more of it; return its status if it has ended."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    while True:
        _, status = ended(first)
        if status is not None:
            return status
        readable, _, _ = select.select([line, woken], [], [])
        if woken in readable:
            os.read(woken, 4096)
            continue
        try:
            said = os.read(line, 1)
        except OSError:  # The lab was killed before it has read what was said to it.
            return None
        if not said:
            return None
        os.kill(first, said[0])


def end_all(first: int) -> int | None:
    """Kill everything; return the status of the command if it has ended now. The children of what ends become own children."""
    status = None
    while True:
        left, now = ended(first)
        status = now if now is not None else status
        if not left:
            return status
        for pid in children():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(LOOK_S)


def main(line: int, command: list[str]) -> None:
    """Run a command to its end, and end as it has ended."""
    os.set_inheritable(line, False)
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        # Python ignores these two, and what is started would inherit that.
        defaults = [signal.SIGPIPE, signal.SIGXFSZ]
        first = os.posix_spawnp(command[0], command, os.environ, setsid=True, setsigdef=defaults)
    except OSError as error:
        os.write(line, str(-(error.errno or 0)).encode())
        sys.exit(127)
    with contextlib.suppress(OSError):  # The lab has ended meanwhile, which shows next.
        os.write(line, str(first).encode())
    status = None
    try:
        status = watch(line, first)
    finally:
        last = end_all(first)
    code = os.waitstatus_to_exitcode(last or 0 if status is None else status)
    if code < 0:
        # Without a second core file.
        libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
        with contextlib.suppress(OSError):  # SIGKILL's can't be changed.
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
