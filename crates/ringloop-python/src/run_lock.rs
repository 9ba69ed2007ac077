//! The equivalent of the lock in asyncio's `_ThreadSafeHandle` (Python 3.14): a thread that cancels a handle of
//! `call_soon_threadsafe`, or asks whether it was cancelled, waits until a run in progress has ended.
//!
//! Only the waiting is here: the handle itself knows whether it runs. While nobody waits, the only cost is to note which
//! thread runs which handle.

use std::cell::RefCell;
use std::sync::atomic::{
    AtomicBool,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, Thread};
use std::time::Duration;

use crate::names::intern;
use pyo3::prelude::*;

/// Whether the running Python's asyncio has such a lock.
static IN_USE: AtomicBool = AtomicBool::new(false);
/// Whether `WAITING` has any.
static SOME_WAIT: AtomicBool = AtomicBool::new(false);
/// Threads that wait for the end of a run, to be unparked. A lock that is held only by attached threads, which don't
/// detach meanwhile: so `os.fork`, which has the GIL or stops all such threads, finds it free, and no child inherits it
/// locked.
static WAITING: Mutex<Vec<Thread>> = Mutex::new(Vec::new());
/// How long a wait goes on without a look at signals: asyncio's can be interrupted.
const WAIT_MAX: Duration = Duration::from_millis(50);

thread_local! {
    /// The addresses of the handles that this thread runs, the innermost last: the lock is reentrant.
    static OWN_RUNS: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Finds out whether the running Python's handles have the lock.
pub(crate) fn init(py: Python<'_>) -> PyResult<()> {
    let has_lock = py
        .import(intern!(py, "asyncio.events"))?
        .hasattr(intern!(py, "_ThreadSafeHandle"))?;
    IN_USE.store(has_lock, Relaxed);
    Ok(())
}

/// A run of the handle at this address begins.
pub(crate) fn begin(handle: usize) {
    if IN_USE.load(Relaxed) {
        OWN_RUNS.with_borrow_mut(|runs| runs.push(handle));
    }
}

/// The innermost run has ended, and the handle says so.
pub(crate) fn end() {
    if IN_USE.load(Relaxed) {
        OWN_RUNS.with_borrow_mut(Vec::pop);
        // Without the GIL, a thread that waits sets this before it looks whether the handle runs, for the last time.
        if SOME_WAIT.load(SeqCst) {
            wake_all();
        }
    }
}

/// Waits, without the GIL, until `is_running` is false; at once in the thread that runs the handle itself.
pub(crate) fn wait_for_end(
    py: Python<'_>,
    handle: usize,
    is_running: impl Fn() -> bool,
) -> PyResult<()> {
    if !IN_USE.load(Relaxed) || OWN_RUNS.with_borrow(|runs| runs.contains(&handle)) {
        return Ok(());
    }
    while is_running() {
        // Before the GIL is released, so that the end of this run unparks.
        waiting().push(thread::current());
        SOME_WAIT.store(true, SeqCst);
        if cfg!(not(Py_GIL_DISABLED)) || is_running() {
            py.detach(|| thread::park_timeout(WAIT_MAX));
        }
        let own = thread::current().id();
        waiting().retain(|thread| thread.id() != own);
        py.check_signals()?;
    }
    Ok(())
}

/// Each thread checks whether its run has ended. After a fork some may be the parent's threads, which is harmless.
#[cold]
fn wake_all() {
    SOME_WAIT.store(false, SeqCst);
    for thread in waiting().drain(..) {
        thread.unpark();
    }
}

fn waiting() -> MutexGuard<'static, Vec<Thread>> {
    WAITING.lock().unwrap_or_else(PoisonError::into_inner)
}
