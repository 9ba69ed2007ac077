//! How tasks beside the connections of a server, or in a pool, learn that it is asked to end.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use crate::drain::Listener;
use crate::shared::Shared;

/// Tells a task that its worker is asked to end, and lets it finish. Created by [`stopping`].
///
/// It is a future that completes when the shutdown of the [`Pool`](crate::Pool) or the [server](crate::server::Running)
/// begins, or at once if it has begun already. The shutdown waits, up to its time limit, until every `Stopping` is
/// dropped: so drop yours as soon as there is nothing left to do.
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
    drain.hold();
    Stopping {
        listener: Listener::new(drain),
    }
}

impl Stopping {
    /// Whether the shutdown has begun.
    pub fn has_begun(&self) -> bool {
        self.listener.drain().has_begun()
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
        self.listener.drain().release();
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
