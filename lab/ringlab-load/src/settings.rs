//! The settings of a run that all workloads have in common.

use std::net::SocketAddr;
use std::sync::Arc;

use rustls::ClientConfig;

/// The settings of a run.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) address: SocketAddr,
    pub(crate) connections: u32,
    /// Requests in flight on each connection.
    pub(crate) pipeline: u32,
    pub(crate) threads: usize,
    /// The CPUs of the threads, in turn. If empty, the kernel chooses.
    pub(crate) cpus: Vec<usize>,
    pub(crate) ramp_ns: u64,
    pub(crate) warm_up_ns: u64,
    pub(crate) window_ns: u64,
    /// Requests per second of the open loop, over all connections. `None` for the closed loop.
    pub(crate) rate: Option<f64>,
    /// TLS on each connection, if any.
    pub(crate) tls: Option<Arc<ClientConfig>>,
    /// Connections rest after their greeting.
    pub(crate) idle: bool,
    pub(crate) max_operations: Option<u64>,
    pub(crate) timeout_ns: u64,
    pub(crate) seed: u64,
    /// How long to poll for events before sleeping.
    pub(crate) spin_ns: u64,
    pub(crate) account: Vec<i32>,
    /// Print the histograms.
    pub(crate) hdr: bool,
}
