//! A server that runs.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_channel::Sender;

use super::counters::{Counters, WorkerCounters};
use super::end_signals::{EndSignals, Signal};
use crate::pool::Pool;

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
    /// Closed to stop accepting.
    stop: Sender<Infallible>,
    counters: Vec<Arc<WorkerCounters>>,
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
            stop,
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

    /// What the server has done so far.
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
    /// Connections that were not accepted yet are reset by the kernel. This blocks, as [`Pool::shutdown`] does.
    pub fn shutdown(self, patience: Duration) {
        self.stop.close();
        self.pool.shutdown(patience);
    }

    /// Runs until a signal asks the process to end.
    pub(super) fn run(self, signals: EndSignals, patience: Duration) {
        signals.wait();
        self.shutdown(patience);
    }
}
