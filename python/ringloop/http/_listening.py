"""The sockets that a server listens on: an address, a Unix socket, a descriptor, or systemd's descriptors."""

from __future__ import annotations

import array
import contextlib
import errno
import os
import socket
import stat
import struct
from typing import Any

from ._errors import StartupError

_FIRST_PASSED = 3  # SD_LISTEN_FDS_START of sd_listen_fds(3).
_ATTEMPTS = 8
_SO_ATTACH_FILTER = 26
_DROP_SYN = b"".join(
    struct.pack("HBBI", *instruction)
    for instruction in (
        (0x30, 0, 0, 13),  # ldb [13]: the flags of TCP. A filter of a TCP socket sees a packet from TCP's header on.
        (0x54, 0, 0, 0x12),  # and #(SYN | ACK)
        (0x15, 0, 1, 0x02),  # jeq #SYN
        (0x06, 0, 0, 0),  # ret #0: drop the packet
        (0x06, 0, 0, 0xFFFFFFFF),  # ret #-1: keep all of it
    )
)
"""A program for Linux's packet filter (struct sock_filter of linux/filter.h). It drops what would begin a connection."""


class Listeners:
    """Sockets, and the path of the Unix socket among them, which is removed when they are closed.

    `can_be_repeated` is whether others can be bound to the same addresses: SO_REUSEPORT is set. `is_inherited` is whether
    another process may go on to listen on the same sockets.
    """

    def __init__(
        self,
        sockets: list[socket.socket],
        path: str | None = None,
        *,
        can_be_repeated: bool = False,
        is_inherited: bool = False,
    ) -> None:
        self.sockets = sockets
        self.can_be_repeated = can_be_repeated
        self._is_inherited = is_inherited
        self._path = path
        self._identity = None if path is None else _identify(path)

    def refuse_more(self) -> None:
        """Let no more connections begin, so that those in the kernel's queue can all be accepted before the end.

        The kernel resets those that wait at a TCP socket when it is closed. So it can't be closed while they wait, and
        accepting them would not end while more arrive. So the first packet of a new one is dropped: its client sends it
        again a second later, and by then either reaches another process that listens there, or is refused. The path of
        a Unix socket is removed, unless it is another file by now.
        """
        if self._is_inherited:
            return
        self._remove_path()
        # An array tells its address, as ctypes would, but is imported in a fraction of the time.
        code = array.array("B", _DROP_SYN)
        program = struct.pack("HP", len(_DROP_SYN) // 8, code.buffer_info()[0])
        for sock in self.sockets:
            if sock.family in (socket.AF_INET, socket.AF_INET6):
                # Sandboxes may lack packet filters. Some connections may then be reset.
                with contextlib.suppress(OSError):
                    sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)

    def allow_more(self) -> None:
        """Let others be bound to the same addresses: further threads of this process, or whoever sets SO_REUSEPORT.

        To be called once these listen, so that an address which is in use was an error.
        """
        if not self._is_inherited and self._path is None:
            for sock in self.sockets:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            self.can_be_repeated = True

    def close(self) -> None:
        """Close the sockets. The path is removed, unless it is another file by now."""
        close(self.sockets)
        self._remove_path()

    def _remove_path(self) -> None:
        if self._path is not None and self._identity is not None and _identify(self._path) == self._identity:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
        self._path = None


def bind(host: str | None, port: int, *, reuse_port: bool = False) -> Listeners:
    """Return a socket for each address of the host (None or "": all addresses), all with the same port.

    Raise StartupError.
    """
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, OverflowError, UnicodeError) as error:
        raise StartupError(f"{host or ''}:{port}: {getattr(error, 'strerror', None) or error}") from None
    # The port that the first address got may be taken at the next one.
    attempts = 1 if port else _ATTEMPTS
    while True:
        attempts -= 1
        try:
            return Listeners(_bind_all(list(dict.fromkeys(found)), reuse_port), can_be_repeated=reuse_port)
        except StartupError:
            if not attempts:
                raise


def _bind_all(found: list[tuple[Any, Any, int, str, Any]], reuse_port: bool) -> list[socket.socket]:
    sockets: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in found:
            try:
                sock = socket.socket(family, kind, protocol)
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    raise StartupError(f"no socket can be opened: {error.strerror}") from None
                continue  # A family that this kernel doesn't have, usually IPv6.
            sockets.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if reuse_port:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            if not address[1] and len(sockets) > 1:
                address = (address[0], sockets[0].getsockname()[1], *address[2:])
            try:
                sock.bind(address)
            except OSError as error:
                text = f"[Errno {error.errno}] error while attempting to bind on address {address!r}: "
                raise StartupError(text + str(error.strerror).lower() + _hint(error)) from None
        if not sockets:
            raise StartupError("no address of this host can be used here")
    except BaseException:
        close(sockets)
        raise
    return sockets


def explain(error: OSError) -> str:
    """Return why a socket can't listen."""
    return f"{error}{_hint(error)}"


def _hint(error: OSError) -> str:
    return "; `ss -ltnp` shows by which process" if error.errno == errno.EADDRINUSE else ""


def bind_unix(path: str) -> Listeners:
    """Return a Unix socket. An existing one is replaced, and its mode is kept; a new one gets 0o666.

    Raise StartupError, also if the path is something other than a socket.
    """
    mode = 0o666
    with contextlib.suppress(OSError):
        status = os.stat(path)
        if stat.S_ISSOCK(status.st_mode):
            mode = stat.S_IMODE(status.st_mode)
            os.unlink(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(path)
        os.chmod(path, mode)
    except OSError as error:
        sock.close()
        raise StartupError(f"{path}: {error.strerror or error}") from None
    return Listeners([sock], path)


def adopt(descriptor: int) -> Listeners:
    """Return the socket of a descriptor that was inherited; the descriptor itself stays open. Raise StartupError."""
    name = f"descriptor {descriptor}"
    try:
        copy = os.dup(descriptor)
    except OSError as error:
        raise StartupError(f"{name}: {error.strerror or error}") from None
    return Listeners([_take(copy, name)], is_inherited=True)


def duplicate(sockets: list[socket.socket]) -> Listeners:
    """Return further descriptors of the same sockets. Raise OSError."""
    copies: list[socket.socket] = []
    try:
        for sock in sockets:
            copies.append(sock.dup())
    except BaseException:
        close(copies)
        raise
    return Listeners(copies, is_inherited=True)


def passed_by_systemd() -> Listeners | None:
    """Return the sockets that sd_listen_fds(3) describes, if there are any. Child processes do not see them.

    Raise StartupError.
    """
    process, count = os.environ.get("LISTEN_PID"), os.environ.get("LISTEN_FDS")
    if process != str(os.getpid()) or not (count or "").isdecimal():
        return None
    for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"):
        os.environ.pop(name, None)
    sockets: list[socket.socket] = []
    for descriptor in range(_FIRST_PASSED, _FIRST_PASSED + int(count or 0)):
        try:
            sockets.append(_take(descriptor, f"descriptor {descriptor} of LISTEN_FDS"))
        except StartupError:
            close(sockets)
            raise
        sockets[-1].set_inheritable(False)
    return Listeners(sockets, is_inherited=True)


def _take(descriptor: int, name: str) -> socket.socket:
    """Return the stream socket of a descriptor. Raise StartupError, and close the socket, if it is of another kind."""
    try:
        sock = socket.socket(fileno=descriptor)
    except OSError as error:
        raise StartupError(f"{name}: {error.strerror or error}") from None
    if sock.type != socket.SOCK_STREAM:
        sock.close()
        raise StartupError(f"{name}: not a stream socket, but the server needs one that it can listen on")
    return sock


def _identify(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def close(sockets: list[socket.socket]) -> None:
    """Close all of them."""
    for sock in sockets:
        sock.close()


def describe(sock: socket.socket) -> str:
    """Return what a client connects to: "host:port" with brackets around IPv6, a path, or "@name" of an abstract socket."""
    name = sock.getsockname()
    if isinstance(name, tuple):
        return f"[{name[0]}]:{name[1]}" if sock.family == socket.AF_INET6 else f"{name[0]}:{name[1]}"
    return os.fsdecode(b"@" + name[1:]) if isinstance(name, bytes) and name[:1] == b"\0" else os.fsdecode(name)
