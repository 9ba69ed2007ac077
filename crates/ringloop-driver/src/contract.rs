//! What all backends have in common: their counters, what they know before a poll, and the errors that do not come from
//! the kernel.

use std::io;
use std::time::{Duration, Instant};

/// A poll collects at least so many events, if there are as many, and then leaves the rest to the next one: whoever polls has
/// timers to look at, too.
pub(crate) const BATCH: usize = 512;

/// What a driver knows without a system call about the next poll.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Hash)]
pub enum Peek {
    /// A poll has something to do or to report.
    Ready,
    /// A poll would report nothing now; with a timeout of zero it makes no system call.
    Empty,
    /// Only the kernel knows.
    Unknown,
}

/// What a driver has done so far, and what it holds.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct Counters {
    /// System calls made by the driver and its [`Registry`], those of its worker threads and wakers excepted.
    pub system_calls: u64,
    /// Events reported.
    pub events: u64,
    /// Wakes from other threads that a poll has noticed; those in quick succession count once.
    pub wakes: u64,
    /// Watches that live now, armed or not; without those of the [`Registry`].
    pub watches: u64,
    /// Operations that have not finished.
    pub operations: u64,
    /// Events dropped because their owner was gone.
    pub stale_events: u64,
    /// Polls that found the completion queue overflowed.
    pub overflows: u64,
    /// Multishot requests that the kernel ended and the driver queued anew.
    pub rearms: u64,
    /// Enters that took fewer entries than there were.
    pub short_submits: u64,
    /// Enters refused for want of room or memory, and tried again.
    pub refused_submits: u64,
    /// Rings built because the driver had moved to another thread.
    pub rings_rebuilt: u64,
    /// Zero-copy sends that are over, those that failed excepted.
    pub zero_copy_sends: u64,
    /// The part of them of which the kernel made a copy all the same.
    pub zero_copy_copies: u64,
}

/// How long a poll may go on waiting.
pub(crate) struct Countdown {
    deadline: Option<Instant>,
    left: Option<Duration>,
}

impl Countdown {
    /// Begins to count a timeout down, if the poll may wait at all.
    #[inline]
    pub(crate) fn new(timeout: Option<Duration>, may_wait: bool) -> Countdown {
        Countdown {
            deadline: timeout
                .filter(|_| may_wait)
                .and_then(|timeout| Instant::now().checked_add(timeout)),
            left: timeout,
        }
    }

    /// What was left at the last look; `None` is for ever.
    pub(crate) fn left(&self) -> Option<Duration> {
        self.left
    }

    /// Looks at the clock. Returns whether the time is over.
    pub(crate) fn is_over(&mut self) -> bool {
        let Some(deadline) = self.deadline else {
            return false;
        };
        let left = deadline.saturating_duration_since(Instant::now());
        self.left = Some(left);
        left.is_zero()
    }
}

/// What a child says to whoever uses its parent's driver.
pub(crate) fn inherited() -> io::Error {
    io::Error::other(
        "this loop was inherited over fork: it belongs to the parent process; make a new one in the child",
    )
}

/// What a flush says that could not hand everything over.
pub(crate) fn refused() -> io::Error {
    io::Error::new(
        io::ErrorKind::ResourceBusy,
        "the kernel takes no more requests at the moment: what is queued goes along with a later flush or poll",
    )
}
