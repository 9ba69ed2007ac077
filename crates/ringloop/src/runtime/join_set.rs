//! A set of tasks.

use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker, ready};

use slab::Slab;

use super::spawn;
use crate::budget;
use crate::task::{AbortHandle, JoinError, JoinHandle};

/// A set of tasks, whose results are returned in the order in which the tasks end. Dropping the set aborts the tasks
/// that have not ended.
///
/// ```
/// use ringloop::JoinSet;
/// use ringloop::time::sleep;
/// use std::time::Duration;
///
/// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
/// let mut tasks = JoinSet::new();
/// for milliseconds in [20, 1, 10] {
///     tasks.spawn(async move {
///         sleep(Duration::from_millis(milliseconds)).await;
///         milliseconds
///     });
/// }
/// let mut sum = 0;
/// while let Some(result) = tasks.join_next().await {
///     sum += result?;
/// }
/// assert_eq!(sum, 31);
/// # Ok::<(), std::io::Error>(())
/// # })?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[must_use = "dropping a set aborts its tasks"]
pub struct JoinSet<T> {
    tasks: Slab<Member<T>>,
    ended: Arc<Ended>,
}

enum Member<T> {
    Running(JoinHandle<T>),
    /// It ended before it was in the set, because its runtime has ended.
    Over(Result<T, JoinError>),
}

/// The tasks that have ended, and whose results were not taken yet.
#[derive(Default)]
struct Ended {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Their places in the set, in the order in which they ended.
    places: VecDeque<usize>,
    /// Whoever waits for the next one.
    waiter: Option<Waker>,
}

impl Ended {
    fn state(&self) -> MutexGuard<'_, State> {
        // No user code runs under the lock, so it is never poisoned.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, place: usize) {
        let mut state = self.state();
        state.places.push_back(place);
        let waiter = state.waiter.take();
        drop(state);
        if let Some(waiter) = waiter {
            waiter.wake();
        }
    }
}

/// The waker of one task's handle. A task wakes it once, when its result is there.
struct Ending {
    place: usize,
    ended: Arc<Ended>,
}

impl Wake for Ending {
    fn wake(self: Arc<Self>) {
        self.ended.add(self.place);
    }
}

/// Takes back the waker of a future that is dropped.
struct Waiting<'s>(&'s Ended);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let waiter = self.0.state().waiter.take();
        drop(waiter);
    }
}

impl<T> JoinSet<T> {
    /// Creates an empty set.
    pub fn new() -> Self {
        Self {
            tasks: Slab::new(),
            ended: Arc::default(),
        }
    }

    /// Spawns a task on the runtime of the current thread, see [`spawn`], and adds it to the set.
    ///
    /// # Panics
    /// Panics if it is called outside of a runtime.
    #[track_caller]
    pub fn spawn<F: Future<Output = T> + 'static>(&mut self, future: F) -> AbortHandle
    where
        T: 'static,
    {
        self.insert(spawn(future))
    }

    /// Adds a task that is already running, such as one of another worker.
    ///
    /// ```
    /// use ringloop::{JoinSet, Pool, PoolConfig, Runtime, RuntimeConfig};
    ///
    /// let pool = Pool::new(2, &PoolConfig::default())?;
    /// let mut tasks = JoinSet::new();
    /// for worker in 0..2 {
    ///     tasks.insert(pool.spawn_on(worker, move || async move { worker }));
    /// }
    /// let mut sum = 0;
    /// Runtime::new(&RuntimeConfig::default())?.block_on(async {
    ///     while let Some(result) = tasks.join_next().await {
    ///         sum += result.unwrap();
    ///     }
    /// });
    /// assert_eq!(sum, 1);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn insert(&mut self, mut task: JoinHandle<T>) -> AbortHandle {
        let abort = task.abort_handle();
        let entry = self.tasks.vacant_entry();
        let place = entry.key();
        let waker = Waker::from(Arc::new(Ending {
            place,
            ended: Arc::clone(&self.ended),
        }));
        match task.poll_uncounted(&mut Context::from_waker(&waker)) {
            Poll::Pending => {
                entry.insert(Member::Running(task));
            }
            Poll::Ready(result) => {
                entry.insert(Member::Over(result));
                self.ended.add(place);
            }
        }
        abort
    }

    /// How many tasks are in the set, including those that have ended and whose results were not taken yet.
    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    /// Whether the set has no tasks.
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Waits until a task has ended, removes it from the set and returns its result; `None` if the set is empty.
    ///
    /// If the future is dropped, no result is lost.
    ///
    /// # Errors
    /// Returns a [`JoinError`] for a task that panicked or was aborted.
    pub async fn join_next(&mut self) -> Option<Result<T, JoinError>> {
        let ended = Arc::clone(&self.ended);
        let _waiting = Waiting(&ended);
        poll_fn(|context| self.poll_join_next(context)).await
    }

    fn poll_join_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<T, JoinError>>> {
        if self.tasks.is_empty() {
            return Poll::Ready(None);
        }
        ready!(budget::poll(context));
        // Cloning a waker may run user code, so it is done without the lock.
        let waker = context.waker().clone();
        let before = self.ended.state().waiter.replace(waker);
        drop(before);
        match self.try_join_next() {
            Some(result) => Poll::Ready(Some(result)),
            None => Poll::Pending,
        }
    }

    /// Returns the result of a task that has already ended, and removes it from the set. It is no operation that counts, so a
    /// loop over it does not let other tasks run.
    ///
    /// # Errors
    /// See [`join_next`](Self::join_next).
    pub fn try_join_next(&mut self) -> Option<Result<T, JoinError>> {
        loop {
            let place = self.ended.state().places.pop_front()?;
            match self.tasks.try_remove(place) {
                Some(Member::Over(result)) => return Some(result),
                Some(Member::Running(mut task)) => {
                    let mut context = Context::from_waker(Waker::noop());
                    match task.poll_uncounted(&mut context) {
                        Poll::Ready(result) => return Some(result),
                        Poll::Pending => unreachable!("a task wakes once, when it has ended"),
                    }
                }
                None => {}
            }
        }
    }

    /// Aborts all tasks. They stay in the set: [`join_next`](Self::join_next) returns an error for each of them, or its
    /// result if it had already ended.
    pub fn abort_all(&self) {
        for (_, member) in &self.tasks {
            if let Member::Running(task) = member {
                task.abort();
            }
        }
    }

    /// Aborts all tasks, and waits until their futures have been dropped. Results and panics are discarded.
    ///
    /// ```
    /// use ringloop::JoinSet;
    ///
    /// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
    /// let mut tasks = JoinSet::new();
    /// tasks.spawn(std::future::pending::<()>());
    /// tasks.shutdown().await;
    /// assert!(tasks.is_empty());
    /// # Ok::<(), std::io::Error>(())
    /// # })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub async fn shutdown(&mut self) {
        self.abort_all();
        while let Some(result) = self.join_next().await {
            drop(result);
        }
    }

    /// Removes all tasks from the set. They continue in the background.
    pub fn detach_all(&mut self) {
        // Those that are detached must not appear among the results of others that get their places.
        self.ended = Arc::default();
        let tasks = std::mem::take(&mut self.tasks);
        drop(tasks);
    }
}

impl<T> Default for JoinSet<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Drop for JoinSet<T> {
    fn drop(&mut self) {
        self.abort_all();
    }
}

impl<T> fmt::Debug for JoinSet<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("JoinSet")
            .field("len", &self.len())
            .finish()
    }
}
