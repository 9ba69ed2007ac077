"""A load generator that speaks the real one's protocol, and measures next to nothing.

It exchanges a few messages, so that a server that doesn't work shows, and reports figures that follow from the server's
command line: its `--cost`. FAKE_LOAD_* variables make it misbehave. The tests start it thousands of times, so it imports little.
"""

import json
import os
import socket
import sys
import time

REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Options:
    """The words of the command line that matter here, with the defaults of those that are left out."""

    connections, size, steps, warm_up, window, ramp, rate = 1, 64, 0, 0.0, 1.0, 0.0, 0.0
    address, mode, hdr, probe, windows_on_stdin = "", "framed", False, False, False

    def __init__(self, words: list[str]) -> None:
        self.workload = words[0]
        self.account: list[int] = []
        rest = iter(words[1:])
        for word in rest:
            name = word.removeprefix("--").replace("-", "_")
            default = getattr(self, name, None)
            if default is False:
                setattr(self, name, True)
            elif name == "account":
                self.account.append(int(next(rest)))
            elif default is not None:
                setattr(self, name, type(default)(next(rest)))


def say(**event: object) -> None:
    print(json.dumps(event), flush=True)


def cost_of(pids: list[int]) -> float:
    for pid in pids:
        with open(f"/proc/{pid}/cmdline") as file:
            words = file.read().split("\0")
        if "--cost" in words:
            return float(words[words.index("--cost") + 1])
    return 1.0


def exchange(connection: socket.socket, workload: str) -> bool:
    if workload == "discard":
        return count(connection)
    message = REQUEST if workload == "http" else b"x" * 64
    try:
        connection.sendall(message)
        received = b""
        while len(received) < (1 if workload == "http" else len(message)):
            data = connection.recv(4096)
            if not data:
                return False
            received += data
    except OSError:
        return False
    return True


def count(connection: socket.socket) -> bool:
    try:
        connection.sendall(b"x" * 64)
        connection.shutdown(socket.SHUT_WR)
        return connection.recv(4096) == b"64\n"
    except OSError:
        return False


def latency(p50_us: float, *, hdr: bool) -> dict[str, object]:
    names = {"p50": 50, "p90": 90, "p95": 95, "p99": 99, "p999": 99.9, "max": 100}
    if not hdr:
        figures = {f"{name}_ns": int(p50_us * 1000 * (0.5 + percent / 100)) for name, percent in names.items()}
        return {"count": 100, "min_ns": int(p50_us * 500), "mean_ns": p50_us * 1000, **figures, "hdr": None}
    # Encoding one takes longer than all the rest, so what was encoded before is beside this file.
    path = f"{__file__}-{p50_us!r}.json"
    if os.path.exists(path):
        with open(path) as file:
            return json.load(file)
    import site

    site.main()
    from hdrh.histogram import HdrHistogram

    histogram = HdrHistogram(1, 3_600_000_000_000, 3)
    for step in range(100):
        histogram.record_value(int(p50_us * 1000 * (0.5 + step / 100)))
    figures = {f"{name}_ns": histogram.get_value_at_percentile(percentile) for name, percentile in names.items()}
    encoded = {"count": 100, "min_ns": histogram.get_min_value(), "mean_ns": histogram.get_mean_value(), **figures,
               "hdr": histogram.encode().decode()}  # fmt: skip
    with open(f"{path}.{os.getpid()}", "w") as file:
        json.dump(encoded, file)
    os.replace(file.name, path)
    return encoded


def server_of(operations: int, cost: float, asked: int) -> dict[str, object]:
    # A small difference from run to run, as it would be: without any, intervals have no width.
    cpu_ns = int(operations * 5000 * cost * (1 + os.getpid() % 7 / 2000))
    rest_cpu_ns = int(cpu_ns * float(os.environ.get("FAKE_LOAD_REST_CPU", "0")))
    return {"rest_cpu_ns": rest_cpu_ns, "cpu_ns": cpu_ns, "user_ns": 1, "system_ns": 3,
            "voluntary_switches": 10, "involuntary_switches": 1, "threads": 1, "rss_rest_bytes": 1000,
            "rss_connected_bytes": 1000 + 100 * asked, "rss_end_bytes": 5000}  # fmt: skip


def main() -> None:
    if sys.argv[1:] == ["--version"]:
        print(os.environ.get("FAKE_LOAD_VERSION", "ringlab-load 9.9 (release)"))
        return
    options = Options(sys.argv[1:])
    trouble = os.environ.get("FAKE_LOAD_TROUBLE", "")
    if trouble == "refuses":
        sys.exit("no descriptors: raise the limit with ulimit -n")
    if trouble == "babbles":
        print("this is no JSON", flush=True)
        return
    if options.probe:
        say(
            event="probe",
            parser="canned" if "9" in options.address[-1] else "real",
            text="",
            answers={"malformed": "400"},
        )
        return
    cost, alive = 1.0, options.connections
    if options.workload != "ceiling":
        host, _, port = options.address.rpartition(":")
        cost = cost_of(options.account)
        connections = [socket.create_connection((host, int(port)), 60) for _ in range(min(4, options.connections))]
        say(event="connected", connections=options.connections, seconds=0.01)
        alive -= sum(1 for connection in connections if not exchange(connection, options.workload))
        hang = os.environ.get("FAKE_LOAD_HANG")
        if hang and cost > 5:
            open(hang, "w").close()
            time.sleep(600)
    # What it can do at most. At a higher rate all that is due waits.
    capacity = 20_000 / cost * (1 + os.getpid() % 7 / 2000)
    rate = min(options.rate, capacity) or 20_000 / cost
    windows = []
    if options.windows_on_stdin:
        say(event="resting")
    for _ in sys.stdin if options.windows_on_stdin else [""]:
        say(event="window_start")
        time.sleep(min(options.window, 0.01))
        cpu_ns = server_of(int(options.window * rate), cost, 1)["cpu_ns"]
        windows.append({"seconds": options.window, "operations": int(options.window * rate), "cpu_ns": cpu_ns})
        say(event="window_end", **windows[-1])
    options.window *= max(1, len(windows))
    operations = int(options.window * rate) * (5 if options.workload == "ceiling" else 1)
    waiting = 100 if options.rate > capacity else 1
    asked = options.connections
    result = {
        "event": "result", "schema_version": 1, "workload": options.workload, "void": None, "window_s": options.window,
        "operations": operations, "operations_per_s": operations / options.window,
        "windows": windows if options.windows_on_stdin else None, "rest_s": 1.0,
        "bytes_in": 0 if options.workload == "discard" else operations * options.size, "bytes_out": operations * options.size,
        "latency": {"service": latency(100 * cost, hdr=options.hdr), "cold": None,
                    "corrected": latency(120 * cost * waiting, hdr=options.hdr) if options.rate else None},
        "errors": {}, "connections": {"asked": asked, "opened": asked, "alive_at_end": alive},
        "streams": {"held_back": 2, "outstanding_bytes_max": 256_000_000, "reads": 1000, "writes": 500}
        if options.mode == "stream" else {"held_back": 0, "outstanding_bytes_max": None, "reads": 0, "writes": 500}
        if options.workload == "discard" else None,
        "fairness": {"min": 1, "p5": 1, "median": 1, "p95": 1, "max": 1, "jain": 1.0},
        "littles_law": None if options.rate else {"in_flight_average": asked, "expected": asked, "ratio": 1.0},
        "client": {"cpu_ns": 1000, "cpu_fraction": 0.4, "max_loop_ns": 1000},
        "server": server_of(operations, cost, asked),
    }  # fmt: skip
    if options.steps:
        sizes = [asked * step // options.steps for step in range(1, options.steps + 1)]
        result["levels"] = [
            {
                "connections": size,
                "rss_bytes": 9_000_000 + int(300 * cost) * size,
                "pss_bytes": 5_000_000 + int(200 * cost) * size,
            }
            for size in sizes
        ]
    if options.rate > float(os.environ.get("FAKE_LOAD_FAILS_FROM", "inf")):
        result["errors"] = {"reset": {"count": operations, "first": "the server reset connection 3"}}
    if options.rate > float(os.environ.get("FAKE_LOAD_LIMIT", "inf")):
        result["client"]["busy_fraction"] = 0.99
    if trouble == "mismatch-from-9000" and options.rate > 9000:
        result |= {"void": "wrong echo", "errors": {"mismatch": {"count": 1, "first": "wrong echo"}}}
    if trouble == "early-mismatch" and options.account:
        # As the real one says it where the window was never opened.
        result |= {
            "void": "wrong body",
            "errors": {"mismatch": {"count": 1, "first": "wrong body"}},
            "ended_early": "void",
            "window_s": 0.0,
            "operations": 0,
            "operations_per_s": None,
            "littles_law": None,
        }
        result["client"] |= {"cpu_fraction": None, "busy_fraction": None}
    if trouble == "first-mismatch" and not options.account:
        result |= {"void": "wrong body", "errors": {"mismatch": {"count": 1, "first": "wrong body"}}}
    if trouble == "mismatch":
        result["void"] = "connection 3, frame 7: byte 12 is 0x00 and should be 0x41"
    elif trouble == "stall":
        result["littles_law"] = {"in_flight_average": 0.1 * asked, "expected": asked, "ratio": 0.1}
    elif trouble == "resets":
        result["errors"] = {"reset": {"count": operations, "first": "connection reset by peer"}}
    elif trouble == "short":
        result["window_s"] = options.window / 2
    elif trouble == "few":
        result["operations"] = 3
    elif trouble.startswith("late") and options.rate:
        # It sends late by a share, in percent, of the latency (p99) that it reports.
        result["open_loop"] = {"send_lateness": latency(120 * cost * float(trouble[4:]) / 100, hdr=options.hdr)}
    elif trouble == "unconnected":
        result["connections"]["opened"] = asked - 1
    if options.workload == "ceiling":
        result["client"]["cpu_ns"] = 5000 * operations
        result["ceiling"] = {"operations_per_s": result["operations_per_s"], "client_busy_ns_per_operation": 4000.0}
    elif trouble == "nothing":
        # As the real one tells of a window in which nothing was answered.
        silent = dict.fromkeys(
            ("mean_ns", "min_ns", "p50_ns", "p90_ns", "p95_ns", "p99_ns", "p999_ns", "max_ns", "hdr")
        ) | {"count": 0}
        result |= {
            "operations": 0,
            "operations_per_s": 0.0,
            "bytes_in": 0,
            "void": "nothing was answered in the window",
        }
        result |= {
            "latency": {"service": silent, "corrected": None, "cold": None},
            "fairness": dict.fromkeys(result["fairness"]),
        }
        result["littles_law"] = {"in_flight_average": None, "expected": None, "ratio": None}
        result["server"] = dict.fromkeys(result["server"]) | {"error": "process 1 has ended"}
    elif trouble == "foreign":
        del result["operations"]
    elif trouble == "early":
        result |= {"ended_early": "all connections are lost", "window_s": options.window / 2}
    say(**result)


main()
