//! The traits of tokio. No runtime of tokio's is needed.

#![allow(unsafe_code)]

use std::io::{self, IoSlice, SeekFrom};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncSeek, AsyncWrite, ReadBuf};

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
                buffer: &mut ReadBuf<'_>,
            ) -> Poll<io::Result<()>> {
                // SAFETY: initialised bytes stay initialised, because received bytes are all that is written there.
                let mut room = unsafe { buffer.unfilled_mut() };
                let count = ready!($read(&*self, context, &mut room))?;
                // SAFETY: the read has filled that many bytes.
                unsafe { buffer.assume_init(count) };
                buffer.advance(count);
                Poll::Ready(Ok(()))
            }
        }
    )*};
}

read!(Transfer::poll_read_into: [] AnyStream, [] TcpStream, [] UnixStream, [S: Stream] OwnedReadHalf<S>);
write_by_transfer!([] AnyStream: AsyncWrite, poll_shutdown, is_write_vectored);
write_by_transfer!([] TcpStream: AsyncWrite, poll_shutdown, is_write_vectored);
write_by_transfer!([] UnixStream: AsyncWrite, poll_shutdown, is_write_vectored);
write_by_transfer!([S: Stream] OwnedWriteHalf<S>: AsyncWrite, poll_shutdown, is_write_vectored);
#[cfg(feature = "tls")]
read!(Transfer::poll_read_into: [S: Stream] TlsStream<S>, [S: Stream] TlsReadHalf<S>);
#[cfg(feature = "tls")]
write_by_transfer!([S: Stream] TlsStream<S>: AsyncWrite, poll_shutdown, is_write_vectored);
#[cfg(feature = "tls")]
write_by_transfer!([S: Stream] TlsWriteHalf<S>: AsyncWrite, poll_shutdown, is_write_vectored);
read!(ChildStdout::poll_read_into: [] ChildStdout);
read!(ChildStderr::poll_read_into: [] ChildStderr);

write_to_pipe!(ChildStdin: AsyncWrite, poll_shutdown);

impl AsyncRead for FileStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut room = buffer.initialize_unfilled();
        let count = ready!(self.get_mut().poll_read_into(context, &mut room))?;
        buffer.advance(count);
        Poll::Ready(Ok(()))
    }
}

write_to_file!(FileStream: AsyncWrite, poll_shutdown, is_write_vectored);

impl AsyncSeek for FileStream {
    fn start_seek(self: Pin<&mut Self>, to: SeekFrom) -> io::Result<()> {
        FileStream::start_seek(self.get_mut(), to);
        Ok(())
    }

    fn poll_complete(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<u64>> {
        self.get_mut().poll_sought(context)
    }
}
