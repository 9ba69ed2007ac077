//! The counters of a service: its connections, requests and responses.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use ringloop_http::h1::Method;

use crate::objects::{self, New};

/// When a request began, and what is known of it.
#[derive(Clone, Copy)]
pub(super) struct Begun {
    pub(super) method: Method,
    pub(super) at_ns: u64,
}

/// Upper bounds of the histogram of durations, in nanoseconds and seconds.
pub(super) const BOUNDS: [(u64, f64); 14] = [
    (500_000, 0.0005),
    (1_000_000, 0.001),
    (2_500_000, 0.0025),
    (5_000_000, 0.005),
    (10_000_000, 0.01),
    (25_000_000, 0.025),
    (50_000_000, 0.05),
    (100_000_000, 0.1),
    (250_000_000, 0.25),
    (500_000_000, 0.5),
    (1_000_000_000, 1.0),
    (2_500_000_000, 2.5),
    (5_000_000_000, 5.0),
    (10_000_000_000, 10.0),
];

/// The counters of a service. A response costs a clock reading and a few stores.
#[derive(Clone, Default)]
pub(super) struct Counters {
    pub(super) connections: u64,
    pub(super) bytes_received: u64,
    pub(super) bytes_sent: u64,
    /// Responses by method and status, in the order of their first appearance. Most services have a handful of these,
    /// and the most frequent ones appear first.
    responses: Vec<(&'static str, u16, u64)>,
    /// Responses by duration: up to each bound, and above the last one.
    durations: [u64; BOUNDS.len() + 1],
    duration_sum_ns: u64,
}

impl Counters {
    /// Counts a response that has ended. `begun` is None if the request was refused before its head was complete.
    pub(super) fn count_response(&mut self, begun: Option<Begun>, status: u16, now_ns: u64) {
        let method = begun.map_or("", |begun| begun.method.as_str());
        let known = |it: &&mut (&'static str, u16, u64)| it.1 == status && it.0 == method;
        match self.responses.iter_mut().find(known) {
            Some((_, _, count)) => *count += 1,
            None => self.responses.push((method, status, 1)),
        }
        if let Some(begun) = begun {
            let duration_ns = now_ns.saturating_sub(begun.at_ns);
            let bucket = BOUNDS
                .iter()
                .position(|&(bound_ns, _)| duration_ns <= bound_ns);
            self.durations[bucket.unwrap_or(BOUNDS.len())] += 1;
            self.duration_sum_ns += duration_ns;
        }
    }

    /// A snapshot for Python, as `_core.pyi` describes it.
    pub(super) fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let requests = objects::dict(py)?;
        for (method, status, count) in self.responses() {
            let status = New(status).into_pyobject(py)?;
            let method = objects::interned(py, method)?;
            let key = objects::tuple(py, [method.into_any(), status.into_any()])?;
            requests.set_item(key, New(count))?;
        }
        let durations = objects::list(py, std::iter::empty::<Bound<'py, PyAny>>())?;
        for (bound_s, count) in self.durations() {
            let bound = objects::float(py, bound_s)?.into_any();
            let count = New(count).into_pyobject(py)?.into_any();
            durations.append(objects::tuple(py, [bound, count])?)?;
        }
        let metrics = objects::dict(py)?;
        metrics.set_item(New("requests"), requests)?;
        metrics.set_item(New("durations"), durations)?;
        metrics.set_item(New("duration_sum"), New(self.duration_sum_s()))?;
        metrics.set_item(New("bytes_received"), New(self.bytes_received))?;
        metrics.set_item(New("bytes_sent"), New(self.bytes_sent))?;
        metrics.set_item(New("connections_total"), New(self.connections))?;
        Ok(metrics)
    }

    /// How many responses there were of each method and status.
    fn responses(&self) -> impl Iterator<Item = (&'static str, u16, u64)> {
        self.responses.iter().copied()
    }

    /// The bounds in seconds, each with the number of durations up to it; the last bound is infinite.
    fn durations(&self) -> impl Iterator<Item = (f64, u64)> {
        let bounds = BOUNDS.iter().map(|&(_, bound_s)| bound_s);
        let bounds = bounds.chain([f64::INFINITY]);
        let cumulative = self.durations.iter().scan(0, |total, &count| {
            *total += count;
            Some(*total)
        });
        bounds.zip(cumulative)
    }

    fn duration_sum_s(&self) -> f64 {
        self.duration_sum_ns as f64 * 1e-9
    }
}
