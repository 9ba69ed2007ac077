//! The type `Connecting`: an awaitable of the C API that acts like a coroutine.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_void};

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::{_note_connecting_methods, Connecting, close, content, give_up, on_called, step};
use crate::coroutine::{self, Coroutine, Phase, Step};
use crate::native_type::{self, Class, Native, References, Table, method, slot};
use crate::support::{self, guard_in};

impl Coroutine for Connecting {
    fn phase(object: *mut ffi::PyObject) -> Phase {
        // SAFETY: the trait's functions are called with the GIL and a live object of the type; the phase is copied.
        unsafe { content(object).phase }
    }

    fn qualified_name(_: *mut ffi::PyObject) -> &'static str {
        "EventLoop.create_connection"
    }

    fn step(py: Python<'_>, object: *mut ffi::PyObject) -> PyResult<Step<'_>> {
        step(py, object)
    }

    fn throw<'py>(
        py: Python<'py>,
        object: *mut ffi::PyObject,
        arguments: &Bound<'py, PyTuple>,
    ) -> PyResult<Step<'py>> {
        Self::phase(object).check_not_running(py)?;
        // SAFETY: the GIL is held, and it is a tuple.
        let error = unsafe { support::thrown(py, arguments.as_ptr()) };
        Err(give_up(py, object, error))
    }

    fn close(py: Python<'_>, object: *mut ffi::PyObject) -> PyResult<()> {
        Self::phase(object).check_not_running(py)?;
        close(py, object)
    }
}

unsafe extern "C" fn call(
    object: *mut ffi::PyObject,
    _arguments: *mut ffi::PyObject,
    _names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    guard_in(object, |py| {
        on_called(py, object)?;
        Ok(py.None().into_bound(py))
    })
}

unsafe extern "C" fn end_wait(
    object: *mut ffi::PyObject,
    _: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    guard_in(object, |py| {
        on_called(py, object)?;
        Ok(py.None().into_bound(py))
    })
}

// SAFETY: the functions of the table are for objects of this type.
unsafe impl Native for Connecting {
    const NAME: &'static CStr = c"ringloop._core.Connecting";
    const DOC: &'static CStr = c"The awaitable of a transport and its protocol that create_connection waits for; it acts like a coroutine.";
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
            slot(ffi::Py_am_await, coroutine::am_await::<Self> as *mut c_void),
        ]);
        let mut methods = coroutine::methods::<Self>();
        let doc = c"Does what calling the object does.";
        methods.push(method(c"_end_wait", end_wait, doc));
        Table {
            slots,
            methods,
            ..Table::default()
        }
    }

    unsafe fn clear(object: *mut ffi::PyObject) {
        // SAFETY: the GIL is held, and `object` is alive and of our type, which is the function's contract.
        let taken = unsafe {
            let this = content(object);
            this.phase = Phase::Finished;
            this.take()
        };
        drop(taken);
    }
}

/// Makes the type.
pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    native_type::add_to::<Connecting>(module)?;
    module.add_function(wrap_pyfunction!(_note_connecting_methods, module)?)
}
