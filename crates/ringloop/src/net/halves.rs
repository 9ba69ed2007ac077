//! The two halves of a connection.

use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::rc::Rc;

use bytes::{Buf, Bytes};

use super::stream::{Core, HasCore, Stream};
use crate::buffer::ReadBuffer;
use crate::source::{Closed, Direction, End};

/// The reading half of a connection; created by `into_split`.
///
/// ```
/// use ringloop::net::UnixStream;
/// use ringloop::{Runtime, RuntimeConfig, spawn};
///
/// # fn main() -> std::io::Result<()> {
/// Runtime::new(&RuntimeConfig::default())?.block_on(async {
///     let (near, far) = UnixStream::pair()?;
///     let (mut reader, _writer) = near.into_split();
///     let reading = spawn(async move { reader.read(Vec::with_capacity(16)).await });
///     let (_reader, mut writer) = far.into_split();
///     writer.write_all(&b"hello"[..]).await.0?;
///     let (count, bytes) = reading.await.unwrap();
///     assert_eq!((count?, &bytes[..]), (5, &b"hello"[..]));
///     Ok(())
/// })
/// # }
/// ```
#[derive(Debug)]
pub struct OwnedReadHalf<S: Stream = crate::net::TcpStream> {
    stream: Rc<S>,
}

/// The writing half of a connection; created by `into_split`. Dropping it shuts down the writing direction.
///
/// ```
/// use ringloop::net::UnixStream;
///
/// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
/// let (near, mut far) = UnixStream::pair()?;
/// let (_reader, mut writer) = near.into_split();
/// writer.write_all(&b"all"[..]).await.0?;
/// drop(writer);
/// let (count, bytes) = far.read(Vec::with_capacity(16)).await;
/// assert_eq!((count?, &bytes[..]), (3, &b"all"[..]));
/// assert_eq!(far.read(bytes).await.0?, 0);
/// # Ok::<(), std::io::Error>(())
/// # })?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct OwnedWriteHalf<S: Stream = crate::net::TcpStream> {
    stream: Rc<S>,
    /// Whether the other half has the connection to itself now, for reading and writing.
    is_reunited: bool,
}

/// Two halves belong to different connections; from [`OwnedReadHalf::reunite`]. Both are returned in it.
#[derive(Debug)]
pub struct ReuniteError<S: Stream = crate::net::TcpStream>(
    pub OwnedReadHalf<S>,
    pub OwnedWriteHalf<S>,
);

impl<S: Stream> fmt::Display for ReuniteError<S> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("the two halves belong to different connections")
    }
}

impl<S: Stream + fmt::Debug> std::error::Error for ReuniteError<S> {}

pub(crate) fn split<S: Stream>(stream: S) -> (OwnedReadHalf<S>, OwnedWriteHalf<S>) {
    let stream = Rc::new(stream);
    let reader = OwnedReadHalf {
        stream: Rc::clone(&stream),
    };
    let writer = OwnedWriteHalf {
        stream,
        is_reunited: false,
    };
    (reader, writer)
}

impl<S: Stream> OwnedReadHalf<S> {
    /// Reads what has arrived, once, and appends it to the buffer, as far as that has room; the buffer never grows. A
    /// count of 0 means that the stream has ended, or that the buffer had no room.
    pub async fn read<B: ReadBuffer>(&mut self, buffer: B) -> (io::Result<usize>, B) {
        self.stream.core().read(buffer).await
    }

    /// Reads without waiting, see [`TcpStream::try_read`](crate::net::TcpStream::try_read).
    pub fn try_read(&self, buffer: &mut impl ReadBuffer) -> io::Result<usize> {
        self.stream.core().try_read(buffer)
    }

    /// Waits until there is something to read, see [`TcpStream::readable`](crate::net::TcpStream::readable).
    pub async fn readable(&self) -> io::Result<()> {
        self.stream.core().ready(Direction::Read).await
    }

    /// Reads and leaves the bytes there, see [`TcpStream::peek`](crate::net::TcpStream::peek).
    pub async fn peek<B: ReadBuffer>(&self, buffer: B) -> (io::Result<usize>, B) {
        self.stream.core().peek(buffer).await
    }

    /// Reads into several buffers, see [`UnixStream::read_vectored`](crate::net::UnixStream::read_vectored).
    pub async fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.stream.core().read_vectored(buffers).await
    }

    /// Reads in place, see [`TcpStream::read_with`](crate::net::TcpStream::read_with).
    pub async fn read_with<T>(&mut self, use_bytes: impl FnOnce(&[u8], &S) -> T) -> io::Result<T> {
        let stream = &*self.stream;
        stream
            .core()
            .read_with(|bytes| use_bytes(bytes, stream))
            .await
    }

    /// Waits until the connection is closed, see [`TcpStream::closed`](crate::net::TcpStream::closed).
    pub fn closed(&self) -> Closed {
        self.stream.core().until(End::Both)
    }

    /// Waits until the peer has finished sending, see [`TcpStream::read_closed`](crate::net::TcpStream::read_closed).
    pub fn read_closed(&self) -> Closed {
        self.stream.core().until(End::Reading)
    }

    /// The connection that this half belongs to.
    pub fn stream(&self) -> &S {
        &self.stream
    }

    /// Puts the two halves of a connection together again. Nothing is shut down.
    ///
    /// # Errors
    /// Returns both halves if they belong to different connections.
    ///
    /// ```
    /// use ringloop::net::UnixStream;
    ///
    /// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
    /// let (near, mut far) = UnixStream::pair()?;
    /// let (reader, writer) = near.into_split();
    /// let mut near = reader.reunite(writer).unwrap();
    /// near.write_all(&b"still open"[..]).await.0?;
    /// assert_eq!(far.read(Vec::with_capacity(16)).await.1, b"still open");
    /// # Ok::<(), std::io::Error>(())
    /// # })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn reunite(self, mut writer: OwnedWriteHalf<S>) -> Result<S, ReuniteError<S>> {
        if !Rc::ptr_eq(&self.stream, &writer.stream) {
            return Err(ReuniteError(self, writer));
        }
        writer.is_reunited = true;
        drop(writer);
        Ok(Rc::into_inner(self.stream).expect("there are two halves, and one is gone"))
    }
}

impl<S: Stream> OwnedWriteHalf<S> {
    /// Writes as much of a buffer as there is room for, and advances the buffer by that.
    pub async fn write<B: Buf>(&mut self, buffer: B) -> (io::Result<usize>, B) {
        self.stream.core().write(buffer).await
    }

    /// Writes without waiting, see [`TcpStream::try_write`](crate::net::TcpStream::try_write).
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.core().try_write(bytes)
    }

    /// Waits until there is room to write, see [`TcpStream::writable`](crate::net::TcpStream::writable).
    pub async fn writable(&self) -> io::Result<()> {
        self.stream.core().ready(Direction::Write).await
    }

    /// Writes all of a buffer. After an error, the buffer that comes back holds what was not written.
    pub async fn write_all<B: Buf>(&mut self, buffer: B) -> (io::Result<()>, B) {
        self.stream.core().write_all(buffer).await
    }

    /// Waits until the connection is closed, see [`TcpStream::closed`](crate::net::TcpStream::closed).
    pub fn closed(&self) -> Closed {
        self.stream.core().until(End::Both)
    }

    /// Waits until the peer has finished sending, see [`TcpStream::read_closed`](crate::net::TcpStream::read_closed).
    pub fn read_closed(&self) -> Closed {
        self.stream.core().until(End::Reading)
    }

    /// The connection that this half belongs to.
    pub fn stream(&self) -> &S {
        &self.stream
    }
}

impl OwnedWriteHalf {
    /// Writes all of a buffer without copying it, see
    /// [`TcpStream::write_all_zero_copy`](crate::net::TcpStream::write_all_zero_copy).
    pub async fn write_all_zero_copy(&mut self, bytes: Bytes) -> (io::Result<()>, Bytes) {
        self.stream.core().write_all_zero_copy(bytes).await
    }
}

impl<S: Stream> HasCore for OwnedReadHalf<S> {
    fn core(&self) -> &Core {
        self.stream.core()
    }
}

impl<S: Stream> HasCore for OwnedWriteHalf<S> {
    fn core(&self) -> &Core {
        self.stream.core()
    }
}

macro_rules! descriptor {
    ($half:ident) => {
        impl<S: Stream> AsFd for $half<S> {
            fn as_fd(&self) -> BorrowedFd<'_> {
                self.stream.core().as_fd()
            }
        }

        impl<S: Stream> AsRawFd for $half<S> {
            fn as_raw_fd(&self) -> RawFd {
                self.as_fd().as_raw_fd()
            }
        }
    };
}

descriptor!(OwnedReadHalf);
descriptor!(OwnedWriteHalf);

impl<S: Stream> Drop for OwnedWriteHalf<S> {
    fn drop(&mut self) {
        if !self.is_reunited {
            // An error means that the connection is gone already.
            drop(self.stream.core().shutdown(Shutdown::Write));
        }
    }
}
