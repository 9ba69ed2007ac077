//! Runs blocking calls in a pool of threads.
//!
//! Use it for calls that have no asynchronous alternative. Name resolution uses it, too. A thread that has been idle
//! for ten seconds exits.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use ringloop_driver::affinity;
use ringloop_reactor::panics;

use crate::budget;
use crate::sys::PerProcess;

const THREADS_MAX: usize = 64;
const IDLE_MAX: Duration = Duration::from_secs(10);

type Call = Box<dyn FnOnce() + Send>;

struct Pool {
    state: Mutex<State>,
    work: Condvar,
}

struct State {
    calls: VecDeque<Call>,
    threads: usize,
    idle: usize,
}

static POOL: PerProcess<Pool> = PerProcess::new();

impl Pool {
    fn new() -> Self {
        let state = State {
            calls: VecDeque::new(),
            threads: 0,
            idle: 0,
        };
        Self {
            state: Mutex::new(state),
            work: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn submit(&'static self, call: Call) -> io::Result<()> {
        let mut state = self.lock();
        state.calls.push_back(call);
        if state.idle >= state.calls.len() || state.threads == THREADS_MAX {
            drop(state);
            self.work.notify_one();
            return Ok(());
        }
        let started = thread::Builder::new()
            .name("ringloop-blocking".to_owned())
            .spawn(|| {
                affinity::unpin_thread();
                self.work();
            });
        match started {
            Ok(_) => state.threads += 1,
            // An existing thread will run the call.
            Err(_) if state.threads > 0 => {}
            Err(error) => {
                let call = state.calls.pop_back();
                drop(state);
                drop(call);
                return Err(error);
            }
        }
        Ok(())
    }

    fn work(&self) {
        let mut state = self.lock();
        loop {
            if let Some(call) = state.calls.pop_front() {
                drop(state);
                // `run` forwards a panic of the call to its caller. If the caller is gone, the result is dropped here.
                panics::contain(call);
                state = self.lock();
                continue;
            }
            state.idle += 1;
            let (woken, waited) = self
                .work
                .wait_timeout(state, IDLE_MAX)
                .unwrap_or_else(PoisonError::into_inner);
            state = woken;
            state.idle -= 1;
            if waited.timed_out() && state.calls.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }
}

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
/// threads that all runtimes share.
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
    let outcome = Arc::new(Mutex::new(Outcome::Pending(None)));
    let shared = Arc::clone(&outcome);
    POOL.get(Pool::new).submit(Box::new(move || {
        let result = panic::catch_unwind(AssertUnwindSafe(call));
        if let Outcome::Pending(Some(waiter)) = replace(&shared, Outcome::Ready(result)) {
            waiter.wake();
        }
    }))?;
    match Waiting(outcome).await {
        Ok(result) => Ok(result),
        Err(payload) => panic::resume_unwind(payload),
    }
}
