"""Targets: what each target.toml says, whether it can run here, and how it is built.

A target is a folder with a `target.toml`; each of its variants is an arm. docs/lab.md describes the keys. An unknown
key is an error, so that a misspelt one never goes unnoticed.
"""

import contextlib
import difflib
import functools
import json
import math
import os
import re
import select
import shlex
import string
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, TypeVar

from ringlab import Refused, guarded, results, sources

FILE_NAME = "target.toml"
KINDS = ("echo", "http", "discard", "bind", "asgi", "wsgi", "loops", "files")
"""The kinds of work that a program can be asked for."""
WORKLOADS = ("bind", "http", "rtt", "echo", "asgi", "wsgi", "loops", "files")
SERVED = (*WORKLOADS, "discard")
"""The workloads that arms can serve, and what a workload of another name needs (workloads.LOADS)."""
KIND_OF_WORKLOAD = {name: name for name in SERVED} | {"rtt": "echo"}
APPLICATIONS = ("asgi", "wsgi")
"""The kinds of servers of Python applications, which are started for a feature that they may lack."""
SERVERS = ("echo", "http", "discard", *APPLICATIONS)
"""The kinds that are loaded from another process."""
SUBJECTS = ("loops", "files")
"""The kinds whose program measures one thing itself, and prints its figures; what it measures is appended to its command."""
SIGNALS = ("SIGTERM", "SIGINT", "SIGKILL")
PARSERS = ("canned", "real", "none")
BIND_MODES = ("bind", "listen", "accept")
PLACEHOLDERS_EVERYWHERE = frozenset({"build", "target", "python", "binary"})
PLACEHOLDERS = {
    "echo": frozenset({"host", "port", "workers"}),
    "http": frozenset({"host", "port", "workers"}),
    "discard": frozenset({"host", "port", "workers"}),
    "bind": frozenset({"mode", "count", "concurrent"}),
    **dict.fromkeys(APPLICATIONS, frozenset({"host", "port", "workers", "feature"})),
    **dict.fromkeys(SUBJECTS, frozenset({"window", "warm_up", "server_cpus", "load_cpus", "load"})),
}
DETECT_TIMEOUT_S = 60
TIMEOUT_S_MIN = 0.1
INTEGER_MIN, INTEGER_MAX = -(1 << 63), (1 << 63) - 1
"""The range of integers in TOML (toml.io/en/v1.0.0#integer)."""
BUILD_TIMEOUT_S = 1800
BUILD_POLL_S = 0.2
CARGO_PROGRESS = {"CARGO_TERM_PROGRESS_WHEN": "always", "CARGO_TERM_PROGRESS_WIDTH": "70"}
"""The environment in which cargo draws its progress also into a pipe."""
TERMINAL_CODES = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")
LOG_NAME = "build.log"
STAMP_NAME = "built-with.txt"
ANY_BYTES = "surrogateescape"
"""How a text holds the bytes of a path that isn't UTF-8 (PEP 383)."""
OWN_VARIABLES = ("RINGLAB_LOAD", "RINGLAB_LOCKS", "RINGLAB_PYTHON", "RINGLAB_TARGETS")
"""The variables of the lab itself, which say to a server that it is measured, and nothing that it needs."""

T = TypeVar("T")
Tell = Callable[[str], object]
"""Is told how far something is, in a line."""


class ManifestError(Refused):
    """A manifest can't be used; the message names file, key and remedy."""


class BuildFailed(Exception):
    """A target can't be built; the message says why, and where all of the output is."""


def again_name(name: str) -> str:
    """Return the name of an arm's second copy, the A/A arm."""
    return f"{name} (again)"


@dataclass(frozen=True)
class Detect:
    """The conditions under which a target can run."""

    commands: tuple[str, ...] = ()
    binary: str = ""
    """The environment variable that holds the path of an installed binary."""
    needs: str = ""
    install: str = ""
    python: str = ""
    """The only version of Python that `install` works for, as 3.14; empty where others do, too."""


@dataclass(frozen=True)
class Build:
    """How a target is built; nothing to do where `command` is empty."""

    command: str = ""
    artefact: str = ""
    always: bool = False


@dataclass(frozen=True)
class Ready:
    """How a server says that it listens."""

    line: str = "listening on "
    connect: bool = False
    timeout_s: float = 10.0


@dataclass(frozen=True)
class Stop:
    """How a server is ended."""

    signal: str = "SIGTERM"
    timeout_s: float = 5.0
    exit_codes: tuple[int, ...] = (0,)


@dataclass(frozen=True)
class Declares:
    """The declarations of an arm about itself; None if it declares nothing."""

    workers: int = 1
    """0 if nobody knows."""
    max_workers: int = 0
    nodelay: bool | None = None
    backlog: int | None = None
    buffer_bytes: int | None = None
    parser: str = ""
    bind_modes: tuple[str, ...] = BIND_MODES
    half_close: bool = True
    lacks: tuple[str, ...] = ()
    """Features that some cells are about, and that the arm doesn't have."""


@dataclass(frozen=True)
class Arm:
    """One contestant: everything that is needed to run it."""

    name: str
    target: str
    language: str
    title: str
    folder: Path
    build_folder: Path
    commands: Mapping[str, str]
    """By kind, not yet expanded."""
    workloads: tuple[str, ...]
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    detects: tuple[Detect, ...] = ()
    build: Build = Build()
    ready: Ready = Ready()
    stop: Stop = Stop()
    declares: Declares = Declares()
    warm_up_s: float = 0.0
    """The shortest warm-up before anything is measured, for servers that compile at run time."""
    python: str = ""
    """For {python}; where it is empty, $RINGLAB_PYTHON, or the running interpreter."""
    quick: bool = True
    """Whether a quick run includes it even if it is not named."""
    repeats: str = ""
    """The arm that this one is a second copy of."""
    address: str = ""
    """As HOST:PORT, of a server that runs already: it isn't started, and ends when it likes."""

    def again(self) -> "Arm":
        """Return the A/A arm: the same under another name."""
        return replace(self, name=again_name(self.name), title=f"{self.title}, a second copy", repeats=self.name)

    def placeholders(self) -> dict[str, str]:
        """Return the placeholders that are the same in all commands."""
        binary = next((os.environ.get(detect.binary, "") for detect in self.detects if detect.binary), "")
        python = self.python or os.environ.get("RINGLAB_PYTHON") or sys.executable
        return {"build": str(self.build_folder), "target": str(self.folder), "python": python, "binary": binary}

    def expand(self, text: str) -> str:
        """Put values for the placeholders that are the same in all commands."""
        return text.format_map(self.placeholders())

    def shell(self, text: str) -> str:
        """Put the same values into a shell command, each as one word."""
        return text.format_map({name: shlex.quote(value) for name, value in self.placeholders().items()})

    def command(self, kind: str, **values: object) -> list[str]:
        """Return the command of the program that serves `kind`."""
        known = self.placeholders() | {name: str(value) for name, value in values.items()}
        words = [word.format_map(known) for word in shlex.split(self.commands[kind])]
        return words + [word.format_map(self.placeholders()) for word in self.arguments]

    def child_environment(self) -> dict[str, str]:
        """Return the environment in which the program is looked for, and built."""
        own = {name: self.expand(value) for name, value in self.environment.items()}
        return dict(os.environ) | own

    def run_environment(self) -> dict[str, str]:
        """Return the environment of the program where it is measured, in which nothing says so."""
        return {name: value for name, value in self.child_environment().items() if name not in OWN_VARIABLES}

    def record(self) -> results.Arm:
        """Return its description for a result."""
        declares: dict[str, Any] = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in vars(self.declares).items()
            if value not in (None, "", ())
        }
        return results.Arm(
            name=self.name,
            target=self.target,
            language=self.language,
            title=self.title,
            workloads=list(self.workloads),
            declares=declares,
            environment=dict(self.environment),
            repeats=self.repeats,
        )


class Table:
    """One table of a manifest. It is read key by key; keys that were never read are an error."""

    def __init__(self, path: Path, where: str, content: object) -> None:
        """Take the table that is at `where` in the file."""
        self.path = path
        self.where = where
        if not isinstance(content, dict):
            raise ManifestError(f"{path}: {where} must be a table, not {content!r}")
        self.content = content
        self.known: set[str] = set()

    def fail(self, key: str, text: str) -> ManifestError:
        """Return an error about a key."""
        place = f"{self.where}.{key}" if self.where else key
        return ManifestError(f"{self.path}: {place} {text}")

    def get(self, key: str, kind: type[T], default: T | None, what: str) -> T:
        """Return the value of a key; one without a default must be there."""
        self.known.add(key)
        if key not in self.content:
            if default is None:
                raise self.fail(key, f"is missing: add {key} = {what}")
            return default
        value = self.content[key]
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            raise self.fail(key, f"must be {what}, not {value!r}")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """Return a string."""
        return self.get(key, str, default, '"a string"')

    def seconds(self, key: str, default: float, *, least: float = 0.0) -> float:
        """Return a finite time that isn't negative: TOML also has inf and nan."""
        value = self.get(key, float, default, "a number of seconds")
        if not (math.isfinite(value) and value >= least):
            raise self.fail(key, f"must be a number of seconds, at least {least:g}, not {value!r}")
        return value

    def integer(self, key: str, default: int) -> int:
        """Return a number that isn't negative."""
        value = self.get(key, int, default, "a whole number")
        if value < 0:
            raise self.fail(key, f"must not be negative, it is {value}")
        return value

    def choice(self, key: str, default: str, choices: Sequence[str]) -> str:
        """Return one of these strings."""
        value = self.text(key, default)
        if value != default and value not in choices:
            raise self.fail(key, f"must be one of {', '.join(choices)}; it is {value!r}")
        return value

    def texts(self, key: str, default: Sequence[str] = ()) -> tuple[str, ...]:
        """Return a list of strings."""
        values = self.get(key, list, list(default), 'a list of strings, ["..."]')
        if not all(isinstance(value, str) for value in values):
            raise self.fail(key, f"must contain only strings, not {values!r}")
        return tuple(values)

    def mapping(self, key: str) -> dict[str, str]:
        """Return a table of strings."""
        values = self.get(key, dict, {}, 'a table of strings, { NAME = "value" }')
        for name, value in values.items():
            if not isinstance(value, str):
                raise self.fail(f"{key}.{name}", f"must be a string, not {value!r}")
        return values

    def table(self, key: str) -> "Table":
        """Return a table within, empty where there is none."""
        self.known.add(key)
        return Table(self.path, f"{self.where}.{key}" if self.where else key, self.content.get(key, {}))

    def done(self) -> None:
        """Raise an error for keys that were never read."""
        for key in self.content:
            if key not in self.known:
                near = difflib.get_close_matches(key, self.known, n=1)
                known = f"did you mean {near[0]}?" if near else f"known here: {', '.join(sorted(self.known))}"
                raise self.fail(key, f"is not known; {known}")


def check_placeholders(table: Table, key: str, text: str, allowed: frozenset[str]) -> None:
    """Raise an error for placeholders that don't exist."""
    try:
        fields = [each for each in string.Formatter().parse(text) if each[1] is not None]
    except ValueError as error:
        raise table.fail(key, f"has an unbalanced brace ({error}); write {{{{ for a literal one") from None
    for _, name, form, conversion in fields:
        if form or conversion:
            raise table.fail(key, f"has a format after {{{name}}}, which takes none")
        if name in allowed:
            continue
        known = ", ".join(f"{{{each}}}" for each in sorted(allowed))
        raise table.fail(key, f"uses {{{name}}}, which is not a placeholder here; known: {known}")


def read_detect(table: Table) -> Detect:
    """Read the conditions."""
    detect = Detect(
        table.texts("commands"),
        table.text("binary", ""),
        table.text("needs", ""),
        table.text("install", ""),
        table.text("python", ""),
    )
    if not re.fullmatch(r"(3\.[0-9]+)?", detect.python):
        raise table.fail("python", f"must be a version like 3.14, not {detect.python!r}")
    for command in (*detect.commands, detect.needs, detect.install):
        check_placeholders(table, "commands", command, PLACEHOLDERS_EVERYWHERE)
    if (detect.commands or detect.binary) and not (detect.needs and detect.install):
        lacking = "needs" if not detect.needs else "install"
        raise table.fail(
            lacking, "is missing: it tells users who lack the tool what it is, or which command installs it"
        )
    table.done()
    return detect


def read_declares(table: Table, default: Declares) -> Declares:
    """Read an arm's declarations, which override those of its target."""
    workers = table.integer("workers", default.workers)
    if workers == 0:
        raise table.fail("workers", "must be at least 1")

    def optional(key: str, read: Callable[[], T], value: T | None) -> T | None:
        table.known.add(key)
        return read() if key in table.content else value

    modes = table.texts("bind_modes", default.bind_modes)
    for mode in modes:
        if mode not in BIND_MODES:
            raise table.fail("bind_modes", f"accepts {', '.join(BIND_MODES)}, not {mode!r}")
    declares = Declares(
        workers=workers,
        max_workers=table.integer("max_workers", default.max_workers),
        nodelay=optional("nodelay", lambda: table.get("nodelay", bool, None, "true or false"), default.nodelay),
        backlog=optional("backlog", lambda: table.integer("backlog", 0), default.backlog),
        buffer_bytes=optional("buffer_bytes", lambda: table.integer("buffer_bytes", 0), default.buffer_bytes),
        parser=table.choice("parser", default.parser, PARSERS),
        bind_modes=modes,
        half_close=table.get("half_close", bool, default.half_close, "true or false"),
        lacks=table.texts("lacks", default.lacks),
    )
    table.done()
    return declares


def read_workloads(table: Table, commands: Mapping[str, str]) -> tuple[str, ...]:
    """Read which workloads a variant serves: those that the target has commands for, or fewer."""
    served = tuple(name for name in SERVED if KIND_OF_WORKLOAD[name] in commands)
    asked = table.texts("workloads", served)
    if not asked:
        raise table.fail("workloads", f"is empty; choose from {', '.join(served)}")
    for name in asked:
        if name not in SERVED:
            raise table.fail("workloads", f"accepts {', '.join(SERVED)}, not {name!r}")
        if name not in served:
            raise table.fail("workloads", f"has {name!r}, but there is no run.{KIND_OF_WORKLOAD[name]} to serve it")
    return tuple(name for name in SERVED if name in asked)


def read_commands(table: Table) -> dict[str, str]:
    """Read the commands by kind."""
    commands = {}
    for kind in KINDS:
        text = table.text(kind, "")
        if not text:
            continue
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise table.fail(kind, f"can't be split into words: {error}") from None
        if not words:
            raise table.fail(kind, "is empty")
        check_placeholders(table, kind, text, PLACEHOLDERS_EVERYWHERE | PLACEHOLDERS[kind])
        commands[kind] = text
    if not commands:
        raise table.fail("", f"has no command; add one of {', '.join(KINDS)}")
    return commands


def check_numbers(content: object) -> None:
    """Raise ValueError for whole numbers that tomllib reads and TOML doesn't have: they can be too long for an error message."""
    if isinstance(content, dict | list):
        for each in content.values() if isinstance(content, dict) else content:
            check_numbers(each)
    elif isinstance(content, int) and not INTEGER_MIN <= content <= INTEGER_MAX:
        raise ValueError("it has a whole number of more than 64 bits")


def read_target(path: Path, build_root: Path, python: str = "") -> list[Arm]:
    """Return the arms of one manifest; raise ManifestError."""
    try:
        content = tomllib.loads(path.read_text())
        check_numbers(content)
    except OSError as error:
        raise ManifestError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # Also of int(), and of too many brackets.
        raise ManifestError(f"{path} is not valid TOML: {error}") from None
    root = Table(path, "", content)
    name = read_name(root)
    if name != path.parent.name:
        raise root.fail("name", f"is {name!r}, but the folder is called {path.parent.name!r}: they must be the same")
    language, title = root.text("language"), root.text("title")
    detect = read_detect(root.table("detect"))
    build = read_build(root.table("build"))
    run = root.table("run")
    commands = read_commands(run)
    environment = run.mapping("environment")
    for value in environment.values():
        check_placeholders(run, "environment", value, PLACEHOLDERS_EVERYWHERE)
    warm_up_s = run.seconds("warm_up_s", 0.0)
    run.done()
    ready, stop = read_ready(root.table("ready")), read_stop(root.table("stop"))
    declares = read_declares(root.table("declares"), Declares())
    base = Arm(
        name=name,
        target=name,
        language=language,
        title=title,
        folder=path.parent.resolve(),
        build_folder=(build_root / name).absolute(),
        commands=commands,
        workloads=tuple(each for each in SERVED if KIND_OF_WORKLOAD[each] in commands),
        environment=environment,
        detects=(detect,),
        build=build,
        ready=ready,
        stop=stop,
        declares=declares,
        warm_up_s=warm_up_s,
        python=python,
    )
    variants = root.get("variants", list, [], "[[variants]]")
    root.done()
    arms = [read_variant(Table(path, f"variants[{index}]", variant), base) for index, variant in enumerate(variants)]
    return arms or [base]


def read_name(table: Table) -> str:
    """Read a name, which can be given to --targets."""
    name = table.text("name")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]*", name):
        raise table.fail("name", f"is {name!r}; use letters, digits and . _ + -, without spaces")
    return name


def read_variant(table: Table, base: Arm) -> Arm:
    """Return the arm that a variant describes."""
    environment = table.mapping("environment")
    arguments = table.texts("arguments")
    for value in (*environment.values(), *arguments):
        check_placeholders(table, "environment or arguments", value, PLACEHOLDERS_EVERYWHERE)
    name = read_name(table)
    arm = replace(
        base,
        name=name,
        title=table.text("title", base.title),
        environment={**base.environment, **environment},
        arguments=arguments,
        detects=(*base.detects, read_detect(table.table("detect"))),
        declares=read_declares(table.table("declares"), base.declares),
        workloads=read_workloads(table, base.commands),
        quick=table.get("quick", bool, True, "true or false"),
    )
    table.done()
    return arm


def read_build(table: Table) -> Build:
    """Read how a target is built."""
    build = Build(
        table.text("command", ""), table.text("artefact", ""), table.get("always", bool, False, "true or false")
    )
    check_placeholders(table, "command", build.command, PLACEHOLDERS_EVERYWHERE)
    check_placeholders(table, "artefact", build.artefact, PLACEHOLDERS_EVERYWHERE)
    if build.command and not build.artefact:
        raise table.fail("artefact", 'is missing: the file that the command makes, artefact = "{build}/..."')
    table.done()
    return build


def read_ready(table: Table) -> Ready:
    """Read how a server says that it listens."""
    ready = Ready(
        table.text("line", Ready.line),
        table.get("connect", bool, False, "true or false"),
        table.seconds("timeout_s", Ready.timeout_s, least=TIMEOUT_S_MIN),
    )
    table.done()
    return ready


def read_stop(table: Table) -> Stop:
    """Read how a server is ended."""
    codes = table.get("exit_codes", list, list(Stop.exit_codes), "a list of numbers")
    if not all(type(code) is int for code in codes):
        raise table.fail("exit_codes", f"must contain only whole numbers, not {codes!r}")
    stop = Stop(
        table.choice("signal", Stop.signal, SIGNALS),
        table.seconds("timeout_s", Stop.timeout_s, least=TIMEOUT_S_MIN),
        tuple(codes),
    )
    table.done()
    return stop


def default_folder() -> Path:
    """Return where the targets are: $RINGLAB_TARGETS, or among the lab's sources."""
    named = os.environ.get("RINGLAB_TARGETS")
    return Path(named) if named else (sources.folder() or Path.cwd()) / "targets"


def default_build_root(folder: Path) -> Path:
    """Return where targets are built: $RINGLAB_BUILD, or beside them."""
    return Path(os.environ.get("RINGLAB_BUILD") or folder / ".build")


def discover(
    folder: Path | None = None,
    build_root: Path | None = None,
    python: str = "",
    broken: dict[str, str] | None = None,
) -> list[Arm]:
    """Return the arms of all targets in a folder, by name.

    Raise ManifestError where there are none. Errors of single manifests go into `broken`, by the name of the folder; without it
    they are raised.
    """
    folder = folder or default_folder()
    paths = sorted(folder.glob(f"*/{FILE_NAME}"))
    if not paths:
        raise ManifestError(
            f"no target in {folder}: each is a folder with a {FILE_NAME}; say where they are with --targets-folder or RINGLAB_TARGETS"
        )
    arms: dict[str, Arm] = {}
    for path in paths:
        try:
            found = read_target(path, build_root or default_build_root(folder), python)
            for arm in found:
                if arm.name in arms:
                    other = arms[arm.name].folder / FILE_NAME
                    raise ManifestError(f"{path}: the arm {arm.name} is in {other} as well; names must differ")
        except ManifestError as error:
            if broken is None:
                raise
            broken[path.parent.name] = str(error)
        else:
            arms |= {arm.name: arm for arm in found}
    if not arms and broken:
        raise ManifestError("; ".join(broken.values()))
    return sorted(arms.values(), key=lambda arm: arm.name)


def last_line(text: str) -> str:
    """Return the last line that isn't empty."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


@dataclass(frozen=True)
class Presence:
    """Whether an arm can run here."""

    version: str = ""
    skipped: str = ""
    install: str = ""


def detect_all(arm: Arm, cache: dict[tuple[str, str], Presence] | None = None) -> Presence:
    """Find out whether what an arm needs is here; `cache` spares asking the same twice."""
    version = ""
    for detect in arm.detects:
        for presence in detect_each(arm, detect, {} if cache is None else cache):
            if presence.skipped:
                return presence
            version = version or presence.version
    return Presence(version)


@functools.cache
def python_version(python: str) -> str:
    """Return the version of an interpreter as 3.14, or nothing where it doesn't run."""
    words = [python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(words, capture_output=True, text=True, timeout=DETECT_TIMEOUT_S, check=False)
        return done.stdout.strip()
    return ""


def detect_each(arm: Arm, detect: Detect, cache: dict[tuple[str, str], Presence]) -> Iterator[Presence]:
    """Yield the finding about each need, and end with the first that is missing."""
    needs, install = arm.expand(detect.needs), arm.shell(detect.install)
    if detect.python and detect.python != (has := python_version(arm.placeholders()["python"])):
        install = (
            f"export RINGLAB_PYTHON=/path/to/python{detect.python} (this one is {has or 'none'}), and then: {install}"
        )
    if detect.binary:
        path = os.environ.get(detect.binary, "")
        if not path:
            yield Presence(skipped=f"{needs}: {detect.binary} isn't set to the path of its binary", install=install)
            return
        if not os.access(path, os.X_OK):
            yield Presence(skipped=f"{needs}: {detect.binary} is {path}, which can't be run", install=install)
            return
    for text in detect.commands:
        command = arm.shell(text)
        key = (str(arm.folder), command)
        if key not in cache:
            cache[key] = ask(arm, command, needs, install)
        yield cache[key]


def ask(arm: Arm, command: str, needs: str, install: str) -> Presence:
    """Run a detect command."""
    try:
        done = guarded.run(["sh", "-c", command], cwd=arm.folder, env=arm.child_environment(), timeout=DETECT_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return Presence(skipped=f"{needs}: `{command}` didn't end within {DETECT_TIMEOUT_S} s", install=install)
    if done.returncode != 0:
        reason = last_line(done.stderr) or last_line(done.stdout) or f"`{command}` failed with code {done.returncode}"
        return Presence(skipped=f"{needs}: {results.shorten(reason)}", install=install)
    return Presence(version=results.shorten(version_of(done.stdout or done.stderr), 80))


def version_of(text: str) -> str:
    """Return the version that a detect command prints: its first line, or the values of a JSON object."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    with contextlib.suppress(ValueError):
        content = json.loads(line)
        if isinstance(content, dict):
            return ", ".join(f"{name} {value}" for name, value in content.items() if value)
    return line


def is_built(arm: Arm) -> bool:
    """Return whether the artefact is newer than everything in the target's folder, and was made by the same command."""
    artefact = Path(arm.expand(arm.build.artefact))
    if arm.build.always or not artefact.exists():
        return False
    stamp = arm.build_folder / STAMP_NAME
    if not stamp.exists() or stamp.read_text(errors=ANY_BYTES) != arm.shell(arm.build.command):
        return False
    made = stamp.stat().st_mtime
    sources = (path for path in arm.folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return all(path.stat().st_mtime <= made for path in sources if not path.is_relative_to(arm.build_folder))


def build(arm: Arm, built: set[Path] | None = None, limit_s: float = BUILD_TIMEOUT_S, tell: Tell = str) -> None:
    """Build an arm's target if necessary; `built` has the folders that are up to date. Raise BuildFailed."""
    if not arm.build.command or (built is not None and arm.build_folder in built):
        return
    if not is_built(arm):
        command, log = arm.shell(arm.build.command), arm.build_folder / LOG_NAME
        run_build(
            ["sh", "-c", command],
            command,
            arm.folder,
            arm.child_environment(),
            log,
            limit_s,
            lambda text: tell(f"building {arm.target}: {text}"),
        )
        if not Path(arm.expand(arm.build.artefact)).exists():
            raise BuildFailed(f"`{command}` didn't make {arm.expand(arm.build.artefact)}; its output: {log}")
        (arm.build_folder / STAMP_NAME).write_text(command, errors=ANY_BYTES)
    if built is not None:
        built.add(arm.build_folder)


def run_build(
    words: Sequence[str],
    shown: str,
    folder: Path,
    environment: Mapping[str, str],
    log: Path,
    limit_s: float,
    tell: Tell,
    stdout: IO[bytes] | None = None,
) -> None:
    """Run a command that builds something, and tell each line of its output, which goes into a log. Raise BuildFailed.

    `shown` is the command in messages. `stdout` gets its standard output, where that is for programs.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + limit_s
    tell(shown)
    with log.open("wb") as kept:
        kept.write(f"$ {shown}\n".encode(errors=ANY_BYTES))
        process = guarded.Guarded(
            list(words),
            cwd=folder,
            env={**environment, **CARGO_PROGRESS},
            stdin=subprocess.DEVNULL,
            stdout=stdout or subprocess.PIPE,
            stderr=subprocess.PIPE if stdout else subprocess.STDOUT,
        )
        output = process.stderr if stdout else process.stdout
        assert output is not None
        try:
            pending = b""
            while time.monotonic() < deadline:
                # Asked before anything is read, because what has ended writes nothing more.
                ended = process.poll() is not None
                if not select.select([output], [], [], 0 if ended else BUILD_POLL_S)[0]:
                    if ended:
                        break
                    continue
                if not (data := os.read(output.fileno(), 1 << 16)):
                    break
                pending = TERMINAL_CODES.sub(b"", pending + data)
                # Progress is drawn over itself, from a carriage return on. The piece behind the last end isn't complete.
                *pieces, _ = re.split(rb"[\r\n]", pending)
                *lines, pending = pending.split(b"\n")
                kept.writelines(line.rpartition(b"\r")[2] + b"\n" for line in lines)
                kept.flush()
                if text := last_line(b"\n".join(pieces).decode(errors="replace")):
                    tell(text)
            kept.write(pending.rpartition(b"\r")[2])
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise BuildFailed(f"`{shown}` didn't end within {limit_s:.0f} s; its output: {log}") from None
        finally:
            process.end()
            output.close()
    if process.returncode != 0:
        words_said = results.shorten(last_line(log.read_text(errors="replace")))
        raise BuildFailed(f"`{shown}` failed with code {process.returncode}: {words_said}; all of its output: {log}")
