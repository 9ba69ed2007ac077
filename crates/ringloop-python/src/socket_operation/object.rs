//! The type `SocketOperation`: an awaitable of the C API that acts like a coroutine.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_void};

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::{Operation, finish, on_ready, operation, resume};
use crate::buffers::FileSending;
use crate::coroutine::{self, Coroutine, Phase, Step};
use crate::native_type::{self, Class, Native, References, Table, attribute, slot};
use crate::objects::New;
use crate::support::{self, guard_in};

impl Coroutine for Operation {
    fn phase(object: *mut ffi::PyObject) -> Phase {
        // SAFETY: the trait's functions are called with the GIL and a live object of the type; the phase is copied.
        unsafe { operation(object).phase }
    }

    fn qualified_name(object: *mut ffi::PyObject) -> &'static str {
        // SAFETY: the trait's functions are called with a live object of the type. The kind never changes: it is copied
        // without a reference to the rest, which another thread may change.
        unsafe { (*native_type::content::<Operation>(object)).kind }.qualified_name()
    }

    fn step(py: Python<'_>, object: *mut ffi::PyObject) -> PyResult<Step<'_>> {
        resume(py, object)
    }

    fn throw<'py>(
        py: Python<'py>,
        object: *mut ffi::PyObject,
        arguments: &Bound<'py, PyTuple>,
    ) -> PyResult<Step<'py>> {
        Self::phase(object).check_not_running(py)?;
        finish(py, object);
        // SAFETY: the GIL is held, and it is a tuple.
        Err(unsafe { support::thrown(py, arguments.as_ptr()) })
    }

    fn close(py: Python<'_>, object: *mut ffi::PyObject) -> PyResult<()> {
        Self::phase(object).check_not_running(py)?;
        finish(py, object);
        Ok(())
    }
}

unsafe extern "C" fn call(
    object: *mut ffi::PyObject,
    _arguments: *mut ffi::PyObject,
    _names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    guard_in(object, |py| {
        on_ready(py, object)?;
        Ok(py.None().into_bound(py))
    })
}

/// The bytes of a file that were sent so far.
unsafe extern "C" fn sent(object: *mut ffi::PyObject, _: *mut c_void) -> *mut ffi::PyObject {
    guard_in(object, |py| {
        // SAFETY: the GIL is held (`py`), and the interpreter calls this for a live object of our type. No Python code
        // runs while `file` is used.
        let file = unsafe { operation(object).file.as_ref() };
        let sent = file.map_or(0, FileSending::sent);
        Ok(New(sent).into_pyobject(py)?.into_any())
    })
}

// SAFETY: the functions of the table are for operations.
unsafe impl Native for Operation {
    const NAME: &'static CStr = c"ringloop._core.SocketOperation";
    const DOC: &'static CStr = c"The awaitable that sock_recv, sock_sendall and their like return; it acts like a coroutine.";
    const SETS_EXCEPTION_ASIDE: bool = true;

    #[inline]
    fn class() -> &'static Class {
        static CLASS: Class = Class::new();
        &CLASS
    }

    fn table() -> Table {
        let mut slots: Vec<_> = coroutine::slots::<Self>().into();
        slots.extend([
            slot(ffi::Py_tp_call, call as *mut c_void),
            slot(ffi::Py_am_await, coroutine::itself as *mut c_void),
        ]);
        Table {
            slots,
            methods: coroutine::methods::<Self>(),
            attributes: vec![attribute(c"sent", sent)],
        }
    }

    unsafe fn end(object: *mut ffi::PyObject) {
        // SAFETY: the GIL is held, and `object` is of our type, which is the function's contract.
        unsafe { coroutine::warn_if_never_awaited::<Self>(object) };
    }

    unsafe fn clear(object: *mut ffi::PyObject) {
        // SAFETY: the GIL is held, and `object` is alive and of our type, which is the function's contract.
        let taken = unsafe {
            let operation = operation(object);
            operation.phase = Phase::Finished;
            operation.take()
        };
        drop(taken);
    }
}

/// Makes the type.
pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    native_type::add_to::<Operation>(module)
}
