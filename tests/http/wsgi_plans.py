"""Random requests, views and responses: a client and its view make the same plan from a number."""

import dataclasses
import io
import random

SIZES = (0, 0, 1, 13, 1000, 5000, 16_384, 16_385, 65_536, 200_000)
FILE_SIZES = (0, 1, 1000, 16_384, 16_385, 300_000)
WAYS = ("list", "tuple", "list with close", "iterable", "generator", "late generator", "write", "file", "wrapped")
"""How a view answers. A late generator calls `start_response` when it is asked for its first part."""
AS_A_WHOLE = ("list", "tuple", "file")
"""The view has ended before its first part is taken."""
STATUSES = ("200 OK", "200 OK", "200 OK", "404 Not Found", "204 No Content", "205 Reset Content", "304 Not Modified")
BODY_MAX = 60_000
"""Fits into the window of a stream: a client of HTTP/2 can send it though nobody reads it."""
REFUSED = b"Internal Server Error"
SORRY = b"sorry"


def pattern(size):
    """Return the content of a file."""
    return (bytes(range(251)) * (size // 251 + 1))[:size]


@dataclasses.dataclass(frozen=True)
class Expected:
    """The response that a client must get."""

    status: int
    body: bytes
    is_complete: bool = True
    """Otherwise the connection or the stream ends after that."""
    is_refused: bool = False
    """The response is the server's own."""
    log: str = ""
    """How the length is wrong, as the server must say."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """A request, and a view."""

    number: int
    method: str
    body: bytes
    framing: str
    """Of the request's body: none, length or chunked."""
    status: str
    way: str
    parts: tuple
    length: int | None
    """The Content-Length that the view gives."""
    reads: tuple
    """For each part the calls that read from `wsgi.input` before it."""
    failure: object
    """Where the view fails: at "call", "start" or "close", at the number of a part, or nowhere."""
    recovers: bool
    """Where it fails at a part, it calls `start_response` again."""
    changes_head: bool
    """It calls `start_response` twice before there is a body."""
    written: int
    """The number of parts that are given to `write`."""
    file: tuple = (0, 0)
    """The size of the file, and where it is read from."""

    @property
    def reads_at_call(self):
        """Whether the view waits for the body before it does anything else."""
        return any(size != 0 or name == "readlines" for name, size in self.reads[0])

    @property
    def reads_later(self):
        return any(self.reads[1:])

    @property
    def has_body(self):
        return self.method != "HEAD" and self.status[:3] not in ("204", "205", "304")

    def model(self):
        """Return a file that reads as `wsgi.input` must."""
        return io.BytesIO(self.body)

    def expected(self):
        """Return the response."""
        refused = Expected(500, REFUSED, is_refused=True)
        status = int(self.status[:3])
        if self.failure in ("call", "start"):
            return dataclasses.replace(refused, body=b"" if self.method == "HEAD" else REFUSED)
        fails = isinstance(self.failure, int)
        given = b"".join(self.parts[: self.failure] if fails else self.parts)
        length = self.length if self.has_body else None
        is_cut = length is not None and len(given) > length
        # Of a file no more is taken.
        log = "longer" if is_cut and self.way != "file" else ""
        body = given[:length] if is_cut else given
        if fails and (not given or length == 0):
            # The head has not gone out.
            found = Expected(500, SORRY, log=log) if self.recovers else refused
            return dataclasses.replace(found, body=b"" if self.method == "HEAD" else found.body, log=log)
        if not self.has_body:
            return Expected(status, b"", is_complete=not fails)
        if length is not None and len(given) < length:
            return Expected(status, body, is_complete=False, log="" if fails else "shorter")
        return Expected(status, body, is_complete=not fails or length is not None, log=log)


def reads_of(rng, size):
    """Return calls of `wsgi.input`, as names with an argument."""
    calls = []
    for _ in range(rng.choice((0, 1, 1, 2, 5))):
        name = rng.choice(("read", "read", "readline", "readlines", "next", "iterate"))
        limit = rng.choice((None, -1, 0, 1, 10, 1000, 50_000, size, size + 1))
        calls.append((name, limit if name in ("read", "readline", "readlines") else None))
    if rng.random() < 0.5:
        calls.append(("read", None))
    return tuple(calls)


def make(number, kind="any"):
    """Return a plan. The kind "quiet": the server has nothing to say about the length."""
    rng = random.Random(number)
    method = rng.choice(("GET", "POST", "POST", "POST", "PUT", "HEAD"))
    framing = "none" if method in ("GET", "HEAD") and rng.random() < 0.8 else rng.choice(("length", "chunked"))
    body = b""
    if framing != "none":
        body = rng.randbytes(min(rng.choice(SIZES), BODY_MAX))
        if rng.random() < 0.5:
            # Short lines.
            body = body.translate(bytes(10 if byte < 30 else byte for byte in range(256)))
    way = rng.choice(WAYS)
    parts = tuple(rng.randbytes(rng.choice(SIZES)) for _ in range(rng.choice((0, 1, 1, 2, 3, 8))))
    file = (0, 0)
    if way == "file":
        size = rng.choice(FILE_SIZES)
        file = (size, rng.choice((0, 0, size // 2, size)))
        parts = (pattern(size)[file[1] :],)
    status = rng.choice(STATUSES)
    total = sum(map(len, parts))
    length = None
    if status[:3] not in ("204", "205") and rng.random() < 0.5:
        wrong = [max(total - 1, 0), total // 2]
        if way != "file" or total <= 16_384:
            wrong += [total + 1, total + 1000]
        length = rng.choice(wrong) if kind == "any" and rng.random() < 0.3 else total
    reads = [reads_of(rng, len(body)) if rng.random() < 0.7 else ()]
    for _ in parts:
        # When all of the length was sent, there is no request any more.
        later = way not in AS_A_WHOLE and length is None and rng.random() < 0.2
        reads.append(reads_of(rng, len(body)) if later else ())
    failure = None
    if rng.random() < 0.25:
        choices = ["call", "start"]
        if way not in ("list", "tuple", "generator", "late generator"):
            choices.append("close")
        if way not in (*AS_A_WHOLE, "list with close", "wrapped"):
            choices += range(len(parts) + 1)
        failure = rng.choice(choices)
    return Plan(
        number=number,
        method=method,
        body=body,
        framing=framing,
        status=status,
        way=way,
        parts=parts,
        length=length,
        reads=tuple(reads),
        failure=failure,
        recovers=rng.random() < 0.5,
        changes_head=rng.random() < 0.2,
        written=rng.randint(0, len(parts)),
        file=file,
    )


QUIET = dataclasses.replace(make(0, "quiet"), failure=None)
"""One that does not fail."""
