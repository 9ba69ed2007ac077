"""Targets: what each target.toml says, whether it can run here, and how it is built.

A target is a folder with a `target.toml`; each of its variants is an arm. docs/lab.md describes the keys.
"""

import contextlib
import functools
import json
import os
import re
import shlex
import string
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Annotated, Any, Literal

from ringlab import guarded, results, sources, tables
from ringlab.tables import WrongFile, WrongKey

FILE_NAME = "target.toml"
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
BindMode = Literal["bind", "listen", "accept"]
PLACEHOLDERS_EVERYWHERE = frozenset({"build", "target", "python"})
PLACEHOLDERS = {
    **dict.fromkeys(("echo", "http", "discard"), frozenset({"host", "port", "workers"})),
    "bind": frozenset({"mode", "count", "concurrent"}),
    **dict.fromkeys(APPLICATIONS, frozenset({"host", "port", "workers", "feature"})),
    **dict.fromkeys(SUBJECTS, frozenset({"window", "warm_up", "server_cpus", "load_cpus", "load"})),
}
"""By the kind of work that a program can be asked for."""
DETECT_TIMEOUT_S = 60
BUILD_TIMEOUT_S = 1800
BUILD_POLL_S = 0.2
NEWEST_BYTES = 4096
"""Of a build's output: in these its newest line is looked for."""
CARGO_PROGRESS = {"CARGO_TERM_PROGRESS_WHEN": "always", "CARGO_TERM_PROGRESS_WIDTH": "70"}
"""The environment in which cargo draws its progress also into a pipe."""
TERMINAL_CODES = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")
LOG_NAME = "build.log"
STAMP_NAME = "built-with.txt"
ANY_BYTES = "surrogateescape"
"""How a text holds the bytes of a path that isn't UTF-8 (PEP 383)."""
OWN_VARIABLES = ("RINGLAB_LOAD", "RINGLAB_LOCKS", "RINGLAB_PYTHON", "RINGLAB_TARGETS")
"""The variables of the lab itself, which say to a server that it is measured, and nothing that it needs."""

Tell = Callable[[str], object]
"""Is told how far something is, in a line."""


class BuildFailed(Exception):
    """A target can't be built; the message says why, and where all of the output is."""


def again_name(name: str) -> str:
    """Return the name of an arm's second copy, the A/A arm."""
    return f"{name} (again)"


def check_placeholders(allowed: Collection[str], text: str) -> None:
    """Raise ValueError for placeholders that don't exist."""
    try:
        fields = [each for each in string.Formatter().parse(text) if each[1] is not None]
    except ValueError as error:
        raise ValueError(f"has an unbalanced brace ({error}); write {{{{ for a literal one") from None
    for _, name, form, conversion in fields:
        if form or conversion:
            raise ValueError(f"has a format after {{{name}}}, which takes none")
        if name not in allowed:
            known = ", ".join(f"{{{each}}}" for each in sorted(allowed))
            raise ValueError(f"uses {{{name}}}, which is not a placeholder here; known: {known}")


def check_command(allowed: Collection[str], text: str) -> None:
    """Raise ValueError for a command that can't be split into words, or has placeholders that don't exist."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"can't be split into words: {error}") from None
    if not words:
        raise ValueError("is empty")
    check_placeholders(allowed, text)


def command_of(kind: str) -> Callable[[str], None]:
    """Return the check of a command that starts a program for this kind of work."""
    return functools.partial(check_command, PLACEHOLDERS_EVERYWHERE | PLACEHOLDERS[kind])


def check_version(text: str) -> None:
    """Raise ValueError for what isn't a version of Python."""
    if not re.fullmatch(r"(3\.[0-9]+)?", text):
        raise ValueError(f"must be a version like 3.14, not {text!r}")


def check_name(name: str) -> None:
    """Raise ValueError for a name that can't be given to --targets."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]*", name):
        raise ValueError(f"is {name!r}; use letters, digits and . _ + -, without spaces")


Name = Annotated[str, check_name]
Template = Annotated[str, functools.partial(check_placeholders, PLACEHOLDERS_EVERYWHERE)]
Count = Annotated[int, tables.at_least(0)]
Timeout = Annotated[float, tables.at_least(0.1)]


@dataclass(frozen=True)
class Detect:
    """The conditions under which a target can run."""

    commands: tuple[Template, ...] = ()
    needs: Template = ""
    install: Template = ""
    python: Annotated[str, check_version] = ""
    """The only version of Python that `install` works for, as 3.14; empty where others do, too."""

    def __post_init__(self) -> None:
        """Check that users are told what they lack."""
        if self.commands and not (self.needs and self.install):
            lacking = "install" if self.needs else "needs"
            raise ValueError(
                f"{lacking} is missing: it tells users who lack the tool what it is, or which command installs it"
            )


@dataclass(frozen=True)
class Build:
    """How a target is built; nothing to do where `command` is empty."""

    command: Template = ""
    artefact: Template = ""
    always: bool = False

    def __post_init__(self) -> None:
        """Check that something is made."""
        if self.command and not self.artefact:
            raise ValueError('artefact is missing: the file that the command makes, artefact = "{build}/..."')


@dataclass(frozen=True)
class Run:
    """The commands by kind, not yet expanded, and what they need."""

    echo: Annotated[str, command_of("echo")] = ""
    http: Annotated[str, command_of("http")] = ""
    discard: Annotated[str, command_of("discard")] = ""
    bind: Annotated[str, command_of("bind")] = ""
    asgi: Annotated[str, command_of("asgi")] = ""
    wsgi: Annotated[str, command_of("wsgi")] = ""
    loops: Annotated[str, command_of("loops")] = ""
    files: Annotated[str, command_of("files")] = ""
    environment: dict[str, Template] = field(default_factory=dict)
    warm_up_s: Annotated[float, tables.at_least(0)] = 0.0


@dataclass(frozen=True)
class Ready:
    """How a server says that it listens."""

    line: str = "listening on "
    connect: bool = False
    timeout_s: Timeout = 10.0


@dataclass(frozen=True)
class Stop:
    """How a server is ended."""

    signal: Literal["SIGTERM", "SIGINT", "SIGKILL"] = "SIGTERM"
    timeout_s: Timeout = 5.0
    exit_codes: tuple[int, ...] = (0,)


@dataclass(frozen=True)
class Declares:
    """The declarations of an arm about itself; None if it declares nothing."""

    workers: Annotated[int, tables.at_least(1)] = 1
    """0 if nobody knows."""
    max_workers: Count = 0
    nodelay: bool | None = None
    backlog: Count | None = None
    buffer_bytes: Count | None = None
    parser: Literal["canned", "real", "none"] | None = None
    bind_modes: tuple[BindMode, ...] = ("bind", "listen", "accept")
    half_close: bool = True
    lacks: tuple[str, ...] = ()
    """Features that some cells are about, and that the arm doesn't have."""


@dataclass(frozen=True)
class Variant:
    """How an arm differs from its target; it has what it doesn't say from it."""

    name: Name
    title: str = ""
    workloads: tuple[str, ...] | None = None
    arguments: tuple[Template, ...] = ()
    environment: dict[str, Template] = field(default_factory=dict)
    detect: Detect = Detect()
    """Besides the target's."""
    declares: dict[str, Any] = field(default_factory=dict)
    quick: bool = True


@dataclass(frozen=True)
class Target:
    """The contents of a target.toml."""

    name: Name
    language: str
    title: str
    detect: Detect = Detect()
    build: Build = Build()
    run: Run = Run()
    ready: Ready = Ready()
    stop: Stop = Stop()
    declares: dict[str, Any] = field(default_factory=dict)
    variants: tuple[Variant, ...] = ()


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
        python = self.python or os.environ.get("RINGLAB_PYTHON") or sys.executable
        return {"build": str(self.build_folder), "target": str(self.folder), "python": python}

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


def read_target(path: Path, build_root: Path, python: str = "") -> list[Arm]:
    """Return the arms of one manifest; raise WrongFile."""
    with tables.reading(path) as content:
        target: Target = tables.read(Target, content)
        if target.name != path.parent.name:
            raise WrongKey(
                f"name is {target.name!r}, but the folder is called {path.parent.name!r}: they must be the same"
            )
        tables.read(Declares, target.declares, "declares")
        commands = {kind: text for kind in PLACEHOLDERS if (text := getattr(target.run, kind))}
        if not commands:
            raise WrongKey(f"run has no command; add one of {', '.join(PLACEHOLDERS)}")
        return [
            Arm(
                name=variant.name,
                target=target.name,
                language=target.language,
                title=variant.title or target.title,
                folder=path.parent.resolve(),
                build_folder=(build_root / target.name).absolute(),
                commands=commands,
                workloads=workloads_of(variant, commands),
                arguments=variant.arguments,
                environment=target.run.environment | variant.environment,
                detects=(target.detect, variant.detect),
                build=target.build,
                ready=target.ready,
                stop=target.stop,
                declares=tables.read(
                    Declares, target.declares | variant.declares, f"variants[{variant.name!r}].declares"
                ),
                warm_up_s=target.run.warm_up_s,
                python=python,
                quick=variant.quick,
            )
            for variant in target.variants or [Variant(target.name)]
        ]


def workloads_of(variant: Variant, commands: Mapping[str, str]) -> tuple[str, ...]:
    """Return the workloads that a variant serves: those that the target has commands for, or fewer; raise WrongKey."""
    served = tuple(name for name in SERVED if KIND_OF_WORKLOAD[name] in commands)
    asked = served if variant.workloads is None else variant.workloads
    if not asked or not set(asked) <= {*served}:
        raise WrongKey(
            f"variants[{variant.name!r}].workloads must name some of {', '.join(served)}, as run serves them,"
            f" not {', '.join(asked) or 'none'}"
        )
    return tuple(name for name in served if name in asked)


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

    Raise WrongFile where there are none. Errors of single manifests go into `broken`, by the name of the folder; without it
    they are raised.
    """
    folder = folder or default_folder()
    paths = sorted(folder.glob(f"*/{FILE_NAME}"))
    if not paths:
        raise WrongFile(
            f"no target in {folder}: each is a folder with a {FILE_NAME}; say where they are with --targets-folder or RINGLAB_TARGETS"
        )
    arms: dict[str, Arm] = {}
    for path in paths:
        try:
            found = read_target(path, build_root or default_build_root(folder), python)
            for arm in found:
                if arm.name in arms:
                    other = arms[arm.name].folder / FILE_NAME
                    raise WrongFile(f"{path}: the arm {arm.name} is in {other} as well; names must differ")
        except WrongFile as error:
            if broken is None:
                raise
            broken[path.parent.name] = str(error)
        else:
            arms |= {arm.name: arm for arm in found}
    if not arms and broken:
        raise WrongFile("; ".join(broken.values()))
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


@functools.cache
def python_version(python: str) -> str:
    """Return the version of an interpreter as 3.14, or nothing where it doesn't run."""
    words = [python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(words, capture_output=True, text=True, timeout=DETECT_TIMEOUT_S, check=False)
        return done.stdout.strip()
    return ""


def detect_all(arm: Arm, cache: dict[tuple[str, str], Presence] | None = None) -> Presence:
    """Find out whether what an arm needs is here; `cache` spares asking the same twice."""
    cache = {} if cache is None else cache
    version = ""
    for detect in arm.detects:
        needs, install = arm.expand(detect.needs), arm.shell(detect.install)
        if detect.python and detect.python != (has := python_version(arm.placeholders()["python"])):
            there = f"/path/to/python{detect.python} (this one is {has or 'none'})"
            install = f"export RINGLAB_PYTHON={there}, and then: {install}"
        for text in detect.commands:
            command = arm.shell(text)
            key = (str(arm.folder), command)
            if key not in cache:
                cache[key] = ask(arm, command, needs, install)
            if cache[key].skipped:
                return cache[key]
            version = version or cache[key].version
    return Presence(version)


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
    """Run a command that builds something, and tell the newest line of its output, which goes into a log. Raise BuildFailed.

    `shown` is the command in messages. `stdout` gets its standard output, where that is for programs.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + limit_s
    tell(shown)
    told, ended = "", False
    log.write_bytes(b"")
    # Appended to, because a step that opens /dev/stderr again writes at an offset of its own.
    with log.open("a+b", buffering=0) as kept:
        begin = kept.write(f"$ {shown}\n".encode(errors=ANY_BYTES))
        process = guarded.Guarded(
            list(words),
            cwd=folder,
            env={**environment, **CARGO_PROGRESS},
            stdin=subprocess.DEVNULL,
            stdout=stdout or kept,
            stderr=kept,
        )
        try:
            while not ended:
                if time.monotonic() > deadline:
                    raise BuildFailed(f"`{shown}` didn't end within {limit_s:.0f} s; its output: {log}")
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(BUILD_POLL_S)
                    ended = True
                newest = os.pread(
                    kept.fileno(), NEWEST_BYTES, max(begin, os.stat(kept.fileno()).st_size - NEWEST_BYTES)
                )
                # Progress is drawn over itself, from a carriage return on. The piece behind the last end isn't complete.
                *pieces, _ = re.split(rb"[\r\n]", TERMINAL_CODES.sub(b"", newest))
                text = last_line(b"\n".join(pieces).decode(errors="replace"))
                if text not in ("", told):
                    tell(text)
                    told = text
        finally:
            process.end()
            lines = TERMINAL_CODES.sub(b"", log.read_bytes()).split(b"\n")
            log.write_bytes(b"\n".join(line.rpartition(b"\r")[2] for line in lines))
    if process.returncode != 0:
        words_said = results.shorten(last_line(log.read_text(errors="replace")))
        raise BuildFailed(f"`{shown}` failed with code {process.returncode}: {words_said}; all of its output: {log}")
