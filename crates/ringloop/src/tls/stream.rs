//! TLS connections.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::task::{Context, Poll, ready};

use bytes::Buf;
use rustls::CommonState;
use rustls::pki_types::CertificateDer;

use super::KernelTls;
use super::halves::{self, TlsReadHalf, TlsWriteHalf};
use super::session::{Session, WRITE_BYTES_MAX};
use crate::budget;
use crate::buffer::{ReadBuffer, spare};
use crate::net::stream::{HasCore, poll_write_buffer};
use crate::net::{ReadStream, Stream, TcpStream};
use crate::sealed::Internal;
use crate::source::{Closed, End, Seat, Waiting};

/// The maximum amount of ciphertext that is received at a time.
const READ_BYTES_MAX: usize = 256 * 1024;

/// How much a read into a small buffer receives: a whole record, so that little must be kept.
const READ_BYTES_MIN: usize = 17 * 1024;

thread_local! {
    /// Where the plaintexts of several records are joined.
    static PLAINTEXT: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// A TLS connection over a [`TcpStream`] or a [`UnixStream`](crate::net::UnixStream).
///
/// It is used like those, with these differences:
/// - If a peer closes the connection without close_notify, an attacker may have cut it off. Reading then returns
///   `UnexpectedEof` instead of 0 bytes. [`shutdown`](Self::shutdown) sends close_notify; dropping the stream does not.
/// - Bytes that [`write`](Self::write) has accepted, but the socket had no room for, are sent by any later call.
///   [`write_all`](Self::write_all) and [`flush`](Self::flush) wait until they are sent.
pub struct TlsStream<S: Stream = TcpStream> {
    pub(super) stream: S,
    pub(super) session: Box<RefCell<Session>>,
    /// The seat in which a reader waits for room to send queued bytes, beside a writer.
    pub(super) flushing: Seat,
}

impl<S: Stream> TlsStream<S> {
    pub(super) fn new(stream: S, session: Session) -> Self {
        Self {
            stream,
            session: Box::new(RefCell::new(session)),
            flushing: Seat::beside_others(),
        }
    }

    /// Registers a future that waits to write. There is one at a time.
    pub(crate) fn writing(&self) -> Waiting<'_> {
        self.stream.core().writing()
    }

    /// Registers a future that waits to read, and for room to send queued bytes. There is one at a time.
    pub(crate) fn reading(&self) -> (Waiting<'_>, Waiting<'_, &Seat>) {
        let core = self.stream.core();
        (core.reading(), core.writing_in(&self.flushing))
    }

    /// Reads what has arrived, once, and appends it to the buffer, as far as that has room; the buffer never grows. A
    /// count of 0 means that the stream has ended, or that the buffer had no room.
    ///
    /// # Errors
    /// Returns the errors of recv(2), `UnexpectedEof` if the connection ends without close_notify, and `InvalidData`
    /// with rustls' error for anything that is not TLS.
    pub async fn read<B: ReadBuffer>(&mut self, mut buffer: B) -> (io::Result<usize>, B) {
        let _waiting = self.reading();
        let result = poll_fn(|context| self.poll_read_into(context, &mut buffer)).await;
        (result, buffer)
    }

    /// Reads in place, like [`TcpStream::read_with`]: received data is decrypted in a buffer that the connections of
    /// this thread share, and passed to `use_bytes`. An empty slice is the end of the stream.
    ///
    /// Bytes that `use_bytes` does not use are lost. It can answer at once with [`try_write`](Self::try_write).
    ///
    /// # Errors
    /// See [`read`](Self::read).
    pub async fn read_with<T>(
        &mut self,
        use_bytes: impl FnOnce(&[u8], &Self) -> T,
    ) -> io::Result<T> {
        self.read_in_place(use_bytes).await
    }

    /// Writes part of a buffer, up to 64 KB in one system call, and advances the buffer by that.
    ///
    /// # Errors
    /// Returns the errors of send(2), and `BrokenPipe` after [`shutdown`](Self::shutdown).
    pub async fn write<B: Buf>(&mut self, mut buffer: B) -> (io::Result<usize>, B) {
        let _waiting = self.writing();
        let result = poll_fn(|context| self.poll_write_from(context, &mut buffer)).await;
        (result, buffer)
    }

    /// Writes all of a buffer, and waits until the kernel has accepted it. After an error, the buffer that comes back
    /// holds what was not written.
    pub async fn write_all<B: Buf>(&mut self, buffer: B) -> (io::Result<()>, B) {
        self.write_whole(buffer).await
    }

    /// Waits until the kernel has accepted everything that was written, so that nothing of it is lost if the stream is
    /// dropped. With kernel TLS, this waits for room in the socket's send buffer, too.
    pub async fn flush(&mut self) -> io::Result<()> {
        let _waiting = self.writing();
        poll_fn(|context| self.poll_flush_whole(context)).await
    }

    /// Writes up to 64 KB without waiting. What the socket has no room for is sent by later calls.
    ///
    /// # Errors
    /// Returns `WouldBlock` while earlier bytes are still queued, and otherwise the errors of [`write`](Self::write).
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut session = self.session.borrow_mut();
        if session.offloaded().is_some() {
            return self.kernel_try_write(&mut session, bytes);
        }
        self.send_now(&mut session)?;
        if !session.outgoing.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        session.encrypt(bytes, |ciphertext| self.send(ciphertext))
    }

    /// Sends close_notify after everything that was written, and shuts down the writing direction. Reading still works.
    ///
    /// # Errors
    /// Returns the errors of send(2) and shutdown(2). It is not an error if the connection is already gone.
    pub async fn shutdown(&mut self) -> io::Result<()> {
        let _waiting = self.writing();
        poll_fn(|context| self.poll_finish(context)).await
    }

    /// The protocol that was negotiated by ALPN, such as `h2`.
    pub fn alpn_protocol(&self) -> Option<Vec<u8>> {
        let session = self.session.borrow();
        session.agreed(
            |known| known.alpn_protocol().map(<[u8]>::to_vec),
            |kept| kept.alpn_protocol.clone(),
        )
    }

    /// The peer's certificate chain, its own certificate first, if it has presented one.
    pub fn peer_certificates(&self) -> Option<Vec<CertificateDer<'static>>> {
        let session = self.session.borrow();
        session.agreed(
            |known| {
                known
                    .peer_certificates()
                    .map(<[CertificateDer<'_>]>::to_vec)
            },
            |kept| kept.peer_certificates.clone(),
        )
    }

    /// The host name that the client has asked for (SNI). `None` on the client's side.
    pub fn server_name(&self) -> Option<String> {
        self.session.borrow().server_name().map(str::to_owned)
    }

    /// The version of TLS that was negotiated.
    pub fn protocol_version(&self) -> Option<rustls::ProtocolVersion> {
        let session = self.session.borrow();
        session.agreed(CommonState::protocol_version, |kept| kept.protocol_version)
    }

    /// The cipher suite that was negotiated.
    pub fn cipher_suite(&self) -> Option<rustls::SupportedCipherSuite> {
        let session = self.session.borrow();
        session.agreed(CommonState::negotiated_cipher_suite, |kept| {
            kept.cipher_suite
        })
    }

    /// Whether the handshake was a full one, or resumed an earlier session.
    pub fn handshake_kind(&self) -> Option<rustls::HandshakeKind> {
        let session = self.session.borrow();
        session.agreed(CommonState::handshake_kind, |kept| kept.handshake_kind)
    }

    /// Whether the kernel encrypts and decrypts this connection, and if not, why: see
    /// [`TlsAcceptor::kernel`](super::TlsAcceptor::kernel).
    pub fn kernel(&self) -> KernelTls {
        self.session.borrow().kernel().clone()
    }

    /// Waits until the connection below is closed, see [`TcpStream::closed`].
    ///
    /// ```no_run
    /// use futures_util::future::{Either, select};
    /// use ringloop::tls::TlsStream;
    /// use std::pin::pin;
    ///
    /// async fn answer(mut stream: TlsStream) -> std::io::Result<()> {
    ///     let work = pin!(std::future::pending::<&[u8]>());
    ///     match select(work, stream.closed()).await {
    ///         Either::Left((answer, _)) => stream.write_all(answer).await.0,
    ///         Either::Right(_) => Ok(()), // nobody waits for it any more
    ///     }
    /// }
    /// ```
    pub fn closed(&self) -> Closed {
        self.stream.core().until(End::Both)
    }

    /// Waits until the peer has finished sending, or has gone, see [`TcpStream::read_closed`]. This is the end of the
    /// connection below. Whether it was announced by close_notify, a read tells.
    pub fn read_closed(&self) -> Closed {
        self.stream.core().until(End::Reading)
    }

    /// The underlying connection, for its addresses and options. Writing to it directly breaks the TLS connection.
    pub fn stream(&self) -> &S {
        &self.stream
    }

    /// Splits the connection into two halves, so that one task can read while another one writes.
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

    /// Ready when the handshake is complete, and the kernel has accepted all of its messages.
    pub(crate) fn poll_handshake(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.poll_flush(context))?;
            if !self.session.borrow().is_handshaking() {
                return Poll::Ready(self.offload());
            }
            let mut plaintext = Vec::new();
            let received = ready!(self.poll_receive(context, READ_BYTES_MIN, &mut |bytes| {
                plaintext.extend_from_slice(bytes);
            }));
            let mut session = self.session.borrow_mut();
            session.plaintext.push(&plaintext);
            let is_over = matches!(received, Ok(0)) || session.is_ended;
            if received.is_ok() && !(is_over && session.is_handshaking()) {
                continue;
            }
            // The peer is sent an alert, if there is room.
            let _ = self.send_now(&mut session);
            received?;
            return Poll::Ready(Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the peer closed the connection during the TLS handshake",
            )));
        }
    }

    /// Receives once, and passes each record's plaintext to `sink`. Returns the number of bytes of ciphertext, which is
    /// 0 at the end of the connection.
    fn poll_receive(
        &self,
        context: &mut Context<'_>,
        limit: usize,
        sink: &mut dyn FnMut(&[u8]),
    ) -> Poll<io::Result<usize>> {
        let mut session = self.session.borrow_mut();
        let limit = session.receive_limit(limit);
        let before = session.take_incoming();
        drop(session);
        let mut result = None;
        let polled =
            self.stream
                .core()
                .poll_read_behind(context, &before, limit, |ciphertext, count| {
                    let mut session = self.session.borrow_mut();
                    result = Some(session.receive(ciphertext, count, sink).map(|()| count));
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
        // One record may be enough for many reads, and the end comes again and again.
        budget::poll_counted(context, |context| self.poll_fill(context, buffer))
    }

    fn poll_fill(
        &self,
        context: &mut Context<'_>,
        buffer: &mut impl ReadBuffer,
    ) -> Poll<io::Result<usize>> {
        let room = spare(buffer).len();
        if room == 0 {
            return Poll::Ready(Ok(0));
        }
        let mut session = self.session.borrow_mut();
        if !session.plaintext.is_empty() {
            let rest = session.plaintext.rest();
            let count = rest.len().min(room);
            buffer.put_slice(&rest[..count]);
            session.plaintext.advance(count);
            return Poll::Ready(Ok(count));
        }
        let in_kernel = session.offloaded().is_some();
        drop(session);
        if in_kernel {
            return self.poll_kernel_read_into(context, buffer);
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
        budget::poll_counted(context, |context| self.poll_use(context, use_bytes))
    }

    fn poll_use<T>(
        &self,
        context: &mut Context<'_>,
        use_bytes: impl FnOnce(&[u8], &Self) -> T,
    ) -> Poll<io::Result<T>> {
        let mut session = self.session.borrow_mut();
        let waiting = session.plaintext.rest().len();
        if waiting == 0 && session.offloaded().is_some() {
            drop(session);
            return self.poll_kernel_read_with(context, use_bytes);
        }
        // A read inside the closure of another one gets a new buffer.
        let mut plaintext = PLAINTEXT.take();
        plaintext.clear();
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

    /// Receives until `sink` returns true, or until the end of the stream, for which it returns true.
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
                    // Queued bytes must not wait for the next write. An error is reported by the next write.
                    let _ = self.poll_flush_in(context, &self.flushing);
                    return Poll::Pending;
                }
                // Answers to key updates, and alerts.
                Poll::Ready(received) => {
                    let mut session = self.session.borrow_mut();
                    let _ = self.send_now(&mut session);
                    if is_content {
                        // An error after this data is stored for the next call.
                        return Poll::Ready(Ok(false));
                    }
                    if received? == 0 && !session.is_ended {
                        return Poll::Ready(Err(cut_off()));
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
        if self.is_in_kernel() {
            return self
                .poll_kernel_write(context, |core, context| core.poll_write(context, bytes));
        }
        // Accepting nothing more meanwhile slows down a writer whose peer does not read.
        ready!(self.poll_flush(context))?;
        // If a record cannot be sent, the connection is over.
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
        if self.is_in_kernel() {
            return self.poll_kernel_write(context, |core, context| {
                core.poll_write_pieces(context, pieces)
            });
        }
        ready!(self.poll_flush(context))?;
        // One record for all pieces is cheaper than one for each.
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

    /// Like [`poll_flush`](Self::poll_flush), with a seat.
    pub(super) fn poll_flush_in(
        &self,
        context: &mut Context<'_>,
        seat: &Seat,
    ) -> Poll<io::Result<()>> {
        if self.is_in_kernel() {
            return self.poll_kernel_flush(context, seat);
        }
        let mut session = self.session.borrow_mut();
        while !session.outgoing.is_empty() {
            let core = self.stream.core();
            let count = ready!(core.poll_write_in(context, seat, session.outgoing.rest()))?;
            session.outgoing.advance(count);
        }
        Poll::Ready(Ok(()))
    }

    /// Ready when the socket may be closed without losing anything that was written.
    pub(super) fn poll_flush_whole(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_flush(context))?;
        self.poll_settled(context).map(Ok)
    }

    pub(crate) fn poll_finish(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.session.borrow_mut().close()?;
        ready!(self.poll_flush(context))?;
        ready!(self.poll_settled(context));
        Poll::Ready(self.stream.core().finish())
    }

    /// Shuts down writing without waiting, when a half is dropped. Sends close_notify first, if there is room. During a
    /// panic it does not, because the message is probably incomplete.
    pub(super) fn end_now(&self) {
        // An error means that the connection is already gone.
        if !std::thread::panicking() {
            let mut session = self.session.borrow_mut();
            let _ = session.close();
            let _ = self.send_now(&mut session);
            if !self.is_settled(&mut session) {
                // The kernel sends the rest as long as the connection is open, which the other half keeps it.
                return;
            }
        }
        let _ = self.stream.core().finish();
    }

    /// Writes all of the bytes. Queues what the socket has no room for.
    pub(crate) fn write_or_queue(&self, mut bytes: &[u8]) -> io::Result<()> {
        let mut session = self.session.borrow_mut();
        if session.offloaded().is_some() {
            let sent = match self.kernel_try_write(&mut session, bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
                sent => sent?,
            };
            session.outgoing.push(&bytes[sent..]);
            return Ok(());
        }
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

    /// Sends queued bytes, as far as there is room.
    pub(super) fn send_now(&self, session: &mut Session) -> io::Result<()> {
        if session.offloaded().is_some() {
            return self.kernel_send_now(session);
        }
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

impl<S: Stream> ReadStream for TlsStream<S> {
    async fn read_into(&mut self, buffer: &mut impl ReadBuffer, _: Internal) -> io::Result<usize> {
        self.read(buffer).await.0
    }
}

/// The error for an end without close_notify.
pub(super) fn cut_off() -> io::Error {
    io::Error::new(
        io::ErrorKind::UnexpectedEof,
        "the connection ended without a TLS close_notify: the data may be incomplete",
    )
}

impl<S: Stream + fmt::Debug> fmt::Debug for TlsStream<S> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("TlsStream")
            .field("stream", &self.stream)
            .finish_non_exhaustive()
    }
}
