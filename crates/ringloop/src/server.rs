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
mod running;
mod service;
mod wire;

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use async_channel as channel;
use async_lock::Semaphore;

use crate::drain::Listener;
use crate::net::stream::HasCore;
use crate::net::{TcpListenerOptions, TcpStream};
use crate::pool::{self, Pool, PoolConfig};
use crate::sealed::INTERNAL;
use crate::shared::Shared;
use crate::task::Role;
#[cfg(feature = "tls")]
use crate::tls::{TlsAcceptor, TlsStream};
use accepting::{Accepting, Worker, accept};
use conversation::{Conversation, PanicCounter};
use counters::WorkerCounters;
use handover::Restart;
use listeners::{Listening, Place, open};
use service::Stop;
use wire::Wire;

pub use client::Client;
pub use counters::Counters;
pub use drain::Draining;
pub use end_signals::{EndSignal, EndSignals};
pub use handler::{Connection, Handler};
pub use listeners::inherited_listeners;
pub use mailbox::ConnectionHandle;
pub use running::Running;
pub use service::Service;

/// How long a connection may be idle, by default. Common load balancers close idle connections after 1 to 4 minutes. They
/// must do so first: if they sent a request just when the server closed the connection, it would fail.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5 * 60);

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
    listener: TcpListenerOptions,
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
        Self::of(vec![Place::Address(address.into())])
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
        let place = |listener| Place::Socket {
            listener: Arc::new(listener),
            is_shared: true,
        };
        Self::of(listeners.into_iter().map(place).collect())
    }

    fn of(places: Vec<Place>) -> Self {
        let options = Options {
            places,
            workers: pool::default_workers(),
            pool: PoolConfig::default(),
            listener: TcpListenerOptions::default(),
            nodelay: true,
            max_connections: usize::MAX,
            idle_timeout: Some(IDLE_TIMEOUT),
            drain_timeout: DRAIN_TIMEOUT,
            restart_path: None,
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
        self.options.listener.backlog = backlog;
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
        let pool = self.new_pool()?;
        Ok(Running::new(self.start_on(&pool, make_handler)?, pool))
    }

    /// Starts the server as [`start`](Self::start) does, on the workers of a pool, perhaps beside other servers. The server's
    /// own settings of workers and of the pool are not used.
    ///
    /// # Errors
    /// See [`start`](Self::start).
    pub fn start_on<M, H>(self, pool: &Pool, make_handler: M) -> io::Result<Service>
    where
        M: Fn() -> H + Clone + Send + 'static,
        H: Handler,
    {
        self.start_each_on(pool, move |_| make_handler.clone())
    }

    /// Starts the server as [`start_on`](Self::start_on) does, with state for each worker: `make` is called once in each
    /// worker's thread, with its number, and returns what creates a handler for each connection there. What the handlers of
    /// a worker share need not be `Send`. If `make` panics, that worker serves no connection of this server.
    ///
    /// ```
    /// use ringloop::server::{Connection, Handler, Server};
    /// use ringloop::{Pool, PoolConfig};
    /// use std::{cell::Cell, io, rc::Rc};
    ///
    /// struct Counting(Rc<Cell<u64>>);
    ///
    /// impl Handler for Counting {
    ///     fn data(&mut self, connection: &mut Connection<'_>, _: &[u8]) -> io::Result<()> {
    ///         self.0.set(self.0.get() + 1);
    ///         connection.write(format!("{}\n", self.0.get()).as_bytes())
    ///     }
    /// }
    ///
    /// let pool = Pool::new(2, &PoolConfig::default())?;
    /// let server = Server::new("127.0.0.1:0").start_each_on(&pool, |_worker| {
    ///     let count = Rc::new(Cell::new(0));
    ///     move || Counting(Rc::clone(&count))
    /// })?;
    /// # drop(server);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`start`](Self::start).
    pub fn start_each_on<M, N, H>(self, pool: &Pool, make: M) -> io::Result<Service>
    where
        M: Fn(usize) -> N + Clone + Send + 'static,
        N: Fn() -> H + 'static,
        H: Handler,
    {
        self.start_handlers(pool, None, make)
    }

    fn start_handlers<M, N, H>(
        self,
        pool: &Pool,
        taken: Option<Vec<Listening>>,
        make: M,
    ) -> io::Result<Service>
    where
        M: Fn(usize) -> N + Clone + Send + 'static,
        N: Fn() -> H + 'static,
        H: Handler,
    {
        let idle_timeout = self.options.idle_timeout;
        self.start_workers(pool, taken, None, move |worker: Worker| {
            let make_handler = Rc::new(make(worker.number));
            move |peer| {
                let make_handler = Rc::clone(&make_handler);
                let Worker {
                    counters, drain, ..
                } = worker.clone();
                move |wire| {
                    let draining = Listener::new(drain);
                    Conversation::new(make_handler(), wire, peer, idle_timeout, draining, counters)
                }
            }
        })
    }

    fn new_pool(&self) -> io::Result<Pool> {
        Pool::new(self.options.workers, &self.options.pool)
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
        self.serve_until_told(|server, pool, taken| {
            server.start_handlers(pool, taken, move |_| make_handler.clone())
        })
    }

    fn serve_until_told(
        self,
        start: impl FnOnce(Self, &Pool, Option<Vec<Listening>>) -> io::Result<Service>,
    ) -> io::Result<()> {
        let signals = EndSignals::listen()?;
        let drain_timeout = self.options.drain_timeout;
        let path = self.options.restart_path.clone();
        let (restart, taken) = path.map(Restart::begin).transpose()?.unzip();
        let pool = self.new_pool()?;
        let service = start(self, &pool, taken)?;
        Running::new(service, pool).run(signals, drain_timeout, restart)
    }

    /// Starts a server that serves each connection with an async function or closure. It gets the stream: a
    /// [`TcpStream`], or after `tls` a `TlsStream`. A host name is resolved as by [`start`](Self::start).
    ///
    /// ```
    /// use ringloop::server::Server;
    ///
    /// # fn main() -> std::io::Result<()> {
    /// let server = Server::new("127.0.0.1:0").start_with(|mut stream, client| async move {
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
        let pool = self.new_pool()?;
        Ok(Running::new(self.start_with_on(&pool, serve)?, pool))
    }

    /// Starts the server as [`start_with`](Self::start_with) does, on the workers of a pool, perhaps beside other servers.
    /// The server's own settings of workers and of the pool are not used.
    ///
    /// # Errors
    /// See [`start`](Self::start).
    pub fn start_with_on<M, F>(self, pool: &Pool, serve: M) -> io::Result<Service>
    where
        M: Fn(S, Client) -> F + Clone + Send + 'static,
        F: Future<Output = io::Result<()>> + 'static,
    {
        self.start_each_with_on(pool, move |_| serve.clone())
    }

    /// Starts the server as [`start_with_on`](Self::start_with_on) does, with state for each worker: `make` is called once in
    /// each worker's thread, with its number, and returns the function that serves each connection there. What it captures
    /// need not be `Send`.
    ///
    /// # Errors
    /// See [`start`](Self::start).
    pub fn start_each_with_on<M, N, F>(self, pool: &Pool, make: M) -> io::Result<Service>
    where
        M: Fn(usize) -> N + Clone + Send + 'static,
        N: Fn(S, Client) -> F + 'static,
        F: Future<Output = io::Result<()>> + 'static,
    {
        self.start_functions(pool, None, make)
    }

    fn start_functions<M, N, F>(
        self,
        pool: &Pool,
        taken: Option<Vec<Listening>>,
        make: M,
    ) -> io::Result<Service>
    where
        M: Fn(usize) -> N + Clone + Send + 'static,
        N: Fn(S, Client) -> F + 'static,
        F: Future<Output = io::Result<()>> + 'static,
    {
        let idle_timeout = self.options.idle_timeout;
        self.start_workers(pool, taken, idle_timeout, move |worker: Worker| {
            let serve = Rc::new(make(worker.number));
            move |address| {
                let serve = Rc::clone(&serve);
                let drain = Rc::clone(&worker.drain);
                move |stream: S| {
                    let client = Client::of(address, drain, stream.socket(INTERNAL).core());
                    serve(stream, client)
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
        self.serve_until_told(|server, pool, taken| {
            server.start_functions(pool, taken, move |_| serve.clone())
        })
    }

    /// Starts the workers. Each calls `make` once. The result is called with the address of each connection, and what
    /// that returns is called with the connection itself, and returns the future that serves it.
    ///
    /// `idle_timeout` is for futures that do not track idleness themselves. `taken` are the sockets of the process that ran
    /// before; `None` if those of this one will not be handed over.
    fn start_workers<M, G, N, F>(
        self,
        pool: &Pool,
        taken: Option<Vec<Listening>>,
        idle_timeout: Option<Duration>,
        make: M,
    ) -> io::Result<Service>
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
                "idle_timeout is 0; use a longer time, or None for no limit",
            ));
        }
        if self.options.places.is_empty() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "there is nothing to listen on; pass an address or a listening socket",
            ));
        }
        let workers = pool.workers();
        let may_be_handed_over = taken.is_some();
        let listeners = open(
            &self.options.places,
            workers,
            &self.options.listener,
            taken.unwrap_or_default(),
        )?;
        let mut addresses = Vec::new();
        let mut sockets = Vec::new();
        for listening in listeners.iter().flatten() {
            let address = listening.socket.local_addr()?;
            if !addresses.contains(&address) {
                addresses.push(address);
            }
            if may_be_handed_over && !listening.is_copy {
                sockets.push(Listening {
                    socket: listening.socket.try_clone()?,
                    ..*listening
                });
            }
        }
        let permits = Arc::new(Semaphore::new(self.options.max_connections));
        let has_successor = Arc::new(AtomicBool::new(false));
        let (stop, stopped) = channel::bounded::<Infallible>(1);
        let mut counters = Vec::with_capacity(workers);
        for (number, listeners) in listeners.into_iter().enumerate() {
            let own_counters = Arc::new(WorkerCounters::default());
            counters.push(Arc::clone(&own_counters));
            let accepting = Accepting {
                permits: Arc::clone(&permits),
                settings: self.settings.clone(),
                nodelay: self.options.nodelay,
                idle_timeout,
                has_successor: Arc::clone(&has_successor),
            };
            let (make, stopped) = (make.clone(), stopped.clone());
            let begin = move || async move {
                let _guard = PanicCounter(&own_counters);
                let worker = Worker {
                    number,
                    counters: Arc::clone(&own_counters),
                    drain: Rc::default(),
                };
                let begin = Rc::new(make(worker.clone()));
                let accepting = Rc::new(accepting);
                for listening in listeners {
                    let (accepting, begin) = (Rc::clone(&accepting), Rc::clone(&begin));
                    let accepting =
                        accept(listening, accepting, begin, worker.clone(), stopped.clone());
                    drop(Shared::current().spawn_as(Role::Connection, accepting));
                }
            };
            drop(pool.handle(number).spawn_as(Role::Connection, begin));
        }
        Ok(Service {
            addresses,
            stop: Stop::new(stop),
            counters,
            sockets,
            has_successor,
        })
    }
}
