//! The socket pool: a listener on each worker, and a task for each connection.
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

mod conversation;
mod drain;
mod idle;
mod wire;

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use async_channel as channel;
use async_lock::Semaphore;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals;
use signal_hook::low_level::signal_name;
use socket2::Socket;

use crate::net::stream::HasCore;
use crate::net::{TcpListener, TcpListenerOptions, TcpStream};
use crate::pool::{self, Pool, PoolConfig};
use crate::shared::Shared;
use crate::source::Recheck;
use crate::time::sleep;
#[cfg(feature = "tls")]
use crate::tls::{TlsAcceptor, TlsStream};
use crate::trace;
use conversation::{Conversation, Ending, Handshake, Served};
use drain::{Drain, Listener};
use wire::{Link, Wire};

pub use drain::Draining;

/// How long to wait when the process has no descriptor or no memory for a connection: first, and at most.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(1));

/// How long connections may take to end, unless it is said otherwise.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// What happens on a connection. Each connection has a handler of its own, in one thread.
///
/// An error that a method returns closes the connection, and so does a panic; no other connection notices.
///
/// ```
/// use ringloop::server::{Connection, Handler, Server};
/// use std::io::{self, Read, Write};
///
/// /// Answers each line with its number.
/// #[derive(Default)]
/// struct Numbers {
///     lines: usize,
/// }
///
/// impl Handler for Numbers {
///     fn connected(&mut self, connection: &mut Connection<'_>) -> io::Result<()> {
///         connection.write(b"welcome\n")
///     }
///
///     fn data(&mut self, connection: &mut Connection<'_>, bytes: &[u8]) -> io::Result<()> {
///         for _ in bytes.iter().filter(|byte| **byte == b'\n') {
///             self.lines += 1;
///             connection.write(format!("{}\n", self.lines).as_bytes())?;
///         }
///         if self.lines >= 2 {
///             connection.close();
///         }
///         Ok(())
///     }
/// }
///
/// let server = Server::bind("127.0.0.1:0").start(Numbers::default)?;
/// let mut client = std::net::TcpStream::connect(server.local_addr())?;
/// client.write_all(b"one\ntwo\n")?;
/// let mut answer = String::new();
/// client.read_to_string(&mut answer)?;
/// assert_eq!(answer, "welcome\n1\n2\n");
/// # Ok::<(), std::io::Error>(())
/// ```
pub trait Handler: 'static {
    /// The connection has been made.
    fn connected(&mut self, connection: &mut Connection<'_>) -> io::Result<()> {
        let _ = connection;
        Ok(())
    }

    /// Bytes have come. They lie in a buffer that all connections of the thread share: what is kept must be copied.
    fn data(&mut self, connection: &mut Connection<'_>, bytes: &[u8]) -> io::Result<()>;

    /// No byte has moved, in either direction, for the server's idle timeout. Closes the connection, unless it is written
    /// otherwise; then the time begins anew. What a peer that reads nothing has not taken by then is given up.
    fn timeout(&mut self, connection: &mut Connection<'_>) -> io::Result<()> {
        connection.close();
        Ok(())
    }

    /// The server is about to end, and nothing that has come is waiting to be handled. Closes the connection, once all that
    /// was written is sent, unless it is written otherwise: a handler in the middle of something says so to its peer, or
    /// remembers to close the connection when it is done. Who is not done by the server's deadline is cut off.
    fn draining(&mut self, connection: &mut Connection<'_>) -> io::Result<()> {
        connection.close();
        Ok(())
    }

    /// The connection failed, or a method of this handler did. `closed` follows.
    fn error(&mut self, error: &io::Error) {
        let _ = error;
    }

    /// The connection is over.
    fn closed(&mut self) {}
}

/// A connection as its [`Handler`] has it.
#[derive(Debug)]
pub struct Connection<'a> {
    link: Link<'a>,
    is_closing: &'a mut bool,
    peer: SocketAddr,
}

impl Connection<'_> {
    /// Writes bytes: directly, as far as there is room; the rest is kept, and nothing more is read until it is sent.
    ///
    /// # Errors
    /// Those of send(2).
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.link {
            Link::Plain { stream, unsent } => unsent.write(stream, bytes),
            #[cfg(feature = "tls")]
            Link::Tls(stream) => stream.write_or_queue(bytes),
        }
    }

    /// Closes the connection once everything is sent; over TLS, with the word that nothing will follow.
    pub fn close(&mut self) {
        *self.is_closing = true;
    }

    /// The address of the other end.
    pub fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    /// The TCP connection itself, for its options.
    pub fn stream(&self) -> &TcpStream {
        match &self.link {
            Link::Plain { stream, .. } => stream,
            #[cfg(feature = "tls")]
            Link::Tls(stream) => stream.stream(),
        }
    }

    /// What was agreed on in TLS; none on a server without.
    #[cfg(feature = "tls")]
    pub fn tls(&self) -> Option<&TlsStream> {
        match &self.link {
            Link::Plain { .. } => None,
            Link::Tls(stream) => Some(stream),
        }
    }
}

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

/// What a server's connections are: a [`TcpStream`], or, after `Server::tls`, a `TlsStream`.
pub trait Transport: Wire {}

impl Transport for TcpStream {}

#[cfg(feature = "tls")]
impl Transport for TlsStream {}

/// What a server has done since it was started, all workers together.
///
/// ```
/// use std::io::{Read, Write};
///
/// # use ringloop::server::{Connection, Handler, Server};
/// # struct Echo;
/// # impl Handler for Echo {
/// #     fn data(&mut self, connection: &mut Connection<'_>, bytes: &[u8]) -> std::io::Result<()> {
/// #         connection.write(bytes)
/// #     }
/// # }
/// let server = Server::bind("127.0.0.1:0").start(|| Echo)?;
/// let mut client = std::net::TcpStream::connect(server.local_addr())?;
/// client.write_all(b"x")?;
/// client.read_exact(&mut [0])?;
/// let counters = server.counters();
/// assert_eq!((counters.accepted, counters.live, counters.errors), (1, 1, 0));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Connections that were accepted.
    pub accepted: u64,
    /// Those that are alive.
    pub live: u64,
    /// Those that ended in an error.
    pub errors: u64,
    /// Those that ended in a panic of their handler.
    pub panics: u64,
    /// Times that a connection was idle for too long.
    pub timeouts: u64,
    /// Times that a connection could not be accepted.
    pub accept_errors: u64,
    /// Connections whose TLS handshake failed or took too long. They count as nothing else, and no handler hears of them.
    pub handshake_errors: u64,
}

/// A worker's part of the counters. Only the worker writes, so that counting needs no atomic addition.
#[derive(Debug, Default)]
#[repr(align(128))]
struct WorkerCounters {
    accepted: AtomicU64,
    ended: AtomicU64,
    errors: AtomicU64,
    panics: AtomicU64,
    timeouts: AtomicU64,
    accept_errors: AtomicU64,
    handshake_errors: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

/// A server that is to be started.
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

/// What is alike for servers of any kind of connection.
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
    /// A server for an address, `host:port`, with one worker per usable CPU.
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

    /// Serves TLS: with a rustls `ServerConfig`, or with a [`TlsAcceptor`] that has a handshake timeout other than 10 seconds.
    ///
    /// Handlers and functions see connections after their handshakes only.
    #[cfg(feature = "tls")]
    pub fn tls(self, acceptor: impl Into<TlsAcceptor>) -> Server<TlsStream> {
        Server {
            options: self.options,
            settings: acceptor.into(),
        }
    }
}

impl<S: Transport> Server<S> {
    /// How many workers there are.
    pub fn workers(mut self, workers: usize) -> Self {
        self.options.workers = workers;
        self
    }

    /// How the workers are set up.
    pub fn pool(mut self, config: PoolConfig) -> Self {
        self.options.pool = config;
        self
    }

    /// How many connections wait in the kernel, per worker.
    pub fn backlog(mut self, backlog: u32) -> Self {
        self.options.listener.backlog = backlog;
        self
    }

    /// Whether other programs that ask for it too may listen on the same address and get a share of its connections
    /// (`SO_REUSEPORT`), as for a restart without a gap. By default an address in use is an error.
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

    /// Whether small writes go out at once (`TCP_NODELAY`). They do by default.
    pub fn nodelay(mut self, nodelay: bool) -> Self {
        self.options.nodelay = nodelay;
        self
    }

    /// The most connections that are served at a time, all workers together. Further ones wait for their turn.
    pub fn max_connections(mut self, max_connections: usize) -> Self {
        self.options.max_connections = max_connections;
        self
    }

    /// After how long without a byte in either direction [`Handler::timeout`] is called, and the future of a function is
    /// dropped. Never by default.
    ///
    /// A function that computes for longer than this before it answers is cut off as well, if its connection rests meanwhile.
    pub fn idle_timeout(mut self, idle_timeout: Duration) -> Self {
        self.options.idle_timeout = Some(idle_timeout);
        self
    }

    /// How long [`serve`](Server::serve) lets connections end after SIGINT or SIGTERM, before it cuts them off. 5 seconds by
    /// default, which leaves time before container runtimes kill (`docker stop` after 10 seconds, Kubernetes after 30).
    pub fn drain_timeout(mut self, drain_timeout: Duration) -> Self {
        self.options.drain_timeout = drain_timeout;
        self
    }

    /// Starts the server. `make_handler` makes a handler for each connection.
    ///
    /// # Errors
    /// Those of [`Pool::new`] and of binding; `InvalidInput` for a limit of 0 connections or an idle timeout of 0.
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

    /// Starts the server and blocks until SIGINT (Ctrl-C) or SIGTERM. Then nobody is accepted any more,
    /// [`Handler::draining`] is called for each connection, and after the [drain timeout](Server::drain_timeout) those that
    /// are left are cut off. A second signal ends the process at once.
    ///
    /// # Errors
    /// As [`start`](Server::start).
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

    /// Starts a server whose connections are each served by a future, which an async function or closure makes of the stream:
    /// a [`TcpStream`], or after `tls` a `TlsStream`.
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
    /// As [`start`](Server::start).
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
                    let connection = stream.socket().core().recheck();
                    serve(
                        stream,
                        Client {
                            address,
                            drain,
                            connection,
                        },
                    )
                }
            }
        })
    }

    /// As [`serve`](Server::serve), with functions instead of handlers: they hear of draining by
    /// [`Client::draining`].
    ///
    /// # Errors
    /// As [`start`](Server::start).
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

    /// `make` makes, in each worker, what makes of a connection's address what makes of the connection its future.
    /// `idle_timeout` is for futures that do not look after it themselves.
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
                "max_connections is 0: nobody could connect",
            ));
        }
        if self.options.idle_timeout == Some(Duration::ZERO) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "idle_timeout is 0: every connection would be idle at once; without the call none ever is",
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
            drop(pool.spawn_on(worker, move || async move {
                let worker = Worker {
                    counters: own_counters,
                    drain: Rc::default(),
                };
                // It does not block: it was made for this.
                let listener = TcpListener::from(Socket::from(listener));
                let begin = make(worker.clone());
                let accepting = accept(listener, accepting, begin, &worker);
                until_closed(&stopped, accepting).await;
                worker.drain.begin();
            }));
        }
        Ok(Running {
            pool,
            address,
            stop,
            counters,
        })
    }
}

/// What the connections of a worker share.
#[derive(Clone)]
struct Worker {
    counters: Arc<WorkerCounters>,
    drain: Rc<Drain>,
}

/// How connections are taken.
struct Accepting<T> {
    permits: Arc<Semaphore>,
    settings: T,
    nodelay: bool,
    idle_timeout: Option<Duration>,
}

/// Runs a future until a channel is closed; then it is dropped.
async fn until_closed(channel: &channel::Receiver<Infallible>, future: impl Future<Output = ()>) {
    let mut future = pin!(future);
    let mut closed = pin!(channel.recv());
    std::future::poll_fn(|context| {
        if closed.as_mut().poll(context).is_ready() {
            return Poll::Ready(());
        }
        future.as_mut().poll(context)
    })
    .await;
}

/// A listener for each worker, all on one address.
fn bind_each(
    address: &str,
    workers: usize,
    options: &TcpListenerOptions,
) -> io::Result<Vec<std::net::TcpListener>> {
    let mut last_error = io::Error::new(
        io::ErrorKind::NotFound,
        format!("{address:?} has no address"),
    );
    for address in address.to_socket_addrs()? {
        match TcpListener::bind_several(address, workers, options) {
            Ok(listeners) => return Ok(listeners),
            Err(error) => last_error = error,
        }
    }
    Err(last_error)
}

/// Accepts connections for as long as the future lives.
async fn accept<S, G, N, F>(
    listener: TcpListener,
    accepting: Accepting<S::Settings>,
    begin: G,
    worker: &Worker,
) where
    S: Transport,
    G: Fn(SocketAddr) -> N,
    N: FnOnce(S) -> F + 'static,
    F: Future<Output = io::Result<()>> + 'static,
{
    let Accepting {
        permits,
        settings,
        nodelay,
        idle_timeout,
    } = accepting;
    let counters = &worker.counters;
    let handshake_limit = S::handshake_limit(&settings);
    let mut back_off = BACK_OFF.0;
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                back_off = BACK_OFF.0;
                // Not before: a worker that waits for a connection would keep others from serving theirs.
                let permit = permits.acquire_arc().await;
                count(&counters.accepted);
                let ending = Ending {
                    counters: Arc::clone(counters),
                    _permit: permit,
                };
                // A peer may be gone already; serving will tell.
                let _ = stream.set_nodelay(nodelay);
                let Ok(wire) = S::new(stream, &settings) else {
                    count(&counters.handshake_errors);
                    continue;
                };
                let handshake =
                    handshake_limit.map(|limit| Handshake::new(limit, Rc::clone(&worker.drain)));
                let served = Served::new(wire, begin(peer), handshake, idle_timeout, ending);
                drop(Shared::current().spawn_watched(trace::connection(peer, served)));
            }
            // By a rule of the kernel's, for this connection.
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
                count(&counters.accept_errors);
            }
            Err(error) => {
                // No descriptor or no memory: it can only help to wait for connections to end.
                count(&counters.accept_errors);
                trace::cannot_accept(&error, back_off);
                sleep(back_off).await;
                back_off = (back_off * 2).min(BACK_OFF.1);
            }
        }
    }
}

/// A signal that asks a process to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signal(i32);

impl Signal {
    /// Its number, as in signal(7).
    pub fn number(self) -> i32 {
        self.0
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(signal_name(self.0).unwrap_or("an unknown signal"))
    }
}

/// Listens to the signals that ask a process to end, SIGINT (Ctrl-C) and SIGTERM, from when it is made: a program that says
/// that it is ready should listen before. A second such signal ends the process at once, and so does the first after this was
/// dropped.
///
/// ```no_run
/// use ringloop::server::{Connection, EndSignals, Handler, Server};
/// use std::{io, time::Duration};
///
/// # struct Echo;
/// # impl Handler for Echo {
/// #     fn data(&mut self, connection: &mut Connection<'_>, bytes: &[u8]) -> io::Result<()> {
/// #         connection.write(bytes)
/// #     }
/// # }
/// # fn main() -> io::Result<()> {
/// let signals = EndSignals::listen()?;
/// let server = Server::bind("127.0.0.1:7000").start(|| Echo)?;
/// println!("ready");
/// let signal = signals.wait();
/// println!("{signal}: ending");
/// server.shutdown(Duration::from_secs(5));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct EndSignals {
    signals: Signals,
    /// Whether the next signal ends the process.
    asked: Arc<AtomicBool>,
    has_come: bool,
}

impl EndSignals {
    /// Listens from now on, until the process ends.
    ///
    /// # Errors
    /// Those of sigaction(2).
    pub fn listen() -> io::Result<Self> {
        let signals = Signals::new([SIGINT, SIGTERM])?;
        let asked = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // In this order: the first signal finds `asked` unset.
            flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&asked))?;
            flag::register(signal, Arc::clone(&asked))?;
        }
        Ok(Self {
            signals,
            asked,
            has_come: false,
        })
    }

    /// Blocks until the first such signal, which may have come already.
    pub fn wait(mut self) -> Signal {
        let signal = self.signals.forever().next().unwrap_or(SIGTERM);
        self.has_come = true;
        Signal(signal)
    }
}

impl Drop for EndSignals {
    /// Where nobody has waited, as for a server that could not start, the next signal ends the process.
    fn drop(&mut self) {
        // The handler of one that has come may still be on its way to look.
        if !self.has_come {
            self.asked.store(true, Ordering::Relaxed);
        }
    }
}

/// A server that runs.
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
    /// Closed when nothing is to be accepted any more.
    stop: channel::Sender<Infallible>,
    counters: Vec<Arc<WorkerCounters>>,
}

impl Running {
    /// The address that it listens on.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// The workers, for tasks of the program's own.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// What has happened so far.
    pub fn counters(&self) -> Counters {
        let sum = |counter: fn(&WorkerCounters) -> &AtomicU64| {
            self.counters
                .iter()
                .map(|counters| counter(counters).load(Ordering::Relaxed))
                .sum::<u64>()
        };
        // In this order: a connection that ends meanwhile is not counted as one that never was.
        let ended = sum(|counters| &counters.ended);
        let accepted = sum(|counters| &counters.accepted);
        Counters {
            accepted,
            live: accepted.saturating_sub(ended),
            errors: sum(|counters| &counters.errors),
            panics: sum(|counters| &counters.panics),
            timeouts: sum(|counters| &counters.timeouts),
            accept_errors: sum(|counters| &counters.accept_errors),
            handshake_errors: sum(|counters| &counters.handshake_errors),
        }
    }

    /// Blocks until the process is asked to end: [`EndSignals`], from now on.
    ///
    /// # Errors
    /// Those of sigaction(2).
    pub fn wait_for_signal(&self) -> io::Result<Signal> {
        Ok(EndSignals::listen()?.wait())
    }

    /// Stops listening, asks the connections to end ([`Handler::draining`], [`Client::draining`]), gives them `patience` to
    /// do so, and cuts off those that have not.
    ///
    /// Connections that the kernel has made and nobody has accepted are reset.
    pub fn shutdown(self, patience: Duration) {
        self.stop.close();
        self.pool.shutdown(patience);
    }

    fn run(self, signals: EndSignals, patience: Duration) {
        signals.wait();
        self.shutdown(patience);
    }
}
