"""`ringloop-gunicorn`: gunicorn's command line and configuration files, as settings of `ringloop serve`.

It translates gunicorn's words into those of `ringloop serve`, and calls it. What `ringloop serve` doesn't have is refused if
users would miss it, and otherwise ignored with a warning. docs/migrating-gunicorn.md has the same table for users.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import importlib
import os
import re
import shlex
import sys
from typing import TYPE_CHECKING, Any, NoReturn

import ringloop

from .._platform import DOCUMENTATION
from . import _command_line
from ._importing import calls_user, import_failures_shown
from ._options import LONGEST_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

NAME = "ringloop-gunicorn"

_PAGE = f"{DOCUMENTATION}/migrating-gunicorn.md"
_FILE = "gunicorn.conf.py"
_GRACEFUL_S = 30
_TIMEOUT_S = 30

_WSGI_WORKERS = ("sync", "gthread", "gevent", "gevent_wsgi", "gevent_pywsgi", "eventlet", "tornado")
_ASGI_WORKER = re.compile(r"asgi|gunicorn\.workers\.gasgi\.\w+|uvicorn(\.workers|_worker)\.\w+")
_WSGI_WORKER = re.compile(rf"(egg:gunicorn#)?({'|'.join(_WSGI_WORKERS)})|gunicorn\.workers\.\w+\.\w+")


class GunicornError(Exception):
    """gunicorn's words mean something that `ringloop serve` can't do. The message says what to do instead."""


@dataclasses.dataclass(frozen=True)
class Setting:
    """A setting of gunicorn: its name in a file, its spellings on the command line, and what becomes of it."""

    name: str
    spellings: tuple[str, ...]
    kind: str = "text"
    """text, number, flag or list."""
    serve: str | None = None
    """The option of `ringloop serve` that means the same."""
    instead: str | None = None
    """Why it is refused, and what to do instead."""
    default: Any = None
    """gunicorn's default, if a file may give it. It asks for nothing."""
    special: str | None = None
    """For the help: a method of `_Translation` translates it."""

    @property
    def is_ignored(self) -> bool:
        """Whether it is left out, with a warning."""
        return self.serve is None and self.instead is None and self.special is None


def _same(name: str, spelling: str, serve: str, kind: str = "text") -> Setting:
    return Setting(name, tuple(spelling.split()), kind, serve=serve)


def _refused(name: str, spelling: str, instead: str, kind: str = "text", default: Any = None) -> Setting:
    return Setting(name, tuple(spelling.split()), kind, instead=instead, default=default)


def _special(name: str, spelling: str, help: str, kind: str = "text") -> Setting:
    return Setting(name, tuple(spelling.split()), kind, special=help)


def _ignored(name: str, spelling: str = "", kind: str = "text") -> Setting:
    return Setting(name, tuple(spelling.split()), kind)


_SYSTEMD = "let systemd or the container do this"
_LOGS = "set RINGLOOP_LOG_CONFIG to a configuration of the loggers `uvicorn.error` and `uvicorn.access`"
_IN_WORKERS = "put the code into the application's module, which each worker imports"
_AT_EXIT = "use `atexit`"
_MIDDLEWARE = "use WSGI middleware"
_NOTHING = "`ringloop serve` has nothing like it"

# fmt: off
SETTINGS = (
    _special("config", "-c --config", f"file in Python with settings; default: {_FILE}, if there is one"),
    _special("bind", "-b --bind", "HOST:PORT, [IPV6]:PORT, unix:PATH or fd://NUMBER; default: 0.0.0.0:$PORT, or 127.0.0.1:8000", "list"),
    _same("backlog", "--backlog", "--backlog", "number"),
    _same("reuse_port", "--reuse-port", "--reuse-port", "flag"),
    _same("workers", "-w --workers", "--workers", "number"),
    _special("worker_class", "-k --worker-class", "sync, gthread and others: WSGI, with views in threads; asgi or a UvicornWorker: ASGI"),
    _same("threads", "--threads", "--wsgi-threads", "number"),
    _special("timeout", "-t --timeout", "--timeout-worker-healthcheck; it doesn't stop slow views", "number"),
    _special("graceful_timeout", "--graceful-timeout", f"--timeout-graceful-shutdown; default: {_GRACEFUL_S}", "number"),
    _same("keepalive", "--keep-alive", "--timeout-keep-alive", "number"),
    _special("max_requests", "--max-requests", "--limit-max-requests; 0: no limit", "number"),
    _same("max_requests_jitter", "--max-requests-jitter", "--limit-max-requests-jitter", "number"),
    _same("limit_request_fields", "--limit-request-fields", "--limit-fields", "number"),
    _same("reload", "--reload", "--reload", "flag"),
    _same("reload_extra_files", "--reload-extra-file", "--reload-include", "list"),
    _special("check_config", "--check-config", "--check", "flag"),
    _special("print_config", "--print-config", "show the command line of `ringloop serve` that means the same, and exit", "flag"),
    _special("chdir", "--chdir", "directory to change to, and to import from"),
    _special("pythonpath", "--pythonpath", "more directories to import from, with commas"),
    _special("raw_env", "-e --env", "NAME=VALUE: a variable of the environment", "list"),
    _same("forwarded_allow_ips", "--forwarded-allow-ips", "--forwarded-allow-ips"),
    _special("accesslog", "--access-logfile", "-: write the access log, to standard output"),
    _special("errorlog", "--error-logfile --log-file", "-: standard error, where the log always goes"),
    _special("loglevel", "--log-level", "--log-level"),
    _same("certfile", "--certfile", "--ssl-certfile"),
    _same("keyfile", "--keyfile", "--ssl-keyfile"),
    _same("ca_certs", "--ca-certs", "--ssl-ca-certs"),
    _same("cert_reqs", "--cert-reqs", "--ssl-cert-reqs", "number"),
    _same("ciphers", "--ciphers", "--ssl-ciphers"),
    _special("http_protocols", "--http-protocols", "h1 turns HTTP/2 off: --no-http2"),
    _same("asgi_lifespan", "--asgi-lifespan", "--lifespan"),
    _same("websocket_max_message_size", "--websocket-max-message-size", "--ws-max-size", "number"),
    _same("root_path", "--root-path", "--root-path"),

    _refused("daemon", "-D --daemon", f"{_SYSTEMD}: systemd runs it in the background", "flag"),
    _refused("user", "-u --user", f"{_SYSTEMD}: User="),
    _refused("group", "-g --group", f"{_SYSTEMD}: Group="),
    _refused("umask", "-m --umask", f"{_SYSTEMD}: UMask=", default=0),
    _refused("pidfile", "-p --pid", f"{_SYSTEMD}: systemd knows its processes"),
    _refused("logconfig", "--log-config", _LOGS),
    _refused("logconfig_json", "--log-config-json", _LOGS),
    _refused("logconfig_dict", "", _LOGS),
    _refused("logger_class", "--logger-class", _LOGS, default="gunicorn.glogging.Logger"),
    _refused("syslog", "--log-syslog", _LOGS, "flag"),
    _refused("statsd_host", "--statsd-host", "set RINGLOOP_METRICS=/metrics for metrics in Prometheus's format"),
    _refused("paste", "--paste --paster", "name a module that makes the application"),
    _special("proxy_protocol", "--proxy-protocol", "", "optional"),
    _special("protocol", "--protocol", ""),
    _special("header_map", "--header-map", ""),
    _refused("dirty_apps", "--dirty-app", _NOTHING, "list"),
    _refused("on_starting", "", _NOTHING),
    _refused("on_reload", "", _NOTHING),
    _refused("when_ready", "", "wait for `Ringloop running on` in the log"),
    _refused("pre_fork", "", _NOTHING),
    _refused("post_fork", "", _IN_WORKERS),
    _refused("post_worker_init", "", _IN_WORKERS),
    _refused("worker_int", "", _NOTHING),
    _refused("worker_abort", "", _NOTHING),
    _refused("pre_exec", "", _NOTHING),
    _refused("pre_request", "", _MIDDLEWARE),
    _refused("post_request", "", _MIDDLEWARE),
    _refused("child_exit", "", _NOTHING),
    _refused("worker_exit", "", _AT_EXIT),
    _refused("nworkers_changed", "", _NOTHING),
    _refused("on_exit", "", _AT_EXIT),
    _refused("ssl_context", "", "call `ringloop.serve` with `ssl_context_factory`"),
    _refused("on_dirty_starting", "", _NOTHING),
    _refused("dirty_post_fork", "", _NOTHING),
    _refused("dirty_worker_init", "", _NOTHING),
    _refused("dirty_worker_exit", "", _NOTHING),

    _ignored("worker_connections", "--worker-connections", "number"),
    _ignored("limit_request_line", "--limit-request-line", "number"),
    _ignored("limit_request_field_size", "--limit-request-field_size", "number"),
    _ignored("reload_engine", "--reload-engine"),
    _ignored("spew", "--spew", "flag"),
    _ignored("preload_app", "--preload", "flag"),
    _ignored("sendfile", "--no-sendfile", "flag"),
    _ignored("worker_tmp_dir", "--worker-tmp-dir"),
    _ignored("initgroups", "--initgroups", "flag"),
    _ignored("tmp_upload_dir"),
    _ignored("secure_scheme_headers"),
    _ignored("access_log_format", "--access-logformat"),
    _ignored("disable_redirect_access_to_syslog", "--disable-redirect-access-to-syslog", "flag"),
    _ignored("capture_output", "--capture-output", "flag"),
    _ignored("syslog_addr", "--log-syslog-to"),
    _ignored("syslog_prefix", "--log-syslog-prefix"),
    _ignored("syslog_facility", "--log-syslog-facility"),
    _ignored("enable_stdio_inheritance", "-R --enable-stdio-inheritance", "flag"),
    _ignored("dogstatsd_tags", "--dogstatsd-tags"),
    _ignored("statsd_prefix", "--statsd-prefix"),
    _ignored("enable_backlog_metric", "--enable-backlog-metric", "flag"),
    _ignored("proc_name", "-n --name"),
    _ignored("default_proc_name"),
    _ignored("proxy_allow_ips", "--proxy-allow-from"),
    _ignored("uwsgi_allow_ips", "--uwsgi-allow-from"),
    _ignored("ssl_version", "--ssl-version"),
    _ignored("suppress_ragged_eofs", "--suppress-ragged-eofs", "flag"),
    _ignored("do_handshake_on_connect", "--do-handshake-on-connect", "flag"),
    _ignored("http2_cleartext", "--http2-cleartext"),
    _ignored("http2_max_concurrent_streams", "--http2-max-concurrent-streams", "number"),
    _ignored("http2_initial_window_size", "--http2-initial-window-size", "number"),
    _ignored("http2_max_frame_size", "--http2-max-frame-size", "number"),
    _ignored("http2_max_header_list_size", "--http2-max-header-list-size", "number"),
    _ignored("raw_paste_global_conf", "--paste-global", "list"),
    _ignored("permit_obsolete_folding", "--permit-obsolete-folding", "flag"),
    _ignored("strip_header_spaces", "--strip-header-spaces", "flag"),
    _ignored("permit_unconventional_http_method", "--permit-unconventional-http-method", "flag"),
    _ignored("permit_unconventional_http_version", "--permit-unconventional-http-version", "flag"),
    _ignored("casefold_http_method", "--casefold-http-method", "flag"),
    _ignored("forwarder_headers", "--forwarder-headers"),
    _ignored("asgi_loop", "--asgi-loop"),
    _ignored("asgi_disconnect_grace_period", "--asgi-disconnect-grace-period", "number"),
    _ignored("http_parser", "--http-parser"),
    _ignored("dirty_workers", "--dirty-workers", "number"),
    _ignored("dirty_timeout", "--dirty-timeout", "number"),
    _ignored("dirty_threads", "--dirty-threads", "number"),
    _ignored("dirty_graceful_timeout", "--dirty-graceful-timeout", "number"),
    _ignored("control_socket", "--control-socket"),
    _ignored("control_socket_mode", "--control-socket-mode"),
    _ignored("control_socket_disable", "--no-control-socket", "flag"),
)
"""All settings of gunicorn 27.0, by what becomes of them."""
# fmt: on

_BY_NAME = {setting.name: setting for setting in SETTINGS}


@dataclasses.dataclass
class Translation:
    """The meaning of gunicorn's settings: the words of `ringloop serve`, and the steps before it is called."""

    words: list[str] = dataclasses.field(default_factory=list)
    directory: str | None = None
    paths: list[str] = dataclasses.field(default_factory=list)
    variables: dict[str, str] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)
    """Lines for the user."""

    def command_line(self) -> str:
        """Return all of this for a shell."""
        words = ["-C", self.directory] if self.directory is not None else []
        words += [f"{name}={value}" for name, value in self.variables.items()]
        words += [f"PYTHONPATH={os.pathsep.join(self.paths)}"] if self.paths else []
        return shlex.join([*(["env"] if words else []), *words, "ringloop", "serve", *self.words])


def translate(settings: Mapping[str, Any], port: str | None = None, *, is_given_sockets: bool = False) -> Translation:
    """Return what these settings mean; `wsgi_app` is the application. `port` is the environment's PORT.

    The names are those of a configuration file. systemd's sockets come before `bind` and PORT. Raise GunicornError.
    """
    given = {name: value for name, value in settings.items() if not _is_nothing(value)}
    if is_given_sockets:
        given.pop("bind", None)
        port = None
    found = Translation()
    ignored, refused = [], []
    for setting in SETTINGS:
        if setting.name not in given:
            continue
        value = given[setting.name]
        if setting.instead is not None and str(value) != str(setting.default):
            refused.append(f"{_spelling(setting)} is not supported: {setting.instead}")
        if setting.serve is not None:
            found.words += _words(setting.serve, setting.kind, value)
        elif setting.is_ignored:
            ignored.append(_spelling(setting))
    if refused:
        raise GunicornError("; ".join(refused) + f". See {_PAGE}")
    for name, method in _SPECIAL.items():
        if name in given:
            method(found, given[name])
    if "bind" not in given and port:
        found.words += ["--host", "0.0.0.0", "--port", str(_number("the environment variable PORT", port))]
    if "graceful_timeout" not in given:
        _graceful_timeout(found, _GRACEFUL_S)
    if "accesslog" not in given:
        found.words.append("--no-access-log")
    is_asgi = _ASGI_WORKER.fullmatch(str(given.get("worker_class"))) is not None
    if "reload" not in given:
        # With a lifetime there is a parent, as under gunicorn, which replaces workers and takes signals, even if there is only one.
        found.words += ["--workers-lifetime", str(LONGEST_S)]
    if "timeout" not in given:
        _timeout(found, _TIMEOUT_S)
    if not is_asgi:
        found.words += ["--interface", "wsgi"]
        if "threads" not in given:
            found.notes.append("views run in several threads of each worker; use --threads 1 to run one at a time")
        if "timeout" in given:
            found.notes.append("--timeout replaces a worker that hangs; it does not stop a slow view")
    if ignored:
        found.notes.append(f"ignored, because `ringloop serve` has no such option: {', '.join(ignored)}")
    found.words += _application(given.get("wsgi_app"))
    return found


def _is_nothing(value: Any) -> bool:
    """Return whether a value asks for nothing. 0 is a number."""
    return value is None or value is False or (isinstance(value, str | list | tuple | dict) and not value)


def _spelling(setting: Setting) -> str:
    return setting.spellings[-1] if setting.spellings else f"the setting {setting.name!r}"


def _words(option: str, kind: str, value: Any) -> list[str]:
    if kind == "flag":
        return [option]
    if kind == "number":
        return [option, str(_number(option, value))]
    values = _list(value) if kind == "list" else [",".join(_list(value))]
    return [word for one in values for word in (option, one)]


def _number(name: str, value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        raise GunicornError(f"{name} must be a whole number, not {value!r}") from None


def _list(value: Any) -> list[str]:
    return [str(one) for one in value] if isinstance(value, list | tuple) else [str(value)]


def _application(name: Any) -> list[str]:
    """Return the words for what gunicorn calls APP_MODULE. Without one, RINGLOOP_APP or pyproject.toml may have it."""
    if name is None:
        return []
    module, colon, attribute = str(name).partition(":")
    if not colon:
        return [f"{module}:application"]
    try:
        expression = ast.parse(attribute.strip(), mode="eval").body
    except SyntaxError:
        raise GunicornError(f"{attribute!r} in {name!r} is neither an attribute name nor a function call") from None
    if not isinstance(expression, ast.Call):
        return [str(name)]
    if expression.args or expression.keywords:
        raise GunicornError(f"{name!r} has arguments: write a function without arguments that makes this call")
    return ["--factory", f"{module}:{ast.unparse(expression.func)}"]


def _bind(found: Translation, value: Any) -> None:
    text = value if isinstance(value, str) else ",".join(_list(value))
    addresses = [_address(one.strip()) for one in text.split(",")]
    hosts, ports = {words[1] for words in addresses}, {words[-1] for words in addresses}
    if "::" in hosts and hosts <= {"::", "0.0.0.0"} and len(ports) == 1:
        # gunicorn's socket for "::" takes IPv4, too. The empty host means all addresses of both.
        found.words += ["--host", "", "--port", *ports]
    elif any(words != addresses[0] for words in addresses):
        raise GunicornError(f"--bind is given more than once: {text}. `ringloop serve` listens on one address")
    else:
        found.words += addresses[0]


def _address(text: str) -> list[str]:
    """Return the words for one address in gunicorn's format."""
    if text.startswith("unix:"):
        return ["--uds", text.removeprefix("unix:").removeprefix("//")]
    if text.startswith("fd://"):
        return ["--fd", str(_number("the descriptor in --bind fd://", text.removeprefix("fd://")))]
    matched = re.fullmatch(r"(?:tcp://)?(?:\[([^]]*)]|([^:[]*))(?::(.*))?", text)
    if matched is None:
        raise GunicornError(f"--bind {text}: use HOST:PORT, [IPV6]:PORT, unix:PATH or fd://NUMBER")
    six, host, port = matched.groups()
    number = _number(f"the port in --bind {text}", "8000" if port is None else port)
    return ["--host", six or (host or "0.0.0.0").lower(), "--port", str(number)]


def _worker_class(found: Translation, value: Any) -> None:
    if _ASGI_WORKER.fullmatch(str(value)):
        return
    if not _WSGI_WORKER.fullmatch(str(value)):
        known = "sync, gthread, asgi or uvicorn.workers.UvicornWorker"
        raise GunicornError(f"--worker-class {value} is not supported: use {known}. See {_PAGE}")
    if str(value).startswith(("gevent", "eventlet", "tornado")):
        found.notes.append(f"--worker-class {value}: views run in threads, as many at a time as --threads says")


def _timeout(found: Translation, value: Any) -> None:
    found.words += ["--timeout-worker-healthcheck", str(_number("--timeout", value) or LONGEST_S)]


def _graceful_timeout(found: Translation, value: Any) -> None:
    found.words += ["--timeout-graceful-shutdown", str(_number("--graceful-timeout", value))]


def _max_requests(found: Translation, value: Any) -> None:
    if number := _number("--max-requests", value):
        found.words += ["--limit-max-requests", str(number)]


def _access_log(found: Translation, value: Any) -> None:
    if value == os.devnull:
        found.words.append("--no-access-log")
    elif value not in ("-", "/dev/stdout"):
        raise GunicornError(
            f"--access-logfile {value} is not supported: use -, and redirect standard output, or {_LOGS}"
        )


def _error_log(found: Translation, value: Any) -> None:
    if value == "/dev/stdout":
        found.notes.append("--error-logfile /dev/stdout: the log goes to standard error")
    elif value not in ("-", "/dev/stderr"):
        raise GunicornError(f"--error-logfile {value} is not supported: use -, and redirect standard error, or {_LOGS}")


def _only(option: str, usual: tuple[str, ...]) -> Callable[[Translation, Any], None]:
    """Return what refuses all but these values, which ask for nothing."""

    def method(found: Translation, value: Any) -> None:
        if str(value).lower() not in usual:
            raise GunicornError(f"{option} {value} is not supported: {_NOTHING}. See {_PAGE}")

    return method


def _http_protocols(found: Translation, value: Any) -> None:
    if "h2" not in ",".join(_list(value)):
        found.words.append("--no-http2")


def _environment(found: Translation, value: Any) -> None:
    for text in _list(value):
        name, equals, content = text.partition("=")
        if not equals or not name:
            raise GunicornError(f"--env {text}: use NAME=VALUE")
        found.variables[name] = content


def _directory(found: Translation, value: Any) -> None:
    found.directory = os.path.abspath(os.path.expanduser(str(value)))
    if not os.path.isdir(found.directory):
        raise GunicornError(f"--chdir: there is no directory {str(value)!r}")


def _paths(found: Translation, value: Any) -> None:
    found.paths = str(value).split(",")


_SPECIAL: dict[str, Callable[[Translation, Any], None]] = {
    "bind": _bind,
    "worker_class": _worker_class,
    "timeout": _timeout,
    "graceful_timeout": _graceful_timeout,
    "max_requests": _max_requests,
    "accesslog": _access_log,
    "errorlog": _error_log,
    "loglevel": lambda found, value: found.words.extend(
        ["--log-level", {"warn": "warning"}.get(str(value).lower(), str(value).lower())]
    ),
    "http_protocols": _http_protocols,
    "raw_env": _environment,
    "chdir": _directory,
    "pythonpath": _paths,
    "check_config": lambda found, value: found.words.append("--check"),
    "proxy_protocol": _only("--proxy-protocol", ("off", "false")),
    "protocol": _only("--protocol", ("http",)),
    "header_map": _only("--header-map", ("drop",)),
}


def _parser(program: str) -> argparse.ArgumentParser:
    """Return gunicorn's command line. What isn't given is not in the result."""
    parser = argparse.ArgumentParser(
        prog=program,
        usage="%(prog)s [OPTIONS] [APP_MODULE]",
        description="Run `ringloop serve` with gunicorn's command line: APP_MODULE is MODULE, MODULE:ATTRIBUTE or "
        "'MODULE:FUNCTION()'; the attribute is `application` unless it is given.",
        epilog=f"Other options of gunicorn are ignored with a warning, or refused: {_PAGE}. Options of `ringloop serve` can "
        "be set by environment variables, such as RINGLOOP_HEALTH. GUNICORN_CMD_ARGS may have more options.",
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument("-v", "--version", action="version", version=f"{program} (ringloop {ringloop.__version__})")
    kinds: dict[str, dict[str, Any]] = {
        "flag": {"action": "store_true"},
        "list": {"action": "append"},
        "optional": {"nargs": "?", "const": "auto"},
        "number": {"type": int},
    }
    for setting in SETTINGS:
        if setting.spellings:
            help = setting.special or setting.serve or argparse.SUPPRESS
            more = dict(kinds.get(setting.kind, {}))
            if setting.kind != "flag":
                more["metavar"] = "N" if setting.kind == "number" else "VALUE"
            parser.add_argument(*setting.spellings, dest=setting.name, help=help, **more)
    parser.add_argument("wsgi_app", nargs="*", metavar="APP_MODULE", help=argparse.SUPPRESS)
    return parser


def _parse(parser: argparse.ArgumentParser, words: Iterable[str]) -> dict[str, Any]:
    settings = vars(parser.parse_args(list(words)))
    names = settings.pop("wsgi_app", [])
    return {**settings, **({"wsgi_app": names[0]} if names else {})}


def read_file(location: str) -> dict[str, Any]:
    """Run a configuration file, as gunicorn does, and return the settings in it. Raise GunicornError."""
    with import_failures_shown():
        if location.startswith("python:"):
            content = _import(location.removeprefix("python:"))
        else:
            path = location.removeprefix("file:")
            try:
                with open(path, "rb") as file:
                    source = file.read()
            except OSError as error:
                raise GunicornError(f"{path}: {error.strerror or error}") from None
            content = _run(path, source)
    return {name: value for name, value in content.items() if name in _BY_NAME or name == "wsgi_app"}


@calls_user
def _import(name: str) -> dict[str, Any]:
    return vars(importlib.import_module(name))


@calls_user
def _run(path: str, source: bytes) -> dict[str, Any]:
    content: dict[str, Any] = {"__name__": "__config__", "__file__": os.path.abspath(path)}
    exec(compile(source, path, "exec"), content)
    return content


def _read(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> dict[str, Any]:
    """Return the settings of the file, of GUNICORN_CMD_ARGS and of the command line; the last of them counts."""
    try:
        more = shlex.split(os.environ.get("GUNICORN_CMD_ARGS", ""))
    except ValueError as error:
        raise GunicornError(f"the environment variable GUNICORN_CMD_ARGS: {error}") from None
    given = _parse(parser, arguments)
    environment = _parse(parser, more)
    environment.pop("wsgi_app", None)  # gunicorn reads only options there
    settings = environment | given
    path = settings.get("config") or (_FILE if os.path.exists(_FILE) else None)
    return (read_file(path) if path else {}) | settings


def main(arguments: Sequence[str], program: str) -> NoReturn:
    """Run gunicorn's command line. Raise SystemExit: 2 for what `ringloop serve` can't do."""
    parser = _parser(program)
    # A file of settings may import modules beside it, as under gunicorn.
    sys.path.insert(0, os.getcwd())
    try:
        settings = _read(parser, arguments)
        is_given_sockets = os.environ.get("LISTEN_PID") == str(os.getpid())
        found = translate(settings, os.environ.get("PORT"), is_given_sockets=is_given_sockets)
    except GunicornError as error:
        parser.exit(2, f"{program}: {error}\n")
    for note in found.notes:
        print(f"{program}: {note}", file=sys.stderr)
    if settings.get("print_config"):
        print(found.command_line())
        parser.exit()
    os.environ.update(found.variables)
    if found.directory is not None:
        os.chdir(found.directory)
    sys.path[:0] = map(os.path.abspath, found.paths)
    _command_line.main(found.words, "ringloop")
    parser.exit()
