//! Readiness of a descriptor that any thread may ask and wait for, for libraries whose sockets must be `Send` and `Sync`.
//!
//! A task of one runtime watches the descriptor, and passes on what it is told.

use std::future::poll_fn;
use std::io;
use std::mem;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use ringloop_driver::Interest;
use ringloop_reactor::panics;

use crate::runtime::{Handle, spawn_background};
use crate::source::{Seat, Source};
use crate::task::Role;

/// A descriptor that a runtime watches as long as this exists.
#[derive(Debug)]
pub(crate) struct Readiness {
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    read: Side,
    write: Side,
    /// The task that watches.
    watcher: Mutex<Watcher>,
}

#[derive(Debug, Default)]
struct Watcher {
    is_over: bool,
    waker: Option<Waker>,
}

/// One direction.
#[derive(Debug, Default)]
pub(crate) struct Side(Mutex<Waits>);

#[derive(Debug)]
struct Waits {
    is_ready: bool,
    /// Counts what was reported, so that nobody forgets what was reported after their call.
    reports: u64,
    /// Why nothing is reported any more.
    failure: Option<Failure>,
    waiting: Vec<(u64, Waker)>,
}

impl Default for Waits {
    /// Ready: whether that is so from the beginning is found by trying.
    fn default() -> Self {
        Self {
            is_ready: true,
            reports: 0,
            failure: None,
            waiting: Vec::new(),
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Failure {
    /// The descriptor could not be watched, with this errno.
    Refused(i32),
    Ended,
}

impl Failure {
    fn error(self) -> io::Error {
        match self {
            Self::Refused(errno) => io::Error::from_raw_os_error(errno),
            Self::Ended => io::Error::new(
                io::ErrorKind::NotConnected,
                "the runtime of this socket has ended",
            ),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that may panic runs under these locks.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Readiness {
    /// Watches a descriptor, which must be non-blocking, in a runtime. If that is the current one, it is watched when this
    /// returns; otherwise soon, and an error is returned to whoever waits.
    pub(crate) fn new(home: &Handle, descriptor: OwnedFd) -> io::Result<Self> {
        let state = Arc::new(State::default());
        let watching = Watching(Arc::clone(&state));
        if home.is_here() {
            let source = watch(descriptor)?;
            drop(spawn_background(watching.run(source)));
        } else {
            drop(home.spawn_as(Role::Background, move || async move {
                match watch(descriptor) {
                    Ok(source) => watching.run(source).await,
                    Err(error) => {
                        let errno = error.raw_os_error().unwrap_or(libc::EINVAL);
                        watching.0.fail(Failure::Refused(errno));
                    }
                }
            }));
        }
        Ok(Self { state })
    }

    pub(crate) fn read(&self) -> &Side {
        &self.state.read
    }

    pub(crate) fn write(&self) -> &Side {
        &self.state.write
    }
}

impl Drop for Readiness {
    fn drop(&mut self) {
        let mut watcher = lock(&self.state.watcher);
        watcher.is_over = true;
        let waker = watcher.waker.take();
        drop(watcher);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

fn watch(descriptor: OwnedFd) -> io::Result<Source<OwnedFd>> {
    Source::new(descriptor, Interest::READ | Interest::WRITE)
}

/// The task's end of the state. When it is dropped, those who wait are told.
struct Watching(Arc<State>);

impl Watching {
    async fn run(self, source: Source<OwnedFd>) {
        let state = &*self.0;
        let reading = source.reading(Seat::alone());
        let writing = source.writing(Seat::alone());
        poll_fn(|context| {
            if state.poll_over(context).is_ready() {
                return Poll::Ready(());
            }
            if source.take_readable(context, reading.seat()) {
                state.read.report();
            }
            if source.take_writable(context, writing.seat()) {
                state.write.report();
            }
            Poll::Pending
        })
        .await;
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.0.fail(Failure::Ended);
    }
}

impl State {
    /// Ready if nobody needs the watch any more. The task is ringloop's own, whose wakers run nobody's code.
    fn poll_over(&self, context: &Context<'_>) -> Poll<()> {
        let mut watcher = lock(&self.watcher);
        if watcher.is_over {
            return Poll::Ready(());
        }
        let waker = context.waker();
        if !watcher
            .waker
            .as_ref()
            .is_some_and(|known| known.will_wake(waker))
        {
            watcher.waker = Some(waker.clone());
        }
        Poll::Pending
    }

    fn fail(&self, failure: Failure) {
        self.read.fail(failure);
        self.write.fail(failure);
        let waker = lock(&self.watcher).waker.take();
        drop(waker);
    }
}

impl Side {
    /// Ready if a call is worth trying. If it then returns `WouldBlock`, give [`clear`](Self::clear) the number. Each of
    /// those who wait has a seat of its own.
    pub(crate) fn poll_ready(&self, seat: u64, context: &Context<'_>) -> Poll<io::Result<u64>> {
        let polled = lock(&self.0).look(seat, context.waker());
        if let Some(polled) = polled {
            return polled;
        }
        // Cloning may run the user's code.
        let waker = context.waker().clone();
        let mut waits = lock(&self.0);
        if let Some(polled) = waits.look(seat, &waker) {
            drop(waits);
            return polled;
        }
        let is_there = |(other, _): &&mut (u64, Waker)| *other == seat;
        let before = if let Some((_, before)) = waits.waiting.iter_mut().find(is_there) {
            Some(mem::replace(before, waker))
        } else {
            waits.waiting.push((seat, waker));
            None
        };
        drop(waits);
        drop(before);
        Poll::Pending
    }

    /// The number for [`clear`](Self::clear), for a call that does not wait.
    pub(crate) fn reports(&self) -> u64 {
        lock(&self.0).reports
    }

    /// Waits for the next report, unless there was one since the number was returned.
    pub(crate) fn clear(&self, reports: u64) {
        let mut waits = lock(&self.0);
        if waits.reports == reports {
            waits.is_ready = false;
        }
    }

    /// Removes the waker from a seat.
    pub(crate) fn leave(&self, seat: u64) {
        let mut waits = lock(&self.0);
        let place = waits.waiting.iter().position(|(other, _)| *other == seat);
        let waker = place.map(|place| waits.waiting.swap_remove(place));
        drop(waits);
        drop(waker);
    }

    fn report(&self) {
        let mut waits = lock(&self.0);
        waits.is_ready = true;
        waits.reports = waits.reports.wrapping_add(1);
        let waiting = mem::take(&mut waits.waiting);
        drop(waits);
        for (_, waker) in waiting {
            panics::contain(|| waker.wake());
        }
    }

    fn fail(&self, failure: Failure) {
        lock(&self.0).failure.get_or_insert(failure);
        self.report();
    }
}

impl Waits {
    /// `None` if this waker has to be registered.
    fn look(&self, seat: u64, waker: &Waker) -> Option<Poll<io::Result<u64>>> {
        if let Some(failure) = self.failure {
            return Some(Poll::Ready(Err(failure.error())));
        }
        if self.is_ready {
            return Some(Poll::Ready(Ok(self.reports)));
        }
        let is_there = |(other, before): &(u64, Waker)| *other == seat && before.will_wake(waker);
        self.waiting.iter().any(is_there).then_some(Poll::Pending)
    }
}
