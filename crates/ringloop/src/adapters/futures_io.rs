//! The traits of the crate `futures-io`.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_io::{AsyncRead, AsyncWrite};

use super::Transfer;
use crate::net::{OwnedReadHalf, OwnedWriteHalf, Stream, TcpStream, UnixStream};
#[cfg(feature = "tls")]
use crate::tls::{TlsReadHalf, TlsStream, TlsWriteHalf};

macro_rules! read {
    ($([$($generics:tt)*] $type:ty),*) => {$(
        impl<$($generics)*> AsyncRead for $type {
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

read!([] TcpStream, [] UnixStream, [S: Stream] OwnedReadHalf<S>);
write_by_transfer!([] TcpStream: AsyncWrite, poll_close);
write_by_transfer!([] UnixStream: AsyncWrite, poll_close);
write_by_transfer!([S: Stream] OwnedWriteHalf<S>: AsyncWrite, poll_close);
#[cfg(feature = "tls")]
read!([S: Stream] TlsStream<S>, [S: Stream] TlsReadHalf<S>);
#[cfg(feature = "tls")]
write_by_transfer!([S: Stream] TlsStream<S>: AsyncWrite, poll_close);
#[cfg(feature = "tls")]
write_by_transfer!([S: Stream] TlsWriteHalf<S>: AsyncWrite, poll_close);
