//! The two halves of a TLS connection.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;

use bytes::Buf;

use super::TlsStream;
use crate::net::{ReadBuffer, ReadStream, Stream, TcpStream};
use crate::sealed::Internal;
use crate::source::Closed;

/// The reading half of a TLS connection; created by [`TlsStream::into_split`].
#[derive(Debug)]
pub struct TlsReadHalf<S: Stream = TcpStream> {
    stream: Rc<TlsStream<S>>,
}

/// The writing half of a TLS connection; created by [`TlsStream::into_split`]. Dropping it sends close_notify, if there
/// is room, and shuts down the writing direction. During a panic, no close_notify is sent.
#[derive(Debug)]
pub struct TlsWriteHalf<S: Stream = TcpStream> {
    stream: Rc<TlsStream<S>>,
    /// Whether the other half has the connection to itself now, for reading and writing.
    is_reunited: bool,
}

/// Two halves belong to different connections; from [`TlsReadHalf::reunite`]. Both are returned in it.
#[derive(Debug)]
pub struct TlsReuniteError<S: Stream = TcpStream>(pub TlsReadHalf<S>, pub TlsWriteHalf<S>);

impl<S: Stream> fmt::Display for TlsReuniteError<S> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("the two halves belong to different connections")
    }
}

impl<S: Stream + fmt::Debug> std::error::Error for TlsReuniteError<S> {}

pub(super) fn split<S: Stream>(stream: TlsStream<S>) -> (TlsReadHalf<S>, TlsWriteHalf<S>) {
    let stream = Rc::new(stream);
    let reader = TlsReadHalf {
        stream: Rc::clone(&stream),
    };
    let writer = TlsWriteHalf {
        stream,
        is_reunited: false,
    };
    (reader, writer)
}

impl<S: Stream> TlsReadHalf<S> {
    /// Reads, see [`TlsStream::read`].
    pub async fn read<B: ReadBuffer>(&mut self, mut buffer: B) -> (io::Result<usize>, B) {
        let _waiting = self.stream.reading();
        let result = poll_fn(|context| self.stream.poll_read_into(context, &mut buffer)).await;
        (result, buffer)
    }

    /// Reads in place, see [`TlsStream::read_with`].
    pub async fn read_with<T>(
        &mut self,
        use_bytes: impl FnOnce(&[u8], &TlsStream<S>) -> T,
    ) -> io::Result<T> {
        self.stream.read_in_place(use_bytes).await
    }

    /// Waits until the connection is closed, see [`TlsStream::closed`].
    pub fn closed(&self) -> Closed {
        self.stream.closed()
    }

    /// Waits until the peer has finished sending, see [`TlsStream::read_closed`].
    pub fn read_closed(&self) -> Closed {
        self.stream.read_closed()
    }

    /// The connection that this half belongs to.
    pub fn stream(&self) -> &TlsStream<S> {
        &self.stream
    }

    /// Puts the two halves of a connection together again, see
    /// [`OwnedReadHalf::reunite`](crate::net::OwnedReadHalf::reunite). Nothing is shut down, and no close_notify is sent.
    ///
    /// # Errors
    /// Returns both halves if they belong to different connections.
    pub fn reunite(self, mut writer: TlsWriteHalf<S>) -> Result<TlsStream<S>, TlsReuniteError<S>> {
        if !Rc::ptr_eq(&self.stream, &writer.stream) {
            return Err(TlsReuniteError(self, writer));
        }
        writer.is_reunited = true;
        drop(writer);
        Ok(Rc::into_inner(self.stream).expect("there are two halves, and one is gone"))
    }
}

impl<S: Stream> ReadStream for TlsReadHalf<S> {
    async fn read_into(&mut self, buffer: &mut impl ReadBuffer, _: Internal) -> io::Result<usize> {
        self.read(buffer).await.0
    }
}

impl<S: Stream> TlsWriteHalf<S> {
    /// Writes part of a buffer, see [`TlsStream::write`].
    pub async fn write<B: Buf>(&mut self, mut buffer: B) -> (io::Result<usize>, B) {
        let _waiting = self.stream.writing();
        let result = poll_fn(|context| self.stream.poll_write_from(context, &mut buffer)).await;
        (result, buffer)
    }

    /// Writes all of a buffer, see [`TlsStream::write_all`].
    pub async fn write_all<B: Buf>(&mut self, buffer: B) -> (io::Result<()>, B) {
        self.stream.write_whole(buffer).await
    }

    /// Waits until the kernel has accepted everything that was written, see [`TlsStream::flush`].
    pub async fn flush(&mut self) -> io::Result<()> {
        let _waiting = self.stream.writing();
        poll_fn(|context| self.stream.poll_flush_whole(context)).await
    }

    /// Sends close_notify, see [`TlsStream::shutdown`].
    pub async fn shutdown(&mut self) -> io::Result<()> {
        let _waiting = self.stream.writing();
        poll_fn(|context| self.stream.poll_finish(context)).await
    }

    /// Waits until the connection is closed, see [`TlsStream::closed`].
    pub fn closed(&self) -> Closed {
        self.stream.closed()
    }

    /// Waits until the peer has finished sending, see [`TlsStream::read_closed`].
    pub fn read_closed(&self) -> Closed {
        self.stream.read_closed()
    }

    /// The connection that this half belongs to.
    pub fn stream(&self) -> &TlsStream<S> {
        &self.stream
    }
}

impl<S: Stream> Drop for TlsWriteHalf<S> {
    fn drop(&mut self) {
        if !self.is_reunited {
            self.stream.end_now();
        }
    }
}
