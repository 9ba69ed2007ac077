//! The memory of handles: their free lists, and how they end.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::ptr;

use pyo3::ffi;

use super::{Handle, INLINE_ARGUMENTS};
use crate::native_type::{self, EndOfLife, visit_all};

/// Handles of each type kept for reuse: more than one turn of a busy server schedules, in about 100 KB.
const FREE_LIST_CAPACITY: usize = 1024;

/// A type object, made once when the module is imported, and dead instances of it.
pub(super) struct Kind {
    pub(super) class: *mut ffi::PyTypeObject,
    free: [*mut Handle; FREE_LIST_CAPACITY],
    free_len: usize,
}

impl Kind {
    const NEW: Self = Self {
        class: ptr::null_mut(),
        free: [ptr::null_mut(); FREE_LIST_CAPACITY],
        free_len: 0,
    };
}

pub(super) static mut HANDLE: Kind = Kind::NEW;
pub(super) static mut TIMER_HANDLE: Kind = Kind::NEW;

/// Takes a block from the free list or from the allocator, with type and reference count set. It is not tracked yet.
///
/// # Safety
/// The GIL is held and `kind` is one of the two kinds.
#[inline]
pub(super) unsafe fn allocate(kind: *mut Kind) -> *mut Handle {
    // SAFETY: the GIL serialises access to the free list; its blocks came from the same allocator for the same type,
    // and `PyObject_Init` sets type and count as for a new block.
    unsafe {
        if (*kind).free_len > 0 {
            (*kind).free_len -= 1;
            let this = (&(*kind).free)[(*kind).free_len];
            return ffi::PyObject_Init(this.cast(), (*kind).class).cast();
        }
        native_type::allocate((*kind).class).cast()
    }
}

/// Hides a fresh copy of a context, which only its handle refers to, from the collector. With it, the collector would
/// visit tens of thousands of contexts again and again while their handles wait.
///
/// # Safety
/// The GIL is held, and `context` is a `contextvars.Context` that only the caller refers to. It is to be revealed
/// before anybody else gets a reference, and before it is dropped.
#[inline]
pub(super) unsafe fn hide(context: *mut ffi::PyObject) {
    // SAFETY: the GIL is held, and `context` is a `contextvars.Context`, which is the function's contract; the
    // collector has a header for each of these.
    unsafe { ffi::PyObject_GC_UnTrack(context.cast()) };
}

/// Whether a context is hidden. Nobody but `hide` makes the collector forget a context.
///
/// # Safety
/// The GIL is held, and `context` is alive.
#[inline]
unsafe fn is_hidden(context: *mut ffi::PyObject) -> bool {
    // SAFETY: the GIL is held, and `context` is alive, which is the function's contract.
    unsafe { ffi::PyContext_CheckExact(context) != 0 && ffi::PyObject_GC_IsTracked(context) == 0 }
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

/// Drops a handle's context.
///
/// # Safety
/// The GIL is held, and `this` is alive or being destroyed.
unsafe fn drop_context(this: *mut Handle) {
    // SAFETY: the GIL is held, and `this` has its fields still, which is the function's contract. The field is emptied
    // first, because dropping may run Python code.
    unsafe {
        let context = std::mem::replace(&mut (*this).context, ptr::null_mut());
        if !context.is_null() {
            reveal(context);
            ffi::Py_DECREF(context);
        }
    }
}

/// Shows the collector the objects that a handle refers to, besides its type. What a hidden context refers to counts as
/// the handle's own.
///
/// # Safety
/// The GIL is held and `this` is alive; `visit` and `argument` are the collector's, or forward to it.
pub(super) unsafe fn visit_members(
    this: *mut Handle,
    visit: ffi::visitproc,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: the GIL is held, `this` is alive, and `visit` and `argument` belong together, which is the function's
    // contract. The first `argument_count` arguments are set, and what may be null is passed over.
    unsafe {
        let context = (*this).context;
        let mut shown = context;
        if !context.is_null() && is_hidden(context) {
            shown = ptr::null_mut();
            if let Some(traverse) = (*ffi::Py_TYPE(context)).tp_traverse {
                let status = traverse(context, visit, argument);
                if status != 0 {
                    return status;
                }
            }
        }
        let [first, second, third] = (*this).arguments;
        let count = (*this).argument_count as usize;
        let members = [
            (*this).callback,
            shown,
            (*this).event_loop,
            first,
            second,
            third,
        ];
        visit_all(members.into_iter().take(3 + count), visit, argument)
    }
}

/// Drops callback and arguments.
///
/// # Safety
/// The GIL is held, `this` is alive or being destroyed, and no run of it is in progress.
pub(super) unsafe fn drop_call(this: *mut Handle) {
    // SAFETY: the GIL is held, `this` has its fields still, and no run uses them, which is the function's contract.
    // Each field is emptied before its reference is dropped, because dropping may run Python code that comes back to
    // this handle.
    unsafe {
        let callback = std::mem::replace(&mut (*this).callback, ptr::null_mut());
        let count = std::mem::replace(&mut (*this).argument_count, 0) as usize;
        let arguments =
            std::mem::replace(&mut (*this).arguments, [ptr::null_mut(); INLINE_ARGUMENTS]);
        (*this).spilled = false;
        ffi::Py_XDECREF(callback);
        for argument in &arguments[..count] {
            ffi::Py_XDECREF(*argument);
        }
    }
}

pub(super) unsafe extern "C" fn dealloc(object: *mut ffi::PyObject) {
    // SAFETY: called by the interpreter, with the GIL, for an object of one of our two types whose count fell to zero.
    unsafe {
        let Some(end) = EndOfLife::begin(object) else {
            return;
        };
        let this = object.cast::<Handle>();
        drop_call(this);
        drop_context(this);
        ffi::Py_XDECREF(std::mem::replace(&mut (*this).event_loop, ptr::null_mut()));
        let class = ffi::Py_TYPE(object);
        let kind = if class == TIMER_HANDLE.class {
            &raw mut TIMER_HANDLE
        } else {
            &raw mut HANDLE
        };
        if (*kind).free_len < FREE_LIST_CAPACITY {
            (&mut (*kind).free)[(*kind).free_len] = this;
            (*kind).free_len += 1;
        } else {
            native_type::free(object);
        }
        ffi::Py_DECREF(class.cast());
        end.finish();
    }
}

pub(super) unsafe extern "C" fn traverse(
    object: *mut ffi::PyObject,
    visit: ffi::visitproc,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: called by the collector for a tracked, hence fully made, handle.
    unsafe {
        let status = visit_all([ffi::Py_TYPE(object).cast()], visit, argument);
        if status != 0 {
            return status;
        }
        visit_members(object.cast(), visit, argument)
    }
}

pub(super) unsafe extern "C" fn clear(object: *mut ffi::PyObject) -> c_int {
    // SAFETY: called by the collector for unreachable handles; none is running, as a run owns a reference.
    unsafe {
        let this = object.cast::<Handle>();
        (*this).cancelled = true;
        drop_call(this);
        // The loop reference stays: `cancel` and `repr` rely on it, and the loop breaks the cycle by clearing its
        // queue.
        drop_context(this);
        0
    }
}
