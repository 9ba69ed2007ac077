"""The configuration of a server: uvicorn's options under the same names, and some more."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import ssl
import sys
from asyncio import constants
from typing import TYPE_CHECKING, Any, Literal

from .. import EventLoop, new_event_loop
from . import _applications, _headers, _listening, _metrics, _tls, logging
from ._errors import StartupError
from ._importing import import_optional
from ._options import C_COUNT, COUNT, POSITIVE, POSITIVE_SECONDS, SECONDS, Names, Numbers, check, option
from ._proxies import TrustedProxies
from .logging import LOGGING_CONFIG, TRACE_LOG_LEVEL, LogConfig, logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from . import _static
    from ._listening import Listeners

STARTUP_FAILURE = 3
"""The exit status of a server that could not start."""

# Options of uvicorn that have no meaning here, with the values that ask for nothing.
_WITHOUT_EFFECT: dict[str, tuple[Any, ...]] = {
    "loop": ("auto", "none"),
    "http": ("auto",),
    # The names of uvicorn's implementations all mean the one that there is.
    "ws": ("auto", "none", "websockets", "websockets-sansio", "wsproto"),
}
_REASONS = {
    "loop": "ringloop serve always runs on ringloop",
    "http": "there is one implementation",
    "ws": "there is one implementation",
}


@contextlib.contextmanager
def startup_failures_logged() -> Iterator[None]:
    """Log a StartupError, and raise SystemExit(3) in its place."""
    try:
        yield
    except StartupError as error:
        logger.error("%s", error)
        sys.exit(STARTUP_FAILURE)


def has_gil() -> bool:
    """Return whether threads of this process take turns."""
    is_enabled = getattr(sys, "_is_gil_enabled", None)
    return is_enabled is None or is_enabled()


def workers_in_environment() -> int:
    """Return the number of processes that WEB_CONCURRENCY asks for. Some platforms say 0 for one, and uvicorn takes it."""
    text = os.environ.get("WEB_CONCURRENCY") or "1"
    try:
        workers = int(text)
    except ValueError:
        workers = -1
    if workers < 0:
        raise ValueError(f"the environment variable WEB_CONCURRENCY must be a number of processes, not {text!r}")
    return workers or 1


# fmt: off
@dataclasses.dataclass(kw_only=True, eq=False)
class HttpSettings:
    """The settings of the native server, which reads them by name when it is made. Sizes are in bytes and times in seconds."""

    root_path: str = option(
        "", "Application", "Path under which the application is mounted.",
        "`root_path` of the scope", metavar="PATH", granian="`--url-path-prefix`",
    )
    http2: bool = option(
        True, "Requests", "Serve HTTP/2 to clients that choose it.",
        "[HTTP/2](#http2) for clients that choose it",
        kind="switch", uvicorn="the same, default off", granian="`--http`",
    )
    date_header: bool = option(
        True, "Requests", "Send the Date header.", "", kind="switch",
    )
    limit_concurrency: int | None = option(
        None, "Limits", "Number of connections or requests above which the server answers 503.",
        "above this number of connections or requests, the server answers 503",
        values=POSITIVE, granian="`--backpressure`",
    )
    limit_http2_requests: int | None = option(
        1000, "Limits", "Requests after which an HTTP/2 client is asked to open a new connection; 0: no limit.",
        "after this number of requests, an HTTP/2 client is asked to open a new connection; 0: no limit",
        values=COUNT, zero_is_none=True, uvicorn=None,
    )
    limit_head: int = option(
        65536, "Limits", "Maximum size of a request's head, in bytes.",
        "size of a request's head. uvicorn's name works, too",
        values=POSITIVE, uvicorn="`--h11-max-incomplete-event-size`", granian="`--http1-buffer-size`",
    )
    limit_fields: int = option(
        256, "Limits", "Maximum number of header fields of a request.",
        "header fields of a request, and of its trailers. uvicorn has no such limit",
        values=POSITIVE, uvicorn=None,
    )
    limit_body_ahead: int = option(
        65536, "Limits", "Bytes of a request body to read ahead of the application.",
        "bytes of a request body to read ahead of the application",
        values=POSITIVE, uvicorn=None,
    )
    timeout_keep_alive: float | None = option(
        5, "Limits", "Seconds to wait for the next request on a connection.",
        "time between requests. Behind a load balancer, set more than its own timeout, which is often 60",
        values=SECONDS,
    )
    timeout_head: float | None = option(
        10, "Limits", "Seconds to wait for a complete head; 0: no limit.",
        "the longest time for a complete head; 0: no limit",
        values=SECONDS, zero_is_none=True, uvicorn=None, granian="`--http1-header-read-timeout`",
    )
    timeout_body: float | None = option(
        60, "Limits", "Seconds to wait for more of a body; 0: no limit.",
        "how long a body may stall; 0: no limit. If reading was paused because the buffer is full, and "
        "the application is only waiting for a disconnect, the server starts reading again after this time and discards the "
        "data. A WebSocket that has not been accepted by then is refused with 408",
        values=SECONDS, zero_is_none=True, uvicorn=None,
    )
    timeout_write: float | None = option(
        60, "Limits", "Seconds to wait for a client to read; 0: no limit.",
        "how long a client may go without reading; 0: no limit",
        values=SECONDS, zero_is_none=True, uvicorn=None,
    )
    timeout_linger: float = option(
        2, "Limits", "Seconds in which a client's data is dropped after its last response.",
        "after the last response of a connection, what the client still sends is dropped for this time, so "
        "that it reads the response before it gets a reset",
        values=SECONDS, uvicorn=None,
    )
    wsgi_threads: int | None = option(
        None, "Application", "Threads that run the views of a WSGI application. Default: CPUs plus 4.",
        "[WSGI](#wsgi): threads that run views. Default: the number of CPUs plus 4", values=POSITIVE, uvicorn=None,
        granian="`--blocking-threads`",
    )
    wsgi_queue: int = option(
        1000, "Limits", "WSGI requests that may wait for a thread; others get 503.",
        "[WSGI](#wsgi): requests that may wait for a thread. Above this number, the server answers 503",
        values=POSITIVE, uvicorn=None, granian="`--backpressure`",
    )
    reset_contextvars: bool = option(
        False, "Application", "Run each request in an empty context.",
        "each request runs in a new, empty context (`contextvars`). Otherwise, one of ASGI runs in a copy of the server's "
        "context, and one of [WSGI](#wsgi) in the context of its thread",
        kind="flag",
    )
    ws_max_size: int = option(
        16 * 1024 * 1024, "WebSocket", "Maximum size of a message, in bytes.",
        "a message that is larger after decompression closes the WebSocket with 1009",
        values=POSITIVE,
    )
    ws_max_queue: int = option(
        32, "WebSocket", "Messages to read ahead of the application.",
        "messages to read ahead of the application; `--limit-body-ahead` limits their bytes",
        values=POSITIVE,
    )
    ws_ping_interval: float | None = option(
        20.0, "WebSocket", "Seconds between pings; 0: no pings.",
        "time between pings; 0: no pings", values=SECONDS, zero_is_none=True,
    )
    ws_ping_timeout: float | None = option(
        20.0, "WebSocket", "Seconds to wait for the answer to a ping; 0: no limit.",
        "a client that doesn't answer a ping in this time is closed with 1011; 0: no limit",
        values=SECONDS, zero_is_none=True,
    )
    ws_per_message_deflate: bool = option(
        True, "WebSocket", "Whether to compress messages.",
        "messages are compressed if the client agrees", kind="truth",
    )


@dataclasses.dataclass(eq=False)
class Config(HttpSettings):
    """A server's settings; docs/serve.md explains each of them.

    Sizes are in bytes and times in seconds. `app` is an ASGI or WSGI application, or its name "module:attribute" as a
    string. Making a Config sets up logging and reads `env_file`; nothing is imported or opened before `load()`. Raises
    ValueError for a value that the option can't have, and StartupError where a file can't be used.
    """

    app: Any
    host: str | None = option(
        "127.0.0.1", "Listening", "Address or name to listen on; empty: all addresses.",
        "a name: all of its addresses. Empty: all addresses of the machine", granian="the same",
    )
    port: int = option(
        8000, "Listening", "Port to listen on; 0 takes a free one.",
        "0 takes a free one", values=Numbers(0, 65535), granian="the same",
    )
    uds: str | None = option(
        None, "Listening", "Unix socket to listen on, instead of a port. The mode of an existing socket is kept.",
        "a Unix socket. It gets the mode of the socket that it replaces, or else 0666, and is removed at the end",
        metavar="PATH", granian="the same",
    )
    fd: int | None = option(
        None, "Listening", "File descriptor of a socket to listen on. systemd's sockets (LISTEN_FDS) need no option.",
        "number of an inherited socket. systemd's socket activation (`LISTEN_FDS`) needs no option", values=C_COUNT,
    )
    reuse_port: bool = option(
        False, "Listening", "Listen with SO_REUSEPORT, a socket for each worker.",
        "each worker listens on a socket of its own, with SO_REUSEPORT. Otherwise they share one",
        kind="switch", uvicorn=None,
    )
    backlog: int = option(
        2048, "Listening", "Length of the kernel's queue of new connections.",
        "length of the kernel's queue of new connections",
        values=Numbers(1, C_COUNT.largest), granian="the same",
    )

    factory: bool = option(
        False, "Application", "MODULE:ATTRIBUTE is a function that returns the application.",
        "the attribute is a function that returns the application", kind="flag", granian="the same",
    )
    interface: Literal["auto", "asgi3", "asgi2", "wsgi"] = option(
        "auto", "Application", "The application's interface. auto: detect it from the signature.",
        "one of `auto`, `asgi3`, `asgi2` and `wsgi`. `auto` detects it from the application's signature. "
        "[WSGI](#wsgi) has no WebSockets",
        values=Names(("auto", "asgi3", "asgi2", "wsgi")), granian="the same",
    )
    lifespan: Literal["auto", "on", "off"] = option(
        "auto", "Application", "Whether to run the application's lifespan protocol.",
        "one of `auto`, `on` and `off`", values=Names(("auto", "on", "off")), granian="`--interface asginl`",
    )
    env_file: str | os.PathLike[str] | None = option(
        None, "Application", "File with environment variables for the application.",
        "file with environment variables for the application; needs python-dotenv",
        kind="file", granian="`--env-files`",
    )
    backend: Literal["auto", "io_uring", "epoll"] | None = option(
        None, "Application", "The kernel interface that the event loop uses. Default: RINGLOOP_BACKEND, or auto.",
        "one of `auto`, `io_uring` and `epoll`: see [backends.md](backends.md)",
        values=Names(("auto", "io_uring", "epoll")), uvicorn=None,
    )

    workers: int | None = option(
        None, "Processes", "Number of processes. Default: WEB_CONCURRENCY, or 1.",
        "default `WEB_CONCURRENCY`, or 1", values=POSITIVE, granian="the same",
    )
    threads: int = option(
        1, "Processes", "Number of threads that serve, each with an event loop. Needs a free-threaded Python.",
        "event loops, each in a thread of the one process, with one application object: see [Threads](#threads)",
        values=POSITIVE, uvicorn=None, granian="`--workers`",
    )
    lifespan_per_thread: bool = option(
        False, "Application", "Run the application's lifespan protocol in each thread, not only in the first.",
        "with `--threads`, each thread runs the lifespan protocol. Otherwise only the first one does", kind="flag", uvicorn=None,
    )
    workers_lifetime: float | None = option(
        None, "Processes", "Seconds after which a process is replaced.",
        "seconds after which a worker is replaced", values=SECONDS, uvicorn=None, granian="the same",
    )
    workers_max_rss: int | None = option(
        None, "Processes", "MiB of memory above which a process is replaced.",
        "MiB of memory above which a worker is replaced", values=POSITIVE, uvicorn=None, granian="the same",
    )
    limit_max_requests: int | None = option(
        None, "Processes", "Requests after which a worker is replaced, or a single process ends.",
        "requests after which a worker is replaced, or a single process ends", values=POSITIVE,
    )
    limit_max_requests_jitter: int = option(
        0, "Processes", "Largest random number added to that.", "largest random number added to `--limit-max-requests`", values=COUNT,
    )
    timeout_worker_healthcheck: float = option(
        5, "Processes", "Seconds after which a silent process is killed.",
        "a worker that doesn't answer in this time is killed; a new one has a minute more for its first "
        "answer",
        values=SECONDS,
    )

    reload: bool = option(
        False, "Reloading", "Restart when files change. Needs watchfiles.",
        "restart when files change, by uvicorn's rules; needs watchfiles", kind="flag", granian="the same",
    )
    reload_dirs: list[str] | str | None = option(
        None, "Reloading", "Directory to watch. Default: the current one.",
        "directory to watch. Default: the current one. Can be repeated",
        kind="files", spelling="--reload-dir", granian="`--reload-paths`",
    )
    reload_includes: list[str] | str | None = option(
        None, "Reloading", "Files to watch besides '*.py'.", "files to watch besides `*.py`. Can be repeated",
        kind="globs", spelling="--reload-include", metavar="GLOB",
    )
    reload_excludes: list[str] | str | None = option(
        None, "Reloading", "Files to ignore besides '.*', '.py[cod]', '.sw.*' and '~*'.",
        "files to ignore besides `.*`, `.py[cod]`, `.sw.*` and `~*`. Can be repeated",
        kind="globs", spelling="--reload-exclude", metavar="GLOB", granian="`--reload-ignore-patterns`",
    )
    reload_delay: float = option(
        0.25, "Reloading", "Seconds to wait for further changes.",
        "how long to wait for further changes", values=SECONDS, granian="`--reload-tick`",
    )

    log_level: str | int | None = option(
        None, "Logging", "Level of the server's loggers. Default: info.",
        "default `info`. Also `trace`, which logs each ASGI message", kind="log level", granian="the same",
    )
    log_config: LogConfig | None = option(
        lambda: LOGGING_CONFIG, "Logging", "Logging configuration: a .json, .yaml or .ini file.",
        "`.json`, `.yaml` (needs PyYAML), or ini; or a dict, from Python", kind="file", granian="the same",
    )
    access_log: bool = option(
        True, "Logging", "Log each request.", "", kind="switch", granian="the same",
    )
    use_colors: bool | None = option(
        None, "Logging", "Use colors in the log. Default: only on a terminal.",
        "default: on a terminal", kind="switch",
    )
    access_log_format: Literal["text", "json"] = option(
        "text", "Logging", "Format of the access log. json has more fields, and logs a request when its response ends.",
        "`text`, or `json`: [lines with more fields](#json)", values=Names(("text", "json")),
        uvicorn=None, granian="`--access-log-fmt`",
    )
    metrics: str | None = option(
        None, "Logging", "Serve metrics for Prometheus at this path, such as /metrics. Needs prometheus-client.",
        "path of the [metrics](#metrics) for Prometheus, such as `/metrics`; needs prometheus-client",
        kind="url path", metavar="PATH", uvicorn=None, granian="`--metrics`, on a port of its own",
    )
    watchdog: int | None = option(
        None, "Logging", "Log the stack of code that holds the event loop longer than this, in milliseconds.",
        "milliseconds after which the stack of code that holds the event loop is logged: see "
        "[troubleshooting.md](troubleshooting.md#what-blocks-the-loop)",
        values=POSITIVE, metavar="MS", uvicorn=None,
    )

    health: str | None = option(
        None, "Requests", "Answer at this path without the application: 200, or 503 while the server shuts down.",
        "path of the [page for load balancers](#health), such as `/health`: 200, or 503 while the server shuts down",
        kind="url path", metavar="PATH", uvicorn=None,
    )
    log_health: bool = option(
        False, "Logging", "Log requests for the --health page, too.",
        "requests for the `--health` page are logged in the access log, too", kind="flag", uvicorn=None,
    )
    static: list[str] | str | None = option(
        None, "Requests", "Serve the files in DIR under the path PREFIX, without the application.",
        "`PREFIX=DIR`: the [files](#files) in this directory are served under the path PREFIX. Can be repeated",
        kind="folders", metavar="PREFIX=DIR", uvicorn=None, granian="`--static-path-route`, `--static-path-mount`",
    )

    proxy_headers: bool = option(
        True, "Requests", "Use X-Forwarded-For and X-Forwarded-Proto.",
        "X-Forwarded-For and X-Forwarded-Proto of trusted proxies are used",
        kind="switch", granian="a wrapper",
    )
    forwarded_allow_ips: list[str] | str | None = option(
        None, "Requests",
        "Proxies to trust: addresses and networks, with commas, or '*'. Default: FORWARDED_ALLOW_IPS, or 127.0.0.1,::1.",
        "the trusted proxies, as addresses or networks. Default: the variable `FORWARDED_ALLOW_IPS`, or 127.0.0.1,::1",
        metavar="LIST", granian="a wrapper",
    )
    headers: Iterable[tuple[str, str]] | None = option(
        None, "Requests", "Header to add to each response, as Name:Value.",
        "`Name:Value`, added to each response; can be repeated", kind="headers", spelling="--header",
    )
    server_header: bool = option(
        True, "Requests", "Send the Server header.", "", kind="switch",
    )
    timeout_graceful_shutdown: float | None = option(
        10, "Limits", "Seconds that requests have to finish at shutdown; 0: cancel requests at once.",
        "the time that requests have to finish at shutdown; 0: they are cancelled at once. See [Shutdown](#shutdown)",
        values=SECONDS, uvicorn="the same, no default", granian="`--workers-kill-timeout`",
    )

    ws: Any = option(
        "auto", "WebSocket", "Whether to serve WebSockets.",
        "with `none`, a request for a WebSocket is served as a plain request. uvicorn's other values "
        "mean `auto`",
        metavar="auto|none", granian="`--ws`, `--no-ws`",
    )

    ssl_certfile: str | os.PathLike[str] | None = option(
        None, "TLS", "Certificate file, with its chain; serves HTTPS. Reloaded when it changes.",
        "the certificate with its chain: see [TLS](#tls). Read again when the file changes, and on SIGHUP",
        metavar="PATH", granian="`--ssl-certificate`",
    )
    ssl_keyfile: str | os.PathLike[str] | None = option(
        None, "TLS", "File of the certificate's key, if it is separate.",
        "the certificate's key, if it is in a file of its own", metavar="PATH", granian="the same",
    )
    ssl_keyfile_password: str | None = option(
        None, "TLS", "The key's password.", "the key's password", granian="the same",
    )
    ssl_ca_certs: str | os.PathLike[str] | None = option(
        None, "TLS", "File of the authorities that issue clients' certificates.",
        "the authorities that issue clients' certificates", metavar="PATH", granian="`--ssl-ca`",
    )
    ssl_cert_reqs: int = option(
        ssl.CERT_NONE, "TLS", "Clients' certificates: 0 none, 1 optional, 2 required.",
        "clients' certificates: 0 none, 1 optional, 2 required",
        kind="number", granian="`--ssl-client-verify`",
    )
    ssl_ciphers: str | None = option(
        None, "TLS", "TLS 1.2 ciphers, in OpenSSL's format.", "TLS 1.2 ciphers, in OpenSSL's format",
    )
    ssl_version: int = option(
        ssl.PROTOCOL_TLS_SERVER, "TLS", "Protocol: the number of an ssl.PROTOCOL_... constant of Python.",
        "the number of a constant `ssl.PROTOCOL_...` of Python; 17 is TLS 1.2 and later",
        kind="number", granian="`--ssl-protocol-min`",
    )
    ssl_handshake_timeout: float = option(
        constants.SSL_HANDSHAKE_TIMEOUT, "TLS", "Seconds that a client has for the TLS handshake.",
        "the longest time for a handshake", values=POSITIVE_SECONDS, uvicorn=None,
    )
    ssl_shutdown_timeout: float = option(
        constants.SSL_SHUTDOWN_TIMEOUT, "TLS", "Seconds to wait for a client's TLS closing message.",
        "how long a closing connection waits for the client's TLS closing message",
        values=POSITIVE_SECONDS, uvicorn=None,
    )

    # Options of uvicorn; other values than these have no effect, and the last is another name for limit_head.
    loop: str = option("auto", "Other", "", "", hidden=True)
    http: Any = option("auto", "Other", "", "", hidden=True)
    h11_max_incomplete_event_size: int | None = option(None, "Other", "", "", values=POSITIVE, hidden=True)

    # Only from Python.
    ssl_context_factory: Callable[[Config, Callable[[], ssl.SSLContext]], ssl.SSLContext] | None = None
    install_signal_handlers: bool = True
    # fmt: on

    def __post_init__(self) -> None:
        self.loaded = False
        self.loaded_app: Any = None
        self.ssl: ssl.SSLContext | None = None
        self.reloadable_ssl: _tls.ReloadableContext | None = None
        self._check()
        self.configure_logging()
        if self.env_file is not None:
            dotenv = import_optional("dotenv", "python-dotenv", "--env-file")
            logger.info("Loading environment from '%s'", self.env_file)
            dotenv.load_dotenv(dotenv_path=self.env_file)
        if self.workers is None:
            self.workers = workers_in_environment()
        self._check_threads()
        if self.forwarded_allow_ips is None:
            self.forwarded_allow_ips = os.environ.get("FORWARDED_ALLOW_IPS", "127.0.0.1,::1")
        if self.metrics is not None:
            _metrics.check(self.metrics)
        self._check_pages()
        if self.h11_max_incomplete_event_size is not None:
            self.limit_head = self.h11_max_incomplete_event_size
        for name, usual in _WITHOUT_EFFECT.items():
            if getattr(self, name) not in usual:
                logger.warning("'%s' has no effect: %s.", name, _REASONS[name])
        if (self.reload_dirs or self.reload_includes or self.reload_excludes) and not self.should_reload:
            reason = "the application must be an import string" if self.reload else "'reload' is not set"
            logger.warning("Current configuration will not reload: %s.", reason)
        if self.reload and self.workers > 1:
            logger.warning('"workers" flag is ignored when reloading is enabled.')

    @property
    def is_ssl(self) -> bool:
        """Whether connections are encrypted."""
        return bool(self.ssl_keyfile or self.ssl_certfile or self.ssl_context_factory)

    @property
    def should_reload(self) -> bool:
        """Whether the server is started again when files change."""
        return self.reload and isinstance(self.app, str)

    @property
    def use_subprocess(self) -> bool:
        """Whether requests are served by child processes, under a supervisor."""
        assert self.workers is not None
        limited = self.workers_lifetime is not None or self.workers_max_rss is not None
        return self.reload or limited or self.workers > 1

    @property
    def asgi_version(self) -> str:
        """The version in an application's scopes."""
        return "2.0" if self.interface == "asgi2" else "3.0"

    @property
    def encoded_headers(self) -> list[tuple[bytes, bytes]]:
        """The headers that each response gets, with lower-case names."""
        headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in self.headers or ()]
        if self.server_header and not any(name == b"server" for name, _ in headers):
            headers.insert(0, (b"server", b"ringloop"))
        return headers

    def configure_logging(self) -> None:
        """Set up logging as the configuration says; child processes do it again."""
        logging.configure(
            self.log_config,
            level=self.log_level,
            use_colors=self.use_colors,
            access_log=self.access_log,
            access_log_format=self.access_log_format,
        )

    def get_loop_factory(self) -> Callable[[], EventLoop]:
        """Return the factory of the server's event loop. It raises StartupError where no such loop can be made."""
        return self._make_loop

    def load_app(self) -> Any:
        """Import what `app` names, and return it. Raise StartupError."""
        return _applications.load(self.app)

    def load(self) -> None:
        """Make `loaded_app`, an ASGI 3 or WSGI callable, and the TLS context.

        Raise StartupError where there is no such application or a TLS file can't be used, and what the
        application's import raises.
        """
        self.load_tls()
        app = _applications.call_factory(self.load_app(), self.factory, self.interface)
        if self.interface == "auto":
            self.interface = _applications.interface_of(app)
        if self.interface == "wsgi":
            if self.lifespan == "on":
                raise StartupError("--lifespan on needs an ASGI application: WSGI has no lifespan")
            self.lifespan = "off"
        app = _applications.adapt(app, self.interface)
        if self.interface != "wsgi" and logging.asgi_logger.isEnabledFor(TRACE_LOG_LEVEL):
            app = _applications.TracedApplication(app)
        self.loaded_app = app
        self.loaded = True

    def load_tls(self) -> None:
        """Make the TLS context, if there is to be one. Raise StartupError where a file can't be used."""
        if not self.is_ssl:
            return
        try:
            self.reloadable_ssl = _tls.ReloadableContext(self._make_ssl_context, self._ssl_files())
        except (OSError, ValueError) as error:
            raise StartupError(f"TLS can't be set up: {error}") from error
        self.ssl = self.reloadable_ssl.context

    def trusted_proxies(self) -> TrustedProxies | None:
        """Return the proxies whose X-Forwarded-For and X-Forwarded-Proto are trusted; None: no proxy."""
        return TrustedProxies(self.forwarded_allow_ips or []) if self.proxy_headers else None

    def draw_max_requests(self) -> int | None:
        """Return the number of requests after which a process ends, with its jitter."""
        if self.limit_max_requests is None:
            return None
        import random  # Few servers have a limit.

        return self.limit_max_requests + random.randint(0, self.limit_max_requests_jitter)

    def bind(self) -> Listeners:
        """Return the sockets of `fd`, of `uds`, of systemd, or of `host` and `port`. Raise StartupError."""
        if self.fd is not None:
            return _listening.adopt(self.fd)
        if self.uds is not None:
            return _listening.bind_unix(self.uds)
        passed = _listening.passed_by_systemd()
        if passed is not None:
            return passed
        return _listening.bind(self.host, self.port, reuse_port=self.reuse_port)

    def _check(self) -> None:
        check(self)
        if self.headers is not None:
            self.headers = list(self.headers)
            for name, value in self.headers:
                if (mistake := _headers.mistake(name, value)) is not None:
                    raise ValueError(f"headers: {f'{name}: {value}'!r} {mistake}")

    def _check_threads(self) -> None:
        if self.threads == 1:
            return
        if self.use_subprocess:
            raise StartupError(
                "--threads serves in one process, without --workers (or WEB_CONCURRENCY), --workers-lifetime, "
                "--workers-max-rss and --reload."
            )
        if has_gil():
            raise StartupError("--threads needs a free-threaded Python (3.14t) without the GIL. Use --workers here.")

    def _check_pages(self) -> None:
        if self.health is not None:
            if not self.health.startswith("/"):
                raise ValueError(f"the path of the health page must begin with a slash: {self.health!r}")
            if self.health == self.metrics:
                raise ValueError(f"health and metrics can't have the same path: {self.health!r}")
        static = [self.static] if isinstance(self.static, str) else self.static or []
        if not static:
            self.static = []
            return
        from . import _static  # Most servers serve no files.

        folders = _static.split_all(static)
        # Relative paths are relative to where the server was started, even if the application changes the directory.
        self.static = [f"{prefix or '/'}={os.path.abspath(folder)}" for prefix, folder in folders.items()]
        for folder in folders.values():
            if not os.path.isdir(folder):
                raise StartupError(f"The directory {folder!r} of --static doesn't exist.")

    def static_folders(self) -> dict[str, _static.Folder]:
        """Return what serves files, by the prefixes of their paths. Raise StartupError."""
        if not self.static:
            return {}
        from . import _static  # As in `_check_pages`.

        folders = _static.split_all(self.static)
        return {prefix: _static.Folder(prefix, folder) for prefix, folder in folders.items()}

    def _make_loop(self) -> EventLoop:
        try:
            return new_event_loop(backend=self.backend)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else None
            raise StartupError(f"The event loop can't be made: {reason or error}") from error

    def _ssl_files(self) -> list[str | os.PathLike[str]]:
        return [file for file in (self.ssl_certfile, self.ssl_keyfile, self.ssl_ca_certs) if file]

    def _make_ssl_context(self) -> ssl.SSLContext:
        if self.ssl_context_factory is None:
            return self._default_ssl_context()
        context = self.ssl_context_factory(self, self._default_ssl_context)
        if not isinstance(context, ssl.SSLContext):
            raise TypeError(f"`ssl_context_factory` must return an `ssl.SSLContext`, got {type(context).__name__}")
        return context

    def _default_ssl_context(self) -> ssl.SSLContext:
        if not self.ssl_certfile:
            raise ValueError("TLS needs a certificate: ssl_certfile (--ssl-certfile) is missing")
        return _tls.make_context(
            self.ssl_certfile,
            self.ssl_keyfile,
            self.ssl_keyfile_password,
            version=self.ssl_version,
            cert_reqs=self.ssl_cert_reqs,
            ca_certs=self.ssl_ca_certs,
            ciphers=self.ssl_ciphers,
            protocols=["h2", "http/1.1"] if self.http2 else ["http/1.1"],
        )
