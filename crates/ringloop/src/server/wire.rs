//! The types of a server's connections: plain TCP, and TLS over it.

use std::fmt;
use std::io;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use crate::net::TcpStream;
use crate::sealed::Internal;
#[cfg(feature = "tls")]
use crate::tls::{TlsAcceptor, TlsStream};

/// A buffer for unsent bytes that has grown beyond this size is freed when it is empty.
const UNSENT_KEPT_BYTES: usize = 4 * 1024;

/// A connection as handlers have it.
#[derive(Debug)]
pub(super) enum Link<'a> {
    Plain {
        stream: &'a TcpStream,
        unsent: &'a mut Unsent,
    },
    #[cfg(feature = "tls")]
    Tls(&'a TlsStream),
}

/// How a server uses a connection of any type. Only the crate can call the methods.
pub trait Wire: Sized + 'static {
    /// The settings that all connections of a server share.
    #[doc(hidden)]
    type Settings: Clone + fmt::Debug + Send + 'static;
    /// Bytes that the socket had no room for, if the connection does not store them itself.
    #[doc(hidden)]
    type Unsent;

    fn new(stream: TcpStream, settings: &Self::Settings, _: Internal) -> io::Result<Self>;
    fn nothing_unsent(_: Internal) -> Self::Unsent;
    fn handshake_limit(settings: &Self::Settings, _: Internal) -> Option<Duration>;
    fn poll_handshake(&self, context: &mut Context<'_>, _: Internal) -> Poll<io::Result<()>>;
    fn poll_read_with<T>(
        &self,
        context: &mut Context<'_>,
        use_bytes: impl FnOnce(&[u8]) -> T,
        _: Internal,
    ) -> Poll<io::Result<T>>;
    fn poll_send(
        &self,
        context: &mut Context<'_>,
        unsent: &mut Self::Unsent,
        _: Internal,
    ) -> Poll<io::Result<()>>;
    /// Tells the peer that nothing will follow, if the protocol can.
    fn poll_finish(&self, context: &mut Context<'_>, _: Internal) -> Poll<io::Result<()>>;
    fn socket(&self, _: Internal) -> &TcpStream;
    #[expect(private_interfaces, reason = "only the crate can call it")]
    fn link<'a>(&'a self, unsent: &'a mut Self::Unsent, _: Internal) -> Link<'a>;
}

/// Bytes that the socket had no room for.
#[derive(Debug, Default)]
pub struct Unsent {
    bytes: Vec<u8>,
    sent: usize,
}

impl Unsent {
    /// Writes bytes, and stores those that there is no room for.
    pub(super) fn write(&mut self, stream: &TcpStream, bytes: &[u8]) -> io::Result<()> {
        let mut sent = 0;
        if self.bytes.is_empty() {
            match stream.try_write(bytes) {
                Ok(count) => sent = count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        self.bytes.extend_from_slice(&bytes[sent..]);
        Ok(())
    }
}

impl Wire for TcpStream {
    type Settings = ();
    type Unsent = Unsent;

    fn new(stream: TcpStream, (): &(), _: Internal) -> io::Result<Self> {
        Ok(stream)
    }

    fn nothing_unsent(_: Internal) -> Unsent {
        Unsent::default()
    }

    fn handshake_limit((): &(), _: Internal) -> Option<Duration> {
        None
    }

    fn poll_handshake(&self, _: &mut Context<'_>, _: Internal) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_read_with<T>(
        &self,
        context: &mut Context<'_>,
        use_bytes: impl FnOnce(&[u8]) -> T,
        _: Internal,
    ) -> Poll<io::Result<T>> {
        TcpStream::poll_read_with(self, context, |bytes, _| use_bytes(bytes))
    }

    fn poll_send(
        &self,
        context: &mut Context<'_>,
        unsent: &mut Unsent,
        _: Internal,
    ) -> Poll<io::Result<()>> {
        while unsent.sent < unsent.bytes.len() {
            let mut rest = &unsent.bytes[unsent.sent..];
            unsent.sent += ready!(self.poll_write_from(context, &mut rest))?;
        }
        if unsent.sent > 0 {
            unsent.sent = 0;
            unsent.bytes.clear();
            unsent.bytes.shrink_to(UNSENT_KEPT_BYTES);
        }
        Poll::Ready(Ok(()))
    }

    fn poll_finish(&self, _: &mut Context<'_>, _: Internal) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn socket(&self, _: Internal) -> &TcpStream {
        self
    }

    #[expect(private_interfaces, reason = "only the crate can call it")]
    fn link<'a>(&'a self, unsent: &'a mut Unsent, _: Internal) -> Link<'a> {
        Link::Plain {
            stream: self,
            unsent,
        }
    }
}

#[cfg(feature = "tls")]
impl Wire for TlsStream {
    type Settings = TlsAcceptor;
    type Unsent = ();

    fn new(stream: TcpStream, acceptor: &TlsAcceptor, _: Internal) -> io::Result<Self> {
        acceptor.begin(stream)
    }

    fn nothing_unsent(_: Internal) {}

    fn handshake_limit(acceptor: &TlsAcceptor, _: Internal) -> Option<Duration> {
        Some(acceptor.handshake_limit())
    }

    fn poll_handshake(&self, context: &mut Context<'_>, _: Internal) -> Poll<io::Result<()>> {
        TlsStream::poll_handshake(self, context)
    }

    fn poll_read_with<T>(
        &self,
        context: &mut Context<'_>,
        use_bytes: impl FnOnce(&[u8]) -> T,
        _: Internal,
    ) -> Poll<io::Result<T>> {
        TlsStream::poll_read_with(self, context, |bytes, _| use_bytes(bytes))
    }

    fn poll_send(
        &self,
        context: &mut Context<'_>,
        (): &mut (),
        _: Internal,
    ) -> Poll<io::Result<()>> {
        self.poll_flush(context)
    }

    fn poll_finish(&self, context: &mut Context<'_>, _: Internal) -> Poll<io::Result<()>> {
        TlsStream::poll_finish(self, context)
    }

    fn socket(&self, _: Internal) -> &TcpStream {
        self.stream()
    }

    #[expect(private_interfaces, reason = "only the crate can call it")]
    fn link<'a>(&'a self, (): &'a mut (), _: Internal) -> Link<'a> {
        Link::Tls(self)
    }
}
