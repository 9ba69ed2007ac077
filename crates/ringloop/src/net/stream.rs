//! The shared parts of stream sockets of every family.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::fmt;
use std::future::poll_fn;
use std::io::{self, IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use ringloop_driver::{Interest, Op, SENT_BY_COPY, SharedFd};
use socket2::{SockAddr, Socket};

use crate::budget;
use crate::buffer::{ReadBuffer, spare};
use crate::sealed::{INTERNAL, Internal};
use crate::source::{
    Activity, Asked, Closed, Direction, End, Lent, Operation, Recheck, Seat, Source, Waiting,
};
use crate::sys;

/// The maximum number of pieces of one vectored write. The kernel would take 1024.
const PIECES_MAX: usize = 64;

/// From this size on, sending without a copy is cheaper than copying bytes that are not in the CPU's caches
/// (docs/backends.md has the figures).
const ZERO_COPY_BYTES_MIN: usize = 32 * 1024;

/// The maximum size of one send without a copy, because the memory in use counts against `RLIMIT_MEMLOCK`.
const ZERO_COPY_BYTES_MAX: usize = 1024 * 1024;

/// Urgent data cannot be read here, but reads end at it. `io_uring` does not report it: there, what follows it is read
/// with the next packet.
const INTEREST: Interest = Interest::READ.and(Interest::WRITE).and(Interest::PRIORITY);

/// Whether a read that does not fill its buffer has left nothing behind, so that the next read may wait for an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShortRead {
    /// It always has.
    Drains,
    /// Not always: on a Unix socket, a read ends where descriptors were sent along.
    MayLeave,
}

/// A connection that is watched for both directions.
pub struct Core {
    source: Source<Socket>,
    short_read: ShortRead,
    zero_copy: Cell<ZeroCopy>,
}

/// Whether sending without copies works on this connection.
#[derive(Default)]
enum ZeroCopy {
    /// It may be tried.
    #[default]
    Possible,
    /// The last operation has not reported yet whether the kernel copied.
    Asked(Box<Operation>),
    /// The kernel copies anyway, as it does where both ends are on one machine.
    Copies,
}

/// A zero-copy send whose result has not arrived. If it is dropped, nothing else may be written while it continues.
struct Unanswered<'c> {
    operation: Option<Operation>,
    core: &'c Core,
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if let Some(operation) = self.operation.take()
            && operation.cancel_now().is_err()
        {
            // It cannot be cancelled now, and may still begin. So nothing else may be sent on this connection.
            drop(self.core.shutdown(Shutdown::Both));
        }
    }
}

/// A connection of any family that can be split: a [`TcpStream`](crate::net::TcpStream) or a
/// [`UnixStream`](crate::net::UnixStream). The trait is sealed: no other type can implement it.
pub trait Stream {
    /// The connection.
    #[doc(hidden)]
    fn connection(&self, _: Internal) -> &Core;
}

/// Implemented by types that have a connection.
pub(crate) trait HasCore {
    /// The connection.
    fn core(&self) -> &Core;
}

impl<S: Stream> HasCore for S {
    fn core(&self) -> &Core {
        self.connection(INTERNAL)
    }
}

impl Core {
    /// Watches a connected socket.
    pub(crate) fn new(socket: Socket, short_read: ShortRead) -> io::Result<Self> {
        let source = Source::new(socket, INTEREST)?;
        source.assume_writable();
        Ok(Self::from_source(source, short_read))
    }

    fn from_source(source: Source<Socket>, short_read: ShortRead) -> Self {
        Self {
            source,
            short_read,
            zero_copy: Cell::default(),
        }
    }

    /// Connects a socket, which must be non-blocking.
    pub(crate) async fn connect(
        socket: Socket,
        address: &SockAddr,
        short_read: ShortRead,
    ) -> io::Result<Self> {
        let is_connected = match socket.connect(address) {
            Ok(()) => true,
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => false,
            Err(error) => return Err(error),
        };
        let source = Source::new(socket, INTEREST)?;
        if !is_connected {
            source.writable().await?;
            if let Some(error) = source.get().take_error()? {
                return Err(error);
            }
        }
        source.assume_writable();
        Ok(Self::from_source(source, short_read))
    }

    pub(crate) fn socket(&self) -> &Socket {
        self.source.get()
    }

    /// See [`Source::into_inner`].
    pub(crate) fn into_socket(self) -> io::Result<Socket> {
        // An operation of it is cancelled before the kernel is told.
        drop(self.zero_copy);
        self.source.into_inner()
    }

    pub(crate) async fn read<B: ReadBuffer>(&self, mut buffer: B) -> (io::Result<usize>, B) {
        let _waiting = self.reading();
        let result = poll_fn(|context| self.poll_read_into(context, &mut buffer)).await;
        (result, buffer)
    }

    pub(crate) async fn read_vectored(&self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        // The kernel takes a limited number, and those at the beginning may have no room.
        let empty = buffers.iter().take_while(|buffer| buffer.is_empty());
        let begin = empty.count();
        let end = buffers.len().min(begin + libc::UIO_MAXIOV as usize);
        let buffers = &mut buffers[begin..end];
        let room: usize = buffers.iter().map(|buffer| buffer.len()).sum();
        if room == 0 {
            return Ok(0);
        }
        let waiting = self.reading();
        poll_fn(|context| {
            self.source
                .poll_read(context, waiting.seat(), |mut socket| {
                    let count = socket.read_vectored(buffers)?;
                    let drained = self.short_read == ShortRead::Drains && count < room;
                    Ok((count, drained))
                })
        })
        .await
    }

    pub(crate) async fn read_with<T>(&self, use_bytes: impl FnOnce(&[u8]) -> T) -> io::Result<T> {
        let mut use_bytes = Some(use_bytes);
        let _waiting = self.reading();
        poll_fn(|context| {
            self.poll_read_with(context, |bytes| {
                let use_bytes = use_bytes.take().expect("one read ends the future");
                use_bytes(bytes)
            })
        })
        .await
    }

    pub(crate) fn poll_read_with<T>(
        &self,
        context: &mut Context<'_>,
        use_bytes: impl FnOnce(&[u8]) -> T,
    ) -> Poll<io::Result<T>> {
        let drains = self.short_read == ShortRead::Drains;
        self.source.poll_read_in_place(context, drains, use_bytes)
    }

    /// See [`Source::poll_read_behind`].
    #[cfg(feature = "tls")]
    pub(crate) fn poll_read_behind<T>(
        &self,
        context: &mut Context<'_>,
        before: &[u8],
        limit: usize,
        use_bytes: impl FnOnce(&mut [u8], usize) -> T,
    ) -> Poll<io::Result<T>> {
        let drains = self.short_read == ShortRead::Drains;
        self.source
            .poll_read_behind(context, drains, before, limit, use_bytes)
    }

    /// Reads by any call, which may leave something behind.
    #[cfg(feature = "tls")]
    pub(super) fn poll_call<T>(
        &self,
        context: &mut Context<'_>,
        mut read: impl FnMut(&Socket) -> io::Result<T>,
    ) -> Poll<io::Result<T>> {
        self.source.poll_read(context, &Seat::alone(), |socket| {
            read(socket).map(|result| (result, false))
        })
    }

    /// The same, into the thread's buffer.
    #[cfg(feature = "tls")]
    pub(super) fn poll_call_with<R, T>(
        &self,
        context: &mut Context<'_>,
        read: impl FnMut(&Socket, &mut [u8]) -> io::Result<R>,
        use_bytes: impl FnOnce(R, &[u8]) -> T,
    ) -> Poll<io::Result<T>> {
        self.source.poll_call_in_place(context, read, use_bytes)
    }

    /// Writes by any call.
    #[cfg(feature = "tls")]
    pub(crate) fn poll_call_to_write<T>(
        &self,
        context: &mut Context<'_>,
        seat: &Seat,
        mut write: impl FnMut(&Socket) -> io::Result<T>,
    ) -> Poll<io::Result<T>> {
        self.source.poll_write(context, seat, |socket| {
            write(socket).map(|result| (result, true))
        })
    }

    /// Registers a future that waits to read. There is one at a time.
    pub(crate) fn reading(&self) -> Waiting<'_> {
        self.source.reading(Seat::alone())
    }

    /// Registers a future that waits to write. There is one at a time.
    pub(crate) fn writing(&self) -> Waiting<'_> {
        self.source.writing(Seat::alone())
    }

    /// Registers a future that waits to write at the same time as another one, in its own seat.
    #[cfg(feature = "tls")]
    pub(crate) fn writing_in<'c>(&'c self, seat: &'c Seat) -> Waiting<'c, &'c Seat> {
        self.source.writing(seat)
    }

    /// Fails if waiting would fail.
    #[cfg(feature = "tls")]
    pub(crate) fn check_here(&self) -> io::Result<()> {
        self.source.check_here()
    }

    pub(crate) fn activity(&self) -> Activity {
        self.source.activity()
    }

    /// Whether a read has brought something.
    pub(crate) fn has_read(&self) -> bool {
        self.source.has_read()
    }

    pub(crate) fn until(&self, end: End) -> Closed {
        self.source.until(end)
    }

    pub(crate) fn recheck(&self) -> Recheck {
        self.source.recheck()
    }

    /// See [`Recheck::poll`].
    pub(crate) fn poll_rechecked(&self, context: &mut Context<'_>, asked: &mut Asked) -> Poll<()> {
        self.source.poll_rechecked(context, asked)
    }

    pub(crate) async fn write<B: Buf>(&self, mut buffer: B) -> (io::Result<usize>, B) {
        let _waiting = self.writing();
        let result = poll_fn(|context| self.poll_write_from(context, &mut buffer)).await;
        (result, buffer)
    }

    pub(crate) async fn write_all<B: Buf>(&self, mut buffer: B) -> (io::Result<()>, B) {
        let _waiting = self.writing();
        while buffer.has_remaining() {
            match poll_fn(|context| self.poll_write_from(context, &mut buffer)).await {
                Ok(0) => return (Err(io::ErrorKind::WriteZero.into()), buffer),
                Ok(_) => {}
                Err(error) => return (Err(error), buffer),
            }
        }
        (Ok(()), buffer)
    }

    pub(crate) async fn write_all_zero_copy(&self, mut bytes: Bytes) -> (io::Result<()>, Bytes) {
        while bytes.len() >= ZERO_COPY_BYTES_MIN && self.may_send_zero_copy() {
            let part = bytes.slice(..bytes.len().min(ZERO_COPY_BYTES_MAX));
            match self.send_zero_copy(part).await {
                Ok(0) => return (Err(io::ErrorKind::WriteZero.into()), bytes),
                Ok(count) => bytes.advance(count),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return (Err(error), bytes),
            }
        }
        self.write_all(bytes).await
    }

    /// Sends without a copy, and waits for the result. The driver owns the memory until the kernel has finished.
    async fn send_zero_copy(&self, bytes: Bytes) -> io::Result<usize> {
        let operation = Operation::submit(Op::SendZeroCopy {
            // SAFETY: the source closes the socket, but first cancels the operations on it, and makes sure that the
            // kernel knows (`Shared::retire`). The driver has the only copy of this: when the operation is over, nothing
            // of it is kept (`Shared::dispatch`).
            fd: unsafe { SharedFd::borrow_raw(self.socket().as_raw_fd()) },
            bytes: ringloop_driver::Bytes::new(Lent::new(bytes)),
            // Without MSG_WAITALL, a connection whose peer reads slowly does not count as idle.
            flags: 0,
        })?;
        let mut unanswered = Unanswered {
            operation: Some(operation),
            core: self,
        };
        let count = poll_fn(|context| {
            let operation = unanswered.operation.as_ref();
            let operation = operation.expect("it is taken below");
            operation.poll_next(context)
        })
        .await;
        let count = count.unwrap_or_else(|| Err(io::ErrorKind::WriteZero.into()))?;
        self.source.note_activity();
        let asked = unanswered.operation.take().map(Box::new);
        self.zero_copy
            .set(asked.map_or_else(ZeroCopy::default, ZeroCopy::Asked));
        Ok(count as usize)
    }

    /// Whether to try it, judging by what the last operation reported.
    fn may_send_zero_copy(&self) -> bool {
        let known = match self.zero_copy.take() {
            ZeroCopy::Asked(operation) => match operation.try_next() {
                Some(Ok(last)) if last == SENT_BY_COPY as u32 => ZeroCopy::Copies,
                Some(_) => ZeroCopy::Possible,
                None => ZeroCopy::Asked(operation),
            },
            known => known,
        };
        let may = !matches!(known, ZeroCopy::Copies);
        self.zero_copy.set(known);
        may
    }

    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.source
            .try_call(Direction::Write, |socket| sys::send(socket.as_fd(), bytes))
    }

    pub(crate) fn try_read(&self, buffer: &mut impl ReadBuffer) -> io::Result<usize> {
        if buffer.room() == 0 {
            return Ok(0);
        }
        self.source.try_call(Direction::Read, |socket| {
            receive_into(socket, buffer, sys::receive)
        })
    }

    pub(crate) async fn peek<B: ReadBuffer>(&self, mut buffer: B) -> (io::Result<usize>, B) {
        if buffer.room() == 0 {
            return (Ok(0), buffer);
        }
        let peeked = self
            .source
            .peek(|socket| receive_into(socket, &mut buffer, sys::peek));
        (peeked.await, buffer)
    }

    pub(crate) async fn ready(&self, direction: Direction) -> io::Result<()> {
        self.source.ready(direction).await.map(drop)
    }

    pub(crate) fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.socket().shutdown(how)
    }

    /// Shuts down writing. As the traits of other libraries require, it is not an error if the connection is gone.
    pub(crate) fn finish(&self) -> io::Result<()> {
        match self.shutdown(Shutdown::Write) {
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
            result => result,
        }
    }

    pub(crate) fn poll_read_into(
        &self,
        context: &mut Context<'_>,
        buffer: &mut impl ReadBuffer,
    ) -> Poll<io::Result<usize>> {
        if buffer.room() == 0 {
            ready!(budget::poll(context));
            return Poll::Ready(Ok(0));
        }
        self.source.poll_read(context, &Seat::alone(), |socket| {
            let room = spare(buffer).len();
            let count = receive_into(socket, buffer, sys::receive)?;
            Ok((count, self.short_read == ShortRead::Drains && count < room))
        })
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
        self.poll_write_in(context, &Seat::alone(), bytes)
    }

    /// Writes for a future with its own seat, see [`writing_in`](Self::writing_in).
    pub(crate) fn poll_write_in(
        &self,
        context: &mut Context<'_>,
        seat: &Seat,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.source.poll_write(context, seat, |socket| {
            let count = sys::send(socket.as_fd(), bytes)?;
            Ok((count, count == bytes.len()))
        })
    }

    /// Reads by a call of the caller's, which must not wait, and returns whether it has left nothing behind.
    pub(crate) fn poll_read_by<T>(
        &self,
        context: &mut Context<'_>,
        mut read: impl FnMut(BorrowedFd<'_>) -> io::Result<(T, bool)>,
    ) -> Poll<io::Result<T>> {
        self.source
            .poll_read(context, &Seat::alone(), |socket| read(socket.as_fd()))
    }

    /// Writes by a call of the caller's, which must not wait. It is called again until it fails with `WouldBlock`.
    pub(crate) fn poll_write_by<T>(
        &self,
        context: &mut Context<'_>,
        mut write: impl FnMut(BorrowedFd<'_>) -> io::Result<T>,
    ) -> Poll<io::Result<T>> {
        self.source.poll_write(context, &Seat::alone(), |socket| {
            // A count below what was wanted may be the end of a file.
            Ok((write(socket.as_fd())?, true))
        })
    }

    pub(crate) fn poll_write_pieces(
        &self,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let begin = pieces.iter().take_while(|piece| piece.is_empty()).count();
        let end = pieces.len().min(begin + PIECES_MAX);
        let pieces = &pieces[begin..end];
        let wanted: usize = pieces.iter().map(|piece| piece.len()).sum();
        self.source.poll_write(context, &Seat::alone(), |socket| {
            let count = socket.send_vectored_with_flags(pieces, libc::MSG_NOSIGNAL)?;
            Ok((count, count == wanted))
        })
    }
}

/// Receives into the next piece of a buffer by the given call.
fn receive_into(
    socket: &Socket,
    buffer: &mut impl ReadBuffer,
    receive: impl FnOnce(BorrowedFd<'_>, &mut [MaybeUninit<u8>]) -> io::Result<usize>,
) -> io::Result<usize> {
    // SAFETY: the bytes are only written: receiving reads nothing from them.
    let room = unsafe { spare(buffer).as_uninit_slice_mut() };
    let count = receive(socket.as_fd(), room)?;
    // SAFETY: recv(2) has filled that many bytes of the piece.
    unsafe { buffer.advance_mut(count) };
    Ok(count)
}

/// Writes part of a buffer, in one piece if it consists of one, and advances it by what was written.
pub(crate) fn poll_write_buffer(
    context: &mut Context<'_>,
    buffer: &mut impl Buf,
    write: impl FnOnce(&mut Context<'_>, &[u8]) -> Poll<io::Result<usize>>,
    write_pieces: impl FnOnce(&mut Context<'_>, &[IoSlice<'_>]) -> Poll<io::Result<usize>>,
) -> Poll<io::Result<usize>> {
    let first = buffer.chunk();
    let count = if first.len() == buffer.remaining() {
        ready!(write(context, first))?
    } else {
        let mut pieces = [IoSlice::new(&[]); PIECES_MAX];
        let filled = buffer.chunks_vectored(&mut pieces);
        ready!(write_pieces(context, &pieces[..filled]))?
    };
    buffer.advance(count);
    Poll::Ready(Ok(count))
}

impl fmt::Debug for Core {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.source.fmt(formatter)
    }
}

impl AsFd for Core {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket().as_fd()
    }
}
