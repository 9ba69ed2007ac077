//! Runs blocking calls in a pool of threads.
//!
//! Use it for calls that have no asynchronous alternative. Names are looked up in threads of their own, so that calls that
//! take long delay no connection. A thread that has been idle for ten seconds exits.

use std::future::Future;
use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;

use ringloop_reactor::panics;

use crate::budget;
use crate::shared::Shared;
use crate::threads::Purpose;

enum Outcome<T> {
    Pending(Option<Waker>),
    Ready(thread::Result<T>),
    Taken,
}

struct Waiting<T>(Arc<Mutex<Outcome<T>>>);

/// Stores an outcome and returns the previous one, so that no destructor runs under the lock.
fn replace<T>(place: &Mutex<Outcome<T>>, outcome: Outcome<T>) -> Outcome<T> {
    let mut place = place.lock().unwrap_or_else(PoisonError::into_inner);
    std::mem::replace(&mut *place, outcome)
}

impl<T> Future for Waiting<T> {
    type Output = thread::Result<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        budget::poll_counted(context, |context| {
            let waiting = Outcome::Pending(Some(context.waker().clone()));
            match replace(&self.0, waiting) {
                Outcome::Ready(result) => Poll::Ready(result),
                _ => Poll::Pending,
            }
        })
    }
}

impl<T> Drop for Waiting<T> {
    /// Removes the waker from a call that is still running, and discards the result of one that has finished.
    fn drop(&mut self) {
        panics::discard(replace(&self.0, Outcome::Taken));
    }
}

/// Runs a closure that may block, and waits for its result without blocking the runtime. The closure runs in a pool of
/// threads that all runtimes share. There are at most 64, or as many as
/// [`RuntimeConfig::blocking_threads`](crate::RuntimeConfig::blocking_threads) says; further calls wait for one.
///
/// Dropping the future does not stop the call. If the closure panics, the panic continues in the caller.
///
/// # Errors
/// Returns an error if a thread is needed and cannot be started.
///
/// ```
/// use ringloop::blocking;
///
/// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
/// let names = blocking::run(|| {
///     let entries = std::fs::read_dir("/")?;
///     entries.map(|entry| Ok(entry?.file_name())).collect::<std::io::Result<Vec<_>>>()
/// });
/// assert!(!names.await??.is_empty());
/// # Ok::<(), std::io::Error>(())
/// # })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub async fn run<T, F>(call: F) -> io::Result<T>
where
    T: Send + 'static,
    F: FnOnce() -> T + Send + 'static,
{
    run_for(Purpose::Blocking, call).await
}

/// Runs a call in a thread for its purpose.
pub(crate) async fn run_for<T, F>(purpose: Purpose, call: F) -> io::Result<T>
where
    T: Send + 'static,
    F: FnOnce() -> T + Send + 'static,
{
    let outcome = Arc::new(Mutex::new(Outcome::Pending(None)));
    let shared = Arc::clone(&outcome);
    let limits = Shared::try_current().map(|shared| shared.thread_limits);
    let call = Box::new(move || {
        let result = panic::catch_unwind(AssertUnwindSafe(call));
        if let Outcome::Pending(Some(waiter)) = replace(&shared, Outcome::Ready(result)) {
            waiter.wake();
        }
    });
    limits.unwrap_or_default().submit(purpose, call)?;
    match Waiting(outcome).await {
        Ok(result) => Ok(result),
        Err(payload) => panic::resume_unwind(payload),
    }
}
