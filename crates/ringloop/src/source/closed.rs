//! Waiting for the end of a connection, without reading from it.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, ready};

use crate::budget;
#[cfg(feature = "hyper")]
use crate::shared::Observer;
use crate::shared::{End, Seat, Shared, Watched};

/// Waits until a connection is closed. Created by `closed` and `read_closed` of connections and their halves, and of
/// [`server::Client`](crate::server::Client).
///
/// It does not borrow the connection, which can be read and written meanwhile. It completes when the connection is dropped,
/// too.
///
/// # Errors
/// Returns `InvalidInput` if it is polled in another runtime than the connection's, where nothing would wake it.
#[must_use = "a future does nothing unless it is awaited"]
pub struct Closed {
    shared: Rc<Shared>,
    /// Weak, because a server wants to know when a connection is gone.
    watched: Weak<Watched>,
    end: End,
    seat: Seat,
}

impl Closed {
    pub(crate) fn new(shared: &Rc<Shared>, watched: &Rc<Watched>, end: End) -> Self {
        Self {
            shared: Rc::clone(shared),
            watched: Rc::downgrade(watched),
            end,
            seat: Seat::beside_others(),
        }
    }

    /// Waits in the seat that is not shared: for a server, of which each connection has one.
    pub(crate) fn alone(mut self) -> Self {
        self.leave();
        self.seat = Seat::alone();
        self
    }

    /// Another one for the same connection.
    pub(crate) fn another(&self, end: End) -> Self {
        Self {
            shared: Rc::clone(&self.shared),
            watched: Weak::clone(&self.watched),
            end,
            seat: Seat::beside_others(),
        }
    }

    /// Whether the end has been reached, as far as it was reported.
    pub(crate) fn is_reached(&self) -> bool {
        self.watched
            .upgrade()
            .is_none_or(|watched| watched.has_reached(self.end))
    }

    /// Has the task woken when the connection comes to an end, be it one or both of its directions.
    pub(crate) fn register(&self, context: &Context<'_>) {
        if let Some(watched) = self.watched.upgrade() {
            watched.ends().register(&self.seat, context);
        }
    }

    /// Whether bytes have moved since this observer last asked, or a write waits for the peer to read.
    #[cfg(feature = "hyper")]
    pub(crate) fn is_in_use(&self, observer: Observer) -> bool {
        self.watched.upgrade().is_some_and(|watched| {
            let has_moved = watched.take_moved(observer);
            has_moved || !watched.writable.get()
        })
    }

    fn leave(&self) {
        if let Some(watched) = self.watched.upgrade() {
            watched.leave(&self.seat);
        }
    }
}

impl Clone for Closed {
    fn clone(&self) -> Self {
        self.another(self.end)
    }
}

impl Future for Closed {
    type Output = io::Result<()>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.is_reached() {
            ready!(budget::poll(context));
            return Poll::Ready(Ok(()));
        }
        self.shared.check_here()?;
        self.register(context);
        Poll::Pending
    }
}

impl Drop for Closed {
    fn drop(&mut self) {
        self.leave();
    }
}

impl fmt::Debug for Closed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Closed")
            .field("end", &self.end)
            .field("is_reached", &self.is_reached())
            .finish_non_exhaustive()
    }
}
