//! The measurements of a run's worker.

use crate::latencies::Latencies;

/// The measurements of a worker.
#[derive(Debug, Default)]
pub(crate) struct Measured {
    /// From the instant at which a request was sent.
    pub(crate) service: Latencies,
    /// From the instant at which it was due (open loop).
    pub(crate) corrected: Latencies,
    /// How late requests were sent on free connections (open loop): the generator's own share of `corrected`.
    pub(crate) lateness: Latencies,
    /// How long connecting took.
    pub(crate) connecting: Latencies,
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
    /// For each connection that was opened, the requests or (streams) messages that were answered in the window, in ascending
    /// order.
    pub(crate) operations: Vec<u64>,
    pub(crate) opened: u64,
    pub(crate) reopened: u64,
    pub(crate) alive: u64,
    /// Requests that were due in the window (open loop), and those of them that were never answered.
    pub(crate) due: u64,
    pub(crate) unfinished: u64,
    /// How long the worker did anything but wait, in the window.
    pub(crate) busy_ns: u64,
    /// The longest turn of the loop, without its waiting.
    pub(crate) turn_ns_max: u64,
    /// The integral of the number of requests in flight over the window, in ns.
    pub(crate) in_flight_ns: u128,
    /// How often a stream was held back.
    pub(crate) held_back: u64,
    /// Calls in the window that received from or sent to a stream.
    pub(crate) reads: u64,
    pub(crate) writes: u64,
    /// The bytes of streams in one direction that servers have counted, over the whole run.
    pub(crate) counted: u64,
    /// The maximum of the outstanding bytes on a stream.
    pub(crate) outstanding_max: u64,
}
