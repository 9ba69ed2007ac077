//! The files and connections that bytes are copied between.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::os::fd::BorrowedFd;
#[cfg(feature = "tls")]
use std::task::ready;
use std::task::{Context, Poll};

use bytes::BufMut;

use crate::buffer::ReadBuffer;
use crate::fs::{File, FileStream};
use crate::net::stream::{Core, HasCore};
use crate::net::{OwnedReadHalf, OwnedWriteHalf, ReadStream, Stream};
use crate::sealed::{INTERNAL, Internal};
#[cfg(feature = "tls")]
use crate::source::Seat;
use crate::source::Waiting;
#[cfg(feature = "tls")]
use crate::tls::{TlsReadHalf, TlsStream, TlsWriteHalf};

/// Something that [`copy`](super::copy) can read from: a [`File`], a connection, or its reading half. The trait is
/// sealed: no other type can implement it.
pub trait CopyFrom {
    /// Begins to read.
    #[doc(hidden)]
    fn source(&mut self, _: Internal) -> io::Result<Source<'_>>;
}

/// Something that [`copy`](super::copy) can write to: a [`File`], a connection, or its writing half. The trait is
/// sealed: no other type can implement it.
pub trait CopyTo {
    /// Begins to write.
    #[doc(hidden)]
    fn sink(&mut self, _: Internal) -> Sink<'_>;
}

/// A connection for [`copy_bidirectional`](super::copy_bidirectional): a [`TcpStream`](crate::net::TcpStream), a
/// [`UnixStream`](crate::net::UnixStream), or a TLS connection over one of them. The trait is sealed: no other type can
/// implement it.
pub trait Duplex {
    /// Begins to read and to write.
    #[doc(hidden)]
    fn ends(&mut self, _: Internal) -> (Source<'_>, Sink<'_>);
}

/// Where bytes come from.
pub enum Source<'a> {
    /// A file, a pipe or a device.
    File(FileSource<'a>),
    /// A plain connection.
    Socket(&'a Core),
    /// An encrypted one.
    #[cfg(feature = "tls")]
    Tls(TlsEnd<'a>),
}

/// Where bytes go.
pub enum Sink<'a> {
    /// A file, a pipe or a device.
    File(&'a mut File),
    /// A plain connection.
    Socket(&'a Core),
    /// An encrypted one.
    #[cfg(feature = "tls")]
    Tls(TlsEnd<'a>),
}

/// A connection that the kernel can send to from another descriptor: a plain one, or one whose records the kernel
/// encrypts.
#[derive(Clone, Copy)]
pub(super) enum Outlet<'a> {
    Plain(&'a Core),
    #[cfg(feature = "tls")]
    Tls(TlsEnd<'a>),
}

/// A file that is read. When this is dropped, the file's position is after what was copied.
pub struct FileSource<'a> {
    pub(super) file: &'a File,
    /// Where the next bytes are; `None` for pipes and devices.
    pub(super) offset: Option<u64>,
    moves_position: bool,
}

impl<'a> FileSource<'a> {
    /// Reads from an offset, and leaves the position where it is.
    pub(super) fn at(file: &'a File, offset: u64) -> Self {
        Self {
            file,
            offset: Some(offset),
            moves_position: false,
        }
    }
}

impl Drop for FileSource<'_> {
    fn drop(&mut self) {
        if self.moves_position
            && let Some(offset) = self.offset
        {
            // It has a position, and this one is no larger than the file was.
            drop(self.file.set_position(offset));
        }
    }
}

impl CopyFrom for File {
    fn source(&mut self, _: Internal) -> io::Result<Source<'_>> {
        let offset = self.position()?;
        Ok(Source::File(FileSource {
            file: self,
            offset,
            moves_position: true,
        }))
    }
}

impl CopyTo for File {
    fn sink(&mut self, _: Internal) -> Sink<'_> {
        Sink::File(self)
    }
}

impl ReadStream for FileStream {
    async fn read_into(&mut self, buffer: &mut impl ReadBuffer, _: Internal) -> io::Result<usize> {
        poll_fn(|context| self.poll_read_into(context, buffer)).await
    }
}

macro_rules! from_core {
    ($($type:ty),*) => {$(
        impl<S: Stream> CopyFrom for $type {
            fn source(&mut self, _: Internal) -> io::Result<Source<'_>> {
                Ok(Source::Socket(self.core()))
            }
        }
    )*};
}

macro_rules! to_core {
    ($($type:ty),*) => {$(
        impl<S: Stream> CopyTo for $type {
            fn sink(&mut self, _: Internal) -> Sink<'_> {
                Sink::Socket(self.core())
            }
        }
    )*};
}

from_core!(S, OwnedReadHalf<S>);
to_core!(S, OwnedWriteHalf<S>);

impl<S: Stream> Duplex for S {
    fn ends(&mut self, _: Internal) -> (Source<'_>, Sink<'_>) {
        let core = self.connection(INTERNAL);
        (Source::Socket(core), Sink::Socket(core))
    }
}

/// A TLS connection of any family.
#[cfg(feature = "tls")]
#[derive(Clone, Copy)]
pub struct TlsEnd<'a>(&'a dyn Secured);

/// A TLS connection over a connection of any family.
#[cfg(feature = "tls")]
trait Secured {
    fn reading(&self) -> (Waiting<'_>, Waiting<'_, &Seat>);
    fn writing(&self) -> Waiting<'_>;
    fn poll_read_with(
        &self,
        context: &mut Context<'_>,
        use_bytes: &mut dyn FnMut(&[u8]),
    ) -> Poll<io::Result<()>>;
    fn poll_read_up_to(
        &self,
        context: &mut Context<'_>,
        buffer: &mut Vec<u8>,
        limit: usize,
    ) -> Poll<io::Result<usize>>;
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize>;
    fn poll_write(&self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>>;
    fn poll_flush(&self, context: &mut Context<'_>) -> Poll<io::Result<()>>;
    fn poll_finish(&self, context: &mut Context<'_>) -> Poll<io::Result<()>>;
    fn is_in_kernel(&self) -> bool;
    fn poll_send_by(
        &self,
        context: &mut Context<'_>,
        wanted: usize,
        call: &mut dyn FnMut(BorrowedFd<'_>) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>>;
}

#[cfg(feature = "tls")]
impl<S: Stream> Secured for TlsStream<S> {
    fn reading(&self) -> (Waiting<'_>, Waiting<'_, &Seat>) {
        self.reading()
    }

    fn writing(&self) -> Waiting<'_> {
        self.writing()
    }

    fn poll_read_with(
        &self,
        context: &mut Context<'_>,
        use_bytes: &mut dyn FnMut(&[u8]),
    ) -> Poll<io::Result<()>> {
        self.poll_read_with(context, |bytes, _| use_bytes(bytes))
    }

    fn poll_read_up_to(
        &self,
        context: &mut Context<'_>,
        buffer: &mut Vec<u8>,
        limit: usize,
    ) -> Poll<io::Result<usize>> {
        self.poll_read_into(context, &mut buffer.limit(limit))
    }

    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.try_write(bytes)
    }

    fn poll_write(&self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write(context, bytes)
    }

    fn poll_flush(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush(context)
    }

    fn poll_finish(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_finish(context)
    }

    fn is_in_kernel(&self) -> bool {
        self.is_in_kernel()
    }

    fn poll_send_by(
        &self,
        context: &mut Context<'_>,
        wanted: usize,
        call: &mut dyn FnMut(BorrowedFd<'_>) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        self.poll_send_by(context, wanted, call)
    }
}

#[cfg(feature = "tls")]
impl<S: Stream> CopyFrom for TlsStream<S> {
    fn source(&mut self, _: Internal) -> io::Result<Source<'_>> {
        Ok(Source::Tls(TlsEnd(self)))
    }
}

#[cfg(feature = "tls")]
impl<S: Stream> CopyTo for TlsStream<S> {
    fn sink(&mut self, _: Internal) -> Sink<'_> {
        Sink::Tls(TlsEnd(self))
    }
}

#[cfg(feature = "tls")]
impl<S: Stream> Duplex for TlsStream<S> {
    fn ends(&mut self, _: Internal) -> (Source<'_>, Sink<'_>) {
        let end = TlsEnd(self);
        (Source::Tls(end), Sink::Tls(end))
    }
}

#[cfg(feature = "tls")]
impl<S: Stream> CopyFrom for TlsReadHalf<S> {
    fn source(&mut self, _: Internal) -> io::Result<Source<'_>> {
        Ok(Source::Tls(TlsEnd(self.stream())))
    }
}

#[cfg(feature = "tls")]
impl<S: Stream> CopyTo for TlsWriteHalf<S> {
    fn sink(&mut self, _: Internal) -> Sink<'_> {
        Sink::Tls(TlsEnd(self.stream()))
    }
}

impl Source<'_> {
    /// Reads once, appends up to `limit` bytes to the buffer, and returns how many; 0 is the end.
    pub(super) async fn read(&self, buffer: &mut Vec<u8>, limit: usize) -> io::Result<usize> {
        match self {
            Source::File(source) => {
                buffer.reserve_exact(limit);
                let room = std::mem::take(buffer).limit(limit);
                let (result, back) = source.file.read_once(room, source.offset).await;
                *buffer = back.into_inner();
                result
            }
            Source::Socket(core) => {
                buffer.reserve(limit);
                let _waiting = core.reading();
                poll_fn(|context| core.poll_read_into(context, &mut (&mut *buffer).limit(limit)))
                    .await
            }
            #[cfg(feature = "tls")]
            Source::Tls(TlsEnd(stream)) => {
                buffer.reserve(limit);
                let _waiting = stream.reading();
                poll_fn(|context| stream.poll_read_up_to(context, buffer, limit)).await
            }
        }
    }

    /// Reads a connection once in place, and passes on to `use_bytes` what has arrived; nothing is the end. Fails for a
    /// file.
    pub(super) async fn read_with(&self, use_bytes: impl FnMut(&[u8])) -> io::Result<()> {
        let use_bytes = RefCell::new(use_bytes);
        match self {
            Source::File(_) => Err(io::ErrorKind::Unsupported.into()),
            Source::Socket(core) => core.read_with(|bytes| use_bytes.borrow_mut()(bytes)).await,
            #[cfg(feature = "tls")]
            Source::Tls(TlsEnd(stream)) => {
                let _waiting = stream.reading();
                poll_fn(|context| {
                    stream.poll_read_with(context, &mut |bytes| use_bytes.borrow_mut()(bytes))
                })
                .await
            }
        }
    }
}

impl<'a> Sink<'a> {
    /// The connection, if the kernel can send to it from another descriptor.
    pub(super) fn outlet(&self) -> Option<Outlet<'a>> {
        match self {
            Sink::Socket(core) => Some(Outlet::Plain(core)),
            #[cfg(feature = "tls")]
            Sink::Tls(end) if end.0.is_in_kernel() => Some(Outlet::Tls(*end)),
            _ => None,
        }
    }

    /// Writes as much as there is room for now, which may be nothing.
    pub(super) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        let result = match self {
            Sink::File(_) => return Ok(0),
            Sink::Socket(core) => core.try_write(bytes),
            #[cfg(feature = "tls")]
            Sink::Tls(TlsEnd(stream)) => stream.try_write(bytes),
        };
        match result {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
            result => result,
        }
    }

    /// Writes `buffer[start..]` once, and returns how much of it.
    pub(super) async fn write(&mut self, buffer: &mut Vec<u8>, start: usize) -> io::Result<usize> {
        let result = match self {
            Sink::File(file) => {
                let whole = std::mem::take(buffer);
                let result;
                (result, *buffer) = file.write_rest(whole, start).await;
                result
            }
            Sink::Socket(core) => {
                let _waiting = core.writing();
                poll_fn(|context| core.poll_write(context, &buffer[start..])).await
            }
            #[cfg(feature = "tls")]
            Sink::Tls(TlsEnd(stream)) => {
                let _waiting = stream.writing();
                poll_fn(|context| stream.poll_write(context, &buffer[start..])).await
            }
        };
        match result {
            Ok(0) => Err(io::ErrorKind::WriteZero.into()),
            result => result,
        }
    }

    /// Waits until the kernel has what was written.
    pub(super) async fn flush(&self) -> io::Result<()> {
        match self {
            Sink::File(_) | Sink::Socket(_) => Ok(()),
            #[cfg(feature = "tls")]
            Sink::Tls(TlsEnd(stream)) => {
                let _waiting = stream.writing();
                poll_fn(|context| stream.poll_flush(context)).await
            }
        }
    }

    /// Passes on the end of the bytes. It is not an error if the connection is gone.
    pub(super) async fn finish(&self) -> io::Result<()> {
        match self {
            Sink::File(_) => Ok(()),
            Sink::Socket(core) => core.finish(),
            #[cfg(feature = "tls")]
            Sink::Tls(TlsEnd(stream)) => {
                let _waiting = stream.writing();
                poll_fn(|context| stream.poll_finish(context)).await
            }
        }
    }
}

impl Outlet<'_> {
    /// Registers a future that waits to write. There is one at a time.
    pub(super) fn writing(&self) -> Waiting<'_> {
        match self {
            Outlet::Plain(core) => core.writing(),
            #[cfg(feature = "tls")]
            Outlet::Tls(TlsEnd(stream)) => stream.writing(),
        }
    }

    /// Sends by a call of the caller's, which moves up to `wanted` bytes without waiting, or returns why it moves none. It
    /// is called again until it fails with `WouldBlock`.
    pub(super) fn poll_send_by<T>(
        &self,
        context: &mut Context<'_>,
        wanted: usize,
        mut call: impl FnMut(BorrowedFd<'_>) -> io::Result<Result<usize, T>>,
    ) -> Poll<io::Result<Result<usize, T>>> {
        debug_assert!(wanted > 0);
        match self {
            Outlet::Plain(core) => core.poll_write_by(context, &mut call),
            #[cfg(feature = "tls")]
            Outlet::Tls(TlsEnd(stream)) => {
                let mut reason = None;
                let sent = ready!(stream.poll_send_by(context, wanted, &mut |socket| {
                    call(socket).map(|sent| {
                        sent.unwrap_or_else(|why| {
                            reason = Some(why);
                            0
                        })
                    })
                }))?;
                Poll::Ready(Ok(reason.map_or(Ok(sent), Err)))
            }
        }
    }
}
