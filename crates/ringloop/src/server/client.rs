//! The client of a connection, as the function that serves it knows it.

use std::fmt;
use std::net::SocketAddr;
use std::rc::Rc;

use super::drain::{Beginning, Draining};
use crate::drain::Drain;
use crate::source::Recheck;

/// The peer of a connection that is served by a function, and whether the server drains.
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
    beginning: Beginning,
}

impl Client {
    pub(super) fn new(address: SocketAddr, drain: Rc<Drain>, connection: Recheck) -> Self {
        Self {
            address,
            drain,
            beginning: Beginning::new(connection),
        }
    }

    /// The address of the peer.
    pub fn addr(&self) -> SocketAddr {
        self.address
    }

    /// Waits until the server begins to drain, and whoever reads from the connection has read what the peer had sent by
    /// then. The function should then complete what it is doing, and end the connection. Connections that are left at
    /// the server's deadline are cut off.
    pub fn draining(&self) -> Draining {
        Draining::new(Rc::clone(&self.drain), self.beginning.clone())
    }

    /// Whether the server has begun to drain.
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
