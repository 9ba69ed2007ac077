//! The counters of a server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts of what a server has done since it was started, over all workers.
///
/// ```
/// use std::io::{Read, Write};
///
/// # use ringloop::server::{Connection, Handler, Server};
/// # struct Echo;
/// # impl Handler for Echo {
/// #     fn data(&mut self, connection: &mut Connection<'_>, bytes: &[u8]) -> std::io::Result<()> {
/// #         connection.write(bytes)
/// #     }
/// # }
/// let server = Server::new("127.0.0.1:0").start(|| Echo)?;
/// let mut client = std::net::TcpStream::connect(server.local_addr())?;
/// client.write_all(b"x")?;
/// client.read_exact(&mut [0])?;
/// let counters = server.counters();
/// assert_eq!((counters.accepted, counters.live, counters.errors), (1, 1, 0));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Connections that were accepted.
    pub accepted: u64,
    /// Connections that are alive.
    pub live: u64,
    /// Connections that ended with an error.
    pub errors: u64,
    /// Connections whose handler panicked.
    pub panics: u64,
    /// How often a connection was idle for too long.
    pub timeouts: u64,
    /// How often accepting a connection failed.
    pub accept_errors: u64,
    /// Connections whose TLS handshake failed or took too long. They are counted nowhere else, and reach no handler.
    pub handshake_errors: u64,
}

/// The counters of one worker. Only the worker writes to them, so counting needs no atomic addition.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct WorkerCounters {
    pub(super) accepted: AtomicU64,
    pub(super) ended: AtomicU64,
    pub(super) errors: AtomicU64,
    pub(super) panics: AtomicU64,
    pub(super) timeouts: AtomicU64,
    pub(super) accept_errors: AtomicU64,
    pub(super) handshake_errors: AtomicU64,
}

impl WorkerCounters {
    /// How many connections are alive.
    pub(super) fn live(&self) -> u64 {
        let ended = self.ended.load(Ordering::Relaxed);
        self.accepted.load(Ordering::Relaxed).saturating_sub(ended)
    }
}

pub(super) fn count(counter: &AtomicU64) {
    counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

impl Counters {
    /// Adds up the counters of all workers.
    pub(super) fn sum(workers: &[Arc<WorkerCounters>]) -> Self {
        let sum = |counter: fn(&WorkerCounters) -> &AtomicU64| {
            workers
                .iter()
                .map(|counters| counter(counters).load(Ordering::Relaxed))
                .sum::<u64>()
        };
        // In this order, so that a connection that ends meanwhile is not counted as ended before it was accepted.
        let ended = sum(|counters| &counters.ended);
        let accepted = sum(|counters| &counters.accepted);
        Self {
            accepted,
            live: accepted.saturating_sub(ended),
            errors: sum(|counters| &counters.errors),
            panics: sum(|counters| &counters.panics),
            timeouts: sum(|counters| &counters.timeouts),
            accept_errors: sum(|counters| &counters.accept_errors),
            handshake_errors: sum(|counters| &counters.handshake_errors),
        }
    }
}
