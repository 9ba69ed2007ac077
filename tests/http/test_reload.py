"""`ringloop serve --reload`: a server that is started again when files change."""

import os
import re
import signal
import ssl
import time

import pytest

from ringloop.http._reload import FileFilter
from serve_process import FOLDER, begin, serving

APPLICATION = """
from applications import answer

async def app(scope, receive, send):
    assert scope["type"] == "http"
    if scope["path"] == "/begun":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass
    else:
        await answer(send, b"VERSION")
"""


class Source:
    """The module of an application in a folder that is watched."""

    def __init__(self, folder):
        self.folder = folder
        self.path = folder / "changing.py"
        self.version = 0

    def write(self, text=None):
        """Write another version of the application, or this text; return what it answers."""
        self.version += 1
        answer = f"version {self.version}"
        new = self.folder / "changing.new"
        # Python believes its cache if the size and the second are the same.
        new.write_text(APPLICATION.replace("VERSION", answer) + "#" * self.version if text is None else text)
        new.rename(self.path)
        return answer.encode()


@pytest.fixture
def source(tmp_path):
    pytest.importorskip("watchfiles", reason="watchfiles is not installed")
    return Source(tmp_path)


OPTIONS = ("--reload", "--reload-delay", "0.01", "--no-access-log")


def wait_for_answer(program, answer, count):
    """Wait for this many starts since the beginning, and for the answer of the last one."""
    program.wait_for("Application startup complete", count)
    while program.get_again("/")[2] != answer:
        time.sleep(0.02)


@pytest.mark.ringloop_only
@pytest.mark.any_backend
def test_changes_start_it_again(arm, source):
    answer = source.write()
    with serving(arm, "changing:app", *OPTIONS, cwd=source.folder) as program:
        wait_for_answer(program, answer, 1)
        assert f"Will watch for changes in these directories: ['{source.folder}']" in program.output
        for count in (2, 3):
            answer = source.write()
            wait_for_answer(program, answer, count)
        assert "WARNING:  WatchFiles detected changes in 'changing.py'. Reloading..." in program.output
        parent = program.process.pid
        assert f"INFO:     Started reloader process [{parent}] using WatchFiles" in program.output
        assert program.stop() == 0
        assert program.output.splitlines()[-1] == f"INFO:     Stopping reloader process [{parent}]"
        assert "Traceback" not in program.output


@pytest.mark.ringloop_only
@pytest.mark.any_backend
def test_a_mistake_waits_for_its_correction(arm, source):
    source.write("mistake\n")
    with serving(arm, "changing:app", *OPTIONS, cwd=source.folder) as program:
        program.wait_for("NameError: name 'mistake' is not defined")
        answer = source.write()
        wait_for_answer(program, answer, 1)
        source.write("another mistake\n")
        program.wait_for("SyntaxError")
        answer = source.write()
        wait_for_answer(program, answer, 2)
        assert program.stop(signal.SIGINT) == 0


@pytest.mark.ringloop_only
@pytest.mark.any_backend
def test_an_open_stream_does_not_hold_it_up(arm, source):
    answer = source.write()
    options = (*OPTIONS, "--timeout-graceful-shutdown", "1")
    with serving(arm, "changing:app", *options, cwd=source.folder) as program:
        wait_for_answer(program, answer, 1)
        with begin(program, "/begun"):
            answer = source.write()
            wait_for_answer(program, answer, 2)


@pytest.mark.ringloop_only
@pytest.mark.any_backend
def test_other_directories_and_patterns(arm, source, tmp_path_factory):
    answer = source.write()
    watched = tmp_path_factory.mktemp("watched")
    (watched / "ignored").mkdir()
    options = ("--reload-dir", watched, "--reload-include", "*.html", "--reload-exclude", str(watched / "ignored"))
    with serving(arm, "changing:app", *OPTIONS, *options, cwd=source.folder) as program:
        wait_for_answer(program, answer, 1)
        (watched / "ignored" / "a.py").write_text("")
        (watched / "a.txt").write_text("")
        (watched / "a.html").write_text("")
        program.wait_for("Application startup complete", 2)
        (changes,) = re.findall("detected changes in (.*). Reloading", program.output)
        assert changes == f"'{watched / 'a.html'}'"


@pytest.mark.ringloop_only
@pytest.mark.any_backend
def test_the_worker_ends_when_the_reloader_is_killed(arm, source):
    source.write()
    with serving(arm, "changing:app", *OPTIONS, cwd=source.folder) as program:
        program.wait_for("Application startup complete")
        program.process.kill()
        program.wait()  # Until nobody has its output open any more.
        assert "Finished server process" in program.output


def filter_of(where, directories=(), includes=(), excludes=()):
    return FileFilter(directories, includes, excludes, where)


def test_the_usual_filter(tmp_path):
    usual = filter_of(tmp_path)
    assert usual.directories == [tmp_path]
    names = {"a.py": True, "b/a.py": True, ".a.py": False, "~a.py": False, "a.pyc": False, "a.txt": False, "a": False}
    for name, matters in names.items():
        assert usual(tmp_path / name) is matters, name


def test_filters(tmp_path):
    for name in ("a/b", "c", ".hidden"):
        (tmp_path / name).mkdir(parents=True)
    assert filter_of(tmp_path, ["a", "a/b", "c"]).directories == [tmp_path / "a", tmp_path / "c"]
    assert filter_of(tmp_path, [str(tmp_path / "a")]).directories == [tmp_path / "a"]
    assert filter_of(tmp_path, ["nowhere"]).directories == [tmp_path]
    assert filter_of(tmp_path, ["a", "c"], excludes=["c"]).directories == [tmp_path / "a"]
    assert filter_of(tmp_path, ["a"], includes=["c", ".*"]).directories == [tmp_path / "a", tmp_path / "c"]
    assert filter_of(tmp_path, includes=["*.html"])(tmp_path / "a.html")
    assert not filter_of(tmp_path, excludes=["*.py"])(tmp_path / "a.py")
    assert filter_of(tmp_path, includes=[".*"])(tmp_path / ".env")
    assert not filter_of(tmp_path, excludes=["a"])(tmp_path / "a" / "b" / "c.py")
    assert not filter_of(tmp_path, excludes=["generated_*"])(tmp_path / "generated_x.py")


@pytest.mark.parametrize(
    ("includes", "excludes"),
    [([], []), (["*.html"], ["a"]), (["*.html", ".env"], ["*.py"]), ([], ["b_*"]), (["*"], []), ([".*"], ["c.*"])],
)
def test_what_matters_matters_to_uvicorn(tmp_path, monkeypatch, includes, excludes):
    watchfiles = pytest.importorskip("uvicorn.supervisors.watchfilesreload", reason="uvicorn is not installed")
    import uvicorn

    (tmp_path / "a").mkdir()
    monkeypatch.chdir(tmp_path)
    config = uvicorn.Config(
        "x:y", log_config=None, reload=True, reload_includes=list(includes), reload_excludes=list(excludes)
    )
    theirs, ours = watchfiles.FileFilter(config), filter_of(tmp_path, [], includes, excludes)
    for name in ("a.py", "b_1.py", "c.py", "d.html", "a/e.html", ".env", "x.pyc", "sub/y.py", "~z.py", ".swp"):
        path = tmp_path / name
        # Directories that are excluded hold for relative paths alone there.
        expected = theirs(path) and not ("a" in excludes and path.is_relative_to(tmp_path / "a"))
        assert ours(path) == expected, name
    assert set(ours.directories) == set(config.reload_dirs)


MISTAKES = {
    "syntax": ("def f(:\n", "SyntaxError: invalid syntax (changing.py, line 1)"),
    "import": ("import missing_thing\n", "ModuleNotFoundError: No module named 'missing_thing'"),
    "name": ("application = None\n", 'Error loading ASGI app. Attribute "app" not found in module "changing".'),
    "lifespan": (
        "async def app(scope, receive, send):\n    raise SystemExit('no database')\n",
        "SystemExit: no database",
    ),
    "exit": ("import os\nos._exit(7)\n", "The process ended with status 7."),
    "signal": ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n", "The process was ended by SIGKILL."),
}


@pytest.mark.ringloop_only
@pytest.mark.any_backend(matters=True)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_what_requests_get(arm, source, mistake):
    """From the start, and after a change; those that wait when it is noticed get it, too."""
    text, reason = MISTAKES[mistake]
    source.write(text)
    with serving(arm, "changing:app", *OPTIONS, cwd=source.folder) as program:
        for count in (1, 2):
            program.wait_for("Requests get 503 until files change: " + re.escape(reason), count)
            status, headers, body = program.get("/")
            assert (status, body.decode()) == (503, f"The application does not run:\n\n{reason}\n")
            assert headers["content-type"] == "text/plain; charset=utf-8"
            answer = source.write()
            wait_for_answer(program, answer, count)
            if count == 1:
                source.write(text + "#\n")
                while program.get_again("/")[0] != 503:
                    time.sleep(0.02)
        assert program.output.count("running on") == 1
        assert program.stop() == 0


@pytest.mark.ringloop_only
@pytest.mark.any_backend
def test_a_worker_that_is_killed_is_reported(arm, source):
    answer = source.write()
    with serving(arm, "changing:app", *OPTIONS, cwd=source.folder) as program:
        wait_for_answer(program, answer, 1)
        os.kill(int(program.wait_for(r"Started server process \[(\d+)\]")[1]), signal.SIGKILL)
        program.wait_for("Requests get 503 until files change: The process was ended by SIGKILL.")
        assert program.get("/")[0] == 503
        answer = source.write()
        wait_for_answer(program, answer, 2)


@pytest.mark.ringloop_only
@pytest.mark.any_backend
def test_a_mistake_is_told_under_tls_too(arm, source, tmp_path_factory):
    trustme = pytest.importorskip("trustme", reason="trustme is not installed")
    folder = tmp_path_factory.mktemp("certificate")
    authority = trustme.CA()
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(str(folder / "both.pem"))
    context = ssl.create_default_context()
    authority.configure_trust(context)
    source.write("mistake\n")
    options = (*OPTIONS, "--ssl-certfile", folder / "both.pem")
    with serving(arm, "changing:app", *options, cwd=source.folder) as program:
        program.wait_for("Requests get 503")
        status, _, body = program.get("/", context=context)
        assert (status, body.splitlines()[-1]) == (503, b"NameError: name 'mistake' is not defined")


@pytest.mark.ringloop_only
@pytest.mark.any_backend
@pytest.mark.parametrize(("error", "traceback"), [("OSError('too many files')", False), ("KeyError('a')", True)])
def test_an_error_of_watching_is_reported_at_once(arm, source, tmp_path_factory, error, traceback):
    folder = tmp_path_factory.mktemp("watching")
    (folder / "sitecustomize.py").write_text(
        f"import watchfiles\ndef watch(*_, **__):\n    yield set()\n    raise {error}\nwatchfiles.watch = watch\n"
    )
    answer = source.write()
    env = {"PYTHONPATH": f"{folder}:{FOLDER}"}
    with serving(arm, "changing:app", *OPTIONS, cwd=source.folder, env=env) as program:
        program.wait_for("ERROR:    Files are no longer watched: ")
        assert ("Traceback" in program.output) is traceback
        wait_for_answer(program, answer, 1)
