"""`ringloop-gunicorn`: gunicorn's command line and files of settings."""

import os
import re
import shlex
import sys

import pytest

import support
from ringloop.http import _gunicorn
from ringloop.http._gunicorn import SETTINGS, GunicornError, read_file, translate
from serve_process import RINGLOOP, serving

PAGE = support.REPOSITORY / "docs" / "migrating-gunicorn.md"
COMMAND = [*RINGLOOP, "gunicorn"]
MODULE = """\
import os, threading
def application(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [f"{os.environ.get('GREETING', 'hello')} {os.getpid()} {os.getcwd()}".encode()]
def make():
    return application
async def asgi(scope, receive, send):
    if scope["type"] == "lifespan":
        raise RuntimeError("no lifespan")
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"asgi"})
"""
USUAL = ["--timeout-graceful-shutdown", "30"]
PARENT = ["--workers-lifetime", "1000000000", "--timeout-worker-healthcheck", "30"]
IN_THREADS = "ringloop-gunicorn: views run in several threads of each worker; use --threads 1 to run one at a time\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Make a folder with the module `project` the current one, and no variable of the environment a setting."""
    for name in ("PORT", "GUNICORN_CMD_ARGS"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "project.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


@pytest.fixture
def words(folder, capsys):
    """Return a function that gives the words of `ringloop serve` for a command line, and what is written to standard error."""

    def call(line):
        with pytest.raises(SystemExit) as raised:
            _gunicorn.main([*shlex.split(line), "--print-config"], "ringloop-gunicorn")
        output, errors = capsys.readouterr()
        return (shlex.split(output.partition(" serve ")[2]) if raised.value.code == 0 else raised.value.code), errors

    return call


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("project.wsgi", [*USUAL, "--no-access-log", *PARENT, "--interface", "wsgi", "project.wsgi:application"]),
        ("a.wsgi --log-file -", [*USUAL, "--no-access-log", *PARENT, "--interface", "wsgi", "a.wsgi:application"]),
        (
            "app:app -w 4 --threads 8 --access-logfile -",
            ["--workers", "4", "--wsgi-threads", "8", *USUAL, *PARENT, "--interface", "wsgi", "app:app"],
        ),
        ("'app:make()'", [*USUAL, "--no-access-log", *PARENT, "--interface", "wsgi", "--factory", "app:make"]),
        ("a:b -k uvicorn.workers.UvicornWorker", [*USUAL, "--no-access-log", *PARENT, "a:b"]),
        ("a:b -k uvicorn_worker.UvicornWorker", [*USUAL, "--no-access-log", *PARENT, "a:b"]),
        ("a:b -k asgi", [*USUAL, "--no-access-log", *PARENT, "a:b"]),
        # Prefixes of options, as argparse has them.
        ("a:b -k asgi --thr 3", ["--wsgi-threads", "3", *USUAL, "--no-access-log", *PARENT, "a:b"]),
    ],
)
def test_command_lines(words, line, expected):
    found, errors = words(line)
    assert found == expected
    assert errors == (IN_THREADS if "wsgi" in found and "--wsgi-threads" not in found else "")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("-b 0.0.0.0:80", "--host 0.0.0.0 --port 80"),
        ("-b :80", "--host 0.0.0.0 --port 80"),
        ("-b localhost", "--host localhost --port 8000"),
        ("-b [::1]:80", "--host ::1 --port 80"),
        ("-b [::]:80", "--host '' --port 80"),
        ("-b 0.0.0.0:80 -b [::]:80", "--host '' --port 80"),
        ("-b unix:/run/a.sock", "--uds /run/a.sock"),
        ("-b unix:///run/a.sock", "--uds /run/a.sock"),
        ("-b fd://3", "--fd 3"),
        ("--timeout 90", "--timeout-worker-healthcheck 90"),
        ("--timeout 0", "--timeout-worker-healthcheck 1000000000"),
        ("--graceful-timeout 5", "--timeout-graceful-shutdown 5"),
        ("--keep-alive 0", "--timeout-keep-alive 0"),
        ("--max-requests 9 --max-requests-jitter 2", "--limit-max-requests 9"),
        ("--max-requests-jitter 2", "--limit-max-requests-jitter 2"),
        ("--log-level INFO", "--log-level info"),
        ("--log-level warn", "--log-level warning"),
        ("--access-logfile /dev/null", "--no-access-log"),
        ("--certfile a --keyfile b --ca-certs c", "--ssl-certfile a --ssl-keyfile b --ssl-ca-certs c"),
        ("--forwarded-allow-ips=*", "--forwarded-allow-ips '*'"),
        ("--reload --reload-extra-file a.html", "--reload --reload-include a.html"),
        ("--http-protocols h1", "--no-http2"),
        ("--check-config", "--check"),
    ],
)
def test_options(words, options, expected):
    found, _ = words(f"project {options}")
    assert f" {expected} " in f" {shlex.join(found)} "


def test_without_max_requests_there_is_no_limit(words):
    assert "--limit-max-requests" not in words("project --max-requests 0")[0]


def test_port_is_where_nothing_else_is_asked_for(words, monkeypatch):
    monkeypatch.setenv("PORT", "5000")
    assert "--host 0.0.0.0 --port 5000" in shlex.join(words("project")[0])
    assert "5000" not in words("project -b :6000")[0]
    monkeypatch.setenv("PORT", "http")
    assert "the environment variable PORT must be a whole number, not 'http'" in words("project")[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--daemon", "--daemon is not supported: let systemd or the container do this"),
        ("-u www", "--user is not supported: let systemd"),
        ("-b :1 -b :2", "--bind is given more than once: :1,:2. `ringloop serve` listens on one address"),
        ("-b :http", "the port in --bind :http must be a whole number, not 'http'"),
        ("-b [::1", "--bind [::1: use HOST:PORT, [IPV6]:PORT, unix:PATH or fd://NUMBER"),
        ("-k mine.Worker", "--worker-class mine.Worker is not supported: use sync, gthread, asgi or"),
        ("--access-logfile log", "--access-logfile log is not supported: use -, and redirect standard output"),
        ("--error-logfile log", "--error-logfile log is not supported: use -, and redirect standard error"),
        ("--proxy-protocol", "--proxy-protocol auto is not supported"),
        ("-e NAME", "--env NAME: use NAME=VALUE"),
        ("--chdir nowhere", "--chdir: there is no directory 'nowhere'"),
        ("-c nowhere.py", "nowhere.py: No such file or directory"),
        ("--workers x", "argument -w/--workers: invalid int value: 'x'"),
    ],
)
def test_what_is_refused(words, options, message):
    status, errors = words(f"project {options}")
    assert status == 2
    assert f": {message}" in errors


@pytest.mark.parametrize(
    ("name", "message"), [("a:b(1)", "has arguments"), ("a:b(", "is neither an attribute name nor a function call")]
)
def test_applications_that_are_refused(name, message):
    with pytest.raises(GunicornError, match=message):
        translate({"wsgi_app": name})


def test_the_command_line_that_is_shown_has_all_of_it(folder):
    settings = {"wsgi_app": "a", "chdir": "..", "raw_env": ["A=b c"], "pythonpath": "x,y"}
    shown = translate(settings).command_line()
    assert shown.startswith(f"env -C {folder.parent} 'A=b c' PYTHONPATH=x:y ringloop serve --")


def test_what_is_ignored_is_named_in_one_line(words):
    _, errors = words("project --threads 2 --preload -n name --worker-tmp-dir /dev/shm")
    names = "--preload, --worker-tmp-dir, --name"
    assert errors == f"ringloop-gunicorn: ignored, because `ringloop serve` has no such option: {names}\n"


def test_worker_classes_with_green_threads_are_told_about_threads(words):
    for name in ("gevent", "eventlet", "tornado"):
        assert "views run in threads, as many at a time as --threads says" in words(f"project -k {name}")[1]
    assert words("project -k gthread")[1] == IN_THREADS
    assert words("project -k sync --threads 1")[1] == ""


def test_a_reloader_is_the_parent_already(words):
    assert "--workers-lifetime" not in words("project --reload")[0]


def test_sockets_of_systemd_come_before_an_address():
    found = translate({"wsgi_app": "a", "bind": ["unix:/run/gunicorn.sock"]}, "5000", is_given_sockets=True)
    assert not {"--uds", "--port"} & set(found.words)


def test_defaults_that_a_file_repeats_ask_for_nothing():
    settings = {"wsgi_app": "a", "umask": 0, "logger_class": "gunicorn.glogging.Logger", "proxy_protocol": False}
    assert translate(settings).words == translate({"wsgi_app": "a"}).words


def test_all_that_is_refused_is_named_at_once():
    with pytest.raises(GunicornError) as raised:
        translate({"wsgi_app": "a", "daemon": True, "umask": 2, "on_exit": print})
    assert re.findall(r"(\S+) is not supported", str(raised.value)) == ["--daemon", "--umask", "'on_exit'"]


def test_the_order_is_file_environment_command_line(words, folder, monkeypatch):
    (folder / "gunicorn.conf.py").write_text(
        "import multiprocessing\nwsgi_app = 'a:b'\nworkers = 1 + 1\nthreads = 3\nbacklog = 4\nbind = [':1', ':1']\n"
        "accesslog = '-'\ndaemon = False\non_exit = None\nworker_class = 'gthread'\nraw_env = ['A=B']\n"
    )
    monkeypatch.setenv("GUNICORN_CMD_ARGS", "--threads 30 --backlog=40 ignored")
    found, errors = words("--backlog 400")
    assert errors == ""
    expected = "--backlog 400 --workers 2 --wsgi-threads 30 --host 0.0.0.0 --port 1"
    assert shlex.join(found).startswith(expected)
    assert found[-1] == "a:b"
    assert words("c:d")[0][-1] == "c:d"
    monkeypatch.setenv("GUNICORN_CMD_ARGS", "'")
    assert "GUNICORN_CMD_ARGS: No closing quotation" in words("project")[1]


def test_files_by_name_and_by_module(folder):
    (folder / "other_settings.py").write_text("workers = 7\nunknown = 1\n")
    assert read_file("file:other_settings.py") == {"workers": 7}
    sys.path.insert(0, str(folder))
    assert read_file("python:other_settings") == {"workers": 7}


def test_hooks_in_a_file_are_refused(words, folder):
    (folder / "gunicorn.conf.py").write_text("def post_fork(server, worker):\n    pass\n")
    status, errors = words("project")
    assert status == 2
    assert "the setting 'post_fork' is not supported: put the code into the application's module" in errors


def test_an_exception_in_a_file_is_shown_from_the_file_on(words, folder):
    (folder / "gunicorn.conf.py").write_text("workers = 1\nworkers = nothing\n")
    status, errors = words("project")
    assert status == 1
    assert errors.startswith('Traceback (most recent call last):\n  File "gunicorn.conf.py", line 2')


def test_the_page_has_each_option_that_is_translated_or_refused():
    page = set(re.findall(r"--[\w-]+", PAGE.read_text().partition("## Options")[2]))
    missing = [
        option.spellings
        for option in SETTINGS
        if option.spellings and not option.is_ignored and page.isdisjoint(option.spellings)
    ]
    assert not missing
    hooks = [
        option.name for option in SETTINGS if option.instead and not option.spellings and "dirty" not in option.name
    ]
    assert [name for name in hooks if f"`{name}`" not in PAGE.read_text()] == []


# -- Processes --------------------------------------------------------------------------------------------------------


def starting(arm, folder, *arguments, **env):
    removed = dict.fromkeys(("PORT", "GUNICORN_CMD_ARGS"), "")
    return serving(arm, command=[*COMMAND, *arguments], cwd=folder, env=removed | env)


def served(function):
    """Mark a test with a server, which is a process of its own, and above the loop."""
    return pytest.mark.ringloop_only(pytest.mark.any_backend(function))


@served
def test_a_server_with_the_port_of_the_environment(arm, folder):
    with starting(arm, folder, "project", "--preload", PORT="0") as program:
        assert program.address[0] == "0.0.0.0"
        assert program.get("/")[2].startswith(b"hello ")
        assert "ignored, because `ringloop serve` has no such option: --preload\n" in program.output
    assert "GET /" not in program.output


@served
def test_a_server_with_options_in_the_environment(arm, folder):
    (folder / "inner").mkdir()
    options = "--bind 127.0.0.1:0 --access-logfile - -e GREETING=bye --chdir inner"
    with starting(arm, folder, "project:make()", GUNICORN_CMD_ARGS=options) as program:
        greeting, _, directory = program.get("/")[2].decode().split()
        program.wait_for("GET /")
    assert (greeting, directory) == ("bye", os.path.realpath(folder / "inner"))


@served
def test_a_server_with_workers_and_a_file(arm, folder):
    (folder / "modules").mkdir()
    os.rename(folder / "project.py", folder / "modules" / "project.py")
    (folder / "gunicorn.conf.py").write_text(f"bind = 'unix:{folder}/socket'\nworkers = 2\npythonpath = 'modules'\n")
    with starting(arm, folder, "project") as program:
        program.wait_for(r"Application startup complete|Started server process", 2)
        assert program.get("/")[2].startswith(b"hello ")


@served
def test_a_server_for_asgi(arm, folder):
    arguments = ("project:asgi", "-k", "uvicorn.workers.UvicornWorker", "-b", "127.0.0.1:0")
    with starting(arm, folder, *arguments) as program:
        assert program.get("/")[2] == b"asgi"


@served
def test_the_only_worker_is_replaced_after_its_requests(arm, folder):
    with starting(arm, folder, "project", "-b", "127.0.0.1:0", "--max-requests", "1") as program:
        first = program.get_again("/")[2]
        program.wait_for("Finished server process")
        assert program.get_again("/")[2] != first


@served
def test_a_server_that_is_refused(arm, folder):
    with starting(arm, folder, "project", "--daemon") as program:
        assert program.wait() == 2
    assert program.output.count("\n") == 1
