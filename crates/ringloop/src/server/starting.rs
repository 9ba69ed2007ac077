//! How servers are started, and run.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use async_channel as channel;
use async_lock::Semaphore;

use super::accepting::{Accepting, Worker, accept};
use super::client::Client;
use super::conversation::{Conversation, PanicCounter};
use super::counters::WorkerCounters;
use super::end_signals::EndSignals;
use super::handler::Handler;
use super::handover::Restart;
use super::listeners::{Listening, Opened, open};
use super::running::Running;
use super::service::{Service, Stop};
use super::{Server, Transport};
use crate::drain::Listener;
use crate::net::stream::HasCore;
use crate::net::unix_address;
use crate::pool::Pool;
use crate::sealed::INTERNAL;
use crate::shared::Shared;
use crate::task::Role;

impl<S: Transport> Server<S> {
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
    /// [`TcpStream`](crate::net::TcpStream), after `tls` a `TlsStream`, or with Unix sockets an
    /// [`AnyStream`](crate::net::AnyStream). A host name is resolved as by [`start`](Self::start).
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
        // Those of a process that still runs are not for this one to remove, until it has taken over.
        let are_anothers = taken.as_ref().is_some_and(|taken| !taken.is_empty());
        let has_successor = Arc::new(AtomicBool::new(are_anothers));
        let Opened {
            each: listeners,
            paths,
            left,
        } = open(
            &self.options.places,
            workers,
            &self.options.binding,
            taken.unwrap_or_default(),
            &has_successor,
        )?;
        let mut addresses = Vec::new();
        let mut unix_addresses = Vec::new();
        let mut sockets = Vec::new();
        for listening in listeners.iter().flatten() {
            let address = listening.socket.local_addr()?;
            match address.as_socket() {
                Some(address) if !addresses.contains(&address) => addresses.push(address),
                None if !listening.is_copy => unix_addresses.extend(unix_address(&address)),
                _ => {}
            }
            if may_be_handed_over && !listening.is_copy {
                sockets.push(Listening {
                    socket: listening.socket.try_clone()?,
                    ..*listening
                });
            }
        }
        let permits = Arc::new(Semaphore::new(self.options.max_connections));
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
        let mut service = Service {
            addresses,
            unix_addresses,
            paths,
            left,
            stop: Stop::new(stop),
            counters,
            sockets,
            has_successor,
        };
        if !may_be_handed_over {
            service.settle();
        }
        Ok(service)
    }
}
