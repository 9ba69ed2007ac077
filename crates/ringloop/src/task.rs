//! Tasks: a future, its place in the run queue, and its result.
//!
//! A task belongs to the thread of the runtime that it was spawned on. It is polled and dropped only there, so its
//! future need not be `Send`. Other threads may wake it, abort it and wait for its result.
//!
//! A task is a single allocation. It is shared by the runtime's list of live tasks, the run queue, wakers and the
//! [`JoinHandle`]. One bit says whether it is queued, so that it is in the queue at most once.

#![allow(unsafe_code)]

mod abort;
mod live;
mod state;
mod watch;

use std::any::{Any, type_name};
use std::cell::UnsafeCell;
use std::fmt;
use std::future::Future;
use std::io::{self, Write};
use std::marker::PhantomData;
use std::panic::{self, AssertUnwindSafe, Location};
use std::pin::Pin;
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use ringloop_reactor::panics;

use crate::budget;
use abort::Abort;
pub use abort::{AbortHandle, AbortOnDrop};
pub(crate) use live::{Awaited, Tasks};
use state::{Begin, State};
pub(crate) use watch::{Origin, Watch};

/// The owner of a task, which decides who waits for it when the runtime is asked to end. A task has the role of the task
/// that spawned it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// To the program. A pool waits for it, and a server that ends does not.
    Plain,
    /// To the connections of a server, which waits for it.
    Connection,
    /// To nothing: nobody waits for it.
    Background,
}

/// A task of any type, as the run queue stores it.
pub(crate) type Runnable = Arc<dyn Run>;

/// The operations of a runtime on its tasks.
pub(crate) trait Run: Send + Sync {
    /// Polls the task once, unless it has ended. Returns true if it ended in this call, which happens once in the life
    /// of a task.
    ///
    /// # Safety
    /// The caller must be in the thread of the task's runtime, and the task must not be running already.
    unsafe fn run(self: Arc<Self>) -> bool;

    /// Ends the task where it is: drops its future and tells its handle.
    ///
    /// # Safety
    /// The task must not be running. The caller must be in the thread of the task's runtime, or no runtime has adopted the
    /// task yet, and its future, which was never polled, holds only what any thread may drop.
    unsafe fn end(&self);

    /// The role of the task.
    fn role(&self) -> Role;

    /// The task's place in its runtime's list of live tasks.
    fn index(&self) -> usize;

    /// Sets that place.
    fn adopt(&self, index: usize);

    /// The type of its future, and where it was spawned.
    fn origin(&self) -> Origin;
}

/// The owner of a task: its runtime, as far as other threads can reach it.
pub(crate) trait Schedule: Send + Sync + 'static {
    /// Queues a task that was woken or aborted. Any thread may call this.
    fn schedule(self: &Arc<Self>, task: Runnable);
}

/// Why a task has no result.
///
/// ```
/// use ringloop::spawn;
///
/// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
/// let error = spawn(async { panic!("on purpose") }).await.unwrap_err();
/// assert!(error.is_panic());
/// assert_eq!(error.to_string(), "the task panicked: on purpose");
/// # Ok::<(), std::io::Error>(())
/// # })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct JoinError {
    reason: Reason,
}

enum Reason {
    Cancelled,
    Panicked {
        message: Option<String>,
        /// Never locked. The mutex makes the error `Sync`, which many error types must be.
        payload: Mutex<Box<dyn Any + Send>>,
    },
}

impl Reason {
    fn panicked(payload: Box<dyn Any + Send>) -> Self {
        Self::Panicked {
            message: panics::message(&*payload).map(str::to_owned),
            payload: Mutex::new(payload),
        }
    }
}

impl JoinError {
    /// Whether the task was aborted, or its runtime ended first.
    pub fn is_cancelled(&self) -> bool {
        matches!(self.reason, Reason::Cancelled)
    }

    /// Whether the task panicked.
    pub fn is_panic(&self) -> bool {
        !self.is_cancelled()
    }

    /// Returns the payload of the panic, for [`std::panic::resume_unwind`]; or the error itself if the task was
    /// cancelled.
    ///
    /// ```
    /// use ringloop::spawn;
    ///
    /// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
    /// let error = spawn(async { panic!("on purpose") }).await.unwrap_err();
    /// let payload = error.try_into_panic().unwrap();
    /// assert_eq!(payload.downcast_ref(), Some(&"on purpose"));
    /// // std::panic::resume_unwind(payload) would go on with it.
    /// # Ok::<(), std::io::Error>(())
    /// # })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn try_into_panic(self) -> Result<Box<dyn Any + Send>, JoinError> {
        match self.reason {
            Reason::Panicked { payload, .. } => {
                Ok(payload.into_inner().unwrap_or_else(PoisonError::into_inner))
            }
            Reason::Cancelled => Err(self),
        }
    }

    fn message(&self) -> Option<&str> {
        match &self.reason {
            Reason::Cancelled => None,
            Reason::Panicked { message, .. } => message.as_deref(),
        }
    }
}

impl fmt::Display for JoinError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.reason, self.message()) {
            (Reason::Cancelled, _) => formatter.write_str("the task was cancelled"),
            (_, Some(message)) => write!(formatter, "the task panicked: {message}"),
            (_, None) => formatter.write_str("the task panicked"),
        }
    }
}

impl fmt::Debug for JoinError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "JoinError({self})")
    }
}

impl std::error::Error for JoinError {}

impl From<JoinError> for std::io::Error {
    fn from(error: JoinError) -> Self {
        Self::other(error)
    }
}

/// Where the result waits for the task's handle.
enum Outcome<T> {
    /// The task has not ended. Contains the waker of whoever waits for it.
    Pending(Option<Waker>),
    /// The task has ended, and its result was not taken yet.
    Ready(Result<T, JoinError>),
    /// The result was taken, or nobody will ask for it.
    Gone,
}

enum Stage<F> {
    Live(F),
    Over,
}

/// `N` is the type that the task is known by: `F` may be a wrapper of it.
struct Task<F: Future, S, N> {
    state: State,
    role: Role,
    /// Used only by the runtime's thread.
    index: AtomicU32,
    owner: Arc<S>,
    outcome: Mutex<Outcome<F::Output>>,
    stage: UnsafeCell<Stage<F>>,
    /// Where it was spawned.
    location: &'static Location<'static>,
    name: PhantomData<fn() -> N>,
}

// SAFETY: other threads reach `state`, `owner` and `outcome`, which are synchronised. `stage` is touched by `run` and
// `end` alone, whose callers are in the owner's thread; it is `Over` before the runtime lets go of the task, so that
// whoever drops the last reference drops no future (`Task::drop` makes sure of it). A value in `outcome` that is not Send
// leaves the owner's thread only with a JoinHandle, which is Send only if the value is.
unsafe impl<F: Future, S: Schedule, N> Send for Task<F, S, N> {}
// SAFETY: a shared reference gives other threads `state`, `owner` and `outcome`, which are synchronised. `stage` is
// touched by `run` and `end` alone: in the owner's thread, or in the one thread that has a task that no runtime has
// adopted.
unsafe impl<F: Future, S: Schedule, N> Sync for Task<F, S, N> {}

impl<F: Future, S, N> Drop for Task<F, S, N> {
    /// A runtime ends each of its tasks before it lets go of them. If one was missed, its future must not be dropped here,
    /// in whatever thread this is; and it is pinned, so its memory must not be freed without that.
    fn drop(&mut self) {
        if let Stage::Live(_) = self.stage.get_mut() {
            let message =
                "ringloop: a task was dropped before it had ended, which is a bug of ringloop";
            let _ = writeln!(io::stderr(), "{message}");
            process::abort();
        }
    }
}

impl<F: Future, S, N> Task<F, S, N> {
    fn outcome(&self) -> MutexGuard<'_, Outcome<F::Output>> {
        // No user code runs under the lock, so it is never poisoned.
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drops the future, and passes the result to the handle.
    ///
    /// # Safety
    /// See [`Run::run`].
    unsafe fn finish(&self, result: Result<F::Output, JoinError>) {
        self.state.finish();
        // SAFETY: the caller is in the owner's thread and the task is not being polled.
        let stage = unsafe { &mut *self.stage.get() };
        // The assignment drops the pinned future in place, and takes effect even if that drop panics.
        let dropped = panic::catch_unwind(AssertUnwindSafe(|| *stage = Stage::Over));
        let result = match (result, dropped) {
            (result, Ok(())) => result,
            // The first panic is the cause of the failure.
            (Err(error), Err(payload)) if error.is_panic() => {
                panics::discard(payload);
                Err(error)
            }
            (result, Err(payload)) => {
                panics::discard(result);
                Err(JoinError {
                    reason: Reason::panicked(payload),
                })
            }
        };
        let mut outcome = self.outcome();
        let (waiter, unwanted) = match std::mem::replace(&mut *outcome, Outcome::Gone) {
            Outcome::Pending(waiter) => {
                *outcome = Outcome::Ready(result);
                (waiter, None)
            }
            _ => (None, Some(result)),
        };
        drop(outcome);
        if let Some(waiter) = waiter {
            // It may be of the user's making. If it panics, the task has ended all the same, and so must others.
            panics::contain(|| waiter.wake());
        }
        panics::discard(unwanted);
    }
}

impl<F: Future + 'static, S: Schedule, N: 'static> Run for Task<F, S, N> {
    unsafe fn run(self: Arc<Self>) -> bool {
        let task: *const Self = &raw const *self;
        match self.state.begin() {
            Begin::Over => return false,
            Begin::Abort => {
                // SAFETY: the caller is in the thread of the task's runtime and does not poll the task, which is the
                // function's contract.
                unsafe { self.end() };
                return true;
            }
            Begin::Poll => {}
        }
        // The queue's reference becomes the waker's, so that polling does not count references.
        let waker = Waker::from(self);
        // SAFETY: the waker holds a reference until the end of this function.
        let task = unsafe { &*task };
        // SAFETY: the caller is in the owner's thread, and does not run a task that is running.
        let Stage::Live(future) = (unsafe { &mut *task.stage.get() }) else {
            return false;
        };
        // SAFETY: the future is in an allocation that does not move, and is dropped in place by `finish`.
        let future = unsafe { Pin::new_unchecked(future) };
        let mut context = Context::from_waker(&waker);
        let polled = panic::catch_unwind(AssertUnwindSafe(|| future.poll(&mut context)));
        let result = match polled {
            Ok(Poll::Pending) => return false,
            Ok(Poll::Ready(output)) => Ok(output),
            Err(payload) => Err(JoinError {
                reason: Reason::panicked(payload),
            }),
        };
        // SAFETY: the caller is in the thread of the task's runtime, which is the function's contract, and the poll has
        // ended.
        unsafe { task.finish(result) };
        true
    }

    unsafe fn end(&self) {
        // SAFETY: nobody polls the task, and this thread may drop its future, which is the function's contract.
        unsafe {
            self.finish(Err(JoinError {
                reason: Reason::Cancelled,
            }));
        };
    }

    fn role(&self) -> Role {
        self.role
    }

    fn index(&self) -> usize {
        self.index.load(Ordering::Relaxed) as usize
    }

    fn adopt(&self, index: usize) {
        let index = u32::try_from(index).expect("memory ends long before 4 billion tasks");
        self.index.store(index, Ordering::Relaxed);
    }

    fn origin(&self) -> Origin {
        Origin {
            name: type_name::<N>(),
            location: self.location,
        }
    }
}

impl<F: Future + 'static, S: Schedule, N: 'static> Wake for Task<F, S, N> {
    fn wake(self: Arc<Self>) {
        if self.state.schedule() {
            let owner = Arc::clone(&self.owner);
            owner.schedule(self);
        }
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.state.schedule() {
            self.owner.schedule(Arc::clone(self) as Runnable);
        }
    }
}

/// The operations of a [`JoinHandle`] on its task.
trait Join<T>: Abort {
    fn poll_outcome(&self, context: &mut Context<'_>) -> Poll<Result<T, JoinError>>;
    fn is_finished(&self) -> bool;
    fn detach(&self);
}

impl<F: Future + 'static, S: Schedule, N: 'static> Join<F::Output> for Task<F, S, N> {
    fn poll_outcome(&self, context: &mut Context<'_>) -> Poll<Result<F::Output, JoinError>> {
        if let Outcome::Pending(Some(waiter)) = &*self.outcome()
            && waiter.will_wake(context.waker())
        {
            return Poll::Pending;
        }
        // Cloning a waker may run user code, so it is done without the lock.
        let waker = context.waker().clone();
        let mut outcome = self.outcome();
        let before = std::mem::replace(&mut *outcome, Outcome::Gone);
        if let Outcome::Pending(_) = before {
            *outcome = Outcome::Pending(Some(waker));
        }
        drop(outcome);
        match before {
            Outcome::Ready(result) => Poll::Ready(result),
            Outcome::Pending(_) => Poll::Pending,
            Outcome::Gone => panic!("a JoinHandle was polled after it had returned its result"),
        }
    }

    fn is_finished(&self) -> bool {
        !matches!(*self.outcome(), Outcome::Pending(_))
    }

    fn detach(&self) {
        let outcome = std::mem::replace(&mut *self.outcome(), Outcome::Gone);
        drop(outcome);
    }
}

impl<F: Future + 'static, S: Schedule, N: 'static> Abort for Task<F, S, N> {
    fn abort(self: Arc<Self>) {
        if self.state.abort() {
            let owner = Arc::clone(&self.owner);
            owner.schedule(self);
        }
    }

    fn is_over(&self) -> bool {
        self.state.is_over()
    }
}

/// A handle to a task. Awaiting it returns the task's result; dropping it lets the task continue in the background.
///
/// It is `Send` if the result is.
///
/// ```
/// use ringloop::spawn;
///
/// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
/// let task = spawn(async { 6 * 7 });
/// assert_eq!(task.await.unwrap(), 42);
/// // In the background, and nobody will hear of a panic.
/// drop(spawn(async { println!("hello") }));
/// # Ok::<(), std::io::Error>(())
/// # })?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[must_use = "a task continues without its handle; `drop` the handle to detach the task, or await it to notice a panic"]
pub struct JoinHandle<T> {
    task: Arc<dyn Join<T>>,
    result: PhantomData<T>,
}

impl<T> JoinHandle<T> {
    /// Aborts the task: its future is dropped in its own thread, where it waits, and the handle returns a [`JoinError`]
    /// that [is cancelled](JoinError::is_cancelled). Has no effect if the task has ended.
    ///
    /// ```
    /// use ringloop::{spawn, yield_now};
    ///
    /// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
    /// let task = spawn(std::future::pending::<()>());
    /// yield_now().await;
    /// assert!(!task.is_finished());
    /// task.abort();
    /// assert!(task.await.unwrap_err().is_cancelled());
    /// # Ok::<(), std::io::Error>(())
    /// # })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn abort(&self) {
        Arc::clone(&self.task).abort();
    }

    /// Whether the task has ended.
    pub fn is_finished(&self) -> bool {
        self.task.is_finished()
    }

    /// Returns a handle that can abort the task, and nothing else. Any thread may use it, and it may outlive this one.
    pub fn abort_handle(&self) -> AbortHandle {
        // A value that is not Send is taken out before the last `JoinHandle` is dropped, in this handle's thread, so the
        // new one never drops it.
        AbortHandle::new(Arc::clone(&self.task) as Arc<dyn Abort>)
    }

    /// Ties the task to the handle: dropping the handle that this returns aborts the task.
    pub fn abort_on_drop(self) -> AbortOnDrop<T> {
        AbortOnDrop::new(self)
    }
}

impl<T> JoinHandle<T> {
    /// Polls as awaiting does, but does not count as an operation of the task that runs, and so is never refused.
    pub(crate) fn poll_uncounted(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<T, JoinError>> {
        self.task.poll_outcome(context)
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, JoinError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        budget::poll_counted(context, |context| self.task.poll_outcome(context))
    }
}

impl<T> Unpin for JoinHandle<T> {}

impl<T> Drop for JoinHandle<T> {
    fn drop(&mut self) {
        self.task.detach();
    }
}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("JoinHandle")
            .field("is_finished", &self.is_finished())
            .finish()
    }
}

/// Creates a task, which its runtime must adopt and queue at once. It is known by the type `N`, and was spawned at
/// `location`.
///
/// In another thread than the owner's, the future may only hold what may be moved to that thread: see
/// [`Handle::spawn_with`](crate::Handle::spawn_with).
pub(crate) fn new<N: 'static, F: Future + 'static, S: Schedule>(
    future: F,
    role: Role,
    owner: Arc<S>,
    location: &'static Location<'static>,
) -> (Runnable, JoinHandle<F::Output>) {
    let task = Arc::new(Task::<F, S, N> {
        state: State::scheduled(),
        role,
        index: AtomicU32::new(u32::MAX),
        owner,
        outcome: Mutex::new(Outcome::Pending(None)),
        stage: UnsafeCell::new(Stage::Live(future)),
        location,
        name: PhantomData,
    });
    let handle = JoinHandle {
        task: Arc::clone(&task) as Arc<dyn Join<F::Output>>,
        result: PhantomData,
    };
    (task, handle)
}

/// Polls a task from its runtime's queue. Returns true if it ended.
///
/// This is safe because only a runtime's own queue returns tasks, and a runtime does not leave its thread. `Runnable`s
/// reach other threads only as wakers and messages, which cannot run them.
fn run(task: Runnable) -> bool {
    // SAFETY: only the queue of the task's runtime gives a `Runnable` to this function, in the runtime's own thread,
    // and a runtime polls one task at a time.
    unsafe { task.run() }
}

/// Ends a task.
///
/// This is safe because there are two kinds of callers. The task's runtime calls it in its own thread, when it polls no
/// task. And [`Orphan`](crate::shared::Orphan) calls it in any thread, for a task that no runtime has adopted, hence never
/// polled: until it is polled, the future of such a task holds only what any thread may drop, as
/// [`Handle::spawn_with`](crate::Handle::spawn_with) makes it.
pub(crate) fn end(task: &Runnable) {
    // SAFETY: the caller is the task's runtime in its own thread, which polls no task meanwhile. Or no runtime has
    // adopted the task: then nobody polls it, and this thread may drop its future.
    unsafe { task.end() }
}
