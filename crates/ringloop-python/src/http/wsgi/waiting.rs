//! How a view waits for the loop.

use std::sync::{Arc, Condvar, Mutex, PoisonError};

use pyo3::prelude::*;

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

    /// Sleeps until it is called. The GIL must not be held.
    pub(super) fn wait(&self) {
        let mut is_called = self.lock();
        while !*is_called {
            is_called = self
                .changed
                .wait(is_called)
                .unwrap_or_else(PoisonError::into_inner);
        }
        *is_called = false;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, bool> {
        self.is_called
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Acts like a future for an exchange, and calls a thread that waits for it. It does so also when nobody will ever end the
/// wait: the thread then finds that out.
#[pyclass(module = "ringloop._core", name = "_WsgiWaiter", frozen)]
pub(super) struct Waiter {
    parker: Arc<Parker>,
}

impl Waiter {
    pub(super) fn new(parker: Arc<Parker>) -> Self {
        Self { parker }
    }

    pub(super) fn call(&self) {
        self.parker.call();
    }
}

#[pymethods]
#[allow(clippy::unused_self, reason = "futures have these methods")]
impl Waiter {
    fn done(&self) -> bool {
        false
    }

    fn set_result(&self, _value: &Bound<'_, PyAny>) {
        self.call();
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.parker.call();
    }
}
