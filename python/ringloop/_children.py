"""Child processes: each is watched through its pidfd by the loop that started it, and reaped individually.

Where the kernel or a container refuses pidfds, a thread for each child waits instead, as in asyncio.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import threading
from asyncio import unix_events
from asyncio.log import logger
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    import subprocess

    from ._types import _Loop

_THREAD_NUMBERS = itertools.count()
# From linux/wait.h. A Python that was built against an older C library lacks the name.
_P_PIDFD = getattr(os, "P_PIDFD", 3)
# The default watchers of asyncio's policies, up to Python 3.13.
_USUAL_WATCHERS = tuple(
    getattr(unix_events, name) for name in ("PidfdChildWatcher", "ThreadedChildWatcher") if hasattr(unix_events, name)
)


def _asyncio_waits_by_thread() -> bool:
    """Return whether asyncio would watch children with threads here, its default up to Python 3.11."""
    if not hasattr(unix_events, "can_use_pidfd"):
        watcher = getattr(asyncio.get_event_loop_policy(), "_watcher", None)
        return type(watcher).__name__ != "PidfdChildWatcher"
    return not unix_events.can_use_pidfd()


def has_own_watcher() -> bool:
    """Return whether the program has set a child watcher that is not one of asyncio's default kinds."""
    if not _USUAL_WATCHERS:
        return False
    watcher = getattr(asyncio.get_event_loop_policy(), "_watcher", None)
    return watcher is not None and type(watcher) not in _USUAL_WATCHERS


class _Transport(unix_events._UnixSubprocessTransport):  # type: ignore[misc, name-defined]
    """asyncio's transport, for a child that is watched here."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        # Such a thread would refer to the transport until the child ends, so that nobody kills the child before.
        self._outlives = _asyncio_waits_by_thread()
        super().__init__(*arguments, **named)

    def __del__(self) -> None:
        # The collector may end this before the loop, whose `close` has the child outlive both.
        if not (self._outlives and self._returncode is None and self._proc is not None):
            super().__del__()


# Representations contain the name of the class.
_Transport.__name__ = _Transport.__qualname__ = unix_events._UnixSubprocessTransport.__name__  # type: ignore[attr-defined]


async def start(
    loop: _Loop,
    protocol: asyncio.BaseProtocol,
    args: Any,
    shell: bool,
    stdin: Any,
    stdout: Any,
    stderr: Any,
    bufsize: int,
    extra: dict[str, Any] | None,
    options: dict[str, Any],
) -> asyncio.SubprocessTransport:
    """Start a child and connect its pipes, as asyncio's `_make_subprocess_transport` does, but watch it by a pidfd."""
    loop._check_closed()  # asyncio would start the child first
    waiter = loop.create_future()
    transport = _Transport(
        loop, protocol, args, shell, stdin, stdout, stderr, bufsize, waiter=waiter, extra=extra, **options
    )
    try:
        Child(loop, transport)
    except BaseException:
        transport.close()
        raise
    try:
        await waiter
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException:
        transport.close()
        await asyncio.shield(transport._wait())
        raise
    return transport


class Child:
    """A child process that runs, or that has ended and wasn't reaped yet. The loop keeps it in `_children`."""

    __slots__ = ("_loop", "_outlives", "_pid", "_pidfd", "_process", "_transport")

    def __init__(self, loop: _Loop, transport: _Transport) -> None:
        self._loop: _Loop | None = loop
        self._outlives = transport._outlives
        self._transport: Any = transport
        self._process: subprocess.Popen[bytes] = transport._proc
        self._pid = self._process.pid
        self._pidfd: int | None = None
        try:
            self._pidfd = os.pidfd_open(self._pid)
            loop._add_reader(self._pidfd, self._exited)
        except (OSError, AttributeError):
            # No pidfds here (an old kernel or C library, a sandbox), or the process is out of descriptors.
            self._close_pidfd()
            self._wait_in_thread(f"asyncio-waitpid-{next(_THREAD_NUMBERS)}")
        except BaseException:
            self._close_pidfd()
            raise
        loop._children.add(self)

    def _exited(self, failure: OSError | None = None) -> None:
        """Reap the child and tell the transport, in the loop's thread.

        If the kernel refuses to say how the child has ended, that is reported, and the code is 255, as of a child that is not known.
        """
        loop, transport = self._loop, self._transport
        if loop is None:  # `outlive` takes care of the child
            return
        loop._children.discard(self)
        returncode = 255
        try:
            if failure is None:
                returncode = self._reap()
        except OSError as error:
            failure = error
        finally:
            if self._pidfd is not None:
                loop._remove_reader(self._pidfd)
            self._close_pidfd()
        if failure is not None:
            loop.call_exception_handler(
                {
                    "message": f"Cannot wait for child process pid {self._pid}, will report returncode 255",
                    "exception": failure,
                    "transport": transport,
                }
            )
        loop._child_watcher_callback(self._pid, returncode, transport)

    def _reap(self) -> int:
        process = self._process
        # `Popen.poll()` may run in another thread.
        with process._waitpid_lock:  # type: ignore[attr-defined]
            if process.returncode is None:
                try:
                    process.returncode = self._wait(os.WEXITED)
                except ChildProcessError:
                    # asyncio's warnings and code: one message for its pidfd watcher, one for its thread watcher.
                    process.returncode = 255
                    if self._pidfd is None:
                        message = "Unknown child process pid %d, will report returncode 255"
                    else:
                        message = "child process pid %d exit status already read:  will report returncode 255"
                    logger.warning(message, self._pid)
            return cast("int", process.returncode)

    def _wait(self, options: int) -> int | None:
        """Wait for this child only. Return the code that `subprocess` would, or None if it still runs (WNOHANG)."""
        # If someone else has reaped the child, its PID may belong to another process by now; its pidfd never does.
        kind, number = (os.P_PID, self._pid) if self._pidfd is None else (_P_PIDFD, self._pidfd)
        try:
            result = os.waitid(kind, number, options)
        except ChildProcessError:
            raise
        except OSError:
            # A sandbox refuses the call, or Linux before 5.4 the pidfd. This one is asyncio's, and always reaps.
            pid, status = os.waitpid(self._pid, options & os.WNOHANG)
            if pid:
                self._process.returncode = os.waitstatus_to_exitcode(status)
            return self._process.returncode
        if result is None:
            return None
        return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status

    def outlive(self) -> None:
        """Take care of the child when its loop is closed, so that no zombie remains: if it still runs, a thread waits for it.

        If the interpreter ends, nobody waits for it any more.
        """
        by_thread = self._pidfd is None
        self._loop = None
        if not self._outlives:
            # A transport kills its child when it is garbage. asyncio's waiting thread would keep it alive.
            self._transport = None
        process = self._process
        with process._waitpid_lock:  # type: ignore[attr-defined]
            try:
                if process.returncode is None:
                    process.returncode = self._wait(os.WEXITED | os.WNOHANG)
                ended = process.returncode is not None
            except OSError:
                # Someone else has reaped it, or this process is a fork and the child is its parent's, or nobody can wait for it.
                ended = True
        if ended:
            self._close_pidfd()
        elif not by_thread:
            try:
                if sys.is_finalizing():
                    # Python 3.11 would start the thread, which can't run any more, and wait for ever until it does.
                    raise RuntimeError("can't create new thread at interpreter shutdown")
                self._wait_in_thread(f"ringloop-waitpid-{next(_THREAD_NUMBERS)}")
            except RuntimeError:
                # No thread can be started. `subprocess` reaps the child with its next one.
                self._close_pidfd()
                self._transport = None

    def _wait_in_thread(self, name: str) -> None:
        threading.Thread(target=self._wait_for_end, name=name, args=(self._loop,), daemon=True).start()

    def _wait_for_end(self, loop: _Loop | None) -> None:
        failure = None
        try:
            # Not reaped here: the loop's thread does that, so that no signal goes to another child with the same PID.
            self._wait(os.WEXITED | os.WNOWAIT)
        except ChildProcessError:
            pass
        except OSError as error:
            failure = error
        if loop is not None:
            try:
                loop.call_soon_threadsafe(self._exited, failure)
                return
            except RuntimeError:
                # The loop was closed first; asyncio's message.
                logger.warning("Loop %r that handles pid %r is closed", loop, self._pid)
        if failure is None:
            self._reap()
        self._close_pidfd()
        self._transport = None

    def _close_pidfd(self) -> None:
        pidfd, self._pidfd = self._pidfd, None
        if pidfd is not None:
            os.close(pidfd)
