//! What a function that serves a connection knows of it.

use std::fmt;
use std::net::SocketAddr;
use std::rc::Rc;

use super::drain::{Drain, Draining};
use crate::source::Recheck;

/// Who is at the other end of a connection that a function serves, and whether the server is about to end.
///
/// ```
/// use futures_util::future::{Either, select};
/// use ringloop::server::Server;
/// use std::pin::pin;
/// use std::time::Duration;
///
/// let server = Server::bind("127.0.0.1:0").start_with(|mut stream, client| async move {
///     loop {
///         let read = match select(pin!(stream.read(Vec::with_capacity(1024))), client.draining()).await {
///             Either::Left((read, _)) => read,
///             // Between two requests: nothing is lost.
///             Either::Right(_) => return Ok(()),
///         };
///         let (count, bytes) = read;
///         if count? == 0 {
///             return Ok(());
///         }
///         stream.write_all(&bytes[..]).await.0?;
///     }
/// })?;
/// server.shutdown(Duration::from_secs(5));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone)]
pub struct Client {
    address: SocketAddr,
    drain: Rc<Drain>,
    connection: Recheck,
}

impl Client {
    pub(super) fn new(address: SocketAddr, drain: Rc<Drain>, connection: Recheck) -> Self {
        Self {
            address,
            drain,
            connection,
        }
    }

    /// The address of the other end.
    pub fn addr(&self) -> SocketAddr {
        self.address
    }

    /// Waits until the server begins to drain, and what the peer had sent by then was read by whoever reads from the
    /// connection: who serves it finishes what he is at and ends it. Who is not done by the server's deadline is cut off.
    pub fn draining(&self) -> Draining {
        Draining::new(Rc::clone(&self.drain), self.connection.clone())
    }

    /// Whether it has begun.
    pub fn is_draining(&self) -> bool {
        self.drain.has_begun()
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Client")
            .field("addr", &self.address)
            .field("is_draining", &self.is_draining())
            .finish_non_exhaustive()
    }
}

impl fmt::Display for Client {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(formatter)
    }
}
