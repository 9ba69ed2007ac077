//! What can be read into.

use std::mem::MaybeUninit;

use bytes::buf::{Chain, Limit, UninitSlice};
use bytes::{BufMut, BytesMut};

/// What can be read into: a [`BufMut`] that says how much room it has. No read makes a buffer grow.
///
/// ```
/// use bytes::{BufMut, BytesMut};
/// use ringloop::net::ReadBuffer;
///
/// assert_eq!(Vec::<u8>::new().room(), 0);
/// assert_eq!((&mut [0; 8][..]).room(), 8);
/// let mut bytes = BytesMut::with_capacity(16);
/// bytes.put_slice(b"head");
/// assert_eq!(bytes.room(), bytes.capacity() - 4);
/// assert_eq!((&mut bytes).limit(5).room(), 5);
/// ```
pub trait ReadBuffer: BufMut {
    /// How many bytes it takes next, in one piece, without growing.
    fn room(&self) -> usize;
}

/// The bytes that a read may fill: the next piece of the buffer, as far as it has room.
pub(crate) fn spare(buffer: &mut impl ReadBuffer) -> &mut UninitSlice {
    let room = buffer.room();
    if room == 0 {
        // Asking for the next piece would make it grow.
        return UninitSlice::new(&mut []);
    }
    let piece = buffer.chunk_mut();
    let length = room.min(piece.len());
    &mut piece[..length]
}

impl ReadBuffer for Vec<u8> {
    fn room(&self) -> usize {
        self.capacity() - self.len()
    }
}

impl ReadBuffer for BytesMut {
    fn room(&self) -> usize {
        self.capacity() - self.len()
    }
}

impl ReadBuffer for &mut [u8] {
    fn room(&self) -> usize {
        self.len()
    }
}

impl ReadBuffer for &mut [MaybeUninit<u8>] {
    fn room(&self) -> usize {
        self.len()
    }
}

impl<B: ReadBuffer + ?Sized> ReadBuffer for &mut B {
    fn room(&self) -> usize {
        (**self).room()
    }
}

impl<B: ReadBuffer + ?Sized> ReadBuffer for Box<B> {
    fn room(&self) -> usize {
        (**self).room()
    }
}

impl<B: ReadBuffer> ReadBuffer for Limit<B> {
    fn room(&self) -> usize {
        self.get_ref().room().min(self.limit())
    }
}

impl<A: ReadBuffer, B: ReadBuffer> ReadBuffer for Chain<A, B> {
    fn room(&self) -> usize {
        // As it chooses the next piece: one that could grow is never done with.
        if self.first_ref().has_remaining_mut() {
            self.first_ref().room()
        } else {
            self.last_ref().room()
        }
    }
}
