//! The types `Handle` and `TimerHandle`, as Python sees them: their methods and attributes are those of asyncio's.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_void};
use std::ptr;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBool;

use super::memory::{HANDLE, TIMER_HANDLE, clear, dealloc, reveal, traverse};
use super::{Deadline, Handle, HandleRef, Origin, TimerHandle};
use crate::names::intern;
use crate::native_type::{self, NativeType, attribute, method, slot};
use crate::objects::{self, New};
use crate::run_lock;
use crate::support::{self, guard, guard_scheduling};

unsafe extern "C" fn repr(object: *mut ffi::PyObject) -> *mut ffi::PyObject {
    guard(|py| {
        // SAFETY: called by the interpreter with a live handle.
        let handle = unsafe { Bound::from_borrowed_ptr(py, object) };
        support::python(py)?
            .getattr(intern!(py, "handle_repr"))?
            .call1((handle,))
    })
}

unsafe extern "C" fn method_cancelled(
    object: *mut ffi::PyObject,
    _: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    guard_scheduling(|py| {
        // SAFETY: called by the interpreter with a live handle, which the caller keeps alive.
        let handle = unsafe { HandleRef::from_ptr(object) };
        handle.wait_for_end_of_run(py)?;
        Ok(PyBool::new(py, handle.is_cancelled()).to_owned().into_any())
    })
}

unsafe extern "C" fn method_run(
    object: *mut ffi::PyObject,
    _: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    guard(|py| {
        // SAFETY: called by the interpreter with a live handle.
        let handle = unsafe { HandleRef::from_ptr(object) };
        let outcome = handle.run(py);
        handle.finish_run(py);
        outcome?;
        Ok(py.None().into_bound(py))
    })
}

unsafe extern "C" fn method_when(
    object: *mut ffi::PyObject,
    _: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    guard(|py| {
        // SAFETY: called by the interpreter with a live timer handle.
        let timer = unsafe { &*object.cast::<TimerHandle>() };
        New(Deadline {
            seconds: timer.when_s,
            integer: timer.handle.origin == Origin::IntegerDeadline,
        })
        .into_pyobject(py)
    })
}

unsafe extern "C" fn method_get_context(
    object: *mut ffi::PyObject,
    _: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: called by the interpreter with a live handle.
    unsafe {
        let context = (*object.cast::<Handle>()).context;
        if !context.is_null() {
            reveal(context);
        }
        none_if_null(context)
    }
}

/// A new reference to `object`, or to None.
///
/// # Safety
/// The GIL is held; `object` is null or alive.
unsafe fn none_if_null(object: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: the GIL is held, and `object` is null or alive, which is the function's contract; a new reference is made
    // only of one that is not null.
    unsafe {
        if object.is_null() {
            ffi::Py_NewRef(ffi::Py_None())
        } else {
            ffi::Py_NewRef(object)
        }
    }
}

unsafe extern "C" fn get_callback(
    object: *mut ffi::PyObject,
    _: *mut c_void,
) -> *mut ffi::PyObject {
    // SAFETY: called by the interpreter with a live handle.
    unsafe {
        let this = object.cast::<Handle>();
        if (*this).cancelled {
            return ffi::Py_NewRef(ffi::Py_None());
        }
        none_if_null((*this).callback)
    }
}

unsafe extern "C" fn get_args(object: *mut ffi::PyObject, _: *mut c_void) -> *mut ffi::PyObject {
    // SAFETY: called by the interpreter with a live handle.
    unsafe {
        let this = object.cast::<Handle>();
        if (*this).cancelled {
            ffi::Py_NewRef(ffi::Py_None())
        } else if (*this).spilled {
            ffi::Py_NewRef((*this).arguments[0])
        } else {
            let count = (*this).argument_count as usize;
            objects::tuple_from_borrowed(&(&(*this).arguments)[..count])
        }
    }
}

unsafe extern "C" fn get_cancelled(
    object: *mut ffi::PyObject,
    _: *mut c_void,
) -> *mut ffi::PyObject {
    // SAFETY: called by the interpreter with a live handle.
    unsafe { method_cancelled(object, ptr::null_mut()) }
}

unsafe extern "C" fn get_context(object: *mut ffi::PyObject, _: *mut c_void) -> *mut ffi::PyObject {
    // SAFETY: called by the interpreter with a live handle.
    unsafe { method_get_context(object, ptr::null_mut()) }
}

unsafe extern "C" fn get_loop(object: *mut ffi::PyObject, _: *mut c_void) -> *mut ffi::PyObject {
    // SAFETY: called by the interpreter with a live handle.
    unsafe { none_if_null((*object.cast::<Handle>()).event_loop) }
}

unsafe extern "C" fn get_when(object: *mut ffi::PyObject, _: *mut c_void) -> *mut ffi::PyObject {
    // SAFETY: called by the interpreter with a live handle.
    unsafe { method_when(object, ptr::null_mut()) }
}

unsafe extern "C" fn get_scheduled(
    object: *mut ffi::PyObject,
    _: *mut c_void,
) -> *mut ffi::PyObject {
    // SAFETY: called by the interpreter with a live handle.
    unsafe { ffi::PyBool_FromLong((*object.cast::<TimerHandle>()).timer.is_some().into()) }
}

/// Native handles are made outside debug mode only, so they never have a traceback.
unsafe extern "C" fn get_source_traceback(
    _: *mut ffi::PyObject,
    _: *mut c_void,
) -> *mut ffi::PyObject {
    // SAFETY: called by the interpreter with the GIL.
    unsafe { ffi::Py_NewRef(ffi::Py_None()) }
}

/// `isinstance(handle, asyncio.Handle)` is true because of this `__class__`, as with proxies.
unsafe extern "C" fn get_class(object: *mut ffi::PyObject, _: *mut c_void) -> *mut ffi::PyObject {
    guard(|py| {
        // SAFETY: called by the interpreter with a live handle.
        let is_timer = unsafe { ffi::Py_TYPE(object) == TIMER_HANDLE.class };
        // SAFETY: called by the interpreter with a live handle; those of both types begin with a `Handle`.
        let threadsafe = unsafe { (*object.cast::<Handle>()).origin == Origin::Threadsafe };
        let events = py.import(intern!(py, "asyncio.events"))?;
        if threadsafe && let Some(class) = events.getattr_opt(intern!(py, "_ThreadSafeHandle"))? {
            return Ok(class);
        }
        events.getattr(if is_timer {
            intern!(py, "TimerHandle")
        } else {
            intern!(py, "Handle")
        })
    })
}

unsafe extern "C" fn timer_hash(object: *mut ffi::PyObject) -> ffi::Py_hash_t {
    // SAFETY: called by the interpreter with a live timer handle.
    unsafe {
        let when = method_when(object, ptr::null_mut());
        if when.is_null() {
            return -1;
        }
        let hash = ffi::PyObject_Hash(when);
        ffi::Py_DECREF(when);
        hash
    }
}

unsafe extern "C" fn timer_compare(
    left: *mut ffi::PyObject,
    right: *mut ffi::PyObject,
    operation: c_int,
) -> *mut ffi::PyObject {
    guard(|py| {
        // SAFETY: called by the interpreter with live objects.
        let (left, right) = unsafe {
            (
                Bound::from_borrowed_ptr(py, left),
                Bound::from_borrowed_ptr(py, right),
            )
        };
        support::python(py)?
            .getattr(intern!(py, "timer_handle_compare"))?
            .call1((left, right, operation))
    })
}

/// Makes one of the two types.
fn make_type(
    py: Python<'_>,
    name: &'static CStr,
    doc: &'static CStr,
    size: usize,
    own_methods: &[ffi::PyMethodDef],
    own_attributes: &[ffi::PyGetSetDef],
    own_slots: &[ffi::PyType_Slot],
) -> PyResult<*mut ffi::PyTypeObject> {
    let mut methods = vec![
        method(
            c"cancelled",
            method_cancelled,
            c"True if the callback was cancelled.",
        ),
        method(
            c"get_context",
            method_get_context,
            c"The contextvars.Context that the callback runs in.",
        ),
        method(
            c"_run",
            method_run,
            c"Run the callback now, as the loop does.",
        ),
    ];
    methods.extend_from_slice(own_methods);
    let mut attributes = vec![
        attribute(c"_callback", get_callback),
        attribute(c"_args", get_args),
        attribute(c"_cancelled", get_cancelled),
        attribute(c"_context", get_context),
        attribute(c"_loop", get_loop),
        attribute(c"_source_traceback", get_source_traceback),
        attribute(c"__class__", get_class),
    ];
    attributes.extend_from_slice(own_attributes);
    let mut slots = vec![
        slot(ffi::Py_tp_dealloc, dealloc as *mut c_void),
        slot(ffi::Py_tp_traverse, traverse as *mut c_void),
        slot(ffi::Py_tp_clear, clear as *mut c_void),
        slot(ffi::Py_tp_repr, repr as *mut c_void),
    ];
    slots.extend_from_slice(own_slots);
    NativeType {
        name,
        doc,
        size,
        slots,
        methods,
        attributes,
        vectorcall_offset: None,
    }
    .make(py)
}

/// Makes the two types and adds them to the module. Their method `cancel` is passed in, because it takes a timer out of
/// the loop's queue, a layer above this one.
pub(crate) fn add_to(module: &Bound<'_, PyModule>, cancel: ffi::PyCFunction) -> PyResult<()> {
    let py = module.py();
    let cancel = method(
        c"cancel",
        cancel,
        c"Cancel the callback. Cancelling twice has no further effect.",
    );
    let handle = make_type(
        py,
        c"ringloop._core.Handle",
        c"A callback scheduled with call_soon; see asyncio.Handle.",
        size_of::<Handle>(),
        &[cancel],
        &[],
        &[],
    )?;
    let timer_handle = make_type(
        py,
        c"ringloop._core.TimerHandle",
        c"A callback scheduled with call_later or call_at; see asyncio.TimerHandle.",
        size_of::<TimerHandle>(),
        &[
            cancel,
            method(
                c"when",
                method_when,
                c"The deadline in seconds of the loop's clock, loop.time().",
            ),
        ],
        &[
            attribute(c"_when", get_when),
            attribute(c"_scheduled", get_scheduled),
        ],
        &[
            slot(ffi::Py_tp_hash, timer_hash as *mut c_void),
            slot(ffi::Py_tp_richcompare, timer_compare as *mut c_void),
        ],
    )?;
    run_lock::init(py)?;
    // SAFETY: the module is initialised once, with the GIL, before any handle is made; the types live for ever.
    unsafe {
        native_type::learn_header(py, handle)?;
        HANDLE.class = handle;
        TIMER_HANDLE.class = timer_handle;
        module.add("Handle", Bound::from_borrowed_ptr(py, handle.cast()))?;
        module.add(
            "TimerHandle",
            Bound::from_borrowed_ptr(py, timer_handle.cast()),
        )
    }
}
