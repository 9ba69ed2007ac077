//! A connection with its handler, and the task of each connection.

use std::future::Future;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use async_lock::SemaphoreGuardArc;
use pin_project_lite::pin_project;

use super::counters::{WorkerCounters, count};
use super::drain::FirstBytes;
use super::handler::{Connection, Handler};
use super::idle::Idle;
use super::mailbox::Inbox;
use super::wire::Wire;
use crate::drain::{Drain, Listener};
use crate::net::stream::HasCore;
use crate::sealed::INTERNAL;
use crate::source::{Asked, End};
use crate::time::{Elapsed, Instant, Sleep, sleep};
use crate::trace;

/// How long a connection that we have ended waits at most for the peer to close its side, too.
const LINGER_MAX: Duration = Duration::from_secs(2);

/// A connection with its handler, as one flat future. Nested `async` blocks would store it several times.
pub(super) struct Conversation<H, W: Wire> {
    handler: H,
    wire: W,
    unsent: W::Unsent,
    peer: SocketAddr,
    is_connected: bool,
    is_closing: bool,
    /// The handler has been told that the server drains.
    is_told: bool,
    draining: Listener,
    /// Until the handler has been passed something.
    first_bytes: Option<FirstBytes>,
    asked: Asked,
    idle: Option<Box<Idle>>,
    /// Only if others have asked for a handle.
    inbox: Option<Inbox>,
    /// The end of the time that the peer has to close its side, too.
    lingering: Option<Box<Sleep>>,
    counters: Arc<WorkerCounters>,
}

// Nothing in it is self-referential.
impl<H, W: Wire> Unpin for Conversation<H, W> {}

impl<H: Handler, W: Wire> Conversation<H, W> {
    pub(super) fn new(
        handler: H,
        wire: W,
        peer: SocketAddr,
        idle_timeout: Option<Duration>,
        draining: Listener,
        counters: Arc<WorkerCounters>,
    ) -> Self {
        // It reads or writes all the time, and notices a reset by that.
        let idle = idle_timeout.map(|limit| Box::new(watch(&wire, limit, false)));
        Self {
            handler,
            wire,
            unsent: W::nothing_unsent(INTERNAL),
            peer,
            is_connected: false,
            is_closing: false,
            is_told: false,
            draining,
            first_bytes: Some(FirstBytes::from(Instant::now())),
            asked: Asked::default(),
            idle,
            inbox: None,
            lingering: None,
            counters,
        }
    }

    /// Calls a method of the handler.
    fn call<T>(&mut self, method: impl FnOnce(&mut H, &mut Connection<'_>) -> T) -> T {
        method(
            &mut self.handler,
            &mut Connection {
                link: self.wire.link(&mut self.unsent, INTERNAL),
                is_closing: &mut self.is_closing,
                inbox: &mut self.inbox,
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
            // Not reading meanwhile slows down a peer that does not read.
            if self
                .wire
                .poll_send(context, &mut self.unsent, INTERNAL)?
                .is_pending()
            {
                ready!(self.poll_idle(context))?;
                if self.is_closing {
                    // The peer does not read, and perhaps never will.
                    return Poll::Ready(Ok(()));
                }
                continue;
            }
            if self.is_closing {
                return self.poll_finish(context);
            }
            if self.poll_inbox(context)?.is_ready() {
                continue;
            }
            match self.poll_data(context) {
                Poll::Ready(is_over) => {
                    if is_over? {
                        // The peer may have stopped reading, or be gone.
                        let _ = self.wire.poll_finish(context, INTERNAL);
                        return Poll::Ready(Ok(()));
                    }
                }
                Poll::Pending => {
                    if !self.is_told && self.is_to_be_told(context) {
                        // No data is known to wait, but some may have arrived unnoticed.
                        let core = self.wire.socket(INTERNAL).core();
                        ready!(core.poll_rechecked(context, &mut self.asked));
                        self.is_told = true;
                        self.call(Handler::draining)?;
                    } else {
                        ready!(self.poll_idle(context))?;
                    }
                }
            }
        }
    }

    /// Writes what others have written to this connection. Pending if there is nothing.
    fn poll_inbox(&mut self, context: &Context<'_>) -> Poll<io::Result<()>> {
        let Some(inbox) = &self.inbox else {
            return Poll::Pending;
        };
        let (writes, is_closing) = ready!(inbox.poll(context));
        self.is_closing |= is_closing;
        self.call(|_, connection| writes.iter().try_for_each(|bytes| connection.write(bytes)))?;
        Poll::Ready(Ok(()))
    }

    /// Whether the server drains, and a new connection has had its time.
    fn is_to_be_told(&mut self, context: &mut Context<'_>) -> bool {
        if !self.draining.has_begun(context) {
            return false;
        }
        match &mut self.first_bytes {
            Some(first_bytes) => first_bytes.poll(context).is_ready(),
            None => true,
        }
    }

    /// Waits until the connection has been idle for too long, and tells the handler.
    fn poll_idle(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(idle) = &mut self.idle else {
            return Poll::Pending;
        };
        ready!(idle.poll(context));
        count(&self.counters.timeouts);
        Poll::Ready(self.call(Handler::timeout))
    }

    /// Ends a connection from our side. If data of the peer's met a closed socket, or was left unread, the kernel would
    /// reset the connection, and discard what the peer has not received yet. So only our direction ends, and what still
    /// comes is dropped, until the peer has closed, too, or its time is over.
    fn poll_finish(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.lingering.is_none() {
            if self.wire.poll_finish(context, INTERNAL).is_pending() {
                ready!(self.poll_idle(context))?;
                return Poll::Ready(Ok(()));
            }
            // Everything that the handler wrote is with the kernel. If the farewell cannot be sent, the peer is gone.
            let core = self.wire.socket(INTERNAL).core();
            if core.shutdown(Shutdown::Write).is_err() {
                return Poll::Ready(Ok(()));
            }
            let limit = self.idle.as_ref().map_or(LINGER_MAX, |idle| idle.limit());
            self.lingering = Some(Box::new(sleep(limit.min(LINGER_MAX))));
        }
        let core = self.wire.socket(INTERNAL).core();
        loop {
            match core.poll_read_with(context, <[u8]>::is_empty) {
                Poll::Ready(Ok(false)) => {}
                Poll::Ready(_) => return Poll::Ready(Ok(())),
                Poll::Pending => break,
            }
        }
        match &mut self.lingering {
            Some(end) => Pin::new(end).poll(context).map(Ok),
            None => Poll::Ready(Ok(())),
        }
    }

    /// Passes received data to the handler. Returns true at the end of the stream.
    fn poll_data(&mut self, context: &mut Context<'_>) -> Poll<io::Result<bool>> {
        let Self {
            handler,
            wire,
            unsent,
            is_closing,
            inbox,
            peer,
            first_bytes,
            ..
        } = self;
        let use_bytes = |bytes: &[u8]| {
            if bytes.is_empty() {
                return Ok(true);
            }
            *first_bytes = None;
            let mut connection = Connection {
                link: wire.link(unsent, INTERNAL),
                is_closing,
                inbox,
                peer: *peer,
            };
            handler.data(&mut connection, bytes).map(|()| false)
        };
        let handled = ready!(wire.poll_read_with(context, use_bytes, INTERNAL))?;
        Poll::Ready(handled)
    }
}

impl<H: Handler, W: Wire> Future for Conversation<H, W> {
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

/// Tracks how long a connection has been idle, and whether it was reset if `notices_reset`.
fn watch(wire: &impl Wire, limit: Duration, notices_reset: bool) -> Idle {
    let core = wire.socket(INTERNAL).core();
    let closed = notices_reset.then(|| core.until(End::Failure).alone());
    Idle::new(limit, core.activity(), closed)
}

/// Counts the end of a connection, for whatever reason it ends.
pub(super) struct Ending {
    pub(super) counters: Arc<WorkerCounters>,
    pub(super) _permit: SemaphoreGuardArc,
}

impl Drop for Ending {
    fn drop(&mut self) {
        count(&self.counters.ended);
    }
}

/// Ends a handshake that takes too long, or that has not begun when the server drains.
pub(super) struct Handshake {
    limit: Sleep,
    draining: Listener,
    first_bytes: FirstBytes,
}

impl Handshake {
    pub(super) fn new(limit: Duration, drain: Rc<Drain>) -> Self {
        Self {
            limit: sleep(limit),
            draining: Listener::new(drain),
            first_bytes: FirstBytes::from(Instant::now()),
        }
    }

    /// Ready when there is no more time, with whether the peer is to blame.
    fn poll(&mut self, is_silent: bool, context: &mut Context<'_>) -> Poll<bool> {
        if Pin::new(&mut self.limit).poll(context).is_ready() {
            return Poll::Ready(true);
        }
        if !self.draining.has_begun(context) || !is_silent {
            return Poll::Pending;
        }
        self.first_bytes.poll(context).map(|()| false)
    }
}

pin_project! {
    #[project = StageProjection]
    enum Stage<W, N, F> {
        /// The handshake, until there is a connection to serve.
        Handshake {
            beginning: Option<(W, N)>,
            handshake: Option<Box<Handshake>>,
        },
        Serving {
            #[pin]
            serving: F,
        },
        /// The serving future is dropped, and its panics are counted.
        Over,
    }
}

pin_project! {
    /// A connection, from its handshake to its end.
    pub(super) struct Served<W, N, F> {
        #[pin]
        stage: Stage<W, N, F>,
        idle_timeout: Option<Duration>,
        idle: Option<Box<Idle>>,
        ending: Ending,
    }
}

impl<W: Wire, N, F> Served<W, N, F> {
    /// `begin` creates the future that serves the connection after its handshake. `handshake` limits the handshake, if
    /// there is one. `idle_timeout` is how long a connection may be idle.
    pub(super) fn new(
        wire: W,
        begin: N,
        handshake: Option<Handshake>,
        idle_timeout: Option<Duration>,
        ending: Ending,
    ) -> Self {
        Self {
            stage: Stage::Handshake {
                beginning: Some((wire, begin)),
                handshake: handshake.map(Box::new),
            },
            idle_timeout,
            idle: None,
            ending,
        }
    }
}

impl<W, N, F> Future for Served<W, N, F>
where
    W: Wire,
    N: FnOnce(W) -> F,
    F: Future<Output = io::Result<()>>,
{
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut this = self.project();
        let counters = &this.ending.counters;
        let _guard = PanicCounter(counters);
        let stage = this.stage.as_mut();
        ready!(stage.poll(context, *this.idle_timeout, this.idle, counters));
        this.stage.set(Stage::Over);
        Poll::Ready(())
    }
}

impl<W, N, F> Stage<W, N, F>
where
    W: Wire,
    N: FnOnce(W) -> F,
    F: Future<Output = io::Result<()>>,
{
    fn poll(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        idle_timeout: Option<Duration>,
        idle: &mut Option<Box<Idle>>,
        counters: &WorkerCounters,
    ) -> Poll<()> {
        if let StageProjection::Handshake {
            beginning,
            handshake,
        } = self.as_mut().project()
        {
            let (wire, _) = beginning
                .as_ref()
                .expect("it is there until the handshake ends");
            let Poll::Ready(shaken) = wire.poll_handshake(context, INTERNAL) else {
                let handshake = handshake.as_mut().expect("what may take time has a limit");
                let is_silent = !wire.socket(INTERNAL).core().has_read();
                if ready!(handshake.poll(is_silent, context)) {
                    count(&counters.handshake_errors);
                    trace::handshake_failed(&Elapsed::new().into());
                }
                return Poll::Ready(());
            };
            if let Err(error) = &shaken {
                trace::handshake_failed(error);
            }
            let Some((wire, begin)) = beginning.take().filter(|_| shaken.is_ok()) else {
                count(&counters.handshake_errors);
                return Poll::Ready(());
            };
            *idle = idle_timeout.map(|limit| Box::new(watch(&wire, limit, true)));
            let serving = begin(wire);
            self.set(Stage::Serving { serving });
        }
        let StageProjection::Serving { serving } = self.project() else {
            unreachable!("the handshake is over, and the connection is not");
        };
        match serving.poll(context) {
            Poll::Ready(result) => {
                trace::connection_ended(&result);
                if result.is_err() {
                    count(&counters.errors);
                }
            }
            Poll::Pending => {
                let Some(idle) = idle else {
                    return Poll::Pending;
                };
                ready!(idle.poll(context));
                count(&counters.timeouts);
                trace::connection_timed_out();
            }
        }
        Poll::Ready(())
    }
}

/// Counts a panic that unwinds through it.
pub(super) struct PanicCounter<'a>(pub(super) &'a WorkerCounters);

impl Drop for PanicCounter<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            count(&self.0.panics);
        }
    }
}
