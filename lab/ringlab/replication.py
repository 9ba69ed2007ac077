"""Repeating published benchmarks: each report's own set-up, with its flaws mended, and its claims beside what is measured here.

docs/lab.md has the reports and what is wrong with them. A report compared systems, so what is repeated are its ratios: absolute figures
of another machine say nothing about this one. Where its subject isn't here, nothing is measured.
"""

import datetime
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import click
from rich.markdown import Markdown
from rich.markup import escape

from ringlab import Refused, figures, manifest, neighbours, preflight, results, selection, session, statistics, storage
from ringlab.progress import working
from ringlab.report import terminal
from ringlab.results import Result

ROUNDS = 5
QUICK_SECONDS = 0.5
QUICK_ROUNDS = 3
REPORT_FILE = "replication.md"


@dataclass(frozen=True)
class Claim:
    """A ratio between two figures of a report, and where it is measured here."""

    cell: str
    figure: str
    """The key of a sample's figure."""
    arm: str
    other: str
    ratio: float
    """The arm's figure divided by that of the other; 0 where the report claims something that it hasn't measured."""
    note: str = ""
    """Says where the report's own two figures are from different cells."""


@dataclass(frozen=True)
class Report:
    """A published benchmark."""

    name: str
    title: str
    seconds: float
    """The report's own samples; 0 where it counted operations instead."""
    workers: int
    subject: str
    """The arm that the report is about."""
    floor: str
    """The arm that shows what the lab's own cost is, or the control."""
    claims: tuple[Claim, ...]
    mended: tuple[str, ...]
    incomparable: tuple[str, ...]
    missing: str = "there is no such target"
    """Said of its subject where there is no target for it."""

    @property
    def arms(self) -> list[str]:
        """Those of the report, and the floor or control."""
        return list(dict.fromkeys([*(arm for claim in self.claims for arm in (claim.arm, claim.other)), self.floor]))

    @property
    def cells(self) -> list[str]:
        """The cells that are measured."""
        return list(dict.fromkeys(claim.cell for claim in self.claims))


TITLES = {
    "operations_per_s": "rate",
    "server_cpu_us": "CPU per request",
    "megabytes_per_s": "bandwidth",
    "operation_ns": "time per operation",
    "fire_ns": "time to run",
    "latency_ns_mean": "mean latency",
    "latency_ns_p50": "p50",
    "latency_ns_p95": "p95",
    "latency_ns_p99": "p99",
}


def ratios(cell: str, figure: str, arm: str, published: Mapping[str, float], note: str = "") -> Iterator[Claim]:
    """Yield the claims of one column of a report: one of its systems against each of the others."""
    for other, figure_of_other in published.items():
        if other != arm:
            yield Claim(cell, figure, arm, other, published[arm] / figure_of_other if figure_of_other else 0.0, note)


def kio_claims() -> Iterator[Claim]:
    """Yield the claims of the HTTP report. Its CPU percentages are divided by its rates: it never says what a request costs."""
    published: dict[int, dict[str, tuple[float, ...]]] = {
        50: {"kio": (139_489, 350, 299, 1.06, 40), "tokio": (110_599, 437, 396, 1.14, 20)},
        500: {"kio": (183_992, 2.69, 2.37, 7.11, 40), "tokio": (159_074, 3.10, 2.65, 7.90, 40)},
        2000: {"kio": (179_944, 5.58, 5.30, 9.74, 40), "tokio": (176_440, 5.66, 5.10, 12.95, 40)},
    }
    for connections, rows in published.items():
        cell = f"http/{connections}/closed"
        for index, figure in enumerate(("operations_per_s", "latency_ns_mean", "latency_ns_p50", "latency_ns_p99")):
            yield from ratios(cell, figure, "kio", {arm: row[index] for arm, row in rows.items()})
        yield from ratios(cell, "server_cpu_us", "kio", {arm: row[4] / row[0] for arm, row in rows.items()})


def atacama_claims() -> Iterator[Claim]:
    """Yield the claims of the echo report, which are about Mbps for each connection."""
    published = {
        1: (40_280, 22_179, 73_343, 72_889, 72_813, 77_355),
        100: (422, 157, 512, 517, 200, 539),
        500: (58, 34, 27, 49, 56, 49),
    }
    arms = ("atacama", "eio-posix", "ranch", "thousand_island", "go", "tokio")
    for connections, megabits in published.items():
        column = dict(zip(arms, megabits, strict=True))
        yield from ratios(f"echo/stream/{connections}", "megabytes_per_s", "atacama", column)


def tml_claims() -> Iterator[Claim]:
    """Yield the claims of the report about binding: each of its other systems in the cells that may stand for it."""
    published = {"asyncio-protocol": 21_388, "go": 21_288, "tokio": 41_550, "node": 559_640}
    for other, ns in published.items():
        yield from ratios("bind/listen/1", "operation_ns", "tml", {"tml": 13_668, other: ns})
    for other in ("go", "node"):
        yield from ratios("bind/listen/50", "operation_ns", "tml", {"tml": 13_668, other: published[other]})


def pyloop_claims() -> Iterator[Claim]:
    """Yield the claims about event loops."""
    chain, chains = "loops/schedule/chain", "loops/schedule/chains"
    yield from ratios(chains, "operation_ns", "pyloop", {"pyloop": 73.0, "asyncio": 713.7, "uvloop": 0, "rloop": 0})
    yield from ratios(chain, "operation_ns", "pyloop", {"pyloop": 1_385, "asyncio": 13_783})
    yield from ratios("loops/schedule/timers", "fire_ns", "pyloop", {"pyloop": 24.7, "asyncio": 14.8})


def pair_claims() -> Iterator[Claim]:
    """Yield the claims about two echo servers, one of which was measured with 1 KB and the other with 16 KB."""
    note = "16 KB against 1 KB"
    for cell in ("rtt/1KB", "rtt/16KB"):
        for figure, asyncio, threads in (
            ("latency_ns_mean", 89, 30), ("latency_ns_p95", 122, 53), ("megabytes_per_s", 172.61, 32.34),
        ):  # fmt: skip
            published = {"asyncio-streams": asyncio, "threaded-python": threads}
            yield from ratios(cell, figure, "asyncio-streams", published, note)


REPORTS = {
    report.name: report
    for report in (
        Report(
            "kio",
            "HTTP hello world: kio against tokio, wrk on a second machine, 8 workers, 30 s",
            30.0,
            8,
            "kio",
            "c-epoll",
            tuple(kio_claims()),
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
                "CPU per request: it is worked out from percentages of 8 cores that the report has rounded to 10",
            ),
        ),
        Report(
            "atacama",
            "Echo under tcpkali: 'hello world' as a stream, on 1, 100 and 500 connections, 10 s",
            10.0,
            1,
            "atacama",
            "c-epoll",
            tuple(atacama_claims()),
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
            "tml",
            "c-epoll",
            tuple(tml_claims()),
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
            "pyloop",
            "asyncio",
            tuple(pyloop_claims()),
            (
                "a batch, a chain and an iteration are three benchmarks: the report's first and third time one chain",
                "a socket is registered and must be served meanwhile: PyLoop polled nothing",
                "running timers is measured without the wait: 9 ms of the report's 24.7 and 14.8 ms were the longest delay",
                "random order in every round, and a fresh process each time, instead of PyLoop first",
                "uvloop and a loop in Rust take part: the report says it is better than uvloop, and measured none",
            ),
            (
                "the timers: the report's total holds insertion, waiting and running",
                "'mixed workloads 5-7x', which the report did not measure",
            ),
            "its sources weren't found in any registry; if you have them, add a target of this name",
        ),
        Report(
            "echo-pair",
            "Echo round trips of two Python servers on one connection, Apple M2, Python 3.11",
            5.0,
            1,
            "asyncio-streams",
            "c-epoll",
            tuple(pair_claims()),
            (
                "all four cells: the report compares threads with 1 KB to asyncio with 16 KB",
                "samples of 5 s instead of 63 and 95 ms, after a warm-up, in rounds",
                "a native client of known cost instead of one in Python",
                "the first message of many fresh connections instead of one message",
            ),
            (
                "times as such: the report's are of an Apple M2 and hold a client in Python",
                "MB/s, which with one message under way is the size divided by the round trip",
                "the cold message of 5.5 ms, which was one: the cells of rtt have the first message of 50 connections",
            ),
        ),
    )
}


HEADINGS = ("cell", "figure", "ratio", "the report", "here", "")


def compare(claim: Claim, result: Result) -> list[str]:
    """Return a claim as a row: what it says, what was measured, and whether one fits the other."""
    row = [claim.cell, TITLES[claim.figure], f"{claim.arm} / {claim.other}"]
    row.append(
        f"{figures.ratio(claim.ratio)}{f', {claim.note}' if claim.note else ''}" if claim.ratio else "not measured"
    )
    cell = next((each for each in result.cells if each.name == claim.cell), None)
    found = None
    if cell is not None:
        found = statistics.estimate(
            statistics.log_ratios(cell.series(claim.arm, claim.figure), cell.series(claim.other, claim.figure))
        )
    if found is None or found.rounds < statistics.ROUNDS_MIN:
        return [*row, "did not run" if found is None else "too few rounds", ""]
    low, high = found.interval
    fits = "" if not claim.ratio else "fits" if low <= claim.ratio <= high else "doesn't fit"
    return [*row, f"{figures.ratio(found.ratio)} ({figures.ratio(low)} to {figures.ratio(high)})", fits]


def render(report: Report, result: Result, workers: int, seconds: float | None, lost: Mapping[str, str]) -> str:
    """Return it all in Markdown."""
    environment = result.environment
    length = f" of {figures.plain(seconds)} s" if seconds else ""
    lines = [f"# {report.title}", ""]
    lines += [
        f"Repeated on {environment.cpus_usable} CPUs, {environment.cpu_model or environment.machine}, {environment.kernel}:"
        f" {result.run.scale.rounds} rounds{length}, {figures.counted(workers, 'worker')}. Ratios with their 95% intervals.",
        "",
    ]
    lines += [f"| {' | '.join(HEADINGS)} |", "| --- | --- | --- | ---: | ---: | --- |"]
    lines += [f"| {' | '.join(compare(claim, result))} |" for claim in report.claims]
    for title, texts in (
        ("Mended", report.mended),
        ("Can't be compared", report.incomparable),
        ("Did not run", [f"{arm}: {why}" for arm, why in lost.items()]),
    ):
        if texts:
            lines += ["", f"## {title}", "", *(f"- {text}" for text in texts)]
    return "\n".join(lines) + "\n"


@click.command("replicate", short_help="Repeat a published benchmark.")
@click.argument("name", type=click.Choice(sorted(REPORTS)), metavar=f"[{'|'.join(sorted(REPORTS))}]")
@click.option("--quick", is_flag=True, help=f"{QUICK_ROUNDS} rounds of {QUICK_SECONDS:g} s, for a first look.")
@click.option("--rounds", type=click.IntRange(1, 1000), help=f"How often every arm runs in each cell ({ROUNDS}).")
@click.option("--seconds", type=session.Duration(0.05, 3600), help="Length of a sample (default: the report's own).")
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
    """Run a published benchmark's own set-up with its flaws fixed, and print its claims beside what is measured here.

    \b
    kio        HTTP hello world, kio against tokio          (RINGLAB_KIO_SOURCE: the folder with kio's sources)
    atacama    echo under tcpkali, six servers              (RINGLAB_ATACAMA_SOURCE, RINGLAB_THOUSAND_ISLAND_SOURCE)
    tml        binding a listener in six languages          (RINGLAB_TML: a binary)
    pyloop     event-loop micro-benchmarks, against asyncio (a target `pyloop`)
    echo-pair  echo round trips of two Python servers

    Claims are ratios, because absolute figures of another machine say nothing about this one. Nothing is measured where the
    system that the report is about is missing. Others are left out, and the command says what they need. `ringlab audit` lists
    what is wrong with a report.
    """
    report = REPORTS[name]
    console = terminal.make_console()
    console.print(f"[bold]{escape(report.title)}[/bold]", highlight=False)
    known = {arm.name: arm for arm in manifest.discover(targets_folder, broken={})}
    arms = [known[arm] for arm in report.arms if arm in known]
    # Others may measure until everything is built. Without the subject nothing is built either.
    with working(console, "checking which systems can run here") as tell:
        present, records = selection.make_ready([arm for arm in arms if arm.name == report.subject], tell)
        if present:
            present, records = selection.make_ready(arms, tell)
    lost = {arm: "there is no such target" for arm in report.arms if arm not in known}
    lost |= {report.subject: report.missing} if report.subject in lost else {}
    lost |= {
        record.name: record.skipped + (f". Install it with: {record.install}" if record.install else "")
        for record in records
        if record.skipped
    }
    if report.subject in lost:
        raise Refused(f"nothing is measured, because {report.subject} can't run here: {lost[report.subject]}")
    if not any({claim.arm, claim.other} <= present.keys() for claim in report.claims):
        others = "; ".join(f"{arm}: {why}" for arm, why in lost.items())
        raise Refused(f"nothing is measured, because {report.subject} can be compared with nothing here: {others}")
    placement = preflight.place()
    workers = workers or max(1, min(report.workers, len(placement.server) or 1))
    length = seconds or (QUICK_SECONDS if quick else report.seconds) or None
    folder = output or Path(storage.FOLDER) / f"{datetime.datetime.now():%Y%m%d-%H%M%S}-{name}"
    code = session.measure(
        report.cells,
        list(present),
        "",
        targets_folder=targets_folder,
        quick=False,
        publish=False,
        rounds=rounds or (QUICK_ROUNDS if quick else ROUNDS),
        seconds=length,
        minutes=None,
        seed=None,
        workers=workers,
        system_calls=False,
        again=True,
        if_busy=if_busy,
        memory=None,
        output=folder,
    )
    result = Result.read(folder / storage.RESULT_FILE)
    text = render(report, result, workers, length, lost)
    console.print(Markdown(text), soft_wrap=False)
    results.write_text(folder / REPORT_FILE, text)
    console.print(f"  {folder / REPORT_FILE}", markup=False, highlight=False)
    sys.exit(code)
