//! The traits of hyper.

#![allow(unsafe_code)]

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use hyper::rt::{Read, ReadBufCursor, Write};

use super::Transfer;
#[cfg(feature = "tls")]
use crate::net::Stream;
use crate::net::{AnyStream, TcpStream, UnixStream};
#[cfg(feature = "tls")]
use crate::tls::TlsStream;

macro_rules! read {
    ($([$($generics:tt)*] $type:ty),*) => {$(
        impl<$($generics)*> Read for $type {
            fn poll_read(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                mut buffer: ReadBufCursor<'_>,
            ) -> Poll<io::Result<()>> {
                // SAFETY: initialised bytes stay initialised, because received bytes are all that is written there.
                let mut room = unsafe { buffer.as_mut() };
                let count = ready!(Transfer::poll_read_into(&*self, context, &mut room))?;
                // SAFETY: the read has filled that many bytes.
                unsafe { buffer.advance(count) };
                Poll::Ready(Ok(()))
            }
        }
    )*};
}

read!([] AnyStream, [] TcpStream, [] UnixStream);
write_by_transfer!([] AnyStream: Write, poll_shutdown, is_write_vectored);
write_by_transfer!([] TcpStream: Write, poll_shutdown, is_write_vectored);
write_by_transfer!([] UnixStream: Write, poll_shutdown, is_write_vectored);
#[cfg(feature = "tls")]
read!([S: Stream] TlsStream<S>);
#[cfg(feature = "tls")]
write_by_transfer!([S: Stream] TlsStream<S>: Write, poll_shutdown, is_write_vectored);
