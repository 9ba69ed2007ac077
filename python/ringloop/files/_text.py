"""Text files: what `io.TextIOWrapper` does, awaited, with the same codecs and the same positions.

The algorithms of `read`, `readline`, `seek` and `tell` are those of CPython's `Modules/_io/textio.c`: positions are those of
blocking files.
"""

from __future__ import annotations

import asyncio
import codecs
import io
import operator
import os
import struct
from collections.abc import AsyncIterator
from typing import Any

from ._binary import File, _Buffered, kind_of, to_size

CHUNK_SIZE = 8192
"""As `io.TextIOWrapper`'s: positions within characters depend on it."""


_COOKIE = struct.Struct("<qiii?")
"""The fields of a cookie. `_pyio` gives each of them 64 bits; the cookies of `io` are shorter."""


def pack_cookie(
    position: int, dec_flags: int = 0, bytes_to_feed: int = 0, chars_to_skip: int = 0, need_eof: bool = False
) -> int:
    """Return a position with the state of a decoder, as `TextIOWrapper.tell` does. OverflowError where it does not fit."""
    try:
        packed = _COOKIE.pack(position, dec_flags, bytes_to_feed, chars_to_skip, need_eof)
    except struct.error:
        raise OverflowError("the state of the decoder is too large for a position") from None
    return int.from_bytes(packed, "little")


def unpack_cookie(cookie: int) -> tuple[int, int, int, int, bool]:
    """Return what `pack_cookie` was given. OverflowError if the number is too large."""
    # As in `io`, which converts any number, and text.
    return _COOKIE.unpack(int(cookie).to_bytes(_COOKIE.size, "little"))


class _Taken:
    """The data that `readlines` needs to be undone.

    The lines exist anyway, so the bytes of finished ones are only kept where they must be.
    """

    __slots__ = ("begin", "chunks", "count", "note")

    def __init__(self, note: tuple[Any, ...] | None) -> None:
        # The state to return to: that of a seekable file when the call began, of others before the line that is being
        # read.
        self.note = note
        # The bytes that were read since then. If nobody else has the file's position, earlier ones are not kept: the file
        # has them, `count` bytes from `begin` on.
        self.chunks: list[bytes] = []
        self.begin = self.count = 0


class TextFile(File[str]):
    """A text file, as `io.TextIOWrapper`."""

    def __init__(
        self,
        buffer: _Buffered,
        mode: str,
        encoding: str | None,
        errors: str | None,
        newline: str | None,
        line_buffering: bool,
    ) -> None:
        # What the arguments mean, and what is wrong with them, `io` knows.
        with io.TextIOWrapper(io.BytesIO(), encoding, errors, newline, line_buffering) as pattern:
            self._encoding, self._errors = pattern.encoding, pattern.errors
        super().__init__(buffer._descriptor, buffer._close_file)
        self._buffer = buffer
        self._mode = mode
        self._line_buffering = line_buffering
        self._encoder: codecs.IncrementalEncoder | None = None
        self._decoder: Any = None
        self._universal = not newline
        self._translates = newline is None
        self._read_newline = newline or ""
        self._write_newline = (newline or os.linesep) if newline != "" else "\n"
        self._bytes_per_char = 0.0
        # The text that was decoded, and how much of it was given out.
        self._decoded = ""
        self._used = 0
        # The flags of the decoder before the last chunk, and the bytes that it has been given since.
        self._snapshot: tuple[int, bytes] | None = None
        if self._descriptor.seekable and self._descriptor.raw.writable() and buffer._tell() != 0:
            # No byte-order mark in the middle of a file.
            self._get_encoder().setstate(0)

    def __repr__(self) -> str:
        return f"<ringloop.files.TextFile name={self.name!r} mode={self._mode!r} encoding={self._encoding!r}>"

    def _check_attached(self) -> None:
        if self._detached:
            raise ValueError("underlying buffer has been detached")

    def _check_open(self, message: str = "I/O operation on closed file.") -> None:
        if self._closed:
            raise ValueError(message)
        self._check_attached()

    def __del__(self) -> None:
        try:
            super().__del__()
        finally:
            buffer = getattr(self, "_buffer", None)
            if buffer is not None and not self._detached:
                # It has warned for both.
                buffer._closed = True

    @property
    def mode(self) -> str:
        """The mode that it was opened with."""
        return self._mode

    @property
    def encoding(self) -> str:
        """The encoding."""
        return self._encoding

    @property
    def errors(self) -> str | None:
        """The handling of text that cannot be encoded, or bytes that cannot be decoded."""
        return self._errors

    @property
    def line_buffering(self) -> bool:
        """Whether writing the end of a line flushes."""
        return self._line_buffering

    @property
    def newlines(self) -> Any:
        """The ends of lines that were read so far, if they are translated."""
        return getattr(self._decoder, "newlines", None) if self._universal else None

    @property
    def buffer(self) -> _Buffered:
        """The binary file below. It takes turns with this one."""
        self._check_attached()
        return self._buffer

    async def readable(self) -> bool:
        """Return whether it was opened for reading."""
        return bool(super().readable())

    def detach(self) -> Any:
        """Return the blocking raw file, which the caller closes. What is buffered for writing must be flushed before."""
        self._check_attached()
        raw = self._buffer.detach()
        self._detached = True
        return raw

    def _get_encoder(self) -> codecs.IncrementalEncoder:
        if self._encoder is None:
            self._encoder = codecs.getincrementalencoder(self._encoding)(self._errors or "strict")
        return self._encoder

    def _get_decoder(self) -> Any:
        if self._decoder is None:
            decoder: Any = codecs.getincrementaldecoder(self._encoding)(self._errors or "strict")
            if self._universal:
                decoder = io.IncrementalNewlineDecoder(decoder, self._translates)
            self._decoder = decoder
        return self._decoder

    async def _flush(self) -> None:
        await self._buffer._flush()

    def _flush_now(self) -> None:
        self._buffer._flush_now()

    async def _close(self, turn: asyncio.Future[None] | None) -> None:
        try:
            await super()._close(turn)
        finally:
            self._buffer._closed = self._closed

    def _close_at_once(self) -> bool:
        closed = super()._close_at_once()
        self._buffer._closed = self._closed
        return closed

    # Reading

    def _check_readable(self) -> None:
        self._check_open()
        if not self._buffer._reads:
            raise io.UnsupportedOperation("not readable")

    async def _read_chunk(self, hint: int = 0) -> bytes:
        """Decode the next chunk, in place of the last one; return its bytes.

        There are none at the end, and if a non-blocking file has nothing now.
        """
        decoder = self._get_decoder()
        buffer = self._buffer
        size = max(CHUNK_SIZE, int(max(self._bytes_per_char, 1.0) * hint)) if hint > 0 else CHUNK_SIZE
        chunk = buffer._read1_now(size)
        if chunk is None:
            chunk = await buffer._read1(size)
        # A non-blocking file that has nothing now may go on in the middle of a character, or of the end of a line.
        is_end = chunk == b""
        chunk = chunk or b""
        if self._descriptor.seekable:
            held, flags = decoder.getstate()
            decoded = decoder.decode(chunk, is_end)
            self._snapshot = (flags, held + chunk)
        else:
            decoded = decoder.decode(chunk, is_end)
        self._decoded, self._used = decoded, 0
        self._bytes_per_char = len(chunk) / len(decoded) if decoded else 0.0
        return chunk

    def _forget(self) -> None:
        """Drop what was decoded and not given out."""
        self._decoded, self._used, self._snapshot = "", 0, None

    def _note(self) -> tuple[Any, ...]:
        """Return everything that a call may change before it waits."""
        state = self._decoder.getstate() if self._decoder is not None else None
        return self._decoded, self._used, self._snapshot, self._bytes_per_char, state

    def _restore(self, note: tuple[Any, ...], chunks: list[bytes]) -> None:
        """Undo what a call has done that was cancelled, or has failed: what it took from the buffer is read again."""
        self._decoded, self._used, self._snapshot, self._bytes_per_char, state = note
        if state is not None:
            self._decoder.setstate(state)
        elif self._decoder is not None:
            self._decoder.reset()
        buffer = self._buffer
        buffer._ahead = b"".join(chunks) + buffer._ahead[buffer._used :]
        buffer._used = 0

    async def read(self, size: int | None = -1, /) -> str:
        """Read `size` characters, or all. Fewer at the end, and if a non-blocking file has no more now."""
        size = to_size(size)
        async with self._lock:
            self._check_readable()
            start = self._used
            if 0 <= size <= len(self._decoded) - start and self._decoder is not None:
                self._used = start + size
                return self._decoded[start : start + size]
            if self._buffer._out:
                await self._flush()
            decoder = self._get_decoder()
            takes_all = size < 0
            # Of a non-blocking file, only a read that gives nothing tells whether it has come to the end.
            if takes_all and not self._descriptor.never_waits():
                rest = await self._buffer._read(-1)
                text: str = self._decoded[self._used :] + decoder.decode(rest or b"", rest is not None)
                if self._snapshot is not None:
                    self._forget()
                else:
                    self._used = len(self._decoded)
                return text
            note, chunks = self._note(), []
            try:
                text = self._decoded[self._used :]
                self._used = len(self._decoded)
                while takes_all or len(text) < size:
                    chunk = await self._read_chunk(0 if takes_all else size - len(text))
                    chunks.append(chunk)
                    piece = self._decoded if takes_all else self._decoded[: size - len(text)]
                    self._used = len(piece)
                    text += piece
                    # At the end of the file the decoder may still give characters. They count as a chunk, so that `tell` returns
                    # the end.
                    if not chunk and not piece:
                        break
                return text
            except UnicodeError:
                # What cannot be decoded is lost, as with `io`: the next call goes on behind it.
                raise
            except BaseException:
                self._restore(note, chunks)
                raise

    def _line_end(self, text: str, start: int) -> int:
        """Return where the first end of a line that begins at `start` or later ends, or -1."""
        if self._translates:
            return text.find("\n", start) + 1 or -1
        if self._universal:
            # In steps: one of the two may not occur at all, and a call that was undone may have left a long text.
            for begin in range(start, len(text), CHUNK_SIZE):
                stop = begin + CHUNK_SIZE
                feed = text.find("\n", begin, stop)
                carriage = text.find("\r", begin, stop if feed < 0 else feed)
                if carriage >= 0:
                    return carriage + (2 if text.startswith("\n", carriage + 1) else 1)
                if feed >= 0:
                    return feed + 1
            return -1
        found = text.find(self._read_newline, start)
        return found + len(self._read_newline) if found >= 0 else -1

    async def readline(self, size: int | None = -1, /) -> str:
        """Read a line, with its end as it is translated."""
        limit = -1 if size is None else operator.index(size)
        lock = self._lock
        if turn := lock.reserve():
            await lock.wait(turn)
        try:
            self._check_readable()
            if self._buffer._out:
                await self._flush()
            note = self._note()
            chunks: list[bytes] = []
            try:
                return await self._readline(limit, chunks)
            except UnicodeError:
                # As in `read`.
                raise
            except BaseException:
                self._restore(note, chunks)
                raise
        finally:
            lock.release()

    async def _readline(self, limit: int, chunks: list[bytes]) -> str:
        """Read a line, and add the chunks that it takes to the others."""
        self._get_decoder()
        text, start = self._decoded, self._used
        searched = start
        # How much of the text came before what is decoded now.
        before = 0
        while True:
            end = self._line_end(text, searched)
            if end < 0 and 0 <= limit <= len(text) - start:
                end = start + limit
            if end >= 0:
                if 0 <= limit < end - start:
                    end = start + limit
                self._used = end - before
                return text[start:end]
            text, start = text[start:], 0
            # The end of a line may have come in part.
            searched = max(len(text) - len(self._read_newline) + 1, 0) if self._read_newline else len(text)
            while True:
                chunk = await self._read_chunk()
                chunks.append(chunk)
                if self._decoded or not chunk:
                    break
            if not self._decoded:
                self._forget()
                return text
            before = len(text)
            text += self._decoded

    def _begin_lines(self) -> Any:
        self._check_readable()
        return _Taken(self._note() if self._descriptor.seekable else None)

    async def _next_line(self, taken: Any) -> str:
        if self._buffer._out:
            await self._flush()
        start = self._used
        end = self._line_end(self._decoded, start)
        if end >= 0:
            self._used = end
            return self._decoded[start:end]
        if not self._descriptor.seekable:
            taken.note, taken.chunks = self._note(), []
            line = await self._readline(-1, taken.chunks)
            taken.note = None
            return line
        if not self._descriptor.direct.is_shared():
            size = sum(map(len, taken.chunks))
            if not taken.count:
                taken.begin = self._buffer._tell() - size
            taken.count += size
            taken.chunks = []
        return await self._readline(-1, taken.chunks)

    def _undo_lines(self, taken: Any, lines: list[str]) -> None:
        if not self._descriptor.seekable:
            if taken.note is not None:
                self._restore(taken.note, taken.chunks)
            self._decoded, self._used = "".join(lines) + self._decoded[self._used :], 0
        elif self._descriptor.direct.is_shared():
            # Others may go on from the file's position, so it is not moved.
            first = self._descriptor.read_again(taken.count, taken.begin)
            self._restore(taken.note, [first, *taken.chunks])
        else:
            self._restore(taken.note, taken.chunks)
            if taken.count:
                self._buffer._unread(taken.count)

    def __aiter__(self) -> AsyncIterator[str]:
        self._check_open()
        return self

    async def __anext__(self) -> str:
        if self._translates and not self._lock.taken and not self._closed and not self._detached:
            end = self._decoded.find("\n", self._used) + 1
            if end:
                line = self._decoded[self._used : end]
                self._used = end
                return line
        line = await self.readline()
        if not line:
            raise StopAsyncIteration
        return line

    # Writing

    async def write(self, text: str, /) -> int:
        """Write all, or put it into the buffer; return how many characters that are.

        BlockingIOError if a non-blocking file has no room; its `characters_written` are the bytes that were written or put into
        the buffer.
        """
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {kind_of(text)}")
        lock = self._lock
        if turn := lock.reserve():
            await lock.wait(turn)
        try:
            self._check_open()
            if not self._buffer._writes:
                raise io.UnsupportedOperation("not writable")
            has_newline = "\n" in text
            flush = self._line_buffering and (has_newline or "\r" in text)
            length = len(text)
            if has_newline and self._write_newline != "\n":
                text = text.replace("\n", self._write_newline)
            data = self._get_encoder().encode(text)
            if self._snapshot is not None or self._decoded:
                self._forget()
            if self._decoder is not None:
                self._decoder.reset()
            await self._buffer._write(memoryview(data))
            if flush:
                await self._flush()
            return length
        finally:
            lock.release()

    async def flush(self) -> None:
        """Write what is buffered to the file."""
        async with self._lock:
            self._check_open()
            await self._flush()
            if self._buffer._writes and self._buffer._ahead:
                self._buffer._drop_ahead()

    # Both

    async def tell(self) -> int:
        """Return the file's position: a number for `seek`, and of blocking files' `seek`, too."""
        async with self._lock:
            self._check_open()
            return await self._tell()

    async def _tell(self) -> int:
        if not self._descriptor.seekable:
            raise io.UnsupportedOperation("underlying stream is not seekable")
        await self._flush()
        position = self._buffer._tell()
        decoder = self._decoder
        if decoder is None or self._snapshot is None:
            return position
        # Back to where the decoder had nothing in store.
        dec_flags, next_input = self._snapshot
        position -= len(next_input)
        chars_to_skip = self._used
        if chars_to_skip == 0:
            return pack_cookie(position, dec_flags)
        saved_state = decoder.getstate()
        try:
            # A point near the current position at which the decoder has nothing in store.
            skip_bytes = int(self._bytes_per_char * chars_to_skip)
            skip_back = 1
            while skip_bytes > 0:
                decoder.setstate((b"", dec_flags))
                count = len(decoder.decode(next_input[:skip_bytes]))
                if count <= chars_to_skip:
                    held, flags = decoder.getstate()
                    if not held:
                        dec_flags = flags
                        chars_to_skip -= count
                        break
                    skip_bytes -= len(held)
                    skip_back = 1
                else:
                    skip_bytes -= skip_back
                    skip_back *= 2
            else:
                skip_bytes = 0
                decoder.setstate((b"", dec_flags))
            start_pos = position + skip_bytes
            start_flags = dec_flags
            if chars_to_skip == 0:
                return pack_cookie(start_pos, start_flags)
            # From there, byte by byte.
            bytes_fed = chars_decoded = 0
            need_eof = False
            for index in range(skip_bytes, len(next_input)):
                bytes_fed += 1
                chars_decoded += len(decoder.decode(next_input[index : index + 1]))
                held, dec_flags = decoder.getstate()
                if not held and chars_decoded <= chars_to_skip:
                    start_pos += bytes_fed
                    chars_to_skip -= chars_decoded
                    start_flags, bytes_fed, chars_decoded = dec_flags, 0, 0
                if chars_decoded >= chars_to_skip:
                    break
            else:
                chars_decoded += len(decoder.decode(b"", True))
                need_eof = True
                if chars_decoded < chars_to_skip:
                    raise OSError("can't reconstruct logical file position")
            return pack_cookie(start_pos, start_flags, bytes_fed, chars_to_skip, need_eof)
        finally:
            decoder.setstate(saved_state)

    def _reset_encoder(self, position: int) -> None:
        if self._buffer._writes or self._encoder is not None:
            encoder = self._get_encoder()
            if position != 0:
                encoder.setstate(0)
            else:
                encoder.reset()

    async def seek(self, cookie: int, whence: int = os.SEEK_SET, /) -> int:
        """Move the position to where `tell` has said that it is, or to the file's beginning or end."""
        async with self._lock:
            self._check_open()
            return await self._seek(cookie, whence)

    async def _seek(self, cookie: int, whence: int) -> int:
        if not self._descriptor.seekable:
            raise io.UnsupportedOperation("underlying stream is not seekable")
        buffer = self._buffer
        if whence == os.SEEK_CUR:
            if cookie != 0:
                raise io.UnsupportedOperation("can't do nonzero cur-relative seeks")
            cookie = await self._tell()
        elif whence == os.SEEK_END:
            if cookie != 0:
                raise io.UnsupportedOperation("can't do nonzero end-relative seeks")
            position = await buffer._seek(0, os.SEEK_END)
            self._forget()
            if self._decoder is not None:
                self._decoder.reset()
            self._reset_encoder(position)
            return position
        elif whence != os.SEEK_SET:
            raise ValueError(f"invalid whence ({whence}, should be 0, 1 or 2)")
        if cookie < 0:
            raise ValueError(f"negative seek position {cookie}")
        await self._flush()
        start_pos, dec_flags, bytes_to_feed, chars_to_skip, need_eof = unpack_cookie(cookie)
        await buffer._seek(start_pos, os.SEEK_SET)
        self._forget()
        if buffer._reads:
            # Made now, if there is none: a new one would expect the byte-order mark.
            decoder = self._get_decoder()
            if start_pos == 0 and dec_flags == 0:
                decoder.reset()
            else:
                decoder.setstate((b"", dec_flags))
            self._snapshot = (dec_flags, b"")
        if chars_to_skip:
            chunk = await buffer._read(bytes_to_feed) or b""
            self._decoded = self._get_decoder().decode(chunk, need_eof)
            self._snapshot = (dec_flags, chunk)
            if len(self._decoded) < chars_to_skip:
                raise OSError("can't restore logical file position")
            self._used = chars_to_skip
        self._reset_encoder(cookie)
        return cookie

    async def truncate(self, size: int | None = None, /) -> int:
        """Set the length in bytes; the position stays. None is where the buffer below is, as with blocking files."""
        async with self._lock:
            self._check_open()
            # Without a size it ends where the buffer is, as with `io.TextIOWrapper`: after the chunk that was decoded last.
            return await self._buffer._truncate(size)
