//! Accepting connections, on each worker.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use async_channel::Receiver;
use async_lock::{Semaphore, SemaphoreGuardArc};
use socket2::{SockAddr, Socket};

use super::Transport;
use super::conversation::{Ending, Handshake, Served};
use super::counters::{WorkerCounters, count};
use super::listeners::Listening;
use super::service::NO_ADDRESS;
use super::wire::Wire;
use crate::drain::{Drain, Listener};
use crate::net::accept::Acceptor;
use crate::net::stream::HasCore;
use crate::runtime::{consume_budget, yield_now};
use crate::sealed::INTERNAL;
use crate::shared::Shared;
use crate::task::Role;
use crate::time::{Instant, sleep};
use crate::trace;

/// How long to wait if the process has too few descriptors or too little memory for a connection: at first, and at
/// most.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(1));

/// How long a server that ends, and has connections, keeps its listeners for handshakes of TCP that are in progress; and how
/// often it looks.
const HANDSHAKES_MAX: Duration = Duration::from_millis(250);
const HANDSHAKES_TICK: Duration = Duration::from_millis(10);

/// How many connections a server that ends accepts at most from a socket, twice. The kernel's queue is usually limited to 4096
/// (`net.core.somaxconn`).
const QUEUED_MAX: u32 = 1 << 16;

/// The state that the connections of one worker share.
#[derive(Clone)]
pub(super) struct Worker {
    pub(super) number: usize,
    pub(super) counters: Arc<WorkerCounters>,
    pub(super) drain: Rc<Drain>,
}

/// How connections are accepted.
pub(super) struct Accepting<T> {
    pub(super) permits: Arc<Semaphore>,
    pub(super) settings: T,
    pub(super) nodelay: bool,
    pub(super) idle_timeout: Option<Duration>,
    /// Whether another process accepts from the same sockets from now on.
    pub(super) has_successor: Arc<AtomicBool>,
}

/// Tells an accepting task that its server, or the whole pool, is to end.
struct Stopped<'a> {
    server: &'a Receiver<Infallible>,
    pool: Listener,
}

impl Stopped<'_> {
    /// Runs a future until then, and drops it. `None` if that was first.
    async fn or<F: Future>(&mut self, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        let mut closed = pin!(self.server.recv());
        std::future::poll_fn(|context| {
            if closed.as_mut().poll(context).is_ready() || self.pool.poll(context).is_ready() {
                return Poll::Ready(None);
            }
            future.as_mut().poll(context).map(Some)
        })
        .await
    }
}

/// A socket that brings connections of one type.
struct Incoming<S> {
    acceptor: Acceptor,
    is_unix: bool,
    streams: PhantomData<S>,
}

impl<S: Transport> Incoming<S> {
    fn new(socket: Socket) -> Self {
        Self {
            is_unix: socket.local_addr().is_ok_and(|address| address.is_unix()),
            acceptor: Acceptor::new(socket),
            streams: PhantomData,
        }
    }

    async fn accept(&self) -> io::Result<(S::Below, SocketAddr)> {
        self.connection(self.acceptor.accept().await?)
    }

    fn try_accept(&self) -> io::Result<Option<(S::Below, SocketAddr)>> {
        let accepted = self.acceptor.try_accept()?;
        accepted
            .map(|accepted| self.connection(accepted))
            .transpose()
    }

    fn connection(&self, (socket, peer): (Socket, SockAddr)) -> io::Result<(S::Below, SocketAddr)> {
        let peer = peer.as_socket().unwrap_or(NO_ADDRESS);
        Ok((S::below(socket, self.is_unix, INTERNAL)?, peer))
    }
}

/// Accepts connections until `stopped` is closed. Then asks the connections to end, and serves those that the kernel has
/// accepted by then.
///
/// A connection waits for a permit after it was accepted, because a worker that waits for a connection with a permit would
/// keep others from serving theirs.
pub(super) async fn accept<S, G, N, F>(
    listening: Listening,
    accepting: Rc<Accepting<S::Settings>>,
    begin: Rc<G>,
    worker: Worker,
    stopped: Receiver<Infallible>,
) where
    S: Transport,
    G: Fn(SocketAddr) -> N,
    N: FnOnce(S) -> F + 'static,
    F: Future<Output = io::Result<()>> + 'static,
{
    let is_shared = listening.is_shared;
    let listener = Incoming::<S>::new(listening.socket);
    let mut stopped = Stopped {
        server: &stopped,
        pool: Listener::new(Rc::clone(&Shared::current().stopping)),
    };
    let permits = &accepting.permits;
    let serve = |accepted, permit| accepting.serve(accepted, permit, &*begin, &worker);
    let mut back_off = BackOff::new(&worker.counters);
    let held_back = loop {
        let Some(accepted) = stopped.or(listener.accept()).await else {
            break None;
        };
        match accepted {
            Ok(accepted) => {
                back_off.reset();
                match stopped.or(permits.acquire_arc()).await {
                    Some(permit) => serve(accepted, permit),
                    None => break Some(accepted),
                }
            }
            Err(error) => {
                stopped.or(back_off.wait(&error)).await;
            }
        }
    };
    // In this order: the connections that end make room for those that wait.
    worker.drain.begin();
    let is_shared = is_shared || accepting.has_successor.load(Ordering::Acquire);
    if !is_shared {
        listener.acceptor.refuse_more();
    }
    if let Some(accepted) = held_back {
        serve(accepted, permits.acquire_arc().await);
    }
    let end = Instant::now() + HANDSHAKES_MAX;
    let mut passes = 0;
    loop {
        // If others listen on the socket, too, new connections may never end.
        for _ in 0..QUEUED_MAX {
            consume_budget().await;
            match listener.try_accept() {
                Ok(None) => break,
                Ok(Some(accepted)) => {
                    back_off.reset();
                    serve(accepted, permits.acquire_arc().await);
                }
                Err(error) => back_off.wait(&error).await,
            }
        }
        passes += 1;
        if passes == 1 {
            yield_now().await;
        } else if is_shared
            || listener.is_unix
            || worker.counters.live() == 0
            || Instant::now() >= end
        {
            return;
        } else {
            sleep(HANDSHAKES_TICK).await;
        }
    }
}

impl<T: Clone> Accepting<T> {
    /// Spawns the task that serves a connection.
    fn serve<S, G, N, F>(
        &self,
        (stream, peer): (S::Below, SocketAddr),
        permit: SemaphoreGuardArc,
        begin: &G,
        worker: &Worker,
    ) where
        S: Transport + Wire<Settings = T>,
        G: Fn(SocketAddr) -> N,
        N: FnOnce(S) -> F + 'static,
        F: Future<Output = io::Result<()>> + 'static,
    {
        let counters = &worker.counters;
        count(&counters.accepted);
        let ending = Ending {
            counters: Arc::clone(counters),
            _permit: permit,
        };
        if peer != NO_ADDRESS {
            // The peer may already be gone. Serving will notice.
            let _ = stream.core().socket().set_tcp_nodelay(self.nodelay);
        }
        let Ok(wire) = S::new(stream, &self.settings, INTERNAL) else {
            return count(&counters.handshake_errors);
        };
        let handshake = S::handshake_limit(&self.settings, INTERNAL)
            .map(|limit| Handshake::new(limit, Rc::clone(&worker.drain)));
        let served = Served::new(wire, begin(peer), handshake, self.idle_timeout, ending);
        let served = trace::connection(peer, served);
        drop(Shared::current().spawn_as(Role::Connection, served));
    }
}

/// Waits after an error of accept(2): longer each time, until something was accepted.
struct BackOff<'a> {
    counters: &'a WorkerCounters,
    delay: Duration,
}

impl<'a> BackOff<'a> {
    fn new(counters: &'a WorkerCounters) -> Self {
        Self {
            counters,
            delay: BACK_OFF.0,
        }
    }

    fn reset(&mut self) {
        self.delay = BACK_OFF.0;
    }

    async fn wait(&mut self, error: &io::Error) {
        count(&self.counters.accept_errors);
        // A firewall rule has refused this connection.
        if error.raw_os_error() == Some(libc::EPERM) {
            return;
        }
        // Too few descriptors or too little memory: wait for connections to end.
        trace::cannot_accept(error, self.delay);
        sleep(self.delay).await;
        self.delay = (self.delay * 2).min(BACK_OFF.1);
    }
}
