"""X-Forwarded-For and X-Forwarded-Proto, from proxies that are trusted to set them."""

from __future__ import annotations

import functools
import ipaddress
from typing import Any

_SCHEMES = frozenset(("http", "https", "ws", "wss"))
_LONGEST_NAME = 253  # of DNS. Nothing longer is kept in the cache.


class TrustedProxies:
    """The trusted peers: addresses, networks, and literals such as the name of a Unix socket's peer; "*" trusts all."""

    def __init__(self, trusted: list[str] | str) -> None:
        names = _split(trusted) if isinstance(trusted, str) else list(trusted)
        self._everyone = names == ["*"]
        self._addresses: set[ipaddress.IPv4Address | ipaddress.IPv6Address] = set()
        self._networks: set[ipaddress.IPv4Network | ipaddress.IPv6Network] = set()
        self._literals: set[str] = set()
        for name in names:
            try:
                if "/" in name:
                    self._networks.add(ipaddress.ip_network(name))
                else:
                    self._addresses.add(ipaddress.ip_address(name))
            except ValueError:
                self._literals.add(name)
        self._look_up_cached = functools.lru_cache(maxsize=4096)(self._look_up)

    def __contains__(self, host: str | None) -> bool:
        if self._everyone:
            return True
        if not host:
            return False
        return self._look_up(host) if len(host) > _LONGEST_NAME else self._look_up_cached(host)

    def apply(self, scope: dict[str, Any]) -> None:
        """Set a request's client and scheme to what its proxy says, if its peer is trusted."""
        client = scope.get("client")
        if (client[0] if client else None) not in self:
            return
        proto, chain = None, []
        for name, value in scope["headers"]:
            if name == b"x-forwarded-proto":
                proto = value
            elif name == b"x-forwarded-for":
                chain.append(value)
        if proto is not None:
            scheme = proto.decode("latin-1").strip()
            if scheme in _SCHEMES:
                scope["scheme"] = scheme.replace("http", "ws") if scope["type"] == "websocket" else scheme
        if chain:
            host, port = self._client(b", ".join(chain).decode("latin-1"))
            # Other characters, such as U+0085, could break lines of the access log.
            if host and host.isprintable():
                scope["client"] = (host, port)

    def _look_up(self, host: str) -> bool:
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return host in self._literals
        return address in self._addresses or any(address in network for network in self._networks)

    def _client(self, forwarded_for: str) -> tuple[str, int]:
        """Return the last address that isn't a trusted proxy's; each proxy appends the one that it was called from."""
        chain = _split(forwarded_for)
        if not self._everyone:
            for name in reversed(chain):
                host, port = _host_and_port(name)
                if host not in self:
                    return host, port
        return _host_and_port(chain[0])


def _split(names: str) -> list[str]:
    return [name.strip() for name in names.split(",")]


def _host_and_port(name: str) -> tuple[str, int]:
    """Return a forwarded address and its port, or 0: "1.2.3.4", "1.2.3.4:5", "::1", "[::1]", "[::1]:5".

    Anything else is returned unchanged, so that it matches no trusted address.
    """
    if name.startswith("["):
        host, bracket, rest = name[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            return name, 0
        return host, _port(rest[1:]) or 0
    if name.count(":") == 1:
        host, _, digits = name.partition(":")
        port = _port(digits)
        return (name, 0) if port is None else (host, port)
    return name, 0


def _port(digits: str) -> int | None:
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= 5 else None
