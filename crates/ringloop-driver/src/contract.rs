//! The common parts of all backends: counters, what is known before a poll, timeouts, and errors that do not come from
//! the kernel.

use std::io;
use std::time::{Duration, Instant};

/// The number of events after which a poll may leave the rest to the next one, because its caller has timers to run,
/// too.
pub(crate) const BATCH: usize = 512;

/// The state of the next poll, as far as a driver knows it without a system call. Treat what you do not know as
/// [`Unknown`](Peek::Unknown).
#[derive(Clone, Copy, Debug, Eq, PartialEq, Hash)]
#[non_exhaustive]
pub enum Peek {
    /// A poll has something to do or to report.
    Ready,
    /// A poll would report nothing now. With a timeout of zero it makes no system call.
    Empty,
    /// Only the kernel knows.
    Unknown,
}

/// Counts of what a driver has done so far, and of what it holds.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct Counters {
    /// System calls made by the driver and its [`Registry`](crate::Registry), without those of worker threads and wakers.
    pub system_calls: u64,
    /// Events reported.
    pub events: u64,
    /// Wakes that a poll has noticed. Several between two polls count once.
    pub wakes: u64,
    /// Current watches, armed or not, without those of the [`Registry`](crate::Registry).
    pub watches: u64,
    /// Operations that have not finished.
    pub operations: u64,
    /// Events dropped because their watch or operation was gone.
    pub stale_events: u64,
    /// Polls that found an overflow of the completion queue.
    pub overflows: u64,
    /// Multishot requests that the kernel ended and the driver queued again.
    pub rearms: u64,
    /// Enters that submitted only a part of the entries.
    pub short_submits: u64,
    /// Enters that the kernel refused for lack of room or memory, and that were repeated.
    pub refused_submits: u64,
    /// Rings built because the driver had moved to another thread.
    pub rings_rebuilt: u64,
    /// Zero-copy sends that have finished without an error.
    pub zero_copy_sends: u64,
    /// How many of them the kernel has copied after all.
    pub zero_copy_copies: u64,
}

/// The timeout of a poll, counting down.
pub(crate) struct Countdown {
    deadline: Option<Instant>,
    left: Option<Duration>,
}

impl Countdown {
    /// Starts counting down, if the poll may wait at all.
    #[inline]
    pub(crate) fn new(timeout: Option<Duration>, may_wait: bool) -> Countdown {
        Countdown {
            deadline: timeout
                .filter(|_| may_wait)
                .and_then(|timeout| Instant::now().checked_add(timeout)),
            left: timeout,
        }
    }

    /// The time left when it was last checked. `None` is no limit.
    pub(crate) fn left(&self) -> Option<Duration> {
        self.left
    }

    /// Checks the clock. Returns whether the timeout has expired.
    pub(crate) fn is_over(&mut self) -> bool {
        let Some(deadline) = self.deadline else {
            return false;
        };
        let left = deadline.saturating_duration_since(Instant::now());
        self.left = Some(left);
        left.is_zero()
    }
}

/// The error for the use of a parent's driver in a child process.
pub(crate) fn inherited() -> io::Error {
    io::Error::other(
        "this loop was inherited over fork: it belongs to the parent process; make a new one in the child",
    )
}

/// The error of a flush that could not submit everything.
pub(crate) fn refused() -> io::Error {
    io::Error::new(
        io::ErrorKind::ResourceBusy,
        "the kernel accepts no more requests at the moment: a later flush or poll submits the queued ones",
    )
}
