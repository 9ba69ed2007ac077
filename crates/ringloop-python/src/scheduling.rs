//! Scheduling: a callback into the queue or the timers of a loop, from its own thread or from another, and out again.

#![allow(unsafe_code)]

use std::ptr;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyType};
use ringloop_reactor::clock;

use crate::event_loop::Loop;
use crate::handle::{self, Call, Deadline, HandleRef, Origin};
use crate::objects::{self, New};
use crate::support::{self, guard_scheduling};
use crate::thread_exit::SleepsAtExit;

/// Seconds of CLOCK_MONOTONIC.
#[inline]
pub(crate) fn seconds_now() -> f64 {
    clock::now_ns() as f64 * 1e-9
}

/// The timer queue's deadline for a time of the loop's clock in seconds. A time before the clock's start, or NaN, is
/// due at once, as in asyncio; a time beyond its end never comes.
pub(crate) fn deadline_ns(when_s: f64) -> u64 {
    // A float to integer conversion saturates, and NaN becomes 0.
    (when_s * 1e9).round() as u64
}

/// Debug mode: asyncio's own checks and its own handle, with a source traceback.
#[cold]
fn schedule_in_debug_mode<'py>(
    py: Python<'py>,
    helper: &str,
    this: *mut ffi::PyObject,
    when: Option<Deadline>,
    call: &Call<'_>,
) -> PyResult<Bound<'py, PyAny>> {
    let _sleeps_at_exit = SleepsAtExit::new();
    // SAFETY: the GIL is held and the pointers are live objects, borrowed from the caller of the method.
    unsafe {
        let arguments = objects::tuple_from_borrowed(call.arguments);
        let arguments = Bound::from_owned_ptr_or_err(py, arguments)?;
        let this = Bound::from_borrowed_ptr(py, this);
        let callback = Bound::from_borrowed_ptr(py, call.callback);
        let context = Bound::from_borrowed_ptr_or_opt(py, call.context);
        support::python(py)?.getattr(New(helper))?.call1((
            this,
            callback,
            arguments,
            context,
            New(when),
        ))
    }
}

/// Queues `call` to run in the next turn.
///
/// # Safety
/// The GIL is held; `this` is an instance of `Loop` and `call` holds live objects.
#[inline]
pub(crate) unsafe fn schedule_soon<'py>(
    py: Python<'py>,
    this: *mut ffi::PyObject,
    call: &Call<'_>,
    origin: Origin,
) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: the GIL is held, `this` is a live `Loop`, and `call` holds live objects, which is the function's
    // contract. The reference that `HandleRef::new` gives becomes the result's.
    unsafe {
        let object = Bound::from_borrowed_ptr(py, this);
        let owner = object.cast_unchecked::<Loop>().get();
        owner.check_closed(py)?;
        if owner.is_debug() {
            let helper = match origin {
                Origin::Threadsafe => "call_soon_threadsafe_debug",
                _ => "call_soon_debug",
            };
            return schedule_in_debug_mode(py, helper, this, None, call);
        }
        let Some(handle) = HandleRef::new(call, this, None, origin) else {
            return Err(PyErr::fetch(py));
        };
        let bound = Bound::from_owned_ptr(py, handle.as_ptr());
        owner.queue.get_mut(py).push_handle(py, handle)?;
        Ok(bound)
    }
}

/// Queues `call` to run at `when`.
///
/// # Safety
/// As `schedule_soon`.
#[inline]
pub(crate) unsafe fn schedule_at<'py>(
    py: Python<'py>,
    this: *mut ffi::PyObject,
    when: Deadline,
    call: &Call<'_>,
) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: the GIL is held, `this` is a live `Loop`, and `call` holds live objects, which is the function's
    // contract. The reference that `HandleRef::new` gives becomes the result's.
    unsafe {
        let object = Bound::from_borrowed_ptr(py, this);
        let owner = object.cast_unchecked::<Loop>().get();
        owner.check_closed(py)?;
        if owner.is_debug() {
            return schedule_in_debug_mode(py, "call_at_debug", this, Some(when), call);
        }
        let Some(handle) = HandleRef::new(call, this, Some(when), Origin::Usual) else {
            return Err(PyErr::fetch(py));
        };
        let bound = Bound::from_owned_ptr(py, handle.as_ptr());
        owner
            .queue
            .get_mut(py)
            .insert_timer(py, handle, deadline_ns(when.seconds))?;
        Ok(bound)
    }
}

/// Queues `call` from any thread, and wakes the loop.
///
/// # Safety
/// As `schedule_soon`.
#[inline]
pub(crate) unsafe fn schedule_threadsafe<'py>(
    py: Python<'py>,
    this: *mut ffi::PyObject,
    call: &Call<'_>,
) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: the GIL is held, `this` is a live `Loop`, and `call` holds live objects, which is the function's
    // contract, and all that `schedule_soon` requires.
    unsafe {
        let handle = schedule_soon(py, this, call, Origin::Threadsafe)?;
        let object = Bound::from_borrowed_ptr(py, this);
        object.cast_unchecked::<Loop>().get().posted(py);
        Ok(handle)
    }
}

/// Has the loop's own thread call a method of `class` on `object`, for another thread, which must not do so itself
/// ([`Loop::runs_elsewhere`]). What one thread asks for is called in the order in which it asks.
#[cold]
pub(crate) fn post<const N: usize>(
    event_loop: &Bound<'_, Loop>,
    class: &Bound<'_, PyType>,
    name: &Bound<'_, PyString>,
    object: &Bound<'_, PyAny>,
    arguments: [&Bound<'_, PyAny>; N],
) -> PyResult<()> {
    let method = class.getattr(name)?;
    let mut all = vec![object.as_ptr()];
    all.extend(arguments.map(Bound::as_ptr));
    let call = Call {
        callback: method.as_ptr(),
        arguments: &all,
        context: ptr::null_mut(),
    };
    // SAFETY: the GIL is held, `event_loop` is a live instance of `Loop`, and all other objects are alive.
    unsafe { schedule_threadsafe(event_loop.py(), event_loop.as_ptr(), &call).map(drop) }
}

/// Makes a handle that a table keeps, and not the queue.
pub(crate) fn handle_in_table<'py>(
    event_loop: &Bound<'py, Loop>,
    call: &Call<'_>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = event_loop.py();
    // SAFETY: the GIL is held, and `event_loop` is a live instance of `Loop`; a `Call` has live objects.
    let Some(handle) = (unsafe { HandleRef::new(call, event_loop.as_ptr(), None, Origin::Usual) })
    else {
        return Err(PyErr::fetch(py));
    };
    handle.track();
    // SAFETY: `new` gives an owned reference.
    Ok(unsafe { Bound::from_owned_ptr(py, handle.as_ptr()) })
}

/// Cancels a handle, and takes its timer out of the loop's queue. The caller keeps the handle alive.
pub(crate) fn cancel(py: Python<'_>, handle: HandleRef) {
    if let Some((event_loop, key)) = handle.cancel(py) {
        // SAFETY: `HandleRef::new` asks for an instance of `Loop`.
        let event_loop = unsafe { event_loop.cast_unchecked::<Loop>() };
        // The queue's own reference.
        if let Some(queued) = event_loop.get().cancel_timer(py, key) {
            queued.release(py);
        }
    }
}

/// `Handle.cancel`.
unsafe extern "C" fn cancel_method(
    object: *mut ffi::PyObject,
    _: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    guard_scheduling(|py| {
        // SAFETY: called by the interpreter with the GIL, and with a live handle, which the caller keeps alive.
        let handle = unsafe { HandleRef::from_ptr(object) };
        handle.wait_for_end_of_run(py)?;
        cancel(py, handle);
        Ok(py.None().into_bound(py))
    })
}

/// Adds the types of handles to the module.
pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    // SAFETY: `cancel_method` takes handles of either type.
    unsafe { handle::add_to(module, cancel_method) }
}
