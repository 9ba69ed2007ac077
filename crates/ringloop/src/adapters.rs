//! The traits of other libraries for the connections of this one, behind the features `futures-io`, `tokio` and `hyper`.

#![cfg_attr(any(feature = "hyper", feature = "tokio"), allow(unsafe_code))]

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::net::ReadBuffer;

#[cfg(any(feature = "futures-io", feature = "tls", feature = "tokio"))]
use crate::net::Stream;
use crate::net::stream::HasCore;
#[cfg(any(feature = "futures-io", feature = "tokio"))]
use crate::net::{OwnedReadHalf, OwnedWriteHalf};
use crate::net::{TcpStream, UnixStream};
#[cfg(feature = "tls")]
use crate::tls::TlsStream;
#[cfg(all(feature = "tls", any(feature = "futures-io", feature = "tokio")))]
use crate::tls::{TlsReadHalf, TlsWriteHalf};

/// What the adapters call, whatever the connection is.
trait Transfer {
    fn poll_read_into(
        &self,
        context: &mut Context<'_>,
        buffer: &mut impl ReadBuffer,
    ) -> Poll<io::Result<usize>>;

    fn poll_write(&self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>>;

    fn poll_write_pieces(
        &self,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>>;

    fn poll_flush(&self, context: &mut Context<'_>) -> Poll<io::Result<()>>;

    fn poll_finish(&self, context: &mut Context<'_>) -> Poll<io::Result<()>>;
}

impl<T: HasCore> Transfer for T {
    fn poll_read_into(
        &self,
        context: &mut Context<'_>,
        buffer: &mut impl ReadBuffer,
    ) -> Poll<io::Result<usize>> {
        self.core().poll_read_into(context, buffer)
    }

    fn poll_write(&self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.core().poll_write(context, bytes)
    }

    fn poll_write_pieces(
        &self,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.core().poll_write_pieces(context, pieces)
    }

    fn poll_flush(&self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_finish(&self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.core().finish())
    }
}

#[cfg(feature = "tls")]
macro_rules! transfer_by_tls {
    ($type:ident, $this:ident => $stream:expr) => {
        impl<S: Stream> Transfer for $type<S> {
            fn poll_read_into(
                &self,
                context: &mut Context<'_>,
                buffer: &mut impl ReadBuffer,
            ) -> Poll<io::Result<usize>> {
                let $this = self;
                TlsStream::poll_read_into($stream, context, buffer)
            }

            fn poll_write(
                &self,
                context: &mut Context<'_>,
                bytes: &[u8],
            ) -> Poll<io::Result<usize>> {
                let $this = self;
                TlsStream::poll_write($stream, context, bytes)
            }

            fn poll_write_pieces(
                &self,
                context: &mut Context<'_>,
                pieces: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                let $this = self;
                TlsStream::poll_write_pieces($stream, context, pieces)
            }

            fn poll_flush(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
                let $this = self;
                TlsStream::poll_flush($stream, context)
            }

            fn poll_finish(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
                let $this = self;
                TlsStream::poll_finish($stream, context)
            }
        }
    };
}

#[cfg(feature = "tls")]
transfer_by_tls!(TlsStream, this => this);
#[cfg(all(feature = "tls", any(feature = "futures-io", feature = "tokio")))]
transfer_by_tls!(TlsReadHalf, this => this.stream());
#[cfg(all(feature = "tls", any(feature = "futures-io", feature = "tokio")))]
transfer_by_tls!(TlsWriteHalf, this => this.stream());

#[cfg(feature = "futures-io")]
macro_rules! futures_io_read {
    ($([$($generics:tt)*] $type:ty),*) => {$(
        impl<$($generics)*> futures_io::AsyncRead for $type {
            fn poll_read(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                mut buffer: &mut [u8],
            ) -> Poll<io::Result<usize>> {
                Transfer::poll_read_into(&*self, context, &mut buffer)
            }
        }
    )*};
}

#[cfg(feature = "futures-io")]
macro_rules! futures_io_write {
    ($([$($generics:tt)*] $type:ty),*) => {$(
        impl<$($generics)*> futures_io::AsyncWrite for $type {
            fn poll_write(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                bytes: &[u8],
            ) -> Poll<io::Result<usize>> {
                Transfer::poll_write(&*self, context, bytes)
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                pieces: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                Transfer::poll_write_pieces(&*self, context, pieces)
            }

            fn poll_flush(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
            ) -> Poll<io::Result<()>> {
                Transfer::poll_flush(&*self, context)
            }

            fn poll_close(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
            ) -> Poll<io::Result<()>> {
                Transfer::poll_finish(&*self, context)
            }
        }
    )*};
}

#[cfg(feature = "tokio")]
macro_rules! tokio_read {
    ($([$($generics:tt)*] $type:ty),*) => {$(
        impl<$($generics)*> tokio::io::AsyncRead for $type {
            fn poll_read(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                buffer: &mut tokio::io::ReadBuf<'_>,
            ) -> Poll<io::Result<()>> {
                // SAFETY: what has been initialised stays so: the bytes are only read into.
                let mut room = unsafe { buffer.unfilled_mut() };
                let count = std::task::ready!(Transfer::poll_read_into(&*self, context, &mut room))?;
                // SAFETY: the read has filled that many bytes.
                unsafe { buffer.assume_init(count) };
                buffer.advance(count);
                Poll::Ready(Ok(()))
            }
        }
    )*};
}

/// The writing traits of tokio and of hyper have the same methods.
#[cfg(any(feature = "hyper", feature = "tokio"))]
macro_rules! write_as {
    ($write:path: $([$($generics:tt)*] $type:ty),*) => {$(
        impl<$($generics)*> $write for $type {
            fn poll_write(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                bytes: &[u8],
            ) -> Poll<io::Result<usize>> {
                Transfer::poll_write(&*self, context, bytes)
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                pieces: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                Transfer::poll_write_pieces(&*self, context, pieces)
            }

            fn is_write_vectored(&self) -> bool {
                true
            }

            fn poll_flush(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
            ) -> Poll<io::Result<()>> {
                Transfer::poll_flush(&*self, context)
            }

            fn poll_shutdown(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
            ) -> Poll<io::Result<()>> {
                Transfer::poll_finish(&*self, context)
            }
        }
    )*};
}

#[cfg(feature = "hyper")]
macro_rules! hyper_read {
    ($([$($generics:tt)*] $type:ty),*) => {$(
        impl<$($generics)*> hyper::rt::Read for $type {
            fn poll_read(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                mut buffer: hyper::rt::ReadBufCursor<'_>,
            ) -> Poll<io::Result<()>> {
                // SAFETY: what has been initialised stays so: the bytes are only read into.
                let mut room = unsafe { buffer.as_mut() };
                let count = std::task::ready!(Transfer::poll_read_into(&*self, context, &mut room))?;
                // SAFETY: the read has filled that many bytes.
                unsafe { buffer.advance(count) };
                Poll::Ready(Ok(()))
            }
        }
    )*};
}

#[cfg(feature = "futures-io")]
futures_io_read!([] TcpStream, [] UnixStream, [S: Stream] OwnedReadHalf<S>);
#[cfg(feature = "futures-io")]
futures_io_write!([] TcpStream, [] UnixStream, [S: Stream] OwnedWriteHalf<S>);
#[cfg(all(feature = "futures-io", feature = "tls"))]
futures_io_read!([S: Stream] TlsStream<S>, [S: Stream] TlsReadHalf<S>);
#[cfg(all(feature = "futures-io", feature = "tls"))]
futures_io_write!([S: Stream] TlsStream<S>, [S: Stream] TlsWriteHalf<S>);
#[cfg(feature = "tokio")]
tokio_read!([] TcpStream, [] UnixStream, [S: Stream] OwnedReadHalf<S>);
#[cfg(feature = "tokio")]
write_as!(tokio::io::AsyncWrite: [] TcpStream, [] UnixStream, [S: Stream] OwnedWriteHalf<S>);
#[cfg(all(feature = "tokio", feature = "tls"))]
tokio_read!([S: Stream] TlsStream<S>, [S: Stream] TlsReadHalf<S>);
#[cfg(all(feature = "tokio", feature = "tls"))]
write_as!(tokio::io::AsyncWrite: [S: Stream] TlsStream<S>, [S: Stream] TlsWriteHalf<S>);
#[cfg(feature = "hyper")]
hyper_read!([] TcpStream, [] UnixStream);
#[cfg(feature = "hyper")]
write_as!(hyper::rt::Write: [] TcpStream, [] UnixStream);
#[cfg(all(feature = "hyper", feature = "tls"))]
hyper_read!([S: Stream] TlsStream<S>);
#[cfg(all(feature = "hyper", feature = "tls"))]
write_as!(hyper::rt::Write: [S: Stream] TlsStream<S>);
