"""The lines of the log, and how logging is configured: as uvicorn's users expect it."""

import configparser
import importlib.util
import io
import json
import logging
import logging.config
import re
import sys

import pytest

from ringloop.http import Config
from ringloop.http import logging as http_logging
from ringloop.http._errors import StartupError

LOGGERS = ("uvicorn", "uvicorn.error", "uvicorn.access", "uvicorn.asgi")


@pytest.fixture(autouse=True)
def loggers_as_before():
    """Leave the process's logging as it was."""
    names = (None, *LOGGERS)
    before = [
        (logger.handlers[:], logger.level, logger.propagate, logger.disabled)
        for logger in map(logging.getLogger, names)
    ]
    yield
    for name, (handlers, level, propagate, disabled) in zip(names, before, strict=True):
        logger = logging.getLogger(name)
        logger.handlers[:], logger.propagate, logger.disabled = handlers, propagate, disabled
        logger.setLevel(level)


def app(scope, receive, send):
    raise AssertionError("nobody calls it")


def record(name="uvicorn.error", level=logging.INFO, message="hello %s", arguments=("you",), **extra):
    made = logging.LogRecord(name, level, __file__, 1, message, arguments, None)
    made.__dict__.update(extra)
    return made


@pytest.mark.parametrize("level", [5, 10, 20, 30, 40, 50, 25])
@pytest.mark.parametrize("colors", [True, False])
def test_lines_equal_uvicorns(level, colors):
    uvicorn = pytest.importorskip("uvicorn.logging", reason="uvicorn, the control, is not installed")
    logging.addLevelName(5, "TRACE")
    records = [record(level=level), record(level=level, color_message="HELLO %s")]
    for name, format in (("DefaultFormatter", "%(levelprefix)s %(message)s"), ("ColourizedFormatter", None)):
        ours = getattr(http_logging, name)(format, use_colors=colors)
        theirs = getattr(uvicorn, name)(format, use_colors=colors)
        for each in records:
            assert ours.format(each) == theirs.format(each)
            assert each.getMessage() == "hello you"


@pytest.mark.parametrize("status", [100, 200, 302, 404, 500, 299, 999])
@pytest.mark.parametrize("colors", [True, False])
def test_access_lines_equal_uvicorns(status, colors):
    uvicorn = pytest.importorskip("uvicorn.logging", reason="uvicorn, the control, is not installed")
    format = '%(levelprefix)s %(client_addr)s - "%(request_line)s" %(status_code)s'
    made = record(
        "uvicorn.access",
        message='%s - "%s %s HTTP/%s" %d',
        arguments=("127.0.0.1:80", "GET", "/a?b", "1.1", status),
    )
    ours = http_logging.AccessFormatter(format, use_colors=colors).format(made)
    if colors and status // 100 not in range(1, 6):
        # uvicorn's shows the number without the phrase.
        assert str(status) in ours
    else:
        assert ours == uvicorn.AccessFormatter(format, use_colors=colors).format(made)


def test_records_of_the_access_log_have_uvicorns_arguments():
    Config(app, log_config=None)
    records = []
    handler = logging.Handler()
    handler.emit = records.append
    logger = logging.getLogger("uvicorn.access")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    http_logging.access_log()("1.2.3.4:5", "GET", "/a?b", "1.1", 200)
    assert [(each.name, each.args) for each in records] == [
        ("uvicorn.access", ("1.2.3.4:5", "GET", "/a?b", "1.1", 200))
    ]
    assert records[0].getMessage() == '1.2.3.4:5 - "GET /a?b HTTP/1.1" 200'


def test_no_access_log_where_nobody_reads_it():
    logging.getLogger("uvicorn.access").handlers.clear()
    Config(app, access_log=False)
    assert http_logging.access_log() is None
    Config(app)
    assert http_logging.access_log() is not None
    Config(app, log_level="warning")
    assert http_logging.access_log() is None


def test_levels():
    for level, number in (("trace", 5), ("DEBUG", 10), ("critical", 50), (17, 17)):
        Config(app, log_level=level)
        assert {logging.getLogger(name).level for name in LOGGERS[1:]} == {number}
    assert logging.getLevelName(5) == "TRACE"


def test_colors_are_for_the_default_formatters_and_leave_the_configuration_alone():
    for colors in (True, False, None):
        Config(app, use_colors=colors)
        formatter = logging.getLogger("uvicorn").handlers[0].formatter
        assert formatter.use_colors is (colors if colors is not None else sys.stderr.isatty())
    assert http_logging.LOGGING_CONFIG["formatters"]["default"]["use_colors"] is None


CONFIGURATION = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"default": {"()": "uvicorn.logging.DefaultFormatter", "fmt": "mine %(levelprefix)s %(message)s"}},
    "handlers": {"default": {"formatter": "default", "class": "logging.StreamHandler"}},
    "loggers": {"uvicorn": {"handlers": ["default"], "level": "WARNING", "propagate": False}},
}

INI = """
[loggers]
keys=root,uvicorn

[handlers]
keys=default

[formatters]
keys=default

[logger_root]
handlers=

[logger_uvicorn]
qualname=uvicorn
handlers=default
level=WARNING

[handler_default]
class=StreamHandler
formatter=default
args=(sys.stderr,)

[formatter_default]
class=uvicorn.logging.DefaultFormatter
format=mine %(levelprefix)s %(message)s
"""


def configurations(tmp_path):
    """Yield the same configuration in each form that is taken, by name."""
    (tmp_path / "log.json").write_text(json.dumps(CONFIGURATION))
    (tmp_path / "log.yaml").write_text(json.dumps(CONFIGURATION))
    (tmp_path / "log.yml").write_text(json.dumps(CONFIGURATION))
    (tmp_path / "log.ini").write_text(INI)
    parser = configparser.RawConfigParser()
    parser.read_string(INI)
    yield "dict", CONFIGURATION
    yaml = ("log.yaml", "log.yml") if importlib.util.find_spec("yaml") else ()
    for name in ("log.json", *yaml, "log.ini"):
        yield name, str(tmp_path / name)
        yield f"{name} as a path", tmp_path / name
    yield "a parser", parser
    yield "a file", io.StringIO(INI)


@pytest.mark.parametrize("uvicorn", ["installed", "missing"])
def test_each_form_of_a_configuration(tmp_path, monkeypatch, uvicorn):
    """Also where it names uvicorn's formatters, and uvicorn is gone."""
    if uvicorn == "missing":
        monkeypatch.setitem(sys.modules, "uvicorn", None)
        monkeypatch.setitem(sys.modules, "uvicorn.logging", None)
        monkeypatch.setattr(http_logging, "_has_uvicorn", lambda: False)
    else:
        pytest.importorskip("uvicorn.logging", reason="uvicorn is not installed")
    for name, configuration in configurations(tmp_path):
        logging.getLogger("uvicorn").handlers.clear()
        Config(app, log_config=configuration)
        logger = logging.getLogger("uvicorn")
        assert logger.level == logging.WARNING, name
        formatter = logger.handlers[0].formatter
        home = "ringloop.http.logging" if uvicorn == "missing" else "uvicorn.logging"
        assert type(formatter).__module__ == home, name
        assert formatter.format(record()).startswith("mine "), name
    assert CONFIGURATION["formatters"]["default"]["()"] == "uvicorn.logging.DefaultFormatter"


def test_no_configuration_leaves_logging_alone():
    logging.getLogger("uvicorn").handlers.clear()
    Config(app, log_config=None)
    assert logging.getLogger("uvicorn").handlers == []


def test_a_configuration_that_is_wrong_is_the_users():
    with pytest.raises(ValueError, match="Unable to configure handler"):
        Config(app, log_config={"version": 1, "handlers": {"x": {"class": "nonsense.Handler"}}})
    with pytest.raises(ValueError, match="log_level must be a number or one of 'critical', .*, 'trace', not 'loud'"):
        Config(app, log_level="loud")


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("nowhere.json", None, "[Errno 2] No such file or directory: "),
        ("log.json", "", "Expecting value: line 1 column 1 (char 0)"),
        ("log.json", "[]", ""),
        ("log.json", '{"version": 2}', "Unsupported version: 2"),
        ("log.json", '{"version": 1, "handlers": {"x": {"class": "a.B"}}}', "Unable to configure handler 'x': "),
        ("log.ini", "", ""),
        ("log.ini", "[formatters]\n", ""),
        ("log.ini", "[broken", ""),
    ],
)
def test_a_file_that_is_wrong_is_named(tmp_path, name, content, text):
    path = tmp_path / name
    if content is not None:
        path.write_text(content)
    with pytest.raises(StartupError, match=re.escape(f"The logging configuration '{path}' can't be used: {text}")):
        Config(app, log_config=path)


def test_yaml_without_its_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(StartupError, match="--log-config with a YAML file needs PyYAML: pip install PyYAML"):
        Config(app, log_config=tmp_path / "log.yaml")
