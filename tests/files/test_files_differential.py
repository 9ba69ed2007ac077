"""Random operations on an asynchronous file and on a blocking one: equal results, exceptions, positions and contents."""

import asyncio
import io
import itertools
import os

import hypothesis
import hypothesis.strategies as st
import pytest

from ringloop import files
from support import examples

SETTINGS = hypothesis.settings(
    max_examples=examples(10),
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(hypothesis.HealthCheck),
)

SIZES = st.one_of(st.none(), st.integers(-1, 40), st.sampled_from([4095, 4096, 8192, 8193, 20000]))
OFFSETS = st.one_of(st.integers(0, 60), st.integers(-3, 3), st.sampled_from([4096, 8191, 20000]))
PIECE = st.sampled_from(
    [b"a", b"line\n", b"two\r\nlines\n", b"\r", "gr\u00fc\u00df\u20ac\U0001f600\n".encode(), b"x" * 5000, b"\n" * 9]
)
TEXT = st.sampled_from(["a", "line\n", "two\r\nlines\n", "\r", "grüß€😀\n", "x" * 5000, "ü" * 4097, "\n" * 9, "\r\n"])

# CPython's `read1` of a file that is written, too, reads before it writes what is buffered, which then is written behind
# what was read; so do all reads of text. Ours write first.
UNFLUSHED = ("read1", "readinto1", "peek")
UNFLUSHED_TEXT = ("read", "readline", "readlines", "next")

READS = [
    st.tuples(st.just("read"), st.tuples(SIZES)),
    st.tuples(st.just("readline"), st.tuples(st.one_of(st.just(-1), st.integers(0, 30)))),
    st.tuples(st.just("readlines"), st.tuples(st.one_of(st.none(), st.integers(0, 30)))),
    st.tuples(st.just("next"), st.just(())),
]
MOVES = [
    st.tuples(st.just("tell"), st.just(())),
    st.tuples(st.just("seek"), st.tuples(OFFSETS)),
    st.tuples(st.just("flush"), st.just(())),
    st.tuples(st.just("truncate"), st.just(())),
    st.tuples(st.just("truncate"), st.tuples(st.integers(0, 50))),
    st.tuples(st.sampled_from(["readable", "writable", "seekable", "isatty"]), st.just(())),
]
BINARY = st.lists(
    st.one_of(
        *READS,
        *MOVES,
        st.tuples(st.just("seek"), st.tuples(OFFSETS, st.sampled_from([0, 1, 2, 9]))),
        st.tuples(st.just("read1"), st.tuples(st.integers(-1, 9000))),
        st.tuples(st.just("readinto"), st.tuples(st.integers(0, 9000))),
        st.tuples(st.just("readinto1"), st.tuples(st.integers(0, 9000))),
        st.tuples(st.just("peek"), st.just(())),
        st.tuples(st.just("readall"), st.just(())),
        st.tuples(st.just("write"), st.tuples(PIECE)),
        st.tuples(st.just("write"), st.tuples(st.sampled_from(["text", 1, None]))),
        st.tuples(st.just("writelines"), st.tuples(st.lists(PIECE, max_size=3))),
        st.tuples(st.just("close"), st.just(())),
    ),
    max_size=14,
)
TEXTUAL = st.lists(
    st.one_of(
        *READS,
        *MOVES,
        st.tuples(st.just("seek"), st.tuples(st.just(0), st.sampled_from([0, 1, 2, 9]))),
        st.tuples(st.just("back"), st.tuples(st.integers(0, 5))),
        st.tuples(st.just("back"), st.tuples(st.integers(0, 5))),
        st.tuples(st.just("write"), st.tuples(TEXT)),
        st.tuples(st.just("write"), st.tuples(st.sampled_from([b"bytes", 1, None]))),
        st.tuples(st.just("writelines"), st.tuples(st.lists(TEXT, max_size=3))),
        st.tuples(st.just("newlines"), st.just(())),
        st.tuples(st.just("close"), st.just(())),
    ),
    max_size=14,
)


def outcome(call):
    """Return what a call returns, or its exception in a form that can be compared."""
    try:
        return call()
    except StopIteration:
        return "the end"
    except (OSError, ValueError, TypeError, AttributeError) as error:
        return type(error), getattr(error, "errno", None), str(error) if type(error) is not AttributeError else ""


def blocking_call(file, name, arguments, told):
    """Perform an operation on a blocking file."""
    if name == "next":
        # `next` of a text file switches `tell` off, which aiofiles' iteration doesn't.
        iter(file)
        line = file.readline()
        return line or "the end"
    if name == "newlines":
        return file.newlines
    if name == "back":
        return file.seek(told[arguments[0] % len(told)]) if told else None
    if name.startswith("readinto"):
        buffer = bytearray(arguments[0])
        return getattr(file, name)(buffer), buffer
    return getattr(file, name)(*arguments)


async def awaited_call(file, name, arguments, told):
    """Perform it on an asynchronous one."""
    if name == "next":
        try:
            return await anext(aiter(file))
        except StopAsyncIteration:
            return "the end"
    if name == "newlines":
        return file.newlines
    if name == "back":
        return await file.seek(told[arguments[0] % len(told)]) if told else None
    if name.startswith("readinto"):
        buffer = bytearray(arguments[0])
        return await getattr(file, name)(buffer), buffer
    result = getattr(file, name)(*arguments)
    return await result if asyncio.iscoroutine(result) else result


async def awaited_outcome(file, name, arguments, told):
    try:
        return await awaited_call(file, name, arguments, told)
    except (OSError, ValueError, TypeError, AttributeError) as error:
        return type(error), getattr(error, "errno", None), str(error) if type(error) is not AttributeError else ""


async def compare(folder, content, mode, options, operations):
    """Perform the same operations on both."""
    paths = [folder / "blocking", folder / "awaited"]
    for path in paths:
        path.unlink(missing_ok=True)
        if "x" not in mode:
            path.write_bytes(content)
    told = []
    with open(paths[0], mode, **options) as blocking:
        async with files.open(paths[1], mode, **options) as awaited:
            for step, (name, arguments) in enumerate(operations):
                if "+" in mode and name in (UNFLUSHED if "b" in mode else [*UNFLUSHED, *UNFLUSHED_TEXT]):
                    assert await awaited_outcome(awaited, "flush", (), told) == outcome(blocking.flush)
                expected = outcome(
                    lambda name=name, arguments=arguments: blocking_call(blocking, name, arguments, told)
                )
                actual = await awaited_outcome(awaited, name, arguments, told)
                assert actual == expected, (step, name, arguments)
                if name == "tell" and isinstance(expected, int):
                    told.append(expected)
                assert awaited.closed == blocking.closed
                if name in ("flush", "close", "truncate"):
                    assert paths[1].read_bytes() == paths[0].read_bytes()
    assert paths[1].read_bytes() == paths[0].read_bytes()


@pytest.fixture
def folder(tmp_path):
    return tmp_path


CONTENTS = st.lists(PIECE, max_size=8).map(b"".join)
MODES = ("r", "r+", "w", "w+", "a", "a+", "x", "x+")


@pytest.mark.many_cases(short=16)
@pytest.mark.examples
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("buffering", [-1, 0, 3])
def test_binary_files_do_what_blocking_ones_do(loop, folder, mode, buffering):
    @SETTINGS
    @hypothesis.example(b"", [("read", (None,)), ("read1", (None,)), ("read", ()), ("read1", ())])
    @hypothesis.given(CONTENTS, BINARY)
    def run(content, operations):
        loop.run_until_complete(compare(folder, content, f"{mode}b", {"buffering": buffering}, operations))

    run()


@pytest.mark.many_cases(short=24)
@pytest.mark.examples
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("encoding", "newline"),
    [("utf-8", None), ("utf-8", ""), ("utf-8", "\r\n"), ("utf-16", None), ("utf-8-sig", "\n"), ("latin-1", "\r")],
)
def test_text_files_do_what_blocking_ones_do(loop, folder, mode, encoding, newline):
    @SETTINGS
    @hypothesis.given(st.lists(TEXT, max_size=8).map("".join), TEXTUAL)
    def run(content, operations):
        options = {"encoding": encoding, "newline": newline}
        content = content.encode(encoding, "replace")
        loop.run_until_complete(compare(folder, content, mode, options, operations))

    run()


STATEFUL = ("utf-16", "utf-8-sig", "utf-7", "cp932", "gb18030", "iso2022_jp", "iso2022_kr", "hz")


@pytest.mark.many_cases(short=16)
@pytest.mark.examples
@pytest.mark.parametrize("newline", [None, "", "\n", "\r\n"])
@pytest.mark.parametrize("encoding", STATEFUL)
def test_positions_in_text_are_those_of_blocking_files(loop, folder, encoding, newline):
    letters = st.sampled_from(["a", "b\n", "\r", "\r\n", "\u6f22", "\u5b57" * 2000, "c" * 8191])
    reads = st.lists(st.one_of(st.none(), st.sampled_from([0, 1, 2, 7, 100, 5000])), min_size=1, max_size=5)
    options = {"encoding": encoding, "newline": newline, "errors": "replace"}
    path = folder / "file"

    async def compare_positions(sizes):
        with open(path, **options) as blocking, open(path, **options) as second:
            async with files.open(path, **options) as awaited, files.open(path, **options) as other:
                for size in sizes:
                    if size is None:
                        assert await awaited.readline() == blocking.readline()
                    else:
                        assert await awaited.read(size) == blocking.read(size)
                try:
                    told = blocking.tell()
                except OverflowError:
                    # A state that the decoder was in does not fit. That of ours may be another one.
                    return
                assert await awaited.tell() == told
                rest = blocking.read()
                assert await awaited.read() == rest
                # Each one's position is the other's.
                assert (second.seek(told), second.read()) == (told, rest)
                assert (await other.seek(told), await other.read()) == (told, rest)

    @SETTINGS
    @hypothesis.given(st.lists(letters, max_size=12).map("".join), reads)
    def run(content, sizes):
        path.write_bytes(content.encode(encoding, "ignore"))
        loop.run_until_complete(compare_positions(sizes))

    run()


def test_a_number_that_is_no_position_is_refused_as_by_blocking_files(loop, folder):
    path = folder / "file"
    path.write_text("some text")

    async def awaited(number):
        async with files.open(path) as file:
            await file.seek(number)

    for number in (-1, 1 << 63, 1 << 128, 1 << 168, 1 << 256):

        def blocking(number=number):
            with open(path) as file:
                file.seek(number)

        expected = error_of(blocking)
        assert expected is not None
        assert error_of(lambda number=number: loop.run_until_complete(awaited(number))) == expected, number


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "gb18030", "iso2022_jp"])
@pytest.mark.parametrize("newline", [None, ""])
def test_text_that_is_cut_after_a_read_keeps_what_blocking_files_keep(loop, folder, encoding, newline):
    paths = [folder / "blocking", folder / "awaited"]
    options = {"encoding": encoding, "newline": newline, "errors": "replace"}
    short, long = "line 1\r\nline 2\nline 3\n", "\u5b57\r\n" * 9000

    async def compare_lengths(content, size, written):
        for path in paths:
            path.write_bytes(content.encode(encoding))
        with open(paths[0], "r+", **options) as blocking:
            async with files.open(paths[1], "r+", **options) as awaited:
                assert await awaited.read(size) == blocking.read(size)
                if written:
                    assert await awaited.write(written) == blocking.write(written)
                assert await awaited.truncate() == blocking.truncate()
                assert paths[1].read_bytes() == paths[0].read_bytes()
                assert await awaited.tell() == blocking.tell()
                assert await awaited.read() == blocking.read()
        assert paths[1].read_bytes() == paths[0].read_bytes()

    for content in (short, long):
        for size in (0, 1, 8, 5000):
            for written in ("", "written"):
                loop.run_until_complete(compare_lengths(content, size, written))


@pytest.mark.examples
@pytest.mark.parametrize("errors", ["strict", "replace", "surrogateescape"])
@pytest.mark.parametrize("mode", ["r", "r+"])
def test_text_that_cannot_be_decoded_is_treated_as_by_blocking_files(loop, folder, mode, errors):
    @SETTINGS
    @hypothesis.given(st.lists(st.one_of(PIECE, st.binary(max_size=4)), max_size=8).map(b"".join), TEXTUAL)
    def run(content, operations):
        # What `tell` says after an error depends on how far the decoder came.
        operations = [each for each in operations if errors != "strict" or each[0] not in ("tell", "write", "truncate")]
        loop.run_until_complete(compare(folder, content, mode, {"encoding": "utf-8", "errors": errors}, operations))

    run()


def test_arguments_are_refused_as_open_refuses_them(loop, folder):
    path = folder / "file"
    path.write_text("content")
    folder.joinpath("locked").write_text("")
    arguments = [
        *itertools.product([path], ["", "rw", "rb+t", "q", "rr", "br", "+r", "U", "rx", "t"]),
        (path, "rb", -1, "utf-8"),
        (path, "rb", -1, None, "strict"),
        (path, "rb", -1, None, None, "\n"),
        (path, "r", 0),
        (path, "r", -1, "no such encoding"),
        (path, "r", -1, "utf-8", "no such handler"),
        (path, "r", -1, "utf-8", None, "bad"),
        (path, 1),
        (path, "r", "1"),
        (path, "x"),
        (path, "r", -1, None, None, None, False),
        (folder, "r"),
        (folder, "w"),
        (folder / "missing",),
        (folder / "missing" / "file", "w"),
        (folder / ("n" * 300),),
        (path / "below",),
        ("with\0null",),
        (None,),
        (1.5,),
        (-1,),
        (99999,),
        (b"missing",),
        (os.fsdecode(b"\xff missing"),),
    ]

    async def awaited(args):
        async with files.open(*args):
            pass

    for args in arguments:

        def blocking(args=args):
            with open(*args):
                pass

        expected = error_of(blocking)
        actual = error_of(lambda args=args: loop.run_until_complete(awaited(args)))
        assert actual == expected, args


@pytest.mark.parametrize(
    ("mode", "name", "argument"),
    [
        ("r+", "write", None),
        ("r+", "write", b"bytes"),
        ("r+", "writelines", [None]),
        ("r+", "seek", None),
        ("r+", "seek", 1.5),
        ("r+b", "write", None),
        ("r+b", "readinto", None),
        ("r+b", "readinto1", b"bytes"),
        ("r+b", "seek", 1.5),
    ],
)
def test_wrong_arguments_raise_what_they_raise_in_io(loop, tmp_path, mode, name, argument):
    path = tmp_path / "file"
    path.write_bytes(b"content\n")

    async def awaited():
        async with files.open(path, mode) as file:
            await getattr(file, name)(argument)

    def blocking():
        with open(path, mode) as file:
            getattr(file, name)(argument)

    expected = error_of(blocking)
    assert error_of(lambda: loop.run_until_complete(awaited())) == expected


def error_of(call):
    try:
        call()
    except Exception as error:
        return type(error), str(error), getattr(error, "filename", None), getattr(error, "errno", None)
    return None


def test_buffers_are_as_large_as_those_of_open(loop, folder):
    (folder / "file").write_bytes(b"x" * (io.DEFAULT_BUFFER_SIZE * 3))
    with open(folder / "file", "rb") as blocking:
        expected = len(blocking.peek())

    async def main():
        async with files.open(folder / "file", "rb") as file:
            return len(await file.peek())

    assert loop.run_until_complete(main()) == expected
