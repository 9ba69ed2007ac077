//! How connections learn that their server drains, and how long new ones have to say something.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use crate::drain::{Drain, Listener};
use crate::source::{Asked, Recheck};
use crate::time::{Instant, Sleep, sleep_until};

/// The first bytes of a new connection may be on the way when the server begins to drain. So its peer has this long,
/// from the beginning of the connection, which is enough for the slowest of networks.
const FIRST_BYTES_MAX: Duration = Duration::from_secs(1);

/// The time that a new connection has to say something, although its server drains.
#[derive(Debug)]
pub(super) struct FirstBytes {
    since: Instant,
    /// Only while it is waited for.
    timer: Option<Box<Sleep>>,
}

impl From<Instant> for FirstBytes {
    fn from(since: Instant) -> Self {
        Self { since, timer: None }
    }
}

impl FirstBytes {
    /// Ready when the time is over.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let end = || Box::new(sleep_until(self.since + FIRST_BYTES_MAX));
        Pin::new(self.timer.get_or_insert_with(end)).poll(context)
    }
}

/// The beginning of a connection, after its handshake.
#[derive(Clone)]
pub(super) struct Beginning {
    since: Instant,
    connection: Recheck,
    /// How many reads there had been by then.
    reads: Option<u16>,
}

impl Beginning {
    pub(super) fn new(connection: Recheck) -> Self {
        Self {
            since: Instant::now(),
            reads: connection.reads(),
            connection,
        }
    }

    /// Whether nothing has come since.
    fn is_silent(&self) -> bool {
        self.reads.is_some() && self.connection.reads() == self.reads
    }
}

/// Waits until the server begins to drain. Created by [`Client::draining`](super::Client::draining).
///
/// It completes a little after draining begins: when whoever reads from the connection has read what had arrived by
/// then. A new connection whose peer has sent nothing yet has up to a second from its beginning to do so. A `select` of a
/// read and this future, in this order, therefore handles all of that first. Keep it until it completes: a new one starts
/// over, and never completes in its first poll. To ask without waiting, use
/// [`Client::is_draining`](super::Client::is_draining).
#[must_use = "a future does nothing unless it is awaited"]
pub struct Draining {
    listener: Listener,
    beginning: Beginning,
    first_bytes: FirstBytes,
    asked: Asked,
}

impl Draining {
    pub(super) fn new(drain: Rc<Drain>, beginning: Beginning) -> Self {
        Self {
            listener: Listener::new(drain),
            first_bytes: FirstBytes::from(beginning.since),
            beginning,
            asked: Asked::default(),
        }
    }
}

impl Future for Draining {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        ready!(this.listener.poll(context));
        if this.beginning.is_silent() {
            ready!(this.first_bytes.poll(context));
        }
        this.beginning.connection.poll(context, &mut this.asked)
    }
}

impl fmt::Debug for Draining {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Draining")
            .field("has_begun", &self.listener.drain().has_begun())
            .finish_non_exhaustive()
    }
}
