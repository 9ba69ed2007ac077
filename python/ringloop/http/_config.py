"""The configuration of a server: uvicorn's options under the same names, and some more."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import ssl
import sys
from asyncio import constants
from typing import TYPE_CHECKING, Any, Literal

from .. import EventLoop, new_event_loop
from . import _applications, _listening, _metrics, _tls, _values, logging
from ._errors import StartupError
from ._importing import import_optional
from ._proxies import TrustedProxies
from .logging import LOGGING_CONFIG, TRACE_LOG_LEVEL, LogConfig, logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

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
    """Logs a StartupError, and raises SystemExit(3) in its place."""
    try:
        yield
    except StartupError as error:
        logger.error("%s", error)
        sys.exit(STARTUP_FAILURE)


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


@dataclasses.dataclass(eq=False)
class Config:
    """A server's settings; docs/serve.md explains each of them.

    Sizes are in bytes and times in seconds. `app` is an ASGI application or, as a string, "module:attribute". Making a
    Config sets up logging and reads `env_file`; nothing is imported or opened before `load()`. Raises ValueError for a
    value that the option can't have, and StartupError where a file can't be used.
    """

    app: Any
    host: str | None = "127.0.0.1"
    port: int = 8000
    uds: str | None = None
    fd: int | None = None
    reuse_port: bool = False
    backlog: int = 2048
    backend: Literal["auto", "io_uring", "epoll"] | None = None
    interface: Literal["auto", "asgi3", "asgi2", "wsgi"] = "auto"
    factory: bool = False
    lifespan: Literal["auto", "on", "off"] = "auto"
    root_path: str = ""
    env_file: str | os.PathLike[str] | None = None
    reset_contextvars: bool = False

    log_config: LogConfig | None = dataclasses.field(default_factory=lambda: LOGGING_CONFIG)
    log_level: str | int | None = None
    access_log: bool = True
    use_colors: bool | None = None
    metrics: str | None = None

    reload: bool = False
    reload_dirs: list[str] | str | None = None
    reload_delay: float = 0.25
    reload_includes: list[str] | str | None = None
    reload_excludes: list[str] | str | None = None

    workers: int | None = None
    workers_lifetime: float | None = None
    workers_max_rss: int | None = None
    timeout_worker_healthcheck: float = 5

    proxy_headers: bool = True
    forwarded_allow_ips: list[str] | str | None = None
    server_header: bool = True
    date_header: bool = True
    headers: Iterable[tuple[str, str]] | None = None

    http2: bool = True
    limit_concurrency: int | None = None
    limit_http2_requests: int | None = 1000
    limit_max_requests: int | None = None
    limit_max_requests_jitter: int = 0
    limit_head: int = 65536
    limit_fields: int = 256
    limit_body_ahead: int = 65536
    timeout_keep_alive: float | None = 5
    timeout_head: float | None = 10
    timeout_body: float | None = 60
    timeout_write: float | None = 60
    timeout_graceful_shutdown: float | None = 10

    ws: Any = "auto"
    ws_max_size: int = 16 * 1024 * 1024
    ws_max_queue: int = 32
    ws_ping_interval: float | None = 20.0
    ws_ping_timeout: float | None = 20.0
    ws_per_message_deflate: bool = True

    ssl_keyfile: str | os.PathLike[str] | None = None
    ssl_certfile: str | os.PathLike[str] | None = None
    ssl_keyfile_password: str | None = None
    ssl_version: int = ssl.PROTOCOL_TLS_SERVER
    ssl_cert_reqs: int = ssl.CERT_NONE
    ssl_ca_certs: str | os.PathLike[str] | None = None
    ssl_ciphers: str | None = None
    ssl_handshake_timeout: float = constants.SSL_HANDSHAKE_TIMEOUT
    ssl_shutdown_timeout: float = constants.SSL_SHUTDOWN_TIMEOUT
    ssl_context_factory: Callable[[Config, Callable[[], ssl.SSLContext]], ssl.SSLContext] | None = None

    install_signal_handlers: bool = True

    # Options of uvicorn; other values than these have no effect.
    loop: str = "auto"
    http: Any = "auto"
    h11_max_incomplete_event_size: int | None = None

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
        if self.forwarded_allow_ips is None:
            self.forwarded_allow_ips = os.environ.get("FORWARDED_ALLOW_IPS", "127.0.0.1,::1")
        if self.metrics is not None:
            _metrics.check(self.metrics)
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
        """What an application's scopes say."""
        return "2.0" if self.interface == "asgi2" else "3.0"

    @property
    def encoded_headers(self) -> list[tuple[bytes, bytes]]:
        """The headers that each response gets, with lower-case names."""
        headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in self.headers or ()]
        if self.server_header and not any(name == b"server" for name, _ in headers):
            headers.insert(0, (b"server", b"ringloop"))
        return headers

    def configure_logging(self) -> None:
        """Sets up logging as the configuration says; child processes do it again."""
        logging.configure(self.log_config, level=self.log_level, use_colors=self.use_colors, access_log=self.access_log)

    def get_loop_factory(self) -> Callable[[], EventLoop]:
        """The factory of the server's event loop. It raises StartupError where no such loop can be made."""
        return self._make_loop

    def load_app(self) -> Any:
        """Imports what `app` names, and returns it. Raises StartupError."""
        return _applications.load(self.app)

    def load(self) -> None:
        """Makes `loaded_app`, an ASGI 3 callable, and the TLS context.

        Raises StartupError where there is no such application or a file of TLS can't be used, and what the
        application's import raises.
        """
        if self.is_ssl:
            try:
                self.reloadable_ssl = _tls.ReloadableContext(self._make_ssl_context, self._ssl_files())
            except (OSError, ValueError) as error:
                raise StartupError(f"TLS can't be set up: {error}") from error
            self.ssl = self.reloadable_ssl.context
        app = _applications.call_factory(self.load_app(), self.factory)
        if self.interface == "auto":
            self.interface = "asgi3" if _applications.is_asgi3(app) else "asgi2"
        app = _applications.adapt(app, self.interface)
        if logging.asgi_logger.isEnabledFor(TRACE_LOG_LEVEL):
            app = _applications.TracedApplication(app)
        self.loaded_app = app
        self.loaded = True

    def trusted_proxies(self) -> TrustedProxies | None:
        """The proxies whose X-Forwarded-For and X-Forwarded-Proto are trusted; None: no proxy."""
        return TrustedProxies(self.forwarded_allow_ips or []) if self.proxy_headers else None

    def draw_max_requests(self) -> int | None:
        """The number of requests after which a process ends, with its jitter."""
        if self.limit_max_requests is None:
            return None
        return self.limit_max_requests + random.randint(0, self.limit_max_requests_jitter)

    def bind(self) -> Listeners:
        """The sockets of `fd`, of `uds`, of systemd, or of `host` and `port`. Raises StartupError."""
        if self.fd is not None:
            return _listening.adopt(self.fd)
        if self.uds is not None:
            return _listening.bind_unix(self.uds)
        return _listening.passed_by_systemd() or _listening.bind(self.host, self.port, reuse_port=self.reuse_port)

    def _check(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None or "None" not in str(field.type):
                _values.check(field.name, value)
        for name in _values.UNLIMITED_IF_ZERO:
            if getattr(self, name) == 0:
                setattr(self, name, None)
        if self.headers is not None:
            self.headers = list(self.headers)
            for name, value in self.headers:
                if (mistake := _values.header_mistake(name, value)) is not None:
                    raise ValueError(f"headers: {f'{name}: {value}'!r} {mistake}")

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
