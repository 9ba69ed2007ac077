"""A result with everything in it that a report must show, made without measuring: the samples are drawn, what they say follows."""

import copy
import functools
import math
import random

from hdrh.histogram import HdrHistogram

from ringlab import analysis, results, workloads

ODD_NAME = "python-asyncio-streams with a <name> that is rather long & odd"
ARMS = {
    "c-epoll": ("C", 4.25, "canned"),
    "c-io_uring": ("C", 4.15, "canned"),
    "ringloop-rust-io_uring": ("Rust", 4.22, "canned"),
    "ringloop-rust-epoll": ("Rust", 4.40, "canned"),
    "tokio": ("Rust", 4.75, "canned"),
    "monoio": ("Rust", 4.81, "canned"),
    "asio": ("C++", 5.02, "canned"),
    "hyper": ("Rust", 6.1, "real"),
    "ringloop-hyper-io_uring": ("Rust", 5.5, "real"),
    "go": ("Go", 6.4, "canned"),
    "go-net-http": ("Go", 12.2, "real"),
    "node": ("JavaScript", 8.4, "canned"),
    "node-http": ("JavaScript", 21.0, "real"),
    "netty-epoll": ("Java", 6.6, "canned"),
    "netty-nio": ("Java", 9.9, "canned"),
    "netty-http": ("Java", 14.1, "real"),
    "eio-posix": ("OCaml", 9.0, "canned"),
    "ranch": ("Erlang", 17.4, "canned"),
    "thousand_island": ("Elixir", 19.4, "canned"),
    "threaded-python": ("Python", 10.9, "canned"),
    "asyncio-protocol": ("Python", 8.4, "canned"),
    "asyncio-streams": ("Python", 20.5, "canned"),
    "asyncio-uvicorn": ("Python", 41.0, "real"),
    "uvloop-protocol": ("Python", 6.4, "canned"),
    "uvloop-streams": ("Python", 12.2, "canned"),
    "uvloop-uvicorn": ("Python", 33.0, "real"),
    "ringloop-io_uring-protocol": ("Python", 5.7, "canned"),
    "ringloop-epoll-protocol": ("Python", 5.9, "canned"),
    "ringloop-io_uring-uvicorn": ("Python", 29.0, "real"),
    ODD_NAME: ("Python", 24.0, "real"),
    "c-epoll (again)": ("C", 4.25, "canned"),
}
ROUNDS = 9
OPERATIONS = 300
"""Of each sample, in its histogram."""
HISTOGRAMS = 2
"""The number of rounds that have one: filling and decoding them takes long."""
SIGMA = 0.5
"""How widely latencies are spread, as the standard deviation of their logarithms."""
P99 = math.exp(2.326 * SIGMA)
"""The 99th percentile of such latencies, as a multiple of their median."""
PATH = "/a/path/without/a/place/to/break" * 8
CPU = results.Metric(key="server_cpu_us", title="server CPU per operation", unit="us", better="lower", primary=True)
RATE = results.Metric(key="operations_per_s", title="rate", unit="/s", better="higher")
LATENCY = results.Metric(key="latency_ns_p99", title="p99", unit="ns", better="lower")


def make_arms() -> list[results.Arm]:
    """Return all who took part."""
    return [
        results.Arm(
            name=name, target=name, language=language, title=f"a server on {name}", version="1.2.3",
            repeats=name.removesuffix(" (again)") if name.endswith(" (again)") else "", declares={"parser": parser},
            checks=[
                results.Check(name="TCP_NODELAY", declared="on", found="on", status="ok"),
                results.Check(name="backlog", declared="1024", found="128", status="violated", text="ss -ltn"),
            ],
        )
        for name, (language, _, parser) in ARMS.items()
    ]  # fmt: skip


def make_cell(
    name: str, workload: str, dice: random.Random, parameters: dict[str, object], stretch: float
) -> results.Cell:
    """Return a cell with samples, of which one is void and one failed, and what they say."""
    arms = list(ARMS)
    orders = [dice.sample(arms, len(arms)) for _ in range(ROUNDS)]
    samples = []
    for number, order in enumerate(orders, 1):
        drift = dice.lognormvariate(0, 0.1)
        for position, arm in enumerate(order, 1):
            cpu = ARMS[arm][1] * stretch * drift * dice.lognormvariate(0, 0.02)
            status, reasons = "measured", []
            if (arm, number) == ("go", 3):
                status, reasons = "void", ["a frame came back changed: connection 7, message 12"]
            if (arm, number) == ("node", 5):
                status, reasons = "failed", [f"it ended with code 1: Error: listen EADDRINUSE {PATH}"]
            histograms, p99 = {}, 10_000 * cpu * P99 * dice.lognormvariate(0, 0.1)
            if number <= HISTOGRAMS:
                histogram = HdrHistogram(1, 3_600_000_000_000, 3)
                for _ in range(OPERATIONS):
                    histogram.record_value(int(10_000 * cpu * dice.lognormvariate(0, SIGMA)))
                kinds = ("service", "corrected") if "offered_rate_per_s" in parameters else ("service",)
                histograms = dict.fromkeys(kinds, histogram.encode().decode())
                p99 = float(histogram.get_value_at_percentile(99))
            samples.append(
                results.Sample(
                    arm=arm, round=number, position=position, begun_s=0.0, duration_s=1.0, status=status, reasons=reasons,
                    figures={
                        "server_cpu_us": cpu,
                        "operations_per_s": 1e6 / cpu,
                        "latency_ns_p99": p99,
                        "rss_rest_bytes": 1e6 * cpu,
                        "server_threads": 1.0,
                    },
                    histograms=histograms,
                    client_limited=arm == "c-io_uring",
                )
            )  # fmt: skip
    cell = results.Cell(
        name=name, workload=workload, title=f"{workload}: {name}", operation="message", parameters=parameters,
        metrics=[CPU, RATE, LATENCY], arms=arms, orders=orders, samples=samples,
        ceiling=results.Ceiling(operations_per_s=412_345, client_cpu_fraction=0.99, text="at 50 connections"),
        system_calls=[results.SystemCalls(arm="tokio", tool="perf", per_operation=2.04, operations=1000)],
        probes=[results.Probe(arm=arm, parser=parser) for arm, (_, _, parser) in ARMS.items()]
        if workload == "http"
        else [],
    )  # fmt: skip
    cell.analysis = analysis.analyse(cell, make_arms())
    return cell


def make_sweep(dice: random.Random) -> results.Cell:
    """Return a cell of rising rates, in which the best arm's knee is only a lower bound."""
    arms = list(ARMS)
    samples = []
    for number in range(1, ROUNDS + 1):
        for position, arm in enumerate(arms, 1):
            knee = 1e6 / ARMS[arm][1] * dice.lognormvariate(0, 0.03)
            points = [
                results.RatePoint(
                    offered_per_s=knee * share, achieved_per_s=knee * min(share, 1.0), latency_ns_p50=50_000.0,
                    latency_ns_p99=100_000 / max(0.01, 1 - 0.9 * share), latency_ns_p999=2e6, outcome=outcome,
                )
                for share, outcome in ((0.05, "floor"), (0.4, "below"), (0.8, "below"), (1.05, "above"))
            ]  # fmt: skip
            bound = "at least" if arm == "c-io_uring" else ""
            if bound:
                points[-1].outcome, points[-1].reasons = "limited", ["the load generator was busy for 97% of the time"]
            samples.append(
                results.Sample(
                    arm=arm, round=number, position=position, begun_s=0.0, duration_s=1.0, status="measured", points=points,
                    figures={"knee_per_s": knee, "floor_ns_p99": 100_000.0, "floor_ns_p50": 50_000.0}, bound=bound,
                )
            )  # fmt: skip
    cell = workloads.BY_NAME["sweep/echo/1KB/50"].record(workloads.SCALES["quick"])
    cell.arms, cell.orders, cell.samples = arms, [arms] * ROUNDS, samples
    cell.analysis = analysis.analyse(cell, make_arms())
    return cell


def make_result() -> results.Result:
    """Return a whole result, of one's own to change."""
    return copy.deepcopy(draw_result())


@functools.cache
def draw_result() -> results.Result:
    """Draw the samples of a whole result."""
    dice = random.Random(7)
    cells = [
        make_cell("echo/1KB/50", "echo", dice, {"connections": 50, "size_bytes": 1024}, 1.0),
        make_cell("http/closed/50", "http", dice, {"connections": 50, "mode": "closed"}, 1.2),
        *(
            make_cell(
                f"http/open/50/{share}", "http", dice,
                {"connections": 50, "mode": "open", "offered_rate_per_s": 60_000 * share, "rate_fraction": share, "of": "asyncio-uvicorn"},
                0.9 + share**6,
            )
            for share in (0.25, 0.5, 0.75, 0.9)
        ),
        results.Cell(
            name="http/closed/2000", workload="http", title="http", operation="request",
            left_out="the limit of descriptors is 1,024 and 2,064 are needed: ulimit -n 4096",
        ),
    ]  # fmt: skip
    cells.append(make_sweep(dice))
    arms = make_arms()
    arms.append(
        results.Arm(
            name="erlang-ranch", target="ranch", language="Erlang", title="ranch", skipped="there is no erl on the PATH",
            install="apt-get install erlang-base erlang-ranch",
        )
    )  # fmt: skip
    cells.append(results.Cell(name="echo/stream/500", workload="echo", title="never reached", operation="MB"))
    return results.Result(
        run=results.Run(
            command=["ringlab", "run", "echo", "http", "--quick", "--seed", "7"], begun="2026-11-21T15:00:00+00:00", seed=7,
            ended="2026-11-21T15:08:00+00:00", complete=True,
            scale=results.Scale(name="quick", rounds=ROUNDS, window_s=0.5, warm_up_s=0.1, ramp_s=0.1),
            placement=results.Placement(server=[0], client=[1], text="apart: servers on CPU 0, the load on CPU 1"),
        ),
        environment=results.Environment(
            host="bench", kernel="Linux 6.18", machine="x86_64", cpu_model="A Processor @ 3 GHz", cpus=2, cpus_usable=2,
            memory_bytes=24 << 30, libc="glibc 2.36", python="3.11.7", generator="ringlab-load 0.1.0",
            mitigations={"spectre_v2": "Mitigation: Retpolines"}, load_average_begin=[0.1, 0.2, 0.3],
            load_average_end=[1.5, 0.9, 0.5],
        ),
        preflight=[
            results.Finding(name="load", status="warning", text="the machine is busy: 1.5", remedy="uptime"),
            results.Finding(name="descriptors", status="ok", text="1,048,576"),
        ],
        arms=arms,
        cells=cells,
    )  # fmt: skip
