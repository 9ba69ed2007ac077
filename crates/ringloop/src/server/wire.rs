//! The types of a server's connections: plain TCP, TLS over it, and TCP or Unix sockets.

use std::fmt;
use std::io;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use socket2::Socket;

use crate::net::stream::{Core, HasCore};
use crate::net::{AnyStream, Stream, TcpStream, UnixStream};
use crate::sealed::Internal;
#[cfg(feature = "tls")]
use crate::tls::{TlsAcceptor, TlsStream};

/// A buffer for unsent bytes that has grown beyond this size is freed when it is empty.
const UNSENT_KEPT_BYTES: usize = 4 * 1024;

/// A connection as handlers have it.
#[derive(Debug)]
pub(super) enum Link<'a> {
    Plain {
        stream: Plain<'a>,
        unsent: &'a mut Unsent,
    },
    #[cfg(feature = "tls")]
    Tls(&'a TlsStream),
}

/// A connection without TLS.
#[derive(Debug, Clone, Copy)]
pub(super) enum Plain<'a> {
    Tcp(&'a TcpStream),
    Unix(&'a UnixStream),
}

impl<'a> From<&'a TcpStream> for Plain<'a> {
    fn from(stream: &'a TcpStream) -> Self {
        Plain::Tcp(stream)
    }
}

impl<'a> From<&'a AnyStream> for Plain<'a> {
    fn from(stream: &'a AnyStream) -> Self {
        match stream {
            AnyStream::Tcp(stream) => Plain::Tcp(stream),
            AnyStream::Unix(stream) => Plain::Unix(stream),
        }
    }
}

impl Plain<'_> {
    fn core(&self) -> &Core {
        match self {
            Plain::Tcp(stream) => stream.core(),
            Plain::Unix(stream) => stream.core(),
        }
    }
}

/// How a server uses a connection of any type. Only the crate can call the methods.
pub trait Wire: Sized + 'static {
    /// The settings that all connections of a server share.
    #[doc(hidden)]
    type Settings: Clone + fmt::Debug + Send + 'static;
    /// Bytes that the socket had no room for, if the connection does not store them itself.
    #[doc(hidden)]
    type Unsent;
    /// The connection below it; the same if there is none.
    #[doc(hidden)]
    type Below: Stream;

    /// The connection of a socket that was accepted.
    fn below(socket: Socket, is_unix: bool, _: Internal) -> io::Result<Self::Below>;
    fn new(below: Self::Below, settings: &Self::Settings, _: Internal) -> io::Result<Self>;
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
    fn socket(&self, _: Internal) -> &Self::Below;
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
    pub(super) fn write(&mut self, stream: Plain<'_>, bytes: &[u8]) -> io::Result<()> {
        let mut sent = 0;
        if self.bytes.is_empty() {
            match stream.core().try_write(bytes) {
                Ok(count) => sent = count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        self.bytes.extend_from_slice(&bytes[sent..]);
        Ok(())
    }

    /// Sends what is stored.
    fn poll_send(&mut self, context: &mut Context<'_>, core: &Core) -> Poll<io::Result<()>> {
        while self.sent < self.bytes.len() {
            let mut rest = &self.bytes[self.sent..];
            self.sent += ready!(core.poll_write_from(context, &mut rest))?;
        }
        if self.sent > 0 {
            self.sent = 0;
            self.bytes.clear();
            self.bytes.shrink_to(UNSENT_KEPT_BYTES);
        }
        Poll::Ready(Ok(()))
    }
}

macro_rules! plain {
    ($stream:ty, $below:ident) => {
        impl Wire for $stream {
            type Settings = ();
            type Unsent = Unsent;
            type Below = Self;

            fn below(socket: Socket, is_unix: bool, _: Internal) -> io::Result<Self> {
                $below(socket, is_unix)
            }

            fn new(below: Self, (): &(), _: Internal) -> io::Result<Self> {
                Ok(below)
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
                self.core().poll_read_with(context, use_bytes)
            }

            fn poll_send(
                &self,
                context: &mut Context<'_>,
                unsent: &mut Unsent,
                _: Internal,
            ) -> Poll<io::Result<()>> {
                unsent.poll_send(context, self.core())
            }

            fn poll_finish(&self, _: &mut Context<'_>, _: Internal) -> Poll<io::Result<()>> {
                Poll::Ready(Ok(()))
            }

            fn socket(&self, _: Internal) -> &Self {
                self
            }

            #[expect(private_interfaces, reason = "only the crate can call it")]
            fn link<'a>(&'a self, unsent: &'a mut Unsent, _: Internal) -> Link<'a> {
                Link::Plain {
                    stream: self.into(),
                    unsent,
                }
            }
        }
    };
}

plain!(TcpStream, tcp);
plain!(AnyStream, any);

fn tcp(socket: Socket, _: bool) -> io::Result<TcpStream> {
    TcpStream::from_socket(socket)
}

fn any(socket: Socket, is_unix: bool) -> io::Result<AnyStream> {
    if is_unix {
        UnixStream::from_socket(socket).map(AnyStream::Unix)
    } else {
        TcpStream::from_socket(socket).map(AnyStream::Tcp)
    }
}

#[cfg(feature = "tls")]
impl Wire for TlsStream {
    type Settings = TlsAcceptor;
    type Unsent = ();
    type Below = TcpStream;

    fn below(socket: Socket, _: bool, _: Internal) -> io::Result<TcpStream> {
        TcpStream::from_socket(socket)
    }

    fn new(below: TcpStream, acceptor: &TlsAcceptor, _: Internal) -> io::Result<Self> {
        acceptor.begin(below)
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
