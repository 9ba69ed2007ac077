//! What tasks wait for: descriptors that are watched, and operations in flight.

#![allow(unsafe_code)]

mod waiters;

use std::borrow::Borrow;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::pin::Pin;
use std::ptr;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use ringloop_driver::{BackendKind, Driver, Event, Interest, Mode, Op, Readiness, Token};

use crate::panics;
use crate::runtime::Shared;
use crate::sys;
use waiters::Waiters;
pub(crate) use waiters::{Seat, Waiting};

/// What a read in place uses while the thread's own buffer is lent.
const NESTED_BUFFER_BYTES: usize = 16 * 1024;

/// By the index of its token, whom an event concerns.
pub(crate) struct Sources {
    entries: RefCell<Vec<Option<Entry>>>,
    live: Cell<usize>,
    /// Descriptors whose watches are cancelled, to be closed when the kernel has been told.
    retired: RefCell<Vec<OwnedFd>>,
    /// Bytes that the driver has given back.
    returned: RefCell<Vec<Bytes>>,
}

/// Bytes that are lent to the driver. Their owner may be of the user's making, and its destructor must not run while the
/// reactor is borrowed: it is put off to the end of the turn.
pub(crate) struct Lent(Option<Bytes>);

impl Lent {
    pub(crate) fn new(bytes: Bytes) -> Self {
        Self(Some(bytes))
    }
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        self.0.as_deref().unwrap_or_default()
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(shared) = Shared::try_current() {
            shared.sources.returned.borrow_mut().extend(self.0.take());
        }
    }
}

struct Entry {
    token: Token,
    kind: Kind,
}

enum Kind {
    Watch(Rc<Watched>),
    Operation(Rc<InFlight>),
}

/// What is known of a watched descriptor.
#[derive(Default)]
struct Watched {
    readable: Cell<bool>,
    writable: Cell<bool>,
    /// Short reads say nothing from here on: the peer has finished sending, which is announced once, perhaps together with
    /// the last data; or it has sent urgent data, at which a read ends.
    short_reads_leave: Cell<bool>,
    /// Bytes have moved since somebody asked.
    has_moved: Cell<bool>,
    /// Somebody has asked for a read by a call, whatever is known, and none has brought anything since.
    is_rechecked: Cell<bool>,
    reader: Waiters,
    writer: Waiters,
}

/// What an operation has come to.
struct InFlight {
    results: RefCell<VecDeque<i32>>,
    /// The operation itself, after its last event.
    finished: RefCell<Option<Op>>,
    is_over: Cell<bool>,
    waiter: Cell<Option<Waker>>,
}

impl Sources {
    /// With memory for so many watches and operations.
    pub(crate) fn new(slots: usize) -> Self {
        Self {
            entries: RefCell::new(Vec::with_capacity(slots)),
            live: Cell::new(0),
            retired: RefCell::new(Vec::new()),
            returned: RefCell::new(Vec::new()),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.live.get()
    }

    /// Forgets all of them, where no event will come any more.
    pub(crate) fn clear(&self) {
        let entries = self.entries.take();
        self.live.set(0);
        // Wakers may be of the users' making, and come back here.
        drop(entries);
    }

    fn insert(&self, token: Token, kind: Kind) {
        let index = token.index() as usize;
        let mut entries = self.entries.borrow_mut();
        if entries.len() <= index {
            entries.resize_with(index + 1, || None);
        }
        entries[index] = Some(Entry { token, kind });
        self.live.set(self.live.get() + 1);
    }

    fn remove(&self, token: Token) {
        let mut entries = self.entries.borrow_mut();
        if let Some(slot) = entries.get_mut(token.index() as usize)
            && slot.as_ref().is_some_and(|entry| entry.token == token)
        {
            *slot = None;
            self.live.set(self.live.get() - 1);
        }
    }
}

impl Shared {
    /// Wakes whoever waits for an event.
    pub(crate) fn dispatch(&self, event: Event) {
        let entries = self.sources.entries.borrow();
        let Some(Some(entry)) = entries.get(event.token.index() as usize) else {
            return;
        };
        if entry.token != event.token {
            return;
        }
        match &entry.kind {
            Kind::Watch(watched) => {
                let watched = Rc::clone(watched);
                drop(entries);
                watched.report(event.readiness());
            }
            Kind::Operation(operation) => {
                let operation = Rc::clone(operation);
                drop(entries);
                operation.results.borrow_mut().push_back(event.result);
                if event.is_more() {
                    self.io_counters.completed();
                } else {
                    operation.is_over.set(true);
                    let finished = self
                        .with_driver(|driver| driver.take(event.token))
                        .flatten();
                    match finished {
                        // Nobody wants the bytes back, whose way the last event tells of, or an error.
                        Some(Op::SendZeroCopy { .. }) if event.result >= 0 => {}
                        Some(Op::SendZeroCopy { .. }) => self.io_counters.completed(),
                        finished => {
                            self.io_counters.completed();
                            *operation.finished.borrow_mut() = finished;
                        }
                    }
                    self.sources.remove(event.token);
                }
                if let Some(waiter) = operation.waiter.take() {
                    waiter.wake();
                }
            }
        }
    }

    /// Drops what the driver has given back.
    pub(crate) fn drop_returned(&self) {
        if self.sources.returned.borrow().is_empty() {
            return;
        }
        let returned = self.sources.returned.take();
        for bytes in returned {
            panics::discard(bytes);
        }
    }

    /// Tells the kernel of dropped watches, and closes their descriptors.
    pub(crate) fn close_retired(&self) {
        if !self.sources.retired.borrow().is_empty() {
            self.let_go();
        }
    }

    /// Tells the kernel of all that was dropped, so that its sockets are closed: where no turn follows.
    pub(crate) fn let_go(&self) {
        let flushed = self.with_driver(Driver::flush).unwrap_or(Ok(()));
        // Where the kernel takes nothing more for the moment, it may still look the descriptors up: they stay until it has.
        if flushed.is_ok() {
            self.sources.retired.borrow_mut().clear();
        }
    }

    fn retire(&self, token: Token, descriptor: OwnedFd) {
        self.sources.remove(token);
        let is_told = self.with_driver(|driver| {
            // Fails after fork only, where the parent's watches are none of ours.
            drop(driver.unwatch(token));
            // Of a future that was not dropped but forgotten.
            driver.cancel_fd(descriptor.as_raw_fd());
            driver.backend() == BackendKind::Epoll
        });
        // With its runtime all its watches have ended.
        if is_told.unwrap_or(true) {
            return;
        }
        self.sources.retired.borrow_mut().push(descriptor);
        if !self.is_running() {
            self.let_go();
        }
    }
}

impl Watched {
    fn report(&self, readiness: Readiness) {
        if readiness.is_read_closed() || readiness.is_error() || readiness.is_priority() {
            self.short_reads_leave.set(true);
        }
        if readiness.is_readable() {
            self.readable.set(true);
            self.reader.wake();
        }
        // Most events find it writable still, and nobody waits for what is there.
        if readiness.is_writable() && !self.writable.replace(true) {
            self.writer.wake();
        }
    }
}

impl Watched {
    /// Pending, and the task is woken, until reading was tried since a read last brought something: what has come may not
    /// have been reported yet. Who reads nothing waits for no more than a turn.
    fn poll_rechecked(&self, context: &mut Context<'_>) -> Poll<()> {
        if self.is_rechecked.replace(true) {
            return Poll::Ready(());
        }
        self.readable.set(true);
        // Before the one that asks, who may be another one.
        self.reader.wake();
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

/// Puts a waker into the place of an operation's, unless it is there already.
fn register(place: &Cell<Option<Waker>>, context: &Context<'_>) {
    let waker = match place.take() {
        Some(waker) if waker.will_wake(context.waker()) => waker,
        _ => context.waker().clone(),
    };
    place.set(Some(waker));
}

/// What makes futures of a source wait, in the runtime that it was made in.
///
/// The watch is edge-triggered: what was ready stays so in our books until a call says `WouldBlock` or moves less than it could
/// have. It ends with [`retire`](Self::retire), and not by itself.
pub(crate) struct Watch {
    shared: Rc<Shared>,
    watched: Rc<Watched>,
    token: Token,
}

impl Watch {
    /// Watches a descriptor, which must not block, in the runtime that runs in this thread.
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

    /// Ends the watch, and closes the descriptor when the kernel has been told of that.
    pub(crate) fn retire(&self, descriptor: OwnedFd) {
        self.shared.retire(self.token, descriptor);
    }

    /// Assumes that there is something to read until a call says otherwise.
    pub(crate) fn assume_readable(&self) {
        self.watched.readable.set(true);
    }

    /// For a future that waits to read.
    pub(crate) fn reading<T: Borrow<Seat>>(&self, seat: T) -> Waiting<'_, T> {
        Waiting::new(&self.watched.reader, seat)
    }

    /// For a future that waits to write.
    fn writing<T: Borrow<Seat>>(&self, seat: T) -> Waiting<'_, T> {
        Waiting::new(&self.watched.writer, seat)
    }

    /// Reads by `read` as soon as there is something. `read` returns its result, and whether it left nothing behind.
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
                    watched.has_moved.set(true);
                    watched.is_rechecked.set(false);
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

    /// Writes by `write` as soon as there is room. `write` returns its result, and whether there may be more room.
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
                    watched.has_moved.set(true);
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

    /// Whether the task may go on: it has not had its share, and is one of the runtime that tells the source's events.
    fn poll_turn(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check_here()?;
        self.shared.poll_budget(context).map(Ok)
    }

    fn check_here(&self) -> io::Result<()> {
        if self.shared.is_current() {
            Ok(())
        } else {
            Err(elsewhere())
        }
    }
}

/// Says why something would be waited for in vain.
fn elsewhere() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidInput,
        "this belongs to another runtime than the one that runs here: make it in the block_on, or in a task, that uses it",
    )
}

/// A descriptor that is watched for both directions while this lives.
pub(crate) struct Source<S: Into<OwnedFd>> {
    watch: Watch,
    /// `None` only while it is dropped.
    inner: Option<S>,
}

impl<S: AsFd + Into<OwnedFd>> Source<S> {
    /// As [`Watch::new`].
    pub(crate) fn new(inner: S, interest: Interest) -> io::Result<Self> {
        Ok(Self {
            watch: Watch::new(inner.as_fd(), interest)?,
            inner: Some(inner),
        })
    }

    /// Says that bytes have moved by other ways than this one's.
    pub(crate) fn note_activity(&self) {
        self.watch.watched.has_moved.set(true);
    }

    /// With which others see whether it is in use.
    pub(crate) fn activity(&self) -> Activity {
        Activity(Rc::clone(&self.watch.watched))
    }

    /// With which others have it read again.
    pub(crate) fn recheck(&self) -> Recheck {
        Recheck(Rc::downgrade(&self.watch.watched))
    }

    pub(crate) fn get(&self) -> &S {
        self.inner.as_ref().expect("it is there until the drop")
    }

    /// Whether a write would be tried.
    pub(crate) fn is_writable(&self) -> bool {
        self.watch.watched.writable.get()
    }

    /// Assumes that writing will not block until it does: true of a new connection.
    pub(crate) fn assume_writable(&self) {
        self.watch.watched.writable.set(true);
    }

    /// Fails where waiting would.
    #[cfg(feature = "tls")]
    pub(crate) fn check_here(&self) -> io::Result<()> {
        self.watch.check_here()
    }

    /// As [`Recheck::poll`].
    pub(crate) fn poll_rechecked(&self, context: &mut Context<'_>) -> Poll<()> {
        ready!(self.watch.shared.poll_budget(context));
        self.watch.watched.poll_rechecked(context)
    }

    /// Makes a system call that reads or writes, without waiting.
    pub(crate) fn call<T>(&self, mut call: impl FnMut(&S) -> io::Result<T>) -> io::Result<T> {
        self.watch.shared.io_counters.call(|| call(self.get()))
    }

    /// For a future that waits to read.
    pub(crate) fn reading<T: Borrow<Seat>>(&self, seat: T) -> Waiting<'_, T> {
        self.watch.reading(seat)
    }

    /// For a future that waits to write.
    pub(crate) fn writing<T: Borrow<Seat>>(&self, seat: T) -> Waiting<'_, T> {
        self.watch.writing(seat)
    }

    /// As [`Watch::poll_read`].
    pub(crate) fn poll_read<T>(
        &self,
        context: &mut Context<'_>,
        seat: &Seat,
        mut read: impl FnMut(&S) -> io::Result<(T, bool)>,
    ) -> Poll<io::Result<T>> {
        self.watch.poll_read(context, seat, || read(self.get()))
    }

    /// As [`Watch::poll_write`].
    pub(crate) fn poll_write<T>(
        &self,
        context: &mut Context<'_>,
        seat: &Seat,
        mut write: impl FnMut(&S) -> io::Result<(T, bool)>,
    ) -> Poll<io::Result<T>> {
        self.watch.poll_write(context, seat, || write(self.get()))
    }

    /// Reads into the thread's buffer as soon as there is something, and hands it on. `short_drains`: a read that does not
    /// fill the buffer leaves nothing behind.
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

    /// Reads as soon as there is something, behind bytes that were left over from before, and hands on all of it, which may
    /// be changed. Says how much was read, at most `limit` bytes.
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

    /// Waits until there is room to write, or an error to be told of.
    pub(crate) async fn writable(&self) -> io::Result<()> {
        poll_fn(|context| {
            if self.is_writable() {
                return Poll::Ready(Ok(()));
            }
            ready!(self.watch.poll_turn(context))?;
            self.watch.watched.writer.register(&Seat::alone(), context);
            Poll::Pending
        })
        .await
    }
}

/// Receives into a buffer that is initialised, and stays so.
fn receive(socket: &impl AsFd, buffer: &mut [u8]) -> io::Result<usize> {
    // SAFETY: only received bytes are written to it.
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

/// The thread's buffer, or one in its stead; the thread has it back in the end, also if a panic passes by.
struct HotBuffer<'s> {
    buffer: Box<[u8]>,
    home: Option<&'s Cell<Option<Box<[u8]>>>>,
}

impl<'s> HotBuffer<'s> {
    /// `least`: what it must have room for. `otherwise`: how large another one is.
    fn lend(shared: &'s Shared, least: usize, otherwise: usize) -> Self {
        match shared.hot_buffer.take() {
            Some(buffer) if buffer.len() >= least => Self {
                buffer,
                home: Some(&shared.hot_buffer),
            },
            // It was chosen very small, or this is a read in place inside of another one's closure.
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

/// Whether a source is in use, seen from aside.
pub(crate) struct Activity(Rc<Watched>);

impl Activity {
    /// Whether bytes have moved, in either direction, since this was last asked.
    pub(crate) fn take(&self) -> bool {
        self.0.has_moved.take()
    }

    /// Whether the source is gone.
    pub(crate) fn is_over(&self) -> bool {
        Rc::strong_count(&self.0) == 1
    }
}

/// Has a source read again, from aside.
#[derive(Clone)]
pub(crate) struct Recheck(Weak<Watched>);

impl Recheck {
    /// Ready when nothing waits to be read that had come by now, as far as anybody reads; or when the source is gone.
    /// A task that has had its share has not read on: it is put off.
    pub(crate) fn poll(&self, context: &mut Context<'_>) -> Poll<()> {
        if let Some(shared) = Shared::try_current() {
            ready!(shared.poll_budget(context));
        }
        match self.0.upgrade() {
            Some(watched) => watched.poll_rechecked(context),
            None => Poll::Ready(()),
        }
    }
}

/// An operation in flight. Dropping it cancels the operation; its buffers live until the kernel lets go.
pub(crate) struct Operation {
    shared: Rc<Shared>,
    state: Rc<InFlight>,
    token: Token,
    /// Results that nobody takes are descriptors that nobody would close.
    brings_descriptors: bool,
}

impl Operation {
    /// Begins an operation in the runtime that runs in this thread.
    pub(crate) fn submit(op: Op) -> io::Result<Self> {
        let shared = Shared::current();
        let brings_descriptors = matches!(op, Op::Accept { .. } | Op::OpenAt { .. });
        let token = shared
            .with_driver(|driver| driver.submit(op))
            .ok_or_else(elsewhere)??;
        shared.io_counters.submitted();
        let state = Rc::new(InFlight {
            results: RefCell::new(VecDeque::new()),
            finished: RefCell::new(None),
            is_over: Cell::new(false),
            waiter: Cell::new(None),
        });
        shared
            .sources
            .insert(token, Kind::Operation(Rc::clone(&state)));
        Ok(Self {
            shared,
            state,
            token,
            brings_descriptors,
        })
    }

    /// The next result of an operation that has several; `None` after the last.
    pub(crate) fn poll_next(&self, context: &mut Context<'_>) -> Poll<Option<io::Result<u32>>> {
        if let Some(result) = self.state.results.borrow_mut().pop_front() {
            return Poll::Ready(Some(result_of(result)));
        }
        if self.state.is_over.get() {
            return Poll::Ready(None);
        }
        if !self.shared.is_current() {
            return Poll::Ready(Some(Err(elsewhere())));
        }
        register(&self.state.waiter, context);
        Poll::Pending
    }

    /// A result that has come already.
    pub(crate) fn try_next(&self) -> Option<io::Result<u32>> {
        self.state.results.borrow_mut().pop_front().map(result_of)
    }

    /// Ends the operation before anything else is done with what it works on. Fails if the kernel takes no cancel for the
    /// moment, so that it may go on.
    pub(crate) fn cancel_now(self) -> io::Result<()> {
        let shared = Rc::clone(&self.shared);
        drop(self);
        shared.with_driver(Driver::flush).unwrap_or(Ok(()))
    }
}

/// Waits for the only result, and gives the operation back with it.
impl Future for Operation {
    type Output = (io::Result<u32>, Option<Op>);

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.state.is_over.get()
            && let Some(result) = self.state.results.borrow_mut().pop_front()
        {
            return Poll::Ready((result_of(result), self.state.finished.take()));
        }
        if !self.shared.is_current() {
            return Poll::Ready((Err(elsewhere()), None));
        }
        register(&self.state.waiter, context);
        Poll::Pending
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        if self.brings_descriptors {
            for descriptor in self.state.results.take() {
                // SAFETY: results of the driver's that are not negative are new descriptors here, each of which was
                // reported once; nobody has taken this one.
                drop((descriptor >= 0).then(|| unsafe { OwnedFd::from_raw_fd(descriptor) }));
            }
        }
        if !self.state.is_over.get() {
            self.shared.sources.remove(self.token);
            self.shared.with_driver(|driver| driver.discard(self.token));
            if !self.shared.is_running() {
                self.shared.let_go();
            }
        }
    }
}

fn result_of(result: i32) -> io::Result<u32> {
    u32::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result))
}
