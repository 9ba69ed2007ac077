"""Settings of `ringloop serve` in a file, `--check`, and completion by a shell."""

import os
import shutil
import subprocess

import click
import pytest
from click.testing import CliRunner

from ringloop.http import _command_line
from ringloop.http._config_file import ConfigFile, ConfigFileError, find
from serve_process import RINGLOOP, fails, serving

TABLE = "[tool.ringloop.serve]\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Make an empty folder the current one, and no variable of the environment a setting."""
    for name in ("RINGLOOP_BACKEND", "WEB_CONCURRENCY", "FORWARDED_ALLOW_IPS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def invoke(monkeypatch):
    """Return a function that runs a command line: the result, and what `run` was called with."""

    def call(*arguments, **environment):
        given = {}
        monkeypatch.setattr(_command_line, "run", lambda app, **options: given.update(options, app=app))
        result = CliRunner().invoke(_command_line.command("ringloop"), arguments, env=environment)
        return result, given

    return call


def test_the_order_is_defaults_file_environment_command_line(folder, invoke):
    (folder / "pyproject.toml").write_text(
        TABLE + "app = 'a:b'\nport = 1\nroot-path = '/file'\nlimit_head = 5\nbacklog = 7\n"
    )
    _, given = invoke("--port", "3", RINGLOOP_PORT="2", UVICORN_ROOT_PATH="/environment", RINGLOOP_BACKLOG="6")
    assert (given["app"], given["port"], given["root_path"], given["backlog"]) == ("a:b", 3, "/environment", 6)
    assert (given["limit_head"], given["timeout_keep_alive"]) == (5, 5)
    assert invoke("c:d")[1]["app"] == "c:d"
    assert invoke(RINGLOOP_APP="e:f")[1]["app"] == "e:f"


def test_values_of_all_kinds(folder, invoke):
    (folder / "serve.toml").write_text(
        "app = 'a:b'\nworkers = 2\ntimeout-head = 1.5\ntimeout-body = 3\naccess-log = false\nreload = true\n"
        "http2 = false\nws-per-message-deflate = false\nssl-cert-reqs = 2\nlog-level = 'debug'\nbackend = 'epoll'\n"
        "headers = ['X-A: b', 'X-C: d:e']\nreload-includes = ['*.a']\nreload-dirs = ['.']\nmetrics = '/metrics'\n"
        "[log-config]\nversion = 1\n"
    )
    result, given = invoke("--config", "serve.toml")
    assert result.exit_code == 0, result.output
    expected = {
        "app": "a:b", "workers": 2, "timeout_head": 1.5, "timeout_body": 3, "access_log": False, "reload": True,
        "http2": False, "ws_per_message_deflate": False, "ssl_cert_reqs": 2, "log_level": "debug", "backend": "epoll",
        "headers": [("X-A", "b"), ("X-C", "d:e")], "reload_includes": ["*.a"], "reload_dirs": ["."],
        "metrics": "/metrics", "log_config": {"version": 1},
    }  # fmt: skip
    assert {name: given[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("name", "variable", "value"),
    [
        ("backend", "RINGLOOP_BACKEND", "'epoll'"),
        ("workers", "WEB_CONCURRENCY", "2"),
        ("forwarded_allow_ips", "FORWARDED_ALLOW_IPS", "'*'"),
    ],
)
def test_other_variables_come_before_the_file(folder, invoke, monkeypatch, name, variable, value):
    """The server reads them where the option is not set."""
    (folder / "pyproject.toml").write_text(TABLE + f"{name} = {value}\n")
    assert invoke("a:b")[1][name] is not None
    monkeypatch.setenv(variable, "1")
    assert invoke("a:b")[1][name] is None


def test_where_it_is_found(folder, invoke):
    application = folder / "application"
    application.mkdir()
    assert invoke("a:b")[1]["port"] == 8000
    (application / "pyproject.toml").write_text(TABLE + "port = 2\n")
    assert invoke("a:b")[1]["port"] == 8000
    assert invoke("a:b", "--app-dir", "application")[1]["port"] == 2
    assert invoke("a:b", RINGLOOP_APP_DIR="application")[1]["port"] == 2
    # One without the table, and one that is wrong, are none of our business.
    for text in ("[project]\ndependencies = ['ringloop']\n", "[ringloop\n"):
        (folder / "pyproject.toml").write_text(text)
        assert invoke("a:b", "--app-dir", "application")[1]["port"] == 2
    (folder / "pyproject.toml").write_text(TABLE + "port = 1\n")
    assert invoke("a:b", "--app-dir", "application")[1]["port"] == 1
    assert invoke("a:b", "--config", "application/pyproject.toml")[1]["port"] == 2
    assert invoke("a:b", RINGLOOP_CONFIG="application/pyproject.toml")[1]["port"] == 2
    (folder / "own.toml").write_text("port = 3\n")
    assert invoke("a:b", "--config", "own.toml")[1]["port"] == 3
    assert find([]) is None


def test_the_directory_may_be_in_the_file(folder, invoke):
    (folder / "pyproject.toml").write_text(TABLE + "app-dir = '.'\n")
    assert invoke("a:b")[1]["app_dir"] == "."


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\nprot = 1\n", "FILE:3: there is no option 'prot'. Did you mean 'port'?"),
        ("reload-dir = ['.']\n", "FILE:2: there is no option 'reload-dir'. Did you mean 'reload-dirs'?"),
        ("zzz = 1\n", "FILE:2: there is no option 'zzz'."),
        ("host = 'a'\nport = '8000'\n", "FILE:3: port must be a whole number from 0 to 65535, not '8000'"),
        ("port = 65536\n", "FILE:2: port must be a whole number from 0 to 65535, not 65536"),
        ("port = true\n", "FILE:2: port must be a whole number from 0 to 65535, not True"),
        ("host = 1\n", "FILE:2: host must be a string, not 1"),
        ("access-log = 'no'\n", "FILE:2: access-log must be true or false, not 'no'"),
        ("access-log = 1\n", "FILE:2: access-log must be true or false, not 1"),
        ("timeout-head = -1\n", "FILE:2: timeout-head must be a number of seconds from 0, up to 1000000000, not -1"),
        ("timeout-head = nan\n", "FILE:2: timeout-head must be a number of seconds from 0, up to 1000000000, not nan"),
        ("lifespan = 'yes'\n", "FILE:2: lifespan must be 'auto', 'on' or 'off', not 'yes'"),
        ("headers = 'a: b'\n", "FILE:2: headers must be a list of strings, not 'a: b'"),
        ("headers = [1]\n", "FILE:2: headers must be a list of strings, not [1]"),
        ("ssl-cert-reqs = 'x'\n", "FILE:2: ssl-cert-reqs must be a whole number from "),
        ("'port' = 1\n\"ports\" = 2\n", "FILE:3: there is no option 'ports'. Did you mean 'port'?"),
        ("limit-head = 1\nlimit_head = 2\n", "FILE:3: 'limit_head' and 'limit-head' are the same setting"),
        ("[tool.ringloop.serve.hots]\na = 1\n", "FILE:2: there is no option 'hots'. Did you mean 'host'?"),
        ("port =\n", "FILE:2: Invalid value"),
        ("headers = ['nonsense']\n", "Invalid value for 'headers' (FILE:2): 'nonsense' is not of the form Name:Value"),
        ("\nlog-level = 'loud'\n", "Invalid value for 'log-level' (FILE:3): 'loud' is not one of"),
        ("reload-dirs = ['/nowhere']\n", "Invalid value for 'reload-dirs' (FILE:2): Path '/nowhere' does not exist."),
        ("metrics = 'metrics'\n", "Invalid value for 'metrics' (FILE:2): the path must begin with a slash"),
        ("app-dir = '/nowhere'\n", "Invalid value for 'app-dir' (FILE:2): Directory '/nowhere' does not exist."),
    ],
)
def test_a_mistake_is_refused_with_its_line(folder, invoke, text, message):
    path = "pyproject.toml"
    (folder / "pyproject.toml").write_text(TABLE + text)
    result, given = invoke("a:b")
    assert result.exit_code == 2, result.output
    assert result.output.splitlines()[-1].startswith("Error: " + message.replace("FILE", path))
    assert not given
    # Help is there all the same.
    assert invoke("--help")[0].exit_code == 0
    assert invoke("--version")[0].exit_code == 0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "FILE: No such file or directory"),
        (b"\xff", "FILE: not encoded in UTF-8: invalid start byte"),
        (b"a = 1\na = 2\n", "FILE:2: Cannot overwrite a value"),
        (b"port", "FILE: "),
    ],
)
def test_a_file_that_is_wrong(tmp_path, content, message):
    path = tmp_path / "serve.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigFileError) as caught:
        ConfigFile(str(path))
    assert str(caught.value).startswith(message.replace("FILE", str(path)).removesuffix(" "))


def test_a_table_that_is_none(tmp_path):
    path = tmp_path / "pyproject.toml"
    path.write_text("[tool.ringloop]\nserve = 1\n")
    with pytest.raises(ConfigFileError, match=r"must be a table"):
        ConfigFile(str(path))


@pytest.mark.ringloop_only
@pytest.mark.any_backend
def test_a_server_with_a_file(arm, tmp_path):
    (tmp_path / "pyproject.toml").write_text(TABLE + "app = 'applications:app'\nheaders = ['X-A: b']\nport = 1\n")
    with serving(arm, "--port", "0", cwd=tmp_path) as program:
        assert program.get("/")[1]["x-a"] == "b"


# -- Checking ---------------------------------------------------------------------------------------------------------


@pytest.mark.ringloop_only
@pytest.mark.any_backend
@pytest.mark.parametrize("options", [(), ("--workers", "2"), ("--factory",)])
def test_what_can_be_served_passes_the_check(arm, options):
    """It neither starts the application nor listens."""
    name = "make" if "--factory" in options else "app"
    with serving(arm, f"applications:{name}") as running:
        port = str(running.address[1])
        status, output = fails(arm, f"applications:{name}", "--check", "--port", port, *options)
    assert (status, output) == (0, f"applications:{name} can be served.\n")


@pytest.mark.ringloop_only
@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("arguments", "expected", "message"),
    [
        (("nowhere:app",), 3, 'Error loading ASGI app. Could not import module "nowhere".'),
        (("wrong:app",), 1, "No module named 'missing_thing'"),
        (("applications:make_with_arguments", "--factory"), 3, "Error loading ASGI app factory"),
        (("applications:app", "--ssl-certfile", "/nowhere"), 3, "TLS can't be set up: "),
        (("applications:app", "--config", "/nowhere"), 2, "/nowhere: No such file or directory"),
        (("applications:app", "--log-config", "/dev/null"), 3, "The logging configuration '/dev/null' can't be used"),
        (("applications:app", "--port", "x"), 2, "Invalid value for '--port'"),
    ],
)
def test_what_cannot_be_served_fails_the_check(arm, tmp_path, arguments, expected, message):
    (tmp_path / "wrong.py").write_text("import missing_thing\n")
    status, output = fails(arm, *arguments, "--check", cwd=tmp_path)
    assert status == expected
    assert message in output
    assert "can be served" not in output


# -- Completion -------------------------------------------------------------------------------------------------------


def complete(words, **environment):
    command = [*RINGLOOP]
    environment = {**os.environ, "_RINGLOOP_COMPLETE": "bash_complete", "COMP_WORDS": words, **environment}
    environment["COMP_CWORD"] = str(len(words.split()) - (not words.endswith(" ")))
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    assert not result.stderr
    return [line.partition(",")[2] for line in result.stdout.splitlines()]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("ringloop ser", ["serve"]),
        ("ringloop serve --por", ["--port"]),
        ("ringloop serve --lifespan o", ["on", "off"]),
        ("ringloop serve main:app --no-acc", ["--no-access-log"]),
        ("ringloop --vers", ["--version"]),
    ],
)
def test_a_shell_completes(words, expected):
    assert complete(words) == expected


def test_a_mistake_in_the_file_does_not_hinder_completion(folder):
    (folder / "pyproject.toml").write_text(TABLE + "prot = 1\n")
    assert complete("ringloop serve --por") == ["--port"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_for_a_shell(shell):
    if shell == "bash" and shutil.which("bash") is None:
        pytest.skip("bash is not installed")
    environment = {**os.environ, "_RINGLOOP_COMPLETE": f"{shell}_source"}
    result = subprocess.run(RINGLOOP, env=environment, capture_output=True, text=True, timeout=100)
    assert result.returncode == 0
    assert "_RINGLOOP_COMPLETE=" in result.stdout
    assert click.__name__ not in result.stderr
