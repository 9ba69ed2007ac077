//! Bytes that are sent from where they are.

#![allow(unsafe_code)]

use std::fmt;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;

/// Bytes, with their owner, at a stable address.
///
/// The owner may be of any type, and its code does not run in the middle of the driver's work: it is asked for its bytes
/// once, and a panic of its destructor goes no further than the panic hook.
///
/// ```
/// use ringloop_driver::Bytes;
///
/// let bytes = Bytes::new(vec![1, 2, 3]);
/// assert_eq!(bytes.as_slice(), [1, 2, 3]);
/// ```
pub struct Bytes {
    /// From a box.
    owner: NonNull<dyn AsRef<[u8]> + Send>,
    slice: NonNull<[u8]>,
}

// SAFETY: the owner is Send, and nobody but this value has access to it. The bytes are only read.
unsafe impl Send for Bytes {}

impl Bytes {
    /// The bytes of `owner`, which is dropped with this value.
    pub fn new(owner: impl AsRef<[u8]> + Send + 'static) -> Bytes {
        let owner: Box<dyn AsRef<[u8]> + Send> = Box::new(owner);
        // SAFETY: a box's pointer is never null.
        let owner = unsafe { NonNull::new_unchecked(Box::into_raw(owner)) };
        let mut bytes = Bytes {
            owner,
            slice: NonNull::from(&[]),
        };
        // If this panics, the owner is dropped. SAFETY: the pointer is from a box that only this value has.
        bytes.slice = NonNull::from(unsafe { bytes.owner.as_ref() }.as_ref());
        bytes
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the slice was borrowed from the owner, which has not moved since, was not borrowed mutably, and lives as
        // long as this value.
        unsafe { self.slice.as_ref() }
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        // SAFETY: the pointer came from Box::into_raw, and nobody else frees it.
        let owner = unsafe { Box::from_raw(self.owner.as_ptr()) };
        // The payload of a panic may have a destructor that panics. What that gives is leaked: it might do the same.
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(owner)))
            && let Err(next) = catch_unwind(AssertUnwindSafe(|| drop(payload)))
        {
            mem::forget(next);
        }
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Bytes({})", self.as_slice().len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// Returns its bytes only once, and panics when it is dropped.
    struct Fickle([u8; 3], Arc<AtomicU32>);

    impl AsRef<[u8]> for Fickle {
        fn as_ref(&self) -> &[u8] {
            let calls = self.1.fetch_add(1, Ordering::Relaxed);
            assert_eq!(calls, 0, "it is asked again");
            &self.0
        }
    }

    impl Drop for Fickle {
        fn drop(&mut self) {
            self.1.fetch_add(100, Ordering::Relaxed);
            panic!("on purpose");
        }
    }

    #[test]
    fn an_owner_is_asked_once_and_its_panic_is_contained() {
        let calls = Arc::new(AtomicU32::new(0));
        let bytes = Bytes::new(Fickle([1, 2, 3], Arc::clone(&calls)));
        // The owner is on the heap, so its bytes do not move with this value.
        let bytes = Box::new(bytes);
        assert_eq!(bytes.as_slice(), [1, 2, 3]);
        assert_eq!(bytes.as_slice(), [1, 2, 3]);
        drop(bytes);
        assert_eq!(calls.load(Ordering::Relaxed), 101);
    }

    #[test]
    fn an_owner_that_panics_when_it_is_asked_is_dropped() {
        let calls = Arc::new(AtomicU32::new(1));
        let owner = Fickle([0; 3], Arc::clone(&calls));
        assert!(catch_unwind(AssertUnwindSafe(|| Bytes::new(owner))).is_err());
        assert_eq!(calls.load(Ordering::Relaxed), 102);
    }
}
