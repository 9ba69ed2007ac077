//! Threads for calls that block.

use std::collections::VecDeque;
use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use ringloop_driver::affinity;
use ringloop_reactor::panics;

use crate::sys::PerProcess;

/// The number of threads of each kind, unless a runtime is configured otherwise.
pub(crate) const THREADS_DEFAULT: usize = 64;

/// The largest number of threads of each kind.
pub(crate) const THREADS_MAX: usize = 4096;

/// How long a thread waits for a call before it exits.
const IDLE_MAX: Duration = Duration::from_secs(10);

/// For calls of the user's.
static BLOCKING: Threads = Threads::new("ringloop-blocking");

/// For looking up names, which must not wait for what users do.
static RESOLVER: Threads = Threads::new("ringloop-resolver");

pub(crate) type Call = Box<dyn FnOnce() + Send>;

/// The purpose of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Blocking,
    Resolving,
}

/// How many threads a runtime's calls may use, by purpose. The threads are the process's. So this is how many there may be
/// for one of this runtime's calls to start another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) blocking: usize,
    pub(crate) resolving: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            blocking: THREADS_DEFAULT,
            resolving: THREADS_DEFAULT,
        }
    }
}

impl Limits {
    /// Has a thread make a call, which waits for one if all are busy, and there are as many as there may be.
    pub(crate) fn submit(self, purpose: Purpose, call: Call) -> io::Result<()> {
        let (threads, limit) = match purpose {
            Purpose::Blocking => (&BLOCKING, self.blocking),
            Purpose::Resolving => (&RESOLVER, self.resolving),
        };
        let pool = threads.pool.get(|| Pool::new(threads.name));
        pool.submit(limit, call)
    }
}

/// The threads of one kind. A forked child has its own.
struct Threads {
    name: &'static str,
    pool: PerProcess<Pool>,
}

impl Threads {
    const fn new(name: &'static str) -> Self {
        Self {
            name,
            pool: PerProcess::new(),
        }
    }
}

struct Pool {
    name: &'static str,
    state: Mutex<State>,
    work: Condvar,
}

struct State {
    calls: VecDeque<Call>,
    threads: usize,
    idle: usize,
}

impl Pool {
    fn new(name: &'static str) -> Self {
        let state = State {
            calls: VecDeque::new(),
            threads: 0,
            idle: 0,
        };
        Self {
            name,
            state: Mutex::new(state),
            work: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn submit(&'static self, limit: usize, call: Call) -> io::Result<()> {
        let mut state = self.lock();
        state.calls.push_back(call);
        if state.idle >= state.calls.len() || state.threads >= limit {
            drop(state);
            self.work.notify_one();
            return Ok(());
        }
        let started = thread::Builder::new().name(self.name.to_owned()).spawn(|| {
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
                // `blocking::run` forwards a panic of the call to its caller. If the caller is gone, the result is dropped here.
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
