"""Functions on paths, against the blocking originals: results, errors, audit events, cancellation, and without threads."""

import asyncio
import fcntl
import gc
import os
import pathlib
import socket
import stat
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import ringloop
import support
from ringloop import files

FIELDS = [name for name in dir(os.stat_result) if name.startswith("st_")]
LONG = "x" * 300


@pytest.fixture
def no_threads(loop, monkeypatch):
    """Fail on io_uring where something is done in a thread of the executor."""

    def refuse(*args):
        raise AssertionError(f"in a thread: {args}")

    if getattr(loop, "backend", None) == "io_uring":
        monkeypatch.setattr(loop, "run_in_executor", refuse)


@pytest.fixture
def tree(tmp_path):
    """Return a folder with one file of each kind."""
    (tmp_path / "file").write_bytes(b"content" * 1000)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "inner").touch()
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "dangling").symlink_to("nothing")
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / os.fsdecode(b"\xff surrogate")).touch()
    os.mkfifo(tmp_path / "fifo")
    os.link(tmp_path / "file", tmp_path / "second name")
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(1 << 40)
    for name, ns in {
        "old": -5_000_000_001,
        "ancient": -(10**9) * 2**31,
        "late": 2**33 * 10**9 + 999_999_999,
        "far": 15_032_385_535 * 10**9 + 1,
    }.items():
        (tmp_path / name).touch()
        os.utime(tmp_path / name, ns=(ns, ns + 1))
    with socket.socket(socket.AF_UNIX) as listener:
        # The folder's own path may be too long for a socket.
        before = os.open(".", os.O_RDONLY)
        os.chdir(tmp_path)
        try:
            listener.bind("socket")
        finally:
            os.fchdir(before)
            os.close(before)
    return tmp_path


def paths_of(folder):
    yield from folder.iterdir()
    yield from (folder, folder / "nothing", folder / "file" / "below", folder / LONG, pathlib.Path("/dev/null"))
    yield from (
        "",
        ".",
        "/",
        "/dev/tty",
        "/proc/self/stat",
        "/proc/self/exe",
        "/sys",
        f"{folder}/file/",
        f"{folder}/folder/",
    )
    yield from ("/proc/1/root/x", os.fsencode(folder / "link"), "/" + "y" * 5000)


def outcome(function, *args, **options):
    """Return what a call came to, in a form that can be compared."""
    try:
        return function(*args, **options)
    except Exception as error:
        details = (error.filename, error.filename2) if isinstance(error, OSError) else str(error)
        return type(error), error.args, details


async def awaited(function, *args, **options):
    """Return the same of a coroutine function."""
    try:
        return await function(*args, **options)
    except Exception as error:
        return outcome(raised, error)


def raised(error):
    raise error


def test_a_status_is_the_blocking_one_in_every_attribute(run, tree, no_threads):
    async def main():
        for path in paths_of(tree):
            for name, follow in (("stat", True), ("lstat", False), ("stat", False)):
                options = {} if follow or name == "lstat" else {"follow_symlinks": False}
                expected = outcome(getattr(os, name), path, **options)
                found = await awaited(getattr(files.os, name), path, **options)
                assert found == expected, path
                if isinstance(expected, os.stat_result):
                    assert type(found) is os.stat_result
                    for field in FIELDS:
                        ours, theirs = getattr(found, field), getattr(expected, field)
                        assert (ours, type(ours)) == (theirs, type(theirs)), (path, field)
                    assert repr(found) == repr(expected)

    run(main())


def test_questions_about_paths_are_answered_as_by_os_path(run, tree, no_threads):
    names = ("exists", "lexists", "isfile", "isdir", "islink", "getsize", "getmtime", "getatime", "getctime")

    async def main():
        for name in names:
            for path in paths_of(tree):
                expected = outcome(getattr(os.path, name), path)
                assert await awaited(getattr(files.os.path, name), path) == expected, (name, path)

    run(main())


def test_what_is_no_ordinary_path_is_left_to_the_blocking_function(run, tree):
    async def main():
        with open(tree / "file") as file:
            fd = file.fileno()
            assert await files.os.stat(fd) == os.stat(fd)
            assert await files.os.path.getsize(fd) == 7000
        folder = os.open(tree, os.O_RDONLY)
        try:
            assert await files.os.stat("file", dir_fd=folder) == os.stat("file", dir_fd=folder)
            await files.os.mkdir("made", dir_fd=folder)
            assert (tree / "made").is_dir()
        finally:
            os.close(folder)
        for name, *args in (
            ("stat", "nul\0byte"),
            ("stat", b"nul\0byte"),
            ("stat", "\ud800"),
            ("stat", None),
            ("stat", 1.5),
            ("stat",),
            ("stat", "a", "b"),
            ("rename", "a"),
            ("rename", "a", None),
            ("rename", "nul\0byte", "b"),
            ("mkdir", tree / "file", "mode"),
            ("mkdir", tree / "file", -1),
            ("remove", []),
            ("fsync", -1),
            ("fsync", "text"),
            ("fsync", 10**30),
        ):
            expected = outcome(getattr(os, name), *args)
            assert await awaited(getattr(files.os, name), *args) == expected, (name, args)
        for path in ("nul\0byte", "\ud800", None, 1.5, -1):
            for name in ("exists", "isfile", "getsize"):
                expected = outcome(getattr(os.path, name), path)
                assert await awaited(getattr(files.os.path, name), path) == expected, (name, path)

    run(main())


def test_changes_and_their_errors_are_those_of_the_blocking_functions(run, tmp_path, no_threads):
    """The same steps in two folders; one is for the blocking functions."""
    steps = (
        ("mkdir", "folder"),
        ("mkdir", "folder"),
        ("mkdir", "missing/folder"),
        ("mkdir", "private", 0o700),
        ("mkdir", "open", 0o1777),
        ("rename", "folder", "renamed"),
        ("rename", "folder", "renamed"),
        ("rename", "file", "renamed"),
        ("rename", "renamed", "file"),
        ("rename", "file", "missing/file"),
        ("rename", "renamed", "renamed/inner"),
        ("replace", "file", "other"),
        ("replace", "other", LONG),
        ("remove", "renamed"),
        ("remove", "nothing"),
        ("unlink", "other/below"),
        ("unlink", "link"),
        ("rmdir", "full"),
        ("rmdir", "other"),
        ("rmdir", "nothing"),
        ("rmdir", "renamed"),
        ("remove", "other"),
    )

    async def main():
        arms = tmp_path / "blocking", tmp_path / "awaited"
        for folder in arms:
            (folder / "full" / "inner").mkdir(parents=True)
            (folder / "file").write_text("content")
            (folder / "link").symlink_to("full")
        for name, *args in steps:
            found = []
            for folder, module in zip(arms, (os, files.os), strict=True):
                given = [folder / arg if isinstance(arg, str) else arg for arg in args]
                result = (
                    await awaited(module.__dict__[name], *given)
                    if module is files.os
                    else outcome(getattr(os, name), *given)
                )
                found.append(repr(result).replace(str(folder), "."))
            assert found[0] == found[1], (name, args)
            listings = [
                sorted((os.path.relpath(path, folder), path.lstat().st_mode) for path in folder.rglob("*"))
                for folder in arms
            ]
            assert listings[0] == listings[1], (name, args)

    run(main())


def test_umask_and_working_folder_count(run, tmp_path, monkeypatch, no_threads):
    monkeypatch.chdir(tmp_path)
    before = os.umask(0o027)
    try:
        run(files.os.mkdir("made"))
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(tmp_path / "made").st_mode) == 0o750
    assert run(files.os.path.isdir("made"))


def test_fsync_of_a_descriptor(run, tmp_path, no_threads):
    async def main():
        with open(tmp_path / "file", "wb", 0) as file:
            file.write(b"content")
            assert await files.os.fsync(file.fileno()) is None
            assert await files.os.fdatasync(file.fileno()) is None
        near, far = os.pipe()
        try:
            for function in ("fsync", "fdatasync"):
                assert await awaited(getattr(files.os, function), near) == outcome(getattr(os, function), near)
        finally:
            os.close(near)
            os.close(far)

    run(main())


def test_an_executor_of_the_caller_is_used(run, tree):
    used = []

    class Noted(ThreadPoolExecutor):
        def submit(self, *args, **options):
            used.append(args)
            return super().submit(*args, **options)

    async def main():
        with Noted(1) as executor:
            await files.os.stat(tree, executor=executor)
            await files.os.path.exists(tree, executor=executor, loop=asyncio.get_running_loop())
            async with ringloop.open(tree / "new", "w", executor=executor):
                pass
        assert len(used) == 3

    run(main())


def test_changes_are_audited_as_the_blocking_ones(run, tmp_path):
    seen = []
    active = True

    def hook(event, args):
        if active and event.startswith("os.") and str(tmp_path) in str(args[0]):
            seen.append((event, args))

    sys.addaudithook(hook)
    try:

        async def main():
            found = []
            for module in (os, files.os):
                for name, *args in (
                    ("mkdir", tmp_path / "folder"),
                    ("rename", tmp_path / "folder", str(tmp_path / "renamed")),
                    ("replace", tmp_path / "renamed", tmp_path / "folder"),
                    ("rmdir", os.fsencode(tmp_path / "folder")),
                    ("remove", tmp_path / "folder"),
                    ("unlink", str(tmp_path / "folder")),
                ):
                    function = module.__dict__[name]
                    await awaited(function, *args) if module is files.os else outcome(function, *args)
                found.append(seen[:])
                seen.clear()
            assert found[0] == found[1]
            assert len(found[0]) == 6

        run(main())
    finally:
        active = False


@pytest.mark.parametrize("mode", ["r", "r+b", "w", "wb", "a", "ab+", "x", "xb", "w+b"])
def test_open_gives_what_the_builtin_gives(run, tree, mode):
    """Files that exist and that don't, and what may not be opened."""

    def described(file):
        return os.fstat(file.fileno()).st_size, file.name, os.get_inheritable(file.fileno())

    def flags_of(file):
        return fcntl.fcntl(file.fileno(), fcntl.F_GETFL)

    def blocking(path):
        with open(path, mode) as file:
            return described(file), flags_of(file), file.tell()

    async def opened(path):
        async with ringloop.open(path, mode) as file:
            return described(file), flags_of(file), await file.tell()

    async def main():
        names = ("file", "new", "folder", "link", "dangling", "circle", "file/below", "missing/new", LONG, "socket")
        for name in names:
            found = []
            for call in (awaited(opened, tree / name), None):
                (tree / "file").write_bytes(b"content" * 1000)
                for created in ("new", "nothing"):
                    (tree / created).unlink(missing_ok=True)
                found.append(outcome(blocking, tree / name) if call is None else await call)
            assert found[0] == found[1], name
        assert await awaited(opened, "/dev/null") == outcome(blocking, "/dev/null")

    run(main())


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_files_are_created_without_a_thread(run, tmp_path, no_threads):
    async def main():
        for name, mode in (("file", "w"), ("file", "w"), ("file", "a"), ("exclusive", "x"), ("both", "w+")):
            kept.append(await ringloop.open(tmp_path / name, mode))
            assert (tmp_path / name).exists()

    # Closing them takes a thread.
    kept = []
    run(main())


def test_opening_a_fifo_waits_for_its_other_end(run, tree):
    async def main():
        opening = asyncio.ensure_future(ringloop.open(tree / "fifo", "rb", 0))
        await support.looks(10)
        assert not opening.done()
        async with ringloop.open(tree / "fifo", "wb", 0) as writer, await opening as reader:
            await writer.write(b"content")
            assert await reader.read(7) == b"content"

    run(main())


@pytest.mark.exact
def test_cancelled_calls_do_their_work_or_nothing_and_leave_no_descriptors(run, tmp_path):
    def open_files():
        return {name for _, name in support.open_descriptors() if name.startswith(str(tmp_path))}

    async def main():
        for turns in range(1, 5):
            for number in range(20):
                calls = [
                    files.os.stat(tmp_path),
                    files.os.mkdir(tmp_path / f"folder{turns}-{number}"),
                    ringloop.open(tmp_path / f"file{turns}-{number}", "wb"),
                    ringloop.open(tmp_path / f"file{turns}-{number}", "xb"),
                    files.os.rename(tmp_path / f"file{turns}-{number}", tmp_path / f"renamed{turns}-{number}"),
                ]
                tasks = [asyncio.ensure_future(as_coroutine(call)) for call in calls]
                for _ in range(turns):
                    await asyncio.sleep(0)
                for task in tasks:
                    task.cancel()
                for result in await asyncio.gather(*tasks, return_exceptions=True):
                    if hasattr(result, "close"):
                        await result.close()
                    else:
                        assert result is None or isinstance(result, (os.stat_result, OSError, asyncio.CancelledError))
        # Threads may still be opening files for calls that were cancelled.
        await asyncio.get_running_loop().shutdown_default_executor()
        deadline = time.monotonic() + support.PATIENCE_S
        while open_files() and time.monotonic() < deadline:
            gc.collect()
            await asyncio.sleep(0.01)
        assert open_files() == set()

    async def as_coroutine(call):
        return await call

    run(main())


def test_many_at_once(run, tree, no_threads):
    async def main():
        expected = os.stat(tree / "file")
        assert set(await asyncio.gather(*(files.os.stat(tree / "file") for _ in range(500)))) == {expected}
        await asyncio.gather(*(files.os.mkdir(tree / f"made{number}") for number in range(200)))
        assert sum(path.name.startswith("made") for path in tree.iterdir()) == 200

    run(main())


@pytest.mark.exact
@pytest.mark.ringloop_only
def test_a_loop_that_is_closed_with_calls_in_progress(arm, tmp_path):
    if arm != "io_uring":
        pytest.skip("a thread cannot hand what it opened to a loop that is closed: it is closed when it is collected")

    async def call(awaitable):
        return await awaitable

    async def main(count):
        tasks = []
        for number in range(count):
            tasks.append(asyncio.ensure_future(call(files.os.stat(tmp_path))))
            tasks.append(asyncio.ensure_future(call(ringloop.open(tmp_path / f"file{number}", "wb"))))
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    descriptors = support.open_descriptors()
    for count in range(20):
        loop = ringloop.new_event_loop(backend=arm)
        loop.run_until_complete(main(count))
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
    deadline = time.monotonic() + support.PATIENCE_S
    while support.open_descriptors() - descriptors and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.01)
    assert not support.open_descriptors() - descriptors
