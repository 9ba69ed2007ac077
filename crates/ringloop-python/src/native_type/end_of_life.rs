//! The end of native objects. They can form chains of any length, for example if each callback has its predecessor's
//! handle as an argument. Releasing the last one must not release all others in one deep recursion. So the deeper ones
//! are postponed, as CPython does with its own containers (the "trashcan"; from Python 3.14 on, with objects of all
//! types).

#![allow(unsafe_code)]

use std::cell::Cell;
use std::ptr;

use pyo3::ffi;

use super::Head;

/// Objects that end inside of one another's end, in one thread; CPython's figure.
const NESTED_MAX: u32 = 50;

/// Whether the interpreter postpones the deeper ones itself, for all types: so do all that have no GIL and are supported.
const INTERPRETER_POSTPONES: bool = cfg!(Py_GIL_DISABLED);

/// Whether an object is ending in some thread. As long as that is a single one, nobody needs to count. Not used where the
/// interpreter postpones.
static mut ENDING: bool = false;

thread_local! {
    /// How many more are ending in this thread, each inside of the one before.
    static NESTED: Cell<u32> = const { Cell::new(0) };
    /// Objects that would have been too many, linked through their field for weak references.
    static WAITING: Cell<*mut ffi::PyObject> = const { Cell::new(ptr::null_mut()) };
}

/// A guard around the body of a type's `tp_dealloc`, which drops what the object refers to and frees its memory.
pub(super) struct EndOfLife {
    is_nested: bool,
}

impl EndOfLife {
    /// None where the object has to wait: `tp_dealloc` is called again, before the outermost of the objects that are
    /// ending has ended.
    ///
    /// # Safety
    /// Called by the interpreter, with the GIL, for an object of one of our types whose count fell to zero.
    #[inline]
    pub(super) unsafe fn begin(object: *mut ffi::PyObject) -> Option<Self> {
        // SAFETY: the GIL is held, and `object` is of one of our types, which begin with a `Head`, and its count fell
        // to zero; that is the function's contract. The GIL guards `ENDING`: whoever set it clears it, whichever
        // threads run meanwhile.
        unsafe {
            ffi::PyObject_GC_UnTrack(object.cast());
            if INTERPRETER_POSTPONES {
                // Another thread may be about to take a weak reference off the list: only the interpreter can tell.
                ffi::PyObject_ClearWeakRefs(object);
                return Some(Self { is_nested: false });
            }
            if !(*object.cast::<Head>()).weak_references.is_null() {
                ffi::PyObject_ClearWeakRefs(object);
            }
            let is_nested = ENDING;
            if is_nested && !begin_nested(object) {
                return None;
            }
            ENDING = true;
            Some(Self { is_nested })
        }
    }

    /// Ends the objects that had to wait, if this was the outermost of those that are ending.
    ///
    /// # Safety
    /// The GIL is held, and the object's memory is free, or kept for another one.
    #[inline]
    pub(super) unsafe fn finish(self) {
        // SAFETY: the GIL is held, which is the function's contract. It guards `ENDING`. What `begin` has noted is
        // taken back once, as `self` is used up.
        unsafe {
            if INTERPRETER_POSTPONES {
                return;
            }
            if self.is_nested {
                end_nested();
            } else {
                ENDING = false;
            }
        }
    }
}

/// Whether the object may end now; otherwise it waits.
///
/// # Safety
/// As for `EndOfLife::begin`; the object is untracked, and has no weak references.
#[inline(never)]
unsafe fn begin_nested(object: *mut ffi::PyObject) -> bool {
    let nested = NESTED.get();
    if nested < NESTED_MAX {
        NESTED.set(nested + 1);
        return true;
    }
    // SAFETY: the GIL is held, and the field of an object without weak references is free to be a link.
    unsafe { (*object.cast::<Head>()).weak_references = WAITING.replace(object) };
    false
}

/// Ends the objects that wait, if this one was the first of those that are counted.
///
/// # Safety
/// The GIL is held, and `begin_nested` was true in this thread, for an object that has ended.
#[inline(never)]
unsafe fn end_nested() {
    let nested = NESTED.get();
    if nested == 1 {
        while let Some(next) = ptr::NonNull::new(WAITING.get()) {
            // SAFETY: what waits is one of our objects. Its field is null again, as without weak references, before its
            // type's `tp_dealloc` sees it.
            unsafe {
                let head = next.cast::<Head>().as_ptr();
                let link = &mut (*head).weak_references;
                WAITING.set(std::mem::replace(link, ptr::null_mut()));
                if let Some(dealloc) = (*ffi::Py_TYPE(next.as_ptr())).tp_dealloc {
                    dealloc(next.as_ptr());
                }
            }
        }
    }
    NESTED.set(nested - 1);
}
