"""The server's TLS context, and another one in its place when the certificate's files change."""

from __future__ import annotations

import os
import ssl
from typing import TYPE_CHECKING, Any

from .logging import logger

if TYPE_CHECKING:
    from collections.abc import Callable

Path = str | os.PathLike[str]


def make_context(
    certfile: Path,
    keyfile: Path | None,
    password: str | None,
    *,
    version: int,
    cert_reqs: int,
    ca_certs: Path | None,
    ciphers: str | None,
    protocols: list[str],
) -> ssl.SSLContext:
    """A context for servers. Raises OSError (ssl.SSLError) where a file is missing or its content is wrong."""
    context = ssl.SSLContext(version)
    try:
        # Without a password OpenSSL would ask on the terminal.
        context.load_cert_chain(certfile, keyfile, (lambda: password) if password else _refuse_to_ask)
        context.verify_mode = ssl.VerifyMode(cert_reqs)
        if ca_certs:
            context.load_verify_locations(ca_certs)
    except (FileNotFoundError, PermissionError):
        # The errors of the module ssl name no file.
        for file in (certfile, keyfile, ca_certs):
            if file:
                with open(file, "rb"):
                    pass
        raise
    if ciphers:
        context.set_ciphers(ciphers)
    context.set_alpn_protocols(protocols)
    return context


def _refuse_to_ask() -> str:
    raise ValueError("the TLS key is encrypted: ssl_keyfile_password (--ssl-keyfile-password) is missing")


class ReloadableContext:
    """A context that new connections follow to its replacement.

    `context` is given to the loop's servers, which keep it for good. At each handshake its callback for server names
    (which is called without a name, too) puts the current context into the connection. `make` makes a context, and
    `files` are those that it reads.
    """

    def __init__(self, make: Callable[[], ssl.SSLContext], files: list[Path]) -> None:
        self._make = make
        self._files = files
        self._seen = self._last_look = self._look()
        self.context = make()
        self._current = self.context
        self._own_callback = self.context.sni_callback

    def reload(self) -> bool:
        """Reads the files again; without success the old context stays, and an error is logged."""
        self._seen = self._look()
        try:
            made = self._make()
        except Exception as error:
            logger.error("The TLS certificate could not be reloaded, the old one stays: %s", error)
            return False
        if made is not self.context:
            self._current = made
            self.context.sni_callback = self._choose
        logger.info("The TLS certificate was reloaded.")
        return True

    def reload_if_changed(self) -> None:
        """Reads the files again if they have changed, but not since the last call.

        A certificate and its key are written one after the other: half of a change is no reason to read.
        """
        last, self._last_look = self._last_look, self._look()
        if last == self._last_look != self._seen:
            self.reload()

    def _choose(self, connection: Any, name: str | None, context: ssl.SSLContext) -> int | None:
        current = self._current
        connection.context = current
        callback = self._own_callback if current is self.context else current.sni_callback
        return None if callback is None else callback(connection, name, current)  # type: ignore[arg-type]

    def _look(self) -> list[tuple[int, int, int, int] | None]:
        found: list[tuple[int, int, int, int] | None] = []
        for name in self._files:
            try:
                status = os.stat(name)
            except OSError:
                found.append(None)
            else:
                found.append((status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns))
        return found
