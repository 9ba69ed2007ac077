//! A server on the workers of a pool.

use std::convert::Infallible;
use std::mem;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::net::SocketAddr as UnixAddr;
use std::process;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use async_channel::Sender;

use super::counters::{Counters, WorkerCounters};
use super::listeners::{Left, Listening};
use super::paths::PathGuard;

/// The address that stands for a Unix socket.
pub(super) const NO_ADDRESS: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// A server that runs on a [`Pool`](crate::Pool) of the program's, perhaps beside others. Created by
/// [`Server::start_on`](super::Server::start_on).
///
/// When it is dropped, it stops listening and asks its connections to end. They may continue for a while; nothing waits for
/// them. Shutting down the pool does the same, and waits for them.
///
/// ```
/// use ringloop::server::Server;
/// use ringloop::{Pool, PoolConfig};
/// use std::time::Duration;
///
/// # use ringloop::server::{Connection, Handler};
/// # struct Echo;
/// # impl Handler for Echo {
/// #     fn data(&mut self, connection: &mut Connection<'_>, bytes: &[u8]) -> std::io::Result<()> {
/// #         connection.write(bytes)
/// #     }
/// # }
/// let pool = Pool::new(2, &PoolConfig::default())?;
/// let echo = Server::new("127.0.0.1:0").start_on(&pool, || Echo)?;
/// let greeter = Server::new("127.0.0.1:0")
///     .start_with_on(&pool, |mut stream, _| async move { stream.write_all(&b"hi"[..]).await.0 })?;
/// assert_ne!(echo.local_addr(), greeter.local_addr());
/// // For this one only:
/// echo.stop();
/// pool.shutdown(Duration::from_secs(5));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "a server ends when this is dropped"]
pub struct Service {
    pub(super) addresses: Vec<SocketAddr>,
    pub(super) unix_addresses: Vec<UnixAddr>,
    /// Removed before it stops accepting.
    pub(super) paths: Vec<PathGuard>,
    /// Paths that the process before this one listened on, and this one does not.
    pub(super) left: Vec<Left>,
    #[expect(dead_code, reason = "its drop ends the server")]
    pub(super) stop: Stop,
    pub(super) counters: Vec<Arc<WorkerCounters>>,
    /// The sockets that it listens on, if they may be handed over.
    pub(super) sockets: Vec<Listening>,
    /// Whether another process may accept from them.
    pub(super) has_successor: Arc<AtomicBool>,
}

/// Stops accepting when it is dropped, unless that happens in a child after fork(2): the workers are the parent's, and a
/// thread that is gone there may hold the channel's locks.
#[derive(Debug)]
pub(super) struct Stop {
    /// Of the channel that closes then.
    sender: Option<Sender<Infallible>>,
    process: u32,
}

impl Stop {
    pub(super) fn new(sender: Sender<Infallible>) -> Self {
        Self {
            sender: Some(sender),
            process: process::id(),
        }
    }
}

impl Drop for Stop {
    fn drop(&mut self) {
        if self.process != process::id() {
            mem::forget(self.sender.take());
        }
    }
}

impl Service {
    /// The server has started, and the process that ran before, if there was one, has been told to end.
    pub(super) fn settle(&mut self) {
        self.paths.iter_mut().for_each(PathGuard::settle);
        self.left.drain(..).for_each(Left::end);
    }

    /// The address of TCP that the server listens on; the first one, if there are several. If there are only Unix sockets, it
    /// is unspecified: `0.0.0.0:0`.
    pub fn local_addr(&self) -> SocketAddr {
        self.addresses.first().copied().unwrap_or(NO_ADDRESS)
    }

    /// The addresses of TCP that the server listens on.
    pub fn local_addrs(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The paths and names of the Unix sockets that the server listens on.
    pub fn local_unix_addrs(&self) -> &[UnixAddr] {
        &self.unix_addresses
    }

    /// Returns the counts of what the server has done so far.
    pub fn counters(&self) -> Counters {
        Counters::sum(&self.counters)
    }

    /// Stops listening, and asks the connections to end. Those that the kernel has accepted by then are served first. This
    /// returns without waiting for the connections.
    pub fn stop(self) {
        drop(self);
    }
}
