//! Calls of the C API, for requests.

#![allow(unsafe_code)]

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyString, PyTuple};

use crate::names::intern;
use crate::support;

/// A copy of a context, to run something in.
pub(super) fn copy_of_context<'py>(context: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: the GIL is held; what is no context is refused.
    unsafe { Bound::from_owned_ptr_or_err(context.py(), ffi::PyContext_Copy(context.as_ptr())) }
}

/// Returns what an application has returned, as something to resume: its coroutine, or one that awaits the object.
pub(super) fn coroutine_of(given: Bound<'_, PyAny>) -> PyResult<Bound<'_, PyAny>> {
    // SAFETY: the GIL is held and the object is alive.
    if unsafe { ffi::PyCoro_CheckExact(given.as_ptr()) } != 0 {
        return Ok(given);
    }
    let py = given.py();
    support::http(py)?
        .getattr(intern!(py, "awaiting"))?
        .call1((given,))
}

/// The exception that a coroutine's `throw` was given.
pub(super) fn thrown(arguments: &Bound<'_, PyTuple>) -> PyErr {
    // SAFETY: the GIL is held, and it is a tuple.
    unsafe { support::thrown(arguments.py(), arguments.as_ptr()) }
}

/// A string with one character for each byte, as WSGI wants them.
pub(super) fn latin1<'py>(py: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyString>> {
    let len = bytes.len() as ffi::Py_ssize_t;
    // SAFETY: the GIL is held, and there are that many bytes; the result is a new string, or null with an exception set.
    unsafe {
        let text = ffi::PyUnicode_DecodeLatin1(bytes.as_ptr().cast(), len, std::ptr::null());
        Ok(Bound::from_owned_ptr_or_err(py, text)?.cast_into_unchecked())
    }
}

/// A copy of a list.
pub(super) fn copy_of_list<'py>(list: &Bound<'py, PyList>) -> PyResult<Bound<'py, PyList>> {
    let py = list.py();
    // SAFETY: the GIL is held; the result is a new list, or null with an exception set.
    unsafe {
        let copy = ffi::PyList_GetSlice(list.as_ptr(), 0, ffi::PY_SSIZE_T_MAX);
        Ok(Bound::from_owned_ptr_or_err(py, copy)?.cast_into_unchecked())
    }
}
