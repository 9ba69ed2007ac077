//! Connections of any family.

use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use bytes::Buf;

use super::family::stream_methods;
use super::halves::{OwnedReadHalf, OwnedWriteHalf, split};
use super::stream::{Core, HasCore, Stream};
use super::{PeerCredentials, TcpStream, UnixStream};
use crate::buffer::ReadBuffer;
use crate::sealed::Internal;
use crate::source::{Closed, Direction, End};

/// A connection of TCP or of a Unix socket, for code that serves both.
///
/// Buffers may be owned or borrowed, see [`TcpStream`].
///
/// ```
/// use ringloop::net::{AnyStream, UnixStream};
///
/// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
/// let (near, mut far) = UnixStream::pair()?;
/// let mut near = AnyStream::from(near);
/// far.write_all(&b"hello"[..]).await.0?;
/// let (count, text) = near.read(Vec::with_capacity(16)).await;
/// assert_eq!((count?, &text[..]), (5, &b"hello"[..]));
/// assert_eq!(near.peer_credentials()?.unwrap().pid, Some(std::process::id().cast_signed()));
/// # Ok::<(), std::io::Error>(())
/// # })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub enum AnyStream {
    /// A TCP connection.
    Tcp(TcpStream),
    /// A connection of a Unix socket.
    Unix(UnixStream),
}

impl AnyStream {
    /// The process at the other end of a Unix socket; `None` for TCP.
    ///
    /// # Errors
    /// Returns the errors of getsockopt(2).
    pub fn peer_credentials(&self) -> io::Result<Option<PeerCredentials>> {
        match self {
            AnyStream::Tcp(_) => Ok(None),
            AnyStream::Unix(stream) => stream.peer_credentials().map(Some),
        }
    }
}

stream_methods! {
    AnyStream;
    read;
    read_vectored;
    read_with;
    write;
    write_all;
    try_write;
    readable;
    peek;
    shutdown;
    into_split;
}

impl Stream for AnyStream {
    fn connection(&self, internal: Internal) -> &Core {
        match self {
            AnyStream::Tcp(stream) => stream.connection(internal),
            AnyStream::Unix(stream) => stream.connection(internal),
        }
    }
}

impl From<TcpStream> for AnyStream {
    fn from(stream: TcpStream) -> Self {
        AnyStream::Tcp(stream)
    }
}

impl From<UnixStream> for AnyStream {
    fn from(stream: UnixStream) -> Self {
        AnyStream::Unix(stream)
    }
}

impl AsFd for AnyStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.core().socket().as_fd()
    }
}

impl AsRawFd for AnyStream {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl fmt::Debug for AnyStream {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AnyStream::Tcp(stream) => stream.fmt(formatter),
            AnyStream::Unix(stream) => stream.fmt(formatter),
        }
    }
}
