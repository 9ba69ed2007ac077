//! The types `Handle` and `TimerHandle`, as Python sees them: their methods and attributes are those of asyncio's.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_void};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;

use pyo3::Borrowed;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::critical_section::with_critical_section;
use pyo3::types::PyBool;

use super::memory::{self, KEPT_MAX, reveal};
use super::{Deadline, Handle, HandleRef, INLINE_ARGUMENTS, Origin, TimerHandle};
use crate::names::intern;
use crate::native_type::{
    self, Class, Native, Optional, Owned, Table, attribute, content, method, slot,
};
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
        let timer = unsafe { &*content::<TimerHandle>(object) };
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
        alone(object, |this| {
            let context = (*this).context.as_ptr_or_null();
            if !context.is_null() {
                reveal(context);
            }
            none_if_null(context)
        })
    }
}

/// Runs `body` with the content of a handle while no other thread takes anything out of it.
///
/// # Safety
/// The GIL is held, and `object` is a live handle.
unsafe fn alone<R>(object: *mut ffi::PyObject, body: impl FnOnce(*mut Handle) -> R) -> R {
    // SAFETY: the GIL is held, and `object` is alive, which is the function's contract.
    let handle = unsafe { Borrowed::from_ptr(Python::assume_attached(), object) };
    with_critical_section(&handle, || body(content(object)))
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
        alone(object, |this| {
            if (*this).state.is_cancelled() {
                return ffi::Py_NewRef(ffi::Py_None());
            }
            none_if_null((*this).callback.as_ptr_or_null())
        })
    }
}

unsafe extern "C" fn get_args(object: *mut ffi::PyObject, _: *mut c_void) -> *mut ffi::PyObject {
    // SAFETY: called by the interpreter with a live handle. A new tuple may start a collection, which may run Python code
    // that cancels the handle: the arguments are ours by then.
    unsafe {
        let mut owned: [Option<Owned>; INLINE_ARGUMENTS] = Default::default();
        let mut count = 0;
        let object = alone(object, |this| {
            if (*this).state.is_cancelled() {
                ffi::Py_NewRef(ffi::Py_None())
            } else if (*this).spilled {
                none_if_null((&(*this).arguments)[0].as_ptr_or_null())
            } else {
                count = (*this).argument_count as usize;
                for (to, argument) in owned.iter_mut().zip(&(*this).arguments) {
                    *to = argument.as_ref().map(|it| Owned::new(it.as_ptr()));
                }
                ptr::null_mut()
            }
        });
        if !object.is_null() {
            return object;
        }
        let all = owned.each_ref().map(Optional::as_ptr_or_null);
        objects::tuple_from_borrowed(&all[..count])
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
    unsafe { ffi::Py_NewRef((*content::<Handle>(object)).event_loop.as_ptr()) }
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
    unsafe {
        let timer = (*content::<TimerHandle>(object)).timer.load(Relaxed);
        ffi::PyBool_FromLong((timer != 0).into())
    }
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
        let is_timer = TimerHandle::class().is(unsafe { ffi::Py_TYPE(object) });
        // SAFETY: called by the interpreter with a live handle; those of both types begin with a `Handle`.
        let threadsafe = unsafe { (*content::<Handle>(object)).origin == Origin::Threadsafe };
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

/// `cancel`, which takes a timer out of the loop's queue, a layer above this one.
static CANCEL: OnceLock<ffi::PyCFunction> = OnceLock::new();

/// Slots, methods and attributes that both types have.
fn table() -> Table {
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
    methods.extend(CANCEL.get().map(|&cancel| {
        method(
            c"cancel",
            cancel,
            c"Cancel the callback. Cancelling twice has no further effect.",
        )
    }));
    Table {
        slots: vec![slot(ffi::Py_tp_repr, repr as *mut c_void)],
        methods,
        attributes: vec![
            attribute(c"_callback", get_callback),
            attribute(c"_args", get_args),
            attribute(c"_cancelled", get_cancelled),
            attribute(c"_context", get_context),
            attribute(c"_loop", get_loop),
            attribute(c"_source_traceback", get_source_traceback),
            attribute(c"__class__", get_class),
        ],
    }
}

// SAFETY: each type has a class of its own. The functions above take handles; `when` and what `TimerHandle` adds, of
// these only its own. `cancel` takes handles, which `add_to` asks for.
unsafe impl Native for Handle {
    const NAME: &'static CStr = c"ringloop._core.Handle";
    const DOC: &'static CStr = c"A callback scheduled with call_soon; see asyncio.Handle.";
    const KEPT_MAX: usize = KEPT_MAX;

    #[inline]
    fn class() -> &'static Class {
        static CLASS: Class = Class::new();
        &CLASS
    }

    fn table() -> Table {
        table()
    }

    #[inline]
    unsafe fn end(object: *mut ffi::PyObject) {
        // SAFETY: the function's contract is that of `end`.
        unsafe { memory::end(object) };
    }
}

// SAFETY: as for `Handle`; the content begins with that of a `Handle`.
unsafe impl Native for TimerHandle {
    const NAME: &'static CStr = c"ringloop._core.TimerHandle";
    const DOC: &'static CStr =
        c"A callback scheduled with call_later or call_at; see asyncio.TimerHandle.";
    const KEPT_MAX: usize = KEPT_MAX;

    #[inline]
    fn class() -> &'static Class {
        static CLASS: Class = Class::new();
        &CLASS
    }

    fn table() -> Table {
        let mut table = table();
        table.methods.push(method(
            c"when",
            method_when,
            c"The deadline in seconds of the loop's clock, loop.time().",
        ));
        table.attributes.extend([
            attribute(c"_when", get_when),
            attribute(c"_scheduled", get_scheduled),
        ]);
        table.slots.extend([
            slot(ffi::Py_tp_hash, timer_hash as *mut c_void),
            slot(ffi::Py_tp_richcompare, timer_compare as *mut c_void),
        ]);
        table
    }

    #[inline]
    unsafe fn end(object: *mut ffi::PyObject) {
        // SAFETY: the function's contract is that of `end`; a timer's handle begins with a `Handle`.
        unsafe { memory::end(object) };
    }
}

/// Makes the two types and adds them to the module. Their method `cancel` is passed in, because it takes a timer out of
/// the loop's queue, a layer above this one.
///
/// # Safety
/// The interpreter may call `cancel` for each handle of either type.
pub(crate) unsafe fn add_to(
    module: &Bound<'_, PyModule>,
    cancel: ffi::PyCFunction,
) -> PyResult<()> {
    CANCEL.get_or_init(|| cancel);
    run_lock::init(module.py())?;
    native_type::add_to::<Handle>(module)?;
    native_type::add_to::<TimerHandle>(module)
}
