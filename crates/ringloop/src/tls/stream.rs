//! TLS connections.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::task::{Context, Poll, ready};

use bytes::Buf;
use rustls::pki_types::CertificateDer;

use super::halves::{self, TlsReadHalf, TlsWriteHalf};
use super::session::{Session, WRITE_BYTES_MAX};
use crate::net::buffer::{ReadBuffer, spare};
use crate::net::stream::poll_write_buffer;
use crate::net::{Stream, TcpStream};
use crate::source::{Seat, Waiting};

/// How much ciphertext is received at a time, at most.
const READ_BYTES_MAX: usize = 256 * 1024;

/// What a read into a small buffer receives: a whole record, so that little is left to be kept.
const READ_BYTES_MIN: usize = 17 * 1024;

thread_local! {
    /// Where records' plaintexts are joined, for reads in place.
    static PLAINTEXT: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// A TLS connection over a [`TcpStream`] or a [`UnixStream`](crate::net::UnixStream).
///
/// It is used like those. What is different:
/// - A peer that closes the connection without saying so in TLS may have been cut off by somebody else: reading then ends in
///   `UnexpectedEof`, and not in 0 bytes. [`shutdown`](Self::shutdown) says so; dropping does not.
/// - What [`write`](Self::write) took and the socket had no room for is sent by the calls that follow, whichever they are;
///   [`write_all`](Self::write_all) and [`flush`](Self::flush) wait for it.
pub struct TlsStream<S: Stream = TcpStream> {
    stream: S,
    session: Box<RefCell<Session>>,
    /// Where whoever reads waits for room, to send what is unsent, beside whoever writes.
    flushing: Seat,
}

impl<S: Stream> TlsStream<S> {
    pub(super) fn new(stream: S, session: Session) -> Self {
        Self {
            stream,
            session: Box::new(RefCell::new(session)),
            flushing: Seat::beside_others(),
        }
    }

    /// For a future that waits to write. There is one at a time.
    pub(super) fn writing(&self) -> Waiting<'_> {
        self.stream.core().writing()
    }

    /// For a future that waits to read, and for room to send what is unsent. There is one at a time.
    pub(super) fn reading(&self) -> (Waiting<'_>, Waiting<'_, &Seat>) {
        let core = self.stream.core();
        (core.reading(), core.writing_in(&self.flushing))
    }

    /// Reads what is there, once, into the room that the buffer has, behind what is in it. It never grows. 0 is the end of
    /// the stream, or a buffer without room.
    ///
    /// # Errors
    /// Those of recv(2); `UnexpectedEof` if the connection ends without a word; `InvalidData` with rustls' error for what is
    /// not TLS.
    pub async fn read<B: ReadBuffer>(&mut self, mut buffer: B) -> (io::Result<usize>, B) {
        let _waiting = self.reading();
        let result = poll_fn(|context| self.poll_read_into(context, &mut buffer)).await;
        (result, buffer)
    }

    /// Reads in place, as [`TcpStream::read_with`]: what has come is decrypted in a buffer that the connections of this
    /// thread share, and handed to `use_bytes`. An empty slice is the end of the stream.
    ///
    /// What `use_bytes` does not use is lost. It may answer at once with [`try_write`](Self::try_write).
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub async fn read_with<T>(
        &mut self,
        use_bytes: impl FnOnce(&[u8], &Self) -> T,
    ) -> io::Result<T> {
        self.read_in_place(use_bytes).await
    }

    /// Writes part of a buffer, and advances it by that: up to 64 KB in one system call.
    ///
    /// # Errors
    /// Those of send(2); `BrokenPipe` after [`shutdown`](Self::shutdown).
    pub async fn write<B: Buf>(&mut self, mut buffer: B) -> (io::Result<usize>, B) {
        let _waiting = self.writing();
        let result = poll_fn(|context| self.poll_write_from(context, &mut buffer)).await;
        (result, buffer)
    }

    /// Writes all of a buffer, and waits until the kernel has it. After an error the buffer has what was not written.
    pub async fn write_all<B: Buf>(&mut self, buffer: B) -> (io::Result<()>, B) {
        self.write_whole(buffer).await
    }

    /// Waits until the kernel has all that was written.
    pub async fn flush(&mut self) -> io::Result<()> {
        let _waiting = self.writing();
        poll_fn(|context| self.poll_flush(context)).await
    }

    /// Writes without waiting: up to 64 KB, of which what the socket has no room for is sent by later calls.
    ///
    /// # Errors
    /// `WouldBlock` while there is anything left from before; else as [`write`](Self::write).
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut session = self.session.borrow_mut();
        self.send_now(&mut session)?;
        if !session.outgoing.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        session.encrypt(bytes, |ciphertext| self.send(ciphertext))
    }

    /// Says that nothing will follow, after all that was written, and ends that direction. Reading goes on.
    ///
    /// # Errors
    /// Those of send(2) and shutdown(2). A connection that is gone is none.
    pub async fn shutdown(&mut self) -> io::Result<()> {
        let _waiting = self.writing();
        poll_fn(|context| self.poll_finish(context)).await
    }

    /// The protocol that was agreed on by ALPN, such as `h2`.
    pub fn alpn_protocol(&self) -> Option<Vec<u8>> {
        let session = self.session.borrow();
        session.common().alpn_protocol().map(<[u8]>::to_vec)
    }

    /// The peer's certificates, its own first, if it has shown any.
    pub fn peer_certificates(&self) -> Option<Vec<CertificateDer<'static>>> {
        let session = self.session.borrow();
        session
            .common()
            .peer_certificates()
            .map(<[CertificateDer<'_>]>::to_vec)
    }

    /// The host name that the client asked for (SNI). None for a client's own connection.
    pub fn server_name(&self) -> Option<String> {
        self.session.borrow().server_name().map(str::to_owned)
    }

    /// The version of the protocol that was agreed on.
    pub fn protocol_version(&self) -> Option<rustls::ProtocolVersion> {
        self.session.borrow().common().protocol_version()
    }

    /// The cipher suite that was agreed on.
    pub fn cipher_suite(&self) -> Option<rustls::SupportedCipherSuite> {
        self.session.borrow().common().negotiated_cipher_suite()
    }

    /// How the handshake was done: in full, or as the resumption of an earlier session.
    pub fn handshake_kind(&self) -> Option<rustls::HandshakeKind> {
        self.session.borrow().common().handshake_kind()
    }

    /// The connection below, for its addresses and options. What is written to it directly breaks the TLS connection.
    pub fn stream(&self) -> &S {
        &self.stream
    }

    /// Splits the connection, so that one task may read while another one writes.
    pub fn into_split(self) -> (TlsReadHalf<S>, TlsWriteHalf<S>) {
        halves::split(self)
    }

    pub(super) async fn read_in_place<T>(
        &self,
        use_bytes: impl FnOnce(&[u8], &Self) -> T,
    ) -> io::Result<T> {
        let mut use_bytes = Some(use_bytes);
        let _waiting = self.reading();
        poll_fn(|context| {
            self.poll_read_with(context, |bytes, stream| {
                let use_bytes = use_bytes.take().expect("one read ends the future");
                use_bytes(bytes, stream)
            })
        })
        .await
    }

    pub(super) async fn write_whole<B: Buf>(&self, mut buffer: B) -> (io::Result<()>, B) {
        let _waiting = self.writing();
        while buffer.has_remaining() {
            let written = poll_fn(|context| self.poll_write_from(context, &mut buffer)).await;
            if let Err(error) = written {
                return (Err(error), buffer);
            }
        }
        (poll_fn(|context| self.poll_flush(context)).await, buffer)
    }

    /// Ready when both sides have agreed, and the kernel has all that is to be said about it.
    pub(crate) fn poll_handshake(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.poll_flush(context))?;
            if !self.session.borrow().common().is_handshaking() {
                return Poll::Ready(Ok(()));
            }
            let mut plaintext = Vec::new();
            let received = ready!(self.poll_receive(context, READ_BYTES_MIN, &mut |bytes| {
                plaintext.extend_from_slice(bytes);
            }));
            let mut session = self.session.borrow_mut();
            session.plaintext.push(&plaintext);
            let is_over = matches!(received, Ok(0)) || session.is_ended;
            if received.is_ok() && !(is_over && session.common().is_handshaking()) {
                continue;
            }
            // The peer is told why, as far as there is room.
            let _ = self.send_now(&mut session);
            received?;
            return Poll::Ready(Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the peer closed the connection during the TLS handshake",
            )));
        }
    }

    /// Receives once, and hands each record's plaintext to `sink`. Gives how many bytes of ciphertext there were; 0 at the
    /// end of the connection.
    fn poll_receive(
        &self,
        context: &mut Context<'_>,
        limit: usize,
        sink: &mut dyn FnMut(&[u8]),
    ) -> Poll<io::Result<usize>> {
        let before = self.session.borrow_mut().take_incoming();
        let mut result = None;
        let polled =
            self.stream
                .core()
                .poll_read_behind(context, &before, limit, |ciphertext, count| {
                    let mut session = self.session.borrow_mut();
                    result = Some(session.receive(ciphertext, sink).map(|()| count));
                });
        if let (Poll::Ready(Ok(())), Some(result)) = (&polled, result) {
            return Poll::Ready(result);
        }
        self.session.borrow_mut().put_incoming(before);
        polled.map_ok(|()| 0)
    }

    pub(crate) fn poll_read_into(
        &self,
        context: &mut Context<'_>,
        buffer: &mut impl ReadBuffer,
    ) -> Poll<io::Result<usize>> {
        let room = spare(buffer).len();
        if room == 0 {
            return Poll::Ready(Ok(0));
        }
        let mut filled = 0;
        let mut spare = Vec::new();
        let mut fill = |bytes: &[u8]| {
            let (now, later) = bytes.split_at(bytes.len().min(room - filled));
            buffer.put_slice(now);
            filled += now.len();
            spare.extend_from_slice(later);
            filled
        };
        let mut session = self.session.borrow_mut();
        if !session.plaintext.is_empty() {
            let rest = session.plaintext.rest();
            let count = fill(&rest[..rest.len().min(room)]);
            session.plaintext.advance(count);
            return Poll::Ready(Ok(count));
        }
        drop(session);
        let limit = room.clamp(READ_BYTES_MIN, READ_BYTES_MAX);
        let is_over = ready!(self.poll_plaintext(context, limit, &mut |bytes| fill(bytes) > 0))?;
        debug_assert!(is_over == (filled == 0));
        self.session.borrow_mut().plaintext.push(&spare);
        Poll::Ready(Ok(filled))
    }

    pub(crate) fn poll_read_with<T>(
        &self,
        context: &mut Context<'_>,
        use_bytes: impl FnOnce(&[u8], &Self) -> T,
    ) -> Poll<io::Result<T>> {
        // Inside of another one's closure there is none, and one is made.
        let mut plaintext = PLAINTEXT.take();
        plaintext.clear();
        let mut session = self.session.borrow_mut();
        let waiting = session.plaintext.rest().len();
        plaintext.extend_from_slice(session.plaintext.rest());
        session.plaintext.advance(waiting);
        drop(session);
        let polled = if waiting > 0 {
            Poll::Ready(Ok(false))
        } else {
            self.poll_plaintext(context, READ_BYTES_MAX, &mut |bytes| {
                plaintext.extend_from_slice(bytes);
                !bytes.is_empty()
            })
        };
        let result = polled.map_ok(|_| use_bytes(&plaintext, self));
        PLAINTEXT.set(plaintext);
        result
    }

    /// Receives until `sink` has been given something and has said that it is content, or until the end of the stream:
    /// that is true then.
    fn poll_plaintext(
        &self,
        context: &mut Context<'_>,
        limit: usize,
        sink: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Poll<io::Result<bool>> {
        let mut is_content = false;
        loop {
            let session = self.session.borrow();
            if session.is_ended {
                return Poll::Ready(Ok(true));
            }
            session.check()?;
            drop(session);
            let polled = self.poll_receive(context, limit, &mut |bytes| is_content |= sink(bytes));
            match polled {
                Poll::Pending => {
                    // What is unsent must not wait for the next write. Its errors are the next write's.
                    let _ = self.poll_flush_in(context, &self.flushing);
                    return Poll::Pending;
                }
                // Key updates are answered, and the peer is told what was wrong.
                Poll::Ready(received) => {
                    let mut session = self.session.borrow_mut();
                    let _ = self.send_now(&mut session);
                    if is_content {
                        // An error in what follows is remembered.
                        return Poll::Ready(Ok(false));
                    }
                    if received? == 0 && !session.is_ended {
                        return Poll::Ready(Err(io::Error::new(
                            io::ErrorKind::UnexpectedEof,
                            "the connection ended without TLS's close_notify: what came before may be incomplete",
                        )));
                    }
                }
            }
        }
    }

    pub(crate) fn poll_write_from(
        &self,
        context: &mut Context<'_>,
        buffer: &mut impl Buf,
    ) -> Poll<io::Result<usize>> {
        poll_write_buffer(
            context,
            buffer,
            |context, bytes| self.poll_write(context, bytes),
            |context, pieces| self.poll_write_pieces(context, pieces),
        )
    }

    pub(crate) fn poll_write(
        &self,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        // Not taking more meanwhile is what slows down a writer whose peer does not read.
        ready!(self.poll_flush(context))?;
        // A record that cannot be sent ends the connection.
        self.stream.core().check_here()?;
        let mut session = self.session.borrow_mut();
        Poll::Ready(session.encrypt(bytes, |ciphertext| {
            match self.stream.core().poll_write(context, ciphertext) {
                Poll::Ready(sent) => sent,
                Poll::Pending => Ok(0),
            }
        }))
    }

    pub(crate) fn poll_write_pieces(
        &self,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_flush(context))?;
        // A record for all costs less than one for each.
        let mut joined = PLAINTEXT.take();
        joined.clear();
        for piece in pieces {
            let room = WRITE_BYTES_MAX - joined.len();
            joined.extend_from_slice(&piece[..piece.len().min(room)]);
        }
        let result = self.poll_write(context, &joined);
        PLAINTEXT.set(joined);
        result
    }

    pub(crate) fn poll_flush(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush_in(context, &Seat::alone())
    }

    /// As [`poll_flush`](Self::poll_flush), for who waits in that seat.
    fn poll_flush_in(&self, context: &mut Context<'_>, seat: &Seat) -> Poll<io::Result<()>> {
        let mut session = self.session.borrow_mut();
        while !session.outgoing.is_empty() {
            let core = self.stream.core();
            let count = ready!(core.poll_write_in(context, seat, session.outgoing.rest()))?;
            session.outgoing.advance(count);
        }
        Poll::Ready(Ok(()))
    }

    pub(crate) fn poll_finish(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.session.borrow_mut().close()?;
        ready!(self.poll_flush(context))?;
        Poll::Ready(self.stream.core().finish())
    }

    /// Ends the direction without waiting, for a half that is dropped. The peer is told before that nothing will follow,
    /// as far as there is room, unless this is because of a panic: whoever panicked has not said all they had to say.
    pub(super) fn end_now(&self) {
        // An error means that the connection is gone already.
        if !std::thread::panicking() {
            let mut session = self.session.borrow_mut();
            let _ = session.close();
            let _ = self.send_now(&mut session);
        }
        let _ = self.stream.core().finish();
    }

    /// Writes all of the bytes: what the socket has no room for is queued.
    pub(crate) fn write_or_queue(&self, mut bytes: &[u8]) -> io::Result<()> {
        let mut session = self.session.borrow_mut();
        while !bytes.is_empty() {
            let is_first = session.outgoing.is_empty();
            let count = session.encrypt(bytes, |ciphertext| {
                if is_first {
                    self.send(ciphertext)
                } else {
                    Ok(0)
                }
            })?;
            bytes = &bytes[count..];
        }
        Ok(())
    }

    /// Sends what is queued, as far as there is room.
    fn send_now(&self, session: &mut Session) -> io::Result<()> {
        while !session.outgoing.is_empty() {
            let sent = self.send(session.outgoing.rest())?;
            if sent == 0 {
                break;
            }
            session.outgoing.advance(sent);
        }
        Ok(())
    }

    /// Sends as much as there is room for now, which may be nothing.
    fn send(&self, ciphertext: &[u8]) -> io::Result<usize> {
        match self.stream.core().try_write(ciphertext) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
            result => result,
        }
    }
}

impl<S: Stream + fmt::Debug> fmt::Debug for TlsStream<S> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("TlsStream")
            .field("stream", &self.stream)
            .finish_non_exhaustive()
    }
}
