//! Memory that is read into.

#![allow(unsafe_code)]

use std::any::{Any, TypeId};
use std::fmt;
use std::mem::MaybeUninit;
use std::ptr::NonNull;

use crate::owner::Owner;

/// Something with room for bytes, which an operation can read into. `Vec<u8>` has its spare capacity.
pub trait Room: Any + Send {
    /// The memory for the bytes.
    fn room(&mut self) -> &mut [MaybeUninit<u8>];

    /// Counts the first `count` bytes of the room as read.
    ///
    /// # Safety
    /// They are initialised, they are within what [`room`](Self::room) has returned, and nothing else was done with the
    /// value since.
    unsafe fn filled(&mut self, count: usize);
}

impl Room for Vec<u8> {
    fn room(&mut self) -> &mut [MaybeUninit<u8>] {
        self.spare_capacity_mut()
    }

    unsafe fn filled(&mut self, count: usize) {
        // SAFETY: the caller has filled that many bytes of the spare capacity.
        unsafe { self.set_len(self.len() + count) };
    }
}

/// Memory to read into, with its owner, at a stable address.
///
/// The owner may be of any type, and its code does not run in the middle of the driver's work: it is asked for its room
/// once, learns what was read when it is [taken back](Self::into_owner), and a panic of its destructor goes no further than
/// the panic hook.
///
/// ```
/// use ringloop_driver::Buffer;
///
/// let buffer = Buffer::new(Vec::with_capacity(100));
/// assert!(buffer.room() >= 100);
/// assert!(buffer.filled().is_empty());
/// assert!(buffer.into_owner::<Vec<u8>>().unwrap().is_empty());
/// ```
pub struct Buffer {
    owner: Owner<dyn Room>,
    /// The owner's type. Asking the owner for it would end the use of its room.
    kind: TypeId,
    room: NonNull<[MaybeUninit<u8>]>,
    /// How many bytes of it are filled.
    filled: usize,
}

// SAFETY: the owner is Send, and nobody but this value has access to it or its memory.
unsafe impl Send for Buffer {}

impl Buffer {
    /// The room of `owner`, which is dropped with this value.
    pub fn new<T: Room>(owner: T) -> Buffer {
        let owner: Box<dyn Room> = Box::new(owner);
        // If it panics when it is asked, it is dropped.
        let mut owner = Owner::new(owner);
        let room = NonNull::from(owner.get_mut().room());
        Buffer {
            owner,
            kind: TypeId::of::<T>(),
            room,
            filled: 0,
        }
    }

    /// How many bytes have room.
    pub fn room(&self) -> usize {
        self.room.len()
    }

    /// The bytes that an operation has read.
    pub fn filled(&self) -> &[u8] {
        // SAFETY: the room was borrowed from the owner, which has not moved since, was not used, and lives as long as this
        // value. These bytes of it are initialised (`fill`).
        unsafe { std::slice::from_raw_parts(self.room.as_ptr().cast::<u8>(), self.filled) }
    }

    /// The memory.
    pub(crate) fn room_mut(&mut self) -> &mut [MaybeUninit<u8>] {
        // SAFETY: as for `filled`; and `self` is borrowed mutably.
        unsafe { self.room.as_mut() }
    }

    /// Counts the first `count` bytes of the room as read, at most all of it. The kernel has filled them.
    pub(crate) fn fill(&mut self, count: usize) {
        self.filled = count.min(self.room());
    }

    /// Returns the owner, with the bytes that were read.
    ///
    /// # Errors
    /// Returns the buffer if its owner is not a `T`.
    pub fn into_owner<T: 'static>(mut self) -> Result<T, Buffer> {
        if self.kind != TypeId::of::<T>() {
            return Err(self);
        }
        // SAFETY: they are initialised, and the owner was not used since it was asked for its room.
        unsafe { self.owner.get_mut().filled(self.filled) };
        let owner: Box<dyn Any> = self.owner.into_box();
        Ok(*owner.downcast().expect("its type was asked for"))
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Buffer({} of {})", self.filled, self.room())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Has its memory in itself.
    #[derive(Debug, PartialEq)]
    struct Inline {
        bytes: [u8; 4],
        used: usize,
    }

    impl Room for Inline {
        fn room(&mut self) -> &mut [MaybeUninit<u8>] {
            let room = &mut self.bytes[self.used..];
            // SAFETY: whoever fills it writes initialised bytes.
            unsafe { &mut *(std::ptr::from_mut(room) as *mut [MaybeUninit<u8>]) }
        }

        unsafe fn filled(&mut self, count: usize) {
            self.used += count;
        }
    }

    #[test]
    fn what_was_read_is_there_when_the_owner_comes_back() {
        let mut buffer = Buffer::new(b"ab".to_vec());
        assert_eq!((buffer.room(), buffer.filled()), (0, &[][..]));
        buffer.fill(5);
        assert_eq!(buffer.into_owner::<Vec<u8>>().unwrap(), b"ab");

        let mut text = Vec::with_capacity(10);
        text.extend_from_slice(b"ab");
        let mut buffer = Buffer::new(text);
        for (room, byte) in buffer.room_mut().iter_mut().zip(b"cd") {
            room.write(*byte);
        }
        buffer.fill(2);
        // The owner is on the heap, so its memory does not move with this value.
        let buffer = Box::new(buffer);
        assert_eq!(buffer.filled(), b"cd");
        assert_eq!(buffer.into_owner::<Vec<u8>>().unwrap(), b"abcd");
    }

    #[test]
    fn an_owner_comes_back_only_as_what_it_is() {
        let mut buffer = Buffer::new(Inline {
            bytes: *b"abcd",
            used: 1,
        });
        buffer.room_mut()[0].write(b'x');
        buffer.fill(1);
        let buffer = buffer.into_owner::<Vec<u8>>().unwrap_err();
        assert_eq!(buffer.filled(), b"x");
        let inline: Inline = buffer.into_owner().unwrap();
        assert_eq!((&inline.bytes, inline.used), (b"axcd", 2));
    }
}
