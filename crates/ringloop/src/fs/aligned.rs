//! Buffers for direct I/O.

#![allow(unsafe_code)]

use std::alloc::{self, Layout};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};
use std::slice;

use bytes::BufMut;
use bytes::buf::UninitSlice;

use crate::buffer::ReadBuffer;

/// A page, which suits all common devices and file systems.
const ALIGNMENT: usize = 4096;

/// A buffer whose memory begins at a multiple of a block size, for files that are opened for [direct
/// I/O](super::OpenOptions::direct). Its capacity is fixed: it never grows.
///
/// Reading appends, so [`clear`](Self::clear) it before the next read: with direct I/O, the room must begin and end at
/// multiples of the block size, too. Before the last, incomplete block of a file is written, fill it up
/// ([`put_bytes`](BufMut::put_bytes)), and set the length of the file afterwards ([`File::set_len`](super::File::set_len)).
///
/// ```
/// use bytes::BufMut;
/// use ringloop::fs::AlignedBuf;
///
/// let mut block = AlignedBuf::new(4096);
/// assert_eq!(block.as_ptr().addr() % 4096, 0);
/// block.put_slice(b"a record");
/// block.put_bytes(0, block.remaining_mut());
/// assert_eq!((block.len(), &block[..9]), (4096, &b"a record\0"[..]));
/// ```
pub struct AlignedBuf {
    start: NonNull<u8>,
    length: usize,
    layout: Layout,
}

// SAFETY: it owns its memory, as a vector does.
unsafe impl Send for AlignedBuf {}
// SAFETY: a shared reference only reads.
unsafe impl Sync for AlignedBuf {}

impl AlignedBuf {
    /// Creates an empty buffer that has room for `capacity` bytes, at a multiple of 4096, which suits all common devices.
    ///
    /// # Panics
    /// Panics if the capacity is larger than `isize::MAX`.
    pub fn new(capacity: usize) -> Self {
        Self::with_alignment(capacity, ALIGNMENT)
    }

    /// Creates an empty buffer that has room for `capacity` bytes, at a multiple of `alignment`.
    ///
    /// # Panics
    /// Panics if the alignment is not a power of two, or the capacity is larger than `isize::MAX`.
    pub fn with_alignment(capacity: usize, alignment: usize) -> Self {
        let layout = Layout::from_size_align(capacity, alignment);
        let layout = layout.expect("the alignment is a power of two, and the capacity is possible");
        if capacity == 0 {
            return Self {
                start: NonNull::new(ptr::without_provenance_mut(layout.align()))
                    .expect("a power of two is not 0"),
                length: 0,
                layout,
            };
        }
        // SAFETY: the size is not zero.
        let start = unsafe { alloc::alloc(layout) };
        let Some(start) = NonNull::new(start) else {
            alloc::handle_alloc_error(layout)
        };
        Self {
            start,
            length: 0,
            layout,
        }
    }

    /// How many bytes it can hold.
    pub fn capacity(&self) -> usize {
        self.layout.size()
    }

    /// Forgets the bytes, so that the whole buffer is room.
    pub fn clear(&mut self) {
        self.length = 0;
    }

    /// Keeps the first `length` bytes; does nothing if there are no more than these.
    pub fn truncate(&mut self, length: usize) {
        self.length = self.length.min(length);
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the memory is its own, and that many bytes of it are initialised.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `deref`, and `self` is borrowed mutably.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }
}

impl AsRef<[u8]> for AlignedBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

// SAFETY: `chunk_mut` returns the memory behind the bytes, and `advance_mut` counts what was written there.
unsafe impl BufMut for AlignedBuf {
    fn remaining_mut(&self) -> usize {
        self.capacity() - self.length
    }

    unsafe fn advance_mut(&mut self, count: usize) {
        assert!(
            count <= self.remaining_mut(),
            "{count} bytes are more than the room for {}",
            self.remaining_mut()
        );
        self.length += count;
    }

    fn chunk_mut(&mut self) -> &mut UninitSlice {
        let room = self.remaining_mut();
        // SAFETY: the memory behind the bytes is its own, too.
        unsafe { UninitSlice::from_raw_parts_mut(self.start.as_ptr().add(self.length), room) }
    }
}

impl ReadBuffer for AlignedBuf {
    fn room(&self) -> usize {
        self.remaining_mut()
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        if self.layout.size() > 0 {
            // SAFETY: it was allocated with this layout, and is not used any more.
            unsafe { alloc::dealloc(self.start.as_ptr(), self.layout) };
        }
    }
}

impl fmt::Debug for AlignedBuf {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("AlignedBuf")
            .field("len", &self.length)
            .field("capacity", &self.capacity())
            .field("alignment", &self.layout.align())
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(ringloop_loom)))]
mod tests {
    use super::*;

    #[test]
    fn memory_is_aligned_and_never_grows() {
        for alignment in [1, 512, 4096, 1 << 16] {
            let mut buffer = AlignedBuf::with_alignment(3 * 512, alignment);
            assert_eq!(buffer.as_ptr().addr() % alignment, 0);
            assert_eq!(
                (buffer.len(), buffer.capacity(), buffer.room()),
                (0, 1536, 1536)
            );
            buffer.put_bytes(7, 1000);
            buffer.put_slice(&[8; 536]);
            assert_eq!((buffer[999], buffer[1000], buffer.room()), (7, 8, 0));
            buffer[0] = 1;
            buffer.truncate(2000);
            assert_eq!(buffer.len(), 1536);
            buffer.truncate(2);
            assert_eq!(*buffer, [1, 7]);
            buffer.clear();
            assert_eq!((buffer.len(), buffer.room()), (0, 1536));
        }
    }

    #[test]
    fn an_empty_one_has_no_memory() {
        let mut empty = AlignedBuf::new(0);
        assert_eq!((empty.len(), empty.room()), (0, 0));
        assert_eq!(empty.chunk_mut().len(), 0);
        assert_eq!(*empty, []);
    }

    #[test]
    #[should_panic(expected = "out of bounds")]
    fn more_than_fits_is_refused() {
        AlignedBuf::new(8).put_slice(&[0; 9]);
    }
}
