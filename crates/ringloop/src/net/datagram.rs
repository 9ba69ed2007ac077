//! The shared parts of datagram sockets of every family.

#![allow(unsafe_code)]

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};
use std::task::{Context, Poll, ready};

use bytes::Buf;
use ringloop_driver::Interest;
use socket2::{SockAddr, Socket};

use crate::buffer::{ReadBuffer, spare};
use crate::source::{Direction, Seat, Source, Waiting};
use crate::sys::messages::{self, Envelope};

/// The maximum number of pieces that one datagram is assembled from.
const PIECES_MAX: usize = 64;

/// A datagram socket that is watched for both directions. Any number of futures may wait for each.
#[derive(Debug)]
pub(crate) struct Datagrams {
    source: Source<Socket>,
}

impl Datagrams {
    /// Watches a socket, which must be non-blocking.
    pub(crate) fn new(socket: Socket) -> io::Result<Self> {
        let source = Source::new(socket, Interest::READ | Interest::WRITE)?;
        source.assume_writable();
        Ok(Self { source })
    }

    pub(crate) fn socket(&self) -> &Socket {
        self.source.get()
    }

    /// See [`Source::into_inner`].
    pub(crate) fn into_socket(self) -> io::Result<Socket> {
        self.source.into_inner()
    }

    /// Sends or receives without waiting.
    pub(crate) fn call<T>(&self, call: impl FnMut(&Socket) -> io::Result<T>) -> io::Result<T> {
        self.source.call(call)
    }

    /// See [`Source::try_call`].
    pub(crate) fn try_call<T>(
        &self,
        direction: Direction,
        call: impl FnMut(&Socket) -> io::Result<T>,
    ) -> io::Result<T> {
        self.source.try_call(direction, call)
    }

    pub(crate) async fn ready(&self, direction: Direction) -> io::Result<()> {
        self.source.ready(direction).await.map(drop)
    }

    /// See [`Source::peek`].
    pub(crate) async fn peek<T>(
        &self,
        peek: impl FnMut(&Socket) -> io::Result<T>,
    ) -> io::Result<T> {
        self.source.peek(peek).await
    }

    pub(crate) async fn recv<B: ReadBuffer>(&self, mut buffer: B) -> (io::Result<usize>, B) {
        let waiting = self.source.reading(Seat::beside_others());
        let result = poll_fn(|context| {
            self.source.poll_read(context, waiting.seat(), |socket| {
                Ok((receive(socket, &mut buffer)?, false))
            })
        })
        .await;
        (result, buffer)
    }

    pub(crate) async fn recv_from<B: ReadBuffer>(
        &self,
        mut buffer: B,
    ) -> (io::Result<(usize, SockAddr)>, B) {
        let waiting = self.source.reading(Seat::beside_others());
        let result = poll_fn(|context| {
            self.source.poll_read(context, waiting.seat(), |socket| {
                Ok((receive_from(socket, &mut buffer)?, false))
            })
        })
        .await;
        (result, buffer)
    }

    /// Waits until `receive` has received something.
    pub(crate) async fn recv_by<T>(
        &self,
        mut receive: impl FnMut(&Socket) -> io::Result<T>,
    ) -> io::Result<T> {
        let waiting = self.source.reading(Seat::beside_others());
        poll_fn(|context| {
            // That a batch is not full is no proof that nothing is left: there may be an error behind it.
            self.source.poll_read(context, waiting.seat(), |socket| {
                Ok((receive(socket)?, false))
            })
        })
        .await
    }

    /// Waits until `send` has sent something.
    pub(crate) async fn send_by<T>(
        &self,
        mut send: impl FnMut(&Socket) -> io::Result<T>,
    ) -> io::Result<T> {
        let waiting = self.sending();
        poll_fn(|context| {
            self.source
                .poll_write(context, waiting.seat(), |socket| Ok((send(socket)?, true)))
        })
        .await
    }

    pub(crate) async fn send<B: Buf>(
        &self,
        mut buffer: B,
        to: Option<&SockAddr>,
    ) -> (io::Result<usize>, B) {
        let waiting = self.sending();
        let result =
            poll_fn(|context| self.poll_send(context, waiting.seat(), &mut buffer, to)).await;
        (result, buffer)
    }

    /// Registers a future that waits to send.
    pub(crate) fn sending(&self) -> Waiting<'_> {
        self.source.writing(Seat::beside_others())
    }

    pub(crate) fn poll_send(
        &self,
        context: &mut Context<'_>,
        seat: &Seat,
        buffer: &mut impl Buf,
        to: Option<&SockAddr>,
    ) -> Poll<io::Result<usize>> {
        // A datagram is sent as a whole or not at all, and there may be room for a shorter one.
        let count = ready!(self.source.poll_write(context, seat, |socket| {
            Ok((send_buffer(socket, buffer, to)?, true))
        }))?;
        buffer.advance(count);
        Poll::Ready(Ok(count))
    }

    /// Sends now, where room depends on the receiver, too. `None` if there is none.
    pub(crate) fn poll_send_to(
        &self,
        context: &mut Context<'_>,
        seat: &Seat,
        buffer: &mut impl Buf,
        to: &SockAddr,
    ) -> Poll<io::Result<Option<usize>>> {
        let count = ready!(self.source.poll_write_to(context, seat, |socket| {
            send_buffer(socket, buffer, Some(to))
        }))?;
        buffer.advance(count.unwrap_or(0));
        Poll::Ready(Ok(count))
    }
}

impl AsFd for Datagrams {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket().as_fd()
    }
}

/// Receives a datagram now, into the next piece of a buffer.
pub(crate) fn receive(socket: &Socket, buffer: &mut impl ReadBuffer) -> io::Result<usize> {
    // SAFETY: the bytes are only written to: a socket reads nothing from them.
    let room = unsafe { spare(buffer).as_uninit_slice_mut() };
    let count = socket.recv(room)?;
    // SAFETY: recv(2) has filled that many bytes of the piece.
    unsafe { buffer.advance_mut(count) };
    Ok(count)
}

/// Receives a datagram now, and who sent it.
pub(crate) fn receive_from(
    socket: &Socket,
    buffer: &mut impl ReadBuffer,
) -> io::Result<(usize, SockAddr)> {
    // SAFETY: the bytes are only written to: a socket reads nothing from them.
    let room = unsafe { spare(buffer).as_uninit_slice_mut() };
    let (count, address) = socket.recv_from(room)?;
    // SAFETY: recvfrom(2) has filled that many bytes of the piece.
    unsafe { buffer.advance_mut(count) };
    Ok((count, address))
}

/// Receives a datagram now, and who sent it, and leaves it there to be received again.
pub(crate) fn peek(socket: &Socket, buffer: &mut impl ReadBuffer) -> io::Result<(usize, SockAddr)> {
    // SAFETY: the bytes are only written to: a socket reads nothing from them.
    let room = unsafe { spare(buffer).as_uninit_slice_mut() };
    let (count, address) = socket.recv_from_with_flags(room, libc::MSG_PEEK)?;
    // SAFETY: recvfrom(2) has filled that many bytes of the piece.
    unsafe { buffer.advance_mut(count) };
    Ok((count, address))
}

/// Receives a datagram now, and what comes with it. Returns how many bytes of it the buffer has got.
pub(crate) fn receive_message(
    socket: &Socket,
    buffer: &mut impl ReadBuffer,
    envelope: &mut Envelope,
) -> io::Result<usize> {
    // SAFETY: the bytes are only written to: a socket reads nothing from them.
    let room = unsafe { spare(buffer).as_uninit_slice_mut() };
    messages::receive_one(socket.as_fd(), room, envelope)?;
    let count = envelope.length.min(room.len());
    // SAFETY: recvmsg(2) has filled that many bytes of the piece: as many as the datagram has, and there was room for.
    unsafe { buffer.advance_mut(count) };
    Ok(count)
}

/// Sends a datagram now.
pub(crate) fn send(socket: &Socket, bytes: &[u8], to: Option<&SockAddr>) -> io::Result<usize> {
    match to {
        Some(address) => socket.send_to_with_flags(bytes, address, libc::MSG_NOSIGNAL),
        None => socket.send_with_flags(bytes, libc::MSG_NOSIGNAL),
    }
}

/// Sends all of a buffer as one datagram now.
pub(crate) fn send_buffer(
    socket: &Socket,
    buffer: &impl Buf,
    to: Option<&SockAddr>,
) -> io::Result<usize> {
    let first = buffer.chunk();
    if first.len() == buffer.remaining() {
        return send(socket, first, to);
    }
    let mut pieces = [IoSlice::new(&[]); PIECES_MAX];
    let filled = buffer.chunks_vectored(&mut pieces);
    let pieces = &pieces[..filled];
    if pieces.iter().map(|piece| piece.len()).sum::<usize>() < buffer.remaining() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "the datagram has more than 64 pieces; copy them into one buffer first",
        ));
    }
    match to {
        Some(address) => socket.send_to_vectored_with_flags(pieces, address, libc::MSG_NOSIGNAL),
        None => socket.send_vectored_with_flags(pieces, libc::MSG_NOSIGNAL),
    }
}
