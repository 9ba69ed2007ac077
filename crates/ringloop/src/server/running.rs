//! A server that runs.

use std::convert::Infallible;
use std::io;
use std::mem;
use std::net::SocketAddr;
use std::process;
use std::sync::Arc;
use std::time::Duration;

use async_channel::Sender;

use super::counters::{Counters, WorkerCounters};
use super::end_signals::{EndSignals, Signal};
use crate::pool::Pool;
use crate::task::Awaited;

/// A running server.
///
/// ```
/// use std::time::Duration;
///
/// # use ringloop::server::{Connection, Handler, Server};
/// # struct Echo;
/// # impl Handler for Echo {
/// #     fn data(&mut self, connection: &mut Connection<'_>, bytes: &[u8]) -> std::io::Result<()> {
/// #         connection.write(bytes)
/// #     }
/// # }
/// let server = Server::bind("127.0.0.1:0").workers(1).start(|| Echo)?;
/// println!("listening on {}", server.local_addr());
/// // The workers may have tasks of the program's own.
/// drop(server.pool().spawn_on(0, || async { println!("beside the connections") }));
/// server.shutdown(Duration::from_secs(5));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "a server ends when this is dropped"]
pub struct Running {
    pool: Pool,
    address: SocketAddr,
    stop: Stop,
    counters: Vec<Arc<WorkerCounters>>,
}

/// Stops accepting when it is dropped, unless that happens in a child after fork(2): the workers are the parent's, and a
/// thread that is gone there may hold the channel's locks.
#[derive(Debug)]
struct Stop {
    /// Of the channel that closes then.
    sender: Option<Sender<Infallible>>,
    process: u32,
}

impl Drop for Stop {
    fn drop(&mut self) {
        if self.process != process::id() {
            mem::forget(self.sender.take());
        }
    }
}

impl Running {
    pub(super) fn new(
        pool: Pool,
        address: SocketAddr,
        stop: Sender<Infallible>,
        counters: Vec<Arc<WorkerCounters>>,
    ) -> Self {
        Self {
            pool,
            address,
            stop: Stop {
                sender: Some(stop),
                process: process::id(),
            },
            counters,
        }
    }

    /// The address that the server listens on.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// The workers. Programs may spawn their own tasks on them.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Returns the counts of what the server has done so far.
    pub fn counters(&self) -> Counters {
        Counters::sum(&self.counters)
    }

    /// Blocks until a signal asks the process to end, see [`EndSignals`]. It listens from this call on.
    ///
    /// # Errors
    /// Returns the errors of sigaction(2).
    pub fn wait_for_signal(&self) -> io::Result<Signal> {
        Ok(EndSignals::listen()?.wait())
    }

    /// Stops listening, asks the connections to end ([`Handler::draining`](super::Handler::draining), [`Client::draining`](super::Client::draining)), gives them
    /// `patience` to do so, and then cuts off those that are left.
    ///
    /// Connections that the kernel has accepted by then are served first, also those beyond the [maximum
    /// number](super::Server::max_connections), and so are handshakes in progress. A new connection has up to a second from
    /// its beginning to send something. A connection that a handler closes ends when its peer closes it, too, at most 2 s
    /// later ([`Connection::close`](super::Connection::close)).
    ///
    /// What the tasks of connections have [spawned](crate::spawn) counts as theirs, and has the same time. Other tasks on
    /// the workers are told, if they have asked for it ([`stopping`](crate::stopping)), and dropped when the connections have
    /// ended.
    ///
    /// This blocks, as [`Pool::shutdown`] does, and does nothing in a child after fork(2).
    pub fn shutdown(self, patience: Duration) {
        drop(self.stop);
        self.pool.shut_down(patience, Awaited::Connections);
    }

    /// Runs until a signal asks the process to end.
    pub(super) fn run(self, signals: EndSignals, patience: Duration) {
        signals.wait();
        self.shutdown(patience);
    }
}
