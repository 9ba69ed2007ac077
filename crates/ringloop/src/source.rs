//! Sources that futures wait for: watched descriptors, and operations in flight.

#![allow(unsafe_code)]

mod closed;
mod operation;
mod readiness;

use std::borrow::Borrow;
use std::cell::Cell;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, ready};

use ringloop_driver::{Interest, Mode, Token};

use crate::budget;
pub(crate) use crate::shared::{
    Asked, End, Lent, Observer, Seat, Waiting, are_any_retired, reclaiming,
};
use crate::shared::{Kind, Shared, Watched, elsewhere};
use crate::sys;
pub use closed::Closed;
pub(crate) use operation::Operation;
pub(crate) use readiness::{Direction, Reports, check_runtime};

/// The size of the buffer for a read in place while the thread's own buffer is lent.
const NESTED_BUFFER_BYTES: usize = 16 * 1024;

/// Makes futures wait for a descriptor, in the runtime that the watch was created in.
///
/// The watch is edge-triggered: a descriptor counts as ready until a call returns `WouldBlock`, or moves less than it
/// could have. Dropping the watch does not end it; call [`retire`](Self::retire).
pub(crate) struct Watch {
    shared: Rc<Shared>,
    watched: Rc<Watched>,
    token: Token,
}

impl Watch {
    /// Watches a descriptor, which must be non-blocking, in the current runtime.
    pub(crate) fn new(descriptor: BorrowedFd<'_>, interest: Interest) -> io::Result<Self> {
        let shared = Shared::current();
        let token = shared
            .with_driver(|driver| driver.watch(descriptor.as_raw_fd(), interest, Mode::Edge))
            .ok_or_else(elsewhere)??;
        let watched = Rc::new(Watched::default());
        shared
            .sources
            .insert(token, Kind::Watch(Rc::clone(&watched)));
        Ok(Self {
            shared,
            watched,
            token,
        })
    }

    /// Ends the watch, and closes the descriptor when the kernel has been told.
    pub(crate) fn retire(&self, descriptor: OwnedFd) {
        self.shared.retire(self.token, descriptor);
        self.watched.end();
    }

    /// Ends the watch, and returns what it was on. If the kernel cannot be told, that is closed once it has been.
    pub(crate) fn release<S: AsFd + Into<OwnedFd>>(&self, watched: S) -> io::Result<S> {
        if let Err(error) = self.shared.release(self.token, watched.as_fd()) {
            self.retire(watched.into());
            return Err(error);
        }
        self.watched.end();
        Ok(watched)
    }

    /// Assumes that there is something to read, until a call says otherwise.
    pub(crate) fn assume_readable(&self) {
        self.watched.readable.set(true);
    }

    /// Registers a future that waits to read.
    pub(crate) fn reading<T: Borrow<Seat>>(&self, seat: T) -> Waiting<'_, T> {
        Waiting::new(&self.watched.reader, seat)
    }

    /// Registers a future that waits to write.
    fn writing<T: Borrow<Seat>>(&self, seat: T) -> Waiting<'_, T> {
        Waiting::new(&self.watched.writer, seat)
    }

    /// Calls `read` as soon as there is something to read. `read` returns its result, and whether it has left nothing
    /// behind.
    pub(crate) fn poll_read<T>(
        &self,
        context: &mut Context<'_>,
        seat: &Seat,
        read: impl FnMut() -> io::Result<(T, bool)>,
    ) -> Poll<io::Result<T>> {
        let watched = &*self.watched;
        ready!(self.poll_turn(context))?;
        if watched.readable.get() {
            match self.shared.io_counters.call(read) {
                Ok((result, drained)) => {
                    watched.moved.set(Observer::ALL);
                    watched.reads.set(watched.reads.get().wrapping_add(1));
                    if drained && !watched.short_reads_leave.get() {
                        watched.readable.set(false);
                    }
                    return Poll::Ready(Ok(result));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    watched.readable.set(false);
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        watched.reader.register(seat, context);
        Poll::Pending
    }

    /// Calls `write` as soon as there is room. `write` returns its result, and whether there may be more room.
    fn poll_write<T>(
        &self,
        context: &mut Context<'_>,
        seat: &Seat,
        write: impl FnMut() -> io::Result<(T, bool)>,
    ) -> Poll<io::Result<T>> {
        let watched = &*self.watched;
        ready!(self.poll_turn(context))?;
        if watched.writable.get() {
            match self.shared.io_counters.call(write) {
                Ok((result, has_room)) => {
                    watched.moved.set(Observer::ALL);
                    watched.writable.set(has_room);
                    return Poll::Ready(Ok(result));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    watched.writable.set(false);
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        watched.writer.register(seat, context);
        Poll::Pending
    }

    /// Whether there is something to read since this was last asked. The task is woken when there is more.
    #[cfg(feature = "quinn")]
    fn take_readable(&self, context: &Context<'_>, seat: &Seat) -> bool {
        self.watched.reader.register(seat, context);
        self.watched.readable.take()
    }

    /// Whether there is room to write since this was last asked. The task is woken when there is more.
    #[cfg(feature = "quinn")]
    fn take_writable(&self, context: &Context<'_>, seat: &Seat) -> bool {
        self.watched.writer.register(seat, context);
        self.watched.writable.take()
    }

    /// Ready if the task may go on: it has some of its budget left, and runs in the runtime that receives the source's
    /// events.
    fn poll_turn(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.shared.check_here()?;
        budget::poll(context).map(Ok)
    }
}

/// A descriptor that is watched as long as this exists.
pub(crate) struct Source<S: Into<OwnedFd>> {
    watch: Watch,
    /// `None` only during drop.
    inner: Option<S>,
}

impl<S: AsFd + Into<OwnedFd>> Source<S> {
    /// See [`Watch::new`].
    pub(crate) fn new(inner: S, interest: Interest) -> io::Result<Self> {
        Ok(Self {
            watch: Watch::new(inner.as_fd(), interest)?,
            inner: Some(inner),
        })
    }

    /// See [`Watch::release`].
    pub(crate) fn into_inner(mut self) -> io::Result<S> {
        let inner = self.inner.take().expect("it is there until the drop");
        self.watch.release(inner)
    }

    /// Notes that bytes have moved by a call that this does not see.
    pub(crate) fn note_activity(&self) {
        self.watch.watched.moved.set(Observer::ALL);
    }

    /// Lets others see whether the source is in use.
    pub(crate) fn activity(&self) -> Activity {
        Activity(Rc::clone(&self.watch.watched))
    }

    /// Whether a read has brought something.
    pub(crate) fn has_read(&self) -> bool {
        self.watch.watched.reads.get() > 0
    }

    /// Waits for an end of the source.
    pub(crate) fn until(&self, end: End) -> Closed {
        Closed::new(&self.watch.shared, &self.watch.watched, end)
    }

    /// Lets others request a read.
    pub(crate) fn recheck(&self) -> Recheck {
        Recheck(Rc::downgrade(&self.watch.watched))
    }

    pub(crate) fn get(&self) -> &S {
        self.inner.as_ref().expect("it is there until the drop")
    }

    /// See [`Watch::assume_readable`].
    pub(crate) fn assume_readable(&self) {
        self.watch.assume_readable();
    }

    /// Assumes that writing does not block, until it does. This holds for new connections.
    pub(crate) fn assume_writable(&self) {
        self.watch.watched.writable.set(true);
    }

    /// Fails if waiting would fail.
    #[cfg(feature = "tls")]
    pub(crate) fn check_here(&self) -> io::Result<()> {
        self.watch.shared.check_here()
    }

    /// See [`Recheck::poll`].
    pub(crate) fn poll_rechecked(&self, context: &mut Context<'_>, asked: &mut Asked) -> Poll<()> {
        ready!(budget::poll(context));
        self.watch.watched.poll_rechecked(context, asked)
    }

    /// Makes a system call that reads or writes, without waiting for readiness.
    pub(crate) fn call<T>(&self, mut call: impl FnMut(&S) -> io::Result<T>) -> io::Result<T> {
        self.watch.shared.io_counters.call(|| call(self.get()))
    }

    /// Registers a future that waits to read.
    pub(crate) fn reading<T: Borrow<Seat>>(&self, seat: T) -> Waiting<'_, T> {
        self.watch.reading(seat)
    }

    /// Registers a future that waits to write.
    pub(crate) fn writing<T: Borrow<Seat>>(&self, seat: T) -> Waiting<'_, T> {
        self.watch.writing(seat)
    }

    /// See [`Watch::take_readable`].
    #[cfg(feature = "quinn")]
    pub(crate) fn take_readable(&self, context: &Context<'_>, seat: &Seat) -> bool {
        self.watch.take_readable(context, seat)
    }

    /// See [`Watch::take_writable`].
    #[cfg(feature = "quinn")]
    pub(crate) fn take_writable(&self, context: &Context<'_>, seat: &Seat) -> bool {
        self.watch.take_writable(context, seat)
    }

    /// See [`Watch::poll_read`].
    pub(crate) fn poll_read<T>(
        &self,
        context: &mut Context<'_>,
        seat: &Seat,
        mut read: impl FnMut(&S) -> io::Result<(T, bool)>,
    ) -> Poll<io::Result<T>> {
        self.watch.poll_read(context, seat, || read(self.get()))
    }

    /// See [`Watch::poll_write`].
    pub(crate) fn poll_write<T>(
        &self,
        context: &mut Context<'_>,
        seat: &Seat,
        mut write: impl FnMut(&S) -> io::Result<(T, bool)>,
    ) -> Poll<io::Result<T>> {
        self.watch.poll_write(context, seat, || write(self.get()))
    }

    /// Calls `write` now, whether or not the source counts as writable, and changes nothing about that: for a write that
    /// also depends on who it goes to. `None` if there is no room; if it is the source that has none, the task is woken when
    /// it has some.
    pub(crate) fn poll_write_to<T>(
        &self,
        context: &mut Context<'_>,
        seat: &Seat,
        mut write: impl FnMut(&S) -> io::Result<T>,
    ) -> Poll<io::Result<Option<T>>> {
        ready!(self.watch.poll_turn(context))?;
        let watched = &*self.watch.watched;
        match self.call(|inner| write(inner)) {
            Ok(result) => {
                watched.moved.set(Observer::ALL);
                Poll::Ready(Ok(Some(result)))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                // If the source itself has room, only the receiver has none. To wait for the source would then be to spin:
                // a send that fails like this frees its datagram again, and the kernel reports that as new room.
                if !sys::is_writable_now(self.get().as_fd())? {
                    watched.writer.register(seat, context);
                }
                Poll::Ready(Ok(None))
            }
            Err(error) => Poll::Ready(Err(error)),
        }
    }

    /// Reads into the thread's buffer as soon as there is something, and passes it to `use_bytes`. `short_drains`:
    /// whether a read that does not fill the buffer has left nothing behind.
    pub(crate) fn poll_read_in_place<T>(
        &self,
        context: &mut Context<'_>,
        short_drains: bool,
        use_bytes: impl FnOnce(&[u8]) -> T,
    ) -> Poll<io::Result<T>> {
        let mut lent = HotBuffer::lend(&self.watch.shared, 1, NESTED_BUFFER_BYTES);
        let buffer = &mut lent.buffer[..];
        let polled = self.poll_read(context, &Seat::alone(), |inner| {
            let count = receive(inner, buffer)?;
            Ok((count, short_drains && count < buffer.len()))
        });
        polled.map_ok(|count| use_bytes(&buffer[..count]))
    }

    /// Calls `read` with the thread's buffer as soon as there is something, and passes its result and the buffer to
    /// `use_bytes`. The read may leave something behind.
    #[cfg(feature = "tls")]
    pub(crate) fn poll_call_in_place<R, T>(
        &self,
        context: &mut Context<'_>,
        mut read: impl FnMut(&S, &mut [u8]) -> io::Result<R>,
        use_bytes: impl FnOnce(R, &[u8]) -> T,
    ) -> Poll<io::Result<T>> {
        let mut lent = HotBuffer::lend(&self.watch.shared, 1, NESTED_BUFFER_BYTES);
        let buffer = &mut lent.buffer[..];
        let polled = self.poll_read(context, &Seat::alone(), |inner| {
            read(inner, buffer).map(|result| (result, false))
        });
        polled.map_ok(|result| use_bytes(result, buffer))
    }

    /// Reads up to `limit` bytes as soon as there is something, and puts them after `before`, the bytes left over from
    /// earlier reads. Passes all of them to `use_bytes`, which may change them, and the number of bytes read.
    #[cfg(feature = "tls")]
    pub(crate) fn poll_read_behind<T>(
        &self,
        context: &mut Context<'_>,
        short_drains: bool,
        before: &[u8],
        limit: usize,
        use_bytes: impl FnOnce(&mut [u8], usize) -> T,
    ) -> Poll<io::Result<T>> {
        let room = limit.min(NESTED_BUFFER_BYTES);
        let mut lent = HotBuffer::lend(
            &self.watch.shared,
            before.len() + room,
            before.len() + limit,
        );
        let end = lent.buffer.len().min(before.len() + limit);
        let buffer = &mut lent.buffer[..end];
        let polled = self.poll_read(context, &Seat::alone(), |inner| {
            let room = &mut buffer[before.len()..];
            let count = receive(inner, room)?;
            Ok((count, short_drains && count < room.len()))
        });
        polled.map_ok(|count| {
            buffer[..before.len()].copy_from_slice(before);
            use_bytes(&mut buffer[..before.len() + count], count)
        })
    }

    /// Waits until there is room to write, or an error to report.
    pub(crate) async fn writable(&self) -> io::Result<()> {
        poll_fn(|context| {
            if self.watch.watched.writable.get() {
                return Poll::Ready(Ok(()));
            }
            ready!(self.watch.poll_turn(context))?;
            self.watch.watched.writer.register(&Seat::alone(), context);
            Poll::Pending
        })
        .await
    }
}

/// Receives into a buffer that is initialised and stays so.
fn receive(socket: &impl AsFd, buffer: &mut [u8]) -> io::Result<usize> {
    // SAFETY: only received bytes are written through it.
    let room = unsafe { &mut *(ptr::from_mut(buffer) as *mut [MaybeUninit<u8>]) };
    sys::receive(socket.as_fd(), room)
}

impl<S: Into<OwnedFd>> Drop for Source<S> {
    fn drop(&mut self) {
        if let Some(inner) = self.inner.take() {
            self.watch.retire(inner.into());
        }
    }
}

impl<S: Into<OwnedFd> + fmt::Debug> fmt::Debug for Source<S> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(formatter)
    }
}

/// The thread's buffer, or another one if that is lent or too small. Dropping this returns the thread's buffer, even
/// during a panic.
struct HotBuffer<'s> {
    buffer: Box<[u8]>,
    home: Option<&'s Cell<Option<Box<[u8]>>>>,
}

impl<'s> HotBuffer<'s> {
    /// `least`: the size that is needed. `otherwise`: the size of another buffer, if one is allocated.
    fn lend(shared: &'s Shared, least: usize, otherwise: usize) -> Self {
        match shared.hot_buffer.take() {
            Some(buffer) if buffer.len() >= least => Self {
                buffer,
                home: Some(&shared.hot_buffer),
            },
            // The buffer was configured to be very small, or this read runs inside the closure of another read in
            // place.
            too_small => {
                shared.hot_buffer.set(too_small);
                Self {
                    buffer: vec![0; otherwise].into_boxed_slice(),
                    home: None,
                }
            }
        }
    }
}

impl Drop for HotBuffer<'_> {
    fn drop(&mut self) {
        if let Some(home) = self.home {
            home.set(Some(std::mem::take(&mut self.buffer)));
        }
    }
}

/// Tells others whether a source is in use.
pub(crate) struct Activity(Rc<Watched>);

impl Activity {
    /// Whether bytes have moved, in either direction, since this observer last asked.
    pub(crate) fn take(&self, observer: Observer) -> bool {
        self.0.take_moved(observer)
    }

    /// Whether the source is gone.
    pub(crate) fn is_over(&self) -> bool {
        Rc::strong_count(&self.0) == 1
    }
}

/// Lets others request that a source is read again.
#[derive(Clone)]
pub(crate) struct Recheck(Weak<Watched>);

impl Recheck {
    /// Counts the reads that have brought something; `None` if the source is gone.
    pub(crate) fn reads(&self) -> Option<u16> {
        self.0.upgrade().map(|watched| watched.reads.get())
    }

    /// Ready when everything that had arrived by the first poll with `asked` was read, if somebody reads; or when the
    /// source is gone. If the reading task has used up its budget, it has not read on, and this waits.
    pub(crate) fn poll(&self, context: &mut Context<'_>, asked: &mut Asked) -> Poll<()> {
        ready!(budget::poll(context));
        match self.0.upgrade() {
            Some(watched) => watched.poll_rechecked(context, asked),
            None => Poll::Ready(()),
        }
    }
}
