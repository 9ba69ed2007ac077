//! The two ends of pipes, as children and standard input have them.

#![allow(unsafe_code)]

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::task::{Context, Poll, ready};

use bytes::Buf;
use ringloop_driver::Interest;

use crate::buffer::{read_to_end, spare};
use crate::net::ReadBuffer;
use crate::source::{Seat, Source};
use crate::sys::transfer;

/// The minimum by which a buffer grows that is read to the end.
const GROWTH_MIN: usize = 8 * 1024;

/// The reading end of a pipe, or whatever else is read like one.
pub(crate) struct Reader {
    source: Source<OwnedFd>,
}

impl Reader {
    /// Watches a descriptor, which must be non-blocking.
    pub(crate) fn new(descriptor: OwnedFd) -> io::Result<Self> {
        let source = Source::new(descriptor, Interest::READ)?;
        Ok(Self { source })
    }

    /// See [`Source::into_inner`].
    pub(crate) fn into_inner(self) -> io::Result<OwnedFd> {
        self.source.into_inner()
    }

    pub(crate) async fn read<B: ReadBuffer>(&self, mut buffer: B) -> (io::Result<usize>, B) {
        let _waiting = self.source.reading(Seat::alone());
        let result = poll_fn(|context| self.poll_read_into(context, &mut buffer)).await;
        (result, buffer)
    }

    pub(crate) async fn read_to_end(&self, buffer: Vec<u8>) -> (io::Result<usize>, Vec<u8>) {
        read_to_end(buffer, GROWTH_MIN, async |buffer| self.read(buffer).await).await
    }

    pub(crate) fn poll_read_into(
        &self,
        context: &mut Context<'_>,
        buffer: &mut impl ReadBuffer,
    ) -> Poll<io::Result<usize>> {
        if buffer.room() == 0 {
            return Poll::Ready(Ok(0));
        }
        self.source
            .poll_read(context, &Seat::alone(), |descriptor| {
                // SAFETY: the bytes are only written: reading from a descriptor reads nothing from them.
                let room = unsafe { spare(buffer).as_uninit_slice_mut() };
                let count = transfer::read(descriptor.as_fd(), room)?;
                // SAFETY: read(2) has filled that many bytes of the piece.
                unsafe { buffer.advance_mut(count) };
                // A pipe of packets ends a read early, so a short one says nothing.
                Ok((count, false))
            })
    }
}

impl AsFd for Reader {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.source.get().as_fd()
    }
}

impl fmt::Debug for Reader {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.source.fmt(formatter)
    }
}

/// The writing end of a pipe.
pub(crate) struct Writer {
    source: Source<OwnedFd>,
}

impl Writer {
    /// Watches a descriptor, which must be non-blocking.
    pub(crate) fn new(descriptor: OwnedFd) -> io::Result<Self> {
        let source = Source::new(descriptor, Interest::WRITE)?;
        source.assume_writable();
        Ok(Self { source })
    }

    /// See [`Source::into_inner`].
    pub(crate) fn into_inner(self) -> io::Result<OwnedFd> {
        self.source.into_inner()
    }

    pub(crate) async fn write<B: Buf>(&self, mut buffer: B) -> (io::Result<usize>, B) {
        let _waiting = self.source.writing(Seat::alone());
        let result = poll_fn(|context| self.poll_write_from(context, &mut buffer)).await;
        (result, buffer)
    }

    pub(crate) async fn write_all<B: Buf>(&self, mut buffer: B) -> (io::Result<()>, B) {
        let _waiting = self.source.writing(Seat::alone());
        while buffer.has_remaining() {
            match poll_fn(|context| self.poll_write_from(context, &mut buffer)).await {
                Ok(0) => return (Err(io::ErrorKind::WriteZero.into()), buffer),
                Ok(_) => {}
                Err(error) => return (Err(error), buffer),
            }
        }
        (Ok(()), buffer)
    }

    fn poll_write_from(
        &self,
        context: &mut Context<'_>,
        buffer: &mut impl Buf,
    ) -> Poll<io::Result<usize>> {
        let count = ready!(self.poll_write(context, buffer.chunk()))?;
        buffer.advance(count);
        Poll::Ready(Ok(count))
    }

    pub(crate) fn poll_write(
        &self,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.source
            .poll_write(context, &Seat::alone(), |descriptor| {
                // Whether there is more room, the next write tells.
                Ok((transfer::write_to_pipe(descriptor.as_fd(), bytes)?, true))
            })
    }
}

impl AsFd for Writer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.source.get().as_fd()
    }
}

impl fmt::Debug for Writer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.source.fmt(formatter)
    }
}
