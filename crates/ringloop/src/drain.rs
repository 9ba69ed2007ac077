//! How those that run in a worker learn that it is asked to end: connections from their server, and other tasks from
//! [`stopping`].

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use ringloop_reactor::panics;
use slab::Slab;

use crate::shared::Shared;

/// Whether those who are registered have been asked to end.
#[derive(Default)]
pub(crate) struct Drain {
    has_begun: Cell<bool>,
    /// Empty places are of those who have been told.
    waiting: RefCell<Slab<Option<Waker>>>,
    /// How many [`Stopping`] there are, and the waker of whoever waits for the last one.
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

    /// How many [`Stopping`] there are.
    pub(crate) fn held(&self) -> usize {
        self.held.get()
    }

    /// Ready when nobody holds a [`Stopping`].
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

/// Tells a task that its worker is asked to end, and lets it finish. Created by [`stopping`].
///
/// It is a future that completes when the [`Pool`](crate::Pool) or the [server](crate::server::Running) is shut down, and
/// at once if that has begun. The shutdown then waits for whoever holds one of these, within its patience: so drop it as
/// soon as there is nothing left to do.
#[must_use = "a future does nothing unless it is awaited"]
pub struct Stopping {
    listener: Listener,
}

/// Asks to be told when the worker of this task is asked to end, for tasks that run beside the connections of a server: to
/// flush what they have gathered, for example. See [`Stopping`].
///
/// Without a [`Pool`](crate::Pool) or a server, nothing asks a runtime to end: the future waits for ever.
///
/// # Panics
/// Panics if it is called outside of a runtime.
///
/// ```
/// use futures_util::future::{Either, select};
/// use ringloop::time::interval;
/// use ringloop::{Pool, PoolConfig, stopping};
/// use std::pin::pin;
/// use std::time::Duration;
///
/// let pool = Pool::new(1, &PoolConfig::default())?;
/// let (sender, receiver) = ringloop::channel::bounded(1);
/// drop(pool.spawn_on(0, || async move {
///     let mut stopping = stopping();
///     let mut ticks = interval(Duration::from_secs(10));
///     while let Either::Left(_) = select(pin!(ticks.tick()), &mut stopping).await {
///         println!("another ten seconds");
///     }
///     sender.send("the last figures").await.unwrap();
/// }));
/// pool.shutdown(Duration::from_secs(5));
/// assert_eq!(receiver.try_recv().unwrap(), "the last figures");
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn stopping() -> Stopping {
    let drain = Rc::clone(&Shared::current().stopping);
    drain.held.set(drain.held.get() + 1);
    Stopping {
        listener: Listener::new(drain),
    }
}

impl Stopping {
    /// Whether the shutdown has begun.
    pub fn has_begun(&self) -> bool {
        self.listener.drain.has_begun()
    }
}

impl Future for Stopping {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.listener.poll(context)
    }
}

impl Drop for Stopping {
    fn drop(&mut self) {
        let drain = &self.listener.drain;
        drain.held.set(drain.held.get() - 1);
        if drain.held.get() == 0
            && let Some(waiter) = drain.released.take()
        {
            waiter.wake();
        }
    }
}

impl fmt::Debug for Stopping {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Stopping")
            .field("has_begun", &self.has_begun())
            .finish_non_exhaustive()
    }
}
