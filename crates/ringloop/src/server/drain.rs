//! How connections learn that their server drains.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use ringloop_reactor::panics;
use slab::Slab;

use crate::source::{Asked, Recheck};

/// Whether a worker's connections have been asked to end, and who wants to know.
#[derive(Debug, Default)]
pub(super) struct Drain {
    has_begun: Cell<bool>,
    /// Empty places are of connections that have been told.
    waiting: RefCell<Slab<Option<Waker>>>,
}

impl Drain {
    pub(super) fn has_begun(&self) -> bool {
        self.has_begun.get()
    }

    pub(super) fn begin(&self) {
        self.has_begun.set(true);
        // Wakers may be of the user's making: they may call back into this, or panic.
        let wakers: Vec<Waker> = self
            .waiting
            .borrow_mut()
            .iter_mut()
            .filter_map(|(_, waker)| waker.take())
            .collect();
        for waker in wakers {
            panics::contain(|| waker.wake());
        }
    }
}

/// A connection's registration.
#[derive(Debug)]
pub(super) struct Listener {
    drain: Rc<Drain>,
    place: Option<usize>,
}

impl Listener {
    pub(super) fn new(drain: Rc<Drain>) -> Self {
        Self { drain, place: None }
    }

    /// For a task that always polls with the same waker: registers it once.
    pub(super) fn has_begun(&mut self, context: &Context<'_>) -> bool {
        if self.place.is_none() {
            let waker = context.waker().clone();
            self.place = Some(self.drain.waiting.borrow_mut().insert(Some(waker)));
        }
        self.drain.has_begun()
    }

    /// For a task that may poll with another waker each time.
    fn poll(&mut self, context: &Context<'_>) -> Poll<()> {
        if self.has_begun(context) {
            return Poll::Ready(());
        }
        if let Some(place) = self.place {
            let is_known = |waker: &Waker| waker.will_wake(context.waker());
            if !self.drain.waiting.borrow()[place]
                .as_ref()
                .is_some_and(is_known)
            {
                let waker = Some(context.waker().clone());
                let other = std::mem::replace(&mut self.drain.waiting.borrow_mut()[place], waker);
                drop(other);
            }
        }
        Poll::Pending
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            let waker = self.drain.waiting.borrow_mut().remove(place);
            drop(waker);
        }
    }
}

/// Waits until the server begins to drain. Created by [`Client::draining`](super::Client::draining).
///
/// It completes a little after draining begins: when whoever reads from the connection has read what had arrived by
/// then. So a `select` of a read and this future, in this order, handles all of that first. Keep it until it completes: a
/// new one starts over, and never completes in its first poll. To ask without waiting, use
/// [`Client::is_draining`](super::Client::is_draining).
#[must_use = "a future does nothing unless it is awaited"]
pub struct Draining {
    listener: Listener,
    connection: Recheck,
    asked: Asked,
}

impl Draining {
    pub(super) fn new(drain: Rc<Drain>, connection: Recheck) -> Self {
        Self {
            listener: Listener::new(drain),
            connection,
            asked: Asked::default(),
        }
    }
}

impl Future for Draining {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        ready!(this.listener.poll(context));
        this.connection.poll(context, &mut this.asked)
    }
}

impl fmt::Debug for Draining {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Draining")
            .field("has_begun", &self.listener.drain.has_begun())
            .finish_non_exhaustive()
    }
}
