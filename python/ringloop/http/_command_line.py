"""`ringloop serve`: uvicorn's command line with some more options, built with click."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

import ringloop

from .._platform import DOCUMENTATION
from . import _headers
from ._config import Config, workers_in_environment
from ._config_file import ConfigFile, ConfigFileError, find
from ._importing import import_failures_shown
from ._options import LONGEST_S, Names, Numbers, Option, Seconds, default_of, options_of
from ._run import check_application, run
from .logging import LOG_LEVELS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_HEAD_OF_NAMES = ("RINGLOOP_", "UVICORN_")

# Where a context has the configuration file.
_FILE = "ringloop.http.config_file"


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
        """Return the option's name in a message about a wrong value: as the user has set it."""
        assert self.name is not None
        source = None if ctx is None else ctx.get_parameter_source(self.name)
        if ctx is not None and source is ParameterSource.DEFAULT_MAP:
            file: ConfigFile = ctx.meta[_FILE]
            return f"'{self.name.replace('_', '-')}' ({file.place_of(self.name)})"
        if source is not ParameterSource.ENVIRONMENT:
            return super().get_error_hint(ctx)
        return next(f"the environment variable {name}" for name in self.envvar or () if os.environ.get(name))


class _Command(click.Command):
    """A command whose help shows its options in groups, and whose defaults may come from a file."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:
            given, _, _ = self.make_parser(ctx).parse_args(list(args))
            # --help and --version need no file.
            if given.keys().isdisjoint(parameter.name for parameter in self.get_params(ctx) if parameter.is_eager):
                self._read_file(ctx, given)
        return super().parse_args(ctx, args)

    def _read_file(self, ctx: click.Context, given: Mapping[str, Any]) -> None:
        """Use the values of the configuration file as the options' defaults."""
        environment = {parameter.name: parameter.resolve_envvar_value(ctx) for parameter in self.params}
        path = given.get("config") or environment["config"]
        directory = given.get("app_dir") or environment["app_dir"]
        try:
            file = ConfigFile(path) if path else find(["", *([directory] if directory else [])])
        except ConfigFileError as error:
            raise click.UsageError(str(error), ctx) from None
        if file is not None:
            ctx.meta[_FILE] = file
            ctx.default_map = file.values

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
        if (mistake := _headers.mistake(name, value)) is not None:
            raise click.BadParameter(f"{text!r} {mistake}", context, parameter)
        headers.append((name, value))
    return headers


def _check_path(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    if value is not None and not value.startswith("/"):
        raise click.BadParameter("the path must begin with a slash")
    return value


def _check_folders(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> list[str]:
    if not values:
        return []
    from . import _static  # Most servers serve no files.

    try:
        folders = _static.split_all(values)
    except ValueError as error:
        raise click.BadParameter(str(error), context, parameter) from None
    for folder in folders.values():
        if not os.path.isdir(folder):
            raise click.BadParameter(f"Directory {folder!r} does not exist.", context, parameter)
    return list(values)


def _check_directory(_: click.Context, __: click.Parameter, value: str) -> str:
    if value and not os.path.isdir(value):
        raise click.BadParameter(f"Directory {value!r} does not exist.")
    return value


def _show_version(context: click.Context, parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        import platform  # A server doesn't need it.

        python = f"{platform.python_implementation()} {platform.python_version()}"
        click.echo(f"Running ringloop {ringloop.__version__} with {python} on {platform.system()}")
        context.exit()


@contextlib.contextmanager
def _naming_what_is_valid(allowed: Numbers | Seconds) -> Iterator[None]:
    """Add the valid values to click's message about an invalid one."""
    try:
        yield
    except click.BadParameter as error:
        valid = str(allowed)
        if isinstance(allowed, Numbers) and allowed.largest == sys.maxsize:
            valid = f"a whole number from {allowed.smallest} on"
        raise click.BadParameter(f"{error.message} Use {valid}.", error.ctx, error.param) from None


class _Number(click.IntRange):
    """A whole number. The help doesn't mention the maximum."""

    name = "integer"

    def __init__(self, allowed: Numbers) -> None:
        super().__init__(min=allowed.smallest)
        self._allowed = allowed

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        with _naming_what_is_valid(self._allowed):
            number: int = super().convert(value, param, ctx)
        if number > self._allowed.largest:
            self.fail(f"{value} is too large: the maximum is {self._allowed.largest}.", param, ctx)
        return number


class _Seconds(click.FloatRange):
    """A time that is neither infinite nor longer than anybody waits."""

    name = "float"

    def __init__(self, allowed: Seconds) -> None:
        super().__init__(min=0, min_open=allowed.positive)
        self._allowed = allowed

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        with _naming_what_is_valid(self._allowed):
            seconds: float = super().convert(value, param, ctx)
        if not seconds <= LONGEST_S:
            self.fail(f"{value} is not a number of seconds up to {LONGEST_S}.", param, ctx)
        return seconds


def _type_of(allowed: Numbers | Seconds | Names) -> click.ParamType[Any]:
    if isinstance(allowed, Numbers):
        return _Number(allowed)
    return _Seconds(allowed) if isinstance(allowed, Seconds) else click.Choice(allowed.words)


class _File(click.Path):
    """A file that exists, or the table that a configuration file may have instead."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if isinstance(value, dict) else super().convert(value, param, ctx)


_PATH = _File(exists=True)
# A switch can be turned off by --no-..., a flag can't, and a truth has a value.
_KINDS: dict[str, dict[str, Any]] = {
    "value": {},
    "switch": {},
    "flag": {"is_flag": True},
    "truth": {"type": bool},
    "number": {"type": int},
    "file": {"type": _PATH},
    "files": {"type": _PATH, "multiple": True},
    "globs": {"multiple": True},
    "folders": {"multiple": True, "callback": _check_folders},
    "headers": {"multiple": True, "callback": _split_header},
    "url path": {"callback": _check_path},
    "log level": {"type": click.Choice(tuple(LOG_LEVELS))},
}


def _make_option(field: dataclasses.Field[Any], row: Option) -> _Option:
    """Return click's option for one row of the table."""
    attributes = dict(_KINDS[row.kind])
    if row.values is not None:
        attributes["type"] = _type_of(row.values)
    if not attributes.get("multiple"):
        attributes["default"], attributes["show_default"] = default_of(field)
    spelling = f"{row.spelling}/{row.negation}" if row.negation else row.spelling
    return _Option(
        [spelling, field.name],
        group=row.group,
        ours=not row.is_uvicorns,
        help=row.help,
        metavar=row.metavar,
        hidden=row.hidden,
        **attributes,
    )


def _options() -> list[click.Parameter]:
    return [
        click.Argument(["app"], envvar=[f"{head}APP" for head in _HEAD_OF_NAMES], metavar="MODULE:ATTRIBUTE"),
        *(_make_option(field, row) for field, row in options_of(Config)),
        # These two are about the command, and no settings of a server.
        _Option(
            ["--app-dir"],
            group="Application",
            ours=False,
            default="",
            metavar="PATH",
            callback=_check_directory,
            help="Where the module is. Default: the current directory.",
        ),
        _Option(
            ["--config"],
            group="Application",
            ours=True,
            metavar="FILE.toml",
            help="File with settings. Default: pyproject.toml, if it has a table [tool.ringloop.serve].",
        ),
        click.Option(
            ["--check"],
            is_flag=True,
            help="Load the configuration, the certificate and the application, and exit.",
        ),
        click.Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_show_version,
            help="Show the version and exit.",
        ),
    ]


def _serve(app: str, app_dir: str, config: str | None, check: bool, **options: Any) -> None:
    del config  # It has been read.
    if options["workers"] is None:
        try:
            workers_in_environment()
        except ValueError as error:
            raise click.UsageError(str(error)) from None
    for name in ("reload_dirs", "reload_includes", "reload_excludes"):
        options[name] = list(options[name]) or None
    if options["log_config"] is None:
        del options["log_config"]
    with import_failures_shown():
        if check:
            check_application(app, app_dir=app_dir, **options)
            click.echo(f"{app} can be served.")
        else:
            run(app, app_dir=app_dir, **options)


def command(program: str) -> click.Command:
    """`serve`, under the name of the program that it is part of."""
    return _Command(
        f"{program} serve",
        params=_options(),
        callback=_serve,
        help="Serve an ASGI or WSGI application over HTTP/1.1, HTTP/2 and WebSocket.",
        epilog="Each option can also be set by an environment variable: --port by RINGLOOP_PORT, or by UVICORN_PORT. "
        f"Documentation: {DOCUMENTATION}/serve.md",
    )


def complete(variable: str) -> None:
    """Answer a shell that completes a command line of `ringloop`; it asks with this environment variable."""
    flags = [click.Option([name], is_flag=True) for name in ("--version", "--json", "--check")]
    group = click.Group(
        "ringloop", params=[*flags], commands={"serve": command("ringloop"), "gunicorn": click.Command("gunicorn")}
    )
    group.commands["serve"].name = "serve"
    group.main([], prog_name="ringloop", complete_var=variable)


def main(arguments: Sequence[str], program: str) -> None:
    """Run the command line `serve`, without the word itself. Raise SystemExit: 2 for a mistake in it."""
    command(program).main(list(arguments), prog_name=f"{program} serve")
