//! The I/O traits of other libraries, implemented for this crate's connections and files. Behind the features `futures-io`,
//! `tokio` and `hyper`.

use std::io::{self, IoSlice};
use std::task::{Context, Poll};

use crate::net::ReadBuffer;
#[cfg(feature = "tls")]
use crate::net::Stream;
use crate::net::stream::HasCore;
#[cfg(feature = "tls")]
use crate::tls::TlsStream;
#[cfg(all(feature = "tls", any(feature = "futures-io", feature = "tokio")))]
use crate::tls::{TlsReadHalf, TlsWriteHalf};

/// The calls that all adapters make, whichever type the connection has.
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
    ($($type:ident: $tls_stream:expr;)*) => {$(
        impl<S: Stream> Transfer for $type<S> {
            fn poll_read_into(
                &self,
                context: &mut Context<'_>,
                buffer: &mut impl ReadBuffer,
            ) -> Poll<io::Result<usize>> {
                TlsStream::poll_read_into($tls_stream(self), context, buffer)
            }

            fn poll_write(
                &self,
                context: &mut Context<'_>,
                bytes: &[u8],
            ) -> Poll<io::Result<usize>> {
                TlsStream::poll_write($tls_stream(self), context, bytes)
            }

            fn poll_write_pieces(
                &self,
                context: &mut Context<'_>,
                pieces: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                TlsStream::poll_write_pieces($tls_stream(self), context, pieces)
            }

            fn poll_flush(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
                TlsStream::poll_flush($tls_stream(self), context)
            }

            fn poll_finish(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
                TlsStream::poll_finish($tls_stream(self), context)
            }
        }
    )*};
}

#[cfg(feature = "tls")]
transfer_by_tls! {
    TlsStream: std::convert::identity;
}

#[cfg(all(feature = "tls", any(feature = "futures-io", feature = "tokio")))]
transfer_by_tls! {
    TlsReadHalf: TlsReadHalf::stream;
    TlsWriteHalf: TlsWriteHalf::stream;
}

/// Implements a writing trait. The traits use different names for closing; those of tokio and hyper also ask whether
/// vectored writes are efficient.
macro_rules! write_by_transfer {
    ([$($generics:tt)*] $type:ty: $trait:path, $close:ident $(, $is_write_vectored:ident)?) => {
        impl<$($generics)*> $trait for $type {
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

            $(fn $is_write_vectored(&self) -> bool {
                true
            })?

            fn poll_flush(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
            ) -> Poll<io::Result<()>> {
                Transfer::poll_flush(&*self, context)
            }

            fn $close(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
            ) -> Poll<io::Result<()>> {
                Transfer::poll_finish(&*self, context)
            }
        }
    };
}

/// Implements a writing trait for the pipe to a child.
#[cfg(any(feature = "futures-io", feature = "tokio"))]
macro_rules! write_to_pipe {
    ($type:ident: $trait:path, $close:ident) => {
        impl $trait for $type {
            fn poll_write(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                bytes: &[u8],
            ) -> Poll<io::Result<usize>> {
                $type::poll_write(&self, context, bytes)
            }

            fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
                Poll::Ready(Ok(()))
            }

            /// Does nothing: a pipe ends when its end is dropped.
            fn $close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
                Poll::Ready(Ok(()))
            }
        }
    };
}

/// Implements a writing trait for a file.
#[cfg(any(feature = "futures-io", feature = "tokio"))]
macro_rules! write_to_file {
    ($type:ident: $trait:path, $close:ident $(, $is_write_vectored:ident)?) => {
        impl $trait for $type {
            fn poll_write(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                bytes: &[u8],
            ) -> Poll<io::Result<usize>> {
                self.get_mut()
                    .poll_write_pieces(context, &[IoSlice::new(bytes)])
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                pieces: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                self.get_mut().poll_write_pieces(context, pieces)
            }

            $(fn $is_write_vectored(&self) -> bool {
                true
            })?

            fn poll_flush(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
            ) -> Poll<io::Result<()>> {
                $type::poll_flush(self.get_mut(), context)
            }

            /// Writes what is left. The file is closed when it is dropped.
            fn $close(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
                $type::poll_flush(self.get_mut(), context)
            }
        }
    };
}

// Declared below the macros, so that they can use them.
#[cfg(feature = "futures-io")]
mod futures_io;
#[cfg(feature = "hyper")]
mod hyper;
#[cfg(feature = "tokio")]
mod tokio;
