"""The server's TLS context, and another one in its place when the certificate's files change."""

from __future__ import annotations

import functools
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
    """Return a context for servers. Raise OSError where a file is missing or its content is wrong; the message names it."""
    context = ssl.SSLContext(version)
    # The errors of the module ssl name no file.
    for file in (certfile, keyfile, ca_certs):
        if file:
            with open(file, "rb"):
                pass
    try:
        # Without a password OpenSSL would ask on the terminal.
        context.load_cert_chain(certfile, keyfile, (lambda: password) if password else _refuse_to_ask)
    except OSError as error:
        raise OSError(_explain_pair(certfile, keyfile or certfile, error)) from error
    context.verify_mode = ssl.VerifyMode(cert_reqs)
    if ca_certs:
        try:
            context.load_verify_locations(ca_certs)
        except OSError as error:
            raise OSError(f"'{ca_certs}' has no valid certificate in PEM format: {error}") from error
    if ciphers:
        context.set_ciphers(ciphers)
    context.set_alpn_protocols(protocols)
    return context


def _explain_pair(certfile: Path, keyfile: Path, error: OSError) -> str:
    """Return what is wrong with a certificate and its key, with the name of the file that it is in."""
    certificate, key = f"'{os.fspath(certfile)}'", f"'{os.fspath(keyfile)}'"
    if getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
        return f"the key in {key} is not that of the certificate in {certificate}"
    if not _mentions(certfile, b"-----BEGIN CERTIFICATE-----", b"-----BEGIN TRUSTED CERTIFICATE-----"):
        return f"{certificate} has no certificate in PEM format"
    if not _mentions(keyfile, b"PRIVATE KEY-----"):
        return f"{key} has no private key in PEM format"
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(certfile)
    except OSError as wrong:
        return f"the certificate in {certificate} can't be read: {wrong}"
    return f"the private key in {key} can't be read, or its password is wrong: {error}"


def _mentions(file: Path, *marks: bytes) -> bool:
    with open(file, "rb") as opened:
        content = opened.read()
    return any(mark in content for mark in marks)


def _refuse_to_ask() -> str:
    raise ValueError("the TLS key is encrypted: ssl_keyfile_password (--ssl-keyfile-password) is missing")


# The name of a method, and its arguments.
_Call = tuple[str, tuple[Any, ...], dict[str, Any]]


def _call(context: ssl.SSLContext, call: _Call) -> None:
    name, arguments, options = call
    getattr(context, name)(*arguments, **options)


def _observe(context: ssl.SSLContext, tell: Callable[[_Call], None]) -> None:
    """Call `tell` after each change of the context.

    Comparing the settings would not find all changes: some can't be read, such as those of `set_alpn_protocols`.
    """
    base = type(context)

    def observed(name: str) -> Callable[..., Any]:
        method = getattr(base, name)

        @functools.wraps(method)
        def change(self: ssl.SSLContext, *arguments: Any, **options: Any) -> Any:
            result = method(self, *arguments, **options)
            tell((name, arguments, options))
            return result

        return change

    names = ["__setattr__", *(name for name in dir(ssl.SSLContext) if name.startswith(("load_", "set_")))]
    derived = type(base.__name__, (base,), {name: observed(name) for name in names})
    # Not by assignment: truststore's contexts have an attribute of their own with this name.
    vars(object)["__class__"].__set__(context, derived)


class ReloadableContext:
    """A context for the loop's servers, which keep it for good: each new connection gets the current `context`,
    which is `initial` until the first reload.

    `make` makes a context, and `files` are those that it reads. A context has its own keys for session tickets, so that
    what was agreed on with an old one, such as a client's certificate, ends with it.

    The program may change `initial` at any time, say to require clients' certificates. Each change is made on the
    current context, too, and on those that follow.
    """

    def __init__(self, make: Callable[[], ssl.SSLContext], files: list[Path]) -> None:
        self._make = make
        self._files = files
        self._seen = self._last_look = self._look()
        self._changes: list[_Call] = []
        self.initial = self.context = make()
        _observe(self.initial, self._repeat)

    def wrap_bio(self, *arguments: Any, **options: Any) -> ssl.SSLObject:
        """Wrap as `ssl.SSLContext.wrap_bio`, which is all that asyncio calls."""
        return self.context.wrap_bio(*arguments, **options)

    def reload(self) -> bool:
        """Read the files again; without success the old context stays, and an error is logged."""
        self._seen = self._look()
        try:
            made = self._make()
            # A factory may return the same context each time.
            if made is not self.initial:
                for change in self._changes:
                    _call(made, change)
        except Exception as error:
            logger.error("The TLS certificate could not be reloaded, the old one stays: %s", error)
            return False
        self.context = made
        logger.info("The TLS certificate was reloaded.")
        return True

    def _repeat(self, change: _Call) -> None:
        if self.context is not self.initial:
            _call(self.context, change)
        # A program may load its certificate again and again.
        if self._changes[-1:] != [change]:
            self._changes.append(change)

    def reload_if_changed(self) -> None:
        """Read the files again if they have changed, but not since the last call.

        A certificate and its key are written one after the other: half of a change is no reason to read.
        """
        last, self._last_look = self._last_look, self._look()
        if last == self._last_look != self._seen:
            self.reload()

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
