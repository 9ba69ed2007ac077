"""`--metrics`: counters in Prometheus' text format, added up over all processes that serve."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections import Counter
from typing import TYPE_CHECKING, Any

from ._importing import import_optional

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator

    from .. import EventLoop
    from .._core import HttpMetrics, HttpService
    from ._applications import Scope, Send

# Fields of `loop.metrics()` that only grow; all others but the first are what the loop holds now.
_LOOP_COUNTERS = {
    "turns": "Turns of the event loop.",
    "callbacks": "Callbacks that the event loop has run.",
    "busy_seconds": "Time that the event loop has spent in callbacks and in itself.",
    "idle_seconds": "Time that the event loop has waited for something to happen.",
    "gil_seconds": "Time that the event loop has waited for other threads to release the GIL.",
    "polling_seconds": "Time that the event loop has polled instead of sleeping.",
    "wasted_seconds": "Time that the event loop has polled in vain.",
    "system_calls": "System calls of the event loop.",
    "events": "Completions and readiness events that the kernel has delivered.",
    "wakes": "Waits of the event loop that another thread has ended.",
    "waits": "Turns of the event loop that waited.",
    "polled_waits": "Waits of the event loop that began with polling.",
    "polled_hits": "Waits of the event loop in which something arrived during polling.",
    "stalls": "Callbacks that have held the event loop longer than --watchdog allows.",
}
_LOOP_GAUGES = {
    "ready": "Callbacks that are queued.",
    "timers": "Timers that are scheduled.",
    "connections": "Native transports that have a socket.",
    "slowest_seconds": "How long the slowest callback took.",
}


@dataclasses.dataclass
class Snapshot:
    """The counts of a process so far, or of one of its threads."""

    process: int
    http: HttpMetrics
    loop: dict[str, Any]
    thread: int | None = None


def take(service: HttpService, loop: EventLoop, *, thread: int | None = None) -> Snapshot:
    """Return what this process has counted, or one of its threads. May be called from any thread."""
    return Snapshot(os.getpid(), service.metrics(), loop.metrics()._asdict(), thread)


class Board:
    """The newest snapshot of each process, and the sum of those that are gone, so that totals never shrink."""

    def __init__(self) -> None:
        self._snapshots: dict[int, Snapshot] = {}
        self._gone: HttpMetrics | None = None

    def note(self, snapshot: Snapshot) -> None:
        """Take the news of a process."""
        self._snapshots[snapshot.process] = snapshot

    def end(self, process: int) -> None:
        """Add the counts of a process that has ended."""
        if (snapshot := self._snapshots.pop(process, None)) is None:
            return
        gone = snapshot.http
        gone["connections_open"] = gone["requests_active"] = 0
        self._gone = gone if self._gone is None else _sum(self._gone, gone)

    def read(self) -> tuple[HttpMetrics | None, list[Snapshot]]:
        """Return the sum of the processes that are gone, and a snapshot of each that runs."""
        return self._gone, list(self._snapshots.values())


def _sum(one: HttpMetrics, other: HttpMetrics) -> HttpMetrics:
    return {
        "requests": dict(Counter(one["requests"]) + Counter(other["requests"])),
        "durations": [
            (bound, count + others)
            for (bound, count), (_, others) in zip(one["durations"], other["durations"], strict=True)
        ],
        "duration_sum": one["duration_sum"] + other["duration_sum"],
        "bytes_received": one["bytes_received"] + other["bytes_received"],
        "bytes_sent": one["bytes_sent"] + other["bytes_sent"],
        "connections_open": one["connections_open"] + other["connections_open"],
        "connections_total": one["connections_total"] + other["connections_total"],
        "requests_active": one["requests_active"] + other["requests_active"],
    }


def check(path: str) -> None:
    """Raise ValueError if nothing can be served at this path, and StartupError if prometheus_client is missing."""
    if not path.startswith("/"):
        raise ValueError(f"the path of the metrics must begin with a slash: {path!r}")
    _client("core")


def _client(module: str) -> Any:
    return import_optional(f"prometheus_client.{module}", "prometheus-client", "--metrics")


class Page:
    """Answers with the metrics."""

    def __init__(self, collect: Callable[[], Awaitable[tuple[HttpMetrics | None, list[Snapshot]]]]) -> None:
        self._collect = collect
        self._choose_encoder = _client("exposition").choose_encoder
        self._make_registry = _client("core").CollectorRegistry

    async def __call__(self, scope: Scope, send: Send) -> None:
        accepted = ",".join(value.decode("latin-1") for name, value in scope["headers"] if name == b"accept")
        encode, content_type = self._choose_encoder(accepted)
        registry = self._make_registry()
        registry.register(_Collector(*await self._collect()))
        body = encode(registry)
        headers = [(b"content-type", content_type.encode()), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


class _Collector:
    """The collector that `prometheus_client` asks for metrics."""

    def __init__(self, gone: HttpMetrics | None, snapshots: list[Snapshot]) -> None:
        self._core = _client("core")
        self._process_collector = _client("process_collector").ProcessCollector
        self._snapshots = sorted(snapshots, key=lambda snapshot: (snapshot.process, snapshot.thread or 0))
        parts = [snapshot.http for snapshot in snapshots] + ([] if gone is None else [gone])
        self._total = functools.reduce(_sum, parts)

    def describe(self) -> Iterable[Any]:
        return ()

    def collect(self) -> Iterator[Any]:
        yield from self._http()
        yield from self._loops()
        yield from self._processes()

    def _process_ids(self) -> list[int]:
        return list(dict.fromkeys(snapshot.process for snapshot in self._snapshots))

    def _has_threads(self) -> bool:
        return any(snapshot.thread is not None for snapshot in self._snapshots)

    def _http(self) -> Iterator[Any]:
        core, total = self._core, self._total
        text = "Responses by method and status. No method: the request had no valid head."
        requests = core.CounterMetricFamily("ringloop_http_requests", text, labels=("method", "status"))
        for (method, status), count in total["requests"].items():
            requests.add_metric((method, str(status)), count)
        yield requests
        text = "Time from the end of a request's head to the end of its response."
        buckets = [("+Inf" if bound == float("inf") else str(bound), count) for bound, count in total["durations"]]
        yield core.HistogramMetricFamily(
            "ringloop_http_request_duration_seconds", text, buckets=buckets, sum_value=total["duration_sum"]
        )
        counter, gauge = core.CounterMetricFamily, core.GaugeMetricFamily
        yield counter("ringloop_http_received_bytes", "Bytes received from clients.", total["bytes_received"])
        yield counter("ringloop_http_sent_bytes", "Bytes sent to clients.", total["bytes_sent"])
        yield counter("ringloop_http_connections_opened", "Connections accepted.", total["connections_total"])
        yield gauge("ringloop_http_connections", "Connections that are open.", total["connections_open"])
        yield gauge("ringloop_http_requests_active", "Requests in progress.", total["requests_active"])
        yield gauge("ringloop_workers", "Processes that serve.", len(self._process_ids()))
        if self._has_threads():
            yield gauge("ringloop_threads", "Threads that serve.", len(self._snapshots))

    def _loops(self) -> Iterator[Any]:
        labels = ("worker", "thread") if self._has_threads() else ("worker",)

        def values(snapshot: Snapshot) -> tuple[str, ...]:
            return (str(snapshot.process), str(snapshot.thread))[: len(labels)]

        info = self._core.InfoMetricFamily("ringloop_loop", "The event loop of each process or thread.", labels=labels)
        for snapshot in self._snapshots:
            info.add_metric(values(snapshot), {"backend": snapshot.loop["backend"]})
        yield info
        for names, family in (
            (_LOOP_COUNTERS, self._core.CounterMetricFamily),
            (_LOOP_GAUGES, self._core.GaugeMetricFamily),
        ):
            for name, text in names.items():
                made = family(f"ringloop_loop_{name}", text, labels=labels)
                for snapshot in self._snapshots:
                    made.add_metric(values(snapshot), snapshot.loop[name])
                yield made

    def _processes(self) -> Iterator[Any]:
        """Yield CPU time, memory and descriptors, which /proc has for every process."""
        families: dict[str, Any] = {}
        for process in self._process_ids():
            for family in self._process_collector(pid=functools.partial(int, process), registry=None).collect():
                merged = families.setdefault(family.name, family)
                samples = [sample._replace(labels={"worker": str(process)}) for sample in family.samples]
                merged.samples = samples if merged is family else merged.samples + samples
        yield from families.values()
