//! Panics in the user's code.

use std::mem;
use std::panic::{self, AssertUnwindSafe};

/// The message of a panic, if its payload is a string.
pub fn message(payload: &(dyn std::any::Any + Send)) -> Option<&str> {
    payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
}

/// Calls the user's code where nobody is left to report a panic to: the panic hook has reported it. Returns false if it
/// panicked.
pub fn contain(call: impl FnOnce()) -> bool {
    let Err(payload) = panic::catch_unwind(AssertUnwindSafe(call)) else {
        return true;
    };
    // The payload may have a destructor that panics. The payload of that panic is leaked, because its destructor might
    // do the same.
    if let Err(next) = panic::catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        mem::forget(next);
    }
    false
}

/// Drops a value of a user's type, and contains a panic of its destructor.
pub fn discard<T>(value: T) {
    contain(|| drop(value));
}

/// Drops values one by one. If a collection is dropped as a whole, the second destructor that panics ends the process.
pub fn discard_each<T>(values: impl IntoIterator<Item = T>) {
    for value in values {
        discard(value);
    }
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
            assert!(!contain(|| panic::panic_any(Bomb(times))));
        }
        assert!(contain(|| ()));
        discard_each([Bomb(1), Bomb(0), Bomb(2)]);
    }
}
