"""`--static`: files that the server sends itself."""

import asyncio
import contextlib
import email.utils
import gzip
import os
import pathlib
import socket
import time
import urllib.parse

import hypothesis
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

import http2
import support
from ringloop.http import Config, _static
from ringloop.http._errors import StartupError
from ringloop.http._pages import Pages
from serve_process import fails, serving
from serving import Server, run, text
from test_pathsend import FileServer, open_files

pytestmark = pytest.mark.ringloop_only

SMALL = b"0123456789"
LARGE = bytes(range(256)) * 20_000
MTIME = 1_700_000_000
DATE = email.utils.formatdate(MTIME, usegmt=True)


@pytest.fixture
def folder(tmp_path):
    """Yield a folder whose files nobody has open after the test."""
    made = tmp_path / "public"
    made.mkdir()
    yield made
    assert open_files(tmp_path) == []


def make(path, content=SMALL):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    os.utime(path, (MTIME, MTIME))
    return path


def pages_of(folder, prefix="/files", root_path=""):
    pages = Pages(root_path)
    pages.add_folder(prefix, _static.Folder(prefix, folder))
    return pages


def serving_files(arm, folder, prefix="/files", *, kind=Server, **settings):
    pages = pages_of(folder, prefix, settings.get("root_path", ""))
    return kind(arm, text(b"application"), pages=pages, **settings)


async def ask(client, target, *fields, method="GET"):
    head = "".join(f"{field}\r\n" for field in ("host: a", *fields))
    client.write(f"{method} {target} HTTP/1.1\r\n{head}\r\n".encode("latin-1"))
    line, given, body = await client.response(is_head=method == "HEAD")
    return int(line.split()[1]), given, body


def asked(arm, loop, folder, target, *fields, method="GET", **options):
    """Return the status, the fields and the body of one request."""

    async def test():
        async with serving_files(arm, folder, **options) as server, server.client() as client:
            return await ask(client, target, *fields, method=method)

    return run(loop, test())


# -- What is sent -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("content", [b"", SMALL, LARGE], ids=["empty", "small", "large"])
def test_a_file(arm, loop, folder, method, content):
    make(folder / "css" / "a b.css", content)
    status, fields, body = asked(arm, loop, folder, "/files/css/a%20b.css?version=1", method=method)
    assert status == 200
    assert fields == {
        "etag": f'"{MTIME * 10**9:x}-{len(content):x}"',
        "last-modified": DATE,
        "accept-ranges": "bytes",
        "content-type": "text/css; charset=utf-8",
        "content-length": str(len(content)),
    }
    assert body == (content if method == "GET" else b"")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.js", "text/javascript; charset=utf-8"),
        ("A.HTML", "text/html; charset=utf-8"),
        ("a.json", "application/json"),
        ("a.svg", "image/svg+xml"),
        ("a.woff2", "font/woff2"),
        ("a.wasm", "application/wasm"),
        ("a.tar.gz", "application/gzip"),
        ("data:text/html,x", "application/octet-stream"),
        ("none", "application/octet-stream"),
        ("\udcff.txt", "text/plain; charset=utf-8"),
    ],
)
def test_types(name, expected):
    assert _static.type_of(os.fsencode(name)).decode() == expected


def test_a_name_that_is_not_utf8(arm, loop, folder):
    path = os.fsencode(folder) + b"/\xff"
    pathlib.Path(os.fsdecode(path)).write_bytes(SMALL)
    assert asked(arm, loop, folder, "/files/%ff")[::2] == (200, SMALL)


@pytest.mark.parametrize("content", [SMALL, LARGE], ids=["small", "large"])
def test_parts(arm, loop, folder, content):
    make(folder / "a", content)
    size = len(content)
    whole, none = (200, None, content), (416, f"bytes */{size}", b"Range Not Satisfiable")

    def part(first, last):
        return 206, f"bytes {first}-{last}/{size}", content[first : last + 1]

    expected = {
        "bytes=0-0": part(0, 0),
        "bytes=3-5": part(3, 5),
        "BYTES=3-5": part(3, 5),
        "bytes=3-": part(3, size - 1),
        "bytes=-3": part(size - 3, size - 1),
        "bytes=-0": none,
        f"bytes={size - 1}-{size + 10}": part(size - 1, size - 1),
        f"bytes={size}-": none,
        f"bytes={'9' * 3000}-": none,
        f"bytes={'9' * 5000}-": whole,
        f"bytes=-{10 * size}": part(0, size - 1),
        "bytes=5-3": whole,
        "bytes=-": whole,
        "bytes=a-b": whole,
        "bytes=\xb2-\xb3": whole,
        "bytes=0-1,3-4": whole,
        "items=0-1": whole,
        "bytes 0-1": whole,
    }

    async def test():
        async with serving_files(arm, folder) as server, server.client() as client:
            for header, result in expected.items():
                status, fields, body = await ask(client, "/files/a", f"range: {header}")
                assert (status, fields.get("content-range"), body) == result, header
            # HEAD has no ranges.
            status, fields, _ = await ask(client, "/files/a", "range: bytes=0-0", method="HEAD")
            assert (status, fields["content-length"]) == (200, str(size))

    run(loop, test())


def test_a_part_of_nothing(arm, loop, folder):
    make(folder / "a", b"")
    for header in ("bytes=0-", "bytes=-1", "bytes=-0"):
        assert asked(arm, loop, folder, "/files/a", f"range: {header}")[0] == 416


def test_dates_without_a_time_zone_are_utc(monkeypatch):
    """RFC 9110, section 5.6.7: the form of C's asctime."""
    monkeypatch.setenv("TZ", "EST5")
    time.tzset()
    try:
        assert _static._seconds("Sun Nov  6 08:49:37 1994") == 784111777
        assert _static._seconds("Sun, 06 Nov 1994 08:49:37 GMT") == 784111777
    finally:
        monkeypatch.undo()
        time.tzset()


def test_conditions(arm, loop, folder):
    make(folder / "a")
    tag = f'"{MTIME * 10**9:x}-a"'
    before, after = (email.utils.formatdate(MTIME + step, usegmt=True) for step in (-1, 1))
    expected = [
        (304, f"if-none-match: {tag}"),
        (304, f"if-none-match: W/{tag}"),
        (304, f'if-none-match: "x,y", {tag}'),
        (304, "if-none-match: *"),
        (200, 'if-none-match: "other"'),
        # A tag counts more than a date.
        (200, 'if-none-match: "other"', f"if-modified-since: {after}"),
        (304, f"if-modified-since: {DATE}"),
        (304, f"if-modified-since: {after}"),
        (200, f"if-modified-since: {before}"),
        (200, "if-modified-since: yesterday"),
        (200, "if-modified-since: Mon, 32 Foo 99999 00:00:00 GMT"),
        (200, f"if-match: {tag}"),
        (200, "if-match: *"),
        (412, f"if-match: W/{tag}"),
        (412, 'if-match: "other"'),
        (412, f"if-unmodified-since: {before}"),
        (200, f"if-unmodified-since: {DATE}"),
        (206, "range: bytes=1-2", f"if-range: {tag}"),
        (200, "range: bytes=1-2", f"if-range: W/{tag}"),
        (200, "range: bytes=1-2", 'if-range: "other"'),
        (206, "range: bytes=1-2", f"if-range: {DATE}"),
        (200, "range: bytes=1-2", f"if-range: {before}"),
        (200, "range: bytes=99-", 'if-range: "other"'),
        (304, "range: bytes=1-2", f"if-none-match: {tag}"),
    ]

    async def test():
        async with serving_files(arm, folder) as server, server.client() as client:
            for status, *headers in expected:
                for method in ("GET", "HEAD"):
                    if method == "HEAD" and status == 206:
                        continue
                    given, fields, body = await ask(client, "/files/a", *headers, method=method)
                    assert given == status, headers
                    assert fields["etag"] == tag
                    if given == 304:
                        assert (fields["last-modified"], body) == (DATE, b"")
                        assert "content-length" not in fields

    run(loop, test())


def test_a_file_that_was_replaced_has_another_tag(arm, loop, folder):
    path = make(folder / "a")

    async def test():
        async with serving_files(arm, folder) as server, server.client() as client:
            _, fields, _ = await ask(client, "/files/a")
            other = make(folder / "b", b"9876543210")
            os.utime(other, ns=(MTIME * 10**9 + 1, MTIME * 10**9 + 1))
            other.rename(path)
            status, _, body = await ask(client, "/files/a", f"if-none-match: {fields['etag']}")
            assert (status, body) == (200, b"9876543210")

    run(loop, test())


# -- Precompressed files ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("", ""),
        ("gzip", "gzip"),
        ("x-gzip", "gzip"),
        ("GZIP", "gzip"),
        ("deflate, gzip, br, zstd", "br"),
        ("gzip, zstd", "zstd"),
        ("br;q=0.5, gzip", "gzip"),
        ("br;q=0, *", "zstd"),
        ("*;q=0", ""),
        ("identity, br;q=0.5", ""),
        ("br; q=0.000", ""),
        ("br;q=x", "br"),
        ("deflate", ""),
    ],
)
def test_the_coding_that_a_client_likes_best(arm, loop, folder, header, expected):
    contents = {"": SMALL, "br": b"as br", "zstd": b"as zstd", "gzip": gzip.compress(SMALL)}
    for coding, ending in (("", ""), ("br", ".br"), ("zstd", ".zst"), ("gzip", ".gz")):
        make(folder / f"a.js{ending}", contents[coding])
    headers = [f"accept-encoding: {header}"] if header else []
    status, fields, body = asked(arm, loop, folder, "/files/a.js", *headers)
    assert (status, fields.get("content-encoding", ""), body) == (200, expected, contents[expected])
    assert fields["vary"] == "accept-encoding"
    assert fields["content-type"] == "text/javascript; charset=utf-8"
    assert fields["etag"].endswith(f'-{expected}"' if expected else 'a"')


def test_what_there_is_of_codings(arm, loop, folder):
    make(folder / "a.js")
    make(folder / "a.js.gz", b"as gzip")
    (folder / "a.js.br").mkdir()
    make(folder / "b.js")
    make(folder / "c.js.gz")

    async def test():
        async with serving_files(arm, folder) as server, server.client() as client:
            header = "accept-encoding: br, zstd, gzip"
            status, fields, body = await ask(client, "/files/a.js", header, "range: bytes=3-")
            assert (status, fields["content-encoding"], body) == (206, "gzip", b"gzip")
            status, fields, _ = await ask(client, "/files/b.js", header)
            assert status == 200
            assert not {"content-encoding", "vary"} & fields.keys()
            assert (await ask(client, "/files/c.js", header))[0] == 404
            status, fields, body = await ask(client, "/files/a.js.gz", header)
            assert (status, fields["content-type"], body) == (200, "application/gzip", b"as gzip")
            assert "content-encoding" not in fields

    run(loop, test())


# -- Which file it is -------------------------------------------------------------------------------------------------


def test_folders(arm, loop, folder):
    make(folder / "index.html", b"top")
    make(folder / "in" / "index.html", b"inner")
    make(folder / "empty" / "a")
    (folder / "odd" / "index.html").mkdir(parents=True)

    async def test():
        async with serving_files(arm, folder) as server, server.client() as client:
            for target, location in [
                ("/files", "/files/"),
                ("/files?a=b", "/files/?a=b"),
                ("/files/in", "/files/in/"),
                ("/files/%69n?x", "/files/%69n/?x"),
                ("/%66iles", "/%66iles/"),
            ]:
                status, fields, _ = await ask(client, target)
                assert (status, fields["location"]) == (301, location)
            assert (await ask(client, "/files/"))[::2] == (200, b"top")
            status, fields, body = await ask(client, "/files/in/")
            assert (status, fields["content-type"], body) == (200, "text/html; charset=utf-8", b"inner")
            for target in ("/files/empty/", "/files/odd/", "/files/index.html/", "/files/in//index.html", "/files//"):
                assert (await ask(client, target))[0] == 404, target

    run(loop, test())


def test_who_answers(arm, loop, folder):
    """The rest is the application's; the innermost prefix counts; only GET and HEAD are allowed."""
    make(folder / "in" / "a", b"outer")
    inner = folder.parent / "inner"
    make(inner / "a", b"inner")
    pages = pages_of(folder)
    pages.add_folder("/files/in", _static.Folder("/files/in", inner))

    async def test():
        async with Server(arm, text(b"application"), pages=pages) as server, server.client() as client:
            for target in ("/", "/files.txt", "/filesystem/a", "/x/files/a", "/x/../files/a", "//files/a"):
                assert (await ask(client, target))[::2] == (200, b"application"), target
            assert (await ask(client, "/files/in/a"))[::2] == (200, b"inner")
            assert (await ask(client, "/files/none"))[::2] == (404, b"Not Found")
            for method in ("POST", "DELETE", "OPTIONS"):
                status, fields, body = await ask(client, "/files/in/a", method=method)
                assert (status, fields["allow"], body) == (405, "GET, HEAD", b"Method Not Allowed")
        assert server.service.requests == 11

    run(loop, test())


def test_all_paths(arm, loop, folder):
    make(folder / "index.html", b"top")
    make(folder / "a")

    async def test():
        async with serving_files(arm, folder, "") as server, server.client() as client:
            assert (await ask(client, "/"))[::2] == (200, b"top")
            assert (await ask(client, "/a"))[::2] == (200, SMALL)
            # Never a place that a browser takes for another host.
            assert (await ask(client, "//in"))[0] == 404

    run(loop, test())


def test_root_path(arm, loop, folder):
    make(folder / "in" / "index.html")

    async def test():
        async with serving_files(arm, folder, root_path="/\u00e9") as server, server.client() as client:
            status, fields, _ = await ask(client, "/files/in")
            assert (status, fields["location"]) == (301, "/\u00e9/files/in/".encode().decode("latin-1"))
            assert (await ask(client, "/files/in/"))[::2] == (200, SMALL)

    run(loop, test())


def outside(folder):
    """Make files and links that nobody must get by a request; return the targets that ask for them."""
    secret = make(folder.parent / "secret", b"secret")
    make(folder / ".hidden", b"secret")
    make(folder / ".git" / "config", b"secret")
    (folder / "relative").symlink_to("../secret")
    (folder / "absolute").symlink_to(secret)
    (folder / "up").symlink_to("..")
    (folder / "inside-but-absolute").symlink_to(make(folder / "in" / "a", b"secret"))
    (folder / "loop").symlink_to("loop")
    (folder / "process").symlink_to("/proc/self/environ")
    os.mkfifo(folder / "fifo")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(os.fspath(folder / "socket"))
    (folder / "locked").write_bytes(b"secret")
    names = [
        *("relative", "absolute", "up/secret", "loop", "process", "fifo", "socket", "inside-but-absolute"),
        *(".hidden", ".git/config", "%2ehidden", ".git", ".", "..", "./in/a", "in/./a", "in/.%2e/in/a"),
        *("../secret", "..%2fsecret", "%2e%2e/secret", "%2e%2e%2fsecret", "in/../../secret", "..;/secret"),
        *(
            "%2e%2e%5csecret",
            "..%5csecret",
            "in%2fa",
            "in%2Fa",
            "in/a%00",
            "%00",
            "in/a%00.html",
            "%c0%ae%c0%ae/secret",
        ),
        *("//secret", os.fspath(secret), urllib.parse.quote(os.fspath(secret), safe=""), "in/a/", "in/a/..", "x" * 300),
        "/".join(["in"] + 2000 * ["x"]),
    ]
    return [f"/files/{name}" for name in names] + ["/files%2fin/a", "/files/../public/in/a"]


def test_nothing_outside_of_the_folder(arm, loop, folder):
    targets = outside(folder)
    (folder / "link").symlink_to("in/a")
    (folder / "round").symlink_to("in/../in")

    async def test():
        async with serving_files(arm, folder) as server, server.client() as client:
            for target in targets:
                status, _, body = await ask(client, target)
                assert (status, body) == (404, b"Not Found"), target
            # What leads to the inside is fine.
            for target in ("/files/in/a", "/files/link", "/files/round/a"):
                assert (await ask(client, target))[::2] == (200, b"secret"), target

    run(loop, test())


def test_a_file_that_may_not_be_read(arm, loop, folder):
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    make(folder / "a").chmod(0)
    assert asked(arm, loop, folder, "/files/a")[0] == 404


def test_a_folder_that_is_replaced(arm, loop, folder):
    """As by a deployment: the next request gets what is there then."""
    make(folder / "a", b"old")
    other = folder.parent / "new"
    make(other / "a", b"new")

    async def test():
        async with serving_files(arm, folder) as server, server.client() as client:
            assert (await ask(client, "/files/a"))[2] == b"old"
            folder.rename(folder.parent / "old")
            assert (await ask(client, "/files/a"))[0] == 404
            other.rename(folder)
            assert (await ask(client, "/files/a"))[2] == b"new"

    run(loop, test())


# -- Attacks ----------------------------------------------------------------------------------------------------------

PARTS = st.sampled_from(
    [
        *(
            "",
            ".",
            "..",
            "in",
            "a",
            "link",
            "secret",
            "public",
            ".hidden",
            "%2e",
            "%2e%2e",
            "%2f",
            "..%2f",
            "%00",
            "%5c",
        ),
        *("index.html", "%2e%2e%2fsecret", "%252e%252e", "a%00", "..;", "~", "\\", "..\\", "%c0%af", "%ff", "files"),
    ]
)
TARGETS = st.sampled_from(
    ["..", "../secret", "in", "in/a", "../..", ".", "/", "absolute", "../public/in", "in/../..", ".hidden"]
)


class AttackMachine(RuleBasedStateMachine):
    """Asks for all kinds of paths while names inside of the folder come to mean something else.

    Files that may be served begin with "inside", and no others do.
    """

    arm = folder = loop = None

    def __init__(self):
        super().__init__()
        root = self.root = self.folder / f"run{len(os.listdir(self.folder))}"
        self.public = root / "public"
        make(root / "secret", b"outside")
        make(root / "in" / "a", b"outside")
        make(root / "a", b"outside")
        make(root / "index.html", b"outside")
        for name in ("a", "index.html", "in/a", "in/index.html"):
            make(self.public / name, b"inside " + name.encode())
        make(self.public / ".hidden", b"hidden")
        self.stack = contextlib.AsyncExitStack()
        run(self.loop, self.start())

    async def start(self):
        server = await self.stack.enter_async_context(serving_files(self.arm, self.public))
        self.client = await self.stack.enter_async_context(server.client())

    def teardown(self):
        run(self.loop, self.stack.aclose())

    @rule(
        parts=st.lists(PARTS, max_size=6),
        coding=st.sampled_from(["", "br"]),
        prefix=st.sampled_from(["/files/", "/files"]),
    )
    def get(self, parts, coding, prefix):
        status, _, body = run(self.loop, ask(self.client, prefix + "/".join(parts), f"accept-encoding: {coding}"))
        if status == 200:
            assert body.startswith((b"inside", b"application")), (parts, body)
        else:
            assert status in (301, 404)

    @rule(
        name=st.sampled_from(["link", "in/link", "in/a.br", "a.br", "in", "in/b"]), to=TARGETS, absolute=st.booleans()
    )
    def link(self, name, to, absolute):
        """Let a name lead elsewhere."""
        path = self.public / name
        with contextlib.suppress(OSError):
            if path.is_dir() and not path.is_symlink():
                path.rename(self.public / "was")
            temporary = self.root / "temporary"
            temporary.symlink_to(self.root / to if absolute else to)
            temporary.rename(path)

    @rule()
    def restore(self):
        with contextlib.suppress(OSError):
            (self.public / "in").unlink()
        with contextlib.suppress(OSError):
            (self.public / "was").rename(self.public / "in")


@pytest.mark.parametrize("seed", range(3))
def test_attacks(arm, loop, folder, seed):
    machine = type("Attack", (AttackMachine,), {"arm": arm, "folder": folder, "loop": loop})
    settings = hypothesis.settings(
        max_examples=15,
        stateful_step_count=30,
        deadline=None,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    run_state_machine_as_test(hypothesis.seed(seed)(machine), settings=settings)


def test_names_that_change_all_the_time(arm, loop, folder):
    """A thread exchanges a folder and a link that leads out, while clients ask for a file in it."""
    make(folder / "in" / "a", b"inside")
    make(folder.parent / "other" / "a", b"outside")
    ended = []

    def exchange():
        while not ended:
            (folder / "in").rename(folder / "was")
            (folder / "in").symlink_to("../other")
            (folder / "in").unlink()
            (folder / "was").rename(folder / "in")

    async def test():
        statuses = set()
        async with serving_files(arm, folder) as server, server.client() as client:
            for _ in range(300):
                status, _, body = await ask(client, "/files/in/a")
                assert (status, body) in ((200, b"inside"), (404, b"Not Found"))
                statuses.add(status)
        assert statuses <= {200, 404}

    thread = support.BackgroundThread(exchange)
    try:
        run(loop, test())
    finally:
        ended.append(True)
        thread.result()


# -- Files that change ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("secured", ["plain", "tls"])
@pytest.mark.parametrize("change", ["shrink", "rewrite", "grow"])
def test_a_file_that_changes_while_it_is_sent(arm, loop, folder, contexts, errors, secured, change):
    """The client learns that it has not got all of it. Nobody waits for a time: the rest is more than all buffers take."""
    size = 40 << 20
    path = folder / "a"
    path.write_bytes(bytes(size))
    os.utime(path, (MTIME, MTIME))

    async def test():
        contexts_used = contexts if secured == "tls" else None
        server = serving_files(arm, folder, kind=FileServer)
        server.contexts = contexts_used
        async with server, server.client() as client:
            client.write(b"GET /files/a HTTP/1.1\r\nhost: a\r\n\r\n")
            head = await client.reader.readuntil(b"\r\n\r\n")
            assert b"content-length: %d\r\n" % size in head
            if change == "shrink":
                os.truncate(path, 30)
            else:
                with path.open("r+b") as file:
                    file.seek(0 if change == "rewrite" else size)
                    file.write(b"x")
            body = await client.rest()
            assert len(body) < size

    run(loop, test())
    assert errors() == ["/files/a has changed while it was sent. Its client gets an incomplete response."]


def test_a_file_that_is_replaced_while_it_is_sent(arm, loop, folder):
    """The old one is sent to its end."""
    path = make(folder / "a", LARGE * 4)

    async def test():
        async with serving_files(arm, folder) as server, server.client() as client:
            client.write(b"GET /files/a HTTP/1.1\r\nhost: a\r\n\r\n")
            await client.reader.readuntil(b"\r\n\r\n")
            make(folder / "b", SMALL).rename(path)
            assert await client.reader.readexactly(4 * len(LARGE)) == 4 * LARGE
            assert (await ask(client, "/files/a"))[2] == SMALL

    run(loop, test())


def test_a_small_file_that_changes_all_the_time(arm, loop, folder, monkeypatch):
    """It is looked for again, and never sent in a mixture."""
    make(folder / "a")
    read_all, reads = _static.OpenFile.read_all, []

    async def read_and_change(file):
        reads.append(file)
        if len(reads) != 2:
            os.utime(folder / "a", ns=(MTIME + len(reads), MTIME + len(reads)))
        return await read_all(file)

    monkeypatch.setattr(_static.OpenFile, "read_all", read_and_change)
    assert asked(arm, loop, folder, "/files/a")[::2] == (200, SMALL)
    assert len(reads) == 2
    status, fields, _ = asked(arm, loop, folder, "/files/a")
    assert (status, fields["retry-after"]) == (503, "1")


def test_a_client_that_leaves(arm, loop, folder, errors):
    make(folder / "a", bytes(40 << 20))

    async def test():
        async with serving_files(arm, folder) as server, server.client() as client:
            client.write(b"GET /files/a HTTP/1.1\r\nhost: a\r\n\r\n")
            await client.reader.readuntil(b"\r\n\r\n")
            client.reset()
            while server.service.active:
                await asyncio.sleep(0)

    run(loop, test())


# -- How it is looked for ---------------------------------------------------------------------------------------------


def cold(monkeypatch):
    """Let nothing be in the kernel's directory cache; return the calls."""
    calls, open_beneath = [], _static._core._open_beneath

    def open_cold(folder, path, is_cached):
        calls.append((path, is_cached))
        if is_cached:
            raise BlockingIOError
        return open_beneath(folder, path, is_cached)

    monkeypatch.setattr(_static._core, "_open_beneath", open_cold)
    return calls


def test_what_is_not_in_memory_is_looked_for_in_a_thread(arm, loop, folder, monkeypatch):
    make(folder / "a.gz", b"as gzip")
    make(folder / "a")
    calls = cold(monkeypatch)

    async def test():
        async with serving_files(arm, folder) as server, server.client() as client:
            calls.clear()
            assert (await ask(client, "/files/a", "accept-encoding: gzip"))[2] == b"as gzip"
            assert calls == [(b"a", True), (b"a", False), (b"a.br", False), (b"a.zst", False), (b"a.gz", False)]
            assert (await ask(client, "/files/b"))[0] == 404
        await asyncio.get_running_loop().shutdown_default_executor()

    run(loop, test())


def test_a_request_that_ends_while_its_file_is_looked_for(arm, loop, folder, monkeypatch):
    """The file that the thread has opened is closed."""
    make(folder / "a")
    cold(monkeypatch)
    find = _static._find_patiently
    begun, go_on = asyncio.Event(), support.threading.Event()

    async def test():
        running = asyncio.get_running_loop()

        def find_slowly(*arguments):
            running.call_soon_threadsafe(begun.set)
            assert go_on.wait(support.PATIENCE_S)
            return find(*arguments)

        monkeypatch.setattr(_static, "_find_patiently", find_slowly)
        async with serving_files(arm, folder) as server, server.client() as client:
            client.write(b"GET /files/a HTTP/1.1\r\nhost: a\r\n\r\n")
            await begun.wait()
            server.service.abort()
            await server.service.wait_closed()
            go_on.set()
        await asyncio.get_running_loop().shutdown_default_executor()
        while open_files(folder):
            await asyncio.sleep(0)

    run(loop, test())


# -- Other protocols --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [SMALL, LARGE], ids=["small", "large"])
def test_under_tls(arm, loop, folder, contexts, content):
    make(folder / "a", content)

    async def test():
        server = serving_files(arm, folder, kind=FileServer)
        server.contexts = contexts
        async with server, server.client() as client:
            assert (await ask(client, "/files/a"))[2] == content
            assert (await ask(client, "/files/a", "range: bytes=2-"))[2] == content[2:]

    run(loop, test())


@pytest.mark.parametrize("content", [SMALL, LARGE], ids=["small", "large"])
def test_over_http2(arm, loop, folder, content):
    make(folder / "a", content)

    async def test():
        async with serving_files(arm, folder, kind=http2.Server) as server, server.http2() as client:
            response = await client.get("/files/a")
            assert (response.status, response.body) == (200, content)
            response = await client.get("/files/a", ("range", f"bytes=2-{len(content) - 2}"))
            assert (response.status, response.body) == (206, content[2:-1])
            response = await client.get("/files/.a")
            assert (response.status, response.body) == (404, b"Not Found")
            assert (await client.get("/")).body == b"application"

    run(loop, test())


# -- The option -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("files", "is not of the form /PREFIX=DIR"),
        ("files=.", "is not of the form /PREFIX=DIR"),
        ("/files=", "is not of the form /PREFIX=DIR"),
        ("/a/../b=.", "has a prefix that no request can have"),
        ("/a%20b=.", "has a prefix that no request can have"),
        ("/a?=.", "has a prefix that no request can have"),
        ("//a=.", "has a prefix that no request can have"),
    ],
)
@pytest.mark.any_backend
def test_prefixes_that_are_none(arm, text, message):
    with pytest.raises(ValueError, match=message):
        Config("applications:app", static=[text])
    status, output = fails(arm, "applications:app", "--static", text)
    assert status == 2
    assert "Invalid value for '--static'" in output
    assert message in output


@pytest.mark.any_backend
def test_folders_that_are_none(arm, tmp_path):
    with pytest.raises(ValueError, match="the prefix /a has two directories: '.' and '..'"):
        Config("applications:app", static=["/a=.", "/a/=.."])
    with pytest.raises(StartupError, match="doesn't exist"):
        Config("applications:app", static="/a=/nowhere")
    status, output = fails(arm, "applications:app", "--static", "/a=/nowhere")
    assert status == 2
    assert "Directory '/nowhere' does not exist." in output


@pytest.mark.parametrize("code", ["ENOSYS", "EPERM"])
def test_a_kernel_that_cannot_look_names_up(monkeypatch, tmp_path, code):
    number = getattr(_static.errno, code)

    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(_static._core, "_open_beneath", refuse)
    with pytest.raises(StartupError, match=r"can't be used: openat2\(2\) is needed, which came with Linux 5.6"):
        _static.Folder("/a", tmp_path)


@pytest.mark.parametrize("workers", [1, 2])
def test_served(arm, folder, workers):
    make(folder / "a.txt")
    make(folder.parent / "other" / "b.txt", LARGE)
    options = ("--static", f"/files={folder}", "--static", "/o/=other", "--workers", workers)
    python_path = os.pathsep.join([os.path.dirname(__file__), os.environ.get("PYTHONPATH", "")])
    with serving(arm, "applications:app", *options, cwd=folder.parent, env={"PYTHONPATH": python_path}) as program:
        assert program.get("/files/a.txt")[::2] == (200, SMALL)
        assert program.get("/o/b.txt")[::2] == (200, LARGE)
        assert program.get("/o/none")[0] == 404
        assert program.get("/")[2] == b"hello"
        program.wait_for('"GET /files/a.txt HTTP/1.1" 200')


def test_from_the_environment(arm, folder):
    make(folder / "a")
    env = {"RINGLOOP_STATIC": f"/x={folder} /y={folder}"}
    with serving(arm, "applications:app", env=env) as program:
        assert program.get("/x/a")[2] == program.get("/y/a")[2] == SMALL
