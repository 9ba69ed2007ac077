//! Which task a worker polls, for a thread that looks for those that block it.

use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Where a task comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin {
    /// The type of its future.
    pub(crate) name: &'static str,
    /// Where it was spawned.
    pub(crate) location: &'static Location<'static>,
}

/// The task that a worker polls now. Only the worker writes here.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// The number of the poll in progress; 0 between two polls.
    poll: AtomicU64,
    last: Mutex<Last>,
}

#[derive(Debug, Default)]
struct Last {
    poll: u64,
    origin: Option<Origin>,
}

impl Watch {
    fn last(&self) -> MutexGuard<'_, Last> {
        // Nothing panics under the lock.
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn begin(&self, origin: Origin) {
        let mut last = self.last();
        last.poll += 1;
        last.origin = Some(origin);
        let poll = last.poll;
        drop(last);
        self.poll.store(poll, Ordering::Release);
    }

    pub(crate) fn end(&self) {
        self.poll.store(0, Ordering::Release);
    }

    /// The number of the poll in progress.
    pub(crate) fn poll(&self) -> Option<u64> {
        let poll = self.poll.load(Ordering::Acquire);
        (poll != 0).then_some(poll)
    }

    /// The task of a poll, unless it has ended.
    pub(crate) fn origin(&self, poll: u64) -> Option<Origin> {
        let last = self.last();
        (last.poll == poll).then_some(last.origin).flatten()
    }
}
