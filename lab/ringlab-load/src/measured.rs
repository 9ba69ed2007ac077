//! What one thread of the generator has measured.

use crate::latencies::Latencies;

/// What a thread has measured.
#[derive(Debug)]
pub(crate) struct Measured {
    /// From the instant in which a request was sent.
    pub(crate) service: Latencies,
    /// From the instant in which it was to be sent (open loop).
    pub(crate) corrected: Latencies,
    /// How late requests were sent on connections that were free (open loop): the generator's own share of `corrected`.
    pub(crate) lateness: Latencies,
    /// How long connecting took.
    pub(crate) connecting: Latencies,
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
    /// For each connection that was opened, what was answered in the window: requests, or (streams) messages.
    pub(crate) operations: Vec<u64>,
    pub(crate) opened: u64,
    pub(crate) reopened: u64,
    pub(crate) alive: u64,
    /// Requests that were due in the window (open loop), and those of them that had no answer in the end.
    pub(crate) due: u64,
    pub(crate) unfinished: u64,
    /// How long in the window the thread did anything but wait.
    pub(crate) busy_ns: u64,
    /// The longest that a turn of the loop took, its waiting excepted.
    pub(crate) turn_ns_max: u64,
    /// The sum over the window of requests in flight times ns.
    pub(crate) in_flight_ns: u128,
    /// How often a stream was held back.
    pub(crate) held_back: u64,
    /// The most that was sent on a stream and had not come back, in bytes.
    pub(crate) outstanding_max: u64,
}

impl Measured {
    pub(crate) fn new() -> Self {
        Self {
            service: Latencies::new(),
            corrected: Latencies::new(),
            lateness: Latencies::new(),
            connecting: Latencies::new(),
            bytes_in: 0,
            bytes_out: 0,
            operations: Vec::new(),
            opened: 0,
            reopened: 0,
            alive: 0,
            due: 0,
            unfinished: 0,
            busy_ns: 0,
            turn_ns_max: 0,
            in_flight_ns: 0,
            held_back: 0,
            outstanding_max: 0,
        }
    }
}
