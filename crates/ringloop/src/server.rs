//! A server of TCP and of Unix sockets: a listener on each worker of a pool, and a task for each connection.
//!
//! ```
//! use ringloop::server::{Connection, Handler, Server};
//! use std::io::{self, Read, Write};
//! use std::time::Duration;
//!
//! struct Echo;
//!
//! impl Handler for Echo {
//!     fn data(&mut self, connection: &mut Connection<'_>, bytes: &[u8]) -> io::Result<()> {
//!         connection.write(bytes)
//!     }
//! }
//!
//! # fn main() -> io::Result<()> {
//! let server = Server::new("127.0.0.1:0").workers(2).start(|| Echo)?;
//! let mut client = std::net::TcpStream::connect(server.local_addr())?;
//! client.write_all(b"hello")?;
//! let mut answer = [0; 5];
//! client.read_exact(&mut answer)?;
//! assert_eq!(&answer, b"hello");
//! drop(client);
//! server.shutdown(Duration::from_secs(5));
//! # Ok(())
//! # }
//! ```

mod accepting;
mod client;
mod conversation;
mod counters;
mod drain;
mod end_signals;
mod handler;
mod handover;
mod idle;
mod listeners;
mod mailbox;
mod paths;
mod running;
mod service;
mod starting;
mod wire;

use std::net::TcpListener as StdListener;
use std::path::PathBuf;
use std::time::Duration;

use socket2::Socket;

use crate::net::{AnyStream, TcpListenerOptions, TcpStream, ToUnixAddress};
use crate::pool::{self, PoolConfig};
#[cfg(feature = "tls")]
use crate::tls::{TlsAcceptor, TlsStream};
use listeners::{Binding, Place};
use wire::Wire;

pub use client::Client;
pub use counters::Counters;
pub use drain::Draining;
pub use end_signals::{EndSignal, EndSignals};
pub use handler::{Connection, Handler};
pub use listeners::{AnyListener, inherited_any_listeners, inherited_listeners};
pub use mailbox::ConnectionHandle;
pub use running::Running;
pub use service::Service;

/// How long a connection may be idle, by default. Common load balancers close idle connections after 1 to 4 minutes. They
/// must do so first: if they sent a request just when the server closed the connection, it would fail.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5 * 60);

/// How long connections may take to end, by default.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// The type of a server's connections: a [`TcpStream`], after `Server::tls` a `TlsStream`, or an [`AnyStream`] for servers
/// with [Unix sockets](Server::unix). The trait is sealed: no other type can implement it.
pub trait Transport: Wire {}

impl Transport for TcpStream {}

impl Transport for AnyStream {}

#[cfg(feature = "tls")]
impl Transport for TlsStream {}

/// A builder for servers.
///
/// ```
/// use ringloop::PoolConfig;
/// use ringloop::driver::BackendChoice;
/// use std::time::Duration;
///
/// # use ringloop::server::{Connection, Handler, Server};
/// # struct Echo;
/// # impl Handler for Echo {
/// #     fn data(&mut self, connection: &mut Connection<'_>, bytes: &[u8]) -> std::io::Result<()> {
/// #         connection.write(bytes)
/// #     }
/// # }
/// let mut config = PoolConfig::default();
/// config.runtime.reactor.driver.backend = BackendChoice::Epoll;
/// let server = Server::new("127.0.0.1:0")
///     .workers(2)
///     .pool_config(config)
///     .backlog(4096)
///     .nodelay(true)
///     .max_connections(10_000)
///     .idle_timeout(Duration::from_secs(60))
///     .start(|| Echo)?;
/// server.shutdown(Duration::ZERO);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "a server does nothing until it is started"]
pub struct Server<S: Transport = TcpStream> {
    options: Options,
    settings: S::Settings,
}

/// The options of servers with any type of connection.
#[derive(Debug, Clone)]
struct Options {
    places: Vec<Place>,
    workers: usize,
    pool: PoolConfig,
    binding: Binding,
    nodelay: bool,
    max_connections: usize,
    idle_timeout: Option<Duration>,
    drain_timeout: Duration,
    restart_path: Option<PathBuf>,
}

impl<S: Transport> Clone for Server<S> {
    fn clone(&self) -> Self {
        Self {
            options: self.options.clone(),
            settings: self.settings.clone(),
        }
    }
}

impl Server {
    /// Creates a server for an address, `host:port`, with one worker per usable CPU.
    pub fn new(address: impl Into<String>) -> Self {
        Self::of(vec![Place::Address(address.into())], ())
    }

    /// Creates a server for sockets that listen already, such as those of [systemd](inherited_listeners), with one worker per
    /// usable CPU. The sockets are made non-blocking.
    ///
    /// Another process may listen on them, too. When this server ends, it serves the connections that wait by then, and
    /// leaves later ones to that process.
    ///
    /// ```
    /// # use ringloop::server::{Connection, Handler, Server};
    /// # struct Echo;
    /// # impl Handler for Echo {
    /// #     fn data(&mut self, connection: &mut Connection<'_>, bytes: &[u8]) -> std::io::Result<()> {
    /// #         connection.write(bytes)
    /// #     }
    /// # }
    /// let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    /// let address = listener.local_addr()?;
    /// let server = Server::from_listeners([listener]).start(|| Echo)?;
    /// assert_eq!(server.local_addr(), address);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn from_listeners(listeners: impl IntoIterator<Item = StdListener>) -> Self {
        let place = |listener| Place::listening(Socket::from(listener));
        Self::of(listeners.into_iter().map(place).collect(), ())
    }

    /// Adds a Unix socket, see [`unix`](Server::unix). Functions then get an [`AnyStream`].
    ///
    /// ```
    /// # use ringloop::server::{Connection, Handler, Server};
    /// # struct Echo;
    /// # impl Handler for Echo {
    /// #     fn data(&mut self, connection: &mut Connection<'_>, bytes: &[u8]) -> std::io::Result<()> {
    /// #         connection.write(bytes)
    /// #     }
    /// # }
    /// # let path = std::env::temp_dir().join(format!("ringloop-doc-and-{}", std::process::id()));
    /// let server = Server::new("127.0.0.1:0").and_unix(&path).start(|| Echo)?;
    /// assert_eq!(server.local_addrs().len(), 1);
    /// assert_eq!(server.local_unix_addrs()[0].as_pathname(), Some(path.as_path()));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn and_unix(self, address: impl ToUnixAddress) -> Server<AnyStream> {
        let server: Server<AnyStream> = Server {
            options: self.options,
            settings: (),
        };
        server.and_unix(address)
    }

    /// Serves TLS, with a rustls `ServerConfig`. Pass a [`TlsAcceptor`] to change the handshake timeout, which is 10
    /// seconds.
    ///
    /// Handlers and functions get a connection only after its handshake.
    #[cfg(feature = "tls")]
    pub fn tls(self, acceptor: impl Into<TlsAcceptor>) -> Server<TlsStream> {
        Server {
            options: self.options,
            settings: acceptor.into(),
        }
    }
}

impl Server<AnyStream> {
    /// Creates a server for a Unix socket at a path, or with an abstract name, with one worker per usable CPU. Functions get an
    /// [`AnyStream`].
    ///
    /// A socket that is at the path already is replaced, also if a process still listens on it, so that a new process can
    /// take over; if the server cannot start, it is put back. Anything else there is an error. The server sets the socket's [permissions](Self::unix_mode), and removes
    /// it when it ends, unless another one has taken its place. With a [restart path](Self::restart_path), the next process
    /// has the same socket.
    ///
    /// Limits, draining and handles work as with TCP. There is one queue, which the workers share: each connection goes to
    /// whoever is free first.
    ///
    /// ```
    /// use ringloop::server::Server;
    /// use std::io::Read;
    /// use std::os::unix::net::UnixStream;
    ///
    /// # fn main() -> std::io::Result<()> {
    /// # let path = std::env::temp_dir().join(format!("ringloop-doc-unix-{}", std::process::id()));
    /// let server = Server::unix(&path).unix_mode(0o600).start_with(|mut stream, _| async move {
    ///     let peer = stream.peer_credentials()?.expect("it is a Unix socket");
    ///     let text = format!("hello, user {}", peer.uid);
    ///     stream.write_all(text.as_bytes()).await.0
    /// })?;
    /// let mut text = String::new();
    /// UnixStream::connect(&path)?.read_to_string(&mut text)?;
    /// assert!(text.starts_with("hello, user "));
    /// server.shutdown(std::time::Duration::from_secs(5));
    /// assert!(!path.exists());
    /// # Ok(())
    /// # }
    /// ```
    pub fn unix(address: impl ToUnixAddress) -> Self {
        Self::of(Vec::new(), ()).and_unix(address)
    }

    /// Creates a server for sockets of TCP or Unix sockets that listen already, such as those of
    /// [systemd](inherited_any_listeners), as [`from_listeners`](Server::from_listeners) does. Paths of Unix sockets stay: they
    /// belong to whoever has bound them.
    ///
    /// ```
    /// # use ringloop::server::{Connection, Handler, Server};
    /// # struct Echo;
    /// # impl Handler for Echo {
    /// #     fn data(&mut self, connection: &mut Connection<'_>, bytes: &[u8]) -> std::io::Result<()> {
    /// #         connection.write(bytes)
    /// #     }
    /// # }
    /// # let path = std::env::temp_dir().join(format!("ringloop-doc-any-{}", std::process::id()));
    /// let tcp = std::net::TcpListener::bind("127.0.0.1:0")?;
    /// let unix = std::os::unix::net::UnixListener::bind(&path)?;
    /// let server = Server::from_any_listeners([tcp.into(), unix.into()]).start(|| Echo)?;
    /// # std::fs::remove_file(&path)?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn from_any_listeners(listeners: impl IntoIterator<Item = AnyListener>) -> Self {
        let place = |listener| Place::listening(Socket::from(listener));
        Self::of(listeners.into_iter().map(place).collect(), ())
    }

    /// Adds another Unix socket, see [`unix`](Self::unix).
    pub fn and_unix(mut self, address: impl ToUnixAddress) -> Self {
        let address = address.to_unix_address();
        let place = Place::Unix(address.map_err(|error| error.to_string()));
        self.options.places.push(place);
        self
    }

    /// Sets the permissions of the sockets that the server makes at paths: connecting needs the permission to write. By
    /// default, those of a socket that is replaced, and otherwise 0o666: everybody may connect who may enter the folder.
    pub fn unix_mode(mut self, mode: u32) -> Self {
        self.options.binding.unix_mode = Some(mode);
        self
    }
}

impl<S: Transport> Server<S> {
    fn of(places: Vec<Place>, settings: S::Settings) -> Self {
        let options = Options {
            places,
            workers: pool::default_workers(),
            pool: PoolConfig::default(),
            binding: Binding {
                tcp: TcpListenerOptions::default(),
                unix_mode: None,
            },
            nodelay: true,
            max_connections: usize::MAX,
            idle_timeout: Some(IDLE_TIMEOUT),
            drain_timeout: DRAIN_TIMEOUT,
            restart_path: None,
        };
        Self { options, settings }
    }

    /// Adds an address, `host:port`, to listen on. A server with several addresses has the same settings, and serves in the
    /// same way, on all of them; use [`start_on`](Self::start_on) for servers that differ.
    ///
    /// ```
    /// # use ringloop::server::{Connection, Handler, Server};
    /// # struct Echo;
    /// # impl Handler for Echo {
    /// #     fn data(&mut self, connection: &mut Connection<'_>, bytes: &[u8]) -> std::io::Result<()> {
    /// #         connection.write(bytes)
    /// #     }
    /// # }
    /// let server = Server::new("127.0.0.1:0").and("127.0.0.2:0").start(|| Echo)?;
    /// assert_eq!(server.local_addrs().len(), 2);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn and(mut self, address: impl Into<String>) -> Self {
        self.options.places.push(Place::Address(address.into()));
        self
    }

    /// Lets a new process of the program take over without losing a connection, for [`serve`](Self::serve) and
    /// [`serve_with`](Self::serve_with). The processes meet at a Unix socket at this path, which only they can use.
    ///
    /// Start the new process while the old one runs. It gets the old one's listening sockets, with the connections that wait
    /// there. Once it serves, the old one drains as after a signal, and returns. If the new one fails before that, the old
    /// one goes on. An address that the old one did not listen on is bound, and one that the new one does not name is
    /// closed.
    ///
    /// ```no_run
    /// # use ringloop::server::{Connection, Handler, Server};
    /// # struct Echo;
    /// # impl Handler for Echo {
    /// #     fn data(&mut self, connection: &mut Connection<'_>, bytes: &[u8]) -> std::io::Result<()> {
    /// #         connection.write(bytes)
    /// #     }
    /// # }
    /// # fn main() -> std::io::Result<()> {
    /// Server::new("0.0.0.0:7000").restart_path("/run/echo/restart.sock").serve(|| Echo)
    /// # }
    /// ```
    pub fn restart_path(mut self, path: impl Into<PathBuf>) -> Self {
        self.options.restart_path = Some(path.into());
        self
    }

    /// Sets the number of workers.
    pub fn workers(mut self, workers: usize) -> Self {
        self.options.workers = workers;
        self
    }

    /// Sets how the workers are configured.
    pub fn pool_config(mut self, config: PoolConfig) -> Self {
        self.options.pool = config;
        self
    }

    /// Sets whether each worker is bound to one CPU, see [`PoolConfig::pin`]. The default is false. A later call of
    /// [`pool_config`](Self::pool_config) sets this, too.
    ///
    /// ```
    /// # use ringloop::server::{Connection, Handler, Server};
    /// # struct Echo;
    /// # impl Handler for Echo {
    /// #     fn data(&mut self, connection: &mut Connection<'_>, bytes: &[u8]) -> std::io::Result<()> {
    /// #         connection.write(bytes)
    /// #     }
    /// # }
    /// // On a machine of its own.
    /// let server = Server::new("127.0.0.1:0").pin(true).start(|| Echo)?;
    /// # server.shutdown(std::time::Duration::ZERO);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn pin(mut self, pin: bool) -> Self {
        self.options.pool.pin = pin;
        self
    }

    /// Sets how many connections may wait in the kernel, per worker.
    pub fn backlog(mut self, backlog: u32) -> Self {
        self.options.binding.tcp.backlog = backlog;
        self
    }

    /// Sets whether other programs with the same option may listen on this address and share its connections
    /// (`SO_REUSEPORT`), and the kernel divides them. By default, an address in use is an error. To restart a program, use
    /// [`restart_path`](Self::restart_path) instead.
    ///
    /// ```
    /// # use ringloop::server::{Connection, Handler, Server};
    /// # struct Echo;
    /// # impl Handler for Echo {
    /// #     fn data(&mut self, connection: &mut Connection<'_>, bytes: &[u8]) -> std::io::Result<()> {
    /// #         connection.write(bytes)
    /// #     }
    /// # }
    /// let first = Server::new("127.0.0.1:0").reuse_port(true).start(|| Echo)?;
    /// // In another process, which shares the address:
    /// let second = Server::new(first.local_addr().to_string()).reuse_port(true).start(|| Echo)?;
    /// assert_eq!(first.local_addr(), second.local_addr());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn reuse_port(mut self, reuse_port: bool) -> Self {
        self.options.binding.tcp.reuse_port = reuse_port;
        self
    }

    /// Sets whether small writes are sent at once (`TCP_NODELAY`). The default is true.
    pub fn nodelay(mut self, nodelay: bool) -> Self {
        self.options.nodelay = nodelay;
        self
    }

    /// Sets the maximum number of connections served at the same time, over all workers. Further ones wait.
    /// A connection that a handler has closed counts until it has ended, which may take 2 s ([`Connection::close`]).
    pub fn max_connections(mut self, max_connections: usize) -> Self {
        self.options.max_connections = max_connections;
        self
    }

    /// Sets how long a connection may be idle, with no byte in either direction, before [`Handler::timeout`] is called,
    /// or the future of a function is dropped. The default is 5 minutes, which is longer than load balancers usually keep
    /// an idle connection. `None` is no limit: then clients that have gone without a word stay for ever.
    ///
    /// The limit also applies to a function that works for longer than this while its connection is idle. If the client
    /// resets the connection, or it fails, a function has two seconds left, or the limit if that is shorter, before its
    /// future is dropped. It may end by itself, see [`Client::closed`]. What must be completed in any case belongs into a
    /// task of its own. Without a limit, this does not happen either.
    ///
    /// ```
    /// # use ringloop::server::{Connection, Handler, Server};
    /// # struct Echo;
    /// # impl Handler for Echo {
    /// #     fn data(&mut self, connection: &mut Connection<'_>, bytes: &[u8]) -> std::io::Result<()> {
    /// #         connection.write(bytes)
    /// #     }
    /// # }
    /// use std::time::Duration;
    ///
    /// let strict = Server::new("127.0.0.1:0").idle_timeout(Duration::from_secs(20)).start(|| Echo)?;
    /// let patient = Server::new("127.0.0.1:0").idle_timeout(None).start(|| Echo)?;
    /// # drop((strict, patient));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn idle_timeout(mut self, idle_timeout: impl Into<Option<Duration>>) -> Self {
        self.options.idle_timeout = idle_timeout.into();
        self
    }

    /// Sets how long [`serve`](Server::serve) lets connections end after SIGINT or SIGTERM before it cuts them off. The
    /// default is 5 seconds, well before container runtimes kill the process (`docker stop` after 10 seconds,
    /// Kubernetes after 30).
    pub fn drain_timeout(mut self, drain_timeout: Duration) -> Self {
        self.options.drain_timeout = drain_timeout;
        self
    }
}
