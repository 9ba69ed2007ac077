#!/usr/bin/env python3
"""Write the table of event loops in docs/performance.md, and its summary on the front pages, from docs/results/loops.json.

    ringlab run --preset loops --output FOLDER && tools/loops_table.py --result FOLDER/result.json

The first command measures; the second one takes the ratios, machine, date and command out of the result, writes them to
docs/results/loops.json, and then the pages. Without --result, only the pages are written. --check changes nothing, and exits with 1
if a page isn't what would be written.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PERFORMANCE = ROOT / "docs" / "performance.md"
FRONT_PAGES = (ROOT / "README.md", ROOT / "docs" / "site" / "index.md")
SOURCE = ROOT / "docs" / "results" / "loops.json"
BEGIN, END = "<!-- begin: tools/loops_table.py -->", "<!-- end: tools/loops_table.py -->"
WIDTH = 100
CONTROL = "asyncio"
PEERS = {"uvloop": "uvloop", "rloop": "rloop"}
OWN = {"ringloop": "ringloop, io_uring", "ringloop-epoll": "ringloop, epoll"}
FLOOR = {"floor": "raw C on epoll"}
ARMS = PEERS | OWN | FLOOR
ROWS = {
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
"""The rows of the table, from top to bottom."""
SUMMARISED = ("loops/echo/streams/1KB/50", "loops/echo/protocol/1KB/50", "loops/http/uvicorn/50")
"""The cells of the summary."""


def extract(result: dict[str, Any]) -> dict[str, Any]:
    """Return what the table needs of a result of ringlab."""
    environment, run = result["environment"], result["run"]
    times = {}
    rounds = []
    for cell in result["cells"]:
        for group in cell["analysis"]["groups"]:
            primary = next(metric["key"] for metric in cell["metrics"] if metric["primary"])
            found = {
                each["arm"]: round(1 / each["ratio"], 4)
                for each in group["comparisons"]
                if (each["metric"], each["baseline"]) == (primary, CONTROL) and each["arm"] in ARMS and each["ratio"]
            }
            if cell["name"] in ROWS and found:
                times[cell["name"]] = found
                rounds.append(len(cell["orders"]))
    if not times:
        raise SystemExit(
            f"loops_table: this result compares no loop with {CONTROL}; measure with: ringlab run --preset loops"
        )
    loads = ", ".join(
        f"{each[0]:.1f} at the {when}"
        for when, each in (("start", environment["load_average_begin"]), ("end", environment["load_average_end"]))
        if each
    )
    machine = (
        f"{environment['cpus_usable']} {'virtual ' if environment['hypervisor'] else ''}cores, load average {loads}"
    )
    return {
        "command": "make bench-loops",
        "date": run["begun"][:10],
        "rounds": f"{min(rounds)} to {max(rounds)}" if len(set(rounds)) > 1 else str(rounds[0]),
        "python": f"CPython {environment['python']}",
        "kernel": f"Linux {environment['kernel'].split('-')[0]}",
        "machine": machine,
        "revision": environment["revision"],
        "remark": "",
        "dates": {},
        "times_better_than_asyncio": times,
    }


def show(value: float) -> str:
    """Return a ratio as the table has it."""
    return f"{value:.2f}" if value < 2 else f"{value:.1f}"


def row(name: str, text: str, source: dict[str, Any]) -> str:
    """Return one row; what is ahead of every peer is bold."""
    times, date = source["times_better_than_asyncio"][name], source["dates"].get(name)
    best = max((times[arm] for arm in PEERS if arm in times), default=0.0)
    cells = [
        f"**{show(times[arm])}**"
        if arm in OWN and arm in times and times[arm] > best
        else show(times[arm])
        if arm in times
        else ""
        for arm in ARMS
    ]
    return f"| {text}{f' ({date})' if date else ''} | {' | '.join(cells)} |"


def wrapped(text: str) -> list[str]:
    """Return the lines of a paragraph."""
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + 1 + len(word) > WIDTH:
            lines.append("")
        lines[-1] += f" {word}" if lines[-1] else word
    return lines


def block(source: dict[str, Any]) -> str:
    """Return what stands between the two marks."""
    where = ", ".join(filter(None, (source["python"], source["kernel"], source["machine"], source["date"])))
    revision = f", at revision {source['revision'][:12]}" if source["revision"] else ""
    text = (
        f"Each figure says how many times faster than stock asyncio a loop is, in time per operation or in server CPU time per message."
        f" Higher is better. Bold: faster than uvloop and rloop, even if only by a few percent, which may be noise. The figures are"
        f" paired ratios from {source['rounds']} rounds of `{source['command']}`, interleaved, with every loop in fresh processes"
        f" ({where}{revision}). {source['remark']}"
    )
    headings = ["", *ARMS.values()]
    lines = [
        BEGIN,
        *wrapped(text),
        "",
        f"| {' | '.join(headings)} |".replace("|  |", "| |"),
        f"|{' --- |' * len(headings)}",
    ]
    lines += [row(name, text, source) for name, text in ROWS.items() if name in source["times_better_than_asyncio"]]
    return "\n".join([*lines, END])


def summary(source: dict[str, Any]) -> str:
    """Return what stands between the two marks of a front page."""
    times = source["times_better_than_asyncio"]
    figures = {
        arm: [show(times[name][arm]) for name in SUMMARISED if arm in times.get(name, {})]
        for arm in ("ringloop", "uvloop")
    }
    if any(len(found) < len(SUMMARISED) for found in figures.values()):
        raise SystemExit(f"loops_table: the result lacks a cell of the summary: {', '.join(SUMMARISED)}")
    streams, protocol, uvicorn = figures["ringloop"]
    text = (
        f"An echo server for messages of 1 KB is {streams} times as fast on ringloop as on stock asyncio through streams, and {protocol}"
        f" times through `Protocol`; uvicorn is {uvicorn} times as fast (uvloop: {', '.join(figures['uvloop'])}). These are ratios of the"
        f" server's CPU time per message, with 50 connections on io_uring, from the run of `{source['command']}` on {source['date']}"
        f" ({source['python']})."
    )
    return "\n".join([BEGIN, *wrapped(text), END])


def replaced(page: str, made: str) -> str:
    """Return the page with what was made between its marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"loops_table: a page lacks the lines {BEGIN} and {END}")
    return before + made + after


def main() -> int:
    """Do what the command line says; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--result", type=Path, metavar="FILE", help="a result.json of `ringlab run --preset loops`")
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if a page differs")
    options = parser.parse_args()
    if options.result and options.check:
        parser.error("--check is about the files as they are: leave out --result")
    if options.result:
        SOURCE.write_text(json.dumps(extract(json.loads(options.result.read_text())), indent=1) + "\n")
    source = json.loads(SOURCE.read_text())
    made = {PERFORMANCE: block(source), **dict.fromkeys(FRONT_PAGES, summary(source))}
    wanted = {page: replaced(page.read_text(), text) for page, text in made.items()}
    if options.check:
        different = [str(page.relative_to(ROOT)) for page, text in wanted.items() if page.read_text() != text]
        if different:
            text = (
                f"loops_table: not what docs/results/loops.json says; run tools/loops_table.py: {', '.join(different)}"
            )
            print(text, file=sys.stderr)
        return int(bool(different))
    for page, text in wanted.items():
        page.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
