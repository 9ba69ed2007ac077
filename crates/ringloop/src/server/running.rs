//! A server that runs.

use std::io;
use std::net::SocketAddr;
use std::os::unix::net::SocketAddr as UnixAddr;
use std::time::Duration;

use super::counters::Counters;
use super::end_signals::{EndSignal, EndSignals};
use super::handover::Restart;
use super::service::Service;
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
/// let server = Server::new("127.0.0.1:0").workers(1).start(|| Echo)?;
/// println!("listening on {}", server.local_addr());
/// // The workers may have tasks of the program's own.
/// drop(server.pool().spawn_on(0, || async { println!("beside the connections") }));
/// server.shutdown(Duration::from_secs(5));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "a server ends when this is dropped"]
pub struct Running {
    service: Service,
    pool: Pool,
}

impl Running {
    pub(super) fn new(service: Service, pool: Pool) -> Self {
        Self { service, pool }
    }

    /// The address of TCP that the server listens on; the first one, if there are several. If there are only Unix sockets, it
    /// is unspecified: `0.0.0.0:0`.
    pub fn local_addr(&self) -> SocketAddr {
        self.service.local_addr()
    }

    /// The addresses of TCP that the server listens on.
    pub fn local_addrs(&self) -> &[SocketAddr] {
        self.service.local_addrs()
    }

    /// The paths and names of the Unix sockets that the server listens on.
    pub fn local_unix_addrs(&self) -> &[UnixAddr] {
        self.service.local_unix_addrs()
    }

    /// The workers. Programs may spawn their own tasks on them.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Returns the counts of what the server has done so far.
    pub fn counters(&self) -> Counters {
        self.service.counters()
    }

    /// Blocks until a signal asks the process to end, see [`EndSignals`]. It listens from this call on.
    ///
    /// # Errors
    /// Returns the errors of sigaction(2).
    pub fn wait_for_signal(&self) -> io::Result<EndSignal> {
        Ok(EndSignals::listen()?.wait())
    }

    /// Stops listening, asks the connections to end ([`Handler::draining`](super::Handler::draining), [`Client::draining`](super::Client::draining)), gives them
    /// `patience` to do so, and then cuts off those that are left.
    ///
    /// Connections that the kernel has accepted by then are served first, including those beyond the [maximum
    /// number](super::Server::max_connections), and handshakes in progress are completed. A new connection has up to a second from
    /// its beginning to send something. A connection that a handler closes ends when its peer closes it, too, at most 2 s
    /// later ([`Connection::close`](super::Connection::close)).
    ///
    /// What the tasks of connections have [spawned](crate::spawn) on their workers counts as theirs, and has the same time.
    /// Other tasks on the workers are told, if they have asked for it ([`stopping`](crate::stopping)), and dropped when the connections have
    /// ended.
    ///
    /// This blocks, as [`Pool::shutdown`] does, and does nothing in a child after fork(2).
    pub fn shutdown(self, patience: Duration) {
        self.service.stop();
        self.pool.shut_down(patience, Awaited::Connections);
    }

    /// Runs until a signal asks the process to end, or another process has taken over.
    pub(super) fn run(
        mut self,
        signals: EndSignals,
        patience: Duration,
        restart: Option<Restart>,
    ) -> io::Result<()> {
        let closer = signals.closer();
        let offer = restart
            .map(|restart| restart.offer(&mut self.service, move || closer.close()))
            .transpose();
        let result = offer.map(|offer| {
            signals.wait();
            drop(offer);
        });
        // Also after an error: connections have been accepted.
        self.shutdown(patience);
        result
    }
}
