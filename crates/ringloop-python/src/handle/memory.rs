//! The memory of handles: what they refer to, and how they end.

#![allow(unsafe_code)]

use std::ffi::c_int;
use std::mem;
use std::ops::ControlFlow;

use pyo3::ffi;

use super::{Handle, INLINE_ARGUMENTS, TimerHandle};
use crate::native_type::{IS_TRACKED_AT_ONCE, Member, Owned, References, Visitor, content};

/// Handles of each type kept for reuse: more than one turn of a busy server schedules, in about 100 KB.
pub(super) const KEPT_MAX: usize = 1024;

/// Hides a fresh copy of a context, which only its handle refers to, from the collector. With it, the collector would
/// visit tens of thousands of contexts again and again while their handles wait. (Not so the collector of a free-threaded
/// interpreter; there nothing is hidden.)
///
/// # Safety
/// The GIL is held, and `context` is a `contextvars.Context` that only the caller refers to. It is to be revealed
/// before anybody else gets a reference, and before it is dropped.
#[inline]
pub(super) unsafe fn hide(context: *mut ffi::PyObject) {
    if !IS_TRACKED_AT_ONCE {
        // SAFETY: the GIL is held, and `context` is a `contextvars.Context`, which is the function's contract; the
        // collector has a header for each of these.
        unsafe { ffi::PyObject_GC_UnTrack(context.cast()) };
    }
}

/// Whether a context is hidden. Nobody but `hide` makes the collector forget a context.
///
/// # Safety
/// The GIL is held, and `context` is alive.
#[inline]
unsafe fn is_hidden(context: *mut ffi::PyObject) -> bool {
    // SAFETY: the GIL is held, and `context` is alive, which is the function's contract.
    unsafe {
        !IS_TRACKED_AT_ONCE
            && ffi::PyContext_CheckExact(context) != 0
            && ffi::PyObject_GC_IsTracked(context) == 0
    }
}

/// Lets the collector see a handle's context again, if it is hidden.
///
/// # Safety
/// The GIL is held, and `context` is alive.
#[inline]
pub(super) unsafe fn reveal(context: *mut ffi::PyObject) {
    // SAFETY: the GIL is held, and `context` is alive, which is the function's contract. A hidden one is complete, and
    // not tracked, as `PyObject_GC_Track` requires.
    unsafe {
        if is_hidden(context) {
            ffi::PyObject_GC_Track(context.cast());
        }
    }
}

/// Callback and arguments of a handle.
pub(super) type TakenCall = (Option<Owned>, [Option<Owned>; INLINE_ARGUMENTS]);

impl Handle {
    /// Takes out callback and arguments, which the caller drops when no reference to the content is held: it may run
    /// Python code that comes back to this handle. No run of it may be in progress, which uses them.
    #[inline]
    pub(super) fn take_call(&mut self) -> TakenCall {
        self.argument_count = 0;
        self.spilled = false;
        (self.callback.take(), mem::take(&mut self.arguments))
    }
}

/// The references of a hidden context count as the handle's own.
impl References for Handle {
    fn show(&self, visitor: Visitor) -> ControlFlow<c_int> {
        if let Some(context) = &self.context {
            // SAFETY: only the collector makes a `Visitor`, with the GIL, and the handle keeps its context alive.
            unsafe {
                if is_hidden(context.as_ptr()) {
                    visitor.traverse(context.as_ptr())?;
                } else {
                    context.show(visitor)?;
                }
            }
        }
        self.callback.show(visitor)?;
        self.event_loop.show(visitor)?;
        for argument in &self.arguments {
            argument.show(visitor)?;
        }
        ControlFlow::Continue(())
    }

    /// None is running, as a run owns a reference. The loop stays: `cancel` and `repr` rely on it, and the loop breaks
    /// the cycle by clearing its queue.
    fn take(&mut self) -> impl Sized + use<> {
        self.state.cancel();
        let context = self.context.take();
        if let Some(context) = &context {
            // SAFETY: only the collector asks a handle for what it can do without, with the GIL.
            unsafe { reveal(context.as_ptr()) };
        }
        (self.take_call(), context)
    }
}

impl References for TimerHandle {
    fn show(&self, visitor: Visitor) -> ControlFlow<c_int> {
        self.handle.show(visitor)
    }

    fn take(&mut self) -> impl Sized + use<> {
        self.handle.take()
    }
}

/// Prepares the end of a handle of either type.
///
/// # Safety
/// The GIL is held, and `object` is a handle whose content is complete.
#[inline]
pub(super) unsafe fn end(object: *mut ffi::PyObject) {
    // SAFETY: the GIL is held, and `object` is a handle, which is the function's contract; it keeps its context alive.
    unsafe {
        if let Some(context) = &(*content::<Handle>(object)).context {
            reveal(context.as_ptr());
        }
    }
}
