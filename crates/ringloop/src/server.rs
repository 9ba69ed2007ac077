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

use std::fmt;
use std::future::Future;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use async_lock::{Semaphore, SemaphoreGuardArc};
use pin_project_lite::pin_project;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals;
use signal_hook::low_level::signal_name;

use crate::net::{TcpListener, TcpListenerOptions, TcpStream};
use crate::time::{sleep, sleep_until};
use crate::{JoinHandle, Pool, PoolConfig, clock, pool, spawn};

/// How long to wait when the process has no descriptor or no memory for a connection: first, and at most.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(1));

/// What happens on a connection. Each connection has a handler of its own, in one thread.
///
/// An error that a method returns closes the connection, and so does a panic; no other connection notices.
pub trait Handler: 'static {
    /// The connection has been made.
    fn connected(&mut self, connection: &mut Connection<'_>) -> io::Result<()> {
        let _ = connection;
        Ok(())
    }

    /// Bytes have come. They lie in a buffer that all connections of the thread share: what is kept must be copied.
    fn data(&mut self, connection: &mut Connection<'_>, bytes: &[u8]) -> io::Result<()>;

    /// Nothing has come for the server's idle timeout. Closes the connection, unless it is written otherwise; then the
    /// time begins anew.
    fn timeout(&mut self, connection: &mut Connection<'_>) -> io::Result<()> {
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
    stream: &'a TcpStream,
    unsent: &'a mut Vec<u8>,
    is_closing: &'a mut bool,
    peer: SocketAddr,
}

impl Connection<'_> {
    /// Writes bytes: directly, as far as there is room; the rest is kept, and nothing more is read until it is sent.
    ///
    /// # Errors
    /// Those of send(2).
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut sent = 0;
        if self.unsent.is_empty() {
            match self.stream.try_write(bytes) {
                Ok(count) => sent = count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        self.unsent.extend_from_slice(&bytes[sent..]);
        Ok(())
    }

    /// Closes the connection once everything is sent.
    pub fn close(&mut self) {
        *self.is_closing = true;
    }

    /// The address of the other end.
    pub fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    /// The stream itself, for its options.
    pub fn stream(&self) -> &TcpStream {
        self.stream
    }
}

/// What a server has done since it was started, all workers together.
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
}

fn count(counter: &AtomicU64) {
    counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

/// A server that is to be started.
#[derive(Debug, Clone)]
#[must_use = "a server does nothing until it is started"]
pub struct Server {
    address: String,
    workers: usize,
    pool: PoolConfig,
    listener: TcpListenerOptions,
    nodelay: bool,
    max_connections: usize,
    idle_timeout: Option<Duration>,
}

impl Server {
    /// A server for an address, `host:port`, with one worker per usable CPU.
    pub fn bind(address: impl Into<String>) -> Self {
        Self {
            address: address.into(),
            workers: pool::default_workers(),
            pool: PoolConfig::default(),
            listener: TcpListenerOptions::default(),
            nodelay: true,
            max_connections: usize::MAX,
            idle_timeout: None,
        }
    }

    /// How many workers there are.
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = workers;
        self
    }

    /// How the workers are set up.
    pub fn pool(mut self, config: PoolConfig) -> Self {
        self.pool = config;
        self
    }

    /// How many connections wait in the kernel, per worker.
    pub fn backlog(mut self, backlog: u32) -> Self {
        self.listener.backlog = backlog;
        self
    }

    /// Whether small writes go out at once (`TCP_NODELAY`). They do by default.
    pub fn nodelay(mut self, nodelay: bool) -> Self {
        self.nodelay = nodelay;
        self
    }

    /// The most connections that are served at a time, all workers together. Further ones wait for their turn.
    pub fn max_connections(mut self, max_connections: usize) -> Self {
        self.max_connections = max_connections;
        self
    }

    /// After how long without a byte from the other end [`Handler::timeout`] is called. Never by default.
    pub fn idle_timeout(mut self, idle_timeout: Duration) -> Self {
        self.idle_timeout = Some(idle_timeout);
        self
    }

    /// Starts the server. `make_handler` makes a handler for each connection.
    ///
    /// # Errors
    /// Those of [`Pool::new`] and of binding; `InvalidInput` for a limit of 0 connections.
    pub fn start<M, H>(self, make_handler: M) -> io::Result<Running>
    where
        M: Fn() -> H + Clone + Send + 'static,
        H: Handler,
    {
        let idle_timeout = self.idle_timeout;
        self.start_workers(move |stream, peer, counters| {
            Conversation::new(make_handler(), stream, peer, idle_timeout, counters)
        })
    }

    /// Starts the server, waits for SIGINT or SIGTERM, and then gives the connections `patience` to end.
    ///
    /// # Errors
    /// As [`start`](Server::start).
    pub fn serve<M, H>(self, make_handler: M, patience: Duration) -> io::Result<()>
    where
        M: Fn() -> H + Clone + Send + 'static,
        H: Handler,
    {
        let signals = EndSignals::listen()?;
        let running = self.start(make_handler)?;
        signals.wait();
        running.shutdown(patience);
        Ok(())
    }

    /// Starts a server whose connections are each served by a future. The idle timeout is the future's own business.
    ///
    /// # Errors
    /// As [`start`](Server::start).
    pub fn start_with<S, F>(self, serve: S) -> io::Result<Running>
    where
        S: Fn(TcpStream, SocketAddr) -> F + Clone + Send + 'static,
        F: Future<Output = io::Result<()>> + 'static,
    {
        self.start_workers(move |stream, peer, _counters| serve(stream, peer))
    }

    fn start_workers<S, F>(self, serve: S) -> io::Result<Running>
    where
        S: Fn(TcpStream, SocketAddr, Arc<WorkerCounters>) -> F + Clone + Send + 'static,
        F: Future<Output = io::Result<()>> + 'static,
    {
        if self.max_connections == 0 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "max_connections is 0: nobody could connect",
            ));
        }
        let mut options = self.listener.clone();
        options.reuse_port = self.workers > 1;
        let listeners = bind_each(&self.address, self.workers, &options)?;
        let address = listeners[0].local_addr()?;
        let pool = Pool::new(self.workers, &self.pool)?;
        let permits = Arc::new(Semaphore::new(self.max_connections));
        let mut counters = Vec::with_capacity(self.workers);
        let mut accepting = Vec::with_capacity(self.workers);
        for (worker, listener) in listeners.into_iter().enumerate() {
            let own_counters = Arc::new(WorkerCounters::default());
            counters.push(Arc::clone(&own_counters));
            let (serve, permits) = (serve.clone(), Arc::clone(&permits));
            let nodelay = self.nodelay;
            accepting.push(pool.spawn_on(worker, move || async move {
                let listener = TcpListener::try_from(listener)?;
                accept(listener, serve, permits, nodelay, own_counters).await
            }));
        }
        Ok(Running {
            pool,
            address,
            accepting,
            counters,
        })
    }
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
        match bind_all(address, workers, options) {
            Ok(listeners) => return Ok(listeners),
            Err(error) => last_error = error,
        }
    }
    Err(last_error)
}

fn bind_all(
    address: SocketAddr,
    workers: usize,
    options: &TcpListenerOptions,
) -> io::Result<Vec<std::net::TcpListener>> {
    let first = TcpListener::bind_blocking(address, options)?;
    // Port 0 is the kernel's choice: the others follow the first.
    let address = first.local_addr()?;
    let mut listeners = vec![first];
    while listeners.len() < workers {
        listeners.push(TcpListener::bind_blocking(address, options)?);
    }
    Ok(listeners)
}

/// Accepts connections for as long as the task lives.
async fn accept<S, F>(
    listener: TcpListener,
    serve: S,
    permits: Arc<Semaphore>,
    nodelay: bool,
    counters: Arc<WorkerCounters>,
) -> io::Result<()>
where
    S: Fn(TcpStream, SocketAddr, Arc<WorkerCounters>) -> F,
    F: Future<Output = io::Result<()>> + 'static,
{
    let mut back_off = BACK_OFF.0;
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                back_off = BACK_OFF.0;
                // Not before: a worker that waits for a connection would keep others from serving theirs.
                let permit = permits.acquire_arc().await;
                count(&counters.accepted);
                let ending = Ending {
                    counters: Arc::clone(&counters),
                    _permit: permit,
                };
                // A peer may be gone already; serving will tell.
                let _ = stream.set_nodelay(nodelay);
                let serving = serve(stream, peer, Arc::clone(&counters));
                drop(spawn(Served { serving, ending }));
            }
            Err(error) if is_of_one_connection(&error) => count(&counters.accept_errors),
            Err(_) => {
                // No descriptor or no memory: it can only help to wait for connections to end.
                count(&counters.accept_errors);
                sleep(back_off).await;
                back_off = (back_off * 2).min(BACK_OFF.1);
            }
        }
    }
}

/// Whether accepting failed for a connection that ended too early, and not for want of something.
fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ECONNABORTED | libc::ENOTCONN | libc::EPROTO | libc::EPERM)
    )
}

/// Counts a connection's end, however it comes.
struct Ending {
    counters: Arc<WorkerCounters>,
    _permit: SemaphoreGuardArc,
}

impl Drop for Ending {
    fn drop(&mut self) {
        count(&self.counters.ended);
    }
}

/// A connection with its handler, as one flat future: nested `async` blocks would store it several times over.
struct Conversation<H> {
    handler: H,
    stream: TcpStream,
    peer: SocketAddr,
    unsent: Vec<u8>,
    sent: usize,
    is_connected: bool,
    is_closing: bool,
    idle: Option<Box<Idle>>,
    counters: Arc<WorkerCounters>,
}

// Nothing in it refers to itself.
impl<H> Unpin for Conversation<H> {}

impl<H: Handler> Conversation<H> {
    fn new(
        handler: H,
        stream: TcpStream,
        peer: SocketAddr,
        idle_timeout: Option<Duration>,
        counters: Arc<WorkerCounters>,
    ) -> Self {
        Self {
            handler,
            stream,
            peer,
            unsent: Vec::new(),
            sent: 0,
            is_connected: false,
            is_closing: false,
            idle: idle_timeout.map(|limit| Box::new(Idle::new(limit))),
            counters,
        }
    }

    /// Calls a method of the handler.
    fn call<T>(&mut self, method: impl FnOnce(&mut H, &mut Connection<'_>) -> T) -> T {
        method(
            &mut self.handler,
            &mut Connection {
                stream: &self.stream,
                unsent: &mut self.unsent,
                is_closing: &mut self.is_closing,
                peer: self.peer,
            },
        )
    }

    fn poll_converse(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.is_connected {
            self.is_connected = true;
            self.call(Handler::connected)?;
        }
        loop {
            // Not reading meanwhile is what slows down a peer that does not read.
            ready!(self.poll_send(context))?;
            if self.is_closing {
                return Poll::Ready(Ok(()));
            }
            match self.poll_data(context) {
                Poll::Ready(is_over) => {
                    if is_over? {
                        return Poll::Ready(Ok(()));
                    }
                    if let Some(idle) = &mut self.idle {
                        idle.touch();
                    }
                }
                Poll::Pending => {
                    let Some(idle) = &mut self.idle else {
                        return Poll::Pending;
                    };
                    ready!(idle.poll(context));
                    count(&self.counters.timeouts);
                    self.call(Handler::timeout)?;
                }
            }
        }
    }

    /// Sends what the socket had no room for.
    fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.unsent.len() {
            let mut rest = &self.unsent[self.sent..];
            self.sent += ready!(self.stream.poll_write_from(context, &mut rest))?;
        }
        if self.sent > 0 {
            self.sent = 0;
            self.unsent.clear();
            self.unsent.shrink_to(UNSENT_KEPT_BYTES);
        }
        Poll::Ready(Ok(()))
    }

    /// Hands over what has come. True at the end of the stream.
    fn poll_data(&mut self, context: &mut Context<'_>) -> Poll<io::Result<bool>> {
        let Self {
            handler,
            stream,
            unsent,
            is_closing,
            peer,
            ..
        } = self;
        let handled = ready!(stream.poll_read_with(context, |bytes, stream| {
            if bytes.is_empty() {
                return Ok(true);
            }
            let mut connection = Connection {
                stream,
                unsent,
                is_closing,
                peer: *peer,
            };
            handler.data(&mut connection, bytes).map(|()| false)
        }))?;
        Poll::Ready(handled)
    }
}

impl<H: Handler> Future for Conversation<H> {
    type Output = io::Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let result = ready!(self.poll_converse(context));
        if let Err(error) = &result {
            self.handler.error(error);
        }
        self.handler.closed();
        Poll::Ready(result)
    }
}

pin_project! {
    /// A connection's future with what is to be done when it ends.
    struct Served<F> {
        #[pin]
        serving: F,
        ending: Ending,
    }
}

impl<F: Future<Output = io::Result<()>>> Future for Served<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        let guard = PanicCounter(&this.ending.counters);
        let result = ready!(this.serving.poll(context));
        drop(guard);
        if result.is_err() {
            count(&this.ending.counters.errors);
        }
        Poll::Ready(())
    }
}

/// Counts a panic that passes by.
struct PanicCounter<'a>(&'a WorkerCounters);

impl Drop for PanicCounter<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            count(&self.0.panics);
        }
    }
}

/// A buffer for unsent bytes that has grown beyond this is given back.
const UNSENT_KEPT_BYTES: usize = 4 * 1024;

/// A timer that is not moved at every byte: when it fires it looks when the last one came.
struct Idle {
    limit_ns: u64,
    last_ns: u64,
    timer: crate::time::Sleep,
}

impl Idle {
    fn new(limit: Duration) -> Self {
        let limit_ns = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        let now_ns = clock::now_ns();
        Self {
            limit_ns,
            last_ns: now_ns,
            timer: sleep_until(now_ns.saturating_add(limit_ns)),
        }
    }

    /// Something has come.
    fn touch(&mut self) {
        self.last_ns = clock::now_ns();
    }

    /// Ready when nothing has come for too long; then the time begins anew.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        while Pin::new(&mut self.timer).poll(context).is_ready() {
            let now_ns = clock::now_ns();
            let deadline_ns = self.last_ns.saturating_add(self.limit_ns);
            if deadline_ns <= now_ns {
                self.last_ns = now_ns;
                self.timer.reset(now_ns.saturating_add(self.limit_ns));
                return Poll::Ready(());
            }
            self.timer.reset(deadline_ns);
        }
        Poll::Pending
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
/// that it is ready should listen before. A second such signal ends the process at once.
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
        Ok(Self { signals })
    }

    /// Blocks until the first such signal, which may have come already.
    pub fn wait(mut self) -> Signal {
        Signal(self.signals.forever().next().unwrap_or(SIGTERM))
    }
}

/// A server that runs.
#[derive(Debug)]
#[must_use = "a server ends when this is dropped"]
pub struct Running {
    pool: Pool,
    address: SocketAddr,
    accepting: Vec<JoinHandle<io::Result<()>>>,
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
        }
    }

    /// Blocks until the process is asked to end: [`EndSignals`], from now on.
    ///
    /// # Errors
    /// Those of sigaction(2).
    pub fn wait_for_signal(&self) -> io::Result<Signal> {
        Ok(EndSignals::listen()?.wait())
    }

    /// Stops listening, gives the connections `patience` to end, and closes those that have not.
    pub fn shutdown(self, patience: Duration) {
        for task in &self.accepting {
            task.abort();
        }
        self.pool.shutdown(patience);
    }
}
