#!/usr/bin/env python3
"""Write the tables of figures in the documentation from the results in docs/results.

    tools/tables.py                           write all of them
    tools/tables.py NAME --measure            measure one again as soon as the machine is quiet, and write it
    tools/tables.py NAME --result FILE        take a result.json of `ringlab run`, and write it
    tools/tables.py --check                   change nothing; exit with 1 if a page is out of date

`make figures TABLE=NAME` installs what is compared, and runs --measure. A result is kept as ringlab wrote it, compressed;
to read one: xz -dc docs/results/NAME.json.xz >result.json && ringlab report result.json.
"""

import argparse
import dataclasses
import json
import lzma
import platform
import statistics
import subprocess
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PERFORMANCE = ROOT / "docs" / "performance.md"
FRONT_PAGES = (ROOT / "README.md", ROOT / "docs" / "site" / "index.md")
RESULTS = ROOT / "docs" / "results"
WIDTH = 100
CONTROL = "asyncio"
"""The loop that the others are compared with."""
LOOPS = {
    "uvloop": "uvloop",
    "rloop": "rloop",
    "zuvloop": "zuvloop",
    "rsloop": "rsloop",
    "talyn": "talyn",
    "loopmini": "loopmini",
    "blazio": "blazio",
    "ringloop": "ringloop, io_uring",
    "ringloop-epoll": "ringloop, epoll",
    "floor": "raw C on epoll",
}
LOOPS_ROWS = {
    "loops/schedule/chain": "chained callback, one per iteration",
    "loops/schedule/call_soon": "call_soon, batches of 1,000",
    "loops/schedule/timers": "call_later of 0 to 9 ms, insert and fire",
    "loops/schedule/cancel": "call_later and cancel",
    "loops/schedule/threadsafe": "call_soon_threadsafe",
    "loops/schedule/gather": "gather of tasks that sleep(0)",
    "loops/setup/connect": "create_connection and close",
    "loops/echo/protocol/1KB/50": "echo through `Protocol`, 1 KB, 50 connections",
    "loops/echo/protocol/100KB/50": "the same, 100 KB",
    "loops/echo/streams/1KB/50": "echo through streams, 1 KB, 50 connections",
    "loops/echo/streams/100KB/50": "the same, 100 KB",
    "loops/echo/sock/1KB/50": "echo through `sock_*`, 1 KB, 50 connections",
    "loops/echo/sock/100KB/50": "the same, 100 KB",
    "loops/tls/protocol/1KB/50": "echo over TLS, 1 KB, 50 connections",
    "loops/tls/protocol/64KB/50": "the same, 64 KB",
    "loops/udp/1KB/50": "echo over UDP, 1 KB, 50 peers",
    "loops/unix/protocol/1KB/50": "echo over a Unix socket, 1 KB, 50 connections",
    "loops/http/uvicorn/50": "uvicorn, 50 connections",
    "loops/http/uvicorn/500": "the same, 500 connections",
    "loops/http/aiohttp/50": "aiohttp's server, 50 connections",
    "loops/http/aiohttp/500": "the same, 500 connections",
    "loops/schedule/call_soon_50000": "call_soon, 50,000 in a batch: mostly the cost of memory",
}
SUMMARY_OF = "loops"
"""The table that the front pages have a summary of."""
SUMMARISED = ("loops/echo/streams/1KB/50", "loops/echo/protocol/1KB/50", "loops/http/uvicorn/50")
"""The cells of the summary on the front pages."""
QUIET_TRIES, QUIET_PAUSE_S = 120, 30
UNITS = {"us": 1.0, "ns": 1e-3}
"""In us, as tables show times."""


@dataclasses.dataclass(frozen=True)
class Table:
    """A table of a page: its columns are arms of a run, and its rows cells."""

    preset: str
    page: Path
    arms: Mapping[str, str]
    own: Sequence[str]
    rows: Mapping[str, str]
    text: str
    """The meaning of the figures, as sentences."""
    relative: bool = False
    """Show how many times better than CONTROL an arm is, instead of its figures."""
    floor: Sequence[str] = ()
    """The arms that are no peers: nothing is compared with them."""
    python: str = ""
    """The version of CPython that is measured, if the table is about one."""
    build: str = ""
    """Targets that are built first, where the preset has a limit of time."""


def loops(python: str) -> Table:
    """Return the table of the loops on one version of CPython."""
    text = (
        "Each figure says how many times faster than stock asyncio a loop is, in time per operation or in server CPU time per"
        " message. Higher is better. Bold: faster than all other loops, even if only by a few percent, which may be noise. The"
        " figures are paired ratios, interleaved, with every loop in fresh processes"
    )
    own = ("ringloop", "ringloop-epoll")
    return Table("loops", PERFORMANCE, LOOPS, own, LOOPS_ROWS, text, relative=True, floor=("floor",), python=python)


def bodies(workload: str, file: str) -> dict[str, str]:
    """Return the rows that ASGI and WSGI have in common."""
    return {
        f"{workload}/hello/50": "13 bytes",
        f"{workload}/hello/500": "the same, 500 connections",
        f"{workload}/hello-log/50": "13 bytes, with an access log to /dev/null",
        f"{workload}/tls/50": "13 bytes over TLS 1.3",
        f"{workload}/http2/50": "13 bytes over HTTP/2, without TLS",
        f"{workload}/http2-tls/50": "13 bytes over HTTP/2 and TLS 1.3, 10 streams at a time",
        f"{workload}/post/1KB/50": "POST of 1 KB",
        f"{workload}/post/1MB/50": "POST of 1 MB",
        f"{workload}/stream/50": "100 chunks of 100 bytes",
        f"{workload}/headers/50": "20 header fields each way",
        f"{workload}/file/1MB/50": file,
        f"{workload}/websocket/1KB/50": "WebSocket, echo of 1 KB",
        f"{workload}/starlette/50": "Starlette",
        f"{workload}/fastapi/50": "FastAPI, JSON",
        f"{workload}/flask/50": "Flask",
        f"{workload}/django/50": "Django",
    }


SERVERS_TEXT = (
    "CPU time of the server for a request, in us, with one process that serves, on 50 connections unless the row says otherwise."
    " Lower is better. Bold: less than on all other servers, even if only by a few percent, which may be noise. A server has no"
    " figure where it lacks the feature, or did not answer correctly. The figures are medians of interleaved rounds"
)
TABLES = {
    "loops": loops("3.11"),
    "loops-3.13": loops("3.13"),
    "loops-3.14": loops("3.14"),
    "loops-3.15": loops("3.15"),
    "asgi": Table(
        preset="asgi",
        page=ROOT / "docs" / "serve.md",
        arms={
            "ringloop-serve-io_uring": "ringloop, io_uring",
            "ringloop-serve-epoll": "ringloop, epoll",
            "uvicorn-uvloop": "uvicorn",
            "granian": "Granian",
            "hypercorn": "Hypercorn",
            "gunicorn-asgi": "gunicorn",
            "fastpysgi": "FastPySGI",
            "socketify": "socketify",
            "h2corn": "h2corn",
            "weft": "weft",
            "m0serve-asgi": "m0serve",
            "saltare": "saltare",
        },
        own=("ringloop-serve-io_uring", "ringloop-serve-epoll"),
        rows=bodies("asgi", "Starlette's FileResponse of 1 MB"),
        text=SERVERS_TEXT,
        python="3.13",
    ),
    "wsgi": Table(
        preset="wsgi",
        page=PERFORMANCE,
        arms={
            "ringloop-wsgi-io_uring": "ringloop, io_uring",
            "ringloop-wsgi-epoll": "ringloop, epoll",
            "fastpysgi-wsgi": "FastPySGI",
            "bjoern": "bjoern",
            "m0serve": "m0serve",
            "weft-wsgi": "weft",
            "granian-wsgi": "Granian",
            "gunicorn-gthread": "gunicorn, gthread",
        },
        own=("ringloop-wsgi-io_uring", "ringloop-wsgi-epoll"),
        rows=bodies("wsgi", "a file of 1 MB"),
        text=SERVERS_TEXT,
        python="3.13",
    ),
    "files": Table(
        preset="files",
        page=ROOT / "docs" / "files.md",
        arms={
            "files-ringloop": "ringloop, io_uring",
            "files-ringloop-epoll": "ringloop, epoll",
            "files-aiofiles": "aiofiles",
            "files-anyio": "AnyIO",
            "files-urio": "urio",
            "files-turbofile": "turbofile",
            "files-asyncfiles": "py-asyncfiles",
            "files-blocking": "blocking calls",
        },
        own=("files-ringloop", "files-ringloop-epoll"),
        rows={
            "files/pread_4KB": "4 KB at an offset",
            "files/read_1MB": "1 MB, from the beginning to the end",
            "files/1000_small": "1,000 files of 1,000 bytes, opened, read and closed concurrently, each",
            "files/lines": "a line of a text file, by iteration",
            "files/write_100B": "`write` of 100 bytes, one of 20,000",
            "files/stat": "`stat`",
            "files/50_stat": "`stat` in 50 tasks, each",
            "files/50_rename": "`rename` in 50 tasks, each",
        },
        text=(
            "Time of one operation on files in the page cache, in us. Lower is better. Bold: less than in all other libraries, even"
            " if only by a few percent, which may be noise. All libraries run on ringloop's loop. turbofile and py-asyncfiles have"
            " no `stat` and no `rename`. The figures are medians of interleaved rounds"
        ),
        floor=("files-blocking",),
        python="3.13",
    ),
    "native": Table(
        preset="native",
        page=PERFORMANCE,
        arms={
            "ringloop-rust-io_uring": "ringloop, io_uring",
            "ringloop-rust-epoll": "ringloop, epoll",
            "tokio": "tokio",
            "monoio": "monoio",
            "c-epoll": "C, epoll",
            "c-io_uring": "C, io_uring",
            "ringloop-hyper-io_uring": "hyper on ringloop, io_uring",
            "ringloop-hyper-epoll": "hyper on ringloop, epoll",
            "hyper": "hyper on tokio",
        },
        own=("ringloop-rust-io_uring", "ringloop-rust-epoll"),
        rows={
            **{
                f"echo/framed/{size.replace(' ', '')}/{connections}": f"echo of {size}, {text}"
                for size in ("64 B", "1 KB", "16 KB", "100 KB")
                for connections, text in ((1, "1 connection"), (50, "50 connections"), (500, "500 connections"))
            },
            "http/1/closed": "HTTP, 13 bytes, 1 connection",
            "http/50/closed": "HTTP, 13 bytes, 50 connections",
            "http/500/closed": "HTTP, 13 bytes, 500 connections",
            "bind/listen/1": "bind, listen and close (time)",
        },
        text=(
            "CPU time of the server for a message or a request, in us, with one worker. Lower is better. Bold: less than on tokio"
            " and monoio, even if only by a few percent, which may be noise. The figures are medians of interleaved rounds"
        ),
        floor=("c-epoll", "c-io_uring", "ringloop-hyper-io_uring", "ringloop-hyper-epoll", "hyper"),
        build="ringloop-rust-*,ringloop-hyper-*,hyper,tokio,monoio,c-epoll,c-io_uring",
    ),
}


THREADS = "threads"
THREADS_PAGE = ROOT / "docs" / "decisions" / "free-threading.md"
THREADS_ROWS = {
    "callbacks": "2,000 callbacks at once, each",
    "chain": "a callback that schedules the next",
    "sleep": "`sleep(0)`",
    "tasks": "a task",
    "echo_tcp": "echo of 1 KB over TCP",
    "echo_pairs": "echo of 1 KB over socket pairs",
    "streams": "echo of 1 KB through streams",
}
THREADS_LOOPS = {
    "ringloop": "ringloop, io_uring",
    "ringloop-epoll": "ringloop, epoll",
    "uvloop": "uvloop",
    "rloop": "rloop",
    "asyncio": "asyncio",
}
NAMES = (*TABLES, THREADS)


def source(name: str) -> Path:
    """Return the file of a table's result."""
    return RESULTS / f"{name}.json.xz"


def marks(name: str) -> tuple[str, str]:
    """Return the lines of a page between which a table stands."""
    return f"<!-- begin: tools/tables.py {name} -->", f"<!-- end: tools/tables.py {name} -->"


def read(name: str) -> dict[str, Any]:
    """Return a table's result."""
    result: dict[str, Any] = json.loads(lzma.decompress(source(name).read_bytes()))
    return result


def page_of(name: str) -> Path:
    """Return the page that has a table."""
    return THREADS_PAGE if name == THREADS else TABLES[name].page


def keep(name: str, path: Path) -> None:
    """Check that a result is one for this table, and put it where the tables are made from."""
    path = path / "result.json" if path.is_dir() else path
    try:
        result = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        sys.exit(f"tables: {path} can't be read as a result: {error}")
    if name == THREADS:
        check_threads(result, path)
    else:
        check(name, result, path)
    source(name).parent.mkdir(parents=True, exist_ok=True)
    source(name).write_bytes(lzma.compress(json.dumps(result, separators=(",", ":")).encode(), preset=9))


def check(name: str, result: dict[str, Any], path: Path) -> None:
    """End the program if this result is not one for this table."""
    table = TABLES[name]
    shown = figures(table, result)
    if not shown:
        sys.exit(f"tables: {path} has no figures for this table; measure them with: make figures TABLE={name}")
    for cell in table.rows.keys() - shown.keys():
        print(f"tables: no row for {cell}: this result has no figures of it", file=sys.stderr)
    check_python(name, result["environment"]["python"])
    if name == SUMMARY_OF:
        summary(result)


def check_python(name: str, version: str) -> None:
    """End the program if a table is about another version of CPython."""
    wanted = TABLES[name].python
    if wanted and not version.startswith(f"{wanted}."):
        remedy = f"make figures TABLE={name} PYTHON=python{wanted} VENV=.venv-{wanted}"
        sys.exit(f"tables: {name} is measured on CPython {wanted}, and this is {version}: {remedy}")


def check_threads(result: dict[str, Any], path: Path) -> None:
    """End the program if a result has not all samples that the tables need."""
    found = {(sample["cell"], sample["loop"], sample["threads"]) for sample in result.get("samples", [])}
    for cell in THREADS_ROWS:
        for loop in THREADS_LOOPS:
            if not found >= {(cell, loop, 1), (cell, loop, 2)}:
                sys.exit(f"tables: {path} has no samples of {loop} in {cell}; measure all cells and loops")


def examine() -> list[Any]:
    """Return what ringlab finds about how quiet the machine is."""
    from ringlab import preflight  # In the environment that measures; nothing else here needs it.

    return [preflight.check_load(), preflight.check_pace(), preflight.check_steal()]


def wait_until_quiet() -> None:
    """Wait until ringlab calls the machine quiet."""
    for _ in range(QUIET_TRIES):
        problems = [found.text for found in examine() if found.status != "ok"]
        if not problems:
            return
        print(f"tables: waiting for a quiet machine: {'; '.join(problems)}", file=sys.stderr)
        time.sleep(QUIET_PAUSE_S)
    minutes = QUIET_TRIES * QUIET_PAUSE_S // 60
    sys.exit(f"tables: no quiet machine within {minutes} minutes; to measure nevertheless: --anyway before --measure")


def measure(name: str, words: Sequence[str], *, anyway: bool) -> None:
    """Measure, beside this Python, and keep the result."""
    replaced(page_of(name).read_text(), name, "")
    folder = ROOT / "target" / "figures" / f"{name}-{time.strftime('%Y-%m-%dT%H%M%S')}"
    if name != THREADS:
        check_python(name, platform.python_version())
    if not anyway:
        wait_until_quiet()
    if name == THREADS:
        folder.mkdir(parents=True)
        program = ROOT / "tools" / "threads.py"
        done = subprocess.run([sys.executable, program, "--output", folder / "result.json", *words], check=False)
        if done.returncode != 0:
            sys.exit(done.returncode)
        return keep(name, folder)
    ringlab = Path(sys.executable).with_name("ringlab")
    if not ringlab.exists():
        sys.exit(f"tables: {ringlab} is missing; measure with: make figures TABLE={name}")
    if build := TABLES[name].build:
        subprocess.run([ringlab, "targets", "--build", "--targets", build], check=True, stdout=subprocess.DEVNULL)
    command: list[str | Path] = [ringlab, "run", "--preset", TABLES[name].preset, "--output", folder, *words]
    done = subprocess.run(command, check=False)
    # 1 and 3: a goal is missed or can't be decided, or an arm failed; all of that is in the result.
    if done.returncode not in (0, 1, 3):
        sys.exit(done.returncode)
    return keep(name, folder)


def figures(table: Table, result: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Return what the table shows of a result, by cell and arm."""
    found = {}
    for cell in result["cells"]:
        if cell["name"] not in table.rows:
            continue
        primary = next(metric for metric in cell["metrics"] if metric["primary"])
        analysis = cell["analysis"]
        if table.relative:
            arms = {
                each["arm"]: 1 / each["ratio"]
                for group in analysis["groups"]
                for each in group["comparisons"]
                if (each["metric"], each["baseline"]) == (primary["key"], CONTROL) and each["ratio"]
            }
        else:
            arms = {
                each["arm"]: each["median"] * UNITS[primary["unit"]]
                for each in analysis["summaries"]
                if each["metric"] == primary["key"]
            }
        arms = {arm: value for arm, value in arms.items() if arm in table.arms}
        if arms:
            found[cell["name"]] = arms
    return found


def show_ratio(value: float) -> str:
    """Return a ratio as the tables have it."""
    return f"{value:.2f}" if value < 2 else f"{value:.1f}"


def show_time(value: float) -> str:
    """Return a time in us as the tables have it."""
    return f"{value:.2f}" if value < 2 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def conditions(result: dict[str, Any], rounds: Sequence[int]) -> str:
    """Return on which machine, when, and of which code a result is."""
    environment = result["environment"]
    loads = ", ".join(
        f"{each[0]:.1f} at the {when}"
        for when, each in (("start", environment["load_average_begin"]), ("end", environment["load_average_end"]))
        if each
    )
    parts = [
        f"{min(rounds)} to {max(rounds)} rounds" if len(set(rounds)) > 1 else f"{rounds[0]} rounds",
        f"CPython {environment['python']}",
        f"Linux {environment['kernel'].split('-')[0]}",
        f"{environment['cpus_usable']} {'virtual ' if environment['hypervisor'] else ''}cores",
        f"load average {loads}",
        result["run"]["begun"][:10],
    ]
    if environment["revision"]:
        parts.append(f"revision {environment['revision']}")
    return ", ".join(parts)


def row(table: Table, text: str, values: Mapping[str, float], arms: Sequence[str]) -> str:
    """Return one row; what is ahead of every peer is bold."""
    peers = [values[arm] for arm in arms if arm in values and arm not in table.own and arm not in table.floor]
    cells = []
    for arm in arms:
        if arm not in values:
            cells.append("")
            continue
        shown = (show_ratio if table.relative else show_time)(values[arm])
        ahead = (
            values[arm] > max(peers, default=0.0) if table.relative else values[arm] < min(peers, default=float("inf"))
        )
        cells.append(f"**{shown}**" if arm in table.own and peers and ahead else shown)
    return f"| {text} | {' | '.join(cells)} |"


def wrapped(text: str) -> list[str]:
    """Return the lines of a paragraph."""
    return textwrap.wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def header(*columns: str) -> list[str]:
    """Return the first lines of a table whose rows have a title and a figure for each of these columns."""
    return [f"| | {' | '.join(columns)} |", f"| --- |{' ---: |' * len(columns)}"]


def block(name: str, result: dict[str, Any]) -> str:
    """Return what stands between the marks of a table."""
    begin, end = marks(name)
    if name == THREADS:
        return "\n".join([begin, *threads(result), end])
    table = TABLES[name]
    found = figures(table, result)
    rounds = [len(cell["orders"]) for cell in result["cells"] if cell["name"] in found]
    measured = {arm for values in found.values() for arm in values}
    arms = [arm for arm in table.arms if arm in measured]
    lines = [
        begin,
        *wrapped(f"{table.text} (`make figures TABLE={name}`, {conditions(result, rounds)})."),
        "",
        *header(*(table.arms[arm] for arm in arms)),
    ]
    lines += [row(table, text, found[cell], arms) for cell, text in table.rows.items() if cell in found]
    return "\n".join([*lines, end])


def threads(result: dict[str, Any]) -> list[str]:
    """Return the lines of both tables of loops in threads."""
    found: dict[tuple[str, str, int, int], list[dict[str, float]]] = {}
    for sample in result["samples"]:
        found.setdefault((sample["cell"], sample["loop"], sample["round"], sample["threads"]), []).append(sample)

    def figures_of(cell: str, loop: str, count: int, key: str) -> list[float]:
        return [
            statistics.median(sample[key] for sample in found[cell, loop, number, count])
            for number in range(1, rounds + 1)
        ]

    def ratio(above: list[float], below: list[float]) -> float:
        return statistics.median(one / other for one, other in zip(above, below, strict=True))

    rounds = result["run"]["rounds"]
    own, *others = THREADS_LOOPS
    where = conditions(result, [rounds])
    text = (
        "CPU time per operation with one thread. The first column is in us, the others are ratios to it (above 1: more CPU time than"
        f" ringloop on io_uring). The figures are medians of interleaved rounds (`make figures TABLE={THREADS}`, {where})."
    )
    lines = [*wrapped(text), "", *header(f"{THREADS_LOOPS[own]}, us", *(THREADS_LOOPS[loop] for loop in others))]
    for cell, title in THREADS_ROWS.items():
        costs = figures_of(cell, own, 1, "cpu_us")
        ratios = [ratio(figures_of(cell, loop, 1, "cpu_us"), costs) for loop in others]
        cost = statistics.median(costs)
        lines.append(f"| {title} | {show_time(cost)} | {' | '.join(f'{each:.2f}' for each in ratios)} |")
    text = (
        "Two threads with a loop each: how many times the rate of one thread (2.00 is perfect scaling), and in parentheses how many"
        " times its CPU time per operation."
    )
    lines += ["", *wrapped(text), "", *header(*THREADS_LOOPS.values())]
    for cell, title in THREADS_ROWS.items():
        scaled = [
            [ratio(figures_of(cell, loop, 2, key), figures_of(cell, loop, 1, key)) for key in ("rate", "cpu_us")]
            for loop in THREADS_LOOPS
        ]
        lines.append(f"| {title} | {' | '.join(f'{rate:.2f} ({cost:.2f})' for rate, cost in scaled)} |")
    return lines


def summary(result: dict[str, Any]) -> str:
    """Return what stands between the marks of a front page."""
    table = TABLES[SUMMARY_OF]
    times = figures(table, result)
    shown = {
        arm: [show_ratio(times[name][arm]) for name in SUMMARISED if arm in times.get(name, {})]
        for arm in ("ringloop", "uvloop")
    }
    if any(len(found) < len(SUMMARISED) for found in shown.values()):
        sys.exit(f"tables: the result lacks a cell of the summary: {', '.join(SUMMARISED)}")
    streams, protocol, uvicorn = shown["ringloop"]
    text = (
        f"An echo server for messages of 1 KB is {streams} times as fast on ringloop as on stock asyncio through streams, and"
        f" {protocol} times through `Protocol`; uvicorn is {uvicorn} times as fast (uvloop: {', '.join(shown['uvloop'])}). These are"
        f" ratios of the server's CPU time per message, with 50 connections on io_uring, measured on {result['run']['begun'][:10]}"
        f" (CPython {result['environment']['python']})."
    )
    begin, end = marks("summary")
    return "\n".join([begin, *wrapped(text), end])


def replaced(page: str, name: str, made: str) -> str:
    """Return the page with what was made between its marks."""
    begin, end = marks(name)
    before, first, rest = page.partition(begin)
    _, last, after = rest.partition(end)
    if not (first and last):
        sys.exit(f"tables: the page of {name} lacks the lines {begin} and {end}")
    return before + made + after


def pages() -> dict[Path, str]:
    """Return the pages as they should be."""
    made: dict[Path, str] = {}

    def put(page: Path, name: str, text: str) -> None:
        made[page] = replaced(made.get(page) or page.read_text(), name, text)

    for name in NAMES:
        if source(name).exists():
            put(page_of(name), name, block(name, read(name)))
    if source(SUMMARY_OF).exists():
        made_of = summary(read(SUMMARY_OF))
        for page in FRONT_PAGES:
            put(page, "summary", made_of)
    return made


def main() -> int:
    """Do what the command line says; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", nargs="?", choices=NAMES, metavar="NAME", help=f"one of {', '.join(NAMES)}")
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--measure", nargs=argparse.REMAINDER, metavar="WORD", help="measure; WORDs are for `ringlab run`"
    )
    what.add_argument("--result", type=Path, metavar="FILE", help="take this result.json, or the one in this folder")
    what.add_argument("--fits", action="store_true", help="say whether this Python is the one that the table is about")
    what.add_argument("--check", action="store_true", help="change nothing; exit with 1 if a page is out of date")
    parser.add_argument("--anyway", action="store_true", help="measure although the machine is busy")
    options = parser.parse_args()
    if (options.measure is not None or options.result) and not options.table:
        parser.error(f"name a table first; there are {', '.join(NAMES)}")
    if options.fits:
        if options.table and options.table != THREADS:
            check_python(options.table, platform.python_version())
        return 0
    if options.measure is not None:
        measure(options.table, options.measure, anyway=options.anyway)
    elif options.result:
        keep(options.table, options.result)
    wanted = pages()
    different = [page for page, text in wanted.items() if page.read_text() != text]
    if options.check:
        if different:
            names = ", ".join(str(page.relative_to(ROOT)) for page in different)
            print(f"tables: out of date: {names}; run tools/tables.py", file=sys.stderr)
        return int(bool(different))
    for page in different:
        page.write_text(wanted[page])
    return 0


if __name__ == "__main__":
    sys.exit(main())
