//! Panics of users' code.

use std::any::Any;
use std::mem;
use std::panic::{self, AssertUnwindSafe};

/// What a panic says, if that is a text.
pub(crate) fn message(payload: &(dyn Any + Send)) -> Option<&str> {
    payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
}

/// Calls users' code where nobody is left to be told of a panic: the panic hook has reported it.
pub(crate) fn contain(call: impl FnOnce()) {
    let Err(payload) = panic::catch_unwind(AssertUnwindSafe(call)) else {
        return;
    };
    // What was panicked with is dropped by code of the user's too. If that panics, what it panics with is leaked: its
    // destructor might do the same, and so on.
    if let Err(next) = panic::catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        mem::forget(next);
    }
}

/// Drops a value of a user's type, as [`contain`] calls it.
pub(crate) fn discard<T>(value: T) {
    contain(|| drop(value));
}

#[cfg(all(test, not(ringloop_loom)))]
mod tests {
    use super::*;

    /// Panics when it is dropped, so many times in a row.
    struct Bomb(u32);

    impl Drop for Bomb {
        fn drop(&mut self) {
            if self.0 > 0 {
                panic::panic_any(Bomb(self.0 - 1));
            }
        }
    }

    #[test]
    fn destructors_that_panic_are_contained_however_often_they_do() {
        for times in 0..5 {
            discard(Bomb(times));
            contain(|| panic::panic_any(Bomb(times)));
        }
    }
}
