//! [`GilCell`]: state that one thread at a time touches.
//!
//! On an interpreter with the GIL, that is the holder of the GIL, and a cell is no more than a `RefCell`. On a
//! free-threaded one, each cell has a lock, which is held for the length of a borrow.
//!
//! A borrow must end before any Python code can run, since that code may come back; coming back anyway is a panic, which
//! reaches Python as an exception, and never a data race. So a lock is held only for as long as native code takes, and
//! whoever waits for one waits for a moment. Three rules keep the locks free of deadlocks:
//!
//! - Nobody detaches from the interpreter while a borrow is held, except to wait for another cell.
//! - A thread that waits detaches, so that it never holds up a stop of the world (a collection, a fork).
//! - Cells are borrowed in one order where two are held. First is the own one of a connection, an operation, a WSGI view or
//!   its input. Then come a connection's link, an exchange, its WebSocket; the transport; the WSGI pool; the HTTP service's
//!   (state, then scratch or counters); and last the loop's: queue, watches, reactor. On a
//!   free-threaded interpreter, builds with debug assertions check that all borrows follow one order
//!   (`crate::lock_order`).

#![allow(unsafe_code)]

use std::cell::Ref;

use pyo3::prelude::*;

#[cfg(not(Py_GIL_DISABLED))]
mod kind {
    use std::cell::{Ref, RefCell, RefMut};

    use pyo3::prelude::*;

    /// State that only the holder of the GIL touches.
    #[derive(Default)]
    pub(crate) struct GilCell<T>(pub(super) RefCell<T>);

    // SAFETY: every access needs a `Python` token, so at most one thread is inside at a time: a build for an interpreter
    // with the GIL can't be imported by one without.
    unsafe impl<T: Send> Sync for GilCell<T> {}

    /// A shared borrow.
    pub(crate) type Shared<'a, T> = Ref<'a, T>;
    /// An exclusive borrow.
    pub(crate) type Exclusive<'a, T> = RefMut<'a, T>;

    impl<T> GilCell<T> {
        pub(crate) const fn new(value: T) -> Self {
            Self(RefCell::new(value))
        }

        #[inline]
        pub(crate) fn get(&self, _py: Python<'_>) -> Shared<'_, T> {
            self.0.borrow()
        }

        #[inline]
        pub(crate) fn get_mut(&self, _py: Python<'_>) -> Exclusive<'_, T> {
            self.0.borrow_mut()
        }
    }
}

#[cfg(Py_GIL_DISABLED)]
mod kind {
    use std::cell::{Ref, RefCell, RefMut};
    use std::ops::{Deref, DerefMut};

    use pyo3::prelude::*;

    use crate::lock::{Held, Lock};

    /// State that only the holder of its lock touches.
    pub(crate) struct GilCell<T>(pub(super) RefCell<T>, Lock);

    // SAFETY: every access but the collector's has the lock, and the collector has stopped all other threads.
    unsafe impl<T: Send> Sync for GilCell<T> {}

    /// A shared borrow.
    pub(crate) struct Shared<'a, T: ?Sized> {
        // The fields are dropped in this order.
        borrow: Ref<'a, T>,
        _held: Held<'a>,
    }

    /// An exclusive borrow.
    pub(crate) struct Exclusive<'a, T: ?Sized> {
        borrow: RefMut<'a, T>,
        held: Held<'a>,
    }

    impl<T: ?Sized> Deref for Shared<'_, T> {
        type Target = T;

        #[inline]
        fn deref(&self) -> &T {
            &self.borrow
        }
    }

    impl<T: ?Sized> Deref for Exclusive<'_, T> {
        type Target = T;

        #[inline]
        fn deref(&self) -> &T {
            &self.borrow
        }
    }

    impl<T: ?Sized> DerefMut for Exclusive<'_, T> {
        #[inline]
        fn deref_mut(&mut self) -> &mut T {
            &mut self.borrow
        }
    }

    impl<'a, T: ?Sized> Exclusive<'a, T> {
        /// A part of what is borrowed.
        pub(crate) fn map<U: ?Sized>(
            this: Self,
            part: impl FnOnce(&mut T) -> &mut U,
        ) -> Exclusive<'a, U> {
            let Self { borrow, held } = this;
            Exclusive {
                borrow: RefMut::map(borrow, part),
                held,
            }
        }
    }

    impl<T: Default> Default for GilCell<T> {
        #[cfg_attr(debug_assertions, track_caller)]
        fn default() -> Self {
            Self::new(T::default())
        }
    }

    impl<T> GilCell<T> {
        #[cfg_attr(debug_assertions, track_caller)]
        pub(crate) const fn new(value: T) -> Self {
            Self(RefCell::new(value), Lock::new())
        }

        #[inline]
        #[cfg_attr(debug_assertions, track_caller)]
        pub(crate) fn get(&self, py: Python<'_>) -> Shared<'_, T> {
            let held = self.1.lock(py);
            Shared {
                borrow: self.0.borrow(),
                _held: held,
            }
        }

        #[inline]
        #[cfg_attr(debug_assertions, track_caller)]
        pub(crate) fn get_mut(&self, py: Python<'_>) -> Exclusive<'_, T> {
            let held = self.1.lock(py);
            Exclusive {
                borrow: self.0.borrow_mut(),
                held,
            }
        }
    }
}

pub(crate) use kind::{Exclusive, GilCell};

/// For what must not happen during a borrow: builds that check the order of locks panic if this thread has one.
#[cfg(all(Py_GIL_DISABLED, debug_assertions))]
pub(crate) use crate::lock_order::expect_none as expect_none_borrowed;

#[cfg(not(all(Py_GIL_DISABLED, debug_assertions)))]
#[inline]
pub(crate) fn expect_none_borrowed(_what: &str) {}

/// One of `all`, chosen by this thread's number, so that few threads share one. With the GIL, always the first.
#[inline]
pub(crate) fn of_this_thread<T, const N: usize>(all: &[T; N]) -> &T {
    #[cfg(Py_GIL_DISABLED)]
    let number = crate::lock::thread_number();
    #[cfg(not(Py_GIL_DISABLED))]
    let number = 0;
    &all[number % N]
}

impl<T> GilCell<T> {
    /// For the collector, which holds the GIL, or has stopped all other threads; it has no token to show and must not
    /// panic: None while borrowed.
    pub(crate) fn for_traversal(&self) -> Option<Ref<'_, T>> {
        self.0.try_borrow().ok()
    }

    /// Replaces the value and returns the old one, to be dropped when no borrow is held.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn replace(&self, py: Python<'_>, value: T) -> T {
        std::mem::replace(&mut *self.get_mut(py), value)
    }
}
