//! A TCP server: a listener on each worker of a pool, and a task for each connection.
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
//! let server = Server::bind("127.0.0.1:0").workers(2).start(|| Echo)?;
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
mod idle;
mod running;
mod wire;

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use async_channel as channel;
use async_lock::Semaphore;
use socket2::Socket;

use crate::drain::Listener;
use crate::net::stream::HasCore;
use crate::net::{TcpListener, TcpListenerOptions, TcpStream};
use crate::pool::{self, Pool, PoolConfig};
use crate::sealed::INTERNAL;
use crate::task::Role;
#[cfg(feature = "tls")]
use crate::tls::{TlsAcceptor, TlsStream};
use accepting::{Accepting, Worker, accept, bind_each};
use conversation::Conversation;
use counters::WorkerCounters;
use wire::Wire;

pub use client::Client;
pub use counters::Counters;
pub use drain::Draining;
pub use end_signals::{EndSignals, Signal};
pub use handler::{Connection, Handler};
pub use running::Running;

/// How long connections may take to end, by default.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// The type of a server's connections: a [`TcpStream`], or, after `Server::tls`, a `TlsStream`. The trait is sealed: no
/// other type can implement it.
pub trait Transport: Wire {}

impl Transport for TcpStream {}

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
/// let server = Server::bind("127.0.0.1:0")
///     .workers(2)
///     .pool(config)
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
    address: String,
    workers: usize,
    pool: PoolConfig,
    listener: TcpListenerOptions,
    nodelay: bool,
    max_connections: usize,
    idle_timeout: Option<Duration>,
    drain_timeout: Duration,
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
    pub fn bind(address: impl Into<String>) -> Self {
        let options = Options {
            address: address.into(),
            workers: pool::default_workers(),
            pool: PoolConfig::default(),
            listener: TcpListenerOptions::default(),
            nodelay: true,
            max_connections: usize::MAX,
            idle_timeout: None,
            drain_timeout: DRAIN_TIMEOUT,
        };
        Self {
            options,
            settings: (),
        }
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

impl<S: Transport> Server<S> {
    /// Sets the number of workers.
    pub fn workers(mut self, workers: usize) -> Self {
        self.options.workers = workers;
        self
    }

    /// Sets how the workers are configured.
    pub fn pool(mut self, config: PoolConfig) -> Self {
        self.options.pool = config;
        self
    }

    /// Sets whether each worker is bound to one CPU, see [`PoolConfig::pin`]. The default is false. A later call of
    /// [`pool`](Self::pool) sets this, too.
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
    /// let server = Server::bind("127.0.0.1:0").pin(true).start(|| Echo)?;
    /// # server.shutdown(std::time::Duration::ZERO);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn pin(mut self, pin: bool) -> Self {
        self.options.pool.pin = pin;
        self
    }

    /// Sets how many connections may wait in the kernel, per worker.
    pub fn backlog(mut self, backlog: u32) -> Self {
        self.options.listener.backlog = backlog;
        self
    }

    /// Sets whether other programs with the same option may listen on this address and share its connections
    /// (`SO_REUSEPORT`), for example to restart without a gap. By default, an address in use is an error.
    ///
    /// ```
    /// # use ringloop::server::{Connection, Handler, Server};
    /// # struct Echo;
    /// # impl Handler for Echo {
    /// #     fn data(&mut self, connection: &mut Connection<'_>, bytes: &[u8]) -> std::io::Result<()> {
    /// #         connection.write(bytes)
    /// #     }
    /// # }
    /// let old = Server::bind("127.0.0.1:0").reuse_port(true).start(|| Echo)?;
    /// // In the new version of the program, which takes over:
    /// let new = Server::bind(old.local_addr().to_string()).reuse_port(true).start(|| Echo)?;
    /// assert_eq!(old.local_addr(), new.local_addr());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn reuse_port(mut self, reuse_port: bool) -> Self {
        self.options.listener.reuse_port = reuse_port;
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
    /// or the future of a function is dropped. There is no limit by default.
    ///
    /// The limit also applies to a function that computes for longer than this while its connection is idle.
    pub fn idle_timeout(mut self, idle_timeout: Duration) -> Self {
        self.options.idle_timeout = Some(idle_timeout);
        self
    }

    /// Sets how long [`serve`](Server::serve) lets connections end after SIGINT or SIGTERM before it cuts them off. The
    /// default is 5 seconds, well before container runtimes kill the process (`docker stop` after 10 seconds,
    /// Kubernetes after 30).
    pub fn drain_timeout(mut self, drain_timeout: Duration) -> Self {
        self.options.drain_timeout = drain_timeout;
        self
    }

    /// Starts the server. `make_handler` creates a handler for each connection.
    ///
    /// Binding resolves a host name with the system's resolver, which blocks the calling thread.
    ///
    /// # Errors
    /// Returns the errors of [`Pool::new`] and of binding, and `InvalidInput` for a limit of 0 connections or an idle
    /// timeout of 0.
    pub fn start<M, H>(self, make_handler: M) -> io::Result<Running>
    where
        M: Fn() -> H + Clone + Send + 'static,
        H: Handler,
    {
        let idle_timeout = self.options.idle_timeout;
        self.start_workers(None, move |worker: Worker| {
            let make_handler = Rc::new(make_handler.clone());
            move |peer| {
                let make_handler = Rc::clone(&make_handler);
                let Worker { counters, drain } = worker.clone();
                move |wire| {
                    let draining = Listener::new(drain);
                    Conversation::new(make_handler(), wire, peer, idle_timeout, draining, counters)
                }
            }
        })
    }

    /// Starts the server and blocks until SIGINT (Ctrl-C) or SIGTERM. It then stops accepting, calls
    /// [`Handler::draining`] for each connection, and cuts off those that are left after the [drain
    /// timeout](Server::drain_timeout). A second signal ends the process at once.
    ///
    /// # Errors
    /// See [`start`](Server::start).
    pub fn serve<M, H>(self, make_handler: M) -> io::Result<()>
    where
        M: Fn() -> H + Clone + Send + 'static,
        H: Handler,
    {
        let signals = EndSignals::listen()?;
        let drain_timeout = self.options.drain_timeout;
        self.start(make_handler)?.run(signals, drain_timeout);
        Ok(())
    }

    /// Starts a server that serves each connection with an async function or closure. It gets the stream: a
    /// [`TcpStream`], or after `tls` a `TlsStream`. A host name is resolved as by [`start`](Self::start).
    ///
    /// ```
    /// use ringloop::server::Server;
    ///
    /// # fn main() -> std::io::Result<()> {
    /// let server = Server::bind("127.0.0.1:0").start_with(|mut stream, client| async move {
    ///     let greeting = format!("hello {client}");
    ///     stream.write_all(greeting.as_bytes()).await.0
    /// })?;
    /// # drop(server);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`start`](Server::start).
    pub fn start_with<M, F>(self, serve: M) -> io::Result<Running>
    where
        M: Fn(S, Client) -> F + Clone + Send + 'static,
        F: Future<Output = io::Result<()>> + 'static,
    {
        let idle_timeout = self.options.idle_timeout;
        self.start_workers(idle_timeout, move |worker: Worker| {
            let serve = Rc::new(serve.clone());
            move |address| {
                let serve = Rc::clone(&serve);
                let drain = Rc::clone(&worker.drain);
                move |stream: S| {
                    let connection = stream.socket(INTERNAL).core().recheck();
                    serve(stream, Client::new(address, drain, connection))
                }
            }
        })
    }

    /// Like [`serve`](Server::serve), with functions instead of handlers. A function learns about draining from
    /// [`Client::draining`].
    ///
    /// # Errors
    /// See [`start`](Server::start).
    pub fn serve_with<M, F>(self, serve: M) -> io::Result<()>
    where
        M: Fn(S, Client) -> F + Clone + Send + 'static,
        F: Future<Output = io::Result<()>> + 'static,
    {
        let signals = EndSignals::listen()?;
        let drain_timeout = self.options.drain_timeout;
        self.start_with(serve)?.run(signals, drain_timeout);
        Ok(())
    }

    /// Starts the workers. Each calls `make` once. The result is called with the address of each connection, and what
    /// that returns is called with the connection itself, and returns the future that serves it.
    ///
    /// `idle_timeout` is for futures that do not track idleness themselves.
    fn start_workers<M, G, N, F>(
        self,
        idle_timeout: Option<Duration>,
        make: M,
    ) -> io::Result<Running>
    where
        M: Fn(Worker) -> G + Clone + Send + 'static,
        G: Fn(SocketAddr) -> N + 'static,
        N: FnOnce(S) -> F + 'static,
        F: Future<Output = io::Result<()>> + 'static,
    {
        if self.options.max_connections == 0 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "max_connections is 0; use at least 1",
            ));
        }
        if self.options.idle_timeout == Some(Duration::ZERO) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "idle_timeout is 0; use a longer time, or do not set it for no limit",
            ));
        }
        let listeners = bind_each(
            &self.options.address,
            self.options.workers,
            &self.options.listener,
        )?;
        let address = listeners[0].local_addr()?;
        let pool = Pool::new(self.options.workers, &self.options.pool)?;
        let permits = Arc::new(Semaphore::new(self.options.max_connections));
        let (stop, stopped) = channel::bounded::<Infallible>(1);
        let mut counters = Vec::with_capacity(self.options.workers);
        for (worker, listener) in listeners.into_iter().enumerate() {
            let own_counters = Arc::new(WorkerCounters::default());
            counters.push(Arc::clone(&own_counters));
            let accepting = Accepting {
                permits: Arc::clone(&permits),
                settings: self.settings.clone(),
                nodelay: self.options.nodelay,
                idle_timeout,
            };
            let (make, stopped) = (make.clone(), stopped.clone());
            let handle = pool.handle(worker);
            drop(handle.spawn_as(Role::Connection, move || async move {
                let worker = Worker {
                    counters: own_counters,
                    drain: Rc::default(),
                };
                // It is non-blocking, because it was created for this.
                let listener = TcpListener::from_socket(Socket::from(listener));
                let begin = make(worker.clone());
                accept(listener, accepting, begin, worker, stopped).await;
            }));
        }
        Ok(Running::new(pool, address, stop, counters))
    }
}
