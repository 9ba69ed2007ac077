"""Reports of a result, which draw what its analysis says and compute nothing anew."""

from collections.abc import Callable, Iterable, Sequence

from ringlab import figures
from ringlab.results import Cell, CellVerdict, Comparison, Group, Metric, RatePoint, Result, Summary, Sweep

NAMED_MAX = 3
"""Cells in a sentence."""
VOID = "the sample does not count, for the reason that is given, such as an incorrect answer"


def words(result: Result) -> list[tuple[str, str]]:
    """Return the words that a report of a result uses in a sense of their own, each with its meaning."""
    statuses = {sample.status for cell in result.cells for sample in cell.samples}
    groups = any(len(cell.analysis.groups) > 1 for cell in result.cells)
    return [
        ("cell", "one thing that is measured, such as an echo of 1 KB on 100 connections"),
        ("arm", "one contestant: a server or a program, in one variant"),
        ("round", "every arm of a cell once, in random order, each in a fresh process"),
        *([("group", "the arms of a cell that are compared with each other")] if groups else []),
        *([("void", VOID)] if "void" in statuses else []),
        ("control", "a second copy of one arm, which shows how much two equal arms differ here"),
    ]


Table = Sequence[Sequence[str]]
"""A row of headings, and the rows below it. The first column names the rows."""


def table(*columns: tuple[str, Sequence[str]]) -> Table:
    """Return a table, given the heading and the texts of each column."""
    return [[heading for heading, _ in columns], *zip(*(texts for _, texts in columns), strict=True)]


def show_figure(value: float, metric: Metric) -> str:
    """Return a figure of a metric; times in ns come with the unit that suits them, others without theirs."""
    return figures.in_unit(value, "ns" if metric.unit == "ns" else "")


def bounded(cell: Cell, arm: str, metric: Metric, figure: str) -> str:
    """Return a figure of an arm, and whether it is only a bound."""
    bounds = {sample.bound for sample in cell.measured(arm) if sample.bound} if metric.primary else set()
    return f"{' or '.join(sorted(bounds))} {figure}".strip()


def show_median(cell: Cell, arm: str, metric: Metric) -> str:
    """Return the median of a figure of an arm; nothing if there is none."""
    summary = summary_of(cell, arm, metric.key)
    return "" if summary is None else bounded(cell, arm, metric, show_figure(summary.median, metric))


def show_ratio(comparison: Comparison) -> str:
    """Return a ratio with its interval."""
    if comparison.rounds < 2:
        return f"{figures.compared(comparison.ratio)} (one round)"
    return figures.compared(comparison.ratio, (comparison.low, comparison.high))


def comparing(group: Group, arm: str, metric: Metric) -> tuple[str, str]:
    """Return an arm's ratio to the group's baseline, and the verdict."""
    if arm == group.baseline:
        return "-", "the baseline"
    comparison = comparison_of(group, arm, metric.key)
    if comparison is None:
        return "", "never measured in the same round"
    return show_ratio(comparison), comparison.verdict


def rank_of(group: Group, arm: str) -> str:
    """Return the ranks that an arm may have: 3, or 1 to 3."""
    for rank in group.ranks:
        if rank.arm == arm:
            return f"{rank.best}" if rank.best == rank.worst else f"{rank.best} to {rank.worst}"
    return ""


def noise_of(group: Group) -> str:
    """Return what the A/A arm has shown."""
    if group.control is None:
        return group.noise_text
    said = "" if group.control.status == "too noisy" else "control "
    return f"{said}{group.control.status}: {group.noise_text}"


def not_counted(result: Result) -> list[str]:
    """Return a sentence for each arm of which nothing counts in a cell, those that answered wrongly first: the first thing to know."""
    found: dict[tuple[bool, str, str], list[str]] = {}
    for cell in result.cells:
        for arm in result.arms:
            samples = [sample for sample in cell.samples if sample.arm == arm.name]
            if samples and not arm.repeats and not cell.measured(arm.name):
                worst = next((sample for sample in samples if sample.status == "void"), samples[0])
                key = (worst.status != "void", arm.name, "; ".join(worst.reasons))
                found.setdefault(key, []).append(cell.name)
    return [
        f"{arm} {'failed' if failed else 'does not count'} in {', '.join(cells[:NAMED_MAX])}"
        f"{f' and {len(cells) - NAMED_MAX} more cells' if len(cells) > NAMED_MAX else ''}: {why}"
        for (failed, arm, why), cells in sorted(found.items(), key=lambda each: each[0])
    ]


def has_void(result: Result) -> bool:
    """Return whether an arm is void in every round of a cell."""
    return any(
        sample.status == "void" and not cell.measured(sample.arm) for cell in result.cells for sample in cell.samples
    )


def summary_of(cell: Cell, arm: str, metric: str) -> Summary | None:
    """Return what a cell says of one figure of an arm."""
    return next((each for each in cell.analysis.summaries if (each.arm, each.metric) == (arm, metric)), None)


def comparison_of(group: Group, arm: str, metric: str) -> Comparison | None:
    """Return how an arm compares with the group's baseline in a metric."""
    return next((each for each in group.comparisons if (each.arm, each.metric) == (arm, metric)), None)


def heading(metric: Metric) -> str:
    """Return the heading of a metric's column."""
    return metric.title if metric.unit == "ns" else f"{metric.title}, {metric.unit}"


def group_title(cell: Cell, group: Group) -> str:
    """Return what the arms of a group have in common, where a cell has several groups."""
    if not cell.of_http:
        return ""
    titles = {
        "real": "servers that parse requests",
        "canned": "servers whose answer is fixed",
        "none": "servers that say they parse nothing",
    }
    return titles.get(group.name, "servers for which it is unknown whether they parse requests")


def verdicts_of(cell: Cell) -> list[tuple[str, CellVerdict, str]]:
    """Return the title of each group of arms, and its verdict as a word and as a sentence; nothing where nothing was tried."""
    found = [(group_title(cell, group), group.verdict.kind, group.verdict.sentence) for group in cell.analysis.groups]
    if not found and cell.samples:
        found.append(("", "nothing to compare", "nothing was measured: no sample counts"))
    return found


def arms_of(cell: Cell) -> list[str]:
    """Return the arms of a cell, the best of each group first, and last those that were never measured."""
    ranked = [arm for group in cell.analysis.groups for arm in group.ranking(cell.primary)]
    return ranked + [arm for arm in cell.arms if arm not in ranked]


def left_out(result: Result) -> list[str]:
    """Return who took no part, and what wasn't measured, each with the reason."""
    found = [(arm.name, arm.skipped, f"; install it with: {arm.install}" * bool(arm.install)) for arm in result.arms]
    found += [(cell.name, cell.left_out or "the run ended before it" * (not cell.samples), "") for cell in result.cells]
    return [f"{name}: {why}{remedy}" for name, why, remedy in found if why]


def unlike_declared(result: Result) -> list[str]:
    """Return the declared settings that are wrong, or could not be checked."""
    return [
        f"{arm.name}: {check.name} {check.declared}: {check.status}, {check.text}"
        for arm in result.arms
        for check in arm.checks
        if check.status != "ok"
    ]


def sentence(text: str) -> str:
    """Return text as a sentence, with a capital and a full stop."""
    text = f"{text[:1].upper()}{text[1:]}"
    return text if text.endswith((".", "!", "?")) else f"{text}."


def rate_of(cell: Cell) -> str:
    """Return a sentence about the rate of an open loop, or nothing."""
    rate = cell.parameters.get("offered_rate_per_s")
    if rate is None:
        return ""
    share = 100 * cell.parameters.get("rate_fraction", 0)
    return (
        f"{rate:,.0f} requests/s are offered, {share:.0f}% of what {cell.parameters.get('of')} did in the closed loop"
    )


def table_of(cell: Cell, group: Group) -> Table:
    """Return the table of a group: the primary metric, the other ones, and instructions and system calls per operation."""
    arms = group.ranking(cell.primary)

    def medians(metric: Metric) -> list[str]:
        return [show_median(cell, arm, metric) for arm in arms]

    comparisons = [comparing(group, arm, cell.primary) for arm in arms]
    return table(
        ("arm", arms),
        (heading(cell.primary), medians(cell.primary)),
        (f"compared with {group.baseline}", [ratio for ratio, _ in comparisons]),
        ("verdict", [verdict for _, verdict in comparisons]),
        ("rank", [rank_of(group, arm) for arm in arms]),
        *((heading(metric), medians(metric)) for metric in cell.metrics if not metric.primary),
        *((title, [texts.get(arm, "") for arm in arms]) for title, texts in counted(cell)),
    )


def counted(cell: Cell) -> list[tuple[str, dict[str, str]]]:
    """Return the headings of what was counted per operation, instructions and system calls, each with the figures by arm."""
    kernel = (
        "" if any(each.instructions_of == "instructions" for each in cell.system_calls) else " outside of the kernel"
    )
    columns = [
        (f"instructions{kernel} per {cell.operation}", {each.arm: each.instructions for each in cell.system_calls}),
        (f"system calls per {cell.operation}", {each.arm: each.per_operation for each in cell.system_calls}),
    ]
    found = [
        (title, {arm: figures.significant(value) for arm, value in values.items() if value is not None})
        for title, values in columns
    ]
    return [(title, texts) for title, texts in found if texts]


def show_knee(sweep: Sweep) -> str:
    """Return the rate at a knee with its interval."""
    rate = f"{sweep.bound} {sweep.knee_per_s:,.0f}/s".strip()
    return rate if sweep.low is None or sweep.high is None else f"{rate} ({sweep.low:,.0f} to {sweep.high:,.0f})"


def sweeps_of(cell: Cell) -> list[Sweep]:
    """Return the sweeps of a cell, the best arm first."""
    known = {each.arm: each for each in cell.analysis.sweeps}
    return [known[arm] for arm in arms_of(cell) if arm in known]


def knees(cell: Cell) -> Table:
    """Return a table of the knees of a cell."""
    sweeps = sweeps_of(cell)
    most = [max(point.achieved_per_s for point in each.points) for each in sweeps]
    return table(
        ("arm", [each.arm for each in sweeps]),
        ("rate at the knee: mean of the rounds, 95% interval", [show_knee(each) for each in sweeps]),
        ("p99 at a low rate", [figures.latency(each.floor_ns) for each in sweeps]),
        ("rates tried", [str(len(each.points)) for each in sweeps]),
        ("highest rate answered, /s", [figures.significant(rate) for rate in most]),
    )


def curve(points: Sequence[RatePoint]) -> Table:
    """Return a table of the rates that were tried."""

    def latencies(values: Iterable[float]) -> list[str]:
        return [figures.latency(value) if value else "" for value in values]

    said = {"floor": "the low rate", "above": "past the knee", "limited": "the generator's limit", "failed": "failed"}
    return table(
        ("offered, /s", [f"{point.offered_per_s:,.0f}" for point in points]),
        ("answered, /s", [f"{point.achieved_per_s:,.0f}" for point in points]),
        ("p50", latencies(point.latency_ns_p50 for point in points)),
        ("p99", latencies(point.latency_ns_p99 for point in points)),
        ("p99.9", latencies(point.latency_ns_p999 for point in points)),
        ("trials", [str(point.trials) for point in points]),
        ("", ["; ".join(point.reasons) or said.get(point.outcome, "") for point in points]),
    )


OTHER_FIGURES = (
    ("latency_ns_mean", "latency mean", 1.0),
    ("latency_ns_p95", "latency p95", 1.0),
    ("latency_ns_p999", "latency p99.9", 1.0),
    ("latency_ns_max", "latency max", 1.0),
    ("server_cpu_percent", "server CPU, % of one CPU", 1.0),
    ("server_system_share", "of it in the kernel, %", 100.0),
    ("run_delay_share", "threads waited for a CPU, % of the window", 100.0),
    ("server_threads", "threads", 1.0),
    ("voluntary_switches_per_operation", "voluntary context switches per 1,000 operations", 1e3),
    ("involuntary_switches_per_operation", "involuntary ones", 1e3),
    ("rss_rest_bytes", "memory at rest, MB", 1e-6),
    ("rss_per_connection_bytes", "memory per connection, KB", 1e-3),
    ("rss_slope_bytes", "resident memory per further connection, bytes", 1.0),
    ("stream_outstanding_bytes", "sent on a connection and not back, at most, MB", 1e-6),
    ("fairness_jain", "fairness between connections (Jain's index)", 1.0),
)
"""Figures that rank nothing: key, heading, and the factor to the heading's unit; latencies have their own."""


def other_figures(cell: Cell) -> Table:
    """Return a table of the medians of what was measured besides the metrics; nothing if that is nothing."""
    known = {(each.arm, each.metric): each.median for each in cell.analysis.summaries}
    keys = {key for _, key in known} - {metric.key for metric in cell.metrics}
    chosen = [column for column in OTHER_FIGURES if column[0] in keys]
    arms = [arm for arm in arms_of(cell) if any((arm, key) in known for key, _, _ in chosen)]
    columns: list[tuple[str, list[str]]] = [("arm", arms)]
    for key, title, factor in chosen:
        write: Callable[[float], str] = figures.latency if key.startswith("latency_ns") else figures.plain
        columns.append((title, [write(factor * known[arm, key]) if (arm, key) in known else "" for arm in arms]))
    return table(*columns) if chosen else []


def minutes(seconds: float) -> str:
    """Return a duration as people say it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min"


def settings(result: Result) -> list[tuple[str, str]]:
    """Return how and where the run was measured, as pairs of name and text."""
    run, environment = result.run, result.environment
    scale, write = run.scale, figures.plain
    machine = (
        f"{environment.cpu_model or environment.machine}, {environment.cpus_usable} of {environment.cpus} CPUs usable,"
        f" {write(environment.memory_bytes / (1 << 30))} GiB{', virtual' if environment.hypervisor else ''}"
    )
    system = (
        f"{environment.kernel} {environment.machine}; {environment.libc}; Python {environment.python};"
        f" somaxconn {environment.somaxconn}, {environment.descriptors_limit} descriptors"
    )
    if environment.tcp_congestion_control:
        system += f", TCP congestion control {environment.tcp_congestion_control}"
    if environment.io_uring_disabled:
        system += f", io_uring_disabled {environment.io_uring_disabled}"
    loads = " to ".join(
        f"{load[0]:.2f}" for load in (environment.load_average_begin, environment.load_average_end) if load
    )
    rounds = (
        f"{scale.rounds} ({scale.name}), of {write(scale.window_s)} s windows after {write(scale.ramp_s)} s of ramp and"
        f" {write(scale.warm_up_s)} s of warm-up, unless a cell sets its own; seed {run.seed}"
    )
    return [
        (name, text)
        for name, text in (
            ("begun", f"{run.begun}; ended {run.ended or 'never'}{'; interrupted' if run.interrupted else ''}"),
            ("machine", f"{environment.host}: {machine}" if environment.host else machine),
            ("kernel", system),
            ("CPU clock", environment.cpu_governor or "no governor to be seen"),
            ("load", f"load average {loads}; {environment.stolen_s:.1f} s of CPU time stolen by the hypervisor"),
            ("placement", run.placement.text),
            ("rounds", rounds),
            ("generator", environment.generator),
            ("revision", environment.revision),
            ("variables", " ".join(f"{name}={value}" for name, value in environment.variables.items())),
        )
        if text
    ]
