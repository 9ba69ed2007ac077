//! How those that run in a worker learn that it is asked to end.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use ringloop_reactor::panics;
use slab::Slab;

/// Whether those who are registered have been asked to end.
#[derive(Default)]
pub(crate) struct Drain {
    has_begun: Cell<bool>,
    /// Empty places are of those who have been told.
    waiting: RefCell<Slab<Option<Waker>>>,
    /// How many `Stopping` there are, and the waker of whoever waits for the last one.
    held: Cell<usize>,
    released: Cell<Option<Waker>>,
}

impl Drain {
    pub(crate) fn has_begun(&self) -> bool {
        self.has_begun.get()
    }

    pub(crate) fn begin(&self) {
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

    /// Notes that somebody holds a `Stopping`, until [`release`](Self::release).
    pub(crate) fn hold(&self) {
        self.held.set(self.held.get() + 1);
    }

    pub(crate) fn release(&self) {
        self.held.set(self.held.get() - 1);
        if self.held.get() == 0
            && let Some(waiter) = self.released.take()
        {
            waiter.wake();
        }
    }

    /// How many `Stopping` there are.
    pub(crate) fn held(&self) -> usize {
        self.held.get()
    }

    /// Ready when nobody holds a `Stopping`.
    pub(crate) fn poll_released(&self, context: &Context<'_>) -> Poll<()> {
        if self.held.get() == 0 {
            return Poll::Ready(());
        }
        self.released.set(Some(context.waker().clone()));
        Poll::Pending
    }
}

/// The registration of one who wants to know.
pub(crate) struct Listener {
    drain: Rc<Drain>,
    place: Option<usize>,
}

impl Listener {
    pub(crate) fn new(drain: Rc<Drain>) -> Self {
        Self { drain, place: None }
    }

    pub(crate) fn drain(&self) -> &Drain {
        &self.drain
    }

    /// For a task that always polls with the same waker: registers it once.
    pub(crate) fn has_begun(&mut self, context: &Context<'_>) -> bool {
        if self.place.is_none() {
            let waker = context.waker().clone();
            self.place = Some(self.drain.waiting.borrow_mut().insert(Some(waker)));
        }
        self.drain.has_begun()
    }

    /// For a task that may poll with another waker each time.
    pub(crate) fn poll(&mut self, context: &Context<'_>) -> Poll<()> {
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
