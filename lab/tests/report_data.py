"""A result with everything in it that a report must show, made without measuring."""

import math
import random

from ringlab import results

ARMS = {
    "ringloop-io_uring": ("Rust", 4.31),
    "ringloop-epoll": ("Rust", 4.40),
    "c-epoll": ("C", 4.25),
    "tokio": ("Rust", 4.42),
    "go": ("Go", 9.1),
    "node": ("JavaScript", 19.4),
    "python-uvloop-protocol": ("Python", 7.7),
    "python-asyncio-streams with a <name> that is rather long & odd": ("Python", 24.0),
    "netty": ("Java", 8.2),
}
NOISE = 0.03
ROUNDS = 9
CPU = results.Metric(key="server_cpu_us", title="server CPU", unit="us", better="lower", primary=True)
RATE = results.Metric(key="operations_per_s", title="rate", unit="/s", better="higher")
LATENCY = results.Metric(key="latency_ns_p99", title="p99", unit="ns", better="lower")


def make_cell(
    name: str, workload: str, dice: random.Random, parameters: dict[str, object], stretch: float
) -> results.Cell:
    """Return a cell with samples, of which one is void and one failed, and what they would say."""
    arms = list(ARMS)
    orders = [dice.sample(arms, len(arms)) for _ in range(ROUNDS)]
    samples = []
    for number, order in enumerate(orders, 1):
        drift = dice.lognormvariate(0, 0.05)
        for position, arm in enumerate(order, 1):
            cpu = ARMS[arm][1] * stretch * drift * dice.lognormvariate(0, 0.02)
            status, reasons = "measured", []
            if (arm, number) == ("go", 3):
                status, reasons = "void", ["a frame came back changed: connection 7, message 12"]
            if (arm, number) == ("node", 5):
                status, reasons = "failed", ["it ended with code 1: Error: listen EADDRINUSE"]
            samples.append(
                results.Sample(
                    arm=arm,
                    round=number,
                    position=position,
                    begun_s=0.0,
                    duration_s=1.0,
                    status=status,
                    reasons=reasons,
                    figures={"server_cpu_us": cpu, "operations_per_s": 1e6 / cpu, "latency_ns_p99": 40_000 * cpu},
                )
            )
    cell = results.Cell(
        name=name, workload=workload, title=f"{workload}: {name}", operation="message", parameters=parameters,
        metrics=[CPU, RATE, LATENCY], arms=arms, orders=orders, samples=samples,
        ceiling=results.Ceiling(operations_per_s=412_345, client_cpu_fraction=0.99, text="at 50 connections"),
        system_calls=[results.SystemCalls(arm="tokio", tool="perf", per_operation=2.04, operations=1000)],
        probes=[results.Probe(arm="tokio", parser="canned")] if workload == "http" else [],
    )  # fmt: skip
    cell.analysis = analyse(cell)
    return cell


def analyse(cell: results.Cell) -> results.Analysis:
    """Return plausible conclusions; that they follow from the samples is not this file's business."""
    baseline = "tokio"
    summaries, comparisons, curves = [], [], []
    for arm in cell.arms:
        for metric in cell.metrics:
            values = sorted(value for value in cell.series(arm, metric.key) if value is not None)
            summaries.append(
                results.Summary(
                    arm=arm, metric=metric.key, median=values[len(values) // 2], low=values[0], high=values[-1],
                    rounds=len(values),
                )
            )  # fmt: skip
        p50 = 10_000 * ARMS[arm][1]
        points = [
            [p, p50 * (1 + 0.5 * math.log10(1 / (1 - p / 100)) ** 2)] for p in (0, 50, 75, 90, 95, 99, 99.9, 99.99)
        ]
        curves.append(results.Curve(arm=arm, kind="service", points=points))
        if arm == baseline:
            continue
        pairs = zip(cell.series(arm, CPU.key), cell.series(baseline, CPU.key), strict=True)
        ratios = [None if mine is None or other is None else mine / other for mine, other in pairs]
        ratio = math.exp(sum(math.log(each) for each in ratios if each) / sum(1 for each in ratios if each))
        verdict = "tie" if abs(ratio - 1) < NOISE else "better" if ratio < 1 else "worse"
        if arm == "ringloop-epoll":
            verdict = "cannot tell"
        comparisons.append(
            results.Comparison(
                metric=CPU.key, arm=arm, baseline=baseline, ratio=ratio, low=ratio * 0.985, high=ratio * 1.02,
                confidence=0.95, p=0.01, p_adjusted=0.05, rounds=ROUNDS, ratios=ratios, verdict=verdict,
                rounds_needed=24 if verdict == "cannot tell" else None,
            )
        )  # fmt: skip
    group = results.Group(
        name="all", arms=cell.arms, baseline=baseline, noise_floor=NOISE,
        noise_text="Two copies of tokio differed by 1.1%.", comparisons=comparisons,
        verdict=results.Verdict(
            kind="tie", arms=["c-epoll", "ringloop-io_uring"],
            sentence="c-epoll and ringloop-io_uring tie: within 3% of each other.",
        ),
    )  # fmt: skip
    return results.Analysis(
        summaries=summaries, groups=[group], curves=curves, notes=["go: client-limited in 2 rounds"]
    )


def make_result() -> results.Result:
    """Return a whole result."""
    dice = random.Random(7)
    cells = [
        make_cell("echo/1KB/50", "echo", dice, {"connections": 50, "size_bytes": 1024}, 1.0),
        make_cell("http/closed/50", "http", dice, {"connections": 50, "mode": "closed"}, 1.2),
        *(
            make_cell(
                f"http/open/50/{share}", "http", dice,
                {"connections": 50, "mode": "open", "offered_rate_per_s": 60_000 * share, "rate_fraction": share},
                0.9 + share**6,
            )
            for share in (0.25, 0.5, 0.75, 0.9)
        ),
        results.Cell(
            name="http/closed/2000", workload="http", title="http", operation="request",
            left_out="the limit of descriptors is 1,024 and 2,064 are needed: ulimit -n 4096",
        ),
    ]  # fmt: skip
    arms = [
        results.Arm(
            name=name, target=name, language=language, title=f"a server on {name}", version="1.2.3",
            checks=[
                results.Check(name="TCP_NODELAY", declared="on", found="on", status="ok"),
                results.Check(name="backlog", declared="1024", found="128", status="violated", text="ss -ltn"),
            ],
        )
        for name, (language, _) in ARMS.items()
    ]  # fmt: skip
    arms.append(
        results.Arm(
            name="erlang-ranch", target="ranch", language="Erlang", title="ranch", skipped="there is no erl on the PATH",
            install="apt-get install erlang-base erlang-ranch",
        )
    )  # fmt: skip
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
