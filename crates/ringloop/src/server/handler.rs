//! What users write: a handler, and the connection that it is given.

use std::io;
use std::net::SocketAddr;

use super::wire::Link;
use crate::net::TcpStream;
#[cfg(feature = "tls")]
use crate::tls::TlsStream;

/// What happens on a connection. Each connection has a handler of its own, in one thread.
///
/// An error that a method returns closes the connection, and so does a panic; no other connection notices.
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
/// let server = Server::bind("127.0.0.1:0").start(Numbers::default)?;
/// let mut client = std::net::TcpStream::connect(server.local_addr())?;
/// client.write_all(b"one\ntwo\n")?;
/// let mut answer = String::new();
/// client.read_to_string(&mut answer)?;
/// assert_eq!(answer, "welcome\n1\n2\n");
/// # Ok::<(), std::io::Error>(())
/// ```
pub trait Handler: 'static {
    /// The connection has been made.
    fn connected(&mut self, connection: &mut Connection<'_>) -> io::Result<()> {
        let _ = connection;
        Ok(())
    }

    /// Bytes have come. They lie in a buffer that all connections of the thread share: what is kept must be copied.
    fn data(&mut self, connection: &mut Connection<'_>, bytes: &[u8]) -> io::Result<()>;

    /// No byte has moved, in either direction, for the server's idle timeout. Closes the connection, unless it is written
    /// otherwise; then the time begins anew. What a peer that reads nothing has not taken by then is given up.
    fn timeout(&mut self, connection: &mut Connection<'_>) -> io::Result<()> {
        connection.close();
        Ok(())
    }

    /// The server is about to end, and nothing that has come is waiting to be handled. Closes the connection, once all that
    /// was written is sent, unless it is written otherwise: a handler in the middle of something says so to its peer, or
    /// remembers to close the connection when it is done. Who is not done by the server's deadline is cut off.
    fn draining(&mut self, connection: &mut Connection<'_>) -> io::Result<()> {
        connection.close();
        Ok(())
    }

    /// The connection failed, or a method of this handler did. `closed` follows.
    fn error(&mut self, error: &io::Error) {
        let _ = error;
    }

    /// The connection is over.
    fn closed(&mut self) {}
}

/// A connection as its [`Handler`] has it.
#[derive(Debug)]
pub struct Connection<'a> {
    pub(super) link: Link<'a>,
    pub(super) is_closing: &'a mut bool,
    pub(super) peer: SocketAddr,
}

impl Connection<'_> {
    /// Writes bytes: directly, as far as there is room; the rest is kept, and nothing more is read until it is sent.
    ///
    /// # Errors
    /// Those of send(2).
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.link {
            Link::Plain { stream, unsent } => unsent.write(stream, bytes),
            #[cfg(feature = "tls")]
            Link::Tls(stream) => stream.write_or_queue(bytes),
        }
    }

    /// Closes the connection once everything is sent; over TLS, with the word that nothing will follow.
    pub fn close(&mut self) {
        *self.is_closing = true;
    }

    /// The address of the other end.
    pub fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    /// The TCP connection itself, for its options.
    pub fn stream(&self) -> &TcpStream {
        match &self.link {
            Link::Plain { stream, .. } => stream,
            #[cfg(feature = "tls")]
            Link::Tls(stream) => stream.stream(),
        }
    }

    /// What was agreed on in TLS; none on a server without.
    #[cfg(feature = "tls")]
    pub fn tls(&self) -> Option<&TlsStream> {
        match &self.link {
            Link::Plain { .. } => None,
            Link::Tls(stream) => Some(stream),
        }
    }
}
