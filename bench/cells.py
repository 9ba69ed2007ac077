"""The cells of the race: what is measured, in which figures, and which goals of ringloop rest on it."""

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Metric:
    """One figure of a cell. The table shows ratios of the first one."""

    key: str
    unit: str
    higher_is_better: bool = False
    judged: bool = False
    """Slower than uvloop in this figure counts as slower in this cell."""
    has_ratio: bool = True
    """False where a figure may be about 0."""


@dataclass(frozen=True)
class Cell:
    """One thing that is measured on every arm. Its `name` is a path, and globs select by it."""

    name: str
    title: str
    metrics: tuple[Metric, ...]
    in_subset: bool = False
    """Without --full, it is measured."""
    in_quick: bool = False
    floor: bool = False
    """The raw C program can do it as well."""

    # What it needs that may be missing on a machine: names of MEANS in measure.py.
    needs: tuple[str, ...] = ()
    # A feature of loops that it is about, which some arms lack.
    feature: str = ""

    # A scheduling cell:
    micro: str = ""
    # An echo cell:
    api: str = ""
    transport: str = "tcp"
    size_bytes: int = 0
    # A cell about an HTTP server: what each response must have, and, on a Python loop, who it is that stands on it.
    body: str = ""
    framework: str = ""
    # Of an echo or HTTP cell:
    connections: int = 0
    # A cell about waiting:
    interval_us: int = 0
    idle: bool = False
    # A cell of the native race: which program of an arm it is about, with how many workers.
    workload: str = ""
    workers: int = 1

    @property
    def group(self) -> str:
        """The first part of the name."""
        return self.name.partition("/")[0]


OPERATION_NS = Metric("operation_ns", "ns", judged=True)
OPERATION_US = Metric("operation_us", "us", judged=True)
SERVER_CPU = Metric("server_cpu_us", "us of CPU", judged=True)
ROUND_TRIP = Metric("latency_us_p50", "us p50")
THROUGHPUT = Metric("messages_per_s", "messages/s", higher_is_better=True)
ECHO = (SERVER_CPU, THROUGHPUT, ROUND_TRIP, Metric("latency_us_p99", "us p99"))
ECHO_ALONE = (SERVER_CPU, replace(ROUND_TRIP, judged=True), Metric("latency_us_p99", "us p99"), THROUGHPUT)

SIZES = {"64B": 64, "1KB": 1024, "16KB": 16 * 1024, "100KB": 100 * 1024}
CONNECTIONS = (1, 50, 500)
SUBSET = {
    "echo/protocol/1KB/1",
    "echo/protocol/64B/50",
    "echo/protocol/1KB/50",
    "echo/protocol/16KB/50",
    "echo/protocol/100KB/50",
    "echo/protocol/1KB/500",
    "echo/streams/1KB/50",
    "echo/streams/100KB/50",
    "echo/sock/1KB/50",
    "echo/sock/100KB/50",
}
QUICK = {"echo/protocol/100KB/50", "echo/streams/1KB/50", "echo/sock/1KB/50"}


def scheduling_cells() -> list[Cell]:
    """What a loop does without the network, and around it."""

    def cell(name: str, title: str, *metrics: Metric, micro: str, floor: bool = False) -> Cell:
        return Cell(name, title, metrics, in_subset=True, in_quick=True, micro=micro, floor=floor)

    insert, fire = Metric("insert_ns", "ns to insert"), Metric("fire_ns", "ns to fire")
    late, late_p99 = Metric("lateness_us", "us late p50", has_ratio=False), Metric("lateness_us_p99", "us late p99")
    return [
        cell("schedule/call_soon", "call_soon, 50,000 in a batch, each", OPERATION_NS, micro="call_soon"),
        cell("schedule/chain", "chained callback, one per iteration, 10,000, each", OPERATION_NS, micro="chain"),
        cell(
            "schedule/timers",
            "call_later of 0 to 9 ms, 5,000: insert and fire one",
            OPERATION_NS,
            insert,
            fire,
            micro="timers",
        ),
        cell(
            "schedule/lateness",
            "call_later of 0 to 9 ms, 5,000 at once: how late, and CPU each",
            late,
            late_p99,
            Metric("earliest_us", "us the earliest"),
            Metric("cpu_ns", "ns of CPU"),
            micro="timer_lateness",
        ),
        cell("schedule/cancel", "call_later and cancel, each", OPERATION_NS, micro="timers_cancel"),
        cell("schedule/threadsafe", "call_soon_threadsafe from another thread, each", OPERATION_NS, micro="threadsafe"),
        cell(
            "fairness/flood",
            "a tick every 10 ms while 4 threads do nothing but post callbacks: how late at most",
            Metric("late_ms_max", "ms late at most"),
            Metric("late_ms_p50", "ms late p50", has_ratio=False),
            Metric("callbacks_per_s", "callbacks/s", higher_is_better=True),
            micro="flood",
        ),
        cell(
            "fairness/accept",
            "100 clients in each iteration of a loop that is never idle: how many wait at most",
            Metric("behind_max", "clients waiting at most"),
            Metric("behind_mean", "clients waiting on average"),
            replace(OPERATION_US, judged=False),
            micro="accept_while_busy",
        ),
        cell("schedule/gather", "gather of 1,000 tasks that sleep(0), each task", OPERATION_US, micro="gather"),
        cell("setup/server", "create_server and close", OPERATION_US, micro="server", floor=True),
        cell(
            "setup/connect",
            "create_connection and close; the server is the C floor in another process",
            OPERATION_US,
            Metric("cpu_us", "us of CPU"),
            micro="connect",
            floor=True,
        ),
    ]


def echo_cells() -> list[Cell]:
    """Echo through each of asyncio's interfaces."""
    cells = []
    for api in ("protocol", "streams", "sock", "buffered"):
        for size, size_bytes in SIZES.items():
            for connections in CONNECTIONS:
                if api == "buffered" and connections != 50:
                    continue
                name = f"echo/{api}/{size}/{connections}"
                plural = "s" if connections > 1 else ""
                cells.append(
                    Cell(
                        name,
                        f"echo of {size} on {connections} connection{plural} through {api}, server CPU per message",
                        ECHO if connections > 1 else ECHO_ALONE,
                        in_subset=name in SUBSET,
                        in_quick=name in QUICK,
                        floor=True,
                        api=api,
                        size_bytes=size_bytes,
                        connections=connections,
                    )
                )
    return cells


def waiting_cells() -> list[Cell]:
    """What a loop costs that has little or nothing to do."""

    def cell(name: str, title: str, *metrics: Metric, interval_us: int = 0, idle: bool = False) -> Cell:
        return Cell(
            name,
            title,
            metrics,
            in_subset=True,
            in_quick=True,
            floor=True,
            api="protocol",
            size_bytes=1024,
            connections=1,
            interval_us=interval_us,
            idle=idle,
        )

    busy = Metric("server_cpu_percent", "% of a core", has_ratio=False)
    return [
        cell("wait/idle", "CPU of a loop with one idle connection", busy, idle=True),
        cell("wait/10ms", "CPU of a loop that echoes 1 KB every 10 ms", busy, ROUND_TRIP, interval_us=10_000),
    ]


def other_transport_cells() -> list[Cell]:
    """Echo over what isn't TCP alone."""

    def cell(
        transport: str, api: str, size: str, connections: int, *, in_subset: bool = False, in_quick: bool = False
    ) -> Cell:
        size_bytes = {"64B": 64, "1KB": 1024, "64KB": 64 * 1024}[size]
        stack = {"tls": "TLS", "udp": "UDP", "unix": "a Unix socket"}[transport]
        plural = "s" if connections > 1 else ""
        who = f"peer{plural}" if transport == "udp" else f"connection{plural}"
        return Cell(
            f"{transport}/{api}/{size}/{connections}".replace("/datagrams", ""),
            f"echo of {size} over {stack}, {connections} {who}, through {api}, server CPU per message",
            ECHO,
            in_subset=in_subset,
            in_quick=in_quick,
            floor=True,
            needs=("libssl", "certificate") if transport == "tls" else (),
            feature=transport,
            api=api,
            transport=transport,
            size_bytes=size_bytes,
            connections=connections,
        )

    return [
        cell("tls", "protocol", "1KB", 1),
        cell("tls", "protocol", "1KB", 50, in_subset=True, in_quick=True),
        cell("tls", "protocol", "64KB", 50, in_subset=True, in_quick=True),
        cell("tls", "streams", "1KB", 50, in_subset=True),
        cell("tls", "streams", "64KB", 50),
        cell("udp", "datagrams", "64B", 1),
        cell("udp", "datagrams", "64B", 50),
        cell("udp", "datagrams", "1KB", 1, in_subset=True),
        cell("udp", "datagrams", "1KB", 50, in_subset=True, in_quick=True),
        cell("unix", "protocol", "1KB", 1),
        cell("unix", "protocol", "1KB", 50, in_subset=True, in_quick=True),
        cell("unix", "streams", "1KB", 50),
    ]


def other_operation_cells() -> list[Cell]:
    """Names, children, files."""

    def cell(
        name: str, title: str, *metrics: Metric, micro: str, in_subset: bool = True,
        needs: tuple[str, ...] = (), feature: str = "",
    ) -> Cell:  # fmt: skip
        return Cell(name, title, metrics, in_subset=in_subset, in_quick=True, micro=micro, needs=needs, feature=feature)

    cpu = Metric("cpu_us", "us of CPU")
    return [
        cell(
            "setup/getaddrinfo",
            "getaddrinfo of an address literal, and the C library's own",
            OPERATION_US,
            Metric("raw_us", "us in C"),
            micro="getaddrinfo",
        ),
        cell("subprocess/spawn", "create_subprocess_exec of /bin/true, and wait", OPERATION_US, cpu, micro="spawn"),
        cell("subprocess/read", "10 MB from a child's stdout", OPERATION_US, cpu, micro="read_child", in_subset=False),
        cell(
            "sendfile/10MB",
            "loop.sendfile of 10 MB to a reader in C in another process",
            OPERATION_US,
            cpu,
            micro="sendfile",
            feature="sendfile",
        ),
        cell(
            "tls/one_loop",
            "echo of 1 KB over TLS, client and server in one loop, a round trip",
            OPERATION_US,
            micro="tls_one_loop",
            needs=("certificate",),
            feature="tls",
        ),
    ]


BODY = "Hello, world!"
"""Of every HTTP response of the Python race."""
HTTP = (
    replace(SERVER_CPU, unit="us of CPU"),
    replace(THROUGHPUT, unit="requests/s"),
    ROUND_TRIP,
    Metric("latency_us_p99", "us p99"),
)


def http_cells() -> list[Cell]:
    """The servers that people run on a loop."""
    servers = {"uvicorn": ("uvicorn", "httptools"), "aiohttp": ("aiohttp",)}
    return [
        Cell(
            f"http/{framework}/{connections}",
            f"GET on {connections} connections, answered by {framework}, server CPU per request",
            HTTP,
            in_subset=True,
            in_quick=connections == 50,
            needs=needs,
            body=BODY,
            framework=framework,
            connections=connections,
        )
        for framework, needs in servers.items()
        for connections in (50, 500)
    ]


CELLS = (
    *scheduling_cells(),
    *other_operation_cells(),
    *echo_cells(),
    *other_transport_cells(),
    *http_cells(),
    *waiting_cells(),
)
ROUND_TRIP_CELL = "echo/protocol/1KB/1"


def choose(globs: list[str], *, full: bool, quick: bool, every: Sequence[Cell] = CELLS) -> list[Cell]:
    """Return the cells that the options ask for; a glob reaches every cell, whatever subset it is in."""
    if globs:
        return [cell for cell in every if any(fnmatch.fnmatchcase(cell.name, glob) for glob in globs)]
    if quick:
        return [cell for cell in every if cell.in_quick]
    return [cell for cell in every if full or cell.in_subset]
