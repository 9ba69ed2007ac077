"""The server's logging: uvicorn's loggers, records and lines, so that logging configurations keep working.

Loggers: "uvicorn.error" for the server, "uvicorn.access" for requests, "uvicorn.asgi" for traced messages, all below
"uvicorn". A record of the access log has five arguments: the client's "host:port", the method, the path with the query,
the version of HTTP, and the status. With `--access-log-format json` it also has an attribute for each of `FIELDS`.
"""

from __future__ import annotations

import atexit
import copy
import datetime
import http
import importlib.util
import logging
import logging.config
import os
import sys
from typing import IO, TYPE_CHECKING, Any, Literal, Union, cast

from .._http import client_and_path
from ._errors import StartupError
from ._importing import import_optional

if TYPE_CHECKING:
    import configparser
    from collections.abc import Callable

TRACE_LOG_LEVEL = 5

LOG_LEVELS: dict[str, int] = {
    "critical": logging.CRITICAL,
    "error": logging.ERROR,
    "warning": logging.WARNING,
    "info": logging.INFO,
    "debug": logging.DEBUG,
    "trace": TRACE_LOG_LEVEL,
}

_ACCESS_LINE = '%(levelprefix)s %(client_addr)s - "%(request_line)s" %(status_code)s'

LOGGING_CONFIG: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "default": {
            "()": "ringloop.http.logging.DefaultFormatter",
            "fmt": "%(levelprefix)s %(message)s",
            "use_colors": None,
        },
        "access": {"()": "ringloop.http.logging.AccessFormatter", "fmt": _ACCESS_LINE},
    },
    "handlers": {
        "default": {"formatter": "default", "class": "logging.StreamHandler", "stream": "ext://sys.stderr"},
        "access": {"formatter": "access", "class": "logging.StreamHandler", "stream": "ext://sys.stdout"},
    },
    "loggers": {
        "uvicorn": {"handlers": ["default"], "level": "INFO", "propagate": False},
        "uvicorn.error": {"level": "INFO"},
        "uvicorn.access": {"handlers": ["access"], "level": "INFO", "propagate": False},
    },
}
"""The logging configuration of a server that is given none."""

FIELDS = (
    *("client", "client_port", "method", "path", "query", "status", "http_version"),
    *("duration", "bytes", "request_id", "traceparent"),
)
"""The names of the fields that a line of JSON, and a record, have about a request."""

_ACCESS_FORMAT = '%s - "%s %s HTTP/%s" %d'

_JSON_FORMATTER = "ringloop.http.logging.JsonAccessFormatter"

LogConfig = Union[dict[str, Any], str, os.PathLike[str], "configparser.RawConfigParser", IO[Any]]

logger = logging.getLogger("uvicorn.error")
access_logger = logging.getLogger("uvicorn.access")
asgi_logger = logging.getLogger("uvicorn.asgi")

_COLORS = {"red": 31, "green": 32, "yellow": 33, "blue": 34, "cyan": 36, "bright_red": 91, "bright_white": 97}
_LEVEL_COLORS = {
    TRACE_LOG_LEVEL: "blue",
    logging.DEBUG: "cyan",
    logging.INFO: "green",
    logging.WARNING: "yellow",
    logging.ERROR: "red",
    logging.CRITICAL: "bright_red",
}
_PHRASES = {status.value: status.phrase for status in http.HTTPStatus}
_STATUS_COLORS = {1: "bright_white", 2: "green", 3: "yellow", 4: "red", 5: "bright_red"}


def style(text: str, color: str | None = None, *, bold: bool = False) -> str:
    """Return the text in the escape sequences of a terminal."""
    start = f"\033[{_COLORS[color]}m" if color else ""
    if bold:
        start += "\033[1m"
    return f"{start}{text}\033[0m"


class ColourizedFormatter(logging.Formatter):
    """Formats records with `%(levelprefix)s`: the level's name, a colon, and spaces up to a common width.

    With colours, a record's `color_message` takes the place of its message. `use_colors` None means: if stdout is a
    terminal.
    """

    def __init__(
        self,
        fmt: str | None = None,
        datefmt: str | None = None,
        style: Literal["%", "{", "$"] = "%",
        use_colors: bool | None = None,
    ) -> None:
        self.use_colors = self.should_use_colors() if use_colors is None else use_colors
        super().__init__(fmt=fmt, datefmt=datefmt, style=style)

    def should_use_colors(self) -> bool:
        """Return whether to use colours if the configuration doesn't say."""
        return _is_terminal(sys.stdout)

    def formatMessage(self, record: logging.LogRecord) -> str:
        flush_access_logs()
        return self._format_line(record)

    def _format_line(self, record: logging.LogRecord) -> str:
        record = _copy(record)
        if self.use_colors and "color_message" in record.__dict__:
            record.msg = record.__dict__["color_message"]
            record.__dict__["message"] = record.getMessage()
        record.__dict__["levelprefix"] = _level_prefix(record.levelname, record.levelno, self.use_colors)
        return super().formatMessage(record)


class DefaultFormatter(ColourizedFormatter):
    """Formats the server's own messages, for stderr."""

    def should_use_colors(self) -> bool:
        return _is_terminal(sys.stderr)


class AccessFormatter(ColourizedFormatter):
    """Formats records of the access log, with `%(client_addr)s`, `%(request_line)s` and `%(status_code)s`."""

    def _format_line(self, record: logging.LogRecord) -> str:
        client, method, path, version, status = cast("tuple[str, str, str, str, int]", record.args)
        request_line = f"{method} {path} HTTP/{version}"
        if self.use_colors:
            request_line = style(request_line, bold=True)
        record = _copy(record)
        record.__dict__.update(
            client_addr=client,
            request_line=request_line,
            status_code=_describe_status(int(status), self.use_colors),
        )
        return super()._format_line(record)


class JsonAccessFormatter(logging.Formatter):
    """Formats records of the access log as JSON, one object per line. Fields that a record doesn't have are null."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        # Few servers log JSON. Those that do should not import this when the first request is logged.
        import json  # noqa: F401

        super().__init__(*arguments, **options)

    def format(self, record: logging.LogRecord) -> str:
        """Return a line of ASCII."""
        import json

        time = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        line = {"time": time.isoformat(timespec="microseconds"), "level": record.levelname, "logger": record.name}
        return json.dumps(line | {name: getattr(record, name, None) for name in FIELDS})


def _is_terminal(stream: IO[str] | None) -> bool:
    """Return whether the stream is a terminal. Python's is None if its descriptor was closed at the start."""
    return stream is not None and stream.isatty()


def _describe_status(status: int, use_colors: bool) -> str:
    text = f"{status} {_PHRASES.get(status, '')}"
    color = _STATUS_COLORS.get(status // 100)
    return style(text, color) if use_colors and color else text


def _level_prefix(name: str, level: int, use_colors: bool) -> str:
    padding = " " * (8 - len(name))
    color = _LEVEL_COLORS.get(level) if use_colors else None
    return f"{style(name, color) if color else name}:{padding}"


def _copy(record: logging.LogRecord) -> logging.LogRecord:
    """Return a shallow copy; `copy.copy` takes longer than all the rest of formatting."""
    copied = logging.LogRecord.__new__(type(record))
    copied.__dict__ = record.__dict__.copy()
    return copied


def configure(
    log_config: LogConfig | None,
    *,
    level: str | int | None,
    use_colors: bool | None,
    access_log: bool,
    access_log_format: str = "text",
) -> None:
    """Set up logging: a configuration as a dict, as the path of a .json, .yaml or .ini file, or in ini format.

    With the format "json" our own configuration writes the access log as JSON; others decide how their records look.
    `level` applies to the loggers "uvicorn.error", "uvicorn.access" and "uvicorn.asgi". Without `access_log` the access
    log has no handlers. Raise ValueError for an unknown level, StartupError if a file can't be used, and for other
    configurations what `logging.config` raises.
    """
    if isinstance(level, str) and level.lower() not in LOG_LEVELS:
        raise ValueError(f"log_level must be a number or one of {', '.join(map(repr, LOG_LEVELS))}, not {level!r}")
    logging.addLevelName(TRACE_LOG_LEVEL, "TRACE")
    if log_config == LOGGING_CONFIG and access_log_format == "json":
        log_config = _json_config()
    if isinstance(log_config, str | os.PathLike):
        try:
            _apply(log_config, use_colors)
        except StartupError:
            raise
        except Exception as error:
            cause = "" if error.__cause__ is None else f": {error.__cause__}"
            kind = "" if isinstance(error, OSError | ValueError) else f"{type(error).__name__}: "
            text = f"The logging configuration '{os.fspath(log_config)}' can't be used: {kind}{error}{cause}"
            raise StartupError(text) from error
    elif log_config is not None:
        _apply(log_config, use_colors)
    if level is not None:
        number = LOG_LEVELS[level.lower()] if isinstance(level, str) else level
        for each in (logger, access_logger, asgi_logger):
            each.setLevel(number)
    if not access_log:
        access_logger.handlers = []
        access_logger.propagate = False


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("latin-1")


def _json_config() -> dict[str, Any]:
    config = copy.deepcopy(LOGGING_CONFIG)
    config["formatters"]["access"] = {"()": _JSON_FORMATTER}
    return config


def access_log(format: str = "text") -> AccessLog | FieldLog | None:
    """Return the access log; None if no handler would receive its records."""
    if not access_logger.hasHandlers() or not access_logger.isEnabledFor(logging.INFO):
        return None
    return FieldLog() if format == "json" else AccessLog()


class FieldLog:
    """The access log of a service whose records have fields. The service calls it when a response has ended."""

    def log_request(
        self, scope: dict[str, Any], status: int, duration: float | None, body_length: int | None, /
    ) -> None:
        """Log a request, with its status, the seconds that it took, and the length of the body, if they are known."""
        if not access_logger.isEnabledFor(logging.INFO):
            return
        client, path = client_and_path(scope)
        record = _access_record((client, scope["method"], path, scope["http_version"], status))
        host, port = scope.get("client") or (None, None)
        # The first of each name.
        headers = dict(reversed(scope["headers"]))
        record.__dict__.update(
            client=host,
            client_port=port,
            method=scope["method"],
            path=scope["path"],
            query=scope["query_string"].decode("latin-1"),
            status=status,
            http_version=scope["http_version"],
            duration=None if duration is None else round(duration, 6),
            bytes=body_length,
            request_id=_text(headers.get(b"x-request-id")),
            traceparent=_text(headers.get(b"traceparent")),
        )
        access_logger.handle(record)


class AccessLog:
    """The access log of a service.

    Calling it logs a request as `Logger.info` does, which takes longer than all the rest of a small request. If nobody
    but our own handler and formatter would see the record, the service formats the line itself, and writes the lines
    of a turn of the loop together. It asks in each turn, so a change of the logging configuration takes effect.
    """

    def __init__(self) -> None:
        self._handler: logging.StreamHandler[Any] | None = None
        self._flush: Callable[[], object] | None = None

    def __call__(self, client: str, method: str, path: str, version: str, status: int) -> None:
        # What `Logger.info` does, without searching the stack for its caller: there is none in Python.
        if access_logger.isEnabledFor(logging.INFO):
            access_logger.handle(_access_record((client, method, path, version, status)))

    def begin(self, flush: Callable[[], object]) -> bool | None:
        """Return whether lines that are formatted by the caller have colours; None if requests must be logged one by one.

        `flush` is called when they have to be written, unless the caller has written them by then.
        """
        handler = _untouched_handler()
        if handler is None:
            return None
        self._handler, self._flush = handler, flush
        _begun.add(self)
        return cast("AccessFormatter", handler.formatter).use_colors

    def layout(self, status: int, use_colors: bool) -> tuple[str, ...]:
        """Return the parts of a line around its client, method, path and version."""
        formatter = AccessFormatter(_ACCESS_LINE, use_colors=use_colors)
        line = formatter._format_line(_access_record(("\0", "\0", "\0", "\0", status)))
        return tuple((line + logging.StreamHandler.terminator).split("\0"))

    def write(self, lines: str) -> None:
        """Write lines as the handler writes one."""
        _begun.discard(self)
        handler = self._handler
        if handler is None or not lines:
            return
        handler.acquire()
        try:
            handler.stream.write(lines)
            handler.flush()
        except Exception:
            handler.handleError(_access_record((), lines.rstrip("\n")))
        finally:
            handler.release()


_begun: set[AccessLog] = set()


def flush_access_logs() -> None:
    """Write the lines that services still hold back, in order that what is logged next comes after them."""
    # Other threads may serve, and begin lines of their own.
    for log in _begun.copy():
        if (flush := log._flush) is not None:
            flush()


# The lines of the process's last turn; and a child process would write the same lines again.
atexit.register(flush_access_logs)
os.register_at_fork(before=flush_access_logs)


def _access_record(arguments: tuple[Any, ...], message: str = _ACCESS_FORMAT) -> logging.LogRecord:
    return access_logger.makeRecord(access_logger.name, logging.INFO, __file__, 0, message, arguments, None)


def _functions() -> tuple[Any, ...]:
    """Return the functions that a record of the access log passes. Tools that collect records replace some of them."""
    logger, handler, formatter = logging.Logger, logging.StreamHandler, logging.Formatter
    return (
        *(logger.isEnabledFor, logger.makeRecord, logger.handle, logger.filter, logger.callHandlers),
        *(handler.handle, handler.filter, handler.acquire, handler.release, handler.emit, handler.format),
        *(handler.flush, formatter.format, formatter.formatMessage, logging.LogRecord.__init__),
        *(AccessFormatter.format, AccessFormatter.formatMessage, AccessFormatter._format_line),
    )


_OWN_FUNCTIONS = _functions()
_OWN_MODULES = (vars(logging), globals())
_ARE_FUNCTIONS_OWN = all(getattr(each, "__globals__", None) in _OWN_MODULES for each in _OWN_FUNCTIONS)
_FUNCTION_NAMES = frozenset(each.__name__ for each in _OWN_FUNCTIONS) | {"terminator"}


def _untouched_handler() -> logging.StreamHandler[Any] | None:
    """Return the handler of the access log, if it is the only one and writes what ours does by default."""
    logger = access_logger
    if len(logger.handlers) != 1 or logger.filters or logger.propagate or not logger.isEnabledFor(logging.INFO):
        return None
    handler = logger.handlers[0]
    formatter = handler.formatter
    if type(handler) is not logging.StreamHandler or type(formatter) is not AccessFormatter:
        return None
    is_untouched = (
        type(logger) is logging.Logger
        and not handler.filters
        and handler.level <= logging.INFO
        and formatter._fmt == _ACCESS_LINE
        and type(formatter._style) is logging.PercentStyle
        and formatter._style._fmt == _ACCESS_LINE
        and handler.terminator == "\n"
        and _ARE_FUNCTIONS_OWN
        and _functions() == _OWN_FUNCTIONS
        and logging.getLogRecordFactory() is logging.LogRecord
        and logging.getLevelName(logging.INFO) == "INFO"
        and all(vars(each).keys().isdisjoint(_FUNCTION_NAMES) for each in (logger, handler, formatter))
    )
    return handler if is_untouched else None


def _apply(log_config: LogConfig, use_colors: bool | None) -> None:
    if isinstance(log_config, dict):
        _apply_dict(log_config, use_colors)
        return
    name = os.fspath(log_config) if isinstance(log_config, str | os.PathLike) else ""
    if name.endswith(".json"):
        import json

        with open(name, encoding="utf-8") as file:
            _apply_dict(json.load(file), None)
    elif name.endswith((".yaml", ".yml")):
        yaml = import_optional("yaml", "PyYAML", "--log-config with a YAML file")
        with open(name, encoding="utf-8") as file:
            _apply_dict(yaml.safe_load(file), None)
    else:
        _apply_ini(log_config)


def _apply_dict(log_config: dict[str, Any], use_colors: bool | None) -> None:
    if use_colors is not None or not _has_uvicorn():
        log_config = copy.copy(log_config)
        log_config["formatters"] = {
            name: _adapt(name, formatter, use_colors) for name, formatter in log_config.get("formatters", {}).items()
        }
    logging.config.dictConfig(log_config)


def _adapt(name: str, formatter: Any, use_colors: bool | None) -> Any:
    if not isinstance(formatter, dict):
        return formatter
    adapted = {key: _own_class(value) if key in ("()", "class") else value for key, value in formatter.items()}
    if use_colors is not None and name in ("default", "access") and adapted.get("()") != _JSON_FORMATTER:
        adapted["use_colors"] = use_colors
    return adapted


def _apply_ini(log_config: Any) -> None:
    import configparser  # Most configurations are dicts.

    if not isinstance(log_config, configparser.RawConfigParser):
        parser = configparser.ConfigParser()
        if hasattr(log_config, "readline"):
            parser.read_file(log_config)
        else:
            with open(log_config, encoding=None if sys.version_info < (3, 15) else "locale") as file:
                parser.read_file(file)
        log_config = parser
    if not _has_uvicorn():
        for section in log_config.sections():
            if section.startswith("formatter_") and log_config.has_option(section, "class"):
                own = _own_class(log_config.get(section, "class", raw=True))
                log_config.set(section, "class", own)
    logging.config.fileConfig(log_config, disable_existing_loggers=False)


def _has_uvicorn() -> bool:
    return importlib.util.find_spec("uvicorn") is not None


def _own_class(name: Any) -> Any:
    """Return our formatter instead of uvicorn's formatter of the same name, if uvicorn isn't installed."""
    prefix, own = "uvicorn.logging.", "ringloop.http.logging."
    if isinstance(name, str) and name.startswith(prefix) and not _has_uvicorn():
        return own + name.removeprefix(prefix)
    return name
