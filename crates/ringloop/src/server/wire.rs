//! The types of a server's connections: plain TCP, and TLS over it.

use std::fmt;
use std::io;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use crate::net::TcpStream;
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

/// How a server uses a connection of any type.
pub trait Wire: Sized + 'static {
    /// The settings that all connections of a server share.
    type Settings: Clone + fmt::Debug + Send + 'static;
    /// Bytes that the socket had no room for, if the connection does not store them itself.
    type Unsent: Default;

    fn new(stream: TcpStream, settings: &Self::Settings) -> io::Result<Self>;
    fn handshake_limit(settings: &Self::Settings) -> Option<Duration>;
    fn poll_handshake(&self, context: &mut Context<'_>) -> Poll<io::Result<()>>;
    fn poll_read_with<T>(
        &self,
        context: &mut Context<'_>,
        use_bytes: impl FnOnce(&[u8]) -> T,
    ) -> Poll<io::Result<T>>;
    fn poll_send(
        &self,
        context: &mut Context<'_>,
        unsent: &mut Self::Unsent,
    ) -> Poll<io::Result<()>>;
    /// Tells the peer that nothing will follow, if the protocol can.
    fn poll_finish(&self, context: &mut Context<'_>) -> Poll<io::Result<()>>;
    fn socket(&self) -> &TcpStream;
    #[expect(private_interfaces, reason = "nobody outside can name the trait")]
    fn link<'a>(&'a self, unsent: &'a mut Self::Unsent) -> Link<'a>;
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

    fn new(stream: TcpStream, (): &()) -> io::Result<Self> {
        Ok(stream)
    }

    fn handshake_limit((): &()) -> Option<Duration> {
        None
    }

    fn poll_handshake(&self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_read_with<T>(
        &self,
        context: &mut Context<'_>,
        use_bytes: impl FnOnce(&[u8]) -> T,
    ) -> Poll<io::Result<T>> {
        TcpStream::poll_read_with(self, context, |bytes, _| use_bytes(bytes))
    }

    fn poll_send(&self, context: &mut Context<'_>, unsent: &mut Unsent) -> Poll<io::Result<()>> {
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

    fn poll_finish(&self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn socket(&self) -> &TcpStream {
        self
    }

    #[expect(private_interfaces, reason = "nobody outside can name the trait")]
    fn link<'a>(&'a self, unsent: &'a mut Unsent) -> Link<'a> {
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

    fn new(stream: TcpStream, acceptor: &TlsAcceptor) -> io::Result<Self> {
        acceptor.begin(stream)
    }

    fn handshake_limit(acceptor: &TlsAcceptor) -> Option<Duration> {
        Some(acceptor.handshake_limit())
    }

    fn poll_handshake(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        TlsStream::poll_handshake(self, context)
    }

    fn poll_read_with<T>(
        &self,
        context: &mut Context<'_>,
        use_bytes: impl FnOnce(&[u8]) -> T,
    ) -> Poll<io::Result<T>> {
        TlsStream::poll_read_with(self, context, |bytes, _| use_bytes(bytes))
    }

    fn poll_send(&self, context: &mut Context<'_>, (): &mut ()) -> Poll<io::Result<()>> {
        self.poll_flush(context)
    }

    fn poll_finish(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        TlsStream::poll_finish(self, context)
    }

    fn socket(&self) -> &TcpStream {
        self.stream()
    }

    #[expect(private_interfaces, reason = "nobody outside can name the trait")]
    fn link<'a>(&'a self, (): &'a mut ()) -> Link<'a> {
        Link::Tls(self)
    }
}
