//! The references of native objects, and how the collector gets to see them.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::{ControlFlow, Deref};
use std::os::fd::RawFd;
use std::ptr;

use pyo3::ffi;
use pyo3::prelude::*;

/// A reference that a native object owns. It is like `Py`, and goes as soon as it is dropped: that of `Py` first asks
/// whether the thread is attached, and may be put off.
pub(crate) struct Owned<T = PyAny> {
    reference: ManuallyDrop<Py<T>>,
    /// It is dropped in an attached thread, as it was made in one.
    _not_send: PhantomData<*mut ()>,
}

impl<T> Owned<T> {
    /// The object, with this reference.
    #[inline]
    pub(crate) fn into_bound(self, py: Python<'_>) -> Bound<'_, T> {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: the reference is taken once, as nobody uses or drops `this` after this.
        unsafe { ManuallyDrop::take(&mut this.reference) }.into_bound(py)
    }
}

impl Owned {
    /// A new reference to an object.
    ///
    /// # Safety
    /// The GIL is held, and the object is alive.
    #[inline]
    pub(crate) unsafe fn new(object: *mut ffi::PyObject) -> Self {
        // SAFETY: the GIL is held, and the object is alive, which is the function's contract.
        unsafe { Bound::from_borrowed_ptr(Python::assume_attached(), object) }.into()
    }

    /// The reference that a function of the C API gives; None if that is null.
    ///
    /// # Safety
    /// The GIL is held, and `object` is null or a reference that the caller owns, and gives away.
    #[inline]
    pub(crate) unsafe fn from_owned(object: *mut ffi::PyObject) -> Option<Self> {
        // SAFETY: the GIL is held, and `object` is null or the caller's to give away, which is the function's contract.
        unsafe { Bound::from_owned_ptr_or_opt(Python::assume_attached(), object) }.map(Self::from)
    }
}

impl<T> From<Bound<'_, T>> for Owned<T> {
    #[inline]
    fn from(object: Bound<'_, T>) -> Self {
        Self {
            reference: ManuallyDrop::new(object.unbind()),
            _not_send: PhantomData,
        }
    }
}

impl<T> Deref for Owned<T> {
    type Target = Py<T>;

    #[inline]
    fn deref(&self) -> &Py<T> {
        &self.reference
    }
}

impl<T> Drop for Owned<T> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the reference is ours. The GIL is held, or without one the thread is attached: a `Bound`, which proves
        // that, was made to an `Owned`, which stays in its thread or in an object, whose content only attached threads use.
        unsafe { ffi::Py_DECREF(self.reference.as_ptr()) };
    }
}

/// An object that may be missing.
pub(crate) trait Optional<T> {
    /// A new reference to it.
    fn bound<'py>(&self, py: Python<'py>) -> Option<Bound<'py, T>>;

    /// Its address; null if it is missing.
    fn as_ptr_or_null(&self) -> *mut ffi::PyObject;
}

impl<T> Optional<T> for Option<Owned<T>> {
    #[inline]
    fn bound<'py>(&self, py: Python<'py>) -> Option<Bound<'py, T>> {
        self.as_ref().map(|it| it.bind(py).clone())
    }

    #[inline]
    fn as_ptr_or_null(&self) -> *mut ffi::PyObject {
        self.as_ref().map_or(ptr::null_mut(), |it| it.as_ptr())
    }
}

/// The function that the collector gives to `tp_traverse`.
#[derive(Clone, Copy)]
pub(crate) struct Visitor {
    function: ffi::visitproc,
    argument: *mut c_void,
}

impl Visitor {
    /// # Safety
    /// `function` may be called with `argument` and any live object, while the result is used.
    #[inline]
    pub(crate) unsafe fn new(function: ffi::visitproc, argument: *mut c_void) -> Self {
        Self { function, argument }
    }

    /// Shows the collector an object. A break is to be passed on: the collector needs no more.
    ///
    /// # Safety
    /// The GIL is held, and the object is alive.
    #[inline]
    pub(crate) unsafe fn show(self, object: *mut ffi::PyObject) -> ControlFlow<c_int> {
        // SAFETY: the object is alive, which is the function's contract. The function and its argument belong together,
        // which is that of `new`.
        match unsafe { (self.function)(object, self.argument) } {
            0 => ControlFlow::Continue(()),
            status => ControlFlow::Break(status),
        }
    }

    /// Has an object show what it refers to itself.
    ///
    /// # Safety
    /// The GIL is held, and the object is alive.
    pub(crate) unsafe fn traverse(self, object: *mut ffi::PyObject) -> ControlFlow<c_int> {
        // SAFETY: the object is alive, which is the function's contract, and its type says how it is traversed. The
        // function and its argument belong together, which is the contract of `new`.
        let status = match unsafe { (*ffi::Py_TYPE(object)).tp_traverse } {
            // SAFETY: as above.
            Some(traverse) => unsafe { traverse(object, self.function, self.argument) },
            None => 0,
        };
        match status {
            0 => ControlFlow::Continue(()),
            status => ControlFlow::Break(status),
        }
    }
}

/// A part of a content that may refer to objects.
pub(crate) trait Member {
    /// Shows the collector all of them.
    fn show(&self, visitor: Visitor) -> ControlFlow<c_int>;
}

impl<T> Member for Owned<T> {
    #[inline]
    fn show(&self, visitor: Visitor) -> ControlFlow<c_int> {
        // SAFETY: the object is alive, as this is a reference to it. Only `tp_traverse` makes a `Visitor`, with the GIL.
        unsafe { visitor.show(self.as_ptr()) }
    }
}

impl<M: Member> Member for Option<M> {
    #[inline]
    fn show(&self, visitor: Visitor) -> ControlFlow<c_int> {
        self.as_ref()
            .map_or(ControlFlow::Continue(()), |it| it.show(visitor))
    }
}

impl<M: Member, N: Member> Member for Result<M, N> {
    fn show(&self, visitor: Visitor) -> ControlFlow<c_int> {
        match self {
            Ok(value) => value.show(visitor),
            Err(error) => error.show(visitor),
        }
    }
}

/// A watched descriptor beside the object that is told.
impl<M: Member> Member for (M, RawFd) {
    fn show(&self, visitor: Visitor) -> ControlFlow<c_int> {
        self.0.show(visitor)
    }
}

/// The references of a content; [`references!`](references) writes this for a list of its fields.
pub(crate) trait References {
    /// Shows the collector all of them. Runs no Python code.
    fn show(&self, visitor: Visitor) -> ControlFlow<c_int>;

    /// Takes out those that the content can do without: enough to break every cycle of garbage. They are dropped by the
    /// caller, when all is consistent, as that may run Python code, which may come back to the object.
    fn take(&mut self) -> impl Sized + use<Self>;
}

/// Writes [`References`] for a content: it keeps some of its references until it ends, and can do without others.
macro_rules! references {
    (<const $parameter:ident: $kind:ty> $content:ty { $($fields:tt)* }) => {
        $crate::native_type::references! { [$parameter: $kind] $content { $($fields)* } }
    };
    ([$($parameter:ident: $kind:ty)?] $content:ty {
        keeps { $($kept:ident),* } takes { $($taken:ident),* }
    }) => {
        impl<$(const $parameter: $kind)?> $crate::native_type::References for $content {
            #[inline]
            fn show(
                &self,
                visitor: $crate::native_type::Visitor,
            ) -> std::ops::ControlFlow<std::ffi::c_int> {
                $( $crate::native_type::Member::show(&self.$kept, visitor)?; )*
                $( $crate::native_type::Member::show(&self.$taken, visitor)?; )*
                std::ops::ControlFlow::Continue(())
            }

            #[inline]
            fn take(&mut self) -> impl Sized + use<$($parameter)?> {
                ($( std::mem::take(&mut self.$taken), )*)
            }
        }
    };
    ($content:ident { $($fields:tt)* }) => {
        $crate::native_type::references! { [] $content { $($fields)* } }
    };
}

pub(crate) use references;
