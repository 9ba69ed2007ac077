"""The cells of programs that measure one thing themselves: Python's event loops, interface by interface, and files.

A program gets the words of a cell, and prints the figures; lab/targets/loops and lab/targets/files have these programs.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from ringlab.results import Metric

QUICK = frozenset({"quick", "normal", "publish"})
NORMAL = frozenset({"normal", "publish"})
OPERATION_S = {"quick": 0.1, "normal": 0.3, "publish": 1.0}
"""How long is measured, by scale."""
LOAD_S = {"quick": 0.25, "normal": 1.0, "publish": 2.0}
WAIT_S = {"quick": 0.6, "normal": 5.0, "publish": 5.0}
FILES_S = {"quick": 0.1, "normal": 0.2, "publish": 0.5}
SIZES = {"64B": 64, "1KB": 1024, "16KB": 16 * 1024, "64KB": 64 * 1024, "100KB": 100 * 1024}
CONNECTIONS = (1, 50, 500)


@dataclass(frozen=True, kw_only=True)
class Subject:
    """One thing that a program measures; workloads.CellPlan has the same fields."""

    name: str
    workload: Literal["loops", "files"] = "loops"
    title: str
    operation: str
    metrics: tuple[Metric, ...]
    scales: frozenset[str]
    subject_words: tuple[str, ...]
    windows_s: Mapping[str, float]
    features: tuple[str, ...] = ()
    checked: bool = False
    connections: int = 0
    size_bytes: int = 0


def lower(key: str, title: str, unit: str = "ns", *, primary: bool = False) -> Metric:
    """Return a metric of which less is better."""
    return Metric(key=key, title=title, unit=unit, better="lower", primary=primary)


def higher(key: str, title: str, unit: str = "/s", *, primary: bool = False) -> Metric:
    """Return a metric of which more is better."""
    return Metric(key=key, title=title, unit=unit, better="higher", primary=primary)


OPERATION = lower("operation_ns", "time per operation", primary=True)
CPU_NS = lower("cpu_ns", "CPU per operation")
SERVER_CPU = lower("server_cpu_us", "server CPU per operation", "us", primary=True)
SHARE = lower("server_cpu_percent", "server CPU", "% of a CPU", primary=True)
RATE = higher("operations_per_s", "rate")
P50, P99 = lower("latency_ns_p50", "latency p50"), lower("latency_ns_p99", "latency p99")
LOADED = (SERVER_CPU, RATE, P50, P99)


def operation(
    name: str, title: str, subject: str, *more: Metric, metrics: tuple[Metric, ...] = (), quick: bool = True,
    features: tuple[str, ...] = ("loop",), checked: bool = False,
) -> Subject:  # fmt: skip
    """Return a cell of lab/targets/loops that times one operation of a loop."""
    return Subject(
        name=f"loops/{name}",
        title=title,
        operation="operation",
        metrics=metrics or (OPERATION, *more),
        subject_words=("micro", subject),
        windows_s=OPERATION_S,
        scales=QUICK if quick else NORMAL,
        features=features,
        checked=checked,
    )


def scheduling() -> Iterator[Subject]:
    """Yield the cells of a loop's own work, without the network and around it."""
    yield operation("schedule/chain", "a callback that schedules itself, one per iteration, beside a listener", "chain")
    yield operation(
        "schedule/chains", "100 callbacks an iteration, each of which schedules its successor", "chains", quick=False
    )
    yield operation("schedule/call_soon", "call_soon in batches of 1,000, each callback", "call_soon")
    yield operation(
        "schedule/call_soon_50000",
        "call_soon in a batch of 50,000: what the memory of callbacks costs, each",
        "call_soon_50000",
        quick=False,
    )
    insert, fire = lower("insert_ns", "to insert"), lower("fire_ns", "to run")
    yield operation(
        "schedule/timers", "call_later of 0 to 9 ms, 5,000 of them: insert one and run it", "timers", insert, fire
    )
    yield operation(
        "schedule/lateness",
        "call_later of 0 to 9 ms, 5,000 at once: CPU for each, and how late it runs",
        "timer_lateness",
        metrics=(
            lower("cpu_ns", "CPU per timer", primary=True),
            lower("lateness_us", "late p50", "us"),
            lower("lateness_us_p99", "late p99", "us"),
            lower("earliest_us", "the earliest", "us"),
        ),
    )
    yield operation("schedule/cancel", "call_later and cancel", "timers_cancel")
    yield operation(
        "schedule/threadsafe", "call_soon_threadsafe from another thread, each callback", "threadsafe", CPU_NS
    )
    yield operation("schedule/gather", "gather of 1,000 tasks that sleep(0), each task", "gather", CPU_NS)
    yield operation(
        "schedule/futures", "a future whose result a callback sets, awaited", "futures", CPU_NS, quick=False
    )
    yield operation("schedule/executor", "run_in_executor, there and back", "executor", CPU_NS, quick=False)
    yield operation(
        "fairness/flood",
        "a tick every 10 ms while 4 threads do nothing but post callbacks: how late at most",
        "flood",
        metrics=(
            lower("late_ms_max", "late at most", "ms", primary=True),
            lower("late_ms_p50", "late p50", "ms"),
            lower("post_ms_max", "the longest post", "ms"),
            higher("callbacks_per_s", "callbacks"),
        ),
    )
    yield operation(
        "fairness/post",
        "a thread posts 20,000 callbacks while a callback waits for it, and before the loop runs: the longest post",
        "post_without_loop",
        metrics=(
            lower("waiting_ms_max", "the longest while a callback waits", "ms", primary=True),
            lower("waiting_ns", "on average"),
            lower("stopped_ms_max", "the longest before the loop runs", "ms"),
            lower("stopped_ns", "on average before the loop runs"),
        ),
    )
    yield operation(
        "fairness/accept",
        "100 clients in each iteration of a loop that is never idle: how many wait at most",
        "accept_while_busy",
        metrics=(
            lower("behind_max", "waiting at most", "clients", primary=True),
            lower("behind_mean", "waiting on average", "clients"),
            lower("operation_ns", "time per client"),
        ),
    )


def operations() -> Iterator[Subject]:
    """Yield the cells of setting up, names, children, pipes, sockets and files."""
    yield operation("setup/server", "create_server and close", "server", features=())
    yield operation("setup/connect", "create_connection to a server in C, and close", "connect", CPU_NS, features=())
    yield operation(
        "setup/getaddrinfo",
        "getaddrinfo of an address literal",
        "getaddrinfo",
        lower("raw_ns", "the C library's own"),
    )
    yield operation("sock/connect", "sock_connect to a server in C, and close", "sock_connect", CPU_NS, quick=False)
    yield operation(
        "sock/accept",
        "sock_accept of a connection that is there, and close; the client's cost is included",
        "sock_accept",
        CPU_NS,
        quick=False,
    )
    yield operation("pipes/read", "1 KB through connect_read_pipe", "read_pipe", quick=False)
    yield operation("pipes/write", "1 KB through connect_write_pipe", "write_pipe", quick=False)
    yield operation("subprocess/spawn", "create_subprocess_exec of /bin/true, and wait", "spawn", CPU_NS)
    yield operation(
        "subprocess/read", "10 MB from a child's stdout, by communicate()", "read_child", CPU_NS, quick=False
    )
    yield operation(
        "subprocess/communicate", "10 MB to a child and back, by communicate()", "communicate", CPU_NS, quick=False
    )
    yield operation(
        "sendfile/10MB",
        "loop.sendfile of 10 MB to a reader in C in another process",
        "sendfile",
        CPU_NS,
        features=("loop", "sendfile"),
    )
    yield operation(
        "requests/protocol",
        "64 bytes there and back between two protocols of one loop",
        "ping_pong",
        CPU_NS,
        quick=False,
    )
    yield operation(
        "requests/lines", "a request of two lines to a server made of streams, clients in the same loop", "read_lines",
        quick=False,
    )  # fmt: skip
    yield operation(
        "requests/exactly", "a request of a length and 100 bytes to a server made of streams, clients in the same loop",
        "read_exactly", quick=False,
    )  # fmt: skip
    yield operation(
        "tls/one_loop",
        "1 KB there and back over TLS, client and server in one loop",
        "tls_one_loop",
        features=("loop", "tls"),
        checked=True,
    )


QUICK_ECHO = {
    "loops/echo/protocol/1KB/1",
    "loops/echo/protocol/1KB/50",
    "loops/echo/protocol/100KB/50",
    "loops/echo/protocol/1KB/500",
    "loops/echo/streams/1KB/50",
    "loops/echo/streams/100KB/50",
    "loops/echo/sock/1KB/50",
    "loops/echo/sock/100KB/50",
    "loops/tls/protocol/1KB/50",
    "loops/tls/protocol/64KB/50",
    "loops/udp/1KB/50",
    "loops/unix/protocol/1KB/50",
}
STACKS = {"tcp": "TCP", "tls": "TLS", "udp": "UDP", "unix": "a Unix socket"}


def echo(transport: str, api: str, size: str, connections: int) -> Subject:
    """Return a cell of an echo server."""
    kind = "echo" if transport == "tcp" else transport
    name = "/".join(["loops", kind, *([api] if api != "datagrams" else []), size, str(connections)])
    who = f"{'peer' if transport == 'udp' else 'connection'}{'s' if connections > 1 else ''}"
    return Subject(
        name=name,
        title=f"messages of {size} there and back over {STACKS[transport]}, {connections} {who}, through {api}",
        operation="message",
        metrics=LOADED,
        subject_words=("echo", api, transport, str(SIZES[size]), str(connections)),
        windows_s=LOAD_S,
        scales=QUICK if name in QUICK_ECHO else NORMAL,
        features=() if transport == "tcp" else (transport,),
        checked=transport == "tls",
        connections=connections,
        size_bytes=SIZES[size],
    )


def echoes() -> Iterator[Subject]:
    """Echo through each of asyncio's interfaces, over each transport."""
    for api in ("protocol", "streams", "sock", "buffered"):
        for size in ("64B", "1KB", "16KB", "100KB"):
            for connections in CONNECTIONS if api != "buffered" else (50,):
                yield echo("tcp", api, size, connections)
    for api, size, connections in (
        ("protocol", "1KB", 1), ("protocol", "1KB", 50), ("protocol", "64KB", 50), ("streams", "1KB", 50), ("streams", "64KB", 50),
    ):  # fmt: skip
        yield echo("tls", api, size, connections)
    for size in ("64B", "1KB"):
        for connections in (1, 50):
            yield echo("udp", "datagrams", size, connections)
    for api, connections in (("protocol", 1), ("protocol", 50), ("streams", 50)):
        yield echo("unix", api, "1KB", connections)


def https() -> Iterator[Subject]:
    """Yield the cells of the servers that people run on a loop."""
    for framework in ("uvicorn", "aiohttp"):
        for connections in (50, 500):
            yield Subject(
                name=f"loops/http/{framework}/{connections}",
                title=f"GET on {connections} connections, answered by {framework}",
                operation="request",
                metrics=LOADED,
                subject_words=("http", framework, str(connections)),
                windows_s=LOAD_S,
                scales=QUICK,
                features=("loop",),
                checked=True,
                connections=connections,
            )


def waiting() -> Iterator[Subject]:
    """Yield the cells of a loop that has little or nothing to do."""
    for name, title, interval_us, more in (
        ("idle", "a server with one idle connection", 0, ()),
        ("10ms", "a server that echoes 1 KB every 10 ms", 10_000, (P50,)),
    ):
        yield Subject(
            name=f"loops/wait/{name}",
            title=title,
            operation="second",
            metrics=(SHARE, *more),
            subject_words=("wait", str(interval_us)),
            windows_s=WAIT_S,
            scales=QUICK,
            connections=1,
            size_bytes=1024,
        )


def files() -> Iterator[Subject]:
    """Yield the cells of files in the page cache: lab/targets/files."""
    for name, title in (
        ("pread_4KB", "reading 4 KB at an offset"),
        ("read_1MB", "reading a file of 1 MB as a whole"),
        ("1000_small", "opening, reading and closing 1,000 files of 1,000 bytes, each"),
        ("lines", "iterating over 20,000 lines of text, each"),
        ("write_100B", "20,000 writes of 100 bytes, each"),
        ("stat", "asking for a file's status"),
        ("50_stat", "the same in 50 tasks, each"),
        ("50_rename", "renaming files of a folder in 50 tasks, each"),
    ):
        yield Subject(
            name=f"files/{name}",
            workload="files",
            title=title,
            operation="operation",
            metrics=(OPERATION,),
            subject_words=(name,),
            windows_s=FILES_S,
            scales=QUICK,
            features=("status",) if name in ("stat", "50_stat", "50_rename") else (),
        )


SUBJECTS = (*scheduling(), *operations(), *echoes(), *https(), *waiting(), *files())
