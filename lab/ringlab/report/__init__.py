"""Reports of a result, which draw what its analysis says and compute nothing anew."""

from ringlab import figures
from ringlab.results import Cell, CellVerdict, Comparison, Group, Metric, Result, Summary


def show_figure(value: float, metric: Metric) -> str:
    """Return a figure of a metric; times in ns come with the unit that suits them, others without theirs."""
    return figures.in_unit(value, "ns" if metric.unit == "ns" else "")


def show_ratio(comparison: Comparison) -> str:
    """Return a ratio with its interval."""
    if comparison.rounds < 2:
        return f"{figures.ratio(comparison.ratio)} (one round)"
    return figures.ratio_within(comparison.ratio, comparison.low, comparison.high)


def comparing(group: Group, arm: str, metric: Metric) -> tuple[str, str]:
    """Return an arm's ratio to the group's baseline, and the verdict."""
    if arm == group.baseline:
        return "1", "the baseline"
    comparison = comparison_of(group, arm, metric.key)
    if comparison is None:
        return "", "no round has both"
    return show_ratio(comparison), comparison.verdict


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
    if cell.workload != "http":
        return ""
    titles = {
        "real": "servers that parse requests",
        "canned": "servers whose answer is fixed",
        "none": "servers that say they parse nothing",
    }
    return titles.get(group.name, "servers of which nobody knows whether they parse")


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


def why_left_out(cell: Cell) -> str:
    """Return why nothing was measured in a cell; nothing where something was."""
    return cell.left_out or ("" if cell.samples else "the run ended before it")


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


def has_system_calls(cell: Cell) -> bool:
    """Whether system calls were counted for any arm."""
    return any(each.per_operation is not None for each in cell.system_calls)


def system_calls_of(cell: Cell, arm: str) -> str:
    """Return the system calls per operation, or nothing where they weren't counted."""
    for each in cell.system_calls:
        if each.arm == arm and each.per_operation is not None:
            return figures.significant(each.per_operation)
    return ""


OTHER_FIGURES = (
    ("latency_ns_mean", "latency mean", "ns", 1.0),
    ("latency_ns_p95", "latency p95", "ns", 1.0),
    ("latency_ns_p999", "latency p99.9", "ns", 1.0),
    ("latency_ns_max", "latency max", "ns", 1.0),
    ("server_cpu_percent", "server CPU, % of one CPU", "", 1.0),
    ("server_system_share", "of it in the kernel, %", "", 100.0),
    ("server_threads", "threads", "", 1.0),
    ("voluntary_switches_per_operation", "voluntary context switches per 1,000 operations", "", 1e3),
    ("involuntary_switches_per_operation", "involuntary ones", "", 1e3),
    ("rss_rest_bytes", "memory at rest, MB", "", 1e-6),
    ("rss_per_connection_bytes", "memory per connection, KB", "", 1e-3),
    ("stream_outstanding_bytes", "sent on a connection and not back, at most, MB", "", 1e-6),
    ("fairness_jain", "fairness between connections (Jain's index)", "", 1.0),
)
"""Figures that rank nothing: key, heading, unit, factor to it."""


def show_other(value: float, unit: str) -> str:
    """Return a figure of OTHER_FIGURES."""
    return figures.in_unit(value, unit) if unit else figures.plain(value)


def other_figures(cell: Cell) -> tuple[list[str], list[list[str]]]:
    """Return the headings and rows of a table of what was measured besides the metrics: medians, the arm first."""
    known = {(each.arm, each.metric): each.median for each in cell.analysis.summaries}
    shown = {metric.key for metric in cell.metrics}
    columns = [
        column for column in OTHER_FIGURES if column[0] not in shown and any(key == column[0] for _, key in known)
    ]
    rows = []
    for arm in arms_of(cell):
        values = [(known.get((arm, key)), unit, factor) for key, _, unit, factor in columns]
        if any(value is not None for value, _, _ in values):
            rows.append(
                [
                    arm,
                    *("" if value is None else show_other(value * factor, unit) for value, unit, factor in values),
                ]
            )
    return ["arm", *(title for _, title, _, _ in columns)] if rows else [], rows


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
        f" {write(scale.warm_up_s)} s of warm-up where a cell says no other; seed {run.seed}"
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
