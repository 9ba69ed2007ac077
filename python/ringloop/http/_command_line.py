"""`ringloop serve`: uvicorn's command line with some more options, built with click."""

from __future__ import annotations

import dataclasses
import enum
import os
import platform
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

import ringloop

from ._config import Config, workers_in_environment
from ._run import run
from ._values import LONGEST_S, VALUES, Names, Numbers, Seconds, header_mistake
from .logging import LOG_LEVELS

if TYPE_CHECKING:
    from collections.abc import Sequence

_DEFAULTS = {
    field.name: None if field.default is dataclasses.MISSING else field.default for field in dataclasses.fields(Config)
}
_HEAD_OF_NAMES = ("RINGLOOP_", "UVICORN_")


class _Option(click.Option):
    """An option that belongs to a group of the help, and has environment variables."""

    def __init__(self, names: Sequence[str], *, group: str, ours: bool, **attributes: Any) -> None:
        super().__init__(names, **attributes)
        self.group = group
        assert self.name is not None
        heads = _HEAD_OF_NAMES[:1] if ours else _HEAD_OF_NAMES
        # RINGLOOP_BACKEND is read by the loop, as everywhere.
        self.envvar = None if self.name == "backend" else [head + self.name.upper() for head in heads]

    def get_error_hint(self, ctx: click.Context | None) -> str:
        """What a message about a wrong value calls the option: as the user has set it."""
        assert self.name is not None
        if ctx is None or ctx.get_parameter_source(self.name) is not ParameterSource.ENVIRONMENT:
            return super().get_error_hint(ctx)
        return next(f"the environment variable {name}" for name in self.envvar or () if os.environ.get(name))


class _Command(click.Command):
    """A command whose help shows its options in groups."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        others: list[tuple[str, str]] = []
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and isinstance(parameter, click.Option):
                records = groups.setdefault(parameter.group, []) if isinstance(parameter, _Option) else others
                records.append(record)
        for group, records in (*groups.items(), ("Other", others)):
            with formatter.section(group):
                formatter.write_dl(records)


def _split_header(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> list[tuple[str, str]]:
    headers = []
    for text in values:
        name, colon, value = (part.strip() for part in text.partition(":"))
        if not colon or not name:
            raise click.BadParameter(f"{text!r} is not of the form Name:Value", context, parameter)
        if (mistake := header_mistake(name, value)) is not None:
            raise click.BadParameter(f"{text!r} {mistake}", context, parameter)
        headers.append((name, value))
    return headers


def _check_path(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    if value is not None and not value.startswith("/"):
        raise click.BadParameter("the path must begin with a slash")
    return value


def _show_version(context: click.Context, parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        python = f"{platform.python_implementation()} {platform.python_version()}"
        click.echo(f"Running ringloop {ringloop.__version__} with {python} on {platform.system()}")
        context.exit()


class _Number(click.IntRange):
    """A whole number. The help doesn't mention the maximum."""

    def __init__(self, allowed: Numbers) -> None:
        super().__init__(min=allowed.smallest)
        self._largest = allowed.largest

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        number: int = super().convert(value, param, ctx)
        if number > self._largest:
            self.fail(f"{value} is too large: the maximum is {self._largest}.", param, ctx)
        return number


class _Seconds(click.FloatRange):
    """A time that is neither infinite nor longer than anybody waits."""

    def __init__(self, allowed: Seconds) -> None:
        super().__init__(min=0, min_open=allowed.positive)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds: float = super().convert(value, param, ctx)
        if not seconds <= LONGEST_S:
            self.fail(f"{value} is not a number of seconds up to {LONGEST_S}.", param, ctx)
        return seconds


def _type_of(allowed: Numbers | Seconds | Names) -> click.ParamType[Any]:
    if isinstance(allowed, Numbers):
        return _Number(allowed)
    return _Seconds(allowed) if isinstance(allowed, Seconds) else click.Choice(allowed.words)


_PATH = click.Path(exists=True)


def _options() -> list[click.Parameter]:
    options: list[click.Parameter] = [
        click.Argument(["app"], envvar=[f"{head}APP" for head in _HEAD_OF_NAMES], metavar="MODULE:ATTRIBUTE")
    ]

    def add(group: str, *names: str, ours: bool = False, **attributes: Any) -> None:
        name = names[-1].partition("/")[0].lstrip("-").replace("-", "_")
        default = _DEFAULTS.get(name)
        if isinstance(default, enum.IntEnum):
            default = int(default)
        if name in _DEFAULTS and not attributes.get("multiple"):
            shown = isinstance(default, int | float | str) and default is not False and default != ""
            attributes = {"default": default, "show_default": shown, **attributes}
        if name in VALUES:
            attributes["type"] = _type_of(VALUES[name])
        options.append(_Option(names, group=group, ours=ours, **attributes))

    group = "Listening"
    add(group, "--host", help="Address or name to listen on; empty: all addresses.")
    add(group, "--port", help="Port to listen on; 0 takes a free one.")
    add(
        group,
        "--uds",
        metavar="PATH",
        help="Unix socket to listen on, instead of a port. The mode of an existing socket is kept.",
    )
    add(
        group,
        "--fd",
        help="File descriptor of a socket to listen on. systemd's sockets (LISTEN_FDS) need no option.",
    )
    add(group, "--reuse-port/--no-reuse-port", ours=True, help="Listen with SO_REUSEPORT, a socket for each worker.")
    add(
        group,
        "--backlog",
        help="Length of the kernel's queue of new connections.",
    )

    group = "Application"
    add(group, "--factory", is_flag=True, help="MODULE:ATTRIBUTE is a function that returns the application.")
    add(group, "--app-dir", default="", metavar="PATH", help="Where the module is. Default: the current directory.")
    add(
        group,
        "--interface",
        help="The interface that the application has. wsgi needs a2wsgi.",
    )
    add(
        group,
        "--lifespan",
        help="Whether to run the application's lifespan protocol.",
    )
    add(group, "--root-path", metavar="PATH", help="Path under which the application is mounted.")
    add(group, "--env-file", type=_PATH, help="File with environment variables for the application.")
    add(group, "--reset-contextvars", is_flag=True, help="Run each request in an empty context.")
    add(
        group,
        "--backend",
        ours=True,
        help="The kernel interface that the event loop uses. Default: RINGLOOP_BACKEND, or auto.",
    )

    group = "Processes"
    add(group, "--workers", help="Number of processes. Default: WEB_CONCURRENCY, or 1.")
    add(group, "--workers-lifetime", ours=True, help="Seconds after which a process is replaced.")
    add(group, "--workers-max-rss", ours=True, help="MiB of memory above which a process is replaced.")
    add(
        group,
        "--limit-max-requests",
        help="Requests after which a worker is replaced, or a single process ends.",
    )
    add(group, "--limit-max-requests-jitter", help="Largest random number added to that.")
    add(group, "--timeout-worker-healthcheck", help="Seconds after which a silent process is killed.")

    group = "Reloading"
    add(group, "--reload", is_flag=True, help="Restart when files change. Needs watchfiles.")
    add(
        group,
        "--reload-dir",
        "reload_dirs",
        multiple=True,
        type=_PATH,
        help="Directory to watch. Default: the current one.",
    )
    add(
        group,
        "--reload-include",
        "reload_includes",
        multiple=True,
        metavar="GLOB",
        help="Files to watch besides '*.py'.",
    )
    add(
        group,
        "--reload-exclude",
        "reload_excludes",
        multiple=True,
        metavar="GLOB",
        help="Files to ignore besides '.*', '.py[cod]', '.sw.*' and '~*'.",
    )
    add(group, "--reload-delay", help="Seconds to wait for further changes.")

    group = "Logging"
    add(
        group, "--log-level", type=click.Choice(tuple(LOG_LEVELS)), help="Level of the server's loggers. Default: info."
    )
    add(group, "--log-config", type=_PATH, help="Logging configuration: a .json, .yaml or .ini file.")
    add(group, "--access-log/--no-access-log", help="Log each request.")
    add(group, "--use-colors/--no-use-colors", help="Use colors in the log. Default: only on a terminal.")
    add(
        group,
        "--metrics",
        ours=True,
        metavar="PATH",
        callback=_check_path,
        help="Serve metrics for Prometheus at this path, such as /metrics. Needs prometheus-client.",
    )

    group = "Requests"
    add(group, "--proxy-headers/--no-proxy-headers", help="Use X-Forwarded-For and X-Forwarded-Proto.")
    add(
        group,
        "--forwarded-allow-ips",
        metavar="LIST",
        help="Proxies to trust: addresses and networks, with commas, or '*'. "
        "Default: FORWARDED_ALLOW_IPS, or 127.0.0.1,::1.",
    )
    add(
        group,
        "--header",
        "headers",
        multiple=True,
        callback=_split_header,
        help="Header to add to each response, as Name:Value.",
    )
    add(group, "--http2/--no-http2", help="Serve HTTP/2 to clients that choose it.")
    add(group, "--server-header/--no-server-header", help="Send the Server header.")
    add(group, "--date-header/--no-date-header", help="Send the Date header.")

    group = "Limits"
    add(
        group,
        "--limit-concurrency",
        help="Number of connections or requests above which the server answers 503.",
    )
    add(
        group,
        "--limit-http2-requests",
        ours=True,
        help="Requests after which an HTTP/2 client is asked to open a new connection; 0: no limit.",
    )
    add(group, "--limit-head", ours=True, help="Maximum size of a request's head, in bytes.")
    add(group, "--limit-fields", ours=True, help="Maximum number of header fields of a request.")
    add(
        group,
        "--limit-body-ahead",
        ours=True,
        help="How many bytes of a request body to read ahead of the application.",
    )
    add(group, "--timeout-keep-alive", help="Seconds to wait for the next request on a connection.")
    add(group, "--timeout-head", ours=True, help="Seconds to wait for a complete head; 0: no limit.")
    add(group, "--timeout-body", ours=True, help="Seconds to wait for more of a body; 0: no limit.")
    add(group, "--timeout-write", help="Seconds to wait for a client to read; 0: no limit.", ours=True)
    add(
        group,
        "--timeout-graceful-shutdown",
        help="Seconds that requests have to finish at shutdown; 0: cancel requests at once.",
    )

    group = "WebSocket"
    add(group, "--ws", metavar="auto|none", help="Whether to serve WebSockets.")
    add(group, "--ws-max-size", help="Maximum size of a message, in bytes.")
    add(group, "--ws-max-queue", help="How many messages to read ahead of the application.")
    add(group, "--ws-ping-interval", help="Seconds between pings; 0: no pings.")
    add(group, "--ws-ping-timeout", help="Seconds to wait for the answer to a ping; 0: no limit.")
    add(group, "--ws-per-message-deflate", type=bool, help="Whether to compress messages.")

    group = "TLS"
    add(
        group,
        "--ssl-certfile",
        metavar="PATH",
        help="Certificate file, with its chain; serves HTTPS. Reloaded when it changes.",
    )
    add(group, "--ssl-keyfile", metavar="PATH", help="File of the certificate's key, if it is separate.")
    add(group, "--ssl-keyfile-password", help="The key's password.")
    add(group, "--ssl-ca-certs", metavar="PATH", help="File of the authorities that issue clients' certificates.")
    add(group, "--ssl-cert-reqs", type=int, help="Clients' certificates: 0 none, 1 optional, 2 required.")
    add(group, "--ssl-ciphers", help="TLS 1.2 ciphers, in OpenSSL's format.")
    add(group, "--ssl-version", type=int, help="Protocol: the number of an ssl.PROTOCOL_... constant of Python.")
    add(group, "--ssl-handshake-timeout", ours=True, help="Seconds that a client has for the TLS handshake.")
    add(group, "--ssl-shutdown-timeout", ours=True, help="Seconds to wait for a client's TLS closing message.")

    group = "Other"
    for name, attributes in _UVICORNS.items():
        add(group, name, hidden=True, **attributes)
    options.append(
        click.Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_show_version,
            help="Show the version and exit.",
        )
    )
    return options


# Accepted because uvicorn's command lines use them. All but the last have no effect; `Config` warns about that.
_UVICORNS: dict[str, dict[str, Any]] = {
    "--loop": {},
    "--http": {},
    "--h11-max-incomplete-event-size": {},
}


def _serve(app: str, app_dir: str, **options: Any) -> None:
    if options["workers"] is None:
        try:
            workers_in_environment()
        except ValueError as error:
            raise click.UsageError(str(error)) from None
    for name in ("reload_dirs", "reload_includes", "reload_excludes"):
        options[name] = list(options[name]) or None
    if options["log_config"] is None:
        del options["log_config"]
    run(app, app_dir=app_dir, **options)


def command(program: str) -> click.Command:
    """`serve`, under the name of the program that it is part of."""
    return _Command(
        f"{program} serve",
        params=_options(),
        callback=_serve,
        help="Serve an ASGI application over HTTP/1.1, HTTP/2 and WebSocket.",
        epilog="Each option can also be set by an environment variable: --port by RINGLOOP_PORT, or by UVICORN_PORT. "
        "See docs/serve.md.",
    )


def main(arguments: Sequence[str], program: str) -> None:
    """Runs the command line `serve`, without the word itself. Raises SystemExit: 2 for a mistake in it."""
    command(program).main(list(arguments), prog_name=f"{program} serve")
