//! Handlers, and the connections that are passed to them.

use std::fmt;
use std::io;
use std::net::SocketAddr;

use super::mailbox::{ConnectionHandle, Inbox};
use super::wire::{Link, Plain};
use crate::net::{Closed, TcpStream, UnixStream};
#[cfg(feature = "tls")]
use crate::tls::TlsStream;

/// The behaviour of a server's connections. Each connection has its own handler, which stays in one thread.
///
/// If a method returns an error or panics, its connection is closed. Other connections are not affected.
///
/// ```
/// use ringloop::server::{Connection, Handler, Server};
/// use std::io::{self, Read, Write};
///
/// /// Answers each line with its number.
/// #[derive(Default)]
/// struct Numbers {
///     lines: usize,
/// }
///
/// impl Handler for Numbers {
///     fn connected(&mut self, connection: &mut Connection<'_>) -> io::Result<()> {
///         connection.write(b"welcome\n")
///     }
///
///     fn data(&mut self, connection: &mut Connection<'_>, bytes: &[u8]) -> io::Result<()> {
///         for _ in bytes.iter().filter(|byte| **byte == b'\n') {
///             self.lines += 1;
///             connection.write(format!("{}\n", self.lines).as_bytes())?;
///         }
///         if self.lines >= 2 {
///             connection.close();
///         }
///         Ok(())
///     }
/// }
///
/// let server = Server::new("127.0.0.1:0").start(Numbers::default)?;
/// let mut client = std::net::TcpStream::connect(server.local_addr())?;
/// client.write_all(b"one\ntwo\n")?;
/// let mut answer = String::new();
/// client.read_to_string(&mut answer)?;
/// assert_eq!(answer, "welcome\n1\n2\n");
/// # Ok::<(), std::io::Error>(())
/// ```
pub trait Handler: 'static {
    /// Called when the connection has been accepted; over TLS, after its handshake.
    fn connected(&mut self, connection: &mut Connection<'_>) -> io::Result<()> {
        let _ = connection;
        Ok(())
    }

    /// Called when data has arrived. The bytes are in a buffer that all connections of the thread share, so copy what
    /// you keep.
    fn data(&mut self, connection: &mut Connection<'_>, bytes: &[u8]) -> io::Result<()>;

    /// Called when no byte has moved in either direction for the server's idle timeout. By default, closes the
    /// connection. If it stays open, the time starts anew. When it is closed, what the peer has not read yet is
    /// discarded.
    fn timeout(&mut self, connection: &mut Connection<'_>) -> io::Result<()> {
        connection.close();
        Ok(())
    }

    /// Called when the server drains, and all data that has arrived was handled. By default, closes the connection once
    /// everything written is sent. A handler with work in progress can tell its peer, or close the connection when it
    /// is done. Connections that are left at the server's deadline are cut off.
    fn draining(&mut self, connection: &mut Connection<'_>) -> io::Result<()> {
        connection.close();
        Ok(())
    }

    /// Called when the connection, or a method of this handler, has failed. `closed` follows.
    fn error(&mut self, error: &io::Error) {
        let _ = error;
    }

    /// Called when the connection has ended.
    fn closed(&mut self) {}
}

/// A connection, as its [`Handler`] uses it.
pub struct Connection<'a> {
    pub(super) link: Link<'a>,
    pub(super) is_closing: &'a mut bool,
    pub(super) inbox: &'a mut Option<Inbox>,
    pub(super) peer: SocketAddr,
}

impl Connection<'_> {
    /// Writes bytes. As much as there is room for is sent at once. The rest is queued, and nothing is read until it is
    /// sent.
    ///
    /// # Errors
    /// Returns the errors of send(2).
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.link {
            Link::Plain { stream, unsent } => unsent.write(*stream, bytes),
            #[cfg(feature = "tls")]
            Link::Tls(stream) => stream.write_or_queue(bytes),
        }
    }

    /// Closes the connection once everything is sent. Over TLS, sends close_notify first.
    ///
    /// Nothing more is passed to the handler. So that the peer gets everything although it may still be sending, only
    /// our direction is closed at first. What the peer sends is read and dropped until it closes its direction, too, for
    /// at most 2 s or the server's idle timeout, if that is shorter.
    pub fn close(&mut self) {
        *self.is_closing = true;
    }

    /// Returns a handle by which others can write to this connection, and close it. Clone it as you like; one that is kept
    /// keeps nothing alive.
    pub fn handle(&mut self) -> ConnectionHandle {
        self.inbox.get_or_insert_default().handle()
    }

    /// Waits until the connection is closed, see [`TcpStream::closed`]: for tasks that the handler has spawned. The handler
    /// itself learns it by [`Handler::closed`].
    pub fn closed(&self) -> Closed {
        match self.plain() {
            Plain::Tcp(stream) => stream.closed(),
            Plain::Unix(stream) => stream.closed(),
        }
    }

    /// The address of the peer. For a Unix socket it is unspecified, `0.0.0.0:0`; see [`unix`](Self::unix).
    pub fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    fn plain(&self) -> Plain<'_> {
        match &self.link {
            Link::Plain { stream, .. } => *stream,
            #[cfg(feature = "tls")]
            Link::Tls(stream) => Plain::Tcp(stream.stream()),
        }
    }

    /// The underlying TCP connection, for its options; `None` for a Unix socket.
    pub fn tcp(&self) -> Option<&TcpStream> {
        match self.plain() {
            Plain::Tcp(stream) => Some(stream),
            Plain::Unix(_) => None,
        }
    }

    /// The underlying connection of a Unix socket, which knows the process at the other end; `None` for TCP.
    ///
    /// ```
    /// use ringloop::server::{Connection, Handler};
    /// use std::io;
    ///
    /// /// Serves only the user whose process this is.
    /// struct Private;
    ///
    /// impl Handler for Private {
    ///     fn connected(&mut self, connection: &mut Connection<'_>) -> io::Result<()> {
    ///         let peer = connection.unix().map(|stream| stream.peer_credentials()).transpose()?;
    ///         // SAFETY: it accesses no memory.
    ///         if peer.is_some_and(|peer| peer.uid != unsafe { libc::geteuid() }) {
    ///             connection.close();
    ///         }
    ///         Ok(())
    ///     }
    ///
    ///     fn data(&mut self, connection: &mut Connection<'_>, bytes: &[u8]) -> io::Result<()> {
    ///         connection.write(bytes)
    ///     }
    /// }
    /// # let _ = Private;
    /// ```
    pub fn unix(&self) -> Option<&UnixStream> {
        match self.plain() {
            Plain::Tcp(_) => None,
            Plain::Unix(stream) => Some(stream),
        }
    }

    /// The TLS connection, for what was negotiated; `None` without TLS.
    #[cfg(feature = "tls")]
    pub fn tls(&self) -> Option<&TlsStream> {
        match &self.link {
            Link::Plain { .. } => None,
            Link::Tls(stream) => Some(stream),
        }
    }
}

impl fmt::Debug for Connection<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Connection")
            .field("peer", &self.peer)
            .field("link", &self.link)
            .field("is_closing", &self.is_closing)
            .finish_non_exhaustive()
    }
}
