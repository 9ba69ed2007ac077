"""Reports of a result, which draw what its analysis says and compute nothing anew."""

from ringlab.results import Cell, Comparison, Group, Metric, Result, Summary


def show(value: float) -> str:
    """Return three significant digits, without an exponent."""
    magnitude = abs(value)
    if magnitude >= 1e6:
        return f"{value / 1e6:,.2f}M"
    if magnitude >= 100:
        return f"{value:,.0f}"
    if magnitude >= 10:
        return f"{value:.1f}"
    if magnitude >= 0.1 or value == 0:
        return f"{value:.2f}"
    return f"{value:.2g}"


def show_figure(value: float, metric: Metric) -> str:
    """Return a figure of a metric; times in ns come with the unit that suits them, others without theirs."""
    if metric.unit != "ns":
        return show(value)
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if abs(value) >= size:
            return f"{show(value / size)} {unit}"
    return f"{show(value)} ns"


def show_ratio(comparison: Comparison) -> str:
    """Return a ratio with its interval."""
    high = show(comparison.high) if comparison.high < 1e6 else "?"
    return f"{show(comparison.ratio)} ({show(comparison.low)}..{high})"


def summary_of(cell: Cell, arm: str, metric: str) -> Summary | None:
    """Return what a cell says of one figure of an arm."""
    return next((each for each in cell.analysis.summaries if (each.arm, each.metric) == (arm, metric)), None)


def comparison_of(group: Group, arm: str, metric: str) -> Comparison | None:
    """Return how an arm compares with the group's baseline in a metric."""
    return next((each for each in group.comparisons if (each.arm, each.metric) == (arm, metric)), None)


def ranking(cell: Cell, group: Group) -> list[str]:
    """Return the arms of a group, the best by the primary metric first."""
    metric = cell.primary
    sign = 1 if metric.better == "lower" else -1
    medians = {arm: summary.median for arm in group.arms if (summary := summary_of(cell, arm, metric.key))}
    return sorted(medians, key=lambda arm: sign * medians[arm])


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


def rate_of(cell: Cell) -> str:
    """Return a sentence about the rate of an open loop, or nothing."""
    rate = cell.parameters.get("offered_rate_per_s")
    if rate is None:
        return ""
    share = 100 * cell.parameters.get("rate_fraction", 0)
    return (
        f"{rate:,.0f} requests/s are offered, {share:.0f}% of what {cell.parameters.get('of')} did in the closed loop"
    )


def system_calls_of(cell: Cell, arm: str) -> str:
    """Return the system calls per operation, or nothing where they weren't counted."""
    for each in cell.system_calls:
        if each.arm == arm and each.per_operation is not None:
            return show(each.per_operation)
    return ""


def minutes(seconds: float) -> str:
    """Return a duration as people say it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min"


def settings(result: Result) -> list[tuple[str, str]]:
    """Return how and where was measured, as names and texts."""
    run, environment = result.run, result.environment
    scale = run.scale
    machine = (
        f"{environment.cpu_model or environment.machine}, {environment.cpus_usable} of {environment.cpus} CPUs usable"
    )
    if environment.hypervisor:
        machine += ", virtual"
    loads = " to ".join(
        f"{load[0]:.2f}" for load in (environment.load_average_begin, environment.load_average_end) if load
    )
    return [
        (name, text)
        for name, text in (
            ("begun", f"{run.begun}; ended {run.ended}{'; interrupted' if run.interrupted else ''}"),
            ("machine", machine),
            ("kernel", f"{environment.kernel} {environment.machine}; {environment.libc}; Python {environment.python}"),
            ("CPU clock", environment.cpu_governor or "no governor to be seen"),
            ("load", f"load average {loads}; {environment.stolen_s:.1f} s of CPU time stolen by the hypervisor"),
            ("placement", run.placement.text),
            (
                "rounds",
                f"{scale.rounds}, of {scale.window_s:g} s windows after {scale.warm_up_s:g} s of warm-up; seed {run.seed}",
            ),
            ("generator", environment.generator),
            ("revision", environment.revision),
        )
        if text
    ]
