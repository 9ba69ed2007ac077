//! Access to a runtime from other threads.

#[cfg(feature = "hyper")]
use std::any::Any;
use std::fmt;
use std::future::Future;
use std::panic::Location;
use std::sync::Arc;

#[cfg(feature = "hyper")]
use ringloop_reactor::inbox::SendError;

use crate::metrics::Metrics;
use crate::shared::{Message, Orphan, Remote, Shared};
use crate::task::{self, JoinHandle, Role};
use crate::trace;

/// A handle by which any thread can spawn tasks on a runtime, and read its metrics.
///
/// ```
/// use ringloop::Handle;
///
/// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
/// let handle = Handle::current();
/// let thread = std::thread::spawn(move || {
///     // From any thread, as many tasks as there are to do.
///     handle.spawn_with(|| async { 42 })
/// });
/// let task = thread.join().unwrap();
/// assert_eq!(task.await.unwrap(), 42);
/// # Ok::<(), std::io::Error>(())
/// # })?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone)]
pub struct Handle {
    remote: Arc<Remote>,
}

impl Handle {
    pub(super) fn new(shared: &Shared) -> Self {
        Self {
            remote: Arc::clone(&shared.remote),
        }
    }

    /// Returns the handle of the runtime that runs in this thread.
    ///
    /// # Panics
    /// Panics if it is called outside of a runtime.
    pub fn current() -> Self {
        Self::new(&Shared::current())
    }

    /// Like [`current`](Self::current), but returns `None` outside of a runtime.
    #[cfg(feature = "hyper")]
    pub(crate) fn try_current() -> Option<Self> {
        let shared = Shared::try_current()?;
        Some(Self::new(&shared))
    }

    /// Whether its runtime is the one that runs in this thread.
    #[cfg(feature = "quinn")]
    pub(crate) fn is_here(&self) -> bool {
        Shared::try_current().is_some_and(|shared| Arc::ptr_eq(&shared.remote, &self.remote))
    }

    /// Calls something in the runtime's thread: now if that is this one, otherwise soon. If the runtime is gone, nothing
    /// happens.
    #[cfg(feature = "quinn")]
    pub(crate) fn do_there(&self, call: impl FnOnce(&Shared) + Send + 'static) {
        match Shared::try_current() {
            Some(shared) if Arc::ptr_eq(&shared.remote, &self.remote) => call(&shared),
            _ => drop(self.spawn_with(move || async move { call(&Shared::current()) })),
        }
    }

    /// Drops a value in the runtime's thread. Returns the value if the runtime is gone.
    #[cfg(feature = "hyper")]
    pub(crate) fn drop_there(&self, value: Box<dyn Any + Send>) -> Result<(), Box<dyn Any + Send>> {
        let sent = self.remote.sender.send(Message::Drop(value));
        sent.map_err(|SendError(message)| match message {
            Message::Drop(value) => value,
            _ => unreachable!("it was sent above"),
        })
    }

    /// Spawns a task in the runtime's thread. The future is created there by `make`, so it need not be `Send`. If the
    /// runtime is gone, the join handle reports that the task was cancelled.
    ///
    /// ```
    /// use ringloop::{Runtime, RuntimeConfig};
    /// use std::rc::Rc;
    ///
    /// let mut runtime = Runtime::new(&RuntimeConfig::default())?;
    /// let task = runtime.handle().spawn_with(|| async {
    ///     // Made there, so that it may be what no other thread may see.
    ///     let shared = Rc::new(5);
    ///     *shared
    /// });
    /// assert_eq!(runtime.block_on(task).unwrap(), 5);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[track_caller]
    pub fn spawn_with<M, F, T>(&self, make: M) -> JoinHandle<T>
    where
        M: FnOnce() -> F + Send + 'static,
        F: Future<Output = T> + 'static,
        T: Send + 'static,
    {
        let role = Shared::try_current().map_or(Role::Plain, |shared| shared.tasks.role());
        self.spawn_as(role, make)
    }

    /// Like [`spawn_with`](Self::spawn_with), for a task of another role than the one that spawns it.
    #[track_caller]
    pub(crate) fn spawn_as<M, F, T>(&self, role: Role, make: M) -> JoinHandle<T>
    where
        M: FnOnce() -> F + Send + 'static,
        F: Future<Output = T> + 'static,
        T: Send + 'static,
    {
        // Until this future is polled, in the runtime's thread, it holds only `make`, which may be moved to that thread
        // and dropped in this one.
        let future = async move { trace::task(make()).await };
        let (task, handle) =
            task::new::<F, _, _>(future, role, Arc::clone(&self.remote), Location::caller());
        let message = Message::Adopt(Orphan::new(task));
        drop(self.remote.sender.send(message));
        handle
    }

    /// Returns what the runtime has done so far: counters as of the beginning of its last turn, times until now. This
    /// does not disturb the runtime: the counters are read one after the other while it continues.
    pub fn metrics(&self) -> Metrics {
        self.remote.metrics.snapshot()
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Handle")
    }
}
