//! The settings of a run that all workloads have in common.

use std::sync::Arc;

use rustls::ClientConfig;

use crate::endpoint::Endpoint;
use crate::windows::Windows;

/// A request beside the measured ones, and how many connections make it.
#[derive(Clone, Debug)]
pub(crate) struct Beside {
    pub(crate) connections: u32,
    pub(crate) request: Vec<u8>,
}

/// The settings of a run.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) endpoint: Endpoint,
    pub(crate) connections: u32,
    /// Requests in flight on each connection.
    pub(crate) pipeline: u32,
    /// The CPU of the generator. `None`: the kernel chooses.
    pub(crate) cpu: Option<usize>,
    pub(crate) ramp_ns: u64,
    /// The load rests until it is asked for a window, and again after it. `None`: one window right after the warm-up.
    pub(crate) windows: Option<Arc<Windows>>,
    pub(crate) warm_up_ns: u64,
    pub(crate) window_ns: u64,
    /// Requests per second of the open loop, over all connections. `None` for the closed loop.
    pub(crate) rate: Option<f64>,
    /// TLS on each connection, if any.
    pub(crate) tls: Option<Arc<ClientConfig>>,
    /// Connections rest after their greeting.
    pub(crate) idle: bool,
    /// Into how many equal steps opening the connections is divided. The server's memory is read after each. 0: it is not read.
    pub(crate) steps: u32,
    /// Each connection carries one request and is then reset, and another one is opened in its place.
    pub(crate) churn: bool,
    pub(crate) max_operations: Option<u64>,
    pub(crate) timeout_ns: u64,
    pub(crate) seed: u64,
    /// How long to poll for events before sleeping.
    pub(crate) spin_ns: u64,
    pub(crate) account: Vec<i32>,
    /// The process below which is all of the server.
    pub(crate) account_below: Option<i32>,
    /// Requests beside the measured ones, if any.
    pub(crate) beside: Option<Beside>,
    /// Print the histograms.
    pub(crate) hdr: bool,
}
