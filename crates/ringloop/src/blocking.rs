//! Calls that block, in threads of their own.
//!
//! For the system's resolver and for what else has no other way. A thread that has nothing to do for ten seconds ends.

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

use crate::panics;
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
            // A thread that is there will do it.
            Err(_) if state.threads > 0 => {}
            Err(error) => {
                state.calls.pop_back();
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
                // The call's own panic is its caller's. The caller may be gone, and then its result is dropped here.
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

/// Puts another outcome into the place of the one before, which is not dropped while the place is locked.
fn replace<T>(place: &Mutex<Outcome<T>>, outcome: Outcome<T>) -> Outcome<T> {
    let mut place = place.lock().unwrap_or_else(PoisonError::into_inner);
    std::mem::replace(&mut *place, outcome)
}

impl<T> Future for Waiting<T> {
    type Output = thread::Result<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let waiting = Outcome::Pending(Some(context.waker().clone()));
        match replace(&self.0, waiting) {
            Outcome::Ready(result) => Poll::Ready(result),
            _ => Poll::Pending,
        }
    }
}

impl<T> Drop for Waiting<T> {
    /// A call that goes on keeps no waker of a future that is gone, and a result that has come is nobody's.
    fn drop(&mut self) {
        panics::discard(replace(&self.0, Outcome::Taken));
    }
}

/// Runs a call that may block, in a thread of a pool that all runtimes share, and waits for its result without blocking.
/// Dropping the future does not stop the call. A panic of the call goes on in the caller.
///
/// # Errors
/// If no thread could be started.
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
