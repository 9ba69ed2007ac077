"""Address literals: what a resolver would answer, without asking one."""

from __future__ import annotations

import builtins
import socket
import sys
from typing import Any

# The module's own; None if the user has put another in its place before ringloop was imported.
_resolve = socket.getaddrinfo if getattr(socket.getaddrinfo, "__globals__", None) is vars(socket) else None
# As plain integers, which compare faster, and as the socket module's constants, which are returned.
_STREAM, _DGRAM = int(socket.SOCK_STREAM), int(socket.SOCK_DGRAM)
_KINDS = {_STREAM: (socket.SOCK_STREAM, socket.IPPROTO_TCP), _DGRAM: (socket.SOCK_DGRAM, socket.IPPROTO_UDP)}
_IPV4, _IPV6 = socket.AF_INET, socket.AF_INET6


def _is_plain(port: object, family: object, type: object, proto: object, flags: object) -> bool:
    """Return whether this is the usual request: a port and one kind of socket."""
    integers = (
        builtins.type(port) is int
        and isinstance(family, int)
        and isinstance(type, int)
        and isinstance(proto, int)
        and isinstance(flags, int)
    )
    return integers and type in (_STREAM, _DGRAM) and not flags and 0 <= port <= 65535  # type: ignore[operator]


def find_literal(host: Any, port: Any, family: Any, type: Any, proto: Any, flags: Any) -> list[Any] | None:
    """Return what `socket.getaddrinfo` returns for a numeric IPv4 or IPv6 address, or None for any other host.

    None of it can block. The usual request is answered here: the C library takes over a microsecond to parse it, to find
    the protocol's name, and to format the address. Others go to `socket.getaddrinfo`. A function in the place of that may
    block, so asyncio asks it.
    """
    if not isinstance(host, str) or socket.getaddrinfo is not _resolve:
        return None
    version = _IPV6 if ":" in host else _IPV4
    try:
        packed = socket.inet_pton(version, host)
    except (OSError, ValueError):
        return None
    if _is_plain(port, family, type, proto, flags) and builtins.type(host) is str:
        kind, protocol = _KINDS[_STREAM if type == _STREAM else _DGRAM]
        if (not proto or proto == protocol) and (not family or family == version):
            sys.audit("socket.getaddrinfo", host, port, family, type, proto)
            if version is _IPV4:
                return [(version, kind, protocol, "", (host, port))]
            return [(version, kind, protocol, "", (socket.inet_ntop(version, packed), port, 0, 0))]
    if port is None or isinstance(port, int):
        return socket.getaddrinfo(host, port, family, type, proto, flags)
    return None
