//! Bytes that are sent or written from where they are.

#![allow(unsafe_code)]

use std::any::Any;
use std::fmt;
use std::ptr::NonNull;

use crate::owner::Owner;

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
/// assert_eq!(bytes.into_owner::<Vec<u8>>().unwrap(), [1, 2, 3]);
/// ```
pub struct Bytes {
    owner: Owner<dyn Readable>,
    slice: NonNull<[u8]>,
}

/// An owner of bytes.
trait Readable: AsRef<[u8]> + Any + Send {}

impl<T: AsRef<[u8]> + Any + Send> Readable for T {}

// SAFETY: the owner is Send, and nobody but this value has access to it. The bytes are only read.
unsafe impl Send for Bytes {}

impl Bytes {
    /// The bytes of `owner`, which is dropped with this value.
    pub fn new(owner: impl AsRef<[u8]> + Send + 'static) -> Bytes {
        let owner: Box<dyn Readable> = Box::new(owner);
        // If it panics when it is asked, it is dropped.
        let owner = Owner::new(owner);
        let slice = NonNull::from(owner.get().as_ref());
        Bytes { owner, slice }
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the slice was borrowed from the owner, which has not moved since, was not borrowed mutably, and lives as
        // long as this value.
        unsafe { self.slice.as_ref() }
    }

    /// Returns the owner.
    ///
    /// # Errors
    /// Returns the bytes if their owner is not a `T`.
    pub fn into_owner<T: 'static>(self) -> Result<T, Bytes> {
        let owner: &dyn Any = self.owner.get();
        if !owner.is::<T>() {
            return Err(self);
        }
        let owner: Box<dyn Any> = self.owner.into_box();
        Ok(*owner.downcast().expect("its type was asked for"))
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

    use std::panic::{AssertUnwindSafe, catch_unwind};
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

    #[test]
    fn an_owner_comes_back_only_as_what_it_is() {
        // The bytes are in the owner itself.
        let bytes = Bytes::new([7_u8; 3]);
        let bytes = bytes.into_owner::<Vec<u8>>().unwrap_err();
        assert_eq!(bytes.as_slice(), [7; 3]);
        assert_eq!(bytes.into_owner::<[u8; 3]>().unwrap(), [7; 3]);
        let boxed = Bytes::new(Box::<[u8]>::from([1, 2]));
        assert_eq!(*boxed.into_owner::<Box<[u8]>>().unwrap(), [1, 2]);
    }
}
