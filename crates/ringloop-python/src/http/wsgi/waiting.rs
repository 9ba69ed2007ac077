//! How a view waits for the loop.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::{PyTraverseError, PyVisit};

use super::pool::Pool;

/// A place where one thread sleeps until another calls it. A call that comes first is kept.
#[derive(Default)]
pub(super) struct Parker {
    is_called: Mutex<bool>,
    changed: Condvar,
}

impl Parker {
    pub(super) fn call(&self) {
        *self.lock() = true;
        self.changed.notify_one();
    }

    /// Sleeps until it is called, or for this long; returns whether it was called. The thread must be detached.
    pub(super) fn wait_for(&self, time: Duration) -> bool {
        let waited = self
            .changed
            .wait_timeout_while(self.lock(), time, |is_called| !*is_called);
        let (mut is_called, _) = waited.unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *is_called)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, bool> {
        self.is_called
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Acts like a future for an exchange, and calls a thread that waits for it when the turn is over: with the GIL, that could
/// do nothing before. It does so also when nobody will ever end the wait: the thread then finds that out.
#[pyclass(module = "ringloop._core", name = "_WsgiWaiter", frozen)]
pub(super) struct Waiter {
    parker: Arc<Parker>,
    pool: Py<Pool>,
    /// It was, or will be.
    is_called: AtomicBool,
}

impl Waiter {
    pub(super) fn new(parker: Arc<Parker>, pool: &Bound<'_, Pool>) -> Self {
        Self {
            parker,
            pool: pool.clone().unbind(),
            is_called: AtomicBool::new(false),
        }
    }

    /// To be called in the loop's thread.
    pub(super) fn call(&self, py: Python<'_>) {
        self.is_called.store(true, Relaxed);
        if Pool::call_at_end(self.pool.bind(py), &self.parker).is_err() {
            self.parker.call(); // There is no loop any more.
        }
    }
}

#[pymethods]
#[allow(clippy::unused_self, reason = "futures have these methods")]
impl Waiter {
    fn done(&self) -> bool {
        false
    }

    fn set_result(&self, py: Python<'_>, _value: &Bound<'_, PyAny>) {
        self.call(py);
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.pool)
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        if !self.is_called.load(Relaxed) {
            self.parker.call();
        }
    }
}
