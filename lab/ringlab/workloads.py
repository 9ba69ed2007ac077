"""The workloads: which cells they have at which scale, in which figures, and what makes a sample void."""

import fnmatch
import functools
import statistics as averages
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ringlab import Refused, figures, nearest, results, subjects, sweep
from ringlab.manifest import APPLICATIONS, KIND_OF_WORKLOAD, SERVERS, SUBJECTS, WORKLOADS, Arm
from ringlab.results import Metric
from ringlab.subjects import NORMAL, OPERATION, P50, P99, QUICK, RATE, SERVER_CPU, SIZES, higher, lower

ScaleName = Literal["quick", "normal", "publish"]
SCALES: dict[ScaleName, results.Scale] = {
    # With fewer rounds many arms can hardly be told apart; cells that have no time for them end with statistics.ROUNDS_MIN.
    "quick": results.Scale(name="quick", rounds=9, window_s=0.5, warm_up_s=0.15, ramp_s=0.0),
    "normal": results.Scale(name="normal", rounds=9, window_s=2.0, warm_up_s=0.5, ramp_s=0.1),
    "publish": results.Scale(name="publish", rounds=15, window_s=10.0, warm_up_s=2.0, ramp_s=0.5),
}
TURN_S = 0.3
"""About how long a server is measured before it is another one's turn: machines drift by more from one second to the next."""

LOADS = ("sweep", "churn", "idle", "stream")
"""Workloads that load the servers of echo, http or discard in other ways, so that arms needn't say that they serve these."""
EVERY_WORKLOAD = (*WORKLOADS, *LOADS)
QUICK_IF_ASKED = (*APPLICATIONS, *LOADS)
"""A quick run has no time for these unless they are asked for."""
LITTLES_LAW_MIN, LITTLES_LAW_MAX = 0.8, 1.2
"""Between these lies the number of operations in flight, as a share of what a closed loop keeps in flight."""
OPERATIONS_MIN = 50
ERRORS_MAX = 0.001
"""The share of operations that may fail before a sample is void."""
VOIDING = ("mismatch", "unexpected")
"""Errors of the load generator that make all figures of a run meaningless."""
WINDOW_MIN = 0.9
"""The share of the window that must have been measured."""
PROGRAM_WINDOW_S_MIN = 0.1
"""The shortest window of a program that times itself."""
CEILING_FACTOR = 1.5
"""A server whose rate is nearer to the load generator's own is measured by the generator's limit."""
CLIENT_BUSY = 1 / CEILING_FACTOR
"""The share of a CPU that says the same, where no ceiling was measured."""
LATE_SHARE = 0.5
"""Of an open loop's latency (p99), the share by which its requests were sent late, from which on that is the generator's latency."""
START_S, START_APPLICATION_S, START_PROGRAM_S = 0.2, 1.2, 0.13
"""About what a sample takes beyond what is measured, until a run has found it: for the estimate of the time left only."""
FIRST_CLIENT_S = 5.0
"""How long the first client of a server of applications may take for its one request."""

APPLICATION_FIELDS = 20
SLEEPERS = 16
SLEEPERS_WINDOW_S = 3.0
"""So that each of them ends and begins a few times."""
COMPUTE_WINDOW_S = 10.0
"""So that each connection gets several answers: one takes a second."""
HTTP2_STREAMS = 10
IDLE_WINDOW_S = 0.2
"""Nothing happens in it, and the memory is looked up before."""
IDLE_CONNECTIONS = 10_000
IDLE_RAMP_S = 5.0
"""Also a slow server must be able to accept the connections as they come, and to do its part of TLS."""
IDLE_STEPS = 10
"""How often the memory is read while the connections are opened."""
IDLE_BYTES = 64
"""The size of the message that each idle connection exchanges first."""
SWEEP_TRIALS = 8
"""About how many rates are tried in a sample: more in the first round, and fewer in the others."""
TRIAL_START_S = 0.1
"""About what a trial takes beyond warm-up and window."""

P95, MEAN = lower("latency_ns_p95", "latency p95"), lower("latency_ns_mean", "latency mean")
# In an open loop latency counts from when a request was due, which no stall of the server can hide.
SERVICE_P50, SERVICE_P99 = lower("service_ns_p50", "p50 from sending"), lower("service_ns_p99", "p99 from sending")
COLD_P50 = lower("cold_ns_p50", "first message of a connection, p50")
LOADED = (SERVER_CPU, RATE, P50, P99)
KNEE = higher("knee_per_s", "rate at the knee", primary=True)
FLOOR_P50, FLOOR_P99 = lower("floor_ns_p50", "p50 at a low rate"), lower("floor_ns_p99", "p99 at a low rate")
PER_CONNECTION = (
    replace(SERVER_CPU, title="server CPU per connection"),
    replace(RATE, title="connections"),
    replace(P50, title="p50 of the whole cycle"),
    replace(P99, title="p99 of the whole cycle"),
)
SLOPES = (
    lower("pss_slope_bytes", "memory per further idle connection", "bytes", primary=True),
    lower("rss_slope_bytes", "the same of resident pages", "bytes"),
)
BYTES_PER_CONNECTION = lower("rss_per_connection_bytes", "memory per idle connection", "bytes", primary=True)
CPU_PER_MEGABYTE = replace(SERVER_CPU, title="server CPU per MB echoed")
MEGABYTES = higher("megabytes_per_s", "throughput in each direction", "MB/s")
CHANNEL = higher("channel_mbps", "bandwidth per connection, both directions together", "Mbps")
ONE_WAY = (
    replace(SERVER_CPU, title="server CPU per MB received"),
    replace(MEGABYTES, title="throughput"),
    replace(CHANNEL, title="bandwidth per connection"),
)


@dataclass(frozen=True)
class CellPlan:
    """One thing to measure on every arm that serves it."""

    name: str
    workload: Literal[
        "bind", "http", "rtt", "echo", "asgi", "wsgi", "loops", "files", "sweep", "churn", "idle", "stream"
    ]
    title: str
    operation: str
    metrics: tuple[Metric, ...]
    scales: frozenset[str]
    connections: int = 0
    size_bytes: int = 0
    stream: bool = False
    percent: int = 0
    """Of the slowest arm's closed-loop rate; 0 in a closed loop."""
    follows: str = ""
    """The closed-loop cell that gives the rate."""
    mode: str = ""
    concurrent: int = 0
    protocol: str = ""
    """Whose servers one of LOADS loads: those of the workload of this name."""
    feature: str = ""
    """The feature that a server of applications is started for."""
    load_words: tuple[str, ...] = ()
    """The load generator's arguments for a cell of APPLICATIONS or of LOADS: its workload, and what to send and to expect."""
    request: str = ""
    """The request of a service and its right answer, where these aren't the cell's own (services.Service)."""
    subject_words: tuple[str, ...] = ()
    """The arguments of a subject's program: what it measures."""
    features: tuple[str, ...] = ()
    """The features that an arm must not lack."""
    checked: bool = False
    """A subject is asked first whether this machine can measure it."""
    workers: int = 0
    """Of each server, where it differs from what the run asks for."""
    ramp_s: float = 0.0
    """The least time over which the connections are opened."""
    windows_s: Mapping[str, float] = field(default_factory=dict)
    """By scale, where it differs from the scale's own."""

    @property
    def kind(self) -> str:
        """The kind that the programs of the arms are asked for."""
        return self.protocol or KIND_OF_WORKLOAD[self.workload]

    @property
    def loaded(self) -> bool:
        """Whether the load generator takes part: the lab runs it, or a subject does."""
        return self.kind in SERVERS or (bool(self.subject_words) and self.connections > 0)

    @property
    def serves(self) -> str:
        """The workload that an arm must serve to take part."""
        return self.protocol or self.workload

    @property
    def one_way(self) -> bool:
        """Whether the server of a stream only takes, and answers the end alone."""
        return self.protocol == "discard"

    def amount(self, event: Mapping[str, Any]) -> float:
        """Return the operations of the load generator's result, or the MB of a stream."""
        if self.stream:
            return float(event["bytes_out" if self.one_way else "bytes_in"] / 1e6)
        return float(event["operations"])

    @property
    def sweeps(self) -> bool:
        """Whether a sample tries several rates."""
        return self.workload == "sweep"

    @property
    def idle(self) -> bool:
        """Whether the connections rest while they are measured."""
        return "--idle" in self.load_words

    @property
    def takes_turns(self) -> bool:
        """Whether the servers of a round live at the same time, and are measured in turn: in closed loops on connections that stay."""
        other = self.percent or self.stream or self.idle or self.workload in ("sweep", "churn")
        long = self.windows_s and self.workload != "rtt"
        return self.kind in SERVERS and not other and not long

    def windows(self, scale: results.Scale) -> int:
        """Return in how many windows a sample is taken: an even number if servers take turns, to and fro."""
        return 2 * max(1, round(self.window_s(scale) / (2 * TURN_S))) if self.takes_turns else 1

    def window_s(self, scale: results.Scale) -> float:
        """Return how long is measured, in all windows of a sample together."""
        factor = scale.window_s / SCALES[scale.name].window_s
        window_s = self.windows_s.get(scale.name, SCALES[scale.name].window_s) * factor
        return max(window_s, PROGRAM_WINDOW_S_MIN) if self.workload == "bind" else window_s

    def sample_s(self, scale: results.Scale, overhead_s: float | None = None) -> float:
        """Return about how long one sample takes; `overhead_s` is what it is known to take beyond what is measured."""
        window_s, warm_up_s, ramp_s = self.window_s(scale), self.warm_up_s(scale), max(scale.ramp_s, self.ramp_s)
        served = self.kind in SERVERS
        measured_s = ramp_s + warm_up_s + window_s if served else window_s
        if self.sweeps:
            measured_s = SWEEP_TRIALS * (TRIAL_START_S + measured_s)
        if overhead_s is not None:
            return overhead_s + measured_s
        if served:
            return measured_s + (START_APPLICATION_S if self.feature else START_S) + self.connections * 2e-4
        if self.connections:  # The load and its server are processes besides the program's own.
            return measured_s + 3 * START_PROGRAM_S + warm_up_s
        return measured_s + START_PROGRAM_S + 0.3 * window_s

    def warm_up_s(self, scale: results.Scale) -> float:
        """Return how long the server is loaded before anything counts."""
        return min(scale.warm_up_s, self.window_s(scale)) if self.sweeps else scale.warm_up_s

    @property
    def without_processes(self) -> "CellPlan | None":
        """The same for a server whose processes nobody sees: another figure ranks the arms. None where there is no other."""
        if self.sweeps:  # The knee is found by the load generator alone.
            return self
        metrics = [metric for metric in self.metrics if not metric.primary]
        key = P99.key if self.percent else next((each.key for each in metrics if each in (RATE, MEGABYTES)), "")
        if not any(metric.key == key for metric in metrics):
            return None
        return replace(self, metrics=tuple(replace(each, primary=each.key == key) for each in metrics))

    def served_by(self, arm: Arm) -> bool:
        """Return whether an arm takes part."""
        lacks = set(self.features).intersection(arm.declares.lacks)
        return self.serves in arm.workloads and not lacks and (not self.mode or self.mode in arm.declares.bind_modes)

    def record(self, scale: results.Scale) -> results.Cell:
        """Return it as a result has it, before anything is measured."""
        parameters: dict[str, Any] = {"window_s": self.window_s(scale)}
        for name in (
            "connections",
            "size_bytes",
            "follows",
            "mode",
            "concurrent",
            "protocol",
            "feature",
            "workers",
            "request",
        ):
            if getattr(self, name):
                parameters[name] = getattr(self, name)
        if self.workload == "http":
            parameters["mode"] = "open" if self.percent else "closed"
        if self.percent:
            parameters["rate_fraction"] = self.percent / 100
        if self.workload == "echo":
            parameters["framing"] = "stream" if self.stream else "framed"
        return results.Cell(
            name=self.name,
            workload=self.workload,
            title=self.title,
            operation=self.operation,
            parameters=parameters,
            metrics=list(self.metrics),
        )

    def load_options(
        self, scale: results.Scale, rate: float = 0.0, window_s_min: float = 0.0, windows: int = 1
    ) -> list[str]:
        """Return the load generator's words for this cell, without address, placement and seed, for one of `windows` windows."""
        words = list(self.load_words) or [self.workload]
        if self.workload != "rtt":
            words += ["--connections", str(self.connections)]
        if self.size_bytes and self.kind == "echo":
            words += ["--size", str(self.size_bytes)]
        if self.stream and not self.one_way:
            words += ["--mode", "stream"]
        if rate:
            words += ["--rate", f"{rate:.1f}"]
        return [
            *words,
            "--warm-up",
            f"{self.warm_up_s(scale):g}",
            "--window",
            f"{max(window_s_min, self.window_s(scale) / windows):g}",
            "--ramp",
            f"{max(scale.ramp_s, self.ramp_s):g}",
        ]

    @property
    def has_first_client(self) -> bool:
        """Whether an arm may be unable to do what the cell is about, so that one client comes before anything is measured."""
        return self.workload in APPLICATIONS or bool(self.request)

    def first_client(self) -> list[str]:
        """Return the load generator's words for a first client, which comes and goes before a sample."""
        window = ["0.01"] if self.idle else [f"{FIRST_CLIENT_S:g}", "--max-operations", "1"]
        return [*self.load_words, "--connections", "1", "--warm-up", "0", "--window", *window]


def one_echo(size_bytes: int) -> list[str]:
    """Return the load generator's words for one message and its echo."""
    words = ["echo", "--size", str(size_bytes), "--connections", "1", "--warm-up", "0"]
    return [*words, "--window", f"{FIRST_CLIENT_S:g}", "--max-operations", "1"]


PUBLISH = frozenset({"publish"})


def plural(count: int, noun: str) -> str:
    """Return 'one thing' or 'N things'."""
    return f"one {noun}" if count == 1 else figures.counted(count, noun)


def bind_cells() -> list[CellPlan]:
    """Return the cells of opening sockets."""
    titles = {
        "bind": "socket, bind to 127.0.0.1:0, close",
        "listen": "socket, bind, listen, close",
        "accept": "socket, bind, listen, accept one connection, close",
    }
    return [
        CellPlan(
            name=f"bind/{mode}/{concurrent}",
            workload="bind",
            title=f"{title}; {'one after the other' if concurrent == 1 else f'{concurrent} at once'}",
            operation=mode,
            metrics=(OPERATION,),
            scales=QUICK if (mode, concurrent) == ("listen", 1) else NORMAL,
            mode=mode,
            concurrent=concurrent,
            windows_s={"quick": 0.15, "normal": 0.5, "publish": 1.0},
        )
        for mode, title in titles.items()
        for concurrent in (1, 50)
    ]


def http_cells() -> Iterator[CellPlan]:
    """Yield the cells of hello world over HTTP: the closed loop for capacity, then open loops at rates that all arms have in common."""
    for connections in (50, 500, 2000):
        on = f"on {plural(connections, 'connection')}"
        closed = CellPlan(
            name=f"http/{connections}/closed",
            workload="http",
            title=f"GET with an answer of 13 bytes, {on}, each sends the next request after its answer",
            operation="request",
            metrics=LOADED,
            scales=QUICK if connections == 50 else NORMAL,
            connections=connections,
        )
        yield closed
        for percent in (25, 50, 75, 90):
            yield replace(
                closed,
                name=f"http/{connections}/open-{percent}",
                title=f"GET {on} at {percent}% of the slowest arm's rate, whether answers come or not",
                metrics=(SERVER_CPU, P50, P99, SERVICE_P50, SERVICE_P99, RATE),
                scales=QUICK if (connections, percent) == (50, 75) else NORMAL if connections == 50 else PUBLISH,
                percent=percent,
                follows=closed.name,
            )
    yield CellPlan(
        name=f"http/idle/{IDLE_CONNECTIONS}",
        workload="http",
        title=f"connections that rest after a request, {IDLE_CONNECTIONS:,} of them",
        operation="connection",
        metrics=(BYTES_PER_CONNECTION,),
        scales=PUBLISH,
        connections=IDLE_CONNECTIONS,
        load_words=("http", "--idle"),
        ramp_s=IDLE_RAMP_S,
        windows_s=dict.fromkeys(SCALES, IDLE_WINDOW_S),
    )


def rtt_cells() -> list[CellPlan]:
    """Return the cells of a message there and back on one connection."""
    return [
        CellPlan(
            name=f"rtt/{size}",
            workload="rtt",
            title=f"{size} there and back on one connection",
            operation="round trip",
            metrics=(SERVER_CPU, P50, P99, COLD_P50, RATE, P95, MEAN, MEGABYTES),
            scales=QUICK if size == "1KB" else NORMAL,
            connections=1,
            size_bytes=SIZES[size],
            windows_s={"quick": 0.5, "normal": 2.0, "publish": 5.0},
        )
        for size in ("64B", "1KB", "16KB", "64KB")
    ]


def framed_cell(size: str, connections: int, scales: frozenset[str]) -> CellPlan:
    """Return a cell of messages and their echoes."""
    return CellPlan(
        name=f"echo/framed/{size}/{connections}",
        workload="echo",
        title=f"messages of {size} on {plural(connections, 'connection')}, each checked, one in flight per connection",
        operation="message",
        metrics=LOADED,
        scales=scales,
        connections=connections,
        size_bytes=SIZES[size],
    )


def echo_cells() -> Iterator[CellPlan]:
    """Yield the cells of echo under load; for publication also in samples of a minute, as in the report that this workload answers."""
    cells = [framed_cell("1KB", connections, QUICK if connections == 100 else NORMAL) for connections in (1, 100, 500)]
    cells += [
        CellPlan(
            name=f"echo/stream/{connections}",
            workload="echo",
            title=f"streams of 'hello world' on {plural(connections, 'connection')}, checked by position",
            operation="MB",
            metrics=(CPU_PER_MEGABYTE, MEGABYTES),
            scales=NORMAL,
            connections=connections,
            stream=True,
        )
        for connections in (1, 100, 500)
    ]
    for cell in cells:
        title = f"{cell.title}, in long samples"
        yield cell
        yield replace(cell, name=f"{cell.name}/60s", title=title, scales=PUBLISH, windows_s=dict.fromkeys(SCALES, 60.0))


def application_cell(
    workload: Literal["asgi", "wsgi"],
    name: str,
    title: str,
    *words: str,
    connections: int = 50,
    size_bytes: int = 0,
    window_s: float = 0.0,
    scales: frozenset[str] = QUICK,
) -> CellPlan:
    """Return a cell of servers of applications: which of these they serve follows from the first part of its name."""
    idle, websocket = "--idle" in words, "websocket" in words
    window_s = IDLE_WINDOW_S if idle else window_s
    return CellPlan(
        name=f"{workload}/{name}/{connections}",
        workload=workload,
        title=f"{title}, on {plural(connections, 'connection')}",
        operation="connection" if idle else "message" if websocket else "request",
        metrics=(BYTES_PER_CONNECTION,) if idle else LOADED,
        scales=scales,
        connections=connections,
        size_bytes=size_bytes,
        feature=name.partition("/")[0],
        load_words=words if websocket else ("http", *words),
        ramp_s=IDLE_RAMP_S if idle else 0.0,
        windows_s=dict.fromkeys(SCALES, window_s) if window_s else {},
    )


def body_cells(workload: Literal["asgi", "wsgi"], file_title: str) -> Iterator[CellPlan]:
    """Yield the cells of bodies and header fields, without a framework."""
    cell = functools.partial(application_cell, workload)
    for size, size_bytes, scales in (("1KB", 1024, QUICK), ("1MB", 1 << 20, NORMAL)):
        sent = ("--send", str(size_bytes), "--body", str(size_bytes))
        title = f"POST of {size}, answered with its length"
        yield cell(f"post/{size}", title, *sent, size_bytes=size_bytes, scales=scales)
    yield cell("stream", "100 chunks of 100 bytes", "--body", "0123456789", "--times", "1000", size_bytes=10_000)
    fields = [
        word
        for option, kind in (("--header", "request"), ("--expect-header", "answer"))
        for number in range(APPLICATION_FIELDS)
        for word in (option, f"x-{kind}-{number}: value {number} of the {kind}")
    ]
    title = f"{APPLICATION_FIELDS} header fields each way"
    yield cell("headers", title, *fields, "--body", str(APPLICATION_FIELDS))
    content = ("--body", "0123456789abcdef", "--times", "65536")
    yield cell("file/1MB", file_title, *content, size_bytes=1 << 20, scales=NORMAL)


def asgi_cells() -> list[CellPlan]:
    """Return the cells of servers of ASGI applications: lab/targets/asgi/applications.py has the applications."""
    cell = functools.partial(application_cell, "asgi")
    message = ("websocket", "--size", "1024")
    streams = ("--http2", "--tls", "--pipeline", str(HTTP2_STREAMS))
    http2_tls = f"an answer of 13 bytes over HTTP/2 with TLS 1.3, {HTTP2_STREAMS} streams at a time"
    resting = "connections with TLS 1.3 that rest after a request"
    return [
        cell("hello", "an answer of 13 bytes"),
        cell("hello", "an answer of 13 bytes", connections=500, scales=NORMAL),
        cell("hello-log", "an answer of 13 bytes, with an access log to /dev/null"),
        *body_cells("asgi", "Starlette's FileResponse of 1 MB"),
        cell("starlette", "Starlette's hello world"),
        cell("fastapi", "FastAPI's hello world in JSON", "--body", '{"message":"Hello, World!"}'),
        cell("websocket/1KB", "WebSocket messages of 1 KB there and back", *message, size_bytes=1024),
        cell("tls", "an answer of 13 bytes over TLS 1.3", "--tls"),
        cell("http2", "an answer of 13 bytes over HTTP/2 without TLS", "--http2"),
        cell("http2-tls", http2_tls, *streams),
        cell("idle", "connections that rest after a request", "--idle", connections=10_000, scales=NORMAL),
        cell("idle-tls", resting, "--idle", "--tls", connections=2000, scales=NORMAL),
    ]


def wsgi_cells() -> list[CellPlan]:
    """Return the cells of servers of WSGI applications: lab/targets/wsgi/applications.py has the applications."""
    cell = functools.partial(application_cell, "wsgi")
    asleep = f"an answer of 13 bytes beside {SLEEPERS} requests whose views sleep for a second"
    beside = ("--beside", str(SLEEPERS), "--beside-path", "/sleep")
    computed = "an answer after 10 ms of Python"
    return [
        cell("hello", "an answer of 13 bytes"),
        *body_cells("wsgi", "a file of 1 MB, by wsgi.file_wrapper where there is one"),
        cell("flask", "Flask's hello world"),
        cell("django", "Django's hello world"),
        cell("sleepers", asleep, *beside, window_s=SLEEPERS_WINDOW_S, scales=NORMAL),
        cell("compute", computed, connections=100, window_s=COMPUTE_WINDOW_S, scales=PUBLISH),
    ]


def native_cells() -> Iterator[CellPlan]:
    """Yield the cells of echo in more sizes, and with two workers, as the goals of the Rust runtime need it.

    They are measured where they are named.
    """
    for size in ("64B", "1KB", "16KB", "100KB"):
        for connections in subjects.CONNECTIONS:
            cell = framed_cell(size, connections, frozenset())
            if size != "1KB" or connections == 50:  # The others are echo_cells().
                yield cell
            if connections > 1:
                title = f"{cell.title}, two workers that share their CPUs with the load"
                yield replace(cell, name=f"{cell.name}/workers-2", title=title, workers=2)


def sweep_cells() -> Iterator[CellPlan]:
    """Yield the cells of open loops at rising rates, up to the one that the latency doesn't bear."""
    for name, protocol, what, operation, size_bytes in (
        ("echo/1KB", "echo", "messages of 1 KB", "message", 1024),
        ("http", "http", "GET with an answer of 13 bytes", "request", 0),
    ):
        for connections in (50, 500):
            yield CellPlan(
                name=f"sweep/{name}/{connections}",
                workload="sweep",
                title=f"{what} on {plural(connections, 'connection')} at rising rates, up to the one at which p99 passes"
                f" {sweep.KNEE_TIMES:g} times its floor",
                operation=operation,
                metrics=(KNEE, FLOOR_P99, FLOOR_P50),
                scales=QUICK if connections == 50 else PUBLISH,
                connections=connections,
                size_bytes=size_bytes,
                protocol=protocol,
                load_words=(protocol,),
                windows_s={"quick": 0.3, "normal": 1.0, "publish": 4.0},
            )


def churn_cells() -> Iterator[CellPlan]:
    """Yield the cells of connections that carry one message each."""
    for name, protocol, what, size_bytes in (
        ("echo/64B", "echo", "64 bytes there and back", 64),
        ("http", "http", "a GET with Connection: close", 0),
    ):
        for connections in (1, 50):
            yield CellPlan(
                name=f"churn/{name}/{connections}",
                workload="churn",
                title=f"connect, {what}, close; {connections} at once",
                operation="connection",
                metrics=PER_CONNECTION,
                scales=QUICK if connections == 50 else NORMAL,
                connections=connections,
                size_bytes=size_bytes,
                protocol=protocol,
                load_words=(protocol, "--churn"),
            )


def idle_cells() -> Iterator[CellPlan]:
    """Yield the cells of a server's memory with connections that rest; http/idle and asgi/idle are cells of those workloads."""
    for connections in (1000, 10_000):
        yield CellPlan(
            name=f"idle/echo/{connections}",
            workload="idle",
            title=f"{connections:,} connections that rest after a message of {IDLE_BYTES} bytes",
            operation="connection",
            metrics=SLOPES,
            scales=QUICK if connections == 1000 else PUBLISH,
            connections=connections,
            size_bytes=IDLE_BYTES,
            protocol="echo",
            load_words=("echo", "--idle", "--steps", str(IDLE_STEPS)),
            ramp_s=IDLE_RAMP_S * connections / IDLE_CONNECTIONS,
            windows_s=dict.fromkeys(SCALES, IDLE_WINDOW_S),
        )


def stream_cells() -> Iterator[CellPlan]:
    """Yield the cells of what tcpkali measures: streams to a server that sends everything back, or to one that throws everything away."""
    for name, protocol, where, metrics in (
        ("stream", "echo", "in both directions", (CPU_PER_MEGABYTE, MEGABYTES, CHANNEL)),
        ("stream/discard", "discard", "in one direction, counted by the server", ONE_WAY),
    ):
        for connections in (1, 100, 500):
            yield CellPlan(
                name=f"{name}/{connections}",
                workload="stream",
                title=f"'hello world' again and again {where}, on {plural(connections, 'connection')}, as tcpkali does it",
                operation="MB",
                metrics=metrics,
                scales=QUICK if connections == 100 else NORMAL,
                connections=connections,
                stream=True,
                protocol=protocol,
                load_words=(protocol,),
                windows_s={"quick": 1.0, "normal": 5.0, "publish": 10.0},
            )


CELLS = (
    *bind_cells(),
    *http_cells(),
    *rtt_cells(),
    *echo_cells(),
    *asgi_cells(),
    *wsgi_cells(),
    *sweep_cells(),
    *churn_cells(),
    *idle_cells(),
    *stream_cells(),
    *native_cells(),
    *(CellPlan(**vars(each)) for each in subjects.SUBJECTS),
)
BY_NAME = {cell.name: cell for cell in CELLS}


def choose(asked: Iterable[str], scale: ScaleName) -> list[CellPlan]:
    """Return the cells that are asked for: workloads, names of cells or globs; all of the scale where nothing is.

    A quick run has no time for QUICK_IF_ASKED unless they are asked for; loops and files, which are about Python alone, are never
    measured unless they are asked for. A name or a glob reaches every cell, a workload those of the scale. What an open loop follows
    comes with it. Raise Refused where there is none.
    """
    chosen: set[str] = set()
    left_out = (*SUBJECTS, *(QUICK_IF_ASKED if scale == "quick" else ()))
    patterns = list(asked) or [name for name in EVERY_WORKLOAD if name not in left_out]
    for pattern in patterns:
        if pattern in EVERY_WORKLOAD:
            found = {cell.name for cell in CELLS if cell.workload == pattern and scale in cell.scales}
        else:
            found = {cell.name for cell in CELLS if fnmatch.fnmatchcase(cell.name, pattern)}
        if not found:
            known = f"workloads: {', '.join(EVERY_WORKLOAD)}; cells look like {CELLS[0].name};"
            near = nearest.suggest(pattern, [*EVERY_WORKLOAD, *BY_NAME]) or known
            raise Refused(f"there is no workload or cell {pattern!r}; {near} `ringlab targets --cells` lists them")
        chosen |= found
    chosen |= {BY_NAME[name].follows for name in chosen if BY_NAME[name].follows}
    return [cell for cell in CELLS if cell.name in chosen]


def figures_of_load(plan: CellPlan, event: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures of a sample from the load generator's result, in which whatever couldn't be told is null."""
    window_s, counted, levels = event["window_s"], plan.amount(event), event.get("levels") or []
    streams, server, latencies = event.get("streams") or {}, event.get("server") or {}, event["latency"]
    found: dict[str, float | None] = {
        "window_s": window_s,
        "operations": event["operations"],
        "operations_per_s": event["operations_per_s"],
        "client_cpu_fraction": event["client"]["cpu_fraction"],
        "client_busy_fraction": busy_fraction(event),
        "in_flight_average": (event.get("littles_law") or {}).get("in_flight_average"),
        "megabytes_per_s": divided(counted if plan.stream else event["bytes_in"] / 1e6, window_s),
        "fairness_jain": (event.get("fairness") or {}).get("jain"),
        "pss_slope_bytes": slope(levels, "pss_bytes"),
        "rss_slope_bytes": slope(levels, "rss_bytes"),
        "streams_held_back": streams.get("held_back"),
        "stream_outstanding_bytes": streams.get("outstanding_bytes_max"),
    }
    if plan.stream:
        found |= {"bytes_sent": event["bytes_out"], "bytes_received": event["bytes_in"]}
        found["channel_mbps"] = divided((event["bytes_in"] + event["bytes_out"]) * 8e-6, window_s * plan.connections)
    if not server.get("error"):
        cpu_ns, user_ns, system_ns = (server.get(key) for key in ("cpu_ns", "user_ns", "system_ns"))
        rest, connected = server.get("rss_rest_bytes"), server.get("rss_connected_bytes")
        found |= {
            "server_cpu_us": divided(cpu_ns, counted * 1e3),
            "server_cpu_percent": divided(cpu_ns, window_s * 1e7),
            "voluntary_switches_per_operation": divided(server.get("voluntary_switches"), counted),
            "involuntary_switches_per_operation": divided(server.get("involuntary_switches"), counted),
            "server_threads": server.get("threads"),
            "rest_cpu_share": divided(server.get("rest_cpu_ns"), cpu_ns or 0.0),
            "rss_rest_bytes": rest,
            "rss_end_bytes": server.get("rss_end_bytes"),
        }
        if user_ns is not None and system_ns is not None:
            found["server_system_share"] = divided(system_ns, user_ns + system_ns)
        if rest is not None and connected is not None:
            found["rss_per_connection_bytes"] = (connected - rest) / max(1, plan.connections)
    # In an open loop the corrected latency is the latency, and the service time something besides.
    kinds = {"latency": latencies.get("corrected") or latencies.get("service"), "cold": latencies.get("cold")}
    if latencies.get("corrected"):
        kinds["service"] = latencies.get("service")
    for prefix, histogram in kinds.items():
        if histogram and histogram["count"]:
            for name in ("mean", "p50", "p90", "p95", "p99", "p999", "max"):
                found[f"{prefix}_ns_{name}"] = histogram[f"{name}_ns"]
    return {name: float(value) for name, value in found.items() if value is not None}


def windows_of_load(event: Mapping[str, Any]) -> dict[str, list[float]]:
    """Return the figures of each window, if there were several, by the key of a metric."""
    windows = event.get("windows") or []
    found = {
        RATE.key: [divided(each["operations"], each["seconds"]) for each in windows],
        SERVER_CPU.key: [divided(each["cpu_ns"], each["operations"] * 1e3) for each in windows],
    }
    whole = {key: [value for value in values if value] for key, values in found.items()}
    # A window in which nothing was answered has no figure; then the sample's own is the only one.
    return {key: values for key, values in whole.items() if values and len(values) == len(windows)}


def slope(levels: Sequence[Mapping[str, float]], key: str) -> float | None:
    """Return by how much a figure grows with each connection, by least squares; None where it can't be told."""
    xs, ys = [level["connections"] for level in levels], [level[key] for level in levels]
    if len(set(xs)) < 2 or 0 in ys:
        return None
    # A server may give memory back meanwhile: a connection costs nothing then, and never less.
    return max(0.0, averages.linear_regression(xs, ys).slope)


def divided(amount: float | None, by: float) -> float | None:
    """Return a share, or None where there is none."""
    return amount / by if amount is not None and by else None


def busy_fraction(event: Mapping[str, Any]) -> float:
    """Return the share of its CPU that the load generator used for work, without the looking for events that it does meanwhile."""
    client = event["client"]
    busy: float = client.get("busy_fraction", client["cpu_fraction"])
    return busy


def why_lying(event: Mapping[str, Any]) -> str:
    """Return what the server answered wrongly; nothing if it didn't."""
    lied = next((str(event["errors"][kind]["first"]) for kind in VOIDING if kind in event["errors"]), "")
    return lied or (str(event["void"]) if event.get("void") and event["operations"] else "")


def sent_late(event: Mapping[str, Any]) -> bool:
    """Return whether an open loop's latencies are for a good part those of the load generator, which was late itself."""
    lateness = (event.get("open_loop") or {}).get("send_lateness")
    corrected = event["latency"].get("corrected")
    if not lateness or not corrected or not lateness["count"] or not corrected["count"]:
        return False
    late: bool = lateness["p99_ns"] > LATE_SHARE * corrected["p99_ns"]
    return late


def why_void(plan: CellPlan, event: Mapping[str, Any], window_s: float) -> list[str]:
    """Return why a load's result can't stand for what the cell is about; nothing where it can."""
    reasons = []
    if event.get("void"):
        reasons.append(str(event["void"]))
    if event.get("ended_early") not in (None, "void"):  # Which has just been said.
        reasons.append(str(event["ended_early"]))
    connections = event["connections"]
    if connections["opened"] < connections["asked"]:
        reasons.append(f"only {connections['opened']} of {connections['asked']} connections were opened")
    elif connections["alive_at_end"] < connections["asked"]:
        reasons.append(
            f"only {connections['alive_at_end']} of {connections['asked']} connections were alive at the end"
        )
    if event["window_s"] < WINDOW_MIN * window_s and not reasons:
        reasons.append(f"{event['window_s']:.3g} s were measured instead of {window_s:g} s")
    operations = event["operations"]
    if not plan.stream and not plan.idle and operations < OPERATIONS_MIN and not reasons:
        reasons.append(
            f"{operations} operations in {event['window_s']:.3g} s tell nothing: at least {OPERATIONS_MIN} must end"
        )
    law = event.get("littles_law")
    # A stream's messages have no ends that a latency could be taken from; an open loop keeps no number in flight.
    closed = not plan.percent and not plan.stream
    if closed and law and law["ratio"] is not None and not LITTLES_LAW_MIN <= law["ratio"] <= LITTLES_LAW_MAX:
        reasons.append(
            f"Little's law: {law['in_flight_average']:.1f} operations were in flight on average, and {law['expected']:g} should have been:"
            " answers stopped coming for a part of the window"
        )
    failures = sum(error["count"] for error in event["errors"].values())
    if failures > ERRORS_MAX * operations:
        kinds = ", ".join(f"{error['count']} x {kind} ({error['first']})" for kind, error in event["errors"].items())
        reasons.append(f"errors: {kinds}")
    return reasons
