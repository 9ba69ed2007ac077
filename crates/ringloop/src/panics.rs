//! Panics in the user's code.

use std::any::Any;
use std::mem;
use std::panic::{self, AssertUnwindSafe};

/// The message of a panic, if its payload is a string.
pub(crate) fn message(payload: &(dyn Any + Send)) -> Option<&str> {
    payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
}

/// Calls the user's code where nobody is left to report a panic to: the panic hook has reported it.
pub(crate) fn contain(call: impl FnOnce()) {
    let Err(payload) = panic::catch_unwind(AssertUnwindSafe(call)) else {
        return;
    };
    // The payload may have a destructor that panics. The payload of that panic is leaked, because its destructor might
    // do the same.
    if let Err(next) = panic::catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        mem::forget(next);
    }
}

/// Drops a value of a user's type, and contains a panic of its destructor.
pub(crate) fn discard<T>(value: T) {
    contain(|| drop(value));
}

#[cfg(all(test, not(ringloop_loom)))]
mod tests {
    use super::*;

    /// Panics when it is dropped, this many times in a row.
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
