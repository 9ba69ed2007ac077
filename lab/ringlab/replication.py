"""Repeating published benchmarks: each report's own set-up, with its flaws mended, and both tables side by side.

docs/lab.md has the reports and what is wrong with them. What a report measured is a cell of the lab here; what it did not measure
soundly is measured as the cell does it, and the list of what was mended says so.
"""

import datetime
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ringlab import Refused, figures, manifest, neighbours, preflight, results, session, storage
from ringlab.report import terminal
from ringlab.results import Result

ROUNDS = 5
QUICK_SECONDS = 0.5
QUICK_ROUNDS = 3
REPORT_FILE = "replication.md"


@dataclass(frozen=True)
class Row:
    """A figure of a report, and what stands for it here."""

    subject: str
    """As the report names it."""
    arm: str
    cell: str
    figure: str
    """The key of a sample's figure."""
    published: float
    """In the figure's unit here: ns, per second, percent or MB/s in each direction."""


@dataclass(frozen=True)
class Report:
    """A published benchmark."""

    name: str
    title: str
    seconds: float
    """The report's own samples; 0 where it counted operations instead."""
    workers: int
    arms: tuple[str, ...]
    """Those of the report, and the floor or control."""
    baseline: str
    rows: tuple[Row, ...]
    mended: tuple[str, ...]
    incomparable: tuple[str, ...]

    @property
    def cells(self) -> list[str]:
        """The cells that are measured."""
        return list(dict.fromkeys(row.cell for row in self.rows))


UNITS = {"operations_per_s": "/s", "server_cpu_percent": "%", "megabytes_per_s": "MB/s"}
"""Of figures that aren't times in ns."""
TITLES = {
    "operations_per_s": "rate",
    "server_cpu_percent": "server CPU",
    "megabytes_per_s": "each direction",
    "operation_ns": "per operation",
    "fire_ns": "to run",
    "latency_ns_mean": "mean",
    "latency_ns_p50": "p50",
    "latency_ns_p95": "p95",
    "latency_ns_p99": "p99",
    "cold_ns_p50": "cold, p50",
}


def kio_rows() -> tuple[Row, ...]:
    """Return the figures of the HTTP report; CPU is that of 8 cores, so of one CPU it is 8 times as much."""
    published = {
        ("kio", 50): (139_489, 350e3, 299e3, 1.06e6, 40),
        ("tokio", 50): (110_599, 437e3, 396e3, 1.14e6, 20),
        ("kio", 500): (183_992, 2.69e6, 2.37e6, 7.11e6, 40),
        ("tokio", 500): (159_074, 3.10e6, 2.65e6, 7.90e6, 40),
        ("kio", 2000): (179_944, 5.58e6, 5.30e6, 9.74e6, 40),
        ("tokio", 2000): (176_440, 5.66e6, 5.10e6, 12.95e6, 40),
    }
    keys = ("operations_per_s", "latency_ns_mean", "latency_ns_p50", "latency_ns_p99", "server_cpu_percent")
    return tuple(
        Row(subject, subject, f"http/{connections}/closed", key, 8 * value if key == "server_cpu_percent" else value)
        for (subject, connections), values in published.items()
        for key, value in zip(keys, values, strict=True)
    )


def atacama_rows() -> tuple[Row, ...]:
    """Return the figures of the echo report: Mbps for each connection, both directions summed, as MB/s in each direction in all."""
    published = {
        ("Atacama", "atacama"): (40_280, 422, 404, 58),
        ("Eio", "eio-posix"): (22_179, 157, 173, 34),
        ("ranch", "ranch"): (73_343, 512, 509, 27),
        ("thousand_island", "thousand_island"): (72_889, 517, 523, 49),
        ("Go", "go"): (72_813, 200, 219, 56),
        ("tokio", "tokio"): (77_355, 539, 539, 49),
    }
    cells = (("echo/stream/1", 1), ("echo/stream/100", 100), ("echo/stream/500", 500))
    return tuple(
        Row(subject, arm, cell, "megabytes_per_s", megabits * connections / 2 / 8)
        for (subject, arm), (one, hundred, _, five_hundred) in published.items()
        for (cell, connections), megabits in zip(cells, (one, hundred, five_hundred), strict=True)
    )


REPORTS = {
    report.name: report
    for report in (
        Report(
            "kio",
            "HTTP hello world: kio against tokio, wrk on a second machine, 8 workers, 30 s",
            30.0,
            8,
            ("kio", "tokio", "c-epoll"),
            "c-epoll",
            kio_rows(),
            (
                "every row has the connections that it names: 50 and 500 were 48 and 492 (wrk divides"
                " among 12 threads), and 2,000 were 1,009,"
                " because the client met its limit of 1,024 descriptors",
                "arms run in rounds, in random order, in fresh processes, instead of once each",
                "servers are ranked by CPU per request, so that the one that uses twice the CPU isn't ahead for it",
                "the client's own limit is measured, and rates near it are said to be lower bounds",
                "a raw C server shows what a request costs without a runtime",
            ),
            (
                "rates and latencies as such: client and server share this machine, and the report's ran on two",
                "the rows of 2,000 connections, whose published figures are those of 1,009",
                "CPU percent: the report's is of 8 cores, and rounded to 10; here it is shown as percent of one CPU",
            ),
        ),
        Report(
            "atacama",
            "Echo under tcpkali: 'hello world' as a stream, on 1, 100 and 500 connections, 10 s",
            10.0,
            1,
            ("atacama", "eio-posix", "ranch", "thousand_island", "go", "tokio", "c-epoll"),
            "c-epoll",
            atacama_rows(),
            (
                "bandwidth is in each direction and in all; the report's is of each connection, with both directions summed",
                "every byte that comes back is checked by its position",
                "TCP_NODELAY, backlog and buffers are the same for all, and are looked up on the live process",
                "the table is made from the result, so it can't disagree with the logs (tokio: 539 in the table, 226 in the log)",
                "servers are ranked by CPU per MB",
            ),
            (
                "Atacama's and tokio's published figures at 100 connections, which the report's own logs contradict",
                "bandwidth as such: the report's is of a laptop with macOS, where client and server share all cores; here a server has one",
            ),
        ),
        Report(
            "tml",
            "Binding a listener in six languages: 50 binds each, Windows 10",
            0.0,
            1,
            ("tml", "asyncio-protocol", "go", "tokio", "node", "c-epoll"),
            "c-epoll",
            (
                Row("TML", "tml", "bind/listen/1", "operation_ns", 13_668),
                Row("Python", "asyncio-protocol", "bind/bind/1", "operation_ns", 21_388),
                Row("Python", "asyncio-protocol", "bind/listen/1", "operation_ns", 21_388),
                Row("Go", "go", "bind/listen/1", "operation_ns", 21_288),
                Row("Go", "go", "bind/listen/50", "operation_ns", 21_288),
                Row("Rust (tokio)", "tokio", "bind/listen/1", "operation_ns", 41_550),
                Row("Node.js", "node", "bind/listen/1", "operation_ns", 559_640),
                Row("Node.js", "node", "bind/listen/50", "operation_ns", 559_640),
            ),
            (
                "samples last at least 100 ms instead of 0.7 ms",
                "binding alone and binding with listening are different cells: Python only bound, the others listened, too",
                "one after the other and 50 at once are different cells: Go's time was that of 50 at once, divided by 50",
                "every process is fresh, and nobody is warmed up by another test",
                "strace counts what is timed (lab/tests/test_targets.py)",
            ),
            (
                "times as such: the report's are of Windows 10",
                "memory per connection and 10,000 connections, which the report names and did not measure",
            ),
        ),
        Report(
            "pyloop",
            "Event-loop micro-benchmarks: PyLoop against asyncio, macOS, Python 3.12",
            0.0,
            1,
            ("asyncio", "uvloop", "rloop"),
            "asyncio",
            (
                Row("PyLoop", "", "loops/schedule/chains", "operation_ns", 73.0e6 / 50_000),
                Row("asyncio", "asyncio", "loops/schedule/chains", "operation_ns", 713.7e6 / 50_000),
                Row("PyLoop", "", "loops/schedule/chain", "operation_ns", 1_385),
                Row("asyncio", "asyncio", "loops/schedule/chain", "operation_ns", 13_783),
                Row("PyLoop", "", "loops/schedule/timers", "fire_ns", 24.7e6 / 5_000),
                Row("asyncio", "asyncio", "loops/schedule/timers", "fire_ns", 14.8e6 / 5_000),
                Row("uvloop", "uvloop", "loops/schedule/call_soon", "operation_ns", 0.0),
                Row("uvloop", "uvloop", "loops/schedule/chains", "operation_ns", 0.0),
                Row("rloop", "rloop", "loops/schedule/chains", "operation_ns", 0.0),
            ),
            (
                "a batch, a chain and an iteration are three benchmarks: the report's first and third time one chain",
                "a socket is registered and must be served meanwhile: PyLoop polled nothing",
                "running timers is measured without the wait: 9 ms of the report's 24.7 and 14.8 ms were the longest delay",
                "random order in every round, and a fresh process each time, instead of PyLoop first",
                "uvloop and a loop in Rust take part: the report says it is better than uvloop, and measured none",
            ),
            (
                "PyLoop itself: its sources aren't published under this name in any registry that was found",
                "the timers: the report's total holds insertion, waiting and running",
                "'mixed workloads 5-7x', which the report did not measure",
            ),
        ),
        Report(
            "echo-pair",
            "Echo round trips of two Python servers on one connection, Apple M2, Python 3.11",
            5.0,
            1,
            ("threaded-python", "asyncio-streams", "asyncio-protocol", "c-epoll"),
            "c-epoll",
            (
                Row("threads", "threaded-python", "rtt/1KB", "latency_ns_mean", 30_000),
                Row("threads", "threaded-python", "rtt/1KB", "latency_ns_p95", 53_000),
                Row("threads", "threaded-python", "rtt/1KB", "megabytes_per_s", 32.34),
                Row("asyncio", "asyncio-streams", "rtt/1KB", "latency_ns_mean", 0.0),
                Row("asyncio", "asyncio-streams", "rtt/1KB", "latency_ns_p95", 0.0),
                Row("threads", "threaded-python", "rtt/16KB", "latency_ns_mean", 0.0),
                Row("threads", "threaded-python", "rtt/16KB", "latency_ns_p95", 0.0),
                Row("asyncio", "asyncio-streams", "rtt/16KB", "latency_ns_mean", 89_000),
                Row("asyncio", "asyncio-streams", "rtt/16KB", "latency_ns_p95", 122_000),
                Row("asyncio", "asyncio-streams", "rtt/16KB", "megabytes_per_s", 172.61),
                Row("asyncio, cold", "asyncio-streams", "rtt/1KB", "cold_ns_p50", 5_543_000),
            ),
            (
                "all four cells: the report compares threads with 1 KB to asyncio with 16 KB",
                "samples of 5 s instead of 63 and 95 ms, after a warm-up, in rounds",
                "a native client of known cost instead of one in Python",
                "the first message of many fresh connections instead of one message",
            ),
            (
                "times as such: the report's are of an Apple M2 and hold a client in Python",
                "MB/s, which with one message under way is the size divided by the round trip",
            ),
        ),
    )
}


def replicate(
    name: str,
    *,
    quick: bool,
    rounds: int | None,
    seconds: float | None,
    workers: int | None,
    targets_folder: Path | None,
    output: Path | None,
    if_busy: neighbours.IfBusy,
) -> int:
    """Run a report's set-up here, and print both tables; return the exit status."""
    report = REPORTS[name]
    console = terminal.make_console()
    console.print(f"[bold]{escape(report.title)}[/bold]", highlight=False)
    placement = preflight.place()
    workers = workers or max(1, min(report.workers, len(placement.server) or 1))
    length = seconds or (QUICK_SECONDS if quick else report.seconds) or None
    folder = output or Path(storage.FOLDER) / f"{datetime.datetime.now():%Y%m%d-%H%M%S}-{name}"
    known = {arm.name for arm in manifest.discover(targets_folder, broken={})}
    lost = [arm for arm in report.arms if arm not in known]
    selectors = [arm for arm in report.arms if arm in known]
    if not selectors:
        raise Refused(f"none of {', '.join(report.arms)} is among the targets; `ringlab targets` lists them")
    code = session.measure(
        report.cells,
        selectors,
        "",
        targets_folder=targets_folder,
        quick=False,
        publish=False,
        rounds=rounds or (QUICK_ROUNDS if quick else ROUNDS),
        seconds=length,
        minutes=None,
        seed=None,
        workers=workers,
        placement="apart",
        system_calls=False,
        again=True,
        if_busy=if_busy,
        memory=None,
        output=folder,
    )
    result = Result.read(folder / storage.RESULT_FILE)
    text = render(report, result, workers, length, lost)
    show(console, report, result)
    results.write_text(folder / REPORT_FILE, text)
    console.print(f"  {folder / REPORT_FILE}", markup=False, highlight=False)
    return code


def measured(result: Result, row: Row) -> float | None:
    """Return the median of a figure here; None if it wasn't measured."""
    for cell in result.cells:
        if cell.name == row.cell:
            for summary in cell.analysis.summaries:
                if (summary.arm, summary.metric) == (row.arm, row.figure):
                    return summary.median
    return None


def write_figure(figure: str, value: float | None) -> str:
    """Write a figure with its unit; nothing if there is none."""
    if not value:
        return ""
    unit = UNITS.get(figure, "ns")
    if unit == "MB/s":
        return f"{figures.significant(value)} MB/s"
    return f"{value:,.0f}{unit}" if unit != "ns" else figures.latency(value)


def cells_of(report: Report, result: Result) -> list[list[str]]:
    """Return the rows of both tables side by side."""
    rows = []
    for row in report.rows:
        here = measured(result, row)
        ratio = figures.ratio(here / row.published) if here and row.published else ""
        rows.append(
            [
                row.cell,
                row.subject,
                TITLES[row.figure],
                write_figure(row.figure, row.published) or "not measured",
                write_figure(row.figure, here) or "did not run",
                ratio,
            ]
        )
    return rows


HEADINGS = ("cell", "subject", "figure", "the report", "here", "here / report")


def absent(report: Report, result: Result, lost: Sequence[str]) -> list[str]:
    """Say which arms did not run, and what they lack."""
    records = {arm.name: arm for arm in result.arms}
    found = [f"{name}: there is no such target" for name in lost]
    for name in report.arms:
        record = records.get(name)
        if record is not None and record.skipped:
            found.append(
                f"{name}: {record.skipped}" + (f". Install it with: {record.install}" if record.install else "")
            )
    return found


def show(console: Console, report: Report, result: Result) -> None:
    """Print both tables, what was mended and what can't be compared."""
    table = Table(box=None, header_style="dim", title="the report, and this machine", title_justify="left")
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading in HEADINGS[:3] else "right")
    for row in cells_of(report, result):
        table.add_row(*map(escape, row))
    console.print(table)
    for title, texts in sections(report, result, ()):
        console.print(f"\n[bold]{title}[/bold]")
        for text in texts:
            console.print(f"  - {escape(text)}", highlight=False)


def sections(report: Report, result: Result, lost: Sequence[str]) -> list[tuple[str, Sequence[str]]]:
    """Return what is told below the tables."""
    found = [
        ("mended", report.mended),
        ("can't be compared", report.incomparable),
        ("did not run", absent(report, result, lost)),
    ]
    return [(title, texts) for title, texts in found if texts]


def render(report: Report, result: Result, workers: int, seconds: float | None, lost: Sequence[str]) -> str:
    """Return it all in Markdown."""
    environment = result.environment
    ran = (
        f"{result.run.scale.rounds} rounds of {figures.plain(seconds)} s"
        if seconds
        else f"{result.run.scale.rounds} rounds"
    )
    lines = [f"# {report.title}", ""]
    lines += [
        f"Repeated on {environment.cpus_usable} CPUs, {environment.cpu_model or environment.machine},"
        f" {environment.kernel}: {ran}, {figures.counted(workers, 'worker')}.",
        "",
    ]
    lines += [f"| {' | '.join(HEADINGS)} |", "| --- | --- | --- | ---: | ---: | ---: |"]
    lines += [f"| {' | '.join(row)} |" for row in cells_of(report, result)]
    for title, texts in sections(report, result, lost):
        lines += ["", f"## {title[:1].upper()}{title[1:]}", "", *(f"- {text}" for text in texts)]
    lines += ["", "## Verdicts here", ""]
    for cell in result.cells:
        for group in cell.analysis.groups:
            lines.append(f"- {cell.name}: {group.verdict.sentence}")
    return "\n".join(lines) + "\n"


@click.command("replicate", short_help="Repeat a published benchmark.")
@click.argument("name", type=click.Choice(sorted(REPORTS)), metavar=f"[{'|'.join(sorted(REPORTS))}]")
@click.option("--quick", is_flag=True, help=f"{QUICK_ROUNDS} rounds of {QUICK_SECONDS:g} s, for a first look.")
@click.option("--rounds", type=click.IntRange(1, 1000), help=f"How often every arm runs in each cell ({ROUNDS}).")
@click.option("--seconds", type=click.FloatRange(0.05, 3600), help="Length of a sample (default: the report's own).")
@click.option(
    "--workers",
    type=click.IntRange(1, 1024),
    help="Workers of each server (default: the report's number, but at most one per server CPU).",
)
@click.option(
    "--targets-folder", type=click.Path(path_type=Path, exists=True, file_okay=False), help="Where the targets are."
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help=f"The folder for results ({storage.FOLDER}/DATE-NAME).",
)
@neighbours.if_busy_option
def replicate_command(
    name: str,
    quick: bool,
    rounds: int | None,
    seconds: float | None,
    workers: int | None,
    targets_folder: Path | None,
    output: Path | None,
    if_busy: neighbours.IfBusy,
) -> None:
    """Run a published benchmark's own set-up with its flaws fixed, and print both tables side by side.

    \b
    kio        HTTP hello world, kio against tokio          (RINGLAB_KIO_SOURCE: the folder with kio's sources)
    atacama    echo under tcpkali, six servers              (RINGLAB_ATACAMA_SOURCE, RINGLAB_THOUSAND_ISLAND_SOURCE)
    tml        binding a listener in six languages          (RINGLAB_TML: a binary)
    pyloop     event-loop micro-benchmarks, against asyncio
    echo-pair  echo round trips of two Python servers

    Systems that are missing here are left out, and the command says what they need. `ringlab audit` lists what is wrong with a
    report.
    """
    sys.exit(
        replicate(
            name,
            quick=quick,
            rounds=rounds,
            seconds=seconds,
            workers=workers,
            targets_folder=targets_folder,
            output=output,
            if_busy=if_busy,
        )
    )
