//! The client of a connection, as the function that serves it knows it.

use std::fmt;
use std::net::SocketAddr;
use std::rc::Rc;

use super::drain::{Beginning, Draining};
use super::service::NO_ADDRESS;
use crate::drain::Drain;
use crate::net::Stream;
use crate::net::stream::{Core, HasCore};
use crate::shared::Shared;
use crate::source::{Closed, End};

/// The peer of a connection that is served by a function, and whether the server drains.
///
/// ```
/// use futures_util::future::{Either, select};
/// use ringloop::server::Server;
/// use std::pin::pin;
/// use std::time::Duration;
///
/// let server = Server::new("127.0.0.1:0").start_with(|mut stream, client| async move {
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
    closed: Closed,
}

impl Client {
    /// Creates what a [`Server`](super::Server) passes to its functions, for a connection that the program has accepted
    /// itself, such as one of a Unix socket. It drains when the pool of the worker is shut down. `address` is for
    /// [`addr`](Self::addr); a Unix socket has none that fits, so pass an unspecified one.
    ///
    /// # Panics
    /// Panics outside of a runtime.
    ///
    /// ```
    /// use futures_util::future::{Either, select};
    /// use ringloop::net::{UnixListener, UnixStream};
    /// use ringloop::server::Client;
    /// use ringloop::{Pool, PoolConfig, spawn};
    /// use std::net::{Ipv4Addr, SocketAddr};
    /// use std::pin::pin;
    /// use std::time::Duration;
    ///
    /// async fn serve(mut stream: UnixStream, client: Client) -> std::io::Result<()> {
    ///     // As in a server's function, for example `Http::serve(stream, &client, service)`.
    ///     client.draining().await;
    ///     stream.write_all(&b"bye"[..]).await.0
    /// }
    ///
    /// let pool = Pool::new(1, &PoolConfig::default())?;
    /// let path = std::env::temp_dir().join(format!("ringloop-client-{}", std::process::id()));
    /// let at = path.clone();
    /// drop(pool.spawn_on(0, move || async move {
    ///     let listener = UnixListener::bind(&at)?;
    ///     let mut stopping = ringloop::stopping();
    ///     while let Either::Left((accepted, _)) = select(pin!(listener.accept()), &mut stopping).await {
    ///         let (stream, _) = accepted?;
    ///         let client = Client::new(&stream, SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)));
    ///         drop(spawn(serve(stream, client)));
    ///     }
    ///     std::fs::remove_file(&at)
    /// }));
    /// # while !path.exists() {
    /// #     std::thread::yield_now();
    /// # }
    /// # let mut client = std::os::unix::net::UnixStream::connect(&path)?;
    /// # while pool.metrics()[0].tasks_live < 2 {
    /// #     std::thread::yield_now();
    /// # }
    /// pool.shutdown(Duration::from_secs(5));
    /// # let mut farewell = String::new();
    /// # std::io::Read::read_to_string(&mut client, &mut farewell)?;
    /// # assert_eq!(farewell, "bye");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn new(stream: &impl Stream, address: SocketAddr) -> Self {
        let drain = Rc::clone(&Shared::current().stopping);
        Self::of(address, drain, stream.core())
    }

    pub(super) fn of(address: SocketAddr, drain: Rc<Drain>, core: &Core) -> Self {
        Self {
            address,
            drain,
            beginning: Beginning::new(core.recheck()),
            closed: core.until(End::Both),
        }
    }

    /// The address of the peer. For a Unix socket it is unspecified, `0.0.0.0:0`; see
    /// [`AnyStream::peer_credentials`](crate::net::AnyStream::peer_credentials).
    pub fn addr(&self) -> SocketAddr {
        self.address
    }

    /// Waits until the server begins to drain, and whoever reads from the connection has read what the peer had sent by
    /// then. The function should then complete what it is doing, and end the connection. Connections that are left at
    /// the server's deadline are cut off.
    pub fn draining(&self) -> Draining {
        Draining::new(Rc::clone(&self.drain), self.beginning.clone())
    }

    /// Waits until the connection is closed, see [`TcpStream::closed`](crate::net::TcpStream::closed); over TLS, the
    /// connection below. The future keeps nothing alive, and needs neither the stream nor the client.
    ///
    /// ```
    /// use futures_util::future::{Either, select};
    /// use ringloop::server::Server;
    /// use std::{io, pin::pin};
    ///
    /// /// Waits for something that happens elsewhere, perhaps never.
    /// async fn ask_another_server() -> io::Result<Vec<u8>> {
    ///     std::future::pending().await
    /// }
    ///
    /// let server = Server::new("127.0.0.1:0").start_with(|mut stream, client| async move {
    ///     stream.read(Vec::with_capacity(100)).await.0?;
    ///     match select(pin!(ask_another_server()), client.closed()).await {
    ///         Either::Left((answer, _)) => stream.write_all(&answer?[..]).await.0,
    ///         Either::Right(_) => Ok(()), // the client is gone
    ///     }
    /// })?;
    /// # drop(server);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn closed(&self) -> Closed {
        self.closed.clone()
    }

    /// Waits until the client has finished sending, or the connection is closed, see
    /// [`TcpStream::read_closed`](crate::net::TcpStream::read_closed).
    pub fn read_closed(&self) -> Closed {
        self.closed.another(End::Reading)
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
    /// Shows the address of the peer, or `a Unix socket`.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.address == NO_ADDRESS {
            return formatter.pad("a Unix socket");
        }
        self.address.fmt(formatter)
    }
}
