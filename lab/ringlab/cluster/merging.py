"""The results of several load generators as one, as if a single one had made all connections.

Counts are added, histograms too, bucket by bucket: percentiles are those of all operations, never averages of percentiles. Whatever voids
the load of one generator voids that of all.
"""

import base64
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hdrh.histogram import HdrHistogram

SHARED = ("--rate",)
"""Options whose number is divided among generators, in proportion to their connections."""
QUANTILES = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99, "p999": 0.999}
LONGEST_NS = 3_600_000_000_000
"""As in the load generator's latencies.rs."""

Event = Mapping[str, Any]


def share(words: Sequence[str], generators: int) -> list[list[str]]:
    """Divide a load among at most `generators`: connections as equal as they can be, and a rate in proportion to them.

    There are never more generators than connections.
    """
    values = dict(itertools.pairwise(words))
    connections = int(values.get("--connections", 1))
    count = max(1, min(generators, connections))
    parts = [connections // count + (index < connections % count) for index in range(count)]
    if count == 1:
        return [list(words)]

    def divided(part: int) -> list[str]:
        found = [words[0]]
        for option, word in itertools.pairwise(words):
            if option == "--connections":
                word = str(part)
            elif option in SHARED:
                word = f"{float(word) * part / connections:.3f}"
            found.append(word)
        return found

    return [divided(part) for part in parts]


def merge(events: Mapping[str, Event], server: Event | None) -> dict[str, Any]:
    """Return one result from those of several generators, by their names; `server` is what the server's processes have cost."""
    found = list(events.values())
    first = next(iter(found))
    merged = dict(first)
    for key in ("operations", "bytes_in", "bytes_out"):
        merged[key] = sum(each[key] for each in found)
    merged["window_s"] = sum(each["window_s"] for each in found) / len(found)
    merged["operations_per_s"] = total(found, lambda each: each["operations_per_s"])
    kinds = list(dict.fromkeys(kind for each in found for kind in each["latency"]))
    merged["latency"] = {kind: merge_latencies([each["latency"].get(kind) for each in found]) for kind in kinds}
    merged["open_loop"] = merge_open_loop([each.get("open_loop") for each in found])
    merged["void"] = first_of(events, "void")
    merged["ended_early"] = first_of(events, "ended_early")
    merged["errors"] = merge_errors(events)
    merged["connections"] = merge_connections([each["connections"] for each in found])
    merged["streams"] = merge_streams([each.get("streams") for each in found])
    merged["fairness"] = merge_fairness(found)
    merged["littles_law"] = merge_law([each.get("littles_law") for each in found])
    merged["client"] = merge_clients([each["client"] for each in found])
    merged["server"] = server
    return merged


def total(found: Sequence[Any], value: Callable[[Any], float | None]) -> float | None:
    """Return a sum, or None where one of its terms is unknown."""
    values = [value(each) for each in found]
    return sum(each for each in values if each is not None) if None not in values else None


def largest(found: Sequence[Event], key: str) -> float | None:
    """Return the largest value of a key that is known."""
    return max((each[key] for each in found if each.get(key) is not None), default=None)


def first_of(events: Mapping[str, Event], key: str) -> str | None:
    """Return the first text of a key, with the name of its generator."""
    return next((f"{name}: {each[key]}" for name, each in events.items() if each.get(key)), None)


def merge_errors(events: Mapping[str, Event]) -> dict[str, Any]:
    """Add the errors of each kind; the first one says where it was."""
    merged: dict[str, Any] = {}
    for name, event in events.items():
        for kind, error in event["errors"].items():
            if kind not in merged:
                merged[kind] = {"count": 0, "first": f"{name}: {error.get('first', '')}"}
            merged[kind]["count"] += error["count"]
    return merged


def merge_latencies(found: Sequence[Event | None]) -> dict[str, Any] | None:
    """Add histograms; a generator that has none leaves none."""
    present = [each for each in found if each is not None]
    if len(present) < len(found):
        return None
    count = sum(each["count"] for each in present)
    merged: dict[str, Any] = {"count": count, "hdr": None}
    some = [each for each in present if each["count"]]
    if not some or any(not each.get("hdr") for each in some):
        # Nobody has measured anything, or nobody was asked for histograms: then percentiles are unknown.
        names = ("mean", "min", *QUANTILES, "max")
        return merged | {f"{name}_ns": None for name in names}
    histogram = HdrHistogram(1, LONGEST_NS, 3)
    for each in some:
        histogram.add(HdrHistogram.decode(each["hdr"]))
    figures = {f"{name}_ns": quantile(histogram, share) for name, share in QUANTILES.items()}
    return merged | {
        # The generator's sums are exact, those of the buckets are not.
        "mean_ns": sum(each["mean_ns"] * each["count"] for each in some) / count,
        "min_ns": min(each["min_ns"] for each in some),
        **figures,
        "max_ns": max(each["max_ns"] for each in some),
        "hdr": encode(histogram),
    }


def encode(histogram: HdrHistogram) -> str:
    """Return a histogram as the generator prints it."""
    encoded = histogram.encode()
    text = encoded.decode() if isinstance(encoded, bytes) else str(encoded)
    base64.b64decode(text, validate=True)
    return text


def quantile(histogram: HdrHistogram, fraction: float) -> int:
    """Return a quantile as the generator does: the longest latency in the bucket of the first operation that reaches it."""
    wanted, seen = max(1, math.ceil(fraction * histogram.total_count)), 0
    for index in range(histogram.counts_len):
        seen += histogram.get_count_at_index(index)
        if seen >= wanted:
            value = histogram.get_value_from_index(index)
            return int(histogram.get_highest_equivalent_value(value))
    return int(histogram.get_max_value())


def merge_open_loop(found: Sequence[Event | None]) -> dict[str, Any] | None:
    """Add what was due."""
    present = [each for each in found if each is not None]
    if not present:
        return None
    merged = {key: sum(each[key] for each in present) for key in ("rate_asked_per_s", "due", "unfinished")}
    return merged | {"send_lateness": merge_latencies([each.get("send_lateness") for each in present])}


def merge_connections(found: Sequence[Event]) -> dict[str, Any]:
    """Add connections."""
    merged: dict[str, Any] = {
        key: sum(each.get(key, 0) for each in found) for key in ("asked", "opened", "reopened", "alive_at_end")
    }
    merged["opening_s"] = largest(found, "opening_s")
    merged["connect"] = merge_latencies([each.get("connect") for each in found])
    return merged


def merge_streams(found: Sequence[Event | None]) -> dict[str, Any] | None:
    """Add what was held back; a limit is one of each connection."""
    present = [each for each in found if each is not None]
    if not present:
        return None
    return {
        "held_back": sum(each["held_back"] for each in present),
        "outstanding_bytes_max": largest(present, "outstanding_bytes_max"),
        "outstanding_bytes_most": largest(present, "outstanding_bytes_most"),
        **{key: sum(each.get(key) or 0 for each in present) for key in ("reads", "writes", "counted_bytes")},
    }


def merge_fairness(events: Sequence[Event]) -> dict[str, Any] | None:
    """Return how evenly all connections were served: Jain's index of all follows from those of the parts, percentiles don't."""
    found = [(each.get("fairness"), each["operations"], each["connections"]["opened"]) for each in events]
    if any(fairness is None for fairness, _, _ in found):
        return None
    merged: dict[str, Any] = {
        "min": min(fairness["min"] for fairness, _, _ in found if fairness),
        "max": max(fairness["max"] for fairness, _, _ in found if fairness),
        "p5": None,
        "median": None,
        "p95": None,
        "jain": None,
    }
    squares = [
        operations**2 / (count * fairness["jain"])
        for fairness, operations, count in found
        if fairness and fairness["jain"] and count
    ]
    if len(squares) == len(found):
        operations = sum(each[1] for each in found)
        merged["jain"] = operations**2 / (sum(each[2] for each in found) * sum(squares))
    return merged


def merge_law(found: Sequence[Event | None]) -> dict[str, Any] | None:
    """Add what was in flight."""
    present = [each for each in found if each is not None]
    if len(present) < len(found):
        return None
    average = total(present, lambda each: each["in_flight_average"])
    expected = total(present, lambda each: each["expected"])
    return {
        "in_flight_average": average,
        "expected": expected,
        "ratio": average / expected if average is not None and expected else None,
    }


def merge_clients(found: Sequence[Event]) -> dict[str, Any]:
    """Return what the generators have used: the busiest says whether the rate was theirs."""
    merged: dict[str, Any] = {
        key: sum(each.get(key) or 0 for each in found)
        for key in ("cpu_ns", "busy_ns", "threads", "voluntary_switches", "involuntary_switches")
    }
    for key in ("cpu_fraction", "busy_fraction", "max_loop_ns"):
        if any(key in each for each in found):
            merged[key] = largest(found, key)
    return merged
