//! Buffers to read into.

use std::io;
use std::mem::MaybeUninit;

use bytes::buf::{Chain, Limit, UninitSlice};
use bytes::{BufMut, BytesMut};

/// A buffer to read into: a [`BufMut`] that says how much room it has. Reads never make a buffer grow.
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
    /// How many bytes fit into the next piece of the buffer without growing it.
    fn room(&self) -> usize;
}

/// The bytes that a read may fill: the next piece of the buffer, limited by its room.
pub(crate) fn spare(buffer: &mut impl ReadBuffer) -> &mut UninitSlice {
    let room = buffer.room();
    if room == 0 {
        // `chunk_mut` would make it grow.
        return UninitSlice::new(&mut []);
    }
    let piece = buffer.chunk_mut();
    let length = room.min(piece.len());
    &mut piece[..length]
}

/// Calls `read` until it has read nothing, and makes room for `room` bytes before each call. Returns how much was read.
pub(crate) async fn read_to_end(
    mut buffer: Vec<u8>,
    room: usize,
    mut read: impl AsyncFnMut(Vec<u8>) -> (io::Result<usize>, Vec<u8>),
) -> (io::Result<usize>, Vec<u8>) {
    let before = buffer.len();
    loop {
        buffer.reserve(room);
        let count;
        (count, buffer) = read(buffer).await;
        match count {
            Ok(0) => return (Ok(buffer.len() - before), buffer),
            Ok(_) => {}
            Err(error) => return (Err(error), buffer),
        }
    }
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
        // Like `Chain::chunk_mut`, which never leaves the first buffer if that can grow.
        if self.first_ref().has_remaining_mut() {
            self.first_ref().room()
        } else {
            self.last_ref().room()
        }
    }
}
