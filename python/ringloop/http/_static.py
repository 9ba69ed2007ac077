"""`--static PREFIX=DIR`: files that the server sends itself."""

from __future__ import annotations

import asyncio
import datetime
import email.utils
import errno
import mimetypes
import os
import re
import urllib.parse
from typing import TYPE_CHECKING, NamedTuple

from .. import _core
from .._http import READ_AT_ONCE, FileChangedError, OpenFile
from ._errors import StartupError
from ._pages import send_text
from .logging import logger

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ._applications import Scope, Send

# A file with one of these endings has the content of the file without it, in this coding. The first is preferred.
_CODINGS = {"br": b".br", "zstd": b".zst", "gzip": b".gz"}

# Errors for which a client gets 404, whatever the reason.
_NOT_FOUND = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ELOOP, errno.EXDEV, errno.ENAMETOOLONG)

# How many times to look for a file that others rename at the same time.
_TRIES = 10

# The most characters of a field that are looked at. Clients send far fewer.
_TEXT_MAX = 1000

_INDEX = b"index.html"

# The types of Python's own table, which doesn't depend on the machine, with those that some versions lack.
_TYPES = mimetypes.MimeTypes(()).types_map[1] | {
    ".avif": "image/avif",
    ".br": "application/x-brotli",
    ".gz": "application/gzip",
    ".js": "text/javascript",
    ".map": "application/json",
    ".md": "text/markdown",
    ".mjs": "text/javascript",
    ".otf": "font/otf",
    ".ttf": "font/ttf",
    ".wasm": "application/wasm",
    ".webmanifest": "application/manifest+json",
    ".webp": "image/webp",
    ".woff": "font/woff",
    ".woff2": "font/woff2",
    ".xml": "text/xml",
    ".zst": "application/zstd",
}


def split(text: str) -> tuple[str, str]:
    """Return prefix and folder of PREFIX=DIR. The prefix has no slash at its end. Raise ValueError."""
    prefix, equals, folder = text.partition("=")
    if not equals or not prefix.startswith("/") or not folder:
        raise ValueError(f"{text!r} is not of the form /PREFIX=DIR")
    prefix = prefix.rstrip("/")
    if any(part in ("", ".", "..") for part in prefix.split("/")[1:]) or re.search(r"[%?#\x00-\x20\x7f]", prefix):
        raise ValueError(f"{text!r} has a prefix that no request can have: {prefix!r}")
    return prefix, folder


def split_all(static: Iterable[str]) -> dict[str, str]:
    """Return the folders of all PREFIX=DIR by their prefixes. Raise ValueError."""
    folders: dict[str, str] = {}
    for text in static:
        prefix, folder = split(text)
        if prefix in folders:
            raise ValueError(f"the prefix {prefix or '/'} has two directories: {folders[prefix]!r} and {folder!r}")
        folders[prefix] = folder
    return folders


class _Found(NamedTuple):
    """An open file, and how it was chosen."""

    number: int
    coding: str
    """The Content-Encoding, or nothing."""
    varies: bool
    """Whether other clients may get another file."""


class Folder:
    """Answers requests for the files below a folder.

    Each name is looked up by openat2(2), which doesn't leave the folder, even if something is renamed meanwhile: on the
    loop's thread if the kernel has the whole path in memory, or else in another thread. The folder itself is opened anew
    each time, so it may be replaced by a new one.
    """

    def __init__(self, prefix: str, folder: str | os.PathLike[str]) -> None:
        """Raise StartupError if there is no such folder, or if the kernel can't look up names in it."""
        self._prefix = prefix.encode().split(b"/")
        self._folder = os.path.abspath(os.fsencode(folder))
        try:
            os.close(_core._open_beneath(self._folder, b".", False))
        except IsADirectoryError:
            pass
        except OSError as error:
            reason = error.strerror
            if error.errno in (errno.ENOSYS, errno.EPERM):
                reason = f"openat2(2) is needed, which came with Linux 5.6, and seccomp filters may refuse it: {reason}"
            raise StartupError(f"The directory {folder!r} of --static can't be used: {reason}") from error

    async def __call__(self, scope: Scope, send: Send, raw_path: bytes) -> None:
        parts = decode(raw_path, self._prefix)
        if parts is None:
            await send_text(send, 404, "Not Found")
            return
        is_folder = parts[-1:] == [b""]
        if is_folder:
            parts[-1] = _INDEX
        name = b"/".join(parts) or b"."
        try:
            for _ in range(_TRIES):
                if await self._answer(scope, send, name):
                    return
            await send_text(send, 503, "Service Unavailable", (b"retry-after", b"1"))
        except IsADirectoryError:
            if is_folder:
                await send_text(send, 404, "Not Found")
                return
            query = scope["query_string"]
            location: bytes = scope["raw_path"] + b"/" + (b"?" + query if query else b"")
            await send_text(send, 301, "Moved Permanently", (b"location", location))
        except OSError as error:
            if error.errno not in _NOT_FOUND:
                raise
            await send_text(send, 404, "Not Found")

    async def _answer(self, scope: Scope, send: Send, name: bytes) -> bool:
        """Answer with a file; return False if it changed before anything was sent. Raise OSError if there is none."""
        headers = _Headers(scope["headers"])
        found = await self._find(name, headers)
        file = OpenFile(found.number, is_guarded=True)
        try:
            status, fields, text = _choose(scope["method"], headers, file, found, name)
            if text is not None:
                await send_text(send, status, text, *fields)
                return True
            body = None
            if status == 304 or scope["method"] == "HEAD":
                body = b""
            elif file.size <= READ_AT_ONCE:
                try:
                    body = await file.read_all()
                except FileChangedError:
                    return False
            await send({"type": "http.response.start", "status": status, "headers": fields})
            if body is not None:
                await send({"type": "http.response.body", "body": body})
                return True
            try:
                # The server's own application may pass an open file, so that nothing can come between looking and sending.
                await send({"type": "http.response.pathsend", "path": file})
            except FileChangedError:
                text = "%s has changed while it was sent. Its client gets an incomplete response."
                logger.warning(text, scope["path"])
            return True
        finally:
            file.close()

    async def _find(self, name: bytes, headers: _Headers) -> _Found:
        codings = accepted(headers.joined(b"accept-encoding"))
        try:
            return _find(self._folder, name, codings, True)
        except BlockingIOError:
            pass
        looking = asyncio.get_running_loop().run_in_executor(None, _find_patiently, self._folder, name, codings)
        try:
            return await asyncio.shield(looking)
        except asyncio.CancelledError:
            looking.add_done_callback(_close_found)
            raise


def _choose(
    method: str, headers: _Headers, file: OpenFile, found: _Found, name: bytes
) -> tuple[int, list[tuple[bytes, bytes]], str | None]:
    """Return the status and the fields of a response, and its text.

    The text is None if the response has no body, or if its body is the file, which is then cut to the part to send.
    """
    version = _Version(file, found.coding)
    fields = [(b"etag", version.tag), (b"last-modified", version.date), (b"accept-ranges", b"bytes")]
    if found.varies:
        fields.append((b"vary", b"accept-encoding"))
    if (status := version.unmet_condition(headers)) is not None:
        return status, fields, "Precondition Failed" if status == 412 else None
    status, size = 200, file.size
    # Only GET has ranges (RFC 9110, section 14.2).
    if method == "GET" and version.may_be_cut(headers) and (part := cut(headers.joined(b"range"), size)) is not None:
        if not part:
            return 416, [*fields, (b"content-range", b"bytes */%d" % size)], "Range Not Satisfiable"
        first, last = part
        status = 206
        fields.append((b"content-range", b"bytes %d-%d/%d" % (first, last, size)))
        file.cut(first, last - first + 1)
    if found.coding:
        fields.append((b"content-encoding", found.coding.encode()))
    fields += [(b"content-type", type_of(name)), (b"content-length", b"%d" % file.size)]
    return status, fields, None


def decode(raw_path: bytes, prefix: list[bytes]) -> list[bytes] | None:
    """Return the names of a path below a prefix, the last of which is empty for a directory.

    None if it can't be a file's: a name is empty, begins with a dot, or has a slash or a NUL in it.
    """
    parts = [urllib.parse.unquote_to_bytes(part) for part in raw_path.split(b"/")]
    if parts[: len(prefix)] != prefix:
        return None
    parts = parts[len(prefix) :]
    for part in parts[:-1]:
        if not part:
            return None
    for part in parts:
        if part.startswith(b".") or b"/" in part or b"\0" in part:
            return None
    return parts


def _find(folder: bytes, name: bytes, codings: list[str], is_cached: bool) -> _Found:
    """Return the file that suits the client best. Raise OSError."""
    plain = _core._open_beneath(folder, name, is_cached)
    coded: dict[str, int] = {}
    try:
        for coding, ending in _CODINGS.items():
            try:
                coded[coding] = _core._open_beneath(folder, name + ending, is_cached)
            except BlockingIOError:
                raise
            except OSError:
                continue
        chosen = next((coding for coding in codings if coding in coded), "")
        found = _Found(coded.pop(chosen, plain), chosen, bool(coded) or bool(chosen))
        if chosen:
            coded[""] = plain
    except BaseException:
        os.close(plain)
        raise
    finally:
        for number in coded.values():
            os.close(number)
    return found


def _find_patiently(folder: bytes, name: bytes, codings: list[str]) -> _Found:
    """Do what `_find` does, but in a thread."""
    for _ in range(_TRIES):
        try:
            return _find(folder, name, codings, False)
        except BlockingIOError:  # Something was renamed while the kernel resolved a "..".
            continue
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))


def _close_found(looking: asyncio.Future[_Found]) -> None:
    """Close what nobody waits for any longer."""
    if not looking.cancelled() and looking.exception() is None:
        os.close(looking.result().number)


def accepted(text: str) -> list[str]:
    """Return the codings that an Accept-Encoding allows, the best first."""
    weights: dict[str, float] = {}
    for item in text[:_TEXT_MAX].lower().split(","):
        name, *parameters = (part.strip() for part in item.split(";"))
        weight = 1.0
        for parameter in parameters:
            if match := re.fullmatch(r"q\s*=\s*([01](?:\.\d{0,3})?)", parameter):
                weight = float(match[1])
        weights[{"x-gzip": "gzip"}.get(name, name)] = weight
    others = weights.get("*", 0.0)
    identity = weights.get("identity", 0.0)
    known = {coding: weights.get(coding, others) for coding in _CODINGS}
    # Sorting is stable: codings that the client likes equally stay in our order.
    chosen = [coding for coding, weight in known.items() if weight > 0 and weight >= identity]
    return sorted(chosen, key=lambda coding: -known[coding])


def cut(text: str, size: int) -> tuple[int, int] | tuple[()] | None:
    """Return the first and the last position of a Range; () if it is outside the file; None to send the whole file.

    As RFC 9110, section 14.2 allows, the whole file is sent if a client asks for several ranges.
    """
    # Python's `int` takes about this many digits at most.
    match = re.fullmatch(r"bytes=[ \t]*(\d{0,4000})-(\d{0,4000})[ \t]*", text, re.ASCII | re.IGNORECASE)
    if match is None or match[1] == match[2] == "":
        return None
    if match[1] == "":
        length = int(match[2])
        return (max(size - length, 0), size - 1) if length and size else ()
    first = int(match[1])
    if match[2] and int(match[2]) < first:
        return None
    last = min(int(match[2]), size - 1) if match[2] else size - 1
    return (first, last) if first < size else ()


def type_of(name: bytes) -> bytes:
    """Return the Content-Type of a file by its name."""
    kind = _TYPES.get(os.path.splitext(name)[1].decode("latin-1").lower(), "application/octet-stream")
    return (f"{kind}; charset=utf-8" if kind.startswith("text/") else kind).encode()


class _Headers:
    """The headers of a request."""

    def __init__(self, pairs: list[tuple[bytes, bytes]]) -> None:
        self._pairs = pairs

    def joined(self, name: bytes) -> str:
        """Return the values of all headers of a name."""
        return ", ".join(value.decode("latin-1") for key, value in self._pairs if key == name)


class _Version:
    """The tag and the date that identify the content of a file."""

    def __init__(self, file: OpenFile, coding: str) -> None:
        self.seconds = file.changed_ns // 1_000_000_000
        suffix = f"-{coding}" if coding else ""
        self.tag = f'"{file.changed_ns:x}-{file.size:x}{suffix}"'.encode()
        self.date = email.utils.formatdate(self.seconds, usegmt=True).encode()

    def unmet_condition(self, headers: _Headers) -> int | None:
        """Return the status that the conditions of a request ask for, in the order of RFC 9110, section 13.2.2."""
        if text := headers.joined(b"if-match"):
            if not self._is_among(text, weakly=False):
                return 412
        elif (seconds := _seconds(headers.joined(b"if-unmodified-since"))) is not None and self.seconds > seconds:
            return 412
        if text := headers.joined(b"if-none-match"):
            if self._is_among(text, weakly=True):
                return 304
        elif (seconds := _seconds(headers.joined(b"if-modified-since"))) is not None and self.seconds <= seconds:
            return 304
        return None

    def may_be_cut(self, headers: _Headers) -> bool:
        """Return whether a Range counts. It doesn't if the client has a part of an earlier version, as If-Range tells."""
        text = headers.joined(b"if-range").strip()
        if not text or text.startswith(('"', "W/")):
            return not text or text == self.tag.decode()
        return text == self.date.decode()

    def _is_among(self, text: str, *, weakly: bool) -> bool:
        tags = re.findall(r'(?:W/)?"[^"]*"', text[:_TEXT_MAX])
        tag = self.tag.decode()
        return text.strip() == "*" or any(each == tag or (weakly and each == f"W/{tag}") for each in tags)


def _seconds(text: str) -> int | None:
    """Return the time of an HTTP date; None if it isn't one."""
    if not text:
        return None
    try:
        date = email.utils.parsedate_to_datetime(text)
        # The oldest form of dates (RFC 9110, section 5.6.7) has no time zone: it is UTC.
        return int((date if date.tzinfo else date.replace(tzinfo=datetime.UTC)).timestamp())
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
