//! The table of operations that the driver works on for a loop, and who is called when one is over.

use std::collections::HashMap;

use pyo3::prelude::*;
use pyo3::{PyTraverseError, PyVisit};
use ringloop_driver::Token;

/// An operation that was submitted.
pub(crate) struct Submitted {
    /// The object that gets the result.
    pub(crate) operation: Py<PyAny>,
    /// Queued when the result is there.
    pub(crate) handle: Py<PyAny>,
}

/// The operations that have not had their last event.
#[derive(Default)]
pub(crate) struct Operations(HashMap<Token, Submitted>);

impl Operations {
    pub(crate) fn enter(&mut self, token: Token, submitted: Submitted) {
        self.0.insert(token, submitted);
    }

    pub(crate) fn take_out(&mut self, token: Token) -> Option<Submitted> {
        self.0.remove(&token)
    }

    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        for submitted in self.0.values() {
            visit.call(&submitted.operation)?;
            visit.call(&submitted.handle)?;
        }
        Ok(())
    }
}
