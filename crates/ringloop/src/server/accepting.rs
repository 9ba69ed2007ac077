//! Accepting connections, on each worker.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use async_channel::Receiver;
use async_lock::Semaphore;

use super::Transport;
use super::conversation::{Ending, Handshake, Served};
use super::counters::{WorkerCounters, count};
use super::drain::Drain;
use crate::net::{TcpListener, TcpListenerOptions};
use crate::sealed::INTERNAL;
use crate::shared::Shared;
use crate::time::sleep;
use crate::trace;

/// How long to wait if the process has too few descriptors or too little memory for a connection: at first, and at
/// most.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(1));

/// The state that the connections of one worker share.
#[derive(Clone)]
pub(super) struct Worker {
    pub(super) counters: Arc<WorkerCounters>,
    pub(super) drain: Rc<Drain>,
}

/// How connections are accepted.
pub(super) struct Accepting<T> {
    pub(super) permits: Arc<Semaphore>,
    pub(super) settings: T,
    pub(super) nodelay: bool,
    pub(super) idle_timeout: Option<Duration>,
}

/// Runs a future until a channel is closed, and then drops it.
pub(super) async fn until_closed(channel: &Receiver<Infallible>, future: impl Future<Output = ()>) {
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

/// Binds a listener for each worker, all to one address.
pub(super) fn bind_each(
    address: &str,
    workers: usize,
    options: &TcpListenerOptions,
) -> io::Result<Vec<std::net::TcpListener>> {
    let mut last_error = io::Error::new(
        io::ErrorKind::NotFound,
        format!("no address found for {address:?}"),
    );
    for address in address.to_socket_addrs()? {
        match TcpListener::bind_several(address, workers, options) {
            Ok(listeners) => return Ok(listeners),
            Err(error) => last_error = error,
        }
    }
    Err(last_error)
}

/// Accepts connections until the future is dropped.
pub(super) async fn accept<S, G, N, F>(
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
    let handshake_limit = S::handshake_limit(&settings, INTERNAL);
    let mut back_off = BACK_OFF.0;
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                back_off = BACK_OFF.0;
                // After accepting, because a worker that waits for a connection with a permit would keep others from
                // serving theirs.
                let permit = permits.acquire_arc().await;
                count(&counters.accepted);
                let ending = Ending {
                    counters: Arc::clone(counters),
                    _permit: permit,
                };
                // The peer may already be gone. Serving will notice.
                let _ = stream.set_nodelay(nodelay);
                let Ok(wire) = S::new(stream, &settings, INTERNAL) else {
                    count(&counters.handshake_errors);
                    continue;
                };
                let handshake =
                    handshake_limit.map(|limit| Handshake::new(limit, Rc::clone(&worker.drain)));
                let served = Served::new(wire, begin(peer), handshake, idle_timeout, ending);
                drop(Shared::current().spawn_watched(trace::connection(peer, served)));
            }
            // A firewall rule has refused this connection.
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
                count(&counters.accept_errors);
            }
            Err(error) => {
                // Too few descriptors or too little memory: wait for connections to end.
                count(&counters.accept_errors);
                trace::cannot_accept(&error, back_off);
                sleep(back_off).await;
                back_off = (back_off * 2).min(BACK_OFF.1);
            }
        }
    }
}
