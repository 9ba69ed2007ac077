//! Values that own memory which the kernel uses.

#![allow(unsafe_code)]

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;

/// A value on the heap. It does not move with this, and nobody looks at it meanwhile, so that pointers into it stay valid.
///
/// Its type may be the user's. A panic of its destructor goes no further than the panic hook.
pub(crate) struct Owner<T: ?Sized>(NonNull<T>);

// SAFETY: nobody but this has access to the value, which is Send.
unsafe impl<T: ?Sized + Send> Send for Owner<T> {}

impl<T: ?Sized> Owner<T> {
    pub(crate) fn new(value: Box<T>) -> Owner<T> {
        // SAFETY: a box's pointer is never null.
        Owner(unsafe { NonNull::new_unchecked(Box::into_raw(value)) })
    }

    pub(crate) fn get(&self) -> &T {
        // SAFETY: the pointer is from a box that only this has.
        unsafe { self.0.as_ref() }
    }

    /// Ends the use of pointers into the value.
    pub(crate) fn get_mut(&mut self) -> &mut T {
        // SAFETY: the pointer is from a box that only this has.
        unsafe { self.0.as_mut() }
    }

    pub(crate) fn into_box(self) -> Box<T> {
        // SAFETY: the pointer came from Box::into_raw, and `self` is forgotten, so that it is freed once.
        let value = unsafe { Box::from_raw(self.0.as_ptr()) };
        mem::forget(self);
        value
    }
}

impl<T: ?Sized> Drop for Owner<T> {
    fn drop(&mut self) {
        // SAFETY: the pointer came from Box::into_raw, and nobody else frees it.
        let value = unsafe { Box::from_raw(self.0.as_ptr()) };
        // The payload of a panic may have a destructor that panics. What that gives is leaked: it might do the same.
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(value)))
            && let Err(next) = catch_unwind(AssertUnwindSafe(|| drop(payload)))
        {
            mem::forget(next);
        }
    }
}
