//! The table of what a runtime waits for: watched descriptors, and operations in flight.

#![allow(unsafe_code)]

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use ringloop_driver::{BackendKind, Event, Op, Room, Token};
use ringloop_reactor::panics;

use super::watched::Watched;
use super::{Shared, elsewhere};
use crate::buffer::{ReadBuffer, spare};

/// Maps each token to whoever its events concern, by the token's index.
pub(crate) struct Sources {
    entries: RefCell<Vec<Option<Entry>>>,
    live: Cell<usize>,
    /// Descriptors whose watches are cancelled. They are closed when the kernel has been told.
    retired: RefCell<Vec<OwnedFd>>,
    /// Buffers that the driver has given back, to be dropped at the end of the turn.
    returned: RefCell<Vec<Box<dyn Any>>>,
}

/// A buffer that is lent to the driver. It may be of a type of the user's. Its destructor must not run while the reactor is
/// borrowed, so it is deferred to the end of the turn.
pub(crate) struct Lent<B: 'static>(Option<B>);

impl<B: 'static> Lent<B> {
    pub(crate) fn new(buffer: B) -> Self {
        Self(Some(buffer))
    }

    /// The buffer, for its user. It is there.
    pub(crate) fn back(mut self) -> Option<B> {
        self.0.take()
    }
}

impl<B: AsRef<[u8]> + 'static> AsRef<[u8]> for Lent<B> {
    fn as_ref(&self) -> &[u8] {
        self.0.as_ref().map(B::as_ref).unwrap_or_default()
    }
}

impl<B: ReadBuffer + Send + 'static> Room for Lent<B> {
    fn room(&mut self) -> &mut [MaybeUninit<u8>] {
        let Some(buffer) = &mut self.0 else {
            return &mut [];
        };
        // SAFETY: whoever fills it writes initialised bytes.
        unsafe { spare(buffer).as_uninit_slice_mut() }
    }

    unsafe fn filled(&mut self, count: usize) {
        if let Some(buffer) = &mut self.0 {
            // SAFETY: the caller has filled that many bytes of the next piece, and nothing else was done since.
            unsafe { buffer.advance_mut(count) };
        }
    }
}

impl<B: 'static> Drop for Lent<B> {
    fn drop(&mut self) {
        if let Some(shared) = Shared::try_current()
            && let Some(buffer) = self.0.take()
        {
            shared.sources.returned.borrow_mut().push(Box::new(buffer));
        }
    }
}

struct Entry {
    token: Token,
    kind: Kind,
}

/// The source that a token stands for.
pub(crate) enum Kind {
    Watch(Rc<Watched>),
    Operation(Rc<InFlight>),
}

/// How long to wait for the kernel to release operations of a runtime that does not run.
const RECALL_MAX: Duration = Duration::from_secs(1);

/// How long to wait at a time.
const RECALL_STEP: Duration = Duration::from_millis(10);

/// The state and the results of an operation.
#[derive(Default)]
pub(crate) struct InFlight {
    pub(crate) results: RefCell<VecDeque<i32>>,
    /// The operation itself, after its last event.
    pub(crate) finished: RefCell<Option<Op>>,
    pub(crate) is_over: Cell<bool>,
    pub(crate) waiter: Cell<Option<Waker>>,
    /// The file that it has opened.
    pub(crate) opened: Cell<Option<OwnedFd>>,
    /// Whether it has a buffer of the user's, who wants it back in any case.
    pub(crate) owns_buffer: bool,
    /// Whether it was cancelled because its future would wait in vain.
    is_recalled: Cell<bool>,
}

impl Sources {
    /// Reserves memory for this many watches and operations.
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

    /// Forgets all of them, when no more events can come.
    pub(crate) fn clear(&self) {
        let entries = self.entries.take();
        self.live.set(0);
        // Wakers may be of the user's making, and may call back into this.
        for entry in entries.into_iter().flatten() {
            match entry.kind {
                Kind::Watch(watched) => watched.clear(),
                Kind::Operation(operation) => panics::discard(operation.waiter.take()),
            }
        }
    }

    /// The operations whose futures want their buffers back.
    pub(crate) fn owners_of_buffers(&self) -> Vec<(Token, Rc<InFlight>)> {
        let entries = self.entries.borrow();
        let operations = entries.iter().flatten().filter_map(|entry| {
            let Kind::Operation(operation) = &entry.kind else {
                return None;
            };
            (operation.owns_buffer).then(|| (entry.token, Rc::clone(operation)))
        });
        operations.collect()
    }

    pub(crate) fn insert(&self, token: Token, kind: Kind) {
        let index = token.index() as usize;
        let mut entries = self.entries.borrow_mut();
        if entries.len() <= index {
            entries.resize_with(index + 1, || None);
        }
        entries[index] = Some(Entry { token, kind });
        self.live.set(self.live.get() + 1);
    }

    pub(crate) fn remove(&self, token: Token) {
        let mut entries = self.entries.borrow_mut();
        let slot = entries.get_mut(token.index() as usize);
        let entry = slot.and_then(|slot| slot.take_if(|entry| entry.token == token));
        drop(entries);
        if entry.is_some() {
            self.live.set(self.live.get() - 1);
        }
    }
}

impl Shared {
    /// Wakes whoever waits for an event.
    pub(crate) fn dispatch(&self, event: Event) {
        let entries = self.sources.entries.borrow();
        let Some(Some(entry)) = entries.get(event.token().index() as usize) else {
            return;
        };
        if entry.token != event.token() {
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
                operation.results.borrow_mut().push_back(event.result());
                if event.is_more() {
                    self.io_counters.completed();
                } else {
                    operation.is_over.set(true);
                    let finished = self
                        .with_driver(|driver| driver.take(event.token()))
                        .flatten();
                    match finished {
                        // Nobody wants these bytes back. The last event tells how they were sent, or is an error.
                        Some(Op::SendZeroCopy { .. }) if event.result() >= 0 => {}
                        Some(Op::SendZeroCopy { .. }) => self.io_counters.completed(),
                        Some(Op::OpenAt { .. }) => {
                            self.io_counters.completed();
                            let opened = self.with_driver(|driver| driver.take_fd(&event));
                            operation.opened.set(opened.flatten());
                        }
                        finished => {
                            self.io_counters.completed();
                            *operation.finished.borrow_mut() = finished;
                        }
                    }
                    self.sources.remove(event.token());
                }
                if let Some(waiter) = operation.waiter.take() {
                    waiter.wake();
                }
            }
        }
    }

    /// Takes operations back from the driver although the runtime does not run: cancels them, and waits for a limited time
    /// until the kernel has released them.
    pub(crate) fn recall(&self, operations: &[(Token, Rc<InFlight>)]) {
        for (token, operation) in operations {
            operation.is_recalled.set(true);
            self.with_driver(|driver| driver.cancel(*token));
        }
        let start = Instant::now();
        let mut events = Vec::new();
        while !operations
            .iter()
            .all(|(_, operation)| operation.is_over.get())
            && start.elapsed() < RECALL_MAX
        {
            let polled = self.with_driver(|driver| driver.poll(Some(RECALL_STEP), &mut events));
            for event in events.drain(..) {
                panics::contain(|| self.dispatch(event));
            }
            match polled {
                Some(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Some(Ok(())) => {}
                _ => return,
            }
        }
    }

    /// Drops what the driver has given back.
    pub(crate) fn drop_returned(&self) {
        if self.sources.returned.borrow().is_empty() {
            return;
        }
        panics::discard_each(self.sources.returned.take());
    }

    /// Whether dropped sockets are still to be closed.
    pub(crate) fn has_retired(&self) -> bool {
        !self.sources.retired.borrow().is_empty()
    }

    /// Tells the kernel about dropped watches, and closes their descriptors. Returns whether there were any.
    pub(crate) fn close_retired(&self) -> bool {
        let are_any = self.has_retired();
        if are_any {
            self.let_go();
        }
        are_any
    }

    /// Tells the kernel at once about everything that was dropped, so that sockets are closed even if no turn follows.
    pub(crate) fn let_go(&self) {
        // If the kernel accepts nothing at the moment, it may still look these descriptors up, so they must stay open.
        if self.flush().is_ok() {
            self.sources.retired.borrow_mut().clear();
        }
    }

    /// Tells the kernel about everything that was dropped or cancelled. There is nothing to tell when the runtime has
    /// ended, and in a child process, whose descriptors are its own while the requests are the parent's.
    pub(crate) fn flush(&self) -> io::Result<()> {
        let flushed = self.with_driver(|driver| {
            if driver.is_inherited() {
                Ok(())
            } else {
                driver.flush()
            }
        });
        flushed.unwrap_or(Ok(()))
    }

    /// Ends a watch, and all operations on its descriptor.
    fn forget(&self, token: Token, descriptor: BorrowedFd<'_>) -> Option<BackendKind> {
        self.sources.remove(token);
        self.with_driver(|driver| {
            driver.unwatch(token);
            // For futures that were forgotten instead of dropped.
            driver.cancel_fd(descriptor.as_raw_fd());
            driver.backend()
        })
    }

    /// Ends a watch, and tells the kernel, so that its descriptor is the user's again. Fails if the kernel accepts nothing
    /// at the moment: it may then still look the descriptor up.
    pub(crate) fn release(&self, token: Token, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        self.forget(token, descriptor);
        self.flush()
    }

    /// Ends a watch, and closes its descriptor when the kernel has been told.
    pub(crate) fn retire(&self, token: Token, descriptor: OwnedFd) {
        let backend = self.forget(token, descriptor.as_fd());
        let is_told = backend.map(|backend| backend == BackendKind::Epoll);
        // If the runtime has ended, so have all its watches.
        if is_told.unwrap_or(true) {
            return;
        }
        self.sources.retired.borrow_mut().push(descriptor);
        if !self.is_running() {
            self.let_go();
        }
    }
}

impl InFlight {
    pub(crate) fn new(owns_buffer: bool) -> Self {
        Self {
            owns_buffer,
            ..Self::default()
        }
    }

    /// Returns a result that has arrived.
    pub(crate) fn try_next(&self) -> Option<io::Result<u32>> {
        let result = self.results.borrow_mut().pop_front()?;
        Some(match u32::try_from(result) {
            Ok(result) => Ok(result),
            Err(_) if self.is_recalled.get() && result == -libc::ECANCELED => Err(elsewhere()),
            Err(_) => Err(io::Error::from_raw_os_error(-result)),
        })
    }

    /// Returns the result of an operation that is over, and the operation itself.
    pub(crate) fn take_outcome(&self) -> Option<(io::Result<u32>, Option<Op>)> {
        if !self.is_over.get() {
            return None;
        }
        self.try_next().map(|result| (result, self.finished.take()))
    }

    /// Has the task woken by the next event.
    pub(crate) fn register(&self, context: &Context<'_>) {
        let waker = match self.waiter.take() {
            Some(waker) if waker.will_wake(context.waker()) => waker,
            _ => context.waker().clone(),
        };
        self.waiter.set(Some(waker));
    }
}
