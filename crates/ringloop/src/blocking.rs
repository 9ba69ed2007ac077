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

static POOL: Pool = Pool {
    state: Mutex::new(State {
        calls: VecDeque::new(),
        threads: 0,
        idle: 0,
    }),
    work: Condvar::new(),
};

impl Pool {
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
                call();
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

impl<T> Future for Waiting<T> {
    type Output = thread::Result<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut outcome = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Outcome::Ready(result) = std::mem::replace(&mut *outcome, Outcome::Taken) {
            return Poll::Ready(result);
        }
        *outcome = Outcome::Pending(Some(context.waker().clone()));
        Poll::Pending
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
    POOL.submit(Box::new(move || {
        let result = panic::catch_unwind(AssertUnwindSafe(call));
        let mut outcome = shared.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *outcome, Outcome::Ready(result));
        drop(outcome);
        if let Outcome::Pending(Some(waiter)) = before {
            waiter.wake();
        }
    }))?;
    match Waiting(outcome).await {
        Ok(result) => Ok(result),
        Err(payload) => panic::resume_unwind(payload),
    }
}
