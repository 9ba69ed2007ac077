"""The result of a run, as dataclasses and as JSON.

The JSON follows schema/result-v1.json, which is made from these classes: `python -m ringlab.results` prints it. Times have
their unit in the name; a ratio is a figure of an arm divided by the same figure of the baseline, in the same round.
"""

import dataclasses
import functools
import json
import math
import os
import types
import typing
from collections.abc import Container
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from ringlab import Refused, __version__
from ringlab.deferred import jsonschema

SCHEMA_VERSION = 1

SampleStatus = Literal["measured", "void", "failed"]
ComparisonVerdict = Literal["better", "worse", "tie", "cannot tell"]
CellVerdict = Literal["winner", "tie", "groups", "cannot tell", "nothing to compare"]
FindingStatus = Literal["ok", "warning", "error"]
CheckStatus = Literal["ok", "violated", "unknown"]
GoalKind = Literal["better_by", "times_at_most", "points_at_most", "at_most", "never_worse_by"]
GoalStatus = Literal["reached", "missed", "cannot tell", "not measured"]


class ResultError(Refused):
    """A file can't be read as a result; the message says why, and what to do."""


@dataclass
class Finding:
    """A finding of preflight about the machine, in one respect."""

    name: str
    status: FindingStatus
    text: str
    remedy: Annotated[str, "What fixes it, with commands between backticks; empty where there is nothing to do."] = ""


@dataclass(kw_only=True)
class Scale:
    """How long and how often is measured."""

    name: Literal["quick", "normal", "publish"]
    rounds: int
    window_s: Annotated[float, "The measured time of one sample; the cells that differ say so in their parameters."]
    warm_up_s: float
    ramp_s: float


@dataclass(kw_only=True)
class Placement:
    """Which CPUs the servers have for themselves, and which ones the load; empty where the kernel decides."""

    server: list[int] = field(default_factory=list)
    client: list[int] = field(default_factory=list)
    text: str = ""


@dataclass(kw_only=True)
class Environment:
    """The circumstances that may explain the figures, or a difference from another run's."""

    host: str = ""
    kernel: str = ""
    machine: str = ""
    cpu_model: str = ""
    cpus: int = 0
    cpus_usable: int = 0
    cpu_governor: str = ""
    hypervisor: bool = False
    memory_bytes: int = 0
    mitigations: dict[str, str] = field(default_factory=dict)
    libc: str = ""
    python: str = ""
    io_uring_disabled: str = ""
    somaxconn: int = 0
    tcp_congestion_control: str = ""
    descriptors_limit: int = 0
    load_average_begin: list[float] = field(default_factory=list)
    load_average_end: list[float] = field(default_factory=list)
    stolen_s: Annotated[float, "CPU time that the hypervisor gave to others while this ran, all CPUs together."] = 0.0
    generator: Annotated[str, "The load generator's path and version."] = ""
    revision: Annotated[str, "The repository's commit, with '-dirty' where files differ from it; may be empty."] = ""
    variables: Annotated[dict[str, str], "Environment variables that can change what is measured."] = field(
        default_factory=dict
    )


@dataclass(kw_only=True)
class Check:
    """One thing that an arm declares, looked up on its live process."""

    name: str
    declared: str
    found: str
    status: CheckStatus
    text: Annotated[str, "Why it couldn't be looked up, or what differs."] = ""


@dataclass(kw_only=True)
class Arm:
    """One contestant: a variant of a target."""

    name: str
    target: str
    language: str
    title: str
    workloads: list[str] = field(default_factory=list)
    declares: dict[str, Any] = field(default_factory=dict)
    version: Annotated[str, "The output of the first detect command; may be empty."] = ""
    environment: dict[str, str] = field(default_factory=dict)
    repeats: Annotated[str, "The arm that this one is a second copy of (the A/A arm); empty for all others."] = ""
    skipped: Annotated[str, "Why it took no part; empty where it did."] = ""
    install: Annotated[str, "The command that would install what it lacks."] = ""
    checks: list[Check] = field(default_factory=list)


@dataclass(kw_only=True)
class Metric:
    """One figure that the samples of a cell have."""

    key: str
    title: str
    unit: str
    better: Literal["lower", "higher"]
    primary: Annotated[bool, "The one that ranks the arms."] = False


@dataclass(kw_only=True)
class ErrorCount:
    """Errors of one kind within one sample."""

    count: int
    first: Annotated[str, "The first one's message."] = ""


@dataclass(kw_only=True)
class RatePoint:
    """The behaviour of a server at one offered rate; in an analysis, the medians of several trials at about that rate."""

    offered_per_s: float
    achieved_per_s: float
    latency_ns_p50: Annotated[float, "Of the corrected latency, which counts from when an operation was due."]
    latency_ns_p99: float
    latency_ns_p999: float
    outcome: Annotated[
        Literal["floor", "below", "above", "limited", "failed"],
        "floor: the low rate; below, above: of the knee; limited: the load generator was at its limit; failed: errors.",
    ]
    client_busy_fraction: float = 0.0
    reasons: Annotated[list[str], "Why it is limited, or failed."] = field(default_factory=list)
    trials: int = 1


Bound = Literal["", "at least", "at most"]


@dataclass(kw_only=True)
class Sample:
    """One arm in one round of one cell."""

    arm: str
    round: Annotated[int, "From 1."]
    position: Annotated[int, "Its place in the order of the round, from 1."]
    begun_s: Annotated[float, "Since the run began."]
    duration_s: Annotated[float, "From the start of the process to its end, without the turns of other arms."]
    status: SampleStatus
    reasons: Annotated[list[str], "Why it is void, or why it failed."] = field(default_factory=list)
    figures: Annotated[dict[str, float], "By the key of a metric, and others."] = field(default_factory=dict)
    windows: Annotated[
        dict[str, list[float]],
        "By the key of a metric: its figure in each window, if the arms of a round took turns. The windows at one place in all lists of a"
        " round follow each other at once.",
    ] = field(default_factory=dict)
    errors: dict[str, ErrorCount] = field(default_factory=dict)
    histograms: Annotated[
        dict[str, str], "By kind (service, corrected): HdrHistogram V2, compressed, base64, in ns."
    ] = field(default_factory=dict)
    client_limited: Annotated[bool, "The load generator was near its own limit: the rate is a lower bound."] = False
    points: Annotated[list[RatePoint], "In a sweep: every trial, in order."] = field(default_factory=list)
    bound: Annotated[Bound, "In a sweep: the rate at the knee is only known to be at least, or at most, this."] = ""


@dataclass(kw_only=True)
class Ceiling:
    """The rate that the load generator reaches against its own minimal responder, with each on its own CPU."""

    operations_per_s: Annotated[float, "The greatest of its rounds, and never less than a server has reached."]
    client_cpu_fraction: float
    text: str = ""
    rates: Annotated[list[float | None], "By round; null where it failed."] = field(default_factory=list)
    client_us_per_operation: Annotated[
        float, "Of its CPU, at most, in the round that took least; 0 where it isn't known."
    ] = 0.0


@dataclass(kw_only=True)
class SystemCalls:
    """Counted in a run apart, because counting slows the server."""

    arm: str
    tool: str
    per_operation: float | None = None
    operations: int = 0
    text: Annotated[str, "Why there is no figure."] = ""
    instructions: Annotated[
        float | None, "Per operation, counted by perf; null where the machine doesn't count them."
    ] = None
    instructions_of: Annotated[
        str, "perf's event: 'instructions', or 'instructions:u' without those of the kernel."
    ] = ""


@dataclass(kw_only=True)
class Probe:
    """The answers of an HTTP server to requests that are no plain GET."""

    arm: str
    parser: Literal["real", "canned", "unknown"]
    text: str = ""
    answers: dict[str, str] = field(default_factory=dict)


@dataclass(kw_only=True)
class Summary:
    """One metric of one arm over its measured rounds."""

    arm: str
    metric: str
    median: float
    low: Annotated[float, "The smallest of the rounds."]
    high: Annotated[float, "The greatest of the rounds."]
    rounds: int


@dataclass(kw_only=True)
class Comparison:
    """One arm against its baseline, in one metric."""

    metric: str
    arm: str
    baseline: str
    ratio: Annotated[float, "Geometric mean over the rounds of arm / baseline."]
    low: Annotated[float, "The lower end of the interval that the verdict rests on, which has `confidence`."]
    high: float
    confidence: Annotated[
        float, "The confidence that Holm's method asks of this comparison; of a tie, that of two one-sided tests."
    ]
    p: Annotated[float, "Probability of a ratio so far from 1 between equals."]
    p_adjusted: Annotated[float, "The same after Holm's correction for the number of arms."]
    rounds: Annotated[int, "Those in which both were measured."]
    ratios: Annotated[list[float | None], "By round; null where one of the two wasn't measured, or is 0."]
    verdict: ComparisonVerdict
    rounds_needed: Annotated[int | None, "For a verdict that is now 'cannot tell'; null where no number would do."] = (
        None
    )
    sentence: str = ""


@dataclass(kw_only=True)
class Verdict:
    """Which arm is best in a group, by the primary metric."""

    kind: CellVerdict
    arms: Annotated[list[str], "The winner, or those that tie, or those that can't be told apart from the best."]
    sentence: str
    rounds_needed: int | None = None


@dataclass(kw_only=True)
class Rank:
    """The ranks that an arm may have in its group: a comparison of all pairs leaves no others."""

    arm: str
    best: Annotated[int, "1, and one more for each arm that is certainly better."]
    worst: int


@dataclass(kw_only=True)
class Control:
    """Two copies of one arm, which must be found equal."""

    arm: str
    of: str
    status: Annotated[
        Literal["passed", "failed", "too noisy"],
        "failed: the copies were told apart; too noisy: they weren't, and nor would be arms that differ by 10%.",
    ]
    ratio: float
    low: float
    high: float


@dataclass(kw_only=True)
class Group:
    """The arms of a cell that are ranked together."""

    name: Annotated[str, "'all', or 'real' and 'canned' for HTTP servers, which are never ranked together."]
    arms: list[str]
    baseline: str
    noise_floor: Annotated[float, "A smaller difference (0.02: 2%) is no difference, from the A/A arm and the margin."]
    noise_text: str
    comparisons: list[Comparison]
    verdict: Verdict
    ranks: list[Rank] = field(default_factory=list)
    control: Control | None = None

    def ranking(self, metric: Metric) -> list[str]:
        """Return the arms, the best in a metric first: by their ratio to the baseline, and last those that have none."""
        ratios = {each.arm: each.ratio for each in self.comparisons if each.metric == metric.key}
        ratios[self.baseline] = 1.0
        sign = 1 if metric.better == "lower" else -1
        return sorted(self.arms, key=lambda arm: sign * ratios[arm] if arm in ratios else math.inf)


@dataclass(kw_only=True)
class Curve:
    """Latency by percentile, of all measured rounds of an arm together."""

    arm: str
    kind: Literal["service", "corrected"]
    points: Annotated[list[list[float]], "Pairs: percentile (0 to 100), latency in ns."]


@dataclass(kw_only=True)
class Sweep:
    """The rate at the knee of one arm, over all its rounds, and its latencies over the offered rate."""

    arm: str
    knee_per_s: Annotated[float, "Geometric mean over the rounds, trimmed as the ratios are."]
    low: Annotated[float | None, "The lower end of its 95% interval; null with fewer than two rounds."]
    high: float | None
    bound: Bound
    rounds: int
    floor_ns: Annotated[float, "The p99 at the low rate, the median of the rounds."]
    points: list[RatePoint] = field(default_factory=list)


@dataclass(kw_only=True)
class Analysis:
    """The evaluation of a cell's samples."""

    summaries: list[Summary] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    curves: list[Curve] = field(default_factory=list)
    sweeps: list[Sweep] = field(default_factory=list)
    notes: Annotated[list[str], "Sentences: client-limited, void samples and their reasons, arms that failed."] = field(
        default_factory=list
    )


@dataclass(kw_only=True)
class Cell:
    """One thing that is measured on every arm that serves it."""

    name: Annotated[str, "A path: workload, then what tells it from its neighbours."]
    # Only older results have the workload loop.
    workload: Literal[
        "bind", "http", "rtt", "loop", "echo", "asgi", "wsgi", "loops", "files", "sweep", "churn", "idle", "stream"
    ]
    title: str
    operation: Annotated[str, "The operation that is counted: 'message', 'request', 'bind', ..."]
    parameters: dict[str, Any] = field(default_factory=dict)
    metrics: list[Metric] = field(default_factory=list)
    arms: list[str] = field(default_factory=list)
    left_out: Annotated[str, "Why it wasn't measured; empty where it was."] = ""
    unable: Annotated[dict[str, str], "Arms that can't do what the cell is about, and how that showed."] = field(
        default_factory=dict
    )
    ceiling: Ceiling | None = None
    probes: list[Probe] = field(default_factory=list)
    orders: Annotated[list[list[str]], "The arms in the order in which each round ran them."] = field(
        default_factory=list
    )
    samples: list[Sample] = field(default_factory=list)
    system_calls: list[SystemCalls] = field(default_factory=list)
    analysis: Analysis = field(default_factory=Analysis)

    @property
    def of_http(self) -> bool:
        """Whether its servers are those of the workload http, of which some parse requests and some don't."""
        # A service is no program that was written to be measured.
        return "http" in (self.workload, self.parameters.get("protocol")) and "request" not in self.parameters

    @property
    def primary(self) -> Metric:
        """The metric that ranks the arms."""
        return next(metric for metric in self.metrics if metric.primary)

    def measured(self, arm: str) -> list[Sample]:
        """Return the samples of an arm that count."""
        return [sample for sample in self.samples if sample.arm == arm and sample.status == "measured"]

    def series(self, arm: str, metric: str) -> list[float | None]:
        """Return one figure of one arm by round; None where it wasn't measured."""
        found: list[float | None] = [None] * len(self.orders)
        for sample in self.measured(arm):
            found[sample.round - 1] = sample.figures.get(metric)
        return found

    def windows(self, arm: str, metric: str) -> list[tuple[float, ...] | None]:
        """Return one figure of one arm by round, in each window of the round, or the sample's own as the only one; None as in series()."""
        found: list[tuple[float, ...] | None] = [None if each is None else (each,) for each in self.series(arm, metric)]
        for sample in self.measured(arm):
            if metric in sample.windows:
                found[sample.round - 1] = tuple(sample.windows[metric])
        return found


@dataclass(kw_only=True)
class GoalVerdict:
    """Whether an arm reaches a goal: judged by the cell in which it does worst."""

    goal: str
    arm: str
    verdict: GoalStatus
    kind: GoalKind
    limit: float
    value: Annotated[
        float, "The figure that the limit is held against, in the cell that decides; 0 where nothing was measured."
    ] = 0.0
    low: Annotated[float, "The lower end of the interval that the verdict rests on."] = 0.0
    high: float = 0.0
    cell: str = ""
    figure: str = ""
    unit: str = ""
    against: Annotated[str, "The arm that it was compared with in that cell."] = ""
    cells: Annotated[int, "How many were measured."] = 0
    cells_beyond: Annotated[int, "In how many of them the estimate is beyond the limit."] = 0
    sentence: str = ""


@dataclass(kw_only=True)
class Run:
    """How the run was asked for, and how it went."""

    command: Annotated[list[str], "Repeats the run: the same cells, arms, scale and seed."]
    begun: Annotated[str, "ISO 8601, UTC."]
    ended: str = ""
    seed: int
    scale: Scale
    placement: Placement = field(default_factory=Placement)
    interrupted: bool = False
    complete: Annotated[bool, "All cells that were planned have been measured."] = False
    notes: list[str] = field(default_factory=list)


@dataclass(kw_only=True)
class Result:
    """Everything about one run."""

    schema_version: int = SCHEMA_VERSION
    ringlab_version: str = __version__
    run: Run
    environment: Environment = field(default_factory=Environment)
    preflight: list[Finding] = field(default_factory=list)
    arms: list[Arm] = field(default_factory=list)
    cells: list[Cell] = field(default_factory=list)
    goals: list[GoalVerdict] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return it as what the schema describes."""
        content: dict[str, Any] = readable(dataclasses.asdict(self))
        return content

    def write(self, path: Path) -> None:
        """Replace the file at `path` atomically."""
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f"{path.name}.{os.getpid()}")
        try:
            unfinished.write_text(json.dumps(self.to_json(), indent=1) + "\n")
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)

    @classmethod
    def from_json(cls, content: object) -> Self:
        """Make it from what `to_json` returned; raise ResultError where that isn't what the schema describes."""
        validator = jsonschema.Draft202012Validator(make_schema())
        error = next(iter(sorted(validator.iter_errors(content), key=lambda error: list(map(str, error.path)))), None)
        if error is not None:
            version = content.get("schema_version") if isinstance(content, dict) else None
            if isinstance(version, int) and version > SCHEMA_VERSION:
                raise ResultError(
                    f"it has schema version {version}, but this ringlab reads only up to {SCHEMA_VERSION}; use a newer ringlab"
                )
            raise ResultError(f"at {error.json_path}: {shorten(error.message)}")
        made: Self = build(cls, content)
        arms = {arm.name for arm in made.arms}
        for index, cell in enumerate(made.cells):
            check_cell(cell, arms, f"$.cells[{index}]")
        return made

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file that `write` made; raise ResultError that names the file."""
        try:
            content = json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse_constant)
            return cls.from_json(readable(content))
        except OSError as error:
            raise ResultError(f"cannot read {path}: {error.strerror}") from None
        except ValueError as error:
            raise ResultError(f"{path} is not valid JSON: {error}") from None
        except RecursionError:
            raise ResultError(f"{path} is not a result of ringlab: it is nested too deeply") from None
        except ResultError as error:
            raise ResultError(f"{path} is not a result of ringlab: {error}") from None


def readable(content: Any) -> Any:
    """Return JSON with \\udce9 written out for what no text has: that is how Python reads the byte e9 of a path that isn't UTF-8."""
    if isinstance(content, str):
        return content.encode("utf-8", "backslashreplace").decode()
    if isinstance(content, dict):
        return {readable(name): readable(each) for name, each in content.items()}
    if isinstance(content, list | tuple):
        return [readable(each) for each in content]
    return content


def write_text(path: Path, text: str) -> None:
    """Replace a file's contents by a text in UTF-8, with what no text has as `readable` writes it."""
    path.write_text(text, encoding="utf-8", errors="backslashreplace", newline="")


def refuse_constant(name: str) -> None:
    """Refuse NaN and infinities, which Python reads, and JSON doesn't have."""
    raise ValueError(f"it has {name}")


def check_cell(cell: Cell, arms: Container[str], path: str) -> None:
    """Raise ResultError if a cell's parts don't fit together, or to the result's arms, in a way that a schema can't express."""
    for name in cell.arms:
        if name not in arms:
            raise ResultError(f"at {path}.arms: there is no arm {shorten(name)} in $.arms")
    if cell.samples and sum(metric.primary for metric in cell.metrics) != 1:
        raise ResultError(f"at {path}.metrics: one metric must be the primary one")
    for index, sample in enumerate(cell.samples):
        if not 1 <= sample.round <= len(cell.orders):
            raise ResultError(f"at {path}.samples[{index}]: there is no round {sample.round} in {path}.orders")


def shorten(text: str, length: int = 200) -> str:
    """Return the text, or its beginning where it is longer."""
    return text if len(text) <= length else text[: length - 3] + "..."


def build(kind: Any, content: Any) -> Any:
    """Make an instance of a type from JSON that has been validated."""
    origin = typing.get_origin(kind)
    if origin is Annotated:
        return build(typing.get_args(kind)[0], content)
    if origin is list:
        (item,) = typing.get_args(kind)
        return [build(item, each) for each in content]
    if origin is dict:
        _, item = typing.get_args(kind)
        return {name: build(item, each) for name, each in content.items()}
    if origin in (typing.Union, types.UnionType):
        (item,) = (each for each in typing.get_args(kind) if each is not types.NoneType)
        return None if content is None else build(item, content)
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        known = {name: build(hints[name], each) for name, each in content.items() if name in hints}
        return typing.cast(type, kind)(**known)
    if kind in (float, int):
        return kind(content)  # To a schema, 1.0 is an integer.
    return content


def describe(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a type; that of a class goes into `definitions`."""
    origin = typing.get_origin(kind)
    arguments = typing.get_args(kind)
    if origin is Annotated:
        return describe(arguments[0], definitions) | {"description": arguments[1]}
    if origin is list:
        return {"type": "array", "items": describe(arguments[0], definitions)}
    if origin is dict:
        return {"type": "object", "additionalProperties": describe(arguments[1], definitions)}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [describe(each, definitions) for each in arguments]}
    if dataclasses.is_dataclass(kind):
        name = typing.cast(type, kind).__name__
        if name not in definitions:
            definitions[name] = {}
            definitions[name] = describe_class(typing.cast(type, kind), definitions)
        return {"$ref": f"#/$defs/{name}"}
    if kind is Any:
        return {}
    names = {str: "string", int: "integer", float: "number", bool: "boolean", types.NoneType: "null"}
    return {"type": names[kind]}


def describe_class(kind: type, definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a dataclass: what has no default is required, and more fields may come."""
    hints = typing.get_type_hints(kind, include_extras=True)
    missing = dataclasses.MISSING
    required = [
        each.name for each in dataclasses.fields(kind) if each.default is missing and each.default_factory is missing
    ]
    return {
        "type": "object",
        "description": (kind.__doc__ or "").strip(),
        "properties": {each.name: describe(hints[each.name], definitions) for each in dataclasses.fields(kind)},
        "required": required,
    }


@functools.cache
def make_schema() -> dict[str, Any]:
    """Make the schema from the classes."""
    definitions: dict[str, Any] = {}
    root = describe_class(Result, definitions)
    root["properties"]["schema_version"] = {"const": SCHEMA_VERSION}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A result of ringlab",
        **root,
        "required": [*root["required"], "schema_version"],
        "$defs": dict(sorted(definitions.items())),
    }


if __name__ == "__main__":
    print(json.dumps(make_schema(), indent=1))
