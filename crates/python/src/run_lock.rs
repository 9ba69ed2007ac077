//! What stands for the lock of asyncio's `_ThreadSafeHandle` (Python 3.14): another thread that cancels a handle of
//! `call_soon_threadsafe`, or asks whether it was cancelled, waits until a run of it that is in progress has ended.
//!
//! The GIL guards the handle's fields; here is only the waiting. No lock per handle, and nothing to pay for while nobody
//! waits but the note of who runs what.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;

/// Whether the running Python's asyncio has such a lock.
static IN_USE: AtomicBool = AtomicBool::new(false);
/// Threads that wait for the end of a run. Changed under the GIL.
static WAITING: AtomicUsize = AtomicUsize::new(0);
/// Counts the runs that have ended while somebody waited.
static ENDED: Mutex<u64> = Mutex::new(0);
static SOME_RUN_HAS_ENDED: Condvar = Condvar::new();
/// How long a wait goes on without a look at signals: asyncio's can be interrupted.
const WAIT_AT_MOST: Duration = Duration::from_millis(50);

thread_local! {
    /// The addresses of the handles that this thread runs, the innermost last: the lock is reentrant.
    static OWN_RUNS: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Finds out whether the running Python's handles have the lock.
pub(crate) fn init(py: Python<'_>) -> PyResult<()> {
    let has_lock = py.import("asyncio.events")?.hasattr("_ThreadSafeHandle")?;
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
        if WAITING.load(Relaxed) > 0 {
            *ended() += 1;
            SOME_RUN_HAS_ENDED.notify_all();
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
        // Before the GIL is released, so that the end of this run counts.
        let before = *ended();
        WAITING.fetch_add(1, Relaxed);
        py.detach(|| {
            let waited = SOME_RUN_HAS_ENDED
                .wait_timeout_while(ended(), WAIT_AT_MOST, |ended| *ended == before);
            drop(waited);
        });
        WAITING.fetch_sub(1, Relaxed);
        py.check_signals()?;
    }
    Ok(())
}

/// Held for moments only, and never while the GIL is waited for.
fn ended() -> MutexGuard<'static, u64> {
    ENDED.lock().unwrap_or_else(PoisonError::into_inner)
}
