//! Waiting for readiness alone, for calls that are made elsewhere, or without waiting.

use std::borrow::Borrow;
use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::task::{Context, Poll, ready};

use super::{Seat, Source, Waiting, Watch};
use crate::shared::{Shared, Waiters, elsewhere};

/// The call that a descriptor is ready for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Read,
    Write,
}

/// How many times readiness had been reported when somebody looked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reports(u16);

impl Watch {
    fn flag(&self, direction: Direction) -> &Cell<bool> {
        match direction {
            Direction::Read => &self.watched.readable,
            Direction::Write => &self.watched.writable,
        }
    }

    fn waiters(&self, direction: Direction) -> &Waiters {
        match direction {
            Direction::Read => &self.watched.reader,
            Direction::Write => &self.watched.writer,
        }
    }

    fn waiting<T: Borrow<Seat>>(&self, direction: Direction, seat: T) -> Waiting<'_, T> {
        Waiting::new(self.waiters(direction), seat)
    }

    /// Ready when the descriptor counts as ready.
    fn poll_ready(
        &self,
        context: &mut Context<'_>,
        seat: &Seat,
        direction: Direction,
    ) -> Poll<io::Result<Reports>> {
        ready!(self.poll_turn(context))?;
        if self.flag(direction).get() {
            return Poll::Ready(Ok(Reports(self.watched.reports.get())));
        }
        self.waiters(direction).register(seat, context);
        Poll::Pending
    }
}

impl<S: AsFd + Into<OwnedFd>> Source<S> {
    /// Waits until the descriptor counts as ready. Any number of futures may wait at once.
    pub(crate) async fn ready(&self, direction: Direction) -> io::Result<Reports> {
        let waiting = self.watch.waiting(direction, Seat::beside_others());
        poll_fn(|context| self.watch.poll_ready(context, waiting.seat(), direction)).await
    }

    /// Ready when the descriptor counts as ready. Of those who call this for one direction, the last one is woken.
    pub(crate) fn poll_ready(
        &self,
        context: &mut Context<'_>,
        direction: Direction,
    ) -> Poll<io::Result<Reports>> {
        self.watch.poll_ready(context, &Seat::alone(), direction)
    }

    /// Notes that the descriptor is not ready, unless it was reported again since somebody looked.
    pub(crate) fn clear_ready(&self, direction: Direction, seen: Reports) {
        if self.watch.watched.reports.get() == seen.0 {
            self.watch.flag(direction).set(false);
        }
    }

    /// Makes a call that does not wait, whether or not the descriptor counts as ready. If it would have had to wait, the
    /// descriptor no longer does.
    pub(crate) fn unless_blocked<T>(
        &self,
        direction: Direction,
        call: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        let result = call();
        if is_blocked(&result) {
            self.watch.flag(direction).set(false);
        }
        result
    }

    /// Reads or writes without waiting, as [`unless_blocked`](Self::unless_blocked) does.
    pub(crate) fn try_call<T>(
        &self,
        direction: Direction,
        call: impl FnMut(&S) -> io::Result<T>,
    ) -> io::Result<T> {
        let result = self.unless_blocked(direction, || self.call(call));
        if result.is_ok() {
            self.note_activity();
        }
        result
    }

    /// Looks at what there is to read as soon as there is something, without reading it: `peek` changes nothing. Any number
    /// of futures may wait at once.
    pub(crate) async fn peek<T>(&self, mut peek: impl FnMut(&S) -> io::Result<T>) -> io::Result<T> {
        let waiting = self.watch.waiting(Direction::Read, Seat::beside_others());
        poll_fn(|context| {
            ready!(
                self.watch
                    .poll_ready(context, waiting.seat(), Direction::Read)
            )?;
            let peeked = self.unless_blocked(Direction::Read, || self.call(&mut peek));
            if is_blocked(&peeked) {
                let reader = self.watch.waiters(Direction::Read);
                reader.register(waiting.seat(), context);
                return Poll::Pending;
            }
            Poll::Ready(peeked)
        })
        .await
    }
}

/// Fails if nothing can be watched here: in a child process after fork(2), whose runtime is its parent's.
///
/// # Panics
/// Panics outside of a runtime.
pub(crate) fn check_runtime() -> io::Result<()> {
    let shared = Shared::current();
    match shared.with_driver(|driver| driver.is_inherited()) {
        Some(false) => Ok(()),
        Some(true) => Err(io::Error::other(
            "this process was forked from the one that the runtime belongs to: create a runtime here",
        )),
        None => Err(elsewhere()),
    }
}

/// Whether a call would have had to wait.
fn is_blocked<T>(result: &io::Result<T>) -> bool {
    result
        .as_ref()
        .is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
}
