//! Handles that abort a task.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::{JoinError, JoinHandle};

/// The operations on a task that any thread may do, whatever the type of its result.
pub(super) trait Abort: Send + Sync {
    fn abort(self: Arc<Self>);
    fn is_over(&self) -> bool;
}

/// A handle that can abort a task, and nothing else; created by [`JoinHandle::abort_handle`]. Dropping it has no effect.
///
/// ```
/// use ringloop::spawn;
///
/// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
/// let task = spawn(std::future::pending::<()>());
/// let abort = task.abort_handle();
/// // Another thread may have it.
/// std::thread::spawn(move || abort.abort()).join().unwrap();
/// assert!(task.await.unwrap_err().is_cancelled());
/// # Ok::<(), std::io::Error>(())
/// # })?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone)]
pub struct AbortHandle {
    task: Arc<dyn Abort>,
}

impl AbortHandle {
    pub(super) fn new(task: Arc<dyn Abort>) -> Self {
        Self { task }
    }

    /// Aborts the task, see [`JoinHandle::abort`]. Has no effect if the task has ended.
    pub fn abort(&self) {
        Arc::clone(&self.task).abort();
    }

    /// Whether the task has ended. Another thread may see this while the task's future is still being dropped.
    pub fn is_finished(&self) -> bool {
        self.task.is_over()
    }
}

impl fmt::Debug for AbortHandle {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("AbortHandle")
            .field("is_finished", &self.is_finished())
            .finish()
    }
}

/// A handle to a task that aborts the task when it is dropped; created by [`JoinHandle::abort_on_drop`]. Awaiting it
/// returns the task's result.
///
/// The task's future is dropped in the next turn of its runtime.
///
/// ```
/// use ringloop::time::{sleep, timeout};
/// use ringloop::spawn;
/// use std::time::Duration;
///
/// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
/// let task = spawn(async { sleep(Duration::from_secs(60)).await }).abort_on_drop();
/// let abort = task.abort_handle();
/// // The timeout drops the handle, and so nothing is left that runs for a minute.
/// assert!(timeout(Duration::from_millis(1), task).await.is_err());
/// ringloop::yield_now().await;
/// assert!(abort.is_finished());
/// # Ok::<(), std::io::Error>(())
/// # })?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[must_use = "dropping this aborts the task; use `detach` to let the task continue without it"]
pub struct AbortOnDrop<T> {
    /// `None` once it is detached.
    handle: Option<JoinHandle<T>>,
}

impl<T> AbortOnDrop<T> {
    pub(super) fn new(handle: JoinHandle<T>) -> Self {
        Self {
            handle: Some(handle),
        }
    }

    fn handle(&self) -> &JoinHandle<T> {
        self.handle.as_ref().expect("only `detach` takes it")
    }

    /// Aborts the task, see [`JoinHandle::abort`].
    pub fn abort(&self) {
        self.handle().abort();
    }

    /// Whether the task has ended.
    pub fn is_finished(&self) -> bool {
        self.handle().is_finished()
    }

    /// Returns a handle that can abort the task, see [`JoinHandle::abort_handle`].
    pub fn abort_handle(&self) -> AbortHandle {
        self.handle().abort_handle()
    }

    /// Returns an ordinary handle. Dropping that one lets the task continue.
    ///
    /// ```
    /// use ringloop::spawn;
    ///
    /// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
    /// let task = spawn(async { "done" }).abort_on_drop();
    /// assert_eq!(task.detach().await.unwrap(), "done");
    /// # Ok::<(), std::io::Error>(())
    /// # })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn detach(mut self) -> JoinHandle<T> {
        self.handle.take().expect("only `detach` takes it")
    }
}

impl<T> Future for AbortOnDrop<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let handle = self.handle.as_mut().expect("only `detach` takes it");
        Pin::new(handle).poll(context)
    }
}

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        if let Some(handle) = &self.handle {
            handle.abort();
        }
    }
}

impl<T> fmt::Debug for AbortOnDrop<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("AbortOnDrop")
            .field("is_finished", &self.is_finished())
            .finish()
    }
}
