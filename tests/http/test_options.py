"""The options of `ringloop serve`: uvicorn's are all there, and docs/serve.md has ours."""

import dataclasses
import inspect
import pathlib
import re

import click
import pytest
from click.testing import CliRunner

import ringloop
from ringloop.http import Config, _command_line
from ringloop.http._options import options_of
from support import load_tool

DOCUMENT = pathlib.Path(__file__).parents[2] / "docs" / "serve.md"
NOT_OURS = {"callback_notify", "timeout_notify"}


def options():
    command = _command_line.command("ringloop")
    return {parameter.name: parameter for parameter in command.params}


def names(parameters):
    return {name for parameter in parameters for name in (*parameter.opts, *parameter.secondary_opts)}


def test_uvicorns_command_line_is_taken():
    main = pytest.importorskip("uvicorn.main", reason="uvicorn is not installed").main
    ours = options()
    for theirs in main.params:
        mine = ours[theirs.name]
        if isinstance(theirs, click.Option) and theirs.name != "version":
            assert names([theirs]) <= names([mine]), theirs.name
            assert mine.is_flag == theirs.is_flag, theirs.name
            assert mine.multiple == theirs.multiple, theirs.name
            assert f"UVICORN_{theirs.name.upper()}" in mine.envvar
            assert f"RINGLOOP_{theirs.name.upper()}" in mine.envvar


def test_uvicorns_defaults_are_ours_but_for_two():
    main = pytest.importorskip("uvicorn.main", reason="uvicorn is not installed").main
    ours = options()
    different = {
        theirs.name
        for theirs in main.params
        if theirs.name != "version" and (ours[theirs.name].default or None) != (theirs.default or None)
    }
    assert different == {"http2", "timeout_graceful_shutdown"}


def test_uvicorns_configurations_are_taken():
    uvicorn = pytest.importorskip("uvicorn", reason="uvicorn is not installed")
    ours = {field.name for field in dataclasses.fields(Config)}
    theirs = set(inspect.signature(uvicorn.Config).parameters)
    assert theirs - ours == NOT_OURS
    positional = list(inspect.signature(Config).parameters)[:5]
    assert positional == list(inspect.signature(uvicorn.Config).parameters)[:5]


def test_each_option_is_a_setting():
    fields = {field.name for field in dataclasses.fields(Config)}
    without = {"app_dir", "check", "config", "version"}
    assert set(options()) - without <= fields
    only_in_python = {"ssl_context_factory", "install_signal_handlers"}
    assert fields - set(options()) == only_in_python


def test_the_document_has_each_option():
    text = DOCUMENT.read_text()
    assert load_tool("serve_options").with_table(text) == text, "run make serve-options"
    visible = [
        parameter
        for parameter in options().values()
        if isinstance(parameter, click.Option) and not parameter.hidden and parameter.name != "version"
    ]
    rows = [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| `--")]
    assert set(re.findall(r"--[a-z0-9-]+", "".join(rows))) == names(visible)


def test_the_document_names_each_default():
    lines = DOCUMENT.read_text().splitlines()
    for field, row in options_of(Config):
        if isinstance(field.default, int | float) and not isinstance(field.default, bool) and not row.hidden:
            (line,) = [line for line in lines if line.startswith(f"| `{row.spelling}` |")]
            assert f" | default {str(field.default + 0).removesuffix('.0')}. " in line


def test_the_help_has_groups():
    result = CliRunner().invoke(_command_line.command("ringloop"), ["--help"], prog_name="ringloop serve")
    assert result.exit_code == 0
    groups = re.findall(r"^(\w+):$", result.output, re.MULTILINE)
    assert groups == [
        "Listening", "Application", "Processes", "Reloading", "Logging", "Requests", "Limits", "WebSocket", "TLS",
        "Other",
    ]  # fmt: skip
    assert "--loop" not in result.output
    assert "\n  MODULE:ATTRIBUTE" not in result.output, "it is no option"
    assert "[default: CERT_NONE]" not in result.output, "the option takes a number"
    assert "over HTTP/1.1, HTTP/2 and WebSocket." in result.output
    assert result.output.endswith("  https://github.com/ringloop/ringloop/blob/main/docs/serve.md\n")


def test_what_the_command_line_hands_over(monkeypatch):
    given = {}
    monkeypatch.setattr(_command_line, "run", lambda app, **options: given.update(options, app=app))
    run = CliRunner().invoke
    command = _command_line.command("ringloop")
    assert run(command, ["a:b"]).exit_code == 0
    defaults = {field.name: field.default for field in dataclasses.fields(Config)}
    for name, value in given.items():
        if name not in ("app", "app_dir"):
            assert value == defaults[name] or (not value and not defaults[name]), name
    assert "log_config" not in given
    arguments = "a:b --timeout-head 0 --timeout-body 1.5 --header a:b --header c:d:e --reload-dir . --no-use-colors"
    assert run(command, arguments.split()).exit_code == 0
    assert (given["timeout_head"], given["timeout_body"]) == (0, 1.5)
    assert given["headers"] == [("a", "b"), ("c", "d:e")]
    assert given["reload_dirs"] == ["."]
    assert given["use_colors"] is False


HUGE = str(1 << 70)
NUMBERS = (
    *("backlog", "fd", "limit-body-ahead", "limit-concurrency", "limit-fields", "limit-head", "limit-http2-requests"),
    *("limit-max-requests", "limit-max-requests-jitter", "workers", "workers-max-rss", "ws-max-queue", "ws-max-size"),
    *("h11-max-incomplete-event-size", "port", "threads", "watchdog", "wsgi-queue", "wsgi-threads"),
)
TIMES = (
    *("reload-delay", "ssl-handshake-timeout", "ssl-shutdown-timeout", "timeout-body", "timeout-graceful-shutdown"),
    *("timeout-head", "timeout-keep-alive", "timeout-linger", "timeout-worker-healthcheck", "timeout-write"),
    *("workers-lifetime", "ws-ping-interval", "ws-ping-timeout"),
)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("header", "a b: c", "'a b: c' has characters that are not allowed in a header"),
        ("header", "a: b\nc: d", "'a: b\\nc: d' has characters that are not allowed in a header"),
        ("header", "a: \u20ac", "'a: \u20ac' has characters that are not allowed in a header"),
        ("header", "Content-Length: 1", "'Content-Length: 1' would give each response the same length"),
        ("backlog", str(1 << 31), "2147483648 is too large: the maximum is 2147483647."),
        ("fd", str(1 << 31), "2147483648 is too large: the maximum is 2147483647."),
        *((name, HUGE, f"{HUGE} is too large: the maximum is ") for name in NUMBERS),
        *(
            (name, text, f"{text} is not a number of seconds up to")
            for name in TIMES
            for text in ("inf", "nan", "1e300")
        ),
    ],
)
def test_what_no_server_can_use_is_a_mistake_on_the_command_line(monkeypatch, option, value, message):
    monkeypatch.setattr(_command_line, "run", None)
    result = CliRunner().invoke(_command_line.command("ringloop"), ["a:b", f"--{option}", value])
    assert result.exit_code == 2
    assert result.output.splitlines()[-1].startswith(f"Error: Invalid value for '--{option}': {message}")


def test_each_number_of_the_command_line_has_a_limit():
    types = click.types.IntParamType, click.types.FloatParamType
    parameters = [parameter for parameter in options().values() if isinstance(parameter.type, types)]
    without = {"ssl_cert_reqs", "ssl_version"}
    assert {parameter.name.replace("_", "-") for parameter in parameters if parameter.name not in without} == {
        *NUMBERS,
        *TIMES,
    }


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        *((name.replace("-", "_"), value, "a whole number from ") for name in NUMBERS for value in (-1, 1 << 70, "1")),
        *(
            (name.replace("-", "_"), value, "a number of seconds ")
            for name in TIMES
            for value in (-1, float("inf"), float("nan"), 1e300, "1")
        ),
        ("workers", 0, "a whole number from 1 to sys.maxsize"),
        ("limit_head", None, "a whole number from 1 to sys.maxsize"),
        ("port", 65536, "a whole number from 0 to 65535"),
        ("ssl_handshake_timeout", 0, "a number of seconds above 0, up to 1000000000"),
        ("timeout_head", -1, "a number of seconds from 0, up to 1000000000"),
        ("backend", "kqueue", "'auto', 'io_uring' or 'epoll'"),
        ("lifespan", "yes", "'auto', 'on' or 'off'"),
        ("interface", "cgi", "'auto', 'asgi3', 'asgi2' or 'wsgi'"),
    ],
)
def test_what_no_server_can_use_is_a_mistake_in_python(name, value, allowed):
    with pytest.raises(ValueError) as caught:
        Config("a:b", log_config=None, **{name: value})
    text = str(caught.value)
    assert text.startswith(f"{name} must be {allowed}")
    assert text.endswith(f", not {value!r}")


@pytest.mark.ringloop_only
@pytest.mark.any_backend
def test_the_native_server_reads_its_settings_by_name(loop):
    with pytest.raises(AttributeError, match="'object' object has no attribute 'root_path'"):
        ringloop._core.HttpService(loop, print, object())


def test_zero_means_no_limit_in_python_too():
    for name in ("limit_http2_requests", "timeout_head", "timeout_write", "ws_ping_interval"):
        assert getattr(Config(print, log_config=None, **{name: 0}), name) is None
    assert Config(print, log_config=None, timeout_graceful_shutdown=0).timeout_graceful_shutdown == 0


def test_headers_in_python_are_checked():
    pairs = (("X-A", "b"), ("x-c", "d"))
    assert Config(print, log_config=None, headers=iter(pairs)).headers == list(pairs)
    for header, text in (
        (("a", "b\nc: d"), r"headers: 'a: b\nc: d' has characters that are not allowed in a header"),
        (("Content-Length", "1"), "headers: 'Content-Length: 1' would give each response the same length"),
    ):
        with pytest.raises(ValueError) as caught:
            Config(print, log_config=None, headers=[header])
        assert str(caught.value) == text


def test_the_command_line_comes_before_the_environment(monkeypatch):
    given = {}
    monkeypatch.setattr(_command_line, "run", lambda app, **options: given.update(options, app=app))
    environment = {"UVICORN_PORT": "1", "UVICORN_ROOT_PATH": "/u", "RINGLOOP_ROOT_PATH": "/r", "UVICORN_HOST": "h"}
    environment |= {"UVICORN_TIMEOUT_HEAD": "7", "UVICORN_ACCESS_LOG": "0", "UVICORN_RELOAD_INCLUDES": "*.a *.b"}
    result = CliRunner().invoke(_command_line.command("ringloop"), ["a:b", "--port", "2"], env=environment)
    assert result.exit_code == 0, result.output
    assert (given["port"], given["root_path"], given["host"]) == (2, "/r", "h")
    assert given["timeout_head"] == 10, "uvicorn has no such option"
    assert given["access_log"] is False
    assert given["reload_includes"] == ["*.a", "*.b"]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("RINGLOOP_PORT", "abc", "'abc' is not a valid integer"),
        ("UVICORN_PORT", "abc", "'abc' is not a valid integer"),
        ("UVICORN_LOG_LEVEL", "loud", "'loud' is not one of 'critical', "),
        ("UVICORN_ACCESS_LOG", "perhaps", "'perhaps' is not a valid boolean"),
        ("UVICORN_HEADERS", "nonsense", "'nonsense' is not of the form Name:Value"),
        ("RINGLOOP_RELOAD_DIRS", "/nowhere", "Path '/nowhere' does not exist."),
        ("RINGLOOP_TIMEOUT_HEAD", "inf", "inf is not a number of seconds up to"),
        ("RINGLOOP_METRICS", "metrics", "the path must begin with a slash"),
    ],
)
def test_a_mistake_in_the_environment_names_the_variable(monkeypatch, name, value, message):
    monkeypatch.setattr(_command_line, "run", None)
    result = CliRunner().invoke(_command_line.command("ringloop"), ["a:b"], env={name: value})
    assert result.exit_code == 2
    assert result.output.splitlines()[-1].startswith(
        f"Error: Invalid value for the environment variable {name}: {message}"
    )


@pytest.mark.parametrize("head", ["RINGLOOP_", "UVICORN_"])
def test_directories_in_the_environment_are_separated_as_in_path(monkeypatch, tmp_path, head):
    """Their names may have spaces."""
    given = {}
    monkeypatch.setattr(_command_line, "run", lambda app, **options: given.update(options, app=app))
    directories = [str(tmp_path / "one two"), str(tmp_path)]
    (tmp_path / "one two").mkdir()
    environment = {f"{head}RELOAD_DIRS": ":".join(directories)}
    result = CliRunner().invoke(_command_line.command("ringloop"), ["a:b"], env=environment)
    assert result.exit_code == 0, result.output
    assert given["reload_dirs"] == directories


def test_options_of_reloading_without_reloading_are_reported(caplog):
    unset, no_string = "'reload' is not set", "the application must be an import string"
    with caplog.at_level("WARNING", "uvicorn.error"):
        for options, reason in (
            ({"reload_dirs": ["."]}, unset),
            ({"reload_includes": "*.a"}, unset),
            ({"reload": True, "reload_excludes": "*.a"}, no_string),
        ):
            caplog.clear()
            Config(print, log_config=None, **options)
            messages = [record.message for record in caplog.records]
            assert messages == [f"Current configuration will not reload: {reason}."], options
        caplog.clear()
        Config("a:b", log_config=None, reload=True, reload_dirs=["."])
        assert not caplog.records


@pytest.mark.parametrize("text, workers", [("", 1), ("0", 1), ("1", 1), ("3", 3)])
def test_the_number_of_workers_in_the_environment(monkeypatch, text, workers):
    monkeypatch.setenv("WEB_CONCURRENCY", text)
    assert Config(print, log_config=None).workers == workers
    assert Config(print, log_config=None, workers=2).workers == 2


@pytest.mark.parametrize("text", ["x", "-1", "1.5"])
def test_a_wrong_number_of_workers_in_the_environment(monkeypatch, text):
    monkeypatch.setenv("WEB_CONCURRENCY", text)
    message = f"the environment variable WEB_CONCURRENCY must be a number of processes, not '{text}'"
    with pytest.raises(ValueError, match=message):
        Config(print, log_config=None)
    result = CliRunner().invoke(_command_line.command("ringloop"), ["a:b"])
    assert (result.exit_code, result.output.splitlines()[-1]) == (2, f"Error: {message}")


def test_serve_is_run():
    assert ringloop.serve is ringloop.http.run
