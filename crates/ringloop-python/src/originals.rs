//! Methods of the standard library's that native code stands for: whether they are still in their classes.
//!
//! Users put methods of their own there, and expect these to be called. A class has a version (`tp_version_tag`), which
//! the interpreter changes with the class or one of its bases. It is 0 before the first lookup after a change, and for
//! ever where the versions have run out (from Python 3.13 on, after a thousand changes): nothing is remembered then.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use pyo3::exceptions::PyAssertionError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyType};

use crate::objects::{self, New};

/// The version of a class, which changes with it; 0 while it has none.
#[inline]
fn version_of(class: &Bound<'_, PyType>) -> u32 {
    // SAFETY: the GIL is held and the class is alive. Without the GIL, the interpreter writes the field atomically.
    unsafe {
        let version = &raw mut (*class.as_type_ptr()).tp_version_tag;
        AtomicU32::from_ptr(version).load(Relaxed)
    }
}

/// The findings about a class.
pub(crate) struct Checked {
    /// The version of the class that was looked at last, and in the lowest bit what was found; 0 for nothing.
    state: AtomicU64,
}

impl Checked {
    pub(crate) const fn new() -> Self {
        Self {
            state: AtomicU64::new(0),
        }
    }

    /// Returns what `look` finds in the class. `look` is called where that may have changed. Only the last class is
    /// remembered: no two classes ever have the same version.
    #[inline]
    pub(crate) fn find(
        &self,
        class: &Bound<'_, PyType>,
        look: impl FnMut() -> PyResult<bool>,
    ) -> PyResult<bool> {
        let version = version_of(class);
        let state = self.state.load(Relaxed);
        if version != 0 && u64::from(version) == state >> 1 {
            return Ok(state & 1 == 1);
        }
        self.look(class, version, look)
    }

    /// Looks, and remembers what was found in a version of the class. The lookups give the class one, if it has none.
    /// They may run Python code, which may change the class meanwhile.
    #[cold]
    fn look(
        &self,
        class: &Bound<'_, PyType>,
        mut version: u32,
        mut look: impl FnMut() -> PyResult<bool>,
    ) -> PyResult<bool> {
        let mut found = look()?;
        if version == 0 {
            version = version_of(class);
            if version != 0 {
                found = look()?;
            }
        }
        if version != 0 && version == version_of(class) {
            let state = u64::from(version) << 1 | u64::from(found);
            self.state.store(state, Relaxed);
        }
        Ok(found)
    }
}

/// Whether this is a function of a module. One that the user has put in its place is not, even if it was there before we
/// were imported.
pub(crate) fn is_function_of(function: &Bound<'_, PyAny>, module: &Bound<'_, PyDict>) -> bool {
    // SAFETY: the GIL is held, and the globals are asked for after the check of the type.
    unsafe {
        ffi::PyFunction_Check(function.as_ptr()) != 0
            && ffi::PyFunction_GetGlobals(function.as_ptr()) == module.as_ptr()
    }
}

/// Methods of a class that native code stands for.
pub(crate) struct Originals<const N: usize> {
    module: &'static str,
    names: [&'static str; N],
    /// The module's own, from the first time that all of them were in place.
    functions: PyOnceLock<[Py<PyAny>; N]>,
    checked: Checked,
}

impl<const N: usize> Originals<N> {
    /// Of a class of this module.
    pub(crate) const fn new(module: &'static str, names: [&'static str; N]) -> Self {
        Self {
            module,
            names,
            functions: PyOnceLock::new(),
            checked: Checked::new(),
        }
    }

    /// Whether the class still has all of them. The same `class` is to be given each time.
    #[inline]
    pub(crate) fn are_in_place(&self, class: &Bound<'_, PyType>) -> PyResult<bool> {
        self.checked.find(class, || self.compare(class))
    }

    #[cold]
    fn compare(&self, class: &Bound<'_, PyType>) -> PyResult<bool> {
        let py = class.py();
        let mut found = Vec::with_capacity(N);
        for name in self.names {
            found.push(class.getattr(New(name).into_pyobject(py)?)?.unbind());
        }
        let found: [Py<PyAny>; N] = found.try_into().map_err(|_| {
            objects::error::<PyAssertionError>(py, "as many methods as there are names")
        })?;
        let originals = if let Some(originals) = self.functions.get(py) {
            originals
        } else {
            let module = py.import(New(self.module))?.dict();
            if !found.iter().all(|it| is_function_of(it.bind(py), &module)) {
                return Ok(false);
            }
            // Another thread may have been first.
            let first = found.each_ref().map(|it| it.clone_ref(py));
            self.functions.get_or_init(py, || first)
        };
        Ok(originals.iter().zip(&found).all(|(it, now)| it.is(now)))
    }
}
