"""Instruments that look into a server's processes while it is loaded: counters of events, and samples of stacks."""

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ringlab import sampling, system_calls
from ringlab.process import SampleFailed

STACKS = "stacks"


@dataclass(frozen=True)
class Instrument:
    """An instrument that looks into a load."""

    tool: str
    """perf or strace, which count events; or STACKS."""
    events: tuple[str, ...] = ()


@dataclass
class Reading:
    """The findings of an instrument."""

    counted: dict[str, float] = field(default_factory=dict)
    """By event, as system_calls.per_operation() takes it."""
    stacks: dict[tuple[str, ...], int] = field(default_factory=dict)
    inner: "system_calls.Counter | sampling.Sampler | None" = None

    def see(self, event: dict[str, Any]) -> None:
        """Take an event of the load generator."""
        if self.inner is not None:
            self.inner.see(event)


@contextlib.contextmanager
def applied(instrument: Instrument | None, pids: Sequence[int]) -> Iterator[Reading]:
    """Look into processes while they are loaded; the reading is complete at the end. Raise SampleFailed where nothing was found."""
    if instrument is None:
        yield Reading()
    elif instrument.tool == STACKS:
        with tempfile.TemporaryDirectory(prefix="ringlab-perf-") as place:
            sampler = sampling.Sampler(pids, Path(place) / "perf.data")
            reading = Reading(inner=sampler)
            with sampler:
                yield reading
            if sampler.problem:
                raise SampleFailed(sampler.problem)
            reading.stacks = dict(sampling.fold(sampling.script(sampler.data)))
            if not reading.stacks:
                raise SampleFailed("perf took no sample of it")
    else:
        with system_calls.Counter(instrument.tool, pids, instrument.events) as counter:
            reading = Reading(inner=counter)
            yield reading
        reading.counted = dict(counter.counted)
