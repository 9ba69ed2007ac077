"""What a run has found, as it grows: in memory, and as JSON."""

import datetime
import json
import os
import platform
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench import ratios
from bench.arms import CONTROL, FLOOR, Presence
from bench.cells import Cell
from bench.measure import Placement, Scale

SCHEMA = 1
"""Of the JSON file: raised when the meaning of a field changes."""


@dataclass
class CellResult:
    """The samples of one cell, by arm and round."""

    cell: Cell
    samples: dict[str, list[dict[str, float] | None]]
    failures: dict[str, list[str]] = field(default_factory=dict)
    """What went wrong, by arm."""
    orders: list[list[str]] = field(default_factory=list)
    """The order of the arms within each round."""
    control: str = CONTROL
    floors: tuple[str, ...] = (FLOOR,)

    @property
    def floor(self) -> str | None:
        """The best of the floors in this cell, by the median of the first figure."""
        key = self.cell.metrics[0].key
        medians = {name: median for name in self.floors if (median := self.median(name, key)) is not None}
        # No floor takes part where more is better in the first figure.
        return min(medians, key=lambda name: medians[name]) if medians else None

    def series(self, arm: str, metric: str) -> list[float | None]:
        """One figure of one arm, by round."""
        return [sample.get(metric) if sample else None for sample in self.samples.get(arm, [])]

    def median(self, arm: str, metric: str) -> float | None:
        """The median over the rounds."""
        return ratios.median(self.series(arm, metric))

    def ratio(self, numerator: str, denominator: str, metric: str) -> ratios.Ratio | None:
        """The paired ratio of two arms in one figure."""
        return ratios.paired(self.series(numerator, metric), self.series(denominator, metric))

    def advantage(self, arm: str, over: str, metric_key: str) -> ratios.Ratio | None:
        """How many times better `arm` is than `over`, in a figure of this cell."""
        metric = next(metric for metric in self.cell.metrics if metric.key == metric_key)
        return self.ratio(arm, over, metric_key) if metric.higher_is_better else self.ratio(over, arm, metric_key)

    def record(self) -> dict[str, Any]:
        """All of it, as JSON has it."""
        summary: dict[str, Any] = {}
        for arm in self.samples:
            summary[arm] = {}
            for metric in self.cell.metrics:
                entry: dict[str, Any] = {"median": self.median(arm, metric.key), "unit": metric.unit}
                if metric.has_ratio:
                    for name, ratio in (
                        (f"times_better_than_{self.control}", self.advantage(arm, self.control, metric.key)),
                        ("times_floor", self.ratio(arm, self.floor, metric.key) if self.floor else None),
                    ):
                        entry[name] = asdict(ratio) if ratio else None
                summary[arm][metric.key] = entry
        return {
            "title": self.cell.title,
            "floor": self.floor,
            "orders": self.orders,
            "failures": self.failures,
            "samples": self.samples,
            "summary": summary,
        }


def read_text(path: str) -> str:
    """The contents of a small file, or nothing where there is none."""
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def cpu_model() -> str:
    """The name of the CPU, as the kernel has it."""
    for line in read_text("/proc/cpuinfo").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "CPU part"):
            return value.strip()
    return platform.machine()


def stolen_ticks() -> int:
    """How long the hypervisor has kept CPUs from this machine that wanted to run (proc_stat(5)), in clock ticks."""
    fields = read_text("/proc/stat").splitlines()[0].split()
    return int(fields[8]) if len(fields) > 8 else 0


def environment(placement: Placement) -> dict[str, Any]:
    """What may explain the figures, or a difference from another run's."""
    vulnerabilities = Path("/sys/devices/system/cpu/vulnerabilities")
    usable = len(os.sched_getaffinity(0))
    return {
        "begun": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpu_model": cpu_model(),
        "cpus": os.cpu_count(),
        "cpus_usable": usable,
        "cpu_governor": read_text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "mitigations": {path.name: read_text(str(path)) for path in sorted(vulnerabilities.glob("*"))},
        "libc": " ".join(platform.libc_ver()),
        "python": platform.python_version(),
        "python_build": sys.version,
        "io_uring_disabled": read_text("/proc/sys/kernel/io_uring_disabled"),
        "ringloop_variables": {name: value for name, value in os.environ.items() if name.startswith("RINGLOOP_")},
        "placement": str(placement),
        "load_average_begin": os.getloadavg(),
    }


@dataclass
class Results:
    """Everything about one run."""

    presences: list[Presence]
    scale: Scale
    seed: int
    environment: dict[str, Any]
    left_out: dict[str, str] = field(default_factory=dict)
    """The cells that can't be measured on this machine, with the reason."""
    cells: dict[str, CellResult] = field(default_factory=dict)
    interrupted: bool = False
    verdicts: list[dict[str, Any]] = field(default_factory=list)
    stolen_ticks_begin: int = field(default_factory=stolen_ticks)

    def write(self, path: Path) -> None:
        """Replace the file at `path`; one that is cut short is never there."""
        self.environment["load_average_end"] = os.getloadavg()
        self.environment["stolen_s"] = (stolen_ticks() - self.stolen_ticks_begin) / os.sysconf("SC_CLK_TCK")
        content = {
            "schema": SCHEMA,
            "environment": self.environment,
            "arms": {
                presence.arm.name: {"version": presence.version, "problem": presence.problem, **presence.facts}
                for presence in self.presences
            },
            "settings": {**asdict(self.scale), "seed": self.seed},
            "interrupted": self.interrupted,
            "left_out": self.left_out,
            "cells": {name: result.record() for name, result in self.cells.items()},
            "verdicts": self.verdicts,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f"{path.name}.{os.getpid()}")
        unfinished.write_text(json.dumps(content, indent=1) + "\n")
        unfinished.replace(path)
