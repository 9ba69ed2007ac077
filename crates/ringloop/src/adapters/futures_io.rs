//! The traits of the crate `futures-io`.

use std::io::{self, IoSlice, SeekFrom};
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_io::{AsyncRead, AsyncSeek, AsyncWrite};

use super::Transfer;
use crate::fs::FileStream;
use crate::net::{AnyStream, OwnedReadHalf, OwnedWriteHalf, Stream, TcpStream, UnixStream};
use crate::process::{ChildStderr, ChildStdin, ChildStdout};
#[cfg(feature = "tls")]
use crate::tls::{TlsReadHalf, TlsStream, TlsWriteHalf};

macro_rules! read {
    ($read:path: $([$($generics:tt)*] $type:ty),*) => {$(
        impl<$($generics)*> AsyncRead for $type {
            fn poll_read(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                mut buffer: &mut [u8],
            ) -> Poll<io::Result<usize>> {
                $read(&*self, context, &mut buffer)
            }
        }
    )*};
}

read!(Transfer::poll_read_into: [] AnyStream, [] TcpStream, [] UnixStream, [S: Stream] OwnedReadHalf<S>);
write_by_transfer!([] AnyStream: AsyncWrite, poll_close);
write_by_transfer!([] TcpStream: AsyncWrite, poll_close);
write_by_transfer!([] UnixStream: AsyncWrite, poll_close);
write_by_transfer!([S: Stream] OwnedWriteHalf<S>: AsyncWrite, poll_close);
#[cfg(feature = "tls")]
read!(Transfer::poll_read_into: [S: Stream] TlsStream<S>, [S: Stream] TlsReadHalf<S>);
#[cfg(feature = "tls")]
write_by_transfer!([S: Stream] TlsStream<S>: AsyncWrite, poll_close);
#[cfg(feature = "tls")]
write_by_transfer!([S: Stream] TlsWriteHalf<S>: AsyncWrite, poll_close);
read!(ChildStdout::poll_read_into: [] ChildStdout);
read!(ChildStderr::poll_read_into: [] ChildStderr);

write_to_pipe!(ChildStdin: AsyncWrite, poll_close);

impl AsyncRead for FileStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        mut buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().poll_read_into(context, &mut buffer)
    }
}

write_to_file!(FileStream: AsyncWrite, poll_close);

impl AsyncSeek for FileStream {
    fn poll_seek(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        to: SeekFrom,
    ) -> Poll<io::Result<u64>> {
        self.get_mut().poll_seek_to(context, to)
    }
}
