//! The figures of `loop.metrics()`.

use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::event_loop::Loop;
use crate::objects::New;

/// Returns what the loop has done so far, in the order of the fields of `ringloop.Metrics` after the backend.
pub(super) fn snapshot<'py>(py: Python<'py>, event_loop: &Loop) -> PyResult<Bound<'py, PyTuple>> {
    let reactor = {
        let reactor = event_loop.reactor.get(py);
        reactor.as_deref().map(ringloop_reactor::Reactor::counters)
    };
    let (ready, timers) = {
        let queue = event_loop.queue.get(py);
        (queue.ready.len() + queue.arrived.len(), queue.timers.len())
    };
    let connections = event_loop.watches.get(py).transports();
    let totals = event_loop.meter.totals(py, reactor);
    New((
        New((
            New(totals.turns),
            New(totals.callbacks),
            New(ready),
            New(timers),
            New(connections),
        )),
        New((
            seconds(totals.busy_ns),
            seconds(totals.idle_ns),
            seconds(totals.gil_ns),
            seconds(totals.reactor.spun_ns),
            seconds(totals.reactor.wasted_ns),
        )),
        New((seconds(totals.slowest_ns), New(totals.slowest))),
        New((
            New(totals.system_calls),
            New(totals.reactor.driver.events),
            New(totals.reactor.driver.wakes),
            New(totals.reactor.waits),
            New(totals.reactor.spins),
            New(totals.reactor.spin_hits),
        )),
        New((New(totals.stalls),)),
    ))
    .into_pyobject(py)
}

fn seconds(ns: u64) -> New<f64> {
    New(ns as f64 * 1e-9)
}
